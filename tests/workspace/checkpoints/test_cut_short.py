"""Moves that were cut short, after which a person has worked, or the next process cannot complete them.

The first process ends right before the file `z` is switched, which comes last. The next one is refused that
switch, or what it has to write for it.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace import dirfd
from aisotools.workspace.checkpoints import restore, staging, switching
from aisotools.workspace.checkpoints.scan import ScanLimits
from aisotools.workspace.checkpoints.timeline import Checkpoints
from aisotools.workspace.workspace import TEMPORARY
from tests.waiting import file_times_advance

LIMITS = ScanLimits(total_bytes=1 << 12)
LARGE = bytes(LIMITS.total_bytes + 1)
OF_PERSON = LARGE + b"of a person"

Act = Callable[[Path], object]


class Rig:
    """A workspace in which a call was made."""

    def __init__(self, top: Path, before: Act, call: Act) -> None:
        self.root, self.store = top / "workspace", top / "store"
        self.root.mkdir()
        (self.root / "z").write_text("first")
        before(self.root)
        file_times_advance()
        self.chain = self.open()
        self.chain.begin("1", "tool", "s")
        call(self.root)
        (self.root / "z").write_text("second")
        self.chain.end("1")
        file_times_advance()

    def open(self) -> Checkpoints:
        return Checkpoints(self.root, self.store, limits=LIMITS)

    def cut(self, *, force: bool = False, way: str = "undo", count: int = 1, reverts: bool = False) -> None:
        """Begin a move, or take one back, in a process that ends before `z` is switched."""
        self.chain.close()
        pid = os.fork()
        if pid == 0:
            try:

                def end(source: str, target: str, **options: int) -> None:
                    if target == "z":
                        os.kill(os.getpid(), signal.SIGKILL)
                    dirfd.exchange(source, target, **options)

                chain = self.open()
                if reverts:
                    moved = chain.move("undo", chain.steps[-1:], keeps_replaced=True)
                pytest.MonkeyPatch().setattr(switching, "exchange", end)
                if reverts:
                    chain.revert(moved)
                elif way == "undo":
                    chain.move("undo", chain.steps[: -count - 1 : -1], force=force)
                else:
                    chain.move("redo", chain.undone[-1:])
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        file_times_advance()

    def reopen(self) -> list[str]:
        """Open it in the next process. Return what that says."""
        self.chain = self.open()
        assert not [path.name for path in self.root.iterdir() if path.name.startswith(TEMPORARY)]
        return list(self.chain.notes)

    def call(self) -> None:
        """Make another call."""
        self.chain.begin("next", "tool", "s")
        self.chain.withdraw("next")

    def text(self, name: str) -> str:
        return (self.root / name).read_text()


@contextmanager
def refusing() -> Iterator[None]:
    """Refuse to switch `z`."""

    def refuse(source: str, target: str, **options: int) -> None:
        if target == "z":
            raise PermissionError(errno.EACCES, "Permission denied")
        dirfd.exchange(source, target, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(switching, "exchange", refuse)
        yield


@contextmanager
def full_disk() -> Iterator[None]:
    """Refuse to write any content."""

    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        for module in (restore, staging):
            if hasattr(module, "write_node"):
                patch.setattr(module, "write_node", refuse)
        yield


def write(name: str, data: bytes = b"text") -> Act:
    return lambda root: (root / name).write_bytes(data)


def remove(name: str) -> Act:
    return lambda root: (root / name).unlink()


def append(name: str) -> Act:
    def act(root: Path) -> None:
        with (root / name).open("ab") as file:
            file.write(b"more")

    return act


def make_folder(root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "a").write_text("old")


def replace_folder(root: Path) -> None:
    shutil.rmtree(root / "d")
    (root / "d").write_text("of a person")


def make_socket(root: Path) -> None:
    (root / "a").unlink(missing_ok=True)
    os.mknod(root / "a", stat.S_IFSOCK | 0o600)


def put_large_into_folder(root: Path) -> None:
    (root / "d" / "large").write_bytes(OF_PERSON)


@pytest.mark.parametrize(
    ("before", "call", "person", "name"),
    [
        (write("a"), remove("a"), write("a", OF_PERSON), "a"),
        (write("a"), remove("a"), make_socket, "a"),
        (make_folder, lambda root: shutil.rmtree(root / "d"), put_large_into_folder, "d/large"),
        (write("a", LARGE), append("a"), append("a"), "a"),
        (write("a", LARGE), append("a"), write("a", b"another"), "a"),
        (write("a"), write("a", b"other"), write("a", b"of a person"), "a"),
    ],
    ids=["large file", "socket", "large file in a folder", "log", "log that was begun again", "small file"],
)
def test_undo_that_is_taken_back_leaves_what_a_person_has_put_there(
    tmp_path: Path, before: Act, call: Act, person: Act, name: str
) -> None:
    rig = Rig(tmp_path, before, call)
    rig.cut()
    person(rig.root)
    file_times_advance()
    kind, data = (rig.root / name).lstat(), b""
    if stat.S_ISREG(kind.st_mode):
        data = (rig.root / name).read_bytes()
    with refusing():
        (note,) = rig.reopen()
        rig.call()
    assert "was given up, since this cannot be changed: z (Permission denied). What it had" in note
    assert f"taken back, but for what somebody else has changed: {name} (" in note
    assert (rig.root / name).lstat().st_ino == kind.st_ino
    if data:
        assert (rig.root / name).read_bytes() == data
    assert rig.text("z") == "second"
    assert [step.call_id for step in rig.chain.steps] == ["1"]
    rig.chain.close()


def test_forced_undo_that_is_completed_leaves_what_a_person_has_put_there_since(tmp_path: Path) -> None:
    rig = Rig(tmp_path, lambda _root: None, write("a"))
    rig.cut(force=True)
    write("a", OF_PERSON)(rig.root)
    file_times_advance()
    (note,) = rig.reopen()
    assert note.endswith(
        "completed, but for what somebody else has changed: a (it was changed by somebody else since)."
    )
    assert (rig.root / "a").read_bytes() == OF_PERSON
    assert rig.text("z") == "first"
    rig.chain.close()


IN_FOLDER = pytest.mark.parametrize("call", [write("d/a", b"new"), remove("d/a")], ids=["changed", "removed"])


@IN_FOLDER
def test_file_in_the_place_of_a_folder_is_a_conflict(tmp_path: Path, call: Act) -> None:
    rig = Rig(tmp_path, make_folder, call)
    replace_folder(rig.root)
    file_times_advance()
    moved = rig.chain.move("undo", rig.chain.steps[-1:])
    assert "d" in dict(moved.conflicts)
    assert not moved.done
    assert rig.text("d") == "of a person"
    assert rig.chain.move("undo", rig.chain.steps[-1:], force=True).done
    assert rig.text("d/a") == "old"
    rig.chain.close()


@IN_FOLDER
def test_file_in_the_place_of_a_folder_stays_when_an_undo_is_completed(tmp_path: Path, call: Act) -> None:
    rig = Rig(tmp_path, make_folder, call)
    rig.cut()
    replace_folder(rig.root)
    file_times_advance()
    (note,) = rig.reopen()
    assert "was completed, but for what somebody else has changed: d (" in note
    assert (rig.text("d"), rig.text("z")) == ("of a person", "first")
    rig.call()
    rig.chain.close()


def test_undo_that_meets_a_full_disk_keeps_what_is_stored_nowhere_else(tmp_path: Path) -> None:
    rig = Rig(tmp_path, write("a"), write("a", LARGE))
    rig.cut()
    assert rig.text("a") == "text"
    with full_disk():
        (note,) = rig.reopen()
    assert "since this cannot be changed: z (No space left on device). What it had changed was taken" in note
    assert ((rig.root / "a").read_bytes(), rig.text("z")) == (LARGE, "second")
    rig.call()
    rig.chain.close()


def test_undo_that_cannot_be_taken_back_either_is_completed_as_soon_as_that_is_possible(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, write("a"), write("a", LARGE))
    rig.cut()
    (aside,) = (path for path in rig.root.rglob("*") if path.lstat().st_size == len(LARGE))
    aside.unlink()  # only the undo had it
    with refusing():
        rig.chain = rig.open()
        with pytest.raises(WorkspaceError, match="can still not be completed at: z "):
            rig.chain.begin("next", "tool", "s")
        rig.chain.close()
    (note,) = rig.reopen()
    assert note.endswith("was completed.")
    assert (rig.text("a"), rig.text("z")) == ("text", "first")
    rig.chain.close()


def test_redo_of_a_forced_undo_stays_unfinished_until_it_can_be_completed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, write("a"), write("a", b"of the call"))
    (rig.root / "a").write_text("of a person")
    file_times_advance()
    assert rig.chain.move("undo", rig.chain.steps[-1:], force=True).done
    file_times_advance()
    rig.cut(way="redo")
    with refusing():
        rig.chain = rig.open()
        (note,) = rig.chain.notes
        assert "cannot be completed at: z (Permission denied). No call may change files" in note
        rig.chain.close()
    (note,) = rig.reopen()
    assert note.endswith("was completed.")
    assert (rig.text("a"), rig.text("z")) == ("of a person", "second")
    rig.chain.close()


def test_forced_undo_replaces_a_large_file_in_the_place_of_a_folder_by_all_that_was_in_it(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, make_folder, write("d/a", b"new"))
    shutil.rmtree(rig.root / "d")
    write("d", OF_PERSON)(rig.root)
    file_times_advance()
    assert "d" in dict(rig.chain.move("undo", rig.chain.steps[-1:]).conflicts)
    assert (rig.root / "d").read_bytes() == OF_PERSON
    moved = rig.chain.move("undo", rig.chain.steps[-1:], force=True)
    assert (moved.done, moved.missing) == (True, ())
    assert "d" in dict(moved.conflicts)
    assert rig.text("d/a") == "old"
    rig.chain.close()


@pytest.mark.parametrize(
    "put", [write("d", b"small"), write("d", OF_PERSON), os.mkfifo], ids=["small", "large", "fifo"]
)
def test_forced_undo_replaces_nothing_by_a_folder_in_which_nothing_comes_back(
    tmp_path: Path, put: Act
) -> None:
    def make_large_in_folder(root: Path) -> None:
        (root / "d").mkdir()
        (root / "d" / "large").write_bytes(LARGE)

    rig = Rig(tmp_path, make_large_in_folder, append("d/large"))
    shutil.rmtree(rig.root / "d")
    put(rig.root / "d" if put is os.mkfifo else rig.root)
    file_times_advance()
    there = (rig.root / "d").lstat()
    moved = rig.chain.move("undo", rig.chain.steps[-1:], force=True)
    assert "d/large" in dict(moved.missing)
    assert (rig.root / "d").lstat() == there
    rig.chain.close()


@pytest.mark.parametrize("taken", [1, 2])
def test_stacks_after_a_move_was_left_by_force_are_those_of_the_next_process(
    tmp_path: Path, taken: int
) -> None:
    rig = Rig(tmp_path, write("a"), write("a", LARGE))
    rig.chain.begin("2", "tool", "s")
    (rig.root / "b").write_text("of the second call")
    rig.chain.end("2")
    file_times_advance()
    rig.cut(count=2)
    (aside,) = (path for path in rig.root.rglob("*") if path.lstat().st_size == len(LARGE))
    aside.unlink()
    with refusing():
        rig.chain = rig.open()
        steps = rig.chain.steps[: -taken - 1 : -1]
        rig.chain.move("undo", steps, force=True)
    names = [[step.call_id for step in steps] for steps in (rig.chain.steps, rig.chain.undone)]
    assert names == [[], ["2", "1"]]
    rig.chain.close()
    rig.chain = rig.open()
    assert names == [[step.call_id for step in steps] for steps in (rig.chain.steps, rig.chain.undone)]
    rig.chain.close()


def test_write_of_a_program_to_what_an_undo_has_set_aside_is_not_lost(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, write("a"), write("a", LARGE))
    with (rig.root / "a").open("ab", buffering=0) as file, pytest.MonkeyPatch.context() as patch:

        def write_and_refuse(source: str, target: str, **options: int) -> None:
            if target == "z":
                file.write(b"written meanwhile")
                raise PermissionError(errno.EACCES, "Permission denied")
            dirfd.exchange(source, target, **options)

        patch.setattr(switching, "exchange", write_and_refuse)
        moved = rig.chain.move("undo", rig.chain.steps[-1:])
    assert (moved.done, moved.is_unfinished) == (False, False)
    assert [path for path, _ in moved.stuck] == ["a"], "it is not as it was"
    assert (rig.root / "a").read_bytes() == LARGE + b"written meanwhile"
    assert rig.text("z") == "second"
    rig.call()
    rig.chain.close()


@pytest.mark.parametrize("number", range(12))
def test_folder_that_was_unlocked_for_a_move_that_is_given_up_is_locked_again(
    tmp_path: Path, number: int
) -> None:
    def make_locked_folder(root: Path) -> None:
        make_folder(root)
        (root / "d").chmod(0o500)

    def change(root: Path) -> None:
        (root / "d").chmod(0o700)
        (root / "d" / "a").write_text("new")
        (root / "d").chmod(0o500)

    rig, calls, real = Rig(tmp_path, make_locked_folder, change), [0], os.fchmod
    rig.cut()

    def fail_once(file: int, mode: int) -> None:
        calls[0] += 1
        if calls[0] == number + 1:
            raise OSError(errno.EIO, "Input/output error")
        real(file, mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fchmod", fail_once)
        with suppress(WorkspaceError):  # the store may be what fails
            rig.open().close()
    rig.reopen()
    rig.call()
    assert (rig.root / "d").stat().st_mode & 0o777 == 0o500
    assert (rig.text("d/a"), rig.text("z")) in {("old", "first"), ("new", "second")}
    rig.chain.close()


def test_note_of_a_move_that_was_taken_back_names_what_is_not_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path, write("a"), write("a", LARGE))
    rig.cut(reverts=True)
    (aside,) = (path for path in rig.root.rglob("*") if path.lstat().st_size == len(LARGE))
    aside.unlink()
    (note,) = rig.reopen()
    assert note.endswith("What it had changed was taken back, but for a (it was not kept: it is too large).")
    assert rig.text("z") == "second"
    rig.chain.close()
