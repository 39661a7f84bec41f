"""Shared by the integrations: calls from any thread or loop, declarations in metadata, images of a result."""

from __future__ import annotations

import asyncio
import base64
import binascii
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from aisotools.core.exceptions import ToolError, UnknownTool, UsageError
from aisotools.core.protocols import Approver
from aisotools.core.types import Decision, Effect, Json, ToolCall, ToolResult
from aisotools.policy.prompts import visible
from aisotools.session.session import Session
from aisotools.tools.validation import schema_error, short_repr

Asking = Literal["session", "framework"]
"""Who asks the user for approval: the session, by its card or prompt, or the framework."""

EFFECT_KEY = "effect"
"""Key of a tool's effect in the metadata of other frameworks."""

_HINT_KEYS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
"""Keys under which adapters of other frameworks put what an MCP server says of a tool."""

_IMAGE_TYPES = ("image/png", "image/jpeg")

_TEXT_KEYS = frozenset({"description", "title", "$comment"})
_DATA_KEYS = frozenset({"enum", "const", "default"})
_NAMING_KEYS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LINE_CHARS = "\n\r\t"
_MAX_QUOTED_CHARS = 60
_CHECKED_CHARS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image in a result.

    Attributes:
        mime: Media type.
        data: The bytes; untrusted.
    """

    mime: str
    data: bytes

    @property
    def base64(self) -> str:
        """The bytes in base64."""
        return base64.b64encode(self.data).decode()


def check_asking(asking: str) -> None:
    """Check an `asking` argument.

    Raises:
        UsageError: If it is neither `session` nor `framework`.
    """
    if asking not in {"session", "framework"}:
        raise UsageError(f"asking={asking!r}: use 'session' (our card or prompt) or 'framework' (theirs).")


async def call_session_tool(
    session: Session,
    name: str,
    arguments: Mapping[str, Json],
    *,
    call_id: str | None = None,
    approver: Approver | None = None,
) -> ToolResult:
    """Make a model's call from any event loop; it runs on the session's own."""
    options: dict[str, Any] = {
        "origin": "model",
        # A framework may repeat a call after an interruption. The repetition gets a new id.
        "call_id": None if call_id is None or session.knows(call_id) else call_id,
        "approver": approver,
    }
    if session.loop in {None, asyncio.get_running_loop()}:
        return await session.call(name, arguments, **options)
    future = asyncio.run_coroutine_threadsafe(session.call(name, arguments, **options), session.loop)
    return await asyncio.wrap_future(future)


def call_blocking(session: Session, name: str, arguments: Mapping[str, Json], **options: Any) -> ToolResult:
    """Make a model's call from another thread than the session's, and block until it has a result.

    Raises:
        UsageError: If this is the session's thread, or the session is not open.
    """
    return session.call_threadsafe(name, arguments, origin="model", **options)


def needs_asking(session: Session, name: str, arguments: Mapping[str, Json]) -> tuple[str, ...] | None:
    """Return the reasons for which a call needs approval; None if it needs none or is malformed."""
    try:
        prepared = session.explain(ToolCall("explained", name, arguments, origin="model"))
    except (ToolError, UnknownTool):
        return None  # the call itself reports the error to the model
    if prepared.evaluation.decision is not Decision.ASK or session.grants.find(prepared) is not None:
        return None
    return tuple(prepared.evaluation.reasons)


def check_schema(tool: str, schema: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the schema of another framework's tool, which may come from a stranger, if it can be read.

    Its regular expressions do not count: the framework checks them itself.

    Raises:
        UsageError: If it is broken, nested or large beyond measure, or has characters that nobody sees.
    """
    flaw = schema_error(schema, with_patterns=False)
    try:
        cleaned = {} if flaw else clean_schema(schema)
    except ValueError as error:
        flaw = str(error)
    if flaw:
        raise UsageError(f"The tool {tool!r} cannot be taken from its framework: {flaw}.")
    return schema if cleaned == schema else cleaned


def clean_schema(schema: Mapping[str, Json], *, max_text_chars: int | None = None) -> dict[str, Any]:
    """Return a schema in which every character can be seen.

    Texts for people, and examples, are escaped. What a model has to send as it stands cannot be: names,
    values, patterns.

    Args:
        schema: The schema, of bounded depth.
        max_text_chars: How long texts for people may be; None for any length.

    Raises:
        ValueError: If another character cannot be seen; the message is a clause about the tool.
    """
    cleaned: dict[str, Any] = _clean(schema, max_text_chars, "schema")
    return cleaned


def _clean(node: Any, max_chars: int | None, kind: Literal["schema", "names", "data"]) -> Any:
    """Return a part of a schema: a schema, an object whose keys are names of schemas, or values."""
    if isinstance(node, str):
        _check_visible(node, "the value", _LINE_CHARS)
        return node
    if isinstance(node, list | tuple):
        return [_clean(item, max_chars, kind) for item in node]
    if not isinstance(node, Mapping):
        return node
    cleaned: dict[str, Any] = {}
    for key, value in node.items():
        name = str(key)
        _check_visible(name, "the name", "")
        if kind != "schema":
            cleaned[name] = _clean(value, max_chars, "schema" if kind == "names" else "data")
        elif name in _TEXT_KEYS and isinstance(value, str):
            cleaned[name] = clean_text(value, max_chars)
        elif name == "examples":
            cleaned[name] = _escape(value)
        elif name in _DATA_KEYS:
            cleaned[name] = _clean(value, max_chars, "data")
        else:
            cleaned[name] = _clean(value, max_chars, "names" if name in _NAMING_KEYS else "schema")
    return cleaned


def _escape(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list | tuple):
        return [_escape(item) for item in value]
    if isinstance(value, Mapping):
        return {visible(str(key)): _escape(item) for key, item in value.items()}
    return value


def clean_text(text: str, max_chars: int | None) -> str:
    """Return a text for people with every character made visible, cut if it is longer than `max_chars`."""
    if max_chars is None:
        return visible(text)
    cleaned = visible(text[: max_chars + 1])
    return cleaned if len(cleaned) <= max_chars else cleaned[: max_chars - 3] + "..."


def _check_visible(text: str, what: str, keep: str) -> None:
    """Raise a `ValueError` if a text has a character that nobody sees; blanks of any width are seen."""
    # In pieces, between which other threads run.
    for at in range(0, len(text), _CHECKED_CHARS):
        piece = text[at : at + _CHECKED_CHARS]
        if visible(piece, keep) == piece:
            continue
        hidden = [char for char in set(piece) if char not in keep and unicodedata.category(char) != "Zs"]
        found = next((char for char in hidden if visible(char, keep) != char), None)
        if found is None:
            continue
        quoted = visible(text[:_MAX_QUOTED_CHARS], "")[:_MAX_QUOTED_CHARS]
        raise ValueError(
            f"its schema has U+{ord(found):04X}, which nobody sees, in {what} '{quoted}'; a model would have "
            "to send what no card can show"
        )


def find_effect(name: str, effect: Effect | str | None, metadata: object) -> Effect | None:
    """Return the declared effect of another framework's tool: `effect`, or else what its metadata declares.

    In metadata only a member of `Effect` is a declaration: that takes code of the program. A text there is a
    hint: adapters put into metadata what a server says of its tools, and no server can send a member.

    Raises:
        UsageError: If `effect` is not an effect.
    """
    if effect is not None:
        try:
            return Effect(effect)
        except ValueError:
            known = ", ".join(known.value for known in Effect)
            raise UsageError(
                f"Tool {name}: effect={short_repr(effect)} is not an effect. Use one of {known}."
            ) from None
    found: object = metadata.get(EFFECT_KEY) if isinstance(metadata, Mapping) else None
    return found if type(found) is Effect else None


def find_hints(metadata: object) -> tuple[str, ...]:
    """Return what the metadata of another framework's tool says of its effect that is not a declaration."""
    if not isinstance(metadata, Mapping):
        return ()
    return tuple(
        f"{key}={short_repr(metadata[key])}"
        for key in (EFFECT_KEY, *_HINT_KEYS)
        if key in metadata and type(metadata[key]) is not Effect
    )


def images(result: ToolResult) -> Iterator[Image]:
    """Yield the images of a result and of what was displayed during the call, one for each bundle."""
    displayed = result.metadata.get("displays")
    bundles = [result.data, *(displayed if isinstance(displayed, list | tuple) else ())]
    for bundle in bundles:
        if not isinstance(bundle, Mapping):
            continue
        for mime in _IMAGE_TYPES:
            data = bundle.get(mime)
            if not isinstance(data, str):
                continue
            try:
                yield Image(mime=mime, data=base64.b64decode(data, validate=False))
            except (binascii.Error, ValueError):
                continue
            break  # the other types show the same image
