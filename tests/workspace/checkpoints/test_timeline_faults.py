"""Every system call of an undo fails in turn, or is the last one of its process.

Each case runs in a process of its own, which is forked, so that nothing else meets the faults: by
interpreters that hold nothing else, since to fork one with all tests in it takes tens of milliseconds.
By default each row has some of its cases, see `points`; the slow tests have them all.
Afterwards the folder is wholly as before or wholly as after, or the answer names each path that is not, with
its state; and the history is whole.

`python -m tests.workspace.checkpoints.test_timeline_faults` runs the whole table, and prints how many cases
each row has, what became of them and how long they took.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints import staging, store, switching
from aisotools.workspace.checkpoints.moves import UndoResult
from aisotools.workspace.checkpoints.scan import RACY_NS
from aisotools.workspace.checkpoints.timeline import Checkpoints
from aisotools.workspace.workspace import TEMPORARY
from tests.points import by_points, points_of
from tests.sandbox.inside import command_of, user_of
from tests.waiting import file_times_advance, wait_until
from tests.workspace.checkpoints.test_timeline_stateful import (
    ACCESS,
    DEFAULT,
    IS_ROOT,
    State,
    access_list,
    has_access_lists,
    make_holes,
    state_of,
)

Act = Literal["undo", "redo", "revert", "open"]
"""What is done: `open` is what the next process does after one that ended in the middle of an undo."""

ENDED_AT = 150
"""The call at which that process ended: when some is switched, and some is not."""

OPENED = "It was opened."
Kind = Literal["once", "from then on", "full", "killed"]
Calls = Literal["changes", "looks"]
"""Which system calls fail: those that change something, or those that only look."""

CHANGES = [
    *("open", "write", "ftruncate", "fdatasync", "fsync", "fchmod", "fchown", "chmod", "chown"),
    *("rename", "exchange", "rename_new", "unlink", "rmdir", "mkdir", "symlink", "mkfifo", "link"),
    *("utime", "setxattr", "removexattr", "ioctl", "syncfs"),
]
LOOKS = [
    *("open", "read", "pread", "lseek", "stat", "fstat", "lstat", "access", "scandir", "listdir"),
    *("readlink", "getxattr", "listxattr"),
]
NEED_SPACE = {"open", "write", "mkdir", "symlink", "mkfifo", "link", "setxattr"}
"""What a full disk refuses."""


@dataclass
class Faults:
    """Makes system calls of this process fail, from the one with a number on."""

    kind: Kind = "once"
    at: int = 1 << 30
    code: int = errno.EIO
    calls: Calls = "changes"
    names: list[str] = field(default_factory=list)
    attributes: dict[int, int] = field(default_factory=dict)
    """How many extended attributes were set, by the inode that has them."""
    free: int = 0
    """How many more can be set on a full disk, since what had as many was removed."""

    def arm(self) -> None:
        for name in LOOKS if self.calls == "looks" else CHANGES:
            for module, attribute in places_of(name):
                setattr(module, attribute, self._failing(name, getattr(module, attribute)))

    def _failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if name == "open" and (self.calls == "looks") == bool(arguments[1] & os.O_CREAT):
                return real(*arguments, **options)
            number = len(self.names)
            self.names.append(name)
            if number >= self.at and self.kind == "killed":
                os._exit(9)
            is_due = number == self.at or (number > self.at and self.kind != "once")
            if name == "rmdir":
                status = os.stat(arguments[0], dir_fd=options.get("dir_fd"), follow_symlinks=False)
                self.free += self.attributes.pop(status.st_ino, 0)
            if name == "setxattr":
                if self.kind == "full" and is_due and self.free:
                    self.free -= 1
                    return real(*arguments, **options)
                inode = os.fstat(arguments[0]).st_ino
                self.attributes[inode] = self.attributes.get(inode, 0) + 1
            if is_due and (self.kind != "full" or name in NEED_SPACE):
                raise OSError(self.code, os.strerror(self.code))
            return real(*arguments, **options)

        return call


def places_of(call: str) -> list[tuple[Any, str]]:
    """Return where a system call can be replaced: each object, and the name of its attribute."""
    # The library of the system is called by what these modules have imported.
    if call == "syncfs":
        return [(module, "flush_file_system") for module in (store, staging)]
    if call in {"exchange", "rename_new"}:
        return [(switching, call)]
    return [(fcntl if call == "ioctl" else os, call)]


def fill(root: Path) -> None:
    """Make what is there before the call."""
    (root / "edited").write_text("old")
    (root / "gone").write_text("gone")
    (root / "gone").chmod(0o640)
    (root / "tree" / "deep").mkdir(parents=True)
    (root / "tree" / "deep" / "file").write_text("in a tree")
    (root / "tree" / "locked").mkdir()
    (root / "tree" / "locked" / "file").write_text("locked")
    (root / "tree" / "locked").chmod(0o500)
    (root / "link").symlink_to("edited")
    (root / "kind").write_text("a file that becomes a folder")
    (root / "folder").mkdir()
    (root / "folder" / "file").write_text("in a folder that becomes a file")
    (root / "mode").write_text("mode")
    (root / "mode").chmod(0o600)
    (root / "modes").mkdir(0o755)
    (root / "shut").mkdir()
    (root / "shut" / "file").write_text("old")
    (root / "shut").chmod(0o500)
    os.mkfifo(root / "fifo", 0o600)
    (root / "twin").write_text("one file")
    os.link(root / "twin", root / "tree" / "twin")
    os.setxattr(root / "twin", "user.mark", b"before")
    os.utime(root / "twin", ns=(0, 1_000_000_007))
    os.setxattr(root / "tree", "user.mark", b"of a folder")
    (root / "tree").chmod(0o3750)
    make_holes(root / "holes", 1 << 17)
    (root / "holes in a tree").mkdir()
    make_holes(root / "holes in a tree" / "file", 0)
    os.link(root / "holes in a tree" / "file", root / "holes in a tree" / "twin")
    if IS_ROOT:
        # As root a file never gets a bit back that lends rights; without it nobody may give files away.
        for number, name in enumerate(("gone", "tree/deep/file", "tree", "modes", "link", "fifo", "given")):
            (root / "given").touch()
            os.chown(root / name, 12345 + number, 23456, follow_symlinks=False)
    else:
        (root / "lends").write_text("old")
        (root / "lends").chmod(0o6755)
    (root / "sticky").mkdir()
    (root / "sticky").chmod(0o1777)
    if has_access_lists(root):
        (root / "listed").write_text("listed")
        os.setxattr(root / "listed", ACCESS, access_list(7))
        os.setxattr(root / "gone", ACCESS, access_list(8))
        (root / "lists").mkdir()
        os.setxattr(root / "lists", ACCESS, access_list(9, 7, owner=7))
        os.setxattr(root / "lists", DEFAULT, access_list(10))
        (root / "lists" / "inherits").write_text("inherits")
    os.utime(root / "modes", ns=(0, 2_000_000_007))
    (root / "temporary").mkdir()


def work(root: Path) -> None:
    """Do what the call does."""
    (root / "edited").write_text("new")
    (root / "gone").unlink()
    (root / "tree" / "locked").chmod(0o700)
    shutil.rmtree(root / "tree")
    os.setxattr(root / "twin", "user.mark", b"after")
    os.link(root / "twin", root / "third")
    os.utime(root / "edited", ns=(0, 3_000_000_007))
    (root / "holes").write_text("none")
    shutil.rmtree(root / "holes in a tree")
    make_holes(root / "new holes", 0, 1 << 16)
    if IS_ROOT:
        os.chown(root / "given", 0, 5)
        os.chown(root / "modes", 4, 0)
    else:
        (root / "lends").write_text("no longer")
        (root / "lends").chmod(0o755)
    (root / "sticky").chmod(0o2775)
    if (root / "lists").exists():
        os.removexattr(root / "listed", ACCESS)
        (root / "lists" / "inherits").unlink()
        os.setxattr(root / "lists", ACCESS, access_list(11, owner=7))
        os.removexattr(root / "lists", DEFAULT)
    (root / "temporary" / "file").touch()
    (root / "temporary" / "file").unlink()
    (root / "link").unlink()
    (root / "link").symlink_to("nowhere")
    (root / "kind").unlink()
    (root / "kind").mkdir()
    (root / "kind" / "file").write_text("inside")
    shutil.rmtree(root / "folder")
    (root / "folder").write_text("a file")
    (root / "mode").chmod(0o644)
    (root / "modes").chmod(0o700)
    (root / "fifo").unlink()
    (root / "shut").chmod(0o700)
    (root / "shut" / "file").write_text("edited")
    (root / "shut").chmod(0o500)
    (root / "new" / "deep").mkdir(parents=True)
    (root / "new" / "deep" / "file").write_text("new")


class Case:
    """A workspace with a call that was made, or made and undone."""

    def __init__(self, top: Path, act: Act) -> None:
        self.act: Act = act
        self.root, self.store = top / "workspace", top / "store"
        self.root.mkdir(parents=True)
        fill(self.root)
        before = state_of(self.root)
        with self.opened() as chain:
            chain.begin("first", "tool", "s")
            (self.root / "earlier").write_text("earlier")
            chain.end("first")
            before = state_of(self.root)
            chain.begin("c", "tool", "s")
            work(self.root)
            chain.end("c")
            after = state_of(self.root)
            if act == "redo":
                chain.move("undo", chain.steps[-1:])
        if act == "open":
            self.act = "undo"
            file_times_advance()  # else it may count as changed just now, and is planned again
            assert self.run(Faults("killed", ENDED_AT)) is None
            assert self.paths_unlike(before), "not yet"
            assert self.paths_unlike(after), "no longer"
            self.act = act
        self.untouched = self.identities()
        self.old, self.new = (before, after) if act == "redo" else (after, before)
        """As it is, and as it would be: of a move that is taken back, before and after that move."""

    def opened(self) -> Any:
        return Opened(self.root, self.store)

    def run(self, faults: Faults) -> UndoResult | str | None:
        """Return the result or the error of the act in another process, or None if that was ended."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                answer, names = self._act(faults)
                with os.fdopen(writing, "wb") as file:
                    pickle.dump((answer, names), file)
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            data = file.read()
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) == 9:
            return None
        answer, faults.names = pickle.loads(data)
        return answer  # type: ignore[no-any-return]  # as it was pickled

    def _act(self, faults: Faults) -> tuple[UndoResult | str, list[str]]:
        if self.act == "open":
            faults.arm()
            try:
                Checkpoints(self.root, self.store)
            except WorkspaceError as error:
                return str(error), faults.names
            return OPENED, faults.names
        chain = Checkpoints(self.root, self.store)
        moved = None
        if self.act == "revert":
            moved = chain.move("undo", chain.steps[-1:])
            # What was written a moment ago is read and synced again: how much that is depends on the time.
            written_ns = time.time_ns()
            wait_until(lambda: time.time_ns() > written_ns + 2 * RACY_NS)
            chain.snapshot()
            chain.sync()
        faults.arm()
        try:
            if moved is not None:
                return chain.revert(moved), faults.names
            if self.act == "undo":
                return chain.move("undo", chain.steps[-1:]), faults.names
            return chain.move("redo", chain.undone[-1:]), faults.names
        except WorkspaceError as error:
            return str(error), faults.names

    def identities(self) -> dict[str, tuple[int, int]]:
        """Return the inode and the change time of whatever is in the workspace."""
        found = {}
        for path in self.root.rglob("*"):
            status = path.lstat()
            found[str(path.relative_to(self.root))] = status.st_ino, status.st_ctime_ns
        return found

    def paths_unlike(self, state: State) -> set[str]:
        now = state_of(self.root)
        unlike = {path for path in now.keys() | state.keys() if now.get(path) != state.get(path)}
        # A partial file that could not even be removed: the next move does that, or the next process.
        return {path for path in unlike if not any(name.startswith(TEMPORARY) for name in path.split("/"))}


class Opened:
    """A chain that is closed in the end."""

    def __init__(self, root: Path, store: Path) -> None:
        self.chain = Checkpoints(root, store)

    def __enter__(self) -> Checkpoints:
        return self.chain

    def __exit__(self, *_: object) -> None:
        self.chain.close()


def check_answer(case: Case, answer: UndoResult | str, calls: Calls = "changes") -> None:
    """Check that an answer is true of the folder as it is now.

    Where something could not be looked at, a folder that is named stands for all in it.
    """
    start, end = (case.new, case.old) if case.act == "revert" else (case.old, case.new)
    if isinstance(answer, str):
        assert not case.paths_unlike(start), "an error says that nothing was changed"
    elif answer.done:
        named = {path for path, _ in answer.missing}
        named |= {
            why.split("'")[1] for _, why in answer.missing if "could not be put back to its place" in why
        }
        unread = {path for path, why in answer.others if why.startswith("what is there cannot be compared: ")}
        named |= unread
        named |= {path.rpartition("/")[0] for path, why in answer.missing if "the folder around it" in why}
        # A file that could not be put to its place is no other name of the ones that could.
        named |= {path for path, entry in end.items() if entry.first_name in named}
        # A folder in which something had to stay has another time.
        held = named if calls == "looks" else unread
        unlike = case.paths_unlike(end) - {folder for path in held for folder in folders_around(path)}
        if calls == "looks":
            unlike = {path for path in unlike if named.isdisjoint({"", *folders_around(path)})}
        assert unlike <= named, "whatever is not as it should be is named"
    elif answer.conflicts:
        assert not case.paths_unlike(start)
        causes = {os.strerror(code) for code in (errno.EIO, errno.EACCES, errno.EMFILE)}
        assert {why for _, why in answer.conflicts} <= {
            f"what is there cannot be compared: it cannot be read: {cause}" for cause in causes
        }
    else:
        assert answer.missing, "it says what failed"
        assert case.paths_unlike(start) == {path for path, _ in answer.stuck}


def folders_around(path: str) -> list[str]:
    return [path[:end] for end, letter in enumerate(path) if letter == "/"]


def check_history(case: Case) -> None:
    """Check that the next process finds one of the two states, and can move between them."""
    # What could not be put back to its place is a file of a person's from then on, which a move would spare.
    touched = set()
    for saved in [*case.root.rglob("*.saved-*")]:
        saved.unlink()
        touched.add(str(saved.parent.relative_to(case.root)))
    with case.opened() as chain:
        assert not list(case.root.rglob(".aisotools-*"))
        ids = [step.call_id for step in [*chain.steps, *chain.undone[::-1]]]
        assert ids == ["first", "c"]
        # What was named may still have to be brought to the state that the history tells of.
        if "c" in [step.call_id for step in chain.steps]:
            moves = ["undo", "redo", "undo"]
        else:
            moves = ["redo", "undo", "redo"]
        before, after = (case.old, case.new) if case.act == "redo" else (case.new, case.old)
        for way in moves:
            source = chain.steps if way == "undo" else chain.undone
            moved = chain.move("undo" if way == "undo" else "redo", source[-1:])
            assert (moved.done, moved.conflicts, moved.missing) == (True, (), ()), way
            assert not case.paths_unlike(before if way == "undo" else after) - touched, way


def remove(folder: Path) -> None:
    """Remove a folder, also as a user whom the modes of what is in it forbid that."""
    for inner, _, _ in os.walk(folder):
        Path(inner).chmod(0o700)
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Row:
    """One row of the table: what is done, and which fault it meets at each of its calls.

    Attributes:
        act: What is done.
        kind: The fault.
        code: The number of the error.
        calls: Which calls fail.
        is_untouched: Check that a fault leaves everything as it was, down to the change times.
        part: The fault is tried at one of so many calls.
    """

    act: Act
    kind: Kind
    code: int = 0
    calls: Calls = "changes"
    is_untouched: bool = False
    part: int = 1

    def __str__(self) -> str:
        error = f" {errno.errorcode[self.code]}" if self.code else ""
        return f"{self.act}, {self.kind}{error}, {'untouched' if self.is_untouched else self.calls}"

    def check(self, folder: Path, share: int, shares: int) -> tuple[Counter[str], int]:
        """Check one of so many shares of the cases, until the act meets no fault.

        The fault of each case lies later than that of the case before it, which is in another share.

        Returns:
            How many came out in which way, and how many calls the act makes that meets no fault.
        """
        outcomes: Counter[str] = Counter()
        for number in itertools.islice(points_of(str(self), self.part), share, None, shares):
            case = Case(folder / str(number), self.act)
            faults = Faults(self.kind, number, self.code, self.calls)
            answer = case.run(faults)
            if answer is not None and len(faults.names) <= number:
                return outcomes, len(faults.names)
            outcomes[self._check_case(case, answer)] += 1
            remove(folder / str(number))
        raise AssertionError("there is always another point")

    def _check_case(self, case: Case, answer: UndoResult | str | None) -> str:
        """Check what became of one case. Return how it came out."""
        if self.kind == "killed":
            assert answer is None
            outcome = check_ended(case)
        else:
            assert answer is not None
            outcome = outcome_of(answer)
            if self.is_untouched:
                check_untouched(case, answer)
            elif self.act != "open":
                check_answer(case, answer, self.calls)
        if not self.is_untouched:
            check_history(case)
        return outcome


def outcome_of(answer: UndoResult | str) -> str:
    """Return in a word or two what an answer says."""
    if isinstance(answer, str):
        return "opened" if answer == OPENED else "an error"
    if answer.conflicts:
        return "a conflict"
    if answer.done:
        return "done, with exceptions" if answer.missing else "done"
    return "not wholly taken back" if answer.stuck else "given up or taken back"


def check_ended(case: Case) -> str:
    """Check that a process that was ended has left the one state or the other. Return which."""
    with case.opened():
        if not case.paths_unlike(case.new):
            return "completed"
        assert not case.paths_unlike(case.old)
        return "as before"


def check_untouched(case: Case, answer: UndoResult | str) -> None:
    """Check that all is done, or not even a change time is another one."""
    if isinstance(answer, UndoResult) and answer.done:
        assert (answer.missing, case.paths_unlike(case.new)) == ((), set())
    else:
        assert case.identities() == case.untouched


SHARES = max(2, os.cpu_count() or 1) + 1
"""Interpreters that check the cases of a row side by side: a third of the time each waits for the disk."""


def check_row(folder: Path, row: Row, *, uid: int | None = None) -> Counter[str]:
    """Have interpreters of their own check all cases of a row, as another user if there is a `uid`.

    Returns:
        How many cases came out in which way, which is printed as well.
    """
    began_s = time.monotonic()
    shares = SHARES if row.part == 1 else 1  # to start another interpreter takes as long as some cases
    module, root = "tests.workspace.checkpoints.test_timeline_faults", Path(__file__).resolve().parents[3]
    running = []
    for share in range(shares):
        argv = [sys.executable, "-B", "-m", module, str(folder), json.dumps([share, shares, *astuple(row)])]
        command, options = command_of(argv, uid)
        running.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root, **options
            )
        )
    outcomes: Counter[str] = Counter()
    counts: set[int] = set()
    failures = []
    for process in running:
        output, errors = process.communicate()
        if process.returncode or errors:
            failures.append(errors or f"It ended with {process.returncode}.")
        else:
            checked, count = json.loads(output)
            outcomes.update(checked)
            counts.add(count)
    took_s = time.monotonic() - began_s
    print(f"{row}: {outcomes.total()} cases, {took_s:.1f} s: {dict(outcomes)}", flush=True)
    assert not failures, "\n".join(failures)
    # Race: what is written while a move is made may be looked at again, so there may be some more.
    calls = min(counts)
    assert max(counts) - calls < calls // 20
    assert calls > 100, "an undo of this tree takes many calls"
    assert outcomes.total() >= calls // row.part, "one out of so many was tried"
    return outcomes


ACTS: list[Act] = ["undo", "redo", "revert"]
FAULTS: list[tuple[Kind, int]] = [
    ("once", errno.EIO),
    ("once", errno.EACCES),
    ("from then on", errno.EIO),
    ("from then on", errno.EACCES),
    ("full", errno.ENOSPC),
]
OF_LOOKS: list[tuple[Kind, int]] = [("once", errno.EIO), ("once", errno.EMFILE), ("from then on", errno.EIO)]

OF_OPENS: list[tuple[Kind, int, Calls]] = [
    ("killed", 0, "changes"),
    ("once", errno.EIO, "changes"),
    ("full", errno.ENOSPC, "changes"),
    ("once", errno.EIO, "looks"),
]

pytestmark = pytest.mark.timeout(600)


@pytest.mark.sample(2)
@by_points(30)
@pytest.mark.parametrize("act", ACTS)
def test_a_process_that_ends_at_any_call_leaves_the_one_or_the_other_state(
    tmp_path: Path, act: Act, part: int
) -> None:
    outcomes = check_row(tmp_path, Row(act, "killed", part=part))
    assert set(outcomes) == {"as before", "completed"}


@pytest.mark.sample(5)
@by_points(40)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(("kind", "code"), FAULTS)
def test_a_call_that_fails_changes_nothing_or_is_named(
    tmp_path: Path, act: Act, kind: Kind, code: int, part: int
) -> None:
    check_row(tmp_path, Row(act, kind, code, part=part))


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(("kind", "code"), OF_LOOKS)
def test_a_look_that_fails_changes_nothing_or_is_named(
    tmp_path: Path, act: Act, kind: Kind, code: int
) -> None:
    check_row(tmp_path, Row(act, kind, code, "looks"))


@pytest.mark.sample(2)
@by_points(40)
@pytest.mark.parametrize(("kind", "code", "calls"), OF_OPENS)
def test_a_fault_while_an_undo_is_completed_leaves_that_to_the_next_process(
    tmp_path: Path, kind: Kind, code: int, calls: Calls, part: int
) -> None:
    """It loses nothing of the history, whether this process was opened or refused."""
    outcomes = check_row(tmp_path, Row("open", kind, code, calls, part=part))
    # Who was killed is followed by one that completes it; any other fault is met by a refusal at some calls.
    assert set(outcomes) == {"completed"} if kind == "killed" else part > 1 or len(outcomes) > 1


def test_undo_is_not_completed_while_what_it_had_taken_out_cannot_be_looked_at(tmp_path: Path) -> None:
    case = Case(tmp_path / "case", "open")
    (staging,) = (path for path in case.root.iterdir() if path.name.startswith(TEMPORARY) and path.is_dir())
    aside = tmp_path / "aside"
    staging.rename(aside)
    staging.write_text("no folder")
    before = state_of(case.root)
    with pytest.raises(WorkspaceError, match=r"cannot be looked at \(Not a directory\)\. Try again"):
        Checkpoints(case.root, case.store)
    assert state_of(case.root) == before
    staging.unlink()
    aside.rename(staging)
    with case.opened():
        assert not case.paths_unlike(case.new)


@by_points(15)
@pytest.mark.parametrize("act", ["undo", "redo"])
def test_a_full_disk_is_met_before_the_first_change(tmp_path: Path, act: Act, part: int) -> None:
    outcomes = check_row(tmp_path, Row(act, "full", errno.ENOSPC, is_untouched=True, part=part))
    assert outcomes["done"]
    assert (outcomes.total() - outcomes["done"]) * part > 10, "what is staged takes many calls"


@pytest.mark.skipif(not IS_ROOT, reason="the tests above are run as a plain user already")
@pytest.mark.sample(3)
@by_points(40)
@pytest.mark.parametrize(("kind", "code"), [("killed", 0), ("once", errno.EIO), ("full", errno.ENOSPC)])
@pytest.mark.parametrize("act", ["undo", "revert", "redo"])
def test_all_of_this_holds_for_a_plain_user_whose_bits_lend_rights(
    act: Act, kind: Kind, code: int, part: int
) -> None:
    """As root such a bit of a file never comes back."""
    uid = user_of("plain")
    with tempfile.TemporaryDirectory() as place:  # another user cannot come to the usual one
        os.chown(place, uid or 0, -1)
        check_row(Path(place), Row(act, kind, code, part=part), uid=uid)


def test_table_has_each_kind_of_attribute(tmp_path: Path) -> None:
    """What this machine cannot make is skipped with the reason."""
    fill(tmp_path)
    state = state_of(tmp_path)
    entries = state.values()
    assert any(entry.has_holes for entry in entries)
    assert any(entry.first_name != path for path, entry in state.items())
    assert any(name == "user.mark" for entry in entries for name, _ in entry.xattrs)
    assert {entry.mode & 0o7000 for entry in entries} >= {0o1000, 0o3000} | (set() if IS_ROOT else {0o6000})
    if IS_ROOT:
        assert len({entry.owner for entry in entries}) > 5
    if not has_access_lists(tmp_path):
        pytest.skip("this file system has no access control lists")
    assert {name for entry in entries for name, _ in entry.xattrs} == {"user.mark", ACCESS, DEFAULT}


def main(arguments: list[str]) -> None:
    """Check a share of the cases of one row, or all rows without arguments."""
    if arguments:
        # Nothing here is about what the power takes away, and each case would wait a hundred times.
        for call in ("fsync", "fdatasync", "syncfs"):
            for module, attribute in places_of(call):
                setattr(module, attribute, lambda _file: None)
        share, shares, *values = json.loads(arguments[1])
        print(json.dumps(Row(*values).check(Path(arguments[0]), share, shares)))
        return
    rows = [Row(act, "killed") for act in ACTS]
    rows += [Row(act, kind, code) for kind, code in FAULTS for act in ACTS]
    rows += [Row(act, "full", errno.ENOSPC, is_untouched=True) for act in ACTS[:2]]
    rows += [Row(act, kind, code, "looks") for kind, code in OF_LOOKS for act in ACTS]
    rows += [Row("open", kind, code, calls) for kind, code, calls in OF_OPENS]
    for number, row in enumerate(rows, 1):
        with tempfile.TemporaryDirectory() as folder:
            print(f"{number} of {len(rows)}: ", end="", flush=True)
            check_row(Path(folder), row)


if __name__ == "__main__":
    main(sys.argv[1:])
