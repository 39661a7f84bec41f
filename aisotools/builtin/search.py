"""Search a workspace for file names and lines, less what its `.gitignore` files exclude.

File names are found by glob, lines by regular expression. Every search is bounded in files, bytes, matches
and line length, and says what it skipped. Ignored files are searched when asked for; the rules follow git.
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
from aisotools.workspace.paths import as_utf8, printable
from aisotools.workspace.workspace import Workspace

IGNORE_FILE = ".gitignore"
MAX_IGNORE_FILE_BYTES = 1 << 18
"""Bytes read of one `.gitignore`."""
MAX_IGNORE_RULES = 2_000
"""Lines read of one `.gitignore`; every rule costs one regular expression per file below."""

MAX_MATCHES = 1_000
MAX_PATHS = 10_000
MAX_FILES = 100_000
MAX_TOTAL_BYTES = 1 << 30
MAX_SEARCHED_FILE_BYTES = 10 << 20
MAX_LINE_CHARS = 500

_BINARY_PROBE_BYTES = 8_192
_PROGRESS_INTERVAL_FILES = 5_000


# ---- .gitignore


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """One line of a `.gitignore` file.

    Attributes:
        pattern: Matches paths relative to the folder of the file, as pathspec compiles it.
        ignores: False for a line that begins with `!` and re-includes paths.
        folders_only: True for a line that ends with a slash.
    """

    pattern: re.Pattern[str]
    ignores: bool
    folders_only: bool

    def matches(self, path: str) -> bool:
        """Return whether the rule names `path` itself, not only a folder above it."""
        match = self.pattern.search(path)
        # pathspec's one named group captures the slash behind a folder that matched: then the rule names an
        # ancestor of `path`. Git decides about each level separately, and the walk has asked about the
        # ancestor already (a later rule re-included it, or the search began inside it).
        return match is not None and match.lastgroup is None


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The rules that apply in one folder: its own file's, then those of the folders above it.

    Attributes:
        rules: Of the innermost file that has any, last line first: the last matching line decides.
        prefix_chars: Length of that file's folder in a workspace-relative path, with the slash.
        parent: The rules of the folders above.
    """

    rules: tuple[IgnoreRule, ...] = ()
    prefix_chars: int = 0
    parent: IgnoreRules | None = None

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Return whether a workspace-relative path is ignored."""
        level: IgnoreRules | None = self
        while level is not None:
            relative = path[level.prefix_chars :]
            for rule in level.rules:
                if (is_folder or not rule.folders_only) and rule.matches(relative):
                    return rule.ignores
            level = level.parent
        return False

    def with_file(self, text: str, folder: str) -> IgnoreRules:
        """Return the rules below `folder`, whose own `.gitignore` reads `text`."""
        prefix_chars = 0 if folder == "." else len(folder) + 1
        lines = text.split("\n")[:MAX_IGNORE_RULES]
        rules = [rule for line in lines if (rule := parse_ignore_rule(line)) is not None]
        return IgnoreRules(tuple(reversed(rules)), prefix_chars, self) if rules else self


@lru_cache(maxsize=512)
def parse_ignore_rule(line: str) -> IgnoreRule | None:
    """Parse one line; return None for a comment, an empty line, or a pattern that git discards."""
    # Imported with the first rule: it takes about 10 ms, and most workspaces searched have no such file.
    from pathspec.patterns.gitignore import GitIgnorePatternError
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    line = line if line.endswith("\\ ") else line.rstrip()
    # pathspec decides about files, to which `folder/` applies through the folder above them. This search
    # decides about folders before it enters them, so the slash becomes a flag.
    folders_only = line.endswith("/")
    try:
        compiled = GitIgnoreSpecPattern(line.rstrip("/"))
    except (GitIgnorePatternError, re.error):
        return None
    if compiled.regex is None or compiled.include is None:
        return None
    return IgnoreRule(compiled.regex, compiled.include, folders_only)


def ancestors(path: str) -> Iterable[str]:
    """Yield the folders above `path`, outermost first, beginning with the workspace itself."""
    if path == ".":
        return
    yield "."
    names = path.split("/")
    for count in range(1, len(names)):
        yield "/".join(names[:count])


# ---- patterns and results


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
        """Return the match as a JSON object; `before` and `after` only `with_context`."""
        row: dict[str, Json] = {"path": as_utf8(self.path), "line": self.line, "text": self.text}
        return {**row, "before": list(self.before), "after": list(self.after)} if with_context else row


@dataclass(slots=True)
class SearchResult:
    """The result of a search.

    Attributes:
        matches: Matching lines, when content was searched.
        paths: Matching names, when only names were searched.
        files: Number of files examined.
        notes: Sentences about what was skipped or cut.
    """

    matches: list[SearchMatch] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    files: int = 0
    notes: list[str] = field(default_factory=list)


def compile_pattern(pattern: str, *, regex: bool) -> re.Pattern[str]:
    """Compile a pattern for searching whole texts: `^` and `$` match at every line.

    Raises:
        ToolError: If it is not a regular expression; the message gives the position of the fault.
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
    """Compile a glob to a pattern for relative paths.

    `*` and `?` stay within one name, `**` crosses folders, `[ab]` and `{one,two}` choose. Without a slash it
    is matched against the name alone, at any depth.
    """
    glob = glob.removeprefix("./")
    if "/" not in glob:
        glob = "**/" + glob
    braces = glob.count("{") == glob.count("}")
    regex: list[str] = []
    depth = position = 0
    while position < len(glob):
        char = glob[position]
        step = 1
        if glob.startswith("**/", position):
            regex.append("(?:.*/)?")
            step = 3
        elif glob.startswith("**", position):
            regex.append(".*")
            step = 2
        elif char == "*":
            regex.append("[^/]*")
        elif char == "?":
            regex.append("[^/]")
        elif char == "[" and (end := glob.find("]", position + 2)) > 0:
            regex.append(_character_class(glob[position + 1 : end]))
            step = end + 1 - position
        elif char == "{" and braces:
            regex.append("(?:")
            depth += 1
        elif char == "}" and depth:
            regex.append(")")
            depth -= 1
        elif char == "," and depth:
            regex.append("|")
        else:
            regex.append(re.escape(char))
        position += step
    return _compile("".join(regex) + ")" * depth, re.DOTALL)


def _compile(pattern: str, flags: re.RegexFlag) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FutureWarning about set operations that Python may add
        return re.compile(pattern, flags)


def _character_class(inside: str) -> str:
    negated = inside[0] in "!^"
    members = re.sub(r"([\\\[\]&~|^])", r"\\\1", inside[1:] if negated else inside)
    try:
        return _compile(f"(?!/)[{'^' if negated else ''}{members}]", re.NOFLAG).pattern
    except re.error:  # a backward range such as [z-a]
        return re.escape(f"[{inside}]")


def format_matches(matches: Sequence[SearchMatch]) -> Iterator[str]:
    """Yield lines like grep's: `path:line: text`, context lines with dashes, `--` between groups."""
    for path, group in itertools.groupby(matches, key=lambda match: match.path):
        rows: dict[int, tuple[str, str]] = {}
        context = False
        for match in group:
            context = context or bool(match.before or match.after)
            for number, text in enumerate(match.before, match.line - len(match.before)):
                rows.setdefault(number, ("-", text))
            for number, text in enumerate(match.after, match.line + 1):
                rows.setdefault(number, ("-", text))
            # A match overwrites the row that an earlier match has as context.
            rows[match.line] = (":", match.text)
        previous = 0
        for number in sorted(rows):
            mark, text = rows[number]
            if context and previous and number != previous + 1:
                yield "--"
            yield f"{printable(path)}{mark}{number}{mark} {text}"
            previous = number


# ---- searching


class Search:
    """One search: `run` it once."""

    def __init__(
        self,
        workspace: Workspace,
        content: re.Pattern[str] | None,
        names: re.Pattern[str] | None,
        context_lines: int = 0,
        *,
        include_ignored: bool = False,
        emit: Callable[..., None] | None = None,
    ) -> None:
        """Prepare a search; nothing is read yet.

        Args:
            workspace: Where to search.
            content: Pattern that lines must match; None to search names alone.
            names: Pattern that paths relative to the searched folder must match; None for all.
            context_lines: Number of lines to keep before and after each match.
            include_ignored: Search what `.gitignore` excludes, and `.git`.
            emit: Called with progress reports.
        """
        self._workspace = workspace
        self._content = content
        self._names = names
        self._context_lines = context_lines
        self._include_ignored = include_ignored
        self._emit = emit
        self._result = SearchResult()
        self._rules: dict[str, IgnoreRules] = {}
        self._bytes = 0
        self._binary = 0
        self._large = 0
        self._unreadable = 0
        self._ignored = 0
        self._unlisted = 0
        self._denied = 0

    def run(self, path: str) -> SearchResult:
        """Search a folder and everything below it, or one file.

        Raises:
            WorkspaceError, OSError: If `path` itself cannot be searched.
        """
        top = self._workspace.stat(path)
        if top.kind == "directory":
            prefix_chars = 0 if top.path == "." else len(top.path) + 1
            self._rules[top.path] = self._rules_above(top.path)
            for folder in self._workspace.walk(path, enter=self._should_enter):
                if self._is_full() or not self._search_folder(folder, prefix_chars):
                    break
        elif self._names is None or self._names.fullmatch(top.name):
            # A file that is named is searched, even if it is ignored.
            self._result.files = 1
            if self._content is None:
                self._result.paths.append(top.path)
            else:
                data = self._workspace.read_bytes(path, max_bytes=MAX_SEARCHED_FILE_BYTES)
                self._search_data(top.path, data, self._content)
        self._note_skipped()
        return self._result

    def _search_folder(self, folder: Folder, prefix_chars: int) -> bool:
        """Search the files directly in a folder. Return False to stop the whole search."""
        result, names, content = self._result, self._names, self._content
        if folder.error is not None:
            self._unreadable += 1
        self._unlisted += folder.left_out
        rules = self._rules_in(folder)
        for entry in folder.entries:
            if entry.is_dir(follow_symlinks=False):
                continue
            path = folder.path_of(entry.name)
            if names is not None and not names.fullmatch(path, prefix_chars):
                continue
            if rules is not None and rules.ignores(path, is_folder=False):
                self._ignored += 1
                continue
            if content is not None and self._workspace.is_denied(path):
                self._denied += 1
                continue
            result.files += 1
            if self._emit is not None and not result.files % _PROGRESS_INTERVAL_FILES:
                self._emit("progress", done=result.files, what="files searched")
            if content is None:
                result.paths.append(path)
            elif entry.is_file(follow_symlinks=False):  # the target of a link is searched where it lies
                try:
                    data = folder.read(entry, max_bytes=MAX_SEARCHED_FILE_BYTES + 1)
                except (OSError, WorkspaceError):
                    self._unreadable += 1
                    continue
                self._search_data(path, data, content)
            if self._is_full():
                return False
        return True

    def _rules_above(self, path: str) -> IgnoreRules:
        rules = IgnoreRules()
        if self._include_ignored:
            return rules
        for ancestor in ancestors(path):
            with self._workspace.folder(ancestor) as folder:
                rules = self._with_rules_of(folder, rules)
        return rules

    def _rules_in(self, folder: Folder) -> IgnoreRules | None:
        """Return the rules for what is in `folder`, None for none; keep them for its subfolders."""
        rules = self._rules.pop(folder.path, None) or self._nearest_rules(folder.path)
        rules = self._with_rules_of(folder, rules)
        if not rules.rules:
            return None
        self._rules[folder.path] = rules
        return rules

    def _nearest_rules(self, path: str) -> IgnoreRules:
        while path not in self._rules and path != ".":
            path = path.rpartition("/")[0] or "."
        return self._rules.get(path, IgnoreRules())

    def _with_rules_of(self, folder: Folder, rules: IgnoreRules) -> IgnoreRules:
        entry = next((entry for entry in folder.entries if entry.name == IGNORE_FILE), None)
        if entry is None or self._include_ignored or not entry.is_file(follow_symlinks=False):
            return rules
        if self._workspace.is_denied(folder.path_of(entry.name)):
            return rules
        try:
            text = folder.read(entry, max_bytes=MAX_IGNORE_FILE_BYTES).decode("utf-8", "replace")
        except (OSError, WorkspaceError):
            self._unreadable += 1
            return rules
        return rules.with_file(text, folder.path)

    def _should_enter(self, path: str) -> bool:
        if self._include_ignored:
            return True
        if path.rpartition("/")[2] == ".git":
            return False
        if not self._rules:
            return True
        ignored = self._nearest_rules(path.rpartition("/")[0] or ".").ignores(path, is_folder=True)
        self._ignored += ignored
        return not ignored

    def _search_data(self, path: str, data: bytes, content: re.Pattern[str]) -> None:
        self._bytes += len(data)
        if len(data) > MAX_SEARCHED_FILE_BYTES:
            self._large += 1
            return
        if data.find(b"\0", 0, _BINARY_PROBE_BYTES) >= 0:
            self._binary += 1
            return
        text = data.decode("utf-8", "replace")
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        # Most files have no match: one search of the whole text is far cheaper than splitting it.
        if content.search(text) is None:
            return
        matches = self._result.matches
        lines = text.split("\n") if self._context_lines else []
        for number, start, end, column in _matching_lines(content, text):
            before, after = _around(lines, number, self._context_lines) if lines else ((), ())
            matches.append(SearchMatch(path, number, _excerpt(text[start:end], column), before, after))
            if len(matches) >= MAX_MATCHES:
                return

    def _is_full(self) -> bool:
        result = self._result
        if len(result.matches) >= MAX_MATCHES:
            limit = f"{MAX_MATCHES:,} matches"
        elif len(result.paths) >= MAX_PATHS:
            limit = f"{MAX_PATHS:,} paths"
        elif result.files >= MAX_FILES:
            limit = f"{MAX_FILES:,} files"
        elif self._bytes >= MAX_TOTAL_BYTES:
            limit = f"{MAX_TOTAL_BYTES:,} bytes read"
        else:
            return False
        if not result.notes:
            result.notes.append(f"Stopped after {limit}; narrow the search by path, glob or pattern.")
        return True

    def _note_skipped(self) -> None:
        for count, what in (
            (self._binary, "Binary files skipped"),
            (self._large, f"Files larger than {MAX_SEARCHED_FILE_BYTES:,} bytes skipped"),
            (self._unreadable, "Files or folders that could not be read"),
            (self._ignored, "Files or folders left out by .gitignore"),
            (self._denied, "Files left out since a rule of the policy denies them"),
            (self._unlisted, f"Entries behind the first {MOST_ENTRIES:,} of a folder not looked at"),
        ):
            if count:
                self._result.notes.append(f"{what}: {count:,}.")


def _matching_lines(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield (line number, start, end, column) of each line in which a match begins; a line counts once."""
    search = pattern.search
    position, number, counted = 0, 1, 0
    length = len(text) - text.endswith("\n")
    while position <= length and (match := search(text, position)) is not None:
        begin = match.start()
        if begin > length or not text:
            return
        start = text.rfind("\n", 0, begin) + 1
        end = text.find("\n", begin)
        end = len(text) if end < 0 else end
        # Count on from the last match: counting from the beginning each time would be quadratic.
        number += text.count("\n", counted, start)
        yield number, start, end, begin - start
        counted, position = start, end + 1


def _around(lines: list[str], number: int, context: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    last = len(lines) - (not lines[-1])
    before = lines[max(0, number - 1 - context) : number - 1]
    after = lines[number : min(last, number + context)]
    return tuple(_excerpt(line) for line in before), tuple(_excerpt(line) for line in after)


def _excerpt(line: str, column: int = 0) -> str:
    """Return the line, or `MAX_LINE_CHARS` of it around `column`."""
    if len(line) <= MAX_LINE_CHARS:
        return line
    start = max(0, min(column - MAX_LINE_CHARS // 4, len(line) - MAX_LINE_CHARS))
    end = start + MAX_LINE_CHARS
    return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"
