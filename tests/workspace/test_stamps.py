"""Stamps of what a call would remove or overwrite."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aisotools.workspace.stamps import (
    MAX_ENTRIES,
    MAX_PATHS,
    UNKNOWN,
    StampReader,
    is_known,
    is_there,
    stamps_of,
)


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


def test_folders_deeper_than_any_path_have_a_stamp(workspace: Path) -> None:
    levels = 500
    folder = os.open(workspace / "out", os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("n" * 20, dir_fd=folder)
        inner = os.open("n" * 20, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    before = stamp(workspace, "out")
    assert is_known(before)
    os.close(os.open("file", os.O_CREAT, dir_fd=folder))
    os.close(folder)
    assert stamp(workspace, "out") != before
    assert is_known(stamp(workspace, "out"))
    subprocess.run(["rm", "-rf", workspace / "out"], check=True)  # deeper than a path goes


def test_a_folder_counts_for_more_than_a_file(workspace: Path) -> None:
    for number in range(MAX_ENTRIES // 3 - 10):
        (workspace / "out" / f"n{number}").mkdir()
    assert is_known(stamp(workspace, "out"))
    for number in range(10):
        (workspace / "out" / f"m{number}").mkdir()
    assert not is_known(stamp(workspace, "out"))


def test_the_stamp_of_nothing_is_told_from_all_others(workspace: Path) -> None:
    assert not is_there(stamp(workspace, "missing"))
    assert is_there(stamp(workspace, "out"))
    assert is_there(stamp(workspace, "out/a"))
    assert is_there(UNKNOWN)


def test_folders_of_a_name_are_left_out(workspace: Path) -> None:
    def look() -> str:
        return StampReader(skips=("deep",)).stamp(str(workspace / "out"))

    before = look()
    (workspace / "out/deep/new").write_text("")
    assert look() == before
    (workspace / "out/new").write_text("")
    assert look() != before


def test_links_count_with_the_file_that_they_lead_to(workspace: Path) -> None:
    def look(*, follows_links: bool = False) -> str:
        return StampReader(follows_links=follows_links).stamp(str(workspace / "out"))

    (workspace / "aim").write_text("a")
    (workspace / "out/link").symlink_to("../aim")
    (workspace / "out/nowhere").symlink_to("missing")
    followed, plain = look(follows_links=True), look()
    (workspace / "aim").write_text("b")
    assert look() == plain
    assert look(follows_links=True) != followed


def test_a_link_to_a_folder_elsewhere_leaves_the_stamp_incomplete(workspace: Path) -> None:
    def look() -> str:
        return StampReader(follows_links=True).stamp(str(workspace / "out"))

    (workspace / "out/beside").symlink_to("deep")
    assert is_known(look()), "that folder is looked at anyway"
    (workspace / "out/above").symlink_to("..")
    assert not is_known(look())


def test_a_file_with_further_names_is_unknown_where_it_has_to_be_one_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder/below").mkdir(parents=True)
    alone = dict(stamps_of(tmp_path, ["file", "folder", "none"], own_names=True))
    assert alone == dict(stamps_of(tmp_path, ["file", "folder", "none"]))
    os.link(tmp_path / "file", tmp_path / "other")
    assert dict(stamps_of(tmp_path, ["file", "other"], own_names=True)) == {"file": UNKNOWN, "other": UNKNOWN}
    assert UNKNOWN not in dict(stamps_of(tmp_path, ["file", "other"])).values()
