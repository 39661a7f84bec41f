"""What it costs to export a long run, and to read the ledger of one back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from aisotools.agent.agent import Agent
from aisotools.agent.budgets import Budgets
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.agent.resume import resumed
from aisotools.notebook.magics.export import export_session
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox
from tests.benchmarks.figures import Figure, show

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

STEPS, ROUNDS = (30, 100, 300), 5


async def a_run(folder: Path, environ: Mapping[str, str], steps: int) -> Session:
    """A closed session in which an agent read and wrote files by turns."""
    session = Session(
        folder, approver=AllowAll(), environ=environ, sandbox=FakeSandbox, session_key=f"s{steps}"
    )
    async with session:
        assert session.workspace is not None
        (session.workspace / "data.csv").write_text("city,people\n" + "Berlin,3.7\n" * 200)
        write = {"operation": "write", "path": "a.txt", "content": "line\n" * 40}
        turns = [("file", write), ("file", {"operation": "read", "path": "data.csv"})] * (steps // 2)
        model = ScriptedModel([*turns, "**Done.**"])
        result = await Agent(model, session, budgets=Budgets(steps=None, calls=None)).run("go")
        assert (result.ok, result.calls) == (True, steps)
        export_session(session, folder.parent / "first.ipynb")  # what is imported once
    return session


def timed(work: Callable[[], object]) -> list[float]:
    """Seconds of several rounds."""
    took = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        work()
        took.append(time.perf_counter() - began_s)
    return took


async def test_exports_of_long_runs(tmp_path: Path, environ: Mapping[str, str]) -> None:
    """A transcript of 300 steps within a second, and no more per step than one of 30."""
    figures = []
    for steps in STEPS:
        session = await a_run(tmp_path / f"w{steps}", environ, steps)
        path = tmp_path / f"run{steps}"
        for ending in ("ipynb", "html"):
            target = path.with_suffix(f".{ending}")
            took = timed(lambda session=session, target=target: export_session(session, target))  # type: ignore[misc]  # bound now
            in_ms = [1_000 * one for one in took]
            budget = 1_000.0 if steps == 300 else None
            figures.append(Figure(what=f"{steps} steps as .{ending}", samples=in_ms, budget=budget))
        took = timed(lambda steps=steps: resumed(f"s{steps}", environ))  # type: ignore[misc]  # bound now
        figures.append(Figure(what=f"{steps} steps resumed", samples=[1_000 * one for one in took]))
    show(*figures)
    medians = {figure.what: figure.median for figure in figures}
    for ending in ("ipynb", "html"):
        assert medians[f"300 steps as .{ending}"] <= 1_000
        assert medians[f"300 steps as .{ending}"] / 300 <= 2 * medians[f"30 steps as .{ending}"] / 30
