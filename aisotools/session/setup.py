"""The parts that a session sets up when it opens: the sandbox, its guards, and the undo history."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict, get_args

from aisotools.builtin import WORKER_MODULES
from aisotools.core.concurrency import LoopTicker
from aisotools.core.events import CallFinished, CallStarted, ProtectedNamesAllowed
from aisotools.core.exceptions import UsageError
from aisotools.core.sandboxes import (
    Sandbox,
    SandboxListener,
    SupportsDetection,
    SupportsEarlyStart,
    SupportsHome,
    SupportsLeastLevel,
    SupportsReaders,
    SupportsRemoteLocation,
    SupportsSupervisor,
)
from aisotools.core.threads import in_thread
from aisotools.policy.config import workspace_policy
from aisotools.policy.enforcement import PathEnforcement
from aisotools.policy.rules import Policy
from aisotools.sandbox.confinement.detect import ENVIRONMENT_NAME, Detection, choose_level
from aisotools.sandbox.host.monitor import count_context_switches
from aisotools.sandbox.process.spawn import WorkerSpec, detection, search_path
from aisotools.session.event_log import EventLog
from aisotools.session.guards import CallEnvironment, ImportRootWatch, ReadGuard
from aisotools.session.history import WorkspaceHistory
from aisotools.session.path_rules import PathRules
from aisotools.session.protection import Protection, RestGuard
from aisotools.session.recording import Recording
from aisotools.session.sharing import share_in_thread
from aisotools.session.trials import trial_lookups
from aisotools.session.undo_history import NoUndoHistory, TimeoutChoice, UndoHistory
from aisotools.workspace.import_roots import package_marks
from aisotools.workspace.lock import state_folder
from aisotools.workspace.path_facts import PathResolver
from aisotools.workspace.protected import ProtectedFiles
from aisotools.workspace.read_tracker import ReadCache
from aisotools.workspace.scripts import digest_of_code
from aisotools.workspace.workspace import Workspace


class SandboxFactory(Protocol):
    """Makes the sandbox of a session; tests and other programs may bring their own.

    A factory may have the attributes of `SupportsDetection`, `SupportsLeastLevel` and
    `SupportsRemoteLocation`, all in `aisotools.core.protocols`.
    """

    def __call__(self, spec: WorkerSpec, listener: SandboxListener, /) -> Sandbox:
        """Make a sandbox. Start nothing yet."""


def check_factory(make_sandbox: SandboxFactory, read_only: Sequence[str]) -> None:
    """Check that `make_sandbox` can give what the session was asked for.

    Raises:
        UsageError: If further readable folders were named and the sandbox runs on another machine.
    """
    if read_only and isinstance(make_sandbox, SupportsRemoteLocation):
        place = make_sandbox.elsewhere
        raise UsageError(f"read_only: calls run in {place}, where folders of this machine are not.")


def detect_levels(make_sandbox: SandboxFactory) -> Detection:
    """Return which levels sandboxes of this factory support. The first call takes long and blocks."""
    return make_sandbox.detect() if isinstance(make_sandbox, SupportsDetection) else detection(WORKER_MODULES)


def settle_level(
    make_sandbox: SandboxFactory,
    level: str | None,
    min_level: str | None,
    environ: Mapping[str, str],
    found: Detection,
) -> str:
    """Return the confinement level of a session.

    Args:
        make_sandbox: Makes the sandbox.
        level: The exact level that was asked for, or None.
        min_level: The weakest level that was asked for, or None.
        environ: The environment variables, one of which may name a level.
        found: The levels that sandboxes of this factory support.

    Raises:
        LevelUnavailable: If the requested level is not supported.
    """
    is_named = level is not None or min_level is not None or environ.get(ENVIRONMENT_NAME)
    if not is_named and isinstance(make_sandbox, SupportsLeastLevel):
        # Passing a gateway implies consent to the level it declares.
        min_level = make_sandbox.least
    return choose_level(level, min_level, environ, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParts:
    """The parts of an open session.

    Attributes:
        env: Where calls run.
        protection: Guards the protected files.
        reads: Which parts of which files were read.
        history: What calls changed, and the way back.
    """

    env: CallEnvironment
    protection: Protection
    reads: ReadCache
    history: UndoHistory

    async def discard(self) -> None:
        """Close the sandbox and the history of a session that could not be opened."""
        self.history.close()
        await self.env.sandbox.close()


class SetupOptions(TypedDict):
    """Arguments of a session that only `build_environment` needs, by their names in both."""

    protect_notebooks: bool
    try_unknown_commands: bool
    on_timeout: TimeoutChoice


def setup_options(
    protect_notebooks: bool, try_unknown_commands: bool, on_timeout: TimeoutChoice
) -> SetupOptions:
    """Return these arguments of a session, checked.

    Raises:
        ValueError: If `on_timeout` is none of its values.
    """
    if on_timeout not in get_args(TimeoutChoice):
        raise ValueError(f"on_timeout={on_timeout!r}: use 'keep' or 'undo'.")
    return SetupOptions(
        protect_notebooks=protect_notebooks, try_unknown_commands=try_unknown_commands, on_timeout=on_timeout
    )


async def park(history: UndoHistory, recording: Recording, ticker: LoopTicker) -> None:
    """Wait until no call is inside `ticker`, then close the files that history and recording hold open."""
    is_left = False
    while not is_left:
        await ticker.wait_left()
        await history.finish()
        await recording.park()
        # Race: a call may have begun during the awaits, and may have opened the files again.
        is_left = not ticker.is_inside
    history.park()


def announce_opened(event_log: EventLog, history: UndoHistory, **allowed: Sequence[str]) -> None:
    """Record, once a session is open, what was recovered and which protected names are allowed, by whom."""
    history.announce()
    for source, names in allowed.items():
        if names:
            event_log.add(ProtectedNamesAllowed, names=tuple(names), source=source)


async def build_environment(
    spec: WorkerSpec,
    make_sandbox: SandboxFactory,
    *,
    event_log: EventLog,
    session_key: str,
    environ: Mapping[str, str],
    protect_notebooks: bool,
    policy: Policy | None = None,
    try_unknown_commands: bool = True,
    on_timeout: TimeoutChoice = "keep",
    start_early: bool = False,
) -> SessionParts:
    """Make the sandbox, and the guards and the history around its calls.

    Args:
        spec: The worker that is wanted.
        make_sandbox: Makes the sandbox.
        event_log: Records the events of the sandbox and the history.
        session_key: The key of the session.
        environ: The environment variables in which settings are looked up.
        protect_notebooks: Whether open notebooks are protected.
        policy: The session's policy, of which the sandbox enforces what it can.
        try_unknown_commands: Whether commands with unknown effects are tried before a person is asked.
        on_timeout: Whether changes of a call that times out are kept or taken back.
        start_early: Whether the sandbox begins to start a worker meanwhile, if it can.

    Raises:
        WorkspaceError: If checkpoints cannot be kept.
        UsageError: If the workspace's own policy is not valid.
    """
    workspace = Path(spec.workspace)
    is_remote = isinstance(make_sandbox, SupportsRemoteLocation)
    path_rules = PathRules(workspace, spec.level, environ.get("HOME", ""))
    # In a thread: what lies in a workspace may be hostile and large.
    narrowing, files = await in_thread(
        _read_workspace,
        spec,
        environ,
        None if is_remote else path_rules,
        policy or Policy(),
        protect_notebooks=protect_notebooks,
    )
    path_rules.announce()
    enforced = path_rules.enforcement
    spec = dataclasses.replace(spec, unreadable=enforced.unreadable, unwritable=enforced.unwritable)
    sandbox = make_sandbox(spec, event_log)
    path_rules.connect(sandbox, files)
    guarded = Workspace(workspace)
    reads = ReadCache(guarded)
    async with contextlib.AsyncExitStack() as opened:
        history: UndoHistory
        if is_remote:
            # The files are elsewhere: what lies here says nothing about them, so nothing here is guarded or
            # kept.
            history = NoUndoHistory()
        else:
            shared = await share_in_thread(workspace, state_folder(environ), sandbox)
            files.watch_mode(shared.checkpoints.root_mode)
            history = WorkspaceHistory(
                shared,
                sandbox=sandbox,
                event_log=event_log,
                reads=reads,
                session_key=session_key,
                on_timeout=on_timeout,
            )
        opened.callback(history.close)
        opened.push_async_callback(sandbox.close)
        if start_early and isinstance(sandbox, SupportsEarlyStart):
            # Order: by now an undo that was cut short is completed or taken back. That replaces folders, and
            # what a worker has mounted in one would go with it. What is left to do only reads, and takes this
            # process about as long as a worker takes to get ready beside it.
            sandbox.prepare()
        imports = await in_thread(ImportRootWatch, workspace, environ)
        if isinstance(history, WorkspaceHistory):
            await history.measure()
        opened.pop_all()
    protection = Protection(files, functools.partial(_activity, sandbox), imports, event_log)
    event_log.subscribe(protection.on_event, (CallStarted, CallFinished))
    env = CallEnvironment(
        sandbox=sandbox,
        level=spec.level,
        workspace=workspace,
        workspace_policy=narrowing,
        has_readers=isinstance(sandbox, SupportsReaders) and sandbox.has_readers,
        can_undo=history.can_undo,
        describe_undo=history.describe,
    )
    if isinstance(history, WorkspaceHistory):
        read_guard = ReadGuard(reads)
        resolver = PathResolver(workspace, path_rules.name_lookup, functools.partial(_home, sandbox))
        env = dataclasses.replace(
            env,
            files=guarded,
            guards=(RestGuard(protection), read_guard, history, protection),
            on_read=read_guard.on_read,
            resolve_paths=resolver.resolve,
            find_sources=resolver.with_sources,
            digest_code=functools.partial(digest_of_code, workspace),
            path_rules=path_rules,
            # Only a reader holds a command to what a trial promises.
            trials=trial_lookups(workspace, search_path())
            if try_unknown_commands and env.has_readers
            else None,
        )
    return SessionParts(env=env, protection=protection, reads=reads, history=history)


def _read_workspace(
    spec: WorkerSpec,
    environ: Mapping[str, str],
    path_rules: PathRules | None,
    policy: Policy,
    *,
    protect_notebooks: bool,
) -> tuple[Policy | None, ProtectedFiles]:
    """Return the workspace's own policy, and its protected files as they are now.

    The rules about paths of both policies are followed first, unless the files are on another machine.
    """
    workspace = Path(spec.workspace)
    narrowing = workspace_policy(workspace)
    enforced = PathEnforcement()
    if path_rules is not None:
        path_rules.follow(policy if narrowing is None else policy.narrowed(narrowing))
        enforced = path_rules.enforcement
    files = ProtectedFiles(
        workspace,
        state_folder(environ) / "taken-away" / uuid.uuid4().hex[:12],
        allowed=spec.allowed,
        notebook=environ.get("JPY_SESSION_NAME", ""),
        notebooks=protect_notebooks,
        environ=environ,
        denied=enforced.put_back,
        unreadable=enforced.unreadable,
        package_marks=package_marks(workspace, environ),
    )
    return narrowing, files


def _home(sandbox: Sandbox) -> str:
    """Return the home folder of what runs in the sandbox, where it may put settings; empty for none."""
    return sandbox.home if isinstance(sandbox, SupportsHome) else ""


def _activity(sandbox: Sandbox) -> Mapping[tuple[int, int], int] | None:
    """Return what shows whether something in the sandbox ran; see `Protection`."""
    # A sandbox without processes of its own has nothing that could go on between calls.
    return count_context_switches(sandbox.supervisor if isinstance(sandbox, SupportsSupervisor) else 0)
