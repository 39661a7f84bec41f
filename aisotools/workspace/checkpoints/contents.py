"""Contents of files on their way into the store and back: without their holes.

A file with holes is stored as the runs of its blocks that hold anything but zeros, each with its place, so a
file of a gigabyte with a kilobyte in it takes a kilobyte. It comes back with a hole wherever a whole block
holds zeros only, which depends on its content alone: on some file systems merely reading a file fills its
holes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
from collections.abc import Iterator

from aisotools.workspace.checkpoints.store import Store, StoredFile
from aisotools.workspace.checkpoints.tree import Node

_BLOCK_BYTES = 4096
# Small, because a hostile file may have one block of data in each of these, and all of it is looked at.
_WINDOW_BYTES = 16 * _BLOCK_BYTES
_READ_BYTES = 1 << 20
_HEAD = struct.Struct("<8sQ")  # then, of each run, its place, its length and its bytes
_RUN = struct.Struct("<QQ")
_MAGIC = b"sparse 1"
_EMPTY_BLOCK = bytes(_BLOCK_BYTES)


def occupied_bytes(status: os.stat_result) -> int:
    """Return how many bytes of a file take room, at most; of anything else its size."""
    if not stat.S_ISREG(status.st_mode):
        return status.st_size
    return min(status.st_size, status.st_blocks * 512)


def has_holes(file: int, status: os.stat_result) -> bool:
    """Return whether an open file has a hole. Its position may change.

    Raises:
        OSError: If the disk does not tell.
    """
    if status.st_blocks * 512 >= status.st_size:
        return False
    try:
        return os.lseek(file, 0, os.SEEK_HOLE) < status.st_size
    except OSError as error:
        # The file system knows no holes. ENXIO, a race: the file was cut, as its stamp will show.
        if error.errno in {errno.EINVAL, errno.ENOTSUP, errno.ENXIO}:
            return False
        raise


def store_sparse(store: Store, file: int, size: int, *, max_bytes: int) -> StoredFile | None:
    """Store an open file without its holes. Return None if that is more than `max_bytes`.

    Args:
        store: Destination.
        file: The file.
        size: Its size with the holes.
        max_bytes: The most that is stored.

    Raises:
        OSError: If the file cannot be read.
        WorkspaceError: If the content cannot be written.
    """
    return store.put_chunks(_runs(file, size), max_bytes=max_bytes)


def _runs(file: int, size: int) -> Iterator[bytes]:
    yield _HEAD.pack(_MAGIC, size)
    at = 0
    while at < size:
        try:
            at = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # a hole up to the end
        at -= at % _WINDOW_BYTES
        data = os.pread(file, min(_WINDOW_BYTES, size - at), at)
        if not data:
            return  # Race: it was cut meanwhile, as its stamp will show
        start = end = 0
        while start < len(data):
            if _is_empty(data, start):
                start += _BLOCK_BYTES
                continue
            end = start + _BLOCK_BYTES
            while end < len(data) and not _is_empty(data, end):
                end += _BLOCK_BYTES
            run = data[start:end]
            yield _RUN.pack(at + start, len(run)) + run
            start = end
        at += _WINDOW_BYTES


def _is_empty(data: bytes, at: int) -> bool:
    block = data[at : at + _BLOCK_BYTES]
    return block == _EMPTY_BLOCK[: len(block)]


def has_content(file: int, node: Node) -> bool:
    """Return whether an open file has the content of a file's node. All of it is read.

    Raises:
        OSError: If it cannot be read.
    """
    hashed = hashlib.blake2b(digest_size=len(node.content) // 2)
    size = os.fstat(file).st_size
    if node.kind == "sparse":
        for piece in _runs(file, size):
            hashed.update(piece)
    else:
        if size != node.size:
            return False
        at = 0
        # No more than there was: a file that is being written to has an end all the same.
        while at < size and (data := os.pread(file, min(_READ_BYTES, size - at), at)):
            hashed.update(data)
            at += len(data)
    return hashed.hexdigest() == node.content


def write_content(store: Store, node: Node, file: int) -> None:
    """Write the content of a file's node to an open new file.

    Raises:
        OSError: If it cannot be written.
        WorkspaceError: If it no longer exists or is damaged; the file may then hold a part of it.
    """
    if node.kind != "sparse":
        store.copy(node.content, file)
        return
    # What is not what it should be does not have the digest either, which is an error then.
    waiting, size, place = b"", 0, 0
    unread = 0  # bytes of the run that have not been read
    for chunk in store.verified_chunks(node.content):
        data = waiting + chunk
        if not size and len(data) >= _HEAD.size:
            size = _HEAD.unpack_from(data)[1]
            data = data[_HEAD.size :]
        while data:
            if not unread:
                if len(data) < _RUN.size:
                    break
                place, unread = _RUN.unpack_from(data)
                data = data[_RUN.size :]
                os.lseek(file, place, os.SEEK_SET)
            written = os.write(file, data[:unread])
            unread -= written
            data = data[written:]
        waiting = data
    # Crash: the file has a temporary name until it is whole.
    os.ftruncate(file, size)
