"""Several calls in one question: what the card shows, what its answer means, what it leaves behind. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aisotools.events import Approval, ApprovalRequest, Effect
from aisotools.exceptions import ArgumentError
from aisotools.notebook import frame
from aisotools.notebook.cards.view import OUTCOME_WORDS, arguments, card_view, facts, previews, read_outcome
from aisotools.notebook.text import one_line
from aisotools.question import EFFECT_WORDS, argument_fields, describe, is_risky, summarize, visible

NOT_SELECTED = "It was not among the calls that were approved."
"""Why a call is denied that was left out while others of its batch were approved."""


def batch_view(requests: Sequence[ApprovalRequest]) -> dict[str, Any]:
    """Everything the card shows, ready to be set as text; a call that deserves a look starts unselected."""
    return {
        "effect": str(_severest(requests)),
        "rows": [
            {
                **card_view(request),
                "id": request.id,
                "summary": summarize(request),
                "selected": not is_risky(request),
                "open": _hides_code(request),
            }
            for request in requests
        ],
    }


def read_batch(requests: Sequence[ApprovalRequest], message: Mapping[str, Any]) -> list[Approval]:
    """The approvals that a card's message means: those selected are approved, all others denied.

    Raises:
        ArgumentError: If it means none; told to the person.
    """
    outcome, reason = read_outcome(message)
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


def batch_question(requests: Sequence[ApprovalRequest]) -> dict[str, Any]:
    """The question without a card: for a page that cannot show one, and for terminals."""
    rows = "".join(_row("", request, "") for request in requests)
    title = f"May these {len(requests)} calls run?"
    return {
        "text/html": frame.box(title, rows, frame.EFFECT_COLOURS[_severest(requests)]),
        "text/plain": "\n\n".join([title, *map(describe, requests)]),
    }


def batch_record(requests: Sequence[ApprovalRequest], approvals: Sequence[Approval]) -> dict[str, Any]:
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
        "text/html": frame.box(f"<strong>{title}</strong>", rows, frame.EFFECT_COLOURS[_severest(requests)]),
        "text/plain": "\n".join(lines),
    }


def _hides_code(request: ApprovalRequest) -> bool:
    """Whether the line leaves out a part of what would run: nobody should have to ask for that."""
    coded = any(field.kind in {"shell", "python"} for field in argument_fields(request))
    return coded and summarize(request).endswith("\N{HORIZONTAL ELLIPSIS}")


def _row(words: str, request: ApprovalRequest, reason: str) -> str:
    said = f"{words} {one_line(request.call.name)}".strip()
    line = f"{said} \N{MIDDLE DOT} {EFFECT_WORDS[request.effect]} \N{MIDDLE DOT} {summarize(request)}"
    told = frame.quiet(f"reason: {reason}") if reason else ""
    return frame.folded(line, facts(request) + previews(request) + arguments(request)) + told


def _severest(requests: Sequence[ApprovalRequest]) -> Effect:
    return max(request.effect for request in requests)
