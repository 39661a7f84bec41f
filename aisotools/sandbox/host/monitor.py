"""Resource usage of a sandbox's processes, sampled by the host and compared with the limits.

The kernel limits address space, file sizes, open files and processor time, each per process. What counts for
the whole tree is sampled from outside, at most ten times a second and less often the more a sample costs:
memory (PSS, which shares out what several processes map), open files, processes and threads, and disk space
(see `aisotools.sandbox.host.disk_usage`).

- Threat: many processes that each stay below their own limit; memory that no process shows (shared memory
  that was unmapped, buffers of sockets, mappings and page tables); a process that cannot be looked at; a tree
  that is slow to look at.
- Mechanism: the kernel's numbers, cheapest first. Resident memory is never less than PSS, so PSS is read only
  when that exceeds the limit. Shared memory without a name may be held by one mapped page: while the tree
  maps any, what the machine's shared memory has grown by since the start counts as the tree's. Sockets and
  pipes count at the size that they may have, and so does what waits in the queues of a network of its own:
  a connection that nobody has accepted belongs to no descriptor, and outlives the one at its other end.
- A mapping takes at least a page of address space: only where so many would exceed the limit are they
  counted, and no more than some thousand of a process; one with more counts for all that it may have.
- Memory files, pages kept in pipes, larger buffers and hiding from /proc are refused by the system call
  filter. Folders in memory have a fixed size.
- Left: small objects of the kernel (the record of an open file, an entry of a folder it looked at) count for
  nothing. There are no more of them than open files, or the kernel gives them up when memory runs out.
- Race: between two samples a tree may take what each of its processes may; then it is ended. A process that
  ends while it is looked at counts for nothing, one that may not be looked at counts at its most. What
  nobody can look at (see `aisotools.sandbox.host.open_files`) is common for a moment, so only what is there
  in four samples one after another, a tenth of a second apart, ends the tree.
- Processors are shared by the kernel between sessions of the system, where they count as groups, and else
  between threads: hundreds of either leave next to nothing for this process, which answers the person. There
  is no limit for that without privileges, so whatever a tree has more than a few of is given the lowest
  priority (`lower_priority`), which takes nothing from it while nobody else computes. It stays so: only root
  may raise a priority again. Until the next sample new ones compete as equals, and of the sessions of a user
  who is not root ten in a second are changed.
- Failure: a look that fails is a sample without numbers, and the next one comes. Everything runs in a thread,
  so the event loop waits for none of it.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from aisotools.core.concurrency import cancel_future
from aisotools.core.threads import OWN, in_thread
from aisotools.sandbox.host.disk_usage import DiskUsage
from aisotools.sandbox.host.open_files import SOCKET_BYTES, OpenFiles, measure_files
from aisotools.sandbox.limits import LimitExceeded, Limits
from aisotools.sandbox.process import tree as processes

# Seconds between samples while calls run, and while none does.
_BUSY_INTERVAL_S = 0.1
_IDLE_INTERVAL_S = 1.0
# Share of one processor that sampling may take.
_MAX_LOAD = 0.01
# Never more than this share while an idle sandbox would be sampled; see `ResourceMonitor._sample`.
_MAX_LOAD_OF_LARGE = 0.25
# What the kernel keeps for a socket with empty queues.
_EMPTY_SOCKET_BYTES = 4 << 10
# What it keeps for a mapping: the area, its share of the tree of areas, and two records of shared pages.
_MAPPING_BYTES = 384
# A table of 4 KiB maps 2 MiB.
_SPACE_PER_TABLE = 512
# So many mappings of a process are counted; a program has hundreds.
_FEW_MAPPINGS = 4096
_MAPS_BYTES = 1 << 16
# With so few sockets in a network, what waits in them is not worth a look; with so many, the look is not.
_FEW_SOCKETS = 64
_MANY_SOCKETS = 20_000
# Reading the exact memory of a process of this size takes 5 ms.
_QUICK_BYTES = 128 << 20
# Threads whose context switches are compared between calls. Each takes some tens of microseconds.
_MOST_COMPARED = 256
# In so many samples one after another, descriptors that nobody can look at are on their way, or a program
# that nobody may read begins and ends. In more they are hidden.
_MOST_UNSEEN_SAMPLES = 3
# The kernel counts processor time in other grains than we do: a worker killed this near to its limit was
# killed for it.
_NEAR_LIMIT = 0.9
_KEPT_CPU_SAMPLES = 8
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
# So many threads, and so many sessions of the system, for each processor keep the priority that they have.
_FEW_THREADS = 4
_FEW_SESSIONS = 2
_LOWEST_PRIORITY = 19
_RUNNING = b"\nState:\tR"
_find_tables = re.compile(rb"^VmPTE:\s*(\d+) kB$", re.MULTILINE).search
_find_counts = re.compile(rb"^(sockets|TCP6?): (?:used|inuse) (\d+)", re.MULTILINE).findall
# At the start of a line, where no name of a program stands: with a count in its name, which it may change
# whenever it has run, a program would look as if it had not.
# Whoever has no second number is in no namespace of processes below that of this /proc, and can enter none.
_has_one_number = re.compile(rb"^NSpid:\s*\d+$", re.MULTILINE).search
_find_switches = re.compile(rb"^(?:non)?voluntary_ctxt_switches:\s*(\d+)$", re.MULTILINE).findall


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsage:
    """Resources in use at one moment.

    Attributes:
        memory_bytes: Of all processes together.
        processes: Number of processes and threads.
        disk_bytes: Written since the worker started; 0 when it was not measured.
        cpu_s: Processor time of the process that has used most.
        open_files_total: Open files of all processes together, as `Limits.open_files_total` counts them.
        unseen_files: Descriptors that nobody can look at, and that may stand for any number.
    """

    memory_bytes: int = 0
    processes: int = 0
    open_files_total: int = 0
    unseen_files: int = 0
    disk_bytes: int = 0
    cpu_s: float = 0.0


def find_exceeded(usage: ResourceUsage, limits: Limits) -> LimitExceeded | None:
    """Return the first limit that is exceeded, or None."""
    for name in ("memory_bytes", "processes", "open_files_total", "disk_bytes", "cpu_s"):
        used, allowed = getattr(usage, name), getattr(limits, name)
        if allowed is not None and used > allowed:
            return LimitExceeded(limit=name, used=used, allowed=allowed)
    return None


def pause_after(cost_s: float, *, is_busy: bool) -> float:
    """Return the seconds between a sample that took `cost_s` of a processor and the next one."""
    interval_s = _BUSY_INTERVAL_S if is_busy else _IDLE_INTERVAL_S
    # Hardly less often than an idle sandbox: what is expensive to measure is large, and must be measured. But
    # never for more than a quarter of the time of one processor.
    wait_s = min(max(interval_s, cost_s / _MAX_LOAD), _IDLE_INTERVAL_S)
    return max(wait_s, cost_s / _MAX_LOAD_OF_LARGE)


def find_hidden(samples: Sequence[ResourceUsage], limits: Limits) -> LimitExceeded | None:
    """Return the limit on open files if in each of these samples there were some that nobody can look at.

    Each counts for as many as are allowed: it may be an epoll with any number of watches.
    """
    if not samples or not all(usage.unseen_files for usage in samples):
        return None
    used = samples[-1].open_files_total + samples[-1].unseen_files * limits.open_files_total
    return LimitExceeded(limit="open_files_total", used=used, allowed=limits.open_files_total)


@dataclass(frozen=True, slots=True)
class CpuSample:
    """What a sample has found of processor time.

    Attributes:
        cpu_s: Processor time of the process that had used most.
        began_s: When the sample began.
        ended_s: When it had looked at all processes.
    """

    cpu_s: float
    began_s: float
    ended_s: float


def find_cpu_kill(
    samples: Sequence[CpuSample], allowed_s: float | None, now_s: float
) -> LimitExceeded | None:
    """Return the limit on processor time if the kernel may just have killed a process for it.

    Args:
        samples: The recent samples, oldest first.
        allowed_s: The limit.
        now_s: The time, by the clock of the samples.
    """
    if allowed_s is None or not samples:
        return None
    ends = [*(sample.ended_s for sample in samples[1:]), now_s]
    for sample, end_s in zip(samples, ends, strict=True):
        # The kernel's kill comes between two samples: assume that the process ran until the next one.
        cpu_s, used_s = sample.cpu_s, sample.cpu_s + end_s - sample.began_s
        if cpu_s and used_s >= _NEAR_LIMIT * allowed_s:
            return LimitExceeded(limit="cpu_s", used=max(used_s, allowed_s), allowed=allowed_s)
    return None


# ---- measuring


def pss_bytes(pid: int) -> int:
    """Return the proportional memory of one process; 0 when it cannot be read."""
    try:
        return _read_memory_map(f"/proc/{pid}")[0]
    except OSError:
        return 0


def estimate_memory(pids: Iterable[int], budget_s: float = 0.01) -> int:
    """Return the memory of processes, exactly (PSS) as far as that is quick; for the event loop.

    A large process counts with what is resident, and so does every one after `budget_s`. That is never less,
    and costs some microseconds, where the exact number takes 40 ms for each gigabyte. It is read in a thread:
    a process that begins another program holds up whoever reads it until its memory is freed.
    """
    exact: dict[str, int] = {}
    sizes = [*_sizes(pids)]

    def measure() -> None:
        deadline_s = time.monotonic() + budget_s
        for size in sizes:
            if size.resident <= _QUICK_BYTES and time.monotonic() <= deadline_s:
                exact[size.folder] = pss_bytes(int(size.folder.split("/")[2]))

    if sizes:
        OWN.wait_for(measure, budget_s)
    return sum(exact.get(size.folder, size.resident) for size in sizes)


def _read_memory_map(folder: str) -> tuple[int, int]:
    """Return the proportional memory of a process, and how much of it is shared memory, in bytes.

    Raises:
        OSError: It cannot be read.
    """
    with open(f"{folder}/smaps_rollup", encoding="ascii") as file:
        fields = {name: value for name, _, value in (line.partition(":") for line in file)}
    pss, shared = (int(fields.get(name, "0 kB").split()[0]) for name in ("Pss", "Pss_Shmem"))
    return pss * 1024, shared * 1024


@dataclass(frozen=True, slots=True)
class _Size:
    """A process from outside: its folder in /proc, address space and resident memory in bytes."""

    folder: str
    virtual: int
    resident: int


def _sizes(pids: Iterable[int]) -> Iterator[_Size]:
    for pid in pids:
        folder = f"/proc/{pid}"
        size = _size(folder)
        if size is not None and not size.virtual:
            # A first thread that has ended shows nothing, while its other threads still run.
            with suppress(OSError):
                tasks = [f"{folder}/task/{name}" for name in os.listdir(f"{folder}/task")]
                size = next((found for found in map(_size, tasks) if found and found.virtual), size)
        if size is not None:
            yield size


def _size(folder: str) -> _Size | None:
    try:
        with open(f"{folder}/statm", "rb") as file:
            virtual, resident = file.read().split()[:2]
    except (OSError, ValueError):
        return None  # it ended meanwhile
    return _Size(folder, int(virtual) * _PAGE_BYTES, int(resident) * _PAGE_BYTES)


def shared_memory_bytes() -> int:
    """Return the shared memory of the whole machine, whoever has it; 0 when it is not known."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("Shmem:")), 0)
    except OSError:
        return 0


def _has_shared_memory(size: _Size) -> bool:
    """Return whether a process maps shared memory without a name, or may not be looked at."""
    try:
        with open(f"{size.folder}/maps", "rb") as file:
            return any(b"/dev/zero (deleted)" in line for line in file)
    except OSError:
        return True


def _measure_memory(
    sizes: list[_Size],
    limit: int | None,
    *,
    grown: int,
    kernel: int,
    read: Callable[[str], tuple[int, int]] = _read_memory_map,
) -> int:
    """Return the memory of processes: exactly if it may exceed `limit`, else at least that much.

    Args:
        sizes: The processes, by their age.
        limit: What is allowed.
        grown: How much the machine's shared memory has grown since they started.
        kernel: What the kernel may keep for them.
        read: Reads the proportional and the shared memory of one process.
    """
    # Resident memory counts shared pages once per process: it is cheap, and never less than PSS. Only when it
    # exceeds the limit are the exact numbers worth their cost.
    resident = sum(size.resident for size in sizes)
    if limit is None or resident + max(grown, 0) + kernel <= limit:
        return resident
    hidden = grown if grown > 0 and any(map(_has_shared_memory, sizes)) else 0
    if resident + hidden + kernel <= limit:
        return resident + hidden + kernel
    exact = _sum_memory(sizes, hidden=hidden, read=read)
    if exact + kernel > limit:
        # Race: memory that n processes share counts an nth for each, by their number when it is read. While
        # they become more, those that are read early count too much: 300 MiB shared by 16 processes counted
        # 1 GiB. So look again, from the youngest: a process that starts meanwhile makes the others smaller.
        exact = min(exact, _sum_memory(sizes[::-1], hidden=hidden, read=read))
    return exact + kernel


def _sum_memory(sizes: list[_Size], *, hidden: int, read: Callable[[str], tuple[int, int]]) -> int:
    private, shared = 0, 0
    for size in sizes:
        try:
            pss, of_it_shared = read(size.folder)
        except FileNotFoundError:
            continue
        except OSError:
            # It may not be looked at, or it is ending, when it does no harm to count it once more.
            pss, of_it_shared = size.resident, 0
        private += pss - of_it_shared
        shared += of_it_shared
    return private + max(shared, hidden)


def _measure_files(sizes: Iterable[_Size], limits: Limits) -> OpenFiles:
    """Return what processes have open; see `aisotools.sandbox.host.open_files`."""
    # One without memory has ended, and has none: a plain user may not look, as if it hid them. Each of a few
    # zombies would count a quarter of a gigabyte.
    return measure_files([size.folder for size in sizes if size.virtual], limits)


def _most_mappings(size: _Size) -> int:
    """Return how many mappings a process may have; each takes at least a page of its address space."""
    return min(size.virtual // _PAGE_BYTES, _max_mappings())


@functools.cache
def _max_mappings() -> int:
    try:
        with open("/proc/sys/vm/max_map_count", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 65_530  # the kernel's default


def _count_mappings(size: _Size) -> int:
    """Return how many mappings a process has: exactly if they are few, else as many as it may have."""
    count = 0
    try:
        with open(f"{size.folder}/maps", "rb", buffering=0) as file:
            while part := file.read(_MAPS_BYTES):
                count += part.count(b"\n")
                if count > _FEW_MAPPINGS:
                    return _most_mappings(size)
    except OSError:
        return _most_mappings(size)
    return count


def _table_bytes(size: _Size) -> int:
    """Return the memory of a process's page tables; as much as its address space may take if unreadable."""
    try:
        with open(f"{size.folder}/status", "rb") as file:
            found = _find_tables(file.read())
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else size.virtual // _SPACE_PER_TABLE


def _measure_mappings(sizes: list[_Size], allowed: int) -> int:
    """Return what the kernel keeps for address spaces of processes: exactly if it may exceed `allowed`."""
    most = sum(_most_mappings(size) * _MAPPING_BYTES + size.virtual // _SPACE_PER_TABLE for size in sizes)
    if most <= allowed:
        return 0
    return sum(_count_mappings(size) * _MAPPING_BYTES + _table_bytes(size) for size in sizes)


def network_bytes(pids: Iterable[int]) -> int:
    """Return the bytes that the kernel may keep for the sockets of a network of the processes' own.

    0 where their network is that of this process: there the sandbox has no sockets with an address.
    """
    for pid in pids:
        try:
            if os.stat(f"/proc/{pid}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino:
                return _network_bytes(f"/proc/{pid}/net")
        except OSError:
            continue  # it ended meanwhile; all that run are in the same network
    return 0


def _network_bytes(folder: str) -> int:
    """Return what sockets may keep by the tables of a network in a folder such as /proc/1/net."""
    counts: dict[bytes, bytes] = {}
    for name in ("sockstat", "sockstat6"):
        with suppress(OSError), open(f"{folder}/{name}", "rb") as file:
            counts.update(_find_counts(file.read()))
    connections = sum(int(counts.get(name, 0)) for name in (b"TCP", b"TCP6"))
    others = int(counts.get(b"sockets", 0)) - connections
    # Unix sockets and those for datagrams have no table that says what waits in them.
    total = max(0, others - _FEW_SOCKETS) * SOCKET_BYTES
    if connections <= _FEW_SOCKETS:
        return total
    if connections > _MANY_SOCKETS:
        return total + connections * SOCKET_BYTES
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"{folder}/{name}", "rb") as file:
            next(file, b"")
            for line in file:
                sending, _, received = line.split(None, 5)[4].partition(b":")
                # A byte in a queue may be in a buffer of its own, and small ones keep as much as large ones.
                waiting = (int(sending, 16) > 0) + (int(received, 16) > 0)
                total += _EMPTY_SOCKET_BYTES + waiting * SOCKET_BYTES // 2
    return total


def _cpu_s(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return parse_cpu_s(file.read())
    except (OSError, IndexError, ValueError):
        return 0.0  # it ended meanwhile


def parse_cpu_s(stat: bytes) -> float:
    """Return the seconds of processor time in the kernel's description of a process.

    One that runs has used some, though the kernel may not have counted any yet: on a busy machine it may use
    up all of a small limit before it is looked at again.

    Raises:
        IndexError, ValueError: If that is no such description.
    """
    fields = stat.rpartition(b")")[2].split()
    return max(int(fields[11]) + int(fields[12]), fields[0] == b"R") / _TICKS_PER_S


def measure_usage(supervisor: int, limits: Limits, shared_before: int | None = None) -> ResourceUsage:
    """Return what all processes below `supervisor` use, except disk space. 0: it is not known yet.

    Args:
        supervisor: The process above all that is measured.
        limits: What is allowed.
        shared_before: What `shared_memory_bytes` returned when they started, where that is known.
    """
    if not supervisor:
        return ResourceUsage()
    tree = processes.below(supervisor, processes.table())
    sizes = list(_sizes(sorted(tree)))
    files = _measure_files(sizes, limits)
    # By whichever is more: the descriptors know nothing of queues, the network nothing of pipes.
    kernel = max(files.kernel_bytes, network_bytes(tree))
    grown = 0 if shared_before is None else shared_memory_bytes() - shared_before
    if limits.memory_bytes is not None:
        resident = sum(size.resident for size in sizes)
        kernel += _measure_mappings(sizes, limits.memory_bytes - kernel - max(grown, 0) - resident)
    memory = _measure_memory(sizes, limits.memory_bytes, grown=grown, kernel=kernel)
    cpu_s = max(map(_cpu_s, tree), default=0.0) if limits.cpu_s is not None else 0.0
    return ResourceUsage(
        memory_bytes=memory,
        processes=sum(map(processes.count_threads, tree)),
        open_files_total=files.total,
        unseen_files=files.unseen,
        cpu_s=cpu_s,
    )


def lower_priority(supervisor: int, exempt: Collection[int], processors: int = _PROCESSORS) -> None:
    """Give the lowest priority to what there is more than a few of; the oldest keep theirs.

    Args:
        supervisor: The process above all of them.
        exempt: Processes that go on with the variables, now or after an undo. Their main threads keep theirs.
        processors: How many processors the machine has.
    """
    table = processes.table()
    tree = sorted(processes.below(supervisor, table), key=lambda pid: (table[pid].start_ticks, pid))
    threads_left = _FEW_THREADS * processors
    for pid in tree:
        count = processes.count_threads(pid) - (pid in exempt)
        if count > threads_left:
            with suppress(OSError):  # it ended meanwhile
                threads = sorted({*map(int, os.listdir(f"/proc/{pid}/task"))}.difference({pid} & {*exempt}))
                for thread in threads[threads_left:]:
                    os.setpriority(os.PRIO_PROCESS, thread, _LOWEST_PRIORITY)
        threads_left = max(threads_left - count, 0)
    members: dict[int, int] = {}
    for pid in tree:
        members.setdefault(table[pid].session, pid)
    for pid in exempt:
        if pid in table:
            members.pop(table[pid].session, None)
    for pid in [*members.values()][_FEW_SESSIONS * processors :]:
        try:
            with open(f"/proc/{pid}/autogroup", "r+b", buffering=0) as file:
                if int(file.read(64).split()[-1]) < _LOWEST_PRIORITY:
                    file.write(b"%d" % _LOWEST_PRIORITY)
        except BlockingIOError:
            break  # no more of them in this tenth of a second
        except (OSError, IndexError, ValueError):
            continue  # it ended meanwhile, or sessions are no groups of this kernel


def count_context_switches(
    supervisor: int, max_threads: float = _MOST_COMPARED, *, nested: bool = False
) -> dict[tuple[int, int], int] | None:
    """Count the context switches of each thread below a process: the same counts again mean that none ran.

    A thread that runs, or could, counts as another number each time. It is counted when it stops, and until
    then it may have a processor to itself for seconds, however often it is looked at.

    Args:
        supervisor: The process; nothing is below 0.
        max_threads: How many to look at. The event loop waits meanwhile.
        nested: Whether the sandbox has a namespace of processes of its own, as at level `isolated`. Then what
            the supervisor itself has forked, to mount what rules deny, is not in there and does not count.

    Returns:
        A count for each pair of process id and thread id; empty when nothing is there. None when there are
        more than may be looked at: then nobody knows whether one ran.
    """
    try:
        found = processes.descendants(supervisor, max_threads=max_threads)
    except processes.TooManyProcesses:
        return None
    return count_switches(found, nested=nested)


def count_switches(pids: Iterable[int], *, nested: bool = False) -> dict[tuple[int, int], int]:
    """Count the context switches of each thread of some processes; see `count_context_switches`."""
    counts: dict[tuple[int, int], int] = {}
    for pid in pids:
        with suppress(OSError):  # it ended meanwhile
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
                    status = file.read()
                if nested and _has_one_number(status):
                    continue
                switches = sum(map(int, _find_switches(status)))
                counts[pid, int(thread)] = -time.monotonic_ns() if _RUNNING in status else switches
    return counts


# ---- monitoring


class ResourceMonitor:
    """Samples a running sandbox from a thread, until it is stopped."""

    def __init__(
        self,
        supervisor: Callable[[], int],
        limits: Limits,
        *,
        folders: Iterable[str],
        is_busy: Callable[[], bool],
        on_exceeded: Callable[[LimitExceeded], None],
        exempt_pids: Callable[[], Collection[int]] = list,
    ) -> None:
        """Start sampling.

        Args:
            supervisor: Returns the process above all that is measured; 0 while that is not known.
            limits: What is allowed.
            folders: Where the sandbox may write.
            is_busy: Returns whether calls run; an idle sandbox is sampled less often.
            on_exceeded: Called for each sample that exceeds a limit.
            exempt_pids: Returns the worker and the processes that hold snapshots; see `lower_priority`.
        """
        self._supervisor = supervisor
        self._limits = limits
        self._is_busy = is_busy
        self._on_exceeded = on_exceeded
        self._exempt_pids = exempt_pids
        self._disk = DiskUsage(folders, limits)
        self._shared_before = shared_memory_bytes()
        self._walk_task: asyncio.Task[None] | None = None
        self._sample_task: asyncio.Task[None] | None = None
        self._reported_disk_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_BUSY_INTERVAL_S, self._begin_sample)
        self._rested_at_s = 0.0  # when the next sample may be, by what the last one has cost
        self._stopped = False
        # Race: samples may come between the kernel's kill and the news of it, on a busy machine several. They
        # no longer show the process that used the time, so those before are kept too.
        self._cpu_samples: deque[CpuSample] = deque(maxlen=_KEPT_CPU_SAMPLES)
        self._recent: deque[ResourceUsage] = deque(maxlen=_MOST_UNSEEN_SAMPLES + 1)

    def __repr__(self) -> str:
        return f"<ResourceMonitor of {self._supervisor()}{', stopped' if self._stopped else ''}>"

    def stop(self) -> None:
        """Stop sampling."""
        self._stopped = True
        self._timer.cancel()
        for task in (self._walk_task, self._sample_task):
            if task is not None:
                cancel_future(task)

    def note_call(self) -> None:
        """Sample soon: a call begins, and the next sample may be as far away as that of an idle sandbox."""
        soon_s = max(self._loop.time() + _BUSY_INTERVAL_S, self._rested_at_s)
        # One that is under way, and sets the timer afterwards, sees the call itself.
        if not self._stopped and soon_s < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(soon_s, self._begin_sample)

    def post_mortem(self, signal_number: int = 0) -> LimitExceeded | None:
        """Return the limit for which the kernel has killed a process, as far as can be known.

        Args:
            signal_number: The signal that ended it; 0 if that is not known.
        """
        allowed_s = self._limits.cpu_s
        if signal_number == signal.SIGXCPU and allowed_s is not None:
            # The kernel counts whole seconds.
            return LimitExceeded(limit="cpu_s", used=math.ceil(allowed_s), allowed=allowed_s)
        return find_cpu_kill([*self._cpu_samples], allowed_s, time.monotonic())

    def _begin_sample(self) -> None:
        self._sample_task = self._loop.create_task(self._sample())

    async def _sample(self) -> None:
        cost_s = 0.0
        # On a busy machine the thread starts and answers late. What a process used meanwhile must count as
        # used after this sample, or the kernel's kill for processor time would go without its reason.
        began_s = time.monotonic()
        try:
            # The processes are hostile: one look at sixty forks of a gigabyte takes seconds.
            usage, cost_s = await in_thread(self._measure, self._exempt_pids())
            if self._stopped:
                return
            self._cpu_samples.append(CpuSample(usage.cpu_s, began_s, time.monotonic()))
            self._recent.append(usage)
            exceeded = find_exceeded(usage, self._limits)
            if exceeded is None and len(self._recent) == self._recent.maxlen:
                exceeded = find_hidden(self._recent, self._limits)
            if exceeded is not None:
                self._recent.clear()
                self._on_exceeded(exceeded)
                if exceeded.limit == "open_files_total":
                    # What was expensive has ended. A pause for it would give the next attempt time for more,
                    # which would be more expensive, and so on.
                    cost_s = 0.0
            if self._walk_task is None and self._disk.is_due():
                self._walk_task = self._loop.create_task(self._walk())
        finally:
            # Also after an error: a limit that is not checked any more is not a limit.
            is_unclear = bool(self._recent and self._recent[-1].unseen_files)
            wait_s = pause_after(cost_s, is_busy=is_unclear or self._is_busy())
            self._rested_at_s = self._loop.time() + pause_after(cost_s, is_busy=True)
            # Case: the loop was closed under this task, which ends when it is collected.
            if not self._stopped and not self._loop.is_closed():
                self._timer = self._loop.call_later(wait_s, self._begin_sample)

    def _measure(self, exempt: Collection[int]) -> tuple[ResourceUsage, float]:
        began_s = time.thread_time()
        supervisor = self._supervisor()
        usage = measure_usage(supervisor, self._limits, self._shared_before)
        if usage.processes > _FEW_THREADS * _PROCESSORS:
            lower_priority(supervisor, exempt)
        return usage, time.thread_time() - began_s

    async def accept_disk(self) -> None:
        """Count all that is written by now as reported; called before the end of a call stopped for it.

        What it wrote between the look and its end would otherwise be charged to the next call.
        """
        if self._walk_task is not None:
            await asyncio.wait([self._walk_task])
        used = await in_thread(self._disk.used_bytes, self._supervisor())
        self._reported_disk_bytes = max(self._reported_disk_bytes, used)

    async def _walk(self) -> None:
        try:
            used = await in_thread(self._disk.used_bytes, self._supervisor())
        finally:
            self._walk_task = None
        exceeded = find_exceeded(ResourceUsage(disk_bytes=used), self._limits)
        # After it was reported, only more of it counts: a call that deletes files must be able to run.
        if exceeded is not None and used > self._reported_disk_bytes and not self._stopped:
            self._reported_disk_bytes = used
            self._on_exceeded(exceeded)
