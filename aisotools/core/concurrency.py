"""Helpers for the event loop: periodic wake-ups, work in steps, work that cancellation must not interrupt.

A thread that sorts keeps the event loop waiting, too: one call of `sorted` holds the interpreter's lock to
its end, and for 100,000 long names that are alike that is a third of a second. `sorted_in_runs` lets other
threads run in between.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import heapq
import inspect
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from aisotools.core.threads import start_in_thread

TICK_S = 0.05
"""Seconds between two wake-ups of the loop by a `LoopTicker`."""

STEP_S = 0.005
"""Seconds that work in steps takes before the loop goes on."""

# So many of the longest paths that are alike up to their ends are sorted in ten milliseconds.
_RUN_ITEMS = 512

Result = TypeVar("Result")
Item = TypeVar("Item")
Waited = TypeVar("Waited", bound=asyncio.Future[Any])


class LoopTicker:
    """Re-entrant context manager that wakes the event loop every `TICK_S` seconds.

    ipykernel delivers the Stop button as a callback that runs when the loop next wakes. A loop that only
    waits for a person or a worker may not wake for minutes.
    """

    def __init__(self, on_left: Callable[[], None] | None = None) -> None:
        """Call `on_left`, if there is one, each time when the last one has left."""
        self._on_left = on_left
        self._depth = 0
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_inside(self) -> bool:
        """True if somebody is inside."""
        return self._depth > 0

    async def wait_left(self) -> None:
        """Wait until nobody is inside. At once after that, nobody is: no task has run since."""
        while self._depth:
            departure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(departure)
            await departure

    def __enter__(self) -> None:
        self._depth += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._schedule)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            waiting, self._waiting = self._waiting, []
            for departure in waiting:
                if not departure.done():
                    departure.set_result(None)
            if self._on_left is not None:
                self._on_left()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._schedule)


class DelayedRun:
    """Does something in a thread a while after it was first asked for, once for all who ask meanwhile."""

    def __init__(self, act: Callable[[], object], delay_s: float) -> None:
        """Ask with `request`.

        Args:
            act: What to do. What it raises goes to the handler of the loop's exceptions.
            delay_s: Seconds from the first request until it is done.
        """
        self._act = act
        self._delay_s = delay_s
        self._timer: asyncio.TimerHandle | None = None
        self._running: asyncio.Future[object] | None = None  # the loop itself would forget it

    def request(self) -> None:
        """Have it done by then."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay_s, self._start)

    def cancel(self) -> None:
        """Forget what was asked for and has not begun."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        self._timer = None
        self._running = start_in_thread(self._act)


class LoopTurns:
    """Lets the event loop have its turn between pieces of work that take long, however many there are.

    Attributes:
        is_spent: Whether such a piece was done in the present turn.
    """

    def __init__(self) -> None:
        self.is_spent = False

    async def wait(self) -> None:
        """Return at once, or in a later turn of the loop if this one was spent."""
        while self.is_spent:  # noqa: ASYNC110 - a turn of the loop is what is waited for
            await asyncio.sleep(0)

    async def take(self) -> None:
        """Wait for a turn that was not spent, and spend it."""
        await self.wait()
        self.spend()

    def spend(self) -> None:
        """Note that something is done in this turn that takes long."""
        # Race: several tasks may spend the same turn. One renewal for all of them: a second one would come
        # in the next turn after the first task has spent that, and let the second task in as well.
        if not self.is_spent:
            self.is_spent = True
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        self.is_spent = False


class OrderedTurns:
    """Lets tasks go on in the order in which they came, however long what each does first takes.

    Attributes:
        last: Ends with the block that began last; None if all have ended.
    """

    def __init__(self) -> None:
        """Start with nobody inside."""
        self.last: asyncio.Future[None] | None = None

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Return a block that is run at once, and ends when all those have ended that began before.

        A block that raises waits for nobody.
        """
        return _Turn(self)


@dataclass(slots=True)
class _Turn(AbstractAsyncContextManager[None]):
    """A block of `OrderedTurns`. Each call enters one, and this takes half of what a generator takes."""

    turns: OrderedTurns
    before: asyncio.Future[None] | None = None
    mine: asyncio.Future[None] | None = None

    async def __aenter__(self) -> None:
        self.before, self.mine = self.turns.last, asyncio.get_running_loop().create_future()
        self.turns.last = self.mine

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        before, mine = self.before, self.mine
        assert mine is not None
        try:
            if kind is None and before is not None and not before.done():
                await asyncio.wait([before])
        finally:
            # Race: who is cancelled while it waits lets the next one go, which has waited for it alone. Those
            # before both may be under way still.
            if before is not None and not before.done():
                before.add_done_callback(lambda _: mine.set_result(None))
            else:
                mine.set_result(None)
            if self.turns.last is mine and mine.done():
                self.turns.last = None


async def with_ticks(work: Coroutine[Any, Any, Result], every_s: float, tick: Callable[[], object]) -> Result:
    """Return the result of `work`; call `tick` every `every_s` seconds until then.

    Raises:
        CancelledError: If the waiting task was cancelled; `work` has been cancelled and has ended by then.
    """
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([task], timeout=every_s))[0]:
            tick()
    except asyncio.CancelledError:
        # The caller closes what `work` uses as soon as this raises: not before `work` has let go of it.
        task.cancel()
        await asyncio.wait([task])
        raise
    return task.result()


async def run_to_completion(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`. It runs to its end even if the waiting task is cancelled.

    Raises:
        CancelledError: After `work` has ended, if the waiting task was cancelled meanwhile, any number of
        times.
        GeneratorExit: At once, and `work` does not begin, if that is being handled: the waiting coroutine is
        collected, since its event loop was closed for good, and nothing can be awaited any more.
    """
    if isinstance(collected := sys.exception(), GeneratorExit):
        work.close()
        raise collected
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            # Both failed and cancelled: the cancellation is raised. Retrieve the other exception, or asyncio
            # logs that it never was.
            task.exception()
        raise cancelled
    return task.result()


def end_future(future: asyncio.Future[Any], error: BaseException | None = None) -> None:
    """End a future of whichever event loop, with an error if there is one; nothing if it has ended.

    Nobody needs to ask for the error.
    """
    if future.done():
        return
    # Case: whoever waits for it waited on a loop that was closed for good, and is never told.
    with _unless_closed(future):
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
    if error is not None:
        future.exception()  # asyncio would complain if nobody asks for it


def cancel_future(future: asyncio.Future[Any]) -> None:
    """Cancel a future or a task of whichever event loop, also of one that was closed for good."""
    with _unless_closed(future):
        future.cancel()


@contextmanager
def _unless_closed(future: asyncio.Future[Any]) -> Iterator[None]:
    try:
        yield
    except RuntimeError:
        if not future.get_loop().is_closed():
            raise


_LOOP_LOOK_S = 0.2
"""How often who waits for another event loop looks whether that still runs."""

_ANSWER_S = 1.0
"""How long another event loop may take to answer that is to do something."""

_FOREIGN_LOOK_S = 0.02
"""How often it is looked whether a task of another event loop has ended."""


async def wait_for_tasks(tasks: Collection[Waited], within_s: float) -> list[Waited]:
    """Wait until tasks or futures of whichever event loops have ended. Return those that were not done.

    These were cancelled, or belong to another loop that has stopped, or does not end them in `within_s`
    seconds, as one whose thread waits for this one.
    """
    loop = asyncio.get_running_loop()
    if own := [task for task in tasks if task.get_loop() is loop]:
        await asyncio.wait(own)
    ends_s = time.monotonic() + within_s
    # Race: a future of another loop wakes whoever waits for it in the thread of that loop, and nobody then
    # wakes this loop, which sleeps on.
    while any(not task.done() and task.get_loop().is_running() for task in tasks):
        if time.monotonic() > ends_s:
            break
        await asyncio.sleep(_FOREIGN_LOOK_S)
    return [task for task in tasks if not task.done() or task.cancelled()]


_MOST_REPEATS = 3
"""How often a final step is taken again that was cancelled."""


class FinalSteps:
    """Steps of which each is taken, whatever the others raise. Begun again, they go on where they were left.

    Case: the event loop on which they were begun has been stopped within one of them, or has cancelled all of
    its tasks, as at the end of `asyncio.run`. That step is taken once more, so each must be one that may be.
    """

    def __init__(self, steps: Iterable[Callable[[], Awaitable[None]]]) -> None:
        """Take `steps` in this order."""
        self._left = deque(steps)

    def __repr__(self) -> str:
        return f"<FinalSteps, {len(self._left)} left>"

    async def take(self) -> None:
        """Take all that are left.

        Raises:
            Exception: What the first step that has failed raises, after all were taken.
            CancelledError: After all were taken, if this was cancelled meanwhile.
        """
        failure: BaseException | None = None
        repeats = 0
        while self._left:
            step = self._left[0]
            try:
                await step()
            except asyncio.CancelledError as error:
                # Case: the event loop ends, or whoever waits has been told not to. Half of a step is none.
                failure, repeats = error, repeats + 1
                if repeats <= _MOST_REPEATS:
                    continue
            except Exception as error:
                failure = failure or error
            repeats = 0
            if self._left and self._left[0] is step:  # else it was taken elsewhere meanwhile
                self._left.popleft()
        if failure is not None:
            raise failure


class RunOnce:
    """Work that is done once. Whoever asks for it again waits for its end, on whichever event loop.

    Case: the loop on which it was begun has been stopped or closed for good, as at the end of a program. It
    will not end then, and nobody waits for it; work that can be begun again is done by whoever asks next.
    """

    def __init__(self, *, resumes: bool = False) -> None:
        """Create it without having started any work.

        Args:
            resumes: Whether the work may be begun again where it was left.
        """
        self._resumes = resumes
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._beginning = threading.Lock()
        self._end = concurrent.futures.Future[None]()

    async def run(
        self,
        start: Callable[[], Coroutine[Any, Any, None]],
        home: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Do what `start` returns, to its end even if this is cancelled; see `run_to_completion`.

        Args:
            start: Begins the work.
            home: The event loop to which belongs what it works with. It is done there, unless that loop has
                stopped or does not answer, as one whose thread waits for this one: then here.

        Raises:
            Exception: What the work raises, to the first who asks.
        """
        loop = asyncio.get_running_loop()
        if home is not None and home is not loop and await _answers(home) and await self._run_on(home, start):
            return
        while not self._begin(start, loop):
            assert self._loop is not None
            await _wait_for(self._end, self._loop)
            if self._end.done() or not self._resumes:
                return
        assert self._start is not None
        try:
            await run_to_completion(self._start())
        finally:
            # Else somebody else goes on with it, and this is only cleared away.
            if self._loop is loop and not self._end.done():
                self._end.set_result(None)

    def _begin(self, start: Callable[[], Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether the caller is to do the work: it is the first, or nobody goes on with it."""
        with self._beginning:
            is_left = self._resumes and self._loop is not None and not self._loop.is_running()
            if self._loop is not None and (self._end.done() or not is_left):
                return False
            self._loop, self._start = loop, self._start or start
            return True

    async def _run_on(
        self, home: asyncio.AbstractEventLoop, start: Callable[[], Coroutine[Any, Any, None]]
    ) -> bool:
        """Have another loop do the work. Return whether it has done so."""
        work = self.run(start)
        try:
            done = asyncio.run_coroutine_threadsafe(work, home)
        except RuntimeError:  # Race: it was closed after it had answered
            work.close()
            return False
        await run_to_completion(_wait_for(done, home))
        if done.done() and not done.cancelled():
            done.result()
            return True
        # Race: that loop has stopped, or has cancelled all of its tasks, before it began or half way.
        if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
            work.close()
        return self._end.done()


async def run_on_loop(
    start: Callable[[], Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop
) -> None:
    """Have another event loop do what `start` returns, and wait until that is done.

    Nobody waits for a loop that has stopped: it is done there as soon as that loop goes on.

    Raises:
        Exception: What the work raises.
    """
    end = concurrent.futures.Future[None]()

    def finish(work: asyncio.Task[None]) -> None:
        if work.cancelled():
            end.cancel()
        elif (error := work.exception()) is not None:
            end.set_exception(error)
        else:
            end.set_result(None)

    # Begun there: a coroutine that a stopped loop never gets to would be complained about.
    try:
        loop.call_soon_threadsafe(lambda: loop.create_task(start()).add_done_callback(finish))
    except RuntimeError:
        return  # Race: it was closed after it was looked at
    await _wait_for(end, loop)
    if end.done() and not end.cancelled():
        end.result()


class LoopActivity:
    """Work that one event loop does, several pieces at a time. Others wait for its end, on whichever loop.

    Nobody waits for a loop that has been stopped or closed, as for `RunOnce`.
    """

    def __init__(self) -> None:
        """Create it without having started any work."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = 0
        self._end = concurrent.futures.Future[None]()

    def __repr__(self) -> str:
        return f"<LoopActivity: {'under way' if self._count else 'none'}>"

    def begin(self) -> None:
        """Begin a piece of it; `end` ends it."""
        if not self._count:
            self._end = concurrent.futures.Future[None]()
        self._count += 1
        self._loop = asyncio.get_running_loop()

    def end(self) -> None:
        """End a piece of it."""
        self._count -= 1
        if not self._count:
            self._end.set_result(None)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Inside the `with` block some of it is done."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    async def wait(self, within_s: float | None = None) -> None:
        """Wait until nothing of it is under way, at most so many seconds."""
        if self._loop is not None:
            await _wait_for(self._end, self._loop, within_s)


async def _answers(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether another event loop goes on, and not only in a while."""
    answered = concurrent.futures.Future[None]()

    def answer() -> None:
        if answered.set_running_or_notify_cancel():
            answered.set_result(None)

    try:
        # Race: it may stop right after it was seen to run. Then nothing comes, for as long as is waited.
        loop.call_soon_threadsafe(answer)
    except RuntimeError:  # it is closed
        return False
    if not loop.is_running():
        return False
    end = asyncio.wrap_future(answered)
    await asyncio.wait([end], timeout=_ANSWER_S)
    return not end.cancel()


async def _wait_for(
    done: concurrent.futures.Future[Any], loop: asyncio.AbstractEventLoop, within_s: float | None = None
) -> None:
    ends_s = math.inf if within_s is None else time.monotonic() + within_s
    end = asyncio.wrap_future(done)
    while not end.done() and loop.is_running() and (left_s := ends_s - time.monotonic()) > 0:
        await asyncio.wait([end], timeout=min(left_s, _LOOP_LOOK_S))


async def in_steps(work: Generator[None, None, Result], step_s: float = STEP_S) -> Result:
    """Return what `work` returns. At a `yield` that is `step_s` after the last break, the loop goes on.

    Garbage is collected between steps only: a step may make tens of thousands of objects, which the collector
    would look at again and again.
    """
    resumed_s = time.monotonic()
    while True:
        is_paused = gc.isenabled()
        if is_paused:
            gc.disable()
        try:
            next(work)
        except StopIteration as ended:
            result: Result = ended.value
            return result
        finally:
            if is_paused:
                gc.enable()
        if time.monotonic() - resumed_s >= step_s:
            await asyncio.sleep(0)
            resumed_s = time.monotonic()


def at_once(work: Generator[None, None, Result]) -> Result:
    """Return what `work` returns, without a break. Garbage is collected between steps only."""
    while True:
        try:
            with gc_paused():
                next(work)
        except StopIteration as ended:
            result: Result = ended.value
            return result


def sorted_in_runs(
    items: Iterable[Item],
    *,
    key: Callable[[Item], Any] | None = None,
    reverse: bool = False,
    run_items: int = _RUN_ITEMS,
) -> Iterator[Item]:
    """Yield the items in the order of `sorted`, with the same `key` and `reverse`.

    For work in a thread: other threads can run after every few items.

    Args:
        items: What is sorted; equal ones stay in the order in which they come.
        key: Returns what an item is sorted by; itself without it.
        reverse: Whether the largest comes first.
        run_items: How many are sorted at once.
    """
    unsorted = list(items)
    order: Any = key  # items without a key can be compared, which no type says
    starts = range(0, len(unsorted), run_items)
    runs = [sorted(unsorted[at : at + run_items], key=order, reverse=reverse) for at in starts]
    return iter(runs[0]) if len(runs) == 1 else heapq.merge(*runs, key=order, reverse=reverse)


def gc_paused() -> AbstractContextManager[None]:
    """Return a context manager that pauses garbage collection.

    Converting a large JSON value allocates millions of objects, none of which is garbage. The collector would
    scan them again and again and take longer than the conversion. It holds the interpreter's lock meanwhile,
    that a thread that compares two trees holds up the event loop.

    Blocks may overlap, in several tasks or threads: collection goes on when the last one ends.
    """
    return _PAUSE


class _GcPause(AbstractContextManager[None]):
    """The blocks that pause garbage collection; entering one takes a third of what a generator takes."""

    # Race: threads may come here at the same time. Each of these steps is one step of the interpreter; what
    # can happen in between is that collection stays enabled although one of them wants it paused.
    def __enter__(self) -> None:
        _pauses.append(None)
        if gc.isenabled():
            _was_enabled.append(None)
            gc.disable()

    def __exit__(self, *_: object) -> None:
        _pauses.pop()
        if not _pauses and _was_enabled:
            _was_enabled.clear()
            gc.enable()


_PAUSE = _GcPause()
# One entry for each block that pauses garbage collection; and one if it was enabled before the first of them.
_pauses: list[None] = []
_was_enabled: list[None] = []
