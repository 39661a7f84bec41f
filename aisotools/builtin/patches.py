"""Unified diffs: read leniently, as models write them; where one did not fit exactly is told. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aisotools.exceptions import ToolError

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
    files = list(_Reader(text).files())
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


class _Reader:
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
