"""Models of providers such as OpenAI, over the model classes of pydantic-ai; imported on first use.

Their client libraries retry by themselves, which would be neither seen nor bounded by a budget; here each
request is made once, and an agent retries.

Conversations to and from the message classes of pydantic-ai.

What a provider wants back with a part travels along as opaque data, so that thoughts and signatures return to
it as they were.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import getpass
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from aisotools.core.exceptions import ModelError, UsageError
from aisotools.core.messages import (
    AssistantMessage,
    CallDelta,
    CallDone,
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
    call_from_text,
)
from aisotools.core.redaction import redact_text
from aisotools.core.types import Json, ToolDefinition

if TYPE_CHECKING:
    import pydantic_ai.messages as theirs
    from pydantic_ai.models import Model as TheirModel
    from pydantic_ai.tools import ToolDefinition as TheirDefinition


_OPAQUE = ("id", "signature", "provider_name", "provider_details")


# ---- ours to theirs


def to_theirs(messages: Sequence[Message], instructions: str) -> list[theirs.ModelMessage]:
    """Return a conversation as pydantic-ai's messages.

    Args:
        messages: The conversation. What was said between two answers becomes one request.
        instructions: The system prompt, in every request; none if empty.

    Returns:
        Requests and answers; the last is a request, which may be empty.
    """
    from pydantic_ai import messages as theirs

    history: list[theirs.ModelMessage] = []
    parts: list[Any] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            if parts:
                history.append(theirs.ModelRequest(parts=parts, instructions=instructions or None))
            parts = []
            history.append(theirs.ModelResponse(parts=[_their_part(part) for part in message.parts]))
        elif isinstance(message, UserMessage):
            content = [message.text, *_their_images(message.images)] if message.images else message.text
            parts.append(theirs.UserPromptPart(content=content))
        else:
            parts.append(_their_result(message))
    history.append(theirs.ModelRequest(parts=parts, instructions=instructions or None))
    return history


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
    """Return a tool as pydantic-ai's definition."""
    from pydantic_ai.tools import ToolDefinition as TheirDefinition

    return TheirDefinition(
        name=tool.name, description=tool.description, parameters_json_schema=dict(tool.parameters)
    )


# ---- theirs to ours


def to_ours(piece: Any, calls: dict[int, int]) -> Iterator[ModelEvent]:
    """Yield the events of one piece of pydantic-ai's stream: text, thinking, and the text of calls.

    Args:
        piece: The piece. One of an unknown kind has no events.
        calls: The number of each call, from 0, by its index in the stream; a call that begins is added.
    """
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
    """Return a call that was streamed completely; its `flaw` says why its arguments cannot be parsed."""
    arguments = part.args
    if isinstance(arguments, Mapping):
        return CallPart(part.tool_call_id, part.tool_name, dict(arguments), opaque=_opaque(part))
    call = call_from_text(part.tool_call_id, part.tool_name, arguments or "")
    return CallPart(call.id, call.name, call.arguments, flaw=call.flaw, opaque=_opaque(part))


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else ""


def _opaque(part: Any) -> Mapping[str, Json]:
    values = {name: getattr(part, name, None) for name in _OPAQUE}
    opaque = {name: value for name, value in values.items() if value}
    return opaque if opaque.keys() - {"provider_name"} else {}


def usage_of(whole: theirs.ModelResponse) -> Usage:
    """Return the tokens of an answer, and its cost in US dollars; None where the price is not known."""
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
    """Return why an answer ended.

    Args:
        whole: The answer.
        ends_silently: Whether its model never reports why; the end is then taken for a complete one.

    Raises:
        ModelError: If the answer does not say why it ended: it was cut. May be retried.
    """
    raw = str((whole.provider_details or {}).get("finish_reason", ""))
    if whole.finish_reason is None and not raw:
        if ends_silently:
            return Finished("calls" if whole.tool_calls else "stop")
        raise ModelError("The answer was cut before its end.", retryable=True)
    return Finished(_REASONS.get(whole.finish_reason or "", "unknown"), detail=raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What it takes to reach one provider.

    Attributes:
        keys: Environment variables that may hold its key, the best first.
        library: What its client is imported as.
        base_url: Environment variable that may hold another address; empty if there is none.
        needs_key: Whether it answers no request without a key.
    """

    keys: tuple[str, ...]
    library: str
    base_url: str = ""
    needs_key: bool = True


_OPENAI = _Kind(keys=("OPENAI_API_KEY",), library="openai", base_url="OPENAI_BASE_URL")
_GOOGLE = _Kind(keys=("GOOGLE_API_KEY", "GEMINI_API_KEY"), library="google.genai")
MODEL_PROVIDERS: Mapping[str, _Kind] = {
    "openai": _OPENAI,
    "openai-chat": _OPENAI,
    "openai-responses": _OPENAI,
    "anthropic": _Kind(keys=("ANTHROPIC_API_KEY",), library="anthropic", base_url="ANTHROPIC_BASE_URL"),
    "google": _GOOGLE,
    "google-gla": _GOOGLE,
    "ollama": _Kind(keys=("OLLAMA_API_KEY",), library="openai", base_url="OLLAMA_BASE_URL", needs_key=False),
}
"""The providers by what stands before the colon."""


def provider_model(
    name: str,
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    timeout_s: float = 120.0,
    context_tokens: int | None = None,
    settings: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    ask_key: Callable[[str], str] | None = None,
) -> ProviderModel:
    """Return a model of a provider.

    The key comes from `api_key`, the environment, or a prompt that does not show it; it is kept in this
    object alone, and taken out of every error.

    Args:
        name: `"openai:gpt-5"`, `"anthropic:..."`, `"google:..."`, `"ollama:..."`. `openai:` with a `base_url`
            speaks Chat Completions, which is what other servers understand.
        api_key: The key.
        base_url: Another address.
        timeout_s: Longest wait for the next piece of an answer.
        context_tokens: How much the model can read; then long conversations are trimmed in time.
        settings: More for pydantic-ai's `ModelSettings`, such as `{"temperature": 0}`.
        environ: Where keys and addresses are looked up; the process's environment without it.
        ask_key: Asks a person for the key; `getpass` without it, where somebody can be asked.

    Raises:
        UsageError: If there is no such provider, its library is not installed, or there is no key.
    """
    provider, colon, model = name.partition(":")
    kind = MODEL_PROVIDERS.get(provider)
    if kind is None or not colon or not model:
        known = ", ".join(f"{one}:..." for one in MODEL_PROVIDERS)
        raise UsageError(f"There is no model {name!r}. Give one of {known}")
    for library in ("pydantic_ai", kind.library):
        if not _is_installed(library):
            advice = 'Install it with: pip install "aisotools[models]"'
            raise UsageError(f"{name} needs {library}, which is not installed. {advice}")
    environ = os.environ if environ is None else environ
    if base_url is None and kind.base_url:
        base_url = environ.get(kind.base_url)
    key = api_key or next((environ[one] for one in kind.keys if environ.get(one)), "")
    if not key and kind.needs_key:
        key = (ask_key or _ask_key)(f"Key for {name} ({kind.keys[0]}): ")
    if not key and kind.needs_key:
        raise UsageError(f"{name} needs a key. Set {kind.keys[0]}, or give api_key=.")
    if provider == "ollama":
        base_url = base_url or "http://localhost:11434/v1"
    return ProviderModel(
        name,
        lambda: _their_model(provider, model, key or "none", base_url),
        secret=key,
        context_tokens=context_tokens,
        settings={"timeout": timeout_s, "max_retries": 0, **(settings or {})},
    )


class ProviderModel:
    """Any model of pydantic-ai as a `Model`; see `provider_model`.

    Attributes:
        name: Such as `openai:gpt-5`.
        context_tokens: How many tokens it can read; None when that is not known.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], TheirModel],
        *,
        secret: str = "",
        context_tokens: int | None = None,
        settings: Mapping[str, Any] | None = None,
        ends_silently: bool = False,
    ) -> None:
        """Store what the first request needs; nothing is imported or connected yet.

        Args:
            name: How it is called in records.
            make: Returns the model of pydantic-ai; called at the first request.
            secret: Text that is removed from every error.
            context_tokens: How many tokens it can read.
            settings: For pydantic-ai's `ModelSettings`.
            ends_silently: Whether it never says why an answer ended, as pydantic-ai's own test models; any
                other that does not say so was cut.
        """
        self.name = name
        self.context_tokens = context_tokens
        self._make = make
        self._secret = secret
        self._settings = dict(settings or {})
        self._ends_silently = ends_silently
        self._model: TheirModel | None = None

    def __repr__(self) -> str:
        return f"<ProviderModel {self.name}>"

    def __getstate__(self) -> None:
        # Whatever pickles it would write the key down.
        raise TypeError(f"{self!r} holds a key and does not travel; make another one there.")

    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, instructions: str = ""
    ) -> AsyncIterator[ModelEvent]:
        """Send one request to the provider, without retries.

        Args:
            messages: The conversation, which ends with what is to be answered.
            tools: The tools that may be called.
            instructions: The system prompt.

        Yields:
            The pieces of the answer as they arrive, then the complete calls, the usage, and `Finished`.

        Raises:
            ModelError: If there is no answer, or it was cut; `retryable` says whether trying again may help.
        """
        from pydantic_ai import direct, models

        with self._translate_errors():
            if self._model is None:
                self._model = self._make()
            stream = direct.model_request_stream(
                self._model,
                to_theirs(messages, instructions),
                model_settings=self._settings,  # type: ignore[arg-type]  # a TypedDict with all keys optional
                model_request_parameters=models.ModelRequestParameters(
                    function_tools=[their_tool(tool) for tool in tools]
                ),
                instrument=False,
            )
            async with stream as pieces:
                calls: dict[int, int] = {}
                async for piece in pieces:
                    for event in to_ours(piece, calls):
                        yield event
                whole = pieces.get()
        for part in whole.parts:
            if part.part_kind == "tool-call":
                yield CallDone(our_call(part))
        yield usage_of(whole)
        yield finished(whole, ends_silently=self._ends_silently)

    async def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        model, self._model = self._model, None
        provider = getattr(model, "provider", None)
        if provider is not None:
            async with provider:
                pass  # leaving it closes its client

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise errors of pydantic_ai and of the connection as `ModelError`, without the key."""
        from pydantic_ai import exceptions as bad

        try:
            yield
        except bad.ModelAPIError as error:
            status = getattr(error, "status_code", None)
            refused = isinstance(error, bad.ModelRequestRejectedError | bad.ModelQuotaExceededError)
            passing = status is None or status in {408, 409, 425, 429} or status >= 500
            raise ModelError(
                self._describe_error(error, f"HTTP {status}" if status else "no connection"),
                retryable=passing and not refused,
                retry_after_s=error.retry_after,
            ) from None
        except (bad.AgentRunError, ValueError) as error:
            raise ModelError(
                self._describe_error(error, "an answer that cannot be read"), retryable=True
            ) from None
        except OSError as error:
            raise ModelError(self._describe_error(error, "no connection"), retryable=True) from None
        except (bad.UserError, ImportError) as error:
            raise ModelError(self._describe_error(error, "the request could not be made")) from None

    def _describe_error(self, error: Exception, what: str) -> str:
        # The cause is left behind on purpose: it holds request headers, and with them the key.
        text = redact_text(" ".join(str(error).split()) or type(error).__name__)
        if self._secret:
            text = text.replace(self._secret, "[key]")
        return f"{self.name} did not answer ({what}): {text[:500]}"


def _is_installed(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # its parent is not there either
        return False


def _ask_key(prompt: str) -> str:
    """Return the key that a person types, unseen; empty if nobody can be asked, or nothing is typed."""
    in_kernel = "ipykernel" in sys.modules
    if not (in_kernel or (sys.stdin is not None and sys.stdin.isatty())):
        return ""
    try:
        return getpass.getpass(prompt).strip()
    except (EOFError, NotImplementedError):  # a kernel whose front end takes no input
        return ""


def _their_model(provider: str, model: str, key: str, base_url: str | None) -> TheirModel:
    if provider in {"openai", "openai-chat", "openai-responses"}:
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        at_openai = OpenAIProvider(api_key=key, base_url=base_url)
        if provider == "openai-responses" or (provider == "openai" and base_url is None):
            return OpenAIResponsesModel(model, provider=at_openai)
        return OpenAIChatModel(model, provider=at_openai, profile=_finish_required())
    if provider == "ollama":
        from pydantic_ai.models.ollama import OllamaModel
        from pydantic_ai.providers.ollama import OllamaProvider

        at_ollama = OllamaProvider(api_key=key, base_url=base_url)
        return OllamaModel(model, provider=at_ollama, profile=_finish_required())
    if provider == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return AnthropicModel(model, provider=AnthropicProvider(api_key=key, base_url=base_url))
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    return GoogleModel(model, provider=GoogleProvider(api_key=key, base_url=base_url))


def _finish_required() -> Any:
    """Return the profile of pydantic-ai by which a stream without a reported end is an error: it was cut."""
    return {"openai_chat_streaming_requires_finish_reason": True}
