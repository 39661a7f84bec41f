"""How many sandboxes of a pool are live at once: who gets a place, and who has to give one up."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from aisotools.exceptions import SandboxError


class Tenant(Protocol):
    """Somebody who takes a place while it is live, and can be asked to give it up between two uses."""

    async def vacate(self, reason: str) -> None:
        """Give up the place; called only while nobody uses it."""


@dataclass(slots=True)
class _Place:
    """A place that is taken.

    Attributes:
        uses: How many calls are under way in it.
        since_s: When it was last used, on the monotonic clock.
        idle: Ends it when nobody uses it for long.
    """

    uses: int = 0
    since_s: float = 0.0
    idle: asyncio.TimerHandle | None = None


class Slots:
    """Hands out places, first come, first served; the one unused for longest makes room.

    Attributes:
        max_live: How many places there are.
    """

    def __init__(self, *, max_live: int, idle_s: float, wait_s: float) -> None:
        """Have `max_live` places.

        Args:
            max_live: How many places there are.
            idle_s: Seconds after which an unused place is given up.
            wait_s: Seconds that somebody waits for a place before that is an error.
        """
        self.max_live = max_live
        self._idle_s, self._wait_s = idle_s, wait_s
        self._taken: OrderedDict[Tenant, _Place] = OrderedDict()  # the one unused for longest comes first
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._leaving: dict[Tenant, asyncio.Task[None]] = {}
        self._promised = 0  # places of those who were called up and have not come yet
        self._closed = False

    def __repr__(self) -> str:
        return f"<Slots {self.live} of {self.max_live} taken, {len(self._waiting)} waiting>"

    @property
    def live(self) -> int:
        """How many places are taken, also by those who are leaving."""
        return len(self._taken) + len(self._leaving)

    def _full(self) -> bool:
        return self.live + self._promised >= self.max_live

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._waiting)

    def holds(self, tenant: Tenant) -> bool:
        """Whether `tenant` has a place."""
        return tenant in self._taken

    @asynccontextmanager
    async def use(self, tenant: Tenant) -> AsyncIterator[None]:
        """Have a place for as long as this is entered, and keep it afterwards until somebody needs it.

        Raises:
            SandboxError: If there was none for too long; the message says what would help.
        """
        place = await self._take(tenant)
        try:
            yield
        finally:
            self._release(tenant, place)

    async def _take(self, tenant: Tenant) -> _Place:
        await self._gone(tenant)
        place = self._taken.get(tenant)
        if place is None:
            if self._waiting or not self._room():
                await self._wait_for_room(tenant)
            place = self._taken.get(tenant)  # another call of the same tenant may have come first
            if place is None:
                place = self._taken[tenant] = _Place()
            else:
                self._wake()
        place.uses += 1
        if place.idle is not None:
            place.idle.cancel()
            place.idle = None
        return place

    async def _gone(self, tenant: Tenant) -> None:
        """Wait until `tenant` has left, if it is leaving: it cannot come back before."""
        while (leaving := self._leaving.get(tenant)) is not None:
            await asyncio.wait([leaving])

    def _room(self) -> bool:
        """Whether a place is free; if not, the one unused for longest is asked to leave."""
        if not self._full():
            return True
        if len(self._leaving) <= len(self._waiting):  # one leaves for each who waits
            tenant = next((one for one, place in self._taken.items() if not place.uses), None)
            if tenant is not None:
                self._evict(tenant, "another conversation needed its place")
        return False

    async def _wait_for_room(self, tenant: Tenant) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        came = False
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
                await self._gone(tenant)  # its own place may be what another call of it has to give up first
            came = True
        except TimeoutError:
            raise SandboxError(
                f"All {self.max_live} sandboxes of the pool were busy for {self._wait_s:g} s. Try again "
                "later, or raise max_live of the SessionPool.",
            ) from None
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif turn.done() and not turn.cancelled():
                self._promised -= 1
                if not came:
                    self._wake()  # the turn is passed on

    def _wake(self) -> None:
        """Call up those who wait, as far as there are places; where there are none, have some made."""
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()  # it was cancelled, and has not come round to leave by itself
            elif self._room():
                self._promised += 1
                self._waiting.popleft().set_result(None)
            else:
                return

    def _release(self, tenant: Tenant, place: _Place) -> None:
        place.uses -= 1
        place.since_s = time.monotonic()
        if place.uses or self._taken.get(tenant) is not place:
            return
        self._taken.move_to_end(tenant)
        if self._closed:
            return
        place.idle = asyncio.get_running_loop().call_later(self._idle_s, self._idle, tenant, place)
        self._wake()

    def _idle(self, tenant: Tenant, place: _Place) -> None:
        if self._taken.get(tenant) is place and not place.uses:
            self._evict(tenant, f"it was not used for {self._idle_s:g} s")

    def _evict(self, tenant: Tenant, reason: str) -> None:
        self._forget(tenant)
        task = self._leaving[tenant] = asyncio.get_running_loop().create_task(tenant.vacate(reason))
        task.add_done_callback(lambda _: self._left(tenant))

    def _left(self, tenant: Tenant) -> None:
        del self._leaving[tenant]
        self._wake()

    def _forget(self, tenant: Tenant) -> None:
        place = self._taken.pop(tenant, None)
        if place is not None and place.idle is not None:
            place.idle.cancel()

    async def leave(self, tenant: Tenant, reason: str) -> None:
        """Have `tenant` give up its place now, if it has one."""
        if tenant in self._taken:
            self._evict(tenant, reason)
        if (leaving := self._leaving.get(tenant)) is not None:
            await asyncio.wait([leaving])

    async def close(self) -> None:
        """Have everybody leave."""
        self._closed = True
        for tenant in tuple(self._taken):
            self._evict(tenant, "the pool was closed")
        while self._leaving:
            await asyncio.wait(list(self._leaving.values()))
