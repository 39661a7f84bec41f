"""Bringing a folder back: what is to be at which path, done from descriptors, never through a link.

Contents are written beside their place and renamed into it, so nobody sees half a file, a hard link is broken
instead of written through, and what hostile code puts in the way in the meantime can only make a step fail.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from aisotools.checkpoint_scan import open_below
from aisotools.checkpoint_store import Store
from aisotools.checkpoint_tree import Node, Path
from aisotools.exceptions import WorkspaceError
from aisotools.workspace import TEMPORARY

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HELD = 100
"""Folders held open at once while a tree is removed."""

Failure = tuple[Path, str]
"""A path that could not be brought back, and why."""


@dataclass(slots=True)
class Outcome:
    """What a restore did.

    Attributes:
        restored: Paths that were made or replaced.
        removed: Paths that were removed.
        failed: What could not be done, and why.
    """

    restored: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)


def restore(store: Store, root: int, wanted: Mapping[Path, Node | None], token: str) -> Outcome:
    """Make the folder that `root` is open on hold what is wanted at these paths, and touch nothing else.

    Args:
        store: Has the contents.
        root: The folder.
        wanted: What is to be at each path; None for nothing.
        token: Marks half-written files, so that `sweep` finds them after a crash.
    """
    return _Restore(store, root, token).run(wanted)


def sweep(root: int, folders: Iterable[Path], token: str) -> None:
    """Remove half-written files that a crash left in these folders."""
    for path in folders:
        try:
            folder = open_below(root, path)
        except OSError:
            continue  # what is not there holds nothing
        try:
            for name in os.listdir(folder):  # noqa: PTH208 - a descriptor, no path
                if name.startswith(_prefix(token)):
                    os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)


def _prefix(token: str) -> str:
    return f"{TEMPORARY}{token}-"


class _Restore:
    def __init__(self, store: Store, root: int, token: str) -> None:
        self._store = store
        self._root = root
        self._token = token
        self._numbers = 0
        self._done = Outcome()

    def run(self, wanted: Mapping[Path, Node | None]) -> Outcome:
        folders = [path for path, node in wanted.items() if node is not None and node.kind == "folder"]
        for path in sorted(wanted, key=len, reverse=True):  # what must go, and what is in the way
            self._step(self._clear, path, wanted[path])
        for path in sorted(folders, key=len):
            self._step(self._make_folder, path, wanted[path])
        for path, node in wanted.items():
            if node is not None and node.kind != "folder":
                self._step(self._put, path, node)
        for path in sorted(folders, key=len, reverse=True):  # last: a folder that is locked is filled first
            self._step(self._set_mode, path, wanted[path])
        return self._done

    def _step(self, act: Callable[[Path, Node | None], None], path: Path, node: Node | None) -> None:
        try:
            act(path, node)
        except OSError as error:
            self._done.failed.append((path, error.strerror or str(error)))
        except WorkspaceError as error:
            self._done.failed.append((path, str(error)))

    # ---- one path

    def _clear(self, path: Path, node: Node | None) -> None:
        with suppress(FileNotFoundError, NotADirectoryError), self._writable(path[:-1]) as parent:
            status = os.stat(path[-1], dir_fd=parent, follow_symlinks=False)
            is_folder = stat.S_ISDIR(status.st_mode)
            if node is not None and is_folder == (node.kind == "folder"):
                return  # replaced in place, or kept as a folder
            if node is not None and not is_folder and node.kind != "folder":
                return
            if is_folder:
                try:
                    os.rmdir(path[-1], dir_fd=parent)
                except OSError as error:
                    if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                        raise OSError(error.errno, "it holds something that is not ours to remove") from None
                    raise
            else:
                os.unlink(path[-1], dir_fd=parent)
            if node is None:
                self._done.removed.append(path)

    def _make_folder(self, path: Path, _node: Node | None) -> None:
        with self._writable(path[:-1]) as parent:
            try:
                os.mkdir(path[-1], 0o700, dir_fd=parent)
            except FileExistsError:
                status = os.stat(path[-1], dir_fd=parent, follow_symlinks=False)
                if not stat.S_ISDIR(status.st_mode):
                    raise
                return
            _give(path[-1], parent)
            self._done.restored.append(path)

    def _set_mode(self, path: Path, node: Node | None) -> None:
        assert node is not None
        folder = open_below(self._root, path)
        try:
            if stat.S_IMODE(os.fstat(folder).st_mode) & 0o777 != node.mode:
                os.fchmod(folder, node.mode)
                if path not in self._done.restored:
                    self._done.restored.append(path)
        finally:
            os.close(folder)

    def _put(self, path: Path, node: Node | None) -> None:
        assert node is not None
        if node.kind == "unkept":
            raise OSError(errno.ENODATA, f"its content was not kept: {node.why_unkept}")
        if node.kind == "other":
            raise OSError(errno.EOPNOTSUPP, f"a {node.content} cannot be made again")
        with self._writable(path[:-1]) as parent:
            self._numbers += 1
            temporary = f"{_prefix(self._token)}{self._numbers}"
            try:
                if node.kind == "file":
                    self._write(parent, temporary, node)
                elif node.kind == "link":
                    os.symlink(node.content, temporary, dir_fd=parent)
                else:
                    os.mkfifo(temporary, node.mode, dir_fd=parent)
                os.rename(temporary, path[-1], src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)
                raise
        self._done.restored.append(path)

    def _write(self, parent: int, name: str, node: Node) -> None:
        # Written with no right for anybody else until it is whole; never setuid, whatever it once was.
        file = os.open(name, _CREATE, 0o600, dir_fd=parent)
        try:
            self._store.copy(node.content, file)
            _give_file(file, parent)
            os.fchmod(file, node.mode)
        finally:
            os.close(file)

    @contextmanager
    def _writable(self, path: Path) -> Iterator[int]:
        """A folder in which names can be changed, whatever its mode says, which is put back."""
        folder = open_below(self._root, path)
        try:
            mode = stat.S_IMODE(os.fstat(folder).st_mode)
            locked = mode & 0o300 != 0o300
            if locked:
                os.fchmod(folder, mode | 0o700)
            try:
                yield folder
            finally:
                if locked:
                    os.fchmod(folder, mode)
        finally:
            os.close(folder)


def remove_tree(root: int, path: Path) -> None:
    """Remove something with all below it, however deep; no link is followed.

    Folders that lie deep are moved up before they are emptied, so that depth costs neither recursion nor
    descriptors.

    Raises:
        OSError: If something resists.
    """
    parent = open_below(root, path[:-1])
    try:
        number = 0
        todo = [path[-1]]
        while todo:
            name = todo.pop()
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                os.unlink(name, dir_fd=parent)
                continue
            folder = os.open(name, _FOLDER, dir_fd=parent)
            try:
                os.fchmod(folder, 0o700)
                for below in os.listdir(folder):  # noqa: PTH208 - a descriptor, no path
                    below_status = os.stat(below, dir_fd=folder, follow_symlinks=False)
                    if stat.S_ISDIR(below_status.st_mode):
                        number += 1
                        moved = f"{TEMPORARY}{os.urandom(6).hex()}-{number}"
                        os.rename(below, moved, src_dir_fd=folder, dst_dir_fd=parent)
                        todo.append(moved)
                    else:
                        os.unlink(below, dir_fd=folder)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=parent)
    finally:
        os.close(parent)


def _give(name: str, parent: int) -> None:
    """Let a new folder belong to whom the folder around it belongs."""
    folder = os.open(name, _FOLDER, dir_fd=parent)
    try:
        _give_file(folder, parent)
    finally:
        os.close(folder)


def _give_file(file: int, parent: int) -> None:
    owner = os.fstat(parent)
    if (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):  # only root may give files away; others keep their own
            os.fchown(file, owner.st_uid, owner.st_gid)
