from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisotools.sandbox.host import fork_handle
from aisotools.sandbox.process.tree import (
    CALL_MARK,
    Process,
    below,
    find_call_processes,
    kill_all,
    now,
    reap,
    table,
)
from tests.waiting import HANG_S, process_state, wait_until

SUPERVISOR, WORKER = 10, 11


def tree(**processes: tuple[int, int]) -> dict[int, Process]:
    """Processes `p20=(parent, tick)` beside a supervisor and its worker."""
    rows = {1: (0, 0), SUPERVISOR: (1, 1), WORKER: (SUPERVISOR, 1)}
    rows |= {int(name[1:]): born for name, born in processes.items()}
    return {pid: Process(parent, (tick, pid)) for pid, (parent, tick) in rows.items()}


def left(
    processes: dict[int, Process],
    marks: dict[int, str] | None = None,
    others: tuple[str, ...] = (),
    *,
    unmarked: bool = True,
) -> set[int]:
    return find_call_processes(
        processes,
        SUPERVISOR,
        worker=WORKER,
        since=(100, 22),
        mark="mine",
        others=frozenset(others),
        unmarked=unmarked,
        mark_of=(marks or {}).get,
    )


def test_what_a_call_started_is_found_wherever_it_hides() -> None:
    processes = tree(
        p25=(WORKER, 100),  # a child, of the same tick as the call and a later number
        p26=(25, 101),  # its child
        p27=(SUPERVISOR, 101),  # a daemon: its parents are gone
        p28=(27, 102),
        p29=(28, 103),
        p30=(1, 101),  # not below the supervisor
    )
    assert left(processes) == {25, 26, 27, 28, 29}


def test_what_an_earlier_call_left_running_stays_and_all_below_it() -> None:
    processes = tree(
        p20=(WORKER, 50),
        p21=(20, 101),
        p22=(SUPERVISOR, 60),
        p23=(22, 101),
        p24=(23, 102),
        p19=(WORKER, 100),  # of the same tick as the call, but its number was given out before
        p25=(WORKER, 100),
    )
    assert left(processes) == {25}


def test_other_calls_that_run_at_the_same_time_are_left_alone() -> None:
    processes = tree(
        p20=(WORKER, 101), p21=(WORKER, 101), p22=(20, 101), p23=(21, 101), p24=(SUPERVISOR, 101)
    )
    marks = {20: "mine", 21: "other", 24: "mine"}
    assert left(processes, marks, ("other",), unmarked=False) == {20, 22, 24}
    assert left(processes, marks, ("other",), unmarked=True) == {20, 22, 24}


def test_what_bears_no_mark_counts_only_if_asked_for() -> None:
    processes = tree(p20=(WORKER, 101), p21=(SUPERVISOR, 101))
    assert left(processes, others=("other",), unmarked=False) == set()
    assert left(processes, others=("other",), unmarked=True) == {20, 21}


def test_the_worker_is_never_chosen_and_rings_do_not_hang() -> None:
    assert left(tree()) == set()
    assert left(tree(p20=(21, 101), p21=(20, 101))) == set()
    assert below(SUPERVISOR, tree(p20=(WORKER, 1), p21=(21, 1))) == {WORKER, 20}


@given(st.dictionaries(st.integers(12, 40), st.tuples(st.integers(10, 40), st.integers(0, 200)), max_size=25))
def test_only_what_is_below_and_not_older_is_chosen(rows: dict[int, tuple[int, int]]) -> None:
    processes = tree(**{f"p{pid}": born for pid, born in rows.items()})
    found = left(processes)
    assert found <= below(SUPERVISOR, processes) - {WORKER}
    assert all(processes[pid].born > (100, 22) for pid in found)


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


def test_the_table_knows_parents_and_ages() -> None:
    before = now()
    with started("sleep", "100") as process:
        line = table()[process.pid]
        assert line.parent == os.getpid()
        assert before < line.born <= now()
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
    since = now()
    with started("sleep", "100", **{CALL_MARK: "mine"}) as mine, started("sleep", "100") as other:
        found = find_call_processes(
            table(),
            os.getpid(),
            worker=0,
            since=since,
            mark="mine",
            others=frozenset({"other"}),
            unmarked=False,
        )
        assert mine.pid in found
        assert other.pid not in found


def test_what_runs_away_from_process_to_process_is_ended() -> None:
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

        assert runaways()
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

    assert fork_handle.is_below(9, 3, parent_of)
    assert not ending
    assert not fork_handle.is_below(9, 5, parent_of)
    assert not fork_handle.is_below(6, 3, parent_of), "it is gone"
    assert not fork_handle.is_below(9, 3, lambda pid: pid + 1), "there is no end of it"
