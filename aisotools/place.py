"""Where calls run, and who looks at the workspace before and after each call that may change it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aisotools.contracts import Sandbox
from aisotools.events import ToolResult
from aisotools.ticket import Ticket


class Guard(Protocol):
    """Looks at the workspace around every call that may change anything: checkpoints, protected files."""

    async def before(self, ticket: Ticket) -> None:
        """Get ready for the approved call, which is about to run.

        Raises:
            SandboxError: If the call must not run; the message says why and what would help.
            ToolError: If the caller has to do something else first; the message says what.
        """

    async def after(self, ticket: Ticket, result: ToolResult | None) -> ToolResult | None:
        """Look at what came of it, also when it was cancelled, which has no result.

        Returns:
            The result that the caller gets: the given one, or one that says more, or an error.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where calls run, settled when the session opened.

    Attributes:
        sandbox: Runs what runs in the sandbox.
        level: Its confinement level.
        workspace: The folder that tools may change.
        guards: Look at the workspace around every call that may change anything: `before` in this order,
            `after` in the opposite one.
        heard: Gets what a call that only reads gave, and returns what its caller gets; None for nobody.
        undo_note: Tells what undo will bring back of a call, for its card; None where nothing is known.
    """

    sandbox: Sandbox
    level: str
    workspace: Path
    guards: Sequence[Guard] = ()
    heard: Callable[[Ticket, ToolResult], ToolResult] | None = None
    undo_note: Callable[[Ticket], Awaitable[str]] | None = None
