"""What changed between two states of a workspace, with diffs made by the host. The texts are untrusted."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from aisotools.checkpoint_store import Store
from aisotools.checkpoint_tree import Change as NodeChange
from aisotools.checkpoint_tree import Lists, Node, Path
from aisotools.exceptions import WorkspaceError
from aisotools.paths import printable

MAX_DIFFS = 50
"""How many files are shown with a diff; of the others only the names are."""

_MAX_BYTES = 200_000
_MAX_LINES = 4_000

ChangeKind = Literal["added", "changed", "removed", "moved"]
"""What happened to a path."""

_SIGNS: dict[ChangeKind, str] = {"added": "+", "changed": "~", "removed": "-", "moved": ">"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happened to one path.

    Attributes:
        path: Relative to the workspace, with control characters escaped.
        kind: What happened.
        was: Where it was before, if it was moved.
        what: `file`, `folder`, `link`, or another kind of thing.
        diff: Unified diff of a text file, untrusted; empty where there is none.
        note: Why there is no diff, or what else there is to say.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """All that changed between two states of a workspace; true if anything did.

    Attributes:
        every: The changes, by path.
        uncovered: What is not covered, in words.
    """

    every: tuple[Change, ...] = ()
    uncovered: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.every)

    def __len__(self) -> int:
        return len(self.every)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.every)

    def __str__(self) -> str:
        lines = [self.headline, *map(str, self.every), *(f"! not covered: {one}" for one in self.uncovered)]
        diffs = [change.diff for change in self.every if change.diff]
        return "\n".join(lines) + "".join(f"\n\n{diff.rstrip()}" for diff in diffs)

    @property
    def headline(self) -> str:
        """How much changed, in a few words."""
        kinds: tuple[ChangeKind, ...] = ("added", "changed", "removed", "moved")
        counts = [f"{len(self._of(kind))} {kind}" for kind in kinds if self._of(kind)]
        return ", ".join(counts) or "Nothing changed."

    @property
    def added(self) -> tuple[str, ...]:
        """Paths that are new."""
        return self._of("added")

    @property
    def changed(self) -> tuple[str, ...]:
        """Paths whose content, kind or mode is another."""
        return self._of("changed")

    @property
    def removed(self) -> tuple[str, ...]:
        """Paths that are gone."""
        return self._of("removed")

    @property
    def moved(self) -> tuple[tuple[str, str], ...]:
        """Files that are elsewhere: from, to."""
        return tuple((change.was, change.path) for change in self.every if change.kind == "moved")

    def _of(self, kind: ChangeKind) -> tuple[str, ...]:
        return tuple(change.path for change in self.every if change.kind == kind)


def changes_between(store: Store, before: str, after: str, uncovered: tuple[str, ...] = ()) -> Changes:
    """What changed from one tree to another.

    Raises:
        WorkspaceError: If one of them is not kept any more.
    """
    found = Lists(store).differences(before, after)
    moved = _moves(found)
    sources = set(moved.values())
    every = []
    diffs = 0
    for path, (was, now) in sorted(found.items()):
        if path in sources:
            continue
        if path in moved:
            every.append(Change(path=_text(path), kind="moved", was=_text(moved[path])))
            continue
        diff, told = "", _note(was, now)
        if told is None and diffs < MAX_DIFFS:
            diff, told = _diff(store, path, was, now)
            diffs += 1
        note = "there are too many diffs to show all" if told is None else told
        kind: ChangeKind = "added" if was is None else "removed" if now is None else "changed"
        what = (now or was or Node("file")).kind
        every.append(Change(path=_text(path), kind=kind, what=_WHAT.get(what, what), diff=diff, note=note))
    return Changes(every=tuple(every), uncovered=uncovered)


_WHAT = {"other": "special file", "unkept": "not kept", "fifo": "FIFO"}


def _text(path: Path) -> str:
    return printable("/".join(path))


def _moves(found: dict[Path, NodeChange]) -> dict[Path, Path]:
    """Files that are new somewhere and gone elsewhere with the same content: new path to old."""
    gone: dict[tuple[str, int], list[Path]] = {}
    for path, (was, now) in found.items():
        if was is not None and now is None and was.kind == "file" and was.size:
            gone.setdefault((was.content, was.size), []).append(path)
    moved = {}
    for path, (was, now) in found.items():
        if was is None and now is not None and now.kind == "file":
            sources = gone.get((now.content, now.size))
            if sources:
                moved[path] = sources.pop(0)
    return moved


def _note(was: Node | None, now: Node | None) -> str | None:
    """What there is to say of a change that has no diff; None for one that should have a diff."""
    if was is not None and now is not None:
        if was.kind != now.kind:
            return f"{_WHAT.get(was.kind, was.kind)} before, {_WHAT.get(now.kind, now.kind)} now"
        if was.content == now.content:
            return f"mode {was.mode:04o} before, {now.mode:04o} now"
    nodes = [node for node in (was, now) if node is not None]
    if any(node.kind == "unkept" for node in nodes):
        return next(node.why_unkept for node in nodes if node.kind == "unkept")
    if nodes[-1].kind == "link":
        return "to " + " instead of ".join(repr(printable(node.content)) for node in nodes[::-1])
    if any(node.kind != "file" for node in nodes):
        return ""
    if sum(node.size for node in nodes) > _MAX_BYTES:
        return f"{nodes[-1].size:,} bytes, too large for a diff"
    return None


def _diff(store: Store, path: Path, was: Node | None, now: Node | None) -> tuple[str, str]:
    """Unified diff of two text files, or why there is none."""
    try:
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
