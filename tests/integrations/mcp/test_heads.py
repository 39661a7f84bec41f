"""Heads of responses: what passes, what is refused, and for how long the event loop stands still."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("mcp")

import httpcore2

from aisotools.integrations.mcp.heads import (
    MAX_HEAD_BYTES,
    MAX_HEAD_LINES,
    MAX_INTERIM_RESPONSES,
    BoundedConnection,
    BoundedNetwork,
    ResponseForm,
)
from tests.integrations.mcp.head_server import HEADS
from tests.integrations.mcp.large_messages import HEADS as BY_HEADS, Measurer, report
from tests.stalls import stall_limit_s

MAX_PEAK_BYTES = 32 << 20
_RUNS = 3

OK = b"HTTP/1.1 200 OK\r\n"
END = b"\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n" + END
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n"


# ---- what servers with odd heads cost the host


@pytest.fixture(scope="module")
def measurer() -> Iterator[Measurer]:
    with Measurer() as measurer:
        yield measurer


@pytest.mark.timeout(300)
@pytest.mark.sample(5)
@pytest.mark.parametrize("shape", HEADS)
def test_heads_of_any_shape_neither_hold_up_the_loop_nor_fill_the_memory(
    measurer: Measurer, shape: str
) -> None:
    for _ in range(_RUNS):
        found = measurer.run(shape, BY_HEADS)
        print(report(shape, BY_HEADS, found), *found["where"][-2:], sep="\n")
        if found["stall_s"] <= stall_limit_s():
            break
    assert found["stall_s"] <= stall_limit_s()
    assert found["peak"] - found["before"] <= MAX_PEAK_BYTES


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("call/interim", f"more than {MAX_INTERIM_RESPONSES} interim responses to one request"),
        ("call/lines", f"a head of more than 64 KiB or {MAX_HEAD_LINES} lines"),
        ("call/trailer", f"a trailer of more than 64 KiB or {MAX_HEAD_LINES} lines"),
        ("notice/lines", f"a head of more than 64 KiB or {MAX_HEAD_LINES} lines"),
        ("list/lines", f"a head of more than 64 KiB or {MAX_HEAD_LINES} lines"),
    ],
)
def test_errors_name_the_limit_of_a_head(measurer: Measurer, shape: str, words: str) -> None:
    found = measurer.run(shape, BY_HEADS)
    assert found["is_error"]
    assert words in found["content"]


# ---- what is counted


def check(*pieces: bytes) -> None:
    form = ResponseForm()
    for piece in pieces:
        form.check(piece)


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def head_of(lines: int, end: bytes = b"\r\n") -> bytes:
    """Return a head of that many lines, with the first and the last one."""
    return end.join([b"HTTP/1.1 200 OK", *[b"a: b"] * (lines - 2), b"", b""])


@pytest.mark.parametrize("size", [1, 7, 8_192])
@pytest.mark.parametrize(
    "data",
    [
        OK + END + b"a\n" * 5_000,
        head_of(MAX_HEAD_LINES),
        head_of(MAX_HEAD_LINES, b"\n") + b"\n" * 5_000,
        b"HTTP/1.1 200 " + b"R" * (MAX_HEAD_BYTES - 17) + b"\r\n\r\n",
        INTERIM * MAX_INTERIM_RESPONSES + OK + END + b"\n" * 5_000,
        b"HTTP/1.1 101 Switching\r\n\r\n" + INTERIM * 50,
        b"HTTP/1.1 103 E\r\nTransfer-Encoding: chunked\r\n\r\n" + OK + END + b"x\n" * 5_000,
        CHUNKED + b"1\r\n\n\r\n" * 5_000 + b"0\r\n" + b"a: b\r\n" * 100 + END,
        CHUNKED + (b"%x\r\n%s\r\n" % (40_000, b"\n" * 40_000)) * 3 + b"0\r\n\r\n",
        CHUNKED + b'5;a="b"\r\n01234\r\n000\r\n\r\n',
        OK + b"X: y\r\n Transfer-Encoding: chunked\r\n\r\n" + b"\n" * 5_000,
    ],
    ids=range(11),
)
def test_responses_within_the_limits_pass_however_they_are_cut(data: bytes, size: int) -> None:
    check(*in_pieces(data, size))


@pytest.mark.parametrize("size", [1, 7, 8_192, 1 << 20])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (head_of(MAX_HEAD_LINES + 1), "a head of"),
        (head_of(MAX_HEAD_LINES + 1, b"\n"), "a head of"),
        (b"x" * (MAX_HEAD_BYTES + 1), "a head of"),
        (b"\r\r\n" * (MAX_HEAD_LINES + 1), "a head of"),
        (INTERIM * (MAX_INTERIM_RESPONSES + 1), "interim responses"),
        (b"HTTP/9.9 199 \n\n" * (MAX_INTERIM_RESPONSES + 1), "interim responses"),
        (INTERIM + head_of(MAX_HEAD_LINES), "a head of"),
        (CHUNKED + b"1\r\n\n\r\n00;x\r\n" + b"a:\r\n" * (MAX_HEAD_LINES + 1), "a trailer of"),
        (CHUNKED.replace(b"Transfer", b"tRANSFER") + b"0\r\n" + b"a" * (MAX_HEAD_BYTES + 1), "a trailer of"),
        (CHUNKED + b"1;" + b"x" * (MAX_HEAD_BYTES + 1), "a chunk size of"),
    ],
    ids=range(10),
)
def test_responses_beyond_a_limit_are_refused_however_they_are_cut(
    data: bytes, words: str, size: int
) -> None:
    with pytest.raises(httpcore2.RemoteProtocolError, match=words):
        check(*in_pieces(data, size))


def test_each_request_has_its_own_limits() -> None:
    form = ResponseForm()
    for _ in range(3):
        form.check(INTERIM * MAX_INTERIM_RESPONSES + head_of(MAX_HEAD_LINES - 3 * MAX_INTERIM_RESPONSES))
        form.start()


# ---- connections


class Wire(httpcore2.AsyncNetworkStream):
    """A connection from which parts are read, one at a time."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = list(parts)
        self.written = b""
        self.is_closed = False

    async def read(self, *_: Any, **__: Any) -> bytes:
        return self.parts.pop(0) if self.parts else b""

    async def write(self, buffer: bytes, *_: Any, **__: Any) -> None:
        self.written += buffer

    async def aclose(self) -> None:
        self.is_closed = True

    async def start_tls(self, *_: Any, **__: Any) -> Wire:
        return Wire([head_of(MAX_HEAD_LINES + 1)])

    def get_extra_info(self, info: str) -> Any:
        return {"is_readable": False}.get(info)


class Network(httpcore2.AsyncNetworkBackend):
    """Makes the same connection always."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> Wire:
        return self.wire

    async def connect_unix_socket(self, path: str, *_: Any, **__: Any) -> Wire:
        return self.wire

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def test_connections_hand_on_all_that_came_in_small_pieces() -> None:
    parts = [head_of(100) + b"x" * 100_000, b"y" * 100_000]
    wire = Wire(parts)
    connection = BoundedConnection(wire, pytest.fail)
    await connection.write(b"GET")
    got = b""
    while piece := await connection.read(1 << 16):
        assert len(piece) <= 8_192
        got += piece
    assert got == b"".join(parts)
    assert wire.written == b"GET"


async def test_connections_with_more_than_one_response_are_not_used_again() -> None:
    connection = BoundedConnection(Wire([OK + END + b"x" * 10_000]), pytest.fail)
    assert connection.get_extra_info("is_readable") is False
    await connection.read(1 << 16)
    assert connection.get_extra_info("is_readable") is True
    await connection.read(1 << 16)
    assert connection.get_extra_info("is_readable") is False


@pytest.mark.parametrize("how", ["tcp", "unix", "tls"])
async def test_networks_give_the_reason_why_a_connection_was_given_up(how: str) -> None:
    reasons: list[str] = []
    network = BoundedNetwork(Network(Wire([head_of(MAX_HEAD_LINES + 1)])), reasons.append)
    await network.sleep(0)
    if how == "unix":
        connection = await network.connect_unix_socket("a")
    else:
        connection = await network.connect_tcp("a", 1, timeout=1.0)
    if how == "tls":
        connection = await connection.start_tls(ssl.create_default_context(), "a", timeout=1.0)
    with pytest.raises(httpcore2.RemoteProtocolError, match="it sent a head of more than"):
        await connection.read(1 << 16)
    assert reasons == [f"it sent a head of more than 64 KiB or {MAX_HEAD_LINES} lines"]


async def test_closing_a_connection_closes_the_one_behind_it() -> None:
    wire = Wire([])
    await BoundedConnection(wire, pytest.fail).aclose()
    assert wire.is_closed
