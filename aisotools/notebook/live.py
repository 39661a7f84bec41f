"""What a running call prints, shown while it runs, and replaced by its result."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from aisotools.events import ToolResult
from aisotools.notebook import frame
from aisotools.notebook.render import render_result
from aisotools.notebook.screen import Screen, bar_in
from aisotools.notebook.text import shorten
from aisotools.session import Session
from aisotools.session_events import CallOutput, SessionEvent
from aisotools.waiting import with_ticks

_EVERY_S = 0.25
_TAIL_LINES, _TAIL_CHARS = 40, 4_000


async def show_while_running(
    session: Session, call: Coroutine[Any, Any, ToolResult], tool_name: str
) -> ToolResult:
    """Await `call`, showing what `session` prints meanwhile, and then its result in the same place.

    Everything is displayed from the awaiting cell itself: what handlers and other tasks display gets lost.
    """
    screen, news = Screen(), False

    def hear(event: SessionEvent) -> None:
        nonlocal news
        if isinstance(event, CallOutput):
            screen.feed(event.text)
            news = True

    def show_news() -> None:
        nonlocal news
        if news:
            news = False
            place.show(so_far(screen))

    place = _Place()
    stop = session.subscribe(hear)
    try:
        result = await with_ticks(call, _EVERY_S, show_news)
    finally:
        stop()
    place.show(render_result(result, tool_name))
    return result


def so_far(screen: Screen) -> dict[str, str]:
    """The end of what was printed; a line that draws a progress bar is shown as one."""
    bar = bar_in(screen.current)
    lines = screen.lines() if bar is None else screen.finished()
    text = shorten("\n".join(lines[-_TAIL_LINES:]), _TAIL_CHARS)
    drawn = "" if bar is None else frame.bar(bar.percent, " ".join(filter(None, [bar.label, bar.rest])))
    return {
        "text/html": (frame.block(text) if text else "") + drawn,
        "text/plain": "\n".join([text] if bar is None else [text, screen.current]),
    }


class _Place:
    """One output of the cell, shown and then updated."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, bundle: dict[str, Any]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
