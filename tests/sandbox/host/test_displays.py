"""Large displays, from the socket of a worker to the sink that watches: order, limits, stalls, early ends."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from pydantic_core import from_json, to_json

from aisotools.core.concurrency import with_ticks
from aisotools.core.exceptions import ChannelError, WorkerDied
from aisotools.sandbox.frames import encode
from aisotools.sandbox.host import displays
from aisotools.sandbox.host.displays import DisplayMessage, DisplayRouter, show_in_steps
from aisotools.sandbox.parsing import MAX_KEYS
from aisotools.sandbox.worker.output import ExecuteOptions
from tests import stalls
from tests.sandbox.host.test_connection import Peer
from tests.sandbox.hostile_displays import SHAPES, SIZE, bundle
from tests.stalls import stall_limit_s
from tests.waiting import eventually

MAX_STALL_S = 0.05
LARGE = bundle("text/plain", "x", 1 << 20)
# One of each way to take long: containers, keys, numbers, texts, escapes, depth, size. The others are further
# lists, or long texts, which are alike for a sink that looks at nothing.
TYPICAL = [
    "objects with an entry",
    "different keys",
    "digits",
    "empty texts",
    "escapes",
    "nested lists",
    "one long text",
    "many types",
    "types with long names",
]
# The shapes that take longest to parse; others do so when they are shown.
SLOW_TO_PARSE = ["different keys", "digits", "fractions", "empty texts"]


class Sink:
    """A `DisplaySink` that notes what comes, with the printed text in between.

    Attributes:
        seen: What came, each as text.
        hold: What `show` waits for when it gets something large; None not to wait.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.hold: asyncio.Event | None = None
        self.is_showing = asyncio.Event()

    def show(self, _call_id: str, message: DisplayMessage, /) -> Awaitable[None] | None:
        if self.hold is None or not message.json:
            self.seen.append(_described(message))
            return None
        return self._show_later(message, self.hold)

    async def _show_later(self, message: DisplayMessage, hold: asyncio.Event) -> None:
        self.is_showing.set()
        await hold.wait()
        self.seen.append(_described(message))

    def dropped(self, _call_id: str, /) -> None:
        self.seen.append("dropped")

    async def ask(self, _call_id: str, _prompt: str, /, *, password: bool) -> str | None:
        raise AssertionError(password)


def _described(message: DisplayMessage) -> str:
    text = json.dumps(dict(message.bundle))
    return f"{message.kind} {text}" if len(text) < 100 else f"{message.kind} of {len(text)}"


class Watched(Peer):
    """A worker in our own hands, of which one call is watched; printed text is noted with its displays."""

    def __init__(self, **callbacks: Any) -> None:
        router = DisplayRouter()
        super().__init__(displays=router, **callbacks)
        self.sink = Sink()
        router.watch("c", self.sink, ExecuteOptions())
        self.reported.output = self._note_output  # type: ignore[method-assign]  # into the same list

    def _note_output(self, call_id: str, stream: str, text: str) -> None:
        assert (call_id, stream) == ("c", "stdout")
        self.sink.seen.append(text)

    async def send(self, *frames: bytes) -> None:
        """Send more than the socket holds, while the host reads."""
        for frame in frames:
            await asyncio.get_running_loop().sock_sendall(self.channel, frame)


def show(body: bytes, what: str = "display", **header: Any) -> bytes:
    return encode("show", {"id": 1, "what": what, **header}, (body,))


def out(text: str) -> bytes:
    return encode("out", {"id": "1", "stream": "stdout", "text": text})


@asynccontextmanager
async def watched(**callbacks: Any) -> AsyncIterator[Watched]:
    peer = Watched(**callbacks)
    await peer.start()
    try:
        yield peer
    finally:
        peer.close()


# ---- the event loop goes on


def longest_stall_s(work: Callable[[], Coroutine[Any, Any, object]], tries: int = 3) -> float:
    """Return for how long the loop stood still at most; of several runs, of the calmest one."""

    async def main(stalled: stalls.Stalls) -> float:
        ticking = asyncio.ensure_future(with_ticks(asyncio.Event().wait(), 0.005, lambda: None))
        await asyncio.sleep(0)
        stalled.is_paused = True
        await asyncio.sleep(0)
        stalled.longest_s = 0.0
        await work()
        ticking.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return stalled.longest_s

    found = []
    for _ in range(tries):
        found.append(stalls.run(main))
        if found[-1] <= stall_limit_s():
            break
    return min(found)


@pytest.mark.parametrize(
    "shape", [name if name in TYPICAL else pytest.param(name, marks=pytest.mark.slow) for name in SHAPES]
)
def test_no_display_holds_up_the_loop(shape: str) -> None:
    body = SHAPES[shape]()
    assert len(body) <= SIZE

    async def send() -> None:
        async with watched() as peer:
            call = peer.call()
            peer.sink.show = lambda _call, message: peer.sink.seen.append(message.kind)  # type: ignore[method-assign]  # looks at nothing
            await peer.send(show(body), encode("done", {"id": 1}, (b"",) * 4))
            await call.future
            assert peer.sink.seen == ["display"]

    assert longest_stall_s(send) <= stall_limit_s()


@pytest.mark.parametrize("shape", SLOW_TO_PARSE)
def test_the_control_a_display_that_is_parsed_at_once_does(shape: str) -> None:
    body = SHAPES[shape]()

    async def parse() -> None:
        bundle = from_json(body, cache_strings="keys")
        del bundle

    assert longest_stall_s(parse, tries=1) > MAX_STALL_S


def test_no_display_holds_up_the_loop_when_it_is_left_out_halfway() -> None:
    body = SHAPES["digits"]()

    async def send() -> None:
        task = asyncio.ensure_future(show_in_steps(body, lambda _: asyncio.Event().wait()))  # type: ignore[arg-type,return-value]  # for ever
        for _ in range(200):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert displays._releasing
        while displays._releasing:
            await asyncio.wait(displays._releasing)

    assert longest_stall_s(send) <= stall_limit_s()


def test_thousands_of_displays_at_once_do_not() -> None:
    frames = b"".join(show(b'{"text/plain":"%d"}' % number) for number in range(4_000))

    async def send() -> None:
        async with watched() as peer:
            call = peer.call()

            def work(_call_id: str, message: DisplayMessage, /) -> None:
                json.dumps([dict(message.bundle)] * 200)  # as much work as to sign a message
                peer.sink.seen.append("shown")

            peer.sink.show = work  # type: ignore[method-assign]  # takes long
            await peer.send(frames, encode("done", {"id": 1}, (b"",) * 4))
            await call.future
            assert peer.sink.seen == ["shown"] * 4_000

    assert longest_stall_s(send) <= stall_limit_s()


# ---- order


async def test_text_and_displays_around_a_large_display_keep_their_places() -> None:
    async with watched() as peer:
        call = peer.call()
        small = b'{"a":%d}'
        await peer.send(
            out("1\n"),
            show(small % 1),
            out("2\n"),
            show(LARGE),
            out("3\n"),
            show(small % 2),
            show(LARGE, "update"),
            show(small % 3, "result"),
            out("4\n"),
            encode("done", {"id": 1}, (b"x",)),
        )
        assert await call.future == (b"x",)
        large = f"of {(1 << 20) + len('{`text/plain`: ``}')}"
        assert peer.sink.seen == [
            "1\n",
            'display {"a": 1}',
            "2\n",
            f"display {large}",
            "3\n",
            'display {"a": 2}',
            f"update {large}",
            'result {"a": 3}',
            "4\n",
        ]


async def test_output_of_programs_keeps_its_place_beside_a_large_display() -> None:
    async with watched() as peer:
        call = peer.call()
        peer.sink.hold = asyncio.Event()
        os.write(peer.out, b"before\n")
        await peer.send(show(LARGE, after={"stdout": 7}))
        await peer.sink.is_showing.wait()
        os.write(peer.out, b"after\n")
        for _ in range(20):
            await asyncio.sleep(0)
        assert peer.sink.seen == ["before\n"]
        peer.sink.hold.set()
        await eventually(lambda: len(peer.sink.seen) == 3)
        assert [text[:10] for text in peer.sink.seen] == ["before\n", "display of", "after\n"]
        assert not call.future.done()


async def test_nothing_is_read_behind_a_display_that_is_being_shown() -> None:
    async with watched() as peer:
        peer.call(stream_bytes=1 << 24)
        peer.sink.hold = asyncio.Event()
        await peer.send(show(LARGE))
        await peer.sink.is_showing.wait()
        sending = asyncio.ensure_future(peer.send(*[out("x" * 60_000)] * 100))
        for _ in range(200):
            await asyncio.sleep(0)
        assert not sending.done(), "the sender waits"
        assert peer.sink.seen == []
        peer.sink.hold.set()
        await sending


BUNDLES = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=5), inner, max_size=9),
        max_leaves=30,
    ),
    max_size=5,
)


@settings(max_examples=settings().max_examples // 2, suppress_health_check=list(HealthCheck))
@given(value=BUNDLES, repeats=st.integers(1, 400))
@example(value={"a": "\U0010ffff\u0000" * 3, "b": [[], {}, "", -0.0, 10**40]}, repeats=9_000)
async def test_a_sink_gets_of_a_large_display_what_it_gets_of_a_small_one(
    value: dict[str, Any], repeats: int
) -> None:
    body = to_json({"whole": [value] * repeats, "more": value, "room": "x" * 9_000})
    got: list[str] = []
    async with watched() as peer:
        call = peer.call()

        def note(_call_id: str, message: DisplayMessage, /) -> None:
            assert message.json == body
            got.append(repr(message.bundle))

        peer.sink.show = note  # type: ignore[method-assign]  # notes all of it
        await peer.send(show(body), encode("done", {"id": 1}, (b"",) * 4))
        await call.future
    assert got == [repr(from_json(body, allow_inf_nan=False))]


# ---- limits, and what is malformed


async def test_an_object_of_too_many_keys_is_left_out_and_the_call_goes_on() -> None:
    keys = ",".join(f'"{number}":0' for number in range(MAX_KEYS + 1))
    async with watched() as peer:
        call = peer.call()
        await peer.send(show(b'{"x/y":{%s}}' % keys.encode()), encode("done", {"id": 1}, (b"x",)))
        await call.future
        assert peer.sink.seen == ["dropped"]
        assert not peer.lost


async def test_brackets_in_text_are_no_containers() -> None:
    async with watched() as peer:
        call = peer.call()
        await peer.send(
            show(bundle("text/plain", "\\u001b[m", 1_200_000)), encode("done", {"id": 1}, (b"x",))
        )
        await call.future
        assert peer.sink.seen == [f"display of {8 * 1_200_000 + 18}"]


@pytest.mark.parametrize("end", [b"", b"]", b"}]", b',"b":}', b',"b":NaN}'])
async def test_a_large_display_that_is_malformed_ends_the_worker(end: bytes) -> None:
    async with watched() as peer:
        call = peer.call()
        await peer.send(show(LARGE[:-1] + end), out("never\n"))
        assert "it broke the protocol of the call channel: a display is not JSON" in await peer.lost_because()
        with pytest.raises(WorkerDied, match="a display is not JSON"):
            await call.future
        assert peer.sink.seen == []


async def test_a_large_list_is_no_display() -> None:
    with pytest.raises(ChannelError, match="a display is not an object"):
        await show_in_steps(b"[%s1]" % (b"1," * 100_000), lambda _: None)


async def test_a_sink_that_fails_ends_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    async with watched() as peer:
        peer.call()

        async def fail(_message: object) -> None:
            raise ZeroDivisionError

        peer.sink.show = lambda _call, message: fail(message)  # type: ignore[method-assign]  # fails
        await peer.send(show(LARGE))
        assert "could not be handled (ZeroDivisionError)" in await peer.lost_because()
        assert "A frame was not understood" in caplog.text


# ---- early ends


async def test_a_stop_leaves_out_the_display_that_the_result_waits_for() -> None:
    async with watched() as peer:
        call = peer.call()
        peer.sink.hold = asyncio.Event()  # never set
        await peer.send(show(LARGE), out("last\n"), show(b"{}"), encode("done", {"id": 1}, (b"x",)))
        await peer.sink.is_showing.wait()
        peer.connection.cancel_call(call)
        assert await call.future == (b"x",)
        assert peer.sink.seen == ["dropped", "last\n", "display {}"]
        assert not peer.lost


async def test_a_call_that_is_being_stopped_may_show_what_is_parsed_soon() -> None:
    async with watched() as peer:
        call = peer.call()
        peer.connection.cancel_call(call)
        larger = bundle("text/plain", "x", 2 << 20)
        await peer.send(show(LARGE[:1000] + LARGE[-2:]), show(larger), encode("done", {"id": 1}, (b"x",)))
        await call.future
        assert [text[:10] for text in peer.sink.seen] == ["display of", "dropped"]


async def test_a_worker_that_dies_during_a_display_is_heard_to_its_end() -> None:
    reasons: list[str] = []
    async with watched(on_worker_exit=lambda _connection, reason: reasons.append(reason)) as peer:
        call = peer.call()
        peer.sink.hold = asyncio.Event()
        await peer.send(show(LARGE), out("last\n"), encode("done", {"id": 1}, (b"x",)), out("later\n"))
        await peer.sink.is_showing.wait()
        peer.send_control(op="died", worker=0, exit=0, signal=9)
        for _ in range(50):
            await asyncio.sleep(0)
        assert reasons == []
        peer.sink.hold.set()
        assert await call.future == (b"x",), "a result that was sent before the end counts"
        await eventually(lambda: reasons)
        assert [text[:10] for text in peer.sink.seen] == ["display of", "last\n", "later\n"]


@pytest.mark.parametrize("how", ["lose", "close"])
async def test_the_end_of_the_tree_ends_what_is_in_work(how: str) -> None:
    async with watched() as peer:
        call = peer.call()
        peer.sink.hold = asyncio.Event()
        await peer.send(show(LARGE), out("never\n"))
        await peer.sink.is_showing.wait()
        if how == "lose":
            peer.connection.lose("it is enough")
            with pytest.raises(WorkerDied, match="it is enough"):
                await call.future
        else:
            peer.connection.close()
        await eventually(lambda: peer.sink.seen == ["dropped"])
        peer.sink.hold.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert peer.sink.seen == ["dropped"]


async def test_a_worker_that_is_set_aside_and_taken_back_goes_on_where_it_was() -> None:
    async with watched() as peer:
        peer.call()
        peer.sink.hold = asyncio.Event()
        await peer.send(show(LARGE), out("later\n"))
        await peer.sink.is_showing.wait()
        peer.connection.suspend()
        peer.sink.hold.set()
        await eventually(lambda: len(peer.sink.seen) == 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(peer.sink.seen) == 1, "nothing more is handled"
        peer.connection.resume()
        await eventually(lambda: peer.sink.seen[1:] == ["later\n"])
        os.write(peer.out, b"raw\n")
        await eventually(lambda: peer.sink.seen[2:] == ["raw\n"])
