"""Calls in readers: what they see, how they are stopped, and what they leave alone."""

from __future__ import annotations

import ast
import asyncio
import errno
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from aisotools.builtin.files import sandbox_write
from aisotools.core.protocols import OutputCaps, ToolContext, ToolPayload
from aisotools.core.sandboxes import SandboxCall
from aisotools.core.types import Effect, Facts, Json, Origin, ToolCall, ToolResult
from aisotools.sandbox.host.monitor import CpuSample
from aisotools.sandbox.host.readers import Readers
from aisotools.sandbox.limits import LimitExceeded, Limits
from aisotools.testing.fakes import MockTool
from aisotools.tools.function import FunctionTool, tool
from tests.conftest import OpenSession
from tests.sandbox.process.test_spawn import few_descriptors
from tests.sandbox.rig import DEAF_ONCE, PATIENT, Rig, processes_of, rig
from tests.waiting import HANG_S, eventually, late, process_state

pytestmark = pytest.mark.timeout(120)


@tool(effect=Effect.READ_ONLY)
def evaluate(code: str, context: ToolContext) -> Any:
    """Evaluate an expression with the variables of the session."""
    return eval(code, context.metadata_get("shell").user_ns)


@tool(effect=Effect.READ_ONLY)
def work(code: str, context: ToolContext) -> str:
    """Run code with the variables of the session."""
    exec(code, context.metadata_get("shell").user_ns, {"context": context})
    return "done"


@tool(effect=Effect.READ_ONLY)
async def work_in_turns(code: str, context: ToolContext) -> str:
    """Run code with the variables of the session, and take turns with others."""
    await asyncio.sleep(0)
    exec(code, context.metadata_get("shell").user_ns, {"context": context})
    return "done"


@tool(effect=Effect.READ_ONLY)
async def wait_for(seconds: float) -> str:
    """Wait without blocking."""
    await asyncio.sleep(seconds)
    return "waited"


async def read(r: Rig, one: FunctionTool[..., Any], *, timeout_s: float = 20, **arguments: Any) -> ToolResult:
    return await r.tool(one, arguments, read_only=True, in_reader=True, timeout_s=timeout_s)


async def pid_of(r: Rig) -> int:
    pid: int = (await read(r, evaluate, code="__import__('os').getpid()")).value
    return pid


@pytest.fixture(params=["isolated", "confined"])
def level(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


# ---- what it sees


async def test_reader_sees_the_present_variables_and_changes_none(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level) as r:
        await r.python("x = [1]")
        assert (await read(r, evaluate, code="x.append(2) or x")).value == [1, 2]
        # The same process again: it is kept, with what it has changed of its own.
        assert (await read(r, evaluate, code="x")).value == [1, 2]
        assert await r.value("x") == [1]
        await r.python("x.append(3)")
        assert (await read(r, evaluate, code="x")).value == [1, 3]


@pytest.mark.parametrize("closed", ["0,", "1,", "2,", "0, 1", "1, 2", "0, 1, 2"])
async def test_reader_of_a_worker_without_standard_descriptors(tmp_path: Path, closed: str) -> None:
    async with rig(tmp_path) as r:
        await r.python(f"import os; x = 5\nfor number in ({closed}): os.close(number)", call_id="closes")
        for _ in range(2):
            code = "os.write(1, b'out'), os.write(2, b'err'), os.read(0, 1)"
            result = await read(r, evaluate, code=code)
            assert result.value == [3, 3, ""], result.content
            assert (result.metadata["stdout"], result.metadata["stderr"]) == ("out", "err")
            await r.python("1", call_id="changes")
        code = f"""
found = []
for number in ({closed}):
    try:
        os.write(number, b'x') if number else os.read(number, 1)
    except OSError as error:
        found.append(error.strerror + str(os.fstat(number).st_rdev - os.stat(os.devnull).st_rdev))
found"""
        # No socket of ours has got one of their numbers, in a worker that is restored either.
        expected = ["Bad file descriptor0"] * len(ast.literal_eval(f"[{closed}]"))
        assert await r.value(code) == expected
        await r.kernel.variables.restore("changes")
        assert await r.value(code) == expected
        assert (await read(r, evaluate, code="x")).value == 5


async def test_reader_of_a_worker_with_too_many_open_files_is_refused_and_the_worker_stays(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        await r.python(
            "import os\nx, held = 5, []\n"
            "try:\n    while True: held.append(os.open(os.devnull, os.O_RDONLY))\nexcept OSError: pass"
        )
        for freed in ("", "os.close(held.pop())", "for _ in '12': os.close(held.pop())"):
            await r.python(freed)
            refused = await read(r, evaluate, code="x")
            assert "evaluate was not run: " in refused.content
            assert "the worker has too many files open (EMFILE; 5" in refused.content
            assert "Close them there, or restart the sandbox" in refused.content
        await r.python("for number in held: os.close(number)")
        assert (await read(r, evaluate, code="x")).value == 5
        assert r.reported.losses == []


async def test_reader_for_which_the_host_has_too_many_open_files_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:

        async def end_readers() -> None:
            r.kernel._readers.outdate()
            await eventually(lambda: not r.kernel.variables.reader_pids)
            await r.kernel.variables.settled()

        await r.python("x = 5")
        for _ in range(2):  # what the first ones leave open is open now
            assert (await read(r, evaluate, code="x")).value == 5
            await end_readers()
        refusals = 0
        with few_descriptors() as leave:
            for more in range(40):
                leave(more)
                result = await read(r, evaluate, code="x")
                if not result.is_error:
                    break
                refusals += 1
                assert "evaluate was not run: " in result.content
                assert "too many files open (EMFILE)" in result.content
                assert "raise the limit (`ulimit -n`)" in result.content
                assert "restart" not in result.content
            leave(100)
            assert (await read(r, evaluate, code="x")).value == 5
            await end_readers()
        assert 5 < refusals < 40
        assert r.reported.losses == []


async def test_reader_is_renewed_when_the_variables_may_have_changed_and_at_no_other_time(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        first = await pid_of(r)
        assert await pid_of(r) == first
        await r.bash("true", read_only=True)
        await r.bash("true", changes_variables=False)
        assert await pid_of(r) == first, "neither reading nor files change variables"
        await r.python("1")
        second = await pid_of(r)
        assert second != first
        await r.kernel.variables.restore((r.kernel.variables.points())[-1].call_id)
        assert await pid_of(r) != second, "undo replaces the worker"


async def test_a_tool_that_the_worker_has_never_seen_is_not_loaded_there(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        assert (await read(r, evaluate, code="1 + 1")).value == 2
        assert (await r.tool(evaluate, {"code": "2 + 2"})).value == 4, "it is sent to the worker as well"


async def test_the_history_of_the_variables_does_not_notice(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.python("x = 1", call_id="a")
        await read(r, evaluate, code="x")
        await r.python("x = 2", call_id="b")
        await r.kernel.variables.settled()
        points = r.kernel.variables.points()
        assert [(point.call_id, point.label) for point in points] == [("a", "exact"), ("b", "exact")]
        assert (await r.kernel.variables.restore("b")).label == "exact"
        assert (await read(r, evaluate, code="x")).value == 1


async def test_calls_beside_each_other_share_one(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        results = await asyncio.gather(*(read(r, wait_for, seconds=0.01) for _ in range(5)))
        assert [result.value for result in results] == ["waited"] * 5


async def test_a_call_that_runs_finishes_in_the_reader_of_before(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        waiting = asyncio.ensure_future(read(r, wait_for, seconds=3600))
        await read(r, evaluate, code="1")
        await r.kernel.call(_python("x = 1"))
        assert (await read(r, evaluate, code="x")).value == 1
        assert not waiting.done()
        await r.kernel.interrupt()
        assert (await waiting).metadata["stopped"]


async def test_thread_of_an_earlier_call_keeps_its_rights_while_a_reader_runs(tmp_path: Path) -> None:
    code = """
import os, threading
os.mkfifo('begin')
def write():
    open('begin').read()
    open('f', 'w').write('new')
threading.Thread(target=write).start()
"""
    async with rig(tmp_path) as r:
        await r.python(code)
        reading = asyncio.ensure_future(read(r, wait_for, seconds=3600))
        await eventually(lambda: r.kernel.variables.reader_pids)
        await asyncio.to_thread(lambda: (r.workspace / "begin").open("w").close())
        await eventually((r.workspace / "f").exists)
        assert not reading.done()
        await r.kernel.interrupt()
        assert (await reading).metadata["stopped"]


async def test_processes_of_an_earlier_call_can_notice_a_reader_and_act(tmp_path: Path, level: str) -> None:
    """The kernel tells who waits for a FIFO or a lock; the reader itself can neither write nor signal."""
    left = """
import fcntl, os, time
os.mkfifo('fifo')
ready, told = os.pipe()
if os.fork() == 0:
    os.write(told, b'x')
    os.open('fifo', os.O_WRONLY)
    os.close(os.open('done', os.O_CREAT | os.O_WRONLY, 0o644))
    os._exit(0)
os.read(ready, 1)
"""
    async with rig(tmp_path, level=level) as r:
        await r.python(left)
        refused = await read(r, evaluate, code="open('n', 'w')")
        assert refused.is_error
        assert (await read(r, evaluate, code="open('fifo').read()")).value == ""
        await eventually((r.workspace / "done").exists)


def _python(code: str) -> SandboxCall:
    payload = ToolPayload(key="python", import_path="aisotools.builtin.python:python", concurrency="main")
    return SandboxCall(call=ToolCall("beside", "python", {"code": code}), shipment=payload, timeout_s=20)


# ---- what Landlock does not govern

_CHANGES_OF_METADATA = """
import ctypes, os
from aisotools.sandbox.confinement import syscalls
HERE, path, name, value = -100, b'f', b'user.x', b'new'
fd = os.open('f', os.O_RDONLY)
uid, gid = os.getuid(), os.getgid()
times = bytes(32)
flags = ctypes.create_string_buffer(8)
attributes = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer := ctypes.create_string_buffer(value)), 3)
attempts = {
    'chmod': (path, 0o600), 'fchmod': (fd, 0o600), 'fchmodat': (HERE, path, 0o600),
    'fchmodat2': (HERE, path, 0o600, 0),
    'chown': (path, uid, gid), 'fchown': (fd, uid, gid), 'lchown': (path, uid, gid),
    'fchownat': (HERE, path, uid, gid, 0),
    'utime': (path, times), 'utimes': (path, times), 'futimesat': (HERE, path, times),
    'utimensat': (HERE, path, times, 0), 'utimensat, descriptor': (fd, None, times, 0),
    'utimensat, now': (HERE, path, None, 0), 'utimensat, descriptor, now': (fd, None, None, 0),
    'futimesat, descriptor': (fd, None, times),
    'setxattr': (path, name, value, 3, 0), 'lsetxattr': (path, name, value, 3, 0),
    'fsetxattr': (fd, name, value, 3, 0),
    'setxattrat': (HERE, path, 0, name, attributes, 16),
    'removexattr': (path, name), 'lremovexattr': (path, name), 'fremovexattr': (fd, name),
    'removexattrat': (HERE, path, 0, name),
    'ioctl': (fd, 0x40086602, flags), 'ioctl, 32 bits': (fd, 0x40046602, flags),
    'ioctl, extended': (fd, 0x401C5820, bytes(28)), 'ioctl, version': (fd, 0x40087602, flags),
    'file_setattr': (HERE, path, bytes(24), 24, 0),
}
numbers = syscalls.NUMBERS[syscalls.architecture()]
outcomes = {}
for attempt, arguments in attempts.items():
    if attempt.split(',')[0] in numbers:
        if 'remove' in attempt and outside:
            os.setxattr('f', name, value)
        try:
            syscalls.call(attempt.split(',')[0], *arguments)
            outcomes[attempt] = 0
        except OSError as error:
            outcomes[attempt] = error.errno
"""
# Not every file system or kernel has these; that no other is missing is what the control shows.
_NOT_EVERYWHERE = {
    "ioctl",
    "ioctl, 32 bits",
    "ioctl, extended",
    "ioctl, version",
    "file_setattr",
    "fchmodat2",
}
_NOT_EVERYWHERE |= {"setxattrat", "removexattrat"}


def _metadata(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, status.st_ctime_ns


@pytest.mark.parametrize("one", [work, work_in_turns], ids=["sync", "async"])
async def test_neither_mode_nor_owner_times_attributes_or_flags_of_a_file_can_be_changed(
    tmp_path: Path, level: str, one: FunctionTool[..., Any]
) -> None:
    code = f"outside = False\n{_CHANGES_OF_METADATA}\nprint(outcomes)"
    async with rig(tmp_path, level=level) as r:
        target = r.workspace / "f"
        target.write_text("content")
        target.chmod(0o666)
        before = _metadata(target)
        result = await r.tool(one, {"code": code}, read_only=True, in_reader=True, call_id="one")
        assert not result.is_error, result.content
        outcomes = ast.literal_eval(r.reported.text("one"))
        assert len(outcomes) > 20
        assert set(outcomes.values()) == {errno.EPERM}, outcomes
        assert _metadata(target) == before
        assert os.listxattr(target) == []


def test_each_of_these_changes_works_outside_of_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_text("content")
    space: dict[str, Any] = {"outside": True}
    exec(_CHANGES_OF_METADATA, space)
    os.close(space["fd"])
    failed = {name for name, number in space["outcomes"].items() if number}
    assert failed <= _NOT_EVERYWHERE, {name: space["outcomes"][name] for name in failed}


# ---- what comes out of it


async def test_output_progress_displays_and_large_results(tmp_path: Path, level: str) -> None:
    code = """
import os, subprocess, sys
from IPython.display import display
print('printed')
os.write(1, b'written')
subprocess.run(['echo', 'by a program'])
print('to errors', file=sys.stderr)
context.emit('half', way=1)
display({'text/plain': 'shown'}, raw=True)
"""
    async with rig(tmp_path, level=level) as r:
        result = await r.tool(work, {"code": code}, read_only=True, in_reader=True, call_id="one")
        assert not result.is_error, result.content
        assert r.reported.text("one") == "printed\nwrittenby a program\n"
        assert r.reported.text("one", "stderr") == "to errors\n"
        assert ("one", "half", {"way": 1}) in r.reported.emits
        assert result.metadata["displays"] == [{"text/plain": "shown"}]
        caps = OutputCaps(value_bytes=20 << 20)
        large = await r.tool(evaluate, {"code": "'x' * (8 << 20)"}, read_only=True, in_reader=True, caps=caps)
        assert len(large.value) == 8 << 20


async def test_a_failure_says_what_to_do(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        result = await read(r, work, code="open('x', 'w')")
        assert result.is_error
        assert "without the right to change files" in result.content
        assert "of the variables does not reach the worker" in result.content
        assert "effect='local_mutation'" in result.content
        assert result.metadata["in_reader"]
        assert "in_reader" not in (await r.python("1")).metadata
        assert not (r.workspace / "x").exists()


# ---- stopping


@pytest.mark.parametrize("code", ["import time; time.sleep(3600)", "while True: pass"])
async def test_a_timeout_ends_the_call_and_keeps_the_variables(tmp_path: Path, level: str, code: str) -> None:
    async with rig(tmp_path, level=level, stop_timeouts=PATIENT) as r:
        await r.python("x = 1")
        result = await late(
            read(r, work, code=f"print('begun', flush=True)\n{code}", timeout_s=HANG_S),
            when=lambda: any("begun" in text for _, _, text in r.reported.outputs),
            deadline_s=HANG_S,
        )
        assert result.metadata["timed_out"]
        assert "nothing was changed" in result.content
        assert "without" not in result.content, "it lacks nothing"
        assert result.metadata["stdout"] == "begun\n"
        assert await r.value("x") == 1
        assert (await read(r, evaluate, code="x")).value == 1


async def test_reader_that_cannot_be_interrupted_is_killed_and_the_worker_is_not(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        worker = await r.value("__import__('os').getpid()")
        code = """
import signal, subprocess, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
subprocess.Popen(['sleep', '3600'])
while True:
    try:
        time.sleep(3600)
    except BaseException:
        pass
"""
        result = await read(r, work, code=code, timeout_s=0.5)
        assert result.metadata["timed_out"]
        assert await r.value("__import__('os').getpid()") == worker
        assert not any("sleep" in process for process in processes_of(r.workspace))
        assert r.reported.losses == []


async def test_stop_interrupts_it(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level, stop_timeouts=PATIENT) as r:
        running = asyncio.ensure_future(
            r.tool(
                work,
                {"code": "print('begun', flush=True)\nimport time\ntime.sleep(3600)"},
                read_only=True,
                in_reader=True,
                call_id="long",
            )
        )
        await eventually(lambda: r.reported.text("long"))
        await r.kernel.interrupt()
        result = await running
        assert result.is_error
        assert result.metadata["stopped"]
        assert (await read(r, evaluate, code="1")).value == 1


async def test_an_interrupt_that_is_not_noticed_is_repeated(tmp_path: Path) -> None:
    async with rig(tmp_path, stop_timeouts=PATIENT) as r:
        running = asyncio.ensure_future(
            r.tool(work, {"code": DEAF_ONCE}, read_only=True, in_reader=True, call_id="long")
        )
        await eventually(lambda: r.reported.text("long"))
        await r.kernel.interrupt()
        assert (await running).metadata["stopped"]


async def test_a_cancelled_caller_leaves_nothing_running(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        running = asyncio.ensure_future(
            r.tool(
                work,
                {"code": "import subprocess\nprint('begun', flush=True)\nsubprocess.run(['sleep', '3600'])"},
                read_only=True,
                in_reader=True,
                call_id="long",
            )
        )
        await eventually(lambda: r.reported.text("long"))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not any("sleep" in process for process in processes_of(r.workspace))
        assert (await read(r, evaluate, code="1")).value == 1


async def test_reader_that_dies_costs_its_call_alone(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.python("x = 1")
        result = await read(r, work, code="import os; os.kill(os.getpid(), 9)")
        assert result.is_error
        assert result.metadata["reader_died"]
        assert "nothing was changed" in result.content
        assert (await read(r, evaluate, code="x")).value == 1
        assert r.reported.losses == []


async def test_reader_that_dies_between_calls_is_replaced(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        assert (await read(r, evaluate, code="1")).value == 1
        (pid,) = r.kernel.variables.reader_pids
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: not r.kernel.variables.reader_pids)
        assert (await read(r, evaluate, code="1")).value == 1
        assert pid not in r.kernel.variables.reader_pids


@pytest.mark.parametrize("frame", ["b'nonsense' * 10", "encode('done', {'id': 1}, [b'{'])"])
async def test_reader_that_breaks_the_protocol_is_ended(tmp_path: Path, frame: str) -> None:
    code = f"""
import os
from aisotools.sandbox.frames import encode
for number in range(3, 64):
    try:
        os.write(number, {frame})
    except OSError:
        pass
import time
time.sleep(3600)
"""
    async with rig(tmp_path) as r:
        result = await read(r, work, code=code, timeout_s=30)
        assert result.is_error
        assert (await read(r, evaluate, code="1")).value == 1
        assert r.reported.losses == []


async def test_reader_ends_with_its_worker(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await read(r, evaluate, code="1")
        assert len(r.kernel.variables.reader_pids) == 1
        await r.kernel.restart()
        await eventually(lambda: not r.kernel.variables.reader_pids)
        await read(r, evaluate, code="1")
    await eventually(lambda: not r.kernel.variables.reader_pids)


# ---- limits


async def test_memory_ends_the_reader_and_not_the_worker(tmp_path: Path) -> None:
    limits = Limits(memory_bytes=400 << 20)
    async with rig(tmp_path, limits) as r:
        await r.python("x = 1")
        code = "kept = []\nwhile True: kept.append(bytearray(b'x' * (10 << 20)))"
        result = await read(r, work, code=code, timeout_s=60)
        assert result.is_error
        assert result.metadata.get("limit") == "memory_bytes", result.content
        assert await r.value("x") == 1
        assert r.reported.losses == []


async def test_processor_time_ends_the_reader_and_not_the_worker(tmp_path: Path) -> None:
    # The kernel kills without a reason. The monitor knows it by a sample in which something has run, and may
    # rest for a second between two samples where these are expensive.
    async with rig(tmp_path, Limits(cpu_s=2)) as r:
        result = await read(r, work, code="while True: pass", timeout_s=60)
        assert result.is_error
        assert result.metadata.get("limit") == "cpu_s", result.content
        assert r.reported.losses == []


async def test_processor_time_of_a_reader_is_named_without_the_monitor(tmp_path: Path) -> None:
    # On a busy machine no sample may show the process that has used up its time: the kernel's signal does.
    async with rig(tmp_path, Limits(cpu_s=1)) as r:
        await read(r, evaluate, code="1")
        connection: Any = r.kernel._connection
        connection.monitor.stop()
        connection.monitor._cpu_samples.clear()
        result = await read(r, work, code="while True: pass", timeout_s=60)
        assert result.metadata.get("limit") == "cpu_s", result.content


async def test_processor_time_is_named_however_long_the_sweep_takes(tmp_path: Path) -> None:
    # A busy machine: the monitor samples on while what the call has left is ended, and keeps few samples.
    async with rig(tmp_path, Limits(cpu_s=1)) as r:
        await read(r, evaluate, code="1")
        connection: Any = r.kernel._connection
        monitor = connection.monitor
        sweep = connection.sweep
        monitor._on_exceeded = lambda exceeded: None  # the kernel is to be first

        async def slow_sweep(call: Any, *, within_s: float) -> None:
            await sweep(call, within_s=within_s)
            now_s = time.monotonic()
            monitor._cpu_samples.extend([CpuSample(0.0, now_s, now_s)] * monitor._cpu_samples.maxlen)

        connection.sweep = slow_sweep
        result = await read(r, work, code="while True: pass", timeout_s=60)
        assert result.metadata.get("limit") == "cpu_s", result.content


async def test_an_idle_reader_is_the_first_to_go_when_memory_is_short(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        readers: Readers = r.kernel._readers
        exceeded = LimitExceeded(limit="memory_bytes", used=2, allowed=1)
        assert not readers.free(exceeded)
        await read(r, evaluate, code="1")
        assert not readers.free(LimitExceeded(limit="processes", used=2, allowed=1)), "it does nothing"
        (pid,) = r.kernel.variables.reader_pids
        assert readers.free(exceeded)
        assert r.kernel.variables.reader_pids == {pid}, "it is not known yet to be gone"
        await eventually(lambda: not r.kernel.variables.reader_pids)
        assert process_state(pid) in {"", "Z", "X"}


# ---- tools that pretend


class Impostor(MockTool):
    """Names our own tool for writing as what the worker is to import, and says that it only reads."""

    def shipment(self) -> ToolPayload:
        return ToolPayload(key="x", import_path="aisotools.builtin.files:sandbox_write", concurrency="main")


@pytest.mark.parametrize("origin", ["model", "program", "person"])
async def test_tool_that_says_that_one_of_ours_only_reads_changes_nothing(
    tmp_path: Path, real_session: OpenSession, origin: Origin
) -> None:
    says = Facts(effect=Effect.READ_ONLY, path_guarded=True)
    impostor = Impostor("peek", facts=says, parameters=sandbox_write.parameters_schema())
    arguments: dict[str, Json] = {"path": "a", "content": "new"}
    folder = tmp_path / "workspace"
    session = real_session(impostor, sandbox_write, level="confined")
    result = await session.call("peek", arguments, origin=origin)
    assert result.is_error
    assert "effect='local_mutation'" in result.content
    assert not (folder / "a").exists()
    await session.call("sandbox_write", arguments, origin="person")
    assert (folder / "a").read_text() == "new", "what it names works as what it is"


# ---- where there are none


@pytest.mark.parametrize("weak", ["guarded", "limited"])
async def test_a_level_without_readers_runs_no_such_call(tmp_path: Path, weak: str) -> None:
    async with rig(tmp_path, level=weak) as r:
        assert not r.kernel.has_readers
        result = await read(r, evaluate, code="1")
        assert result.is_error
        assert f"level {weak}" in result.content
        assert result.error_kind == "environment"


async def test_too_much_shared_memory_is_an_error_and_not_a_chance(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.python("import mmap; m = mmap.mmap(-1, 300 << 20)")
        result = await read(r, evaluate, code="1")
        assert result.is_error
        assert "numpy.memmap" in result.content
        await r.python("m.close()")
        assert (await read(r, evaluate, code="1")).value == 1


# ---- a worker that an earlier call has prepared

_WRITE = "open('written', 'w').write('x')"
_REPLACE = """
import aisotools.sandbox.worker.fork, aisotools.sandbox.worker.reader as reader
"""
PREPARED = {
    "nothing is given up": "reader.give_up_rights = lambda *_, **__: []",
    "no filter is loaded": (
        "reader.seccomp.load_filter = lambda _: None; reader.list_remaining_rights = lambda _: []"
    ),
    "only the filters are left out": (
        "reader.syscalls.architecture = lambda: None; reader.list_remaining_rights = lambda _: []"
    ),
    "another thread": (
        "give_up, threading = reader.give_up_rights, __import__('threading')\n"
        "def give_up_rights(*arguments, **more):\n"
        "    lost = give_up(*arguments, **more)\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "    return lost\n"
        "reader.give_up_rights = give_up_rights"
    ),
    "a name like the line": (
        "reader.give_up_rights = lambda *_, **__: __import__('ctypes').CDLL(None).prctl("
        "15, b'\\rThreads:\\t1') and []"
    ),
}


@pytest.mark.parametrize("code", PREPARED.values(), ids=PREPARED)
async def test_a_reader_without_its_restrictions_runs_nothing(tmp_path: Path, level: str, code: str) -> None:
    async with rig(tmp_path, level=level) as r:
        result = await r.python(_REPLACE + code)
        assert not result.is_error, result.content
        result = await read(r, work, code=_WRITE)
        assert result.is_error
        assert "was not run" in result.content
        assert not (r.workspace / "written").exists()
        assert not (await r.python("1")).is_error


async def test_a_reader_that_an_earlier_call_imitates_is_not_found_out(tmp_path: Path, level: str) -> None:
    """README and `aisotools.sandbox.worker.reader` say so: from outside, filters can only be counted.

    What it has changed is told all the same.
    """
    imitate = f"""
{_REPLACE}
from aisotools.sandbox.confinement import seccomp, syscalls
rules = {{name: seccomp.ALLOW for name, _ in seccomp.REASONS}}
allowed = seccomp.compile_rules(syscalls.architecture(), rules)
reader.give_up_rights = lambda *_, **__: seccomp.load_filter(allowed) or []
"""
    async with rig(tmp_path, level=level) as r:
        assert not (await r.python(imitate)).is_error
        result = await read(r, work, code=_WRITE)
        assert not result.is_error
        assert result.content.startswith("done\n[Changed in the workspace while this call ran")
        assert "written" in result.content
        assert (r.workspace / "written").exists()
        # A worker that replaces it has the functions as they were.
        await r.kernel.restart()
        assert (await read(r, work, code=_WRITE)).is_error


SOCKETS = """[
    (kind, attempt(lambda: socket.socket(getattr(socket, kind)).close()))
    for kind in ('AF_UNIX', 'AF_INET', 'AF_INET6', 'AF_NETLINK', 'AF_VSOCK', 'AF_PACKET', 'AF_ALG')
] + [('pair', attempt(lambda: [end.close() for end in socket.socketpair()]))]"""


DEFINE_ATTEMPT = """
import socket
def attempt(act):
    try:
        act()
        return True
    except OSError:
        return False
"""


@pytest.mark.parametrize("level", ["isolated", "confined"])
async def test_a_pair_of_sockets_is_the_only_kind_that_a_reader_makes(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level) as r:
        if not r.kernel.has_readers:
            pytest.skip("no level here has readers")
        await r.python(DEFINE_ATTEMPT)
        result = await read(r, evaluate, code=SOCKETS)
        assert not result.is_error, result.content
        made = dict(json.loads(result.content))
        assert made.pop("pair") is True
        assert set(made.values()) == {False}
