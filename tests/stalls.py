"""The longest time for which an event loop stands still: `run` measures it.

A loop stands still while its callbacks run: what they compute, what they wait for, and the time that other
threads hold the interpreter's lock. So it does while a timer is due and another thread holds that lock. What
is left out is the time for which the thread of the loop, or another thread that may hold that lock, could run
and had no processor. The kernel counts that for each thread: it says how busy the machine is. What the thread
of the loop has computed always counts. What other tests have left in memory does not: to look through all of
it for garbage takes tens of milliseconds, and no session has it. So it is frozen, and what was frozen before
(all that pytest has collected) stays so: to look through that takes a second.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import selectors
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

_SAMPLE_S = 0.005
_COPIED_BYTES = 64 << 20
_USUAL_COPY_S = 0.03


@functools.cache
def stall_limit_s() -> float:
    """Return 50 ms, or up to twice that on a machine whose memory is slow.

    Some virtual machines copy 64 MiB in 0.2 s of processor time, and others in 0.02 s.
    """
    text, times_s = b"x" * _COPIED_BYTES, []
    for _ in range(5):
        began_s = time.thread_time()
        bytearray(text)
        times_s.append(time.thread_time() - began_s)
    return 0.05 * min(2.0, max(1.0, min(times_s) / _USUAL_COPY_S))


@dataclass
class Stalls:
    """How long a loop stood still.

    Attributes:
        longest_s: The longest time, without the time spent waiting for a processor.
        longest_wall_s: The longest time by the clock.
        where: What the loop did during the longest ones, if that was asked for: seconds and stack.
        is_paused: Set this to leave out what the loop does now, until it selects the next time.
    """

    longest_s: float = 0.0
    longest_wall_s: float = 0.0
    where: list[tuple[float, str]] = field(default_factory=list)
    is_paused: bool = False


class WatchedSelector(selectors.DefaultSelector):
    """A selector of one loop, which measures the time between two calls of `select`."""

    def __init__(self, stalls: Stalls) -> None:
        super().__init__()
        self.stalls = stalls
        self.busy_since_s = 0.0
        self.stack = ""
        self._times: dict[str, tuple[float, float]] = {}

    def select(self, timeout: float | None = None) -> Any:
        began_s = time.monotonic()
        if self.busy_since_s and not self.stalls.is_paused:
            self._note(began_s - self.busy_since_s)
        self.busy_since_s, self.stalls.is_paused = 0.0, False
        events = super().select(timeout)
        if timeout is not None and self._times:
            # Selecting waits for the lock, too, and lasts longer than asked for then.
            self._note(time.monotonic() - began_s - max(timeout, 0), has_computed=False)
        self._times = _read_times()
        self.stack = ""
        self.busy_since_s = time.monotonic()
        return events

    def _note(self, wall_s: float, *, has_computed: bool = True) -> None:
        stalls = self.stalls
        stalls.longest_wall_s = max(stalls.longest_wall_s, wall_s)
        if wall_s <= stalls.longest_s:
            return
        times = _read_times()
        none = (0.0, 0.0)
        waited_s = max(now[1] - self._times.get(thread, none)[1] for thread, now in times.items())
        own = str(threading.get_native_id())
        computed_s = times.get(own, none)[0] - self._times.get(own, none)[0] if has_computed else 0.0
        net_s = max(computed_s, wall_s - waited_s)
        if net_s > stalls.longest_s:
            stalls.longest_s = net_s
            stalls.where.append((net_s, self.stack))


def _read_times() -> dict[str, tuple[float, float]]:
    """Return for how long each thread of this process has run, and waited for a processor, in seconds."""
    times = {}
    # Plain system calls: this is done in each turn of the loop.
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - see above
        # A thread may end between the listing and this.
        with suppress(OSError):
            descriptor = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
            try:
                computed_ns, waited_ns, _ = os.read(descriptor, 128).split()
            finally:
                os.close(descriptor)
            times[thread] = int(computed_ns) / 1e9, int(waited_ns) / 1e9
    return times


def run(main: Callable[[Stalls], Coroutine[Any, Any, T]], *, with_stacks: bool = False) -> T:
    """Run `main` on a loop of its own, and give it the record of how long that loop stands still.

    Args:
        main: Returns the coroutine. It may reset `longest_s` of its argument.
        with_stacks: Note what the loop did meanwhile, as far as Python code shows it.
    """
    stalls = Stalls()
    selector = WatchedSelector(stalls)
    stop = threading.Event()
    if with_stacks:
        sampling = threading.Thread(target=_sample, args=(selector, threading.get_ident(), stop), daemon=True)
        sampling.start()
    try:
        with (
            heap_left_out(),
            asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner,
        ):
            return runner.run(main(stalls))
    finally:
        stop.set()


@contextmanager
def heap_left_out() -> Iterator[None]:
    """Inside the `with` block, garbage is not looked for in what is in memory now."""
    # All tests that were collected are left out for good (`tests/conftest.py`), and what is left out cannot
    # be told apart: given back, it would be looked through from now on, a second each time.
    is_lasting = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not is_lasting:
            gc.unfreeze()


def _sample(selector: WatchedSelector, thread: int, stop: threading.Event) -> None:
    while not stop.wait(_SAMPLE_S):
        since_s = selector.busy_since_s
        if since_s and time.monotonic() - since_s > 4 * _SAMPLE_S:
            with suppress(KeyError):
                frames = traceback.extract_stack(sys._current_frames()[thread])[-6:]
                places = (
                    f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames
                )
                selector.stack = " > ".join(places)
