"""A run shown while it goes on: one view, followed live where the page can, replaced by a record at the end.

Everything is displayed from the awaiting cell itself, and sent from the task that awaits: what handlers and
other tasks display gets lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from aisotools.notebook.trace import Trace
from aisotools.notebook.trace_items import Op
from aisotools.notebook.trace_page import trace_bundle
from aisotools.redact import secret_parameters
from aisotools.registry import ToolRegistry
from aisotools.session_events import SessionEvent
from aisotools.waiting import with_ticks

_T = TypeVar("_T")

EVERY_S = 0.05
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
        return await with_ticks(work, EVERY_S, view.tick)
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
        from aisotools.notebook.cards.trace import TraceCard

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
        ops, self._ops = merged(self._ops), []
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


def merged(ops: list[Op]) -> list[Op]:
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
