"""What a program prints, as the lines a terminal would end up with: drawn-over lines collapse. Pure state.

A progress bar writes its line a thousand times, each time behind a carriage return; what is kept of it is the
last. Only the beginning and the end of very long output are kept, with the count of what lies between.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from aisotools.notebook.text import KEEP, readable
from aisotools.question import visible

HEAD_LINES, TAIL_LINES = 40, 80
"""How many lines are kept of the beginning and of the end."""

MAX_LINE_CHARS = 2_000
"""A longer line is cut."""

_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\n]{0,200}\x1b?)?$")
_BAR = re.compile(
    r"\s*(?P<label>[^|\r\n]{0,80}?)\s*(?P<percent>\d{1,3}(?:\.\d+)?)\s?%\s*(?:\|[^|]{0,400}\||)\s*(?P<rest>[^|]{0,200})"
)


@dataclass(frozen=True, slots=True)
class Bar:
    """A progress bar.

    Attributes:
        percent: From 0 to 100.
        label: What stands before it.
        rest: What stands behind it: counts, times.
    """

    percent: float
    label: str = ""
    rest: str = ""


def bar_in(line: str) -> Bar | None:
    """The progress bar that a line draws, as tqdm, pip and many others do; None if it draws none."""
    if "%" not in line or "|" not in line:
        return None
    match = _BAR.fullmatch(line)
    if match is None or float(match["percent"]) > 100:
        return None
    return Bar(float(match["percent"]), match["label"].rstrip(": "), match["rest"].strip())


class Screen:
    """The lines of one program.

    Attributes:
        count: Finished lines there were.
        current: The line that is not finished.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.count = 0
        self.current = ""
        self._head: list[str] = []
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._pending = ""
        self._returned = False

    def feed(self, text: str) -> list[str]:
        """Take in what was printed; the lines that it finished, at most as many as are kept of an end."""
        text = self._pending + text
        unfinished = _UNFINISHED.search(text[-220:])
        self._pending = unfinished[0] if unfinished else ""
        text = readable_but_returns(text[: len(text) - len(self._pending)])
        finished: deque[str] = deque(maxlen=TAIL_LINES)
        parts = text.split("\n")
        for number, part in enumerate(parts):
            self._draw(part)
            if number < len(parts) - 1:
                self._finish(finished)
        return list(finished)

    def lines(self) -> list[str]:
        """All that is kept, and the unfinished line at the end."""
        return [*self.finished(), *([self.current] if self.current else [])]

    def finished(self) -> list[str]:
        """The finished lines that are kept, with one that says what is not."""
        left_out = self.count - len(self._head) - len(self._tail)
        gap = [f"[... {left_out:,} lines left out ...]"] if left_out > 0 else []
        return [*self._head, *gap, *self._tail]

    def _draw(self, part: str) -> None:
        """Draw on the current line; behind a carriage return starts it anew."""
        pieces = part.split("\r")
        if self._returned and pieces[0]:
            self.current = ""
        for piece in pieces[1:]:
            if piece:
                self.current, pieces[0] = "", piece
        self._returned = part.endswith("\r") or (self._returned and not part)
        self.current = (self.current + pieces[0])[:MAX_LINE_CHARS]

    def _finish(self, finished: deque[str]) -> None:
        line, self.current, self._returned = self.current, "", False
        self.count += 1
        finished.append(line)
        if len(self._head) < HEAD_LINES:
            self._head.append(line)
        else:
            self._tail.append(line)


def readable_but_returns(text: str) -> str:
    """`text` without escape sequences and hidden characters, carriage returns kept."""
    return "\r".join(visible(readable(part), KEEP) for part in text.split("\r"))
