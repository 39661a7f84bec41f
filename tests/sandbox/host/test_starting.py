"""Starting workers ahead of their use, and what makes one that was started useless."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.core.sandboxes import SupportsEarlyStart
from aisotools.sandbox.host.connection import WorkerConnection
from aisotools.sandbox.host.starting import WorkerStarter
from aisotools.sandbox.process import spawn
from tests.sandbox.rig import Rig, is_there, processes_of, rig
from tests.waiting import LoopClock, eventually, loop_turns


@pytest.fixture
async def r(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


def prepare(r: Rig) -> WorkerConnection:
    """Ask for a worker ahead of its use, and return the connection to it."""
    r.kernel.prepare()
    prepared = r.kernel._starter.prepared
    assert prepared is not None
    return prepared


# ---- ahead of its use


async def test_the_first_call_runs_in_the_worker_that_was_asked_for(r: Rig) -> None:
    assert isinstance(r.kernel, SupportsEarlyStart)
    prepared = prepare(r)
    assert prepare(r) is prepared
    await prepared.ready
    assert r.reported.starts == []  # nobody needs it yet
    assert not r.kernel.status().alive
    assert await r.value("1") == 1
    assert r.kernel._connection is prepared
    ((status, reason),) = r.reported.starts
    assert (status.pid, status.generation, reason) == (prepared.pid, 1, "")
    assert prepared.monitor is not None


async def test_a_worker_that_is_discarded_is_ended_and_the_first_call_gets_another(r: Rig) -> None:
    prepared = prepare(r)
    await prepared.ready
    r.kernel.discard_prepared()
    assert await r.value("1") == 1
    assert r.kernel._connection is not prepared
    await eventually(lambda: not is_there(f"/proc/{prepared.pid}"))
    r.kernel.discard_prepared()  # nothing is left to be discarded
    assert await r.value("1") == 1


async def test_two_calls_at_once_share_the_worker_that_was_asked_for(r: Rig) -> None:
    prepared = prepare(r)
    assert tuple(await asyncio.gather(r.value("1"), r.value("2"))) == (1, 2)
    assert list(r.kernel._connections) == [prepared]


async def test_none_is_asked_for_beside_one_that_runs(r: Rig) -> None:
    await r.kernel.start()
    r.kernel.prepare()
    assert r.kernel._starter.prepared is None
    assert len(r.kernel._connections) == 1


@pytest.mark.parametrize("is_ready", [False, True])
async def test_closing_ends_a_worker_that_was_never_used(r: Rig, is_ready: bool) -> None:
    prepared = prepare(r)
    if is_ready:
        await prepared.ready
    await r.kernel.close()
    assert processes_of(r.workspace) == []
    assert not r.kernel._connections
    r.kernel.prepare()
    assert not r.kernel._connections
    assert (r.reported.starts, r.reported.losses) == ([], [])


@pytest.mark.parametrize("who", ["worker", "supervisor"])
async def test_one_that_was_killed_before_its_use_is_replaced(r: Rig, who: str) -> None:
    prepared = prepare(r)
    await prepared.ready
    os.kill(prepared.pid if who == "worker" else prepared.supervisor, signal.SIGKILL)
    await eventually(lambda: prepared.lost_reason is not None)
    assert await r.value("1") == 1
    assert r.kernel._connection is not prepared
    assert r.reported.losses == []  # nothing was in it
    assert [reason for _, reason in r.reported.starts] == [""]
    assert prepared.processes_ended.done()


async def test_one_that_was_asked_for_by_other_rules_is_not_used(r: Rig) -> None:
    (r.workspace / "hidden").write_text("secret")
    prepared = prepare(r)
    await prepared.ready
    await r.kernel.deny_paths(["hidden"], [])
    assert r.kernel._starter.prepared is None
    assert await r.value("1") == 1
    assert r.kernel._connection is not prepared
    assert not is_there(f"/proc/{prepared.pid}")  # nothing of it runs beside the other one
    if r.level == "isolated":
        assert "Permission" in (await r.python("open('hidden').read()")).content


async def test_one_whose_workspace_became_an_import_root_gets_no_call(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(r)
    await prepared.ready
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(r.workspace))
        with pytest.raises(SandboxError, match=r"ended before its first call: .*cannot be the workspace"):
            await r.kernel.start()
    await eventually(lambda: not r.kernel._connections)
    assert not is_there(f"/proc/{prepared.pid}")
    assert await r.value("1") == 1


async def test_a_worker_that_cannot_be_asked_for_ahead_is_reported_by_the_start(r: Rig) -> None:
    def refuse(handles: spawn.WorkerHandles) -> NoReturn:
        for end in (handles.channel, handles.control, handles.out, handles.err):
            end.close()
        raise SandboxError("no descriptors are left")

    starter = WorkerStarter(refuse, timeout_s=20)
    starter.prepare(r.wanted)
    assert starter.prepared is None
    with pytest.raises(SandboxError, match="no descriptors are left"):
        await starter.start(r.wanted)


# ---- waiting


class CrowdedServer:
    """A fork server that cannot be sent descriptors the first few times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def spawn(self, _spec: object) -> object:
        if self.failures:
            self.failures -= 1
            raise spawn.TooManyOnTheirWay("too many")
        return self


async def test_a_start_waits_while_too_many_descriptors_are_on_their_way(r: Rig) -> None:
    start: Any = r.kernel._starter._spawn
    server = CrowdedServer(3)
    assert await start(server, r.wanted) is server
    clock = LoopClock()
    starting = asyncio.ensure_future(start(CrowdedServer(1 << 30), r.wanted))
    while not starting.done():
        await clock.advance(1)
    with pytest.raises(spawn.TooManyOnTheirWay):
        await starting


async def test_a_start_that_waits_ends_with_the_sandbox(r: Rig) -> None:
    start: Any = r.kernel._starter._spawn
    starting = asyncio.ensure_future(start(CrowdedServer(1 << 30), r.wanted))
    await loop_turns(2)
    await r.kernel.close()
    with pytest.raises(SandboxError, match="The sandbox was closed"):
        await starting
