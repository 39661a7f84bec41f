from __future__ import annotations

import asyncio

import pytest

from aisotools.core.concurrency import run_to_completion


async def test_work_is_carried_through_however_often_the_waiting_task_is_cancelled() -> None:
    go, done = asyncio.Event(), []

    async def work() -> str:
        await go.wait()
        done.append("all of it")
        return "result"

    waiting = asyncio.ensure_future(run_to_completion(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done == ["all of it"]


async def test_without_a_cancellation_there_is_the_result_or_the_error() -> None:
    async def fine() -> int:
        return 7

    async def failing() -> int:
        raise ValueError("no")

    assert await run_to_completion(fine()) == 7
    with pytest.raises(ValueError, match="no"):
        await run_to_completion(failing())
