"""What every bridge needs: making a call from any thread and loop, and what a model gets of its result."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from aisotools.core.exceptions import ToolError, UnknownTool, UsageError
from aisotools.core.protocols import Approver
from aisotools.core.types import Decision, Json, ToolCall, ToolResult
from aisotools.session.session import Session

Asking = Literal["session", "framework"]
"""Who asks a person: the session, by its card or prompt; or the framework, in its own way."""

_IMAGE_TYPES = ("image/png", "image/jpeg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A picture in a result.

    Attributes:
        mime: Its type.
        data: Its bytes, of a stranger.
    """

    mime: str
    data: bytes

    @property
    def base64(self) -> str:
        """The bytes as text."""
        return base64.b64encode(self.data).decode()


def check_asking(asking: str) -> None:
    """Raise if nobody asks that way.

    Raises:
        UsageError: Naming what there is.
    """
    if asking not in {"session", "framework"}:
        raise UsageError(f"asking={asking!r}: use 'session' (our card or prompt) or 'framework' (theirs).")


async def call(
    session: Session,
    name: str,
    arguments: Mapping[str, Json],
    *,
    call_id: str | None = None,
    approver: Approver | None = None,
) -> ToolResult:
    """Make a model's call on the session's own loop, from whatever loop awaits it.

    A framework may make the same call twice after an interruption; then it gets an id of its own.
    """
    options: dict[str, Any] = {
        "origin": "model",
        "call_id": None if call_id is None or session.knows(call_id) else call_id,
        "approver": approver,
    }
    if session.loop in {None, asyncio.get_running_loop()}:
        return await session.call(name, arguments, **options)
    there = asyncio.run_coroutine_threadsafe(session.call(name, arguments, **options), session.loop)
    return await asyncio.wrap_future(there)


def call_blocking(session: Session, name: str, arguments: Mapping[str, Json], **options: Any) -> ToolResult:
    """Make a model's call from a thread that is not the session's own, and block until its result is there.

    Raises:
        UsageError: If this is the session's own thread, or the session is not open; the message says what to
            do.
    """
    return session.call_threadsafe(name, arguments, origin="model", **options)


def needs_asking(session: Session, name: str, arguments: Mapping[str, Json]) -> tuple[str, ...] | None:
    """Why somebody would be asked about a call; None when nobody would, or it is no call at all."""
    try:
        ticket = session.explain(ToolCall("explained", name, arguments, origin="model"))
    except (ToolError, UnknownTool):
        return None  # the call itself says what is wrong, to the model
    if ticket.evaluation.decision is not Decision.ASK or session.grants.find(ticket) is not None:
        return None
    return tuple(ticket.evaluation.reasons)


def images(result: ToolResult) -> Iterator[Image]:
    """The pictures of a result, its own and those that were displayed beside it."""
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
            break
