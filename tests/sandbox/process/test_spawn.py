from __future__ import annotations

import ast
import functools
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import comm
import pydantic_core
import pytest

from aisotools.builtin import WORKER_MODULES
from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement import landlock
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import spawn
from tests import mutation
from tests.sandbox.rig import open_files, rig
from tests.waiting import HANG_S, wait_until

HOSTILE = {
    "OPENAI_API_KEY": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "PYTHONPATH": "/evil",
    "PYTHONSTARTUP": "/evil.py",
    "LD_PRELOAD": "/evil.so",
    "BASH_ENV": "/evil.sh",
    "HOME": "/root",
    "PATH": "/evil/bin",
    "SSH_AUTH_SOCK": "/run/agent",
    "TZ": "Europe/Vienna",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture
def spec(tmp_path: Path) -> spawn.WorkerSpec:
    level = spawn.detection().level
    assert level
    return spawn.WorkerSpec(level=level, workspace=str(tmp_path), limits=Limits())


def close(ends: spawn.WorkerHandles) -> None:
    for end in (ends.channel, ends.control, ends.out, ends.err):
        end.close()


def await_end(server: spawn.ForkServerHandle) -> None:
    wait_until(lambda: not server.alive)


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def test_only_what_is_listed_passes_on() -> None:
    base = spawn.base_environment(HOSTILE)
    assert set(base) == {
        *("PATH", "LANG", "USER", "LOGNAME", "PYTHONDONTWRITEBYTECODE"),
        *("TZ", "OMP_NUM_THREADS"),
    }
    assert base["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert "evil" not in repr(base)


def test_a_worker_s_places_are_in_its_scratch_folder() -> None:
    found = spawn.worker_environment(spawn.base_environment({}), "/ws", "/scratch")
    assert found["WORKSPACE"] == "/ws"
    for name in ("HOME", "TMPDIR", "IPYTHONDIR", "MPLCONFIGDIR", "XDG_CACHE_HOME"):
        assert found[name].startswith("/scratch/")


def test_the_fork_server_has_one_thread_a_clean_environment_and_a_session_of_its_own() -> None:
    server = spawn.server()
    server.preloaded()  # so that it is up
    status = read(f"/proc/{server.pid}/status").decode()
    assert "Threads:\t1\n" in status
    environ = dict(e.split("=", 1) for e in read(f"/proc/{server.pid}/environ").decode().split("\0") if e)
    assert environ == {**spawn.base_environment(os.environ), "TMPDIR": tempfile.gettempdir()}
    assert os.getsid(server.pid) == server.pid
    assert repr(server) == f"<ForkServer pid={server.pid} up>"


def test_there_is_one_fork_server_whoever_asks() -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(spawn.server().pid)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {spawn.server().pid}


async def test_a_server_without_the_modules_that_workers_should_have_is_replaced(tmp_path: Path) -> None:
    plain = spawn.server()
    assert not plain.has_imported(["wave"])
    server = spawn.server((*WORKER_MODULES, "wave"))
    assert server is not plain
    assert server.has_imported(["wave"])
    assert spawn.server() is server, "what it has imported beside does no harm"
    async with rig(tmp_path) as r:
        assert await r.value("__import__('sys').modules.keys() >= {'wave', 'aisotools.builtin.files'}")
    spawn.discard(server)


def test_a_dead_one_is_replaced_and_its_descriptors_are_closed() -> None:
    spawn.server()
    before = open_files()
    for _ in range(3):
        server = spawn.server()
        os.kill(server.pid, signal.SIGKILL)
        await_end(server)
        assert spawn.server() is not server
    assert open_files() == before


def test_asking_one_that_just_died(spec: spawn.WorkerSpec) -> None:
    server = spawn.ForkServerHandle()
    os.kill(server.pid, signal.SIGKILL)
    await_end(server)
    # A fork of it may hold the other end for a moment longer.
    wait_until(lambda: select.select([server._socket], [], [], 0)[0])
    before = open_files()
    for _ in range(3):
        with pytest.raises(SandboxError, match="The fork server is gone"):
            server.spawn(spec)
    with pytest.raises(SandboxError, match="The fork server is gone"):
        server.detect()
    assert open_files() == before
    server.close()


def test_one_that_stops_is_ended_the_hard_way() -> None:
    server = spawn.ForkServerHandle()
    os.kill(server.pid, signal.SIGSTOP)
    server.close(patience_s=0.05)
    assert not Path(f"/proc/{server.pid}").exists()


def test_a_fork_of_the_host_gets_its_own() -> None:
    ours = spawn.server()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            theirs = spawn.server()
            os.write(writing, f"{theirs.pid}".encode())
            theirs.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    other = os.read(reading, 100).decode()
    os.close(reading)
    assert other.isdecimal()
    assert int(other) != ours.pid
    assert ours.alive
    assert spawn.server() is ours
    assert ours.detect().level  # it still answers us


@contextmanager
def few_descriptors() -> Iterator[Callable[[int], None]]:
    """A function that leaves this process so many more descriptors to open; afterwards none may be leaked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = open_files()
    lowest_free = os.dup(0)
    os.close(lowest_free)
    try:
        yield lambda more: resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + more, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert open_files() <= before  # what an earlier test has left may be closed meanwhile


def test_without_descriptors_it_says_so_and_leaks_none(spec: spawn.WorkerSpec) -> None:
    server = spawn.server()
    spawn.detection()
    refusals = []
    with few_descriptors() as leave:
        for more in range(12):
            leave(more)
            try:
                close(server.spawn(spec))
            except SandboxError as error:
                refusals.append(str(error))
    assert len(refusals) >= 4
    assert all("too many files open" in message for message in refusals)


def test_a_fork_server_cannot_be_started_without_descriptors() -> None:
    refusals = []
    with few_descriptors() as leave:
        for more in range(6):
            leave(more)
            try:
                spawn.ForkServerHandle().close(patience_s=0)
            except SandboxError as error:
                refusals.append(str(error))
    assert len(refusals) >= 4
    assert all("too many files open" in message or "could not be started" in message for message in refusals)


def test_a_request_that_is_too_long(spec: spawn.WorkerSpec) -> None:
    long = spawn.WorkerSpec(
        level=spec.level,
        workspace=spec.workspace,
        readable=("/" + "x" * 200_000,),
        limits=Limits(),
    )
    before = open_files()
    with pytest.raises(SandboxError, match="too long"):
        spawn.server().spawn(long)
    assert open_files() == before


def test_a_path_that_is_no_utf_8(spec: spawn.WorkerSpec) -> None:
    odd = spawn.WorkerSpec(level=spec.level, workspace="/tmp/\udcff", limits=Limits())
    with pytest.raises(SandboxError, match=r"is not valid UTF-8.*Rename"):
        spawn.server().spawn(odd)


def test_a_worker_ends_when_its_descriptors_are_closed(spec: spawn.WorkerSpec) -> None:
    ends = spawn.server().spawn(spec)
    wait_until(lambda: [p for p in Path("/proc").glob("[0-9]*") if _works_in(p, spec.workspace)])
    close(ends)
    wait_until(lambda: not [p for p in Path("/proc").glob("[0-9]*") if _works_in(p, spec.workspace)])


def _works_in(process: Path, folder: str) -> bool:
    try:
        return str((process / "cwd").readlink()) == folder
    except OSError:
        return False


# ---- a request, as the fork server parses it


def request_message(**changes: object) -> dict[str, object]:
    request = spawn.SpawnRequest(
        level="guarded",
        workspace="/workspace",
        readable=("/data",),
        limits=Limits(),
        landlock_abi=None,
        env={"TZ": "UTC"},
        temporary="/tmp",
        host=7,
    )
    decoded: dict[str, object] = json.loads(json.dumps({"op": "spawn", **asdict(request)}))
    return decoded | changes


def test_request_survives_its_packet() -> None:
    request = spawn.SpawnRequest.parse(request_message())
    assert (request.level, request.readable, request.limits, request.env, request.host) == (
        "guarded",
        ("/data",),
        Limits(),
        {"TZ": "UTC"},
        7,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"op": "detect"},
        {"level": "none"},
        {"level": ["guarded"]},
        {"workspace": "relative"},
        {"workspace": "/a\0b"},
        {"readable": "/data"},
        {"readable": ["data"]},
        {"limits": None},
        {"limits": {"memory_bytes": "much"}},
        {"limits": {"processes": 0}},
        {"limits": {"nosuch": 1}},
        {"landlock_abi": True},
        {"landlock_abi": -1},
        {"env": {"TZ": 1}},
        {"temporary": ""},
        {"host": 0},
        {"host": "7"},
        {"more": 1},
    ],
)
def test_request_with_a_wrong_member_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        spawn.SpawnRequest.parse(request_message(**changes))


def test_request_without_a_member_is_refused() -> None:
    message = request_message()
    for name in message.keys() - {"op"}:
        with pytest.raises(ValueError, match=f"missing or unknown: {name}"):
            spawn.SpawnRequest.parse({key: value for key, value in message.items() if key != name})


def test_a_host_that_can_write_no_other_folder_than_its_own_for_temporary_files(tmp_path: Path) -> None:
    if not landlock.abi():
        pytest.skip("the kernel offers no Landlock")
    (mine := tmp_path / "mine").mkdir()
    code = """
import sys
from aisotools.sandbox.process import spawn
try:
    open(sys.argv[1], 'x').close()  # a control: nothing else can be written
except OSError as error:
    print(type(error).__name__)
server = spawn.ForkServerHandle()
print(server.preloaded())
server.close()
"""
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "other")],
        env={**os.environ, "TMPDIR": str(mine)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        preexec_fn=functools.partial(mutation.confine, mine),
        check=False,
    )
    assert run.stdout.splitlines() == ["PermissionError", "{}"], run.stderr


# ---- packages that come by PYTHONPATH

_PROGRAM = """
import asyncio, comm, json, os, sys
from aisotools import AllowAll, Session

CODE = '''
import os, sys
seen = {}
for folder in %r:
    try:
        seen[folder] = len(os.listdir(folder))
    except OSError:
        seen[folder] = 0
    try:
        open(folder + "/planted.py", "x").close()
    except OSError:
        pass
(sys.path, seen, os.environ.get("PYTHONPATH"))
'''

async def main():
    workspace, folders = sys.argv[1], sys.argv[2:]
    async with Session(workspace, approver=AllowAll()) as session:
        result = await session.call("python", {"code": CODE % (folders,)})
        print(json.dumps([session.level, result.content]))

asyncio.run(main())
"""


def _run_with_packages(
    python: Path, tmp_path: Path, packages: Path, shown: Sequence[Path]
) -> subprocess.CompletedProcess[str]:
    """Run a session in an interpreter that has packages by PYTHONPATH."""
    (tmp_path / "w").mkdir()
    return subprocess.run(
        [python, "-c", _PROGRAM, tmp_path / "w", *shown],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "PYTHONPATH": f"{packages}:{tmp_path / 'more'}:{Path(spawn.__file__).parents[3]}",
        },
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """An interpreter without packages."""
    venv.create(tmp_path / "bare", symlinks=True)
    return tmp_path / "bare" / "bin" / "python"


def test_packages_that_the_host_has_by_pythonpath_are_handed_on(bare_python: Path, tmp_path: Path) -> None:
    """The folder of packages, and nothing else that PYTHONPATH names or that lies around it."""
    packages = Path(pydantic_core.__file__).parents[1]
    for folder in (tmp_path / "more", tmp_path / "more" / "site-packages"):
        folder.mkdir()
        (folder / "beside.py").touch()
    source = Path(spawn.__file__).parents[3]
    program = _run_with_packages(bare_python, tmp_path, packages, [packages, tmp_path / "more", source])
    assert program.returncode == 0, program.stderr
    level, content = json.loads(program.stdout)
    path, seen, passed_on = ast.literal_eval(content)
    assert str(packages) in path
    assert not [entry for entry in path if "/more" in entry or entry == str(source)]
    assert passed_on is None
    assert seen[str(packages)]
    assert not (packages / "planted.py").exists()
    if level != "limited":
        assert not seen[str(tmp_path / "more")]
        assert level == "isolated" or not seen[str(source)]


def test_packages_in_a_plain_folder_are_not_handed_on_and_the_error_says_what_to_do(
    bare_python: Path, tmp_path: Path
) -> None:
    packages = tmp_path / "libs"
    packages.symlink_to(Path(pydantic_core.__file__).parents[1], target_is_directory=True)
    program = _run_with_packages(bare_python, tmp_path, packages, [])
    assert program.returncode != 0
    assert "The fork server cannot import 'pydantic_core'. It is started without PYTHONPATH" in program.stderr
    assert "Install aisotools into an environment (python3 -m venv)" in program.stderr


def test_packages_by_pythonpath_that_are_installed_as_well_are_not_handed_on(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    shutil.copytree(Path(comm.__file__).parent, packages / "comm")
    program = _run_with_packages(Path(sys.executable), tmp_path, packages, [packages])
    assert program.returncode == 0, program.stderr
    level, content = json.loads(program.stdout)
    path, seen, _ = ast.literal_eval(content)
    assert str(packages) not in path
    assert level == "limited" or not seen[str(packages)]
