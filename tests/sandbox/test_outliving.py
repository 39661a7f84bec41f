"""Attacks: code in the sandbox starts what is to outlive a timeout, a stop or `task_stop`."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aisotools.builtin import WORKER_MODULES
from aisotools.core.protocols import ToolPayload
from aisotools.core.types import ToolResult
from aisotools.sandbox.confinement.levels import LEVELS
from aisotools.sandbox.host.programs import _NAMING_S
from aisotools.sandbox.process import spawn
from tests.sandbox.rig import PATIENT, Rig, rig, sleepers
from tests.waiting import eventually

STOP_TASK = ToolPayload(
    key="task_stop", import_path="aisotools.builtin.tasks:task_stop", concurrency="overlap", programs="none"
)

BESIDE = ToolPayload(key="beside", import_path="aisotools.builtin.python:python", concurrency="main")


@pytest.fixture(
    params=[
        *("isolated", "confined"),
        *(pytest.param(level, marks=pytest.mark.slow) for level in ("guarded", "limited")),
    ]
)
async def r(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    strongest = spawn.detection(WORKER_MODULES).level
    if strongest is None or LEVELS.index(request.param) > LEVELS.index(strongest):
        pytest.skip(f"no level {request.param} here")
    async with rig(tmp_path, level=request.param, stop_timeouts=PATIENT) as made:
        await made.python("import os, subprocess, sys, time")
        yield made


def asleep(r: Rig) -> set[int]:
    """For how many seconds each program sleeps that is there: the tests tell them apart by that."""
    found = [process.rpartition(" sleep ")[2].strip() for process in sleepers(r.workspace)]
    return {int(seconds) for seconds in found if seconds.isdigit()}


async def asleep_are(r: Rig, *seconds: int) -> None:
    await eventually(lambda: asleep(r) == {*seconds})


async def start_task(r: Rig, command: str) -> str:
    result = await r.bash(command, background=True)
    assert not result.is_error, result.content
    return str(result.value["task"])


async def stop_task(r: Rig, task: str) -> ToolResult:
    return await r.call(STOP_TASK, {"task": task})


async def beside(r: Rig, code: str, **more: Any) -> ToolResult:
    """Run Python code on the main thread, beside commands."""
    return await r.call(BESIDE, {"code": code}, **more)


async def stop_by(r: Rig, how: str) -> None:
    """Stop one call, in one of the ways there are."""
    if how == "command":
        result = await r.bash("sleep 99", timeout=200)
        assert result.metadata["timed_out"] is True
    elif how == "deadline":
        result = await r.python("import time; time.sleep(99)", timeout_s=0.2)
        assert result.metadata["state_kept"] is True
    else:
        (r.workspace / "waits").unlink(missing_ok=True)
        waiting = asyncio.create_task(r.python("open('waits', 'w').close()\nimport time; time.sleep(99)"))
        await eventually((r.workspace / "waits").exists)
        await r.kernel.interrupt()
        await waiting


# ---- copies of what a task has of its own

COPY_ENVIRONMENT = """
env = dict(entry.split('=', 1) for entry in open('environment').read().split(chr(0)) if '=' in entry)
env |= {name: value for name, value in os.environ.items() if name not in env}
"""
STARTED_AS_COPIES = {
    "a child of the worker": "subprocess.Popen(['sleep', '2000'], env=env, start_new_session=True)",
    "detached twice": (
        "subprocess.run(['setsid', 'sh', '-c', 'setsid sleep 2000 & exit'], env=env, start_new_session=True)"
    ),
    "in a group of its own": "subprocess.Popen(['sleep', '2000'], env=env, process_group=0)",
    "of a shell": "subprocess.run('nohup sleep 2000 > /dev/null 2>&1 &', shell=True, env=env)",
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("how", ["command", "deadline", "interrupt"])
@pytest.mark.parametrize("started", STARTED_AS_COPIES.values(), ids=STARTED_AS_COPIES)
async def test_nothing_outlives_a_stop_with_the_environment_of_a_task(r: Rig, started: str, how: str) -> None:
    await start_task(r, "cat /proc/self/environ > environment || env -0 > environment; exec sleep 1000")
    await asleep_are(r, 1000)
    await r.python(COPY_ENVIRONMENT + started)
    await asleep_are(r, 1000, 2000)  # without a stop it goes on
    await stop_by(r, how)
    await asleep_are(r, 1000)


async def test_stopping_a_task_ends_what_bears_its_environment_with_the_next_stop_only(r: Rig) -> None:
    """It is not the task's, and so lives as long as all that an earlier call has left."""
    task = await start_task(r, "env -0 > environment; exec sleep 1000")
    await asleep_are(r, 1000)
    await r.python(COPY_ENVIRONMENT + STARTED_AS_COPIES["a child of the worker"])
    await stop_task(r, task)
    await asleep_are(r, 2000)
    await stop_by(r, "command")
    await asleep_are(r)


async def test_a_task_that_has_ended_spares_nothing(r: Rig) -> None:
    await start_task(r, "env -0 > environment; touch up")
    await eventually((r.workspace / "up").exists)
    await r.python(COPY_ENVIRONMENT + STARTED_AS_COPIES["detached twice"])
    await asleep_are(r, 2000)
    await stop_by(r, "command")
    await asleep_are(r)


async def test_a_task_whose_keeper_is_killed_ends_at_the_next_stop(r: Rig) -> None:
    wait = "while [ ! -e go ]; do sleep 0.01; done"
    await start_task(r, f"setsid sleep 1000 & {wait}; kill -9 $PPID; exec sleep 2000")
    await start_task(r, "exec sleep 3000")
    (r.workspace / "go").touch()
    await asleep_are(r, 1000, 2000, 3000)
    await stop_by(r, "command")
    await asleep_are(r, 3000)


# ---- orphans beside another call

ORPHANS = {
    "without an environment": "env -i setsid sh -c 'setsid sleep 2000 &'",
    "twice": "(setsid sh -c '(env -i setsid sleep 2000 &) & exit' &)",
    "by nohup": "(nohup sleep 2000 > /dev/null 2>&1 &)",
}
OTHER_PYTHON = """
import asyncio
other = subprocess.Popen(['sleep', '1000'])
open('began', 'w').close()
while not os.path.exists('go'): await asyncio.sleep(0.01)
print(other.poll())
other.kill()
"""
OTHERS: dict[str, tuple[str, str]] = {
    "a command": ("bash", "sleep 1000 & touch began; while [ ! -e go ]; do sleep 0.01; done; kill $!"),
    "a command with a daemon": (
        "bash",
        "(sleep 1000 & echo $! > pid); touch began; while [ ! -e go ]; do sleep 0.01; done; kill $(cat pid)",
    ),
    "python": (
        "beside",
        OTHER_PYTHON,
    ),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize(("kind", "code"), OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("orphan", ORPHANS.values(), ids=ORPHANS)
async def test_no_orphan_of_a_stopped_call_goes_on_beside_another_call(
    r: Rig, orphan: str, kind: str, code: str
) -> None:
    other = asyncio.create_task(beside(r, code) if kind == "beside" else r.bash(code))
    await eventually((r.workspace / "began").exists)
    await eventually(lambda: 1000 in asleep(r))
    stopped = asyncio.create_task(r.bash(f"{orphan}; touch left; sleep 99", timeout=700))
    await eventually(lambda: stopped.done() or 2000 in asleep(r))
    assert (await stopped).metadata["timed_out"] is True
    await eventually(lambda: 2000 not in asleep(r))
    assert 1000 in asleep(r)
    (r.workspace / "go").touch()
    result = await other
    assert not result.is_error, result.content


LEFT_BEHIND = {
    "a child of the worker": "subprocess.Popen(['sleep', '2000'])",
    "an orphan": "subprocess.run('sleep 2000 &', shell=True)",
    "a child of a subreaper": (
        "import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); "
        "subprocess.run('setsid sleep 2000 &', shell=True)"
    ),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("left", LEFT_BEHIND.values(), ids=LEFT_BEHIND)
async def test_programs_that_an_earlier_call_left_are_not_those_of_a_call_that_runs(
    r: Rig, left: str
) -> None:
    await r.python(left)
    other = asyncio.create_task(beside(r, OTHER_PYTHON))  # at once: within the same tick of the clock
    await eventually((r.workspace / "began").exists)
    await asleep_are(r, 1000, 2000)
    await stop_by_command(r)
    await eventually(lambda: 2000 not in asleep(r))
    assert 1000 in asleep(r)
    (r.workspace / "go").touch()
    assert "None" in (await other).content


async def stop_by_command(r: Rig) -> None:
    assert (await r.bash("sleep 99", timeout=200)).metadata["timed_out"] is True


@pytest.mark.parametrize("naming_s", [_NAMING_S, 0], ids=["waits", "does not wait"])
async def test_a_call_that_is_stopped_takes_no_other_call_with_it(
    r: Rig, monkeypatch: pytest.MonkeyPatch, naming_s: float
) -> None:
    """A call on the main thread blocks the loop while a command of another call has just begun.

    On a busy machine the command may take longer to name its program than a stop waits for that.
    """
    monkeypatch.setattr("aisotools.sandbox.host.programs._NAMING_S", naming_s)
    for count in range(3):
        command = f"touch began{count}; while [ ! -e go{count} ]; do sleep 0.01; done; echo survived"
        other = asyncio.create_task(r.bash(command))
        stopped = await beside(r, "import time; time.sleep(99)", timeout_s=0.3)
        assert stopped.metadata["timed_out"] is True
        await eventually((r.workspace / f"began{count}").exists)
        (r.workspace / f"go{count}").touch()
        assert (await other).value["stdout"] == "survived\n"


async def test_a_call_that_names_no_program_keeps_one_process_at_most_and_while_it_runs(r: Rig) -> None:
    command = "touch began; while [ ! -e go ]; do sleep 0.01; done"
    other = asyncio.create_task(r.bash(f": > queued; {command}"))
    leave = "for n in range(3): subprocess.Popen(['sleep', str(1000 + n)], start_new_session=True)\n"
    deceive = "worker._name_program = lambda number, pid: None\n"
    stopped = await beside(
        r,
        FIND_WORKER + deceive + leave + "subprocess.Popen(['sleep', '2000'])\ntime.sleep(99)",
        timeout_s=0.3,
    )
    assert stopped.metadata["timed_out"] is True
    assert len(asleep(r) & {1000, 1001, 1002, 2000}) <= 1
    await eventually((r.workspace / "began").exists)
    (r.workspace / "go").touch()
    await other
    await eventually(lambda: not asleep(r) & {1000, 1001, 1002, 2000})


# ---- processes that are never there when they are looked at

RESTLESS = """
import os, sys, time
ends_s = time.monotonic() + 100
while time.monotonic() < ends_s:
    if os.fork():
        os._exit(0)
    {0}
    os.write(3, b".")
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("step", ["pass", "os.setsid()"])
async def test_a_process_that_forks_and_ends_on_and_on_does_not_outlive_a_stop(r: Rig, step: str) -> None:
    (r.workspace / "restless.py").write_text(RESTLESS.format(step))
    os.mkfifo(r.workspace / "pipe")
    pipe = io.FileIO(os.open(r.workspace / "pipe", os.O_RDONLY | os.O_NONBLOCK))
    start = 'exec 3> pipe; (setsid "$(command -v python3)" -I -S restless.py &)'
    with pipe:
        stopped = asyncio.create_task(r.bash(f"{start}; sleep 99", timeout=2000))
        # Empty is the end of the pipe, None that there is nothing yet.
        await eventually(lambda: stopped.done() or pipe.read(1))
        await stopped
        # Whoever is left holds the other end.
        await eventually(lambda: pipe.read(1 << 16) == b"")


async def test_a_program_of_a_thread_ends_at_a_stop_without_a_call_beside_it(r: Rig) -> None:
    thread = "threading.Thread(target=subprocess.run, args=(['sleep', '2000'],))"
    await r.python(f"import threading; {thread}.start()")
    await asleep_are(r, 2000)
    await stop_by(r, "command")
    await asleep_are(r)


async def test_program_that_a_thread_starts_beside_python_code_counts_as_its_own_while_it_runs(
    r: Rig,
) -> None:
    thread = """
import threading
def run():
    while not os.path.exists('start'): time.sleep(0.01)
    subprocess.run(['sleep', '2000'])
threading.Thread(target=run).start()
"""
    await r.python(thread)
    other = asyncio.create_task(beside(r, OTHER_PYTHON))
    await eventually((r.workspace / "began").exists)
    (r.workspace / "start").touch()
    await asleep_are(r, 1000, 2000)
    await stop_by_command(r)
    assert asleep(r) == {1000, 2000}
    (r.workspace / "go").touch()
    assert "None" in (await other).content
    await stop_by_command(r)
    await asleep_are(r)


# ---- what a worker says about programs

FIND_WORKER = """
import gc
from aisotools.sandbox.worker.worker import Worker
worker = next(found for found in gc.get_objects() if isinstance(found, Worker))
"""


async def test_a_program_that_is_named_for_a_call_that_has_ended_or_names_one_is_not_spared(r: Rig) -> None:
    await start_task(r, "exec sleep 1000")
    command = "touch began; while [ ! -e go ]; do sleep 0.01; done"
    other = asyncio.create_task(r.bash(command))
    await eventually((r.workspace / "began").exists)
    await beside(
        r,
        FIND_WORKER
        + "evil = subprocess.Popen(['sleep', '2000'], start_new_session=True)\n"
        + "for number in range(1, 50): worker._name_program(number, evil.pid)",
    )
    await asleep_are(r, 1000, 2000)
    await stop_by_command(r)
    await eventually(lambda: 2000 not in asleep(r))
    assert 1000 in asleep(r)
    (r.workspace / "go").touch()
    assert not (await other).is_error


@pytest.mark.sample(6)
@pytest.mark.parametrize("forged", ["0", "1", "-5", "'x'", "None", "1 << 40", "True"])
async def test_a_forged_number_of_a_program_ends_the_worker(r: Rig, forged: str) -> None:
    result = await r.python(FIND_WORKER + f"worker._name_program(worker._running, {forged}); time.sleep(99)")
    assert "broke the protocol of the call channel" in result.content
    assert await r.value("1 + 1") == 2


async def test_only_what_is_below_a_keeper_is_stopped_through_the_host(r: Rig) -> None:
    await r.python("child = subprocess.Popen(['sh', '-c', 'sleep 2000; true'])")
    await asleep_are(r, 2000)
    forge = "for pid in (os.getpid(), os.getppid() or 1, child.pid):\n    if pid > 1: stop(pid, kill=True)"
    await r.python(
        FIND_WORKER + "stop = lambda *a, **k: worker._stop_program(worker._running, *a, **k)\n" + forge
    )
    assert await r.value("child.poll() is None")
    assert asleep(r) == {2000}


# ---- tasks

DETACHED: dict[str, str] = {
    "nohup": "nohup sleep 1000 > /dev/null 2>&1 &",
    "a session of its own": "setsid sleep 1000 &",
    "detached twice": "env -i setsid sh -c 'setsid sleep 1000 &'",
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("how", ["command", "deadline", "interrupt"])
@pytest.mark.parametrize("server", DETACHED.values(), ids=DETACHED)
async def test_a_server_goes_on_whose_task_has_ended_and_is_stopped_with_it(
    r: Rig, server: str, how: str
) -> None:
    task = await start_task(r, f"{server}\nexit 3")
    other = await start_task(r, "setsid sleep 3000 & exec sleep 4000")
    await asleep_are(r, 1000, 3000, 4000)
    await stop_by(r, how)
    await asleep_are(r, 1000, 3000, 4000)
    stopped = await stop_task(r, task)
    assert "exit code 3 already; what it had left running was stopped" in stopped.content
    await asleep_are(r, 3000, 4000)
    await stop_task(r, other)
    await asleep_are(r)


async def test_stopping_a_task_ends_all_that_it_started_and_nothing_of_another(r: Rig) -> None:
    command = (
        "(trap '' TERM; env -i setsid sh -c 'trap \"\" TERM; setsid sleep {0}1 & sleep {0}2') & sleep {0}3"
    )
    one, two = [await start_task(r, command.format(number)) for number in (5, 6)]
    await asleep_are(r, 51, 52, 53, 61, 62, 63)
    stopped = await stop_task(r, one)
    assert stopped.value["tasks"][0]["state"] == "stopped"
    assert asleep(r) == {61, 62, 63}
    await stop_task(r, two)
    assert asleep(r) == set()


# ---- flags of descriptors

CHANGE_FLAGS = """
import fcntl, stat
for number in range(3, 100):
    try: mode = os.fstat(number).st_mode
    except OSError: continue
    if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
        fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) {0} os.O_NONBLOCK)
"""
CHANGE_SOCKETS = """
import socket, stat, struct
for number in range(3, 100):
    try: mode = os.fstat(number).st_mode
    except OSError: continue
    if stat.S_ISSOCK(mode):
        with socket.socket(fileno=os.dup(number)) as sock:
            for option, value in {0}:
                sock.setsockopt(socket.SOL_SOCKET, option, value)
"""
CHANGES: dict[str, str] = {
    "nothing blocks": CHANGE_FLAGS.format("|"),
    "everything blocks": CHANGE_FLAGS.format("& ~"),
    "a time for sending": CHANGE_SOCKETS.format("[(socket.SO_SNDTIMEO, struct.pack('ll', 0, 1))]"),
    "a time for receiving": CHANGE_SOCKETS.format("[(socket.SO_RCVTIMEO, struct.pack('ll', 0, 1))]"),
    "little room": CHANGE_SOCKETS.format("[(socket.SO_SNDBUF, 1)]"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_calls_work_at_once_whatever_code_does_to_descriptors(r: Rig, change: str) -> None:
    await r.python(f"kept = 1\n{change}")
    for _ in range(2):
        large = await r.python("print('x' * 3_000_000)\n'y' * 2_000_000")
        assert not large.is_error, large.content[:200]
        assert (await r.bash("echo fine")).value["stdout"] == "fine\n"
        assert (await r.python("import asyncio\nawait asyncio.to_thread(time.sleep, 0)\nkept")).content == "1"
    stopped: Any = await r.python("time.sleep(99)", timeout_s=0.2)
    assert stopped.metadata["state_kept"] is True
    assert len(r.reported.starts) == 1


async def test_a_signal_of_its_own_interrupts_a_call_whose_pipes_all_block(r: Rig) -> None:
    await r.python(CHANGE_FLAGS.format("& ~"))
    result = await r.python("import signal; os.kill(os.getpid(), signal.SIGINT); time.sleep(99)")
    assert "KeyboardInterrupt" in result.content
    assert await r.value("1 + 1") == 2
