"""One move over several trees: all of them are staged before one of them is switched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisotools.workspace.checkpoints.moves import PathList, UndoResult, find_stuck, move_trees
from aisotools.workspace.checkpoints.restore import RestorePlan
from aisotools.workspace.checkpoints.scan import ScanLimits, TrackedTree
from aisotools.workspace.checkpoints.store import Store, content_digest
from aisotools.workspace.checkpoints.tree import Node, TreePath


class Two:
    """Two folders that share a store."""

    def __init__(self, top: Path) -> None:
        self.store = Store(top / "store")
        self.roots = [top / "one", top / "two"]
        for root in self.roots:
            root.mkdir()
        self.trees = [TrackedTree(self.store, root, ScanLimits()) for root in self.roots]
        self.whole = Node("file", 0o644, self.store.put(b"whole"), 5)
        self.lost = Node("file", 0o644, content_digest(b"never stored"), 12)

    def plans(self, last: Node) -> list[tuple[TrackedTree, RestorePlan]]:
        nodes: list[dict[TreePath, Node | None]] = [
            {("a",): self.whole, ("d", "x"): None},
            {("b",): self.whole, ("c",): last},
        ]
        return [
            (tree, RestorePlan(targets=dict(targets)))
            for tree, targets in zip(self.trees, nodes, strict=True)
        ]

    def names(self) -> list[str]:
        return sorted(path.name for root in self.roots for path in root.iterdir())


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    two = Two(tmp_path)
    yield two
    two.store.close()


def test_content_that_cannot_be_staged_in_one_tree_keeps_all_of_them_as_they_are(two: Two) -> None:
    moved = move_trees(two.store, two.plans(two.lost), "t", force=False, must_succeed=True, listed=PathList())
    assert (moved.is_switched, moved.restored, two.names()) == (False, [], [])
    ((path, why),) = moved.failed
    assert path == "c"
    assert "gone" in why
    assert [path for path, _ in moved.waiting] == ["a", "d/x", "b"]


def test_content_that_may_be_left_does_not_stop_the_rest(two: Two) -> None:
    moved = move_trees(two.store, two.plans(two.lost), "t", force=True, must_succeed=False, listed=PathList())
    assert (moved.is_switched, moved.restored, two.names()) == (True, ["a", "b"], ["a", "b"])
    assert [path for path, _ in moved.failed] == ["c"]
    assert (moved.left, moved.waiting) == ([], [])


def test_all_trees_are_switched(two: Two) -> None:
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    moved = move_trees(
        two.store, two.plans(two.whole), "t", force=False, must_succeed=True, listed=PathList()
    )
    assert (moved.failed, two.names()) == ([], ["a", "b", "c"])
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_folder_of_the_staging_that_stays_is_named(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str, *, dir_fd: int) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuse)
        moved = move_trees(
            two.store, two.plans(two.whole), "t", force=False, must_succeed=True, listed=PathList()
        )
    assert moved.left == ["", ""], "the keys of both trees"


def test_paths_that_are_not_as_before_are_stuck(two: Two) -> None:
    tree = two.trees[0]
    (two.roots[0] / "gone").write_text("x")
    origin = {"": tree.scan().root}
    (two.roots[0] / "gone").unlink()
    (two.roots[0] / "new").write_text("y")
    moved = UndoResult(direction="undo", origin=origin)
    plan = RestorePlan(targets={("gone",): None})
    assert find_stuck(two.store, moved, [(tree, plan)]) == (
        ("gone", "it is as after the undo"),
        ("new", "it is neither as before nor as after"),
    )
