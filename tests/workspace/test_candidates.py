"""The walk that finds what may have to be protected, and what a hostile folder can do about it."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from aisotools.workspace import candidates
from aisotools.workspace.candidates import CandidateScanner, OutOfSteps, Steps
from aisotools.workspace.git_named_files import NamedFiles
from aisotools.workspace.protected_names import FILES_OF_GIT, ROOT_ZONE, fold_name


def found(scanner: CandidateScanner) -> set[str]:
    scan = scanner.scan(Steps())
    assert scan.complete, scan.unwatched
    return set(scan.files)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_names_wherever_they_lie(tmp_path: Path) -> None:
    make(
        tmp_path,
        "conftest.py",
        "a/b/Makefile",
        "a/.git/hooks/x",
        "a/other.py",
        "n.ipynb",
        "a/.vscode/tasks.json",
    )
    assert found(CandidateScanner(str(tmp_path))) == {
        "conftest.py",
        "a/b/Makefile",
        "a/.git/hooks/x",
        "n.ipynb",
        "a/.vscode/tasks.json",
    }


def test_repositories_by_what_they_hold(tmp_path: Path) -> None:
    make(
        tmp_path,
        "r/HEAD",
        "r/objects/x",
        "r/refs/x",
        "r/config",
        "r/hooks/x",
        "s/HEAD",
        "s/commondir",
        "s/config",
    )
    make(tmp_path, "t/HEAD", "t/objects/x", "t/config", "u/.git/modules/m/config", "u/.git/refs/heads/config")
    assert found(CandidateScanner(str(tmp_path))) == {
        "r/config",
        "r/hooks/x",
        "s/commondir",
        "s/config",
        "u/.git/modules/m/config",
    }


def test_a_folder_that_becomes_a_repository_later(tmp_path: Path) -> None:
    make(tmp_path, "r/HEAD", "r/objects/x", "r/config", "r/hooks/x")
    scanner = CandidateScanner(str(tmp_path))
    assert found(scanner) == set()
    make(tmp_path, "r/refs/x")
    assert found(scanner) == {"r/config", "r/hooks/x"}


def test_links_in_the_place_of_folders(tmp_path: Path) -> None:
    make(tmp_path, "real/x", "a/.git/HEAD")
    for name in (".git", ".vscode", ".github", "a/.git/hooks"):
        (tmp_path / name).symlink_to(tmp_path / "real")
    (tmp_path / "plain").symlink_to(tmp_path / "real")
    assert found(CandidateScanner(str(tmp_path))) == {".git", ".vscode", ".github", "a/.git/hooks"}


def test_a_repository_behind_very_many_files(tmp_path: Path) -> None:
    for number in range(5_100):
        (tmp_path / f"{number:04}").touch()
    make(tmp_path, "z/.git/hooks/x", "z/.git/config")
    assert found(CandidateScanner(str(tmp_path))) == {"z/.git/hooks/x", "z/.git/config"}


def test_depth_costs_neither_recursion_nor_descriptors(tmp_path: Path) -> None:
    deep = "/".join("d" * 400)
    (tmp_path / deep).mkdir(parents=True)
    make(tmp_path, f"{deep}/conftest.py", f"{'/'.join('d' * 300)}/e/Makefile", "e/tox.ini")
    scanner = CandidateScanner(str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = open_files()
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 80, hard))
    try:
        for _ in range(2):
            assert found(scanner) == {f"{deep}/conftest.py", f"{'/'.join('d' * 300)}/e/Makefile", "e/tox.ini"}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert open_files() == used


class Interrupted(Steps):
    """Does something in the middle of a walk."""

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        super().__init__()
        self.taken = 0
        self.at = at
        self.act = act

    def take(self, steps: int = 1) -> None:
        self.taken += steps
        if self.taken >= self.at > 0:
            self.at = 0
            self.act()


@pytest.mark.parametrize("at", [420, 450, 480])
def test_a_walk_that_loses_its_way_ends_there(tmp_path: Path, at: int) -> None:
    """A folder is moved away while the walk is below it: `..` then leads to another one."""
    (tmp_path / "ws" / "/".join("d" * 100)).mkdir(parents=True)
    make(tmp_path, "ws/conftest.py", "conftest.py")
    moved = tmp_path / "ws" / "/".join("d" * 80)
    steps = Interrupted(at, lambda: moved.rename(tmp_path / "elsewhere"))
    scan = CandidateScanner(str(tmp_path / "ws")).scan(steps)
    assert steps.at == 0
    assert "moved" in scan.unwatched
    assert set(scan.files) == {"conftest.py"}


@pytest.mark.parametrize("bound", ["folders", "candidates", "paths"])
def test_bounds_are_reported(tmp_path: Path, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, *(f"{number}/a.ipynb" for number in range(6)))
    scanner = CandidateScanner(str(tmp_path), max_folders=5 if bound == "folders" else 100)
    if bound == "candidates":
        monkeypatch.setattr(candidates, "MAX_CANDIDATES", 5)
    if bound == "paths":
        monkeypatch.setattr(candidates, "MAX_ALL_PATHS", 20)
    scan = scanner.scan(Steps())
    assert not scan.complete
    assert ("folders" in scan.unwatched) == (bound == "folders")


def test_few_steps_end_early_and_nothing_is_left_open(tmp_path: Path) -> None:
    make(tmp_path, *(f"{number}/{below}/x" for number in range(20) for below in range(20)))
    scanner = CandidateScanner(str(tmp_path))
    used = open_files()
    for most in range(0, 400, 7):
        with pytest.raises(OutOfSteps):
            scanner.scan(Steps(most))
    assert open_files() == used
    assert scanner.scan(Steps()).complete


def test_one_large_folder_takes_steps_too(tmp_path: Path) -> None:
    make(tmp_path, *(f"{number}" for number in range(3_000)))
    with pytest.raises(OutOfSteps):
        CandidateScanner(str(tmp_path)).scan(Steps(200))


def test_folders_of_some_hundred_files_take_steps_by_their_files(tmp_path: Path) -> None:
    for folder in range(20):
        (tmp_path / f"{folder}").mkdir()
        make(tmp_path / f"{folder}", *(f"{number}" for number in range(254)))
    with pytest.raises(OutOfSteps):
        CandidateScanner(str(tmp_path)).scan(Steps(1_000))


@pytest.mark.parametrize("name", ["ä{}", "\ufdfa\ufdfa{}"])
def test_short_names_that_are_not_ascii_take_a_step_each(tmp_path: Path, name: str) -> None:
    make(tmp_path, *(name.format(number) for number in range(200)))
    with pytest.raises(OutOfSteps):
        CandidateScanner(str(tmp_path)).scan(Steps(200))


@pytest.mark.parametrize("is_folder", [True, False])
@pytest.mark.parametrize("char", ["\u0345", "\udcff", "A"])
def test_long_names_take_steps_by_their_characters(tmp_path: Path, char: str, *, is_folder: bool) -> None:
    """Comparing them takes up to 70 µs each, and most of all with marks that are put in another order."""
    for number in range(100):
        name = f"{number:03}{char * 120}"
        if is_folder:
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).touch()
    with pytest.raises(OutOfSteps):
        CandidateScanner(str(tmp_path)).scan(Steps(600))
    assert CandidateScanner(str(tmp_path)).scan(Steps(840 + 1_320 * is_folder)).complete


@pytest.mark.parametrize("named", [True, False])
def test_names_on_a_path_are_not_compared_again_in_every_folder_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    """A path has up to 4 KiB, and hostile code makes two hundred thousand folders at its end."""
    folded: list[str] = []
    (tmp_path / "É" / "ä" / "Ö").mkdir(parents=True)
    (tmp_path / "É" / "ä" / "ö.TXT").touch()
    (tmp_path / "É" / "ä" / "Ö" / "file").touch()

    def note(name: str) -> str:
        folded.append(name)
        return fold_name(name)

    scanner = CandidateScanner(str(tmp_path))
    if named:
        scanner.name(NamedFiles(files=frozenset(("é/Ä/ö.txt",)), folders=frozenset(("é/Ä/ö",))))
    monkeypatch.setattr(candidates, "fold_name", note)
    assert found(scanner) == ({"É/ä/ö.TXT", "É/ä/Ö/file"} if named else set())
    assert all("/" not in name for name in folded)


def test_a_workspace_that_is_gone_has_no_files(tmp_path: Path) -> None:
    assert CandidateScanner(str(tmp_path / "nothing")).scan(Steps()).files == {}


def test_zones_of_ordinary_folders_are_one_object() -> None:
    assert ROOT_ZONE.enter("src").enter("hooks").enter("refs") is ROOT_ZONE


def test_letters_by_which_files_of_git_are_passed_over_are_those_of_all() -> None:
    assert {name[0] for name in FILES_OF_GIT} | {"s"} == candidates._FIRST_LETTERS_OF_GIT


@pytest.mark.parametrize("name", ["config", "config.sh", "config,v", "s.config", "commondir.c"])
def test_sources_of_settings_of_a_repository_of_any_name_are_found(tmp_path: Path, name: str) -> None:
    for part in ("objects", "refs"):
        (tmp_path / "store" / part).mkdir(parents=True)
    (tmp_path / "store" / name).touch()
    scanner = CandidateScanner(str(tmp_path))
    assert not scanner.scan(Steps()).files
    (tmp_path / "store" / "HEAD").touch()
    assert [*scanner.scan(Steps()).files] == [f"store/{name}"]
