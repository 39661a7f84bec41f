"""Keeping a conversation within what a model can read: old results of calls give way, and it is said.

Pure. Sizes are counted in characters, and turned into tokens by a ratio that the provider's counts correct.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_core import to_json

from aisotools.messages import AssistantMessage, CallPart, Message, ToolMessage, UserMessage

TOKENS_PER_CHAR = 1 / 3
"""What is assumed before a provider has counted; careful for English, about right for code."""

FULL, ROOMY = 0.85, 0.6
"""Trimming starts above the first share of the window and goes down to the second, so that it is rare."""

WORTH_TRIMMING = 400
"""Results of fewer characters stay."""

_IMAGE_CHARS = 4_500
_HEAD_CHARS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """What trimming gave.

    Attributes:
        messages: The conversation as the model is shown it.
        call_ids: Whose results gave way.
        chars: How many characters went.
    """

    messages: tuple[Message, ...]
    call_ids: tuple[str, ...] = ()
    chars: int = 0


def size_of(message: Message) -> int:
    """About how many characters the model reads of a message."""
    if isinstance(message, AssistantMessage):
        return sum(
            len(part.name) + len(to_json(part.arguments, serialize_unknown=True))
            if isinstance(part, CallPart)
            else len(part.text)
            for part in message.parts
        )
    text = message.text if isinstance(message, UserMessage) else message.content
    return len(text) + _IMAGE_CHARS * len(message.images)


def trim(messages: Sequence[Message], to_chars: float) -> Trimmed:
    """Take results of calls out, the oldest first, until `to_chars` characters are left or nothing can go.

    What the model has not yet answered to stays, as does everything that people and the model said.
    """
    kept = list(messages)
    last_answer = max((n for n, m in enumerate(kept) if isinstance(m, AssistantMessage)), default=0)
    left = sum(map(size_of, kept))
    gone, call_ids = 0, []
    for number, message in enumerate(kept[:last_answer]):
        if left - gone <= to_chars:
            break
        if isinstance(message, ToolMessage) and size_of(message) >= WORTH_TRIMMING:
            kept[number] = shorter = _without_content(message)
            gone += size_of(message) - size_of(shorter)
            call_ids.append(message.call_id)
    return Trimmed(messages=tuple(kept), call_ids=tuple(call_ids), chars=gone)


def _without_content(message: ToolMessage) -> ToolMessage:
    gone = len(message.content)
    again = (
        f"read_result with ref={message.ref!r} gives it again"
        if message.ref
        else "make the call again if it is needed"
    )
    pictures = f" and {len(message.images)} pictures" if message.images else ""
    head = message.content[:_HEAD_CHARS]
    note = f"{head}\n[{gone} characters{pictures} in all; the rest was taken out to make room: {again}.]"
    return dataclasses.replace(
        message, content=note, images=(), trimmed_chars=message.trimmed_chars + gone - len(head)
    )
