"""What the approval card shows, what its answer means, and what it leaves behind. Pure.

What a card shows besides the arguments. Pure; everything comes out as visible text in bounded lists.

The change to a file, the request that goes out, what a shell command does, what undo would cover.

Code cut into pieces with a class each, for colours. Pure and linear; the pieces joined are the code.

Several calls in one question: what the card shows, what its answer means, what it leaves behind. Pure.
"""

from __future__ import annotations

import builtins
import dataclasses
import difflib
import keyword
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from aisotools.core.exceptions import ArgumentError
from aisotools.core.types import Approval, ApprovalRequest, Effect, Facts
from aisotools.notebook.approval.form import Control, apply_edits, argument_changes, build_controls
from aisotools.notebook.render import html
from aisotools.notebook.render.text import one_line, shorten
from aisotools.policy.prompts import (
    EFFECT_WORDS,
    REMEMBER,
    argument_fields,
    describe,
    is_risky,
    remember_choices,
    summarize,
    visible,
    where_it_runs,
    who_asks,
)

MAX_DIFF_LINES = 400
"""A longer change is cut, and said."""

_MAX_LINE_CHARS = 500
_MAX_NAMED = 8
_SEEN = (("runs", "commands"), ("writes", "writes"), ("reads", "reads"), ("talks to", "hosts"))


def build_previews(request: ApprovalRequest) -> dict[str, Any]:
    """All previews of a request, by kind: `diff`, `web`, `findings`, `undo`; each only where there is one."""
    found = {
        "diff": diff_preview(request),
        "web": web_preview(request),
        "findings": findings_preview(request),
        "undo": undo_preview(request),
    }
    return {kind: shown for kind, shown in found.items() if shown}


def diff_preview(request: ApprovalRequest) -> dict[str, Any]:
    """The change to a file that the host worked out; empty when there is none."""
    given = request.preview.get("diff")
    if not isinstance(given, Mapping):
        return {}
    lines = given.get("lines", ())
    lines = [line for line in lines if isinstance(line, str)] if isinstance(lines, Sequence) else []
    note = str(given.get("note", ""))
    if len(lines) > MAX_DIFF_LINES:
        left_out = len(lines) - MAX_DIFF_LINES
        note = f"{note} {left_out:,} more lines are not shown here.".strip()
    shown = [_cut(line) for line in lines[:MAX_DIFF_LINES]]
    return {
        "path": one_line(str(given.get("path", "")), 300),
        "lines": shown,
        "whole": bool(lines) and len(lines) == len(shown) and all(len(n) < _MAX_LINE_CHARS for n in shown),
        "added": int(given.get("added", 0)),
        "removed": int(given.get("removed", 0)),
        "note": visible(note, ""),
    }


def web_preview(request: ApprovalRequest) -> dict[str, Any]:
    """Method, address and host of a request that goes out; the host as the network sees it."""
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
    told = one_line(url, 2_000)
    return {"method": method, "url": told, "host": one_line(host, 253), "whole": told == url}


def findings_preview(request: ApprovalRequest) -> list[tuple[str, str]]:
    """What was found out about a call, as pairs of a word and names."""
    facts_html = request.facts
    shown_elsewhere = {"writes"} if diff_preview(request) else {"hosts"} if web_preview(request) else set()
    found = []
    for word, field in _SEEN:
        names: tuple[str, ...] = getattr(facts_html, field)
        if names and field not in shown_elsewhere and (facts_html.commands or field == "hosts"):
            more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            found.append((word, ", ".join(one_line(name, 100) for name in names[:_MAX_NAMED]) + more))
    if facts_html.outside:
        found.append(("beware", "it writes outside the workspace"))
    if facts_html.commands and not facts_html.certain:
        found.append(("beware", "not everything it does could be seen"))
    return found


def undo_preview(request: ApprovalRequest) -> str:
    """What undo would cover, in the words of whoever keeps it; empty when nobody said."""
    told = request.preview.get("undo")
    return one_line(told, 400) if isinstance(told, str) else ""


def _cut(line: str) -> str:
    line = visible(line, "\t")
    return line if len(line) <= _MAX_LINE_CHARS else line[: _MAX_LINE_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"


Pieces = list[tuple[str, str]]
"""Pairs of a class, empty for none, and text."""

MAX_HIGHLIGHT_CHARS = 20_000
"""Longer code is one piece."""

# Every branch starts with what no other takes, and none can match in two ways: linear time.
_SHELL = re.compile(
    r"""(?P<comment>(?<![^\s;&|()])\#[^\n]*)
      | (?P<string>'[^']*'? | "(?:[^"\\]|\\.)*"?)
      | (?P<name>\$(?:\{[^}\n]*\}? | \w+ | [?@*\#!$-])?)
      | (?P<operator>[|&;()<>]+)
      | (?P<space>\s+)
      | (?P<word>(?:[^\s|&;()<>"'$\\] | \\.)+)
      | (?P<rest>\\)""",
    re.VERBOSE | re.DOTALL,
)
_PYTHON = re.compile(
    r"""(?P<comment>\#[^\n]*)
      | (?P<string>[A-Za-z]{0,2}(?:
            \'\'\'(?:[^'\\] | \\. | '(?!''))*(?:\'\'\')?
          | \"\"\"(?:[^"\\] | \\. | "(?!""))*(?:\"\"\")?
          | '(?:[^'\\\n] | \\.)*'?
          | "(?:[^"\\\n] | \\.)*"?))
      | (?P<number>\d[\w.]*)
      | (?P<word>\w+)
      | (?P<rest>[^\w\s"'#]+ | \s+)""",
    re.VERBOSE | re.DOTALL,
)
_OPENERS = frozenset(("then", "do", "else", "elif", "if", "while", "until", "!", "{", "time", "exec"))
_ASSIGNED = re.compile(r"\w+\+?=")
_BUILTINS = frozenset(dir(builtins))
_HUNK = re.compile(r"^@@ ", re.MULTILINE)
_HEADS = ("--- ", "+++ ", "diff ", "index ", "@@")
_SIGNS = {"+": "added", "-": "removed"}


def highlight(code: str, language: str, written: Collection[str] = ()) -> Pieces:
    """`code` in pieces.

    Args:
        code: The source.
        language: `shell`, `python` or `diff`; anything else is one piece.
        written: Words of a shell command that are known to be paths it writes.
    """
    if len(code) > MAX_HIGHLIGHT_CHARS or language not in {"shell", "python", "diff"}:
        return [("", code)]
    if language == "diff":
        return list(_joined(_diff(code)))
    pieces = _shell(code, frozenset(written)) if language == "shell" else _python(code)
    return list(_joined(pieces))


def is_diff(text: str) -> bool:
    """Whether a text reads as a unified diff."""
    return _HUNK.search(text) is not None and ("\n+++ " in text or text.startswith("diff --git "))


def _joined(pieces: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Neighbours of one class as one piece."""
    kind, texts = "", [""]
    for name, text in pieces:
        if name != kind:
            if joined := "".join(texts):
                yield kind, joined
            kind, texts = name, []
        texts.append(text)
    if joined := "".join(texts):
        yield kind, joined


def _shell(code: str, written: frozenset[str]) -> Iterator[tuple[str, str]]:
    starts = True
    for match in _SHELL.finditer(code):
        kind, text = match.lastgroup or "", match[0]
        if kind == "word":
            if text in written:
                kind = "written"
            elif starts and not _ASSIGNED.match(text):
                kind = "keyword" if text in _OPENERS else "command"
                starts = text in _OPENERS
            else:
                kind = "option" if text.startswith("-") else ""
        elif kind == "operator":
            starts = text[-1] not in "<>"
        elif kind == "space":
            starts = starts or "\n" in text
            kind = ""
        elif kind in {"string", "name"}:
            starts = False
        yield ("" if kind == "rest" else kind), text


def _python(code: str) -> Iterator[tuple[str, str]]:
    for match in _PYTHON.finditer(code):
        kind, text = match.lastgroup or "", match[0]
        if kind == "word":
            kind = "keyword" if keyword.iskeyword(text) else "command" if text in _BUILTINS else ""
        yield ("" if kind == "rest" else kind), text


def _diff(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines(keepends=True):
        yield ("where" if line.startswith(_HEADS) else _SIGNS.get(line[:1], "")), line


MAX_REASON_CHARS = 2_000
"""Longest reason that is taken from a card."""

_MAX_RECORD_CHARS = 12_000
OUTCOME_WORDS = {
    "approve": "\N{CHECK MARK} Approved",
    "deny": "\N{MULTIPLICATION X} Denied",
    "timeout": "\N{MULTIPLICATION X} Not answered in time",
    "cancel": "\N{MULTIPLICATION X} Stopped before an answer",
}
"""How each answer is recorded."""


def card_payload(request: ApprovalRequest) -> dict[str, Any]:
    """Everything the card shows, ready to be set as text."""
    shown = build_previews(request)
    fields = build_controls(request)
    return {
        "tool": one_line(request.call.name),
        "about": one_line(request.definition.description.strip().partition("\n")[0].rstrip("."), 160),
        "effect": str(request.effect),
        "effect_words": EFFECT_WORDS[request.effect],
        "place": where_it_runs(request),
        "unconfined": request.level in {"host", "limited"},
        "who": who_asks(request),
        "reasons": [visible(reason, "") for reason in request.reasons],
        "preview": shown,
        "fields": [_field_view(field, request, shown) for field in fields],
        "as_json": all(field.editable or field.kind == "secret" for field in fields),
        "remember": [{"scope": scope, "words": words} for scope, words in remember_choices(request).items()],
    }


def _field_view(field: Control, request: ApprovalRequest, shown: Mapping[str, Any]) -> dict[str, Any]:
    view: dict[str, Any] = {
        "name": field.name,
        "label": visible(field.name, ""),
        "kind": field.kind,
        "text": field.shown,
        "editable": field.editable,
        "about": one_line(field.about.partition(". ")[0].rstrip("."), 160),
        "note": field.note,
        # What is shown to the letter above need not stand there twice.
        "folded": field.name in _folded(shown),
    }
    if field.kind in {"shell", "python"}:
        view["pieces"] = highlight(field.shown, field.kind, request.facts.writes)
    elif field.kind == "text" and is_diff(field.shown):
        view["pieces"] = highlight(field.shown, "diff")
    if field.choices:
        view["choices"] = list(field.choices)
    if field.least is not None or field.most is not None or field.whole:
        view["limits"] = {"least": field.least, "most": field.most, "whole": field.whole}
    return view


def _folded(shown: Mapping[str, Any]) -> set[str]:
    """Names of the arguments that a preview shows whole."""
    folded = {"content", "edits"} if shown.get("diff", {}).get("whole") else set()
    return folded | ({"url"} if shown.get("web", {}).get("whole") else set())


def parse_decision(request: ApprovalRequest, message: Mapping[str, Any]) -> Approval:
    """The approval that a card's message means.

    Args:
        request: What the card asked.
        message: What the page sent: `outcome`, `reason`, `edits` by name of the field or `whole`, and
            `remember`.

    Raises:
        ArgumentError: If it means none, or edits are not what they should be; told to the person.
    """
    outcome, reason = parse_outcome(message)
    if outcome == "deny":
        return Approval("deny", reason=reason)
    edits, whole, remember = message.get("edits", {}), message.get("whole"), message.get("remember")
    sound = isinstance(edits, Mapping) and all(isinstance(text, str) for text in edits.values())
    if not sound or not isinstance(whole, str | None):
        raise ArgumentError("The card's edits could not be read.")
    arguments_html = apply_edits(request, edits, whole)
    if remember is None:
        return Approval("approve", reason=reason, arguments=arguments_html)
    if arguments_html is not None:
        raise ArgumentError(
            "Edited arguments are approved for this one call only; nothing can be remembered."
        )
    scope = next((offered for offered in remember_choices(request) if offered == remember), None)
    if scope is None:
        raise ArgumentError("What was to be remembered is not among what was offered.")
    return Approval("approve", reason=reason, remember=scope)


def parse_outcome(message: Mapping[str, Any]) -> tuple[Literal["approve", "deny"], str]:
    """What a card's message decides, and the reason given.

    Raises:
        ArgumentError: If it decides nothing.
    """
    outcome, reason = message.get("outcome"), message.get("reason", "")
    if not isinstance(reason, str) or not isinstance(outcome, str) or outcome not in {"approve", "deny"}:
        raise ArgumentError("The card's answer could not be read.")
    return ("approve" if outcome == "approve" else "deny"), reason.strip()[:MAX_REASON_CHARS]


def fallback_bundle(request: ApprovalRequest, hint: str = "") -> dict[str, Any]:
    """The question without a card: for a page that cannot show one, and for terminals."""
    scopes = remember_choices(request)
    offered = html.small_print(f"{REMEMBER} type", *(f"{s[0]} for {words}" for s, words in scopes.items()))
    body = (
        facts_html(request) + previews_html(request) + arguments_html(request) + (offered if scopes else "")
    )
    body += html.note(hint) if hint else ""
    title = f"May {html.code(one_line(request.call.name))} run?"
    return {
        "text/html": html.box(title, body, html.EFFECT_COLOURS[request.effect]),
        "text/plain": "\n".join(filter(None, [describe(request), *_plain_previews(request), hint])),
    }


def record_bundle(request: ApprovalRequest, approval: Approval) -> dict[str, Any]:
    """What stays in the notebook after an answer."""
    changed = [] if approval.arguments is None else list(argument_changes(request, approval.arguments))
    ran = request
    if approval.arguments is not None:
        call = dataclasses.replace(request.call, arguments=approval.arguments)
        # What was worked out before the edits does not describe what runs.
        left = {kind: shown for kind, shown in request.preview.items() if kind != "diff"}
        ran = dataclasses.replace(request, call=call, preview=left, facts=Facts())
    words = OUTCOME_WORDS[approval.outcome] + (" with changed arguments" if changed else "")
    remembered = remember_choices(request).get(approval.remember, "") if approval.remember else ""
    if remembered:
        words += " and remembered"
        remembered = f"until the session ends, not asked again for {remembered}"
    reason = visible(approval.reason)
    name = one_line(request.call.name)
    body = (
        facts_html(ran)
        + (html.small_print(remembered) if remembered else "")
        + (html.small_print(f"reason: {reason}") if reason else "")
        + "".join(_change(*change) for change in changed)
        + previews_html(ran)
        + html.details("arguments", arguments_html(ran))
    )
    plain = [f"{words}: {name}", *(f"  {line}" for line in _lines(ran))]
    plain += [f"  {remembered}"] if remembered else []
    plain += [f"  reason: {reason}"] if reason else []
    plain += [f"  {name}: {_short(old)} \N{RIGHTWARDS ARROW} {_short(new)}" for name, old, new in changed]
    plain += _plain_previews(ran)
    for field in argument_fields(ran):
        text = shorten(field.text, _MAX_RECORD_CHARS)
        plain += [
            f"  {visible(field.name, '') or 'arguments_html'}:",
            *(f"    {t}" for t in text.split("\n")),
        ]
    return {
        "text/html": html.box(
            f"<strong>{words}</strong> {html.code(name)}", body, html.EFFECT_COLOURS[request.effect]
        ),
        "text/plain": "\n".join(plain),
    }


def _change(name: str, old: str, new: str) -> str:
    """What a person changed, as safe HTML: in a line, or line by line."""
    if "\n" not in old + new and len(old) + len(new) < 200:
        was, now = (f"<{tag}>{html.escape(text)}</{tag}>" for tag, text in (("del", old), ("ins", new)))
        return f"<div>{html.code(name)}: {was} \N{RIGHTWARDS ARROW} {now}</div>"
    lines = list(difflib.unified_diff(old.split("\n"), new.split("\n"), lineterm="", n=2))[2:]
    return html.note(f"{name}, before and after:") + html.diff(lines[:MAX_DIFF_LINES])


def _short(text: str) -> str:
    return one_line(text.replace("\n", " \N{DOWNWARDS ARROW WITH CORNER LEFTWARDS} "), 120)


def previews_html(request: ApprovalRequest) -> str:
    """What the card shows besides the arguments, as safe HTML."""
    shown = build_previews(request)
    parts = []
    if diff := shown.get("diff"):
        parts.append(html.small_print(_diff_title(diff)))
        parts.append(html.diff(diff["lines"]) if diff["lines"] else "")
    if web := shown.get("web"):
        parts.append(html.block(f"{web['method']} {web['url']}", exact=True))
        parts.append(html.small_print(f"host: {web['host']}"))
    parts += [html.small_print(f"{word}: {told}") for word, told in shown.get("findings", ())]
    parts += [html.small_print(f"undo: {shown['undo']}")] if "undo" in shown else []
    return "".join(parts)


def _plain_previews(request: ApprovalRequest) -> list[str]:
    shown = build_previews(request)
    lines = []
    if diff := shown.get("diff"):
        lines += [f"  {_diff_title(diff)}", *(f"    {line}" for line in diff["lines"])]
    if web := shown.get("web"):
        lines.append(f"  {web['method']} {web['url']} (host: {web['host']})")
    lines += [f"  {word}: {told}" for word, told in shown.get("findings", ())]
    return lines + ([f"  undo: {shown['undo']}"] if "undo" in shown else [])


def _diff_title(diff: Mapping[str, Any]) -> str:
    counts = f" +{diff['added']} \N{MINUS SIGN}{diff['removed']}" if diff["lines"] else ""
    return f"{diff['path']}{counts}" + (f" \N{MIDDLE DOT} {diff['note']}" if diff["note"] else "")


def _lines(request: ApprovalRequest) -> list[str]:
    first = f"{EFFECT_WORDS[request.effect]}, {where_it_runs(request)}, {who_asks(request)}"
    return [first, *(f"because {visible(reason, '')}" for reason in request.reasons)]


def facts_html(request: ApprovalRequest) -> str:
    """Effect, place, who asks and why, as safe HTML."""
    return html.small_print(*_lines(request))


def arguments_html(request: ApprovalRequest) -> str:
    """The arguments in full, as safe HTML."""
    return "".join(
        html.note(visible(field.name, "") or "arguments")
        + html.block(shorten(field.text, _MAX_RECORD_CHARS), exact=True)
        for field in argument_fields(request)
    )


NOT_SELECTED = "It was not among the calls that were approved."
"""Why a call is denied that was left out while others of its batch were approved."""


def batch_payload(requests: Sequence[ApprovalRequest]) -> dict[str, Any]:
    """Everything the card shows, ready to be set as text; a call that deserves a look starts unselected."""
    return {
        "effect": str(_severest(requests)),
        "rows": [
            {
                **card_payload(request),
                "id": request.id,
                "summary": summarize(request),
                "selected": not is_risky(request),
                "open": _hides_code(request),
            }
            for request in requests
        ],
    }


def parse_batch(requests: Sequence[ApprovalRequest], message: Mapping[str, Any]) -> list[Approval]:
    """The approvals that a card's message means: those selected are approved, all others denied.

    Raises:
        ArgumentError: If it means none; told to the person.
    """
    outcome, reason = parse_outcome(message)
    if outcome == "deny":
        return [Approval("deny", reason=reason) for _ in requests]
    selected = message.get("selected")
    known = [request.id for request in requests]
    if not isinstance(selected, list) or not all(name in known for name in selected):
        raise ArgumentError("The card's selection could not be read.")
    if not selected:
        raise ArgumentError("No call is selected. Select those that may run, or deny all.")
    return [
        Approval("approve") if name in selected else Approval("deny", reason=reason or NOT_SELECTED)
        for name in known
    ]


def batch_fallback_bundle(requests: Sequence[ApprovalRequest]) -> dict[str, Any]:
    """The question without a card: for a page that cannot show one, and for terminals."""
    rows = "".join(_row("", request, "") for request in requests)
    title = f"May these {len(requests)} calls run?"
    return {
        "text/html": html.box(title, rows, html.EFFECT_COLOURS[_severest(requests)]),
        "text/plain": "\n\n".join([title, *map(describe, requests)]),
    }


def batch_record_bundle(requests: Sequence[ApprovalRequest], approvals: Sequence[Approval]) -> dict[str, Any]:
    """What stays in the notebook after an answer."""
    answered = list(zip(requests, approvals, strict=True))
    count = sum(approval.outcome == "approve" for approval in approvals)
    title = f"{count} of {len(requests)} calls approved"
    rows, lines = "", [title]
    for request, approval in answered:
        words = OUTCOME_WORDS[approval.outcome]
        reason = visible(approval.reason) if approval.outcome in {"approve", "deny"} else ""
        rows += _row(words, request, reason)
        lines.append(f"  {words}: {one_line(request.call.name)}  {summarize(request)}")
        lines += [f"    reason: {reason}"] if reason else []
    return {
        "text/html": html.box(f"<strong>{title}</strong>", rows, html.EFFECT_COLOURS[_severest(requests)]),
        "text/plain": "\n".join(lines),
    }


def _hides_code(request: ApprovalRequest) -> bool:
    """Whether the line leaves out a part of what would run: nobody should have to ask for that."""
    coded = any(field.kind in {"shell", "python"} for field in argument_fields(request))
    return coded and summarize(request).endswith("\N{HORIZONTAL ELLIPSIS}")


def _row(words: str, request: ApprovalRequest, reason: str) -> str:
    said = f"{words} {one_line(request.call.name)}".strip()
    line = f"{said} \N{MIDDLE DOT} {EFFECT_WORDS[request.effect]} \N{MIDDLE DOT} {summarize(request)}"
    told = html.small_print(f"reason: {reason}") if reason else ""
    return html.details(line, facts_html(request) + previews_html(request) + arguments_html(request)) + told


def _severest(requests: Sequence[ApprovalRequest]) -> Effect:
    return max(request.effect for request in requests)
