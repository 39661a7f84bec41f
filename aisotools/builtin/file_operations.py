"""What the file tools do: each operation a function from a workspace and arguments to a result."""

from __future__ import annotations

import stat
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

from aisotools.builtin.file_search import Search, compile_glob, compile_pattern, lines_of
from aisotools.builtin.file_text import lines_between, show_lines, show_list
from aisotools.events import Json, ToolResult
from aisotools.exceptions import ToolError
from aisotools.folders import Entry
from aisotools.paths import printable, shown
from aisotools.workspace import Workspace

MAX_FILE_BYTES = 10 << 20
"""The largest file that is read or written in one call."""

MAX_ENTRIES = 5_000
"""How many entries one listing holds."""

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def read_lines(
    workspace: Workspace,
    path: str,
    *,
    start: int | None,
    end: int | None,
) -> ToolResult:
    """Lines of a text file, both ends included.

    Args:
        workspace: Where.
        path: The file.
        start: Number of the first line, from 1; None for the beginning.
        end: Number of the last line; None for the end.
    """
    if start is not None and end is not None and end < start:
        raise ToolError(f"end_line {end} comes before start_line {start}.")
    where, data = _bytes_of(workspace, path)
    text = None if b"\0" in data else _decoded(data)
    if text is None:
        raise ToolError(
            f"{where!r} is a binary file ({_mime(data)}, {len(data):,} bytes), so it has no lines to read. "
            "Use sandbox_read for its bytes, or python to work on it.",
        )
    return show_lines(where, len(data), lines_between(where, text, start, end))


def read_whole(workspace: Workspace, path: str, *, max_json_bytes: int) -> ToolResult:
    """A whole file byte for byte: as text if it is UTF-8 and small enough as JSON, else as binary data."""
    where, data = _bytes_of(workspace, path)
    text = _decoded(data)
    if text is None or _json_bytes(text) > max_json_bytes:
        return ToolResult.binary(data, _mime(data)).with_metadata(path=where, size=len(data))
    return ToolResult.json({"content": text, "size": len(data), "path": where}, text)


def write(workspace: Workspace, path: str, content: str) -> ToolResult:
    """A file made or replaced, with exactly this content."""
    if path.endswith("/"):
        raise ToolError(f"{shown(path)!r} names a folder, for it ends with a slash. Give the name of a file.")
    try:
        data = content.encode()
    except UnicodeEncodeError as error:
        raise ToolError(
            f"content cannot be stored as UTF-8: half a surrogate pair at character {error.start}.",
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise ToolError(
            f"content has {len(data):,} bytes; at most {MAX_FILE_BYTES:,} are written at once. "
            "Write it in parts, for example with python.",
        )
    written = workspace.write_bytes(path, data)
    verb = "Created" if written.created else "Replaced"
    return ToolResult.json(
        {"success": True, "path": shown(written.path), "size": written.size, "created": written.created},
        content=f"{verb} {printable(written.path)} ({written.size:,} bytes).",
    )


def search(
    workspace: Workspace,
    path: str,
    *,
    pattern: str | None,
    glob: str | None,
    regex: bool,
    context_lines: int,
    ignored_too: bool = False,
    emit: Callable[..., None] | None = None,
) -> ToolResult:
    """Lines that match in files whose names match; without a pattern, the names."""
    if pattern is None and glob is None:
        raise ToolError("operation 'search' needs a pattern (for lines), a glob (for file names), or both.")
    content = None if pattern is None else compile_pattern(pattern, regex=regex)
    names = None if glob is None else compile_glob(glob)
    found = Search(workspace, content, names, context_lines, ignored_too=ignored_too, emit=emit).run(path)
    value: dict[str, Json] = {}
    lines: list[str] = []
    if content is None:
        value["paths"] = [shown(one) for one in found.paths]
        lines = [printable(one) for one in found.paths]
        nothing = f"No file name matches {glob!r}."
    else:
        value["matches"] = [match.as_json(with_context=context_lines > 0) for match in found.matches]
        lines = list(lines_of(found.matches))
        nothing = f"No line matches in the {found.files:,} files searched."
    if found.notes:
        value["notes"] = found.notes
    return show_list(value, lines or [nothing], found.notes, "search")


def list_folder(workspace: Workspace, path: str, *, glob: str | None) -> ToolResult:
    """What lies directly in a folder, sorted by name."""
    names = None if glob is None else compile_glob(glob)
    rows: list[Entry] = []
    notes: list[str] = []
    with workspace.folder(path, wanted=names and names.fullmatch, most=MAX_ENTRIES) as folder:
        for entry in folder.entries:
            try:
                rows.append(folder.stat(entry.name))
            except FileNotFoundError:
                notes.append(f"{printable(entry.name)} went away while it was listed.")
        where, left_out = printable(folder.path), folder.left_out
        total = left_out + len(folder.entries)
    if left_out:
        notes.append(f"{left_out:,} of {total:,} entries are left out; choose some with glob.")
    listed = [_row(entry) for entry in rows]
    value: dict[str, Json] = {"entries": listed}
    if notes:
        value["notes"] = notes
    nothing = f"The folder {where} is empty." if glob is None else f"Nothing in {where} matches {glob!r}."
    return show_list(value, [_line(row) for row in listed] or [nothing], notes, "list")


def metadata(workspace: Workspace, path: str) -> ToolResult:
    """What one path is; a link is followed."""
    entry = workspace.stat(path)
    row = _row(entry)
    permissions = stat.filemode(entry.stat.st_mode)[1:]
    value: dict[str, Json] = {
        "path": shown(entry.path),
        "kind": entry.kind,
        "size": entry.size,
        "mode": row["mode"],
        "permissions": permissions,
        "modified": row["modified"],
    }
    rights = f"mode {row['mode']} ({permissions})"
    told = f"{entry.kind}, {entry.size:,} bytes, {rights}, modified {row['modified']}"
    return ToolResult.json(value, f"{printable(entry.path)}: {told}")


def _bytes_of(workspace: Workspace, path: str) -> tuple[str, bytes]:
    entry = workspace.stat(path)
    if entry.kind == "file" and entry.size > MAX_FILE_BYTES:
        raise ToolError(
            f"{shown(path)!r} has {entry.size:,} bytes; at most {MAX_FILE_BYTES:,} are read at once. "
            "Take a part of it with sandbox_bash (head, tail, sed -n) or with python.",
        )
    return shown(entry.path), workspace.read_bytes(path, max_bytes=MAX_FILE_BYTES)


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _mime(data: bytes) -> str:
    known = (mime for magic, mime in _MAGIC if data.startswith(magic))
    return next(known, "application/octet-stream")


def _json_bytes(text: str) -> int:
    if len(text) < 1 << 20:  # too short to matter, though a control character takes six bytes
        return len(text)
    from pydantic_core import to_json

    return len(to_json(text))


def _row(entry: Entry) -> dict[str, Json]:
    return {
        "name": shown(entry.name),
        "kind": entry.kind,
        "size": entry.size,
        "mode": f"{entry.mode:04o}",
        "modified": _iso(int(entry.stat.st_mtime)),
    }


def _line(row: dict[str, Json]) -> str:
    mark = {"directory": "/", "symlink": "@", "file": ""}.get(row["kind"], f" ({row['kind']})")
    return f"{row['mode']} {row['size']:>10,} {row['modified']} {printable(row['name'])}{mark}"


@lru_cache(maxsize=1024)
def _iso(second: int) -> str:
    try:
        moment = datetime.fromtimestamp(second, UTC)
    except (OverflowError, ValueError, OSError):  # a file may claim to be from any year
        moment = datetime.max.replace(microsecond=0, tzinfo=UTC)
    return moment.isoformat()
