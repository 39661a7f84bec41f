"""File operations behind the tools `file`, `sandbox_read` and `sandbox_write`.

Each operation takes a workspace and arguments and returns a result for a model. `translate_errors` turns what
fails into messages that name the path and the next step; other tools use it too.
"""

from __future__ import annotations

import difflib
import errno
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
from aisotools.workspace.checkpoints.removal import remove_tree
from aisotools.workspace.dirfd import Entry, kind_of, write_all
from aisotools.workspace.paths import ResolvedPath, as_utf8, printable
from aisotools.workspace.workspace import Workspace

MAX_FILE_BYTES = 10 << 20
"""The largest file that is read or written in one call."""

MAX_ENTRIES = 5_000
"""Entries in one listing."""

MAX_COPY_BYTES = 1 << 30
MAX_COPY_ENTRIES = 100_000

_PROGRESS_INTERVAL_ENTRIES = 1_000
_MAX_NAMES = 2_000
"""Names of a folder that are compared with a missing one."""

# O_NONBLOCK: a file that was exchanged for a FIFO must not block the open.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


# ---- errors


@contextmanager
def translate_errors(workspace: Workspace, path: str) -> Iterator[None]:
    """Turn file errors in the `with` block into a `ToolError` about `path`.

    Raises:
        ToolError: Naming the path, what is wrong with it, and what to do.
    """
    name = repr(path)
    try:
        yield
    except WorkspaceError as error:
        raise ToolError(str(error)) from None
    except FileNotFoundError:
        raise ToolError(_describe_missing(workspace, path)) from None
    except IsADirectoryError:
        raise ToolError(
            f"{name} is a folder, not a file. List what is in it with the tool file, operation 'list'.",
        ) from None
    except NotADirectoryError:
        raise ToolError(_describe_no_folder(workspace, path)) from None
    except PermissionError:
        raise ToolError(
            f"{name}: permission denied. The tool file, operation 'metadata', shows its mode; "
            "modes cannot be changed from here. Use another path.",
        ) from None
    except OSError as error:
        raise ToolError(f"{name}: {error.strerror or error}.") from None


def _describe_missing(workspace: Workspace, path: str) -> str:
    above, name = _nearest_existing(workspace, path)
    if above.kind != "directory":
        return _describe_no_folder(workspace, path)
    where = "the workspace" if above.path == "." else f"the folder {as_utf8(above.path)!r}"
    message = f"There is no {name!r} in {where}."
    try:
        with workspace.folder(above.path) as folder:
            names = [entry.name for entry in itertools.islice(folder.entries, _MAX_NAMES)]
    except OSError as error:
        return f"{message} What else is there cannot be listed: {error.strerror}."
    if not names:
        return f"{message} It is empty."
    by_lower = {name.lower(): name for name in names}
    near = [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)]
    listed = ", ".join(printable(name) for name in near or names[:5])
    more = f" and {len(names) - 5:,} more" if not near and len(names) > 5 else ""
    return f"{message} {'The nearest names there are' if near else 'It holds'}: {listed}{more}."


def _describe_no_folder(workspace: Workspace, path: str) -> str:
    above, _ = _nearest_existing(workspace, path.rstrip("/") + "/below")
    if above.kind == "directory":
        # Race: another process made it a folder after the operation failed.
        return f"{as_utf8(path)!r} was not a folder a moment ago, and is one now. Try again."
    return f"{as_utf8(above.path)!r} is a {above.kind}, not a folder. Read a file with operation 'read'."


def _nearest_existing(workspace: Workspace, path: str) -> tuple[Entry, str]:
    """Return the nearest existing entry above `path`, and the name that is missing in it."""
    above, name = posixpath.split(path.rstrip("/"))
    while True:
        try:
            return workspace.stat(above or "."), name
        except OSError:
            if above in {"", "/"}:
                raise
            above, name = posixpath.split(above.rstrip("/"))


# ---- reading


@dataclass(frozen=True, slots=True)
class Lines:
    """A range of lines, exactly as in the text.

    Attributes:
        text: The lines with their ends.
        start: Number of the first, from 1.
        end: Number of the last; `start - 1` if the range is empty.
        total: Number of lines of the whole text.
        note: A sentence for the reader about the range, or empty.
    """

    text: str
    start: int
    end: int
    total: int
    note: str = ""


def select_lines(path: str, text: str, start: int | None, end: int | None) -> Lines:
    r"""Return the lines from `start` to `end`, both included; only `\n` ends a line.

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
        has_line_end = last < total or text.endswith("\n")
        text = "\n".join(text.split("\n")[first - 1 : last])
        if has_line_end:
            text += "\n"
    return Lines(text, first, last, total, note)


def read_lines(
    workspace: Workspace,
    path: str,
    *,
    start: int | None,
    end: int | None,
) -> ToolResult:
    """Read lines of a text file, from `start` (1 is the first) to `end`, both included; None for no bound."""
    if start is not None and end is not None and end < start:
        raise ToolError(f"end_line {end} comes before start_line {start}. Exchange them, or leave one out.")
    where, data = _read_bytes(workspace, path)
    text = None if b"\0" in data else _decode(data)
    if text is None:
        raise ToolError(
            f"{where!r} is a binary file ({_mime(data)}, {len(data):,} bytes), so it has no lines to read. "
            "Use sandbox_read for its bytes, or python to work on it.",
        )
    lines = select_lines(where, text, start, end)
    value: dict[str, Json] = {
        "path": where,
        "content": lines.text,
        "start_line": lines.start,
        "end_line": lines.end,
        "total_lines": lines.total,
        "size": len(data),
    }
    return ToolResult.json(value, _append_notes(lines.text, [lines.note] if lines.note else []))


def read_whole(workspace: Workspace, path: str, *, max_json_bytes: int) -> ToolResult:
    """Read a whole file: as text if it is UTF-8 and at most `max_json_bytes` long as JSON, else as binary."""
    where, data = _read_bytes(workspace, path)
    text = _decode(data)
    if text is None or _json_bytes(text) > max_json_bytes:
        return ToolResult.binary(data, _mime(data)).with_metadata(path=where, size=len(data))
    return ToolResult.json({"content": text, "size": len(data), "path": where}, text)


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
    """Find lines that match `pattern` in files that match `glob`; without a pattern, the file names."""
    if pattern is None and glob is None:
        raise ToolError("operation 'search' needs a pattern (for lines), a glob (for file names), or both.")
    content = None if pattern is None else compile_pattern(pattern, regex=regex)
    names = None if glob is None else compile_glob(glob)
    run = Search(workspace, content, names, context_lines, include_ignored=include_ignored, emit=emit).run
    found = run(path)
    value: dict[str, Json] = {}
    lines: list[str] = []
    if content is None:
        value["paths"] = [as_utf8(match) for match in found.paths]
        lines = [printable(match) for match in found.paths]
        nothing = f"No file name matches {glob!r}."
    else:
        value["matches"] = [match.as_json(with_context=context_lines > 0) for match in found.matches]
        lines = list(format_matches(found.matches))
        nothing = f"No line matches in the {found.files:,} files searched."
    if found.notes:
        value["notes"] = found.notes
    return _list_result(value, lines or [nothing], found.notes, "search")


def list_files(workspace: Workspace, path: str, *, glob: str | None) -> ToolResult:
    """List the entries directly in a folder, sorted by name."""
    names = None if glob is None else compile_glob(glob)
    entries: list[Entry] = []
    notes: list[str] = []
    with workspace.folder(path, wanted=names and names.fullmatch, most=MAX_ENTRIES) as folder:
        for entry in folder.entries:
            try:
                entries.append(folder.stat(entry.name))
            except FileNotFoundError:
                # Race: another process deleted it after the folder was read.
                notes.append(f"{printable(entry.name)} went away while it was listed.")
        where = printable(folder.path)
        omitted = folder.left_out
        total = omitted + len(folder.entries)
    if omitted:
        notes.append(f"{omitted:,} of {total:,} entries are left out; choose some with glob.")
    rows = [_row(entry) for entry in entries]
    value: dict[str, Json] = {"entries": rows}
    if notes:
        value["notes"] = notes
    nothing = f"The folder {where} is empty." if glob is None else f"Nothing in {where} matches {glob!r}."
    return _list_result(value, [_format_row(row) for row in rows] or [nothing], notes, "list")


def metadata(workspace: Workspace, path: str) -> ToolResult:
    """Return kind, size, mode and modification time of one path; links are followed."""
    entry = workspace.stat(path)
    row = _row(entry)
    permissions = stat.filemode(entry.stat.st_mode)[1:]
    value: dict[str, Json] = {
        "path": as_utf8(entry.path),
        "kind": entry.kind,
        "size": entry.size,
        "mode": row["mode"],
        "permissions": permissions,
        "modified": row["modified"],
    }
    mode = f"mode {row['mode']} ({permissions})"
    description = f"{entry.kind}, {entry.size:,} bytes, {mode}, modified {row['modified']}"
    return ToolResult.json(value, f"{printable(entry.path)}: {description}")


def _list_result(value: Json, lines: Sequence[str], notes: Sequence[str], cap: str) -> ToolResult:
    """Build a list result; `cap` names the limit on how much of it a model is shown."""
    return ToolResult.json(value, _append_notes("\n".join(lines), notes)).with_metadata(**{CAP: cap})


def _append_notes(text: str, notes: Sequence[str]) -> str:
    # In brackets and on lines of their own, so that a model does not take them for the file's text.
    if not notes:
        return text
    gap = "" if not text or text.endswith("\n") else "\n"
    return text + gap + "\n".join(f"[{note}]" for note in notes)


def _read_bytes(workspace: Workspace, path: str) -> tuple[str, bytes]:
    entry = workspace.stat(path)
    if entry.kind == "file" and entry.size > MAX_FILE_BYTES:
        raise ToolError(
            f"{as_utf8(path)!r} has {entry.size:,} bytes; at most {MAX_FILE_BYTES:,} are read at once. "
            "Take a part of it with sandbox_bash (head, tail, sed -n) or with python.",
        )
    return as_utf8(entry.path), workspace.read_bytes(path, max_bytes=MAX_FILE_BYTES)


def _decode(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _mime(data: bytes) -> str:
    known = (mime for magic, mime in _MAGIC if data.startswith(magic))
    return next(known, "application/octet-stream")


def _json_bytes(text: str) -> int:
    # Too short to matter, although a control character takes six bytes as JSON.
    if len(text) < 1 << 20:
        return len(text)
    from pydantic_core import to_json

    return len(to_json(text))


def _row(entry: Entry) -> dict[str, Json]:
    return {
        "name": as_utf8(entry.name),
        "kind": entry.kind,
        "size": entry.size,
        "mode": f"{entry.mode:04o}",
        "modified": _format_time(int(entry.stat.st_mtime)),
    }


def _format_row(row: dict[str, Json]) -> str:
    mark = {"directory": "/", "symlink": "@", "file": ""}.get(row["kind"], f" ({row['kind']})")
    return f"{row['mode']} {row['size']:>10,} {row['modified']} {printable(row['name'])}{mark}"


@lru_cache(maxsize=1024)
def _format_time(second: int) -> str:
    try:
        moment = datetime.fromtimestamp(second, UTC)
    except (OverflowError, ValueError, OSError):  # a file's time may lie in any year
        moment = datetime.max.replace(microsecond=0, tzinfo=UTC)
    return moment.isoformat()


# ---- changing


def write(workspace: Workspace, path: str, content: str) -> ToolResult:
    """Create or replace a file with exactly `content`."""
    if path.endswith("/"):
        raise ToolError(
            f"{as_utf8(path)!r} names a folder, for it ends with a slash. Give the name of a file."
        )
    data = _encode(content)
    if len(data) > MAX_FILE_BYTES:
        raise ToolError(
            f"content has {len(data):,} bytes; at most {MAX_FILE_BYTES:,} are written at once. "
            "Write it in parts, for example with python.",
        )
    written = workspace.write_bytes(path, data)
    verb = "Created" if written.created else "Replaced"
    return ToolResult.json(
        {
            "success": True,
            "path": as_utf8(written.path),
            "size": written.size,
            "created": written.created,
        },
        content=f"{verb} {printable(written.path)} ({written.size:,} bytes).",
    )


def append(workspace: Workspace, path: str, content: str) -> ToolResult:
    """Add `content` at the end of a file, which is created if missing. The file is replaced atomically."""
    addition = _encode(content)
    try:
        before = workspace.read_bytes(path, max_bytes=MAX_FILE_BYTES)
    except FileNotFoundError:
        before = b""
    if len(before) + len(addition) > MAX_FILE_BYTES:
        raise ToolError(
            f"{as_utf8(path)!r} would have {len(before) + len(addition):,} bytes; at most "
            f"{MAX_FILE_BYTES:,} can be appended to. Use sandbox_bash (>>) or python for larger files."
        )
    written = workspace.write_bytes(path, before + addition)
    verb = "Created" if written.created else "Appended to"
    return ToolResult.json(
        {
            "success": True,
            "path": as_utf8(written.path),
            "size": written.size,
            "appended": len(addition),
            "created": written.created,
        },
        f"{verb} {printable(written.path)} (+{len(addition):,} bytes, now {written.size:,}).",
    )


def _encode(content: str) -> bytes:
    try:
        return content.encode()
    except UnicodeEncodeError as error:
        raise ToolError(
            f"content cannot be stored as UTF-8: half a surrogate pair at character {error.start}.",
        ) from None


def delete(workspace: Workspace, path: str, *, recursive: bool) -> ToolResult:
    """Delete a file, a link itself, or a folder: a non-empty one only with `recursive`, the root never."""
    where = _require_not_root(workspace, path, "deleted")
    with workspace.locate(where, follow=False) as resolved:
        status = _lstat(resolved)
        _require_folder_for_slash(path, status)
        count, is_all = 1, True
        if not stat.S_ISDIR(status.st_mode):
            resolved.unlink()
        elif recursive:
            for below in workspace.walk(where):
                count += len(below.entries)
                is_all = is_all and below.error is None
            try:
                # rmtree by descriptor: it follows no link that is put in its way.
                shutil.rmtree(resolved.name, dir_fd=resolved.directory)
            except (RecursionError, OSError) as error:
                if isinstance(error, OSError) and error.errno != errno.EMFILE:
                    raise
                # Code can nest folders deeper than any path leads, and must be able to get rid of them.
                remove_tree(resolved.directory, (resolved.name,))
        else:
            _delete_empty_folder(workspace, where, resolved)
    kind = kind_of(status)
    contents = f" with {'' if is_all else 'at least '}{count - 1:,} entries" if count > 1 else ""
    return ToolResult.json(
        {"success": True, "path": as_utf8(where), "kind": kind, "deleted": count},
        f"Deleted the {kind} {printable(where)}{contents}.",
    )


def _delete_empty_folder(workspace: Workspace, where: str, resolved: ResolvedPath) -> None:
    try:
        os.rmdir(resolved.name, dir_fd=resolved.directory)
    except OSError:
        with workspace.folder(where) as folder:
            count = len(folder.entries)
        if not count:
            raise
        raise ToolError(
            f"The folder {as_utf8(where)!r} is not empty: it holds {count:,} entries. "
            "Set recursive to true to delete it with all it holds.",
        ) from None


def move(workspace: Workspace, path: str, destination: str | None) -> ToolResult:
    """Rename a file, a link or a folder. An existing destination is refused."""
    where = _require_not_root(workspace, path, "moved")
    target = _resolve_destination(workspace, where, destination, "move")
    if denied := workspace.find_denied(where):
        # Under another name the rule would not concern it any more.
        raise ToolError(_describe_denied(where, denied, "moved"))
    with (
        workspace.locate(where, follow=False) as source,
        workspace.locate(target, follow=False, make_parents=True) as resolved,
    ):
        kind = kind_of(_lstat(source))
        target = resolved.path
        _require_not_inside(where, target)
        _require_free(resolved)
        try:
            # Race: a file that appears there after the line above is replaced, as by `mv`.
            source.rename(resolved)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            raise ToolError(
                f"{as_utf8(where)!r} cannot be renamed to {as_utf8(target)!r}: they are on different mounts, "
                "as a folder is in which a rule hides files. Copy it there, and delete it here."
            ) from error
    return ToolResult.json(
        {"success": True, "path": as_utf8(where), "destination": as_utf8(target), "kind": kind},
        f"Moved {printable(where)} to {printable(target)}.",
    )


def copy(workspace: Workspace, path: str, destination: str | None, context: ToolContext) -> ToolResult:
    """Copy a file or a folder tree. An existing destination is refused.

    Links are copied as links. What is neither file, folder nor link is left out and counted. A copy that
    fails or is cancelled is removed.
    """
    where = workspace.relative(path)
    target = _resolve_destination(workspace, where, destination, "copy")
    if denied := workspace.find_denied(where):
        raise ToolError(_describe_denied(where, denied, "copied"))
    operation = _Copy(workspace, context)
    kind = workspace.stat(where).kind
    with workspace.locate(target, follow=False, make_parents=True) as resolved:
        target = resolved.path
        _require_not_inside(where, target)
        _require_free(resolved)
        try:
            if kind == "directory":
                operation.copy_tree(where, target)
            else:
                with workspace.open(where) as file:
                    operation.copy_file(file, resolved)
        except BaseException:
            operation.roll_back(target)
            raise
    value = {
        "success": True,
        "path": as_utf8(where),
        "destination": as_utf8(target),
        "kind": kind,
        "files": operation.files,
        "size": operation.bytes,
        "left_out": operation.omitted,
    }
    content = (
        f"Copied {printable(where)} to {printable(target)}"
        f" ({operation.files:,} files, {operation.bytes:,} bytes)."
    )
    if operation.omitted:
        content += f" {operation.omitted:,} entries that are not files, folders or links were left out."
    return ToolResult.json(value, content)


class _Copy:
    """A copy in progress; counts what it created."""

    def __init__(self, workspace: Workspace, context: ToolContext) -> None:
        self._workspace = workspace
        self._context = context
        self.files = 0
        self.bytes = 0
        self.omitted = 0
        self._entries = 0
        # False until the target itself was created: an entry that another process made is not ours to remove.
        self._created_target = False

    def copy_file(self, source: int, target: ResolvedPath) -> None:
        """Copy one open regular file and its permission bits; setuid and the like are dropped."""
        status = os.fstat(source)
        self._count_entry(status.st_size)
        mode = stat.S_IMODE(status.st_mode) & 0o777
        descriptor = os.open(target.name, _CREATE, mode, dir_fd=target.directory)
        self._created_target = True
        try:
            while data := os.read(source, 1 << 20):
                self.bytes += len(data)
                write_all(descriptor, data)
        finally:
            os.close(descriptor)
        self.files += 1

    def copy_tree(self, where: str, target: str) -> None:
        """Copy a folder with everything in it."""
        self._create_folder(target)
        for folder in self._workspace.walk(where):
            if folder.error is not None:
                raise folder.error
            below = target + folder.path[len(where) :] if where != "." else f"{target}/{folder.path}"
            for entry in folder.entries:
                self._copy_entry(folder.directory, entry, f"{below}/{entry.name}")

    def _copy_entry(self, directory: int, entry: os.DirEntry[str], target: str) -> None:
        if entry.is_dir(follow_symlinks=False):
            self._create_folder(target)
        elif entry.is_symlink():
            self._count_entry(0)
            with self._workspace.locate(target, follow=False) as resolved:
                os.symlink(
                    os.readlink(entry.name, dir_fd=directory), resolved.name, dir_fd=resolved.directory
                )
        elif entry.is_file(follow_symlinks=False):
            source = os.open(entry.name, _READ, dir_fd=directory)
            try:
                with self._workspace.locate(target, follow=False) as resolved:
                    self.copy_file(source, resolved)
            finally:
                os.close(source)
        else:
            self.omitted += 1

    def _create_folder(self, path: str) -> None:
        self._count_entry(0)
        with self._workspace.locate(path, follow=False) as resolved:
            os.mkdir(resolved.name, dir_fd=resolved.directory)
        self._created_target = True

    def _count_entry(self, size: int) -> None:
        self._entries += 1
        if self._entries > MAX_COPY_ENTRIES or self.bytes + size > MAX_COPY_BYTES:
            raise ToolError(
                f"That is more than {MAX_COPY_ENTRIES:,} entries or {MAX_COPY_BYTES:,} bytes; nothing "
                "was copied. Copy a part, or use sandbox_bash (cp -r)."
            )
        if not self._entries % _PROGRESS_INTERVAL_ENTRIES:
            self._context.emit("progress", done=self._entries, what="entries copied")
        if self._context.cancellation.cancelled:
            raise ToolError("The copy was cancelled; nothing was copied.")

    def roll_back(self, target: str) -> None:
        """Remove what was created."""
        if not self._created_target:
            return
        # Half a copy would be taken for a whole one. Race: a program in the sandbox may have replaced it by a
        # link, which is not followed; what cannot be removed must not hide the error that is reported.
        with suppress(OSError), self._workspace.locate(target, follow=False) as resolved:
            if stat.S_ISDIR(_lstat(resolved).st_mode):
                shutil.rmtree(resolved.name, dir_fd=resolved.directory)
            else:
                resolved.unlink()


def _describe_denied(where: str, denied: str, action: str) -> str:
    reason = f"a rule of the policy denies {as_utf8(denied)!r}"
    if where == denied:
        return f"{as_utf8(where)!r} was not {action}: {reason}."
    return (
        f"{as_utf8(where)!r} was not {action}: {reason}, which is in it. What else is in it can be {action} "
        "by itself."
    )


def _require_not_root(workspace: Workspace, path: str, action: str) -> str:
    where = workspace.relative(path.rstrip("/") or path, follow=False)
    if where == ".":
        raise ToolError(
            f"{as_utf8(path)!r} is the workspace itself, which is never {action}. Name what is in it."
        )
    return where


def _resolve_destination(workspace: Workspace, where: str, destination: str | None, operation: str) -> str:
    """Return where a move or copy leads: the destination, or the same name in it if it is a folder."""
    if destination is None:
        raise ToolError(
            f"operation '{operation}' needs destination: the new path, or a folder to put it into."
        )
    try:
        is_folder = workspace.stat(destination).kind == "directory"
    except FileNotFoundError:
        is_folder = destination.endswith("/")
    return f"{destination.rstrip('/')}/{where.rpartition('/')[2]}" if is_folder else destination


def _require_not_inside(where: str, target: str) -> None:
    if where == "." or f"{target}/".startswith(f"{where}/"):
        place = "itself" if target == where else f"a part of itself, {as_utf8(target)!r}"
        raise ToolError(f"{as_utf8(where)!r} cannot be put into {place}. Give another destination.")


def _lstat(resolved: ResolvedPath) -> os.stat_result:
    return os.stat(resolved.name, dir_fd=resolved.directory, follow_symlinks=False)


def _require_folder_for_slash(path: str, status: os.stat_result) -> None:
    if path.endswith("/") and not stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{as_utf8(path)!r} asks for a folder, and this is a {kind_of(status)}.")


def _require_free(resolved: ResolvedPath) -> None:
    with suppress(FileNotFoundError):
        kind = kind_of(_lstat(resolved))
        raise ToolError(
            f"{as_utf8(resolved.path)!r} is there already, a {kind}, and is not replaced. "
            "Give another destination, or delete it first.",
        )
