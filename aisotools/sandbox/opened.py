"""The session of a front, in the notebook's folder if that may be a workspace, else in one below it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aisotools.approval import DenyAll
from aisotools.claims import SERVER_ROOT, refuse_workspace, state_folder
from aisotools.contracts import SandboxListener
from aisotools.exceptions import WorkspaceError, WorkspaceRefused
from aisotools.sandbox.desk import Desk, Page, SomeDesk
from aisotools.sandbox.kernel import Kernel
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.spawn import Spawn
from aisotools.session import Session

_LIMITS = Limits(stream_bytes=8 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A session that a front uses.

    Attributes:
        desk: What the front does with it.
        level: Its confinement level.
        notices: What a person should know, in sentences.
        close: Ends it, or only lets go of it if it is another's.
        count: The number of its next cell.
    """

    desk: SomeDesk
    level: str
    notices: tuple[str, ...]
    close: Callable[[], Awaitable[None]]
    count: int = 1


async def open_here(page: Page, *, environ: Mapping[str, str] | None = None) -> Opened:
    """Open a session for the notebook that this process is the kernel of.

    Args:
        page: Hears what its calls show.
        environ: Where settings are looked up; the process's environment without it.

    Raises:
        AisotoolsError: If it cannot be opened.
    """
    environ = os.environ if environ is None else environ
    here = Path.cwd()
    because = _why_not(here, environ)
    if because is None:
        try:
            return await _open_in(here, page, environ, ())
        except WorkspaceRefused as error:
            because = str(error)
    return await _open_in(None, page, environ, (because,))


async def _open_in(
    folder: Path | None, page: Page, environ: Mapping[str, str], because: tuple[str, ...]
) -> Opened:
    made: list[Kernel] = []

    def make(wanted: Spawn, listener: SandboxListener) -> Kernel:
        made.append(Kernel(wanted, listener))
        return made[-1]

    session = Session(
        folder,
        approver=DenyAll(),
        limits=_LIMITS,
        sandbox=make,
        environ=environ,
        protect_notebooks=False,  # Jupyter saves them while cells run
    )
    try:
        await session.start()
    except BaseException:
        await session.close()
        raise
    desk = Desk(session, made[-1], page)

    async def close() -> None:
        desk.close()
        await session.close()

    notices = tuple(f"the workspace is {session.workspace}: {reason}" for reason in because)
    return Opened(desk=desk, level=session.level, notices=notices, close=close)


def _why_not(folder: Path, environ: Mapping[str, str]) -> str | None:
    """Why this folder is not taken as the workspace without being asked; None if it is."""
    root = environ.get(SERVER_ROOT, "")
    if root and _same(folder, Path(root)):
        return "this is the root folder of the Jupyter server, which holds more than one notebook's files"
    try:
        # At the strictest: the level is not known yet, and a checkout is no notebook's own folder anyway.
        refuse_workspace(folder, state_folder=state_folder(environ), level="confined", environ=environ)
    except WorkspaceError as error:
        return str(error)
    return None


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
