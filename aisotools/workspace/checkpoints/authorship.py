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
    A program that computes all the time runs, but does not write: the kernel counts what system calls write,
    and lists what is mapped. A file of the workspace that got a new content while neither showed a writing of
    the sandbox has another writer as well. This is weaker, since a program can change a file in ways that
    are not counted. Then its own change is a conflict.
    In all cases in which the call may have a part in the change, it is a conflict: an undo changes nothing,
    names it, and takes it back only by force. So a worker can at most have an undo refused, by name; it
    cannot have one pass over a change of its own.
Race window
    A person's save while something of the sandbox writes, or within two tenths of a second or so of that, has
    no evidence, nor has a removal or a new name while something runs: it counts as the call's, and the result
    of a call that took long enough names it. So does one of
    a file that a file tool edits; what one writes as a whole is compared with what is there after the call.
    What a person has removed is judged by the time of the folder. Below level `confined`, code in a sandbox
    may have a service outside write for it: that is somebody else.
When it fails
    Too many processes or paths, a file system without exact times, a tool on the host that ran at the time,
    or a host that ended before the call did: no evidence, and every change is the call's. So it is for calls
    that overlap, unless all of them say what they write; but what one had changed when another began, and
    something changed after that, is a conflict.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

from aisotools.workspace.checkpoints.tree import (
    ContentStore,
    Node,
    TreePath,
    are_like_folders,
    decode_folder,
    explains_time,
    has_other_time,
    open_below,
)
from aisotools.workspace.workspace import TEMPORARY

MOST_PATHS = 1_000
"""Changed paths of a call that are judged; with more there is no evidence."""

# Bytes of two listings that are compared at once.
_FIRST_COMPARED = 64
_MOST_COMPARED = 1 << 20

Author = Literal["call", "others", "unclear"]
"""Whose a change is. `unclear`: somebody else has written there, and the call may have as well."""

TimeSpan = tuple[int, int]
"""Begin and end, in nanoseconds since the epoch."""


_Differences = Iterator[tuple[str, Node | None, Node | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorship:
    """What is known about the writers of a step. Without anything every change is the call's.

    Attributes:
        named: Paths that the call changes, with all below them; None if its tool does not say.
        beside: Paths that calls change which have run at the same time, and that this one does not.
        is_certain: Whether whatever else has changed is certainly not the sandbox's.
        seen: Paths that were last changed while nothing of the sandbox ran.
        visited: Folders of which the time alone has changed, likewise, and as it does when something is put
            into one and taken away again: an editor or git of a person has done that, and nothing is lost.
    """

    named: frozenset[TreePath] | None = None
    beside: frozenset[TreePath] = frozenset()
    is_certain: bool = False
    seen: frozenset[TreePath] = frozenset()
    visited: frozenset[TreePath] = frozenset()

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Authorship:
        """Return what the record of the end of a step says."""
        named = record.get("named")
        if named is None and not (record.get("seen") or record.get("visited")):
            return UNKNOWN
        return cls(
            named=None if named is None else frozenset(map(tuple, named)),
            beside=frozenset(map(tuple, record.get("beside", ()))),
            is_certain=record.get("certain") is True,
            seen=frozenset(map(tuple, record.get("seen", ()))),
            visited=frozenset(map(tuple, record.get("visited", ()))),
        )

    def record(self) -> dict[str, Any]:
        """Return what the record of the end of a step says of it."""
        record: dict[str, Any] = {}
        if self.named is not None:
            record |= {"named": sorted(map(list, self.named)), "certain": self.is_certain}
        if self.beside:
            record["beside"] = sorted(map(list, self.beside))
        if self.seen:
            record["seen"] = sorted(map(list, self.seen))
        if self.visited:
            record["visited"] = sorted(map(list, self.visited))
        return record

    def author_of(self, path: TreePath) -> Author:
        """Return whose change it is at a path that has changed during the call."""
        if path in self.seen:
            return "unclear"
        if path in self.visited:
            return "others"
        if self.named is None or (path[-1:] and path[-1].startswith(TEMPORARY)):
            return "call"
        if self.names(path):
            return "call"
        return "others" if self.is_certain or _is_named(path, self.beside) else "unclear"

    def names(self, path: TreePath) -> bool:
        """Return whether the call says that it changes this path."""
        return self.named is not None and _is_named(path, self.named)

    def together(self) -> Authorship:
        """Return what is known of this call and those that have run at the same time, as of one."""
        named = None if self.named is None else self.named | self.beside
        return replace(self, named=named, beside=frozenset())


def _is_named(path: TreePath, names: frozenset[TreePath]) -> bool:
    """Return whether a change at `path` comes with one of those that are named."""
    # A folder above what is named is made for it.
    return path in _with_parents(names) or any(path[:end] in names for end in range(len(path)))


@functools.lru_cache(maxsize=4)  # each path of a call is asked for
def _with_parents(paths: frozenset[TreePath]) -> frozenset[TreePath]:
    return frozenset(path[:end] for path in paths for end in range(len(path) + 1))


UNKNOWN = Authorship()
"""Every change is the call's."""


@dataclass(frozen=True, slots=True)
class JointAuthorship:
    """What is known about the writers of calls that overlapped, and that are undone or redone together.

    Attributes:
        parts: What is known of each call, with the paths that differ between its begin and its end.
        between: Paths that were neither as at the first begin nor as at the last end when another one began
            or ended. One call has changed them before and something after that, which no call names that ran
            then, and which may have been somebody else.
    """

    parts: tuple[tuple[Authorship, frozenset[TreePath]], ...]
    between: frozenset[TreePath] = frozenset()

    def author_of(self, path: TreePath) -> Author:
        """Return whose change it is at a path that differs between the first begin and the last end."""
        # None of them may have it: it changed in one and back, and was changed before in another.
        known = [authorship for authorship, changed in self.parts if path in changed]
        known = known or [authorship for authorship, _ in self.parts]
        authors = {authorship.author_of(path) for authorship in known}
        if authors == {"call", "others"} and all(
            authorship.author_of(path) == "call" or _is_named(path, authorship.beside) for authorship in known
        ):
            authors = {"call"}  # one of them names it, and the others have run beside that one
        return authors.pop() if len(authors) == 1 and path not in self.between else "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a host knows about the writers during a call, before it looks at what has changed.

    Attributes:
        authorship: What the tool says of its changes.
        idle: When nothing of the sandbox ran.
        unwritten: When nothing of it wrote into a file, as far as can be told.
        contents: Digests of what the call, and calls that overlap with it, write as a whole, by path: what is
            there now and is none of that was changed by somebody else.
    """

    authorship: Authorship = UNKNOWN
    idle: Sequence[TimeSpan] = ()
    unwritten: Sequence[TimeSpan] = ()
    contents: Mapping[TreePath, Collection[str]] = field(default_factory=dict)


NO_EVIDENCE = Evidence()
"""Nothing is known."""


def is_of_move(
    path: TreePath, current: Node | None, before: Node | None, placed: Mapping[TreePath, Node | None]
) -> bool:
    """Return whether what is at a path now is what a move has left there, and not somebody else.

    Args:
        path: The path.
        current: What is there now. Nothing may be: the move has failed before it had put something there.
        before: What was there before the move.
        placed: What the move has put where, or should have.
    """
    if current is None:
        return path in placed
    if path not in placed:
        return current.is_unlocked(before) and any(around[: len(path)] == path for around in placed)
    return current.has_same_content(placed[path]) or current.has_same_content(before)


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

    A folder of which the time has changed is one of them if no entry explains that; see `explains_time`.
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
    # Depth first: each folder that differs has a path to return, however many of them there are.
    stack: list[tuple[TreePath, _Differences]] = [((), _compare_listings(store, before, after))]
    while stack:
        path, differing = stack[-1]
        for name, old, new in differing:
            below = (*path, name)
            inner = [
                node.content if node is not None and node.kind == "folder" else "" for node in (old, new)
            ]
            if not are_like_folders(old, new) or _has_time_of_its_own(store, old, new):
                yield below, new
            if inner[0] != inner[1]:
                stack.append((below, _compare_listings(store, *inner)))
                break
        else:
            stack.pop()


def _has_time_of_its_own(store: ContentStore, before: Node | None, after: Node | None) -> bool:
    """Return whether the time of a folder has changed, and none of its entries with which it would."""
    if before is None or after is None or not has_other_time(before, after):
        return False
    differing = _compare_listings(store, before.content, after.content)
    return not any(explains_time(one, other) for _, one, other in differing)


def _compare_listings(store: ContentStore, before: str, after: str) -> _Differences:
    """Yield name, earlier and later node of the entries at which two listings differ, in their order.

    What is equal is compared as bytes and not decoded. A call changes a few of perhaps 100,000 entries, and
    whoever wants no more than some of the differences stops: no step takes longer than a comparison of a
    megabyte, so that another thread can go on.
    """
    # A zero byte after the last entry, too: then each entry ends with one, and has one in the middle.
    listings = (store.get(content) if content else b"" for content in (before, after))
    left, right = (listing + b"\0" if listing else b"" for listing in listings)
    at = other = 0
    while at < len(left) or other < len(right):
        equal = _whole_entries(left, at, _equal_length(left, at, right, other))
        at, other = at + equal, other + equal
        name, old, past = _entry_at(left, at)
        other_name, new, other_past = _entry_at(right, other)
        if old is None and new is None:
            return
        if new is None or (old is not None and name < other_name):
            yield name, old, None
            at = past
        elif old is None or other_name < name:
            yield other_name, None, new
            other = other_past
        else:
            yield name, old, new
            at, other = past, other_past


def _entry_at(listing: bytes, at: int) -> tuple[str, Node | None, int]:
    """Return name and node of the entry that begins there, and where the next one does; None at the end."""
    if at >= len(listing):
        return "", None, at
    end = listing.find(b"\0", listing.find(b"\0", at) + 1)
    ((name, node),) = decode_folder(listing[at:end]).items()
    return name, node, end + 1


def _whole_entries(listing: bytes, at: int, length: int) -> int:
    """Return how many of the bytes from there on belong to entries that are within them as a whole."""
    end = listing.rfind(b"\0", at, at + length) + 1
    if end and listing.count(b"\0", at, end) % 2:
        end = listing.rfind(b"\0", at, end - 1) + 1
    return max(end - at, 0)


def _equal_length(left: bytes, at: int, right: bytes, other: int) -> int:
    """Return how many bytes are equal from these places on."""
    most = min(len(left) - at, len(right) - other)
    equal, size = 0, _FIRST_COMPARED
    while equal < most:
        parts = (
            left[at + equal : min(at + equal + size, at + most)],
            right[other + equal : min(other + equal + size, other + most)],
        )
        if parts[0] != parts[1]:
            return equal + _common_start(*parts)
        equal += len(parts[0])
        size = min(2 * size, _MOST_COMPARED)
    return equal


def _common_start(left: bytes, right: bytes) -> int:
    low, high = 0, len(left)
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
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
    return _find_within(root, paths, spans, _change_time)


def find_visited(root: int, folders: Iterable[TreePath]) -> frozenset[TreePath]:
    """Return those of some folders that something was last put into or taken from: no time was set since.

    With that the kernel sets both times of a folder to the same. So does whoever sets the present time.

    Args:
        root: Descriptor of the workspace.
        folders: Paths of folders.
    """
    visited: set[TreePath] = set()
    for path in folders:
        # Race: one that is removed or replaced meanwhile has changed after the call.
        with suppress(OSError):
            folder = open_below(root, path)
            try:
                status = os.fstat(folder)
            finally:
                os.close(folder)
            if status.st_mtime_ns == status.st_ctime_ns:
                visited.add(path)
    return frozenset(visited)


def find_written(root: int, paths: Sequence[TreePath], spans: Collection[TimeSpan]) -> frozenset[TreePath]:
    """Return those of some files that were last written within one of the spans; see `find_seen`.

    Their name or mode may have been changed at any time. The time of the last writing can be set, too: that
    makes a conflict of a change at most.
    """
    return _find_within(root, paths, spans, _write_time)


def _find_within(
    root: int,
    paths: Sequence[TreePath],
    spans: Collection[TimeSpan],
    time_of: Callable[[int, str], int],
) -> frozenset[TreePath]:
    seen: set[TreePath] = set()
    if not spans or len(paths) > MOST_PATHS:
        return frozenset()
    for path in paths:
        # Race: what is removed or replaced meanwhile has changed after the call, and its time is not needed.
        with suppress(OSError):
            folder = open_below(root, path[:-1])
            try:
                time_ns = time_of(folder, path[-1])
            finally:
                os.close(folder)
            if any(begin < time_ns < end for begin, end in spans):
                seen.add(path)
    return frozenset(seen)


def _write_time(folder: int, name: str) -> int:
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns


def _change_time(folder: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_ctime_ns
    except FileNotFoundError:
        return os.fstat(folder).st_ctime_ns
