"""The HTTP client for MCP servers: what it refuses, and that it keeps nothing of a response."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("mcp")

import httpx2
from mcp import types
from mcp.shared.message import SessionMessage

from aisotools.integrations.mcp import http_client
from aisotools.integrations.mcp.heads import BoundedNetwork
from aisotools.integrations.mcp.http_client import bound_response, http_transport
from aisotools.integrations.mcp.messages import Inbox

EVENT = b'data: {"jsonrpc":"2.0","method":"x"}\n\n'


async def test_a_stream_is_read_as_what_was_looked_at() -> None:
    kind = {"content-type": "text/event-stream; charset=utf-7"}
    request = httpx2.Request("GET", "http://a.example")
    response = httpx2.Response(200, headers=kind, stream=httpx2.ByteStream(EVENT), request=request)
    await bound_response(response, Inbox())
    assert response.encoding == "utf-8"


@pytest.mark.parametrize("name", ["content-type", "location", "mcp-session-id"])
async def test_long_headers_are_refused(name: str) -> None:
    request = httpx2.Request("POST", "http://a.example")
    for count in (2_000, 2_001):
        response = httpx2.Response(200, headers={name: "A" * count}, content=b"", request=request)
        if count > 2_000:
            with pytest.raises(httpx2.RemoteProtocolError, match="of more than 2,000 characters"):
                await bound_response(response, Inbox())
        else:
            await bound_response(response, Inbox())


# ---- what is kept


class Recorder:
    """A server that sets a cookie in each response, and records the heads of requests and its connections."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head)
                length = re.search(rb"content-length: (\d+)", head.lower())
                message = json.loads(await reader.readexactly(int(length[1])) if length else b"{}")
                answer = {"jsonrpc": "2.0", "id": message.get("id"), "result": {}}
                body = json.dumps(answer).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                    b"Set-Cookie: a=1; Path=/\r\nSet-Cookie2: b=2\r\n\r\n" % len(body) + body
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def recording() -> AsyncIterator[tuple[Recorder, str]]:
    """Give a server and its address for the duration of the context."""
    recorder = Recorder()
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
    try:
        yield recorder, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()


async def test_cookies_are_neither_kept_nor_sent() -> None:
    async with recording() as (recorder, url), http_transport(url, token=None, inbox=Inbox()) as streams:
        reading, writing = streams
        for number in range(3):
            await writing.send(SessionMessage(types.JSONRPCRequest(jsonrpc="2.0", id=number, method="ping")))
            assert (await reading.receive()).message.id == number
        assert len(recorder.heads) == 3
        assert not any(b"cookie" in head.lower() for head in recorder.heads)
        assert recorder.connections == 1


async def test_a_client_has_room_for_no_cookies() -> None:
    async with recording() as (_, url), httpx2.AsyncClient(cookies=http_client.NoCookies()) as client:
        response = await client.post(url, json={"id": 1})
        assert "a=1" in response.headers["set-cookie"]
        assert not list(client.cookies.jar)


@pytest.mark.parametrize(
    "environ",
    [{}, {"ALL_PROXY": "http://127.0.0.1:9"}, {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "b.example"}],
)
def test_heads_are_bounded_on_every_way_to_a_server(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    client = http_client._HttpClient()
    client.bound_heads(pytest.fail)
    transports = [client._transport, *client._mounts.values()]
    assert len([transport for transport in transports if transport is not None]) == 1 + any(
        name.endswith("_PROXY") and name != "NO_PROXY" for name in environ
    )
    for transport in transports:
        if transport is not None:
            assert isinstance(transport, httpx2.AsyncHTTPTransport)
            assert isinstance(transport._pool._network_backend, BoundedNetwork)


def test_heads_that_cannot_be_bounded_are_an_error() -> None:
    client = http_client._HttpClient(transport=httpx2.MockTransport(lambda _: httpx2.Response(200)))
    with pytest.raises(TypeError, match="cannot be bounded"):
        client.bound_heads(pytest.fail)
