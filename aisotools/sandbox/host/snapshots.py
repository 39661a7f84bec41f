"""Snapshots of a sandbox's variables: taken before each call, restored by undo and after crashes.

`SnapshotHistory` implements `aisotools.core.sandboxes.VariableHistory` over forks of the live worker, which
`SnapshotStore` holds in order. All snapshots belong to one tree of processes; when that is lost, so are they.
A worker that undo replaces waits, frozen with its threads and children, until a call makes `redo` impossible.

Threat: code in the sandbox has an undo bring back something that never was the state, keeps snapshots from
being taken, or has them use up memory.
Mechanism: the host alone numbers the snapshots, and asks for each ahead of the call that follows. Each is
checked as `aisotools.sandbox.host.fork_handle` says; their memory counts as the sandbox's own.
Race: a call can be asked for while another state is restored: calls wait for the end of it, and the worker
that is replaced is frozen first, so that two never run at once.
Failure: a snapshot that cannot be taken or woken is left out with its reason, the state before the restore is
kept, and the result says which. Without any, a fresh worker starts and the loss of variables is said.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace

from aisotools.core.exceptions import SandboxError
from aisotools.core.sandboxes import VariableCopy, VariablePoint
from aisotools.sandbox.host.connection import WorkerConnection, WorkerProcess
from aisotools.sandbox.host.failures import Recovery
from aisotools.sandbox.host.fork_handle import ForkSnapshot, ForkSocket, WakingFork, wait_until_ended
from aisotools.sandbox.host.scheduler import CallScheduler
from aisotools.sandbox.host.snapshot_store import MemoryBudget, SnapshotStore
from aisotools.sandbox.host.variable_copies import RunCall, VariablesFile, copy_variables, load_variables
from aisotools.sandbox.process import tree

# Restoring: how long a fork may take to answer. Undo and recovery are refused after that.
_WAKE_S = 1.0
# How long the supervisor may take to freeze, thaw or end the worker that is replaced.
_SWITCH_S = 1.0
# How long the replacement of a worker is waited for, and how often it is looked whether it has ended.
_REPLACED_S = 3 * _WAKE_S
_REPLACED_LOOK_S = 0.005
# Recovery: how long to wait for forks that a hung worker was asked for. It will hardly make them any more.
_HUNG_FORK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class WokenReader:
    """A process that has the worker's variables and can change nothing.

    Attributes:
        socket: Its call channel, and its process.
        keeper: The process id of its keeper.
        lost: What it lacks of the worker, in words.
        known_tools: Keys of the tools that it has.
    """

    socket: ForkSocket
    keeper: int
    lost: tuple[str, ...]
    known_tools: set[str]


_holder: ContextVar[object] = ContextVar("aisotools_history_holder", default=None)
"""What holds a history, in the task that does and in those that it starts."""


class SnapshotHistory:
    """The history of one sandbox's variables.

    Attributes:
        expected_recovery: What a recovery in progress is about to restore, as far as is known.
        reader_pids: Processes of readers (see `readers`), which no sweep may touch either.
        keeper_pids: Their keepers (see `ReaderProcesses`), likewise.
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
        on_dropped: Callable[[Sequence[str], str], None] | None = None,
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
            on_dropped: See `SnapshotStore`.
        """
        self._scheduler = scheduler
        self._connect = connect
        self._run_call = run_call
        self._on_replaced = on_replaced
        self._store = SnapshotStore(
            slow_s=slow_s, budget=budget or MemoryBudget.of_this_machine(), on_dropped=on_dropped
        )
        self._connection: WorkerConnection | None = None
        # Held while the worker is replaced. Undo holds a slot too; recovery starts whenever a worker dies,
        # also during an undo, and must not replace the worker a second time in between.
        self._replacing = asyncio.Lock()
        self._replacements = 0  # how many replacements of the worker have been requested and not finished
        self._frozen: WorkerProcess | None = None
        self._waking_pid = 0
        self._ahead: WakingFork | None = None
        self._discarded: set[asyncio.Task[tuple[ForkSocket, tuple[str, ...]]]] = set()
        self._holder: object = None
        self._left_stopped: Collection[int] = ()
        self.expected_recovery: Recovery | None = None
        self._broken_calls: set[str] = set()
        self.reader_pids: set[int] = set()
        self.keeper_pids: set[int] = set()

    def __repr__(self) -> str:
        return f"<SnapshotHistory on {self._store!r}>"

    # ---- taking and dropping snapshots

    def points(self) -> Sequence[VariablePoint]:
        """Return what can be restored, the oldest first. Calls that a broken worker ended have nothing."""
        return [
            snapshot.point
            for snapshot in self._store.snapshots
            if (not snapshot.settled.done() or snapshot.is_alive)
            and snapshot.point.call_id not in self._broken_calls
        ]

    def pids(self) -> list[int]:
        """Return the processes that hold snapshots, are being woken, or can change nothing."""
        return [*self._store.pids(), *self.reader_pids, *self.keeper_pids, *filter(None, [self._waking_pid])]

    def frozen_pids(self) -> list[int]:
        """Return the worker that was undone, and stays stopped for a redo."""
        return [self._frozen.pid] if self._frozen is not None else []

    async def settled(self) -> None:
        """Wait until `pids` is complete: each requested fork is known, and each that was killed has ended.

        For a second at most, each; for a few seconds until another worker has taken the place of the present
        one, if that is under way.
        """
        # Race: a recovery has a fork woken, which is known once it has answered.
        ends_s = time.monotonic() + _REPLACED_S
        while self._replacements and time.monotonic() < ends_s:  # noqa: ASYNC110 - an event is of one loop
            await asyncio.sleep(_REPLACED_LOOK_S)
        if self._store.unsettled or self._discarded:
            unsettled = [one.settled for one in self._store.unsettled]
            await asyncio.wait([*unsettled, *self._discarded], timeout=_WAKE_S)
        if self._store.killed:
            killed = [*self._store.killed]
            self._store.killed.clear()
            await wait_until_ended(killed, within_s=_WAKE_S)

    @asynccontextmanager
    async def _replace(self) -> AsyncIterator[None]:
        """Return a context in which the worker may be replaced, by one at a time."""
        self._replacements += 1
        try:
            async with self._replacing:
                yield
        finally:
            self._replacements -= 1

    @asynccontextmanager
    async def hold(self, stopped: Collection[int] = ()) -> AsyncIterator[None]:
        """Let no call run within the context; see `SupportsSnapshotProcesses`."""
        if self._is_held_here:
            yield
            return
        async with self._scheduler.slot("exclusive"):
            # Race: a recovery wakes a snapshot, which must answer. Whoever holds this may stop all that runs.
            async with self._replacing:
                pass
            await self.settled()
            self._holder, self._left_stopped = (holder := object()), stopped
            token = _holder.set(holder)
            try:
                yield
            finally:
                _holder.reset(token)
                self._holder, self._left_stopped = None, ()
                self._discard_ahead()

    @property
    def _is_held_here(self) -> bool:
        """True if the running task, or the one that has started it, holds this history."""
        return self._holder is not None and self._holder is _holder.get()

    def prepare(self, call_id: str) -> int:
        """Wake the snapshot that `restore` of this call needs; see `SupportsSnapshotProcesses`."""
        snapshot, connection = self._store.find(call_id), self._connection
        if (
            snapshot is None
            or connection is None
            or not self._is_held_here
            or self._ahead is not None
            or not (snapshot.settled.done() and snapshot.is_alive)
            or snapshot.point.label == "data only"
        ):
            return 0
        self._ahead = WakingFork(snapshot, lambda: connection.supervisor, within_s=_WAKE_S)
        return snapshot.socket.pid

    def _discard_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.discard()
            self._discarded.add(ahead.waking)
            ahead.waking.add_done_callback(self._discarded.discard)

    def _alone(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which no call runs, which who holds this history enters at once."""
        return nullcontext() if self._is_held_here else self._scheduler.slot("exclusive")

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
            if connection is not self._connection:
                return  # Race: it was lost with that, and so is whatever would be kept
        if changes_variables or not self._store.share_newest(call_id):
            self._store.add(connection, call_id, is_present=not changes_variables)

    def on_variables_changed(self) -> None:
        """Have the memory of the snapshots measured: a call that may change variables has ended."""
        self._store.schedule_measurement()

    def _attach(self, connection: WorkerConnection) -> None:
        """Keep snapshots of this tree of processes from now on, and of no other."""
        if connection is not self._connection:
            self.clear("the worker that the snapshot was taken of has ended")
            self._connection = connection

    def drop_all_but_newest(self) -> bool:
        """Free memory by dropping every snapshot except the newest. Return whether any was dropped."""
        return self._store.drop_all_but_newest()

    async def forget(self) -> None:
        """Drop every snapshot; what was in them, secrets included, is gone for good."""
        async with self._scheduler.slot("exclusive"):
            self._store.clear("the snapshots were forgotten on request")
            self._drop_frozen()

    def clear(self, reason: str) -> None:
        """Drop every snapshot, because the tree of processes is gone or about to go."""
        self._store.clear(reason)
        self._drop_frozen()
        self._connection = None

    async def close(self, reason: str) -> None:
        """Drop every snapshot, and wait until nothing more is done about any fork; for a second at most."""
        self.clear(reason)
        loop = asyncio.get_running_loop()  # what another one began, that one ends
        if waited := [one.settled for one in self._store.unsettled if one.settled.get_loop() is loop]:
            await asyncio.wait(waited, timeout=_WAKE_S)

    def _drop_frozen(self) -> None:
        # Race: that the supervisor has ended may be found out by this request, which calls this again.
        frozen, self._frozen = self._frozen, None
        if frozen is not None:
            if self._connection is not None:
                self._connection.notify_supervisor("drop")
            frozen.close()

    # ---- undo

    def why_not_kept(self, call_id: str | None) -> str:
        """Return why the variables cannot be brought to a state; see `VariableHistory.why_not_kept`."""
        if call_id is None:
            return self._why_not_redone()
        if call_id in self._broken_calls:
            return "the worker could run nothing any more then"
        found = self._store.find(call_id)
        if found is None:
            return self._store.eviction_reason(call_id)
        if found.drop_reason:
            return found.drop_reason
        if not found.settled.done():
            return "its snapshot is not taken yet"
        if not found.is_alive:
            return "the process that held its snapshot has ended"
        if found.point.label == "data only" and self._oldest_exact() is None:
            return "there is no older snapshot that its values could be loaded into"
        return ""

    def _why_not_redone(self) -> str:
        if not self._store.undone:
            return "no variables were undone, or a call has changed them since"
        frozen = self._frozen
        if frozen is None or (frozen.pid and not tree.parent_of(frozen.pid)):
            return "the worker that was undone has ended"
        return ""

    def _oldest_exact(self) -> ForkSnapshot | None:
        for source in self._store.all():
            if source.settled.done() and source.is_alive and source.point.label == "exact":
                return source
        return None

    async def restore(self, call_id: str) -> VariablePoint:
        """Restore the variables from before this call; see `VariableHistory.restore`."""
        async with self._alone():
            connection = await self._connect()
            snapshot = await self._find(call_id)
            if snapshot.point.label == "data only":
                return await self._restore_values(connection, snapshot)
            async with self._replace():
                lost = await self._restore(connection, snapshot, source=snapshot)
            return snapshot.point.with_lost(lost)

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

        What is older, and was undone, is part of the way to the present again.

        The order makes a failure harmless: wake the new worker first, while the old one is untouched; then
        stop the old one; and switch over only when both have succeeded.
        """
        sock, lost = await self._wake(connection, source)
        is_first = not self._store.undone
        # The worker of the present is frozen, so that redo brings back even its threads. A worker that itself
        # was restored is not worth that: redo wakes its snapshot again.
        await self._stop_worker(connection, "freeze" if is_first else "end", sock)
        if snapshot in self._store.snapshots:
            self._store.undo_from(snapshot)
        else:
            self._store.redo_to(snapshot)
        reason = f"the call {snapshot.point.call_id} and what came after were undone"
        former = self._switch_to(connection, sock, source, reason)
        if is_first:
            self._frozen = former
        else:
            former.close()
        return lost

    async def _wake(
        self, connection: WorkerConnection, snapshot: ForkSnapshot, *, check: bool = False
    ) -> tuple[ForkSocket, tuple[str, ...]]:
        try:
            if (ahead := self._ahead) is not None and ahead.snapshot is snapshot and not check:
                self._ahead = None
                if woken := await ahead.take():
                    return woken
            return await snapshot.wake(lambda: connection.supervisor, within_s=_WAKE_S, check=check)
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
        _refuse_if_lost(connection, woken)

    async def _request_switch(self, connection: WorkerConnection, op: str, woken_pid: int = 0) -> bool:
        # The woken worker is a child of a snapshot, not yet the supervisor's worker: it must be exempt while
        # the supervisor stops everything else.
        self._waking_pid = woken_pid
        try:
            return await connection.request_supervisor(op, within_s=_SWITCH_S, stopped=[*self._left_stopped])
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
        _refuse_if_lost(connection, sock)
        sock.release()
        end, pid, pidfd = sock.detach()
        try:
            worker = connection.make_worker(end, pid=pid, pidfd=pidfd, known_tools=set(source.known_tools))
        except SandboxError as error:
            # The former worker is frozen or ended, and nobody hears this one.
            end.close()
            os.close(pidfd)
            connection.lose(str(error))
            raise
        former = connection.replace_worker(worker)
        self._on_replaced(reason, lossy)
        return former

    async def _restore_values(self, connection: WorkerConnection, snapshot: ForkSnapshot) -> VariablePoint:
        """Carry the values into an older worker, in which no library waits for threads that are gone."""
        values = await copy_variables(connection, snapshot)
        try:
            for source in self._store.all():
                # `settled` is a task that others wait for, too: an undo that is cancelled must not cancel it.
                await asyncio.shield(source.settled)
                if source.is_alive and source.point.label == "exact":
                    break
            else:
                raise _cannot_restore(
                    snapshot.point.call_id, "there is no older snapshot that its values could be loaded into"
                )
            former = self._store.current if self._store.undone else None
            async with self._replace():
                await self._restore(connection, snapshot, source=source)
            try:
                await load_variables(self._run_call, connection, values)
            except SandboxError as error:
                await self._take_back(connection, former, error)
                raise
        finally:
            values.close()
        lost = (*snapshot.point.lost, *values.point.lost)
        return VariablePoint(call_id=snapshot.point.call_id, label="data only", lost=lost)

    async def _take_back(
        self, connection: WorkerConnection, former: ForkSnapshot | None, error: SandboxError
    ) -> None:
        """Go back to what was there before a restore that failed when the worker had been replaced already.

        Args:
            connection: The worker.
            former: The snapshot that had been restored before; None for the frozen worker of the present.
            error: Why the restore failed.

        Raises:
            SandboxError: If that fails as well: the message says what is there now.
        """
        try:
            async with self._replace():
                if former is None:
                    await self._redo_to_frozen(connection)
                    self._store.redo_to(None)
                else:
                    await self._restore(connection, former, source=former)
        except SandboxError as second:
            raise SandboxError(
                f"{error} The variables from before could not be brought back either, so those of an older "
                f"snapshot are there now: {second}"
            ) from error

    # ---- redo

    async def redo(self, until: str | None = None) -> VariablePoint | None:
        """Take back what `restore` did since the last call; see `VariableHistory.redo`."""
        if until is not None:
            return await self.restore(until)
        async with self._alone():
            connection = await self._connect()
            if not self._store.undone or connection is not self._connection:
                return None
            async with self._replace():
                point = self._store.undone[-1][0].point
                await self._redo_to_frozen(connection)
                self._store.redo_to(None)
                return point

    async def _redo_to_frozen(self, connection: WorkerConnection) -> None:
        if reason := self._why_not_redone():
            raise SandboxError(f"Redo of the variables failed: {reason}.")
        assert self._frozen is not None
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
    ) -> Recovery | None:
        """Restore the latest snapshot that can be woken, and in which cells run: the worker is gone.

        Return None if another worker has taken its place meanwhile.

        Args:
            connection: The tree that it belonged to.
            reason: Why the worker is gone.
            failed_calls: The calls that ended with it.

        Raises:
            SandboxError: If no snapshot can be restored.
        """
        if connection.is_broken:
            self._broken_calls = {point.call_id for point in self.points()} & failed_calls | (
                self._broken_calls & {snapshot.point.call_id for snapshot in self._store.all()}
            )
        async with self._replace():
            if connection.is_serving:
                # Race: it ended within an undo or redo, which has replaced it. Recovery would end the worker
                # that is there now, whose end would have to be recovered, and so on without an end.
                return None
            if self._store.unsettled:
                # The snapshot of the failed call may have been requested and not answered. If the worker is
                # dead, the fork exists already or never will: it answers soon. If the worker lives and hangs
                # (it is about to be killed), it will not fork any more.
                timeout_s = _HUNG_FORK_S if tree.parent_of(connection.pid) else _WAKE_S
                await asyncio.wait([one.settled for one in self._store.unsettled], timeout=timeout_s)
            candidates = self._candidates(failed_calls)
            self.expected_recovery = candidates[0][1] if candidates else None
            try:
                if not await self._request_switch(connection, "end"):
                    raise SandboxError(f"what the worker had started did not end within {_SWITCH_S:g} s")
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
        sock, lost = await self._wake(connection, snapshot, check=True)
        message = f"{reason}; the variables are as they were before the call {snapshot.point.call_id}"
        lossy = not expected.is_complete
        self._switch_to(connection, sock, snapshot, message, lossy=lossy).close()
        return replace(expected, point=snapshot.point.with_lost(lost), is_pending=False)

    # ---- copies for other sandboxes

    async def branch(self, call_id: str | None = None) -> VariableCopy:
        """Return a copy of the variables for another sandbox; see `VariableHistory.branch`."""
        async with self._scheduler.slot("exclusive"):
            connection = await self._connect()
            if call_id is not None:
                return await copy_variables(connection, await self._find(call_id))
            self._attach(connection)
            snapshot = self._store.fork(connection, "")
            try:
                return await copy_variables(connection, snapshot)
            finally:
                snapshot.drop("the snapshot was made only to be copied")

    async def wake_reader(
        self,
        connection: WorkerConnection,
        ends: Sequence[int],
        *,
        writable: Sequence[str],
        unreadable: Sequence[str] = (),
        scratch: str = "",
    ) -> WokenReader:
        """Return a new process with the present variables and without the right to change anything.

        The caller holds a slot, so that the worker is not replaced meanwhile.

        Args:
            connection: The worker that is forked.
            ends: Its standard output, its standard error, and the pipe for its interrupts.
            writable: Folders that the worker can write to.
            unreadable: Absolute paths that the reader must not be able to read.
            scratch: The one folder that it may change, its TMPDIR; empty for none.

        Raises:
            SandboxError: If there is none; the message says why.
        """
        self._attach(connection)
        snapshot = self._store.fork(connection, "")
        try:
            # Shielded: cancelling the call must not cancel the settling of the snapshot.
            await asyncio.shield(snapshot.settled)
            # Race: a sweep would end a process that nobody has named yet.
            async with connection.sweep_lock:
                sock, keeper, lost = await snapshot.wake_reader(
                    lambda: connection.supervisor,
                    ends,
                    writable=writable,
                    unreadable=unreadable,
                    scratch=scratch,
                    within_s=_WAKE_S,
                )
            # No point at which another task could run lies between this and the answer.
            self.reader_pids.add(sock.pid)
            self.keeper_pids.add(keeper)
            lost = tuple(dict.fromkeys((*snapshot.point.lost, *lost)))
            return WokenReader(socket=sock, keeper=keeper, lost=lost, known_tools=set(snapshot.known_tools))
        finally:
            snapshot.drop("the snapshot was made only for a reader")

    async def load(self, copy: VariableCopy) -> VariablePoint:
        """Add the variables of a copy to those of this sandbox."""
        if not isinstance(copy, VariablesFile) or copy.file < 0:
            raise SandboxError("This copy of variables is closed, or was made by another kind of sandbox.")
        async with self._scheduler.slot("exclusive"):
            await load_variables(self._run_call, await self._connect(), copy)
        return copy.point


def _refuse_if_lost(connection: WorkerConnection, woken: ForkSocket | None) -> None:
    """End what was woken, and refuse, if a tree of processes is gone or about to go.

    Race: a session was closed, or a sandbox restarted. Nothing may take the place of such a tree's worker.

    Raises:
        SandboxError: Saying why it is gone.
    """
    if connection.lost_reason is not None:
        if woken is not None:
            woken.close(kill=True)
        raise SandboxError(f"The variables are gone: {connection.lost_reason}.")


def _cannot_restore(call_id: str, reason: str) -> SandboxError:
    return SandboxError(f"Cannot restore variables to before call {call_id!r}: {reason}.")
