"""Messages between an agent and a model, the events of a streamed answer, and the `Model` protocol.

Messages are stored: they have a JSON form (`message_to_json`, `message_from_json`) for the ledger and the
transcript. Events stream while a model answers; `AnswerReader` folds them into one message. Everything that
comes from a model is untrusted.
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
"""End of an answer: complete, waiting for calls, cut at its length, withheld, undecided, or unknown."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text, possibly Markdown.

    Attributes:
        text: The text.
        opaque: Data that the provider needs back with this part; meaningless to everybody else.
    """

    text: str
    _: KW_ONLY
    opaque: Mapping[str, Json] = field(default_factory=dict, repr=False)
    kind: Literal["text"] = field(default="text", repr=False)


@dataclass(frozen=True, slots=True)
class ThinkingPart:
    """Reasoning of a model before its answer.

    Attributes:
        text: The reasoning, as far as the provider shows it.
        opaque: Data that the provider needs back with this part, such as its signature.
    """

    text: str
    _: KW_ONLY
    opaque: Mapping[str, Json] = field(default_factory=dict, repr=False)
    kind: Literal["thinking"] = field(default="thinking", repr=False)


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image.

    Attributes:
        mime: MIME type, such as `image/png`.
        data: Base64 text.
    """

    mime: str
    data: str
    _: KW_ONLY
    kind: Literal["image"] = field(default="image", repr=False)


@dataclass(frozen=True, slots=True)
class CallPart:
    """A tool call that a model requests.

    Attributes:
        id: Identifies the call in the conversation. An agent assigns ids of its own; a model may repeat them.
        name: The tool.
        arguments: As the model wrote them.
        flaw: Reason why the arguments could not be parsed, for the model to read. Such a call is never made.
        opaque: Data that the provider needs back with this part.
    """

    id: str
    name: str
    arguments: Mapping[str, Json]
    _: KW_ONLY
    flaw: str = ""
    opaque: Mapping[str, Json] = field(default_factory=dict, repr=False)
    kind: Literal["call"] = field(default="call", repr=False)


AnswerPart = TextPart | ThinkingPart | CallPart
"""Part of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens and cost of one or more answers.

    Attributes:
        requests: Number of answers.
        input_tokens: Tokens read, including those from a cache.
        output_tokens: Tokens written, including reasoning.
        cached_tokens: Tokens read from a cache.
        cost: Cost in US dollars; None if any price is unknown.
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
    """Message of a person, or of the program in their place."""

    text: str
    _: KW_ONLY
    images: tuple[ImagePart, ...] = ()
    role: Literal["user"] = field(default="user", repr=False)


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """Answer of a model.

    Attributes:
        parts: Parts in order.
        reason: Why it ended.
        model: Name of the model.
    """

    parts: tuple[AnswerPart, ...]
    _: KW_ONLY
    reason: FinishReason = "stop"
    model: str = ""
    role: Literal["assistant"] = field(default="assistant", repr=False)

    @property
    def text(self) -> str:
        """Text of all text parts."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> tuple[CallPart, ...]:
        """Calls that it requests."""
        return tuple(part for part in self.parts if isinstance(part, CallPart))


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """Result of a call.

    Attributes:
        call_id: The call.
        name: The tool.
        content: Text for the model.
        is_error: True if the call failed.
        images: Images that the tool displayed.
        ref: Reference that reads the whole result; empty if it is not stored.
        trimmed_chars: Characters that were removed from the content later, to free context.
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
"""Message of a conversation. Instructions are not a message; they are sent with every request."""


# ---- while a model answers


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """More reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class PartDone:
    """A text or reasoning part is complete. Sent by providers that need it back with `opaque` data.

    Attributes:
        part: The whole part; replaces the deltas of its kind since the last complete part.
    """

    part: TextPart | ThinkingPart


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of a call that is being written, for display only.

    Attributes:
        index: Number of the call in this answer, from 0.
        name: More of the tool's name; empty when it is complete.
        arguments: More of the JSON text of the arguments.
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
        options: Likely calls, best first. A person picks one; without a person the run ends.
    """

    options: tuple[CallPart, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete, and nothing follows. A stream without this event was interrupted.

    Attributes:
        reason: Why it ended.
        detail: The reason in the provider's terms.
    """

    reason: FinishReason
    _: KW_ONLY
    detail: str = ""


ModelEvent = TextDelta | ThinkingDelta | PartDone | CallDelta | CallDone | Proposal | Usage | Finished
"""One event of an answer. `Usage` comes at most once, before `Finished`."""


@runtime_checkable
class Model(Protocol):
    """Something that answers a conversation with text and tool calls.

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
            tools: Tools that may be called.
            instructions: System instructions.

        Raises:
            ModelError: While the stream is read, if there is no answer; see its `retryable`.
        """


def since_last_answer(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages after the last answer."""
    new: list[Message] = []
    for message in reversed(messages):
        if isinstance(message, AssistantMessage):
            break
        new.append(message)
    return tuple(reversed(new))


# ---- as JSON


def message_to_json(message: Message) -> dict[str, Json]:
    """Return a message as a JSON object without default values."""
    plain = _adapter().dump_python(message, mode="json", exclude_defaults=True)
    encoded: dict[str, Json] = {"role": message.role, **plain}
    if isinstance(message, AssistantMessage):
        encoded["parts"] = [
            {"kind": part.kind, **plain}
            for part, plain in zip(message.parts, encoded.get("parts", ()), strict=True)
        ]
    return encoded


def message_from_json(value: Json) -> Message:
    """Return the message that `message_to_json` encoded as `value`.

    Raises:
        UsageError: If it is not an encoded message.
    """
    try:
        return cast("Message", _adapter().validate_python(value))
    except ValueError as error:
        problem = " ".join(str(error).split())
        raise UsageError(f"This is not a message of a conversation: {problem[:300]}") from error


def conversation_digest(messages: Sequence[Message]) -> str:
    """Return the SHA-256 of a conversation.

    Ids, opaque data and the names of models make no difference to an answer and are left out.
    """
    from pydantic_core import to_json  # slow to import, and many programs never send a message

    contents: list[Any] = []
    for message in messages:
        if isinstance(message, UserMessage):
            contents.append(("user", message.text, [image.data for image in message.images]))
        elif isinstance(message, AssistantMessage):
            contents.append(("assistant", message.text, [(c.name, c.arguments) for c in message.calls]))
        else:
            contents.append(("tool", message.name, message.content, message.is_error))
    return hashlib.sha256(to_json(contents, inf_nan_mode="strings", serialize_unknown=True)).hexdigest()


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
        message: The answer as a message.
        usage: Tokens and cost; counted as one request.
        options: Calls that the model proposes if it cannot choose.
        detail: Why it ended, in the provider's terms.
    """

    message: AssistantMessage
    usage: Usage
    options: tuple[CallPart, ...] = ()
    detail: str = ""


class AnswerReader:
    """Folds the events of one answer into a message."""

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
        """True once the answer is complete."""
        return self._finished is not None

    def add(self, event: ModelEvent) -> None:
        """Add one event.

        Raises:
            ModelError: If it is not an event, or the answer becomes too long.
        """
        try:
            self._take(event)
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise ModelError(f"{self._model} sent a malformed event: {error}") from error

    def _take(self, event: ModelEvent) -> None:
        match event:
            case TextDelta(text):
                self._delta(TextPart, text)
            case ThinkingDelta(text):
                self._delta(ThinkingPart, text)
            case PartDone(part):
                self._open[type(part)].clear()
                self._close()
                part = dataclasses.replace(part, text=_encodable(part.text), opaque=_opaque_json(part.opaque))
                self._parts.append(part)
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
                    f"{self._model} sent {type(event).__name__}, which is not an event of an answer."
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
        """Return the call with JSON arguments. Others are a flaw: they could not be recorded."""
        from pydantic_core import from_json, to_json  # see `conversation_digest`

        flaw, arguments = _encodable(call.flaw), call.arguments
        try:
            text = to_json(arguments)
            arguments = from_json(text)
            self._count(len(text))
        except (ValueError, RecursionError) as error:
            flaw, arguments = f"The arguments cannot be read ({error}).", {}
        if not isinstance(arguments, dict):
            flaw = f"The arguments are {type(arguments).__name__}, and must be a JSON object such as {{}}."
            arguments = {}
        name = _encodable(call.name)[:_MOST_NAME_CHARS]
        return CallPart(call.id, name, arguments, flaw=flaw, opaque=_opaque_json(call.opaque))

    def _close(self) -> None:
        for kind, texts in self._open.items():
            if texts:
                self._parts.append(kind(_encodable("".join(texts))))
                texts.clear()

    def answer(self) -> ModelResponse:
        """Return the answer.

        Raises:
            ModelError: If it was interrupted before its end.
        """
        if self._finished is None:
            raise ModelError(f"The answer of {self._model} was cut before its end.", retryable=True)
        message = AssistantMessage(tuple(self._parts), reason=self._finished.reason, model=self._model)
        return ModelResponse(
            message=message, usage=self._usage, options=self._options, detail=self._finished.detail
        )


def _encodable(text: str) -> str:
    """Replace lone surrogates, which cannot be written to a file."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _opaque_json(opaque: Mapping[str, Json]) -> Mapping[str, Json]:
    if not opaque:
        return {}
    from pydantic_core import from_json, to_json

    plain: Mapping[str, Json] = from_json(to_json(opaque, serialize_unknown=True))
    return plain


def call_from_text(call_id: str, name: str, arguments: str) -> CallPart:
    """Return a call with arguments parsed from JSON text. Text that is not a JSON object is a flaw."""
    from pydantic_core import from_json

    try:
        parsed: object = from_json(arguments) if arguments.strip() else {}
    except ValueError as error:
        shown = arguments if len(arguments) <= 200 else arguments[:200] + "..."
        return CallPart(call_id, name, {}, flaw=f"The arguments are no valid JSON ({error}): {shown}")
    if not isinstance(parsed, dict):
        flaw = f"The arguments are {type(parsed).__name__}, and must be a JSON object such as {{}}."
        return CallPart(call_id, name, {}, flaw=flaw)
    return CallPart(call_id, name, parsed)


def events_of(message: AssistantMessage, usage: Usage | None = None) -> Sequence[ModelEvent]:
    """Return events that `AnswerReader` folds into `message`, for models with prepared answers."""
    events: list[ModelEvent] = []
    for part in message.parts:
        if isinstance(part, CallPart):
            events.append(CallDone(part))
        else:
            delta = TextDelta(part.text) if isinstance(part, TextPart) else ThinkingDelta(part.text)
            events += [delta, PartDone(part)]
    return [*events, usage or Usage(cost=0.0), Finished(message.reason)]
