"""What a session sets up where its calls run: the sandbox, and who looks on around each call."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aisotools.core.exceptions import UsageError
from aisotools.core.protocols import Sandbox, SandboxListener
from aisotools.sandbox.host.monitor import switches_below
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session.event_log import EventLog
from aisotools.session.guards import CallEnvironment, Guard, Protection, ReadGuard
from aisotools.session.history import History, NoHistory
from aisotools.workspace.lock import state_folder
from aisotools.workspace.protected import ProtectedFiles
from aisotools.workspace.read_tracker import ReadCache
from aisotools.workspace.workspace import Workspace

SandboxFactory = Callable[[WorkerSpec, SandboxListener], Sandbox]
"""Makes the sandbox of a session; tests and other programs may bring their own.

A factory may have these attributes: `detect`, a callable that gives a `Detection`, says what levels it holds,
where else this machine is tried; `least` is the level that whoever chose the factory has consented to;
`elsewhere` says in words where its sandboxes run, if that is another machine, whose files are not ours.
"""


def check_factory(make_sandbox: SandboxFactory, read_only: Sequence[str]) -> None:
    """Check that `make_sandbox` can give what the session was asked for.

    Raises:
        UsageError: If further readable folders were named and the sandbox runs on another machine.
    """
    elsewhere = getattr(make_sandbox, "elsewhere", "")
    if elsewhere and read_only:
        raise UsageError(f"read_only: calls run in {elsewhere}, where folders of this machine are not.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParts:
    """What was set up.

    Attributes:
        place: Where calls run.
        protection: Keeps the protected files.
        reads: What was read of which file.
        history: What calls changed, and the way back.
    """

    place: CallEnvironment
    protection: Protection
    reads: ReadCache
    history: History


def build_environment(
    wanted: WorkerSpec,
    make: SandboxFactory,
    *,
    journal: EventLog,
    session_key: str,
    environ: Mapping[str, str],
    protect_notebooks: bool,
) -> SessionParts:
    """Set up the sandbox that `make` makes, and what goes with it.

    Raises:
        WorkspaceError: If checkpoints cannot be kept.
    """
    workspace, elsewhere = Path(wanted.workspace), getattr(make, "elsewhere", "")
    sandbox = make(wanted, journal)
    files = ProtectedFiles(
        workspace,
        state_folder(environ) / "taken-away" / uuid.uuid4().hex[:12],
        notebook=environ.get("JPY_SESSION_NAME", ""),
        notebooks=protect_notebooks,
    )
    # a sandbox that runs no processes has nothing that could go on between calls
    protection = Protection(files, lambda: switches_below(getattr(sandbox, "supervisor", 0)))
    journal.subscribe(protection.hear)
    reads = ReadCache(Workspace(workspace))
    reading = ReadGuard(reads)
    kind = NoHistory if elsewhere else History
    history = kind(
        workspace,
        state_folder(environ),
        sandbox=sandbox,
        journal=journal,
        reads=reads,
        session_key=session_key,
    )
    # files elsewhere are none of ours: what is read and kept here says nothing about them
    guards: tuple[Guard, ...] = () if elsewhere else (reading, history, protection)
    place = CallEnvironment(
        sandbox=sandbox,
        level=wanted.level,
        workspace=workspace,
        guards=guards,
        heard=None if elsewhere else reading.heard,
        undo_note=history.sentence,
    )
    return SessionParts(place=place, protection=protection, reads=reads, history=history)
