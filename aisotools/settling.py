"""What a session sets up where its calls run: the sandbox, and who looks on around each call."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aisotools.claims import state_folder
from aisotools.contracts import Sandbox, SandboxListener
from aisotools.exceptions import UsageError
from aisotools.history import History
from aisotools.journal import Journal
from aisotools.no_history import NoHistory
from aisotools.place import Guard, Place
from aisotools.protected_files import ProtectedFiles
from aisotools.protection import Protection
from aisotools.read_guard import ReadGuard
from aisotools.readcache import ReadCache
from aisotools.sandbox.kernel import Kernel
from aisotools.sandbox.spawn import Spawn
from aisotools.sandbox.watch import switches_below
from aisotools.workspace import Workspace

SandboxFactory = Callable[[Spawn, SandboxListener], Sandbox]
"""Makes the sandbox of a session; tests and other programs may bring their own.

A factory may have these attributes: `detect`, a callable that gives a `Detection`, says what levels it holds,
where else this machine is tried; `least` is the level that whoever chose the factory has consented to;
`elsewhere` says in words where its sandboxes run, if that is another machine, whose files are not ours.
"""


def factory_given(
    sandbox: SandboxFactory, gateway: str | None, token: str | None, *, read_only: Sequence[str] = ()
) -> SandboxFactory:
    """What makes the sandbox, as a session was told.

    Raises:
        UsageError: If what it was told contradicts itself.
        TypeError: If gateway or token is no text.
        ValueError: If the gateway is no URL.
    """
    if gateway is None:
        if token is not None:
            raise UsageError("token=... was given without gateway=URL. Give both, or neither.")
    elif sandbox is not Kernel:
        raise UsageError("gateway=... and sandbox=... were given, and calls run in one place. Leave one out.")
    else:
        from aisotools.sandbox.remote import RemoteKernels

        sandbox = RemoteKernels(gateway, token)
    elsewhere = getattr(sandbox, "elsewhere", "")
    if elsewhere and read_only:
        raise UsageError(f"read_only: calls run in {elsewhere}, where folders of this machine are not.")
    return sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What was set up.

    Attributes:
        place: Where calls run.
        protection: Keeps the protected files.
        reads: What was read of which file.
        history: What calls changed, and the way back.
    """

    place: Place
    protection: Protection
    reads: ReadCache
    history: History


def settle_in(
    wanted: Spawn,
    make: SandboxFactory,
    *,
    journal: Journal,
    session_key: str,
    environ: Mapping[str, str],
    protect_notebooks: bool,
) -> Settled:
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
    place = Place(
        sandbox=sandbox,
        level=wanted.level,
        workspace=workspace,
        guards=guards,
        heard=None if elsewhere else reading.heard,
        undo_note=history.sentence,
    )
    return Settled(place=place, protection=protection, reads=reads, history=history)
