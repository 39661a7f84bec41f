from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from hypothesis import given, settings, strategies as st
from pydantic_core import PydanticSerializationError

from aisotools.core.exceptions import ChannelError
from aisotools.sandbox.frames import LIMITS, BlockingChannel, Frame, FrameLimits, FrameReader, encode
from tests.waiting import HANG_S

SMALL = FrameLimits(header_bytes=200, body_bytes=500, parts=4)

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
headers = st.dictionaries(st.text(max_size=8).filter(lambda k: k not in {"op", "parts"}), values, max_size=4)
frames = st.builds(
    Frame,
    op=st.text(max_size=10),
    header=headers,
    parts=st.lists(st.binary(max_size=300), max_size=4).map(tuple),
)


def raw(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("!II", len(header), len(body)) + header + body


def cut(data: bytes, at: list[int]) -> Iterator[bytes]:
    places = sorted({0, len(data), *(a % (len(data) + 1) for a in at)})
    for start, end in itertools.pairwise(places):
        yield data[start:end]


@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 5000), max_size=12))
def test_frames_survive_any_cut(sent: list[Frame], at: list[int]) -> None:
    reader = FrameReader()
    data = b"".join(encode(f.op, f.header, f.parts) for f in sent)
    received = [frame for piece in cut(data, at) for frame in reader.feed(piece)]
    assert received == sent
    assert reader.pending_bytes == 0


@settings(max_examples=3 * settings().max_examples)
@given(st.lists(st.binary(max_size=300), max_size=8))
def test_garbage_is_a_channel_error_or_waits(pieces: list[bytes]) -> None:
    reader = FrameReader(SMALL)
    with contextlib.suppress(ChannelError):
        for piece in pieces:
            reader.feed(piece)
            assert reader.pending_bytes <= 8 + SMALL.header_bytes + SMALL.body_bytes


@settings(max_examples=3 * settings().max_examples)
@given(frames, st.data())
def test_damaged_frames_are_a_channel_error_or_another_frame(frame: Frame, data: st.DataObject) -> None:
    good = bytearray(encode(frame.op, frame.header, frame.parts))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ChannelError):
        for found in FrameReader().feed(bytes(good)):
            assert isinstance(found.op, str)
            assert all(isinstance(part, bytes) for part in found.parts)


@given(st.binary(max_size=400))
def test_any_header_bytes(header: bytes) -> None:
    with contextlib.suppress(ChannelError):
        (frame,) = FrameReader().feed(raw(header))
        assert isinstance(frame.op, str)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b'"op"',
        b"{}",
        b'{"op":1}',
        b'{"op":null}',
        b'{"op":"x"',
        b'{"op":"x"} {"op":"y"}',
        b'{"op":"\xff"}',
        b'{"op":"\\ud800"}',
        b'{"op":"x","n":NaN}',
        b'{"op":"x","n":' + b"9" * 100_000 + b"}",
        b'{"op":"x","parts":3}',
        b'{"op":"x","parts":{"0":1}}',
        b'{"op":"x","parts":[1]}',
        b'{"op":"x","parts":[-1,1]}',
        b'{"op":"x","parts":[true]}',
        b'{"op":"x","parts":[0.0]}',
        b'{"op":"x","parts":["0"]}',
        b'{"op":"x","parts":[' + b"0," * 64 + b"0]}",
        b'{"op":"x","parts":[1000000000000000000000000000000]}',
        b"[" * 500_000,
        b'{"op":"x","a":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
        b'{"op":"x","a":' + b'{"a":' * 150_000 + b"1" + b"}" * 150_000 + b"}",
    ],
    ids=lambda header: header[:30].decode("latin-1"),
)
def test_malformed_header(header: bytes) -> None:
    reader = FrameReader()
    with pytest.raises(ChannelError):
        reader.feed(raw(header))
    with pytest.raises(ChannelError, match="an earlier frame was malformed"):
        reader.feed(encode("fine"))


@pytest.mark.parametrize("field", ["header", "body"])
def test_giant_announcement_is_refused_before_a_byte_of_it_is_kept(field: str) -> None:
    reader = FrameReader()
    announced = (2**32 - 1, 0) if field == "header" else (10, 2**32 - 1)
    with pytest.raises(ChannelError, match="4294967295 bytes"):
        reader.feed(struct.pack("!II", *announced))
    assert reader.pending_bytes == 0


def test_header_of_too_many_containers_is_refused_and_text_of_brackets_is_not() -> None:
    with pytest.raises(ChannelError, match="more than 131072 objects and lists"):
        FrameReader().feed(raw(b'{"op":"x","a":[' + b"[]," * 131_072 + b"[]]}"))
    (frame,) = FrameReader().feed(encode("out", {"text": "[" * 65_536}))
    assert len(frame.header["text"]) == 65_536


def test_header_of_too_many_keys_is_refused_and_text_of_colons_is_not() -> None:
    keys = b",".join(b'"%x":1' % number for number in range(70_001))
    with pytest.raises(ChannelError, match="more than 70000 keys"):
        FrameReader().feed(raw(b'{"op":"x","a":{' + keys + b"}}"))
    (frame,) = FrameReader().feed(encode("out", {"text": ":" * 65_536}))
    assert len(frame.header["text"]) == 65_536


LARGE = 32 << 20


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("piece", [1 << 16, 1 << 18])
def test_a_large_frame_is_stored_once_and_never_copied(piece: int) -> None:
    """A second copy of 64 MiB takes the memory, and longer than an event loop may stand still."""
    header = json.dumps({"op": "x", "parts": [10, LARGE - 10]}).encode()
    head, data = struct.pack("!II", len(header), LARGE) + header, b"0123456789" * (piece // 10)
    found: list[Frame] = []

    def read() -> None:
        reader = FrameReader()
        assert reader.feed(head) == []
        while reader.missing_bytes:
            found.extend(reader.feed(data[: reader.missing_bytes]))
            if found:
                break

    assert peak_bytes(read) <= LARGE + (1 << 20)
    first, second = found[0].parts
    assert (first, len(second)) == (b"0123456789", LARGE - 10)
    assert second.startswith(b"0123456789" * 2)


@pytest.mark.parametrize("sizes", [[LARGE], [5, LARGE - 5], [1 << 20] * 32])
def test_parts_that_are_not_wanted_are_never_stored(sizes: list[int]) -> None:
    asked = []

    def keep(op: str, header: object, sizes: object) -> list[bool]:
        asked.append((op, header, sizes))
        return [size < 10 for size in sizes]  # type: ignore[attr-defined]  # it is given a list

    reader, found = FrameReader(keep=keep), list[Frame]()
    header = json.dumps({"op": "x", "n": 1, "parts": sizes}).encode()

    def read() -> None:
        reader.feed(struct.pack("!II", len(header), LARGE) + header)
        data = bytes(1 << 16)
        for _ in range(LARGE // len(data)):
            found.extend(reader.feed(data))

    assert peak_bytes(read) <= 1 << 20
    assert asked == [("x", {"n": 1}, sizes)]
    dropped = {number: size for number, size in enumerate(sizes) if size >= 10}
    parts = tuple(bytes(size) if size < 10 else b"" for size in sizes)
    assert found == [Frame(op="x", header={"n": 1}, parts=parts, dropped=dropped)]
    assert reader.feed(encode("next")) == [Frame(op="next", header={})]


@given(st.lists(frames, max_size=4), st.lists(st.integers(0, 5000), max_size=12), st.integers(0, 15))
def test_parts_are_kept_wherever_the_stream_is_cut(sent: list[Frame], at: list[int], mask: int) -> None:
    reader = FrameReader(keep=lambda _op, _header, sizes: [bool(mask >> n & 1) for n in range(len(sizes))])
    data = b"".join(encode(f.op, f.header, f.parts) for f in sent)
    for frame, found in itertools.zip_longest(sent, (f for p in cut(data, at) for f in reader.feed(p))):
        dropped = {n: len(part) for n, part in enumerate(frame.parts) if part and not mask >> n & 1}
        parts = tuple(b"" if n in dropped else part for n, part in enumerate(frame.parts))
        assert found == Frame(op=frame.op, header=frame.header, parts=parts, dropped=dropped)
    assert (reader.pending_bytes, reader.missing_bytes) == (0, 8)


@pytest.mark.parametrize("sizes", [[1 << 20], [(1 << 21) - 1], [1 << 20, 1 << 20, 1], [-1, (1 << 21) + 1]])
def test_sizes_that_do_not_add_up_are_refused_before_the_body(sizes: list[int]) -> None:
    header = json.dumps({"op": "x", "parts": sizes}).encode()
    with pytest.raises(ChannelError, match="do not add up"):
        FrameReader().feed(struct.pack("!II", len(header), 1 << 21) + header)


def test_a_frame_that_may_have_no_parts_is_refused_before_they_come() -> None:
    def keep(op: str, _header: object, _sizes: object) -> list[bool]:
        raise ChannelError(f"{op} has parts")

    reader = FrameReader(keep=keep)
    assert reader.feed(encode("fine")) == [Frame(op="fine", header={})]
    header = b'{"op":"x","parts":[1000]}'
    with pytest.raises(ChannelError, match="x has parts"):
        reader.feed(struct.pack("!II", len(header), 1000) + header)
    assert reader.pending_bytes == 0


def test_the_next_bytes_are_counted_at_every_stage() -> None:
    reader, data = FrameReader(), encode("x", {"a": 1}, (b"12345", b"", b"678"))
    for number in range(len(data)):
        assert reader.pending_bytes == number
        assert reader.missing_bytes == (8 if number < 8 else len(data)) - number
        found = reader.feed(data[number : number + 1])
    assert found == [Frame(op="x", header={"a": 1}, parts=(b"12345", b"", b"678"))]


def test_a_long_header_of_nothing_costs_little() -> None:
    header = b'{"op":"x","a":[' + b"[]," * 340_000 + b"[]]}"
    assert len(header) < LIMITS.header_bytes
    tracemalloc.start()
    with contextlib.suppress(ChannelError):
        FrameReader().feed(raw(header))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 << 20


@pytest.mark.parametrize(
    ("header", "parts"),
    [
        ({"text": "x" * (1 << 20)}, ()),
        ({}, (bytes(40 << 20),) * 2),  # zeros take no memory until they are looked at
        ({}, (b"",) * 65),
    ],
)
def test_messages_that_the_peer_would_refuse_are_not_sent(
    header: dict[str, Any], parts: tuple[bytes, ...]
) -> None:
    with pytest.raises(ChannelError, match="too large to send"):
        encode("x", header, parts)


def test_values_that_are_no_json_are_not_sent() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = BlockingChannel(ours)
        with pytest.raises(PydanticSerializationError):
            channel.send("x", {"a": object()})
        with pytest.raises(PydanticSerializationError):
            channel.send("x", {"a": "\ud800"})
        channel.send("fine")
        assert FrameReader().feed(theirs.recv(1000)) == [Frame(op="fine", header={})]


def test_special_floats_travel_as_text() -> None:
    (frame,) = FrameReader().feed(encode("x", {"a": [float("nan"), float("inf")]}))
    assert frame.header == {"a": ["NaN", "Infinity"]}


class Peer:
    """The other end: reads everything into frames, in a thread."""

    def __init__(self) -> None:
        self.ours, self._theirs = socket.socketpair()
        self.frames: list[Frame] = []
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ours.close()
        self._thread.join()
        self._theirs.close()
        assert self.error is None

    def _read(self) -> None:
        reader = FrameReader()
        while data := self._theirs.recv(1 << 16):
            try:
                self.frames += [Frame(op=f.op, header=f.header) for f in reader.feed(data)]
            except ChannelError as error:
                self.error = error


def test_threads_do_not_mix_their_frames() -> None:
    with Peer() as peer:
        channel = BlockingChannel(peer.ours)

        def send(name: str) -> None:
            for number in range(200):
                channel.send(name, {"n": number}, (b"x" * 5000,))

        threads = [threading.Thread(target=send, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name in "abcd":
        assert [f.header["n"] for f in peer.frames if f.op == name] == list(range(200))


class Torn(Exception):
    """Raised by a signal handler wherever it strikes."""


def test_signal_handlers_that_raise_or_print_do_not_tear_frames() -> None:
    dice = random.Random(7)
    armed = False
    with Peer() as peer:
        channel = BlockingChannel(peer.ours)

        def strike(*_: object) -> None:
            channel.send("struck")
            if armed and dice.random() < 0.5:
                raise Torn

        before = signal.signal(signal.SIGALRM, strike)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        torn, number = 0, 0
        try:
            while torn < 200:
                try:
                    armed = True
                    channel.send("x", {"n": number}, (b"x" * dice.choice((1, 3000, 400_000)),))
                    armed = False
                except Torn:
                    armed = False
                    torn += 1
                number += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        channel.send("end")
    numbers = [f.header["n"] for f in peer.frames if f.op == "x"]
    assert numbers == sorted(
        set(numbers)
    )  # one may be missing, if it was hit before it was taken; none twice
    assert peer.frames[-1].op == "end"


def test_the_end_of_the_other_side() -> None:
    ours, theirs = socket.socketpair()
    channel = BlockingChannel(ours)
    theirs.sendall(encode("x")[:5])
    assert channel.receive() == []
    theirs.close()
    with pytest.raises(EOFError):
        channel.receive()
    with pytest.raises(OSError, match="Broken pipe"):
        channel.send("x")
    channel.close()


def test_json_that_other_parsers_write_is_understood() -> None:
    header = json.dumps({"op": "x", "text": "ünïcode \N{SNOWMAN}", "nul": "\0", "parts": [2, 0]}).encode()
    (frame,) = FrameReader().feed(raw(header, b"ab"))
    assert frame.header == {"text": "ünïcode \N{SNOWMAN}", "nul": "\0"}
    assert frame.parts == (b"ab", b"")


@pytest.mark.parametrize("blocks", [True, False])
def test_a_channel_works_whether_or_not_its_socket_blocks(blocks: bool) -> None:
    ours, theirs = socket.socketpair()
    big = random.Random(7).randbytes(3 << 20)
    with ours, theirs:
        sender, receiver = BlockingChannel(ours), BlockingChannel(theirs)
        for end in (ours, theirs):
            os.set_blocking(end.fileno(), blocks)
        received: list[Frame] = []

        def receive() -> None:
            while not received:
                received.extend(receiver.receive())

        thread = threading.Thread(target=receive)
        thread.start()
        sender.send("done", {"id": 1}, (big,))
        thread.join(HANG_S)
        assert not thread.is_alive()
        assert received[0].parts == (big,)
