from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.core.protocols import OutputCaps, ToolContext, ToolPayload
from aisotools.core.sandboxes import SandboxStatus
from aisotools.core.types import ToolResult
from aisotools.sandbox.host.connection import WorkerConnection
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import spawn
from aisotools.sandbox.results import VALUE_DROPPED
from aisotools.tools.function import tool
from tests.sandbox.rig import ReportLog, Rig, is_there, open_files, processes_of, rig, sleepers
from tests.waiting import as_soon_as, eventually


@pytest.fixture
async def r(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        yield made


def working_folder(pid: int) -> str:
    return os.path.realpath(f"/proc/{pid}/cwd")


def mode(path: str) -> int:
    return Path(path).stat().st_mode & 0o7777


def supervisor_of(r: Rig) -> int:
    assert r.kernel._connection is not None
    return r.kernel._connection.supervisor


# ---- starting, restarting, closing


async def test_the_first_call_starts_a_worker(r: Rig) -> None:
    assert not r.kernel.status().alive
    assert r.reported.starts == []
    assert await r.value("6 * 7") == 42
    status = r.kernel.status()
    assert (status.alive, status.generation, status.level) == (True, 1, r.level)
    assert status.memory_bytes > 1 << 20
    assert 0 < status.age_s < 60
    assert working_folder(status.pid) == str(r.workspace)
    ((started, reason),) = r.reported.starts
    assert (started.pid, started.generation, reason) == (status.pid, 1, "")
    assert f"<LocalSandbox {r.level} generation=1 <WorkerConnection pid={status.pid} 0 calls>>" == repr(
        r.kernel
    )


async def test_starting_again_does_nothing(r: Rig) -> None:
    first, second = await asyncio.gather(r.kernel.start(), r.kernel.start())
    assert first.pid == second.pid
    assert len(r.reported.starts) == 1


async def test_variables_last_until_a_restart(r: Rig) -> None:
    await r.python("x = 1")
    assert await r.value("x") == 1
    old = r.kernel.status().pid
    status = await r.kernel.restart()
    assert status.generation == 2
    assert status.pid != old
    assert "NameError" in (await r.python("x")).content
    assert r.reported.losses == []  # nothing was lost that nobody asked to be
    assert [reason for _, reason in r.reported.starts] == ["", "it was restarted"]
    assert not is_there(f"/proc/{old}")


async def test_restarting_before_the_start_and_twice(r: Rig) -> None:
    assert (await r.kernel.restart()).generation == 1
    await asyncio.gather(r.kernel.restart(), r.kernel.restart())
    assert await r.value("1") == 1
    assert len([p for p in processes_of(r.workspace) if "fork" in p]) <= 2


async def test_a_restart_is_the_first_line_of_the_next_result(r: Rig) -> None:
    await r.kernel.restart()
    await r.kernel.restart()
    assert (await r.python("x = 1; x")).content == "1"  # there was nothing to lose before
    await r.kernel.restart()
    await r.kernel.restart()
    note = "[Before this call the sandbox's worker ended: the sandbox was restarted; its variables are lost.]"
    assert (await r.python("1")).content == f"{note}\n1"
    assert (await r.python("1")).content == "1"


async def test_a_restart_does_not_hide_what_had_happened_before(r: Rig) -> None:
    await r.python("x = 1")
    await r.kernel.variables.forget()
    os.kill(supervisor_of(r), signal.SIGKILL)
    await eventually(lambda: not r.kernel.status().alive)
    await r.kernel.restart()
    await r.kernel.restart()
    assert "its supervisor is gone; its variables are lost.]\n1" in (await r.python("1")).content


async def test_a_restart_tells_the_calls_under_way(r: Rig) -> None:
    call = asyncio.create_task(r.python("open('began', 'w').close(); import time; time.sleep(100)"))
    queued = asyncio.create_task(r.python("'after'"))
    await eventually((r.workspace / "began").exists)
    await r.kernel.restart()
    result = await call
    assert "the sandbox was restarted" in result.content
    assert result.metadata["worker_died"] is True
    assert (await queued).content == "'after'"  # the call under way has said that the variables are lost


async def test_closing_ends_everything_and_can_be_done_twice(r: Rig) -> None:
    call = asyncio.create_task(
        r.python("import subprocess, time; subprocess.Popen(['sleep', '99']); time.sleep(99)")
    )
    queued = asyncio.create_task(r.python("1"))
    await eventually(lambda: sleepers(r.workspace))
    await asyncio.gather(r.kernel.close(), r.kernel.close())
    assert processes_of(r.workspace) == []
    assert "the session was closed" in (await call).content
    with pytest.raises(SandboxError, match="was closed"):
        await queued
    with pytest.raises(SandboxError, match="was closed"):
        await r.kernel.start()
    await r.kernel.close()
    assert not r.kernel.status().alive


# How far the newest start of a worker has come.
STAGES: Mapping[str, Callable[[WorkerConnection], bool]] = {
    "its request is sent": lambda connection: True,
    "its supervisor is there": lambda connection: connection.supervisor > 0,
    "it is ready": lambda connection: connection.ready.done(),
}


async def reach(r: Rig, stage: str, *old: WorkerConnection) -> None:
    """Wait until a start comes to `stage`; the connections `old` were there before."""
    await as_soon_as(lambda: any(STAGES[stage](one) for one in r.kernel._connections if one not in old))


@pytest.mark.parametrize("stage", ["it is only asked for", *STAGES])
async def test_closing_while_it_starts(r: Rig, stage: str) -> None:
    start = asyncio.create_task(r.kernel.start())
    if stage in STAGES:
        await reach(r, stage)
    else:
        await asyncio.sleep(0)
    await r.kernel.close()
    (outcome,) = await asyncio.gather(start, return_exceptions=True)
    if stage in {"its supervisor is there", "it is ready"}:
        # The rest may have come in the same turn of the loop.
        assert isinstance(outcome, SandboxStatus | SandboxError)
    else:
        assert isinstance(outcome, SandboxError)
    assert processes_of(r.workspace) == []


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "it is ready"])
async def test_a_start_that_is_cancelled_leaves_nothing(r: Rig, stage: str) -> None:
    start = asyncio.create_task(r.kernel.start())
    await reach(r, stage)
    start.cancel()
    (outcome,) = await asyncio.gather(start, return_exceptions=True)
    # The rest may have come in the same turn of the loop.
    came = SandboxStatus if stage == "its supervisor is there" else asyncio.CancelledError
    assert isinstance(outcome, asyncio.CancelledError | came)
    assert await r.value("1") == 1
    assert r.kernel.status().generation == 1


async def test_the_scratch_folder_goes_with_the_worker(r: Rig) -> None:
    scratch = await r.value("import os; os.path.dirname(os.environ['HOME'])")
    await r.python("open(os.environ['TMPDIR'] + '/file', 'w').write('x')")
    assert is_there(f"{scratch}/tmp/file")
    assert mode(scratch) == 0o700
    await r.kernel.close()
    assert not is_there(scratch)


async def test_a_workspace_that_is_gone(r: Rig) -> None:
    r.workspace.rmdir()
    message = r"could not be confined: .*(FileNotFoundError|No such file or directory).*workspace"
    with pytest.raises(SandboxError, match=message):
        await r.kernel.start()
    r.workspace.mkdir()
    assert await r.value("1") == 1


async def test_a_workspace_that_became_an_import_root_gets_one_worker_which_is_ended(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawned: list[spawn.WorkerHandles] = []
    starter = r.kernel._starter
    spawn_worker = starter._spawn

    async def count(server: spawn.ForkServerHandle, spec: spawn.WorkerSpec) -> spawn.WorkerHandles:
        spawned.append(await spawn_worker(server, spec))
        return spawned[-1]

    monkeypatch.setattr(starter, "_spawn", count)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(r.workspace))
        with pytest.raises(
            SandboxError, match=r"The worker was ended before its first call: .*cannot be the workspace"
        ):
            await r.kernel.start()
    assert len(spawned) == 1  # a second one would be refused as well
    await eventually(lambda: not r.kernel._connections)
    assert processes_of(r.workspace) == []
    assert r.reported.starts == []
    assert await r.value("1") == 1  # a control: nothing else was in its way
    assert len(spawned) == 2


async def test_without_a_sandbox_it_works_all_the_same(tmp_path: Path) -> None:
    """At level `limited` user code can end its own supervisor, and even then nothing is left."""
    async with rig(tmp_path, level="limited") as r:
        assert await r.value("6 * 7") == 42
        assert (await r.bash("echo hi")).value["stdout"] == "hi\n"
        assert (await r.python("import time; time.sleep(100)", timeout_s=0.2)).metadata["state_kept"] is True
        await r.python("import subprocess; p = subprocess.Popen(['setsid', 'sleep', '100'])")
        result = await r.python("import os, time; os.kill(os.getppid(), 9); time.sleep(5)")
        assert result.metadata["worker_died"] is True
        await eventually(lambda: processes_of(r.workspace) == [])
        assert await r.value("1") == 1


def test_a_kernel_that_nobody_closed_ends_when_it_is_forgotten(tmp_path: Path) -> None:
    async def forget() -> str:
        r = Rig(tmp_path)
        await r.python("import os, subprocess; p = subprocess.Popen(['sleep', '100'])")
        return str(await r.value("os.path.dirname(os.environ['HOME'])"))

    before = open_files()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        scratch = asyncio.run(forget())
        gc.collect()
    while processes_of(tmp_path) or is_there(scratch):  # pytest's timeout ends a test that fails
        time.sleep(0.01)
    assert open_files() == before


async def test_two_kernels_are_two_worlds(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    async with rig(tmp_path / "a") as a, rig(tmp_path / "b") as b:
        await asyncio.gather(a.python("x = 'a'"), b.python("x = 'b'"))
        assert [await a.value("x"), await b.value("x")] == ["a", "b"]
        assert (await a.python(f"open({str(b.workspace / 'x')!r}, 'w')")).is_error
        victim = b.kernel.status().pid
        assert (await a.python(f"import os; os.kill({victim}, 9)")).is_error
        assert await b.value("x") == "b"


async def test_many_kernels(tmp_path: Path) -> None:
    before = open_files()
    rigs = []
    for number in range(12):
        folder = tmp_path / str(number)
        folder.mkdir()
        rigs.append(Rig(folder))
    try:
        results = await asyncio.gather(*(r.python(f"{n} * 2") for n, r in enumerate(rigs)))
        assert [r.content for r in results] == [str(n * 2) for n in range(12)]
    finally:
        await asyncio.gather(*(r.kernel.close() for r in rigs))
    assert open_files() <= before + 2
    assert all(processes_of(r.workspace) == [] for r in rigs)


# ---- death


async def test_a_death_is_reported_with_the_last_output(r: Rig) -> None:
    await r.python("x = 1")
    result = await r.python("import os, sys; os.write(2, b'goodbye\\n'); x = 2; os._exit(7)")
    assert "it exited with status 7" in result.content
    assert "Its last output:\ngoodbye" in result.content
    assert result.error_kind == "environment"
    assert await r.value("x") == 1
    assert r.reported.losses == []
    assert r.reported.starts[-1][1].startswith(
        "it exited with status 7; the variables are as they were before"
    )


async def test_a_crash_tells_where(r: Rig) -> None:
    result = await r.python("import ctypes\nctypes.string_at(0)")
    assert "it was ended by SIGSEGV" in result.content
    assert "Fatal Python error: Segmentation fault" in result.content
    assert "line 2 in <module>" in result.content


async def test_an_end_by_an_error_between_calls_tells_where(r: Rig) -> None:
    await r.python("x = 1")
    code = """
import asyncio
def leave():
    raise SystemExit("left from a callback")
asyncio.get_running_loop().call_later(0.01, leave)
await asyncio.sleep(20)
"""
    result = await r.python(code)
    assert "it exited with status 1" in result.content
    assert "in leave" in result.content
    assert "SystemExit: left from a callback" in result.content
    assert await r.value("x") == 1


async def test_files_that_a_thread_opens_and_closes_during_snapshots(r: Rig) -> None:
    await r.python("""
import threading
path = 'f'
open(path, 'w').close()
def churn():
    while True:
        open(path).close()
threading.Thread(target=churn, daemon=True).start()
""")
    for number in range(40):
        assert await r.value(f"x = {number}\nx") == number
    assert r.reported.starts[1:] == []


async def test_a_death_between_calls(r: Rig) -> None:
    await r.python("x = 1")
    code = """
import os, threading, time
def end():
    while not os.path.exists('go'): time.sleep(0.01)
    os._exit(5)
x = 2
threading.Thread(target=end).start()
"""
    await r.python(code, call_id="last")
    assert r.reported.losses == []
    (r.workspace / "go").touch()
    await eventually(lambda: r.reported.losses)
    reason = "it exited with status 5; the variables are as they were before the call last"
    following = await r.python("x")
    assert following.content == f"[Before this call the sandbox's worker ended: {reason}.]\n1"
    assert (await r.python("x")).content == "1"
    assert r.reported.losses == [(1, reason)]
    assert r.reported.starts[-1][1] == reason


@pytest.mark.parametrize("who", ["worker", "supervisor"])
async def test_killing_from_outside_leaves_nothing(r: Rig, who: str) -> None:
    scratch = await r.value("import os; os.path.dirname(os.environ['HOME'])")
    await r.python("import subprocess; p = subprocess.Popen(['setsid', 'sleep', '100'])")
    await r.kernel.variables.forget()
    os.kill(r.kernel.status().pid if who == "worker" else supervisor_of(r), signal.SIGKILL)
    await eventually(lambda: not r.kernel.status().alive)
    await eventually(lambda: processes_of(r.workspace) == [])
    await eventually(lambda: not is_there(scratch))
    note = "[Before this call the sandbox's worker ended: "
    following = (await r.python("1")).content
    assert following.startswith(note)
    assert following.endswith("; its variables are lost.]\n1")
    assert note not in (await r.python("1")).content
    assert await r.value("1 + 1") == 2


async def test_killing_the_supervisor_during_a_stubborn_call(r: Rig) -> None:
    call = asyncio.create_task(r.python("open('began', 'w').close()\nsum(range(10**11))"))
    await eventually((r.workspace / "began").exists)
    os.kill(supervisor_of(r), signal.SIGKILL)
    result = await call
    assert "its supervisor is gone" in result.content
    await eventually(lambda: processes_of(r.workspace) == [])
    assert await r.value("1") == 1


async def test_killing_the_fork_server(r: Rig) -> None:
    assert await r.value("1") == 1
    server = spawn.server()
    os.kill(server.pid, signal.SIGKILL)
    assert await r.value("2") == 2  # who runs, runs on
    await eventually(lambda: not server.alive)
    await r.kernel.restart()
    assert await r.value("3") == 3
    assert spawn.server() is not server


@pytest.mark.parametrize("stage", STAGES)
async def test_killing_the_fork_server_in_the_middle_of_a_start(r: Rig, stage: str) -> None:
    await r.kernel.start()
    old, server = tuple(r.kernel._connections), spawn.server()
    if stage == "its request is sent":
        os.kill(server.pid, signal.SIGSTOP)  # so that it serves none before it is killed
    start = asyncio.create_task(r.kernel.restart())
    await reach(r, stage, *old)
    os.kill(server.pid, signal.SIGKILL)
    assert (await start).alive
    assert await r.value("1") == 1
    await eventually(lambda: not server.alive)


async def test_a_fork_server_that_does_not_answer_is_replaced(tmp_path: Path) -> None:
    wanted = Rig(tmp_path).wanted
    # Short enough for the stopped server; the one that replaces it may need longer on a busy machine.
    kernel = LocalSandbox(wanted, ReportLog(), start_timeout_s=8)
    server = spawn.server(wanted.tool_modules)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert (await kernel.start()).alive
    finally:
        await kernel.close()
    # It was killed; its parent may take a moment to notice that.
    await eventually(lambda: not server.alive)
    assert spawn.server() is not server


# ---- how calls share the worker


def come(name: str) -> int:
    """Tell that `name` is here; how many are."""
    (Path.cwd() / f"{name}.here").touch()
    return len(list(Path.cwd().glob("*.here")))


@tool
async def meet(name: str) -> str:
    """Wait until three have come.

    Args:
        name: Who comes.
    """
    print(f"{name} came")
    while come(name) < 3:  # noqa: ASYNC110 - one of the three is another program
        await asyncio.sleep(0.005)
    print(f"{name} leaves")
    return name


@tool
def alone(name: str) -> list[str]:
    """Note begin and end.

    Args:
        name: Who.
    """
    path = Path.cwd() / "log"
    with path.open("a") as log:
        print(name, "begins", file=log, flush=True)
        time.sleep(0.05)
        print(name, "ends", file=log, flush=True)
    return path.read_text().splitlines()


async def test_async_tools_and_shell_commands_overlap(r: Rig) -> None:
    command = "touch c.here; echo c came; while [ ! -e b.here ]; do sleep 0.01; done; echo c leaves"
    results = await asyncio.gather(
        r.tool(meet, {"name": "a"}, call_id="a"),
        r.tool(meet, {"name": "b"}, call_id="b"),
        r.bash(command, call_id="c"),
    )
    assert [results[0].content, results[1].content, results[2].value["exitCode"]] == ["a", "b", 0]
    for name in "abc":
        assert r.reported.text(name) == f"{name} came\n{name} leaves\n"
    assert results[0].metadata["stdout"] == "a came\na leaves\n"
    assert results[2].value["stdout"] == "c came\nc leaves\n"


async def test_sync_tools_take_turns(r: Rig) -> None:
    results = await asyncio.gather(*(r.tool(alone, {"name": str(n)}) for n in range(4)))
    log = results[-1].value
    assert log == [f"{n} {what}" for n in range(4) for what in ("begins", "ends")]


async def test_python_runs_alone(r: Rig) -> None:
    async def shell(number: int) -> ToolResult:
        command = f"echo shell-{number} begins >> log; sleep 0.1; echo shell-{number} ends >> log"
        return await r.bash(command)

    async def python(number: int) -> ToolResult:
        code = f"""
import time
with open('log', 'a') as log:
    print('python-{number} begins', file=log, flush=True)
    time.sleep(0.05)
    print('python-{number} ends', file=log, flush=True)
"""
        return await r.python(code)

    await asyncio.gather(shell(1), python(1), shell(2), python(2))
    lines = (r.workspace / "log").read_text().splitlines()
    for number in (1, 2):
        place = lines.index(f"python-{number} begins")
        assert lines[place + 1] == f"python-{number} ends"


async def test_output_of_threads_tasks_and_children_has_its_place(r: Rig) -> None:
    code = """
import asyncio, os, subprocess, threading
print('1')
subprocess.run(['echo', '2'])
thread = threading.Thread(target=print, args=('3',))
thread.start(); thread.join()
os.write(1, b'4\\n')
await asyncio.create_task(asyncio.to_thread(print, '5'))
os.system('echo 6')
print('7')
"""
    result = await r.python(code, call_id="me")
    assert r.reported.text("me") == result.value["stdout"] == "1\n2\n3\n4\n5\n6\n7\n"
    assert result.content == "1\n2\n3\n4\n5\n6\n7"


async def test_background_tasks_print_to_the_call_that_started_them(r: Rig) -> None:
    code = """
import asyncio, os
async def later():
    while not os.path.exists('go'): await asyncio.sleep(0.01)
    for n in range(3):
        print('later', n)
        await asyncio.sleep(0)
task = asyncio.create_task(later())
print('now')
"""
    result = await r.python(code, call_id="first")
    assert result.value["stdout"] == "now\n"
    second = await r.python("open('go', 'w').close(); await task; print('second')", call_id="second")
    assert second.value["stdout"] == "second\n"
    await eventually(lambda: r.reported.text("first") == "now\nlater 0\nlater 1\nlater 2\n")
    assert r.reported.losses == []


async def test_background_processes_print_to_nobody_or_to_whoever_runs(r: Rig) -> None:
    waiting = "while [ ! -e go ]; do sleep 0.01; done; echo late"
    await r.python(f"import subprocess; p = subprocess.Popen('{waiting}', shell=True)", call_id="first")
    (r.workspace / "go").touch()
    await eventually(lambda: ("", "stdout", "late\n") in r.reported.outputs)
    assert r.reported.text("first") == ""


async def test_a_background_task_that_floods_after_its_call_is_no_danger(r: Rig) -> None:
    code = """
import asyncio
async def flood():
    for n in range(40):
        print('x' * 100_000)
        await asyncio.sleep(0)
task = asyncio.create_task(flood())
"""
    await r.python(code, call_id="first")
    await r.python("import asyncio; await task")
    assert len(r.reported.text("first")) == 1 << 20
    assert r.reported.losses == []


# ---- caps


async def test_a_value_over_the_cap_leaves_the_content(r: Rig) -> None:
    @tool
    def numbers(count: int) -> list[int]:
        """Count.

        Args:
            count: How far.
        """
        return list(range(count))

    caps = OutputCaps(value_bytes=1000, content_chars=2000)
    result = await r.tool(numbers, {"count": 10_000}, caps=caps)
    assert not result.is_error
    assert result.value is None
    assert VALUE_DROPPED in result.metadata
    assert result.content.startswith("[0,1,2,3")
    assert "1000 are passed on" in result.content
    assert (await r.tool(numbers, {"count": 10}, caps=caps)).value == list(range(10))


async def test_printed_output_is_capped_at_the_source(r: Rig) -> None:
    caps = OutputCaps(stream_bytes=10_000)
    code = "for n in range(100_000): print('x' * 100)\nprint('the true end')"
    result = await r.python(code, caps=caps, call_id="c")
    head, _, rest = result.value["stdout"].partition("[")
    left_out, _, end = rest.partition(" bytes of output left out here]\n")
    assert len(head.rstrip("\n")) in {9_999, 10_000}
    assert end.endswith("x\nthe true end\n")
    assert 2_500 <= len(end) < 2_700
    assert len(r.reported.text("c")) == 10_000
    assert result.metadata["dropped_bytes"] == int(left_out.replace(",", ""))
    assert result.metadata["dropped_bytes"] == 100_000 * 101 + len("the true end\n") - 10_000 - len(end)
    assert "bytes of printed output were dropped" in result.content
    assert await r.value("1") == 1


@pytest.mark.parametrize("character", ["\\0", "\\ud800", "\\U0001F600", "\\x1b"])
async def test_odd_text_is_printed_whole(r: Rig, character: str) -> None:
    result = await r.python(f"print('{character}' * 150_000)")
    assert not result.is_error
    assert len(result.value["stdout"]) >= 150_000
    assert r.reported.losses == []


async def test_progress_reports_are_thinned_at_the_source(r: Rig) -> None:
    @tool
    def chatty(context: ToolContext) -> str:
        """Report a lot."""
        for number in range(20_000):
            context.emit("progress", n=number)
        return "done"

    result = await r.tool(chatty, call_id="c")
    assert result.content == "done"
    assert 1000 <= len(r.reported.emits) < 2000
    assert result.metadata["dropped_emits"] == 20_000 - len(r.reported.emits)
    assert r.reported.emits[0] == ("c", "progress", {"n": 0})


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ("'x' * 100_000", "at most 65536 can be sent"),
        ("object()", "takes what JSON can hold"),
        ("'\\ud800'", "JSON"),
    ],
)
async def test_a_progress_report_that_cannot_be_sent_is_the_tool_s_mistake(
    r: Rig, payload: str, message: str
) -> None:
    @tool
    def report(code: str, context: ToolContext) -> str:
        """Report.

        Args:
            code: What.
        """
        context.emit("progress", payload=eval(code))
        return "done"

    result = await r.tool(report, {"code": payload})
    assert result.is_error
    assert message in result.content
    assert r.reported.losses == []


async def test_arguments_that_are_too_large_are_refused_before_anything_happens(r: Rig) -> None:
    result = await r.python("#" * (65 << 20))
    assert result.error_kind == "invalid"
    assert "too large" in result.content
    assert await r.value("1") == 1
    assert r.reported.losses == []


async def test_large_arguments_and_results_travel(r: Rig) -> None:
    @tool
    def echo(text: str) -> str:
        """Say it again.

        Args:
            text: What.
        """
        return text

    text = "äöü" * 2_000_000
    result = await r.tool(echo, {"text": text})
    assert result.value == text


# ---- tools that misbehave


async def test_a_tool_is_sent_once_and_found_again(r: Rig) -> None:
    calls: list[int] = []

    @tool
    def count() -> int:
        """Count."""
        return len(calls)

    shipment = count.shipment()
    assert shipment is not None
    assert (await r.call(shipment, {})).value == 0
    bare = ToolPayload(key=shipment.key, payload=b"not sent again")
    assert (await r.call(bare, {})).value == 0
    await r.kernel.restart()
    assert (await r.call(shipment, {})).value == 0


@pytest.mark.parametrize(
    "shipment",
    [
        ToolPayload(key="a", payload=b"garbage"),
        ToolPayload(key="b", payload=b""),
        ToolPayload(key="c", import_path="no.such:tool"),
        ToolPayload(key="d", import_path="os:getpid"),
        ToolPayload(key="e", import_path="aisotools:nothing"),
    ],
    ids=lambda shipment: shipment.key,
)
async def test_a_tool_that_cannot_be_had_is_an_error_result(r: Rig, shipment: ToolPayload) -> None:
    result = await r.call(shipment, {})
    assert result.is_error
    assert await r.value("1") == 1
    assert r.reported.losses == []


async def test_returning_anything_but_a_result(r: Rig) -> None:
    @tool
    def odd() -> object:
        """Return what JSON cannot hold."""
        return {"a": {1, 2}, "b": object()}

    assert "object object" in (await r.tool(odd)).content


@pytest.mark.parametrize(
    "body",
    [
        "raise SystemExit(3)",
        "raise KeyboardInterrupt",
        "raise BaseException('odd')",
        "raise GeneratorExit",
        "import asyncio; raise asyncio.CancelledError",
    ],
)
async def test_an_exception_of_a_tool_is_its_result(r: Rig, body: str) -> None:
    @tool
    def odd(code: str) -> str:
        """Run code.

        Args:
            code: What.
        """
        exec(code)
        return ""

    result = await r.tool(odd, {"code": body})
    assert result.is_error
    assert await r.value("1") == 1
    assert r.reported.losses == []


async def test_errors_whose_text_cannot_be_had(r: Rig) -> None:
    @tool
    def odd() -> str:
        """Raise something hostile."""

        class HostileError(Exception):
            def __str__(self) -> str:
                raise SystemExit

        raise HostileError

    result = await r.tool(odd)
    assert "HostileError" in result.content
    result = await r.python("class E(Exception):\n    def __str__(self): raise ValueError('x')\nraise E")
    assert result.is_error
    assert await r.value("1") == 1


async def test_a_kernel_needs_nothing_until_it_is_used(tmp_path: Path) -> None:
    wanted = spawn.WorkerSpec(level="confined", workspace=str(tmp_path), limits=Limits())
    kernel = LocalSandbox(wanted, ReportLog())
    assert not kernel.status().alive
    await kernel.close()
