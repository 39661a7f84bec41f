"""A recording is read strictly, whoever wrote the file, and what leaves this machine holds no secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aisotools.agent.transcript.metadata import (
    FORMAT,
    Cleaner,
    RecordedMove,
    RecordedRewind,
    read_transcript,
)
from aisotools.core.exceptions import UsageError
from aisotools.core.types import ToolResult
from aisotools.tools.registry import ToolRegistry


def notebook(tmp_path: Path, *steps: Any, **record: Any) -> Path:
    fields = {"format": FORMAT, "steps": list(steps), "files": {}, "tools": [], **record}
    path = tmp_path / "run.ipynb"
    path.write_text(json.dumps({"metadata": {"aisotools": fields}}))
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a notebook"),
        ("[" * 100_000, "is not a notebook"),
        ("[]", "is not a record of a run"),
        ("{}", "is not a record of a run"),
        ('{"metadata": {"aisotools": {}}}', "is not a record of a run"),
        ('{"metadata": {"aisotools": {"steps": [], "format": -1}}}', "has format -1"),
    ],
)
def test_files_that_hold_no_recording(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "run.ipynb"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_transcript(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_transcript(tmp_path / "none.ipynb")


@pytest.mark.parametrize(
    "step",
    [
        {},
        {"kind": "call"},
        {"kind": "undo", "call_ids": [], "steps": 1, "forced": False},
        {"kind": "undo", "call_ids": ["a"], "steps": "1", "forced": False},
        {"kind": "undo", "call_ids": [1], "steps": 1, "forced": False},
        {"kind": "rewind", "agent_id": "a", "step": "1"},
        "call",
    ],
)
def test_a_damaged_step_is_an_error(tmp_path: Path, step: Any) -> None:
    with pytest.raises(UsageError, match="is damaged"):
        read_transcript(notebook(tmp_path, step))


@pytest.mark.parametrize("record", [{"files": {"a": 1}}, {"tools": [1]}, {"missing": [None]}])
def test_damaged_fields_are_an_error(tmp_path: Path, record: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is damaged"):
        read_transcript(notebook(tmp_path, **record))


def test_undo_and_redo_are_steps(tmp_path: Path) -> None:
    steps = [
        {"kind": "undo", "call_ids": ["b", "a"], "steps": 2, "forced": False},
        {"kind": "redo", "call_ids": ["a"], "steps": 0, "forced": True, "files_only": True},
    ]
    assert read_transcript(notebook(tmp_path, *steps)).steps == (
        RecordedMove(direction="undo", call_ids=("b", "a"), steps=2, forced=False),
        RecordedMove(direction="redo", call_ids=("a",), steps=1, forced=True, files_only=True),
    )


def test_a_move_counts_calls_with_those_inside_them() -> None:
    move = RecordedMove(direction="redo", call_ids=("a/1", "a", "b", "c/2"), steps=1)
    assert move.count == 3


def test_only_true_forces(tmp_path: Path) -> None:
    (step,) = read_transcript(
        notebook(tmp_path, {"kind": "undo", "call_ids": ["a"], "steps": 1, "forced": "yes"})
    ).steps
    assert isinstance(step, RecordedMove)
    assert not step.forced


def test_a_rewind_is_a_step(tmp_path: Path) -> None:
    steps = read_transcript(notebook(tmp_path, {"kind": "rewind", "agent_id": "a", "step": 2})).steps
    assert steps == (RecordedRewind(agent_id="a", step=2),)


TOKEN = "ghp_" + "a1B2" * 9  # the form of a GitHub token, which redaction knows


def test_secrets_and_the_folder_of_this_machine_are_taken_out() -> None:
    cleaner = Cleaner(ToolRegistry(), "/somewhere/ada/project/")
    text = f"in /somewhere/ada/project/a.txt with {TOKEN}"
    assert TOKEN not in cleaner.clean(text)
    assert "/somewhere/ada" not in cleaner.clean(text)
    assert cleaner.arguments("any", {"path": "/somewhere/ada/project/x"})["path"].endswith("/x")
    result = ToolResult.text("ok").with_metadata(note=text)
    cleaned = cleaner.result(result)
    assert "ada" not in str(cleaned.metadata)
    assert cleaned.content == "ok"


def test_a_clean_result_and_pictures_stay_as_they_are() -> None:
    cleaner = Cleaner(ToolRegistry(), "/somewhere/ada")
    result = ToolResult.text("nothing to hide")
    assert cleaner.result(result) is result
