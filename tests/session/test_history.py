"""Undo as a session has it: files, what is told before and after, reads before edits."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import os
import signal
import socket
import stat
import sys
import threading
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.events import (
    ApprovalAsked,
    CheckpointTaken,
    HistoryRecovered,
    Redone,
    Undone,
    VariablesDropped,
)
from aisotools.core.exceptions import SandboxError, SessionClosed, UsageError, WorkspaceError
from aisotools.core.protocols import ToolContext
from aisotools.core.sandboxes import SandboxCall, SupportsSnapshots, VariablePoint
from aisotools.core.threads import OWN
from aisotools.core.types import Approval, ApprovalRequest, Effect, Facts, ToolCall, ToolResult
from aisotools.policy.approvers import AllowAll, ScriptedApprover
from aisotools.policy.rules import Policy
from aisotools.session import ledger, sharing
from aisotools.session.history import WorkspaceHistory
from aisotools.session.ledger_reader import events_of_records
from aisotools.session.session import Session
from aisotools.session.undo_results import list_uncovered
from aisotools.testing.fakes import FakeSandbox, MockTool
from aisotools.tools.function import tool
from aisotools.workspace.checkpoints import switching
from aisotools.workspace.checkpoints.scan import RACY_NS, ScanLimits, Snapshot
from aisotools.workspace.checkpoints.store import content_digest
from aisotools.workspace.checkpoints.timeline import KEPT_STEPS
from aisotools.workspace.dirfd import exchange
from tests.conftest import OpenSession
from tests.pooled import local_sandbox
from tests.sandbox.process.test_freezing import hopping
from tests.session.variables_fake import Act, CopyHistory, VariablesSandbox
from tests.waiting import HANG_S, eventually, late, loop_turns, process_state

AUTO = Policy(mode="auto")


async def write(session: Session, path: str, content: str, **options: Any) -> None:
    result = await session.call("sandbox_write", {"path": path, "content": content}, **options)
    assert not result.is_error, result.content


def here(session: Session, path: str = "a") -> Path:
    assert session.workspace is not None
    return session.workspace / path


async def test_undo_redo_and_changes(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await write(session, "a", "1", call_id="first")
    await write(session, "a", "2", call_id="second")
    changes = await session.changes()
    assert (changes.added, len(changes)) == (("a",), 1)
    assert (await session.changes("second")).changed == ("a",)
    undone = await session.undo()
    assert undone.value["calls"] == [{"id": "second", "name": "sandbox_write"}]
    assert here(session).read_text() == "1"
    assert (await session.undo()).content == "Undid 1 call: sandbox_write (first).\nRemoved: a."
    assert not here(session).exists()
    assert not await session.changes()
    assert (await session.undo()).content == "There is nothing to undo."
    await session.redo(2)
    assert here(session).read_text() == "2"
    assert not (await session.undo(to="first")).is_error
    assert not here(session).exists()
    kinds = [type(event) for event in session.events]
    assert (kinds.count(CheckpointTaken), kinds.count(Undone), kinds.count(Redone)) == (2, 3, 1)


async def test_a_call_that_changed_nothing_is_a_step_and_one_that_only_reads_is_none(
    open_session: OpenSession,
) -> None:
    idle = MockTool("idle", facts=Facts(writes=("a",)), result="did nothing")
    session = open_session(policy=AUTO)
    session.registry.register(idle)
    await write(session, "a", "1")
    await session.call("sandbox_read", {"path": "a"})
    await session.call("idle", call_id="nothing")
    undone = await session.undo()
    assert "Undid 1 call: idle (nothing, changed no file).\nNo file had to be changed." in undone.content
    assert undone.value["changed_nothing"] == ["nothing"]
    assert here(session).exists()
    assert "Removed: a." in (await session.undo()).content
    assert not here(session).exists()


async def test_redo_names_the_call_after_which_nothing_can_be_redone(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await write(session, "a", "1")
    assert not (await session.undo()).is_error
    await write(session, "b", "1", call_id="last")
    refused = await session.redo()
    assert refused.is_error
    assert refused.content == (
        "There is nothing to redo. What was undone cannot be redone after sandbox_write (last), which may "
        "have changed something."
    )


async def test_wrong_steps_and_unknown_calls_are_told(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await write(session, "a", "1", call_id="known")
    for wrong in (0, -1, True, "2"):
        with pytest.raises(ValueError, match="whole number"):
            await session.undo(wrong)  # type: ignore[arg-type]  # the mistake that is told
    for unclear in ("yes", 1, None):
        for move in (session.undo, session.redo):
            with pytest.raises(ValueError, match=r"^force=.*: use True or False\.$"):
                await move(force=unclear)  # type: ignore[arg-type]  # likewise
    with pytest.raises(UsageError, match=r"no call 'x' to undo. Known: known"):
        await session.undo(to="x")
    with pytest.raises(UsageError, match="no checkpoint from before a call 'x'"):
        await session.changes("x")


TOO_MANY = "Too many files are open: close sessions or files, or raise the limit (`ulimit -n`)."


def refuse_files(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/proc")


async def test_undo_and_redo_for_which_no_more_files_can_be_opened_are_refused_with_the_remedy(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session(policy=AUTO)
    await write(session, "a", "1")
    await write(session, "a", "2")
    await session.undo()
    history = session.history
    assert isinstance(history, WorkspaceHistory)
    shared = history._shared  # there is no door for the fault
    for function in ("find_running", "wait_for_snapshots", "find_host_work", "freeze"):
        for move in (session.undo, session.redo):
            with monkeypatch.context() as patch:
                patch.setattr(shared, function, refuse_files)
                refused = await move()
            assert refused.is_error
            assert f"Too many open files ('/proc'). {TOO_MANY}" in refused.content
            assert here(session).read_text() == "1"
    with monkeypatch.context() as patch:
        patch.setattr(shared, "freeze", refuse_files)
        with pytest.raises(WorkspaceError, match=r"^Too many open files \('/proc'\)\. Too many"):
            await session.changes()
        with pytest.raises(WorkspaceError, match=r"Too many open files \('/proc'\)\. Too many"):
            await session.branch()
    assert not (await session.redo()).is_error
    assert here(session).read_text() == "2"


async def test_files_go_back_where_the_system_keeps_their_variables_from_being_restored(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await open_acting(open_session)
    await act(session, "one", {"a": "1"}, x=1)
    await act(session, "two", {"a": "2"}, x=2)
    monkeypatch.setattr(fake_variables(session), "restore", refuse_files)
    refused = await session.undo()
    assert refused.is_error
    assert refused.content.startswith("Nothing was changed: the variables could not be restored")
    assert TOO_MANY in refused.content
    assert here(session).read_text() == "2"


async def test_files_go_back_with_what_is_not_stored_where_variables_cannot_be_restored(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_or_bind(path: Path, text: str) -> None:
        if text != "a socket":
            path.write_text(text)
            return
        path.unlink()
        os.mknod(path, stat.S_IFSOCK | 0o600)

    session = await open_acting(open_session, write=write_or_bind)
    await act(session, "one", {"a": "1"}, x=1)
    await act(session, "two", {"a": "a socket"}, x=2)
    before = here(session).lstat()
    assert stat.S_ISSOCK(before.st_mode)
    with monkeypatch.context() as patch:
        patch.setattr(fake_variables(session), "restore", refuse_files)
        refused = await session.undo()
    assert refused.content.startswith("Nothing was changed: the variables could not be restored")
    after = here(session).lstat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    undone = await session.undo()
    assert not undone.is_error, undone.content
    assert here(session).read_text() == "1"
    assert [path.name for path in here(session, "").iterdir()] == ["a"]


async def test_undo_to_a_call_that_is_undone_says_so_and_two_ways_to_say_how_far_are_refused(
    open_session: OpenSession,
) -> None:
    session = open_session(policy=AUTO)
    for call_id in ("k1", "k2"):
        await write(session, "a", call_id, call_id=call_id)
    with pytest.raises(ValueError, match=r"steps=2, to='k1': use one of them"):
        await session.undo(2, to="k1")
    assert here(session).read_text() == "k2"
    assert not (await session.undo()).is_error
    with pytest.raises(UsageError, match=r"^The call 'k2' is undone already\. A redo makes it again\."):
        await session.undo(to="k2")
    assert not (await session.undo()).is_error
    with pytest.raises(UsageError, match="The call 'k2' is undone already"):
        await session.undo(to="k2")
    with pytest.raises(UsageError, match=r"There is no call 'k3' to undo\. All calls are undone already\."):
        await session.undo(to="k3")


async def test_an_interrupted_call_says_what_it_had_changed_by_then(real_session: OpenSession) -> None:
    session = real_session(policy=AUTO, approver=AllowAll())
    await session.start()
    code = "import time; open('half', 'w').write('half'); time.sleep(100)"
    running = asyncio.ensure_future(session.run_cell(code))
    while not here(session, "half").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
    await session.interrupt()
    result = await running
    assert "[What it had changed by then stays changed: half. Undo takes it back.]" in result.content
    assert not (await session.undo()).is_error
    assert not here(session, "half").exists()


async def test_a_conflict_is_shown_and_nothing_is_done(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await write(session, "a", "call")
    here(session).write_text("person")
    refused = await session.undo()
    assert refused.is_error
    assert "a: it was changed by somebody else since" in refused.content
    assert refused.value["conflicts"][0]["path"] == "a"
    assert here(session).read_text() == "person"
    assert not (await session.undo(force=True)).is_error


async def test_forced_move_names_what_of_somebody_else_it_has_replaced(open_session: OpenSession) -> None:
    """A redo brings back what a forced undo has replaced, and says so where it is the other way about."""
    session = open_session(policy=AUTO)
    await write(session, "a", "call")
    here(session).write_text("person")
    undone = await session.undo(force=True)
    assert "\nReplaced, although it had changed since: a.\n" in f"{undone.content}\n"
    assert not (await session.redo()).is_error
    assert here(session).read_text() == "person"
    assert not (await session.undo(force=True)).is_error
    here(session).write_text("person again")
    refused = await session.redo()
    remark = "or redo with force=True, after which no undo brings that change back."
    assert refused.content.splitlines()[-1] == f"Keep it by leaving it as it is, {remark}"
    redone = await session.redo(force=True)
    line = "Replaced, although it had changed since: a. An undo does not bring that change back."
    assert line in redone.content.splitlines()
    assert here(session).read_text() == "person"
    assert not (await session.undo(force=True)).is_error
    assert not here(session).exists()


@pytest.mark.parametrize(("budget", "is_in_memory"), [(64 << 20, True), (1 << 20, False)])
async def test_checkpoints_are_charged_to_the_budget_of_the_session(
    open_session: OpenSession, budget: int, is_in_memory: bool
) -> None:
    """Where it is more than a fourth of the budget, it waits in a file instead."""
    session = open_session(policy=AUTO, retained_bytes=budget)
    await write(session, "a", "1")
    before = session.status().retained
    for number in range(2_000):
        here(session, f"f{number}").touch()
    await write(session, "a", "2")
    after = session.status().retained
    assert before is not None
    assert after is not None
    assert (after.used_bytes - before.used_bytes > 2_000 * 200) == is_in_memory
    assert after.used_bytes <= budget
    assert (await session.undo()).content.endswith("Brought back: a.")
    retention = session.retention
    charged = retention.used_bytes
    await session.close()
    assert (charged - retention.used_bytes > 2_000 * 200) == is_in_memory


async def test_two_sessions_share_one_chain_and_wait_for_each_other(open_session: OpenSession) -> None:
    running, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_arguments: object, context: ToolContext) -> ToolResult:
        (context.workspace_path / "slow").write_text("1")
        running.set()
        await go_on.wait()
        return ToolResult.text("done")

    one, other = open_session(policy=AUTO), open_session(policy=AUTO)
    one.registry.register(MockTool("slow", facts=Facts(writes=("a",)), result=slow))
    calling = asyncio.ensure_future(one.call("slow", call_id="slow"))
    await running.wait()
    writing = asyncio.ensure_future(other.call("sandbox_write", {"path": "b", "content": "2"}))
    undoing = asyncio.ensure_future(other.undo(2))
    assert not (await other.call("sandbox_read", {"path": "slow"})).is_error  # which came after them
    assert not writing.done()
    assert not undoing.done()
    go_on.set()
    await calling
    assert not (await writing).is_error
    assert {one["id"] for one in (await undoing).value["calls"]} >= {"slow"}
    assert sorted(path.name for path in here(one, ".").iterdir()) == []


async def test_a_call_within_a_call_does_not_wait_for_itself(open_session: OpenSession) -> None:
    async def nested(_arguments: object, context: ToolContext) -> ToolResult:
        assert context.services is not None
        return await context.services.call("sandbox_write", {"path": "a", "content": "1"})

    session = open_session(policy=AUTO, approver=ScriptedApprover(["approve"] * 3))
    session.registry.register(MockTool("outer", facts=Facts(writes=("a",)), runs_in="host", result=nested))
    assert not (await session.call("outer")).is_error
    assert here(session).read_text() == "1"
    await session.undo()
    assert not here(session).exists()


async def test_undo_is_refused_from_inside_a_call(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)

    async def undoing(_arguments: object, _context: ToolContext) -> ToolResult:
        return await session.undo()

    session.registry.register(MockTool("m", facts=Facts(writes=("a",)), runs_in="host", result=undoing))
    assert "A call is running here" in (await session.call("m")).content


class SandboxAbove(FakeSandbox):
    """A sandbox that says its processes are those below this one."""

    supervisor = worker_pid = 0
    worker_pid = 0


async def test_undo_is_refused_while_a_task_runs_and_kills_it_when_forced(open_session: OpenSession) -> None:
    command = "sleep 60 > /dev/null & echo $!; wait $!; echo $?; read end"
    shell = await asyncio.create_subprocess_exec("sh", "-c", command, stdin=PIPE, stdout=PIPE)
    assert shell.stdout is not None
    try:
        task = int(await shell.stdout.readline())
        session = open_session(policy=AUTO, sandbox=SandboxAbove)
        await write(session, "a", "1")
        assert isinstance(session.sandbox, SandboxAbove)
        session.sandbox.supervisor = shell.pid
        assert f"sleep ({task}) still runs in the background" in (await session.undo()).content
        assert here(session).exists()
        assert not (await session.undo(force=True)).is_error
        assert not here(session).exists()
        assert await shell.stdout.readline() == b"137\n"  # 128 + SIGKILL
    finally:
        shell.kill()
        await shell.wait()


@pytest.mark.parametrize("pause_s", [0.0005, 0.005])
async def test_undo_with_force_ends_a_process_that_forks_and_ends_on_and_on(
    open_session: OpenSession, tmp_path: Path, pause_s: float
) -> None:
    """It has another id than when processes were listed."""
    session = open_session(policy=AUTO, sandbox=SandboxAbove)
    await write(session, "a", "1")
    with hopping(tmp_path / "hops", pause_s) as above:
        assert isinstance(session.sandbox, SandboxAbove)
        session.sandbox.supervisor = above
        assert (await session.undo()).is_error
        assert not (await session.undo(force=True)).is_error
        assert not here(session).exists()
        size = (tmp_path / "hops").stat().st_size
        await asyncio.sleep(0.1)
        assert (tmp_path / "hops").stat().st_size == size


class LateWriter:
    """The work of a tool on the host that is not ended by its deadline, and writes once it is let go."""

    def __init__(self, path: Path) -> None:
        self.released, self.ended = asyncio.Event(), asyncio.Event()
        self._path = path

    async def __call__(self, _arguments: object, _context: ToolContext) -> str:
        self._path.write_text("early")
        with contextlib.suppress(asyncio.CancelledError):
            await self.released.wait()
        await self.released.wait()
        self._path.write_text("late")
        self.ended.set()
        return "at last"

    def tool(self, effect: Effect = Effect.LOCAL_MUTATION) -> MockTool:
        facts = Facts(effect=effect, writes=() if effect is Effect.READ_ONLY else ("h",))
        return MockTool("slow", facts=facts, runs_in="host", result=self, timeout_s=0.05)


async def test_undo_is_refused_while_work_of_a_call_goes_on_on_the_host(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await write(session, "a", "1")
    work = LateWriter(here(session, "h"))
    session.registry.register(work.tool())
    result = await session.call("slow", call_id="s")
    assert result.metadata["timed_out"] is True
    assert "stays changed: h. Once it has ended, an undo takes that back, if nobody" in result.content
    for move in (session.undo, partial(session.undo, to="s"), partial(session.undo, variables="keep")):
        refused = await move()
        assert refused.is_error
        assert "slow (s) still runs on the host and may go on changing files." in refused.content
        assert here(session, "h").read_text() == "early"
    work.released.set()
    await work.ended.wait()
    await loop_turns(3)
    # What it has written after its end is somebody else's by then, as far as anybody can tell.
    assert "h" in (await session.undo()).content
    undone = await session.undo(force=True)
    assert not undone.is_error
    assert "Still running" not in undone.content
    assert not here(session, "h").exists()


async def test_forced_undo_names_what_still_runs_on_the_host(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await write(session, "a", "1")
    work = LateWriter(here(session, "h"))
    session.registry.register(work.tool())
    await session.call("slow", call_id="s")
    undone = await session.undo(force=True)
    assert not undone.is_error
    assert "[Still running on the host: slow (s). What it changes from now on stays.]" in undone.content
    assert undone.metadata["host_work"] == ["slow (s)"]
    assert not here(session, "h").exists()
    work.released.set()
    await work.ended.wait()
    assert here(session, "h").read_text() == "late"


async def test_work_that_is_believed_to_read_only_refuses_no_undo(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await write(session, "a", "1")
    work = LateWriter(here(session, "h"))
    session.registry.register(work.tool(Effect.READ_ONLY))
    assert (await session.call("slow")).metadata["timed_out"] is True
    assert not (await session.undo()).is_error
    work.released.set()
    await work.ended.wait()


async def test_undo_of_another_session_is_refused_too(open_session: OpenSession) -> None:
    first, second = open_session(policy=AUTO), open_session(policy=AUTO)
    work = LateWriter(here(first, "h"))
    first.registry.register(work.tool())
    await write(second, "a", "1")
    await first.call("slow", call_id="s")
    assert "slow (s) still runs on the host" in (await second.undo()).content
    work.released.set()
    await work.ended.wait()
    await eventually(lambda: sharing_of(second).find_host_work() == [])


def sharing_of(session: Session) -> sharing.SharedWorkspace:
    assert isinstance(session.history, WorkspaceHistory)
    return session.history._shared


async def test_timeout_that_takes_back_says_that_the_tool_goes_on(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO, on_timeout="undo")
    await session.start()
    work = LateWriter(here(session, "h"))
    session.registry.register(work.tool())
    result = await session.call("slow", call_id="s")
    assert result.metadata["taken_back"] is False
    assert "could not be taken back, and stays changed: h. slow (s) still runs on the host" in result.content
    work.released.set()
    await work.ended.wait()


async def test_call_beside_work_on_the_host_says_so(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await session.start()
    work = LateWriter(here(session, "h"))
    session.registry.register(work.tool())
    await session.call("slow", call_id="s")
    beside = "[Still running on the host meanwhile: slow (s). What it has changed during this call may"
    assert beside in (await session.call("sandbox_write", {"path": "a", "content": "1"})).content
    work.released.set()
    await work.ended.wait()
    await loop_turns(3)
    after = await session.call("sandbox_write", {"path": "a", "content": "2"})
    assert "Still running" not in after.content


async def test_thread_that_a_tool_on_the_host_has_started_is_not_seen(open_session: OpenSession) -> None:
    released = threading.Event()

    async def wait(_arguments: object, _context: ToolContext) -> str:
        await asyncio.to_thread(released.wait)
        return "done"

    session = open_session(policy=AUTO)
    facts = Facts(writes=("h",))
    session.registry.register(MockTool("m", facts=facts, runs_in="host", result=wait, timeout_s=0.05))
    result = await session.call("m")
    released.set()
    assert "It has not ended yet" not in result.content
    assert not (await session.undo()).is_error


async def test_work_of_a_loop_that_is_gone_refuses_nothing(tmp_path: Path) -> None:
    async def stop(work: LateWriter, shared: sharing.SharedWorkspace) -> None:
        task = asyncio.ensure_future(work.tool().execute({}, ToolContext()))
        shared.note_host_work(ToolCall("s", "slow", {}), [task])
        await asyncio.sleep(0)
        assert shared.find_host_work() == ["slow (s)"]

    shared = sharing.SharedWorkspace(tmp_path, None)  # type: ignore[arg-type]  # it asks for none
    loop = asyncio.new_event_loop()
    await asyncio.to_thread(loop.run_until_complete, stop(LateWriter(tmp_path / "h"), shared))
    assert shared.find_host_work() == ["slow (s)"]
    with contextlib.redirect_stderr(None):
        loop.close()
    assert shared.find_host_work() == []


async def test_the_card_tells_beforehand_what_undo_covers(open_session: OpenSession, tmp_path: Path) -> None:
    target = tmp_path / "notes.txt"

    @tool(runs_in="host", extract_undo_path=lambda _: target)
    def note(text: str) -> str:
        """Write a note."""
        target.write_text(text)
        return "written"

    session = open_session(approver=ScriptedApprover(["approve"] * 2))
    session.registry.register(note)
    await session.call("note", {"text": "1"}, call_id="n")
    with here(session, "huge").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 300 << 20)
    await session.call("sandbox_write", {"path": "a", "content": "1"})
    asked = [event.request.preview["undo"] for event in session.events if isinstance(event, ApprovalAsked)]
    assert f"It also brings back {target}." in asked[0]
    assert asked[1] == "Undo brings back the files of the workspace, but not huge (it is too large)."
    undone = await session.undo(to="n")
    assert not target.exists()
    assert str(target) in undone.value["removed"]


@pytest.mark.parametrize("is_named", [True, False])
async def test_undo_covers_only_the_named_file_of_what_a_tool_on_the_host_did_elsewhere(
    open_session: OpenSession, tmp_path: Path, *, is_named: bool
) -> None:
    files = [tmp_path / "named.txt", tmp_path / "other.txt"]
    session = open_session(approver=AllowAll())
    await session.start()

    @tool(runs_in="host", extract_undo_path=(lambda _: files[0]) if is_named else None)
    def note(text: str) -> str:
        """Write three notes."""
        for file in (*files, here(session, "inside")):
            file.write_text(text)
        return "written"

    session.registry.register(note)
    assert not (await session.call("note", {"text": "1"})).is_error
    undone = await session.undo()
    assert not undone.is_error
    assert ("Stays done: note ran on the host" in undone.content) is not is_named
    assert not here(session, "inside").exists()
    assert [file.exists() for file in files] == [not is_named, True]
    assert not (await session.redo()).is_error
    assert here(session, "inside").exists()
    assert [file.exists() for file in files] == [True, True]


async def test_facts_tell_whether_undo_covers_a_call(open_session: OpenSession) -> None:
    asked = ScriptedApprover(["approve"] * 4)
    session = open_session(approver=asked)
    await session.call("sandbox_write", {"path": "a", "content": "1"})
    assert asked.requests[0].facts.undoable
    with here(session, "huge").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 300 << 20)
    await session.call("sandbox_write", {"path": "a", "content": "2"})
    await session.call("sandbox_write", {"path": "a", "content": "3"})
    assert not asked.requests[2].facts.undoable


async def test_the_chain_goes_on_when_a_session_is_opened_again(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await write(session, "a", "1")
    await session.close()
    again = open_session(policy=AUTO)
    assert not (await again.undo()).is_error
    assert not here(again).exists()


@pytest.mark.parametrize("change", ["nothing", "read", "stale", "written"])
async def test_an_edit_needs_a_read(open_session: OpenSession, change: str) -> None:
    session = open_session(policy=AUTO)
    await session.call("sandbox_read", {"path": "."})
    here(session).write_text("one\ntwo\n")
    if change in {"read", "stale"}:
        await session.call("file", {"operation": "read", "path": "a"})
    if change == "stale":
        here(session).write_text("one\ntwo\nthree\n")
    if change == "written":
        await write(session, "a", "one\ntwo\n")
    edit = {"path": "a", "edits": [{"old": "two", "new": "2"}]}
    result = await session.call("edit", edit)
    if change in {"read", "written"}:
        assert here(session).read_text() == "one\n2\n", result.content
        again = await session.call("edit", {"path": "a", "edits": [{"old": "one", "new": "1"}]})
        assert here(session).read_text() == "1\n2\n", again.content
    else:
        assert (result.is_error, result.recoverable, result.error_kind) == (True, True, "invalid")
        assert ("was not read" if change == "nothing" else "has changed since") in result.content
        assert "two" in here(session).read_text()


async def test_only_the_lines_that_were_read_can_be_edited(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await session.start()
    here(session).write_text("".join(f"line {number}\n" for number in range(1, 21)))
    await session.call("file", {"operation": "read", "path": "a", "start_line": 5, "end_line": 8})
    refused = await session.call("edit", {"path": "a", "edits": [{"old": "line 12\n", "new": "x\n"}]})
    assert "Only lines 5-8 of 20" in refused.content
    await session.call("edit", {"path": "a", "edits": [{"old": "line 6\n", "new": "x\ny\n"}]})
    result = await session.call("edit", {"path": "a", "edits": [{"old": "line 8\n", "new": "z\n"}]})
    assert not result.is_error, result.content


async def test_unchanged_is_said_only_while_the_text_is_in_the_context(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await session.start()
    here(session).write_text("a long line of text\n" * 100)
    assert session.reads is not None

    async def read(call_id: str) -> str:
        call = {"operation": "read", "path": "a"}
        return (await session.call("file", call, origin="model", call_id=call_id)).content

    whole = await read("r1")
    assert await read("r2") == whole  # nobody promised to tell what is trimmed
    session.reads.follow("")
    assert await read("r3") == whole
    assert "Unchanged since r3: lines 1-100 of a" in await read("r4")
    session.reads.trimmed("", ["r3"])
    assert await read("r5") == whole
    here(session).write_text("another line of text\n" * 100)
    assert "another" in await read("r6")


@pytest.mark.pooled
async def test_background_processes_are_named_and_stopped_only_by_force(
    real_session: OpenSession,
) -> None:
    session = real_session(policy=AUTO)
    result = await session.call(
        "python", {"code": "import subprocess\np = subprocess.Popen(['sleep', '60'])"}
    )
    assert not result.is_error, result.content
    await write(session, "a", "1")
    refused = await session.undo()
    assert "sleep" in refused.content
    assert "in the background and may go on changing files" in refused.content
    assert here(session).exists()
    assert not (await session.undo(force=True)).is_error
    assert not here(session).exists()


POOL = """
from concurrent.futures import ProcessPoolExecutor
pool = ProcessPoolExecutor(2)
print(list(pool.map(abs, [-1, -2])))
open('made', 'w').close()
"""
FORKED_POOL = """
import multiprocessing
pool = multiprocessing.get_context('fork').Pool(2)
print(pool.map(abs, [-1, -2]))
open('made', 'w').close()
"""


async def helpers_wait(history: WorkspaceHistory, count: int) -> None:
    """Wait until so many helpers of a library are found that only wait for work."""

    async def are_found() -> bool:
        return len((await history._shared.find_running())[1]) == count

    await eventually(are_found)


@pytest.mark.parametrize("code", [POOL, FORKED_POOL])
async def test_idle_pool_of_forks_is_no_obstacle_to_an_undo(real_session: OpenSession, code: str) -> None:
    session = real_session(policy=AUTO)
    await session.call("python", {"code": "before = 1"})
    if session.level != "isolated":
        pytest.skip("multiprocessing has no locks below isolated")
    result = await session.call("python", {"code": code})
    assert "[1, 2]" in result.content, result.content
    history = session.history
    assert isinstance(history, WorkspaceHistory)
    await helpers_wait(history, 2)
    undone = await session.undo()
    assert not undone.is_error, undone.content
    assert "processes of multiprocessing" in undone.content
    assert "Removed: made" in undone.content


async def test_idle_helpers_do_not_keep_an_undo_from_what_it_does(real_session: OpenSession) -> None:
    session = real_session(policy=AUTO)
    await write(session, "first", "1")
    if session.level != "isolated":
        pytest.skip("multiprocessing has no locks below isolated")
    code = "import multiprocessing\nlock = multiprocessing.get_context('spawn').Lock()"
    result = await session.call("python", {"code": code})
    assert not result.is_error, result.content
    await write(session, "a", "1")
    history = session.history
    assert isinstance(history, WorkspaceHistory)
    await helpers_wait(history, 1)  # it has started
    undone = await session.undo()
    assert not undone.is_error, undone.content
    assert "Ended, since they only waited for work" in undone.content
    (pid,) = undone.metadata["ended_helpers"]
    assert f"multiprocessing ({pid})" in undone.content
    assert not here(session).exists()
    # It is started again when it is needed, with a word of Python's.
    again = await session.call("python", {"code": "lock = multiprocessing.get_context('spawn').Lock()"})
    assert not again.is_error, again.content


@pytest.mark.pooled
@pytest.mark.parametrize("answer_s", [0, 0.05])
@pytest.mark.parametrize("count", [1, 2])
async def test_calls_that_open_a_session_can_be_undone(
    real_session: OpenSession, count: int, answer_s: float
) -> None:
    class SlowApprover:
        async def ask(self, request: ApprovalRequest) -> Approval:
            await asyncio.sleep(answer_s)
            return Approval("approve")

    session = real_session(approver=SlowApprover())
    assert session.workspace is not None
    file = session.workspace / "f"
    for _ in range(count):
        assert not (await session.call("sandbox_bash", {"command": "echo x >> f"})).is_error
    undone = await session.undo(count)
    assert (undone.is_error, file.exists()) == (False, False), undone.content
    redone = await session.redo(count)
    assert (redone.is_error, file.read_text()) == (False, "x\n" * count), redone.content


@pytest.mark.pooled
async def test_call_that_a_sandbox_is_started_again_for_can_be_undone(real_session: OpenSession) -> None:
    session = real_session(approver=AllowAll())
    assert session.workspace is not None
    await session.run_cell("x = 1; open('f', 'w').write('1')")
    await session.run_cell("import os; os._exit(1)")
    await session.restart()
    assert not (await session.call("sandbox_bash", {"command": "echo 2 > f"})).is_error
    undone = await session.undo()
    assert (undone.is_error, (session.workspace / "f").read_text()) == (False, "1"), undone.content


async def test_shell_python_and_maps_are_undone_with_the_real_sandbox(real_session: OpenSession) -> None:
    session = real_session(policy=AUTO)
    await write(session, "a", "start")
    code = "import mmap\nf = open('a', 'r+b')\nm = mmap.mmap(f.fileno(), 0)\nm[0:1] = b'S'"
    assert not (await session.run_cell(code)).is_error
    assert not (await session.run_cell("m[1:2] = b'T'")).is_error  # without a stamp, were it not written back
    shell = {"command": "mkdir d && mv a d/b && ln -s d/b c"}
    assert not (await session.call("sandbox_bash", shell)).is_error
    assert (here(session, "d/b").read_bytes(), here(session, "c").is_symlink()) == (b"STart", True)
    states = []
    for _ in range(3):
        assert not (await session.undo()).is_error
        states.append(here(session).read_text())
    assert states == ["STart", "Start", "start"]
    for _ in range(3):
        assert not (await session.redo()).is_error
    assert here(session, "d/b").read_bytes() == b"STart"


class Unforked(FakeSandbox):
    """A sandbox whose worker cannot be forked, and whose `python` writes a file."""

    async def call(self, request: SandboxCall) -> ToolResult:
        Path(self._spec.workspace, "made").write_text("by the call")  # noqa: ASYNC240 - one small file
        return ToolResult.text("ran")


async def test_without_snapshots_undo_says_why(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO, sandbox=Unforked, approver=AllowAll())
    result = await session.call("python", {"code": "x = 1"}, call_id="first")
    assert not result.is_error, result.content
    undone = await session.undo()
    assert undone.value["removed"] == ["made"]
    assert "not brought back" in undone.value["variables"]
    assert "cannot be forked" in undone.content


# ---- what undo covers, and how it is said


@pytest.mark.parametrize(
    ("changed", "covered"),
    [
        ({}, True),
        ({"runs_in": "host"}, False),
        ({"level": "limited"}, False),
        ({"hosts": ("example.org",)}, False),
        ({"outside": True}, False),
        ({"path_guarded": False}, False),  # a program may change variables, and this sandbox keeps none
        ({"path_guarded": False, "commands": ("ls",)}, True),
    ],
)
async def test_undo_covers_files_alone_where_no_variables_are_kept(
    open_session: OpenSession, changed: dict[str, Any], covered: bool
) -> None:
    session = open_session()
    await session.start()
    assert isinstance(session.history, WorkspaceHistory)
    facts = Facts(effect=Effect.LOCAL_MUTATION, level="confined", path_guarded=True)
    assert session.history.can_undo(dataclasses.replace(facts, **changed)) is covered


async def test_large_workspace_is_not_looked_at_again_before_its_first_checkpoint(
    open_session: OpenSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "INLINE_ENTRIES", 2)
    workspace = tmp_path / "workspace"
    workspace.mkdir(exist_ok=True)
    for name in "abc":
        (workspace / name).write_text("1")
    session = open_session()
    await session.start()
    history = session.history
    assert isinstance(history, WorkspaceHistory)
    facts = Facts(effect=Effect.LOCAL_MUTATION, level="confined", path_guarded=True)
    assert history.can_undo(facts), "it was looked at when the session was opened"
    history._fits_at_first = False
    assert not history.can_undo(facts), "what was found then counts"
    (workspace / "c").unlink()
    assert history.can_undo(facts), "a small one is looked at"


async def test_call_says_before_and_after_what_undo_will_not_restore(
    open_session: OpenSession, tmp_path: Path
) -> None:
    """Also of a file that was there before, and of which only a part cannot come back."""
    asked = ScriptedApprover(["approve"] * 3)
    session = open_session(approver=asked)
    await write(session, "a", "1")
    file = here(session)
    os.link(file, tmp_path / "elsewhere")
    entry = "a (its 1 other name outside of the workspace)"
    other = await session.call("sandbox_write", {"path": "b", "content": "2"})
    assert "Undo will not restore" not in other.content
    result = await session.call("sandbox_write", {"path": "a", "content": "2"})
    assert result.content.endswith(f"[Undo will not restore: {entry}.]")
    assert result.metadata["not_restorable"] == [entry]
    first, *shown = [str(request.preview["undo"]) for request in asked.requests]
    assert "It will not restore" not in first
    assert [f"It will not restore: {entry}." in text for text in shown] == [True, True]
    undone = await session.undo(2)
    assert not undone.is_error, undone.content
    assert (file.read_text(), here(session, "b").exists()) == ("1", False)


@pytest.mark.parametrize("kind", ["socket", "device"])
async def test_call_that_removes_what_cannot_be_made_again_says_so(
    open_session: OpenSession, kind: str
) -> None:
    session = open_session(policy=AUTO, approver=(asked := ScriptedApprover(["approve"] * 3)))
    await write(session, "a", "1")
    path = here(session, "it")
    if kind == "socket":
        with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as one:
            one.bind("it")  # by a short name: there is room for 107 bytes
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("it takes root to make a device")

    @tool(runs_in="host", effect=Effect.LOCAL_MUTATION)
    def remove(name: str) -> str:
        """Remove an entry of the workspace."""
        here(session, name).unlink()
        return "removed"

    session.registry.register(remove)
    entry = f"it (it is a {kind})"
    result = await session.call("remove", {"name": "it"})
    assert result.content == f"removed\n[Undo will not restore: {entry}.]"
    assert result.metadata["not_restorable"] == [entry]
    assert f"It will not restore: {entry}." in str(asked.requests[-1].preview["undo"])
    assert f"Not brought back: {entry}." in (await session.undo()).content
    assert "Undo will not restore" not in (await session.call("remove", {"name": "a"})).content


def test_files_outside_a_checkpoint_are_listed_with_their_reasons() -> None:
    assert list_uncovered(Snapshot(root="r", entries=1)) == ()
    some = Snapshot(
        root="", entries=1, uncovered=(((), "too many"), (("a", "b\n"), "too large")), uncovered_count=5
    )
    assert list_uncovered(some) == ("the workspace (too many)", "a/b\\n (too large)", "3 more")


async def test_the_state_is_held_for_whoever_asks_from_outside_of_calls(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await write(session, "a", "1")
    assert session.history is not None
    async with session.history.exclusive() as snapshot:
        assert snapshot.entries == 1
        assert snapshot.root

    async def holding(_arguments: object, _context: ToolContext) -> ToolResult:
        assert session.history is not None
        async with session.history.exclusive():
            raise AssertionError("a call would wait for itself")

    session.registry.register(MockTool("m", facts=Facts(writes=("a",)), runs_in="host", result=holding))
    assert "A call is running here. Wait until it has ended." in (await session.call("m")).content


@pytest.mark.pooled
async def test_a_file_tool_forks_no_worker_and_its_undo_leaves_the_variables(
    real_session: OpenSession,
) -> None:
    session = real_session(approver=AllowAll())
    await session.call("python", {"code": "x = 1"}, call_id="x")
    for number in range(3):
        await session.call("sandbox_write", {"path": f"{number}", "content": "1"}, call_id=f"w{number}")
    sandbox: object = session.sandbox
    assert isinstance(sandbox, SupportsSnapshots)
    points = sandbox.variables.points()
    assert [point.call_id for point in points] == ["x", "w0"]
    undone = await session.undo()
    assert (undone.value["removed"], undone.value["variables"]) == (["2"], "")
    assert (await session.call("python", {"code": "x"})).content == "1"


async def test_old_checkpoints_are_dropped_in_a_thread(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a tenth of a second for 1,500 files; the loop goes on meanwhile, and the next call waits."""
    session = open_session(policy=AUTO)
    await write(session, "a", "0")
    assert session._parts is not None
    history = session._parts.history
    assert isinstance(history, WorkspaceHistory)
    threads: list[int] = []
    drop_old = history._checkpoints.drop_old

    def dropping() -> None:
        threads.append(threading.get_ident())
        drop_old()

    monkeypatch.setattr(history._checkpoints, "drop_old", dropping)
    for number in range(KEPT_STEPS + 25):
        await write(session, "a", str(number))
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()
    assert KEPT_STEPS <= len(history._checkpoints.steps) <= KEPT_STEPS + 20
    assert not (await session.undo(KEPT_STEPS)).is_error


class Crowded(FakeSandbox):
    """A sandbox with many processes."""

    supervisor = worker_pid = 0


@pytest.mark.parametrize("count", [3, 80])
async def test_many_processes_are_stopped_in_a_thread(open_session: OpenSession, count: int) -> None:
    """To look at each takes long: the loop goes on meanwhile."""
    shell = await asyncio.create_subprocess_shell(
        f"for n in $(seq {count}); do sleep 1000 & done; echo started; wait",
        stdout=PIPE,
        start_new_session=True,
    )
    try:
        assert shell.stdout is not None
        assert await shell.stdout.readline() == b"started\n"
        session = open_session(policy=AUTO, sandbox=Crowded)
        await write(session, "a", "1")
        assert session._parts is not None
        history, sandbox = session._parts.history, session._parts.env.sandbox
        assert isinstance(history, WorkspaceHistory)
        assert isinstance(sandbox, Crowded)
        sandbox.supervisor = shell.pid
        threads: list[int] = []
        await history._scans.run(lambda **_: threads.append(threading.get_ident()), "call")
        assert (threads == [threading.get_ident()]) is (count == 3)
        sandbox.supervisor = 0
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        await shell.wait()


def linked_outside(session: Session, folder: Path) -> Path:
    """Return a file outside of the workspace that has the further name `inside` in there."""
    outside = folder / "outside"
    outside.write_text("before")
    os.link(outside, here(session, "inside"))
    return outside


async def test_file_with_a_further_name_outside_is_written_there_as_well(
    real_session: OpenSession, tmp_path: Path
) -> None:
    session = real_session(policy=AUTO)
    await session.start()
    outside = linked_outside(session, tmp_path)
    await session.call("sandbox_bash", {"command": "true"})
    changed = await session.call("sandbox_bash", {"command": "printf changed > inside"})
    assert "1 other name outside of the workspace" in changed.content
    assert outside.read_text() == "changed"
    undone = await session.undo()
    assert not undone.is_error, undone.content
    assert (here(session, "inside").read_text(), outside.read_text()) == ("before", "changed")


@pytest.mark.parametrize("tool_name", ["sandbox_write", "edit"])
async def test_file_tool_puts_a_new_file_in_the_place_of_one_with_a_further_name(
    real_session: OpenSession, tmp_path: Path, tool_name: str
) -> None:
    session = real_session(policy=AUTO)
    await session.start()
    outside = linked_outside(session, tmp_path)
    await session.call("sandbox_read", {"path": "inside"})
    arguments: dict[str, Any] = {"path": "inside", "content": "after"}
    if tool_name == "edit":
        arguments = {"path": "inside", "edits": [{"old": "before", "new": "after"}]}
    changed = await session.call(tool_name, arguments)
    assert not changed.is_error, changed.content
    assert "1 other name outside of the workspace" in changed.content
    assert (here(session, "inside").read_text(), outside.read_text()) == ("after", "before")


async def test_the_loop_never_waits_for_the_disk(open_session: OpenSession) -> None:
    """`fdatasync` and `fsync` take as long as the disk is busy: a thread waits for them, or nobody does."""
    syncs = {os.fsync, os.fdatasync, os.sync}
    threads: list[int] = []

    def note(frame: object, event: str, function: object) -> None:
        del frame
        if event == "c_call" and function in syncs:
            threads.append(threading.get_ident())

    OWN._forget()  # a thread that is there already is not profiled
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        session = open_session(policy=AUTO, approver=AllowAll())
        await session.start()
        for number in range(3):
            # What was written is read once more when its time is no longer that of the present moment.
            await asyncio.to_thread(time.sleep, 2 * RACY_NS / 1e9)
            await write(session, "a", f"{number}", origin="model")
            await session.call("sandbox_edit", {"path": "a", "old": f"{number}", "new": "x"}, origin="model")
        await asyncio.to_thread(time.sleep, 2 * RACY_NS / 1e9)
        assert (await session.undo()).is_error is False
        await session.changes()
        await session.close()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert threads, "the profile sees the calls"
    assert threading.get_ident() not in threads


# ---- exactly so many steps


def fake_variables(session: Session) -> CopyHistory:
    sandbox: object = session.sandbox
    assert isinstance(sandbox, VariablesSandbox)
    return sandbox.variables


async def open_acting(
    open_session: OpenSession, *, write: Callable[[Path, str], object] = Path.write_text, **options: Any
) -> Session:
    """Open a session whose tool `act` sets variables and writes files."""
    acting = Act(write=write)
    session = open_session(sandbox=VariablesSandbox, approver=AllowAll(), **options)
    session.registry.register(acting.tool)
    await session.start()
    sandbox: Any = session.sandbox
    acting.sandbox = sandbox
    return session


async def act(session: Session, call_id: str, files: dict[str, str] | None = None, **values: int) -> None:
    result = await session.call("act", {"variables": values, "files": files or {}}, call_id=call_id)
    assert not result.is_error, result.content


async def test_undo_of_many_small_changes_takes_as_many_as_asked_or_none(real_session: OpenSession) -> None:
    """Snapshots are thinned out by then. It took more calls than were asked for, and removed the file."""
    session = real_session(approver=AllowAll())
    await write(session, "a", "before them", call_id="file")
    await session.call("python", {"code": "n = 0"}, call_id="zero")
    for number in range(1, 21):
        await session.call("python", {"code": "n += 1"}, call_id=f"n{number}")
    for count in range(9, 21):
        result = await session.undo(count)
        if result.is_error:
            assert (result.error_kind, await session.get("n")) == ("invalid", 20)
            assert "only some of the older snapshots are retained" in result.content
            offered = result.value["nearest"][0]
            assert not (await session.undo(to=offered["to"])).is_error
            count = offered["steps"]  # noqa: PLW2901 - what was done
        assert await session.get("n") == 20 - count
        part = await session.redo(1)
        assert part.is_error or await session.get("n") == 21 - count
        remaining = count if part.is_error else count - 1
        assert not (await session.redo(remaining)).is_error
        assert await session.get("n") == 20
        assert here(session).read_text() == "before them"
    dropped = [event for event in session.events if isinstance(event, VariablesDropped)]
    assert dropped
    assert session.log_path is not None
    recorded = events_of_records(ledger.read(session.log_path))
    assert [event.call_ids for event in recorded if isinstance(event, VariablesDropped)] == [
        event.call_ids for event in dropped
    ]
    refused = await session.undo(160)
    assert "only 22 calls to undo. The oldest is sandbox_write (file)." in refused.content
    assert session.history is not None
    assert "for files; for variables 22 calls" in await session.history.reach()
    assert "of the states between are not kept" in (await session.changes()).reach


@pytest.mark.parametrize("level", ["isolated", "confined"])
async def test_undo_names_the_files_that_variables_hold_open(real_session: OpenSession, level: str) -> None:
    session = real_session(policy=AUTO, approver=AllowAll(), level=level)
    await session.start()
    before = (
        "import os, tempfile; os.makedirs('d'); f = open('log', 'a'); g = open('d/new', 'w'); "
        "other = open('other', 'w'); r = open('log'); t = tempfile.TemporaryFile()"
    )
    assert not (await session.call("python", {"code": before})).is_error
    code = "f.write('two'); g.write('1'); f.flush(); g.flush(); t.write(b'1'); t.flush()"
    assert not (await session.call("python", {"code": code})).is_error
    for move in (session.undo, session.redo, session.undo):
        moved = await move()
        assert not moved.is_error, moved.content
        assert moved.metadata["detached_files"] == ["d/new", "log"]
        assert "[Still open in the sandbox: d/new, log. What a variable writes to it from" in moved.content
    written = await session.call("python", {"code": "f.write('three'); f.flush()"})
    assert not written.is_error
    assert "three" not in here(session, "log").read_text(), "what is said is so"
    await session.call("python", {"code": "f = open('log', 'a'); f.write('four'); f.flush()"})
    assert here(session, "log").read_text().endswith("four")
    await session.call("python", {"code": "for file in (f, g, other, r, t): file.close()"})
    await write(session, "log", "later")
    assert "Still open" not in (await session.undo()).content


async def test_undo_that_goes_back_names_the_files_that_variables_hold_open(
    real_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is put back is a copy, and not the file that the worker has open."""
    session = real_session(policy=AUTO, approver=AllowAll())
    await session.start()
    assert not (await session.run_cell("f = open('log', 'a'); print(file=f, flush=True)")).is_error
    assert not (await session.run_cell("print('two', file=f, flush=True)")).is_error
    sandbox: object = session.sandbox
    assert isinstance(sandbox, SupportsSnapshots)
    monkeypatch.setattr(sandbox.variables, "restore", refuse_files)
    refused = await session.undo()
    assert refused.content.startswith("Nothing was changed: the variables could not be restored")
    assert "[Still open in the sandbox: log. What a variable writes to it from" in refused.content
    assert not (await session.run_cell("print('three', file=f, flush=True)")).is_error
    assert "three" not in here(session, "log").read_text(), "what is said is so"


@pytest.mark.sample(4)
@pytest.mark.parametrize("level", ["isolated", "confined"])
@pytest.mark.parametrize(
    ("opens", "reads"),
    [
        ("f = open('data'); f.read(3)", "f.seek(0); f.read(3)"),
        ("f = open('data', 'rb', buffering=0)", "f.read(3).decode()"),
        (
            "import mmap; o = open('data', 'rb'); f = mmap.mmap(o.fileno(), 0, access=mmap.ACCESS_READ)",
            "f[:3].decode()",
        ),
        ("import numpy; f = numpy.memmap('data', mode='r')", "bytes(f[:3]).decode()"),
    ],
    ids=["text", "binary", "mapped", "numpy"],
)
async def test_undo_names_the_files_that_variables_only_read(
    real_session: OpenSession, level: str, opens: str, reads: str
) -> None:
    session = real_session(policy=AUTO, approver=AllowAll(), level=level)
    await session.start()
    here(session, "data").write_text("old" * 20)
    assert not (await session.run_cell(opens)).is_error
    code = "with open('data', 'r+') as g: g.write('NEW' * 20)"
    assert not (await session.run_cell(code)).is_error
    undone = await session.undo()
    assert here(session, "data").read_text() == "old" * 20
    assert (
        "[Still open in the sandbox: data. What a variable reads from it may differ from what is in the "
        "workspace, since another file or none stands there: open it again.]"
    ) in undone.content
    assert undone.metadata["detached_files"] == ["data"]
    assert (await session.run_cell(reads)).content == "'NEW'", "what is said is so"


@pytest.mark.parametrize("level", ["isolated", "confined", "guarded"])
async def test_undo_leaves_the_temporary_files_of_the_sandbox_until_it_ends(
    real_session: OpenSession, level: str
) -> None:
    session = real_session(policy=AUTO, approver=AllowAll(), level=level)
    names = (
        "import os, tempfile\n"
        "names = [os.path.join(p, 'own') for p in (tempfile.gettempdir(), os.environ['HOME'])]"
    )
    await session.call("python", {"code": names})
    code = "for name in names: open(name, 'w').write('call')\nprint(names)"
    result = await session.call("python", {"code": code})
    assert not result.is_error, result.content
    assert "No file had to be changed." in (await session.undo()).content
    looked = await session.call("python", {"code": "print([os.path.exists(name) for name in names])"})
    assert "[True, True]" in looked.content
    await session.restart()
    looked = await session.call(
        "python", {"code": f"{names}\nprint([os.path.exists(name) for name in names])"}
    )
    assert "[False, False]" in looked.content


async def test_files_alone_are_undone_on_request(open_session: OpenSession) -> None:
    session = await open_acting(open_session)
    await act(session, "one", {"a": "1"}, x=1)
    await act(session, "two", {"a": "2"}, x=2)
    fake_variables(session).evict("two", "the snapshots together took too much memory")
    refused = await session.undo()
    assert "took too much memory" in refused.content
    assert (here(session).read_text(), fake_variables(session).values) == ("2", {"x": 2})
    undone = await session.undo(variables="keep")
    assert undone.value["variables"] == "They were left as they are."
    assert (here(session).read_text(), fake_variables(session).values) == ("1", {"x": 2})
    assert not (await session.redo()).is_error
    assert (here(session).read_text(), fake_variables(session).values) == ("2", {"x": 2})
    assert [event.files_only for event in session.events if isinstance(event, Undone)] == [True, False]
    with pytest.raises(ValueError, match="use 'restore' or 'keep'"):
        await session.undo(variables="files")  # type: ignore[arg-type]  # the mistake that is told


async def test_calls_inside_a_call_are_undone_with_it(open_session: OpenSession) -> None:
    async def nested(_arguments: object, context: ToolContext) -> ToolResult:
        assert context.services is not None
        (context.workspace_path / "a").write_text("outer")
        await context.services.call("sandbox_write", {"path": "a", "content": "inner"})
        return await context.services.call("sandbox_write", {"path": "b", "content": "inner"})

    session = open_session(policy=AUTO, approver=AllowAll())
    session.registry.register(MockTool("outer", facts=Facts(writes=("a",)), runs_in="host", result=nested))
    await write(session, "a", "first", call_id="first")
    await session.call("outer", call_id="outer")
    undone = await session.undo(1)
    assert "Undid 1 call: outer (outer, with 2 calls inside it)." in undone.content
    assert (here(session).read_text(), here(session, "b").exists()) == ("first", False)
    assert "Redid 1 call" in (await session.redo(1)).content
    assert (here(session).read_text(), here(session, "b").exists()) == ("inner", True)
    inside = next(call["id"] for call in undone.value["calls"] if call["id"] != "outer")
    with pytest.raises(UsageError, match="can only be undone with it"):
        await session.undo(to=inside)
    assert not (await session.undo(2)).is_error
    assert list(here(session, ".").iterdir()) == []


async def test_calls_of_an_earlier_process_have_no_variables_here(open_session: OpenSession) -> None:
    session = await open_acting(open_session)
    await act(session, "earlier", {"a": "1"}, x=1)
    await session.close()
    session = await open_acting(open_session)
    await act(session, "mine", {"b": "1"}, y=1)
    undone = await session.undo(2)
    assert "They are as before mine." in undone.value["variables"]
    assert "act (earlier): an earlier process or another session made" in undone.value["variables"]
    assert (here(session).exists(), fake_variables(session).values) == (False, {})


@pytest.mark.parametrize("forced", [False, True])
async def test_files_go_back_when_the_variables_cannot_be_restored(
    open_session: OpenSession, forced: bool
) -> None:
    session = await open_acting(open_session)
    await act(session, "one", {"a": "1"}, x=1)
    await act(session, "two", {"a": "2", "b": "2"}, x=2)
    if forced:
        here(session).write_text("a person's")
    fake_variables(session).failure = "The snapshot did not answer."
    failed = await session.undo(force=forced)
    assert (failed.is_error, failed.error_kind) == (True, "failed")
    assert "Nothing was changed: the variables could not be restored" in failed.content
    assert "The snapshot did not answer." in failed.content
    assert here(session).read_text() == ("a person's" if forced else "2")
    assert (here(session, "b").read_text(), fake_variables(session).values) == ("2", {"x": 2})
    assert not [event for event in session.events if isinstance(event, Undone)]
    assert not (await session.undo(force=forced)).is_error, "it can be tried again"
    assert (here(session).read_text(), fake_variables(session).values) == ("1", {"x": 1})
    fake_variables(session).failure = "It did not answer again."
    await act(session, "three", {"a": "3"}, x=3)
    await session.undo(variables="keep")
    assert (await session.redo()).is_error is False, "the variables are there already"


async def test_session_that_closes_waits_until_an_undo_has_ended_or_gone_back(
    open_session: OpenSession,
) -> None:
    session = await open_acting(open_session)
    await act(session, "one", {"a": "1"}, x=1)
    await act(session, "two", {"a": "2", "b": "2"}, x=2)
    variables = fake_variables(session)
    variables.failure, variables.held = "The sandbox was closed.", asyncio.Event()
    undoing = asyncio.create_task(session.undo())
    await eventually(lambda: not here(session, "b").exists())
    closing = asyncio.create_task(session.close())
    await loop_turns(100)
    assert not closing.done()
    variables.held.set()
    failed = await asyncio.wait_for(undoing, HANG_S)
    assert "Nothing was changed: the variables could not be restored" in failed.content
    await closing
    assert (here(session).read_text(), here(session, "b").read_text()) == ("2", "2")


async def test_session_that_is_closed_on_another_loop_waits_for_an_undo_as_well(
    open_session: OpenSession,
) -> None:
    session = await open_acting(open_session)
    await act(session, "one", {"a": "1"}, x=1)
    variables = fake_variables(session)
    variables.failure, variables.held = "The sandbox was closed.", asyncio.Event()
    undoing = asyncio.create_task(session.undo())
    await eventually(lambda: not here(session).exists())
    closing = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(session.close())))
    await loop_turns(100)
    assert not closing.done()
    variables.held.set()
    assert "Nothing was changed" in (await asyncio.wait_for(undoing, HANG_S)).content
    await asyncio.wait_for(closing, HANG_S)
    assert here(session).read_text() == "1"


async def test_call_that_is_cancelled_while_its_checkpoint_is_taken_is_no_step(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that takes it goes on: it left a step that ran for good, and kept undo from everything."""
    session = await open_acting(open_session)
    assert isinstance(session.history, WorkspaceHistory)
    checkpoints = session.history._checkpoints
    begun, may_go_on = threading.Event(), threading.Event()

    def begin(*arguments: Any, real: Any = checkpoints.begin, **options: Any) -> Snapshot:
        begun.set()
        may_go_on.wait(HANG_S)
        snapshot: Snapshot = real(*arguments, **options)
        return snapshot

    with monkeypatch.context() as slow:
        slow.setattr(checkpoints, "begin", begin)
        slow.setattr(sharing, "INLINE_ENTRIES", -1)  # every workspace is large
        calling = asyncio.create_task(act(session, "one", {"a": "1"}, x=1))
        await eventually(begun.is_set)
        calling.cancel()
        await loop_turns()
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await calling
    assert (await session.undo()).content == "There is nothing to undo."
    await act(session, "two", {"a": "2"}, x=2)
    here(session, "mine").write_text("a person's")
    await session.close()
    again = await open_acting(open_session)
    assert again.history is not None
    assert again.history.recovered == ()
    undone = await again.undo(force=True)
    assert [call["id"] for call in undone.value["calls"]] == ["two"]
    assert here(again, "mine").exists()


@tool(effect=Effect.READ_ONLY)
def wait_for_file(path: str) -> bool:
    """Wait until a file is there."""
    import pathlib
    import time

    while not pathlib.Path(path).exists():
        time.sleep(0.01)
    return True


@pytest.mark.pooled
@pytest.mark.parametrize("how", ["interrupt", "cancel"])
async def test_call_that_waits_for_the_worker_and_is_stopped_is_no_step(
    real_session: OpenSession, how: str
) -> None:
    session = real_session(policy=AUTO)
    session.registry.register(wait_for_file)
    for number in (1, 2):
        await session.call("python", {"code": f"v = {number}"}, call_id=f"c{number}")
    assert not (await session.undo()).is_error
    reading = asyncio.create_task(session.call("wait_for_file", {"path": "go"}))
    sandbox = local_sandbox(session)

    def are_given() -> list[bool]:
        return [caller.dispatch.is_given for caller in sandbox._callers.values()]

    await eventually(lambda: are_given() == [True])
    waiting = asyncio.create_task(session.call("python", {"code": "v = 3"}, call_id="c3"))
    await eventually(lambda: are_given() == [True, False])
    if how == "interrupt":
        await session.interrupt()
        assert (await waiting).content == "The call was interrupted before it ran."
    else:
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        here(session, "go").touch()
    await reading
    redone = await session.redo()
    assert not redone.is_error, redone.content
    assert [call["id"] for call in redone.value["calls"]] == ["c2"]
    assert await session.get("v") == 2


async def test_undo_that_a_close_has_come_before_changes_nothing(open_session: OpenSession) -> None:
    session = await open_acting(open_session)
    await act(session, "one", {"a": "1"}, x=1)
    assert isinstance(session.history, WorkspaceHistory)
    lock = session.history._shared.lock
    # As a call of another session on the same workspace, in a context of its own.
    token = await asyncio.create_task(lock.enter(object()))
    undoing = asyncio.create_task(session.undo())
    await loop_turns()
    await session.close()
    lock.leave(token)
    with pytest.raises(SessionClosed, match="was closed meanwhile"):
        await asyncio.wait_for(undoing, HANG_S)
    assert here(session).read_text() == "1"


@pytest.mark.parametrize("turns", [1, 10, 40, 160])
async def test_close_beside_an_undo_leaves_the_one_state_or_the_other(
    real_session: OpenSession, turns: int
) -> None:
    session = real_session(policy=AUTO)
    for text in ("1", "2"):
        code = f"import pathlib\nv = {text}\nfor n in range(20): pathlib.Path(f'f{{n}}').write_text('{text}')"
        assert not (await session.call("python", {"code": code})).is_error
    undoing = asyncio.create_task(session.undo())
    await loop_turns(turns)
    await session.close()
    (found,) = await asyncio.gather(undoing, return_exceptions=True)
    is_undone = isinstance(found, ToolResult) and not found.is_error
    texts = {here(session, f"f{number}").read_text() for number in range(20)}
    assert texts == {"1" if is_undone else "2"}, found


async def test_call_that_did_not_run_is_no_step_and_leaves_what_can_be_redone(
    open_session: OpenSession,
) -> None:
    session = await open_acting(open_session)
    await act(session, "one", {"a": "1"}, x=1)
    await act(session, "two", {"a": "2"}, x=2)
    await session.undo()
    end = session._event_log.subscribe(lambda _: session._gate.block("the disk is full"), (CheckpointTaken,))
    refused = await session.call("act", {"variables": {"x": 3}, "files": {"a": "3"}}, call_id="three")
    assert "act was not run: the disk is full." in refused.content
    end()
    session._gate.block("")
    redone = await session.redo()
    assert not redone.is_error, redone.content
    assert (here(session).read_text(), fake_variables(session).values) == ("2", {"x": 2})
    undone = await session.undo(2)
    assert [call["id"] for call in undone.value["calls"]] == ["two", "one"]


async def test_undo_that_fails_half_way_says_what_is_where(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await open_acting(open_session)
    await act(session, "one", {"a": "1"}, x=1)
    assert isinstance(session.history, WorkspaceHistory)

    def refuse(_moved: object) -> None:
        raise WorkspaceError("No space is left for the record.")

    monkeypatch.setattr(session.history._checkpoints, "revert", refuse)
    fake_variables(session).failure = "The snapshot did not answer."
    failed = await session.undo()
    assert "This undo failed half way" in failed.content
    assert (
        "The files could not be moved back: No space is left for the record. Moved are: a." in failed.content
    )
    assert (here(session).exists(), fake_variables(session).values) == (False, {"x": 1})
    assert not (await session.redo(variables="keep")).is_error, "as the message says"
    assert here(session).read_text() == "1"


def spoil(session: Session, content: bytes) -> Path:
    """Damage a stored content. Return its file."""
    assert isinstance(session.history, WorkspaceHistory)
    (found,) = [
        path for path in (session.history.store.folder / "objects").iterdir() if path.read_bytes() == content
    ]
    found.write_bytes(content[::-1])
    return found


async def test_undo_that_fails_at_one_file_changes_none_unless_forced(open_session: OpenSession) -> None:
    session = await open_acting(open_session)
    here(session).write_text("old a")
    here(session, "b").write_text("old b")
    await act(session, "one", {"a": "new a", "b": "new b"}, x=1)
    stored = spoil(session, b"old b")
    failed = await session.undo()
    assert failed.content.startswith(
        "Nothing was changed: all is as it was before.\nThis undo failed at: b ("
    )
    assert (here(session).read_text(), here(session, "b").read_text()) == ("new a", "new b")
    assert fake_variables(session).values == {"x": 1}, "nor are variables"
    assert "found damaged (1): an undo that needs them is refused" in (await session.changes()).reach
    forced = await session.undo(force=True)
    assert (here(session).read_text(), here(session, "b").read_text()) == ("old a", "new b")
    assert "Not brought back: b (" in forced.content
    await session.redo()
    stored.write_bytes(b"old b")
    assert not (await session.undo()).is_error
    assert (here(session).read_text(), here(session, "b").read_text()) == ("old a", "old b")


@pytest.mark.parametrize("forced", [False, True])
async def test_no_call_runs_while_an_undo_is_neither_done_nor_taken_back(
    open_session: OpenSession, forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused_names = {"b"}

    def refuse(old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        """Put nothing at b, and at a only once."""
        if new in refused_names:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        exchange(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if new == "a":
            refused_names.add("a")

    session = await open_acting(open_session)
    here(session).write_text("old a")
    here(session, "b").write_text("old b")
    await act(session, "one", {"a": "new a", "b": "new b"}, x=1)
    monkeypatch.setattr(switching, "exchange", refuse)
    failed = await session.undo()
    assert "It could not be taken back at: a (it is as after the undo)." in failed.content
    assert here(session).read_text() == "old a"
    write_c = {"path": "c", "content": "1"}
    refused = await session.call("sandbox_write", write_c)
    assert refused.is_error
    assert (
        "An earlier undo or redo failed half way, and can still not be completed at: a (" in refused.content
    )
    assert not here(session, "c").exists()
    assert "can still not be completed" in (await session.undo()).content
    if forced:
        left = await session.undo(force=True)
        assert "Not brought back: b (" in left.content
        assert ", a (" not in left.content, "it is as it should be"
    else:
        refused_names.discard("a")
    await write(session, "c", "1")
    assert (here(session).read_text(), here(session, "b").read_text()) == (
        ("old a" if forced else "new a"),
        "new b",
    )


async def test_dropped_calls_are_counted_in_the_error_also_later(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    for number in range(KEPT_STEPS + 25):
        await write(session, "a", str(number))
    for _ in range(2):
        refused = await session.undo(160)
        assert refused.is_error
        assert "21 older calls were dropped." in refused.content
        assert here(session).read_text() == str(KEPT_STEPS + 24)
        await session.close()
        session = open_session(policy=AUTO)


# ---- what an earlier process has left


async def test_completed_undo_is_an_event_and_a_line_of_the_status(open_session: OpenSession) -> None:
    """Both say which it was; nobody has to ask."""
    session = open_session(policy=AUTO)
    await write(session, "a", "1", call_id="one")
    await write(session, "b", "1", call_id="two")
    assert isinstance(session.history, WorkspaceHistory)
    store = session.history.store
    store.record(op="move", way="undo", ids=["two"], token="t", force=False)
    await session.close()
    session = open_session(policy=AUTO)
    await session.start()
    note = "The undo of sandbox_write (two), which was cut short, was completed."
    (event,) = [event for event in session.events if isinstance(event, HistoryRecovered)]
    assert event.notes == (note,)
    assert session.status().recovered == (note,)
    assert not here(session, "b").exists()
    assert session.log_path is not None
    recorded = events_of_records(ledger.read(session.log_path))
    assert [one.notes for one in recorded if isinstance(one, HistoryRecovered)] == [(note,)]
    await session.close()
    session = open_session(policy=AUTO)
    await session.start()
    assert session.status().recovered == ()


async def test_call_that_was_cut_short_is_said_to_be_and_can_be_undone(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await write(session, "a", "1")
    assert isinstance(session.history, WorkspaceHistory)
    session.history._checkpoints.begin("cut", "sandbox_bash", "s")
    here(session, "half").write_text("half")
    await session.close()
    session = open_session(policy=AUTO)
    await session.start()
    assert session.status().recovered == (
        (
            "sandbox_bash (cut) was cut short when the program or its event loop ended; "
            "what it has changed can be undone."
        ),
    )
    assert "Removed: half." in (await session.undo()).content


async def test_change_is_on_the_disk_before_its_call_is_answered(open_session: OpenSession) -> None:
    idle = MockTool("idle", facts=Facts(writes=("a",)), result="did nothing")
    session = open_session(policy=AUTO)
    session.registry.register(idle)
    await session.start()
    assert isinstance(session.history, WorkspaceHistory)
    store = session.history.store
    loop = asyncio.get_running_loop()
    synced = asyncio.Event()
    real = store.sync

    def sync() -> None:
        real()
        loop.call_soon_threadsafe(synced.set)

    store.sync = sync  # type: ignore[method-assign]  # to see when it is done
    await write(session, "a", "1")
    assert bool(store.is_synced)
    synced.clear()
    await session.call("idle")
    assert not store.is_synced, "nobody waits for the disk where nothing was changed"
    await synced.wait()
    assert store.is_synced


# ---- no room for what undo needs


@contextmanager
def no_room(session: Session) -> Iterator[None]:
    """Keep no new content from now on, as on a full disk, until the end of the block."""
    assert session.history is not None
    store, real = session.history.store, session.history.store.put

    def put(data: bytes) -> str:
        if content_digest(data) not in store:
            raise WorkspaceError("The checkpoint cannot be kept: No space left on device.")
        return real(data)

    store.put = put  # type: ignore[method-assign]  # a disk that is full
    try:
        yield
    finally:
        del store.put  # the class has its own


async def test_call_without_room_for_its_state_says_so_first_and_is_undone_by_force_alone(
    open_session: OpenSession,
) -> None:
    session = open_session(policy=AUTO)
    await write(session, "good", "good", call_id="first")
    with no_room(session):
        result = await session.call("sandbox_write", {"path": "good", "content": "bad"}, call_id="bad")
    first, *_ = result.content.splitlines()
    assert first.startswith("[This call cannot be undone: the files as they are after it are not kept. The ")
    assert "No space left on device. With force=True an undo" in first
    reach = (await session.changes()).reach
    assert reach.startswith(
        "Undo reaches back no call. sandbox_write (bad) cannot be undone, since the files"
    )
    for count in (1, 2):
        refused = await session.undo(count)
        assert refused.is_error
        assert refused.content.startswith("Nothing was changed: sandbox_write (bad) cannot be undone")
        assert here(session, "good").read_text() == "bad"
    with pytest.raises(UsageError, match="no call 'x'"):
        await session.undo(to="x")
    await write(session, "later", "1", call_id="later")
    reach = (await session.changes()).reach
    assert reach.startswith("Undo reaches back 1 call, to before sandbox_write (later), for files;")
    assert "sandbox_write (bad) cannot be undone" in reach
    refused = await session.undo(2)
    assert refused.content.endswith("undo(1) or undo(to='later') is possible.")
    assert "Removed: later." in (await session.undo()).content
    forced = await session.undo(force=True)
    assert (forced.is_error, here(session, "good").read_text()) == (False, "good")
    assert "Removed: good." in (await session.undo()).content
    for force in (False, True):
        refused = await session.redo(2, force=force)
        assert refused.is_error
        assert "Nothing was changed: sandbox_write (bad) cannot be redone" in refused.content
        assert refused.content.endswith("redo(1) is possible.")
        assert not here(session, "good").exists()
    assert (await session.redo()).value["restored"] == ["good"]


async def test_call_without_room_for_the_state_before_it_is_not_run(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await write(session, "good", "good")
    here(session, "mine").write_text("person")
    with no_room(session):
        refused = await session.call("sandbox_write", {"path": "good", "content": "bad"})
    assert refused.is_error
    assert "sandbox_write was not run: The checkpoint cannot be kept: No space left" in refused.content
    assert here(session, "good").read_text() == "good"
    assert "Removed: good." in (await session.undo()).content
    assert (await session.redo()).value["restored"] == ["good"]


async def test_call_whose_record_cannot_be_written_says_that_undo_waits_for_it(
    open_session: OpenSession,
) -> None:
    session = open_session(policy=AUTO)
    await write(session, "good", "good")
    assert session.history is not None
    store, real = session.history.store, session.history.store.record

    def record(**fields: object) -> None:
        if fields["op"] == "end":
            raise WorkspaceError("The checkpoint cannot be kept: No space left on device.")
        real(**fields)

    store.record = record  # type: ignore[method-assign]  # a disk that is full
    result = await session.call("sandbox_write", {"path": "good", "content": "bad"})
    assert result.content.startswith("[The record of this call could not be written through to the disk. The")
    refused = await session.undo()
    assert "The undo failed: The checkpoint cannot be kept" in refused.content
    assert here(session, "good").read_text() == "bad"
    del store.record  # the class has its own
    assert "Brought back: good." in (await session.undo()).content
    assert here(session, "good").read_text() == "good"


async def test_call_in_a_workspace_with_too_many_files_says_that_they_are_not_restored(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aisotools.workspace.checkpoints.timeline.ScanLimits", partial(ScanLimits, entries=2))
    session = open_session(policy=AUTO)
    for name in "ab":
        await write(session, name, "1")
    result = await session.call("sandbox_write", {"path": "c", "content": "1"}, call_id="third")
    assert result.content.startswith(
        "[This call cannot be undone: the files as they are after it are not kep"
    )
    assert "it holds more than 2 files and folders. With force=True" in result.content
    result = await session.call("sandbox_write", {"path": "d", "content": "1"})
    assert "[Undo will not restore: the workspace (there are too many files in it).]" in result.content
    undone = await session.undo()
    assert (
        "Not brought back: the workspace (its files are not covered: it holds more than 2" in undone.content
    )


# ---- timeouts


def has_settled(session: Session) -> bool:
    """Return whether no snapshot is being taken: it has a deadline too, which passes with that of a call."""
    sandbox = local_sandbox(session)
    return all(snapshot.settled.done() for snapshot in sandbox.variables._store.snapshots)


@pytest.mark.pooled
@pytest.mark.parametrize("on_timeout", ["keep", "undo"])
@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_timeout_says_what_stays_or_takes_it_back(
    real_session: OpenSession, on_timeout: str, is_stubborn: bool
) -> None:
    """Also where the worker has to be killed, and one with the variables from before takes its place."""
    session = real_session(policy=AUTO, approver=AllowAll(), on_timeout=on_timeout)
    await session.run_cell("x = 1")
    block = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals)); " * is_stubborn
    wait = "while True: pass" if is_stubborn else "import time; time.sleep(100)"
    code = f"{block}x = 2\nopen('half', 'w').write('half')\n{wait}"
    assert session.workspace is not None
    half = session.workspace / "half"

    def is_where_it_ends() -> bool:
        return has_settled(session) and half.exists() and half.read_text() == "half"

    result = await late(
        session.call("python", {"code": code}, timeout_s=HANG_S), when=is_where_it_ends, deadline_s=HANG_S
    )
    assert result.metadata["timed_out"] is True
    assert result.metadata["changed_files"] == ["half"]
    if on_timeout == "keep":
        assert "[What it had changed by then stays changed: half. Undo takes it back.]" in result.content
        assert here(session, "half").exists()
    else:
        assert "[What it had changed was taken back: half.]" in result.content
        assert "Variables are kept" not in result.content
        assert is_stubborn or "[Variables: They are as before " in result.content
        assert result.metadata["taken_back"] is True
        assert not here(session, "half").exists()
        assert (await session.run_cell("x")).content.splitlines()[-1] == "1"


async def test_thread_that_goes_on_to_write_is_undone_by_force_as_both_results_say(
    real_session: OpenSession,
) -> None:
    session = real_session(policy=AUTO, approver=AllowAll())
    await session.run_cell("v = 1")
    code = """
import threading, time
v = 2
def write():
    while True:
        with open('grows', 'a') as file: file.write('x')
        time.sleep(0.01)
threading.Thread(target=write, daemon=True).start()
time.sleep(1000)
"""
    grows = here(session, "grows")
    call = session.call("python", {"code": code}, timeout_s=HANG_S)
    result = await late(call, when=lambda: has_settled(session) and grows.exists(), deadline_s=HANG_S)
    assert "Undo takes it back with force=True, and ends its threads.]" in result.content
    assert "An undo of the call, or %sandbox restart, ends it. " in result.content
    assert "changed by somebody else: that takes force=True" in result.content
    size = grows.stat().st_size
    await eventually(lambda: grows.stat().st_size > size)
    refused = await session.undo()
    assert refused.is_error
    assert "Somebody else may be a thread or a task that a call has left in the sandbox" in refused.content
    assert "so does force=True where variables are brought back" in refused.content
    assert not (await session.undo(force=True)).is_error
    assert (await session.get("v"), grows.exists()) == (1, False)


@pytest.mark.pooled
async def test_thread_that_an_undo_has_stopped_goes_on_after_a_redo(real_session: OpenSession) -> None:
    session = real_session(policy=AUTO, approver=AllowAll())
    grows = here(session, "grows")
    await session.run_cell("v = 1")
    assert not (await session.run_cell(f"v = 2{WRITER}")).is_error
    assert not (await session.undo(force=True)).is_error
    assert not (await session.redo()).is_error
    size = grows.stat().st_size
    await eventually(lambda: grows.stat().st_size > size)
    assert await session.get("v") == 2


@pytest.mark.parametrize(
    "left",
    [
        "import threading; threading.Thread(target=write, daemon=True).start()",
        "import asyncio; task = asyncio.get_running_loop().create_task(asyncio.to_thread(write))",
        "import threading; threading.Timer(0.001, write).start()",
    ],
)
async def test_thread_that_writes_on_is_taken_back_with_the_call_that_timed_out(
    real_session: OpenSession, left: str
) -> None:
    session = real_session(policy=AUTO, approver=AllowAll(), on_timeout="undo")
    await session.run_cell("v = 1; open('base', 'w').write('base')")
    code = f"""
import time
v = 2
def write():
    while True:
        with open('base', 'w') as file: file.write('written')
        with open('grows', 'a') as file: file.write('x')
{left}
await asyncio.sleep(1000) if 'asyncio' in globals() else time.sleep(1000)
"""
    base, grows = here(session, "base"), here(session, "grows")
    call = session.call("python", {"code": code}, timeout_s=HANG_S)
    result = await late(call, when=lambda: has_settled(session) and grows.exists(), deadline_s=HANG_S)
    assert result.metadata["taken_back"] is True, result.content
    assert (await session.get("v"), base.read_text(), grows.exists()) == (1, "base", False)
    assert (base.read_text(), grows.exists()) == ("base", False)


async def test_nothing_is_taken_back_from_a_call_that_leaves_a_background_task(
    real_session: OpenSession,
) -> None:
    session = real_session(policy=AUTO, approver=AllowAll(), on_timeout="undo")
    assert not (await session.call("sandbox_bash", {"command": "sleep 1000", "background": True})).is_error
    half = here(session, "half")
    code = "open('half', 'w').close(); import time; time.sleep(1000)"
    call = session.call("python", {"code": code}, timeout_s=HANG_S)
    result = await late(call, when=lambda: has_settled(session) and half.exists(), deadline_s=HANG_S)
    assert result.metadata["taken_back"] is False
    assert "in the background and may go on changing files" in result.content
    assert half.exists()


WRITER = """
import os, threading, time
def write():
    while True:
        with open('grows', 'a') as file: file.write('x')
        if os.path.exists('go on'):
            with open('another', 'a') as file: file.write('x')
for _ in range(4): threading.Thread(target=write, daemon=True).start()
while not os.path.exists('grows'): time.sleep(0.001)
"""


@pytest.mark.pooled
async def test_thread_that_writes_on_is_stopped_until_its_worker_is_replaced(
    real_session: OpenSession,
) -> None:
    """By force: between the files and the variables of an undo it would write the file again."""
    session = real_session(policy=AUTO, approver=AllowAll())
    grows = here(session, "grows")
    await session.run_cell("v = 1")
    for _ in range(8):
        assert not (await session.run_cell(f"v = 2{WRITER}")).is_error
        undone = await session.undo(force=True)
        assert not undone.is_error, undone.content
        assert "Variables: They are as before" in undone.content
        assert not grows.exists()
        assert (await session.get("v"), grows.exists()) == (1, False)
    assert not (await session.run_cell(f"v = 2{WRITER}")).is_error
    here(session, "go on").touch()
    await eventually(here(session, "another").exists)
    undone = await session.undo(force=True)
    assert "Removed: grows.\n" in undone.content
    assert (grows.exists(), here(session, "another").exists()) == (False, True)


WRITING_TASK = """
import asyncio, os
async def write():
    while True:
        with open('grows', 'a') as file: file.write('x')
        await asyncio.sleep(0.001)
task = asyncio.ensure_future(write())
while not os.path.exists('grows'): await asyncio.sleep(0.001)
"""


@pytest.mark.pooled
async def test_task_that_writes_on_is_a_conflict_and_stopped_by_force_until_a_redo(
    real_session: OpenSession,
) -> None:
    session = real_session(policy=AUTO, approver=AllowAll())
    grows = here(session, "grows")
    await session.run_cell("v = 1")
    assert not (await session.run_cell(f"v = 2{WRITING_TASK}")).is_error
    size = grows.stat().st_size
    await eventually(lambda: grows.stat().st_size > size)
    refused = await session.undo()
    assert refused.is_error
    assert [one["path"] for one in refused.value["conflicts"]] == ["grows"]
    assert "Somebody else may be a thread or a task that a call has left in the sandbox" in refused.content
    assert not (await session.undo(force=True)).is_error
    assert not grows.exists()
    assert (await session.get("v"), grows.exists()) == (1, False)
    assert not (await session.redo()).is_error
    size = grows.stat().st_size
    await eventually(lambda: grows.stat().st_size > size)


async def test_thread_goes_on_if_the_variables_are_kept(real_session: OpenSession) -> None:
    session = real_session(policy=AUTO, approver=AllowAll())
    assert not (await session.run_cell(f"v = 2{WRITER}")).is_error
    undone = await session.undo(force=True, variables="keep")
    assert not undone.is_error, undone.content
    await eventually(here(session, "grows").exists)
    assert await session.get("v") == 2


@pytest.mark.pooled
async def test_thread_of_a_worker_that_is_not_replaced_goes_on(real_session: OpenSession) -> None:
    """The undo fails after the files were restored: its worker was stopped, and goes on."""
    session = real_session(policy=AUTO, approver=AllowAll())
    await session.run_cell("v = 1")
    assert not (await session.run_cell(f"v = 2{WRITER}")).is_error
    sandbox = local_sandbox(session)
    state_while_moved: list[str] = []

    async def fail(call_id: str) -> VariablePoint:
        state_while_moved.append(process_state(sandbox.worker_pid))
        raise SandboxError("they are not there")

    sandbox.variables.restore = fail  # type: ignore[method-assign]  # nothing else makes it fail here
    failed = await session.undo(force=True)
    assert failed.is_error
    assert state_while_moved == ["T"]
    grows = here(session, "grows")
    await eventually(grows.exists)
    size = grows.stat().st_size
    await eventually(lambda: grows.stat().st_size > size)
    assert (await session.get("v")) == 2


async def test_undo_is_not_begun_where_the_sandbox_does_not_stop(
    real_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = real_session(policy=AUTO, approver=AllowAll())
    await session.run_cell("v = 1")
    await session.run_cell("v = 2; open('f', 'w').close()")
    monkeypatch.setattr(sharing, "may_run", lambda _: True)
    refused = await session.undo()
    assert refused.is_error
    assert refused.content.startswith(
        "The undo was not begun: what runs in the sandbox did not stop within 2 s."
    )
    assert (await session.get("v"), here(session, "f").exists()) == (2, True)
    monkeypatch.undo()
    assert not (await session.undo()).is_error


@pytest.mark.pooled
async def test_call_that_only_reads_ends_before_an_undo_stops_its_worker(real_session: OpenSession) -> None:
    session = real_session(policy=AUTO, approver=AllowAll())
    file = here(session, "f")
    await session.run_cell("v = 1")
    await session.run_cell("v = 2; open('f', 'w').close()")
    sandbox = local_sandbox(session)
    async with sandbox._scheduler.slot("overlap"):
        undoing = asyncio.ensure_future(session.undo())
        await eventually(lambda: "1 waiting" in repr(sandbox._scheduler))
        assert (process_state(sandbox.worker_pid), file.exists()) == ("S", True)
        # A call that begins now waits for the undo, and does not see one half of it.
        reading = asyncio.ensure_future(session.call("read_file", {"path": "f"}))
        await loop_turns()
    undone = await undoing
    assert not undone.is_error, undone.content
    assert (await reading).is_error
    assert (await session.get("v"), file.exists()) == (1, False)


async def test_timeout_of_a_command_that_changed_nothing_says_so(real_session: OpenSession) -> None:
    session = real_session(policy=AUTO, approver=AllowAll())
    result = await session.call("sandbox_bash", {"command": "mkdir -p .; sleep 100", "timeout": 200})
    assert result.content.endswith("[It had changed no file.]")
    assert result.metadata["changed_files"] == []


async def test_wrong_choice_for_timeouts_is_an_error(open_session: OpenSession) -> None:
    with pytest.raises(ValueError, match="on_timeout='maybe': use 'keep' or 'undo'"):
        open_session(on_timeout="maybe")


# ---- long sessions


async def test_changes_reach_the_first_call_however_many_follow(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await session.start()
    here(session, "kept").write_text("from before")
    for number in range(KEPT_STEPS + 45):
        await write(session, "a", f"content {number}")
    await write(session, "kept", "later", call_id="last")
    changes = await session.changes()
    assert (changes.added, changes.changed, changes.since) == (("a",), ("kept",), "")
    assert "-from before" in str(changes)
    assert not (await session.undo()).is_error
    assert (await session.changes()).changed == ()


async def test_beyond_the_room_for_contents_changes_begin_later_and_say_so(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await session.start()
    history: Any = session.history
    history._checkpoints.kept_bytes = 100_000
    here(session, "first").write_text("x" * 60_000)
    for number in range(4):
        await write(session, "first", str(number) * 60_000)
    await write(session, "second", "small", call_id="small")
    assert history.store.size <= 100_000 + 60_000
    changes = await session.changes()
    assert "first" not in changes.added
    assert changes.added == ("second",)
    assert "what was there before earlier calls is not kept" in changes.since
    assert changes.since in str(changes)


async def test_one_session_never_collects_what_another_on_the_same_workspace_needs(
    open_session: OpenSession,
) -> None:
    one, other = open_session(policy=AUTO), open_session(policy=AUTO)
    await one.start()
    here(one).write_text("before")
    await write(one, "a", "one")
    await other.start()
    for number in range(KEPT_STEPS + 25):
        await write(other, "a", str(number))
    assert "-before" in str(await one.changes())
    assert "-one" in str(await other.changes())
    await one.close()
    history: Any = other.history
    assert len(history._checkpoints._pinned) == 1, "what only a closed session needed is collected"


async def test_undo_names_the_calls_that_it_passes_over(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    session.registry.register(MockTool("look", effect=Effect.READ_ONLY))
    for path in ("a", "b"):
        await write(session, path, "1")
        await session.call("look", {}, call_id=f"look-{path}")
        await session.call("sandbox_write", {"path": 7}, call_id=f"wrong-{path}")  # never ran
    await session.call("look", {}, call_id="last")
    first = await session.undo()
    assert "Removed: b." in first.content
    assert "[Passed over 2 calls that only read: look (look-b), look (last).]" in first.content
    second = await session.undo()
    assert "Removed: a." in second.content
    assert "[Passed over 1 call that only read: look (look-a).]" in second.content
    assert "Passed over" not in (await session.redo(2)).content
    await write(session, "c", "1")
    assert not (await session.undo()).is_error
    await write(session, "d", "1")  # so the one before it cannot be made again, and is not a step any more
    assert "Passed over" not in (await session.undo()).content
    both = await session.undo(2)
    assert "Passed over 3 calls that only read: look (look-a), look (look-b), look (last)." in both.content
