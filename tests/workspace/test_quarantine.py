"""What was found in the place of a protected file is copied, within bounds, and removed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from aisotools.workspace import quarantine
from aisotools.workspace.protected import ProtectedFiles
from aisotools.workspace.protected_names import is_protected
from aisotools.workspace.quarantine import KeptContent, Quarantine


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


def take(quarantined: Quarantine, ws: Path, name: str) -> str:
    return take_with(quarantined, ws, name).place


def take_with(quarantined: Quarantine, ws: Path, name: str, **options: Any) -> KeptContent:
    folder = os.open(ws, os.O_RDONLY)
    try:
        return quarantined.take(folder, name, **options)
    finally:
        os.close(folder)


def test_an_open_descriptor_does_not_grow_what_is_kept(ws: Path, tmp_path: Path) -> None:
    quarantined = Quarantine(tmp_path / "kept")
    with (ws / "evil.pth").open("wb", buffering=0) as held:
        held.write(b"evil")
        place = Path(take(quarantined, ws, "evil.pth"))
        assert not (ws / "evil.pth").exists()
        held.write(b"x" * (1 << 20))
        os.ftruncate(held.fileno(), 1 << 40)
    assert place.read_bytes() == b"evil"


def test_a_hard_link_does_not_lead_to_what_is_kept(ws: Path, tmp_path: Path) -> None:
    (ws / "evil.pth").write_text("evil")
    os.link(ws / "evil.pth", ws / "other")
    place = Path(take(Quarantine(tmp_path / "kept"), ws, "evil.pth"))
    (ws / "other").write_text("more")
    assert place.read_text() == "evil"


def test_an_open_descriptor_grows_what_is_moved(ws: Path, tmp_path: Path) -> None:
    """The control: moved instead of copied, it grows in the place where it is kept."""
    with (ws / "evil.pth").open("wb") as held:
        (ws / "evil.pth").rename(tmp_path / "kept")
        held.truncate(1 << 20)
    assert (tmp_path / "kept").stat().st_size == 1 << 20


def test_a_hard_link_leads_to_what_is_moved(ws: Path, tmp_path: Path) -> None:
    """The control, likewise."""
    (ws / "evil.pth").write_text("evil")
    os.link(ws / "evil.pth", ws / "other")
    (ws / "evil.pth").rename(tmp_path / "kept")
    (ws / "other").write_text("more")
    assert (tmp_path / "kept").read_text() == "more"


def test_a_large_file_is_cut_off(ws: Path, tmp_path: Path) -> None:
    with (ws / "large.pth").open("wb") as file:
        file.truncate(1 << 40)  # holes take no room here, but would in a copy
    found = take_with(Quarantine(tmp_path / "kept"), ws, "large.pth")
    place = Path(found.place)
    assert found.lost == "cut after 16,777,216 of 1,099,511,627,776 bytes, the rest is lost"
    assert place.stat().st_size == quarantine.MAX_COPY_BYTES
    assert not (ws / "large.pth").exists()


def test_all_files_together_are_bounded(ws: Path, tmp_path: Path) -> None:
    quarantined = Quarantine(tmp_path / "kept")
    for number in range(7):
        with (ws / f"{number}.pth").open("wb") as file:
            file.truncate(quarantine.MAX_COPY_BYTES)
        take(quarantined, ws, f"{number}.pth")
    assert not list(ws.iterdir())
    assert (
        sum(path.stat().st_size for path in (tmp_path / "kept").iterdir()) == quarantine.MAX_QUARANTINE_BYTES
    )


def test_files_without_content_are_removed(ws: Path, tmp_path: Path) -> None:
    quarantined = Quarantine(tmp_path / "kept")
    os.mkfifo(ws / "fifo")
    (ws / "link").symlink_to("/etc/hostname")
    (ws / "empty").touch()
    assert [take(quarantined, ws, name) for name in ("fifo", "link", "empty")] == ["", "", ""]
    assert not list(ws.iterdir())
    assert not (tmp_path / "kept").exists()


def test_a_folder_for_copies_that_cannot_be_made_costs_the_copy_alone(ws: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("in the way")
    (ws / "evil.pth").write_text("evil")
    assert take(Quarantine(tmp_path / "kept"), ws, "evil.pth") == ""
    assert not (ws / "evil.pth").exists()


def test_a_missing_file_is_an_error(ws: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        take(Quarantine(tmp_path / "kept"), ws, "nothing")


def test_content_for_which_no_room_is_left_is_named_as_lost(ws: Path, tmp_path: Path) -> None:
    quarantined = Quarantine(tmp_path / "kept")
    for number in range(quarantine.MAX_QUARANTINE_FILES + 1):
        (ws / f"{number}.pth").write_text("evil")
        found = take_with(quarantined, ws, f"{number}.pth")
    assert found == KeptContent(lost="what was found is lost: too much has been kept in this session already")


def test_edits_have_room_that_nothing_planted_takes(ws: Path, tmp_path: Path) -> None:
    quarantined = Quarantine(tmp_path / "kept")
    for number in range(5):
        with (ws / f"{number}.pth").open("wb") as file:
            file.truncate(quarantine.MAX_COPY_BYTES)
        take(quarantined, ws, f"{number}.pth")
    (ws / "pyproject.toml").write_text("an hour of work")
    place = take_with(quarantined, ws, "pyproject.toml", replaces=True).place
    assert Path(place).read_text() == "an hour of work"


def test_restored_content_and_bytecode_take_no_room(ws: Path, tmp_path: Path) -> None:
    quarantined = Quarantine(tmp_path / "kept")
    for _ in range(2 * quarantine.MAX_QUARANTINE_FILES):
        (ws / "conftest.py").write_text("safe")
        assert not take_with(quarantined, ws, "conftest.py", known=b"safe", replaces=True)
        (ws / "x.pyc").write_bytes(b"\xa7\x0d\r\nrest")
        assert not take_with(quarantined, ws, "x.pyc", compiled=True)
    assert not list(ws.iterdir())
    (ws / "x.pyc").write_text("a person's table under the name of bytecode")
    assert Path(take_with(quarantined, ws, "x.pyc", compiled=True).place).read_text().startswith("a person")
    (ws / "conftest.py").write_text("safer")
    assert Path(take_with(quarantined, ws, "conftest.py", known=b"safe").place).read_text() == "safer"


# ---- content that cannot be copied stays in the workspace


def test_a_session_full_of_planted_files_loses_neither_an_edit_nor_a_small_file(
    ws: Path, tmp_path: Path
) -> None:
    (ws / "pyproject.toml").write_text("mine")
    files = ProtectedFiles(ws, tmp_path / "kept")
    for number in range(6):
        (ws / f"{number}").mkdir()
        (ws / f"{number}" / "conftest.py").write_bytes(os.urandom((17 << 20) if number < 5 else 1))
    for number in range(2 * quarantine.MAX_QUARANTINE_FILES):
        (ws / f"{number}.pth").write_text(f"planted {number}")
    changes = files.restore()
    assert all(change.restored and change.saved_as and not change.lost for change in changes)
    (ws / "tox.ini").write_text("small")
    (ws / "pyproject.toml").write_text("an hour of work")
    found = {change.path: change for change in files.restore()}
    assert Path(found["tox.ini"].saved_as).read_text() == "small"
    assert Path(found["pyproject.toml"].saved_as).read_text() == "an hour of work"
    assert Path(found["pyproject.toml"].saved_as).parent == tmp_path / "kept", "out of reach of the sandbox"
    assert (ws / "pyproject.toml").read_text() == "mine"
    assert not (ws / "tox.ini").exists()
    assert files.restore() == (), "nothing obeys the names of what stays in the workspace"
    copied = sum(path.stat().st_size for path in (tmp_path / "kept").iterdir())
    assert copied <= quarantine.MAX_QUARANTINE_BYTES, "nothing planted makes the host's disk fuller than that"


def test_a_large_file_is_kept_whole(ws: Path, tmp_path: Path) -> None:
    files = ProtectedFiles(ws, tmp_path / "kept")
    data = os.urandom(30 << 20)
    (ws / "data.bin").write_bytes(data)
    (ws / "data.bin").rename(ws / "conftest.py")
    (change,) = files.restore()
    assert Path(change.saved_as).read_bytes() == data
    assert Path(change.saved_as).parent == ws
    assert change.saved_as in str(change)
    assert not (ws / "conftest.py").exists()


def test_a_name_that_would_be_obeyed_is_not_kept_in_it(ws: Path, tmp_path: Path) -> None:
    """With its ending a name may be protected in another way, as `compose.yaml` with one in its middle."""
    files = ProtectedFiles(ws, tmp_path / "kept")
    for path in (
        ".vscode/tasks.json",
        ".git/hooks/pre-commit",
        ".env",
        "x.pth",
        ".git/config",
        "conftest.py",
    ):
        (ws / path).parent.mkdir(parents=True, exist_ok=True)
        with (ws / path).open("wb") as file:
            file.truncate(quarantine.MAX_COPY_BYTES + 1)
    for change in files.restore():
        assert change.restored
        assert Path(change.saved_as).stat().st_size == quarantine.MAX_COPY_BYTES + 1
        assert not is_protected(Path(change.saved_as).name)
    assert files.restore() == ()


def test_denied_content_gets_no_other_name_in_the_workspace(ws: Path, tmp_path: Path) -> None:
    (ws / "secrets").mkdir()
    (ws / "secrets" / "key").write_text("old")
    files = ProtectedFiles(ws, tmp_path / "kept", denied=("secrets",), unreadable=(".envrc",))
    for path in ("secrets/key", ".envrc"):
        with (ws / path).open("wb") as file:
            file.truncate(quarantine.MAX_COPY_BYTES + 1)
    for change in files.restore():
        assert Path(change.saved_as).parent == tmp_path / "kept"
        assert "cut after 16,777,216 of 16,777,217 bytes" in str(change)
    assert sorted(path.name for path in ws.iterdir()) == ["secrets"]


def test_a_file_in_the_place_of_a_folder_is_kept(ws: Path, tmp_path: Path) -> None:
    (ws / "tests").mkdir()
    (ws / "tests" / "conftest.py").write_text("mine")
    files = ProtectedFiles(ws, tmp_path / "kept")
    (ws / "tests" / "conftest.py").unlink()
    (ws / "tests").rmdir()
    (ws / "tests").write_text("a person's notes")
    (change,) = files.restore()
    assert Path(change.saved_as).read_text() == "a person's notes"
    assert (ws / "tests" / "conftest.py").read_text() == "mine"
