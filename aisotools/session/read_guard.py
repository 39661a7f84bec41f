"""The guard that refuses edits of files that were not read, or that changed since.

It records in the read cache what each call read. A reported read counts only where the host finds the same
text in the file, because a worker could report anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from aisotools.core.types import Json, ToolCall, ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.workspace.read_tracker import ReadCache, SupportsTouches

_BUILTIN_FILE_TOOLS = "aisotools.builtin.files:"

_MIN_SHORTENED_CHARS = 400
"""Shorter results are not replaced by a note, which would be as long."""


class ReadGuard:
    """A guard (see `aisotools.session.guards`) for tools that need a read before they write."""

    def __init__(self, reads: ReadCache) -> None:
        """Check edits against `reads`, and record there what calls read and write."""
        self._reads = reads
        self._contents_before: dict[str, dict[str, bytes]] = {}
        """By call id and path, the files that a running call is about to edit."""

    async def before(self, prepared: PreparedCall) -> None:
        """Refuse an edit of lines that were not read; see `aisotools.session.guards.Guard`.

        Raises:
            ToolError: Naming the file and what to read.
        """
        if not isinstance(prepared.tool, SupportsTouches):
            return
        touches = prepared.tool.touches(prepared.arguments)
        self._reads.check(touches)
        contents = self._contents_before[prepared.original.id] = {}
        for touch in touches:
            data = self._reads.content(touch.path)
            if data is not None:
                contents[touch.path] = data

    async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        """Record what the call wrote as read by its caller; see `aisotools.session.guards.Guard`."""
        contents = self._contents_before.pop(prepared.original.id, {})
        if result is None or result.is_error:
            return result
        for path, before in contents.items():
            content = self._reads.content(path)
            if content is not None:
                self._reads.note_edit(path, before, content)
        if _is_file_tool(prepared, "sandbox_write", "write"):
            self._note_write(prepared.arguments)
        return result

    def _note_write(self, arguments: Mapping[str, Json]) -> None:
        path, content = arguments.get("path"), arguments.get("content")
        if isinstance(path, str) and isinstance(content, str):
            written = self._reads.content(path)
            if written is not None and written == content.encode("utf-8", "surrogatepass"):
                self._reads.note_read(path, written)

    def on_read(self, prepared: PreparedCall, result: ToolResult) -> ToolResult:
        """Record the lines that a read-only call has read.

        Returns:
            The result; for a model that still has these lines in its context, a note that they are unchanged.
        """
        value = result.value
        if (
            result.is_error
            or not isinstance(value, dict)
            or not _is_file_tool(prepared, "sandbox_read", "read")
        ):
            return result
        path, text = value.get("path"), value.get("content")
        if not isinstance(path, str) or not isinstance(text, str):
            return result
        if prepared.original.origin == "model" and result.truncation is not None:
            text = text[: result.truncation.shown_chars].rpartition("\n")[0]  # the model saw no more
        data = self._reads.content(path)
        first = value.get("start_line", 1)
        if data is None or type(first) is not int or first < 1 or (not text and data):
            return result
        count = text.count("\n") + (not text.endswith("\n") and text != "")
        lines = b"\n".join(data.split(b"\n")[first - 1 : first - 1 + count])
        if lines.rstrip(b"\n") != text.encode("utf-8", "surrogatepass").rstrip(b"\n"):
            return result
        self._reads.note_read(path, data, first, first + count - 1)
        call = prepared.original
        if call.origin != "model" or not self._reads.follows(call.agent_id):
            return result
        return self._shorten(call, result, path, first, first + count - 1)

    def _shorten(self, call: ToolCall, result: ToolResult, path: str, first: int, last: int) -> ToolResult:
        since = self._reads.unchanged_since(call.agent_id, path, first, last)
        if since is None or len(result.content) < _MIN_SHORTENED_CHARS:
            self._reads.note_shown(call.agent_id, path, call.id, first, last)
            return result
        note = f"[Unchanged since {since}: lines {first}-{last} of {path} are as that result shows them.]"
        return dataclasses.replace(result, content=note, truncation=None).with_metadata(unchanged_since=since)


def _is_file_tool(prepared: PreparedCall, tool: str, operation: str) -> bool:
    """Return whether this is a call of the built-in `tool`, or of the built-in `file` with that operation."""
    import_path = "" if prepared.payload is None else prepared.payload.import_path
    if import_path == _BUILTIN_FILE_TOOLS + "file":
        return prepared.arguments.get("operation") == operation
    return import_path == _BUILTIN_FILE_TOOLS + tool
