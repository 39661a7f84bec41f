"""Tracked folders: what is around a path, and file systems that do not stamp every write."""

from __future__ import annotations

import errno
import math
import os
import subprocess
from pathlib import Path

import pytest

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.scan import ScanLimits, TooSlow
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import TreePath, open_below
from aisotools.workspace.checkpoints.trees import WORKSPACE_KEY, TrackedTree, TrackedTrees
from aisotools.workspace.dirfd import stamps_maps
from tests.workspace.checkpoints.test_scan import listed_entries


def test_tree_around_a_path_is_its_first_missing_folder(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    workspace = tmp_path / "workspace"
    workspace.mkdir()

    def around(path: Path) -> TrackedTree | None:
        return TrackedTree.around(
            store, path, ScanLimits(), apart=(workspace, store.folder), keep_bytes=math.inf
        )

    tree = around(tmp_path / "notes" / "today" / "a.txt")
    assert tree is not None
    assert (tree.path, tree.only, tree.key) == (tmp_path, "notes", str(tmp_path / "notes"))
    (tmp_path / "notes").mkdir()
    tree = around(tmp_path / "notes" / "a.txt")
    assert tree is not None
    assert (tree.path, tree.only) == (tmp_path / "notes", "a.txt")
    assert tree.display_path(("a.txt",)) == str(tmp_path / "notes" / "a.txt")
    for path in (workspace, workspace / "a", tmp_path, store.folder / "x" / "y", Path("/")):
        assert around(path) is None
    (tmp_path / "link").symlink_to(workspace)
    assert around(tmp_path / "link" / "a") is None
    assert around(tmp_path / "workspace2") is not None
    store.close()


def test_tree_of_one_entry_covers_nothing_else(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    tree = TrackedTree(store, tmp_path, ScanLimits(), only="a")
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    snapshot = tree.scan()
    assert (snapshot.entries, tree.root) == (1, snapshot.root)
    assert TrackedTree(store, tmp_path, ScanLimits()).key == ""
    store.close()


def test_folder_that_cannot_be_looked_at_once_it_is_open_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    tree = TrackedTree(store, tmp_path, ScanLimits(), only="a")
    opened: list[int] = []

    def refuse(folder: int) -> os.stat_result:
        opened.append(folder)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr("aisotools.workspace.paths.os.fstat", refuse)
        with pytest.raises(WorkspaceError, match="cannot be looked at: Input/output error"), tree.opened():
            pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[-1])
    store.close()


def test_tree_fits_up_to_its_limits(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    folder = tmp_path / "tracked"
    (folder / "below").mkdir(parents=True)
    (folder / "a").write_bytes(b"12345")
    (folder / "below" / "b").write_bytes(b"67890")
    (folder / "link").symlink_to("a")

    def fits(total_bytes: int = 100, entries: int = 100, most_entries: float = math.inf) -> bool:
        limits = ScanLimits(total_bytes=total_bytes, entries=entries)
        return TrackedTree(store, folder, limits).fits(most_entries)

    link_bytes = 1
    assert fits(10 + link_bytes)
    assert not fits(9 + link_bytes)
    assert fits(200, entries=3)
    assert not fits(200, entries=2)
    # Four entries, and one folder that is entered below the first.
    assert fits(200, most_entries=5)
    for most_entries in (0, 1, 4):
        with pytest.raises(TooSlow):
            fits(200, most_entries=most_entries)
    store.close()


def count_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_looks_at_a_tree_leave_no_folder_open(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    folder = tmp_path / "tracked"
    for number in range(5):
        (folder / str(number) / "inner").mkdir(parents=True)
        (folder / str(number) / "inner" / "file").write_text("text")
    tree = TrackedTree(store, folder, ScanLimits())
    tree.scan()
    before = count_open_files()
    tree.fits()
    with pytest.raises(TooSlow):
        tree.fits(3)
    (folder / "3" / "inner" / "file").write_text("other text")
    tree.scan()
    assert count_open_files() == before
    store.close()


def test_closed_tree_lets_go_of_its_state(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    tree = TrackedTree(store, tmp_path, ScanLimits(), only="a")
    (tmp_path / "a").write_text("1")
    tree.scanner.keep_bytes = 0
    before = count_open_files()
    tree.scan()
    assert count_open_files() == before + 1
    tree.close()
    assert count_open_files() == before
    store.close()


def test_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    tree = TrackedTree(store, tmp_path / "gone", ScanLimits())
    for use in (tree.scan, tree.fits):
        with pytest.raises(WorkspaceError, match=r"/gone' cannot be used: No such file or directory\.$"):
            use()
    (tmp_path / "gone").symlink_to(tmp_path)
    with pytest.raises(WorkspaceError, match=r"/gone' cannot be used: Not a directory\.$"):
        tree.scan()
    (tmp_path / "gone").unlink()
    (tmp_path / "gone").mkdir()

    def fail(_entry: os.DirEntry[str]) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    tree.scan()
    before = tree.root
    (tmp_path / "gone" / "a").write_text("1")
    with (
        listed_entries(fail),
        pytest.raises(WorkspaceError, match=r"/gone' cannot be read: Input/output"),
    ):
        tree.scan()
    assert tree.root == before
    store.close()


def test_links_are_not_followed_when_sizes_are_added_up(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    folder = tmp_path / "tracked"
    (folder / "below").mkdir(parents=True)
    (folder / "file").touch()
    targets = [
        "link0",
        "link2",
        "link1",
        "file/x",
        "x" * 300,
        "y" * 4_000,
        "..",
        "/",
        "/proc/self/fd/9999/x",
        "below",
    ]
    for number, target in enumerate(targets):
        (folder / f"link{number}").symlink_to(target)
    for number in range(50):
        (folder / f"hop{number}").symlink_to(f"hop{number + 1}")
    assert TrackedTree(store, folder, ScanLimits()).fits()
    assert TrackedTree(store, folder, ScanLimits(entries=61)).fits()
    assert not TrackedTree(store, folder, ScanLimits(entries=60)).fits()
    store.close()


def test_nested_folders_are_added_up_in_linear_time(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (tmp_path / "tracked").mkdir()
    folder, levels = os.open(tmp_path / "tracked", os.O_RDONLY), 2_100
    for _ in range(levels):
        os.mkdir("d", dir_fd=folder)
        folder, outer = os.open("d", os.O_RDONLY, dir_fd=folder), folder
        os.close(outer)
    os.write(file := os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder), b"12345")
    for opened in (file, folder):
        os.close(opened)
    most_entries = 2 * levels + 1  # each folder is one entry, and is opened once
    tree = TrackedTree(store, tmp_path / "tracked", ScanLimits(total_bytes=5))
    assert tree.fits(most_entries)
    with pytest.raises(TooSlow):
        tree.fits(most_entries - 1)
    assert not TrackedTree(store, tmp_path / "tracked", ScanLimits(total_bytes=4)).fits()
    store.close()
    subprocess.run(["rm", "-rf", tmp_path / "tracked"], check=True)  # deeper than `shutil` goes


def test_folder_that_is_removed_before_it_is_entered_is_passed_over(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    folder = tmp_path / "tracked"
    for path in ("below", "other/inner"):
        (folder / path).mkdir(parents=True)
    (folder / "other" / "inner" / "file").write_bytes(b"12345")

    def remove(entry: os.DirEntry[str]) -> None:
        if entry.name == "below":
            (folder / "below").rmdir()

    for total_bytes, fits in [(5, True), (4, False)]:
        (folder / "below").mkdir(exist_ok=True)
        with listed_entries(remove):
            tree = TrackedTree(store, folder, ScanLimits(total_bytes=total_bytes))
            assert tree.fits() is fits
    store.close()


def test_file_systems_in_memory_do_not_stamp_maps(tmp_path: Path) -> None:
    assert stamps_maps(tmp_path / "gone")
    assert stamps_maps(Path("/proc"))
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in mounts:
        if mount[mount.index("-") + 1] == "tmpfs" and os.access(mount[4], os.R_OK):
            device = os.stat(mount[4]).st_dev  # noqa: PTH116 - of a mount point, as the module asks
            if mount[2] == f"{os.major(device)}:{os.minor(device)}":  # nothing is mounted over it
                assert not stamps_maps(Path(mount[4]))
                return
    pytest.skip("no file system in memory is mounted here")


def test_trees_of_a_timeline_are_found_by_their_keys_and_kept_while_steps_need_them(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    workspace.mkdir()
    outside.mkdir()
    trees = TrackedTrees(store, workspace, ScanLimits())
    assert ([*trees], trees.find(WORKSPACE_KEY)) == ([trees.workspace], trees.workspace)
    assert not trees.covers(workspace / "a")
    assert trees.track(workspace / "a") is trees.find(str(workspace / "a")) is None
    assert trees.covers(outside / "a")
    assert len(trees) == 1  # to ask is not to track

    tree = trees.track(outside / "a")
    assert tree is not None
    # One tree, since it remembers what it has read.
    assert tree is trees.track(outside / "a") is trees.find(str(outside / "a"))
    other = trees.find(str(outside / "b"))  # of a step of an earlier process
    assert other is not None
    assert [*trees] == [trees.workspace, tree, other]

    for number in range(300):
        (workspace / f"{number}.txt").touch()
    assert trees.memory_bytes == 0
    trees.workspace.scan()
    assert trees.memory_bytes == trees.workspace.scanner.memory_bytes > 0

    trees.keep_only({tree.key})
    assert [*trees] == [trees.workspace, tree]
    trees.keep_only(set())
    assert [*trees] == [trees.workspace]
    trees.close()
    assert trees.memory_bytes == 0
    store.close()


def test_folder_that_was_moved_is_not_mistaken_for_what_is_in_its_place(tmp_path: Path) -> None:
    place, moved = tmp_path / "place", tmp_path / "moved"
    place.mkdir()
    store = Store(tmp_path / "store")
    tree = TrackedTree(store, place, ScanLimits())
    (place / "f").write_text("ours")
    root = tree.scan().root
    place.rename(moved)
    for instead in ("nothing is there", "something else is in its place"):
        for use in (tree.scan, tree.fits):
            with pytest.raises(WorkspaceError, match=f"was moved or removed .* {instead} now"):
                use()
        place.mkdir(exist_ok=True)
    place.rmdir()
    moved.rename(place)
    assert tree.scan().root == root
    store.close()


def test_tree_outside_follows_what_is_at_its_path(tmp_path: Path) -> None:
    (tmp_path / "around").mkdir()
    store = Store(tmp_path / "store")
    tree = TrackedTree(store, tmp_path / "around", ScanLimits(), only="entry")
    (tmp_path / "around").rename(tmp_path / "moved")
    (tmp_path / "around").mkdir()
    assert tree.scan().root
    store.close()


def test_folder_that_is_replaced_while_it_is_opened_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    store = Store(tmp_path / "store")
    tree = TrackedTree(store, place, ScanLimits())

    def replace(top: int, path: TreePath) -> int:
        place.rename(tmp_path / "moved")
        place.mkdir()
        return open_below(top, path)

    monkeypatch.setattr("aisotools.workspace.checkpoints.trees.open_below", replace)
    with pytest.raises(WorkspaceError, match="something else is in its place"), tree.opened():
        pass
    store.close()
