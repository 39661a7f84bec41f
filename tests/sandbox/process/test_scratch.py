"""Scratch folders: their names, how they are made, and that nothing in them resists removal."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from aisotools.sandbox.process.scratch import make_scratch, remove_folder, scratch_prefix


def test_the_prefix_names_the_fork_server_and_no_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert scratch_prefix(str(tmp_path / "link"), 12) == f"{tmp_path.resolve()}/aisotools-12-"


def test_a_scratch_folder_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    before = os.umask(0)
    try:
        make_scratch(str(folder))
    finally:
        os.umask(before)
    assert {path.name for path in folder.iterdir()} == {"home", "tmp"}
    for path in (folder, *folder.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_scratch_folder_of_somebody_else_is_not_used(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "scratch"
    if kind == "folder":
        folder.mkdir()
    else:
        folder.symlink_to(tmp_path)
    with pytest.raises(FileExistsError):
        make_scratch(str(folder))
    assert not (folder / "home").exists()


def test_a_folder_is_removed_whatever_is_in_it(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("mine")
    folder = tmp_path / "scratch"
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/file").write_text("x")
    (folder / "link").symlink_to(victim)
    (folder / "a/link").symlink_to(victim / "file")
    (folder / "a/loop").symlink_to(folder)
    os.mkfifo(folder / "a/fifo")
    os.link(victim / "file", folder / "hard")
    (folder / "\udcff\n").mkdir()
    for locked in ("a/b", "a"):
        (folder / locked).chmod(0)
    (folder / "locked").mkdir(0)
    folder.chmod(0o500)
    remove_folder(str(folder))
    assert not folder.exists()
    assert (victim / "file").read_text() == "mine"
    assert [entry.name for entry in victim.iterdir()] == ["file"]


def test_depth_costs_neither_recursion_nor_descriptors(tmp_path: Path) -> None:
    here = Path.cwd()
    folder = tmp_path / "scratch"
    folder.mkdir()
    try:
        os.chdir(folder)
        for _ in range(1_200):  # more than Python calls may be nested, and than a path may be long
            Path("deep").mkdir()
            os.chdir("deep")
            Path("file").write_text("x")
    finally:
        os.chdir(here)
    remove_folder(str(folder))
    assert not folder.exists()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    remove_folder(str(tmp_path / "missing"))
