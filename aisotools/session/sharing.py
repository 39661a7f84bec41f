"""The state that the sessions of a process share on one workspace: its checkpoints and a lock.

Calls of one session overlap as far as its sandbox allows. Calls of another session on the same workspace wait
for them, and undo waits for all calls, so that each checkpoint shows the changes of one session only.
`CheckpointScans` has the workspace looked at: on the event loop where that is quick, else in a thread.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from aisotools.core.concurrency import gc_paused, run_to_completion
from aisotools.core.events import CallEmitted
from aisotools.core.exceptions import SandboxError, UsageError, WorkspaceError, explain_system_error
from aisotools.core.sandboxes import Sandbox, SupportsSnapshotProcesses, SupportsSnapshots, SupportsSupervisor
from aisotools.core.threads import in_thread
from aisotools.core.types import ToolCall
from aisotools.sandbox.host.fork_handle import wait_until_ended
from aisotools.sandbox.host.fork_observation import DetachedFiles, find_detached_files
from aisotools.sandbox.host.leftovers import find_idle_helpers
from aisotools.sandbox.process.killing import with_orphans, youngest_first
from aisotools.sandbox.process.tree import (
    TooManyProcesses,
    TreeFreezer,
    await_stop,
    descendants,
    find_background_processes,
    has_ended,
    is_ending,
    is_namespace_init,
    may_run,
    send_signal,
    table,
)
from aisotools.session.event_log import EventLog
from aisotools.session.host_calls import HostWork
from aisotools.tools.adapter import supports
from aisotools.workspace.checkpoints.scan import CopyProgress, TooSlow, refuse_large
from aisotools.workspace.checkpoints.switching import TAKEN, mark_of
from aisotools.workspace.checkpoints.timeline import Checkpoints
from aisotools.workspace.lock import checkpoint_folder
from aisotools.workspace.paths import printable
from aisotools.workspace.workspace import TEMPORARY


@dataclass(slots=True, eq=False)
class LockToken:
    """Permission to change a workspace, until it is returned with `WorkspaceLock.leave`.

    Attributes:
        lock: The lock that granted it.
        holder: The holder it was granted to.
        nested: True if it was granted within the time of another token, which holds the lock.
        valid: True until it is returned.
    """

    lock: WorkspaceLock
    holder: object
    nested: bool
    valid: bool = True


_current: ContextVar[LockToken | None] = ContextVar("aisotools_workspace_token", default=None)


class WorkspaceLock:
    """A fair lock for one holder at a time, which may acquire it repeatedly. Works across event loops."""

    def __init__(self) -> None:
        """Start without a holder."""
        self._mutex = threading.Lock()
        self._holder: object = None
        self._count = 0
        self._waiting: deque[tuple[object, asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    def __repr__(self) -> str:
        return f"<WorkspaceLock: {self._count} inside, {len(self._waiting)} waiting>"

    async def enter(self, holder: object) -> LockToken:
        """Wait until only `holder` has the lock. Within a call that has it, return at once."""
        outer = _current.get()
        if outer is not None and outer.valid and outer.lock is self:
            # A call made by a tool of a call that holds the lock: waiting would be a deadlock.
            token = LockToken(self, outer.holder, nested=True)
        else:
            await self._acquire(holder)
            token = LockToken(self, holder, nested=False)
        _current.set(token)
        return token

    def is_inside(self) -> bool:
        """Return whether the running task belongs to a call that has the lock."""
        outer = _current.get()
        return outer is not None and outer.valid and outer.lock is self

    async def _acquire(self, holder: object) -> None:
        with self._mutex:
            if self._holder is None or self._holder is holder:
                self._holder = holder
                self._count += 1
                return
            loop = asyncio.get_running_loop()
            granted: asyncio.Future[None] = loop.create_future()
            entry = (holder, loop, granted)
            self._waiting.append(entry)
        try:
            await granted
        except asyncio.CancelledError:
            with self._mutex:
                queued = entry in self._waiting
                if queued:
                    self._waiting.remove(entry)
            # Race: the lock was granted and the task cancelled in the same loop iteration. Hand it on.
            if not queued:
                self._release()
            raise

    def leave(self, token: LockToken) -> None:
        """Give a token back. Doing so again has no effect."""
        if token.valid:
            token.valid = False
            if not token.nested:
                self._release()

    def _release(self) -> None:
        with self._mutex:
            self._count -= 1
            if self._count:
                return
            self._holder = None
            # The head of the queue gets the lock, and with it whoever waits next to it for the same holder.
            while self._waiting and self._holder in {None, self._waiting[0][0]}:
                holder, loop, granted = self._waiting.popleft()
                # Race: another thread may close its loop at any moment; waiters of a closed loop cannot
                # continue, and must not be given the lock.
                try:
                    loop.call_soon_threadsafe(_grant, granted)
                except RuntimeError:
                    continue
                self._holder = holder
                self._count += 1


def _grant(granted: asyncio.Future[None]) -> None:
    if not granted.done():  # cancelled meanwhile: `_acquire` hands the lock on
        granted.set_result(None)


_LOOP_LIMITS: Mapping[str, float] = {"max_threads": 32, "max_running": 4, "within_s": 0.01}
"""Up to so many threads are stopped on the event loop: a thread for it would take longer. Hostile code can
have any number of them run, or wait where no signal stops them, as a process does for a child by `vfork`."""


_STOPPED_S = 2.0
"""How long an undo waits for what runs in a sandbox to stop: each has to have its turn on a busy machine."""

BackgroundProcesses: TypeAlias = tuple[dict[int, str], dict[int, str]]
"""Process id to name, of those that may do something, and of those that only wait for work."""

_LOOKS = 20
"""After so many looks that found only processes which had ended since, something begins others on and on."""

_ENDING_S = 5.0
"""How long a process that was killed is waited for. The kernel takes its time to free much memory."""


_CHARGED_STEP_BYTES = 64 << 10
"""Changes in the memory that checkpoints take are charged when they come to more than this."""

INLINE_ENTRIES = 1_500
"""Up to so many files a checkpoint is taken on the event loop: a thread would take longer than the scan. One
that is new or changed counts as 20."""

_PROGRESS_INTERVAL_S = 1.0
"""How often a slow checkpoint reports its progress."""

T = TypeVar("T")


class _FormerNames(Mapping[str, str]):
    """Paths of files below a workspace, by where each stood last before it was deleted.

    That is its own place, or that of a staging into which an undo or redo had taken it out of its place.
    """

    def __init__(self, root: str, paths: Iterable[str]) -> None:
        self._names = {f"{root}/{path}": path for path in paths}
        self._stages = f"{root}/{TEMPORARY}"
        self._marks = {mark_of(tuple(path.split("/"))): path for path in self._names.values()}

    def __getitem__(self, place: str) -> str:
        if place.startswith(self._stages):
            return self._marks[place.rpartition("/")[2].removeprefix(TAKEN)]
        return self._names[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _goes_on(work: HostWork) -> bool:
    """Return whether work on the host goes on. A task ends with its event loop."""
    return not work.done() and not (isinstance(work, asyncio.Future) and work.get_loop().is_closed())


class SharedWorkspace:
    """One workspace, shared by the sessions of this process.

    Attributes:
        folder: The workspace, as its first session named it.
        checkpoints: Its checkpoints.
        lock: Held by the session that may change the workspace.
        sandboxes: The sandboxes of the sessions.
        has_run_code: Whether code or a program of a call has ever run in one of them: what it left there, or
            has made of a worker, may change files during any later call.
    """

    def __init__(self, folder: Path, checkpoints: Checkpoints) -> None:
        """Start without sandboxes."""
        self.folder = folder
        self.checkpoints = checkpoints
        self.lock = WorkspaceLock()
        self.sandboxes: list[Sandbox] = []
        self.has_run_code = False
        self._freezer = TreeFreezer()
        self._host_work: dict[HostWork, str] = {}

    def note_host_work(self, call: ToolCall, work: Sequence[HostWork]) -> None:
        """Remember what a call has left running on the host, where nobody but its tool can end it."""
        self._host_work |= dict.fromkeys(work, f"{printable(call.name)} ({call.id})")

    def find_host_work(self) -> list[str]:
        """Return the calls that have left something running on the host that still runs: tool and call id."""
        if not self._host_work:
            return []
        # Race: sessions on other event loops, in other threads, add theirs meanwhile, and remove the same.
        for work in tuple(self._host_work):
            if not _goes_on(work):
                self._host_work.pop(work, None)
        return list(dict.fromkeys(tuple(self._host_work.values())))

    @contextmanager
    def freeze(self, *, on_loop: bool = False) -> Iterator[None]:
        """Stop all processes of all sandboxes within the context, as far as sandboxes have processes here.

        Args:
            on_loop: Whether the event loop waits.

        Raises:
            TooManyProcesses: If the event loop waits, and stopping them takes long. All of them run on.
        """
        with ExitStack() as stack:
            for sandbox in tuple(self.sandboxes):
                if supports(sandbox, SupportsSupervisor):
                    root, worker, exempt = sandbox.supervisor, sandbox.worker_pid, _snapshot_pids(sandbox)
                    limits = _LOOP_LIMITS if on_loop else {}
                    stack.enter_context(self._freezer.freeze(root, exempt, worker=worker, **limits))
            yield

    @asynccontextmanager
    async def stop_until_replaced(self, sandbox: Sandbox, call_id: str | None = None) -> AsyncIterator[int]:
        """Let nothing of one sandbox run within the context, in which its worker may be replaced.

        The variables from before `call_id` are made ready meanwhile, for which a fork takes its time. What is
        yielded is the process of which the next worker is a copy; see `SupportsSnapshotProcesses.prepare`.

        Threat: between the files and the variables of an undo, a thread that a call has left writes a file
        again, which the result then says was taken back. Mechanism: its process stays stopped until another
        one has taken its place. Race: what begins after the processes were listed; see `TreeFreezer`.
        Failure: a worker that is not replaced goes on afterwards, and so does everything around it.

        Raises:
            SandboxError: If something still runs, on a busy machine: it may be about to write.
        """
        variables = _parked(sandbox)
        if variables is None:
            yield 0
            return
        # Order: a call that only reads may still run. Stopped, it would never end, and nothing be replaced.
        stopped_before: set[int] = set()  # by a call, and not by this
        async with variables.hold(stopped_before):
            # Not before: a pool may have stopped the sandbox while calls were waited for.
            root, worker = _supervisor(sandbox), _worker_pid(sandbox)
            with ExitStack() as stopping:
                # In a thread, all of it: there may be hundreds of processes.
                exempt = _snapshot_pids(sandbox)
                stopped = await in_thread(self._stop, root, worker, exempt, stopping, stopped_before)
                origin = variables.prepare(call_id) if call_id is not None else 0
                try:
                    yield origin
                finally:
                    if _worker_pid(sandbox) != worker:
                        # The former worker has ended or waits for a redo, and what it has started with it.
                        # Race: a reader may have become known only after it was stopped.
                        stopped.intersection_update(_snapshot_pids(sandbox))

    def _stop(
        self, root: int, worker: int, exempt: Collection[int], stopping: ExitStack, stopped_before: set[int]
    ) -> set[int]:
        """Stop what runs below `root` until `stopping` is closed. Return what will be continued then.

        Add to `stopped_before` what was stopped before.
        """
        ends_s = time.monotonic() + _STOPPED_S
        freezing = self._freezer.freeze(root, exempt, worker=worker, within_s=_STOPPED_S)
        stopped = stopping.enter_context(freezing)
        # Also what only sleeps, for which a checkpoint does not wait: it could be sent a signal.
        await_stop(tuple(stopped), ends_s)
        if any(map(may_run, tuple(stopped))):
            raise SandboxError(f"what runs in the sandbox did not stop within {_STOPPED_S:g} s")
        stopped_before |= descendants(root) - stopped - {*exempt}
        return stopped

    def supervisors(self) -> list[int]:
        """Return the processes above everything that runs in the sandboxes."""
        found = (sandbox.supervisor for sandbox in self.sandboxes if supports(sandbox, SupportsSupervisor))
        return [supervisor for supervisor in found if supervisor]

    async def wait_for_snapshots(self) -> None:
        """Wait until all snapshots of variables under way are taken, and their processes known."""
        for sandbox in tuple(self.sandboxes):
            if (variables := _parked(sandbox)) is not None:
                await variables.settled()

    async def find_running(self) -> BackgroundProcesses:
        """Return the background processes that calls left in the sandboxes.

        Returns:
            Those that may do something, now or when they are continued, process id to name; and those that
            only wait for work, each with the library that it belongs to.
        """
        for _ in range(_LOOKS):
            running, helpers = await self._look_once()
            alive = {pid: name for pid, name in running.items() if not has_ended(pid)}
            if alive or not running:
                return alive, helpers
            # Race: all have ended since they were listed. If that happens at each look, something in there
            # begins another process and ends, on and on.
        return running, helpers

    async def _look_once(self) -> BackgroundProcesses:
        trees = [
            (sandbox.supervisor, sandbox.worker_pid, _snapshot_pids(sandbox), _undone_pids(sandbox))
            for sandbox in self.sandboxes
            if supports(sandbox, SupportsSupervisor) and sandbox.supervisor
        ]
        # In a thread: there may be hundreds, and the kernel lets nobody read the command line of a process
        # that changes its own memory and waits for a processor meanwhile.
        running, helpers = await in_thread(_find_running, trees)
        if running:
            # Race: a snapshot that was taken while the thread looked, or a worker that has taken the place of
            # one that had ended, is nothing that a call has left.
            await self.wait_for_snapshots()
            ours = frozenset(map(_worker_pid, self.sandboxes)).union(*map(_snapshot_pids, self.sandboxes))
            running = {pid: name for pid, name in running.items() if pid not in ours}
        # Race: what was killed is there until its memory is freed. It may still finish one system call.
        if ending := [pid for pid in running if is_ending(pid)]:
            await wait_until_ended(ending, within_s=_ENDING_S)
        return running, helpers

    def find_detached(
        self, paths: Iterable[str], sandbox: Sandbox | None = None, origin: int = 0
    ) -> DetachedFiles:
        """Return which files the workers have open or mapped that were replaced or removed at some paths.

        Args:
            paths: Paths below the workspace, as a move of the checkpoints names them.
            sandbox: The one whose worker is being replaced.
            origin: The process of which its next worker is a copy.
        """
        names = _FormerNames(printable(str(self.folder.resolve())), paths)
        found = DetachedFiles()
        if not names:
            return found
        for one in tuple(self.sandboxes):
            if pid := origin if one is sandbox else _worker_pid(one):
                found |= find_detached_files(pid, names)
        return found

    def kill(self, pids: Collection[int], *, forced: bool) -> None:
        """Kill those of `pids` that still run in the sandboxes. Call it while the sandboxes are frozen.

        Args:
            pids: Process ids.
            forced: Kill all background processes instead. Race: one that forks and ends on and on has
                another id than when they were listed.
        """
        if not (pids or forced):
            return
        for sandbox in tuple(self.sandboxes):
            root, worker, snapshots = _supervisor(sandbox), _worker_pid(sandbox), _snapshot_pids(sandbox)
            # Only processes that are below a supervisor now: a process id may have been reused elsewhere.
            below, frozen = descendants(root), self._freezer.frozen(root)
            ended: Collection[int] = below & set(pids)
            if forced:
                undone = _undone_pids(sandbox)
                ended = find_background_processes(root, worker, snapshots, undone, frozen)
            if ended:
                # Race: one that was stopped by something else since they were listed is left alone, unless
                # the end of these would continue it.
                processes = table(below)
                stopped = [pid for pid in below - frozen - snapshots - {worker} if not is_namespace_init(pid)]
                ended = with_orphans(ended, stopped, processes)
                for pid in youngest_first(ended, processes):
                    send_signal(pid, signal.SIGKILL)

    def park(self) -> None:
        """Close what the checkpoints have open, if no other session uses them."""
        if len(self.sandboxes) == 1:
            self.checkpoints.park()

    def release(self, sandbox: Sandbox) -> None:
        """End the share of one session. The last one closes the checkpoints."""
        with _SHARED_LOCK:
            if sandbox in self.sandboxes:
                self.sandboxes.remove(sandbox)
            if not self.sandboxes:
                for path in [path for path, shared in _SHARED.items() if shared is self]:
                    del _SHARED[path]
                self.checkpoints.close()


class CheckpointScans:
    """Looks at one workspace for one session."""

    def __init__(self, shared: SharedWorkspace, event_log: EventLog) -> None:
        """Look at nothing yet. The event log gets the progress, and has the budget."""
        self._shared = shared
        self._checkpoints = shared.checkpoints
        self._event_log = event_log
        self._charged_bytes = 0

    def __repr__(self) -> str:
        return f"<CheckpointScans of {self._checkpoints!r}>"

    def close(self) -> None:
        """Give back what was charged."""
        self._event_log.budget.release(self._charged_bytes)
        self._charged_bytes = 0

    @property
    def is_small(self) -> bool:
        """True if the workspace had so few entries at the last look that the event loop can look itself."""
        latest = self._checkpoints.latest
        return latest is not None and latest.entries <= INLINE_ENTRIES

    def fits(self) -> bool:
        """Return whether a first snapshot would cover the whole workspace.

        Raises:
            TooSlow: If that is not small.
        """
        return self._checkpoints.fits(INLINE_ENTRIES)

    async def run(
        self, scan: Callable[..., T], call_id: str, *, inline: bool = True, frozen: bool = True
    ) -> T:
        """Run `scan`, on the loop if there are few files and few processes, else in a thread.

        Args:
            scan: Takes a callback for its `progress`; on the loop also `max_work` and `may_wait`.
            call_id: The call whose progress it is.
            inline: Whether it may run on the loop at all.
            frozen: Whether the sandbox's processes are stopped meanwhile.

        Raises:
            WorkspaceError: As `scan` does, or if the sandboxes cannot be stopped.
        """
        hold: Callable[..., AbstractContextManager[object]] = self._shared.freeze if frozen else nullcontext
        try:
            if inline and self.is_small and not self._checkpoints.is_busy:
                try:
                    with self._shared.freeze(on_loop=True) if frozen else nullcontext():
                        return scan(progress=refuse_large, max_work=INLINE_ENTRIES, may_wait=False)
                except (TooSlow, TooManyProcesses):
                    pass  # what was copied of a large new file so far is kept; a thread does the rest
            progress = CopyProgress()

            def scan_in_thread() -> T:
                # A collection of garbage looks at every node of a tree, and holds up the event loop.
                with hold(), gc_paused():
                    return scan(progress=progress.update)

            scanning = asyncio.ensure_future(in_thread(scan_in_thread))
            try:
                while not (await asyncio.wait([scanning], timeout=_PROGRESS_INTERVAL_S))[0]:
                    payload = {"done_bytes": progress.done, "total_bytes": progress.total}
                    self._event_log.add(CallEmitted, call_id, name="checkpoint", payload=payload)
            except asyncio.CancelledError:
                await run_to_completion(asyncio.wait([scanning]))  # nobody else knows what it does
                raise
            return scanning.result()
        except OSError as error:  # of stopping the sandboxes; a scan has errors of its own
            raise WorkspaceError(explain_system_error(error)) from error
        finally:
            # All sessions on this workspace share the checkpoints, and each is charged for them.
            memory_bytes = self._checkpoints.memory_bytes
            if abs(memory_bytes - self._charged_bytes) > _CHARGED_STEP_BYTES:
                self._event_log.budget.charge(memory_bytes - self._charged_bytes)
                self._charged_bytes = memory_bytes


def _find_running(
    trees: Iterable[tuple[int, int, frozenset[int], frozenset[int]]],
) -> tuple[dict[int, str], dict[int, str]]:
    running: dict[int, str] = {}
    helpers: dict[int, str] = {}
    for supervisor, worker, snapshots, undone in trees:
        found = find_background_processes(supervisor, worker, snapshots, undone)
        idle = find_idle_helpers(found, worker)
        running |= {pid: found[pid] for pid in found.keys() - idle.keys()} if idle else found
        helpers |= idle
    return running, helpers


def _supervisor(sandbox: Sandbox) -> int:
    return sandbox.supervisor if supports(sandbox, SupportsSupervisor) else 0


def _worker_pid(sandbox: Sandbox) -> int:
    """Return the worker's process; 0 for none, as of a pooled sandbox that was stopped."""
    return sandbox.worker_pid if supports(sandbox, SupportsSupervisor) else 0


def _parked(sandbox: Sandbox) -> SupportsSnapshotProcesses | None:
    """Return the history of a sandbox's variables, if its restore points are processes; else None."""
    variables: object = sandbox.variables if supports(sandbox, SupportsSnapshots) else None
    return variables if supports(variables, SupportsSnapshotProcesses) else None


def _undone_pids(sandbox: Sandbox) -> frozenset[int]:
    """Return the workers of a sandbox that were undone, and wait for a redo."""
    variables = _parked(sandbox)
    return frozenset() if variables is None else frozenset(variables.frozen_pids())


def _snapshot_pids(sandbox: Sandbox) -> frozenset[int]:
    """Return the idle processes that hold snapshots of a sandbox's variables."""
    variables = _parked(sandbox)
    return frozenset() if variables is None else frozenset(variables.pids())


_SHARED: dict[Path, SharedWorkspace] = {}
_SHARED_LOCK = threading.Lock()


def share(workspace: Path, state_folder: Path, sandbox: Sandbox) -> SharedWorkspace:
    """Return the shared state of a workspace, for one more session. `release` ends its share.

    Raises:
        WorkspaceError: If checkpoints cannot be stored.
        UsageError: If the workspace is open with another state folder.
    """
    resolved = workspace.resolve()
    folder = checkpoint_folder(resolved, state_folder)
    with _SHARED_LOCK:
        shared = _SHARED.get(resolved)
        if shared is None:
            shared = _SHARED[resolved] = SharedWorkspace(workspace, Checkpoints(resolved, folder))
        elif shared.checkpoints.store.folder != folder:
            raise UsageError(
                f"The workspace {str(resolved)!r} is open with another state folder. Use the same one."
            )
        shared.sandboxes.append(sandbox)
        return shared


async def share_in_thread(workspace: Path, state_folder: Path, sandbox: Sandbox) -> SharedWorkspace:
    """Do what `share` does in a thread: what a crash has left is mended first, which waits for the disk.

    Raises:
        WorkspaceError: As `share`.
        UsageError: As `share`.
    """
    sharing = asyncio.ensure_future(in_thread(share, workspace, state_folder, sandbox))
    try:
        return await asyncio.shield(sharing)
    except asyncio.CancelledError:
        # Cancelled while the thread goes on: its share would never be given back.
        sharing.add_done_callback(functools.partial(_give_back, sandbox))
        raise


def _give_back(sandbox: Sandbox, done: asyncio.Future[SharedWorkspace]) -> None:
    if done.exception() is None:
        done.result().release(sandbox)
