"""The tool `apply_patch`: apply a unified diff to several files, all of it or none.

Diffs are parsed leniently, as models write them: wrong counts and line numbers, lost context and trailing
white space are tolerated within bounds, and every tolerance is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Annotated

from pydantic import Field

from aisotools.builtin.edit import Text
from aisotools.builtin.file_operations import MAX_FILE_BYTES, translate_errors
from aisotools.builtin.files import workspace_of
from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Effect, Facts, Json, ToolResult
from aisotools.tools.adapter import register_builtin
from aisotools.tools.function import tool
from aisotools.workspace.paths import as_utf8, printable
from aisotools.workspace.read_tracker import FileTouch
from aisotools.workspace.workspace import Workspace

MAX_FILES = 100
# The policy parses a patch on the event loop. These take it some 10 ms.
_MAX_LINES = 10_000
_MAX_HUNKS = 1_000
_MAX_FUZZ = 2
"""Context lines at either end of a hunk that may differ, as in GNU patch."""
_MAX_PLACES = 50_000
"""Places considered for one hunk."""

_HUNK_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


# ---- parsing


@dataclass(frozen=True, slots=True)
class Hunk:
    """A contiguous change in one file.

    Attributes:
        line: First line in the old file according to the diff, from 1; 0 if the diff does not say.
        before: The old lines, without their ends.
        after: The new lines.
        head: Number of context lines at the beginning.
        tail: Number of context lines at the end.
        old_lacks_newline: The old text ends with this hunk, without a line feed.
        new_lacks_newline: The new text does.
    """

    line: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    head: int
    tail: int
    old_lacks_newline: bool = False
    new_lacks_newline: bool = False


@dataclass(frozen=True, slots=True)
class FilePatch:
    """The part of a diff that concerns one file.

    Attributes:
        old: Path before, or None if the file is created.
        new: Path afterwards, or None if the file is deleted.
        hunks: The changes, top to bottom.
    """

    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...] = ()

    @property
    def path(self) -> str:
        """The path for messages."""
        return self.new or self.old or ""


@lru_cache(maxsize=1)  # what a call changes is asked for several times before it is made
def parse_patch(text: str) -> tuple[FilePatch, ...]:
    """Parse a unified diff.

    Raises:
        ToolError: If it is malformed; the message names the line. Or if it is so long that parsing it would
            hold up the event loop, on which the policy looks at it.
    """
    if text.lstrip().startswith("*** Begin Patch"):
        raise ToolError(
            "This is not a unified diff. Write '--- a/file', '+++ b/file' and '@@ -1,3 +1,4 @@' lines."
        )
    if "GIT binary patch" in text or re.search(r"^Binary files .* differ$", text, re.MULTILINE):
        raise ToolError("Binary patches cannot be applied. Write the file with python.")
    if (count := text.count("\n")) > _MAX_LINES:
        raise ToolError(
            f"The patch has {count:,} lines; at most {_MAX_LINES:,} are applied at once. Split it."
        )
    if (count := text.count("\n@@")) > _MAX_HUNKS:
        raise ToolError(
            f"The patch has {count:,} hunks; at most {_MAX_HUNKS:,} are applied at once. Split it."
        )
    files = tuple(islice(_DiffParser(text).files(), MAX_FILES + 1))
    if not files:
        raise ToolError("The patch names no file. A unified diff begins with '--- a/file' and '+++ b/file'.")
    if len(files) > MAX_FILES:
        raise ToolError(
            f"The patch changes more than {MAX_FILES} files; at most {MAX_FILES} are changed at once."
        )
    paths: set[str] = set()
    for path in (path for file in files for path in {file.old, file.new} if path is not None):
        if path in paths:
            raise ToolError(f"The patch names {path!r} twice. Put all hunks of a file under one header.")
        paths.add(path)
    return files


class _DiffParser:
    """A recursive-descent parser over the lines of a diff."""

    def __init__(self, text: str) -> None:
        self._lines = text.replace("\r\n", "\n").split("\n")
        self._index = 0

    def files(self) -> Iterator[FilePatch]:
        """Yield each file with its hunks."""
        while self._index < len(self._lines):
            if self._line.startswith("diff --git "):
                yield self._parse_git()
            elif self._is_header():
                yield self._parse_plain()
            elif self._line.startswith("@@ "):
                raise ToolError(
                    f"Line {self._index + 1} of the patch is a hunk without a file. Name the file before it."
                )
            else:
                self._index += 1

    @property
    def _line(self) -> str:
        return self._lines[self._index] if self._index < len(self._lines) else ""

    def _is_header(self) -> bool:
        following = self._lines[self._index + 1] if self._index + 1 < len(self._lines) else ""
        return self._line.startswith("--- ") and following.startswith("+++ ")

    def _parse_git(self) -> FilePatch:
        number = self._index + 1
        old = new = None
        created = deleted = False
        paths = re.fullmatch(r"diff --git a/(.+) b/(.+)", self._line)
        self._index += 1
        while self._index < len(self._lines) and not self._line.startswith(("diff --git ", "@@ ")):
            line = self._line
            if line.startswith("new file"):
                created = True
            elif line.startswith("deleted file"):
                deleted = True
            elif line.startswith("rename from "):
                old = line[12:]
            elif line.startswith("rename to "):
                new = line[10:]
            elif line.startswith(("copy from ", "copy to ")):
                raise ToolError(
                    f"Line {self._index + 1} of the patch copies a file. Use file, operation 'copy'."
                )
            elif self._is_header():
                return self._parse_plain(renamed=(old, new) if old and new else None)
            self._index += 1
        if paths is not None and not (old and new):
            old = None if created else paths[1]
            new = None if deleted else paths[2]
        if old is None and new is None:
            raise ToolError(
                f"Line {number} of the patch names no file. "
                "Put '--- a/path' and '+++ b/path' before its hunks."
            )
        return FilePatch(old, new, tuple(self._parse_hunks()))

    def _parse_plain(self, renamed: tuple[str, str] | None = None) -> FilePatch:
        number = self._index + 1
        old = _parse_path(self._line[4:], "a/")
        new = _parse_path(self._lines[self._index + 1][4:], "b/")
        self._index += 2
        if old is None and new is None:
            raise ToolError(
                f"Line {number} of the patch: both sides are /dev/null. "
                "Name the file on the side where it exists."
            )
        hunks = tuple(self._parse_hunks())
        if not hunks and renamed is None and None not in {old, new} and old == new:
            raise ToolError(
                f"Line {number} of the patch: no hunk follows for {new!r}. A hunk begins with '@@ '."
            )
        return FilePatch(*(renamed or (old, new)), hunks)

    def _parse_hunks(self) -> Iterator[Hunk]:
        while self._index < len(self._lines):
            if self._line.startswith("@@"):
                yield self._parse_hunk()
            elif self._line.startswith("diff --git ") or self._is_header():
                return
            elif self._line.strip():
                raise ToolError(
                    f"Line {self._index + 1} of the patch, {self._line[:80]!r}, belongs to no hunk. "
                    "Every line of a hunk begins with a blank, '+' or '-'."
                )
            else:
                self._index += 1

    def _parse_hunk(self) -> Hunk:
        header = _HUNK_HEADER.match(self._line)
        if header is None and self._line.strip("@ "):
            raise ToolError(
                f"Line {self._index + 1} of the patch is not a hunk header such as '@@ -10,3 +10,4 @@'."
            )
        # A bare '@@' is accepted: models leave the numbers out.
        line = int(header[1]) if header is not None else 0
        expected = (int(header[2] or 1), int(header[4] or 1)) if header is not None else None
        self._index += 1
        missing = expected
        rows: list[tuple[str, str]] = []
        sides_without_newline: set[str] = set()
        while self._index < len(self._lines) and not self._hunk_ends(missing):
            row = self._line
            if row.startswith("\\"):  # "\\ No newline at end of file" is about the line before it
                last = rows[-1][0] if rows else "-"
                sides_without_newline |= {"+", "-"} if last == " " else {last}
            else:
                kind = row[:1] or " "
                rows.append((kind, row[1:]))
                if missing is not None:
                    missing = missing[0] - (kind != "+"), missing[1] - (kind != "-")
            self._index += 1
        while rows and expected is None and rows[-1] == (" ", ""):
            rows.pop()  # an empty line between two hunks of unknown length belongs to neither
        if not rows:
            raise ToolError(
                f"Line {self._index} of the patch: the hunk is empty. Give its lines, or leave the hunk out."
            )
        kinds = [kind for kind, _ in rows]
        return Hunk(
            line,
            before=tuple(text for kind, text in rows if kind != "+"),
            after=tuple(text for kind, text in rows if kind != "-"),
            head=next((n for n, kind in enumerate(kinds) if kind != " "), len(kinds)),
            tail=next((n for n, kind in enumerate(reversed(kinds)) if kind != " "), 0),
            old_lacks_newline="-" in sides_without_newline,
            new_lacks_newline="+" in sides_without_newline,
        )

    def _hunk_ends(self, missing: tuple[int, int] | None) -> bool:
        """Return whether the hunk ends before this line.

        Args:
            missing: How many lines before and after the change have still to come, if the header says so.
        """
        row = self._line
        if row.startswith("\\"):
            return False
        if row.startswith(("@@", "diff --git ")) or row[:1] not in {" ", "+", "-", ""}:
            return True
        if missing is None or (missing[0] <= 0 and missing[1] <= 0):
            # Models miscount: a row that still looks like part of the hunk is one.
            return self._is_header() or (missing is not None and not row)
        # Rows are missing, so "--- x" and "+++ y" may be a deleted and an added line. They are a file header
        # only if a hunk follows.
        following = self._lines[self._index + 2] if self._index + 2 < len(self._lines) else ""
        is_last_line = self._index == len(self._lines) - 1
        return (self._is_header() and following.startswith("@@ ")) or (not row and is_last_line)


def _parse_path(text: str, prefix: str) -> str | None:
    path = text.split("\t", maxsplit=1)[0].strip()
    if path.startswith('"') and path.endswith('"') and len(path) > 1:
        path = path[1:-1]
    return None if path == "/dev/null" else path.removeprefix(prefix)


# ---- applying


@dataclass(frozen=True, slots=True)
class PatchedText:
    """A text after its hunks were applied.

    Attributes:
        body: The new text.
        tolerances: One sentence for each hunk that did not fit exactly.
    """

    body: str
    tolerances: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Fit:
    """Where a hunk fits.

    Attributes:
        place: Index of the first line that it replaces, after `fuzz` lines of context.
        fuzz: Number of context lines ignored at each end.
        loose: Trailing white space was ignored.
    """

    place: int
    fuzz: int = 0
    loose: bool = False


def apply_hunks(patch: FilePatch, body: str) -> PatchedText:
    """Apply the hunks, each as near as possible to where the diff says it is.

    Raises:
        ToolError: If one cannot be found, or fits in several places.
    """
    lines = body.split("\n") if body else [""]
    lacks_newline = not body.endswith("\n") and body != ""
    if not lacks_newline:
        lines.pop()
    tolerances: list[str] = []
    shift = 0  # how far earlier hunks moved the lines behind them
    start = 0  # hunks are in order: the next one lies behind the last
    for number, hunk in enumerate(patch.hunks, 1):
        # A hunk that only adds lines stands behind the line that it names.
        expected = max(hunk.line - 1, 0) + (not hunk.before and hunk.line > 0) + shift
        fit = _find_hunk(f"{patch.path}: hunk {number}", hunk, lines, expected, start)
        place = fit.place
        head, tail = min(fit.fuzz, hunk.head), min(fit.fuzz, hunk.tail)
        after = list(hunk.after[head : len(hunk.after) - tail])
        length = len(hunk.before) - head - tail
        if fit.loose:
            after = _with_original_context(hunk, lines[place : place + length], after, head, tail)
        lines[place : place + length] = after
        start = place + len(after)
        offset = place - head - expected
        shift += offset + len(hunk.after) - len(hunk.before)
        if hunk.line and offset:
            tolerances.append(f"hunk {number} at line {place + 1 - head} (offset {offset:+})")
        ignored = []
        if fit.fuzz:
            ignored.append(f"fuzz {fit.fuzz}")
        if fit.loose:
            ignored.append("white space at line ends ignored")
        if ignored:
            tolerances.append(f"hunk {number} at line {place + 1}: {', '.join(ignored)}")
        if start == len(lines) and (hunk.old_lacks_newline or hunk.new_lacks_newline or not tail):
            lacks_newline = hunk.new_lacks_newline or (lacks_newline and not hunk.old_lacks_newline)
    return PatchedText("\n".join(lines) + ("" if lacks_newline or not lines else "\n"), tuple(tolerances))


def _find_hunk(label: str, hunk: Hunk, lines: list[str], expected: int, start: int) -> _Fit:
    """Find a hunk at or behind `start`: exactly, then without trailing white space, then with more fuzz."""
    if not hunk.before:
        place = expected if hunk.line else len(lines)
        return _Fit(max(start, min(place, len(lines))))
    stripped = [line.rstrip() for line in lines]
    for fuzz in range(_MAX_FUZZ + 1):
        head, tail = min(fuzz, hunk.head), min(fuzz, hunk.tail)
        if fuzz and head == min(fuzz - 1, hunk.head) and tail == min(fuzz - 1, hunk.tail):
            break  # no context is left to ignore
        before = list(hunk.before[head : len(hunk.before) - tail])
        if not before:
            break
        for loose, text, part in (
            (False, lines, before),
            (True, stripped, [line.rstrip() for line in before]),
        ):
            places = _find_runs(text, part, start)
            if not places:
                continue
            nearest = min(places, key=lambda place: abs(place - head - expected))
            certain = len(places) == 1 or (nearest - head == expected and hunk.line)
            if not certain and (fuzz or not hunk.line):
                listed = ", ".join(str(place + 1) for place in places[:10])
                raise ToolError(
                    f"{label} fits in several places, at lines {listed}. Give more lines "
                    "around it, or right line numbers. Nothing was changed."
                )
            return _Fit(nearest, fuzz, loose)
    near_line = f" near line {hunk.line}" if hunk.line else ""
    first = next((line for line in hunk.before if line.strip()), "")
    raise ToolError(
        f"{label}{near_line} does not fit: its lines, beginning with "
        f"{first[:80]!r}, are not in the file. Read that part of the file again. Nothing was changed."
    )


def _find_runs(lines: Sequence[str], part: Sequence[str], start: int) -> list[int]:
    places: list[int] = []
    length = len(part)
    for place in range(start, len(lines) - length + 1):
        if lines[place] == part[0] and list(lines[place : place + length]) == list(part):
            places.append(place)
            if len(places) >= _MAX_PLACES:
                break
    return places


def _with_original_context(hunk: Hunk, old: list[str], after: list[str], head: int, tail: int) -> list[str]:
    """Return `after` with its context lines as they are in the file, trailing white space included."""
    lines = list(after)
    count = min(hunk.head - head, len(old), len(after))
    lines[:count] = old[:count]
    count = min(hunk.tail - tail, len(old), len(after))
    if count > 0:
        lines[-count:] = old[-count:]
    return lines


# ---- the tool


@dataclass(frozen=True, slots=True)
class _FileChange:
    """A planned change of one file.

    Attributes:
        patch: The part of the diff.
        before: The file's bytes, or None if it is created.
        after: Its bytes afterwards, or None if it is deleted.
        tolerances: Where the diff did not fit exactly.
    """

    patch: FilePatch
    before: bytes | None
    after: bytes | None
    tolerances: tuple[str, ...] = ()

    @property
    def verb(self) -> str:
        if self.before is None:
            return "created"
        if self.after is None:
            return "deleted"
        return "changed" if self.patch.old == self.patch.new else "renamed"


def _parse_arguments(arguments: Mapping[str, Json]) -> tuple[FilePatch, ...]:
    patch = arguments.get("patch")
    return parse_patch(patch) if isinstance(patch, str) else ()


def _facts(arguments: Mapping[str, Json]) -> Facts:
    try:
        files = _parse_arguments(arguments)
    except ToolError:
        files = ()  # the call itself reports what is wrong
    paths = tuple(dict.fromkeys(path for file in files for path in (file.old, file.new) if path))
    deletes = any(file.new is None for file in files)
    return Facts(
        effect=Effect.DESTRUCTIVE if deletes else Effect.LOCAL_MUTATION,
        reads=tuple(file.old for file in files if file.old),
        writes=paths,
        certain=bool(paths),
        path_guarded=True,
    )


def _effect(arguments: Mapping[str, Json]) -> Effect:
    return _facts(arguments).effect


def _touches(arguments: Mapping[str, Json]) -> Sequence[FileTouch]:
    touches = []
    for file in _parse_arguments(arguments):
        if file.old is not None and (file.hunks or file.new is None):
            texts = tuple("\n".join(hunk.before) for hunk in file.hunks if hunk.before)
            touches.append(FileTouch(path=file.old, texts=() if file.new is None else texts))
    return touches


@tool(
    name="apply_patch",
    classify=_effect,
    examples=[
        (
            {
                "patch": "--- a/app.py\n+++ b/app.py\n@@ -1,2 +1,2 @@\n import os\n-DEBUG = "
                "True\n+DEBUG = False\n"
            },
            "Apply this diff: switch DEBUG off in app.py.",
        ),
    ],
    gather_facts=_facts,
    touches=_touches,
    import_path="aisotools.builtin.patch:apply_patch",
    programs="none",
)
def apply_patch(
    patch: Annotated[
        str,
        Field(
            description="A unified diff, as `diff -u` or `git diff` write it: for each file '--- a/old' and "
            "'+++ b/new' ('/dev/null' for a file that is made or deleted), then hunks '@@ -1,3 +1,4 @@'. "
            "git's 'rename from' and 'rename to' are understood. Paths are relative to the workspace.",
            min_length=1,
            max_length=2_000_000,
        ),
    ],
    context: ToolContext,
) -> ToolResult:
    """Apply a unified diff to one or more text files: change, create, delete and rename them.

    Either all of it is applied or nothing. A hunk may lie elsewhere than its line numbers say; up to two
    lines of context at its ends, and white space at the ends of lines, may differ: all of that is reported.
    Existing files must have been read in this session. Line endings, byte order marks and modes are kept.
    """
    workspace = workspace_of(context)
    changes = [_plan(workspace, file) for file in parse_patch(patch)]
    _apply_all(workspace, changes)
    rows: list[dict[str, Json]] = []
    lines: list[str] = []
    for change in changes:
        file = change.patch
        rows.append(
            {
                "path": as_utf8(file.path),
                "change": change.verb,
                "old_path": as_utf8(file.old) if file.old else None,
                "hunks": len(file.hunks),
                "fuzz": list(change.tolerances),
            }
        )
        source = f" (from {printable(file.old)})" if change.verb == "renamed" and file.old else ""
        lines.append(f"{change.verb} {printable(file.path)}{source}")
        lines += [f"  {tolerance}" for tolerance in change.tolerances]
    return ToolResult.json({"success": True, "files": rows}, "\n".join(lines))


def _plan(workspace: Workspace, file: FilePatch) -> _FileChange:
    """Compute the change of one file. Nothing is written until all of them fit."""
    if file.new is not None and file.new != file.old:
        _require_free(workspace, file.new)
    before = None
    if file.old is not None:
        with translate_errors(workspace, file.old):
            before = workspace.read_bytes(file.old, max_bytes=MAX_FILE_BYTES)
    after, tolerances = _patch(file, before)
    return _FileChange(file, before, after, tolerances)


def patch_content(file: FilePatch, before: bytes | None) -> bytes | None:
    """Return what a patch makes of the content of a file; None if it deletes it.

    Args:
        file: The patch.
        before: The content; None if there is no such file.

    Raises:
        ToolError: If the patch does not fit.
    """
    if file.old is not None and before is None:
        raise ToolError(f"{as_utf8(file.old)!r} does not exist. Nothing was changed.")
    return _patch(file, before)[0]


def _patch(file: FilePatch, before: bytes | None) -> tuple[bytes | None, tuple[str, ...]]:
    """Return the content after a patch, None for a file that it deletes, and what differed."""
    if before is not None and b"\0" in before and file.hunks:
        raise ToolError(f"{as_utf8(file.path)!r} is a binary file. Nothing was changed.")
    text = Text.of(before or b"")
    patched = apply_hunks(file, text.body)
    if file.new is None:
        if file.hunks and patched.body:
            raise ToolError(
                f"{as_utf8(file.path)!r} holds more than the patch deletes, so it is not deleted. Read "
                "it again, or use file, operation 'delete'. Nothing was changed."
            )
        return None, patched.tolerances
    try:
        after = text.data(patched.body) if file.hunks else (before or b"")
    except UnicodeEncodeError:
        raise ToolError(
            "The patch holds half a surrogate pair, which UTF-8 cannot store. Write the whole character."
        ) from None
    if len(after) > MAX_FILE_BYTES:
        raise ToolError(
            f"{as_utf8(file.path)!r} would have {len(after):,} bytes; at most {MAX_FILE_BYTES:,}. "
            "Split it into several files, or write it with python."
        )
    return after, patched.tolerances


def _require_free(workspace: Workspace, path: str) -> None:
    with translate_errors(workspace, path):
        try:
            entry = workspace.stat(path, follow=False)
        except FileNotFoundError:
            return
        raise ToolError(
            f"{as_utf8(path)!r} exists already, a {entry.kind}, and the patch would create it. Nothing "
            "was changed."
        )


def _apply_all(workspace: Workspace, changes: Sequence[_FileChange]) -> None:
    """Write every change. If one fails, restore the files written before it."""
    started: list[_FileChange] = []
    try:
        for change in changes:
            # Listed first: a rename may have happened when the write after it fails.
            started.append(change)
            with translate_errors(workspace, change.patch.path):
                _apply(workspace, change)
    except BaseException:
        for change in reversed(started):
            # Restore as many as possible: an error here must not hide the one that is reported.
            with suppress(OSError, ToolError):
                _roll_back(workspace, change)
        raise


def _apply(workspace: Workspace, change: _FileChange) -> None:
    old, new = change.patch.old, change.patch.new
    if old is not None and new is not None and old != new:
        _rename(workspace, old, new)
    if new is None:
        assert old is not None
        with workspace.locate(old, follow=False) as resolved:
            resolved.unlink()
    elif change.after != change.before or old is None:
        workspace.write_bytes(new, change.after or b"")


def _roll_back(workspace: Workspace, change: _FileChange) -> None:
    # A file that failed half-way may be renamed and not yet written, or not even renamed: each step is taken
    # back only if it has happened.
    old, new = change.patch.old, change.patch.new
    if old is not None and new is not None and old != new:
        with suppress(FileNotFoundError):
            _rename(workspace, new, old)
    if change.before is not None and old is not None:
        workspace.write_bytes(old, change.before)
    elif new is not None:
        with workspace.locate(new, follow=False) as resolved:
            resolved.unlink()


def _rename(workspace: Workspace, old: str, new: str) -> None:
    with (
        workspace.locate(old, follow=False) as source,
        workspace.locate(new, follow=False, make_parents=True) as target,
    ):
        # Race: a file that appears there after all changes were checked is replaced, as by `mv`.
        source.rename(target)


register_builtin(apply_patch)
