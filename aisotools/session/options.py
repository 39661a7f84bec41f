"""Check the options of a new session, and claim its workspace.

A wrong option is refused when the session is created, in terms of the argument that was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aisotools.core.concurrency import run_to_completion
from aisotools.core.exceptions import UsageError, WorkspaceError, WorkspaceRefused
from aisotools.core.protocols import Approver
from aisotools.core.retention import MIN_RETAINED_BYTES
from aisotools.core.threads import in_thread
from aisotools.policy.approvers import has_former_method
from aisotools.policy.rules import Policy
from aisotools.tools.validation import short_repr
from aisotools.workspace.lock import (
    WorkspaceLease,
    checkpoint_folder,
    claim_default_workspace,
    claim_workspace,
    real_workspace,
    refuse_workspace,
    state_folder,
    state_place,
)
from aisotools.workspace.root_mode import put_back_mode


def open_workspace(
    folder: Path | None,
    level: str,
    environ: Mapping[str, str],
    on_locked: Callable[[Path], None] | None = None,
) -> WorkspaceLease:
    """Check and claim a workspace. Folders that were created for a workspace that is refused are removed.

    Args:
        folder: The folder, created if it is missing; None for the notebook's own.
        level: The confinement level. Some folders are refused at some levels only.
        environ: The environment variables with the settings.
        on_locked: Called with the real path of a folder that was given, as by `claim_workspace`.

    Returns:
        The claim, which the session releases when it is closed.

    Raises:
        WorkspaceRefused: If the folder cannot be a workspace, or another process holds it.
        WorkspaceError: If the state folder cannot be used.
    """
    state = state_folder(environ)
    if folder is None:
        claim = claim_default_workspace(Path.cwd(), _notebook_stem(environ), state)
        try:
            put_back_mode(claim.path, checkpoint_folder(claim.path, state))
            refuse_workspace(claim.path, state_folder=state, level=level, environ=environ)
        except BaseException:
            claim.release()
            raise
        return _noting(claim, level, state)
    # From here on by its real path: on another way code in the workspace around it may put a link.
    real = real_workspace(folder, state)
    created = _create(real)
    try:
        put_back_mode(real, checkpoint_folder(real, state))
        refuse_workspace(real, state_folder=state, level=level, environ=environ)
        claim = claim_workspace(real, state, on_locked)
        if not claim.ours:
            raise WorkspaceRefused(
                f"The workspace {str(claim.path)!r} is in use by process {claim.holder or 'unknown'}. "
                "Close that session, or use another folder.",
            )
    except WorkspaceError:
        # Race: code in the workspace around it may put something there, or move it, as soon as it exists.
        with contextlib.suppress(OSError):
            for path in created:
                path.rmdir()
        raise
    return _noting(claim, level, state)


def _noting(claim: WorkspaceLease, level: str, state: Path) -> WorkspaceLease:
    """Return a claim whose release notes the checkouts that were made, at a level that refuses others."""
    if level == "isolated":
        return claim
    return dataclasses.replace(claim, notes=checkpoint_folder(claim.path, state))


async def claim(
    folder: Path | None,
    level: str,
    environ: Mapping[str, str],
    on_locked: Callable[[Path], None] | None = None,
) -> WorkspaceLease:
    """Do what `open_workspace` does, in a thread: many files and a slow disk hold up nothing but this.

    Raises:
        CancelledError: If the waiting task was cancelled. The workspace is released again by then.
    """
    leases: list[WorkspaceLease] = []

    async def open_in_thread() -> None:
        leases.append(await in_thread(open_workspace, folder, level, environ, on_locked))

    try:
        await run_to_completion(open_in_thread())
    except asyncio.CancelledError:
        # Race: the thread cannot be stopped, and may have claimed the workspace by now, for nobody.
        for lease in leases:
            lease.release()
        raise
    return leases[0]


def _create(folder: Path) -> list[Path]:
    """Create the folder and its missing parents. Return the folders that were created, innermost first."""
    missing = []
    try:
        for path in (folder, *folder.parents):
            if path.exists():
                break
            missing.append(path)
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        return []  # it is a file, which `refuse_workspace` reports
    except (OSError, ValueError) as error:
        raise WorkspaceRefused(
            f"{str(folder)!r} cannot be the workspace: it cannot be created ({error}). Use another folder.",
        ) from None
    return missing


def _notebook_stem(environ: Mapping[str, str]) -> str:
    """Return the notebook's name without its suffix. Jupyter Server passes it to the kernels it starts."""
    return Path(environ.get("JPY_SESSION_NAME", "default")).stem or "default"


def refuse_auto_without_sandbox(policy: Policy, level: str) -> None:
    """Refuse a policy that allows calls without asking at a level that confines nothing.

    Raises:
        UsageError: For mode auto at level limited.
    """
    if level == "limited" and policy.mode == "auto":
        raise UsageError(
            "Mode auto is refused at level limited: no sandbox would hold what it allows. Use mode safe.",
        )


def require_type(value: object, kind: type, name: str, such_as: str, *, optional: bool = True) -> None:
    """Require that the argument `name` is of type `kind`, or None if it is optional.

    Raises:
        TypeError: Naming the argument, the value and what to give instead.
    """
    if not isinstance(value, kind) and not (optional and value is None):
        raise TypeError(f"{name}={short_repr(value)}: give a {kind.__name__}, such as {such_as}.")


def require_approver(approver: object) -> None:
    """Require None or an approver. Warn the caller's caller if it has a method under its former name.

    Raises:
        TypeError: Saying what to give instead.
    """
    if isinstance(approver, type):
        raise TypeError(f"approver={approver.__name__}: give an approver, such as {approver.__name__}().")
    if approver is not None and not (isinstance(approver, Approver) and callable(approver.ask)):
        raise TypeError(f"approver={short_repr(approver)}: give an object with `async def ask(request)`.")
    if has_former_method(approver):
        name = type(approver).__name__
        warnings.warn(
            f"approver={name}: rename its method `inquire(inquiry)` to `ask_user(question)`.",
            DeprecationWarning,
            stacklevel=3,
        )


def check_retained_bytes(value: object) -> int:
    """Return the budget of what a session retains, in bytes.

    Raises:
        TypeError: If it is not a whole number.
        ValueError: If it is too small to work with.
    """
    if type(value) is not int:
        raise TypeError(f"retained_bytes={short_repr(value)}: give a number of bytes, such as 64 << 20.")
    if value < MIN_RETAINED_BYTES:
        raise ValueError(f"retained_bytes={value}: give at least {MIN_RETAINED_BYTES} bytes (1 MiB).")
    return value


def parse_workspace(path: str | os.PathLike[str]) -> Path:
    """Return the path of the workspace, with `~` expanded.

    Raises:
        ValueError: If the path is empty, which would mean the current folder.
    """
    if not os.fspath(path):
        raise ValueError("workspace='': give the path of a folder, or leave it out for one of its own.")
    return Path(path).expanduser()


def existing_paths(paths: Sequence[str | os.PathLike[str]], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the resolved paths of further files and folders that tools may read.

    Raises:
        TypeError: If this is one path, not a list of them.
        UsageError: If one does not exist, is the root of the file system, or lies in /proc.
        WorkspaceRefused: If a link on the way to one may have been made by a session.
    """
    if isinstance(paths, str | os.PathLike):
        raise TypeError(f"read_only={str(paths)!r}: give a list of paths, such as [{str(paths)!r}].")
    if any(path == "" for path in paths):
        raise UsageError("read_only: a path is empty, which would mean the current folder. Leave it out.")
    expanded = [Path(path).expanduser() for path in paths]
    for path in expanded:
        if not path.exists():
            raise UsageError(f"read_only: {str(path)!r} does not exist. Create it first, or leave it out.")
    if not expanded:
        return ()
    state = state_place(environ)
    real = tuple(str(real_workspace(path, state, use="be read")) for path in expanded)
    for given, place in zip(paths, real, strict=True):
        if place == "/":
            raise UsageError(
                f"read_only: {str(given)!r} is the whole file system, which would leave nothing protected. "
                "Name the folders that tools need, such as ['/data']."
            )
        if place == "/proc" or place.startswith("/proc/"):
            raise UsageError(
                f"read_only: {str(given)!r} shows your other programs, which no sandbox may see. Leave it "
                "out: a sandbox has a /proc of its own."
            )
    return real
