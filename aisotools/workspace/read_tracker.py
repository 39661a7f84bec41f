"""Read tracking: an edit of lines that were not read, or that changed since, is refused.

The host computes everything here from the workspace itself. Reports of a worker, such as what it read or a
file's digest, are not trusted.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from aisotools.core.exceptions import ToolError, WorkspaceError
from aisotools.core.types import Json
from aisotools.workspace.diff import count_equal_ends
from aisotools.workspace.paths import printable
from aisotools.workspace.workspace import Workspace

MAX_BYTES = 10 << 20
"""Largest file that is tracked; tools read and edit no larger ones."""

_DIGEST_CHARS = 32

Ranges = tuple[tuple[int, int], ...]
"""Inclusive ranges of line numbers from 1, sorted and disjoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTouch:
    """Lines or passages of an existing file that a call is about to change.

    With neither `texts` nor `lines` the whole file must have been read.

    Attributes:
        path: As in the arguments.
        texts: Passages that will be replaced, as the file has them.
        lines: Lines that will be replaced, first and last, from 1.
    """

    path: str
    texts: tuple[str, ...] = ()
    lines: Ranges = ()


@runtime_checkable
class SupportsTouches(Protocol):
    """A `Tool` whose calls change files that must have been read."""

    def touches(self, arguments: Mapping[str, Json]) -> Sequence[FileTouch]:
        """Return what a call with these arguments changes, without files that it creates."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Lines that were read of a file with this digest."""

    digest: str
    ranges: Ranges
    total: int

    @property
    def whole(self) -> bool:
        return self.total == 0 or self.ranges == ((1, self.total),)


def version_digest(data: bytes) -> str:
    """Return the digest that identifies a file's content."""
    # Most processors have instructions for SHA-256, so that it takes a fraction of the time of BLAKE2.
    return hashlib.sha256(data).hexdigest()[:_DIGEST_CHARS]


class ReadCache:
    """Lines that were read in one session, and those that are still in an agent's context."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._known: dict[str, _Known] = {}
        self._context: dict[str, dict[str, list[tuple[str, str, int, int]]]] = {}

    # ---- what was read

    def note_read(self, path: str, data: bytes, first_line: int = 1, last_line: int | None = None) -> None:
        """Record that lines of a file were read while it had the content `data`.

        Args:
            path: The file.
            data: Its whole content, as read by the host.
            first_line: The first line that was read, from 1.
            last_line: The last one; the end of the file without it.
        """
        total = _count_lines(data)
        last = total if last_line is None else min(last_line, total)
        key, digest = self._workspace.relative(path), version_digest(data)
        known = self._known.get(key)
        ranges = known.ranges if known is not None and known.digest == digest else ()
        if first_line <= last and (first_line, last) not in ranges:
            new = (first_line, last)
            ranges = _join([*ranges, new]) if ranges else (new,)
        self._known[key] = _Known(digest, ranges, total)

    def note_edit(self, path: str, before: bytes, after: bytes) -> None:
        """Record an edit. Lines that were written count as read, if `before` had been read."""
        key = self._workspace.relative(path)
        known = self._known.get(key)
        if known is None or known.digest != version_digest(before):
            return
        total = _count_lines(after)
        if known.whole:
            ranges: Ranges = ((1, total),) if total else ()
        else:
            ranges = _move_ranges(known.ranges, _lines(before), _lines(after))
        self._known[key] = _Known(version_digest(after), ranges, total)

    def note_same(self, path: str, other: str) -> None:
        """Record that what was read of the file `path` has been read of `other`, if that has its content."""
        known, data = self._known.get(self._workspace.relative(path)), self.content(other)
        if known is not None and data is not None and known.digest == version_digest(data):
            self._known[self._workspace.relative(other)] = known

    def check(self, touches: Iterable[FileTouch]) -> None:
        """Require that everything touched was read and has not changed since.

        Raises:
            ToolError: Naming the file, and saying what to read.
        """
        for touch in touches:
            data = self.content(touch.path)
            if data is not None:  # the tool itself refuses paths that are not files
                self._check(touch, data)

    def _check(self, touch: FileTouch, data: bytes) -> None:
        name = printable(touch.path)
        advice = "Read it with the tool file, operation 'read', then make the change again."
        known = self._known.get(self._workspace.relative(touch.path))
        if known is None:
            raise ToolError(f"{name!r} was not read in this session, so nothing in it is changed. {advice}")
        if known.digest != version_digest(data):
            raise ToolError(f"{name!r} has changed since it was read, so nothing in it is changed. {advice}")
        if known.whole:
            return
        ranges = ", ".join(f"{first}-{last}" for first, last in known.ranges) or "none"
        problem = (
            f"Only lines {ranges} of {known.total} of {name!r} were read, and the change lies elsewhere."
        )
        unread = [pair for pair in touch.lines if not _is_covered(pair, known.ranges)]
        lines = _lines(data)
        read = [b"".join(lines[first - 1 : last]) for first, last in known.ranges]
        missing = [text for text in touch.texts if not any(_holds(part, text) for part in read)]
        if unread or missing or not (touch.lines or touch.texts):
            raise ToolError(f"{problem} {advice}")

    def content(self, path: str) -> bytes | None:
        """Return the content of a file; None if it is not a file or too large."""
        try:
            return self._workspace.read_bytes(path, max_bytes=MAX_BYTES)
        except (OSError, WorkspaceError):
            return None  # the tool itself refuses it, in its own words

    def forget(self) -> None:
        """Forget all reads, for example after an undo."""
        self._known.clear()

    # ---- what a model still has before it

    def follow(self, agent_id: str) -> None:
        """Track the context of an agent, which must report results that it trims with `trimmed`."""
        self._context.setdefault(agent_id, {})

    def follows(self, agent_id: str) -> bool:
        """Return whether results for this agent may be shortened to 'unchanged since'."""
        return agent_id in self._context

    def trimmed(self, agent_id: str, call_ids: Iterable[str] | None = None) -> None:
        """Record that results were removed from an agent's context; all of them without ids."""
        shown = self._context.get(agent_id)
        if shown is None:
            return
        gone = set(call_ids) if call_ids is not None else None
        for key in list(shown):
            shown[key] = [one for one in shown[key] if gone is not None and one[1] not in gone]

    def note_shown(self, agent_id: str, path: str, call_id: str, first_line: int, last_line: int) -> None:
        """Record that the result of a call shows an agent these lines of a file."""
        shown = self._context.get(agent_id)
        if shown is None:
            return
        key = self._workspace.relative(path)
        known = self._known.get(key)
        if known is not None:
            shown.setdefault(key, []).append((known.digest, call_id, first_line, last_line))

    def unchanged_since(self, agent_id: str, path: str, first_line: int, last_line: int) -> str | None:
        """Return the call whose result still shows the agent these unchanged lines, or None."""
        shown = self._context.get(agent_id)
        if not shown:
            return None
        key = self._workspace.relative(path)
        known = self._known.get(key)
        for digest, call_id, first, last in reversed(shown.get(key, [])):
            if known is not None and digest == known.digest and first <= first_line and last_line <= last:
                return call_id
        return None


def _count_lines(data: bytes) -> int:
    return data.count(b"\n") + (not data.endswith(b"\n") and data != b"")


def _join(ranges: Iterable[tuple[int, int]]) -> Ranges:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def _is_covered(wanted: tuple[int, int], ranges: Ranges) -> bool:
    return any(first <= wanted[0] and wanted[1] <= last for first, last in ranges)


def _lines(data: bytes) -> list[bytes]:
    return list(io.BytesIO(data))


def _holds(part: bytes, text: str) -> bool:
    """Return whether a passage was read, ignoring white space at the ends of lines."""
    return _bare(text.encode("utf-8", "surrogatepass")) in _bare(part)


def _bare(data: bytes) -> bytes:
    return b"\n".join(line.rstrip() for line in data.split(b"\n"))


def _move_ranges(ranges: Ranges, before: list[bytes], after: list[bytes]) -> Ranges:
    """Return the ranges after an edit. All lines between the first and the last change count as read."""
    head, tail = count_equal_ends(before, after)
    shift = len(after) - len(before)
    moved = [(first, min(last, head)) for first, last in ranges if first <= head]
    behind = len(before) - tail
    moved += [(max(first, behind + 1) + shift, last + shift) for first, last in ranges if last > behind]
    if head < len(after) - tail:
        moved.append((head + 1, len(after) - tail))
    return _join(moved)
