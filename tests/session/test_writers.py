"""A person, or what is left running in the sandbox, changes files during a call: whose changes are they?"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.sandboxes import SandboxCall
from aisotools.core.types import ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.policy.rules import Policy
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.session.history import WorkspaceHistory
from aisotools.session.session import Session
from aisotools.session.undo_history import TimeoutChoice
from aisotools.session.writers import LONG_CALL_S, CallWriters, WriterWatch
from aisotools.tools.function import tool
from aisotools.workspace.checkpoints.tree import TreePath
from aisotools.workspace.dirfd import file_time
from tests.conftest import OpenSession
from tests.pooled import sandbox_of
from tests.waiting import HANG_S, eventually, wait_until

AUTO = Policy(mode="auto")
each_level = pytest.mark.parametrize("level", ["isolated", "confined", "guarded"])
WAIT = "read line < own/go; "
"""Blocks a command until the test writes into the FIFO."""


class BusyFolder(LocalSandbox):
    """A sandbox during whose next call somebody else changes files."""

    act: Callable[[], object] | None = None

    async def call(self, request: SandboxCall) -> ToolResult:
        result = await super().call(request)
        act, self.act = self.act, None
        if act is not None:
            act()
        return result


def here(session: Session) -> Path:
    assert session.workspace is not None
    return session.workspace


async def write(session: Session, path: str, content: str = "by the call") -> ToolResult:
    result = await session.call("sandbox_write", {"path": path, "content": content})
    assert not result.is_error, result.content
    return result


def act_in(session: Session, act: Callable[[], object]) -> None:
    sandbox_of(session, BusyFolder).act = act


def change_all(folder: Path) -> None:
    """Change files as a person does with an editor and a file manager."""
    (folder / "edited").write_text("by a person")
    (folder / "new").write_text("by a person")
    (folder / "removed").unlink()
    (folder / "renamed").rename(folder / "other name")


CHANGED = ["edited", "new", "other name", "removed", "renamed"]


def fill(folder: Path) -> None:
    for name in ("edited", "removed", "renamed"):
        (folder / name).write_text("before")


def is_theirs(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()}
    texts = [(folder / name).read_text() for name in ("edited", "new", "other name") if name in names]
    return texts == ["by a person", "by a person", "before"] and not names & {"removed", "renamed"}


def is_as_before(folder: Path) -> bool:
    texts = [(folder / name).read_text() for name in ("edited", "removed", "renamed")]
    return texts == ["before"] * 3 and not (folder / "new").exists() and not (folder / "other name").exists()


# ---- file tools name what they change


@each_level
async def test_changes_of_a_person_during_a_write_stay_theirs(real_session: OpenSession, level: str) -> None:
    session = real_session(policy=AUTO, sandbox=BusyFolder, level=level)
    await write(session, "a")
    folder = here(session)
    fill(folder)
    act_in(session, lambda: change_all(folder))
    result = await write(session, "deep/er/b")
    assert f"Also changed during the call: {', '.join(CHANGED)}. Somebody else did that" in result.content
    assert result.metadata["also_changed"] == {"others": CHANGED}
    undone = await session.undo()
    assert "Left as it is: edited (it was changed during the call, and not by it)" in undone.content
    assert [one["path"] for one in undone.value["others"]] == CHANGED
    assert is_theirs(folder)
    assert not (folder / "deep").exists()
    redone = await session.redo()
    assert not redone.is_error
    assert is_theirs(folder)
    assert (folder / "deep/er/b").exists()
    forced = await session.undo(force=True)
    assert not forced.is_error
    assert is_as_before(folder)
    assert [one["path"] for one in forced.value["conflicts"]] == CHANGED
    assert not (await session.redo()).is_error
    assert is_theirs(folder)
    both = await session.undo(2)
    assert not both.is_error, both.content
    assert is_theirs(folder)
    assert not (folder / "a").exists()


async def test_later_edit_of_what_a_person_changed_during_a_call_is_theirs_as_well(
    real_session: OpenSession,
) -> None:
    session = real_session(policy=AUTO, sandbox=BusyFolder)
    await write(session, "a")
    notes = here(session) / "notes"
    notes.write_text("1")
    act_in(session, lambda: notes.write_text("2"))
    await write(session, "b")
    assert not (await session.undo()).is_error
    notes.write_text("3")
    redone = await session.redo()
    assert not redone.is_error
    assert redone.value["others"][0]["path"] == "notes"
    assert notes.read_text() == "3"


async def test_call_before_that_wrote_the_same_file_stops_at_a_person_s_version(
    real_session: OpenSession,
) -> None:
    session = real_session(policy=AUTO, sandbox=BusyFolder)
    await write(session, "notes")
    notes = here(session) / "notes"
    act_in(session, lambda: notes.write_text("by a person"))
    await write(session, "b")
    refused = await session.undo(2)
    assert refused.is_error
    assert "notes" in refused.content
    assert not (await session.undo()).is_error
    assert notes.read_text() == "by a person"


@each_level
@pytest.mark.parametrize("how", ["thread", "function", "process"])
async def test_sandbox_cannot_have_undo_pass_over_a_change_of_its_own(
    real_session: OpenSession, level: str, how: str
) -> None:
    # The attack: earlier code has prepared the worker, and evil is written during a call of a file tool.
    attacks = {
        "thread": """
import threading, time
def run():
    while not __import__("os").path.exists("target"):
        time.sleep(0.0005)
    open("evil", "w").close()
threading.Thread(target=run).start()
""",
        "function": """
import os
real = os.replace
def replace(*args, **kwargs):
    open("evil", "w").close()
    real(*args, **kwargs)
os.replace = replace
""",
        "process": """
import subprocess
p = subprocess.Popen(["sh", "-c", "until [ -e target ]; do sleep 0.0005; done; : > evil"])
""",
    }
    session = real_session(policy=AUTO, sandbox=BusyFolder, level=level)
    planted = await session.call("python", {"code": attacks[how]})
    assert not planted.is_error, planted.content
    folder = here(session)
    if how != "function":  # the call goes on until evil is there
        act_in(session, lambda: wait_until((folder / "evil").exists))
    result = await write(session, "target")
    assert (folder / "evil").exists()
    assert result.metadata["also_changed"] == {"unclear": ["evil"]}
    assert "evil" in result.content
    refused = await session.undo()
    assert refused.is_error
    assert (folder / "target").exists()
    if how != "process":  # which is refused for a process that still runs, or for its change
        assert "evil" in refused.content
    assert not (await session.undo(force=True)).is_error
    assert not (folder / "evil").exists()


@each_level
@pytest.mark.parametrize("tool", ["sandbox_write", "file"])
async def test_save_of_the_very_file_that_a_call_has_just_written_is_a_conflict(
    real_session: OpenSession, level: str, tool: str
) -> None:
    session = real_session(policy=AUTO, sandbox=BusyFolder, level=level)
    await write(session, "notes", "before")
    notes = here(session) / "notes"
    act_in(session, lambda: notes.write_text("by a person"))
    arguments = {"path": "notes", "content": "by the call"}
    result = await session.call(tool, arguments if tool != "file" else {"operation": "write", **arguments})
    assert not result.is_error, result.content
    assert result.metadata["also_changed"] == {"unclear": ["notes"]}
    refused = await session.undo()
    assert "notes: it was changed during the call, and not, or not only, by the call" in refused.content
    assert notes.read_text() == "by a person"
    assert not (await session.undo(force=True)).is_error
    assert notes.read_text() == "before"
    assert not (await session.redo()).is_error
    assert notes.read_text() == "by a person"


async def test_calls_that_overlap_are_not_somebody_else_to_each_other(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aisotools.session.writers.LONG_CALL_S", HANG_S)  # however busy the machine is
    session = open_session(policy=AUTO)
    results = await asyncio.gather(*(write(session, name) for name in "abc"))
    assert not any("also_changed" in result.metadata for result in results)
    assert not (await session.undo(3)).is_error
    assert not {"a", "b", "c"} & {path.name for path in here(session).iterdir()}


def list_names(session: Session) -> set[str]:
    return {path.name for path in here(session).iterdir()}


@pytest.mark.parametrize("has_run_code", [False, True])
async def test_calls_that_overlap_and_name_their_files_are_undone_one_by_one(
    real_session: OpenSession, has_run_code: bool
) -> None:
    session = real_session(policy=AUTO)
    await session.start()
    if has_run_code:
        await session.call("python", {"code": "1"})
    names = {f"file-{number}" for number in range(5)}

    async def write_all() -> None:
        writes = (session.call("sandbox_write", {"path": name, "content": name}) for name in names)
        for result in await asyncio.gather(*writes):
            assert "also changed" not in result.content
            assert not result.is_error, result.content

    await write_all()
    for left in range(4, -1, -1):
        undone = await session.undo()
        assert not undone.is_error, undone.content
        assert len(list_names(session)) == left, "exactly one call"
    redone = await session.redo(5)
    assert not redone.is_error, redone.content
    assert list_names(session) == names
    undone = await session.undo(5)
    assert not undone.is_error, undone.content
    assert list_names(session) == set()
    await write_all()
    (here(session) / "mine").write_text("by a person")
    assert not (await session.undo(3)).is_error
    assert len(names & list_names(session)) == 2
    assert (here(session) / "mine").read_text() == "by a person"


async def test_save_of_the_very_file_that_a_tool_edits_is_taken_back(real_session: OpenSession) -> None:
    """As README says: what such a tool leaves is not known as a whole, so nobody can tell."""
    session = real_session(policy=AUTO, sandbox=BusyFolder)
    await write(session, "notes", "one two")
    await session.call("sandbox_read", {"path": "notes"})
    notes = here(session) / "notes"
    act_in(session, lambda: notes.write_text("by a person"))
    edited = await session.call("edit", {"path": "notes", "edits": [{"old": "two", "new": "three"}]})
    assert not edited.is_error, edited.content
    assert notes.read_text() == "by a person"
    assert not (await session.undo()).is_error
    assert notes.read_text() == "one two"


class OverlappingCalls(BusyFolder):
    """A sandbox in which two calls overlap, and somebody else changes files when both have done their work.

    Attributes:
        begins_late: Whether the second one begins when the first one has done its work, not before.
    """

    begins_late = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.begun, self.worked, self.over = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.calls = 0
        self.overlap: Callable[[], object] | None = None

    async def call(self, request: SandboxCall) -> ToolResult:
        if self.overlap is None:
            return await super().call(request)
        self.calls += 1
        is_second = self.calls == 2
        if is_second:
            self.begun.set()
        if not self.begins_late:
            await self.begun.wait()
        result = await super().call(request)
        if is_second:
            await self.worked.wait()
            self.overlap()
            self.over.set()
        self.worked.set()
        await self.over.wait()
        return result


@pytest.mark.parametrize("begins_late", [False, True], ids=["at once", "one after the work of the other"])
async def test_save_during_calls_that_overlap_is_a_conflict(
    real_session: OpenSession, *, begins_late: bool
) -> None:
    """Of a file that one of them writes. During one call alone, as a control, it is a conflict."""
    session = real_session(policy=AUTO, sandbox=OverlappingCalls)
    for name in ("a", "b"):
        await write(session, name, "before")
    file, sandbox = here(session) / "a", sandbox_of(session, OverlappingCalls)
    act_in(session, lambda: file.write_text("by a person"))
    await write(session, "a")
    assert (await session.undo()).is_error
    assert not (await session.undo(force=True)).is_error

    sandbox.begins_late = begins_late
    sandbox.overlap = lambda: file.write_text("by a person")
    first = asyncio.create_task(write(session, "a"))
    if begins_late:
        await sandbox.worked.wait()
    await asyncio.gather(first, write(session, "b"))
    undone = await session.undo(2)
    assert [one["path"] for one in undone.value["conflicts"]] == ["a"]
    assert (file.read_text(), (here(session) / "b").read_text()) == ("by a person", "by the call")
    assert not (await session.undo(2, force=True)).is_error
    assert [(here(session) / name).read_text() for name in ("a", "b")] == ["before"] * 2


async def test_of_calls_that_overlap_the_contents_are_known_that_none_of_them_edits(
    open_session: OpenSession,
) -> None:
    session = open_session(policy=AUTO)
    await session.start()
    shared = watch_of(session)._shared

    def call(own: set[TreePath] | None, **written: str) -> CallWriters:
        named = None if own is None else frozenset(own)
        writers = CallWriters(shared, named, {(name,): digest for name, digest in written.items()})
        writers.stop()
        return writers

    first = call({("a",), ("b",)}, a="1", b="1")
    assert first.contents == {("a",): {"1"}, ("b",): {"1"}}
    first.overlapping = [call({("a",), ("c",)}, a="2", c="2")]
    assert first.contents == {("a",): {"1", "2"}, ("b",): {"1"}, ("c",): {"2"}}
    whole: TreePath = ()
    for edited, left in ((("b",), {("a",)}), (whole, set()), (("x",), {("a",), ("b",)})):
        first.overlapping = [call({edited})]
        assert first.contents.keys() == left
    first.overlapping.append(call(None))
    assert first.contents == {}, "code may write anything"


@each_level
async def test_save_while_code_computes_is_a_conflict(real_session: OpenSession, level: str) -> None:
    """The sandbox never stands still, but it writes nothing: a new content is somebody else's."""
    session = real_session(policy=AUTO, level=level)
    await write(session, "a")
    folder = here(session)
    fill(folder)
    code = """
import os
open('own', 'w').write('1')
while not os.path.exists('go'): pass
open('end', 'w').write('1')
"""
    running = asyncio.create_task(session.call("python", {"code": code}))
    await eventually((folder / "own").exists)
    (writers,) = watch_of(session)._running.values()
    await eventually(lambda: running.done() or writers.unwritten_spans)
    for name in ("edited", "new"):
        (folder / name).write_text("by a person")
    saved_ns = file_time()
    await eventually(lambda: running.done() or writers.unwritten_spans[-1][1] > saved_ns)
    (folder / "go").touch()
    result = await running
    assert not result.is_error, result.content
    assert result.metadata["also_changed"]["unclear"] == ["edited", "new"]
    refused = await session.undo()
    assert refused.is_error
    assert [one["path"] for one in refused.value["conflicts"]] == ["edited", "new"]
    assert [(folder / name).read_text() for name in ("edited", "new")] == ["by a person"] * 2
    assert not (await session.undo(force=True)).is_error
    assert {path.name for path in folder.iterdir()} == {"a", "edited", "removed", "renamed"}
    assert (folder / "edited").read_text() == "before"


async def test_writing_of_code_is_its_own_however_long_it_computes(real_session: OpenSession) -> None:
    session = real_session(policy=AUTO)
    await write(session, "a")
    folder = here(session)
    code = """
import mmap, os
def wait(name):
    while not os.path.exists(name): pass
open('began', 'w').write('1')
wait('1')
open('written', 'w').write('1')
wait('2')
os.system('echo 1 > by-a-child')
wait('3')
os.rename('began', 'renamed')
with open('mapped', 'w+b') as file:
    file.truncate(4096)
    with mmap.mmap(file.fileno(), 0) as view:
        wait('4')
        view[:1] = b'1'
        wait('5')
"""
    running = asyncio.create_task(session.call("python", {"code": code}))
    await eventually((folder / "began").exists)
    (writers,) = watch_of(session)._running.values()
    for number in "12345":
        looks = writers.looks
        await eventually(lambda: running.done() or writers.looks > looks + 3)  # noqa: B023 - it is over then
        (folder / number).touch()
    result = await running
    assert not result.is_error, result.content
    assert writers.unwritten_spans, "and there were such times"
    assert "unclear" not in result.metadata.get("also_changed", {})
    assert not (await session.undo()).is_error
    assert {path.name for path in folder.iterdir()} == {"a"}


async def test_save_while_code_writes_is_taken_back(real_session: OpenSession) -> None:
    """The code writes all the time, so that nothing tells its writing from a person's."""
    session = real_session(policy=AUTO)
    await write(session, "a")
    notes = here(session) / "notes"
    notes.write_text("before")
    code = """
import os
with open('began', 'wb', buffering=0) as file:
    while not os.path.exists('go'): file.write(b'1')
"""
    running = asyncio.create_task(session.call("python", {"code": code}))
    await eventually((here(session) / "began").exists)
    notes.write_text("by a person")
    (here(session) / "go").touch()
    result = await running
    assert not result.is_error, result.content
    assert "unclear" not in result.metadata.get("also_changed", {})
    assert not (await session.undo()).is_error
    assert notes.read_text() == "before"


# ---- other calls: when nothing of the sandbox has run


def watch_of(session: Session) -> WriterWatch:
    assert isinstance(session.history, WorkspaceHistory)
    return session.history._writers


async def idle_spans(session: Session, call: asyncio.Task[ToolResult]) -> CallWriters:
    """Return what is known of the one call as soon as nothing of the sandbox has run for a while."""
    running = watch_of(session)._running
    await eventually(lambda: call.done() or any(writers.idle_spans for writers in running.values()))
    assert not call.done(), call.result().content
    return next(iter(running.values()))


@each_level
async def test_changes_of_a_person_while_a_command_waits_are_conflicts(
    real_session: OpenSession, level: str
) -> None:
    session = real_session(policy=AUTO, level=level, approver=AllowAll())
    await write(session, "a")
    folder = here(session)
    fill(folder)
    command = f"mkdir own; mkfifo own/go; {WAIT}: > own/made; rm own/go"
    call = asyncio.create_task(session.call("sandbox_bash", {"command": command}))
    writers = await idle_spans(session, call)
    change_all(folder)
    last = writers.idle_spans[-1]
    await eventually(lambda: writers.idle_spans[-1] > last)
    with (folder / "own/go").open("w") as fifo:
        fifo.write("\n")
    result = await call
    assert not result.is_error, result.content
    assert result.metadata["also_changed"]["unclear"] == CHANGED
    assert f"Also changed during the call: {', '.join(CHANGED)}. Somebody else did that" in result.content
    refused = await session.undo()
    assert refused.is_error
    assert [one["path"] for one in refused.value["conflicts"]] == CHANGED
    assert is_theirs(folder)
    assert (folder / "own/made").exists()
    assert not (await session.undo(force=True)).is_error
    assert is_as_before(folder)
    assert not (folder / "own").exists()
    assert not (await session.redo()).is_error
    assert is_theirs(folder)
    assert (folder / "own/made").exists()


ATTRIBUTES: dict[str, Callable[[Path], object]] = {
    "mode": lambda path: path.chmod(0o700),
    "time": lambda path: os.utime(path, ns=(10**18, 10**18)),
    "attribute": lambda path: os.setxattr(path, "user.mine", b"1"),
    "same content": lambda path: path.write_text(path.read_text()),
    "time of a folder": lambda path: os.utime(path.parent / "folder", ns=(10**18, 10**18)),
    "attribute of a folder": lambda path: os.setxattr(path.parent / "folder", "user.mine", b"1"),
}


@pytest.mark.parametrize("change", ATTRIBUTES.values(), ids=ATTRIBUTES)
async def test_attributes_that_a_person_changes_while_a_command_waits_are_a_conflict(
    real_session: OpenSession, change: Callable[[Path], object]
) -> None:
    session = real_session(policy=AUTO, approver=AllowAll())
    await write(session, "a")
    folder = here(session)
    fill(folder)
    (folder / "folder").mkdir()
    command = f"mkdir own; mkfifo own/go; {WAIT}: > own/made; rm own/go"
    call = asyncio.create_task(session.call("sandbox_bash", {"command": command}))
    writers = await idle_spans(session, call)
    before = {path.name: path.stat().st_ctime_ns for path in folder.iterdir()}
    change(folder / "edited")
    (changed,) = [name for name, ctime_ns in before.items() if (folder / name).stat().st_ctime_ns != ctime_ns]
    theirs = (folder / changed).stat()
    last = writers.idle_spans[-1]
    await eventually(lambda: writers.idle_spans[-1] > last)
    with (folder / "own/go").open("w") as fifo:
        fifo.write("\n")
    result = await call
    assert f"Also changed during the call: {changed}. Somebody else did that" in result.content
    refused = await session.undo()
    assert [one["path"] for one in refused.value["conflicts"]] == [changed]
    now = (folder / changed).stat()
    assert (now.st_mode, now.st_mtime_ns, now.st_ctime_ns) == (
        theirs.st_mode,
        theirs.st_mtime_ns,
        theirs.st_ctime_ns,
    )
    assert not (await session.undo(force=True)).is_error
    assert not (folder / "own").exists()


@pytest.mark.parametrize("overlaps", [False, True], ids=["by itself", "beside a command"])
async def test_change_of_a_tool_on_the_host_while_the_sandbox_waits_is_its_own(
    real_session: OpenSession, *, overlaps: bool
) -> None:
    """Nothing of the sandbox runs meanwhile, and nobody else has written."""
    session = real_session(policy=AUTO, approver=AllowAll())
    await write(session, "a")
    folder, running = here(session), watch_of(session)._running
    out = folder / "out"

    @tool(runs_in="host")
    async def note() -> str:
        """Write a note."""
        looks = {call: writers.looks for call, writers in running.items()}
        await eventually(lambda: all(running[call].looks > looks[call] + 3 for call in looks))
        out.write_text("by the tool")
        looks = {call: writers.looks for call, writers in running.items()}
        await eventually(lambda: all(running[call].looks > looks[call] + 3 for call in looks))
        return "done"

    session.registry.register(note)
    command = asyncio.create_task(
        session.call("sandbox_bash", {"command": f"mkdir own; mkfifo own/go; {WAIT}rm own/go"})
    )
    await eventually((folder / "own/go").exists)
    if not overlaps:
        (folder / "own/go").write_text("\n")
        await command
    result = await session.call("note", {})
    assert not result.is_error, result.content
    assert "unclear" not in result.metadata.get("also_changed", {})
    if overlaps:
        (folder / "own/go").write_text("\n")
    assert "unclear" not in (await command).metadata.get("also_changed", {})
    undone = await session.undo(2)
    assert not undone.is_error, undone.content
    assert {path.name for path in folder.iterdir()} == {"a"}


@pytest.mark.parametrize("on_timeout", ["keep", "undo"])
async def test_changes_of_a_person_during_a_call_that_times_out_are_named(
    real_session: OpenSession, on_timeout: TimeoutChoice
) -> None:
    session = real_session(policy=AUTO, approver=AllowAll(), on_timeout=on_timeout)
    await write(session, "a")
    notes = here(session) / "notes"
    notes.write_text("before")
    arguments = {"command": "mkdir own; mkfifo own/go; read line < own/go", "timeout": 3_000}
    call = asyncio.create_task(session.call("sandbox_bash", arguments))
    await idle_spans(session, call)
    notes.write_text("by a person")
    result = await call
    assert result.metadata["also_changed"] == {"unclear": ["notes"]}
    assert notes.read_text() == "by a person"
    assert "Undo takes it back" not in result.content, "not without force"
    if on_timeout == "undo":
        assert "could not be taken back" in result.content
    else:
        assert "takes it back with force=True alone" in result.content
    assert (await session.undo()).is_error
    assert not (await session.undo(force=True)).is_error
    assert notes.read_text() == "before"


@each_level
async def test_change_of_the_sandbox_while_its_worker_waits_is_its_own(
    real_session: OpenSession, level: str
) -> None:
    # The attack: the command itself stands still while another process of it makes the change.
    session = real_session(policy=AUTO, level=level, approver=AllowAll())
    await write(session, "a")
    folder = here(session)
    # A FIFO for each of the two times: a reader that comes before a writer has closed it reads its end.
    aside = "(read line < own/aside; : > evil; read line < own/end) & "
    command = f"mkdir own; mkfifo own/go own/aside own/end; {aside}{WAIT}wait; rm own/*"
    call = asyncio.create_task(session.call("sandbox_bash", {"command": command}))
    writers = await idle_spans(session, call)
    with (folder / "own/aside").open("w") as fifo:
        fifo.write("\n")
    await eventually((folder / "evil").exists)
    last = writers.idle_spans[-1]
    await eventually(lambda: writers.idle_spans[-1] > last)
    for name in ("end", "go"):
        with (folder / "own" / name).open("w") as fifo:
            fifo.write("\n")
    result = await call
    assert not result.is_error, result.content
    assert "unclear" not in result.metadata.get("also_changed", {})
    assert not (await session.undo()).is_error
    assert not (folder / "evil").exists()


async def test_long_call_names_what_cannot_be_told_apart(real_session: OpenSession) -> None:
    session = real_session(policy=AUTO)
    await write(session, "a")
    code = f"import time\nends = time.monotonic() + {LONG_CALL_S}\nopen('out', 'w').close()\n"
    result = await session.call("python", {"code": code + "while time.monotonic() < ends: pass"})
    expected = (
        "[Also changed during the call: out. The call did that, or somebody else, which cannot be told "
        "apart: an undo takes it back.]"
    )
    assert result.content.endswith(expected)
    assert result.metadata["also_changed"] == {"unknown": ["out"]}
    assert not (await session.undo()).is_error
    assert not (here(session) / "out").exists()


async def test_short_call_says_nothing_of_its_own_changes(
    real_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LONG_CALL_S == 1, "which README says"
    monkeypatch.setattr("aisotools.session.writers.LONG_CALL_S", HANG_S)  # however busy the machine is
    session = real_session(policy=AUTO)
    assert "also_changed" not in (await write(session, "a")).metadata
    result = await session.call("python", {"code": "open('out', 'w').close()"})
    assert not result.is_error, result.content
    assert (here(session) / "out").exists()
    assert "also_changed" not in result.metadata
