"""Searching a workspace: names by glob, content by regular expression, bounded in every direction.

Which paths a tree of `.gitignore` files leaves out, by git's own rules.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from aisotools.core.exceptions import ToolError, WorkspaceError
from aisotools.core.types import Json
from aisotools.workspace.dirfd import MOST_ENTRIES, Folder
from aisotools.workspace.paths import printable, shown
from aisotools.workspace.workspace import Workspace

NAME = ".gitignore"
MAX_BYTES, MAX_RULES = 1 << 18, 2_000


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """One line of a file.

    Attributes:
        pattern: Matches paths relative to the folder of the file.
        keeps: Whether it takes a path back in.
        folders_only: Whether it concerns folders alone.
    """

    pattern: re.Pattern[str]
    keeps: bool
    folders_only: bool


@dataclass(frozen=True, slots=True)
class Ignored:
    """The rules that hold in one folder: its own file's, then those of the folders above it.

    Attributes:
        rules: Of the innermost file, the last line first.
        start: Where in a path, relative to the workspace, those rules begin to look.
        above: What holds in the folder above.
    """

    rules: tuple[IgnoreRule, ...] = ()
    start: int = 0
    above: Ignored | None = None

    def leaves_out(self, path: str, *, folder: bool) -> bool:
        """Whether a path, relative to the workspace, is left out."""
        level: Ignored | None = self
        while level is not None:
            for rule in level.rules:
                if (folder or not rule.folders_only) and rule.pattern.fullmatch(path, level.start):
                    return not rule.keeps
            level = level.above
        return False

    def below(self, text: str, folder: str) -> Ignored:
        """What holds in a folder whose own file reads `text`."""
        start = 0 if folder == "." else len(folder) + 1
        rules = [rule for line in text.split("\n")[:MAX_RULES] if (rule := read_rule(line)) is not None]
        return Ignored(tuple(reversed(rules)), start, self) if rules else self


@lru_cache(maxsize=512)
def read_rule(line: str) -> IgnoreRule | None:
    """One line; None for a comment, an empty line, or one that cannot be read."""
    line = re.sub(r"(?<!\\)[ \t\r]+$", "", line)
    if not line or line.startswith("#"):
        return None
    keeps = line.startswith("!")
    line = line[1:] if keeps else line.removeprefix("\\") if line[:2] in {"\\!", "\\#"} else line
    folders_only = line.endswith("/")
    line = line.rstrip("/")
    if not line:
        return None
    anchored = "/" in line
    try:
        pattern = re.compile("".join(_parts(line.removeprefix("/"), anchored)), re.DOTALL)
    except re.error:
        return None
    return IgnoreRule(pattern, keeps, folders_only)


def _parts(glob: str, anchored: bool) -> Iterator[str]:
    if not anchored:
        yield "(?:.*/)?"
    position = 0
    while position < len(glob):
        one = glob[position]
        if glob.startswith("**/", position) and (position == 0 or glob[position - 1] == "/"):
            yield "(?:.*/)?"
            position += 3
        elif glob[position:] == "**" and position and glob[position - 1] == "/":
            yield ".+"
            position += 2
        elif one == "*":
            yield "[^/]*"
            position = len(glob) - len(glob[position:].lstrip("*"))
        elif one == "?":
            yield "[^/]"
            position += 1
        elif one == "[" and (end := glob.find("]", position + 2)) > 0:
            inside = glob[position + 1 : end]
            negated = inside[0] in "!^"
            members = re.sub(r"([\\\[\]&~|^])", r"\\\1", inside[1:] if negated else inside)
            yield f"(?!/)[{'^' if negated else ''}{members}]"
            position = end + 1
        else:
            if one == "\\" and position + 1 < len(glob):
                position += 1
            yield re.escape(glob[position])
            position += 1


def folders_above(path: str) -> Iterable[str]:
    """The workspace and the folders on the way to `path`, which is not among them."""
    if path == ".":
        return
    yield "."
    names = path.split("/")
    for count in range(1, len(names)):
        yield "/".join(names[:count])


MAX_MATCHES = 1_000
MAX_PATHS = 10_000
MAX_FILES = 100_000
MAX_TOTAL_BYTES = 1 << 30
MAX_FILE_BYTES = 10 << 20
MAX_LINE_CHARS = 500

_BINARY_PROBE = 8_192
_REPORT_EVERY = 5_000


@dataclass(frozen=True, slots=True)
class SearchMatch:
    """One matching line.

    Attributes:
        path: The file, relative to the workspace.
        line: Line number, from 1.
        text: The line, cut around the match when it is long.
        before: Lines before it, the nearest last.
        after: Lines after it.
    """

    path: str
    line: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def as_json(self, *, with_context: bool) -> dict[str, Json]:
        """The match for programs."""
        row: dict[str, Json] = {"path": shown(self.path), "line": self.line, "text": self.text}
        return {**row, "before": list(self.before), "after": list(self.after)} if with_context else row


@dataclass(slots=True)
class SearchResult:
    """What a search found, and what it left out.

    Attributes:
        matches: Matching lines, when content was searched.
        paths: Matching names, when only names were searched.
        files: How many files were looked at.
        notes: What was skipped or cut, in words.
    """

    matches: list[SearchMatch] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    files: int = 0
    notes: list[str] = field(default_factory=list)


def compile_pattern(pattern: str, *, regex: bool) -> re.Pattern[str]:
    """The pattern, ready to search whole texts: `^` and `$` match at every line.

    Raises:
        ToolError: If it is no regular expression, with the position of the fault.
    """
    try:
        return _compile(pattern if regex else re.escape(pattern), re.MULTILINE)
    except re.error as error:
        where = "" if error.pos is None else f" at position {error.pos}"
        fault = f"{error.msg}{where}"
    except (OverflowError, RecursionError) as error:
        fault = f"{error}"
    raise ToolError(
        f"The pattern {pattern[:200]!r} is not a regular expression: {fault}. "
        "Correct it, or set regex to false to search for it literally.",
    )


def compile_glob(glob: str) -> re.Pattern[str]:
    """A glob as a pattern for relative paths.

    `*` and `?` stay within one name, `**` crosses folders, `[ab]` and `{one,two}` choose. Without a slash it
    is matched against the name alone, at any depth.
    """
    glob = glob.removeprefix("./")
    if "/" not in glob:
        glob = "**/" + glob
    braces = glob.count("{") == glob.count("}")
    out: list[str] = []
    depth = position = 0
    while position < len(glob):
        one = glob[position]
        step = 1
        if glob.startswith("**/", position):
            out.append("(?:.*/)?")
            step = 3
        elif glob.startswith("**", position):
            out.append(".*")
            step = 2
        elif one == "*":
            out.append("[^/]*")
        elif one == "?":
            out.append("[^/]")
        elif one == "[" and (end := glob.find("]", position + 2)) > 0:
            out.append(_character_class(glob[position + 1 : end]))
            step = end + 1 - position
        elif one == "{" and braces:
            out.append("(?:")
            depth += 1
        elif one == "}" and depth:
            out.append(")")
            depth -= 1
        elif one == "," and depth:
            out.append("|")
        else:
            out.append(re.escape(one))
        position += step
    return _compile("".join(out) + ")" * depth, re.DOTALL)


def _compile(pattern: str, flags: re.RegexFlag) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about constructs that may change in a later Python
        return re.compile(pattern, flags)


def _character_class(inside: str) -> str:
    negated = inside[0] in "!^"
    members = re.sub(r"([\\\[\]&~|^])", r"\\\1", inside[1:] if negated else inside)
    try:
        return _compile(f"(?!/)[{'^' if negated else ''}{members}]", re.NOFLAG).pattern
    except re.error:  # a backward range such as [z-a]
        return re.escape(f"[{inside}]")


def lines_of(matches: Sequence[SearchMatch]) -> Iterator[str]:
    """Matches for a model: `path:line: text`, lines around with dashes, `--` where lines are left out."""
    for path, group in itertools.groupby(matches, key=lambda match: match.path):
        rows: dict[int, tuple[str, str]] = {}
        context = False
        for match in group:
            context = context or bool(match.before or match.after)
            for number, text in enumerate(match.before, match.line - len(match.before)):
                rows.setdefault(number, ("-", text))
            for number, text in enumerate(match.after, match.line + 1):
                rows.setdefault(number, ("-", text))
            rows[match.line] = (":", match.text)
        previous = 0
        for number in sorted(rows):
            mark, text = rows[number]
            if context and previous and number != previous + 1:
                yield "--"
            yield f"{printable(path)}{mark}{number}{mark} {text}"
            previous = number


class Search:
    """One search under way."""

    def __init__(
        self,
        workspace: Workspace,
        content: re.Pattern[str] | None,
        names: re.Pattern[str] | None,
        context_lines: int = 0,
        *,
        ignored_too: bool = False,
        emit: Callable[..., None] | None = None,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            workspace: Where.
            content: What lines must match; None to look at names alone.
            names: What names must match, relative to the searched folder; None for all.
            context_lines: Lines to show before and after each match.
            ignored_too: Whether to search what `.gitignore` leaves out.
            emit: Takes progress reports.
        """
        self._workspace = workspace
        self._content = content
        self._names = names
        self._context = context_lines
        self._ignored_too = ignored_too
        self._emit = emit
        self._found = SearchResult()
        self._ignored: dict[str, Ignored] = {}
        self._bytes = self._binary = self._large = self._unreadable = self._left_out = self._beyond = 0

    def run(self, path: str) -> SearchResult:
        """Search a folder and all beneath it, or one file.

        Raises:
            WorkspaceError, OSError: If `path` itself cannot be searched.
        """
        top = self._workspace.stat(path)
        if top.kind == "directory":
            prefix = 0 if top.path == "." else len(top.path) + 1
            self._ignored[top.path] = self._rules_above(top.path)
            for folder in self._workspace.walk(path, enter=self._enters):
                if self._full() or not self._search_folder(folder, prefix):
                    break
        elif self._names is None or self._names.fullmatch(top.name):
            self._found.files = 1
            if self._content is None:
                self._found.paths.append(top.path)
            else:
                data = self._workspace.read_bytes(path, max_bytes=MAX_FILE_BYTES)
                self._search_data(top.path, data, self._content)
        self._note_skipped()
        return self._found

    def _search_folder(self, folder: Folder, prefix: int) -> bool:
        """Search what lies directly in a folder; False to stop the whole search."""
        found, names, content = self._found, self._names, self._content
        if folder.error is not None:
            self._unreadable += 1
        self._beyond += folder.left_out
        ignored = self._rules_in(folder)
        for entry in folder.entries:
            if entry.is_dir(follow_symlinks=False):
                continue
            path = folder.path_of(entry.name)
            if names is not None and not names.fullmatch(path, prefix):
                continue
            if ignored is not None and ignored.leaves_out(path, folder=False):
                self._left_out += 1
                continue
            found.files += 1
            if self._emit is not None and not found.files % _REPORT_EVERY:
                self._emit("progress", done=found.files, what="files searched")
            if content is None:
                found.paths.append(path)
            elif entry.is_file(follow_symlinks=False):  # what a link leads to is met where it lies
                try:
                    data = folder.read(entry, max_bytes=MAX_FILE_BYTES + 1)
                except (OSError, WorkspaceError):
                    self._unreadable += 1
                    continue
                self._search_data(path, data, content)
            if self._full():
                return False
        return True

    def _rules_above(self, path: str) -> Ignored:
        """What the folders on the way to `path` leave out."""
        ignored = Ignored()
        for above in () if self._ignored_too else folders_above(path):
            with self._workspace.folder(above) as folder:
                ignored = self._rules_with(folder, ignored)
        return ignored

    def _rules_in(self, folder: Folder) -> Ignored | None:
        """What is left out in a folder; None for nothing."""
        ignored = self._ignored.pop(folder.path, None) or self._ignored_above(folder.path)
        ignored = self._rules_with(folder, ignored)
        if not ignored.rules:
            return None
        self._ignored[folder.path] = ignored
        return ignored

    def _ignored_above(self, path: str) -> Ignored:
        while path not in self._ignored and path != ".":
            path = path.rpartition("/")[0] or "."
        return self._ignored.get(path, Ignored())

    def _rules_with(self, folder: Folder, ignored: Ignored) -> Ignored:
        entry = next((entry for entry in folder.entries if entry.name == NAME), None)
        if entry is None or self._ignored_too or not entry.is_file(follow_symlinks=False):
            return ignored
        try:
            text = folder.read(entry, max_bytes=MAX_BYTES).decode("utf-8", "replace")
        except (OSError, WorkspaceError):
            self._unreadable += 1
            return ignored
        return ignored.below(text, folder.path)

    def _enters(self, path: str) -> bool:
        """Whether a folder is searched."""
        if self._ignored_too:
            return True
        left_out = path.rpartition("/")[2] == ".git"
        if not left_out and self._ignored:
            left_out = self._ignored_above(path.rpartition("/")[0] or ".").leaves_out(path, folder=True)
            self._left_out += left_out
        return not left_out

    def _search_data(self, path: str, data: bytes, content: re.Pattern[str]) -> None:
        self._bytes += len(data)
        if len(data) > MAX_FILE_BYTES:
            self._large += 1
            return
        if data.find(b"\0", 0, _BINARY_PROBE) >= 0:
            self._binary += 1
            return
        text = data.decode("utf-8", "replace")
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        if content.search(text) is None:
            return
        matches = self._found.matches
        lines = text.split("\n") if self._context else []
        for number, start, end, column in _matching_lines(content, text):
            before, after = _around(lines, number, self._context) if lines else ((), ())
            matches.append(SearchMatch(path, number, _cut(text[start:end], column), before, after))
            if len(matches) >= MAX_MATCHES:
                return

    def _full(self) -> bool:
        found = self._found
        if len(found.matches) >= MAX_MATCHES:
            limit = f"{MAX_MATCHES:,} matches"
        elif len(found.paths) >= MAX_PATHS:
            limit = f"{MAX_PATHS:,} paths"
        elif found.files >= MAX_FILES:
            limit = f"{MAX_FILES:,} files"
        elif self._bytes >= MAX_TOTAL_BYTES:
            limit = f"{MAX_TOTAL_BYTES:,} bytes read"
        else:
            return False
        if not found.notes:
            found.notes.append(f"Stopped after {limit}; narrow the search by path, glob or pattern.")
        return True

    def _note_skipped(self) -> None:
        for count, what in (
            (self._binary, "Binary files skipped"),
            (self._large, f"Files larger than {MAX_FILE_BYTES:,} bytes skipped"),
            (self._unreadable, "Files or folders that could not be read"),
            (self._left_out, "Files or folders left out by .gitignore"),
            (self._beyond, f"Entries behind the first {MOST_ENTRIES:,} of a folder not looked at"),
        ):
            if count:
                self._found.notes.append(f"{what}: {count:,}.")


def _matching_lines(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int, int, int]]:
    """Number, start, end of each line in which a match begins, and where in the line it begins."""
    search, position, number, counted = pattern.search, 0, 1, 0
    length = len(text) - text.endswith("\n")
    while position <= length and (match := search(text, position)) is not None:
        begin = match.start()
        if begin > length or not text:
            return
        start = text.rfind("\n", 0, begin) + 1
        end = text.find("\n", begin)
        end = len(text) if end < 0 else end
        number += text.count("\n", counted, start)
        yield number, start, end, begin - start
        counted, position = start, end + 1


def _around(lines: list[str], number: int, context: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    last = len(lines) - (not lines[-1])
    before = lines[max(0, number - 1 - context) : number - 1]
    after = lines[number : min(last, number + context)]
    return tuple(_cut(line) for line in before), tuple(_cut(line) for line in after)


def _cut(line: str, column: int = 0) -> str:
    """A line, or a part of it that shows what begins at `column`."""
    if len(line) <= MAX_LINE_CHARS:
        return line
    start = max(0, min(column - MAX_LINE_CHARS // 4, len(line) - MAX_LINE_CHARS))
    end = start + MAX_LINE_CHARS
    return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"
