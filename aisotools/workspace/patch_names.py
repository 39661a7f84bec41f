"""Which files a patch names, read as `patch` and `git apply` read it.

What these change stands in the patch and not in the command. A person who is asked about `git apply x.diff`
should see which files that are, and rules about paths should hold for them. The patch is a text that
anybody may have written: it is read once, in bounded time, and where that is not enough, the answer says so.

The names are for a card and for rules. What the program makes of the patch is still uncertain: it may look
for another file of nearly the same name, and leaves copies beside what it could not change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAX_NAMES = 200
"""Files of one patch that are named."""

MAX_LINES = 200_000
"""Lines of one patch that are read, which takes about 0.1 s."""

_HUNK = re.compile(r"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_HEADER = re.compile(r"(?:---|\+\+\+|\*\*\*) ([^\t]+?)(?:\t.*| \d{4}-\d\d-\d\d \d\d:\d\d.*)?")
_CONTEXT_HUNK = re.compile(r"(?:\*\*\*|---) \d+(?:,\d+)? (?:\*\*\*\*|----)")
_RENAME = re.compile(r"(?:rename|copy) (?:from|to) (.+)")
_INDEX = re.compile(r"Index: (.+)")
_GIT = "diff --git "
_NOWHERE = "/dev/null"


class PatchNames(NamedTuple):
    """What a patch names.

    Attributes:
        names: Paths, in the order in which they appear, each once.
        is_complete: False if there are more, or some that could not be read.
    """

    names: tuple[str, ...]
    is_complete: bool


def names_in_patch(text: str, strip: int | None) -> PatchNames:
    """Return the files that a patch changes, makes or removes.

    Args:
        text: The patch, or several, with whatever stands between them.
        strip: How many folders are left out at the beginning of names; None for all, as `patch` does.
    """
    names: dict[str, None] = {}
    lines = re.split(r"\r?\n", text, maxsplit=MAX_LINES)
    is_complete = len(lines) <= MAX_LINES
    for written, is_bare in _written_names(lines[:MAX_LINES]):
        if written == _NOWHERE:
            continue
        # git writes the names of a renaming without the folders `a` and `b`.
        name = _stripped(written, max(strip - 1, 0) if is_bare and strip else strip)
        if name is not None and name not in names and len(names) >= MAX_NAMES:
            is_complete = False
            break
        if name is None:
            is_complete = False
        else:
            names[name] = None
    return PatchNames(tuple(names), is_complete and bool(names))


def _written_names(lines: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield the names in the headers of a patch, and whether git has written them without a folder."""
    old = new = 0  # lines of the hunk that are still to come
    for line in lines:
        if old > 0 or new > 0:
            # Case: a removed line `-- a/x` looks like a header, and so does an added one.
            sign = line[:1]
            if sign in {"", " ", "-", "+", "\\"}:
                old -= sign in {"", " ", "-"}
                new -= sign in {"", " ", "+"}
                continue
            old = new = 0
        if hunk := _HUNK.match(line):
            old, new = (int(count) if count is not None else 1 for count in hunk.groups())
        elif line.startswith(_GIT):
            yield from ((name, False) for name in _git_names(line.removeprefix(_GIT)))
        elif found := _RENAME.fullmatch(line):
            yield found[1], True
        elif _CONTEXT_HUNK.fullmatch(line):
            continue
        elif found := _HEADER.fullmatch(line) or _INDEX.fullmatch(line):
            yield found[1].strip(), False


def _git_names(rest: str) -> tuple[str, ...]:
    """Return both names of `a/x b/x`. Of a renaming, whose names differ, other lines say them."""
    middle = len(rest) // 2
    old, new = rest[:middle], rest[middle + 1 :]
    is_same = rest[middle : middle + 1] == " " and old.partition("/")[2] == new.partition("/")[2]
    return (old, new) if is_same else ()


def _stripped(name: str, strip: int | None) -> str | None:
    """Return a name without its first folders; None if it is quoted, or has no more than these."""
    if name.startswith('"') or "\0" in name:
        return None
    parts = re.split(r"/+", name)
    if strip is None:
        return parts[-1] or None
    return "/".join(parts[strip:]) or None
