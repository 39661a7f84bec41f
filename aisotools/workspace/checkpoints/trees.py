"""The folders of which checkpoints are taken: the workspace, and what calls change outside of it.

Each is opened following no link from `/` on, so that a folder that was replaced by a link is an error and
not another folder.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Sequence, Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path

from aisotools.core.exceptions import WorkspaceError, too_many_files_remedy
from aisotools.workspace.checkpoints.contents import occupied_bytes
from aisotools.workspace.checkpoints.scan import ProgressCallback, ScanLimits, Scanner, Snapshot, TooSlow
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import TreePath, open_below
from aisotools.workspace.dirfd import DIRECTORY_FLAGS, stamps_maps, walk_below
from aisotools.workspace.paths import OpenedFolder, printable
from aisotools.workspace.root_mode import RootMode

WORKSPACE_KEY = ""
"""`TrackedTree.key` of the workspace."""

_OUTSIDE_BYTES = 64 << 10  # memory for the state of a tree outside the workspace; a larger one is in a file


class _DoesNotFit(Exception):
    """A folder holds more than a snapshot covers."""


class TrackedTree:
    """A folder, or one entry of it, of which snapshots are taken and restored.

    Attributes:
        path: Real path of the folder.
        only: Name of the one entry that is tracked; empty for the whole folder.
        key: Name of the tree in records; empty for the workspace.
        root: Digest of the last snapshot.
        scanner: Takes the snapshots.
    """

    def __init__(
        self,
        store: Store,
        path: Path,
        limits: ScanLimits,
        *,
        only: str = "",
        mode: RootMode | None = None,
        keep_bytes: float = math.inf,
    ) -> None:
        self.path = path
        self._mode = mode
        # Of one outside, the folder around it may be replaced like everything in it.
        self._folder = OpenedFolder.of(path) if not only else OpenedFolder(str(path), None)
        self.only = only
        self.key = str(path / only) if only else ""
        self.root = ""
        self._limits = limits
        self.scanner = Scanner(store, limits, trust_stamps=stamps_maps(path))
        self.limit_memory(keep_bytes)

    @classmethod
    def around(
        cls, store: Store, path: Path, limits: ScanLimits, *, apart: Sequence[Path], keep_bytes: float
    ) -> TrackedTree | None:
        """Track what is at an absolute path, or will be.

        Where folders on the way are missing, the first missing one is tracked. Return None if that contains
        one of the folders `apart`, or lies in one, or is the root of the file system.
        """
        real = Path(os.path.realpath(path))
        while not real.parent.is_dir():
            real = real.parent
        if real == real.parent or any(_overlap(real, folder) for folder in apart):
            return None
        return cls(store, real.parent, limits, only=real.name, keep_bytes=keep_bytes)

    def limit_memory(self, keep_bytes: float) -> None:
        """Keep what is remembered between two snapshots in a file if it takes more than so many bytes."""
        self.scanner.keep_bytes = keep_bytes

    def close(self) -> None:
        """Forget the state."""
        self.scanner.close()

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open the folder for reading, following no link on the way from `/`.

        If the rights of its owner have changed, its mode is put back before.

        Raises:
            WorkspaceError: If it no longer exists, is another one, or cannot be read.
        """
        try:
            root = self._open()
        except OSError as error:
            problem = f"The folder {str(self.path)!r} cannot be used: {error.strerror}."
            raise WorkspaceError(problem + too_many_files_remedy(error)) from error
        try:
            yield root
        finally:
            os.close(root)

    def _open(self) -> int:
        self._folder.check()
        mode = self._mode
        if mode is not None and (os.lstat(self.path).st_mode ^ mode.value) & stat.S_IRWXU:
            mode.put_back()
        top = os.open("/", DIRECTORY_FLAGS)
        try:
            root = open_below(top, self.path.parts[1:])
        finally:
            os.close(top)
        try:
            self._folder.check(root)
        except BaseException:
            os.close(root)
            raise
        return root

    def scan(
        self,
        progress: ProgressCallback | None = None,
        max_work: float = math.inf,
        *,
        may_wait: bool = True,
    ) -> Snapshot:
        """Take a snapshot; see `Scanner.scan` for the arguments.

        Raises:
            TooSlow: As `Scanner.scan` does.
            WorkspaceError: If the folder cannot be read, or a content cannot be stored.
        """
        with self.opened() as root:
            try:
                snapshot = self.scanner.scan(
                    root, only=self.only or None, progress=progress, max_work=max_work, may_wait=may_wait
                )
            except OSError as error:
                problem = f"The folder {str(self.path)!r} cannot be read: {error.strerror}."
                raise WorkspaceError(problem + too_many_files_remedy(error)) from error
        self.root = snapshot.root
        return snapshot

    def fits(self, most_entries: float = math.inf) -> bool:
        """Return whether a snapshot would be within the limits. Sizes are added up; no file is read.

        Raises:
            TooSlow: If it has to look at more than `most_entries`.
        """
        left_bytes, left_entries = self._limits.total_bytes, self._limits.entries

        def visit(folder: int) -> list[str]:
            nonlocal most_entries, left_bytes, left_entries
            folders = []
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        most_entries -= 1
                        if most_entries < 0:
                            raise TooSlow
                        # Never through a link: it may lead to itself, or to where nobody may look.
                        if entry.is_dir(follow_symlinks=False):
                            most_entries -= 1  # it is opened
                            folders.append(entry.name)
                            continue
                        left_entries -= 1
                        with suppress(OSError):  # it is gone, or its folder allows no look at it
                            left_bytes -= occupied_bytes(entry.stat(follow_symlinks=False))
                        if left_bytes < 0 or left_entries < 0:
                            raise _DoesNotFit
            except OSError:
                pass  # it was removed while it was listed
            return folders

        with self.opened() as root:
            try:
                walk_below(root, visit)  # what it cannot reach is named when a snapshot is taken
            except _DoesNotFit:
                return False
        return True

    def display_path(self, path: TreePath) -> str:
        """Return a path as a person reads it: relative to the workspace, absolute outside of it."""
        text = "/".join(path)
        return printable(str(self.path / text) if self.only else text)


class TrackedTrees:
    """The trees of one timeline by their keys: the workspace, and those outside that its steps changed.

    Attributes:
        workspace: The workspace.
    """

    def __init__(
        self, store: Store, workspace: Path, limits: ScanLimits, *, mode: RootMode | None = None
    ) -> None:
        self._store, self._limits = store, limits
        self.workspace = TrackedTree(store, workspace, limits, mode=mode)
        self._trees = {WORKSPACE_KEY: self.workspace}

    def __iter__(self) -> Iterator[TrackedTree]:
        return iter(tuple(self._trees.values()))

    def __len__(self) -> int:
        return len(self._trees)

    @property
    def memory_bytes(self) -> int:
        """Memory for what the scans remember."""
        return sum(tree.scanner.memory_bytes for tree in self)

    def find(self, key: str) -> TrackedTree | None:
        """Return the tree of a key, or None if that cannot be tracked (any more).

        A tree outside the workspace is not known yet if its step was begun by an earlier process.
        """
        return self._trees[key] if key in self._trees else self.track(Path(key))

    def track(self, path: Path) -> TrackedTree | None:
        """Return the tree around a path outside the workspace, and track it; see `TrackedTree.around`."""
        tree = self._around(path)
        # What is known of a tree that is tracked already makes its next scan fast.
        return None if tree is None else self._trees.setdefault(tree.key, tree)

    def covers(self, path: Path) -> bool:
        """Return whether a path outside the workspace can be tracked."""
        return self._around(path) is not None

    def _around(self, path: Path) -> TrackedTree | None:
        apart = (self.workspace.path, self._store.folder)
        return TrackedTree.around(self._store, path, self._limits, apart=apart, keep_bytes=_OUTSIDE_BYTES)

    def keep_only(self, keys: AbstractSet[str]) -> None:
        """Close and forget all trees but the workspace and those of some keys."""
        for key in self._trees.keys() - keys - {WORKSPACE_KEY}:
            self._trees.pop(key).close()

    def close(self) -> None:
        """Forget what the scans remember."""
        for tree in self:
            tree.close()


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)
