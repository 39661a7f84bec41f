"""The keeper of a task, as the small program that it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from aisotools.sandbox.process import tree
from aisotools.sandbox.worker import keeper
from tests.waiting import wait_until


@contextmanager
def below_a_keeper(command: str) -> Iterator[tuple[subprocess.Popen[bytes], BinaryIO]]:
    """A keeper with a shell below it, and what it reports."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", keeper.PATH, str(writing), "/bin/sh", "-c"],
        env=os.environ | {keeper.LAST_ARGUMENT: command},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(writing,),
        start_new_session=True,
    )
    os.close(writing)
    with process, os.fdopen(reading, "rb") as report:
        try:
            yield process, report
        finally:
            for pid in (process.pid, *tree.descendants(process.pid)):
                tree.send_signal(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("command", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", -signal.SIGTERM)]
)
def test_a_keeper_reports_the_start_and_the_end_and_ends_itself(command: str, status: int) -> None:
    with below_a_keeper(f"echo $$; {command}") as (process, report):
        pid = int(report.readline())
        assert pid != process.pid
        assert process.stdout is not None
        assert process.stdout.readline() == b"%d\n" % pid
        assert int(report.readline()) == status
        assert report.readline() == b""
        assert process.wait() == 0


@pytest.mark.parametrize("detached", ["nohup sleep 100 &", "setsid sh -c 'setsid sleep 100 &' &"])
def test_a_keeper_stays_above_what_detaches_itself(detached: str) -> None:
    with below_a_keeper(f"{detached} exit 0") as (process, report):
        pid = int(report.readline())
        assert int(report.readline()) == 0
        # Meanwhile there may be one that starts the last one and ends.
        wait_until(lambda: [tree.parent_of(one) for one in tree.descendants(process.pid)] == [process.pid])
        (left,) = tree.descendants(process.pid)
        assert left != pid
        assert process.poll() is None
        os.kill(left, signal.SIGKILL)
        assert process.wait() == 0


def test_a_keeper_does_not_hold_the_pipes_of_the_command() -> None:
    with below_a_keeper("exec > /dev/null; echo up >&2; setsid sleep 100 & read x") as (process, report):
        report.readline()
        assert process.stdout is not None
        assert process.stdout.read() == b""  # the end, though both still run
        assert process.poll() is None


def test_the_command_finds_signals_as_a_program_expects_them() -> None:
    ignored = (signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    try:
        with below_a_keeper("grep -E 'Sig(Ign|Blk)' /proc/self/status; exit 5") as (process, report):
            assert process.stdout is not None
            assert [int(line.split()[1], 16) for line in process.stdout] == [0, 0]
            report.readline()
            assert int(report.readline()) == 5
    finally:
        for number, handler in zip(ignored, before, strict=True):
            signal.signal(number, handler)


def test_the_start_is_reported_when_the_command_is_executed() -> None:
    for _ in range(5):
        with below_a_keeper("read x") as (_process, report):
            pid = int(report.readline())
            assert Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/bin/sh\0")


def test_requests_to_end_are_for_the_command() -> None:
    with below_a_keeper("read x") as (process, report):
        report.readline()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(number)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert int(report.readline()) == 0
        assert process.wait() == 0


def test_a_command_that_cannot_be_started_ends_as_in_a_shell() -> None:
    reading, writing = os.pipe()
    command = [sys.executable, "-I", "-S", keeper.PATH, str(writing)]
    env = {keeper.LAST_ARGUMENT: "/nosuch/program"}
    with os.fdopen(reading, "rb") as report:
        ended = subprocess.run(command, env=env, pass_fds=(writing,), capture_output=True, check=True)
        os.close(writing)
        assert report.read().split()[1] == b"127"
    assert ended.stderr == b"/nosuch/program: No such file or directory\n"
