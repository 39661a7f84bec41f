"""Frames of a process, handled in order whatever they take, whatever becomes of the process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aisotools.core.exceptions import ChannelError
from aisotools.sandbox.frames import Frame, encode
from aisotools.sandbox.host.transport import FrameChannel
from tests.waiting import eventually


class End:
    """A channel whose frames are noted by their op; "work" takes until `work` is set, "bad" fails."""

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair()
        self.seen: list[str] = []
        self.work = asyncio.Event()
        self.channel = FrameChannel(
            ours,
            handle=self._handle,
            on_read=lambda: self.seen.append("read"),
            on_handled=lambda: self.seen.append("handled"),
            on_idle=lambda: self.seen.append("idle"),
            on_closed=lambda: self.seen.append("closed"),
            on_broken=lambda reason: self.seen.append(f"broken: {reason}"),
            on_overflow=lambda: self.seen.append("overflow"),
        )

    def _handle(self, frame: Frame) -> asyncio.Task[None] | None:
        if frame.op == "bad":
            raise ChannelError("it is bad")
        if frame.op.startswith("work"):
            return asyncio.ensure_future(self._work(frame))
        self.seen.append(frame.op)
        return None

    async def _work(self, frame: Frame) -> None:
        self.seen.append("begun")
        await self.work.wait()
        if frame.op == "work badly":
            raise ChannelError("it is bad as well")
        self.seen.append(frame.op)

    def send(self, *ops: str) -> None:
        self.peer.sendall(b"".join(map(encode, ops)))

    async def until(self, what: str) -> None:
        await eventually(lambda: what in self.seen)


@pytest.fixture
async def end() -> AsyncIterator[End]:
    made = End()
    yield made
    made.channel.close()
    made.channel.close()
    made.peer.close()


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_frames_that_cost_nothing_are_handled_at_once(end: End) -> None:
    end.send("a", "b")
    assert end.channel.read()
    assert not end.channel.read()
    assert end.seen == ["read", "a", "b", "handled"]
    assert "idle" in repr(end.channel)


async def test_frames_behind_a_task_wait_for_it(end: End) -> None:
    end.send("a", "work", "b")
    await end.until("begun")
    end.send("c")
    await _turns()
    assert end.channel.is_busy
    assert not end.channel.read()
    assert "busy" in repr(end.channel)
    assert end.seen == ["read", "a", "begun"]
    end.work.set()
    await end.until("c")
    assert end.seen == ["read", "a", "begun", "work", "b", "handled", "idle", "read", "c", "handled"]


async def test_many_frames_let_the_loop_go_on_and_keep_their_order(end: End) -> None:
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        while "999" not in end.seen:
            rounds += 1
            await asyncio.sleep(0)

    handle: Any = end._handle

    def slowly(frame: Frame) -> None:
        sum(range(50_000))
        handle(frame)

    end.channel._handle = slowly
    end.send(*map(str, range(1_000)))
    await count()
    assert [text for text in end.seen if text.isdigit()] == [*map(str, range(1_000))]
    assert rounds > 20


@pytest.mark.parametrize("ops", [("bad", "a"), ("work badly", "a")])
async def test_a_frame_that_fails_breaks_the_channel_once(end: End, ops: tuple[str, ...]) -> None:
    end.work.set()
    end.send(*ops)
    await eventually(lambda: any(text.startswith("broken") for text in end.seen))
    end.send("b")
    await _turns()
    found = [text for text in end.seen if text not in {"read", "begun"}]
    assert len(found) == 1
    assert found[0].startswith("broken: it broke the protocol of the call channel: it is bad")
    assert "stopped" in repr(end.channel)


async def test_the_end_of_the_stream_comes_after_its_frames(end: End) -> None:
    end.send("work", "a")
    end.peer.close()
    await end.until("begun")
    await _turns()
    assert "closed" not in end.seen
    end.work.set()
    await end.until("closed")
    assert end.seen[-3:] == ["idle", "read", "closed"]


async def test_frames_of_a_dead_process_are_handled_before_its_end_is_told(end: End) -> None:
    end.send("work", "a")
    await end.until("begun")
    end.send("b", "work")
    end.channel.drain(10, lambda: end.seen.append("told"))
    await _turns()
    assert "told" not in end.seen
    end.work.set()
    await end.until("told")
    assert [text for text in end.seen if len(text) == 1 or text in {"work", "told"}] == [
        *("work", "a", "b", "work", "told")
    ]


async def test_no_more_is_read_of_a_dead_process_than_was_said(end: End) -> None:
    end.send("a")
    end.channel.drain(0, lambda: end.seen.append("told"))
    assert end.seen == ["told"]


async def test_a_channel_that_is_stopped_tells_nothing_and_cancels_the_task(end: End) -> None:
    end.send("work", "a")
    await end.until("begun")
    task = end.channel._work
    assert task is not None
    end.channel.drain(10, lambda: end.seen.append("told"))
    end.channel.stop()
    await asyncio.wait([task])
    assert task.cancelled()
    end.work.set()
    end.channel.resume_reading()
    await _turns()
    assert end.seen == ["read", "begun"]


@pytest.mark.parametrize("op", ["work", "work badly"])
async def test_a_pause_holds_up_what_follows_a_task_and_its_failure(end: End, op: str) -> None:
    end.send(op, "a")
    await end.until("begun")
    end.channel.pause_reading()
    end.work.set()
    await _turns()
    assert not any(text.startswith(("broken", "a")) for text in end.seen)
    end.channel.resume_reading()
    await eventually(lambda: any(text.startswith(("broken", "a")) for text in end.seen))
    assert ("a" in end.seen) == (op == "work")
