"""A trace as static HTML and text: what stays in the notebook. Pure; bounded whatever the run did."""

from __future__ import annotations

from aisotools.notebook import frame
from aisotools.notebook.text import shorten
from aisotools.notebook.trace import Trace
from aisotools.notebook.trace_items import Item, State

MAX_STORED_CHARS = 64 << 10
"""Longest HTML that is kept of one run, and longest text."""

_MAX_ITEMS = 200
_ROOM = 40_000
_LEAST_SHARE = 120
_MARKS: dict[State, str] = {
    "running": "\N{HORIZONTAL ELLIPSIS}",
    "asking": "?",
    "ok": "\N{CHECK MARK}",
    "error": "\N{MULTIPLICATION X}",
    "denied": "\N{MULTIPLICATION X}",
    "note": "\N{MIDDLE DOT}",
}


def trace_bundle(trace: Trace) -> dict[str, str]:
    """The MIME bundle of a trace, at most `MAX_STORED_CHARS` of each type."""
    most = min(len(trace.items), _MAX_ITEMS)
    share = _ROOM // max(most, 1)
    while True:
        shown = _shown(trace, most, share)
        if max(map(len, shown.values())) <= MAX_STORED_CHARS:
            return shown
        # First each is told in fewer words, then fewer are told.
        share = share * 2 // 3
        if share < _LEAST_SHARE:
            most = most * 2 // 3
            share = _ROOM // max(most, 1) // 2


def _shown(trace: Trace, most: int, share: int) -> dict[str, str]:
    left_out = len(trace.items) - most
    head = most // 4
    items = trace.items if not left_out else [*trace.items[:head], *trace.items[head + left_out :]]
    rows, lines = [], []
    for number, item in enumerate(items):
        if left_out and number == head:
            told = f"{left_out:,} things that happened here are left out; the session's log has them."
            rows.append(frame.note(told))
            lines.append(f"  [{told}]")
        html, plain = _item(item, share)
        rows.append(html)
        lines += plain
    summary = " \N{MIDDLE DOT} ".join(filter(None, [trace.totals.words(), trace.totals.outcome]))
    body = frame.folded(summary or "nothing happened", "".join(rows))
    return {
        "text/html": frame.box(f"trace of {frame.escape(trace.title)}", body),
        "text/plain": "\n".join([f"trace of {trace.title}: {summary}", *lines]),
    }


def _item(item: Item, share: int) -> tuple[str, list[str]]:
    line = f"{_MARKS[item.state]} {item.title}" + (f" \N{MIDDLE DOT} {item.words}" if item.words else "")
    output = "\n".join(item.screen.lines())
    parts = [part for part in (item.arguments, item.decision, output, item.text) if part]
    if not parts:
        return frame.quiet(line), [f"  {line}"]
    each = max(share - len(line), 60) // len(parts)
    # One block for all of them: a long run has many.
    body = "\n\n".join(("printed:\n" if part is output else "") + shorten(part, each) for part in parts)
    return frame.folded(line, frame.block(body)), [f"  {line}", *(f"    {text}" for text in body.split("\n"))]
