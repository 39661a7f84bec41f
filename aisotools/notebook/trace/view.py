"""A run shown while it goes on: one view, followed live where the page can, replaced by a record at the end.

Everything is displayed from the awaiting cell itself, and sent from the task that awaits: what handlers and
other tasks display gets lost.

A trace as static HTML and text: what stays in the notebook. Pure; bounded whatever the run did.

What a running call prints, shown while it runs, and replaced by its result.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from aisotools.core.concurrency import with_ticks
from aisotools.core.events import CallOutput, SessionEvent
from aisotools.core.redaction import secret_parameters
from aisotools.core.types import ToolResult
from aisotools.notebook.render import html
from aisotools.notebook.render import html as frame
from aisotools.notebook.render.results import render_result
from aisotools.notebook.render.text import TerminalScreen, bar_in, shorten
from aisotools.notebook.trace.model import Op, State, Trace, TraceItem
from aisotools.session.session import Session
from aisotools.tools.registry import ToolRegistry

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
    body = frame.details(summary or "nothing happened", "".join(rows))
    return {
        "text/html": frame.box(f"trace of {frame.escape(trace.title)}", body),
        "text/plain": "\n".join([f"trace of {trace.title}: {summary}", *lines]),
    }


def _item(item: TraceItem, share: int) -> tuple[str, list[str]]:
    line = f"{_MARKS[item.state]} {item.title}" + (f" \N{MIDDLE DOT} {item.words}" if item.words else "")
    output = "\n".join(item.screen.lines())
    parts = [part for part in (item.arguments, item.decision, output, item.text) if part]
    if not parts:
        return frame.small_print(line), [f"  {line}"]
    each = max(share - len(line), 60) // len(parts)
    # One block for all of them: a long run has many.
    body = "\n\n".join(("printed:\n" if part is output else "") + shorten(part, each) for part in parts)
    return frame.details(line, frame.block(body)), [
        f"  {line}",
        *(f"    {text}" for text in body.split("\n")),
    ]


_T = TypeVar("_T")

TICK_S = 0.05
"""How often a page is told what happened since."""

_REDRAW_S = 0.5
_HELLO_S = 2.0

_last: Trace | None = None


class Source(Protocol):
    """Whatever tells its events: a session, or an agent, which also tells pieces of answers."""

    def subscribe(self, listener: Callable[[SessionEvent], None]) -> Callable[[], None]:
        """Have `listener` hear every event from now on; what is returned stops that."""


def last_trace() -> Trace | None:
    """The trace of the run that was followed last, or None."""
    return _last


async def follow(
    source: Source, work: Coroutine[Any, Any, _T], *, title: str = "run", registry: ToolRegistry | None = None
) -> _T:
    """Await `work`, showing below the running cell what `source` tells meanwhile.

    Args:
        source: A session or an agent.
        work: What goes on; cancelling this call cancels it.
        title: What it is called.
        registry: Tells which arguments of a tool are secret; the session's.

    Returns:
        What `work` gives.
    """
    global _last  # noqa: PLW0603 - what %trace shows
    trace = _last = Trace(title, _secrets_in(registry))
    view = _View(trace)
    stop = source.subscribe(view.hear)
    try:
        view.show()
        return await with_ticks(work, TICK_S, view.tick)
    finally:
        stop()
        view.end()


def _secrets_in(registry: ToolRegistry | None) -> Callable[[str], frozenset[str]]:
    def secrets_of(name: str) -> frozenset[str]:
        tool = registry.get(name) if registry is not None else None
        return secret_parameters(tool.parameters_schema()) if tool is not None else frozenset()

    return secrets_of


class _View:
    """One output of the cell: a widget while a page shows it, else drawn anew; a record at the end."""

    def __init__(self, trace: Trace) -> None:
        from aisotools.notebook.approval.widgets import TraceCard

        self._trace = trace
        self._ops: list[Op] = []
        self._loop = asyncio.get_running_loop()
        self._began_s = self._drawn_s = self._loop.time()
        self._news = self._greeted = False
        self._card = TraceCard()
        self._card.on_msg(self._from_page)
        self._display_id = uuid.uuid4().hex

    def hear(self, event: SessionEvent) -> None:
        ops = self._trace.hear(event)
        self._ops += ops
        self._news = self._news or bool(ops)

    def show(self) -> None:
        self._display(self._card.bundle() | trace_bundle(self._trace))

    def tick(self) -> None:
        """Tell the page what happened since."""
        if self._greeted:
            self._send("more", ops=self._taken())
        elif self._news and self._loop.time() - max(self._drawn_s, self._began_s + _HELLO_S) > _REDRAW_S:
            # No page follows: the output itself is drawn anew, now and then.
            self._drawn_s, self._news = self._loop.time(), False
            self._display(trace_bundle(self._trace), update=True)

    def end(self) -> None:
        self._display(trace_bundle(self._trace), update=True)
        self._card.close()

    def _taken(self) -> list[Op]:
        ops, self._ops = merge_ops(self._ops), []
        return ops

    def _from_page(self, _card: Any, message: Any, _buffers: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop of the run is gone, and the run with it
            self._loop.call_soon_threadsafe(self._receive, message)

    def _receive(self, message: Any) -> None:
        if isinstance(message, Mapping) and message.get("type") == "hello":
            self._ops, self._greeted = [], True
            self._send("show", title=self._trace.title, ops=self._trace.snapshot())

    def _send(self, kind: str, *, ops: list[Op], **content: Any) -> None:
        if ops or kind == "show":
            self._card.send({"type": kind, "ops": ops, **content})

    def _display(self, bundle: Mapping[str, Any], *, update: bool = False) -> None:
        from IPython.display import display

        display(dict(bundle), raw=True, display_id=self._display_id, update=update)


_LATEST = {"now", "total"}


def merge_ops(ops: list[Op]) -> list[Op]:
    """The same changes in fewer operations: of drawn-over lines and totals only the last counts.

    Lines of one call that come one after another go together.
    """
    kept: list[Op] = []
    last: dict[tuple[str, str], int] = {}
    for op in ops:
        name, key = str(op["op"]), str(op.get("key", ""))
        if name in _LATEST and (name, key) in last:
            kept[last[name, key]] = {"op": "skip"}
        if name == "lines" and kept and kept[-1].get("op") == "lines" and kept[-1]["key"] == key:
            kept[-1] = {**op, "lines": [*kept[-1]["lines"], *op["lines"]]}
            continue
        last[name, key] = len(kept)
        kept.append(op)
    return [op for op in kept if op["op"] != "skip"]


_EVERY_S = 0.25
_TAIL_LINES, _TAIL_CHARS = 40, 4_000


async def show_while_running(
    session: Session, call: Coroutine[Any, Any, ToolResult], tool_name: str
) -> ToolResult:
    """Await `call`, showing what `session` prints meanwhile, and then its result in the same place.

    Everything is displayed from the awaiting cell itself: what handlers and other tasks display gets lost.
    """
    screen, news = TerminalScreen(), False

    def hear(event: SessionEvent) -> None:
        nonlocal news
        if isinstance(event, CallOutput):
            screen.feed(event.text)
            news = True

    def show_news() -> None:
        nonlocal news
        if news:
            news = False
            place.show(progress_bundle(screen))

    place = _OutputSlot()
    stop = session.subscribe(hear)
    try:
        result = await with_ticks(call, _EVERY_S, show_news)
    finally:
        stop()
    place.show(render_result(result, tool_name))
    return result


def progress_bundle(screen: TerminalScreen) -> dict[str, str]:
    """The end of what was printed; a line that draws a progress bar is shown as one."""
    bar = bar_in(screen.current)
    lines = screen.lines() if bar is None else screen.finished()
    text = shorten("\n".join(lines[-_TAIL_LINES:]), _TAIL_CHARS)
    drawn = (
        "" if bar is None else html.progress_bar(bar.percent, " ".join(filter(None, [bar.label, bar.rest])))
    )
    return {
        "text/html": (html.block(text) if text else "") + drawn,
        "text/plain": "\n".join([text] if bar is None else [text, screen.current]),
    }


class _OutputSlot:
    """One output of the cell, shown and then updated."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, bundle: dict[str, Any]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
