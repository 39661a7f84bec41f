"""Fair scheduling of calls on a worker's main thread.

A call is `exclusive` (runs alone), `main` (needs the main thread, one at a time) or `overlap` (runs beside
`main` and other `overlap` calls). Slots are granted strictly in the order of request, so a stream of
overlapping calls cannot starve an exclusive one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from types import TracebackType

from aisotools.core.protocols import Concurrency


class CallScheduler:
    """Grants slots for calls in the order in which they were requested."""

    def __init__(self) -> None:
        self._running: Counter[Concurrency] = Counter()
        self._waiters: deque[tuple[Concurrency, asyncio.Future[None]]] = deque()

    def __repr__(self) -> str:
        running = ", ".join(f"{n} {kind}" for kind, n in self._running.items() if n) or "nothing"
        return f"<CallScheduler: {running} running, {len(self._waiters)} waiting>"

    def slot(self, kind: Concurrency) -> CallSlot:
        """Return a context manager: entering it waits for a slot, leaving it releases the slot."""
        return CallSlot(self, kind)

    async def acquire(self, kind: Concurrency) -> None:
        """Wait for a slot of this kind. The caller must `release` it."""
        # A free worker is not enough: whoever waits already comes first, even if this call could run beside
        # it.
        if not self._waiters and self._is_free_for(kind):
            self._running[kind] += 1
            return
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((kind, slot))
        try:
            await slot
        except asyncio.CancelledError:
            if slot.cancelled():
                # Cancelled while queued. This entry may have been all that held back the callers behind it:
                # a queued `exclusive` blocks `overlap` calls that are compatible with what runs now.
                self._wake_waiters()
            else:
                # Race: the slot was granted and the task cancelled in the same loop iteration. Nobody will
                # run in this slot, so hand it back; otherwise it stays taken for ever.
                self.release(kind)
            raise

    def release(self, kind: Concurrency) -> None:
        """Return a slot and grant what has become possible."""
        self._running[kind] -= 1
        if self._waiters:
            self._wake_waiters()

    def _is_free_for(self, kind: Concurrency) -> bool:
        running = self._running
        if running["exclusive"]:
            return False
        if kind == "exclusive":
            return not running["main"] and not running["overlap"]
        return kind == "overlap" or not running["main"]

    def _wake_waiters(self) -> None:
        """Grant slots from the head of the queue while they are compatible; drop cancelled waiters."""
        while self._waiters:
            kind, slot = self._waiters[0]
            # A waiter that is done was cancelled, and its task has not run yet to say so. Granting it would
            # leak the slot.
            if not slot.done():
                if not self._is_free_for(kind):
                    return
                # Count the slot as taken now, not when the waiter runs: another caller may come in between.
                self._running[kind] += 1
                slot.set_result(None)
            self._waiters.popleft()


class CallSlot:
    """One slot, as an async context manager."""

    __slots__ = ("_kind", "_scheduler")

    def __init__(self, scheduler: CallScheduler, kind: Concurrency) -> None:
        self._scheduler = scheduler
        self._kind = kind

    async def __aenter__(self) -> None:
        await self._scheduler.acquire(self._kind)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scheduler.release(self._kind)
