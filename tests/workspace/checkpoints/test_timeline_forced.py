"""A forced undo takes back what somebody else has changed. A redo leads to what the undo has found."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from aisotools.workspace.checkpoints.moves import UndoResult
from aisotools.workspace.checkpoints.steps import Direction
from aisotools.workspace.checkpoints.timeline import Checkpoints
from aisotools.workspace.checkpoints.tree import is_whole
from tests.points import by_points, points_of
from tests.workspace.checkpoints.test_timeline_faults import Faults

Act = Callable[[Path], None]


def read(root: Path) -> dict[str, tuple[object, ...]]:
    """Return all that a move of files restores of what is in a folder."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = ""
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = path.read_text()
        found[str(path.relative_to(root))] = (content, oct(status.st_mode), status.st_mtime_ns)
    return found


def contents(files: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    return {name: entry[:2] for name, entry in files.items()}


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()


def put(name: str, text: str) -> Act:
    def act(root: Path) -> None:
        path = root / name
        for around in [*path.parents][::-1]:
            if around.is_relative_to(root) and (around.is_symlink() or not around.is_dir()):
                clear(around)
                around.mkdir()
        clear(path)
        path.write_text(text)

    return act


def link(name: str, target: str = "nowhere") -> Act:
    def act(root: Path) -> None:
        put(name, "")(root)
        clear(root / name)
        (root / name).symlink_to(target)

    return act


def folder(name: str) -> Act:
    def act(root: Path) -> None:
        put(f"{name}/x", "")(root)
        clear(root / name / "x")

    return act


def remove(name: str) -> Act:
    return lambda root: clear(root / name)


def chmod(name: str, mode: int) -> Act:
    return lambda root: (root / name).chmod(mode) if (root / name).exists() else None


class Forced:
    """A workspace with its timeline."""

    def __init__(self, top: Path) -> None:
        self.root, self.store = top / "workspace", top / "store"
        self.root.mkdir(parents=True)
        self.number = 0
        self.chain = Checkpoints(self.root, self.store)

    def call(self, *acts: Act) -> None:
        self.number += 1
        self.chain.begin(f"c{self.number}", "tool", "s")
        self.edit(*acts)
        self.chain.end(f"c{self.number}")

    def edit(self, *acts: Act) -> None:
        for act in acts:
            act(self.root)

    def move(self, way: Direction, count: int = 1, *, force: bool = False) -> UndoResult:
        source = self.chain.steps if way == "undo" else self.chain.undone
        return self.chain.move(way, source[::-1][:count], force=force)

    def again(self) -> None:
        self.chain.close()
        self.chain = Checkpoints(self.root, self.store)


@pytest.fixture
def forced(tmp_path: Path) -> Iterator[Forced]:
    forced = Forced(tmp_path)
    yield forced
    forced.chain.close()


EDITS: dict[str, tuple[list[Act], list[Act], list[Act]]] = {
    "file added to a folder that the call has removed": (
        [put("f", "1"), put("d/x", "1")],
        [put("f", "2"), remove("d")],
        [put("f", "mine"), chmod("f", 0o640), put("d/x", "my x"), put("d/y", "my y")],
    ),
    "file added to a folder that the call has made": (
        [put("f", "1")],
        [put("d/x", "1")],
        [put("d/y", "my y")],
    ),
    "folder in the place of a file": ([put("f", "1")], [put("f", "2")], [put("f/x", "mine")]),
    "folder in the place of a file that the call has removed": (
        [put("f", "1")],
        [remove("f")],
        [put("f/g/x", "mine")],
    ),
    "file in the place of a folder": ([put("d/x", "1")], [put("d/x", "2")], [put("d", "mine")]),
    "link in the place of a folder": ([put("d/x", "1")], [put("d/x", "2")], [remove("d"), link("d", "f")]),
    "link in the place of a file": ([put("f", "1")], [put("f", "2")], [link("f")]),
    "folder in the place of a link": ([link("l")], [link("l", "other")], [put("l/x", "mine")]),
    "file in the place of a link that the call has made": ([], [link("l")], [put("l", "mine")]),
    "mode of a file": ([put("f", "1")], [put("f", "2")], [chmod("f", 0o600)]),
    "removed": ([put("f", "1")], [put("f", "2"), put("d/x", "2")], [remove("f"), remove("d")]),
    "put back to before the call": (
        [put("f", "1"), put("g", "1")],
        [put("f", "2"), remove("g")],
        [
            put("f", "1"),
            put("g", "mine"),
        ],
    ),
}


@pytest.mark.parametrize("is_opened_again", [False, True], ids=["", "opened again"])
@pytest.mark.parametrize("name", EDITS)
def test_redo_after_a_forced_undo_leads_to_what_the_undo_has_found(
    forced: Forced, name: str, *, is_opened_again: bool
) -> None:
    before, by_call, by_person = EDITS[name]
    forced.edit(put("untouched", "1"), *before)
    start = read(forced.root)
    forced.call(*by_call)
    forced.edit(*by_person, put("elsewhere", "mine"))
    found = read(forced.root)
    assert forced.move("undo").conflicts
    assert read(forced.root) == found
    for _ in range(2):  # what a redo has brought back can be undone by force, and comes back, again
        undone = forced.move("undo", force=True)
        left = read(forced.root)
        assert left.pop("elsewhere") == found["elsewhere"]
        # No undo removes what no call knows: where that stands in the way, that is named.
        assert undone.missing or contents(start).items() <= contents(left).items()
        if is_opened_again:
            forced.again()
        redone = forced.move("redo")
        assert (redone.conflicts, redone.missing, redone.done) == ((), (), True)
        assert read(forced.root) == found


def test_redo_after_a_forced_undo_has_conflicts_only_where_the_undo_has_changed_something(
    forced: Forced,
) -> None:
    forced.edit(put("f", "1"), put("elsewhere", "1"))
    forced.call(put("f", "2"))
    forced.edit(put("f", "mine"), put("elsewhere", "2"))
    assert forced.move("undo", force=True).done
    forced.edit(put("f", "newer"), put("elsewhere", "3"))
    assert [path for path, _ in forced.move("redo").conflicts] == ["f"]
    assert (forced.root / "f").read_text() == "newer"
    assert forced.move("redo", force=True).done
    assert [(forced.root / name).read_text() for name in ("f", "elsewhere")] == ["mine", "3"]


def test_conflict_in_one_of_two_calls_comes_back_with_both(forced: Forced) -> None:
    forced.edit(put("f", "1"), put("g", "1"))
    forced.call(put("f", "2"), put("g", "2"))
    forced.edit(put("g", "between"))
    forced.call(put("f", "3"))
    found = read(forced.root)
    assert forced.move("undo", 2, force=True).done
    assert (forced.root / "g").read_text() == "1"
    assert forced.move("redo").done
    assert [(forced.root / name).read_text() for name in ("f", "g")] == ["2", "between"]
    assert forced.move("redo").done
    assert read(forced.root) == found


def test_redo_of_an_undo_that_took_back_nothing_of_anybody_applies_the_calls(forced: Forced) -> None:
    """A file that somebody has put back to before the call is as the call has left it after a redo."""
    forced.edit(put("f", "1"))
    forced.call(put("f", "2"))
    forced.edit(put("f", "1"))
    assert forced.move("undo", force=True).done
    assert forced.move("redo").done
    assert (forced.root / "f").read_text() == "2"


@pytest.mark.parametrize("by_call", [remove("d"), lambda root: (root / "d").rename(root / "e")])
@pytest.mark.parametrize("before", [folder("d"), put("d/x", "1")])
def test_redo_removes_a_folder_that_somebody_has_made_again_but_not_what_it_holds(
    forced: Forced, before: Act, by_call: Act
) -> None:
    forced.edit(before)
    forced.call(by_call)
    forced.edit(put("d/mine", "mine"))
    found = contents(read(forced.root))
    undone = forced.move("undo")
    assert (undone.conflicts, undone.done) == ((), True)
    assert [path for path, _ in forced.move("redo").conflicts] == ["d/mine"]
    redone = forced.move("redo", force=True)
    assert redone.done
    assert [path for path, _ in redone.missing] == ["d"]
    assert contents(read(forced.root)) == found


def test_state_that_an_undo_has_found_is_kept_as_long_as_it_can_be_redone(forced: Forced) -> None:
    forced.call(put("f", "2"))
    forced.edit(put("f", "mine"))
    assert forced.move("undo", force=True).done
    stored = forced.chain.store.count
    forced.chain.drop_old()
    assert forced.chain.store.count == stored
    assert forced.move("redo").done
    assert (forced.root / "f").read_text() == "mine"
    assert not forced.chain.steps[-1].returns, "it is undone no more"


def test_forced_undo_that_was_cut_short_is_completed_and_redone_exactly(forced: Forced) -> None:
    forced.edit(put("d/x", "1"), put("f", "1"))
    forced.call(put("f", "2"), remove("d"))
    forced.edit(put("f", "mine"), put("d/y", "my y"))
    found = read(forced.root)
    record = forced.chain.store.record

    def die(**fields: Any) -> None:
        if fields["op"] == "moved":
            raise KeyboardInterrupt
        record(**fields)

    forced.chain.store.record = die  # type: ignore[method-assign]  # the process ends there
    with pytest.raises(KeyboardInterrupt):
        forced.move("undo", force=True)
    forced.again()
    assert (forced.root / "f").read_text() == "1"
    assert forced.move("redo").done
    assert read(forced.root) == found


History = tuple[list[Act], list[list[Act]], list[Act]]
"""What is there before the calls, what each call does, and what a person has changed after them."""

HISTORIES: dict[str, History] = {
    **{name: (before, [by_call], by_person) for name, (before, by_call, by_person) in EDITS.items()},
    "two calls": (
        [put("f", "1"), put("g", "1"), put("h", "1"), put("m", "1"), link("p"), put("old/x", "1")],
        [
            [put("f", "2"), put("g", "2"), put("h", "2"), put("m", "2"), put("new/a", "2"), remove("old")],
            [put("f", "3"), put("k", "3"), remove("h"), link("p", "f")],
        ],
        [put("g", "mine"), link("p", "mine"), chmod("m", 0o600), put("new/b", "mine"), put("old/y", "mine")],
    ),
}


def read_files(root: Path) -> dict[str, tuple[object, ...]]:
    """Return what `read` does, without the times of folders: to switch what is in one changes its own."""
    folders = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}
    return {name: entry[:2] if name in folders else entry for name, entry in read(root).items()}


def opened(top: Path) -> Forced:
    """Return what `Forced` has made in a folder, opened again."""
    forced = Forced.__new__(Forced)
    forced.root, forced.store = top / "workspace", top / "store"
    forced.chain = Checkpoints(forced.root, forced.store)
    return forced


def move_and_end(top: Path, way: Direction, count: int, number: int) -> bool:
    """Make a forced move in another process. Return whether that was ended by a call that changes something.

    Args:
        top: Folder of the workspace and its timeline.
        way: Direction.
        count: Number of steps.
        number: Which of these calls it does not survive.
    """
    pid = os.fork()
    if pid == 0:
        try:
            forced = opened(top)
            Faults("killed", number).arm()
            forced.move(way, count, force=True)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in {0, 9}
    return code == 9


@pytest.mark.sample(8)
@by_points(8)
@pytest.mark.parametrize("way", ["undo", "redo"])
@pytest.mark.parametrize("name", HISTORIES)
def test_forced_move_that_ends_at_any_call_leaves_the_one_or_the_other_state(
    tmp_path: Path, name: str, way: Direction, part: int
) -> None:
    """What it overrides stays overridden: the next process completes it as it was begun."""
    before, by_calls, by_person = HISTORIES[name]
    count = len(by_calls)
    forced = Forced(tmp_path / "start")
    forced.edit(put("untouched", "1"), *before)
    for acts in by_calls:
        forced.call(*acts)
    if way == "redo":
        assert forced.move("undo", count).done
    forced.edit(*by_person, put("elsewhere", "mine"))
    old = read_files(forced.root)
    forced.chain.close()
    new: dict[str, tuple[object, ...]] = {}
    outcomes = set()
    for number in itertools.chain([1 << 30], points_of(f"{name} {way}", part)):
        shutil.copytree(tmp_path / "start", tmp_path / "copy", symlinks=True)
        is_ended = move_and_end(tmp_path / "copy", way, count, number)
        forced = opened(tmp_path / "copy")
        found, is_moved = (
            read_files(forced.root),
            not (forced.chain.undone if way == "redo" else forced.chain.steps),
        )
        if not new:
            assert is_moved
            new = found
        elif not is_ended:
            break
        else:
            outcomes.add(is_moved)
            assert found == (new if is_moved else old), number
            assert not any("somebody else since" in note for note in forced.chain.notes), forced.chain.notes
            if way == "undo" and is_moved and forced.move("redo", count).done:
                assert read_files(forced.root) == old, number
        forced.chain.close()
        shutil.rmtree(tmp_path / "copy")
    forced.chain.close()
    assert outcomes == {False, True}


def test_forced_move_that_is_completed_spares_what_was_saved_after_its_end(tmp_path: Path) -> None:
    """Whatever it had found is replaced. What is newer than that nobody has agreed to lose."""
    spared = set()
    for number in itertools.count():
        forced = Forced(tmp_path / str(number))
        forced.edit(put("f", "1"), put("g", "1"), put("h", "1"))
        forced.call(put("f", "2"), put("g", "2"), put("h", "2"))
        forced.edit(put("f", "mine"), put("g", "mine"))
        forced.chain.close()
        if not move_and_end(tmp_path / str(number), "undo", 1, number):
            break
        forced.edit(put("g", "newer"))
        forced.chain = Checkpoints(forced.root, forced.store)
        texts = [(forced.root / name).read_text() for name in ("f", "g", "h")]
        notes = forced.chain.take_notes()
        forced.chain.close()
        if forced.chain.steps:
            assert texts == ["mine", "newer", "2"], number
        else:
            assert texts == ["1", "newer", "1"], number
            spared.add("but for what somebody else has changed: g (" in "".join(notes))
    # Where the record of its end was written, nothing is left to be completed.
    assert True in spared


def test_forced_undo_that_fails_half_way_keeps_what_it_had_found(forced: Forced) -> None:
    """It may have to be completed long after, by what is known of that."""
    forced.edit(put("f", "1"))
    forced.call(put("f", "2"))
    forced.edit(put("f", "mine"))
    found = forced.chain.snapshot().root
    record = forced.chain.store.record

    def die(**fields: Any) -> None:
        if fields["op"] == "moved":
            raise KeyboardInterrupt
        record(**fields)

    forced.chain.store.record = die  # type: ignore[method-assign]  # as if the process had ended there
    with pytest.raises(KeyboardInterrupt):
        forced.move("undo", force=True)
    forced.chain.store.record = record  # type: ignore[method-assign]  # it goes on, all the same
    forced.chain.drop_old()
    assert is_whole(forced.chain.store, found)


_NAMES = ("a", "b", "d", "d/x", "d/y", "d/e/z")


def _random_act(random: Random) -> Act:
    name, text = random.choice(_NAMES), str(random.random())
    return random.choice([put(name, text), put(name, text), remove(name), link(name, text), folder(name)])


@pytest.mark.sample(20)
@pytest.mark.parametrize("seed", range(60))
def test_redo_of_any_forced_undo_leads_to_what_it_has_found(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    forced = Forced(tmp_path / "top")
    try:
        forced.edit(*(_random_act(random) for _ in range(4)))
        calls = random.randint(1, 4)
        for number in range(calls):
            acts = [_random_act(random) for _ in range(random.randint(1, 4))]
            forced.call(put(f"own {number + 1}", "by the call"), *acts)
            forced.edit(*(_random_act(random) for _ in range(random.choice((0, 0, 1, 2)))))
        stops = []
        while (left := len(forced.chain.steps)) and random.random() < 0.8:
            count = random.randint(1, left)
            forced.edit(put(f"own {left}", "mine"))  # there is a conflict in any case
            stops.append((f"own {left}", count, read(forced.root)))
            assert forced.move("undo", count, force=True).done
            if random.random() < 0.3:
                forced.again()
        edited: dict[str, tuple[object, ...]] = {}
        for name, count, found in reversed(stops):
            taken = 0
            while taken < count:
                more = random.randint(1, count - taken)
                redone = forced.move("redo", more)
                assert (redone.conflicts, redone.missing, redone.done) == ((), (), True)
                taken += more
            # What was edited between two undos is newer than what the first of them has found.
            assert read(forced.root) == {**found, **edited}
            edited[name] = found[name]
    finally:
        forced.chain.close()
