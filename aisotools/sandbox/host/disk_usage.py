"""Disk space that a sandbox has taken: what was written in its folders since it began.

- Threat: space in places that a look does not reach. Files below very many folders, or in a folder that was
  made impossible to enter; hundreds of thousands of names; files without content, of which a file system has
  only so many; further names of a file that make it look shared;
  folders, which take blocks of their own; files that have no name any more, and are open, mapped, or on their
  way through a socket.
- Mechanism: a walk by descriptors, at any depth, with bounds on what is open at once and what is looked at.
  Each file counts once and whole, under whichever names, folders like files, and one that takes no block as
  one block: a file system has room for so many files. Where something cannot be looked
  at, what counts is at least the space that the file systems have lost since the start, whoever took it: so
  nothing is gained by hiding, and a large workspace alone is not an alarm.
- Race: what is moved while it is walked may count twice or not at all in one walk; the next one comes.
- A failure to look is something that cannot be looked at.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import tree as processes
from aisotools.workspace.dirfd import file_time

# Seconds between walks, unless the file system says that much was written, and the share of one processor.
_WALK_INTERVAL_S = 30.0
_MAX_LOAD = 0.01
# Bounds on one walk: the folders are hostile. Open are two descriptors for each level, and those that wait.
_MAX_ENTRIES = 500_000
_MAX_LEVELS = 100
_MAX_WAITING = 100
# Files with several names that are remembered, at about a hundred bytes each.
_MAX_LINKED = 100_000
# Lists of mapped files that are read, of all processes together: some tenths of a second.
_MAX_MAPS_BYTES = 64 << 20
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK_BYTES = 512
# What a file without content counts for. Disks have room for one file for each 16 KiB, usually.
_FILE_BYTES = 4096


def free_bytes(folder: str) -> int:
    """Return the free space of a folder's file system, with that of free files; 0 if it cannot be asked."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    return status.f_bfree * status.f_frsize + status.f_ffree * _FILE_BYTES


class DiskUsage:
    """Disk space of what was written in some folders since this object was created.

    Walking the folders is expensive. It is done when the file system has lost as much space as would exceed
    the limit, and every half a minute, because others may free space meanwhile.
    """

    def __init__(
        self, folders: Iterable[str], limits: Limits, free: Callable[[str], int] = free_bytes
    ) -> None:
        """Count from now on.

        Args:
            folders: Where files are written; an empty text stands for none.
            limits: What is allowed.
            free: Returns the free space around a folder.
        """
        self._folders = tuple(filter(None, folders))
        self._allowed = limits.disk_bytes
        self._since_ns = file_time()
        self._measure_free = free
        self._devices: dict[int, str] = {}  # device -> one of the folders on it
        for folder in self._folders:
            with suppress(OSError):
                self._devices.setdefault(os.stat(folder).st_dev, folder)
        self._free_at_start = self._free()
        self._free_before = self._free_at_start
        self._slack = self._allowed or 0
        self._next_walk_s = time.monotonic() + _WALK_INTERVAL_S

    def __repr__(self) -> str:
        return f"<DiskUsage of {', '.join(self._folders)}>"

    def _free(self) -> dict[int, int]:
        return {device: self._measure_free(folder) for device, folder in self._devices.items()}

    def is_due(self) -> bool:
        """Return whether it is time to walk."""
        if self._allowed is None:
            return False
        free = self._free()
        lost = any(before - free[device] > self._slack for device, before in self._free_before.items())
        return lost or time.monotonic() >= self._next_walk_s

    def used_bytes(self, supervisor: int) -> int:
        """Walk the folders and return the space in use; deleted files in use count too."""
        began_s = time.monotonic()
        walk = _DiskWalk(self._since_ns)
        for folder in self._folders:
            walk.add_folder(folder)
        if supervisor:
            walk.add_deleted(processes.below(supervisor, processes.table()), self._devices)
        used, free = walk.total, self._free()
        if not walk.saw_all:
            lost = sum(max(0, before - free[device]) for device, before in self._free_at_start.items())
            used = max(used, lost)
        ended_s = time.monotonic()
        self._next_walk_s = ended_s + max(_WALK_INTERVAL_S, (ended_s - began_s) / _MAX_LOAD)
        self._free_before = free
        allowed = self._allowed or 0
        self._slack = max(allowed - used, allowed // 8)
        return used


class _DiskWalk:
    """One look at everything.

    Attributes:
        total: The space of what was found, in bytes.
        saw_all: False if something could not be looked at.
    """

    def __init__(self, since_ns: int) -> None:
        self.total = 0
        self.saw_all = True
        self._since_ns = since_ns
        self._entries_left = _MAX_ENTRIES
        self._maps_left = _MAX_MAPS_BYTES
        self._linked: set[tuple[int, int]] = set()
        self._waiting: list[int] = []

    # -- files with names

    def add_folder(self, folder: str) -> None:
        """Count what changed in a folder since the start. No link is followed."""
        try:
            self._waiting.append(os.open(folder, _OPEN_FOLDER))
        except FileNotFoundError:
            return  # as long as it is gone nothing can be written there
        except OSError:
            self.saw_all = False
            return
        # What lies deeper than `_MAX_LEVELS` waits until nothing above it is open any more.
        try:
            while self._waiting:
                self._visit(self._waiting.pop(), 0)
        finally:
            while self._waiting:
                os.close(self._waiting.pop())

    def _visit(self, directory: int, level: int) -> None:
        """Count what is in an open folder, and close it."""
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    self._entries_left -= 1
                    if self._entries_left < 0:
                        self.saw_all = False
                        return
                    with suppress(FileNotFoundError):  # it was removed meanwhile
                        status = entry.stat(follow_symlinks=False)
                        if status.st_ctime_ns >= self._since_ns:
                            self._count(status)
                        if stat.S_ISDIR(status.st_mode):
                            self._enter(directory, entry.name, status, level)
        except OSError:
            self.saw_all = False
        finally:
            os.close(directory)

    def _enter(self, parent: int, name: str, status: os.stat_result, level: int) -> None:
        if level >= _MAX_LEVELS and len(self._waiting) >= _MAX_WAITING:
            self.saw_all = False
            return
        try:
            directory = os.open(name, _OPEN_FOLDER, dir_fd=parent)
        except FileNotFoundError:
            return
        except NotADirectoryError:
            return  # something else has taken its place; a link is not followed either
        except OSError:
            # One that nobody may enter, and that has been so since before the start, hides nothing new.
            if status.st_ctime_ns >= self._since_ns:
                self.saw_all = False
            return
        if level < _MAX_LEVELS:
            self._visit(directory, level + 1)
        else:
            self._waiting.append(directory)

    def _count(self, status: os.stat_result) -> None:
        """Count a file or folder. One with several names counts once and whole: code links at will."""
        if status.st_nlink != 1 and not stat.S_ISDIR(status.st_mode):
            identity = status.st_dev, status.st_ino
            if identity in self._linked:
                return
            if len(self._linked) >= _MAX_LINKED:
                self.saw_all = False  # instead of counting one file many times
                return
            self._linked.add(identity)
        self.total += status.st_blocks * _BLOCK_BYTES or _FILE_BYTES

    # -- files without names

    def add_deleted(self, pids: Iterable[int], devices: Iterable[int]) -> None:
        """Count the deleted files that processes use, as far as they are on these devices."""
        on = frozenset(devices)
        for pid in pids:
            folder = f"/proc/{pid}"
            try:
                for name in os.listdir(f"{folder}/fd"):
                    self._count_deleted(f"{folder}/fd/{name}", on)
                    self._look_into_socket(folder, name)
                self._find_mapped(folder, on)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            except OSError:
                self.saw_all = False

    def _count_deleted(self, path: str, devices: frozenset[int]) -> None:
        with suppress(FileNotFoundError, ProcessLookupError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode) and not status.st_nlink and status.st_dev in devices:
                self._count(status)

    def _look_into_socket(self, folder: str, name: str) -> None:
        """Look whether descriptors are on their way through a socket: the files are in no process's list."""
        try:
            if not os.readlink(f"{folder}/fd/{name}").startswith("socket:"):
                return
            with open(f"{folder}/fdinfo/{name}", "rb") as file:
                found = next((line for line in file if line.startswith(b"scm_fds:")), b"scm_fds: 0")
        except FileNotFoundError:
            return
        if int(found.split()[1]):
            self.saw_all = False

    def _find_mapped(self, folder: str, devices: frozenset[int]) -> None:
        """Count deleted files that are mapped, with all their descriptors closed."""
        with open(f"{folder}/maps", "rb") as file:
            for line in file:
                self._maps_left -= len(line)
                if self._maps_left < 0:
                    self.saw_all = False
                    return
                # Shared memory without a name looks like a file; it counts as memory.
                if not line.endswith(b" (deleted)\n") or line.endswith(b" /dev/zero (deleted)\n"):
                    continue
                try:
                    # By the kernel's spelling of its address, without leading zeros.
                    first, last = (int(part, 16) for part in line.split(b" ", 1)[0].split(b"-"))
                    self._count_deleted(f"{folder}/map_files/{first:x}-{last:x}", devices)
                except OSError:
                    # Only root may look how large the file is.
                    self.saw_all = False
