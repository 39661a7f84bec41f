"""Moves as transactions: what is recorded when, what is taken back, and what stays for later.

How a whole timeline behaves when a call fails, a process ends or the power does is in `test_timeline_*`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import UsageError, WorkspaceError
from aisotools.workspace.checkpoints import transactions
from aisotools.workspace.checkpoints.moves import UndoResult, find_changed_since
from aisotools.workspace.checkpoints.plan import RestorePlan
from aisotools.workspace.checkpoints.restore import discard_stage, stage_plan
from aisotools.workspace.checkpoints.scan import ScanLimits
from aisotools.workspace.checkpoints.steps import Checkpoint, Timeline
from aisotools.workspace.checkpoints.store import RecordQueue, Store
from aisotools.workspace.checkpoints.transactions import Mover
from aisotools.workspace.checkpoints.trees import TrackedTrees
from aisotools.workspace.dirfd import file_time


class Bench:
    """A mover with everything that it is given."""

    def __init__(self, top: Path) -> None:
        self.root = top / "workspace"
        self.root.mkdir()
        self.store = Store(top / "store")
        self.trees = TrackedTrees(self.store, self.root, ScanLimits())
        self.timeline = Timeline()
        self.due = RecordQueue(self.store)
        self.notes: list[str] = []
        self.scans = 0
        self.mover = Mover(
            self.store, self.trees, self.timeline, self.due, rescan=self.rescan, note=self.notes.append
        )

    def rescan(self) -> None:
        self.scans += 1

    def step(self, call_id: str, text: str, *others: str) -> Checkpoint:
        """Have a call write to the file `a`, and make others."""
        before = self.trees.workspace.scan().root
        (self.root / "a").write_text(text)
        for name in others:
            (self.root / name).write_text(text)
        step = Checkpoint(
            call_id=call_id,
            name="write",
            session="s",
            time_s=0,
            before={"": before},
            after={"": self.trees.workspace.scan().root},
        )
        self.timeline.end(step)
        return step

    def begin_undo(self, call_id: str) -> dict[str, Any]:
        """Record an undo of a call that is cut short then. Return the record."""
        record = {"op": "move", "way": "undo", "ids": [call_id], "token": "t", "force": False}
        self.store.record(**record)
        self.timeline.moving = record
        return record

    def stored(self, content: bytes) -> Path:
        """Return the file in which a content is stored."""
        return next(p for p in (self.store.folder / "objects").iterdir() if p.read_bytes() == content)

    def operations(self) -> list[str]:
        return [record["op"] for record in self.store.records()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.close()


def test_move_is_recorded_before_and_after_and_shifts_the_steps(bench: Bench) -> None:
    steps = [bench.step("c1", "1"), bench.step("c2", "22")]
    moved = bench.mover.move("undo", steps[::-1])
    assert (moved.done, moved.removed, moved.failed) == (True, ("a",), ())
    assert not (bench.root / "a").exists()
    assert (bench.timeline.done, bench.timeline.undone) == ([], steps[::-1])
    assert bench.operations() == ["move", "moved"]
    assert bench.scans  # it was planned again if the file had just been written
    assert bench.mover.move("redo", steps).restored == ("a",)
    assert (bench.root / "a").read_text() == "22"
    assert bench.timeline.done == steps


def test_move_with_a_conflict_records_nothing(bench: Bench) -> None:
    steps = [bench.step("c1", "1")]
    (bench.root / "a").write_text("person")
    moved = bench.mover.move("undo", steps)
    assert (moved.done, [path for path, _ in moved.conflicts]) == (False, ["a"])
    assert (bench.operations(), bench.timeline.done) == ([], steps)
    assert bench.mover.move("undo", steps, force=True).done
    assert not (bench.root / "a").exists()


def test_no_move_while_a_step_runs(bench: Bench) -> None:
    step = bench.step("c1", "1")
    bench.timeline.running["c2"] = step
    with pytest.raises(UsageError, match="write is running"):
        bench.mover.move("undo", [step])
    assert bench.operations() == []


def test_content_that_is_gone_gives_the_move_up(bench: Bench) -> None:
    bench.step("c1", "first")
    step = bench.step("c2", "second")
    for path in (bench.store.folder / "objects").iterdir():
        if path.read_bytes() == b"first":
            path.unlink()
    moved = bench.mover.move("undo", [step])
    assert not moved.done
    assert [path for path, _ in moved.failed] == ["a"]
    assert (bench.root / "a").read_text() == "second"
    assert [one.call_id for one in bench.timeline.done] == ["c1", "c2"]
    assert (bench.timeline.moving, bench.operations()) == (None, [])  # the record was taken back


def test_move_that_was_made_is_reverted(bench: Bench) -> None:
    bench.step("c1", "first")
    step = bench.step("c2", "second")
    moved = bench.mover.move("undo", [step])
    assert (bench.root / "a").read_text() == "first"
    back = bench.mover.revert(moved)
    assert (back.done, back.direction, back.restored) == (True, "redo", ("a",))
    assert (bench.root / "a").read_text() == "second"
    assert [one.call_id for one in bench.timeline.done] == ["c1", "c2"]
    assert bench.operations() == ["move", "moved", "move", "moved"]


def test_move_that_is_stopped_and_cannot_be_taken_back_says_that_not_all_was_done(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.step("c1", "first")
    step = bench.step("c2", "second")
    carry_out = bench.mover._carry_out

    def stopped(*arguments: Any, **options: Any) -> UndoResult:
        return dataclasses.replace(
            carry_out(*arguments, **options), changed=(("a", "saved"),), missing=(("a", "saved"),)
        )

    def refuse(_moved: UndoResult, **_options: Any) -> UndoResult:
        raise WorkspaceError("The folder cannot be read.")

    monkeypatch.setattr(bench.mover, "_carry_out", stopped)
    monkeypatch.setattr(bench.mover, "revert", refuse)
    why = "not all of it was done, and what was done could not be taken back: The folder cannot be read"
    assert bench.mover.move("undo", [step]).missing == (("a", "saved"), ("", why))


def test_move_that_was_cut_short_and_cannot_be_completed_is_taken_back(bench: Bench) -> None:
    bench.step("c1", "first")
    step = bench.step("c2", "second", "b")
    record = bench.begin_undo("c2")
    (bench.root / "b").unlink()  # it was cut short after that
    bench.stored(b"first").write_bytes(b"damaged")
    assert bench.mover.finish(record) == ()
    assert not bench.timeline.moving
    assert (bench.timeline.done[-1].call_id, bench.timeline.undone) == (step.call_id, [])
    assert bench.operations() == ["move", "move", "moved"]
    assert [(bench.root / name).read_text() for name in "ab"] == ["second", "second"]
    (note,) = bench.notes
    assert note.startswith(
        "The undo of write (c2), which was cut short, was given up, since this cannot be changed: a ("
    )
    assert note.endswith(" What it had changed was taken back.")


def test_move_that_can_be_neither_completed_nor_taken_back_keeps_all_others_from_being_made(
    bench: Bench,
) -> None:
    bench.step("c1", "first")
    step = bench.step("c2", "second", "b")
    record = bench.begin_undo("c2")
    (bench.root / "b").unlink()  # it was cut short after that
    files = [bench.stored(content) for content in (b"first", b"second")]
    whole = [file.read_bytes() for file in files]
    for file in files:
        file.write_bytes(b"damaged")
    (bench.root / "a").unlink()  # nor is it anywhere else
    with pytest.raises(WorkspaceError, match="can still not be completed at: "):
        bench.mover.move("undo", [step])
    moving = bench.timeline.moving
    assert moving is not None
    assert not bench.notes
    for file, content in zip(files, whole, strict=True):
        file.write_bytes(content)
    bench.store.damaged.clear()
    assert bench.mover.finish(moving) == ()
    assert [(bench.root / name).read_text() for name in "ab"] == ["second", "second"]
    assert not bench.timeline.moving
    assert record["token"] == moving["token"]


def test_move_that_was_cut_short_and_had_changed_nothing_is_given_up(bench: Bench) -> None:
    bench.step("c1", "first")
    step = bench.step("c2", "second", "b")
    record = bench.begin_undo("c2")
    bench.store.record(op="dropped", count=0)  # the record of the move is not the last one
    bench.stored(b"first").write_bytes(b"damaged")
    assert bench.mover.finish(record) == ()
    assert not bench.timeline.moving
    assert (bench.timeline.done[-1].call_id, bench.timeline.undone) == (step.call_id, [])
    assert [(bench.root / name).read_text() for name in "ab"] == ["second", "second"]


def test_move_that_was_cut_short_when_it_had_changed_a_mode_alone_is_taken_back(bench: Bench) -> None:
    bench.step("c1", "first")
    before = bench.trees.workspace.scan().root
    (bench.root / "a").chmod(0o600)
    bench.step("c2", "second", "b")
    step = replace(bench.timeline.done[-1], before={"": before})
    bench.timeline.done[-1] = step
    record = bench.begin_undo("c2")
    (bench.root / "a").chmod(0o644)  # it was cut short after that
    bench.stored(b"first").write_bytes(b"damaged")
    assert bench.mover.finish(record) == ()
    assert (bench.root / "a").stat().st_mode & 0o777 == 0o600


def test_move_whose_taking_back_cannot_be_recorded_stays_unfinished(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.step("c1", "first")
    step = bench.step("c2", "second", "b")
    record = bench.begin_undo("c2")
    bench.stored(b"first").write_bytes(b"damaged")

    def refuse(**_record: Any) -> None:
        raise WorkspaceError("There is no space left.")

    monkeypatch.setattr(bench.store, "record", refuse)
    with pytest.raises(WorkspaceError, match="can still not be completed at: a "):
        bench.mover.move("undo", [step])
    assert bench.timeline.moving == record


def test_partial_files_are_swept_and_that_is_recorded(bench: Bench) -> None:
    (bench.root / ".aisotools-write-t-staged").mkdir()
    (bench.root / ".aisotools-write-t-1").touch()
    (bench.root / ".aisotools-write-u-1").touch()
    bench.timeline.unswept["t"] = ["", "/nonexistent/x"]
    bench.mover.sweep_staging()
    assert [path.name for path in bench.root.iterdir()] == [".aisotools-write-u-1"]
    assert (bench.timeline.unswept, bench.operations()) == ({}, ["swept"])


def test_a_file_that_cannot_be_removed_is_named_and_does_not_stop_the_move(bench: Bench) -> None:
    step = bench.step("c1", "1")
    (bench.root / "b").write_text("1")
    plan = RestorePlan(
        targets={("a",): None},
        # What stands at its place by now is not a folder.
        unrestorable=((("b", "large"), "it is too large"), (("gone",), "it is too large")),
    )
    plans = [(bench.trees.workspace, plan)]
    result = bench.mover._carry_out("undo", [step], plans, "t", force=True)
    assert (result.removed, result.missing) == (("a",), (("b/large", "Not a directory"),))
    assert (bench.timeline.done, bench.timeline.undone) == ([], [step])
    assert bench.store.records()[-1] == {"op": "moved", "token": "t"}


def test_further_name_of_a_file_that_was_staged_is_no_change_by_somebody_else(bench: Bench) -> None:
    """To stage a hard link changes the stamp of the file that it leads to."""
    for name, text in (("a", "linked"), ("p", "own")):
        (bench.root / name).write_text(text)
    os.link(bench.root / "a", bench.root / "b")
    before = bench.trees.workspace.scan().root
    (bench.root / "b").unlink()
    (bench.root / "p").unlink()
    os.link(bench.root / "a", bench.root / "p")
    after = bench.trees.workspace.scan().root
    step = Checkpoint(
        call_id="c1", name="bash", session="s", time_s=0, before={"": before}, after={"": after}
    )
    bench.timeline.end(step)
    ((tree, plan),) = bench.mover._plan("undo", [step])
    with tree.opened() as root:
        stage, failures = stage_plan(bench.store, root, plan, "t", force=False)
        assert (failures, find_changed_since(root, plan, plan.targets)) == ([], [])
        discard_stage(root, stage, "t")
    assert bench.mover.move("undo", [step]).done
    assert (bench.root / "p").read_text() == "own"
    assert (bench.root / "a").stat().st_ino == (bench.root / "b").stat().st_ino


def test_partial_files_that_cannot_be_swept_are_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = bench.root / ".aisotools-write-t-1"
    partial.touch()
    bench.timeline.unswept["t"] = [""]

    def refuse(_name: str, *, dir_fd: int) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        bench.mover.sweep_staging()
    assert (bench.timeline.unswept, bench.operations()) == ({"t": [""]}, [])
    bench.mover.sweep_staging()
    assert (bench.timeline.unswept, bench.operations()) == ({}, ["swept"])
    assert not partial.exists()


def test_wait_ends_with_the_tick_of_the_clock_or_if_that_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before_ns = file_time()
    transactions._wait_for_tick()
    assert file_time() > before_ns
    looks: list[int] = []

    def set_back() -> int:
        looks.append(1)
        return 0

    monkeypatch.setattr(transactions, "file_time", set_back)
    transactions._wait_for_tick()
    assert 1 <= len(looks) <= 1_000
