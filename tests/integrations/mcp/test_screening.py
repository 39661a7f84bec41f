"""What a server sends, before the library sees it: lists of tools, and answers that are none."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio
import pytest

pytest.importorskip("mcp")

from mcp import types
from mcp.shared.message import SessionMessage

from aisotools.integrations.mcp.api import add_mcp_server
from aisotools.integrations.mcp.screening import Screen, find_id, looks_like_answer
from aisotools.integrations.mcp.transport import UnreadableMessage
from aisotools.policy.approvers import AllowAll
from aisotools.testing.fakes import MockTool
from tests.conftest import OpenSession
from tests.waiting import HANG_S


class Wire:
    """The end of a transport, as two queues.

    Attributes:
        sent: What the library sent.
        came: What comes from the server.
    """

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.came: asyncio.Queue[Any] = asyncio.Queue()

    async def send(self, item: Any) -> None:
        await self.sent.put(item)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """There is nothing to close."""

    def __aiter__(self) -> Wire:
        return self

    async def __anext__(self) -> Any:
        item = await self.came.get()
        if item is None:
            raise StopAsyncIteration
        return item


@asynccontextmanager
async def screened() -> AsyncIterator[tuple[Screen, Wire, Any, Any]]:
    screen, wire = Screen(), Wire()
    async with screen.between((wire, wire)) as (reading, writing):
        yield screen, wire, reading, writing


async def request(writing: Any, wire: Wire, number: int, method: str = "tools/call") -> None:
    await writing.send(SessionMessage(types.JSONRPCRequest(jsonrpc="2.0", id=number, method=method)))
    await asyncio.wait_for(wire.sent.get(), HANG_S)


def response(number: Any, result: Mapping[str, Any] | None = None) -> SessionMessage:
    return SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=number, result=dict(result or {})))


async def next_message(reading: Any) -> Any:
    return (await asyncio.wait_for(reading.receive(), HANG_S)).message


async def test_answers_pass() -> None:
    async with screened() as (_, wire, reading, writing):
        await request(writing, wire, 1)
        await wire.came.put(response(1, {"content": []}))
        assert (await next_message(reading)).result == {"content": []}


async def test_an_unreadable_answer_fails_the_request_whose_number_it_has() -> None:
    async with screened() as (_, wire, reading, writing):
        for number in (1, 2):
            await request(writing, wire, number)
        await wire.came.put(UnreadableMessage(b'{"jsonrpc":"2.0","id":2,"result":{"x'))
        failed = await next_message(reading)
        assert (failed.id, failed.error.code) == (2, types.PARSE_ERROR)
        await wire.came.put(response(1))
        assert (await next_message(reading)).id == 1


async def test_doubt_ends_what_waited_and_not_what_came_later() -> None:
    async with screened() as (_, wire, reading, writing):
        await request(writing, wire, 1)
        await request(writing, wire, 2, "subscriptions/listen")
        await wire.came.put(response(99))
        await wire.came.put(response(7))  # one verdict at a time
        await request(writing, wire, 3)
        failed = await next_message(reading)
        assert (failed.id, failed.error.message) == (1, "it answered a request that was never made")
        await wire.came.put(response(3))
        assert (await next_message(reading)).id == 3
        await wire.came.put(response(2))
        assert (await next_message(reading)).id == 2


async def test_late_answers_raise_no_doubt() -> None:
    async with screened() as (screen, wire, reading, writing):
        await request(writing, wire, 1)
        cancelled = types.JSONRPCNotification(
            jsonrpc="2.0", method="notifications/cancelled", params={"requestId": 1}
        )
        await writing.send(SessionMessage(cancelled))
        await request(writing, wire, 2)
        await wire.came.put(response(1))
        assert (await next_message(reading)).id == 1
        assert screen._verdicts == set()


async def test_noise_is_skipped() -> None:
    async with screened() as (screen, wire, reading, writing):
        await request(writing, wire, 1)
        for noise in (b"starting\n", b"{}", b"[]", b'{"level":30,"id":1,"msg":"x"}', b"[1,2]", b"\xff\xfe"):
            await wire.came.put(UnreadableMessage(noise))
        await wire.came.put(ValueError("of the library"))
        await wire.came.put(response(1))
        assert (await next_message(reading)).id == 1
        assert screen._verdicts == set()


async def test_only_sound_tools_reach_the_library() -> None:
    async with screened() as (screen, wire, reading, writing):
        await request(writing, wire, 1, "tools/list")
        good = {"name": "a", "description": "d", "inputSchema": {"type": "object", "properties": {"x": True}}}
        tools = [good, {"name": "b", "inputSchema": {"type": "array"}}, 5]
        await wire.came.put(response(1, {"tools": tools, "nextCursor": "n"}))
        result = (await next_message(reading)).result
        assert result["nextCursor"] == "n"
        assert result["tools"] == [{"name": "a", "inputSchema": {"type": "object", "properties": {}}}]
        assert [offer.schema for offer in screen.offers.sound] == [good["inputSchema"]]
        assert set(screen.offers.refused) == {"b", "(without a name)"}
        screen.forget_offers()
        assert screen.offers.sound == []


async def test_the_end_of_the_transport_is_the_end_for_the_library() -> None:
    async with screened() as (_, wire, reading, _writing):
        await wire.came.put(None)
        with pytest.raises(anyio.EndOfStream):
            await asyncio.wait_for(reading.receive(), HANG_S)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b'{"id":5,"result":1}', 5),
        (b'{"id":"5","error":1}', 5),
        (b'{"id":5}', 5),
        (b'{"jsonrpc":"2.0","id":5}', 5),
        (b'{"jsonrpc":"2.0","id":5,', 5),
        (b'{"jsonrpc":"2.0","id":5', 5),
        (b'{"jsonrpc":"2.0","id":5,"resu', 5),
        (b'{"jsonrpc":"2.0","id":5,"result"', 5),
        (b'{"jsonrpc":"2.0","id":5,"method":"x"', -1),
        (b'{"level":30,"id":5,"msg":"x"}', -1),
        (b'{"level":30,"id":5,"msg":"x', -1),
        (b'{"id":true,"result":1}', -1),
        (b'{"id":5.5,"result":1}', -1),
        (b'{"id":5,"result":{', 5),
        (b'{"result":{' + b"x" * 5_000 + b',"id":6}', 6),
        (b'{"result":{' + b"x" * 5_000 + b',"id":6' + b"x" * 5_000, -1),
        (b'{"method":"a","id":5', -1),
        (b'{"id":' + b"9" * 400 + b',"result":{', -1),
        (b"", -1),
    ],
)
def test_the_number_of_an_unreadable_answer(text: bytes, number: int) -> None:
    assert find_id(text) == number


def test_answers_are_told_from_noise() -> None:
    assert looks_like_answer(b'{"id": 1, "result": {')
    assert looks_like_answer(b'{"jsonrpc":"2.0","res')
    assert not looks_like_answer(b'{"jsonrpc":"2.0","method":"ping"')
    assert not looks_like_answer(b'{"level": 1, "msg": "x"}')


# ---- over HTTP


ANSWERS: Mapping[str, tuple[str, bytes]] = {
    "no json": ("application/json", b"<html>error</html>"),
    "cut": ("application/json", b'{"jsonrpc":"2.0","id":%d,"result":{"con'),
    "wrong id": ("application/json", b'{"jsonrpc":"2.0","id":4711,"result":{"content":[]}}'),
    "no id": ("application/json", b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}'),
    "wrong shape": ("application/json", b'{"jsonrpc":"2.0","id":%d,"result":{"content":"x"}}'),
    "a list": ("application/json", b"[]"),
    "nothing": ("application/json", b""),
    "a page": ("text/html", b"<html>log in</html>"),
    "deepest": ("application/json", b'{"jsonrpc":"2.0","id":%d,"result":' + b"[" * 100_000),
    "half": ("application/json", b'{"jsonrpc":"2.0","id":%d,'),
    "a number alone": ("application/json", b'{"id":%d}'),
    "null": ("application/json", b"null"),
    "half an event": ("text/event-stream", b'event: message\ndata: {"jsonrpc":"2.0","id":%d,\n\n'),
    "an event with a number alone": ("text/event-stream", b'data: {"jsonrpc":"2.0","id":%d}\r\n\r\n'),
    "an event of null": ("text/event-stream", b"data: null\n\n"),
    "broken event": ("text/event-stream", b"event: message\ndata: {broken\n\n"),
    "no event": ("text/event-stream", b": nothing\n\n"),
}


BAD_TOOLS: Mapping[str, bytes] = {
    "half a character in a description": rb'{"name":"bad","description":"x\ud800","inputSchema":{}}',
    "half a character in a name": rb'{"name":"bad\udfff","inputSchema":{"type":"object"}}',
    "half a character in a property": rb'{"name":"bad","inputSchema":{"properties":{"\ud800":{}}}}',
    "half a character in a value": rb'{"name":"bad","inputSchema":{"properties":{"a":{"enum":["\udc00"]}}}}',
    "a long number": b'{"name":"bad","inputSchema":{"properties":{"a":{"default":' + b"7" * 5_000 + b"}}}}",
    "deep": b'{"name":"bad","inputSchema":{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}}",
    "no schema": b'{"name":"bad"}',
    "no tool": b"5",
    "hidden": rb'{"name":"bad","inputSchema":{"properties":{"a\u202e":{}}}}',
    "broken UTF-8": b'{"name":"bad","description":"\xff","inputSchema":{"type":"object"}}',
}
LIST = b'{"jsonrpc":"2.0","id":%d,"result":{"tools":[BAD,{"name":"fine","inputSchema":{"type":"object"}}]}}'
FORMS: Mapping[str, tuple[str, Callable[[bytes], bytes]]] = {
    "json": ("application/json", lambda body: body),
    "event": ("text/event-stream", lambda body: b"event: message\ndata: " + body + b"\n\n"),
    "event, other line ends": (
        "text/event-stream",
        lambda body: b": hi\r\nid: 1\r\ndata:" + body + b"\r\n\r\n",
    ),
    "event on several lines": (
        "text/event-stream",
        lambda body: b"data: " + body.replace(b',"result"', b'\ndata: ,"result"') + b"\n\n",
    ),
    "second event": (
        "text/event-stream",
        lambda body: b'data: {"jsonrpc":"2.0","method":"notifications/x"}\n\ndata: ' + body + b"\n\n",
    ),
}


class WebServer:
    """An MCP server over HTTP that answers calls in the way that `how` names, and lists in a given form."""

    def __init__(self, how: str, listing: tuple[str, bytes] | None = None) -> None:
        self.how = how
        self.listing = listing

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"content-length: (\d+)", head.lower())
                message = json.loads(await reader.readexactly(int(length[1])) if length else b"{}")
                kind, body = self.answer(message)
                status = b"202 Accepted" if "id" not in message else b"200 OK"
                head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
                writer.write(head % (status, kind.encode(), len(body)) + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    def answer(self, message: Mapping[str, Any]) -> tuple[str, bytes]:
        result: dict[str, Any]
        match message.get("method"):
            case "initialize":
                result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                result["serverInfo"] = {"name": "s", "version": "0"}
            case "tools/list" if self.listing is not None:
                kind, body = self.listing
                return kind, body.replace(b"%d", str(message["id"]).encode())
            case "tools/call" if self.listing is not None:
                result = {"content": [{"type": "text", "text": "done"}]}
            case "tools/list":
                result = {"tools": [{"name": "act", "inputSchema": {"type": "object"}}, {"name": "no"}]}
            case "tools/call":
                kind, body = ANSWERS[self.how]
                return kind, body.replace(b"%d", str(message["id"]).encode())
            case None:
                return "text/plain", b""
            case _:
                error = {"code": -32601, "message": "no such method"}
                answer = {"jsonrpc": "2.0", "id": message.get("id"), "error": error}
                return "application/json", json.dumps(answer).encode()
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return "application/json", json.dumps(answer).encode()


@pytest.mark.sample(4)
@pytest.mark.parametrize("how", ANSWERS)
async def test_an_answer_over_http_that_cannot_be_read_ends_its_call(
    how: str, open_session: OpenSession
) -> None:
    http = await asyncio.start_server(WebServer(how).serve, "127.0.0.1", 0)
    session = open_session(MockTool("own"), approver=AllowAll())
    url = f"http://127.0.0.1:{http.sockets[0].getsockname()[1]}/mcp"
    server = await add_mcp_server(session.registry, "s", url=url, session=session)
    assert server.tools == ("s_act",)
    result = await asyncio.wait_for(session.call("s_act", timeout_s=80_000), HANG_S)
    assert result.is_error
    assert "s_act: " in result.content
    await server.close()
    http.close()


@pytest.mark.sample(8)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", BAD_TOOLS)
async def test_one_bad_tool_over_http_leaves_the_others(
    bad: str, form: str, open_session: OpenSession
) -> None:
    kind, write = FORMS[form]
    listing = kind, write(LIST.replace(b"BAD", BAD_TOOLS[bad]))
    http = await asyncio.start_server(WebServer("", listing).serve, "127.0.0.1", 0)
    session = open_session(MockTool("own"), approver=AllowAll())
    url = f"http://127.0.0.1:{http.sockets[0].getsockname()[1]}/mcp"
    server = await add_mcp_server(session.registry, "s", url=url, session=session)
    assert "s_fine" in server.tools
    result = await asyncio.wait_for(session.call("s_fine", timeout_s=80_000), HANG_S)
    assert "done" in result.content
    await server.close()
    http.close()
