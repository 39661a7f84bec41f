"""Transports: environment, addresses, tokens, the token check, and processes that end with the context."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import MutableMapping
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import types
from mcp.shared.message import SessionMessage

from aisotools.core.exceptions import UsageError
from aisotools.core.truncation import HeadTailBuffer
from aisotools.integrations.mcp import transport
from aisotools.integrations.mcp.transport import (
    MIN_TOKEN_CHARS,
    ServerEndpoint,
    UnreadableMessage,
    checked_token,
    checked_url,
    describe_error,
    environment,
    parse_message,
    require_token,
    stdio_transport,
)

TOKEN = "t" * MIN_TOKEN_CHARS


def test_the_environment_is_an_allow_list() -> None:
    given = {"PATH": "/bin", "OPENAI_API_KEY": "secret", "LD_PRELOAD": "x", "HOME": "/h"}
    assert environment(given, {"TOKEN": "t"}) == {"PATH": "/bin", "HOME": "/h", "TOKEN": "t"}


def test_an_endpoint_describes_itself_without_its_token() -> None:
    web = ServerEndpoint(url="https://a.example:8/mcp", token=TOKEN)
    assert (web.description, web.host) == ("https://a.example:8/mcp", "a.example")
    assert TOKEN not in repr(web)
    program = ServerEndpoint(command=("npx", "a b\u202e"), env={"KEY": "secret"})
    assert (program.description, program.host) == ("npx 'a b\\u202e'", "")
    assert "secret" not in repr(program)


def test_errors_are_described_without_groups() -> None:
    error = ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("the reason.")])])
    assert describe_error(error) == "ValueError: the reason"


@pytest.mark.parametrize(
    ("url", "secret", "message"),
    [
        ("ftp://a.example", False, "not the address"),
        ("https://", False, "not the address"),
        ("https://me@a.example", False, "Leave name and password out"),
        ("http://a.example", True, "unencrypted"),
        ("http://127.0.0.1.a.example", True, "unencrypted"),
    ],
)
def test_addresses_that_are_refused(url: str, secret: bool, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        checked_url(url, secret=secret)


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("http://a.example", False),
        ("https://a.example", True),
        ("http://127.0.0.1:8", True),
        ("http://localhost", True),
        ("http://[::1]:8", True),
    ],
)
def test_addresses_that_are_used(url: str, secret: bool) -> None:
    assert checked_url(url, secret=secret) == url


def test_tokens() -> None:
    assert checked_token(TOKEN) == TOKEN
    assert len(checked_token(None)) >= MIN_TOKEN_CHARS
    assert checked_token(None) != checked_token(None)
    for bad in (TOKEN[1:], TOKEN + " x", TOKEN + "\n", TOKEN + "\u00e9"):
        with pytest.raises(UsageError, match="at least 32 visible ASCII"):
            checked_token(bad)


# ---- the token check


async def status_for(*headers: tuple[bytes, bytes]) -> int:
    """Return the status that a guarded app answers with; the app itself answers 200."""
    sent: list[MutableMapping[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> dict[str, Any]:
        raise AssertionError("nothing is read before the token is checked")

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await require_token(app, TOKEN)({"type": "http", "headers": list(headers)}, receive, send)
    return int(sent[0]["status"])


async def test_only_the_token_passes() -> None:
    good = (b"authorization", f"Bearer {TOKEN}".encode())
    assert await status_for(good) == 200
    assert await status_for((b"Authorization", good[1])) == 200
    assert await status_for() == 401
    assert await status_for((b"authorization", b"Bearer " + b"u" * 32)) == 401
    assert await status_for((b"authorization", b"bearer " + TOKEN.encode())) == 401
    assert await status_for((b"authorization", TOKEN.encode())) == 401
    assert await status_for(good, good) == 401  # a proxy and the app may disagree about which counts


async def test_other_protocols_are_refused_and_the_lifespan_passes() -> None:
    passed: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    async def nothing(*_: Any) -> Any:
        raise AssertionError

    await require_token(app, TOKEN)({"type": "lifespan"}, nothing, nothing)
    with pytest.raises(UsageError, match="HTTP only, not websocket"):
        await require_token(app, TOKEN)({"type": "websocket"}, nothing, nothing)
    assert passed == ["lifespan"]


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {port} cannot be used"):
            transport._bind_loopback("127.0.0.1", port)


# ---- servers that are started

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)\nsys.stderr.write('bye')"


def connect(code: str, stderr: HeadTailBuffer, ends: list[str]) -> Any:
    command = (sys.executable, "-S", "-c", code)
    return stdio_transport(command, env={}, cwd=None, stderr=stderr, on_end=ends.append)


async def test_messages_pass_both_ways_and_stderr_is_stored() -> None:
    stderr, ends = HeadTailBuffer(0, 100), list[str]()
    async with connect(ECHO, stderr, ends) as (reading, writing):
        ping = types.JSONRPCRequest(jsonrpc="2.0", id=1, method="ping")
        await writing.send(SessionMessage(ping))
        echoed = await reading.receive()
        assert echoed.message == ping
        assert not ends
    assert ends == ["it ended"]


async def test_a_line_that_is_no_message_is_passed_on_as_an_error() -> None:
    async with connect("print('hello', flush=True); input()", HeadTailBuffer(0, 100), []) as (reading, _):
        assert isinstance(await reading.receive(), ValueError)


async def test_a_message_that_is_too_long_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_MESSAGE_BYTES", 1 << 10)
    ended = asyncio.Event()
    reasons: list[str] = []

    def on_end(reason: str) -> None:
        reasons.append(reason)
        ended.set()

    command = (sys.executable, "-S", "-c", "print('x' * 100_000, flush=True); input()")
    stderr = HeadTailBuffer(0, 100)
    async with stdio_transport(command, env={}, cwd=None, stderr=stderr, on_end=on_end):
        await ended.wait()
    assert reasons == ["it sent a message of more than 0 MiB"]


async def test_a_program_that_cannot_be_started() -> None:
    with pytest.raises(UsageError, match="'/no/such' cannot be started"):
        async with stdio_transport(
            ("/no/such",), env={}, cwd=None, stderr=HeadTailBuffer(0, 1), on_end=lambda _reason: None
        ):
            pytest.fail("it started")


# ---- messages


def test_values_nested_too_deep_are_cut_from_a_message() -> None:
    deep = (
        b'{"jsonrpc":"2.0","id":1,"result":{"a":"]}\\"[","b":' + b'{"x":[' * 400 + b"]}" * 400 + b',"c":1}}'
    )
    with pytest.raises(ValueError, match="recursion"):  # the attack, where nothing is cut
        types.jsonrpc_message_adapter.validate_json(deep, by_name=False)
    message = parse_message(deep)
    assert isinstance(message, SessionMessage)
    assert isinstance(message.message, types.JSONRPCResponse)
    assert message.message.result["c"] == 1
    assert "(nested too deep)" in str(message.message.result["b"])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (rb'"a\ud800b"', "a\ufffdb"),
        (rb'"\uDFFF"', "\ufffd"),
        (rb'"\udc00\ud800x"', "\ufffd\ufffdx"),
        (rb'"\ud83d\ude00 \\ud800 \\\ud800"', "\U0001f600 \\ud800 \\\ufffd"),
        (rb'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (b'"\xff\xc3"', "\ufffd\ufffd"),
        (b"9" * 5_000, "(a number of thousands of digits)"),
        (b"[1, " + b"9" * 5_000 + b", 2]", [1, "(a number of thousands of digits)", 2]),
        (b'"' + b"9" * 5_000 + rb'\ud800"', "9" * 5_000 + "\ufffd"),
        (
            b'{"\\"' + b"9" * 5_000 + b'":' + b"9" * 5_000 + b"}",
            {'"' + "9" * 5_000: "(a number of thousands of digits)"},
        ),
    ],
    ids=range(10),
)
def test_half_characters_and_long_numbers_are_replaced_in_a_message(given: bytes, expected: object) -> None:
    text = b'{"jsonrpc":"2.0","id":1,"result":{"a":%s,"b":"ok"}}' % given
    with pytest.raises(ValueError, match="JSON"):  # the attack, where nothing is replaced
        types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    message = parse_message(text)
    assert isinstance(message, SessionMessage)
    assert isinstance(message.message, types.JSONRPCResponse)
    assert message.message.result == {"a": expected, "b": "ok"}


def test_long_fraction_is_a_number() -> None:
    """It has no more digits than a float takes, and is left when something else has to be replaced."""
    text = rb'{"jsonrpc":"2.0","id":1,"result":{"a":0.%s,"b":"\ud800"}}' % (b"1" * 5_000)
    message = parse_message(text)
    assert isinstance(message, SessionMessage)
    assert isinstance(message.message, types.JSONRPCResponse)
    assert message.message.result == {"a": pytest.approx(1 / 9), "b": "\ufffd"}


@pytest.mark.parametrize(
    "unit", [rb"\ud800", rb"\\", b"9" * 4_001 + b",", b'"', b"\\", b"\xff"], ids=range(6)
)
def test_messages_that_cannot_be_read_take_time_in_proportion_to_their_size(unit: bytes) -> None:
    times = []
    for size in (1 << 18, 1 << 20):
        text = b'{"a":"' + unit * (size // len(unit))
        began_s = time.process_time()
        parse_message(text)
        times.append(time.process_time() - began_s)
    assert times[1] < 40 * times[0] + 0.5


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no json",
        b"[" * 300,
        b'{"a":' * 5_000,
        b'"\\"' * 400_000,
        b"[" * 2_000_000,
        b'{"a":"' + b"\\" * 2_000_000,
    ],
)
def test_junk_is_found_out_in_bounded_time(text: bytes) -> None:
    started_s = time.process_time()
    message = parse_message(text)
    assert isinstance(message, UnreadableMessage)
    assert message.text == text
    assert time.process_time() - started_s < 5
