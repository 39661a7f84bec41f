"""The tool `apply_patch`: a unified diff over several files, all of it or none.

Unified diffs: read leniently, as models write them; where one did not fit exactly is told. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from aisotools.builtin.edit import Text
from aisotools.builtin.file_operations import MAX_FILE_BYTES, translate_errors
from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Effect, Facts, Json, ToolResult
from aisotools.tools.function import tool
from aisotools.workspace.paths import printable, shown
from aisotools.workspace.read_tracker import FileTouch
from aisotools.workspace.workspace import Workspace

MAX_FILES = 100
_TITLE = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_MAX_FUZZ = 2
_MAX_PLACES = 50_000


@dataclass(frozen=True, slots=True)
class Hunk:
    """One place that changes.

    Attributes:
        line: Where the diff says it begins in the old file, from 1; 0 when it does not say.
        before: The lines as they are, without their ends.
        after: The lines as they become.
        head: How many lines at the beginning are only there to find the place.
        tail: How many at the end.
        at_end: Whether the old text ends with this hunk, without a line feed.
        ends_bare: Whether the new text does.
    """

    line: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    head: int
    tail: int
    at_end: bool = False
    ends_bare: bool = False


@dataclass(frozen=True, slots=True)
class FilePatch:
    """What happens to one file.

    Attributes:
        old: Its path before, or None when it is made.
        new: Its path afterwards, or None when it is deleted.
        hunks: What changes in it.
    """

    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...] = ()

    @property
    def path(self) -> str:
        """The path to speak of."""
        return self.new or self.old or ""


@dataclass(frozen=True, slots=True)
class Applied:
    """The text after a patch.

    Attributes:
        body: The text.
        stretched: In words, per hunk, where it did not fit exactly.
    """

    body: str
    stretched: tuple[str, ...]


def read_patch(text: str) -> list[FilePatch]:
    """The files of a unified diff.

    Raises:
        ToolError: If it is none; the message names the line.
    """
    if text.lstrip().startswith("*** Begin Patch"):
        raise ToolError(
            "This is not a unified diff. Write '--- a/file', '+++ b/file' and '@@ -1,3 +1,4 @@' lines."
        )
    if "GIT binary patch" in text or re.search(r"^Binary files .* differ$", text, re.MULTILINE):
        raise ToolError("Binary patches cannot be applied. Write the file with python.")
    files = list(_DiffReader(text).files())
    if not files:
        raise ToolError("The patch names no file. A unified diff begins with '--- a/file' and '+++ b/file'.")
    if len(files) > MAX_FILES:
        raise ToolError(f"The patch changes {len(files)} files; at most {MAX_FILES} are changed at once.")
    seen: set[str] = set()
    for path in (path for file in files for path in {file.old, file.new} if path is not None):
        if path in seen:
            raise ToolError(f"The patch names {path!r} twice. Put all hunks of a file under one header.")
        seen.add(path)
    return files


class _DiffReader:
    """Goes through the lines of a diff."""

    def __init__(self, text: str) -> None:
        self._lines = text.replace("\r\n", "\n").split("\n")
        self._at = 0

    def files(self) -> Iterator[FilePatch]:
        """Each file with its hunks."""
        while self._at < len(self._lines):
            if self._line.startswith("diff --git "):
                yield self._git()
            elif self._is_header():
                yield self._plain()
            elif self._line.startswith("@@ "):
                raise ToolError(
                    f"Line {self._at + 1} of the patch is a hunk without a file. Name the file before it."
                )
            else:
                self._at += 1

    @property
    def _line(self) -> str:
        return self._lines[self._at] if self._at < len(self._lines) else ""

    def _is_header(self) -> bool:
        following = self._lines[self._at + 1] if self._at + 1 < len(self._lines) else ""
        return self._line.startswith("--- ") and following.startswith("+++ ")

    def _git(self) -> FilePatch:
        where, old, new = self._at + 1, None, None
        made = deleted = False
        named = re.fullmatch(r"diff --git a/(.+) b/(.+)", self._line)
        self._at += 1
        while self._at < len(self._lines) and not self._line.startswith(("diff --git ", "@@ ")):
            line = self._line
            made, deleted = made or line.startswith("new file"), deleted or line.startswith("deleted file")
            if line.startswith("rename from "):
                old = line[12:]
            elif line.startswith("rename to "):
                new = line[10:]
            elif line.startswith(("copy from ", "copy to ")):
                raise ToolError(
                    f"Line {self._at + 1} of the patch copies a file. Use file, operation 'copy'."
                )
            elif self._is_header():
                return self._plain(renamed=(old, new) if old and new else None)
            self._at += 1
        if named is not None and not (old and new):
            old, new = None if made else named[1], None if deleted else named[2]
        if old is None and new is None:
            raise ToolError(f"Line {where} of the patch names no file that could be read.")
        return FilePatch(old, new, tuple(self._hunks()))

    def _plain(self, renamed: tuple[str, str] | None = None) -> FilePatch:
        where = self._at + 1
        old, new = _path(self._line[4:], "a/"), _path(self._lines[self._at + 1][4:], "b/")
        self._at += 2
        if old is None and new is None:
            raise ToolError(f"Line {where} of the patch: both sides are /dev/null.")
        hunks = tuple(self._hunks())
        if not hunks and renamed is None and None not in {old, new} and old == new:
            raise ToolError(f"Line {where} of the patch: no hunk follows for {new!r}. It begins with '@@ '.")
        return FilePatch(*(renamed or (old, new)), hunks)

    def _hunks(self) -> Iterator[Hunk]:
        while self._at < len(self._lines):
            if self._line.startswith("@@"):
                yield self._hunk()
            elif self._line.startswith("diff --git ") or self._is_header():
                return
            elif self._line.strip():
                raise ToolError(
                    f"Line {self._at + 1} of the patch, {self._line[:80]!r}, belongs to no hunk. "
                    "Every line of one "
                    "begins with a blank, '+' or '-'."
                )
            else:
                self._at += 1

    def _hunk(self) -> Hunk:
        title = _TITLE.match(self._line)
        if title is None and self._line.strip("@ "):
            raise ToolError(f"Line {self._at + 1} of the patch is no hunk title such as '@@ -10,3 +10,4 @@'.")
        line = int(title[1]) if title is not None else 0
        expected = (int(title[2] or 1), int(title[4] or 1)) if title is not None else None
        self._at += 1
        rows: list[tuple[str, str]] = []
        bare: set[str] = set()
        while self._at < len(self._lines) and not self._hunk_ends(rows, expected):
            row = self._line
            if row.startswith("\\"):
                last = rows[-1][0] if rows else "-"
                bare |= {"+", "-"} if last == " " else {last}
            else:
                rows.append((row[:1] or " ", row[1:]))
            self._at += 1
        while rows and expected is None and rows[-1] == (" ", ""):
            rows.pop()  # the empty line after a hunk of unknown length is no part of it
        if not rows:
            raise ToolError(f"Line {self._at} of the patch: the hunk is empty.")
        return _made(line, rows, at_end="-" in bare, ends_bare="+" in bare)

    def _hunk_ends(self, rows: Sequence[tuple[str, str]], expected: tuple[int, int] | None) -> bool:
        row = self._line
        if row.startswith("\\"):
            return False
        if row.startswith(("@@", "diff --git ")) or row[:1] not in {" ", "+", "-", ""}:
            return True
        counted = (sum(kind != "+" for kind, _ in rows), sum(kind != "-" for kind, _ in rows))
        if expected is None or (counted[0] >= expected[0] and counted[1] >= expected[1]):
            # Models miscount: what still looks like a part of the hunk is one.
            return self._is_header() or (expected is not None and not row)
        following = self._lines[self._at + 2] if self._at + 2 < len(self._lines) else ""
        return (self._is_header() and following.startswith("@@ ")) or (
            not row and self._at == len(self._lines) - 1
        )


def _made(line: int, rows: Sequence[tuple[str, str]], *, at_end: bool, ends_bare: bool) -> Hunk:
    kinds = [kind for kind, _ in rows]
    head = next((n for n, kind in enumerate(kinds) if kind != " "), len(kinds))
    tail = next((n for n, kind in enumerate(reversed(kinds)) if kind != " "), 0)
    return Hunk(
        line,
        tuple(text for kind, text in rows if kind != "+"),
        tuple(text for kind, text in rows if kind != "-"),
        head,
        tail,
        at_end,
        ends_bare,
    )


def _path(text: str, prefix: str) -> str | None:
    path = text.split("\t", maxsplit=1)[0].strip()
    if path.startswith('"') and path.endswith('"') and len(path) > 1:
        path = path[1:-1]
    return None if path == "/dev/null" else path.removeprefix(prefix)


def apply_hunks(patch: FilePatch, body: str) -> Applied:
    """A text after the hunks, each found near where the diff says it is.

    Raises:
        ToolError: If one cannot be found, or could be in several places.
    """
    lines = body.split("\n") if body else [""]
    bare_end = not body.endswith("\n") and body != ""
    if not bare_end:
        lines.pop()
    stretched: list[str] = []
    shift = done = 0
    for number, hunk in enumerate(patch.hunks, 1):
        wanted = max(hunk.line - 1, 0) + (not hunk.before and hunk.line > 0) + shift
        place, fuzz, loosely = _find(f"{patch.path}: hunk {number}", hunk, lines, wanted, done)
        head, tail = min(fuzz, hunk.head), min(fuzz, hunk.tail)
        after = list(hunk.after[head : len(hunk.after) - tail])
        length = len(hunk.before) - head - tail
        if loosely:
            after = _with_old_ends(hunk, lines[place : place + length], after, head, tail)
        lines[place : place + length] = after
        done = place + len(after)
        moved = place - head - wanted
        shift += moved + len(hunk.after) - len(hunk.before)
        if hunk.line and moved:
            stretched.append(f"hunk {number} at line {place + 1 - head} (offset {moved:+})")
        if fuzz or loosely:
            what = [f"fuzz {fuzz}"] if fuzz else []
            what += ["white space at line ends ignored"] if loosely else []
            stretched.append(f"hunk {number} at line {place + 1}: {', '.join(what)}")
        if done == len(lines) and (hunk.at_end or hunk.ends_bare or not tail):
            bare_end = hunk.ends_bare or (bare_end and not hunk.at_end)
    return Applied("\n".join(lines) + ("" if bare_end or not lines else "\n"), tuple(stretched))


def _find(which: str, hunk: Hunk, lines: list[str], wanted: int, done: int) -> tuple[int, int, bool]:
    """Where a hunk fits, with how many lines of context left aside, and whether only loosely."""
    if not hunk.before:
        place = wanted if hunk.line else len(lines)
        return max(done, min(place, len(lines))), 0, False
    bare = [line.rstrip() for line in lines]
    for fuzz in range(_MAX_FUZZ + 1):
        head, tail = min(fuzz, hunk.head), min(fuzz, hunk.tail)
        if fuzz and head == min(fuzz - 1, hunk.head) and tail == min(fuzz - 1, hunk.tail):
            break
        before = list(hunk.before[head : len(hunk.before) - tail])
        if not before:
            break
        for loosely, text, part in (
            (False, lines, before),
            (True, bare, [line.rstrip() for line in before]),
        ):
            places = _places(text, part, done)
            if not places:
                continue
            near = min(places, key=lambda place: abs(place - head - wanted))
            certain = len(places) == 1 or (near - head == wanted and hunk.line)
            if not certain and (fuzz or not hunk.line):
                listed = ", ".join(str(place + 1) for place in places[:10])
                raise ToolError(
                    f"{which} fits in several places, at lines {listed}. Give more lines "
                    "around it, or right line numbers. Nothing was changed."
                )
            return near, fuzz, loosely
    near_line = f" near line {hunk.line}" if hunk.line else ""
    first = next((line for line in hunk.before if line.strip()), "")
    raise ToolError(
        f"{which}{near_line} does not fit: its lines, beginning with "
        f"{first[:80]!r}, are not "
        "in the file. Read that part of the file again. Nothing was changed."
    )


def _places(lines: Sequence[str], part: Sequence[str], start: int) -> list[int]:
    found, length = [], len(part)
    for place in range(start, len(lines) - length + 1):
        if lines[place] == part[0] and list(lines[place : place + length]) == list(part):
            found.append(place)
            if len(found) >= _MAX_PLACES:
                break
    return found


def _with_old_ends(hunk: Hunk, old: list[str], after: list[str], head: int, tail: int) -> list[str]:
    """Lines that only serve to find the place stay as they are, white space and all."""
    kept = list(after)
    context = min(hunk.head - head, len(old), len(after))
    kept[:context] = old[:context]
    context = min(hunk.tail - tail, len(old), len(after))
    if context > 0:
        kept[-context:] = old[-context:]
    return kept


@dataclass(frozen=True, slots=True)
class _Change:
    """What one file becomes.

    Attributes:
        patch: What the diff says.
        before: Its bytes, or None when it is made.
        after: Its bytes afterwards, or None when it is deleted.
        stretched: Where the diff did not fit exactly.
    """

    patch: FilePatch
    before: bytes | None
    after: bytes | None
    stretched: tuple[str, ...] = ()

    @property
    def verb(self) -> str:
        """What happens to it, in a word."""
        if self.before is None:
            return "created"
        if self.after is None:
            return "deleted"
        return "changed" if self.patch.old == self.patch.new else "renamed"


def _files(arguments: Mapping[str, Json]) -> list[FilePatch]:
    patch = arguments.get("patch")
    return read_patch(patch) if isinstance(patch, str) else []


def _facts(arguments: Mapping[str, Json]) -> Facts:
    try:
        files = _files(arguments)
    except ToolError:
        files = []  # the call itself says what is wrong
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
    for file in _files(arguments):
        if file.old is not None and (file.hunks or file.new is None):
            # With a trailing line feed, as `before` holds whole lines.
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
)
def apply_patch(
    patch: Annotated[
        str,
        Field(
            description="A unified diff, as `diff -u` or `git diff` write it: for each file '--- "
            "a/old' and '+++ "
            "b/new' ('/dev/null' for a file that is made or deleted), then hunks '@@ -1,3 +1,4 @@'. "
            "git's 'rename "
            "from' and 'rename to' are understood. Paths are relative to the workspace.",
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
    workspace = Workspace(context.workspace_path)
    changes = [_planned(workspace, file) for file in read_patch(patch)]
    _carry_out(workspace, changes)
    rows: list[dict[str, Json]] = []
    told: list[str] = []
    for change in changes:
        file = change.patch
        rows.append(
            {
                "path": shown(file.path),
                "change": change.verb,
                "old_path": shown(file.old) if file.old else None,
                "hunks": len(file.hunks),
                "fuzz": list(change.stretched),
            }
        )
        source = f" (from {printable(file.old)})" if change.verb == "renamed" and file.old else ""
        told.append(f"{change.verb} {printable(file.path)}{source}")
        told += [f"  {one}" for one in change.stretched]
    return ToolResult.json({"success": True, "files": rows}, "\n".join(told))


def _planned(workspace: Workspace, file: FilePatch) -> _Change:
    """What becomes of one file; nothing is written yet."""
    if file.new is not None and file.new != file.old:
        _demand_free(workspace, file.new)
    if file.old is None:
        text, before = Text(""), None
    else:
        with translate_errors(workspace, file.old):
            before = workspace.read_bytes(file.old, max_bytes=MAX_FILE_BYTES)
        if b"\0" in before and file.hunks:
            raise ToolError(f"{shown(file.old)!r} is a binary file. Nothing was changed.")
        text = Text.of(before)
    applied = apply_hunks(file, text.body)
    if file.new is None:
        if file.hunks and applied.body:
            raise ToolError(
                f"{shown(file.path)!r} holds more than the patch deletes, so it is not deleted. Read "
                "it again, or "
                "use file, operation 'delete'. Nothing was changed."
            )
        return _Change(file, before, None, applied.stretched)
    try:
        after = text.data(applied.body) if file.hunks else (before or b"")
    except UnicodeEncodeError:
        raise ToolError("The patch holds half a surrogate pair, which UTF-8 cannot store.") from None
    if len(after) > MAX_FILE_BYTES:
        raise ToolError(f"{shown(file.path)!r} would have {len(after):,} bytes; at most {MAX_FILE_BYTES:,}.")
    return _Change(file, before, after, applied.stretched)


def _demand_free(workspace: Workspace, path: str) -> None:
    with translate_errors(workspace, path):
        try:
            entry = workspace.stat(path, follow=False)
        except FileNotFoundError:
            return
        raise ToolError(
            f"{shown(path)!r} is there already, a {entry.kind}, and the patch would make it. Nothing "
            "was changed."
        )


def _carry_out(workspace: Workspace, changes: Sequence[_Change]) -> None:
    """Write everything; what was written is taken back when something fails on the way."""
    done: list[_Change] = []
    try:
        for change in changes:
            done.append(change)
            with translate_errors(workspace, change.patch.path):
                _write(workspace, change)
    except BaseException:
        for change in reversed(done):
            with suppress(OSError, ToolError):
                _take_back(workspace, change)
        raise


def _write(workspace: Workspace, change: _Change) -> None:
    old, new = change.patch.old, change.patch.new
    if old is not None and new is not None and old != new:
        _rename(workspace, old, new)
    if new is None:
        assert old is not None
        with workspace.locate(old, follow=False) as spot:
            spot.unlink()
    elif change.after != change.before or old is None:
        workspace.write_bytes(new, change.after or b"")


def _take_back(workspace: Workspace, change: _Change) -> None:
    old, new = change.patch.old, change.patch.new
    if old is not None and new is not None and old != new:
        with suppress(FileNotFoundError):
            _rename(workspace, new, old)
    if change.before is not None and old is not None:
        workspace.write_bytes(old, change.before)
    elif new is not None:
        with workspace.locate(new, follow=False) as spot:
            spot.unlink()


def _rename(workspace: Workspace, old: str, new: str) -> None:
    with (
        workspace.locate(old, follow=False) as source,
        workspace.locate(new, follow=False, make_parents=True) as place,
    ):
        source.rename(place)
