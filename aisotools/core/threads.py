"""Threads for the event loop: for the work of this package, and for functions of tools that run on the host.

The loop's default executor is everybody's, and has few threads: six with two processors. A tool's function
that does not return keeps its thread, and a program that calls a session from such a thread waits there. If
the session needed one of these threads to go on, both would wait for ever. So it has threads of its own. They
are started as they are needed and used again, and functions of tools never run in those of the package.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


class _Taken(Exception):
    """Another thread runs the work, or has run it."""


class _Work(Generic[R]):
    """A function that is run once, by whichever thread comes first.

    The executor that takes it has a future for its end. Where it is refused, `follow` gives it another one.
    """

    __slots__ = ("_end", "_left", "_outcome")

    def __init__(self, function: Callable[[], R]) -> None:
        self._left = [function]
        self._outcome: tuple[R | None, BaseException | None] | None = None
        self._end: Future[R] | None = None

    def __call__(self) -> R:
        # Race: two threads may come here. To take it out is one step of the interpreter.
        try:
            function = self._left.pop()
        except IndexError:
            raise _Taken from None
        try:
            result = function()
        except BaseException as error:
            self._outcome = None, error
            if self._end is not None:
                self._resolve(self._end)
            # Else the exception, with this frame, and its future would hold each other.
            del self
            raise
        self._outcome = result, None
        if self._end is not None:
            self._resolve(self._end)
        return result

    def follow(self) -> Future[R]:
        """Return a future for its end, whichever thread runs it or has run it."""
        end = self._end = Future()
        end.set_running_or_notify_cancel()
        # Race: it may have ended before that was there.
        if self._outcome is not None:
            self._resolve(end)
        return end

    def _resolve(self, end: Future[R]) -> None:
        assert self._outcome is not None
        result, error = self._outcome
        with suppress(InvalidStateError):  # both who ran it and who follows it may come here
            if error is None:
                end.set_result(cast("R", result))
            else:
                end.set_exception(error)


class LoopThreads:
    """Threads in which an event loop has functions run. None is started before it is needed."""

    def __init__(self, name: str, most: int, *, may_block: bool = False) -> None:
        """Have none yet.

        Args:
            name: How the names of the threads begin.
            most: How many there may be; further functions wait for one.
            may_block: Whether a function runs in the thread that asks where no other can be started. It must
                not wait for anything that this thread does.
        """
        self._name = name
        self._most = most
        self._may_block = may_block
        self._executor = self._make()
        # A fork has none of these threads, and an executor that counts on them would wait for them.
        os.register_at_fork(after_in_child=self._forget)

    def __repr__(self) -> str:
        return f"<LoopThreads {self._name!r}, at most {self._most}>"

    def _make(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._most, thread_name_prefix=self._name)

    def _forget(self) -> None:
        self._executor = self._make()

    def start(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
        """Have a function run in a thread, with the present context; return a future of the running loop."""
        return asyncio.wrap_future(self.submit(function, *args, **kwargs))

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have a function run in a thread, with the present context; return its end, for any thread."""
        work = _Work(functools.partial(contextvars.copy_context().run, function, *args, **kwargs))
        try:
            return self._executor.submit(work)
        except RuntimeError as refused:
            return self._run_apart(work, refused)

    def _run_apart(self, work: _Work[R], refused: RuntimeError) -> Future[R]:
        """Have done what the executor has refused. Return its end.

        Case: the interpreter ends, and no executor takes work any more. What is closed only then, by
        `atexit` or by a thread that outlives the main one, is closed all the same. Race: an executor that
        could start no further thread has kept the work, and one of its threads may do it meanwhile.
        """
        end = work.follow()

        def run() -> None:
            try:
                work()
            except _Taken:
                pass  # the end comes from the thread that has it
            except BaseException:
                if not end.done():  # whoever waits for the end gets what was raised
                    raise

        try:
            threading.Thread(target=run, name=f"{self._name}_apart").start()
        except RuntimeError:  # at the very end, and where the system allows no more of them
            if not self._may_block:
                raise refused from None
            run()
        return end

    def wait_for(self, function: Callable[[], R], within_s: float) -> R | None:
        """Return what a function returns that runs in a thread; None if it takes longer, and goes on.

        For the event loop, which stands still meanwhile.
        """
        try:
            return self.submit(function).result(within_s)
        except TimeoutError:
            return None


OWN = LoopThreads("aisotools", 256, may_block=True)
"""For work of this package. It ends by itself, and waits for nothing that needs another of these threads."""

TOOLS = LoopThreads("aisotools-tool", 1_000)
"""For functions of tools that run on the host, which may do anything for any time."""

tool_functions: ContextVar[list[Future[Any]] | None] = ContextVar("tool_functions", default=None)
"""Gets the functions of tools that the present context starts; None where nobody asks for them."""


def start_tool_function(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
    """Have a function of a tool run in a thread; return a future of the running loop.

    Cancelled, the future ends and the function goes on: whoever has set `tool_functions` sees that.
    """
    work = TOOLS.submit(function, *args, **kwargs)
    started = tool_functions.get()
    if started is not None:
        started.append(work)
    return asyncio.wrap_future(work)


def start_in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
    """Have a function of this package run in a thread; return a future of the running loop."""
    return OWN.start(function, *args, **kwargs)


async def in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what a function of this package returns that runs in a thread.

    If the waiting task is cancelled, the function goes on.

    Raises:
        Exception: Whatever the function raises.
    """
    return await OWN.start(function, *args, **kwargs)
