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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from aisotools.core.concurrency import FinalSteps, RunOnce
from aisotools.core.exceptions import SessionClosed, UsageError
from aisotools.core.sandboxes import (
    Sandbox,
    SandboxListener,
    SupportsLeastLevel,
    SupportsRemoteLocation,
)
from aisotools.sandbox.confinement import levels
from aisotools.sandbox.confinement.detect import Detection
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session.pooled_sandbox import PooledSandbox
from aisotools.session.session import Session
from aisotools.session.setup import SandboxFactory, detect_levels
from aisotools.session.slots import SlotPool
from aisotools.tools.adapter import supports
from aisotools.tools.validation import is_number
from aisotools.workspace.lock import real_workspace, state_place

_FREE_FILES = 64
"""Descriptors reserved for the calls of open conversations: below this, a further one is refused."""

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
    if supports(make_sandbox, SupportsRemoteLocation):
        least = make_sandbox.least if supports(make_sandbox, SupportsLeastLevel) else None
        elsewhere = make_sandbox.elsewhere
        return _RemotePooledFactory(make_sandbox, slots, adopt, elsewhere=elsewhere, least=least)
    return _PooledFactory(make_sandbox, slots, adopt)
