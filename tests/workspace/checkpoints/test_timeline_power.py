"""The power fails after any system call, and what was not synced is lost, in any order.

What was answered can be undone and redone, byte for byte, and so can all before it; what is lost is the call
or the undo that was under way, and that is said.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from aisotools.workspace.checkpoints.timeline import Checkpoints
from tests.points import by_points, points_of
from tests.sandbox.inside import command_of, user_of
from tests.workspace.checkpoints.power import Change, Disk, Loss, Sync
from tests.workspace.checkpoints.test_timeline_stateful import (
    ACCESS,
    DEFAULT,
    IS_ROOT,
    State,
    access_list,
    has_access_lists,
    state_of,
)


def put(path: Path, text: str) -> None:
    """Write a file as a program does: in place, and synced by nobody."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(file, text.encode())
    os.close(file)


def put_holes(path: Path, place: int) -> None:
    """Write a file of holes with one block of data, as a program does."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.lseek(file, place, os.SEEK_SET)
    os.write(file, b"data" * 1024)
    os.ftruncate(file, 1 << 16)
    os.close(file)


@dataclass
class Point:
    """A moment at which something was answered: how many system calls there were, and what had to hold."""

    calls: int
    done: tuple[str, ...]
    state: State
    was_moved: bool
    call_id: str


@dataclass
class Story:
    """A few calls, an undo and a redo on a recorded disk."""

    disk: Disk
    has_access_lists: bool
    chain: Checkpoints = field(init=False)
    points: list[Point] = field(default_factory=list)
    after: dict[str, State] = field(default_factory=dict)
    touched: dict[str, set[str]] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.disk.top / "workspace"

    def note(self, call_id: str = "", *, was_moved: bool = False) -> None:
        done = tuple(step.call_id for step in self.chain.steps if step.changed)
        self.points.append(Point(len(self.disk.log), done, state_of(self.root), was_moved, call_id))

    def call(self, call_id: str, **texts: str | None) -> None:
        before = state_of(self.root)
        self.touched[call_id] = {path.replace("__", "/") for path in texts}
        self.chain.begin(call_id, "tool", "s")
        for name, text in texts.items():
            path = self.root / name.replace("__", "/")
            if text is None:
                path.unlink()
            else:
                if not path.parent.is_dir():
                    path.parent.mkdir(0o755)
                    self.touched[call_id].add(path.parent.name)
                put(path, text)
        self.chain.end(call_id)
        self.after[call_id] = state_of(self.root)
        if before == self.after[call_id]:
            self.touched[call_id] = set()
        self.note(call_id)

    def attributes(self, call_id: str) -> None:
        """Make a call that changes everything but contents, and one content that has holes."""
        before = state_of(self.root)
        self.chain.begin(call_id, "tool", "s")
        for name in ("edited", "other"):
            file = os.open(self.root / name, os.O_RDWR)
            os.fchmod(file, 0o600)
            os.setxattr(file, "user.mark", name.encode())
            if self.has_access_lists:
                os.setxattr(file, ACCESS, access_list(7))
            if IS_ROOT:
                os.fchown(file, 12345, 23456)
            os.utime(file, ns=(1, 1_000_000_007))
            os.close(file)
        os.link(self.root / "other", self.root / "third")
        folder = os.open(self.root / "sub", os.O_RDONLY)
        os.fchmod(folder, 0o3750)
        if self.has_access_lists:
            os.setxattr(folder, DEFAULT, access_list(8))
        if IS_ROOT:
            os.fchown(folder, 4, 5)
            os.chown(self.root / "fifo", 6, 7)
            os.chown(self.root / "link", 8, 9, follow_symlinks=False)
        else:
            # As root such a bit never comes back.
            (self.root / "lends").chmod(0o755)
        (self.root / "fifo").chmod(0o666)
        os.utime(folder, ns=(1, 2_000_000_007))
        os.close(folder)
        put_holes(self.root / "holes", 1 << 14)
        (self.root / "old holes").unlink()
        self.chain.end(call_id)
        after = self.after[call_id] = state_of(self.root)
        names = before.keys() | after.keys()
        self.touched[call_id] = {name for name in names if before.get(name) != after.get(name)}
        self.note(call_id)

    def move(self, way: str, count: int) -> None:
        if way == "undo":
            moved = self.chain.move("undo", self.chain.steps[::-1][:count])
        else:
            moved = self.chain.move("redo", self.chain.undone[::-1][:count])
        assert (moved.done, moved.missing) == (True, ())
        self.note(was_moved=True)


def tell(top: Path, patch: pytest.MonkeyPatch) -> Story:
    """Make the calls. What is there before the first of them has been on the disk for long."""
    disk = Disk(top)
    story = Story(disk, has_access_lists(top))
    disk.record(patch)
    story.root.mkdir(0o755)
    for name in ("edited", "gone", "other"):
        put(story.root / name, f"old {name}")
    put_holes(story.root / "old holes", 1 << 15)
    os.mkfifo(story.root / "fifo", 0o600)
    (story.root / "link").symlink_to("edited")
    if not IS_ROOT:
        put(story.root / "lends", "rights")
        (story.root / "lends").chmod(0o6755)
    disk.log.append(Sync(None))
    story.chain = Checkpoints(story.root, top / "state" / "store")
    story.note()
    story.after[""] = state_of(story.root)
    story.call("c1", edited="new", gone=None, made="made")
    story.call("c2", sub__deep="deep")
    story.call("idle")
    story.call("c3", edited="newer", sub__deep=None)
    story.move("undo", 2)
    story.move("redo", 1)
    story.move("undo", 3)
    story.call("c4", other="changed", made="again")
    story.move("undo", 1)
    story.call("c5", sub__deep="again", other="other")
    story.attributes("c6")
    story.move("undo", 1)
    story.move("redo", 1)
    # What is removed is made again, with all that it had.
    story.call("c7", edited=None, third=None, other=None)
    story.move("undo", 1)
    story.move("undo", 2)
    story.chain.close()
    return story


def check(story: Story, top: Path, cut: int) -> None:
    """Check what the next process finds after so many system calls."""
    last = [point for point in story.points if point.calls <= cut][-1]
    coming = next((point for point in story.points if point.calls > cut), last)
    chain = Checkpoints(top / "workspace", top / "state" / "store")
    try:
        notes = " ".join(chain.take_notes())
        done = [step.call_id for step in chain.steps if step.changed]
        begun = coming.call_id
        assert set(done) >= set(last.done) & set(coming.done), (done, notes)
        for call_id in set(done).difference(last.done, coming.done):
            # Its end was lost: of one that changed nothing, or that was under way.
            assert f"({call_id}) was cut short" in notes
        if last.was_moved and cut == last.calls:
            assert state_of(top / "workspace") == last.state, "an undo that was answered is on the disk"
        # A call that was under way may have left anything where it wrote, if it is not a step.
        loose = story.touched.get(begun, set()) if begun not in done else set()
        taken_back: dict[str, tuple[State, State]] = {}
        while chain.steps:
            call_id, found = chain.steps[-1].call_id, state_of(top / "workspace")
            moved = chain.move("undo", chain.steps[-1:], force=True)
            assert moved.missing == (), (moved, notes)
            if moved.conflicts:
                # The power has left something that no call had: a redo brings that again.
                taken_back[call_id] = state_of(top / "workspace"), found
        assert without(state_of(top / "workspace"), loose) == without(story.after[""], loose), notes
        previous = ""
        while chain.undone:
            call_id, now = chain.undone[-1].call_id, state_of(top / "workspace")
            moved = chain.move("redo", chain.undone[-1:], force=True)
            assert moved.missing == (), (moved, notes)
            if f"({call_id}) was cut short" in notes:
                break  # it ended with whatever the power has left
            change = taken_back.get(call_id, (story.after[previous], story.after[call_id]))
            state, after = state_of(top / "workspace"), story.after[call_id]
            if taken_back:
                after = keep_times(state, change[1], apply(now, *change))
            assert without(state, loose) == without(after, loose), notes
            previous = call_id
    finally:
        chain.close()


def apply(now: State, before: State, after: State) -> State:
    """Return a state in which what differs between two others is as in the second of them."""
    changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    changed |= {path for path in now if any(path.startswith(f"{gone}/") for gone in changed - after.keys())}
    return {**without(now, changed), **{path: after[path] for path in changed if path in after}}


def keep_times(state: State, end: State, expected: State) -> State:
    """Return a state in which folders have the times that they have, if they do not hold what they held."""

    def names(of: State, folder: str) -> set[str]:
        return {path for path in of if path.startswith(f"{folder}/")}

    return {
        path: replace(entry, mtime_ns=state[path].mtime_ns)
        if stat.S_ISDIR(entry.kind) and path in state and names(end, path) != names(expected, path)
        else entry
        for path, entry in expected.items()
    }


def without(state: State, paths: set[str]) -> State:
    return {path: entry for path, entry in state.items() if path not in paths}


@by_points(25)
@pytest.mark.parametrize("loss", ["nothing", "all", "some"])
@pytest.mark.timeout(3600)
def test_power_that_fails_after_any_call_takes_nothing_that_was_answered(
    tmp_path: Path, loss: Loss, part: int
) -> None:
    seeds = 12 if (loss, part) == ("some", 1) else 1
    check_cuts(tmp_path, loss, seeds, part)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not IS_ROOT, reason="the tests above are run as a plain user already")
def test_bits_that_lend_rights_are_back_after_the_power_failed(tmp_path: Path) -> None:
    """Of a plain user: as root such a bit of a file never comes back."""
    del tmp_path  # another user cannot come to it
    uid = user_of("plain")
    argv = [sys.executable, "-B", "-m", "tests.workspace.checkpoints.test_timeline_power"]
    with tempfile.TemporaryDirectory() as place:
        os.chown(place, uid or 0, -1)
        command, options = command_of([*argv, place], uid)
        root = Path(__file__).resolve().parents[3]
        done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False, **options)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def check_cuts(tmp_path: Path, loss: Loss, seeds: int, part: int = 1) -> None:
    """Let the power fail after one of so many system calls, and whenever something was answered."""
    (tmp_path / "told").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        story = tell(tmp_path / "told", patch)
    first = story.points[0].calls
    assert len(story.disk.log) - first > 100, "so much is between the first call and the last"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda _file: None)
        for seed in range(seeds):
            for cut in cuts_of(story, f"{loss} {seed}", part):
                top = tmp_path / "cut"
                top.mkdir()
                story.disk.write_to(top, cut, loss, random.Random(f"{seed} {cut}"))
                (top / "state").mkdir(exist_ok=True)
                check(story, top, cut)
                shutil.rmtree(top)


def cuts_of(story: Story, row: str, part: int) -> list[int]:
    """Return after how many calls the power fails."""
    first, last = story.points[0].calls, len(story.disk.log)
    cuts = {first + number for number in itertools.takewhile((last - first).__ge__, points_of(row, part))}
    return sorted(cuts | {point.calls for point in story.points} | {last})


def test_records_that_were_not_synced_would_be_lost(tmp_path: Path) -> None:
    """The control: on a disk that ignores syncs nothing of the calls is left."""
    (tmp_path / "told").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        story = tell(tmp_path / "told", patch)
    first = story.points[0].calls
    changes = [entry for entry in story.disk.log[first:] if isinstance(entry, Change)]
    story.disk.log[first:] = changes
    top = tmp_path / "cut"
    top.mkdir()
    story.disk.write_to(top, len(story.disk.log), "all", random.Random(1))
    chain = Checkpoints(top / "workspace", top / "state" / "store")
    assert story.points[-1].done == ()
    assert (chain.steps, chain.undone) == ((), ())
    chain.close()


if __name__ == "__main__":
    check_cuts(Path(sys.argv[1]), "some", 1)
