"""The quarantine: copies of what was found in the place of protected files."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from aisotools.workspace.dirfd import CREATE_FLAGS, READ_FLAGS

MAX_QUARANTINE_FILES = 100
"""Files in one quarantine; beyond that files are removed without a copy."""

MAX_QUARANTINE_BYTES = 64 << 20
"""Size of one quarantine; beyond that files are removed without a copy."""

MAX_COPY_BYTES = 16 << 20
"""What is kept of one file, from its beginning."""

_CHUNK_BYTES = 1 << 20
_MAX_NAME_CHARS = 80


class Quarantine:
    """Keeps copies of what one session found in the place of protected files, in a private folder.

    Threat: the content that a worker planted is evidence, and may also be a person's own work, so it is kept.
    But a process in the sandbox may still have the file open, and would go on writing to whatever is kept.

    Mechanism: content is copied, never moved. The copy is a new file that no process of the sandbox has open,
    it holds at most `MAX_COPY_BYTES` of each file, and all copies of one quarantine together at most
    `MAX_QUARANTINE_BYTES`, in at most `MAX_QUARANTINE_FILES` files. Then the name is removed from the
    workspace. The copies end in `.kept`, and their folder is readable for its owner alone, so that nothing
    runs them by accident.
    Race: a file that grows while it is copied is cut off at the bound; one that is replaced meanwhile is
    removed under its name all the same, and the copy is of what was opened.
    Failure: a disk that is full costs the copy, not the removal. A link, a FIFO, a socket or a device has no
    content to keep. A folder is left to the caller.
    """

    def __init__(self, folder: Path) -> None:
        """Use `folder`; it is created with the first file."""
        self._folder = folder
        self._files = 0
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<Quarantine {self._folder}: {self._files} files, {self._bytes} bytes>"

    def take(self, folder: int, name: str) -> str:
        """Copy the file `name` of the open directory `folder`, within the bounds, and remove it.

        Returns:
            The path of the copy; empty if there was no content to keep, or no room for it.

        Raises:
            FileNotFoundError: If there is nothing of that name.
            OSError: If it cannot be removed.
        """
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        saved_as = ""
        if stat.S_ISREG(status.st_mode) and status.st_size > 0 and self._files < MAX_QUARANTINE_FILES:
            with suppress(OSError):
                saved_as = self._copy(folder, name)
        os.unlink(name, dir_fd=folder)
        return saved_as

    def _copy(self, folder: int, name: str) -> str:
        left = min(MAX_COPY_BYTES, MAX_QUARANTINE_BYTES - self._bytes)
        if left <= 0:
            return ""
        plain = "".join(char if char.isalnum() or char in "._-" else "_" for char in name)
        place = self._folder / f"{self._files + 1:03d}-{plain[:_MAX_NAME_CHARS]}.kept"
        with os.fdopen(os.open(name, READ_FLAGS, dir_fd=folder), "rb", buffering=0) as source:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                return ""  # race: it was a regular file a moment ago
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(place, CREATE_FLAGS, 0o600), "wb", buffering=0) as copy:
                self._files += 1
                while left > 0 and (part := source.read(min(left, _CHUNK_BYTES))):
                    copy.write(part)
                    self._bytes += len(part)
                    left -= len(part)
        return str(place)
