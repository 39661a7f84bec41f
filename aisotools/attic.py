"""Where things go that a sandbox put in the place of a protected file: kept for people, run by nobody."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

MOST_FILES, MOST_BYTES = 100, 256 << 20
"""How much one session may leave there; beyond that things are removed."""

_COPIED_BYTES = 16 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Attic:
    """A private folder of files under names that nothing runs."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, which is made when the first thing comes."""
        self._folder = folder
        self._files = 0
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<Attic {self._folder}: {self._files} files>"

    def take(self, folder: int, name: str) -> str:
        """Take `name` out of the folder with this descriptor; what is no regular file is removed.

        Returns:
            Where it lies now; empty when it was removed.

        Raises:
            OSError: If it can be neither taken nor removed.
        """
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        worth = stat.S_ISREG(status.st_mode) and status.st_size > 0
        if worth and self._files < MOST_FILES and self._bytes + status.st_size <= MOST_BYTES:
            plain = "".join(one if one.isalnum() or one in "._-" else "_" for one in name)[:80]
            place = self._folder / f"{self._files + 1:03d}-{plain}.kept"
            with suppress(OSError):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _move(folder, name, place)
                self._files += 1
                self._bytes += status.st_size
                return str(place)
        os.unlink(name, dir_fd=folder)
        return ""


def _move(folder: int, name: str, place: Path) -> None:
    try:
        os.rename(name, place, src_dir_fd=folder)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    else:
        return  # its mode stays what it was, which in a folder of our own does no harm
    with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as source:
        data = source.read(_COPIED_BYTES)
    with os.fdopen(os.open(place, _CREATE, 0o600), "wb") as copy:
        copy.write(data)
    os.unlink(name, dir_fd=folder)
