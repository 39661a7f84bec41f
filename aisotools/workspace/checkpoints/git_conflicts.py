"""What somebody else has added to a repository of git and that needs objects which a move takes away.

Threat
    A call makes a commit, a person makes a branch, a tag or a commit on top of it, and the call is undone.
    Its objects are files that the call has made, so they go, and the branch leads nowhere. None of these
    files was changed by two, so nothing else finds that. What a call writes into a repository is hostile.
Mechanism
    Of each repository that loses objects, everything that keeps objects alive and is not as the move leaves
    it is read: references, the index, stashes. What it leads to is followed through single files of objects,
    until it reaches those that the move leads to anyway. Is one of them there now, and not after the move, it
    is a conflict. Which objects a pack has says its index.
Race window
    None: it is about contents that are stored. A reference that is made later is found by nobody.
When it fails
    What cannot be read, or leads to more objects or bytes than are followed or to a pack that somebody else
    has added, counts as needing what goes. No repository is found that borrows objects from another one, such
    as a clone that shares them.
"""

from __future__ import annotations

import itertools
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Set as AbstractSet

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import Node, TreePath, TreeReader
from aisotools.workspace.git_index import list_objects
from aisotools.workspace.git_packs import PackIndex

NEEDS_OBJECTS = "it was changed by somebody else since, and needs objects of git that would be removed"
"""Why a reference, an index or a stash is a conflict."""

_MOST_REPOSITORIES = 100
_MOST_OBJECTS = 10_000
_MOST_PACKS = 100
_MOST_BYTES = 8 << 20
_OBJECT_ID = re.compile(rb"\b[0-9a-f]{40}(?:[0-9a-f]{24})?\b")
_REACHABLE = re.compile(rb"(?:tree|parent|object) ([0-9a-f]+)\n")
_LOOSE_NAME = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_OBJECT_FOLDER = re.compile("[0-9a-f]{2}")
_SYMBOLIC = b"ref: "
_PACKED_REFERENCES = "packed-refs"
_MOST_PACKED_NAMES = 200_000
_MOST_COMPARED_BYTES = 1 << 30
_PASSING = frozenset({"FETCH_HEAD", "ORIG_HEAD"})
"""Names that git writes for a moment, and that keep nothing alive."""

_COMPUTED = frozenset(
    {("objects", "info", "commit-graph"), ("objects", "pack", "multi-pack-index")}
    | {("objects", "info", "commit-graphs", "commit-graph-chain")}
)
"""Files that git computes from its objects, and takes for true from then on."""

_Targets = Mapping[TreePath, Node | None]


class _TooMuch(Exception):
    """More would have to be followed than is."""


def is_object_folder(path: TreePath) -> bool:
    """Return whether a folder can be one in which git keeps objects, by the first of their letters."""
    return path[-2:-1] == ("objects",) and _OBJECT_FOLDER.fullmatch(path[-1]) is not None


def find_needing(store: Store, now: str, end: str, targets: _Targets) -> Iterator[TreePath]:
    """Yield the paths that would need objects, or a reference, which are no longer there after a move.

    Args:
        store: Holds the trees.
        now: Digest of the tree that is there.
        end: Digest of the tree that the move leads to.
        targets: What it puts at each path that it changes; None for nothing.
    """
    reader, removed = TreeReader(store), dict[TreePath, set[str]]()
    for path, target in targets.items():
        if target is None and "objects" in path[:-2]:
            at = len(path) - 1 - path[::-1].index("objects")
            names = removed.setdefault(path[:at], set())
            if at == len(path) - 3 and _LOOSE_NAME.fullmatch(name := path[-2] + path[-1]):
                names.add(name)
        elif target is None and "refs" in path[:-1]:
            removed.setdefault(path[: path.index("refs")], set())
        elif path[-1] == _PACKED_REFERENCES:
            removed.setdefault(path[:-1], set())
    repositories = [folder for folder in removed if reader.lookup(now, (*folder, "HEAD")) is not None]
    for number, folder in enumerate(repositories):
        repository = _Repository(store, reader, folder, (now, end), targets, removed=removed[folder])
        if number >= _MOST_REPOSITORIES:
            repository.left_bytes = 0  # whatever would have to be followed is in doubt
        yield from repository.find_needing()


class _Repository:
    """One repository that loses objects.

    Attributes:
        left_bytes: How many bytes of objects may still be read.
    """

    def __init__(
        self,
        store: Store,
        reader: TreeReader,
        folder: TreePath,
        trees: tuple[str, str],
        targets: _Targets,
        *,
        removed: AbstractSet[str],
    ) -> None:
        """Prepare to look for conflicts.

        Args:
            store: Holds the trees.
            reader: Reads them.
            folder: The repository: the folder in which `objects` and `refs` are.
            trees: Digests of the tree that is there, and of the one that the move leads to.
            targets: What it puts at each path that it changes; None for nothing.
            removed: Objects of which it removes the single file.
        """
        self._store, self._reader, self._folder, self._targets = store, reader, folder, targets
        self._now, self._end = trees
        self._objects = (*folder, "objects")
        self._removed = removed
        self._known: set[str] = set()
        """Objects that need nothing that is removed, nor does what they lead to."""
        self._removed_packs: list[PackIndex] | None = None
        self._other_packs: list[PackIndex] | None = None
        self._new_packs: list[PackIndex] | None = None
        self._packed_names: frozenset[bytes] | None = None
        self.left_bytes = _MOST_BYTES

    def find_needing(self) -> Iterator[TreePath]:
        """Yield what needs what is removed."""
        for below, node in self._list_changed():
            path = (*self._folder, *below)
            if node.kind == "folder" or path in self._targets or not _keeps_objects(below):
                continue
            try:
                is_needing = not node.is_file or self._is_needing(below, self._read(node))
            except (WorkspaceError, ValueError, IndexError, zlib.error, _TooMuch):
                is_needing = True
            if is_needing:
                yield path

    def _list_changed(self) -> Iterator[tuple[TreePath, Node]]:
        """Yield what is there now and not as the move leads to, but for objects."""
        end, now = (
            self._reader.of(self._reader.lookup(tree, self._folder)) for tree in (self._end, self._now)
        )
        for name, node in now.items():
            before = end.get(name)
            if node == before:
                continue
            if name == "objects":
                yield from self._list_computed()
                continue
            if node.kind != "folder":
                yield (name,), node
            elif before is not None and before.kind == "folder":
                changes = self._reader.differences(before.content, node.content)
                yield from (((name, *path), new) for path, (_, new) in changes.items() if new is not None)
            else:
                yield from (((name, *path), new) for path, new in self._reader.entries(node.content))

    def _list_computed(self) -> Iterator[tuple[TreePath, Node]]:
        for below in _COMPUTED:
            path = (*self._folder, *below)
            end, now = (self._reader.lookup(tree, path) for tree in (self._end, self._now))
            if now is not None and now != end:
                yield below, now

    def _is_needing(self, below: TreePath, data: bytes) -> bool:
        if below in _COMPUTED:
            return self._lists_removed(data)
        if below == ("index",) or (below[0] == "worktrees" and below[2:] == ("index",)):
            # All of them are files' contents, which lead to nothing further.
            return any(map(self._is_lost, list_objects(data)))
        if data.startswith(_SYMBOLIC):
            name = tuple(data[len(_SYMBOLIC) :].decode("utf-8", "surrogateescape").strip().split("/"))
            return self._loses_reference(name)
        return self._leads_to_lost([found.decode("ascii") for found in _OBJECT_ID.findall(data)])

    def _loses_reference(self, name: TreePath) -> bool:
        """Return whether a reference is there now, and not after the move."""
        path, packed = (*self._folder, *name), (*self._folder, _PACKED_REFERENCES)
        now, packed_now = (self._reader.lookup(self._now, one) for one in (path, packed))
        line_end = b" " + os.fsencode("/".join(name))

        def is_there(single: Node | None, together: Node | None) -> bool:
            if single is not None:
                return True
            lines = self._read(together).splitlines() if together is not None else []
            return any(line.endswith(line_end) for line in lines)

        if not is_there(now, packed_now):
            return False
        return not is_there(self._targets.get(path, now), self._targets.get(packed, packed_now))

    def _lists_removed(self, data: bytes) -> bool:
        """Return whether a file that git computes lists an object or a pack that is removed."""
        packs = self._list_removed_packs()
        if len(self._removed) + sum(map(len, packs)) > _MOST_OBJECTS:
            raise _TooMuch
        pack_folder = (*self._objects, "pack")
        gone = (path[-1] for path, node in self._targets.items() if node is None and path[:-1] == pack_folder)
        if any(os.fsencode(name) in data for name in gone):
            return True
        names = {*map(bytes.fromhex, self._removed), *itertools.chain.from_iterable(packs)}
        if len(names) * len(data) > _MOST_COMPARED_BYTES:
            raise _TooMuch
        return any(name in data and self._is_lost(name.hex()) for name in names)

    def _leads_to_lost(self, wanted: list[str]) -> bool:
        """Return whether any of some objects is removed by the move, or leads to one that is."""
        seen: set[str] = set()
        while wanted:
            name = wanted.pop()
            if name in seen or name in self._known:
                continue
            seen.add(name)
            if len(seen) > _MOST_OBJECTS:
                raise _TooMuch
            if self._is_lost(name):
                return True
            path = self._loose(name)
            node = self._reader.lookup(self._now, path)
            if node is None and self._is_in_new_pack(name):
                raise _TooMuch  # nothing in it is followed
            # What an object leads to that the move leads to anyway was there with it.
            if node is not None and self._reader.lookup(self._end, path) is None:
                wanted += self._read_links(node, len(name)) - seen - self._known
        self._known |= seen
        return False

    def _is_lost(self, name: str) -> bool:
        """Return whether an object is there now, and not after the move."""
        if name not in self._removed and not self._is_in_removed_pack(name):
            return False
        path = self._loose(name)
        if self._targets.get(path, self._reader.lookup(self._now, path)) is not None:
            return False
        if self._other_packs is None:
            self._other_packs = self._read_packs(removed=False)
        return not any(name in pack for pack in self._other_packs)

    def _is_in_removed_pack(self, name: str) -> bool:
        if self._packed_names is None:
            packs = self._list_removed_packs()
            if sum(map(len, packs)) > _MOST_PACKED_NAMES:
                raise _TooMuch
            self._packed_names = frozenset(itertools.chain.from_iterable(packs))
        return bytes.fromhex(name) in self._packed_names

    def _is_in_new_pack(self, name: str) -> bool:
        """Return whether an object is in a pack that somebody else has added."""
        if self._new_packs is None:
            self._new_packs = self._read_packs(removed=False, is_new=True)
        return any(name in pack for pack in self._new_packs)

    def _list_removed_packs(self) -> list[PackIndex]:
        if self._removed_packs is None:
            self._removed_packs = self._read_packs(removed=True)
        return self._removed_packs

    def _loose(self, name: str) -> TreePath:
        return (*self._objects, name[:2], name[2:])

    def _read_packs(self, *, removed: bool, is_new: bool = False) -> list[PackIndex]:
        """Return the indexes of the packs that the move removes, or of those that are there after it.

        Args:
            removed: Which of them.
            is_new: Leave those out that the move leads to.

        Raises:
            ValueError: If one cannot be read.
            WorkspaceError: If one is not stored.
        """
        folder = (*self._objects, "pack")
        names = {*self._reader.of(self._reader.lookup(self._now, folder))}
        names |= {path[-1] for path in self._targets if path[:-1] == folder}
        packs: list[PackIndex] = []
        for name in sorted(names):
            path = (*folder, name)
            now = self._reader.lookup(self._now, path)
            after = self._targets.get(path, now)
            node = now if removed else after
            if is_new and (path in self._targets or self._reader.lookup(self._end, path) is not None):
                continue
            if name.endswith(".idx") and node is not None and removed == (after is None):
                if len(packs) >= _MOST_PACKS:
                    raise _TooMuch
                if not node.is_file:
                    raise ValueError("the index of a pack that cannot be read")
                packs.append(PackIndex(self._store.get(node.content)))
        return packs

    def _read(self, node: Node) -> bytes:
        if node.size > _MOST_BYTES:
            raise _TooMuch
        return self._store.get(node.content)

    def _read_links(self, node: Node, length: int) -> set[str]:
        """Return the objects that a loose one leads to.

        Raises:
            ValueError: If it cannot be read.
            zlib.error: The same.
            WorkspaceError: If it is not stored.
        """
        if node.kind == "unkept" or node.size > _MOST_BYTES:
            return set()  # no commit is as large, and no tree of any use: it is the content of a file
        if not node.is_file:
            raise ValueError("no file")
        inflating, packed = zlib.decompressobj(), self._store.get(node.content)
        header, is_header, body = inflating.decompress(packed, 64).partition(b"\0")
        kind = header.partition(b" ")[0]
        if not is_header or kind not in {b"blob", b"commit", b"tag", b"tree"}:
            raise ValueError("no object")
        if kind == b"blob":
            return set()
        body += inflating.decompress(inflating.unconsumed_tail, self.left_bytes + 1)
        self.left_bytes -= len(body)
        if self.left_bytes <= 0:
            raise _TooMuch
        if kind == b"tree":
            return _entries_of(body, length // 2)
        found = _REACHABLE.findall(body.partition(b"\n\n")[0] + b"\n")
        return {one.decode("ascii") for one in found}


def _entries_of(tree: bytes, size: int) -> set[str]:
    """Return the objects of a tree, but for commits of other repositories."""
    at, found = 0, set[str]()
    while at < len(tree):
        end = tree.index(b"\0", at) + 1
        if not tree.startswith(b"160000 ", at):
            found.add(tree[end : end + size].hex())
        at = end + size
        if len(found) > _MOST_OBJECTS:
            raise _TooMuch
    return found


def _keeps_objects(below: TreePath) -> bool:
    """Return whether a path below the folder of a repository is one that keeps objects alive."""
    if below[0] == "worktrees":
        below = below[2:]
    if not below:
        return False
    if len(below) == 1:
        name = below[0]
        return name in {"index", _PACKED_REFERENCES} or (name.endswith("HEAD") and name not in _PASSING)
    return below in _COMPUTED or below[0] == "refs" or below == ("logs", "refs", "stash")
