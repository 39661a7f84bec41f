"""From the events of a model's answer to one message. Pure: events in, message out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from pydantic_core import from_json, to_json

from aisotools.events import Json
from aisotools.exceptions import ModelError
from aisotools.messages import (
    AnswerPart,
    AssistantMessage,
    CallDelta,
    CallDone,
    CallPart,
    Finished,
    FinishReason,
    ModelEvent,
    PartDone,
    Proposal,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    Usage,
)

MOST_CHARS = 4 << 20
"""Longest answer that is taken; a model that goes on for ever must not fill the host."""

_MOST_NAME_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete answer.

    Attributes:
        message: What is kept of it.
        usage: What it took; counted as one request.
        options: What the model proposes when it cannot choose.
        detail: The provider's own word for why it ended.
    """

    message: AssistantMessage
    usage: Usage
    options: tuple[CallPart, ...] = ()
    detail: str = ""


class AnswerReader:
    """Takes the events of one answer."""

    def __init__(self, model: str) -> None:
        """Read an answer of `model`."""
        self._model = model
        self._parts: list[AnswerPart] = []
        self._open: dict[type[TextPart | ThinkingPart], list[str]] = {TextPart: [], ThinkingPart: []}
        self._usage = Usage()
        self._options: tuple[CallPart, ...] = ()
        self._finished: Finished | None = None
        self._chars = 0

    def __repr__(self) -> str:
        return f"<AnswerReader {len(self._parts)} parts, {'done' if self._finished else 'open'}>"

    @property
    def done(self) -> bool:
        """Whether the answer is complete."""
        return self._finished is not None

    def add(self, event: ModelEvent) -> None:
        """Take one event; what comes after the end is left out.

        Raises:
            ModelError: If it is no event, or the answer grows too long.
        """
        try:
            self._take(event)
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise ModelError(f"{self._model} sent an event of a wrong make: {error}") from error

    def _take(self, event: ModelEvent) -> None:
        match event:
            case TextDelta(text):
                self._delta(TextPart, text)
            case ThinkingDelta(text):
                self._delta(ThinkingPart, text)
            case PartDone(part):
                self._open[type(part)].clear()
                self._close()
                kept = dataclasses.replace(part, text=_writable(part.text), opaque=_opaque(part.opaque))
                self._parts.append(kept)
            case CallDone(call):
                self._close()
                self._parts.append(self._call(call))
            case Usage():
                self._usage = event
            case Proposal(options):
                self._options = tuple(self._call(option) for option in options)
            case Finished():
                self._close()
                known = event.reason in get_args(FinishReason)
                event = event if known else Finished("unknown", detail=str(event.reason))
                self._finished = self._finished or event
            case CallDelta():
                pass
            case _:
                raise ModelError(
                    f"{self._model} sent {type(event).__name__}, which is no event of an answer."
                )

    def _delta(self, kind: type[TextPart | ThinkingPart], text: str) -> None:
        if not self._open[kind]:
            self._close()
        self._open[kind].append(text)
        self._count(len(text))

    def _count(self, chars: int) -> None:
        self._chars += chars
        if self._chars > MOST_CHARS:
            raise ModelError(
                f"{self._model} answered with more than {MOST_CHARS} characters; it was cut off."
            )

    def _call(self, call: CallPart) -> CallPart:
        """The call as JSON holds it; whatever JSON cannot hold is a flaw, since it could not be recorded."""
        flaw, arguments = _writable(call.flaw), call.arguments
        try:
            text = to_json(arguments)
            arguments = from_json(text)
            self._count(len(text))
        except (ValueError, RecursionError) as error:
            flaw, arguments = f"The arguments cannot be read ({error}).", {}
        if not isinstance(arguments, dict):
            told = f"The arguments are {type(arguments).__name__}, and must be a JSON object such as {{}}."
            flaw, arguments = told, {}
        name = _writable(call.name)[:_MOST_NAME_CHARS]
        return CallPart(call.id, name, arguments, flaw=flaw, opaque=_opaque(call.opaque))

    def _close(self) -> None:
        for kind, texts in self._open.items():
            if texts:
                self._parts.append(kind(_writable("".join(texts))))
                texts.clear()

    def answer(self) -> Answer:
        """The answer.

        Raises:
            ModelError: If it was cut before its end.
        """
        if self._finished is None:
            raise ModelError(f"The answer of {self._model} was cut before its end.", retryable=True)
        message = AssistantMessage(tuple(self._parts), reason=self._finished.reason, model=self._model)
        return Answer(message=message, usage=self._usage, options=self._options, detail=self._finished.detail)


def _writable(text: str) -> str:
    """Text without lone halves of characters, which no file could take."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _opaque(opaque: Mapping[str, Json]) -> Mapping[str, Json]:
    """What a provider wants back, as JSON holds it."""
    if not opaque:
        return {}
    kept: Mapping[str, Json] = from_json(to_json(opaque, serialize_unknown=True))
    return kept


def call_from_text(call_id: str, name: str, arguments: str) -> CallPart:
    """A call from the JSON text that a model wrote; text that is no JSON object makes a flawed call."""
    try:
        read: object = from_json(arguments) if arguments.strip() else {}
    except ValueError as error:
        shown = arguments if len(arguments) <= 200 else arguments[:200] + "..."
        return CallPart(call_id, name, {}, flaw=f"The arguments are no valid JSON ({error}): {shown}")
    if not isinstance(read, dict):
        told = f"The arguments are {type(read).__name__}, and must be a JSON object such as {{}}."
        return CallPart(call_id, name, {}, flaw=told)
    return CallPart(call_id, name, read)


def events_of(message: AssistantMessage, usage: Usage | None = None) -> Sequence[ModelEvent]:
    """Events that make `message` again, for models that have their answers ready."""
    events: list[ModelEvent] = []
    for part in message.parts:
        if isinstance(part, CallPart):
            events.append(CallDone(part))
        else:
            delta = TextDelta(part.text) if isinstance(part, TextPart) else ThinkingDelta(part.text)
            events += [delta, PartDone(part)]
    return [*events, usage or Usage(cost=0.0), Finished(message.reason)]
