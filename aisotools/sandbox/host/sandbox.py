"""The sandbox as the session uses it: one confined worker at a time, and the ladder that stops a call.

Stopping a call: have the worker cancel it where it waits and interrupt it where it runs; wait a grace period;
then end the worker with all it started, and have the state from before the call back, or a fresh worker if
there is none. Control comes back within half a second of the deadline, whatever the call does, and the next
call works.

A call on its way to the worker: as the channel carries it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from aisotools.core.exceptions import ChannelError, SandboxError, WorkerDied
from aisotools.core.protocols import Concurrency, SandboxCall, SandboxListener, SandboxStatus
from aisotools.core.types import ToolResult
from aisotools.sandbox.host.calls import DisplayRouter, PendingCall
from aisotools.sandbox.host.connection import WorkerConnection
from aisotools.sandbox.host.monitor import ResourceMonitor, pss_bytes
from aisotools.sandbox.host.scheduler import CallScheduler
from aisotools.sandbox.host.snapshots import Recovery, SnapshotHistory, died, overdue
from aisotools.sandbox.limits import LimitExceeded, explain_failure, was_killed
from aisotools.sandbox.process import spawn, tree
from aisotools.sandbox.results import result_from_worker


def send(
    link: WorkerConnection, request: SandboxCall, watch: Mapping[str, Any], attached: Sequence[int] = ()
) -> PendingCall:
    """Send a call, and its tool if the worker does not have it.

    Args:
        link: The worker.
        request: The call.
        watch: How it is watched.
        attached: Descriptors that go along.

    Raises:
        WorkerDied: If the worker is gone already.
        ChannelError: If the call is too large to send.
    """
    call, shipment, caps = request.call, request.shipment, request.output_caps
    header: dict[str, Any] = {
        "key": shipment.key,
        "concurrency": shipment.concurrency,
        "agent_id": call.agent_id,
        "turn_id": call.turn_id,
        "session_key": request.session_key,
        "read_only": request.read_only,
        "caps": caps,
        **watch,
    }
    parts = [to_json(call.arguments)]
    if shipment.import_path:
        header["import_path"] = shipment.import_path
    elif shipment.key not in link.shipped:
        parts.append(shipment.payload)
    pending = link.start_call(
        call.id,
        header,
        parts,
        stream_bytes=caps.stream_bytes,
        holds=shipment.concurrency != "overlap",
        attached=attached,
    )
    link.shipped.add(shipment.key)
    return pending


_GRACE_S = 0.35
_KILL_S = 0.08
_RECOVER_S = 0.13
_END_S = 6.0


@dataclass(slots=True)
class _Caller:
    """A task that waits in `LocalSandbox.call`.

    Attributes:
        cancelling: How often it had been cancelled before.
        queued: Whether its call has not been sent yet.
        interrupted: Whether it was us who cancelled it.
    """

    cancelling: int
    queued: bool = True
    interrupted: bool = False


class LocalSandbox:
    """Implements `aisotools.core.protocols.Sandbox` with real processes.

    Attributes:
        screens: Who watches which call; they see it while it runs.
        variables: The kept states of the variables.
    """

    def __init__(
        self,
        wanted: spawn.WorkerSpec,
        listener: SandboxListener,
        *,
        start_timeout_s: float = 20.0,
        slow_fork_s: float = 0.05,
    ) -> None:
        """Be ready to start the worker that `wanted` describes; nothing is started yet.

        Args:
            wanted: The worker.
            listener: Hears what happens.
            start_timeout_s: A start that takes longer is tried once more, with another fork server.
            slow_fork_s: After keeping a state took longer, some calls go without.
        """
        self._wanted = wanted
        self._start_timeout_s = start_timeout_s
        self._listener = listener
        self._link: WorkerConnection | None = None
        self._links: dict[
            WorkerConnection, asyncio.Task[None] | None
        ] = {}  # those not closed yet, and what ends them
        self._callers: dict[asyncio.Task[Any], _Caller] = {}
        self._starting = asyncio.Lock()
        self._turns = CallScheduler()
        self._calming: asyncio.Task[None] | None = None
        self._generation = 0
        self._since_s = 0.0
        self._why_new = ""
        self._closed = False
        self._recovering: asyncio.Task[Recovery | None] | None = None
        self.screens = DisplayRouter()
        self.variables = SnapshotHistory(
            self._turns, ensure=self._ensure, run=self._run, renewed=self._renewed, slow_s=slow_fork_s
        )

    def __repr__(self) -> str:
        return f"<Kernel {self._wanted.level} generation={self._generation} {self._link!r}>"

    async def start(self) -> SandboxStatus:
        """Have a worker up; at once if there is one.

        Raises:
            SandboxError: If no worker comes up.
        """
        await self._ensure()
        return self._status()

    @property
    def supervisor(self) -> int:
        """The process above everything that runs in the sandbox; 0 when nothing does."""
        return self._link.supervisor if self._link is not None else 0

    def status(self) -> SandboxStatus:
        """The state right now."""
        return self._status(_tree_bytes(self._link.supervisor) if self._link is not None else 0)

    def _status(self, memory_bytes: int = 0) -> SandboxStatus:
        link = self._link
        if link is None:
            return SandboxStatus(level=self._wanted.level, alive=False, generation=self._generation)
        return SandboxStatus(
            level=self._wanted.level,
            alive=True,
            pid=link.pid,
            generation=self._generation,
            memory_bytes=memory_bytes,
            age_s=time.monotonic() - self._since_s,
        )

    # ---- calls

    async def call(self, request: SandboxCall) -> ToolResult:
        """Run one call; see `aisotools.core.protocols.Sandbox.call`."""
        task = asyncio.current_task()
        assert task is not None
        caller = self._callers[task] = _Caller(task.cancelling())
        concurrency = request.shipment.concurrency
        try:
            link = await self._enter(concurrency)
            try:
                caller.queued = False
                if concurrency != "overlap" and not request.read_only:
                    self.variables.before(link, request.call.id)
                return await self._run(link, request)
            finally:
                self._turns.release(concurrency)
        except asyncio.CancelledError:
            if caller.interrupted and task.uncancel() <= caller.cancelling:
                return ToolResult.error("The call was interrupted before it ran.").with_metadata(stopped=True)
            raise
        finally:
            del self._callers[task]

    async def _enter(self, concurrency: Concurrency) -> WorkerConnection:
        """Wait for a turn and a worker; the turn is to be released."""
        await self._turns.take(concurrency)
        try:
            return await self._ensure()
        except BaseException:
            self._turns.release(concurrency)
            raise

    async def _run(
        self, link: WorkerConnection, request: SandboxCall, attached: Sequence[int] = ()
    ) -> ToolResult:
        try:
            pending = send(link, request, self.screens.header(request.call.id), attached)
        except WorkerDied as error:
            return died(error, await self._recovered())
        except ChannelError as error:
            told = f"{request.call.name} was not run: its arguments or its code are too large. {error}"
            return ToolResult.error(told, error_kind="invalid")
        try:
            done, _ = await asyncio.wait([pending.future], timeout=request.timeout_s)
            if not done:
                result = await self._timed_out(link, request, pending)
            else:
                result = await self._result(link, request, pending)
            over = pending.over
            if over is None and link.watch is not None and was_killed(result):
                over = link.watch.post_mortem()
            wanted = self._wanted
            if over is not None:
                return over.apply_to(result)
            return explain_failure(result, wanted.limits, wanted.level)
        except asyncio.CancelledError:
            stopping = asyncio.ensure_future(self._stop(link, request, pending, "it was cancelled"))
            while not stopping.done():  # however often we are cancelled: the turn is not given back before
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([stopping])
            raise
        finally:
            link.calls.end(pending)
            self.screens.over(request.call.id)

    async def _result(self, link: WorkerConnection, request: SandboxCall, pending: PendingCall) -> ToolResult:
        try:
            pieces = pending.future.result()
            result = result_from_worker(pieces, request.output_caps, pending.printed)
        except WorkerDied as error:
            return died(error, await self._recovered())
        except ChannelError as error:
            lost = WorkerDied(f"it sent a malformed result: {error}", last_words=link.last_words)
            return died(lost, await self._end(link, str(lost)))
        if True in (result.metadata.get("timed_out"), result.metadata.get("stopped")):
            await link.sweep(pending, within_s=_KILL_S)
        return result

    async def _timed_out(
        self, link: WorkerConnection, request: SandboxCall, pending: PendingCall
    ) -> ToolResult:
        ran = f"it ran longer than {request.timeout_s:g} s"
        survived, recovery = await self._stop(link, request, pending, ran)
        gave = (await self._result(link, request, pending)).content if survived else None
        return overdue(request.call.name, ran, pending.printed.told(), gave=gave, recovery=recovery)

    # ---- stopping

    async def _stop(
        self, link: WorkerConnection, request: SandboxCall, pending: PendingCall, why: str
    ) -> tuple[bool, Recovery | None]:
        """Climb the ladder; whether the worker survived, else what was had back of its variables."""
        if await self._interrupt(link, [pending]):
            await link.sweep(pending, within_s=_KILL_S)
            if link.serving:
                return True, None
        return False, await self._end(link, f"{request.call.name} could not be interrupted ({why})")

    async def _interrupt(self, link: WorkerConnection, calls: Sequence[PendingCall]) -> bool:
        """Whether all `calls` came to an end in time, and the worker is still there."""
        for call in calls:
            link.cancel_call(call)
        _, left = await asyncio.wait([call.future for call in calls], timeout=_GRACE_S)
        return not left and link.serving

    async def interrupt(self) -> None:
        """Stop whatever runs or waits to run, keeping the worker if it lets itself be stopped."""
        for task, caller in self._callers.items():
            if caller.queued:
                caller.interrupted = True
                task.cancel()
        link = self._link
        if link is not None and link.calls and not await self._interrupt(link, list(link.calls)):
            await self._end(link, "a call could not be interrupted")

    # ---- limits

    def _watched(self, link: WorkerConnection) -> ResourceMonitor:
        return ResourceMonitor(
            lambda: link.supervisor,  # it may be heard of after the worker itself
            self._wanted.limits,
            folders=(self._wanted.workspace, link.scratch),
            busy=lambda: bool(link.calls),
            on_over=functools.partial(self._over, link),
        )

    def _over(self, link: WorkerConnection, found: LimitExceeded) -> None:
        """A limit is exceeded: memory is taken back at once; else what runs is stopped, if it lets itself."""
        if found.limit == "memory_bytes" and self.variables.shed():
            return  # the past goes before the present
        for call in link.calls:
            call.over = call.over or found
        if found.limit in {"memory_bytes", "cpu_s"} or not link.calls:
            link.go_down(str(found))
        elif self._calming is None or self._calming.done():
            self._calming = asyncio.get_running_loop().create_task(self._calm(link, found))

    async def _calm(self, link: WorkerConnection, found: LimitExceeded) -> None:
        if not await self._interrupt(link, list(link.calls)):
            await self._end(link, str(found))

    # ---- the worker

    async def restart(self) -> SandboxStatus:
        """End the worker and everything it started, and have a fresh one."""
        link, self._link = self._link, None
        if link is not None:
            self.variables.clear("the sandbox was restarted")
            self._why_new = "it was restarted"
            await self._end(link, "the sandbox was restarted")
        return await self.start()

    async def close(self) -> None:
        """End the worker and everything it started."""
        self._closed = True
        self._link = None
        self.variables.clear("the session was closed")
        for link in tuple(self._links):
            link.lose("the session was closed")
        while ends := [task for task in self._links.values() if task is not None]:
            await asyncio.wait(ends)

    async def _end(self, link: WorkerConnection, reason: str) -> Recovery | None:
        """End the worker and all it started; if that is slow, the rest happens behind our back."""
        link.go_down(reason)
        if link.lost_because is not None:
            await asyncio.wait([link.ended], timeout=_KILL_S)
        return await self._recovered()

    def _down(self, link: WorkerConnection, reason: str) -> bool:
        """A worker is gone, but not what is kept of it: have a state back, if there is one."""
        if self._closed or link is not self._link or not self.variables.can_recover(link):
            return False
        running = frozenset(call.call_id for call in link.calls)
        self._recovering = asyncio.get_running_loop().create_task(self._recover(link, reason, running))
        return True

    async def _recover(self, link: WorkerConnection, reason: str, running: frozenset[str]) -> Recovery | None:
        try:
            return await self.variables.recover(link, reason, running)
        except SandboxError as error:
            link.lose(f"{reason}; {error}")
            return None

    async def _recovered(self) -> Recovery | None:
        """What was had back after the last loss; if that takes long, what is about to be."""
        recovering = self._recovering
        if recovering is None:
            return None
        done, _ = await asyncio.wait([recovering], timeout=_RECOVER_S)
        if not done:
            return self.variables.hope
        return None if recovering.cancelled() else recovering.result()

    def _renewed(self, reason: str, lossy: bool) -> None:
        """Another worker has taken the place of the one before."""
        if lossy:
            self._listener.lost(self._generation, reason)
        self._generation += 1
        self._since_s = time.monotonic()
        self._listener.started(self._status(), reason)

    def _lost(self, link: WorkerConnection, reason: str) -> None:
        """A worker is lost, for whatever reason: let it be ended, and forget it."""
        self._links[link] = asyncio.get_running_loop().create_task(self._bury(link, reason))
        self._recovering = None
        if link is self._link:
            self._link = None
            self._why_new = reason
            self.variables.clear(f"the worker was lost: {reason}")
            self._listener.lost(self._generation, reason)

    async def _bury(self, link: WorkerConnection, reason: str) -> None:
        try:
            await link.end(reason)
        finally:
            del self._links[link]

    async def _ensure(self) -> WorkerConnection:
        """The worker, started if there is none."""
        if self._link is not None and self._link.serving:
            return self._link
        async with self._starting:
            if self._recovering is not None:
                await asyncio.wait([self._recovering])
            if self._link is None:
                for old in tuple(self._links):  # nothing of an old tree may meet the new one
                    await asyncio.wait([old.ended], timeout=_END_S)
                self._link = await self._start_link()
                self._generation += 1
                self._since_s = time.monotonic()
                reason, self._why_new = self._why_new, ""
                self._listener.started(self._status(), reason)
            return self._link

    async def _start_link(self) -> WorkerConnection:
        """A worker that is ready; tried twice, since the fork server may have been lost under us."""
        for last in (False, True):
            if self._closed:
                raise SandboxError("The sandbox was closed.")
            server, link = spawn.server(), None
            try:
                link = WorkerConnection(server.spawn(self._wanted), self._listener, self._lost)
                link.calls.screens = self.screens
                link.on_down, link.spared = self._down, self.variables.pids
                self._links[link] = None
                await self._ready(link)
                link.watch = self._watched(link)
                return link
            except SandboxError:
                if last or self._closed:
                    raise
                if link is not None and not link.supervisor:
                    spawn.discard(server)  # it did not even begin
        raise AssertionError("unreachable")

    async def _ready(self, link: WorkerConnection) -> None:
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await asyncio.shield(link.ready)
        except TimeoutError:
            link.lose("its start was given up")
            told = f"No worker was ready within {self._start_timeout_s:g} s."
            raise SandboxError(told) from None
        except BaseException:
            link.lose("its start was given up")
            raise


def _tree_bytes(supervisor: int) -> int:
    """Proportional memory of a worker and all around it; what cannot be read counts as nothing."""
    if not supervisor:
        return 0
    return sum(map(pss_bytes, (supervisor, *tree.below(supervisor, tree.table()))))
