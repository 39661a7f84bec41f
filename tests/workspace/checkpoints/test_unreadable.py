"""Undo of calls that leave files and folders which not even their owner may read, with one name or several.

Of such a file only the stamp is known. All of this is run as a plain user, since root may read everything.

`python -m tests.workspace.checkpoints.test_unreadable FOLDER changes 1` runs all cases of one row in a
folder, and prints what is wrong.
"""

from __future__ import annotations

import errno
import itertools
import os
import pickle
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace import dirfd
from aisotools.workspace.checkpoints import switching
from aisotools.workspace.checkpoints.moves import UndoResult
from aisotools.workspace.checkpoints.scan import ScanLimits
from aisotools.workspace.checkpoints.timeline import Checkpoints
from aisotools.workspace.workspace import TEMPORARY
from tests.points import by_points, points_of
from tests.sandbox.inside import command_of, user_of
from tests.waiting import file_times_advance
from tests.workspace.checkpoints.test_timeline_faults import Faults, Kind, folders_around, places_of

LAYOUTS: dict[str, tuple[str, ...]] = {
    "one name": ("f",),
    "two names in one folder": ("f", "g"),
    "two names in two folders": ("f", "z/g"),
    "two names in two inner folders": ("y/f", "z/g"),
    "three names": ("y/f", "y/g", "z/h"),
}
MODES = (0o000, 0o200, 0o100, 0o444, 0o600)

Names = tuple[str, ...]


def chmod(root: Path, names: Names, mode: int) -> None:
    (root / names[0]).chmod(mode)


def rewrite(root: Path, names: Names, mode: int) -> None:
    (root / names[0]).write_text("new content")
    chmod(root, names, mode)


def replace_one(root: Path, names: Names, mode: int) -> None:
    (root / "temporary").write_text("another file")
    (root / "temporary").rename(root / names[0])
    chmod(root, names, mode)


def unlink_last(root: Path, names: Names, mode: int) -> None:
    chmod(root, names, mode)
    (root / names[-1]).unlink()


def unlink_first(root: Path, names: Names, mode: int) -> None:
    chmod(root, names, mode)
    (root / names[0]).unlink()


def add_name(root: Path, names: Names, mode: int) -> None:
    os.link(root / names[0], root / "z" / "added")
    os.link(root / names[0], root / "added")
    chmod(root, names, mode)


def rename(root: Path, names: Names, mode: int) -> None:
    (root / names[-1]).rename(root / "y" / "renamed")
    (root / "y" / "renamed").chmod(mode)


def swap_names(root: Path, names: Names, mode: int) -> None:
    (root / "other").rename(root / "kept aside")
    os.link(root / names[0], root / "other")
    (root / "kept aside").rename(root / names[0])
    (root / "other").chmod(mode)


def make_unlike(root: Path, names: Names, mode: int) -> None:
    for name in names:
        data = (root / name).read_bytes()
        (root / name).unlink()
        (root / name).write_bytes(data)
        (root / name).chmod(mode)


def join_other(root: Path, names: Names, mode: int) -> None:
    (root / "other").unlink()
    os.link(root / names[0], root / "other")
    chmod(root, names, mode)


def lock_folder(root: Path, names: Names, mode: int) -> None:
    (root / "z").chmod(mode)
    if len(Path(names[0]).parts) > 1:
        (root / names[0]).parent.chmod(mode)


def lock_both(root: Path, names: Names, mode: int) -> None:
    chmod(root, names, mode)
    (root / "z").chmod(mode)


def make_pair(root: Path, names: Names, mode: int) -> None:
    (root / "y" / "new").write_text("new")
    os.link(root / "y" / "new", root / "new")
    (root / "new").chmod(mode)


def make_folder(root: Path, names: Names, mode: int) -> None:
    (root / names[-1]).unlink()
    (root / names[-1]).mkdir()
    (root / names[-1]).chmod(mode)


def fill_folder(root: Path, names: Names, mode: int) -> None:
    (root / names[-1]).unlink()
    (root / names[-1]).mkdir()
    (root / names[-1] / "inner").write_text("inner")
    (root / names[-1] / "inner").chmod(mode)


def fill_folder_and_lock(root: Path, names: Names, mode: int) -> None:
    """What is switched before the folder, which has to stay, cannot be read."""
    if len(names) > 1:
        fill_folder(root, names, mode)
    chmod(root, names[:1], mode)
    (root / "other").chmod(mode)


def become_locked_folder(root: Path, names: Names, mode: int) -> None:
    """A folder of which nobody can tell what it holds is where a file was, so that no undo puts it back."""
    (root / names[-1]).unlink()
    (root / names[-1]).mkdir()
    (root / names[-1] / "inner").write_text("inner")
    (root / names[-1]).chmod(mode)
    (root / "other").write_bytes(b"x" * (TOO_LARGE + 1))


def become_locked_beside_locked(root: Path, names: Names, mode: int) -> None:
    """Another folder could be brought back, but not locked again with what is in it."""
    (root / "y" / "inner").write_text("inner")
    (root / "y").chmod(mode)
    become_locked_folder(root, names, mode)


def take_folder(root: Path, names: Names, mode: int) -> None:
    shutil.rmtree(root / "z")
    (root / "z").write_text("a file now")
    os.link(root / "z", root / "twin of z")
    (root / "z").chmod(mode)


def move_folder(root: Path, names: Names, mode: int) -> None:
    chmod(root, names, mode)
    (root / "z").rename(root / "w")


def make_special(root: Path, names: Names, mode: int) -> None:
    (root / names[0]).unlink()
    os.mknod(root / names[0], stat.S_IFSOCK | mode)
    if len(names) > 1:
        (root / names[1]).unlink()
        os.link(root / names[0], root / names[1])


def grow(root: Path, names: Names, mode: int) -> None:
    """What is too large is not stored either."""
    (root / names[0]).write_bytes(b"x" * (TOO_LARGE + 1))
    chmod(root, names, mode)


Change = Callable[[Path, Names, int], None]
CHANGES: tuple[Change, ...] = (
    *(chmod, rewrite, replace_one, unlink_last, unlink_first, add_name, rename, swap_names, make_unlike),
    *(
        join_other,
        lock_folder,
        lock_both,
        make_pair,
        make_folder,
        fill_folder,
        fill_folder_and_lock,
        take_folder,
        move_folder,
    ),
    *(make_special, grow, become_locked_folder, become_locked_beside_locked),
)
TOO_LARGE = 1 << 16


@dataclass(frozen=True)
class Case:
    change: Change
    layout: str
    mode: int

    def __str__(self) -> str:
        return f"{self.change.__name__}, {self.layout}, mode {self.mode:o}"


CASES = [Case(*values) for values in itertools.product(CHANGES, LAYOUTS, MODES)]

State = dict[str, tuple[Any, ...]]


def look(root: Path, *, unlocks: bool = True) -> State:
    """Everything in a folder but partial files.

    What its owner may not read is made readable for a moment, which changes its stamp, or left as it is.
    """
    found: State = {}
    first_names: dict[int, str] = {}

    def visit(folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            if path.name.startswith(TEMPORARY):
                continue
            key, status = str(path.relative_to(root)), path.lstat()
            data = b""
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                if unlocks:
                    path.chmod(status.st_mode | 0o700)
                data = b"of %d bytes" % status.st_size
                with suppress(PermissionError):
                    if stat.S_ISREG(status.st_mode):
                        data = path.read_bytes()
                    else:
                        data = b""
                        visit(path)
                if unlocks:
                    path.chmod(status.st_mode)
            first = key if stat.S_ISDIR(status.st_mode) else first_names.setdefault(status.st_ino, key)
            found[key] = status.st_mode, data, status.st_mtime_ns, first, status.st_ino

    visit(root)
    return found


def unlike(one: State, other: State) -> list[str]:
    return sorted(key for key in one.keys() | other.keys() if one.get(key, ())[:4] != other.get(key, ())[:4])


class Rig:
    """A workspace in which the call of a case was made."""

    def __init__(self, top: Path, case: Case) -> None:
        self.root, self.store, self.names = top / "workspace", top / "store", LAYOUTS[case.layout]
        self.limits = ScanLimits(total_bytes=TOO_LARGE)
        for name in ("y", "z"):
            (self.root / name).mkdir(parents=True)
        (self.root / "other").write_text("other")
        (self.root / "a edited").write_text("old")
        (self.root / "z edited").write_text("old")
        (self.root / self.names[0]).write_text("12345")
        for name in self.names[1:]:
            os.link(self.root / self.names[0], self.root / name)
        for number, path in enumerate(sorted(self.root.rglob("*"))):
            os.utime(path, ns=(0, (number + 1) * 1_000_000_007))
        self.old = look(self.root)
        self.chain = self.open()
        self.chain.begin("c", "tool", "s")
        case.change(self.root, self.names, case.mode)
        for name in ("a edited", "z edited"):
            (self.root / name).write_text("new")
        self.edited = (self.root / "z edited").stat()
        self.new = look(self.root)
        self.unstored = {path for path, (mode, *_) in self.new.items() if not mode & stat.S_IRUSR}
        self.chain.end("c")

    def open(self) -> Checkpoints:
        return Checkpoints(self.root, self.store, limits=self.limits)

    def undo(self, **options: Any) -> UndoResult:
        return self.chain.move("undo", self.chain.steps[-1:], **options)

    def run(self, faults: Faults) -> UndoResult | str | None:
        """Return the result or the error of an undo in another process, or None if that was ended."""
        self.chain.close()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                answer: UndoResult | str
                self.chain = self.open()
                faults.arm()
                try:
                    answer = self.undo()
                except WorkspaceError as error:
                    answer = str(error)
                with os.fdopen(writing, "wb") as file:
                    pickle.dump((answer, faults.names), file)
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            data = file.read()
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9:
            return None
        answer, faults.names = pickle.loads(data)
        return answer


def problem_of(rig: Rig, answer: UndoResult | str) -> str:
    """Return what is wrong after an undo; empty if all is as before the call, or as it was, or is named."""
    now = look(rig.root)
    if isinstance(answer, str) or not answer.done:
        named = set() if isinstance(answer, str) else {path for path, _ in answer.stuck}
        paths = unlike(rig.new, now)
        return (
            f"refused with {answer}, and these differ: {paths}" if named.symmetric_difference(paths) else ""
        )
    named = {path for path, _ in answer.missing}
    if any(why.startswith("not all of it was done, and what was") for _, why in answer.missing):
        return ""
    named |= {path.rpartition("/")[0] for path in named}
    # A file that could not be put to its place is no other name of the ones that could.
    named |= {path for path, entry in rig.old.items() if entry[3] in named}
    # Nor can anybody say what is in a folder that stays and that nobody may read.
    locked = {path for path in named if path in now and now[path][0] & 0o500 != 0o500}
    paths = [
        path for path in unlike(rig.old, now) if path not in named and locked.isdisjoint(folders_around(path))
    ]
    return f"done, and these differ, which are not named: {paths}" if paths else ""


def check(top: Path, case: Case) -> str:
    """Undo the call of a case. Return what is wrong; empty for nothing."""
    rig = Rig(top, case)
    moved = rig.undo()
    if problem := problem_of(rig, moved):
        return problem
    if not moved.done:
        file_times_advance()  # else what was looked at counts as changed just now
        with suppress(WorkspaceError):
            rig.chain.begin("next", "tool", "s")
            rig.chain.end("next")
            moved = rig.chain.move("undo", rig.chain.steps[-2:][::-1], force=True)
        if not moved.done:
            return "what is as it was before a refusal keeps other calls from running"
        if problem := problem_of(rig, moved):
            return f"by force: {problem}"
    rig.chain.close()
    return ""


def check_save(top: Path, case: Case, patch: pytest.MonkeyPatch) -> str:
    """Let a person save a file in the middle of an undo, and undo again. Return what is wrong."""
    rig, real = Rig(top, case), dirfd.exchange
    before = look(rig.root, unlocks=False)
    file_times_advance()
    exchanged = []

    def exchange(*arguments: Any, **options: Any) -> None:
        exchanged.append(arguments)
        if len(exchanged) == 3:
            (rig.root / "z edited").write_text("saved")
        real(*arguments, **options)

    with patch.context() as context:
        context.setattr(switching, "exchange", exchange)
        moved = rig.undo()
    if moved.done or [path for path, _ in moved.conflicts] != ["z edited"]:
        return f"no conflict alone: {moved}"
    if (paths := unlike(before, look(rig.root, unlocks=False))) != ["z edited"]:
        return f"these differ: {paths}"
    (rig.root / "z edited").write_text("new")
    os.utime(rig.root / "z edited", ns=(0, rig.edited.st_mtime_ns))
    moved = rig.undo()
    rig.chain.close()
    return (
        problem_of(rig, moved)
        if moved.done
        else f"the next undo was refused: {moved.conflicts} {moved.missing}"
    )


def next_call_problem(rig: Rig) -> str:
    """Return what keeps the next call from running, or is left of an undo that was cut short."""
    try:
        rig.chain.begin("next", "tool", "s")
    except WorkspaceError as error:
        return f"no call can run: {error}"
    rig.chain.withdraw("next")
    left = [path.name for path in rig.root.iterdir() if path.name.startswith(TEMPORARY)]
    return f"{left} is left" if left else ""


def check_faults(top: Path, case: Case, kind: Kind, code: int, part: int) -> list[str]:
    """Let an undo fail or end at each of its system calls. Return what is wrong."""
    problems = []
    for number in points_of(f"{case} {kind}", part):
        rig = Rig(top / str(number), case)
        faults = Faults(kind, number, code)
        answer = rig.run(faults)
        if answer is not None and len(faults.names) <= number:
            assert len(faults.names) > 40, "so many calls are tried"
            break
        problem = "" if answer is None else problem_of(rig, answer)
        rig.chain = rig.open()
        if answer is None:
            now = look(rig.root)
            # A new one that cannot be read stays where nobody forces the undo.
            paths = unlike(now, rig.old) if unlike(now, rig.new) else []
            paths = [path for path in paths if path in rig.old or path not in rig.unstored]
            problem = f"ended, and completed but for {paths}: {rig.chain.notes}" if paths else ""
            problem = problem or next_call_problem(rig)
        if not problem and rig.chain.steps:
            file_times_advance()
            moved = rig.undo(force=True)
            problem = problem_of(rig, moved)
        if left := [path.name for path in rig.root.iterdir() if path.name.startswith(TEMPORARY)]:
            problem = problem or f"{left} is left"
        if problem:
            problems.append(f"{case} at call {number}: {problem}")
        rig.chain.close()
    return problems


FAULTS: dict[str, tuple[Kind, int]] = {
    "killed": ("killed", 0),
    "one call fails": ("once", errno.EIO),
    "all calls fail": ("from then on", errno.EIO),
}
FAULTY = [
    Case(chmod, "two names in two folders", 0o200),
    Case(rewrite, "three names", 0),
    Case(make_special, "two names in one folder", 0o644),
    Case(grow, "two names in two inner folders", 0o644),
    Case(fill_folder_and_lock, "two names in two folders", 0),
    Case(take_folder, "one name", 0),
]
REFUSED = [
    Case(become_locked_folder, "one name", 0),
    Case(become_locked_folder, "two names in two folders", 0),
    Case(become_locked_beside_locked, "one name", 0),
]
SAVED = [*(Case(chmod, layout, 0) for layout in LAYOUTS), *FAULTY[1:4]]


@by_points(4)
@pytest.mark.timeout(300)
def test_undo_brings_back_all_or_says_what_stays_whatever_a_call_makes_unreadable(part: int) -> None:
    assert run_as_plain_user("changes", part) == ""


def test_undo_that_meets_a_save_takes_back_what_is_not_stored_as_well() -> None:
    assert run_as_plain_user("saves") == ""


@by_points(12)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
def test_undo_of_what_is_not_stored_that_fails_or_ends_anywhere_is_whole_or_says_what_is_not(
    fault: str, part: int
) -> None:
    assert run_as_plain_user(fault, part) == ""


def run_as_plain_user(what: str, part: int = 1) -> str:
    """Run one row of cases in a process of its own. Return what is wrong."""
    uid = user_of("plain")
    with tempfile.TemporaryDirectory() as place:  # another user cannot come to the usual one
        os.chown(place, -1 if uid is None else uid, -1)
        argv = [sys.executable, "-B", "-m", "tests.workspace.checkpoints.test_unreadable", place, what]
        command, options = command_of([*argv, str(part)], uid)
        root = Path(__file__).resolve().parents[3]
        done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False, **options)
    return f"{done.stdout}{done.stderr}"


def main(top: Path, what: str, part: int) -> None:
    """Run one row of cases in a folder and print what is wrong."""
    # Nothing here is about what the power takes away.
    for call in ("fsync", "fdatasync", "syncfs"):
        for module, attribute in places_of(call):
            setattr(module, attribute, lambda _file: None)
    if what == "changes":
        for number in itertools.takewhile(len(CASES).__gt__, points_of(what, part)):
            if problem := check(top / str(number), CASES[number]):
                print(f"{CASES[number]}: {problem}")
    elif what == "saves":
        with pytest.MonkeyPatch.context() as patch:
            for number, case in enumerate(SAVED):
                if problem := check_save(top / str(number), case, patch):
                    print(f"{case}: {problem}")
    else:
        # What is refused anyway cannot fail as well and be as before.
        for number, case in enumerate([*FAULTY, *REFUSED] if what == "killed" else FAULTY):
            for problem in check_faults(top / str(number), case, *FAULTS[what], part):
                print(problem)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
