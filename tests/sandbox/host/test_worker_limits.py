"""Code that lowers the limits of its own process does not end the session."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from aisotools.core.types import ToolResult
from aisotools.sandbox.host import worker_limits
from aisotools.sandbox.host.worker_limits import (
    LOWERED,
    LimitsFile,
    LoweredLimits,
    WorkerLimits,
    explain_lowered,
    worker_replaced_result,
)
from tests.sandbox import inside
from tests.sandbox.conftest import Places
from tests.sandbox.host.test_readers import evaluate, level, read, work
from tests.sandbox.rig import rig

__all__ = ["level"]
pytestmark = pytest.mark.timeout(120)

NAMES = ("AS", "DATA", "STACK", "NOFILE", "NPROC", "FSIZE", "CPU")
SOFT = (
    "import resource; hard = resource.getrlimit(resource.RLIMIT_{0})[1]; "
    "resource.setrlimit(resource.RLIMIT_{0}, (1, hard))"
)
HARD = "import resource; resource.setrlimit(resource.RLIMIT_{0}, (1, 1))"


async def session_survives(folder: Path, level: str, lower: str, name: str) -> str:
    """Lower a limit in the worker; return what that call says, and the next one if that was needed."""
    async with rig(folder, level=level) as r:
        await r.python("x = 1")
        lowered = await r.python(lower.format(name))
        # The next call of each kind works. A worker that may have fewer files than it has open may end before
        # the host has looked, and the call that finds that out says so.
        shell = await r.bash("echo a > f; wc -l < f; echo works")
        message = lowered.content
        if name == "NOFILE" and "worker ended" in shell.content:
            message += shell.content
            shell = await r.bash("echo a > f; wc -l < f; echo works")
        assert not shell.is_error, (lowered.content, shell.content)
        assert "works" in shell.content
        assert await r.value("bytearray(64 << 20)[:1]") == b"\0"
        assert await r.value("x") == 1
        assert (await read(r, evaluate, code="x")).value == 1
        opened = "len([open('g', 'w') for _ in range(20)])"
        assert await r.value(opened) == 20
        return message


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lower", [SOFT, HARD], ids=["soft", "hard"])
async def test_session_survives_that_its_worker_lowers_a_limit(
    tmp_path: Path, level: str, lower: str, name: str
) -> None:
    message = await session_survives(tmp_path, level, lower, name)
    # A worker may not live to say it: its processor time is over, or it has no memory left. One without files
    # may end between two calls, and be replaced with its variables before anybody asks; its last words may
    # come in time to count as output of the call.
    ended_unseen = name == "NOFILE" and (not message or "[Errno 22] Invalid argument" in message)
    assert f"RLIMIT_{name}" in message or "worker ended" in message or ended_unseen


PLAIN = """
import asyncio, json, sys
from pathlib import Path
from tests.sandbox.host.test_worker_limits import HARD, NAMES, session_survives
async def main(folder):
    print(json.dumps({name: await session_survives(folder, "confined", HARD, name) for name in NAMES}))
asyncio.run(main(Path(sys.argv[1])))
"""


def test_session_of_a_plain_user_survives_hard_limits(place: Places) -> None:
    """One session for each limit, in one process of that user."""
    uid = inside.user_of("plain")
    command, user = inside.command_of([sys.executable, "-c", PLAIN, str(place("plain"))], uid)
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        timeout=100,
        check=False,
        **user,
    )
    assert process.returncode == 0, process.stderr
    messages = json.loads(process.stdout)
    assert messages.keys() == set(NAMES)
    for name, message in messages.items():
        if name == "NOFILE" and (not message.strip() or "[Errno 22] Invalid argument" in message):
            continue  # it ended between two calls, and was replaced with its variables before anybody asked
        assert "worker was replaced" in message or "worker ended" in message, (name, message)
        assert "restored to what they were before this call" in message, (name, message)


async def test_failing_call_names_the_limit_that_its_code_has_lowered(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        result = await r.python(f"{SOFT.format('FSIZE')}\nraise OSError(24, 'as without files')")
        assert result.is_error
        assert result.metadata[LOWERED] == ["RLIMIT_FSIZE"]
        assert "lowered its limits: RLIMIT_FSIZE to 1" in result.content
        assert "Limits(" not in result.content, "the session's limit is not the cause"


async def test_soft_limit_that_is_put_back_by_the_code_itself_is_no_matter(tmp_path: Path) -> None:
    code = f"import resource; was = resource.getrlimit(resource.RLIMIT_AS)\n{SOFT.format('AS')}\n"
    async with rig(tmp_path) as r:
        result = await r.python(f"{code}resource.setrlimit(resource.RLIMIT_AS, was)")
        assert not result.is_error
        assert LOWERED not in result.metadata


async def test_reader_whose_limits_are_lowered_is_replaced(tmp_path: Path, level: str) -> None:
    async with rig(tmp_path, level=level) as r:
        result = await read(r, work, code=f"{HARD.format('FSIZE')}\nraise OSError(24, 'as without files')")
        assert result.is_error
        assert "lowered its limits: RLIMIT_FSIZE to 1" in result.content
        assert "Limits(" not in result.content


async def test_reader_without_files_is_not_blamed_on_the_limits_of_the_session(
    tmp_path: Path, level: str
) -> None:
    """It may end before the host has looked at its limits: then nothing is said about the cause."""
    async with rig(tmp_path, level=level) as r:
        result = await read(r, work, code=f"{HARD.format('NOFILE')}\nopen('f')")
        assert result.is_error
        assert "Limits(open_files=" not in result.content
        assert (await read(r, evaluate, code="open('f', 'a') if 0 else open('/dev/null').read()")).value == ""


def test_limits_are_found_and_put_back() -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        limits = WorkerLimits(child.pid)
        assert not limits.find_lowered(child.pid)
        _, hard = resource.prlimit(child.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (5, hard))
        lowered = limits.find_lowered(child.pid)
        assert (str(lowered), lowered.final) == ("RLIMIT_FSIZE to 5", ())
        assert limits.put_back(child.pid).now == lowered.now
        assert not limits.put_back(child.pid)
    finally:
        child.kill()
        child.wait()
    assert not limits.put_back(child.pid), "a process that has ended has none"


def test_limits_of_another_user_are_read_from_proc() -> None:
    limits = WorkerLimits(os.getpid())
    assert worker_limits._read_file(os.getpid()) == limits._before
    assert len(limits._before) == len(NAMES)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_limits_that_the_host_cannot_read_now_are_unknown_and_read_later(number: int) -> None:
    failures = [OSError(number, os.strerror(number))] * 2

    def read_limits(pid: int) -> dict[str, worker_limits.Limit]:
        if failures and started:
            raise failures.pop()
        return worker_limits.read_limits(pid)

    started: list[bool] = []
    limits = WorkerLimits(os.getpid(), read_limits)
    limits._before["RLIMIT_NOFILE"] = (math.inf, math.inf)
    started.append(True)
    for lowered in (limits.find_lowered(os.getpid()), limits.put_back(os.getpid())):
        assert (bool(lowered), lowered.is_known) == (False, False)
    assert limits.find_lowered(os.getpid()).now.keys() == {"RLIMIT_NOFILE"}


def test_limit_that_cannot_be_put_back_is_named() -> None:
    limits = WorkerLimits(os.getpid())
    limits._before["RLIMIT_NOFILE"] = (math.inf, math.inf)  # more than the kernel gives to anybody
    lowered = limits.put_back(os.getpid())
    assert lowered.final == ("RLIMIT_NOFILE",)


def test_notes_say_what_happened_and_what_to_do() -> None:
    lowered = LoweredLimits(now={"RLIMIT_AS": (4096.0, math.inf)}, final=("RLIMIT_AS",))
    noted = explain_lowered(ToolResult.text("done"), lowered, what="It was put back.")
    assert noted.content.startswith("done\n[Code in this process has lowered its limits: RLIMIT_AS to 4,096.")
    assert "resource.setrlimit(kind, (soft, hard))" in noted.content
    assert not noted.is_error
    failed = worker_replaced_result(ToolResult.text("done"), lowered, recovery="Nothing is lost.")
    assert failed.is_error
    assert (
        "RLIMIT_AS could not be put back from outside, so the worker was replaced. Nothing is lost."
        in failed.content
    )


def test_lowered_limits_are_found_after_a_look_that_found_none() -> None:
    """Limits that are as they were are recognised by their text; any that differs is read."""
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            limits = WorkerLimits(process.pid)
            for _ in range(3):
                found = limits.find_lowered(process.pid)
                assert found.is_known
                assert not found
            _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 20, hard))
            for _ in range(2):
                assert limits.find_lowered(process.pid).now == {
                    "RLIMIT_FSIZE": (1 << 20, math.inf if hard == resource.RLIM_INFINITY else hard)
                }
            assert limits.put_back(process.pid).is_restored
            assert not limits.find_lowered(process.pid)
        finally:
            process.kill()
    assert not limits.find_lowered(process.pid).is_known


def test_the_open_file_of_limits_is_that_of_the_process_that_is_asked_about() -> None:
    file = LimitsFile()
    assert file.read(0) == b""
    with subprocess.Popen(["sleep", "100"]) as first, subprocess.Popen(["sleep", "100"]) as second:
        soft, hard = resource.prlimit(second.pid, resource.RLIMIT_FSIZE, (4321, 4321))
        del soft, hard
        for _ in range(2):
            assert b"4321" not in file.read(first.pid)
            assert b"4321" in file.read(second.pid)
        second.kill()
        second.wait()
        assert file.read(second.pid) == b"", "its number may be another's"
        assert b"Max file size" in file.read(first.pid)
        first.kill()
    file.close()
    file.close()
