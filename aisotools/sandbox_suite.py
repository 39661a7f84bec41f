"""The contract of a sandbox as test methods, and a listener that remembers; see `contract_suites`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from aisotools.contract_suites import run_limited
from aisotools.contracts import OutputCaps, Sandbox, SandboxCall, SandboxStatus, ToolContext
from aisotools.events import Json, ToolCall, ToolResult
from aisotools.exceptions import SandboxError
from aisotools.function_tool import FunctionTool, tool

_T = TypeVar("_T")


class Heard:
    """A `SandboxListener` that remembers.

    Attributes:
        events: Tuples of what was heard, in order, each beginning with its kind.
    """

    def __init__(self) -> None:
        """Start with nothing heard."""
        self.events: list[tuple[Any, ...]] = []

    def output(self, call_id: str, stream: str, text: str) -> None:
        """A running call printed `text`."""
        self.events.append(("output", call_id, stream, text))

    def emitted(self, call_id: str, name: str, payload: Mapping[str, Json]) -> None:
        """A running tool reported progress."""
        self.events.append(("emitted", call_id, name, payload))

    def started(self, status: SandboxStatus, reason: str) -> None:
        """A worker is ready."""
        self.events.append(("started", status.generation, reason))

    def lost(self, generation: int, reason: str) -> None:
        """A worker ended unasked."""
        self.events.append(("lost", generation, reason))

    def kinds(self) -> list[str]:
        """The kinds of what was heard."""
        return [str(event[0]) for event in self.events]


class SandboxContract:
    """What every sandbox must do."""

    heard: Heard

    def make(self, heard: Heard) -> Sandbox:
        """A sandbox that reports to `heard`; called once for each test, on its event loop."""
        raise NotImplementedError

    def run(self, scenario: Callable[[Sandbox], Awaitable[_T]]) -> _T:
        """Play `scenario` with a sandbox, which is closed afterwards."""

        async def play() -> _T:
            self.heard = Heard()
            sandbox = self.make(self.heard)
            try:
                return await scenario(sandbox)
            finally:
                await sandbox.close()

        return run_limited(play())

    def test_starts_once(self) -> None:
        """Starting again gives the worker that is up."""

        async def scenario(sandbox: Sandbox) -> list[SandboxStatus]:
            before = sandbox.status()
            return [before, await sandbox.start(), await sandbox.start(), sandbox.status()]

        before, *after = self.run(scenario)
        assert (before.alive, before.generation) == (False, 0)
        assert [(status.alive, status.generation) for status in after] == [(True, 1)] * 3
        assert self.heard.events == [("started", 1, "")]

    def test_gives_the_result_as_json(self) -> None:
        """A call needs no start before it; what comes back is JSON."""
        result = self.run(lambda sandbox: sandbox.call(_fine()))
        assert not result.is_error, result.content
        assert result.value == [1, "x"]

    def test_tells_what_a_tool_raised(self) -> None:
        """An error of a tool is a result that says so, and the next call works."""

        async def scenario(sandbox: Sandbox) -> list[ToolResult]:
            return [
                await sandbox.call(_call(_failing, {})),
                await sandbox.call(_fine()),
            ]

        failed, fine = self.run(scenario)
        assert failed.is_error
        assert "ValueError: it went wrong" in failed.content
        assert not fine.is_error

    def test_keeps_deadlines(self) -> None:
        """Control is back half a second after the deadline at most, and the next call works."""

        async def scenario(sandbox: Sandbox) -> tuple[float, ToolResult, ToolResult]:
            await sandbox.start()
            began_s = time.monotonic()
            late = await sandbox.call(_call(_spin, {}, timeout_s=0.2))
            took_s = time.monotonic() - began_s
            return took_s, late, await sandbox.call(_fine())

        took_s, late, fine = self.run(scenario)
        assert late.is_error
        assert late.metadata["timed_out"] is True
        assert "0.2 s" in late.content
        assert took_s < 2, f"control came back after {took_s:.1f} s"
        assert not fine.is_error, fine.content

    def test_can_be_cancelled(self) -> None:
        """Cancelling the awaiting task stops the call, and the next one works."""

        async def scenario(sandbox: Sandbox) -> tuple[bool, ToolResult]:
            running = await _under_way(sandbox, self.heard, _spin)
            running.cancel()
            await asyncio.wait([running], timeout=3)
            return running.cancelled(), await sandbox.call(_fine())

        cancelled, fine = self.run(scenario)
        assert cancelled
        assert not fine.is_error, fine.content

    def test_can_be_interrupted(self) -> None:
        """An interrupt ends what runs with a result that says so, and keeps the worker."""

        async def scenario(sandbox: Sandbox) -> tuple[ToolResult, ToolResult]:
            running = await _under_way(sandbox, self.heard, _spin)
            await sandbox.interrupt()
            return await asyncio.wait_for(running, 3), await sandbox.call(_fine())

        stopped, fine = self.run(scenario)
        assert stopped.is_error
        assert stopped.metadata["stopped"] is True
        assert not fine.is_error, fine.content
        assert "lost" not in self.heard.kinds()

    def test_takes_turns(self) -> None:
        """Sync tools run one at a time; async ones overlap."""

        async def scenario(sandbox: Sandbox) -> tuple[list[ToolResult], list[ToolResult]]:
            one_by_one = await asyncio.gather(*(sandbox.call(_call(_span, {})) for _ in range(3)))
            together = await asyncio.gather(*(sandbox.call(_call(_async_span, {})) for _ in range(3)))
            return one_by_one, together

        one_by_one, together = self.run(scenario)
        assert not _overlapping([r.value for r in one_by_one])
        assert _overlapping([r.value for r in together])

    def test_restarts_afresh(self) -> None:
        """What a tool kept is there at its next call, and gone after a restart."""

        async def scenario(sandbox: Sandbox) -> tuple[list[Json], SandboxStatus]:
            counter = _counter()
            values = [(await sandbox.call(_call(counter, {}))).value for _ in range(2)]
            status = await sandbox.restart()
            return [*values, (await sandbox.call(_call(counter, {}))).value], status

        values, status = self.run(scenario)
        assert values == [1, 2, 1]
        assert (status.alive, status.generation) == (True, 2)
        assert [event for event in self.heard.events if event[0] == "started"][1][1:] == (
            2,
            "it was restarted",
        )

    def test_reports_progress_in_order(self) -> None:
        """What a tool emits is heard in order, and before its result."""
        result = self.run(lambda sandbox: sandbox.call(_call(_reporting, {"count": 3})))
        assert not result.is_error, result.content
        emitted = [event[2:] for event in self.heard.events if event[0] == "emitted"]
        assert emitted == [("step", {"number": n}) for n in range(3)]

    def test_ends_what_runs_when_it_is_closed(self) -> None:
        """Closing fails what runs, may be done twice, and nothing can be called afterwards."""

        async def scenario(sandbox: Sandbox) -> ToolResult:
            running = await _under_way(sandbox, self.heard, _spin)
            await sandbox.close()
            await sandbox.close()
            assert not sandbox.status().alive
            try:
                await sandbox.call(_fine())
            except SandboxError:
                return await asyncio.wait_for(running, 3)
            raise AssertionError("a closed sandbox took a call")

        assert self.run(scenario).is_error


_ids = iter(range(1 << 60))


def _call(
    tool: FunctionTool[..., Any], arguments: Mapping[str, Json], *, timeout_s: float = 20.0
) -> SandboxCall:
    shipment = tool.shipment()
    assert shipment is not None
    return SandboxCall(
        call=ToolCall(f"call-{next(_ids)}", tool.name, arguments),
        shipment=shipment,
        timeout_s=timeout_s,
        output_caps=OutputCaps(),
        session_key="contract",
    )


def _fine() -> SandboxCall:
    """A call that works."""
    return _call(_pair, {"a": 1, "b": "x"})


async def _under_way(
    sandbox: Sandbox, heard: Heard, tool: FunctionTool[..., Any]
) -> asyncio.Task[ToolResult]:
    """A call that is known to have begun."""
    running = asyncio.ensure_future(sandbox.call(_call(tool, {})))
    async with asyncio.timeout(10):
        while "emitted" not in heard.kinds():
            assert not running.done(), running.result().content
            await asyncio.sleep(0.005)
    return running


def _overlapping(spans: Sequence[Sequence[float]]) -> bool:
    ordered = sorted((begun, ended) for begun, ended in spans)
    return any(later[0] < earlier[1] for earlier, later in pairwise(ordered))


@tool
def _pair(a: int, b: str) -> tuple[int, str]:
    """Give both back."""
    return a, b


@tool
def _failing() -> None:
    """Fail."""
    raise ValueError("it went wrong")


@tool
def _spin(context: ToolContext) -> None:
    """Never end by itself."""
    context.emit("begun")
    while True:
        time.sleep(0.001)


@tool
def _span() -> tuple[float, float]:
    """Take a moment, and tell when it began and ended."""
    began_s = time.monotonic()
    time.sleep(0.03)
    return began_s, time.monotonic()


@tool
async def _async_span() -> tuple[float, float]:
    """Take a moment without holding the thread, and tell when it began and ended."""
    began_s = time.monotonic()
    await asyncio.sleep(0.2)
    return began_s, time.monotonic()


@tool
def _reporting(count: int, context: ToolContext) -> None:
    """Report progress."""
    for number in range(count):
        context.emit("step", number=number)


def _counter() -> FunctionTool[[], int]:
    """A tool with a state of its own, which lives where the tool was sent."""
    calls = 0

    @tool
    def count() -> int:
        """Tell how often it was called."""
        nonlocal calls
        calls += 1
        return calls

    return count
