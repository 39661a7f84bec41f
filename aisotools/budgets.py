"""How much one run of an agent may use up, and whether it has."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from aisotools.exceptions import UsageError
from aisotools.messages import Usage


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
