"""The workspace: the one folder in which tools work, and every file operation that stays inside it.

Host and worker use the same guard. Inside the sandbox the confinement stands behind it; on the host, where
diffs and undo touch a folder that hostile code writes to, it stands alone. See `aisotools.paths` for how a
path is followed; everything here works on the descriptor that the walk ends with.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aisotools import paths
from aisotools.exceptions import WorkspaceError
from aisotools.paths import Spot

Kind = Literal["file", "directory", "symlink", "fifo", "socket", "device"]
"""What something in a folder is."""

TEMPORARY = ".aisotools-write-"
"""How the name of a half-written file begins; one remains only if a process was killed while writing."""

_KINDS: dict[int, Kind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}

# Never through a link; never waiting for the other end of a FIFO; never becoming somebody's terminal.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_AT_ONCE_BYTES = 1 << 16
_UMASK_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in the workspace, as it was when looked at.

    Attributes:
        path: Relative to the workspace, without links on the way; `.` for the workspace.
        stat: What the system says of it.
    """

    path: str
    stat: os.stat_result

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def kind(self) -> Kind:
        """What it is."""
        return kind_of(self.stat)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.stat.st_size

    @property
    def mode(self) -> int:
        """Permission bits, setuid and its kin included."""
        return stat.S_IMODE(self.stat.st_mode)


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did.

    Attributes:
        path: The file, relative to the workspace, links resolved.
        size: Its size in bytes.
        created: Whether it is new.
    """

    path: str
    size: int
    created: bool


@dataclass(frozen=True, slots=True)
class Folder:
    """One directory, looked into; valid inside `Workspace.folder`, or until `Workspace.walk` goes on.

    Attributes:
        path: Relative to the workspace; `.` for the workspace.
        directory: Its descriptor, open for reading.
        entries: What it holds, sorted by name. Ask them with `follow_symlinks=False`.
        error: Why it could not be looked into, or None.
    """

    path: str
    directory: int
    entries: tuple[os.DirEntry[str], ...]
    error: OSError | None = None

    def path_of(self, name: str) -> str:
        """The path of an entry, relative to the workspace."""
        return name if self.path == "." else f"{self.path}/{name}"

    def stat(self, name: str) -> Entry:
        """What an entry is, links not followed.

        Raises:
            FileNotFoundError: If it is not there any more.
        """
        return Entry(self.path_of(name), os.stat(name, dir_fd=self.directory, follow_symlinks=False))

    def read(self, entry: os.DirEntry[str], *, max_bytes: int) -> bytes:
        """At most `max_bytes` of an entry that is a regular file.

        Raises:
            OSError: If it is not there any more, not readable, or a link by now.
            WorkspaceError: If it is anything but a regular file.
        """
        if not entry.is_file(follow_symlinks=False):  # known without asking the system
            _demand_regular(self.stat(entry.name).stat, self.path_of(entry.name))
        file = os.open(entry.name, _READ, dir_fd=self.directory)
        try:
            data = os.read(file, min(_AT_ONCE_BYTES, max_bytes))
            if 0 < len(data) < _AT_ONCE_BYTES:
                return data  # only at its end does a file give less than was asked for
            _demand_regular(os.fstat(file), entry.name)
            return data + _read(file, _AT_ONCE_BYTES, max_bytes - len(data)) if data else data
        finally:
            os.close(file)


class Workspace:
    """A folder, and what may be done beneath it. Holds nothing open; use it from any thread.

    Paths are relative to the folder, absolute beneath it, or beneath `/workspace`. Whatever leads out raises
    `PathOutside`; what the system refuses raises `OSError` with the path as it was given.

    Attributes:
        root: The folder's real path.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Take an existing folder.

        Raises:
            WorkspaceError: If it is no folder.
        """
        self._root = paths.Root.of(root)
        self.root = Path(self._root.path)
        if not self.root.is_dir():
            raise WorkspaceError(f"The workspace {os.fspath(root)!r} is not a folder. Create it first.")

    def __repr__(self) -> str:
        return f"<Workspace {self._root.path!r}>"

    def locate(
        self,
        path: str,
        *,
        follow: bool = True,
        make_parents: bool = False,
    ) -> AbstractContextManager[Spot]:
        """Walk to `path` and hold on to where it leads; the base of every other operation.

        Args:
            path: The last component need not exist.
            follow: Whether a link at the very end is followed.
            make_parents: Make missing folders on the way; removed again if the `with` block fails.
        """
        return paths.locate(self._root, path, follow=follow, make_parents=make_parents)

    def relative(self, path: str, *, follow: bool = True) -> str:
        """Where `path` really leads, relative to the workspace; the last component need not exist."""
        with self.locate(path, follow=follow) as spot:
            return spot.path

    def stat(self, path: str, *, follow: bool = True) -> Entry:
        """What `path` is."""
        with self.locate(path, follow=follow) as spot:
            return Entry(spot.path, os.stat(spot.name, dir_fd=spot.directory, follow_symlinks=False))

    @contextmanager
    def open(self, path: str) -> Iterator[int]:
        """A descriptor to read a regular file from, closed afterwards.

        Raises:
            IsADirectoryError: If it is a folder.
            WorkspaceError: If it is a FIFO, a socket or a device.
        """
        with self.locate(path) as spot:
            file = _open_regular(spot.directory, spot.name, spot.path)
        try:
            yield file
        finally:
            os.close(file)

    def read_bytes(self, path: str, *, max_bytes: int) -> bytes:
        """A whole regular file.

        Raises:
            WorkspaceError: If it is larger than `max_bytes`, or a FIFO, a socket or a device.
            IsADirectoryError: If it is a folder.
        """
        with self.open(path) as file:
            size = os.fstat(file).st_size
            data = _read(file, size, max_bytes + 1) if size <= max_bytes else b""
        size = max(size, len(data))
        if size > max_bytes:
            raise WorkspaceError(f"{paths.shown(path)!r} has {size:,} bytes; at most {max_bytes:,} are read.")
        return data

    def write_bytes(self, path: str, data: bytes) -> Written:
        """Replace a file at once, or make it; missing folders are made.

        Readers see the old content or the new, never a part. The permission bits stay, setuid and setgid do
        not. A link inside the workspace is written through; a hard link is broken, so that nothing outside
        changes.

        Raises:
            IsADirectoryError: If a folder is in the way.
            PermissionError: If the file or its folder may not be written.
            WorkspaceError: If a FIFO, a socket or a device is in the way.
        """
        with self.locate(path, make_parents=True) as spot:
            old = _lstat(spot)
            if old is not None:
                _demand_regular(old, spot.path)
                if not os.access(spot.name, os.W_OK, dir_fd=spot.directory):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            temporary = TEMPORARY + os.urandom(8).hex()
            try:
                _write_new(spot.directory, temporary, data, old)
                os.replace(temporary, spot.name, src_dir_fd=spot.directory, dst_dir_fd=spot.directory)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=spot.directory)
                raise
            return Written(spot.path, len(data), created=old is None)

    @contextmanager
    def folder(self, path: str = ".") -> Iterator[Folder]:
        """What a folder holds."""
        with self.locate(path) as spot:
            directory = _open_directory(spot.directory, spot.name)
            top = spot.path
        try:
            yield _folder(top, directory)
        finally:
            os.close(directory)

    def walk(self, path: str = ".", *, enter: Callable[[str], bool] | None = None) -> Iterator[Folder]:
        """A folder and those beneath it whose paths `enter` accepts, parents first; links are not followed.

        What cannot be looked into, or lies too deep, comes as a `Folder` with an `error` and no entries.
        """
        with self.locate(path) as spot:
            directory, top = _open_directory(spot.directory, spot.name), spot.path
        try:
            yield from _walk(top, directory, 1, enter)
        finally:
            os.close(directory)


def kind_of(status: os.stat_result) -> Kind:
    """What a `stat` is of."""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "device")


def _walk(path: str, directory: int, depth: int, enter: Callable[[str], bool] | None) -> Iterator[Folder]:
    folder = _folder(path, directory)
    yield folder
    for entry in folder.entries:
        if not entry.is_dir(follow_symlinks=False):
            continue
        below = folder.path_of(entry.name)
        if enter is not None and not enter(below):
            continue
        try:
            if depth >= paths.MAX_DEPTH:
                raise OSError(errno.ENAMETOOLONG, f"more than {paths.MAX_DEPTH} folders deep")
            child = _open_directory(directory, entry.name)
        except OSError as error:
            yield Folder(below, -1, (), error)
            continue
        try:
            yield from _walk(below, child, depth + 1, enter)
        finally:
            os.close(child)


def _folder(path: str, directory: int) -> Folder:
    with os.scandir(directory) as entries:
        return Folder(path, directory, tuple(sorted(entries, key=lambda entry: entry.name)))


def _open_directory(directory: int, name: str) -> int:
    return os.open(name, _READ | os.O_DIRECTORY, dir_fd=directory)


def _lstat(spot: Spot) -> os.stat_result | None:
    try:
        return os.stat(spot.name, dir_fd=spot.directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _demand_regular(status: os.stat_result, path: str) -> int:
    """The size of a regular file; an error for everything else."""
    if stat.S_ISREG(status.st_mode):
        return status.st_size
    kind = kind_of(status)
    if kind == "directory":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if kind == "symlink":  # the walk had followed every link
        raise WorkspaceError(f"{paths.shown(path)!r} became a link while it was used. Try again.")
    what = "FIFO" if kind == "fifo" else kind
    raise WorkspaceError(f"{paths.shown(path)!r} is a {what}, not a file. It is left alone.")


def _open_regular(directory: int, name: str, path: str) -> int:
    # Looked at before it is opened, because opening a FIFO or a device can have effects of its own; and
    # again afterwards, because it may have been swapped.
    _demand_regular(os.stat(name, dir_fd=directory, follow_symlinks=False), path)
    file = os.open(name, _READ, dir_fd=directory)
    try:
        _demand_regular(os.fstat(file), path)
    except BaseException:
        os.close(file)
        raise
    return file


def _read(file: int, size: int, max_bytes: int) -> bytes:
    """A file that should have `size` bytes, to its end or to `max_bytes`."""
    data = os.read(file, min(size + 1, max_bytes))  # one more than there should be, to see the end
    if len(data) <= size:
        return data
    parts = [data]
    left = max_bytes - len(data)
    while left > 0 and (data := os.read(file, min(left, 1 << 20))):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


def _write_new(directory: int, name: str, data: bytes, old: os.stat_result | None) -> None:
    file = _create(directory, name, None if old is None else old.st_mode & 0o777)
    try:
        if old is not None and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
            with suppress(PermissionError):  # only root may give files away; others keep their own
                os.fchown(file, old.st_uid, old.st_gid)
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
    finally:
        os.close(file)


def _create(
    directory: int,
    name: str,
    mode: int | None,
    change_mode: Callable[[int, int], None] = os.fchmod,
) -> int:
    """A new file with exactly these permission bits; None for what is usual."""
    file = os.open(name, _CREATE, 0o666 if mode is None else mode, dir_fd=directory)
    try:
        if mode is None or _has_mode(file, mode):
            return file
        # Inside the sandbox this changes nothing, without an error.
        with suppress(PermissionError):
            change_mode(file, mode)
        if _has_mode(file, mode):
            return file
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    os.unlink(name, dir_fd=directory)
    with _UMASK_LOCK:
        # The mask belongs to the process, so this comes last: other threads' new files would feel it.
        umask = os.umask(0)
        try:
            return os.open(name, _CREATE, mode, dir_fd=directory)
        finally:
            os.umask(umask)


def _has_mode(file: int, mode: int) -> bool:
    return os.fstat(file).st_mode & 0o777 == mode
