"""Who may use the worker's main thread when: a fair queue of three kinds of call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aisotools.contracts import Concurrency


class Turns:
    """Hands out turns in the order they were asked for.

    `exclusive` runs alone. `main` runs with at most itself on the main thread, beside any number of
    `overlap` ones. Nobody overtakes, so an exclusive call is never starved by a stream of others.
    """

    def __init__(self) -> None:
        """Start with nobody running."""
        self._running = {"exclusive": 0, "main": 0, "overlap": 0}
        self._waiting: deque[tuple[Concurrency, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def turn(self, kind: Concurrency) -> AsyncIterator[None]:
        """Hold a turn of this kind."""
        if self._waiting or not self._free(kind):
            await self._wait(kind)
        else:
            self._running[kind] += 1
        try:
            yield
        finally:
            self._running[kind] -= 1
            self._admit()

    async def _wait(self, kind: Concurrency) -> None:
        place = (kind, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        try:
            await place[1]
        except asyncio.CancelledError:
            if place[1].done() and not place[1].cancelled():
                self._running[kind] -= 1  # it was admitted just as it gave up
            else:
                self._waiting.remove(place)
            self._admit()
            raise

    def _free(self, kind: Concurrency) -> bool:
        if self._running["exclusive"]:
            return False
        if kind == "overlap":
            return True
        if kind == "main":
            return not self._running["main"]
        return not self._running["main"] and not self._running["overlap"]

    def _admit(self) -> None:
        while self._waiting and self._free(self._waiting[0][0]):
            kind, future = self._waiting.popleft()
            if not future.done():
                self._running[kind] += 1
                future.set_result(None)
