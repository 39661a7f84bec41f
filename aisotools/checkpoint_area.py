"""One place that steps may change, and what has to be done there to get from one state to another."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from aisotools.checkpoint_restore import remove_tree
from aisotools.checkpoint_scan import Progress, Scanner, open_below, stamps_maps
from aisotools.checkpoint_seen import Limits, Snapshot
from aisotools.checkpoint_store import Store
from aisotools.checkpoint_tree import Lists, Node, Path
from aisotools.exceptions import WorkspaceError
from aisotools.paths import printable

Reasons = tuple[tuple[str, str], ...]
"""Paths as text, each with a reason."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_OURS = "it was changed by somebody else since"


class Area:
    """A folder, or one name in it, that is walked and restored.

    Attributes:
        path: The folder's real path.
        only: The one name in it that counts; empty for all.
        root: Digest of the tree that the last walk found.
    """

    def __init__(self, store: Store, path: pathlib.Path, limits: Limits, *, only: str = "") -> None:
        """Take an existing folder."""
        self.path, self.only = path, only
        self.root = ""
        self._limits = limits
        self._scanner = Scanner(store, limits, trust_stamps=stamps_maps(path))

    @classmethod
    def around(
        cls, store: Store, path: pathlib.Path, limits: Limits, *, apart: Sequence[pathlib.Path]
    ) -> Area | None:
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
            top = os.open("/", _FOLDER)
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

    def told(self, path: Path) -> str:
        """A path in it, as a person reads it."""
        text = "/".join(path)
        return printable(str(self.path / text) if self.only else text)

    def remove(self, root: int, left: Sequence[tuple[Path, str]]) -> list[Path]:
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

    wanted: Mapping[Path, Node | None] = field(default_factory=dict)
    touched: frozenset[Path] = frozenset()
    missing: tuple[tuple[Path, str], ...] = ()
    left: tuple[tuple[Path, str], ...] = ()
    conflicts: Reasons = ()
    contested: frozenset[Path] = frozenset()

    def beside_left(self) -> Mapping[Path, Node | None]:
        """What is wanted, but for folders that hold what is left in place."""
        above = {path[:end] for path, _ in self.left for end in range(1, len(path))}
        return {path: node for path, node in self.wanted.items() if node is not None or path not in above}

    def without_conflicts(self) -> Move:
        """The same, leaving alone what somebody else changed."""
        wanted = {path: node for path, node in self.wanted.items() if path not in self.contested}
        return replace(self, wanted=wanted, conflicts=(), contested=frozenset())


def move_between(store: Store, area: Area, hops: Sequence[tuple[str, str]]) -> Move:
    """Plan the way over `hops`, each from one tree to another, from what is there now."""
    lists = Lists(store)
    now = area.scan().root
    if not now or not all(one for hop in hops for one in hop):
        return Move(missing=(((), "its files were not covered: there are too many of them"),))
    aim: dict[Path, Node | None] = {}
    contested: dict[Path, str] = {}
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
    area: Area,
    aim: Mapping[Path, Node | None],
    actual: Mapping[Path, Node | None],
    contested: Mapping[Path, str],
) -> Move:
    wanted: dict[Path, Node | None] = {}
    missing: list[tuple[Path, str]] = []
    left: list[tuple[Path, str]] = []
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
