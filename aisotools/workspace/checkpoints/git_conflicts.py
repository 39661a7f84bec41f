"""What somebody else has added to a repository of git and that needs objects which a move takes away.

Threat
    A call makes a commit, a person makes a branch, a tag or a commit on top of it, and the call is undone.
    Its objects are files that the call has made, so they go, and the branch leads nowhere. None of these
    files was changed by two, so nothing else finds that.
Mechanism
    Of each repository that loses objects, everything that keeps objects alive and is not as the move leaves
    it is read: references, the index, stashes. What it leads to is followed until it reaches objects that are
    as the move leaves them. Reaches it one that is removed, it is a conflict.
Race window
    None: it is about contents that are stored. A reference that is made later is found by nobody.
When it fails
    What cannot be read, or leads to too many objects, counts as needing what is removed. Objects in packs are
    not followed: if the move takes a pack away, each of them counts as removed.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import Node, TreePath, TreeReader
from aisotools.workspace.git_index import list_objects

NEEDS_OBJECTS = "it was changed by somebody else since, and needs objects of git that would be removed"
"""Why a reference, an index or a stash is a conflict."""

_MOST_OBJECTS = 10_000
_MOST_BYTES = 16 << 20
_OBJECT_ID = re.compile(rb"\b[0-9a-f]{40}(?:[0-9a-f]{24})?\b")
_REACHABLE = re.compile(rb"(?:tree|parent|object) ([0-9a-f]+)\n")
_PASSING = frozenset({"FETCH_HEAD", "ORIG_HEAD"})
"""Names that git writes for a moment, and that keep nothing alive."""


def find_needing(
    store: Store, now: str, end: str, targets: Mapping[TreePath, Node | None]
) -> Iterator[TreePath]:
    """Yield the paths that would need objects which are no longer there after a move.

    Args:
        store: Holds the trees.
        now: Digest of the tree that is there.
        end: Digest of the tree that the move leads to.
        targets: What it puts at each path that it changes; None for nothing.
    """
    removed: dict[TreePath, set[TreePath]] = {}
    for path, target in targets.items():
        if target is None and "objects" in path[:-2]:
            at = len(path) - 1 - path[::-1].index("objects")
            removed.setdefault(path[:at], set()).add(path[at + 1 :])
    reader = TreeReader(store)
    for folder, objects in removed.items():
        if reader.lookup(now, (*folder, "HEAD")) is not None:
            yield from _Repository(store, reader, folder, (now, end), objects).find_needing(targets)


class _Repository:
    """One repository that loses objects."""

    def __init__(
        self,
        store: Store,
        reader: TreeReader,
        folder: TreePath,
        trees: tuple[str, str],
        removed: set[TreePath],
    ) -> None:
        self._store, self._reader, self._folder = store, reader, folder
        self._now, self._end = trees
        self._removed = removed
        self._loses_pack = any(path[0] == "pack" for path in removed)

    def find_needing(self, targets: Mapping[TreePath, Node | None]) -> Iterator[TreePath]:
        """Yield what needs objects that are removed, in the order of the paths."""
        before, after = (self._reader.lookup(tree, self._folder) for tree in (self._end, self._now))
        if before is None or after is None or before.kind != "folder":
            return  # a repository that is removed as a whole: whatever was added to it is found by that
        for below, (_, node) in self._reader.differences(before.content, after.content).items():
            path = (*self._folder, *below)
            if node is not None and node.kind != "folder" and path not in targets and _keeps_objects(below):
                try:
                    is_needing = self._needs_removed(self._object_ids(path, node))
                except (WorkspaceError, ValueError, IndexError, zlib.error):
                    is_needing = True
                if is_needing:
                    yield path

    def _object_ids(self, path: TreePath, node: Node) -> list[str]:
        if not node.is_file or node.size > _MOST_BYTES:
            raise ValueError("no file that can be read")
        data = self._store.get(node.content)
        if path[-1] == "index":
            return list_objects(data)
        return [found.decode("ascii") for found in _OBJECT_ID.findall(data)]

    def _needs_removed(self, wanted: list[str]) -> bool:
        """Return whether any of some objects is removed by the move, or leads to one that is."""
        seen: set[str] = set()
        while wanted:
            name = wanted.pop()
            if name in seen:
                continue
            seen.add(name)
            if len(seen) > _MOST_OBJECTS:
                raise ValueError("too many objects")
            loose = (name[:2], name[2:])
            path = (*self._folder, "objects", *loose)
            if loose in self._removed:
                return True
            if self._reader.lookup(self._end, path) is not None:
                continue  # what it leads to was there as well
            node = self._reader.lookup(self._now, path)
            if node is not None:
                wanted += self._read_links(node, len(name))
            elif self._loses_pack:
                return True
        return False

    def _read_links(self, node: Node, length: int) -> list[str]:
        """Return the objects that a loose one leads to.

        Raises:
            ValueError: If it cannot be read.
            zlib.error: The same.
            WorkspaceError: If it is not stored.
        """
        if not node.is_file or node.size > _MOST_BYTES:
            raise ValueError("no file that can be read")
        data = zlib.decompressobj().decompress(self._store.get(node.content), _MOST_BYTES)
        header, _, body = data.partition(b"\0")
        match header.partition(b" ")[0]:
            case b"blob":
                return []
            case b"commit" | b"tag":
                return [
                    found.decode("ascii") for found in _REACHABLE.findall(body.partition(b"\n\n")[0] + b"\n")
                ]
            case b"tree":
                return [*_entries_of(body, length // 2)]
        raise ValueError("an object of another kind")


def _entries_of(tree: bytes, size: int) -> Iterator[str]:
    """Yield the objects of a tree, but for commits of other repositories."""
    at = 0
    while at < len(tree):
        end = tree.index(b"\0", at) + 1
        if not tree.startswith(b"160000 ", at):
            yield tree[end : end + size].hex()
        at = end + size


def _keeps_objects(below: TreePath) -> bool:
    """Return whether a path below the folder of a repository is one that keeps objects alive."""
    if below[0] == "worktrees":
        below = below[2:]
    if not below:
        return False
    if len(below) == 1:
        name = below[0]
        return name in {"index", "packed-refs"} or (name.endswith("HEAD") and name not in _PASSING)
    return below[0] == "refs" or below == ("logs", "refs", "stash")
