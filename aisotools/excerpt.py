"""What a model reads of a long or unclean text: head and tail, exact counts of what lies between. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_CONTROLS = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # colours, cursor moves
    r"|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # titles, links, device strings
    r"|[ -/]*[0-~])?"
    r"|\r\n?|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
_BINARY_PROBE, _BINARY_SHARE = 4_096, 0.1
_NO_TEXT = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f\ufffd]")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Part of a text.

    Attributes:
        text: Head, a note in brackets on a line of its own, and tail.
        shown_chars: Characters of head and tail together.
        total_chars: Characters of the whole text.
        note: The note; empty where there was no room for one.
    """

    text: str
    shown_chars: int
    total_chars: int
    note: str


def excerpt(text: str, most_chars: int, most_lines: int | None = None, more: str = "") -> Excerpt | None:
    """Head and tail of a text that is too long; None for one that fits.

    Args:
        text: The text.
        most_chars: Characters that the excerpt may have, its note included.
        most_lines: Lines that it may show; without it any number.
        more: What the note should say about reading the rest.
    """
    total = len(text)
    lines = text.count("\n") + (not text.endswith("\n") and text != "")
    if total <= max(most_chars, 0) and (most_lines is None or lines <= most_lines):
        return None
    longest = f"\n[{total} of {total} characters left out here: lines {lines} to {lines} of {lines}{more}]\n"
    room = most_chars - len(longest)
    if room < 1:  # for the note itself
        return Excerpt(text[: max(most_chars, 0)], max(most_chars, 0), total, "")
    head, tail = (room - room // 3, total - room // 3) if total > room else (total, 0)
    if most_lines is not None and lines > most_lines:
        head = min(head, _after_lines(text, most_lines - most_lines // 3))
        tail = max(tail, _before_lines(text, most_lines // 3))
    tail = max(head, tail)
    # Whole lines read better; one that is longer than half of what there is room for is cut all the same.
    if (end := text.rfind("\n", head // 2, head) + 1) > 0:
        head = end
    if (start := text.find("\n", tail - 1, tail + (total - tail) // 2) + 1) > 0:
        tail = start
    first = text.count("\n", 0, head) + 1
    last = lines - max(0, text.count("\n", tail, total - text.endswith("\n")) + (tail < total))
    where = f"lines {first} to {max(first, last)} of {lines}" if lines > 1 else "of one line"
    note = f"[{tail - head} of {total} characters left out here: {where}{more}]"
    gap = "" if not head or text[head - 1] == "\n" else "\n"
    return Excerpt(f"{text[:head]}{gap}{note}\n{text[tail:]}", head + total - tail, total, note)


def _after_lines(text: str, count: int) -> int:
    """Where the first `count` lines end."""
    position = 0
    for _ in range(count):
        end = text.find("\n", position)
        if end < 0:
            return len(text)
        position = end + 1
    return position


def _before_lines(text: str, count: int) -> int:
    """Where the last `count` lines begin."""
    position = len(text) - text.endswith("\n")
    for number in range(count):
        start = text.rfind("\n", 0, position)
        if start < 0:
            return 0
        position = start
        if number == count - 1:
            return start + 1
    return len(text)


def clean(text: str) -> str:
    """`text` without terminal escapes and control characters; every line ends in a plain line feed."""
    if _CONTROLS.search(text) is None:
        return text
    return _CONTROLS.sub(lambda found: "\n" if found[0][0] == "\r" else "", text)


def looks_binary(text: str) -> bool:
    """Whether this is decoded binary data rather than text, to judge by its beginning."""
    probe = text[:_BINARY_PROBE]
    return len(_NO_TEXT.findall(probe)) > _BINARY_SHARE * len(probe)
