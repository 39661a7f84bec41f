"""When nothing of some sandboxes has run, and when nothing of them has written into a file.

Threat
    A person saves a file while a call runs: nobody else can tell that from what the call does. Or code in the
    sandbox hides that it runs or writes.
Mechanism
    The kernel counts how often each thread was switched, and how often each process has called it to write.
    It lists what a process has mapped, which can be written without a call. The host compares two looks.
    A child that has come and gone between them shows in the page faults that are charged to its parent.
    A process that begins another program holds up whoever looks at what it has mapped or written, for as long
    as its memory takes to be freed. So that is read in a thread: see `IdleTimes.observe`.
Race window
    A process that writes has changed the file before that is counted, so a look counts when the one after it
    has found the same. What was mapped between two looks only, a file that is cut off, one that is spliced or
    cloned, and a grandchild whose parent is gone as well are not noticed.
When it fails
    What cannot be looked at may have run and written. Code can hide that it writes, and not that it runs: so
    a change while nothing was written is never certainly somebody else's.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aisotools.sandbox.host.monitor import count_switches
from aisotools.sandbox.process import tree
from aisotools.workspace.dirfd import file_time

_MOST_COMPARED = 64  # threads, of which each takes some tens of microseconds
_LIST_BYTES = 1 << 12
_REMEMBERED_SPANS = 1_000
_find_written = re.compile(rb"^syscw: (\d+)", re.MULTILINE).search
# Mapped, for others to see what is written: semaphores and the like are.
_find_shared = re.compile(rb"^[0-9a-f-]+ .w.s [0-9a-f]+ [0-9a-f:]+ \d+ +(.*)$", re.MULTILINE).finditer
_SHARED_MEMORY = (b"/dev/shm/sem.", b"/dev/zero", b"/memfd:", b"/SYSV")


class Observation(NamedTuple):
    """What one look at some sandboxes has found.

    Attributes:
        counts: How often each thread was switched, by process and thread; empty if nobody can tell.
        writes: How often each process has written, and the page faults of its children that have ended.
        is_mapped: Whether a file is mapped that may be written; False if `writes` has changed.
        began_ns: When it began, as files are stamped.
        ended_ns: When it ended.
    """

    counts: Mapping[tuple[int, int], int]
    writes: Mapping[int, tuple[int, int]]
    is_mapped: bool
    began_ns: int
    ended_ns: int


class IdleTimes:
    """When no thread of some sandboxes has run, or none has written, as far as the host has looked.

    Attributes:
        spans: When none has run: begin and end, in nanoseconds since the epoch as files are stamped; the
            latest.
        unwritten: The same of when none has written into a file. A process can hide that it did.
    """

    def __init__(self) -> None:
        """Start without a look."""
        self.spans: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED_SPANS)
        self.unwritten: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED_SPANS)
        self._writes: Mapping[int, tuple[int, int]] = {}
        self._unconfirmed: tuple[int, int] | None = None
        self._goes_on = False
        self._maps: dict[int, tuple[set[tuple[int, int]], bool]] = {}
        self._counts: Mapping[tuple[int, int], int] | None = None
        self._since_ns = 0
        self._is_idle = False

    def look(self, supervisors: Iterable[int]) -> bool:
        """Look at these processes and note what was found; see `observe` and `note`."""
        return self.note(self.observe(supervisors))

    def observe(self, supervisors: Iterable[int]) -> Observation:
        """Look at what runs below these processes, in any thread. `note` it before the next look begins."""
        # A file that is changed from now on may get the time of the clock tick that has begun before.
        until_ns = file_time()
        counts: dict[tuple[int, int], int] = {}
        running: set[int] = set()
        try:
            for supervisor in supervisors:
                pids = tree.descendants(supervisor, max_threads=_MOST_COMPARED)
                counts |= count_switches(pids)
                running |= pids
        except tree.TooManyProcesses:
            counts, running = {}, set()
        writes = _count_writes(running)
        is_mapped = bool(writes) and writes == self._writes and self._any_maps_files(writes, counts)
        return Observation(counts, writes, is_mapped, until_ns, time.time_ns())

    def note(self, seen: Observation) -> bool:
        """Compare a look with the one before.

        Returns:
            False if there are too many threads, or nobody to look at. Then looking again is of no use.
        """
        self._note_writes(seen)
        counts, until_ns = seen.counts, seen.began_ns
        # What runs at the moment of both looks has counts that are never equal.
        if not counts or counts != self._counts:
            self._is_idle = False
        elif self._is_idle:  # during the last look itself as well
            self.spans[-1] = self.spans[-1][0], until_ns
        else:
            self.spans.append((self._since_ns, until_ns))
            self._is_idle = True
        self._counts, self._since_ns = counts, seen.ended_ns
        return bool(counts)

    def _note_writes(self, seen: Observation) -> None:
        writes, until_ns = seen.writes, seen.began_ns
        is_calm = bool(writes) and writes == self._writes and not seen.is_mapped
        if is_calm and self._unconfirmed is not None:
            # Race: a call that writes has changed the file before the kernel counts it. So a time counts when
            # the look after it has found the same.
            begin, end = self._unconfirmed
            if self._goes_on:
                begin, _ = self.unwritten.pop()
            self.unwritten.append((begin, end))
        self._goes_on = is_calm and self._unconfirmed is not None
        self._unconfirmed = (self._since_ns, until_ns) if is_calm else None
        self._writes = writes

    def _any_maps_files(self, pids: Iterable[int], counts: Mapping[tuple[int, int], int]) -> bool:
        switches: dict[int, set[tuple[int, int]]] = {pid: set() for pid in pids}
        for (pid, thread), count in counts.items():
            switches.setdefault(pid, set()).add((thread, count))
        # To list what a process has mapped takes half a millisecond. One that has not run has mapped nothing.
        self._maps = {
            pid: known if (known := self._maps.get(pid)) and known[0] == now else (now, maps_files(pid))
            for pid, now in switches.items()
        }
        return any(maps for _, maps in self._maps.values())


def _count_writes(pids: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return for each process how often it has written, and the page faults of children that have ended.

    A child that was started and has ended between two looks shows in the second number. Nothing is returned
    if one of the processes has ended or cannot be looked at, or if the kernel does not count.
    """
    counts = {}
    try:
        for pid in pids:
            with open(f"/proc/{pid}/io", "rb") as file:
                found = _find_written(file.read(_LIST_BYTES))
            with open(f"/proc/{pid}/stat", "rb") as file:
                faults = file.read(_LIST_BYTES).rpartition(b")")[2].split()[8]
            if found is None:
                return {}
            counts[pid] = int(found[1]), int(faults)
    except (OSError, IndexError, ValueError):
        return {}
    return counts


def maps_files(pid: int) -> bool:
    """Return whether a process has a file mapped so that it can write it without a system call."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            maps = file.read()
    except OSError:
        return True  # it may not be looked at, or has ended
    return any(not mapped[1].startswith(_SHARED_MEMORY) for mapped in _find_shared(maps))
