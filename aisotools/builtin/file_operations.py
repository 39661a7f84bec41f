"""What the file tools do: each operation a function from a workspace and arguments to a result.

What a model reads of files: lines by number, lists of lines, and notes on what was left out.

What the tool `file` does to whole files and folders: append, delete, move, copy.

What goes wrong with files, told so that a model can mend it.
"""

from __future__ import annotations

import difflib
import itertools
import os
import posixpath
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from aisotools.builtin.search import Search, compile_glob, compile_pattern, format_matches
from aisotools.core.exceptions import ToolError, WorkspaceError
from aisotools.core.protocols import ToolContext
from aisotools.core.truncation import CAP
from aisotools.core.types import Json, ToolResult
from aisotools.workspace.dirfd import Entry, kind_of
from aisotools.workspace.paths import ResolvedPath, printable, shown
from aisotools.workspace.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines of a text, exactly as they stand there.

    Attributes:
        text: The lines with their ends.
        start: Number of the first, from 1.
        end: Number of the last; one less than `start` when there is none.
        total: How many lines the whole text has.
        note: What the reader should know about the choice; empty for nothing.
    """

    text: str
    start: int
    end: int
    total: int
    note: str = ""


def lines_between(path: str, text: str, start: int | None, end: int | None) -> Lines:
    r"""The lines from `start` to `end`, both included; only `\n` ends a line.

    Raises:
        ToolError: If `start` lies behind the last line.
    """
    total = text.count("\n") + (not text.endswith("\n") and text != "")
    first = start or 1
    if first > max(total, 1):
        raise ToolError(f"{path!r} has {total:,} lines; start_line {first:,} is past its end.")
    last = total if end is None else min(end, total)
    note = f"The file ends at line {total:,}." if end is not None and end > total else ""
    if first > 1 or last < total:
        chosen = text.split("\n")[first - 1 : last]
        ended = last < total or text.endswith("\n")
        text = "\n".join(chosen) + "\n" * ended
    return Lines(text, first, last, total, note)


def show_lines(path: str, size: int, lines: Lines) -> ToolResult:
    """Lines of a file as a result."""
    value: dict[str, Json] = {
        "path": path,
        "content": lines.text,
        "start_line": lines.start,
        "end_line": lines.end,
        "total_lines": lines.total,
        "size": size,
    }
    return ToolResult.json(value, _with_notes(lines.text, [lines.note] if lines.note else []))


def show_list(value: Json, lines: Sequence[str], notes: Sequence[str], cap: str) -> ToolResult:
    """A list as a result: `value` for programs, lines for a model, who reads as many as `cap` allows."""
    return ToolResult.json(value, _with_notes("\n".join(lines), notes)).with_metadata(**{CAP: cap})


def _with_notes(text: str, notes: Sequence[str]) -> str:
    """Notes in brackets, each on a line of its own, so that they cannot be taken for the file's text."""
    if not notes:
        return text
    gap = "" if not text or text.endswith("\n") else "\n"
    return text + gap + "\n".join(f"[{note}]" for note in notes)


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
    include_ignored: bool = False,
    emit: Callable[..., None] | None = None,
) -> ToolResult:
    """Lines that match in files whose names match; without a pattern, the names."""
    if pattern is None and glob is None:
        raise ToolError("operation 'search' needs a pattern (for lines), a glob (for file names), or both.")
    content = None if pattern is None else compile_pattern(pattern, regex=regex)
    names = None if glob is None else compile_glob(glob)
    found = Search(workspace, content, names, context_lines, include_ignored=include_ignored, emit=emit).run(
        path
    )
    value: dict[str, Json] = {}
    lines: list[str] = []
    if content is None:
        value["paths"] = [shown(one) for one in found.paths]
        lines = [printable(one) for one in found.paths]
        nothing = f"No file name matches {glob!r}."
    else:
        value["matches"] = [match.as_json(with_context=context_lines > 0) for match in found.matches]
        lines = list(format_matches(found.matches))
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


MAX_COPY_BYTES, MAX_COPY_ENTRIES = 1 << 30, 100_000
_REPORT_EVERY = 1_000
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def append(workspace: Workspace, path: str, content: str) -> ToolResult:
    """Text added at the end of a file, which is made if it is missing; the file is replaced at once."""
    try:
        more = content.encode()
    except UnicodeEncodeError as error:
        raise ToolError(
            f"content cannot be stored as UTF-8: half a surrogate pair at character {error.start}.",
        ) from None
    try:
        before = workspace.read_bytes(path, max_bytes=MAX_FILE_BYTES)
    except FileNotFoundError:
        before = b""
    if len(before) + len(more) > MAX_FILE_BYTES:
        raise ToolError(
            f"{shown(path)!r} would have {len(before) + len(more):,} bytes; at most "
            f"{MAX_FILE_BYTES:,} can be "
            "appended to. Use sandbox_bash (>>) or python for larger files."
        )
    written = workspace.write_bytes(path, before + more)
    verb = "Created" if written.created else "Appended to"
    return ToolResult.json(
        {
            "success": True,
            "path": shown(written.path),
            "size": written.size,
            "appended": len(more),
            "created": written.created,
        },
        f"{verb} {printable(written.path)} (+{len(more):,} bytes, now {written.size:,}).",
    )


def delete(workspace: Workspace, path: str, *, recursive: bool) -> ToolResult:
    """A file, a link or a folder removed; one that is not empty only with `recursive`, the root never."""
    where = _not_the_root(workspace, path, "deleted")
    with workspace.locate(where, follow=False) as spot:
        status = _lstat(spot)
        _demand_folder(path, status)
        count = 1
        if not stat.S_ISDIR(status.st_mode):
            spot.unlink()
        elif recursive:
            count = 1 + sum(len(folder.entries) for folder in workspace.walk(where))
            shutil.rmtree(spot.name, dir_fd=spot.directory)
        else:
            try:
                os.rmdir(spot.name, dir_fd=spot.directory)
            except OSError:
                with workspace.folder(where) as folder:
                    held = len(folder.entries)
                if not held:
                    raise
                raise ToolError(
                    f"The folder {shown(where)!r} is not empty: it holds {held:,} entries. "
                    "Set recursive to true to delete it with all it holds.",
                ) from None
    kind = kind_of(status)
    told = f"Deleted the {kind} {printable(where)}" + (f" with {count - 1:,} entries." if count > 1 else ".")
    return ToolResult.json({"success": True, "path": shown(where), "kind": kind, "deleted": count}, told)


def move(workspace: Workspace, path: str, destination: str | None) -> ToolResult:
    """A file, a link or a folder under another name; nothing is replaced."""
    where = _not_the_root(workspace, path, "moved")
    target = _target(workspace, where, destination, "move")
    with (
        workspace.locate(where, follow=False) as source,
        workspace.locate(target, follow=False, make_parents=True) as place,
    ):
        kind, made = kind_of(_lstat(source)), place.path
        _demand_apart(where, made)
        _demand_free(place)
        source.rename(place)
    return ToolResult.json(
        {"success": True, "path": shown(where), "destination": shown(made), "kind": kind},
        f"Moved {printable(where)} to {printable(made)}.",
    )


def copy(workspace: Workspace, path: str, destination: str | None, context: ToolContext) -> ToolResult:
    """A file or a folder with all it holds, once more under another name; nothing is replaced.

    Links are copied as links; what is neither file, folder nor link is left out, and that is said.
    """
    where = workspace.relative(path)
    target = _target(workspace, where, destination, "copy")
    copied = _Copy(workspace, context)
    kind = workspace.stat(where).kind
    with workspace.locate(target, follow=False, make_parents=True) as place:
        target = place.path
        _demand_apart(where, target)
        _demand_free(place)
        try:
            if kind == "directory":
                copied.tree(where, target)
            else:
                with workspace.open(where) as file:
                    copied.file(file, place)
        except BaseException:
            copied.take_back(target)
            raise
    value = {
        "success": True,
        "path": shown(where),
        "destination": shown(target),
        "kind": kind,
        "files": copied.files,
        "size": copied.size,
        "left_out": copied.left_out,
    }
    told = (
        f"Copied {printable(where)} to {printable(target)} ({copied.files:,} files, {copied.size:,} bytes)."
    )
    if copied.left_out:
        told += f" {copied.left_out:,} entries that are no files, folders or links were left out."
    return ToolResult.json(value, told)


class _Copy:
    """One copy under way, and what it made."""

    def __init__(self, workspace: Workspace, context: ToolContext) -> None:
        self._workspace, self._context = workspace, context
        self.files = self.size = self.left_out = 0
        self._entries = 0
        self._began = False

    def file(self, source: int, place: ResolvedPath) -> None:
        """One regular file, with its permission bits as far as they can be given."""
        status = os.fstat(source)
        self._count(status.st_size)
        made = os.open(place.name, _CREATE, stat.S_IMODE(status.st_mode) & 0o777, dir_fd=place.directory)
        self._began = True
        try:
            while data := os.read(source, 1 << 20):
                self.size += len(data)
                view = memoryview(data)
                while view:
                    view = view[os.write(made, view) :]
        finally:
            os.close(made)
        self.files += 1

    def tree(self, where: str, target: str) -> None:
        """A folder with all it holds."""
        self._make_folder(target)
        for folder in self._workspace.walk(where):
            if folder.error is not None:
                raise folder.error
            below = target + folder.path[len(where) :] if where != "." else f"{target}/{folder.path}"
            for entry in folder.entries:
                self._entry(folder.directory, entry, f"{below}/{entry.name}")

    def _entry(self, directory: int, entry: os.DirEntry[str], target: str) -> None:
        if entry.is_dir(follow_symlinks=False):
            self._make_folder(target)
        elif entry.is_symlink():
            self._count(0)
            with self._workspace.locate(target, follow=False) as place:
                os.symlink(os.readlink(entry.name, dir_fd=directory), place.name, dir_fd=place.directory)
        elif entry.is_file(follow_symlinks=False):
            source = os.open(entry.name, _READ, dir_fd=directory)
            try:
                with self._workspace.locate(target, follow=False) as place:
                    self.file(source, place)
            finally:
                os.close(source)
        else:
            self.left_out += 1

    def _make_folder(self, path: str) -> None:
        self._count(0)
        with self._workspace.locate(path, follow=False) as place:
            os.mkdir(place.name, dir_fd=place.directory)
        self._began = True

    def _count(self, size: int) -> None:
        self._entries += 1
        if self._entries > MAX_COPY_ENTRIES or self.size + size > MAX_COPY_BYTES:
            raise ToolError(
                f"That is more than {MAX_COPY_ENTRIES:,} entries or {MAX_COPY_BYTES:,} bytes; nothing "
                "was copied. "
                "Copy a part, or use sandbox_bash (cp -r)."
            )
        if not self._entries % _REPORT_EVERY:
            self._context.emit("progress", done=self._entries, what="entries copied")
        if self._context.cancellation.cancelled:
            raise ToolError("The copy was cancelled; nothing was copied.")

    def take_back(self, target: str) -> None:
        """Remove what was made, after a failure."""
        if not self._began:
            return
        with suppress(OSError), self._workspace.locate(target, follow=False) as place:
            if stat.S_ISDIR(_lstat(place).st_mode):
                shutil.rmtree(place.name, dir_fd=place.directory)
            else:
                place.unlink()


def _not_the_root(workspace: Workspace, path: str, what: str) -> str:
    where = workspace.relative(path.rstrip("/") or path, follow=False)
    if where == ".":
        raise ToolError(
            f"{shown(path)!r} is the workspace itself, which is never {what}. Name what is in it."
        )
    return where


def _target(workspace: Workspace, where: str, destination: str | None, operation: str) -> str:
    """Where a move or copy leads: the destination, or into it if it is a folder."""
    if destination is None:
        raise ToolError(
            f"operation '{operation}' needs destination: the new path, or a folder to put it into."
        )
    try:
        into = workspace.stat(destination).kind == "directory"
    except FileNotFoundError:
        into = destination.endswith("/")
    return f"{destination.rstrip('/')}/{where.rpartition('/')[2]}" if into else destination


def _demand_apart(where: str, target: str) -> None:
    if where == "." or f"{target}/".startswith(f"{where}/"):
        told = "itself" if target == where else f"a part of itself, {shown(target)!r}"
        raise ToolError(f"{shown(where)!r} cannot be put into {told}. Give another destination.")


def _lstat(spot: ResolvedPath) -> os.stat_result:
    return os.stat(spot.name, dir_fd=spot.directory, follow_symlinks=False)


def _demand_folder(path: str, status: os.stat_result) -> None:
    if path.endswith("/") and not stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{shown(path)!r} asks for a folder, and this is a {kind_of(status)}.")


def _demand_free(place: ResolvedPath) -> None:
    with suppress(FileNotFoundError):
        kind = kind_of(_lstat(place))
        raise ToolError(
            f"{shown(place.path)!r} is there already, a {kind}, and is not replaced. "
            "Give another destination, or delete it first.",
        )


_MAX_NAMES = 2_000
"""How many names of a folder are compared with a missing one."""


@contextmanager
def for_the_model(workspace: Workspace, path: str) -> Iterator[None]:
    """Turn what fails in the `with` block into a `ToolError` about `path`.

    Raises:
        ToolError: Naming the path, what is wrong with it, and what to do.
    """
    told = repr(path)
    try:
        yield
    except WorkspaceError as error:
        raise ToolError(str(error)) from None
    except FileNotFoundError:
        raise ToolError(_missing(workspace, path)) from None
    except IsADirectoryError:
        raise ToolError(
            f"{told} is a folder, not a file. See what is in it with the tool file, operation 'list'.",
        ) from None
    except NotADirectoryError:
        raise ToolError(_not_a_folder(workspace, path)) from None
    except PermissionError:
        raise ToolError(
            f"{told} may not be used that way: permission denied. Its mode is told by the tool file, "
            "operation 'metadata'; it cannot be changed from here. Use another path.",
        ) from None
    except OSError as error:
        raise ToolError(f"{told}: {error.strerror or error}.") from None


def _missing(workspace: Workspace, path: str) -> str:
    above, name = _nearest(workspace, path)
    if above.kind != "directory":
        return _not_a_folder(workspace, path)
    where = "the workspace" if above.path == "." else f"the folder {shown(above.path)!r}"
    told = f"There is no {name!r} in {where}."
    try:
        with workspace.folder(above.path) as folder:
            names = [entry.name for entry in itertools.islice(folder.entries, _MAX_NAMES)]
    except OSError as error:
        return f"{told} What else is there cannot be told: {error.strerror}."
    if not names:
        return f"{told} It is empty."
    by_lower = {one.lower(): one for one in names}
    near = [by_lower[one] for one in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    listed = ", ".join(printable(one) for one in near or names[:5])
    more = f" and {len(names) - 5:,} more" if not near and len(names) > 5 else ""
    return f"{told} {'The nearest names there are' if near else 'It holds'}: {listed}{more}."


def _not_a_folder(workspace: Workspace, path: str) -> str:
    above, _ = _nearest(workspace, path.rstrip("/") + "/below")
    if above.kind == "directory":  # it became one in the meantime
        return f"{shown(path)!r} was no folder just now. Try again."
    return f"{shown(above.path)!r} is a {above.kind}, not a folder. Read a file with operation 'read'."


def _nearest(workspace: Workspace, path: str) -> tuple[Entry, str]:
    """What exists nearest above a path, and the name that is missing in it."""
    above, name = posixpath.split(path.rstrip("/"))
    while True:
        try:
            return workspace.stat(above or "."), name
        except OSError:
            if above in {"", "/"}:
                raise
            above, name = posixpath.split(above.rstrip("/"))
