"""Stop means stop: whatever a call does, control comes back in time, and the next call works."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aisotools.core.protocols import ToolContext
from aisotools.core.types import ToolResult
from aisotools.sandbox.confinement.levels import LEVELS
from aisotools.sandbox.host.calls import StopTimeouts
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import spawn, tree
from aisotools.tools.function import tool
from tests.sandbox.rig import DEAF_ONCE, PATIENT, Rig, processes_of, rig, sleepers
from tests.waiting import HANG_S, eventually, loop_turns

DEADLINE_S = 0.2

INTERRUPTIBLE = {
    "sleep": "import time; time.sleep(100)",
    "loop": "while True: pass",
    "regex": "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')",
    "power": "3 ** (10 ** 8)",
    "await": "import asyncio\nawait asyncio.sleep(100)",
    "gather": "import asyncio\nawait asyncio.gather(*(asyncio.sleep(100) for _ in range(5)))",
    "subprocess": "import subprocess; subprocess.run(['sleep', '100'])",
    "captured subprocess": "import subprocess; subprocess.run(['sleep', '100'], capture_output=True)",
    "asyncio subprocess": """
import asyncio
process = await asyncio.create_subprocess_exec('sleep', '100')
await process.wait()
""",
    "system": "import os; os.system('sleep 100')",
    "!": "!sleep 100",
    "x = !": "x = !sleep 100",
    "%%bash": "%%bash\nsleep 100",
    "lock": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "printing": "while True: print('x' * 50)",
    "thread": """
import threading, time
thread = threading.Thread(target=time.sleep, args=(100,), daemon=True)
thread.start()
thread.join()
""",
    "memory": "x = []\nwhile True: x.append(bytearray(1 << 20)); x.pop()",
    "slow repr": """
import time
class R:
    def __repr__(self): time.sleep(100)
R()
""",
}

STUBBORN = {
    "uninterruptible C": "sum(range(10 ** 11))",
    "ignores SIGINT": """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
while True: time.sleep(1)
""",
    "blocks all signals": """
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
while True: time.sleep(1)
""",
    "catches KeyboardInterrupt for ever": """
import time
while True:
    try: time.sleep(1)
    except BaseException: pass
""",
    "catches CancelledError for ever": """
import asyncio
while True:
    try: await asyncio.sleep(1)
    except BaseException: pass
""",
    "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "without its first thread": """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(100,)).start()
ctypes.CDLL(None).pthread_exit(None)
""",
    "a background task that hogs the loop": """
import asyncio, time
async def hog():
    while True: time.sleep(1)
task = asyncio.create_task(hog())
await asyncio.sleep(100)
""",
    "closes all its descriptors": "import os, time; os.closerange(0, 100)\nwhile True: time.sleep(1)",
}


# The best one of this machine, and on request all others.
EACH_LEVEL = (None, *(pytest.param(level, marks=pytest.mark.slow) for level in LEVELS))


def take_level(request: pytest.FixtureRequest) -> str | None:
    level: str | None = request.param
    if level is not None and not any(probe.name == level and probe.ok for probe in spawn.detection().probes):
        pytest.skip(f"this machine cannot hold the level {level}")
    return level


@pytest.fixture(params=EACH_LEVEL)
async def r(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """For calls that can be interrupted: however busy the machine, nothing is killed."""
    async with rig(tmp_path, level=take_level(request), stop_timeouts=PATIENT) as made:
        await made.python("kept = 1")
        yield made


@pytest.fixture(params=EACH_LEVEL)
async def strict(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """For calls that cannot be interrupted: their worker is killed after the grace period."""
    async with rig(tmp_path, level=take_level(request)) as made:
        await made.python("kept = 1")
        yield made


def test_all_steps_together_return_control_in_time() -> None:
    """Each step of stopping a call waits no longer than this; the benchmarks measure what it really takes."""
    timeouts = StopTimeouts()
    assert timeouts.interrupt_s + timeouts.kill_s + timeouts.recover_s <= 0.56


async def test_no_step_waits_longer_than_its_timeout(tmp_path: Path) -> None:
    """The supervisor is stopped, so that nothing ends and nothing is restored: control comes back."""
    async with rig(tmp_path, stop_timeouts=StopTimeouts(settle_s=0)) as r:
        await r.python("kept = 1")
        supervisor = r.kernel.supervisor
        os.kill(supervisor, signal.SIGSTOP)
        try:
            result = await r.python("sum(range(10**11))", timeout_s=DEADLINE_S)
        finally:
            os.kill(supervisor, signal.SIGCONT)
        assert result.metadata["timed_out"] is True
        assert "is being restored; that had not finished when this was reported" in result.content
        assert await r.value("1 + 1") == 2


@pytest.mark.parametrize("is_interrupted", [False, True], ids=["by itself", "interrupted"])
async def test_result_after_a_timeout_waits_for_the_variables_until_stop_is_pressed(
    tmp_path: Path, *, is_interrupted: bool
) -> None:
    async with rig(tmp_path, stop_timeouts=StopTimeouts(recover_s=0.02, settle_s=50)) as r:
        await r.python("kept = 1")
        supervisor = r.kernel.supervisor
        os.kill(supervisor, signal.SIGSTOP)
        try:
            call = asyncio.create_task(r.python("sum(range(10**11))", timeout_s=DEADLINE_S))
            await eventually(lambda: r.kernel._recovery is not None)
            await asyncio.wait([call], timeout=0.3)
            assert not call.done()
            if is_interrupted:
                await r.kernel.interrupt()
                assert "that had not finished when this was reported" in (await call).content
        finally:
            os.kill(supervisor, signal.SIGCONT)
        if not is_interrupted:
            assert "The variables were restored to what they were before this call." in (await call).content
        assert await r.value("kept") == 1


COUNTING = """
import threading
turn, counted = threading.Event(), 0
def count():
    global counted
    while turn.wait():
        turn.clear()
        counted += 1
threading.Thread(target=count, daemon=True).start()
"""


async def test_a_timeout_leaves_the_threads_of_earlier_calls(r: Rig) -> None:
    await r.python(COUNTING)
    stopped = await r.bash("sleep 1000", timeout_s=DEADLINE_S)
    assert stopped.metadata["timed_out"] is True
    await r.python("import time\nturn.set()\nwhile turn.is_set() or not counted: time.sleep(0.01)")
    assert await r.value("counted") == 1


THREADS = """
import threading, time
def wait(): turn.wait()
turn = threading.Event()
for name in {names!r}:
    threading.Thread(target=wait, name=name, daemon=True).start()
"""


THREAD_NOTE = "[2 threads that the call has started go on: counting, sending. An undo of the call,"


@pytest.mark.parametrize("waiting", ["time.sleep(1000)", "import asyncio\nawait asyncio.sleep(1000)"])
async def test_the_result_of_a_stopped_call_names_the_threads_that_it_has_started(
    r: Rig, waiting: str
) -> None:
    await r.python(THREADS.format(names=["earlier"]))
    code = THREADS.format(names=["counting", "sending"]) + f"open('began', 'w').close()\n{waiting}"
    call = asyncio.create_task(r.python(code))
    await eventually((r.workspace / "began").exists)
    await r.kernel.interrupt()
    stopped = await call
    assert stopped.metadata["stopped"] is True
    assert THREAD_NOTE in stopped.content
    assert await r.value("1 + 1") == 2


async def test_the_result_of_a_timeout_names_the_threads_that_the_call_has_started(r: Rig) -> None:
    code = THREADS.format(names=["counting", "sending"]) + "time.sleep(1000)"
    deadline_s, content = DEADLINE_S, ""
    # On a busy machine the call may not have come to its threads by then.
    while "counting" not in content and deadline_s < HANG_S:
        stopped = await r.python(code, timeout_s=deadline_s)
        assert stopped.metadata["timed_out"] is True
        deadline_s, content = 4 * deadline_s, stopped.content
    assert THREAD_NOTE in content
    assert "thread" not in (await r.bash("sleep 1000", timeout_s=DEADLINE_S)).content


LEFT = {
    "a thread": """
import os, threading, time
def act():
    while not os.path.exists('go'): time.sleep(0.01)
    open('late', 'w').close()
threading.Thread(target=act, daemon=True).start()
""",
    "a timer": """
import os, signal
def act(*_):
    if os.path.exists('go'): open('late', 'w').close()
_ = signal.signal(signal.SIGALRM, act)
_ = signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
""",
    "a task": """
import asyncio, os
async def act():
    while not os.path.exists('go'): await asyncio.sleep(0.01)
    open('late', 'w').close()
kept = asyncio.ensure_future(act())
""",
}


@pytest.mark.parametrize("how", ["timeout", "stop"])
@pytest.mark.parametrize("code", LEFT.values(), ids=LEFT)
async def test_threads_timers_and_tasks_outlive_both_ways_to_stop_and_end_with_a_restart(
    r: Rig, code: str, how: str
) -> None:
    """Without the restart, as a control, it goes on to act."""
    began, go, late = (r.workspace / name for name in ("began", "go", "late"))
    waiting = code + "open('began', 'w').close()\nimport asyncio\nawait asyncio.sleep(1000)"
    for restarts in (False, True):
        if how == "stop":
            call = asyncio.create_task(r.python(waiting))
            await eventually(began.exists)
            await r.kernel.interrupt()
            assert (await call).metadata["stopped"] is True
        deadline_s = DEADLINE_S
        while not began.exists():  # a busy machine may take longer to come to what is left
            assert (await r.python(waiting, timeout_s=deadline_s)).metadata["timed_out"] is True
            deadline_s *= 4
        if restarts:
            before = r.kernel.status().pid
            await r.kernel.restart()
            assert before not in tree.table()
        go.touch()
        if restarts:
            assert await r.value("1 + 1") == 2
            assert not late.exists()
        else:
            await eventually(late.exists)
            late.unlink()
            # A timer goes on and on.
            await r.kernel.restart()
            late.unlink(missing_ok=True)
        go.unlink()
        began.unlink()


async def test_no_call_begins_before_the_sweep_after_a_stopped_one(tmp_path: Path) -> None:
    """A sweep spares the calls that run when it begins: one that began meanwhile would be killed."""
    async with rig(tmp_path, stop_timeouts=StopTimeouts()) as r:
        await r.bash("true")
        supervisor = r.kernel.supervisor
        os.kill(supervisor, signal.SIGSTOP)
        try:
            assert (await r.bash("sleep 100", timeout=200)).metadata["timed_out"] is True
            following = asyncio.create_task(r.bash("echo next"))
            await loop_turns()
            assert r.kernel._connection is not None
            assert not r.kernel._connection.calls
        finally:
            os.kill(supervisor, signal.SIGCONT)
        assert (await following).value["stdout"] == "next\n"


async def test_a_call_that_waits_for_the_sweep_can_be_interrupted(tmp_path: Path) -> None:
    async with rig(tmp_path, stop_timeouts=StopTimeouts()) as r:
        await r.bash("true")
        supervisor = r.kernel.supervisor
        os.kill(supervisor, signal.SIGSTOP)
        try:
            await r.bash("sleep 100", timeout=200)
            following = asyncio.create_task(r.bash("echo next"))
            await loop_turns()
            await r.kernel.interrupt()
            assert (await following).content == "The call was interrupted before it ran."
        finally:
            os.kill(supervisor, signal.SIGCONT)
        assert (await r.bash("echo next")).value["stdout"] == "next\n"


@pytest.mark.sample(7)
@pytest.mark.parametrize("code", INTERRUPTIBLE.values(), ids=INTERRUPTIBLE)
async def test_an_interruptible_call_keeps_the_variables(r: Rig, code: str) -> None:
    result = await r.python(code, timeout_s=DEADLINE_S)
    assert result.is_error
    assert result.content.startswith(
        "python timed out after 0.2 s. Variables are kept, including changes made before the timeout.\n"
    )
    assert result.metadata["timed_out"] is True
    assert result.metadata["state_kept"] is True, result.content
    assert await r.value("kept") == 1
    assert sleepers(r.workspace) == []


@pytest.mark.sample(4)
@pytest.mark.parametrize("code", STUBBORN.values(), ids=STUBBORN)
async def test_an_uninterruptible_call_is_ended_and_the_next_one_works(strict: Rig, code: str) -> None:
    r = strict
    result = await r.python(code, timeout_s=DEADLINE_S)
    assert result.is_error
    if not result.metadata.get("worker_died"):
        assert result.metadata["timed_out"] is True
    assert result.metadata["state_kept"] is True
    assert "The variables were restored to what they were before this call." in result.content
    assert await r.value("kept + 1") == 2
    assert r.reported.starts[-1][0].generation == 2
    assert "the variables are as they were before the call" in r.reported.starts[-1][1]
    assert r.reported.losses == []


async def test_output_before_a_stop_is_not_lost(strict: Rig) -> None:
    r = strict
    code = "print('step 1'); import os; os.system('echo step 2'); sum(range(10**11))"
    result = await printing(r, code, "step 2\n")
    assert result.metadata["stdout"] == "step 1\nstep 2\n"
    assert "step 2" in result.content


async def test_output_before_an_interrupt_is_not_lost(r: Rig) -> None:
    result = await printing(r, "print('step 1')\nwhile True: pass", "step 1\n")
    assert result.metadata["stdout"] == "step 1\n"
    assert "line 2\n    while True: pass\nKeyboardInterrupt" in result.content
    assert "worker.py" not in result.content


async def test_interrupting_returns_the_call(r: Rig) -> None:
    for code in (
        "import time; print('began'); time.sleep(100)",
        "print('began')\nwhile True: pass",
        "import asyncio\nprint('began')\nawait asyncio.sleep(100)",
    ):
        call = asyncio.create_task(r.python(code))
        await printed(r, "began")
        r.reported.outputs.clear()
        await r.kernel.interrupt()
        result = await call
        assert result.is_error
        assert result.metadata["stopped"] is True
    assert await r.value("kept") == 1


async def test_an_idle_interrupt_does_nothing(r: Rig) -> None:
    for _ in range(3):
        await r.kernel.interrupt()
    assert await r.value("kept") == 1


async def test_interrupting_before_anything_was_started(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.kernel.interrupt()
        assert r.reported.starts == []


async def test_an_interrupt_of_a_call_that_waits_for_its_turn(r: Rig) -> None:
    calls = [asyncio.create_task(r.python("import time; print('began'); time.sleep(100)")) for _ in range(3)]
    await printed(r, "began")
    await r.kernel.interrupt()
    first, second, third = await asyncio.gather(*calls)
    assert first.metadata["stopped"] is True
    for queued in (second, third):
        assert queued.content == "The call was interrupted before it ran."
    assert await r.value("kept") == 1


async def test_an_interrupt_that_is_not_noticed_is_repeated(r: Rig) -> None:
    call = asyncio.create_task(r.python(DEAF_ONCE))
    await printed(r, "began")
    await r.kernel.interrupt()
    assert (await call).metadata["stopped"] is True
    assert await r.value("kept") == 1


async def test_an_interrupt_while_the_worker_starts(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        call = asyncio.create_task(r.python("1"))
        await eventually(lambda: r.kernel._connections)
        assert r.reported.starts == []
        await r.kernel.interrupt()
        result = await call
        assert result.is_error
        assert "interrupted" in result.content
        assert await r.value("1 + 1") == 2


async def test_an_interrupt_at_any_moment_of_a_short_call(r: Rig) -> None:
    """Whenever it strikes, the call ends, nothing else is hit, and the worker stays."""
    for step in range(60):
        call = asyncio.create_task(r.python(f"print({step})"))
        await asyncio.sleep(0.00002 * step)
        await r.kernel.interrupt()
        await call
        assert await r.value("kept") == 1
    assert r.reported.losses == []


async def test_cancelling_the_awaiting_task_stops_the_work(r: Rig) -> None:
    call = asyncio.create_task(r.python("open('began', 'w').close()\nimport time\ntime.sleep(100)"))
    await eventually((r.workspace / "began").exists)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await r.value("kept") == 1


async def test_cancelling_what_cannot_be_interrupted(strict: Rig) -> None:
    r = strict
    call = asyncio.create_task(r.python("open('began', 'w').close()\nsum(range(10**11))"))
    await eventually((r.workspace / "began").exists)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await r.value("1 + 1") == 2


async def test_cancelling_twice(strict: Rig) -> None:
    r = strict
    call = asyncio.create_task(r.python("open('began', 'w').close()\nsum(range(10**11))"))
    await eventually((r.workspace / "began").exists)
    call.cancel()
    await loop_turns()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await r.value("1 + 1") == 2


async def test_a_cancelled_call_that_waits_for_its_turn_never_runs(r: Rig) -> None:
    code = "import os, time; print('began')\nwhile not os.path.exists('go'): time.sleep(0.01)"
    first = asyncio.create_task(r.python(code))
    await printed(r, "began")
    second = asyncio.create_task(r.python("open('ran', 'w').close()"))
    await asyncio.sleep(0)  # it queues behind the first
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    (r.workspace / "go").touch()
    await first
    await r.python("1")
    assert not (r.workspace / "ran").exists()


def text_of(r: Rig) -> str:
    """Everything printed so far by any call."""
    return "".join(text for _, _, text in r.reported.outputs)


async def printed(r: Rig, text: str) -> None:
    """Wait until a call has printed `text`: it runs."""
    await eventually(lambda: text in text_of(r))


async def printing(r: Rig, code: str, text: str) -> ToolResult:
    """Run `code` with deadlines that grow until it got to print `text` before."""
    for deadline_s in (0.4, 4, 20):
        result = await r.python(code, timeout_s=deadline_s)
        if result.metadata.get("stdout", "").endswith(text):
            break
    return result


# ---- only the call that is meant


@tool
async def slow(seconds: float) -> str:
    """Wait.

    Args:
        seconds: How long.
    """
    import asyncio

    print("began")
    await asyncio.sleep(seconds)
    return "done"


@tool
async def until_released() -> str:
    """Wait until there is a file `go` in the workspace."""
    import asyncio
    import os

    print("began")
    while not os.path.exists("go"):  # noqa: ASYNC110, ASYNC240, PTH110 - another process makes it
        await asyncio.sleep(0.01)
    return "done"


@tool
async def hog(seconds: float) -> str:
    """Block the loop, as an async function should not.

    Args:
        seconds: How long.
    """
    import time

    time.sleep(seconds)  # noqa: ASYNC251 - the very mistake under test
    return "done"


@tool
def block(seconds: float) -> str:
    """Block.

    Args:
        seconds: How long.
    """
    import time

    print("began")
    time.sleep(seconds)
    return "done"


@tool
def polite(context: ToolContext) -> str:
    """Look at the flag, and then finish anyway."""
    import time

    try:
        print("began")
        while not context.cancellation.cancelled:
            time.sleep(0.01)
    except KeyboardInterrupt:
        return "partial work"
    return "noticed"


async def test_only_the_cancelled_call_is_stopped(r: Rig) -> None:
    others = [asyncio.create_task(r.tool(until_released)) for _ in range(3)]
    main = asyncio.create_task(r.tool(block, {"seconds": 0.05}))
    mistaken = asyncio.create_task(r.tool(slow, {"seconds": 100}))
    await eventually(lambda: text_of(r).count("began") == 5)
    mistaken.cancel()
    with pytest.raises(asyncio.CancelledError):
        await mistaken
    (r.workspace / "go").touch()
    assert [(await call).content for call in (*others, main)] == ["done"] * 4
    assert await r.value("kept") == 1


async def test_the_one_that_blocks_the_loop_is_stopped_and_not_its_sibling(r: Rig) -> None:
    sibling = asyncio.create_task(r.tool(until_released))
    await printed(r, "began")
    result = await r.tool(hog, {"seconds": 100}, timeout_s=0.2)
    assert result.metadata["state_kept"] is True
    (r.workspace / "go").touch()
    assert (await sibling).content == "done"


async def test_a_sync_tool_among_async_ones(r: Rig) -> None:
    sibling = asyncio.create_task(r.tool(until_released))
    await printed(r, "began")
    result = await r.tool(block, {"seconds": 100}, timeout_s=0.2)
    assert "block timed out after 0.2 s" in result.content
    assert "\nThe call was interrupted.\nTraceback" in result.content
    assert "KeyboardInterrupt" not in result.content
    assert result.metadata["state_kept"] is True
    (r.workspace / "go").touch()
    assert (await sibling).content == "done"


@tool
async def crowd(count: int, steps: int, waits: bool) -> int:
    """Start tasks that never end, each of which computes for a while whenever it is its turn."""
    import asyncio

    async def busy() -> None:
        while True:
            sum(range(steps))
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(busy()) for _ in range(count)]  # the loop refers to what is ready
    if waits:
        print("began")
        await asyncio.sleep(1000)
    return len(tasks)


@pytest.mark.parametrize("how", ["timeout", "stop"])
async def test_a_call_with_hundreds_of_busy_tasks_is_stopped_and_the_next_one_works(r: Rig, how: str) -> None:
    """The tasks share the loop of the worker. The loop of the host has no part in it."""
    call = asyncio.create_task(
        r.tool(
            crowd,
            {"count": 240, "steps": 1_000, "waits": True},
            timeout_s=0.5 if how == "timeout" else 100,
        )
    )
    await printed(r, "began")
    if how == "stop":
        await r.kernel.interrupt()
    assert (await call).is_error
    assert await r.value("1 + 1") == 2


async def test_busy_tasks_that_a_call_left_hold_no_other_call_beyond_its_timeout(strict: Rig) -> None:
    """One turn of the worker's loop takes a minute: no call gets a turn, and each still ends in time."""
    r = strict
    assert (await r.tool(crowd, {"count": 240, "steps": 20_000_000, "waits": False})).content == "240"
    stopped = await r.tool(until_released, timeout_s=0.2)
    assert "timed out after 0.2 s" in stopped.content
    assert await r.value("1 + 1") == 2
    (r.workspace / "go").touch()
    assert (await r.tool(until_released)).content == "done"


async def test_siblings_fail_when_the_worker_is_killed(strict: Rig) -> None:
    r = strict
    sibling = asyncio.create_task(r.tool(slow, {"seconds": 1000}))
    shell = asyncio.create_task(r.bash("echo began; sleep 1000"))
    await eventually(lambda: text_of(r).count("began") == 2)

    @tool
    def stuck() -> int:
        """Cannot be interrupted."""
        return sum(range(10**11))

    result = await r.tool(stuck, timeout_s=0.2)
    assert result.metadata["state_kept"] is True
    for lost in (await sibling, await shell):
        assert lost.metadata["worker_died"] is True
        assert "stuck could not be interrupted (timed out after 0.2 s)" in lost.content
        assert "The variables were restored to what they were before this call." in lost.content


async def test_a_stopped_call_is_stopped_also_when_its_worker_has_to_be_ended(strict: Rig) -> None:
    @tool
    def stuck() -> int:
        """Cannot be interrupted, whenever it is tried."""
        while True:
            try:
                print("began", flush=True)
                sum(range(10**11))
            except KeyboardInterrupt:
                pass

    call = asyncio.create_task(strict.tool(stuck))
    await printed(strict, "began")
    await strict.kernel.interrupt()
    result = await call
    assert result.metadata["worker_died"] is True
    assert result.metadata["stopped"] is True


async def test_a_tool_that_gives_what_it_has_is_still_an_error(r: Rig) -> None:
    call = asyncio.create_task(r.tool(polite))
    await printed(r, "began")
    await r.kernel.interrupt()
    result = await call
    assert result.is_error
    assert result.content == "The call was interrupted.\npartial work"


async def test_bash_is_stopped_with_all_it_started(r: Rig) -> None:
    command = "setsid sleep 100 & (env -i setsid sleep 100 &) ; nohup sleep 100 & sleep 100"
    result = await r.bash(command, timeout=300)
    assert result.metadata["timed_out"] is True
    assert result.is_error
    await eventually(lambda: not sleepers(r.workspace))
    assert await r.value("kept") == 1


async def test_bash_beside_bash(r: Rig) -> None:
    command = "echo began; while [ ! -e go ]; do sleep 0.01; done; echo survived"
    other = asyncio.create_task(r.bash(command))
    await printed(r, "began")
    await r.bash("setsid sleep 100 & sleep 100", timeout=200)
    (r.workspace / "go").touch()
    assert (await other).value["stdout"] == "began\nsurvived\n"


SERVER = "(touch began; while true; do sleep 0.05; done) > /dev/null 2>&1 & wait"


def servers(r: Rig) -> list[str]:
    return [process for process in processes_of(r.workspace) if "while true" in process]


@pytest.mark.parametrize("stop", ["command", "deadline", "interrupt"])
async def test_a_stop_ends_what_earlier_calls_left_running_but_no_background_task(r: Rig, stop: str) -> None:
    await r.bash(SERVER.replace("& wait", "&"))
    await r.python("import subprocess; server = subprocess.Popen(['sleep', '100'])")
    assert servers(r)
    assert sleepers(r.workspace)
    task = await r.bash("echo is a task; sleep 1000", background=True)
    assert not task.is_error, task.content
    if stop == "command":
        await r.bash("sleep 99", timeout=200)
    elif stop == "deadline":
        result = await r.python("import time; time.sleep(99)", timeout_s=0.2)
        assert result.metadata["state_kept"] is True
    else:
        waiting = asyncio.create_task(r.python("print('waits', flush=True); import time; time.sleep(99)"))
        await printed(r, "waits")
        await r.kernel.interrupt()
        await waiting
    await eventually(lambda: not servers(r))
    # A call on the main thread is interrupted as by Ctrl-C before the rest is killed.
    assert await r.value("server.wait()") in {-signal.SIGKILL, -signal.SIGINT}
    assert [process.rpartition(" sleep ")[2].strip() for process in sleepers(r.workspace)] == ["1000"]
    await r.kernel.restart()
    assert not sleepers(r.workspace)


async def test_a_background_task_that_does_not_start_in_time_is_ended(r: Rig) -> None:
    await r.bash("sleep 98", timeout_s=0.2, starts_task=True)
    await eventually(lambda: not sleepers(r.workspace))


async def test_a_stop_spares_the_worker_that_an_undo_froze(r: Rig) -> None:
    await r.python("x = 1", call_id="one")
    await r.python("import subprocess; x = 2; helper = subprocess.Popen(['sleep', '100'])", call_id="two")
    await r.kernel.variables.restore("two")
    result = await r.bash("sleep 99", timeout=200, read_only=True)
    assert result.metadata["timed_out"] is True
    assert await r.kernel.variables.redo() is not None
    assert await r.value("x, helper.poll()") == (2, None)


async def test_a_daemon_of_the_stopped_call_does_not_survive(r: Rig) -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir('/')
        time.sleep(1000)
    os._exit(0)
print('started', flush=True)
time.sleep(1000)
"""
    await r.kernel.start()
    assert r.kernel._connection is not None
    before = tree.below(r.kernel._connection.supervisor, tree.table())
    result = await printing(r, code, "started\n")
    assert result.metadata["state_kept"] is True
    assert r.kernel.status().pid in before
    snapshots = {*r.kernel.variables.pids()}
    assert tree.below(r.kernel._connection.supervisor, tree.table()) - snapshots == before - snapshots


async def test_limits_end_a_runaway_and_say_so(tmp_path: Path) -> None:
    limits = Limits(cpu_s=1, memory_bytes=1 << 30, file_bytes=1 << 20)
    async with rig(tmp_path, limits) as r:
        result = await r.python("bytearray(2 << 30)")
        assert "MemoryError" in result.content
        result = await r.python("open('big', 'wb').write(bytes(2 << 20))")
        assert "File too large" in result.content
        result = await r.python("while True: pass")
        assert result.metadata["worker_died"]
        assert result.metadata["limit"] == "cpu_s"
        assert await r.value("1 + 1") == 2
