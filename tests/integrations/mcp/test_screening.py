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

from aisotools.integrations.mcp import screening
from aisotools.integrations.mcp.api import add_mcp_server
from aisotools.integrations.mcp.messages import Inbox, UnreadableMessage
from aisotools.integrations.mcp.screening import Screen
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
    screen, wire = Screen(Inbox()), Wire()
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


async def call(screen: Screen, writing: Any, wire: Wire, number: int, meta: dict[str, Any]) -> Any:
    params = {"name": "t", "_meta": {"progressToken": number, **meta}}
    message = types.JSONRPCRequest(jsonrpc="2.0", id=number, method="tools/call", params=params)
    await writing.send(SessionMessage(message))
    return (await asyncio.wait_for(wire.sent.get(), HANG_S)).message


async def test_the_result_of_a_call_goes_past_the_library() -> None:
    async with screened() as (screen, wire, reading, writing):
        with screen.awaiting() as first, screen.awaiting() as second:
            sent = [await call(screen, writing, wire, n, one.meta) for n, one in ((1, first), (2, second))]
            assert [message.params["_meta"] for message in sent] == [
                {"progressToken": 1},
                {"progressToken": 2},
            ]
            result = {"content": [{"type": "text", "text": "a"}] * 3, "resultType": "complete"}
            await wire.came.put(response(2, result))
            assert (await next_message(reading)).result == {"content": [], "resultType": "complete"}
            assert (first.value, second.value) == (None, result)
            await wire.came.put(UnreadableMessage(b'{"id":1,"result":', "it is too much"))
            failed = await next_message(reading)
            assert failed.error.message == "the answer to it cannot be read: it is too much"
        assert (screen._awaited, screen._calls) == ({}, {})


async def test_a_result_that_nobody_waits_for_is_not_kept() -> None:
    async with screened() as (screen, wire, reading, writing):
        with screen.awaiting() as awaited:
            await call(screen, writing, wire, 1, awaited.meta)
        await wire.came.put(response(1, {"content": [1]}))
        assert (await next_message(reading)).result == {"content": []}
        assert awaited.value is None
        await call(screen, writing, wire, 2, {"aisotools/call": "forged"})
        assert screen._calls == {}


async def test_other_answers_with_many_parts_are_refused() -> None:
    async with screened() as (_, wire, reading, writing):
        for number, method in enumerate(("initialize", "server/discover", "ping")):
            await request(writing, wire, number, method)
            await wire.came.put(response(number, {"a": {str(n): [] for n in range(1_000)}}))
            failed = await next_message(reading)
            assert failed.error.message == f"the answer to {method} has more than 1,000 parts"
        await request(writing, wire, 5, "subscriptions/listen")
        await wire.came.put(response(5, {"a": {str(n): [] for n in range(1_000)}}))
        assert (await next_message(reading)).result == {}


async def test_of_a_list_the_library_sees_what_it_needs() -> None:
    async with screened() as (screen, wire, reading, writing):
        await request(writing, wire, 1, "tools/list")
        sent = {"type": "string", "x-mcp-header": "a"}
        tools = [
            {"name": name, "inputSchema": {"type": "object", "properties": properties}}
            for name, properties in (
                ("plain", {"x": {"type": "string"}}),
                ("small", {"x": sent}),
                ("large", {"x": sent, **{f"p{n}": {"title": "a" * 800} for n in range(70)}}),
                ("too much", {"x": sent, **{f"p{n}": {"title": "b" * 800} for n in range(70)}}),
            )
        ]
        extra = {"_meta": {"a": []}, "extra": [1], "ttlMs": 5, "cacheScope": "public"}
        await wire.came.put(response(1, {"tools": tools, **extra}))
        result = (await next_message(reading)).result
        assert result.keys() == {"tools", "ttlMs", "cacheScope"}
        seen = {tool["name"]: tool["inputSchema"]["properties"] for tool in result["tools"]}
        assert seen.keys() == {"plain", "small", "large"}
        assert (seen["plain"], seen["small"]) == ({}, {"x": sent})
        assert len(screen.offers.sound) == 4


async def test_the_end_of_the_transport_is_the_end_for_the_library() -> None:
    async with screened() as (_, wire, reading, _writing):
        await wire.came.put(None)
        with pytest.raises(anyio.EndOfStream):
            await asyncio.wait_for(reading.receive(), HANG_S)


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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nextCursor", "c" * 8_193),
        ("resultType", "r" * 8_193),
        ("cacheScope", "s" * 8_193),
        ("ttlMs", 10**200),
    ],
)
async def test_long_words_about_a_list_are_not_passed_on(key: str, value: str | int) -> None:
    async with screened() as (screen, wire, reading, writing):
        await request(writing, wire, 1, "tools/list")
        await wire.came.put(response(1, {"tools": [{"name": "a", "inputSchema": {}}], key: value}))
        result = (await asyncio.wait_for(reading.receive(), HANG_S)).message.result
        assert key not in result
        assert [tool["name"] for tool in result["tools"]] == ["a"]
        assert "more than 8,192 characters" in screen.offers.refused[f"(with a long {key})"]


async def test_an_answer_of_many_characters_is_refused() -> None:
    for value in ("x" * 300_000, 10**300_000, {"x" * 300_000: 1}):
        async with screened() as (_, wire, reading, writing):
            await request(writing, wire, 1, "initialize")
            await wire.came.put(response(1, {"a": value}))
            answer = (await asyncio.wait_for(reading.receive(), HANG_S)).message
            assert "the answer to initialize has more than" in answer.error.message


# ---- requests of a server


def question(number: Any, method: str, params: dict[str, Any] | None = None) -> SessionMessage:
    return SessionMessage(
        types.JSONRPCRequest.model_construct(jsonrpc="2.0", id=number, method=method, params=params)
    )


@pytest.mark.parametrize(
    "method",
    ["ping", "roots/list", "sampling/createMessage", "elicitation/create", "tools/call", "x", "M" * 200],
)
async def test_requests_of_a_server_are_answered_and_the_library_sees_none(method: str) -> None:
    async with screened() as (_, wire, reading, writing):
        await request(writing, wire, 1)
        for number in (1, "a", 10**15):
            await wire.came.put(question(number, method, {"messages": [{"role": "x"}] * 300}))
            answer = (await asyncio.wait_for(wire.sent.get(), HANG_S)).message
            assert answer.id == number
            assert isinstance(answer, types.JSONRPCResponse if method == "ping" else types.JSONRPCError)
        await wire.came.put(response(1))
        assert (await next_message(reading)).id == 1


@pytest.mark.parametrize(
    ("number", "method"),
    [("i" * 201, "ping"), (10**101, "ping"), (-(10**101), "x"), (7, "M" * 201), (None, "ping"), (1.5, "x")],
)
async def test_requests_with_long_names_are_dropped(number: Any, method: str) -> None:
    async with screened() as (screen, wire, _, _):
        await wire.came.put(question(number, method))
        await wire.came.put(question(2, "ping"))
        assert (await asyncio.wait_for(wire.sent.get(), HANG_S)).message.id == 2
        assert screen.dropped == 1


async def test_a_server_that_takes_no_answers_is_read_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "ANSWER_TIMEOUT_S", 0.3)
    reasons: list[str] = []
    screen, wire = Screen(Inbox(), reasons.append), Wire()
    wire.sent = asyncio.Queue(1)
    for number in range(1_000):
        wire.came.put_nowait(question(number, "ping"))
    async with screen.between((wire, wire)) as (reading, _):
        await asyncio.sleep(0.1)
        # Those that wait, what the wire holds, the one that is being sent, and the one that finds no room.
        assert 1_000 - wire.came.qsize() <= screening.MAX_UNANSWERED + 3
        assert len(asyncio.all_tasks()) < 10
        with pytest.raises(anyio.EndOfStream):
            await asyncio.wait_for(reading.receive(), HANG_S)
    assert reasons == ["it sent more than 32 requests and takes no answers"]


async def test_a_server_that_takes_its_answers_slowly_may_ask_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "ANSWER_TIMEOUT_S", 0.3)
    async with screened() as (_, wire, _, _):
        wire.sent = asyncio.Queue(1)
        for number in range(100):
            wire.came.put_nowait(question(number, "ping"))
        for number in range(100):
            await asyncio.sleep(0.01)
            assert (await asyncio.wait_for(wire.sent.get(), HANG_S)).message.id == number


# ---- notices of a server

CHANGED = "notifications/tools/list_changed"
KEY = "io.modelcontextprotocol/subscriptionId"


def notice(method: str, **params: Any) -> SessionMessage:
    return SessionMessage(types.JSONRPCNotification(jsonrpc="2.0", method=method, params=params))


async def notices_after(screen_wire: tuple[Screen, Wire, Any, Any], *notices: SessionMessage) -> list[Any]:
    """Return the notices that the library gets of some, while request 1 waits."""
    _, wire, reading, writing = screen_wire
    await request(writing, wire, 1)
    for item in notices:
        await wire.came.put(item)
    await wire.came.put(response(1))
    got = []
    while isinstance(message := await next_message(reading), types.JSONRPCNotification):
        got.append((message.method, message.params))
    return got


async def test_notices_that_are_needed_pass_with_what_is_needed_of_them() -> None:
    progress = {"progressToken": 1, "progress": 0.5, "total": 2, "message": "m"}
    mine = {"_meta": {KEY: 3}}
    sent = [
        notice("notifications/progress", **progress, x=[[]] * 9),
        notice("notifications/progress", progressToken="1", progress=1, message="m" * 60_000),
        notice(CHANGED, x=1),
        notice(CHANGED, _meta={KEY: 3, "x": [[]]}),
        notice("notifications/subscriptions/acknowledged", notifications={"toolsListChanged": True}, **mine),
        notice("notifications/cancelled", requestId=3, reason="r"),
    ]
    async with screened() as opened:
        got = await notices_after(opened, *sent)
        assert opened[0].dropped == 0
    assert got == [
        ("notifications/progress", progress),
        ("notifications/progress", {"progressToken": "1", "progress": 1, "message": "m" * 2_000}),
        (CHANGED, {}),
        (CHANGED, mine),
        ("notifications/subscriptions/acknowledged", {"notifications": {"toolsListChanged": True}, **mine}),
        ("notifications/cancelled", {"requestId": 3}),
    ]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"progressToken": 1},
        {"progress": 1},
        {"progressToken": 1, "progress": "1"},
        {"progressToken": 1, "progress": True},
        {"progressToken": 1, "progress": 10**400},
        {"progressToken": 1, "progress": float("nan")},
        {"progressToken": 1, "progress": 1, "total": [1]},
        {"progressToken": 1, "progress": 1, "total": 10**400},
        {"progressToken": 1, "progress": 1, "message": {}},
        {"progressToken": [1], "progress": 1},
        {"progressToken": True, "progress": 1},
        {"progressToken": "1" * 201, "progress": 1},
    ],
)
async def test_malformed_progress_is_dropped_and_counted(params: dict[str, Any]) -> None:
    async with screened() as opened:
        assert await notices_after(opened, notice("notifications/progress", **params)) == []
        assert opened[0].dropped == 1


@pytest.mark.parametrize(
    "sent",
    [
        notice("notifications/message", level="no"),
        notice("notifications/message", level="info", data="x"),
        notice("notifications/resources/updated", uri=[]),
        notice("notifications/prompts/list_changed"),
        notice("M" * 60_000),
        notice("notifications/progress", progressToken=7, progress=1),
    ],
)
async def test_notices_that_nothing_waits_for_are_left_out(sent: SessionMessage) -> None:
    async with screened() as opened:
        assert await notices_after(opened, sent) == []


@pytest.mark.parametrize(
    "sent",
    [
        notice("notifications/cancelled"),
        notice("notifications/cancelled", requestId={}),
        notice("notifications/subscriptions/acknowledged", notifications=[]),
        notice(
            "notifications/subscriptions/acknowledged", notifications=dict.fromkeys(map(str, range(99)), True)
        ),
    ],
)
async def test_other_malformed_notices_are_dropped_and_counted(sent: SessionMessage) -> None:
    async with screened() as opened:
        assert await notices_after(opened, sent) == []
        assert opened[0].dropped == 1
