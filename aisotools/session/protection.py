"""The guard that keeps the protected files of a workspace, such as `conftest.py`, as they are.

Programs outside the sandbox run or obey these files. A call during which one was changed, removed or planted
fails and names it, and the file is restored. Between calls, a person may edit these files, and so may a
process that the sandbox left running. A change made while nothing in the sandbox ran is the person's and is
accepted. Any other change is restored, and the next call is refused once with the reason. Content that is
removed is kept in the state folder.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from aisotools.core.events import CallFinished, CallStarted, SessionEvent
from aisotools.core.exceptions import SandboxError, WorkspaceRefused
from aisotools.core.types import ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.policy.rules import normalize_path
from aisotools.workspace.candidates import OutOfSteps
from aisotools.workspace.import_roots import ImportRootWatch
from aisotools.workspace.protected import ProtectedFileChange, ProtectedFiles

_log = logging.getLogger(__name__)

_IDLE_DELAY_S = 0.1
"""Time after a call in which its worker finishes its own work, such as sending the last output."""

_LOOP_STEPS = 1_000
"""Work that a look at the protected files may do on the event loop: 2 to 5 ms. A look that needs more,
or that finds anything to restore, is done again in a thread."""

Activity = Callable[[], Mapping[tuple[int, int], int]]
"""Returns how often each thread of the sandbox has run so far, by process and thread id."""

PROTECTED = "protected"
"""Key in a result's metadata: the protected files that the call changed."""


class Protection:
    """A guard (see `aisotools.session.guards`) for the protected files of one workspace.

    It follows the session's events as well, since calls that only read use the sandbox too.
    """

    def __init__(
        self, files: ProtectedFiles, activity: Activity, imports: ImportRootWatch | None = None
    ) -> None:
        """Protect the workspace.

        Args:
            files: Its protected files.
            activity: A change of it between calls shows that the sandbox was not idle.
            imports: Refuses calls when modules could be imported from the workspace.
        """
        self._files = files
        self._activity = activity
        self._imports = imports
        self._lock = asyncio.Lock()
        self._running: set[str] = set()
        self._any_call_finished = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_activity: Mapping[tuple[int, int], int] | None = None
        """Activity recorded when the sandbox should have become idle; None until then."""
        self._check_pending = False
        """Whether changes from between two calls have still to be checked."""
        self._unreported: list[ProtectedFileChange] = []
        """Changes by background processes that no call was refused for yet."""

    def __repr__(self) -> str:
        return f"<Protection of {self._files!r}, {len(self._running)} calls run>"

    def on_event(self, event: SessionEvent) -> None:
        """Track which calls run."""
        if isinstance(event, CallStarted):
            if not self._running:
                self._cancel_idle_timer()
                self._check_pending = True
                with suppress(OutOfSteps):
                    self._check_between_calls(_LOOP_STEPS)
            self._running.add(event.call_id)
        elif isinstance(event, CallFinished) and event.call_id in self._running:
            self._running.discard(event.call_id)
            if not self._running:
                self._any_call_finished, self._idle_activity = True, None
                loop = asyncio.get_running_loop()
                self._idle_timer = loop.call_later(_IDLE_DELAY_S, self._record_idle_activity)

    async def before(self, prepared: PreparedCall) -> None:
        """Restore or accept what changed since the last call; see `aisotools.session.guards.Guard`.

        Raises:
            SandboxError: If a process that an earlier call left running has changed a protected file, or if
                modules could now be imported from the workspace.
        """
        if self._imports is not None:
            try:
                self._imports.check()
            except WorkspaceRefused as error:
                raise SandboxError(f"{prepared.original.name} was not run: {error}") from error
        async with self._lock:
            if self._check_pending:
                await asyncio.to_thread(self._check_between_calls)
        if self._unreported:
            changes, self._unreported = self._unreported, []
            raise SandboxError(
                f"{prepared.original.name} was not run: something that an earlier call left running had "
                f"changed protected files: {_summarize(changes)}. Make the call again; a restart of the "
                "sandbox ends what runs there."
            )

    async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        """Restore what the call changed; see `aisotools.session.guards.Guard`."""
        async with self._lock:
            declared = _declared_notebooks(prepared)
            try:
                changes = self._files.restore(declared, most_steps=_LOOP_STEPS)
            except OutOfSteps:
                changes = await asyncio.to_thread(self._files.restore, declared)
            unwatched = self._files.unwatched
        if not changes and not unwatched:
            return result
        call = prepared.original
        _log.warning("The call %s of %s: %s", call.id, call.name, _summarize(changes))
        return None if result is None else _denied(call.name, result, changes, unwatched)

    def accept(self) -> None:
        """Accept the protected files as they are: the host itself has just changed the workspace."""
        self._files.accept()

    def prepare_close(self) -> None:
        """Record whether the sandbox is idle. Call this just before the sandbox is closed."""
        self._cancel_idle_timer()
        if self._idle_activity is not None and self._activity() != self._idle_activity:
            self._idle_activity = None

    async def close(self) -> None:
        """Restore what background processes changed after the last call, once the sandbox is closed."""
        async with self._lock:
            if not self._any_call_finished or self._idle_activity is not None:
                return
            changes = await asyncio.to_thread(self._files.restore)
        if changes:
            _log.warning("After the last call: %s", _summarize(changes))

    # ---- between calls

    def _check_between_calls(self, most_steps: float = float("inf")) -> None:
        """Accept changes made while the sandbox was idle, which are a person's. Restore any others.

        Raises:
            OutOfSteps: If it takes more than `most_steps`, or something must be restored; the check stays
                pending.
        """
        differs = self._files.differs(most_steps=most_steps)
        idle = self._idle_activity is not None and self._activity() == self._idle_activity
        if differs and (idle or not self._any_call_finished):
            self._files.accept(most_steps=most_steps)
        elif differs and most_steps != float("inf"):
            raise OutOfSteps
        elif differs:
            self._unreported += self._files.restore()
        self._check_pending = False

    def _record_idle_activity(self) -> None:
        """Record the activity of the sandbox, which should be idle from now on, and restore once more.

        The order matters: what the sandbox changed before is restored here, and what it changes from now on
        shows in its activity. Until both are done, the sandbox does not count as idle.
        """
        activity = self._activity()
        try:
            self._files.restore(most_steps=_LOOP_STEPS)
        except OutOfSteps:
            timer = self._idle_timer
            restoring = asyncio.get_running_loop().run_in_executor(None, self._files.restore)
            restoring.add_done_callback(lambda done: self._record_restored(done, activity, timer))
        else:
            self._idle_activity = activity

    def _record_restored(
        self,
        restoring: asyncio.Future[tuple[ProtectedFileChange, ...]],
        activity: Mapping[tuple[int, int], int],
        timer: asyncio.TimerHandle | None,
    ) -> None:
        if restoring.cancelled() or restoring.exception() is not None:
            return  # the sandbox does not count as idle, so the next check restores what differs
        self._unreported += restoring.result()
        if timer is not None and self._idle_timer is timer:  # no call has started since
            self._idle_activity = activity

    def _cancel_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


def _declared_notebooks(prepared: PreparedCall) -> frozenset[str]:
    """Return the notebooks that the call declared it writes."""
    notebooks = set()
    for path in prepared.facts.writes:
        if path.endswith(".ipynb"):
            notebooks.add(normalize_path(path))
    return frozenset(notebooks)


def _summarize(changes: Sequence[ProtectedFileChange]) -> str:
    return ", ".join(map(str, changes[:10])) + (f" and {len(changes) - 10} more" if len(changes) > 10 else "")


def _denied(
    name: str, result: ToolResult, changes: Sequence[ProtectedFileChange], unwatched: str
) -> ToolResult:
    """Build the error that replaces `result`; it contains its text."""
    lines = []
    if changes:
        lines.append(
            f"{name} changed protected files, which programs outside the sandbox would run or obey: "
            f"{_summarize(changes)}. Everything else it did stays. Ask the user to make such changes, or to "
            "allow the name with Session(allow_protected=[...])."
        )
    if unwatched:
        lines.append(
            f"{name} ran and what it did stays, but the workspace cannot be watched for protected files: it "
            f"has {unwatched}. Undo the call, or remove such folders (rm -rf works); until then every call "
            "that may change something ends with this error."
        )
    if result.content:
        lines += ["Its result:", result.content]
    denied = dataclasses.replace(
        result, content="\n".join(lines), is_error=True, recoverable=True, error_kind="denied", kind="error"
    )
    return denied.with_metadata(**{PROTECTED: [change.path for change in changes]})
