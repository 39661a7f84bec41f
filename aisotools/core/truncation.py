"""Cut long output for a model, and store the whole of it.

Long output is cut to a head and a tail with exact counts, stored whole, and read back by reference.

`summarize_names` lists some of many names. `truncate_text` cuts a text that is complete, `HeadTailBuffer` one
that is still coming. `truncate_result` cuts a result for a model and puts all of it into a `ResultStore`.
"""

from __future__ import annotations

import codecs
import dataclasses
import re
from collections import Counter, deque
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import getsizeof

from aisotools.core.protocols import OutputCaps, StoredText
from aisotools.core.retention import RetentionBudget
from aisotools.core.spill import Extent, SpillFile, spill_file
from aisotools.core.threads import in_thread
from aisotools.core.types import ToolResult, Truncation

CAP = "cap"
"""Metadata key of a result that selects its caps: `shell`, `search`, `list` or `web`."""

_LONG_CHARS = 1 << 20
_FEEDS_LOOKED_FOR = 1_000
_ENCODED_CHARS = 1 << 18

MEMORY_BYTES = 2 << 20
"""Bytes of text that a `ResultStore` holds in memory before it uses files."""

# A session may run for weeks. Beyond any of these limits the store drops its oldest texts.
_MAX_STORE_BYTES = 256 << 20
_MAX_STORE_TEXTS = 1_000
# Of a text: its entry, its reference, and the names of its tool and its call.
_ENTRY_BYTES = 400

_CONTROLS = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # colours, cursor moves
    r"|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # titles, links, device strings
    r"|[ -/]*[0-~])?"
    r"|\r\n?|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)

_BINARY_PROBE_CHARS = 4_096
_BINARY_SHARE = 0.1  # text may contain a few stray control characters; binary data is full of them
_BINARY_CHARS = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f\ufffd]")


def strip_controls(text: str) -> str:
    """Return `text` without terminal escapes and control characters, with plain line feeds."""
    if _CONTROLS.search(text) is None:
        return text
    return _CONTROLS.sub(lambda found: "\n" if found[0][0] == "\r" else "", text)


def looks_binary(text: str) -> bool:
    """Return whether `text` is decoded binary data, judged by its first 4,096 characters."""
    probe = text[:_BINARY_PROBE_CHARS]
    return len(_BINARY_CHARS.findall(probe)) > _BINARY_SHARE * len(probe)


# ---- a complete text


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Head and tail of a text.

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


def summarize_names(names: Sequence[str], max_names: int = 20) -> str:
    """Return names in a line: at most `max_names`, and the number of the others."""
    more = len(names) - max_names
    listed = ", ".join(names[:max_names])
    return f"{listed} and {more:,} more" if more > 0 else listed


def truncate_text(text: str, max_chars: int, max_lines: int | None = None, hint: str = "") -> Excerpt | None:
    """Cut `text` to two thirds head and one third tail. Return None if it fits.

    Args:
        text: The text.
        max_chars: Characters of the excerpt, its note included.
        max_lines: Lines of `text` in the excerpt; None for any number.
        hint: Appended to the note; how to read the rest.
    """
    total = len(text)
    feeds = _count_feeds(text)
    lines = feeds + (not text.endswith("\n") and text != "")
    if total <= max(max_chars, 0) and (max_lines is None or lines <= max_lines):
        return None
    # The numbers in the note are known only after the cut; reserve room for the longest ones.
    longest = f"\n[{total} of {total} characters left out here: lines {lines} to {lines} of {lines}{hint}]\n"
    room = max_chars - len(longest)
    if room < 1:
        return Excerpt(text[: max(max_chars, 0)], max(max_chars, 0), total, "")
    head_end, tail_start = total, 0
    if total > room:
        head_end, tail_start = room - room // 3, total - room // 3
    if max_lines is not None and lines > max_lines:
        head_end = min(head_end, _end_of_first_lines(text, max_lines - max_lines // 3))
        tail_start = max(tail_start, _start_of_last_lines(text, max_lines // 3))
    tail_start = max(head_end, tail_start)
    # Prefer whole lines. Cut inside a line only where it takes up more than half of the head or the tail.
    if (end := text.rfind("\n", head_end // 2, head_end) + 1) > 0:
        head_end = end
    if (start := text.find("\n", tail_start - 1, tail_start + (total - tail_start) // 2) + 1) > 0:
        tail_start = start
    first = text.count("\n", 0, head_end) + 1
    # A line of which only the end is shown counts as left out; the line feed after one begins no other. What
    # is left out may be megabytes, and what is shown is short.
    left_out = feeds - (first - 1) - text.count("\n", tail_start)
    last = first + left_out - text.endswith("\n", head_end, tail_start)
    where = f"lines {first} to {last} of {lines}" if lines > 1 else "of one line"
    note = f"[{tail_start - head_end} of {total} characters left out here: {where}{hint}]"
    gap = "" if not head_end or text[head_end - 1] == "\n" else "\n"
    shown = head_end + total - tail_start
    return Excerpt(f"{text[:head_end]}{gap}{note}\n{text[tail_start:]}", shown, total, note)


def _count_feeds(text: str) -> int:
    """Count line feeds, of which megabytes may have few: to find one takes a tenth of what to count takes."""
    position = -1
    for count in range(_FEEDS_LOOKED_FOR):
        position = text.find("\n", position + 1)
        if position < 0:
            return count
    return _FEEDS_LOOKED_FOR + text.count("\n", position + 1)


def _end_of_first_lines(text: str, count: int) -> int:
    position = 0
    for _ in range(count):
        end = text.find("\n", position)
        if end < 0:
            return len(text)
        position = end + 1
    return position


def _start_of_last_lines(text: str, count: int) -> int:
    if not count:
        return len(text)
    position = len(text) - text.endswith("\n")
    for _ in range(count):
        position = text.rfind("\n", 0, position)
        if position < 0:
            return 0
    return position + 1


# ---- a text that is still coming


class HeadTailBuffer:
    """The first and the last bytes of one or several streams, with exact counts of all of them.

    The streams share the limits: the head holds what came first and the tail what came last, of whichever
    stream. Memory is bounded by the head and twice the tail.

    Attributes:
        total_bytes: Bytes appended so far.
        total_lines: Line feeds among them.
    """

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        self._head_limit = head_bytes
        self._tail_limit = tail_bytes
        self._head: list[tuple[str, bytes]] = []
        self._head_bytes = 0
        self._tail: deque[tuple[str, bytes]] = deque()
        self._tail_bytes = 0
        self._stream_bytes: Counter[str] = Counter()
        self.total_bytes = 0
        self.total_lines = 0

    @classmethod
    def halves(cls, max_bytes: int) -> HeadTailBuffer:
        """Return a buffer that splits `max_bytes` evenly; the head gets the odd byte."""
        return cls(max_bytes - max_bytes // 2, max_bytes // 2)

    def __repr__(self) -> str:
        return f"<HeadTailBuffer {self.total_bytes:,} bytes, {self.dropped_bytes:,} dropped>"

    def append(self, data: bytes, stream: str = "stdout") -> bytes:
        """Append `data` to a stream. Return the part of it that went into the head."""
        self.total_bytes += len(data)
        self.total_lines += data.count(b"\n")
        self._stream_bytes[stream] += len(data)
        room = self._head_limit - self._head_bytes
        first, rest = data[:room], data[room:]
        if first:
            self._head.append((stream, first))
            self._head_bytes += len(first)
        # Slice before storing: a view of one huge write would keep all of it in memory.
        rest = rest[max(0, len(rest) - self._tail_limit) :]
        if rest:
            self._tail.append((stream, rest))
            self._tail_bytes += len(rest)
        # Drop whole pieces only, and cut the oldest one when the tail is read. Cutting it here would copy up
        # to the whole tail for every small write.
        while self._tail and self._tail_bytes - len(self._tail[0][1]) >= self._tail_limit:
            self._tail_bytes -= len(self._tail.popleft()[1])
        return first

    def clear(self) -> None:
        """Drop everything, counts included."""
        self._head.clear()
        self._head_bytes = 0
        self._tail.clear()
        self._tail_bytes = 0
        self._stream_bytes.clear()
        self.total_bytes = 0
        self.total_lines = 0

    @property
    def tail_start(self) -> int:
        """Offset of the tail in everything that was appended."""
        return self.total_bytes - min(self._tail_bytes, self._tail_limit)

    @property
    def dropped_bytes(self) -> int:
        """Bytes of all streams that are in neither head nor tail."""
        return self.tail_start - self._head_bytes

    def dropped(self, stream: str) -> int:
        """Return how many bytes of one stream `text` leaves out."""
        return self._stream_bytes[stream] - sum(map(len, self._ends(stream)))

    def tail(self) -> bytes:
        """Return the tail of all streams, in order of arrival."""
        return b"".join(data for _, data in self._trimmed_tail())

    def tail_text(self, stream: str = "stdout") -> str:
        """Return the tail of one stream."""
        return self._ends(stream)[1].decode("utf-8", "replace")

    def text(self, stream: str = "stdout", *, before: str = "") -> str:
        """Return head and tail of one stream, with a note that counts the bytes between them.

        Args:
            stream: The stream.
            before: Earlier text of the stream that the caller holds; precedes the head.
        """
        head, tail = self._ends(stream)
        dropped = self.dropped(stream)
        if not dropped:
            return before + (head + tail).decode("utf-8", "replace")
        start, end = before + head.decode("utf-8", "replace"), tail.decode("utf-8", "replace")
        gap = "" if start.endswith("\n") or not start else "\n"
        return f"{start}{gap}[{dropped:,} bytes of output left out here]\n{end}"

    def _ends(self, stream: str) -> tuple[bytes, bytes]:
        """Return head and tail of one stream, without the characters that the gap between them cuts."""
        head = b"".join(data for name, data in self._head if name == stream)
        tail = b"".join(data for name, data in self._trimmed_tail() if name == stream)
        if len(head) + len(tail) < self._stream_bytes[stream]:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            decoder.decode(head)
            incomplete, _ = decoder.getstate()
            head = head[: len(head) - len(incomplete)]
            tail = tail[_leading_continuation_bytes(tail) :]
        return head, tail

    def _trimmed_tail(self) -> list[tuple[str, bytes]]:
        pieces = list(self._tail)
        excess = self._tail_bytes - self._tail_limit
        if excess > 0:
            stream, oldest = pieces[0]
            pieces[0] = stream, oldest[excess:]
        return pieces


def _leading_continuation_bytes(data: bytes) -> int:
    """Count the bytes at the start of `data` that continue a UTF-8 character, at most 3."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count


# ---- results


@dataclass(slots=True)
class _StoreEntry:
    tool: str
    call_id: str
    size_bytes: int
    text: str | None
    extent: Extent | None = None
    memory_bytes: int = 0
    waits: bool = False  # to be written into the file


class ResultStore(Mapping[str, StoredText]):
    """Whole texts of truncated results by reference, oldest first.

    The first `memory_bytes` are held in memory, the rest in a file without a name, which vanishes with the
    process however it ends. Above 256 MiB or 1,000 texts the oldest texts are dropped.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES, budget: RetentionBudget | None = None) -> None:
        """Start empty.

        Args:
            memory_bytes: What may be held in memory, as it is there.
            budget: Is charged for it. When it is exceeded, the texts in memory move to files.
        """
        self._spill = spill_file(None)
        self._budget = budget or RetentionBudget()
        self._budget.on_excess(self._move_to_files)
        self._memory_left = memory_bytes
        self._entries: dict[str, _StoreEntry] = {}
        self._bytes = 0
        self._files = 0
        self._added = 0

    def __repr__(self) -> str:
        return f"<ResultStore of {len(self)} texts, {self._bytes:,} bytes, {self._files} in files>"

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._entries))

    def __getitem__(self, ref: str) -> StoredText:
        entry = self._entries[ref]
        if entry.extent is not None:
            text = self._spill.get(entry.extent).decode("utf-8", "surrogatepass")
        else:
            text = entry.text or ""
        return StoredText(ref=ref, tool=entry.tool, call_id=entry.call_id, text=text)

    @property
    def next_ref(self) -> str:
        """Reference that the next text will get."""
        return f"r{self._added + 1}"

    def write_files_to(self, folder: Path) -> None:
        """Make files in `folder`, if none is needed yet.

        Before, they are made in the system's folder for temporary files, which may be in memory.
        """
        if not self._files:
            self._spill = spill_file(folder)

    def add(self, text: str, *, tool: str = "", call_id: str = "", may_wait: bool = False) -> str:
        """Store a text. Return its reference.

        Args:
            text: The text.
            tool: Name of the tool whose result it is.
            call_id: Id of the call.
            may_wait: Whether a long text stays in memory until `write_waiting`, which has to follow.
        """
        ref = self.next_ref
        if may_wait and len(text) >= _LONG_CHARS:
            entry = _StoreEntry(tool, call_id, len(text), text, waits=True)
            self._files += 1
        else:
            data = text.encode("utf-8", "surrogatepass")
            entry = _StoreEntry(tool, call_id, len(data), None)
            memory_bytes = getsizeof(text)
            if memory_bytes <= self._memory_left:
                entry.text, entry.memory_bytes = text, memory_bytes
                self._memory_left -= memory_bytes
            else:
                self._write(entry, data)
        self._added += 1
        self._bytes += entry.size_bytes
        self._entries[ref] = entry
        while len(self._entries) > 1 and self._over_limit():
            self._drop(next(iter(self._entries)))
        self._budget.charge(_ENTRY_BYTES + entry.memory_bytes)
        return ref

    async def write_waiting(self, call_id: str) -> None:
        """Write what waits of a call into the file, in a thread: 16 MiB take a twentieth of a second.

        Raises:
            OSError: It cannot be written, and is dropped.
        """
        for ref, entry in tuple(self._entries.items()):
            if entry.call_id == call_id and entry.waits and entry.text is not None:
                entry.waits = False
                await self._write_in_thread(ref, entry, entry.text)

    async def _write_in_thread(self, ref: str, entry: _StoreEntry, text: str) -> None:
        spill = self._spill
        try:
            extent = await in_thread(_put, spill, text)
        except OSError:
            if ref in self._entries:
                self._drop(ref)
            raise
        if entry.text is None:  # dropped meanwhile
            spill.free(extent)
            return
        entry.text, entry.extent = None, extent
        self._bytes += extent.size - entry.size_bytes
        entry.size_bytes = extent.size

    def _write(self, entry: _StoreEntry, data: bytes) -> None:
        entry.extent = self._spill.put(data)
        self._files += 1

    def _move_to_files(self, excess_bytes: int) -> None:
        """Move texts from memory to files, the oldest first, until so many bytes are free."""
        for entry in tuple(self._entries.values()):
            if excess_bytes <= 0:
                return
            if entry.memory_bytes and entry.text is not None:
                self._write(entry, entry.text.encode("utf-8", "surrogatepass"))
                excess_bytes -= entry.memory_bytes
                self._free(entry)
        while len(self._entries) > 1 and self._over_limit():
            self._drop(next(iter(self._entries)))

    def _free(self, entry: _StoreEntry) -> None:
        self._budget.release(entry.memory_bytes)
        self._memory_left += entry.memory_bytes
        entry.text, entry.memory_bytes = None, 0

    def _over_limit(self) -> bool:
        return self._bytes > _MAX_STORE_BYTES or len(self._entries) > _MAX_STORE_TEXTS

    def close(self) -> None:
        """Drop all texts and close their files."""
        for ref in self:
            self._drop(ref)

    def _drop(self, ref: str) -> None:
        entry = self._entries.pop(ref)
        self._bytes -= entry.size_bytes
        self._budget.release(_ENTRY_BYTES)
        in_file = not entry.memory_bytes
        self._free(entry)
        self._files -= in_file
        if entry.extent is not None:
            self._spill.free(entry.extent)
            entry.extent = None


def _put(spill: SpillFile, text: str) -> Extent:
    # In pieces, between which other threads run.
    starts = range(0, len(text), _ENCODED_CHARS)
    return spill.put(*[text[at : at + _ENCODED_CHARS].encode("utf-8", "surrogatepass") for at in starts])


def truncate_result(
    result: ToolResult,
    caps: OutputCaps,
    store: ResultStore,
    *,
    tool: str = "",
    call_id: str = "",
    tools: Container[str] = ("read_result",),
    may_wait: bool = False,
) -> ToolResult:
    """Return the result as a model gets it: within its caps, without controls, with a reference to the rest.

    Args:
        result: Result of the call.
        caps: Size limits; `metadata[CAP]` of the result selects among them.
        store: Receives the whole text if it is cut.
        tool: Name of the tool.
        call_id: Id of the call.
        tools: Names of the model's tools; with `read_result` it is told how to read the rest.
        may_wait: Whether `ResultStore.write_waiting` follows.
    """
    max_chars, max_lines = caps.content_chars, None
    if CAP in result.metadata:
        max_chars, max_lines = _caps_for(result.metadata[CAP], caps)
    content = result.content
    cut = None
    if max_lines is not None or len(content) > max_chars:
        hint = f"; read them with read_result, ref {store.next_ref!r}" if "read_result" in tools else ""
        cut = truncate_text(content, max_chars, max_lines, hint)
    if cut is None:
        shown = strip_controls(content)
        return result if shown is content else dataclasses.replace(result, content=shown)
    ref = store.add(content, tool=tool, call_id=call_id, may_wait=may_wait)
    total_chars, note = cut.total_chars, cut.note
    if (earlier := result.truncation) is not None:  # the tool had cut the text itself, and counted the whole
        total_chars = max(earlier.total_chars, cut.shown_chars)
        note = f"{note} {earlier.note}".strip()
    truncation = Truncation(total_chars=total_chars, shown_chars=cut.shown_chars, ref=ref, note=note)
    return dataclasses.replace(result, content=strip_controls(cut.text), truncation=truncation)


def _caps_for(kind: object, caps: OutputCaps) -> tuple[int, int | None]:
    """Return characters and lines that a model may read. Metadata is untrusted, so `kind` may be anything."""
    if not isinstance(kind, str):
        return caps.content_chars, None
    max_chars = caps.web_chars if kind == "web" else caps.content_chars
    max_lines = {"shell": caps.shell_lines, "search": caps.search_lines, "list": caps.list_lines}
    return max_chars, max_lines.get(kind)
