"""Whose changes they are that happened during a call: the call's, somebody else's, or nobody can tell.

Threat
    A person saves a file while a call runs: an undo of the call would revert that as if the call had done it.
    Or code in the sandbox wants a change of its own to outlast the undo, and makes it look like a person's.
Mechanism
    A change is the call's unless there is evidence of another writer. There are two kinds of it.
    Built-in file tools name what they change. What else has changed is certainly not theirs as long as no
    code or program of a call has ever run beside them in the sandboxes of the workspace: an undo leaves it,
    and says so. Once one has run, the worker may be deceived, or something may have been left running, and
    such a change may be the sandbox's after all.
    Of other calls, the host looks now and then whether any thread of the sandbox has run since the look
    before. The kernel says so, and sets the change time of files; a program can choose neither. A file that
    was last changed while none of them ran has another writer, but the call may have changed it before.
    In both cases in which the call may have a part in the change, it is a conflict: an undo changes nothing,
    names it, and takes it back only by force. So a worker can at most have an undo refused, by name; it
    cannot have one pass over a change of its own.
Race window
    A person's change while something of the sandbox runs, or within a tenth of a second or so of that, has no
    evidence: it counts as the call's, and the result of a call that took long enough names it. So does one of
    a file that a file tool edits; what one writes as a whole is compared with what is there after the call.
    What a person has removed is judged by the time of the folder. Below level `confined`, code in a sandbox
    may have a service outside write for it: that is somebody else.
When it fails
    Too many processes or paths, a file system without exact times, calls that overlap, or a host that ended
    before the call did: no evidence, and every change is the call's.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from aisotools.workspace.checkpoints.tree import (
    ContentStore,
    Node,
    TreePath,
    decode_folder,
    open_below,
)
from aisotools.workspace.workspace import TEMPORARY

MOST_PATHS = 1_000
"""Changed paths of a call that are judged; with more there is no evidence."""

Author = Literal["call", "others", "unclear"]
"""Whose a change is. `unclear`: somebody else has written there, and the call may have as well."""

TimeSpan = tuple[int, int]
"""Begin and end, in nanoseconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorship:
    """What is known about the writers of a step. Without anything every change is the call's.

    Attributes:
        named: Paths that the call changes, with all below them; None if its tool does not say.
        is_certain: Whether whatever else has changed is certainly not the sandbox's.
        seen: Paths that were last changed while nothing of the sandbox ran.
    """

    named: frozenset[TreePath] | None = None
    is_certain: bool = False
    seen: frozenset[TreePath] = frozenset()

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Authorship:
        """Return what the record of the end of a step says."""
        named = record.get("named")
        if named is None and not record.get("seen"):
            return UNKNOWN
        return cls(
            named=None if named is None else frozenset(map(tuple, named)),
            is_certain=record.get("certain") is True,
            seen=frozenset(map(tuple, record.get("seen", ()))),
        )

    def record(self) -> dict[str, Any]:
        """Return what the record of the end of a step says of it."""
        record: dict[str, Any] = {}
        if self.named is not None:
            record |= {"named": sorted(map(list, self.named)), "certain": self.is_certain}
        if self.seen:
            record["seen"] = sorted(map(list, self.seen))
        return record

    def author_of(self, path: TreePath) -> Author:
        """Return whose change it is at a path that has changed during the call."""
        if path in self.seen:
            return "unclear"
        if self.named is None or (path[-1:] and path[-1].startswith(TEMPORARY)):
            return "call"
        # A folder above what is named is made for it.
        if any(path[: len(one)] == one or one[: len(path)] == path for one in self.named):
            return "call"
        return "others" if self.is_certain else "unclear"


UNKNOWN = Authorship()
"""Every change is the call's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a host knows about the writers during a call, before it looks at what has changed.

    Attributes:
        authorship: What the tool says of its changes.
        idle: When nothing of the sandbox ran.
        contents: Digests of what the tool has written as a whole, by path: what is there now and is something
            else was changed after that.
    """

    authorship: Authorship = UNKNOWN
    idle: Sequence[TimeSpan] = ()
    contents: Mapping[TreePath, str] = field(default_factory=dict)


NO_EVIDENCE = Evidence()
"""Nothing is known."""


def parse_names(paths: Iterable[str]) -> frozenset[TreePath] | None:
    """Return paths relative to the workspace as those of a tree; None if one of them is not below it."""
    found: set[TreePath] = set()
    for path in paths:
        parts = tuple(part for part in path.split("/") if part not in {"", "."})
        if path.startswith("/") or ".." in parts:
            return None
        found.add(parts)
    return frozenset(found)


# ---- what has changed


def changed_paths(store: ContentStore, before: str, after: str, most: int = MOST_PATHS) -> list[TreePath]:
    """Return the paths at which two trees differ, folders before their entries: up to one more than `most`.

    Only those parts of the listings are decoded that differ: a call changes a file or two of many.

    Raises:
        WorkspaceError: If a tree is not stored.
    """
    return [*changed_nodes(store, before, after, most)]


def changed_nodes(
    store: ContentStore, before: str, after: str, most: int = MOST_PATHS
) -> dict[TreePath, Node | None]:
    """Return what is in the second tree at each of the `changed_paths`; None for nothing.

    Raises:
        WorkspaceError: If a tree is not stored.
    """
    return dict(islice(_walk_changes(store, before, after), most + 1))


def _walk_changes(store: ContentStore, before: str, after: str) -> Iterator[tuple[TreePath, Node | None]]:
    todo: list[tuple[TreePath, str, str]] = [((), before, after)]
    while todo:
        path, before, after = todo.pop()
        left, right = _differing_entries(
            store.get(before) if before else b"", store.get(after) if after else b""
        )
        for name in sorted({*left, *right}):
            old, new = left.get(name), right.get(name)
            if old == new:
                continue
            inner = [
                node.content if node is not None and node.kind == "folder" else "" for node in (old, new)
            ]
            if not all(inner) or (old and old.mode) != (new and new.mode):
                yield (*path, name), new
            if inner[0] != inner[1]:
                todo.append(((*path, name), inner[0], inner[1]))


def _differing_entries(left: bytes, right: bytes) -> tuple[dict[str, Node], dict[str, Node]]:
    """Return the entries of each of two listings that are not in the other one."""
    # What is equal at the begin and at the end is cut off before anything is split: mostly that is all.
    shorter = min(len(left), len(right))
    same = _common_start(left, right, shorter)
    # An entry is a header and a name, and zero bytes are between all of them: two for each whole entry.
    start = left.rfind(b"\0", 0, same) + 1
    if left.count(b"\0", 0, start) % 2:
        start = left.rfind(b"\0", 0, start - 1) + 1
    same = _common_end(left, right, shorter - start)
    zeros = left.count(b"\0", len(left) - same)
    end = 0
    if zeros >= 2:
        at = left.find(b"\0", len(left) - same)
        end = len(left) - (left.find(b"\0", at + 1) if zeros % 2 else at)
    parts = [_split_entries(listing[start : len(listing) - end]) for listing in (left, right)]
    return _decode(parts[0] - parts[1]), _decode(parts[1] - parts[0])


def _split_entries(listing: bytes) -> set[tuple[bytes, bytes]]:
    pieces = listing.split(b"\0")
    return set(zip(pieces[::2], pieces[1::2], strict=False))


def _decode(entries: Iterable[tuple[bytes, bytes]]) -> dict[str, Node]:
    return decode_folder(b"\0".join(b"\0".join(entry) for entry in entries))


def _common_start(left: bytes, right: bytes, most: int) -> int:
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_end(left: bytes, right: bytes, most: int) -> int:
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if left[len(left) - middle : len(left) - low] == right[len(right) - middle : len(right) - low]:
            low = middle
        else:
            high = middle - 1
    return low


# ---- when it has changed


def find_seen(root: int, paths: Sequence[TreePath], spans: Collection[TimeSpan]) -> frozenset[TreePath]:
    """Return those of some changed paths that were last changed within one of the spans.

    Args:
        root: Descriptor of the workspace.
        paths: Paths that have changed. Of those that are gone, the folder counts.
        spans: When nothing of the sandbox ran.
    """
    seen: set[TreePath] = set()
    if not spans or len(paths) > MOST_PATHS:
        return frozenset()
    for path in paths:
        # Race: what is removed or replaced meanwhile has changed after the call, and its time is not needed.
        with suppress(OSError):
            folder = open_below(root, path[:-1])
            try:
                time_ns = _change_time(folder, path[-1])
            finally:
                os.close(folder)
            if any(begin < time_ns < end for begin, end in spans):
                seen.add(path)
    return frozenset(seen)


def _change_time(folder: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_ctime_ns
    except FileNotFoundError:
        return os.fstat(folder).st_ctime_ns
