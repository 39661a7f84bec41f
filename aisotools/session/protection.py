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

from aisotools.core.events import CallFinished, CallStarted, SessionEvent
from aisotools.core.exceptions import SandboxError, WorkspaceRefused
from aisotools.core.types import ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.policy.rules import normalize_path
from aisotools.workspace.import_roots import ImportRootWatch
from aisotools.workspace.protected import MOST_FOLDERS, ProtectedFileChange, ProtectedFiles

_log = logging.getLogger(__name__)

_IDLE_DELAY_S = 0.1
"""Time after a call in which its worker finishes its own work, such as sending the last output."""

_INLINE_SCAN_S = 0.002
"""A scan that takes less than this runs on the event loop: a thread would cost more."""

_MAX_LOOP_SCAN_S = 0.02
"""Longest scan that may run on the event loop between calls, where there is nobody to wait for a thread."""

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
                if self._files.scan_duration_s < _MAX_LOOP_SCAN_S:
                    self._check_between_calls()
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
            SandboxError: If a process that an earlier call left running has changed a protected file, if
                there are more folders than can be watched, or if modules could now be imported from the
                workspace.
        """
        if self._imports is not None:
            try:
                self._imports.check()
            except WorkspaceRefused as error:
                raise SandboxError(f"{prepared.original.name} was not run: {error}") from error
        async with self._lock:
            if self._check_pending:
                await asyncio.to_thread(self._check_between_calls)
        if not self._files.complete:
            raise SandboxError(
                f"{prepared.original.name} was not run: the workspace has more than {MOST_FOLDERS} folders, "
                "or is nested too deeply, so files such as conftest.py could be planted unseen. Remove some "
                "folders, or use a smaller workspace."
            )
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
            if self._files.scan_duration_s < _INLINE_SCAN_S:
                changes = self._files.restore(declared)
            else:
                changes = await asyncio.to_thread(self._files.restore, declared)
        if not changes and self._files.complete:
            return result
        call = prepared.original
        _log.warning("The call %s of %s: %s", call.id, call.name, _summarize(changes))
        return None if result is None else _denied(call.name, result, changes, complete=self._files.complete)

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

    def _check_between_calls(self) -> None:
        """Accept changes made while the sandbox was idle, which are a person's. Restore any others."""
        self._check_pending = False
        if not self._files.differs():
            return
        idle = self._idle_activity is not None and self._activity() == self._idle_activity
        if idle or not self._any_call_finished:
            self._files.accept()
        else:
            self._unreported += self._files.restore()

    def _record_idle_activity(self) -> None:
        """Record the activity of the sandbox, which should be idle from now on, and restore once more."""
        self._idle_activity = self._activity()
        if self._files.scan_duration_s < _MAX_LOOP_SCAN_S:
            self._unreported += self._files.restore()

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
    name: str, result: ToolResult, changes: Sequence[ProtectedFileChange], *, complete: bool
) -> ToolResult:
    """Build the error that replaces `result`; it contains its text."""
    lines = []
    if changes:
        lines.append(
            f"{name} changed protected files, which programs outside the sandbox would run or obey: "
            f"{_summarize(changes)}. Everything else it did stays. Ask the user to make such changes."
        )
    if not complete:
        lines.append(
            f"{name} left more than {MOST_FOLDERS} folders in the workspace, more than can be watched for "
            "protected files. Remove some."
        )
    if result.content:
        lines += ["Its result:", result.content]
    denied = dataclasses.replace(
        result, content="\n".join(lines), is_error=True, recoverable=True, error_kind="denied", kind="error"
    )
    return denied.with_metadata(**{PROTECTED: [change.path for change in changes]})
