"""A steady wake-up of the event loop while somebody waits.

ipykernel delivers the Stop button as a callback that runs when the loop next wakes; a loop that only waits
for a person, or for a worker, may not wake for minutes. While a beat is held the loop wakes every 50 ms.

Waiting for what must not be left half done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

BEAT_S = 0.05


class LoopTicker:
    """A re-entrant context: the loop wakes every `BEAT_S` seconds while anybody is inside."""

    def __init__(self) -> None:
        """Start at rest."""
        self._inside = 0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._inside += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._again)

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if self._inside == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._again)


Result = TypeVar("Result")


async def with_ticks(work: Coroutine[Any, Any, Result], every_s: float, tick: Callable[[], object]) -> Result:
    """The result of `work`; `tick` is called every `every_s` seconds until it is there.

    Raises:
        CancelledError: Once `work` has ended too, if the waiting task was cancelled.
    """
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=every_s))[0]:
            tick()
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
    return task.result()


async def run_to_completion(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is carried through however often the waiting task is cancelled.

    Raises:
        CancelledError: Once the work is done, if the waiting task was cancelled meanwhile.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # the cancellation is what the waiting task is to hear of
        raise cancelled
    return task.result()
