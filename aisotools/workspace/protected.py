"""Protected files: files in a workspace that programs outside the sandbox run or obey.

A sandbox writes in its workspace, and the host's own programs read there too: pytest imports `conftest.py`,
git runs hooks, Python runs `*.pth`, people open notebooks. The confinement cannot exempt single files of a
writable folder, so the host holds a copy of each such file, compares, and restores it. Replaced content goes
to a quarantine folder under names that nothing runs.

The folder is hostile, also while it is scanned. Folders are opened one by one, each relative to its parent
and never through a link, and the scan is repeated after something was restored. An unchanged folder costs one
`lstat`: its listing is cached by its change time, which user code cannot set.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
import threading
import time
from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from aisotools.workspace.dirfd import (
    CREATE_FLAGS,
    DIRECTORY_FLAGS,
    READ_FLAGS,
    FileSnapshot,
    read_file,
    replace_file,
)

PROTECTED_NAMES = (
    "conftest.py",
    "sitecustomize.py",
    "usercustomize.py",
    "*.pth",
    ".aisotools.toml",
    ".envrc",
    ".bashrc",
    ".profile",
)
"""Names of files that something outside the sandbox runs, or that configure what may run; in any folder."""

PROTECTED_FOLDERS = (".git/hooks", ".ipython", ".jupyter", ".vscode")
"""Folders that hold such files under any name, wherever they are."""

MOST_FOLDERS = 200_000
"""Folders of a workspace that are scanned."""

MOST_DEPTH = 200
"""Levels of folders that are scanned."""

FILE_BYTES = 16 << 20
"""Size of the largest file that is copied; a larger one is watched, but cannot be restored."""

ALL_BYTES = 64 << 20
"""Size of all copies together."""

MOST_FILES = 100
"""Files in the quarantine of one session; beyond that files are deleted."""

MOST_BYTES = 256 << 20
"""Size of the quarantine of one session; beyond that files are deleted."""

_COPIED_BYTES = 16 << 20  # of a file that moves to a quarantine on another file system

_ROUNDS = 3  # a process of the sandbox may change files again while they are restored
_RACY_NS = 20_000_000  # change times have the granularity of the kernel's tick, 4 to 10 ms

_is_protected_name = re.compile("|".join(fnmatch.translate(glob) for glob in PROTECTED_NAMES)).match
_is_in_protected_folder = re.compile(
    "|".join(rf"(?:^|/){re.escape(folder)}/" for folder in PROTECTED_FOLDERS)
).search
_is_git_config = re.compile(r"(?:^|/)\.git/(?:.*/)?config(?:\.worktree)?$").search
_git_runs_program = re.compile(  # settings that make git run a program, or read settings from elsewhere
    rb"(?im)^\s*\[\s*(?:include|includeif|alias|filter|credential)\b|"
    rb"(?:fsmonitor|hookspath|sshcommand|pager|editor|askpass|textconv|helper|program|command|driver"
    rb"|cmd|gitproxy|packobjectshook|uploadpack|receivepack|worktree)\s*="
).search
_CHECKPOINTS = ".ipynb_checkpoints/"

DifferenceKind = Literal["changed", "removed", "new"]
"""Difference of a protected file from its copy."""

_ACTIONS: dict[DifferenceKind, str] = {
    "changed": "put back",
    "removed": "put back",
    "new": "taken away",
}


def is_candidate(path: str) -> bool:
    """Return whether the file at `path`, relative to the workspace, may have to be protected."""
    path = path.lower()
    name = path.rpartition("/")[2]
    if path.endswith(".ipynb"):
        return True
    return bool(_is_protected_name(name) or _is_in_protected_folder(path) or _is_git_config(path))


def _is_notebook(path: str) -> bool:
    return path.endswith(".ipynb")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedFileChange:
    """A protected file that differed from its copy.

    Attributes:
        path: Relative to the workspace.
        kind: The difference.
        restored: True if the file is again as it was.
        saved_as: Path in the quarantine of the content that was found; empty if there was none to save.
    """

    path: str
    kind: DifferenceKind
    restored: bool
    saved_as: str = ""

    def __str__(self) -> str:
        action = _ACTIONS[self.kind]
        outcome = action if self.restored else f"could NOT be {action}"
        saved = f", found content is in {self.saved_as}" if self.saved_as else ""
        return f"{self.path!r} ({self.kind}; {outcome}{saved})"


class Quarantine:
    """A private folder for files that were found in the place of protected ones."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`; it is created with the first file."""
        self._folder = folder
        self._files = 0
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<Quarantine {self._folder}: {self._files} files>"

    def take(self, folder: int, name: str) -> str:
        """Move `name` out of the open directory `folder`; delete it if it is empty, no file, or too much.

        Returns:
            Its path in the quarantine; empty if it was deleted.

        Raises:
            OSError: If it can be neither moved nor deleted.
        """
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        has_content = stat.S_ISREG(status.st_mode) and status.st_size > 0
        if has_content and self._files < MOST_FILES and self._bytes + status.st_size <= MOST_BYTES:
            plain = "".join(one if one.isalnum() or one in "._-" else "_" for one in name)[:80]
            place = self._folder / f"{self._files + 1:03d}-{plain}.kept"
            with suppress(OSError):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _move_file(folder, name, place)
                self._files += 1
                self._bytes += status.st_size
                return str(place)
        os.unlink(name, dir_fd=folder)
        return ""


def _move_file(folder: int, name: str, place: Path) -> None:
    try:
        os.rename(name, place, src_dir_fd=folder)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    else:
        return  # the file keeps its mode; the folder is private, so nobody else can run it
    with os.fdopen(os.open(name, READ_FLAGS, dir_fd=folder), "rb") as source:
        data = source.read(_COPIED_BYTES)
    with os.fdopen(os.open(place, CREATE_FLAGS, 0o600), "wb") as copy:
        copy.write(data)
    os.unlink(name, dir_fd=folder)


@dataclass(frozen=True, slots=True)
class _Listing:
    """Candidates and subfolders of one folder, valid while the folder has this path and change time."""

    path: str
    ctime_ns: int
    clean: bool
    folders: tuple[str, ...]
    files: tuple[str, ...]

    def is_valid(self, path: str, status: os.stat_result) -> bool:
        return self.clean and self.ctime_ns == status.st_ctime_ns and self.path == path


def _list_candidates(folder: int, path: str, status: os.stat_result) -> _Listing:
    # A folder that changed within the last tick may change again without a new change time: never reuse that.
    clean = status.st_ctime_ns < time.time_ns() - _RACY_NS
    folders, files = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            elif is_candidate(path + entry.name):
                files.append(entry.name)
    return _Listing(path, status.st_ctime_ns, clean, tuple(folders), tuple(files))


@dataclass(slots=True)
class _CandidateScan:
    """Result of one walk through the workspace; `listings` by device and inode."""

    files: dict[str, os.stat_result] = field(default_factory=dict)
    listings: dict[tuple[int, int], _Listing] = field(default_factory=dict)
    folders: int = 0
    complete: bool = True


class ProtectedFiles:
    """The protected files of one workspace, with copies of how they should be.

    A notebook is protected if it existed when this object was created, if it is `notebook`, or once Jupyter
    has a checkpoint of it. The sandbox may write other notebooks.

    Attributes:
        complete: True if the last scan reached every folder.
        scan_duration_s: Duration of the last scan in seconds.
    """

    def __init__(
        self,
        workspace: Path,
        quarantine: Path,
        *,
        notebook: str = "",
        notebooks: bool = True,
        most_folders: int = MOST_FOLDERS,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        """Copy the protected files as they are now.

        Args:
            workspace: Real path of the workspace.
            quarantine: Folder for content found in the place of a protected file; created when needed.
            notebook: Path of the notebook that is open here, if it is known.
            notebooks: Whether to protect notebooks at all. Not where Jupyter writes them all the time, as in
                the folder of the notebook that this session is the kernel of.
            most_folders: Folders that are scanned.
            file_bytes: Size of the largest file that is copied.
        """
        self._root = str(workspace)
        self._most_folders = most_folders
        self._file_bytes = file_bytes
        self._quarantine = Quarantine(quarantine)
        self._lock = threading.Lock()
        self._listings: dict[tuple[int, int], _Listing] = {}
        self._copies: dict[str, FileSnapshot] = {}
        self._notebooks = notebooks
        self._protected_notebooks = (
            {os.path.relpath(notebook, workspace)} if notebook and notebooks else set()
        )
        self.complete = True
        self.scan_duration_s = 0.0
        scan = self._scan()
        if notebooks:
            self._protected_notebooks.update(filter(_is_notebook, scan.files))
        self._copy_files(scan)

    def __repr__(self) -> str:
        return f"<ProtectedFiles of {self._root!r}: {len(self._copies)}>"

    def accept(self) -> None:
        """Accept the present state of all protected files as the one to restore."""
        with self._lock:
            self._copy_files(self._scan())

    def differs(self) -> bool:
        """Return whether any protected file differs from its copy. Change nothing."""
        with self._lock:
            return bool(self._compare(self._scan())[0])

    def restore(self, spared: frozenset[str] = frozenset()) -> tuple[ProtectedFileChange, ...]:
        """Compare all protected files with their copies and restore those that differ.

        Args:
            spared: Notebooks that may differ, because the call declared that it writes them and was allowed
                to. A notebook that is open in Jupyter is restored all the same.

        Returns:
            The differences, sorted by path.
        """
        with self._lock:
            changes: dict[str, ProtectedFileChange] = {}
            if spared:
                spared -= self._protected_notebooks & set(self._checkpointed(self._listed_files()))
            # Race: a process that still runs in the sandbox may change a file again while it is restored.
            for _ in range(_ROUNDS):
                scan = self._scan()
                differing, rewritten = self._compare(scan)
                for path in spared:
                    differing.pop(path, None)
                for path in rewritten:
                    self._restore_file(path, "changed")
                for path, kind in differing.items():
                    changes[path] = self._restore_file(path, kind)
                if not differing and not rewritten:
                    break
            accepted = set(spared)
            for path, change in changes.items():
                if not change.restored:
                    accepted.add(path)
            if accepted or self._protected_notebooks - self._copies.keys():
                self._adopt(scan, accepted)
            return tuple(map(changes.__getitem__, sorted(changes)))

    # ---- scan

    def _scan(self) -> _CandidateScan:
        started_s, scan = time.monotonic(), _CandidateScan()
        with suppress(OSError):  # without a workspace all files count as removed
            root = os.open(self._root, DIRECTORY_FLAGS)
            try:
                self._scan_folder(scan, root, "", 0)
            finally:
                os.close(root)
        self._listings = scan.listings
        if self._notebooks and scan.files:
            self._protected_notebooks.update(self._checkpointed(scan.files))
        self.complete = scan.complete
        self.scan_duration_s = time.monotonic() - started_s
        return scan

    def _scan_folder(self, scan: _CandidateScan, folder: int, path: str, depth: int) -> None:
        status = os.fstat(folder)
        key = status.st_dev, status.st_ino
        listing = self._listings.get(key)
        if listing is None or not listing.is_valid(path, status):
            listing = _list_candidates(folder, path, status)
        scan.listings[key] = listing
        for name in listing.files:
            with suppress(OSError):  # removed since it was listed
                scan.files[path + name] = os.stat(name, dir_fd=folder, follow_symlinks=False)
        for name in listing.folders:
            scan.folders += 1
            if scan.folders > self._most_folders or depth >= MOST_DEPTH:
                scan.complete = False
                return
            # Removed, replaced by a link, or unreadable for this user, who then runs nothing in it.
            with suppress(OSError):
                self._enter(scan, folder, name, f"{path}{name}/", depth + 1)

    def _enter(self, scan: _CandidateScan, folder: int, name: str, path: str, depth: int) -> None:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        cached = self._listings.get((status.st_dev, status.st_ino))
        if cached is not None and not cached.folders and not cached.files and cached.is_valid(path, status):
            scan.listings[status.st_dev, status.st_ino] = cached  # nothing of interest in it: do not open it
            return
        inner = os.open(name, DIRECTORY_FLAGS, dir_fd=folder)
        try:
            self._scan_folder(scan, inner, path, depth)
        finally:
            os.close(inner)

    def _listed_files(self) -> set[str]:
        return {listing.path + name for listing in self._listings.values() for name in listing.files}

    @staticmethod
    def _checkpointed(files: Collection[str]) -> Iterator[str]:
        """Yield the notebooks of which Jupyter has a checkpoint. It creates one when it opens a notebook."""
        for path in files:
            folder, found, name = path.rpartition(_CHECKPOINTS)
            if found and name.endswith("-checkpoint.ipynb"):
                notebook = folder + name.removesuffix("-checkpoint.ipynb") + ".ipynb"
                if notebook in files:
                    yield notebook

    # ---- compare

    def _compare(self, scan: _CandidateScan) -> tuple[dict[str, DifferenceKind], list[str]]:
        """Return the differing files, and those whose inode or times changed while the content is the same.

        The latter are rewritten under a new inode: a process of the sandbox may hold them open for writing.
        """
        differing: dict[str, DifferenceKind] = {}
        rewritten = []
        for path, copy in self._copies.items():
            status = scan.files.get(path)
            if status is None:
                differing[path] = "removed"
                continue
            if copy.clean and copy.matches(status):
                continue
            now = self._read(path, status)
            same = now.data == copy.data and status.st_mode == copy.status.st_mode
            if copy.matches(status) and (same or copy.data is None):
                self._copies[path] = now
            elif same and copy.data is not None:
                rewritten.append(path)
            elif not self._is_harmless(path, now):
                differing[path] = "changed"
        for path, status in scan.files.items():
            known = path in self._copies or _is_notebook(path)
            if not known and not self._is_harmless(path, self._read(path, status)):
                differing[path] = "new"
        return differing, rewritten

    @staticmethod
    def _is_harmless(path: str, found: FileSnapshot) -> bool:
        """Return whether the file makes nothing run: a sample of a git hook, or plain settings of git."""
        if not stat.S_ISREG(found.status.st_mode):
            return False
        if _is_git_config(path.lower()):
            return found.data is not None and _git_runs_program(found.data) is None
        return path.endswith(".sample") and "/hooks/" in path

    # ---- copies

    def _copy_files(self, scan: _CandidateScan) -> None:
        used_bytes = 0
        copies = {}
        for path, status in scan.files.items():
            if _is_notebook(path) and path not in self._protected_notebooks:
                continue
            copy = self._copies.get(path)
            if copy is None or not copy.clean or not copy.matches(status):
                copy = self._read(path, status, ALL_BYTES - used_bytes)
            used_bytes += len(copy.data or b"")
            copies[path] = copy
        self._copies = copies

    def _adopt(self, scan: _CandidateScan, accepted: AbstractSet[str]) -> None:
        """Copy notebooks that are newly protected, and files whose present state is `accepted`.

        Accepted are the files that a call was allowed to write and those that could not be restored, which
        would otherwise be reported again after every call.
        """
        for path in accepted - scan.files.keys():
            self._copies.pop(path, None)
        used_bytes = sum(len(copy.data or b"") for copy in self._copies.values())
        for path in (self._protected_notebooks | accepted) & scan.files.keys():
            if path not in self._copies or path in accepted:
                copy = self._read(path, scan.files[path], ALL_BYTES - used_bytes)
                self._copies[path] = copy
                used_bytes += len(copy.data or b"")

    def _read(self, path: str, status: os.stat_result, max_bytes: int = ALL_BYTES) -> FileSnapshot:
        data: bytes | None = None
        clean = status.st_ctime_ns < time.time_ns() - _RACY_NS
        with suppress(OSError), self._parent(path) as (folder, name):
            if stat.S_ISLNK(status.st_mode):
                data = os.fsencode(os.readlink(name, dir_fd=folder))
            elif stat.S_ISREG(status.st_mode):
                data = read_file(folder, name, min(max_bytes, self._file_bytes))
        return FileSnapshot(status, data, clean)

    # ---- restore

    def _restore_file(self, path: str, kind: DifferenceKind) -> ProtectedFileChange:
        saved_as, restored = "", True
        copy = self._copies.get(path)
        try:
            with self._parent(path, make=copy is not None) as (folder, name):
                if copy is not None and copy.data is None:
                    # Too large to have been copied. Removing what is there would lose the file altogether.
                    return ProtectedFileChange(path=path, kind=kind, restored=False)
                if kind != "removed":
                    saved_as = self._quarantine.take(folder, name)
                if copy is not None:
                    self._copies[path] = replace_file(folder, name, copy)
        except OSError:
            restored = False
        return ProtectedFileChange(path=path, kind=kind, restored=restored, saved_as=saved_as)

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder of `path`; yield its descriptor and the last name. `make` creates folders."""
        *above, name = path.split("/")
        folder = os.open(self._root, DIRECTORY_FLAGS)
        try:
            for part in above:
                inner = self._open_folder(folder, part, make=make)
                os.close(folder)
                folder = inner
            yield folder, name
        finally:
            os.close(folder)

    def _open_folder(self, folder: int, name: str, *, make: bool) -> int:
        try:
            return os.open(name, DIRECTORY_FLAGS, dir_fd=folder)
        except OSError:
            if not make:
                raise
        # A file or a link stands where there was a folder. Move it away, never walk through it.
        with suppress(FileNotFoundError):
            self._quarantine.take(folder, name)
        os.mkdir(name, dir_fd=folder)
        return os.open(name, DIRECTORY_FLAGS, dir_fd=folder)
