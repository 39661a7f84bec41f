"""Undo, redo and revert of calls between which a path is what is not stored: a large file, or a socket.

Each case is a path that is three things in turn, with two calls between them.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from aisotools.workspace import dirfd
from aisotools.workspace.checkpoints import switching
from aisotools.workspace.checkpoints.moves import UndoResult
from aisotools.workspace.checkpoints.scan import ScanLimits
from aisotools.workspace.checkpoints.timeline import Checkpoints
from aisotools.workspace.workspace import TEMPORARY
from tests.points import by_points, points_of
from tests.waiting import file_times_advance
from tests.workspace.checkpoints.test_timeline_faults import Faults, folders_around

LIMITS = ScanLimits(total_bytes=1 << 12)
LARGE = bytes(LIMITS.total_bytes + 1)

State = dict[str, object]
"""What is in a folder: content, target or kind by path."""


def make_folder(path: Path) -> None:
    path.mkdir()
    (path / "a").write_text("one")


def make_other_folder(path: Path) -> None:
    path.mkdir()
    (path / "a").write_text("another")
    (path / "b").write_text("two")
    (path / "c" / "d").mkdir(parents=True)
    (path / "c" / "d" / "e").write_text("three")


def make_large_inside(path: Path) -> None:
    path.mkdir()
    (path / "a").write_bytes(LARGE)


KINDS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _path: None,
    "file": lambda path: path.write_text("small"),
    "link": lambda path: path.symlink_to("beside"),
    "folder": make_folder,
    "other folder": make_other_folder,
    "folder with large file": make_large_inside,
    "large file": lambda path: path.write_bytes(LARGE),
    "other large file": lambda path: path.write_bytes(LARGE + b"other"),
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o644),
}
STORED = {"nothing", "file", "link", "folder", "other folder"}


def state_of(root: Path) -> State:
    state: State = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            state[name] = path.readlink()
        elif path.is_file():
            state[name] = path.read_bytes()
        else:
            state[name] = "folder" if path.is_dir() else "socket"
    return state


class Case:
    """A workspace in which a path was three things in turn."""

    def __init__(self, top: Path, kinds: tuple[str, str, str]) -> None:
        self.kinds, self.root, self.states = kinds, top / "workspace", list[State]()
        self.root.mkdir(parents=True)
        for name in ("a before", "z after"):
            (self.root / name).write_text("0")
        self._become(0)
        self.chain = Checkpoints(self.root, top / "store", limits=LIMITS)
        for number in (1, 2):
            self.chain.begin(str(number), "tool", "s")
            self._become(number)
            self.chain.end(str(number))
            file_times_advance()

    def reopen(self) -> None:
        """Go on in another process, as far as what this one remembers is concerned."""
        self.chain.close()
        self.chain = Checkpoints(self.root, self.root.parent / "store", limits=LIMITS)
        assert self.chain.notes == []

    def _become(self, number: int) -> None:
        path = self.root / "path"
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        KINDS[self.kinds[number]](path)
        for name in ("a before", "z after"):
            (self.root / name).write_text(str(number))
        self.states.append(state_of(self.root))
        file_times_advance()

    def undo(self, count: int = 2, *, keeps_replaced: bool = False) -> UndoResult:
        return self.chain.move(
            "undo", list(self.chain.steps)[: -count - 1 : -1], keeps_replaced=keeps_replaced
        )

    def redo(self, count: int = 2) -> UndoResult:
        return self.chain.move("redo", list(self.chain.undone)[: -count - 1 : -1])

    def check(self, moved: UndoResult, number: int) -> None:
        """Check that the folder is as it was then, or that the result names each path that is not."""
        if not moved.done and moved.failed:
            assert all("which would be left in place: it is too large" in why for _, why in moved.failed)
            return
        assert moved.done
        assert not moved.conflicts
        now, wanted = state_of(self.root), self.states[number]
        named = {path for path, _ in moved.missing}
        named |= {folder for path in named for folder in folders_around(path)}
        for name in now.keys() | wanted.keys():
            is_named = not named.isdisjoint({name, *folders_around(name)})
            assert now.get(name) == wanted.get(name) or is_named, (name, moved)
        if self.kinds[number] in STORED and not any("large" in kind for kind in self.kinds):
            assert not named
        assert not [name for name in now if name.startswith(TEMPORARY)]

    def check_back(self, number: int) -> None:
        """Check that the folder is as it was then."""
        assert state_of(self.root) == self.states[number]


CASES = [*itertools.product(KINDS, KINDS, KINDS)]


def some_cases(row: str, part: int) -> list[tuple[str, str, str]]:
    numbers = itertools.takewhile(lambda number: number < len(CASES), points_of(row, part))
    return [CASES[number] for number in numbers]


@by_points(40)
def test_undo_and_redo_of_two_calls_lead_to_what_was_there_or_name_it(tmp_path: Path, part: int) -> None:
    for number, kinds in enumerate(some_cases("both", part)):
        case = Case(tmp_path / str(number), kinds)
        case.check(case.undo(), 0)
        case.reopen()
        redone = case.redo()
        if redone.is_unkept:
            assert kinds[2] not in STORED
            assert not redone.done
        else:
            case.check(redone, 2)
        case.chain.close()


@by_points(40)
def test_undo_of_one_call_after_the_other_leads_to_what_was_there_or_names_it(
    tmp_path: Path, part: int
) -> None:
    for number, kinds in enumerate(some_cases("one by one", part)):
        case = Case(tmp_path / str(number), kinds)
        first = case.undo(1)
        case.check(first, 1)
        case.reopen()
        if first.done:
            second = case.undo(1)
            if not first.missing:
                case.check(second, 0)
        case.chain.close()


@by_points(40)
def test_undo_that_is_taken_back_leaves_what_was_there_and_can_be_made_again(
    tmp_path: Path, part: int
) -> None:
    for number, kinds in enumerate(some_cases("taken back", part)):
        case = Case(tmp_path / str(number), kinds)
        for count in (1, 2):
            case.chain.revert(case.undo(count, keeps_replaced=True))
            case.chain.discard_replaced()
            case.check_back(2)
            case.reopen()
        file_times_advance()
        case.check(case.undo(), 0)
        case.chain.close()


@by_points(40)
def test_undo_that_a_save_stops_half_way_leaves_what_was_there(
    tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The save comes while the last path is switched, so that all others are taken back."""
    for number, kinds in enumerate(some_cases("saved", part)):
        case = Case(tmp_path / str(number), kinds)
        last = case.root / "z after"

        def save_first(source: str, target: str, last: Path = last, **options: int) -> None:
            if target == last.name and last.read_text() == "2":
                last.write_text("of a person")
            dirfd.exchange(source, target, **options)

        monkeypatch.setattr(switching, "exchange", save_first)
        stopped = case.undo()
        if not stopped.failed:
            assert [path for path, _ in stopped.conflicts] == [last.name]
            assert last.read_text() == "of a person"
        assert not stopped.done
        assert not stopped.stuck
        last.write_text("2")
        case.check_back(2)
        file_times_advance()
        monkeypatch.undo()
        case.check(case.undo(), 0)
        case.chain.close()


@pytest.mark.parametrize("force", [False, True])
def test_work_of_a_person_on_what_an_undo_could_not_bring_back_is_a_conflict(
    tmp_path: Path, force: bool
) -> None:
    case = Case(tmp_path, ("file", "large file", "link"))
    path = case.root / "path"
    if force:
        path.unlink()
        path.write_text("of a person")
        file_times_advance()
    steps = case.chain.steps[-1:]
    assert [name for name, _ in case.chain.move("undo", steps, force=force).missing] == ["path"]
    if not force:
        path.unlink()
        path.write_text("of a person")
    file_times_advance()
    refused = case.undo(1)
    assert not refused.done
    assert [name for name, _ in refused.conflicts] == ["path"]
    assert path.read_text() == "of a person"
    case.chain.close()


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5, 8])
def test_undo_that_was_cut_short_before_it_would_have_been_refused_is_given_up(
    tmp_path: Path, number: int
) -> None:
    case = Case(tmp_path, ("file", "file", "folder with large file"))
    case.chain.close()
    pid = os.fork()
    if pid == 0:
        try:
            case.chain = Checkpoints(case.root, tmp_path / "store", limits=LIMITS)
            Faults("killed", number).arm()
            case.undo()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    chain = Checkpoints(case.root, tmp_path / "store", limits=LIMITS)
    message = (
        "The undo of tool (2), tool (1), which was cut short, was given up, since this cannot be changed: "
        "path (it holds path/a, which would be left in place: it is too large). What it had changed was "
        "taken back."
    )
    assert chain.notes == [message] or (not chain.notes and number < 3), "it was not recorded yet"
    assert state_of(case.root) == case.states[2]
    chain.begin("3", "tool", "s")
    chain.end("3")
    assert [step.call_id for step in chain.steps] == ["1", "2", "3"]
    chain.close()


@pytest.mark.parametrize("middle", [kind for kind in KINDS if kind != "nothing"])
def test_folder_that_was_something_else_meanwhile_holds_nothing_more_than_before(
    tmp_path: Path, middle: str
) -> None:
    case = Case(tmp_path, ("folder", middle, "other folder"))
    case.check(case.undo(), 0)
    case.check_back(0)
    case.check(case.redo(), 2)
    case.check_back(2)
    case.chain.close()
