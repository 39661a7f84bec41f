"""What a question is about, calls or a model's own question: all that differs for whoever asks.

A model's own question to a person: what its card shows, what an answer means, what is left. Pure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from aisotools.core.exceptions import ArgumentError
from aisotools.core.protocols import UserQuestion
from aisotools.core.types import Approval, ApprovalRequest
from aisotools.notebook.approval.view import (
    batch_fallback_bundle,
    batch_payload,
    batch_record_bundle,
    card_payload,
    fallback_bundle,
    parse_batch,
    parse_decision,
    record_bundle,
)
from aisotools.notebook.render import html
from aisotools.policy.approvers import NOBODY, timed_out
from aisotools.policy.prompts import describe_inquiry, visible
from aisotools.session.approvers import answer_from, inquiry_answer_from

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


def question_payload(inquiry: UserQuestion) -> dict[str, Any]:
    """Everything the card shows, ready to be set as text."""
    return {
        "question": visible(inquiry.text),
        "who": _who(inquiry),
        "choices": [visible(choice, "") for choice in inquiry.choices],
        "longest": MAX_ANSWER_CHARS,
    }


def parse_reply(inquiry: UserQuestion, message: Mapping[str, Any]) -> Reply:
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


def question_fallback_bundle(inquiry: UserQuestion, hint: str = "") -> dict[str, Any]:
    """The question without a card: for a page that cannot show one, and for terminals."""
    choices = "".join(f"<li>{html.escape(visible(choice, ''))}</li>" for choice in inquiry.choices)
    body = html.paragraph(visible(inquiry.text)) + (
        f'<ol style="margin:2px 0">{choices}</ol>' if choices else ""
    )
    return {
        "text/html": html.box(
            html.escape(f"A question from {_who(inquiry)}"),
            body + (html.note(hint) if hint else ""),
            _COLOUR,
        ),
        "text/plain": "\n".join(filter(None, [describe_inquiry(inquiry), hint])),
    }


def question_record_bundle(inquiry: UserQuestion, reply: Reply) -> dict[str, Any]:
    """What stays in the notebook after an answer."""
    words = _WORDS[reply.outcome]
    asked, answer = visible(inquiry.text), visible(reply.text or "")
    given = f"<div><strong>{html.paragraph(answer)}</strong></div>" if answer else ""
    left = [choice for choice in inquiry.choices if choice != reply.text]
    others = "; ".join(visible(choice, "") for choice in left)
    if others:
        others = f"{'other choices' if answer else 'choices'}: {others}"
    plain = [f"{words} a question from {_who(inquiry)}" if answer else f"{words}: {_who(inquiry)} asked"]
    plain += [f"  {line}" for line in asked.split("\n")]
    plain += [f"  -> {line}" for line in answer.split("\n")] if answer else []
    title = f"<strong>{words}</strong> \N{MIDDLE DOT} {html.escape(f'a question from {_who(inquiry)}')}"
    body = html.paragraph(asked) + given + (html.small_print(others) if others else "")
    return {
        "text/html": html.box(title, body, _COLOUR),
        "text/plain": "\n".join([*plain, *([f"  {others}"] if others else [])]),
    }


def _who(inquiry: UserQuestion) -> str:
    return f"agent {visible(inquiry.agent_id, '')}" if inquiry.agent_id else "the model"


Answer = TypeVar("Answer")

ReadLine = Callable[[str], str]
"""Shows a prompt and gives the line that was typed; blocks."""

Show = Callable[[Mapping[str, Any]], None]
"""Shows a MIME bundle in place of the card."""

_BELOW = "Answer in the box below."
_STOPPED = Approval("cancel", reason="Stopped before an answer.")


class PromptSubject(Protocol[Answer]):
    """What somebody is asked about."""

    @property
    def id(self) -> str:
        """What an answer must name."""

    @property
    def words(self) -> str:
        """What it is about, in a line."""

    @property
    def timeout_s(self) -> float | None:
        """How long the question stands, in seconds."""

    def view(self) -> dict[str, Any]:
        """Everything the card shows."""

    def read(self, message: Mapping[str, Any]) -> Answer:
        """What the card's message means.

        Raises:
            ArgumentError: If it means nothing; told to the person.
        """

    async def typed(self, read_line: ReadLine, show: Show, ends_s: float | None) -> Answer:
        """The answer by an input box, until the loop's clock shows `ends_s`."""

    def unanswered(self, why: Literal["timeout", "cancel"]) -> Answer:
        """What stands for an answer that did not come."""

    def question(self) -> dict[str, Any]:
        """The question without a card."""

    def record(self, answer: Answer) -> dict[str, Any]:
        """What stays in the notebook after the answer."""


@dataclass(frozen=True, slots=True)
class ApprovalSubject:
    """Calls that are to be approved, one or several.

    Attributes:
        requests: At least one; their ids differ.
    """

    requests: Sequence[ApprovalRequest]

    @property
    def id(self) -> str:
        """What an answer must name."""
        return " ".join(request.id for request in self.requests)

    @property
    def words(self) -> str:
        """The tools, in a line."""
        return ", ".join(request.call.name for request in self.requests)

    @property
    def timeout_s(self) -> float | None:
        """How long the question stands, in seconds."""
        return min((r.timeout_s for r in self.requests if r.timeout_s is not None), default=None)

    def view(self) -> dict[str, Any]:
        """Everything the card shows."""
        return batch_payload(self.requests) if len(self.requests) > 1 else card_payload(self.requests[0])

    def read(self, message: Mapping[str, Any]) -> list[Approval]:
        """What the card's message means for each call.

        Raises:
            ArgumentError: If it means nothing; told to the person.
        """
        if len(self.requests) > 1:
            return parse_batch(self.requests, message)
        return [parse_decision(self.requests[0], message)]

    async def typed(self, read_line: ReadLine, show: Show, ends_s: float | None) -> list[Approval]:
        """The answers typed into the input box, one after another."""
        count = len(self.requests)
        answers: list[Approval] = []
        for number, request in enumerate(self.requests, 1):
            show(fallback_bundle(request, _BELOW if count == 1 else f"{_BELOW} This is {number} of {count}."))
            try:
                async with asyncio.timeout_at(ends_s):
                    answers.append(await answer_from(read_line, lambda: None, request))
            except TimeoutError:
                answers.append(timed_out(self.timeout_s))
            except Exception as error:
                answers.append(Approval("deny", reason=f"{NOBODY} ({type(error).__name__}: {error})"))
        return answers

    def unanswered(self, why: Literal["timeout", "cancel"]) -> list[Approval]:
        """The same for each call."""
        return [timed_out(self.timeout_s) if why == "timeout" else _STOPPED for _ in self.requests]

    def question(self) -> dict[str, Any]:
        """The question without a card."""
        return (
            batch_fallback_bundle(self.requests)
            if len(self.requests) > 1
            else fallback_bundle(self.requests[0])
        )

    def record(self, answer: Sequence[Approval]) -> dict[str, Any]:
        """What stays in the notebook after the answers."""
        if len(self.requests) > 1:
            return batch_record_bundle(self.requests, answer)
        return record_bundle(self.requests[0], answer[0])


@dataclass(frozen=True, slots=True)
class QuestionSubject:
    """A model's own question to a person.

    Attributes:
        inquiry: The question.
    """

    inquiry: UserQuestion

    @property
    def id(self) -> str:
        """What an answer must name."""
        return self.inquiry.id

    @property
    def words(self) -> str:
        """What it is, in a line."""
        return "a model's question"

    @property
    def timeout_s(self) -> float | None:
        """How long the question stands, in seconds."""
        return self.inquiry.timeout_s

    def view(self) -> dict[str, Any]:
        """Everything the card shows."""
        return question_payload(self.inquiry)

    def read(self, message: Mapping[str, Any]) -> Reply:
        """What the card's message answers.

        Raises:
            ArgumentError: If it means nothing; told to the person.
        """
        return parse_reply(self.inquiry, message)

    async def typed(self, read_line: ReadLine, show: Show, ends_s: float | None) -> Reply:
        """The answer typed into the input box."""
        show(question_fallback_bundle(self.inquiry, _BELOW))
        try:
            async with asyncio.timeout_at(ends_s):
                text = await inquiry_answer_from(read_line, lambda: None, self.inquiry)
        except TimeoutError:
            return Reply("timeout")
        except Exception:
            return Reply("cancel")  # nobody is there
        return Reply("none") if text is None else Reply("answer", text)

    def unanswered(self, why: Literal["timeout", "cancel"]) -> Reply:
        """No answer, and why."""
        return Reply(why)

    def question(self) -> dict[str, Any]:
        """The question without a card."""
        return question_fallback_bundle(self.inquiry)

    def record(self, answer: Reply) -> dict[str, Any]:
        """What stays in the notebook after the answer."""
        return question_record_bundle(self.inquiry, answer)
