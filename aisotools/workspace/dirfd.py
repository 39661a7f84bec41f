"""File operations relative to an open directory, for folders whose content is hostile.

Nothing here follows a link, waits for the other end of a FIFO, or holds an unbounded number of entries. The
`O_*` flag sets of `aisotools.workspace` are defined here.

Threat: code in the sandbox changes a folder while the host works in it: a link in the place of a file, a FIFO
that never answers, a file that grows, millions of names.
Mechanism: the flags below refuse links, never wait, and pass nothing on to programs; what was opened is
looked at by its descriptor before it is read, and reads and lists have bounds.
Race: a name can mean another file at each use. So a file is opened once, and all that follows is done with
the descriptor.
Failure: what is not a regular file, too large or gone is an error or None, as each function says; nothing is
followed or read in its place.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import itertools
import mmap
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aisotools.core.exceptions import WorkspaceError

# O_NOFOLLOW: a name may have become a link since it was looked at; fail instead of following it.
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC

# O_NONBLOCK: opening a FIFO would wait for a writer. O_NOCTTY: a terminal device would become ours.
READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | _SAFE
"""Open a file or folder to read it."""

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | _SAFE
"""Open a folder to list it or to change what it holds."""

# O_PATH needs no right to read the folder. Where the system has no O_PATH, reading must be allowed.
WALK_FLAGS = (os.O_PATH if hasattr(os, "O_PATH") else os.O_RDONLY) | os.O_DIRECTORY | _SAFE
"""Open a folder to walk through it; the descriptor is good for `dir_fd` only."""

PLACE_FLAGS = (os.O_PATH if hasattr(os, "O_PATH") else os.O_RDONLY | os.O_NONBLOCK) | _SAFE
"""Open whatever a name leads to, to look at it or to change its mode."""

CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE
"""Create a file that must not exist yet."""

APPEND_FLAGS = os.O_WRONLY | os.O_APPEND | _SAFE
"""Open an existing file to append to it."""

LOCK_FLAGS = os.O_RDWR | os.O_CREAT | _SAFE
"""Open a lock file; create it if it is missing."""

MOST_ENTRIES = 100_000
"""Entries of one folder that are held; those that come later by name are only counted."""

_HELD_FOLDERS = 64
_READ_BYTES = 1 << 16  # most files are smaller, and are read with one system call
_CHUNK_BYTES = 1 << 20

EntryKind = Literal["file", "directory", "symlink", "fifo", "socket", "device"]
"""File type of a directory entry."""

_KINDS: dict[int, EntryKind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


def kind_of(status: os.stat_result) -> EntryKind:
    """Return the file type that a `stat` result shows."""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "device")


@dataclass(frozen=True, slots=True)
class Entry:
    """A path in the workspace and its `stat`.

    Attributes:
        path: Relative to the workspace, without links on the way; `.` for the workspace.
        stat: Result of `lstat`.
    """

    path: str
    stat: os.stat_result

    @property
    def name(self) -> str:
        """Last component of the path."""
        return self.path.rpartition("/")[2]

    @property
    def kind(self) -> EntryKind:
        """File type."""
        return kind_of(self.stat)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.stat.st_size

    @property
    def mode(self) -> int:
        """Permission bits, including setuid, setgid and sticky."""
        return stat.S_IMODE(self.stat.st_mode)


# ---- folders


@dataclass(frozen=True, slots=True)
class Folder:
    """An open directory and its entries. Valid inside `Workspace.folder`, or until `Workspace.walk` goes on.

    Attributes:
        path: Relative to the workspace; `.` for the workspace.
        directory: Descriptor, open for reading.
        entries: Entries sorted by name. Query them with `follow_symlinks=False`.
        error: Reason why it could not be listed, or None.
        left_out: Number of entries beyond `entries`.
    """

    path: str
    directory: int
    entries: tuple[os.DirEntry[str], ...]
    error: OSError | None = None
    left_out: int = 0

    def path_of(self, name: str) -> str:
        """Return the path of an entry, relative to the workspace."""
        return name if self.path == "." else f"{self.path}/{name}"

    def stat(self, name: str) -> Entry:
        """Look at an entry without following links.

        Raises:
            FileNotFoundError: If it no longer exists.
        """
        return Entry(self.path_of(name), os.stat(name, dir_fd=self.directory, follow_symlinks=False))

    def read(self, entry: os.DirEntry[str], *, max_bytes: int) -> bytes:
        """Read at most `max_bytes` of an entry that is a regular file.

        Raises:
            OSError: If it no longer exists, cannot be read, or has become a link.
            WorkspaceError: If it is not a regular file.
        """
        if not entry.is_file(follow_symlinks=False):  # known from the listing, without a system call
            require_regular(self.stat(entry.name).stat, self.path_of(entry.name))
        file = os.open(entry.name, READ_FLAGS, dir_fd=self.directory)
        try:
            data = os.read(file, min(_READ_BYTES, max_bytes))
            if 0 < len(data) < _READ_BYTES:
                return data  # a short read of a file means its end
            # Race: the file was replaced by something else after the listing. Its first read may have worked.
            require_regular(os.fstat(file), entry.name)
            return data + read_to_end(file, _READ_BYTES, max_bytes - len(data)) if data else data
        finally:
            os.close(file)


def list_folder(
    path: str,
    directory: int,
    accept: Callable[[str], object] | None = None,
    max_entries: int = MOST_ENTRIES,
) -> Folder:
    """List an open directory.

    At most about twice `max_entries` entries are in memory at any time, however many there are.

    Args:
        path: Path of the directory, relative to the workspace.
        directory: Its descriptor, open for reading.
        accept: Selects entries by name; all without it.
        max_entries: Entries that are returned, the first ones by name; the others are counted.
    """
    first: list[os.DirEntry[str]] = []
    count = 0
    with os.scandir(directory) as entries:
        selected: Iterator[os.DirEntry[str]] = entries
        if accept is not None:
            selected = (entry for entry in entries if accept(entry.name))
        while batch := list(itertools.islice(selected, max(max_entries, 1_000))):
            count += len(batch)
            first = sorted(first + batch, key=_name_of)[:max_entries]
    return Folder(path, directory, tuple(first), left_out=count - len(first))


def _name_of(entry: os.DirEntry[str]) -> str:
    return entry.name


def open_directory(directory: int, name: str) -> int:
    """Return a descriptor of the folder `name` in an open directory, open for reading."""
    return os.open(name, READ_FLAGS | os.O_DIRECTORY, dir_fd=directory)


def walk_below(root: int, visit: Callable[[int], Iterable[str]]) -> bool:
    """Visit an open folder and all folders below it, each before what is in it. The time is linear.

    Hostile code can nest folders deeper than any path may be long, and than there are descriptors. At most
    `_HELD_FOLDERS` are open at a time; further up the walk goes back by `..`, and only into the very folder
    that it came from, since a folder may be moved while the walk is in it. No link is followed.

    Args:
        root: Descriptor of the folder, which stays open.
        visit: Called with the descriptor of each folder, open for reading; returns the names of the folders
            in it that are walked through. What it raises ends the walk.

    Returns:
        Whether all of them were reached: none could not be opened, and none was moved away.
    """
    held: list[_HeldFolder] = []
    is_complete = True
    try:
        folder = os.open(".", DIRECTORY_FLAGS, dir_fd=root)
        while True:
            held.append(_HeldFolder(folder))
            held[-1].names = iter(visit(folder))
            if len(held) > _HELD_FOLDERS:
                held[-_HELD_FOLDERS - 1].close()
            while held:
                name = next(held[-1].names, None)
                if name is None:
                    if len(held) > 1 and not held[-2].open_from(held[-1]):
                        return False
                    held.pop().close()
                    continue
                try:
                    folder = os.open(name, DIRECTORY_FLAGS, dir_fd=held[-1].folder)
                except OSError:
                    is_complete = False
                    continue
                break
            if not held:
                return is_complete
    finally:
        for one in held:
            one.close()


class _HeldFolder:
    """A folder on the way down, and what is still to be visited in it. Its descriptor may be closed."""

    def __init__(self, folder: int) -> None:
        status = os.fstat(folder)
        self.folder = folder
        self._identity = status.st_dev, status.st_ino
        self.names: Iterator[str] = iter(())

    def open_from(self, inner: _HeldFolder) -> bool:
        """Open it again as `..` of a folder in it; return whether it is open."""
        if self.folder < 0:
            try:
                self.folder = os.open("..", DIRECTORY_FLAGS, dir_fd=inner.folder)
            except OSError:
                return False
            # Race: the inner one was moved since, and `..` leads elsewhere, also out of the workspace.
            status = os.fstat(self.folder)
            return (status.st_dev, status.st_ino) == self._identity
        return True

    def close(self) -> None:
        """Close its descriptor, if it is open."""
        folder, self.folder = self.folder, -1
        if folder >= 0:
            os.close(folder)


def change_mode(place: int, mode: int) -> None:
    """Set the permission bits of a folder that was opened with `WALK_FLAGS`."""
    # A descriptor that is good for walking alone changes no mode itself.
    os.chmod(f"/proc/self/fd/{place}" if hasattr(os, "O_PATH") else place, mode)  # noqa: PTH101 - no path


def open_unlocked(name: str, parent: int | None = None) -> int:
    """Open a folder, and let its owner read and change it from now on, even if its mode allowed nothing.

    Args:
        name: Its name in `parent`, or its path.
        parent: Descriptor of the folder around it.

    Raises:
        OSError: If there is no such folder, or it belongs to another user.
    """
    place = os.open(name, WALK_FLAGS, dir_fd=parent)
    try:
        change_mode(place, stat.S_IMODE(os.fstat(place).st_mode) & 0o777 | stat.S_IRWXU)
        return os.open(".", DIRECTORY_FLAGS, dir_fd=place)
    finally:
        os.close(place)


# ---- names

MOST_NAME_BYTES = 255  # that Linux and its common file systems allow
_MOST_CHARACTER_BYTES = 4  # of UTF-8


def extend_name(name: str, ending: str, beginning: str = "") -> str:
    """Return a name with something before and after it, cut, between two characters, if it gets too long."""
    most_bytes = MOST_NAME_BYTES - len(os.fsencode(beginning)) - len(os.fsencode(ending))
    raw = os.fsencode(name)
    if len(raw) > most_bytes:
        end = most_bytes
        # Bytes that continue a character: not more than one has, since a name need not be text.
        while end > most_bytes - _MOST_CHARACTER_BYTES + 1 and raw[end] & 0xC0 == 0x80:
            end -= 1
        raw = raw[:end]
    return f"{beginning}{os.fsdecode(raw)}{ending}"


_NO_REPLACE = 1  # flags of renameat2
_EXCHANGE = 2
NEVER_EXCHANGED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})
"""What a system or a file system says that knows neither `exchange` nor `rename_new`."""


def exchange(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
    """Exchange what two names in open folders lead to, in one step. Nobody finds either of them missing.

    Raises:
        OSError: If one of them leads nowhere, or the system refuses it; see `NEVER_EXCHANGED`.
    """
    _rename_by(_EXCHANGE, source, target, src_dir_fd, dst_dir_fd)


def rename_new(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
    """Rename an entry to a name that leads nowhere yet, in one step.

    Raises:
        FileExistsError: If it leads somewhere.
        OSError: If the system refuses it; see `NEVER_EXCHANGED`.
    """
    _rename_by(_NO_REPLACE, source, target, src_dir_fd, dst_dir_fd)


def _rename_by(flags: int, source: str, target: str, src_dir_fd: int, dst_dir_fd: int) -> None:
    libc = _libc()
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if libc.renameat2(src_dir_fd, os.fsencode(source), dst_dir_fd, os.fsencode(target), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


# ---- files


def require_regular(status: os.stat_result, path: str) -> int:
    """Return the size of a regular file.

    Raises:
        IsADirectoryError: If it is a folder.
        WorkspaceError: If it is anything else.
    """
    if stat.S_ISREG(status.st_mode):
        return status.st_size
    kind = kind_of(status)
    if kind == "directory":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    shown = os.fsencode(path).decode("utf-8", "backslashreplace")
    if kind == "symlink":
        # Race: the walk had resolved every link, so this one is new.
        raise WorkspaceError(f"{shown!r} became a link while it was used. Try again.")
    description = "FIFO" if kind == "fifo" else kind
    raise WorkspaceError(f"{shown!r} is a {description}, not a file. It is left alone.")


def write_all(file: int, data: bytes) -> None:
    """Write all of some data to an open file.

    Raises:
        OSError: If the system refuses it. A part may have been written.
    """
    remaining = memoryview(data)
    while remaining:  # a write may be partial, on a full disk for one
        remaining = remaining[os.write(file, remaining) :]


def read_to_end(file: int, size: int, max_bytes: int) -> bytes:
    """Read an open file that should have `size` bytes to its end, at most `max_bytes`."""
    data = os.read(file, min(size + 1, max_bytes))  # one byte more, so that a short read proves the end
    if len(data) <= size:
        return data
    # The file has grown since its size was taken.
    parts = [data]
    remaining = max_bytes - len(data)
    while remaining > 0 and (data := os.read(file, min(remaining, _CHUNK_BYTES))):
        parts.append(data)
        remaining -= len(data)
    return b"".join(parts)


@contextmanager
def open_regular(path: str) -> Iterator[int]:
    """Open the regular file that a path leads to, links followed, for reading. Yield its descriptor.

    Raises:
        OSError: There is none, or it cannot be opened.
    """
    try:
        # Hostile: a FIFO in its place would block the open for ever, and a device never end.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:  # a zero byte in the path
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL)) from None
    try:
        # A folder, too, can be opened so; only then is it seen what was opened.
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        yield file
    finally:
        os.close(file)


def _read_opened(file: int, max_bytes: int) -> bytes | None:
    parts, remaining = [], max_bytes + 1
    while remaining > 0 and (part := os.read(file, min(remaining, _CHUNK_BYTES))):
        parts.append(part)
        remaining -= len(part)
    return b"".join(parts) if remaining > 0 else None


@dataclass(frozen=True, slots=True)
class FileSnapshot:
    """A file or link as it was read.

    Attributes:
        status: Result of `lstat`.
        data: Content; the target of a link. None for a file that is too large.
        clean: False if the file may have changed since under the same change time: within the clock tick in
            which it was read, or through a memory map.
    """

    status: os.stat_result
    data: bytes | None
    clean: bool

    def matches(self, status: os.stat_result) -> bool:
        """Return whether `status` is of the same, unchanged file."""
        mine = self.status
        return (mine.st_ino, mine.st_ctime_ns, mine.st_size, mine.st_mode) == (
            status.st_ino,
            status.st_ctime_ns,
            status.st_size,
            status.st_mode,
        )


def take_snapshot(folder: int, name: str, max_bytes: int, *, racy_ns: int, trusted: bool) -> FileSnapshot:
    """Read a regular file, and say whether an unchanged status will prove unchanged content.

    Args:
        folder: Descriptor of its folder.
        name: Its name there.
        max_bytes: The content of a larger file is None, and so is that of anything but a regular file.
        racy_ns: A change time from then on proves nothing.
        trusted: Whether its file system says of maps what `MapFacts` asks; without that it is never clean.

    Raises:
        OSError: If it cannot be opened.
    """
    file = os.open(name, READ_FLAGS, dir_fd=folder)
    try:
        # The order matters: whoever could write without a new time is looked for first. One that comes later
        # gives a time later than this status, and what one that has left by now wrote is read.
        clean = trusted and not has_writer(file)
        status = os.fstat(file)
        data = _read_opened(file, max_bytes) if stat.S_ISREG(status.st_mode) else None
        return FileSnapshot(status, data, clean and status.st_ctime_ns < racy_ns)
    finally:
        os.close(file)


def holds(path: str, stamp: tuple[int, int, int], data: bytes) -> bool:
    """Return whether the file of this inode, device and change time is at `path`, with this content.

    Raises:
        OSError: If it cannot be opened.
    """
    file = os.open(path, READ_FLAGS)
    try:
        status = os.fstat(file)
        same = (status.st_ino, status.st_dev, status.st_ctime_ns) == stamp and status.st_size == len(data)
        return same and _read_opened(file, len(data)) == data
    finally:
        os.close(file)


def replace_file(folder: int, name: str, snapshot: FileSnapshot) -> FileSnapshot:
    """Write the content of `snapshot` to `name`, under a new inode. Return the snapshot of the new file.

    A process that has the old file open keeps writing to the old inode, which no name leads to any more. A
    folder in the way is renamed.
    """
    assert snapshot.data is not None
    temporary = f".aisotools-write-{os.urandom(8).hex()}"
    try:
        if stat.S_ISLNK(snapshot.status.st_mode):
            os.symlink(os.fsdecode(snapshot.data), temporary, dir_fd=folder)
        else:
            _write_file(folder, temporary, snapshot.data, snapshot.status)
        # At every moment there is the old file or the new one, whole: a crash between these lines loses
        # neither.
        try:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:
            # Race: a folder may appear again in between. The second one fails then; the caller tries again.
            aside = extend_name(name, f".{os.urandom(8).hex()}")
            os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return FileSnapshot(status, snapshot.data, clean=False)


def _write_file(folder: int, name: str, data: bytes, status: os.stat_result) -> None:
    """Create a file with the owner, mode and times of `status`. Only its owner can read it until then."""
    file = os.open(name, CREATE_FLAGS, 0o600, dir_fd=folder)
    with os.fdopen(file, "wb", buffering=0):
        write_all(file, data)
        if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            with suppress(PermissionError):  # without root a file of another user comes back as ours
                os.fchown(file, status.st_uid, status.st_gid)
        os.fchmod(file, stat.S_IMODE(status.st_mode))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@dataclass(frozen=True, slots=True)
class MapFacts:
    """What a file system says of files that are written through memory maps.

    Attributes:
        stamped: Whether the first store through a map, and each one after the page was written back, gives
            the file new times.
        leased: Whether `has_writer` knows of maps that outlive their descriptor.
    """

    stamped: bool
    leased: bool


def probe_maps(folder: Path) -> MapFacts | None:
    """Try both with a file without a name in `folder`. Return None where no such file can be made."""
    try:
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError):
        return None
    try:
        os.write(file, b"0")
        os.utime(file, ns=(0, 0))
        with mmap.mmap(file, 1) as store:
            # File systems in memory: a page that was read first is written without a word to the kernel.
            store[0:1] = b"1" if store[0:1] == b"0" else b"2"
            stamped = os.fstat(file).st_mtime_ns != 0
            reader = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
            os.close(file)
            file = reader  # from here on the map alone could write
            return MapFacts(stamped, leased=has_writer(reader))
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)


def stamps_maps(path: Path) -> bool:
    """Return whether the file system at `path` updates the times of files written through memory maps."""
    try:
        device = path.stat().st_dev
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return True
    number = f"{os.major(device)}:{os.minor(device)}".encode()
    mounts = [line.split() for line in lines]
    kinds = {fields[fields.index(b"-") + 1] for fields in mounts if fields[2] == number}
    if kinds & {b"tmpfs", b"ramfs", b"devtmpfs"}:
        return False
    # Layers: the folder of a container may show one that is in memory.
    facts = probe_maps(path)
    return facts is None or facts.stamped


def trusted_device(folder: Path) -> int | None:
    """Return the device of a folder if there an unchanged time proves that a file is unchanged.

    That holds for a file that nobody had open or mapped for writing when it was read; see `take_snapshot`.
    None if the file system does not say enough for that.
    """
    facts = probe_maps(folder)
    if facts is None or not facts.leased or not stamps_maps(folder):
        return None
    return folder.stat().st_dev


def has_writer(file: int) -> bool:
    """Return whether any process may still write a file: has it open for writing, or maps it so.

    A store into a page that a map has written before gives no new time, so an unchanged time proves nothing
    while there is such a map.

    Args:
        file: Descriptor, open for reading alone.

    Returns:
        True, too, where the kernel does not tell. It tells the file's owner and root.
    """
    # The kernel grants a lease for reading only on a file that nobody has open or mapped for writing.
    # Race: whoever opens it during the lease is held up for these microseconds, and the kernel signals this
    # process. Its default, SIGIO, would end it; SIGURG is ignored.
    try:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except (OSError, AttributeError):
        return True
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def sync_file_system(root: int) -> bool:
    """Write back all dirty pages of the file system of `root`. Return False where that is not possible."""
    # Race: a page that is dirty now could be written again through a memory map without a new stamp.
    libc = _libc()
    return hasattr(libc, "syncfs") and bool(libc.syncfs(root) == 0)


def flush_file_system(root: int) -> None:
    """Write everything of the file system of `root` through to the disk.

    Raises:
        OSError: If the disk refuses it.
    """
    # Power loss: one call for many files, each of which would wait for the disk by itself.
    libc = _libc()
    if not hasattr(libc, "syncfs"):
        os.sync()
    elif libc.syncfs(root):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def sync_folder(folder: Path) -> None:
    """Write the names in a folder through to the disk.

    Raises:
        OSError: If the disk refuses it.
    """
    opened = os.open(folder, DIRECTORY_FLAGS)
    try:
        # Power loss: a file that is whole, under a name that never reached the disk.
        os.fsync(opened)
    finally:
        os.close(opened)


def sync_file(file: int) -> None:
    """Write back dirty pages, so that the next write through a memory map updates the stamp."""
    try:
        os.fdatasync(file)
    except OSError as error:
        # A file that cannot be written back has no dirty pages.
        if error.errno not in {errno.EINVAL, errno.EROFS}:
            raise


# By CLOCK_REALTIME_COARSE, some milliseconds late, the kernel stamps files.
_FILE_CLOCK = 5 if sys.platform == "linux" else time.CLOCK_REALTIME


def file_time() -> int:
    """Return the time that a file changed now would get, in nanoseconds; no later change looks older."""
    return time.clock_gettime_ns(_FILE_CLOCK)
