"""What the approval card shows, what its answer means, and what it leaves behind. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from aisotools.events import Approval, ApprovalRequest
from aisotools.exceptions import ArgumentError
from aisotools.notebook import frame
from aisotools.notebook.text import one_line, shorten
from aisotools.question import (
    EFFECT_WORDS,
    REMEMBER,
    argument_fields,
    describe,
    edited_arguments,
    remember_choices,
    visible,
    where_it_runs,
    who_asks,
)

MAX_REASON_CHARS = 2_000
"""Longest reason that is taken from a card."""

_MAX_RECORD_CHARS = 12_000
_HIDDEN = r"Holds characters that cannot be seen; each is written as an escape, such as \u202e."
OUTCOME_WORDS = {
    "approve": "\N{CHECK MARK} Approved",
    "deny": "\N{MULTIPLICATION X} Denied",
    "timeout": "\N{MULTIPLICATION X} Not answered in time",
    "cancel": "\N{MULTIPLICATION X} Stopped before an answer",
}
"""How each answer is recorded."""


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
                "editable": field.editable,
                "note": _HIDDEN if field.hides else "",
            }
            for field in argument_fields(request)
        ],
        "remember": [{"scope": scope, "words": words} for scope, words in remember_choices(request).items()],
    }


def read_decision(request: ApprovalRequest, message: Mapping[str, Any]) -> Approval:
    """The approval that a card's message means.

    Args:
        request: What the card asked.
        message: What the page sent: `outcome`, `reason`, `edits` by name of the field, and `remember`.

    Raises:
        ArgumentError: If it means none, or edits are not what they should be; told to the person.
    """
    outcome, reason = read_outcome(message)
    if outcome == "deny":
        return Approval("deny", reason=reason)
    edits, remember = message.get("edits", {}), message.get("remember")
    if not isinstance(edits, Mapping) or not all(isinstance(text, str) for text in edits.values()):
        raise ArgumentError("The card's edits could not be read.")
    edited = edited_arguments(request, edits)
    if remember is None:
        return Approval("approve", reason=reason, arguments=edited)
    if edited is not None:
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
    body = facts(request) + arguments(request) + (offered if scopes else "")
    body += frame.note(hint) if hint else ""
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
    words = OUTCOME_WORDS[approval.outcome] + (" with changed arguments" if edited else "")
    remembered = remember_choices(request).get(approval.remember, "") if approval.remember else ""
    if remembered:
        words += " and remembered"
        remembered = f"until the session ends, not asked again for {remembered}"
    reason = visible(approval.reason)
    name = one_line(request.call.name)
    body = (
        facts(request)
        + (frame.quiet(remembered) if remembered else "")
        + (frame.quiet(f"reason: {reason}") if reason else "")
        + frame.folded("arguments", arguments(request))
    )
    plain = [f"{words}: {name}", *(f"  {line}" for line in _lines(request))]
    plain += [f"  {remembered}"] if remembered else []
    plain += [f"  reason: {reason}"] if reason else []
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
