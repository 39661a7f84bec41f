"""A session: one workspace, one sandbox, one policy, and the one gate that every call passes.

Whatever a model can cause comes back as a `ToolResult`. Only the calling program's own mistakes, and
cancellation, are raised.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

from aisotools.builtin import WORKER_MODULES, builtin_tools
from aisotools.core.concurrency import LoopTicker, RunOnce, run_on_loop, run_to_completion
from aisotools.core.events import CallEmitted, SessionEvent
from aisotools.core.exceptions import AisotoolsError, SessionClosed, ToolError, UsageError
from aisotools.core.protocols import Approver, OutputCaps, StoredText
from aisotools.core.retention import DEFAULT_RETAINED_BYTES, RetentionBudget
from aisotools.core.sandboxes import Sandbox
from aisotools.core.threads import in_thread
from aisotools.core.types import Json, Origin, ToolCall, ToolResult
from aisotools.policy.config import user_policy
from aisotools.policy.grants import Grants
from aisotools.policy.prepared import PreparedCall
from aisotools.policy.rules import Policy
from aisotools.sandbox.data import unpack
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.sandbox.worker.output import escape_surrogates
from aisotools.session.event_log import EventLog, Listener
from aisotools.session.gate import Gate
from aisotools.session.options import (
    check_retained_bytes,
    existing_paths,
    parse_workspace,
    refuse_auto_without_sandbox,
    require_approver,
    require_type,
)
from aisotools.session.recording import Recording, record
from aisotools.session.setup import (
    PreparedSandbox,
    SandboxFactory,
    SessionParts,
    announce_opened,
    build_environment,
    check_factory,
    claim_beside,
    detect_levels,
    factory_for,
    final_steps,
    give_back,
    park,
    prepare_sandbox,
    settle_level,
    setup_options,
)
from aisotools.session.status import SessionStatus, measure_disk, missing_levels
from aisotools.session.transfer import GetVariable, PutVariable, branch_off, check_variable
from aisotools.session.undo_history import TimeoutChoice, UndoHistory, VariablesChoice
from aisotools.tools.registry import ToolRegistry
from aisotools.tools.validation import check_deadline, make_call
from aisotools.workspace.diff import Changes
from aisotools.workspace.import_roots import block_imports
from aisotools.workspace.lock import WorkspaceLease, real_workspace, state_folder, state_place
from aisotools.workspace.protected_names import AllowedNames
from aisotools.workspace.read_tracker import ReadCache


class Session:
    """Tools, policy, approver and sandbox of one conversation. Use it as an async context manager.

    Without `async with` it opens itself at the first call; then `close` it yourself.

    Attributes:
        registry: The tools that can be called.
        policy: What may run; assign another one at any time.
        limits: What the sandbox may use up.
        session_key: The conversation.
        level: The confinement level; empty before the session is open.
        events: What happened, in order; read only. `EventsDropped` stands for what is retained no longer.
        retention: The memory of this process that the session takes, and its budget.
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
        allow_protected: Sequence[str] = (),
        retained_bytes: int = DEFAULT_RETAINED_BYTES,
        try_unknown_commands: bool = True,
        on_timeout: TimeoutChoice = "keep",
    ) -> None:
        """Describe the session; nothing is started or created yet.

        Args:
            workspace: The only folder that tools may change; `./workspace/<notebook>` without it.
            registry: The tools; the built-in ones without it.
            policy: What may run; the user's own file, else mode `safe`, without it.
            approver: Answers questions; the notebook or terminal without it. Where neither is, it means no.
            limits: What the sandbox may use up.
            level: Exactly this confinement level.
            min_level: At least this confinement level.
            read_only: Further folders that tools may read.
            session_key: Names the conversation.
            sandbox: Makes the sandbox; real confined processes without it. `GatewaySandbox(url, token)` runs
                calls in a kernel at a Jupyter server or gateway, at level `limited`, without undo.
            output_caps: How much of a result goes where.
            environ: Where settings are looked up; the process's environment without it.
            protect_notebooks: Whether notebooks in the workspace are put back; Jupyter saves its own.
            approval_timeout_s: Seconds that a person has to answer; None waits for ever.
            allow_protected: Protected names that may be written all the same, such as `conftest.py`, a folder
                such as `.vscode`, or the path of one such file. Programs outside the sandbox may run them.
            retained_bytes: Memory of this process that events, results and checkpoints may take; before that
                they move to files, and beyond 256 MiB there the oldest go, which `events` and `status` say.
            try_unknown_commands: Whether unknown shell commands are tried first, see `session.trials`.
            on_timeout: Whether changes of a call that times out are kept and named, or taken back (`undo`).

        Raises:
            UsageError: If one of `allow_protected` is not a protected name.
        """
        require_type(registry, ToolRegistry, "registry", "ToolRegistry([...])")
        require_type(policy, Policy, "policy", "Policy(mode='safe')")
        require_type(limits, Limits, "limits", "Limits(...)")
        require_type(session_key, str, "session_key", "'lesson-1'")
        require_type(output_caps, OutputCaps, "output_caps", "OutputCaps(...)")
        require_approver(approver)
        self.limits = limits if limits is not None else Limits()
        self.session_key = escape_surrogates(session_key) if session_key else uuid.uuid4().hex[:12]
        self.retention = RetentionBudget(check_retained_bytes(retained_bytes))
        self._event_log = EventLog(self.retention)
        self.events = self._event_log.events
        self.log_path: Path | None = None
        self._gate = Gate(
            registry=registry if registry is not None else ToolRegistry(builtin_tools()),
            policy=policy if policy is not None else Policy(),
            approver=approver,
            event_log=self._event_log,
            caps=output_caps or OutputCaps(stream_bytes=self.limits.stream_bytes),
            call_timeout_s=self.limits.call_timeout_s,
            session_key=self.session_key,
            approval_timeout_s=approval_timeout_s,
            allowed=AllowedNames(allow_protected),
            retention=self.retention,
        )
        self._policy_is_default = policy is None
        self._workspace = None if workspace is None else parse_workspace(workspace)
        self._level, self._min_level = level, min_level
        self._environ = os.environ if environ is None else environ
        self._read_only = existing_paths(read_only, self._environ)
        check_factory(sandbox, self._read_only)
        self._make_sandbox, on_left = factory_for(sandbox, self)
        self._options = setup_options(protect_notebooks, try_unknown_commands, on_timeout)
        self._approval_timeout_s = approval_timeout_s
        self._ticker = LoopTicker(on_left)
        self._opening = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0  # that opened it
        self._parts: SessionParts | None = None
        self._lease: WorkspaceLease | None = None
        self._blocked_imports = ExitStack()  # closed, it allows imports from the workspace again
        self._recording: Recording | None = None
        self._missing_levels: tuple[str, ...] = ()
        self._closed = False
        self._closing = RunOnce(resumes=True)

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.level or "not open yet"
        return f"<Session {self.session_key}: {state}, {self._gate.calls} calls, {self._workspace}>"

    @property
    def registry(self) -> ToolRegistry:
        """The tools that can be called."""
        return self._gate.registry

    @property
    def policy(self) -> Policy:
        """The policy that decides what may run; another one may be assigned at any time."""
        return self._gate.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        require_type(policy, Policy, "policy", "Policy(mode='safe')", optional=False)
        refuse_auto_without_sandbox(policy, self.level)
        self._gate.policy, self._policy_is_default = policy, False
        if self._parts is not None:
            self._parts.env.announce(self.effective_policy)

    @property
    def effective_policy(self) -> Policy:
        """The policy that decides about calls: narrowed by the workspace's own and by those of `narrow`."""
        return self._gate.effective_policy(self._parts.env.workspace_policy if self._parts else None)

    @property
    def approver(self) -> Approver | None:
        """The approver that is asked; None for the default one. Another may be assigned at any time."""
        return self._gate.approver

    @approver.setter
    def approver(self, approver: Approver | None) -> None:
        require_approver(approver)
        self._gate.approver = approver

    @property
    def grants(self) -> Grants:
        """Remembered approvals, which cover further calls; withdraw one with `Grants.revoke`."""
        return self._gate.grants

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """A sentence for each rule about paths that the sandbox cannot enforce; none before it is open."""
        return () if self._parts is None else self._parts.env.not_enforced

    @property
    def allowed_protected(self) -> tuple[str, ...]:
        """The protected names that a person has allowed to be written in this workspace."""
        return self._gate.allowed.names

    @property
    def workspace(self) -> Path | None:
        """The folder that tools may change; None until the session is open, unless it was given."""
        return self._workspace

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that the session belongs to; None until it is open."""
        return self._loop

    @property
    def closed(self) -> bool:
        """True once the session was closed."""
        return self._closed

    @property
    def history(self) -> UndoHistory | None:
        """The undo history: the changes that calls made; None until the session is open."""
        return self._parts.history if self._parts else None

    @property
    def reads(self) -> ReadCache | None:
        """The parts of files that were read; None until the session is open."""
        return self._parts.reads if self._parts else None

    @property
    def sandbox(self) -> Sandbox | None:
        """The sandbox that runs the calls; None until the session is open."""
        return self._parts.env.sandbox if self._parts else None

    @property
    def level(self) -> str:
        """The confinement level; empty before the session is open."""
        return self._parts.env.level if self._parts else ""

    @property
    def results(self) -> Mapping[str, StoredText]:
        """Whole texts of results that were too long for a model, by reference."""
        return self._gate.results

    def keep_result(self, text: str, *, tool: str = "", call_id: str = "") -> str:
        """Store a text in `results`, uncut. Return its reference."""
        return self._gate.results.add(text, tool=tool, call_id=call_id)

    def knows(self, call_id: str) -> bool:
        """Return whether a call with this id was made; an id runs at most once."""
        return self._gate.knows(call_id)

    def status(self) -> SessionStatus:
        """Return the state right now."""
        known: dict[str, Any] = {"calls": self._gate.calls, "workspace": str(self._workspace or "")}
        known["retained"] = self._event_log.retained
        if self._parts is None or self._closed:
            return SessionStatus(level=self.level, **known)
        return SessionStatus.of(
            self._parts.env.sandbox.status(),
            limits=self.limits,
            missing=self._missing_levels,
            allowed_protected=self.allowed_protected,
            recovered=self._parts.history.recovered,
            disk=measure_disk(self._parts.history, self.log_path),
            **known,
        )

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event from now on, until the returned function is called."""
        return self._event_log.subscribe(listener)

    def record(self, kind: type[SessionEvent], call_id: str = "", **fields: Any) -> None:
        """Record an event with the present time, for code that builds on sessions, such as agents."""
        self._event_log.add(kind, call_id, **fields)

    def narrow(self, policy: Policy) -> Callable[[], None]:
        """Allow only what `policy` allows as well, until the returned function is called."""
        return self._gate.narrow(policy)

    # -- lifecycle

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the session and start its worker.

        Raises:
            LevelUnavailable: If this machine cannot hold the demanded level; the message says what would do.
            WorkspaceRefused: If the folder cannot be a workspace.
            SandboxError: If no worker comes up.
        """
        async with self._settled(start_early=True) as parts:
            await parts.env.sandbox.start()

    async def restart(self) -> None:
        """End the worker and everything it started, and start a fresh one; its variables are lost."""
        async with self._settled() as parts:
            await parts.env.restart()

    async def interrupt(self) -> None:
        """Stop whatever runs or is about to, and call off open questions.

        Any event loop may await it. Where the session's own one is stopped, that is done when it goes on.
        """
        if (loop := self._loop) is None or loop is asyncio.get_running_loop():
            await self._interrupt()
        elif not self._is_loop_lost():
            await run_on_loop(self._interrupt, loop)

    async def _interrupt(self) -> None:
        self._gate.interrupt()
        if self._parts is not None:
            await self._parts.env.sandbox.interrupt()

    async def park(self) -> None:
        """Wait until no call runs, then close what is open between calls; the next call opens it again."""
        self._check_loop()
        if self._parts is not None and self._recording is not None and not self._closed:
            await park(self._parts.history, self._recording, self._ticker, self._workspace)

    async def close(self) -> None:
        """End the worker and everything it started, and return when nothing of it is left.

        Closing again waits for that as well. In a forked process it does nothing.
        """
        if self._process not in {0, os.getpid()}:
            return  # Fork: all that it holds belongs to the parent, which goes on to use it.
        self._closed = True
        held = self._parts, self._lease, self._recording, self._blocked_imports
        # Cancelled, any number of times: whoever opens the workspace next finds it free.
        steps = final_steps(*held, gate=self._gate, event_log=self._event_log)
        await self._closing.run(steps.take, self._loop)

    def _is_loop_lost(self) -> bool:
        return self._loop is None or self._loop.is_closed() or self._process != os.getpid()  # in a fork

    def _check_loop(self) -> None:
        # Before the ticker is entered: its timer and its count belong to the session's own loop.
        if self._loop not in {None, asyncio.get_running_loop()}:
            hint = "Use call_threadsafe, or one session per loop."
            raise UsageError(f"This session belongs to another event loop. {hint}")

    async def _open(self, *, start_early: bool = False) -> SessionParts:
        """Choose level and workspace, once. The first call that needs the worker waits for its start."""
        if self._parts is None:
            async with self._opening:
                if self._parts is None:  # two first calls at once: the second finds what the first has set up
                    self._parts = await self._set_up(start_early=start_early)
        if self._recording is not None and self._recording.is_waiting:
            await self._recording.write_waiting()
        self._refuse_if_closed("is closed")
        return self._parts

    def _refuse_if_closed(self, state: str) -> None:
        if self._closed:
            raise SessionClosed(f"Session {self.session_key} {state}. Open a new one.")

    async def _set_up(self, *, start_early: bool) -> SessionParts:
        found = await in_thread(detect_levels, self._make_sandbox)
        self._refuse_if_closed("was closed while it opened")
        level = settle_level(self._make_sandbox, self._level, self._min_level, self._environ, found)
        self._missing_levels = missing_levels(level, found)
        if self._policy_is_default:
            self._gate.policy = user_policy(self._environ)
        refuse_auto_without_sandbox(self.policy, level)
        by_session = self._gate.allowed.names

        async def prepare(workspace: Path) -> PreparedSandbox:
            spec = WorkerSpec(
                level=level,
                workspace=str(workspace),
                readable=self._read_only,
                limits=self.limits,
                allowed=self._gate.allowed,
                tool_modules=WORKER_MODULES,
            )
            return await prepare_sandbox(
                spec, self._make_sandbox, self._event_log, self._environ, self.policy, start_early=start_early
            )

        lease, prepared = await claim_beside(self._workspace, level, self._environ, prepare)
        parts = None
        try:
            parts = await build_environment(
                prepared, self._event_log, self.session_key, self._environ, **self._options
            )
            self._recording = await record(
                self._event_log,
                self.registry,
                folder=state_folder(self._environ) / "ledger",
                session_key=self.session_key,
                on_failure=self._gate.block,
            )
            # Race: whoever closed it meanwhile has found nothing yet to release.
            self._refuse_if_closed("was closed while it opened")
            announce_opened(self._event_log, parts.history, session=by_session, settings=prepared.allowed)
        except BaseException:
            await run_to_completion(give_back(lease, parts, self._recording if self._closed else None))
            raise
        parts.history.use_record(self._recording)
        self.log_path = self._recording.path
        # Files of the system's folder for temporary ones may be in memory.
        self._gate.results.write_files_to(self._recording.path.parent)
        self._event_log.write_files_to(self._recording.path.parent)
        self._loop, self._process = asyncio.get_running_loop(), os.getpid()
        self._lease, self._workspace = lease, lease.path
        self._blocked_imports.callback(block_imports(lease.path))
        return parts

    # -- calls

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
            approver: Answers the question about this call, instead of the session's approver.

        Returns:
            The result, also for everything that goes wrong: an unknown tool, wrong arguments, a denial, a
            timeout, a crash.

        Raises:
            TypeError: If this is not a call at all.
            ValueError: If the origin or the deadline is none.
            SessionClosed: If the session was closed.
            SandboxError: If the session cannot be opened.
        """
        call = make_call(name, arguments, origin=origin, call_id=call_id)
        check_deadline(timeout_s)
        self._check_loop()
        with self._ticker, self._gate.announce() as since:
            env = (await self._open()).env
            return await self._gate.run(call, env, since, timeout_s=timeout_s, ask=ask, approver=approver)

    async def call_many(
        self, calls: Iterable[tuple[str, Mapping[str, Json]] | ToolCall], *, origin: Origin = "program"
    ) -> list[ToolResult]:
        """Pass several calls through the gate: one question for all that need asking, results in call order.

        Calls that only read run together; a changing call runs alone: after all earlier calls, before all
        later ones. A denied call does not stop the others.

        Args:
            calls: Pairs of a tool's name and arguments, or whole calls.
            origin: Who makes those calls that are given as pairs.

        Raises:
            TypeError: If one of them is not a call at all.
            SessionClosed: If the session was closed.
            SandboxError: If the session cannot be opened.
        """
        tool_calls = [c if isinstance(c, ToolCall) else make_call(*c, origin=origin) for c in calls]
        self._check_loop()
        with self._ticker, self._gate.announce() as since:
            parts = await self._open()
            return await self._gate.run_many(tool_calls, parts.env, since)

    async def run_cell(
        self, code: str, *, origin: Origin = "program", timeout_s: float | None = None
    ) -> ToolResult:
        """Run Python in the sandbox: the `python` tool, through the same gate."""
        return await self.call("python", {"code": code}, origin=origin, timeout_s=timeout_s)

    def call_threadsafe(
        self, name: str, arguments: Mapping[str, Json] | None = None, **options: Any
    ) -> ToolResult:
        """Make a call from another thread and block until its result is there; `options` are those of `call`.

        Raises:
            UsageError: If the session is not open yet, if its loop has ended, or if this is the session's own
                thread.
        """
        if self._loop is None or self._is_loop_lost():
            state = "is not open yet" if self._loop is None else "has lost its event loop"
            raise UsageError(f"The session {state}. Open one with `async with`, then call from threads.")
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            raise UsageError("This would block the session's own loop. Use `await session.call(...)` here.")
        calling = asyncio.run_coroutine_threadsafe(self.call(name, arguments, **options), self._loop)
        try:
            return calling.result()
        finally:
            # No effect on a call that has ended. An interrupted wait, by Ctrl-C for one, cancels the call.
            calling.cancel()

    async def put(self, name: str, value: object) -> None:
        """Assign a value to a variable of the sandbox's Python.

        Args:
            name: The variable.
            value: Text, bytes, JSON, numpy arrays without objects, data frames; do not change it meanwhile.

        Raises:
            ToolError: If the value cannot travel, or the call was not allowed or failed.
            UsageError: If no variable can have that name.
        """
        await self._transfer(await PutVariable.packed(check_variable(name), value))

    async def get(self, name: str) -> Any:
        """Return the value of a variable of the sandbox's Python, in the same forms; never unpickled.

        Raises:
            ToolError: If there is none, or it cannot travel, or what came is malformed.
            UsageError: If no variable can have that name.
        """
        tool = GetVariable(check_variable(name))
        await self._transfer(tool)
        assert tool.payload is not None
        return await in_thread(unpack, name, tool.payload)

    async def _transfer(self, tool: PutVariable | GetVariable) -> None:
        # Whoever holds the session may do this as if they had typed it, so its origin is a person.
        call = make_call(tool.name, dict(tool.arguments), origin="person")
        self._check_loop()
        with self._ticker, self._gate.announce() as since:
            parts = await self._open()
            result = await self._gate.run(call, parts.env, since, tool=tool)
        if result.is_error:
            raise ToolError(result.content, recoverable=result.recoverable)

    def explain(self, call: ToolCall) -> PreparedCall:
        """Return the facts of a call and what the policy says about it, without making it.

        The loop stands still meanwhile: 0.1 s for the longest commands. A call does the same in steps.

        Raises:
            UnknownTool: If there is no such tool.
            ToolError: If the arguments do not fit.
        """
        return self._gate.prepare(call, self.level or "confined", self._parts.env if self._parts else None)

    # -- history

    async def undo(
        self,
        steps: int = 1,
        *,
        to: str | None = None,
        force: bool = False,
        variables: VariablesChoice = "restore",
    ) -> ToolResult:
        """Take back exactly the last calls, their files and variables. Return an error if nothing was done.

        A call that changed nothing counts; calls inside a call count with it. Nothing is done when somebody
        else changed the same files since, a background task runs, or the variables from before are not kept.
        Of calls of another session or process, files alone are taken back.

        Args:
            steps: How many calls.
            to: Back to before this call instead, by its id.
            force: Do it despite others' changes and tasks, and remove what was too large to be kept.
            variables: `keep` takes back files alone, `restore` variables as well.

        Raises:
            ValueError: If `steps`, `force` or `variables` is none of these.
            UsageError: If there is no such call.
        """
        async with self._settled() as parts:
            return await parts.history.undo(steps, to=to, force=force, variables=variables)

    async def redo(
        self, steps: int = 1, *, force: bool = False, variables: VariablesChoice = "restore"
    ) -> ToolResult:
        """Do again exactly so many undone calls, or nothing; see `undo`."""
        async with self._settled() as parts:
            return await parts.history.redo(steps, force=force, variables=variables)

    async def changes(self, since: str | None = None) -> Changes:
        """Return what changed in the workspace since before the session's first call, or before another.

        Args:
            since: The id of that call.

        Raises:
            UsageError: If nothing is kept from before it.
        """
        async with self._settled() as parts:
            return await parts.history.changes(since)

    @asynccontextmanager
    async def _settled(self, *, start_early: bool = False) -> AsyncIterator[SessionParts]:
        """Open the session, with nothing left to be put back of what ran; see `build_environment`."""
        self._check_loop()
        with self._ticker:
            parts = await self._open(start_early=start_early)
            try:
                async with parts.protection.paused():
                    yield parts
            except AisotoolsError:  # Race: `close` has ended the worker meanwhile.
                self._refuse_if_closed("was closed meanwhile")
                raise

    async def branch(self, *, workspace: str | os.PathLike[str] | None = None) -> Session:
        """Open a second session from the state of this one, with copies of its workspace and variables.

        What either does afterwards, the other does not see. What could not be copied is in an event
        `branch` among those of the new session.

        Args:
            workspace: An empty folder for the copy; a new one beside the workspace without it.

        Raises:
            UsageError: If `workspace` holds anything, or from within a call.
            WorkspaceError: If the workspace cannot be copied.
            SandboxError: If the variables cannot be copied within 30 s. Delete what takes long to pickle.
        """
        async with self._settled() as parts:
            env, state = parts.env, state_place(self._environ)
            folder = None if workspace is None else real_workspace(parse_workspace(workspace), state)
            copy = await branch_off(parts.history, env.sandbox, env.workspace, folder, state)
            branch = Session(
                copy.folder,
                ToolRegistry(self.registry),
                *(self.policy, self.approver, self.limits, self.level),
                read_only=self._read_only,
                sandbox=self._make_sandbox,
                output_caps=self._gate.caps,
                environ=self._environ,
                approval_timeout_s=self._approval_timeout_s,
                allow_protected=self.allowed_protected,
                retained_bytes=self.retention.limit_bytes,
                **self._options,
            )
            try:
                await branch.start()
                lost = await copy.load_variables(branch.sandbox)
            except BaseException:
                try:
                    await branch.close()
                finally:
                    await copy.remove()
                raise
            finally:
                copy.close()
        payload = {"of": self.session_key, "missing": list(copy.missing), "lost": list(lost)}
        branch.record(CallEmitted, name="branch", payload=payload)
        return branch
