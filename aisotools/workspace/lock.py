"""Selection of workspace folders, their modes, and the lock that lets one process change a workspace.

A workspace is handed to code that nobody has read, so a folder is refused when what lies in it would later
be run or trusted outside the sandbox: an interpreter, this package, the state folder, Jupyter's own folders,
a git checkout with its hooks. Two processes never change one workspace at the same time: the first one holds
a lock, which the system releases when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import pwd
import site
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aisotools.core.exceptions import WorkspaceError, WorkspaceRefused
from aisotools.workspace.dirfd import LOCK_FLAGS, WALK_FLAGS, change_mode
from aisotools.workspace.import_roots import refuse_import_root

SCAN_DEPTH = 4
"""Levels below a workspace that are searched for checkouts and environments."""

SCAN_ENTRIES = 5_000
"""Directory entries that the search looks at; checkouts beyond are not found."""

SERVER_ROOT = "AISOTOOLS_SERVER_ROOT"
"""Environment variable with the root folder of the kernel's Jupyter server."""

_NUMBER_LIMIT = 100
"""Limit of numbered default workspaces beside one notebook."""

_MARKS = {
    ".git": "a git checkout",
    "pyvenv.cfg": "a virtual environment",
    "conda-meta": "a conda environment",
}


# ---- which folder


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return the state folder of aisotools, private to its owner; create it if missing.

    It is `$XDG_STATE_HOME/aisotools`, or `~/.local/state/aisotools`.

    Raises:
        WorkspaceError: If it cannot be made, or belongs to somebody else.
    """
    base = Path(environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():  # which the XDG specification says to ignore
        base = _home(environ) / ".local" / "state"
    folder = base / "aisotools"
    advice = "Set XDG_STATE_HOME to a folder of your own."
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.geteuid():
            raise WorkspaceError(f"The state folder {str(folder)!r} belongs to another user. {advice}")
        if status.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        problem = f"The state folder {str(folder)!r} cannot be used: {error.strerror}."
        raise WorkspaceError(f"{problem} {advice}") from error
    return folder


def default_workspace(base: Path, stem: str, *, number: int = 1) -> Path:
    """Return the folder `workspace/<stem>` in `base`, with `-2`, `-3` ... for further numbers; create it.

    Args:
        base: The folder of the notebook or script.
        stem: The notebook's file name without its ending; `default` when there is none.
        number: Which of the notebook's workspaces, from 1.

    Raises:
        WorkspaceRefused: If it cannot be made.
    """
    name = stem.replace("/", "-").replace("\0", "").strip()
    name = "default" if name in {"", ".", ".."} else name
    folder = base / "workspace" / (name if number == 1 else f"{name}-{number}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorkspaceRefused(
            f"The workspace {str(folder)!r} cannot be made: {error.strerror}. "
            "Give another one with Session(workspace=...).",
        ) from error
    return folder.resolve()


def refuse_workspace(
    path: Path,
    *,
    state_folder: Path,
    level: str,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Raise if this folder cannot be a workspace.

    Checkouts and environments inside it are searched for `SCAN_DEPTH` levels deep among the first
    `SCAN_ENTRIES` entries, the upper levels first; one that hides deeper is not found.

    Args:
        path: An existing folder.
        state_folder: Where aisotools keeps its state.
        level: The confinement level; at `isolated` checkouts and environments are allowed.
        environ: Where to look up the user's folders; the process's environment without it.

    Raises:
        WorkspaceRefused: Saying why, and what would do.
    """
    environ = os.environ if environ is None else environ
    refusal = f"{str(path)!r} cannot be the workspace: "
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            raise WorkspaceRefused(f"{refusal}it is not a folder. Give a folder.")
    except FileNotFoundError:
        raise WorkspaceRefused(f"{refusal}it does not exist. Create it first.") from None
    except (OSError, ValueError) as error:
        raise WorkspaceRefused(f"{refusal}{error}. Use another folder.") from error
    advice = "Use a folder made for this, such as ./workspace/mine."
    ours, above = _identity(path), _lineage(path)
    for folder, description in _trusted_folders(state_folder, environ):
        if ours in _lineage(folder):
            relation = "is" if ours == _identity(folder) else "contains"
            raise WorkspaceRefused(f"{refusal}it {relation} {description} ({folder}). {advice}")
        if folder.parent != folder and description != _HOME and _identity(folder) in above:
            raise WorkspaceRefused(f"{refusal}it lies in {description} ({folder}). {advice}")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise WorkspaceRefused(
            f"{refusal}this process may not read and write it. "
            "Change its permissions, or use another folder.",
        )
    if level != "isolated":
        found = _find_mark(path)
        if found is not None:
            mark, where = found
            relation = "is" if where == path else "contains"
            raise WorkspaceRefused(
                f"{refusal}it {relation} {_MARKS[mark]} ({where}), whose files are run outside the sandbox. "
                f"A new folder below would do, such as {str(path / 'workspace')!r}.",
            )
    refuse_import_root(path, environ)


_HOME = "your home folder"


def _home(environ: Mapping[str, str]) -> Path:
    home = Path(environ.get("HOME", ""))
    if home.is_absolute():
        return home
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:  # as in containers that run under a bare number
        raise WorkspaceError(
            f"HOME is not set, and the user {os.geteuid()} has no account. Set HOME to a folder of your own."
        ) from None


def _trusted_folders(state_folder: Path, environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Yield folders that no workspace may contain or, except for the home folder, lie in."""
    home = _home(environ)
    yield Path("/"), "the root of the file system"
    yield home, _HOME
    for prefix in dict.fromkeys((sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)):
        yield Path(prefix), "the Python installation"
    yield Path(site.getusersitepackages()), "the user's Python packages"
    yield Path(__file__).parents[1], "the package aisotools"
    yield state_folder, "the state folder of aisotools"
    for variable, usual in (
        ("JUPYTER_CONFIG_DIR", ".jupyter"),
        ("JUPYTER_DATA_DIR", ".local/share/jupyter"),
        ("IPYTHONDIR", ".ipython"),
    ):
        yield Path(environ.get(variable) or home / usual), "Jupyter's own folder"
    for variable in ("JUPYTER_CONFIG_PATH", "JUPYTER_PATH", "JUPYTER_RUNTIME_DIR"):
        for folder in filter(None, environ.get(variable, "").split(os.pathsep)):
            yield Path(folder), f"a folder of {variable}, which Jupyter obeys"


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _lineage(path: Path) -> set[tuple[int, int] | None]:
    """Return the identities of a folder and its parents: links, bind mounts and spelling do not matter."""
    real = path.resolve()
    return {_identity(one) for one in (real, *real.parents)} - {None}


def _find_mark(path: Path) -> tuple[str, Path] | None:
    """Return the topmost checkout or environment in `path` within the search limits."""
    level, entries_seen = [path], 0
    for _ in range(SCAN_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            try:
                names = list(os.scandir(folder))
                below += [Path(entry.path) for entry in names if entry.is_dir(follow_symlinks=False)]
            except OSError:
                continue  # what this user may not read, the sandbox may not either
            mark = next((entry.name for entry in names if entry.name in _MARKS), None)
            if mark is not None:
                return mark, folder
            entries_seen += len(names)
            if entries_seen > SCAN_ENTRIES:
                return None
        level = below
    return None


# ---- the mode of the folder itself

_log = logging.getLogger(__name__)
_RECORD = "mode"


def checkpoint_folder(workspace: Path, state_folder: Path) -> Path:
    """Return the folder of the checkpoints of a workspace, which is given by its real path."""
    digest = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:32]
    return state_folder / "checkpoints" / digest


class RootMode:
    """The mode of a workspace's own folder, which is put back whenever it has changed.

    Threat: at level `isolated` code in the sandbox may change modes, also that of the workspace itself. A
    folder without the rights of its owner could not be used any more, by any session or undo.

    Mechanism: the mode is remembered when a session opens. Whoever opens the folder or is about to use it
    compares it, and calls `put_back` if it differs. What a person changes between two calls is accepted, as
    long as the owner may read, write and enter. Until the last session is closed the mode is also in a file
    of the state folder, so that the next session can put it back if this process is killed.
    Race: a process of the sandbox may change it again at any time while it runs. It is stopped while
    checkpoints are taken and files are restored.
    Failure: what cannot be put back is said in `notes`, and what needs the folder fails.

    Attributes:
        path: Real path of the folder.
        value: Its type and mode as they should be, as in `os.stat_result.st_mode`.
        notes: What was put back or could not be, in sentences, until somebody has said so.
    """

    def __init__(self, path: Path, record: Path, is_used: Callable[[], bool]) -> None:
        """Remember the mode of a folder.

        Args:
            path: Its real path.
            record: File with the mode that an earlier session remembered and did not put back.
            is_used: Returns whether a call runs that may change the folder: then no mode is accepted.
        """
        self.path = str(path)
        self.notes: list[str] = []
        self._record = record
        self._is_used = is_used
        self._closed = False
        status = path.stat()
        self._identity = status.st_dev, status.st_ino
        earlier = _read_mode(record)
        self.value = status.st_mode if earlier is None else stat.S_IFDIR | earlier
        self._write()

    def __repr__(self) -> str:
        return f"<RootMode {self.value & 0o7777:o} of {self.path!r}>"

    def put_back(self) -> None:
        """Put the mode back, if it has changed, and note that."""
        try:
            folder = os.open(self.path, WALK_FLAGS)
        except OSError:
            return  # it is gone, as whoever opens it says
        try:
            status = os.fstat(folder)
            if (status.st_dev, status.st_ino) != self._identity:
                # A sandbox cannot do that: a person has put another folder there.
                self._identity, self.value = (status.st_dev, status.st_ino), status.st_mode
                self._write()
            if status.st_mode == self.value:
                return
            note = f"The mode of the workspace's folder had become {status.st_mode & 0o7777:03o}"
            try:
                change_mode(folder, self.value & 0o7777)
            except OSError as error:
                note += f", and could NOT be put back to {self.value & 0o7777:03o}: {error.strerror}."
            else:
                note += f". It was put back to {self.value & 0o7777:03o}."
        finally:
            os.close(folder)
        _log.warning("%s: %s", self.path, note)
        if note not in self.notes:
            self.notes.append(note)

    def accept(self) -> None:
        """Remember the mode that a person has given the folder. Put back one that would make it unusable."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return  # it is gone, as whoever opens it says
        if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            self.put_back()
        elif not self._is_used():
            self._identity, self.value = (status.st_dev, status.st_ino), status.st_mode
            self._write()

    def close(self) -> None:
        """Put the mode back, once nothing of the sandbox runs any more, and forget it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.put_back()
        with suppress(OSError):
            self._record.unlink(missing_ok=True)

    def _write(self) -> None:
        # Disk full: only a session after a crash would have needed it. A crash in between leaves no number.
        with suppress(OSError):
            self._record.touch(0o600)
            self._record.write_text(f"{self.value & 0o7777:04o}\n")


def _read_mode(record: Path) -> int | None:
    """Return the mode in a file; None if there is none."""
    try:
        text = record.read_text("ascii")
        return int(text, 8) & 0o7777 if text.endswith("\n") else None
    except (OSError, ValueError):
        return None


def put_back_mode(workspace: Path, state_folder: Path) -> None:
    """Put back the mode of a folder that an earlier session has left changed, because its process was killed.

    A folder that has been a workspace, is ours, and that not even its owner may list or enter, gets the
    rights of its owner back: earlier versions did not remember its mode.

    Args:
        workspace: Real path of the folder.
        state_folder: Where aisotools keeps its state.
    """
    folder = checkpoint_folder(workspace, state_folder)
    try:
        found = os.lstat(workspace).st_mode
        mode = _read_mode(folder / _RECORD)
        readable = stat.S_IRUSR | stat.S_IXUSR
        if mode is None and found & readable != readable and folder.is_dir():
            mode = found & 0o7777 | stat.S_IRWXU
        if mode is None or mode == found & 0o7777 or not stat.S_ISDIR(found):
            return
        place = os.open(workspace, WALK_FLAGS)
        try:
            change_mode(place, mode)
        finally:
            os.close(place)
    except OSError:
        return  # there is no such folder, or it is not ours: `refuse_workspace` says so
    _log.warning("%s: an earlier session left mode %03o; it is %03o again.", workspace, found & 0o7777, mode)


def watch_mode(workspace: Path, checkpoints: Path, is_used: Callable[[], bool]) -> RootMode | None:
    """Return the mode of a workspace, to be put back from now on; None if there is no such folder.

    Args:
        workspace: Real path of the folder.
        checkpoints: Folder of its checkpoints.
        is_used: Returns whether a call runs that may change the workspace.
    """
    try:
        return RootMode(workspace, checkpoints / _RECORD, is_used)
    except OSError:
        return None


# ---- locks


@dataclass(frozen=True, slots=True)
class WorkspaceLease:
    """Result of an attempt to lock a workspace for this process.

    Attributes:
        path: Real path of the workspace.
        holder: Process id of the process that holds it, 0 if that is unknown; None if this process does.
    """

    path: Path
    holder: int | None = None

    @property
    def ours(self) -> bool:
        """True if this process holds the workspace."""
        return self.holder is None

    def release(self) -> None:
        """Release the lease. The last of several leases of one process unlocks the workspace."""
        if self.ours:
            _LOCKS.release(self.path)


def claim_workspace(path: Path, state_folder: Path) -> WorkspaceLease:
    """Lock a workspace for this process. Several sessions of one process share the lock.

    Raises:
        WorkspaceError: If the state folder cannot hold locks.
    """
    real = path.resolve()
    return WorkspaceLease(real, _LOCKS.take(real, state_folder))


def claim_default_workspace(base: Path, stem: str, state_folder: Path) -> WorkspaceLease:
    """Lock the first default workspace of a notebook that is free; see `default_workspace`.

    Raises:
        WorkspaceRefused: If all numbers are taken, or the folder cannot be made.
    """
    for number in range(1, _NUMBER_LIMIT):
        claim = claim_workspace(default_workspace(base, stem, number=number), state_folder)
        if claim.ours:
            return claim
    raise WorkspaceRefused(
        f"Other processes hold all of the {_NUMBER_LIMIT - 1} workspaces of {stem!r}. End some, or give "
        "another folder with Session(workspace=...).",
    )


class _ProcessLocks:
    """Counted locks of this process.

    A lock belongs to the open file description: a second `flock` of the same process would block itself.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Path, tuple[int, int]] = {}  # workspace -> descriptor, claims
        # Fork: a child that kept the descriptors would hold the locks after this process has ended.
        os.register_at_fork(after_in_child=self._forget)

    def take(self, workspace: Path, state_folder: Path) -> int | None:
        """Lock or count once more. Return the process id of another holder, or None."""
        with self._guard:
            if workspace in self._locks:
                lock, claims = self._locks[workspace]
                self._locks[workspace] = lock, claims + 1
                return None
            lock = _open_lock(workspace, state_folder)
            # The kernel frees the lock when its holder ends, however it ends: no stale lock has to be broken.
            # Without waiting: the caller names the process that holds it.
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(lock, 20, 0)
                os.close(lock)
                return int(holder) if holder.isdigit() else 0
            except OSError as error:
                os.close(lock)
                raise WorkspaceError(
                    f"The folder {str(state_folder)!r} cannot hold locks: {error.strerror}. "
                    "Set XDG_STATE_HOME to a folder on a local disk.",
                ) from error
            # Crash: the file still has the number of an earlier holder, which may have more digits. Race:
            # between the two calls the file is empty; who fails to get the lock then names no process.
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            self._locks[workspace] = lock, 1
            return None

    def release(self, workspace: Path) -> None:
        """Count once less; unlock at zero."""
        with self._guard:
            if workspace not in self._locks:
                return
            lock, claims = self._locks.pop(workspace)
            if claims > 1:
                self._locks[workspace] = lock, claims - 1
            else:
                os.close(lock)

    def _forget(self) -> None:
        # After fork: the child shares the open file descriptions. Closing its descriptors does not unlock the
        # workspace, because the parent still has them open. The guard may have been held by another thread.
        self._guard = threading.Lock()
        for lock, _ in self._locks.values():
            os.close(lock)
        self._locks.clear()


def _open_lock(workspace: Path, state_folder: Path) -> int:
    digest = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:32]
    folder = state_folder / "claims"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(folder / f"{digest}.lock", LOCK_FLAGS, 0o600)


_LOCKS = _ProcessLocks()
