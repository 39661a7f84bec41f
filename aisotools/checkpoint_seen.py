"""What a walk remembers, so that the next one reads only what changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from aisotools.checkpoint_tree import Node, Path

Stamp = tuple[int, int, int, int]
"""Size, times and inode of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a checkpoint covers; the rest is named.

    Attributes:
        total_bytes: Of all files together; the smallest come first.
        entries: How many files and folders.
        depth: How many folders deep.
    """

    total_bytes: int = 256 << 20
    entries: int = 100_000
    depth: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a walk found.

    Attributes:
        root: Digest of the tree; empty where nothing could be covered.
        entries: How many files and folders it looked at.
        copied_bytes: How much of it had to be read.
        total_bytes: Size of all files that are kept.
        uncovered: What is not kept, each with its reason; at most a hundred, the first ones.
        uncovered_count: How many there are.
    """

    root: str
    entries: int
    copied_bytes: int = 0
    total_bytes: int = 0
    uncovered: tuple[tuple[Path, str], ...] = ()
    uncovered_count: int = 0


class TooSlow(Exception):
    """Raised by who hears the progress of a walk, to have it begun again elsewhere."""


class Seen:
    """One folder as the last walk left it."""

    __slots__ = ("bytes", "changed", "digest", "folders", "names", "parent", "unkept")

    def __init__(self, parent: Seen | None = None) -> None:
        self.parent = parent
        self.names: dict[str, tuple[Stamp | None, Node]] = {}
        self.folders: dict[str, Seen] = {}
        self.digest = ""
        self.changed = True
        self.bytes = 0  # of the files directly in it
        self.unkept = 0

    def note(self, name: str, stamp: Stamp | None, node: Node) -> None:
        """Take down what is there now."""
        known = self.names.get(name)
        if known is not None:
            self.discount(known[1])
        self.names[name] = stamp, node
        self.discount(node, by=-1)
        if node.kind != "folder":
            self.folders.pop(name, None)
        if known is None or known[1] != node:
            self.mark()

    def drop(self, name: str) -> None:
        """Nothing is there any more."""
        known = self.names.pop(name, None)
        if known is not None:
            self.discount(known[1])
            self.folders.pop(name, None)
            self.mark()

    def discount(self, node: Node, by: int = 1) -> None:
        """Count a node no more; with -1, count it."""
        if node.kind == "file":
            self.bytes -= by * node.size
        elif node.kind == "unkept":
            self.unkept -= by

    def mark(self) -> None:
        """The lists of this folder and of all above are to be written anew."""
        seen: Seen | None = self
        while seen is not None and not seen.changed:
            seen.changed = True
            seen = seen.parent


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file that has to be read."""

    path: Path
    name: str
    seen: Seen
    size: int
    status: os.stat_result


def stamp_of(status: os.stat_result) -> Stamp:
    """What changes when a file does."""
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


def unkept(why: str, status: os.stat_result) -> Node:
    """A node for what is there and not kept; differs when that changes."""
    mark = ":".join(map(str, stamp_of(status)))
    return Node("unkept", status.st_mode & 0o777, f"{why};{mark}")


def uncovered_in(seen: Seen, path: Path) -> Iterator[tuple[Path, str]]:
    """What a folder and all below it hold and is not kept, each with its reason."""
    for name, (_, node) in seen.names.items():
        if node.kind == "unkept":
            yield (*path, name), node.why_unkept
    for name, below in seen.folders.items():
        yield from uncovered_in(below, (*path, name))
