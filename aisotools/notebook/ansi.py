"""Terminal colours as HTML: only colour, weight and underline, in shades that light and dark pages bear."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, replace

from aisotools.notebook.text import readable

_COLOUR = re.compile(r"\x1b\[([0-9;]*)m")
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
    parts = _COLOUR.split("\n".join(map(_last_state, text.replace("\r\n", "\n").split("\n"))))
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
    states = [state for state in line.split("\r") if _COLOUR.sub("", state)]
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
