"""What a server sends, looked at before the protocol library sees it.

The library refuses a whole list of tools for one that is malformed, lets a request wait for an answer that
came under another number, and drops what cannot be parsed. Here each tool is checked by itself, and a request
whose answer cannot be read ends at once, with a sentence that says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import types
from mcp.shared.message import SessionMessage
from pydantic_core import from_json

from aisotools.core.threads import in_thread
from aisotools.integrations.mcp.tools import OfferedTool, Offers, check_offers
from aisotools.integrations.mcp.transport import Streams, UnreadableMessage

_log = logging.getLogger(__name__)

GRACE_S = 1.0
"""How long requests wait on after an answer that belongs to none of them: it may have been noise."""

_LIST_METHOD = "tools/list"
_ENDLESS_METHODS = frozenset({"subscriptions/listen"})
_END_CHARS = 300
_MAX_DIGITS = 15
_ID = re.compile(r'"id"\s*:\s*(?:"(\d{1,15})"|(\d{1,15})\b)')
_ANSWER_WORDS = ('"result"', '"error"')


class Screen:
    """Stands between the transport of one connection and the library.

    Attributes:
        offers: The tools of the lists that were read since `forget_offers`.
    """

    def __init__(self) -> None:
        """Start with nothing requested."""
        self.offers = Offers()
        self._waiting: dict[int, str] = {}
        self._last_id = -1
        self._incoming: Any = None
        self._verdicts = set[asyncio.Task[None]]()

    def forget_offers(self) -> None:
        """Forget the tools that were listed: they are listed anew."""
        self.offers = Offers()

    @asynccontextmanager
    async def between(self, streams: Streams) -> AsyncIterator[Streams]:
        """Return the streams for the library, connected to those of a transport for the context."""
        transport_reading, transport_writing = streams
        self._incoming, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        writing, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [
            asyncio.ensure_future(work)
            for work in (self._receive(transport_reading), self._send(outgoing, transport_writing))
        ]
        try:
            yield reading, writing
        finally:
            for task in (*tasks, *self._verdicts):
                task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([*tasks, *self._verdicts])
            for stream in (self._incoming, reading, writing, outgoing):
                stream.close()

    async def _send(self, outgoing: Any, transport_writing: Any) -> None:
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async with transport_writing:
                async for item in outgoing:
                    self._note_sent(item.message)
                    await transport_writing.send(item)

    def _note_sent(self, message: Any) -> None:
        if isinstance(message, types.JSONRPCRequest) and isinstance(message.id, int):
            self._last_id = max(self._last_id, message.id)
            if message.method not in _ENDLESS_METHODS:
                self._waiting[message.id] = message.method
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._waiting.pop(_number((message.params or {}).get("requestId")), None)

    async def _receive(self, transport_reading: Any) -> None:
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            try:
                async for item in transport_reading:
                    for screened in await self._screen(item):
                        await self._incoming.send(screened)
            finally:
                self._incoming.close()

    async def _screen(self, item: SessionMessage | Exception) -> Sequence[SessionMessage]:
        """Return what the library is to see instead of `item`."""
        if isinstance(item, Exception):
            return self._screen_unreadable(item)
        message = item.message
        if not isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            return [item]
        number = _number(message.id)
        method = self._waiting.pop(number, None)
        if method is None:
            if number > self._last_id or number < 0:
                self._doubt("it answered a request that was never made")
                return []
            return [item]  # late, or of a kind without an end; the library knows
        if method == _LIST_METHOD and isinstance(message, types.JSONRPCResponse):
            message.result = await self._screen_list(message.result)
        return [item]

    async def _screen_list(self, result: Mapping[str, Any]) -> dict[str, Any]:
        listed = result.get("tools")
        if not isinstance(listed, list):
            return dict(result)  # the library refuses it
        # In a thread: schemas may be large, and there may be many.
        sound = await in_thread(check_offers, listed, self.offers)
        return {**result, "tools": [_for_library(offer) for offer in sound]}

    def _screen_unreadable(self, error: Exception) -> Sequence[SessionMessage]:
        text = error.text if isinstance(error, UnreadableMessage) else b""
        number = find_id(text)
        if number in self._waiting:
            return [self._failure(number, "the answer to it cannot be read")]
        if text.lstrip()[:1] in {b"{", b"["} and looks_like_answer(text):
            self._doubt("an answer came that cannot be read")
        else:
            _log.debug("What is no message of MCP was skipped: %r", text[:_END_CHARS])
        return []

    def _doubt(self, reason: str) -> None:
        """End the requests that wait now, unless they are answered within `GRACE_S`."""
        # A task of a closed connection is cancelled; one verdict at a time is enough.
        if not self._waiting or self._verdicts:
            return
        task = asyncio.ensure_future(self._judge(frozenset(self._waiting), reason))
        self._verdicts.add(task)
        task.add_done_callback(self._verdicts.discard)

    async def _judge(self, numbers: frozenset[int], reason: str) -> None:
        await asyncio.sleep(GRACE_S)
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            for number in numbers:
                if number in self._waiting:
                    await self._incoming.send(self._failure(number, reason))

    def _failure(self, number: int, reason: str) -> SessionMessage:
        self._waiting.pop(number, None)
        error = types.ErrorData(code=types.PARSE_ERROR, message=reason)
        return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=number, error=error))


def _number(value: object) -> int:
    """Return the id of a request as a number; -1 for what is none of ours."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def find_id(text: bytes) -> int:
    """Return the id in a message that cannot be read; -1 if none can be made out."""
    with contextlib.suppress(ValueError):
        parsed = from_json(text)
        for entry in parsed if isinstance(parsed, list) else [parsed]:
            # With nothing but a number it is an answer without the rest; with other members, a line of a log.
            if isinstance(entry, Mapping) and (
                entry.keys() & {"result", "error"} or entry.keys() <= {"jsonrpc", "id"}
            ):
                return _number(entry.get("id"))
        return -1
    # Broken JSON. Near its ends only: further in, an "id" may be one of the data.
    ends = (text[:_END_CHARS] + b"\n" + text[_END_CHARS:][-_END_CHARS:]).decode("utf-8", "replace")
    found = _ID.search(ends) if looks_like_answer(text) else None
    return int(found[1] or found[2]) if found else -1


def looks_like_answer(text: bytes) -> bool:
    """Return whether a text that cannot be read was meant as an answer: by its words, or cut before them."""
    head = text[:_END_CHARS].decode("utf-8", "replace")
    return any(word in head for word in _ANSWER_WORDS) or ('"jsonrpc"' in head and '"method"' not in head)


def _for_library(offer: OfferedTool) -> dict[str, Any]:
    # What the library does not see, it cannot refuse the whole list for. It needs to see the properties: they
    # may say that an argument is sent in a header, too.
    properties = offer.schema.get("properties", {})
    schema = {
        "type": "object",
        "properties": {name: part for name, part in properties.items() if isinstance(part, Mapping)},
    }
    return {"name": offer.name, "inputSchema": schema}
