"""The files of a workspace that something outside the sandbox runs or obeys: kept, compared, put back.

A sandbox writes in its workspace, and the host's own programs read there too: pytest imports `conftest.py`,
git runs hooks, Python runs `*.pth`, people open notebooks. The confinement cannot take single files out of a
writable folder, so the host keeps a copy of each such file and compares.

Everything in the folder is hostile, also while it is looked at. So folders are opened one by one, each
relative to the one above and never through a link, and a look is repeated after something was put back.
Looking costs an `lstat` for each folder: what a folder holds is remembered by its change time, which nobody
can set.

Where things go that a sandbox put in the place of a protected file: kept for people, run by nobody.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from aisotools.workspace.dirfd import FileSnapshot, content, made

MOST_FILES, MOST_BYTES = 100, 256 << 20
"""How much one session may leave there; beyond that things are removed."""

_COPIED_BYTES = 16 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Quarantine:
    """A private folder of files under names that nothing runs."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, which is made when the first thing comes."""
        self._folder = folder
        self._files = 0
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<Attic {self._folder}: {self._files} files>"

    def take(self, folder: int, name: str) -> str:
        """Take `name` out of the folder with this descriptor; what is no regular file is removed.

        Returns:
            Where it lies now; empty when it was removed.

        Raises:
            OSError: If it can be neither taken nor removed.
        """
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        worth = stat.S_ISREG(status.st_mode) and status.st_size > 0
        if worth and self._files < MOST_FILES and self._bytes + status.st_size <= MOST_BYTES:
            plain = "".join(one if one.isalnum() or one in "._-" else "_" for one in name)[:80]
            place = self._folder / f"{self._files + 1:03d}-{plain}.kept"
            with suppress(OSError):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _move(folder, name, place)
                self._files += 1
                self._bytes += status.st_size
                return str(place)
        os.unlink(name, dir_fd=folder)
        return ""


def _move(folder: int, name: str, place: Path) -> None:
    try:
        os.rename(name, place, src_dir_fd=folder)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    else:
        return  # its mode stays what it was, which in a folder of our own does no harm
    with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as source:
        data = source.read(_COPIED_BYTES)
    with os.fdopen(os.open(place, _CREATE, 0o600), "wb") as copy:
        copy.write(data)
    os.unlink(name, dir_fd=folder)


MOST_FOLDERS = 200_000
"""How many folders of a workspace are looked into."""

MOST_DEPTH = 200
"""How many levels of folders are looked into."""

FILE_BYTES, ALL_BYTES = 16 << 20, 64 << 20
"""What is kept of one file, and of all; one that is larger is watched, but cannot be put back."""

_ROUNDS = 3
_RACY_NS = 20_000_000  # change times have the grain of the kernel's tick
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

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
"""Files that something outside the sandbox would run, or that say what may run; by name, in any folder."""


PROTECTED_FOLDERS = (".git/hooks", ".ipython", ".jupyter", ".vscode")
"""Folders of the same kind, wherever they lie."""

_names = re.compile("|".join(fnmatch.translate(glob) for glob in PROTECTED_NAMES)).match
_folders = re.compile("|".join(rf"(?:^|/){re.escape(folder)}/" for folder in PROTECTED_FOLDERS)).search
_git_config = re.compile(r"(?:^|/)\.git/(?:.*/)?config(?:\.worktree)?$").search
_git_runs = re.compile(  # what makes git run a program, or read settings from elsewhere
    rb"(?im)^\s*\[\s*(?:include|includeif|alias|filter|credential)\b|"
    rb"(?:fsmonitor|hookspath|sshcommand|pager|editor|askpass|textconv|helper|program|command|driver"
    rb"|cmd|gitproxy|packobjectshook|uploadpack|receivepack|worktree)\s*="
).search
_CHECKPOINTS = ".ipynb_checkpoints/"

What = Literal["changed", "removed", "new"]
_UNDONE = {"changed": "put back", "removed": "put back", "new": "taken away"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedFileChange:
    """What became of one protected file.

    Attributes:
        path: Relative to the workspace.
        what: What was found.
        undone: Whether it is again as it was.
        kept: Where what was found lies now; empty when there was nothing to keep.
    """

    path: str
    what: What
    undone: bool
    kept: str = ""

    def __str__(self) -> str:
        done = _UNDONE[self.what] if self.undone else f"could NOT be {_UNDONE[self.what]}"
        return f"{self.path!r} ({self.what}; {done}{f', found content is in {self.kept}' * bool(self.kept)})"


def is_candidate(path: str) -> bool:
    """Whether the file at this path, relative to the workspace, may be one to protect."""
    path = path.lower()
    name = path.rpartition("/")[2]
    return bool(_names(name) or _folders(path) or _git_config(path)) or _is_notebook(path)


def _is_notebook(path: str) -> bool:
    return path.endswith(".ipynb")


@dataclass(frozen=True, slots=True)
class _Listing:
    """What matters in a folder, for as long as it is at `path` and its change time is `ctime_ns`."""

    path: str
    ctime_ns: int
    clean: bool
    folders: tuple[str, ...]
    files: tuple[str, ...]

    def holds(self, path: str, status: os.stat_result) -> bool:
        return self.clean and self.ctime_ns == status.st_ctime_ns and self.path == path


@dataclass(slots=True)
class _Scan:
    """What one walk has found."""

    files: dict[str, os.stat_result] = field(default_factory=dict)
    listings: dict[tuple[int, int], _Listing] = field(default_factory=dict)
    folders: int = 0
    complete: bool = True


class ProtectedFiles:
    """The protected files of one workspace, as they should be.

    A notebook is protected if it was there when this was made, if it is `notebook`, or once Jupyter has a
    checkpoint of it; others are the sandbox's own to write.

    Attributes:
        complete: Whether the last look saw every folder.
        took_s: How long it took.
    """

    def __init__(
        self,
        workspace: Path,
        attic: Path,
        *,
        notebook: str = "",
        notebooks: bool = True,
        most_folders: int = MOST_FOLDERS,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        """Take the workspace as it is now.

        Args:
            workspace: Its real path.
            attic: Folder for what is found in the place of a protected file; made when it is needed.
            notebook: The path of the notebook that is open here, if it is known.
            notebooks: Whether notebooks are protected at all: not where Jupyter writes them all the time, as
                in the folder of the notebook that this session is the kernel of.
            most_folders: How many folders are looked into.
            file_bytes: What is kept of one file.
        """
        self._root = str(workspace)
        self._most_folders, self._file_bytes = most_folders, file_bytes
        self._attic = Quarantine(attic)
        self._lock = threading.Lock()
        self._listings: dict[tuple[int, int], _Listing] = {}
        self._kept: dict[str, FileSnapshot] = {}
        self._notebooks = notebooks
        self._open = {os.path.relpath(notebook, workspace)} if notebook and notebooks else set()
        self.complete, self.took_s = True, 0.0
        scan = self._scan()
        if notebooks:
            self._open.update(filter(_is_notebook, scan.files))
        self._take(scan)

    def __repr__(self) -> str:
        return f"<ProtectedFiles of {self._root!r}: {len(self._kept)}>"

    def accept(self) -> None:
        """Take whatever is there now for what should be there."""
        with self._lock:
            self._take(self._scan())

    def differs(self) -> bool:
        """Whether anything is other than it should be; changes nothing."""
        with self._lock:
            return bool(self._compare(self._scan())[0])

    def restore(self, spared: frozenset[str] = frozenset()) -> tuple[ProtectedFileChange, ...]:
        """Compare, and put back what differs.

        Args:
            spared: Notebooks that may differ: the call said that it writes them, and was allowed to. One
                that is open in Jupyter is put back all the same.

        Returns:
            What differed, by path.
        """
        with self._lock:
            found: dict[str, ProtectedFileChange] = {}
            opened = self._open & set(self._checkpointed(self._listed()))
            spared -= opened
            for _ in range(_ROUNDS):  # whoever changed it may do so again meanwhile
                scan = self._scan()
                differing, touched = self._compare(scan)
                differing = {path: what for path, what in differing.items() if path not in spared}
                for path in touched:
                    self._undo(path, "changed")
                for path, what in differing.items():
                    found[path] = self._undo(path, what)
                if not differing and not touched:
                    break
            self._adopt(scan, spared | {path for path, change in found.items() if not change.undone})
            return tuple(found[path] for path in sorted(found))

    # ---- looking

    def _scan(self) -> _Scan:
        began_s, scan = time.monotonic(), _Scan()
        with suppress(OSError):  # the workspace is gone: then nothing is there, which is what is found
            root = os.open(self._root, _DIRECTORY)
            try:
                self._visit(scan, root, "", 0)
            finally:
                os.close(root)
        self._listings = scan.listings
        if self._notebooks:
            self._open.update(self._checkpointed(scan.files))
        self.complete, self.took_s = scan.complete, time.monotonic() - began_s
        return scan

    def _visit(self, scan: _Scan, folder: int, path: str, depth: int) -> None:
        status = os.fstat(folder)
        key = status.st_dev, status.st_ino
        listing = self._listings.get(key)
        if listing is None or not listing.holds(path, status):
            listing = _list(folder, path, status)
        scan.listings[key] = listing
        for name in listing.files:
            with suppress(OSError):  # it went meanwhile
                scan.files[path + name] = os.stat(name, dir_fd=folder, follow_symlinks=False)
        for name in listing.folders:
            scan.folders += 1
            if scan.folders > self._most_folders or depth >= MOST_DEPTH:
                scan.complete = False
                return
            with suppress(
                OSError
            ):  # gone, a link by now, or closed to this user, who then runs nothing of it
                self._enter(scan, folder, name, f"{path}{name}/", depth + 1)

    def _enter(self, scan: _Scan, folder: int, name: str, path: str, depth: int) -> None:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        known = self._listings.get((status.st_dev, status.st_ino))
        if known is not None and not known.folders and not known.files and known.holds(path, status):
            scan.listings[status.st_dev, status.st_ino] = known
            return
        inner = os.open(name, _DIRECTORY, dir_fd=folder)
        try:
            self._visit(scan, inner, path, depth)
        finally:
            os.close(inner)

    def _listed(self) -> dict[str, None]:
        return {listing.path + name: None for listing in self._listings.values() for name in listing.files}

    @staticmethod
    def _checkpointed(
        files: dict[str, object] | dict[str, os.stat_result] | dict[str, None],
    ) -> Iterator[str]:
        """The notebooks that Jupyter has a checkpoint of, which it makes when it opens one."""
        for path in files:
            folder, found, name = path.rpartition(_CHECKPOINTS)
            if found and name.endswith("-checkpoint.ipynb"):
                notebook = folder + name.removesuffix("-checkpoint.ipynb") + ".ipynb"
                if notebook in files:
                    yield notebook

    def _compare(self, scan: _Scan) -> tuple[dict[str, What], list[str]]:
        """What differs, and what was only touched: somebody may hold it open for writing."""
        differing: dict[str, What] = {}
        touched = []
        for path, kept in self._kept.items():
            status = scan.files.get(path)
            if status is None:
                differing[path] = "removed"
                continue
            if kept.clean and kept.is_still(status):
                continue
            now = self._read(path, status)
            same = now.data == kept.data and status.st_mode == kept.status.st_mode
            if kept.is_still(status) and (same or kept.data is None):
                self._kept[path] = now
            elif same and kept.data is not None:
                touched.append(path)
            elif not self._harmless(path, now):
                differing[path] = "changed"
        for path, status in scan.files.items():
            known = path in self._kept or _is_notebook(path)
            if not known and not self._harmless(path, self._read(path, status)):
                differing[path] = "new"
        return differing, touched

    @staticmethod
    def _harmless(path: str, now: FileSnapshot) -> bool:
        """Whether what is there runs nothing: git's samples of hooks, plain settings of git."""
        if not stat.S_ISREG(now.status.st_mode):
            return False
        if _git_config(path.lower()):
            return now.data is not None and _git_runs(now.data) is None
        return path.endswith(".sample") and "/hooks/" in path

    def _take(self, scan: _Scan) -> None:
        used, kept = 0, {}
        for path, status in scan.files.items():
            if _is_notebook(path) and path not in self._open:
                continue
            one = self._kept.get(path)
            if one is None or not one.clean or not one.is_still(status):
                one = self._read(path, status, ALL_BYTES - used)
            used += len(one.data or b"")
            kept[path] = one
        self._kept = kept

    def _adopt(self, scan: _Scan, spared: frozenset[str]) -> None:
        """Keep notebooks that are new to us, what was rightly rewritten, and what could not be put back."""
        for path in spared - scan.files.keys():
            self._kept.pop(path, None)
        used = sum(len(one.data or b"") for one in self._kept.values())
        for path in (self._open | spared) & scan.files.keys():
            if path not in self._kept or path in spared:
                one = self._kept[path] = self._read(path, scan.files[path], ALL_BYTES - used)
                used += len(one.data or b"")

    def _read(self, path: str, status: os.stat_result, most_bytes: int = ALL_BYTES) -> FileSnapshot:
        data: bytes | None = None
        clean = status.st_ctime_ns < time.time_ns() - _RACY_NS
        with suppress(OSError), self._parent(path) as (folder, name):
            if stat.S_ISLNK(status.st_mode):
                data = os.fsencode(os.readlink(name, dir_fd=folder))
            elif stat.S_ISREG(status.st_mode):
                data = content(folder, name, min(most_bytes, self._file_bytes))
        return FileSnapshot(status, data, clean)

    # ---- putting back

    def _undo(self, path: str, what: What) -> ProtectedFileChange:
        kept_at, undone = "", True
        wanted = self._kept.get(path)
        try:
            with self._parent(path, make=wanted is not None) as (folder, name):
                if wanted is not None and wanted.data is None:
                    return ProtectedFileChange(path=path, what=what, undone=False)
                if what != "removed":
                    kept_at = self._attic.take(folder, name)
                if wanted is not None:
                    self._kept[path] = made(folder, name, wanted)
        except OSError:
            undone = False
        return ProtectedFileChange(path=path, what=what, undone=undone, kept=kept_at)

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The folder of `path`, opened, and the last name; `make` clears the way there."""
        *above, name = path.split("/")
        folder = os.open(self._root, _DIRECTORY)
        try:
            for part in above:
                inner = self._opened(folder, part, make=make)
                os.close(folder)
                folder = inner
            yield folder, name
        finally:
            os.close(folder)

    def _opened(self, folder: int, name: str, *, make: bool) -> int:
        try:
            return os.open(name, _DIRECTORY, dir_fd=folder)
        except OSError:
            if not make:
                raise
        with suppress(FileNotFoundError):
            self._attic.take(folder, name)  # a file, or a link, where there was a folder
        os.mkdir(name, dir_fd=folder)
        return os.open(name, _DIRECTORY, dir_fd=folder)


def _list(folder: int, path: str, status: os.stat_result) -> _Listing:
    clean = status.st_ctime_ns < time.time_ns() - _RACY_NS
    folders, files = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            elif is_candidate(path + entry.name):
                files.append(entry.name)
    return _Listing(path, status.st_ctime_ns, clean, tuple(folders), tuple(files))
