"""Stop, and other ends, for calls of conversations that have no sandbox yet."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.core.sandboxes import INTERRUPTED_BEFORE
from aisotools.core.types import Approval, ApprovalRequest
from aisotools.policy.approvers import AllowAll
from aisotools.policy.rules import Policy
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.session.pool import SessionPool
from aisotools.session.pooled_sandbox import PooledSandbox
from tests.waiting import eventually, loop_turns


@pytest.fixture
def options(tmp_path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    # Nobody is asked, so that no sandbox begins to start meanwhile.
    return {"root": tmp_path / "pool", "environ": environ, "policy": Policy(mode="auto")}


@pytest.mark.parametrize("is_evicted", [False, True], ids=["for a place", "for its own sandbox to stop"])
async def test_call_that_waits_is_stopped_at_once_and_is_no_step(
    options: dict[str, Any], *, is_evicted: bool
) -> None:
    async with SessionPool(max_live=1, wait_s=600, **options, approver=AllowAll()) as pool:
        a, b = await pool.get("a"), await pool.get("b")
        first = await a.run_cell("1")
        stopped = asyncio.Event()
        if is_evicted:
            waiting, sandbox = a, a.sandbox
            assert isinstance(sandbox, PooledSandbox)
            assert isinstance(sandbox.live, LocalSandbox)
            real_close = sandbox.live.close

            async def close() -> None:
                await stopped.wait()
                await real_close()

            sandbox.live.close = close  # type: ignore[method-assign]  # the real one takes no time
            ending: asyncio.Task[Any] = asyncio.create_task(pool.stop("a"))
            await eventually(lambda: sandbox.live is None)
        else:
            waiting = b
            ending = asyncio.create_task(a.run_cell("import time; time.sleep(600)"))
            await loop_turns(50)
        calls = [asyncio.create_task(waiting.run_cell("open('f', 'w')")) for _ in range(2)]
        await eventually(lambda: getattr(waiting.sandbox, "_entering", ()))
        await waiting.interrupt()
        for call in calls:
            result = await call
            assert (result.content, result.metadata["stopped"]) == (INTERRUPTED_BEFORE.content, True)
        history: Any = waiting.history
        steps = history._checkpoints.steps
        assert [step.call_id for step in steps] == ([first.metadata["call_id"]] if waiting is a else [])
        assert pool.status().waiting == 0
        stopped.set()
        await a.interrupt()
        await ending
        assert not (await waiting.run_cell("1")).is_error
        assert waiting.workspace is not None
        assert not (waiting.workspace / "f").exists()


async def test_start_that_waits_for_a_place_is_stopped_with_a_reason(options: dict[str, Any]) -> None:
    async with SessionPool(max_live=1, wait_s=600, **options, approver=AllowAll()) as pool:
        a, b = await pool.get("a"), await pool.get("b")
        busy = asyncio.create_task(a.run_cell("import time; time.sleep(600)"))
        await eventually(lambda: a.sandbox is not None and a.sandbox.status().alive)
        starting = asyncio.create_task(b.start())
        await eventually(lambda: pool.status().waiting == 1)
        await b.interrupt()
        with pytest.raises(SandboxError, match=r"not started: the wait for its place was interrupted"):
            await starting
        assert pool.status().waiting == 0
        await a.interrupt()
        await busy


class Asking:
    """Answers when it is let."""

    def __init__(self) -> None:
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.asked.set()
        await self.answer.wait()
        return Approval("deny")


@pytest.mark.parametrize("end", ["cancelled", "denied", "stopped"])
async def test_call_that_is_asked_about_takes_no_place_of_another_one_before_it_may_run(
    options: dict[str, Any], end: str
) -> None:
    approver = Asking()
    async with SessionPool(max_live=1, wait_s=600, **options, approver=approver) as pool:
        a, b = await pool.get("a"), await pool.get("b")
        assert not (await a.run_cell("x = 1")).is_error
        busy = asyncio.create_task(a.run_cell("import time; time.sleep(600)"))
        await eventually(lambda: a.sandbox is not None and a.sandbox.status().alive)
        asked = asyncio.create_task(b.call("sandbox_bash", {"command": "touch f"}, ask=True))
        await approver.asked.wait()
        await loop_turns()
        if end == "cancelled":
            asked.cancel()
        elif end == "denied":
            approver.answer.set()
        else:
            await b.interrupt()
        await asyncio.wait([asked])
        assert pool.status().waiting == 0
        await a.interrupt()
        await busy
        await loop_turns()
        assert (await a.run_cell("x")).value["result"] == "1"


async def test_questions_at_once_take_no_more_places_than_are_free(options: dict[str, Any]) -> None:
    approver = Asking()
    async with SessionPool(max_live=2, wait_s=600, **options, approver=approver) as pool:
        a, *others = [await pool.get(key) for key in ("a", "b", "c", "d")]
        assert not (await a.run_cell("x = 1")).is_error
        for other in others:
            await other.call("sandbox_read", {"path": "f"})  # opens it
            await pool.stop(other.session_key)
        asked = [
            asyncio.create_task(other.call("sandbox_bash", {"command": "touch f"}, ask=True))
            for other in others
        ]
        await eventually(lambda: pool.status().live == 2)
        await loop_turns(50)
        assert pool.status().waiting == 0
        assert (await a.run_cell("x")).value["result"] == "1"
        approver.answer.set()
        await asyncio.wait(asked)
