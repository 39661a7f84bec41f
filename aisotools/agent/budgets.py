"""How much one run of an agent may use up, and whether it has.

The time of a run: on the clock, and without what a person took to answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from aisotools.core.exceptions import UsageError
from aisotools.core.messages import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Limits of one run; None means no limit.

    Attributes:
        steps: Answers asked of the model.
        calls: Calls of tools.
        tokens: Tokens read and written, those of delegated runs included.
        cost: US dollars, likewise. A model whose price is not known cannot run under it.
        wall_s: Seconds on the clock.
        working_s: Seconds without those in which a person was waited for.
        context_tokens: How much of the conversation the model is shown; the model's own window without it.
        same_failures: How often the very same call may fail before the run is taken to go in circles.
        retries: How often a request is tried again when the provider failed.
        retry_wait_s: Seconds before the first such try, unless the provider says; doubled each time.
    """

    steps: int | None = 400
    calls: int | None = 2_000
    tokens: int | None = None
    cost: float | None = None
    wall_s: float | None = None
    working_s: float | None = None
    context_tokens: int | None = None
    same_failures: int = 3
    retries: int = 3
    retry_wait_s: float = 0.5

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in {"retries", "retry_wait_s", "calls"} else 1e-9
            optional = field.default is None or field.name in {"steps", "calls"}
            if value is None and optional:
                continue
            wrong = isinstance(value, bool) or not isinstance(value, int | float)
            if wrong or not value >= least:
                raise UsageError(f"Budgets({field.name}={value!r}): give a number of at least {least:g}.")

    def spent(self, *, steps: int, usage: Usage) -> str:
        """Which limit stands against a further request, in words; empty when none does."""
        if self.steps is not None and steps >= self.steps:
            return f"the budget of {self.steps} steps is used up"
        if self.tokens is not None and usage.tokens >= self.tokens:
            return f"the budget of {self.tokens} tokens is used up ({usage.tokens} so far)"
        if self.cost is not None and usage.requests and usage.cost is None:
            return f"the price of this model is not known, so a budget of ${self.cost:g} cannot be kept"
        if self.cost is not None and (usage.cost or 0.0) >= self.cost:
            return f"the budget of ${self.cost:g} is used up (${usage.cost or 0.0:.4f} so far)"
        return ""


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
