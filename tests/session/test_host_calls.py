"""Calls of tools on the host, without a gate."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aisotools.core.protocols import ToolContext
from aisotools.core.types import (
    Effect,
    ToolCall,
)
from aisotools.session.host_calls import HostCalls
from aisotools.testing.fakes import MockTool


def reading(name: str = "read", **options: Any) -> MockTool:
    return MockTool(name, effect=Effect.READ_ONLY, **options)


class Endless:
    """The work of a host tool that ends only when it is cancelled, and takes a few rounds to tidy up."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.tidied = asyncio.Event()
        self.saw_cancellation: bool | None = None

    async def __call__(self, _arguments: object, context: ToolContext) -> str:
        self.begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.saw_cancellation = context.cancellation.cancelled
            for _ in range(5):
                await asyncio.sleep(0)
            self.tidied.set()
        return "never"


# ---- tools on the host


@pytest.mark.parametrize("end", ["deadline", "interrupt"])
async def test_a_stopped_tool_is_warned_and_given_time_to_tidy_up(end: str) -> None:
    work, calls, context = Endless(), HostCalls(), ToolContext()
    tool, timeout_s = reading(result=work), 0.01 if end == "deadline" else 60.0
    running = asyncio.ensure_future(calls.run(tool, ToolCall("1", "read", {}), context, timeout_s))
    await work.begun.wait()
    assert not context.cancellation.cancelled
    assert repr(calls) == "<HostCalls 1 running>"
    if end == "interrupt":
        calls.interrupt()
    result = await running
    assert work.saw_cancellation is True
    assert work.tidied.is_set()
    key = "timed_out" if end == "deadline" else "stopped"
    assert {name: result.metadata.get(name) for name in ("timed_out", "stopped")} == {
        "timed_out": None,
        "stopped": None,
        key: True,
    }


async def test_a_cancelled_caller_takes_its_tool_along() -> None:
    work, calls, context = Endless(), HostCalls(), ToolContext()
    running = asyncio.ensure_future(calls.run(reading(result=work), ToolCall("1", "read", {}), context, 60.0))
    await work.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await work.tidied.wait()
    assert context.cancellation.cancelled
    assert repr(calls) == "<HostCalls 0 running>"


async def test_a_thread_left_running_sees_that_its_call_is_over() -> None:
    context = ToolContext()
    result = await HostCalls().run(reading(), ToolCall("1", "read", {}), context, 60.0)
    assert result.content == "done"
    assert context.cancellation.cancelled


async def test_a_tool_that_cancels_itself_was_interrupted() -> None:
    tool = reading(raises=asyncio.CancelledError())
    result = await HostCalls().run(tool, ToolCall("1", "read", {}), ToolContext(), 60.0)
    assert (result.is_error, result.metadata["stopped"]) == (True, True)
