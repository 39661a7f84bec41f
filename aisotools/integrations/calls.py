"""Shared by the integrations: calls from any thread or loop, declarations in metadata, images of a result."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from aisotools.core.exceptions import ToolError, UnknownTool, UsageError
from aisotools.core.protocols import Approver
from aisotools.core.types import Decision, Effect, Json, ToolCall, ToolResult
from aisotools.session.session import Session
from aisotools.tools.validation import schema_error, short_repr

Asking = Literal["session", "framework"]
"""Who asks the user for approval: the session, by its card or prompt, or the framework."""

EFFECT_KEY = "effect"
"""Key of a tool's effect in the metadata of other frameworks."""

_HINT_KEYS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
"""Keys under which adapters of other frameworks put what an MCP server says of a tool."""

_IMAGE_TYPES = ("image/png", "image/jpeg")


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
        UsageError: If it is broken, or nested or large beyond measure.
    """
    flaw = schema_error(schema, with_patterns=False)
    if flaw:
        raise UsageError(f"The tool {tool!r} cannot be taken from its framework: {flaw}.")
    return schema


def find_effect(name: str, effect: Effect | str | None, metadata: object) -> Effect | None:
    """Return the declared effect of another framework's tool: `effect`, or else what its metadata declares.

    In metadata only a member of `Effect` is a declaration: that takes code of the program. A text there is a
    hint: adapters put into metadata what a server says of its tools, and no server can send a member.

    Raises:
        UsageError: If `effect` is no effect.
    """
    if effect is not None:
        try:
            return Effect(effect)
        except ValueError:
            known = ", ".join(known.value for known in Effect)
            raise UsageError(
                f"Tool {name}: effect={short_repr(effect)} is no effect. Use one of {known}."
            ) from None
    found: object = metadata.get(EFFECT_KEY) if isinstance(metadata, Mapping) else None
    return found if type(found) is Effect else None


def find_hints(metadata: object) -> tuple[str, ...]:
    """Return what the metadata of another framework's tool says of its effect that is no declaration."""
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
