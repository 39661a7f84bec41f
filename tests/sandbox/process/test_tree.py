from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from aisotools.sandbox.process.tree import (
    CALL_MARK,
    Process,
    below,
    call_mark,
    find_background_processes,
    find_sweepable,
    is_below,
    kill_all,
    reap,
    table,
)
from tests.waiting import HANG_S, process_state, wait_until

SUPERVISOR, WORKER = 10, 11


def tree(**parents: int) -> dict[int, Process]:
    """Processes `p20=parent` beside a supervisor and its worker."""
    rows = {1: 0, SUPERVISOR: 1, WORKER: SUPERVISOR}
    rows |= {int(name[1:]): parent for name, parent in parents.items()}
    return {pid: Process(parent) for pid, parent in rows.items()}


def sweepable(
    processes: dict[int, Process],
    marks: dict[int, str] | None = None,
    spared: tuple[str, ...] = (),
    *,
    unmarked: bool = True,
    exempt: tuple[int, ...] = (),
) -> set[int]:
    return find_sweepable(
        processes,
        SUPERVISOR,
        worker=WORKER,
        spared=frozenset(spared),
        unmarked=unmarked,
        exempt=exempt,
        mark_of=(marks or {}).get,
    )


def test_a_sweep_finds_processes_wherever_they_hide() -> None:
    processes = tree(
        p20=WORKER,
        p21=20,
        p22=SUPERVISOR,  # a daemon: its parents are gone
        p23=22,
        p24=23,
        p25=1,  # not below the supervisor
    )
    assert sweepable(processes) == {20, 21, 22, 23, 24}


def test_other_running_calls_and_background_tasks_are_spared_with_all_below_them() -> None:
    processes = tree(p20=WORKER, p21=WORKER, p22=20, p23=21, p24=SUPERVISOR, p25=24)
    marks = {20: "mine", 21: "other", 24: "task"}
    assert sweepable(processes, marks, ("other", "task"), unmarked=False) == {20, 22}
    assert sweepable(processes, marks, ("other", "task"), unmarked=True) == {20, 22}


def test_a_process_inside_a_spared_one_that_bears_another_mark_is_found() -> None:
    processes = tree(p20=WORKER, p21=20)
    assert sweepable(processes, {20: "task", 21: "mine"}, ("task",)) == {21}


def test_a_process_without_a_mark_is_found_only_if_asked_for() -> None:
    processes = tree(p20=WORKER, p21=SUPERVISOR)
    assert sweepable(processes, spared=("other",), unmarked=False) == set()
    assert sweepable(processes, spared=("other",), unmarked=True) == {20, 21}


def test_processes_below_an_exempt_one_are_found_and_take_no_mark_of_it() -> None:
    processes = tree(p20=WORKER, p21=20, p22=21)
    assert sweepable(processes, exempt=(20,)) == {21, 22}
    assert sweepable(processes, {20: "task"}, ("task",), exempt=(20,)) == {21, 22}
    assert sweepable(processes, {21: "task"}, ("task",), exempt=(20,)) == set()


def test_the_worker_is_never_found_and_rings_do_not_hang() -> None:
    assert sweepable(tree()) == set()
    assert sweepable(tree(p20=21, p21=20)) == set()
    assert below(SUPERVISOR, tree(p20=WORKER, p21=21)) == {WORKER, 20}


@given(st.dictionaries(st.integers(12, 40), st.integers(10, 40), max_size=25))
def test_without_marks_everything_below_is_found(parents: dict[int, int]) -> None:
    processes = tree(**{f"p{pid}": parent for pid, parent in parents.items()})
    assert sweepable(processes) == below(SUPERVISOR, processes) - {WORKER}


def test_marks_are_short_and_differ() -> None:
    ids = ["", "a", "b", "x" * 100_000, "\ud800"]
    assert len({call_mark(call_id) for call_id in ids}) == len(ids)
    assert {len(call_mark(call_id)) for call_id in ids} == {16}


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
    with started("sleep", "100") as process:
        assert table()[process.pid] == Process(os.getpid(), group=process.pid)
    assert process.pid not in table()


@pytest.mark.parametrize("name", [") Z 1 (", "a b) R 1 1", "\n", "(((", "Z"])
def test_odd_names_do_not_confuse_the_table(name: str) -> None:
    code = f"open('/proc/self/comm', 'w').write({name!r}); print(flush=True); import time; time.sleep(100)"
    with started(sys.executable, "-c", code) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert table()[process.pid].parent == os.getpid()


def test_a_process_without_its_first_thread_is_not_dead() -> None:
    code = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(100,)).start(); "
        "print(flush=True); ctypes.CDLL(None).pthread_exit(None)"
    )
    with started(sys.executable, "-c", code) as process:
        assert process.stdout is not None
        process.stdout.readline()
        wait_until(lambda: process_state(process.pid) == "Z")
        assert process.pid in table()
        kill_all(lambda: {process.pid} & table().keys(), within_s=HANG_S)
        assert process.pid not in table()


def test_marks_are_read_from_the_environment() -> None:
    with (
        started("sleep", "100", **{CALL_MARK: "mine"}) as mine,
        started("sleep", "100", **{CALL_MARK: "task"}) as task,
        started("sleep", "100") as unmarked,
    ):
        found = find_sweepable(table(), os.getpid(), worker=0, spared=frozenset({"task"}), unmarked=False)
        assert mine.pid in found
        assert not {task.pid, unmarked.pid} & found


def test_a_mark_is_found_wherever_in_a_large_environment() -> None:
    for before in (0, 32_760, 100_000):
        with started("sleep", "100", AAA="x" * before, **{CALL_MARK: "mine"}) as process:
            wait_until(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
            found = find_sweepable(table(), os.getpid(), worker=0, spared=frozenset(), unmarked=False)
            assert process.pid in found


def test_a_table_of_some_processes_has_no_others() -> None:
    with started("sleep", "100") as one, started("sleep", "100") as two:
        assert table([one.pid, 0]) == {one.pid: Process(os.getpid(), group=one.pid)}
        assert {one.pid, two.pid} <= table().keys()


def test_a_process_that_forks_on_and_on_is_ended() -> None:
    """At any moment few processes, and never the same for long; should this fail, they end by themselves."""
    code = """
import os, time
for n in range(10_000):
    if os.fork():
        time.sleep(0.03)
        os._exit(0)
    os.setsid()
    if n == 5:
        print(flush=True)
    time.sleep(0.005)
"""
    with started(sys.executable, "-c", code, RUNAWAY="1") as process:
        assert process.stdout is not None
        process.stdout.readline()

        def runaways() -> set[int]:
            found = set()
            for pid in table():
                with contextlib.suppress(OSError):
                    if b"RUNAWAY=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                        found.add(pid)
            return found

        wait_until(runaways)  # one look may miss them: each is gone soon
        kill_all(runaways, within_s=HANG_S)
        while process.stdout.readline():
            pass  # whoever is left holds the other end
        assert not runaways()


def test_ending_is_bounded_in_time() -> None:
    assert (
        kill_all(lambda: {2**22 + 5}, within_s=0.1) == {}
    )  # it returns, although that is found again and again


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
