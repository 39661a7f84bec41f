"""The list of protected names, compared with a list of programs and files that was made apart from it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from aisotools.workspace.protected import ProtectedFiles
from aisotools.workspace.protected_groups import EXCEPTIONS, PROTECTED_GROUPS, ProtectedGroup
from aisotools.workspace.protected_names import is_candidate, is_protected

CORPUS = tomllib.loads((Path(__file__).parents[1] / "data" / "protected_names.toml").read_text())["programs"]
IDS = [one["programs"] for one in CORPUS]


def files_of(kind: str) -> list[tuple[str, list[str]]]:
    return [(one["programs"], one[kind].split()) for one in CORPUS]


@pytest.mark.parametrize("one", CORPUS, ids=IDS)
def test_files_that_programs_run_or_obey_are_protected(one: dict[str, str]) -> None:
    missing = [path for path in one["protected"].split() if not (is_protected(path) and is_candidate(path))]
    assert not missing, f"{one['programs']}: add {missing} to PROTECTED_GROUPS, or say there why not"


@pytest.mark.parametrize("group", PROTECTED_GROUPS, ids=[group.programs for group in PROTECTED_GROUPS])
def test_every_name_of_the_list_is_protected(group: ProtectedGroup) -> None:
    """With an `x` for what may be any characters; so are files below a folder of the list."""
    listed = [*group.names, *group.paths, *(f"{folder}/x" for folder in group.folders)]
    files = [path.replace("[a-z]", "x").replace("*", "x") for path in listed]
    assert files
    assert not [path for path in files if not (is_protected(path) and is_candidate(path))]


@pytest.mark.parametrize("one", CORPUS, ids=IDS)
def test_files_that_look_like_them_are_not(one: dict[str, str]) -> None:
    refused = [path for path in one["ordinary"].split() if is_protected(path)]
    assert not refused, f"{one['programs']}: {refused} are protected and need not be"


def test_planted_files_are_taken_away_and_ordinary_ones_stay(tmp_path: Path) -> None:
    """Each in a folder of its own, as they lie in projects, in the letters of the list and in capitals."""
    ws = tmp_path / "ws"
    ws.mkdir()
    files = ProtectedFiles(ws, tmp_path / "quarantine")
    planted, ordinary = [], []
    for number, (_, paths) in enumerate(files_of("protected")):
        for index, path in enumerate(paths):
            planted += [f"{number}/{index}/{path}", f"{number}/{index}-capitals/{path.upper()}"]
    for number, (_, paths) in enumerate(files_of("ordinary")):
        ordinary += [f"{number}/ordinary-{index}/{path}" for index, path in enumerate(paths)]
    for path in (*planted, *ordinary):
        (ws / path).parent.mkdir(parents=True, exist_ok=True)
        (ws / path).write_text("evil")
    changes = files.restore()
    assert sorted(change.path for change in changes) == sorted(planted)
    assert all(change.restored for change in changes)
    assert all((ws / path).exists() for path in ordinary)


@pytest.mark.parametrize("folder", ["tools", "debian", ".config"])
def test_folders_that_others_are_named_like(tmp_path: Path, folder: str) -> None:
    """A file of that name is ordinary; a link leads programs to protected files elsewhere."""
    ws = tmp_path / "ws"
    ws.mkdir()
    files = ProtectedFiles(ws, tmp_path / "quarantine")
    (ws / folder).write_text("ordinary")
    assert files.restore() == ()
    (ws / folder).unlink()
    (ws / "elsewhere").mkdir()
    (ws / folder).symlink_to("elsewhere")
    assert [change.path for change in files.restore()] == [folder]


def test_groups_have_programs_a_reason_and_names_of_their_own() -> None:
    every = [name for group in PROTECTED_GROUPS for name in (*group.names, *group.folders, *group.paths)]
    assert sorted(every) == sorted(set(every)), "each name belongs to one group"
    for group in PROTECTED_GROUPS:
        assert group.programs
        assert group.reason
        assert group.names or group.folders or group.paths
    for name in EXCEPTIONS:
        assert not is_protected(name)


def test_the_corpus_names_each_file_once() -> None:
    every = [path for kind in ("protected", "ordinary") for _, paths in files_of(kind) for path in paths]
    assert sorted(every) == sorted(set(every))
