"""Taking a checkpoint: a walk that reads only what changed since the last one.

What is walked through is hostile. Every step is made from a descriptor, never through a link, never waiting
for the other end of a FIFO; nothing is opened but folders and regular files.

A file whose size, times and inode are as they were is taken as unchanged. Two things could hide a change, and
both are dealt with: a file stamped within 20 ms of the walk may change again under the same stamp, so it is
read again next time; and a write through a memory map leaves no stamp while its page is dirty, so a file is
written back before it is read. File systems in memory never stamp such writes: there every file is read.

What a walk remembers, so that the next one reads only what changed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pathlib
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aisotools.workspace.checkpoints.store import Node, Store, TreePath, encode

Stamp = tuple[int, int, int, int]
"""Size, times and inode of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanLimits:
    """What a checkpoint covers; the rest is named.

    Attributes:
        total_bytes: Of all files together; the smallest come first.
        entries: How many files and folders.
        depth: How many folders deep.
    """

    total_bytes: int = 256 << 20
    entries: int = 100_000
    depth: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a walk found.

    Attributes:
        root: Digest of the tree; empty where nothing could be covered.
        entries: How many files and folders it looked at.
        copied_bytes: How much of it had to be read.
        total_bytes: Size of all files that are kept.
        uncovered: What is not kept, each with its reason; at most a hundred, the first ones.
        uncovered_count: How many there are.
    """

    root: str
    entries: int
    copied_bytes: int = 0
    total_bytes: int = 0
    uncovered: tuple[tuple[TreePath, str], ...] = ()
    uncovered_count: int = 0


class TooSlow(Exception):
    """Raised by who hears the progress of a walk, to have it begun again elsewhere."""


class Seen:
    """One folder as the last walk left it."""

    __slots__ = ("bytes", "changed", "digest", "folders", "names", "parent", "unkept")

    def __init__(self, parent: Seen | None = None) -> None:
        self.parent = parent
        self.names: dict[str, tuple[Stamp | None, Node]] = {}
        self.folders: dict[str, Seen] = {}
        self.digest = ""
        self.changed = True
        self.bytes = 0  # of the files directly in it
        self.unkept = 0

    def note(self, name: str, stamp: Stamp | None, node: Node) -> None:
        """Take down what is there now."""
        known = self.names.get(name)
        if known is not None:
            self.discount(known[1])
        self.names[name] = stamp, node
        self.discount(node, by=-1)
        if node.kind != "folder":
            self.folders.pop(name, None)
        if known is None or known[1] != node:
            self.mark()

    def drop(self, name: str) -> None:
        """Nothing is there any more."""
        known = self.names.pop(name, None)
        if known is not None:
            self.discount(known[1])
            self.folders.pop(name, None)
            self.mark()

    def discount(self, node: Node, by: int = 1) -> None:
        """Count a node no more; with -1, count it."""
        if node.kind == "file":
            self.bytes -= by * node.size
        elif node.kind == "unkept":
            self.unkept -= by

    def mark(self) -> None:
        """The lists of this folder and of all above are to be written anew."""
        seen: Seen | None = self
        while seen is not None and not seen.changed:
            seen.changed = True
            seen = seen.parent


@dataclass(frozen=True, slots=True)
class FileToRead:
    """A file that has to be read."""

    path: TreePath
    name: str
    seen: Seen
    size: int
    status: os.stat_result


def stamp_of(status: os.stat_result) -> Stamp:
    """What changes when a file does."""
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


def unkept(why: str, status: os.stat_result) -> Node:
    """A node for what is there and not kept; differs when that changes."""
    mark = ":".join(map(str, stamp_of(status)))
    return Node("unkept", status.st_mode & 0o777, f"{why};{mark}")


def uncovered_in(seen: Seen, path: TreePath) -> Iterator[tuple[TreePath, str]]:
    """What a folder and all below it hold and is not kept, each with its reason."""
    for name, (_, node) in seen.names.items():
        if node.kind == "unkept":
            yield (*path, name), node.why_unkept
    for name, below in seen.folders.items():
        yield from uncovered_in(below, (*path, name))


_MANY = 32

RACY_NS = 20_000_000
"""How close to the walk a stamp may be without being trusted: clocks of file systems tick every 10 ms."""

# Never through a link; never waiting for the other end of a FIFO; never becoming somebody's terminal.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Progress = Callable[[int, int], None]
"""Hears how many of how many bytes were copied."""


class _TooMany(Exception):
    """A folder holds more than can be covered."""


class Scanner:
    """Walks one folder again and again and remembers what it saw."""

    def __init__(self, store: Store, limits: ScanLimits, *, trust_stamps: bool = True) -> None:
        """Keep what is found in `store`.

        Args:
            store: Where to.
            limits: What is covered.
            trust_stamps: Whether the file system stamps every write; if not, every file is read each time.
        """
        self._store = store
        self._limits = limits
        self._trust = trust_stamps
        self._root = Seen()
        self.entries = 0

    def scan(self, root: int, *, only: str | None = None, progress: Progress | None = None) -> Snapshot:
        """The state of the folder that `root` is open on.

        Args:
            root: Its descriptor, open for reading.
            only: Take only what has this name in it, with all below.
            progress: Hears how far copying has got.

        Raises:
            WorkspaceError: If it cannot be kept.
            OSError: If the folder itself cannot be read.
        """
        walk = _TreeWalk(self._limits, os.fstat(root).st_dev, only=only, trust=self._trust)
        try:
            walk.look(root, (), self._root)
            copied = self._copy(root, walk, progress)
            digest = self._seal(self._root)
        except _TooMany as error:
            self._root = Seen()
            return Snapshot(root="", entries=walk.entries, uncovered=(((), str(error)),), uncovered_count=1)
        except TooSlow:
            raise  # what was taken down so far holds
        except BaseException:
            self._root = Seen()  # half a walk proves nothing
            raise
        self.entries = walk.entries
        uncovered = list(uncovered_in(self._root, ())) if walk.unkept else []
        return Snapshot(
            root=digest,
            entries=walk.entries,
            copied_bytes=copied,
            total_bytes=walk.total,
            uncovered=tuple(uncovered[:100]),
            uncovered_count=len(uncovered),
        )

    def _copy(self, root: int, walk: _TreeWalk, progress: Progress | None) -> int:
        """Read what has to be read, the smallest first where the limit does not reach for all."""
        wanted = walk.wanted
        due = sum(one.size for one in wanted)
        if walk.total + due > self._limits.total_bytes:
            wanted = sorted(wanted, key=lambda one: one.size)
        if progress is not None and wanted:
            progress(0, due)
        # One by one each file waits for the disk; many are written back at once.
        synced = len(wanted) > _MANY and _write_back_all(root)
        done, folder = 0, -1
        where: TreePath | None = None
        try:
            for one in wanted:
                if one.path != where:
                    if folder >= 0:
                        os.close(folder)
                    folder, where = _open_again(root, one.path), one.path
                room = self._limits.total_bytes - walk.total
                stamp, node = self._read(folder, one, room, walk.racy_ns, synced=synced)
                if node is None:
                    one.seen.drop(one.name)
                    continue
                one.seen.note(one.name, stamp, node)
                walk.unkept = walk.unkept or node.kind == "unkept"
                walk.total += node.size
                done += node.size
                if progress is not None:
                    progress(done, due)
        finally:
            if folder >= 0:
                os.close(folder)
        return done

    def _read(
        self, folder: int, one: FileToRead, room: int, racy_ns: int, *, synced: bool
    ) -> tuple[Stamp | None, Node | None]:
        """What a file holds; None where it went away."""
        if folder < 0:
            return None, None
        if one.size > room:
            return None, unkept("it is too large", one.status)
        try:
            file = os.open(one.name, _READ, dir_fd=folder)
        except FileNotFoundError:
            return None, None
        except OSError as error:
            return None, unkept(f"it cannot be read: {error.strerror}", one.status)
        try:
            for _ in range(3):
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    break
                if not synced:
                    _write_back(file)
                before = os.fstat(file)
                os.lseek(file, 0, os.SEEK_SET)
                copied = self._store.put_file(file, max_bytes=room)
                after = os.fstat(file)
                same = stamp_of(before) == stamp_of(after)
                if same and copied is not None and copied.size == after.st_size:
                    racy = not self._trust or max(after.st_mtime_ns, after.st_ctime_ns) >= racy_ns
                    node = Node("file", after.st_mode & 0o777, copied.digest, copied.size)
                    return None if racy else stamp_of(after), node
            return None, unkept("it kept changing while it was read", one.status)
        except OSError as error:
            return None, unkept(f"it cannot be read: {error.strerror}", one.status)
        finally:
            os.close(file)

    def _seal(self, seen: Seen) -> str:
        """The digest of a folder, written where something in it changed."""
        if seen.changed:
            for name, below in seen.folders.items():
                if below.changed:
                    stamp, node = seen.names[name]
                    seen.names[name] = stamp, node._replace(content=self._seal(below))
            seen.digest = self._store.put(encode({name: node for name, (_, node) in seen.names.items()}))
            seen.changed = False
        return seen.digest


class _TreeWalk:
    """One walk; fast where nothing changed."""

    def __init__(self, limits: ScanLimits, device: int, *, only: str | None, trust: bool) -> None:
        self.entries = 0
        self.total = 0
        self.unkept = False
        self.wanted: list[FileToRead] = []
        self.racy_ns = time.time_ns() - RACY_NS
        self._limits = limits
        self._device = device
        self._only = only
        self._trust = trust

    def look(self, folder: int, path: TreePath, seen: Seen) -> None:
        """Look through one open folder and all below."""
        names, met = seen.names, 0
        fresh: dict[str, os.stat_result] = {}
        folders: list[str] = []
        room = self._limits.entries - self.entries
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
                    known = names.get(name)
                    # One comparison per file: this is what an unchanged workspace costs.
                    if known is not None and known[0] == (
                        status.st_size,
                        status.st_mtime_ns,
                        status.st_ino,
                        status.st_ctime_ns,
                    ):
                        met += 1
                        continue
                    fresh[name] = status
                if met + len(fresh) + len(folders) > room:
                    raise _TooMany(f"it holds more than {self._limits.entries:,} files and folders")
        if self._only is not None and not path:
            fresh = {name: status for name, status in fresh.items() if name == self._only}
            folders = [name for name in folders if name == self._only]
        self.entries += met + len(fresh) + len(folders)
        old = met + sum(name in names for name in fresh) + sum(name in names for name in folders)
        if old != len(names):
            present = set(os.listdir(folder))
            for name in [name for name in names if name not in present]:
                seen.drop(name)
        for name, status in fresh.items():
            self._meet(folder, path, name, status, seen)
        self.total += seen.bytes
        for name in folders:
            self._enter(folder, path, name, seen)
        self.unkept = self.unkept or seen.unkept > 0

    def _meet(self, folder: int, path: TreePath, name: str, status: os.stat_result, seen: Seen) -> None:
        """Something that is no folder, and new or changed."""
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG:
            known = seen.names.get(name)
            if known is not None and known[1].kind == "file":  # its bytes are counted when it is read
                seen.note(name, None, known[1]._replace(size=0))
            self.wanted.append(FileToRead(path, name, seen, status.st_size, status))
            return
        if kind == stat.S_IFLNK:
            try:
                node = Node("link", content=os.readlink(name, dir_fd=folder))
            except OSError as error:
                node = unkept(f"it cannot be read: {error.strerror}", status)
        elif kind == stat.S_IFIFO:
            node = Node("fifo", status.st_mode & 0o777)
        else:
            node = Node("other", content="socket" if kind == stat.S_IFSOCK else "device")
        racy = not self._trust or max(status.st_mtime_ns, status.st_ctime_ns) >= self.racy_ns
        seen.note(name, None if racy or node.kind == "unkept" else stamp_of(status), node)

    def _enter(self, parent: int, path: TreePath, name: str, seen: Seen) -> None:
        """A folder in a folder."""
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if len(path) + 1 > self._limits.depth:
                raise _TooMany(f"it lies more than {self._limits.depth} folders deep")
            folder = os.open(name, _FOLDER, dir_fd=parent)
        except FileNotFoundError:
            return  # it went away: the next walk will miss it
        except _TooMany as error:
            seen.note(name, None, unkept(str(error), status))
            return
        except OSError as error:
            seen.note(name, None, unkept(f"it cannot be read: {error.strerror}", status))
            return
        try:
            status = os.fstat(folder)
            if status.st_dev != self._device:
                seen.note(name, None, unkept("it lies on another file system", status))
                return
            below = seen.folders.get(name)
            if below is None:
                below = Seen(seen)
            node = Node("folder", status.st_mode & 0o777, below.digest)
            if name not in seen.folders or seen.names[name][1] != node:
                seen.note(name, None, node)
                seen.folders[name] = below
                seen.mark()
            try:
                self.look(folder, (*path, name), below)
            except _TooMany as error:
                seen.note(name, None, unkept(str(error), status))
        finally:
            os.close(folder)


def open_below(root: int, path: TreePath) -> int:
    """A folder below `root`, open for reading; no link is followed on the way.

    Raises:
        OSError: If it is not there, or no folder.
    """
    folder = os.open(".", _FOLDER, dir_fd=root)
    for name in path:
        try:
            below = os.open(name, _FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


def stamps_maps(path: pathlib.Path) -> bool:
    """Whether the file system there stamps files that are written through memory maps."""
    try:
        device = path.stat().st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        mounts = [line.split() for line in pathlib.Path("/proc/self/mountinfo").read_bytes().splitlines()]
    except OSError:
        return True
    kinds = {fields[fields.index(b"-") + 1] for fields in mounts if fields[2] == wanted.encode()}
    return not kinds & {b"tmpfs", b"ramfs", b"devtmpfs"}


def _open_again(root: int, path: TreePath) -> int:
    """A folder that the walk has just been in; -1 where it went away, and its files with it."""
    try:
        return open_below(root, path)
    except OSError:
        return -1


def _write_back_all(root: int) -> bool:
    """Write back everything on the file system of a folder; False where that cannot be asked for."""
    syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
    return syncfs is not None and syncfs(root) == 0


def _write_back(file: int) -> None:
    """Have the next write through a memory map stamp the file."""
    try:
        os.fdatasync(file)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EROFS}:  # what cannot be written back has no dirty pages
            raise
