"""What was read of which file: an edit of what nobody has read, or of what changed since, is refused.

Everything here is computed by the host from the workspace itself: a worker is not believed what it read, nor
what the file's digest is.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from aisotools.core.exceptions import ToolError, WorkspaceError
from aisotools.core.types import Json
from aisotools.workspace.paths import printable
from aisotools.workspace.workspace import Workspace

MAX_BYTES = 10 << 20
"""The largest file that is looked at; tools read and edit no larger ones."""

Ranges = tuple[tuple[int, int], ...]
"""Line numbers, from 1, both ends included; sorted, apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTouch:
    """What a call is about to change in one existing file.

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
    """An optional member of a `Tool` whose calls need a read first."""

    def touches(self, arguments: Mapping[str, Json]) -> Sequence[FileTouch]:
        """What a call with these arguments changes; files that it makes are left out."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read of a file that had this digest."""

    digest: str
    ranges: Ranges
    total: int

    @property
    def whole(self) -> bool:
        return self.total == 0 or self.ranges == ((1, self.total),)


def digest_of(data: bytes) -> str:
    """The digest by which a file's content is recognised."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class ReadCache:
    """What was read in one session, and what of it a model still has before it."""

    def __init__(self, workspace: Workspace) -> None:
        """Start with nothing read."""
        self._workspace = workspace
        self._known: dict[str, _Known] = {}
        self._context: dict[str, dict[str, list[tuple[str, str, int, int]]]] = {}

    # ---- what was read

    def note_read(self, path: str, data: bytes, first_line: int = 1, last_line: int | None = None) -> None:
        """Remember that these lines of a file were read while it had the content `data`.

        Args:
            path: The file.
            data: Its whole content, as the host sees it.
            first_line: The first line that was read, from 1.
            last_line: The last one; the end of the file without it.
        """
        total = _count_lines(data)
        last = total if last_line is None else min(last_line, total)
        key, digest = self._workspace.relative(path), digest_of(data)
        known = self._known.get(key)
        ranges = known.ranges if known is not None and known.digest == digest else ()
        if first_line <= last:
            ranges = _joined([*ranges, (first_line, last)])
        self._known[key] = _Known(digest, ranges, total)

    def note_edit(self, path: str, before: bytes, after: bytes) -> None:
        """Remember that whoever had read `before` made it into `after`: what they wrote, they know."""
        key = self._workspace.relative(path)
        known = self._known.get(key)
        if known is None or known.digest != digest_of(before):
            return
        total = _count_lines(after)
        if known.whole:
            ranges: Ranges = ((1, total),) if total else ()
        else:
            ranges = _moved(known.ranges, _lines(before), _lines(after))
        self._known[key] = _Known(digest_of(after), ranges, total)

    def check(self, touches: Iterable[FileTouch]) -> None:
        """Raise unless what is touched was read, and is still as it was read.

        Raises:
            ToolError: Naming the file, and saying what to read.
        """
        for touch in touches:
            data = self.content(touch.path)
            if data is not None:  # what is not there, or no file, the tool itself refuses
                self._check(touch, data)

    def _check(self, touch: FileTouch, data: bytes) -> None:
        name = printable(touch.path)
        advice = "Read it with the tool file, operation 'read', then make the change again."
        known = self._known.get(self._workspace.relative(touch.path))
        if known is None:
            raise ToolError(f"{name!r} was not read in this session, so nothing in it is changed. {advice}")
        if known.digest != digest_of(data):
            raise ToolError(f"{name!r} has changed since it was read, so nothing in it is changed. {advice}")
        if known.whole:
            return
        seen = ", ".join(f"{first}-{last}" for first, last in known.ranges) or "none"
        told = f"Only lines {seen} of {known.total} of {name!r} were read, and the change lies elsewhere."
        unread = [pair for pair in touch.lines if not _covered(pair, known.ranges)]
        lines = _lines(data)
        read = [b"".join(lines[first - 1 : last]) for first, last in known.ranges]
        missing = [text for text in touch.texts if not any(_holds(part, text) for part in read)]
        if unread or missing or not (touch.lines or touch.texts):
            raise ToolError(f"{told} {advice}")

    def content(self, path: str) -> bytes | None:
        """What a file holds, if it is one and not too large."""
        try:
            return self._workspace.read_bytes(path, max_bytes=MAX_BYTES)
        except (OSError, WorkspaceError):
            return None  # the tool itself refuses it, in its own words

    def forget(self) -> None:
        """Start over: what is in the workspace is no longer what was read, as after an undo."""
        self._known.clear()

    # ---- what a model still has before it

    def follow(self, agent_id: str) -> None:
        """Let results for this agent say 'unchanged since'; it promises to tell what it trims."""
        self._context.setdefault(agent_id, {})

    def follows(self, agent_id: str) -> bool:
        """Whether results for this agent may say 'unchanged since'."""
        return agent_id in self._context

    def trimmed(self, agent_id: str, call_ids: Iterable[str] | None = None) -> None:
        """These results are no longer in the agent's context; without ids, none is."""
        shown = self._context.get(agent_id)
        if shown is None:
            return
        gone = set(call_ids) if call_ids is not None else None
        for key in list(shown):
            shown[key] = [one for one in shown[key] if gone is not None and one[1] not in gone]

    def note_shown(self, agent_id: str, path: str, call_id: str, first_line: int, last_line: int) -> None:
        """The agent's context now holds these lines of a file, in the result of that call."""
        shown = self._context.get(agent_id)
        if shown is None:
            return
        key = self._workspace.relative(path)
        known = self._known.get(key)
        if known is not None:
            shown.setdefault(key, []).append((known.digest, call_id, first_line, last_line))

    def unchanged_since(self, agent_id: str, path: str, first_line: int, last_line: int) -> str | None:
        """The call whose result still tells the agent exactly these lines, or None."""
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


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def _covered(wanted: tuple[int, int], ranges: Ranges) -> bool:
    return any(first <= wanted[0] and wanted[1] <= last for first, last in ranges)


def _lines(data: bytes) -> list[bytes]:
    return list(io.BytesIO(data))


def _holds(part: bytes, text: str) -> bool:
    """Whether a passage is in what was read, whatever white space ends its lines."""
    return _bare(text.encode("utf-8", "surrogatepass")) in _bare(part)


def _bare(data: bytes) -> bytes:
    return b"\n".join(line.rstrip() for line in data.split(b"\n"))


def _moved(ranges: Ranges, before: list[bytes], after: list[bytes]) -> Ranges:
    """Where the lines that were read are now, and those between the first and the last change with them."""
    shorter = min(len(before), len(after))
    head = next((n for n in range(shorter) if before[n] != after[n]), shorter)
    left = shorter - head
    tail = next((n for n in range(left) if before[-1 - n] != after[-1 - n]), left)
    shift = len(after) - len(before)
    moved = [(first, min(last, head)) for first, last in ranges if first <= head]
    behind = len(before) - tail
    moved += [(max(first, behind + 1) + shift, last + shift) for first, last in ranges if last > behind]
    if head < len(after) - tail:
        moved.append((head + 1, len(after) - tail))
    return _joined(moved)
