"""When nothing of a tree of processes has run or written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from aisotools.sandbox.host import activity
from aisotools.sandbox.host.activity import IdleTimes
from aisotools.sandbox.process import tree
from aisotools.workspace.dirfd import file_time
from tests.waiting import wait_until


@contextmanager
def supervised(code: str) -> Iterator[Popen[bytes]]:
    """Run Python code below a process with no other children and one thread, and yield that one.

    Below the process of the tests there may be what earlier tests have left, and it may have many threads.
    """
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, start_new_session=True) as supervisor:
        try:
            yield supervisor
        except BaseException:
            os.killpg(supervisor.pid, signal.SIGKILL)  # or what failed would be waited for without end
            raise


def test_times_in_which_nothing_runs_are_seen_and_those_in_which_something_does_are_not() -> None:
    code = "import sys\nfor line in sys.stdin: print(flush=True)"
    with supervised(code) as child:

        def let_it_run() -> None:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.stdout.readline()

        let_it_run()
        idle = IdleTimes()
        wait_until(lambda: idle.look([child.pid]) and idle.spans)
        first = idle.spans[-1]
        assert idle.look([child.pid])
        wait_until(lambda: idle.look([child.pid]) and idle.spans[-1][1] > first[1])
        assert idle.spans[-1][0] == first[0]  # the same time, which goes on
        ended_ns = file_time()
        let_it_run()
        wait_until(lambda: idle.look([child.pid]) and idle.spans[-1][0] > ended_ns)
        assert all(end <= ended_ns or begin > ended_ns for begin, end in idle.spans)
        assert child.stdin is not None
        child.stdin.close()


WRITES = {
    "a system call": "os.write(out, b'1')",
    "a child": "os.system(':')",
    "a thread": "t = threading.Thread(target=os.write, args=(out, b'1')); t.start(); t.join()",
    "a mapped file": "view = mmap.mmap(out, 1)",
}
"""What a process does that may write into a file, to the file that it has open as `out`."""


@pytest.mark.parametrize("how", WRITES)
def test_times_in_which_nothing_is_written_are_seen_however_busy_a_process_is(
    tmp_path: Path, how: str
) -> None:
    code = f"""
import mmap, os, signal, sys, threading
out = os.open({str(tmp_path / "out")!r}, os.O_RDWR | os.O_CREAT)
os.ftruncate(out, 1)
acts = 0
def act(*_):
    global acts
    acts += 1
signal.signal(signal.SIGUSR1, act)
os.mkfifo({str(tmp_path / "ready")!r})
open({str(tmp_path / "ready")!r}, "w").close()
while not acts: pass
{WRITES[how]}
open({str(tmp_path / "ready")!r}, "w").close()
while acts < 2: pass
"""
    with supervised(code) as supervisor:
        wait_until((tmp_path / "ready").exists)
        (tmp_path / "ready").read_bytes()
        (child,) = tree.descendants(supervisor.pid)
        idle = IdleTimes()
        began_ns = file_time()
        wait_until(lambda: idle.look([supervisor.pid]) and bool(idle.unwritten))
        first = idle.unwritten[-1]
        wait_until(lambda: idle.look([supervisor.pid]) and idle.unwritten[-1][1] > first[1])
        assert (idle.unwritten[-1][0], len(idle.unwritten)) == (first[0], 1), "the same time, which goes on"
        assert first[0] > began_ns
        # On a busy machine it may have to wait for a processor, and then it does not run.
        wait_until(
            lambda: (
                idle.look([supervisor.pid]) and (not idle.spans or idle.spans[-1][1] < idle.unwritten[-1][1])
            ),
        )
        asked_ns = file_time()
        os.kill(child, signal.SIGUSR1)
        (tmp_path / "ready").read_bytes()
        acted_ns = file_time()
        for _ in range(4):
            idle.look([supervisor.pid])
        assert not any(begin <= acted_ns and end > asked_ns for begin, end in idle.unwritten)
        assert (len(idle.unwritten) > 1) == (how != "a mapped file"), "which may be written at any time"
        os.kill(child, signal.SIGUSR1)


def test_nothing_is_said_of_nobody_or_of_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = IdleTimes()
    assert not idle.look([])
    assert not idle.look([])
    with subprocess.Popen(["cat"], stdin=PIPE) as child:
        monkeypatch.setattr(activity, "_MOST_COMPARED", 0)
        assert not idle.look([os.getpid()])
        assert not idle.look([os.getpid()])
        child.communicate()
    assert not idle.spans
