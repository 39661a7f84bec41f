"""Whose a process is: what a timeout or a stop of one call ends, and what it spares.

Threat
    Code in the sandbox starts a process that is to outlive a timeout, a stop or `task_stop`: it detaches it,
    clears or copies its environment, changes its group, makes it a child of somebody else, or waits until the
    number of a process that is spared is free again.
Mechanism
    Nothing is spared for what it says about itself. A process belongs to a background task if by the kernel's
    links it stands below the task's keeper (see `sandbox.worker.keeper`), which adopts every orphan below it
    and ends last. It belongs to a call that runs if it stands below a program that the worker has named for
    the call when it started it, or is in that program's session, which nobody can join; or below a child of
    the worker that was started since the call began, if that call may start programs without naming them.
    A call that names its program may have started it and not named it yet: for each of them one child of the
    worker is spared, the youngest since it began. Once all of these calls have named theirs or are over, it
    ends if it is none of them.
    Everything else belongs to nobody and ends, that of ended calls and tasks included. A keeper is known by
    its number and its time of start together.
Race window
    Among calls that start programs unnamed and run at the same moment on the main thread, what one starts
    cannot be told from what another starts: only what is older than the stopped call is spared then. A
    program that is not named yet is taken for nobody's if a thread has started a younger one since. A thread
    that an earlier call has left in the worker starts programs in the name of such a call as long as that
    runs, and so may a call's code that changes the worker itself: it can name a program in the place of the
    one that was asked for, one for each call, and for a task only while its call runs.
When it fails
    What cannot be read or found belongs to nobody. If a keeper is killed, or its worker, what it had below it
    is adopted by process 1 of the sandbox or by the supervisor, and ends at the next stop.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aisotools.sandbox.process import tree

MAX_TASKS = 256
"""Background tasks that are spared at a time, in one sandbox."""

_MAX_CHILDREN = 4_000  # in a scope: numbers of up to eight characters, in a packet of 64 KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStart:
    """When a call began that may start programs without naming them.

    Attributes:
        ticks: The clock tick in which it began.
        children: The worker's children that were there before; None if they are not known.
    """

    ticks: int
    children: frozenset[int] | None = None

    def as_json(self) -> list[Any]:
        """Return it as JSON."""
        return [self.ticks, None if self.children is None else sorted(self.children)]

    @classmethod
    def parse(cls, start: Sequence[Any]) -> CallStart:
        """Return what `as_json` has described."""
        ticks, children = start
        return cls(ticks=ticks, children=None if children is None else frozenset(children))

    def is_before(self, pid: int, process: tree.Process) -> bool:
        """Return whether a child of the worker was started after this; False if that cannot be told."""
        if process.start_ticks != self.ticks:
            return process.start_ticks > self.ticks
        # Within one tick, which is a hundredth of a second, the time does not tell.
        return self.children is not None and pid not in self.children


@dataclass(frozen=True, slots=True, kw_only=True)
class StopScope:
    """What stopping a call must not end; `as_json` is its form on the control socket.

    Numbers of processes are those of the sandbox's own process namespace, as the worker has named them.

    Attributes:
        programs: Programs that the worker has named for other calls that run.
        own: The program that it has named for the call itself; 0 for none.
        own_task: The key of the background task that the call itself has started; empty for none.
        starts: When those of the other calls began that may start programs without naming them.
        expected: When those of them began that name their program, and have not done so yet.
        until_ticks: When the call itself began, if it may do that too: what is not older may be its own.
    """

    programs: tuple[int, ...] = ()
    own: int = 0
    own_task: str = ""
    starts: tuple[CallStart, ...] = ()
    expected: tuple[CallStart, ...] = ()
    until_ticks: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON, which fits into one packet whatever children the worker has.

        Of many calls, it knows the children before the first ones only.
        """
        children_left, starts = _MAX_CHILDREN, []
        for start in (*self.starts, *self.expected):
            children_left -= len(start.children or ())
            starts.append(start.as_json() if children_left >= 0 else [start.ticks, None])
        return {
            "programs": list(self.programs),
            "own": self.own,
            "own_task": self.own_task,
            "starts": starts[: len(self.starts)],
            "expected": starts[len(self.starts) :],
            "until": self.until_ticks,
        }

    @classmethod
    def parse(cls, scope: Mapping[str, Any]) -> StopScope:
        """Return what `as_json` has described."""
        return cls(
            programs=tuple(scope["programs"]),
            own=scope["own"],
            own_task=scope["own_task"],
            starts=tuple(map(CallStart.parse, scope["starts"])),
            expected=tuple(map(CallStart.parse, scope["expected"])),
            until_ticks=scope["until"],
        )


@dataclass(frozen=True, slots=True)
class _Keeper:
    """The keeper of a task; both numbers and its time of start never change.

    Attributes:
        pid: Its process id.
        inside: Its number in the sandbox's own process namespace.
        start_ticks: When it was started. Its number may become another's, which was started later.
    """

    pid: int
    inside: int
    start_ticks: int

    def is_in(self, processes: tree.Table) -> bool:
        """Return whether it still runs."""
        process = processes.get(self.pid)
        return process is not None and process.start_ticks == self.start_ticks


@dataclass(slots=True)
class TaskKeepers:
    """The keepers of the background tasks below one supervisor."""

    _keepers: dict[str, _Keeper] = field(default_factory=dict)

    def add(self, key: str, inside: int, worker: int) -> None:
        """Note the keeper of a task, if it is a child of the worker and the task has none yet.

        Args:
            key: Names the task.
            inside: The keeper's number in the worker's process namespace.
            worker: The worker.
        """
        # Those that have ended make room: nothing is below them any more.
        present = tree.table(keeper.pid for keeper in self._keepers.values())
        self._keepers = {name: one for name, one in self._keepers.items() if one.is_in(present)}
        if key in self._keepers or len(self._keepers) >= MAX_TASKS:
            return
        processes = tree.table()
        for pid in tree.children_by_parent(processes).get(worker, ()):
            if tree.number_inside(pid) == inside:
                self._keepers[key] = _Keeper(pid, inside, processes[pid].start_ticks)
                return

    def pids(self, processes: tree.Table, *, but: str = "") -> set[int]:
        """Return the keepers that still run, but for that of one task."""
        return {keeper.pid for key, keeper in self._keepers.items() if key != but and keeper.is_in(processes)}

    def numbered(self, inside: int, processes: tree.Table) -> list[int]:
        """Return the keeper with this number inside, if it still runs."""
        return [
            keeper.pid
            for keeper in self._keepers.values()
            if keeper.inside == inside and keeper.is_in(processes)
        ]

    def below(self, inside: int) -> set[int]:
        """Return what runs below the keeper with this number inside; nothing if that is no keeper's."""
        processes = tree.table()
        return tree.below_all(self.numbered(inside, processes), processes)


def find_sweepable(
    processes: tree.Table,
    root: int,
    *,
    worker: int,
    scope: StopScope,
    keepers: Collection[int] = (),
    init: int = 0,
    exempt: Collection[int] = (),
    number_inside: Callable[[int], int] = tree.number_inside,
) -> set[int]:
    """Return what runs below `root` and belongs to nobody that is to be spared; never the worker.

    Args:
        processes: The process table.
        root: The worker's supervisor.
        worker: The worker.
        scope: What is to be spared of other calls.
        keepers: Keepers of the tasks to be spared.
        init: The process that adopts orphans below `root`; 0 if `root` itself does.
        exempt: Further processes to leave out; what runs below them is not left out.
        number_inside: Returns the number of a process in its own process namespace.
    """
    programs, own = named_programs(processes, worker, scope, exempt, number_inside)
    # A daemon that has detached itself is a child of the subreaper, which is `root` or, in a process
    # namespace of its own, `init`: start from all three, not from the worker alone.
    fixed = {root, init, worker, *exempt}
    candidates = tree.below_all([pid for pid in (root, init, worker) if pid], processes) - fixed
    children = [pid for pid in tree.children_by_parent(processes).get(worker, ()) if pid in candidates]
    spared = {
        *candidates.intersection(keepers),
        *_unnamed(children, processes, scope).difference(programs, own),
    }
    programs |= _expected({*children} - spared - programs - own, processes, scope)
    spared |= {*programs, *(pid for pid in candidates if processes[pid].session in programs)}
    return candidates - spared - tree.below_all(spared, processes)


def find_expected(
    processes: tree.Table,
    *,
    worker: int,
    scope: StopScope,
    keepers: Collection[int] = (),
    exempt: Collection[int] = (),
    number_inside: Callable[[int], int] = tree.number_inside,
) -> set[int]:
    """Return what `find_sweepable` spares since a call may name it; see there for the arguments."""
    if not scope.expected:
        return set()
    programs, own = named_programs(processes, worker, scope, exempt, number_inside)
    children = {*tree.children_by_parent(processes).get(worker, ())}.difference(exempt, keepers)
    children -= _unnamed([*children], processes, scope).difference(programs, own)
    return _expected(children - programs - own, processes, scope)


def named_programs(
    processes: tree.Table,
    worker: int,
    scope: StopScope,
    exempt: Collection[int] = (),
    number_inside: Callable[[int], int] = tree.number_inside,
) -> tuple[set[int], set[int]]:
    """Return the programs that were named for other calls, and those for the stopped call itself."""
    if not scope.programs and not scope.own:
        return set(), set()
    children = set(tree.children_by_parent(processes).get(worker, ())).difference(exempt)
    inside = {pid: number_inside(pid) for pid in children}
    return (
        {pid for pid in children if inside[pid] in scope.programs},
        {pid for pid in children if scope.own and inside[pid] == scope.own},
    )


def _expected(children: Collection[int], processes: tree.Table, scope: StopScope) -> set[int]:
    """Return the worker's children that calls may be about to name: one for each, and the youngest.

    More would let hostile code keep whatever it starts, by a call that names nothing. One it can keep by a
    wrong name as well.
    """
    youngest = sorted(children, key=lambda pid: (processes[pid].start_ticks, pid), reverse=True)
    found: set[int] = set()
    for start in scope.expected:
        candidates = (pid for pid in youngest if pid not in found and start.is_before(pid, processes[pid]))
        found.update(itertools.islice(candidates, 1))
    return found


def _unnamed(children: Sequence[int], processes: tree.Table, scope: StopScope) -> set[int]:
    """Return the worker's children that are another call's which does not name its programs."""
    return {
        pid
        for pid in children
        if (scope.until_ticks is None or processes[pid].start_ticks < scope.until_ticks)
        and any(start.is_before(pid, processes[pid]) for start in scope.starts)
    }
