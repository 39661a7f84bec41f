"""Threads of an event loop that are nobody else's."""

from __future__ import annotations

import ast
import asyncio
import contextvars
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from aisotools.core import threads
from aisotools.core.threads import TOOLS, LoopThreads, in_thread, start_in_thread
from tests.sandbox.alone import in_one_thread
from tests.waiting import HANG_S

PACKAGE = Path(threads.__file__).parents[1]

setting: contextvars.ContextVar[str] = contextvars.ContextVar("setting")


async def test_functions_run_in_named_threads_with_the_present_context() -> None:
    def look(*arguments: int, more: int) -> tuple[str, str, tuple[int, ...], int]:
        name = threading.current_thread().name
        found = setting.get()
        setting.set("changed by a thread")
        return name, found, arguments, more

    setting.set("of the task")
    name, found, arguments, more = await in_thread(look, 1, 2, more=3)
    assert name.startswith("aisotools_")
    assert (found, arguments, more, setting.get()) == ("of the task", (1, 2), 3, "of the task")
    assert (await TOOLS.start(look, more=4))[0].startswith("aisotools-tool_")


def test_a_function_is_waited_for_no_longer_than_asked() -> None:
    pool, goes_on = LoopThreads("waited", 2), threading.Event()
    assert pool.wait_for(lambda: 5, HANG_S) == 5
    assert pool.wait_for(goes_on.wait, 0) is None
    goes_on.set()
    with pytest.raises(OSError, match="no"):
        pool.wait_for(functools.partial(os.stat, "no such file"), HANG_S)


async def test_an_error_is_raised_where_the_result_is_awaited() -> None:
    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await in_thread(fail)
    future = start_in_thread(fail)
    assert isinstance(await asyncio.gather(future, return_exceptions=True), list)
    assert isinstance(future.exception(), OSError)


class Refusing(ThreadPoolExecutor):
    """Refuses all work, once a thread of its own may have run it."""

    def __init__(self, *, runs: bool) -> None:
        super().__init__(1)
        self.runs = runs

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        if self.runs:
            with suppress(OSError):
                function()
        raise RuntimeError("no further thread can be started")


@pytest.mark.parametrize("runs", [False, True])
async def test_work_that_is_refused_runs_once_and_ends(monkeypatch: pytest.MonkeyPatch, runs: bool) -> None:
    pool, calls = LoopThreads("refused", 1), list[int]()
    monkeypatch.setattr(pool, "_executor", Refusing(runs=runs))

    def note(number: int) -> int:
        calls.append(number)
        return number

    def fail() -> None:
        raise OSError("no")

    for number in range(50):
        assert await pool.start(note, number) == number
        with pytest.raises(OSError, match="no"):
            await pool.start(fail)
    assert calls == [*range(50)]


async def test_threads_are_used_again_and_bounded() -> None:
    two = LoopThreads("two", 2)
    assert repr(two) == "<LoopThreads 'two', at most 2>"
    names = [await two.start(lambda: threading.current_thread().name) for _ in range(20)]
    assert set(names) <= {"two_0", "two_1"}
    go_on = threading.Event()
    waiting = [two.start(go_on.wait, HANG_S) for _ in range(2)]
    third = two.start(int)
    await asyncio.sleep(0.01)
    assert not third.done()
    go_on.set()
    assert await asyncio.gather(*waiting, third) == [True, True, 0]


async def test_threads_of_the_loop_s_default_executor_are_not_needed() -> None:
    """A program may keep all of them waiting for a session."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    go_on = threading.Event()
    busy = loop.run_in_executor(None, go_on.wait, HANG_S)
    try:
        assert await in_thread(int) == 0
        assert await TOOLS.start(int) == 0
    finally:
        go_on.set()
        await busy


async def test_functions_of_tools_cannot_take_the_threads_of_the_package() -> None:
    go_on = threading.Event()
    stuck = [TOOLS.start(go_on.wait, HANG_S) for _ in range(50)]
    try:
        assert await in_thread(int) == 0
        assert await TOOLS.start(int) == 0
    finally:
        go_on.set()
        assert all(await asyncio.gather(*stuck))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_starts_threads_of_its_own() -> None:
    assert asyncio.run(in_thread(int)) == 0  # so that there is one that waits for work
    assert in_one_thread(lambda: {"result": asyncio.run(in_thread(int))}) == {"result": 0}
    assert asyncio.run(in_thread(int)) == 0


_AT_THE_END = """
import asyncio, atexit, threading
from aisotools.core.threads import TOOLS, in_thread

def name():
    return threading.current_thread().name.partition("_")[0]

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

async def of_a_tool():
    try:
        return await TOOLS.start(name)
    except RuntimeError as error:
        return str(error)

def end():
    print(asyncio.run(in_thread(name)), asyncio.run(of_a_tool()))
    threading.Thread.start = refuse
    print(asyncio.run(in_thread(name)), asyncio.run(of_a_tool()))

def outlive():
    threading.main_thread().join()
    print(asyncio.run(in_thread(name)))

assert asyncio.run(in_thread(name)) == "aisotools"
atexit.register(end)
threading.Thread(target=outlive).start()
"""


def test_functions_run_while_the_interpreter_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _AT_THE_END], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.stderr == ""
    outlived, with_threads, without = done.stdout.splitlines()
    if sys.version_info < (3, 12):
        assert (outlived, with_threads) == ("aisotools", "aisotools aisotools-tool")
    else:  # the interpreter starts no thread any more then, and what it has done by itself is as without
        assert outlived.startswith("Thread-1")
        assert with_threads.startswith("MainThread c")
    # A function of a tool may wait for the loop, which waits for it then.
    assert without.startswith("MainThread cannot schedule new futures")


def test_nothing_here_uses_the_threads_of_a_program() -> None:
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            is_default = node.func.attr == "run_in_executor" and (
                isinstance(node.args[0], ast.Constant) and node.args[0].value is None
            )
            if node.func.attr == "to_thread" or is_default:
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert found == []
