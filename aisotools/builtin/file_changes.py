"""What the tool `file` does to whole files and folders: append, delete, move, copy."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress

from aisotools.builtin.file_operations import MAX_FILE_BYTES
from aisotools.contracts import ToolContext
from aisotools.events import ToolResult
from aisotools.exceptions import ToolError
from aisotools.folders import kind_of
from aisotools.paths import Spot, printable, shown
from aisotools.workspace import Workspace

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

    def file(self, source: int, place: Spot) -> None:
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


def _lstat(spot: Spot) -> os.stat_result:
    return os.stat(spot.name, dir_fd=spot.directory, follow_symlinks=False)


def _demand_folder(path: str, status: os.stat_result) -> None:
    if path.endswith("/") and not stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{shown(path)!r} asks for a folder, and this is a {kind_of(status)}.")


def _demand_free(place: Spot) -> None:
    with suppress(FileNotFoundError):
        kind = kind_of(_lstat(place))
        raise ToolError(
            f"{shown(place.path)!r} is there already, a {kind}, and is not replaced. "
            "Give another destination, or delete it first.",
        )
