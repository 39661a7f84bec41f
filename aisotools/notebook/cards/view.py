"""What the approval card shows, what its answer means, and what it leaves behind. Pure."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, Literal

from aisotools.events import Approval, ApprovalRequest, Facts
from aisotools.exceptions import ArgumentError
from aisotools.notebook import frame
from aisotools.notebook.cards.form import Control, changes, controls, edited
from aisotools.notebook.cards.highlight import highlight, is_diff
from aisotools.notebook.cards.preview import MAX_DIFF_LINES, preview
from aisotools.notebook.text import one_line, shorten
from aisotools.question import (
    EFFECT_WORDS,
    REMEMBER,
    argument_fields,
    describe,
    remember_choices,
    visible,
    where_it_runs,
    who_asks,
)

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


def card_view(request: ApprovalRequest) -> dict[str, Any]:
    """Everything the card shows, ready to be set as text."""
    shown = preview(request)
    fields = controls(request)
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


def read_decision(request: ApprovalRequest, message: Mapping[str, Any]) -> Approval:
    """The approval that a card's message means.

    Args:
        request: What the card asked.
        message: What the page sent: `outcome`, `reason`, `edits` by name of the field or `whole`, and
            `remember`.

    Raises:
        ArgumentError: If it means none, or edits are not what they should be; told to the person.
    """
    outcome, reason = read_outcome(message)
    if outcome == "deny":
        return Approval("deny", reason=reason)
    edits, whole, remember = message.get("edits", {}), message.get("whole"), message.get("remember")
    sound = isinstance(edits, Mapping) and all(isinstance(text, str) for text in edits.values())
    if not sound or not isinstance(whole, str | None):
        raise ArgumentError("The card's edits could not be read.")
    arguments = edited(request, edits, whole)
    if remember is None:
        return Approval("approve", reason=reason, arguments=arguments)
    if arguments is not None:
        raise ArgumentError(
            "Edited arguments are approved for this one call only; nothing can be remembered."
        )
    scope = next((offered for offered in remember_choices(request) if offered == remember), None)
    if scope is None:
        raise ArgumentError("What was to be remembered is not among what was offered.")
    return Approval("approve", reason=reason, remember=scope)


def read_outcome(message: Mapping[str, Any]) -> tuple[Literal["approve", "deny"], str]:
    """What a card's message decides, and the reason given.

    Raises:
        ArgumentError: If it decides nothing.
    """
    outcome, reason = message.get("outcome"), message.get("reason", "")
    if not isinstance(reason, str) or not isinstance(outcome, str) or outcome not in {"approve", "deny"}:
        raise ArgumentError("The card's answer could not be read.")
    return ("approve" if outcome == "approve" else "deny"), reason.strip()[:MAX_REASON_CHARS]


def question_bundle(request: ApprovalRequest, hint: str = "") -> dict[str, Any]:
    """The question without a card: for a page that cannot show one, and for terminals."""
    scopes = remember_choices(request)
    offered = frame.quiet(f"{REMEMBER} type", *(f"{s[0]} for {words}" for s, words in scopes.items()))
    body = facts(request) + previews(request) + arguments(request) + (offered if scopes else "")
    body += frame.note(hint) if hint else ""
    title = f"May {frame.code(one_line(request.call.name))} run?"
    return {
        "text/html": frame.box(title, body, frame.EFFECT_COLOURS[request.effect]),
        "text/plain": "\n".join(filter(None, [describe(request), *_plain_previews(request), hint])),
    }


def record_bundle(request: ApprovalRequest, approval: Approval) -> dict[str, Any]:
    """What stays in the notebook after an answer."""
    changed = [] if approval.arguments is None else list(changes(request, approval.arguments))
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
        facts(ran)
        + (frame.quiet(remembered) if remembered else "")
        + (frame.quiet(f"reason: {reason}") if reason else "")
        + "".join(_change(*change) for change in changed)
        + previews(ran)
        + frame.folded("arguments", arguments(ran))
    )
    plain = [f"{words}: {name}", *(f"  {line}" for line in _lines(ran))]
    plain += [f"  {remembered}"] if remembered else []
    plain += [f"  reason: {reason}"] if reason else []
    plain += [f"  {name}: {_short(old)} \N{RIGHTWARDS ARROW} {_short(new)}" for name, old, new in changed]
    plain += _plain_previews(ran)
    for field in argument_fields(ran):
        text = shorten(field.text, _MAX_RECORD_CHARS)
        plain += [f"  {visible(field.name, '') or 'arguments'}:", *(f"    {t}" for t in text.split("\n"))]
    return {
        "text/html": frame.box(
            f"<strong>{words}</strong> {frame.code(name)}", body, frame.EFFECT_COLOURS[request.effect]
        ),
        "text/plain": "\n".join(plain),
    }


def _change(name: str, old: str, new: str) -> str:
    """What a person changed, as safe HTML: in a line, or line by line."""
    if "\n" not in old + new and len(old) + len(new) < 200:
        was, now = (f"<{tag}>{frame.escape(text)}</{tag}>" for tag, text in (("del", old), ("ins", new)))
        return f"<div>{frame.code(name)}: {was} \N{RIGHTWARDS ARROW} {now}</div>"
    lines = list(difflib.unified_diff(old.split("\n"), new.split("\n"), lineterm="", n=2))[2:]
    return frame.note(f"{name}, before and after:") + frame.diff(lines[:MAX_DIFF_LINES])


def _short(text: str) -> str:
    return one_line(text.replace("\n", " \N{DOWNWARDS ARROW WITH CORNER LEFTWARDS} "), 120)


def previews(request: ApprovalRequest) -> str:
    """What the card shows besides the arguments, as safe HTML."""
    shown = preview(request)
    parts = []
    if diff := shown.get("diff"):
        parts.append(frame.quiet(_diff_title(diff)))
        parts.append(frame.diff(diff["lines"]) if diff["lines"] else "")
    if web := shown.get("web"):
        parts.append(frame.block(f"{web['method']} {web['url']}", exact=True))
        parts.append(frame.quiet(f"host: {web['host']}"))
    parts += [frame.quiet(f"{word}: {told}") for word, told in shown.get("findings", ())]
    parts += [frame.quiet(f"undo: {shown['undo']}")] if "undo" in shown else []
    return "".join(parts)


def _plain_previews(request: ApprovalRequest) -> list[str]:
    shown = preview(request)
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


def facts(request: ApprovalRequest) -> str:
    """Effect, place, who asks and why, as safe HTML."""
    return frame.quiet(*_lines(request))


def arguments(request: ApprovalRequest) -> str:
    """The arguments in full, as safe HTML."""
    return "".join(
        frame.note(visible(field.name, "") or "arguments")
        + frame.block(shorten(field.text, _MAX_RECORD_CHARS), exact=True)
        for field in argument_fields(request)
    )
