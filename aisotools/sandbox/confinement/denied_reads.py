"""Keep a process from reading some paths below folders that it may read: a layer of Landlock of its own.

Threat: a rule of the policy denies to read `secrets/*`, and a command that was classified read only reads a
file there all the same: by a spelling that nobody saw through, a link, a pattern, or a program's own means.

Mechanism: rights of Landlock hold for a folder with all below it and cannot be taken back further down. So
the layer grants the reading of everything but the denied paths: from each readable folder it walks down
towards them, grants each sibling on the way, and nothing to the denied path itself nor to the folders on the
way. What links lead to is granted where it lies, or not at all. A right on a file is one on its inode, so a
file of several names gets none beside the way: another of its names may lie below a denied path. Names in
denied folders can still be listed, as their sizes and times can be seen.
Race window: what is made beside the way after the walk gets no right, which is the safe side. Whoever may
write can move a denied file to where reading is granted, or link it there: that is for the rules about calls
that write. The walk runs in the worker, which an earlier call with the right to change things may have
prepared; such a call could have read the file itself.
Failure: more entries than `MAX_ENTRIES`, or a folder that cannot be listed, is an error, and the process must
not be started. A kernel without Landlock is one, too.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from aisotools.core.path_texts import is_within
from aisotools.sandbox.confinement import landlock

MAX_ENTRIES = 10_000
"""Files and folders beside the way to denied paths that can be granted one by one: about 0.1 s."""

_READING = landlock.Right.READ_FILE | landlock.Right.EXECUTE

AllowReading = Callable[[int], None]
"""Allows reading below what a descriptor has open."""


def restrict_reads(
    readable: Iterable[str], denied: Iterable[str], *, most_entries: int = MAX_ENTRIES
) -> None:
    """Take from this thread and all it starts, for good, the reading of some paths, and of all not named.

    Args:
        readable: Files and folders that stay readable with all below them; missing ones are skipped.
        denied: Absolute paths without links that do not, with all below them; they need not exist.
        most_entries: Files and folders beside the way to them that are granted one by one.

    Raises:
        OSError: The kernel refused, offers no Landlock, or there are more than `most_entries`.
    """
    version = min(landlock.abi(), landlock.KNOWN_ABI)
    walk = _WalkBesideDenied(frozenset(map(os.path.normpath, denied)), most_entries)

    def add(grant: landlock.GrantOpened) -> None:
        for path in readable:
            walk.grant_below(path, lambda opened: grant(opened, _READING))

    layer = landlock.Ruleset(
        files=_READING,
        grants=tuple(
            (path, landlock.Right.READ_FILE)
            for path in (*landlock.WRITABLE_DEVICES, *landlock.READABLE_DEVICES)
        ),
    )
    landlock.enforce(layer, version, add)


def limit_reads(sandbox: Mapping[str, Any], denied: Sequence[str]) -> dict[str, Sequence[str]] | None:
    """Return what a process may read, as `restrict_reads` takes it; None if nothing is kept from it.

    Args:
        sandbox: The description of the sandbox; at some levels with absolute paths that are `readable`.
        denied: Absolute paths that are not, all the same.
    """
    return {"readable": sandbox["readable"], "denied": denied} if denied and "readable" in sandbox else None


class _WalkBesideDenied:
    """Grants what lies beside the way to denied paths, and counts it."""

    def __init__(self, denied: frozenset[str], most_entries: int) -> None:
        self._denied = denied
        self._most_entries = self._left = most_entries

    def grant_below(self, path: str, grant: AllowReading) -> None:
        """Grant a readable path, but for what is denied in it."""
        real = os.path.realpath(path)
        if self._is_denied(real):
            return
        try:
            opened = os.open(real, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # what cannot be reached gets no right
        try:
            self._grant(opened, real, grant, is_beside=False)
        finally:
            os.close(opened)

    def _is_denied(self, path: str) -> bool:
        return any(is_within(path, one) for one in self._denied)

    def _is_on_way(self, path: str) -> bool:
        return any(one.startswith(f"{path}/") for one in self._denied)

    def _grant(self, opened: int, path: str, grant: AllowReading, *, is_beside: bool) -> None:
        status = os.fstat(opened)
        if stat.S_ISLNK(status.st_mode):
            return  # opening it for a rule would grant what it leads to
        if self._is_on_way(path):
            if stat.S_ISDIR(status.st_mode):
                self._descend(opened, path, grant)
        elif not (is_beside and stat.S_ISREG(status.st_mode) and status.st_nlink > 1):
            grant(opened)

    def _descend(self, opened: int, path: str, grant: AllowReading) -> None:
        # Relative to the open folder, never by a whole path: the way may be exchanged for a link meanwhile.
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=opened)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        reason = f"beside what must not be read lie more than {self._most_entries:,} files"
                        raise OSError(errno.E2BIG, reason, path)
                    inner_path = f"{path}/{entry.name}"
                    if not self._is_denied(inner_path):
                        self._grant_entry(folder, entry.name, inner_path, grant)
        finally:
            os.close(folder)

    def _grant_entry(self, folder: int, name: str, path: str, grant: AllowReading) -> None:
        try:
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except (FileNotFoundError, PermissionError):
            return
        try:
            self._grant(inner, path, grant, is_beside=True)
        finally:
            os.close(inner)
