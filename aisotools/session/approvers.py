"""Approvers that a person answers at a terminal, and the default approver of a session."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextvars import copy_context
from typing import Any, TypeVar

from aisotools.core.protocols import Approver, UserQuestion
from aisotools.core.types import Approval, ApprovalRequest
from aisotools.policy.approvers import NO_APPROVER_REASON
from aisotools.policy.prompts import (
    ANSWER_HINT,
    describe_question,
    describe_request,
    parse_approval,
    parse_question_answer,
    remember_choices,
)

ApproverFactory = Callable[[], Approver | None]
"""Returns an approver, or None if nobody can be asked right now."""


SLICE_S = 0.05
"""Longest stretch of waiting without looking up: ipykernel delivers Stop only when its loop wakes."""


PROMPT = "[y]es, [n]o, or why not: "
"""What stands before the answer where it is typed."""


_TURN = threading.Lock()


_INTERRUPTED = Approval("cancel", reason="Interrupted at the keyboard.")


_T = TypeVar("_T")


class ConsoleApprover:
    """Asks on the terminal, one question at a time. Ctrl-C answers `cancel`."""

    def __init__(
        self,
        read_line: Callable[[str], str] | None = None,
        write: Callable[[str], object] | None = None,
    ) -> None:
        """Use the terminal of the process, unless the arguments name others.

        Args:
            read_line: Shows a prompt and gives one line; raises EOFError at the end of input.
            write: Takes text to show.
        """
        self._read_line = read_line
        self._write = write or _write_out

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Show `request` and wait for a line, without blocking the event loop."""
        if self._read_line is None and not on_terminal():
            return Approval("deny", reason=NO_APPROVER_REASON)
        question = describe_request(request) + "\n"
        read_line = self._read_line or _read_terminal
        return await _read_typed(
            read_typed_approval(read_line, lambda: self._write(question), request), _INTERRUPTED
        )

    async def ask_user(self, question: UserQuestion) -> str | None:
        """Show a model's question and wait for the answer; None when there is nobody, or no answer."""
        if self._read_line is None and not on_terminal():
            return None
        text = describe_question(question) + "\n"
        read_line = self._read_line or _read_terminal
        return await _read_typed(read_typed_answer(read_line, lambda: self._write(text), question), None)


async def _read_typed(reading: Coroutine[Any, Any, _T], interrupted: _T) -> _T:
    """Return what a person types, or `interrupted` on Ctrl-C, which does not cancel the waiting task."""
    task = asyncio.ensure_future(reading)
    with _ctrl_c_cancels(task):
        try:
            return await task
        except asyncio.CancelledError:
            # Two cases look alike here: Ctrl-C cancelled the reading, or somebody cancelled this task, which
            # must then end as cancelled. Only in the second has this task itself been asked to end.
            waiting = asyncio.current_task()
            if waiting is not None and waiting.cancelling():
                raise
            return interrupted


async def read_typed_answer(
    read_line: Callable[[str], str], show: Callable[[], object], question: UserQuestion
) -> str | None:
    """Return the answer that a person types to a model's question. Ask again until it is one of the choices.

    Args:
        read_line: Shows a prompt and gives one line; blocks, and raises EOFError at the end of input.
        show: Shows the question; called when its turn has come.
        question: What is asked.
    """

    def converse() -> str | None:
        while not _TURN.acquire(timeout=SLICE_S):
            pass
        try:
            show()
            while (answer := parse_question_answer(read_line(ANSWER_HINT), question)) is None:
                pass
            return answer or None
        except EOFError:
            return None
        finally:
            _TURN.release()

    return await run_blocking(converse)


async def read_typed_approval(
    read_line: Callable[[str], str], show: Callable[[], object], request: ApprovalRequest
) -> Approval:
    """Return the answer that a person types. Questions are asked one at a time, as there is one keyboard.

    Args:
        read_line: Shows a prompt and gives one line; blocks, and raises EOFError at the end of input.
        show: Shows the question; called when its turn has come.
        request: What is asked.
    """

    def converse() -> Approval:
        while not _TURN.acquire(timeout=SLICE_S):
            pass
        try:
            show()
            return parse_approval(read_line(PROMPT), remember_choices(request))
        except EOFError:
            return Approval("deny", reason="The input ended before an answer.")
        finally:
            _TURN.release()

    return await run_blocking(converse)


def on_terminal() -> bool:
    """Return whether a person can be asked on standard input and output."""
    streams = (sys.stdin, sys.stdout)
    return all(stream is not None and not stream.closed and stream.isatty() for stream in streams)


def _write_out(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _read_terminal(prompt: str) -> str:
    """Read a line like `input`, but in short waits, so that the reading thread can be cancelled."""
    if os.name == "nt":
        return input(prompt)
    _write_out(prompt)
    while not select.select([sys.stdin], [], [], SLICE_S)[0]:
        pass
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


@contextlib.contextmanager
def _ctrl_c_cancels(reading: asyncio.Future[Any]) -> Iterator[None]:
    """Let Ctrl-C call off `reading`; by itself it leaves the loop, with the question alive behind it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    # Signal: a handler may run between any two instructions, so it only asks the loop to cancel.
    before = signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(reading.cancel))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def run_blocking(function: Callable[[], _T]) -> _T:
    """Run `function` in a thread of its own; cancelling raises KeyboardInterrupt in there.

    Unlike a pool's, the thread keeps neither interpreter nor loop from ending. For the interrupt to arrive,
    `function` must return to Python code now and then. A KeyboardInterrupt of its own counts as cancelled.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_T] = loop.create_future()
    leaving = threading.Lock()
    context = copy_context()

    def settle(value: _T | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(value)  # type: ignore[arg-type]  # there is a value whenever there is no error
        elif isinstance(error, Exception):
            outcome.set_exception(error)
        else:
            outcome.cancel()

    def work() -> None:
        value: _T | None = None
        error: BaseException | None = None
        # An interrupt that comes too late, or a loop that has gone, is not a failure to report.
        with contextlib.suppress(KeyboardInterrupt, RuntimeError):
            try:
                value = context.run(function)
            except StopIteration as caught:  # a future takes no StopIteration
                error = EOFError(*caught.args)
            except BaseException as caught:
                error = caught
            leaving.acquire()
            # Race: the loop may have been closed meanwhile; the RuntimeError is dropped above.
            loop.call_soon_threadsafe(settle, value, error)

    thread = threading.Thread(target=work, name="aisotools-asking", daemon=True)
    thread.start()
    try:
        while not outcome.done():
            await asyncio.wait([outcome], timeout=SLICE_S)
        return outcome.result()
    finally:
        outcome.cancel()
        # Race: the thread may return from `input` just now. It takes `leaving` on its way out and keeps it,
        # so an exception is raised in it only while it still asks, never in whatever the thread does next.
        if leaving.acquire(blocking=False):
            interrupt = ctypes.py_object(KeyboardInterrupt)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), interrupt)
            leaving.release()


_factory: ApproverFactory | None = None


def set_default_approver_factory(factory: ApproverFactory | None) -> None:
    """Register who makes the approver of a session that was given none; None takes it back."""
    global _factory  # noqa: PLW0603 - one per process, as there is one notebook
    _factory = factory


def default_approver() -> Approver | None:
    """Return the notebook's approver if it can ask, else the terminal's, else None."""
    approver = _factory() if _factory is not None else None
    return approver or (ConsoleApprover() if on_terminal() else None)
