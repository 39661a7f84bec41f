"""What a timeline has lost or completed is said in words."""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aisotools.workspace.checkpoints.moves import UndoResult
from aisotools.workspace.checkpoints.recovery import (
    describe_completed,
    describe_ended,
    drop_lost,
    remove_partial,
)
from aisotools.workspace.checkpoints.scan import ScanLimits, Snapshot
from aisotools.workspace.checkpoints.steps import Checkpoint, Timeline
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.timeline import Checkpoints
from aisotools.workspace.checkpoints.tree import Node, encode_folder
from aisotools.workspace.checkpoints.trees import TrackedTree
from aisotools.workspace.dirfd import replace_file, take_snapshot
from aisotools.workspace.workspace import TEMPORARY, Workspace
from tests.workspace.checkpoints.test_timeline_stateful import state_of


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
    assert describe_completed(failed).endswith("was completed, but for: the workspace (full), b (no).")
    assert describe_completed(replace(failed, is_unfinished=True)) == (
        "The redo of bash (a), which was cut short, cannot be completed at: the workspace (full), b (no). No "
        "call may change files until that is possible."
    )
    spared = (("a", "saved"),)
    assert describe_completed(replace(moved, conflicts=spared)).endswith(
        "was completed, but for what somebody else has changed: a (saved)."
    )
    assert describe_completed(replace(moved, missing=(("b", "a socket"),))).endswith(
        "was completed, but for: b (a socket)."
    )
    back = replace(moved, done=False)
    assert describe_completed(back) == (
        "The undo of bash (a), which was cut short, was given up. What it had changed was taken back."
    )
    back = replace(back, missing=(("z", "refused"),), conflicts=spared, stuck=(("b", "a socket"),))
    assert describe_completed(back) == (
        "The undo of bash (a), which was cut short, was given up, since this cannot be changed: z (refused). "
        "What it had changed was taken back, but for what somebody else has changed: a (saved), and for b (a "
        "socket)."
    )
    assert describe_ended(step("a", "x", "y")) == (
        "bash (a) was cut short when the program or its event loop ended; what it has changed can be undone."
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


# ---- files that were half written


PARTIAL = f"{TEMPORARY}0123456789abcdef"


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A workspace, and a folder for its checkpoints."""
    root = tmp_path / "workspace"
    (root / "d").mkdir(parents=True)
    (root / "d" / "f").write_text("old")
    return root, tmp_path / "store"


def die_in_call(places: tuple[Path, Path], act: Callable[[Path], object]) -> None:
    """Begin a call in a process that is killed in `act`, at the latest after it."""
    pid = os.fork()  # the child does nothing but this and dies by a signal
    if pid == 0:
        try:
            chain = Checkpoints(*places)
            chain.begin("c", "tool", "s")
            act(places[0])
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_and_die(root: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", die)
        Workspace(root).write_bytes("d/f", b"new" * 1000)


def write_half_and_die(root: Path) -> None:
    write = os.write

    def write_half(file: int, data: bytes) -> int:
        write(file, data[: len(data) // 2])
        die()
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", write_half)
        Workspace(root).write_bytes("d/f", b"new" * 1000)


def put_back_and_die(root: Path) -> None:
    folder = os.open(root / "d", os.O_RDONLY)
    snapshot = take_snapshot(folder, "f", 1000, racy_ns=0, trusted=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", die)
        replace_file(folder, "f", snapshot)


@pytest.mark.parametrize("act", [write_and_die, write_half_and_die, put_back_and_die])
def test_a_file_that_was_half_written_is_removed_at_the_next_start_and_named(
    places: tuple[Path, Path], act: Callable[[Path], object]
) -> None:
    root = places[0]
    before = state_of(root)
    die_in_call(places, act)
    (partial,) = (root / "d").glob(f"{TEMPORARY}*")
    chain = Checkpoints(*places)
    assert state_of(root).keys() == before.keys()
    assert (root / "d" / "f").read_text() == "old"
    opened = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [path for path in opened if path.startswith(f"{root / 'd'}")], "nothing stays open"
    removed, ended = chain.take_notes()
    assert removed == f"Removed what tool (c) has left half written: d/{partial.name}."
    assert "tool (c) was cut short" in ended
    # It is in no state that undo or redo could bring back.
    for way in ("undo", "redo"):
        steps = chain.steps[-1:] if way == "undo" else chain.undone[-1:]
        chain.move("undo" if way == "undo" else "redo", steps)
        assert not [*root.rglob(".aisotools-*")]
    chain.close()
    chain = Checkpoints(*places)
    assert chain.take_notes() == ()
    chain.close()


def test_partial_files_of_all_kinds_are_removed_from_the_folder_of_a_new_file(
    places: tuple[Path, Path],
) -> None:
    """A link that is put back is half written, too; one that leads out of the workspace is not followed."""
    outside = places[0].parent / "outside"
    outside.write_text("a person's")

    def act(root: Path) -> None:
        (root / "new").mkdir()
        (root / "new" / PARTIAL).write_bytes(b"")
        (root / f"{TEMPORARY}{'a' * 16}").symlink_to(outside)

    die_in_call(places, act)
    chain = Checkpoints(*places)
    chain.close()
    assert sorted(state_of(places[0])) == ["d", "d/f", "new"]
    assert outside.read_text() == "a person's"


def test_a_file_that_was_there_before_the_call_stays(places: tuple[Path, Path]) -> None:
    (places[0] / PARTIAL).write_text("of another day")

    def act(root: Path) -> None:
        (root / PARTIAL).write_text("changed")

    die_in_call(places, act)
    chain = Checkpoints(*places)
    assert (places[0] / PARTIAL).read_text() == "changed"
    assert len(chain.take_notes()) == 1
    chain.close()


@pytest.mark.parametrize(
    "name", [f"{PARTIAL}0", PARTIAL[:-1], PARTIAL.upper(), f"x{PARTIAL}", f"{TEMPORARY}0123456789abcdeg", "f"]
)
def test_a_file_of_another_name_stays(places: tuple[Path, Path], name: str) -> None:
    die_in_call(places, lambda root: (root / name).write_text("made by the call"))
    chain = Checkpoints(*places)
    assert (places[0] / name).read_text() == "made by the call"
    (note,) = chain.take_notes()
    assert "half written" not in note
    chain.close()


@pytest.mark.parametrize("kind", ["written", "mapped", "linked", "folder", "fifo"])
def test_partial_file_that_may_be_in_use_stays_and_is_named(places: tuple[Path, Path], kind: str) -> None:
    root = places[0]
    path = root / PARTIAL

    def act(root: Path) -> None:
        match kind:
            case "folder":
                (root / PARTIAL).mkdir()
            case "fifo":
                os.mkfifo(root / PARTIAL)
            case _:
                (root / PARTIAL).write_text("one")
        if kind == "linked":
            os.link(root / PARTIAL, root / "other")

    die_in_call(places, act)
    why = {"linked": "it has another name", "folder": "it is not a file", "fifo": "it is not a file"}
    file = os.open(path, os.O_RDWR) if kind in {"written", "mapped"} else -1
    view = mmap.mmap(file, 3) if kind == "mapped" else None
    if view is not None:
        os.close(file)
    chain = Checkpoints(*places)
    left = why.get(kind, "a process may still be writing it")
    assert chain.take_notes()[0] == (
        f"tool (c) may have left these half written: {PARTIAL} ({left}). Remove them if nobody needs them."
    )
    assert os.path.lexists(path)
    chain.close()
    if view is not None:
        view.close()
    elif file >= 0:
        os.close(file)


def test_a_partial_file_that_somebody_changes_or_takes_meanwhile_is_left(
    places: tuple[Path, Path], store: Store
) -> None:
    """Race: between the look at the workspace and the removal."""
    root = places[0]
    changed, taken = (f"{TEMPORARY}{letter * 16}" for letter in "ab")

    class Busy(TrackedTree):
        def scan(self, *arguments: Any, **options: Any) -> Snapshot:
            found = super().scan(*arguments, **options)
            os.utime(root / changed, ns=(5, 5))
            (root / taken).unlink()
            return found

    before = TrackedTree(store, root, ScanLimits()).scan().root
    for name in (changed, taken):
        (root / name).write_text("one")
    (note,) = remove_partial(store, Busy(store, root, ScanLimits()), step("a", before))
    assert f"{changed} (it was changed a moment ago), {taken} (No such file or directory)" in note
    assert (root / changed).read_text() == "one"
