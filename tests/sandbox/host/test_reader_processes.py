"""What calls start in a reader is gone after them, however it tries to stay."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from aisotools.sandbox.host.reader_processes import ReaderProcesses
from aisotools.sandbox.process import tree
from aisotools.tools.function import FunctionTool
from tests.sandbox.host.test_readers import evaluate, level, pid_of, read, wait_for, work, work_in_turns
from tests.sandbox.rig import Rig, open_files, rig, sleepers
from tests.waiting import as_soon_as, eventually, process_state

__all__ = ["level"]
pytestmark = pytest.mark.timeout(120)

# Each leaves a program behind, and returns when that has been started.
_NEW_SESSION = "import subprocess; subprocess.Popen(['sleep', '3600'], start_new_session=True)"
_DAEMON = """
import os
reading, writing = os.pipe()
if not os.fork():
    os.setsid()
    if not os.fork():
        os.close(reading)
        os.set_inheritable(writing, False)
        os.execvp('sleep', ['sleep', '3600'])
    os._exit(0)
os.close(writing)
os.read(reading, 1)
os.wait()
"""
_NOT_ADOPTED = f"""
import ctypes
ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
{_DAEMON}
"""
_ADOPTED_BELOW = """
import os
reading, writing = os.pipe()
if not os.fork():
    import ctypes
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    os.setsid()
    if not os.fork():
        if not os.fork():
            os.close(reading)
            os.set_inheritable(writing, False)
            os.execvp('sleep', ['sleep', '3600'])
        os._exit(0)
    os.close(writing)
    while True:
        os.wait()
os.close(writing)
os.read(reading, 1)
"""
# A process that is never the same for long: each forks the next one, and ends.
_FORK_LOOP = """
import os
reading, writing = os.pipe()
if not os.fork():
    os.setsid()
    os.close(reading)
    os.write(writing, b'x')
    os.close(writing)
    while True:
        if os.fork():
            os._exit(0)
os.read(reading, 1)
"""
_ZOMBIES = """
import os
for _ in range(20):
    if not os.fork():
        os._exit(0)
"""
ATTACKS = {
    "new session": _NEW_SESSION,
    "daemon": _DAEMON,
    "no adoption": _NOT_ADOPTED,
    "adoption below": _ADOPTED_BELOW,
    "fork loop": _FORK_LOOP,
    "zombies": _ZOMBIES,
    "end of the reader": f"{_DAEMON}\nos._exit(0)",
    "death of the reader": f"{_DAEMON}\nos.kill(os.getpid(), 9)",
}


def count(r: Rig) -> int:
    """Count the processes of the sandbox, those that ended and were not reaped among them."""
    return len(tree.descendants(r.kernel.supervisor))


def count_running(r: Rig) -> int:
    return sum(map(is_running, tree.descendants(r.kernel.supervisor)))


@pytest.mark.sample(6)
@pytest.mark.parametrize("one", [work, work_in_turns], ids=["sync", "async"])
@pytest.mark.parametrize("attack", ATTACKS)
async def test_processes_of_a_call_are_gone_after_it(
    tmp_path: Path, level: str, attack: str, one: FunctionTool[..., Any]
) -> None:
    async with rig(tmp_path, level=level) as r:
        await r.python("x = 1")
        assert await r.value("x") == 1
        await read(r, evaluate, code="x")
        usual = count(r)
        for _ in range(3):
            await read(r, one, code=ATTACKS[attack])
            assert sleepers(r.workspace) == []
        assert (await read(r, evaluate, code="x")).value == 1
        # What ended is reaped by others, in their own time; the last keeper when its snapshot is asked again.
        await eventually(lambda: count(r) <= usual + 1 and count_running(r) <= usual)
        assert (await r.bash("echo works", changes_variables=False)).content == "works"
        assert r.reported.losses == []


@pytest.mark.parametrize("attack", ["new session", "daemon"])
async def test_a_call_that_may_change_things_leaves_it_behind(tmp_path: Path, attack: str) -> None:
    async with rig(tmp_path) as r:
        await r.python(ATTACKS[attack])
        await eventually(lambda: len(sleepers(r.workspace)) == 1)


async def test_a_call_that_leaves_nothing_keeps_the_reader(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level) as r:
        first = await pid_of(r)
        await read(r, work, code="import subprocess; subprocess.run(['sleep', '0'])")
        await read(r, work, code="import threading; threading.Thread(target=threading.Event().wait).start()")
        await read(r, work, code="import subprocess; subprocess.run(['sleep', '0'])")
        assert await pid_of(r) == first


async def test_calls_beside_each_other(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level) as r:
        first = await pid_of(r)
        waiting = asyncio.ensure_future(read(r, wait_for, seconds=3600))
        await read(r, work, code=_DAEMON)
        assert not waiting.done(), "what has been left may be a program of the call that goes on"
        second = await pid_of(r)
        assert second != first, "it gets no further calls"
        await r.kernel.interrupt()
        assert (await waiting).metadata["stopped"]
        assert sleepers(r.workspace) == []
        assert await pid_of(r) == second


async def test_an_idle_reader_does_nothing(tmp_path: Path, level: str) -> None:
    code = """
import threading
def start():
    import os, subprocess, time
    while not os.path.exists('begin'):
        time.sleep(0.001)
    subprocess.Popen(['sleep', '3600'], start_new_session=True)
globals()['thread'] = threading.Thread(target=start)
thread.start()
"""
    async with rig(tmp_path, level=level) as r:
        await read(r, work, code=code)
        (first,) = r.kernel.variables.reader_pids
        await eventually(lambda: process_state(first) == "T")
        (r.workspace / "begin").touch()
        assert process_state(first) == "T"
        assert sleepers(r.workspace) == []
        # The next call lets the thread go on. What it starts is found at the end of that call.
        await read(r, work, code="thread.join()")
        assert sleepers(r.workspace) == []
        assert not is_running(first)
        assert (await read(r, evaluate, code="1 + 1")).value == 2


def has_ended(pid: int) -> bool:
    return not tree.exists(pid)


def is_running(pid: int) -> bool:
    return tree.parent_of(pid) != 0


async def test_programs_that_start_when_the_last_call_is_over_are_found_too(
    tmp_path: Path, level: str
) -> None:
    code = """
import os, threading
def start(reading):
    import os, subprocess
    os.read(reading, 1)
    subprocess.Popen(['sleep', '3600'], start_new_session=True)
reading, writing = os.pipe()
threading.Thread(target=start, args=(reading,)).start()
import asyncio
asyncio.get_running_loop().call_soon(os.write, writing, b'x')
"""
    async with rig(tmp_path, level=level) as r:
        await read(r, work, code=code)
        (first,) = r.kernel.variables.reader_pids or (0,)
        await eventually(lambda: process_state(first) in {"", "T"})
        await eventually(lambda: not sleepers(r.workspace))
        assert (await read(r, evaluate, code="1 + 1")).value == 2


async def test_a_reader_without_its_keeper_is_ended(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await read(r, evaluate, code="1")
        (first,) = r.kernel.variables.reader_pids
        (keeper,) = r.kernel.variables.keeper_pids
        assert tree.parent_of(first) == keeper
        os.kill(keeper, signal.SIGKILL)
        assert (await read(r, evaluate, code="1")).value == 1
        await eventually(lambda: not is_running(first))
        await eventually(lambda: first not in r.kernel.variables.reader_pids)
        assert (await read(r, evaluate, code="1")).value == 1


async def test_no_keeper_stays(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level) as r:
        await r.python("x = 1")
        usual = count_running(r)
        for _ in range(3):
            await read(r, evaluate, code="x")
            (keeper,) = r.kernel.variables.keeper_pids
            r.kernel._readers.outdate()
            # Once it is forgotten it has ended: what is there then is taken for something a call has left.
            await as_soon_as(lambda: not r.kernel.variables.keeper_pids)
            assert has_ended(keeper)
        assert count_running(r) <= usual


async def test_a_reader_that_could_not_be_made_leaves_no_keeper(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level) as r:
        await r.python("import mmap; m = mmap.mmap(-1, 300 << 20)")
        usual = count_running(r)
        assert (await read(r, evaluate, code="1")).is_error
        await eventually(lambda: count_running(r) <= usual)


def test_looking_leaves_nothing_open() -> None:
    before = open_files()
    mine = ReaderProcesses(os.getppid(), os.getpid())
    mine.close()
    mine.close()
    assert open_files() == before
