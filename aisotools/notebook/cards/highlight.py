"""Code cut into pieces with a class each, for colours. Pure and linear; the pieces joined are the code."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Collection, Iterator

Pieces = list[tuple[str, str]]
"""Pairs of a class, empty for none, and text."""

MAX_CHARS = 20_000
"""Longer code is one piece."""

# Every branch starts with what no other takes, and none can match in two ways: linear time.
_SHELL = re.compile(
    r"""(?P<comment>(?<![^\s;&|()])\#[^\n]*)
      | (?P<string>'[^']*'? | "(?:[^"\\]|\\.)*"?)
      | (?P<name>\$(?:\{[^}\n]*\}? | \w+ | [?@*\#!$-])?)
      | (?P<operator>[|&;()<>]+)
      | (?P<space>\s+)
      | (?P<word>(?:[^\s|&;()<>"'$\\] | \\.)+)
      | (?P<rest>\\)""",
    re.VERBOSE | re.DOTALL,
)
_PYTHON = re.compile(
    r"""(?P<comment>\#[^\n]*)
      | (?P<string>[A-Za-z]{0,2}(?:
            \'\'\'(?:[^'\\] | \\. | '(?!''))*(?:\'\'\')?
          | \"\"\"(?:[^"\\] | \\. | "(?!""))*(?:\"\"\")?
          | '(?:[^'\\\n] | \\.)*'?
          | "(?:[^"\\\n] | \\.)*"?))
      | (?P<number>\d[\w.]*)
      | (?P<word>\w+)
      | (?P<rest>[^\w\s"'#]+ | \s+)""",
    re.VERBOSE | re.DOTALL,
)
_OPENERS = frozenset(("then", "do", "else", "elif", "if", "while", "until", "!", "{", "time", "exec"))
_ASSIGNED = re.compile(r"\w+\+?=")
_BUILTINS = frozenset(dir(builtins))
_HUNK = re.compile(r"^@@ ", re.MULTILINE)
_HEADS = ("--- ", "+++ ", "diff ", "index ", "@@")
_SIGNS = {"+": "added", "-": "removed"}


def highlight(code: str, language: str, written: Collection[str] = ()) -> Pieces:
    """`code` in pieces.

    Args:
        code: The source.
        language: `shell`, `python` or `diff`; anything else is one piece.
        written: Words of a shell command that are known to be paths it writes.
    """
    if len(code) > MAX_CHARS or language not in {"shell", "python", "diff"}:
        return [("", code)]
    if language == "diff":
        return list(_joined(_diff(code)))
    pieces = _shell(code, frozenset(written)) if language == "shell" else _python(code)
    return list(_joined(pieces))


def is_diff(text: str) -> bool:
    """Whether a text reads as a unified diff."""
    return _HUNK.search(text) is not None and ("\n+++ " in text or text.startswith("diff --git "))


def _joined(pieces: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Neighbours of one class as one piece."""
    kind, texts = "", [""]
    for name, text in pieces:
        if name != kind:
            if joined := "".join(texts):
                yield kind, joined
            kind, texts = name, []
        texts.append(text)
    if joined := "".join(texts):
        yield kind, joined


def _shell(code: str, written: frozenset[str]) -> Iterator[tuple[str, str]]:
    starts = True
    for match in _SHELL.finditer(code):
        kind, text = match.lastgroup or "", match[0]
        if kind == "word":
            if text in written:
                kind = "written"
            elif starts and not _ASSIGNED.match(text):
                kind = "keyword" if text in _OPENERS else "command"
                starts = text in _OPENERS
            else:
                kind = "option" if text.startswith("-") else ""
        elif kind == "operator":
            starts = text[-1] not in "<>"
        elif kind == "space":
            starts = starts or "\n" in text
            kind = ""
        elif kind in {"string", "name"}:
            starts = False
        yield ("" if kind == "rest" else kind), text


def _python(code: str) -> Iterator[tuple[str, str]]:
    for match in _PYTHON.finditer(code):
        kind, text = match.lastgroup or "", match[0]
        if kind == "word":
            kind = "keyword" if keyword.iskeyword(text) else "command" if text in _BUILTINS else ""
        yield ("" if kind == "rest" else kind), text


def _diff(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines(keepends=True):
        yield ("where" if line.startswith(_HEADS) else _SIGNS.get(line[:1], "")), line
