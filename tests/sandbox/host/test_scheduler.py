from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st

from aisotools.core.protocols import Concurrency
from aisotools.sandbox.host.scheduler import CallScheduler

KINDS: tuple[Concurrency, ...] = ("exclusive", "main", "overlap")
LOOP_ROUNDS = 6


@dataclass
class Callers:
    """Runs callers through a `CallScheduler` and checks at every moment that they may run together."""

    scheduler: CallScheduler = field(default_factory=CallScheduler)
    running: list[tuple[int, Concurrency]] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    exits: dict[int, asyncio.Event] = field(default_factory=dict)
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    kinds: dict[int, Concurrency] = field(default_factory=dict)

    def add(self, kind: Concurrency) -> int:
        number = len(self.tasks)
        self.exits[number] = asyncio.Event()
        self.kinds[number] = kind
        self.tasks[number] = asyncio.get_running_loop().create_task(self._call(number, kind))
        return number

    async def _call(self, number: int, kind: Concurrency) -> None:
        async with self.scheduler.slot(kind):
            self.running.append((number, kind))
            self.started.append(number)
            self.check()
            try:
                await self.exits[number].wait()
            finally:
                self.running.remove((number, kind))

    def check(self) -> None:
        kinds = [kind for _, kind in self.running]
        assert "exclusive" not in kinds or len(kinds) == 1
        assert kinds.count("main") <= 1

    async def settle(self) -> None:
        for _ in range(LOOP_ROUNDS):
            await asyncio.sleep(0)

    async def finish(self) -> None:
        for event in self.exits.values():
            event.set()
        for _ in self.tasks:  # in each turn at least one of them ends
            await self.settle()
        waiting = [number for number, task in self.tasks.items() if not task.done()]
        for number in waiting:
            self.tasks[number].cancel()
        assert not waiting, "nobody holds a slot any more, and still these calls wait"
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def assert_idle(scheduler: CallScheduler) -> None:
    """No slot is held and nobody waits: every kind of call starts without waiting."""
    assert repr(scheduler) == "<CallScheduler: nothing running, 0 waiting>"
    for kind in KINDS:
        task = asyncio.create_task(scheduler.acquire(kind))
        await asyncio.sleep(0)
        assert task.done(), f"a slot is held, so {kind!r} has to wait"
        scheduler.release(kind)


steps = st.lists(
    st.tuples(st.sampled_from(["add", "exit", "cancel", "settle"]), st.integers(0, 100)), max_size=60
)


@settings(max_examples=2 * settings().max_examples)
@given(steps)
def test_the_rules_hold_for_any_history(plan: list[tuple[str, int]]) -> None:
    async def play() -> None:
        callers, cancelled = Callers(), set()
        for action, number in plan:
            if action == "add":
                callers.add(KINDS[number % 3])
            elif action == "settle":
                await callers.settle()
            elif callers.tasks:
                chosen = number % len(callers.tasks)
                if action == "exit":
                    callers.exits[chosen].set()
                else:
                    cancelled.add(chosen)
                    callers.tasks[chosen].cancel()
            callers.check()
        await callers.finish()
        assert not callers.running
        assert set(callers.tasks) - cancelled <= set(callers.started)
        for position, later in enumerate(callers.started):  # nobody overtakes whom it would keep waiting
            for earlier in callers.started[position + 1 :]:
                kinds = {callers.kinds[earlier], callers.kinds[later]}
                assert earlier > later or kinds <= {"main", "overlap"}
        await assert_idle(callers.scheduler)

    asyncio.run(play())


@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
async def test_compatible_calls_run_together(first: Concurrency, second: Concurrency) -> None:
    callers = Callers()
    callers.add(first)
    await callers.settle()
    callers.add(second)
    await callers.settle()
    together = "exclusive" not in {first, second} and "overlap" in {first, second}
    assert callers.started == ([0, 1] if together else [0])
    callers.exits[0].set()
    await callers.settle()
    assert callers.started == [0, 1]
    await callers.finish()
    await assert_idle(callers.scheduler)


async def test_overlapping_calls_run_beside_a_main_one() -> None:
    callers = Callers()
    for kind in ("main", "overlap", "overlap"):
        callers.add(kind)
    await callers.settle()
    assert callers.started == [0, 1, 2]
    callers.add("main")
    await callers.settle()
    assert callers.started == [0, 1, 2]
    await callers.finish()


async def test_an_exclusive_call_is_not_starved() -> None:
    callers = Callers()
    callers.add("overlap")
    await callers.settle()
    exclusive, late = callers.add("exclusive"), callers.add("overlap")
    await callers.settle()
    assert callers.started == [0]
    callers.exits[0].set()
    await callers.settle()
    assert callers.started == [0, exclusive]
    callers.exits[exclusive].set()
    await callers.settle()
    assert callers.started == [0, exclusive, late]
    await callers.finish()


async def test_one_release_starts_every_compatible_waiter_up_to_the_first_incompatible() -> None:
    callers = Callers()
    callers.add("exclusive")
    await callers.settle()
    for kind in ("overlap", "main", "overlap", "exclusive", "overlap"):
        callers.add(kind)
    await callers.settle()
    callers.exits[0].set()
    await callers.settle()
    assert callers.started == [0, 1, 2, 3]
    assert repr(callers.scheduler) == "<CallScheduler: 2 overlap, 1 main running, 2 waiting>"
    await callers.finish()


async def test_a_slot_granted_to_a_waiter_is_taken_before_the_waiter_runs() -> None:
    scheduler = CallScheduler()
    await scheduler.acquire("exclusive")
    waiter = asyncio.create_task(scheduler.acquire("exclusive"))
    await asyncio.sleep(0)
    scheduler.release("exclusive")
    newcomer = asyncio.create_task(scheduler.acquire("exclusive"))
    await waiter
    await asyncio.sleep(0)
    assert not newcomer.done()
    scheduler.release("exclusive")
    await newcomer
    scheduler.release("exclusive")
    await assert_idle(scheduler)


# ---- cancellation: each of the two branches of `acquire`, and what either would leak


async def test_cancelled_while_queued_wakes_the_callers_behind() -> None:
    """`exclusive` waits for an `overlap` that stays; its cancellation alone must start the next `overlap`."""
    scheduler = CallScheduler()
    await scheduler.acquire("overlap")
    queued = asyncio.create_task(scheduler.acquire("exclusive"))
    await asyncio.sleep(0)
    behind = asyncio.create_task(scheduler.acquire("overlap"))
    await asyncio.sleep(0)
    assert not behind.done()
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    for _ in range(LOOP_ROUNDS):
        await asyncio.sleep(0)
    assert behind.done(), "nobody was woken when the caller ahead was cancelled"
    scheduler.release("overlap")
    scheduler.release("overlap")
    await assert_idle(scheduler)


@pytest.mark.parametrize("kind", KINDS)
async def test_granted_and_cancelled_in_the_same_iteration_releases_the_slot(kind: Concurrency) -> None:
    scheduler = CallScheduler()
    await scheduler.acquire("exclusive")
    caller = asyncio.create_task(scheduler.acquire(kind))
    await asyncio.sleep(0)
    scheduler.release("exclusive")  # grants the slot: the future is done, the task has not run
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await assert_idle(scheduler)


async def test_granted_and_cancelled_hands_the_slot_to_the_next() -> None:
    scheduler = CallScheduler()
    await scheduler.acquire("exclusive")
    caller = asyncio.create_task(scheduler.acquire("exclusive"))
    behind = asyncio.create_task(scheduler.acquire("exclusive"))
    await asyncio.sleep(0)
    scheduler.release("exclusive")
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    for _ in range(LOOP_ROUNDS):
        await asyncio.sleep(0)
    assert behind.done(), "the slot was not handed on"
    scheduler.release("exclusive")
    await assert_idle(scheduler)


async def test_a_cancelled_waiter_is_not_granted_a_slot_before_its_task_has_run() -> None:
    scheduler = CallScheduler()
    await scheduler.acquire("exclusive")
    caller = asyncio.create_task(scheduler.acquire("exclusive"))
    await asyncio.sleep(0)
    caller.cancel()  # the future is cancelled, the task still stands in the queue
    scheduler.release("exclusive")
    with pytest.raises(asyncio.CancelledError):
        await caller
    await assert_idle(scheduler)


async def test_an_error_in_the_call_releases_its_slot() -> None:
    scheduler = CallScheduler()
    with pytest.raises(ZeroDivisionError):
        async with scheduler.slot("main"):
            raise ZeroDivisionError
    await assert_idle(scheduler)


async def test_repr_counts_running_and_waiting_calls() -> None:
    scheduler = CallScheduler()
    assert repr(scheduler) == "<CallScheduler: nothing running, 0 waiting>"
    async with scheduler.slot("main"), scheduler.slot("overlap"):
        assert repr(scheduler) == "<CallScheduler: 1 main, 1 overlap running, 0 waiting>"
        waiter = asyncio.create_task(scheduler.acquire("main"))
        await asyncio.sleep(0)
        assert repr(scheduler) == "<CallScheduler: 1 main, 1 overlap running, 1 waiting>"
        waiter.cancel()
