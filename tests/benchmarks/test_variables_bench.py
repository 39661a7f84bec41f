"""Kept states of variables: what they cost before a call, in memory, and on the way back."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from aisotools.core.sandboxes import SandboxCall
from aisotools.core.types import ToolCall
from aisotools.sandbox.host import fork_observation
from tests.benchmarks.figures import Figure, show
from tests.benchmarks.peer import RawKernel
from tests.sandbox.rig import PYTHON, Rig, rig
from tests.waiting import eventually

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

MIB = 1 << 20
USUAL_START_MS, USUAL_CELL_MS = 604, 5.7


async def plain(r: Rig, number: int) -> float:
    """Milliseconds of a cell before which nothing is kept."""
    call = ToolCall(f"plain-{number}", "python", {"code": f"x = {number}"})
    began_s = time.perf_counter()
    await r.kernel.call(SandboxCall(call=call, shipment=PYTHON, timeout_s=20, read_only=True))
    return (time.perf_counter() - began_s) * 1000


async def cell_with_snapshot(r: Rig, number: int) -> float:
    """Milliseconds of the same cell with a state kept before it."""
    began_s = time.perf_counter()
    await r.python(f"x = {number}", call_id=f"kept-{number}")
    return (time.perf_counter() - began_s) * 1000


@pytest.mark.parametrize("megabytes", [0, 100])
async def test_a_kept_state(tmp_path: Path, raw: RawKernel, megabytes: int) -> None:
    async with rig(tmp_path) as r:
        if megabytes:
            await r.python(f"import numpy; big = numpy.ones({megabytes} << 17)")
        without = [await plain(r, number) for number in range(60)][10:]
        samples = [await cell_with_snapshot(r, number) for number in range(60)][10:]
        history = r.kernel.variables
        await eventually(lambda: all(fork.settled.done() for fork in history._store.all()))
        memory = [fork_observation.private_bytes(pid) / MIB for pid in history.pids()][2:]
        back, forth = [], []
        for number in range(30):
            await cell_with_snapshot(r, 100 + number)
            began_s = time.perf_counter()
            await history.restore(f"kept-{100 + number}")
            back.append((time.perf_counter() - began_s) * 1000)
            began_s = time.perf_counter()
            await history.redo()
            forth.append((time.perf_counter() - began_s) * 1000)
    state = f" at {megabytes} MB" if megabytes else ""
    usual = Figure(what=f"cell before which nothing is kept{state}", samples=without)
    more = [sample - usual.median for sample in samples]
    figures = [
        usual,
        Figure(what=f"cell with a state kept before it{state}", samples=samples, peer=raw.start_ms),
        Figure(what=f"checkpoint before a call{state}", samples=more, budget=8),
        Figure(what=f"memory per checkpoint{state}", samples=memory, unit="MiB", budget=6),
        Figure(what=f"undo of variables{state}", samples=back, budget=10),
        Figure(what=f"redo of variables{state}", samples=forth),
    ]
    show(*figures)
    assert figures[3].median <= 6
    slow = slowness(raw)
    assert figures[2].median <= 8 * slow
    assert figures[4].median <= 10 * slow


def slowness(raw: RawKernel) -> float:
    """How many times slower than the machine of the budgets this one is just now, by what a kernel takes."""
    cells = []
    for _ in range(20):
        began_s = time.perf_counter()
        raw.execute("1+1")
        cells.append((time.perf_counter() - began_s) * 1000)
    return max(1.0, raw.start_ms / USUAL_START_MS, statistics.median(cells) / USUAL_CELL_MS)


async def test_recovery(tmp_path: Path, raw: RawKernel) -> None:
    """From the end of the grace period, or from the crash, to the next answer, with the state kept."""
    deadline_s, grace_s = 0.2, 0.35
    overdue, crashed = [], []
    async with rig(tmp_path) as r:
        await r.python("x = 7")
        for _ in range(8):
            began_s = time.perf_counter()
            await r.python("x = 8; sum(range(10**10))", timeout_s=deadline_s)
            assert await r.value("x") == 7
            overdue.append((time.perf_counter() - began_s - deadline_s - grace_s) * 1000)
            began_s = time.perf_counter()
            await r.python("x = 8; import os; os.kill(os.getpid(), 11)")
            assert await r.value("x") == 7
            crashed.append((time.perf_counter() - began_s) * 1000)
    show(
        Figure(
            what="uninterruptible call past its deadline and grace, to the next answer",
            samples=overdue,
            budget=50,
        ),
        Figure(what="segmentation fault, from its call to the next answer", samples=crashed),
    )
    assert statistics.median(overdue) <= 50 * slowness(raw)
