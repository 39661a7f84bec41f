"""`aisotools replay`, as somebody runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.agent.agent import Agent
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.agent.transcript.notebook import to_notebook, write_notebook
from aisotools.cli.main import main
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session


@pytest.fixture
async def run(tmp_path: Path, environ: Mapping[str, str]) -> Path:
    async with Session(tmp_path / "w", approver=AllowAll(), environ=environ) as session:
        assert session.workspace is not None
        (session.workspace / "data.txt").write_text("41")
        agent = Agent(
            ScriptedModel(
                [("python", {"code": "x = int(open('data.txt').read()) + 1; print(x)"}), "It is 42."]
            ),
            session,
        )
        await agent.run("Add one.")
        notebook = to_notebook(
            session.events, registry=session.registry, workspace=session.workspace, files={"data.txt": "41"}
        )
    return write_notebook(notebook, tmp_path / "run.ipynb")


def replayed(capsys: Any, *arguments: str) -> tuple[int, str]:
    status = main(["replay", *arguments])
    printed = capsys.readouterr()
    return status, printed.out + printed.err


async def test_a_run_replays_the_same_from_what_its_file_holds(run: Path, capsys: Any) -> None:
    status, told = await asyncio.to_thread(replayed, capsys, str(run))
    assert (status, told.splitlines()) == (0, ["   1 python: the same", "All calls were the same."])


async def test_another_workspace_gives_another_result_and_exit_status_one(
    run: Path, capsys: Any, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "data.txt").write_text("1")
    status, told = await asyncio.to_thread(replayed, capsys, str(run), "--workspace", str(other))
    assert status == 1
    assert "it gave '2', and '42' when recorded" in told
    assert (other / "data.txt").read_text() == "1"


def test_what_cannot_be_replayed_is_told_in_one_line(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "x.ipynb").write_text("{}")
    status, told = replayed(capsys, str(tmp_path / "x.ipynb"))
    assert status == 1
    assert told.startswith("aisotools replay: ")
    assert "is no record of a run" in told


async def test_tools_must_name_a_module(run: Path, capsys: Any) -> None:
    status, told = replayed(capsys, str(run), "--tools", "nomodule")
    assert (status, "write MODULE:NAME" in told) == (1, True)
    status, told = replayed(capsys, str(run), "--tools", "no_such_module_here:x")
    assert (status, "cannot be had" in told) == (1, True)
