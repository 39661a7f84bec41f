"""Interrupting a session from wherever: another task, another thread, another loop."""

from __future__ import annotations

import asyncio

import pytest

from aisotools.core.events import CallOutput
from aisotools.core.types import ToolResult
from aisotools.session.session import Session
from tests.conftest import OpenSession


def interrupt(session: Session) -> None:
    asyncio.run(session.interrupt())


async def endless(session: Session) -> asyncio.Task[ToolResult]:
    await session.call("python", {"code": "kept = 1"}, origin="person")
    began = asyncio.Event()
    stop = session.subscribe(lambda event: began.set() if isinstance(event, CallOutput) else None)
    code = "import time; print('began'); time.sleep(1000)"
    call = asyncio.create_task(session.call("python", {"code": code}, origin="person", timeout_s=1000))
    await began.wait()
    stop()
    return call


async def is_stopped(session: Session, call: asyncio.Task[ToolResult]) -> None:
    result = await call
    assert result.metadata["stopped"] is True
    result = await session.call("python", {"code": "kept"}, origin="person")
    assert result.value["result"] == "1"


async def test_from_another_task(real_session: OpenSession) -> None:
    session = real_session(level="confined")
    call = await endless(session)
    await asyncio.gather(asyncio.create_task(session.interrupt()), call)
    await is_stopped(session, call)


async def test_from_another_thread(real_session: OpenSession) -> None:
    session = real_session(level="confined")
    call = await endless(session)
    await asyncio.to_thread(interrupt, session)
    await is_stopped(session, call)


async def test_from_many_threads_at_once(real_session: OpenSession) -> None:
    session = real_session(level="confined")
    call = await endless(session)
    await asyncio.gather(*(asyncio.to_thread(interrupt, session) for _ in range(5)))
    await is_stopped(session, call)


async def test_from_a_thread_when_nothing_runs(real_session: OpenSession) -> None:
    session = real_session(level="confined")
    await asyncio.to_thread(interrupt, session)  # not even open
    await session.start()
    await asyncio.to_thread(interrupt, session)
    await session.close()
    await asyncio.to_thread(interrupt, session)


def test_an_interrupt_after_the_loop_is_closed(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("gone")

    async def run() -> Session:
        environ = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
        async with Session(workspace=folder / "workspace", level="confined", environ=environ) as session:
            return session

    session = asyncio.run(run())
    interrupt(session)
