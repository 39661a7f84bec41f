"""A file as it should be, read and put back relative to an open folder, never through a link."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Kept:
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


def made(folder: int, name: str, wanted: Kept) -> Kept:
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
    return Kept(os.stat(name, dir_fd=folder, follow_symlinks=False), wanted.data, clean=False)


def _write(folder: int, name: str, wanted: Kept) -> None:
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
