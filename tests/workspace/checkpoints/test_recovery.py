"""What a timeline has lost or completed is said in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aisotools.workspace.checkpoints.moves import UndoResult
from aisotools.workspace.checkpoints.recovery import describe_completed, describe_ended, drop_lost
from aisotools.workspace.checkpoints.steps import Checkpoint, Timeline
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import Node, encode_folder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store")
    yield store
    store.close()


def step(call_id: str, before: str, after: str = "") -> Checkpoint:
    trees = {"": after} if after else {}
    return Checkpoint(call_id=call_id, name="bash", session="s", time_s=0, before={"": before}, after=trees)


def test_steps_without_their_trees_go_with_all_before_them(store: Store) -> None:
    root = store.put(encode_folder({}))
    timeline = Timeline(
        done=[step("a", root, root), step("b", "0" * 64, root), step("c", root, root)],
        undone=[step("d", root, "1" * 64), step("e", root, root)],
    )
    assert drop_lost(timeline, store) == [
        "No longer to be undone: bash (b) and the 1 before it. What that needs was deleted or damaged.",
        "No longer to be redone: bash (d). What that needs was deleted or damaged.",
    ]
    assert [one.call_id for one in timeline.done] == ["c"]
    assert [one.call_id for one in timeline.undone] == ["e"]
    assert timeline.dropped == 2
    assert drop_lost(timeline, store) == []


@pytest.mark.parametrize("damage", ["gone", "emptied", "listing"])
def test_running_step_needs_all_that_its_tree_holds(store: Store, damage: str) -> None:
    """The power may have failed before it was written through to the disk; of one that has ended it was."""
    content = store.put(b"content")
    inner = store.put(encode_folder({"f": Node("file", 0o644, content, 7)}))
    root = store.put(encode_folder({"d": Node("folder", 0o755, inner)}))
    timeline = Timeline(running={"a": step("a", root)}, done=[step("b", root, root)])
    assert drop_lost(timeline, store) == []
    place = store.folder / "objects" / (inner if damage == "listing" else content)
    if damage == "gone":
        place.unlink()
    else:
        place.write_bytes(b"")
    (note,) = drop_lost(timeline, store)
    assert note == (
        "bash (a) was cut short, and the state before it was not stored whole: what it has changed cannot be "
        "undone."
    )
    assert timeline.running == {}
    assert len(timeline.done) == 1


def test_damaged_journal_is_named(store: Store) -> None:
    store.record(op="dropped", count=1)
    with (store.folder / "chain").open("ab") as file:
        file.write(b"no json\n{}\n")
    timeline = Timeline.read(store.records())
    (note,) = drop_lost(timeline, store)
    assert note.startswith(
        "The record of earlier calls is damaged: 2 of its 3 lines, from 2 on, cannot be read."
    )


def test_moves_and_steps_that_were_cut_short_are_named() -> None:
    moved = UndoResult(direction="undo", steps=(step("a", "x"),))
    assert describe_completed(moved) == "The undo of bash (a), which was cut short, was completed."
    failed = UndoResult(direction="redo", steps=(step("a", "x"),), failed=(("", "full"), ("b", "no")))
    assert describe_completed(failed) == (
        "The redo of bash (a), which was cut short, cannot be completed at: the workspace (full), b (no). No "
        "call may change files until that is possible."
    )
    assert describe_ended(step("a", "x", "y")) == (
        "bash (a) was cut short when the program ended; what it has changed can be undone."
    )
    assert describe_ended(step("a", "x", "x")).endswith("; it has changed no file.")


def test_last_step_that_is_lost_says_how_many_go(store: Store) -> None:
    """Those between two lost ones, too, and nothing after the last. Earlier losses stay counted."""
    root = store.put(encode_folder({}))
    timeline = Timeline(
        done=[
            step("a", "0" * 64, root),
            step("b", root, root),
            step("c", root, "1" * 64),
            step("d", root, root),
        ]
    )
    timeline.dropped = 5
    assert drop_lost(timeline, store) == [
        "No longer to be undone: bash (c) and the 2 before it. What that needs was deleted or damaged."
    ]
    assert [one.call_id for one in timeline.done] == ["d"]
    assert timeline.dropped == 8


def test_single_lost_step_is_named_alone(store: Store) -> None:
    root = store.put(encode_folder({}))
    timeline = Timeline(done=[step("a", root, "0" * 64), step("b", root, root)])
    assert drop_lost(timeline, store) == [
        "No longer to be undone: bash (a). What that needs was deleted or damaged."
    ]
    assert ([one.call_id for one in timeline.done], timeline.dropped) == (["b"], 1)


def test_running_step_needs_each_of_its_trees(store: Store) -> None:
    content = store.put(b"content")
    whole = store.put(encode_folder({}))
    broken = store.put(encode_folder({"f": Node("file", 0o644, content, 7)}))
    (store.folder / "objects" / content).unlink()
    running = {
        name: Checkpoint(call_id=name, name="bash", session="s", time_s=0, before=before, after={})
        for name, before in {"a": {"": whole, "/x": broken}, "b": {"": whole}}.items()
    }
    timeline = Timeline(running=running)
    (note,) = drop_lost(timeline, store)
    assert note.startswith("bash (a) was cut short")
    assert [*timeline.running] == ["b"]


def test_damage_of_the_record_and_lost_steps_are_both_said(store: Store) -> None:
    store.record(op="dropped", count=1)
    with (store.folder / "chain").open("ab") as file:
        file.write(b"no json\n")
    assert Timeline.read(store.records()).dropped == 1
    timeline = Timeline(done=[step("a", "0" * 64, "0" * 64)])
    damage, lost = drop_lost(timeline, store)
    assert damage.startswith("The record of earlier calls is damaged")
    assert lost.startswith("No longer to be undone: bash (a)")
    assert timeline.done == []
