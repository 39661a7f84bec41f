"""Many conversations, each with a session of its own, over a limited number of live sandboxes.

How many sandboxes of a pool are live at once: who gets a place, and who has to give one up.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import re
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from aisotools.core.exceptions import SandboxError, SessionClosed, UsageError
from aisotools.core.protocols import (
    Sandbox,
    SandboxCall,
    SandboxListener,
    SandboxStatus,
    SupportsLeastLevel,
    SupportsRemoteLocation,
)
from aisotools.core.types import ToolResult
from aisotools.sandbox.confinement.detect import Detection
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session.options import is_number
from aisotools.session.session import Session
from aisotools.session.setup import SandboxFactory, detect_levels


class SlotHolder(Protocol):
    """Somebody who takes a place while it is live, and can be asked to give it up between two uses."""

    async def vacate(self, reason: str) -> None:
        """Give up the place; called only while nobody uses it."""


@dataclass(slots=True)
class _HeldSlot:
    """A place that is taken.

    Attributes:
        uses: How many calls are under way in it.
        since_s: When it was last used, on the monotonic clock.
        idle: Ends it when nobody uses it for long.
    """

    uses: int = 0
    since_s: float = 0.0
    idle: asyncio.TimerHandle | None = None


class SlotPool:
    """Hands out places, first come, first served; the one unused for longest makes room.

    Attributes:
        max_live: How many places there are.
    """

    def __init__(self, *, max_live: int, idle_s: float, wait_s: float) -> None:
        """Have `max_live` places.

        Args:
            max_live: How many places there are.
            idle_s: Seconds after which an unused place is given up.
            wait_s: Seconds that somebody waits for a place before that is an error.
        """
        self.max_live = max_live
        self._idle_s, self._wait_s = idle_s, wait_s
        self._taken: OrderedDict[SlotHolder, _HeldSlot] = (
            OrderedDict()
        )  # the one unused for longest comes first
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._leaving: dict[SlotHolder, asyncio.Task[None]] = {}
        self._promised = 0  # places of those who were called up and have not come yet
        self._closed = False

    def __repr__(self) -> str:
        return f"<Slots {self.live} of {self.max_live} taken, {len(self._waiting)} waiting>"

    @property
    def live(self) -> int:
        """How many places are taken, also by those who are leaving."""
        return len(self._taken) + len(self._leaving)

    def _full(self) -> bool:
        return self.live + self._promised >= self.max_live

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._waiting)

    def holds(self, tenant: SlotHolder) -> bool:
        """Whether `tenant` has a place."""
        return tenant in self._taken

    @asynccontextmanager
    async def use(self, tenant: SlotHolder) -> AsyncIterator[None]:
        """Have a place for as long as this is entered, and keep it afterwards until somebody needs it.

        Raises:
            SandboxError: If there was none for too long; the message says what would help.
        """
        place = await self._take(tenant)
        try:
            yield
        finally:
            self._release(tenant, place)

    async def _take(self, tenant: SlotHolder) -> _HeldSlot:
        await self._gone(tenant)
        place = self._taken.get(tenant)
        if place is None:
            if self._waiting or not self._room():
                await self._wait_for_room(tenant)
            place = self._taken.get(tenant)  # another call of the same tenant may have come first
            if place is None:
                place = self._taken[tenant] = _HeldSlot()
            else:
                self._wake()
        place.uses += 1
        if place.idle is not None:
            place.idle.cancel()
            place.idle = None
        return place

    async def _gone(self, tenant: SlotHolder) -> None:
        """Wait until `tenant` has left, if it is leaving: it cannot come back before."""
        while (leaving := self._leaving.get(tenant)) is not None:
            await asyncio.wait([leaving])

    def _room(self) -> bool:
        """Whether a place is free; if not, the one unused for longest is asked to leave."""
        if not self._full():
            return True
        if len(self._leaving) <= len(self._waiting):  # one leaves for each who waits
            tenant = next((one for one, place in self._taken.items() if not place.uses), None)
            if tenant is not None:
                self._evict(tenant, "another conversation needed its place")
        return False

    async def _wait_for_room(self, tenant: SlotHolder) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        came = False
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
                await self._gone(tenant)  # its own place may be what another call of it has to give up first
            came = True
        except TimeoutError:
            raise SandboxError(
                f"All {self.max_live} sandboxes of the pool were busy for {self._wait_s:g} s. Try again "
                "later, or raise max_live of the SessionPool.",
            ) from None
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif turn.done() and not turn.cancelled():
                self._promised -= 1
                if not came:
                    self._wake()  # the turn is passed on

    def _wake(self) -> None:
        """Call up those who wait, as far as there are places; where there are none, have some made."""
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()  # it was cancelled, and has not come round to leave by itself
            elif self._room():
                self._promised += 1
                self._waiting.popleft().set_result(None)
            else:
                return

    def _release(self, tenant: SlotHolder, place: _HeldSlot) -> None:
        place.uses -= 1
        place.since_s = time.monotonic()
        if place.uses or self._taken.get(tenant) is not place:
            return
        self._taken.move_to_end(tenant)
        if self._closed:
            return
        place.idle = asyncio.get_running_loop().call_later(self._idle_s, self._idle, tenant, place)
        self._wake()

    def _idle(self, tenant: SlotHolder, place: _HeldSlot) -> None:
        if self._taken.get(tenant) is place and not place.uses:
            self._evict(tenant, f"it was not used for {self._idle_s:g} s")

    def _evict(self, tenant: SlotHolder, reason: str) -> None:
        self._forget(tenant)
        task = self._leaving[tenant] = asyncio.get_running_loop().create_task(tenant.vacate(reason))
        task.add_done_callback(lambda _: self._left(tenant))

    def _left(self, tenant: SlotHolder) -> None:
        del self._leaving[tenant]
        self._wake()

    def _forget(self, tenant: SlotHolder) -> None:
        place = self._taken.pop(tenant, None)
        if place is not None and place.idle is not None:
            place.idle.cancel()

    async def leave(self, tenant: SlotHolder, reason: str) -> None:
        """Have `tenant` give up its place now, if it has one."""
        if tenant in self._taken:
            self._evict(tenant, reason)
        if (leaving := self._leaving.get(tenant)) is not None:
            await asyncio.wait([leaving])

    async def close(self) -> None:
        """Have everybody leave."""
        self._closed = True
        for tenant in tuple(self._taken):
            self._evict(tenant, "the pool was closed")
        while self._leaving:
            await asyncio.wait(list(self._leaving.values()))


_PLAIN_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """A pool at one moment.

    Attributes:
        sessions: How many conversations have a session.
        live: How many sandboxes are up.
        waiting: How many calls wait for one.
    """

    sessions: int
    live: int
    waiting: int


class SessionPool:
    """One session per conversation: its sandbox starts on demand and stops when it is idle.

    A session keeps its files, its approvals and its record for as long as the pool is open. Its variables
    live as long as its sandbox: one that was stopped starts afresh at the next call, whose result says so.

    Use it as an async context manager, from one event loop.
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
        """Describe the pool; nothing is started yet.

        Args:
            max_live: How many sandboxes may be up at once; the one idle for longest makes room.
            idle_s: Seconds without a call after which a sandbox is stopped.
            wait_s: Seconds that a call waits when all of them are busy.
            root: The folder in which each conversation gets its workspace.
            sandbox: Makes a sandbox; real confined processes without it.
            **session: What every `Session` is made with, such as `registry` and `policy`.

        Raises:
            ValueError: If a number is none that makes sense.
            TypeError: If something is given that each session has of its own.
        """
        for name, value in (("max_live", max_live), ("idle_s", idle_s), ("wait_s", wait_s)):
            if not (is_number(value) and value > 0):
                raise ValueError(f"{name}={value!r}: use a number above 0.")
        own = {"workspace", "session_key"} & session.keys()
        if own:
            raise TypeError(f"{', '.join(sorted(own))}: each session of a pool has its own. Leave it out.")
        self._slots = SlotPool(max_live=int(max_live), idle_s=idle_s, wait_s=wait_s)
        self._root = Path(root).expanduser()
        self._make_sandbox = sandbox
        self._options = session
        self._sessions: dict[str, Session] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

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
        """The session of a conversation, made if there is none; its sandbox starts with its first call.

        Args:
            session_key: Names the conversation; any text, also a stranger's.

        Raises:
            TypeError: If the key is no text.
            ValueError: If it is empty.
            SessionClosed: If the pool was closed.
            UsageError: If the pool belongs to another event loop.
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
            session = self._sessions[session_key] = Session(
                workspace=self._root / _folder_name(session_key),
                session_key=session_key,
                sandbox=_pooled_factory(self._make_sandbox, self._slots),
                **self._options,
            )
        return session

    async def stop(self, session_key: str) -> None:
        """Stop a conversation's sandbox now; its session stays. Without a live one nothing happens.

        Calls under way in it are stopped too.
        """
        session = self._sessions.get(session_key)
        if session is not None and isinstance(sandbox := session.sandbox, PooledSandbox):
            await self._slots.leave(sandbox, "it was stopped")

    async def forget(self, session_key: str) -> None:
        """Close a conversation's session; its files stay where they are."""
        session = self._sessions.pop(session_key, None)
        if session is not None:
            await session.close()

    def status(self) -> PoolStatus:
        """The state right now."""
        return PoolStatus(sessions=len(self._sessions), live=self._slots.live, waiting=self._slots.waiting)

    async def close(self) -> None:
        """Close every session and end every sandbox. Closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        sessions, self._sessions = tuple(self._sessions.values()), {}
        closed = await asyncio.gather(*(session.close() for session in sessions), return_exceptions=True)
        await self._slots.close()
        errors = [error for error in closed if isinstance(error, Exception)]
        if errors:
            raise ExceptionGroup("some sessions could not be closed", errors)


def _folder_name(session_key: str) -> str:
    """A folder's name for a key that may be anything; two keys never share one, whatever their case."""
    plain = _PLAIN_KEY.match(session_key) and session_key == session_key.lower()
    return (
        session_key
        if plain
        else f"key-{hashlib.sha256(session_key.encode(errors='surrogatepass')).hexdigest()[:32]}"
    )


class _PooledFactory:
    """Makes the sandbox of one session of a pool. It holds the levels that the sandboxes behind it hold."""

    def __init__(self, make_sandbox: SandboxFactory, slots: SlotPool) -> None:
        self._make_sandbox = make_sandbox
        self._slots = slots

    def detect(self) -> Detection:
        """Return which levels the sandboxes hold."""
        return detect_levels(self._make_sandbox)

    def __call__(self, spec: WorkerSpec, listener: SandboxListener) -> Sandbox:
        return PooledSandbox(lambda: self._make_sandbox(spec, listener), listener, self._slots, spec.level)


class _RemotePooledFactory(_PooledFactory):
    """The same for sandboxes on another machine."""

    def __init__(
        self, make_sandbox: SandboxFactory, slots: SlotPool, *, elsewhere: str, least: str | None
    ) -> None:
        super().__init__(make_sandbox, slots)
        self.elsewhere = elsewhere
        self.least = least


def _pooled_factory(make_sandbox: SandboxFactory, slots: SlotPool) -> SandboxFactory:
    if isinstance(make_sandbox, SupportsRemoteLocation):
        least = make_sandbox.least if isinstance(make_sandbox, SupportsLeastLevel) else None
        return _RemotePooledFactory(make_sandbox, slots, elsewhere=make_sandbox.elsewhere, least=least)
    return _PooledFactory(make_sandbox, slots)


class PooledSandbox:
    """Implements `core.protocols.Sandbox`: live while it has a place in the pool, made anew on demand.

    Its optional members are those of the live sandbox; while there is none, it has none.
    """

    def __init__(
        self, make: Callable[[], Sandbox], listener: SandboxListener, slots: SlotPool, level: str
    ) -> None:
        """Make sandboxes by `make` when they are needed and `slots` has a place."""
        self._make, self._listener, self._slots = make, listener, slots
        self._level = level
        self._live: Sandbox | None = None
        self._stopped_because = ""
        self._generations = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"<PooledSandbox {self._live!r}>"

    def __getattr__(self, member: str) -> Any:
        live = self.__dict__.get("_live")
        if member.startswith("_") or live is None:
            raise AttributeError(member)
        return getattr(live, member)

    def _sandbox(self) -> Sandbox:
        if self._closed:
            raise SandboxError("The sandbox was closed.")
        if self._live is None:
            self._live = self._make()
        return self._live

    async def start(self) -> SandboxStatus:
        """Have a worker up; see `aisotools.core.protocols.Sandbox.start`."""
        async with self._slots.use(self):
            return await self._sandbox().start()

    async def call(self, request: SandboxCall) -> ToolResult:
        """Run one call once there is a place; see `aisotools.core.protocols.Sandbox.call`."""
        async with self._slots.use(self):
            reason, self._stopped_because = self._stopped_because, ""
            result = await self._sandbox().call(request)
            if not reason:
                return result
            notice = (
                f"The sandbox had been stopped: {reason}. It is fresh: variables are gone, files are kept."
            )
            if result.is_error:
                result = _with_line(result, notice)
            return result.with_metadata(fresh_sandbox=notice)

    async def interrupt(self) -> None:
        """Stop whatever runs; see `aisotools.core.protocols.Sandbox.interrupt`."""
        if self._live is not None:
            await self._live.interrupt()

    async def restart(self) -> SandboxStatus:
        """Have a fresh worker; see `aisotools.core.protocols.Sandbox.restart`."""
        async with self._slots.use(self):
            self._stopped_because = ""
            return await self._sandbox().restart()

    async def close(self) -> None:
        """End the worker, and with it the place in the pool."""
        self._closed = True
        await self._slots.leave(self, "the session was closed")
        await self.vacate("the session was closed")

    async def vacate(self, reason: str) -> None:
        """Stop the worker, to start it anew on demand."""
        live, self._live = self._live, None
        if live is None:
            return
        status = live.status()
        self._generations += status.generation
        self._stopped_because = reason if status.alive else self._stopped_because
        await live.close()
        if status.alive and not self._closed:
            self._listener.lost(status.generation, reason)

    def status(self) -> SandboxStatus:
        """The state right now."""
        if self._live is None:
            return SandboxStatus(level=self._level, alive=False, generation=self._generations)
        return self._live.status()


def _with_line(result: ToolResult, line: str) -> ToolResult:
    return dataclasses.replace(result, content=f"{result.content}\n{line}" if result.content else line)
