"""Snapshots of a folder: a walk that stores what changed since the walk before.

The folder is hostile. Every step is made relative to an open directory, never through a link, and only
folders and regular files are opened.

A file whose size, times and inode are the same as in the last walk counts as unchanged and is not read. Two
things could hide a change behind an old stamp, and both are dealt with:

- A file that was written within the clock tick of the walk may be written again under the same stamp. Stamps
  younger than 20 ms are not trusted: the next walk reads such a file again.
- A write through a memory map changes the stamp only when the dirty page is written back. So files are synced
  before they are read. File systems in memory never do that: there every file is read by every walk.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import pathlib
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.store import Node, Store, TreePath, encode_folder
from aisotools.workspace.dirfd import DIRECTORY_FLAGS, READ_FLAGS
from aisotools.workspace.paths import printable

RACY_NS = 20_000_000
"""Age below which a stamp is not trusted. Clocks of file systems tick every 4 to 10 ms."""

_SYNCFS_FILES = 32  # above this one `syncfs` is faster than one `fdatasync` a file
_NEW_WORK = 20
"""Work for a new or changed entry, which is read and stored; a look at one that is known counts as 1."""
_READ_ATTEMPTS = 3  # of a file that changes while it is read
_MAX_LISTED = 100  # paths in `Snapshot.uncovered`

_Stamp = tuple[int, int, int, int]
"""Size, modification time, inode and change time of a file."""

ProgressCallback = Callable[[int, int], None]
"""Called with the bytes that were read so far and the bytes that have to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanLimits:
    """Limits of what a snapshot covers. Whatever lies beyond is listed in `Snapshot.uncovered`.

    Attributes:
        total_bytes: Size of all files together; the smallest are covered first.
        entries: Number of files and folders.
        depth: Levels of folders.
    """

    total_bytes: int = 256 << 20
    entries: int = 100_000
    depth: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Result of a walk.

    Attributes:
        root: Digest of the tree; empty if the folder could not be covered at all.
        entries: Number of files and folders in it.
        copied_bytes: Bytes that had to be read.
        total_bytes: Size of all covered files.
        uncovered: Paths whose content is not stored, each with the reason; the first hundred.
        uncovered_count: Number of all such paths.
    """

    root: str
    entries: int
    copied_bytes: int = 0
    total_bytes: int = 0
    uncovered: tuple[tuple[TreePath, str], ...] = ()
    uncovered_count: int = 0


class TooSlow(Exception):
    """Raised by a `ProgressCallback` to abort a walk; what was stored so far is not read again."""


class _LimitExceeded(Exception):
    """A folder holds more than `ScanLimits` covers."""


class FolderState:
    """One folder as the last walk found it.

    Attributes:
        parent: State of the folder around it; None at the root.
        nodes: Entries by name. The stamp is None where it is not to be trusted.
        folders: States of the subfolders.
        digest: Digest of the listing, valid unless `changed`.
        changed: True if the listing has to be stored again. Then all parents are changed, too.
        file_bytes: Size of the files directly in the folder.
        unkept: Number of entries directly in the folder whose content is not stored.
    """

    __slots__ = ("changed", "digest", "file_bytes", "folders", "nodes", "parent", "unkept")

    def __init__(self, parent: FolderState | None = None) -> None:
        self.parent = parent
        self.nodes: dict[str, tuple[_Stamp | None, Node]] = {}
        self.folders: dict[str, FolderState] = {}
        self.digest = ""
        self.changed = True
        self.file_bytes = 0
        self.unkept = 0

    def set(self, name: str, stamp: _Stamp | None, node: Node) -> None:
        """Add or replace an entry."""
        known = self.nodes.get(name)
        if known is not None:
            self._count(known[1], -1)
        self.nodes[name] = stamp, node
        self._count(node, 1)
        if node.kind != "folder":
            self.folders.pop(name, None)
        if known is None or known[1] != node:
            self.mark_changed()

    def drop(self, name: str) -> None:
        """Remove an entry, if there is one."""
        known = self.nodes.pop(name, None)
        if known is not None:
            self._count(known[1], -1)
            self.folders.pop(name, None)
            self.mark_changed()

    def _count(self, node: Node, sign: int) -> None:
        if node.kind == "file":
            self.file_bytes += sign * node.size
        elif node.kind == "unkept":
            self.unkept += sign

    def mark_changed(self) -> None:
        """Mark this folder and all parents to be stored again."""
        state: FolderState | None = self
        while state is not None and not state.changed:
            state.changed = True
            state = state.parent

    def uncovered(self, path: TreePath) -> Iterator[tuple[TreePath, str]]:
        """Yield the paths at any depth whose content is not stored, each with the reason."""
        for name, (_, node) in self.nodes.items():
            if node.kind == "unkept":
                yield (*path, name), node.why_unkept
        for name, folder in self.folders.items():
            yield from folder.uncovered((*path, name))


def _stamp_of(status: os.stat_result) -> _Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


def _unkept_node(reason: str, status: os.stat_result) -> Node:
    """Return a node for a path whose content is not stored; it changes when the file does."""
    stamp = ":".join(map(str, _stamp_of(status)))
    return Node("unkept", status.st_mode & 0o777, f"{reason};{stamp}")


def _unreadable_node(error: OSError, status: os.stat_result) -> Node:
    return _unkept_node(f"it cannot be read: {error.strerror}", status)


@dataclass(frozen=True, slots=True)
class _PendingFile:
    """A file that the walk found new or changed, and that has to be read."""

    path: TreePath  # of its folder
    name: str
    folder: FolderState
    status: os.stat_result


class Scanner:
    """Takes snapshots of one folder and remembers its state from one to the next."""

    def __init__(
        self,
        store: Store,
        limits: ScanLimits,
        *,
        trust_stamps: bool = True,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Store contents in `store`.

        Args:
            store: Destination.
            limits: Limits of what is covered.
            trust_stamps: False if the file system does not stamp every write; then files are always read.
            clock: Returns nanoseconds since the epoch; decides which stamps are old enough to be trusted.
        """
        self._store = store
        self._limits = limits
        self._trust_stamps = trust_stamps
        self._clock = clock
        self._root = FolderState()

    def scan(
        self,
        root: int,
        *,
        only: str | None = None,
        progress: ProgressCallback | None = None,
        max_work: float = math.inf,
    ) -> Snapshot:
        """Take a snapshot.

        Args:
            root: Descriptor of the folder, open for reading.
            only: Cover only the entry of this name, with everything below it.
            progress: Called while files are read; may raise `TooSlow`.
            max_work: How many entries may be looked at; one that is new or changed counts as 20.

        Raises:
            TooSlow: If it takes more than `max_work`, or `progress` raised it.
            WorkspaceError: If a content cannot be stored.
            OSError: If the folder itself cannot be read.
        """
        walk = _Walk(
            limits=self._limits,
            device=os.fstat(root).st_dev,
            racy_ns=self._clock() - RACY_NS,
            only=only,
            trust_stamps=self._trust_stamps,
            work_left=max_work,
        )
        try:
            walk.visit(root, (), self._root)
            copied_bytes = self._read_files(root, walk, progress)
            digest = self._store_folder(self._root)
        except _LimitExceeded as error:
            self._root = FolderState()
            return Snapshot(root="", entries=walk.entries, uncovered=(((), str(error)),), uncovered_count=1)
        except TooSlow:
            # Every entry of the state is true by itself; the next walk continues from there.
            raise
        except BaseException:
            # The state may be half updated, for example counted but not marked as changed. Start over.
            self._root = FolderState()
            raise
        uncovered = list(self._root.uncovered(())) if walk.has_unkept else []
        return Snapshot(
            root=digest,
            entries=walk.entries,
            copied_bytes=copied_bytes,
            total_bytes=walk.file_bytes,
            uncovered=tuple(uncovered[:_MAX_LISTED]),
            uncovered_count=len(uncovered),
        )

    def _read_files(self, root: int, walk: _Walk, progress: ProgressCallback | None) -> int:
        """Read the pending files of a walk. Return their size."""
        pending = walk.pending
        due_bytes = 0
        for file in pending:
            due_bytes += file.status.st_size
        if walk.file_bytes + due_bytes > self._limits.total_bytes:
            pending = sorted(pending, key=lambda file: file.status.st_size)
        if progress is not None and pending:
            progress(0, due_bytes)
        # Syncing file by file waits for the disk each time. Many files are synced at once.
        synced = len(pending) > _SYNCFS_FILES and _sync_file_system(root)
        read_bytes, folder = 0, -1
        folder_path: TreePath | None = None
        try:
            for file in pending:
                if file.path != folder_path:
                    if folder >= 0:
                        os.close(folder)
                    folder, folder_path = _reopen(root, file.path), file.path
                room = self._limits.total_bytes - walk.file_bytes
                stamp, node = self._read_file(folder, file, room, walk.racy_ns, synced=synced)
                if node is None:
                    file.folder.drop(file.name)
                    continue
                file.folder.set(file.name, stamp, node)
                walk.has_unkept = walk.has_unkept or node.kind == "unkept"
                walk.file_bytes += node.size
                read_bytes += node.size
                if progress is not None:
                    progress(read_bytes, due_bytes)
        finally:
            if folder >= 0:
                os.close(folder)
        return read_bytes

    def _read_file(
        self, folder: int, file: _PendingFile, room: int, racy_ns: int, *, synced: bool
    ) -> tuple[_Stamp | None, Node | None]:
        """Store a file of at most `room` bytes. Return its stamp, if it is trusted, and its node, if any."""
        if folder < 0:
            return None, None
        if file.status.st_size > room:
            return None, _unkept_node("it is too large", file.status)
        try:
            opened = os.open(file.name, READ_FLAGS, dir_fd=folder)
        except FileNotFoundError:
            return None, None
        except OSError as error:
            return None, _unreadable_node(error, file.status)
        try:
            for _ in range(_READ_ATTEMPTS):
                # Race: the name may by now lead to a FIFO or a device.
                if not stat.S_ISREG(os.fstat(opened).st_mode):
                    break
                if not synced:
                    _sync_file(opened)
                before = os.fstat(opened)
                os.lseek(opened, 0, os.SEEK_SET)
                stored = self._store.put_file(opened, max_bytes=room)
                after = os.fstat(opened)
                unchanged = _stamp_of(before) == _stamp_of(after)
                if unchanged and stored is not None and stored.size == after.st_size:
                    node = Node("file", after.st_mode & 0o777, stored.digest, stored.size)
                    trusted = _is_trusted(after, racy_ns, trust_stamps=self._trust_stamps)
                    return _stamp_of(after) if trusted else None, node
            return None, _unkept_node("it kept changing while it was read", file.status)
        except OSError as error:
            return None, _unreadable_node(error, file.status)
        finally:
            os.close(opened)

    def _store_folder(self, state: FolderState) -> str:
        """Store the listings of changed folders, subfolders first. Return the digest of `state`."""
        if state.changed:
            for name, folder in state.folders.items():
                if folder.changed:
                    stamp, node = state.nodes[name]
                    state.nodes[name] = stamp, node._replace(content=self._store_folder(folder))
            nodes = {}
            for name, (_, node) in state.nodes.items():
                nodes[name] = node
            state.digest = self._store.put(encode_folder(nodes))
            state.changed = False
        return state.digest


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One walk through the folder. Updates its state, except for files, which are left in `pending`."""

    limits: ScanLimits
    device: int
    racy_ns: int
    only: str | None
    trust_stamps: bool
    work_left: float = math.inf
    entries: int = 0
    file_bytes: int = 0
    has_unkept: bool = False
    pending: list[_PendingFile] = field(default_factory=list)

    def visit(self, folder: int, path: TreePath, state: FolderState) -> None:
        """Visit an open folder and everything below it."""
        unchanged = 0
        fresh: dict[str, os.stat_result] = {}
        folders: list[str] = []
        room = self.limits.entries - self.entries
        nodes = state.nodes
        if len(nodes) > self.work_left:
            raise TooSlow  # here, since nothing is counted for an entry that did not change
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                else:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    known = nodes.get(name)
                    # Hot path, one comparison per file: this is the cost of a call in an unchanged workspace.
                    # It spells `_stamp_of` out to save the call.
                    if known is not None and known[0] == (
                        status.st_size,
                        status.st_mtime_ns,
                        status.st_ino,
                        status.st_ctime_ns,
                    ):
                        unchanged += 1
                        continue
                    fresh[name] = status
                if len(fresh) + len(folders) > room:
                    break  # do not collect more than the limit
                if len(fresh) * _NEW_WORK + len(folders) > self.work_left:
                    raise TooSlow
        self.work_left -= unchanged + len(fresh) * _NEW_WORK + len(folders)
        if self.work_left < 0:
            raise TooSlow
        if unchanged + len(fresh) + len(folders) > room:
            raise _LimitExceeded(f"it holds more than {self.limits.entries:,} files and folders")
        if self.only is not None and not path:
            fresh = {name: status for name, status in fresh.items() if name == self.only}
            folders = [name for name in folders if name == self.only]
        self.entries += unchanged + len(fresh) + len(folders)
        present = unchanged + len(nodes.keys() & fresh.keys()) + len(nodes.keys() & folders)
        if present != len(nodes):
            self._drop_missing(folder, state)
        for name, status in fresh.items():
            self._visit_file(folder, path, name, status, state)
        for name in folders:
            self._visit_folder(folder, path, name, state)
        # Only now: a folder may have taken the place of a file, whose bytes were still counted above.
        self.file_bytes += state.file_bytes
        self.has_unkept = self.has_unkept or state.unkept > 0

    @staticmethod
    def _drop_missing(folder: int, state: FolderState) -> None:
        present = set(os.listdir(folder))
        for name in [name for name in state.nodes if name not in present]:
            state.drop(name)

    def _visit_file(
        self, folder: int, path: TreePath, name: str, status: os.stat_result, state: FolderState
    ) -> None:
        """Visit an entry that is not a folder, and new or changed."""
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG:
            known = state.nodes.get(name)
            if known is not None and known[1].kind == "file":
                # Its bytes are counted when it has been read; do not count the old ones as well.
                state.set(name, None, known[1]._replace(size=0))
            self.pending.append(_PendingFile(path, name, state, status))
            return
        if kind == stat.S_IFLNK:
            try:
                node = Node("link", content=os.readlink(name, dir_fd=folder))
            except OSError as error:
                node = _unreadable_node(error, status)
        elif kind == stat.S_IFIFO:
            node = Node("fifo", status.st_mode & 0o777)
        else:
            node = Node("other", content="socket" if kind == stat.S_IFSOCK else "device")
        trusted = node.kind != "unkept" and _is_trusted(status, self.racy_ns, trust_stamps=self.trust_stamps)
        state.set(name, _stamp_of(status) if trusted else None, node)

    def _visit_folder(self, parent: int, path: TreePath, name: str, state: FolderState) -> None:
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if len(path) + 1 > self.limits.depth:
                raise _LimitExceeded(f"it lies more than {self.limits.depth} folders deep")
            folder = os.open(name, DIRECTORY_FLAGS, dir_fd=parent)
        except FileNotFoundError:
            return  # removed since it was listed; the next walk drops it
        except _LimitExceeded as error:
            state.set(name, None, _unkept_node(str(error), status))
            return
        except OSError as error:
            state.set(name, None, _unreadable_node(error, status))
            return
        try:
            status = os.fstat(folder)
            if status.st_dev != self.device:
                state.set(name, None, _unkept_node("it lies on another file system", status))
                return
            inner = state.folders.get(name)
            if inner is None:
                inner = FolderState(state)
            node = Node("folder", status.st_mode & 0o777, inner.digest)
            if name not in state.folders or state.nodes[name][1] != node:
                state.set(name, None, node)
                state.folders[name] = inner
                state.mark_changed()
            try:
                self.visit(folder, (*path, name), inner)
            except _LimitExceeded as error:
                state.set(name, None, _unkept_node(str(error), status))
        finally:
            os.close(folder)


def _is_trusted(status: os.stat_result, racy_ns: int, *, trust_stamps: bool) -> bool:
    """Return whether any later write changes the stamp."""
    return trust_stamps and max(status.st_mtime_ns, status.st_ctime_ns) < racy_ns


def open_below(root: int, path: TreePath) -> int:
    """Return a descriptor of the folder at `path` below an open directory, following no link.

    Raises:
        OSError: If there is no folder at the path.
    """
    folder = os.open(".", DIRECTORY_FLAGS, dir_fd=root)
    for name in path:
        try:
            inner = os.open(name, DIRECTORY_FLAGS, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def _reopen(root: int, path: TreePath) -> int:
    """Return a descriptor of a folder that the walk has visited, or -1 if it was removed since."""
    try:
        return open_below(root, path)
    except OSError:
        return -1


def stamps_maps(path: pathlib.Path) -> bool:
    """Return whether the file system at `path` updates the times of files written through memory maps."""
    try:
        device = path.stat().st_dev
        lines = pathlib.Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return True
    number = f"{os.major(device)}:{os.minor(device)}".encode()
    mounts = [line.split() for line in lines]
    kinds = {fields[fields.index(b"-") + 1] for fields in mounts if fields[2] == number}
    return not kinds & {b"tmpfs", b"ramfs", b"devtmpfs"}


def _sync_file_system(root: int) -> bool:
    """Write back all dirty pages of the file system of `root`. Return False where that is not possible."""
    libc = ctypes.CDLL(None)
    return hasattr(libc, "syncfs") and bool(libc.syncfs(root) == 0)


def _sync_file(file: int) -> None:
    """Write back dirty pages, so that the next write through a memory map updates the stamp."""
    try:
        os.fdatasync(file)
    except OSError as error:
        # A file that cannot be written back has no dirty pages.
        if error.errno not in {errno.EINVAL, errno.EROFS}:
            raise


# ---- trees


class TrackedTree:
    """A folder, or one entry of it, of which snapshots are taken and restored.

    Attributes:
        path: Real path of the folder.
        only: Name of the one entry that is tracked; empty for the whole folder.
        root: Digest of the last snapshot.
    """

    def __init__(self, store: Store, path: pathlib.Path, limits: ScanLimits, *, only: str = "") -> None:
        self.path = path
        self.only = only
        self.root = ""
        self._limits = limits
        self._scanner = Scanner(store, limits, trust_stamps=stamps_maps(path))

    @classmethod
    def around(
        cls, store: Store, path: pathlib.Path, limits: ScanLimits, *, apart: Sequence[pathlib.Path]
    ) -> TrackedTree | None:
        """Track what is at an absolute path, or will be.

        Where folders on the way are missing, the first missing one is tracked. Return None if that contains
        one of the folders `apart`, or lies in one, or is the root of the file system.
        """
        real = pathlib.Path(os.path.realpath(path))
        while not real.parent.is_dir():
            real = real.parent
        if real == real.parent or any(_overlap(real, folder) for folder in apart):
            return None
        return cls(store, real.parent, limits, only=real.name)

    @property
    def key(self) -> str:
        """Name of the tree in records; empty for the workspace."""
        return str(self.path / self.only) if self.only else ""

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open the folder for reading, following no link on the way from `/`.

        Raises:
            WorkspaceError: If it no longer exists.
        """
        try:
            top = os.open("/", DIRECTORY_FLAGS)
            try:
                root = open_below(top, self.path.parts[1:])
            finally:
                os.close(top)
        except OSError as error:
            raise WorkspaceError(
                f"The folder {str(self.path)!r} cannot be used: {error.strerror}."
            ) from error
        try:
            yield root
        finally:
            os.close(root)

    def scan(self, progress: ProgressCallback | None = None, max_work: float = math.inf) -> Snapshot:
        """Take a snapshot; see `Scanner.scan` for the arguments.

        Raises:
            TooSlow: If it takes more than `max_work`, or `progress` raised it.
            WorkspaceError: If the folder cannot be read, or a content cannot be stored.
        """
        with self.opened() as root:
            try:
                snapshot = self._scanner.scan(
                    root, only=self.only or None, progress=progress, max_work=max_work
                )
            except OSError as error:
                problem = f"The folder {str(self.path)!r} cannot be read: {error.strerror}."
                raise WorkspaceError(problem) from error
        self.root = snapshot.root
        return snapshot

    def fits(self, most_entries: float = math.inf) -> bool:
        """Return whether a snapshot would be within the limits. Sizes are added up; no file is read.

        Raises:
            TooSlow: If it has to look at more than `most_entries`.
        """
        left_bytes, left_entries = self._limits.total_bytes, self._limits.entries
        with self.opened() as root:
            paths: list[TreePath] = [()]
            while paths:
                path = paths.pop()
                most_entries -= len(path)  # each folder on the way is opened
                try:
                    folder = open_below(root, path)
                except OSError:
                    continue  # what is left out is named when a snapshot is taken
                try:
                    with os.scandir(folder) as entries:
                        for entry in entries:
                            most_entries -= 1
                            if most_entries < 0:
                                raise TooSlow
                            if entry.is_dir():
                                if not entry.is_symlink():
                                    paths.append((*path, entry.name))
                                continue
                            left_entries -= 1
                            with suppress(FileNotFoundError):
                                left_bytes -= entry.stat(follow_symlinks=False).st_size
                            if left_bytes < 0 or left_entries < 0:
                                return False
                finally:
                    os.close(folder)
        return True

    def display_path(self, path: TreePath) -> str:
        """Return a path as a person reads it: relative to the workspace, absolute outside of it."""
        text = "/".join(path)
        return printable(str(self.path / text) if self.only else text)


def _overlap(one: pathlib.Path, other: pathlib.Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)
