"""Waiting for what happens instead of for the clock: a condition is looked at until it holds.

The limits only keep a failing test from hanging. They say nothing about how long anything may take, which is
ten times as long on a busy machine; the benchmarks measure that.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

_CLOCK_REALTIME_COARSE = 5  # of Linux; the kernel stamps files by it, which moves on every few milliseconds
Result = TypeVar("Result")
HANG_S = 120.0
"""After this time, nobody believes any more that something will happen."""


def wait_until(holds: Callable[[], Any], *, hang_s: float = HANG_S) -> None:
    """Return as soon as `holds()`; raise `AssertionError` if it never does."""
    ends_s = time.monotonic() + hang_s
    while not holds():
        assert time.monotonic() < ends_s, "it did not come about"
        time.sleep(0.002)


async def eventually(holds: Callable[[], Any], *, hang_s: float = HANG_S) -> None:
    """Return as soon as `holds()`, while the loop goes on; raise `AssertionError` if it never does.

    What it returns is awaited if it can be.
    """
    ends_s = time.monotonic() + hang_s
    while True:
        result = holds()
        if await result if inspect.isawaitable(result) else result:
            return
        assert time.monotonic() < ends_s, "it did not come about"
        await asyncio.sleep(0.002)


async def as_soon_as(holds: Callable[[], Any], *, hang_s: float = HANG_S) -> None:
    """Return in the very turn of the loop in which `holds()`; raise `AssertionError` if it never does."""
    ends_s = time.monotonic() + hang_s
    while not holds():
        assert time.monotonic() < ends_s, "it did not come about"
        await asyncio.sleep(0)


async def loop_turns(count: int = 10) -> None:
    """Let everything that is ready in the loop run, with what that makes ready in turn, `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


class LoopClock:
    """The running loop's clock, which can be made to jump: time passes without anybody waiting for it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        time_of_loop, self._ahead_s = loop.time, 0.0
        loop.time = lambda: time_of_loop() + self._ahead_s  # type: ignore[method-assign]  # no other way in

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass: timeouts and sleeps of the loop that are shorter end."""
        self._ahead_s += seconds
        await loop_turns()


async def late(call: Coroutine[Any, Any, Result], *, when: Callable[[], Any], deadline_s: float) -> Result:
    """Return the result of a call whose deadline passes as soon as `when()`, however late that is.

    A short deadline would pass on a busy machine before the call has done anything.

    Args:
        call: Makes the call; its deadline is one of the running loop.
        when: Whether it has come to where it is to be cut short; awaited if it can be.
        deadline_s: Its deadline, in seconds: longer than the call takes to come there.
    """
    clock = LoopClock()
    running = asyncio.ensure_future(call)
    try:
        await eventually(lambda: running.done() or when())
        await clock.advance(deadline_s)
        return await running
    finally:
        running.cancel()


def file_times_advance() -> None:
    """Return when a file that is written now gets a later time than whatever was written before."""
    # Newer kernels give a file that was looked at a fine time. The coarse clock may be far behind it when a
    # tick of a busy machine comes late.
    began_ns = time.time_ns()
    wait_until(lambda: time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) > began_ns)


def process_state(pid: int) -> str:
    """Return the letter that Linux has for what a process does, such as R, S, T or Z; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def acts_on_a_signal(pid: int) -> bool:
    """Whether a signal has been sent to it that it has still to ignore, to handle or to die of."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    values = dict(line.split(":\t", 1) for line in lines)
    if values["State"][0] in "ZX":
        return False  # it has ended; what was pending then stays in its entry for good
    pending, shared, blocked = (int(values[key], 16) for key in ("SigPnd", "ShdPnd", "SigBlk"))
    return bool((pending | shared) & ~blocked)
