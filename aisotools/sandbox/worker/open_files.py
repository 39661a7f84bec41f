"""Regular files that are open across a fork: where each is read or written next, and logs that were replaced.

A fork shares the offsets of open files with the process it was forked from: one would go on where the other
has left off. So a fork that goes on opens each of them anew, at the place of then. Descriptors that have one
offset together, as `dup` makes them, are to have one together again, and those of a file that was opened
twice are not.

An undo puts another file at the path of one that a fork has open. SQLite, when it closes a connection in
write-ahead mode, copies the log that it has open into the database: rows that were undone would be back.

Threat: what a fork writes lands at the place of another process, or over what it has written itself by
another descriptor; or a log of another state gets into a database.
Mechanism: the kernel says which descriptors are the same open file (`F_DUPFD_QUERY`, Linux 6.10). That moves,
locks and opens nothing, so nobody else who has the file open can notice. Through a descriptor that only names
a file (`O_PATH`) nothing can be read: SQLite leaves the database as it is then.
Race: none in the fork, which has one thread. Before it, user code may have closed or exchanged a descriptor
since it was looked at: the number is left alone if another file has it.
Failure: where the kernel does not say it, each descriptor gets an offset of its own; a file that cannot be
opened again keeps the shared one, which is reported. Where no variables are brought back, no fork goes on,
and a connection that is closed does copy its log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

# Descriptors that are searched, and how many free numbers in a row end the search.
_MAX_DESCRIPTORS = 4096
_FREE_RUN = 64
# Flags of an open file that survive reopening it.
_REOPEN_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK
# Asks whether two descriptors are one open file. Python has no name for it.
_F_DUPFD_QUERY = 1027
# How often it is asked in one fork, for which that takes some milliseconds. A hundred descriptors of one
# file, all at one place and each opened by itself, need half of it.
_MAX_QUERIES = 10_000
_O_PATH = 0o10000000  # `os.O_PATH`, which other systems lack: there this module is imported all the same
# How the name of a log of SQLite ends, which is kept in write-ahead mode.
_LOG = "-wal"


class OpenFile(NamedTuple):
    """An open regular file.

    Attributes:
        descriptor: Its number.
        identity: Device and inode.
        offset: Where it is read or written next.
        flags: How it was opened.
        inheritable: Whether programs get it.
        is_log: Whether it has the name of a log of SQLite.
    """

    descriptor: int
    identity: tuple[int, int]
    offset: int
    flags: int
    inheritable: bool
    is_log: bool


# ---- before the fork


def used_descriptors() -> Iterator[tuple[int, os.stat_result]]:
    """Yield the number of each descriptor but the standard ones, and its status."""
    # Landlock keeps a fork out of /proc/self/fd, so the numbers are tried one by one, until many in a row are
    # free.
    free = 0
    for number in range(3, _MAX_DESCRIPTORS):
        try:
            status = os.fstat(number)
        except OSError:
            free += 1
            if free > _FREE_RUN:
                return
            continue
        free = 0
        yield number, status


def list_open_files() -> Iterator[OpenFile]:
    """Yield the regular files that this process has open."""
    for number, status in used_descriptors():
        if stat.S_ISREG(status.st_mode) and (file := describe_file(number, status)):
            yield file


def describe_file(number: int, status: os.stat_result) -> OpenFile | None:
    """Return the open file with this descriptor and status, or None if it is no longer open."""
    try:
        return OpenFile(
            number,
            (status.st_dev, status.st_ino),
            os.lseek(number, 0, os.SEEK_CUR),
            fcntl.fcntl(number, fcntl.F_GETFL),
            os.get_inheritable(number),
            status.st_nlink > 0 and _name_of(number).endswith(_LOG),
        )
    except OSError:
        # Race: another thread of user code closed it after `status` was read, as a server does after each
        # answer, and the number may be that of a pipe by now. There is no offset to restore.
        return None


def _name_of(number: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""  # nobody can tell, without /proc


# ---- in a fork


def restore_offsets(files: Iterable[OpenFile]) -> list[str]:
    """Give this process its own offsets in open files, where they were. Return what is lost.

    Descriptors that have an offset together have one together afterwards.
    """
    return [problem for shared in _find_shared(files) if (problem := _reopen(shared))]


def open_apart(files: Iterable[OpenFile]) -> None:
    """Give this process its own offsets in open files, to read them only.

    Pickling reads a file from its begin and writes what waits in its buffer. The worker goes on with the same
    file: it would find its place moved, and what it writes there twice.
    """
    for file in files:
        if _is_there(file) and _reopen([file], os.O_RDONLY):
            with contextlib.suppress(OSError):
                os.close(file.descriptor)  # pickling fails then, and the variable is named as not copied


def _find_shared(files: Iterable[OpenFile]) -> Iterator[list[OpenFile]]:
    """Yield the files that are still there, those that have an offset together in one list."""
    alike: dict[tuple[object, ...], list[list[OpenFile]]] = {}
    queries_left = _MAX_QUERIES
    for file in files:
        if not _is_there(file):
            continue
        known = alike.setdefault((file.identity, file.offset, file.flags), [])
        # The last ones first: what is made by `dup` mostly follows what it was made of.
        for shared in reversed(known):
            queries_left -= 1
            if queries_left >= 0 and _is_same(file.descriptor, shared[0].descriptor):
                shared.append(file)
                break
        else:
            known.append([file])
    for known in alike.values():
        yield from known


def _is_same(one: int, other: int) -> bool:
    """Return whether two descriptors are one open file, as far as the kernel says it."""
    try:
        return fcntl.fcntl(one, _F_DUPFD_QUERY, other) == 1
    except OSError:  # EINVAL: Linux before 6.10
        return False


def _is_there(file: OpenFile) -> bool:
    """Return whether a descriptor still is that of this file."""
    try:
        status = os.fstat(file.descriptor)
    except OSError:
        # Race: another thread closed it between capture and fork. There is no offset to restore.
        return False
    # Else the number was closed, and reused for another file.
    return (status.st_dev, status.st_ino) == file.identity


def _reopen(shared: Sequence[OpenFile], access: int | None = None) -> str:
    """Give this process its own offset in an open file, where it was. Return what is lost if that fails.

    Args:
        shared: The descriptors that are to have it together.
        access: How to open it, instead of how it was opened: `os.O_RDONLY`.
    """
    file = shared[0]
    flags = file.flags & _REOPEN_FLAGS if access is None else access
    try:
        # dup() would share the offset again; only opening anew makes one of our own.
        own = os.open(f"/proc/self/fd/{file.descriptor}", flags | os.O_CLOEXEC)
    except OSError as error:
        numbers = ", ".join(str(one.descriptor) for one in shared)
        noun = "descriptors" if len(shared) > 1 else "descriptor"
        return f"the place in an open file ({noun} {numbers}: {error.strerror})"
    try:
        os.lseek(own, file.offset, os.SEEK_SET)
        for one in shared:
            # Not closed before: a file that is opened meanwhile would get the number.
            os.dup2(own, one.descriptor, inheritable=one.inheritable)
    finally:
        os.close(own)
    return ""


def cut_off_logs(files: Iterable[OpenFile]) -> None:
    """Have whatever is done with a log of SQLite fail that had a name, and has none now."""
    for file in files:
        if not file.is_log or not _is_there(file) or os.fstat(file.descriptor).st_nlink:
            continue
        with contextlib.suppress(OSError):  # no number is free
            useless = os.open(f"/proc/self/fd/{file.descriptor}", _O_PATH | os.O_CLOEXEC)
            # The number stays taken: its owner will close it, which must not hit a later file.
            os.dup2(useless, file.descriptor, inheritable=file.inheritable)
            os.close(useless)
