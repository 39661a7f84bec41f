"""The history of a session whose files are on another machine: nothing is kept, and every request says so."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from aisotools.core.exceptions import UsageError
from aisotools.core.types import Facts, ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.session.history import VariablesChoice
from aisotools.session.undo_steps import refusal
from aisotools.workspace.checkpoints.scan import Snapshot
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.diff import Changes


class NoUndoHistory:
    """The history of a session whose files are on another machine: every request is refused."""

    _REASON = (
        "Calls of this session run on another machine, where no earlier state of files or variables is kept"
    )

    recovered: tuple[str, ...] = ()

    def announce(self) -> None:
        """Do nothing: nothing is recovered here."""

    @property
    def store(self) -> Store:
        """Refuse: there is none."""
        raise UsageError(f"{self._REASON}.")

    def can_undo(self, facts: Facts) -> bool:  # noqa: ARG002 - the same for all
        """Return False."""
        return False

    async def describe(self, prepared: PreparedCall) -> str:
        """Return why the call cannot be undone."""
        if prepared.facts.runs_in == "host":
            return "It cannot be undone: this session keeps no earlier state."
        return "It cannot be undone: it runs on another machine."

    async def undo(
        self,
        steps: int = 1,  # noqa: ARG002 - the same for all
        *,
        to: str | None = None,  # noqa: ARG002 - likewise
        force: bool = False,  # noqa: ARG002 - likewise
        variables: VariablesChoice = "restore",  # noqa: ARG002 - likewise
    ) -> ToolResult:
        """Return a refusal."""
        return refusal(f"{self._REASON}, so nothing can be undone from here.")

    async def redo(
        self,
        steps: int = 1,  # noqa: ARG002 - the same for all
        *,
        force: bool = False,  # noqa: ARG002 - likewise
        variables: VariablesChoice = "restore",  # noqa: ARG002 - likewise
    ) -> ToolResult:
        """Return a refusal."""
        return refusal(f"{self._REASON}, so there is nothing to redo.")

    async def reach(self) -> str:
        """Return that it reaches nowhere."""
        return f"{self._REASON}."

    async def changes(self, since: str | None = None) -> Changes:  # noqa: ARG002 - the same for all
        """Refuse.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"{self._REASON}, so changes cannot be listed from here. Ask `sandbox_bash`, with git or diff."
        )

    def exclusive(self) -> AbstractAsyncContextManager[Snapshot]:
        """Refuse.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{self._REASON}, so it has no branches. Open another session there.")

    @property
    def disk_bytes(self) -> tuple[int, int]:
        """Return zeros: nothing is kept."""
        return 0, 0

    async def finish(self) -> None:
        """Do nothing: nothing waits."""

    def park(self) -> None:
        """Do nothing: nothing is open."""

    def close(self) -> None:
        """Do nothing: nothing is held."""
