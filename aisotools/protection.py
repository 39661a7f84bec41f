"""Keeps the protected files of a workspace: compared around every call that may change anything, put back.

A call during which one was changed, removed or planted fails and says which. Between calls a person may edit
these files, and something that the sandbox left running may as well. Which of the two it was is told by
whether anything in the sandbox ran at all meanwhile: if nothing did, it was the person, and what is there is
what should be there; otherwise it is put back, and the next call is refused once, saying so. What is taken
away is never lost: it lies in the state folder.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence

from aisotools.conditions import normal_path
from aisotools.events import ToolResult
from aisotools.exceptions import SandboxError
from aisotools.protected_files import MOST_FOLDERS, Change, ProtectedFiles
from aisotools.session_events import CallFinished, CallStarted, SessionEvent
from aisotools.ticket import Ticket

_log = logging.getLogger(__name__)

_SETTLED_S = 0.1
_QUICK_S, _BEARABLE_S = 0.002, 0.02

Activity = Callable[[], Mapping[tuple[int, int], int]]
"""How often each thread of the sandbox has run so far, by process and thread; empty when there is none."""

PROTECTED = "protected"
"""Key in a result's metadata: the protected files that the call changed."""


class Protection:
    """A guard (see `aisotools.place`) around the protected files of one workspace.

    It also hears the session's events, since calls that only read move the sandbox, too.
    """

    def __init__(self, files: ProtectedFiles, activity: Activity) -> None:
        """Keep `files`; `activity` tells whether the sandbox was at rest."""
        self._files = files
        self._activity = activity
        self._fresh = True  # nothing has run yet
        self._at_rest: Mapping[tuple[int, int], int] | None = None
        self._settling: asyncio.TimerHandle | None = None
        self._running: set[str] = set()
        self._unseen = False  # whether what happened between two calls is still to be looked at
        self._late: list[Change] = []
        self._looking = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Protection of {self._files!r}, {len(self._running)} calls run>"

    def hear(self, event: SessionEvent) -> None:
        """Take note of calls that begin and end."""
        if isinstance(event, CallStarted):
            if not self._running:
                self._stop_settling()
                self._unseen = True
                if self._files.took_s < _BEARABLE_S:
                    self._look_between()
            self._running.add(event.call_id)
        elif isinstance(event, CallFinished) and event.call_id in self._running:
            self._running.discard(event.call_id)
            if not self._running:
                self._fresh, self._at_rest = False, None
                self._settling = asyncio.get_running_loop().call_later(_SETTLED_S, self._settle)

    async def before(self, ticket: Ticket) -> None:
        """Have everything as it should be; see `aisotools.place.Guard`.

        Raises:
            SandboxError: If something that an earlier call left running has changed a protected file, or if
                there are more folders than can be watched.
        """
        async with self._looking:
            if self._unseen:
                await asyncio.to_thread(self._look_between)
        if not self._files.complete:
            raise SandboxError(
                f"{ticket.made.name} was not run: the workspace has more than {MOST_FOLDERS} folders, or is "
                "nested too deeply, so files such as conftest.py could be planted unseen. Remove some "
                "folders, or use a smaller workspace."
            )
        if self._late:
            late, self._late = self._late, []
            raise SandboxError(
                f"{ticket.made.name} was not run: something that an earlier call left running had changed "
                f"protected files: {_listed(late)}. Make the call again; a restart of the sandbox ends what "
                "runs there."
            )

    async def after(self, ticket: Ticket, result: ToolResult | None) -> ToolResult | None:
        """Put back what the call changed; see `aisotools.place.Guard`."""
        async with self._looking:
            declared = _declared(ticket)
            if self._files.took_s < _QUICK_S:
                changes = self._files.restore(declared)
            else:
                changes = await asyncio.to_thread(self._files.restore, declared)
        if not changes and self._files.complete:
            return result
        _log.warning("The call %s of %s: %s", ticket.made.id, ticket.made.name, _listed(changes))
        return None if result is None else _failed(ticket.made.name, result, changes, self._files.complete)

    def accept(self) -> None:
        """Take what is there for what should be there: the host itself has just changed the workspace."""
        self._files.accept()

    def ending(self) -> None:
        """Note whether the sandbox was at rest, just before it is ended."""
        self._stop_settling()
        if self._at_rest is not None and self._activity() != self._at_rest:
            self._at_rest = None

    async def close(self) -> None:
        """Look a last time, when nothing of the sandbox runs any more."""
        async with self._looking:
            late = await asyncio.to_thread(self._put_back_late)
        if late:
            _log.warning("After the last call: %s", _listed(late))

    # ---- between calls

    def _put_back_late(self) -> Sequence[Change]:
        return () if self._fresh or self._at_rest is not None else self._files.restore()

    def _look_between(self) -> None:
        """What differs now was changed by a person if the sandbox was at rest; else it is put back."""
        self._unseen = False
        if not self._files.differs():
            return
        if self._fresh or (self._at_rest is not None and self._activity() == self._at_rest):
            self._files.accept()
        else:
            self._late += self._files.restore()

    def _settle(self) -> None:
        """The last call's echoes have faded: from here on the sandbox should be at rest."""
        self._at_rest = self._activity()
        if self._files.took_s < _BEARABLE_S:
            self._late += self._files.restore()

    def _stop_settling(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None


def _declared(ticket: Ticket) -> frozenset[str]:
    """The notebooks that the call said it writes."""
    return frozenset(normal_path(path) for path in ticket.facts.writes if path.endswith(".ipynb"))


def _listed(changes: Sequence[Change]) -> str:
    return ", ".join(map(str, changes[:10])) + (f" and {len(changes) - 10} more" if len(changes) > 10 else "")


def _failed(name: str, result: ToolResult, changes: Sequence[Change], complete: bool) -> ToolResult:
    told = []
    if changes:
        told.append(
            f"{name} changed protected files, which programs outside the sandbox would run or obey: "
            f"{_listed(changes)}. Everything else it did stays. Ask the user to make such changes."
        )
    if not complete:
        told.append(
            f"{name} left more than {MOST_FOLDERS} folders in the workspace, more than can be watched for "
            "protected files. Remove some."
        )
    if result.content:
        told += ["What it gave:", result.content]
    failed = dataclasses.replace(
        result, content="\n".join(told), is_error=True, recoverable=True, error_kind="denied", kind="error"
    )
    return failed.with_metadata(**{PROTECTED: [change.path for change in changes]})
