"""What was found in the place of a protected file is copied, within bounds, and removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aisotools.workspace import quarantine
from aisotools.workspace.quarantine import Quarantine


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


def take(quarantined: Quarantine, ws: Path, name: str) -> str:
    folder = os.open(ws, os.O_RDONLY)
    try:
        return quarantined.take(folder, name)
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


def test_a_large_file_is_cut_off(ws: Path, tmp_path: Path) -> None:
    with (ws / "large.pth").open("wb") as file:
        file.truncate(1 << 40)  # holes take no room here, but would in a copy
    place = Path(take(Quarantine(tmp_path / "kept"), ws, "large.pth"))
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
