"""What a question is about, calls or a model's own question: all that differs for whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from aisotools.approval import NOBODY, answer_from, inquiry_answer_from, timed_out
from aisotools.contracts import Inquiry
from aisotools.events import Approval, ApprovalRequest
from aisotools.notebook.cards.batch import batch_question, batch_record, batch_view, read_batch
from aisotools.notebook.cards.inquiry import (
    Reply,
    inquiry_question,
    inquiry_record,
    inquiry_view,
    read_reply,
)
from aisotools.notebook.cards.view import card_view, question_bundle, read_decision, record_bundle

Answer = TypeVar("Answer")

ReadLine = Callable[[str], str]
"""Shows a prompt and gives the line that was typed; blocks."""

Show = Callable[[Mapping[str, Any]], None]
"""Shows a MIME bundle in place of the card."""

_BELOW = "Answer in the box below."
_STOPPED = Approval("cancel", reason="Stopped before an answer.")


class Subject(Protocol[Answer]):
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
class Matter:
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
        return batch_view(self.requests) if len(self.requests) > 1 else card_view(self.requests[0])

    def read(self, message: Mapping[str, Any]) -> list[Approval]:
        """What the card's message means for each call.

        Raises:
            ArgumentError: If it means nothing; told to the person.
        """
        if len(self.requests) > 1:
            return read_batch(self.requests, message)
        return [read_decision(self.requests[0], message)]

    async def typed(self, read_line: ReadLine, show: Show, ends_s: float | None) -> list[Approval]:
        """The answers typed into the input box, one after another."""
        count = len(self.requests)
        answers: list[Approval] = []
        for number, request in enumerate(self.requests, 1):
            show(question_bundle(request, _BELOW if count == 1 else f"{_BELOW} This is {number} of {count}."))
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
        return batch_question(self.requests) if len(self.requests) > 1 else question_bundle(self.requests[0])

    def record(self, answer: Sequence[Approval]) -> dict[str, Any]:
        """What stays in the notebook after the answers."""
        if len(self.requests) > 1:
            return batch_record(self.requests, answer)
        return record_bundle(self.requests[0], answer[0])


@dataclass(frozen=True, slots=True)
class InquiryMatter:
    """A model's own question to a person.

    Attributes:
        inquiry: The question.
    """

    inquiry: Inquiry

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
        return inquiry_view(self.inquiry)

    def read(self, message: Mapping[str, Any]) -> Reply:
        """What the card's message answers.

        Raises:
            ArgumentError: If it means nothing; told to the person.
        """
        return read_reply(self.inquiry, message)

    async def typed(self, read_line: ReadLine, show: Show, ends_s: float | None) -> Reply:
        """The answer typed into the input box."""
        show(inquiry_question(self.inquiry, _BELOW))
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
        return inquiry_question(self.inquiry)

    def record(self, answer: Reply) -> dict[str, Any]:
        """What stays in the notebook after the answer."""
        return inquiry_record(self.inquiry, answer)
