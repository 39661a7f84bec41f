"""The power fails after any system call, and what was not synced is lost, in any order.

What was answered can be undone and redone, byte for byte, and so can all before it; what is lost is the call
or the undo that was under way, and that is said.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aisotools.workspace.checkpoints.timeline import Checkpoints
from tests.workspace.checkpoints.power import Change, Disk, Loss, Sync
from tests.workspace.checkpoints.test_timeline_stateful import State, state_of


def put(path: Path, text: str) -> None:
    """Write a file as a program does: in place, and synced by nobody."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(file, text.encode())
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
        """Make a call that changes everything but contents."""
        self.touched[call_id] = {"edited", "other", "third", "sub"}
        self.chain.begin(call_id, "tool", "s")
        for name in ("edited", "other"):
            file = os.open(self.root / name, os.O_RDWR)
            os.fchmod(file, 0o600)
            os.setxattr(file, "user.mark", name.encode())
            os.utime(file, ns=(1, 1_000_000_007))
            os.close(file)
        os.link(self.root / "other", self.root / "third")
        folder = os.open(self.root / "sub", os.O_RDONLY)
        os.fchmod(folder, 0o1750)
        os.utime(folder, ns=(1, 2_000_000_007))
        os.close(folder)
        self.chain.end(call_id)
        self.after[call_id] = state_of(self.root)
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
    disk.record(patch)
    story = Story(disk)
    story.root.mkdir(0o755)
    for name in ("edited", "gone", "other"):
        put(story.root / name, f"old {name}")
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
        while chain.steps:
            moved = chain.move("undo", chain.steps[-1:], force=True)
            assert moved.missing == (), notes
        assert without(state_of(top / "workspace"), loose) == without(story.after[""], loose), notes
        while chain.undone:
            call_id = chain.undone[-1].call_id
            moved = chain.move("redo", chain.undone[-1:], force=True)
            assert moved.missing == (), notes
            if f"({call_id}) was cut short" in notes:
                break  # it ended with whatever the power has left
            after = story.after[call_id]
            assert without(state_of(top / "workspace"), loose) == without(after, loose), notes
    finally:
        chain.close()


def without(state: State, paths: set[str]) -> State:
    return {path: entry for path, entry in state.items() if path not in paths}


@pytest.mark.parametrize(
    ("loss", "seeds"),
    [
        ("nothing", 1),
        ("all", 1),
        ("some", 1),
        pytest.param("some", 12, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(600)
def test_power_that_fails_after_any_call_takes_nothing_that_was_answered(
    tmp_path: Path, loss: Loss, seeds: int
) -> None:
    (tmp_path / "told").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        story = tell(tmp_path / "told", patch)
    first = story.points[0].calls
    assert len(story.disk.log) - first > 100, "so much is between the first call and the last"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda _file: None)
        for seed in range(seeds):
            for cut in range(first, len(story.disk.log) + 1):
                top = tmp_path / "cut"
                top.mkdir()
                story.disk.write_to(top, cut, loss, random.Random(f"{seed} {cut}"))
                (top / "state").mkdir(exist_ok=True)
                check(story, top, cut)
                shutil.rmtree(top)


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
