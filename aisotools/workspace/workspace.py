"""The workspace: the one folder in which tools work, and every file operation that stays inside it.

Host and worker use the same guard. Inside the sandbox the confinement stands behind it; on the host, where
diffs and undo touch a folder that hostile code writes to, it stands alone. See `workspace.paths` for how a
path is followed; everything here works on the descriptor that the walk ends with.

Threat: a call reads, writes or removes outside of the workspace, or leaves half of a file.
Mechanism: every operation resolves its path as `workspace.paths` says and works relative to that descriptor.
A file is written beside its place and renamed.
Race: between the look at a file and the rename somebody may replace it: then that is what is replaced, as
with any editor; it lies in the same folder, so nothing outside is. Whoever reads meanwhile finds the old
content or the new one. What a rule of the policy denies is not read, by its resolved path: code that may move
a folder on the way meanwhile runs with the right to read the file itself.
Failure: an error names what is wrong, the file is there as before, and the new one beside it is removed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aisotools.core.exceptions import WorkspaceError
from aisotools.core.path_texts import is_within, with_folders
from aisotools.workspace import paths
from aisotools.workspace.dirfd import (
    CREATE_FLAGS,
    MOST_ENTRIES,
    READ_FLAGS,
    Entry,
    Folder,
    list_folder,
    open_directory,
    read_to_end,
    require_regular,
    write_all,
)
from aisotools.workspace.paths import ResolvedPath

TEMPORARY = ".aisotools-write-"
"""Prefix of partial files. One remains only if a process was killed while it was writing, and
`aisotools.workspace.checkpoints.recovery` removes it at the next start."""

is_partial_file = re.compile(rf"{re.escape(TEMPORARY)}[0-9a-f]{{16}}").fullmatch
"""Match the name of a file that is being written. Those of an undo are longer, and are removed by it."""

_UMASK_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written.

    Attributes:
        path: Path relative to the workspace, links resolved.
        size: Size in bytes.
        created: True if it did not exist before.
    """

    path: str
    size: int
    created: bool


class Workspace:
    """File operations beneath one folder. Holds no descriptors; thread-safe.

    Paths are relative to the folder, absolute beneath it, or beneath `/workspace`. Whatever leads out raises
    `PathOutside`; what the system refuses raises `OSError` with the path as it was given.

    Attributes:
        root: The folder's real path.
    """

    def __init__(self, root: str | os.PathLike[str], denied: Iterable[str] = ()) -> None:
        """Use an existing folder.

        Args:
            root: The folder.
            denied: Absolute paths without links that a rule keeps from being read, with all below them. They
                need not exist.

        Raises:
            WorkspaceError: If it is not a folder.
        """
        self._root = paths.Root.of(root)
        self.root = Path(self._root.path)
        prefix = f"{self._root.path.rstrip('/')}/"
        self._denied = frozenset(path.removeprefix(prefix) for path in denied if path.startswith(prefix))
        if not self.root.is_dir():
            raise WorkspaceError(f"The workspace {os.fspath(root)!r} is not a folder. Create it first.")

    def __repr__(self) -> str:
        return f"<Workspace {self._root.path!r}>"

    def is_denied(self, path: str) -> bool:
        """Return whether what is at a resolved path must not be read, since a rule denies it."""
        return not self._denied.isdisjoint(with_folders(path))

    def find_denied(self, path: str) -> str:
        """Return what must not be read at or below a resolved path, the first by name; empty for none."""
        if self.is_denied(path):
            return path
        below = (one for one in sorted(self._denied) if path == "." or is_within(one, path))
        return next((one for one in below if os.path.lexists(f"{self._root.path}/{one}")), "")

    def check(self) -> None:
        """Check that the folder is still at its path.

        Raises:
            WorkspaceError: If it is not; see `OpenedFolder`.
        """
        self._root.folder.check()

    def check_above(self) -> None:
        """Check that the folder is still at its path, and that no link is above it.

        Raises:
            WorkspaceError: If it is not so; see `OpenedFolder`.
        """
        self._root.folder.check_above()

    def locate(
        self,
        path: str,
        *,
        follow: bool = True,
        make_parents: bool = False,
    ) -> AbstractContextManager[ResolvedPath]:
        """Resolve `path` and hold its folder open. Every other operation is based on this.

        Args:
            path: Path; the last component need not exist.
            follow: Follow a link at the end.
            make_parents: Create missing folders; they are removed again if the `with` block fails.
        """
        return paths.locate(self._root, path, follow=follow, make_parents=make_parents)

    def relative(self, path: str, *, follow: bool = True) -> str:
        """Return the resolved path relative to the workspace; the last component need not exist."""
        with paths.locate(self._root, path, follow=follow) as resolved:
            return resolved.path

    def stat(self, path: str, *, follow: bool = True) -> Entry:
        """Return the entry at `path`."""
        with self.locate(path, follow=follow) as resolved:
            return Entry(
                resolved.path, os.stat(resolved.name, dir_fd=resolved.directory, follow_symlinks=False)
            )

    @contextmanager
    def open(self, path: str) -> Iterator[int]:
        """Open a regular file for reading; yield its descriptor.

        Raises:
            IsADirectoryError: If it is a folder.
            WorkspaceError: If it is a FIFO, a socket or a device, or must not be read.
        """
        with paths.locate(self._root, path) as resolved:
            if self._denied and self.is_denied(resolved.path):
                raise WorkspaceError(f"{paths.as_utf8(path)!r} is not read: a rule of the policy denies it.")
            file = _open_regular(resolved.directory, resolved.name, resolved.path)
        try:
            yield file
        finally:
            os.close(file)

    def read_bytes(self, path: str, *, max_bytes: int) -> bytes:
        """Return the content of a regular file.

        Raises:
            WorkspaceError: If it is larger than `max_bytes`, or a FIFO, a socket or a device.
            IsADirectoryError: If it is a folder.
        """
        with self.open(path) as file:
            size = os.fstat(file).st_size
            data = b""
            if size <= max_bytes:
                data = os.read(file, size + 1)  # one byte more, so that a short read proves the end
                if len(data) > size:  # the file has grown since its size was taken
                    data += read_to_end(file, 0, max_bytes + 1 - len(data))
        size = max(size, len(data))
        if size > max_bytes:
            raise WorkspaceError(
                f"{paths.as_utf8(path)!r} has {size:,} bytes; at most {max_bytes:,} are read."
            )
        return data

    def write_bytes(self, path: str, data: bytes) -> Written:
        """Create or replace a file atomically; create missing folders.

        Permission bits are preserved, except setuid and setgid. A symbolic link inside the workspace is
        written through. A hard link is replaced, so that no file outside changes.

        Raises:
            IsADirectoryError: If a folder is in the way.
            PermissionError: If the file or its folder may not be written.
            WorkspaceError: If a FIFO, a socket or a device is in the way.
        """
        with self.locate(path, make_parents=True) as resolved:
            old = _lstat(resolved)
            if old is not None:
                require_regular(old, resolved.path)
                if not os.access(resolved.name, os.W_OK, dir_fd=resolved.directory):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            temporary = TEMPORARY + os.urandom(8).hex()
            try:
                _write_new(resolved.directory, temporary, data, old)
                # Race: whoever reads meanwhile finds the old content or the new one, never a part.
                os.replace(
                    temporary, resolved.name, src_dir_fd=resolved.directory, dst_dir_fd=resolved.directory
                )
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=resolved.directory)
                raise
            return Written(resolved.path, len(data), created=old is None)

    @contextmanager
    def folder(
        self, path: str = ".", *, wanted: Callable[[str], object] | None = None, most: int = MOST_ENTRIES
    ) -> Iterator[Folder]:
        """List a folder: the first `most` entries by name whose names `wanted` accepts."""
        with self.locate(path) as resolved:
            directory = open_directory(resolved.directory, resolved.name)
            top = resolved.path
        try:
            yield list_folder(top, directory, wanted, most)
        finally:
            os.close(directory)

    def walk(self, path: str = ".", *, enter: Callable[[str], bool] | None = None) -> Iterator[Folder]:
        """Yield a folder and the folders beneath it whose paths `enter` accepts, parents first.

        Links are not followed. A folder that cannot be listed, or is too deep, has an `error` and no entries.
        """
        with self.locate(path) as resolved:
            directory, top = open_directory(resolved.directory, resolved.name), resolved.path
        try:
            yield from _walk(top, directory, 1, enter)
        finally:
            os.close(directory)


def _walk(path: str, directory: int, depth: int, enter: Callable[[str], bool] | None) -> Iterator[Folder]:
    folder = list_folder(path, directory)
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
            child = open_directory(directory, entry.name)
        except OSError as error:
            yield Folder(below, -1, (), error)
            continue
        try:
            yield from _walk(below, child, depth + 1, enter)
        finally:
            os.close(child)


def _lstat(resolved: ResolvedPath) -> os.stat_result | None:
    try:
        return os.stat(resolved.name, dir_fd=resolved.directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _open_regular(directory: int, name: str, path: str) -> int:
    # Check before opening, because opening a FIFO or a device can have effects of its own. Race: check again
    # afterwards, because it may have been swapped in between.
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        require_regular(status, path)
    file = os.open(name, READ_FLAGS, dir_fd=directory)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            require_regular(status, path)
    except BaseException:
        os.close(file)
        raise
    return file


def _write_new(directory: int, name: str, data: bytes, old: os.stat_result | None) -> None:
    file = _create(directory, name, None if old is None else old.st_mode & 0o777)
    try:
        if old is not None and (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
            with suppress(PermissionError):  # only root may give files away; others keep their own
                os.fchown(file, old.st_uid, old.st_gid)
        write_all(file, data)
    finally:
        os.close(file)


def _create(
    directory: int,
    name: str,
    mode: int | None,
    change_mode: Callable[[int, int], None] = os.fchmod,
) -> int:
    """Create a file with exactly these permission bits; None for those that the umask leaves."""
    file = os.open(name, CREATE_FLAGS, 0o666 if mode is None else mode, dir_fd=directory)
    try:
        if mode is None or _has_mode(file, mode):
            return file
        # The sandbox ignores fchmod without an error, so the result is checked.
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
        # Last resort: the umask belongs to the whole process, and files that other threads create meanwhile
        # get the wrong mode.
        umask = os.umask(0)
        try:
            return os.open(name, CREATE_FLAGS, mode, dir_fd=directory)
        finally:
            os.umask(umask)


def _has_mode(file: int, mode: int) -> bool:
    return os.fstat(file).st_mode & 0o777 == mode
