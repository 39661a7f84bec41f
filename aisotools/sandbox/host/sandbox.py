"""The sandbox as a session uses it: one confined worker at a time, and the steps that stop a call.

Stopping a call: cancel it where it awaits and interrupt it where it runs; wait a grace period; then end the
worker with all it started, and restore the snapshot from before the call, or start a fresh worker if there is
none. Control comes back within half a second of the deadline, whatever the call does, and the next call
works.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aisotools.core.concurrency import TICK_S, wait_for_tasks
from aisotools.core.exceptions import ChannelError, SandboxError, WorkerDied
from aisotools.core.sandboxes import (
    INTERRUPTED_BEFORE,
    CallDispatch,
    SandboxCall,
    SandboxListener,
    SandboxStatus,
)
from aisotools.core.types import ToolResult
from aisotools.sandbox.confinement import levels
from aisotools.sandbox.host.calls import PendingCall, StopTimeouts, send_call
from aisotools.sandbox.host.connection import WorkerConnection
from aisotools.sandbox.host.displays import DisplayRouter
from aisotools.sandbox.host.failures import (
    Recovery,
    describe_recovery,
    explain_replaced,
    timeout_result,
    unreadable_result,
    worker_died_result,
)
from aisotools.sandbox.host.leftovers import CallTimes, ReadWatch
from aisotools.sandbox.host.monitor import estimate_memory
from aisotools.sandbox.host.readers import Readers
from aisotools.sandbox.host.scheduler import CallScheduler
from aisotools.sandbox.host.snapshot_store import MemoryBudget
from aisotools.sandbox.host.snapshots import SnapshotHistory
from aisotools.sandbox.host.starting import WorkerStarter
from aisotools.sandbox.host.worker_limits import (
    UNKNOWN_LIMITS,
    LoweredLimits,
    explain_lowered,
    worker_replaced_result,
)
from aisotools.sandbox.limits import LIMIT, LimitExceeded, explain_failure
from aisotools.sandbox.process import spawn, tree

_log = logging.getLogger(__name__)
# How long an old tree may take to end before a new one is started all the same.
_OLD_TREE_S = 6.0
# How many calls in a row may find the worker broken before no snapshot is trusted any more.
_MOST_BROKEN = 2
_NO_SWEEP = contextlib.nullcontext()


@dataclass(slots=True)
class _Caller:
    """A task that waits in `LocalSandbox.call`.

    Attributes:
        dispatch: Whether its call was given to the worker, or to a reader.
        cancel_requests: How often it had been cancelled before.
        is_interrupted: Whether `interrupt` cancelled it.
    """

    dispatch: CallDispatch
    cancel_requests: int
    is_interrupted: bool = False


class LocalSandbox:
    """Implements `aisotools.core.sandboxes.Sandbox` with real processes.

    Attributes:
        displays: Routes what watched calls display and ask.
        variables: The history of the variables.
        has_readers: Whether tools that only read can be held to it at this level, on this machine.
    """

    def __init__(
        self,
        spec: spawn.WorkerSpec,
        listener: SandboxListener,
        *,
        start_timeout_s: float = 20.0,
        slow_fork_s: float = 0.05,
        stop_timeouts: StopTimeouts | None = None,
        snapshot_budget: MemoryBudget | None = None,
    ) -> None:
        """Prepare a sandbox. Nothing is started before the first call.

        Args:
            spec: How workers are made.
            listener: Receives starts, losses, output and progress.
            start_timeout_s: A start that takes longer is tried once more, with another fork server.
            slow_fork_s: After a snapshot took longer, some calls go without.
            stop_timeouts: How long stopping a call may take.
            snapshot_budget: Memory for snapshots; by default a share of the machine's.
        """
        self._spec = spec
        self._starter = WorkerStarter(self._connect_to, timeout_s=start_timeout_s)
        self._stop_timeouts = stop_timeouts or StopTimeouts()
        self._listener = listener
        self._connection: WorkerConnection | None = None
        self._replaced: frozenset[str] = frozenset()
        # Those that are not closed yet, each with the task that ends it.
        self._connections: dict[WorkerConnection, asyncio.Task[None] | None] = {}
        self._callers: dict[asyncio.Task[Any], _Caller] = {}
        self._start_lock = asyncio.Lock()
        self._scheduler = CallScheduler()
        self._limit_task: asyncio.Task[None] | None = None
        self._recovery: asyncio.Task[Recovery | None] | None = None
        self._generation = 0
        self._started_s = 0.0
        self._restart_reason = ""
        # Whether the worker ended last while no call ran, and why, until a result says so.
        self._ended_idle = False
        self._unreported_end = ""
        # What a result has said to be about to be restored; and how many calls in a row broken workers ended.
        self._announced: Recovery | None = None
        self._broken_in_a_row = 0
        self._closed = False
        self._process = os.getpid()
        self._call_times = CallTimes()
        self.displays = DisplayRouter()
        self.variables = SnapshotHistory(
            self._scheduler,
            connect=self._connect,
            run_call=self._run,
            on_replaced=self._on_worker_replaced,
            slow_s=slow_fork_s,
            budget=snapshot_budget,
            on_dropped=listener.variables_dropped,
        )
        self._read_watch = ReadWatch(spec.workspace, self.variables.pids, self.variables.settled)
        self.has_readers = levels.has_readers(spec.level, spec.landlock_abi)
        self._readers = Readers(
            self.variables,
            listener,
            self.displays,
            limits=spec.limits,
            level=spec.level,
            workspace=spec.workspace,
            interrupt_s=self._stop_timeouts.interrupt_s,
            kill_s=self._stop_timeouts.kill_s,
        )
        self._readers.unreadable = _absolute(spec.workspace, spec.unreadable)

    def __repr__(self) -> str:
        return f"<LocalSandbox {self._spec.level} generation={self._generation} {self._connection!r}>"

    def prepare(self) -> None:
        """Begin to start a worker, and do not wait; see `aisotools.core.sandboxes.SupportsEarlyStart`."""
        if self._connection is None:
            self._starter.prepare(self._spec)

    def discard_prepared(self) -> None:
        """End a worker that `prepare` has asked for and no call has used; the next call starts another."""
        self._starter.discard("what lies in the workspace was replaced")

    async def start(self) -> SandboxStatus:
        """Start a worker unless there is one, and return the status.

        Raises:
            SandboxError: If no worker starts.
        """
        await self._connect()
        return self._status()

    @property
    def replaced_paths(self) -> Collection[str]:
        """Denied paths at which something was replaced; see `aisotools.core.sandboxes.SupportsPathRules`."""
        return self._replaced

    async def deny_paths(self, unreadable: Sequence[str], unwritable: Sequence[str]) -> Collection[str]:
        """Enforce rules about paths from now on; see `aisotools.core.sandboxes.SupportsPathRules`."""
        async with self._start_lock:  # a worker that is just being started goes by the paths of before
            self._spec = dataclasses.replace(
                self._spec, unreadable=tuple(unreadable), unwritable=tuple(unwritable)
            )
            self._starter.discard("the rules about paths changed before it was used")
            self._readers.unreadable = _absolute(self._spec.workspace, unreadable)
            # A reader that is kept may still read a folder that has got the name of a denied path.
            self._readers.outdate()
            if self._connection is not None and self._spec.level == "isolated":
                await self._connection.mount_denied(unreadable, unwritable)
            # The supervisor has told of them before it answered.
            replaced, self._replaced = self._replaced, frozenset()
            return replaced

    @property
    def supervisor(self) -> int:
        """The process above everything that runs in the sandbox; 0 when nothing does."""
        return self._connection.supervisor if self._connection is not None else 0

    @property
    def worker_pid(self) -> int:
        """The worker's process id; 0 when there is none."""
        return self._connection.pid if self._connection is not None else 0

    @property
    def home(self) -> str:
        """The home folder of what runs in the sandbox; empty when there is no worker."""
        scratch = self._connection.scratch if self._connection is not None else ""
        return f"{scratch}/home" if scratch else ""

    def status(self) -> SandboxStatus:
        """Return the status right now, with the memory in use."""
        return self._status(_tree_bytes(self.supervisor))

    def _status(self, memory_bytes: int = 0) -> SandboxStatus:
        connection = self._connection
        if connection is None:
            return SandboxStatus(level=self._spec.level, alive=False, generation=self._generation)
        return SandboxStatus(
            level=self._spec.level,
            alive=True,
            pid=connection.pid,
            generation=self._generation,
            memory_bytes=memory_bytes,
            age_s=time.monotonic() - self._started_s,
        )

    # ---- calls

    async def call(self, request: SandboxCall) -> ToolResult:
        """Run one call; see `aisotools.core.sandboxes.Sandbox.call`."""
        if request.dispatch.is_interrupted:
            request.dispatch.is_given = False
            return INTERRUPTED_BEFORE
        task = asyncio.current_task()
        assert task is not None
        caller = self._callers[task] = _Caller(request.dispatch, task.cancelling())
        concurrency = request.shipment.concurrency
        request.dispatch.is_given = False
        try:
            await self._scheduler.acquire(concurrency)
            try:
                connection = await self._connect()
                while connection.sweep_lock.locked():
                    # The sweep after a stopped call may take longer than that call waited for it.
                    async with connection.sweep_lock:
                        pass
                    connection = await self._connect()  # its worker may have ended meanwhile
                # One that needs a reader may have to wait until that is made. For any other, a restore point
                # is taken now, which discards what variables could be redone.
                request.dispatch.is_given = not (request.in_reader or request.is_trial)
                if connection.monitor is not None:
                    connection.monitor.note_call()
                # What starts no programs can leave none behind.
                starts = request.shipment.programs != "none"
                call = request.call
                with self._call_times.running(call.id, call.name) if starts else contextlib.nullcontext():
                    if request.in_reader or request.is_trial:
                        result = await self._read_watch.run(
                            connection.supervisor,
                            connection.pid,
                            functools.partial(self._run_in_reader, connection, request),
                            is_in_worker=False,
                        )
                    elif request.read_only and starts:
                        result = await self._read_watch.run(
                            connection.supervisor,
                            connection.pid,
                            lambda _: self._run(connection, request),
                            is_in_worker=True,
                        )
                    else:
                        if concurrency != "overlap" and not request.read_only:
                            self.variables.take_snapshot(
                                connection, request.call.id, changes_variables=request.changes_variables
                            )
                        result = await self._run(connection, request)
                    if result.metadata.get(LIMIT) != "processes":
                        return result
                    await self.variables.settled()  # or its forks would count as a call's
                    own = self.variables.pids()
                    return await self._call_times.explain(result, connection.supervisor, connection.pid, own)
            finally:
                self._scheduler.release(concurrency)
        except asyncio.CancelledError:
            # Two meanings of cancellation: `interrupt` cancels a queued caller to stop its call, which is a
            # result. If somebody else has cancelled the task as well, that wins.
            if caller.is_interrupted and task.uncancel() <= caller.cancel_requests:
                return INTERRUPTED_BEFORE
            raise
        finally:
            del self._callers[task]

    async def _run_in_reader(
        self, connection: WorkerConnection, request: SandboxCall, on_sent: Callable[[], None]
    ) -> ToolResult:
        if not self.has_readers:
            reason = f"level {self._spec.level} has no way to hold a tool to reading on this machine"
            return unreadable_result(request, reason)

        def note_sent() -> None:
            request.dispatch.is_given = True
            on_sent()

        result = await self._readers.run(connection, request, note_sent)
        if end := self._unreported_end:
            result, self._unreported_end = explain_replaced(result, end, request.dispatch), ""
        return result

    async def _run(
        self, connection: WorkerConnection, request: SandboxCall, attachments: Sequence[int] = ()
    ) -> ToolResult:
        changes_variables = request.changes_variables and not request.read_only
        if changes_variables:
            self._readers.outdate()
        try:
            # Race: a sweep spares the calls that run when it begins, so no call begins while it is under way.
            # One that only waits for the lock has not begun, and nothing comes between the look and the call.
            async with connection.sweep_lock if connection.sweep_lock.locked() else _NO_SWEEP:
                pending = send_call(connection, request, attachments, self._readers.unreadable)
        except WorkerDied as error:
            return worker_died_result(error, await self._last_recovery())
        except ChannelError as error:
            content = f"{request.call.name} was not run: it could not be sent to the sandbox. {error}"
            return ToolResult.error(content, error_kind="invalid")
        try:
            if request.dispatch.is_interrupted:
                # Race: that was while the call was about to be sent, and could not be found among those sent.
                pending.is_interrupted = True
                await self._stop(connection, request, pending, "interrupted")
            done, _ = await asyncio.wait([pending.future], timeout=request.timeout_s)
            if not done:
                result = await self._on_timeout(connection, request, pending)
            else:
                result = await self._result(connection, request, pending)
            if not result.is_error:
                self._broken_in_a_row = 0
            exceeded, monitor = pending.exceeded_limit, connection.monitor
            if exceeded is None and monitor is not None:
                # The kernel kills for processor time before the monitor samples again: the worker, or the
                # call's command.
                if "worker_died" in result.metadata:
                    exceeded = connection.exit_limit
                elif result.content.rstrip().endswith("[exit code 137]"):
                    exceeded = monitor.post_mortem()
            elif exceeded is not None and monitor is not None and exceeded.limit == "disk_bytes":
                await monitor.accept_disk()
            # Our own file tools lower none; what a thread lowers meanwhile is found after the next call.
            lowered = (
                self._put_limits_back(connection, pending, result) if request.changes_variables else None
            )
            if exceeded is not None:
                result = exceeded.apply_to(result)
            elif result.is_error and (lowered is None or (lowered.is_known and not lowered)):
                result = explain_failure(result, self._spec.limits, self._spec.level)
            if end := self._unreported_end:
                result, self._unreported_end = explain_replaced(result, end, request.dispatch), ""
            return await self._report_lowered(connection, result, lowered) if lowered else result
        except asyncio.CancelledError:
            # Cancelled while user code runs: stop the code, then let the cancellation through. Shielded
            # against further cancellations, however many: the slot must not be released while the code still
            # runs.
            pending.is_interrupted = True
            stopping = asyncio.ensure_future(self._stop(connection, request, pending, "cancelled"))
            while not stopping.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([stopping])
            raise
        finally:
            connection.calls.finish(pending)
            if changes_variables:
                # Once more: a reader that was made while the call ran sees a state in between.
                self._readers.outdate()
                self.variables.on_variables_changed()

    async def _result(
        self, connection: WorkerConnection, request: SandboxCall, pending: PendingCall
    ) -> ToolResult:
        try:
            result = await pending.result(request.output_caps)
        except WorkerDied as error:
            died_result = worker_died_result(error, await self._last_recovery(pending))
            # A call that could not be interrupted is stopped all the same, with its worker.
            return died_result.with_metadata(stopped=True) if pending.is_interrupted else died_result
        except ChannelError as error:
            died = WorkerDied(f"it sent a malformed result: {error}", last_words=connection.last_words)
            return worker_died_result(died, await self._end_worker(connection, str(died), pending))
        if True in (result.metadata.get("timed_out"), result.metadata.get("stopped")):
            await connection.sweep(pending, within_s=self._stop_timeouts.kill_s)
        return result

    def _put_limits_back(
        self, connection: WorkerConnection, call: PendingCall, result: ToolResult
    ) -> LoweredLimits | None:
        """Return the kernel's limits that a call has lowered in the worker, after they were put back."""
        # What took the place of a worker that died has the limits of its snapshot, and is looked at after its
        # first call.
        if connection.limits is None or "worker_died" in result.metadata:
            return None
        if not connection.is_serving:
            return UNKNOWN_LIMITS
        if any(other is not call for other in connection.calls):
            return connection.limits.find_lowered(connection.pid)
        return connection.limits.put_back(connection.pid)

    async def _report_lowered(
        self, connection: WorkerConnection, result: ToolResult, lowered: LoweredLimits
    ) -> ToolResult:
        """Say in a result that limits were lowered, and replace the worker if they cannot be put back."""
        if not lowered.final:
            return explain_lowered(result, lowered, what=lowered.describe_end())
        reason = f"code in it has lowered hard limits: {lowered}"
        recovery = await self._end_worker(connection, reason)
        limits = connection.limits
        if limits is not None and connection.is_serving and limits.put_back(connection.pid).final:
            # The snapshot is no better: a thread had lowered them before it was taken.
            connection.lose(reason)
            recovery = None
        return worker_replaced_result(result, lowered, recovery=describe_recovery(recovery))

    async def _on_timeout(
        self, connection: WorkerConnection, request: SandboxCall, pending: PendingCall
    ) -> ToolResult:
        reason = f"timed out after {request.timeout_s:g} s"
        survived, recovery = await self._stop(connection, request, pending, reason)
        stopped = await self._result(connection, request, pending) if survived else None
        return timeout_result(
            request.call.name,
            request.timeout_s,
            pending.output.texts(),
            partial=None if stopped is None else stopped.content,
            recovery=recovery,
            has_threads=stopped is not None and bool(stopped.metadata.get("threads_left")),
        )

    # ---- stopping

    async def _stop(
        self, connection: WorkerConnection, request: SandboxCall, pending: PendingCall, reason: str
    ) -> tuple[bool, Recovery | None]:
        """Stop a call. Return whether the worker survived; if not, the snapshot that was restored, if any."""
        if await self._interrupt_calls(connection, [pending]):
            await connection.sweep(pending, within_s=self._stop_timeouts.kill_s)
            if connection.is_serving:
                return True, None
        message = f"{request.call.name} could not be interrupted ({reason})"
        return False, await self._end_worker(connection, message, pending)

    async def _interrupt_calls(self, connection: WorkerConnection, calls: Sequence[PendingCall]) -> bool:
        """Interrupt `calls`. Return whether all ended in time, and the worker is still there."""
        for call in calls:
            connection.cancel_call(call)
        _, unfinished = await asyncio.wait(
            [call.future for call in calls], timeout=self._stop_timeouts.interrupt_s
        )
        return not unfinished and connection.is_serving

    async def interrupt(self) -> None:
        """Stop whatever runs or waits to run, keeping the worker if its calls can be interrupted."""
        for task, caller in self._callers.items():
            caller.dispatch.is_interrupted = True
            if not caller.dispatch.is_given:
                caller.is_interrupted = True
                task.cancel()
        await asyncio.gather(self._interrupt_worker(), self._readers.interrupt())

    async def _interrupt_worker(self) -> None:
        connection = self._connection
        if connection is None or not connection.calls:
            return
        calls = list(connection.calls)
        for call in calls:
            call.is_interrupted = True
        if not await self._interrupt_calls(connection, calls):
            await self._end_worker(connection, "a call could not be interrupted")

    # ---- limits

    def _on_limit_exceeded(self, connection: WorkerConnection, exceeded: LimitExceeded) -> None:
        if self._readers.free(exceeded):
            return
        if exceeded.limit == "memory_bytes" and self.variables.drop_all_but_newest():
            # Snapshots go before running code. The next check tells whether that was enough.
            return
        for call in connection.calls:
            call.note_limit(exceeded)
        if exceeded.limit in {"memory_bytes", "open_files_total", "cpu_s"} or not connection.calls:
            # Memory must be freed now, and so must what the user's other programs need of the kernel, which
            # is about to kill for processor time.
            connection.worker_exited(str(exceeded))
        elif self._limit_task is None or self._limit_task.done():
            self._limit_task = asyncio.get_running_loop().create_task(
                self._interrupt_for_limit(connection, exceeded)
            )

    async def _interrupt_for_limit(self, connection: WorkerConnection, exceeded: LimitExceeded) -> None:
        if not await self._interrupt_calls(connection, list(connection.calls)):
            await self._end_worker(connection, str(exceeded))

    # ---- ending and recovering the worker

    async def restart(self) -> SandboxStatus:
        """End the worker and everything it started, and start a fresh one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            reason, self._restart_reason = "the sandbox was restarted", "it was restarted"
            self.variables.clear(reason)
            if connection.calls.has_had_any:  # those under way say it themselves
                self._unreported_end = "" if connection.calls else f"{reason}; its variables are lost"
            await self._end_worker(connection, reason)
        return await self.start()

    async def close(self) -> None:
        """End the worker and everything it started. A forked process ends nothing of its parent's."""
        self._closed = True
        if self._process != os.getpid():
            return
        self._starter.close()
        self._connection = None
        self._read_watch.close()
        reason = "the session was closed"
        self.variables.clear(reason)
        for connection in tuple(self._connections):
            connection.lose(reason)
        failures: list[BaseException] = []
        # A worker that was just being started is added while we wait: ask again until none is left.
        while endings := {task: connection for connection, task in self._connections.items() if task}:
            # Case: the loop on which it was ended has been stopped for good, as by the end of `asyncio.run`.
            for task in await wait_for_tasks(endings, _OLD_TREE_S):
                again = self._terminate(endings[task], reason)
                self._connections[endings[task]] = asyncio.get_running_loop().create_task(again)
            ended = [task for task in endings if task.done() and not task.cancelled()]
            failures += filter(None, (task.exception() for task in ended))
        await self.variables.close(reason)
        if failures:
            raise failures[0]

    async def _end_worker(
        self, connection: WorkerConnection, reason: str, call: PendingCall | None = None
    ) -> Recovery | None:
        """End the worker and all it started; if that is slow, the rest happens in the background."""
        connection.worker_exited(reason)
        if connection.lost_reason is not None:
            await asyncio.wait([connection.processes_ended], timeout=self._stop_timeouts.kill_s)
        return await self._last_recovery(call)

    def _on_worker_exit(self, connection: WorkerConnection, reason: str) -> bool:
        """Start to restore a snapshot in the place of a worker that died. Return False if there is none."""
        self._readers.outdate()
        if self._closed or connection is not self._connection or not self.variables.can_recover(connection):
            return False
        # Noted now: the calls are finished, and forgotten, while the recovery waits for its turn.
        failed_calls = frozenset(call.call_id for call in connection.calls)
        if connection.is_broken:
            self._broken_in_a_row += 1
            if self._broken_in_a_row > _MOST_BROKEN:
                return False
        self._announced = None
        self._ended_idle = not failed_calls
        self._recovery = asyncio.get_running_loop().create_task(
            self._recover(connection, reason, failed_calls)
        )
        return True

    async def _recover(
        self, connection: WorkerConnection, reason: str, failed_calls: frozenset[str]
    ) -> Recovery | None:
        try:
            recovery = await self.variables.recover(connection, reason, failed_calls)
        except SandboxError as error:
            connection.lose(f"{reason}; {error}")
            if self._announced is not None:
                self._unreported_end = f"{reason}; its variables are lost, as no snapshot could be restored"
            return None
        announced = self._announced
        if announced is not None and recovery and announced.point.call_id != recovery.point.call_id:
            self._unreported_end = f"{reason}. {describe_recovery(recovery)}"
        return recovery

    async def _last_recovery(self, call: PendingCall | None = None) -> Recovery | None:
        """Return what was restored after the last loss; if that takes too long for `call`, what will be."""
        if (recovery := self._recovery) is None:
            return None
        ends_s = time.monotonic() + self._stop_timeouts.settle_s
        # `wait`, not `await`: the recovery belongs to the sandbox and goes on when this call is cancelled.
        done, _ = await asyncio.wait([recovery], timeout=self._stop_timeouts.recover_s)
        while not (done or call is None or call.is_interrupted or time.monotonic() > ends_s):
            done, _ = await asyncio.wait([recovery], timeout=TICK_S)
        if not done:
            self._announced = self.variables.expected_recovery
            return self._announced
        return None if recovery.cancelled() else recovery.result()

    def _on_worker_replaced(self, reason: str, lossy: bool) -> None:
        """Report that another worker has taken over; `lossy` if variables were lost."""
        self._readers.outdate()
        if lossy:
            self._listener.lost(self._generation, reason)
            # A call that ran says so itself.
            self._unreported_end = reason if self._ended_idle else ""
        self._generation += 1
        self._started_s = time.monotonic()
        self._listener.started(self._status(), reason)

    def _on_paths_replaced(self, paths: Iterable[str]) -> None:
        # Hostile: whoever has got out of the worker can send anything. There are no more than are denied.
        replaced = {*self._spec.unreadable, *self._spec.unwritable}.intersection(paths)
        for path in sorted(replaced - self._replaced):
            _log.info("%r, which a rule of the policy denies, was replaced or touched.", path)
        self._replaced |= replaced

    def _on_lost(self, connection: WorkerConnection, reason: str) -> None:
        """Forget a tree that is lost, for whatever reason, and end it in the background."""
        self._connections[connection] = asyncio.get_running_loop().create_task(
            self._terminate(connection, reason)
        )
        # They end with the tree, and none serves another one.
        self._readers.end_all(reason)
        recovery, self._recovery = self._recovery, None
        if connection is self._connection:
            self._connection = None
            has_reported = recovery is not None and not recovery.done() and not self._ended_idle
            if not connection.calls and not has_reported:
                self._unreported_end = f"{reason}; its variables are lost"
            self._restart_reason = reason
            self.variables.clear(f"the worker was lost: {reason}")
            self._listener.lost(self._generation, reason)

    async def _terminate(self, connection: WorkerConnection, reason: str) -> None:
        try:
            await connection.terminate(reason)
        except asyncio.CancelledError:
            raise  # its loop ends, and `close` ends the tree on another one
        except BaseException:
            self._connections.pop(connection, None)
            raise
        self._connections.pop(connection, None)

    # ---- starting a worker

    async def _connect(self) -> WorkerConnection:
        """Return the connection to a worker that takes calls, started if there is none."""
        if self._connection is not None and self._connection.is_serving:
            return self._connection
        async with self._start_lock:
            if self._recovery is not None:
                # Race: the worker has died and a snapshot is about to take its place. Starting a fresh one
                # now would lose all variables.
                await asyncio.wait([self._recovery])
            if self._connection is None:
                # Nothing of an old tree may run beside the new one: both write to the same workspace.
                for old in tuple(self._connections):
                    if old is not self._starter.prepared:
                        await asyncio.wait([old.processes_ended], timeout=_OLD_TREE_S)
                connection = await self._starter.start(self._spec)
                connection.start_monitor(
                    self._spec.limits,
                    folders=(self._spec.workspace,),
                    is_busy=lambda: bool(self._callers),
                    on_exceeded=functools.partial(self._on_limit_exceeded, connection),
                )
                self._connection = connection
                self._generation += 1
                self._started_s = time.monotonic()
                reason, self._restart_reason = self._restart_reason, ""
                self._listener.started(self._status(), reason)
            return self._connection

    def _connect_to(self, handles: spawn.WorkerHandles) -> WorkerConnection:
        """Return the connection to a tree that has just been spawned; it ends with this sandbox."""
        connection = WorkerConnection(
            handles,
            listener=self._listener,
            displays=self.displays,
            exempt_pids=self.variables.pids,
            on_worker_exit=self._on_worker_exit,
            on_lost=self._on_lost,
            on_paths_replaced=self._on_paths_replaced,
        )
        self._connections[connection] = None
        return connection


def _absolute(workspace: str, paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{workspace}/{path}" for path in paths)


def _tree_bytes(supervisor: int) -> int:
    """Return the memory of a worker and all around it; see `estimate_memory`."""
    if not supervisor:
        return 0
    return estimate_memory((supervisor, *tree.descendants(supervisor)))
