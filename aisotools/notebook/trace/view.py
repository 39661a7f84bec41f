"""Show a run while it goes on: a live widget where a page renders it, replaced by a static record at the end.

Everything is displayed from the awaiting cell and sent from the awaiting task: IPython loses what handlers
and other tasks display.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aisotools.core.concurrency import with_ticks
from aisotools.core.events import CallOutput, SessionEvent
from aisotools.core.redaction import secret_parameters
from aisotools.core.types import ToolResult
from aisotools.notebook.render import html
from aisotools.notebook.render.results import render_result
from aisotools.notebook.render.text import TerminalScreen, bar_in, shorten
from aisotools.notebook.trace.model import ItemState, Op, Trace, TraceItem
from aisotools.tools.registry import ToolRegistry

if TYPE_CHECKING:
    from aisotools.session.session import Session

MAX_STORED_CHARS = 64 << 10
"""Longest HTML, and longest text, stored for one run."""

_MAX_ITEMS = 200
_ROOM_CHARS = 40_000
_MIN_ITEM_CHARS = 120
_MARKS: dict[ItemState, str] = {
    "running": "\N{HORIZONTAL ELLIPSIS}",
    "asking": "?",
    "ok": "\N{CHECK MARK}",
    "error": "\N{MULTIPLICATION X}",
    "denied": "\N{MULTIPLICATION X}",
    "note": "\N{MIDDLE DOT}",
}


def trace_bundle(trace: Trace) -> dict[str, str]:
    """Return the MIME bundle of a trace, at most `MAX_STORED_CHARS` of each type."""
    count = min(len(trace.items), _MAX_ITEMS)
    item_chars = _ROOM_CHARS // max(count, 1)
    while True:
        bundle = _bundle(trace, count, item_chars)
        if max(map(len, bundle.values())) <= MAX_STORED_CHARS:
            return bundle
        # Escaping can make the text several times longer. First shorten each item, then show fewer.
        item_chars = item_chars * 2 // 3
        if item_chars < _MIN_ITEM_CHARS:
            count = count * 2 // 3
            item_chars = _ROOM_CHARS // max(count, 1) // 2


def _bundle(trace: Trace, count: int, item_chars: int) -> dict[str, str]:
    left_out = len(trace.items) - count
    head = count // 4
    items = [*trace.items[:head], *trace.items[head + left_out :]]
    rows: list[str] = []
    lines: list[str] = []
    for number, item in enumerate(items):
        if left_out and number == head:
            note = f"{left_out:,} entries are left out here; the session's log has them."
            rows.append(html.note(note))
            lines.append(f"  [{note}]")
        markup, plain = _item(item, item_chars)
        rows.append(markup)
        lines += plain
    summary = " \N{MIDDLE DOT} ".join(filter(None, [trace.totals.summary(), trace.totals.outcome]))
    body = html.details(summary, "".join(rows))
    return {
        "text/html": html.box(f"trace of {html.escape(trace.title)}", body),
        "text/plain": "\n".join([f"trace of {trace.title}: {summary}", *lines]),
    }


def _item(item: TraceItem, max_chars: int) -> tuple[str, list[str]]:
    line = f"{_MARKS[item.state]} {item.title}"
    if item.summary:
        line += f" \N{MIDDLE DOT} {item.summary}"
    output = "\n".join(item.screen.lines())
    parts = [part for part in (item.arguments, item.decision, output, item.text) if part]
    if not parts:
        return html.small_print(line), [f"  {line}"]
    part_chars = max(max_chars - len(line), 60) // len(parts)
    # One block for all parts keeps the HTML of long runs small.
    body = "\n\n".join(("printed:\n" if part is output else "") + shorten(part, part_chars) for part in parts)
    return html.details(line, html.block(body)), [
        f"  {line}",
        *(f"    {text}" for text in body.split("\n")),
    ]


_T = TypeVar("_T")

REFRESH_S = 0.05
"""Interval between updates of the page."""

# Without a page that follows, the whole output is replaced: less often, and only after the page had time to
# report that it renders the widget.
_REDRAW_S = 0.5
_HELLO_TIMEOUT_S = 2.0

_last: Trace | None = None


class EventSource(Protocol):
    """A session, or an agent, which also emits pieces of answers."""

    def subscribe(self, listener: Callable[[SessionEvent], None]) -> Callable[[], None]:
        """Call `listener` with every event from now on. Return a function that stops that."""


def last_trace() -> Trace | None:
    """Return the trace of the run that was followed last, or None."""
    return _last


async def follow(
    source: EventSource,
    work: Coroutine[Any, Any, _T],
    *,
    title: str = "run",
    registry: ToolRegistry | None = None,
) -> _T:
    """Await `work` and meanwhile show the events of `source` below the running cell.

    Args:
        source: A session or an agent.
        work: Cancelling this call cancels it.
        title: Name of the run.
        registry: The session's; its schemas tell which arguments are secret.

    Returns:
        The result of `work`.
    """
    global _last  # noqa: PLW0603 - shown by %trace
    trace = _last = Trace(title, _secrets_in(registry))
    view = _LiveTrace(trace)
    stop = source.subscribe(view.on_event)
    try:
        view.show()
        return await with_ticks(work, REFRESH_S, view.tick)
    finally:
        stop()
        view.end()


def _secrets_in(registry: ToolRegistry | None) -> Callable[[str], frozenset[str]]:
    def secrets_of(name: str) -> frozenset[str]:
        tool = registry.get(name) if registry is not None else None
        return secret_parameters(tool.parameters_schema()) if tool is not None else frozenset()

    return secrets_of


class _LiveTrace:
    """One output of the cell: a widget while a page renders it, otherwise redrawn; a record at the end."""

    def __init__(self, trace: Trace) -> None:
        from aisotools.notebook.approval.widgets import TraceCard

        self._trace = trace
        self._ops: list[Op] = []
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._drawn_s = self._began_s
        self._changed = False
        self._has_page = False
        self._card = TraceCard()
        self._card.on_msg(self._on_message)
        self._display_id = uuid.uuid4().hex

    def on_event(self, event: SessionEvent) -> None:
        ops = self._trace.apply(event)
        self._ops += ops
        self._changed = self._changed or bool(ops)

    def show(self) -> None:
        self._display(self._card.bundle() | trace_bundle(self._trace))

    def tick(self) -> None:
        """Send the page what happened since the last tick."""
        if self._has_page:
            self._send("more", ops=self._take_ops())
        elif (
            self._changed
            and self._loop.time() - max(self._drawn_s, self._began_s + _HELLO_TIMEOUT_S) > _REDRAW_S
        ):
            self._drawn_s = self._loop.time()
            self._changed = False
            self._display(trace_bundle(self._trace), update=True)

    def end(self) -> None:
        self._display(trace_bundle(self._trace), update=True)
        self._card.close()

    def _take_ops(self) -> list[Op]:
        ops, self._ops = merge_ops(self._ops), []
        return ops

    def _on_message(self, _card: Any, message: Any, _buffers: Any) -> None:
        # Called on any thread. Race: the run and its loop ended before this message came; then it has no
        # meaning any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._receive, message)

    def _receive(self, message: Any) -> None:
        if isinstance(message, Mapping) and message.get("type") == "hello":
            # The snapshot holds everything so far, also the operations not sent yet.
            self._ops = []
            self._has_page = True
            self._send("show", title=self._trace.title, ops=self._trace.snapshot())

    def _send(self, kind: str, *, ops: list[Op], **content: Any) -> None:
        if ops or kind == "show":
            self._card.send({"type": kind, "ops": ops, **content})

    def _display(self, bundle: Mapping[str, Any], *, update: bool = False) -> None:
        from IPython.display import display

        display(dict(bundle), raw=True, display_id=self._display_id, update=update)


# Of these operations only the last of each item counts.
_REPLACING = {"now", "total"}


def merge_ops(ops: list[Op]) -> list[Op]:
    """Return the same changes in fewer operations.

    Of current lines and totals only the last counts; consecutive lines of one call are joined.
    """
    result: list[Op] = []
    last: dict[tuple[str, str], int] = {}
    for op in ops:
        name, key = str(op["op"]), str(op.get("key", ""))
        if name in _REPLACING and (name, key) in last:
            result[last[name, key]] = {"op": "skip"}
        if name == "lines" and result and result[-1].get("op") == "lines" and result[-1]["key"] == key:
            result[-1] = {**op, "lines": [*result[-1]["lines"], *op["lines"]]}
            continue
        last[name, key] = len(result)
        result.append(op)
    return [op for op in result if op["op"] != "skip"]


_OUTPUT_TICK_S = 0.25
_TAIL_LINES = 40
_TAIL_CHARS = 4_000


async def show_while_running(
    session: Session, call: Coroutine[Any, Any, ToolResult], tool_name: str
) -> ToolResult:
    """Await `call`. Meanwhile show what `session` prints, then the result in the same output."""
    screen = TerminalScreen()
    changed = False

    def on_event(event: SessionEvent) -> None:
        nonlocal changed
        if isinstance(event, CallOutput):
            screen.feed(event.text)
            changed = True

    def update() -> None:
        nonlocal changed
        if changed:
            changed = False
            slot.show(progress_bundle(screen))

    slot = _OutputSlot()
    stop = session.subscribe(on_event)
    try:
        result = await with_ticks(call, _OUTPUT_TICK_S, update)
    finally:
        stop()
    slot.show(render_result(result, tool_name))
    return result


def progress_bundle(screen: TerminalScreen) -> dict[str, str]:
    """Return the MIME bundle of the end of what was printed; a printed progress bar is drawn as one."""
    bar = bar_in(screen.current)
    lines = screen.lines() if bar is None else screen.finished()
    text = shorten("\n".join(lines[-_TAIL_LINES:]), _TAIL_CHARS)
    markup = html.block(text) if text else ""
    if bar is None:
        return {"text/html": markup, "text/plain": text}
    markup += html.progress_bar(bar.percent, " ".join(filter(None, [bar.label, bar.rest])))
    return {"text/html": markup, "text/plain": f"{text}\n{screen.current}"}


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
