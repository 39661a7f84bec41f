"""The snapshots of one worker's variables, in the order of time: which are retained, and which can be shared.

A snapshot is a fork of the live worker that waits to be woken. The newest are all retained, of the older ones
a number that grows with the logarithm of their age, and memory is bounded for all together.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aisotools.core.exceptions import SandboxError
from aisotools.core.threads import start_in_thread
from aisotools.sandbox.host import fork_observation
from aisotools.sandbox.host.connection import WorkerConnection
from aisotools.sandbox.host.fork_handle import ForkSnapshot, ForkSocket
from aisotools.sandbox.process import tree

# The newest snapshots are all retained; of the older ones a number that grows with the logarithm of their
# age.
_RECENT = 8
# Each is a process, of which the host holds two descriptors: 42 for a session that undoes nothing.
_MAX_SNAPSHOTS = 20
# Memory for all snapshots: a share of the machine's, or of its control group's.
_MEMORY_SHARE = 4
_MAX_MEMORY_BYTES = 1 << 30
_CGROUP_LIMIT = "/sys/fs/cgroup/memory.max"
# Snapshots share memory with the worker until it writes. They are measured this long after a call.
_MEASURE_DELAY_S = 0.2
# To measure them takes at most a fortieth of the time, unless they would be measured less often than this.
_PAUSE = 40
_MAX_DELAY_S = 2.0
# Calls that go without a snapshot, the slow one included, after a fork that was too slow.
_SKIPPED_CALLS = 8
# Calls for which it is remembered why they have no snapshot.
_REMEMBERED_REASONS = 1024
_HAS_THREADS = "code that Python runs in each fork (os.register_at_fork) started threads in the snapshot"
# Killed forks whose end undo waits for. It takes them milliseconds, so only the last ones may be there yet.
_REMEMBERED_KILLED = 64


def select_retained(numbers: Sequence[int]) -> set[int]:
    """Return which snapshots to retain: the last eight, one in two, one in four, and so on; and the first.

    Args:
        numbers: The snapshots, numbered in time, in order.
    """
    if not numbers:
        return set()
    newest = numbers[-1]
    retained = [n for n in numbers if n % (1 << max(0, ((newest - n) // _RECENT).bit_length())) == 0]
    recent = [n for n in numbers if newest - n < _RECENT]
    return {numbers[0], *sorted({*retained, *recent})[-_MAX_SNAPSHOTS:]}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Memory that snapshots may take.

    Attributes:
        max_bytes: For all snapshots together, not counting what they share with others.
    """

    max_bytes: int

    @classmethod
    def of_this_machine(cls) -> MemoryBudget:
        """Return a quarter of the memory of this machine or container, and at most a gibibyte."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        # "max" in the file is not a number, and no limit.
        with contextlib.suppress(OSError, ValueError), open(_CGROUP_LIMIT, encoding="ascii") as file:
            total = min(total, int(file.read()))
        return cls(max_bytes=min(total // _MEMORY_SHARE, _MAX_MEMORY_BYTES))

    def excess(self, sizes: Mapping[int, int]) -> list[int]:
        """Return which snapshots must go: the largest first, and never the newest.

        Args:
            sizes: Memory in bytes that each snapshot keeps for itself, by its number.
        """
        total = sum(sizes.values())
        excess: list[int] = []
        for number in sorted(sizes, key=lambda n: sizes[n], reverse=True):
            if total <= self.max_bytes:
                break
            if number != max(sizes):
                excess.append(number)
                total -= sizes[number]
        return excess


class SnapshotStore:
    """The snapshots of one tree of processes, in the order of time.

    Attributes:
        snapshots: Those on the way to the present, the oldest first.
        undone: The ways that were left by undo, the latest last. Each begins with the snapshot that was
            restored, so that the last of them begins with the present, and time goes on from its end to the
            beginning of the one before.
        unsettled: Forks that were requested, for whatever purpose, and of which nothing is known yet.
        killed: The last forks that were killed; they may be there for a moment yet.
    """

    def __init__(
        self,
        *,
        slow_s: float,
        budget: MemoryBudget,
        on_dropped: Callable[[Sequence[str], str], None] | None = None,
    ) -> None:
        """Create an empty store.

        Args:
            slow_s: After a fork that took longer, in seconds of processor time, some calls go without.
            budget: How much memory the snapshots may take.
            on_dropped: Called with the calls that have no snapshot, or no longer, and the reason, unless the
                worker has ended or another call has taken the place of what was undone.
        """
        self.snapshots: list[ForkSnapshot] = []
        self.undone: list[list[ForkSnapshot]] = []
        self.unsettled: set[ForkSnapshot] = set()
        self.killed: deque[int] = deque(maxlen=_REMEMBERED_KILLED)
        self._slow_s = slow_s
        self._budget = budget
        self._on_dropped = on_dropped
        self._last_number = 0
        # Forks that live or may not have been reaped yet: no child processes of user code.
        self._fork_pids: set[int] = set()
        self._calls_to_skip = 0
        self._reasons: OrderedDict[str, str] = OrderedDict()
        # True while no call has been sent that may have changed the variables since the newest snapshot.
        self._newest_is_present = False
        # The number of the snapshot that a call shares with an earlier one, by call id.
        self._shared: OrderedDict[str, int] = OrderedDict()
        self._measurement: asyncio.TimerHandle | None = None
        self._measured_s = 0.0  # how long it took the last time

    def __repr__(self) -> str:
        undone = sum(map(len, self.undone))
        return f"<SnapshotStore of {len(self.snapshots)} snapshots, {undone} undone>"

    def all(self) -> list[ForkSnapshot]:
        """Return every snapshot, the undone ones last."""
        snapshots = list(self.snapshots)
        for way in self.undone:
            snapshots += way
        return snapshots

    @property
    def current(self) -> ForkSnapshot | None:
        """The snapshot that equals the present variables: restored, or taken, with no change since."""
        if self.undone and self.undone[-1]:
            return self.undone[-1][0]
        return self.snapshots[-1] if self._newest_is_present and self.snapshots else None

    def find(self, call_id: str) -> ForkSnapshot | None:
        """Return the snapshot from before a call, which may be undone, or None."""
        number = self._shared.get(call_id)
        for snapshot in self.all():
            if snapshot.point.call_id == call_id or snapshot.number == number:
                return snapshot
        return None

    def pids(self) -> list[int]:
        """Return the processes that hold snapshots."""
        snapshots = itertools.chain(self.snapshots, *self.undone)
        return [one.socket.pid for one in snapshots if one.socket.pid and not one.drop_reason]

    def eviction_reason(self, call_id: str) -> str:
        """Return why no snapshot from before `call_id` exists."""
        return self._reasons.get(call_id, "no snapshot was taken for this call")

    def share_newest(self, call_id: str) -> bool:
        """Let a call that changes no variable share the newest snapshot, if that equals the variables now.

        Returns:
            False if there is no such snapshot, so that the call needs its own.
        """
        newest = self.current
        if newest is None or newest.drop_reason:
            return False
        self._shared[call_id] = newest.number
        if len(self._shared) > _REMEMBERED_REASONS:
            self._shared.popitem(last=False)
        return True

    def add(self, connection: WorkerConnection, call_id: str, *, is_present: bool = False) -> None:
        """Take a snapshot before the call that is about to be sent. Nobody waits for it.

        Args:
            connection: The worker that the call will be sent to.
            call_id: The call.
            is_present: True if the snapshot equals the present variables also after the call.
        """
        self._newest_is_present = False
        if self._calls_to_skip:
            self._calls_to_skip -= 1
            self._report([call_id], "the last fork took so long that some calls went without a snapshot")
            return
        try:
            snapshot = self.fork(connection, call_id)
        except SandboxError as error:
            self._report([call_id], str(error))
            return
        self.snapshots.append(snapshot)
        self._newest_is_present = is_present
        snapshot.settled.add_done_callback(lambda _: self._on_settled(snapshot))
        # It takes half a millisecond. By then the call has been sent, and the loop waits for its result.
        asyncio.get_running_loop().call_soon(self._thin_out)
        self.schedule_measurement()

    def _thin_out(self) -> None:
        retained = select_retained([one.number for one in self.snapshots])
        for old in [one for one in self.snapshots if one.number not in retained]:
            self.evict(old, "only some of the older snapshots are retained")

    def fork(self, connection: WorkerConnection, call_id: str) -> ForkSnapshot:
        """Request a fork of the present worker, and return it without adding it to the store.

        Raises:
            SandboxError: If it cannot even be requested.
        """
        sock = ForkSocket(lambda: connection.supervisor, connection.pid, self.killed)
        # Before the fork: it will have none of the threads and children that are counted here.
        counts = fork_observation.count_processes(connection.pid, self._fork_pids)
        if not connection.request_fork(sock.peer):
            sock.close(kill=False)
            raise SandboxError("the worker had not read its earlier messages, so it could not be forked")
        sock.peer.close()
        self._last_number += 1
        # A fork that was dropped stays a child of the worker until it is reaped, and its id until then.
        self._fork_pids &= {*counts.children, *self.pids()}
        snapshot = ForkSnapshot(
            self._last_number,
            call_id,
            sock,
            counts=counts.without(self._fork_pids),
            known_tools=set(connection.known_tools),
            unsettled=tuple(self.unsettled),
        )
        self.unsettled.add(snapshot)
        snapshot.settled.add_done_callback(lambda _: self._note_pid(snapshot))
        return snapshot

    def _note_pid(self, snapshot: ForkSnapshot) -> None:
        self.unsettled.discard(snapshot)
        self._fork_pids.add(snapshot.socket.pid)

    def _on_settled(self, snapshot: ForkSnapshot) -> None:
        if snapshot.drop_reason:
            self.evict(snapshot, snapshot.drop_reason)
            return
        # Only code that Python runs in each fork can have started one: it would run on beside the worker.
        if tree.count_threads(snapshot.socket.pid) > 1:
            self.evict(snapshot, _HAS_THREADS)
            return
        if snapshot.last_fork_s > self._slow_s:
            self._calls_to_skip = _SKIPPED_CALLS - 1
        # A measurement leaves out a snapshot that has not settled.
        self.schedule_measurement()

    def schedule_measurement(self) -> None:
        """Measure the snapshots a little later, and drop some if they take more memory than the budget.

        A snapshot grows whenever the worker writes to memory that both share: measure after every call that
        changes variables, because one that runs longer than the delay is measured too early by the
        measurement that followed its fork.
        """
        if self._measurement is None and (self.snapshots or self.undone):
            delay_s = max(_MEASURE_DELAY_S, min(_PAUSE * self._measured_s, _MAX_DELAY_S))
            self._measurement = asyncio.get_running_loop().call_later(delay_s, self._measure)

    def _measure(self) -> None:
        self._measurement = None
        snapshots = [snapshot for snapshot in self.all() if snapshot.settled.done()]
        # In a thread: the kernel walks every page table for each of these numbers.
        sizes = start_in_thread(_measure_memory, snapshots)
        sizes.add_done_callback(
            lambda done: None if done.cancelled() else self._enforce_budget(*done.result())
        )

    def _enforce_budget(self, sizes: dict[int, int], measured_s: float) -> None:
        self._measured_s = measured_s
        excess = set(self._budget.excess(sizes))
        evicted = [snapshot for snapshot in self.all() if snapshot.number in excess]
        for snapshot in evicted:
            self.evict(snapshot, "the snapshots together took too much memory")
        if evicted:
            # What the evicted ones shared with others may now be private memory of one of those.
            self.schedule_measurement()

    def drop_all_but_newest(self) -> bool:
        """Free memory by dropping every snapshot except the newest. Return whether any was dropped."""
        old = self.all()[:-1]
        for snapshot in old:
            self.evict(snapshot, "the sandbox exceeded its memory limit, and older snapshots were dropped")
        return bool(old)

    def evict(self, snapshot: ForkSnapshot, reason: str) -> None:
        """Drop `snapshot`; `reason` is what `eviction_reason` returns for its call afterwards."""
        self._report([snapshot.point.call_id, *self._calls_sharing(snapshot)], reason)
        if snapshot in self.snapshots[-1:]:
            self._newest_is_present = False  # the one before it becomes the newest
        for snapshots in (self.snapshots, *self.undone):
            # The first of an undone way stands for the undo itself: without it `redo` would lose a step. Its
            # process ends, its place stays.
            is_anchor = snapshots is not self.snapshots and snapshots[:1] == [snapshot]
            if snapshot in snapshots and not is_anchor:
                snapshots.remove(snapshot)
        snapshot.drop(reason)

    def _calls_sharing(self, snapshot: ForkSnapshot) -> list[str]:
        return [call_id for call_id, number in self._shared.items() if number == snapshot.number]

    def undo_from(self, snapshot: ForkSnapshot) -> None:
        """Move `snapshot` and what is newer to the undone ones: it was restored."""
        position = self.snapshots.index(snapshot)
        self.undone.append(self.snapshots[position:])
        del self.snapshots[position:]
        self._newest_is_present = False

    def redo_to(self, snapshot: ForkSnapshot | None) -> None:
        """Move back what comes before an undone snapshot, which was restored; None to move back all."""
        self._newest_is_present = False
        while self.undone:
            way = self.undone.pop()
            if snapshot in way:
                position = way.index(snapshot)
                self.undone.append(way[position:])
                way = way[:position]
            # A first one that was evicted has only held its place.
            self.snapshots += [one for one in way if not one.drop_reason]
            if self.undone and self.undone[-1][:1] == [snapshot]:
                break

    def drop_undone(self) -> None:
        """Drop what was undone: a call takes another way, so that it cannot be redone."""
        ways, self.undone = self.undone, []
        for way in ways:
            for snapshot in way:
                for call_id in [snapshot.point.call_id, *self._calls_sharing(snapshot)]:
                    self._note_reason(call_id, "the call was undone, and another call has run since")
                snapshot.drop("the call was undone, and another call has run since")

    def clear(self, reason: str) -> None:
        """Drop every snapshot; `reason` is what `eviction_reason` returns afterwards."""
        if self._measurement is not None:
            self._measurement.cancel()
            self._measurement = None
        for snapshot in self.all():
            for call_id in [snapshot.point.call_id, *self._calls_sharing(snapshot)]:
                self._note_reason(call_id, reason)
            snapshot.drop(reason)
        self.snapshots, self.undone = [], []
        self._shared.clear()
        self._newest_is_present = False
        self._calls_to_skip = 0

    def _report(self, call_ids: Sequence[str], reason: str) -> None:
        for call_id in call_ids:
            self._note_reason(call_id, reason)
        if self._on_dropped is not None:
            self._on_dropped(call_ids, reason)

    def _note_reason(self, call_id: str, reason: str) -> None:
        self._reasons[call_id] = reason
        if len(self._reasons) > _REMEMBERED_REASONS:
            self._reasons.popitem(last=False)


def _measure_memory(snapshots: list[ForkSnapshot]) -> tuple[dict[int, int], float]:
    """Return the memory of each snapshot by its number, and the seconds of processor time that this took."""
    began_s = time.thread_time()
    sizes = {snapshot.number: snapshot.measure_memory() for snapshot in snapshots}
    return sizes, time.thread_time() - began_s
