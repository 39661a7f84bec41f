"""Sessions of every kind, recorded, exported, read back, and made again: the same calls, the same results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from aisotools.agent.replay import RecordedApprover, Replayed, replay
from aisotools.agent.transcript.metadata import Transcript, read_transcript
from aisotools.builtin import builtin_tools
from aisotools.notebook.magics.export import export_session
from aisotools.session.session import Session
from aisotools.tools.registry import ToolRegistry
from tests.agent.recorded_runs import FILES, RUNS, TOOLS


def fill(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


async def recorded(name: str, folder: Path, environ: Mapping[str, str]) -> Transcript:
    run = RUNS[name]()
    registry = ToolRegistry([*builtin_tools(), *TOOLS])
    session = Session(
        fill(folder / "work", FILES),
        registry=registry,
        approver=run.approver,
        policy=run.policy,
        environ=environ,
    )
    async with session:
        await run.work(session)
        assert len(session.events) > 3
        summary = export_session(session, folder / "run.ipynb")
    assert (summary.embedded, summary.missing) == (2, ())
    return read_transcript(folder / "run.ipynb")


async def again(transcript: Transcript, folder: Path, environ: Mapping[str, str]) -> Replayed:
    session = Session(
        fill(folder / "again", transcript.files),
        registry=ToolRegistry([*builtin_tools(), *TOOLS]),
        approver=RecordedApprover(transcript),
        environ=environ,
    )
    async with session:
        return await replay(transcript, session)


def test_there_are_twenty_of_them() -> None:
    assert len(RUNS) >= 20


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", RUNS)
async def test_a_recorded_run_replays_identical_in_calls_and_results(
    name: str, tmp_path: Path, environ: Mapping[str, str]
) -> None:
    transcript = await recorded(name, tmp_path, environ)
    assert transcript.calls
    replayed = await again(transcript, tmp_path, environ)
    assert [one for one in replayed.calls if one.difference] == []
    assert len(replayed.calls) == len(transcript.calls)
    assert replayed.ends == ()


async def test_a_page_that_changed_is_a_difference(tmp_path: Path, environ: Mapping[str, str]) -> None:
    transcript = await recorded("strangers", tmp_path, environ)
    changed = [
        dataclasses.replace(call, content=call.content.replace("page 1", "page 9"))
        for call in transcript.calls
    ]
    replayed = await again(dataclasses.replace(transcript, calls=changed), tmp_path, environ)
    assert len([one for one in replayed.calls if one.difference]) == 2
