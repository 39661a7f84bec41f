"""The record of a session while it lives: events in order, for reading, and for whoever listens.

Progress bars in what a program prints, as numbers. Pure, but for a clock.

tqdm and its kin draw one line again and again behind a carriage return. Whatever draws it, in the worker's
own interpreter or in a program below it, what is drawn is read here, on the host, like all output: hostile.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from aisotools.core.events import CallEmitted, CallOutput, SandboxLost, SandboxStarted, SessionEvent
from aisotools.core.protocols import SandboxStatus
from aisotools.core.types import Json
from aisotools.policy.prompts import visible

_LONGEST_LINE = 500
_EVERY_S = 0.1
_NUMBER = r"\d{1,15}(?:\.\d{1,6})?[kMGTPE]?"
# Each part is bounded, and none can match in two ways.
_BAR = re.compile(
    rf"(?:(?P<label>[^|\r\n]{{0,100}}?):\s{{1,4}})?\s{{0,4}}(?P<percent>\d{{1,3}})%\|[^|]{{0,300}}\|\s{{0,4}}"
    rf"(?P<done>{_NUMBER})[A-Za-z]{{0,12}}/(?P<total>{_NUMBER})[A-Za-z]{{0,12}}"
    r"\s\[(?P<times>[^\],]{0,40})(?:,\s{0,12}(?P<rate>[^\],]{1,40}))?[^\]]{0,100}\]"
)
_RATE = re.compile(rf"(?P<number>{_NUMBER})\s?(?P<over>[A-Za-z ]{{1,20}})/(?P<under>[A-Za-z ]{{1,20}})")
_POWERS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def bar_numbers(line: str) -> dict[str, Json] | None:
    """What a bar tells: `done`, `total`, and as far as they are there `label`, `unit`, `rate` per second."""
    if "%|" not in line or len(line) > _LONGEST_LINE:
        return None
    match = _BAR.fullmatch(line.strip())
    if match is None:
        return None
    numbers: dict[str, Json] = {"done": _number(match["done"]), "total": _number(match["total"])}
    if match["label"]:
        numbers["label"] = visible(match["label"], "")
    rate = _RATE.fullmatch((match["rate"] or "").strip())
    if rate is not None:
        number = _number(rate["number"])
        slow = rate["over"] == "s"  # seconds per item
        numbers["unit"] = (rate["under"] if slow else rate["over"]).strip()
        if not slow:
            numbers["rate"] = number
        elif number:
            numbers["rate"] = round(1 / number, 6)
    return numbers


class BarWatch:
    """Reads the bars of one stream of one call: the newest one, a few times a second at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with an empty line; `clock` tells the time in seconds."""
        self._clock = clock
        self._line = ""
        self._told_s = float("-inf")
        self._told: dict[str, Json] | None = None

    def feed(self, text: str) -> dict[str, Json] | None:
        """Read printed text. Return the numbers of the current progress bar if a report of them is due."""
        if not self._line and "\r" not in text and "%|" not in text:
            return None
        drawn = re.split(r"[\r\n]+", (self._line + text)[-4 * _LONGEST_LINE :])
        self._line = "" if text.endswith("\n") else drawn[-1][-_LONGEST_LINE:]
        numbers = next((values for line in reversed(drawn) if (values := bar_numbers(line))), None)
        if numbers is None or numbers == self._told:
            return None
        ended = numbers["done"] == numbers["total"]
        if not ended and self._clock() - self._told_s < _EVERY_S:
            return None
        self._told, self._told_s = numbers, self._clock()
        return numbers


def _number(text: str) -> float | int:
    power = _POWERS.get(text[-1])
    if power is not None:
        return float(text[:-1]) * power
    return float(text) if "." in text else int(text)


_log = logging.getLogger(__name__)

_MOST_BARS = 32

Listener = Callable[[SessionEvent], None]
"""Hears every event as it happens, on the session's loop."""


class EventView(Sequence[SessionEvent]):
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


class EventLog:
    """Takes events; also what a sandbox reports to (`aisotools.core.protocols.SandboxListener`)."""

    def __init__(self) -> None:
        """Start empty."""
        self._all: list[SessionEvent] = []
        self._listeners: list[tuple[Listener, tuple[type[SessionEvent], ...]]] = []
        self.events = EventView(self._all)
        self._bars: dict[tuple[str, str], BarWatch] = {}

    def add(self, kind: type[SessionEvent], call_id: str = "", **fields: Any) -> None:
        """Record an event of now, and tell everybody who listens.

        A listener that fails is reported to the log and keeps neither the call nor the others from going on.
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
        """Call `listener` with every event of these kinds, until the returned function is called."""
        subscription = (listener, kinds)
        self._listeners.append(subscription)

        def unsubscribe() -> None:
            if subscription in self._listeners:
                self._listeners.remove(subscription)

        return unsubscribe

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
