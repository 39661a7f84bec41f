"""Whose a process is, in tables that are made up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection

import pytest
from hypothesis import given, strategies as st
from pydantic_core import from_json, to_json

from aisotools.sandbox.process import ownership, tree
from aisotools.sandbox.process.ownership import (
    CallStart,
    StopScope,
    TaskKeepers,
    find_expected,
    find_sweepable,
)
from aisotools.sandbox.process.tree import Process

SUPERVISOR, WORKER = 10, 11


def table(**rows: int | tuple[int, int] | tuple[int, int, int]) -> dict[int, Process]:
    """Processes `p20=parent`, or with their session and start, beside a supervisor and its worker."""
    made = {1: Process(0), SUPERVISOR: Process(1), WORKER: Process(SUPERVISOR, session=SUPERVISOR)}
    for name, row in rows.items():
        given: tuple[int, ...] = row if isinstance(row, tuple) else (row,)
        session, ticks = [*given[1:], *[SUPERVISOR, 0][len(given) - 1 :]]
        made[int(name[1:])] = Process(given[0], session=session, start_ticks=ticks)
    return made


def sweepable(
    processes: dict[int, Process],
    keepers: Collection[int] = (),
    exempt: Collection[int] = (),
    **scope: object,
) -> set[int]:
    return find_sweepable(
        processes,
        SUPERVISOR,
        worker=WORKER,
        scope=StopScope(**scope),  # type: ignore[arg-type]  # the tests name its fields
        keepers=keepers,
        exempt=exempt,
        number_inside=lambda pid: pid - 10,
    )


def test_a_sweep_finds_processes_wherever_they_hide() -> None:
    processes = table(
        p20=WORKER,
        p21=20,
        p22=SUPERVISOR,  # a daemon: its parents are gone
        p23=22,
        p24=23,
        p25=1,  # not below the supervisor
    )
    assert sweepable(processes) == {20, 21, 22, 23, 24}


@given(st.dictionaries(st.integers(12, 40), st.integers(10, 40), max_size=25))
def test_with_nothing_to_spare_everything_below_is_found(parents: dict[int, int]) -> None:
    processes = table(**{f"p{pid}": parent for pid, parent in parents.items()})
    assert sweepable(processes) == tree.below(SUPERVISOR, processes) - {WORKER}


def test_the_worker_is_never_found_and_rings_do_not_hang() -> None:
    assert sweepable(table()) == set()
    assert sweepable(table(p20=21, p21=20)) == set()


def test_a_task_is_what_is_below_its_keeper() -> None:
    processes = table(p20=WORKER, p21=(20, 21), p22=(20, 22), p23=(22, 23), p30=(SUPERVISOR, 21))
    assert sweepable(processes, keepers=[20]) == {30}  # to have been in a session of it is not enough
    assert sweepable(processes) == {20, 21, 22, 23, 30}
    assert sweepable(processes, keepers=[99]) == {20, 21, 22, 23, 30}


def test_a_program_of_another_call_is_spared_with_its_session_and_what_is_below() -> None:
    processes = table(
        p20=(WORKER, 20),
        p21=(20, 20),
        p22=(20, 22),  # in a session of its own, and still below
        p23=(SUPERVISOR, 20),  # an orphan that has stayed in the session
        p24=(23, 24),
        p25=(SUPERVISOR, 25),  # an orphan in a session of its own
        p26=(WORKER, 26),
    )
    assert sweepable(processes, programs=(10,)) == {25, 26}


def test_only_a_child_of_the_worker_can_be_a_program_of_a_call() -> None:
    processes = table(p20=(SUPERVISOR, 20), p21=(WORKER, 21), p22=(21, 22))
    assert sweepable(processes, programs=(10, 12)) == {20, 21, 22}


def test_programs_that_a_call_may_have_started_unnamed_are_spared_if_they_are_younger() -> None:
    processes = table(
        p20=(WORKER, 10, 99),
        p21=(WORKER, 10, 100),  # was there when the call began
        p22=(WORKER, 10, 100),
        p23=(WORKER, 10, 101),
        p24=(23, 24, 102),
        p25=(SUPERVISOR, 10, 103),  # an orphan
    )
    start = CallStart(ticks=100, children=frozenset({20, 21}))
    assert sweepable(processes, starts=(start,)) == {20, 21, 25}
    assert sweepable(processes, starts=(CallStart(ticks=100),)) == {20, 21, 22, 25}
    assert sweepable(processes, starts=(start,), until_ticks=101) == {20, 21, 23, 24, 25}
    assert sweepable(processes, starts=(start, CallStart(ticks=98))) == {25}


def test_one_program_is_spared_for_each_call_that_has_not_named_its_own_yet() -> None:
    """The youngest one, whatever the stopped call may have started, and with what is below it."""
    processes = table(
        p20=(WORKER, 10, 100),
        p21=(WORKER, 10, 100),
        p22=(WORKER, 10, 101),
        p23=(WORKER, 23, 101),
        p24=(23, 24, 102),
        p25=(SUPERVISOR, 23, 103),  # an orphan that has stayed in the session
        p26=(SUPERVISOR, 26, 103),
    )
    start = CallStart(ticks=100, children=frozenset({20}))
    assert sweepable(processes, expected=(start,), until_ticks=1) == {20, 21, 22, 26}
    assert sweepable(processes, expected=(start, start)) == {20, 21, 26}
    assert sweepable(processes, expected=(start,) * 9) == {20, 26}
    assert sweepable(processes, expected=(CallStart(ticks=101),)) == {20, 21, 22, 23, 24, 25, 26}
    assert sweepable(processes, expected=(start,), programs=(13,)) == {20, 21, 26}, "it is another one's"
    assert sweepable(processes, expected=(start,), own=13) == {20, 21, 23, 24, 25, 26}
    assert sweepable(processes, keepers=[23], expected=(start,)) == {20, 21, 25, 26}
    assert sweepable(processes, starts=(CallStart(ticks=100),), expected=(start,)) == {20, 25, 26}


@pytest.mark.parametrize(
    ("scope", "keepers", "found"),
    [
        (StopScope(), (), set()),
        (StopScope(expected=(CallStart(ticks=99),)), (), {22}),
        (StopScope(expected=(CallStart(ticks=99),)), (22,), {21}),
        (StopScope(expected=(CallStart(ticks=99),), programs=(12,)), (), {21}),
        (StopScope(expected=(CallStart(ticks=99),), own=12), (), {21}),
        (StopScope(expected=(CallStart(ticks=99),), starts=(CallStart(ticks=101),)), (), {21}),
    ],
)
def test_programs_that_may_still_be_named_are_found_as_they_are_spared(
    scope: StopScope, keepers: tuple[int, ...], found: set[int]
) -> None:
    processes = table(p20=(WORKER, 10, 100), p21=(WORKER, 10, 101), p22=(WORKER, 10, 102))
    assert (
        find_expected(
            processes, worker=WORKER, scope=scope, keepers=keepers, number_inside=lambda pid: pid - 10
        )
        == found
    )


def test_a_program_that_the_stopped_call_has_named_is_never_spared_as_unnamed() -> None:
    processes = table(p20=(WORKER, 20, 100), p21=(WORKER, 21, 100))
    assert sweepable(processes, starts=(CallStart(ticks=50),), own=10) == {20}


def test_exempt_processes_spare_nothing_below_them() -> None:
    processes = table(p20=WORKER, p21=20, p22=21)
    assert sweepable(processes, exempt=(20,)) == {21, 22}
    assert sweepable(processes, exempt=(20,), programs=(10,)) == {21, 22}
    assert sweepable(processes, exempt=(20,), starts=(CallStart(ticks=-1),)) == {21, 22}


@given(
    st.builds(
        StopScope,
        programs=st.lists(st.integers(2, 99)).map(tuple),
        own=st.integers(0, 99),
        own_task=st.text(),
        starts=st.lists(
            st.builds(CallStart, ticks=st.integers(), children=st.none() | st.frozensets(st.integers(1, 99)))
        ).map(tuple),
        expected=st.lists(st.builds(CallStart, ticks=st.integers())).map(tuple),
        until_ticks=st.none() | st.integers(),
    )
)
def test_a_scope_is_read_as_it_was_written(scope: StopScope) -> None:
    assert StopScope.parse(scope.as_json()) == scope


def test_a_scope_fits_into_a_packet_however_many_children_the_worker_has() -> None:
    starts = tuple(CallStart(ticks=n, children=frozenset(range(4_000_000, 4_000_600))) for n in range(50))
    scope = StopScope(starts=starts, expected=starts)
    packet = to_json(scope.as_json())
    assert len(packet) < 1 << 16
    read = StopScope.parse(from_json(packet))
    assert [start.ticks for start in read.starts + read.expected] == [*range(50), *range(50)]
    assert read.starts[:6] == starts[:6]
    assert {start.children for start in read.starts[6:] + read.expected} == {None}


# ---- keepers, with real processes


def test_a_keeper_is_a_child_of_the_worker_and_the_first_one_counts() -> None:
    keepers = TaskKeepers()
    with subprocess.Popen(["sleep", "100"]) as one, subprocess.Popen(["sleep", "100"]) as two:
        keepers.add("a", one.pid, os.getppid())
        assert keepers.pids(tree.table()) == set()
        keepers.add("a", one.pid, os.getpid())
        keepers.add("a", two.pid, os.getpid())
        assert keepers.pids(tree.table()) == {one.pid}
        assert keepers.pids(tree.table(), but="a") == set()
        one.kill()
        two.kill()
    assert keepers.pids(tree.table()) == set()


def test_another_process_with_the_number_of_a_keeper_is_none() -> None:
    keepers = TaskKeepers()
    with subprocess.Popen(["sleep", "100"]) as process:
        keepers.add("a", process.pid, os.getpid())
        processes = tree.table()
        assert keepers.pids(processes) == {process.pid}
        later = processes[process.pid]._replace(start_ticks=processes[process.pid].start_ticks + 1)
        assert keepers.pids(processes | {process.pid: later}) == set()
        process.kill()


def test_processes_below_a_keeper_are_found_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    keepers = TaskKeepers()
    with subprocess.Popen(["sh", "-c", "sleep 100; true"]) as keeper:
        keepers.add("a", keeper.pid, os.getpid())
        while not (found := keepers.below(keeper.pid)):
            pass
        assert found == tree.descendants(keeper.pid)
        assert keepers.below(os.getpid()) == set()
        monkeypatch.setattr(ownership, "MAX_TASKS", 1)
        keepers.add("b", keeper.pid, os.getpid())
        assert keepers.pids(tree.table(), but="a") == set()
        for pid in (*found, keeper.pid):
            os.kill(pid, 9)
