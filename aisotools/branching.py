"""A second session from the state of a first: a copy of its workspace beside it, and of its variables."""

from __future__ import annotations

import asyncio
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from aisotools.checkpoint_restore import restore
from aisotools.checkpoint_store import Store
from aisotools.checkpoint_tree import Lists, encode
from aisotools.contracts import Sandbox
from aisotools.exceptions import UsageError, WorkspaceError
from aisotools.history import History
from aisotools.paths import printable
from aisotools.undo_words import uncovered_words
from aisotools.variable_contracts import VariableCopy, VariableHistory

_MOST_BRANCHES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """The state of a session, taken along.

    Attributes:
        folder: The copy of its workspace.
        variables: The copy of its variables; None where its sandbox keeps none.
        missing: What of the workspace is not in the copy, each with the reason.
    """

    folder: Path
    variables: VariableCopy | None
    missing: tuple[str, ...]


async def branch_off(history: History, sandbox: Sandbox, workspace: Path, folder: Path | None) -> Branch:
    """Copy workspace and variables as they are now, while no call changes them.

    Args:
        history: Keeps the workspace.
        sandbox: Has the variables.
        workspace: The folder to copy.
        folder: Where to; an empty or missing one. A new one beside the workspace without it.

    Raises:
        UsageError: If `folder` holds anything.
        WorkspaceError: If the copy cannot be made.
        SandboxError: If the variables cannot be copied.
    """
    async with history.alone() as snapshot:
        if not snapshot.root:
            raise WorkspaceError(f"The workspace cannot be copied: {'; '.join(uncovered_words(snapshot))}.")
        kept: VariableHistory | None = getattr(sandbox, "variables", None)
        target = _made(workspace, folder)
        variables = await kept.branch() if kept is not None else None
        try:
            failed = await asyncio.to_thread(fill, history.store, snapshot.root, target)
        except BaseException:
            if variables is not None:
                variables.close()
            raise
    return Branch(folder=target, variables=variables, missing=failed)


def fill(store: Store, root: str, folder: Path) -> tuple[str, ...]:
    """Make an empty folder hold what a kept tree holds; what could not be made, each with the reason.

    Raises:
        WorkspaceError: If the folder cannot be opened.
    """
    nothing = store.put(encode({}))
    wanted = {path: after for path, (_, after) in Lists(store).differences(nothing, root).items()}
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise WorkspaceError(f"{str(folder)!r} cannot hold the copy: {error.strerror}.") from None
    try:
        outcome = restore(store, descriptor, wanted, uuid.uuid4().hex[:12])
    finally:
        os.close(descriptor)
    return tuple(f"{printable('/'.join(path))} ({why})" for path, why in outcome.failed)


def _made(workspace: Path, folder: Path | None) -> Path:
    if folder is None:
        for number in range(1, _MOST_BRANCHES):
            beside = workspace.with_name(f"{workspace.name}-branch-{number}")
            try:
                beside.mkdir()
            except FileExistsError:
                continue
            except OSError as error:
                told = f"No folder could be made beside {str(workspace)!r} ({error.strerror})."
                raise WorkspaceError(f"{told} Give one with branch(workspace=...).") from None
            return beside
        raise WorkspaceError(f"{str(workspace)!r} has {_MOST_BRANCHES - 1} branches. Remove some.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"workspace={str(folder)!r} is not empty. Give a new folder, or leave it out.")
    except OSError as error:
        raise WorkspaceError(f"{str(folder)!r} cannot hold the copy: {error.strerror}.") from None
    return folder
