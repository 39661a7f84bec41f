"""Bringing a folder back: what is to be at which path, done from descriptors, never through a link.

Contents are written beside their place and renamed into it, so nobody sees half a file, a hard link is broken
instead of written through, and what hostile code puts in the way in the meantime can only make a step fail.

One place that steps may change, and what has to be done there to get from one state to another.
"""

from __future__ import annotations

import errno
import os
import pathlib
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.scan import (
    Progress,
    ScanLimits,
    Scanner,
    Snapshot,
    open_below,
    stamps_maps,
)
from aisotools.workspace.checkpoints.store import Node, Store, TreePath, TreeReader
from aisotools.workspace.paths import printable
from aisotools.workspace.workspace import TEMPORARY

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HELD = 100
"""Folders held open at once while a tree is removed."""

Failure = tuple[TreePath, str]
"""A path that could not be brought back, and why."""


@dataclass(slots=True)
class RestoreResult:
    """What a restore did.

    Attributes:
        restored: Paths that were made or replaced.
        removed: Paths that were removed.
        failed: What could not be done, and why.
    """

    restored: list[TreePath] = field(default_factory=list)
    removed: list[TreePath] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)


def restore(store: Store, root: int, wanted: Mapping[TreePath, Node | None], token: str) -> RestoreResult:
    """Make the folder that `root` is open on hold what is wanted at these paths, and touch nothing else.

    Args:
        store: Has the contents.
        root: The folder.
        wanted: What is to be at each path; None for nothing.
        token: Marks half-written files, so that `sweep` finds them after a crash.
    """
    return _Restore(store, root, token).run(wanted)


def sweep(root: int, folders: Iterable[TreePath], token: str) -> None:
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
        self._done = RestoreResult()

    def run(self, wanted: Mapping[TreePath, Node | None]) -> RestoreResult:
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

    def _step(self, act: Callable[[TreePath, Node | None], None], path: TreePath, node: Node | None) -> None:
        try:
            act(path, node)
        except OSError as error:
            self._done.failed.append((path, error.strerror or str(error)))
        except WorkspaceError as error:
            self._done.failed.append((path, str(error)))

    # ---- one path

    def _clear(self, path: TreePath, node: Node | None) -> None:
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

    def _make_folder(self, path: TreePath, _node: Node | None) -> None:
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

    def _set_mode(self, path: TreePath, node: Node | None) -> None:
        assert node is not None
        folder = open_below(self._root, path)
        try:
            if stat.S_IMODE(os.fstat(folder).st_mode) & 0o777 != node.mode:
                os.fchmod(folder, node.mode)
                if path not in self._done.restored:
                    self._done.restored.append(path)
        finally:
            os.close(folder)

    def _put(self, path: TreePath, node: Node | None) -> None:
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
    def _writable(self, path: TreePath) -> Iterator[int]:
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


def remove_tree(root: int, path: TreePath) -> None:
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


Reasons = tuple[tuple[str, str], ...]
"""Paths as text, each with a reason."""

_FOLDER_MODE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_OURS = "it was changed by somebody else since"


class TrackedTree:
    """A folder, or one name in it, that is walked and restored.

    Attributes:
        path: The folder's real path.
        only: The one name in it that counts; empty for all.
        root: Digest of the tree that the last walk found.
    """

    def __init__(self, store: Store, path: pathlib.Path, limits: ScanLimits, *, only: str = "") -> None:
        """Take an existing folder."""
        self.path, self.only = path, only
        self.root = ""
        self._limits = limits
        self._scanner = Scanner(store, limits, trust_stamps=stamps_maps(path))

    @classmethod
    def around(
        cls, store: Store, path: pathlib.Path, limits: ScanLimits, *, apart: Sequence[pathlib.Path]
    ) -> TrackedTree | None:
        """What lies at an absolute path, or will; None where it meets one of the folders `apart`.

        Of a path with missing folders it is the first one that is missing.
        """
        real = pathlib.Path(os.path.realpath(path))
        while not real.parent.is_dir():
            real = real.parent
        if real == real.parent or any(_meet(real, folder) for folder in apart):
            return None
        return cls(store, real.parent, limits, only=real.name)

    @property
    def key(self) -> str:
        """Names it in a step; empty for the workspace."""
        return str(self.path / self.only) if self.only else ""

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Its folder, open for reading; no link is followed on the way to it.

        Raises:
            WorkspaceError: If it is not there any more.
        """
        try:
            top = os.open("/", _FOLDER_MODE)
            try:
                root = open_below(top, self.path.parts[1:])
            finally:
                os.close(top)
        except OSError as error:
            raise WorkspaceError(
                f"The folder {str(self.path)!r} cannot be used: {error.strerror}."
            ) from error
        try:
            yield root
        finally:
            os.close(root)

    def scan(self, progress: Progress | None = None) -> Snapshot:
        """Its state right now, kept."""
        with self.opened() as root:
            try:
                snapshot = self._scanner.scan(root, only=self.only or None, progress=progress)
            except OSError as error:
                told = f"The folder {str(self.path)!r} cannot be read: {error.strerror}."
                raise WorkspaceError(told) from error
        self.root = snapshot.root
        return snapshot

    def fits(self) -> bool:
        """Whether it lies within the limits, as far as sizes tell; nothing is read."""
        left_bytes, left_entries = self._limits.total_bytes, self._limits.entries
        with self.opened() as root:
            for _, _, names, folder in os.fwalk(".", dir_fd=root, follow_symlinks=False):
                left_entries -= len(names)
                for name in names:
                    try:
                        left_bytes -= os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
                    except FileNotFoundError:
                        continue
                if left_bytes < 0 or left_entries < 0:
                    return False
        return True

    def told(self, path: TreePath) -> str:
        """A path in it, as a person reads it."""
        text = "/".join(path)
        return printable(str(self.path / text) if self.only else text)

    def remove(self, root: int, left: Sequence[tuple[TreePath, str]]) -> list[TreePath]:
        """Remove what is not kept, since somebody insists; what was removed."""
        removed = []
        for path, _ in left:
            with suppress(FileNotFoundError):
                remove_tree(root, path)
                removed.append(path)
        return removed


def _meet(one: pathlib.Path, other: pathlib.Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What has to be done to get from what is there to what is wanted.

    Attributes:
        wanted: What is to be at each path; None for nothing.
        touched: Every path that the steps changed.
        missing: What cannot be brought back, and why.
        left: What should go but is not kept, so that it could not be had again.
        conflicts: What somebody else changed since, as text.
        contested: The same as paths.
    """

    wanted: Mapping[TreePath, Node | None] = field(default_factory=dict)
    touched: frozenset[TreePath] = frozenset()
    missing: tuple[tuple[TreePath, str], ...] = ()
    left: tuple[tuple[TreePath, str], ...] = ()
    conflicts: Reasons = ()
    contested: frozenset[TreePath] = frozenset()

    def beside_left(self) -> Mapping[TreePath, Node | None]:
        """What is wanted, but for folders that hold what is left in place."""
        above = {path[:end] for path, _ in self.left for end in range(1, len(path))}
        return {path: node for path, node in self.wanted.items() if node is not None or path not in above}

    def without_conflicts(self) -> Move:
        """The same, leaving alone what somebody else changed."""
        wanted = {path: node for path, node in self.wanted.items() if path not in self.contested}
        return replace(self, wanted=wanted, conflicts=(), contested=frozenset())


def move_between(store: Store, area: TrackedTree, hops: Sequence[tuple[str, str]]) -> Move:
    """Plan the way over `hops`, each from one tree to another, from what is there now."""
    lists = TreeReader(store)
    now = area.scan().root
    if not now or not all(one for hop in hops for one in hop):
        return Move(missing=(((), "its files were not covered: there are too many of them"),))
    aim: dict[TreePath, Node | None] = {}
    contested: dict[TreePath, str] = {}
    for start, end in hops:
        for path, (was, will) in lists.differences(start, end).items():
            actual = aim[path] if path in aim else lists.lookup(now, path)
            if not (_like(actual, was) or _like(actual, will)):
                contested.setdefault(path, _NOT_OURS)
            aim[path] = will
    actual_now = {path: lists.lookup(now, path) for path in aim}
    for path, will in aim.items():
        current = actual_now[path]
        if current is not None and current.kind == "folder" and (will is None or will.kind != "folder"):
            for name in lists.of(current):
                if aim.get((*path, name), current) is not None:
                    contested[*path, name] = "it was put there by somebody else since"
    return _planned(area, aim, actual_now, contested)


def _planned(
    area: TrackedTree,
    aim: Mapping[TreePath, Node | None],
    actual: Mapping[TreePath, Node | None],
    contested: Mapping[TreePath, str],
) -> Move:
    wanted: dict[TreePath, Node | None] = {}
    missing: list[tuple[TreePath, str]] = []
    left: list[tuple[TreePath, str]] = []
    for path, will in aim.items():
        current = actual[path]
        if current == will or (current is None and will is None):
            continue
        if will is not None and will.kind in {"unkept", "other"}:
            why = (
                f"it was not kept: {will.why_unkept}" if will.kind == "unkept" else f"it is a {will.content}"
            )
            missing.append((path, why))
        elif will is None and current is not None and current.kind == "unkept":
            left.append((path, current.why_unkept))
        else:
            wanted[path] = will
    return Move(
        wanted=wanted,
        touched=frozenset(aim),
        missing=tuple(missing),
        left=tuple(left),
        conflicts=tuple((area.told(path), why) for path, why in sorted(contested.items())),
        contested=frozenset(contested),
    )


def _like(one: Node | None, other: Node | None) -> bool:
    return other is None if one is None else one.like(other)
