from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aisotools.core import concurrency
from aisotools.core.concurrency import (
    TICK_S,
    DelayedRun,
    FinalSteps,
    LoopActivity,
    LoopTicker,
    LoopTurns,
    OrderedTurns,
    RunOnce,
    at_once,
    cancel_future,
    end_future,
    gc_paused,
    in_steps,
    run_on_loop,
    run_to_completion,
    sorted_in_runs,
    wait_for_tasks,
    with_ticks,
)
from tests import stalls
from tests.waiting import HANG_S, LoopClock, eventually, loop_turns


async def test_work_is_carried_through_however_often_the_waiting_task_is_cancelled() -> None:
    go, done = asyncio.Event(), []

    async def work() -> str:
        await go.wait()
        done.append("all of it")
        return "result"

    waiting = asyncio.ensure_future(run_to_completion(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done == ["all of it"]


async def test_without_a_cancellation_there_is_the_result_or_the_error() -> None:
    async def fine() -> int:
        return 7

    async def failing() -> int:
        raise ValueError("no")

    assert await run_to_completion(fine()) == 7
    with pytest.raises(ValueError, match="no"):
        await run_to_completion(failing())


async def test_an_error_of_work_that_was_cancelled_meanwhile_is_retrieved() -> None:
    go, problems = asyncio.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))

    async def failing() -> None:
        await go.wait()
        raise ValueError("no")

    waiting = asyncio.ensure_future(run_to_completion(failing()))
    await loop_turns()
    waiting.cancel()
    await loop_turns()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    del waiting
    await loop_turns()
    assert problems == []


# ---- ticks


async def test_the_ticker_wakes_the_loop_until_the_outermost_block_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, wakes = LoopClock(), []
    schedule = LoopTicker._schedule

    def counted(ticker: LoopTicker) -> None:
        wakes.append(ticker)
        schedule(ticker)

    monkeypatch.setattr(LoopTicker, "_schedule", counted)
    ticker = LoopTicker()
    with ticker:
        with ticker:
            await clock.advance(TICK_S)
            assert len(wakes) == 1, "once for both blocks"
        for number in (2, 3):
            await clock.advance(TICK_S)
            assert len(wakes) == number
    await clock.advance(10 * TICK_S)
    assert len(wakes) == 3
    with ticker:
        await clock.advance(TICK_S)
    assert len(wakes) == 4, "it can be used again"


async def test_ticks_come_while_work_goes_on_and_the_result_at_its_end() -> None:
    clock, go, ticks = LoopClock(), asyncio.Event(), []

    async def work() -> str:
        await go.wait()
        return "result"

    waiting = asyncio.ensure_future(with_ticks(work(), 100, lambda: ticks.append(1)))
    await loop_turns()
    assert ticks == []
    for number in (1, 2):
        await clock.advance(101)
        assert len(ticks) == number
    go.set()
    assert await waiting == "result"
    await clock.advance(1000)
    assert len(ticks) == 2


async def test_an_error_of_work_with_ticks_is_raised() -> None:
    async def failing() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await with_ticks(failing(), 100, lambda: None)


async def test_cancelled_waiting_with_ticks_ends_after_the_work() -> None:
    began, go, ended = asyncio.Event(), asyncio.Event(), []

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await go.wait()
            ended.append(True)

    waiting = asyncio.ensure_future(with_ticks(work(), 100, lambda: None))
    await began.wait()
    waiting.cancel()
    await loop_turns()
    assert not waiting.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == [True]


# ---- turns


async def test_a_turn_that_was_spent_lets_in_one_task_at_a_time() -> None:
    """Also when several spend one turn together, each before it waits for the next."""
    turns, entered, number = LoopTurns(), list[int](), 0

    async def work() -> None:
        turns.spend()
        await turns.wait()
        entered.append(number)
        turns.spend()

    tasks = [asyncio.ensure_future(work()) for _ in range(3)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        number += 1
    assert len(set(entered)) == 3


async def test_work_that_takes_long_is_done_in_turns_of_its_own() -> None:
    turns, done = LoopTurns(), list[int]()

    async def work(number: int) -> None:
        await turns.take()
        done.append(number)

    working = [asyncio.ensure_future(work(number)) for number in range(3)]
    seen = [0]
    while len(done) < len(working):
        await asyncio.sleep(0)
        seen.append(len(done))
    assert {after - before for before, after in itertools.pairwise(seen)} <= {0, 1}
    await asyncio.gather(*working)


async def test_a_turn_that_was_spent_is_over_with_the_next_one() -> None:
    turns = LoopTurns()
    await turns.wait()
    turns.spend()
    assert turns.is_spent
    await turns.wait()
    assert not turns.is_spent


# ---- steps


def counting(steps: list[int], count: int = 6) -> Generator[None, None, str]:
    for number in range(count):
        steps.append(number)
        yield
    return "counted"


async def test_the_loop_goes_on_whenever_a_step_has_taken_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []

    class Clock:
        def monotonic(self) -> float:
            return float(len(steps))  # a step takes a second

    monkeypatch.setattr(concurrency, "time", Clock())
    waiting = asyncio.ensure_future(in_steps(counting(steps), step_s=2))
    seen = []
    while not waiting.done():
        await asyncio.sleep(0)
        seen.append(len(steps))
    assert await waiting == "counted"
    assert seen[:3] == [2, 4, 6]


async def test_quick_work_in_steps_takes_no_break() -> None:
    steps: list[int] = []
    waiting = asyncio.ensure_future(in_steps(counting(steps), step_s=1000))
    await asyncio.sleep(0)
    assert waiting.done()
    assert (waiting.result(), len(steps)) == ("counted", 6)


async def test_no_garbage_is_collected_within_a_step() -> None:
    def noting() -> Generator[None, None, list[bool]]:
        found = [gc.isenabled()]
        yield
        return [*found, gc.isenabled()]

    for found in (await in_steps(noting()), at_once(noting())):
        assert found == [False, False]
        assert gc.isenabled()

    def failing() -> Generator[None, None, None]:
        yield
        raise LookupError

    with pytest.raises(LookupError):
        await in_steps(failing())
    assert gc.isenabled()


def test_work_at_once_has_the_same_result() -> None:
    steps: list[int] = []
    assert at_once(counting(steps)) == "counted"
    assert len(steps) == 6


names = st.text(st.sampled_from("ab\u0301\udcff\U0001f600"), max_size=4)


@given(st.lists(names | st.text(), max_size=40), st.integers(1, 7), st.booleans())
def test_runs_are_merged_to_the_order_of_sorted(items: list[str], run_items: int, numbers: bool) -> None:
    """Equal ones stay in the order in which they came, as the numbers beside them show."""
    assert [*sorted_in_runs(items, run_items=run_items)] == sorted(items)
    assert [*sorted_in_runs(iter(items))] == sorted(items)
    pairs = [*zip(items, range(len(items)), strict=True)]
    by_name: Callable[[tuple[str, int]], Any] = itemgetter(0) if numbers else lambda pair: -len(pair[0])
    for reverse in (False, True):
        runs = sorted_in_runs(pairs, key=by_name, reverse=reverse, run_items=run_items)
        assert [*runs] == sorted(pairs, key=by_name, reverse=reverse)
    assert [*sorted_in_runs(pairs, run_items=run_items)] == sorted(pairs)


LONG_NAMES = ["\u0107" * 80 + f"{(n * 7919) % 100_003:06d}" for n in range(100_000)]


def longest_stall_s(work: Callable[[list[str]], Iterable[str]]) -> float:
    async def main(stalled: stalls.Stalls) -> float:
        sorting = asyncio.ensure_future(asyncio.to_thread(lambda: [*work(LONG_NAMES)]))
        await with_ticks(asyncio.wait_for(sorting, HANG_S), 0.005, lambda: None)
        return stalled.longest_s

    return stalls.run(main)


def test_a_loop_goes_on_while_a_thread_sorts_very_many_names() -> None:
    """The thread holds the interpreter's lock for a run at most; `sorted` holds it to the end."""
    assert longest_stall_s(sorted) > 0.05
    assert min(longest_stall_s(sorted_in_runs) for _ in range(3)) < 0.025


def test_pauses_of_garbage_collection_may_overlap() -> None:
    assert gc.isenabled()
    first, second = gc_paused(), gc_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled(), "the second one goes on"
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_garbage_collection_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with gc_paused(), gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


async def test_delayed_work_is_done_once_in_a_thread_for_all_who_ask_meanwhile() -> None:
    done = asyncio.Event()
    threads: list[int] = []
    loop = asyncio.get_running_loop()

    def act() -> None:
        threads.append(threading.get_ident())
        loop.call_soon_threadsafe(done.set)

    delayed = DelayedRun(act, 0.001)
    for _ in range(2):
        delayed.request()
        delayed.request()
        await done.wait()
        done.clear()
    assert len(threads) == 2
    assert threading.get_ident() not in threads
    delayed.request()
    delayed.cancel()
    delayed.cancel()
    other = DelayedRun(lambda: loop.call_soon_threadsafe(done.set), 0.002)
    other.request()
    await done.wait()
    assert len(threads) == 2


# ---- turns in order


async def test_tasks_go_on_in_the_order_in_which_they_came() -> None:
    turns, order = OrderedTurns(), list[str]()
    gates = [asyncio.Event() for _ in range(4)]

    async def come(number: int) -> None:
        async with turns.turn():
            order.append(f"in {number}")
            await gates[number].wait()
            if number == 1:
                raise OSError("no")
        order.append(f"on {number}")

    tasks = [asyncio.ensure_future(come(number)) for number in range(4)]
    await loop_turns()
    assert order == [f"in {number}" for number in range(4)], "none waits before it has done its own"
    for number in (3, 1, 2):
        gates[number].set()
        await loop_turns()
    assert order[4:] == []
    assert tasks[1].done(), "one that fails waits for nobody"
    gates[0].set()
    await asyncio.wait(tasks)
    assert order[4:] == ["on 0", "on 2", "on 3"]
    async with turns.turn():
        pass
    assert turns.last is None


async def test_a_task_that_is_cancelled_lets_none_go_on_before_its_turn() -> None:
    turns, order = OrderedTurns(), list[int]()
    first = asyncio.Event()

    async def come(number: int) -> None:
        async with turns.turn():
            if number == 0:
                await first.wait()
        order.append(number)

    tasks = [asyncio.ensure_future(come(number)) for number in range(3)]
    await loop_turns()
    tasks[1].cancel()
    await loop_turns()
    assert tasks[1].cancelled()
    assert order == []
    first.set()
    await asyncio.wait(tasks)
    assert order == [0, 2]


async def test_activity_is_waited_for_on_its_loop_and_on_another_one() -> None:
    activity = LoopActivity()
    await asyncio.wait_for(activity.wait(), HANG_S)  # nothing is under way
    with activity.under_way():
        here = asyncio.create_task(activity.wait())
        there = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(activity.wait())))
        await loop_turns(50)
        assert (here.done(), there.done()) == (False, False)
        here.cancel()
        await asyncio.gather(here, return_exceptions=True)
    await asyncio.wait_for(there, HANG_S)
    await asyncio.wait_for(activity.wait(), HANG_S)


async def test_activity_of_several_pieces_is_waited_for_until_the_last_has_ended() -> None:
    activity = LoopActivity()
    activity.begin()
    activity.begin()
    waiting = asyncio.create_task(activity.wait())
    activity.end()
    await loop_turns(20)
    assert not waiting.done()
    await asyncio.wait_for(activity.wait(0.01), HANG_S)  # no longer than that
    assert repr(activity) == "<LoopActivity: under way>"
    activity.end()
    await asyncio.wait_for(waiting, HANG_S)
    assert repr(activity) == "<LoopActivity: none>"


@pytest.mark.parametrize("is_closed", [False, True])
def test_futures_of_a_loop_that_was_closed_can_be_ended(is_closed: bool) -> None:
    loop = asyncio.new_event_loop()
    futures = [loop.create_future() for _ in range(3)]

    async def wait() -> None:
        await asyncio.wait(futures)

    waiting = [loop.create_task(wait()) for _ in range(2)]
    loop.run_until_complete(asyncio.sleep(0))
    if is_closed:
        loop.close()
    end_future(futures[0])
    end_future(futures[1], OSError("ended"))
    end_future(futures[1])  # it has ended
    cancel_future(futures[2])
    cancel_future(waiting[0])
    assert [future.done() for future in futures] == [True, True, True]
    assert isinstance(futures[1].exception(), OSError)
    if not is_closed:
        loop.run_until_complete(asyncio.wait(waiting))
        loop.close()


async def test_error_of_a_future_that_is_no_end_of_its_loop_is_raised() -> None:
    class Faulty(asyncio.Future[None]):
        def set_result(self, result: None) -> None:
            raise RuntimeError("another error")

    with pytest.raises(RuntimeError, match="another error"):
        end_future(Faulty())


async def test_ticker_says_each_time_that_nobody_is_inside_any_more() -> None:
    left: list[bool] = []
    ticker = LoopTicker(lambda: left.append(ticker.is_inside))
    with ticker, ticker:
        pass
    with ticker:
        assert left == [False]
    assert left == [False, False]


def test_activity_of_a_loop_that_was_stopped_is_not_waited_for() -> None:
    activity = LoopActivity()
    loop, never_left = asyncio.new_event_loop(), activity.under_way()

    async def begin() -> None:
        never_left.__enter__()

    loop.run_until_complete(begin())
    assert repr(activity) == "<LoopActivity: under way>"
    asyncio.run(asyncio.wait_for(activity.wait(), HANG_S))
    loop.close()
    asyncio.run(asyncio.wait_for(activity.wait(), HANG_S))


async def test_work_that_is_done_once_is_waited_for_by_whoever_asks_again() -> None:
    once, begun, goes_on = RunOnce(), list[str](), asyncio.Event()

    async def work() -> None:
        begun.append("begun")
        await goes_on.wait()
        raise ValueError("it failed")

    first = asyncio.ensure_future(once.run(work))
    others = [asyncio.ensure_future(once.run(work)) for _ in range(2)]
    await asyncio.sleep(0)
    others[0].cancel()
    elsewhere = asyncio.ensure_future(asyncio.to_thread(asyncio.run, once.run(work)))
    await asyncio.wait([elsewhere], timeout=0.05)
    assert [task.done() for task in (first, *others, elsewhere)] == [False, True, False, False]
    goes_on.set()
    with pytest.raises(ValueError, match="it failed"):
        await first
    await others[1]
    await elsewhere
    await once.run(work)
    assert begun == ["begun"]


@pytest.mark.parametrize("is_closed", [False, True], ids=["stopped", "closed"])
def test_work_for_a_loop_that_has_stopped_is_done_when_it_goes_on_and_not_waited_for(
    *, is_closed: bool
) -> None:
    loop, done = asyncio.new_event_loop(), []

    async def work() -> None:
        done.append(asyncio.get_running_loop())

    if is_closed:
        loop.close()
    asyncio.run(asyncio.wait_for(run_on_loop(work, loop), HANG_S))
    assert not done
    if not is_closed:
        loop.run_until_complete(loop_turns())
        loop.close()
        assert done == [loop]


async def test_work_for_another_loop_ends_or_raises_there() -> None:
    loop, done = asyncio.new_event_loop(), []

    async def work() -> None:
        await asyncio.sleep(0)
        done.append(asyncio.get_running_loop())

    async def fail() -> None:
        raise ValueError("no")

    async def withdraw() -> None:
        raise asyncio.CancelledError

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        await run_on_loop(work, loop)
        assert done == [loop]
        with pytest.raises(ValueError, match="no"):
            await run_on_loop(fail, loop)
        await run_on_loop(withdraw, loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


def test_work_that_is_done_once_is_not_waited_for_where_its_loop_has_stopped() -> None:
    once, loop = RunOnce(), asyncio.new_event_loop()

    async def work() -> None:
        await asyncio.Event().wait()

    begun = loop.create_task(once.run(work))
    loop.run_until_complete(asyncio.sleep(0))
    asyncio.run(once.run(work))
    begun.cancel()
    for task in asyncio.all_tasks(loop) - {begun}:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(begun)
    loop.close()
    asyncio.run(once.run(work))


async def test_work_is_done_on_the_loop_to_which_it_belongs() -> None:
    """Of several threads that ask for it at once, all come back when it has ended."""
    once, places = RunOnce(), list[asyncio.AbstractEventLoop]()
    home = asyncio.get_running_loop()

    async def work() -> None:
        places.append(asyncio.get_running_loop())
        await asyncio.sleep(0)

    asked = [asyncio.to_thread(asyncio.run, once.run(work, home)) for _ in range(8)]
    await asyncio.wait_for(asyncio.gather(*asked), HANG_S)
    assert places == [home]


async def test_failure_of_work_on_its_own_loop_is_raised_where_it_was_asked_for() -> None:
    once, home = RunOnce(), asyncio.get_running_loop()

    async def work() -> None:
        raise ValueError("it failed")

    with pytest.raises(ValueError, match="it failed"):
        await asyncio.to_thread(asyncio.run, once.run(work, home))
    await asyncio.to_thread(asyncio.run, once.run(work, home))


async def test_work_on_its_own_loop_goes_on_though_who_asked_is_cancelled() -> None:
    once, home = RunOnce(), asyncio.get_running_loop()
    begun, ends, ended = asyncio.Event(), asyncio.Event(), list[bool]()

    async def work() -> None:
        begun.set()
        await ends.wait()
        ended.append(True)

    async def ask() -> None:
        asking = asyncio.ensure_future(once.run(work, home))
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(begun.wait(), home))
        asking.cancel()
        await asyncio.sleep(0)
        assert not asking.done()
        home.call_soon_threadsafe(ends.set)
        await asyncio.wait([asking])
        assert asking.cancelled()

    await asyncio.wait_for(asyncio.to_thread(asyncio.run, ask()), HANG_S)
    assert ended == [True]


@pytest.mark.parametrize("state", ["busy", "stopped", "closed"])
def test_work_is_done_here_where_its_own_loop_does_not_answer(state: str) -> None:
    once, places, home = RunOnce(), list[asyncio.AbstractEventLoop](), asyncio.new_event_loop()

    async def work() -> None:
        places.append(asyncio.get_running_loop())

    async def ask() -> asyncio.AbstractEventLoop:
        await once.run(work, home)
        return asyncio.get_running_loop()

    def ask_in_a_thread() -> None:  # while the thread of the loop waits for it
        thread = threading.Thread(target=lambda: asked_on.append(asyncio.run(ask())))
        thread.start()
        thread.join(HANG_S)

    asked_on = list[asyncio.AbstractEventLoop]()
    if state == "busy":
        home.call_soon(ask_in_a_thread)
        home.run_until_complete(asyncio.sleep(0))
    elif state == "closed":
        home.close()
    if state != "busy":
        asked_on.append(asyncio.run(ask()))
    assert places == asked_on != [home]
    home.close()


@contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """Another event loop, which runs in a thread within the context."""
    home = asyncio.new_event_loop()
    thread = threading.Thread(target=home.run_forever)
    thread.start()
    try:
        yield home
    finally:
        home.call_soon_threadsafe(home.stop)
        thread.join(HANG_S)


class StoppingLoop(asyncio.SelectorEventLoop):
    """Another event loop that answers, and stops before it does what it is asked for."""

    asked = 0

    def call_soon_threadsafe(  # type: ignore[override]  # typeshed has type variables there
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        self.asked += 1
        if self.asked == 2:
            return super().call_soon_threadsafe(self.stop)
        return super().call_soon_threadsafe(callback, *args, context=context)


async def test_work_is_done_here_where_its_own_loop_stops_after_it_has_answered() -> None:
    once, places = RunOnce(), list[asyncio.AbstractEventLoop]()

    async def work() -> None:
        places.append(asyncio.get_running_loop())

    home = StoppingLoop()
    thread = threading.Thread(target=home.run_forever)
    thread.start()
    await eventually(home.is_running)
    await asyncio.wait_for(once.run(work, home), HANG_S)
    thread.join(HANG_S)
    assert home.asked == 2
    assert places == [asyncio.get_running_loop()]
    home.close()


async def begin_on(home: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    async def begin() -> asyncio.Task[None]:
        return home.create_task(work)

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(begin(), home))


async def test_tasks_of_other_loops_are_waited_for() -> None:
    """A future of another loop does not wake this one."""
    here, ends = asyncio.get_running_loop(), asyncio.Event()

    async def wait() -> None:
        await ends.wait()

    assert await wait_for_tasks([], within_s=0) == []
    with loop_in_a_thread() as home:
        long, own = await begin_on(home, wait()), here.create_task(asyncio.sleep(0))
        assert await wait_for_tasks([long, own], within_s=0.05) == [long]
        waiting = here.create_task(wait_for_tasks([long, own], within_s=HANG_S))
        await asyncio.sleep(0)
        home.call_soon_threadsafe(ends.set)
        assert await asyncio.wait_for(waiting, HANG_S) == []
    home.close()


async def test_tasks_that_were_cancelled_or_whose_loop_has_stopped_are_stuck() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    with loop_in_a_thread() as home:
        cancelled, last = await begin_on(home, wait()), await begin_on(home, wait())
        home.call_soon_threadsafe(cancelled.cancel)
        own = asyncio.create_task(wait())
        own.cancel()
        assert await wait_for_tasks([cancelled, own], within_s=HANG_S) == [cancelled, own]
    assert await wait_for_tasks([last], within_s=HANG_S) == [last]
    last.cancel()
    await asyncio.to_thread(home.run_until_complete, asyncio.wait([last]))
    home.close()


# ---- steps at the end


async def test_final_steps_are_all_taken_in_their_order_whatever_they_raise() -> None:
    taken: list[str] = []

    def step(name: str, error: BaseException | None = None) -> Callable[[], Coroutine[Any, Any, None]]:
        async def take() -> None:
            taken.append(name)
            if error is not None:
                raise error

        return take

    steps = FinalSteps([step("a"), step("b", ValueError("b")), step("c", OSError("c")), step("d")])
    with pytest.raises(ValueError, match="b"):
        await steps.take()
    assert taken == ["a", "b", "c", "d"]
    assert repr(steps) == "<FinalSteps, 0 left>"
    await steps.take()
    assert taken == ["a", "b", "c", "d"]


@pytest.mark.parametrize("cancellations", [1, 2, 3])
async def test_final_step_that_is_cancelled_is_taken_once_more(cancellations: int) -> None:
    taken: list[str] = []
    waits = asyncio.Event()

    async def wait() -> None:
        taken.append("waits")
        await waits.wait()
        taken.append("waited")

    async def last() -> None:
        taken.append("last")

    task = asyncio.create_task(FinalSteps([wait, last]).take())
    for _ in range(cancellations):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    waits.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert taken == ["waits"] * (1 + cancellations) + ["waited", "last"]


async def test_final_step_that_is_always_cancelled_keeps_nobody_from_the_next() -> None:
    taken: list[str] = []

    async def cancelled() -> None:
        taken.append("cancelled")
        raise asyncio.CancelledError

    async def last() -> None:
        taken.append("last")

    with pytest.raises(asyncio.CancelledError):
        await FinalSteps([cancelled, last]).take()
    assert taken == ["cancelled"] * 4 + ["last"]


@pytest.mark.parametrize("way", ["stopped", "cancelled"])
async def test_work_that_was_left_half_way_is_gone_on_with(way: str) -> None:
    """The loop on which it was begun is stopped, or ends as that of `asyncio.run` does."""
    once, taken, begun = RunOnce(resumes=True), list[str](), threading.Event()
    here = asyncio.get_running_loop()

    async def wait() -> None:
        taken.append("waits")
        begun.set()
        if asyncio.get_running_loop() is not here:
            await asyncio.get_running_loop().create_future()

    async def last() -> None:
        taken.append("last")

    steps = FinalSteps([wait, last])
    with loop_in_a_thread() as home:
        asking = asyncio.create_task(once.run(steps.take, home))
        await asyncio.to_thread(begun.wait, HANG_S)
        if way == "cancelled":
            # Again and again: the step never ends there.
            for _ in range(4):
                home.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(home)])
                await asyncio.wait([asking], timeout=0.05)
            await asyncio.wait_for(asking, HANG_S)
    await asyncio.wait_for(asking, HANG_S)
    assert taken[-1] == "last"
    assert taken.count("last") == 1
    await once.run(steps.take, home)
    assert taken.count("last") == 1
    for task in asyncio.all_tasks(home):
        task.cancel()
    await asyncio.to_thread(home.run_until_complete, asyncio.sleep(0))
    await asyncio.to_thread(home.run_until_complete, asyncio.sleep(0))
    home.close()
