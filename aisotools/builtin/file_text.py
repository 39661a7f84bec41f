"""What a model reads of files: text within a budget of characters, and in words what was left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from aisotools.events import Json, ToolResult, Truncation
from aisotools.exceptions import ToolError

_NOTE_CHARS = 250
"""Kept free for the note about what was left out."""


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


def show_lines(path: str, size: int, lines: Lines, budget: int) -> ToolResult:
    """Lines of a file as a result: all of them for programs, what fits in `budget` characters for a model."""
    value: dict[str, Json] = {
        "path": path,
        "content": lines.text,
        "start_line": lines.start,
        "end_line": lines.end,
        "total_lines": lines.total,
        "size": size,
    }
    return show_text(value, lines.text, budget, start=lines.start, note=lines.note)


def show_text(value: Json, text: str, budget: int, *, start: int = 1, note: str = "") -> ToolResult:
    """A text as a result: `value` for programs, what fits in `budget` characters for a model.

    Args:
        value: The whole structured answer.
        text: What the model should read.
        budget: How many characters of it.
        start: Line number of its first line.
        note: Told after the text when all of it fits.
    """
    if len(text) + (len(note) + 4 if note else 0) <= budget:
        return ToolResult.json(value, _with_notes(text, [note] if note else []))
    room = max(budget - _NOTE_CHARS, budget // 2)
    cut = text.rfind("\n", 0, room) + 1
    head = text[: cut or room]
    line = start + head.count("\n")
    if cut:
        rest = f"Read on with the tool file, start_line={line}."
    else:
        rest = f"Line {line:,} is that long; take a part of it with sandbox_bash (cut -c) or python."
    note = f"Cut after {len(head):,} of {len(text):,} characters. {rest}"
    result = ToolResult.json(value, _with_notes(head, [note]))
    cut_off = Truncation(total_chars=len(text), shown_chars=len(head), note=note)
    return dataclasses.replace(result, truncation=cut_off)


def show_list(value: Json, lines: Sequence[str], notes: Sequence[str], budget: int) -> ToolResult:
    """A list as a result: `value` for programs, whole lines that fit in `budget` characters for a model."""
    total = sum(len(line) + 1 for line in lines)
    room = budget - sum(len(note) + 4 for note in notes)
    if total <= room:
        return ToolResult.json(value, _with_notes("\n".join(lines), notes))
    shown_chars = count = 0
    for line in lines:
        if shown_chars + len(line) + 1 > room - _NOTE_CHARS:
            break
        shown_chars += len(line) + 1
        count += 1
    note = f"{len(lines) - count:,} of {len(lines):,} lines of this answer are left out; ask for less."
    result = ToolResult.json(value, _with_notes("\n".join(lines[:count]), [*notes, note]))
    cut_off = Truncation(total_chars=total, shown_chars=shown_chars, note=note)
    return dataclasses.replace(result, truncation=cut_off)


def _with_notes(text: str, notes: Sequence[str]) -> str:
    """Notes in brackets, each on a line of its own, so that they cannot be taken for the file's text."""
    if not notes:
        return text
    gap = "" if not text or text.endswith("\n") else "\n"
    return text + gap + "\n".join(f"[{note}]" for note in notes)
