"""Trees of files as values, by digest: a folder's content is the list of what it holds.

Equal folders have equal digests however deep they are, so two states are compared without looking into what
did not change, and an unchanged state costs nothing to keep.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, Protocol

NodeKind = Literal["file", "folder", "link", "fifo", "other", "unkept"]
"""What a tree may hold: `other` is a socket or a device, `unkept` is there but its content is not kept."""

_LETTERS: Mapping[NodeKind, bytes] = {
    "file": b"f",
    "folder": b"d",
    "link": b"l",
    "fifo": b"p",
    "other": b"o",
    "unkept": b"u",
}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}


class Node(NamedTuple):
    """One thing in a tree.

    Attributes:
        kind: What it is.
        mode: Its permission bits; 0 for what has none of its own.
        content: A file's or folder's digest, a link's text, or of what is not kept why and when it changed.
        size: A file's size in bytes.
    """

    kind: NodeKind
    mode: int = 0
    content: str = ""
    size: int = 0

    @property
    def why_unkept(self) -> str:
        """Why the content of something is not kept, in words."""
        return self.content.partition(";")[0]

    def like(self, other: Node | None) -> bool:
        """Whether both are the same as far as anything can be lost; modes cannot be set everywhere."""
        if other is None or self.kind != other.kind:
            return False
        return self.kind == "folder" or self.content == other.content


Path = tuple[str, ...]
"""The names of a way down from the root; bytes that are no UTF-8 are surrogates, as `os.fsdecode` gives."""

Change = tuple[Node | None, Node | None]
"""What was there before and after; None for nothing."""


class Contents(Protocol):
    """Where the lists of folders are kept."""

    def put(self, data: bytes) -> str:
        """Keep a content and return its digest."""

    def get(self, digest: str) -> bytes:
        """A kept content."""


def encode(nodes: Mapping[str, Node]) -> bytes:
    """The list of a folder, the same for the same nodes."""
    parts = []
    for name, node in sorted(nodes.items()):
        parts.append(b"%s %o %d " % (_LETTERS[node.kind], node.mode, node.size) + os.fsencode(node.content))
        parts.append(os.fsencode(name))
    return b"\0".join(parts)


def decode(data: bytes) -> dict[str, Node]:
    """The nodes that `encode` wrote."""
    nodes: dict[str, Node] = {}
    parts = data.split(b"\0") if data else []
    for header, name in zip(parts[::2], parts[1::2], strict=True):
        letter, mode, size, content = header.split(b" ", 3)
        nodes[os.fsdecode(name)] = Node(_KINDS[letter], int(mode, 8), os.fsdecode(content), int(size))
    return nodes


class Lists:
    """Reads trees, each folder once."""

    def __init__(self, store: Contents) -> None:
        """Read from `store`."""
        self._store = store
        self._read: dict[str, dict[str, Node]] = {}

    def of(self, node: Node | None) -> Mapping[str, Node]:
        """What a folder holds; nothing for anything else."""
        if node is None or node.kind != "folder":
            return {}
        if node.content not in self._read:
            self._read[node.content] = decode(self._store.get(node.content))
        return self._read[node.content]

    def lookup(self, root: str, path: Path) -> Node | None:
        """What a tree has at a path."""
        node: Node | None = Node("folder", content=root)
        for name in path:
            node = self.of(node).get(name)
        return node

    def differences(self, before: str, after: str) -> dict[Path, Change]:
        """Every path at which two trees differ, folders before what they hold.

        A folder that is in both is told only if its mode differs.
        """
        found: dict[Path, Change] = {}
        if before != after:
            self._compare((), Node("folder", content=before), Node("folder", content=after), found)
        return found

    def _compare(
        self, path: Path, before: Node | None, after: Node | None, found: dict[Path, Change]
    ) -> None:
        both = before is not None and after is not None and before.kind == after.kind == "folder"
        if path and not (both and before and after and before.mode == after.mode):
            found[path] = before, after
        left, right = self.of(before), self.of(after)
        for name in sorted({*left, *right}):
            if left.get(name) != right.get(name):
                self._compare((*path, name), left.get(name), right.get(name), found)


def digests(store: Contents, roots: Iterable[str]) -> set[str]:
    """Every content that any of these trees needs."""
    found: set[str] = set()
    todo = list(roots)
    while todo:
        digest = todo.pop()
        if digest in found:
            continue
        found.add(digest)
        for node in decode(store.get(digest)).values():
            if node.kind == "folder":
                todo.append(node.content)
            elif node.kind == "file":
                found.add(node.content)
    return found
