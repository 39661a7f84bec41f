"""Feeds the read cache, and holds back edits of what was not read or has changed since.

What a call read is taken from its result only where the host finds the same text in the file; a worker cannot
make the host believe that something was read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from aisotools.contracts import Shipment
from aisotools.events import Json, ToolResult
from aisotools.readcache import ReadCache, Touch, Touching
from aisotools.ticket import Ticket

_FILES = "aisotools.builtin.files:"
_SHORT_CHARS = 400
"""Below this, saying that a text is unchanged is no shorter than the text."""


class ReadGuard:
    """A guard (see `aisotools.place`) for tools that need a read before they write."""

    def __init__(self, reads: ReadCache) -> None:
        """Keep `reads`."""
        self._reads = reads
        self._before: dict[str, dict[str, bytes]] = {}

    async def before(self, ticket: Ticket) -> None:
        """Refuse what was not read; see `aisotools.place.Guard`.

        Raises:
            ToolError: Naming the file and what to read.
        """
        touches = _touches(ticket)
        self._reads.check(touches)
        kept = {touch.path: self._reads.content(touch.path) for touch in touches}
        self._before[ticket.made.id] = {path: data for path, data in kept.items() if data is not None}

    async def after(self, ticket: Ticket, result: ToolResult | None) -> ToolResult | None:
        """What a call wrote is known to who made it; see `aisotools.place.Guard`."""
        before = self._before.pop(ticket.made.id, {})
        if result is None or result.is_error:
            return result
        for touched, data in before.items():
            now = self._reads.content(touched)
            if now is not None:
                self._reads.note_edit(touched, data, now)
        if _runs(ticket, "sandbox_write") or (_runs(ticket, "file") and _operation(ticket) == "write"):
            self._heard_of_writing(ticket.arguments)
        return result

    def _heard_of_writing(self, arguments: Mapping[str, Json]) -> None:
        path, content = arguments.get("path"), arguments.get("content")
        if isinstance(path, str) and isinstance(content, str):
            written = self._reads.content(path)
            if written is not None and written == content.encode("utf-8", "surrogatepass"):
                self._reads.note_read(path, written)

    def heard(self, ticket: Ticket, result: ToolResult) -> ToolResult:
        """Take down what a call that only reads has read; shortened if its reader still has it."""
        value = result.value
        if result.is_error or not isinstance(value, dict) or not _reads_a_file(ticket):
            return result
        path, text = value.get("path"), value.get("content")
        if not isinstance(path, str) or not isinstance(text, str):
            return result
        if ticket.made.origin == "model" and result.truncation is not None:
            text = text[: result.truncation.shown_chars].rpartition("\n")[0]  # no more was seen
        data = self._reads.content(path)
        first = value.get("start_line", 1)
        if data is None or not isinstance(first, int) or (not text and data):
            return result
        count = text.count("\n") + (not text.endswith("\n") and text != "")
        if _lines(data, first, count).rstrip(b"\n") != text.encode("utf-8", "surrogatepass").rstrip(b"\n"):
            return result
        self._reads.note_read(path, data, first, first + count - 1)
        return self._shortened(ticket, result, path, first, first + count - 1)

    def _shortened(self, ticket: Ticket, result: ToolResult, path: str, first: int, last: int) -> ToolResult:
        call = ticket.made
        if call.origin != "model":
            return result
        since = self._reads.unchanged_since(call.agent_id, path, first, last)
        if since is None or len(result.content) < _SHORT_CHARS:
            self._reads.note_shown(call.agent_id, path, call.id, first, last)
            return result
        told = f"[Unchanged since {since}: lines {first}-{last} of {path} are as that result shows them.]"
        return dataclasses.replace(result, content=told, truncation=None).with_metadata(unchanged_since=since)


def _touches(ticket: Ticket) -> Sequence[Touch]:
    return ticket.tool.touches(ticket.arguments) if isinstance(ticket.tool, Touching) else ()


def _runs(ticket: Ticket, name: str) -> bool:
    shipment: Shipment | None = ticket.shipment
    return shipment is not None and shipment.import_path == _FILES + name


def _reads_a_file(ticket: Ticket) -> bool:
    return _runs(ticket, "sandbox_read") or (_runs(ticket, "file") and _operation(ticket) == "read")


def _operation(ticket: Ticket) -> Json:
    return ticket.arguments.get("operation")


def _lines(data: bytes, first: int, count: int) -> bytes:
    return b"\n".join(data.split(b"\n")[first - 1 : first - 1 + count])
