"""Text from a stranger, made fit to be read: no escape sequences, nothing hidden, not without end."""

from __future__ import annotations

import re
from typing import Any

from aisotools.question import visible

# Cursor moves, colours, titles and hyperlinks of a terminal. An unfinished one loses its introducer only, so
# that it cannot swallow the text behind it. Every branch starts with what no branch runs across: linear time.
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[PX^_][^\x1b\n]*\x1b\\|[ -/]*[0-~])"
)
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
KEEP = "\n\t\xa0\u202f\u3000\ufe0f"
"""What output may hold besides visible characters: French and Japanese spaces, the selector of emoji."""


_KEEP_MOVES = KEEP + "\r\b"


def text_of(data: Any) -> str:
    """The text in a MIME bundle: a string, or a list of strings as notebooks are stored.

    Raises:
        ValueError: If it is anything else.
    """
    if isinstance(data, str):
        return data
    if isinstance(data, list) and all(isinstance(line, str) for line in data):
        return "".join(data)
    raise ValueError(f"it is {type(data).__name__}, not text")


def readable(text: str) -> str:
    """Output of a program as a terminal would show it, with what a terminal would hide written down."""
    text = _ESCAPE_SEQUENCE.sub("", text).replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(map(_overwritten, text.split("\n")))
    return visible(text, KEEP)


def coloured(text: str) -> str:
    """Output of a program for a front end that draws colours and moves to the start of a line itself."""
    parts = _COLOUR.split(text)
    parts[::2] = [visible(_ESCAPE_SEQUENCE.sub("", part), _KEEP_MOVES) for part in parts[::2]]
    return "".join(parts)


def _overwritten(line: str) -> str:
    """A line that was drawn again and again, such as a progress bar: its last state, and how many before."""
    states = [state for state in line.split("\r") if state]
    if len(states) < 2:
        return "".join(states)
    return f"{states[-1]}  [{len(states) - 1} overwritten]"


def one_line(text: str, max_chars: int = 80) -> str:
    """A short label: everything visible, on one line, cut at `max_chars`."""
    text = visible(text[: max_chars + 1], "")
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def shorten(text: str, max_chars: int) -> str:
    """Both ends of `text`, with what is missing between them said, in about `max_chars` characters."""
    missing = len(text) - max_chars
    if missing <= 0:
        return text
    tail = max_chars // 3
    return (
        f"{text[: max_chars - tail]}\n[... {missing:,} characters left out ...]\n{text[len(text) - tail :]}"
    )


def seconds(duration_s: float) -> str:
    """A duration as people write it."""
    if duration_s < 1:
        return f"{max(duration_s, 0) * 1000:.0f} ms"
    if duration_s < 120:
        return f"{duration_s:.1f} s"
    return f"{duration_s // 60:.0f} min {duration_s % 60:.0f} s"
