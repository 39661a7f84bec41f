"""What calls leave running: whose it is, and what it changes while another call only reads."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest

from aisotools.core.protocols import ToolContext
from aisotools.core.types import Effect, ToolResult
from aisotools.sandbox.confinement import syscalls
from aisotools.sandbox.host import leftovers
from aisotools.sandbox.host.leftovers import (
    CallTimes,
    EndedProcesses,
    Leftovers,
    OtherProcesses,
    describe_changed,
    describe_leftovers,
    find_changed,
    find_idle_helpers,
)
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import tree
from aisotools.tools.function import tool
from aisotools.workspace.dirfd import file_time
from tests.sandbox.rig import PATIENT, Rig, rig
from tests.sandbox.test_hostile import LEAVE_PROCESSES, skip_where_others_are_counted
from tests.waiting import eventually, file_times_advance, process_state, wait_until

pytestmark = pytest.mark.timeout(120)

CHANGED = "Changed in the workspace while this call ran"


@pytest.fixture(params=["isolated", "confined"])
def level(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@tool(effect=Effect.READ_ONLY)
def work(code: str, context: ToolContext) -> str:
    """Run code with the variables of the session."""
    exec(code, context.metadata_get("shell").user_ns)
    return "done"


async def read(r: Rig, code: str, **more: Any) -> ToolResult:
    return await r.tool(work, {"code": code}, read_only=True, in_reader=True, **more)


# ---- what changes while a call only reads

ACTORS = {
    "a process": "if os.fork() == 0:\n    act()\n    os._exit(0)",
    "a process in a session of its own": "if os.fork() == 0:\n    os.setsid()\n    act()\n    os._exit(0)",
    "an orphan": (
        "if os.fork() == 0:\n    if os.fork() == 0:\n        act()\n        os._exit(0)\n    os._exit(0)\n"
        "os.wait()"
    ),
    "a thread": "threading.Thread(target=act).start()",
    "a timer of the worker": (
        "signal.signal(signal.SIGALRM, lambda *_: act() if begun() else None)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)"
    ),
    "a timer of the worker's loop": (
        "import asyncio\n"
        "def look(loop=asyncio.get_running_loop()):\n"
        "    act() if begun() else loop.call_later(0.01, look)\n"
        "look()"
    ),
    "a process below one that sleeps": (
        "if os.fork() == 0:\n    if os.fork() == 0:\n        act()\n        os._exit(0)\n    time.sleep(1000)"
    ),
}
"""Each leaves something behind that acts as soon as somebody writes to a FIFO."""
ACTS = {
    "writes a file": ("open('d/f', 'w').write('new')", "d/f"),
    "removes a file": ("os.remove('d/there')", "d/"),
    "removes a file at the top": ("os.remove('there')", "./"),
    "makes a link": ("os.symlink('/etc', 'link')", "link"),
    "sets an old time": ("os.utime('there', (1, 1))", "there"),
    "writes by a mapping": ("m[:] = b'n' * len(m); m.flush()", "mapped"),
}
PREPARE = """
import mmap, os, signal, threading, time
os.makedirs('d', exist_ok=True)
for name in ('there', 'd/there'):
    open(name, 'w').close()
open('mapped', 'wb').write(b'o' * 4096)
m = mmap.mmap(os.open('mapped', os.O_RDWR), 4096)
os.mkfifo('begin')
def begun():
    return 'go' in os.listdir()
def act():
    if not begun():
        open('begin').read()
    {act}
    os.mkdir('acted')
"""
WAIT = "import os\nprint('began', flush=True)\nwhile not os.path.exists('acted'): pass"
WAKE_BY_READING = "import os\nopen('begin').read()\nwhile not os.path.exists('acted'): pass"


async def leave(r: Rig, actor: str, act: str) -> None:
    left = await r.python(PREPARE.format(act=act) + ACTORS[actor])
    assert not left.is_error, left.content
    file_times_advance()


async def wake(r: Rig, waiting: str) -> None:
    """Let what was left act, from outside of the sandbox, as soon as the call `waiting` runs."""
    await eventually(lambda: "began" in r.reported.text(waiting))
    (r.workspace / "go").touch()
    if not (r.workspace / "acted").exists():
        await asyncio.to_thread(lambda: os.close(os.open(r.workspace / "begin", os.O_RDWR)))


def sleeps(pid: int) -> bool:
    return process_state(pid) not in {"R", "D"}


@pytest.mark.parametrize("actor", ACTORS)
async def test_changes_by_something_left_running_are_said_in_the_result_of_a_reader(
    tmp_path: Path, level: str, actor: str
) -> None:
    async with rig(tmp_path, level=level) as r:
        await leave(r, actor, ACTS["writes a file"][0])
        assert CHANGED not in (await read(r, "pass")).content
        reading = asyncio.ensure_future(read(r, WAIT, call_id="reading"))
        await wake(r, "reading")
        result = await reading
        assert not result.is_error
        assert CHANGED in result.content
        assert "d/f" in result.content


@pytest.mark.parametrize("act", ACTS)
async def test_every_kind_of_change_is_seen(tmp_path: Path, act: str) -> None:
    code, path = ACTS[act]
    async with rig(tmp_path) as r:
        await leave(r, "a process", code)
        command = "echo began; while ! [ -e acted ]; do :; done"
        waiting = asyncio.ensure_future(r.bash(command, read_only=True, call_id="waiting"))
        await wake(r, "waiting")
        result = await waiting
        assert not result.is_error
        assert f" {path}" in result.content.partition(CHANGED)[2].replace(",", " ").replace(".", " .")


async def test_a_signal_of_the_reader_itself_is_said_too(tmp_path: Path, level: str) -> None:
    """A process that waits for the other end of a FIFO learns when a reader opens it, and has its rights."""
    act = "os.open('begin', os.O_WRONLY); os.mkdir('acted')"
    code = f"import os\nos.mkfifo('begin')\nif os.fork() == 0:\n    {act}\n    os._exit(0)"
    async with rig(tmp_path, level=level) as r:
        await r.python(code)
        result = await read(r, WAKE_BY_READING)
        assert CHANGED in result.content
        assert "acted/" in result.content


async def test_processes_that_only_sleep_are_not_mentioned_and_nothing_is_looked_for(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path, level=level) as r:
        await r.python("import os, time\nif os.fork() == 0:\n    time.sleep(1000)")
        looks: list[float] = []

        def look(workspace: str, since_ns: int) -> Any:
            looks.append(since_ns)
            return find_changed(workspace, since_ns)

        monkeypatch.setattr(leftovers, "find_changed", look)
        # The worker runs when it makes a reader, so that something may have changed. On a busy machine it
        # still does when the next call begins.
        for number in range(20):
            assert (await read(r, "pass")).content == "done"
            await eventually(lambda: all(map(sleeps, tree.descendants(r.kernel.supervisor))))
            looks.clear()
            assert (await read(r, "pass")).content == "done"
            assert (await r.bash("echo hi", read_only=True)).content.strip() == "hi"
            # A change by a person, which no process of the sandbox has made.
            (r.workspace / f"mine-{number}").write_text("x")
            after = await read(r, "pass")
            if not looks:
                assert after.content == "done"
                return
        pytest.fail("it was looked for what had changed each time")


async def test_a_worker_that_takes_over_is_watched(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await read(r, "pass")
        await r.kernel.restart()
        await leave(r, "a process", "open('f', 'w')")
        reading = asyncio.ensure_future(read(r, WAIT, call_id="reading"))
        await wake(r, "reading")
        assert CHANGED in (await reading).content


STANDS_FOR_THE_WORKER = """
import os, sys, threading
stop = threading.Event()
print(os.getpid(), flush=True)
sys.stdin.readline()
thread = threading.Thread(target=stop.wait)
thread.start()
print('has a thread', flush=True)
sys.stdin.readline()
stop.set()
thread.join()
print('has none', flush=True)
sys.stdin.readline()
"""


def test_a_look_at_what_runs_beside_a_call() -> None:
    """A shell stands for the supervisor, and what it starts for the worker."""
    command = ["sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, STANDS_FOR_THE_WORKER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        watch = OtherProcesses(worker.pid, pid)
        assert watch.count_runs(()) == {}
        print(file=worker.stdin, flush=True)
        worker.stdout.readline()
        before = watch.count_runs(())
        assert before is not None
        assert [process for process, _ in before] == [pid]
        print(file=worker.stdin, flush=True)
        worker.stdout.readline()
        assert watch.have_run(before), "what has ended has run"
        assert watch.have_run(None), "nobody knows"
        assert not watch.have_run({})
        watch.close()
        watch.close()
        wait_until(lambda: watch.count_runs(()) == {})  # the whole tree is looked at
        worker.communicate("\n")


async def test_the_ended_fork_of_a_reader_costs_no_look_at_the_whole_tree(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker asks how it has ended only when it is called itself. Until then each call found it again."""
    async with rig(tmp_path, level=level) as r:
        await read(r, "pass")
        looks: list[int] = []
        descendants = tree.descendants

        def look(root: int, *arguments: Any, **options: Any) -> set[int]:
            looks.append(root)
            return descendants(root, *arguments, **options)

        monkeypatch.setattr(tree, "descendants", look)
        for _ in range(50):  # it may not have ended yet, and a busy machine takes its time
            looks.clear()
            assert (await read(r, "pass")).content == "done"
            if not looks:
                return
        pytest.fail("the whole tree was looked at each time")


def test_a_process_that_has_ended_is_known_until_its_parent_has_asked() -> None:
    ended = EndedProcesses()
    try:
        with subprocess.Popen(["true"]) as child, subprocess.Popen(["sleep", "1000"]) as other:
            wait_until(lambda: process_state(child.pid) == "Z")
            for _ in range(2):  # seen for the first time, and known
                assert ended.include_all([child.pid])
                assert not ended.include_all([other.pid])
                assert not ended.include_all([child.pid, other.pid])
            child.wait()
            assert not ended.include_all([child.pid]), "its number may be another's now"
            assert not ended.include_all([child.pid])
            other.kill()
            wait_until(lambda: process_state(other.pid) == "Z")
            assert ended.include_all([other.pid])
            assert not ended.include_all(range(1, 100)), "each takes a descriptor of ours"
    finally:
        ended.close()
    ended.close()


LEADER_ENDS = """
import ctypes, os, threading
threading.Thread(target=threading.Event().wait).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_alone_has_ended_still_runs() -> None:
    ended = EndedProcesses()
    try:
        with subprocess.Popen([sys.executable, "-c", LEADER_ENDS]) as child:
            wait_until(lambda: process_state(child.pid) == "Z")
            assert not ended.include_all([child.pid])
            child.kill()
    finally:
        ended.close()


# ---- looking for it


def test_changes_are_found_and_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    folder = tmp_path / "w"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "old").touch()
    (folder / "link").symlink_to(tmp_path / "outside")
    file_times_advance()
    since_ns = file_time()
    assert find_changed(str(folder), since_ns).count == 0
    (folder / "a" / "b" / "new\n").touch()
    (tmp_path / "outside" / "secret").touch()
    found = find_changed(str(folder), since_ns)
    assert (sorted(found.paths), found.count, found.saw_all) == (["a/b/", "a/b/new\n"], 2, True)
    assert "a/b/new\\n" in describe_changed(found)
    assert find_changed(str(tmp_path / "gone"), since_ns).count == 0
    assert find_changed(str(folder / "link"), since_ns).count == 0


def test_files_that_cannot_be_looked_at_are_counted_as_unknown(tmp_path: Path) -> None:
    since_ns = file_time()
    for number in range(20):
        (tmp_path / f"f{number}").touch()
    found = find_changed(str(tmp_path), since_ns, most_entries=15)
    assert not found.saw_all
    assert found.count >= 15
    assert len(found.paths) < found.count
    text = describe_changed(found)
    assert f"and {found.count - len(found.paths)} more" in text
    assert "Not everything could be looked at" in text
    unseen = find_changed(str(tmp_path), since_ns + (1 << 62), most_entries=15)
    assert unseen.count == 0
    assert "Not everything could be looked at" in describe_changed(unseen)


def test_folders_beyond_the_longest_path_are_looked_at_as_deep_as_can_be(tmp_path: Path) -> None:
    since_ns = file_time()
    directory = os.open(tmp_path, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d" * 50, dir_fd=directory)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
    found = find_changed(str(tmp_path), since_ns)
    assert found.count > 50
    assert not found.saw_all


# ---- whose it is


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The clock of the calls, set by hand."""
    now = [0]
    monkeypatch.setattr(leftovers, "_now", lambda: now[0])
    return lambda ticks: now.__setitem__(0, ticks)


@pytest.mark.parametrize(
    ("started", "expected"),
    [(5, None), (10, "a"), (15, "a"), (20, "a"), (25, "a"), (30, "b"), (35, "b"), (40, "b"), (99, "c")],
)
def test_a_process_is_that_of_the_call_in_whose_time_it_began(
    ticking: Any, started: int, expected: str | None
) -> None:
    times = CallTimes()
    for name, began, ended in (("a", 10, 20), ("b", 30, 40), ("c", 40, 50)):
        ticking(began)
        with times.running(name, "python"):
            ticking(ended)
    spans = [*times._spans]
    index = leftovers._find(spans, started)
    assert (None if index is None else spans[index].call_id) == expected


def test_calls_are_named_with_what_they_have_left_and_the_way_out() -> None:
    assert describe_leftovers([]) == ""
    many = [Leftovers(call_id=f"c{n}", tool="python", count=9 - n) for n in range(5)]
    text = describe_leftovers(many)
    assert "9 of python (call c0), 8 of python (call c1), 7 of python (call c2), and 11 of others" in text
    assert "%sandbox restart" in text


LEAVE_THREADS = """
import threading
never = threading.Event()
for n in range(25):
    threading.Thread(target=never.wait, daemon=True).start()
"""
LEAVE_ORPHANS = """
import os, time
for n in range(25):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    os.wait()
"""
LEAVE_BELOW = """
import os, time
if os.fork() == 0:
    for n in range(24):
        if os.fork() == 0:
            time.sleep(1000)
    time.sleep(1000)
"""


def wait_for_next_tick() -> None:
    began = leftovers._now()
    wait_until(lambda: leftovers._now() > began)


@pytest.mark.parametrize("code", [LEAVE_THREADS, LEAVE_ORPHANS, LEAVE_BELOW])
async def test_processes_and_threads_that_a_call_has_left_are_found(
    tmp_path: Path, level: str, code: str
) -> None:
    async with rig(tmp_path, level=level) as r:
        for call_id, cell in (("first", "x = 1"), ("culprit", code), ("last", "x = 2")):
            wait_for_next_tick()  # what begins in the same tick may count for either
            await r.python(cell, call_id=call_id)
        await r.bash("sleep 1000 & echo", call_id="small")
        await r.kernel.variables.settled()
        supervisor, worker = r.kernel.supervisor, r.kernel.worker_pid

        own = r.kernel.variables.pids()
        ours = {supervisor, *leftovers._find_init(supervisor), worker, *own}

        def most() -> Leftovers:
            return r.kernel._call_times.find_leftovers(supervisor, ours)[0]

        await eventually(lambda: most().count == 25)  # some begin after their call has ended
        assert (most().call_id, most().tool) == ("culprit", "python")
        result = await r.kernel._call_times.explain(ToolResult.error(""), supervisor, worker, own)
        assert "25 of python (call culprit)" in result.content


async def test_the_error_names_the_call_that_has_left_so_many_processes(tmp_path: Path) -> None:
    async with rig(tmp_path, Limits(processes=40), stop_timeouts=PATIENT) as r:
        skip_where_others_are_counted(r)
        await r.python("x = 1", call_id="innocent")
        wait_for_next_tick()  # what begins in the same tick may count for either
        left = int(await r.value(LEAVE_PROCESSES, call_id="culprit"))
        for refused in (await r.bash("true", call_id="victim"), await read(r, "pass")):
            assert refused.is_error
            assert refused.metadata["limit"] == "processes"
            assert "of python (call culprit)" in refused.content
            assert str(left) in refused.content
            assert "innocent" not in refused.content
            assert "victim" not in refused.content
            assert "%sandbox restart" in refused.content
        await r.kernel.restart()
        assert not (await read(r, "pass")).is_error


async def test_a_failure_that_lacks_no_process_names_nobody(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.python(LEAVE_ORPHANS, call_id="culprit")
        result = await r.python("1/0")
        assert result.is_error
        assert "culprit" not in result.content


# ---- helpers of libraries

HELPER = "import sys, mmap; {before}; print(flush=True); sys.stdin.read() # "
TRACKER = "from multiprocessing.resource_tracker import main"


def helper(code: str = "pass", *, line: str = TRACKER) -> subprocess.Popen[bytes]:
    """Start a process that does `code` and then waits, with a line of code that says whose it is."""
    program = f"{line if line == TRACKER else 'pass'}; {HELPER.format(before=code)}{line}"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
    assert child.stdout is not None
    child.stdout.readline()
    wait_until(lambda: process_state(child.pid) == "S")
    return child


@pytest.mark.parametrize(
    ("code", "line", "library"),
    [
        ("pass", TRACKER, "multiprocessing"),
        ("pass", "joblib.externals.loky.backend.popen_loky_posix", "joblib"),
        ("pass", "a task of its own", ""),
        ("file = open('file', 'w')", TRACKER, ""),
        ("file = open('file', 'r+')", TRACKER, ""),
        ("file = open('file')", TRACKER, "multiprocessing"),
        ("file = open('file', 'r+'); m = mmap.mmap(file.fileno(), 0); file.close()", TRACKER, ""),
        ("m = mmap.mmap(-1, 4096)", TRACKER, "multiprocessing"),
    ],
)
def test_helper_is_what_only_waits_and_has_nothing_open_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, line: str, library: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("content")
    with helper(code, line=line) as child:
        expected = {child.pid: library} if library else {}
        assert find_idle_helpers([child.pid], os.getpid()) == expected
        assert not find_idle_helpers([child.pid], worker=1), "it is not a child of that worker"
        child.communicate()
    assert not find_idle_helpers([child.pid], os.getpid()), "it has ended"


def test_helper_that_runs_is_not_idle() -> None:
    program = f"{TRACKER}; print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=PIPE, stderr=DEVNULL) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert not find_idle_helpers([child.pid], os.getpid())
        child.kill()


FORKS = """
import multiprocessing, os, sys, threading, time
reading, writing = os.pipe()
lock = multiprocessing.get_context('fork').Lock()
lock.acquire()
def fork(act):
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        act()
        os._exit(0)
    return pid
def sleep_with_file():
    file = open('file', 'a')
    os.read(reading, 1)
def read_beside_a_thread():
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    os.read(reading, 1)
def spin():
    while True:
        pass
acts = [lambda: os.read(reading, 1), lock.acquire, lambda: lock.acquire(timeout=1000),
        lambda: time.sleep(1000), sleep_with_file, read_beside_a_thread, spin]
print(*map(fork, acts), flush=True)
sys.stdin.read()
"""


def test_fork_of_the_worker_that_waits_for_work_is_a_helper_and_one_that_does_something_is_none(
    tmp_path: Path,
) -> None:
    if syscalls.architecture() is None:
        pytest.skip("nobody here knows the system calls of this machine")
    program = [sys.executable, "-c", FORKS]
    with subprocess.Popen(program, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd=tmp_path) as worker:
        assert worker.stdout is not None
        pids = [*map(int, worker.stdout.readline().split())]
        try:
            waiting = dict.fromkeys(pids[:2], "multiprocessing")
            wait_until(lambda: all(process_state(pid) == "S" for pid in pids[:-1]))
            wait_until(lambda: find_idle_helpers(pids, worker.pid) == waiting)
            assert not find_idle_helpers(pids, os.getpid()), "they are no children of that worker"
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            worker.kill()
