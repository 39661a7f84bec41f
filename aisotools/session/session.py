"""A session: one workspace, one sandbox, one policy, and the one gate that every call passes.

    resolve the name → validate → classify → policy → ask → run under a deadline → cap → record

Whatever a model can cause comes back as a `ToolResult`. Only the calling program's own mistakes, and
cancellation, are raised.

The life of a session: what it is given, the workspace and sandbox it holds while it is open, its end.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from aisotools.builtin import builtin_tools
from aisotools.core.concurrency import LoopTicker
from aisotools.core.events import CallEmitted, SessionEnded, SessionEvent
from aisotools.core.exceptions import SessionClosed, ToolError, UsageError
from aisotools.core.protocols import Approver, OutputCaps, Sandbox, StoredText, VariableCopy, VariableHistory
from aisotools.core.types import Json, Origin, ToolCall, ToolResult
from aisotools.policy.config import user_policy, workspace_policy
from aisotools.policy.grants import Grants
from aisotools.policy.prepared import PreparedCall
from aisotools.policy.rules import Policy
from aisotools.sandbox.confinement.detect import ENVIRONMENT_NAME, Detection, choose_level
from aisotools.sandbox.data import unpack
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec, detection
from aisotools.session.event_log import EventLog, Listener
from aisotools.session.gate import Gate
from aisotools.session.guards import CallEnvironment, Protection
from aisotools.session.history import History
from aisotools.session.ledger import Recording, record
from aisotools.session.options import (
    existing_paths,
    hold_workspace,
    is_number,
    make_call,
    parse_workspace,
    refuse_auto_without_sandbox,
    require_approver,
    require_type,
)
from aisotools.session.setup import SandboxFactory, build_environment, check_factory
from aisotools.session.status import SessionStatus, missing_levels
from aisotools.session.transfer import GetVariable, PutVariable, branch_off, check_variable
from aisotools.tools.registry import ToolRegistry
from aisotools.workspace.diff import Changes
from aisotools.workspace.lock import WorkspaceLease, state_folder
from aisotools.workspace.read_tracker import ReadCache


class Lifetime:
    """What a session is and holds; `Session` adds what it does.

    Attributes:
        registry: The tools that can be called.
        policy: What may run; assign another one at any time.
        limits: What the sandbox may use up.
        session_key: The conversation.
        level: The confinement level; empty before the session is open.
        events: Everything that happened, in order; read only.
        log_path: The ledger, once the session is open.
    """

    def __init__(  # noqa: PLR0917 - the order is part of the public interface
        self,
        workspace: str | os.PathLike[str] | None = None,
        registry: ToolRegistry | None = None,
        policy: Policy | None = None,
        approver: Approver | None = None,
        limits: Limits | None = None,
        level: str | None = None,
        min_level: str | None = None,
        read_only: Sequence[str | os.PathLike[str]] = (),
        session_key: str | None = None,
        *,
        sandbox: SandboxFactory = LocalSandbox,
        output_caps: OutputCaps | None = None,
        environ: Mapping[str, str] | None = None,
        protect_notebooks: bool = True,
        approval_timeout_s: float | None = 300.0,
    ) -> None:
        """Describe the session; nothing is started or created yet.

        Args:
            workspace: The only folder that tools may change; `./workspace/<notebook>` without it.
            registry: The tools; the built-in ones without it.
            policy: What may run; the user's own file, else mode `safe`, without it.
            approver: Whom to ask; whoever can be asked here without it, else what would be asked is denied.
            limits: What the sandbox may use up.
            level: Exactly this confinement level.
            min_level: At least this confinement level.
            read_only: Further folders that tools may read.
            session_key: Names the conversation.
            sandbox: Makes the sandbox; real confined processes without it. `GatewaySandbox(url, token)` runs
                calls in a kernel at a Jupyter Server or Enterprise Gateway, at level `limited`, without undo.
            output_caps: How much of a result goes where.
            environ: Where settings are looked up; the process's environment without it.
            protect_notebooks: Whether notebooks in the workspace are put back; Jupyter saves its own.
            approval_timeout_s: Seconds that a person has to answer; None waits for ever.
        """
        require_type(registry, ToolRegistry, "registry", "ToolRegistry([...])")
        require_type(policy, Policy, "policy", "Policy(mode='safe')")
        require_type(limits, Limits, "limits", "Limits(...)")
        require_approver(approver)
        self.limits = limits if limits is not None else Limits()
        self.session_key = session_key or uuid.uuid4().hex[:12]
        self._journal = EventLog()
        self.events = self._journal.events
        self.log_path: Path | None = None
        self._gate = Gate(
            registry=registry if registry is not None else ToolRegistry(builtin_tools()),
            policy=policy if policy is not None else Policy(),
            approver=approver,
            journal=self._journal,
            caps=output_caps or OutputCaps(stream_bytes=self.limits.stream_bytes),
            call_timeout_s=self.limits.call_timeout_s,
            session_key=self.session_key,
            approval_timeout_s=approval_timeout_s,
        )
        self._default_policy = policy is None
        self._workspace = None if workspace is None else parse_workspace(workspace)
        self._levels = (level, min_level)
        self._read_only = existing_paths(read_only)
        check_factory(sandbox, self._read_only)
        self._make_sandbox = sandbox
        self._environ = os.environ if environ is None else environ
        self._protect_notebooks = protect_notebooks
        self._beat = LoopTicker()
        self._opening = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._place: CallEnvironment | None = None
        self._claim: WorkspaceLease | None = None
        self._recording: Recording | None = None
        self._protection: Protection | None = None
        self._missing: tuple[str, ...] = ()
        self._history: History | None = None
        self._reads: ReadCache | None = None
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.level or "not open yet"
        return f"<Session {self.session_key}: {state}, {self._gate.calls} calls, {self._workspace}>"

    @property
    def registry(self) -> ToolRegistry:
        """The tools that can be called."""
        return self._gate.registry

    @property
    def policy(self) -> Policy:
        """What may run; another one may be assigned at any time."""
        return self._gate.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        require_type(policy, Policy, "policy", "Policy(mode='safe')", optional=False)
        refuse_auto_without_sandbox(policy, self.level)
        self._gate.policy, self._default_policy = policy, False

    @property
    def results(self) -> Mapping[str, StoredText]:
        """Whole texts of results that were too long for a model, by the reference that was told."""
        return self._gate.shared.results

    def keep_result(self, text: str, *, tool: str = "", call_id: str = "") -> str:
        """Keep a whole text as `results` does, and return its reference."""
        return self._gate.shared.results.add(text, tool=tool, call_id=call_id)

    @property
    def approver(self) -> Approver | None:
        """Who is asked; None means whoever can be asked here. Another one may be assigned at any time."""
        return self._gate.approver

    @approver.setter
    def approver(self, approver: Approver | None) -> None:
        require_approver(approver)
        self._gate.approver = approver

    @property
    def grants(self) -> Grants:
        """Approvals that reach beyond one call; take them back with `revoke`."""
        return self._gate.grants

    @property
    def workspace(self) -> Path | None:
        """The folder that tools may change; None until the session is open, unless it was given."""
        return self._workspace

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that it lives on; None until it is open."""
        return self._loop

    def knows(self, call_id: str) -> bool:
        """Whether there was a call of this id, which therefore can run no more."""
        return self._gate.knows(call_id)

    @property
    def closed(self) -> bool:
        """Whether the session was closed."""
        return self._closed

    @property
    def history(self) -> History | None:
        """What calls changed, and the way back; None until the session is open."""
        return self._history

    @property
    def reads(self) -> ReadCache | None:
        """What was read of which file; None until the session is open."""
        return self._reads

    @property
    def sandbox(self) -> Sandbox | None:
        """What runs the calls; None until the session is open."""
        return self._place.sandbox if self._place is not None else None

    @property
    def level(self) -> str:
        """The confinement level; empty before the session is open."""
        return self._place.level if self._place is not None else ""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- opening and closing

    async def start(self) -> None:
        """Open the session and have its worker up.

        Raises:
            LevelUnavailable: If this machine cannot hold the demanded level; the message says what would do.
            WorkspaceRefused: If the folder cannot be a workspace.
            SandboxError: If no worker comes up.
        """
        self._demand_own_loop()
        with self._beat:
            place = await self._open()
            await place.sandbox.start()

    async def _open(self) -> CallEnvironment:
        """Settle level and workspace; the worker itself starts with the first call that needs it."""
        if self._place is None:
            async with self._opening:
                if self._place is None:
                    self._place = await self._opened()
        if self._closed:
            raise SessionClosed(f"Session {self.session_key} is closed. Open a new one.")
        return self._place

    async def _opened(self) -> CallEnvironment:
        level, min_level = self._levels
        detect: Callable[[], Detection] = getattr(self._make_sandbox, "detect", detection)
        found = await asyncio.to_thread(detect)
        if self._closed:
            raise SessionClosed(f"Session {self.session_key} was closed while it opened. Open a new one.")
        if level is None and min_level is None and not self._environ.get(ENVIRONMENT_NAME):
            min_level = getattr(self._make_sandbox, "least", None)  # naming a gateway is consent to its level
        level = choose_level(level, min_level, self._environ, found)
        self._missing = missing_levels(level, found)
        if self._default_policy:
            self._gate.policy = user_policy(self._environ)
        refuse_auto_without_sandbox(self.policy, level)
        claim = hold_workspace(self._workspace, level, self._environ)
        try:
            place = self._placed(level, claim.path)
            self._gate.bound = workspace_policy(claim.path)
            self._recording = record(
                self._journal,
                self.registry,
                folder=state_folder(self._environ) / "ledger",
                session_key=self.session_key,
                on_failure=self._gate.shut,
            )
        except BaseException:
            if self._history is not None:
                self._history.close()
            claim.release()
            raise
        self.log_path = self._recording.path
        self._loop, self._claim, self._workspace = asyncio.get_running_loop(), claim, claim.path
        return place

    def _placed(self, level: str, workspace: Path) -> CallEnvironment:
        made = build_environment(
            WorkerSpec(level=level, workspace=str(workspace), readable=self._read_only, limits=self.limits),
            self._make_sandbox,
            journal=self._journal,
            session_key=self.session_key,
            environ=self._environ,
            protect_notebooks=self._protect_notebooks,
        )
        self._protection, self._reads, self._history = made.protection, made.reads, made.history
        self._gate.know_undo(made.history.undoable)
        return made.place

    def _demand_own_loop(self) -> None:
        if self._loop not in {None, asyncio.get_running_loop()}:
            raise UsageError(
                "This session belongs to another event loop. Use call_threadsafe from other threads, "
                "or one session per loop.",
            )

    async def close(self) -> None:
        """End the worker and everything it started. Closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        await self._gate.close()
        try:
            if self._place is not None and self._protection is not None:
                self._protection.ending()
                await self._place.sandbox.close()
                await self._protection.close()
        finally:
            if self._history is not None:
                self._history.close()
            if self._claim is not None:
                self._claim.release()
            self._journal.add(SessionEnded)
            if self._recording is not None:
                self._recording.close()

    async def interrupt(self) -> None:
        """Stop whatever runs, in the sandbox and on the host, and call off open questions.

        It may be awaited from any task, and on any other loop: `asyncio.run(session.interrupt())` is how
        another thread does it.
        """
        loop = self._loop
        if loop is None or loop is asyncio.get_running_loop():
            await self._interrupt()
        elif not loop.is_closed():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._interrupt(), loop))

    async def _interrupt(self) -> None:
        self._gate.interrupt()
        if self._place is not None:
            await self._place.sandbox.interrupt()

    async def restart(self) -> None:
        """End the worker and everything it started, and have a fresh one; its variables are lost."""
        self._demand_own_loop()
        with self._beat:
            place = await self._open()
            await place.sandbox.restart()

    def status(self) -> SessionStatus:
        """The state right now."""
        if self._place is None or self._closed:
            return SessionStatus(
                level=self.level, calls=self._gate.calls, workspace=str(self._workspace or "")
            )
        return SessionStatus.of(
            self._place.sandbox.status(),
            calls=self._gate.calls,
            workspace=str(self._workspace),
            limits=self.limits,
            missing=self._missing,
        )

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Have `listener` hear every event from now on; call what is returned to stop that."""
        return self._journal.subscribe(listener)

    def record(self, kind: type[SessionEvent], call_id: str = "", **fields: Any) -> None:
        """Add an event of now to the record, for parts that are built upon the session."""
        self._journal.add(kind, call_id, **fields)

    def narrow(self, policy: Policy) -> Callable[[], None]:
        """Allow only what `policy` allows as well, until what is returned is called."""
        self._gate.narrower.append(policy)
        return lambda: self._gate.narrower.remove(policy)


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
        call = make_call(name, arguments, origin=origin, call_id=call_id)
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
        wishes = [c if isinstance(c, ToolCall) else make_call(*c, origin=origin) for c in calls]
        self._demand_own_loop()
        with self._beat:
            place = await self._open()
            return await self._gate.pass_many(wishes, place)

    @property
    def effective_policy(self) -> Policy:
        """The policy as calls meet it: narrowed by the workspace's own, and by whatever narrows it now."""
        return self._gate.effective_policy()

    def explain(self, call: ToolCall) -> PreparedCall:
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
        await self._carry(PutVariable(check_variable(name), value))

    async def get(self, name: str) -> Any:
        """The value of a variable of the sandbox's Python, in the same forms; never unpickled.

        Raises:
            ToolError: If there is none, or it cannot travel, or what came is malformed.
            UsageError: If no variable can have that name.
        """
        carrier = GetVariable(check_variable(name))
        await self._carry(carrier)
        assert carrier.parcel is not None
        return await asyncio.to_thread(unpack, name, carrier.parcel)

    async def _carry(self, carrier: PutVariable | GetVariable) -> None:
        """Pass a call of our own; whoever holds the session may do this, as if they had typed it."""
        call = make_call(carrier.name, dict(carrier.told), origin="person")
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
            folder = None if workspace is None else parse_workspace(workspace)
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
