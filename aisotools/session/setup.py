"""The parts that a session sets up when it opens: the sandbox, its guards, and the undo history."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import operator
import re
import resource
import threading
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict, get_args

from aisotools.builtin import WORKER_MODULES
from aisotools.core.concurrency import FinalSteps, LoopTicker, run_to_completion
from aisotools.core.events import CallFinished, CallStarted, ProtectedNamesAllowed, SessionEnded
from aisotools.core.exceptions import UsageError
from aisotools.core.sandboxes import (
    Sandbox,
    SandboxListener,
    SupportsAdoption,
    SupportsDetection,
    SupportsEarlyStart,
    SupportsHome,
    SupportsLeastLevel,
    SupportsReaders,
    SupportsRemoteLocation,
    SupportsSupervisor,
)
from aisotools.core.threads import in_thread
from aisotools.policy.config import user_allowed_names, workspace_policy
from aisotools.policy.enforcement import PathEnforcement
from aisotools.policy.rules import Policy
from aisotools.sandbox.confinement.detect import ENVIRONMENT_NAME, Detection, choose_level
from aisotools.sandbox.host.monitor import count_context_switches
from aisotools.sandbox.process.spawn import WorkerSpec, detection, search_path
from aisotools.session.event_log import EventLog
from aisotools.session.gate import Gate
from aisotools.session.guards import CallEnvironment, ImportRootWatch, ReadGuard
from aisotools.session.history import WorkspaceHistory
from aisotools.session.options import claim
from aisotools.session.path_rules import PathRules
from aisotools.session.protection import Protection, RestGuard
from aisotools.session.recording import Recording
from aisotools.session.sharing import share_in_thread
from aisotools.session.trials import trial_lookups
from aisotools.session.undo_history import NoUndoHistory, TimeoutChoice, UndoHistory
from aisotools.tools.adapter import supports
from aisotools.workspace.import_roots import package_marks, park_block
from aisotools.workspace.lock import WorkspaceLease, state_folder
from aisotools.workspace.path_facts import PathResolver
from aisotools.workspace.protected import ProtectedFiles
from aisotools.workspace.read_tracker import ReadCache
from aisotools.workspace.scripts import digest_of_code
from aisotools.workspace.workspace import Workspace


class SandboxFactory(Protocol):
    """Makes the sandbox of a session; tests and other programs may bring their own.

    A factory may have the attributes of `SupportsAdoption`, `SupportsDetection`, `SupportsLeastLevel` and
    `SupportsRemoteLocation`, all in `aisotools.core.sandboxes`.
    """

    def __call__(self, spec: WorkerSpec, listener: SandboxListener, /) -> Sandbox:
        """Make a sandbox. Start nothing yet."""


def check_factory(make_sandbox: SandboxFactory, read_only: Sequence[str]) -> None:
    """Check that `make_sandbox` can give what the session was asked for.

    Raises:
        UsageError: If further readable folders were named and the sandbox runs on another machine.
    """
    if read_only and supports(make_sandbox, SupportsRemoteLocation):
        place = make_sandbox.elsewhere
        raise UsageError(f"read_only: calls run in {place}, where folders of this machine are not.")


def factory_for(
    make_sandbox: SandboxFactory, session: object
) -> tuple[SandboxFactory, Callable[[], None] | None]:
    """Return the factory for a session, and what to call whenever nothing of it is under way any more."""
    return make_sandbox.adopt(session) if supports(make_sandbox, SupportsAdoption) else (make_sandbox, None)


_HAS_READERS = operator.attrgetter("has_readers")
_LEAST_OPEN_FILES = 68
"""With fewer no worker starts in a program that has no other files open, as measured."""


def detect_levels(make_sandbox: SandboxFactory) -> Detection:
    """Return which levels sandboxes of this factory support. The first call takes long and blocks.

    Raises:
        UsageError: If this process could not use files that it makes, or may open too few.
    """
    _refuse_process_settings()
    return make_sandbox.detect() if supports(make_sandbox, SupportsDetection) else detection(WORKER_MODULES)


def _refuse_process_settings() -> None:
    """Raise UsageError for a umask and for a limit with which no worker starts, and nothing says why."""
    try:
        status = Path("/proc/self/status").read_text("utf-8")
        umask = re.findall(r"^Umask:\s*([0-7]+)$", status, re.MULTILINE)
    except (OSError, ValueError):
        umask = []
    if umask and (mode := int(umask[0], 8)) & 0o700:
        raise UsageError(
            f"The umask of this process is {mode:#o}, which takes rights from you to files that are made. "
            f"Set it with os.umask({mode & 0o077:#o})."
        )
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= files < _LEAST_OPEN_FILES:  # -1 is not a limit
        raise UsageError(
            f"This process may open {files} files (RLIMIT_NOFILE), with which no worker starts. At least "
            f"{_LEAST_OPEN_FILES} are needed, and more with many sessions: raise it with `ulimit -n 1024`."
        )


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
    if not is_named and supports(make_sandbox, SupportsLeastLevel):
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


async def give_back(lease: WorkspaceLease, parts: SessionParts | None, recording: Recording | None) -> None:
    """Give back what a session holds that could not be opened: its parts, its workspace, its ledger."""
    try:
        if parts is not None:
            parts.history.close()
            await parts.env.sandbox.close()
    finally:
        await in_thread(lease.release)
        if recording is not None:
            await recording.close()


def final_steps(
    parts: SessionParts | None,
    lease: WorkspaceLease | None,
    recording: Recording | None,
    blocked_imports: contextlib.ExitStack,
    *,
    gate: Gate,
    event_log: EventLog,
) -> FinalSteps:
    """Return how to let no further call run, end the worker, and give back what an open session holds.

    Args:
        parts: Its parts; None, as the next two, if it was never open.
        lease: The claim of its workspace.
        recording: Its ledger.
        blocked_imports: Allows imports from the workspace again when it is closed.
        gate: What calls pass.
        event_log: Its events.
    """
    steps: list[Callable[[], Awaitable[None]]] = [gate.close]
    if parts is not None:
        steps += [
            # Before the worker ends: only a sandbox that is idle until now has changed nothing.
            _at_once(parts.protection.prepare_close),
            parts.env.sandbox.close,
            parts.protection.close,
            parts.history.finish,
            _at_once(parts.history.close),
        ]
    steps.append(_at_once(blocked_imports.close))
    if lease is not None:
        # Once: a thread goes on with it where its event loop has ended, and others may hold the workspace.
        steps.append(functools.partial(in_thread, _once(lease.release)))
    steps.append(_at_once(functools.partial(event_log.add, SessionEnded)))
    if recording is not None:
        steps.append(recording.close)
    return FinalSteps(steps)


def _at_once(function: Callable[[], object]) -> Callable[[], Awaitable[None]]:
    async def step() -> None:
        function()

    return step


def _once(function: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `function` the first time, and waits for its end whenever it is called."""
    lock = threading.Lock()
    done = threading.Event()

    def call() -> None:
        with lock:
            if not done.is_set():
                function()
                done.set()

    return call


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


async def park(
    history: UndoHistory, recording: Recording, ticker: LoopTicker, workspace: Path | None
) -> None:
    """Wait until no call is inside `ticker`, then close the files that are held open between calls."""
    is_left = False
    while not is_left:
        await ticker.wait_left()
        await history.finish()
        await recording.park()
        # Race: a call may have begun during the awaits, and may have opened the files again.
        is_left = not ticker.is_inside
    history.park()
    if workspace is not None:
        park_block(workspace)


def announce_opened(event_log: EventLog, history: UndoHistory, **allowed: Sequence[str]) -> None:
    """Record, once a session is open, what was recovered and which protected names are allowed, by whom."""
    history.announce()
    for source, names in allowed.items():
        if names:
            event_log.add(ProtectedNamesAllowed, names=tuple(names), source=source)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSandbox:
    """A sandbox that was made for a workspace and runs nothing yet.

    Attributes:
        sandbox: The sandbox.
        spec: What its workers are to be.
        is_remote: Whether the files are on another machine.
        path_rules: The rules about paths, of which the sandbox enforces what it can.
        narrowing: The workspace's own policy, if it has one.
        allowed: The protected names that the person's settings allow in this workspace.
    """

    sandbox: Sandbox
    spec: WorkerSpec
    is_remote: bool
    path_rules: PathRules
    narrowing: Policy | None
    allowed: tuple[str, ...]


async def prepare_sandbox(
    spec: WorkerSpec,
    make_sandbox: SandboxFactory,
    event_log: EventLog,
    environ: Mapping[str, str],
    policy: Policy,
    *,
    start_early: bool = False,
) -> PreparedSandbox:
    """Make the sandbox of a session.

    Args:
        spec: The worker that is wanted.
        make_sandbox: Makes the sandbox.
        event_log: Records the events of the sandbox.
        environ: The environment variables in which settings are looked up.
        policy: The session's policy, of which the sandbox enforces what it can.
        start_early: Whether the sandbox begins to start a worker now, if it can.

    Raises:
        UsageError: If the workspace's own policy is not valid.
    """
    workspace = Path(spec.workspace)
    is_remote = supports(make_sandbox, SupportsRemoteLocation)
    path_rules = PathRules(workspace, spec.level, environ.get("HOME", ""))
    allowed = user_allowed_names(environ, workspace)
    spec.allowed.allow(allowed)
    # In a thread: what lies in a workspace may be hostile and large.
    narrowing = await in_thread(_follow_rules, workspace, None if is_remote else path_rules, policy)
    path_rules.announce()
    enforced = path_rules.enforcement
    spec = dataclasses.replace(spec, unreadable=enforced.unreadable, unwritable=enforced.unwritable)
    sandbox = make_sandbox(spec, event_log)
    if start_early and supports(sandbox, SupportsEarlyStart):
        # What is left to do takes this process about as long as a worker takes to get ready beside it.
        sandbox.prepare()
    return PreparedSandbox(
        sandbox=sandbox,
        spec=spec,
        is_remote=is_remote,
        path_rules=path_rules,
        narrowing=narrowing,
        allowed=allowed,
    )


async def claim_beside(
    folder: Path | None,
    level: str,
    environ: Mapping[str, str],
    prepare: Callable[[Path], Awaitable[PreparedSandbox]],
) -> tuple[WorkspaceLease, PreparedSandbox]:
    """Claim a workspace, and prepare its sandbox while other processes are looked at, if that can be.

    Args:
        folder: The folder; None for the notebook's own, which is not known before.
        level: The confinement level.
        environ: The environment variables with the settings.
        prepare: Prepares the sandbox for the workspace with this real path, and changes nothing in there.

    Returns:
        The claim, and the sandbox, which is closed again if the workspace cannot be had.

    Raises:
        WorkspaceError: As `open_workspace`.
        Exception: Whatever `prepare` raises.
    """
    loop = asyncio.get_running_loop()
    locked: asyncio.Future[Path] = loop.create_future()

    def on_locked(path: Path) -> None:
        # In another thread. Race: the session was cancelled, and its loop has ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if locked.done() else locked.set_result(path))

    claiming = asyncio.ensure_future(claim(folder, level, environ, on_locked))
    prepared: list[PreparedSandbox] = []
    try:
        either: list[asyncio.Future[Any]] = [claiming, locked]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if locked.done() and not claiming.done():
            prepared.append(await prepare(locked.result()))
        # Race: who is cancelled here gives the claim back below, once it is known.
        lease = await asyncio.shield(claiming)
        if not prepared:
            prepared.append(await prepare(lease.path))
    except BaseException:

        async def give_back() -> None:
            claiming.cancel()
            await asyncio.wait([claiming])
            if not claiming.cancelled() and claiming.exception() is None:
                await in_thread(claiming.result().release)
            for one in prepared:
                await one.sandbox.close()

        # Cancelled, refused, or not prepared: nobody learns of any of it any more.
        await run_to_completion(give_back())
        raise
    return lease, prepared[0]


async def build_environment(
    prepared: PreparedSandbox,
    event_log: EventLog,
    session_key: str,
    environ: Mapping[str, str],
    *,
    protect_notebooks: bool,
    try_unknown_commands: bool = True,
    on_timeout: TimeoutChoice = "keep",
) -> SessionParts:
    """Make the guards and the history around the calls of a sandbox, which is closed if that fails.

    Args:
        prepared: The sandbox. The workspace is claimed by now.
        event_log: Records the events of the history.
        session_key: The key of the session.
        environ: The environment variables in which settings are looked up.
        protect_notebooks: Whether open notebooks are protected.
        try_unknown_commands: Whether commands with unknown effects are tried before a person is asked.
        on_timeout: Whether changes of a call that times out are kept or taken back.

    Raises:
        WorkspaceError: If checkpoints cannot be kept.
    """
    sandbox, spec, path_rules = prepared.sandbox, prepared.spec, prepared.path_rules
    workspace = Path(spec.workspace)
    guarded = Workspace(workspace)
    reads = ReadCache(guarded)
    async with contextlib.AsyncExitStack() as opened:
        # Cancelled twice: what is being closed is closed to its end.
        opened.push_async_callback(lambda: run_to_completion(sandbox.close()))
        history: UndoHistory
        if prepared.is_remote:
            # The files are elsewhere: what lies here says nothing about them, so nothing here is guarded or
            # kept.
            history = NoUndoHistory()
        else:
            shared = await share_in_thread(workspace, state_folder(environ), sandbox)
            if shared.checkpoints.notes and supports(sandbox, SupportsEarlyStart):
                # Crash of an earlier session: an undo that was cut short has just been completed or taken
                # back. That replaces folders, and what the worker had mounted in one is gone with it.
                sandbox.discard_prepared()
            history = WorkspaceHistory(
                shared,
                sandbox=sandbox,
                event_log=event_log,
                reads=reads,
                session_key=session_key,
                on_timeout=on_timeout,
            )
        opened.callback(history.close)
        files, imports = await in_thread(
            _read_files, spec, environ, path_rules.enforcement, protect_notebooks=protect_notebooks
        )
        if isinstance(history, WorkspaceHistory):
            files.watch_mode(shared.checkpoints.root_mode)
            await history.measure()
        path_rules.connect(sandbox, files)
        opened.pop_all()
    protection = Protection(files, functools.partial(_activity, sandbox, spec.level), imports, event_log)
    event_log.subscribe(protection.on_event, (CallStarted, CallFinished))
    env = CallEnvironment(
        sandbox=sandbox,
        level=spec.level,
        workspace=workspace,
        workspace_policy=prepared.narrowing,
        can_undo=history.can_undo,
        describe_undo=history.describe,
    )
    if supports(sandbox, SupportsReaders):
        # Looked up for each call: a sandbox of a pool is made later.
        env = dataclasses.replace(env, has_readers=functools.partial(_HAS_READERS, sandbox))
    if isinstance(history, WorkspaceHistory):
        read_guard = ReadGuard(reads)
        resolver = PathResolver(workspace, path_rules.name_lookup, functools.partial(_home, sandbox))
        env = dataclasses.replace(
            env,
            files=guarded,
            guards=(RestGuard(protection), read_guard, history, protection),
            on_work_left=shared.note_host_work,
            before_read=protection.before_reading,
            on_read=read_guard.on_read,
            resolve_paths=resolver.resolve,
            find_sources=resolver.with_sources,
            digest_code=functools.partial(digest_of_code, workspace),
            path_rules=path_rules,
            trials=trial_lookups(workspace, search_path()) if try_unknown_commands else None,
        )
    return SessionParts(env=env, protection=protection, reads=reads, history=history)


def _follow_rules(workspace: Path, path_rules: PathRules | None, policy: Policy) -> Policy | None:
    """Return the workspace's own policy, if it has one.

    The rules about paths of both policies are followed from now on, unless the files are on another machine.
    """
    narrowing = workspace_policy(workspace)
    if path_rules is not None:
        path_rules.follow(policy if narrowing is None else policy.narrowed(narrowing))
    return narrowing


def _read_files(
    spec: WorkerSpec, environ: Mapping[str, str], enforced: PathEnforcement, *, protect_notebooks: bool
) -> tuple[ProtectedFiles, ImportRootWatch]:
    """Return the workspace's protected files as they are now, and the watch of what it could be imported as.

    Args:
        spec: The worker that is wanted.
        environ: The environment variables in which settings are looked up.
        enforced: The rules about paths that are followed.
        protect_notebooks: Whether open notebooks are protected.
    """
    workspace = Path(spec.workspace)
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
    return files, ImportRootWatch(workspace, environ)


def _home(sandbox: Sandbox) -> str:
    """Return the home folder of what runs in the sandbox, where it may put settings; empty for none."""
    return sandbox.home if supports(sandbox, SupportsHome) else ""


def _activity(sandbox: Sandbox, level: str) -> Mapping[tuple[int, int], int] | None:
    """Return what shows whether something in the sandbox ran; see `Protection`."""
    # A sandbox without processes of its own has nothing that could go on between calls.
    supervisor = sandbox.supervisor if supports(sandbox, SupportsSupervisor) else 0
    return count_context_switches(supervisor, nested=level == "isolated")
