"""What the host says about the programs of calls."""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import Any

import pytest

from aisotools.core.protocols import Programs
from aisotools.sandbox.host import programs
from aisotools.sandbox.host.calls import PendingCall
from aisotools.sandbox.host.programs import ProgramRequests, note_start, scope_of, wait_for_names
from aisotools.sandbox.process import tree
from aisotools.sandbox.process.ownership import CallStart
from aisotools.sandbox.results import PrintedOutput


def call(number: int, kind: Programs, *, program: int = 0, starts_task: bool = False) -> PendingCall:
    return PendingCall(
        call_id=f"c{number}",
        number=number,
        future=asyncio.get_running_loop().create_future(),
        output=PrintedOutput(0),
        holds_main_thread=kind == "any",
        programs=kind,
        start=None if kind == "none" else CallStart(ticks=number),
        program=program,
        starts_task=starts_task,
    )


async def test_named_programs_of_others_are_spared_and_a_call_has_no_others() -> None:
    python, bash, files = call(1, "any"), call(2, "named", program=7), call(3, "none")
    calls = [python, bash, files]
    assert scope_of(bash, calls).as_json() == {
        "programs": [],
        "own": 7,
        "own_task": "",
        "starts": [[1, None]],
        "expected": [],
        "until": None,
    }
    assert scope_of(python, calls).as_json() == {
        "programs": [7],
        "own": 0,
        "own_task": "",
        "starts": [],
        "expected": [],
        "until": 1,
    }
    assert (scope_of(files, calls).programs, scope_of(files, calls).until_ticks) == ((7,), None)


async def test_a_call_that_has_not_named_its_program_yet_may_have_started_one() -> None:
    late, other = call(1, "named"), call(2, "named", program=8, starts_task=True)
    assert scope_of(other, [late, other]).expected == (CallStart(ticks=1),)
    assert scope_of(other, [late, other]).starts == ()
    late.future.set_result(())
    assert scope_of(other, [late, other]).expected == ()
    late = call(1, "named")
    assert scope_of(other, [late, other]).own_task == "2"
    assert scope_of(late, [late, other]).until_ticks == 1


async def test_names_are_awaited_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other, over = call(1, "any"), call(2, "named"), call(3, "named")
    waiting = asyncio.ensure_future(wait_for_names(mine, [mine, other, over]))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert other.on_named is not None
    other.on_named.set_result(None)
    over.future.set_result(())
    await waiting
    await wait_for_names(mine, [mine, over, call(4, "named", program=5), call(5, "none"), call(6, "any")])
    monkeypatch.setattr(programs, "_NAMING_S", 0)
    await wait_for_names(mine, [mine, call(7, "named")])


async def test_only_keepers_of_tasks_are_passed_on() -> None:
    sent: list[Any] = []
    requests = ProgramRequests(sent.append)
    requests.note_program(call(1, "named", program=7))
    requests.note_program(call(2, "named", program=8, starts_task=True))
    requests.stop(8, kill=False)
    assert sent == [
        {"op": "task", "key": "2", "pid": 8},
        {"op": "stop_program", "pid": 8, "kill": False},
    ]


def test_a_start_tells_older_children_from_younger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "100"]) as older:
        start = note_start(os.getpid())
        assert start.children is None or older.pid in start.children
        with subprocess.Popen(["sleep", "100"]) as younger:
            table = tree.table()
            assert not start.is_before(older.pid, table[older.pid])
            assert start.children is None or start.is_before(younger.pid, table[younger.pid])
            younger.kill()
        monkeypatch.setattr(programs, "_LIST_BYTES", 1)
        assert note_start(os.getpid()).children is None
        older.kill()


def test_the_children_of_a_worker_that_is_gone_are_not_known() -> None:
    assert note_start(2**22 + 1).children is None
