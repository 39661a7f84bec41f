"""Bodies of responses: what the protocol library gets of them, in which form."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

pytest.importorskip("mcp")

import httpx2

from aisotools.integrations.mcp import bodies, http_client
from aisotools.integrations.mcp.http_client import bound_response
from aisotools.integrations.mcp.messages import Inbox
from tests.integrations.mcp.turns import counted_turns


class Pieces(httpx2.AsyncByteStream):
    """A body in pieces of a given length, which come at once."""

    def __init__(self, data: bytes, size: int) -> None:
        self.pieces = [data[at : at + size] for at in range(0, len(data), size)]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece

    async def aclose(self) -> None:
        """There is nothing to close."""


async def passed_on(kind: str, data: bytes, size: int, *, method: str = "POST", status: int = 200) -> bytes:
    """Return what the library gets of the body of a response that comes in pieces."""
    request = httpx2.Request(method, "http://a.example")
    response = httpx2.Response(
        status, headers={"content-type": kind}, stream=Pieces(data, size), request=request
    )
    await bound_response(response, Inbox())
    got: bytes = await response.aread()
    return got


MESSAGE = b'{"jsonrpc":"2.0","id":1,"result":{"a":1}}'


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_events_come_whole_however_they_are_cut(size: int) -> None:
    for end in (b"\n", b"\r\n", b"\r"):
        events = end.join([b": hi", b"id: 1", b"data:" + MESSAGE, b"", b"data: {", b"data: }", b"", b""])
        got = await passed_on("text/event-stream", events, size)
        assert got.splitlines() == events.splitlines()


async def test_an_event_of_many_lines_is_refused() -> None:
    for data in (b"data: 1\n" * 5_000 + b"\n", b"data: 1\n" * 5_000):
        with pytest.raises(httpx2.ReadError, match="more than 1,000 lines"):
            await passed_on("text/event-stream", data, 1 << 16)


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", "text/plain"])
async def test_the_loop_goes_on_between_pieces_that_come_at_once(kind: str) -> None:
    with counted_turns() as turns:
        await passed_on(kind, b" " * 1_000, 1)
    assert len(turns) >= 990


@pytest.mark.parametrize(
    ("method", "status", "kind"),
    [
        ("DELETE", 200, "text/plain"),
        ("DELETE", 500, "application/json"),
        ("DELETE", 200, "text/event-stream"),
        ("GET", 307, "text/event-stream"),
        ("POST", 308, "application/json"),
        ("OPTIONS", 200, "text/plain"),
    ],
)
async def test_a_body_that_nobody_needs_is_not_read(method: str, status: int, kind: str) -> None:
    got = await passed_on(kind, b"x" * 1_000_000, 1 << 16, method=method, status=status)
    assert got == b""


@pytest.mark.parametrize("kind", ["text/plain", "application/json", ""])
@pytest.mark.parametrize("status", [200, 404])
async def test_a_response_to_a_get_that_is_no_stream_is_bounded(
    kind: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "MAX_MESSAGE_BYTES", 1 << 20)
    with pytest.raises(httpx2.ReadError, match="in one response"):
        await passed_on(kind, b" " * (2 << 20), 1 << 16, method="GET", status=status)


FINE = b"data: " + MESSAGE + b"\n\n"


@pytest.mark.parametrize(
    ("event", "left"),
    [
        (b"event: " + b"A" * 2_000_000 + b"\ndata: x\n\n", b""),
        (b"event: ping\ndata: {}\n\n", b""),
        (b"event: message\nevent: other\ndata: x\n\n", b""),
        (b"event:x\nid: 7\ndata: x\n\n", b"id: 7\n\n"),
        (b"event: message" + b"A" * 2_000 + b"\ndata: x\n\n", b""),
        (b"id: " + b"7" * 2_000 + b"\n\n", b""),
        (b": " + b"7" * 2_000 + b"\n\n", b""),
        (b"unknown: 1\nretry\n\n", b""),
    ],
)
async def test_events_of_other_kinds_are_left_out(event: bytes, left: bytes) -> None:
    got = await passed_on("text/event-stream", event + FINE, 1 << 16)
    assert got == left + FINE


@pytest.mark.parametrize("name", [b"event: message", b"event:message", b"event:", b"event"])
async def test_events_that_are_messages_pass(name: bytes) -> None:
    event = name + b"\nid: 1\n" + FINE
    assert await passed_on("text/event-stream", event, 1 << 16) == event


@pytest.mark.parametrize(
    ("given", "pause_ms"),
    [
        (b"0", b"1000"),
        (b"1", b"1000"),
        (b"000", b"1000"),
        (b"3000", b"3000"),
        (b"9" * 9, b"60000"),
        (b"9" * 5_000, b"60000"),
    ],
)
async def test_there_is_a_pause_before_a_stream_is_asked_for_again(given: bytes, pause_ms: bytes) -> None:
    for colon in (b":", b": "):
        got = await passed_on("text/event-stream", b"id: 7\nretry" + colon + given + b"\ndata: \n\n", 1 << 16)
        assert b"retry: " + pause_ms in got.splitlines()
        assert b"id: 7" in got.splitlines()
    for odd in (b"-1", b"1_0", b"+5", b" 7", b"x", b"\xd9\xa1"):
        got = await passed_on("text/event-stream", b"id: 7\nretry: " + odd + b"\ndata: \n\n", 1 << 16)
        assert b"retry" not in got


@pytest.mark.parametrize("junk", [b'{"x":1}', b"x", b"[]", b'{"jsonrpc":"2.0"}', b"{" * 70_000])
async def test_junk_is_left_out_of_a_stream_that_answers_nothing(junk: bytes) -> None:
    events = b"data: " + junk + b"\n\n" + FINE
    assert await passed_on("text/event-stream", events, 1 << 16, method="GET") == FINE
    assert junk[:60_000] in await passed_on("text/event-stream", events, 1 << 16)


# ---- long events

LONG = b'{"jsonrpc":"2.0","id":7,"result":{"a":[%s]}}' % b",\n".join([b'"%s"' % (b"x" * 1_000)] * 400)


def event_of(text: bytes, end: bytes, *, before: bytes = b"", data: bytes = b"data: ") -> bytes:
    """Return an event with a text, each of its lines on one of the event."""
    lines = [*([before] if before else []), *[data + line for line in text.split(b"\n")], b"", b""]
    return end.join(lines)


@pytest.mark.parametrize("size", [997, 1 << 16, 1 << 20])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("data", [b"data: ", b"data:"])
async def test_long_events_are_read_like_short_ones(end: bytes, size: int, data: bytes) -> None:
    for text in (LONG, LONG.replace(b"\n", b"")):
        event = event_of(text, end, before=b"id: 7", data=data)
        got = await passed_on("text/event-stream", event + FINE + event, size)
        first, middle, last, nothing = got.split(b"\n\n")
        assert middle + b"\n\n" == FINE
        assert not nothing
        for written in (first, last):
            field, line = written.split(b"\n")
            assert field == b"id: 7"
            assert json.loads(line.removeprefix(b"data: "))["id"] == 7


async def test_results_of_long_events_are_those_that_were_sent() -> None:
    for end in (b"\n", b"\r\n", b"\r"):
        inbox = Inbox()
        stream = bodies.ReadableEvents(Pieces(event_of(LONG, end), 1_000), inbox)
        got = b"".join([piece async for piece in stream])
        assert inbox.take(json.loads(got.removeprefix(b"data: "))["result"]) == {"a": ["x" * 1_000] * 400}


@pytest.mark.parametrize("field", [b"event: ping", b"event: " + b"m" * 2_000])
async def test_long_events_of_other_kinds_are_left_out(field: bytes) -> None:
    events = event_of(LONG, b"\n", before=field) + FINE
    assert await passed_on("text/event-stream", events, 997) == FINE


@pytest.mark.parametrize("line", [b": ", b"id: ", b"unknown: ", b"dat", b"data"])
async def test_long_lines_without_data_are_left_out(line: bytes) -> None:
    events = line + b"7" * 200_000 + b"\nid: 5\nevent: message\n\n" + FINE
    assert await passed_on("text/event-stream", events, 997) == b"id: 5\nevent: message\n\n" + FINE


async def test_lines_of_data_without_a_text_are_lines_of_a_long_event() -> None:
    events = b"data\ndata:\ndata: " + LONG.replace(b"\n", b"") + b"\ndata\n\n"
    got = await passed_on("text/event-stream", events, 997)
    assert json.loads(got.removeprefix(b"data: "))["id"] == 7


async def test_a_long_event_without_an_end_is_read() -> None:
    for end in (b"", b"\n", b"\r"):
        got = await passed_on("text/event-stream", b"data: " + LONG.replace(b"\n", b"") + end, 997)
        assert json.loads(got.removeprefix(b"data: "))["id"] == 7


async def test_long_junk_is_cut_or_left_out() -> None:
    events = b"data: " + b"x" * 300_000 + b"\n\n" + FINE
    assert await passed_on("text/event-stream", events, 997, method="GET") == FINE
    got = await passed_on("text/event-stream", events, 997)
    assert got == b"data: " + b"x" * 65_536 + b"\n\n" + FINE


async def test_long_events_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b"data: " + b"x" * 200 + b"\n"
    with pytest.raises(httpx2.ReadError, match="more than 1,000 lines"):
        await passed_on("text/event-stream", lines * 1_001 + b"\n", 997)
    await passed_on("text/event-stream", lines * 1_000 + b"\n", 997)
    monkeypatch.setattr(bodies, "MAX_MESSAGE_BYTES", 1 << 20)
    with pytest.raises(httpx2.ReadError, match="more than 1 MiB in one event"):
        await passed_on("text/event-stream", b"data: " + b"x" * (2 << 20), 1 << 16, method="GET")


async def test_the_loop_goes_on_while_a_long_event_comes() -> None:
    with counted_turns() as turns:
        await passed_on("text/event-stream", b"data: " + b" " * 1_000_000, 1_000)
    assert len(turns) >= 990
