"""What all sessions of a process on one workspace share: its checkpoints, and who may change it when.

Calls of one session overlap as far as its sandbox lets them. Calls of another session on the same workspace
wait for them, and undo waits for everybody, so that what a call did is told from what others did.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import cast

from aisotools.core.exceptions import UsageError
from aisotools.core.protocols import Sandbox
from aisotools.sandbox.process.tree import descendants, find_background_processes, freeze_tree, send_signal
from aisotools.workspace.checkpoints.timeline import Checkpoints


class LockToken:
    """Leave to change the workspace, until it is given back."""

    __slots__ = ("barrier", "holder", "inner", "valid")

    def __init__(self, barrier: WorkspaceLock, holder: object, *, inner: bool) -> None:
        """For `holder`; an inner one was given within another that still holds."""
        self.barrier, self.holder, self.inner = barrier, holder, inner
        self.valid = True


_current: ContextVar[LockToken | None] = ContextVar("aisotools_pass", default=None)


class WorkspaceLock:
    """Lets one holder at a time through, several times at once; in turn, from any event loop."""

    def __init__(self) -> None:
        """Start open."""
        self._lock = threading.Lock()
        self._holder: object = None
        self._count = 0
        self._waiting: deque[tuple[object, asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    def __repr__(self) -> str:
        return f"<Barrier: {self._count} inside, {len(self._waiting)} waiting>"

    async def enter(self, holder: object) -> LockToken:
        """Wait until only `holder` is inside; at once for what is done within a call that is."""
        around = _current.get()
        if around is not None and around.valid and around.barrier is self:
            given = LockToken(self, around.holder, inner=True)
        else:
            await self._take(holder)
            given = LockToken(self, holder, inner=False)
        _current.set(given)
        return given

    def inside(self) -> bool:
        """Whether the running task belongs to a call that is inside."""
        around = _current.get()
        return around is not None and around.valid and around.barrier is self

    async def _take(self, holder: object) -> None:
        with self._lock:
            if self._holder is None or self._holder is holder:
                self._holder = holder
                self._count += 1
                return
            loop = asyncio.get_running_loop()
            admitted: asyncio.Future[None] = loop.create_future()
            self._waiting.append((holder, loop, admitted))
        try:
            await admitted
        except asyncio.CancelledError:
            with self._lock:
                waited = [one for one in self._waiting if one[2] is admitted]
                for one in waited:
                    self._waiting.remove(one)
            if not waited:  # it was admitted just as it gave up
                self._give_back()
            raise

    def leave(self, given: LockToken) -> None:
        """Give a pass back."""
        if given.valid:
            given.valid = False
            if not given.inner:
                self._give_back()

    def _give_back(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count:
                return
            self._holder = None
            while self._waiting and self._holder in {None, self._waiting[0][0]}:
                holder, loop, admitted = self._waiting.popleft()
                if not loop.is_closed():
                    self._holder = holder
                    self._count += 1
                    loop.call_soon_threadsafe(_admit, admitted)


def _admit(admitted: asyncio.Future[None]) -> None:
    if not admitted.done():
        admitted.set_result(None)


class SharedWorkspace:
    """One workspace as the sessions of this process share it.

    Attributes:
        checkpoints: Its chain.
        barrier: Who may change it.
        sandboxes: What runs on it.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        """Share these."""
        self.checkpoints = checkpoints
        self.barrier = WorkspaceLock()
        self.sandboxes: list[Sandbox] = []

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Nothing in any sandbox on this workspace runs meanwhile, where sandboxes can be held."""
        with ExitStack() as stack:
            for sandbox in tuple(self.sandboxes):
                supervisor = getattr(sandbox, "supervisor", 0)
                stack.enter_context(freeze_tree(supervisor, frozenset(_parked(sandbox))))
            yield

    async def settled(self) -> None:
        """Wait until it is known which processes keep the past; none is to be taken for one left running."""
        for sandbox in tuple(self.sandboxes):
            known = getattr(getattr(sandbox, "variables", None), "settled", None)
            if known is not None:
                await known()

    def left_running(self) -> dict[int, str]:
        """What calls left running in the sandboxes on this workspace: process id to name."""
        found: dict[int, str] = {}
        for sandbox in tuple(self.sandboxes):
            supervisor = getattr(sandbox, "supervisor", 0)
            if supervisor:
                found |= find_background_processes(
                    supervisor, sandbox.status().pid, frozenset(_parked(sandbox))
                )
        return found

    def end(self, running: Collection[int]) -> None:
        """End these processes, as far as they still are in the sandboxes; while everything stands still."""
        for sandbox in tuple(self.sandboxes):
            for pid in descendants(getattr(sandbox, "supervisor", 0)) & set(running):
                send_signal(pid, signal.SIGKILL)


def _parked(sandbox: Sandbox) -> Iterable[int]:
    """Processes that keep the past of a sandbox's variables; they do nothing."""
    return cast("Iterable[int]", getattr(getattr(sandbox, "variables", None), "pids", tuple)())


_SHARED: dict[Path, SharedWorkspace] = {}
_SHARED_LOCK = threading.Lock()


def share(workspace: Path, state_folder: Path, sandbox: Sandbox) -> SharedWorkspace:
    """What the sessions on a workspace share, for one more of them; give it back with `unshare`.

    Raises:
        WorkspaceError: If its checkpoints cannot be kept.
    """
    real = workspace.resolve()
    name = hashlib.sha256(os.fsencode(real)).hexdigest()[:32]
    with _SHARED_LOCK:
        sharing = _SHARED.get(real)
        if sharing is None:
            sharing = _SHARED[real] = SharedWorkspace(Checkpoints(real, state_folder / "checkpoints" / name))
        elif sharing.checkpoints.store.folder != state_folder / "checkpoints" / name:
            told = f"The workspace {str(real)!r} is open with another state folder."
            raise UsageError(f"{told} Use the same one.")
        sharing.sandboxes.append(sandbox)
        return sharing


def unshare(sharing: SharedWorkspace, sandbox: Sandbox) -> None:
    """One session less; the last one closes the chain."""
    with _SHARED_LOCK:
        if sandbox in sharing.sandboxes:
            sharing.sandboxes.remove(sandbox)
        if not sharing.sandboxes:
            for real in [real for real, one in _SHARED.items() if one is sharing]:
                del _SHARED[real]
            sharing.checkpoints.close()
