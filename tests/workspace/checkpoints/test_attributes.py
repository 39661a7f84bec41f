"""Undo brings back what a file is beside its content, and says before what of it cannot come back.

The reference is a copy of the tree by `cp -a`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aisotools.workspace.checkpoints.attributes import (
    MAX_XATTR_BYTES,
    give_to,
    is_covered,
    list_partial,
    load_xattrs,
    read_xattrs,
    set_attributes,
    set_special_attributes,
    set_time,
    set_xattrs,
    settable_mode,
    why_partial,
)
from aisotools.workspace.checkpoints.scan import ScanLimits
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import Node, encode_folder
from tests.sandbox.inside import user_of
from tests.workspace.checkpoints.test_timeline import Rig
from tests.workspace.checkpoints.test_timeline_stateful import State, state_of

IS_ROOT = os.geteuid() == 0
OWN = (os.geteuid(), os.getegid())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.chain.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store")
    yield store
    store.close()


def copy_of(rig: Rig) -> State:
    """Return what `cp -a` makes of the workspace."""
    place = rig.root.parent / f"copy-{rig.number}"
    subprocess.run(["cp", "-a", "--", rig.root, place], check=True)
    state = state_of(place)
    assert state == state_of(rig.root), "the reference is exact"
    return state


# ---- what comes back


Act = Callable[[Path], object]


def each(*acts: Act) -> Act:
    def change(root: Path) -> None:
        for act in acts:
            act(root)

    return change


def remove_all(root: Path) -> None:
    for path in list(root.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def move_all(root: Path) -> None:
    (root / "new").mkdir()
    for path in list(root.iterdir()):
        if path.name != "new":
            path.rename(root / "new" / path.name)


def remove(name: str) -> Act:
    return lambda root: (root / name).unlink()


CHANGES: dict[str, Act] = {
    "time of a file": lambda root: os.utime(root / "a", ns=(1, 1)),
    "time of a folder": lambda root: os.utime(root / "d", ns=(1, 1)),
    "time of a link": lambda root: os.utime(root / "l", ns=(1, 1), follow_symlinks=False),
    "time of a FIFO": lambda root: os.utime(root / "p", ns=(1, 1)),
    "times before 1970 and after 2262": each(
        lambda root: os.utime(root / "a", ns=(0, -5_000_000_001)),
        lambda root: os.utime(root / "d" / "b", ns=(0, 10_000_000_000 * 10**9)),
    ),
    "the same content again": lambda root: (root / "a").write_text("a"),
    "mode of a file": lambda root: (root / "a").chmod(0o600),
    "sticky bit and group bit of a folder": lambda root: (root / "d").chmod(0o3770),
    "no sticky bit any more": lambda root: (root / "sticky").chmod(0o755),
    "mode of a FIFO": lambda root: (root / "p").chmod(0o666),
    "attribute": lambda root: os.setxattr(root / "a", "user.mark", b"\0new"),
    "attribute of a folder": lambda root: os.setxattr(root / "d", "user.mark", b"new"),
    "attribute that goes": lambda root: os.removexattr(root / "marked", "user.mark"),
    "another name": lambda root: os.link(root / "a", root / "d" / "hard"),
    "one name less": lambda root: (root / "two").unlink(),
    "two names less": each(lambda root: (root / "two").unlink(), lambda root: (root / "one").unlink()),
    "a name that becomes a file of its own": each(
        lambda root: (root / "two").unlink(),
        lambda root: shutil.copy2(root / "one", root / "two"),
    ),
    "a name that becomes one of another file": each(
        lambda root: (root / "two").unlink(),
        lambda root: os.link(root / "a", root / "two"),
    ),
    "a write through one of three names": lambda root: (root / "two").write_text("through"),
    "one name of a link less": lambda root: (root / "l2").unlink(),
    "all names of a link less": each(*(remove(name) for name in ("l1", "l2", "d/l3"))),
    "all names of a long link and of a FIFO less": each(
        *(remove(name) for name in ("long1", "d/long2", "p1", "d/p2"))
    ),
    "a name of a link that becomes one of its own": each(
        remove("l2"), lambda root: (root / "l2").symlink_to("a")
    ),
    "a name of a link that leads elsewhere": each(remove("l2"), lambda root: (root / "l2").symlink_to("b")),
    "another name of a link": lambda root: os.link(root / "l", root / "d" / "l4", follow_symlinks=False),
    "names of two links exchanged": each(
        *(remove(name) for name in ("l2", "l5")),
        lambda root: os.link(root / "l4", root / "l2", follow_symlinks=False),
        lambda root: os.link(root / "l1", root / "l5", follow_symlinks=False),
    ),
    "a file that comes and goes": each(
        lambda root: (root / "d" / "x").touch(), lambda root: (root / "d" / "x").unlink()
    ),
    "everything less": remove_all,
    "everything elsewhere": move_all,
}


def fill(root: Path) -> None:
    for name in ("a", "marked", "one", "locked"):
        (root / name).write_text(name)
    for name in ("d", "sticky"):
        (root / name).mkdir()
    (root / "d" / "b").write_text("b")
    (root / "d" / "empty").mkdir()
    (root / "l").symlink_to("a")
    os.mkfifo(root / "p", 0o600)
    (root / "p").chmod(0o1622)
    (root / "sticky").chmod(0o1777)
    (root / "a").chmod(0o664)
    os.setxattr(root / "marked", "user.mark", b"value")
    os.setxattr(root / "locked", "user.mark", b"value")
    (root / "locked").chmod(0o440)
    os.setxattr(root / "sticky", "user.mark", b"of a folder")
    os.link(root / "one", root / "two")
    os.link(root / "one", root / "d" / "one")
    for name, target in (("l1", "a"), ("l4", "a"), ("long1", "x/" * 500)):
        (root / name).symlink_to(target)
    os.mkfifo(root / "p1", 0o600)
    names = (("l1", "l2"), ("l1", "d/l3"), ("l4", "l5"), ("long1", "d/long2"), ("p1", "d/p2"))
    for name, other in names:
        os.link(root / name, root / other, follow_symlinks=False)
    with (root / "holes").open("wb") as file:
        file.truncate(1 << 22)
        os.pwrite(file.fileno(), b"x", 1 << 21)
    draw = random.Random(1)
    for path in [*root.rglob("*")]:
        os.utime(path, ns=(0, draw.randrange(10**18)), follow_symlinks=False)


@pytest.mark.parametrize("change", CHANGES, ids=[name.replace(" ", "-") for name in CHANGES])
def test_undo_and_redo_lead_to_exactly_what_was_there(rig: Rig, change: str) -> None:
    fill(rig.root)
    before = copy_of(rig)
    rig.step(lambda: CHANGES[change](rig.root))
    after = copy_of(rig)
    assert before != after
    for _ in range(2):
        moved = rig.move()
        assert (moved.done, moved.missing, moved.conflicts) == (True, (), ())
        assert state_of(rig.root) == before
        moved = rig.move("redo")
        assert (moved.done, moved.missing, moved.conflicts) == (True, (), ())
        assert state_of(rig.root) == after
    if change == "everything less":
        rig.move()
        status = (rig.root / "holes").stat()
        assert status.st_blocks * 512 < status.st_size


@pytest.mark.parametrize("seed", range(6))
def test_changes_in_any_order_are_undone_one_by_one(rig: Rig, seed: int) -> None:
    draw = random.Random(seed)
    fill(rig.root)
    states = [copy_of(rig)]
    ways = [name for name in CHANGES if not name.startswith("everything")]
    for name in draw.sample(ways, 8):

        def change(name: str = name) -> None:
            with contextlib.suppress(OSError):  # an earlier one has taken what it changes
                CHANGES[name](rig.root)

        rig.step(change)
        states.append(copy_of(rig))
    for state in states[-2::-1]:
        assert rig.move().missing == ()
        assert state_of(rig.root) == state, seed
    for state in states[1:]:
        assert rig.move("redo").missing == ()
        assert state_of(rig.root) == state, seed


def test_time_of_a_folder_stays_if_somebody_else_has_put_something_into_it(rig: Rig) -> None:
    folder = rig.root / "d"
    folder.mkdir()
    (folder / "a").write_text("1")
    rig.step((folder / "a").unlink)
    (folder / "mine").write_text("a person's")
    now = folder.stat().st_mtime_ns
    assert rig.move().missing == ()
    assert folder.stat().st_mtime_ns >= now


def test_private_file_is_not_made_readable_by_an_undo(rig: Rig) -> None:
    file = rig.root / "a"
    rig.step(lambda: file.write_text("call"))
    file.chmod(0o600)
    moved = rig.move()
    assert (moved.done, file.stat().st_mode & 0o777) == (False, 0o600)
    assert moved.conflicts == (("a", "its mode or its attributes were changed by somebody else since"),)
    assert rig.move(force=True).done


@pytest.mark.parametrize("is_changed", [True, False], ids=["changed", "control"])
def test_attribute_that_somebody_has_set_since_is_a_conflict(rig: Rig, *, is_changed: bool) -> None:
    file = rig.root / "a"
    file.write_text("before")
    rig.step(lambda: file.write_text("call"))
    try:
        os.setxattr(file, "user.mine", b"1")
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        pytest.skip("this file system has no attributes")
    if not is_changed:
        os.removexattr(file, "user.mine")
    moved = rig.move()
    assert moved.done is not is_changed
    if is_changed:
        assert moved.conflicts == (("a", "its mode or its attributes were changed by somebody else since"),)
        assert (file.read_text(), os.getxattr(file, "user.mine")) == ("call", b"1")
        assert rig.move(force=True).done
    assert file.read_text() == "before"


@pytest.mark.parametrize("name", ["user.large", "security.mine", "trusted.mine"])
def test_redo_after_an_undo_that_could_not_set_an_attribute_accuses_nobody(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An attribute that is listed by name only, since it is large or not ours to set."""
    monkeypatch.setattr("aisotools.workspace.checkpoints.attributes.MAX_XATTR_BYTES", 20)
    file = rig.root / "a"

    def set_all() -> None:
        try:
            os.setxattr(file, name, b"x" * 30)
            os.setxattr(file, "user.b", b"kept")
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.EPERM}:
                raise
            pytest.skip("this file system, or this user, cannot set the attribute")

    file.write_text("before")
    set_all()
    rig.step(file.unlink)
    for _ in range(2):
        moved = rig.move()
        assert moved.missing == (("a", f"it is back, but without its attribute {name!a}"),)
        assert os.listxattr(file) == ["user.b"]
        moved = rig.move("redo")
        assert (moved.done, moved.conflicts, file.exists()) == (True, (), False)
    rig.move()
    changes: list[Callable[[], object]] = [
        lambda: os.setxattr(file, "user.b", b"mine"),
        lambda: os.removexattr(file, "user.b"),
        lambda: os.setxattr(file, "user.mine", b"x" * 30),
    ]
    for change in changes:
        change()
        assert rig.move("redo").conflicts == (
            ("a", "its mode or its attributes were changed by somebody else since"),
        )
        os.setxattr(file, "user.b", b"kept")
    os.removexattr(file, "user.mine")
    assert rig.move("redo").done


def test_access_control_list_comes_back(rig: Rig) -> None:
    """Also none, in a folder that gives one to every new file."""
    # Version 2; owner rw, user 65534 r, group none, mask r, others none.
    entries = [(0x01, 6, 0xFFFFFFFF), (0x02, 4, 65534), (0x04, 0, 0xFFFFFFFF), (0x10, 4, 0xFFFFFFFF)]
    entries.append((0x20, 0, 0xFFFFFFFF))
    value = (2).to_bytes(4, "little") + b"".join(
        tag.to_bytes(2, "little") + rights.to_bytes(2, "little") + who.to_bytes(4, "little")
        for tag, rights, who in entries
    )
    for name in ("listed", "plain"):
        (rig.root / name).write_text("x")
    folder = rig.root / "folder"
    folder.mkdir()
    (folder / "within").write_text("x")
    try:
        os.setxattr(rig.root / "listed", "system.posix_acl_access", value)
        os.setxattr(rig.root, "system.posix_acl_default", value)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        pytest.skip("this file system has no access control lists")
    before = state_of(rig.root)
    files = [rig.root / "listed", rig.root / "plain", folder / "within"]
    rig.step(*(file.unlink for file in files), folder.rmdir)
    # A list without the right to search, as here, locks the owner out of every new folder.
    assert rig.move().missing == ()
    assert state_of(rig.root) == before


def test_trees_of_an_earlier_version_leave_alone_what_they_do_not_know(rig: Rig) -> None:
    folder, file = rig.root / "d", rig.root / "d" / "a"
    folder.mkdir()
    file.write_text("1")
    os.setxattr(folder, "user.mark", b"1")
    folder.chmod(0o1755)
    digest = rig.chain.store.put(b"1")

    def tree(content: str) -> str:
        inner = rig.chain.store.put(encode_folder({"a": Node("file", 0o644, content, 1)}))
        return rig.chain.store.put(encode_folder({"d": Node("folder", 0o755, inner)}))

    before, after = tree(rig.chain.store.put(b"0")), tree(digest)
    rig.chain.store.record(
        op="begin", id="old", name="tool", session="s", time_s=1.0, before={"": before}, beyond=""
    )
    rig.chain.store.record(op="end", id="old", after={"": after})
    rig.again()
    moved = rig.move()
    assert (moved.restored, moved.missing, moved.conflicts) == (("d/a",), (), ())
    assert file.read_text() == "0"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1755
    assert os.getxattr(folder, "user.mark") == b"1"


# ---- setuid and setgid


def test_bits_that_lend_rights_come_back_only_by_undo_and_not_as_root(rig: Rig) -> None:
    file = rig.root / "a"
    file.write_text("1")
    file.chmod(0o6755)
    expected = 0o755 if IS_ROOT else 0o6755
    rig.step(file.unlink)
    assert rig.chain.list_unrestored(rig.chain.steps[-1]) == (
        ["a (its setuid or setgid bit)"] if IS_ROOT else []
    )
    moved = rig.move()
    assert stat.S_IMODE(file.stat().st_mode) == expected
    assert [path for path, _ in moved.missing] == (["a"] if IS_ROOT else [])
    rig.step(lambda: file.chmod(0o4755))
    rig.move()
    assert stat.S_IMODE(file.stat().st_mode) == expected
    moved = rig.move("redo")
    assert stat.S_IMODE(file.stat().st_mode) == 0o755, "redo never lends anything"
    assert moved.missing == (("a", "it is back, but without its setuid or setgid bit"),)


@pytest.mark.parametrize(
    ("node", "keeps", "user", "expected"),
    [
        (Node("file", 0o4755, owner=(7, 8)), True, 7, 0o4755),
        (Node("file", 0o2755, owner=(7, 8)), True, 7, 0o2755),
        (Node("file", 0o2755, owner=(7, 9)), True, 7, 0o755),
        (Node("file", 0o4755, owner=(7, 8)), False, 7, 0o755),
        (Node("file", 0o4755, owner=(7, 8)), True, 6, 0o755),
        (Node("file", 0o4755, owner=None), True, 7, 0o755),
        (Node("sparse", 0o4755, owner=(0, 0)), True, 0, 0o755),
        (Node("file", 0o1755, owner=(7, 8)), False, 7, 0o1755),
        (Node("folder", 0o3755, owner=(7, 8)), False, 0, 0o3755),
    ],
)
def test_mode_that_may_be_set(
    monkeypatch: pytest.MonkeyPatch, node: Node, keeps: bool, user: int, expected: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(os, "getegid", lambda: 8)
    monkeypatch.setattr(os, "getgroups", lambda: [8])
    assert settable_mode(node, keeps_set_ids=keeps) == expected


# ---- what does not come back is said


def test_names_outside_of_the_workspace_are_said_before_and_after_the_call(rig: Rig, tmp_path: Path) -> None:
    (rig.root / "a").write_text("1")
    for name in ("x", "y"):
        os.link(rig.root / "a", tmp_path / name)
    snapshot = rig.chain.snapshot()
    text = "its 2 other names outside of the workspace"
    assert (snapshot.partial, snapshot.partial_count) == (((("a",), text),), 1)
    assert snapshot.uncovered == ()
    rig.step(lambda: (rig.root / "b").write_text("2"))
    assert rig.chain.list_unrestored(rig.chain.steps[-1]) == [], "it has changed nothing of it"
    rig.step(lambda: (rig.root / "a").write_text("2"))
    assert rig.chain.list_unrestored(rig.chain.steps[-1]) == [f"a ({text})"]
    assert rig.chain.snapshot().partial == snapshot.partial
    rig.move()
    assert (tmp_path / "x").read_text() == "2"
    os.link(rig.root / "b", tmp_path / "z")
    assert dict(rig.chain.snapshot().partial)[("b",)] == "its 1 other name outside of the workspace"


def test_content_that_is_not_stored_is_said_with_what_the_call_did(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ScanLimits(total_bytes=10))
    (rig.root / "large").write_bytes(b"x" * 11)
    rig.step((rig.root / "large").unlink, lambda: (rig.root / "new").write_bytes(b"x" * 12))
    assert rig.chain.list_unrestored(rig.chain.steps[-1]) == [
        "large (it is too large)",
        "new (it will stay: it is too large)",
    ]
    rig.chain.close()


@pytest.mark.skipif(not IS_ROOT, reason="only root may give a file such an attribute")
def test_attribute_that_is_not_covered_is_named(rig: Rig) -> None:
    file = rig.root / "a"
    file.write_text("1")
    os.setxattr(file, "trusted.mark", b"1")
    os.setxattr(file, "user.large", b"x" * (MAX_XATTR_BYTES // 2))
    rig.step(file.unlink)
    assert rig.chain.list_unrestored(rig.chain.steps[-1]) == ["a (its attribute 'trusted.mark')"]
    assert rig.move().missing == (("a", "it is back, but without its attribute 'trusted.mark'"),)
    assert os.listxattr(file) == ["user.large"]


def test_attributes_are_kept_up_to_their_limit(store: Store, tmp_path: Path) -> None:
    assert MAX_XATTR_BYTES == 4 << 10, "which README says"
    flags = os.O_TMPFILE | os.O_RDWR
    try:
        file = os.open("/dev/shm", flags)  # where attributes have more room
    except OSError:
        file = os.open(tmp_path, flags)
    try:
        assert read_xattrs(file, store) == ""
        os.setxattr(file, "user.a", b"x" * 100)
        os.setxattr(file, "user.b", b"y" * MAX_XATTR_BYTES)
        found = load_xattrs(read_xattrs(file, store), store)
        assert found == {"user.a": b"x" * 100, "user.b": None}
        node = Node("file", mtime_ns=1, owner=OWN, xattrs=read_xattrs(file, store))
        assert why_partial(node, store, keeps_set_ids=True) == ["its attribute 'user.b'"]
        assert set_xattrs(file, node, store) == ["user.b"]
        assert os.listxattr(file) == ["user.a"], "what is not known is not left from another file either"
        assert set_xattrs(file, Node("file"), store) == []
        assert os.listxattr(file) == ["user.a"]
    except OSError as error:
        if error.errno not in {errno.ENOTSUP, errno.ENOSPC, errno.E2BIG}:
            raise
        pytest.skip("this file system has too little room for attributes")
    finally:
        os.close(file)


def test_covered_attributes_are_those_of_the_user_and_access_control_lists() -> None:
    names = ["user.a", "system.posix_acl_access", "system.posix_acl_default"]
    assert all(is_covered(name) for name in names)
    assert not any(is_covered(name) for name in ["security.capability", "trusted.a", "system.other"])


def test_owner_that_this_process_cannot_set_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setattr(os, "getegid", lambda: 8)
    monkeypatch.setattr(os, "getgroups", lambda: [8, 9])
    owners = [(7, 8), (7, 9), (7, 10), (0, 8)]
    found = list_partial(
        store,
        [((str(number),), Node("file", mtime_ns=1, owner=owner)) for number, owner in enumerate(owners)],
        keeps_set_ids=True,
    )
    assert found == [
        (("2",), "its owner, user 7 and group 10"),
        (("3",), "its owner, user 0 and group 8"),
    ]


@pytest.mark.skipif(not IS_ROOT, reason="only root may give files away")
def test_owners_come_back(rig: Rig) -> None:
    (rig.root / "d").mkdir()
    for number, name in enumerate(("a", "d/b")):
        (rig.root / name).write_text(name)
        os.chown(rig.root / name, 12345 + number, 23456)
    (rig.root / "l").symlink_to("a")
    os.chown(rig.root / "l", 12345, 23456, follow_symlinks=False)
    os.chown(rig.root / "d", 4, 5)
    before = state_of(rig.root)
    rig.step(
        (rig.root / "a").unlink,
        (rig.root / "l").unlink,
        lambda: os.chown(rig.root / "d", 0, 0),
        lambda: os.chown(rig.root / "d" / "b", 0, 0),
    )
    after = state_of(rig.root)
    assert rig.move().missing == ()
    assert state_of(rig.root) == before
    assert rig.move("redo").missing == ()
    assert state_of(rig.root) == after


def test_owner_is_set_where_that_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "l").symlink_to("x")
    folder = os.open(tmp_path, os.O_RDONLY)

    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(os, "chown", refuse)
    assert give_to(folder, None)
    assert give_to(folder, OWN)
    assert not give_to(folder, (OWN[0] + 1, OWN[1]))
    node = Node("link", content="x", mtime_ns=1, owner=(OWN[0] + 1, OWN[1]))
    lost = [f"its owner, user {OWN[0] + 1} and group {OWN[1]}"]
    assert set_special_attributes(folder, "l", node, None) == lost
    assert (tmp_path / "l").lstat().st_mtime_ns == 1
    os.close(folder)


def test_owner_that_a_file_does_not_get_is_named_if_its_tree_says_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", refuse)
    other = (OWN[0] + 1, OWN[1])
    file = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    try:
        for node, lost in [
            (
                Node("file", 0o644, mtime_ns=1, owner=other),
                [f"its owner, user {other[0]} and group {other[1]}"],
            ),
            (Node("file", 0o644, mtime_ns=1, owner=OWN), []),
            (Node("file", 0o644), []),
        ]:
            assert set_attributes(file, node, store, owner=other, keeps_set_ids=False) == lost
    finally:
        os.close(file)


# ---- what the system says of attributes, on whatever file system this runs


class Attributes:
    """A file's extended attributes as `os` tells of them; calls may fail with an error."""

    def __init__(self, patch: pytest.MonkeyPatch, **values: bytes) -> None:
        self.values = {f"user.{name}": value for name, value in values.items()}
        self.errors: dict[str, int] = {}
        self.changed: list[str] = []
        for name in ("listxattr", "getxattr", "setxattr", "removexattr"):
            patch.setattr(os, name, functools.partial(self._answer, name))

    def _answer(self, call: str, _file: int, *arguments: Any) -> Any:
        if call in self.errors:
            raise OSError(self.errors[call], os.strerror(self.errors[call]))
        if call == "listxattr":
            return list(self.values)
        if call == "getxattr":
            return self.values[arguments[0]]
        self.changed.append(f"{call} {arguments[0]}")
        return None


@pytest.fixture
def attributes(monkeypatch: pytest.MonkeyPatch) -> Attributes:
    return Attributes(monkeypatch, a=b"1")


@pytest.mark.parametrize(("size", "is_kept"), [(4096 - len("user.b"), True), (4097 - len("user.b"), False)])
def test_four_kilobytes_of_names_and_values_are_kept(
    store: Store, attributes: Attributes, size: int, is_kept: bool
) -> None:
    value = b"y" * size
    attributes.values = {"user.b": value}
    assert load_xattrs(read_xattrs(0, store), store) == {"user.b": value if is_kept else None}


def test_label_that_the_system_gives_to_every_file_is_not_kept(store: Store, attributes: Attributes) -> None:
    attributes.values["security.selinux"] = b"label"
    assert load_xattrs(read_xattrs(0, store), store) == {"user.a": b"1"}
    del attributes.values["user.a"]
    assert read_xattrs(0, store) == ""


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EPERM, errno.ENOSYS, errno.EINVAL])
def test_file_system_without_attributes_has_none(store: Store, attributes: Attributes, code: int) -> None:
    digest = read_xattrs(0, store)
    attributes.errors["listxattr"] = code
    assert read_xattrs(0, store) == ""
    assert set_xattrs(0, Node("file", mtime_ns=1, xattrs=digest), store) == []
    assert attributes.changed == ["setxattr user.a"]


@pytest.mark.parametrize("code", [errno.ENODATA, errno.ERANGE, errno.EACCES, errno.EPERM])
def test_attribute_without_a_value_is_named(store: Store, attributes: Attributes, code: int) -> None:
    attributes.errors["getxattr"] = code
    assert load_xattrs(read_xattrs(0, store), store) == {"user.a": None}


@pytest.mark.parametrize("call", ["listxattr", "getxattr"])
def test_disk_that_does_not_tell_attributes_is_an_error(
    store: Store, attributes: Attributes, call: str
) -> None:
    """Neither does the file count as one without, nor is anything left that should go."""
    node = Node("file", mtime_ns=1, xattrs=read_xattrs(0, store))
    attributes.errors[call] = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        read_xattrs(0, store)
    with pytest.raises(OSError, match="Input/output error"):
        set_xattrs(0, node, store)


def test_attribute_that_the_system_refuses_is_named_and_one_without_room_is_an_error(
    store: Store, attributes: Attributes
) -> None:
    node = Node("file", mtime_ns=1, xattrs=read_xattrs(0, store))
    assert set_xattrs(0, node, store) == []
    assert attributes.changed == [], "it has that one"
    attributes.values = {"user.a": b"2", "user.other": b"", "trusted.not ours": b""}
    assert set_xattrs(0, node, store) == []
    assert attributes.changed == ["removexattr user.other", "setxattr user.a"]
    attributes.errors["setxattr"] = errno.EPERM
    assert set_xattrs(0, node, store) == ["user.a"]
    attributes.errors["setxattr"] = errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        set_xattrs(0, node, store)


def test_bits_that_lend_rights_are_named_only_if_they_are_missing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.touch()
    if IS_ROOT:
        os.chown(path, 12345, 12345)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        monkeypatch.setattr(os, "getegid", lambda: 12345)
    status = path.stat()
    owner = status.st_uid, status.st_gid
    lends, plain = (Node("file", mode, owner=owner) for mode in (0o6755, 0o755))
    file = os.open(path, os.O_RDONLY)
    try:
        assert set_attributes(file, lends, store, owner=None, keeps_set_ids=True) == []
        assert stat.S_IMODE(path.stat().st_mode) == 0o6755
        lost = ["its setuid or setgid bit"]
        assert set_attributes(file, lends, store, owner=None, keeps_set_ids=False) == lost
        assert stat.S_IMODE(path.stat().st_mode) == 0o755
        with monkeypatch.context() as patch:
            patch.setattr(os, "fchmod", lambda _file, _mode: None)  # a file system without modes
            path.chmod(0o600)
            assert set_attributes(file, plain, store, owner=None, keeps_set_ids=True) == []
            assert set_attributes(file, lends, store, owner=None, keeps_set_ids=True) == lost
    finally:
        os.close(file)


def test_fifo_gets_its_mode_only_where_the_mask_has_taken_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "p", 0o600)
    folder = os.open(tmp_path, os.O_RDONLY)
    changed: list[int] = []
    monkeypatch.setattr(
        "aisotools.workspace.checkpoints.attributes.change_mode", lambda _place, mode: changed.append(mode)
    )
    try:
        for mode in (0o600, 0o622):
            assert set_special_attributes(folder, "p", Node("fifo", mode, mtime_ns=7), None) == []
        assert (tmp_path / "p").stat().st_mtime_ns == 7
    finally:
        os.close(folder)
    assert changed == [0o622]


def test_time_is_set_if_it_is_known_and_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.touch()
    file = os.open(path, os.O_RDONLY)
    try:
        set_time(file, Node("file", mtime_ns=5))
        assert path.stat().st_mtime_ns == 5
        monkeypatch.setattr(os, "utime", None)
        set_time(file, Node("file", mtime_ns=5))
        set_time(file, Node("file"))
    finally:
        os.close(file)


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_owner_that_the_disk_does_not_take_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fchown", fail)
    monkeypatch.setattr(os, "chown", fail)
    (tmp_path / "l").symlink_to("x")
    folder = os.open(tmp_path, os.O_RDONLY)
    other = (OWN[0] + 1, OWN[1])
    try:
        with pytest.raises(OSError, match=os.strerror(code)):
            give_to(folder, other)
        with pytest.raises(OSError, match=os.strerror(code)):
            set_special_attributes(folder, "l", Node("link", content="x", owner=other), None)
        with pytest.raises(OSError, match=os.strerror(code)):
            set_special_attributes(folder, "l", Node("link", content="x"), other)
    finally:
        os.close(folder)


# ---- as another user, and on another file system


@pytest.mark.skipif(not IS_ROOT, reason="only root may become another user")
def test_all_of_this_holds_for_a_plain_user(tmp_path: Path) -> None:
    del tmp_path  # another user cannot come to it
    user_of("plain")  # or to the interpreter: then this is skipped
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        run_again(Path(place), ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"])


def test_all_of_this_holds_in_a_file_system_in_memory(tmp_path: Path) -> None:
    del tmp_path
    place = Path("/dev/shm") / f"aisotools-{os.getpid()}"
    try:
        place.mkdir()
    except OSError:
        pytest.skip("there is no file system in memory, or it may not be used")
    try:
        run_again(place, [])
    finally:
        shutil.rmtree(place)


def run_again(folder: Path, prefix: list[str]) -> None:
    """Undo and redo each change in a process of its own."""
    top = folder / "again"
    top.mkdir()
    if prefix:
        os.chown(top, 65534, 65534)
    root = Path(__file__).resolve().parents[3]
    module = "tests.workspace.checkpoints.test_attributes"
    command = [*prefix, sys.executable, "-B", "-m", module, str(top)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def main(top: Path) -> None:
    """Check each change in this process."""
    for number, change in enumerate(CHANGES):
        folder = top / str(number)
        folder.mkdir()
        rig = Rig(folder)
        test_undo_and_redo_lead_to_exactly_what_was_there(rig, change)
        rig.chain.close()
    folder = top / "bits"
    folder.mkdir()
    rig = Rig(folder)
    test_bits_that_lend_rights_come_back_only_by_undo_and_not_as_root(rig)
    rig.chain.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
