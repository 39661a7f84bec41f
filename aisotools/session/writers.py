"""Who writes in the workspace while a call runs, as far as the host can tell.

`aisotools.workspace.checkpoints.authorship` says what follows from it, and why: threat, mechanism, race
window and failure. This module has the two kinds of evidence: what built-in file tools name, and when nothing
has run in the sandboxes.
"""

from __future__ import annotations

import asyncio
import time

from aisotools.core.types import ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.sandbox.host.leftovers import IdleTimes
from aisotools.session.sharing import SharedWorkspace
from aisotools.session.undo_results import explain_others
from aisotools.workspace.checkpoints.authorship import Authorship, TimeSpan, parse_names
from aisotools.workspace.checkpoints.steps import Checkpoint
from aisotools.workspace.checkpoints.tree import TreePath

_LOOK_INTERVAL_S = 0.1
"""How often it is looked whether anything runs in the sandboxes, during a call."""

LONG_CALL_S = 1.0
"""A call that takes so long names what it has changed: a person may well have saved a file meanwhile."""


class WriterWatch:
    """Watches for other writers during the calls of one session."""

    def __init__(self, shared: SharedWorkspace) -> None:
        """Watch the sandboxes that share a workspace."""
        self._shared = shared
        self._running: dict[str, CallWriters] = {}

    def __repr__(self) -> str:
        return f"<WriterWatch of {len(self._running)} calls>"

    def begin(self, prepared: PreparedCall) -> None:
        """Watch from now on during a call, whose checkpoint was taken."""
        named = None
        facts = prepared.facts
        if facts.runs_in == "sandbox":
            if prepared.only_touches_files and facts.certain and not facts.outside:
                named = parse_names(facts.writes)
            else:
                self._shared.has_run_code = True
        writers = CallWriters(self._shared, named)
        # Calls that overlap: what each of them changes lies between the checkpoints of all.
        for other in self._running.values():
            both = None if named is None or other.named is None else named | other.named
            named = writers.named = other.named = both
        self._running[prepared.original.id] = writers

    def end(self, call_id: str) -> CallWriters:
        """Watch no more during a call, and return what was seen."""
        writers = self._running.pop(call_id)
        writers.stop()
        return writers


class CallWriters:
    """What is known about who writes while one call runs.

    Attributes:
        named: Paths that it and calls that overlap with it change; None if one of them does not say.
    """

    def __init__(self, shared: SharedWorkspace, named: frozenset[TreePath] | None) -> None:
        self.named = named
        self._shared = shared
        self._idle = IdleTimes()
        self._began_s = time.monotonic()
        self._next = asyncio.get_running_loop().call_later(_LOOK_INTERVAL_S, self._look)

    def __repr__(self) -> str:
        return f"<CallWriters: {len(self.idle_spans)} idle spans>"

    @property
    def authorship(self) -> Authorship:
        """Return what the tool says of its changes, and whether it can be believed."""
        return Authorship(named=self.named, is_certain=not self._shared.has_run_code)

    @property
    def idle_spans(self) -> tuple[TimeSpan, ...]:
        """Return when nothing of the sandboxes has run."""
        return tuple(self._idle.spans)

    def _look(self) -> None:
        if self._idle.look(self._shared.supervisors()):
            self._next = asyncio.get_running_loop().call_later(_LOOK_INTERVAL_S, self._look)

    def stop(self) -> None:
        """Look no more. Doing so again has no effect."""
        self._next.cancel()

    def name_others(self, step: Checkpoint, result: ToolResult) -> ToolResult:
        """Return a result that says what else has changed, as far as anybody can tell or nobody can."""
        authorship = step.authorship
        is_open = authorship.named is None and time.monotonic() - self._began_s >= LONG_CALL_S
        if authorship.named is None and not authorship.seen and not is_open:
            return result
        changes = self._shared.checkpoints.changes_by_author(step)
        return explain_others(result, changes, names_all=is_open)
