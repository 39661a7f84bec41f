"""Secrets in the columns of a table: below a header such as `user,password`, or below the word alone.

Threat
    What a program prints as a table names a secret once, above it, and other words stand between them. Output
    comes line by line, so that the header is gone when the secret comes.
Mechanism
    A header is a line of names, one of which is that of a secret, with commas, semicolons, tabs, bars or wide
    blanks between them. Lines with as many cells that follow are its rows. Each line is looked at once, and
    only `_MOST_CHARS` of it, so the work grows with the text.
When it fails
    Cells with delimiters in quotes, and headers that are not the line above the first row, are not
    understood: their secrets stay readable unless they are recognised by their shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from aisotools.core.secret_names import Strength, is_secret_value, looks_mixed, purpose_of, strength_of
from aisotools.core.secret_shapes import Secret, changes, with_rarest

_MOST_CHARS = 4_096
_MOST_CELLS = 200
_MOST_NAME_CHARS = 40
_LEAST_CHARS = 4
_LEAST_CHANGES = 3  # of kinds of letters, in a word that nobody reads

_COLUMN_SIGNS = ("pass", "pwd", "secret", "token", "key", "credential", "kennwort", "senha")
_RARE_AND_SIGN = with_rarest(_COLUMN_SIGNS)
_COLUMN_SIGN = re.compile("(?i)" + "|".join(_COLUMN_SIGNS))
_CELLS: dict[str, re.Pattern[str]] = {
    ",": re.compile(r"[^,\n]+"),
    ";": re.compile(r"[^;\n]+"),
    "\t": re.compile(r"[^\t\n]+"),
    "|": re.compile(r"[^|\n]+"),
    "  ": re.compile(r"\S+"),
}
_NAME = re.compile(r"""\s*+["'`*]{0,2}(?P<name>[A-Za-z_][\w .-]{0,39}?)["'`*]{0,2}\s*+""")
_AROUND = " \t\r\n\"'`*"
_NUMBER = re.compile(r"[-+]?[\d.,]+%?")


class SecretColumns:
    """The columns of the table that the lines just seen belong to, if they belong to one."""

    def __init__(self) -> None:
        """Begin before the first line of a text."""
        self._delimiter = ""
        self._names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<SecretColumns {', '.join(self._names) or 'of no table'}>"

    def find(self, line: str) -> Iterator[Secret]:
        """Yield the secrets of a line, which may be a row of the table."""
        if not self._names:
            return
        cells = [*_CELLS[self._delimiter].finditer(line[:_MOST_CHARS])]
        missing = len(cells) - len(self._names)
        # A printed data frame has a column of row numbers without a name.
        if missing not in ((0, 1) if self._delimiter == "  " else (0,)):
            return
        for name, cell in zip(self._names, cells[missing:], strict=True):
            value = cell[0].strip(_AROUND) if strength_of(name) is not None else ""
            if value and self._is_secret(name, value):
                start = cell.end() - len(cell[0].lstrip(_AROUND))
                yield Secret(start, start + len(value), purpose_of(name))

    def advance(self, line: str) -> None:
        """Go past a line: a header begins a table, and what is not a row ends it."""
        if self._names and len(self._names) > 1:
            count = len(_CELLS[self._delimiter].findall(line[:_MOST_CHARS]))
            if count - len(self._names) in (0, 1):
                return
        self._delimiter, self._names = _header_of(line)

    def _is_secret(self, name: str, value: str) -> bool:
        if len(value) < _LEAST_CHARS or _NUMBER.fullmatch(value) or not is_secret_value(name, value):
            return False
        # Between commas a word below `password` is one; between blanks it may be prose.
        is_exact = len(self._names) > 1 and self._delimiter in (",", ";", "\t")
        return (
            strength_of(name) is Strength.WEAK
            or is_exact
            or looks_mixed(value)
            or changes(value) >= _LEAST_CHANGES
        )


def _has_column_sign(text: str) -> bool:
    """Return whether a name of a secret may be in a text, in any case."""
    if not text.isascii():
        return _COLUMN_SIGN.search(text) is not None  # where other letters count as the same
    lowered = text.lower()  # a fiftieth of the time of the pattern
    return any(rare in lowered and sign in lowered for rare, sign in _RARE_AND_SIGN)


def _header_of(line: str) -> tuple[str, tuple[str, ...]]:
    """Return the delimiter and the names of a header that names a secret; empty ones for another line."""
    head = line[: _MOST_CHARS + 1]
    if len(head) > _MOST_CHARS or not _has_column_sign(head):
        return "", ()
    if _NAME.fullmatch(head) and " " not in head.strip():
        return ("  ", (head.strip(),)) if strength_of(head.strip()) is Strength.STRONG else ("", ())
    for delimiter, cells in _CELLS.items():
        if delimiter not in head.strip():
            continue
        texts = cells.findall(head)
        names = [match["name"] for text in texts if (match := _NAME.fullmatch(text))]
        if not 1 < len(names) == len(texts) <= _MOST_CELLS:
            continue
        if any(strength_of(name) is not None for name in names if len(name) <= _MOST_NAME_CHARS):
            return delimiter, tuple(names)
    return "", ()


def find_in_tables(text: str) -> Iterator[Secret]:
    """Yield the secrets in the rows of the tables in a text, in order."""
    if "\n" not in text or not _has_column_sign(text):
        return
    columns = SecretColumns()
    start = 0
    for line in text.splitlines(keepends=True):
        for found in columns.find(line):
            yield Secret(start + found.start, start + found.end, found.kind)
        columns.advance(line)
        start += len(line)
