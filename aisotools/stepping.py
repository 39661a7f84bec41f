"""Stepping through a run by hand: before each request and each call somebody says what is to happen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, Protocol, runtime_checkable

from aisotools.events import Json, ToolDefinition
from aisotools.exceptions import UsageError
from aisotools.messages import CallPart, Message

StepAction = Literal["continue", "edit", "skip", "answer", "stop"]
"""Go on as it is, go on with something else, leave it out, answer in its place, or end the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeRequest:
    """The model is about to be asked.

    Attributes:
        step: Which request of the conversation, from 1.
        messages: What it would be shown.
        tools: What it could call.
    """

    step: int
    messages: Sequence[Message]
    tools: Sequence[ToolDefinition]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeCall:
    """A call is about to go to the gate, which then asks as ever.

    Attributes:
        step: Which request of the conversation wanted it.
        call: The call.
    """

    step: int
    call: CallPart


@dataclass(frozen=True, slots=True)
class StepChoice:
    """What is to happen.

    Attributes:
        action: `continue`; `edit` with `messages` or `arguments`; `answer` with `text`, in the model's or the
            tool's place; `skip`, which leaves a call out and for a request is the same as `stop`; `stop`.
        messages: For a request: the conversation to go on from.
        arguments: For a call: what to call with.
        text: The answer.
    """

    action: StepAction = "continue"
    _: KW_ONLY
    messages: Sequence[Message] | None = None
    arguments: Mapping[str, Json] | None = None
    text: str = ""

    def __post_init__(self) -> None:
        if self.action not in {"continue", "edit", "skip", "answer", "stop"}:
            told = "continue, edit, skip, answer, stop"
            raise UsageError(f"StepChoice action {self.action!r} is not one of {told}.")
        if self.action == "edit" and self.messages is None and self.arguments is None:
            raise UsageError("StepChoice('edit') needs messages= (a request) or arguments= (a call).")


@runtime_checkable
class Stepper(Protocol):
    """Somebody who is asked before each request and each call."""

    async def pause(self, moment: BeforeRequest | BeforeCall) -> StepChoice:
        """Say what is to happen. Waiting here is not counted as working time."""


@runtime_checkable
class Chooser(Protocol):
    """Somebody who picks when the model cannot."""

    async def choose(self, question: str, options: Sequence[CallPart]) -> CallPart | str | None:
        """One of `options`, edited or not; a text to tell the model instead; or None, which ends the run."""
