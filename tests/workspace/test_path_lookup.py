"""Following paths in a workspace, within bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aisotools.workspace import path_lookup
from aisotools.workspace.path_lookup import PathLookup, Spellings, may_be_path


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    (folder / "out").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "out/c.txt"):
        (folder / name).write_text("")
    (folder / "link").symlink_to("out/c.txt")
    (folder / "away").symlink_to("/etc/hostname")
    (folder / "circle").symlink_to("circle")
    return folder


def lookup(workspace: Path, *, max_paths: int = 200) -> PathLookup:
    return PathLookup(Spellings.of(os.path.realpath(workspace), str(workspace)), max_paths=max_paths)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("a.txt", ["a.txt"]),
        ("out/../a.txt", ["a.txt"]),
        ("/workspace/out/c.txt", ["out/c.txt"]),
        ("$PWD/a.txt", ["a.txt"]),
        ("*.txt", ["a.txt", "b.txt"]),
        ("link", ["link", "out/c.txt"]),
    ],
)
def test_paths_are_those_that_a_shell_would_reach(workspace: Path, text: str, paths: list[str]) -> None:
    found = lookup(workspace).follow_all((text,))
    assert set(paths) <= set(found.paths)
    assert (found.unresolved, found.outside) == ({}, False)


def test_a_link_that_leads_out_is_outside_and_one_to_itself_unresolved(workspace: Path) -> None:
    found = lookup(workspace).follow_all(("away", "circle"))
    assert found.outside
    assert "/etc/hostname" in found.paths
    assert set(found.unresolved) == {"circle"}


def test_more_than_the_bounds_is_unresolved(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = lookup(workspace, max_paths=2).follow_all(("a.txt", "b.txt", "out/c.txt"))
    assert list(found.paths) == ["a.txt", "b.txt"]
    assert found.unresolved
    monkeypatch.setattr(path_lookup, "_MAX_ENTRIES", 2)
    assert set(lookup(workspace).follow_all(("*.txt",)).unresolved) == {"*.txt"}


def test_links_count_as_there_and_texts_of_several_lines_are_no_paths(workspace: Path) -> None:
    look = lookup(workspace)
    assert look.exists("out/c.txt")
    assert look.exists("circle")  # a link is there, wherever it leads
    assert not look.exists("none")
    assert may_be_path("out/c.txt")
    assert not any(map(may_be_path, ("", "a\nb", "a\0b", "a" * 1_001)))
