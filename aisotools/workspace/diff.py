"""Changes between two trees of a workspace, and unified diffs of texts in bounded time.

Diffs are computed by the host. The texts in them are untrusted.
"""

from __future__ import annotations

import difflib
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import AnyStr, Literal, NamedTuple, overload

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import Node, NodeChange, TreePath, TreeReader, link_target
from aisotools.workspace.paths import printable

MAX_DIFFS = 50
"""Files with a diff; of the others only the names are listed."""

_MAX_BYTES = 200_000  # of both versions together
_MAX_LINES = 4_000  # the same
_TARGET_BYTES = 1 << 20  # memory for the targets of links in the notes; beyond it a note is without them

ChangeKind = Literal["added", "changed", "removed", "moved"]
"""Change of a path."""

_SIGNS: dict[ChangeKind, str] = {"added": "+", "changed": "~", "removed": "-", "moved": ">"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PathChange:
    """Change of one path.

    Attributes:
        path: Relative to the workspace, with control characters escaped.
        kind: The change.
        was: Path before, if it was moved.
        what: `file`, `folder`, `link`, or another kind.
        diff: Unified diff of a text file, untrusted; may be empty.
        note: Why there is no diff, or a further remark.
    """

    path: str
    kind: ChangeKind
    was: str = ""
    what: str = "file"
    diff: str = ""
    note: str = ""

    def __str__(self) -> str:
        where = f"{self.was} -> {self.path}" if self.was else self.path
        about = "" if self.what == "file" else f" ({self.what})"
        return f"{_SIGNS[self.kind]} {where}{about}" + (f": {self.note}" if self.note else "")


_Place = tuple["_Place | None", str]
"""A path: the place of the folder around it, shared by all that it holds, and the last name as it is."""


class _Entry(NamedTuple):
    """A change as it is kept: for a path of 4 KiB its text would take up to 16 KiB."""

    place: _Place
    kind: ChangeKind
    was: _Place | None = None
    what: str = "file"
    diff: str = ""
    note: str = ""


class _ChangeList(Sequence[PathChange]):
    """Changes whose texts are made when they are read. Hostile code can make paths as long as it likes."""

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> PathChange: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[PathChange]: ...

    def __getitem__(self, index: int | slice) -> PathChange | Sequence[PathChange]:
        if isinstance(index, slice):
            return _ChangeList(self._entries[index])
        place, kind, was, what, diff, note = self._entries[index]
        before = "" if was is None else _place_text(was)
        return PathChange(path=_place_text(place), kind=kind, was=before, what=what, diff=diff, note=note)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(one == another for one, another in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def kinds(self) -> Iterator[ChangeKind]:
        """Yield the kind of each change."""
        return (entry.kind for entry in self._entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes between two states of a workspace, as a sequence.

    The text of a path is made when it is read, and not kept: all of them at once, as `added` returns them,
    take as much memory as the paths are long.

    Attributes:
        every: Changes sorted by path.
        uncovered: Descriptions of what is not covered.
        reach: How far undo reaches back, in a sentence.
        since: With which state the workspace is compared, in a sentence, if it is not the one from before the
            session's first call, or before the call that was named.
    """

    every: Sequence[PathChange] = ()
    uncovered: tuple[str, ...] = ()
    reach: str = ""
    since: str = ""

    def __bool__(self) -> bool:
        return bool(self.every)

    def __len__(self) -> int:
        return len(self.every)

    def __iter__(self) -> Iterator[PathChange]:
        return iter(self.every)

    def __str__(self) -> str:
        lines = [self.headline, *map(str, self.every), *(f"! not covered: {one}" for one in self.uncovered)]
        lines += [sentence for sentence in (self.since, self.reach) if sentence]
        diffs = [change.diff for change in self.every if change.diff]
        return "\n".join(lines) + "".join(f"\n\n{diff.rstrip()}" for diff in diffs)

    @property
    def headline(self) -> str:
        """Number of changes of each kind, in words."""
        counts = Counter(self._kinds())
        kinds: tuple[ChangeKind, ...] = ("added", "changed", "removed", "moved")
        return ", ".join(f"{counts[kind]} {kind}" for kind in kinds if counts[kind]) or "Nothing changed."

    @property
    def added(self) -> tuple[str, ...]:
        """Paths that are new."""
        return self._of("added")

    @property
    def changed(self) -> tuple[str, ...]:
        """Paths whose content, kind or mode differs."""
        return self._of("changed")

    @property
    def removed(self) -> tuple[str, ...]:
        """Paths that are gone."""
        return self._of("removed")

    @property
    def moved(self) -> tuple[tuple[str, str], ...]:
        """Moved files: path before, path after."""
        return tuple((change.was, change.path) for change in self.every if change.kind == "moved")

    def _of(self, kind: ChangeKind) -> tuple[str, ...]:
        kinds = zip(range(len(self.every)), self._kinds(), strict=True)
        return tuple(self.every[place].path for place, one in kinds if one == kind)

    def _kinds(self) -> Iterable[ChangeKind]:
        every = self.every
        return every.kinds() if isinstance(every, _ChangeList) else (change.kind for change in every)


def changes_between(store: Store, before: str, after: str, uncovered: tuple[str, ...] = ()) -> Changes:
    """Return the changes from one tree to another.

    Raises:
        WorkspaceError: If one of them is no longer stored.
    """
    found = TreeReader(store).differences(before, after)
    moved = _moves(found)
    sources = set(moved.values())
    places = dict(zip(found, _iterate_places(found), strict=True))
    entries: list[_Entry] = []
    diffs, target_bytes = 0, _TARGET_BYTES
    for path, (was, now) in found.items():
        if path in sources or _is_unchanged(was, now):
            continue
        if path in moved:
            entries.append(_Entry(places[path], "moved", places[moved[path]]))
            continue
        diff, note = "", _note(was, now)
        if note is None and diffs < MAX_DIFFS:
            diff, note = _diff(store, path, was, now)
            diffs += 1
        elif note is None:
            note = "there are too many diffs to show all"
        elif (now or was or Node("file")).is_link:
            target_bytes -= sys.getsizeof(note)
            note = note if target_bytes >= 0 else "there are too many targets to show all"
        kind: ChangeKind = "added" if was is None else "removed" if now is None else "changed"
        what = (now or was or Node("file")).kind
        entries.append(_Entry(places[path], kind, None, _WHAT.get(what, what), diff, note))
    return Changes(every=_ChangeList(entries), uncovered=uncovered)


def _iterate_places(paths: Iterable[TreePath]) -> Iterator[_Place]:
    """Yield the place of each path. What follows in the same folder shares the place of that."""
    folder: TreePath = ()
    around: list[_Place] = []
    for path in paths:
        same, _ = count_equal_ends(folder, path[:-1])
        del around[same:]
        folder = path[:-1]
        for name in folder[same:]:
            around.append((around[-1] if around else None, name))
        yield (around[-1] if around else None), path[-1]


def _place_text(place: _Place) -> str:
    """Return a path for a person."""
    names: list[str] = []
    around: _Place | None = place
    while around is not None:
        around, name = around
        names.append(name)
    return printable("/".join(names[::-1]))


def _is_unchanged(was: Node | None, now: Node | None) -> bool:
    """Return whether only the time of an entry differs, or which other names it has."""
    if was is None or now is None:
        return False
    return was._replace(mtime_ns=now.mtime_ns, link=now.link) == now


_WHAT = {"long_link": "link", "other": "special file", "unkept": "not kept", "fifo": "FIFO"}


def _text(path: TreePath) -> str:
    return printable("/".join(path))


def _moves(found: dict[TreePath, NodeChange]) -> dict[TreePath, TreePath]:
    """Pair added with removed files of the same content: new path to old path."""
    gone: dict[tuple[str, int], deque[TreePath]] = {}
    for path, (was, now) in found.items():
        if was is not None and now is None and was.kind == "file" and was.size:
            gone.setdefault((was.content, was.size), deque()).append(path)
    moved = {}
    for path, (was, now) in found.items():
        if was is None and now is not None and now.kind == "file":
            sources = gone.get((now.content, now.size))
            if sources:
                moved[path] = sources.popleft()
    return moved


def _note(was: Node | None, now: Node | None) -> str | None:
    """Return the note of a change without a diff; None for a change that should have one."""
    if was is not None and now is not None:
        if was.kind != now.kind and not (was.is_link and now.is_link):
            return f"{_WHAT.get(was.kind, was.kind)} before, {_WHAT.get(now.kind, now.kind)} now"
        if was.content == now.content:
            return _describe_attributes(was, now)
    nodes = [node for node in (was, now) if node is not None]
    if any(node.kind == "unkept" for node in nodes):
        return next(node.why_unkept for node in nodes if node.kind == "unkept")
    if nodes[-1].is_link:
        if any(node.kind == "long_link" for node in nodes):
            return None
        return _describe_targets([node.content for node in nodes])
    if any(node.kind != "file" for node in nodes):
        return ""
    if sum(node.size for node in nodes) > _MAX_BYTES:
        return f"{nodes[-1].size:,} bytes, too large for a diff"
    return None


def _describe_attributes(was: Node, now: Node) -> str:
    """Return the note of an entry of which only attributes differ."""
    notes = [f"mode {was.mode:04o} before, {now.mode:04o} now"] if was.mode != now.mode else []
    if was.mtime_ns is not None and now.mtime_ns is not None:
        if was.owner != now.owner:
            notes.append("another owner")
        if was.xattrs != now.xattrs:
            notes.append("other extended attributes")
        if (was.link is None) != (now.link is None) or (not notes and was.mtime_ns == now.mtime_ns):
            notes.append("other hard links")
    return "; ".join(notes) or "the same content, written at another time"


def _describe_targets(targets: Sequence[str]) -> str:
    """Return the note of a link that had these targets one after the other."""
    return "to " + " instead of ".join(repr(printable(target)) for target in targets[::-1])


def _diff(store: Store, path: TreePath, was: Node | None, now: Node | None) -> tuple[str, str]:
    """Return the unified diff of two text files, and a note if there is none, as for two links."""
    try:
        nodes = [node for node in (was, now) if node is not None]
        if nodes[-1].is_link:
            return "", _describe_targets([link_target(node, store) for node in nodes])
        texts = [store.get(node.content).decode() if node is not None else "" for node in (was, now)]
    except UnicodeDecodeError:
        return "", "binary"
    except WorkspaceError as error:
        return "", str(error)
    if any("\0" in text for text in texts):
        return "", "binary"
    left, right = map(_lines, texts)
    if len(left) + len(right) > _MAX_LINES:
        return "", f"{len(right):,} lines, too many for a diff"
    name = _text(path)
    old, new = ("/dev/null" if was is None else f"a/{name}"), ("/dev/null" if now is None else f"b/{name}")
    return "\n".join(difflib.unified_diff(left, right, old, new, lineterm="")) + "\n", ""


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1]:
        lines[-1] += "\n\\ No newline at end of file"
        return lines
    return lines[:-1]


MAX_COMPARED_LINES = 2_000
"""Lines that are matched with each other; larger differences are shown as one block."""

CONTEXT = 3
"""Unchanged lines around a change."""


def unified(before: str, after: str, old_name: str, new_name: str) -> str:
    r"""Return a unified diff; empty if the texts are equal. Only `\\n` ends a line."""
    if before == after:
        return ""
    old, new = before.split("\n"), after.split("\n")
    head, tail = count_equal_ends(old, new)
    start = max(0, head - CONTEXT)
    old_end, new_end = len(old) - max(0, tail - CONTEXT), len(new) - max(0, tail - CONTEXT)
    if max(old_end, new_end) - start > MAX_COMPARED_LINES:
        rows = _block(old, new, head, tail)
    else:
        rows = [
            row if not row.startswith("@@") else _move_header(row, start)
            for row in list(
                difflib.unified_diff(old[start:old_end], new[start:new_end], n=CONTEXT, lineterm="")
            )[2:]
        ]
    return "\n".join([f"--- {old_name}", f"+++ {new_name}", *rows])


def count_equal_ends(before: Sequence[AnyStr], after: Sequence[AnyStr]) -> tuple[int, int]:
    """Return how many lines are equal at the beginning of two texts, and how many more at the end."""
    shorter = min(len(before), len(after))
    head = next((n for n in range(shorter) if before[n] != after[n]), shorter)
    rest = shorter - head
    tail = next((n for n in range(rest) if before[-1 - n] != after[-1 - n]), rest)
    return head, tail


def _block(old: list[str], new: list[str], head: int, tail: int) -> list[str]:
    gone, come = old[head : len(old) - tail], new[head : len(new) - tail]
    title = f"@@ -{head + 1},{len(gone)} +{head + 1},{len(come)} @@"
    return [title, *(f"-{line}" for line in gone), *(f"+{line}" for line in come)]


def _move_header(title: str, by: int) -> str:
    """Return a hunk header with line numbers that count from the beginning of the text."""
    _, old, new, _ = title.split(" ")
    return f"@@ -{_shift_span(old[1:], by)} +{_shift_span(new[1:], by)} @@"


def _shift_span(span: str, by: int) -> str:
    first, comma, count = span.partition(",")
    return f"{int(first) + by}{comma}{count}"


def counts(diff: str) -> tuple[int, int]:
    """Return how many lines a diff of `unified` adds and removes."""
    rows = diff.split("\n")[2:]
    return sum(row.startswith("+") for row in rows), sum(row.startswith("-") for row in rows)
