"""The record of a session while it lives: events in order, for reading, and for whoever listens."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from aisotools.contracts import SandboxStatus
from aisotools.events import Json
from aisotools.progress import BarWatch
from aisotools.session_events import CallEmitted, CallOutput, SandboxLost, SandboxStarted, SessionEvent

_log = logging.getLogger(__name__)

_MOST_BARS = 32

Listener = Callable[[SessionEvent], None]
"""Hears every event as it happens, on the session's loop."""


class Events(Sequence[SessionEvent]):
    """The events of a session, for reading; it grows while it is read."""

    def __init__(self, events: list[SessionEvent]) -> None:
        """Show `events`."""
        self._events = events

    def __repr__(self) -> str:
        return f"<{len(self._events)} events>"

    @overload
    def __getitem__(self, index: int) -> SessionEvent: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SessionEvent]: ...
    def __getitem__(self, index: int | slice) -> SessionEvent | Sequence[SessionEvent]:
        """The event at a position, or those of a slice."""
        return tuple(self._events[index]) if isinstance(index, slice) else self._events[index]

    def __len__(self) -> int:
        return len(self._events)


class Journal:
    """Takes events; also what a sandbox reports to (`aisotools.contracts.SandboxListener`)."""

    def __init__(self) -> None:
        """Start empty."""
        self._all: list[SessionEvent] = []
        self._listeners: list[Listener] = []
        self.events = Events(self._all)
        self._bars: dict[tuple[str, str], BarWatch] = {}

    def add(self, kind: type[SessionEvent], call_id: str = "", **fields: Any) -> None:
        """Record an event of now, and tell everybody who listens.

        A listener that fails is reported to the log and keeps neither the call nor the others from going on.
        """
        event = kind(time_s=time.time(), call_id=call_id, **fields)
        self._all.append(event)
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:
                _log.exception("A listener failed at %s: %r", event.kind, listener)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Have `listener` hear every event from now on; call what is returned to stop that."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def output(self, call_id: str, stream: str, text: str) -> None:
        """A running call printed `text`."""
        self.add(CallOutput, call_id, stream=stream, text=text)
        watch = self._bars.get((call_id, stream))
        if watch is None and "%|" in text:
            while len(self._bars) >= _MOST_BARS:
                del self._bars[next(iter(self._bars))]
            watch = self._bars[call_id, stream] = BarWatch()
        if watch is not None and (numbers := watch.feed(text)) is not None:
            self.emitted(call_id, "progress", numbers)

    def emitted(self, call_id: str, name: str, payload: Mapping[str, Json]) -> None:
        """A running tool reported progress."""
        self.add(CallEmitted, call_id, name=name, payload=payload)

    def started(self, status: SandboxStatus, reason: str) -> None:
        """A worker is ready."""
        self.add(
            SandboxStarted,
            level=status.level,
            generation=status.generation,
            pid=status.pid,
            reason=reason,
        )

    def lost(self, generation: int, reason: str) -> None:
        """A worker ended unasked, and its variables with it."""
        self.add(SandboxLost, generation=generation, reason=reason)
