"""The sandbox of one conversation: what it says and keeps when it is stopped for another one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.events import SandboxLost
from aisotools.core.protocols import ToolPayload
from aisotools.core.sandboxes import SandboxCall, SupportsSnapshots
from aisotools.core.types import ToolCall
from aisotools.policy.approvers import AllowAll
from aisotools.policy.rules import Policy
from aisotools.sandbox.confinement.levels import at_least
from aisotools.session.pool import SessionPool
from aisotools.session.pooled_sandbox import PooledSandbox
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox
from aisotools.tools.adapter import supports
from tests.waiting import eventually


@pytest.fixture
def options(tmp_path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    return {"root": tmp_path / "pool", "environ": environ, "policy": Policy(mode="auto")}


async def test_a_stopped_sandbox_starts_anew_on_demand_and_says_so(options: dict[str, Any]) -> None:
    async with SessionPool(max_live=1, **options) as pool:
        a, b = await pool.get("a"), await pool.get("b")
        assert not (await a.run_cell("x = 1; open('kept', 'w').write('file')")).is_error
        assert (await b.run_cell("1 + 1")).value is not None
        assert pool.status().live == 1
        result = await a.run_cell("print(open('kept').read())")
        assert "file" in result.content
        assert "another conversation needed its place" in str(result.metadata["fresh_sandbox"])
        assert "fresh_sandbox" not in (await a.run_cell("print(open('kept').read())")).metadata
        assert [event.reason for event in a.events if isinstance(event, SandboxLost)] == [
            "another conversation needed its place"
        ]
        await pool.stop("a")
        assert pool.status().live == 0
        failed = await a.run_cell("x")
        assert failed.is_error
        assert "variables are gone, files are kept" in failed.content


async def run_numbered(session: Session, number: int) -> Path:
    """Set a variable and a file to a number. Return the file."""
    code = f"v = {number}; open('f', 'w').write('{number}')"
    result = await session.call("python", {"code": code}, call_id=f"c{number}")
    assert not result.is_error, result.content
    assert session.workspace is not None
    return session.workspace / "f"


async def test_undo_brings_variables_back_while_the_sandbox_lives(options: dict[str, Any]) -> None:
    async with SessionPool(approver=AllowAll(), **options) as pool:
        a = await pool.get("a")
        for number in (1, 2, 3):
            file = await run_numbered(a, number)
        assert "; for variables 3 calls" in (await a.changes()).reach
        for to in ("c3", "c2"):
            undone = await a.undo(to=to)
            assert not undone.is_error, undone.content
            assert f"Variables: They are as before {to}." in undone.content
            redone = await a.redo()
            assert not redone.is_error, redone.content
            assert file.read_text() == to[1]
            assert not (await a.undo(to=to)).is_error
            expected = int(to[1]) - 1
            assert (await a.get("v"), file.read_text()) == (expected, str(expected))
        await run_numbered(a, 4)
        assert not (await a.undo()).is_error
        assert not (await a.redo()).is_error
        assert (await a.get("v"), file.read_text()) == (4, "4")


@pytest.mark.parametrize("reads", ["get", "variables"])
async def test_call_that_only_reads_leaves_what_can_be_redone(options: dict[str, Any], reads: str) -> None:
    async with SessionPool(approver=AllowAll(), **options) as pool:
        a = await pool.get("a")
        for number in (1, 2):
            await run_numbered(a, number)
        if not at_least(a.level, "confined"):
            pytest.skip("no level here holds a tool to reading")
        assert not (await a.undo()).is_error
        read = await a.get("v") if reads == "get" else (await a.call("variables", {})).is_error
        assert read == (1 if reads == "get" else False)
        assert not (await a.redo()).is_error
        assert await a.get("v") == 2
        undone = await a.undo()
        assert undone.content.startswith("Undid 1 call: python"), undone.content
        assert await a.get("v") == 1


async def test_first_call_is_held_to_reading(options: dict[str, Any]) -> None:
    async with SessionPool(**options) as pool:
        a = await pool.get("a")
        listed = await a.call("variables", {})  # without a question, which nobody would answer here
        if not at_least(a.level, "confined"):
            pytest.skip("no level here holds a tool to reading")
        assert not listed.is_error, listed.content
        assert (await a.undo()).is_error


async def test_call_that_reads_is_refused_where_nothing_holds_it_to_reading(options: dict[str, Any]) -> None:
    async with SessionPool(approver=AllowAll(), **options) as pool:
        a = await pool.get("a")
        await run_numbered(a, 1)
        sandbox = a.sandbox
        assert isinstance(sandbox, PooledSandbox)
        sandbox.has_readers = False
        call = ToolCall("r1", "variables", {})
        payload = ToolPayload(key="variables", import_path="aisotools.builtin:variables")
        refused = await sandbox.call(SandboxCall(call=call, shipment=payload, timeout_s=5.0, in_reader=True))
        assert refused.is_error
        assert "was not run: it only reads" in refused.content


async def test_call_that_a_sandbox_is_started_for_can_be_undone(options: dict[str, Any]) -> None:
    async with SessionPool(approver=AllowAll(), **options) as pool:
        a = await pool.get("a")
        assert a.workspace is not None
        for stops in (False, True):
            if stops:
                await run_numbered(a, 1)
                await pool.stop("a")
            assert not (await a.call("sandbox_bash", {"command": "echo x > g"})).is_error
            undone = await a.undo()
            assert (undone.is_error, (a.workspace / "g").exists()) == (False, False), undone.content
        assert (a.workspace / "f").read_text() == "1"


async def test_undo_to_variables_that_a_stop_has_taken_is_refused_with_the_reason(
    options: dict[str, Any],
) -> None:
    async with SessionPool(max_live=1, approver=AllowAll(), **options) as pool:
        a, b = await pool.get("a"), await pool.get("b")
        for number in (1, 2):
            file = await run_numbered(a, number)
        assert not (await b.run_cell("1")).is_error
        assert (await a.changes()).reach.endswith("no earlier state of the variables is kept.")
        why = "the sandbox was stopped since: another conversation needed its place"
        for is_live_again in (False, True):
            if is_live_again:
                await run_numbered(a, 3)
                assert not (await a.undo()).is_error, "the present sandbox has kept this"
            refused = await a.undo()
            assert refused.is_error
            assert refused.content.startswith(
                f"Nothing was changed: the variables from before python (c2) are not kept: {why}."
            )
            assert 'Files alone: undo(1, variables="keep")' in refused.content
            assert file.read_text() == "2"
        undone = await a.undo(variables="keep")
        assert (undone.is_error, file.read_text()) == (False, "1")


async def test_redo_of_variables_that_a_stop_has_taken_is_refused_with_the_reason(
    options: dict[str, Any],
) -> None:
    async with SessionPool(approver=AllowAll(), **options) as pool:
        a = await pool.get("a")
        file = await run_numbered(a, 1)
        assert not (await a.undo()).is_error
        await pool.stop("a")
        refused = await a.redo()
        assert refused.is_error
        assert "are not kept: the sandbox was stopped since: it was stopped." in refused.content
        assert not (await a.redo(variables="keep")).is_error
        assert file.read_text() == "1"


async def test_files_go_back_if_the_sandbox_is_stopped_during_an_undo(options: dict[str, Any]) -> None:
    async with SessionPool(approver=AllowAll(), **options) as pool:
        a = await pool.get("a")
        for number in (1, 2):
            file = await run_numbered(a, number)
        assert a.history is not None
        move = a.history.store.record

        def record(**fields: object) -> None:
            if fields["op"] == "moved" and stopping == []:
                loop.call_soon_threadsafe(lambda: stopping.append(loop.create_task(pool.stop("a"))))
            move(**fields)

        loop, stopping = asyncio.get_running_loop(), list[asyncio.Task[None]]()
        a.history.store.record = record  # type: ignore[method-assign]  # to see when files have been moved
        undone = await a.undo()
        await stopping[0]
        assert (file.read_text() == "2") == undone.is_error, undone.content


async def test_sandbox_whose_variables_are_held_is_not_stopped_for_another_one(
    options: dict[str, Any],
) -> None:
    async with SessionPool(max_live=1, approver=AllowAll(), **options) as pool:
        a, b = await pool.get("a"), await pool.get("b")
        await run_numbered(a, 1)
        sandbox: Any = a.sandbox
        async with sandbox.variables.hold():
            other = asyncio.ensure_future(b.run_cell("1"))
            await eventually(lambda: "1 waiting" in repr(pool))
            assert sandbox.live is not None
        assert not (await other).is_error
        assert sandbox.live is None
        async with sandbox.variables.hold():
            assert sandbox.live is None, "there is nothing to hold"


async def test_pooled_sandbox_that_keeps_no_variables_says_so(options: dict[str, Any]) -> None:
    async with SessionPool(sandbox=FakeSandbox, **options) as pool:
        a = await pool.get("a")
        assert not supports(a.sandbox, SupportsSnapshots)
        await a.call("sandbox_write", {"path": "f", "content": "1"})
        assert not supports(a.sandbox, SupportsSnapshots)
        assert (await a.changes()).reach.endswith("variables are not kept by this sandbox.")


async def test_calls_of_an_earlier_process_are_not_blamed_on_the_sandbox(options: dict[str, Any]) -> None:
    for expects_elsewhere in (False, True):
        async with SessionPool(approver=AllowAll(), **options) as pool:
            a = await pool.get("a")
            if not expects_elsewhere:
                await run_numbered(a, 1)
                continue
            await a.start()
            undone = await a.undo()
            assert "an earlier process or another session made these calls" in undone.content
            assert "cannot be forked" not in undone.content


async def test_loss_of_variables_is_the_first_line_of_the_next_result(options: dict[str, Any]) -> None:
    async with SessionPool(**options) as pool:
        a = await pool.get("a")
        for code, output in (("print(7)", "7"), ("v", "NameError"), ("1 + 1", "2")):
            await a.run_cell("v = 1")
            await pool.stop("a")
            result = await a.run_cell(code)
            first, *rest = result.content.splitlines()
            assert first == (
                "[The sandbox had been stopped: it was stopped. It is fresh: variables are gone, files are "
                "kept.]"
            )
            assert output in "\n".join(rest)
            assert "had been stopped" not in (await a.run_cell(code)).content


async def test_restart_is_the_first_line_of_the_next_result(options: dict[str, Any]) -> None:
    async with SessionPool(**options) as pool:
        a = await pool.get("a")
        await a.restart()
        await a.run_cell("v = 1")
        await a.restart()
        restarted = await a.run_cell("v")
        first, *rest = restarted.content.splitlines()
        assert first == (
            "[Before this call the sandbox's worker ended: the sandbox was restarted; its variables are "
            "lost.]"
        )
        assert "NameError" in "\n".join(rest)
        assert (await a.run_cell("1 + 1")).content == "2"
        await pool.stop("a")
        await a.restart()
        stopped = await a.run_cell("1 + 1")
        assert stopped.content == (
            "[The sandbox had been stopped: it was stopped. It is fresh: variables are gone, files are kept.]"
            "\n2"
        )
