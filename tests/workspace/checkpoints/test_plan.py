"""Plans of restores: what they change, what they leave, and what is contested."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aisotools.workspace.checkpoints.authorship import UNKNOWN, Authorship, changed_nodes
from aisotools.workspace.checkpoints.moves import find_changed_since
from aisotools.workspace.checkpoints.plan import RestorePlan, plan_restore
from aisotools.workspace.checkpoints.restore import (
    RestoreResult,
)
from aisotools.workspace.checkpoints.steps import Direction
from aisotools.workspace.checkpoints.tree import Node, encode_folder
from tests.waiting import file_times_advance
from tests.workspace.checkpoints.test_restore import TrackedFolder, descriptors

CHANGED = "it was changed by somebody else since"
REMOVED = "it was removed by somebody else since"
ADDED = "it was put there by somebody else since"


@pytest.fixture
def tracked(tmp_path: Path) -> Iterator[TrackedFolder]:
    folder = TrackedFolder(tmp_path)
    yield folder
    folder.store.close()


def test_plan_of_no_change_is_empty(tracked: TrackedFolder) -> None:
    (tracked.root / "a").write_text("1")
    root = tracked.scan()
    assert tracked.plan(root, root) == RestorePlan()


def test_names_of_one_file_that_went_apart_in_several_steps_are_one_file_again(
    tracked: TrackedFolder,
) -> None:
    a, b = tracked.root / "a", tracked.root / "b"
    a.write_text("1")
    os.link(a, b)
    first = tracked.scan()
    a.unlink()
    second = tracked.scan()
    b.unlink()
    b.write_text("22")
    third = tracked.scan()
    plan = tracked.plan(third, second, first)
    assert set(plan.targets) == {("a",), ("b",)}
    assert plan.links_of(plan.targets) == {("a",): ("b",)}
    assert tracked.plan(third, second).links_of(plan.targets) == {}


def test_plan_leads_back_over_several_steps(tracked: TrackedFolder) -> None:
    (tracked.root / "a").write_text("1")
    (tracked.root / "gone").write_text("g")
    first = tracked.scan()
    (tracked.root / "a").write_text("22")
    (tracked.root / "gone").unlink()
    second = tracked.scan()
    (tracked.root / "a").write_text("333")
    (tracked.root / "new").mkdir()
    third = tracked.scan()
    plan = tracked.plan(third, second, first)
    assert plan.targets["new",] is None
    for name, text in (("a", "1"), ("gone", "g")):
        assert tracked.file(text).is_like(plan.targets[name,])
    assert plan.touched == {("a",), ("gone",), ("new",)}
    assert (plan.conflicts, plan.missing, plan.unrestorable) == ((), (), ())
    (tracked.root / "a").write_text("1")  # as it should be, but for its time: no conflict
    plan = tracked.plan(third, first)
    assert (set(plan.targets), plan.conflicts) == ({("a",), ("gone",), ("new",)}, ())
    node = plan.targets["a",]
    assert node is not None
    assert node.mtime_ns is not None
    os.utime(tracked.root / "a", ns=(0, node.mtime_ns))  # and now there is nothing to do
    assert set(tracked.plan(third, first).targets) == {("gone",), ("new",)}


def test_path_that_is_neither_as_before_nor_as_after_is_contested(tracked: TrackedFolder) -> None:
    for name in ("a", "b", "c"):
        (tracked.root / name).write_text("before")
    first = tracked.scan()
    for name in ("a", "b", "new"):
        (tracked.root / name).write_text("call")
    (tracked.root / "c").unlink()
    second = tracked.scan()
    (tracked.root / "a").write_text("person")
    (tracked.root / "b").unlink()
    (tracked.root / "c").write_text("person")
    (tracked.root / "new").write_text("person")
    plan = tracked.plan(second, first)
    assert plan.conflicts == tuple((name, CHANGED) for name in ("a", "b", "c", "new"))
    assert plan.contested == {("a",), ("b",), ("c",), ("new",)}
    assert set(plan.targets) == plan.contested
    rest = plan.without_conflicts()
    assert (rest.targets, rest.conflicts, rest.contested) == ({}, (), frozenset())
    assert rest.touched == plan.touched


def test_folder_that_somebody_has_removed_is_contested_and_made_again(tracked: TrackedFolder) -> None:
    (tracked.root / "d" / "e").mkdir(parents=True)
    (tracked.root / "d" / "e" / "f").write_text("before")
    before = tracked.scan()
    (tracked.root / "d" / "e" / "f").unlink()
    after = tracked.scan()
    (tracked.root / "d" / "e").rmdir()
    (tracked.root / "d").rmdir()
    plan = tracked.plan(after, before)
    removed = "it was removed by somebody else since"
    assert plan.conflicts == (("d", removed), ("d/e", removed))
    assert tracked.restore(dict(plan.targets)).failed == []
    assert (tracked.root / "d" / "e" / "f").read_text() == "before"


def test_mode_of_a_file_that_somebody_has_changed_is_a_conflict_and_that_of_a_folder_is_none(
    tracked: TrackedFolder,
) -> None:
    """A file that somebody has made private must not be readable again because a call was undone."""
    (tracked.root / "a").write_text("1")
    (tracked.root / "d").mkdir()
    first = tracked.scan()
    (tracked.root / "a").write_text("2")
    (tracked.root / "d").chmod(0o700)
    second = tracked.scan()
    (tracked.root / "a").chmod(0o600)
    (tracked.root / "d").chmod(0o711)
    plan = tracked.plan(second, first)
    assert plan.conflicts == (("a", "its mode or its attributes were changed by somebody else since"),)
    assert set(plan.targets) == {("a",), ("d",)}
    (tracked.root / "a").chmod(0o644)
    os.utime(tracked.root / "a")
    assert tracked.plan(second, first).conflicts == (), "its time alone is none"


@pytest.mark.parametrize("instead", [None, "file", "folder"])
def test_entry_of_somebody_else_in_a_folder_that_goes_is_contested(
    tracked: TrackedFolder, instead: str | None
) -> None:
    if instead == "file":
        (tracked.root / "d").write_text("1")
    elif instead == "folder":
        (tracked.root / "d").mkdir()
    first = tracked.scan()
    if instead == "file":
        (tracked.root / "d").unlink()
    (tracked.root / "d").mkdir(exist_ok=True)
    (tracked.root / "d" / "ours").write_text("1")
    second = tracked.scan()
    (tracked.root / "d" / "mine").write_text("2")
    plan = tracked.plan(second, first)
    assert plan.conflicts == (() if instead == "folder" else (("d/mine", ADDED),))
    assert ("d", "mine") not in plan.targets


def test_plan_without_a_tree_is_refused(tracked: TrackedFolder) -> None:
    reason = "its files were not covered: there were too many of them"
    refusal = RestorePlan(missing=(((), reason),))
    root = tracked.scan()
    assert tracked.plan(root, "") == tracked.plan(root, "", root) == refusal
    (tracked.root / "a").touch()
    assert tracked.plan("", root).targets == {("a",): None}, "from what is there now"
    tracked.track(entries=0)
    reason = "its files are not covered: it holds more than 0 files and folders"
    assert tracked.plan(root, root) == RestorePlan(missing=(((), reason),))


def test_unstored_files_are_reported_missing_or_left(tracked: TrackedFolder) -> None:
    tracked.track(total_bytes=10)
    (tracked.root / "large").write_bytes(bytes(11))
    (tracked.root / "d").mkdir()
    (tracked.root / "d" / "small").write_bytes(b"1")
    os.mkfifo(tracked.root / "fifo")
    first = tracked.scan()
    (tracked.root / "large").unlink()
    (tracked.root / "d" / "small").unlink()
    (tracked.root / "d").rmdir()
    (tracked.root / "fifo").unlink()
    (tracked.root / "e" / "f").mkdir(parents=True)
    (tracked.root / "e" / "f" / "log").write_bytes(bytes(12))
    (tracked.root / "e" / "g").write_bytes(b"2")
    second = tracked.scan()
    plan = tracked.plan(second, first)
    assert plan.missing == ((("large",), "it was not kept: it is too large"),)
    assert plan.unrestorable == ((("e", "f", "log"), "it is too large"),)
    assert set(plan.targets) == {("d",), ("d", "small"), ("fifo",), ("e",), ("e", "f"), ("e", "g")}
    around = plan.targets_around_unrestorable()
    assert set(around) == {("d",), ("d", "small"), ("fifo",), ("e", "g")}


def test_socket_cannot_be_planned(tracked: TrackedFolder) -> None:
    empty = tracked.scan()
    socket = tracked.store.put(b"o 0 0 socket\0s")
    assert tracked.plan(empty, socket).missing == ((("s",), "it is a socket"),)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_restore_that_is_resumed_takes_for_its_own_only_that_nothing_is_there(
    tracked: TrackedFolder, is_resumed: bool
) -> None:
    """It may have removed something and not put anything there yet. It never writes an unknown content."""
    (tracked.root / "around").mkdir()
    for name in ("gone", "mine", "around/f"):
        (tracked.root / name).write_text("before")
    before = tracked.scan()
    for name in ("gone", "mine", "new", "around/f"):
        (tracked.root / name).write_text("call")
    after = tracked.scan()
    (tracked.root / "gone").unlink()
    (tracked.root / "around" / "f").unlink()
    (tracked.root / "around").rmdir()
    for name in ("mine", "new"):
        (tracked.root / name).write_text("person")
    always = (("mine", CHANGED), ("new", CHANGED))
    removed = (("around", REMOVED), ("around/f", CHANGED), ("gone", CHANGED))
    plan = tracked.plan(after, before, is_resumed=is_resumed)
    assert plan.conflicts == (always if is_resumed else (*removed, *always))
    assert {("around",), ("around", "f"), ("gone",)} <= plan.targets.keys()


def test_folder_beyond_the_depth_is_sealed_only_if_it_is_to_be_removed(tracked: TrackedFolder) -> None:
    tracked.track(depth=1)
    (tracked.root / "d").mkdir()
    (tracked.root / "d" / "instead").write_text("file")
    before = tracked.scan()
    (tracked.root / "d" / "instead").unlink()
    for name in ("instead", "new"):
        (tracked.root / "d" / name / "deep").mkdir(parents=True)
    plan = tracked.plan(tracked.scan(), before)
    assert (plan.sealed, plan.unrestorable) == ((("d", "new"),), ())
    ((path, node),) = plan.targets.items()
    assert path == ("d", "instead")
    assert tracked.file("file").is_like(node)


def test_contested_folder_beyond_the_depth_is_left_alone(tracked: TrackedFolder) -> None:
    tracked.track(depth=1)
    (tracked.root / "d").mkdir()
    before = tracked.scan()
    for name in ("mine", "ours"):
        (tracked.root / "d" / name / "deep").mkdir(parents=True)
    after = tracked.scan()
    (tracked.root / "d" / "mine" / "deep" / "file").write_text("person")
    plan = tracked.plan(after, before)
    assert plan.contested == {("d", "mine")}
    assert set(plan.sealed) == {("d", "mine"), ("d", "ours")}, "all that force removes"
    rest = plan.without_conflicts()
    assert rest.sealed == (("d", "ours"),)
    assert tracked.carry_out(rest) == RestoreResult(removed=[("d", "ours")])
    assert (tracked.root / "d" / "mine" / "deep" / "file").read_text() == "person"


# ---- whose a change is


def plan_by(
    tracked: TrackedFolder,
    start: str,
    end: str,
    authorship: Authorship,
    direction: Direction = "undo",
    *,
    force: bool = False,
    is_resumed: bool = False,
) -> RestorePlan:
    return plan_restore(
        tracked.store,
        tracked.tree,
        [(start, end)],
        authorships=[authorship],
        direction=direction,
        force=force,
        is_resumed=is_resumed,
    )


OURS = frozenset({("ours",)})


def test_file_that_only_somebody_else_has_changed_during_a_call_stays(tracked: TrackedFolder) -> None:
    before = tracked.scan()
    for name in ("ours", "mine"):
        (tracked.root / name).write_text(name)
    after = tracked.scan()
    others = Authorship(named=OURS, is_certain=True)
    plan = plan_by(tracked, after, before, others)
    assert (dict(plan.targets), plan.conflicts) == ({("ours",): None}, ())
    assert plan.others == ((("mine",), "it was changed during the call, and not by it"),)
    assert plan.touched == OURS
    (tracked.root / "ours").unlink()
    redo = plan_by(tracked, before, after, others, "redo")
    assert (set(redo.targets), redo.others, redo.conflicts) == (set(OURS), (), ()), "it is there already"
    (tracked.root / "mine").write_text("since")
    redo = plan_by(tracked, before, after, others, "redo")
    assert [path for path, _ in redo.others] == [("mine",)]
    (tracked.root / "mine").unlink()
    redo = plan_by(tracked, before, after, others, "redo")
    assert set(redo.targets) == {("ours",), ("mine",)}, "as the undo would have left it"


@pytest.mark.parametrize(
    ("authorship", "why"),
    [
        (Authorship(named=OURS), "it was changed during the call, and not, or not only, by the call"),
        (Authorship(named=OURS, is_certain=True), "it was changed during the call, and not by it"),
    ],
)
def test_undo_that_is_forced_says_whose_change_it_replaces(
    tracked: TrackedFolder, authorship: Authorship, why: str
) -> None:
    before = tracked.scan()
    for name in ("ours", "mine"):
        (tracked.root / name).write_text(name)
    after = tracked.scan()
    plan = plan_by(tracked, after, before, authorship, force=True)
    assert set(plan.targets) == {("ours",), ("mine",)}
    assert plan.conflicts == (("mine", why),)
    assert plan_by(tracked, after, before, authorship, force=True, is_resumed=True).conflicts == ()
    redo = plan_by(tracked, before, after, Authorship(named=OURS), "redo")
    assert redo.conflicts == (), "what is there is what the call left"


ATTRIBUTES: dict[str, Callable[[Path], object]] = {
    "mode": lambda path: path.chmod(0o700),
    "time": lambda path: os.utime(path, ns=(10**18, 10**18)),
    "attribute": lambda path: os.setxattr(path, "user.mine", b"1"),
    "mode of a folder": lambda path: (path.parent / "folder").chmod(0o700),
    "time of a folder": lambda path: os.utime(path.parent / "folder", ns=(10**18, 10**18)),
    "attribute of a folder": lambda path: os.setxattr(path.parent / "folder", "user.mine", b"1"),
}


@pytest.mark.parametrize("change", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_attributes_that_somebody_else_has_changed_during_a_call_are_a_conflict(
    tracked: TrackedFolder, change: Callable[[Path], object]
) -> None:
    (tracked.root / "mine").write_text("1")
    (tracked.root / "folder").mkdir()
    before = tracked.scan()
    change(tracked.root / "mine")
    after = tracked.scan()
    ((path, _),) = changed_nodes(tracked.store, before, after).items()
    seen = plan_by(tracked, after, before, Authorship(seen=frozenset({path})))
    assert [name for name, _ in seen.conflicts] == [path[0]]
    others = plan_by(tracked, after, before, Authorship(named=OURS, is_certain=True))
    assert ([name for name, _ in others.others], dict(others.targets)) == ([path], {})
    own = plan_by(tracked, after, before, UNKNOWN)
    assert ({*own.targets, *own.timed}, own.conflicts) == ({path}, ())
    assert path not in others.timed
    forced = plan_by(tracked, after, before, Authorship(seen=frozenset({path})), force=True)
    assert path in {*forced.targets, *forced.timed}
    again = plan_by(tracked, after, before, Authorship(seen=frozenset({path})), is_resumed=True)
    assert again.conflicts == ()


def test_time_of_a_folder_comes_back_with_what_a_call_changes_in_it_alone(tracked: TrackedFolder) -> None:
    """A person's file in it changes the time as well, and so does one that is put aside and back."""
    ours, mine = tracked.root / "ours", tracked.root / "mine"
    for folder in (ours, mine):
        folder.mkdir()
        os.utime(folder, ns=(10**18, 10**18))
    before = tracked.scan()
    (ours / "new").touch()
    (mine / "new").touch()
    after = tracked.scan()
    plan = plan_by(tracked, after, before, Authorship(named=OURS, is_certain=True))
    assert (set(plan.targets), plan.conflicts, plan.timed) == ({("ours", "new")}, (), frozenset())
    assert [path for path, _ in plan.others] == [("mine", "new")]
    os.utime(mine, ns=(10**18 + 1, 10**18 + 1))
    assert plan_by(tracked, after, before, Authorship(named=OURS, is_certain=True)).conflicts == ()


def test_time_that_a_person_has_set_stays_in_an_undo_and_a_redo(tracked: TrackedFolder) -> None:
    folder, certain = tracked.root / "mine", Authorship(named=OURS, is_certain=True)
    folder.mkdir()
    before = tracked.scan()
    os.utime(folder, ns=(10**18, 10**18))
    after = tracked.scan()
    assert plan_by(tracked, before, after, certain, "redo").timed == {("mine",)}
    os.utime(folder, ns=(10**17, 10**17))
    again = plan_by(tracked, before, after, certain, "redo")
    assert (again.timed, [path for path, _ in again.others]) == (frozenset(), [("mine",)])
    assert plan_by(tracked, after, before, certain, force=True).timed == {("mine",)}


def test_content_that_a_person_has_put_back_is_no_conflict(tracked: TrackedFolder) -> None:
    (tracked.root / "mine").write_text("1")
    before = tracked.scan()
    (tracked.root / "mine").write_text("2")
    after = tracked.scan()
    (tracked.root / "mine").write_text("1")
    assert plan_by(tracked, after, before, Authorship(seen=frozenset({("mine",)}))).conflicts == ()


def test_plan_of_an_undo_brings_back_bits_that_lend_rights_and_says_when_it_looked(
    tracked: TrackedFolder,
) -> None:
    (tracked.root / "a").write_text("1")
    before = tracked.scan()
    (tracked.root / "a").write_text("22")
    after = tracked.scan()
    undo = plan_by(tracked, after, before, UNKNOWN)
    assert undo.keeps_set_ids
    assert not plan_by(tracked, before, after, UNKNOWN, "redo").keeps_set_ids
    assert undo.looked_ns > 0
    assert undo.end == before
    assert plan_by(tracked, after, before, UNKNOWN, is_resumed=True).looked_ns > 0


def test_folder_around_what_cannot_be_removed_stays_unless_that_is_forced(tracked: TrackedFolder) -> None:
    tracked.track(total_bytes=10)
    before = tracked.scan()
    (tracked.root / "d").mkdir()
    (tracked.root / "d" / "log").write_bytes(bytes(12))
    (tracked.root / "d" / "small").write_bytes(b"2")
    plan = tracked.plan(tracked.scan(), before)
    assert set(plan.targets_of(force=False)) == {("d", "small")}
    assert set(plan.targets_of(force=True)) == {("d",), ("d", "small")}


# ---- several names of one file


def three_names(tracked: TrackedFolder) -> list[Path]:
    """Make a file of three names: a, b and c."""
    first, *others = names = [tracked.root / name for name in "abc"]
    first.write_text("1")
    for other in others:
        os.link(first, other)
    return names


def test_name_that_was_removed_leads_to_the_file_of_the_others_again(tracked: TrackedFolder) -> None:
    a, b, c = three_names(tracked)
    first = tracked.scan()
    c.unlink()
    plan = tracked.plan(tracked.scan(), first)
    assert set(plan.targets) == {("c",)}
    assert plan.links_of(plan.targets) == {("c",): ("a",)}
    assert tracked.carry_out(plan) == RestoreResult(restored=[("c",)])
    assert a.stat().st_ino == b.stat().st_ino == c.stat().st_ino


def test_name_of_a_file_that_somebody_has_replaced_is_none_of_the_old_one(tracked: TrackedFolder) -> None:
    """The other name leads to another file now, which must not get the content of the old one."""
    a, b, c = (tracked.root / name for name in "abc")
    a.write_text("1")
    os.link(a, c)
    first = tracked.scan()
    c.unlink()
    second = tracked.scan()
    a.unlink()
    a.write_text("a person's")
    plan = tracked.plan(second, first)
    assert plan.links_of(plan.targets) == {}
    assert tracked.carry_out(plan).failed == []
    assert (a.read_text(), c.read_text(), b.exists()) == ("a person's", "1", False)
    a.unlink()
    assert tracked.plan(second, first).links_of(plan.targets) == {}, "and so if it is gone"


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.chmod(0o600),
        lambda a: os.utime(a, ns=(5, 5)),
        lambda a: a.rename(a.with_name("d")),
        lambda a: a.write_text("a person's"),
        lambda a: a.unlink(),
    ],
    ids=["mode", "time", "moved", "written", "removed"],
)
def test_name_that_comes_back_as_a_file_of_its_own_is_named(
    tracked: TrackedFolder, change: Callable[[Path], object]
) -> None:
    a, b, c = three_names(tracked)
    first = tracked.scan()
    b.unlink()
    c.unlink()
    second = tracked.scan()
    change(a)
    result = tracked.carry_out(tracked.plan(second, first))
    why = "it is back as a file of its own: a, once a name of the same file, was not found as it was then"
    assert result.left_out == [(("b",), why), (("c",), why)]
    assert b.stat().st_ino == c.stat().st_ino
    assert b.stat().st_nlink == 2


def test_name_that_is_joined_with_one_that_stays_lacks_nothing(tracked: TrackedFolder) -> None:
    a, b, c = three_names(tracked)
    first = tracked.scan()
    b.unlink()
    second = tracked.scan()
    c.unlink()
    assert tracked.carry_out(tracked.plan(second, first)).left_out == []
    assert a.stat().st_ino == b.stat().st_ino


def test_name_that_cannot_be_put_back_is_named_once(tracked: TrackedFolder) -> None:
    a, b = tracked.root / "a", tracked.root / "b"
    a.write_text("1")
    os.link(a, b)
    first = tracked.scan()
    b.unlink()
    second = tracked.scan()
    a.write_text("a person's")
    plan = tracked.plan(second, first)
    b.mkdir()
    result = tracked.carry_out(plan, force=True)
    assert [path for path, _ in [*result.changed, *result.failed, *result.left_out]] == [("b",)]


def test_file_that_was_copied_instead_of_linked_is_one_with_its_other_name_again(
    tracked: TrackedFolder,
) -> None:
    """Neither content nor attributes tell the copy from the link."""
    a, b = tracked.root / "a", tracked.root / "b"
    a.write_text("1")
    os.link(a, b)
    first = tracked.scan()
    b.unlink()
    shutil.copy2(a, b)
    plan = tracked.plan(tracked.scan(), first)
    assert plan.conflicts == ()
    tracked.carry_out(plan)
    assert a.stat().st_ino == b.stat().st_ino


def test_file_that_was_linked_instead_of_copied_is_one_of_its_own_again(tracked: TrackedFolder) -> None:
    a, b, c = (tracked.root / name for name in "abc")
    a.write_text("1")
    shutil.copy2(a, b)
    first = tracked.scan()
    b.unlink()
    os.link(a, b)
    second = tracked.scan()
    for has_third in (False, True):
        if has_third:
            os.link(a, c)  # somebody else's
        plan = tracked.plan(second, first)
        assert plan.conflicts == ()
        assert ("b",) in plan.groups
    tracked.carry_out(plan)
    assert a.stat().st_ino == c.stat().st_ino != b.stat().st_ino


def test_name_that_leads_where_it_should_is_left_alone(tracked: TrackedFolder) -> None:
    a, b, c = (tracked.root / name for name in "abc")
    a.write_text("1")
    os.link(a, b)
    first = tracked.scan()
    b.unlink()
    b.write_text("other")
    second = tracked.scan()
    b.unlink()
    os.link(a, b)
    plan = tracked.plan(second, first)
    assert (dict(plan.targets), plan.conflicts, plan.groups) == ({}, (), {})
    # A third name, of which the tree that is led to knows nothing.
    os.link(a, c)
    plan = tracked.plan(second, first)
    assert (dict(plan.targets), plan.conflicts) == ({}, ())


def test_content_that_a_person_has_linked_elsewhere_stays_theirs(tracked: TrackedFolder) -> None:
    b, c = tracked.root / "b", tracked.root / "c"
    b.write_text("before")
    first = tracked.scan()
    b.write_text("call")
    second = tracked.scan()
    os.link(b, c)
    plan = tracked.plan(second, first)
    assert plan.conflicts == ()
    assert tracked.carry_out(plan).failed == []
    assert (b.read_text(), c.read_text()) == ("before", "call")


# ---- between the plan and its restore


def test_change_after_the_plan_was_made_is_found(tracked: TrackedFolder) -> None:
    for name in ("a", "b", "gone"):
        (tracked.root / name).write_text("1")
    before = tracked.scan()
    for name in ("a", "b"):
        (tracked.root / name).write_text("22")
    (tracked.root / "gone").unlink()
    (tracked.root / "new").mkdir()
    (tracked.root / "new" / "file").write_text("3")
    plan = tracked.plan(tracked.scan(), before)

    def found() -> list[str]:
        with tracked.tree.opened() as root:
            failures = find_changed_since(root, plan, plan.targets)
        assert {why for _, why in failures} <= {"somebody else is changing it just now"}
        return sorted("/".join(path) for path, _ in failures)

    file_times_advance()
    plan = tracked.plan(tracked.scan(), before)
    opened = descriptors()
    assert found() == []
    (tracked.root / "b").write_text("333")
    (tracked.root / "gone").write_text("a person's")
    assert found() == ["b", "gone"]
    (tracked.root / "a").unlink()
    (tracked.root / "new" / "file").unlink()
    assert found() == ["a", "b", "gone", "new", "new/file"], "a folder changes with what it holds"
    (tracked.root / "new").rmdir()
    assert found() == ["a", "b", "gone", "new", "new/file"]
    assert descriptors() == opened


def test_file_that_gets_a_further_name_while_it_is_staged_has_not_changed(tracked: TrackedFolder) -> None:
    a, b = tracked.root / "a", tracked.root / "b"
    a.write_text("1")
    os.link(a, b)
    before = tracked.scan()
    b.unlink()
    after = tracked.scan()
    file_times_advance()
    plan = tracked.plan(after, before)
    os.link(a, tracked.root / "staged")
    opened = descriptors()
    with tracked.tree.opened() as root:
        assert find_changed_since(root, plan, [("b",)]) == []
        assert find_changed_since(root, replace(plan, looked_ns=0), [("a",)]) == []
        missing = replace(plan, anchors={1: ("gone", "x"), 2: ("gone",)}, looked_ns=0)
        assert [path for path, _ in find_changed_since(root, missing, [("a",)])] == [("a",)]
    assert descriptors() == opened


def test_name_that_is_gone_with_its_folder_is_as_the_plan_found_it(tracked: TrackedFolder) -> None:
    (tracked.root / "d").mkdir()
    (tracked.root / "d" / "f").write_text("1")
    before = tracked.scan()
    (tracked.root / "d" / "f").unlink()
    (tracked.root / "d").rmdir()
    plan = tracked.plan(tracked.scan(), before)
    assert {path for path in plan.targets if plan.is_absent(path)} == {("d",), ("d", "f")}
    with tracked.tree.opened() as root:
        assert find_changed_since(root, plan, plan.targets) == []


def test_files_that_were_being_written_when_a_state_was_kept_are_not_brought_back(
    tracked: TrackedFolder,
) -> None:
    partial = tracked.root / ".aisotools-write-0123456789abcdef"
    own = tracked.root / ".aisotools-write-mine"
    for path in (partial, own):
        path.write_text("half")
    before = tracked.scan()
    for path in (partial, own):
        path.unlink()
    after = tracked.scan()
    plan = tracked.plan(after, before)
    assert set(plan.targets) == {(own.name,)}
    for path in (partial, own):
        path.write_text("half")
    left = tracked.scan()
    assert set(tracked.plan(left, after).targets) == {(partial.name,), (own.name,)}, "removed, all of them"


def test_two_files_with_as_many_names_each_are_told_apart(tracked: TrackedFolder) -> None:
    for first, names in (("a", "bx"), ("c", "dy")):
        (tracked.root / first).write_text(first)
        for name in names:
            os.link(tracked.root / first, tracked.root / name)
    before = tracked.scan()
    for name in "xy":
        (tracked.root / name).unlink()
    plan = tracked.plan(tracked.scan(), before)
    assert plan.links_of(plan.targets) == {("x",): ("a",), ("y",): ("c",)}


def test_file_of_an_earlier_version_s_tree_that_is_there_is_left_alone(tracked: TrackedFolder) -> None:
    """Such a tree knows no times, so its nodes never equal those of now."""
    (tracked.root / "a").write_text("call")
    after = tracked.scan()
    (tracked.root / "a").write_text("before")
    (tracked.root / "a").chmod(0o644)
    before = tracked.store.put(encode_folder({"a": tracked.file("before")}))
    plan = tracked.plan(after, before)
    assert plan.targets == {}
    assert plan.touched == {("a",)}


# ---- what cannot be read


WHY = "it cannot be read: Input/output error"


@contextmanager
def unreadable(call: str, path: Path) -> Iterator[None]:
    """Let `scandir` fail in a folder, or `fstat` of a file."""
    inode, real, status_of = path.stat().st_ino, getattr(os, call), os.fstat

    def fail(opened: int) -> Any:
        if status_of(opened).st_ino == inode:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(opened)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, fail)
        yield


def test_path_in_a_folder_that_cannot_be_read_is_contested_and_left(tracked: TrackedFolder) -> None:
    folder = tracked.root / "d"
    folder.mkdir()
    for name in ("edited", "gone"):
        (folder / name).write_text("before")
    before = tracked.scan()
    (folder / "edited").write_text("call")
    (folder / "made").write_text("call")
    (folder / "gone").unlink()
    after = tracked.scan()
    names = ("edited", "gone", "made")
    with unreadable("scandir", folder):
        plan = tracked.plan(after, before)
    assert plan.conflicts == tuple(
        (f"d/{name}", f"what is there cannot be compared: {WHY}") for name in names
    )
    assert plan.missing == tuple((("d", name), f"what is there is not known: {WHY}") for name in names)
    assert plan.hidden == tuple((("d", name), WHY) for name in names)
    assert plan.targets == {}
    assert tracked.plan(after, before).hidden == ()


def test_folder_that_the_call_itself_made_unreadable_is_brought_back(tracked: TrackedFolder) -> None:
    folder = tracked.root / "d"
    folder.mkdir()
    (folder / "f").write_text("before")
    before = tracked.scan()
    with unreadable("scandir", folder):
        after = tracked.scan()
        plan = tracked.plan(after, before)
    assert (plan.conflicts, plan.missing) == ((), ())
    assert set(plan.targets) == {("d",), ("d", "f")}
    assert plan.hidden == ((("d",), WHY),), "whatever else is in it stays"


@pytest.mark.parametrize("is_new", [False, True])
def test_file_that_cannot_be_read_is_contested_and_replaced_only_by_what_is_known(
    tracked: TrackedFolder, is_new: bool
) -> None:
    file = tracked.root / "a"
    if not is_new:
        file.write_text("before")
    before = tracked.scan()
    file.write_text("the call's")
    after = tracked.scan()
    with unreadable("fstat", file):
        plan = tracked.plan(after, before)
    assert plan.conflicts == (("a", f"what is there cannot be compared: {WHY}"),)
    assert (plan.missing, plan.hidden) == ((), ())
    assert set(plan.targets) == (set() if is_new else {("a",)})
    assert plan.unrestorable == (((("a",), WHY),) if is_new else ())


def test_plan_is_of_an_undo_that_was_not_cut_short_unless_it_is_said(tracked: TrackedFolder) -> None:
    (tracked.root / "a").write_text("before")
    before = tracked.scan()
    (tracked.root / "a").write_text("call")
    after = tracked.scan()
    (tracked.root / "a").unlink()
    plan = plan_restore(tracked.store, tracked.tree, [(after, before)])
    assert plan.conflicts == (("a", CHANGED),)
    assert plan.keeps_set_ids


def test_folders_that_hold_what_is_unrestorable_are_blocked_where_something_else_should_be(
    tracked: TrackedFolder,
) -> None:
    why = "it is a device"
    plan = RestorePlan(
        targets={("d",): tracked.file("x"), ("e",): None, ("f",): Node("folder", 0o755)},
        unrestorable=tuple(((name, "inner"), why) for name in ("d", "e", "f", "g")),
    )
    assert plan.blocked == {("d",): (("d", "inner"), why)}
    assert RestorePlan().blocked == {}


def test_plan_of_what_is_stored_moves_nothing_that_is_not(tracked: TrackedFolder) -> None:
    (tracked.root / "a").write_text("1")
    first = tracked.scan()
    (tracked.root / "a").write_text("22")
    plan = tracked.plan(tracked.scan(), first)
    assert plan.targets
    assert not plan.moves_unstored
    assert not RestorePlan().moves_unstored


def test_path_that_is_as_the_way_leads_to_needs_nothing_and_is_not_contested(tracked: TrackedFolder) -> None:
    a = tracked.root / "a"
    a.write_text("1")
    first, status = tracked.scan(), a.stat()
    a.write_text("22")
    second = tracked.scan()
    a.write_text("333")
    third = tracked.scan()
    a.write_text("1")
    os.utime(a, ns=(status.st_atime_ns, status.st_mtime_ns))
    plan = tracked.plan(third, second, first)
    assert (dict(plan.targets), plan.conflicts) == ({}, ())
    a.write_text("4444")
    assert tracked.plan(third, second, first).conflicts == (("a", CHANGED),)


def test_file_of_a_call_that_somebody_has_removed_needs_nothing(tracked: TrackedFolder) -> None:
    first = tracked.scan()
    (tracked.root / "new").write_text("call")
    second = tracked.scan()
    (tracked.root / "new").unlink()
    plan = tracked.plan(second, first)
    assert (dict(plan.targets), plan.conflicts) == ({}, ())


def test_path_that_another_call_may_have_changed_is_contested_with_its_name(tracked: TrackedFolder) -> None:
    (tracked.root / "a").write_text("before")
    first = tracked.scan()
    (tracked.root / "a").write_text("call")
    second = tracked.scan()
    plan = plan_restore(tracked.store, tracked.tree, [(second, first)], beside=[{("a",): "call 7"}])
    ((path, why),) = plan.conflicts
    assert path == "a"
    assert why.startswith("it may also have been changed by call 7")


@pytest.mark.parametrize("what", ["shared", "no repository", "another folder", "made by the call"])
def test_folder_of_objects_that_somebody_shares_stays_and_is_not_contested(
    tracked: TrackedFolder, what: str
) -> None:
    """Whoever stores an object of git may put it into a folder that a call has made."""
    repository = tracked.root / "repository"
    repository.mkdir()
    if what != "no repository":
        (repository / "HEAD").write_text("ref: refs/heads/main\n")
    if what != "made by the call":
        (repository / "objects").mkdir()
    first = tracked.scan()
    folder = repository / "objects" / ("xyz" if what == "another folder" else "ab")
    folder.mkdir(parents=True)
    (folder / "of-the-call").write_text("x")
    second = tracked.scan()
    (folder / "of-a-person").write_text("x")
    plan = tracked.plan(second, first)
    place = ("repository", "objects", folder.name)
    assert plan.targets[(*place, "of-the-call")] is None
    if what == "shared":
        assert place not in plan.targets
        assert plan.conflicts == ()
    else:
        assert plan.targets[place] is None
        assert ("/".join((*place, "of-a-person")), ADDED) in plan.conflicts
