"""What a server sends, looked at before the protocol library sees it.

The library refuses a whole list of tools for one that is malformed, lets a request wait for an answer that
came under another number, and drops what cannot be parsed. Here each tool is checked by itself, and a request
whose answer cannot be read ends at once, with a sentence that says so. The result of a call goes past the
library to who asked for it, and what else has many parts is refused: the library would look at each part
several times. Requests of a server are answered here: the library starts a task for each, however many there
are. A notice is put together anew from what is known of its kind; for one that is malformed the library would
log a page.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import anyio
from mcp import types
from mcp.shared.message import SessionMessage
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY

from aisotools.core.concurrency import in_steps
from aisotools.core.threads import in_thread
from aisotools.integrations.mcp.messages import (
    MAX_SMALL_CHARS,
    MAX_SMALL_PARTS,
    Inbox,
    Streams,
    UnreadableMessage,
    find_id,
    has_few_chars,
    has_few_parts,
    looks_like_answer,
    request_number,
)
from aisotools.integrations.mcp.tools import Offers, check_offers
from aisotools.sandbox.parsing import release_steps

_log = logging.getLogger(__name__)

GRACE_S = 1.0
"""How long requests wait on after an answer that belongs to none of them: it may have been noise."""

MAX_UNANSWERED = 32
"""How many requests of a server may wait for their answers to be taken. Until then no more is read of it."""
ANSWER_TIMEOUT_S = 10.0
"""How long no more is read of a server that takes no answers. Then the connection ends."""

_LIST_METHOD = "tools/list"
_CALL_METHOD = "tools/call"
_PROGRESS_METHOD = "notifications/progress"
_CANCELLED_METHOD = "notifications/cancelled"
_ACKNOWLEDGED_METHOD = "notifications/subscriptions/acknowledged"
_NEEDED_NOTICES = frozenset({_CANCELLED_METHOD, _ACKNOWLEDGED_METHOD, "notifications/tools/list_changed"})
"""Notices that something here waits for, besides those of progress. The library sees no others."""
_CALL_KEY = "aisotools/call"
"""Key in `_meta` of a call, by which its request is recognized. It is taken out before the call is sent."""
_PAGE_KEYS = ("nextCursor", "ttlMs", "cacheScope", "resultType")
"""What the library needs to know of a list besides the tools."""
_MAX_PAGE_VALUE_CHARS = 8_192
_HEADER_KEY = "x-mcp-header"
_MAX_HEADER_SCHEMA_CHARS = 1 << 16
"""Characters of the schemas with arguments that are sent in headers, in one list. The library looks through
them in one go."""
_ENDLESS_METHODS = frozenset({"subscriptions/listen"})
_END_CHARS = 300
_MAX_ID_CHARS = 200
_MAX_METHOD_CHARS = 200
_MAX_MESSAGE_CHARS = 2_000
_MAX_NUMBER = 1e100  # what is larger does not fit into the numbers that the library converts it to
_MAX_FILTERS = 16


@dataclass(slots=True)
class AwaitedResult:
    """The result of one call, which does not go through the library.

    Attributes:
        meta: To be sent with the call, as `_meta`.
        value: The result as the server sent it; None until then.
        number: The id of the request; -1 until it is sent.
    """

    meta: dict[str, str]
    value: dict[str, Any] | None = None
    number: int = -1


class Screen:
    """Stands between the transport of one connection and the library.

    Attributes:
        offers: The tools of the lists that were read since `forget_offers`.
        dropped: How many notices and requests were dropped since they were malformed.
    """

    def __init__(self, inbox: Inbox, on_end: Callable[[str], object] = lambda _: None) -> None:
        """Start with nothing requested.

        Args:
            inbox: What the transport reads messages with.
            on_end: Called with the reason when the connection ends because of what the server sent.
        """
        self.offers = Offers()
        self.dropped = 0
        self._on_end = on_end
        self._answers: Any = None
        self._inbox = inbox
        self._awaited: dict[str, AwaitedResult] = {}
        self._calls: dict[int, AwaitedResult] = {}
        self._waiting: dict[int, str] = {}
        self._last_id = -1
        self._incoming: Any = None
        self._verdicts = set[asyncio.Task[None]]()

    def forget_offers(self) -> None:
        """Forget the tools that were listed: they are listed anew."""
        self.offers = Offers()

    @contextmanager
    def awaiting(self) -> Iterator[AwaitedResult]:
        """Inside the `with` block, make one call with the `meta` of what this gives: it gets the result."""
        token = secrets.token_hex(8)
        awaited = self._awaited[token] = AwaitedResult(meta={_CALL_KEY: token})
        try:
            yield awaited
        finally:
            # Also if the call was cancelled: a result that comes later is not kept.
            del self._awaited[token]
            self._calls.pop(awaited.number, None)

    @asynccontextmanager
    async def between(self, streams: Streams) -> AsyncIterator[Streams]:
        """Return the streams for the library, connected to those of a transport for the context."""
        transport_reading, transport_writing = streams
        self._incoming, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        writing, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        self._answers, answers = anyio.create_memory_object_stream[SessionMessage](MAX_UNANSWERED)
        tasks = [
            asyncio.ensure_future(work)
            for work in (
                self._receive(transport_reading),
                self._send(outgoing, transport_writing),
                self._send_answers(answers, transport_writing),
            )
        ]
        try:
            yield reading, writing
        finally:
            for task in (*tasks, *self._verdicts):
                task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([*tasks, *self._verdicts])
            for stream in (self._incoming, reading, writing, outgoing, self._answers, answers):
                stream.close()
            if self.dropped:
                _log.info("%d malformed notices and requests of an MCP server were dropped.", self.dropped)

    async def _send(self, outgoing: Any, transport_writing: Any) -> None:
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async with transport_writing:
                async for item in outgoing:
                    self._note_sent(item.message)
                    await transport_writing.send(item)

    async def _send_answers(self, answers: Any, transport_writing: Any) -> None:
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for item in answers:
                await transport_writing.send(item)

    async def _answer(self, request: types.JSONRPCRequest) -> None:
        """Answer a request of the server: there is nothing that one may ask for.

        Raises:
            TimeoutError: If it has taken none of `MAX_UNANSWERED` answers for `ANSWER_TIMEOUT_S`.
        """
        if not is_short_id(request.id) or len(request.method) > _MAX_METHOD_CHARS:
            self.dropped += 1
            return
        answer: types.JSONRPCResponse | types.JSONRPCError
        if request.method == "ping":
            answer = types.JSONRPCResponse(jsonrpc="2.0", id=request.id, result={})
        else:
            error = types.ErrorData(code=types.METHOD_NOT_FOUND, message="This client answers `ping` only.")
            answer = types.JSONRPCError(jsonrpc="2.0", id=request.id, error=error)
        with anyio.fail_after(ANSWER_TIMEOUT_S):
            await self._answers.send(SessionMessage(answer))

    def _note_sent(self, message: Any) -> None:
        if isinstance(message, types.JSONRPCRequest) and isinstance(message.id, int):
            self._last_id = max(self._last_id, message.id)
            if message.method not in _ENDLESS_METHODS:
                self._waiting[message.id] = message.method
            self._note_call(message)
        elif isinstance(message, types.JSONRPCNotification) and message.method == _CANCELLED_METHOD:
            self._waiting.pop(request_number((message.params or {}).get("requestId")), None)

    def _note_call(self, request: types.JSONRPCRequest) -> None:
        meta = (request.params or {}).get("_meta")
        token = meta.pop(_CALL_KEY, None) if isinstance(meta, dict) else None
        awaited = self._awaited.get(token) if isinstance(token, str) else None
        if awaited is not None:
            awaited.number = request_number(request.id)
            self._calls[awaited.number] = awaited

    async def _receive(self, transport_reading: Any) -> None:
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            try:
                async for item in transport_reading:
                    for screened in await self._screen(item):
                        await self._incoming.send(screened)
                    del item  # it may be megabytes, and the next one may be long in coming
            except TimeoutError:
                self._on_end(f"it sent more than {MAX_UNANSWERED} requests and takes no answers")
            finally:
                self._incoming.close()

    async def _screen(self, item: SessionMessage | Exception) -> Sequence[SessionMessage]:
        """Return what the library is to see instead of `item`."""
        if isinstance(item, Exception):
            return self._screen_unreadable(item)
        message = item.message
        if isinstance(message, types.JSONRPCRequest):
            await self._answer(message)
            return []
        if isinstance(message, types.JSONRPCNotification):
            return self._screen_notice(message)
        number = request_number(message.id)
        method = self._waiting.pop(number, None)
        if isinstance(message, types.JSONRPCResponse):
            result = self._inbox.take(message.result)
            message.result = {}
            if method == _CALL_METHOD:
                message.result = await self._screen_call(number, result)
            elif method == _LIST_METHOD:
                message.result = await self._screen_list(result)
            elif not (excess := _excess(result)):
                message.result = result
            else:
                await in_steps(release_steps([result]))
                if method is not None:
                    return [self._failure(number, f"the answer to {method} has more than {excess}")]
        if method is None and (number > self._last_id or number < 0):
            self._doubt("it answered a request that was never made")
            return []
        return [item]  # without a method it is late, or of a kind without an end; the library knows

    def _screen_notice(self, notice: types.JSONRPCNotification) -> Sequence[SessionMessage]:
        params = notice.params or {}
        needed = needed_params(notice.method, params)
        if needed is None:
            self.dropped += 1
            return []
        if notice.method == _PROGRESS_METHOD:
            if request_number(params["progressToken"]) not in self._waiting:
                return []  # nobody waits for it, or no longer
        elif notice.method not in _NEEDED_NOTICES:
            return []
        notice = types.JSONRPCNotification(jsonrpc="2.0", method=notice.method, params=needed)
        return [SessionMessage(notice)]

    async def _screen_call(self, number: int, result: dict[str, Any]) -> dict[str, Any]:
        awaited = self._calls.pop(number, None)
        if awaited is None:
            await in_steps(release_steps([result]))
        else:
            awaited.value = result
        return {"content": [], **({"resultType": "complete"} if "resultType" in result else {})}

    async def _screen_list(self, result: dict[str, Any]) -> dict[str, Any]:
        page = {key: result[key] for key in _PAGE_KEYS if isinstance(result.get(key), str | int)}
        for key in [key for key, value in page.items() if not _is_short(value)]:
            # A cursor is sent back to the server, and these have a form that the library checks.
            del page[key]
            self.offers.refused[f"(with a long {key})"] = (
                f"{key} has more than {_MAX_PAGE_VALUE_CHARS:,} characters, and is not used"
            )
        listed = result.pop("tools", None)
        await in_steps(release_steps([result]))
        if isinstance(listed, list):
            # In a thread: schemas may be large, and there may be many.
            page["tools"] = await in_thread(_list_for_library, listed, self.offers)
        else:
            page["tools"] = ""  # the library refuses it
        return page

    def _screen_unreadable(self, error: Exception) -> Sequence[SessionMessage]:
        text, because = b"", ""
        if isinstance(error, UnreadableMessage):
            text, because = error.text, f": {error.reason}" if error.reason else ""
        number = find_id(text)
        if number in self._waiting:
            return [self._failure(number, f"the answer to it cannot be read{because}")]
        if text[:_END_CHARS].lstrip()[:1] in {b"{", b"["} and looks_like_answer(text):
            self._doubt(f"an answer came that cannot be read{because}")
        else:
            _log.debug("What is not a message of MCP was skipped: %r", text[:_END_CHARS])
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
        self._calls.pop(number, None)
        error = types.ErrorData(code=types.PARSE_ERROR, message=reason)
        return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=number, error=error))


def needed_params(method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what the library needs to see of the parameters of a notice; None if they are malformed."""
    meta, needed = params.get("_meta"), dict[str, Any]()
    subscription = meta.get(SUBSCRIPTION_ID_META_KEY) if isinstance(meta, Mapping) else None
    if is_short_id(subscription):
        needed["_meta"] = {SUBSCRIPTION_ID_META_KEY: subscription}
    if method == _PROGRESS_METHOD:
        message = params.get("message")
        numbers = {key: params[key] for key in ("progress", "total") if params.get(key) is not None}
        if "progress" not in numbers or not all(map(_is_plain_number, numbers.values())):
            return None
        if not is_short_id(params.get("progressToken")) or not isinstance(message, str | None):
            return None
        needed |= {"progressToken": params["progressToken"], **numbers}
        if message is not None:
            needed["message"] = message[:_MAX_MESSAGE_CHARS]
    elif method == _CANCELLED_METHOD:
        if not is_short_id(params.get("requestId")):
            return None
        needed["requestId"] = params["requestId"]
    elif method == _ACKNOWLEDGED_METHOD:
        filters = params.get("notifications")
        if not isinstance(filters, Mapping) or len(filters) > _MAX_FILTERS:
            return None
        # Only changes of tools are ever asked for.
        needed["notifications"] = {key: value for key, value in filters.items() if isinstance(value, bool)}
    return needed


def _excess(result: dict[str, Any]) -> str:
    """Return what the library may not see so much of as `result` has; empty if it may."""
    if not has_few_parts(result):
        return f"{MAX_SMALL_PARTS:,} parts"
    return "" if has_few_chars(result) else f"{MAX_SMALL_CHARS:,} characters"


def _is_short(value: str | int) -> bool:
    return len(value) <= _MAX_PAGE_VALUE_CHARS if isinstance(value, str) else abs(value) < _MAX_NUMBER


def _is_plain_number(value: object) -> bool:
    return type(value) in {int, float} and abs(cast("float", value)) < _MAX_NUMBER


def is_short_id(value: object) -> bool:
    """Return whether a value may be the id of a request or a token of progress."""
    if isinstance(value, str):
        return len(value) <= _MAX_ID_CHARS
    return type(value) is int and abs(value) < _MAX_NUMBER


def _list_for_library(listed: Sequence[object], offers: Offers) -> list[dict[str, Any]]:
    """Add the tools of a list to `offers`, and return of those that are sound what the library needs to see.

    What it does not see, it cannot refuse the whole list for. It needs to see properties that say that an
    argument is sent in a header, too. A tool for which there is no room is left out, and so not accepted.
    """
    chars_left = _MAX_HEADER_SCHEMA_CHARS
    shown: list[dict[str, Any]] = []
    for offer in check_offers(listed, offers):
        properties = offer.schema.get("properties", {})
        text = json.dumps(properties)
        if _HEADER_KEY in text:
            chars_left -= len(text)
            if chars_left < 0:
                continue
        else:
            properties = {}
        schema = {
            "type": "object",
            "properties": {name: part for name, part in properties.items() if isinstance(part, Mapping)},
        }
        shown.append({"name": offer.name, "inputSchema": schema})
    return shown
