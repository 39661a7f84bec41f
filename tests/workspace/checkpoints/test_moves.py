"""One move over several trees: all of them are staged before one of them is switched."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.authorship import UNKNOWN, Authorship, Evidence, JointAuthorship
from aisotools.workspace.checkpoints.moves import (
    LISTED_BYTES,
    PathList,
    TreesMoved,
    UndoResult,
    changes_by_author,
    find_stuck,
    join_authorships,
    judge_changes,
    list_changed,
    list_unredone,
    list_unrestored,
    move_trees,
    plan_trees,
    refuse_unkept,
)
from aisotools.workspace.checkpoints.plan import RestorePlan
from aisotools.workspace.checkpoints.scan import ScanLimits
from aisotools.workspace.checkpoints.steps import Checkpoint
from aisotools.workspace.checkpoints.store import Store, content_digest
from aisotools.workspace.checkpoints.tree import Node, TreePath, TreeReader
from aisotools.workspace.checkpoints.trees import TrackedTree, TrackedTrees


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
    assert (moved.unswept, moved.waiting) == ([], [])


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
    assert moved.unswept == ["", ""], "the keys of both trees"


def test_paths_that_are_not_as_before_are_stuck(two: Two) -> None:
    tree = two.trees[0]
    (two.roots[0] / "gone").write_text("x")
    origin = {"": tree.scan().root}
    (two.roots[0] / "gone").unlink()
    (two.roots[0] / "new").write_text("y")
    beside = two.roots[0] / ".aisotools-write-t-replaced"
    beside.mkdir()
    (beside / "large").write_text("z")
    moved = UndoResult(direction="undo", origin=origin, token="t")
    plan = RestorePlan(targets={("gone",): None})
    assert find_stuck(two.store, moved, [(tree, plan)]) == (
        ("gone", "it is as after the undo"),
        ("new", "it is neither as before nor as after"),
    )


@pytest.mark.parametrize("how", ["content", "time", "empty", "new"])
def test_file_with_a_new_content_that_was_written_while_nothing_wrote_is_not_the_call_s_alone(
    two: Two, how: str
) -> None:
    tree, file = two.trees[0], two.roots[0] / "file"
    if how != "new":
        file.write_text("before")
        os.utime(file, ns=(1, 1))
    before = tree.scan().root
    if how != "time":
        file.write_text("" if how == "empty" else "after")
    os.utime(file, ns=(1, 1_000))
    (two.roots[0] / "other").write_text("other")
    root = tree.scan().root
    step = Checkpoint(
        call_id="c", name="tool", session="s", time_s=1.0, before={"": before}, after={"": root}
    )
    evidence = Evidence(unwritten=[(999, 1_001)])
    expected = {("file",)} if how in {"content", "new"} else set()
    assert judge_changes(two.store, tree, step, evidence).seen == expected


# ---- what a plan says


def move(
    two: Two, *plans: RestorePlan, force: bool = False, must_succeed: bool = True, left_bytes: int = 1 << 20
) -> TreesMoved:
    pairs = [*zip(two.trees, plans, strict=False)]
    listed = PathList(left_bytes)
    return move_trees(two.store, pairs, "t", force=force, must_succeed=must_succeed, listed=listed)


GONE = (
    "The folder '{}' was moved or removed after this session had opened, and nothing is there now. Move it "
    "back, or close this session and open another one."
)


@pytest.mark.parametrize("must_succeed", [True, False])
def test_tree_that_cannot_be_opened_stops_the_others_only_where_all_must_succeed(
    two: Two, must_succeed: bool
) -> None:
    two.roots[0].rmdir()
    plan = RestorePlan(targets={("b",): two.whole})
    moved = move(two, plan, plan, must_succeed=must_succeed)
    ((path, reason),) = moved.failed
    assert (path, reason) == ("", GONE.format(two.roots[0]))
    assert moved.is_switched is not must_succeed
    assert [path.name for path in two.roots[1].iterdir()] == ([] if must_succeed else ["b"])
    assert [path for path, _ in moved.waiting] == (["b"] if must_succeed else [])


@pytest.mark.parametrize("force", [False, True])
def test_only_what_would_be_changed_waits(two: Two, force: bool) -> None:
    plan = RestorePlan(
        targets={("d",): None, ("a",): two.whole, ("b",): two.lost},
        unrestorable=((("d", "log"), "it is too large"),),
    )
    moved = move(two, plan, force=force)
    assert [path for path, _ in moved.waiting] == (["d", "a"] if force else ["a"])


@pytest.mark.parametrize("force", [False, True])
def test_result_names_what_was_put_removed_and_left(two: Two, force: bool) -> None:
    (two.roots[0] / "d").mkdir()
    for name in ("gone", "d/log"):
        (two.roots[0] / name).touch()
    plan = RestorePlan(
        targets={("a",): two.whole, ("gone",): None},
        unrestorable=((("d", "log"), "it is too large"),),
        missing=((("s",), "it is a socket"),),
    )
    moved = move(two, plan, force=force)
    left = [("s", "it is a socket"), ("d/log", "left in place: it is too large")]
    assert (moved.restored, moved.failed) == (["a"], [])
    assert moved.removed == (["d/log", "gone"] if force else ["gone"])
    assert moved.missing == (left[:1] if force else left)
    assert (two.roots[0] / "d" / "log").exists() is not force


def test_path_that_the_system_refuses_is_named_and_the_next_tree_is_changed(two: Two) -> None:
    (two.roots[0] / "d").mkdir()
    (two.roots[0] / "d" / "mine").touch()
    moved = move(two, RestorePlan(targets={("d",): None}), RestorePlan(targets={("b",): two.whole}))
    assert moved.failed == [("d", "it holds something that is not ours to remove")]
    assert moved.restored == ["b"]


def test_change_that_does_not_reach_the_disk_is_a_failure(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    (two.roots[0] / "gone").touch()

    def fail(_file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        moved = move(two, RestorePlan(targets={("gone",): None}))
    assert moved.removed == ["gone"]
    assert moved.failed == [("", "it could not be written through to the disk: Input/output error")]


def test_staged_content_is_switched_and_not_written_a_second_time(two: Two) -> None:
    copied: list[str] = []

    class Watching(Store):
        def copy(self, digest: str, file: int) -> None:
            copied.append(digest)
            super().copy(digest, file)

    two.store.__class__ = Watching
    assert move(two, RestorePlan(targets={("a",): two.whole})).restored == ["a"]
    assert copied == [two.whole.content]


def test_tree_in_which_the_staging_stays_is_named_by_its_key(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.trees[1] = TrackedTree(two.store, two.roots[1], ScanLimits(), only="b")
    (two.roots[1] / "b").touch()
    rmdir, second = os.rmdir, two.roots[1].stat().st_ino

    def refuse(name: str, *, dir_fd: int) -> None:
        if os.fstat(dir_fd).st_ino == second:
            raise PermissionError
        rmdir(name, dir_fd=dir_fd)

    plan = RestorePlan(targets={("b",): two.whole})
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuse)
        moved = move(two, plan, plan)
    assert moved.unswept == [str(two.roots[1] / "b")]
    assert moved.restored == ["b", str(two.roots[1] / "b")], "one outside of the workspace is absolute"


# ---- paths in words


def test_paths_are_whole_while_there_is_room(two: Two) -> None:
    tree, long = two.trees[0], "a" * 20 + "b" * 21
    listed = PathList(sys.getsizeof(long))
    assert listed.show(tree, (long,)) == long
    assert listed.show(tree, (long,)) == "a" * 18 + "..." + "b" * 18
    assert listed.show(tree, (long[:40],)) == long[:40], "as long as a shortened one"
    name = "c" * 200
    moved = move(two, RestorePlan(targets={(name,): two.whole, ("d" * 200,): two.lost}), must_succeed=False)
    assert (moved.restored, moved.failed[0][0]) == ([name], "d" * 200)
    plan = RestorePlan(targets={("e" * 200,): two.whole, ("f" * 200,): two.lost})
    moved = move(two, plan, must_succeed=False, left_bytes=0)
    short = [letter * 18 + "..." + letter * 18 for letter in "ef"]
    assert [*moved.restored, moved.failed[0][0]] == short


def test_changes_of_a_step_are_listed_for_the_trees_that_are_known(two: Two) -> None:
    one = two.trees[0]
    other = TrackedTree(two.store, two.roots[1], ScanLimits(), only="b")
    (two.roots[0] / "old").touch()
    before = {"": one.scan().root, other.key: other.scan().root, "unknown": one.root}
    (two.roots[0] / "old").unlink()
    for path in (two.roots[0] / "z", two.roots[1] / "b", two.roots[1] / "c"):
        path.touch()
    after = {"": one.scan().root, other.key: other.scan().root, "unknown": one.root}
    step = Checkpoint(call_id="a", name="bash", session="s", time_s=0, before=before, after=after)
    listed = [str(two.roots[1] / "b"), "old", "z"]
    later = TrackedTree(two.store, two.roots[0], ScanLimits(), only="later")  # not in the step
    assert list_changed(two.store, [one, other, later], step) == listed
    assert list_changed(two.store, [one], step) == listed[1:]


def test_each_path_that_is_stuck_has_its_state_in_every_tree(two: Two) -> None:
    """Also if one of the trees cannot be looked at."""
    gone = TrackedTree(two.store, two.roots[0], ScanLimits())
    other = TrackedTree(two.store, two.roots[1], ScanLimits(), only="d")
    folder = two.roots[1] / "d"
    folder.mkdir()
    for name in ("removed", "planned", "other"):
        (folder / name).write_text("before")
    origin = {"": gone.scan().root, other.key: other.scan().root}
    two.roots[0].rmdir()
    (folder / "removed").unlink()
    (folder / "planned").write_text("whole")
    (folder / "planned").chmod(0o644)
    (folder / "other").write_text("third")
    plan = RestorePlan(targets={("d", "planned"): two.whole, ("d", "other"): two.whole})
    moved = UndoResult(direction="redo", origin=origin)
    assert find_stuck(two.store, moved, [(gone, plan), (other, plan)]) == (
        (
            "",
            f"it cannot be looked at: {GONE.format(two.roots[0])}",
        ),
        (str(folder / "other"), "it is neither as before nor as after"),
        (str(folder / "planned"), "it is as after the redo"),
        (str(folder / "removed"), "it is gone"),
    )


def test_plan_of_an_outer_call_covers_what_the_calls_in_it_did(tmp_path: Path) -> None:
    store, folder = Store(tmp_path / "store"), tmp_path / "workspace"
    folder.mkdir()
    trees = TrackedTrees(store, folder, ScanLimits())
    roots = [trees.workspace.scan().root]
    for name in ("inner", "outer", "last"):
        (folder / name).touch()
        roots.append(trees.workspace.scan().root)

    def step(call_id: str, before: str, after: str, inside: str = "") -> Checkpoint:
        return Checkpoint(
            call_id=call_id,
            name="bash",
            session="s",
            time_s=0,
            before={"": before},
            after={"": after},
            inside=inside,
        )

    outer = step("a", roots[0], roots[2])
    inner = step("a/b", roots[0], roots[1], inside="a")
    last = step("c", roots[2], roots[3])

    def targets(*steps: Checkpoint) -> set[TreePath]:
        ((tree, plan),) = plan_trees(store, trees, "undo", steps)
        assert (tree, plan.conflicts) == (trees.workspace, ())
        return {*plan.targets}

    assert targets(last) == {("last",)}
    assert targets(last, outer, inner) == {("last",), ("outer",), ("inner",)}
    assert targets(last, inner) == {("last",), ("inner",)}
    # What lies in the workspace is not a tree of its own.
    below = replace(
        step("d", "", ""), before={"": roots[3], str(folder / "below"): roots[0]}, after={"": roots[3]}
    )
    assert [tree.key for tree, _ in plan_trees(store, trees, "undo", [below, last])] == [""]
    store.close()


def test_plan_leaves_out_no_tree_that_only_an_inner_call_changed(tmp_path: Path) -> None:
    store, folder, other = Store(tmp_path / "store"), tmp_path / "workspace", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    trees = TrackedTrees(store, folder, ScanLimits())
    outside = trees.track(other / "file")
    assert outside is not None
    start, empty = trees.workspace.scan().root, outside.scan().root
    (folder / "inner").touch()
    (other / "file").touch()
    middle, full = trees.workspace.scan().root, outside.scan().root
    (folder / "inner").rename(folder / "outer")
    end = trees.workspace.scan().root
    (folder / "outer").unlink()

    def step(call_id: str, before: dict[str, str], after: dict[str, str], inside: str = "") -> Checkpoint:
        return Checkpoint(
            call_id=call_id, name="bash", session="s", time_s=0, before=before, after=after, inside=inside
        )

    inner = step("a/b", {"": start, outside.key: empty}, {"": middle, outside.key: full}, inside="a")
    outer = step("a", {"": start}, {"": end})
    (other / "file").unlink()
    plans = plan_trees(store, trees, "redo", [inner, outer])
    assert {tree.key: {*plan.targets} for tree, plan in plans} == {
        "": {("outer",)},  # and not what the inner one made, which the outer one has renamed
        outside.key: {("file",)},
    }
    store.close()


def test_steps_are_refused_whose_last_state_is_not_kept() -> None:
    def step(call_id: str, began: int, ended: int, unkept: str = "", inside: str = "") -> Checkpoint:
        return Checkpoint(
            call_id=call_id,
            name="bash",
            session="s",
            time_s=0,
            before={"": "a"},
            inside=inside,
            began=began,
            ended=ended,
            unkept=unkept,
        )

    whole, unkept = step("whole", 1, 4), step("u", 2, 3, "full")
    refuse_unkept("redo", [whole])
    # Of calls that overlap, the last end is where the way begins; of those inside a call, that of the call.
    refuse_unkept("undo", [whole, unkept])
    refuse_unkept("undo", [step("o", 1, 4), step("o/1", 2, 3, "full", inside="o")])
    with pytest.raises(WorkspaceError, match=r"bash \(u\) cannot be undone, .*: full. With force=True"):
        refuse_unkept("undo", [unkept, step("before", 0, 1)])
    with pytest.raises(WorkspaceError, match=r"bash \(u\) cannot be redone, .*: full. Make the call again."):
        refuse_unkept("redo", [unkept])


def test_result_of_a_move_is_one_that_was_made_and_shows_no_digests() -> None:
    result = UndoResult(direction="undo", origin={"": "first digest"}, token="t")
    assert result.done
    assert result == UndoResult(direction="undo", origin={"": "other digest"}, token="u")
    assert "first digest" not in repr(result)
    assert "token" not in repr(result)
    assert LISTED_BYTES == 8 << 20
    assert not result.is_late
    assert replace(result, is_late=True) == result


# ---- whose changes they are


def step_of(before: str, after: str, **options: Any) -> Checkpoint:
    given: dict[str, Any] = {"call_id": "c", "before": {"": before}, "after": {"": after}, **options}
    return Checkpoint(name="bash", session="s", time_s=0, **given)


OTHERS = Authorship(named=frozenset({("ours",)}), is_certain=True)


def test_writers_of_the_workspace_are_no_writers_of_what_lies_outside(tmp_path: Path) -> None:
    store, folder, other = Store(tmp_path / "store"), tmp_path / "workspace", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    trees = TrackedTrees(store, folder, ScanLimits())
    outside = trees.track(other / "file")
    assert outside is not None
    before = {"": trees.workspace.scan().root, outside.key: outside.scan().root}
    for path in (folder / "file", folder / "ours", other / "file"):
        path.touch()
    after = {"": trees.workspace.scan().root, outside.key: outside.scan().root}
    step = replace(step_of("", "", authorship=OTHERS), before=before, after=after)
    plans = {tree.key: plan for tree, plan in plan_trees(store, trees, "undo", [step])}
    assert set(plans[""].targets) == {("ours",)}
    assert [path for path, _ in plans[""].others] == [("file",)]
    assert (set(plans[outside.key].targets), plans[outside.key].others) == ({("file",)}, ())
    store.close()


def test_authors_of_calls_that_overlapped_are_joined(two: Two) -> None:
    """With the paths that each may have changed, and those that something has changed in between."""
    tree, root = two.trees[0], two.roots[0]
    roots = [tree.scan().root]
    for name, content in (("first", "1"), ("both", "1"), ("both", "22"), ("last", "1")):
        (root / name).write_text(content)
        roots.append(tree.scan().root)
    reader = TreeReader(two.store)
    certain = replace(OTHERS, seen=frozenset({("first",)}))
    one = step_of(roots[0], roots[3], call_id="1", began=1, ended=3, authorship=certain)
    other = step_of(roots[2], roots[4], call_id="2", began=2, ended=4, authorship=OTHERS)
    assert join_authorships(reader, [one]) is certain
    paths = {name: (name,) for name in ("first", "both", "last")}
    assert join_authorships(reader, [one, other]) == JointAuthorship(
        (
            (certain, frozenset({paths["first"], paths["both"]})),
            (OTHERS, frozenset({paths["both"], paths["last"]})),
        ),
        between=frozenset({paths["both"]}),
    )
    silent = replace(other, authorship=UNKNOWN)
    joint = join_authorships(reader, [one, silent])
    assert isinstance(joint, JointAuthorship)
    assert joint.between == frozenset(), "a call that does not say what it changes may have done that"
    unknown_end = replace(silent, after={})
    assert join_authorships(reader, [one, unknown_end]) == JointAuthorship(
        ((certain, frozenset({paths["first"], paths["both"]})), (UNKNOWN, frozenset()))
    )


@pytest.mark.parametrize(("named", "between"), [("elsewhere", {("both",)}), ("both", set())])
def test_path_that_changed_before_and_after_a_call_ended_has_two_writers_unless_one_names_it(
    two: Two, named: str, between: set[TreePath]
) -> None:
    tree, root = two.trees[0], two.roots[0]
    roots = [tree.scan().root]
    for name, content in (("first", "1"), ("both", "1"), ("both", "22")):
        (root / name).write_text(content)
        roots.append(tree.scan().root)
    ended = step_of(roots[0], roots[2], call_id="1", began=1, ended=3)
    running = replace(OTHERS, named=frozenset({(named,)}))
    other = step_of(roots[1], roots[3], call_id="2", began=2, ended=4, authorship=running)
    joint = join_authorships(TreeReader(two.store), [ended, other])
    assert isinstance(joint, JointAuthorship)
    assert joint.between == between


def test_call_that_wrote_something_else_did_not_make_what_is_there(two: Two) -> None:
    tree, root = two.trees[0], two.roots[0]
    for name in ("right", "other", "gone", "link"):
        (root / name).write_text("before")
    before = tree.scan().root
    for name in ("right", "other"):
        (root / name).write_text(name)
    (root / "gone").unlink()
    (root / "link").unlink()
    (root / "link").symlink_to("right")
    after = tree.scan().root
    contents: dict[TreePath, list[str]] = {
        (name,): [content_digest(b"right")] for name in ("right", "other", "gone", "link", "same")
    }
    step = step_of(before, after)
    judged = judge_changes(two.store, tree, step, Evidence(contents=contents))
    assert judged.seen == {("other",), ("gone",), ("link",)}
    assert judge_changes(two.store, tree, step, Evidence(authorship=OTHERS)) is OTHERS
    for unknown in (step_of("", after), step_of(before, ""), step_of(before, before)):
        assert judge_changes(two.store, tree, unknown, Evidence(contents=contents)) is UNKNOWN


def test_changes_are_listed_by_author(two: Two) -> None:
    tree, root = two.trees[0], two.roots[0]
    before = tree.scan().root
    for name in ("ours", "mine", "both"):
        (root / name).write_text(name)
    after = tree.scan().root
    authorship = replace(OTHERS, seen=frozenset({("both",)}))
    step = step_of(before, after, authorship=authorship)
    listed = {"call": ["ours"], "others": ["mine"], "unclear": ["both"]}
    assert changes_by_author(two.store, tree, step) == listed
    nothing: dict[str, list[str]] = {"call": [], "others": [], "unclear": []}
    assert changes_by_author(two.store, tree, step_of("", after)) == nothing
    assert changes_by_author(two.store, tree, step_of(before, "")) == nothing
    assert changes_by_author(two.store, tree, replace(step_of(before, after), after={})) == nothing


# ---- what undo will not bring back


def test_all_that_undo_will_not_bring_back_is_said(two: Two) -> None:
    root = two.roots[0]
    tree = TrackedTree(two.store, root, ScanLimits(total_bytes=20, depth=1))
    for name in ("large", "large and stays"):
        (root / name).write_bytes(bytes(30))
    (root / "d").mkdir()
    (root / "d" / "small").write_text("1")
    before = tree.scan().root
    listening = socket.socket(socket.AF_UNIX)
    with listening:
        listening.bind(str(root / "s"))
        with_socket = tree.scan().root
    (root / "s").unlink()
    (root / "large").unlink()
    (root / "new").write_bytes(bytes(31))
    (root / "d" / "deep" / "deeper").mkdir(parents=True)
    (root / "d" / "small").unlink()
    after = tree.scan().root
    assert list_unrestored(two.store, [tree], step_of(before, after)) == [
        "large (it is too large)",
        "new (it will stay: it is too large)",
    ]
    assert list_unrestored(two.store, [tree], step_of(with_socket, before)) == ["s (it is a socket)"]
    assert list_unredone(two.store, [tree], step_of(before, after)) == [
        "d/deep (it lies more than 1 folders deep)"
    ], "what is large and new stays in an undo"
    assert list_unredone(two.store, [tree], step_of(before, with_socket)) == [], "it holds nothing"
    (root / "d" / "deep" / "deeper").rmdir()
    (root / "large and stays").write_bytes(bytes(29))
    (root / "new").write_bytes(bytes(1))
    small = tree.scan().root
    (root / "new").write_bytes(bytes(29))
    assert list_unredone(two.store, [tree], step_of(small, tree.scan().root)) == ["new (it is too large)"]
    many = "the workspace (there are too many files in it)"
    assert list_unrestored(two.store, [tree], step_of("", after)) == [many]
    for unknown in (step_of(before, ""), replace(step_of(before, after), after={})):
        assert list_unrestored(two.store, [tree], unknown) == []


def test_names_outside_of_what_the_call_changed_are_counted(two: Two) -> None:
    root, tree = two.roots[0], two.trees[0]
    (root / "a").write_text("1")
    os.link(root / "a", root / "b")
    os.link(root / "a", two.roots[1] / "outside")
    (root / "alone").write_text("2")
    before = tree.scan().root
    (root / "a").unlink()
    (root / "alone").unlink()
    step = step_of(before, tree.scan().root)
    assert list_unrestored(two.store, [tree], step) == ["a (its 1 other name outside of the workspace)"]
    (two.roots[1] / "outside").unlink()
    os.link(root / "b", root / "a")
    before = tree.scan().root
    (root / "a").unlink()
    assert list_unrestored(two.store, [tree], step_of(before, tree.scan().root)) == [], "b has it as well"


def test_bits_that_lend_rights_are_said_where_an_undo_cannot_set_them(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, tree = two.roots[0], two.trees[0]
    (root / "a").write_text("1")
    (root / "a").chmod(0o4755)
    before = tree.scan().root
    (root / "a").unlink()
    step = step_of(before, tree.scan().root)
    owner = root.stat()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert list_unrestored(two.store, [tree], step) == ["a (its setuid or setgid bit)"]
    if owner.st_uid == 0:
        os.chown(root, 12345, owner.st_gid)
        (root / "a").write_text("1")
        os.chown(root / "a", 12345, owner.st_gid)
        (root / "a").chmod(0o4755)
        before = tree.scan().root
        (root / "a").unlink()
        step = step_of(before, tree.scan().root)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    else:
        monkeypatch.undo()
    assert list_unrestored(two.store, [tree], step) == []


# ---- while it is staged


@pytest.mark.parametrize("late", [0, 1])
def test_save_in_one_tree_while_all_is_staged_keeps_all_as_they_are(two: Two, late: int) -> None:
    (two.roots[late] / "a").write_text("a person's")
    plans = [RestorePlan(targets={("a",): two.whole}, present={("a",): None}, looked_ns=1) for _ in range(2)]
    moved = move(two, *plans)
    assert (moved.is_late, moved.is_switched) == (True, False)
    assert [why for _, why in moved.failed] == ["somebody else is changing it just now"]
    assert two.names() == ["a"]
    assert (two.roots[late] / "a").read_text() == "a person's"
    for force in (False, True):
        moved = move(two, *plans, force=force, must_succeed=force)
        assert (moved.is_late, moved.is_switched) == (False, True)
