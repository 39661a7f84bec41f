"""Keep the protected files of a workspace as they are: around each call, and while anything is left running.

Threat: a call, or something that it left running, writes a file that programs outside the sandbox run or
obey; see `aisotools.workspace.protected_names`. A call during which one was changed, removed or planted fails
and names it, and the file is put back.

Mechanism: between calls a person may edit these files, and so may a process, a thread or a background task
that an earlier call left running. A change made while nothing in the sandbox ran is the person's and is
accepted. Any other change is put back, and the next call is refused once with the reason. Whether something
ran is told by the context switches of each thread of the sandbox (`Activity`). A thread of this process
compares them `WATCH_S` after the last time, which takes about 0.1 ms, and looks at the files only if they
differ. It is not a task of the session's loop: that stands still while a cell of a notebook computes. What it
finds is recorded (`ProtectedFilesRestored`). Content that is taken away is kept in the state folder.
Race: what is written exists until that thread looks: `WATCH_S`, the time that the look takes, and, if looks
are slow, a pause that leaves `1 - WATCH_LOAD` of the time to others. It waits for the interpreter's lock like
any thread. While a call runs that may change something, it does not look, since programs write some of these
files for a moment (git while it rebases); the call's own end does. A person's edit is accepted only if the
sandbox had not run by the time that it was read. Right after a call its worker still finishes, and then
nobody can tell who has written: an edit is put back until a look, `_IDLE_DELAY_S` later, has found the
sandbox at rest. Where rules of the policy deny files, which are a person's own, a call ends only when the
sandbox is at rest (`RestGuard`), or after `_REST_S`, and an edit right after it is accepted within
`_EARLY_S`.
Failure: a look that fails is reported with its reason, and the sandbox does not count as idle, so that
whatever is found next is put back.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fnmatch
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from aisotools.core.events import CallFinished, CallStarted, ProtectedFilesRestored, SessionEvent
from aisotools.core.exceptions import SandboxError, WorkspaceRefused
from aisotools.core.threads import in_thread
from aisotools.core.types import ErrorKind, ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.policy.rules import normalize_path
from aisotools.session.event_log import EventLog
from aisotools.session.guards import ImportRootWatch
from aisotools.workspace.candidates import OutOfSteps
from aisotools.workspace.import_roots import is_package_mark
from aisotools.workspace.protected import ProtectedFileChange, ProtectedFiles

_log = logging.getLogger(__name__)

WATCH_S = 0.25
"""Seconds between two looks at whether anything in the sandbox has run."""

WATCH_LOAD = 0.25
"""Part of the time that these looks may take, if the files are very many."""

_IDLE_DELAY_S = 0.1
"""Time after a call in which its worker finishes its own work, such as sending the last output."""

_REST_S = 0.05
"""Time that a call waits for this at its end, where rules deny files."""

_REST_PAUSE_S = 0.001
"""Time between two looks meanwhile."""

_EARLY_S = 0.001
"""Time between a call and the first look for an edit right after it; the later ones are further apart."""

_REPORT_S = 10.0
"""Time between two reports of what was put back: it may be something twice a second, for days."""

_LOOP_STEPS = 1_000
"""Work that a look at the protected files may do on the event loop: 2 to 5 ms. A look that needs more,
or that finds anything to restore, is done again in a thread."""

_MAX_LISTED = 10
"""Changes that a message names; the rest is counted."""

Activity = Callable[[], Mapping[tuple[int, int], int] | None]
"""Returns how often each thread of the sandbox has run so far, by process and thread id; None if unknown."""

PROTECTED = "protected"
"""Key in a result's metadata: the protected files that the call changed."""


class _FoundChanges:
    """What was put back and not reported yet: the first changes, and how many there were. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: list[str] = []
        self._count = 0

    def add(self, changes: Sequence[ProtectedFileChange]) -> None:
        with self._lock:
            self._texts += map(str, changes[: _MAX_LISTED - len(self._texts)])
            self._count += len(changes)

    def take(self) -> tuple[tuple[str, ...], int]:
        with self._lock:
            taken = tuple(self._texts), self._count
            self._texts, self._count = [], 0
        return taken

    @property
    def any(self) -> bool:
        return self._count > 0


class Protection:
    """A guard for the protected files of one workspace, and for the mode of its folder.

    It follows the session's events as well, since calls that only read use the sandbox too.
    """

    def __init__(
        self,
        files: ProtectedFiles,
        activity: Activity,
        imports: ImportRootWatch | None = None,
        event_log: EventLog | None = None,
    ) -> None:
        """Protect the workspace. Looks between calls begin after the first call.

        Args:
            files: Its protected files.
            activity: A change of it between calls shows that the sandbox was not idle.
            imports: Refuses calls when modules could be imported from the workspace.
            event_log: Gets what was put back between calls.
        """
        self._files = files
        self._activity = activity
        self._imports = imports
        self._event_log = event_log
        self._locks: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        """One at a time looks between calls and restores, of each event loop; see `_lock`."""
        self._running: set[str] = set()
        self._any_call_finished = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_activity: Mapping[tuple[int, int], int] | None = None
        """Activity recorded before a look that left every protected file as it should be; None until then."""
        self._rest: Mapping[tuple[int, int], int] | None = None
        """The same, as the only call that runs ended; None while it is not known."""
        self._check_pending = False
        """Whether changes from between two calls have still to be checked."""
        self._unreported = _FoundChanges()
        """Changes by background processes that no call was refused for yet."""
        self._unrecorded = _FoundChanges()
        """Changes by background processes that no event says yet."""
        self._problem = self._recorded_problem = ""
        """Why the last look did not see every file; and the same as an event has said it last."""
        self._noted = ""
        """What a result has said last of folders that are too deep to be looked at."""
        self._changing: set[object] = set()
        """Calls in progress that may change something, and other work of the host on the files."""
        self._watch: threading.Thread | None = None
        self._wake = threading.Event()
        self._looking = threading.Lock()
        """Held by the watch during a look."""
        self._settled_s = 0.0
        """Not before this time does the sandbox count as idle after a call."""
        self._record_s = 0.0
        """Not before this time is what was put back recorded again."""
        self._closing = False
        self._was_idle = False
        """Whether the sandbox was idle when it was closed."""

    def __repr__(self) -> str:
        return f"<Protection of {self._files!r}, {len(self._running)} calls run>"

    def on_event(self, event: SessionEvent) -> None:
        """Track which calls run."""
        if isinstance(event, CallStarted):
            self._rest = None
            if not self._running:
                self._cancel_idle_timer()
                self._check_pending = True
                with suppress(OutOfSteps):
                    self._check_between_calls(_LOOP_STEPS)
            self._running.add(event.call_id)
        elif isinstance(event, CallFinished) and event.call_id in self._running:
            self._running.discard(event.call_id)
            self._changing.discard(event.call_id)
            if not self._running:
                self._settled_s = time.monotonic() + _IDLE_DELAY_S
                if self._rest is None and self._files.has_denied:
                    self._find_rest()  # no guard was called for one that only reads
                self._any_call_finished, self._idle_activity = True, self._rest
                if self._rest is not None:
                    self._wake.set()
                try:
                    loop = asyncio.get_running_loop()
                except RuntimeError:
                    # Case: a call whose event loop was closed for good is collected. The next one looks.
                    return
                self._idle_timer = loop.call_later(_IDLE_DELAY_S, self._wake.set)
                if self._watch is None and not self._closing:
                    # A daemon: a program that ends without closing the session does not wait for it. Race: it
                    # may outlive the loop, which it finds closed when it hands over what it has found.
                    self._watch = threading.Thread(
                        target=self._run_watch, args=(loop,), name="aisotools-protection", daemon=True
                    )
                    self._watch.start()

    async def before(self, prepared: PreparedCall) -> None:
        """Restore or accept what changed since the last call; see `Guard`.

        Raises:
            SandboxError: If a process that an earlier call left running has changed a protected file, or if
                modules could now be imported from the workspace.
        """
        name = prepared.original.name
        self._changing.add(prepared.original.id)  # until its end the watch begins no look
        if self._imports is not None:
            try:
                if self._imports.has_changed():
                    await in_thread(self._imports.check)
            except WorkspaceRefused as error:
                raise SandboxError(f"{name} was not run: {error}") from error
        if self._looking.locked():
            await in_thread(self._await_look)
        async with self._lock():
            if self._check_pending:
                await in_thread(self._check_between_calls)
        if self._unreported.any:
            raise SandboxError(
                f"{name} was not run: something that an earlier call left running (or a person right after "
                f"a call) had changed protected files: {_summarize(*self._unreported.take())}. Make the call "
                "again; a restart of the sandbox ends what runs there."
            )

    async def before_reading(self) -> None:
        """Accept what a person has changed since the last call, before one that only reads runs.

        At its start that was tried on the loop, with few steps. Once the sandbox runs, nobody can tell any
        more whether a person has changed what is left. What is no person's is put back later, as always.
        """
        if self._check_pending:
            async with self._lock():
                if self._check_pending:
                    with suppress(OutOfSteps):
                        await in_thread(self._check_between_calls, sys.maxsize)

    async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        """Restore what the call changed; see `Guard`."""
        try:
            async with self._lock():
                declared = frozenset(map(normalize_path, fnmatch.filter(prepared.facts.writes, "*.ipynb")))
                try:
                    changes = self._files.restore(declared, most_steps=_LOOP_STEPS)
                except OutOfSteps:
                    changes = await in_thread(self._files.restore, declared)
                unwatched, is_all_usable = self._files.unwatched, self._files.is_all_usable
        finally:
            self._changing.discard(prepared.original.id)
        if not changes and (not unwatched or is_all_usable):
            is_news, self._noted = unwatched not in {"", self._noted}, unwatched
            return _note_unwatched(result, unwatched) if is_news and result is not None else result
        call = prepared.original
        _log.warning("The call %s of %s: %s", call.id, call.name, _summarize_changes(changes))
        problem = "" if is_all_usable else unwatched
        return None if result is None else _build_error(call.name, result, changes, problem)

    async def come_to_rest(self) -> None:
        """Wait a moment until the sandbox is at rest and every protected file as it should be.

        What differs from then on while nothing runs is a person's. Without rules that deny files, and while
        another call runs, this returns at once.
        """
        if not self._files.has_denied:
            return
        deadline_s = time.monotonic() + _REST_S
        while not self._find_rest() and time.monotonic() < deadline_s:
            if len(self._running) > 1:
                return
            await asyncio.sleep(_REST_PAUSE_S)

    def _find_rest(self) -> bool:
        """Record the activity of a sandbox at rest, if it is, and if every protected file is as its copy.

        Race: a process may begin while the others are counted, write, and end before the next count. So they
        are counted twice before the files are compared, and once more afterwards.
        """
        self._rest = None
        if not self._files.has_denied or len(self._running) > 1:
            return False
        activity = self._activity()
        if activity is None or self._activity() != activity:
            return False
        try:
            differs = self._files.differs(most_steps=_LOOP_STEPS)
        except OutOfSteps:
            return False
        if differs or self._activity() != activity:
            return False
        self._rest = activity
        return True

    def accept(self) -> None:
        """Accept the protected files as they are: the host itself has just changed the workspace."""
        self._files.accept()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Look at everything, and at nothing more until the context is left: the host works on the files.

        Race: a restore of deep folders moves them up on their way out. A look meanwhile would find protected
        files there, and the next call would be refused for what the host did itself.
        """
        work = object()
        self._changing.add(work)
        try:
            if self._looking.locked():
                await in_thread(self._await_look)
            await self.settle()
            yield
        finally:
            self._changing.discard(work)

    def _lock(self) -> asyncio.Lock:
        """Return the lock of the running event loop.

        Case: that of a loop which was stopped or closed half way is held for ever, and whoever closes this on
        another one must not wait for it. What goes on in a thread meanwhile has the lock of the files.
        """
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    async def settle(self) -> None:
        """Accept what a person has changed so far, before the host makes the sandbox's processes run itself.

        It does so by stopping them for a moment, and by ending them. Without this, that would count as
        something of the sandbox that ran, and the person's edit as its work.
        """
        if self._running:
            return
        async with self._lock():
            try:
                self._check_between_calls(_LOOP_STEPS)
            except OutOfSteps:
                await in_thread(self._check_between_calls)

    def prepare_close(self) -> None:
        """Record whether the sandbox is idle. Call this just before the sandbox is closed."""
        self._cancel_idle_timer()
        self._closing = True
        self._wake.set()
        idle_activity = self._idle_activity
        self._was_idle = idle_activity is not None and self._activity() == idle_activity

    async def close(self) -> None:
        """Restore what background processes changed after the last call, once the sandbox is closed."""
        self._closing = True
        self._wake.set()
        if self._watch is not None:
            await in_thread(self._watch.join)
        async with self._lock():
            if not self._any_call_finished or self._was_idle:
                if self._files.root_mode is not None:
                    self._files.root_mode.accept()
                changes: tuple[ProtectedFileChange, ...] = ()
            else:
                changes = await in_thread(self._files.restore)
        if changes:
            _log.warning("After the last call: %s", _summarize_changes(changes))
        self._unrecorded.add(changes)
        if self._unrecorded.any:
            self._record()

    # ---- between calls

    def _check_between_calls(self, most_steps: float = float("inf")) -> None:
        """Accept changes made while the sandbox was idle, which are a person's. Restore any others.

        Raises:
            OutOfSteps: If it takes more than `most_steps`, or something must be restored; the check stays
                pending.
        """
        idle_activity = self._idle_activity

        def is_idle() -> bool:
            if not self._any_call_finished:
                return True
            return idle_activity is not None and self._activity() == idle_activity

        accepts, mode = is_idle(), self._files.root_mode
        # First: the mode of the folder is put back by every look at the files in it.
        with suppress(OSError):  # there is no folder: so it has no mode
            if accepts and mode is not None and os.lstat(mode.path).st_mode != mode.value:
                mode.accept()
        differs = self._files.differs(most_steps=most_steps)
        # Race: something may begin to run just now, and write what would be taken for the person's.
        accepted = differs and accepts and self._files.accept(most_steps=most_steps, still=is_idle)
        if differs and not accepted:
            if most_steps != float("inf"):
                raise OutOfSteps
            self._unreported.add(self._files.restore())
        self._check_pending = False

    def _cancel_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    # ---- the watch, which is a thread

    def _run_watch(self, loop: asyncio.AbstractEventLoop) -> None:
        wait_s = WATCH_S
        while not self._closing:
            self._wake.wait(wait_s)
            self._wake.clear()
            wait_s = WATCH_S
            with self._looking:
                # A call that may change something notes itself first, and waits for this lock then.
                if not self._may_look():
                    if self._accept_early():
                        since_s = time.monotonic() - (self._settled_s - _IDLE_DELAY_S)
                        wait_s = max(_EARLY_S, since_s / 2)
                    continue
                started_s = time.monotonic()
                is_over = self._look() and loop.is_closed()
                wait_s = max(WATCH_S, (time.monotonic() - started_s) * (1 / WATCH_LOAD - 1))
            if is_over:
                return
            is_news = self._unrecorded.any or self._problem not in {"", self._recorded_problem}
            if is_news and time.monotonic() >= self._record_s:
                self._record_s = time.monotonic() + _REPORT_S
                # Race: the loop was closed since it was asked above. No event can be recorded any more, and
                # what was put back is in the log already.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._record)

    def _may_look(self) -> bool:
        return not (self._changing or self._closing or time.monotonic() < self._settled_s)

    def _accept_early(self) -> bool:
        """Accept what a person has changed right after a call at the end of which the sandbox was at rest.

        Race: soon afterwards it may wake up for a moment, as snapshots do, and then nobody can tell any more
        who has written.

        Returns:
            Whether to do so again.
        """
        rest = self._rest
        if rest is None or self._changing or self._running or time.monotonic() >= self._settled_s:
            return False
        if self._activity() == rest and self._files.differs():
            self._files.accept(still=lambda: self._activity() == rest)
        return True

    def _look(self) -> bool:
        """Restore what differs if the sandbox has run since the last look.

        Returns:
            Whether it has no process any more.

        The order matters: what the sandbox changed before is restored here, and what it changes from now on
        shows in its activity. Until both are done, the sandbox does not count as idle.
        """
        problem = ""
        try:
            activity = self._activity()
            if activity is not None and activity == self._idle_activity:
                return not activity
            self._idle_activity = None
            changes = self._files.restore()
            if self._files.unwatched:
                problem = f"it has {self._files.unwatched}"
        except Exception as error:
            _log.exception("The protected files could not be looked at")
            activity, changes, problem = None, (), f"a look at it failed ({type(error).__name__}: {error})"
        self._idle_activity = activity
        self._unreported.add(changes)
        self._unrecorded.add(changes)
        self._problem = problem
        return activity is not None and not activity

    def _await_look(self) -> None:
        with self._looking:
            pass

    def _record(self) -> None:
        """Record what was put back since the last time; on the loop."""
        changes, count = self._unrecorded.take()
        problem = self._recorded_problem = self._problem
        event = ProtectedFilesRestored(time_s=time.time(), changes=changes, count=count, problem=problem)
        _log.warning("%s", event)
        if self._event_log is not None:
            self._event_log.add(ProtectedFilesRestored, changes=changes, count=count, problem=problem)


class RestGuard:
    """A guard that is left last: a call ends when its sandbox is at rest, where rules deny files."""

    def __init__(self, protection: Protection) -> None:
        self._protection = protection

    def __repr__(self) -> str:
        return f"<RestGuard of {self._protection!r}>"

    async def before(self, prepared: PreparedCall) -> None:
        """Let the call run; see `Guard`."""

    async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        """Wait for the sandbox; see `Guard`."""
        await self._protection.come_to_rest()
        _log.debug("The call %s has ended", prepared.original.id)
        return result


def _summarize(texts: Sequence[str], count: int) -> str:
    more = count - len(texts)
    listed = ", ".join(texts)
    return f"{listed} and {more:,} more" if more > 0 else listed


def _summarize_changes(changes: Sequence[ProtectedFileChange]) -> str:
    return _summarize([*map(str, changes[:_MAX_LISTED])], len(changes))


def _note_unwatched(result: ToolResult, unwatched: str) -> ToolResult:
    note = (
        f"[Not covered: the workspace has {unwatched}. What lies deeper is not looked at for protected "
        "files. `file delete` with recursive, `rm -rf` and undo remove it.]"
    )
    return dataclasses.replace(result, content=f"{result.content}\n{note}" if result.content else note)


def _build_error(
    name: str, result: ToolResult, changes: Sequence[ProtectedFileChange], unwatched: str
) -> ToolResult:
    """Build the error that replaces `result`; it contains its text."""
    lines = []
    if protected := [change for change in changes if not change.denied]:
        advice = (
            "Ask the user to make such changes, or to allow the name with Session(allow_protected=[...])."
        )
        if any(change.loader for change in protected):
            advice = "Ask the user to make such changes, or to change the setting of git that is named below."
        if any(is_package_mark(change.path) for change in protected):
            advice = (
                "The workspace lies directly in a folder that modules are imported from, so it cannot be a "
                "package itself: make the package in a folder of the workspace, or ask the user for a "
                "workspace elsewhere."
            )
        lines.append(
            f"{name} changed protected files, which programs outside the sandbox would run or obey: "
            f"{_summarize_changes(protected)}. Everything else it did stays. {advice}"
        )
        loaders = dict.fromkeys(change.loader for change in protected if change.loader)
        lines += [f"The reason is a setting of git: {loader}." for loader in loaders]
    if by_rule := [change for change in changes if change.denied]:
        lines.append(
            f"{name} changed files that a rule of the policy denies to write: {_summarize_changes(by_rule)}. "
            "Everything else it did stays. Leave such files alone, or ask the user to make the change."
        )
    if unwatched:
        lines.append(
            f"{name} ran and what it did stays, but the workspace cannot be watched for protected files: it "
            f"has {unwatched}. Undo the call that has made it, or remove it (rm -rf works); until then every "
            "call that may change something ends with this error."
        )
    if result.content:
        lines += ["Its result:", result.content]
    # What was put back was denied. A call that has run, beside something that hides files, was not.
    error_kind: ErrorKind = "denied" if changes else "environment"
    error = dataclasses.replace(
        result, content="\n".join(lines), is_error=True, recoverable=True, error_kind=error_kind, kind="error"
    )
    return error.with_metadata(**{PROTECTED: [change.path for change in changes]})
