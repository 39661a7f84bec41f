"""Rewrite cells so that `%call`, `%%sandbox` and `%%agent` become `await`.

An IPython magic is a plain function and cannot await. So a line such as `x = %call NAME a=1` is turned into
`x = await ...` before it is compiled, wherever top-level `await` is allowed. History and the saved notebook
keep what was typed. Inside a function or under another cell magic nothing is rewritten; there the plain magic
of the same name reports what to write instead.
"""

from __future__ import annotations

import re
import sys
import tokenize
from types import FrameType

from IPython.core.inputtransformer2 import make_tokens_by_line

_RUN = '__import__("aisotools.notebook.magics.coroutines", fromlist=["run_magic"]).run_magic'
_TARGET = r"(?P<target>[^\W\d][\w.\[\]'\", ]*=\s*)?"
_LINE = re.compile(
    rf"(?P<indent>[ \t]*){_TARGET}"
    r"%(?P<magic>call|undo|redo|changes|mcp|sandbox[ \t]+(?:restart|vars))(?!\S)(?P<rest>.*)",
    re.DOTALL,
)
_CELL = re.compile(r"%%(?P<magic>sandbox|agent)(?!\S)(?P<rest>[^\n]*)\n?")
_ESCAPED = re.compile(rf"(?P<indent>[ \t]*){_TARGET}[%!]")
_DEFINITION = re.compile(r"[ \t]*(async[ \t]+def|def|class)\b")
_LAYOUT = frozenset(
    {
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.COMMENT,
        tokenize.ENDMARKER,
    }
)


def rewrite(lines: list[str]) -> list[str]:
    """Return the lines of a cell with the magics of this package awaited."""
    if not any("%" in line for line in lines) or _is_under_magic():
        return lines
    first = next((n for n, line in enumerate(lines) if line.strip() and line.lstrip()[0] != "#"), 0)
    if lines[first].startswith("%%"):
        match = _CELL.match(lines[first])
        if match is None:
            return lines
        body = "".join(lines[first + 1 :])
        magic = "cell" if match["magic"] == "sandbox" else "agent"
        return [f"await {_RUN}({magic!r}, {match['rest'].strip()!r}, {body!r})\n"]
    starts = _statement_starts(lines)
    rewritten: list[str] = []
    number = 0
    while number < len(lines):
        match = _LINE.match(lines[number]) if number in starts else None
        if match is None or _is_inside_definition(lines, starts, number):
            rewritten.append(lines[number])
            number += 1
            continue
        rest, used = _join_continuation(match["rest"], lines[number + 1 :])
        magic = match["magic"].split()[-1]
        target = match["target"] or ""
        rewritten.append(f"{match['indent']}{target}await {_RUN}({magic!r}, {rest.strip()!r})\n")
        # Keep the number of lines, so that tracebacks point at the right ones.
        rewritten.extend(["\n"] * used)
        number += 1 + used
    return rewritten


def _is_under_magic() -> bool:
    """Return whether another cell magic, such as `%%time`, will run these lines: it would not await them."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - IPython passes no context to transformers
    while frame is not None:
        if frame.f_code.co_name in {"run_cell_magic", "run_line_magic"}:
            return True
        frame = frame.f_back
    return False


def _statement_starts(lines: list[str]) -> set[int]:
    """Indexes of the lines that begin a statement, so that text in strings is left alone.

    Text behind a magic or `!` is not Python: a bracket or a quote in it must not swallow the lines below. So
    each such statement is blanked and the rest is tokenized again.
    """
    lines = list(lines)
    while True:
        starts = _tokenized_starts(lines)
        number = next((n for n in sorted(starts) if _ESCAPED.match(lines[n])), None)
        if number is None:
            return starts
        match = _ESCAPED.match(lines[number])
        assert match is not None
        _, used = _join_continuation(lines[number], lines[number + 1 :])
        lines[number] = f"{match['indent']}pass\n"
        lines[number + 1 : number + 1 + used] = ["\n"] * used


def _tokenized_starts(lines: list[str]) -> set[int]:
    starts = set()
    try:
        for tokens in make_tokens_by_line(lines):
            significant = [t for t in tokens if t.type not in _LAYOUT]
            if significant:
                starts.add(significant[0].start[0] - 1)
    except SyntaxError:
        # Such as a dedent to nowhere; IPython reports it when it compiles the cell.
        return set()
    return starts


def _join_continuation(rest: str, following: list[str]) -> tuple[str, int]:
    """Join the lines that trailing backslashes continue. Return the line and how many were joined."""
    used = 0
    while rest.rstrip("\n").endswith("\\") and used < len(following):
        rest = rest.rstrip("\n")[:-1] + following[used]
        used += 1
    return rest, used


def _is_inside_definition(lines: list[str], starts: set[int], number: int) -> bool:
    """Return whether a statement is in a function or class, where top-level `await` is not allowed."""
    indent = _indent_width(lines[number])
    for before in sorted((n for n in starts if n < number), reverse=True):
        if _indent_width(lines[before]) < indent:
            if _DEFINITION.match(lines[before]):
                return True
            indent = _indent_width(lines[before])
    return False


def _indent_width(line: str) -> int:
    return len(line) - len(line.lstrip())
