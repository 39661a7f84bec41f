"""Killing processes: all of a tree, or some of it with what their end would set free.

Threat: the end of a process continues others. When the last one ends that ties a process group to its
session, the kernel sends SIGHUP and SIGCONT to the group if anything in it is stopped: what a call had left
stopped then writes files which an undo has just put back.
Mechanism: such groups are killed as well, and whatever was started later is killed first, so that nothing is
left to continue when a parent ends.
Race: processes come and go meanwhile. Whoever kills has frozen them, or looks again until nothing is left.
Failure: what the kernel does not let go of, such as a process that waits for a dead disk, is left behind.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from aisotools.sandbox.process.tree import Process, children_by_parent, children_of, reap, send_signal, table

_CATCHES = 50  # looks for a process that forks and ends on and on, in one round of `kill_all`
_KILL_ROUND_S = 0.001  # pause between two scans of `kill_all`: SIGKILL is delivered within microseconds


def youngest_first(pids: Collection[int], processes: Mapping[int, Process] | None = None) -> list[int]:
    """Return processes in the order in which to kill them: a child before its parent.

    Args:
        pids: Process ids.
        processes: What is known of them; read now without it.
    """
    known = table(pids) if processes is None else processes

    def started(pid: int) -> tuple[int, int]:
        return known[pid].start_ticks if pid in known else 0, pid

    return sorted(pids, key=started, reverse=True)


def with_orphans(pids: Iterable[int], stopped: Collection[int], processes: Mapping[int, Process]) -> set[int]:
    """Return `pids` with those of `stopped` that the kernel may continue when these end.

    Args:
        pids: The processes that are to end.
        stopped: Those that are stopped and may end with them.
        processes: The table of processes.
    """
    children = children_by_parent(processes)
    members: dict[int, list[int]] = {}
    for pid in stopped:
        if pid in processes:
            members.setdefault(processes[pid].group, []).append(pid)
    found: set[int] = set()
    todo = [*pids]
    while todo:
        pid = todo.pop()
        if pid in found:
            continue
        found.add(pid)
        # Its own group loses a member that may have tied it to the session, a child's group a parent outside.
        for one in (pid, *children.get(pid, ())):
            if one in processes:
                todo += members.get(processes[one].group, ())
    return found


class OrphanWatch:
    """Catches processes that fork and end, on and on, faster than a table of all can be read.

    Each of them ends soon after it was found, and what it has started is adopted by a subreaper: so there a
    new child is seen at once, if it is looked for again and again, and can be stopped within microseconds.
    """

    def __init__(
        self,
        subreapers: Iterable[int],
        is_spared: Callable[[int, Process], bool] = lambda _pid, _process: False,
    ) -> None:
        """Watch the children of `subreapers`, which have one thread each.

        Args:
            subreapers: The processes that adopt what is to be killed.
            is_spared: Returns whether one of their children is to be left alone.
        """
        self._subreapers = [*subreapers]
        self._is_spared = is_spared
        self._known: set[int] = set()

    def __repr__(self) -> str:
        return f"<OrphanWatch below {self._subreapers}>"

    def note_children(self) -> None:
        """Note which children there are."""
        self._known = self._children()

    def catch(self) -> bool:
        """Stop the children that have come since the last look. Return whether there were any to stop."""
        found = False
        for _ in range(_CATCHES):
            new = self._children() - self._known
            if not new:
                break
            for pid in new:
                process = table([pid]).get(pid)
                # One that is gone already has left another, which comes next.
                if process is None:
                    found = True
                elif not self._is_spared(pid, process):
                    send_signal(pid, signal.SIGSTOP)
                    found = True
            self._known |= new
        return found

    def _children(self) -> set[int]:
        found: set[int] = set()
        for pid in self._subreapers:
            # Gone, or a kernel that has no such lists.
            with suppress(OSError):
                found |= children_of(pid, [str(pid)])
        return found


def kill_all(
    find: Callable[[], set[int]], *, within_s: float, watch: OrphanWatch | None = None
) -> dict[int, int]:
    """Kill what `find` returns, again and again until it returns nothing, and reap our children among them.

    Bounded in time: what the kernel does not let go of (a process that waits for a dead disk) is left behind.

    Args:
        find: Returns the processes to kill, as of now.
        within_s: Give up after this many seconds.
        watch: Tells whether something has come and gone while `find` looked, and stops it.

    Returns:
        The children that ended: process id to wait status.
    """
    ended: dict[int, int] = {}
    deadline_s = time.monotonic() + within_s
    while True:
        # Race: a fork bomb starts children faster than it can be scanned, and each kill leaves a survivor.
        # So stop first, which a process can neither catch nor ignore, and scan again until nobody new is
        # found: a stopped process cannot fork.
        frozen: set[int] = set()
        if watch is not None:
            watch.note_children()
        while new := find() - frozen:
            for pid in new:
                send_signal(pid, signal.SIGSTOP)
            frozen |= new
        # Race: a process that forks and ends on and on is never there when it is looked at. What has come
        # meanwhile is stopped at once; the next round kills it.
        has_missed = watch is not None and watch.catch()
        for pid in youngest_first(frozen):
            send_signal(pid, signal.SIGKILL)
        # Their own children are ours now, if we are the subreaper: the next round finds them. Reap in each
        # round: process 1 of a namespace stays, killed as it is, until all zombies in there are reaped.
        reaped = reap()
        ended |= reaped
        # Race: a child that ended after `find` had looked has left us its own children, and reaping it takes
        # away the last sign of that. So go on until a round in which none has ended.
        if not (frozen or has_missed or reaped) or time.monotonic() > deadline_s:
            return ended
        if not has_missed:
            time.sleep(_KILL_ROUND_S)
