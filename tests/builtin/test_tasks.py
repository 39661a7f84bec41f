"""Commands in the background, in a real worker."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from aisotools.core.types import ToolCall, ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from tests.builtin.test_shell import gone, settled
from tests.conftest import OpenSession


@pytest.fixture
def session(real_session: OpenSession) -> Session:
    return real_session(approver=AllowAll())


async def start(session: Session, command: str) -> str:
    result = await session.call("sandbox_bash", {"command": command, "background": True})
    assert not result.is_error, result.content
    return str(result.value["task"])


async def output(session: Session, task: str, **more: Any) -> ToolResult:
    return await session.call("task_output", {"task": task, **more})


async def test_a_task_runs_on_and_is_read_piece_by_piece(session: Session) -> None:
    task = await start(session, "echo one; read x; echo got $x >&2; exit 3")
    first = await output(session, task, pattern="one", wait=5000)
    assert (first.value["output"], first.value["running"], first.value["next_offset"]) == ("one", True, 4)
    told = await session.call("task_input", {"task": task, "text": "it\n"})
    assert not told.is_error
    last = await output(session, task, offset=4, wait=5000)
    assert last.value["output"] == "got it\n"
    assert (last.value["running"], last.value["exitCode"]) == (False, 3)
    assert "ended with exit code 3" in last.content
    listed = await session.call("task_list")
    assert [row["task"] for row in listed.value["tasks"]] == [task]
    assert "takes no input" in (await session.call("task_input", {"task": task, "text": "x"})).content


async def test_an_end_is_announced_once_in_the_next_result_of_its_owner(session: Session) -> None:
    task = await start(session, "sleep 0.3; exit 7")
    await asyncio.sleep(0.8)
    other = ToolCall(uuid.uuid4().hex, "file", {"operation": "list"}, origin="model", agent_id="other")
    assert "task" not in (await session.call_many([other]))[0].content
    first = await session.call("file", {"operation": "list"})
    assert f"[task {task} ended with exit code 7: 'sleep 0.3; exit 7']" in first.content
    again = await session.call("file", {"operation": "list"})
    assert "task" not in again.content


async def test_end_of_input(session: Session) -> None:
    task = await start(session, "wc -c")
    await session.call("task_input", {"task": task, "text": "12345", "end": True})
    assert (await output(session, task, wait=5000)).value["output"] == "5\n"


async def test_waiting_ends_in_time_and_other_calls_go_on(session: Session) -> None:
    task = await start(session, "sleep 30")
    waiting = asyncio.ensure_future(output(session, task, wait=600))
    other = await session.call("sandbox_bash", {"command": "echo hi"})
    assert other.value["stdout"] == "hi\n"
    assert not waiting.done()
    assert (await waiting).value["running"] is True


async def test_stopping_ends_the_whole_group(session: Session) -> None:
    mark = uuid.uuid4().hex
    task = await start(session, f"(trap '' TERM; exec -a {mark} sleep 60) & exec -a {mark} sleep 60")
    assert await settled(mark, 2)
    result = await session.call("task_stop", {"task": task})
    assert result.value["tasks"][0]["state"] == "stopped"
    assert await gone(mark)


async def test_what_ignores_to_be_asked_is_killed(session: Session) -> None:
    mark = uuid.uuid4().hex
    task = await start(
        session, f"trap '' TERM; echo up; while true; do exec -a {mark} sleep 0.1 & wait; done"
    )
    await output(session, task, pattern="up", wait=5000)
    await session.call("task_stop", {"task": "all"})
    assert (await output(session, task)).value["exitCode"] == 137
    assert await gone(mark)


async def test_nothing_outlives_the_session_or_a_restart(session: Session) -> None:
    mark = uuid.uuid4().hex
    await start(session, f"exec -a {mark} sleep 60")
    assert await settled(mark, 1)
    await session.restart()
    assert await gone(mark)
    assert (await session.call("task_list")).content == "No task was started."
    await start(session, f"setsid bash -c 'exec -a {mark} sleep 60' & wait")
    assert await settled(mark, 2)
    await session.close()
    assert await gone(mark)


async def test_tasks_belong_to_who_started_them(session: Session) -> None:
    task = await start(session, "sleep 30")
    calls = [
        ToolCall(uuid.uuid4().hex, name, arguments, origin="model", agent_id="other")
        for name, arguments in (
            ("task_output", {"task": task}),
            ("task_list", {}),
            ("task_stop", {"task": task}),
        )
    ]
    read, listed, stopped = await session.call_many(calls)
    assert "There is no task" in read.content
    assert listed.value == {"tasks": []}
    assert stopped.is_error
    assert (await output(session, task)).value["running"] is True


async def test_much_output_is_kept_in_bounds_and_counted_exactly(session: Session) -> None:
    task = await start(session, "seq 2000000; printf end")
    result = await output(session, task, tail=2, wait=30_000)
    assert result.value["output"] == "2000000\nend"
    assert (result.value["lines"], result.value["bytes"]) == (2_000_000, 14_888_896 + 3)
    middle = await output(session, task, offset=7_000_000)
    assert middle.value["offset"] == 7_000_000
    assert middle.value["next_offset"] == 7_000_000 + (1 << 20)
    assert "more bytes are there" in middle.content
    assert len(middle.content) <= 10_000


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"task": "t99"}, "There is no task 't99'"),
        ({"task": "../x"}, "There is no task"),
        ({"task": "t1", "pattern": "("}, "not a regular expression"),
        ({"task": "t1", "wait": -1}, "wait"),
        ({"task": "t1", "tail": 0}, "tail"),
    ],
)
async def test_wrong_arguments_are_told(session: Session, arguments: dict[str, Any], told: str) -> None:
    await start(session, "true")
    result = await session.call("task_output", arguments)
    assert result.is_error
    assert told in result.content


async def test_there_is_an_end_to_how_many_may_run(session: Session) -> None:
    results = [
        await session.call("sandbox_bash", {"command": "sleep 60", "background": True}) for _ in range(17)
    ]
    assert "16 tasks run already" in results[-1].content
    assert not any(result.is_error for result in results[:-1])
