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

import math
import os
import stat
import struct
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, repeat
from operator import itemgetter
from typing import BinaryIO

from aisotools.core.concurrency import sorted_in_runs
from aisotools.workspace.checkpoints.attributes import FIFO_BITS, list_partial, read_xattrs
from aisotools.workspace.checkpoints.contents import has_holes, occupied_bytes, store_sparse
from aisotools.workspace.checkpoints.folder_state import (
    FileStamp,
    FolderState,
    pack_stamp,
    put_away,
    take_back,
)
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import (
    TOO_LARGE,
    Node,
    TreePath,
    digest_below,
    link_node,
    open_below,
    unkept_node,
    unreadable_node,
)
from aisotools.workspace.dirfd import DIRECTORY_FLAGS, READ_FLAGS, sync_file, sync_file_system

RACY_NS = 20_000_000
"""Age below which a stamp is not trusted. Clocks of file systems tick every 4 to 10 ms."""

_SYNCFS_FILES = 32  # above this one `syncfs` is faster than one `fdatasync` a file
_NEW_WORK = 20
"""Work for a new or changed entry, which is read and stored; a look at one that is known counts as 1."""
_WORK_BEYOND = 5  # work for an entry beyond the depth: each walk looks at all of them, mostly folders
_READ_ATTEMPTS = 3  # of a file that changes while it is read
_MAX_LISTED = 100  # paths in `Snapshot.uncovered`

ProgressCallback = Callable[[int, int], None]
"""Called with the bytes that were read so far and the bytes that have to be read."""


@dataclass(slots=True)
class CopyProgress:
    """Bytes that were read, and that have to be. Written by the scanning thread, read by the event loop."""

    done: int = 0
    total: int = 0

    def update(self, done: int, total: int) -> None:
        """Note both; see `ProgressCallback`."""
        self.done, self.total = done, total


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanLimits:
    """Limits of what a snapshot covers. Whatever lies beyond is listed in `Snapshot.uncovered`.

    Attributes:
        total_bytes: Size of all files together, without holes; the smallest are covered first.
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
        partial: Paths that undo cannot bring back, or not with all attributes, each with why; the first
            hundred.
        partial_count: Number of all such paths.
    """

    root: str
    entries: int
    copied_bytes: int = 0
    total_bytes: int = 0
    uncovered: tuple[tuple[TreePath, str], ...] = ()
    uncovered_count: int = 0
    partial: tuple[tuple[TreePath, str], ...] = ()
    partial_count: int = 0


class TooSlow(Exception):
    """A walk was aborted, also by its `ProgressCallback`; what is stored by then is not read again."""


_INLINE_BYTES = 1 << 20


def refuse_large(done: int, total: int) -> None:
    """Abort a walk on the event loop if much is left to be copied: the `ProgressCallback` of such a walk.

    Raises:
        TooSlow: If it is more than 1 MiB.
    """
    if total - done > _INLINE_BYTES:
        raise TooSlow


class _TooManyEntries(Exception):
    """A folder holds more than `ScanLimits` covers."""


def _stamp_of(status: os.stat_result) -> FileStamp:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


@dataclass(slots=True)
class _PendingFiles:
    """Files of one folder that the walk found new or changed, and that have to be read."""

    path: TreePath  # of the folder
    folder: FolderState
    names: list[str]
    sizes: array[int]


def _smallest_first(pending: Sequence[_PendingFiles]) -> Iterator[_PendingFiles]:
    """Yield the same files one by one, in the order of their size."""
    files: list[tuple[int, _PendingFiles, str]] = []
    for batch in pending:
        files += zip(batch.sizes, repeat(batch), batch.names)
    for size, batch, name in sorted_in_runs(files, key=itemgetter(0)):
        yield _PendingFiles(batch.path, batch.folder, [name], array("Q", [size]))


class Scanner:
    """Takes snapshots of one folder and remembers its state from one to the next.

    Attributes:
        keep_bytes: How much memory the state may take between two walks; a larger one waits in a file.
        memory_bytes: How much it takes.
    """

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
        self._file: BinaryIO | None = None  # holds the state while it is not in memory
        # What the last snapshot that had any could not cover of attributes, and its digest.
        self._partial: tuple[str, tuple[tuple[TreePath, str], ...], int] = "", (), 0
        self.keep_bytes = math.inf
        self.memory_bytes = 0

    def close(self) -> None:
        """Forget the state."""
        self._forget()

    def scan(
        self,
        root: int,
        *,
        only: str | None = None,
        progress: ProgressCallback | None = None,
        max_work: float = math.inf,
        may_wait: bool = True,
    ) -> Snapshot:
        """Take a snapshot.

        Args:
            root: Descriptor of the folder, open for reading.
            only: Cover only the entry of this name, with everything below it.
            progress: Called while files are read; may raise `TooSlow`.
            max_work: How many entries may be looked at; one that is new or changed counts as 20.
            may_wait: False on an event loop, where nothing is synced, nor looked at beyond the depth.

        Raises:
            TooSlow: If it takes more than `max_work`, has to wait and may not, or `progress` raised it.
            WorkspaceError: If a content cannot be stored.
            OSError: If the folder itself cannot be read.
        """
        if self._file is not None:
            self._take_back()
        walk = _Walk(
            store=self._store,
            limits=self._limits,
            device=os.fstat(root).st_dev,
            racy_ns=self._clock() - RACY_NS,
            only=only,
            trust_stamps=self._trust_stamps,
            work_left=max_work,
            may_wait=may_wait,
        )
        try:
            walk.visit(root, (), self._root)
            copied_bytes = self._read_files(root, walk, progress)
            walk.is_dirty = walk.is_dirty or self._root.changed
            digest = self._store_folder(self._root)
            uncovered, uncovered_count = self._list_uncovered() if walk.has_unkept else ((), 0)
            partial, partial_count = self._list_partial(digest) if walk.has_special else ((), 0)
        except _TooManyEntries as error:
            self._forget()
            return Snapshot(root="", entries=walk.entries, uncovered=(((), str(error)),), uncovered_count=1)
        except TooSlow:
            # Every entry of the state is true by itself; the next walk continues from there.
            self.memory_bytes = self._root.memory_bytes()
            self._put_away(is_dirty=True)
            raise
        except BaseException:
            # The state may be half updated, for example counted but not marked as changed. Start over.
            self._forget()
            raise
        if walk.is_dirty:
            self.memory_bytes = self._root.memory_bytes()
        if self._file is not None or self.memory_bytes > self.keep_bytes:
            self._put_away(is_dirty=walk.is_dirty)
        return Snapshot(
            root=digest,
            entries=walk.entries,
            copied_bytes=copied_bytes,
            total_bytes=walk.file_bytes,
            uncovered=uncovered,
            uncovered_count=uncovered_count,
            partial=partial,
            partial_count=partial_count,
        )

    def _list_uncovered(self) -> tuple[tuple[tuple[TreePath, str], ...], int]:
        """Return the first paths whose content is not stored, and how many there are."""
        uncovered = iter(self._root.uncovered(()))
        listed = tuple(islice(uncovered, _MAX_LISTED))
        return listed, len(listed) + sum(1 for _ in uncovered)

    def _list_partial(self, digest: str) -> tuple[tuple[tuple[TreePath, str], ...], int]:
        """Return the first paths with attributes that cannot be set again, and how many there are."""
        if self._partial[0] != digest:
            # In a folder that packages are installed in there may be ten thousand names of files that have
            # others elsewhere. So this is looked at only if something has changed.
            entries = list(self._root.partial(()))
            found = list_partial(self._store, entries, keeps_set_ids=True)
            self._partial = digest, tuple(found[:_MAX_LISTED]), len(found)
        return self._partial[1:]

    # ---- the state between two walks

    def _take_back(self) -> None:
        assert self._file is not None
        try:
            self._root = take_back(self._file)
        except (OSError, ValueError):
            self._forget()  # every file is read again, which takes its time and loses nothing

    def _put_away(self, *, is_dirty: bool) -> None:
        """Free the memory of the state, if it is more than may be kept, or was not before the walk."""
        if is_dirty:
            self._close_file()
        if self._file is not None:
            self._file.seek(0)
        elif self.memory_bytes <= self.keep_bytes:
            return
        else:
            # Disk full: the next walk reads every file again.
            with suppress(OSError):
                self._file = put_away(self._root, self._store.folder)
        self._root.clear()
        self._root = FolderState()
        self.memory_bytes = 0

    def _forget(self) -> None:
        self._root.clear()
        self._root = FolderState()
        self._close_file()
        self.memory_bytes = 0

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # ---- files

    def _read_files(self, root: int, walk: _Walk, progress: ProgressCallback | None) -> int:
        """Read the pending files of a walk. Return their size."""
        due_bytes = count = 0
        for folder in walk.pending:
            due_bytes += sum(folder.sizes)
            count += len(folder.names)
        batches: Iterable[_PendingFiles] = walk.pending
        if walk.file_bytes + due_bytes > self._limits.total_bytes:
            batches = _smallest_first(walk.pending)
        if progress is not None and count:
            progress(0, due_bytes)
        # Syncing file by file waits for the disk each time. Many files are synced at once.
        synced = walk.may_wait and count > _SYNCFS_FILES and sync_file_system(root)
        read_bytes = 0
        for batch in batches:
            try:
                opened = open_below(root, batch.path)
            except (FileNotFoundError, NotADirectoryError):
                continue  # it was removed since the walk has visited it, which dropped what was known of it
            except OSError as error:
                # Not removed: an undo would take what is in it for the work of somebody else, or remove it.
                for name in batch.names:
                    batch.folder.set(name, None, unreadable_node(error, None))
                walk.has_unkept = True
                continue
            try:
                for name, size in zip(batch.names, batch.sizes, strict=True):
                    room = self._limits.total_bytes - walk.file_bytes
                    try:
                        stamp, node = self._read_file(opened, name, size, room, walk, synced=synced)
                    except FileNotFoundError:
                        continue  # `visit` has dropped what was known of it
                    batch.folder.set(name, stamp, node)
                    walk.has_unkept = walk.has_unkept or node.kind == "unkept"
                    walk.has_special = walk.has_special or batch.folder.special > 0
                    walk.file_bytes += node.size
                    read_bytes += node.size
                    if progress is not None:
                        progress(read_bytes, due_bytes)
            finally:
                os.close(opened)
        return read_bytes

    def _read_file(
        self, folder: int, name: str, size: int, room: int, walk: _Walk, *, synced: bool
    ) -> tuple[FileStamp | None, Node]:
        """Store a file of at most `room` bytes. Return its stamp, if it is trusted, and its node.

        Raises:
            FileNotFoundError: It is there no longer.
            TooSlow: Its stamp could be trusted if it were synced, which this walk must not wait for.
        """
        status = None
        try:
            if size > room:
                return None, unkept_node(TOO_LARGE, _status(folder, name))
            try:
                opened = os.open(name, READ_FLAGS, dir_fd=folder)
            except OSError:
                status = _status(folder, name)
                raise
        except FileNotFoundError:
            raise
        except OSError as error:
            return None, unreadable_node(error, status)
        before = None
        try:
            for _ in range(_READ_ATTEMPTS):
                before = os.fstat(opened)
                # Race: the name may by now lead to a FIFO or a device.
                if not stat.S_ISREG(before.st_mode):
                    break
                if walk.may_wait:
                    if not synced:
                        sync_file(opened)
                    before = os.fstat(opened)
                elif walk.trusts(before):
                    raise TooSlow
                # Else it is read again by the next walk in any case, and that one syncs it.
                is_sparse = has_holes(opened, before)
                if is_sparse:
                    stored = store_sparse(self._store, opened, before.st_size, max_bytes=room)
                else:
                    os.lseek(opened, 0, os.SEEK_SET)
                    stored = self._store.put_file(opened, max_bytes=room)
                xattrs = read_xattrs(opened, self._store)
                after = os.fstat(opened)
                unchanged = _stamp_of(before) == _stamp_of(after)
                if unchanged and stored is not None and (is_sparse or stored.size == after.st_size):
                    node = Node("sparse" if is_sparse else "file", content=stored.digest, size=stored.size)
                    node = _with_names(_with_attributes(node, after, xattrs), after)
                    return _stamp_of(after) if walk.trusts(after) else None, node
                if unchanged and stored is None:
                    return None, unkept_node(TOO_LARGE, after)
            return None, unkept_node("it kept changing while it was read", os.fstat(opened))
        except OSError as error:
            return None, unreadable_node(error, before)
        finally:
            os.close(opened)

    def _store_folder(self, state: FolderState) -> str:
        """Store the listings of changed folders, subfolders first. Return the digest of `state`."""
        if state.changed:
            for name, folder in state.folders.items():
                if folder.changed:
                    state.set_digest(name, self._store_folder(folder))
            state.digest = self._store.put(state.listing())
            state.changed = False
        return state.digest


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One walk through the folder. Updates its state, except for files, which are left in `pending`."""

    store: Store
    limits: ScanLimits
    device: int
    racy_ns: int
    only: str | None
    trust_stamps: bool
    work_left: float = math.inf
    may_wait: bool = True
    entries: int = 0
    entries_beyond: int = 0  # that were looked at beyond the depth
    file_bytes: int = 0
    has_unkept: bool = False
    has_special: bool = False
    is_dirty: bool = False
    pending: list[_PendingFiles] = field(default_factory=list)

    def trusts(self, status: os.stat_result) -> bool:
        """Return whether any later write to a file that was synced changes its stamp."""
        return self.trust_stamps and max(status.st_mtime_ns, status.st_ctime_ns) < self.racy_ns

    def visit(self, folder: int, path: TreePath, state: FolderState) -> None:
        """Visit an open folder and everything below it."""
        unchanged = known = 0
        # Of what is new or changed only names and sizes: a hostile folder may hold a hundred thousand.
        files, sizes = list[str](), array("Q")
        others, folders = list[str](), list[str]()
        room = self.limits.entries - self.entries
        records = state.records
        only = self.only if not path else None
        if len(records) > self.work_left:
            raise TooSlow  # here, since nothing is counted for an entry that did not change
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                if entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                    known += name in records
                else:
                    # Hot path, one comparison per file: this is the cost of a call in an unchanged workspace.
                    # It spells `_stamp_of` out to save the call.
                    record = None
                    try:
                        status = entry.stat(follow_symlinks=False)
                        record = records.get(name)
                        if record is not None and record.startswith(
                            pack_stamp(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)
                        ):
                            unchanged += 1
                            continue
                    except FileNotFoundError:
                        continue
                    except struct.error:
                        pass  # such a stamp is never trusted
                    known += record is not None
                    if stat.S_ISREG(status.st_mode):
                        files.append(name)
                        sizes.append(occupied_bytes(status))
                    else:
                        others.append(name)
                fresh = len(files) + len(others)
                if fresh + len(folders) > room:
                    break  # do not collect more than the limit
                if fresh * _NEW_WORK + len(folders) > self.work_left:
                    raise TooSlow
        fresh = len(files) + len(others)
        self.work_left -= unchanged + fresh * _NEW_WORK + len(folders)
        if self.work_left < 0:
            raise TooSlow
        if unchanged + fresh + len(folders) > room:
            raise _TooManyEntries(f"it holds more than {self.limits.entries:,} files and folders")
        if only is not None:
            sizes = array("Q", [size for size, name in zip(sizes, files, strict=True) if name == only])
            files, others, folders = (
                [name for name in names if name == only] for names in (files, others, folders)
            )
            fresh = len(files) + len(others)
            known = len(records.keys() & {*files, *others, *folders})
        self.entries += unchanged + fresh + len(folders)
        if unchanged + known != len(records):
            self._drop_missing(folder, state)
        if files:
            # Their bytes are counted when they have been read, so the old ones must not be.
            for name in files:
                if name in records:
                    state.drop(name)
            self.pending.append(_PendingFiles(path, state, files, sizes))
        for name in others:
            self._visit_special(folder, name, state)
        self.is_dirty = self.is_dirty or fresh > 0
        for name in folders:
            self._visit_folder(folder, path, name, state)
        # Only now: a folder may have taken the place of a file, whose bytes were still counted above.
        self.file_bytes += state.file_bytes
        self.has_unkept = self.has_unkept or state.unkept > 0
        self.has_special = self.has_special or state.special > 0

    @staticmethod
    def _drop_missing(folder: int, state: FolderState) -> None:
        present = {name for name in os.listdir(folder)}  # noqa: C416 - one by one: other threads can run
        for name in [name for name in state.records if name not in present]:
            state.drop(name)

    def _visit_special(self, folder: int, name: str, state: FolderState) -> None:
        """Visit an entry that is new or changed, and neither a folder nor a regular file."""
        try:
            status = _status(folder, name)
        except FileNotFoundError:
            return  # removed since it was listed; the next walk drops it
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFLNK:
            try:
                node = link_node(os.readlink(name, dir_fd=folder), self.store)
                node = _with_names(_with_attributes(node, status)._replace(mode=0), status)
            except OSError as error:
                node = unreadable_node(error, status)
        elif kind == stat.S_IFIFO:
            node = _with_attributes(Node("fifo"), status)._replace(mode=status.st_mode & FIFO_BITS)
            node = _with_names(node, status)
        elif kind in {stat.S_IFREG, stat.S_IFDIR}:
            node = unkept_node("it was replaced while it was looked at", status)
        else:
            node = Node("other", content="socket" if kind == stat.S_IFSOCK else "device")
        trusted = node.kind != "unkept" and self.trusts(status)
        state.set(name, _stamp_of(status) if trusted else None, node)

    def _visit_folder(self, parent: int, path: TreePath, name: str, state: FolderState) -> None:
        """Visit a subfolder. One that cannot be read is named, and nothing below it is known.

        Raises:
            OSError: If the folder around it does not even let it be looked at.
        """
        try:
            status = _status(parent, name)
        except FileNotFoundError:
            return  # removed since it was listed; the next walk drops it
        pending, file_bytes = len(self.pending), self.file_bytes
        try:
            try:
                folder = os.open(name, DIRECTORY_FLAGS, dir_fd=parent)
            except FileNotFoundError:
                return  # the same
            try:
                self._visit_open(folder, (*path, name), state)
            finally:
                os.close(folder)
        except OSError as error:
            # Hostile code may let the names in a folder be listed and nothing else of them be seen.
            del self.pending[pending:]
            self.file_bytes = file_bytes
            state.set(name, None, unreadable_node(error, status))

    def _visit_open(self, folder: int, path: TreePath, state: FolderState) -> None:
        """Visit the open folder at `path`, whose entry is in `state`."""
        name, status = path[-1], os.fstat(folder)
        if status.st_dev != self.device:
            state.set(name, None, unkept_node("it lies on another file system", status))
            return
        if len(path) > self.limits.depth:
            reason = f"it lies more than {self.limits.depth} folders deep"
            state.set(name, None, unkept_node(reason, status, self._look_through(folder)))
            return
        inner = state.folders.get(name)
        if inner is None:
            inner = FolderState(state)
        # Its time before the look: whatever is put into it from then on shows the next time.
        node = Node("folder", content=inner.digest)
        node = _with_attributes(node, status, read_xattrs(folder, self.store))
        if name not in state.folders or state.node(name) != node:
            state.set(name, None, node)
            state.folders[name] = inner
        try:
            self.visit(folder, path, inner)
        except _TooManyEntries as error:
            state.set(name, None, unkept_node(str(error), status))

    def _look_through(self, folder: int) -> str:
        """Return what `digest_below` does for a folder beyond the depth, whose content is not stored."""
        if not self.may_wait:
            # On an event loop: while something removes a chain of thousands of folders, each look at one of
            # them waits for that in the kernel.
            raise TooSlow
        room = min(self.limits.entries - self.entries_beyond, self.work_left // _WORK_BEYOND + 1)
        digest, count = digest_below(folder, self.device, int(room))
        self.entries_beyond += count
        self.work_left -= count * _WORK_BEYOND
        if self.work_left < 0:
            raise TooSlow
        return digest


def _with_attributes(node: Node, status: os.stat_result, xattrs: str = "") -> Node:
    return node._replace(
        mode=stat.S_IMODE(status.st_mode),
        mtime_ns=status.st_mtime_ns,
        owner=(status.st_uid, status.st_gid),
        xattrs=xattrs,
    )


def _with_names(node: Node, status: os.stat_result) -> Node:
    return node._replace(link=(status.st_ino, status.st_nlink)) if status.st_nlink > 1 else node


def _status(folder: int, name: str) -> os.stat_result:
    return os.stat(name, dir_fd=folder, follow_symlinks=False)
