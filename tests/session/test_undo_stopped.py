"""A process that a call has left stopped keeps an undo from what it does. No undo or redo continues it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aisotools.policy.approvers import AllowAll
from aisotools.sandbox.process.tree import descendants, has_ended, is_stopped
from aisotools.session.history import WorkspaceHistory
from aisotools.session.session import Session
from aisotools.session.sharing import BackgroundProcesses, SharedWorkspace
from tests.conftest import OpenSession
from tests.pooled import local_sandbox
from tests.waiting import eventually, process_state

CHILD = """
import os, signal, time
x = 2
open("victim", "w").write("new")
ready, done = os.pipe()
if {parent}:
    {start}
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.write(done, b".")
        os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            open("victim", "a").write("x")
            time.sleep(0.005)
    os.waitpid(pid, os.WUNTRACED)
    {end}
os.read(ready, 1)
time.sleep(0.2)
"""
RUNNING_PARENT = CHILD.format(parent="os.fork() == 0", start="os.setsid()", end="time.sleep(200)")
NO_PARENT = CHILD.format(parent="True", start="pass", end="pass")


LEFT_STOPPED = {
    "it stops itself": "kill -STOP $$; {go_on}",
    "it stops itself with the file open": "exec 5>>victim; kill -STOP $$; {go_on}",
    "another stops it": "{go_on}",
}
IN_ITS_OWN_GROUP = """
setsid sh -c ': > begun; {code}' >/dev/null 2>&1 &
while [ ! -e begun ]; do sleep 0.01; done
{then}
echo new > victim
"""
"""In the group of the shell, the kernel would continue it at the end of that."""
GO_ON = "while :; do echo x >> victim; sleep 0.01; done"


async def opened(real_session: OpenSession, level: str, code: str) -> Session:
    session = real_session(level=level, approver=AllowAll())
    await session.call("sandbox_write", {"path": "victim", "content": "old"}, origin="person")
    result = await session.call("python", {"code": code}, origin="person")
    assert not result.is_error, result.content
    return session


async def content_for_a_while(session: Session) -> set[str]:
    assert session.workspace is not None
    found = set()
    for _ in range(15):
        found.add((session.workspace / "victim").read_text())
        await asyncio.sleep(0.02)
    return found


def shared_workspace(session: Session) -> SharedWorkspace:
    assert isinstance(session.history, WorkspaceHistory)
    return session.history._shared


async def stopped_processes(session: Session) -> list[int]:
    """Return what is stopped in a session's sandbox and may go on when it is continued."""
    running, helpers = await shared_workspace(session).find_running()
    return [pid for pid in {**running, **helpers} if is_stopped(pid)]


@pytest.mark.parametrize("level", ["isolated", "guarded"])
@pytest.mark.parametrize("variables", ["restore", "keep"])
async def test_forced_undo_sets_no_stopped_child_of_what_it_ends_free(
    real_session: OpenSession, level: str, variables: Any
) -> None:
    session = await opened(real_session, level, RUNNING_PARENT)
    assert (await session.undo()).is_error
    undone = await session.undo(force=True, variables=variables)
    assert "Brought back: victim." in undone.content
    assert await content_for_a_while(session) == {"old"}
    assert await stopped_processes(session) == []


@pytest.mark.parametrize("level", ["isolated", "guarded"])
@pytest.mark.parametrize("how", LEFT_STOPPED)
async def test_process_that_was_left_stopped_is_named_and_ended_only_by_force(
    real_session: OpenSession, level: str, how: str
) -> None:
    session = real_session(level=level, approver=AllowAll())
    await session.call("sandbox_write", {"path": "victim", "content": "old"}, origin="person")
    code, then = LEFT_STOPPED[how].format(go_on=GO_ON), "kill -STOP $!" if "another" in how else ":"
    command = IN_ITS_OWN_GROUP.format(code=code, then=then)
    result = await session.call("sandbox_bash", {"command": command}, origin="person")
    assert not result.is_error, result.content

    async def is_stopped_alone() -> bool:
        running, helpers = await shared_workspace(session).find_running()
        return [*map(is_stopped, {**running, **helpers})] == [True]  # what it waited for has ended

    await eventually(is_stopped_alone)
    (pid,) = await stopped_processes(session)
    for refused in (await session.undo(), await session.undo(variables="keep")):
        assert f"({pid}) was left stopped in the background" in refused.content
        assert "with force=True the undo ends it, too" in refused.content
    assert process_state(pid) in {"T", "t"}
    undone = await session.undo(force=True)
    assert not undone.is_error, undone.content
    assert await stopped_processes(session) == []
    assert has_ended(pid)
    assert await content_for_a_while(session) == {"old"}


@pytest.mark.parametrize("level", ["isolated", "guarded"])
async def test_redo_leaves_stopped_what_was_stopped_before_the_undo(
    real_session: OpenSession, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await opened(real_session, level, NO_PARENT)
    assert await content_for_a_while(session) == {"new"}

    # Race: what runs is listed, and something is left stopped before the undo stops everything.
    async def find_running(_shared: SharedWorkspace) -> BackgroundProcesses:
        return {}, {}

    with monkeypatch.context() as patch:
        patch.setattr(SharedWorkspace, "find_running", find_running)
        assert not (await session.undo()).is_error
        assert await content_for_a_while(session) == {"old"}
        assert not (await session.redo()).is_error
    assert await content_for_a_while(session) == {"new"}
    assert (await session.call("python", {"code": "x"}, origin="person")).value["result"] == "2"
    assert len(await stopped_processes(session)) == 1


TASK = """
v = 1
import asyncio
open('victim', 'w').write('new')
async def write():
    while True:
        open('victim', 'w').write('written')
        await asyncio.sleep(0)
task = asyncio.get_running_loop().create_task(write())
"""


@pytest.mark.pooled
async def test_task_of_a_worker_that_was_brought_back_is_stopped_by_the_next_undo(
    real_session: OpenSession,
) -> None:
    """After an undo, the worker is below the snapshot that it was woken from, of which nothing is stopped."""
    session = real_session(approver=AllowAll())
    await session.call("sandbox_write", {"path": "victim", "content": "old"}, origin="person")
    assert not (await session.run_cell(TASK)).is_error
    await session.run_cell("v = 2")
    assert not (await session.undo(force=True)).is_error
    shared = shared_workspace(session)
    worker = local_sandbox(session).worker_pid
    with shared.freeze():
        await eventually(lambda: process_state(worker) == "T")
    await eventually(lambda: process_state(worker) != "T")
    assert not (await session.undo(force=True)).is_error
    assert await content_for_a_while(session) == {"old"}


@pytest.mark.pooled
async def test_worker_that_waits_for_a_redo_is_not_what_a_call_has_left(real_session: OpenSession) -> None:
    """Also where it is not above the present one, as after a crash: it was woken from an earlier snapshot."""
    session = real_session(approver=AllowAll())
    for value in range(3):
        await session.run_cell(f"v = {value}")
    assert (await session.run_cell("import os; os._exit(1)")).is_error
    await session.run_cell("v = 3")
    before = local_sandbox(session).worker_pid
    for expected in (2, 1):
        assert not (await session.undo(1 if expected == 2 else 2)).is_error
        assert (await stopped_processes(session), await session.get("v")) == ([], expected)
    assert process_state(before) == "T"
    redone = await session.redo(3)
    assert not redone.is_error, redone.content
    assert (local_sandbox(session).worker_pid, await session.get("v")) == (before, 3)


CONTINUES = """
import asyncio, os, signal
async def continue_all():
    while True:
        if os.path.exists('go'):
            os.kill(-1, signal.SIGCONT)
        await asyncio.sleep(0.001)
task = asyncio.get_running_loop().create_task(continue_all())
"""
THREAD = """
import threading, time
def write():
    while True:
        if os.path.exists('go'):
            open('victim', 'w').write('written')
        time.sleep(0.001)
threading.Thread(target=write, daemon=True).start()
"""


@pytest.mark.pooled
async def test_undone_worker_that_something_continues_is_named_and_ended(real_session: OpenSession) -> None:
    # Elsewhere it would continue what others have stopped.
    session = real_session(level="isolated", approver=AllowAll())
    await session.call("sandbox_write", {"path": "victim", "content": "old"}, origin="person")
    assert not (await session.run_cell(CONTINUES)).is_error
    assert not (await session.run_cell(THREAD)).is_error
    before = local_sandbox(session).worker_pid
    assert not (await session.undo()).is_error
    assert process_state(before) == "T"
    assert session.workspace is not None
    victim = session.workspace / "victim"
    (session.workspace / "go").touch()
    await eventually(lambda: victim.read_text() == "written")
    refused = await session.undo()
    assert f"python ({before}) still runs in the background" in refused.content
    undone = await session.undo(2, force=True)
    assert not undone.is_error, undone.content
    assert has_ended(before)
    assert not victim.exists()


def running_below(session: Session) -> set[int]:
    return {pid for pid in descendants(local_sandbox(session).supervisor) if not has_ended(pid)}


@pytest.mark.pooled
async def test_undo_that_is_refused_for_a_conflict_leaves_no_fork_that_it_had_made_ready(
    real_session: OpenSession,
) -> None:
    session = real_session(approver=AllowAll())
    for value in (1, 2):
        await session.run_cell(f"v = {value}; open('victim', 'w').write('{value}')")
    assert session.workspace is not None
    before = running_below(session)
    (session.workspace / "victim").write_text("by a person")
    assert "by a person" not in (refused := await session.undo()).content
    assert refused.is_error
    await shared_workspace(session).wait_for_snapshots()
    assert running_below(session) == before
    assert not (await session.undo(force=True)).is_error
    assert (await session.get("v"), (session.workspace / "victim").read_text()) == (1, "1")
