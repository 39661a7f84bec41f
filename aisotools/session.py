"""A session: one workspace, one sandbox, one policy, and the one gate that every call passes.

    resolve the name → validate → classify → policy → ask → run under a deadline → cap → record

Whatever a model can cause comes back as a `ToolResult`. Only the calling program's own mistakes, and
cancellation, are raised.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from typing import Any

from aisotools.branching import branch_off
from aisotools.changes import Changes
from aisotools.contracts import Approver
from aisotools.events import Json, Origin, ToolCall, ToolResult
from aisotools.exceptions import ToolError, UsageError
from aisotools.history import History
from aisotools.lifetime import Lifetime
from aisotools.opening import folder_given, is_number, wish
from aisotools.parcels import unpack
from aisotools.policy import Policy
from aisotools.registry import ToolRegistry
from aisotools.session_events import CallEmitted
from aisotools.ticket import Ticket
from aisotools.transfer import Get, Put, check_variable
from aisotools.variable_contracts import VariableCopy, VariableHistory


class Session(Lifetime):
    """Tools, policy, approver and sandbox of one conversation. Use it as an async context manager.

    Without `async with` it opens itself at the first call; then `close` it yourself.

    Attributes:
        registry: The tools that can be called.
        policy: What may run; assign another one at any time.
        limits: What the sandbox may use up.
        session_key: The conversation.
        level: The confinement level; empty before the session is open.
        events: Everything that happened, in order; read only.
        log_path: The ledger, once the session is open.
    """

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Json] | None = None,
        *,
        origin: Origin = "program",
        call_id: str | None = None,
        timeout_s: float | None = None,
        ask: bool = False,
        approver: Approver | None = None,
    ) -> ToolResult:
        """Pass one call through the gate.

        Args:
            name: The tool.
            arguments: Its arguments; none without it.
            origin: Who makes the call, `person`, `program` or `model`; decides, with the mode, whether it
                must be asked about.
            call_id: An id of the caller's own; an id runs at most once.
            timeout_s: Deadline in seconds; the tool's own, or the session's, without it.
            ask: Ask a person even if the policy would allow the call.
            approver: Who is asked about this call, instead of whom the session asks.

        Returns:
            The result, also for everything that goes wrong: an unknown tool, wrong arguments, a denial, a
            timeout, a crash.

        Raises:
            TypeError: If this is no call at all.
            ValueError: If the origin or the deadline is none.
            SessionClosed: If the session was closed.
            SandboxError: If the session cannot be opened.
        """
        call = wish(name, arguments, origin=origin, call_id=call_id)
        if timeout_s is not None and not (is_number(timeout_s) and timeout_s > 0):
            raise ValueError(f"timeout_s={timeout_s!r}: use a number of seconds above 0.")
        self._demand_own_loop()
        with self._beat:
            place = await self._open()
            return await self._gate.pass_call(call, place, timeout_s=timeout_s, ask=ask, approver=approver)

    async def call_many(
        self,
        calls: Iterable[tuple[str, Mapping[str, Json]] | ToolCall],
        *,
        origin: Origin = "program",
    ) -> list[ToolResult]:
        """Pass several calls through the gate: one question for all that need asking, results in call order.

        Calls that only read run together; one that changes anything waits for those before it and is waited
        for by those after it. One that is denied does not stop the others.

        Args:
            calls: Pairs of a tool's name and arguments, or whole calls.
            origin: Who makes those calls that are given as pairs.

        Raises:
            TypeError: If one of them is no call at all.
            SessionClosed: If the session was closed.
            SandboxError: If the session cannot be opened.
        """
        wishes = [c if isinstance(c, ToolCall) else wish(*c, origin=origin) for c in calls]
        self._demand_own_loop()
        with self._beat:
            place = await self._open()
            return await self._gate.pass_many(wishes, place)

    @property
    def effective_policy(self) -> Policy:
        """The policy as calls meet it: narrowed by the workspace's own, and by whatever narrows it now."""
        return self._gate.effective_policy()

    def explain(self, call: ToolCall) -> Ticket:
        """What would happen to a call, without making it: its facts, and what the policy says.

        Raises:
            UnknownTool: If there is no such tool.
            ToolError: If the arguments do not fit.
        """
        return self._gate.explain(call, self.level or "confined")

    async def put(self, name: str, value: object) -> None:
        """Assign a value to a variable of the sandbox's Python.

        Args:
            name: The variable.
            value: Text, bytes, whatever JSON holds, numpy arrays without objects, data frames (with pyarrow).

        Raises:
            ToolError: If the value cannot travel, or the call was not allowed or failed.
            UsageError: If no variable can have that name.
        """
        await self._carry(Put(check_variable(name), value))

    async def get(self, name: str) -> Any:
        """The value of a variable of the sandbox's Python, in the same forms; never unpickled.

        Raises:
            ToolError: If there is none, or it cannot travel, or what came is malformed.
            UsageError: If no variable can have that name.
        """
        carrier = Get(check_variable(name))
        await self._carry(carrier)
        assert carrier.parcel is not None
        return await asyncio.to_thread(unpack, name, carrier.parcel)

    async def _carry(self, carrier: Put | Get) -> None:
        """Pass a call of our own; whoever holds the session may do this, as if they had typed it."""
        call = wish(carrier.name, dict(carrier.told), origin="person")
        self._demand_own_loop()
        with self._beat:
            place = await self._open()
            result = await self._gate.pass_own(carrier, call, place)
        if result.is_error:
            raise ToolError(result.content, recoverable=result.recoverable)

    async def run_cell(
        self, code: str, *, origin: Origin = "program", timeout_s: float | None = None
    ) -> ToolResult:
        """Run Python in the sandbox: the `python` tool, through the same gate."""
        return await self.call("python", {"code": code}, origin=origin, timeout_s=timeout_s)

    async def undo(self, steps: int = 1, *, to: str | None = None, force: bool = False) -> ToolResult:
        """Take back what the last calls changed: files, and variables where they are kept.

        Calls that changed nothing do not count. Nothing is done when somebody else has changed the same files
        since, or while a background task runs.

        Args:
            steps: How many calls.
            to: Back to before this call instead, by its id.
            force: Do it all the same, and remove what was too large to be kept.

        Returns:
            What came back and what did not; an error when nothing was done.

        Raises:
            ValueError: If `steps` is no whole number above 0.
            UsageError: If there is no such call.
        """
        with self._beat:
            return await (await self._kept()).undo(steps, to=to, force=force)

    async def redo(self, steps: int = 1, *, force: bool = False) -> ToolResult:
        """Do again what the last undo took back; see `undo`."""
        with self._beat:
            return await (await self._kept()).redo(steps, force=force)

    async def changes(self, since: str | None = None) -> Changes:
        """What changed in the workspace since before the session's first call, or since before another.

        Args:
            since: The id of that call.

        Raises:
            UsageError: If nothing is kept from before it.
        """
        with self._beat:
            return await (await self._kept()).changes(since)

    async def branch(self, *, workspace: str | os.PathLike[str] | None = None) -> Session:
        """A second session from the state of this one, open, with its own copy of workspace and variables.

        What either does afterwards, the other does not see. What could not be copied is told by an event
        `branch` among those of the new session.

        Args:
            workspace: An empty folder for the copy; a new one beside the workspace without it.

        Raises:
            UsageError: If `workspace` holds anything, or from within a call.
            WorkspaceError: If the workspace cannot be copied.
            SandboxError: If the variables cannot be copied.
        """
        with self._beat:
            history, place = await self._kept(), self._place
            assert place is not None
            folder = None if workspace is None else folder_given(workspace)
            taken = await branch_off(history, place.sandbox, place.workspace, folder)
            branch = Session(
                taken.folder,
                ToolRegistry(self.registry),
                self.policy,
                self.approver,
                self.limits,
                self.level,
                read_only=self._read_only,
                sandbox=self._make_sandbox,
                output_caps=self._gate.caps,
                environ=self._environ,
            )
            lost = await _take_along(branch, taken.variables)
        payload = {"of": self.session_key, "missing": list(taken.missing), "lost": list(lost)}
        branch.record(CallEmitted, name="branch", payload=payload)
        return branch

    async def _kept(self) -> History:
        self._demand_own_loop()
        await self._open()
        assert self._history is not None
        return self._history

    def call_threadsafe(
        self, name: str, arguments: Mapping[str, Json] | None = None, **options: Any
    ) -> ToolResult:
        """Make a call from another thread and block until its result is there; `options` are those of `call`.

        Raises:
            UsageError: If the session is not open yet, if its loop has ended, or if this is the session's own
                thread.
        """
        if self._loop is None or self._loop.is_closed():
            state = "is not open yet" if self._loop is None else "has lost its event loop"
            raise UsageError(f"The session {state}. Open one with `async with`, then call from threads.")
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            raise UsageError("This would block the session's own loop. Use `await session.call(...)` here.")
        calling = asyncio.run_coroutine_threadsafe(self.call(name, arguments, **options), self._loop)
        try:
            return calling.result()
        finally:
            calling.cancel()  # without effect on one that is done; an interrupted wait takes the call along


async def _take_along(branch: Session, variables: VariableCopy | None) -> tuple[str, ...]:
    """Open the branch with these variables; what was lost of them."""
    try:
        await branch.start()
        into: VariableHistory | None = getattr(branch.sandbox, "variables", None)
        if variables is None or into is None:
            return ("all variables, because this sandbox keeps none",)
        return (await into.load(variables)).lost
    except BaseException:
        await branch.close()
        raise
    finally:
        if variables is not None:
            variables.close()
