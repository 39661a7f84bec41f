"""What is said between an agent and a model: messages, the events of an answer, and the `Model` contract.

Messages are what is kept: JSON can hold them (`message_to_json`, `message_from_json`), so they go into the
ledger and the transcript and come back from there. Events are what streams while a model answers. Whatever a
model says is untrusted.

From the events of a model's answer to one message. Pure: events in, message out.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, Literal, Protocol, cast, get_args, runtime_checkable

from aisotools.core.exceptions import ModelError, UsageError
from aisotools.core.types import Json, ToolDefinition

FinishReason = Literal["stop", "calls", "length", "filtered", "undecided", "unknown"]
"""Why an answer ended: said all, wants calls made, ran into its length, was withheld, cannot choose, or a
reason that we do not know."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text, Markdown where the writer likes.

    Attributes:
        text: The text.
        opaque: What the provider wants back with this part; of no meaning to anybody else.
    """

    text: str
    _: KW_ONLY
    opaque: Mapping[str, Json] = field(default_factory=dict, repr=False)
    kind: Literal["text"] = field(default="text", repr=False)


@dataclass(frozen=True, slots=True)
class ThinkingPart:
    """What a model thought before it answered.

    Attributes:
        text: The thought, or as much of it as the provider shows.
        opaque: What the provider wants back with this part, such as its signature.
    """

    text: str
    _: KW_ONLY
    opaque: Mapping[str, Json] = field(default_factory=dict, repr=False)
    kind: Literal["thinking"] = field(default="thinking", repr=False)


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture.

    Attributes:
        mime: Such as `image/png`.
        data: Base64 text.
    """

    mime: str
    data: str
    _: KW_ONLY
    kind: Literal["image"] = field(default="image", repr=False)


@dataclass(frozen=True, slots=True)
class CallPart:
    """A model's wish to call a tool.

    Attributes:
        id: Names the call in the conversation. An agent gives ids of its own; a model's are not relied on.
        name: The tool.
        arguments: As the model wrote them.
        flaw: Why the arguments could not be read, in words for the model; such a call is never made.
        opaque: What the provider wants back with this part.
    """

    id: str
    name: str
    arguments: Mapping[str, Json]
    _: KW_ONLY
    flaw: str = ""
    opaque: Mapping[str, Json] = field(default_factory=dict, repr=False)
    kind: Literal["call"] = field(default="call", repr=False)


AnswerPart = TextPart | ThinkingPart | CallPart
"""What an answer is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What an answer took.

    Attributes:
        requests: How many answers this counts.
        input_tokens: Tokens read, those from a cache included.
        output_tokens: Tokens written, thoughts included.
        cached_tokens: How many of those read came from a cache.
        cost: In US dollars; None when the price of any of it is not known.
    """

    requests: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        unknown = any(one.requests and one.cost is None for one in (self, other))
        return Usage(
            requests=self.requests + other.requests,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cost=None if unknown else (self.cost or 0.0) + (other.cost or 0.0),
        )


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What a person, or the program in their place, says."""

    text: str
    _: KW_ONLY
    images: tuple[ImagePart, ...] = ()
    role: Literal["user"] = field(default="user", repr=False)


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What a model answered.

    Attributes:
        parts: In the order the model gave them.
        reason: Why it ended.
        model: Which model answered.
    """

    parts: tuple[AnswerPart, ...]
    _: KW_ONLY
    reason: FinishReason = "stop"
    model: str = ""
    role: Literal["assistant"] = field(default="assistant", repr=False)

    @property
    def text(self) -> str:
        """All its text."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> tuple[CallPart, ...]:
        """The calls it wants made."""
        return tuple(part for part in self.parts if isinstance(part, CallPart))


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """What a call gave.

    Attributes:
        call_id: Which call.
        name: The tool.
        content: What the model reads.
        is_error: Whether the call failed.
        images: Pictures that the tool showed.
        ref: What reads the whole result again; empty when nothing does.
        trimmed_chars: How much of the content was taken out since, to make room.
    """

    call_id: str
    name: str
    content: str
    _: KW_ONLY
    is_error: bool = False
    images: tuple[ImagePart, ...] = ()
    ref: str = ""
    trimmed_chars: int = 0
    role: Literal["tool"] = field(default="tool", repr=False)


Message = UserMessage | AssistantMessage | ToolMessage
"""One message of a conversation; instructions are no message, they go with every request."""


# ---- while a model answers


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """More of a thought."""

    text: str


@dataclass(frozen=True, slots=True)
class PartDone:
    """A text or a thought is complete; needed only by models that must have it back with `opaque` data.

    Attributes:
        part: The whole; it stands for the deltas of its kind since the last complete part.
    """

    part: TextPart | ThinkingPart


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of a call that is being written, for display only.

    Attributes:
        index: Which of the calls of this answer, from 0.
        name: More of the tool's name; empty when it is complete.
        arguments: More of the arguments' JSON text.
    """

    index: int
    _: KW_ONLY
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class CallDone:
    """A call is complete."""

    call: CallPart


@dataclass(frozen=True, slots=True)
class Proposal:
    """The model cannot choose; `Finished("undecided")` follows.

    Attributes:
        options: The likeliest calls, the best first. A person picks one, or the run ends and says so.
    """

    options: tuple[CallPart, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete; nothing follows. A stream that ends without this was cut.

    Attributes:
        reason: Why it ended.
        detail: The provider's own word for it.
    """

    reason: FinishReason
    _: KW_ONLY
    detail: str = ""


ModelEvent = TextDelta | ThinkingDelta | PartDone | CallDelta | CallDone | Proposal | Usage | Finished
"""One event of an answer. `Usage` comes at most once, before `Finished`."""


@runtime_checkable
class Model(Protocol):
    """Something that answers a conversation, with text or with wishes to call tools.

    Optional capabilities: `SupportsContextWindow` and `SupportsPerson` of `aisotools.core.protocols`, and
    `async close()`, which releases connections.
    """

    @property
    def name(self) -> str:
        """Such as `openai:gpt-5`, or `scripted`."""

    def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, instructions: str = ""
    ) -> AsyncIterator[ModelEvent]:
        """Answer `messages`, as a stream that ends with `Finished`.

        Closing the stream, or cancelling the task that reads it, stops the request. Nothing is retried here.

        Args:
            messages: The conversation so far; the last is a person's or a tool's.
            tools: What may be called.
            instructions: What the model is told before everything else.

        Raises:
            ModelError: While it is read, if there is no answer; its `retryable` tells what may help.
        """


def since_last_answer(messages: Sequence[Message]) -> tuple[Message, ...]:
    """What was said since a model last answered."""
    new: list[Message] = []
    for message in reversed(messages):
        if isinstance(message, AssistantMessage):
            break
        new.append(message)
    return tuple(reversed(new))


# ---- as JSON


def message_to_json(message: Message) -> dict[str, Json]:
    """The message as a JSON object; what is as by default is left out."""
    plain = _adapter().dump_python(message, mode="json", exclude_defaults=True)
    told: dict[str, Json] = {"role": message.role, **plain}
    if isinstance(message, AssistantMessage):
        told["parts"] = [
            {"kind": part.kind, **plain}
            for part, plain in zip(message.parts, told.get("parts", ()), strict=True)
        ]
    return told


def message_from_json(value: Json) -> Message:
    """The message that `message_to_json` made `value` of.

    Raises:
        UsageError: If it is none.
    """
    try:
        return cast("Message", _adapter().validate_python(value))
    except ValueError as error:
        told = " ".join(str(error).split())
        raise UsageError(f"This is no message of a conversation: {told[:300]}") from error


def digest_of(messages: Sequence[Message]) -> str:
    """SHA-256 of what was said.

    Only what makes a difference to an answer counts: no ids, no opaque data, no name of a model.
    """
    from pydantic_core import to_json  # the contracts are read by programs that never send anything

    told: list[Any] = []
    for message in messages:
        if isinstance(message, UserMessage):
            told.append(("user", message.text, [image.data for image in message.images]))
        elif isinstance(message, AssistantMessage):
            told.append(("assistant", message.text, [(c.name, c.arguments) for c in message.calls]))
        else:
            told.append(("tool", message.name, message.content, message.is_error))
    return hashlib.sha256(to_json(told, inf_nan_mode="strings", serialize_unknown=True)).hexdigest()


@functools.cache
def _adapter() -> Any:
    from pydantic import Discriminator, TypeAdapter

    return TypeAdapter(Annotated[Message, Discriminator("role")])


MOST_CHARS = 4 << 20
"""Longest answer that is taken; a model that goes on for ever must not fill the host."""

_MOST_NAME_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponse:
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
        from pydantic_core import from_json, to_json  # see `digest_of`

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

    def answer(self) -> ModelResponse:
        """The answer.

        Raises:
            ModelError: If it was cut before its end.
        """
        if self._finished is None:
            raise ModelError(f"The answer of {self._model} was cut before its end.", retryable=True)
        message = AssistantMessage(tuple(self._parts), reason=self._finished.reason, model=self._model)
        return ModelResponse(
            message=message, usage=self._usage, options=self._options, detail=self._finished.detail
        )


def _writable(text: str) -> str:
    """Text without lone halves of characters, which no file could take."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _opaque(opaque: Mapping[str, Json]) -> Mapping[str, Json]:
    """What a provider wants back, as JSON holds it."""
    if not opaque:
        return {}
    from pydantic_core import from_json, to_json

    kept: Mapping[str, Json] = from_json(to_json(opaque, serialize_unknown=True))
    return kept


def call_from_text(call_id: str, name: str, arguments: str) -> CallPart:
    """A call from the JSON text that a model wrote; text that is no JSON object makes a flawed call."""
    from pydantic_core import from_json

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
