"""Output and folders of any size: bounded memory, the true end kept, exact counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aisotools.core.types import ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.sandbox.limits import Limits
from aisotools.session.session import Session
from tests.conftest import OpenSession

MIB = 1 << 20


def memory_bytes(pid: int | str = "self") -> int:
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def forget_peak(pid: int | str = "self") -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5", "ascii")


async def opened(real_session: OpenSession) -> Session:
    session = real_session(approver=AllowAll(), limits=Limits(file_bytes=2 << 30))
    await session.start()
    await session.call("sandbox_bash", {"command": "true"})
    return session


async def bash(session: Session, command: str) -> ToolResult:
    result = await session.call("sandbox_bash", {"command": command, "timeout": 120_000})
    assert not result.is_error, result.content[-500:]
    return result


async def test_a_line_of_ten_megabytes(real_session: OpenSession) -> None:
    session = await opened(real_session)
    result = await bash(session, "printf start; head -c 10000000 /dev/zero | tr '\\0' x; printf end")
    assert result.value["stdout"].startswith("startxxx")
    assert result.value["stdout"].endswith("xxxend")
    assert "of 10000008 bytes and 0 lines of output" in result.content
    assert len(result.content) <= 10_000


async def test_output_that_is_no_text(real_session: OpenSession) -> None:
    session = await opened(real_session)
    result = await bash(session, "head -c 3000000 /dev/urandom; printf 'the end' >&2")
    assert "binary output" in result.content
    assert "the end" in result.content
    mixed = await bash(session, "printf 'caf\\xe9 \\x1b[31mred\\x1b[0m\\n'")
    assert mixed.content == "caf\ufffd red"
    assert mixed.value["stdout"] == "caf\ufffd \x1b[31mred\x1b[0m\n"


async def test_a_long_log_is_shown_at_both_ends_and_read_back(real_session: OpenSession) -> None:
    session = await opened(real_session)
    result = await bash(session, "seq 20000")
    lines = result.content.split("\n")
    assert lines[0] == "1"
    assert lines[-1] == "20000"
    assert len(lines) <= 257
    assert result.truncation is not None
    read = await session.call(
        "read_result", {"ref": result.truncation.ref, "first_line": 777, "last_line": 777}
    )
    assert read.content.startswith("777\n")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("command", "size", "lines"),
    [
        ("seq 1 40000000 | head -c 300000000; printf '\\nthe true end\\n'", 300_000_014, None),
        ("head -c 1000000000 /dev/zero | tr '\\0' x; echo; echo the true end", 1_000_000_014, 2),
    ],
    ids=["a log of 300 MB", "a flood of 1 GB"],
)
async def test_floods(real_session: OpenSession, command: str, size: int, lines: int | None) -> None:
    session = await opened(real_session)
    worker = session.status().pid
    forget_peak()
    before, worker_before = memory_bytes(), memory_bytes(worker)
    result = await bash(session, command)
    grown, worker_grown = memory_bytes() - before, memory_bytes(worker) - worker_before
    assert result.value["stdout"].endswith("the true end\n")
    assert f"of {size} bytes and " in result.content
    assert lines is None or f" and {lines} lines" in result.content
    print(f"\nhost +{grown / MIB:.1f} MiB, worker +{worker_grown / MIB:.1f} MiB")
    assert grown < 20 * MIB
    assert worker_grown < 20 * MIB


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_folder_of_a_million_files(real_session: OpenSession, tmp_path: Path) -> None:
    session = await opened(real_session)
    assert session.workspace is not None
    folder = session.workspace / "many"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    for number in range(1_000_000):
        os.mknod(f"f{number:07}", dir_fd=descriptor)
    os.close(descriptor)
    worker = session.status().pid
    forget_peak()
    forget_peak(worker)
    before, worker_before = memory_bytes(), memory_bytes(worker)
    result = await session.call("file", {"operation": "list", "path": "many"}, timeout_s=120)
    assert not result.is_error, result.content
    assert "995,000 of 1,000,000 entries are left out" in result.content
    assert len(result.value["entries"]) == 5_000
    grown, worker_grown = memory_bytes() - before, memory_bytes(worker) - worker_before
    print(f"\nhost +{grown / MIB:.1f} MiB, worker +{worker_grown / MIB:.1f} MiB")
    assert grown < 128 * MIB
    assert worker_grown < 32 * MIB
    arguments = {"operation": "list", "path": "many", "glob": "*999999"}
    assert (await session.call("file", arguments, timeout_s=120)).value["entries"][0]["name"] == "f0999999"
