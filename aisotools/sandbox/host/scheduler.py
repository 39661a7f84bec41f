"""Who may use the worker's main thread when: a fair queue of three kinds of call."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from types import TracebackType

from aisotools.core.protocols import Concurrency


class CallScheduler:
    """Hands out turns in the order they were asked for.

    `exclusive` runs alone. `main` runs with at most itself on the main thread, beside any number of
    `overlap` ones. Nobody overtakes, so an exclusive call is never starved by a stream of others.
    """

    def __init__(self) -> None:
        """Start with nobody running."""
        self._running: Counter[Concurrency] = Counter()
        self._waiting: deque[tuple[Concurrency, asyncio.Future[None]]] = deque()

    def __repr__(self) -> str:
        running = ", ".join(f"{n} {kind}" for kind, n in self._running.items() if n) or "nobody"
        return f"<Turns: {running} running, {len(self._waiting)} waiting>"

    def turn(self, kind: Concurrency) -> CallSlot:
        """A turn of this kind: `async with` waits for it and holds it."""
        return CallSlot(self, kind)

    async def take(self, kind: Concurrency) -> None:
        """Wait for a turn; whoever got one gives it back with `release`."""
        if not self._waiting and self._free(kind):
            self._running[kind] += 1
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((kind, admitted))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.cancelled():
                self._admit()  # who waits behind may go now
            else:
                self.release(kind)  # it was admitted just as it gave up
            raise

    def release(self, kind: Concurrency) -> None:
        """Give a turn back."""
        self._running[kind] -= 1
        self._admit()

    def _free(self, kind: Concurrency) -> bool:
        running = self._running
        if running["exclusive"] or (running["main"] and kind != "overlap"):
            return False
        return kind != "exclusive" or not running["overlap"]

    def _admit(self) -> None:
        while self._waiting:
            kind, admitted = self._waiting[0]
            if not admitted.done():
                if not self._free(kind):
                    return
                self._running[kind] += 1
                admitted.set_result(None)
            self._waiting.popleft()


class CallSlot:
    """One turn, as a context."""

    __slots__ = ("_kind", "_turns")

    def __init__(self, turns: CallScheduler, kind: Concurrency) -> None:
        """Take a turn of this kind from `turns` when entered."""
        self._turns, self._kind = turns, kind

    async def __aenter__(self) -> None:
        await self._turns.take(self._kind)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turns.release(self._kind)
