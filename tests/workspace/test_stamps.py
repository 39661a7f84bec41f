"""Stamps of what a call would remove or overwrite."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aisotools.workspace.stamps import MAX_ENTRIES, MAX_PATHS, UNKNOWN, is_known, stamps_of


def stamp(workspace: Path, path: str) -> str:
    return dict(stamps_of(workspace, [path]))[path]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "out" / "deep").mkdir(parents=True)
    (tmp_path / "out" / "a").write_text("a")
    (tmp_path / "out" / "deep" / "b").write_text("b")
    return tmp_path


def _same_size_and_times(workspace: Path) -> None:
    file = workspace / "out/a"
    times = file.stat()
    file.write_text("X")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda workspace: (workspace / "out/a").write_text("other"),
    "content of the same size and time": _same_size_and_times,
    "another file of the name": lambda workspace: (
        (workspace / "out/a").rename(workspace / "kept"),
        (workspace / "out/a").write_text("a"),
    ),
    "removed": lambda workspace: (workspace / "out/a").unlink(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_a_file_changes_its_stamp_and_that_of_its_folder(
    workspace: Path, change: Callable[[Path], object]
) -> None:
    before = stamps_of(workspace, ["out/a", "out"])
    assert stamps_of(workspace, ["out", "out/a"]) == before, "the control: nothing has changed"
    change(workspace)
    after = stamps_of(workspace, ["out/a", "out"])
    assert all(one != other for one, other in zip(before, after, strict=True))


def test_a_new_file_far_below_changes_the_stamp_of_a_folder(workspace: Path) -> None:
    before = stamp(workspace, "out")
    (workspace / "out" / "deep" / "new").write_text("")
    assert stamp(workspace, "out") != before


def test_missing_files_have_a_stamp_and_links_are_not_followed(workspace: Path) -> None:
    assert stamp(workspace, "missing") == stamp(workspace, "out/a/x")
    (workspace / "link").symlink_to("out")
    before = stamp(workspace, "link")
    (workspace / "out" / "new").write_text("")
    assert stamp(workspace, "link") == before


def test_names_that_are_no_text(workspace: Path) -> None:
    (workspace / "out" / os.fsdecode(b"\xff")).write_text("")
    assert is_known(stamp(workspace, "out"))


def test_more_than_is_looked_at_is_not_known(workspace: Path) -> None:
    assert dict(stamps_of(workspace, map(str, range(MAX_PATHS + 1))))["..."] == UNKNOWN
    for number in range(MAX_ENTRIES):
        (workspace / "out" / f"n{number}").touch()
    found = stamp(workspace, "out")
    assert not is_known(found)
    assert stamp(workspace, "a\0") == UNKNOWN
