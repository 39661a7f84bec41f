"""The look that results and records share: quiet boxes that read well without any style at all.

Colours come from JupyterLab's variables where they mean something, else they are translucent, so that light
and dark both work, and a page that drops styles still shows title, text and order.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from aisotools.events import Effect

LINE = "rgba(127,127,127,.35)"
"""Colour of a quiet line, on light and dark."""

ERROR_COLOUR = "var(--jp-error-color1,#d32f2f)"
"""Colour of what failed."""

EFFECT_COLOURS = {
    Effect.READ_ONLY: "var(--jp-success-color1,#388e3c)",
    Effect.REMOTE_ACTION: "var(--jp-info-color1,#0288d1)",
    Effect.LOCAL_MUTATION: "var(--jp-warn-color1,#f57c00)",
    Effect.DESTRUCTIVE: ERROR_COLOUR,
}
"""Colour of each effect."""

_MONO = "var(--jp-code-font-family,monospace)"


def box(title: str, body: str, colour: str = LINE) -> str:
    """A box with a title; `title` and `body` are safe HTML. Nothing in it can be painted outside of it."""
    return (
        f'<div class="mathjax_ignore" style="border:1px solid {LINE};border-left:3px solid {colour};'
        'border-radius:3px;margin:2px 0;overflow:hidden;contain:content">'
        f'<div style="padding:4px 10px 3px;font-size:90%;opacity:.8">{title}</div>'
        f'<div style="padding:0 10px 6px;overflow-x:auto">{body}</div></div>'
    )


def block(text: str, *, exact: bool = False, markup: str = "") -> str:
    """Text as it is, in a fixed width; `text` is plain.

    Args:
        text: What to show.
        markup: The same as safe HTML, if it has more to show, such as colours.
        exact: Whether right-to-left letters stand where they stand in `text`, as code must, or read well.
    """
    order = "direction:ltr;unicode-bidi:bidi-override;" if exact else ""
    return (
        f'<pre style="margin:2px 0;padding:0;max-height:32em;overflow:auto;white-space:pre-wrap;{order}'
        "overflow-wrap:anywhere;word-break:normal;background:none;color:inherit;"
        f'font-family:{_MONO}">{markup or html.escape(text)}</pre>'
    )


def said(text: str) -> str:
    """What somebody said, in its lines; `text` is plain."""
    return f'<div style="white-space:pre-wrap;overflow-wrap:anywhere">{html.escape(text)}</div>'


_DIFF_COLOURS = {"+": "rgba(46,160,67,.18)", "-": "rgba(248,81,73,.18)", "@": "rgba(127,127,127,.12)"}


def diff(lines: Iterable[str]) -> str:
    """The lines of a unified diff; each is plain. Its signs say the same as the colours."""
    rows = "".join(
        f'<span style="display:block;background:{_DIFF_COLOURS.get(line[:1], "none")}">'
        f"{html.escape(line) or ' '}</span>"
        for line in lines
    )
    return (
        '<pre style="margin:2px 0;padding:0;max-height:32em;overflow:auto;white-space:pre-wrap;'
        "direction:ltr;unicode-bidi:bidi-override;overflow-wrap:anywhere;background:none;color:inherit;"
        f'font-family:{_MONO}">{rows}</pre>'
    )


def bar(percent: float, words: str) -> str:
    """A progress bar; `words` are plain."""
    shape = "height:8px;border-radius:4px;background:"
    fill = f'<div style="width:{percent:.1f}%;{shape}var(--jp-brand-color1,#1976d2)"></div>'
    track = f'<div style="{shape}{LINE}">{fill}</div>'
    return f'<div style="margin:3px 0;max-width:32em">{track}{html.escape(words)}</div>'


def note(text: str) -> str:
    """A remark of ours, set apart from what it is about; `text` is plain."""
    return f'<div style="margin:2px 0;font-size:90%;opacity:.7"><em>{html.escape(text)}</em></div>'


def quiet(*lines: str) -> str:
    """Lines of small print; each is plain."""
    inside = "<br>".join(map(html.escape, lines))
    return f'<div style="font-size:90%;line-height:1.45;opacity:.8">{inside}</div>'


def folded(title: str, body: str) -> str:
    """Something to unfold; `title` is plain, `body` safe HTML."""
    summary = (
        f'<summary style="font-size:90%;opacity:.8;overflow-wrap:anywhere">{html.escape(title)}</summary>'
    )
    return f"<details>{summary}{body}</details>"


def code(text: str) -> str:
    """A name within a line; `text` is plain."""
    return f"<code>{html.escape(text)}</code>"


def escape(text: str) -> str:
    """Plain text as HTML."""
    return html.escape(text)
