"""Walks over a folder: what is read again, what is not covered, and what changes while it is read."""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import mmap
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.folder_state import ALWAYS_READ, FolderState
from aisotools.workspace.checkpoints.scan import (
    ProgressCallback,
    ScanLimits,
    Scanner,
    Snapshot,
    TooSlow,
    _Walk,
)
from aisotools.workspace.checkpoints.store import Store, StoredFile
from aisotools.workspace.checkpoints.tree import (
    Node,
    NodeKind,
    TreePath,
    TreeReader,
    link_target,
    open_below,
)
from aisotools.workspace.dirfd import stamps_maps

FUTURE = 3_600_000_000_000


def later() -> int:
    """An hour from now: every stamp is old enough to be trusted."""
    return time.time_ns() + FUTURE


class ScannedFolder:
    """A folder with a store, of which snapshots are taken."""

    def __init__(self, top: Path) -> None:
        self.root = top / "root"
        self.root.mkdir()
        self.store = Store(top / "store")
        self.scanner = Scanner(self.store, ScanLimits(), clock=later)

    def limit(self, **limits: int) -> None:
        self.scanner = Scanner(self.store, ScanLimits(**limits), clock=later)

    def scan(
        self,
        only: str | None = None,
        progress: ProgressCallback | None = None,
        max_work: float = math.inf,
        *,
        may_wait: bool = True,
    ) -> Snapshot:
        folder = os.open(self.root, os.O_RDONLY)
        try:
            return self.scanner.scan(
                folder, only=only, progress=progress, max_work=max_work, may_wait=may_wait
            )
        finally:
            os.close(folder)

    def bare(self, snapshot: Snapshot, *path: str) -> Node | None:
        """Return a node without time and owner."""
        node = self.node(snapshot, *path)
        return None if node is None else node._replace(mtime_ns=None, owner=None)

    def entries(self, snapshot: Snapshot) -> list[TreePath]:
        return sorted(path for path, _ in TreeReader(self.store).entries(snapshot.root))

    def node(self, snapshot: Snapshot, *path: str) -> Node | None:
        return TreeReader(self.store).lookup(snapshot.root, path)

    def write(self, path: str, size: int) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.urandom(size))
        return file

    def fresh(self) -> Snapshot:
        """What a scanner finds that remembers nothing."""
        folder = os.open(self.root, os.O_RDONLY)
        try:
            return Scanner(self.store, ScanLimits()).scan(folder)
        finally:
            os.close(folder)


Argument = TypeVar("Argument")
Result = TypeVar("Result")


def noting(arguments: list[Argument], function: Callable[[Argument], Result]) -> Callable[[Argument], Result]:
    """Wrap a function of one argument so that its arguments are noted."""

    def noted(argument: Argument) -> Result:
        arguments.append(argument)
        return function(argument)

    return noted


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[ScannedFolder]:
    tree = ScannedFolder(tmp_path)
    yield tree
    tree.store.close()


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store(tmp_path_factory.mktemp("state") / "store")
    yield store
    store.close()


def walk_alone(store: Store, device: int, only: str | None = None) -> _Walk:
    """A walk without a scanner, which trusts every stamp."""
    limits = ScanLimits()
    return _Walk(store=store, limits=limits, device=device, racy_ns=later(), only=only, trust_stamps=True)


def test_single_file_with_a_name_outside_is_listed_by_the_first_scan_and_by_each_later_one(
    tmp_path: Path,
) -> None:
    """Whether it is read by that scan, or known from the one before."""
    scanned = ScannedFolder(tmp_path)
    for name in ("a", "d/b", "z/c"):
        scanned.write(name, 5)
    os.link(scanned.root / "d" / "b", tmp_path / "outside")
    try:
        assert scanned.scan(only="a").partial_count == 0
        for _ in range(3):
            snapshot = scanned.scan()
            assert snapshot.partial == ((("d", "b"), "its 1 other name outside of the workspace"),)
            assert snapshot.partial_count == 1
        node = scanned.node(snapshot, "d", "b")
        assert node is not None
        assert node.link == ((scanned.root / "d" / "b").stat().st_ino, 2)
        (tmp_path / "outside").unlink()
        assert scanned.scan().partial == ()
    finally:
        scanned.store.close()


def test_default_limits() -> None:
    assert ScanLimits() == ScanLimits(total_bytes=268_435_456, entries=100_000, depth=200)


# ---- what a tree holds


def test_snapshot_of_an_empty_folder(tree: ScannedFolder) -> None:
    snapshot = tree.scan()
    assert snapshot == Snapshot(root=tree.store.put(b""), entries=0)


def test_tree_holds_every_kind(tree: ScannedFolder) -> None:
    file = tree.write("folder/inner/file", 10)
    file.chmod(0o6640)
    (tree.root / "folder").chmod(0o710)
    (tree.root / "link").symlink_to("no/where")
    os.mkfifo(tree.root / "fifo", 0o640)
    with socket.socket(socket.AF_UNIX) as one:
        folder = os.open(tree.root, os.O_RDONLY)
        one.bind(f"/proc/self/fd/{folder}/sock")
        os.close(folder)
    snapshot = tree.scan()
    stored = tree.node(snapshot, "folder", "inner", "file")
    assert stored is not None
    assert (stored.kind, stored.mode, stored.size) == ("file", 0o6640, 10)
    status = file.stat()
    assert (stored.mtime_ns, stored.owner) == (status.st_mtime_ns, (status.st_uid, status.st_gid))
    assert (stored.xattrs, stored.link) == ("", None)
    assert tree.store.get(stored.content) == file.read_bytes()
    folder_node = tree.node(snapshot, "folder")
    assert folder_node is not None
    assert (folder_node.kind, folder_node.mode) == ("folder", 0o710)
    assert tree.bare(snapshot, "link") == Node("link", content="no/where")
    assert tree.bare(snapshot, "fifo") == Node("fifo", 0o640)
    assert tree.node(snapshot, "sock") == Node("other", content="socket")
    assert (snapshot.entries, snapshot.copied_bytes, snapshot.total_bytes) == (6, 10, 10)
    assert (snapshot.uncovered, snapshot.uncovered_count) == ((), 0)
    assert tree.scan().root == snapshot.root == tree.fresh().root


def test_devices_are_distinguished_from_sockets(store: Store) -> None:
    folder = os.open("/dev", os.O_RDONLY)
    state = FolderState()
    try:
        device = os.fstat(folder).st_dev
        walk = walk_alone(store, device, only="null")
        walk.visit(folder, (), state)
    finally:
        os.close(folder)
    assert state.node("null") == Node("other", content="device")
    assert walk.entries == 1


def test_link_to_a_folder_is_a_link(tree: ScannedFolder) -> None:
    tree.write("folder/a", 1)
    (tree.root / "link").symlink_to("folder")
    snapshot = tree.scan()
    assert tree.bare(snapshot, "link") == Node("link", content="folder")
    assert snapshot.entries == 3


@pytest.mark.parametrize("kind", ["link", "long_link"])
def test_long_target_of_a_link_is_stored_like_a_file(tree: ScannedFolder, kind: NodeKind) -> None:
    target = b"x/\xff" * 42 + b"yz" + b"y" * (kind == "long_link")
    (tree.root / "a").symlink_to(os.fsdecode(target))
    snapshot = tree.scan()
    node = tree.node(snapshot, "a")
    assert node is not None
    assert (node.kind, node.is_link, len(target)) == (kind, True, 128 + (kind == "long_link"))
    assert os.fsencode(link_target(node, tree.store)) == target
    assert (node.content in tree.store, node.size) == ((True, 129) if kind == "long_link" else (False, 0))
    assert (snapshot.copied_bytes, snapshot.total_bytes) == (0, 0)  # the limit is one of files
    assert tree.scan().root == snapshot.root == tree.fresh().root


def test_only_one_entry_is_covered(tree: ScannedFolder) -> None:
    for path in ("one/a", "two/one", "three"):
        tree.write(path, 3)
    for only in ("one", "three"):
        tree.limit()
        snapshot = tree.scan(only=only)
        assert [name for name in ("one", "two", "three") if tree.node(snapshot, name)] == [only]
        assert snapshot.entries == (2 if only == "one" else 1)
    tree.limit()
    assert tree.scan(only="gone").root == tree.store.put(b"")


# ---- what is read again


def test_unchanged_files_are_not_read_again(tree: ScannedFolder) -> None:
    tree.write("a", 10)
    tree.write("folder/b", 20)
    first = tree.scan()
    assert (first.entries, first.copied_bytes, first.total_bytes) == (3, 30, 30)
    second = tree.scan()
    assert (second.entries, second.copied_bytes, second.total_bytes) == (3, 0, 30)
    assert second.root == first.root


def test_changed_file_is_read_again_even_with_its_old_times(tree: ScannedFolder) -> None:
    file = tree.write("folder/a", 10)
    tree.write("b", 5)
    first = tree.scan()
    status = file.stat()
    file.write_bytes(b"0123456789")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    second = tree.scan()
    assert (second.copied_bytes, second.total_bytes) == (10, 15)
    assert second.root != first.root
    assert second.root == tree.fresh().root


def test_replaced_removed_and_new_entries_are_noticed(tree: ScannedFolder) -> None:
    for path in ("a/one", "a/two", "b", "c/deep/d"):
        tree.write(path, 4)

    def remove(name: str) -> None:
        path = tree.root / name
        (path.rmdir if path.is_dir() else path.unlink)()

    def replace(name: str, new: str, size: int = 4) -> None:
        remove(name)
        tree.write(new, size)

    def link(name: str, target: str) -> None:
        remove(name)
        (tree.root / name).symlink_to(target)

    def unpack() -> None:
        remove("b/inside")
        replace("b", "b", 9)

    changes: list[Callable[[], object]] = [
        (tree.root / "a" / "one").unlink,
        lambda: tree.write("a/three", 4),
        lambda: replace("b", "b/inside"),
        lambda: (tree.root / "c").rename(tree.root / "d"),
        lambda: link("a/two", "x"),
        unpack,
        lambda: (tree.root / "d" / "deep").chmod(0o700),
        lambda: (tree.root / "b").chmod(0o600),
        (tree.root / "e").mkdir,
        lambda: link("e", "d"),
    ]
    roots = [tree.scan().root]
    for change in changes:
        change()
        snapshot = tree.scan()
        fresh = tree.fresh()
        assert (snapshot.root, snapshot.entries) == (fresh.root, fresh.entries)
        assert snapshot.total_bytes == fresh.total_bytes
        roots.append(snapshot.root)
    assert len(set(roots)) == len(roots)


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_only_entry_that_is_renamed_is_one_entry(tree: ScannedFolder, kind: str) -> None:
    """The new one must not be taken for the old one when entries are counted."""
    make(tree.root / "old", kind)
    tree.scan()
    (tree.root / "old").rename(tree.root / "new")
    snapshot = tree.scan()
    assert (tree.node(snapshot, "old"), snapshot.root) == (None, tree.fresh().root)
    assert tree.node(snapshot, "new") is not None


def test_folder_is_listed_again_only_when_an_entry_is_missing(tree: ScannedFolder) -> None:
    for name in ("a", "b"):
        tree.write(name, 1)
    (tree.root / "folder").mkdir()
    tree.scan()
    listings: list[int] = []
    listdir: Callable[[int], list[str]] = os.listdir
    changes: list[tuple[Callable[[], object], int]] = [
        (lambda: None, 0),
        (lambda: tree.write("a", 2), 0),
        (lambda: tree.write("new", 2), 0),
        ((tree.root / "b").unlink, 1),
        ((tree.root / "folder").rmdir, 1),
    ]
    for act, count in changes:
        act()
        listings.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "listdir", noting(listings, listdir))
            tree.scan()
        assert len(listings) == count


def test_only_listings_that_changed_are_stored(tree: ScannedFolder) -> None:
    for path in ("a/file", "b/inner/file", "c"):
        tree.write(path, 3)
    tree.scan()
    stored: list[bytes] = []
    put = tree.store.put
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree.store, "put", noting(stored, put))
        tree.scan()
        assert stored == []
        tree.write("b/inner/file", 4)
        tree.scan()
    assert [data.rpartition(b"\0")[2] for data in stored[1:]] == [b"file", b"inner", b"c"]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_stamp_within_20_ms_of_the_walk_is_not_trusted(tree: ScannedFolder, kind: str) -> None:
    path = tree.root / "a"
    if kind == "file":
        path.write_bytes(b"12345")
    else:
        path.symlink_to("12345")
    status = path.lstat()
    stamp = max(status.st_mtime_ns, status.st_ctime_ns)
    for age_ns, trusted in [(0, False), (20_000_000, False), (20_000_001, True)]:
        now = stamp + age_ns
        tree.scanner = Scanner(tree.store, ScanLimits(), clock=lambda: now)  # noqa: B023 - called in this round
        tree.scan()
        assert tree.scanner._root.records["a"].startswith(ALWAYS_READ) is not trusted
        assert tree.scan().copied_bytes == (0 if trusted or kind == "link" else 5)


def test_a_walk_on_a_loop_does_not_wait_for_the_disk(tree: ScannedFolder) -> None:
    """What another walk has to read anyhow is not synced; all else is left to one that may wait."""
    status = tree.write("a", 5).lstat()
    stamp = max(status.st_mtime_ns, status.st_ctime_ns)
    for age_ns, waits in [(20_000_000, False), (20_000_001, True)]:
        now = stamp + age_ns
        tree.scanner = Scanner(tree.store, ScanLimits(), clock=lambda: now)  # noqa: B023 - called in this round
        with pytest.raises(TooSlow) if waits else contextlib.nullcontext():
            tree.scan(may_wait=False)
        unlimited = tree.scan()
        assert unlimited.copied_bytes == 5, "nothing of the first walk was trusted"
        assert unlimited.root == tree.fresh().root
    assert tree.scan(may_wait=False).copied_bytes == 0, "what was synced is not read again"


def test_time_of_the_content_counts_like_that_of_the_inode(tree: ScannedFolder) -> None:
    file = tree.write("a", 5)
    future = later() + FUTURE
    os.utime(file, ns=(future, future))
    tree.scan()
    assert tree.scan().copied_bytes == 5


def test_without_trust_every_file_is_read_by_every_walk(tree: ScannedFolder) -> None:
    tree.write("a", 5)
    tree.scanner = Scanner(tree.store, ScanLimits(), trust_stamps=False, clock=later)
    first = tree.scan()
    assert tree.scan().copied_bytes == 5
    assert tree.scan().root == first.root


@pytest.mark.parametrize("keep_bytes", [0, 1 << 20], ids=["in a file", "in memory"])
def test_state_between_two_walks_is_as_exact_wherever_it_waits(tree: ScannedFolder, keep_bytes: int) -> None:
    tree.scanner.keep_bytes = keep_bytes
    for path in ("a", "b/c", "b/d/e", "b/d/f"):
        tree.write(path, 10)
    (tree.root / "link").symlink_to("a")
    first = tree.scan()
    assert (tree.scanner.memory_bytes > 0) == (keep_bytes > 0)
    again = tree.scan()
    assert (again.root, again.copied_bytes, again.total_bytes) == (first.root, 0, 40)
    tree.write("b/d/e", 5)
    (tree.root / "a").unlink()
    changed = tree.scan()
    assert (changed.copied_bytes, changed.total_bytes) == (5, 25)
    assert changed.root == tree.fresh().root
    tree.write("b/new", 5)
    with pytest.raises(TooSlow):
        tree.scan(progress=_raise_too_slow)
    after = tree.scan()
    assert (after.copied_bytes, after.root) == (0, tree.fresh().root)
    tree.scanner.close()
    tree.limit(entries=1)
    tree.scanner.keep_bytes = keep_bytes
    assert tree.scan().root == ""
    assert tree.scanner.memory_bytes == 0
    tree.scanner.close()


def test_state_in_a_file_is_written_again_only_when_it_is_another(tree: ScannedFolder) -> None:
    tree.scanner.keep_bytes = 0
    file = tree.write("a", 10)
    tree.write("b", 10)
    tree.scan()
    first = tree.scanner._file
    assert first is not None
    tree.scan()
    assert tree.scanner._file is first
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns - 1))  # another stamp, the same tree
    assert tree.scan().copied_bytes == 10
    second = tree.scanner._file
    assert second is not first
    assert first.closed
    assert tree.scan().copied_bytes == 0
    (tree.root / "b").unlink()  # another tree, and nothing to look at again
    removed = tree.scan()
    third = tree.scanner._file
    assert third is not second
    assert tree.scan().root == removed.root == tree.fresh().root
    tree.scanner.close()


def test_state_in_a_file_is_written_again_when_a_link_has_another_stamp(tree: ScannedFolder) -> None:
    """Its target is the same; but the next walk would look at it again."""
    tree.scanner.keep_bytes = 0
    link = tree.root / "link"
    link.symlink_to("a")
    tree.scan()
    file = tree.scanner._file
    os.utime(link, ns=(1, 1), follow_symlinks=False)
    second = tree.scan(max_work=20)
    assert tree.scanner._file is not file
    assert tree.scan(max_work=1).root == second.root
    tree.scanner.close()


def test_state_of_exactly_the_size_that_is_kept_stays_in_memory(tree: ScannedFolder) -> None:
    assert tree.scanner.memory_bytes == 0
    tree.write("a", 10)
    tree.scan()
    size = tree.scanner.memory_bytes
    assert size == tree.scanner._root.memory_bytes()
    for keep_bytes, in_memory in [(size, True), (size - 1, False), (size, True)]:
        tree.scanner.keep_bytes = keep_bytes
        tree.write("a", 10)
        tree.scan()
        assert (tree.scanner._file is None, tree.scanner.memory_bytes > 0) == (in_memory, in_memory)
    (tree.root / "a").unlink()
    tree.scan()
    assert 0 < tree.scanner.memory_bytes < size
    tree.scanner.close()


def test_state_is_let_go_of_at_once(tree: ScannedFolder) -> None:
    """Its folders refer to each other, so they would wait for the collector."""
    for keep_bytes in (math.inf, 0):
        tree.limit()
        tree.write("folder/a", 10)
        tree.scan()
        state = tree.scanner._root
        tree.scanner.keep_bytes = keep_bytes
        tree.write("folder/a", 10)
        tree.scan()
        if keep_bytes:
            tree.scanner.close()
        assert (state.records, state.folders) == ({}, {})
        tree.scanner.close()


def test_state_that_cannot_be_read_again_costs_time_only(tree: ScannedFolder) -> None:
    closed: list[bool] = []
    tree.scanner.keep_bytes = 0
    tree.write("a", 10)
    first = tree.scan()
    assert tree.scanner._file is not None
    damaged = tree.scanner._file
    damaged.truncate(3)
    again = tree.scan(progress=at_start(lambda: closed.append(damaged.closed)))
    assert closed == [True], "it takes no room on the disk meanwhile"
    assert (again.root, again.copied_bytes) == (first.root, 10)
    tree.scanner.close()


def test_times_beyond_64_bits_are_covered_and_not_trusted(tree: ScannedFolder) -> None:
    """A file system in memory has them; elsewhere the time is cut, and this is like any other."""
    try:
        folder = tempfile.TemporaryDirectory(dir="/dev/shm")
    except OSError:  # nothing may be written there, which `os.access` does not tell under Landlock
        folder = tempfile.TemporaryDirectory(dir=tree.root)
    with folder as name:
        tree.root = Path(name)
        file = tree.write("a", 10)
        os.utime(file, (1 << 40, 1 << 40))
        first = tree.scan()
        assert (first.uncovered, first.copied_bytes) == ((), 10)
        assert tree.scan().root == first.root


@pytest.mark.parametrize("others", [0, 40], ids=["sync files", "sync file system"])
def test_write_through_a_memory_map_is_noticed(tree: ScannedFolder, others: int) -> None:
    if not stamps_maps(tree.root):
        pytest.skip("this file system never stamps such writes")
    file = tree.write("a", mmap.PAGESIZE)
    for number in range(others):
        tree.write(f"other{number}", 1)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as view:
        view[0:1] = b"1"  # the page is dirty: without a sync the next write leaves no stamp
        first = tree.scan()
        view[0:1] = b"2"
        second = tree.scan()
    assert second.copied_bytes == mmap.PAGESIZE
    assert second.root != first.root


# ---- limits


def test_all_bytes_fit_exactly_or_the_smallest_do(tree: ScannedFolder) -> None:
    tree.write("a", 600)
    tree.write("b", 300)
    tree.write("c", 100)
    tree.limit(total_bytes=1000)
    snapshot = tree.scan()
    assert (snapshot.uncovered, snapshot.total_bytes) == ((), 1000)
    tree.limit(total_bytes=999)
    snapshot = tree.scan()
    assert snapshot.uncovered == ((("a",), "it is too large"),)
    assert (snapshot.uncovered_count, snapshot.total_bytes, snapshot.copied_bytes) == (1, 400, 400)
    node = tree.node(snapshot, "a")
    assert node is not None
    assert (node.kind, node.mode) == ("unkept", (tree.root / "a").stat().st_mode & 0o777)


def test_size_decides_only_when_the_room_is_short(tree: ScannedFolder) -> None:
    for name, size in [("a", 30), ("b", 20), ("c", 10)]:
        tree.write(name, size)
    sizes = {}
    tree.write("below/d", 5)  # after the files of the folder around it
    for limit in (65, 64):
        tree.limit(total_bytes=limit)
        steps: list[int] = []
        tree.scan(progress=lambda done, _due: steps.append(done))  # noqa: B023 - called in this round
        sizes[limit] = [after - before for before, after in itertools.pairwise(steps)]
    assert sorted(sizes[65]) == [5, 10, 20, 30]
    assert sizes[65][-1] == 5
    assert sizes[64] == [5, 10, 20, 0]


def test_unchanged_files_keep_their_room(tree: ScannedFolder) -> None:
    tree.limit(total_bytes=1000)
    tree.write("old/a", 600)
    tree.scan()
    tree.write("b", 401)
    snapshot = tree.scan()
    assert (snapshot.uncovered, snapshot.total_bytes) == (((("b",), "it is too large"),), 600)
    (tree.root / "old" / "a").unlink()
    snapshot = tree.scan()
    assert (snapshot.uncovered, snapshot.total_bytes) == ((), 401)


def test_room_of_a_changed_file_is_its_own_again(tree: ScannedFolder) -> None:
    tree.limit(total_bytes=1000)
    tree.write("a", 600)
    tree.scan()
    tree.write("a", 1000)
    snapshot = tree.scan()
    assert (snapshot.uncovered, snapshot.total_bytes) == ((), 1000)
    tree.write("a", 1001)
    assert tree.scan().uncovered_count == 1
    assert tree.scan().uncovered_count == 1
    tree.write("a", 999)
    assert tree.scan().total_bytes == 999


def test_number_of_entries_is_limited(tree: ScannedFolder) -> None:
    tree.limit(entries=4)
    tree.write("a", 1)
    tree.write("b", 1)
    tree.write("folder/c", 1)
    assert tree.scan().entries == 4
    tree.write("d", 1)
    snapshot = tree.scan()
    assert snapshot.uncovered == ((("folder",), "it holds more than 4 files and folders"),)
    assert snapshot.entries == 4
    tree.write("e", 1)
    snapshot = tree.scan()
    reason = "it holds more than 4 files and folders"
    assert snapshot == Snapshot(root="", entries=0, uncovered=(((), reason),), uncovered_count=1)
    (tree.root / "e").unlink()
    (tree.root / "d").unlink()
    snapshot = tree.scan()
    assert (snapshot.root, snapshot.copied_bytes) == (tree.fresh().root, 3)


def test_large_numbers_are_readable(tree: ScannedFolder) -> None:
    tree.limit(entries=1000)
    for number in range(1001):
        (tree.root / str(number)).touch()
    assert tree.scan().uncovered == (((), "it holds more than 1,000 files and folders"),)


def test_depth_is_limited(tree: ScannedFolder) -> None:
    tree.limit(depth=2)
    tree.write("1/2/file", 1)
    assert tree.scan().uncovered_count == 0
    tree.write("1/2/3/file", 1)
    snapshot = tree.scan()
    assert snapshot.uncovered == ((("1", "2", "3"), "it lies more than 2 folders deep"),)
    assert tree.node(snapshot, "1", "2", "file") is not None


def test_other_file_systems_are_not_covered(store: Store) -> None:
    """`/proc` is one, wherever this runs."""
    folder = os.open("/", os.O_RDONLY)
    try:
        state = FolderState()
        device = os.fstat(folder).st_dev
        walk = walk_alone(store, device, only="proc")
        walk.visit(folder, (), state)
    finally:
        os.close(folder)
    assert list(state.uncovered(())) == [(("proc",), "it lies on another file system")]
    assert walk.has_unkept


@pytest.mark.parametrize("kind", ["file", "link", "link to nothing"])
def test_folder_that_is_swapped_before_it_is_opened_is_named(tmp_path: Path, store: Store, kind: str) -> None:
    """As if it had been a folder when it was listed."""
    (tmp_path / "inside").mkdir()
    if kind == "file":
        (tmp_path / "a").touch()
    else:
        (tmp_path / "a").symlink_to("inside" if kind == "link" else "nothing")
    state = FolderState()
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        device = os.fstat(folder).st_dev
        walk = walk_alone(store, device)
        walk._visit_folder(folder, (), "a", state)
        walk._visit_folder(folder, (), "gone", state)
    finally:
        os.close(folder)
    assert list(state.uncovered(())) == [(("a",), "it cannot be read: Not a directory")]
    assert state.folders == {}


def test_list_of_uncovered_paths_is_limited_but_their_number_is_exact(tree: ScannedFolder) -> None:
    tree.limit(total_bytes=0)
    for number in range(101):
        tree.write(f"folder/{number:03}", 1)
    snapshot = tree.scan()
    assert (len(snapshot.uncovered), snapshot.uncovered_count) == (100, 101)
    assert all(path[0] == "folder" for path, _ in snapshot.uncovered)


def test_unkept_file_that_changes_makes_another_tree(tree: ScannedFolder) -> None:
    tree.limit(total_bytes=0)
    tree.write("a", 1)
    first = tree.scan()
    assert tree.scan().root == first.root
    tree.write("a", 2)
    assert tree.scan().root != first.root


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_and_folder_are_named(tree: ScannedFolder) -> None:
    tree.write("a", 1).chmod(0)
    tree.write("folder/b", 1)
    (tree.root / "folder").chmod(0)
    reason = "it cannot be read: Permission denied"
    assert sorted(tree.scan().uncovered) == [(("a",), reason), (("folder",), reason)]
    (tree.root / "folder").chmod(0o700)


@pytest.mark.parametrize("names", [["file"], ["inner/file"], ["file", "inner/file", "link"]])
@pytest.mark.parametrize("is_known", [False, True])
def test_folder_whose_entries_may_only_be_listed_is_named_and_hides_no_other(
    tree: ScannedFolder, names: list[str], is_known: bool
) -> None:
    """Hostile code takes the right to search a folder away: that must not end what all calls need."""
    for name in names:
        if name == "link":
            (tree.root / "listed" / name).symlink_to("nowhere")
        else:
            tree.write(f"listed/{name}", 3)
    tree.write("other", 5)
    if is_known:
        tree.scan()
    with unsearchable(tree.root / "listed"):
        snapshot = tree.scan()
        assert snapshot.uncovered == ((("listed",), "it cannot be read: Permission denied"),)
        assert tree.scan().root == snapshot.root, "as long as nothing changes, it is the same"
        assert snapshot.total_bytes == 5
        assert tree.node(snapshot, "other") is not None
    assert tree.scan().uncovered == ()
    assert tree.node(tree.scan(), "listed", *names[0].split("/")) is not None


@contextmanager
def unsearchable(folder: Path) -> Iterator[None]:
    """Let the names in a folder be listed, and nothing of them be looked at."""
    if os.geteuid() != 0:
        folder.chmod(0o400)
        yield
        folder.chmod(0o700)
        return
    # Root is refused nothing, so the system calls are.
    inode, real = folder.stat().st_ino, os.stat
    inodes = {path.lstat().st_ino for path in folder.iterdir()}

    def refuse(entry: os.DirEntry[str]) -> None:
        if not entry.is_dir(follow_symlinks=False) and entry.inode() in inodes:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def stat_of(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        if dir_fd is not None and os.fstat(dir_fd).st_ino == inode:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    with pytest.MonkeyPatch.context() as patch, listed_entries(refuse):
        patch.setattr(os, "stat", stat_of)
        yield


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES])
def test_files_in_a_folder_that_cannot_be_opened_again_are_not_taken_for_removed(
    tree: ScannedFolder, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    tree.write("folder/a", 5)
    real = open_below

    def fail(root: int, path: TreePath) -> int:
        if path:
            raise OSError(code, os.strerror(code))
        return real(root, path)

    with monkeypatch.context() as patch:
        patch.setattr("aisotools.workspace.checkpoints.scan.open_below", fail)
        snapshot = tree.scan()
        assert tree.scan().root != snapshot.root, "nobody knows whether it has changed"
    reason = f"it cannot be read: {os.strerror(code)}"
    assert snapshot.uncovered == ((("folder", "a"), reason),)
    node = tree.node(snapshot, "folder", "a")
    assert node is not None
    assert node.is_unreadable
    assert tree.scan().uncovered == ()


@pytest.mark.parametrize("call", ["listxattr", "getxattr", "lseek", "fstat", "scandir"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM])
def test_entry_of_which_the_disk_does_not_tell_all_is_unreadable(
    tree: ScannedFolder, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    """Attributes or holes that are not there would be gone after an undo."""
    file = tree.write("folder/a", 5)
    os.setxattr(file, "user.mark", b"1")
    with file.open("ab") as opened:
        opened.truncate(1 << 20)
    os.setxattr(file.parent, "user.mark", b"2")
    inode = (file.parent if call == "scandir" else file).stat().st_ino
    real, status_of = getattr(os, call), os.fstat

    def fail(opened: int, *arguments: Any) -> Any:
        if status_of(opened).st_ino == inode:
            raise OSError(code, os.strerror(code))
        return real(opened, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        snapshot = tree.scan()
    assert [reason for _, reason in snapshot.uncovered] == [f"it cannot be read: {os.strerror(code)}"]
    assert tree.scan().uncovered == ()


@pytest.mark.parametrize(
    ("call", "size"), [("read", 5), ("read", 5 << 20), ("pread", 64 << 20)], ids=["small", "large", "sparse"]
)
@pytest.mark.parametrize("read_before", [0, 1, 3])
def test_file_of_which_the_disk_does_not_give_back_a_block_is_unreadable(
    tree: ScannedFolder, monkeypatch: pytest.MonkeyPatch, call: str, size: int, read_before: int
) -> None:
    """Nothing is wrong with the state folder then, and making room there would not help."""
    file = tree.write("folder/a", min(size, 5 << 20))
    if call == "pread":
        with file.open("r+b") as opened:
            opened.truncate(size)
            for start in range(0, size, 8 << 20):
                opened.seek(start)
                opened.write(b"x")
    inode, reads = file.stat().st_ino, 0
    real = getattr(os, call)

    def fail(opened: int, *arguments: int) -> Any:
        nonlocal reads
        if os.fstat(opened).st_ino == inode:
            reads += 1
            if reads > read_before:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(opened, *arguments)

    tree.write("other", 5)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        snapshot = tree.scan()
    if size > 5 or read_before < 2:  # it is read once, and once more to find its end
        assert snapshot.uncovered == ((("folder", "a"), f"it cannot be read: {os.strerror(errno.EIO)}"),)
    assert tree.node(snapshot, "other") is not None
    assert not [*(tree.store.folder / "objects").glob("new-*")]
    assert tree.scan().uncovered == ()


# ---- work


def make(path: Path, kind: str) -> None:
    """Make a file, a link or a folder."""
    if kind == "file":
        path.touch()
    elif kind == "link":
        path.symlink_to("target")
    else:
        path.mkdir()


KINDS = pytest.mark.parametrize("kind", ["file", "link", "folder"])


@contextmanager
def listed_entries(before: Callable[[os.DirEntry[str]], object] | None = None) -> Iterator[list[str]]:
    """Collect the names that are listed; act before each is looked at."""
    names: list[str] = []
    scandir = os.scandir

    @contextmanager
    def listing(folder: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        def each(entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
            for entry in entries:
                names.append(entry.name)
                if before is not None:
                    before(entry)
                yield entry

        with scandir(folder) as entries:
            yield each(entries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", listing)
        yield names


def test_work_is_one_for_each_known_entry_and_folder_and_twenty_for_each_new_one(tree: ScannedFolder) -> None:
    def takes(work: int) -> None:
        with pytest.raises(TooSlow):
            tree.scan(max_work=work - 1)
        tree.scan(max_work=work)

    for name, kind in [("a", "file"), ("b", "file"), ("l", "link")]:
        make(tree.root / name, kind)
    takes(3 * 20)
    tree.write("a", 2)
    takes(2 + 20)  # no folder is left that would notice it
    for name in ("c", "d"):
        make(tree.root / name, "folder")
    takes(3 + 2)
    tree.write("a", 1)
    takes(2 + 20 + 2)
    (tree.root / "l").unlink()
    (tree.root / "l").symlink_to("other")
    takes(2 + 20 + 2)
    tree.write("c/e", 1)
    takes(3 + 2 + 20)
    takes(4 + 2)


@KINDS
def test_no_more_entries_are_listed_than_may_be_covered(tree: ScannedFolder, kind: str) -> None:
    """They would be collected in memory, and a hostile folder holds as many as it likes."""
    for number in range(30):
        make(tree.root / str(number), kind)
    tree.limit(entries=10)
    with listed_entries() as names:
        assert tree.scan().root == ""
    assert len(names) == 11
    tree.limit()
    work = 10 * (1 if kind == "folder" else 20)
    with listed_entries() as names, pytest.raises(TooSlow):
        tree.scan(max_work=work)
    assert len(names) == 11


def test_folder_that_is_known_to_take_too_much_work_is_not_listed(tree: ScannedFolder) -> None:
    for name in "abc":
        tree.write(name, 1)
    tree.scan()
    with listed_entries() as names, pytest.raises(TooSlow):
        tree.scan(max_work=2)
    assert names == []
    assert tree.scan(max_work=3).copied_bytes == 0


def make_beyond(tree: ScannedFolder, **counts: int) -> None:
    """Make folders in `d` with so many entries that lie beyond a depth of 1."""
    tree.limit(depth=1)
    for name, count in counts.items():
        (tree.root / "d" / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (tree.root / "d" / name / f"beyond-{number}").touch()


@pytest.mark.parametrize(("second", "sealed"), [(4, 2), (5, 1)])
def test_entries_beyond_the_depth_are_limited_for_all_folders_together(
    tree: ScannedFolder, second: int, sealed: int
) -> None:
    """What is not looked at could have been changed by anybody: only force removes it."""
    make_beyond(tree, x=6, y=second)
    tree.limit(depth=1, entries=10)
    for _ in range(2):  # each walk counts for itself
        snapshot = tree.scan()
        nodes = [tree.node(snapshot, "d", name) for name in "xy"]
        assert [node is not None and node.kind for node in nodes] == ["unkept", "unkept"]
        assert sum(node is not None and node.is_sealed for node in nodes) == sealed


def test_nothing_beyond_the_depth_is_looked_at_on_an_event_loop(tree: ScannedFolder) -> None:
    make_beyond(tree, x=1)
    first = tree.scan()
    with pytest.raises(TooSlow):
        tree.scan(may_wait=False)
    assert tree.scan().root == first.root
    tree.limit(depth=2)
    first = tree.scan()
    assert tree.scan(may_wait=False).root == first.root


def test_each_entry_beyond_the_depth_takes_a_work_of_five(tree: ScannedFolder) -> None:
    make_beyond(tree, x=4)
    first = tree.scan()
    node = tree.node(first, "d", "x")
    assert node is not None
    assert node.is_sealed
    folders = 2
    assert tree.scan(max_work=folders + 4 * 5).root == first.root, "all of them were looked at"
    with pytest.raises(TooSlow):
        tree.scan(max_work=folders + 4 * 5 - 1)


def test_no_more_entries_beyond_the_depth_are_looked_at_than_the_work_allows(
    tree: ScannedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call has seconds, and a hostile folder holds as many as it likes: one too many says enough."""
    make_beyond(tree, x=30)
    looked_at: list[str] = []
    stat_of = os.stat

    def looking(name: Any, **options: Any) -> os.stat_result:
        if str(name).startswith("beyond-"):
            looked_at.append(name)
        return stat_of(name, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", looking)
        with pytest.raises(TooSlow):
            tree.scan(max_work=2 + 4 * 5)
        assert len(looked_at) == 4 + 1
        looked_at.clear()
        tree.scan(max_work=2 + 30 * 5)
        assert len(looked_at) == 30


# ---- what changes while it is read


def at_start(act: Callable[[], object]) -> ProgressCallback:
    """Act between the walk and the reading of the files it found."""

    def progress(done: int, _due: int) -> None:
        if not done:
            act()

    return progress


def test_file_that_is_removed_before_it_is_read_is_left_out(tree: ScannedFolder) -> None:
    tree.write("a", 5)
    tree.write("b", 7)
    snapshot = tree.scan(progress=at_start(lambda: (tree.root / "a").unlink(missing_ok=True)))
    assert (snapshot.uncovered, snapshot.total_bytes) == ((), 7)
    assert snapshot.root == tree.fresh().root


def test_folder_that_is_removed_before_its_files_are_read_is_left_out(tree: ScannedFolder) -> None:
    tree.write("folder/a", 5)
    tree.write("b", 7)

    def move_away() -> None:
        if (tree.root / "folder").exists():
            (tree.root / "folder").rename(tree.root.parent / "away")

    snapshot = tree.scan(progress=at_start(move_away))
    assert (snapshot.uncovered, snapshot.total_bytes) == ((), 7)
    assert tree.node(snapshot, "folder", "a") is None


@pytest.mark.parametrize(
    ("swap", "reason"),
    [
        (os.mkfifo, "it kept changing while it was read"),
        (os.mkdir, "it kept changing while it was read"),
        (lambda path: path.symlink_to("/etc/passwd"), "it cannot be read: Too many levels of symbolic links"),
    ],
    ids=["fifo", "folder", "link"],
)
def test_file_that_is_swapped_before_it_is_read_is_not_followed(
    tree: ScannedFolder, swap: Callable[[Path], object], reason: str
) -> None:
    file = tree.write("a", 5)

    def act() -> None:
        if not file.is_symlink() and file.is_file():
            file.unlink()
            swap(file)

    assert tree.scan(progress=at_start(act)).uncovered == ((("a",), reason),)


class ChangingStore(Store):
    """Changes the file that it stores, a number of times."""

    changes = 0
    path = Path()

    def put_file(self, file: int, *, max_bytes: int) -> StoredFile | None:
        stored = super().put_file(file, max_bytes=max_bytes)
        if self.changes:
            self.changes -= 1
            with self.path.open("ab") as opened:
                opened.write(b"more")
        return stored


@pytest.mark.parametrize(("changes", "covered"), [(1, True), (2, True), (3, False)])
def test_file_that_changes_while_it_is_read_is_read_three_times(
    tmp_path: Path, changes: int, covered: bool
) -> None:
    store = ChangingStore(tmp_path / "store")
    store.path = tmp_path / "root" / "a"
    store.path.parent.mkdir()
    store.path.write_bytes(b"start")
    store.changes = changes
    folder = os.open(store.path.parent, os.O_RDONLY)
    snapshot = Scanner(store, ScanLimits()).scan(folder)
    os.close(folder)
    if covered:
        assert snapshot.uncovered == ()
        node = TreeReader(store).lookup(snapshot.root, ("a",))
        assert node is not None
        assert store.get(node.content) == b"start" + b"more" * changes
        assert node.size == snapshot.total_bytes == 5 + 4 * changes
    else:
        assert snapshot.uncovered == ((("a",), "it kept changing while it was read"),)
    store.close()


def test_file_that_cannot_be_read_to_its_end_is_named(tree: ScannedFolder) -> None:
    tree.write("a", 5)
    tree.write("b", 7)

    def fail(_file: int, *, max_bytes: int) -> StoredFile:
        raise OSError(errno.EIO, os.strerror(errno.EIO), max_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree.store, "put_file", fail)
        snapshot = tree.scan()
    reason = "it cannot be read: Input/output error"
    assert sorted(snapshot.uncovered) == [(("a",), reason), (("b",), reason)]
    assert tree.scan().total_bytes == 12


@pytest.mark.parametrize("known", [False, True])
def test_file_that_is_removed_before_it_is_looked_at_is_left_out(tree: ScannedFolder, known: bool) -> None:
    tree.write("folder/a", 5)
    if known:
        tree.scan()

    def remove(entry: os.DirEntry[str]) -> None:
        if entry.name == "a":
            (tree.root / "folder" / "a").unlink()

    with listed_entries(remove):
        snapshot = tree.scan()
    assert (snapshot.uncovered, snapshot.total_bytes, snapshot.entries) == ((), 0, 1)
    # The time of the folder is that from before it was listed.
    assert list(tree.entries(snapshot)) == list(tree.entries(tree.fresh())) == [("folder",)]


def test_descriptor_0_is_one_like_any_other(tree: ScannedFolder) -> None:
    """A process may run without standard input; then the first folder that is opened gets its number."""
    tree.write("a", 5)
    tree.write("folder/b", 7)
    root = os.open(tree.root, os.O_RDONLY)
    stdin = os.dup(0)
    os.close(0)
    try:
        snapshot = tree.scanner.scan(root)
        again = os.open(os.devnull, os.O_RDONLY)
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)
        os.close(root)
    assert (snapshot.total_bytes, snapshot.root) == (12, tree.fresh().root)
    assert again == 0, "it was closed again"


def test_file_that_grows_beyond_the_room_is_not_kept(tree: ScannedFolder) -> None:
    tree.limit(total_bytes=10)
    file = tree.write("a", 10)
    snapshot = tree.scan(progress=at_start(lambda: file.write_bytes(bytes(11))))
    assert snapshot.uncovered == ((("a",), "it is too large"),)


# ---- failures and progress


def test_progress_adds_up(tree: ScannedFolder) -> None:
    for name in "abc":
        tree.write(f"{name}/file", 10)
    calls: list[tuple[int, int]] = []
    tree.scan(progress=lambda done, due: calls.append((done, due)))
    assert calls == [(0, 30), (10, 30), (20, 30), (30, 30)]
    calls.clear()
    tree.scan(progress=lambda done, due: calls.append((done, due)))
    assert calls == []


def test_aborted_walk_keeps_what_it_has_read(tree: ScannedFolder) -> None:
    for name in "abc":
        tree.write(name, 10)

    def abort(done: int, _due: int) -> None:
        if done == 20:
            raise TooSlow

    with pytest.raises(TooSlow):
        tree.scan(progress=abort)
    snapshot = tree.scan()
    assert (snapshot.copied_bytes, snapshot.total_bytes) == (10, 30)
    assert snapshot.root == tree.fresh().root


def test_failed_walk_proves_nothing(tree: ScannedFolder) -> None:
    tree.write("a", 10)
    tree.scan()
    tree.write("b", 20)

    def fail(_done: int, _due: int) -> None:
        raise WorkspaceError("No space")

    with pytest.raises(WorkspaceError):
        tree.scan(progress=fail)
    snapshot = tree.scan()
    assert snapshot.copied_bytes == 30
    assert snapshot.root == tree.fresh().root


def test_scan_closes_what_it_opens(tree: ScannedFolder) -> None:
    for path in ("a/x", "a/y", "b/c/z", "d"):
        tree.write(path, 1)
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    tree.scan()
    tree.limit()
    with pytest.raises(TooSlow):
        tree.scan(progress=_raise_too_slow)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def _raise_too_slow(done: int, _due: int) -> None:
    if done:
        raise TooSlow


# ---- parts


def test_open_below_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "file").touch()
    top = os.open(tmp_path, os.O_RDONLY)
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    paths: list[tuple[TreePath, Path]] = [((), tmp_path), (("a", "b"), tmp_path / "a" / "b")]
    for path, expected in paths:
        folder = open_below(top, path)
        assert os.fstat(folder).st_ino == expected.stat().st_ino
        os.close(folder)
    for bad in (("link",), ("link", "b"), ("file",), ("a", "gone"), ("a", "b", "c")):
        with pytest.raises(OSError, match=r"Not a directory|Too many levels|No such file"):
            open_below(top, bad)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before
    os.close(top)
