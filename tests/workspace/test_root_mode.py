"""The mode of a workspace's own folder is put back."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aisotools.workspace.lock import checkpoint_folder, state_folder
from aisotools.workspace.root_mode import RootMode, put_back_mode, watch_mode
from tests.sandbox.inside import user_of


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return state_folder({"XDG_STATE_HOME": str(tmp_path / "states")})


def watch(tmp_path: Path, mode: int = 0o750, *, used: bool = False) -> RootMode:
    (tmp_path / "w").mkdir(exist_ok=True)
    (tmp_path / "w").chmod(mode)
    return RootMode(tmp_path / "w", tmp_path / "record", lambda: used)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_mode_that_a_person_sets_after_the_close_stays_at_a_second_close(tmp_path: Path) -> None:
    mode = watch(tmp_path)
    (tmp_path / "w").chmod(0o777)
    mode.close()
    assert mode_of(tmp_path / "w") == 0o750
    (tmp_path / "w").chmod(0o700)
    mode.close()
    assert mode_of(tmp_path / "w") == 0o700


@pytest.mark.parametrize("changed", [0, 0o111, 0o500, 0o777, 0o1750, 0o2750])
def test_changed_mode_is_put_back_and_noted_once(tmp_path: Path, changed: int) -> None:
    mode = watch(tmp_path)
    for _ in range(2):
        (tmp_path / "w").chmod(changed)
        mode.put_back()
        assert mode_of(tmp_path / "w") == 0o750
    note = f"The mode of the workspace's folder had become {changed:03o}. It was put back to 750."
    assert mode.notes == [note]


def test_unchanged_mode_is_not_noted(tmp_path: Path) -> None:
    mode = watch(tmp_path)
    mode.put_back()
    mode.accept()
    assert mode.notes == []


@pytest.mark.parametrize(("used", "changed", "left"), [(False, 0o770, 0o770), (False, 0o570, 0o750)])
def test_mode_that_a_person_gave_is_accepted_if_the_owner_can_use_it(
    tmp_path: Path, used: bool, changed: int, left: int
) -> None:
    mode = watch(tmp_path, used=used)
    (tmp_path / "w").chmod(changed)
    mode.accept()
    mode.put_back()
    assert mode_of(tmp_path / "w") == left


def test_mode_is_not_accepted_while_a_call_runs(tmp_path: Path) -> None:
    mode = watch(tmp_path, used=True)
    (tmp_path / "w").chmod(0o777)
    mode.accept()
    mode.put_back()
    assert mode_of(tmp_path / "w") == 0o750


def test_another_folder_in_the_same_place_keeps_its_mode(tmp_path: Path) -> None:
    mode = watch(tmp_path)
    (tmp_path / "w").rename(tmp_path / "away")
    (tmp_path / "w").mkdir()
    (tmp_path / "w").chmod(0o701)
    (tmp_path / "away").chmod(0)
    mode.put_back()
    assert (mode_of(tmp_path / "w"), mode_of(tmp_path / "away")) == (0o701, 0)
    (tmp_path / "w").chmod(0)
    mode.put_back()
    assert mode_of(tmp_path / "w") == 0o701


def test_no_link_is_followed_to_a_mode(tmp_path: Path) -> None:
    mode = watch(tmp_path)
    (tmp_path / "w").rename(tmp_path / "away")
    (tmp_path / "other").mkdir()
    (tmp_path / "other").chmod(0o701)
    (tmp_path / "w").symlink_to("other")
    mode.put_back()
    mode.accept()
    assert mode_of(tmp_path / "other") == 0o701
    assert mode.notes == []


def test_mode_of_a_folder_that_is_gone(tmp_path: Path) -> None:
    mode = watch(tmp_path)
    (tmp_path / "w").rmdir()
    mode.put_back()
    mode.accept()
    mode.close()
    assert watch_mode(tmp_path / "w", tmp_path, lambda: False) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_mode_that_cannot_be_put_back_is_noted(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from aisotools.workspace.root_mode import RootMode
mode = RootMode(Path(sys.argv[1]), Path("/nope/record"), lambda: False)
mode.value ^= 0o22
mode.put_back()
print(*mode.notes)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, "/var"],
        capture_output=True,
        text=True,
        check=True,
        user=user_of("plain"),
    )
    assert "could NOT be put back to 777: Operation not permitted." in done.stdout


def test_mode_is_remembered_until_it_is_closed(tmp_path: Path, state: Path) -> None:
    workspace = tmp_path / "w"
    folder = checkpoint_folder(workspace, state)
    workspace.mkdir()
    workspace.chmod(0o750)
    put_back_mode(workspace, folder)
    assert mode_of(workspace) == 0o750  # it has never been a workspace
    folder.mkdir(parents=True)
    mode = watch_mode(workspace, folder, lambda: False)
    assert mode is not None
    workspace.chmod(0o557)
    put_back_mode(workspace, folder)
    assert mode_of(workspace) == 0o750
    workspace.chmod(0)
    mode.close()
    assert mode_of(workspace) == 0o750
    workspace.chmod(0o557)
    put_back_mode(workspace, folder)
    assert mode_of(workspace) == 0o557  # a person's: no session was open


@pytest.mark.parametrize("record", ["", "0", "nonsense\n", "\xff\n", "99\n"])
def test_damaged_record_of_a_mode_is_ignored(tmp_path: Path, state: Path, record: str) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    workspace.chmod(0o750)
    folder = checkpoint_folder(workspace, state)
    folder.mkdir(parents=True)
    (folder / "mode").write_text(record, "latin-1")
    put_back_mode(workspace, folder)
    assert mode_of(workspace) == 0o750


@pytest.mark.parametrize(("found", "left"), [(0, 0o700), (0o055, 0o755), (0o500, 0o500), (0o300, 0o700)])
def test_former_workspace_that_nobody_can_use_gets_its_owners_rights_back(
    tmp_path: Path, state: Path, found: int, left: int
) -> None:
    """Earlier versions remembered no mode. One that its owner may read and enter was made so by a person."""
    for name, expected in (("former", left), ("never", found)):
        workspace = tmp_path / name
        workspace.mkdir()
        workspace.chmod(found)
        folder = checkpoint_folder(workspace, state)
        if name == "former":
            folder.mkdir(parents=True)
        put_back_mode(workspace, folder)
        assert mode_of(workspace) == expected
        workspace.chmod(0o700)
