"""What a session is given, checked, and the workspace that it holds while it is open."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from aisotools.core.exceptions import UsageError, WorkspaceError, WorkspaceRefused
from aisotools.core.protocols import Approver
from aisotools.policy.rules import Policy
from aisotools.tools.validation import short_repr
from aisotools.workspace.lock import (
    WorkspaceLease,
    claim_default_workspace,
    claim_workspace,
    refuse_workspace,
    state_folder,
)


def hold_workspace(folder: Path | None, level: str, environ: Mapping[str, str]) -> WorkspaceLease:
    """Check and claim a workspace; a refusal leaves nothing behind.

    Args:
        folder: The folder, made if it is missing; None for the notebook's own.
        level: The confinement level, on which it depends what is refused.
        environ: Where settings are looked up.

    Raises:
        WorkspaceRefused: If the folder cannot be a workspace, or another process holds it.
        WorkspaceError: If the state folder cannot be used.
    """
    state = state_folder(environ)
    if folder is None:
        claim = claim_default_workspace(Path.cwd(), _notebook_stem(environ), state)
        try:
            refuse_workspace(claim.path, state_folder=state, level=level, environ=environ)
        except WorkspaceRefused:
            claim.release()
            raise
        return claim
    made = _made(folder)
    try:
        refuse_workspace(folder.resolve(), state_folder=state, level=level, environ=environ)
        claim = claim_workspace(folder, state)
        if not claim.ours:
            raise WorkspaceRefused(
                f"The workspace {str(claim.path)!r} is in use by process {claim.holder or 'unknown'}. "
                "Close that session, or use another folder.",
            )
    except WorkspaceError:
        for path in made:
            path.rmdir()
        raise
    return claim


def _made(folder: Path) -> list[Path]:
    """Make the folder and what is missing above it; the folders that were made, the innermost first."""
    missing = []
    try:
        for path in (folder, *folder.parents):
            if path.exists():
                break
            missing.append(path)
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        return []  # it is a file, which is told below
    except (OSError, ValueError) as error:
        raise WorkspaceRefused(
            f"{str(folder)!r} cannot be the workspace: it cannot be made ({error}). Use another folder.",
        ) from None
    return missing


def _notebook_stem(environ: Mapping[str, str]) -> str:
    """The notebook's name without its ending; Jupyter Server tells it to the kernels it starts."""
    return Path(environ.get("JPY_SESSION_NAME", "default")).stem or "default"


# ---- what a session is given


def refuse_auto_without_sandbox(policy: Policy, level: str) -> None:
    """Raise if the policy needs a sandbox and there is none.

    Raises:
        UsageError: For mode auto at level limited.
    """
    if level == "limited" and policy.mode == "auto":
        raise UsageError(
            "Mode auto is refused at level limited: no sandbox would hold what it allows. Use mode safe.",
        )


def require_type(value: object, kind: type, name: str, such_as: str, *, optional: bool = True) -> None:
    """Raise if the argument `name` is of another kind.

    Raises:
        TypeError: Naming the argument, the value and what to give instead.
    """
    if not isinstance(value, kind) and not (optional and value is None):
        raise TypeError(f"{name}={short_repr(value)}: give a {kind.__name__}, such as {such_as}.")


def require_approver(approver: object) -> None:
    """Raise if this is neither None nor somebody who can be asked.

    Raises:
        TypeError: Saying what to give instead.
    """
    if isinstance(approver, type):
        raise TypeError(f"approver={approver.__name__}: give an approver, such as {approver.__name__}().")
    if approver is not None and not (isinstance(approver, Approver) and callable(approver.ask)):
        raise TypeError(f"approver={short_repr(approver)}: give an object with `async def ask(request)`.")


def is_number(value: object) -> bool:
    """Whether this is a number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse_workspace(path: str | os.PathLike[str]) -> Path:
    """The workspace as it was given.

    Raises:
        ValueError: If the path is empty, which would mean the current folder.
    """
    if not os.fspath(path):
        raise ValueError("workspace='': give the path of a folder, or leave it out for one of its own.")
    return Path(path).expanduser()


def existing_paths(paths: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Further paths that tools may read, resolved.

    Raises:
        TypeError: If this is one path, not a list of them.
        UsageError: If one does not exist.
    """
    if isinstance(paths, str | os.PathLike):
        raise TypeError(f"read_only={str(paths)!r}: give a list of paths, such as [{str(paths)!r}].")
    found = [Path(path).expanduser() for path in paths]
    for path in found:
        if not path.exists():
            raise UsageError(f"read_only: {str(path)!r} does not exist. Create it first, or leave it out.")
    return tuple(str(path.resolve()) for path in found)
