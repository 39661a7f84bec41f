"""Programs that are started for a call, and what their transports report."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from aisotools.builtin import programs
from aisotools.builtin.programs import KeptProgram, ProgramTransport, spawn
from aisotools.sandbox.confinement import landlock
from aisotools.sandbox.process import tree
from tests.waiting import HANG_S, eventually, wait_until


class Collecting(asyncio.SubprocessProtocol):
    """Collects what a transport reports."""

    def __init__(self) -> None:
        self.data: dict[int, bytes] = {1: b"", 2: b""}
        self.reports: list[str] = []
        self.named: list[int] = []
        self.exited = asyncio.Event()
        self.lost = asyncio.Event()
        self.printed = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.data[fd] += data
        self.printed.set()

    def process_exited(self) -> None:
        self.reports.append("exited")
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.reports.append("lost")
        self.lost.set()


def start_program(
    command: tuple[str, ...], folder: Path, *, read_only: bool = True
) -> tuple[ProgramTransport, Collecting]:
    protocol = Collecting()
    transport = spawn(
        command,
        cwd=str(folder),
        env={"PATH": os.environ["PATH"]},
        protocol=protocol,
        name_program=protocol.named.append,
        read_only=read_only,
    )
    return transport, protocol


def shell(script: str) -> tuple[str, ...]:
    return "/bin/sh", "-c", script


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_program_reports_output_and_end_and_is_named(tmp_path: Path, read_only: bool) -> None:
    script = shell("echo out; echo err >&2; cat; exit 3")
    transport, protocol = start_program(script, tmp_path, read_only=read_only)
    assert protocol.named == [transport.get_pid()]
    await asyncio.wait_for(protocol.lost.wait(), 30)
    assert protocol.data == {1: b"out\n", 2: b"err\n"}
    assert (protocol.reports, transport.get_returncode()) == (["exited", "lost"], 3)
    transport.close()


@pytest.mark.skipif(not landlock.abi(), reason="no Landlock")
async def test_a_read_only_program_cannot_write_and_this_process_still_can(tmp_path: Path) -> None:
    transport, protocol = start_program(shell("echo x > made"), tmp_path)
    await asyncio.wait_for(protocol.lost.wait(), 30)
    assert transport.get_returncode() != 0
    assert not (tmp_path / "made").exists()
    (tmp_path / "ours").write_text("x")
    transport.close()


async def test_closing_kills_a_read_only_program(tmp_path: Path) -> None:
    transport, protocol = start_program(shell("echo up; exec sleep 60"), tmp_path)
    await asyncio.wait_for(protocol.printed.wait(), 30)
    assert not transport.is_closing()
    transport.close()
    transport.close()
    assert transport.is_closing()
    await asyncio.wait_for(protocol.exited.wait(), 30)
    assert transport.get_returncode() == -9
    assert protocol.reports == ["exited"]  # the reader closed the pipes itself


@pytest.mark.parametrize("pause_s", [0, 0.05])
def test_interrupt_leaves_neither_the_thread_nor_what_it_starts(pause_s: float) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    main = threading.get_ident()
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        signal.pthread_kill(main, signal.SIGUSR1)  # which waits for this thread
        time.sleep(pause_s)
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(["/bin/sleep", "60"], **pipes))
        return started[0]

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            programs._start_restricted(start, {}, None)
    finally:
        signal.signal(signal.SIGUSR1, before)
    wait_until(lambda: all(thread.name != "read-only-spawn" for thread in threading.enumerate()))
    assert started[0].returncode == -signal.SIGKILL
    assert started[0].stdout is not None
    assert started[0].stdout.closed


async def test_a_program_that_is_missing_is_reported_from_the_thread(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        start_program(("/nosuch/program",), tmp_path)


async def test_an_end_is_noticed_where_there_are_no_pidfds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int) -> Any:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    transport, protocol = start_program(shell("echo out; exit 3"), tmp_path)
    await asyncio.wait_for(protocol.lost.wait(), HANG_S)
    assert (protocol.data[1], transport.get_returncode()) == (b"out\n", 3)


# ---- below a keeper


def read(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def keep(script: str, folder: Path) -> tuple[KeptProgram, Collecting]:
    protocol = Collecting()
    program = KeptProgram(
        shell(script),
        cwd=str(folder),
        env={"PATH": os.environ["PATH"]},
        protocol=protocol,
        name_program=protocol.named.append,
    )
    return program, protocol


async def test_a_program_below_a_keeper_reports_its_own_end_before_that_of_the_rest(tmp_path: Path) -> None:
    late = "while [ ! -e go ]; do sleep 0.01; done; echo late"
    program, protocol = keep(
        f"read x; echo got $x $AISOTOOLS_TASK; (setsid sh -c '{late}' &); exit 3", tmp_path
    )
    assert protocol.named == [program.keeper_pid]
    await program.started()
    assert tree.parent_of(program.get_pid()) == program.keeper_pid
    # Whoever lists processes finds the command once.
    assert b"echo got" not in read(program.keeper_pid, "cmdline")
    pipe = program.get_pipe_transport(0)
    assert isinstance(pipe, asyncio.WriteTransport)
    pipe.write(b"it\n")
    await asyncio.wait_for(protocol.exited.wait(), HANG_S)
    assert program.get_returncode() == 3
    assert (protocol.reports, program.emptied.done()) == (["exited"], False)
    (tmp_path / "go").touch()
    await asyncio.wait_for(protocol.lost.wait(), HANG_S)
    assert program.emptied.done()
    assert (protocol.data[1], protocol.reports) == (b"got it\nlate\n", ["exited", "lost"])
    program.close()
    assert program.is_closing()


async def test_the_end_of_input_reaches_a_program_below_a_keeper(tmp_path: Path) -> None:
    program, protocol = keep("wc -c", tmp_path)
    await program.started()
    pipe = program.get_pipe_transport(0)
    assert isinstance(pipe, asyncio.WriteTransport)
    pipe.write(b"12345")
    pipe.write_eof()
    await asyncio.wait_for(protocol.lost.wait(), HANG_S)
    assert protocol.data[1].strip() == b"5"
    program.close()


async def test_the_exit_status_is_lost_with_the_keeper(tmp_path: Path) -> None:
    program, protocol = keep("read x; exit 3", tmp_path)
    await program.started()
    os.kill(program.keeper_pid, signal.SIGKILL)
    await asyncio.wait_for(protocol.exited.wait(), HANG_S)
    assert program.get_returncode() is None
    assert program.emptied.done()
    program.close()


async def test_a_program_that_ends_at_once_has_started_all_the_same(tmp_path: Path) -> None:
    program, protocol = keep("exit 3", tmp_path)
    await asyncio.wait_for(protocol.lost.wait(), HANG_S)
    await program.started()
    assert (program.get_returncode(), program.emptied.done()) == (3, True)
    pipe = program.get_pipe_transport(0)
    assert isinstance(pipe, asyncio.WriteTransport)
    assert pipe.is_closing()


async def test_a_keeper_that_cannot_be_started_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_PYTHON", "/nosuch/python")
    with pytest.raises(FileNotFoundError):
        keep("true", tmp_path)
    monkeypatch.setattr(programs, "_PYTHON", "/bin/false")
    program, _ = keep("true", tmp_path)
    with pytest.raises(OSError, match="its keeper ended early"):
        await program.started()
    program.close()
    await eventually(lambda: not tree.parent_of(program.keeper_pid))
