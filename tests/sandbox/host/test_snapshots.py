"""Kept states of variables: back, forth, after crashes, and against code that forges them."""

from __future__ import annotations

import asyncio
import contextvars
import os
import select
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.core.sandboxes import SandboxCall
from aisotools.core.types import ToolResult
from aisotools.sandbox.host import fork_observation
from aisotools.sandbox.host.connection import WorkerConnection
from aisotools.sandbox.host.fork_handle import WakingFork
from aisotools.sandbox.host.snapshot_store import MemoryBudget
from aisotools.sandbox.host.snapshots import SnapshotHistory
from aisotools.sandbox.host.variable_copies import VariablesFile
from aisotools.sandbox.process import spawn, tree
from tests.sandbox.rig import Rig, open_files, rig
from tests.waiting import HANG_S, acts_on_a_signal, eventually, loop_turns, process_state

LEVELS = [p.name for p in spawn.detection().probes if p.ok and p.name in {"isolated", "confined"}]


@pytest.fixture(params=LEVELS)
async def r(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, level=request.param) as made:
        yield made


async def settled(r: Rig) -> None:
    """Every state that was asked for is there, or is known not to be."""
    await asyncio.gather(*(asyncio.shield(snapshot.settled) for snapshot in r.kernel.variables._store.all()))


def calls(r: Rig) -> list[str]:
    return [point.call_id for point in r.kernel.variables.points()]


# ---- back and forth


async def test_back_and_forth(r: Rig) -> None:
    history: SnapshotHistory = r.kernel.variables
    await r.python("x = 1", call_id="one")
    await r.python("x = 2; y = [x]", call_id="two")
    await r.python("y.append(3)", call_id="three")
    pid, generation = r.kernel.status().pid, r.kernel.status().generation
    point = await history.restore("two")
    assert (point.call_id, point.label, point.lost) == ("two", "exact", ())
    assert calls(r) == ["one"]
    assert r.kernel.status().pid != pid
    assert r.kernel.status().generation == generation + 1
    again = await history.redo()
    assert again is not None
    assert again.call_id == "two"
    assert calls(r) == ["one", "two", "three"]
    assert r.kernel.status().pid == pid
    assert await r.value("(x, y)") == (2, [2, 3])
    await history.restore("two")
    assert await r.value("'y' in dir(), x") == (False, 1)
    assert await history.redo() is None, "a call has gone another way"


async def test_descriptors_of_states_are_bounded_however_many_calls_there_are(r: Rig) -> None:
    await r.python("x = 0")
    await settled(r)
    before = open_files()
    for number in range(60):
        await r.python(f"x = {number}")
    await settled(r)
    # The first state has been counted, and 20 more are kept.
    await eventually(lambda: open_files() <= before + 2 * 20)
    assert len(calls(r)) > 8


async def test_step_by_step(r: Rig) -> None:
    history = r.kernel.variables
    for number in range(5):
        await r.python(f"x = {number}", call_id=str(number))
    for number in (4, 3, 1):
        await history.restore(str(number))
    for call_id in ("3", "4", None):  # the states before these calls, then the present
        assert history.why_not_kept(call_id) == ""
        assert await history.redo(call_id) is not None
    assert await history.redo() is None
    assert "no variables were undone" in history.why_not_kept(None)
    assert await r.value("x") == 4
    assert r.reported.losses == []


async def test_redo_stops_within_what_was_undone_at_once(r: Rig) -> None:
    history = r.kernel.variables
    await r.python("seen = []", call_id="first")
    for number in range(5):
        await r.python(f"x = {number}", call_id=str(number))
    pid = r.kernel.status().pid
    await history.restore("4")
    await history.restore("1")
    assert calls(r) == ["first", "0"]
    point = await history.redo("3")
    assert point is not None
    assert point.call_id == "3"
    assert calls(r) == ["first", "0", "1", "2"]
    assert await history.redo() is not None
    assert r.kernel.status().pid == pid, "the worker of the present goes on"
    assert calls(r) == ["first", "0", "1", "2", "3", "4"]
    await history.restore("0")
    await history.restore("2")
    assert await r.value("x", call_id="look") == 1, "restoring a call that was undone goes forward"
    assert calls(r)[:4] == ["first", "0", "1", "look"]
    assert "the call was undone, and another call has run since" in history.why_not_kept("3")
    with pytest.raises(SandboxError, match="another call has run since"):
        await history.redo("3")


async def test_dropped_states_are_known_beforehand_and_reported(r: Rig) -> None:
    history = r.kernel.variables
    for number in range(20):
        await r.python(f"x = {number}", call_id=str(number))
    await settled(r)
    there = set(calls(r))
    for number in range(20):
        why = history.why_not_kept(str(number))
        assert (why == "") is (str(number) in there)
        assert why in {"", "only some of the older snapshots are retained"}
    assert [call for call_ids, _ in r.reported.dropped for call in call_ids] == [
        str(number) for number in sorted(set(range(20)) - set(map(int, there)), key=order(r))
    ]
    assert {reason for _, reason in r.reported.dropped} == {"only some of the older snapshots are retained"}
    os.kill(history.pids()[-1], signal.SIGKILL)
    await eventually(lambda: history.why_not_kept("19") == "the process that held its snapshot has ended")
    with pytest.raises(SandboxError, match="before call '19'"):
        await history.restore("19")
    assert await r.value("x") == 19


def order(r: Rig) -> Callable[[int], int]:
    """Sort numbers of calls by when they were reported to be dropped."""
    reported = [call for call_ids, _ in r.reported.dropped for call in call_ids]
    return lambda number: reported.index(str(number))


async def test_a_dropped_snapshot_is_refused_with_the_reason(r: Rig) -> None:
    await r.python("x = 1", call_id="one")
    with pytest.raises(SandboxError, match=r"to before call 'never': no snapshot was taken for this call"):
        await r.kernel.variables.restore("never")
    await r.kernel.variables.forget()
    with pytest.raises(SandboxError, match=r"before call 'one': the snapshots were forgotten on request"):
        await r.kernel.variables.restore("one")
    await r.python("x = 2", call_id="two")
    await r.kernel.restart()
    with pytest.raises(SandboxError, match=r"before call 'two': the sandbox was restarted"):
        await r.kernel.variables.restore("two")


async def test_calls_that_only_read_and_commands_are_not_kept(r: Rig) -> None:
    await r.bash("true")
    assert calls(r) == []


async def test_a_call_that_only_touches_files_shares_the_newest_snapshot(r: Rig) -> None:
    history = r.kernel.variables
    await r.python("x = 1", call_id="one")
    await r.python("pass", call_id="first file", changes_variables=False)
    await settled(r)
    assert calls(r) == ["one", "first file"], "the variables had changed since the newest snapshot"
    pids = history.pids()
    for number in range(3):
        await r.python("pass", call_id=f"file {number}", changes_variables=False)
    assert (calls(r), history.pids()) == (["one", "first file"], pids), "no worker was forked"
    await r.python("x = 2", call_id="two")
    await r.python("pass", call_id="last file", changes_variables=False)
    assert calls(r) == ["one", "first file", "two", "last file"]
    point = await history.restore("file 1")
    assert (point.call_id, point.label) == ("first file", "exact")
    assert await r.value("x", changes_variables=False) == 1
    assert await history.redo() is None, "a call has gone another way"
    with pytest.raises(SandboxError, match="before call 'file 1': the call was undone, and another"):
        await history.restore("file 1")


async def test_a_shared_snapshot_is_no_older_than_the_last_undo(r: Rig) -> None:
    history = r.kernel.variables
    await r.python("x = 1", call_id="one")
    await r.python("pass", call_id="file one", changes_variables=False)
    await history.restore("one")
    await r.python("pass", call_id="file two", changes_variables=False)
    assert calls(r) == ["file two"], "the one before the undo does not equal the present variables"
    assert await r.value("'x' in dir()", changes_variables=False) is False


async def test_a_crash_while_only_files_are_touched_loses_no_variable(r: Rig) -> None:
    await r.python("x = 1")
    for _ in range(2):
        result = await r.python("import os; os.abort()", changes_variables=False)
        assert result.metadata["state_kept"] is True, result.content
        assert await r.value("x", changes_variables=False) == 1
    assert r.reported.losses == []


async def test_random_repeats_and_tasks_go_on(r: Rig) -> None:
    code = """
import asyncio, random
random.seed(7)
ticks = []
async def tick():
    while True:
        ticks.append(len(ticks))
        await asyncio.sleep(0.01)
task = asyncio.create_task(tick())
while len(ticks) < 3: await asyncio.sleep(0.01)
generator = iter(range(100)); next(generator)
"""
    await r.python(code)
    first = await r.value("(random.random(), next(generator))", call_id="draw")
    await r.python("seen = len(ticks)\nwhile len(ticks) < seen + 3: await asyncio.sleep(0.01)")
    await r.kernel.variables.restore("draw")
    assert await r.value("(random.random(), next(generator))") == first
    before = await r.value("len(ticks)")
    await r.python(f"while len(ticks) < {before} + 3: await asyncio.sleep(0.01)")  # it ticks on
    assert not await r.value("task.done()")


async def test_a_file_is_read_on_from_where_it_was(r: Rig) -> None:
    await r.python("open('f', 'w').write('0123456789'); f = open('f'); g = open('f', 'rb', buffering=0)")
    await r.python("f.read(2), g.read(2)")
    await r.python("f.read(3), g.read(3)", call_id="more")
    await r.kernel.variables.restore("more")
    assert await r.value("f.read(2), g.read(2)") == ("23", b"23")


async def test_secrets_are_forgotten_for_good(r: Rig) -> None:
    await r.python("secret = 'x' * 10")
    await r.python("del secret", call_id="gone")
    await r.kernel.variables.restore("gone")
    await r.kernel.variables.redo()
    await r.kernel.variables.forget()
    assert calls(r) == []
    assert await r.kernel.variables.redo() is None
    await eventually(lambda: len(below(r)) <= 2 + (r.level == "isolated"))


async def test_forks_that_were_killed_are_no_background_processes_once_all_is_settled(r: Rig) -> None:
    await r.python("ballast = [bytearray(1000) for _ in range(200_000)]")  # takes the kernel a while to free
    for number in range(10):
        for _ in range(3):
            await r.python(f"x = {number}")
        await r.kernel.variables.settled()
        assert r.kernel.variables.drop_all_but_newest()
        await r.kernel.variables.settled()
        found = tree.find_background_processes(
            r.kernel.supervisor, r.kernel.worker_pid, r.kernel.variables.pids()
        )
        assert found == {}, number


async def test_no_call_runs_while_the_history_is_held_but_for_the_task_that_holds_it(r: Rig) -> None:
    await r.python("x = 1")
    await r.python("x = 2", call_id="second")
    history, elsewhere = r.kernel.variables, contextvars.copy_context()
    async with history.hold():
        reading = asyncio.create_task(r.python("x"), context=elsewhere.copy())
        other = asyncio.create_task(history.redo(), context=elsewhere.copy())
        await loop_turns()
        for _ in range(2):
            await history.redo()
            # Also by a task that it starts, and if it holds the history once more.
            async with history.hold():
                restoring = asyncio.create_task(history.restore("second"))
                assert (await restoring).call_id == "second"
        assert (reading.done(), other.done()) == (False, False)
    assert (await reading).content == "1"
    await other
    async with r.kernel._scheduler.slot("overlap"):
        holding = asyncio.ensure_future(enter(history.hold()))
        await loop_turns()
        assert not holding.done()
    await holding


TICKS = """
ticks = 0
import asyncio
async def tick():
    global ticks
    while True:
        ticks += 1
        with open('ticks', 'w') as file:
            file.write(str(ticks))
        await asyncio.sleep(0)
task = asyncio.get_running_loop().create_task(tick())
await asyncio.sleep(0.01)
"""


def made_ready(r: Rig) -> WakingFork | None:
    return r.kernel.variables._ahead


async def test_fork_that_is_made_ready_runs_nothing_before_the_restore(r: Rig) -> None:
    await r.python(TICKS)
    await r.python("task.cancel(); x = 2", call_id="second")
    history, ticks = r.kernel.variables, r.workspace / "ticks"
    assert history.prepare("second") == 0
    assert made_ready(r) is None, "calls may run"
    async with history.hold():
        assert history.prepare("unknown") == 0
        assert made_ready(r) is None
        origin = history.prepare("second")
        assert origin in history.pids()
        ahead = made_ready(r)
        assert ahead is not None
        sock, _ = await ahead.waking
        assert tree.parent_of(sock.pid) == origin
        before = ticks.read_text()
        await eventually(lambda: process_state(sock.pid) == "S")
        assert ticks.read_text() == before
        assert (await history.restore("second")).label == "exact"
        assert r.kernel.worker_pid == sock.pid
        await eventually(lambda: ticks.read_text() not in {before, ""})
    assert await r.value("'x' in dir()") is False


@pytest.mark.parametrize(
    "end", ["of the context", "of the context, before it is there", "by another restore"]
)
async def test_fork_that_is_made_ready_ends_if_nobody_restores_it(r: Rig, end: str) -> None:
    for number in range(3):
        await r.python(f"x = {number}", call_id=str(number))
    history = r.kernel.variables
    await settled(r)
    before = below(r)
    async with history.hold():
        history.prepare("2")
        assert history._ahead is not None
        if "before" not in end:
            await history._ahead.waking
            assert len(below(r) - before) == 1
        if "another" in end:
            await history.restore("1")
    await history.settled()
    assert below(r) - {r.kernel.worker_pid} == before - {r.kernel.worker_pid}
    assert await r.value("x", read_only=True) == (0 if "another" in end else 2)


async def test_timer_of_an_earlier_state_goes_on_after_the_restore(r: Rig) -> None:
    code = """
import signal
def handle(*_):
    with open('ticks', 'a') as file: file.write('.' if x == 1 else '')
x = 1
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
"""
    await r.python(code)
    await r.python("signal.setitimer(signal.ITIMER_REAL, 0); x = 2", call_id="second")
    history, ticks = r.kernel.variables, r.workspace / "ticks"
    async with history.hold():
        before = ticks.stat().st_size
        history.prepare("second")
        ahead = made_ready(r)
        assert ahead is not None
        sock, _ = await ahead.waking
        await eventually(lambda: process_state(sock.pid) == "S")
        await asyncio.sleep(0.01)  # ten times the interval
        assert ticks.stat().st_size == before
        await history.restore("second")
        await eventually(lambda: ticks.stat().st_size > before)


async def test_snapshot_in_which_a_hook_starts_a_thread_is_not_kept(r: Rig) -> None:
    await r.python(HOOK + PAST_OURS)
    await r.python("x = 1", call_id="one")
    await settled(r)
    await eventually(lambda: "one" not in calls(r))
    history = r.kernel.variables
    assert "(os.register_at_fork) started threads" in history.why_not_kept("one")
    with pytest.raises(SandboxError, match="register_at_fork"):
        await history.restore("one")
    await history.settled()
    assert {pid for pid in below(r) if tree.count_threads(pid) > 1 and pid != r.kernel.worker_pid} == set()


async def test_hook_that_starts_a_thread_does_so_in_the_next_call_of_what_was_restored(r: Rig) -> None:
    await r.python(HOOK + BY_PYTHON)
    await r.python("x = 1", call_id="one")
    await r.python("x = 2", call_id="two")
    await settled(r)
    history = r.kernel.variables
    assert {"one", "two"} <= set(calls(r))
    assert {pid for pid in history.pids() if tree.count_threads(pid) != 1} == set()
    await history.restore("two")
    assert tree.count_threads(r.kernel.worker_pid) == 1
    result = await r.python("print(x, threading.active_count())")
    assert result.content.split() == ["1", "2"]


@pytest.mark.parametrize("does", ["print('forked')", "1 / 0", "raise SystemExit"])
async def test_hook_that_prints_or_raises_costs_no_copy_no_reader_and_no_recovery(r: Rig, does: str) -> None:
    hook = f"""
import os
worker, x = os.getpid(), 1
def hook():
    if os.getpid() != worker:
        {does}
os.register_at_fork(after_in_child=hook)
"""
    assert not (await r.python(hook)).is_error
    await r.python("x = 2", call_id="second")
    await settled(r)
    copy = await r.kernel.variables.branch()
    assert isinstance(copy, VariablesFile)
    copy.close()
    assert await r.value("x", read_only=True) == 2
    former = r.kernel.worker_pid
    os.kill(former, signal.SIGKILL)
    await eventually(lambda: r.kernel.worker_pid not in {0, former})
    assert await r.value("x") in {1, 2}


HOOKS = {
    "fork hooks": "os.register_at_fork(before=note, after_in_parent=note, after_in_child=note)",
    "audit hook": "sys.addaudithook(note)",
    "collector": "gc.callbacks.append(note); gc.set_threshold(1)",
    "callback": """
import concurrent.futures, time
pool = concurrent.futures.ThreadPoolExecutor(1)
running, queued = pool.submit(time.sleep, 1000), pool.submit(int)
running.add_done_callback(note)
queued.add_done_callback(note)
""",
    "property": """
import subprocess
class Program(subprocess.Popen):
    returncode = property(note, note)
program = Program(['true'])
""",
}
NOTE = """
import gc, os, sys
worker, x, busy = os.getpid(), 1, False
def note(*_):
    global busy
    if os.getpid() != worker and not busy:
        busy = True
        open('noted', 'a').close()
        busy = False
"""


@pytest.mark.parametrize("hook", HOOKS)
async def test_no_hook_of_user_code_runs_in_a_snapshot_or_before_the_next_call(r: Rig, hook: str) -> None:
    noted = r.workspace / "noted"
    assert not (await r.python(NOTE + HOOKS[hook])).is_error
    await r.python("x = 2", call_id="second")
    await settled(r)
    history = r.kernel.variables
    assert "second" in calls(r)
    async with history.hold():
        history.prepare("second")
        ahead = made_ready(r)
        assert ahead is not None
        sock, _ = await ahead.waking
        await eventually(lambda: process_state(sock.pid) == "S")
        assert not noted.exists()
        await history.restore("second")
    await history.settled()
    assert not noted.exists()
    assert (await r.python("print(x)")).content.strip() == "1"
    if hook != "property":
        assert noted.exists(), "the call runs it, as it is user code"


GOES_ON = """
import asyncio, gc, os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
pool, lock, heard = ThreadPoolExecutor(1), threading.Lock(), []
pool.submit(int).result()
os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
sys.addaudithook(lambda event, _: heard.append(event) if event == 'mine' else None)
is_undone = False
def look():
    global is_undone
    sys.audit('mine')
    with lock:
        try:
            pool.submit(int)
        except Exception as error:
            if not is_undone:
                is_undone = True
                with open('found', 'w') as file:
                    file.write(f'{type(error).__name__} {gc.isenabled()} {heard[-1:]}')
"""
WAYS_TO_GO_ON = {
    "task": """
async def work():
    while True:
        look()
        await asyncio.sleep(0.01)
task = asyncio.ensure_future(work())
""",
    "timer of the loop": """
def work():
    look()
    asyncio.get_running_loop().call_later(0.01, work)
work()
""",
    "handler of a signal": """
signal.signal(signal.SIGALRM, lambda *_: look())
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
""",
}


@pytest.mark.parametrize("way", WAYS_TO_GO_ON)
async def test_code_that_goes_on_by_itself_after_a_restore_finds_done_what_was_missed(
    r: Rig, way: str
) -> None:
    """It would wait for ever for a thread that is missing, or for a lock that only a hook gives back."""
    assert not (await r.python(GOES_ON + WAYS_TO_GO_ON[way])).is_error
    await r.python("x = 2", call_id="second")
    await settled(r)
    assert "second" in calls(r)
    await r.kernel.variables.restore("second")
    found = r.workspace / "found"
    await eventually(lambda: found.exists() and found.read_text() != "")
    assert found.read_text() == "BrokenThreadPool True ['mine']"
    stop = "signal.setitimer(signal.ITIMER_REAL, 0)\nprint(is_undone)"
    assert (await r.python(stop)).content.strip() == "True"


STALLS = """
import threading, time
class Waits:
    def __reduce__(self):
        threading.Event().wait()
class Computes:
    def __reduce__(self):
        ends_s = time.thread_time() + 0.5
        while time.thread_time() < ends_s:
            pass
        return (int, (7,))
computes = Computes()
"""


async def test_copy_that_waits_for_what_is_not_there_is_given_up(r: Rig) -> None:
    await r.python(STALLS)
    await r.python("waits = Waits()", call_id="second")
    await r.python("waits = None", call_id="third")
    await settled(r)
    history = r.kernel.variables
    supervisor = r.kernel.supervisor
    snapshots = {one.point.call_id: one for one in history._store.all()}
    file = os.memfd_create("copy")
    try:
        # One that computes goes on, however short the time is that it may wait.
        assert not await snapshots["second"].copy(lambda: supervisor, file, within_s=HANG_S, stalled_s=0.1)
        with pytest.raises(SandboxError, match=r"writing one of them waited for 0\.1 s"):
            await snapshots["third"].copy(lambda: supervisor, file, within_s=HANG_S, stalled_s=0.1)
    finally:
        os.close(file)


BLOCKS = """
import asyncio, threading
from concurrent.futures import ThreadPoolExecutor
pool, x = ThreadPoolExecutor(1), 1
pool.submit(threading.Event().wait)
waiting = pool.submit(int)
waiting.add_done_callback(lambda _: (open('blocked', 'w').close(), threading.Event().wait()))
async def work():
    while True:
        await asyncio.sleep(0.01)
task = asyncio.ensure_future(work())
"""


async def test_callback_that_waits_for_ever_before_the_next_call_is_interrupted_for_it(r: Rig) -> None:
    assert not (await r.python(BLOCKS)).is_error
    await r.python("x = 2", call_id="second")
    await settled(r)
    assert "second" in calls(r)
    await r.kernel.variables.restore("second")
    worker = r.kernel.worker_pid
    await eventually((r.workspace / "blocked").exists)
    stopped = await r.python("print(x)", timeout_s=0.5)
    assert stopped.is_error
    assert (await r.python("print(x)")).content.strip() == "1"
    assert r.kernel.worker_pid == worker


async def test_no_hook_of_forks_runs_where_variables_are_copied(r: Rig) -> None:
    code = """
import os
def note():
    open('noted', 'a').close()
os.register_at_fork(after_in_child=note)
x = 1
"""
    await r.python(code)
    await r.python("x = 2", call_id="second")
    await settled(r)
    copy = await r.kernel.variables.branch("second")
    assert copy.point.call_id == "second"
    copy.close()
    assert not (r.workspace / "noted").exists()


@pytest.mark.parametrize("sent", ["SIGCHLD", "SIGUSR1"])
async def test_no_handler_of_user_code_runs_in_a_snapshot_or_before_the_restore(r: Rig, sent: str) -> None:
    code = f"""
import os, signal
x = 1
def handle(*_):
    with open('handled', 'a') as file: file.write(f'{{os.getpid()}} {{x}};')
signal.signal(signal.{sent}, handle)
"""
    await r.python(code)
    await r.python(f"x = 2; signal.signal(signal.{sent}, signal.SIG_IGN)", call_id="second")
    await settled(r)
    history, handled = r.kernel.variables, r.workspace / "handled"
    for pid in history.pids():
        os.kill(pid, getattr(signal, sent))
    async with history.hold():
        history.prepare("second")
        ahead = made_ready(r)
        assert ahead is not None
        sock, _ = await ahead.waking
        os.kill(sock.pid, getattr(signal, sent))
        await eventually(lambda: process_state(sock.pid) == "S")
    await history.settled()  # that fork has ended, which its parent is told by a SIGCHLD
    copy = await history.branch("second")
    assert isinstance(copy, VariablesFile)
    copy.close()
    assert not handled.exists()
    await history.restore("second")
    await r.python(f"os.kill(os.getpid(), signal.{sent})")
    assert handled.read_text().endswith(" 1;"), "in the worker, it is handled as before"


HOOK = """
import os, threading, time
def start():
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
"""
"""As libraries do that send what they have collected."""

BY_PYTHON = "os.register_at_fork(after_in_child=start)"
PAST_OURS = """
from aisotools.sandbox.worker import user_hooks
user_hooks._register_at_fork(after_in_child=start)
"""


async def test_another_fork_is_restored_if_the_one_that_was_made_ready_ended(r: Rig) -> None:
    await r.python("x = 1")
    await r.python("x = 2", call_id="second")
    history = r.kernel.variables
    async with history.hold():
        history.prepare("second")
        assert history._ahead is not None
        sock, _ = await history._ahead.waking
        os.kill(sock.pid, signal.SIGKILL)
        await eventually(lambda: tree.has_ended(sock.pid))
        assert (await history.restore("second")).label == "exact"
        assert r.kernel.worker_pid != sock.pid
    assert await r.value("x") == 1
    assert r.reported.losses == []


async def test_recovery_takes_no_fork_that_was_made_ready_without_a_check(r: Rig) -> None:
    """An undo may go back to a state in which no cell runs; a recovery must not."""
    await r.python("x = 1", call_id="sound")
    await r.python("x = 2; get_ipython().compile = None", call_id="breaks")
    history, connection = r.kernel.variables, r.kernel._connection
    assert connection is not None
    history.take_snapshot(connection, "broken")
    await settled(r)
    former = r.kernel.worker_pid
    async with history.hold():
        assert history.prepare("broken")
        assert history._ahead is not None
        await history._ahead.waking
        os.kill(former, signal.SIGKILL)
        await eventually(lambda: r.kernel.worker_pid not in {0, former})
    assert await r.value("x") == 1


async def enter(context: AbstractAsyncContextManager[None]) -> None:
    async with context:
        pass


def below(r: Rig) -> set[int]:
    supervisor = r.kernel.supervisor
    return tree.below(supervisor, tree.table())


@pytest.mark.parametrize("undone_before", [False, True])
async def test_values_that_cannot_be_loaded_change_nothing(r: Rig, undone_before: bool) -> None:
    """They go into an older worker, which has taken the place of the present one by then."""
    history = r.kernel.variables
    for number in range(5):
        await r.python(f"x = {number}", call_id=str(number))
    await settled(r)
    if undone_before:
        await history.restore("4")
    present = 3 if undone_before else 4
    snapshot = history._store.find("2")
    assert snapshot is not None
    snapshot.point = replace(snapshot.point, label="data only")
    run_call = history._run_call

    async def refuse(
        connection: WorkerConnection, request: SandboxCall, attachments: Sequence[int]
    ) -> ToolResult:
        return ToolResult.error("no value fits")

    history._run_call = refuse  # type: ignore[assignment]  # it is called in this way here
    with pytest.raises(SandboxError, match="could not be loaded: no value fits"):
        await history.restore("2")
    history._run_call = run_call
    assert await r.value("x", read_only=True) == present
    assert (history.why_not_kept("2"), history.why_not_kept(None) == "") == ("", undone_before)
    assert (await history.restore("2")).label == "data only"
    assert await r.value("x", read_only=True) == 1


# ---- crashes


async def test_uninterruptible_code_costs_nothing_else(r: Rig) -> None:
    await r.python("import numpy as np; kept = np.arange(10)")
    await r.python("other = [1, 2]")
    result = await r.python("other.append(3); sum(range(10**10))", timeout_s=0.3)
    assert result.metadata["timed_out"] is True
    assert result.metadata["state_kept"] is True
    assert await r.value("other, int(kept.sum())") == ([1, 2], 45)
    assert r.reported.losses == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
async def test_a_crash_in_a_state_that_was_gone_back_to(r: Rig, number: signal.Signals) -> None:
    await r.python("x = 1")
    await r.python("x = 2", call_id="two")
    await r.kernel.variables.restore("two")
    os.kill(r.kernel.status().pid, number)
    await eventually(lambda: r.kernel.status().generation == 3)
    assert await r.value("x") == 1
    assert r.reported.losses == []


async def end_while_restored(r: Rig, call_id: str) -> asyncio.Task[object]:
    """Kill the worker while a restore waits for the snapshot to answer, and let that go on afterwards."""
    await settled(r)
    (pid,) = (one.socket.pid for one in r.kernel.variables._store.all() if one.point.call_id == call_id)
    os.kill(pid, signal.SIGSTOP)  # so that it answers only once the end of the worker is known
    restoring = asyncio.create_task(r.kernel.variables.restore(call_id))
    connection = r.kernel._connection
    assert connection is not None
    await eventually(lambda: r.kernel.variables._replacements == 1)
    os.kill(r.kernel.worker_pid, signal.SIGKILL)
    await eventually(lambda: not connection.is_serving)
    os.kill(pid, signal.SIGCONT)
    return restoring


async def test_worker_that_ends_while_it_is_replaced_is_not_recovered_again_and_again(r: Rig) -> None:
    await r.python("x = 1")
    await r.python("x = 2", call_id="two")
    restoring = await end_while_restored(r, "two")
    await restoring
    pid = r.kernel.worker_pid
    await r.kernel.variables.settled()
    assert (r.kernel.worker_pid, r.kernel.status().generation) == (pid, 2)
    assert await r.value("x") == 1
    assert (r.kernel.worker_pid, r.kernel.status().generation) == (pid, 2)
    assert r.reported.losses == []


async def test_successor_of_a_worker_is_no_background_process_once_all_is_settled(r: Rig) -> None:
    for number in range(5):
        await r.python(f"x = {number}", call_id=str(number))
        await settled(r)
        os.kill(r.kernel.worker_pid, signal.SIGKILL)
        await eventually(lambda: r.kernel.variables._replacements > 0)
        await r.kernel.variables.settled()
        found = tree.find_background_processes(
            r.kernel.supervisor, r.kernel.worker_pid, r.kernel.variables.pids()
        )
        assert {pid for pid in found if not tree.has_ended(pid)} == set(), number


@pytest.mark.parametrize("end", ["restart", "close"])
@pytest.mark.parametrize("move", ["restore", "redo"])
async def test_tree_that_is_ended_while_its_worker_is_replaced_takes_no_other(
    r: Rig, move: str, end: str
) -> None:
    """A redo put nothing in the place of the worker, and the loop did nothing but fail from then on."""
    failures: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    history: SnapshotHistory = r.kernel.variables
    for number in range(4):
        await r.python(f"x = {number}", call_id=str(number))
    await history.restore("2")
    connection = r.kernel._connection
    assert connection is not None
    moving = asyncio.create_task(history.redo() if move == "redo" else history.restore("1"))
    while not connection._suspended:
        assert not moving.done()
        await asyncio.sleep(0)
    await (r.kernel.restart() if end == "restart" else r.kernel.close())
    with pytest.raises(SandboxError, match=r"No variable was changed|The variables are gone: the s"):
        await moving
    await loop_turns(20)
    assert failures == []
    if end == "restart":
        assert await r.value("'x' in globals()") is False


async def test_supervisor_whose_end_only_the_next_snapshot_finds_out_costs_the_snapshots_alone(
    r: Rig,
) -> None:
    history = r.kernel.variables
    await r.python("x = 1", call_id="one")
    await r.python("x = 2", call_id="two")
    await history.restore("two")
    connection = history._connection
    assert connection is not None
    pidfd = os.pidfd_open(connection.supervisor)
    os.kill(connection.supervisor, signal.SIGKILL)
    assert select.select([pidfd], [], [], 20)[0], "no turn of the loop: nobody else finds out"
    os.close(pidfd)
    history.take_snapshot(connection, "three")
    assert connection.lost_reason is not None
    assert calls(r) == []
    assert await r.value("'x' in dir()") is False


async def test_crash_after_crash(r: Rig) -> None:
    await r.python("x = 1")
    for _ in range(5):
        result = await r.python("x = 2; import os; os.abort()")
        assert result.metadata["state_kept"] is True, result.content
        assert await r.value("x") == 1


# ---- attacks: nothing of a kept state is believed, and nothing of the host can be had by it


async def test_killing_ones_own_past_costs_only_the_past(r: Rig) -> None:
    for number in range(4):
        await r.python(f"x = {number}", call_id=str(number))
    await settled(r)
    for pid in r.kernel.variables.pids():
        os.kill(pid, signal.SIGKILL)  # as user code of the same domain may
    await eventually(lambda: calls(r) == [])
    with pytest.raises(SandboxError, match="Cannot restore variables to before call"):
        await r.kernel.variables.restore("2")
    assert await r.value("x") == 3
    result = await r.python("import os; os.abort()")
    assert result.metadata["state_kept"] is True, "the call had a state of its own"
    assert await r.value("x") == 3


CHANNELS = """
import os, socket, stat
def sockets():
    found = []
    for fd in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                found.append(fd)
        except OSError:
            pass
    return found
"""


async def test_closing_every_socket_ends_the_worker_and_not_its_past(r: Rig) -> None:
    await r.python("x = 1")
    result = await r.python(f"x = 2{CHANNELS}\nfor fd in sockets(): os.close(fd)", timeout_s=2)
    assert result.is_error
    assert await r.value("x") == 1


async def test_a_fork_of_user_code_cannot_answer_for_a_kept_state(r: Rig) -> None:
    """It forges the first words of a fork, on every socket it finds, and so do two at once."""
    await r.python("x = 1")
    code = f"""{CHANNELS}
import json, struct
def frame(op, **header):
    head = json.dumps({{'op': op, 'sizes': [], **header}}).encode()
    return struct.pack('!II', len(head), 0) + head
for _ in range(2):
    if os.fork() == 0:
        for fd in sockets():
            for op in ('parked', 'woke', 'copying', 'copied'):
                try:
                    os.write(fd, frame(op, lost=['forged'], ours=[], threads=['forged']))
                except OSError:
                    pass
        os._exit(0)
x = 2
"""
    await r.python(code, timeout_s=2)
    await settled(r)
    assert "forged" not in str(r.kernel.variables.points())
    assert await r.value("x") in {1, 2}
    assert await r.value("1 + 1") == 2


async def test_a_state_that_wakes_itself_is_not_heard(r: Rig) -> None:
    """What is continued or signalled without the host's order waits on, and has no channel to speak on."""
    await r.python("x = 1", call_id="one")
    await r.python("x = 2", call_id="two")
    await settled(r)
    for pid in r.kernel.variables.pids():
        for number in (signal.SIGCONT, signal.SIGINT, signal.SIGUSR1):
            os.kill(pid, number)
    await eventually(lambda: not any(map(acts_on_a_signal, r.kernel.variables.pids())))
    assert await r.value("x") == 2
    assert r.kernel.status().generation == 1


async def test_a_stopped_state_is_given_up_in_time(r: Rig) -> None:
    await r.python("x = 1", call_id="one")
    await r.python("x = 2", call_id="two")
    await settled(r)
    for pid in r.kernel.variables.pids():
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(SandboxError, match="did not answer within 1 s"):
        await r.kernel.variables.restore("two")
    assert await r.value("x") == 2, "nothing was changed"


@pytest.mark.slow
async def test_at_fork_hooks_of_user_code_hold_nobody_up_for_ever(r: Rig) -> None:
    await r.python("x = 1; import os, time", call_id="one")
    await r.python("os.register_at_fork(after_in_child=lambda: time.sleep(1000))")
    await r.python("x = 2", call_id="two")
    with pytest.raises(SandboxError, match="Cannot restore variables to before call"):
        async with asyncio.timeout(15):
            await r.kernel.variables.restore("two")
    assert await r.value("x") == 2
    assert r.kernel.status().generation == 1


async def test_labels_claimed_by_the_worker_are_bounded(r: Rig) -> None:
    code = "import threading, time\nfor n in range(30): "
    code += "threading.Thread(target=time.sleep, args=(20,), name='n' * 1000, daemon=True).start()"
    await r.python(code)
    await r.python("x = 1", call_id="after")
    await settled(r)
    (point,) = [p for p in r.kernel.variables.points() if p.call_id == "after"]
    assert point.label == "partial"
    assert len(str(point.lost)) < 1000


# ---- budgets


async def test_memory_of_states_is_bounded(tmp_path: Path) -> None:
    budget = MemoryBudget(max_bytes=60 << 20)
    async with rig(tmp_path, snapshot_budget=budget) as r:
        store = r.kernel.variables._store
        for number in range(8):
            await r.python(f"big = bytearray(b'x' * (30 << 20)); n = {number}")

        def is_within_budget() -> bool:
            # The newest one stays whatever it takes: what the worker's allocator keeps is in it as well.
            sizes = [*map(fork_observation.private_bytes, store.pids())]
            return len(sizes) == 1 or sum(sizes) <= budget.max_bytes

        await eventually(is_within_budget)
        assert len(calls(r)) < 8
        assert await r.value("n") == 7


async def test_memory_that_a_long_call_makes_a_snapshots_own_counts(tmp_path: Path) -> None:
    """A call writes to shared memory long after its fork: the snapshot is measured again when it ends."""
    async with rig(tmp_path, snapshot_budget=MemoryBudget(max_bytes=56 << 20)) as r:
        store = r.kernel.variables._store
        go_on = r.workspace / "go_on"
        # Memory of its own, none of the allocator's, which is handed out again in ways that nobody can tell.
        make = "import mmap, os, time\nbig = mmap.mmap(-1, 30 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANON)\n"
        write = "for at in range(0, len(big), mmap.PAGESIZE): big[at] = (big[at] + 1) % 256"
        await r.python(f"{make}{write}", call_id="first")
        await r.python(write, call_id="second")
        wait = f"while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n"
        call = asyncio.ensure_future(r.python(f"{wait}{write}", call_id="third"))
        await eventually(lambda: len(store.pids()) == 3)
        await settled(r)
        # What followed the fork finds one block that is a snapshot's own: within the budget, so it is kept.
        await eventually(lambda: store._measurement is None)
        assert calls(r) == ["first", "second", "third"]
        go_on.touch()
        await call
        await eventually(lambda: "second" not in calls(r))
        assert "too much memory" in store.eviction_reason("second")


NO_FORKS = """
import errno, os
def refuse(): raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
fork, os.fork = os.fork, refuse
"""


async def test_a_worker_that_cannot_fork_goes_on_without_a_snapshot(tmp_path: Path) -> None:
    """When the user has too many processes the kernel refuses a fork; the worker says so itself."""
    async with rig(tmp_path) as r:
        await r.python(NO_FORKS, call_id="first")
        worker = await r.value("os.getpid()")
        for number in range(5):
            await r.python(f"x = {number}", call_id=f"x{number}")
            await settled(r)
        assert (await r.value("x"), await r.value("os.getpid()")) == (4, worker)
        assert r.reported.losses == []
        with pytest.raises(SandboxError, match=r"could not be forked \(Resource temporarily unavailable\)"):
            await r.kernel.variables.restore("x3")
        await r.python("os.fork = fork", call_id="mended")
        await r.python("x = 5", call_id="x5")
        await r.kernel.variables.restore("x5")
        assert await r.value("x") == 4


async def test_a_snapshot_that_cannot_fork_just_now_stays(tmp_path: Path) -> None:
    """Its process is asked to fork, answers itself, and serves the next request."""
    flaky = NO_FORKS.replace(
        "def refuse():", "def refuse():\n    if os.path.exists('go'): return fork()\n   "
    )
    async with rig(tmp_path) as r:
        go = r.workspace / "go"
        go.touch()
        await r.python(flaky, call_id="first")
        await r.python("x = 1", call_id="one")
        await r.python("x = 2", call_id="two")
        await settled(r)
        go.unlink()
        with pytest.raises(SandboxError, match="could not be forked"):
            await r.kernel.variables.restore("two")
        assert await r.value("x") == 2
        go.touch()
        await r.kernel.variables.restore("two")
        assert await r.value("x") == 1


async def test_a_slow_fork_makes_some_calls_go_without(tmp_path: Path) -> None:
    async with rig(tmp_path, slow_fork_s=0.0) as r:
        for number in range(6):
            await r.python(f"x = {number}", call_id=str(number))
            await settled(r)
        with pytest.raises(SandboxError, match="fork took so long that some calls went without a snapshot"):
            await r.kernel.variables.restore("5")


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_five_hundred_undos_leave_nothing(r: Rig) -> None:
    history = r.kernel.variables
    await r.python("x = list(range(1000))")
    figures = []
    for number in range(500):
        await r.python(f"x[0] = {number}", call_id=str(number))
        await history.restore(str(number))
        if number % 100 == 99:
            await settled(r)
            pid = r.kernel.status().pid
            figures.append(
                (fork_observation.private_bytes(pid) >> 20, open_files(pid), open_files(), len(below(r)))
            )
    assert await r.value("x[0]") == 0
    first, last = figures[0], figures[-1]
    assert last[0] - first[0] <= 8, figures
    assert last[1] == first[1], figures
    assert last[2] - first[2] <= 2, figures
    assert last[3] - first[3] <= 3, figures


async def test_closing_waits_for_forks_that_have_not_answered(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.python("1")
        assert r.kernel._connection is not None
        fork = r.kernel.variables._store.fork(r.kernel._connection, "")
        await r.kernel.close()
        assert fork.settled.done()
        fork.drop("the test ends")
