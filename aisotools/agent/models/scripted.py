"""A model that gives prepared answers: for tests, demonstrations and lessons, without key or network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aisotools.core.exceptions import ModelError, UsageError
from aisotools.core.messages import (
    AnswerPart,
    AssistantMessage,
    CallPart,
    Message,
    ModelEvent,
    TextDelta,
    TextPart,
    ThinkingPart,
    events_of,
)
from aisotools.core.types import ToolDefinition

ScriptedPart = str | tuple[str, Mapping[str, Any]] | TextPart | ThinkingPart | CallPart
"""A text, or a call as a pair of a tool's name and arguments."""

ScriptedTurn = (
    ScriptedPart
    | Sequence[ScriptedPart]
    | AssistantMessage
    | Exception
    | Callable[[Sequence[Message]], "ScriptedTurn"]
)
"""One answer: a part, a list of parts (its calls are made together), a whole message, an error to raise
instead, or a function that makes any of these from the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRequest:
    """A request to a scripted model.

    Attributes:
        messages: The conversation.
        tools: What it could have called.
        instructions: The system prompt.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...]
    instructions: str


class ScriptedModel:
    """Gives the answers of a script in order, and says so when none is left.

    Attributes:
        name: `scripted`, or what it was given.
        requests: What it was asked so far.
    """

    def __init__(
        self,
        turns: Sequence[ScriptedTurn],
        *,
        name: str = "scripted",
        delay_s: float = 0.0,
        context_tokens: int | None = None,
    ) -> None:
        """Take the script.

        Args:
            turns: The answers: `"text"`, `(tool_name, arguments)`, or a list of those.
            name: How it is called in records.
            delay_s: Seconds before each piece of an answer, to have something to look at.
            context_tokens: How much it pretends to be able to read.

        Raises:
            UsageError: If a turn is none; the message says which and why.
        """
        if isinstance(turns, str) or not isinstance(turns, Sequence):
            raise UsageError(f"ScriptedModel({turns!r}): give a list of turns, such as ['Hello.'].")
        for number, turn in enumerate(turns):
            if not (callable(turn) or isinstance(turn, Exception)):
                _as_message(turn, number, name)
        self.name = name
        self.context_tokens = context_tokens
        self._turns = tuple(turns)
        self._delay_s = delay_s
        self.requests: list[ScriptedRequest] = []

    def __repr__(self) -> str:
        return f"<ScriptedModel {self.name}: {len(self.requests)} asked, {len(self._turns)} turns>"

    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, instructions: str = ""
    ) -> AsyncIterator[ModelEvent]:
        """Give the next answer of the script.

        Raises:
            ModelError: If none is left, or the script says so.
        """
        number = len(self.requests)
        self.requests.append(
            ScriptedRequest(messages=tuple(messages), tools=tuple(tools), instructions=instructions)
        )
        if number >= len(self._turns):
            turns = len(self._turns)
            raise ModelError(
                f"The script of {self.name} has {turns:,} {'turn' if turns == 1 else 'turns'}, and the model "
                f"was asked for turn {number + 1:,}. Add a turn to the script."
            )
        turn: Any = self._turns[number]
        if callable(turn):
            turn = turn(messages)
        if isinstance(turn, Exception):
            raise turn
        for event in events_of(_as_message(turn, number, self.name)):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            for piece in _pieces(event) if self._delay_s else (event,):
                yield piece


def _pieces(event: ModelEvent) -> Sequence[ModelEvent]:
    """Return the events of a text word by word, as a streaming model sends them."""
    if not isinstance(event, TextDelta):
        return (event,)
    return [TextDelta(word) for word in event.text.splitlines(keepends=True)]


def _as_message(turn: Any, number: int, name: str) -> AssistantMessage:
    if isinstance(turn, AssistantMessage):
        return turn
    parts = [_part(one, number) for one in (turn if isinstance(turn, list) else [turn])]
    has_calls = any(isinstance(part, CallPart) for part in parts)
    return AssistantMessage(tuple(parts), reason="calls" if has_calls else "stop", model=name)


def _part(part: Any, number: int) -> AnswerPart:
    if isinstance(part, TextPart | ThinkingPart | CallPart):
        return part
    if isinstance(part, str):
        return TextPart(part)
    if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str):
        arguments = part[1]
        if isinstance(arguments, Mapping):
            return CallPart("", part[0], dict(arguments))
    raise UsageError(
        f"Turn {number} of the script holds {part!r}. Give a text, a pair (tool_name, arguments), "
        "or a list of those.",
    )
