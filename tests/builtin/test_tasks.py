"""Commands in the background, in a real worker."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from aisotools.builtin import tasks
from aisotools.builtin.tasks import Task, announce_ended, find_task, matching_lines, tasks_of
from aisotools.core.exceptions import ToolError
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
    first = await output(session, task, pattern="one", wait=60_000)
    assert (first.value["output"], first.value["running"], first.value["next_offset"]) == ("one", True, 4)
    answer = await session.call("task_input", {"task": task, "text": "it\n"})
    assert not answer.is_error
    last = await output(session, task, offset=4, wait=60_000)
    assert last.value["output"] == "got it\n"
    assert (last.value["running"], last.value["exitCode"]) == (False, 3)
    assert "ended with exit code 3" in last.content
    listed = await session.call("task_list")
    assert [row["task"] for row in listed.value["tasks"]] == [task]
    assert "takes no input" in (await session.call("task_input", {"task": task, "text": "x"})).content


async def test_an_end_is_announced_once_in_the_next_result_of_its_owner(session: Session) -> None:
    mark = uuid.uuid4().hex
    task = await start(session, f": {mark}; while [ ! -e go ]; do sleep 0.01; done; exit 7")
    assert session.workspace is not None
    (session.workspace / "go").touch()
    assert await gone(mark)
    other = ToolCall(uuid.uuid4().hex, "file", {"operation": "list"}, origin="model", agent_id="other")
    assert "task" not in (await session.call_many([other]))[0].content
    # The process is gone a moment before the worker has seen its end.
    first = await session.call("file", {"operation": "list"})
    while "task" not in first.content:
        first = await session.call("file", {"operation": "list"})
    assert f"[task {task} ended with exit code 7: ': {mark}; while" in first.content
    again = await session.call("file", {"operation": "list"})
    assert "task" not in again.content


async def test_end_of_input(session: Session) -> None:
    task = await start(session, "wc -c")
    await session.call("task_input", {"task": task, "text": "12345", "end": True})
    assert (await output(session, task, wait=60_000)).value["output"] == "5\n"


async def test_waiting_ends_in_time_and_other_calls_go_on(session: Session) -> None:
    task = await start(session, "sleep 1000")
    waiting = asyncio.ensure_future(output(session, task, wait=600_000))
    other = await session.call("sandbox_bash", {"command": "echo hi"})
    assert other.value["stdout"] == "hi\n"
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (await output(session, task, wait=100)).value["running"] is True


async def test_stopping_ends_the_whole_group(session: Session) -> None:
    mark = uuid.uuid4().hex
    task = await start(session, f"(trap '' TERM; exec -a {mark} sleep 60) & exec -a {mark} sleep 60")
    assert await settled(mark, 2)
    result = await session.call("task_stop", {"task": task})
    assert result.value["tasks"][0]["state"] == "stopped"
    assert await gone(mark)


async def test_a_task_that_ignores_the_request_to_end_is_killed(session: Session) -> None:
    mark = uuid.uuid4().hex
    task = await start(
        session, f"trap '' TERM; echo up; while true; do exec -a {mark} sleep 0.1 & wait; done"
    )
    await output(session, task, pattern="up", wait=60_000)
    await session.call("task_stop", {"task": "all"})
    assert (await output(session, task)).value["exitCode"] == 137
    assert await gone(mark)


async def test_nothing_outlives_the_session_or_a_restart(session: Session) -> None:
    mark = uuid.uuid4().hex
    await start(session, f"exec -a {mark} sleep 60")
    assert await settled(mark, 1)
    await session.restart()
    assert await gone(mark)
    assert (await session.call("task_list")).content.endswith("variables are lost.]\nNo task was started.")
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
    ("arguments", "message"),
    [
        ({"task": "t99"}, "There is no task 't99'"),
        ({"task": "../x"}, "There is no task"),
        ({"task": "t1", "pattern": "("}, "not a regular expression"),
        ({"task": "t1", "wait": -1}, "wait"),
        ({"task": "t1", "tail": 0}, "tail"),
    ],
)
async def test_wrong_arguments_are_reported(
    session: Session, arguments: dict[str, Any], message: str
) -> None:
    await start(session, "true")
    result = await session.call("task_output", arguments)
    assert result.is_error
    assert message in result.content


async def test_there_is_an_end_to_how_many_may_run(session: Session) -> None:
    results = [
        await session.call("sandbox_bash", {"command": "sleep 60", "background": True}) for _ in range(17)
    ]
    assert "16 tasks run already" in results[-1].content
    assert not any(result.is_error for result in results[:-1])


# ---- without a worker


class Pipe(asyncio.WriteTransport):
    """The standard input of a fake process."""

    def __init__(self) -> None:
        super().__init__()
        self.data, self.waiting, self.ended = b"", 0, False

    def write(self, data: Any) -> None:
        self.data += data

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.ended

    def get_write_buffer_size(self) -> int:
        return self.waiting


class Process(asyncio.SubprocessTransport):
    """A process that does nothing; the test calls the task's protocol methods itself."""

    def __init__(self) -> None:
        super().__init__()
        self.pipe = Pipe()
        self.returncode: int | None = None

    def get_pid(self) -> int:
        return 4242

    def get_returncode(self) -> int | None:
        return self.returncode

    def get_pipe_transport(self, fd: int) -> Pipe | None:
        return self.pipe if fd == 0 else None


@pytest.fixture(autouse=True)
def own_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    table: dict[str, Task] = {}
    monkeypatch.setattr(tasks, "_tasks", table)
    yield
    for task in list(table.values()):
        task.forget()


def begin(agent_id: str = "me") -> tuple[Task, Process]:
    task, process = Task("server --port 1", agent_id), Process()
    task.attach(process)
    return task, process


def end(task: Task, process: Process, status: int = 0) -> None:
    process.returncode = status
    task.process_exited()
    task.connection_lost(None)


async def test_states_and_exit_codes() -> None:
    task, process = begin()
    assert (task.running, task.state, task.exit_code, task.pid) == (True, "running", None, 4242)
    end(task, process, -15)
    assert (task.running, task.state, task.exit_code) == (False, "ended with exit code 143", 143)
    assert task.as_json()["exitCode"] == 143


async def test_a_fork_of_the_worker_has_lost_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    task, _ = begin()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert (task.running, task.state, task.exit_code) == (False, "lost with an earlier worker", None)
    with pytest.raises(ToolError, match="takes no input: it is lost with an earlier worker"):
        task.write("x", end=False)


async def test_an_end_that_a_fork_of_the_worker_makes_up_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    task, process = begin()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    end(task, process, 255)
    assert (task.running, task.state, task.exit_code) == (False, "lost with an earlier worker", None)


async def test_both_streams_are_stored_in_order_and_read_from_an_offset() -> None:
    task, _ = begin()
    task.pipe_data_received(1, b"one ")
    task.pipe_data_received(2, b"two ")
    assert task.read(0, 100) == (0, b"one two ")
    assert task.read(4, 2) == (4, b"tw")
    assert task.total_bytes == 8


async def test_output_behind_the_file_is_read_from_the_end_that_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "SPILL_BYTES", 4)
    monkeypatch.setattr(tasks, "_BUFFER_BYTES", 8)
    task, _ = begin()
    task.pipe_data_received(1, b"0123456789abcdefghijklmnop")
    assert task.read(0, 100) == (0, b"0123")
    start, data = task.read(4, 100)
    assert start > 4
    assert data == b"0123456789abcdefghijklmnop"[start:]


async def test_input_is_written_and_bounded() -> None:
    task, process = begin()
    task.write("yes\n", end=False)
    process.pipe.waiting = 1 << 20
    with pytest.raises(ToolError, match="does not read its input"):
        task.write("x", end=False)
    process.pipe.waiting = 0
    task.write("", end=True)
    assert (process.pipe.data, process.pipe.ended) == (b"yes\n", True)
    with pytest.raises(ToolError, match="takes no input"):
        task.write("x", end=False)


async def test_waiting_ends_with_the_condition_or_the_process() -> None:
    task, process = begin()
    waiting = asyncio.ensure_future(task.wait(30, lambda: task.total_bytes > 2))
    await asyncio.sleep(0)
    task.pipe_data_received(1, b"12")
    await asyncio.sleep(0)
    assert not waiting.done()
    task.pipe_data_received(1, b"3")
    assert await waiting is True
    waiting = asyncio.ensure_future(task.wait(30, lambda: False))
    await asyncio.sleep(0)
    end(task, process)
    assert await waiting is True
    assert await task.wait(0, lambda: False) is True
    assert await begin()[0].wait(0, lambda: False) is False


async def test_an_end_is_announced_once_and_to_its_owner() -> None:
    task, process = begin("me")
    assert announce_ended("me") == ""
    end(task, process, 3)
    assert announce_ended("other") == ""
    assert announce_ended("me") == f"[task {task.id} ended with exit code 3: 'server --port 1']"
    assert announce_ended("me") == ""


async def test_tasks_are_found_by_name_among_those_of_the_agent() -> None:
    mine, _ = begin("me")
    theirs, _ = begin("other")
    assert tasks_of("me") == [mine]
    assert find_task(mine.id, "me") is mine
    with pytest.raises(ToolError, match=f"no task '{theirs.id}'. Tasks: {mine.id}."):
        find_task(theirs.id, "me")
    with pytest.raises(ToolError, match="Tasks: none"):
        find_task(mine.id, "nobody")


async def test_the_oldest_ended_tasks_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_MAX_REMEMBERED", 2)
    running, _ = begin()
    ended = [begin() for _ in range(2)]
    for task, process in ended:
        end(task, process)
    latest, _ = begin()
    assert tasks_of("me") == [running, latest]


async def test_too_many_tasks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MAX_RUNNING", 1)
    task, process = begin()
    with pytest.raises(ToolError, match="1 tasks run already"):
        Task("x", "me")
    end(task, process)
    Task("x", "me").forget()


def test_matching_lines() -> None:
    assert matching_lines("a1\nb\na2", "a.") == ["a1", "a2"]
    with pytest.raises(ToolError, match="not a regular expression"):
        matching_lines("", "(")
