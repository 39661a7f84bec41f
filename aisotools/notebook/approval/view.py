"""The content of approval cards and of the records they leave. Pure: requests in, JSON and MIME bundles out.

Everything a request holds is untrusted. Cards get it as text with invisible characters written out; bundles
get it escaped, between fixed markup.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from aisotools.core.exceptions import ArgumentError
from aisotools.core.types import Approval, ApprovalRequest, Effect, Facts, Json
from aisotools.notebook.approval.form import Control, apply_argument_edits, argument_changes, build_controls
from aisotools.notebook.render import html
from aisotools.notebook.render.text import one_line, shorten
from aisotools.policy.prompts import (
    LINKS_LABEL,
    REMEMBER_HINT,
    argument_fields,
    describe_effect,
    describe_git_programs,
    describe_links,
    describe_location,
    describe_request,
    describe_requester,
    describe_trust,
    is_risky,
    remember_choices,
    summarize_request,
    visible,
)

MAX_DIFF_LINES = 400
"""A longer diff is cut, and its note says so."""

MAX_REASON_CHARS = 2_000
"""Longest reason that a card may send; the rest is cut off."""

MAX_HIGHLIGHT_CHARS = 5_000
"""Longer code is shown in one colour: lexing it would hold up the event loop."""

OUTCOME_LABELS = {
    "approve": "\N{CHECK MARK} Approved",
    "deny": "\N{MULTIPLICATION X} Denied",
    "timeout": "\N{MULTIPLICATION X} Not answered in time",
    "cancel": "\N{MULTIPLICATION X} Stopped before an answer",
}
"""The label of each outcome in a record."""

NOT_SELECTED = "It was not among the calls that were approved."
"""Reason of the denial of a call that was left out while others of its batch were approved."""

_MAX_LINE_CHARS = 500
_MAX_NAMES = 8
_DOUBT_CHARS = 160
_MAX_TRIAL_LINES = 20
_TRIAL_TITLE = "printed when it was tried without write rights"
_MAX_RECORD_CHARS = 12_000
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


# ---- one call


def card_payload(request: ApprovalRequest) -> dict[str, Any]:
    """Return the JSON of the card of one call; the page sets all of it as text."""
    previews = build_previews(request)
    # Which programs run stands in the command, large.
    previews["findings"] = [found for found in previews.get("findings", ()) if found[0] != "runs"]
    controls = build_controls(request)
    return {
        "title": action_title(request),
        "tool": one_line(request.call.name),
        "about": one_line(request.definition.description.strip().partition("\n")[0].rstrip("."), 160),
        "effect": str(request.effect),
        "effect_words": describe_effect(request),
        "place": describe_location(request),
        "unconfined": request.level in {"host", "limited"},
        "who": describe_requester(request),
        "reasons": [visible(reason, "") for reason in request.reasons if reason not in _SAID_BY_EFFECT],
        "preview": previews,
        "fields": [_field_payload(control, request, previews) for control in controls],
        "as_json": all(control.editable or control.kind == "secret" for control in controls),
        "remember": [
            {"scope": scope, "words": words}
            for scope, words in remember_choices(request).items()
            if scope != "protected"
        ],
        "allow": remember_choices(request).get("protected", ""),
    }


def action_title(request: ApprovalRequest) -> str:
    """Return what a call does in a few plain words: `Run a command`, `Write notes.md`, `Delete 3 files`.

    The words come from facts that the host has found out, not from a description of the tool.
    """
    arguments, facts = request.call.arguments, request.facts
    diff, web = diff_preview(request), web_preview(request)
    if diff:
        verb = "Edit" if "edits" in arguments or "patch" in arguments else "Write"
        return f"{'Create' if diff['note'] == _NEW_FILE else verb} {diff['path']}"
    if web:
        return f"{'Fetch from' if web['method'] in {'GET', 'HEAD'} else 'Send to'} {web['host']}"
    programs = {command.partition(" ")[0] for command in facts.commands}
    if isinstance(arguments.get("command"), str) and facts.commands:
        return _title_of_removal(facts.writes) if programs <= _REMOVERS and facts.writes else "Run a command"
    if isinstance(patch := arguments.get("patch"), str) and is_diff(patch):
        return "Apply a patch"
    if request.call.name == "python" and isinstance(arguments.get("code"), str):
        return "Run Python code"
    operation, path = arguments.get("operation"), arguments.get("path")
    if facts.path_guarded and isinstance(operation, str) and isinstance(path, str):
        target = arguments.get("destination")
        to = f" to {one_line(target)}" if isinstance(target, str) else ""
        if operation in _FILE_OPERATIONS:
            return f"{_FILE_OPERATIONS[operation]} {one_line(path)}{to}"
    return f"Use {one_line(request.call.name)}"


def _title_of_removal(paths: Sequence[str]) -> str:
    return f"Delete {one_line(paths[0])}" if len(paths) == 1 else f"Delete {len(paths)} files or folders"


_SAID_BY_EFFECT = frozenset(("it is a local change", "it is destructive", "it is a remote action"))
"""Reasons that say no more than the effect beside them."""
_NEW_FILE = "A new file."
_REMOVERS = frozenset(("rm", "rmdir", "unlink"))
_FILE_OPERATIONS = {"delete": "Delete", "move": "Move", "copy": "Copy", "mkdir": "Make the folder"}


def _field_payload(control: Control, request: ApprovalRequest, previews: Mapping[str, Any]) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "name": control.name,
        "label": visible(control.name, ""),
        "kind": control.kind,
        "text": control.shown,
        "editable": control.editable,
        "about": one_line(control.about.partition(". ")[0].rstrip("."), 160),
        "note": control.note,
        "folded": control.name in _previewed_arguments(previews),
        "said": _is_said(control.name, request.call.arguments[control.name], previews),
    }
    if control.kind in {"shell", "python"}:
        payload["pieces"] = highlight(control.shown, control.kind, request.facts.writes)
    elif control.kind == "text" and is_diff(control.shown):
        payload["pieces"] = highlight(control.shown, "diff")
    if control.choices:
        payload["choices"] = list(control.choices)
    if control.least is not None or control.most is not None or control.whole:
        payload["limits"] = {"least": control.least, "most": control.most, "whole": control.whole}
    return payload


def _is_said(name: str, value: Json, previews: Mapping[str, Any]) -> bool:
    """Return whether a preview shows an argument, so that it is not shown once more where it is only read."""
    if name == "path":
        return bool(value) and value == previews.get("diff", {}).get("path")
    return name == "method" and "web" in previews


def _previewed_arguments(previews: Mapping[str, Any]) -> set[str]:
    """Return the names of the arguments that a preview shows completely; their fields are folded."""
    names: set[str] = set()
    if previews.get("diff", {}).get("whole"):
        names |= {"content", "edits"}
    if previews.get("web", {}).get("whole"):
        names.add("url")
    return names


def parse_decision(request: ApprovalRequest, message: Mapping[str, Any]) -> Approval:
    """Parse the reply of the card of one call.

    Args:
        request: The request that the card showed.
        message: `outcome`, `reason`, `edits` by field name or `whole`, and `remember`; untrusted.

    Raises:
        ArgumentError: If the reply is malformed or its edits are invalid; the message is shown on the card.
    """
    outcome, reason = parse_outcome(message)
    if outcome == "deny":
        return Approval("deny", reason=reason)
    edits, whole, remember = message.get("edits", {}), message.get("whole"), message.get("remember")
    well_formed = isinstance(edits, Mapping) and all(isinstance(text, str) for text in edits.values())
    if not well_formed or not isinstance(whole, str | None):
        raise ArgumentError("The card's edits could not be read.")
    arguments = apply_argument_edits(request, edits, whole)
    if remember is None:
        return Approval("approve", reason=reason, arguments=arguments)
    if arguments is not None:
        raise ArgumentError("Edited arguments can be approved once only. Set remember to null.")
    choices = remember_choices(request)
    scope = next((choice for choice in choices if choice == remember), None)
    if scope is None:
        offered = ", ".join(choices) or "none"
        raise ArgumentError(f"remember={one_line(repr(remember))} was not offered. Offered: {offered}.")
    return Approval("approve", reason=reason, remember=scope)


def parse_outcome(message: Mapping[str, Any]) -> tuple[Literal["approve", "deny"], str]:
    """Return the outcome and the reason of a card's reply.

    Raises:
        ArgumentError: If the outcome is neither `approve` nor `deny`.
    """
    outcome, reason = message.get("outcome"), message.get("reason", "")
    if not isinstance(reason, str) or not isinstance(outcome, str) or outcome not in {"approve", "deny"}:
        raise ArgumentError("The card's answer could not be read.")
    return ("approve" if outcome == "approve" else "deny"), reason.strip()[:MAX_REASON_CHARS]


def fallback_bundle(request: ApprovalRequest, hint: str = "") -> dict[str, Any]:
    """Return the MIME bundle of a request for pages without widgets and for terminals.

    Args:
        request: The request.
        hint: How to answer where the answer is typed; empty where it is not.
    """
    scopes = remember_choices(request)
    body = facts_html(request) + previews_html(request) + arguments_html(request)
    if scopes and hint:
        body += html.small_print(
            f"{REMEMBER_HINT} type", *(f"{scope[0]} for {words}" for scope, words in scopes.items())
        )
    if hint:
        body += html.note(hint)
    title = f"May {html.code(one_line(request.call.name))} run?"
    described = (*describe_trust(request), describe_links(request.facts))
    lines = [describe_request(request, typed=bool(hint)), *_preview_lines(request, described), hint]
    return {
        "text/html": html.box(title, body, html.EFFECT_COLOURS[request.effect]),
        "text/plain": "\n".join(filter(None, lines)),
    }


def record_bundle(request: ApprovalRequest, approval: Approval) -> dict[str, Any]:
    """Return the MIME bundle that stays in the notebook after an answer."""
    edits: list[tuple[str, str, str]] = []
    approved = request
    if approval.arguments is not None:
        edits = list(argument_changes(request, approval.arguments))
        call = dataclasses.replace(request.call, arguments=approval.arguments)
        # The diff and the facts were computed from the arguments before the edits.
        remaining = {kind: preview for kind, preview in request.preview.items() if kind != "diff"}
        known = Facts(runs_in=request.facts.runs_in, basis=request.facts.basis)
        approved = dataclasses.replace(request, call=call, preview=remaining, facts=known)
    label = OUTCOME_LABELS[approval.outcome]
    if edits:
        label += " with changed arguments"
    remembered = remember_choices(request).get(approval.remember, "") if approval.remember else ""
    if remembered:
        label += " and remembered"
        what = remembered if approval.remember == "protected" else f"not asked again for {remembered}"
        remembered = f"until the session ends, {what}"
    reason = visible(approval.reason)
    name = one_line(request.call.name)
    details = [text for text in (remembered, f"reason: {reason}" if reason else "") if text]
    body = (
        facts_html(approved)
        + "".join(map(html.small_print, details))
        + "".join(_edit_html(*edit) for edit in edits)
        + previews_html(approved)
        + html.details("arguments", arguments_html(approved))
    )
    lines = [f"{label}: {name}", *(f"  {line}" for line in _fact_lines(approved))]
    lines += [f"  {line}" for line in details]
    lines += [
        f"  {argument}: {_one_line(old)} \N{RIGHTWARDS ARROW} {_one_line(new)}"
        for argument, old, new in edits
    ]
    lines += _preview_lines(approved)
    for field in argument_fields(approved):
        text = shorten(field.text, _MAX_RECORD_CHARS)
        lines.append(f"  {visible(field.name, '') or 'arguments'}:")
        lines += [f"    {line}" for line in text.split("\n")]
    title = f"<strong>{label}</strong> {html.code(name)}"
    return {
        "text/html": html.box(title, body, html.EFFECT_COLOURS[request.effect]),
        "text/plain": "\n".join(lines),
    }


def _edit_html(name: str, old: str, new: str) -> str:
    """Return the HTML of a person's change to one argument: a short one in a line, a long one as a diff."""
    if "\n" not in old + new and len(old) + len(new) < 200:
        before, after = f"<del>{html.escape(old)}</del>", f"<ins>{html.escape(new)}</ins>"
        return f"<div>{html.code(name)}: {before} \N{RIGHTWARDS ARROW} {after}</div>"
    lines = list(difflib.unified_diff(old.split("\n"), new.split("\n"), lineterm="", n=2))[2:]
    return html.note(f"{name}, before and after:") + html.diff(lines[:MAX_DIFF_LINES])


def _one_line(text: str) -> str:
    return one_line(text.replace("\n", " \N{DOWNWARDS ARROW WITH CORNER LEFTWARDS} "), 120)


# ---- several calls in one prompt


def batch_payload(requests: Sequence[ApprovalRequest]) -> dict[str, Any]:
    """Return the JSON of the card of several calls. Risky calls start unselected."""
    return {
        "effect": str(_highest_effect(requests)),
        "rows": [
            {
                **card_payload(request),
                "id": request.id,
                "summary": summarize_request(request),
                "selected": not is_risky(request),
                "open": _is_code_cut(request),
            }
            for request in requests
        ],
    }


def parse_batch(requests: Sequence[ApprovalRequest], message: Mapping[str, Any]) -> list[Approval]:
    """Parse the reply of the card of several calls: the selected ones are approved, all others denied.

    Raises:
        ArgumentError: If the reply is malformed; the message is shown on the card.
    """
    outcome, reason = parse_outcome(message)
    if outcome == "deny":
        return [Approval("deny", reason=reason) for _ in requests]
    selected = message.get("selected")
    ids = [request.id for request in requests]
    if not isinstance(selected, list) or not all(name in ids for name in selected):
        raise ArgumentError("The card's selection could not be read.")
    if not selected:
        raise ArgumentError("No call is selected. Select those that may run, or deny all.")
    return [
        Approval("approve") if name in selected else Approval("deny", reason=reason or NOT_SELECTED)
        for name in ids
    ]


def batch_fallback_bundle(requests: Sequence[ApprovalRequest]) -> dict[str, Any]:
    """Return the MIME bundle of several requests for pages without widgets and for terminals."""
    title = f"May these {len(requests)} calls run?"
    body = "".join(_row_html("", request, "") for request in requests)
    return {
        "text/html": html.box(title, body, html.EFFECT_COLOURS[_highest_effect(requests)]),
        "text/plain": "\n\n".join([title, *map(describe_request, requests)]),
    }


def batch_record_bundle(requests: Sequence[ApprovalRequest], approvals: Sequence[Approval]) -> dict[str, Any]:
    """Return the MIME bundle that stays in the notebook after the answer to several requests."""
    count = sum(approval.outcome == "approve" for approval in approvals)
    title = f"{count} of {len(requests)} calls approved"
    body, lines = "", [title]
    for request, approval in zip(requests, approvals, strict=True):
        label = OUTCOME_LABELS[approval.outcome]
        reason = visible(approval.reason) if approval.outcome in {"approve", "deny"} else ""
        body += _row_html(label, request, reason)
        lines.append(f"  {label}: {one_line(request.call.name)}  {summarize_request(request)}")
        if reason:
            lines.append(f"    reason: {reason}")
    colour = html.EFFECT_COLOURS[_highest_effect(requests)]
    return {
        "text/html": html.box(f"<strong>{title}</strong>", body, colour),
        "text/plain": "\n".join(lines),
    }


def _is_code_cut(request: ApprovalRequest) -> bool:
    """Return whether the summary omits part of the code that would run. Such a row starts unfolded."""
    has_code = any(field.kind in {"shell", "python"} for field in argument_fields(request))
    return has_code and summarize_request(request).endswith(_ELLIPSIS)


def _row_html(label: str, request: ApprovalRequest, reason: str) -> str:
    name = f"{label} {one_line(request.call.name)}".strip()
    summary = f"{name} \N{MIDDLE DOT} {describe_effect(request)} \N{MIDDLE DOT} {summarize_request(request)}"
    body = facts_html(request) + previews_html(request) + arguments_html(request)
    row = html.details(summary, body)
    return row + html.small_print(f"reason: {reason}") if reason else row


def _highest_effect(requests: Sequence[ApprovalRequest]) -> Effect:
    return max(request.effect for request in requests)


# ---- facts and arguments as HTML


def facts_html(request: ApprovalRequest) -> str:
    """Return the effect, the place, who asks and why, as safe HTML."""
    return html.small_print(*_fact_lines(request))


def _fact_lines(request: ApprovalRequest) -> list[str]:
    first = f"{describe_effect(request)}, {describe_location(request)}, {describe_requester(request)}"
    return [first, *(f"because {visible(reason, '')}" for reason in request.reasons)]


def arguments_html(request: ApprovalRequest) -> str:
    """Return the arguments as safe HTML; only very long ones are cut."""
    return "".join(
        html.note(visible(field.name, "") or "arguments")
        + html.block(shorten(field.text, _MAX_RECORD_CHARS), exact=True)
        for field in argument_fields(request)
    )


# ---- previews


def build_previews(request: ApprovalRequest) -> dict[str, Any]:
    """Return the previews that exist for a request, by kind: `diff`, `web`, `findings`, `trial`, `undo`."""
    previews = {
        "diff": diff_preview(request),
        "web": web_preview(request),
        "findings": findings_preview(request),
        "trial": trial_preview(request),
        "undo": undo_preview(request),
    }
    return {kind: preview for kind, preview in previews.items() if preview}


def diff_preview(request: ApprovalRequest) -> dict[str, Any]:
    """Return the change to a file that the host computed; empty if there is none."""
    diff = request.preview.get("diff")
    if not isinstance(diff, Mapping):
        return {}
    lines = diff.get("lines", ())
    lines = [line for line in lines if isinstance(line, str)] if isinstance(lines, Sequence) else []
    note = str(diff.get("note", ""))
    if len(lines) > MAX_DIFF_LINES:
        left_out = len(lines) - MAX_DIFF_LINES
        note = f"{note} {left_out:,} more lines are not shown here.".strip()
    shown = [_cut(line) for line in lines[:MAX_DIFF_LINES]]
    # Only a complete diff may stand in for the argument that it was computed from.
    is_whole = bool(lines) and len(lines) == len(shown) and all(len(n) < _MAX_LINE_CHARS for n in shown)
    return {
        "path": one_line(str(diff.get("path", "")), 300),
        "lines": shown,
        "whole": is_whole,
        "added": int(diff.get("added", 0)),
        "removed": int(diff.get("removed", 0)),
        "note": visible(note, ""),
    }


def web_preview(request: ApprovalRequest) -> dict[str, Any]:
    """Return method, URL and host of a web request; the host as the network sees it."""
    url = request.call.arguments.get("url")
    if not isinstance(url, str) or not (request.facts.hosts or request.effect is Effect.REMOTE_ACTION):
        return {}
    method = request.call.arguments.get("method", "GET")
    try:
        host = urlsplit(url).hostname or ""
        host = host if host.isascii() else host.encode("idna").decode()
    except ValueError:
        host = "an address that cannot be read"
    method = one_line(method, 12).upper() if isinstance(method, str) else "GET"
    line = one_line(url, 2_000)
    return {"method": method, "url": line, "host": one_line(host, 253), "whole": line == url}


def findings_preview(request: ApprovalRequest) -> list[tuple[str, str]]:
    """Return what the classifier found out about a call, as pairs of a word and names."""
    facts = request.facts
    found = {"runs": facts.commands, "writes": facts.writes, "reads": facts.reads, "talks to": facts.hosts}
    if diff_preview(request):
        del found["writes"]
    elif web_preview(request):
        del found["talks to"]
    findings = []
    for word, names in found.items():
        if names and (facts.commands or word == "talks to"):
            text = ", ".join(one_line(name, 100) for name in names[:_MAX_NAMES])
            if len(names) > _MAX_NAMES:
                text += f" and {len(names) - _MAX_NAMES} more"
            findings.append((word, text))
    if links := describe_links(facts):
        findings.append((LINKS_LABEL, links))
    findings += describe_git_programs(facts)
    is_unknown = facts.basis == "nothing"
    if facts.outside and not is_unknown:
        findings.append(("beware", "it writes outside the workspace"))
    findings += [("beware" if is_unknown else "note", sentence) for sentence in describe_trust(request)]
    if facts.commands and not facts.certain and not is_unknown:
        # A reason has said them already, in most cases.
        reasons = "\n".join(request.reasons)
        doubts = "; ".join(one_line(doubt, _DOUBT_CHARS) for doubt in facts.doubts if doubt not in reasons)
        findings.append(
            ("beware", "not everything it does could be seen" + (f": {doubts}" if doubts else ""))
        )
    return findings


def trial_preview(request: ApprovalRequest) -> list[str]:
    """Return what a call printed when it was tried without write rights, line by line; empty if nothing."""
    trial = request.preview.get("trial")
    output = trial.get("output") if isinstance(trial, Mapping) else None
    lines = output.splitlines() if isinstance(output, str) else []
    shown = [_cut(line) for line in lines[:_MAX_TRIAL_LINES]]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} more lines")
    return shown


def undo_preview(request: ApprovalRequest) -> str:
    """Return what undo would cover, as the session words it; empty if it does not say."""
    text = request.preview.get("undo")
    return one_line(text, 400) if isinstance(text, str) else ""


def previews_html(request: ApprovalRequest) -> str:
    """Return the previews of a request as safe HTML."""
    previews = build_previews(request)
    parts = []
    if diff := previews.get("diff"):
        parts.append(html.small_print(_diff_title(diff)))
        if diff["lines"]:
            parts.append(html.diff(diff["lines"]))
    if web := previews.get("web"):
        parts.append(html.block(f"{web['method']} {web['url']}", exact=True))
        parts.append(html.small_print(f"host: {web['host']}"))
    parts += [html.small_print(f"{word}: {names}") for word, names in previews.get("findings", ())]
    if trial := previews.get("trial"):
        parts.append(html.small_print(_TRIAL_TITLE))
        parts.append(html.block("\n".join(trial), exact=True))
    if "undo" in previews:
        parts.append(html.small_print(f"undo: {previews['undo']}"))
    return "".join(parts)


def _preview_lines(request: ApprovalRequest, without: Collection[str] = ()) -> list[str]:
    previews = build_previews(request)
    lines = []
    if diff := previews.get("diff"):
        lines += [f"  {_diff_title(diff)}", *(f"    {line}" for line in diff["lines"])]
    if web := previews.get("web"):
        lines.append(f"  {web['method']} {web['url']} (host: {web['host']})")
    lines += [f"  {word}: {names}" for word, names in previews.get("findings", ()) if names not in without]
    if trial := previews.get("trial"):
        lines += [f"  {_TRIAL_TITLE}:", *(f"    {line}" for line in trial)]
    if "undo" in previews:
        lines.append(f"  undo: {previews['undo']}")
    return lines


def _diff_title(diff: Mapping[str, Any]) -> str:
    title = str(diff["path"])
    if diff["lines"]:
        title += f" +{diff['added']} \N{MINUS SIGN}{diff['removed']}"
    if diff["note"]:
        title += f" \N{MIDDLE DOT} {diff['note']}"
    return title


def _cut(line: str) -> str:
    line = visible(line, "\t")
    return line if len(line) <= _MAX_LINE_CHARS else line[: _MAX_LINE_CHARS - 1] + _ELLIPSIS


# ---- colours of code

CodePieces = list[tuple[str, str]]
"""Pairs of one of `HIGHLIGHT_CLASSES` and text. The texts joined are the code."""

HIGHLIGHT_CLASSES = frozenset(
    {"", "comment", "string", "number", "keyword", "command", "name", "operator", "option", "written"}
    | {"added", "removed", "where"}
)
"""Every class that a piece may have; the style sheet knows these and no others."""

# By the names of Pygments' token types; the most specific name that is listed counts.
_TOKEN_CLASSES = {
    "Token.Comment": "comment",
    "Token.Literal.String": "string",
    "Token.Literal.Number": "number",
    "Token.Keyword": "keyword",
    "Token.Operator.Word": "keyword",
    "Token.Operator": "operator",
    "Token.Punctuation": "operator",
    "Token.Name.Builtin": "command",
    "Token.Name.Variable": "name",
}
_COMMAND_FOLLOWS = frozenset(("if", "then", "else", "elif", "do", "while", "until", "!"))
_HUNK = re.compile(r"^@@ ", re.MULTILINE)
_DIFF_HEADERS = ("--- ", "+++ ", "diff ", "index ", "@@")
_DIFF_CLASSES = {"+": "added", "-": "removed"}


def highlight(code: str, language: str, written: Collection[str] = ()) -> CodePieces:
    """Return `code` in pieces of one class each.

    Args:
        code: The source; above `MAX_HIGHLIGHT_CHARS` it is one piece.
        language: `shell`, `python` or `diff`; anything else is one piece.
        written: Words of a shell command that are known to be paths it writes.
    """
    if len(code) > MAX_HIGHLIGHT_CHARS:
        return [("", code)]
    if language == "shell":
        return list(_merge(_shell_pieces(code, frozenset(written))))
    if language == "python":
        return list(_merge(_python_pieces(code)))
    if language == "diff":
        return list(_merge(_diff_pieces(code)))
    return [("", code)]


def is_diff(text: str) -> bool:
    """Return whether a text reads as a unified diff."""
    return _HUNK.search(text) is not None and ("\n+++ " in text or text.startswith("diff --git "))


def _python_pieces(code: str) -> Iterator[tuple[str, str]]:
    from pygments.lexers.python import PythonLexer

    for _, token, text in PythonLexer().get_tokens_unprocessed(code):
        name = _token_class(token)
        yield ("" if name == "operator" else name), text


def _shell_pieces(code: str, written: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Lex shell code. Pygments knows builtins only, so commands are recognized by their position."""
    from pygments.lexers.shell import BashLexer

    at_command = True
    previous = ""
    for _, token, text in BashLexer().get_tokens_unprocessed(code):
        name = _token_class(token)
        if name in {"", "command"} and not text.isspace():
            if text in written:
                name = "written"
            elif text[0] in "<>":
                name = "operator"
            elif at_command and previous != "=":
                name = "command"
                at_command = False
            else:
                name = "option" if text.startswith("-") else ""
        elif name == "keyword":
            at_command = text in _COMMAND_FOLLOWS
        elif name == "operator" and previous not in {"<", ">"}:
            # A bare `&` behind `>` belongs to the redirection; every other `&` ends a command.
            at_command = at_command or any(sign in text for sign in "|&;(")
        at_command = at_command or ("\n" in text and name in {"", "comment"})
        previous = text
        yield name, text


def _token_class(token: Any) -> str:
    name = str(token)
    while name:
        if name in _TOKEN_CLASSES:
            return _TOKEN_CLASSES[name]
        name = name.rpartition(".")[0]
    return ""


def _diff_pieces(text: str) -> Iterator[tuple[str, str]]:
    # Not Pygments: its diff lexer is quadratic in a long last line, and calls file headers changes.
    for line in text.splitlines(keepends=True):
        yield ("where" if line.startswith(_DIFF_HEADERS) else _DIFF_CLASSES.get(line[:1], "")), line


def _merge(pieces: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Join neighbours of the same class."""
    current, texts = "", [""]
    for name, text in pieces:
        if name != current:
            if joined := "".join(texts):
                yield current, joined
            current, texts = name, []
        texts.append(text)
    if joined := "".join(texts):
        yield current, joined
