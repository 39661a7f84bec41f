"""Checkouts and environments in a workspace, and those of a session; `test_lock` has the refusals."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from aisotools.workspace.checkouts import SCAN_DEPTH, find_unexpected, note_made


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "notes").mkdir()
    return tmp_path / "workspace"


@pytest.fixture
def notes(workspace: Path) -> Path:
    return workspace.parent / "notes"


@pytest.mark.parametrize(
    ("mark", "what"),
    [
        (".git", "a git checkout"),
        ("pyvenv.cfg", "a virtual environment"),
        ("conda-meta", "a conda environment"),
    ],
)
def test_topmost_one_is_found(workspace: Path, notes: Path, mark: str, what: str) -> None:
    assert find_unexpected(workspace, notes) is None
    deep = workspace.joinpath(*"d" * SCAN_DEPTH)
    (deep / mark).mkdir(parents=True)
    assert find_unexpected(workspace, notes) == (what, deep)
    (workspace / "d" / mark).touch()
    assert find_unexpected(workspace, notes) == (what, workspace / "d")


def test_checkout_of_a_session_is_expected_and_a_later_one_is_not(workspace: Path, notes: Path) -> None:
    note_made(workspace, notes)
    assert not list(notes.iterdir())  # there is nothing to note
    (workspace / ".git").mkdir()
    (workspace / "a" / "conda-meta").mkdir(parents=True)
    note_made(workspace, notes)
    assert find_unexpected(workspace, notes) is None
    (workspace / "b" / ".git").mkdir(parents=True)
    assert find_unexpected(workspace, notes) == ("a git checkout", workspace / "b")
    (workspace / "b" / ".git").rmdir()
    (workspace / "a" / "conda-meta").rename(workspace / "conda-meta")
    assert find_unexpected(workspace, notes) == (
        "a conda environment",
        workspace,
    )  # moved
    (workspace / "conda-meta").rmdir()
    (workspace / ".git").rmdir()
    note_made(workspace, notes)
    assert json.loads((notes / "made").read_text()) == []


def test_note_that_cannot_be_written_is_logged_and_refuses_the_next_session(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (workspace / ".git").mkdir()
    with caplog.at_level(logging.WARNING):
        note_made(workspace, workspace.parent / "missing")
    assert "cannot be noted: No such file" in caplog.text.replace("[Errno 2] ", "")
    assert find_unexpected(workspace, workspace.parent / "missing") is not None


def test_name_that_is_no_text_is_noted_as_well(workspace: Path, notes: Path) -> None:
    folder = workspace / "a\udcff"
    (folder / ".git").mkdir(parents=True)
    note_made(workspace, notes)
    assert find_unexpected(workspace, notes) is None
