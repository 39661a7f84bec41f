"""The HTTP client: addresses, tokens, and errors that name the next step."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any

import pytest

from aisotools.integrations.jupyter_gateway.http import (
    Address,
    Gateway,
    GatewayError,
    disable_delays,
    parse_address,
)

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("url", "base", "token"),
    [
        ("http://127.0.0.1:8888", "http://127.0.0.1:8888", ""),
        ("http://127.0.0.1:8888/", "http://127.0.0.1:8888", ""),
        (f"http://localhost:8888/lab?token={TOKEN}", "http://localhost:8888", TOKEN),
        (f"https://hub.example/user/ada/tree?token={TOKEN}#x", "https://hub.example/user/ada", TOKEN),
        ("https://[::1]:8888/", "https://[::1]:8888", ""),
    ],
)
def test_addresses(url: str, base: str, token: str) -> None:
    assert parse_address(url) == Address(url=base, token=token)
    assert TOKEN not in repr(parse_address(url))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8888",
        "ftp://a.example",
        "http://",
        "http://a b.example",
        "http://a.example:port",
        "http://me:secret@a.example",
    ],
)
def test_malformed_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="gateway") as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)


def test_types_are_checked() -> None:
    with pytest.raises(TypeError, match="gateway=int"):
        parse_address(8888)
    with pytest.raises(TypeError, match="token=bytes"):
        parse_address("http://127.0.0.1", b"x")


@pytest.mark.parametrize("token", ["a b", "a\r\nX-Evil: 1", "caf\u00e9"])
def test_tokens_that_cannot_stand_in_a_header_are_refused(token: str) -> None:
    with pytest.raises(ValueError, match="cannot be sent") as caught:
        parse_address("http://127.0.0.1", token)
    assert token not in str(caught.value)


def test_the_explicit_token_wins_and_goes_into_a_header() -> None:
    address = parse_address(f"http://127.0.0.1/?token={TOKEN}", "other")
    assert address.headers == {"Authorization": "token other"}
    assert parse_address("http://127.0.0.1").headers == {}
    assert address.websocket_url == "ws://127.0.0.1"
    assert parse_address("https://a.example").websocket_url == "wss://a.example"


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://a.example", True),
        ("https://a.example", False),
        ("http://127.0.0.1", False),
        ("http://localhost", False),
    ],
)
def test_an_unencrypted_token_is_warned_about(
    url: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        parse_address(url, TOKEN)
    assert ("unencrypted" in caplog.text) is warned
    assert TOKEN not in caplog.text


@pytest.fixture
def gateway() -> Gateway:
    return Gateway(parse_address("http://127.0.0.1:1", TOKEN))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ssl.SSLError("bad"), "certificate could not be verified. Fix it"),
        (TimeoutError(), "did not respond in time. Check that it runs"),
        (ConnectionRefusedError(), "nothing listens there. Start it"),
        (OSError(f"odd {TOKEN}\x1b"), r"OSError: odd \[token\]\?. Check the address"),
        (None, "no response. Check the address"),
    ],
)
def test_unreachable_servers(gateway: Gateway, error: BaseException | None, message: str) -> None:
    problem = gateway.unreachable(error)
    with pytest.raises(GatewayError, match=message):
        raise problem
    assert (problem.status, TOKEN in str(problem)) == (0, False)


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (401, {}, "does not accept the token"),
        (403, {}, "does not accept the token"),
        (
            302,
            {"Location": f"http://evil.example/?token={TOKEN}"},
            "redirects to http://evil.example/,",
        ),
        (404, {}, "has no such kernel"),
        (500, {}, "failed with HTTP status 500"),
    ],
)
def test_refusals(gateway: Gateway, status: int, headers: dict[str, str], message: str) -> None:
    problem = gateway._refusal(status, headers)
    assert message in str(problem)
    assert (problem.status, TOKEN in str(problem)) == (status, False)


async def test_nothing_listens(gateway: Gateway) -> None:
    with pytest.raises(GatewayError, match="cannot be reached"):
        await gateway.has_kernel("k", 5.0)
    gateway.close()
    gateway.close()


def serving(status: bytes, body: bytes = b"") -> Any:
    """Return a connection handler that sends one response."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 " + status + b"\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n"
        writer.write(head + body)
        await writer.drain()
        writer.close()

    return answer


async def at_server(handler: Any, use: Any) -> Any:
    async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        gateway = Gateway(parse_address(f"http://127.0.0.1:{port}", TOKEN))
        try:
            return await use(gateway)
        finally:
            gateway.close()


async def test_a_kernel_that_is_gone() -> None:
    gone = serving(b"404 Not Found")
    assert await at_server(gone, lambda gateway: gateway.has_kernel("k")) is False
    await at_server(gone, lambda gateway: gateway.end_kernel("k"))
    with pytest.raises(GatewayError, match="has no such kernel"):
        await at_server(gone, lambda gateway: gateway.interrupt_kernel("k"))
    assert await at_server(serving(b"200 OK", b"{}"), lambda gateway: gateway.has_kernel("k")) is True


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"not json", b'{"id": ""}', b'{"id": "a\\u0007"}', b'{"id": 5}']
)
async def test_a_start_that_names_no_kernel(body: bytes) -> None:
    with pytest.raises(GatewayError, match="does not respond like a Jupyter Server"):
        await at_server(serving(b"201 Created", body), lambda gateway: gateway.start_kernel("", 5.0))


async def test_a_started_kernel_is_named() -> None:
    answer = serving(b"201 Created", b'{"id": "k-1"}')
    assert await at_server(answer, lambda gateway: gateway.start_kernel("python3", 5.0)) == "k-1"


def test_a_socket_that_is_closed_already_is_left_alone() -> None:
    class Closed:
        protocol = None

    disable_delays(Closed())
