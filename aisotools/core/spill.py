"""What a process moves from its memory to the disk: one file without a name for each folder.

Threat
    Every session that lives for long holds texts and events. Files of their own would take a descriptor for
    each of them; one that can be found by its name, or through `/proc`, could be changed by another program
    of the same user, and what comes back is unpickled.
Mechanism
    All sessions share one file, which vanishes with the process however it ends. A content that comes back is
    compared with its digest, under a key that only this process has.
Race window
    None: parts of the file are taken and given back under a lock. What is written to a part is written before
    anybody else knows of it.
When it fails
    A content that cannot be written is an error, and one that comes back as another as well.
"""

from __future__ import annotations

import hmac
import os
import secrets
import tempfile
import threading
from bisect import insort
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_KEY = secrets.token_bytes(32)


def _digest(pieces: Iterable[bytes]) -> bytes:
    # Most processors have instructions for SHA-256, so that it takes a fraction of the time of BLAKE2.
    mac = hmac.new(_KEY, digestmod="sha256")
    for piece in pieces:
        mac.update(piece)
    return mac.digest()


@dataclass(frozen=True, slots=True)
class Extent:
    """A content in a `SpillFile`.

    Attributes:
        offset: Where it begins.
        size: Its length in bytes.
        digest: What it is compared with when it is read.
    """

    offset: int
    size: int
    digest: bytes


class SpillFile:
    """Contents on the disk, in a file that is there as long as it holds any. Thread-safe."""

    def __init__(self, folder: Path | None) -> None:
        """Make the file in `folder` when it is needed; in the system's folder for temporary ones without."""
        self._folder = folder
        self._lock = threading.Lock()
        self._file = -1
        self._process = 0
        self._end = 0
        self._used_bytes = 0
        self._free: list[tuple[int, int]] = []  # offsets and lengths, in order, none beside another

    def __repr__(self) -> str:
        return f"<SpillFile in {str(self._folder)!r}: {self._used_bytes:,} of {self._end:,} bytes>"

    def put(self, *pieces: bytes) -> Extent:
        """Write a content, which is all these pieces.

        Raises:
            OSError: If it cannot be written.
        """
        digest = _digest(pieces)
        size = sum(map(len, pieces))
        with self._lock:
            if self._file < 0:
                self._open()
            elif self._process != os.getpid():
                # Fork: the parent goes on to use the same file.
                raise OSError("this file belongs to the process that has forked this one")
            offset, file = self._take(size), self._file
        # Without the lock, since a disk may be slow: this part is nobody else's, and keeps the file open.
        try:
            position = offset
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    written = os.pwrite(file, view, position)
                    view, position = view[written:], position + written
        except OSError:
            with self._lock:
                self._give_back(offset, size)
            raise
        return Extent(offset, size, digest)

    def get(self, extent: Extent) -> bytes:
        """Return a content.

        Raises:
            OSError: If it cannot be read, or is another than was written.
        """
        data = b""
        while len(data) < extent.size:
            part = os.pread(self._file, extent.size - len(data), extent.offset + len(data))
            if not part:
                break
            data += part
        if _digest([data]) != extent.digest:
            raise OSError("what was moved to the disk has been changed there")
        return data

    def free(self, extent: Extent) -> None:
        """Give a content up. Its room is used again; without any content the file goes."""
        with self._lock:
            if self._process == os.getpid():
                self._give_back(extent.offset, extent.size)

    def _open(self) -> None:
        file, name = tempfile.mkstemp(prefix="aisotools-", dir=self._folder)
        # Crash before this leaves an empty file.
        os.unlink(name)  # noqa: PTH108 - a path of text
        self._file, self._process, self._end, self._used_bytes = file, os.getpid(), 0, 0
        self._free.clear()

    def _take(self, size: int) -> int:
        self._used_bytes += size
        for number, (offset, length) in enumerate(self._free):
            if length >= size:
                if length == size:
                    del self._free[number]
                else:
                    self._free[number] = offset + size, length - size
                return offset
        self._end += size
        return self._end - size

    def _give_back(self, offset: int, size: int) -> None:
        self._used_bytes -= size
        if not self._used_bytes:
            file, self._file = self._file, -1
            os.close(file)
            return
        insort(self._free, (offset, size))
        joined: list[tuple[int, int]] = []
        for start, length in self._free:
            if joined and sum(joined[-1]) == start:
                joined[-1] = joined[-1][0], joined[-1][1] + length
            else:
                joined.append((start, length))
        if joined and sum(joined[-1]) == self._end:
            self._end = joined.pop()[0]
            with suppress(OSError):  # the room on the disk is given back later
                os.ftruncate(self._file, self._end)
        self._free = joined


_FILES: dict[Path | None, SpillFile] = {}
_FILES_LOCK = threading.Lock()


def spill_file(folder: Path | None) -> SpillFile:
    """Return the file of this process in a folder."""
    with _FILES_LOCK:
        return _FILES.setdefault(folder, SpillFile(folder))
