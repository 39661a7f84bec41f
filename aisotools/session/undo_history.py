"""What a session needs of its history, and the history of a session that keeps none.

`UndoHistory` is what `WorkspaceHistory` and `NoUndoHistory` are. The latter is for a session whose files are
on another machine: nothing is kept there, and every request says so.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from aisotools.core.exceptions import UsageError
from aisotools.core.types import Facts, ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.session.undo_steps import refusal
from aisotools.workspace.checkpoints.scan import Snapshot
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.diff import Changes

VariablesChoice = Literal["restore", "keep"]
"""What an undo or redo does with variables: restore them along with the files, or leave them as they are."""

TimeoutChoice = Literal["keep", "undo"]
"""What becomes of the changes of a call that times out: they stay and are named, or they are taken back."""


class Record(Protocol):
    """Where it is recorded what a session does."""

    @property
    def is_waiting(self) -> bool:
        """True if something waits for room on the disk."""

    def find_problem(self) -> str:
        """Return why nothing more can be recorded; empty if it can, or waits for room on the disk."""


class UndoHistory(Protocol):
    """The undo history of a session."""

    def use_record(self, record: Record) -> None:
        """Refuse an undo or redo from now on that cannot be recorded."""

    @property
    def store(self) -> Store:
        """The contents of all checkpoints.

        Raises:
            UsageError: If nothing is kept.
        """

    def can_undo(self, facts: Facts) -> bool:
        """Return whether undo covers everything that a call of these facts may change."""

    async def describe(self, prepared: PreparedCall) -> str:
        """Return what undo will and will not restore of a call, in sentences for its card."""

    async def undo(
        self,
        steps: int = 1,
        *,
        to: str | None = None,
        force: bool = False,
        variables: VariablesChoice = "restore",
    ) -> ToolResult:
        """Undo calls, the latest first; see `Session.undo`."""

    async def redo(
        self, steps: int = 1, *, force: bool = False, variables: VariablesChoice = "restore"
    ) -> ToolResult:
        """Redo what was undone; see `Session.redo`."""

    async def reach(self) -> str:
        """Return how far undo reaches back, for files and for variables, in a sentence."""

    async def changes(self, since: str | None = None) -> Changes:
        """Return the changes since before a call, or since the session's first; see `Session.changes`."""

    @property
    def recovered(self) -> tuple[str, ...]:
        """Return what was completed, ended as it was, or is lost of what was half done, in sentences."""

    @property
    def disk_bytes(self) -> tuple[int, int]:
        """Return how much contents of files take on the disk, and the most that is kept; zeros for none."""

    def announce(self) -> None:
        """Record what is new of `recovered`."""

    def exclusive(self) -> AbstractAsyncContextManager[Snapshot]:
        """Hold the workspace as it is now: no call changes it until the context is left.

        Raises:
            UsageError: From within a call, which would wait for itself; or if nothing is kept.
        """

    async def finish(self) -> None:
        """Write through to the disk what waits for that, before `close`."""

    def park(self) -> None:
        """Close what is open between calls, after `finish`; it is opened again when it is needed."""

    def close(self) -> None:
        """Release the workspace."""


class NoUndoHistory:
    """The history of a session whose files are on another machine: every request is refused."""

    _REASON = (
        "Calls of this session run on another machine, where no earlier state of files or variables is kept"
    )

    recovered: tuple[str, ...] = ()

    def use_record(self, record: Record) -> None:
        """Do nothing: every request is refused."""

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
