"""A pool of sessions, one per conversation, that share a limited number of live sandboxes."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import hashlib
import inspect
import os
import re
import resource
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from aisotools.core.concurrency import FinalSteps, RunOnce
from aisotools.core.exceptions import SandboxError, SessionClosed, UsageError, as_clause
from aisotools.core.sandboxes import (
    INTERRUPTED_BEFORE,
    Sandbox,
    SandboxCall,
    SandboxListener,
    SandboxStatus,
    SupportsLeastLevel,
    SupportsPathRules,
    SupportsReaders,
    SupportsRemoteLocation,
    SupportsSnapshotProcesses,
    SupportsSnapshots,
    VariableCopy,
    VariableHistory,
    VariablePoint,
)
from aisotools.core.types import ToolResult
from aisotools.sandbox.confinement import levels
from aisotools.sandbox.confinement.detect import Detection
from aisotools.sandbox.host.failures import unreadable_result
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session.session import Session
from aisotools.session.setup import SandboxFactory, detect_levels
from aisotools.session.slots import SlotPool
from aisotools.tools.validation import is_number
from aisotools.workspace.lock import real_workspace, state_place

_FREE_FILES = 64
"""Descriptors reserved for the calls of open conversations: below this, a further one is refused."""

_REMEMBERED_CALLS = 1_000
"""Calls of one conversation of which it is remembered why the variables from before them are lost."""

_TAKEN_NAME = re.compile(r"key-|.*-branch-[0-9]+\Z", re.DOTALL)
"""Names of folders of other keys, and of branches."""

_PARKING_S = 5.0
"""How long `close` waits for what closes files of a conversation whose calls were stopped."""

_PARK_DELAY_S = 0.05
"""Time from the end of what a conversation without a live sandbox does until its files are closed."""

_FEW_SESSIONS = 100
"""So many more sessions than twice those of conversations are remembered before closed ones are forgotten."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """The state of a pool at one moment.

    Attributes:
        sessions: Number of conversations that have a session.
        live: Number of live sandboxes.
        waiting: Number of calls that wait for a sandbox.
    """

    sessions: int
    live: int
    waiting: int


class SessionPool:
    """One session per conversation. Its sandbox starts on demand and stops when it is idle.

    A session keeps its files, its approvals and its record until the pool is closed. Its variables live only
    as long as its sandbox. After a sandbox was stopped, the next call starts a fresh one, and the first line
    of its result says so. An undo brings variables back as far as the present sandbox has kept them; to a
    state from before it was stopped it is refused, but for one of files alone. While no sandbox is live, a
    session has one file open, which keeps its workspace from other processes.

    Use the pool as an async context manager, from one event loop.
    """

    def __init__(
        self,
        *,
        max_live: int = 20,
        idle_s: float = 600.0,
        wait_s: float = 60.0,
        root: str | os.PathLike[str] = "workspace",
        sandbox: SandboxFactory = LocalSandbox,
        **session: Any,
    ) -> None:
        """Configure the pool. No sandbox is started yet.

        Args:
            max_live: Number of sandboxes that may live at once. When it is reached, the one that is idle for
                the longest time is stopped.
            idle_s: Seconds without a call after which a sandbox is stopped.
            wait_s: Seconds that a call waits when all sandboxes are busy.
            root: The folder in which each conversation gets its workspace.
            sandbox: Makes a sandbox; real confined processes without it.
            **session: Arguments of every `Session`, such as `registry` and `policy`.

        Raises:
            ValueError: If a number is not above 0.
            TypeError: If an argument is given that each session has of its own.
        """
        for name, value in (("max_live", max_live), ("idle_s", idle_s), ("wait_s", wait_s)):
            if not (is_number(value) and value > 0):
                raise ValueError(f"{name}={value!r}: use a number above 0.")
        unknown = session.keys() - inspect.signature(Session).parameters.keys()
        if unknown:
            raise TypeError(
                f"{', '.join(sorted(unknown))}: a session has no such argument. Those that it has are on the "
                "page of `Session` in the API reference."
            )
        own = {"workspace", "session_key"} & session.keys()
        if own:
            raise TypeError(f"{', '.join(sorted(own))}: each session of a pool has its own. Leave it out.")
        self._slots = SlotPool(max_live=int(max_live), idle_s=idle_s, wait_s=wait_s)
        self._root = Path(root).expanduser()
        self._make_sandbox = sandbox
        self._options = session
        self._sessions: dict[str, Session] = {}
        self._adopted: set[Session] = set()  # conversations and branches of them, until they are closed
        self._park_timers: dict[Session, asyncio.TimerHandle] = {}
        self._parking: dict[Session, asyncio.Task[None]] = {}
        self._parked_too_early: set[Session] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._closing = RunOnce(resumes=True)

    def __repr__(self) -> str:
        return f"<SessionPool of {len(self._sessions)} sessions, {self._slots!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __contains__(self, session_key: object) -> bool:
        return session_key in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)

    async def get(self, session_key: str) -> Session:
        """Return the session of a conversation, created if there is none. Its first call starts its sandbox.

        Args:
            session_key: Identifies the conversation; any text, which need not be trusted.

        Raises:
            TypeError: If the key is not a string.
            ValueError: If it is empty.
            SessionClosed: If the pool was closed.
            UsageError: If the pool belongs to another event loop, or if this process has too many files open
                for another conversation.
            WorkspaceRefused: If the folder of the conversation is a link, which another one may have made.
        """
        if not isinstance(session_key, str):
            raise TypeError(f"session_key={session_key!r}: a key is text.")
        if not session_key:
            raise ValueError("session_key='': give the conversation a key.")
        if self._closed:
            raise SessionClosed("The pool is closed. Open a new one.")
        loop = asyncio.get_running_loop()
        if self._loop not in {None, loop}:
            raise UsageError("This pool belongs to another event loop. Use one pool per loop.")
        self._loop = loop
        session = self._sessions.get(session_key)
        if session is None or session.closed:
            self._refuse_without_files()
            folder = self._root / _folder_name(session_key)
            environ = self._options.get("environ") or os.environ
            session = self._sessions[session_key] = Session(
                workspace=real_workspace(folder, state_place(environ), below=self._root),
                session_key=session_key,
                sandbox=_pooled_factory(self._make_sandbox, self._slots, self._adopt),
                **self._options,
            )
        return session

    def _refuse_without_files(self) -> None:
        """Refuse another conversation while those that are open can still work."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = sum(1 for _ in Path("/proc/self/fd").iterdir())
        if used + _FREE_FILES > limit:
            raise UsageError(
                f"The pool cannot open another conversation: this process has {used:,} files open, may have "
                f"{limit:,}, and a call needs up to {_FREE_FILES}. Its {len(self._sessions):,} conversations "
                "have one open each, those with a live sandbox more. Close some with `await "
                "pool.forget(key)`, take a smaller max_live, or raise the limit (`ulimit -n`)."
            )

    def _adopt(self, session: Session) -> Callable[[], None]:
        """Look after a session that uses sandboxes of this pool: park it, and close it with the pool."""
        if len(self._adopted) > 2 * len(self._sessions) + _FEW_SESSIONS:
            self._adopted = {one for one in self._adopted if not one.closed}
        self._adopted.add(session)
        on_idle = functools.partial(self._park_soon, session)
        # What is recorded while nothing is under way opens files, too, as the turn of an agent does.
        session.subscribe(lambda _: on_idle())
        return on_idle

    def _park_soon(self, session: Session) -> None:
        """Have a session close the files that it holds open between calls, if it has no live sandbox."""
        if self._closed or session.closed or session in self._park_timers or not _is_vacant(session):
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # as after the loop has ended: nothing can be parked any more
        # Not at once: a few operations may follow each other, and the ledger is sealed then in any case.
        self._park_timers[session] = loop.call_later(_PARK_DELAY_S, self._park_if_vacant, session)

    def _park_if_vacant(self, session: Session) -> None:
        self._park_timers.pop(session, None)
        if session in self._parking:
            self._parked_too_early.add(session)  # Race: what is open again may have come too late for it
        elif _is_vacant(session) and not self._closed:
            self._park(session)

    def _park(self, session: Session) -> None:
        parking = self._parking[session] = asyncio.get_running_loop().create_task(session.park())
        parking.add_done_callback(lambda _: self._on_parked(session))

    def _on_parked(self, session: Session) -> None:
        self._parking.pop(session, None)
        if session in self._parked_too_early:
            self._parked_too_early.discard(session)
            self._park_soon(session)

    async def stop(self, session_key: str) -> None:
        """Stop a conversation's sandbox and the calls that run in it. The session stays.

        Without a live sandbox nothing happens.
        """
        session = self._sessions.get(session_key)
        if session is not None and isinstance(sandbox := session.sandbox, PooledSandbox):
            await self._slots.evict(sandbox, "it was stopped")

    async def forget(self, session_key: str) -> None:
        """Close a conversation's session. Its files stay where they are."""
        session = self._sessions.pop(session_key, None)
        if session is not None:
            await session.close()
            self._adopted.discard(session)

    def status(self) -> PoolStatus:
        """Return the present state."""
        return PoolStatus(sessions=len(self._sessions), live=self._slots.live, waiting=self._slots.waiting)

    async def close(self) -> None:
        """Close every session, end every sandbox, and return when nothing of them is left.

        Closing again waits for that as well.
        """
        self._closed = True
        # Cancelled, any number of times: no sandbox is left.
        steps = FinalSteps((self._end_parking, self._close_sessions, self._slots.close))
        await self._closing.run(steps.take, self._loop)

    async def _end_parking(self) -> None:
        while self._park_timers:
            self._park_timers.popitem()[1].cancel()
        here = asyncio.get_running_loop()
        # Case: the pool is closed on another loop, as its own has ended. What it has begun does not go on.
        if parking := [task for task in self._parking.values() if task.get_loop() is here]:
            # Whatever parks a conversation waits until none of its calls runs.
            await asyncio.gather(*(one.interrupt() for one in self._adopted), return_exceptions=True)
            _, late = await asyncio.wait(parking, timeout=_PARKING_S)
            for task in late:
                task.cancel()

    async def _close_sessions(self) -> None:
        # Case: this is cut off where its event loop is stopped, and taken once more. A session that is closed
        # again is waited for, or goes on where it was left.
        closed = await asyncio.gather(*(session.close() for session in self._adopted), return_exceptions=True)
        self._sessions.clear()
        self._adopted.clear()
        errors = [error for error in closed if isinstance(error, Exception)]
        if errors:
            raise ExceptionGroup("some sessions could not be closed", errors)


def _is_vacant(session: Session) -> bool:
    sandbox = session.sandbox
    return isinstance(sandbox, PooledSandbox) and sandbox.live is None


def _folder_name(session_key: str) -> str:
    """Return a folder name for any key. Two keys never share one, even where case is ignored.

    Nor does one get the folder of a branch of another one.
    """
    plain = _PLAIN_KEY.match(session_key) and session_key == session_key.lower()
    if plain and not _TAKEN_NAME.match(session_key):
        return session_key
    return f"key-{hashlib.sha256(session_key.encode(errors='surrogatepass')).hexdigest()[:32]}"


Adopt = Callable[[Session], Callable[[], None]]
"""Looks after a session; returns what is called whenever it may have nothing under way any more."""

MakeSandbox = Callable[[Sequence[str], Sequence[str]], Sandbox]
"""Makes a sandbox that must not read or write some paths, and not write others."""


class _PooledFactory:
    """Makes the `PooledSandbox` of one session. It supports the levels of the wrapped factory."""

    def __init__(self, make_sandbox: SandboxFactory, slots: SlotPool, adopt: Adopt) -> None:
        self._make_sandbox = make_sandbox
        self._slots = slots
        self._adopt = adopt
        self.on_idle: Callable[[], None] = lambda: None

    def adopt(self, session: Session) -> tuple[_PooledFactory, Callable[[], None]]:
        """Return the factory for a session; see `aisotools.core.sandboxes.SupportsAdoption`."""
        factory = copy.copy(self)
        factory.on_idle = self._adopt(session)
        return factory, factory.on_idle

    def detect(self) -> Detection:
        """Return which levels the sandboxes support."""
        return detect_levels(self._make_sandbox)

    def __call__(self, spec: WorkerSpec, listener: SandboxListener) -> Sandbox:
        def make(unreadable: Sequence[str], unwritable: Sequence[str]) -> Sandbox:
            present = dataclasses.replace(spec, unreadable=tuple(unreadable), unwritable=tuple(unwritable))
            return self._make_sandbox(present, listener)

        sandbox = PooledSandbox(make, listener, self._slots, spec.level, on_vacated=self.on_idle)
        if self._make_sandbox is LocalSandbox:  # of others it is known when the first is live
            sandbox.keeps_variables = True
            sandbox.has_readers = levels.has_readers(spec.level, spec.landlock_abi)
        sandbox.denied = spec.unreadable, spec.unwritable
        return sandbox


class _RemotePooledFactory(_PooledFactory):
    """A `_PooledFactory` of sandboxes on another machine."""

    def __init__(
        self,
        make_sandbox: SandboxFactory,
        slots: SlotPool,
        adopt: Adopt,
        *,
        elsewhere: str,
        least: str | None,
    ) -> None:
        super().__init__(make_sandbox, slots, adopt)
        self.elsewhere = elsewhere
        self.least = least


def _pooled_factory(make_sandbox: SandboxFactory, slots: SlotPool, adopt: Adopt) -> SandboxFactory:
    if isinstance(make_sandbox, SupportsRemoteLocation):
        least = make_sandbox.least if isinstance(make_sandbox, SupportsLeastLevel) else None
        elsewhere = make_sandbox.elsewhere
        return _RemotePooledFactory(make_sandbox, slots, adopt, elsewhere=elsewhere, least=least)
    return _PooledFactory(make_sandbox, slots, adopt)


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
        return live.variables if isinstance(live, SupportsSnapshots) else None

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
        live: object = self._live
        return live.pids() if isinstance(live, SupportsSnapshotProcesses) else ()

    async def settled(self) -> None:
        """Wait until `pids` is complete; see `SupportsSnapshotProcesses`."""
        live: object = self._live
        if isinstance(live, SupportsSnapshotProcesses):
            await live.settled()

    @asynccontextmanager
    async def hold(self, stopped: Collection[int] = ()) -> AsyncIterator[None]:
        """Let no call run within the context, and keep the live sandbox; see `SupportsSnapshotProcesses`."""
        async with self._sandbox.use_live():
            live: object = self._live
            async with live.hold(stopped) if isinstance(live, SupportsSnapshotProcesses) else nullcontext():
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
            self.keeps_variables = isinstance(self.live, SupportsSnapshots)
            self.has_readers = isinstance(self.live, SupportsReaders) and self.live.has_readers
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
                return unreadable_result(request.call.name, "this sandbox cannot hold a tool to reading")
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
            return _put_first(result, notice).with_metadata(fresh_sandbox=notice)

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
        return live.replaced_paths if isinstance(live, SupportsPathRules) else ()

    async def deny_paths(self, unreadable: Sequence[str], unwritable: Sequence[str]) -> Collection[str]:
        """Enforce rules about paths; see `aisotools.core.sandboxes.SupportsPathRules`."""
        self.denied = unreadable, unwritable
        live: object = self.live
        if isinstance(live, SupportsPathRules):
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
            self._stop_reason = ""
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


def _put_first(result: ToolResult, line: str) -> ToolResult:
    return dataclasses.replace(result, content="\n".join(filter(None, [f"[{line}]", result.content])))
