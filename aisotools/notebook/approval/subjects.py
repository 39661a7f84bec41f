"""The subjects a prompt can have: tool calls to approve, or a question of the model.

A subject builds the payload of its card, parses the card's reply and builds the record that stays in the
notebook. `aisotools.notebook.approval.approver` does the input and output.
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
    action_title,
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
from aisotools.policy.approvers import NO_APPROVER_REASON, timeout_approval
from aisotools.policy.prompts import describe_question, visible
from aisotools.session.approvers import read_typed_answer, read_typed_approval

AnswerT = TypeVar("AnswerT")

ReadLine = Callable[[str], str]
"""Shows a prompt and returns the typed line; blocks."""

ShowBundle = Callable[[Mapping[str, Any]], None]
"""Shows a MIME bundle in place of the card."""

MAX_ANSWER_CHARS = 10_000
"""Longest answer to a question that a card may send."""

INPUT_BOX_HINT = "Answer in the box below."
"""Shown with a prompt while an input box asks."""

_COLOUR = "var(--jp-brand-color1,#1976d2)"
_OUTCOME_LABELS = {
    "answer": "\N{CHECK MARK} Answered",
    "none": "\N{MULTIPLICATION X} No answer was given",
    "timeout": "\N{MULTIPLICATION X} Not answered in time",
    "cancel": "\N{MULTIPLICATION X} Stopped before an answer",
}
_CANCELLED = Approval("cancel", reason="Stopped before an answer.")


class PromptSubject(Protocol[AnswerT]):
    """Something a person is asked about: tool calls, a model's question, or a form.

    All methods but `read_typed` are pure.
    """

    @property
    def id(self) -> str:
        """Correlates a reply with this prompt."""

    @property
    def title(self) -> str:
        """One line for lists of pending prompts."""

    @property
    def timeout_s(self) -> float | None:
        """Seconds until the prompt expires; None for never."""

    def card_payload(self) -> dict[str, Any]:
        """Return the JSON sent to the widget."""

    def fallback_bundle(self) -> dict[str, Any]:
        """Return the MIME bundle shown where no widget can be."""

    def parse_reply(self, message: Mapping[str, Any]) -> AnswerT:
        """Parse the widget's reply.

        Raises:
            ArgumentError: If the reply is malformed; the message is shown on the card.
        """

    async def read_typed(self, read_line: ReadLine, show: ShowBundle, deadline: float | None) -> AnswerT:
        """Read the answer from an input box, until `deadline` in loop time."""

    def no_answer(self, reason: Literal["timeout", "cancel"]) -> AnswerT:
        """Return the answer that stands for none."""

    def record_bundle(self, answer: AnswerT) -> dict[str, Any]:
        """Return the MIME bundle that stays in the notebook after the answer."""


@dataclass(frozen=True, slots=True)
class ApprovalSubject(PromptSubject[list[Approval]]):
    """One or several tool calls that wait for approval.

    Attributes:
        requests: At least one; their ids differ.
    """

    requests: Sequence[ApprovalRequest]

    @property
    def id(self) -> str:
        return " ".join(request.id for request in self.requests)

    @property
    def title(self) -> str:
        if len(self.requests) == 1:
            return action_title(self.requests[0])
        return f"{len(self.requests)} calls: " + ", ".join(request.call.name for request in self.requests)

    @property
    def timeout_s(self) -> float | None:
        return min((r.timeout_s for r in self.requests if r.timeout_s is not None), default=None)

    def card_payload(self) -> dict[str, Any]:
        if len(self.requests) > 1:
            return batch_payload(self.requests)
        return card_payload(self.requests[0])

    def fallback_bundle(self) -> dict[str, Any]:
        if len(self.requests) > 1:
            return batch_fallback_bundle(self.requests)
        return fallback_bundle(self.requests[0])

    def parse_reply(self, message: Mapping[str, Any]) -> list[Approval]:
        if len(self.requests) > 1:
            return parse_batch(self.requests, message)
        return [parse_decision(self.requests[0], message)]

    async def read_typed(
        self, read_line: ReadLine, show: ShowBundle, deadline: float | None
    ) -> list[Approval]:
        count = len(self.requests)
        answers: list[Approval] = []
        for number, request in enumerate(self.requests, 1):
            hint = INPUT_BOX_HINT if count == 1 else f"{INPUT_BOX_HINT} This is {number} of {count}."
            show(fallback_bundle(request, hint))
            try:
                async with asyncio.timeout_at(deadline):
                    answers.append(await read_typed_approval(read_line, lambda: None, request))
            except TimeoutError:
                # The deadline is that of all calls, so no input box opens for those that are left.
                return answers + [timeout_approval(self.timeout_s) for _ in range(count - len(answers))]
            except Exception as error:
                # The input box failed, so nobody can answer. Deny: an error must never approve.
                answers.append(
                    Approval("deny", reason=f"{NO_APPROVER_REASON} ({type(error).__name__}: {error})")
                )
        return answers

    def no_answer(self, reason: Literal["timeout", "cancel"]) -> list[Approval]:
        return [
            timeout_approval(self.timeout_s) if reason == "timeout" else _CANCELLED for _ in self.requests
        ]

    def record_bundle(self, answer: Sequence[Approval]) -> dict[str, Any]:
        if len(self.requests) > 1:
            return batch_record_bundle(self.requests, answer)
        return record_bundle(self.requests[0], answer[0])


@dataclass(frozen=True, slots=True)
class QuestionReply:
    """A person's reply to a model's question.

    Attributes:
        outcome: `answer`, or the reason why there is none.
        text: The answer, if there is one.
    """

    outcome: Literal["answer", "none", "timeout", "cancel"]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class QuestionSubject(PromptSubject[QuestionReply]):
    """A question that a model asks a person.

    Attributes:
        question: Its text and choices are untrusted.
    """

    question: UserQuestion

    @property
    def id(self) -> str:
        return self.question.id

    @property
    def title(self) -> str:
        return "a model's question"

    @property
    def timeout_s(self) -> float | None:
        return self.question.timeout_s

    def card_payload(self) -> dict[str, Any]:
        return question_payload(self.question)

    def fallback_bundle(self) -> dict[str, Any]:
        return question_fallback_bundle(self.question)

    def parse_reply(self, message: Mapping[str, Any]) -> QuestionReply:
        return parse_reply(self.question, message)

    async def read_typed(
        self, read_line: ReadLine, show: ShowBundle, deadline: float | None
    ) -> QuestionReply:
        show(question_fallback_bundle(self.question, INPUT_BOX_HINT))
        try:
            async with asyncio.timeout_at(deadline):
                text = await read_typed_answer(read_line, lambda: None, self.question)
        except TimeoutError:
            return QuestionReply("timeout")
        except Exception:
            # The input box failed, so nobody can answer.
            return QuestionReply("cancel")
        return QuestionReply("none") if text is None else QuestionReply("answer", text)

    def no_answer(self, reason: Literal["timeout", "cancel"]) -> QuestionReply:
        return QuestionReply(reason)

    def record_bundle(self, answer: QuestionReply) -> dict[str, Any]:
        return question_record_bundle(self.question, answer)


def question_payload(question: UserQuestion) -> dict[str, Any]:
    """Return the JSON of a question's card; all texts are made visible."""
    return {
        "question": visible(question.text),
        "who": _sender(question),
        "choices": [visible(choice, "") for choice in question.choices],
        "longest": MAX_ANSWER_CHARS,
    }


def parse_reply(question: UserQuestion, message: Mapping[str, Any]) -> QuestionReply:
    """Parse a card's reply: the index of a choice, a text, or that there is no answer.

    Raises:
        ArgumentError: If the reply is malformed; the message is shown on the card.
    """
    outcome, answer = message.get("outcome"), message.get("answer")
    if outcome == "none":
        return QuestionReply("none")
    if outcome == "answer" and question.choices:
        if type(answer) is int and 0 <= answer < len(question.choices):
            return QuestionReply("answer", question.choices[answer])
    elif outcome == "answer" and isinstance(answer, str):
        if not answer.strip():
            raise ArgumentError("The answer is empty. Type an answer, or choose No answer.")
        if len(answer) > MAX_ANSWER_CHARS:
            raise ArgumentError(
                f"The answer has {len(answer):,} characters; at most {MAX_ANSWER_CHARS:,} are allowed."
            )
        return QuestionReply("answer", answer.strip())
    raise ArgumentError("The card's answer could not be read.")


def question_fallback_bundle(question: UserQuestion, hint: str = "") -> dict[str, Any]:
    """Return a question's MIME bundle for pages without widgets and for terminals."""
    body = html.paragraph(visible(question.text))
    if question.choices:
        items = "".join(f"<li>{html.escape(visible(choice, ''))}</li>" for choice in question.choices)
        body += f'<ol style="margin:2px 0">{items}</ol>'
    if hint:
        body += html.note(hint)
    title = html.escape(f"A question from {_sender(question)}")
    return {
        "text/html": html.box(title, body, _COLOUR),
        "text/plain": "\n".join(filter(None, [describe_question(question), hint])),
    }


def question_record_bundle(question: UserQuestion, reply: QuestionReply) -> dict[str, Any]:
    """Return the MIME bundle that stays in the notebook after a reply."""
    label = _OUTCOME_LABELS[reply.outcome]
    sender = _sender(question)
    text, answer = visible(question.text), visible(reply.text or "")
    body = html.paragraph(text)
    lines = [f"{label} a question from {sender}" if answer else f"{label}: {sender} asked"]
    lines += [f"  {line}" for line in text.split("\n")]
    if answer:
        body += f"<div><strong>{html.paragraph(answer)}</strong></div>"
        lines += [f"  -> {line}" for line in answer.split("\n")]
    others = "; ".join(visible(choice, "") for choice in question.choices if choice != reply.text)
    if others:
        others = f"{'other choices' if answer else 'choices'}: {others}"
        body += html.small_print(others)
        lines.append(f"  {others}")
    title = f"<strong>{label}</strong> \N{MIDDLE DOT} {html.escape(f'a question from {sender}')}"
    return {"text/html": html.box(title, body, _COLOUR), "text/plain": "\n".join(lines)}


def _sender(question: UserQuestion) -> str:
    return f"agent {visible(question.agent_id, '')}" if question.agent_id else "the model"
