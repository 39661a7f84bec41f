"""One workspace shared by several sessions: its lock, who gets it when, and who closes it; looks at it."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import signal
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import UsageError, WorkspaceError
from aisotools.core.sandboxes import SandboxListener
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session.event_log import EventLog
from aisotools.session.sharing import (
    INLINE_ENTRIES,
    CheckpointScans,
    SharedWorkspace,
    WorkspaceLock,
    share,
    share_in_thread,
)
from aisotools.testing.fakes import FakeSandbox
from aisotools.workspace.checkpoints.scan import TooSlow
from aisotools.workspace.checkpoints.timeline import Checkpoints
from tests.waiting import eventually, process_state


class ProcessSandbox(FakeSandbox):
    """A sandbox that says which processes are its own."""

    supervisor = 0
    worker_pid = 0


def new_sandbox() -> ProcessSandbox:
    listener: SandboxListener = EventLog()
    return ProcessSandbox(WorkerSpec(level="confined", workspace="/nowhere", limits=Limits()), listener)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


@pytest.fixture
def shared(workspace: Path, tmp_path: Path) -> Iterator[SharedWorkspace]:
    sandbox = new_sandbox()
    shared = share(workspace, tmp_path / "state", sandbox)
    yield shared
    shared.release(sandbox)


# ---- the lock


async def test_one_holder_has_the_lock_several_times_at_once() -> None:
    lock, holder = WorkspaceLock(), object()
    first = await lock.enter(holder)
    lock.leave(first)
    second = await lock.enter(holder)
    lock.leave(second)
    assert repr(lock) == "<WorkspaceLock: 0 inside, 0 waiting>"


async def enter_in_task(lock: WorkspaceLock, holder: object, entered: list[str], name: str) -> None:
    token = await lock.enter(holder)
    entered.append(name)
    await asyncio.sleep(0)
    lock.leave(token)


async def test_another_holder_waits_and_the_queue_is_fair() -> None:
    lock, entered = WorkspaceLock(), list[str]()
    token = await asyncio.create_task(lock.enter("a"))
    waiting = [
        asyncio.create_task(enter_in_task(lock, holder, entered, name))
        for name, holder in (("b1", "b"), ("b2", "b"), ("c", "c"))
    ]
    for _ in range(3):
        await asyncio.sleep(0)
    assert entered == []
    assert repr(lock) == "<WorkspaceLock: 1 inside, 3 waiting>"
    lock.leave(token)
    await asyncio.gather(*waiting)
    assert entered == ["b1", "b2", "c"]


async def test_the_same_holder_overlaps_from_another_task() -> None:
    lock = WorkspaceLock()
    first = await asyncio.create_task(lock.enter("a"))
    second = await asyncio.create_task(lock.enter("a"))
    lock.leave(first)
    other = asyncio.create_task(lock.enter("b"))
    await asyncio.sleep(0)
    assert not other.done()
    lock.leave(second)
    lock.leave(await other)


async def test_an_inner_call_enters_at_once_and_holds_nothing_by_itself() -> None:
    lock = WorkspaceLock()
    outer = await lock.enter("a")
    assert lock.is_inside()
    inner = await lock.enter("b")
    assert inner.nested
    assert not outer.nested
    lock.leave(inner)
    other = asyncio.create_task(enter_in_task(lock, "c", [], "c"), context=contextvars.Context())
    await asyncio.sleep(0)
    assert not other.done()
    lock.leave(outer)
    lock.leave(outer)  # once more has no effect
    await other
    assert not lock.is_inside()


async def test_a_waiter_that_is_cancelled_in_the_queue_leaves_it() -> None:
    lock, entered = WorkspaceLock(), list[str]()
    token = await asyncio.create_task(lock.enter("a"))
    waiting = asyncio.create_task(enter_in_task(lock, "b", entered, "b"))
    behind = asyncio.create_task(enter_in_task(lock, "c", entered, "c"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    lock.leave(token)
    await behind
    assert entered == ["c"]


async def test_a_waiter_that_is_cancelled_as_it_gets_the_lock_hands_it_on() -> None:
    lock, entered = WorkspaceLock(), list[str]()
    token = await asyncio.create_task(lock.enter("a"))
    waiting = asyncio.create_task(enter_in_task(lock, "b", entered, "b"))
    behind = asyncio.create_task(enter_in_task(lock, "c", entered, "c"))
    await asyncio.sleep(0)
    lock.leave(token)  # grants it to b
    waiting.cancel()  # in the same iteration of the loop
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await behind
    assert entered == ["c"]
    assert repr(lock) == "<WorkspaceLock: 0 inside, 0 waiting>"


def test_a_loop_that_has_gone_takes_its_waiters_with_it() -> None:
    lock = WorkspaceLock()
    loop = asyncio.new_event_loop()
    token = loop.run_until_complete(lock.enter("a"))
    gone = asyncio.new_event_loop()
    waiting = gone.create_task(lock.enter("b"))
    gone.run_until_complete(asyncio.sleep(0))
    gone.close()
    lock.leave(token)
    again = loop.run_until_complete(lock.enter("c"))
    lock.leave(again)
    loop.close()
    assert not waiting.done()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # its loop is closed on purpose


# ---- the workspace


def test_sessions_on_one_workspace_share_it_and_the_last_one_closes_it(
    workspace: Path, tmp_path: Path
) -> None:
    one, two = new_sandbox(), new_sandbox()
    shared = share(workspace, tmp_path / "state", one)
    assert share(workspace / "." / "", tmp_path / "state", two) is shared
    assert shared.sandboxes == [one, two]
    shared.release(one)
    assert share(workspace, tmp_path / "state", one) is shared
    shared.release(one)
    shared.release(two)
    fresh = share(workspace, tmp_path / "state", one)
    assert fresh is not shared
    fresh.release(one)


@pytest.mark.usefixtures("shared")
def test_another_state_folder_is_refused(workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="open with another state folder"):
        share(workspace, tmp_path / "other", new_sandbox())


async def test_a_process_that_was_left_running_is_found_frozen_and_killed(shared: SharedWorkspace) -> None:
    (sandbox,) = shared.sandboxes
    assert isinstance(sandbox, ProcessSandbox)
    assert await shared.find_running() == ({}, {})
    command = "sleep 60 > /dev/null & echo $!; wait $!; echo $?; read end"
    shell = await asyncio.create_subprocess_exec("sh", "-c", command, stdin=PIPE, stdout=PIPE)
    assert shell.stdout is not None
    try:
        pid = int(await shell.stdout.readline())
        sandbox.supervisor = shell.pid

        async def only_sleeps() -> bool:  # at first it is a shell, too
            return await shared.find_running() == ({pid: "sleep"}, {})

        await eventually(only_sleeps)
        with shared.freeze():
            await eventually(lambda: process_state(pid) == "T")
            shared.kill(
                {shell.pid}, forced=False
            )  # the supervisor itself is none of what runs in the sandbox
        assert await shared.find_running() == ({pid: "sleep"}, {})
        shared.kill((), forced=False)
        shared.kill({pid}, forced=False)
        assert await shell.stdout.readline() == b"%d\n" % (128 + signal.SIGKILL)
    finally:
        shell.kill()
        await shell.wait()


async def test_files_of_the_process_are_named_of_which_the_next_worker_is_a_copy(
    shared: SharedWorkspace,
) -> None:
    (sandbox,) = shared.sandboxes
    assert isinstance(sandbox, ProcessSandbox)
    paths, holders = ("one", "two"), []
    for path in paths:
        (shared.folder / path).write_text("old")
        command = f"exec 5< '{shared.folder / path}'; echo; read end"
        holders.append(await asyncio.create_subprocess_exec("sh", "-c", command, stdin=PIPE, stdout=PIPE))
    try:
        for holder in holders:
            assert holder.stdout is not None
            await holder.stdout.readline()
        for path in paths:
            (shared.folder / path).unlink()
        worker, origin = holders
        sandbox.worker_pid = worker.pid
        assert shared.find_detached(paths).read == {"one"}
        assert shared.find_detached(paths, sandbox, origin.pid).read == {"two"}
        assert shared.find_detached(paths, new_sandbox(), origin.pid).read == {"one"}
    finally:
        for holder in holders:
            holder.kill()
            await holder.wait()


LARGE = "import mmap; m = mmap.mmap(-1, 256 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)"


async def test_a_process_that_was_killed_is_waited_for(shared: SharedWorkspace) -> None:
    """It is there until its memory is freed, and nothing that goes on changing files."""
    (sandbox,) = shared.sandboxes
    assert isinstance(sandbox, ProcessSandbox)
    script = f"{LARGE}; print(flush=True); input()"
    command = f"trap : TERM; '{sys.executable}' -c '{script}' <&3 & echo $!; wait; wait; read end"
    shell = await asyncio.create_subprocess_exec("sh", "-c", f"exec 3<&0; {command}", stdin=PIPE, stdout=PIPE)
    assert shell.stdout is not None
    try:
        pid = int(await shell.stdout.readline())
        await shell.stdout.readline()
        sandbox.supervisor = shell.pid
        assert list((await shared.find_running())[0]) == [pid]
        os.kill(pid, signal.SIGKILL)
        assert await shared.find_running() == ({}, {})
        assert process_state(pid) in {"Z", ""}
    finally:
        shell.kill()
        await shell.wait()


async def test_a_sandbox_without_snapshots_is_settled(shared: SharedWorkspace) -> None:
    await shared.wait_for_snapshots()


async def test_share_that_is_cancelled_is_given_back(workspace: Path, tmp_path: Path) -> None:
    sandbox = new_sandbox()
    sharing = asyncio.ensure_future(share_in_thread(workspace, tmp_path / "state", sandbox))
    await asyncio.sleep(0)
    sharing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sharing
    other = new_sandbox()
    shared = await share_in_thread(workspace, tmp_path / "state", other)
    try:
        await eventually(lambda: shared.sandboxes == [other])
    finally:
        shared.release(other)


# ---- looks at the workspace


class Stopping(SharedWorkspace):
    """Counts how often the sandboxes are stopped, or fails to stop them."""

    error: OSError | None = None
    stopped = 0

    @contextmanager
    def freeze(self, *, on_loop: bool = False) -> Iterator[None]:
        if self.error is not None:
            raise self.error
        self.stopped += 1
        yield


@pytest.fixture
def stopping(tmp_path: Path) -> Iterator[Stopping]:
    (tmp_path / "w").mkdir()
    stopping = Stopping(tmp_path / "w", Checkpoints(tmp_path / "w", tmp_path / "state"))
    yield stopping
    stopping.checkpoints.close()


def look(threads: list[int], **_: Any) -> str:
    threads.append(threading.get_ident())
    return "seen"


async def test_small_workspace_is_looked_at_on_the_loop_and_an_unknown_one_in_a_thread(
    stopping: Stopping,
) -> None:
    scans, threads = CheckpointScans(stopping, EventLog()), list[int]()
    found = [scans.is_small]
    assert await scans.run(lambda **options: look(threads, **options), "") == "seen"
    stopping.checkpoints.snapshot()
    found.append(scans.is_small)
    assert found == [False, True]
    assert await scans.run(lambda **options: look(threads, **options), "") == "seen"
    assert await scans.run(lambda **options: look(threads, **options), "", inline=False) == "seen"
    assert [thread == threading.get_ident() for thread in threads] == [False, True, False]
    assert stopping.stopped == 3
    await scans.run(lambda **options: look(threads, **options), "", frozen=False)
    assert stopping.stopped == 3
    scans.close()


async def test_look_that_takes_too_long_on_the_loop_goes_on_in_a_thread(stopping: Stopping) -> None:
    stopping.checkpoints.snapshot()
    scans, threads = CheckpointScans(stopping, EventLog()), list[int]()

    def scan(max_work: float = 0, **_: Any) -> None:
        threads.append(threading.get_ident())
        if max_work == INLINE_ENTRIES:
            raise TooSlow

    await scans.run(scan, "")
    assert [thread == threading.get_ident() for thread in threads] == [True, False]


@pytest.mark.parametrize("inline", [True, False])
async def test_sandboxes_that_cannot_be_stopped_are_an_error_with_the_remedy(
    stopping: Stopping, inline: bool
) -> None:
    stopping.checkpoints.snapshot()
    stopping.error = OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/proc")
    scans, threads = CheckpointScans(stopping, EventLog()), list[int]()
    with pytest.raises(WorkspaceError, match=r"^Too many open files \('/proc'\)\. .* .`ulimit -n`\)\.$"):
        await scans.run(lambda **options: look(threads, **options), "", inline=inline)
    assert threads == []


async def test_first_snapshot_of_a_large_workspace_takes_too_long_to_foresee(
    stopping: Stopping, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = CheckpointScans(stopping, EventLog())
    assert scans.fits()
    monkeypatch.setattr("aisotools.session.sharing.INLINE_ENTRIES", 1)
    for name in "ab":
        (stopping.folder / name).touch()
    with pytest.raises(TooSlow):
        scans.fits()
