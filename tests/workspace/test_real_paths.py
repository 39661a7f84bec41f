"""How real paths lie to each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from aisotools.workspace.real_paths import leads_into, lies_to, resolve


@pytest.mark.parametrize(
    ("workspace", "folder", "expected"),
    [
        ("/a/b", "/a/b", "is"),
        ("/a", "/a/b", "contains"),
        ("/", "/a", "contains"),
        ("/a/b/c", "/a", "lies in"),
        ("/a", "/", "lies in"),
        ("/a/bc", "/a/b", ""),
        ("/a/b", "/a/bc", ""),
    ],
)
def test_a_folder_is_contains_or_lies_in_another(workspace: str, folder: str, expected: str) -> None:
    assert lies_to(workspace, folder) == expected


def test_a_path_leads_into_a_folder_through_links_in_and_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "in").symlink_to("../inside/file")
    (inside / "out").symlink_to(outside)
    (outside / "circle").symlink_to("circle")
    folders = {str(inside)}
    assert leads_into(f"{inside}/file", folders)
    assert leads_into(f"{outside}/in", folders)
    assert leads_into(f"{inside}/out/file", folders)
    assert leads_into(f"{outside}/./x/../../inside/x", folders)
    assert not leads_into(f"{outside}/file", folders)
    assert not leads_into(f"{outside}/circle", folders)
    monkeypatch.chdir(outside)
    assert leads_into("in", folders)
    outside.rename(tmp_path / "gone")
    (tmp_path / "gone" / "in").unlink()
    (tmp_path / "gone" / "circle").unlink()
    (tmp_path / "gone").rmdir()
    assert not leads_into("in", folders)


def test_a_resolved_path_has_no_links_and_is_remembered(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    known: dict[str, str] = {}
    path = f"{tmp_path}/link/file"
    assert resolve(path, known) == f"{tmp_path}/folder/file"
    assert known[path] == f"{tmp_path}/folder/file"
    assert resolve(f"{tmp_path}/folder/../link", known) == f"{tmp_path}/folder"
    assert resolve("/", known) == "/"
