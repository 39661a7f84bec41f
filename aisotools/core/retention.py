"""Bound what a session retains in memory.

`RetentionBudget` bounds the memory that events and results take in this process, measured by `size_of`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from sys import getsizeof, maxsize
from typing import Any

DEFAULT_RETAINED_BYTES = 64 << 20
"""What a session may retain unless it says otherwise."""

MIN_RETAINED_BYTES = 1 << 20
"""The smallest budget that a session works with."""

# What is freed goes back to the system in steps of this size.
_RETURNED_BYTES = 8 << 20
# Smaller texts are counted wherever they occur; of larger ones, those that occur twice count once.
_SHARED_CHARS = 256
# Short keys are mostly shared, so this is rather more than they take.
_FEW_KEYS = 32
_MANY_KEYS = 10_000
_SHORT_KEY_CHARS = 8
_SHORT_KEY_BYTES = 32
# How many steps of `size_of` each takes.
_TEXT_STEPS = 2
_KEY_STEPS = 6
_CONTAINER_STEPS = 30
_FREE = {bool, type(None)}
_NUMBERS = {int, float} | _FREE
_SCALARS = {str} | _NUMBERS
# Python has one object for each of these integers.
_MIN_CACHED_INT = -5
_MAX_CACHED_INT = 256


def size_of(
    value: object,
    limit_bytes: int | None = None,
    seen: set[int] | None = None,
    *,
    max_steps: int | None = None,
) -> int:
    """Return the memory that `value` and what it refers to take, in bytes; parts that occur twice count once.

    Short texts and numbers in one list count each time, also where a list has the same one many times.

    Args:
        value: Values of JSON, dataclasses, and containers of these.
        limit_bytes: Stop as soon as the size is above this, and return what was counted so far.
        seen: Ids of what was counted already; those of large texts and of containers are added.
        max_steps: Stop before more steps than this, and return a size above `limit_bytes`, which is needed
            then. A step takes about 50 ns: a number is one, a text three, a key six, a container thirty.
    """
    seen = set() if seen is None else seen
    most_steps = maxsize if max_steps is None or limit_bytes is None else max_steps
    stack: list[Any] = [value]
    total = steps = 0
    while stack:
        item = stack.pop()
        kind = type(item)
        steps += 1
        if kind is str or kind is bytes:
            steps += _TEXT_STEPS
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
        elif id(item) not in seen:
            seen.add(id(item))
            total += getsizeof(item, 64)
            steps += _CONTAINER_STEPS
            if limit_bytes is not None and total > limit_bytes:
                break  # before the longest list is looked into
            if kind is dict:
                steps += _KEY_STEPS * len(item)
                if steps > most_steps:
                    break
                total += _size_of_keys(item, seen)
                item = item.values()
            elif kind is not list and kind is not tuple:
                total += _open(item, kind, stack)
                continue
            # The kinds of the values are looked at first, and decide how long the rest takes.
            steps += len(item)
            if steps > most_steps:
                break
            kinds = set(map(type, item))
            if not kinds <= _SCALARS:
                stack += item
            else:
                if str in kinds:
                    steps += _TEXT_STEPS * len(item)
                    if steps > most_steps:
                        break
                total += _size_of_scalars(item, kinds, seen)
        if steps > most_steps or (limit_bytes is not None and total > limit_bytes):
            break
    return max(total, (limit_bytes or 0) + 1) if steps > most_steps else total


def _size_of_keys(item: dict[Any, Any], seen: set[int]) -> int:
    if len(item) < _FEW_KEYS:
        try:
            if sum(map(len, item)) <= _SHORT_KEY_CHARS * len(item):
                return _SHORT_KEY_BYTES * len(item)
        except TypeError:
            pass  # not keys of JSON, which are text
    elif len(item) > _MANY_KEYS:
        # One by one they would take a tenth of a second. Within one object, no key is there twice.
        return sum(map(getsizeof, item)) + 8 * len(item)
    # The parser makes each short key once, however many objects have it.
    unseen = _take_unseen(item, seen)
    return sum(map(getsizeof, unseen)) + 8 * len(unseen)  # eight is what rounding up to 16 adds on average


def _take_unseen(texts: Collection[Any], seen: set[int]) -> Collection[Any]:
    """Return those texts whose ids are not in `seen`, each once, and add these ids."""
    ids = set(map(id, texts))
    if len(ids) < len(texts) or not ids.isdisjoint(seen):
        by_id = dict(zip(map(id, texts), texts, strict=True))
        texts = [by_id[number] for number in ids - seen]
    seen |= ids
    return texts


def _size_of_scalars(values: Collection[Any], kinds: set[type], seen: set[int]) -> int:
    """Return the size of texts and numbers of these kinds, all at once."""
    if kinds <= _FREE:
        return 0
    if kinds <= _NUMBERS:
        if float in kinds:
            return 32 * len(values)
        numbers = [number for number in values if number is not None] if type(None) in kinds else values
        return 0 if _MIN_CACHED_INT <= min(numbers) <= max(numbers) <= _MAX_CACHED_INT else 32 * len(values)
    texts = values if kinds == {str} else [value for value in values if type(value) is str]
    size = 32 * (len(values) - len(texts))
    # To look at each of them is what takes the time, so short ones are not told from long ones.
    if max(map(len, texts)) >= _SHARED_CHARS:
        texts = _take_unseen(texts, seen)
    return size + sum(map(getsizeof, texts)) + 8 * len(texts)


def _open(item: Any, kind: type, stack: list[Any]) -> int:
    """Put what a rarer container holds on `stack`. Return what is to be added to its size."""
    if isinstance(item, enum.Enum | type):
        return -getsizeof(item, 64)  # it exists anyway
    if names := _field_names(kind):
        stack.extend(getattr(item, name, None) for name in names)
    elif isinstance(item, Mapping):
        stack.append(dict(item))
    elif isinstance(item, set | frozenset):
        stack.extend(item)
    return 0


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    if not dataclasses.is_dataclass(kind):
        return ()
    return tuple(field.name for field in dataclasses.fields(kind))


def return_free_memory() -> None:
    """Give free memory that the allocator keeps back to the system, which takes glibc 3 ms for 40 MiB."""
    import ctypes  # slow to import, and of use to few sessions

    with suppress(AttributeError):  # other libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)


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

    Threat: a worker sends little and makes the host keep much: an empty list takes 3 bytes on the wire and 64
    in memory, and a session keeps its events until it is closed. Thousands of reports, displays or results
    then take the memory of the program that runs the session.

    Mechanism: whoever retains something charges its size in memory here, and gives it back when it lets go.
    When the total is above the limit, the holders are asked in turn to free the excess, the oldest first:
    long results move to files, then printed output and reports are dropped, then the values of results, then
    whole events. Charging is part of retaining, so nothing is kept uncharged.

    Race window: none. All of it happens on the session's event loop, without awaiting between charge and
    reclaim. Between the arrival of a frame and its charge the frame itself is in memory;
    `aisotools.sandbox.frames` bounds it.

    When it fails: a size that is estimated too low lets the process grow by that factor (a test compares the
    charge with the growth of a process); one that is too high drops events early. What is dropped is said
    where it is read.

    Attributes:
        limit_bytes: What it may retain.
        used_bytes: What it retains.
    """

    def __init__(
        self,
        limit_bytes: int = DEFAULT_RETAINED_BYTES,
        return_memory: Callable[[], None] = return_free_memory,
    ) -> None:
        """Start with nothing retained; `return_memory` gives what was freed back to the system."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._return_memory = return_memory
        self._freed_bytes = 0
        self._reclaimers: list[Callable[[int], None]] = []
        self._is_reclaiming = False

    def __repr__(self) -> str:
        return f"<RetentionBudget {self.used_bytes:,} of {self.limit_bytes:,} bytes>"

    @property
    def reason(self) -> str:
        """The reason for which something was dropped, in words."""
        return f"over the session's budget of {self.limit_bytes / (1 << 20):g} MiB"

    def on_excess(self, reclaim: Callable[[int], None]) -> None:
        """Have `reclaim` free at least so many bytes, if it can, whenever the budget is exceeded.

        Those that were added first are asked first.
        """
        self._reclaimers.append(reclaim)

    def charge(self, size_bytes: int) -> None:
        """Add what was just retained, and have something else freed if that is too much."""
        # Not when it is freed: whoever frees it may hold it for a moment more.
        if self._freed_bytes >= _RETURNED_BYTES:
            self._freed_bytes = 0
            self._return_memory()
        self.used_bytes += size_bytes
        if self.used_bytes > self.limit_bytes and not self._is_reclaiming:
            self._reclaim()

    def release(self, size_bytes: int) -> None:
        """Subtract what is retained no longer."""
        self.used_bytes -= size_bytes
        self._freed_bytes += size_bytes

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
