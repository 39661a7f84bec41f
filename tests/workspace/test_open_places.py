"""Where open workspaces are now, as far as no mount is needed to tell; those are in test_import_roots."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aisotools.workspace.open_places import OpenPlaces


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def test_places_follow_the_folder_and_each_change_is_told_once(tmp_path: Path) -> None:
    changes: list[str] = []
    places = OpenPlaces(changes.append)
    assert not places
    first, last = tmp_path / "above" / "ws", tmp_path / "there" / "moved"
    first.mkdir(parents=True)
    (tmp_path / "link").symlink_to(first)
    folder = places.add(tmp_path / "link")
    assert places
    assert places.find() == (frozenset((str(first),)), frozenset((identity(first),)))
    first.rename(tmp_path / "above" / "moved")
    (tmp_path / "above").rename(tmp_path / "there")
    expected = frozenset((str(first), str(last))), frozenset((identity(last),))
    assert places.find() == expected, "another may be in its place"
    assert places.find() == places.find()
    places.remove(folder)
    assert not places
    assert places.find() == (frozenset(), frozenset())
    assert changes.count(str(first)) == changes.count(str(last)) == 2, "there, and gone"


def test_folder_opened_twice_is_held_by_one_descriptor_until_both_have_closed(tmp_path: Path) -> None:
    before = open_files()
    places = OpenPlaces(lambda _: None)
    folders = [places.add(tmp_path), places.add(tmp_path)]
    assert open_files() == before + 1
    places.remove(folders[0])
    assert places.find()[0] == {str(tmp_path)}
    places.remove(folders[1])
    assert open_files() == before
    with pytest.raises(FileNotFoundError):
        places.add(tmp_path / "none")
    assert not places
    assert open_files() == before


def test_folder_that_is_gone_is_looked_for_where_it_was(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    places = OpenPlaces(lambda _: None)
    folder = places.add(workspace)
    workspace.rmdir()
    assert places.find()[0] == {str(workspace)}
    places.remove(folder)


def test_descriptor_that_is_of_another_file_now_tells_nothing(tmp_path: Path) -> None:
    workspace, other = tmp_path / "ws", tmp_path / "other"
    workspace.mkdir()
    other.mkdir()
    places = OpenPlaces(lambda _: None)
    folder = places.add(workspace)
    (number,) = places._descriptors.values()
    opened = os.open(other, os.O_PATH)
    os.dup2(opened, number)  # as after somebody has closed all descriptors
    assert places.find()[0] == {str(workspace)}
    places.remove(folder)
    os.close(opened)


def count_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_folder_that_is_parked_is_held_by_no_descriptor_and_found_all_the_same(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    places = OpenPlaces(lambda _: None)
    before = count_open()
    folder = places.add(workspace)
    places.park(workspace)
    places.park(workspace)
    assert count_open() == before
    assert places.find() == (frozenset({str(workspace)}), frozenset({folder.identity}))
    workspace.rename(tmp_path / "renamed")
    places.wake(workspace)
    assert count_open() == before, "it is not in its place"
    (tmp_path / "w").mkdir()
    places.wake(workspace)
    assert count_open() == before, "another folder is in its place"
    (tmp_path / "w").rmdir()
    (tmp_path / "renamed").rename(workspace)
    places.wake(workspace)
    assert count_open() == before + 1
    workspace.rename(tmp_path / "renamed")
    assert str(tmp_path / "renamed") in places.find()[0]
    places.park(workspace)
    places.remove(folder)
    assert count_open() == before
    assert places.find() == (frozenset(), frozenset())


def test_folder_of_two_sessions_is_held_when_one_of_them_is_parked(tmp_path: Path) -> None:
    places = OpenPlaces(lambda _: None)
    before = count_open()
    one, other = places.add(tmp_path), places.add(tmp_path)
    places.park(tmp_path)
    assert count_open() == before + 1
    places.remove(one)
    places.remove(other)
    assert count_open() == before
