"""Untrusted text made readable: escape sequences removed, invisible characters written out, length bounded.

`coloured_html` keeps the colours of terminal output. `TerminalScreen` keeps the lines that a terminal would
end up with: a progress bar that rewrites its line a thousand times behind carriage returns leaves its last
state, and of very long output only both ends are kept, with the number of lines between them.
"""

from __future__ import annotations

import html
import re
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from aisotools.core.concurrency import at_once
from aisotools.core.redaction import LineRedactor
from aisotools.policy.prompts import visible

# Cursor moves, colours, titles and hyperlinks of a terminal. An unfinished one loses its introducer only, so
# that it cannot swallow the text behind it. Every branch starts with a character that no other branch runs
# across: linear time on hostile input.
_ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[PX^_][^\x1b\n]*\x1b\\|[ -/]*[0-~])"
_ESCAPE_SEQUENCE = re.compile(_ESCAPES)
# All that begins with an escape character: a colour, another sequence, or the character alone. In one pass,
# since a text may have a hundred thousand of them.
_COLOUR_OR_ELSE = re.compile(rf"(\x1b\[[0-9;]*m)|{_ESCAPES}|(\x1b)")
KEEP = "\n\t\xa0\u202f\u3000\ufe0f"
"""Invisible characters that output may hold: French and Japanese spaces, the variation selector of emoji."""

_KEEP_MOVES = KEEP + "\r\b"
_LINES_AT_ONCE = 50_000


def text_of(data: Any) -> str:
    """Return the text of a MIME bundle's entry; see `text_steps`.

    Raises:
        ValueError: If it is not text.
    """
    return at_once(text_steps(data))


def text_steps(data: Any) -> Generator[None, None, str]:
    """Return, in steps, the text of a MIME bundle's entry: a string, or a list of strings as notebooks have.

    Raises:
        ValueError: If it is anything else.
    """
    if isinstance(data, str):
        return data
    is_text, pieces = isinstance(data, list), []
    for start in range(0, len(data) if is_text else 0, _LINES_AT_ONCE):
        lines = data[start : start + _LINES_AT_ONCE]
        is_text = all(isinstance(line, str) for line in lines)
        if not is_text:
            break
        pieces.append("".join(lines))
        yield
    if not is_text:
        raise ValueError(f"it is {type(data).__name__}, not text")
    return "".join(pieces)


def readable(text: str) -> str:
    """Return a program's output as a terminal would show it, with invisible characters written out."""
    text = _ESCAPE_SEQUENCE.sub("", text).replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(map(_overwritten, text.split("\n")))
    return visible(text, KEEP)


def coloured(text: str) -> str:
    """Return a program's output for a client that interprets colours and carriage returns itself."""
    if "\x1b" in text:
        text = _COLOUR_OR_ELSE.sub(_keep_colour, text)
    # Of the escape characters those of colours are left.
    return visible(text, _KEEP_MOVES + "\x1b")


def _keep_colour(found: re.Match[str]) -> str:
    return found[1] or (visible(found[2]) if found[2] else "")


def _overwritten(line: str) -> str:
    """Return the last state of an overwritten line, such as a progress bar, and how many came before."""
    states = [state for state in line.split("\r") if state]
    if len(states) < 2:
        return "".join(states)
    return f"{states[-1]}  [{len(states) - 1} overwritten]"


def one_line(text: str, max_chars: int = 80) -> str:
    """Return `text` as a label: visible characters on one line, cut at `max_chars`."""
    text = visible(text[: max_chars + 1], "")
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def shorten(text: str, max_chars: int) -> str:
    """Return both ends of `text` and how much is missing between them, in about `max_chars` characters."""
    return Ends(text, text, len(text)).shorten(max_chars)


@dataclass(slots=True)
class Ends:
    """Both ends of a text of any length.

    Attributes:
        start: Its first characters.
        end: Its last characters.
        total: How many it has.
    """

    start: str = ""
    end: str = ""
    total: int = 0

    def add(self, text: str, max_chars: int) -> None:
        """Add more of the text; keep `max_chars` at each end."""
        if self.total < max_chars:
            self.start += text[: max_chars - self.total]
        self.end = (self.end + text)[-max_chars:] if max_chars else ""
        self.total += len(text)

    def shorten(self, max_chars: int) -> str:
        """Return what the function `shorten` returns of the text, for no more characters than are kept."""
        missing = self.total - max_chars
        if missing <= 0:
            return self.start
        tail = max_chars // 3
        end = self.end[len(self.end) - tail :]
        return f"{self.start[: max_chars - tail]}\n[... {missing:,} characters left out ...]\n{end}"


def seconds(duration_s: float) -> str:
    """Return a duration in ms, s, or min and s."""
    if duration_s < 1:
        return f"{max(duration_s, 0) * 1000:.0f} ms"
    if duration_s < 120:
        return f"{duration_s:.1f} s"
    return f"{duration_s // 60:.0f} min {duration_s % 60:.0f} s"


_SGR_COLOUR = re.compile(r"\x1b\[([0-9;]*)m")
_MAX_PARTS = 2_000
_SHADES = ("#8a8a8a", "#e5484d", "#2f9e44", "#b5890b", "#3b82f6", "#b65bd6", "#1398a5", "#9a9a9a")


@dataclass(frozen=True, slots=True)
class _Style:
    colour: str = ""
    bold: bool = False
    faint: bool = False
    underline: bool = False

    def css(self) -> str:
        rules = (
            f"color:{self.colour}" if self.colour else "",
            "font-weight:600" if self.bold else "",
            "opacity:.7" if self.faint else "",
            "text-decoration:underline" if self.underline else "",
        )
        return ";".join(filter(None, rules))


def coloured_html(text: str, max_chars: int) -> str | None:
    """Return printed text as HTML with its colours; None if it has none or exceeds `max_chars`."""
    if "\x1b[" not in text or text.count("\x1b") > _MAX_PARTS:
        return None
    parts = _SGR_COLOUR.split("\n".join(map(_last_state, text.replace("\r\n", "\n").split("\n"))))
    style_state, spans, styled = _Style(), [], False
    for number, part in enumerate(parts):
        if number % 2:
            style_state = _apply_codes(style_state, part)
            continue
        text, css = html.escape(readable(part)), style_state.css()
        styled = styled or bool(text and css)
        spans.append(f'<span style="{css}">{text}</span>' if text and css else text)
    markup = "".join(spans)
    return markup if styled and len(markup) <= max_chars else None


def _last_state(line: str) -> str:
    """Return the last state of an overwritten line; colours set before it still apply."""
    if "\r" not in line:
        return line
    states = [state for state in line.split("\r") if _SGR_COLOUR.sub("", state)]
    return states[-1] if states else ""


def _apply_codes(style: _Style, codes: str) -> _Style:
    numbers = [int(code) if code and len(code) < 4 else 0 for code in codes.split(";")][:32]
    position = 0
    while position < len(numbers):
        code = numbers[position]
        position += 1
        if code == 0:
            style = _Style()
        elif code in {1, 2, 4}:
            style = replace(
                style,
                bold=style.bold or code == 1,
                faint=style.faint or code == 2,
                underline=code == 4,
            )
        elif code == 22:
            style = replace(style, bold=False, faint=False)
        elif code == 24:
            style = replace(style, underline=False)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            style = replace(style, colour=_SHADES[code % 10])
        elif code == 39:
            style = replace(style, colour="")
        elif code in {38, 48}:
            # One of 256 colours (5;N) or any colour (2;R;G;B): skip the numbers that belong to it.
            kind, rest = (numbers[position : position + 1] or [0])[0], numbers[position + 1 :]
            position += {5: 2, 2: 4}.get(kind, 1)
            if code == 38 and kind == 5 and rest and rest[0] < 16:
                style = replace(style, colour=_SHADES[rest[0] % 8])
    return style


HEAD_LINES = 40
"""Lines kept of the beginning."""

TAIL_LINES = 80
"""Lines kept of the end."""

MAX_LINE_CHARS = 2_000
"""A longer line is cut."""

_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\n]{0,200}\x1b?)?$")
_BAR = re.compile(
    r"\s*+(?P<label>[^|\r\n]{0,80}?)\s*+(?P<percent>\d{1,3}(?:\.\d+)?)\s?%"
    r"\s*+(?:\|[^|]{0,400}\|\s*+)?(?P<rest>[^|]{0,200})"
)


@dataclass(frozen=True, slots=True)
class Bar:
    """A progress bar.

    Attributes:
        percent: From 0 to 100.
        label: The text before it.
        rest: The text behind it: counts, times.
    """

    percent: float
    label: str = ""
    rest: str = ""


def bar_in(line: str) -> Bar | None:
    """Return the progress bar that a line draws as tqdm draws it (`label: 50%|##  | rest`), or None."""
    if "%" not in line or "|" not in line:
        return None
    match = _BAR.fullmatch(line)
    if match is None or float(match["percent"]) > 100:
        return None
    return Bar(float(match["percent"]), match["label"].rstrip(": "), match["rest"].strip())


class TerminalScreen:
    """The lines that one program has printed.

    Attributes:
        count: Number of finished lines, also those no longer kept.
        current: The unfinished line.
    """

    def __init__(self, redactor: LineRedactor | None = None) -> None:
        """Start empty. With a `redactor` no secrets are in what is shown of the lines."""
        self.count = 0
        self._redactor = redactor
        self.current = ""
        self._head: list[str] = []
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._pending = ""
        self._returned = False

    def feed(self, text: str) -> list[str]:
        """Take in printed text. Return the lines that it finished, at most the last `TAIL_LINES`."""
        # An escape sequence may be split between two reads: keep its beginning until the rest comes.
        text = self._pending + text
        unfinished = _UNFINISHED.search(text[-220:])
        self._pending = unfinished[0] if unfinished else ""
        text = readable_keeping_returns(text[: len(text) - len(self._pending)])
        finished: deque[str] = deque(maxlen=TAIL_LINES)
        parts = text.split("\n")
        for number, part in enumerate(parts):
            self._draw(part)
            if number < len(parts) - 1:
                self._finish(finished)
        return list(finished)

    def lines(self) -> list[str]:
        """Return the kept lines and the unfinished one."""
        return [*self.finished(), *([self.shown] if self.current else [])]

    @property
    def shown(self) -> str:
        """The unfinished line as it is to be shown."""
        return self.current if self._redactor is None else self._redactor.peek(self.current)

    def finished(self) -> list[str]:
        """Return the kept finished lines, with one between head and tail that counts the others."""
        left_out = self.count - len(self._head) - len(self._tail)
        if left_out <= 0:
            return [*self._head, *self._tail]
        return [*self._head, f"[... {left_out:,} lines left out ...]", *self._tail]

    def _draw(self, part: str) -> None:
        """Draw on the current line; text behind a carriage return replaces it."""
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
        if self._redactor is not None:
            line = self._redactor.finish(line)
        self.count += 1
        finished.append(line)
        if len(self._head) < HEAD_LINES:
            self._head.append(line)
        else:
            self._tail.append(line)


def readable_keeping_returns(text: str) -> str:
    """Return readable text that keeps its carriage returns."""
    return "\r".join(visible(readable(part), KEEP) for part in text.split("\r"))
