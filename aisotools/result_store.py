"""The whole text of results that were too long for a model, to be read back by reference.

Up to 2 MiB stay in memory, the rest lies in files without a name, which are gone with the process however it
ends. The oldest texts are forgotten first when there are too many.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO

from aisotools.contracts import OutputCaps, StoredText
from aisotools.events import ToolResult, Truncation
from aisotools.excerpt import clean, excerpt

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
