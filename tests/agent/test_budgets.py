"""Budgets refuse nonsense and say which limit is used up; the clock counts time without what people took."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aisotools.agent.budgets import Budgets, RunClock
from aisotools.core.exceptions import UsageError
from aisotools.core.messages import Usage


@pytest.mark.parametrize(
    "fields",
    [
        {"steps": 0},
        {"steps": -1},
        {"steps": True},
        {"steps": "3"},
        {"tokens": 0},
        {"cost": float("nan")},
        {"wall_s": 0},
        {"working_s": -0.1},
        {"calls": -1},
        {"retries": -1},
        {"retry_wait_s": -0.5},
        {"same_failures": None},
        {"retries": None},
    ],
)
def test_an_invalid_limit_is_refused(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(UsageError, match=f"{name}="):
        Budgets(**fields)


def test_limits_may_be_lifted_or_zero_where_that_means_something() -> None:
    lifted = Budgets(steps=None, calls=None, tokens=None, cost=None, wall_s=None, working_s=None)
    assert lifted.spent(steps=10**9, usage=Usage(input_tokens=10**9, cost=10.0**9)) == ""
    assert Budgets(calls=0, retries=0, retry_wait_s=0).calls == 0


@pytest.mark.parametrize(
    ("budgets", "steps", "usage", "reason"),
    [
        (Budgets(steps=3), 2, Usage(), ""),
        (Budgets(steps=3), 3, Usage(), "the budget of 3 steps is used up"),
        (Budgets(tokens=10), 1, Usage(input_tokens=5, output_tokens=4), ""),
        (
            Budgets(tokens=10),
            1,
            Usage(input_tokens=5, output_tokens=5),
            "the budget of 10 tokens is used up (10 so far)",
        ),
        (Budgets(cost=1), 1, Usage(requests=1, cost=0.99), ""),
        (Budgets(cost=1), 1, Usage(requests=1, cost=1.0), "the budget of $1 is used up ($1.0000 so far)"),
        (Budgets(cost=1), 0, Usage(requests=0, cost=None), ""),
        (
            Budgets(cost=1),
            1,
            Usage(requests=1, cost=None),
            "the price of this model is not known, so a budget of $1 cannot be kept",
        ),
    ],
)
def test_the_limit_that_is_used_up_is_named(budgets: Budgets, steps: int, usage: Usage, reason: str) -> None:
    assert budgets.spent(steps=steps, usage=usage) == reason


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
async def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", clock)
    return clock


async def test_working_time_stands_still_while_anybody_is_asked(time: Time) -> None:
    clock = RunClock(Budgets())
    time.now_s += 1
    clock.pause()
    time.now_s += 2
    clock.pause()  # a second question beside the first
    time.now_s += 4
    assert (clock.wall_s, clock.working_s) == (7, 1)
    clock.resume()
    time.now_s += 8
    assert (clock.wall_s, clock.working_s) == (15, 1)
    clock.resume()
    time.now_s += 16
    assert (clock.wall_s, clock.working_s) == (31, 17)


async def test_the_pause_ends_when_its_body_raises(time: Time) -> None:
    clock = RunClock(Budgets())

    def interrupted() -> None:
        with clock.waiting_for_person():
            time.now_s += 3
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    time.now_s += 1
    assert clock.working_s == 1


@pytest.mark.parametrize(
    ("budgets", "at_s", "reason"),
    [
        (Budgets(), 1e9, ""),
        (Budgets(wall_s=5), 4.9, ""),
        (Budgets(wall_s=5), 5.0, "the budget of 5 s is used up"),
        (Budgets(working_s=5), 4.9, ""),
        (Budgets(working_s=5), 5.0, "the budget of 5 s of work is used up"),
        (Budgets(wall_s=6, working_s=5), 5.5, "the budget of 5 s of work is used up"),
    ],
)
async def test_the_deadline_that_has_passed_is_named(
    time: Time, budgets: Budgets, at_s: float, reason: str
) -> None:
    clock = RunClock(budgets)
    time.now_s += at_s
    assert clock.spent() == reason


async def turns() -> None:
    """Let the loop handle what is due."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_work_is_cancelled_at_the_deadline(time: Time) -> None:
    clock = RunClock(Budgets(working_s=5))

    async def work() -> None:
        async with clock.limited():
            time.now_s += 4.9
            await turns()
            time.now_s += 0.2
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await work()
    assert clock.spent() == "the budget of 5 s of work is used up"


async def test_a_pause_moves_the_deadline_of_working_time(time: Time) -> None:
    clock = RunClock(Budgets(working_s=5))

    async def work() -> None:
        async with clock.limited():
            with clock.waiting_for_person():
                time.now_s += 1_000
                await turns()
            time.now_s += 4.9
            await turns()
            time.now_s += 0.2
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await work()
    assert clock.wall_s == pytest.approx(1_005.1)


async def test_the_wall_goes_on_while_a_person_is_asked(time: Time) -> None:
    clock = RunClock(Budgets(wall_s=5))

    async def work() -> None:
        async with clock.limited():
            with clock.waiting_for_person():
                time.now_s += 5.1
                await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await work()
    assert clock.spent() == "the budget of 5 s is used up"


async def test_without_a_time_budget_nothing_is_cancelled(time: Time) -> None:
    clock = RunClock(Budgets())
    finished = False
    async with clock.limited():
        time.now_s += 1_000_000
        with clock.waiting_for_person():
            await turns()
        await turns()
        finished = True
    assert finished
    assert clock.spent() == ""
