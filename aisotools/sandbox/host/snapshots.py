"""Snapshots of a sandbox's variables: taken before each call, restored by undo and after crashes.

`SnapshotHistory` implements `aisotools.core.protocols.VariableHistory` over forks of the live worker, which
`SnapshotStore` holds in order. All snapshots belong to one tree of processes; when that is lost, so are they.
A worker that undo replaces waits, frozen with its threads and children, until a call makes `redo` impossible.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from aisotools.core.exceptions import SandboxError
from aisotools.core.protocols import SandboxCall, ToolPayload, VariableCopy, VariablePoint
from aisotools.core.types import ToolCall, ToolResult
from aisotools.sandbox.host import fork_handle
from aisotools.sandbox.host.connection import WorkerConnection, WorkerProcess
from aisotools.sandbox.host.failures import Recovery
from aisotools.sandbox.host.fork_handle import ForkSnapshot, ForkSocket
from aisotools.sandbox.host.scheduler import CallScheduler
from aisotools.sandbox.process import tree

# ---- which snapshots are retained

# The newest snapshots are all retained; of the older ones a number that grows with the logarithm of their
# age.
_RECENT = 8
_MAX_SNAPSHOTS = 20
# Memory for all snapshots: a share of the machine's, or of its control group's.
_MEMORY_SHARE = 4
_MAX_MEMORY_BYTES = 1 << 30
_CGROUP_LIMIT = "/sys/fs/cgroup/memory.max"
# Snapshots share memory with the worker until it writes. They are measured this long after a call.
_MEASURE_DELAY_S = 0.2
# Calls that go without a snapshot, the slow one included, after a fork that was too slow.
_SKIPPED_CALLS = 8
# Calls for which it is remembered why they have no snapshot.
_REMEMBERED_REASONS = 1024

# Restoring: how long a fork may take to answer. Undo and recovery are refused after that.
_WAKE_S = 1.0
# How long the supervisor may take to freeze, thaw or end the worker that is replaced.
_SWITCH_S = 1.0
# Recovery: how long to wait for forks that a hung worker was asked for. It will hardly make them any more.
_HUNG_FORK_S = 0.05
# How long writing all variables into a file may take, and reading them.
_COPY_S = 30.0
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_LOAD_TOOL = ToolPayload(
    key="load", import_path="aisotools.sandbox.worker.fork:load", concurrency="exclusive"
)


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
        # "max" in the file is no number, and no limit.
        with contextlib.suppress(OSError, ValueError), open(_CGROUP_LIMIT, encoding="ascii") as file:
            total = min(total, int(file.read()))
        return cls(max_bytes=min(total // _MEMORY_SHARE, _MAX_MEMORY_BYTES))

    def excess(self, sizes: Mapping[int, int]) -> list[int]:
        """Return which snapshots must go: the largest first, and never the newest.

        Args:
            sizes: Memory in bytes that each snapshot keeps for itself, by its number.
        """
        left = sum(sizes.values())
        excess: list[int] = []
        for number in sorted(sizes, key=lambda n: sizes[n], reverse=True):
            if left <= self.max_bytes:
                break
            if number != max(sizes):
                excess.append(number)
                left -= sizes[number]
        return excess


class SnapshotStore:
    """The snapshots of one tree of processes, in the order of time.

    Attributes:
        snapshots: Those on the way to the present, the oldest first.
        undone: The ways that were left by undo, the latest last. Each begins with the snapshot that was
            restored.
    """

    def __init__(self, *, slow_s: float, budget: MemoryBudget) -> None:
        """Create an empty store.

        Args:
            slow_s: After a fork that took longer, in seconds of processor time, some calls go without.
            budget: How much memory the snapshots may take.
        """
        self.snapshots: list[ForkSnapshot] = []
        self.undone: list[list[ForkSnapshot]] = []
        self._slow_s = slow_s
        self._budget = budget
        self._last_number = 0
        self._unsettled: set[ForkSnapshot] = set()
        # Forks that live or may not have been reaped yet: no child processes of user code.
        self._fork_pids: set[int] = set()
        self._calls_to_skip = 0
        self._reasons: OrderedDict[str, str] = OrderedDict()
        # True while no call has been sent that may have changed the variables since the newest snapshot.
        self._newest_is_present = False
        # The number of the snapshot that a call shares with an earlier one, by call id.
        self._shared: OrderedDict[str, int] = OrderedDict()
        self._measurement: asyncio.TimerHandle | None = None

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
        """The snapshot that equals the present variables: no call has changed them since, or it was restored."""
        if self.undone and self.undone[-1]:
            return self.undone[-1][0]
        return self.snapshots[-1] if self._newest_is_present and self.snapshots else None

    def find(self, call_id: str) -> ForkSnapshot | None:
        """Return the snapshot from before a call, or None."""
        number = self._shared.get(call_id)
        for snapshot in self.snapshots:
            if snapshot.point.call_id == call_id or snapshot.number == number:
                return snapshot
        return None

    def pids(self) -> list[int]:
        """Return the processes that hold snapshots."""
        snapshots = self.all()
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
            self._note_reason(call_id, "the last fork took so long that some calls went without a snapshot")
            return
        try:
            snapshot = self.fork(connection, call_id)
        except SandboxError as error:
            self._note_reason(call_id, str(error))
            return
        self.snapshots.append(snapshot)
        self._newest_is_present = is_present
        snapshot.settled.add_done_callback(lambda _: self._on_settled(snapshot))
        retained = select_retained([one.number for one in self.snapshots])
        for old in [one for one in self.snapshots if one.number not in retained]:
            self.evict(old, "only some of the older snapshots are retained")
        self._schedule_measurement()

    def fork(self, connection: WorkerConnection, call_id: str) -> ForkSnapshot:
        """Request a fork of the present worker, and return it without adding it to the store.

        Raises:
            SandboxError: If it cannot even be requested.
        """
        sock = ForkSocket(lambda: connection.supervisor)
        # Before the fork: it will have none of the threads and children that are counted here.
        counts = fork_handle.count_processes(connection.pid, self._fork_pids)
        if not connection.request_fork(sock.peer):
            sock.close(kill=False)
            raise SandboxError("the worker was busy with earlier messages")
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
            unsettled=tuple(self._unsettled),
        )
        self._unsettled.add(snapshot)
        snapshot.settled.add_done_callback(lambda _: self._note_pid(snapshot))
        return snapshot

    def _note_pid(self, snapshot: ForkSnapshot) -> None:
        self._unsettled.discard(snapshot)
        self._fork_pids.add(snapshot.socket.pid)

    def _on_settled(self, snapshot: ForkSnapshot) -> None:
        if snapshot.drop_reason:
            self.evict(snapshot, snapshot.drop_reason)
        elif snapshot.last_fork_s > self._slow_s:
            self._calls_to_skip = _SKIPPED_CALLS - 1

    def _schedule_measurement(self) -> None:
        if self._measurement is None:
            self._measurement = asyncio.get_running_loop().call_later(_MEASURE_DELAY_S, self._measure)

    def _measure(self) -> None:
        self._measurement = None
        snapshots = [snapshot for snapshot in self.all() if snapshot.settled.done()]
        # In a thread: the kernel walks every page table for each of these numbers.
        sizes = asyncio.get_running_loop().run_in_executor(None, _measure_memory, snapshots)
        sizes.add_done_callback(
            lambda done: None if done.cancelled() else self._enforce_budget(done.result())
        )

    def _enforce_budget(self, sizes: dict[int, int]) -> None:
        excess = set(self._budget.excess(sizes))
        evicted = [snapshot for snapshot in self.all() if snapshot.number in excess]
        for snapshot in evicted:
            self.evict(snapshot, "the snapshots together took too much memory")
        if evicted:
            # What the evicted ones shared with others may now be private memory of one of those.
            self._schedule_measurement()

    def drop_all_but_newest(self) -> bool:
        """Free memory by dropping every snapshot except the newest. Return whether any was dropped."""
        old = self.all()[:-1]
        for snapshot in old:
            self.evict(snapshot, "memory was short")
        return bool(old)

    def evict(self, snapshot: ForkSnapshot, reason: str) -> None:
        """Drop `snapshot`; `reason` is what `eviction_reason` returns for its call afterwards."""
        for call_id in [snapshot.point.call_id, *self._calls_sharing(snapshot)]:
            self._note_reason(call_id, reason)
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

    def redo_last(self) -> ForkSnapshot:
        """Move back what was undone last. Return the snapshot that had been restored then."""
        way = self.undone.pop()
        self.snapshots += way
        self._newest_is_present = False
        return way[0]

    def drop_undone(self) -> None:
        """Drop what was undone: a call takes another way, so that it cannot be redone."""
        ways, self.undone = self.undone, []
        for way in ways:
            for snapshot in way:
                self._note_reason(snapshot.point.call_id, "it was undone, and another call has run since")
                snapshot.drop("it was undone")

    def clear(self, reason: str) -> None:
        """Drop every snapshot; `reason` is what `eviction_reason` returns afterwards."""
        if self._measurement is not None:
            self._measurement.cancel()
            self._measurement = None
        for snapshot in self.all():
            self._note_reason(snapshot.point.call_id, reason)
            snapshot.drop(reason)
        self.snapshots, self.undone = [], []
        self._shared.clear()
        self._newest_is_present = False
        self._calls_to_skip = 0

    def _note_reason(self, call_id: str, reason: str) -> None:
        self._reasons[call_id] = reason
        if len(self._reasons) > _REMEMBERED_REASONS:
            self._reasons.popitem(last=False)


def _measure_memory(snapshots: list[ForkSnapshot]) -> dict[int, int]:
    return {snapshot.number: snapshot.measure_memory() for snapshot in snapshots}


class RunCall(Protocol):
    """Runs a call on a worker; the caller holds the slot."""

    async def __call__(
        self, connection: WorkerConnection, request: SandboxCall, attachments: Sequence[int] = ()
    ) -> ToolResult:
        """Run `request`, with descriptors sent along."""


class VariablesFile:
    """Variables on their way to another sandbox: a sealed memory file, which nobody can change any more.

    Attributes:
        file: Its descriptor; -1 after `close`.
    """

    def __init__(self, point: VariablePoint, file: int) -> None:
        self._point = point
        self.file = file

    @property
    def point(self) -> VariablePoint:
        """The snapshot that was copied, and what of it could not be copied."""
        return self._point

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


class SnapshotHistory:
    """The history of one sandbox's variables.

    Attributes:
        expected_recovery: What a recovery in progress is about to restore, as far as is known.
    """

    def __init__(
        self,
        scheduler: CallScheduler,
        *,
        connect: Callable[[], Awaitable[WorkerConnection]],
        run_call: RunCall,
        on_replaced: Callable[[str, bool], None],
        slow_s: float,
        budget: MemoryBudget | None = None,
    ) -> None:
        """Create an empty history.

        Args:
            scheduler: Decides who may use the worker when.
            connect: Returns the connection to the worker, started if there is none.
            run_call: Runs a call.
            on_replaced: Called when another worker has taken the place of the one before, with the reason,
                and whether anything is lost that nobody asked to undo.
            slow_s: After a fork that took longer, some calls go without a snapshot.
            budget: How much memory the snapshots may take; by default a share of the machine's.
        """
        self._scheduler = scheduler
        self._connect = connect
        self._run_call = run_call
        self._on_replaced = on_replaced
        self._store = SnapshotStore(slow_s=slow_s, budget=budget or MemoryBudget.of_this_machine())
        self._connection: WorkerConnection | None = None
        # Held while the worker is replaced. Undo holds a slot too; recovery starts whenever a worker dies,
        # also during an undo, and must not replace the worker a second time in between.
        self._replacing = asyncio.Lock()
        self._frozen: WorkerProcess | None = None
        self._waking_pid = 0
        self.expected_recovery: Recovery | None = None

    def __repr__(self) -> str:
        return f"<SnapshotHistory on {self._store!r}>"

    # ---- taking and dropping snapshots

    def points(self) -> Sequence[VariablePoint]:
        """Return what can be restored, the oldest first."""
        return [
            snapshot.point
            for snapshot in self._store.snapshots
            if not snapshot.settled.done() or snapshot.is_alive
        ]

    def pids(self) -> list[int]:
        """Return the processes that hold snapshots, or are being woken: they belong to no call."""
        pids = self._store.pids()
        if self._waking_pid:
            pids.append(self._waking_pid)
        return pids

    async def settled(self) -> None:
        """Wait, for a second at most, until every requested fork is known, so that `pids` is complete."""
        if settling := self._settling():
            await asyncio.wait(settling, timeout=_WAKE_S)

    def _settling(self) -> list[asyncio.Task[None]]:
        return [snapshot.settled for snapshot in self._store.all() if not snapshot.settled.done()]

    def take_snapshot(
        self, connection: WorkerConnection, call_id: str, *, changes_variables: bool = True
    ) -> None:
        """Have a snapshot from before a call that is about to be sent. Nobody waits for it.

        Args:
            connection: The worker that the call will be sent to.
            call_id: The call.
            changes_variables: False for a call that leaves the variables as they are: it shares the newest
                snapshot if no call has changed the variables since.
        """
        self._attach(connection)
        if self._store.undone:
            # The call takes another way: what was undone cannot be redone.
            self._store.drop_undone()
            self._drop_frozen()
        if changes_variables or not self._store.share_newest(call_id):
            self._store.add(connection, call_id, is_present=not changes_variables)

    def _attach(self, connection: WorkerConnection) -> None:
        """Keep snapshots of this tree of processes from now on, and of no other."""
        if connection is not self._connection:
            self.clear("the worker that it was taken of is gone")
            self._connection = connection

    def drop_all_but_newest(self) -> bool:
        """Free memory by dropping every snapshot except the newest. Return whether any was dropped."""
        return self._store.drop_all_but_newest()

    async def forget(self) -> None:
        """Drop every snapshot; what was in them, secrets included, is gone for good."""
        async with self._scheduler.slot("exclusive"):
            self._store.clear("it was forgotten")
            self._drop_frozen()

    def clear(self, reason: str) -> None:
        """Drop every snapshot, because the tree of processes is gone or about to go."""
        self._store.clear(reason)
        self._drop_frozen()
        self._connection = None

    def _drop_frozen(self) -> None:
        if self._frozen is not None:
            if self._connection is not None:
                self._connection.notify_supervisor("drop")
            self._frozen.close()
            self._frozen = None

    # ---- undo

    async def restore(self, call_id: str) -> VariablePoint:
        """Restore the variables from before this call; see `VariableHistory.restore`."""
        async with self._scheduler.slot("exclusive"):
            connection = await self._connect()
            snapshot = await self._find(call_id)
            if snapshot.point.label == "data only":
                return await self._restore_values(connection, snapshot)
            async with self._replacing:
                lost = await self._restore(connection, snapshot, source=snapshot)
            return _add_lost(snapshot.point, lost)

    async def _find(self, call_id: str) -> ForkSnapshot:
        found = self._store.find(call_id)
        if found is not None:
            # Shielded: cancelling the undo must not cancel the settling of the snapshot.
            await asyncio.shield(found.settled)
            if found.is_alive:
                return found
        reason = found.drop_reason if found is not None else ""
        raise _cannot_restore(call_id, reason or self._store.eviction_reason(call_id))

    async def _restore(
        self, connection: WorkerConnection, snapshot: ForkSnapshot, *, source: ForkSnapshot
    ) -> tuple[str, ...]:
        """Replace the worker by one woken from `source`, and make `snapshot` and what is newer undone.

        The order makes a failure harmless: wake the new worker first, while the old one is untouched; then
        stop the old one; and switch over only when both have succeeded.
        """
        sock, lost = await self._wake(connection, source)
        is_first = not self._store.undone
        # The worker of the present is frozen, so that redo brings back even its threads. A worker that itself
        # was restored is not worth that: redo wakes its snapshot again.
        await self._stop_worker(connection, "freeze" if is_first else "end", sock)
        self._store.undo_from(snapshot)
        reason = f"the call {snapshot.point.call_id} and what came after were undone"
        former = self._switch_to(connection, sock, source, reason)
        if is_first:
            self._frozen = former
        else:
            former.close()
        return lost

    async def _wake(
        self, connection: WorkerConnection, snapshot: ForkSnapshot
    ) -> tuple[ForkSocket, tuple[str, ...]]:
        try:
            return await snapshot.wake(lambda: connection.supervisor, within_s=_WAKE_S)
        except SandboxError as error:
            raise _cannot_restore(snapshot.point.call_id, str(error)) from None

    async def _stop_worker(
        self, connection: WorkerConnection, op: str, woken: ForkSocket | None = None
    ) -> None:
        """Freeze or end the present worker and everything around it, except for what was woken."""
        connection.suspend()
        if not await self._request_switch(connection, op, woken.pid if woken is not None else 0):
            connection.resume()
            if woken is not None:
                woken.close(kill=True)
            raise SandboxError(
                f"The running worker did not stop within {_SWITCH_S:g} s. No variable was changed."
            )

    async def _request_switch(self, connection: WorkerConnection, op: str, woken_pid: int = 0) -> bool:
        # The woken worker is a child of a snapshot, not yet the supervisor's worker: it must be exempt while
        # the supervisor stops everything else.
        self._waking_pid = woken_pid
        try:
            return await connection.request_supervisor(op, within_s=_SWITCH_S)
        finally:
            self._waking_pid = 0

    def _switch_to(
        self,
        connection: WorkerConnection,
        sock: ForkSocket,
        source: ForkSnapshot,
        reason: str,
        *,
        lossy: bool = False,
    ) -> WorkerProcess:
        end, pid, pidfd = sock.detach()
        worker = connection.make_worker(end, pid=pid, pidfd=pidfd, known_tools=set(source.known_tools))
        former = connection.replace_worker(worker)
        self._on_replaced(reason, lossy)
        return former

    async def _restore_values(self, connection: WorkerConnection, snapshot: ForkSnapshot) -> VariablePoint:
        """Carry the values into an older worker, in which no library waits for threads that are gone."""
        values = await self._copy(connection, snapshot)
        try:
            for source in self._store.all():
                await asyncio.shield(source.settled)
                if source.is_alive and source.point.label == "exact":
                    break
            else:
                raise _cannot_restore(
                    snapshot.point.call_id, "there is no older snapshot that its values could be loaded into"
                )
            async with self._replacing:
                await self._restore(connection, snapshot, source=source)
            await self._load(connection, values)
        finally:
            values.close()
        lost = (*snapshot.point.lost, *values.point.lost)
        return VariablePoint(call_id=snapshot.point.call_id, label="data only", lost=lost)

    # ---- redo

    async def redo(self) -> VariablePoint | None:
        """Take the last `restore` back; see `VariableHistory.redo`."""
        async with self._scheduler.slot("exclusive"):
            connection = await self._connect()
            if not self._store.undone or connection is not self._connection:
                return None
            async with self._replacing:
                if len(self._store.undone) > 1:
                    await self._redo_to_snapshot(connection, self._store.undone[-2][0])
                else:
                    await self._redo_to_frozen(connection)
                return self._store.redo_last().point

    async def _redo_to_snapshot(self, connection: WorkerConnection, source: ForkSnapshot) -> None:
        sock, _ = await self._wake(connection, source)
        await self._stop_worker(connection, "end", sock)
        self._switch_to(connection, sock, source, "an undone call was redone").close()

    async def _redo_to_frozen(self, connection: WorkerConnection) -> None:
        if self._frozen is None:
            raise SandboxError("Redo failed: the worker that was undone has ended.")
        await self._stop_worker(connection, "end")
        frozen, self._frozen = self._frozen, None
        # Listen before it is thawed, so that nothing it sends then is missed.
        connection.replace_worker(frozen).close()
        await self._request_switch(connection, "thaw")
        self._on_replaced("the undone calls were redone", False)

    # ---- recovery after a crash

    def can_recover(self, connection: WorkerConnection) -> bool:
        """Return whether there is a snapshot to go back to."""
        return connection is self._connection and bool(self._store.snapshots or self._store.current)

    async def recover(
        self, connection: WorkerConnection, reason: str, failed_calls: frozenset[str]
    ) -> Recovery:
        """Restore the latest snapshot that can be woken: the worker is gone.

        Args:
            connection: The tree that it belonged to.
            reason: Why the worker is gone.
            failed_calls: The calls that ended with it.

        Raises:
            SandboxError: If no snapshot can be restored.
        """
        async with self._replacing:
            if settling := self._settling():
                # The snapshot of the failed call may have been requested and not answered. If the worker is
                # dead, the fork exists already or never will: it answers soon. If the worker lives and hangs
                # (it is about to be killed), it will not fork any more.
                hangs = tree.parent_of(connection.pid)
                await asyncio.wait(settling, timeout=_HUNG_FORK_S if hangs else _WAKE_S)
            candidates = self._candidates(failed_calls)
            self.expected_recovery = candidates[0][1] if candidates else None
            try:
                if not await self._request_switch(connection, "end"):
                    raise SandboxError("what it had started could not be ended in time")
                for snapshot, recovery in candidates:
                    self.expected_recovery = recovery
                    try:
                        return await self._recover_from(connection, snapshot, recovery, reason)
                    except SandboxError as error:
                        # A dead or hung snapshot: user code can kill its own past. Try the one before.
                        self._store.evict(snapshot, str(error))
                raise SandboxError("no snapshot could be restored")
            finally:
                self.expected_recovery = None

    def _candidates(self, failed_calls: frozenset[str]) -> list[tuple[ForkSnapshot, Recovery]]:
        """Return the snapshots that recovery may wake, the best first, each with what would be reported."""
        current = self._store.current
        snapshots = [snapshot for snapshot in reversed(self._store.snapshots) if snapshot is not current]
        if current is not None:
            snapshots.insert(0, current)
        candidates = []
        for snapshot in snapshots:
            if snapshot.is_alive and snapshot.point.label != "data only":
                is_complete = snapshot is current or snapshot.point.call_id in failed_calls
                recovery = Recovery(point=snapshot.point, is_complete=is_complete, is_pending=True)
                candidates.append((snapshot, recovery))
        return candidates

    async def _recover_from(
        self, connection: WorkerConnection, snapshot: ForkSnapshot, expected: Recovery, reason: str
    ) -> Recovery:
        sock, lost = await self._wake(connection, snapshot)
        message = f"{reason}; the variables are as they were before the call {snapshot.point.call_id}"
        lossy = not expected.is_complete
        self._switch_to(connection, sock, snapshot, message, lossy=lossy).close()
        return replace(expected, point=_add_lost(snapshot.point, lost), is_pending=False)

    # ---- copies for other sandboxes

    async def branch(self, call_id: str | None = None) -> VariableCopy:
        """Return a copy of the variables for another sandbox; see `VariableHistory.branch`."""
        async with self._scheduler.slot("exclusive"):
            connection = await self._connect()
            if call_id is not None:
                return await self._copy(connection, await self._find(call_id))
            self._attach(connection)
            snapshot = self._store.fork(connection, "")
            try:
                return await self._copy(connection, snapshot)
            finally:
                snapshot.drop("it was copied")

    async def _copy(self, connection: WorkerConnection, snapshot: ForkSnapshot) -> VariablesFile:
        file = os.memfd_create("variables", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            lost = await snapshot.copy(lambda: connection.supervisor, file, within_s=_COPY_S)
            # The fork that wrote it may still hold a descriptor. Seal the content before anybody reads it.
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        except (SandboxError, OSError) as error:
            os.close(file)
            raise SandboxError(f"The variables could not be copied: {error}.") from None
        point = VariablePoint(call_id=snapshot.point.call_id, label="data only", lost=lost)
        return VariablesFile(point, file)

    async def load(self, copy: VariableCopy) -> VariablePoint:
        """Add the variables of a copy to those of this sandbox."""
        if not isinstance(copy, VariablesFile) or copy.file < 0:
            raise SandboxError("This copy of variables is closed, or was made by another kind of sandbox.")
        async with self._scheduler.slot("exclusive"):
            await self._load(await self._connect(), copy)
        return copy.point

    async def _load(self, connection: WorkerConnection, copy: VariablesFile) -> None:
        call = ToolCall(uuid.uuid4().hex, "load_variables", {})
        request = SandboxCall(call=call, shipment=_LOAD_TOOL, timeout_s=_COPY_S)
        result = await self._run_call(connection, request, [copy.file])
        if result.is_error:
            raise SandboxError(f"The variables could not be loaded: {result.content}")


def _cannot_restore(call_id: str, reason: str) -> SandboxError:
    return SandboxError(f"Cannot restore variables to before call {call_id!r}: {reason}.")


def _add_lost(point: VariablePoint, lost: Sequence[str]) -> VariablePoint:
    """Return the point with what turned out to be lost when it was restored."""
    if not lost:
        return point
    return replace(
        point,
        label="partial" if point.label == "exact" else point.label,
        lost=(*point.lost, *(entry for entry in lost if entry not in point.lost)),
    )
