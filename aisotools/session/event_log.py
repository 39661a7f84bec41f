"""The log of a session's events: recorded in order, readable at any time, passed on to listeners.

A sandbox reports to it (`aisotools.core.sandboxes.SandboxListener`), the gate adds the events of calls, and
cards, transcripts and the ledger are made from it.

Threat
    A worker that prints, reports and returns without end makes the host remember all of it.
Mechanism
    Every event is charged to the session's `aisotools.core.truncation.RetentionBudget`. Beyond it the oldest
    printed output and reports are dropped, then values and data of results, then whole events. Listeners get
    each event whole, when it happens: the ledger has on disk what is dropped here, but for output and values.
Race window
    The events of a call are charged some milliseconds after its end. Until then the call, and whoever gets
    its result, hold the same anyway. Charging and dropping are one step.
When it fails
    A reader of old events finds `EventsDropped` in their place, and `DROPPED` in the metadata of a result,
    and says so. Nothing is decided on dropped events: what needs one that is missing refuses.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from aisotools.core.events import (
    OUTPUT_KINDS,
    CallDecided,
    CallEmitted,
    CallFinished,
    CallOutput,
    CallRequested,
    CallStarted,
    EventsDropped,
    SandboxLost,
    SandboxStarted,
    SessionEvent,
)
from aisotools.core.sandboxes import SandboxStatus
from aisotools.core.truncation import Retained, RetentionBudget, size_of
from aisotools.core.types import Json, ToolResult
from aisotools.session.progress import ProgressTracker

_log = logging.getLogger(__name__)

DROPPED = "dropped"
"""Key in the metadata of a recorded result: which of its parts are retained no longer, and why."""

# Of an event: its entries in the tables below.
_EVENT_BYTES = 128
# Results from this size are emptied before whole events are dropped.
_BULKY_BYTES = 4 << 10
# One event has at most this part of the budget. What is larger is recorded without its bulk at once.
_LARGEST_SHARE = 4
# Results of more objects and lists take too long to measure, and are recorded without them.
_MOST_CONTAINERS = 10_000
# Calls in progress at one time whose events are not measured yet, and such events of one call.
_MOST_UNMEASURED_CALLS = 256
_MOST_UNMEASURED_EVENTS = 32
# Results are measured several at a time, which takes a third of the time. Meanwhile no more can come than the
# host decodes in this time.
_MOST_UNMEASURED_RESULTS = 16
_MEASURE_AFTER_S = 0.02
# Of the metadata of a result that is emptied: entries, and their length.
_KEPT_METADATA = 32
_KEPT_CHARS = 200

Listener = Callable[[SessionEvent], None]
"""Called with every event as it happens, on the session's event loop."""


class EventView(Sequence[SessionEvent]):
    """A read-only view of the events of a session. It grows as events are added.

    When the session has dropped events, the first one is `EventsDropped` and stands for all of them.
    """

    def __init__(self, retained: Callable[[], Sequence[SessionEvent]]) -> None:
        """Show what `retained` returns."""
        self._retained = retained

    def __repr__(self) -> str:
        return f"<{len(self)} events>"

    @overload
    def __getitem__(self, index: int) -> SessionEvent: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SessionEvent]: ...
    def __getitem__(self, index: int | slice) -> SessionEvent | Sequence[SessionEvent]:
        """Return the event at a position, or a tuple of those in a slice."""
        events = self._retained()
        return tuple(events[index]) if isinstance(index, slice) else events[index]

    def __len__(self) -> int:
        return len(self._retained())


class _RetainedEvents:
    """The events within a budget. What is bulky goes first, the oldest before the newer.

    Dropped are, in this order: what calls printed and reported; the values and data of results, whose text
    stays; whole events.
    """

    def __init__(self, budget: RetentionBudget) -> None:
        self._budget = budget
        # By number, in order. Removing one from the middle of a list would move all the others.
        self._events: dict[int, SessionEvent] = {}
        self._sizes: dict[int, int] = {}
        self._outputs: deque[int] = deque()
        self._results: deque[int] = deque()
        self._last_number = 0
        # Events of calls in progress, by call. They are measured together after its end: an argument is in
        # the request, the question and the decision, and the call holds it anyway.
        self._unmeasured: dict[str, list[int]] = {}
        self._finished: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._listed: list[SessionEvent] | None = None
        self._dropped_kinds: set[str] = set()
        self._dropped_bytes = 0
        self._dropped_until_s = 0.0
        self.dropped = 0
        budget.on_excess(self._reclaim)

    def add(self, event: SessionEvent) -> None:
        self._last_number = number = self._last_number + 1
        self._events[number] = event
        self._sizes[number] = 0
        if self._listed is not None:
            self._listed.append(event)
        if event.kind in OUTPUT_KINDS:
            self._outputs.append(number)
            self._charge((number,))
            return
        numbers = self._unmeasured.setdefault(event.call_id, [])
        numbers.append(number)
        if isinstance(event, CallFinished):
            self._finished.append(event.call_id)
            if len(self._finished) >= _MOST_UNMEASURED_RESULTS:
                self._charge_finished()
            elif self._timer is None:
                try:
                    loop = asyncio.get_running_loop()
                except RuntimeError:
                    self._charge_finished()
                else:
                    self._timer = loop.call_later(_MEASURE_AFTER_S, self._charge_finished)
        elif not event.call_id or len(numbers) >= _MOST_UNMEASURED_EVENTS:
            self._charge(self._unmeasured.pop(event.call_id))
        elif len(self._unmeasured) > _MOST_UNMEASURED_CALLS:
            self._charge(self._unmeasured.pop(next(iter(self._unmeasured))))

    def _charge_finished(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._finished:
            *before, result = self._unmeasured.pop(self._finished.pop(), [0])
            self._charge(before)
            self._charge([result])

    def _charge(self, numbers: Sequence[int]) -> None:
        """Measure and charge events. What they have in common counts once, with the last of them."""
        parts: list[object] = []
        last = charged = 0
        for number in numbers:
            event = self._events.get(number)
            if event is not None:  # else it was dropped before it was measured
                last = number
                self._sizes[number] = _EVENT_BYTES
                charged += _EVENT_BYTES
                parts += _variable_parts(event)
        if not last:
            return
        limit_bytes = self._budget.limit_bytes // _LARGEST_SHARE
        size = size_of(parts, limit_bytes, max_containers=_MOST_CONTAINERS)
        if size > limit_bytes:
            event = self._without_bulk(self._events[last])
            if event is not self._events[last]:
                self._events[last], self._listed = event, None
                parts = [*_variable_parts(event)]
            size = size_of(parts)
        elif size > _BULKY_BYTES and isinstance(self._events[last], CallFinished):
            self._results.append(last)
        self._sizes[last] += size
        self._budget.charge(charged + size)

    def summary(self) -> Retained:
        self._charge_finished()
        return Retained(self._budget.used_bytes, self._budget.limit_bytes, self.dropped)

    def list(self) -> list[SessionEvent]:
        """Return the retained events, the oldest first."""
        if self._listed is None:
            self._listed = list(self._events.values())
            if self.dropped:
                dropped = EventsDropped(
                    time_s=self._dropped_until_s,
                    count=self.dropped,
                    kinds=tuple(sorted(self._dropped_kinds)),
                    size_bytes=self._dropped_bytes,
                    reason=self._budget.reason,
                )
                self._listed.insert(0, dropped)
        return self._listed

    def _reclaim(self, excess_bytes: int) -> None:
        target = self._budget.used_bytes - excess_bytes
        while self._outputs and self._budget.used_bytes > target:
            self._drop(self._outputs.popleft())
        while self._results and self._budget.used_bytes > target:
            self._empty(self._results.popleft())
        # The newest event stays: whoever has caused it is about to read it.
        while len(self._events) > 1 and self._budget.used_bytes > target:
            self._drop(next(iter(self._events)))

    def _drop(self, number: int) -> None:
        event = self._events.pop(number, None)
        if event is None:
            return
        size = self._sizes.pop(number)
        self._budget.release(size)
        self._listed = None
        self.dropped += 1
        self._dropped_bytes += size
        self._dropped_kinds.add(event.kind)
        self._dropped_until_s = event.time_s

    def _empty(self, number: int) -> None:
        """Replace a bulky result by one without bulk."""
        event = self._events.get(number)
        if event is None:
            return
        event = self._without_bulk(event)
        size = _EVENT_BYTES + size_of(_variable_parts(event))
        self._budget.release(self._sizes[number] - size)
        self._events[number], self._sizes[number], self._listed = event, size, None

    def _without_bulk(self, event: SessionEvent) -> SessionEvent:
        """Return the event without what only takes room in it, with a word about what is missing."""
        note = f"dropped: {self._budget.reason}"
        if isinstance(event, CallFinished):
            return dataclasses.replace(event, result=_without_data(event.result, note))
        if isinstance(event, CallOutput):
            return dataclasses.replace(event, text=f"[{note}]")
        if isinstance(event, CallEmitted):
            return dataclasses.replace(event, payload={"dropped": note})
        return event


def _variable_parts(event: SessionEvent) -> tuple[object, ...]:
    """Return the parts of an event whose size is not bounded."""
    match event:
        case CallFinished(result=result):
            return result.content, result.value, result.data or None, result.metadata or None
        case CallStarted():
            return ()
        case CallOutput():
            return (event.text,)
        case CallEmitted():
            return (event.payload,)
        case CallRequested():
            return (event.call.arguments,)
        case CallDecided():
            return event.arguments, *event.reasons
    return (event,)


def _without_data(result: ToolResult, note: str) -> ToolResult:
    """Return a result with its text, and nothing else that is large."""
    present = {
        "value": result.value is not None,
        "data": bool(result.data),
        "metadata": bool(result.metadata),
    }
    metadata = {
        key: value
        for key, value in result.metadata.items()
        if len(key) <= _KEPT_CHARS
        and (type(value) in {int, float, bool} or (isinstance(value, str) and len(value) <= _KEPT_CHARS))
    }
    present["metadata"] = metadata != result.metadata
    dropped = ", ".join(name for name, is_present in present.items() if is_present)
    if not dropped:
        return result
    return dataclasses.replace(
        result,
        value=None,
        data={},
        metadata={**dict(list(metadata.items())[:_KEPT_METADATA]), DROPPED: f"{dropped} {note}"},
        content=f"{result.content}\n[{dropped} {note}]",
    )


class EventLog:
    """Records events and calls listeners. It implements `aisotools.core.sandboxes.SandboxListener`.

    Attributes:
        events: The events so far. When the budget is exceeded, the oldest are dropped.
    """

    def __init__(self, budget: RetentionBudget | None = None) -> None:
        """Start empty; `budget` is what the session may retain, by default one of its own."""
        self._retained = _RetainedEvents(budget or RetentionBudget())
        self._listeners: list[tuple[Listener, tuple[type[SessionEvent], ...]]] = []
        self.events = EventView(self._retained.list)
        self._progress = ProgressTracker()

    @property
    def retained(self) -> Retained:
        """A summary of what is retained right now."""
        return self._retained.summary()

    def add(self, kind: type[SessionEvent], call_id: str = "", **fields: Any) -> None:
        """Record an event with the present time, and call the listeners of its kind with the whole of it.

        A listener that raises is logged; the call and the other listeners go on.
        """
        event = kind(time_s=time.time(), call_id=call_id, **fields)
        self._retained.add(event)
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
