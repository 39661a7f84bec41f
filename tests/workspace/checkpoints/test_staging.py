"""What is staged is whole, private and synced before it is switched, and nothing of it stays."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisotools.workspace.checkpoints.restore import discard_stage
from aisotools.workspace.checkpoints.staging import (
    SYNCED_ONE_BY_ONE,
    Stage,
    give_to,
    stage_name,
    sync_folders,
    writable,
)
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import Node, TreePath


class Staged:
    """A folder with a stage beside what it holds."""

    def __init__(self, top: Path) -> None:
        self.root = top / "root"
        self.root.mkdir()
        self.store = Store(top / "store")
        self.folder = os.open(self.root, os.O_RDONLY)
        self.stage = Stage(self.store, self.folder, "t")
        self.place = self.root / stage_name("t")

    def file(self, text: str, mode: int = 0o644) -> Node:
        return Node("file", mode, self.store.put(text.encode()), len(text))

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))

    def land(self, path: TreePath) -> bool:
        with writable(self.folder, path[:-1]) as parent:
            return self.stage.land(path, parent)

    def close(self) -> None:
        self.stage.close()
        os.close(self.folder)
        self.store.close()


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Staged]:
    staged = Staged(tmp_path)
    yield staged
    staged.close()


FOLDER = Node("folder", 0o755)


def test_new_folder_is_staged_whole_and_lands_by_one_rename(staged: Staged) -> None:
    targets: dict[TreePath, Node | None] = {
        ("d",): FOLDER,
        ("d", "e"): Node("folder", 0o500),
        ("d", "e", "f"): staged.file("deep", 0o640),
        ("d", "l"): Node("link", content="nowhere"),
        ("gone",): None,
        ("p",): Node("fifo", 0o600),
    }
    assert staged.stage.prepare(targets) == []
    assert stat.S_IMODE(staged.place.stat().st_mode) == 0o700
    assert not (staged.root / "d").exists()
    assert [staged.land(path) for path in (("d",), ("d", "e"), ("d", "e", "f"), ("d", "l"), ("p",))] == [
        True
    ] * 5
    assert (staged.root / "d" / "e" / "f").read_text() == "deep"
    assert stat.S_IMODE((staged.root / "d" / "e" / "f").stat().st_mode) == 0o640
    staged.stage.remove()
    assert staged.stage.name == ""
    assert staged.names() == ["d", "d/e", "d/e/f", "d/l", "p"]


def test_folder_that_is_there_is_not_staged_and_what_it_gets_is(staged: Staged) -> None:
    (staged.root / "d").mkdir()
    assert staged.stage.prepare({("d",): FOLDER, ("d", "f"): staged.file("x")}) == []
    assert not staged.land(("d",))
    assert staged.land(("d", "f"))
    assert (staged.root / "d" / "f").read_text() == "x"


def test_several_folders_are_staged_beside_each_other(staged: Staged) -> None:
    targets: dict[TreePath, Node | None] = {}
    for name in "abc":
        targets[name,] = FOLDER
        targets[name, "f"] = staged.file(name)
    assert staged.stage.prepare(targets) == []
    assert all(staged.land((name,)) for name in "abc")
    assert [(staged.root / name / "f").read_text() for name in "abc"] == ["a", "b", "c"]


def test_nothing_is_made_where_nothing_has_to_be_put(staged: Staged) -> None:
    assert staged.stage.prepare({("a",): None}) == []
    assert (staged.stage.name, staged.names()) == ("", [])


def test_damaged_content_is_named_and_all_that_was_staged_goes(staged: Staged) -> None:
    node = staged.file("good")
    (staged.store.folder / "objects" / node.content).write_text("evil")
    ((path, why),) = staged.stage.prepare({("a",): staged.file("other"), ("b",): node})
    assert path == ("b",)
    assert "damaged" in why
    assert staged.names() == [stage_name("t"), f"{stage_name('t')}/1", f"{stage_name('t')}/2"]
    assert not staged.land(("b",)), "a part of it never lands"
    assert discard_stage(staged.folder, staged.stage, "t")
    assert staged.names() == []


def test_folder_around_it_that_is_gone_is_met_before_the_switch(staged: Staged) -> None:
    assert staged.stage.prepare({("no", "f"): staged.file("x")}) == [
        (("no", "f"), "No such file or directory")
    ]
    assert staged.stage.prepare({("no", "d"): FOLDER}) == [(("no", "d"), "No such file or directory")]


def test_link_in_the_place_of_a_folder_is_not_followed(staged: Staged, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (staged.root / "d").symlink_to(outside)
    ((path, _),) = staged.stage.prepare({("d", "f"): staged.file("x")})
    assert path == ("d", "f")
    assert list(outside.iterdir()) == []


def test_folder_that_somebody_puts_into_the_place_of_a_staged_one_stays(staged: Staged) -> None:
    staged.stage.prepare({("d",): FOLDER, ("d", "f"): staged.file("x")})
    (staged.root / "d").mkdir()
    (staged.root / "d" / "mine").write_text("person")
    with pytest.raises(OSError, match="not empty"):
        staged.land(("d",))
    assert (staged.root / "d" / "mine").read_text() == "person"
    assert not (staged.root / "d" / "f").exists()


def test_another_mount_of_the_file_system_is_no_place_for_a_rename(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged.stage.prepare({("a",): staged.file("x")})

    def refuse(*_names: str, **_folders: int) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        assert not staged.land(("a",))


@pytest.mark.parametrize("count", [SYNCED_ONE_BY_ONE, SYNCED_ONE_BY_ONE + 1])
def test_files_are_synced_before_they_land(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """One by one, or the whole file system at once."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _file: synced.append("file"))
    monkeypatch.setattr(
        "aisotools.workspace.checkpoints.staging.flush_file_system", lambda _root: synced.append("all")
    )
    assert staged.stage.prepare({(str(number),): staged.file("x") for number in range(count)}) == []
    assert synced.count("file") == SYNCED_ONE_BY_ONE
    assert synced.count("all") == (count > SYNCED_ONE_BY_ONE)


def test_disk_that_refuses_to_sync_fails_before_the_switch(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    assert staged.stage.prepare({("a",): staged.file("x")}) == [(("a",), "Input/output error")]
    assert sync_folders(staged.folder, [()]) == [
        ((), "it could not be written through to the disk: Input/output error")
    ]
    assert sync_folders(staged.folder, [("gone",)]) == []


def test_stage_that_cannot_be_opened_is_removed_all_the_same(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def fail(path: str, *arguments: int, **options: int) -> int:
        if path == stage_name("t"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        assert staged.stage.prepare({("a",): staged.file("x")}) == [((), "Input/output error")]
    assert staged.stage.name
    assert discard_stage(staged.folder, staged.stage, "t")
    assert staged.names() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_staged_entries_belong_to_the_owner_of_the_folder_around_their_place(staged: Staged) -> None:
    (staged.root / "d").mkdir()
    os.chown(staged.root / "d", 12345, 12346)
    staged.stage.prepare(
        {("d", "n"): FOLDER, ("d", "n", "f"): staged.file("x"), ("d", "f"): staged.file("y")}
    )
    assert staged.land(("d", "n"))
    assert staged.land(("d", "f"))
    for path in ("d/n", "d/n/f", "d/f"):
        status = (staged.root / path).stat()
        assert (status.st_uid, status.st_gid) == (12345, 12346)
    give_to(staged.folder, (1, 1))
    assert staged.root.stat().st_uid == 1
