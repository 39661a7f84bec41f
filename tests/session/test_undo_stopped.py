"""A process that a call has left stopped keeps an undo from what it does. No undo or redo continues it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aisotools.policy.approvers import AllowAll
from aisotools.sandbox.process.tree import has_ended, is_stopped
from aisotools.session.history import WorkspaceHistory
from aisotools.session.session import Session
from aisotools.session.sharing import BackgroundProcesses, SharedWorkspace
from tests.conftest import OpenSession
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
    "it stops itself": "setsid sh -c 'kill -STOP $$; {go_on}' >/dev/null 2>&1 &",
    "it stops itself with the file open": (
        "setsid sh -c 'exec 5>>victim; kill -STOP $$; {go_on}' >/dev/null 2>&1 &"
    ),
    "another stops it": "setsid sh -c '{go_on}' >/dev/null 2>&1 & sleep 0.2; kill -STOP $!",
    "in the group of its shell": "sh -c 'kill -STOP $$; {go_on}' >/dev/null 2>&1 &",
}
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


async def stopped_processes(session: Session) -> list[int]:
    """Return what is stopped in a session's sandbox and may go on when it is continued."""
    history = session.history
    assert isinstance(history, WorkspaceHistory)
    running, helpers = await history._shared.find_running()
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
    command = f"{LEFT_STOPPED[how].format(go_on=GO_ON)}\necho new > victim"
    result = await session.call("sandbox_bash", {"command": command}, origin="person")
    assert not result.is_error, result.content

    async def is_stopped_alone() -> bool:
        return len(await stopped_processes(session)) == 1

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
