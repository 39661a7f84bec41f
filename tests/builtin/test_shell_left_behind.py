"""Commands after Python code that changed the process they are started from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aisotools.core.types import ToolResult
from tests.sandbox.rig import Rig, rig

HARMLESS = {
    "SIGCHLD is ignored": "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "SIGCHLD is ignored, past Python": (
        "import ctypes, signal; ctypes.CDLL(None).signal(int(signal.SIGCHLD), ctypes.c_void_p(1))"
    ),
    "a handler that reaps": (
        "import os, signal\n"
        "def reap(*_):\n"
        "    try:\n"
        "        while os.waitpid(-1, os.WNOHANG)[0]: pass\n"
        "    except ChildProcessError: pass\n"
        "signal.signal(signal.SIGCHLD, reap)"
    ),
    "all signals are blocked": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))",
    "the signals of an end": (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})"
    ),
    "nobody may use new files": "import os; os.umask(0o777)",
    "bash reads a file first": "import os; os.environ['BASH_ENV'] = os.environ['ENV'] = '/dev/zero'",
    "bash runs nothing": "import os; os.environ['SHELLOPTS'] = 'noexec'",
    "bash ends at an error": "import os; os.environ.update(SHELLOPTS='errexit', BASHOPTS='extdebug')",
    "a function in the place of a command": (
        "import os; os.environ['BASH_FUNC_echo%%'] = '() { printf evil; }'"
    ),
    "threads are traced": (
        "import threading\ndef fail(*_): raise RuntimeError('trace')\n"
        "threading.settrace(fail); threading.setprofile(fail)"
    ),
    "calls are profiled": "import sys, time\nsys.setprofile(lambda *_: time.sleep(0))",
    "stacks are huge": "import threading; threading.stack_size(1 << 33)",
    "nothing is collected": "import gc; gc.disable()",
    "the environment is empty": "import os; os.environ.clear()",
    "the folder is gone": "import os; os.makedirs('g/h'); os.chdir('g/h'); os.rmdir('../h')",
}
"""Code after which every command works as before."""

BROKEN = {
    "modules": "import sys; sys.modules.clear()",
    "programs": "import subprocess; subprocess.Popen = None",
    "the environment": "import os; os.environ = None",
    "a function": "import os; os.pidfd_open = None",
}
"""Code after which the worker cannot start programs, and is replaced."""

TAKEN = """
import os, threading, time
def reap():
    while True:
        try: os.waitid(os.P_ALL, 0, os.WEXITED)
        except ChildProcessError: time.sleep(0)
threading.Thread(target=reap, daemon=True).start()
"""
"""Code that takes the exit status of every child."""


@pytest.fixture
async def r(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as opened:
        yield opened


def outcome(result: ToolResult) -> tuple[bool, str]:
    return result.is_error, result.content


@pytest.mark.sample(12)
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("code", HARMLESS.values(), ids=HARMLESS)
async def test_commands_work_after(r: Rig, code: str, read_only: bool) -> None:
    left = await r.python(code)
    assert not left.is_error, left.content
    assert outcome(await r.bash("echo fine", read_only=read_only)) == (False, "fine")
    assert outcome(await r.bash("exit 3", read_only=read_only)) == (True, "[exit code 3]")
    assert outcome(await r.bash("true", read_only=read_only)) == (False, "")
    assert outcome(await r.bash("echo fine > file; cat file")) == (False, "fine")


@pytest.mark.sample(4)
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("code", BROKEN.values(), ids=BROKEN)
async def test_a_worker_that_cannot_start_programs_is_replaced(r: Rig, code: str, read_only: bool) -> None:
    await r.python("kept = 6")
    await r.python(code)
    failed = await r.bash("echo fine", read_only=read_only)
    if failed.is_error:  # a worker that only reads may be a copy from before
        assert "earlier call" in failed.content
        # What went wrong is said, either as the reason or as the worker's last output.
        assert "keeps calls from running: " in failed.content or "Its last output" in failed.content
        assert "no reason was given" not in failed.content
    # Where the reader was that copy, the worker is replaced now.
    again = await r.bash("echo fine")
    assert outcome(again) == (False, "fine") or (read_only and not failed.is_error)
    assert outcome(await r.bash("echo fine")) == (False, "fine")
    assert outcome(await r.bash("exit 3")) == (True, "[exit code 3]")
    assert (await r.python("kept")).content == "6"


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("command", ["true", "exit 3", "exit 255"])
async def test_a_status_that_was_taken_is_not_made_up(r: Rig, command: str, read_only: bool) -> None:
    await r.python(TAKEN)
    result = await r.bash(command, read_only=read_only)
    # The thread may come too late for one command, which is then reported as it was.
    known = {"true": (False, ""), "exit 3": (True, "[exit code 3]"), "exit 255": (True, "[exit code 255]")}
    if outcome(result) != known[command]:
        assert result.is_error
        assert "whether it succeeded is not known" in result.content
        assert "exit code" not in result.content


async def test_harmless_settings_are_kept_from_call_to_call(r: Rig) -> None:
    await r.python(
        "import os, signal\n"
        "os.umask(0o027)\n"
        "os.environ['OMP_NUM_THREADS'] = '3'\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('handled'))"
    )
    assert outcome(await r.bash("umask; echo $OMP_NUM_THREADS")) == (False, "0027\n3")
    result = await r.python("import os, signal; os.kill(os.getpid(), signal.SIGUSR1)")
    assert result.content == "handled"


async def test_memory_that_is_used_up_is_not_blamed_on_processes(r: Rig) -> None:
    await r.python(
        "import mmap\nheld = []\n"
        "for size in (1 << 26, 1 << 20, 1 << 16):\n"
        "    try:\n"
        "        while True: held.append(mmap.mmap(-1, size))\n"
        "    except OSError: pass"
    )
    result = await r.bash("echo fine", read_only=True)
    assert result.is_error
    # The first is what the program says; a worker that has no memory to say so is ended.
    assert "Cannot allocate memory" in result.content or "memory of all processes" in result.content
    assert result.metadata["limit"] == "memory_bytes"
    await r.python("held.clear()")
    assert outcome(await r.bash("echo fine", read_only=True)) == (False, "fine")
