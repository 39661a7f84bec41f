"""Conversations to and from the message classes of pydantic-ai.

What a provider wants back with a part travels along as opaque data, so that thoughts and signatures return to
it as they were.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aisotools.answers import call_from_text
from aisotools.events import Json, ToolDefinition
from aisotools.exceptions import ModelError
from aisotools.messages import (
    AssistantMessage,
    CallDelta,
    CallPart,
    Finished,
    FinishReason,
    ImagePart,
    Message,
    ModelEvent,
    PartDone,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    ToolMessage,
    Usage,
    UserMessage,
)

if TYPE_CHECKING:
    import pydantic_ai.messages as theirs
    from pydantic_ai.tools import ToolDefinition as TheirDefinition

_OPAQUE = ("id", "signature", "provider_name", "provider_details")


# ---- ours to theirs


def to_theirs(messages: Sequence[Message], instructions: str) -> list[theirs.ModelMessage]:
    """A conversation as their model classes take it."""
    from pydantic_ai import messages as theirs

    told: list[theirs.ModelMessage] = []
    asked: list[Any] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            if asked:
                told.append(theirs.ModelRequest(parts=asked, instructions=instructions or None))
            asked = []
            told.append(theirs.ModelResponse(parts=[_their_part(part) for part in message.parts]))
        elif isinstance(message, UserMessage):
            content = [message.text, *_their_images(message.images)] if message.images else message.text
            asked.append(theirs.UserPromptPart(content=content))
        else:
            asked.append(_their_result(message))
    told.append(theirs.ModelRequest(parts=asked, instructions=instructions or None))
    return told


def _their_part(part: TextPart | ThinkingPart | CallPart) -> Any:
    from pydantic_ai import messages as theirs

    extra: dict[str, Any] = dict(part.opaque)
    if isinstance(part, TextPart):
        return theirs.TextPart(content=part.text, **extra)
    if isinstance(part, ThinkingPart):
        return theirs.ThinkingPart(content=part.text, **extra)
    return theirs.ToolCallPart(tool_name=part.name, args=dict(part.arguments), tool_call_id=part.id, **extra)


def _their_result(message: ToolMessage) -> Any:
    from pydantic_ai import messages as theirs

    images = _their_images(message.images)
    return theirs.ToolReturnPart(
        tool_name=message.name,
        content=[message.content, *images] if images else message.content,
        tool_call_id=message.call_id,
        outcome="failed" if message.is_error else "success",
    )


def _their_images(images: Sequence[ImagePart]) -> list[Any]:
    from pydantic_ai import messages as theirs

    shown: list[Any] = []
    for image in images:
        try:
            data = base64.b64decode(image.data, validate=False)
        except (binascii.Error, ValueError):
            shown.append(f"[a picture that could not be read: {image.mime}]")
        else:
            shown.append(theirs.BinaryContent(data, media_type=image.mime))
    return shown


def their_tool(tool: ToolDefinition) -> TheirDefinition:
    """A tool as their model classes take it."""
    from pydantic_ai.tools import ToolDefinition as TheirDefinition

    return TheirDefinition(
        name=tool.name, description=tool.description, parameters_json_schema=dict(tool.parameters)
    )


# ---- theirs to ours


def to_ours(piece: Any, calls: dict[int, int]) -> Iterator[ModelEvent]:
    """The events that one piece of their stream makes; `calls` numbers the calls as they begin."""
    if piece.event_kind == "part_start":
        part = piece.part
        if part.part_kind == "text" and part.content:
            yield TextDelta(part.content)
        elif part.part_kind == "thinking" and part.content:
            yield ThinkingDelta(part.content)
        elif part.part_kind == "tool-call":
            number = calls.setdefault(piece.index, len(calls))
            yield CallDelta(number, name=part.tool_name, arguments=_as_text(part.args))
    elif piece.event_kind == "part_delta":
        delta = piece.delta
        if delta.part_delta_kind == "text":
            yield TextDelta(delta.content_delta)
        elif delta.part_delta_kind == "thinking" and delta.content_delta:
            yield ThinkingDelta(delta.content_delta)
        elif delta.part_delta_kind == "tool_call" and piece.index in calls:
            name, arguments = delta.tool_name_delta or "", _as_text(delta.args_delta)
            yield CallDelta(calls[piece.index], name=name, arguments=arguments)
    elif piece.event_kind == "part_end":
        part = piece.part
        if part.part_kind == "text":
            yield PartDone(TextPart(part.content, opaque=_opaque(part)))
        elif part.part_kind == "thinking":
            yield PartDone(ThinkingPart(part.content, opaque=_opaque(part)))


def our_call(part: Any) -> CallPart:
    """A call as it was streamed, whole."""
    arguments = part.args
    if isinstance(arguments, Mapping):
        return CallPart(part.tool_call_id, part.tool_name, dict(arguments), opaque=_opaque(part))
    call = call_from_text(part.tool_call_id, part.tool_name, arguments or "")
    return CallPart(call.id, call.name, call.arguments, flaw=call.flaw, opaque=_opaque(part))


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else ""


def _opaque(part: Any) -> Mapping[str, Json]:
    held = {name: getattr(part, name, None) for name in _OPAQUE}
    kept = {name: value for name, value in held.items() if value}
    return kept if kept.keys() - {"provider_name"} else {}


def usage_of(whole: theirs.ModelResponse) -> Usage:
    """What an answer took, and what that costs where the price is known."""
    cost: float | None
    try:
        cost = float(whole.cost().total_price)
    except (LookupError, ValueError, AssertionError):  # no price is known for it
        cost = None
    used = whole.usage
    return Usage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cached_tokens=used.cache_read_tokens,
        cost=cost,
    )


_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "tool_call": "calls",
    "length": "length",
    "content_filter": "filtered",
}


def finished(whole: theirs.ModelResponse, *, ends_silently: bool = False) -> Finished:
    """Why an answer ended; `ends_silently` for models that never say.

    Raises:
        ModelError: If it does not say, so was cut.
    """
    raw = str((whole.provider_details or {}).get("finish_reason", ""))
    if whole.finish_reason is None and not raw:
        if ends_silently:
            return Finished("calls" if whole.tool_calls else "stop")
        raise ModelError("The answer was cut before its end.", retryable=True)
    return Finished(_REASONS.get(whole.finish_reason or "", "unknown"), detail=raw)
