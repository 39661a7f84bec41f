"""What a running call prints, shown while it runs, and replaced by its result."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from aisotools.events import ToolResult
from aisotools.notebook.render import render_result, sanitize_bundle
from aisotools.session import Session
from aisotools.session_events import CallOutput, SessionEvent

_EVERY_S = 0.25
_TAIL_CHARS = 4_000


async def show_while_running(
    session: Session, call: Coroutine[Any, Any, ToolResult], tool_name: str
) -> ToolResult:
    """Await `call`, showing what `session` prints meanwhile, and then its result in the same place.

    Everything is displayed from the awaiting cell itself: what handlers and other tasks display gets lost.
    """
    tail, news = "", False

    def hear(event: SessionEvent) -> None:
        nonlocal tail, news
        if isinstance(event, CallOutput):
            tail, news = (tail + event.text)[-_TAIL_CHARS:], True

    place = _Place()
    stop = session.subscribe(hear)
    task = asyncio.ensure_future(call)
    try:
        while not (await asyncio.wait([task], timeout=_EVERY_S))[0]:
            if news:
                news = False
                place.show(sanitize_bundle({"text/plain": tail}))
        result = task.result()
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
    finally:
        stop()
    place.show(render_result(result, tool_name))
    return result


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
