"""Magics that await: a cell is rewritten so that `%call` and `%%sandbox` become `await`.

An IPython magic is a plain function and cannot await. So a line such as `x = %call NAME a=1` is turned into
`x = await ...` before it is compiled, wherever top-level `await` is allowed. History and the saved notebook
keep what was typed. Inside a function, or under another cell magic, nothing is rewritten: there the plain
magic of the same name says how to write it instead.
"""

from __future__ import annotations

import re
import sys
import tokenize

from IPython.core.inputtransformer2 import make_tokens_by_line

_RUN = '__import__("aisotools.notebook.awaited", fromlist=["run_magic"]).run_magic'
_LINE = re.compile(
    r"(?P<indent>[ \t]*)(?P<target>[^\W\d][\w.\[\]'\", ]*=\s*)?"
    r"%(?P<magic>call|sandbox[ \t]+restart)\b(?P<rest>.*)",
    re.DOTALL,
)
_CELL = re.compile(r"%%(?P<magic>sandbox)\b(?P<rest>[^\n]*)\n?")
_DEFINITION = re.compile(r"[ \t]*(async[ \t]+def|def|class)\b")


def rewrite(lines: list[str]) -> list[str]:
    """The lines of a cell, with our magics awaited."""
    if not any("%" in line for line in lines) or _under_a_magic():
        return lines
    first = next((n for n, line in enumerate(lines) if line.strip()), 0)
    if lines[first].startswith("%%"):
        match = _CELL.match(lines[first])
        if match is None:
            return lines
        body = "".join(lines[first + 1 :])
        return [f"await {_RUN}({match['magic']!r}, {match['rest'].strip()!r}, {body!r})\n"]
    starts = _statement_starts(lines)
    rewritten: list[str] = []
    number = 0
    while number < len(lines):
        match = _LINE.match(lines[number]) if number in starts else None
        if match is None or _inside_definition(lines, number, len(match["indent"])):
            rewritten.append(lines[number])
            number += 1
            continue
        rest, used = _continued(match["rest"], lines[number + 1 :])
        name, _, argument = match["magic"].partition(" ")
        argument = f"{argument.strip()} {rest.strip()}".strip()
        target = match["target"] or ""
        rewritten.append(f"{match['indent']}{target}await {_RUN}({name.strip()!r}, {argument!r})\n")
        # Line numbers of tracebacks stay right.
        rewritten.extend(["\n"] * used)
        number += 1 + used
    return rewritten


def _under_a_magic() -> bool:
    """Whether another magic, such as `%%time`, is about to run these lines; it would not await them."""
    frame = sys._getframe()  # noqa: SLF001 - there is no other way to learn who transforms
    while frame is not None:
        if frame.f_code.co_name in {"run_cell_magic", "run_line_magic"}:
            return True
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return False


def _statement_starts(lines: list[str]) -> set[int]:
    """Numbers of the lines that begin a statement, so that text in strings is left alone."""
    starts = set()
    for tokens in make_tokens_by_line(lines):
        significant = [t for t in tokens if t.type not in {tokenize.INDENT, tokenize.DEDENT, tokenize.NL}]
        if significant:
            starts.add(significant[0].start[0] - 1)
    return starts


def _continued(rest: str, following: list[str]) -> tuple[str, int]:
    """A line with the ones that a trailing backslash joins to it, and how many those are."""
    used = 0
    while rest.rstrip("\n").endswith("\\") and used < len(following):
        rest = rest.rstrip("\n")[:-1] + following[used]
        used += 1
    return rest, used


def _inside_definition(lines: list[str], number: int, indent: int) -> bool:
    """Whether a line belongs to a function or class, where a cell's `await` does not reach."""
    for line in reversed(lines[:number]):
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        if depth < indent:
            if _DEFINITION.match(line):
                return True
            indent = depth
    return False
