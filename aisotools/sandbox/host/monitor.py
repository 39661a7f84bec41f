"""What the processes of a sandbox use together, sampled by the host and held against the limits.

The kernel counts address space, file sizes, open files and processor time, each for one process. What counts
for a tree of processes is looked at from outside, a few times a second at most and less often the more a look
costs: memory (PSS, which shares out what several processes map; memory files and shared memory count as far
as somebody maps them), processes and threads, and disk space. Deciding is pure.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from aisotools.sandbox.limits import LimitExceeded, Limits
from aisotools.sandbox.process import tree as processes

_LOOK_S, _IDLE_S = 0.1, 1.0
_SHARE = 0.01
_NEARLY = 0.9  # the kernel counts in other grains
_WALK_S = 30.0
_MOST_ENTRIES, _MOST_DEPTH = 500_000, 200
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_switches = re.compile(rb"ctxt_switches:\s*(\d+)").findall


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsage:
    """What a sandbox uses at one moment.

    Attributes:
        memory_bytes: Of all processes together.
        processes: Processes and threads.
        disk_bytes: Of what was written since the worker started; 0 when it was not measured.
        cpu_s: Processor time of whichever process has used most.
    """

    memory_bytes: int = 0
    processes: int = 0
    disk_bytes: int = 0
    cpu_s: float = 0.0


def overrun(use: ResourceUsage, limits: Limits) -> LimitExceeded | None:
    """The first limit that is exceeded, if any."""
    for name in ("memory_bytes", "processes", "disk_bytes", "cpu_s"):
        used, allowed = getattr(use, name), getattr(limits, name)
        if allowed is not None and used > allowed:
            return LimitExceeded(limit=name, used=used, allowed=allowed)
    return None


# ---- looking


def pss_bytes(pid: int) -> int:
    """Proportional memory of one process; 0 when it cannot be read."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:")), 0)
    except OSError:
        return 0


def _rss_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _cpu_s(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _threads(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/task").st_nlink - 2
    except OSError:
        return 0


def look(supervisor: int, limits: Limits) -> ResourceUsage:
    """What everything below a process uses, but for disk space; nothing for 0, which is above everything."""
    if not supervisor:
        return ResourceUsage()
    tree = processes.below(supervisor, processes.table())
    memory = sum(map(_rss_bytes, tree))
    if limits.memory_bytes is not None and memory > limits.memory_bytes:
        memory = sum(map(pss_bytes, tree))  # costs more, and is never more than the other
    cpu_s = max(map(_cpu_s, tree), default=0.0) if limits.cpu_s is not None else 0.0
    return ResourceUsage(memory_bytes=memory, processes=sum(map(_threads, tree)), cpu_s=cpu_s)


def switches_below(supervisor: int) -> dict[tuple[int, int], int]:
    """How often each thread below a process was switched to or from: the same again means that none ran.

    Returns:
        Process id and thread id to a count; empty when nothing is there.
    """
    found: dict[tuple[int, int], int] = {}
    for pid in processes.below(supervisor, processes.table()) if supervisor else ():
        with suppress(OSError):  # it ended meanwhile
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
                    found[pid, int(thread)] = sum(map(int, _switches(file.read())))
    return found


class Disk:
    """Disk space of what was written in some folders since this was made.

    Walking the folders costs, so it is done only when the file system has lost as much space as would be too
    much, and every half a minute, since others may free space meanwhile.
    """

    def __init__(self, folders: Iterable[str], limits: Limits) -> None:
        """Count from now on."""
        self._folders = tuple(filter(None, folders))
        self._allowed = limits.disk_bytes
        self._since_ns = time.time_ns()
        self._free = {folder: _free_bytes(folder) for folder in self._folders}
        self._slack = self._allowed or 0
        self._next_s = time.monotonic() + _WALK_S

    def due(self) -> bool:
        """Whether it is time to walk."""
        if self._allowed is None:
            return False
        lost = any(free - _free_bytes(folder) > self._slack for folder, free in self._free.items())
        return lost or time.monotonic() >= self._next_s

    def used_bytes(self, supervisor: int) -> int:
        """Walk, and count; files that are open but have no name any more count too."""
        began_s = time.monotonic()
        used = sum(_written_bytes(folder, self._since_ns) for folder in self._folders)
        if supervisor:
            used += sum(map(_unnamed_bytes, processes.below(supervisor, processes.table())))
        ended_s = time.monotonic()
        self._next_s = ended_s + max(_WALK_S, (ended_s - began_s) / _SHARE)
        self._free = {folder: _free_bytes(folder) for folder in self._folders}
        allowed = self._allowed or 0
        self._slack = max(allowed - used, allowed // 8)
        return used


def _free_bytes(folder: str) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bfree * found.f_frsize


def _written_bytes(folder: str, since_ns: int) -> int:
    """Space of all files in a folder that changed since then, bounded, never through a link."""
    total, left = 0, _MOST_ENTRIES

    def visit(directory: int, depth: int) -> None:
        nonlocal total, left
        with os.scandir(directory) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    return
                with suppress(OSError):  # it went meanwhile
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _MOST_DEPTH:
                            enter(directory, entry.name, depth + 1)
                        continue
                    status = entry.stat(follow_symlinks=False)
                    if status.st_ctime_ns >= since_ns:
                        total += status.st_blocks * 512 // max(1, status.st_nlink)

    def enter(parent: int | None, name: str, depth: int) -> None:
        directory = os.open(name, _DIRECTORY, dir_fd=parent)
        try:
            visit(directory, depth)
        finally:
            os.close(directory)

    with suppress(OSError):
        enter(None, folder, 0)
    return total


def _unnamed_bytes(pid: int) -> int:
    """Space of files that a process holds open and nobody can find any more."""
    total, seen = 0, set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                status = os.stat(f"/proc/{pid}/fd/{name}")
                if stat.S_ISREG(status.st_mode) and not status.st_nlink and status.st_ino not in seen:
                    seen.add(status.st_ino)
                    total += status.st_blocks * 512
    return total


# ---- watching


class ResourceMonitor:
    """Looks at a running sandbox from time to time, on the event loop, until it is stopped."""

    def __init__(
        self,
        supervisor: Callable[[], int],
        limits: Limits,
        *,
        folders: Iterable[str],
        busy: Callable[[], bool],
        on_over: Callable[[LimitExceeded], None],
    ) -> None:
        """Begin.

        Args:
            supervisor: Gives the process above all that is watched; 0 while that is not known.
            limits: What is allowed.
            folders: Where it may write.
            busy: Whether calls run; without any it looks less often.
            on_over: Hears of each look that finds a limit exceeded.
        """
        self._supervisor, self._limits = supervisor, limits
        self._busy, self._on_over = busy, on_over
        self._disk = Disk(folders, limits)
        self._walking: asyncio.Task[None] | None = None
        self._disk_told = 0
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_LOOK_S, self._look)
        self._stopped = False
        self._seen, self._seen_s = ResourceUsage(), time.monotonic()

    def __repr__(self) -> str:
        return f"<Watch over {self._supervisor()}{', stopped' if self._stopped else ''}>"

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        self._timer.cancel()
        if self._walking is not None:
            self._walking.cancel()

    def post_mortem(self) -> LimitExceeded | None:
        """The limit for which the kernel has killed the worker, as far as the last look can tell."""
        allowed = self._limits.cpu_s
        ran_s = self._seen.cpu_s + time.monotonic() - self._seen_s
        if allowed is None or not self._seen.cpu_s or ran_s < _NEARLY * allowed:
            return None
        return LimitExceeded(limit="cpu_s", used=max(ran_s, allowed), allowed=allowed)

    def _look(self) -> None:
        began_s = time.thread_time()
        try:
            self._seen, self._seen_s = look(self._supervisor(), self._limits), time.monotonic()
            found = overrun(self._seen, self._limits)
            if found is not None:
                self._on_over(found)
            if self._walking is None and self._disk.due():
                self._walking = self._loop.create_task(self._walk())
        finally:
            cost_s = time.thread_time() - began_s
            # What is too large to be looked at cheaply is what must be looked at.
            wait_s = min(max(_LOOK_S if self._busy() else _IDLE_S, cost_s / _SHARE), _IDLE_S)
            if not self._stopped:
                self._timer = self._loop.call_later(wait_s, self._look)

    async def _walk(self) -> None:
        try:
            used = await asyncio.to_thread(self._disk.used_bytes, self._supervisor())
        finally:
            self._walking = None
        found = overrun(ResourceUsage(disk_bytes=used), self._limits)
        # Once it was told, only more of it counts: a call that cleans up must be let through.
        if found is not None and used > self._disk_told and not self._stopped:
            self._disk_told = used
            self._on_over(found)
