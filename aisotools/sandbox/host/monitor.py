"""Resource usage of a sandbox's processes, sampled by the host and compared with the limits.

The kernel limits address space, file sizes, open files and processor time, each per process. What counts for
the whole tree is sampled from outside, at most ten times a second and less often the more a sample costs:
memory (PSS, which shares out what several processes map), processes and threads, and disk space.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from aisotools.sandbox.limits import LimitExceeded, Limits
from aisotools.sandbox.process import tree as processes

# Seconds between samples while calls run, and while none does.
_BUSY_INTERVAL_S = 0.1
_IDLE_INTERVAL_S = 1.0
# Share of one processor that sampling may take.
_MAX_LOAD = 0.01
# The kernel counts processor time in other grains than we do: a worker killed this near to its limit was
# killed for it.
_NEAR_LIMIT = 0.9
# Seconds between walks through the folders, unless the file system says that much was written.
_WALK_INTERVAL_S = 30.0
# Bounds on one walk: the folders are hostile.
_MAX_ENTRIES = 500_000
_MAX_DEPTH = 200
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_find_switches = re.compile(rb"ctxt_switches:\s*(\d+)").findall


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsage:
    """Resources in use at one moment.

    Attributes:
        memory_bytes: Of all processes together.
        processes: Number of processes and threads.
        disk_bytes: Written since the worker started; 0 when it was not measured.
        cpu_s: Processor time of the process that has used most.
    """

    memory_bytes: int = 0
    processes: int = 0
    disk_bytes: int = 0
    cpu_s: float = 0.0


def find_exceeded(usage: ResourceUsage, limits: Limits) -> LimitExceeded | None:
    """Return the first limit that is exceeded, or None."""
    for name in ("memory_bytes", "processes", "disk_bytes", "cpu_s"):
        used, allowed = getattr(usage, name), getattr(limits, name)
        if allowed is not None and used > allowed:
            return LimitExceeded(limit=name, used=used, allowed=allowed)
    return None


def find_cpu_kill(
    samples: Iterable[tuple[float, float]], allowed_s: float | None, now_s: float
) -> LimitExceeded | None:
    """Return the limit on processor time if the kernel may just have killed a process for it.

    Args:
        samples: Processor time of the busiest process, and when it was measured, of each recent sample.
        allowed_s: The limit.
        now_s: The time, by the clock of the samples.
    """
    if allowed_s is None:
        return None
    for cpu_s, sampled_s in samples:
        # The kernel's kill comes between two samples: assume that the process ran since this one.
        used_s = cpu_s + now_s - sampled_s
        if cpu_s and used_s >= _NEAR_LIMIT * allowed_s:
            return LimitExceeded(limit="cpu_s", used=max(used_s, allowed_s), allowed=allowed_s)
    return None


# ---- measuring


def pss_bytes(pid: int) -> int:
    """Return the proportional memory of one process; 0 when it cannot be read."""
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


def measure_usage(supervisor: int, limits: Limits) -> ResourceUsage:
    """Return what all processes below `supervisor` use, except disk space. 0: it is not known yet."""
    if not supervisor:
        return ResourceUsage()
    tree = processes.below(supervisor, processes.table())
    memory = sum(map(_rss_bytes, tree))
    if limits.memory_bytes is not None and memory > limits.memory_bytes:
        # Resident memory counts shared pages once per process: it is cheap, and never less than PSS. Only
        # when it exceeds the limit is the exact number worth its cost.
        memory = sum(map(pss_bytes, tree))
    cpu_s = max(map(_cpu_s, tree), default=0.0) if limits.cpu_s is not None else 0.0
    return ResourceUsage(memory_bytes=memory, processes=sum(map(_threads, tree)), cpu_s=cpu_s)


def count_context_switches(supervisor: int) -> dict[tuple[int, int], int]:
    """Count the context switches of each thread below a process: the same counts again mean that none ran.

    Returns:
        A count for each pair of process id and thread id; empty when nothing is there.
    """
    counts: dict[tuple[int, int], int] = {}
    for pid in processes.below(supervisor, processes.table()) if supervisor else ():
        with suppress(OSError):  # it ended meanwhile
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
                    counts[pid, int(thread)] = sum(map(int, _find_switches(file.read())))
    return counts


class DiskUsage:
    """Disk space of what was written in some folders since this object was created.

    Walking the folders is expensive. It is done when the file system has lost as much space as would exceed
    the limit, and every half a minute, because others may free space meanwhile.
    """

    def __init__(self, folders: Iterable[str], limits: Limits) -> None:
        self._folders = tuple(filter(None, folders))
        self._allowed = limits.disk_bytes
        self._since_ns = time.time_ns()
        self._free = {folder: _free_bytes(folder) for folder in self._folders}
        self._slack = self._allowed or 0
        self._next_walk_s = time.monotonic() + _WALK_INTERVAL_S

    def is_due(self) -> bool:
        """Return whether it is time to walk."""
        if self._allowed is None:
            return False
        lost = any(free - _free_bytes(folder) > self._slack for folder, free in self._free.items())
        return lost or time.monotonic() >= self._next_walk_s

    def used_bytes(self, supervisor: int) -> int:
        """Walk the folders and return the space in use; deleted files that are still open count too."""
        began_s = time.monotonic()
        used = sum(_written_bytes(folder, self._since_ns) for folder in self._folders)
        if supervisor:
            used += sum(map(_deleted_bytes, processes.below(supervisor, processes.table())))
        ended_s = time.monotonic()
        self._next_walk_s = ended_s + max(_WALK_INTERVAL_S, (ended_s - began_s) / _MAX_LOAD)
        self._free = {folder: _free_bytes(folder) for folder in self._folders}
        allowed = self._allowed or 0
        self._slack = max(allowed - used, allowed // 8)
        return used


def _free_bytes(folder: str) -> int:
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    return status.f_bfree * status.f_frsize


def _written_bytes(folder: str, since_ns: int) -> int:
    """Return the space of all files in a folder that changed since then, never following a link."""
    total, left = 0, _MAX_ENTRIES

    def visit(directory: int, depth: int) -> None:
        nonlocal total, left
        with os.scandir(directory) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    return
                with suppress(OSError):  # it was removed meanwhile
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _MAX_DEPTH:
                            enter(directory, entry.name, depth + 1)
                        continue
                    status = entry.stat(follow_symlinks=False)
                    if status.st_ctime_ns >= since_ns:
                        total += status.st_blocks * 512 // max(1, status.st_nlink)

    def enter(parent: int | None, name: str, depth: int) -> None:
        directory = os.open(name, _OPEN_FOLDER, dir_fd=parent)
        try:
            visit(directory, depth)
        finally:
            os.close(directory)

    with suppress(OSError):
        enter(None, folder, 0)
    return total


def _deleted_bytes(pid: int) -> int:
    """Return the space of deleted files that a process holds open."""
    total = 0
    counted: set[int] = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                status = os.stat(f"/proc/{pid}/fd/{name}")
                if stat.S_ISREG(status.st_mode) and not status.st_nlink and status.st_ino not in counted:
                    counted.add(status.st_ino)
                    total += status.st_blocks * 512
    return total


# ---- monitoring


class ResourceMonitor:
    """Samples a running sandbox on the event loop, until it is stopped."""

    def __init__(
        self,
        supervisor: Callable[[], int],
        limits: Limits,
        *,
        folders: Iterable[str],
        is_busy: Callable[[], bool],
        on_exceeded: Callable[[LimitExceeded], None],
    ) -> None:
        """Start sampling.

        Args:
            supervisor: Returns the process above all that is measured; 0 while that is not known.
            limits: What is allowed.
            folders: Where the sandbox may write.
            is_busy: Returns whether calls run; an idle sandbox is sampled less often.
            on_exceeded: Called for each sample that exceeds a limit.
        """
        self._supervisor = supervisor
        self._limits = limits
        self._is_busy = is_busy
        self._on_exceeded = on_exceeded
        self._disk = DiskUsage(folders, limits)
        self._walk_task: asyncio.Task[None] | None = None
        self._reported_disk_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_BUSY_INTERVAL_S, self._sample)
        self._stopped = False
        # Race: a sample may come between the kernel's kill and the news of it. It no longer shows the process
        # that used the time, so the one before is kept too.
        self._cpu_samples: deque[tuple[float, float]] = deque(maxlen=2)

    def __repr__(self) -> str:
        return f"<ResourceMonitor of {self._supervisor()}{', stopped' if self._stopped else ''}>"

    def stop(self) -> None:
        """Stop sampling."""
        self._stopped = True
        self._timer.cancel()
        if self._walk_task is not None:
            self._walk_task.cancel()

    def post_mortem(self) -> LimitExceeded | None:
        """Return the limit for which the kernel has killed the worker, as far as samples can tell."""
        return find_cpu_kill(self._cpu_samples, self._limits.cpu_s, time.monotonic())

    def _sample(self) -> None:
        began_s = time.thread_time()
        try:
            usage = measure_usage(self._supervisor(), self._limits)
            self._cpu_samples.append((usage.cpu_s, time.monotonic()))
            exceeded = find_exceeded(usage, self._limits)
            if exceeded is not None:
                self._on_exceeded(exceeded)
            if self._walk_task is None and self._disk.is_due():
                self._walk_task = self._loop.create_task(self._walk())
        finally:
            # Also after an error: a limit that is not checked any more is no limit.
            cost_s = time.thread_time() - began_s
            interval_s = _BUSY_INTERVAL_S if self._is_busy() else _IDLE_INTERVAL_S
            # Never less often than an idle sandbox: what is expensive to measure is large, and must be
            # measured.
            wait_s = min(max(interval_s, cost_s / _MAX_LOAD), _IDLE_INTERVAL_S)
            if not self._stopped:
                self._timer = self._loop.call_later(wait_s, self._sample)

    async def _walk(self) -> None:
        try:
            used = await asyncio.to_thread(self._disk.used_bytes, self._supervisor())
        finally:
            self._walk_task = None
        exceeded = find_exceeded(ResourceUsage(disk_bytes=used), self._limits)
        # After it was reported, only more of it counts: a call that deletes files must be able to run.
        if exceeded is not None and used > self._reported_disk_bytes and not self._stopped:
            self._reported_disk_bytes = used
            self._on_exceeded(exceeded)
