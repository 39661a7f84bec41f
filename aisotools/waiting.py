"""Waiting for what must not be left half done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

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


async def to_the_end(work: Coroutine[Any, Any, Result]) -> Result:
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
