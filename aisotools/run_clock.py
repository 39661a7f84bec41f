"""The time of a run: on the clock, and without what a person took to answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from aisotools.budgets import Budgets


class RunClock:
    """Measures one run, and calls off what would outlast its budgets."""

    def __init__(self, budgets: Budgets) -> None:
        """Start measuring, on the running loop's clock."""
        self._budgets = budgets
        self._now = asyncio.get_running_loop().time
        self._began_s = self._now()
        self._waited_s = 0.0
        self._waiting = 0
        self._since_s = 0.0
        self._limit: asyncio.Timeout | None = None

    def __repr__(self) -> str:
        return f"<RunClock {self.wall_s:.1f} s, of these {self.working_s:.1f} s at work>"

    @property
    def wall_s(self) -> float:
        """Seconds since the start."""
        return self._now() - self._began_s

    @property
    def working_s(self) -> float:
        """Seconds since the start in which no person was waited for."""
        waiting_s = self._now() - self._since_s if self._waiting else 0.0
        return self.wall_s - self._waited_s - waiting_s

    def pause(self) -> None:
        """A person is waited for from now on; several may be at a time."""
        if self._waiting == 0:
            self._since_s = self._now()
        self._waiting += 1
        self._reset()

    def resume(self) -> None:
        """One person answered."""
        self._waiting -= 1
        if self._waiting == 0:
            self._waited_s += self._now() - self._since_s
        self._reset()

    @contextlib.contextmanager
    def waiting_for_person(self) -> Iterator[None]:
        """A person is waited for inside."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    @contextlib.asynccontextmanager
    async def limited(self) -> AsyncIterator[None]:
        """What is awaited inside is cancelled when a budget of time is used up.

        Raises:
            TimeoutError: Then; `spent` says which.
        """
        async with asyncio.timeout_at(self._deadline_s()) as limit:
            self._limit = limit
            try:
                yield
            finally:
                self._limit = None

    def spent(self) -> str:
        """Which budget of time is used up, in words; empty when none is."""
        wall_s, working_s = self._budgets.wall_s, self._budgets.working_s
        if wall_s is not None and self.wall_s >= wall_s:
            return f"the budget of {wall_s:g} s is used up"
        if working_s is not None and self.working_s >= working_s:
            return f"the budget of {working_s:g} s of work is used up"
        return ""

    def _deadline_s(self) -> float | None:
        left = []
        if self._budgets.wall_s is not None:
            left.append(self._budgets.wall_s - self.wall_s)
        if self._budgets.working_s is not None and not self._waiting:
            left.append(self._budgets.working_s - self.working_s)
        return self._now() + min(left) if left else None

    def _reset(self) -> None:
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(self._deadline_s())
