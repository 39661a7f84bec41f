"""Interrupting a session from wherever: another task, another thread, another loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from aisotools.builtin.python import python
from aisotools.core.events import CallDecided, CallOutput, CallRequested, CallStarted, SessionEvent
from aisotools.core.types import Effect, Json, ToolResult
from aisotools.policy.approvers import AllowAll, ScriptedApprover
from aisotools.policy.rules import Policy
from aisotools.session.session import Session
from aisotools.tools.function import tool
from tests.conftest import OpenSession
from tests.waiting import loop_turns

AUTO = Policy(mode="auto")


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


ENDLESS: dict[str, tuple[str, dict[str, Json]]] = {
    "changes": ("python", {"code": "while True: pass"}),
    "starts programs": ("sandbox_bash", {"command": "echo x > f; sleep 1000"}),
    "only reads": ("sandbox_bash", {"command": "tail -f /dev/null"}),
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("level", ["confined", None])
async def test_a_call_stops_whenever_it_is_interrupted(
    real_session: OpenSession, level: str | None, kind: str
) -> None:
    """While it is decided about, while a checkpoint is taken, and while it is sent."""
    session = real_session(level=level)
    await session.start()
    name, arguments = ENDLESS[kind]
    for turns in (*range(1, 30), *range(30, 150, 15)):
        call = asyncio.create_task(session.call(name, arguments, origin="person", timeout_s=1000))
        await loop_turns(turns)
        await session.interrupt()
        result = await call
        assert result.metadata.get("stopped") is True, (turns, result.content)
    assert not (await session.call("python", {"code": "1"}, origin="person")).is_error


def interrupt_at(session: Session, kind: type[SessionEvent]) -> Callable[[], None]:
    """Interrupt at each event of a kind until the returned function is called."""

    def listen(event: SessionEvent) -> None:
        if isinstance(event, kind):
            session._gate.interrupt()  # as `session.interrupt` does first, within this turn of the loop

    return session.subscribe(listen)


@tool(effect=Effect.LOCAL_MUTATION, runs_in="host")
def write_on_host(path: str) -> str:
    """Write an empty file."""
    Path(path).touch()
    return "written"


@pytest.mark.parametrize("event", [CallRequested, CallDecided, CallStarted])
@pytest.mark.parametrize("name", ["write_on_host", "python"])
async def test_a_call_that_is_interrupted_before_it_runs_is_no_step(
    real_session: OpenSession, event: type[SessionEvent], name: str
) -> None:
    session = real_session(write_on_host, python, approver=AllowAll())
    await session.start()
    assert session.workspace is not None

    def make(file: str) -> Coroutine[Any, Any, ToolResult]:
        path = f"{session.workspace}/{file}"
        arguments = {"path": path} if name == "write_on_host" else {"code": f"open({path!r}, 'w').close()"}
        return session.call(name, arguments, call_id=file)

    assert not (await make("first")).is_error
    end = interrupt_at(session, event)
    result = await make("second")
    end()
    assert result.content == "The call was interrupted before it ran."
    assert result.metadata["stopped"] is True
    assert not (session.workspace / "second").exists()
    undone = await session.undo()
    assert [call["id"] for call in undone.value["calls"]] == ["first"]
    assert not (session.workspace / "first").exists()


async def test_nothing_is_asked_about_a_call_that_was_interrupted(open_session: OpenSession) -> None:
    approver = ScriptedApprover(["approve"])
    session = open_session(approver=approver)
    interrupt_at(session, CallRequested)
    result = await session.call("python", {"code": "open('f', 'w')"}, origin="model")
    assert result.content == "The call was interrupted before it ran."
    assert approver.requests == []


async def test_later_calls_of_a_batch_do_not_begin_after_an_interrupt(real_session: OpenSession) -> None:
    session = real_session(policy=AUTO)
    began = asyncio.Event()
    session.subscribe(lambda event: began.set() if isinstance(event, CallOutput) else None)
    code = "print('began')\nwhile True: pass"
    batch = asyncio.create_task(session.call_many([("python", {"code": code}), ("python", {"code": "1"})]))
    await began.wait()
    await session.interrupt()
    first, second = await batch
    assert first.metadata["stopped"] is True
    assert second.content == "The call was interrupted before it ran."
