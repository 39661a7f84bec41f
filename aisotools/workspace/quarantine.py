"""Keep what was found in the place of protected files, whatever there is of it.

Threat: the content that a worker planted is evidence, and may also be a person's own work: an edit of theirs
during a call, or a file that was renamed. So it is kept. But a process in the sandbox may still have the file
open, and would go on writing to whatever is kept; and a worker may plant so much that there is no room for
what comes after it.

Mechanism: content is copied to a private folder, never moved there. The copy is a new file that no process
of the sandbox has open. Copies end in `.kept`, and their folder is readable for its owner alone, so that
nothing runs them by accident. They have bounds: of one file, of all that was planted, and, apart from it, of
what stood in the place of a file that was there before. Content beyond these bounds stays in the workspace,
under a name that nothing obeys, where it counts as the sandbox's. What equals the file that is put back is
not kept, nor is bytecode, which Python makes again.
Race: a file that grows while it is copied is moved aside with all that it has; one that is replaced meanwhile
is removed under its name all the same, and the copy is of what was opened.
Failure: where there is neither room nor another name, content is cut or lost, and what is returned says so.
A link, a FIFO, a socket or a device has no content to keep. A folder is left to the caller.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aisotools.workspace.dirfd import CREATE_FLAGS, READ_FLAGS, extend_name

MAX_QUARANTINE_FILES = 100
"""Copies of what was planted, in one quarantine; as many are kept in addition of what replaced a file."""

MAX_QUARANTINE_BYTES = 64 << 20
"""Size of the copies of what was planted, and in addition of those of what replaced a file."""

MAX_COPY_BYTES = 16 << 20
"""What is copied of one file, from its beginning."""

_CHUNK_BYTES = 1 << 20
_MAX_NAME_CHARS = 80
_MAGIC_BYTES = 4
_END_OF_MAGIC = b"\r\n"  # of bytecode, in every version of Python

SetAside = Callable[[int, str], str]
"""Moves a name of an open folder to where it may stay, and returns its path; or raises `OSError`."""


@dataclass(frozen=True, slots=True)
class KeptContent:
    """What was kept of a file that has been removed; false if it had nothing to keep.

    Attributes:
        place: Path of the content.
        lost: What of it was not kept, and why; empty if all of it was.
    """

    place: str = ""
    lost: str = ""

    def __bool__(self) -> bool:
        return bool(self.place or self.lost)


def plain_name(name: str) -> str:
    """Return a name in plain characters, and not too long to have an ending."""
    return "".join(char if char.isalnum() or char in "._-" else "_" for char in name)[:_MAX_NAME_CHARS]


class _Room:
    """Room for copies of one kind."""

    def __init__(self) -> None:
        self.files = 0
        self.bytes = 0

    @property
    def bytes_left(self) -> int:
        """Size that one more copy may have."""
        if self.files >= MAX_QUARANTINE_FILES:
            return 0
        return min(MAX_COPY_BYTES, MAX_QUARANTINE_BYTES - self.bytes)


class Quarantine:
    """Keeps what one session found in the place of protected files. Not thread-safe."""

    def __init__(self, folder: Path, set_aside: SetAside | None = None) -> None:
        """Copy to `folder`, which is created with the first file.

        Args:
            folder: Where copies go.
            set_aside: Takes what cannot be copied whole; without it that is cut or lost.
        """
        self._folder = folder
        self._set_aside = set_aside
        self._planted = _Room()
        self._replaced = _Room()

    def __repr__(self) -> str:
        planted, replaced = self._planted, self._replaced
        files, size = planted.files + replaced.files, planted.bytes + replaced.bytes
        return f"<Quarantine {self._folder}: {files} files, {size} bytes>"

    def take(
        self,
        folder: int,
        name: str,
        *,
        known: bytes | None = None,
        replaces: bool = False,
        may_stay: bool = True,
        compiled: bool = False,
    ) -> KeptContent:
        """Keep the file `name` of the open directory `folder`, and remove that name.

        Args:
            folder: Descriptor of a directory.
            name: What is removed from it.
            known: Content that need not be kept.
            replaces: Whether another file was there before; then there is room that nothing planted takes.
            may_stay: Whether it may get another name in the workspace.
            compiled: Whether it should be bytecode, which need not be kept.

        Raises:
            FileNotFoundError: If there is nothing of that name.
            OSError: If it cannot be removed.
        """
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        content = KeptContent()
        if stat.S_ISREG(status.st_mode) and status.st_size > 0:
            room = self._replaced if replaces else self._planted
            with suppress(OSError):
                if self._is_known(folder, name, known, compiled=compiled):
                    # Race: what is written to it after it was compared is lost. Nobody but the sandbox should
                    # write to a protected file while its calls run.
                    os.unlink(name, dir_fd=folder)
                    return content
            is_whole = False
            if status.st_size <= room.bytes_left or not (may_stay and self._set_aside):
                content, is_whole = self._copy(folder, name, room, status.st_size)
            if not is_whole and may_stay and self._set_aside is not None:
                with suppress(OSError):  # the reason is in `lost`
                    return KeptContent(self._set_aside(folder, name))
                if not content:
                    content, _ = self._copy(folder, name, room, status.st_size)
        os.unlink(name, dir_fd=folder)
        return content

    @staticmethod
    def _is_known(folder: int, name: str, known: bytes | None, *, compiled: bool) -> bool:
        """Return whether the file has this content, or is bytecode where that is expected."""
        if known is None and not compiled:
            return False
        wanted = _MAGIC_BYTES if known is None else len(known)
        with os.fdopen(os.open(name, READ_FLAGS, dir_fd=folder), "rb") as file:
            begin = file.read(max(wanted, _MAGIC_BYTES))
            if compiled and begin[:_MAGIC_BYTES].endswith(_END_OF_MAGIC):
                return True
            return known is not None and begin == known and not file.read(1)

    def _copy(self, folder: int, name: str, room: _Room, size: int) -> tuple[KeptContent, bool]:
        """Copy what there is room for; return it and whether that was all."""
        bytes_left = room.bytes_left
        if bytes_left <= 0:
            return KeptContent(
                lost="what was found is lost: too much has been kept in this session already"
            ), False
        number = self._planted.files + self._replaced.files + 1
        place = self._folder / extend_name(plain_name(name), ".kept", f"{number:03d}-")
        try:
            with os.fdopen(os.open(name, READ_FLAGS, dir_fd=folder), "rb", buffering=0) as source:
                if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                    return KeptContent(), True  # race: it was a regular file a moment ago
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                with os.fdopen(os.open(place, CREATE_FLAGS, 0o600), "wb", buffering=0) as copy:
                    room.files += 1
                    while bytes_left > 0 and (part := source.read(min(bytes_left, _CHUNK_BYTES))):
                        copy.write(part)
                        room.bytes += len(part)
                        bytes_left -= len(part)
                is_whole = bytes_left > 0 or not source.read(1)
                copied = place.stat().st_size
        except OSError as error:
            return KeptContent(
                lost=f"what was found is lost: no copy could be made ({error.strerror})"
            ), False
        if is_whole:
            return KeptContent(str(place)), True
        return KeptContent(
            str(place), f"cut after {copied:,} of {max(size, copied):,} bytes, the rest is lost"
        ), False
