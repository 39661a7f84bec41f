"""The host's end against peers that are not what they should be."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import random
import socket
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from aisotools.core.exceptions import ChannelError, SandboxError, WorkerDied
from aisotools.core.protocols import OutputCaps, Programs
from aisotools.core.types import ToolResult
from aisotools.sandbox.frames import Frame, FrameReader, encode
from aisotools.sandbox.host.calls import PendingCall
from aisotools.sandbox.host.connection import WorkerConnection
from aisotools.sandbox.host.failures import describe_exit
from aisotools.sandbox.host.programs import scope_of
from aisotools.sandbox.host.transport import READ_BYTES
from aisotools.sandbox.process.spawn import WorkerHandles
from aisotools.sandbox.results import encode_result
from tests.sandbox.rig import ReportLog, rss_bytes
from tests.waiting import HANG_S, eventually


def _unread_bytes(descriptor: int) -> int:
    count = bytearray(4)
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return 0  # closed
    return int.from_bytes(count, sys.byteorder)


class Peer:
    """A connection, and the other ends of its sockets in our own hands."""

    def __init__(self, **callbacks: Any) -> None:
        ours, self.channel = socket.socketpair()
        control, self.control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        out, self.out = os.pipe()
        err, self.err = os.pipe()
        for end in (ours, control, self.channel, self.control):
            end.setblocking(False)
        for descriptor in (out, err, self.out, self.err):
            os.set_blocking(descriptor, False)
        self._host_ends = (ours.fileno(), control.fileno(), out, err)
        self.reported = ReportLog()
        self.lost: list[str] = []
        self.replaced: list[str] = []
        self.seen: list[dict[str, Any]] = []
        handles = WorkerHandles(channel=ours, control=control, out=io.FileIO(out), err=io.FileIO(err))
        self.connection = WorkerConnection(
            handles,
            listener=self.reported,
            on_lost=lambda _connection, reason: self.lost.append(reason),
            on_paths_replaced=self.replaced.extend,
            **callbacks,
        )

    def say(self, op: str, header: dict[str, Any] | None = None, parts: tuple[bytes, ...] = ()) -> None:
        self.channel.setblocking(True)
        self.channel.sendall(encode(op, header, parts))
        self.channel.setblocking(False)

    def send_control(self, **message: Any) -> None:
        self.control.send(to_json(message))

    async def start(self) -> None:
        """Report as a worker and its supervisor do when they have started."""
        self.say("ready")
        self.send_control(op="started", worker=0, supervisor=os.getpid(), scratch="")
        await self.connection.ready

    def call(
        self,
        call_id: str = "c",
        *,
        stream_bytes: int = 1000,
        holds_main_thread: bool = True,
        starts_task: bool = False,
        programs: Programs = "any",
    ) -> PendingCall:
        return self.connection.start_call(
            call_id,
            {},
            [b"{}"],
            stream_bytes=stream_bytes,
            holds_main_thread=holds_main_thread,
            starts_task=starts_task,
            programs=programs,
        )

    def requests(self) -> list[dict[str, Any]]:
        """What the supervisor was asked."""
        found: list[dict[str, Any]] = []
        while True:
            try:
                packet = self.control.recv(1 << 16)
            except BlockingIOError:
                return found
            found.append(from_json(packet))

    def requests_seen(self) -> int:
        """How many requests the supervisor has got; they are in `seen`."""
        self.seen += self.requests()
        return len(self.seen)

    @property
    def is_busy(self) -> bool:
        """Whether the host still handles what it has read."""
        return self.connection._worker.socket.is_busy

    async def settle(self) -> None:
        """Wait until the host has read everything that was sent, and has handled it."""
        while any(map(_unread_bytes, self._host_ends)) or self.is_busy:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)

    async def lost_because(self) -> str:
        await eventually(lambda: self.lost)
        assert len(self.lost) == 1
        return self.lost[0]

    def close(self) -> None:
        self.connection.close()
        self.channel.close()
        self.control.close()
        for descriptor in (self.out, self.err):
            os.close(descriptor)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    await peer.start()
    yield peer
    peer.close()


@pytest.fixture
async def unready() -> AsyncIterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


# ---- the good case


async def test_a_call(peer: Peer) -> None:
    call = peer.call("the id")
    (frame,) = FrameReader().feed(peer.channel.recv(1000))
    assert (frame.op, frame.header) == ("call", {"id": call.number, "call_id": "the id"})
    peer.say("out", {"id": str(call.number), "stream": "stdout", "text": "hello\n"})
    peer.say("emit", {"id": call.number, "name": "progress", "payload": {"done": 3}})
    pieces = encode_result(ToolResult.text("x"), OutputCaps())
    peer.say("done", {"id": call.number}, pieces)
    assert await call.future == pieces
    assert peer.reported.outputs == [("the id", "stdout", "hello\n")]
    assert peer.reported.emits == [("the id", "progress", {"done": 3})]
    assert repr(peer.connection) == "<WorkerConnection pid=0 1 calls>"
    peer.connection.calls.finish(call)
    assert not peer.connection.calls


async def test_text_that_came_in_one_go_is_one_piece(peer: Peer) -> None:
    first, second = peer.call("a"), peer.call("b", holds_main_thread=False)
    data = b"".join(
        encode("out", {"id": str(number), "stream": stream, "text": text})
        for number, stream, text in [
            (first.number, "stdout", "1\n"),
            (first.number, "stdout", "2\n"),
            (second.number, "stdout", "x"),
            (first.number, "stdout", "3\n"),
            (first.number, "stderr", "e"),
            (first.number, "stderr", "e"),
        ]
    )
    peer.channel.send(data)
    await peer.settle()
    assert peer.reported.outputs == [
        ("a", "stdout", "1\n2\n"),
        ("b", "stdout", "x"),
        ("a", "stdout", "3\n"),
        ("a", "stderr", "ee"),
    ]


async def test_raw_output_goes_to_the_call_that_holds_the_thread_and_keeps_its_place(peer: Peer) -> None:
    """Even when all of it is there before the host looks."""
    call = peer.call("a")
    peer.call("b", holds_main_thread=False)

    def print_text(text: str, **more: int) -> None:
        peer.say("out", {"id": str(call.number), "stream": "stdout", "text": text, **more})

    print_text("1\n")
    os.write(peer.out, b"2\n")
    print_text("3\n", after=2)
    print_text("4\n", after=2)
    os.write(peer.out, b"5\n")
    os.write(peer.err, b"e\xc3")
    await peer.settle()
    os.write(peer.err, b"\xa9")
    print_text("6\n")
    peer.say("done", {"id": call.number}, (b"",) * 4)
    await call.future
    assert peer.reported.text("a") == "1\n2\n3\n4\n5\n6\n"
    assert peer.reported.text("a", "stderr") == "eé"
    assert call.output.texts() == {"stdout": "1\n2\n3\n4\n5\n6\n", "stderr": "eé"}
    assert call.output.has_raw


async def test_raw_output_of_an_only_call_is_its_own_and_that_of_none_is_nobody_s(peer: Peer) -> None:
    os.write(peer.out, b"nobody\n")
    await peer.settle()
    call = peer.call("a", holds_main_thread=False)
    os.write(peer.out, b"a\n")
    await peer.settle()
    peer.call("b", holds_main_thread=False)
    os.write(peer.out, b"either\n")
    await peer.settle()
    assert peer.reported.outputs == [
        ("", "stdout", "nobody\n"),
        ("a", "stdout", "a\n"),
        ("", "stdout", "either\n"),
    ]
    peer.connection.calls.finish(call)


async def test_output_after_the_end_of_a_call_belongs_to_it(peer: Peer) -> None:
    call = peer.call("a", stream_bytes=10)
    peer.say("out", {"id": str(call.number), "stream": "stdout", "text": "12345"})
    await peer.settle()
    peer.connection.calls.finish(call)
    for _ in range(3):
        peer.say("out", {"id": str(call.number), "stream": "stdout", "text": "late"})
    await peer.settle()
    assert peer.reported.text("a") == "12345latel"
    assert not peer.lost


# ---- hostile frames


BROKEN: dict[str, bytes] = {
    "garbage": b"\xff" * 100,
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "giant header": struct.pack("!II", 1 << 31, 0),
    "giant body": struct.pack("!II", 10, 1 << 31),
    "no JSON": struct.pack("!II", 4, 0) + b"nope",
    "no op": struct.pack("!II", 2, 0) + b"{}",
    "unknown op": encode("format_disk", {"id": 1}),
    "call back": encode("call", {"id": 1}),
    "second ready": encode("ready"),
    "second failure": encode("failed", {"error": "x"}),
    "out without id": encode("out", {"stream": "stdout", "text": "x"}),
    "out of no stream": encode("out", {"id": "1", "stream": "stdlog", "text": "x"}),
    "out with a number": encode("out", {"id": "1", "stream": "stdout", "text": 3}),
    "out with a list": encode("out", {"id": ["1"], "stream": "stdout", "text": "x"}),
    "out of a list": encode("out", {"id": "1", "stream": ["stdout"], "text": "x"}),
    "out after something": encode("out", {"id": "1", "stream": "stdout", "text": "x", "after": "3"}),
    "out after less than nothing": encode("out", {"id": "1", "stream": "stdout", "text": "x", "after": -3}),
    "emit without name": encode("emit", {"id": 1, "payload": {}}),
    "emit of a list": encode("emit", {"id": 1, "name": "x", "payload": []}),
    "emit named by a dict": encode("emit", {"id": 1, "name": {}, "payload": {}}),
    "done without id": encode("done", {}),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
async def test_a_broken_protocol_ends_the_worker(peer: Peer, data: bytes) -> None:
    call = peer.call()
    peer.channel.send(data)
    reason = await peer.lost_because()
    assert reason.startswith("it broke the protocol of the call channel: ")
    assert len(reason) < 400
    with pytest.raises(WorkerDied):
        await call.future
    assert {"op": "kill"} in peer.requests()
    with pytest.raises(WorkerDied):
        peer.call()


HARMLESS: dict[str, bytes] = {
    "done of nobody": encode("done", {"id": 77}, (b"x",)),
    "done of text": encode("done", {"id": "1"}, (b"x",)),
    "done of true": encode("done", {"id": True}, (b"x",)),
    "done of a list": encode("done", {"id": [1]}, (b"x",)),
    "done of a giant": encode("done", {"id": 10**40}, (b"x",)),
    "emit of nobody": encode("emit", {"id": 77, "name": "x", "payload": {}}),
    "emit far too large": encode("emit", {"id": 1, "name": "x", "payload": {"a": "x" * 200_000}}),
    "out of nobody": encode("out", {"id": "77", "stream": "stdout", "text": ""}),
    "out of minus one": encode("out", {"id": "-1", "stream": "stdout", "text": ""}),
    "out of a giant": encode("out", {"id": "9" * 5000, "stream": "stdout", "text": ""}),
    "out of another script": encode("out", {"id": "²", "stream": "stdout", "text": ""}),
    "half a frame": encode("done", {"id": 1}, (b"x" * 100,))[:50],
    "nothing": b"",
}


@pytest.mark.parametrize("data", HARMLESS.values(), ids=HARMLESS)
async def test_forged_ids_and_excess_are_dropped(peer: Peer, data: bytes) -> None:
    call = peer.call()
    peer.channel.send(data)
    await peer.settle()
    assert not peer.lost
    assert not call.future.done()
    assert not peer.reported.emits
    assert not peer.reported.outputs


async def test_a_second_done_changes_nothing(peer: Peer) -> None:
    call = peer.call()
    for text in (b"first", b"second"):
        peer.say("done", {"id": call.number}, (text,))
    await peer.settle()
    assert await call.future == (b"first",)


FLOODS: dict[str, Callable[[int], bytes]] = {
    "done": lambda number: encode("done", {"id": number + 1000}),
    "emit": lambda number: encode("emit", {"id": 1, "name": "n", "payload": {"n": number}}),
    "out": lambda _: encode("out", {"id": "1", "stream": "stdout", "text": "xxxxxxxxxx\n"}),
    "out of nobody": lambda number: encode("out", {"id": f"{number}", "stream": "stdout", "text": "x" * 50}),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_a_flood_ends_the_worker_and_leaves_the_loop_free(
    peer: Peer, flood: Callable[[int], bytes]
) -> None:
    peer.call(stream_bytes=10_000)
    block = b"".join(map(flood, range(1, 2000)))
    before, view = rss_bytes(), memoryview(block)
    most_at_once = 0
    while not peer.lost:
        try:
            view = view[peer.channel.send(view) :] or memoryview(block)
        except BlockingIOError:
            unread = _unread_bytes(peer._host_ends[0])
            await asyncio.sleep(0)  # one turn of the loop
            most_at_once = max(most_at_once, unread - _unread_bytes(peer._host_ends[0]))
    assert "floods the channel" in peer.lost[0]
    assert rss_bytes() - before < 20 << 20
    assert len(peer.reported.outputs) < 25_000
    assert len(peer.reported.emits) <= 5000
    assert 0 < most_at_once <= READ_BYTES, "one turn of the loop handles one read"


async def test_chatty_but_honest_tools_are_not_a_flood(peer: Peer) -> None:
    call = peer.call(stream_bytes=1 << 20)
    for number in range(1500):
        peer.say("emit", {"id": call.number, "name": "progress", "payload": {"n": number}})
        peer.say("out", {"id": str(call.number), "stream": "stdout", "text": "x" * 100})
        if number % 20 == 0:
            await asyncio.sleep(0)
    await peer.settle()
    assert len(peer.reported.emits) == 1500
    assert not peer.lost


async def test_random_bytes_never_raise_in_the_loop() -> None:
    dice = random.Random(11)
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    good = encode("out", {"id": "1", "stream": "stdout", "text": "x"}) + encode(
        "emit", {"id": 1, "name": "n", "payload": {}}
    )
    for _ in range(200):
        peer = Peer()
        await peer.start()
        peer.call()
        damaged = bytearray(good)
        for _ in range(dice.randint(1, 5)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        peer.channel.send(damaged)
        os.write(peer.out, dice.randbytes(50))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        peer.close()
    assert errors == []


async def test_raw_floods_cost_no_memory_and_no_events(peer: Peer) -> None:
    call = peer.call(stream_bytes=1000)
    before = rss_bytes()
    written = 0
    for _ in range(3000):
        written += os.write(peer.out, b"x" * 60_000)
        await asyncio.sleep(0)
    await peer.settle()
    assert rss_bytes() - before < 5 << 20
    assert len(peer.reported.text("c")) == 1000
    assert call.output.dropped_bytes == written - 1000
    peer.say("out", {"id": str(call.number), "stream": "stdout", "text": "heard all the same"})
    await peer.settle()
    assert peer.reported.text("c").endswith("heard all the same")
    assert not peer.lost


# ---- silence and ends


async def test_a_peer_that_never_reads(peer: Peer) -> None:
    big = b"x" * (60 << 20)
    for _ in range(4):
        peer.connection.start_call("c", {}, [big], stream_bytes=0, holds_main_thread=False)
    peer.connection.start_call("c", {}, [big], stream_bytes=0, holds_main_thread=False)
    assert await peer.lost_because() == "it stopped reading its calls"


async def test_a_slow_peer_gets_everything(peer: Peer) -> None:
    big = random.Random(3).randbytes(5 << 20)
    call = peer.connection.start_call("c", {}, [big], stream_bytes=0, holds_main_thread=True)
    peer.connection.cancel_call(call)
    reader = FrameReader()
    frames: list[Frame] = []
    while len(frames) < 2:
        await asyncio.sleep(0)
        try:
            frames += reader.feed(peer.channel.recv(50_000))
        except BlockingIOError:
            continue
    assert frames[0].parts == (big,)
    assert (frames[1].op, frames[1].header) == ("cancel", {"id": call.number})
    (request,) = peer.requests()
    assert (request["op"], request["number"], request["holds"]) == ("interrupt", call.number, True)


async def test_a_call_that_is_too_large_is_refused_and_leaves_nothing(peer: Peer) -> None:
    with pytest.raises(ChannelError, match="too large to send"):
        peer.connection.start_call("c", {}, [b"x" * (65 << 20)], stream_bytes=0, holds_main_thread=True)
    assert not peer.connection.calls
    assert not peer.lost


async def test_a_closed_channel_is_noticed(peer: Peer) -> None:
    call = peer.call()
    os.write(peer.err, b"Oh no\n")
    peer.channel.close()
    with pytest.raises(WorkerDied, match="closed its call channel") as caught:
        await call.future
    assert caught.value.last_words == "Oh no"


async def test_death_of_the_worker_is_reported_with_its_last_output(peer: Peer) -> None:
    call = peer.call()
    os.write(peer.err, b"Fatal: " + b"x" * 10_000 + b" end\n")
    peer.say("out", {"id": str(call.number), "stream": "stdout", "text": "before"})
    peer.send_control(op="died", exit=-1, signal=11)
    with pytest.raises(WorkerDied, match="it was ended by SIGSEGV") as caught:
        await call.future
    assert caught.value.last_words.endswith("xxx end")
    assert len(caught.value.last_words) <= 4096
    assert peer.reported.text("c") == "before"


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"exit": 3, "signal": 0}, "it exited with status 3"),
        ({"exit": -1, "signal": 9}, describe_exit(-1, 9)),
        ({"exit": -1, "signal": 24}, describe_exit(-1, 24)),
        ({"exit": -1, "signal": 63}, "it was ended by signal 63"),
    ],
)
async def test_ends_in_words(peer: Peer, how: dict[str, int], expected: str) -> None:
    peer.send_control(op="died", **how)
    assert await peer.lost_because() == expected


async def test_a_result_sent_just_before_death_counts(peer: Peer) -> None:
    call = peer.call()
    peer.say("done", {"id": call.number}, (b"x",))
    peer.send_control(op="died", exit=0, signal=0)
    assert await call.future == (b"x",)
    await peer.lost_because()


async def test_a_lost_supervisor_loses_the_worker(peer: Peer) -> None:
    call = peer.call()
    peer.control.close()
    with pytest.raises(WorkerDied, match="its supervisor is gone"):
        await call.future
    await peer.connection.terminate("again")
    assert peer.connection.cleaned_up.done()


async def test_the_end_is_awaited(peer: Peer) -> None:
    ending = asyncio.create_task(peer.connection.terminate("enough"))
    await peer.settle()
    assert not ending.done()
    assert peer.requests() == [{"op": "kill"}]
    peer.send_control(op="ended")
    await peer.settle()
    assert peer.connection.processes_ended.done()
    assert not ending.done()
    peer.send_control(op="gone")
    await ending
    assert peer.channel.recv(10) == b""
    assert repr(peer.connection) == "<WorkerConnection pid=0 lost: enough>"


async def test_sweeping_is_awaited_and_bounded(peer: Peer) -> None:
    call, other = peer.call("mine"), peer.call("other", holds_main_thread=False, programs="named")
    peer.say("program", {"id": other.number, "pid": 77})
    await peer.settle()
    sweeping = asyncio.create_task(peer.connection.sweep(call, within_s=5))
    await peer.settle()
    (request,) = peer.requests()
    assert request == {
        "op": "sweep",
        "seq": request["seq"],
        "scope": scope_of(call, [call, other]).as_json(),
        "keep": [],
        "call": call.number,
    }
    assert not sweeping.done()
    peer.send_control(op="done", seq=request["seq"])
    await sweeping
    await peer.connection.sweep(other, within_s=0.05)  # no answer: it returns all the same


async def test_a_sweep_waits_until_the_programs_of_other_calls_are_named(peer: Peer) -> None:
    call, other = peer.call("mine"), peer.call("other", holds_main_thread=False, programs="named")
    over = peer.call("over", holds_main_thread=False, programs="named")
    sweeping = asyncio.create_task(peer.connection.sweep(call, within_s=HANG_S))
    await peer.settle()
    assert peer.requests() == []
    peer.say("program", {"id": other.number, "pid": 77})
    peer.say("done", {"id": over.number}, (b"x",))
    await eventually(peer.requests_seen)
    (request,) = peer.seen
    assert request["scope"]["programs"] == [77]
    peer.send_control(op="done", seq=request["seq"])
    await sweeping


async def test_a_sweep_does_not_wait_for_ever_for_names(peer: Peer) -> None:
    call, _ = peer.call("mine"), peer.call("other", holds_main_thread=False, programs="named")
    sweeping = asyncio.create_task(peer.connection.sweep(call, within_s=HANG_S))
    await eventually(peer.requests_seen)
    peer.send_control(op="done", seq=peer.seen[0]["seq"])
    await sweeping


async def test_the_keeper_of_a_task_is_passed_on_once_and_before_any_sweep(peer: Peer) -> None:
    call = peer.call("server", holds_main_thread=False, starts_task=True, programs="named")
    for pid in (77, 78):
        peer.say("program", {"id": call.number, "pid": pid})
    peer.say("program", {"id": 99, "pid": 79})
    peer.say("stop_program", {"id": call.number, "pid": 77, "kill": True})
    peer.say("stop_program", {"id": 99, "pid": 77, "kill": True})
    await peer.settle()
    assert peer.requests() == [
        {"op": "task", "key": str(call.number), "pid": 77},
        {"op": "stop_program", "pid": 77, "kill": True},
    ]
    assert call.program == 77


# ---- before it is ready


async def test_a_worker_that_cannot_be_confined_says_why(unready: Peer) -> None:
    unready.say("failed", {"error": "no Landlock"})
    with pytest.raises(SandboxError, match="did not start: it could not be confined: no Landlock"):
        await unready.connection.ready


async def test_anything_else_before_ready_breaks_the_protocol(unready: Peer) -> None:
    unready.say("out", {"id": "", "stream": "stdout", "text": "x"})
    with pytest.raises(SandboxError, match="a frame 'out' came before the worker was ready"):
        await unready.connection.ready


async def test_a_worker_that_dies_before_it_is_ready(unready: Peer) -> None:
    os.write(unready.err, b"fork: Resource temporarily unavailable")
    unready.channel.close()
    unready.control.close()
    with pytest.raises(SandboxError, match=r"did not start.*\n.*Resource temporarily"):
        await unready.connection.ready


async def test_closing_twice(unready: Peer) -> None:
    unready.connection.close()
    unready.connection.close()
    assert unready.connection.cleaned_up.done()


async def test_paths_that_the_supervisor_names_are_passed_on(peer: Peer) -> None:
    peer.send_control(op="replaced", paths=["a/b", "c"])
    await eventually(lambda: peer.replaced == ["a/b", "c"])
    peer.send_control(op="replaced", paths=["a", 7])
    await eventually(lambda: bool(peer.lost))
    assert "broke the protocol" in peer.lost[0]
