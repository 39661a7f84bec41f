"""What a session needs of its history, which `WorkspaceHistory` and `NoUndoHistory` are."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from aisotools.core.types import Facts, ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.workspace.checkpoints.scan import Snapshot
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.diff import Changes

VariablesChoice = Literal["restore", "keep"]
"""What an undo or redo does with variables: restore them along with the files, or leave them as they are."""

TimeoutChoice = Literal["keep", "undo"]
"""What becomes of the changes of a call that times out: they stay and are named, or they are taken back."""


class UndoHistory(Protocol):
    """The undo history of a session."""

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
