"""What a model reads of a long or unclean text: head and tail, exact counts of what lies between. Pure.

The whole text of results that were too long for a model, to be read back by reference.

Up to 2 MiB stay in memory, the rest lies in files without a name, which are gone with the process however it
ends. The oldest texts are forgotten first when there are too many.

The beginning and the end of a stream of bytes, with exact counts of all of it, in bounded memory.

The end of what a call prints beyond its cap, in bounded memory, with exact counts.
"""

from __future__ import annotations

import codecs
import dataclasses
import re
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO

from aisotools.core.protocols import OutputCaps, StoredText
from aisotools.core.types import ToolResult, Truncation

_CONTROLS = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # colours, cursor moves
    r"|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # titles, links, device strings
    r"|[ -/]*[0-~])?"
    r"|\r\n?|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
_BINARY_PROBE, _BINARY_SHARE = 4_096, 0.1
_NO_TEXT = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f\ufffd]")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Part of a text.

    Attributes:
        text: Head, a note in brackets on a line of its own, and tail.
        shown_chars: Characters of head and tail together.
        total_chars: Characters of the whole text.
        note: The note; empty where there was no room for one.
    """

    text: str
    shown_chars: int
    total_chars: int
    note: str


def excerpt(text: str, most_chars: int, most_lines: int | None = None, more: str = "") -> Excerpt | None:
    """Head and tail of a text that is too long; None for one that fits.

    Args:
        text: The text.
        most_chars: Characters that the excerpt may have, its note included.
        most_lines: Lines that it may show; without it any number.
        more: What the note should say about reading the rest.
    """
    total = len(text)
    lines = text.count("\n") + (not text.endswith("\n") and text != "")
    if total <= max(most_chars, 0) and (most_lines is None or lines <= most_lines):
        return None
    longest = f"\n[{total} of {total} characters left out here: lines {lines} to {lines} of {lines}{more}]\n"
    room = most_chars - len(longest)
    if room < 1:  # for the note itself
        return Excerpt(text[: max(most_chars, 0)], max(most_chars, 0), total, "")
    head, tail = (room - room // 3, total - room // 3) if total > room else (total, 0)
    if most_lines is not None and lines > most_lines:
        head = min(head, _after_lines(text, most_lines - most_lines // 3))
        tail = max(tail, _before_lines(text, most_lines // 3))
    tail = max(head, tail)
    # Whole lines read better; one that is longer than half of what there is room for is cut all the same.
    if (end := text.rfind("\n", head // 2, head) + 1) > 0:
        head = end
    if (start := text.find("\n", tail - 1, tail + (total - tail) // 2) + 1) > 0:
        tail = start
    first = text.count("\n", 0, head) + 1
    last = lines - max(0, text.count("\n", tail, total - text.endswith("\n")) + (tail < total))
    where = f"lines {first} to {max(first, last)} of {lines}" if lines > 1 else "of one line"
    note = f"[{tail - head} of {total} characters left out here: {where}{more}]"
    gap = "" if not head or text[head - 1] == "\n" else "\n"
    return Excerpt(f"{text[:head]}{gap}{note}\n{text[tail:]}", head + total - tail, total, note)


def _after_lines(text: str, count: int) -> int:
    """Where the first `count` lines end."""
    position = 0
    for _ in range(count):
        end = text.find("\n", position)
        if end < 0:
            return len(text)
        position = end + 1
    return position


def _before_lines(text: str, count: int) -> int:
    """Where the last `count` lines begin."""
    position = len(text) - text.endswith("\n")
    for number in range(count):
        start = text.rfind("\n", 0, position)
        if start < 0:
            return 0
        position = start
        if number == count - 1:
            return start + 1
    return len(text)


def clean(text: str) -> str:
    """`text` without terminal escapes and control characters; every line ends in a plain line feed."""
    if _CONTROLS.search(text) is None:
        return text
    return _CONTROLS.sub(lambda found: "\n" if found[0][0] == "\r" else "", text)


def looks_binary(text: str) -> bool:
    """Whether this is decoded binary data rather than text, to judge by its beginning."""
    probe = text[:_BINARY_PROBE]
    return len(_NO_TEXT.findall(probe)) > _BINARY_SHARE * len(probe)


CAP = "cap"
"""Key in a result's metadata: which of the caps holds for its content, `shell`, `search`, `list` or `web`."""

MEMORY_BYTES = 2 << 20
"""How much text is kept in memory."""

_MOST_BYTES, _MOST_TEXTS, _MOST_FILES = 256 << 20, 1_000, 64


@dataclass(slots=True)
class _Kept:
    tool: str
    call_id: str
    size: int
    text: str | None
    file: IO[bytes] | None = None


class ResultStore(Mapping[str, StoredText]):
    """Texts by reference, the oldest first."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        """Keep this much in memory."""
        self._memory_left = memory_bytes
        self._kept: dict[str, _Kept] = {}
        self._bytes = self._files = self._count = 0

    def __repr__(self) -> str:
        return f"<ResultStore of {len(self)} texts, {self._bytes:,} bytes, {self._files} in files>"

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._kept))

    def __getitem__(self, ref: str) -> StoredText:
        """The text of that reference."""
        kept = self._kept[ref]
        if kept.file is not None:
            kept.file.seek(0)
            text = kept.file.read().decode("utf-8", "surrogatepass")
        else:
            text = kept.text or ""
        return StoredText(ref=ref, tool=kept.tool, call_id=kept.call_id, text=text)

    def keep(self, text: str, *, tool: str = "", call_id: str = "") -> str:
        """Keep a text and return its reference."""
        data = text.encode("utf-8", "surrogatepass")
        kept = _Kept(tool, call_id, len(data), text)
        if len(data) <= self._memory_left:
            self._memory_left -= len(data)
        else:
            kept.text, kept.file = None, tempfile.TemporaryFile(prefix="aisotools-")  # noqa: SIM115 - kept open
            kept.file.write(data)
            self._files += 1
        self._bytes += len(data)
        self._count += 1
        ref = f"r{self._count}"
        self._kept[ref] = kept
        while len(self._kept) > 1 and (
            self._bytes > _MOST_BYTES or len(self._kept) > _MOST_TEXTS or self._files > _MOST_FILES
        ):
            self._forget(next(iter(self._kept)))
        return ref

    @property
    def upcoming(self) -> str:
        """The reference that the next text will get."""
        return f"r{self._count + 1}"

    def close(self) -> None:
        """Forget everything."""
        for ref in self:
            self._forget(ref)

    def _forget(self, ref: str) -> None:
        kept = self._kept.pop(ref)
        self._bytes -= kept.size
        if kept.file is not None:
            kept.file.close()
            self._files -= 1
        else:
            self._memory_left += kept.size


def fitted(
    result: ToolResult,
    caps: OutputCaps,
    store: ResultStore,
    *,
    tool: str = "",
    call_id: str = "",
    readable: bool = True,
) -> ToolResult:
    """The result as a model gets it: within its caps, clean, and with a reference to what was left out.

    Args:
        result: What the call gave.
        caps: What a model may read.
        store: Takes the whole text.
        tool: The tool's name.
        call_id: The call.
        readable: Whether the model has a tool to read the rest with.
    """
    chars, lines = _caps_for(result.metadata.get(CAP), caps)
    content = result.content
    more = f"; read them with read_result, ref {store.upcoming!r}" if readable else ""
    part = excerpt(content, chars, lines, more)
    if part is None:
        shown = clean(content)
        return result if shown is content else dataclasses.replace(result, content=shown)
    kept = store.keep(content, tool=tool, call_id=call_id)
    before = result.truncation  # its source had cut it already
    truncation = Truncation(
        total_chars=part.total_chars if before is None else max(before.total_chars, part.shown_chars),
        shown_chars=part.shown_chars,
        ref=kept,
        note=part.note if before is None else f"{part.note} {before.note}".strip(),
    )
    return dataclasses.replace(result, content=clean(part.text), truncation=truncation)


def _caps_for(kind: object, caps: OutputCaps) -> tuple[int, int | None]:
    """Characters and lines that a model may read of a result of this kind."""
    lines = {"shell": caps.shell_lines, "search": caps.search_lines, "list": caps.list_lines}
    if not isinstance(kind, str):
        return caps.content_chars, None
    return (caps.web_chars if kind == "web" else caps.content_chars), lines.get(kind)


class Ring:
    """Keeps the first and the last bytes of one or several streams that share one cap.

    Attributes:
        total_bytes: How many bytes came.
        total_lines: How many line feeds were among them.
    """

    def __init__(self, cap_bytes: int) -> None:
        """Keep half of `cap_bytes` of the beginning and half of the end."""
        self._head_left, self._tail_cap = cap_bytes - cap_bytes // 2, cap_bytes // 2
        self._head: list[tuple[str, bytes]] = []
        self._tail: deque[tuple[str, bytes]] = deque()
        self._tail_bytes = 0
        self._totals: Counter[str] = Counter()
        self.total_bytes = self.total_lines = 0

    def __repr__(self) -> str:
        return f"<Ring {self.total_bytes:,} bytes, {self.dropped_bytes:,} dropped>"

    def take(self, data: bytes, stream: str = "stdout") -> bytes:
        """Take in what came; the part of it that belongs to the beginning."""
        self.total_bytes += len(data)
        self._totals[stream] += len(data)
        self.total_lines += data.count(b"\n")
        first, rest = data[: self._head_left], data[self._head_left :]
        if first:
            self._head_left -= len(first)
            self._head.append((stream, first))
        if rest:
            self._tail.append((stream, rest))
            self._tail_bytes += len(rest)
            while self._tail and self._tail_bytes - len(self._tail[0][1]) >= self._tail_cap:
                self._tail_bytes -= len(self._tail.popleft()[1])
        return first

    @property
    def dropped_bytes(self) -> int:
        """How many bytes are in neither the beginning nor the end."""
        kept = sum(len(data) for _, data in self._head) + min(self._tail_bytes, self._tail_cap)
        return self.total_bytes - kept

    @property
    def tail_start(self) -> int:
        """Where in the whole stream the kept end begins."""
        return self.total_bytes - min(self._tail_bytes, self._tail_cap)

    def tail(self) -> bytes:
        """The kept end of everything."""
        return b"".join(data for _, data in self._trimmed())

    def text(self, stream: str = "stdout") -> str:
        """What is kept of a stream, with a note where something is left out."""
        head = b"".join(data for name, data in self._head if name == stream)
        trimmed = self._trimmed()
        tail = b"".join(data for name, data in trimmed if name == stream)
        dropped = self._totals[stream] - len(head) - len(tail)
        if not dropped:
            return (head + tail).decode("utf-8", "replace")
        begun = codecs.getincrementaldecoder("utf-8")("replace").decode(head)
        ended = tail[_broken(tail) :].decode("utf-8", "replace")
        gap = "" if begun.endswith("\n") or not begun else "\n"
        return f"{begun}{gap}[{dropped:,} bytes of output left out here]\n{ended}"

    def _trimmed(self) -> list[tuple[str, bytes]]:
        """The end without what the first piece has too much."""
        rows = list(self._tail)
        if rows and (over := self._tail_bytes - self._tail_cap) > 0:
            rows[0] = rows[0][0], rows[0][1][over:]
        return rows


def _broken(data: bytes) -> int:
    """How many bytes at the beginning are the end of a broken character."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count


MOST_CHARS = 1 << 15
"""How much of the end is kept, over both streams."""


class OutputTails:
    """Keeps the last characters of several streams that share one cap."""

    def __init__(self, most_chars: int) -> None:
        """Keep about `most_chars`: never fewer if there are as many, and never twice as many."""
        self._most = most_chars
        self._pieces: deque[tuple[str, str]] = deque()
        self._came_bytes: Counter[str] = Counter()
        self._chars = 0

    def __repr__(self) -> str:
        return f"<Tail {self._chars:,} characters of {self._came_bytes.total():,} bytes>"

    def take(self, stream: str, text: str) -> None:
        """Take in what came behind everything else."""
        self._came_bytes[stream] += len(text) if text.isascii() else len(text.encode())
        text = text[-self._most :]
        self._pieces.append((stream, text))
        self._chars += len(text)
        while self._pieces and self._chars - len(self._pieces[0][1]) >= self._most:
            self._chars -= len(self._pieces.popleft()[1])

    def clear(self) -> None:
        """Forget everything."""
        self._pieces.clear()
        self._came_bytes.clear()
        self._chars = 0

    def text(self, stream: str) -> str:
        """What is kept of a stream."""
        return "".join(text for name, text in self._pieces if name == stream)

    def missing_bytes(self, stream: str) -> int:
        """How much of a stream came and is not kept."""
        return self._came_bytes[stream] - len(self.text(stream).encode())

    def behind(self, head: str, stream: str) -> str:
        """`head` and what is kept of the end, with a note where something is left out between them."""
        missing, end = self.missing_bytes(stream), self.text(stream)
        if not missing:
            return head + end
        gap = "" if head.endswith("\n") or not head else "\n"
        return f"{head}{gap}[{missing:,} bytes of output left out here]\n{end}"
