"""What the approval card shows, what its answer means, and what it leaves behind. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from aisotools.events import Approval, ApprovalRequest
from aisotools.exceptions import ArgumentError
from aisotools.notebook import frame
from aisotools.notebook.text import one_line, shorten
from aisotools.question import (
    EFFECT_WORDS,
    argument_fields,
    describe,
    edited_arguments,
    visible,
    where_it_runs,
    who_asks,
)

MAX_REASON_CHARS = 2_000
"""Longest reason that is taken from a card."""

_MAX_RECORD_CHARS = 12_000
_HIDDEN = r"Holds characters that cannot be seen; each is written as an escape, such as \u202e."
_OUTCOME_WORDS = {
    "approve": "\N{CHECK MARK} Approved",
    "deny": "\N{MULTIPLICATION X} Denied",
    "timeout": "\N{MULTIPLICATION X} Not answered in time",
    "cancel": "\N{MULTIPLICATION X} Stopped before an answer",
}


def card_view(request: ApprovalRequest) -> dict[str, Any]:
    """Everything the card shows, ready to be set as text."""
    return {
        "tool": one_line(request.call.name),
        "about": one_line(request.definition.description.strip().partition("\n")[0].rstrip("."), 160),
        "effect": str(request.effect),
        "effect_words": EFFECT_WORDS[request.effect],
        "place": where_it_runs(request),
        "unconfined": request.level in {"host", "limited"},
        "who": who_asks(request),
        "reasons": [visible(reason, "") for reason in request.reasons],
        "fields": [
            {
                "name": field.name,
                "label": visible(field.name, "") or "arguments",
                "kind": field.kind,
                "text": field.shown,
                "editable": field.whole,
                "note": _HIDDEN if field.hides else "",
            }
            for field in argument_fields(request)
        ],
    }


def read_decision(request: ApprovalRequest, message: Mapping[str, Any]) -> Approval:
    """The approval that a card's message means.

    Args:
        request: What the card asked.
        message: What the page sent: `outcome`, `reason`, and `edits` by name of the field.

    Raises:
        ArgumentError: If it means none, or edits are not what they should be; told to the person.
    """
    outcome, reason, edits = message.get("outcome"), message.get("reason", ""), message.get("edits", {})
    if not (isinstance(outcome, str) and isinstance(reason, str) and isinstance(edits, Mapping)):
        raise ArgumentError("The card's answer could not be read.")
    if outcome not in {"approve", "deny"}:
        raise ArgumentError("The card's answer could not be read.")
    reason = reason.strip()[:MAX_REASON_CHARS]
    if outcome == "deny":
        return Approval("deny", reason=reason)
    if not all(isinstance(text, str) for text in edits.values()):
        raise ArgumentError("The card's edits could not be read.")
    return Approval("approve", reason=reason, arguments=edited_arguments(request, edits))


def question_bundle(request: ApprovalRequest, hint: str = "") -> dict[str, Any]:
    """The question without a card: for a page that cannot show one, and for terminals."""
    body = _facts(request) + _arguments(request) + (frame.note(hint) if hint else "")
    title = f"May {frame.code(one_line(request.call.name))} run?"
    return {
        "text/html": frame.box(title, body, frame.EFFECT_COLOURS[request.effect]),
        "text/plain": "\n".join(filter(None, [describe(request), hint])),
    }


def record_bundle(request: ApprovalRequest, approval: Approval) -> dict[str, Any]:
    """What stays in the notebook after an answer."""
    edited = approval.arguments is not None
    if approval.arguments is not None:
        call = dataclasses.replace(request.call, arguments=approval.arguments)
        request = dataclasses.replace(request, call=call)
    words = _OUTCOME_WORDS[approval.outcome] + (" with changed arguments" if edited else "")
    reason = visible(approval.reason)
    name = one_line(request.call.name)
    body = (
        _facts(request)
        + (f"<div>reason: {frame.escape(reason)}</div>" if reason else "")
        + frame.folded("arguments", _arguments(request))
    )
    plain = [f"{words}: {name}", *(f"  {line}" for line in _lines(request))]
    if reason:
        plain.append(f"  reason: {reason}")
    for field in argument_fields(request):
        text = shorten(field.text, _MAX_RECORD_CHARS)
        plain += [f"  {visible(field.name, '') or 'arguments'}:", *(f"    {t}" for t in text.split("\n"))]
    return {
        "text/html": frame.box(
            f"<strong>{words}</strong> {frame.code(name)}", body, frame.EFFECT_COLOURS[request.effect]
        ),
        "text/plain": "\n".join(plain),
    }


def _lines(request: ApprovalRequest) -> list[str]:
    facts = f"{EFFECT_WORDS[request.effect]}, {where_it_runs(request)}, {who_asks(request)}"
    return [facts, *(f"because {visible(reason, '')}" for reason in request.reasons)]


def _facts(request: ApprovalRequest) -> str:
    return frame.quiet(*_lines(request))


def _arguments(request: ApprovalRequest) -> str:
    return "".join(
        frame.note(visible(field.name, "") or "arguments")
        + frame.block(shorten(field.text, _MAX_RECORD_CHARS), exact=True)
        for field in argument_fields(request)
    )
