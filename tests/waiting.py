"""Waiting for what happens instead of for the clock: a condition is looked at until it holds.

The limits only keep a failing test from hanging. They say nothing about how long anything may take, which is
ten times as long on a busy machine; the benchmarks measure that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HANG_S = 60.0
"""After this time, nobody believes any more that something will happen."""


def wait_until(holds: Callable[[], Any], *, hang_s: float = HANG_S) -> None:
    """Return as soon as `holds()`; raise `AssertionError` if it never does."""
    ends_s = time.monotonic() + hang_s
    while not holds():
        assert time.monotonic() < ends_s, "it did not come about"
        time.sleep(0.002)


async def eventually(holds: Callable[[], Any], *, hang_s: float = HANG_S) -> None:
    """Return as soon as `holds()`, while the loop goes on; raise `AssertionError` if it never does."""
    ends_s = time.monotonic() + hang_s
    while not holds():
        assert time.monotonic() < ends_s, "it did not come about"
        await asyncio.sleep(0.002)


async def loop_turns(count: int = 10) -> None:
    """Let everything that is ready in the loop run, with what that makes ready in turn, `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def advance_clock(seconds: float) -> None:
    """Let the running loop's clock jump ahead: whatever waits in it for less ends waiting."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    loop.time = lambda: clock() + seconds  # type: ignore[method-assign]  # a loop has no other way to be told
    await loop_turns()


def process_state(pid: int) -> str:
    """Return the letter that Linux has for what a process does, such as R, S, T or Z; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""
