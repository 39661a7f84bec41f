"""Limits: what the kernel does not count is watched, and each has an error that names it and its size."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aisotools.core.types import ToolResult
from aisotools.sandbox.host.monitor import (
    DiskUsage,
    ResourceUsage,
    count_context_switches,
    find_exceeded,
    measure_usage,
)
from aisotools.sandbox.limits import LimitExceeded, Limits, explain_failure
from tests.sandbox.rig import Rig, rig
from tests.waiting import eventually

MIB = 1 << 20


def assert_limit_reported(result: ToolResult, limit: str) -> None:
    """The error that every limit has: which, how much, what to raise."""
    assert result.is_error, result.content
    assert result.metadata["limit"] == limit, result.content
    assert result.metadata["used"] >= result.metadata["allowed"] > 0
    assert f"limits=Limits({limit}=...)" in result.content


# ---- deciding


def test_deciding_is_pure() -> None:
    limits = Limits(memory_bytes=100 * MIB, processes=10, disk_bytes=MIB)
    assert find_exceeded(ResourceUsage(memory_bytes=100 * MIB, processes=10, disk_bytes=MIB), limits) is None
    for name, used in (("memory_bytes", 101 * MIB), ("processes", 11), ("disk_bytes", MIB + 1)):
        found = find_exceeded(ResourceUsage(**{name: used}), limits)
        assert found == LimitExceeded(limit=name, used=used, allowed=getattr(limits, name))
    lifted = Limits(memory_bytes=None, disk_bytes=None)
    assert find_exceeded(ResourceUsage(memory_bytes=1 << 60, disk_bytes=1 << 60), lifted) is None


def test_an_overrun_in_words() -> None:
    words = str(LimitExceeded(limit="memory_bytes", used=5 << 30, allowed=4 << 30))
    assert "5 GiB, 4 GiB allowed" in words
    assert "limits=Limits(memory_bytes=...)" in words


@pytest.mark.parametrize(
    ("content", "limit"),
    [
        ("Traceback ...\nMemoryError", "memory_bytes"),
        ("OSError: [Errno 27] File too large", "file_bytes"),
        ("bash: x: Too many open files", "open_files"),
        ("bash: fork: retry: Resource temporarily unavailable", "processes"),
        ("RuntimeError: can't start new thread", "processes"),
        ("it was ended by SIGXCPU; it had used up its processor time", "cpu_s"),
    ],
)
def test_what_the_kernel_refused_is_named(content: str, limit: str) -> None:
    limits = Limits(cpu_s=5)
    assert_limit_reported(explain_failure(ToolResult.error(content), limits), limit)
    assert explain_failure(ToolResult.text(content), limits) == ToolResult.text(content)


def test_what_is_no_limit_is_left_alone() -> None:
    result = ToolResult.error("ZeroDivisionError: division by zero")
    assert explain_failure(result, Limits()) is result
    assert "limit" not in explain_failure(ToolResult.error("SIGXCPU"), Limits(cpu_s=None)).metadata


# ---- disk


def test_disk_counts_what_was_written_since(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"x" * MIB)
    time.sleep(0.05)
    disk = DiskUsage([str(tmp_path)], Limits(disk_bytes=4 * MIB))
    time.sleep(0.05)
    assert disk.used_bytes(0) == 0
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "new").write_bytes(b"x" * MIB)
    (tmp_path / "again").hardlink_to(tmp_path / "deep" / "er" / "new")
    (tmp_path / "out").symlink_to("/")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert MIB <= disk.used_bytes(0) < 1.1 * MIB


def test_a_file_without_a_name_counts(tmp_path: Path) -> None:
    disk = DiskUsage([str(tmp_path)], Limits())
    child = os.fork()
    if child == 0:
        held = (tmp_path / "gone").open("wb")
        held.write(b"x" * MIB)
        held.flush()
        (tmp_path / "gone").unlink()
        time.sleep(1000)
        os._exit(0)
    try:
        while disk.used_bytes(os.getpid()) < MIB:  # pytest's timeout ends a test that fails
            time.sleep(0.01)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


# ---- a real sandbox


@pytest.fixture
async def tight(tmp_path: Path) -> AsyncIterator[Rig]:
    limits = Limits(
        memory_bytes=1 << 30, processes=40, file_bytes=64 * MIB, disk_bytes=96 * MIB, open_files=64
    )
    async with rig(tmp_path, limits, level="confined") as made:
        yield made


async def works(r: Rig) -> None:
    assert await r.value("1 + 1") == 2


async def test_memory_of_one_process(tight: Rig) -> None:
    assert_limit_reported(await tight.python("bytearray(2 << 30)"), "memory_bytes")
    await works(tight)


async def test_memory_of_many_processes(tight: Rig) -> None:
    """Each stays below the limit of a process; all together do not."""
    code = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(b'x') * (200 << 20)
        time.sleep(60)
time.sleep(60)
"""
    result = await tight.python(code, timeout_s=50)
    assert_limit_reported(result, "memory_bytes")
    assert result.metadata["used"] < 2 << 30
    await works(tight)


async def test_memory_files(tight: Rig) -> None:
    """They would be memory of no process, so there are none: 1.5 GiB is refused every time."""
    code = """
import os
held = [os.memfd_create('x') for _ in range(2)]
for file in held:
    for _ in range(768):
        os.write(file, bytes(1 << 20))
"""
    for _ in range(28):
        result = await tight.python(code)
        assert "Function not implemented" in result.content
    await works(tight)


async def test_processes(tight: Rig) -> None:
    code = "import os, time\nfor _ in range(60):\n    if os.fork() == 0: time.sleep(60)\ntime.sleep(60)"
    assert_limit_reported(await tight.python(code, timeout_s=50), "processes")
    await works(tight)


async def test_processes_of_a_daemon_after_its_call(tight: Rig) -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(0.5)
    for _ in range(60):
        if os.fork() == 0: time.sleep(60)
    time.sleep(60)
"""
    assert not (await tight.python(code)).is_error
    await eventually(lambda: tight.reported.losses)
    assert "processes" in tight.reported.losses[0][1]
    await works(tight)


async def test_one_file(tight: Rig) -> None:
    assert_limit_reported(await tight.python("open('big', 'wb').write(bytes(65 << 20))"), "file_bytes")
    assert_limit_reported(await tight.bash("head -c 70000000 /dev/zero > big"), "file_bytes")


async def test_disk(tight: Rig) -> None:
    code = """
import time
for n in range(10):
    open(f'part{n}', 'wb').write(bytes(20 << 20))
time.sleep(60)
"""
    result = await tight.python(code, timeout_s=50)
    assert_limit_reported(result, "disk_bytes")
    assert "KeyboardInterrupt" in result.content
    # the variables are kept, and cleaning up is possible
    assert await tight.value("n") > 3
    cleaned = await tight.bash("rm part*; sleep 1; ls")
    assert not cleaned.is_error, cleaned.content
    await works(tight)


async def test_disk_of_the_scratch_folder(tight: Rig) -> None:
    code = """
import os, tempfile, time
for n in range(10):
    open(f'{tempfile.gettempdir()}/part{n}', 'wb').write(bytes(20 << 20))
time.sleep(60)
"""
    assert_limit_reported(await tight.python(code, timeout_s=50), "disk_bytes")


async def test_open_files(tight: Rig) -> None:
    assert_limit_reported(await tight.python("held = [open('/dev/null') for _ in range(100)]"), "open_files")


async def test_processor_time(tmp_path: Path) -> None:
    async with rig(tmp_path, Limits(cpu_s=1), level="confined") as r:
        assert_limit_reported(await r.python("while True: pass", timeout_s=50), "cpu_s")
        assert_limit_reported(await r.bash("while true; do :; done"), "cpu_s")
        await works(r)


async def test_usage_of_a_running_sandbox(tight: Rig) -> None:
    await tight.python("1")
    usage = measure_usage(tight.kernel.supervisor, Limits(cpu_s=100))
    assert usage.processes >= 1
    assert usage.memory_bytes > MIB
    assert usage.cpu_s >= 0
    assert measure_usage(0, Limits()) == ResourceUsage(), "a supervisor that is not known yet"


async def test_a_worker_at_rest_does_not_run(tight: Rig) -> None:
    await tight.python("1")
    supervisor = tight.kernel.supervisor

    def settled() -> bool:
        before = count_context_switches(supervisor)
        time.sleep(0.1)  # longer than the interval of the monitor
        return count_context_switches(supervisor) == before != {}

    await eventually(settled)
    await tight.python("2")
    before = count_context_switches(supervisor)
    await tight.python("import time; time.sleep(0.01)")
    assert count_context_switches(supervisor) != before
    assert count_context_switches(0) == {}
