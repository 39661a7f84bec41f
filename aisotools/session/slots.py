"""A limited number of slots, for example of live sandboxes, that holders take, keep and give up.

A holder keeps its slot between two uses. When all slots are taken, the holder that has not used its slot for
the longest time is asked to give it up; those who wait get slots in the order in which they asked.
"""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from aisotools.core.concurrency import end_future, wait_for_tasks
from aisotools.core.exceptions import SandboxError

_EVICTION_S = 5.0
"""How long an eviction on another event loop is waited for that still runs."""


class SlotHolder(Protocol):
    """Takes a slot to use it, and can be asked to give it up between two uses."""

    async def vacate(self, reason: str) -> None:
        """Release what the slot stands for. Called during a use only after `SlotPool.evict` or `close`."""


@dataclass(slots=True)
class _HeldSlot:
    """A slot that is taken.

    Attributes:
        uses: Number of uses under way.
        idle_timer: Evicts the holder when the slot was not used for long; None during a use.
    """

    uses: int = 0
    idle_timer: asyncio.TimerHandle | None = None


class SlotPool:
    """Grants slots in the order of the requests, and evicts the least recently used holder when none is free.

    Attributes:
        max_live: Number of slots.
    """

    def __init__(self, *, max_live: int, idle_s: float, wait_s: float) -> None:
        """Start with all slots free.

        Args:
            max_live: Number of slots.
            idle_s: Seconds after which the holder of an unused slot is evicted.
            wait_s: Seconds to wait for a slot before that is an error.
        """
        self.max_live = max_live
        self._idle_s, self._wait_s = idle_s, wait_s
        self._held: OrderedDict[SlotHolder, _HeldSlot] = OrderedDict()  # least recently used first
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._evictions: dict[SlotHolder, asyncio.Task[None]] = {}
        self._granted = 0  # slots granted to waiters that have not taken them yet
        self._closed = False

    def __repr__(self) -> str:
        return f"<SlotPool {self.live} of {self.max_live} taken, {len(self._waiting)} waiting>"

    @property
    def live(self) -> int:
        """The number of slots that are taken, including those of holders being evicted."""
        return len(self._held) + len(self._evictions)

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a slot."""
        return len(self._waiting)

    def holds(self, holder: SlotHolder) -> bool:
        """Return whether `holder` has a slot."""
        return holder in self._held

    def take_at_once(self, holder: SlotHolder) -> Callable[[], None] | None:
        """Begin to use a slot that `holder` has, or that is free. Return what ends the use; None without one.

        Unlike `use` it neither waits nor evicts anybody.
        """
        is_free = not self._waiting and self.live + self._granted < self.max_live
        if self._closed or not (holder in self._held or (is_free and holder not in self._evictions)):
            return None
        slot = self._held.setdefault(holder, _HeldSlot())
        self._begin_use(slot)
        return functools.partial(self._release, holder, slot)

    @asynccontextmanager
    async def use(self, holder: SlotHolder) -> AsyncIterator[None]:
        """Use a slot within the context. The holder keeps it afterwards until another holder needs it.

        Raises:
            SandboxError: If no slot became free in time; the message says what would help.
        """
        slot = await self._take(holder)
        try:
            yield
        finally:
            self._release(holder, slot)

    async def _take(self, holder: SlotHolder) -> _HeldSlot:
        await self._wait_evicted(holder)
        self._refuse_if_closed()
        slot = self._held.get(holder)
        if slot is None:
            if self._waiting or not self._make_room():
                await self._wait_for_slot(holder)
                self._refuse_if_closed()
            slot = self._held.get(holder)  # Race: another use by the same holder may have taken one
            if slot is None:
                slot = self._held[holder] = _HeldSlot()
            else:
                self._grant_slots()
        self._begin_use(slot)
        return slot

    @staticmethod
    def _begin_use(slot: _HeldSlot) -> None:
        slot.uses += 1
        if slot.idle_timer is not None:
            slot.idle_timer.cancel()
            slot.idle_timer = None

    def _refuse_if_closed(self) -> None:
        # Case: a branch of a conversation, which is a session of its own.
        if self._closed:
            raise SandboxError("The pool of sandboxes is closed. Open a new one.")

    async def _wait_evicted(self, holder: SlotHolder) -> None:
        """Wait until no eviction of `holder` is under way. It cannot take a slot before."""
        while (eviction := self._evictions.get(holder)) is not None:
            await asyncio.wait([eviction])

    def _make_room(self) -> bool:
        """Return whether a slot is free. If none is, evict the holder that is unused for the longest time."""
        if self.live + self._granted < self.max_live:
            return True
        if len(self._evictions) <= len(self._waiting):  # one eviction per waiter
            holder = next((one for one, slot in self._held.items() if not slot.uses), None)
            if holder is not None:
                self._start_eviction(holder, "another conversation needed its place")
        return False

    async def _wait_for_slot(self, holder: SlotHolder) -> None:
        grant: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(grant)
        used = False
        try:
            async with asyncio.timeout(self._wait_s):
                await grant
                # Race: the holder itself may have been evicted for the waiter before it.
                await self._wait_evicted(holder)
            used = True
        except TimeoutError:
            raise SandboxError(
                f"All {self.max_live} sandboxes of the pool were busy for {self._wait_s:g} s. Try again "
                "later, or raise max_live of the SessionPool.",
            ) from None
        finally:
            if grant in self._waiting:
                self._waiting.remove(grant)
            elif grant.done() and not grant.cancelled():
                self._granted -= 1
                if not used:
                    self._grant_slots()  # the next waiter gets the slot instead

    def _grant_slots(self) -> None:
        """Grant free slots to waiters. Without a free slot, evict an unused holder for them."""
        while self._waiting:
            if self._waiting[0].done():
                # Cancelled, and its task has not run since to remove it.
                self._waiting.popleft()
            elif self._make_room():
                self._granted += 1
                self._waiting.popleft().set_result(None)
            else:
                return

    def _release(self, holder: SlotHolder, slot: _HeldSlot) -> None:
        slot.uses -= 1
        if slot.uses or self._held.get(holder) is not slot:
            return
        self._held.move_to_end(holder)
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        slot.idle_timer = loop.call_later(self._idle_s, self._evict_idle, holder, slot)
        self._grant_slots()

    def _evict_idle(self, holder: SlotHolder, slot: _HeldSlot) -> None:
        if self._held.get(holder) is slot and not slot.uses:
            self._start_eviction(holder, f"it was not used for {self._idle_s:g} s")

    def _start_eviction(self, holder: SlotHolder, reason: str) -> None:
        slot = self._held.pop(holder, None)
        if slot is not None and slot.idle_timer is not None:
            slot.idle_timer.cancel()
        task = self._evictions[holder] = asyncio.get_running_loop().create_task(holder.vacate(reason))
        task.add_done_callback(functools.partial(self._on_evicted, holder))

    def _on_evicted(self, holder: SlotHolder, eviction: asyncio.Task[None]) -> None:
        if self._evictions.get(holder) is eviction:
            del self._evictions[holder]
            self._grant_slots()

    async def _finish_evictions(self, holders: Collection[SlotHolder], reason: str) -> None:
        """Wait until those of `holders` that are being evicted have given up what their slots stand for."""
        while evictions := {task: one for one, task in self._evictions.items() if one in holders}:
            unfinished = await wait_for_tasks(evictions, _EVICTION_S)
            for eviction, holder in evictions.items():
                if eviction not in unfinished:
                    self._on_evicted(holder, eviction)  # Race: its loop may have stopped before it did that
                elif self._evictions.get(holder, eviction) is eviction:
                    # Case: the loop on which it was begun has been stopped or has cancelled it, as by the end
                    # of `asyncio.run`. It is begun once more here.
                    self._start_eviction(holder, reason)

    async def evict(self, holder: SlotHolder, reason: str) -> None:
        """Free the slot of `holder`, also during a use. Without one nothing happens."""
        if holder in self._held:
            self._start_eviction(holder, reason)
        await self._finish_evictions((holder,), reason)

    async def close(self) -> None:
        """Evict all holders. Nobody is given a slot after this."""
        self._closed = True
        for grant in self._waiting:
            end_future(grant, SandboxError("The pool of sandboxes was closed meanwhile."))
        reason = "the pool was closed"
        for holder in tuple(self._held):
            self._start_eviction(holder, reason)
        await self._finish_evictions(tuple(self._evictions), reason)
