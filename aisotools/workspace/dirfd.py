"""Folders and what lies in them, by descriptor: looked at without following links, however large they are.

A file as it should be, read and put back relative to an open folder, never through a link.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace import paths

Kind = Literal["file", "directory", "symlink", "fifo", "socket", "device"]
"""What something in a folder is."""

MOST_ENTRIES = 100_000
"""Of a larger folder only the entries that come first by name are held, and the rest is counted."""

# Never through a link; never waiting for the other end of a FIFO; never becoming somebody's terminal.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""How something is opened to be read."""

_AT_ONCE_BYTES = 1 << 16
_KINDS: dict[int, Kind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in the workspace, as it was when looked at.

    Attributes:
        path: Relative to the workspace, without links on the way; `.` for the workspace.
        stat: What the system says of it.
    """

    path: str
    stat: os.stat_result

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def kind(self) -> Kind:
        """What it is."""
        return kind_of(self.stat)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.stat.st_size

    @property
    def mode(self) -> int:
        """Permission bits, setuid and its kin included."""
        return stat.S_IMODE(self.stat.st_mode)


@dataclass(frozen=True, slots=True)
class Folder:
    """One directory, looked into; valid inside `Workspace.folder`, or until `Workspace.walk` goes on.

    Attributes:
        path: Relative to the workspace; `.` for the workspace.
        directory: Its descriptor, open for reading.
        entries: What it holds, sorted by name. Ask them with `follow_symlinks=False`.
        error: Why it could not be looked into, or None.
        left_out: How many more there are behind these.
    """

    path: str
    directory: int
    entries: tuple[os.DirEntry[str], ...]
    error: OSError | None = None
    left_out: int = 0

    def path_of(self, name: str) -> str:
        """The path of an entry, relative to the workspace."""
        return name if self.path == "." else f"{self.path}/{name}"

    def stat(self, name: str) -> Entry:
        """What an entry is, links not followed.

        Raises:
            FileNotFoundError: If it is not there any more.
        """
        return Entry(self.path_of(name), os.stat(name, dir_fd=self.directory, follow_symlinks=False))

    def read(self, entry: os.DirEntry[str], *, max_bytes: int) -> bytes:
        """At most `max_bytes` of an entry that is a regular file.

        Raises:
            OSError: If it is not there any more, not readable, or a link by now.
            WorkspaceError: If it is anything but a regular file.
        """
        if not entry.is_file(follow_symlinks=False):  # known without asking the system
            demand_regular(self.stat(entry.name).stat, self.path_of(entry.name))
        file = os.open(entry.name, READ, dir_fd=self.directory)
        try:
            data = os.read(file, min(_AT_ONCE_BYTES, max_bytes))
            if 0 < len(data) < _AT_ONCE_BYTES:
                return data  # only at its end does a file give less than was asked for
            demand_regular(os.fstat(file), entry.name)
            return data + read_to_end(file, _AT_ONCE_BYTES, max_bytes - len(data)) if data else data
        finally:
            os.close(file)


def kind_of(status: os.stat_result) -> Kind:
    """What a `stat` is of."""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "device")


def look_into(
    path: str, directory: int, wanted: Callable[[str], object] | None = None, most: int = MOST_ENTRIES
) -> Folder:
    """What an open directory holds: of the names that are `wanted` the first `most` in order.

    Never many more than that are held at once, and the rest is counted.
    """
    kept: list[os.DirEntry[str]] = []
    count = 0
    with os.scandir(directory) as entries:
        chosen: Iterator[os.DirEntry[str]] = entries
        if wanted is not None:
            chosen = (entry for entry in entries if wanted(entry.name))
        while batch := list(itertools.islice(chosen, max(most, 1_000))):
            count += len(batch)
            kept = sorted(kept + batch, key=_name)[:most]
    return Folder(path, directory, tuple(kept), left_out=count - len(kept))


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def open_directory(directory: int, name: str) -> int:
    """A descriptor of a folder that lies in an open directory."""
    return os.open(name, READ | os.O_DIRECTORY, dir_fd=directory)


def demand_regular(status: os.stat_result, path: str) -> int:
    """The size of a regular file; an error for everything else."""
    if stat.S_ISREG(status.st_mode):
        return status.st_size
    kind = kind_of(status)
    if kind == "directory":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if kind == "symlink":  # the walk had followed every link
        raise WorkspaceError(f"{paths.shown(path)!r} became a link while it was used. Try again.")
    what = "FIFO" if kind == "fifo" else kind
    raise WorkspaceError(f"{paths.shown(path)!r} is a {what}, not a file. It is left alone.")


def read_to_end(file: int, size: int, max_bytes: int) -> bytes:
    """A file that should have `size` bytes, to its end or to `max_bytes`."""
    data = os.read(file, min(size + 1, max_bytes))  # one more than there should be, to see the end
    if len(data) <= size:
        return data
    parts = [data]
    left = max_bytes - len(data)
    while left > 0 and (data := os.read(file, min(left, 1 << 20))):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class FileSnapshot:
    """A file as it was read.

    Attributes:
        status: What the system said of it.
        data: What it held; a link's is its text. None for one that is too large.
        clean: Whether nothing can have changed it in the tick of the clock in which it was read.
    """

    status: os.stat_result
    data: bytes | None
    clean: bool

    def is_still(self, status: os.stat_result) -> bool:
        """Whether it is the same, untouched file."""
        mine = self.status
        return (mine.st_ino, mine.st_ctime_ns, mine.st_size, mine.st_mode) == (
            status.st_ino,
            status.st_ctime_ns,
            status.st_size,
            status.st_mode,
        )


def content(folder: int, name: str, most_bytes: int) -> bytes | None:
    """What a regular file holds; None if that is too much."""
    file = os.open(name, _READ, dir_fd=folder)
    with os.fdopen(file, "rb", buffering=0) as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        parts, left = [], most_bytes + 1
        while left > 0 and (part := opened.read(min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
    return b"".join(parts) if left > 0 else None


def made(folder: int, name: str, wanted: FileSnapshot) -> FileSnapshot:
    """Put a file back, under a new inode: whoever holds the old one open writes into nothing."""
    assert wanted.data is not None
    temporary = f".aisotools-write-{os.urandom(8).hex()}"
    try:
        if stat.S_ISLNK(wanted.status.st_mode):
            os.symlink(os.fsdecode(wanted.data), temporary, dir_fd=folder)
        else:
            _write(folder, temporary, wanted)
        try:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:
            os.rename(name, f"{name}.{os.urandom(4).hex()}", src_dir_fd=folder, dst_dir_fd=folder)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    return FileSnapshot(os.stat(name, dir_fd=folder, follow_symlinks=False), wanted.data, clean=False)


def _write(folder: int, name: str, wanted: FileSnapshot) -> None:
    assert wanted.data is not None
    status = wanted.status
    file = os.open(name, _CREATE, 0o600, dir_fd=folder)
    with os.fdopen(file, "wb", buffering=0) as opened:
        left = memoryview(wanted.data)
        while left:
            left = left[opened.write(left) :]
        if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            with suppress(PermissionError):  # a file of somebody else's stays readable as ours
                os.fchown(file, status.st_uid, status.st_gid)
        os.fchmod(file, stat.S_IMODE(status.st_mode))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
