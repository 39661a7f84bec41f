"""The log of a session's events: recorded in order, readable at any time, passed on to listeners.

A sandbox reports to it (`aisotools.core.sandboxes.SandboxListener`), the gate adds the events of calls, and
cards, transcripts and the ledger are made from it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from aisotools.core.events import CallEmitted, CallOutput, SandboxLost, SandboxStarted, SessionEvent
from aisotools.core.sandboxes import SandboxStatus
from aisotools.core.types import Json
from aisotools.session.progress import ProgressTracker

_log = logging.getLogger(__name__)

Listener = Callable[[SessionEvent], None]
"""Called with every event as it happens, on the session's event loop."""


class EventView(Sequence[SessionEvent]):
    """A read-only view of the events of a session. It grows as events are added."""

    def __init__(self, events: list[SessionEvent]) -> None:
        """Show `events`, without copying them."""
        self._events = events

    def __repr__(self) -> str:
        return f"<{len(self._events)} events>"

    @overload
    def __getitem__(self, index: int) -> SessionEvent: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SessionEvent]: ...
    def __getitem__(self, index: int | slice) -> SessionEvent | Sequence[SessionEvent]:
        """Return the event at a position, or a tuple of those in a slice."""
        return tuple(self._events[index]) if isinstance(index, slice) else self._events[index]

    def __len__(self) -> int:
        return len(self._events)


class EventLog:
    """Records events and calls listeners. It implements `aisotools.core.sandboxes.SandboxListener`.

    Attributes:
        events: All events so far.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._all: list[SessionEvent] = []
        self._listeners: list[tuple[Listener, tuple[type[SessionEvent], ...]]] = []
        self.events = EventView(self._all)
        self._progress = ProgressTracker()

    def add(self, kind: type[SessionEvent], call_id: str = "", **fields: Any) -> None:
        """Record an event with the present time, and call the listeners of its kind.

        A listener that raises is logged; the call and the other listeners go on.
        """
        event = kind(time_s=time.time(), call_id=call_id, **fields)
        self._all.append(event)
        for listener, kinds in tuple(self._listeners):
            if not isinstance(event, kinds):
                continue
            try:
                listener(event)
            except Exception:
                _log.exception("A listener failed at %s: %r", event.kind, listener)

    def subscribe(
        self, listener: Listener, kinds: tuple[type[SessionEvent], ...] = (SessionEvent,)
    ) -> Callable[[], None]:
        """Call `listener` with every event of these kinds. Return a function that ends this."""
        subscription = (listener, kinds)
        self._listeners.append(subscription)

        def unsubscribe() -> None:
            if subscription in self._listeners:
                self._listeners.remove(subscription)

        return unsubscribe

    def output(self, call_id: str, stream: str, text: str) -> None:
        """Record that a running call printed `text`, and the progress that a bar in it shows."""
        self.add(CallOutput, call_id, stream=stream, text=text)
        progress = self._progress.feed(call_id, stream, text)
        if progress is not None:
            self.emitted(call_id, "progress", progress)

    def emitted(self, call_id: str, name: str, payload: Mapping[str, Json]) -> None:
        """Record what a running tool reported with `context.emit`."""
        self.add(CallEmitted, call_id, name=name, payload=payload)

    def started(self, status: SandboxStatus, reason: str) -> None:
        """Record that a worker is ready."""
        self.add(
            SandboxStarted,
            level=status.level,
            generation=status.generation,
            pid=status.pid,
            reason=reason,
        )

    def lost(self, generation: int, reason: str) -> None:
        """Record that a worker ended by itself, and its variables with it."""
        self.add(SandboxLost, generation=generation, reason=reason)
