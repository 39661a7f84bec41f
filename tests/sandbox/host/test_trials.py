"""Trials: what a command can and cannot do in one, each with a control that works in a usual call."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.core.protocols import OutputCaps
from aisotools.core.types import ToolResult
from aisotools.sandbox.host.trials import SCRATCH_NAME, SilentListener, TrialScratch, remove_scratch
from tests.sandbox.rig import Rig, is_there, processes_of, rig
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)

LEVELS = ("isolated", "confined")
PYTHON = shlex.quote(sys.executable)


async def try_it(r: Rig, command: str, **more: object) -> ToolResult:
    return await r.bash(command, read_only=True, in_reader=True, is_trial=True, **more)


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


# ---- what it may do


async def test_a_trial_has_a_scratch_folder_of_its_own_which_is_gone_after_it(
    tmp_path: Path, level: str
) -> None:
    async with rig(tmp_path, level=level) as r:
        usual = (await r.bash("echo $TMPDIR")).content
        first = await try_it(r, 'echo content > "$TMPDIR/f" && cat "$TMPDIR/f" && echo "$TMPDIR"')
        content, scratch = first.content.split("\n")
        assert content == "content"
        assert scratch != usual
        assert not is_there(scratch)
        second = await try_it(r, 'ls -A "$TMPDIR"; echo "$TMPDIR"')
        assert second.content != scratch
        assert "f" not in second.content.split("\n")
        assert (await r.bash("echo $TMPDIR")).content == usual


async def test_output_of_a_trial_is_in_its_result_alone(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        result = await try_it(r, "echo printed; echo more >&2; exit 3", call_id="tried")
        assert (result.value["stdout"], result.value["exitCode"]) == ("printed\n", 3)
        assert r.reported.outputs == []
        await r.bash("echo printed", call_id="usual")
        assert r.reported.text("usual") == "printed\n"


async def test_programs_are_found_where_they_were_at_first(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        tool = r.workspace / "bin" / "frobnicate"
        tool.parent.mkdir()
        tool.write_text("#!/bin/sh\necho mine\n")
        tool.chmod(0o755)
        await r.python(
            "import os; os.environ['PATH'] = os.environ['WORKSPACE'] + '/bin:' + os.environ['PATH']"
        )
        found = await r.value("import subprocess; subprocess.check_output('frobnicate', text=True)")
        assert found == "mine\n", "the control: an earlier call has set the path"
        assert (await try_it(r, "frobnicate")).value["exitCode"] == 127


# ---- what it may not do

WRITES = {
    "workspace": "echo new > f",
    "workspace, by a link": 'ln -s "$WORKSPACE" "$TMPDIR/l" && echo new > "$TMPDIR/l/f"',
    "a new file": "touch made",
    "a folder": "mkdir made",
    "a move": "mv f made",
    "a removal": "rm f",
    "a copy": 'echo new > "$TMPDIR/g"; cp "$TMPDIR/g" f',
    "a move from its scratch folder": 'echo new > "$TMPDIR/g"; mv -f "$TMPDIR/g" f',
    "a hard link": "ln f made",
    "truncation": f"{PYTHON} -c 'import os; os.truncate(\"f\", 0)'",
    "home": 'echo new > "$HOME/made" && cp "$HOME/made" made',
    "in the background": "(setsid sh -c 'echo new > f' &) ; sleep 0.3",
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", WRITES)
async def test_a_trial_cannot_write(tmp_path: Path, level: str, name: str) -> None:
    async with rig(tmp_path, level=level) as r:
        (r.workspace / "f").write_text("old")
        await try_it(r, WRITES[name])
        assert [path.name for path in r.workspace.iterdir()] == ["f"]
        assert (r.workspace / "f").read_text() == "old"
        await r.bash(WRITES[name])
        changed = [path.name for path in r.workspace.iterdir()] != ["f"]
        assert changed or (r.workspace / "f").read_text() != "old", "the control"


async def test_a_trial_cannot_write_in_the_scratch_folder_of_the_sandbox_nor_beside_it(
    tmp_path: Path, level: str
) -> None:
    async with rig(tmp_path, level=level) as r:
        usual = (await r.bash("echo $TMPDIR")).content
        for folder in (usual, f"{usual}/..", "/tmp", "/var/tmp", "/dev/shm"):
            tried = await try_it(r, f"touch {folder}/made-by-a-trial && echo made")
            assert "made\n" not in tried.content + "\n", folder
            assert not is_there(f"{folder}/made-by-a-trial")
        assert (await r.bash(f"touch {usual}/made && echo made")).content == "made", "the control"


LISTEN = """
import socket, os
tcp = socket.create_server(('127.0.0.1', 0)); port = tcp.getsockname()[1]
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('127.0.0.1', 0))
"""
CONNECT = {
    "TCP": "socket.create_connection(('127.0.0.1', {tcp}))",
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {udp}))",
}


@pytest.mark.parametrize("kind", CONNECT)
async def test_a_trial_reaches_no_socket_of_its_own_session(tmp_path: Path, kind: str) -> None:
    async with rig(tmp_path, level="isolated") as r:
        await r.python(LISTEN)
        ports = {"tcp": await r.value("port"), "udp": await r.value("udp.getsockname()[1]")}
        code = f"import socket; {CONNECT[kind].format(**ports)}; print('sent')"
        command = f"{PYTHON} -c {shlex.quote(code)}"
        assert (await r.bash(command)).content == "sent", "the control: it has a loopback of its own"
        tried = await try_it(r, command)
        assert tried.is_error
        assert "sent" not in tried.value["stdout"]


async def test_a_trial_reaches_no_socket_of_the_host(tmp_path: Path, level: str) -> None:
    arrived = asyncio.Event()

    async def on_connection(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        writer.close()

    async with rig(tmp_path, level=level) as r:
        path = str(r.workspace / "socket")
        tcp = await asyncio.start_server(on_connection, "127.0.0.1", 0)
        unix = await asyncio.start_unix_server(on_connection, path)
        port = tcp.sockets[0].getsockname()[1]
        for code in (
            f"import socket; socket.create_connection(('127.0.0.1', {port}))",
            f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})",
        ):
            assert (await try_it(r, f"{PYTHON} -c {shlex.quote(code)}")).is_error
            assert not arrived.is_set()
            control = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
            await asyncio.wait_for(arrived.wait(), 20)
            await control.wait()
            arrived.clear()
        tcp.close()
        unix.close()


async def test_a_trial_signals_neither_the_worker_nor_a_task_nor_its_own_keeper(
    tmp_path: Path, level: str
) -> None:
    async with rig(tmp_path, level=level) as r:
        task = await r.bash("exec sleep 1000", background=True)
        pid, worker = task.value["pid"], await r.value("__import__('os').getpid()")
        for target in (pid, worker, "$PPID", f"-{pid}"):
            tried = await try_it(r, f"kill -KILL -- {target}; echo $?")
            assert tried.value["stdout"] != "0\n", target
        await try_it(r, "kill -KILL -- -1")  # no error if not one process could be signalled
        assert (await r.bash(f"kill -0 {pid} && echo there")).content == "there"
        assert await r.value("__import__('os').getpid()") == worker
        sent = await r.bash(f"kill -KILL {pid} && echo sent")
        assert sent.value["stdout"] == "sent\n", "the control"


async def test_a_trial_changes_no_limit_and_no_priority_of_others(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level) as r:
        task = await r.bash("exec sleep 1000", background=True)
        pid = task.value["pid"]
        before = Path("/proc").joinpath(str(pid), "limits").read_text() if level == "confined" else ""
        code = f"import resource; resource.prlimit({pid}, resource.RLIMIT_NOFILE, (5, 5)); print('set')"
        assert "set" not in (await try_it(r, f"{PYTHON} -c {shlex.quote(code)}")).value["stdout"]
        if before:
            assert Path("/proc").joinpath(str(pid), "limits").read_text() == before


async def test_a_trial_leaves_no_process(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level) as r:
        await r.bash("true")
        before = len(processes_of(r.workspace))
        for command in (
            "sleep 1000 & disown; echo $!",
            "setsid nohup sleep 1000 > /dev/null 2>&1 & sleep 0.1",
            "(for i in 1 2 3; do setsid sleep 1000 & done) > /dev/null 2>&1",
        ):
            await try_it(r, command)
            assert [process for process in processes_of(r.workspace) if "sleep" in process] == [], command
        # The process of the trial itself has ended; the kernel may still be clearing it away.
        await eventually(lambda: len(processes_of(r.workspace)) <= before)


async def test_a_trial_that_does_not_end_is_stopped_with_all_it_started(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level) as r:
        result = await try_it(r, "trap '' TERM INT; sleep 1000 & wait; sleep 1000", timeout=300)
        assert result.metadata["timed_out"] is True
        assert [process for process in processes_of(r.workspace) if "sleep" in process] == []
        assert (await r.bash("echo on")).content == "on"


async def test_a_trial_cannot_exhaust_what_is_kept_of_its_output(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        caps = OutputCaps(stream_bytes=10_000)
        result = await try_it(r, "yes | head -c 50000000", caps=caps)
        assert result.value["exitCode"] == 0
        assert len(result.value["stdout"]) < 20_000
        assert len(result.content) < 20_000


async def test_a_trial_inherits_no_descriptor(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.python("import os; w = open('f', 'w'); os.set_inheritable(w.fileno(), True)")
        open_ones = (
            "import os\nfor n in range(3, 100):\n try: os.fstat(n)\n except OSError: continue\n print(n)"
        )
        command = f"{PYTHON} -c {shlex.quote(open_ones)}"
        assert (await try_it(r, command)).value["stdout"] == ""
        assert (await r.bash(f"{command} 7< f")).content == "7", "the control"


async def test_trials_run_beside_each_other_and_a_busy_worker(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.python("x = 1")
        results = await asyncio.gather(*(try_it(r, f"echo {n}") for n in range(6)))
        assert [result.content for result in results] == [str(n) for n in range(6)]
        assert await r.value("x") == 1


async def test_a_trial_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        usual = (await r.bash("echo $TMPDIR")).content
        fifo = r.workspace / "fifo"
        os.mkfifo(fifo)
        running = asyncio.ensure_future(try_it(r, "cat fifo; sleep 1000", timeout=60_000))
        await asyncio.to_thread(fifo.write_text, "x")  # returns when somebody reads
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert [process for process in processes_of(r.workspace) if "sleep" in process] == []
        assert [path.name for path in Path(usual).parent.glob("trial-*")] == []


async def test_a_sandbox_without_readers_refuses_a_trial(tmp_path: Path) -> None:
    async with rig(tmp_path, level="limited") as r:
        result = await try_it(r, "touch made")
        assert (result.is_error, result.error_kind) == (True, "environment")
        assert not is_there(str(r.workspace / "made"))


# ---- the folder by itself


def test_the_folder_is_private_and_removed_with_all_that_is_in_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    sandbox = tmp_path / "scratch"
    sandbox.mkdir()
    scratch = TrialScratch(str(sandbox))
    place = Path(scratch.path)
    assert place.parent == sandbox
    assert SCRATCH_NAME.search(f"made {place}/x")
    assert place.stat().st_mode & 0o777 == 0o700
    (place / "deep" / "er").mkdir(parents=True)
    (place / "link").symlink_to(outside)
    (place / "deep" / "file").symlink_to(outside / "kept")

    async def remove_twice() -> None:
        await scratch.remove()
        await scratch.remove()

    asyncio.run(remove_twice())
    assert not place.exists()
    assert (outside / "kept").read_text() == "kept"


def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "kept").touch()
    link = tmp_path / "trial-x"
    link.symlink_to(target)
    remove_scratch(str(link))
    assert (target / "kept").exists()


def test_folders_that_are_too_deep_or_gone_are_no_error(tmp_path: Path) -> None:
    remove_scratch(str(tmp_path / "gone"))
    deep = tmp_path / "deep"
    deep.mkdir()
    top = os.open(deep, os.O_RDONLY)
    current = top
    for _ in range(1500):
        os.mkdir("d", dir_fd=current)
        inner = os.open("d", os.O_RDONLY, dir_fd=current)
        if current != top:
            os.close(current)
        current = inner
    os.close(current)
    os.close(top)
    remove_scratch(str(deep))  # no error, whatever it manages
    from aisotools.sandbox.process.scratch import remove_folder

    remove_folder(str(deep))
    assert not deep.exists()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="has no scratch folder"):
        TrialScratch("")
    with pytest.raises(SandboxError, match="No such file"):
        TrialScratch(str(tmp_path / "missing"))


def test_reports_of_a_trial_are_dropped() -> None:
    listener = SilentListener()
    assert listener.output("id", "stdout", "text") is None  # type: ignore[func-returns-value]  # it does nothing
    assert listener.emitted("id", "name", {}) is None  # type: ignore[func-returns-value]  # likewise
