"""Which paths a tree of `.gitignore` files leaves out, by git's own rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

NAME = ".gitignore"
MAX_BYTES, MAX_RULES = 1 << 18, 2_000


@dataclass(frozen=True, slots=True)
class Rule:
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

    rules: tuple[Rule, ...] = ()
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
def read_rule(line: str) -> Rule | None:
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
    return Rule(pattern, keeps, folders_only)


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
