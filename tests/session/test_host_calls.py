"""Calls of tools on the host, without a gate."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from aisotools.core.protocols import ToolContext
from aisotools.core.types import (
    Effect,
    ToolCall,
)
from aisotools.session.host_calls import HostCalls, HostWork
from aisotools.testing.fakes import MockTool
from aisotools.tools.function import tool
from tests.waiting import eventually


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
    """What the tool does to tidy up belongs to the call: changes are looked at when the caller goes on."""
    work, calls, context = Endless(), HostCalls(), ToolContext()
    running = asyncio.ensure_future(calls.run(reading(result=work), ToolCall("1", "read", {}), context, 60.0))
    await work.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (work.saw_cancellation, work.tidied.is_set()) == (True, True)
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


# ---- what goes on after its call


class Stubborn:
    """The work of a host tool that goes on when it is cancelled, until it is let go."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    async def __call__(self, _arguments: object, _context: ToolContext) -> str:
        with suppress(asyncio.CancelledError):
            await self.released.wait()
        await self.released.wait()
        return "at last"


async def test_work_that_goes_on_after_its_deadline_is_reported() -> None:
    left: list[tuple[ToolCall, Sequence[HostWork]]] = []
    call, work = ToolCall("1", "read", {}), Stubborn()

    def note(call: ToolCall, parts: Sequence[HostWork]) -> None:
        left.append((call, parts))

    result = await HostCalls().run(reading(result=work), call, ToolContext(), 0.01, note)
    assert result.content.endswith("where only the tool itself can end its work. It has not ended yet.")
    ((whose, (task,)),) = left
    assert whose is call
    assert not task.done()
    work.released.set()
    await eventually(task.done)


@pytest.mark.parametrize("end", ["deadline", "interrupt", "cancelled"])
async def test_function_in_a_thread_that_goes_on_is_reported(end: str) -> None:
    released, left, calls = threading.Event(), list[HostWork](), HostCalls()
    begun = threading.Event()

    @tool(runs_in="host")
    def wait() -> None:
        begun.set()
        released.wait()

    call, timeout_s = ToolCall("1", "wait", {}), 0.01 if end == "deadline" else 60.0
    running = asyncio.ensure_future(
        calls.run(wait, call, ToolContext(), timeout_s, lambda _, parts: left.extend(parts))
    )
    await eventually(begun.is_set)
    if end == "interrupt":
        calls.interrupt()
    if end == "cancelled":
        running.cancel()
    await asyncio.wait([running])
    assert [part.done() for part in left] == [False]
    released.set()
    await eventually(left[0].done)


@pytest.mark.parametrize("ends", ["at once", "cancelled"])
async def test_work_that_has_ended_is_not_reported(ends: str) -> None:
    left: list[HostWork] = []

    @tool(runs_in="host")
    def wait(context: ToolContext) -> None:
        if ends == "cancelled":
            context.cancellation.wait()

    timeout_s = 0.05 if ends == "cancelled" else 60.0
    call = ToolCall("1", "wait", {})
    await HostCalls().run(wait, call, ToolContext(), timeout_s, lambda _, parts: left.extend(parts))
    assert left == []
