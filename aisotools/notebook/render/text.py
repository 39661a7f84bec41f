"""Text from a stranger, made fit to be read: no escape sequences, nothing hidden, not without end.

Terminal colours as HTML: only colour, weight and underline, in shades that light and dark pages bear.

What a program prints, as the lines a terminal would end up with: drawn-over lines collapse. Pure state.

A progress bar writes its line a thousand times, each time behind a carriage return; what is kept of it is the
last. Only the beginning and the end of very long output are kept, with the count of what lies between.
"""

from __future__ import annotations

import html
import re
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from aisotools.policy.prompts import visible

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


_SGR_COLOUR = re.compile(r"\x1b\[([0-9;]*)m")
_MOST_PARTS = 2_000
_SHADES = ("#8a8a8a", "#e5484d", "#2f9e44", "#b5890b", "#3b82f6", "#b65bd6", "#1398a5", "#9a9a9a")


@dataclass(frozen=True, slots=True)
class _Look:
    colour: str = ""
    bold: bool = False
    faint: bool = False
    under: bool = False

    def style(self) -> str:
        parts = [f"color:{self.colour}"] if self.colour else []
        parts += ["font-weight:600"] if self.bold else []
        parts += ["opacity:.7"] if self.faint else []
        parts += ["text-decoration:underline"] if self.under else []
        return ";".join(parts)


def coloured_html(text: str, max_chars: int) -> str | None:
    """Printed text as HTML with its colours; None if it has none, or would be longer than `max_chars`."""
    if "\x1b[" not in text or text.count("\x1b") > _MOST_PARTS:
        return None
    parts = _SGR_COLOUR.split("\n".join(map(_last_state, text.replace("\r\n", "\n").split("\n"))))
    look, made, styled = _Look(), [], False
    for number, part in enumerate(parts):
        if number % 2:
            look = _after(look, part)
            continue
        shown, style = html.escape(readable(part)), look.style()
        styled = styled or bool(shown and style)
        made.append(f'<span style="{style}">{shown}</span>' if shown and style else shown)
    joined = "".join(made)
    return joined if styled and len(joined) <= max_chars else None


def _last_state(line: str) -> str:
    """Of a line that was drawn over, the last state; colours set before it still hold."""
    if "\r" not in line:
        return line
    states = [state for state in line.split("\r") if _SGR_COLOUR.sub("", state)]
    return states[-1] if states else ""


def _after(look: _Look, codes: str) -> _Look:
    numbers = [int(code) if code and len(code) < 4 else 0 for code in codes.split(";")][:32]
    position = 0
    while position < len(numbers):
        code = numbers[position]
        position += 1
        if code == 0:
            look = _Look()
        elif code in {1, 2, 4}:
            look = replace(look, bold=look.bold or code == 1, faint=look.faint or code == 2, under=code == 4)
        elif code == 22:
            look = replace(look, bold=False, faint=False)
        elif code == 24:
            look = replace(look, under=False)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            look = replace(look, colour=_SHADES[code % 10])
        elif code == 39:
            look = replace(look, colour="")
        elif code in {38, 48}:  # one of 256, or any: told in further numbers
            kind, rest = (numbers[position : position + 1] or [0])[0], numbers[position + 1 :]
            position += {5: 2, 2: 4}.get(kind, 1)
            if code == 38 and kind == 5 and rest and rest[0] < 16:
                look = replace(look, colour=_SHADES[rest[0] % 8])
    return look


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


class TerminalScreen:
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
