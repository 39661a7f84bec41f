"""The sandbox of one session of a pool, live while it has a slot there, and its states of variables."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any

from aisotools.core.exceptions import SandboxError, as_clause
from aisotools.core.sandboxes import (
    INTERRUPTED_BEFORE,
    Sandbox,
    SandboxCall,
    SandboxListener,
    SandboxStatus,
    SupportsPathRules,
    SupportsReaders,
    SupportsSnapshotProcesses,
    SupportsSnapshots,
    VariableCopy,
    VariableHistory,
    VariablePoint,
)
from aisotools.core.types import ToolResult
from aisotools.sandbox.host.failures import unreadable_result
from aisotools.session.slots import SlotPool
from aisotools.tools.adapter import supports

_REMEMBERED_CALLS = 1_000
"""Calls of one conversation of which it is remembered why the variables from before them are lost."""

MakeSandbox = Callable[[Sequence[str], Sequence[str]], Sandbox]
"""Makes a sandbox that must not read or write some paths, and not write others."""


class PooledVariables:
    """Restore points of the variables of one `PooledSandbox`. Implements `core.sandboxes.VariableHistory`.

    They are those of the live sandbox. With it they end, and it is remembered for which calls and why.
    """

    def __init__(self, sandbox: PooledSandbox) -> None:
        """Pass on what `sandbox` has while it is live."""
        self._sandbox = sandbox
        self._calls: OrderedDict[str, str] = OrderedDict()  # those that the live sandbox has got
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._why_not_redone = ""
        self._stop_reason = "it was not started yet"

    def __repr__(self) -> str:
        return f"<PooledVariables: {self._live!r}>"

    @property
    def _live(self) -> VariableHistory | None:
        live: object = self._sandbox.live
        return live.variables if supports(live, SupportsSnapshots) else None

    @property
    def _live_processes(self) -> SupportsSnapshotProcesses | None:
        live: object = self._live
        return live if supports(live, SupportsSnapshotProcesses) else None

    def note_call(self, call_id: str) -> None:
        """Note that the live sandbox gets a call."""
        _remember(self._calls, call_id)
        self._why_not_redone = ""

    def note_stop(self, reason: str) -> None:
        """Note that the live sandbox ends, with all restore points, before it does."""
        why = f"the sandbox was stopped since: {as_clause(reason)}"
        live = self._live
        if live is not None and not live.why_not_kept(None):
            self._why_not_redone = why
        for call_id in self._calls:
            _remember(self._ended, call_id, why)
        self._calls.clear()
        self._stop_reason = why

    def pids(self) -> Collection[int]:
        """Return the process ids of the parked processes; see `SupportsSnapshotProcesses`."""
        return () if (live := self._live_processes) is None else live.pids()

    def frozen_pids(self) -> Collection[int]:
        """Return the workers that were undone and stay stopped; see `SupportsSnapshotProcesses`."""
        return () if (live := self._live_processes) is None else live.frozen_pids()

    async def settled(self) -> None:
        """Wait until `pids` is complete; see `SupportsSnapshotProcesses`."""
        if (live := self._live_processes) is not None:
            await live.settled()

    def prepare(self, call_id: str) -> int:
        """Begin the part of `restore` that changes nothing; see `SupportsSnapshotProcesses`."""
        return 0 if (live := self._live_processes) is None else live.prepare(call_id)

    @asynccontextmanager
    async def hold(self, stopped: Collection[int] = ()) -> AsyncIterator[None]:
        """Let no call run within the context, and keep the live sandbox; see `SupportsSnapshotProcesses`."""
        async with self._sandbox.use_live():
            live = self._live_processes
            async with nullcontext() if live is None else live.hold(stopped):
                yield

    def points(self) -> Sequence[VariablePoint]:
        """Return the available restore points, oldest first."""
        live = self._live
        return () if live is None else live.points()

    def why_not_kept(self, call_id: str | None) -> str:
        """Return why the variables cannot be brought to a state; see `VariableHistory.why_not_kept`."""
        ended = self._why_not_redone if call_id is None else self._ended.get(call_id, "")
        if ended:
            return ended
        live = self._live
        return self._stop_reason if live is None else live.why_not_kept(call_id)

    async def restore(self, call_id: str) -> VariablePoint:
        """Restore the variables from before a call; see `VariableHistory.restore`."""
        async with self._sandbox.use_live():
            if live := self._live:
                return await live.restore(call_id)
        raise SandboxError(f"The variables are not kept: {self._stop_reason}.")

    async def redo(self, until: str | None = None) -> VariablePoint | None:
        """Revert what `restore` did since the last call; see `VariableHistory.redo`."""
        async with self._sandbox.use_live():
            if live := self._live:
                return await live.redo(until)
        raise SandboxError(f"The variables are not kept: {self._stop_reason}.")

    async def branch(self, call_id: str | None = None) -> VariableCopy:
        """Copy the variables for another sandbox; see `VariableHistory.branch`."""
        async with self._sandbox.use_live(starts=True):
            return await self._present().branch(call_id)

    async def load(self, copy: VariableCopy) -> VariablePoint:
        """Add the variables of a copy to those of this sandbox; see `VariableHistory.load`."""
        async with self._sandbox.use_live(starts=True):
            return await self._present().load(copy)

    async def forget(self) -> None:
        """Drop every restore point, together with any secrets in it."""
        if live := self._live:
            await live.forget()

    def _present(self) -> VariableHistory:
        live = self._live
        if live is None:
            raise SandboxError("The variables cannot be copied: the sandbox keeps none.")
        return live


def _remember(places: OrderedDict[str, str], call_id: str, value: str = "") -> None:
    places[call_id] = value
    places.move_to_end(call_id)
    if len(places) > _REMEMBERED_CALLS:
        places.popitem(last=False)


class PooledSandbox:
    """A sandbox that is live while it has a slot in the pool. Implements `core.sandboxes.Sandbox`.

    Its optional members are those of the live sandbox. While none is live, it has none but `variables` and
    `has_readers`.

    Attributes:
        live: The live sandbox.
        keeps_variables: Whether the sandboxes keep earlier states of variables, as far as that is known.
        has_readers: Whether they can hold tools that only read to it, as far as that is known.
        denied: The paths that the sandbox made next must not read or write, and those that it must not write.
    """

    def __init__(
        self,
        make: MakeSandbox,
        listener: SandboxListener,
        slots: SlotPool,
        level: str,
        *,
        on_vacated: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a sandbox with `make` when one is needed and `slots` has granted a slot.

        Call `on_vacated` each time after it was stopped.
        """
        self._on_vacated = on_vacated
        self._make, self._listener, self._slots = make, listener, slots
        self._level = level
        self.denied: tuple[Sequence[str], Sequence[str]] = ((), ())
        self.live: Sandbox | None = None
        self.keeps_variables = False
        self.has_readers = False
        self._variables = PooledVariables(self)
        self._stop_reason = ""
        self._generations = 0
        self._ending: list[Sandbox] = []  # those that have been live, until nothing of them is left
        self._entering: set[asyncio.Future[None]] = set()  # of what waits for a slot
        self._closed = False

    def __repr__(self) -> str:
        return f"<PooledSandbox {self.live!r}>"

    def __getattr__(self, member: str) -> Any:
        live = self.__dict__.get("live")
        if member.startswith("_") or live is None:
            raise AttributeError(member)
        return getattr(live, member)

    def _sandbox(self) -> Sandbox:
        if self._closed:
            raise SandboxError("The sandbox was closed.")
        if self.live is None:
            self.live = self._make(*self.denied)
            self.keeps_variables = supports(self.live, SupportsSnapshots)
            self.has_readers = supports(self.live, SupportsReaders) and self.live.has_readers
        return self.live

    @property
    def variables(self) -> VariableHistory:
        """Restore points of the variables; see `aisotools.core.sandboxes.SupportsSnapshots`."""
        if not self.keeps_variables:
            raise AttributeError("variables")
        return self._variables

    @asynccontextmanager
    async def use_live(self, *, starts: bool = False) -> AsyncIterator[None]:
        """Keep the live sandbox live within the context; without one do nothing unless it `starts` one."""
        if self.live is None and not starts:
            yield
            return
        # Race: it may be stopped while this waits for its slot. Then there is none within the context.
        async with self._slots.use(self):
            if starts:
                self._sandbox()
            yield

    def start_at_once(self) -> asyncio.Task[SandboxStatus] | None:
        """Start in a slot that is free now; see `aisotools.core.sandboxes.SupportsPlaces`."""
        give_back = None if self._closed else self._slots.take_at_once(self)
        if give_back is None:
            return None

        async def start() -> SandboxStatus:
            return await self._sandbox().start()

        starting = asyncio.ensure_future(start())
        # Not in the task: one that is cancelled before its first step does nothing at all.
        starting.add_done_callback(lambda _: give_back())
        return starting

    async def start(self) -> SandboxStatus:
        """Start a worker once a slot is free; see `aisotools.core.sandboxes.Sandbox.start`."""
        async with AsyncExitStack() as using:
            if not await self._enter_slot(using):
                raise SandboxError("The sandbox was not started: the wait for its place was interrupted.")
            return await self._sandbox().start()

    async def call(self, request: SandboxCall) -> ToolResult:
        """Run one call once a slot is free; see `aisotools.core.sandboxes.Sandbox.call`."""
        request.dispatch.is_given = False  # Race: the pool may be closed while it waits for its slot
        async with AsyncExitStack() as using:
            if not await self._enter_slot(using) or request.dispatch.is_interrupted:
                return INTERRUPTED_BEFORE
            sandbox = self._sandbox()
            if request.in_reader and not self.has_readers:
                # The one that was live when the call was judged could hold it to reading.
                return unreadable_result(request, "this sandbox cannot hold a tool to reading")
            request.dispatch.is_given = True
            self._variables.note_call(request.call.id)
            reason, self._stop_reason = self._stop_reason, ""
            try:
                result = await sandbox.call(request)
            except BaseException:
                self._stop_reason = self._stop_reason or reason  # nobody has read it
                raise
            if not reason:
                return result
            notice = (
                f"The sandbox had been stopped: {reason}. It is fresh: variables are gone, files are kept."
            )
            request.dispatch.loss = "\n".join(filter(None, [f"[{notice}]", request.dispatch.loss]))
            return result.with_first_line(f"[{notice}]").with_metadata(fresh_sandbox=notice)

    async def _enter_slot(self, using: AsyncExitStack) -> bool:
        """Use a slot until `using` is closed. Return False if the wait for one was interrupted."""
        if (give_back := self._slots.take_at_once(self)) is not None:
            using.callback(give_back)
            return True
        entering = asyncio.ensure_future(using.enter_async_context(self._slots.use(self)))
        self._entering.add(entering)
        try:
            await asyncio.wait([entering])
        finally:
            self._entering.discard(entering)
            entering.cancel()  # gives back a slot that comes just now
        if entering.cancelled():
            return False
        entering.result()
        return True

    @property
    def replaced_paths(self) -> Collection[str]:
        """Denied paths that were replaced; see `aisotools.core.sandboxes.SupportsPathRules`."""
        live: object = self.live
        return live.replaced_paths if supports(live, SupportsPathRules) else ()

    async def deny_paths(self, unreadable: Sequence[str], unwritable: Sequence[str]) -> Collection[str]:
        """Enforce rules about paths; see `aisotools.core.sandboxes.SupportsPathRules`."""
        self.denied = unreadable, unwritable
        live: object = self.live
        if supports(live, SupportsPathRules):
            return await live.deny_paths(unreadable, unwritable)
        return ()

    async def interrupt(self) -> None:
        """Stop the running calls and those that wait; see `aisotools.core.sandboxes.Sandbox.interrupt`."""
        for entering in tuple(self._entering):
            entering.cancel()
        if self.live is not None:
            await self.live.interrupt()

    async def restart(self) -> SandboxStatus:
        """Start a fresh worker; see `aisotools.core.sandboxes.Sandbox.restart`."""
        async with self._slots.use(self):
            return await self._sandbox().restart()

    async def close(self) -> None:
        """End the worker and free the slot."""
        self._closed = True
        await self._slots.evict(self, "the session was closed")
        await self.vacate("the session was closed")

    async def vacate(self, reason: str) -> None:
        """Stop the worker. The next call starts another one."""
        if self.live is not None:
            self._variables.note_stop(reason)
        live, self.live = self.live, None
        if live is not None:
            self._ending.append(live)
            status = live.status()
            self._generations += status.generation
            self._stop_reason = reason if status.alive else self._stop_reason
        # Case: the event loop on which one was ended has been stopped meanwhile. Whoever asks next ends it.
        for sandbox in tuple(self._ending):
            await sandbox.close()
            if sandbox in self._ending:
                self._ending.remove(sandbox)
        if live is not None and not self._closed:
            if status.alive:
                self._listener.lost(status.generation, reason)
            self._on_vacated()

    def status(self) -> SandboxStatus:
        """Return the present state."""
        if self.live is None:
            return SandboxStatus(level=self._level, alive=False, generation=self._generations)
        return self.live.status()
