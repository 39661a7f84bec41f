"""The environment in which calls run, and the guards around every call that may change something.

A guard checks the workspace before and after such a call, and may refuse the call or replace its result. The
guards of a session are `protection.Protection`, `read_guard.ReadGuard` and `history.WorkspaceHistory`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aisotools.core.sandboxes import Sandbox
from aisotools.core.types import Facts, ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.policy.rules import Policy


class Guard(Protocol):
    """Looks at the workspace around every call that may change something."""

    async def before(self, prepared: PreparedCall) -> None:
        """Get ready for the approved call, which is about to run.

        Raises:
            SandboxError: If the call must not run; the message says why and what would help.
            ToolError: If the caller has to do something else first; the message says what.
        """

    async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        """Look at what the call did. `result` is None for a call that was cancelled.

        Returns:
            The result that the caller gets: the given one, or one that says more, or an error.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnvironment:
    """Where calls run, settled when the session opened.

    Attributes:
        sandbox: Runs what runs in the sandbox.
        level: Its confinement level.
        workspace: The folder that tools may change.
        workspace_policy: The workspace's own policy, which narrows the session's.
        guards: Entered around every call that may change something: `before` in this order, `after` in the
            opposite one.
        on_read: Gets the result of a call that only reads, and returns what its caller gets.
        can_undo: Returns whether undo covers a call of these facts.
        describe_undo: Returns what undo will restore of a call, for its card.
    """

    sandbox: Sandbox
    level: str
    workspace: Path
    workspace_policy: Policy | None = None
    guards: Sequence[Guard] = ()
    on_read: Callable[[PreparedCall, ToolResult], ToolResult] | None = None
    can_undo: Callable[[Facts], bool] | None = None
    describe_undo: Callable[[PreparedCall], Awaitable[str]] | None = None
