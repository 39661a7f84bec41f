"""The janitor above a fork server: what it kills, what it leaves alone, and when it goes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from aisotools.sandbox.confinement import syscalls
from aisotools.sandbox.process import janitor, tree
from aisotools.sandbox.process.scratch import make_scratch, scratch_prefix
from tests.sandbox.alone import in_one_thread
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.skipif(
        "NoNewPrivs:\t1" in Path("/proc/self/status").read_text(),
        reason="here every process looks confined: no_new_privs is set already",
    ),
]


def fork(action: Callable[[], object]) -> int:
    """Run `action` in a fork, which never returns from here."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    return pid


def be_confined() -> None:
    syscalls.set_no_new_privileges()
    signal.pause()


def test_a_confined_process_is_known_by_a_flag_that_cannot_be_taken_back() -> None:
    def look() -> dict[str, Any]:
        before = janitor._is_confined(os.getpid())
        syscalls.set_no_new_privileges()
        return {"before": before, "after": janitor._is_confined(os.getpid())}

    assert in_one_thread(look) == {"before": False, "after": True}
    assert not janitor._is_confined(2**22 + 5), "there is no such process"


def test_confined_children_are_unsupervised_and_supervisors_are_not() -> None:
    def look() -> dict[str, Any]:
        reading, writing = os.pipe()

        def confined_with_a_child() -> NoReturn:
            syscalls.set_no_new_privileges()
            os.write(writing, f"{fork(signal.pause)}\n".encode())
            while True:
                signal.pause()

        def supervisor_with_a_worker() -> NoReturn:
            os.write(writing, f"{fork(be_confined)}\n".encode())
            while True:
                signal.pause()

        confined = fork(confined_with_a_child)
        below = int(os.read(reading, 100))
        supervisor = fork(supervisor_with_a_worker)
        worker = int(os.read(reading, 100))
        wait_until(lambda: janitor._is_confined(worker))
        found = janitor._unsupervised()
        for pid in (confined, below, supervisor, worker):
            os.kill(pid, signal.SIGKILL)
        return {"found": sorted(found), "expected": sorted([confined, below])}

    answer = in_one_thread(look)
    assert answer["found"] == answer["expected"]


def test_orphans_of_a_dead_fork_server_are_ended_and_a_supervisor_is_waited_for(tmp_path: Path) -> None:
    report, reporting = os.pipe()
    released, releasing = os.pipe()

    def run_server() -> None:
        janitor.fork_janitor(str(tmp_path))
        make_scratch(scratch_prefix(str(tmp_path), os.getpid()) + "x")

        def supervise() -> None:
            os.close(releasing)
            os.read(released, 1)  # until the test releases it

        pids = {
            "server": os.getpid(),
            "janitor": os.getppid(),
            "orphan": fork(be_confined),
            "supervisor": fork(supervise),
        }
        wait_until(lambda: janitor._is_confined(pids["orphan"]))
        os.write(reporting, json.dumps(pids).encode() + b"\n")

    (tmp_path / "aisotools-1-x").mkdir()
    pid = fork(run_server)
    os.close(reporting)
    pids = json.loads(os.read(report, 1000))
    assert pids["janitor"] == pid
    (scratch,) = tmp_path.glob(f"aisotools-{pids['server']}-*")
    wait_until(lambda: not tree.parent_of(pids["orphan"]))
    # The supervisor is still there, so the janitor is, and the folder that it may need.
    wait_until(lambda: tree.parent_of(pids["supervisor"]) == pid)
    assert scratch.exists()
    os.close(releasing)
    _, status = os.waitpid(pid, 0)
    os.close(report)
    os.close(released)
    assert status == 0
    assert [path.name for path in tmp_path.iterdir()] == ["aisotools-1-x"], "another server's folder stays"


def test_the_janitor_holds_no_descriptor_and_survives_the_signals_of_a_terminal(tmp_path: Path) -> None:
    report, reporting = os.pipe()
    released, releasing = os.pipe()

    def run_server() -> None:
        janitor.fork_janitor(str(tmp_path))
        os.close(releasing)
        os.write(reporting, b"up")
        os.read(released, 1)

    pid = fork(run_server)
    os.close(reporting)
    assert os.read(report, 10) == b"up"
    # It is set up when it has closed everything, left the session, and ignores the last of the signals.
    ignored = 1 << signal.SIGHUP - 1 | 1 << signal.SIGINT - 1 | 1 << signal.SIGTERM - 1
    wait_until(lambda: ignored_signals(pid) & ignored == ignored)
    assert os.getsid(pid) == pid
    assert list(Path(f"/proc/{pid}/fd").iterdir()) == []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    os.close(releasing)
    _, status = os.waitpid(pid, 0)
    os.close(report)
    os.close(released)
    assert status == 0


def ignored_signals(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("SigIgn:\t")[2].partition("\n")[0], 16)
