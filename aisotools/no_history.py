"""The history of a session whose calls run on another machine: none, and it says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aisotools.changes import Changes
from aisotools.checkpoint_seen import Snapshot
from aisotools.events import Facts, ToolResult
from aisotools.exceptions import UsageError
from aisotools.history import History
from aisotools.ticket import Ticket
from aisotools.undo_words import refused

_WHY = "Calls of this session run on another machine, where no earlier state of files or variables is kept"


class NoHistory(History):
    """A history that keeps nothing, and never pretends to."""

    def undoable(self, facts: Facts) -> bool:  # noqa: ARG002 - the same for all
        """Nothing is."""
        return False

    async def sentence(self, ticket: Ticket) -> str:
        """What undo will bring back of a call, for its card: nothing."""
        if ticket.facts.runs_in == "host":
            return "It cannot be undone: this session keeps no earlier state."
        return "It cannot be undone: it runs on another machine."

    async def undo(self, steps: int = 1, *, to: str | None = None, force: bool = False) -> ToolResult:  # noqa: ARG002 - as everywhere
        """Refuse; see `Session.undo`."""
        return refused(f"{_WHY}, so nothing can be undone from here.")

    async def redo(self, steps: int = 1, *, force: bool = False) -> ToolResult:  # noqa: ARG002 - as everywhere
        """Refuse; see `Session.redo`."""
        return refused(f"{_WHY}, so there is nothing to redo.")

    async def changes(self, since: str | None = None) -> Changes:  # noqa: ARG002 - as everywhere
        """Refuse; see `Session.changes`.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"{_WHY}, so changes cannot be told from here. Ask `sandbox_bash`, with git or diff."
        )

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Snapshot]:
        """Refuse: there is nothing to branch off from.

        Raises:
            UsageError: Always.
        """
        yield _refuse_branches()


def _refuse_branches() -> Snapshot:
    raise UsageError(f"{_WHY}, so it has no branches. Open another session there.")
