"""User code that turns against the worker's own machinery: it can hurt its session, and nothing else."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aisotools.core.protocols import ToolContext
from aisotools.sandbox.host.monitor import find_exceeded, measure_usage
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import tree
from aisotools.tools.function import tool
from tests.sandbox.rig import PATIENT, Rig, processes_of, rig, rss_bytes
from tests.waiting import eventually

GROWTH_BYTES = 20 << 20

FIND_CHANNEL = """
import os, socket, struct, json, stat

def channels():
    found = []
    for fd in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                found.append(fd)
        except OSError:
            pass
    return found

def frame(header, *parts):
    if parts:
        header = header | {'parts': [len(p) for p in parts]}
    head = json.dumps(header).encode()
    return struct.pack('!II', len(head), sum(map(len, parts))) + head + b''.join(parts)

def send(data):
    for fd in channels():
        try:
            os.write(fd, data)
        except OSError:
            pass
"""


@pytest.fixture
async def r(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        await made.python(FIND_CHANNEL)
        yield made


async def works(r: Rig) -> None:
    assert await r.value("1 + 1") == 2


async def test_there_is_a_channel_to_find(r: Rig) -> None:
    assert len(await r.value("channels()")) >= 1


FORGERIES = {
    "garbage": "send(b'\\xff' * 1000)",
    "giant": "send(struct.pack('!II', 2**31, 2**31))",
    "half a frame": "send(frame({'op': 'out', 'id': '1', 'stream': 'stdout', 'text': 'x' * 500})[:100])",
    "unknown": "send(frame({'op': 'shutdown_host'}))",
    "ready again": "send(frame({'op': 'ready'}))",
    "deep": "send(frame({'op': 'emit'})[:8] + b'[' * 100000)",
    "malformed result": "for n in range(20): send(frame({'op': 'done', 'id': n}, b'{}', b'', b'', b''))",
    "result without pieces": "for n in range(20): send(frame({'op': 'done', 'id': n}))",
    "result of garbage": "for n in range(20): send(frame({'op': 'done', 'id': n}, b'\\xff'))",
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("code", FORGERIES.values(), ids=FORGERIES)
async def test_hostile_bytes_on_the_channel_end_the_worker_at_most(r: Rig, code: str) -> None:
    result = await r.python(f"{code}\nimport time; time.sleep(0.3); 'still here'", timeout_s=1)
    if result.is_error and not result.metadata.get("timed_out"):
        assert result.error_kind == "environment"
        assert "broke the protocol" in result.content or "malformed result" in result.content
    await works(r)


async def test_a_forged_result_is_believed_by_nobody_but_its_own_call(r: Rig) -> None:
    """A worker that answers early fools only whoever asked it; the next call is not confused."""
    forged = """
head = json.dumps({'content': 'forged', 'kind': 'text'}).encode()
send(b''.join(frame({'op': 'done', 'id': n}, head, b'', b'', b'') for n in range(30)))
import time; time.sleep(0.2)
"""
    result = await r.python(forged)
    assert result.content == "forged"
    assert (await r.python("'honest'")).content == "'honest'"
    await works(r)


async def test_a_forged_result_for_a_sibling_stays_within_the_session(r: Rig) -> None:
    command = "touch began; while [ ! -e go ]; do sleep 0.01; done; echo mine"
    sibling = asyncio.create_task(r.bash(command))
    await eventually((r.workspace / "began").exists)

    @tool
    def forge(source: str) -> str:
        """Forge.

        Args:
            source: How.
        """
        space: dict[str, object] = {}
        exec(source, space)
        return "forged"

    source = (
        FIND_CHANNEL
        + "send(b''.join(frame({'op': 'done', 'id': n}, b'{}', b'', b'', b'') for n in range(9)))"
    )
    await r.tool(forge, {"source": source})
    (r.workspace / "go").touch()
    assert "malformed" in (await sibling).content or "ended" in (await sibling).content
    await works(r)


async def test_output_forged_for_other_calls_is_dropped_or_capped(r: Rig) -> None:
    code = """
for number in ('90', '91', '99'):
    send(frame({'op': 'out', 'id': number, 'stream': 'stdout', 'text': 'forged'}))
"""
    await r.python(code, call_id="me")
    await works(r)
    assert {call for call, _, text in r.reported.outputs if "forged" in text} <= {""}


async def test_reading_the_channel_away_hurts_only_the_reader(r: Rig) -> None:
    code = """
import select, threading
def steal():
    while True:
        for fd in select.select(channels(), [], [])[0]:
            try:
                os.read(fd, 1 << 16)
            except OSError:
                pass  # somebody else was faster
for _ in range(3):  # what is stolen first is the order to keep the state
    threading.Thread(target=steal, daemon=True).start()
"""
    await r.python(code)
    for _ in range(500):  # who gets to read first is a matter of luck
        if (await r.python("1", timeout_s=0.3)).is_error:
            break
    else:
        pytest.fail("nothing was stolen")
    await works(r)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "flood",
    [
        "while True: send(frame({'op': 'emit', 'id': 1, 'name': 'x', 'payload': {}}) * 50)",
        "while True: send(frame({'op': 'out', 'id': '', 'stream': 'stdout', 'text': 'x' * 50}) * 50)",
        "while True: send(frame({'op': 'done', 'id': 10**6}) * 50)",
        "while True: os.write(1, b'x' * 65536)",
        "while True: print('x' * 10000)",
        "while True: os.system('head -c 1000000 /dev/zero')",
    ],
)
async def test_a_flood_leaves_the_host_small_and_awake(r: Rig, flood: str) -> None:
    # In processor time of this thread: what the loop spends between two turns, however busy the machine, and
    # without what it takes to look through the garbage of all tests before.
    before, longest_s, last_s = rss_bytes(), 0.0, time.thread_time()
    call = asyncio.create_task(r.python(flood, timeout_s=0.8))
    gc.disable()
    try:
        while not call.done():
            await asyncio.sleep(0.005)
            now_s = time.thread_time()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
    finally:
        gc.enable()
    assert (await call).is_error
    assert rss_bytes() - before < GROWTH_BYTES
    assert longest_s < 0.5
    await works(r)


async def test_a_hundred_megabytes_printed_cost_nothing(r: Rig) -> None:
    before = rss_bytes()
    result = await r.python("for _ in range(1000): print('x' * 100_000)", call_id="c")
    assert not result.is_error
    worker = await r.value("int(open('/dev/null').read() or 0)")
    assert worker == 0
    raw = await r.python(
        "import subprocess; subprocess.run('head -c 100000000 /dev/zero', shell=True)", call_id="d"
    )
    assert not raw.is_error
    assert raw.metadata["dropped_bytes"] == 100_000_000 - (1 << 20)
    assert rss_bytes() - before < GROWTH_BYTES
    assert rss_bytes(r.kernel.status().pid) < 120 << 20


async def test_closing_every_descriptor(r: Rig) -> None:
    result = await r.python("os.closerange(0, 4096)\n1")
    assert result.is_error
    await works(r)


@pytest.mark.parametrize(
    "code",
    [
        "os.killpg(0, 9)",
        "os.kill(0, 9)",
        "os.kill(-1, 9)",
        "os.kill(os.getppid(), 9)",
        "import signal; os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)",
        "import signal; signal.raise_signal(signal.SIGTERM)",
        "import signal; os.kill(os.getpid(), signal.SIGABRT)",
        "os.abort()",
    ],
)
async def test_killing_everything_in_reach(r: Rig, code: str) -> None:
    supervisor = r.kernel._connection.supervisor if r.kernel._connection else 0
    await r.python(code)
    await works(r)
    if r.kernel._connection and r.kernel._connection.supervisor == supervisor:
        assert Path(f"/proc/{supervisor}").is_dir()  # noqa: ASYNC240 - /proc does not block


async def test_daemons_end_with_the_session(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        code = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir('/'); os.closerange(0, 100)
            time.sleep(1000)
        os._exit(0)
"""
        await r.python(code)
        await r.bash("(setsid nohup env -i sleep 1000 >/dev/null 2>&1 &)")
        assert r.kernel._connection is not None
        pids = tree.below(r.kernel._connection.supervisor, tree.table())
        assert len(pids) >= 7
    left = pids & tree.table().keys()
    assert left == set()


@pytest.mark.parametrize("pause_s", [0, 0.02])
async def test_a_bounded_fork_bomb_is_cleared_away(tmp_path: Path, pause_s: float) -> None:
    """The kernel refuses more processes, or the monitor counts them and ends the call; both name the limit.

    Root has no such limit without namespaces: a bomb that is quicker than the monitor stops itself at 60.
    """
    async with rig(tmp_path, Limits(processes=40), stop_timeouts=PATIENT) as r:
        code = f"""
import os, time
made = 0
try:
    while made < 60:
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        made += 1
        time.sleep({pause_s})
except OSError as error:
    print('stopped:', error)
made
"""
        result = await r.python(code, timeout_s=50)
        if result.is_error:
            assert result.metadata["limit"] == "processes", result
            assert "Limits(processes=...)" in result.content
        else:
            made = int(result.value["result"])
            unlimited = os.getuid() == 0 and r.level != "isolated"
            assert made == 60 if unlimited else made < 45 and "stopped:" in result.content
        await works(r)
    assert processes_of(r.workspace) == []


LEAVE_PROCESSES = """
import os, time
made = 0
try:
    while made < 60:
        if os.fork() == 0:
            time.sleep(1000)
        made += 1
except OSError:
    pass
made
"""


def skip_where_others_are_counted(r: Rig) -> None:
    if r.level != "isolated":
        pytest.skip("the kernel counts all that the user runs here, and nothing for root")


async def test_the_kernel_refuses_what_the_monitor_would_end(tmp_path: Path) -> None:
    """A program that meets the limit is refused a process and goes on; the monitor ends it for one more."""
    async with rig(tmp_path, Limits(processes=40), stop_timeouts=PATIENT) as r:
        skip_where_others_are_counted(r)
        assert 30 < int(await r.value(LEAVE_PROCESSES)) < 40
        assert r.kernel._connection is not None
        usage = measure_usage(r.kernel._connection.supervisor, r.wanted.limits)
        assert usage.processes > 30
        assert find_exceeded(usage, r.wanted.limits) is None


async def test_processes_that_a_call_has_left_are_named_where_no_other_starts(tmp_path: Path) -> None:
    """Nothing that fails later is their doing, but only a restart ends them, and every error says so."""
    async with rig(tmp_path, Limits(processes=40), stop_timeouts=PATIENT) as r:
        skip_where_others_are_counted(r)
        assert not (await r.bash("true")).is_error
        assert int(await r.value(LEAVE_PROCESSES)) < 40
        refused = await r.bash("true")
        assert refused.is_error
        assert refused.metadata["limit"] == "processes"
        assert "%sandbox restart" in refused.content
        await r.kernel.restart()
        assert not (await r.bash("true")).is_error


async def test_interrupting_while_half_a_frame_is_out(tmp_path: Path) -> None:
    """Interrupts that strike while text is being sent never break the channel."""
    async with rig(tmp_path, stop_timeouts=PATIENT) as r:
        for step in range(15):
            call = asyncio.create_task(r.python("while True: print('x' * 3000)"))
            await asyncio.sleep(0.02 + 0.001 * step)
            await r.kernel.interrupt()
            assert (await call).metadata.get("stopped") is True
        await works(r)
        assert r.reported.losses == []


async def test_signal_handlers_of_user_code_that_print_and_raise(r: Rig) -> None:
    code = """
import signal
class Alarm(Exception): pass
def strike(*_):
    print('alarm')
    raise Alarm
signal.signal(signal.SIGALRM, strike)
caught = 0
for _ in range(150):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while True: print('x' * 200)
    except Alarm:
        caught += 1
signal.setitimer(signal.ITIMER_REAL, 0)
caught
"""
    result = await r.python(code)
    assert result.value["result"] == "150"
    await works(r)
    assert r.reported.losses == []


async def test_threads_and_finalisers_that_print(r: Rig) -> None:
    code = """
import gc, threading
class Noisy:
    def __init__(self): self.me = self
    def __del__(self): print('gone')
def work(name):
    for n in range(300):
        Noisy()
        print(name, n)
threads = [threading.Thread(target=work, args=(name,)) for name in 'abcd']
[t.start() for t in threads]
work('main')
[t.join() for t in threads]
gc.collect()
"""
    result = await r.python(code)
    lines = result.value["stdout"].split("\n")
    assert not result.is_error
    assert sum("gone" in line for line in lines) > 0
    assert result.value["stdout"].count("gone") == 1500
    assert r.reported.losses == []


async def test_the_worker_s_modules_can_be_broken_and_nothing_else(r: Rig) -> None:
    code = """
import sys
from aisotools.sandbox import frames, results
from aisotools.sandbox.worker import worker
results.encode_result = worker.encode_result = lambda *a: (b'{}', b'', b'', b'')
"""
    assert "malformed result" in (await r.python(code)).content
    await works(r)
    await r.python("import sys; sys.modules.clear()", timeout_s=2)
    await r.kernel.restart()
    await works(r)


async def test_the_reporting_of_a_tool_cannot_be_used_to_break_out_of_its_call(r: Rig) -> None:
    @tool
    def report(context: ToolContext) -> str:
        """Report oddly."""
        for name in ("", "\n", "x" * 60_000, "done"):
            context.emit(name, id=99, op="done")
        return "ok"

    assert (await r.tool(report, call_id="c")).content == "ok"
    assert {call for call, _, _ in r.reported.emits} == {"c"}
    assert all(len(name) <= 200 for _, name, _ in r.reported.emits)


async def test_deaths_in_a_row_do_not_wear_the_session_out(r: Rig) -> None:
    for _ in range(8):
        assert (await r.python("import os; os._exit(1)")).metadata["worker_died"] is True
    await works(r)
    await eventually(lambda: len(r.kernel._connections) == 1)
