"""Stamps of what a call would remove, overwrite or read: what was shown is what it finds.

Threat
    A card asks about `rm -r out`, and while a person thinks, results that took a day come to lie there. Or
    `rm out/y` is allowed for this session, and `out/y` is another file the next time. Or a card asks about
    `cp -r in out`, and another file comes to lie in `in`.
Mechanism
    A stamp of a file is its inode, size and time of the last change, which nobody can set; a removal that is
    remembered binds it. Of a folder it is a digest of the stamps of all that is below, up to `MAX_ENTRIES`.
    Nothing is read, and no link is followed.
Race window
    From the last comparison, right before the call, to the call itself. Undo covers what is lost then.
When it fails
    A folder with more entries, or one that cannot be read, has the stamp `UNKNOWN`: its call is compared by
    the entries that were looked at, and it cannot be remembered.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from aisotools.workspace.dirfd import DIRECTORY_FLAGS, walk_below

MAX_ENTRIES = 3_000
"""Files and folders that are looked at for one call; each costs some microseconds."""

_FOLDER_ENTRIES = 2  # that a folder counts for beyond itself, since it is opened, listed and left

MAX_PATHS = 200
"""Paths of one call that get a stamp."""

UNKNOWN = "unknown"
"""Begins the stamp of what was not looked at as a whole."""

NAMED = "named "
"""Begins the stamp of what code names and may read or write: compared before the call, and with no grant."""

ABSENT = "absent"
"""The stamp of nothing."""


def stamps_of(
    workspace: Path, paths: Iterable[str], *, own_names: bool = False
) -> tuple[tuple[str, str], ...]:
    """Return paths, each with a stamp of what is there.

    Args:
        workspace: The folder.
        paths: Relative to it, or absolute.
        own_names: Whether a file that has further names (hard links) gets the stamp `UNKNOWN`.
    """
    look = StampReader()
    stamps: dict[str, str] = {}
    for number, path in enumerate(dict.fromkeys(paths)):
        if number >= MAX_PATHS:
            stamps["..."] = UNKNOWN
            break
        place = os.fspath(workspace / path)
        stamps[path] = UNKNOWN if own_names and _has_other_names(place) else look.stamp(place)
    return tuple(sorted(stamps.items()))


def is_known(stamp: str) -> bool:
    """Return whether a stamp is of all that is there."""
    return not stamp.startswith(UNKNOWN)


def is_there(stamp: str) -> bool:
    """Return whether a stamp is of something, or may be."""
    return stamp != ABSENT


class StampReader:
    """One look at the workspace, which counts what it has looked at."""

    def __init__(self, *, skips: Collection[str] = (), follows_links: bool = False) -> None:
        """Begin a look.

        Args:
            skips: Names of folders that are not looked into.
            follows_links: Whether a file counts that a link below a folder leads to. A folder elsewhere that
                one leads to is not looked at, so the stamp is not of all that is there.
        """
        self._entries_left = MAX_ENTRIES
        self._skips = skips
        self._follows_links = follows_links

    def stamp(self, place: str) -> str:
        """Return the stamp of a file, of a folder with all that is below, or of nothing."""
        try:
            status = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            return ABSENT
        except (OSError, ValueError):
            return UNKNOWN
        if not stat.S_ISDIR(status.st_mode):
            return _of(status)
        digest = hashlib.sha256()
        is_complete = True

        def visit(folder: int) -> list[str]:
            nonlocal is_complete
            subfolders: list[str] = []
            try:
                with os.scandir(folder) as entries:
                    names = sorted(one.name for one in itertools.islice(entries, max(self._entries_left, 0)))
            except OSError:
                is_complete = False
                return subfolders
            self._entries_left -= len(names)
            is_complete = is_complete and self._entries_left > 0
            for name in names:
                try:
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                except OSError:
                    continue  # it is gone, and its folder has another change time
                if stat.S_ISDIR(status.st_mode):
                    if name in self._skips:
                        digest.update(f"{name}\0".encode("utf-8", "surrogateescape"))
                        continue
                    subfolders.append(name)
                    self._entries_left -= _FOLDER_ENTRIES
                digest.update(f"{name}\0{_of(status)}\0".encode("utf-8", "surrogateescape"))
                if self._follows_links and stat.S_ISLNK(status.st_mode):
                    with suppress(OSError):  # a link to nothing, or a circle of links
                        target = os.stat(name, dir_fd=folder)
                        is_folder = stat.S_ISDIR(target.st_mode)
                        is_complete = is_complete and not (is_folder and _leads_out(name, folder))
                        digest.update(_of(target).encode())
            digest.update(b"/")  # the names of the folders that come next are known by now
            return subfolders

        try:
            root = os.open(place, DIRECTORY_FLAGS)
        except OSError:
            return UNKNOWN
        try:
            is_complete = walk_below(root, visit) and is_complete
        finally:
            os.close(root)
        found = digest.hexdigest()
        return found if is_complete else f"{UNKNOWN} {found}"


def _has_other_names(place: str) -> bool:
    try:
        status = os.lstat(place)
    except (OSError, ValueError):
        return False
    return status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)


def _leads_out(name: str, folder: int) -> bool:
    """Return whether a link may lead to where the walk through a folder does not come."""
    text = os.readlink(name, dir_fd=folder)
    return text.startswith("/") or ".." in text.split("/")


def _of(status: os.stat_result) -> str:
    return f"{status.st_dev} {status.st_ino} {status.st_mode} {status.st_size} {status.st_ctime_ns}"
