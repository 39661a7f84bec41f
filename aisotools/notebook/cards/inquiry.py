"""A model's own question to a person: what its card shows, what an answer means, what is left. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from aisotools.contracts import Inquiry
from aisotools.exceptions import ArgumentError
from aisotools.inquiry import describe_inquiry
from aisotools.notebook import frame
from aisotools.question import visible

MAX_ANSWER_CHARS = 10_000
"""The longest answer that is taken from a card."""

_COLOUR = "var(--jp-brand-color1,#1976d2)"
_WORDS = {
    "answer": "\N{CHECK MARK} Answered",
    "none": "\N{MULTIPLICATION X} No answer was given",
    "timeout": "\N{MULTIPLICATION X} Not answered in time",
    "cancel": "\N{MULTIPLICATION X} Stopped before an answer",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a question.

    Attributes:
        outcome: Whether there was an answer, and why not.
        text: The answer.
    """

    outcome: Literal["answer", "none", "timeout", "cancel"]
    text: str | None = None


def inquiry_view(inquiry: Inquiry) -> dict[str, Any]:
    """Everything the card shows, ready to be set as text."""
    return {
        "question": visible(inquiry.text),
        "who": _who(inquiry),
        "choices": [visible(choice, "") for choice in inquiry.choices],
        "longest": MAX_ANSWER_CHARS,
    }


def read_reply(inquiry: Inquiry, message: Mapping[str, Any]) -> Reply:
    """What a card's message answers: the number of a choice, or text; or that there is no answer.

    Raises:
        ArgumentError: If it answers nothing; told to the person.
    """
    outcome, answer = message.get("outcome"), message.get("answer")
    if outcome == "none":
        return Reply("none")
    if outcome == "answer" and inquiry.choices:
        if type(answer) is int and 0 <= answer < len(inquiry.choices):
            return Reply("answer", inquiry.choices[answer])
    elif outcome == "answer" and isinstance(answer, str):
        if not answer.strip():
            raise ArgumentError("Type an answer, or give none.")
        if len(answer) > MAX_ANSWER_CHARS:
            raise ArgumentError(f"An answer has at most {MAX_ANSWER_CHARS:,} characters.")
        return Reply("answer", answer.strip())
    raise ArgumentError("The card's answer could not be read.")


def inquiry_question(inquiry: Inquiry, hint: str = "") -> dict[str, Any]:
    """The question without a card: for a page that cannot show one, and for terminals."""
    choices = "".join(f"<li>{frame.escape(visible(choice, ''))}</li>" for choice in inquiry.choices)
    body = frame.said(visible(inquiry.text)) + (f'<ol style="margin:2px 0">{choices}</ol>' if choices else "")
    return {
        "text/html": frame.box(
            frame.escape(f"A question from {_who(inquiry)}"),
            body + (frame.note(hint) if hint else ""),
            _COLOUR,
        ),
        "text/plain": "\n".join(filter(None, [describe_inquiry(inquiry), hint])),
    }


def inquiry_record(inquiry: Inquiry, reply: Reply) -> dict[str, Any]:
    """What stays in the notebook after an answer."""
    words = _WORDS[reply.outcome]
    asked, answer = visible(inquiry.text), visible(reply.text or "")
    given = f"<div><strong>{frame.said(answer)}</strong></div>" if answer else ""
    left = [choice for choice in inquiry.choices if choice != reply.text]
    others = "; ".join(visible(choice, "") for choice in left)
    if others:
        others = f"{'other choices' if answer else 'choices'}: {others}"
    plain = [f"{words} a question from {_who(inquiry)}" if answer else f"{words}: {_who(inquiry)} asked"]
    plain += [f"  {line}" for line in asked.split("\n")]
    plain += [f"  -> {line}" for line in answer.split("\n")] if answer else []
    title = f"<strong>{words}</strong> \N{MIDDLE DOT} {frame.escape(f'a question from {_who(inquiry)}')}"
    body = frame.said(asked) + given + (frame.quiet(others) if others else "")
    return {
        "text/html": frame.box(title, body, _COLOUR),
        "text/plain": "\n".join([*plain, *([f"  {others}"] if others else [])]),
    }


def _who(inquiry: Inquiry) -> str:
    return f"agent {visible(inquiry.agent_id, '')}" if inquiry.agent_id else "the model"
