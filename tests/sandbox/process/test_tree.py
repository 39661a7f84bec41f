from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from aisotools.sandbox.process.tree import (
    Process,
    _is_ending,
    below,
    below_all,
    exit_status,
    find_background_processes,
    has_ended,
    is_below,
    is_ending,
    number_inside,
    reap,
    signal_group,
    table,
    waiting_since,
)
from tests.waiting import HANG_S, process_state, wait_until

SUPERVISOR, WORKER = 10, 11


def tree(**parents: int) -> dict[int, Process]:
    """Processes `p20=parent` beside a supervisor and its worker."""
    rows = {1: 0, SUPERVISOR: 1, WORKER: SUPERVISOR}
    rows |= {int(name[1:]): parent for name, parent in parents.items()}
    return {pid: Process(parent) for pid, parent in rows.items()}


def now_ticks() -> int:
    """The time since the machine was started, as the process table has it."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def test_process_that_waits_has_run_for_a_time_and_one_that_runs_has_none() -> None:
    with subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=-1) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        try:
            wait_until(lambda: waiting_since(busy.pid) is None)
        finally:
            busy.kill()
    with subprocess.Popen(["sleep", "1000"]) as waiting:
        try:
            wait_until(lambda: waiting_since(waiting.pid) is not None)
            assert waiting_since(waiting.pid) == waiting_since(waiting.pid)
            waiting.send_signal(signal.SIGSTOP)
            wait_until(lambda: waiting_since(waiting.pid) is None)
        finally:
            waiting.kill()
    assert waiting_since(waiting.pid) is None, "it is gone"


def test_rings_do_not_hang() -> None:
    assert below(SUPERVISOR, tree(p20=WORKER, p21=21)) == {WORKER, 20}
    assert below_all([SUPERVISOR, 21], tree(p20=21, p21=20)) == {WORKER, 20, 21}


@given(st.dictionaries(st.integers(12, 40), st.integers(10, 40), max_size=25))
def test_below_several_is_below_one_of_them(parents: dict[int, int]) -> None:
    processes = tree(**{f"p{pid}": parent for pid, parent in parents.items()})
    assert below_all([WORKER, 20], processes) == below(WORKER, processes) | below(20, processes)


# ---- real processes


@contextlib.contextmanager
def started(*command: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, env=os.environ | environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_the_table_knows_parents_and_groups() -> None:
    before_ticks = now_ticks()
    with started("sleep", "100") as process:
        found = table()[process.pid]
        assert (found.parent, found.group, found.session) == (os.getpid(), process.pid, process.pid)
        assert before_ticks <= found.start_ticks <= now_ticks()
    assert process.pid not in table()


@pytest.mark.parametrize("name", [") Z 1 (", "a b) R 1 1", "\n", "(((", "Z"])
def test_odd_names_do_not_confuse_the_table(name: str) -> None:
    code = f"open('/proc/self/comm', 'w').write({name!r}); print(flush=True); import time; time.sleep(100)"
    with started(sys.executable, "-c", code) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert table()[process.pid].parent == os.getpid()


def test_a_number_inside_is_that_of_the_innermost_namespace() -> None:
    with started("sleep", "100") as process:
        assert number_inside(process.pid) == process.pid
    assert number_inside(process.pid) == 0


def test_a_table_of_some_processes_has_no_others() -> None:
    with started("sleep", "100") as one, started("sleep", "100") as two:
        assert table([one.pid, 0]) == {one.pid: table()[one.pid]}
        assert {one.pid, two.pid} <= table().keys()


def test_reaping_tells_how_children_ended() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    ended: dict[int, int] = {}
    while pid not in ended:
        ended |= reap()
    assert os.waitstatus_to_exitcode(ended[pid]) == 3


def test_an_ancestor_that_ends_while_the_way_is_looked_for_is_no_end_of_it() -> None:
    parents = {9: 8, 8: 7, 7: 3, 3: 2}
    ending = {8}

    def parent_of(pid: int) -> int:
        if pid in ending:  # it was 9's parent a moment ago, and now 9 has been given to 7
            ending.discard(pid)
            parents[9] = 7
            return 0
        return parents.get(pid, 0)

    assert is_below(9, 3, parent_of)
    assert not ending
    assert not is_below(9, 5, parent_of)
    assert not is_below(6, 3, parent_of), "it is gone"
    assert not is_below(9, 3, lambda pid: pid + 1), "there is no end of it"


@pytest.mark.parametrize("name", ["sleeper", "\\rNSpid: 1 1", "x) Z 1 1 1", "a\\x0bNSpid: 1 1"])
def test_a_program_cannot_hide_by_its_name(name: str) -> None:
    """Process 1 of a namespace is left out; a program that is named like the line that says so is not."""
    code = f"import ctypes, time; ctypes.CDLL(None).prctl(15, b'{name}'); print(flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            assert child.pid in find_background_processes(os.getpid(), worker=0)
            assert table([child.pid])[child.pid].parent == os.getpid()
        finally:
            child.kill()


def test_a_process_ends_once_it_is_killed_whatever_its_name() -> None:
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b'x) Z 1 1 1 1 4'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            assert not is_ending(child.pid)
            os.kill(child.pid, signal.SIGSTOP)
            wait_until(lambda: process_state(child.pid) == "T")
            assert not is_ending(child.pid)
            assert not has_ended(child.pid)
        finally:
            child.kill()
        # Whether the kernel still has the signal for it, it is on its way out, or a zombie.
        wait_until(lambda: is_ending(child.pid))
        wait_until(lambda: has_ended(child.pid))
        assert process_state(child.pid) == "Z"
    assert not is_ending(child.pid)
    assert has_ended(child.pid), "it is gone"


@pytest.mark.parametrize(
    ("state", "flags", "pending", "ends"),
    [
        ("S", 0x400040, 0, False),
        ("S", 0x400040, 1 << (signal.SIGTERM - 1), False),
        ("D", 0x400040, 1 << (signal.SIGKILL - 1), True),
        ("R", 0x400044, 0, True),
        ("Z", 0x400040, 0, True),
    ],
)
def test_a_thread_ends_by_what_the_kernel_says_of_it(
    state: str, flags: int, pending: int, ends: bool
) -> None:
    fields = [state, "1", "1", "1", "0", "-1", str(flags), *["0"] * 21, str(pending), *["0"] * 21]
    assert _is_ending([field.encode() for field in fields]) is ends


def test_a_signal_to_a_group_reaches_all_of_it_and_a_group_that_ended_is_no_error() -> None:
    with started("sh", "-c", "sleep 1000 & echo $!; wait") as shell:
        assert shell.stdout is not None
        child = int(shell.stdout.readline())
        signal_group(shell.pid, signal.SIGKILL)
        assert shell.wait(HANG_S) == -signal.SIGKILL
        wait_until(lambda: process_state(child) in {"", "Z"})
        signal_group(shell.pid, signal.SIGKILL)


# ---- how a process ended


def ended_child(source: str) -> tuple[int, int]:
    """Return the id and a pidfd of a child that runs `source`, and that has ended and was not reaped."""
    child = os.fork()
    if child == 0:
        exec(source, {"os": os, "signal": signal})
        os._exit(0)
    pidfd = os.pidfd_open(child)
    os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    return child, pidfd


@pytest.mark.parametrize(
    ("source", "status"),
    [("os._exit(7)", (7, 0)), ("signal.raise_signal(signal.SIGXCPU)", (-1, signal.SIGXCPU))],
)
def test_status_of_what_has_ended(source: str, status: tuple[int, int]) -> None:
    child, pidfd = ended_child(source)
    try:
        assert exit_status(child) == status
        os.waitpid(child, 0)
        assert exit_status(child) == (-1, 0)
        # Kernels before 6.15 forget it when it is reaped.
        release = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2]))
        assert exit_status(child, pidfd) in ([status] if release >= (6, 15) else [status, (-1, 0)])
    finally:
        os.close(pidfd)


def test_status_of_what_runs_is_not_known() -> None:
    pidfd = os.pidfd_open(os.getpid())
    try:
        assert exit_status(os.getpid(), pidfd) == (-1, 0)
    finally:
        os.close(pidfd)
