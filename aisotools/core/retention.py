"""The budget of what a session retains in this process, and the size in memory of what it retains.

Threat
    A worker sends little and makes the host keep much: an empty list takes 3 bytes on the wire and 64 in
    memory, and a session keeps its events until it is closed. Thousands of reports, displays or results
    then take the memory of the program that runs the session.
Mechanism
    Whoever retains something charges its size in memory to the session's one `RetentionBudget`, and gives it
    back when it lets go. When the total is above the limit, the holders are asked in turn to free the excess,
    the oldest first: long results move to files, then printed output and reports are dropped, then the values
    of results, then whole events. Charging is part of retaining, so nothing is kept uncharged.
Race window
    None: all of it happens on the session's event loop, without awaiting between charge and reclaim. Between
    the arrival of a frame and its charge the frame itself is in memory; `aisotools.sandbox.frames` bounds it.
When it fails
    A size that is estimated too low lets the process grow by that factor (a test compares the charge with the
    growth of a process); one that is too high drops events early. What is dropped is said where it is read.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from sys import getsizeof
from typing import Any

DEFAULT_RETAINED_BYTES = 64 << 20
"""What a session may retain unless it says otherwise."""

MIN_RETAINED_BYTES = 1 << 20
"""The smallest budget that a session works with."""

# Smaller texts are counted wherever they occur; of larger ones, those that occur twice count once.
_SHARED_CHARS = 256
# Lists of at least this length are measured as a whole if they hold nothing but plain values.
_BULK_ITEMS = 32
_PLAIN = {int, float, bool, type(None)}
_FREE = {bool, type(None)}
_MIN_CACHED_INT, _MAX_CACHED_INT = -5, 256


def size_of(
    value: object, limit_bytes: int | None = None, seen: set[int] | None = None, *, max_containers: int = 0
) -> int:
    """Return the memory that `value` and what it refers to take, in bytes; parts that occur twice count once.

    Args:
        value: Values of JSON, dataclasses, and containers of these.
        limit_bytes: Stop as soon as the size is above this, and return what was counted so far.
        seen: Ids of what was counted already; those of large texts and of containers are added.
        max_containers: Stop after so many containers, which take time, and return a size above the limit.
    """
    seen = set() if seen is None else seen
    stack: list[Any] = [value]
    total = containers = 0
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is str or kind is bytes:
            if len(item) >= _SHARED_CHARS:
                if id(item) in seen:
                    continue
                seen.add(id(item))
            # The allocator hands out multiples of 16 bytes.
            total += (getsizeof(item) + 15) & ~15
        elif item is None or kind is bool:
            continue
        elif kind is int or kind is float:
            if kind is float or not _MIN_CACHED_INT <= item <= _MAX_CACHED_INT:
                total += 32
        else:
            if id(item) in seen:
                continue
            seen.add(id(item))
            total += _open(item, kind, stack, seen)
            containers += 1
            if limit_bytes is not None and 0 < max_containers < containers:
                return max(total, limit_bytes + 1)
        if limit_bytes is not None and total > limit_bytes:
            break
    return total


def _open(item: Any, kind: type, stack: list[Any], seen: set[int]) -> int:
    """Return the size of a container itself, and put what it holds on `stack`."""
    if kind is dict:
        stack.extend(item.values())
        # The parser makes each key once, however many objects have it.
        numbers = set(map(id, item))
        if not numbers <= seen:
            stack.extend([key for key in item if id(key) not in seen])
            seen |= numbers
        return getsizeof(item)
    if kind is list or kind is tuple:
        return getsizeof(item) + _open_items(item, stack)
    if isinstance(item, enum.Enum | type):
        return 0
    names = _field_names(kind)
    if names:
        stack.extend(getattr(item, name, None) for name in names)
    elif isinstance(item, Mapping):
        stack.append(dict(item))
    elif isinstance(item, set | frozenset):
        stack.extend(item)
    return getsizeof(item, 64)


def _open_items(items: list[Any] | tuple[Any, ...], stack: list[Any]) -> int:
    if len(items) >= _BULK_ITEMS:
        kinds = set(map(type, items))
        if kinds <= _FREE:
            return 0
        if kinds <= _PLAIN:
            numbers = [item for item in items if item is not None]
            is_cached = float not in kinds and min(numbers) >= _MIN_CACHED_INT
            return 0 if is_cached and max(numbers) <= _MAX_CACHED_INT else 32 * len(items)
    stack.extend(items)
    return 0


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    if not dataclasses.is_dataclass(kind):
        return ()
    return tuple(field.name for field in dataclasses.fields(kind))


@dataclass(frozen=True, slots=True)
class Retained:
    """What a session retains at one moment.

    Attributes:
        used_bytes: The memory that its events and results take.
        limit_bytes: What they may take.
        dropped_events: Number of events that were dropped because of that.
    """

    used_bytes: int
    limit_bytes: int
    dropped_events: int = 0


class RetentionBudget:
    """How many bytes one session retains in this process, and who frees some when that is too much.

    Attributes:
        limit_bytes: What it may retain.
        used_bytes: What it retains.
    """

    def __init__(self, limit_bytes: int = DEFAULT_RETAINED_BYTES) -> None:
        """Start with nothing retained."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._reclaimers: list[Callable[[int], None]] = []
        self._is_reclaiming = False

    def __repr__(self) -> str:
        return f"<RetentionBudget {self.used_bytes:,} of {self.limit_bytes:,} bytes>"

    @property
    def reason(self) -> str:
        """Why something was dropped, in words."""
        return f"over the session's budget of {self.limit_bytes / (1 << 20):g} MiB"

    def on_excess(self, reclaim: Callable[[int], None]) -> None:
        """Have `reclaim` free at least so many bytes, if it can, whenever the budget is exceeded.

        Those that were added first are asked first.
        """
        self._reclaimers.append(reclaim)

    def charge(self, size_bytes: int) -> None:
        """Add what was just retained, and have something else freed if that is too much."""
        self.used_bytes += size_bytes
        if self.used_bytes > self.limit_bytes and not self._is_reclaiming:
            self._reclaim()

    def release(self, size_bytes: int) -> None:
        """Subtract what is retained no longer."""
        self.used_bytes -= size_bytes

    def _reclaim(self) -> None:
        # A sixteenth more than needed, so that not every single event is followed by a search.
        target = self.limit_bytes - self.limit_bytes // 16
        self._is_reclaiming = True
        try:
            for reclaim in self._reclaimers:
                if self.used_bytes <= target:
                    return
                reclaim(self.used_bytes - target)
        finally:
            self._is_reclaiming = False
