"""`aisotools replay`, as somebody runs it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.agent.agent import Agent
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.agent.replay import Comparison, Replayed
from aisotools.agent.transcript.metadata import Transcript, read_transcript
from aisotools.agent.transcript.notebook import to_notebook, write_notebook
from aisotools.cli import replay
from aisotools.cli.main import main
from aisotools.core.exceptions import UsageError, WorkspaceError
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.testing.fakes import MockTool


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
    status, output = await asyncio.to_thread(replayed, capsys, str(run))
    assert (status, output.splitlines()) == (0, ["   1 python: the same", "All calls were the same."])


async def test_another_workspace_gives_another_result_and_exit_status_one(
    run: Path, capsys: Any, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "data.txt").write_text("1")
    status, output = await asyncio.to_thread(replayed, capsys, str(run), "--workspace", str(other))
    assert status == 1
    assert "it gave '2', and '42' when recorded" in output
    assert (other / "data.txt").read_text() == "1"


def test_file_that_cannot_be_replayed_is_reported_in_one_line(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "x.ipynb").write_text("{}")
    status, output = replayed(capsys, str(tmp_path / "x.ipynb"))
    assert status == 1
    assert output.startswith("aisotools replay: ")
    assert "is not a record of a run" in output


async def test_tools_must_name_a_module(run: Path, capsys: Any) -> None:
    status, output = replayed(capsys, str(run), "--tools", "nomodule")
    assert (status, "write MODULE:NAME" in output) == (1, True)
    status, output = replayed(capsys, str(run), "--tools", "no_such_module_here:x")
    assert (status, "cannot be imported" in output) == (1, True)


# -- the parts


def printed(replayed_run: Replayed, *missing: str) -> tuple[int, list[str]]:
    lines: list[str] = []
    status = replay.print_comparison(replayed_run, missing, lines.append)
    return status, lines


def test_a_difference_is_printed_and_is_status_one() -> None:
    same = Comparison(number=1, name="file")
    different = Comparison(number=2, name="python", difference="it gave '2'")
    added = Comparison(number=0, name="undo", difference="it failed")
    assert printed(Replayed(calls=[same, different, added])) == (
        1,
        ["   1 file: the same", "   2 python: it gave '2'", "     undo: it failed", "3 calls, 2 different."],
    )


def test_differences_outside_calls_are_printed_with_status_zero() -> None:
    replayed_run = Replayed(calls=[], ends=["budget"], missing=["big.bin"])
    assert printed(replayed_run, "mine", "yours") == (
        0,
        [
            "Not in the file, though it was in the workspace: big.bin",
            "A run ended without an answer: budget",
            "Tools that are not registered: mine, yours. Add them with --tools MODULE:NAME.",
            "All calls were the same.",
        ],
    )


@pytest.fixture
async def transcript(run: Path) -> Transcript:
    return read_transcript(run)


async def test_the_workspace_gets_the_files_of_the_record(transcript: Transcript, tmp_path: Path) -> None:
    replay._fill_workspace(tmp_path / "fresh", None, transcript)
    assert {path.name: path.read_text() for path in (tmp_path / "fresh").iterdir()} == {"data.txt": "41"}


async def test_a_record_cannot_write_outside_the_workspace(transcript: Transcript, tmp_path: Path) -> None:
    hostile = dataclasses.replace(transcript, files={"../escaped.txt": "x"})
    with pytest.raises(WorkspaceError):
        replay._fill_workspace(tmp_path / "fresh", None, hostile)
    assert not (tmp_path / "escaped.txt").exists()


async def test_a_folder_to_copy_must_be_one_and_not_too_large(transcript: Transcript, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'.*gone' is not a folder"):
        replay._fill_workspace(tmp_path / "fresh", tmp_path / "gone", transcript)
    large = tmp_path / "large"
    large.mkdir()
    with (large / "sparse").open("wb") as file:
        file.truncate((256 << 20) + (1 << 20))
    with pytest.raises(UsageError, match="has 257 MiB; at most 256 MiB are copied"):
        replay._fill_workspace(tmp_path / "fresh", large, transcript)
    assert not (tmp_path / "fresh").exists()


EXTRA = [MockTool("extra")]


def test_tools_are_added_to_the_built_in_ones() -> None:
    assert "extra" in replay._registry(f"{__name__}:EXTRA")
    assert "python" in replay._registry(f"{__name__}:EXTRA")
    assert "extra" not in replay._registry(None)
