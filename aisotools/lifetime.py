"""The life of a session: what it is given, the workspace and sandbox it holds while it is open, its end."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from aisotools.beat import Beat
from aisotools.builtin import builtin_tools
from aisotools.claims import Claim, state_folder
from aisotools.contracts import Approver, OutputCaps, Sandbox, StoredText
from aisotools.exceptions import SessionClosed, UsageError
from aisotools.gate import Gate
from aisotools.grants import Grants
from aisotools.history import History
from aisotools.journal import Journal, Listener
from aisotools.opening import (
    demand,
    demand_approver,
    existing_paths,
    folder_given,
    hold_workspace,
    refuse_auto_without_sandbox,
)
from aisotools.place import Place
from aisotools.policy import Policy
from aisotools.policy_file import user_policy, workspace_policy
from aisotools.protection import Protection
from aisotools.readcache import ReadCache
from aisotools.recording import Recording, record
from aisotools.registry import ToolRegistry
from aisotools.sandbox.detect import ENVIRONMENT_NAME, Detection, choose_level
from aisotools.sandbox.kernel import Kernel
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.spawn import Spawn, detection
from aisotools.session_events import SessionEnded, SessionEvent
from aisotools.settling import SandboxFactory, factory_given, settle_in
from aisotools.status import SessionStatus, missing_levels


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
        gateway: str | None = None,
        token: str | None = None,
        sandbox: SandboxFactory = Kernel,
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
            gateway: URL of a Jupyter Server or Enterprise Gateway: calls run in a kernel there, at level
                `limited`, where nothing can be undone from here.
            token: What that server knows us by.
            sandbox: Makes the sandbox; real confined processes without it.
            output_caps: How much of a result goes where.
            environ: Where settings are looked up; the process's environment without it.
            protect_notebooks: Whether notebooks in the workspace are put back; Jupyter saves its own.
            approval_timeout_s: Seconds that a person has to answer; None waits for ever.
        """
        demand(registry, ToolRegistry, "registry", "ToolRegistry([...])")
        demand(policy, Policy, "policy", "Policy(mode='safe')")
        demand(limits, Limits, "limits", "Limits(...)")
        demand_approver(approver)
        self.limits = limits if limits is not None else Limits()
        self.session_key = session_key or uuid.uuid4().hex[:12]
        self._journal = Journal()
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
        self._workspace = None if workspace is None else folder_given(workspace)
        self._levels = (level, min_level)
        self._read_only = existing_paths(read_only)
        self._make_sandbox = factory_given(sandbox, gateway, token, read_only=self._read_only)
        self._environ = os.environ if environ is None else environ
        self._protect_notebooks = protect_notebooks
        self._beat = Beat()
        self._opening = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._place: Place | None = None
        self._claim: Claim | None = None
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
        demand(policy, Policy, "policy", "Policy(mode='safe')", optional=False)
        refuse_auto_without_sandbox(policy, self.level)
        self._gate.policy, self._default_policy = policy, False

    @property
    def results(self) -> Mapping[str, StoredText]:
        """Whole texts of results that were too long for a model, by the reference that was told."""
        return self._gate.shared.results

    def keep_result(self, text: str, *, tool: str = "", call_id: str = "") -> str:
        """Keep a whole text as `results` does, and return its reference."""
        return self._gate.shared.results.keep(text, tool=tool, call_id=call_id)

    @property
    def approver(self) -> Approver | None:
        """Who is asked; None means whoever can be asked here. Another one may be assigned at any time."""
        return self._gate.approver

    @approver.setter
    def approver(self, approver: Approver | None) -> None:
        demand_approver(approver)
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

    async def _open(self) -> Place:
        """Settle level and workspace; the worker itself starts with the first call that needs it."""
        if self._place is None:
            async with self._opening:
                if self._place is None:
                    self._place = await self._opened()
        if self._closed:
            raise SessionClosed(f"Session {self.session_key} is closed. Open a new one.")
        return self._place

    async def _opened(self) -> Place:
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

    def _placed(self, level: str, workspace: Path) -> Place:
        made = settle_in(
            Spawn(level=level, workspace=str(workspace), readable=self._read_only, limits=self.limits),
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
