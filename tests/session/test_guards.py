"""Guards: checked in order before a call, in the opposite order after it, however the call ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.core.protocols import OutputCaps, ToolContext
from aisotools.core.sandboxes import SandboxListener
from aisotools.core.types import Effect, Facts, Json, ToolCall, ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.policy.rules import Policy
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session.event_log import EventLog
from aisotools.session.gate import Gate
from aisotools.session.guards import CallEnvironment, Guard
from aisotools.testing.fakes import FakeSandbox, MockTool
from aisotools.tools.registry import ToolRegistry


class Watcher:
    def __init__(self, name: str, seen: list[str], *, refuses: bool = False, fails: bool = False) -> None:
        self.name, self.seen, self.refuses, self.fails = name, seen, refuses, fails

    async def before(self, prepared: PreparedCall) -> None:
        self.seen.append(f"before {self.name}")
        if self.refuses:
            raise SandboxError(f"{self.name} could not be kept.")

    async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        await asyncio.sleep(0)
        self.seen.append(f"after {self.name} {'cancelled' if result is None else result.content}")
        return ToolResult.error(f"{self.name} was changed.") if self.fails else result


def gate_and_environment(tool: Any, *guards: Guard) -> tuple[Gate, CallEnvironment]:
    event_log = EventLog()
    gate = Gate(
        registry=ToolRegistry([tool]),
        policy=Policy(mode="auto"),
        approver=None,
        event_log=event_log,
        caps=OutputCaps(),
        call_timeout_s=5,
        session_key="k",
    )
    listener: SandboxListener = event_log
    wanted = WorkerSpec(level="limited", workspace="/nowhere", limits=Limits())
    env = CallEnvironment(
        sandbox=FakeSandbox(wanted, listener), level="confined", workspace=Path("/nowhere"), guards=guards
    )
    return gate, env


async def test_guards_stand_around_a_call_that_may_change_something_and_around_no_other() -> None:
    seen: list[str] = []
    guards = [Watcher("files", seen), Watcher("policy", seen)]
    gate, env = gate_and_environment(MockTool("m", facts=Facts(writes=("a",)), result="did"), *guards)
    result = await gate.run(ToolCall("1", "m", {}), env)
    assert result.content == "did"
    assert seen == ["before files", "before policy", "after policy did", "after files did"]
    seen.clear()
    gate, env = gate_and_environment(MockTool("m", effect=Effect.READ_ONLY, result="read"), *guards)
    assert (await gate.run(ToolCall("1", "m", {}), env)).content == "read"
    assert seen == []


async def test_a_call_that_a_guard_refuses_does_not_run_and_only_those_that_got_ready_look_after() -> None:
    seen: list[str] = []
    tool = MockTool("m", facts=Facts(writes=("a",)))
    gate, env = gate_and_environment(tool, Watcher("files", seen), Watcher("disk", seen, refuses=True))
    result = await gate.run(ToolCall("1", "m", {}), env)
    assert (result.is_error, result.error_kind) == (True, "environment")
    assert "disk could not be kept" in result.content
    assert tool.calls == []
    assert seen == ["before files", "before disk", "after files cancelled"]


class Withdrawing(Watcher):
    async def withdraw(self, prepared: PreparedCall) -> None:
        self.seen.append(f"withdraw {self.name} {prepared.original.id}")


async def test_guards_forget_a_call_that_does_not_run() -> None:
    """Another guard refuses it, or the ledger has failed since its start was recorded."""
    seen: list[str] = []
    tool = MockTool("m", facts=Facts(writes=("a",)))
    guards = [Withdrawing("files", seen), Watcher("policy", seen), Watcher("disk", seen, refuses=True)]
    gate, env = gate_and_environment(tool, *guards)
    assert (await gate.run(ToolCall("1", "m", {}), env)).is_error
    assert seen[3:] == ["after policy cancelled", "withdraw files 1"]
    seen.clear()

    class Blocking(Watcher):
        async def before(self, prepared: PreparedCall) -> None:
            await super().before(prepared)
            gate.block("the disk is full")

    gate, env = gate_and_environment(tool, guards[0], Blocking("disk", seen))
    result = await gate.run(ToolCall("2", "m", {}), env)
    assert result.content == "m was not run: the disk is full."
    assert seen[2:] == ["after disk m was not run: the disk is full.", "withdraw files 2"]
    seen.clear()
    gate, env = gate_and_environment(MockTool("m", facts=Facts(writes=("a",)), result="did"), guards[0])
    assert (await gate.run(ToolCall("3", "m", {}), env)).content == "did"
    assert seen == ["before files", "after files did"]
    assert tool.calls == []


async def test_the_findings_of_a_guard_replace_the_result() -> None:
    gate, env = gate_and_environment(
        MockTool("m", facts=Facts(writes=("a",))), Watcher("conftest.py", [], fails=True)
    )
    result = await gate.run(ToolCall("1", "m", {}), env)
    assert result.is_error
    assert result.content == "conftest.py was changed."


async def test_guards_look_after_a_cancelled_call_too() -> None:
    seen: list[str] = []
    running = asyncio.Event()

    async def endless(_arguments: Mapping[str, Json], _context: ToolContext) -> ToolResult:
        running.set()
        await asyncio.sleep(30)
        raise AssertionError("it is cancelled before")

    tool = MockTool("m", facts=Facts(writes=("a",)), result=endless)
    gate, env = gate_and_environment(tool, Watcher("files", seen))
    calling = asyncio.ensure_future(gate.run(ToolCall("1", "m", {}), env))
    await running.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert seen == ["before files", "after files cancelled"]


class Failing(Watcher):
    async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        await super().after(prepared, result)
        raise SandboxError(f"{self.name} could not be looked at.")


async def test_a_guard_that_fails_keeps_no_other_from_its_look_and_is_what_the_caller_is_told() -> None:
    """The outermost guard holds the workspace's lock: it is left whatever the others raise."""
    seen: list[str] = []
    tool = MockTool("m", facts=Facts(writes=("a",)), result="did")
    guards = [Watcher("lock", seen), Failing("history", seen), Failing("files", seen)]
    gate, env = gate_and_environment(tool, *guards)
    result = await gate.run(ToolCall("1", "m", {}), env)
    assert seen[len(guards) :] == ["after files did", "after history did", "after lock did"]
    assert (result.is_error, result.error_kind) == (True, "environment")
    assert result.content == "files could not be looked at.", "the first failure, not one that it led to"
