"""What a call has left stopped stays so: the end of others, an undo and a redo do not continue it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from tests.conftest import OpenSession

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


@pytest.mark.parametrize("level", ["isolated", "guarded"])
async def test_redo_leaves_stopped_what_a_call_has_left_stopped(
    real_session: OpenSession, level: str
) -> None:
    session = await opened(real_session, level, NO_PARENT)
    assert await content_for_a_while(session) == {"new"}
    assert not (await session.undo()).is_error
    assert await content_for_a_while(session) == {"old"}
    assert not (await session.redo()).is_error
    assert await content_for_a_while(session) == {"new"}
    assert (await session.call("python", {"code": "x"}, origin="person")).value["result"] == "2"
