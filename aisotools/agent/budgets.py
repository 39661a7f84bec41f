"""Budgets of a run: what it may use up (`Budgets`), and how much time it has used (`RunClock`)."""

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
        tokens: Tokens read and written, including those of delegated runs.
        cost: US dollars, including delegated runs. A model without a known price cannot run under it.
        wall_s: Seconds since the start of the run.
        working_s: Seconds since the start, without the time in which a person was asked.
        context_tokens: Tokens of the conversation that the model reads; its own window by default.
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
        """Return which limit forbids a further request, in words; empty if none does."""
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
    """The time of one run; cancels work that would exceed a time budget."""

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._now = asyncio.get_running_loop().time
        self._started_s = self._now()
        self._paused_s = 0.0  # in pauses that are over
        self._pauses = 0  # now; several people may be asked at a time
        self._pause_started_s = 0.0
        self._timeout: asyncio.Timeout | None = None

    def __repr__(self) -> str:
        return f"<RunClock {self.wall_s:.1f} s, of these {self.working_s:.1f} s at work>"

    @property
    def wall_s(self) -> float:
        """Seconds since the start."""
        return self._now() - self._started_s

    @property
    def working_s(self) -> float:
        """Seconds since the start, without the time in which a person was asked."""
        current_pause_s = self._now() - self._pause_started_s if self._pauses else 0.0
        return self.wall_s - self._paused_s - current_pause_s

    def pause(self) -> None:
        """Stop counting working time because a person is asked. Pauses nest: each needs its own `resume`."""
        if self._pauses == 0:
            self._pause_started_s = self._now()
        self._pauses += 1
        self._reset()

    def resume(self) -> None:
        """End one pause."""
        self._pauses -= 1
        if self._pauses == 0:
            self._paused_s += self._now() - self._pause_started_s
        self._reset()

    @contextlib.contextmanager
    def waiting_for_person(self) -> Iterator[None]:
        """Pause while the body runs."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    @contextlib.asynccontextmanager
    async def limited(self) -> AsyncIterator[None]:
        """Cancel the body when a time budget is used up; pauses move the deadline.

        Raises:
            TimeoutError: If a budget was used up; `spent` says which.
        """
        async with asyncio.timeout_at(self._deadline_s()) as timeout:
            self._timeout = timeout
            try:
                yield
            finally:
                self._timeout = None

    def spent(self) -> str:
        """Return which time budget is used up, in words; empty if none is."""
        wall_s, working_s = self._budgets.wall_s, self._budgets.working_s
        if wall_s is not None and self.wall_s >= wall_s:
            return f"the budget of {wall_s:g} s is used up"
        if working_s is not None and self.working_s >= working_s:
            return f"the budget of {working_s:g} s of work is used up"
        return ""

    def _deadline_s(self) -> float | None:
        remaining_s = []
        if self._budgets.wall_s is not None:
            remaining_s.append(self._budgets.wall_s - self.wall_s)
        if self._budgets.working_s is not None and not self._pauses:
            remaining_s.append(self._budgets.working_s - self.working_s)
        return self._now() + min(remaining_s) if remaining_s else None

    def _reset(self) -> None:
        # Race: the deadline may have passed before this pause; an expired timeout cannot be rescheduled.
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(self._deadline_s())
