"""Selection of workspace folders, and the lock that lets one process change a workspace.

A workspace is handed to code that nobody has read, so a folder is refused when what lies in it would later
be run or trusted outside the sandbox: an interpreter, this package, the state folder, Jupyter's own folders,
a git checkout with its hooks. Two processes never change one workspace at the same time: the first one holds
a lock, which the system releases when the process ends, however it ends. No workspace lies in another one
that is open, in whichever process: undo and the guard of protected files would act on both.

Threat: what is in a workspace is made by code that nobody has read. A link that it has put there would lead
the next session, opened by that name, into any folder of the user.
Mechanism: `real_workspace` follows a path part by part, and refuses one on whose way a link lies in a folder
that was a workspace before. What it returns has no links, and nothing follows links on the way to it again.
Race: the folder of that path may be replaced by a link while another session is open there. The claim refuses
a folder in an open workspace; once it is granted, none is open, and the path is compared once more.
Failure: a folder that is refused, or claimed by another process, is an error that names it and a way out; no
lock is kept and no file is left. So is a lock that cannot be taken because the state folder is unusable.

Claims of processes with another state folder are found by `aisotools.workspace.claims`. Of two processes that
claim at the same time at least one sees the other, and perhaps both do; that one is refused.
"""

from __future__ import annotations

import fcntl
import hashlib
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
from aisotools.workspace.checkouts import find_unexpected, note_made
from aisotools.workspace.claims import is_same_for, list_claims
from aisotools.workspace.dirfd import LOCK_FLAGS
from aisotools.workspace.import_roots import refuse_import_root
from aisotools.workspace.real_paths import find_places, follow_path, lies_to, parents, resolve_links

SERVER_ROOT = "AISOTOOLS_SERVER_ROOT"
"""Environment variable with the root folder of the kernel's Jupyter server."""

_MOST_CLAIMS = 5_000  # of other programs that are looked at
_NUMBER_LIMIT = 100
"""Limit of numbered default workspaces beside one notebook."""

# ---- which folder


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return the state folder of aisotools, private to its owner; create it if missing.

    It is `$XDG_STATE_HOME/aisotools`, or `~/.local/state/aisotools`.

    Raises:
        WorkspaceError: If it cannot be made, or belongs to somebody else.
    """
    folder = state_place(environ)
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


def state_place(environ: Mapping[str, str]) -> Path:
    """Return where the state folder is, or would be."""
    base = Path(environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():  # which the XDG specification says to ignore
        base = _home(environ) / ".local" / "state"
    return base / "aisotools"


def real_workspace(
    path: Path, state_folder: Path, *, below: Path | None = None, use: str = "be the workspace"
) -> Path:
    """Return the real path of a folder to be used, which need not exist.

    Args:
        path: As it was given; links that a person has put on the way are followed.
        state_folder: Where aisotools keeps its state, which knows what was a workspace before.
        below: A folder in which only sessions make things: no link in it is followed either.
        use: What it is wanted for, in the words of the error.

    Raises:
        WorkspaceRefused: Code of an earlier session may have made a link on the way.
    """
    try:
        real, links = follow_path(str(path))
        root = None if below is None else follow_path(str(below))[0]
    except (OSError, ValueError) as error:
        raise WorkspaceRefused(f"{str(path)!r} cannot {use}: {error}. Use another folder.") from error
    for link in links:
        place = link.rpartition("/")[0] or "/"
        was = next((folder for folder in (place, *parents(place)) if was_workspace(folder, state_folder)), "")
        if not was and root is not None and lies_to(place, root) in {"is", "lies in"}:
            was = root
        if was:
            raise WorkspaceRefused(
                f"{str(path)!r} cannot {use}: {link!r} is a symbolic link in {was!r}, where sessions work, "
                f"so code in a sandbox may have made it. It leads to {real!r}. Remove the link, or give "
                f"{real!r} itself if you mean that."
            )
    return Path(real)


def was_workspace(folder: str, state_folder: Path) -> bool:
    """Return whether a real folder is known as a workspace of this or an earlier session."""
    for place in find_places(folder)[0]:
        with suppress(OSError):
            if _lock_file(place, state_folder).stat().st_size:
                return True
        if checkpoint_folder(Path(place), state_folder).is_dir():
            return True
    return False


def default_workspace(base: Path, stem: str, *, number: int = 1) -> Path:
    """Return the folder `workspace/<stem>` in `base`, with `-2`, `-3` ... for further numbers; create it.

    Args:
        base: The folder of the notebook or script.
        stem: The notebook's file name without its ending; `default` when there is none.
        number: Which of the notebook's workspaces, from 1.

    Raises:
        WorkspaceRefused: If it cannot be made, or is a link.
    """
    name = stem.replace("/", "-").replace("\0", "").strip()
    name = "default" if name in {"", ".", ".."} else name
    folder = base / "workspace" / (name if number == 1 else f"{name}-{number}")
    if folder.is_symlink():
        # A session on the folder above may have made it. Where it leads need not exist.
        leads = resolve_links(str(folder))
        raise WorkspaceRefused(
            f"{str(folder)!r} cannot be the workspace: it is a symbolic link to {leads!r}, which code in a "
            f"sandbox may have made. Remove the link, or use Session(workspace={leads!r}) if you mean that.",
        )
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

    Checkouts and environments inside it are searched for; see `checkouts`.

    Args:
        path: An existing folder.
        state_folder: Where aisotools keeps its state.
        level: The confinement level; at `isolated` all checkouts and environments are allowed, elsewhere
            those that came while a session was open.
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
    known: dict[str, _Identity | None] = {}
    above = _lineage(path, known)
    ours = above[0]
    for folder, description in _trusted_folders(state_folder, environ):
        lineage = _lineage(folder, known)
        if ours in lineage:
            relation = "is" if ours == lineage[0] else "contains"
            raise WorkspaceRefused(f"{refusal}it {relation} {description} ({folder}). {advice}")
        if folder.parent != folder and description not in _MAY_LIE_IN and lineage[0] in above:
            raise WorkspaceRefused(f"{refusal}it lies in {description} ({folder}). {advice}")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise WorkspaceRefused(
            f"{refusal}this process may not read and write it. "
            "Change its permissions, or use another folder.",
        )
    if level != "isolated":
        found = find_unexpected(path, checkpoint_folder(path, state_folder))
        if found is not None:
            what, where = found
            relation = "is" if where == path else "contains"
            raise WorkspaceRefused(
                f"{refusal}it {relation} {what} ({where}), whose files are run outside the sandbox. "
                f"A new folder below would do, such as {str(path / 'workspace')!r}, or level 'isolated'.",
            )
    refuse_import_root(path, environ)


_HOME = "your home folder"
_MAY_LIE_IN = (_HOME, "the folder of devices", "the folder of shared memory")
"""Folders below which a workspace is fine."""

_SYSTEM_FOLDERS = (
    ("/etc", "the folder of the system's settings"),
    ("/boot", "the folder of the system's kernels"),
    ("/proc", "a file system of the kernel"),
    ("/sys", "a file system of the kernel"),
    ("/dev", _MAY_LIE_IN[1]),
    ("/dev/shm", _MAY_LIE_IN[2]),  # noqa: S108 - nothing is put there
)


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
    """Yield folders that no workspace may be, contain, or, except for `_MAY_LIE_IN`, lie in."""
    home = _home(environ)
    yield Path("/"), "the root of the file system"
    for system, description in _SYSTEM_FOLDERS:
        yield Path(system), description
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


_Identity = tuple[int, int]


def _identity(path: str, known: dict[str, _Identity | None]) -> _Identity | None:
    """Return device and inode of what is at a path, None for nothing; `known` has what was found so far."""
    if path not in known:
        try:
            status = os.stat(path)  # noqa: PTH116 - dozens of folders are looked at
        except OSError:
            known[path] = None
        else:
            known[path] = status.st_dev, status.st_ino
    return known[path]


def _lineage(path: Path, known: dict[str, _Identity | None]) -> list[_Identity | None]:
    """Return the identities of a folder and its parents: links, bind mounts and spelling do not matter."""
    real = os.path.realpath(path)
    around = (*parents(real), "/") if real != "/" else ()
    return [_identity(real, known), *filter(None, (_identity(folder, known) for folder in around))]


def checkpoint_folder(workspace: Path, state_folder: Path) -> Path:
    """Return the folder of the checkpoints of a workspace, which is given by its real path."""
    digest = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:32]
    return state_folder / "checkpoints" / digest


# ---- locks


@dataclass(frozen=True, slots=True)
class WorkspaceLease:
    """Result of an attempt to lock a workspace for this process.

    Attributes:
        path: Real path of the workspace.
        holder: Process id of the process that holds it, 0 if that is unknown; None if this process does.
        notes: Where it is noted which checkouts have been made in the meantime; None for nowhere.
    """

    path: Path
    holder: int | None = None
    notes: Path | None = None

    @property
    def ours(self) -> bool:
        """True if this process holds the workspace."""
        return self.holder is None

    def release(self) -> None:
        """Release the lease. The last of several leases of one process unlocks the workspace. Blocks."""
        if self.ours:
            if self.notes is not None:
                note_made(self.path, self.notes)
            _LOCKS.release(self.path)


def claim_workspace(
    path: Path, state_folder: Path, on_locked: Callable[[Path], None] | None = None
) -> WorkspaceLease:
    """Lock a workspace for this process. Several sessions of one process share the lock.

    Args:
        path: The folder.
        state_folder: Where the lock files lie.
        on_locked: Called with its real path once nobody else with this state folder can lock it. What is left
            to do then is to look for processes with another one, of which there may be hundreds.

    Raises:
        WorkspaceError: If the state folder cannot hold locks.
        WorkspaceRefused: If the folder lies in or around the workspace of another open session.
    """
    real = path.resolve()

    def on_own_locks() -> None:
        if on_locked is not None and real.resolve() == real:
            on_locked(real)

    lease = WorkspaceLease(real, _LOCKS.take(real, state_folder, on_own_locks))
    # Race: a session that was open above has put a link into the way, and has ended before the claim.
    if lease.ours and real.resolve() != real:
        lease.release()
        raise WorkspaceRefused(f"{str(real)!r} cannot be the workspace: it was replaced just now. Try again.")
    return lease


def claim_default_workspace(base: Path, stem: str, state_folder: Path) -> WorkspaceLease:
    """Lock the first default workspace of a notebook that is free; see `default_workspace`.

    Where `base` lies in the workspace of an open session, it is a folder beside that one.

    Raises:
        WorkspaceRefused: If all numbers are taken, or the folder cannot be made.
    """
    number = 1
    while number < _NUMBER_LIMIT:
        # Before anything is created: `base` itself may lie in a folder that was a workspace.
        real_workspace(base / "workspace", state_folder)
        around = _LOCKS.find_around(base / "workspace", state_folder)
        if around is not None and around.parent not in {base, around}:
            base = around.parent
            continue
        claim = claim_workspace(default_workspace(base, stem, number=number), state_folder)
        if claim.ours:
            return claim
        number += 1
    raise WorkspaceRefused(
        f"Other processes hold all of the {_NUMBER_LIMIT - 1} workspaces of {stem!r}. End some, or give "
        "another folder with Session(workspace=...).",
    )


@dataclass(slots=True)
class _Claim:
    """What this process has locked for one workspace.

    Attributes:
        places: The paths that lead to it.
        above: The folders around it, and around parts of it that are mounted elsewhere.
        files: Its lock files.
        count: Number of sessions.
    """

    places: frozenset[str]
    above: frozenset[str]
    files: tuple[Path, ...]
    count: int = 1


class _ProcessLocks:
    """Counted locks of this process.

    A workspace has a lock file for each path that leads to it, locked by one process alone; and the folders
    above each of these have one, which is locked by all together who have a workspace below. So neither an
    inner nor an outer workspace can be claimed, however many processes try at once.

    A lock belongs to the open file description: a second `flock` of the same process would block itself.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._claims: dict[Path, _Claim] = {}
        self._files: dict[Path, tuple[int, int]] = {}  # lock file -> descriptor, claims
        # Fork: a child that kept the descriptors would hold the locks after this process has ended.
        os.register_at_fork(after_in_child=self._forget)

    def take(
        self, workspace: Path, state_folder: Path, on_own_locks: Callable[[], None] = lambda: None
    ) -> int | None:
        """Lock or count once more. Return the process id of another holder, or None.

        What this process locks is locked when `on_own_locks` is called; others are looked at after that.
        """
        with self._guard:
            if workspace in self._claims:
                self._claims[workspace].count += 1
                return None
            whole, partly = find_places(str(workspace))
            places = frozenset(whole)
            above = frozenset(folder for place in (*whole, *partly) for folder in parents(place))
            above = above.union(partly) - places
            if self._has_place(workspace, places, above):
                return os.getpid()
            alone = {_lock_file(place, state_folder): place for place in whole}
            shared = {_lock_file(folder, state_folder): folder for folder in sorted(above)}
            wanted = [(file, folder, fcntl.LOCK_SH) for file, folder in shared.items()]
            wanted += [(file, place, fcntl.LOCK_EX) for file, place in alone.items()]
            for number, (file, folder, how) in enumerate(wanted):
                try:
                    self._take_file(file, how, state_folder)
                except (OSError, WorkspaceError) as error:
                    self._release_files(*(earlier for earlier, _, _ in wanted[:number]))
                    if not isinstance(error, BlockingIOError):
                        raise
                    pid, _ = _read_holder(file)
                    if how == fcntl.LOCK_SH:
                        raise _nested(str(workspace), "lies in", folder, pid) from None
                    if not _is_locked(file, fcntl.LOCK_SH):  # it is locked by many, who have one below
                        inner, pid = _find_inner(whole, state_folder)
                        raise _nested(str(workspace), "contains", inner, pid) from None
                    return pid
            try:
                on_own_locks()
                holder = _find_holder_elsewhere(workspace, whole, above)
            except BaseException:
                self._release_files(*alone, *shared)
                raise
            if holder is not None:
                self._release_files(*alone, *shared)
                return holder
            for file, place in alone.items():
                # The file is never empty again, which says that this was a workspace. Crash: it still has
                # what an earlier holder wrote, which may be longer.
                record = b"%d\n%s\0" % (os.getpid(), os.fsencode(place))
                os.pwrite(self._files[file][0], record, 0)
                os.ftruncate(self._files[file][0], len(record))
            self._claims[workspace] = _Claim(places, above, (*alone, *shared))
            return None

    def find_around(self, folder: Path, state_folder: Path) -> Path | None:
        """Return the open workspace that is this folder or lies above it; None without one."""
        real = os.path.realpath(folder)
        for place in find_places(real)[0]:
            for above in (place, *parents(place)):
                file = _lock_file(above, state_folder)
                with self._guard:
                    ours = any(above in claim.places for claim in self._claims.values())
                    theirs = file not in self._files and _is_locked(file, fcntl.LOCK_SH)
                if ours or theirs:
                    return Path(above)
        return None

    def _has_place(self, workspace: Path, places: frozenset[str], above: frozenset[str]) -> bool:
        """Return whether this process has the folder by another path. By path: state folders may differ.

        Raises:
            WorkspaceRefused: It has one in or around this one.
        """
        for other, claim in self._claims.items():
            if places & claim.places:
                return True
            if above & claim.places:
                raise _nested(str(workspace), "lies in", str(other), os.getpid())
            if places & claim.above:
                raise _nested(str(workspace), "contains", str(other), os.getpid())
        return False

    def _take_file(self, file: Path, how: int, state_folder: Path) -> None:
        """Lock a file in this way, or count once more.

        Raises:
            BlockingIOError: Another process has it.
        """
        if file in self._files:
            lock, count = self._files[file]
            self._files[file] = lock, count + 1
            return
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(file, LOCK_FLAGS, 0o600)
        # The kernel frees the lock when its holder ends, however it ends: no stale lock has to be broken.
        # Without waiting: the caller names the process that holds it.
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise
        except OSError as error:
            os.close(lock)
            raise WorkspaceError(
                f"The folder {str(state_folder)!r} cannot hold locks: {error.strerror}. "
                "Set XDG_STATE_HOME to a folder on a local disk.",
            ) from error
        self._files[file] = lock, 1

    def _release_files(self, *files: Path) -> None:
        for file in files:
            self._release_file(file)

    def _release_file(self, file: Path) -> None:
        lock, count = self._files.pop(file)
        if count > 1:
            self._files[file] = lock, count - 1
        else:
            os.close(lock)

    def release(self, workspace: Path) -> None:
        """Count once less; unlock at zero."""
        with self._guard:
            claim = self._claims.get(workspace)
            if claim is None:
                return
            claim.count -= 1
            if claim.count:
                return
            del self._claims[workspace]
            self._release_files(*claim.files)

    def _forget(self) -> None:
        # After fork: the child shares the open file descriptions. Closing its descriptors does not unlock the
        # workspace, because the parent still has them open. The guard may have been held by another thread.
        self._guard = threading.Lock()
        for lock, _ in self._files.values():
            os.close(lock)
        self._files.clear()
        self._claims.clear()


def _nested(path: str, relation: str, other: str, holder: int) -> WorkspaceRefused:
    by = f" in process {holder}" if holder else ""
    return WorkspaceRefused(
        f"{path!r} cannot be the workspace: it {relation} {other!r}, the workspace of an open session{by}. "
        "Undo and the guard of protected files would act on both. Close that session, or use a folder beside "
        "it."
        if other
        else f"{path!r} cannot be the workspace: it contains the workspace of an open session{by}. "
        "Undo and the guard of protected files would act on both. Close that session, or use another folder.",
    )


def _lock_file(folder: str, state_folder: Path) -> Path:
    return state_folder / "claims" / f"{_digest_of(folder)}.lock"


def _digest_of(folder: str) -> str:
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]


def _read_holder(file: Path) -> tuple[int, str]:
    """Return the process that has claimed a workspace last, 0 if that is unknown, and its path."""
    try:
        record = file.read_bytes()
    except OSError:
        return 0, ""
    pid, _, path = record.partition(b"\0")[0].partition(b"\n")
    return int(pid) if pid.isdigit() else 0, os.fsdecode(path)


def _is_locked(file: Path, how: int) -> bool:
    """Return whether another process has a lock that forbids locking the file in this way."""
    try:
        lock = os.open(file, LOCK_FLAGS & ~os.O_CREAT)
    except OSError:
        return False
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        # Race: for this moment a process that claims that workspace finds it taken. It would be refused in
        # any case, except by a stranger's look for another one, and may then try again.
        os.close(lock)
    return False


def _find_inner(places: tuple[str, ...], state_folder: Path) -> tuple[str, int]:
    """Return an open workspace in one of these folders, and its process; nothing if none is found."""
    with suppress(OSError), os.scandir(state_folder / "claims") as entries:
        for entry, _ in zip(entries, range(_MOST_CLAIMS), strict=False):
            pid, path = _read_holder(Path(entry.path))
            inside = path and any(lies_to(path, place) == "lies in" for place in places)
            if inside and _is_locked(Path(entry.path), fcntl.LOCK_SH):
                return path, pid
    return "", 0


# ---- other state folders


def _find_holder_elsewhere(workspace: Path, places: tuple[str, ...], above: frozenset[str]) -> int | None:
    """Return the process that has a workspace open with another state folder; None if there is none.

    Raises:
        WorkspaceRefused: One has a workspace in or around this one open.
    """
    folders = {_digest_of(folder): folder for folder in (*places, *above)}
    for pid, name, is_alone in list_claims():
        folder = folders.get(name, "")
        if not folder or (folder in above and not is_alone) or not is_same_for(pid, folder):
            continue
        if folder in above:
            raise _nested(str(workspace), "lies in", folder, pid)
        if not is_alone:
            raise _nested(str(workspace), "contains", "", pid)
        return pid
    return None


_LOCKS = _ProcessLocks()
