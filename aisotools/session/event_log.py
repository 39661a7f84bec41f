"""The log of a session's events: recorded in order, readable at any time, passed on to listeners.

A sandbox reports to it (`aisotools.core.sandboxes.SandboxListener`), the gate adds the events of calls, and
cards, transcripts and the ledger are made from it.

Threat
    A worker that prints, reports and returns without end makes the host remember all of it.
Mechanism
    Every event is charged to the session's `aisotools.core.retention.RetentionBudget`. Beyond a quarter of
    it the oldest events move to a file, from which they are read when somebody asks for them. Where that
    cannot be, and beyond the budget, the oldest printed output and reports are dropped, then values and data
    of results, then whole events. Listeners get each event whole, when it happens: the ledger has on disk
    what is dropped here, but for output and values.
Race window
    The events of a call are charged some milliseconds after its end, those of one whose result was cut at
    once. Until then the call, and whoever gets its result, hold the same anyway. Charging and dropping are
    one step. Events may be dropped while they are written in a thread: then what was written is given up.
When it fails
    A reader of old events finds `EventsDropped` in their place, and `DROPPED` in the metadata of a result,
    and says so. Nothing is decided on dropped events: what needs one that is missing refuses.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import operator
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, overload

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
    VariablesDropped,
)
from aisotools.core.retention import Retained, RetentionBudget, return_free_memory, size_of
from aisotools.core.sandboxes import SandboxStatus
from aisotools.core.spill import SpillFile, spill_file
from aisotools.core.threads import start_in_thread
from aisotools.core.types import Json, ToolResult
from aisotools.session.event_blocks import EventBlock, dump_at_once, dump_in_pieces
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
# Results that take longer to measure, some 20 ms, are recorded without their values and data.
_MOST_STEPS = 400_000
# A call about which nobody was asked has so many events; these steps are enough to measure it if it is small.
_FEW_EVENTS = 4
_FEW_STEPS = 1_000
# Calls in progress at one time whose events are not measured yet, and such events of one call.
_MOST_UNMEASURED_CALLS = 256
_MOST_UNMEASURED_EVENTS = 32
# Results are measured several at a time, which takes a third of the time. Meanwhile no more can come than the
# host decodes in this time.
_MOST_UNMEASURED_RESULTS = 16
_ENOUGH_UNMEASURED_RESULTS = 8
_MEASURE_AFTER_S = 0.02
# Of the metadata of a result that is emptied: entries, and their length.
_KEPT_METADATA = 32
_KEPT_CHARS = 200

Listener = Callable[[SessionEvent], None]
"""Called with every event as it happens, on the session's event loop."""

Preparation = Callable[[str, Json], Awaitable[None]]
"""Awaited with a call's id, and with large arguments or a long text that an event of it will hold."""

# The oldest events move to the disk, so many or so many bytes at once, when those in memory take more than
# this part of the budget; beyond so many bytes on the disk the oldest are dropped.
_MEMORY_SHARE = 4
_BLOCK_EVENTS = 256
_BLOCK_BYTES = 1 << 20
_MOVING_S = 0.008
# Blocks of at least so many bytes are written in a thread: computing the digest and writing take most of the
# time then, and neither holds the interpreter's lock.
_LARGE_BLOCK_BYTES = 256 << 10
_LARGEST_MOVED_BYTES = 4 << 20
_MOST_SPILLED_BYTES = 256 << 20

_Stored: TypeAlias = SessionEvent | tuple[float, str, str, str]
"""An event; of a `CallOutput` its time, call, stream, and text."""


def _pack(event: CallOutput) -> _Stored:
    return event.time_s, event.call_id, event.stream, event.text


def _unpack(stored: _Stored) -> SessionEvent:
    if isinstance(stored, tuple):
        time_s, call_id, stream, text = stored
        return CallOutput(time_s=time_s, call_id=call_id, stream=stream, text=text)
    return stored


class EventView(Sequence[SessionEvent]):
    """A read-only view of the events of a session. It grows as events are added.

    When the session has dropped events, the first one is `EventsDropped` and stands for all of them.
    """

    def __init__(
        self,
        stored: Callable[[], Sequence[_Stored]],
        early: Callable[[], Sequence[Sequence[SessionEvent]]] = tuple,
    ) -> None:
        """Show what `stored` returns, behind the events of all that `early` returns."""
        self._stored = stored
        self._early = early

    def __repr__(self) -> str:
        return f"<{len(self)} events>"

    @overload
    def __getitem__(self, index: int) -> SessionEvent: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SessionEvent]: ...
    def __getitem__(self, index: int | slice) -> SessionEvent | Sequence[SessionEvent]:
        """Return the event at a position, or a tuple of those in a slice."""
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        number = range(len(self))[index]
        for events in self._early():
            if number < len(events):
                return events[number]
            number -= len(events)
        return _unpack(self._stored()[number])

    def __iter__(self) -> Iterator[SessionEvent]:
        """Iterate over the events so far, and those that are added meanwhile."""
        early, stored = self._early(), self._stored()
        for events in early:
            yield from events
        for event in stored:
            yield _unpack(event)

    def __len__(self) -> int:
        return sum(map(len, self._early())) + len(self._stored())


class _RetainedEvents:
    """The events within a budget. What is bulky goes first, the oldest before the newer.

    Dropped are, in this order: what calls printed and reported; the values and data of results, whose text
    stays; whole events.

    Printed text is stored as tuples of plain values, which the garbage collector does not visit. A call may
    print tens of thousands of pieces; with an object for each of them a full collection took 70 ms, for which
    the event loop stood still.
    """

    def __init__(self, budget: RetentionBudget) -> None:
        self._budget = budget
        # By number, in order. Removing one from the middle of a list would move all the others.
        self._events: dict[int, _Stored] = {}
        self._sizes: dict[int, int] = {}
        self._outputs: deque[int] = deque()
        self._results: deque[int] = deque()
        self._last_number = 0
        # Events of calls in progress, by call. They are measured together after its end: an argument is in
        # the request, the question and the decision, and the call holds it anyway.
        self._unmeasured: dict[str, list[int]] = {}
        self._finished: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._listed: list[_Stored] | None = None
        self._dropped_kinds: set[str] = set()
        self._dropped_bytes = 0
        self._dropped_until_s = 0.0
        self.dropped = 0
        self._charged_bytes = 0
        self._blocks: deque[EventBlock] = deque()
        self._spilled_bytes = 0
        self._is_moving = False
        self._moved_s = 0.0  # for how long events have been moved in this turn of the loop
        self._waits_for = 0.0  # the number of an event before which there is too little to be moved
        self.spill: SpillFile | None = None
        budget.on_excess(self._reclaim)

    def add(self, event: SessionEvent) -> None:
        """Retain an event, charged now or a little later."""
        self._last_number = number = self._last_number + 1
        self._events[number] = _pack(event) if isinstance(event, CallOutput) else event
        self._sizes[number] = 0
        if self._listed is not None:
            self._listed.append(self._events[number])
        if event.kind in OUTPUT_KINDS:
            self._outputs.append(number)
            self._charge((number,))
            return
        numbers = self._unmeasured.setdefault(event.call_id, [])
        numbers.append(number)
        if isinstance(event, CallFinished):
            self._finished.append(event.call_id)
            # One that was cut may have left megabytes elsewhere; measuring it takes little of its time.
            if event.result.truncation or len(self._finished) >= _MOST_UNMEASURED_RESULTS:
                self._charge_finished()
            elif self._timer is None:
                self._charge_soon()
        elif isinstance(event, CallStarted) and len(self._finished) >= _ENOUGH_UNMEASURED_RESULTS:
            # While the sandbox runs this call, the loop has nothing else to do.
            if event.runs_in == "sandbox":
                with suppress(RuntimeError):  # without a loop a later event charges them
                    asyncio.get_running_loop().call_soon(self._charge_finished)
        elif len(numbers) >= (_MOST_UNMEASURED_EVENTS if event.call_id else _MOST_UNMEASURED_RESULTS):
            self._charge(self._unmeasured.pop(event.call_id))
        elif not event.call_id:
            if self._timer is None:
                self._charge_soon()
        elif len(self._unmeasured) > _MOST_UNMEASURED_CALLS:
            self._charge(self._unmeasured.pop(next(iter(self._unmeasured))))

    def _charge_soon(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._charge_finished()
        else:
            self._timer = loop.call_later(_MEASURE_AFTER_S, self._charge_finished)

    def _charge_finished(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._finished:
            self._charge_call(self._unmeasured.pop(self._finished.pop(), ()))
        if "" in self._unmeasured:  # events of no call
            self._charge(self._unmeasured.pop(""))

    def _charge_call(self, numbers: Sequence[int]) -> None:
        """Measure and charge the events of a call that has ended. The last of them is its result."""
        size = _BULKY_BYTES + 1
        if len(numbers) <= _FEW_EVENTS:
            # Such calls are mostly small, and to measure them at once takes half the time.
            events = [self._events.get(number) for number in numbers]
            parts = [part for one in events if one is not None for part in _variable_parts(_unpack(one))]
            size = size_of(parts, _BULKY_BYTES, max_steps=_FEW_STEPS)
        if size > _BULKY_BYTES:
            self._charge(numbers[:-1])
            self._charge(numbers[-1:])
            return
        charged = size
        for number in numbers:
            if number in self._sizes:
                self._sizes[number] = _EVENT_BYTES
                last, charged = number, charged + _EVENT_BYTES
        if charged > size:
            self._sizes[last] += size
            self._charged_bytes += charged
            self._move_excess()
            self._budget.charge(charged)

    def _charge(self, numbers: Sequence[int]) -> None:
        """Measure and charge events. What they have in common counts once, with the last of them."""
        parts: list[object] = []
        event: SessionEvent | None = None  # the last of them
        last = charged = 0
        for number in numbers:
            stored = self._events.get(number)
            if stored is not None:  # else it was dropped before it was measured
                last, event = number, _unpack(stored) if isinstance(stored, tuple) else stored
                self._sizes[number] = _EVENT_BYTES
                charged += _EVENT_BYTES
                parts += _variable_parts(event)
        if event is None:
            return
        limit_bytes = self._budget.limit_bytes // _LARGEST_SHARE
        size = size_of(parts, limit_bytes, max_steps=_MOST_STEPS)
        if size > limit_bytes:
            reduced = self._without_bulk(event)
            if reduced is not event:
                self._events[last], self._listed = reduced, None
                parts = [*_variable_parts(reduced)]
            size = size_of(parts)
        elif size > _BULKY_BYTES and isinstance(event, CallFinished):
            self._results.append(last)
        self._sizes[last] += size
        self._charged_bytes += charged + size
        self._move_excess()
        self._budget.charge(charged + size)

    def _move_excess(self) -> None:
        """Move the oldest events to the disk, a block now and the others one by one when the loop is free.

        In one turn of the loop there may be hundreds of events, each of which asks for this. They are moved
        for some milliseconds in each: as many as come, unless the disk is slow.
        """
        if self.spill is None or self._charged_bytes <= self._budget.limit_bytes // _MEMORY_SHARE:
            return
        if self._moved_s >= _MOVING_S:
            return
        began_s = time.perf_counter()
        is_moved = self._move_oldest(self.spill)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # the next event moves the next block
        if is_moved and not self._moved_s:
            loop.call_soon(self._move_on)
        self._moved_s += time.perf_counter() - began_s if is_moved else 0.0

    def _move_on(self) -> None:
        self._moved_s = 0.0
        self._move_excess()

    def summary(self) -> Retained:
        """Return what is retained right now, with what was not charged yet."""
        self._charge_finished()
        return Retained(self._budget.used_bytes, self._budget.limit_bytes, self.dropped)

    def _move_oldest(self, spill: SpillFile) -> bool:
        """Move some of the oldest events to the disk. Return whether any was moved.

        The newest stays: whoever has caused it is about to read it.
        """
        if self._is_moving:
            return False  # those after it have to wait: blocks are in order
        # What is not measured yet is of calls in progress.
        pending = min((numbers[0] for numbers in self._unmeasured.values() if numbers), default=math.inf)
        if pending == self._waits_for:
            return False  # what is before it was looked at, and was too little
        numbers: list[int] = []
        size = written = 0
        precedes_large = False
        for number in self._events:
            if number >= pending or len(numbers) == _BLOCK_EVENTS or written > _BLOCK_BYTES:
                break
            # What events of one call have in common is charged with the last of them, and written with each.
            parts = [*_variable_parts(_unpack(self._events[number]))]
            weight = _EVENT_BYTES + size_of(parts, _LARGEST_MOVED_BYTES, max_steps=_MOST_STEPS)
            if weight > _LARGEST_MOVED_BYTES:
                if not numbers and len(self._events) > 1:  # the newest stays
                    self._move_in_thread(spill, [number], dump_in_pieces)
                precedes_large = True
                break  # writing it would hold up the loop
            numbers.append(number)
            size += self._sizes[number]
            written += weight
        is_enough = len(numbers) >= min(_BLOCK_EVENTS, len(self._events) // 2) or written > _BLOCK_BYTES
        if not numbers or not (is_enough or precedes_large):
            # A call in progress is among the oldest. It may print thousands of pieces, each of which asks.
            self._waits_for = 0 if precedes_large else pending
            return False
        if written > _LARGE_BLOCK_BYTES and self._move_in_thread(spill, numbers, dump_at_once):
            return False
        try:
            block = EventBlock(spill, [_unpack(self._events[number]) for number in numbers], size)
        except Exception as error:  # of whatever is in an event; or there is no room
            self._stay_in_memory(error)
            return False
        self._replace(numbers, block)
        return True

    def _move_in_thread(
        self, spill: SpillFile, numbers: Sequence[int], dump: Callable[[object], Sequence[bytes]]
    ) -> bool:
        """Begin to move the oldest events in a thread. Return whether there is a loop to be held up."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        stored = [self._events[number] for number in numbers]
        size = sum(self._sizes[number] for number in numbers)

        def move() -> EventBlock:
            block = EventBlock(spill, [*map(_unpack, stored)], size, dump)
            if dump is dump_in_pieces:
                return_free_memory()  # what a thread has used stays with it otherwise
            return block

        def on_moved(moving: asyncio.Future[EventBlock]) -> None:
            self._is_moving = False
            if moving.cancelled():
                return
            if (error := moving.exception()) is not None:
                self._stay_in_memory(error)
            # Race: some were dropped or emptied meanwhile, since the budget was exceeded. Then nobody holds
            # the block, and its room is free again.
            elif all(map(operator.is_, map(self._events.get, numbers), stored)):
                self._replace(numbers, moving.result())
            self._move_excess()

        self._is_moving = True
        start_in_thread(move).add_done_callback(on_moved)
        return True

    def _stay_in_memory(self, error: BaseException) -> None:
        _log.warning("Events stay in memory, and are dropped beyond the budget: %r", error)
        self.spill = None

    def _replace(self, numbers: Sequence[int], block: EventBlock) -> None:
        """Put a block in the place of the oldest events, which it holds."""
        self._blocks.append(block)
        self._spilled_bytes += block.size
        for number in numbers:
            del self._events[number]
            self._release(self._sizes.pop(number))
        self._listed = None
        while self._spilled_bytes > _MOST_SPILLED_BYTES:
            self._drop_block()

    def _drop_block(self) -> None:
        block = self._blocks.popleft()
        self._spilled_bytes -= block.size
        self.dropped += len(block)
        self._dropped_bytes += block.charged_bytes
        self._dropped_kinds |= block.kinds
        self._dropped_until_s = block.until_s

    def _release(self, size: int) -> None:
        self._charged_bytes -= size
        self._budget.release(size)

    def early(self) -> Sequence[Sequence[SessionEvent]]:
        """Return what stands before the events in memory: a word about those dropped, and those on disk."""
        if not self.dropped:
            return tuple(self._blocks)
        dropped = EventsDropped(
            time_s=self._dropped_until_s,
            count=self.dropped,
            kinds=tuple(sorted(self._dropped_kinds)),
            size_bytes=self._dropped_bytes,
            reason=self._budget.reason,
        )
        return ((dropped,), *self._blocks)

    def list(self) -> list[_Stored]:
        """Return the events in memory as they are stored, the oldest first."""
        if self._listed is None:
            self._listed = list(self._events.values())
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
        stored = self._events.pop(number, None)
        if stored is None:
            return
        event = _unpack(stored)
        size = self._sizes.pop(number)
        self._release(size)
        self._listed = None
        self.dropped += 1
        self._dropped_bytes += size
        self._dropped_kinds.add(event.kind)
        self._dropped_until_s = event.time_s

    def _empty(self, number: int) -> None:
        """Replace a bulky result by one without bulk."""
        stored = self._events.get(number)
        if stored is None:
            return
        event = self._without_bulk(_unpack(stored))
        size = _EVENT_BYTES + size_of(_variable_parts(event))
        self._release(self._sizes[number] - size)
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
        budget: What the session may retain; others that retain something for it charge it as well.
    """

    def __init__(self, budget: RetentionBudget | None = None) -> None:
        """Start empty; `budget` is what the session may retain, by default one of its own."""
        self.budget = budget or RetentionBudget()
        self._retained = _RetainedEvents(self.budget)
        self._listeners: list[tuple[Listener, tuple[type[SessionEvent], ...]]] = []
        # The same by kind of event, found once.
        self._listeners_of: dict[type[SessionEvent], tuple[Listener, ...]] = {}
        self._preparations: list[Preparation] = []
        self.events = EventView(self._retained.list, self._retained.early)
        self._progress = ProgressTracker()

    @property
    def retained(self) -> Retained:
        """A summary of what is retained right now."""
        return self._retained.summary()

    def write_files_to(self, folder: Path) -> None:
        """Move events to a file in `folder` when they take much memory. Before, they are dropped then."""
        self._retained.spill = spill_file(folder)

    def add(self, kind: type[SessionEvent], call_id: str = "", **fields: Any) -> None:
        """Record an event with the present time, and call the listeners of its kind with the whole of it.

        A listener that raises is logged; the call and the other listeners go on.
        """
        event = kind(time_s=time.time(), call_id=call_id, **fields)
        self._retained.add(event)
        listeners = self._listeners_of.get(kind)
        if listeners is None:
            listeners = tuple(listener for listener, kinds in self._listeners if issubclass(kind, kinds))
            self._listeners_of[kind] = listeners
        for listener in listeners:
            try:
                listener(event)
            except Exception:
                _log.exception("A listener failed at %s: %r", event.kind, listener)

    async def prepare(self, call_id: str, content: Json) -> None:
        """Await whoever has to do something with large arguments or a long text before they are in an event.

        Raises:
            Exception: Whatever a preparation raises.
        """
        for preparation in tuple(self._preparations):
            await preparation(call_id, content)

    def add_preparation(self, preparation: Preparation) -> None:
        """Let `prepare` await `preparation`."""
        self._preparations.append(preparation)

    def subscribe(
        self, listener: Listener, kinds: tuple[type[SessionEvent], ...] = (SessionEvent,)
    ) -> Callable[[], None]:
        """Call `listener` with every event of these kinds. Return a function that ends this."""
        subscription = (listener, kinds)
        self._listeners.append(subscription)
        self._listeners_of.clear()

        def unsubscribe() -> None:
            if subscription in self._listeners:
                self._listeners.remove(subscription)
                self._listeners_of.clear()

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

    def variables_dropped(self, call_ids: Sequence[str], reason: str) -> None:
        """Record that variables from before these calls are not kept, or no longer."""
        self.add(VariablesDropped, call_ids=tuple(call_ids), reason=reason)
