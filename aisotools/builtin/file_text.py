"""What a model reads of files: lines by number, lists of lines, and notes on what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aisotools.events import Json, ToolResult
from aisotools.exceptions import ToolError
from aisotools.result_store import CAP


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines of a text, exactly as they stand there.

    Attributes:
        text: The lines with their ends.
        start: Number of the first, from 1.
        end: Number of the last; one less than `start` when there is none.
        total: How many lines the whole text has.
        note: What the reader should know about the choice; empty for nothing.
    """

    text: str
    start: int
    end: int
    total: int
    note: str = ""


def lines_between(path: str, text: str, start: int | None, end: int | None) -> Lines:
    r"""The lines from `start` to `end`, both included; only `\n` ends a line.

    Raises:
        ToolError: If `start` lies behind the last line.
    """
    total = text.count("\n") + (not text.endswith("\n") and text != "")
    first = start or 1
    if first > max(total, 1):
        raise ToolError(f"{path!r} has {total:,} lines; start_line {first:,} is past its end.")
    last = total if end is None else min(end, total)
    note = f"The file ends at line {total:,}." if end is not None and end > total else ""
    if first > 1 or last < total:
        chosen = text.split("\n")[first - 1 : last]
        ended = last < total or text.endswith("\n")
        text = "\n".join(chosen) + "\n" * ended
    return Lines(text, first, last, total, note)


def show_lines(path: str, size: int, lines: Lines) -> ToolResult:
    """Lines of a file as a result."""
    value: dict[str, Json] = {
        "path": path,
        "content": lines.text,
        "start_line": lines.start,
        "end_line": lines.end,
        "total_lines": lines.total,
        "size": size,
    }
    return ToolResult.json(value, _with_notes(lines.text, [lines.note] if lines.note else []))


def show_list(value: Json, lines: Sequence[str], notes: Sequence[str], cap: str) -> ToolResult:
    """A list as a result: `value` for programs, lines for a model, who reads as many as `cap` allows."""
    return ToolResult.json(value, _with_notes("\n".join(lines), notes)).with_metadata(**{CAP: cap})


def _with_notes(text: str, notes: Sequence[str]) -> str:
    """Notes in brackets, each on a line of its own, so that they cannot be taken for the file's text."""
    if not notes:
        return text
    gap = "" if not text or text.endswith("\n") else "\n"
    return text + gap + "\n".join(f"[{note}]" for note in notes)
