"""Plans and their execution: what is touched, what is refused, and what is hostile in the way."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.plan import RestorePlan, plan_restore
from aisotools.workspace.checkpoints.removal import sweep
from aisotools.workspace.checkpoints.restore import (
    RestoreResult,
    carry_out,
    discard_stage,
    lock_again,
    remove_trees,
    restore,
    stage_plan,
    sync_restored,
)
from aisotools.workspace.checkpoints.scan import ScanLimits
from aisotools.workspace.checkpoints.staging import Stage, switch_name
from aisotools.workspace.checkpoints.store import Store, content_digest
from aisotools.workspace.checkpoints.switching import mark_of
from aisotools.workspace.checkpoints.tree import Node, TreePath, encode_folder
from aisotools.workspace.checkpoints.trees import TrackedTree

CHANGED = "it was changed by somebody else since"
REMOVED = "it was removed by somebody else since"
ADDED = "it was put there by somebody else since"


class TrackedFolder:
    """A folder and its store, with shortcuts for plans and restores."""

    def __init__(self, top: Path) -> None:
        self.root = top / "root"
        self.root.mkdir()
        self.store = Store(top / "store")
        self.track()

    def track(self, **limits: int) -> None:
        self.tree = TrackedTree(self.store, self.root, ScanLimits(**limits))

    def scan(self) -> str:
        return self.tree.scan().root

    def restore(self, targets: dict[TreePath, Node | None], token: str = "t") -> RestoreResult:
        with self.tree.opened() as root:
            return restore(self.store, root, targets, token)

    def plan(self, *roots: str, is_resumed: bool = False) -> RestorePlan:
        hops = list(itertools.pairwise(roots))
        return plan_restore(self.store, self.tree, hops, is_resumed=is_resumed)

    def carry_out(self, plan: RestorePlan, *, force: bool = False) -> RestoreResult:
        with self.tree.opened() as root:
            return carry_out(self.store, root, plan, "t", force=force)

    def file(self, text: str, mode: int = 0o644) -> Node:
        return Node("file", mode, self.store.put(text.encode()), len(text))

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))


@pytest.fixture
def tracked(tmp_path: Path) -> Iterator[TrackedFolder]:
    folder = TrackedFolder(tmp_path)
    yield folder
    folder.store.close()


FOLDER = Node("folder", 0o755)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@contextmanager
def ordinary_user(folder: Path) -> Iterator[int]:
    """Open a folder and work in it without root's privileges; give everything in it to that user."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
    opened = os.open(folder, os.O_RDONLY)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)
        yield opened
    finally:
        os.seteuid(user)
        os.close(opened)


# ---- execution


def test_every_kind_is_created_with_its_mode(tracked: TrackedFolder) -> None:
    result = tracked.restore(
        {
            ("d",): Node("folder", 0o750),
            ("d", "e"): Node("folder", 0o555),
            ("d", "e", "f"): tracked.file("deep", 0o640),
            ("l",): Node("link", content="nowhere/at all"),
            ("p",): Node("fifo", 0o600),
        }
    )
    assert result.failed == []
    assert sorted(result.restored) == [("d",), ("d", "e"), ("d", "e", "f"), ("l",), ("p",)]
    assert result.removed == []
    assert (tracked.root / "d" / "e" / "f").read_text() == "deep"
    assert [mode_of(tracked.root / path) for path in ("d", "d/e", "d/e/f", "p")] == [
        0o750,
        0o555,
        0o640,
        0o600,
    ]
    assert os.readlink(tracked.root / "l") == "nowhere/at all"  # noqa: PTH115 - the text itself
    assert stat.S_ISFIFO((tracked.root / "p").lstat().st_mode)


def test_restore_closes_what_it_opens(tracked: TrackedFolder) -> None:
    targets: dict[TreePath, Node | None] = {
        ("d",): Node("folder", 0o750),
        ("d", "e"): Node("folder", 0o555),
        ("d", "e", "f"): tracked.file("deep", 0o640),
        ("d", "l"): Node("link", content="x"),
    }
    before = descriptors()
    assert tracked.restore(targets).failed == []
    assert tracked.restore({**targets, ("d",): Node("folder", 0o700)}).failed == []
    assert tracked.restore(dict.fromkeys(targets)).failed == []
    assert (tracked.names(), descriptors()) == ([], before)


@pytest.mark.parametrize("mode", [0o700, 0o711])
def test_folder_that_was_made_is_named_whatever_its_mode(tracked: TrackedFolder, mode: int) -> None:
    assert tracked.restore({("d",): Node("folder", mode)}) == RestoreResult(restored=[("d",)])
    assert mode_of(tracked.root / "d") == mode


@pytest.mark.parametrize("kind", ["folder", "file", "link to a folder", "link to nothing"])
def test_entry_that_somebody_puts_in_the_place_of_a_new_folder_stays(
    tracked: TrackedFolder, tmp_path: Path, kind: str
) -> None:
    """A folder is taken as it is; anything else is reported."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o711)
    place, mkdir = tracked.root / "d", os.mkdir
    mode = mode_of(outside)

    def mkdir_too_late(*arguments: object, **options: object) -> None:
        if kind == "folder":
            mkdir(place)
        elif kind == "file":
            place.touch()
        else:
            place.symlink_to(outside if kind == "link to a folder" else "nothing")
        mkdir(*arguments, **options)  # type: ignore[arg-type]  # passed through

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "mkdir", mkdir_too_late)
        result = tracked.restore({("d",): Node("folder", 0o750)})
    if kind == "folder":
        assert (result.failed, mode_of(place)) == ([], 0o750)
    else:
        assert result.restored == []
        assert result.failed[0] == (("d",), "File exists")
        assert place.is_file() or place.is_symlink()
    assert (list(outside.iterdir()), mode_of(outside)) == ([], mode)


def test_folders_that_their_owner_cannot_enter_are_filled_first(tracked: TrackedFolder) -> None:
    targets: dict[TreePath, Node | None] = {
        ("d",): Node("folder", 0o600),
        ("d", "e"): Node("folder", 0o500),
        ("d", "e", "f"): Node("folder", 0),
        ("d", "l"): Node("link", content="x"),
    }
    with ordinary_user(tracked.root) as root:
        result = restore(tracked.store, root, targets, "t")
        assert result.failed == []
        assert sorted(result.restored) == sorted(targets)
    for path, mode in (("d", 0o600), ("d/e", 0o500), ("d/e/f", 0)):
        assert mode_of(tracked.root / path) == mode
        (tracked.root / path).chmod(0o700)  # or its owner could not look below


def test_new_folder_is_private_until_it_is_complete(tracked: TrackedFolder) -> None:
    modes: list[int] = []

    class Watching(Store):
        def copy(self, digest: str, file: int) -> None:
            modes.append(mode_of(tracked.root / "d"))
            super().copy(digest, file)

    tracked.store.__class__ = Watching
    before = os.umask(0)
    try:
        tracked.restore({("d",): Node("folder", 0o777), ("d", "f"): tracked.file("x")})
    finally:
        os.umask(before)
    assert (modes, mode_of(tracked.root / "d")) == ([0o700], 0o777)


def test_kinds_replace_each_other(tracked: TrackedFolder) -> None:
    for name in ("file", "file2"):
        (tracked.root / name).write_text("x")
    (tracked.root / "folder").mkdir()
    (tracked.root / "folder" / "inner").write_text("x")
    (tracked.root / "link").symlink_to("folder")
    result = tracked.restore(
        {
            ("file",): FOLDER,
            ("file", "new"): tracked.file("1"),
            ("file2",): Node("link", content="t"),
            ("folder",): tracked.file("2"),
            ("folder", "inner"): None,
            ("link",): FOLDER,
        }
    )
    assert result.failed == []
    assert sorted(result.restored) == [("file",), ("file", "new"), ("file2",), ("folder",), ("link",)]
    assert result.removed == [("folder", "inner")]
    assert (tracked.root / "file" / "new").read_text() == "1"
    assert (tracked.root / "folder").read_text() == "2"
    assert (tracked.root / "link").is_dir()
    assert not (tracked.root / "link").is_symlink()


def test_other_paths_are_not_touched(tracked: TrackedFolder) -> None:
    for name in ("a", "b", "d/keep", "d/go"):
        (tracked.root / name).parent.mkdir(exist_ok=True)
        (tracked.root / name).write_text(name)
    before = (tracked.root / "b").stat()
    result = tracked.restore({("a",): None, ("d", "go"): None, ("gone",): None, ("gone", "deep"): None})
    assert result == RestoreResult(removed=[("d", "go"), ("a",)])
    assert tracked.names() == ["b", "d", "d/keep"]
    assert (tracked.root / "b").stat() == before


def test_folder_that_holds_something_else_is_not_removed(tracked: TrackedFolder) -> None:
    (tracked.root / "d").mkdir()
    (tracked.root / "d" / "mine").touch()
    reason = "it holds something that is not ours to remove"
    assert tracked.restore({("d",): None}) == RestoreResult(failed=[(("d",), reason)])
    result = tracked.restore({("d",): tracked.file("x"), ("e",): tracked.file("y")})
    assert result.restored == [("e",)]
    assert (("d",), reason) in result.failed
    assert tracked.names() == ["d", "d/mine", "e"]


def test_folder_in_place_gets_its_mode_only(tracked: TrackedFolder) -> None:
    (tracked.root / "d").mkdir(mode=0o700)
    (tracked.root / "d").chmod(0o700)
    inode = (tracked.root / "d").stat().st_ino
    assert tracked.restore({("d",): Node("folder", 0o700)}) == RestoreResult()
    assert tracked.restore({("d",): Node("folder", 0o711)}).restored == [("d",)]
    assert (mode_of(tracked.root / "d"), (tracked.root / "d").stat().st_ino) == (0o711, inode)
    (tracked.root / "d").chmod(0o1711)
    assert tracked.restore({("d",): Node("folder", 0o711)}).restored == []


@pytest.mark.parametrize("special", [stat.S_ISVTX, stat.S_ISGID])
def test_folder_in_place_keeps_what_no_plan_covers(tracked: TrackedFolder, special: int) -> None:
    """Its sticky bit, the group that its new files get, and the time at which it has last changed."""
    folder = tracked.root / "d"
    folder.mkdir()
    folder.chmod(special | 0o711)
    before = folder.stat()
    tick = tracked.root / "tick"
    tick.touch()
    while tick.stat().st_ctime_ns == before.st_ctime_ns:  # until the file system's clock has gone on
        tick.touch()
    assert tracked.restore({("d",): Node("folder", 0o711)}) == RestoreResult()
    assert (mode_of(folder), folder.stat().st_ctime_ns) == (special | 0o711, before.st_ctime_ns)


@pytest.mark.parametrize("mode", [0, 0o500, 0o555, 0o711])
@pytest.mark.parametrize("target", [0o500, 0o700, 0o755])
def test_folder_in_place_is_named_if_its_mode_was_another(
    tracked: TrackedFolder, mode: int, target: int
) -> None:
    """Also one that had to be opened before, which may have given it its mode already."""
    folder = tracked.root / "d"
    folder.mkdir()
    folder.chmod(mode)
    restored: list[TreePath] = [("d",)] if mode != target else []
    assert tracked.restore({("d",): Node("folder", target)}) == RestoreResult(restored=restored)
    assert mode_of(folder) == target


def test_folders_in_place_that_their_owner_cannot_enter_are_opened_first(tracked: TrackedFolder) -> None:
    """A call has locked them one after another, and what lies in them comes back all the same."""
    inner = tracked.root / "d" / "e"
    inner.mkdir(parents=True)
    for path in (tracked.root / "d" / "f", inner / "f", inner / "new"):
        path.write_text("now")
    link = Node("link", content="before")
    targets: dict[TreePath, Node | None] = {
        ("d",): FOLDER,
        ("d", "e"): Node("folder", 0o700),
        ("d", "e", "f"): link,
        ("d", "e", "new"): None,
        ("d", "f"): link,
    }
    with ordinary_user(tracked.root) as root:
        for name in ("d/e", "d"):
            os.chmod(name, 0, dir_fd=root)
        result = restore(tracked.store, root, targets, "t")
    assert result.failed == []
    assert sorted(result.restored) == [("d",), ("d", "e"), ("d", "e", "f"), ("d", "f")]
    assert result.removed == [("d", "e", "new")]
    assert [mode_of(tracked.root / path) for path in ("d", "d/e")] == [0o755, 0o700]
    assert [str((tracked.root / path).readlink()) for path in ("d/f", "d/e/f")] == ["before", "before"]


@pytest.mark.parametrize("mode", [0o500, 0o600, 0o200, 0o100, 0o400])
def test_locked_folder_is_opened_and_locked_again(tracked: TrackedFolder, mode: int) -> None:
    folder = tracked.root / "d"
    folder.mkdir()
    (folder / "old").touch()
    if os.geteuid() == 0 or mode & 0o400:
        folder.chmod(mode)
        result = tracked.restore({("d", "old"): None, ("d", "new"): tracked.file("x")})
        assert result == RestoreResult(restored=[("d", "new")], removed=[("d", "old")])
        assert mode_of(folder) == mode
        folder.chmod(0o700)
        assert tracked.names() == ["d", "d/new"]


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o300, 0o777])
def test_folder_that_is_not_locked_keeps_its_change_time(tracked: TrackedFolder, mode: int) -> None:
    """A change of its mode and back would be seen by whoever watches it."""
    folder = tracked.root / "d"
    folder.mkdir()
    folder.chmod(mode)
    before = folder.stat().st_ctime_ns
    tick = tracked.root / "tick"
    tick.touch()
    while tick.stat().st_ctime_ns == before:  # until the file system's clock has gone on
        tick.touch()
    if os.geteuid() == 0 or mode & 0o400:
        assert tracked.restore({("d", "gone"): None}) == RestoreResult()
        assert folder.stat().st_ctime_ns == before


OWN = (os.geteuid(), os.getegid())


@pytest.mark.parametrize("owner", [None, OWN])
def test_folder_in_place_gets_its_time_and_is_named_only_if_it_was_another(
    tracked: TrackedFolder, owner: tuple[int, int] | None
) -> None:
    (tracked.root / "d").mkdir()
    (tracked.root / "d").chmod(0o755)
    result = tracked.restore({("d",): FOLDER._replace(mtime_ns=5, owner=owner)})
    assert (result.restored, result.timed, result.left_out) == ([], [("d",)], [])
    assert (tracked.root / "d").stat().st_mtime_ns == 5
    assert tracked.restore({("d",): FOLDER._replace(mode=0o700, mtime_ns=5)}).restored == [("d",)]


def test_owner_and_bits_that_the_system_refuses_are_named(
    tracked: TrackedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    change_mode = os.fchmod
    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(os, "chown", refuse)
    monkeypatch.setattr(os, "fchmod", lambda file, mode: change_mode(file, mode & 0o777))
    (tracked.root / "d").mkdir()
    (tracked.root / "s").mkdir()
    other = (OWN[0] + 1, OWN[1] + 2)
    result = tracked.restore(
        {
            ("d",): FOLDER._replace(mtime_ns=5, owner=other),
            ("s",): Node("folder", 0o2755, mtime_ns=5),
            ("f",): tracked.file("text")._replace(mtime_ns=5, owner=other),
        }
    )
    found = dict(result.left_out)
    assert found.keys() == {("d",), ("s",), ("f",)}
    for path in (("d",), ("f",)):
        assert f"its owner, user {other[0]} and group {other[1]}" in found[path]
    assert "its setgid bit" in found["s",]
    assert result.failed == []


def test_tree_that_cannot_be_removed_is_named_and_the_others_are_removed(
    tracked: TrackedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[TreePath] = []

    def remove_tree(_root: int, path: TreePath, *_: object) -> None:
        if path == ("gone",):
            raise FileNotFoundError
        if path == ("stays",):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        removed.append(path)

    monkeypatch.setattr("aisotools.workspace.checkpoints.restore.remove_tree", remove_tree)
    result = remove_trees(-1, [("stays",), ("gone",), ("goes",)])
    assert (result.failed, result.removed) == ([(("stays",), os.strerror(errno.EIO))], [("goes",)])
    assert removed == [("goes",)]


def test_folders_that_got_their_time_are_synced(
    tracked: TrackedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[set[TreePath]] = []

    def sync_folders(_root: int, folders: set[TreePath]) -> list[object]:
        synced.append(folders)
        return []

    monkeypatch.setattr("aisotools.workspace.checkpoints.restore.sync_folders", sync_folders)
    result = RestoreResult(timed=[("d", "e")], removed=[("f", "g")])
    assert sync_restored(-1, RestorePlan(), result) == []
    assert synced == [{(), ("d", "e"), ("f",)}]


def test_hard_link_is_broken_and_link_is_not_followed(tracked: TrackedFolder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("outside")
    os.link(outside, tracked.root / "hard")
    (tracked.root / "soft").symlink_to(outside)
    targets: dict[TreePath, Node | None] = {("hard",): tracked.file("1"), ("soft",): tracked.file("2")}
    assert tracked.restore(targets).failed == []
    assert outside.read_text() == "outside"
    assert [(tracked.root / name).read_text() for name in ("hard", "soft")] == ["1", "2"]
    assert not (tracked.root / "soft").is_symlink()


def test_nothing_is_written_through_a_linked_folder(tracked: TrackedFolder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "old").write_text("outside")
    (tracked.root / "d").symlink_to(outside)
    targets: dict[TreePath, Node | None] = {("d", "old"): None, ("d", "new"): tracked.file("x")}
    result = tracked.restore(targets)
    assert [path for path, _ in result.failed] == [("d", "new")]
    assert [path.name for path in outside.iterdir()] == ["old"]


def test_content_that_was_not_stored_cannot_be_created(tracked: TrackedFolder) -> None:
    result = tracked.restore(
        {("u",): Node("unkept", content="it is too large;1"), ("s",): Node("other", content="socket")}
    )
    assert result == RestoreResult(
        failed=[
            (("u",), "its content was not kept: it is too large"),
            (("s",), "a socket cannot be made again"),
        ]
    )


def test_damaged_content_leaves_the_file_and_no_partial_one(tracked: TrackedFolder) -> None:
    (tracked.root / "a").write_text("now")
    node = tracked.file("good")
    (tracked.store.folder / "objects" / node.content).write_text("evil")
    before = descriptors()
    ((path, reason),) = tracked.restore({("a",): node}).failed
    assert path == ("a",)
    assert "damaged" in reason
    assert tracked.names() == ["a"]
    assert (tracked.root / "a").read_text() == "now"
    assert descriptors() == before


def test_one_failure_does_not_stop_the_others(tracked: TrackedFolder) -> None:
    missing = Node("file", 0o644, content_digest(b"never stored"), 3)
    result = tracked.restore({("a",): missing, ("b",): tracked.file("b"), ("no", "c"): tracked.file("c")})
    assert result.restored == [("b",)]
    assert [path for path, _ in result.failed] == [("a",), ("no", "c")]


def test_unknown_file_in_the_place_of_a_folder_is_an_error_where_it_cannot_be_cleared(
    tracked: TrackedFolder,
) -> None:
    (tracked.root / "f").write_text("x")
    result = tracked.restore({("f", "inner"): FOLDER})
    assert (tracked.root / "f").read_text() == "x"
    assert {path for path, _ in result.failed} == {("f", "inner")}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_new_files_belong_to_the_owner_of_the_folder_around_them(tracked: TrackedFolder) -> None:
    os.chown(tracked.root, 12345, 12346)
    tracked.restore({("d",): FOLDER, ("d", "f"): tracked.file("x")})
    for path in ("d", "d/f"):
        status = (tracked.root / path).stat()
        assert (status.st_uid, status.st_gid) == (12345, 12346)
    os.chown(tracked.root, 0, 12346)
    tracked.restore({("g",): tracked.file("x")})
    assert (tracked.root / "g").stat().st_gid == 12346


def test_partial_files_are_named_by_the_token(tracked: TrackedFolder) -> None:
    """Several of one restore have different names, by which `sweep` finds them."""
    seen: list[str] = []

    class Watching(Store):
        def copy(self, digest: str, file: int) -> None:
            seen.extend(name for name in os.listdir(tracked.root) if name.startswith("."))  # noqa: PTH208 - names alone
            super().copy(digest, file)

    tracked.store.__class__ = Watching
    tracked.restore({("a",): tracked.file("a"), ("b",): tracked.file("b")}, token="token")
    assert seen == [".aisotools-write-token-1", ".aisotools-write-token-2"]


def test_partial_file_is_private(tracked: TrackedFolder) -> None:
    modes: list[int] = []

    class Watching(Store):
        def copy(self, digest: str, file: int) -> None:
            modes.append(stat.S_IMODE(os.fstat(file).st_mode))
            super().copy(digest, file)

    tracked.store.__class__ = Watching
    tracked.restore({("a",): tracked.file("a", 0o666)})
    assert (modes, mode_of(tracked.root / "a")) == ([0o600], 0o666)


def test_folder_that_cannot_be_removed_is_an_error(tracked: TrackedFolder) -> None:
    (tracked.root / "d").mkdir()
    assert tracked.restore({("d", "."): None}) == RestoreResult(failed=[(("d", "."), "Invalid argument")])
    assert tracked.names() == ["d"]


@pytest.mark.parametrize(("mode", "meanwhile"), [(0o500, 0o700), (0o055, 0o755), (0o300, 0o300)])
def test_folder_is_writable_for_its_owner_while_it_is_changed(
    tracked: TrackedFolder, mode: int, meanwhile: int
) -> None:
    """Whatever this process may do as root."""
    folder = tracked.root / "d"
    folder.mkdir()
    folder.chmod(mode)
    modes: list[int] = []

    class Watching(Store):
        def copy(self, digest: str, file: int) -> None:
            modes.append(mode_of(folder))
            super().copy(digest, file)

    tracked.store.__class__ = Watching
    if os.geteuid() == 0:
        tracked.restore({("d", "f"): tracked.file("x")})
        assert (modes, mode_of(folder)) == ([meanwhile], mode)


def test_scan_that_fails_names_the_folder(tracked: TrackedFolder) -> None:
    class Broken(Store):
        def put(self, data: bytes) -> str:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    tracked.store.__class__ = Broken
    with pytest.raises(
        WorkspaceError, match=f"The folder '{tracked.root}' cannot be read: Input/output error"
    ):
        tracked.tree.scan()


# ---- plans that are carried out


def mixed_plan(tracked: TrackedFolder) -> RestorePlan:
    """A plan with something of each kind, and a folder that holds it all."""
    (tracked.root / "d" / "e").mkdir(parents=True)
    (tracked.root / "deep" / "below").mkdir(parents=True)
    for name in ("d/e/log", "d/small"):
        (tracked.root / name).write_text("x")
    return RestorePlan(
        targets={("d",): None, ("d", "e"): None, ("d", "small"): None, ("new",): tracked.file("new")},
        unrestorable=((("d", "e", "log"), "it is too large"),),
        missing=((("socket",), "it is a socket"),),
        sealed=(("deep",),),
    )


def test_unrestorable_file_is_left_in_place_without_force(tracked: TrackedFolder) -> None:
    """With the folders around it, and it is said; only what is known to be unchanged goes."""
    assert tracked.carry_out(mixed_plan(tracked)) == RestoreResult(
        restored=[("new",)],
        removed=[("deep",), ("d", "small")],
        left_out=[
            (("socket",), "it is a socket"),
            (("d", "e", "log"), "left in place: it is too large"),
        ],
    )
    assert tracked.names() == ["d", "d/e", "d/e/log", "new"]


def test_force_removes_what_cannot_be_put_back(tracked: TrackedFolder) -> None:
    result = tracked.carry_out(mixed_plan(tracked), force=True)
    assert result == RestoreResult(
        restored=[("new",)],
        removed=[("deep",), ("d", "e", "log"), ("d", "e"), ("d", "small"), ("d",)],
        left_out=[(("socket",), "it is a socket")],
    )
    assert tracked.names() == ["new"]


def test_folder_that_stays_around_what_is_left_gets_its_mode(tracked: TrackedFolder) -> None:
    folder = Node("folder", 0o700)
    plan = RestorePlan(
        targets={("d",): folder, ("d", "e"): None}, unrestorable=((("d", "e", "log"), "it is too large"),)
    )
    assert plan.targets_of(force=False) == {("d",): folder}
    assert plan.targets_of(force=True) == plan.targets


def test_sealed_folder_is_whole_or_gone_after_a_crash(
    tracked: TrackedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first entry in it is removed it has a name by which `sweep` finds it."""
    plan, rmdir, names = mixed_plan(tracked), os.rmdir, []

    def removing(name: str, *, dir_fd: int) -> None:
        names.append(name)
        assert "deep" not in os.listdir(tracked.root)  # noqa: PTH208 - names alone
        rmdir(name, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", removing)
        assert ("deep",) in tracked.carry_out(plan).removed
    assert len(names) == 2
    assert all(name.startswith(".aisotools-write-t-removed-") for name in names)


def test_content_that_was_staged_and_one_that_was_not_are_both_put(tracked: TrackedFolder) -> None:
    (tracked.root / "d").mkdir()
    plan = RestorePlan(targets={("a",): tracked.file("a"), ("d", "b"): tracked.file("b"), ("gone",): None})
    part = RestorePlan(targets={("a",): tracked.file("a")})
    before = descriptors()
    with tracked.tree.opened() as root:
        stage, failures = stage_plan(tracked.store, root, part, "t", force=False)
        place = f"{switch_name('t')}/{mark_of(('a',))}"
        assert (failures, tracked.names()) == ([], [switch_name("t"), place, "d"])
        inode = (tracked.root / place).stat().st_ino
        result = carry_out(tracked.store, root, plan, "t", force=False, stage=stage)
        assert result == RestoreResult(restored=[("a",), ("d", "b")])
        assert discard_stage(root, stage, "t")
    assert (tracked.names(), descriptors()) == (["a", "d", "d/b"], before)
    assert (tracked.root / "a").stat().st_ino == inode, "it was renamed, not written again"
    assert (tracked.root / "d" / "b").read_text() == "b"


@pytest.mark.parametrize("is_staged", [True, False])
def test_content_that_is_put_beside_a_stage_is_synced_first(
    tracked: TrackedFolder, monkeypatch: pytest.MonkeyPatch, is_staged: bool
) -> None:
    """Whoever has something staged wants it to survive the power; others do not pay for that."""
    synced: list[list[str]] = []
    monkeypatch.setattr(os, "fsync", lambda _file: synced.append(tracked.names()))
    plan = RestorePlan(targets={("a",): tracked.file("a")})
    with tracked.tree.opened() as root:
        stage = Stage(tracked.store, root, "t") if is_staged else None
        carry_out(tracked.store, root, plan, "t", force=False, stage=stage)
    assert synced == ([[".aisotools-write-t-1"]] if is_staged else [])
    assert tracked.names() == ["a"]


def test_folders_in_which_something_was_changed_are_synced(
    tracked: TrackedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And new folders themselves, and the root, in which was staged."""
    for name in "defg":
        (tracked.root / name).mkdir()
    plan = RestorePlan(
        targets={("d", "f"): tracked.file("x"), ("e", "new"): FOLDER, ("f", "f"): None, ("g", "f"): FOLDER}
    )
    (tracked.root / "e" / "new").mkdir()
    synced: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda file: synced.add(str(Path(f"/proc/self/fd/{file}").readlink())))
    result = RestoreResult(restored=[("d", "f"), ("e", "new")], removed=[("f", "f")])
    with tracked.tree.opened() as root:
        assert sync_restored(root, plan, result) == []
    top = str(tracked.root)
    assert synced == {top, *(f"{top}/{name}" for name in ("d", "e", "e/new", "f"))}


def test_stage_that_cannot_be_removed_is_said_and_removed_later(
    tracked: TrackedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = RestorePlan(targets={("a",): tracked.file("a")})

    def refuse(_name: str, *, dir_fd: int) -> None:
        raise PermissionError(errno.EPERM, "no")

    before = descriptors()
    with tracked.tree.opened() as root:
        stage, _ = stage_plan(tracked.store, root, plan, "t", force=False)
        with monkeypatch.context() as patch:
            patch.setattr(os, "rmdir", refuse)
            assert not discard_stage(root, stage, "t")
        assert stage.name in tracked.names()
        sweep(root, [()], "other")
        assert stage.name in tracked.names()
        sweep(root, [()], "t")
        assert tracked.names() == []
        assert discard_stage(root, stage, "t"), "somebody else was faster"
    assert descriptors() == before


@pytest.mark.parametrize(
    ("mode", "now", "then"),
    [
        (0o500, 0o700, 0o500),  # as a restore leaves it that was cut short
        (0o055, 0o755, 0o055),
        (0o500, 0o711, 0o711),  # somebody has set it since
        (0o500, 0o755, 0o755),
        (0o500, 0o777, 0o777),
        (0o500, 0o600, 0o600),
        (0o755, 0o700, 0o700),
    ],
)
def test_folder_is_locked_again_unless_somebody_else_has_set_its_mode(
    tracked: TrackedFolder, tmp_path: Path, mode: int, now: int, then: int
) -> None:
    folder, outside = tracked.root / "d", tmp_path / "outside"
    for path in (folder, outside):
        path.mkdir()
        path.chmod(mode)
    (tracked.root / "file").touch(0o600)
    listing = {
        "d": Node("folder", mode, tracked.store.put(b"")),
        "file": tracked.file("", 0o400),
        "link": Node("folder", mode, tracked.store.put(b"")),
    }
    end = tracked.store.put(encode_folder(listing))
    (tracked.root / "link").symlink_to(outside)
    for path in (folder, outside, tracked.root):
        path.chmod(now | 0o700 if path == tracked.root else now)
    before = descriptors()
    with tracked.tree.opened() as root:
        assert lock_again(tracked.store, root, end, [(), ("gone",), ("file",), ("link",), ("d",)]) == []
    assert (mode_of(folder), mode_of(outside)) == (then, now)
    assert mode_of(tracked.root) == now | 0o700, "no tree has a mode of its root"
    assert mode_of(tracked.root / "file") == 0o600
    assert descriptors() == before


def test_folder_that_cannot_be_locked_again_is_named(
    tracked: TrackedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tracked.root / "d"
    folder.mkdir(0o700)
    end = tracked.store.put(encode_folder({"d": Node("folder", 0o500, tracked.store.put(b""))}))

    def refuse(_file: int, _mode: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with tracked.tree.opened() as root, monkeypatch.context() as broken:
        broken.setattr(os, "fchmod", refuse)
        assert lock_again(tracked.store, root, end, [("d",)]) == [(("d",), "Input/output error")]
    with tracked.tree.opened() as root:
        assert lock_again(tracked.store, root, end, [("d",)]) == []
    assert mode_of(folder) == 0o500


# ---- tracked trees


def test_display_path_is_relative_in_the_workspace_and_printable(tracked: TrackedFolder) -> None:
    assert tracked.tree.display_path(("a", "b\n")) == "a/b\\n"
    assert tracked.tree.display_path(()) == ""


def test_missing_or_linked_folder_is_an_error(tracked: TrackedFolder, tmp_path: Path) -> None:
    before = descriptors()
    tracked.root.rename(tmp_path / "away")
    message = f"The folder '{tracked.root}' was moved or removed after this session had opened, and "
    with pytest.raises(WorkspaceError, match=message + "nothing is there"):
        tracked.tree.scan()
    tracked.root.symlink_to(tmp_path / "away")
    with pytest.raises(WorkspaceError, match=message + "something else is"), tracked.tree.opened():
        pass
    assert descriptors() == before


def test_size_is_judged_without_reading(tracked: TrackedFolder, tmp_path: Path) -> None:
    (tracked.root / "d").mkdir()
    (tracked.root / "d" / "a").write_bytes(bytes(600))
    (tracked.root / "b").write_bytes(bytes(400))
    (tracked.root / "link").symlink_to("/" + "x" * 99)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "large").write_bytes(bytes(9_999))
    (tracked.root / "d" / "out").symlink_to(tmp_path / "outside")
    # A link counts by its own size, wherever it leads.
    all_bytes = 600 + 400 + 100 + len(str(tmp_path / "outside"))
    for limits, fits in [
        ({}, True),
        ({"total_bytes": all_bytes}, True),
        ({"total_bytes": all_bytes - 1}, False),
        ({"entries": 4}, True),
        ({"entries": 3}, False),
    ]:
        tracked.track(**limits)
        assert tracked.tree.fits() is fits
    assert tracked.store.size == 0
