"""What is staged is whole, private and synced before it is switched, and nothing of it stays."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisotools.workspace.checkpoints.attributes import give_to, read_xattrs
from aisotools.workspace.checkpoints.restore import discard_stage
from aisotools.workspace.checkpoints.staging import (
    SYNCED_ONE_BY_ONE,
    Stage,
    link_file,
    stage_name,
    switch_name,
    sync_folders,
    writable,
)
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.switching import mark_of
from aisotools.workspace.checkpoints.tree import Node, TreePath
from tests.workspace.checkpoints.test_restore import descriptors, mode_of, ordinary_user


class Staged:
    """A folder with a stage beside what it holds."""

    def __init__(self, top: Path) -> None:
        self.root = top / "root"
        self.root.mkdir()
        self.store = Store(top / "store")
        self.folder = os.open(self.root, os.O_RDONLY)
        self.stage = Stage(self.store, self.folder, "t")
        self.place = self.root / switch_name("t")

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
    assert staged.names() == [switch_name("t"), f"{switch_name('t')}/{mark_of(('a',))}"]
    assert not staged.land(("b",)), "a part of it never lands"
    assert discard_stage(staged.folder, staged.stage, "t")
    assert staged.names() == []


def test_other_name_of_a_file_that_could_not_be_staged_is_none_of_what_stands_there(staged: Staged) -> None:
    present = staged.root / "f"
    present.write_text("another file")
    before = present.stat()
    damaged = Node("file", 0o644, "0" * 64, 3)
    targets: dict[TreePath, Node | None] = {("f",): damaged, ("g",): damaged, ("h",): staged.file("h")}
    (file, why), (name, because) = staged.stage.prepare(targets, {("g",): ("f",)})
    assert (file, name) == (("f",), ("g",))
    assert "is gone" in why
    assert because == "the file that it is another name of could not be made"
    after = present.stat()
    assert (after.st_ctime_ns, after.st_nlink) == (before.st_ctime_ns, 1)
    assert not staged.land(("g",))
    assert not (staged.root / "g").exists()


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


# ---- what is not whole, not there or not allowed


def test_entry_that_could_not_be_staged_in_a_new_folder_is_not_taken_for_landed(staged: Staged) -> None:
    """The folder around it lands without it, so whoever puts it there has to try again."""
    long = "x" * 300
    targets: dict[TreePath, Node | None] = {
        ("d",): FOLDER,
        ("d", long): staged.file("1"),
        ("d", "f"): staged.file("2"),
    }
    assert staged.stage.prepare(targets) == [(("d", long), "File name too long")]
    assert staged.land(("d",))
    assert not staged.land(("d", long))
    assert staged.land(("d", "f"))


def test_entry_has_not_landed_before_the_folder_around_it(staged: Staged) -> None:
    staged.stage.prepare({("d",): FOLDER, ("d", "f"): staged.file("x")})
    with writable(staged.folder, ()) as root:
        assert not staged.stage.land(("d", "f"), root)
        assert staged.stage.land(("d",), root)
        assert staged.stage.land(("d", "f"), root)


def test_nothing_lands_from_a_stage_that_was_closed(staged: Staged) -> None:
    before = descriptors()
    staged.stage.prepare({("a",): staged.file("x"), ("d",): FOLDER, ("d", "e"): FOLDER})
    for _ in range(2):
        staged.stage.close()
    assert descriptors() == before
    assert not staged.land(("a",))
    assert not (staged.root / "a").exists()


def test_staged_entries_are_private_until_they_are_complete(staged: Staged) -> None:
    """Also those that everybody may use afterwards."""
    modes: list[int] = []

    class Watching(Store):
        def copy(self, digest: str, file: int) -> None:
            modes.append(stat.S_IMODE(os.fstat(file).st_mode))
            super().copy(digest, file)

    staged.store.__class__ = Watching
    everybody = Node("folder", 0o777)
    before = os.umask(0)
    try:
        staged.stage.prepare(
            {
                ("d",): everybody,
                ("d", "e"): everybody,
                ("d", "f"): staged.file("x", 0o666),
                ("p",): Node("fifo", 0o640),
            }
        )
    finally:
        os.umask(before)
    assert modes == [0o600]
    folder, fifo = mark_of(("d",)), mark_of(("p",))
    entries = [folder, f"{folder}/e", f"{folder}/f", fifo]
    names = [switch_name("t"), *(f"{switch_name('t')}/{name}" for name in entries)]
    assert staged.names() == names
    assert [mode_of(staged.root / name) for name in names] == [0o700, 0o700, 0o700, 0o666, 0o640]


def test_folder_where_nobody_can_look_is_not_staged(staged: Staged) -> None:
    """One may be there, and hold what a rename would replace. Anything else can be had ready all the same."""
    (staged.root / "locked" / "d").mkdir(parents=True)
    with ordinary_user(staged.root) as root:
        os.chmod("locked", 0, dir_fd=root)
        stage = Stage(staged.store, root, "t")
        assert stage.prepare({("locked", "d"): FOLDER}) == []
        assert stage.name == ""
        assert not stage.land(("locked", "d"), root)
        assert stage.prepare({("locked", "p"): Node("fifo", 0o600)}) == []
        assert stage.name == switch_name("t")
        os.chmod("locked", 0o700, dir_fd=root)
        with writable(root, ("locked",)) as parent:
            assert stage.land(("locked", "p"), parent)
        stage.close()
    assert (staged.root / "locked" / "p").is_fifo()


def test_link_to_a_folder_is_no_folder_that_is_there(staged: Staged, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (staged.root / "d").symlink_to(outside)
    assert staged.stage.prepare({("d",): FOLDER, ("d", "f"): staged.file("x")}) == []
    (staged.root / "d").unlink()
    assert staged.land(("d",))
    assert (staged.root / "d" / "f").read_text() == "x"
    assert list(outside.iterdir()) == []


# ---- synced


def test_file_system_that_never_writes_back_is_no_error(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_file: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refuse)
    assert staged.stage.prepare({("a",): staged.file("x")}) == []
    assert sync_folders(staged.folder, [()]) == []


@pytest.mark.parametrize("count", [SYNCED_ONE_BY_ONE, SYNCED_ONE_BY_ONE + 1])
def test_folders_are_synced_one_by_one_or_all_at_once_and_each_failure_is_said(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    def fail(_file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    paths = [(f"{number:02}",) for number in range(count)]
    for (name,) in paths:
        (staged.root / name).mkdir()
    before = descriptors()
    assert sync_folders(staged.folder, paths) == []
    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr("aisotools.workspace.checkpoints.staging.flush_file_system", fail)
    why = "it could not be written through to the disk: Input/output error"
    failed: list[TreePath] = [()] if count > SYNCED_ONE_BY_ONE else [*paths]
    assert sync_folders(staged.folder, paths) == [(path, why) for path in failed]
    assert descriptors() == before


# ---- modes and owners


@pytest.mark.parametrize("mode", [0, 0o500, 0o600, 0o200, 0o100, 0o400, 0o300, 0o700, 0o755])
def test_folder_can_be_changed_meanwhile_and_has_its_mode_afterwards(staged: Staged, mode: int) -> None:
    """However the change ends."""
    folder = staged.root / "d"
    folder.mkdir()
    folder.chmod(mode)
    meanwhile = mode if mode & 0o300 == 0o300 else mode | 0o700
    if os.geteuid() == 0 or mode & 0o400:
        with writable(staged.folder, ("d",)):
            assert mode_of(folder) == meanwhile
        assert mode_of(folder) == mode
        with pytest.raises(KeyError), writable(staged.folder, ("d",)):
            raise KeyError
        assert mode_of(folder) == mode


def test_mode_that_cannot_be_set_back_is_an_error(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = staged.root / "d"
    folder.mkdir()
    folder.chmod(0o500)
    before, fchmod = descriptors(), os.fchmod

    def refuse(file: int, mode: int) -> None:
        if mode == 0o500:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fchmod(file, mode)

    monkeypatch.setattr(os, "fchmod", refuse)
    message = "the mode of the folder around it could not be set back: Input/output error"
    with pytest.raises(OSError, match=message), writable(staged.folder, ("d",)):
        pass
    assert descriptors() == before


def test_entries_are_given_to_another_user_or_group_if_that_is_allowed(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, group = os.geteuid(), os.getegid()
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda _file, *owner: given.append(owner))
    for owner in (None, (user, group), (user, group + 1), (user + 1, group)):
        give_to(staged.folder, owner)
    assert given == [(user, group + 1), (user + 1, group)]

    def fail(_file: int, *_owner: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fchown", fail)
    code = errno.EPERM
    give_to(staged.folder, (user + 1, group))
    code = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        give_to(staged.folder, (user + 1, group))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_each_staged_entry_belongs_to_the_owner_of_its_own_folder(staged: Staged) -> None:
    for number, name in enumerate("def"):
        (staged.root / name).mkdir()
        os.chown(staged.root / name, 12345 + number, 23456 + number)
    staged.stage.prepare({(name, part): staged.file("x") for name in "defd" for part in "12"})
    for number, name in enumerate("def"):
        for part in "12":
            assert staged.land((name, part))
            status = (staged.root / name / part).stat()
            assert (status.st_uid, status.st_gid) == (12345 + number, 23456 + number)


def test_space_is_kept_for_attributes_of_a_folder_that_stays(staged: Staged) -> None:
    for name in ("marked", "plain", "same"):
        (staged.root / name).mkdir()
    present = staged.root / "same"
    os.setxattr(present, "user.mark", b"1")
    folder = os.open(present, os.O_RDONLY)
    digest = read_xattrs(folder, staged.store)
    os.close(folder)
    marked = Node("folder", 0o755, mtime_ns=1, xattrs=digest)
    targets: dict[TreePath, Node | None] = {("marked",): marked, ("same",): marked, ("plain",): FOLDER}
    assert staged.stage.prepare(targets) == []
    (placeholder,) = staged.place.iterdir()
    assert os.getxattr(placeholder, "user.mark") == b"1"
    assert not os.listxattr(staged.root / "marked")
    staged.stage.release_space(("marked",))
    staged.stage.release_space(("plain",))
    assert not placeholder.exists()
    assert discard_stage(staged.folder, staged.stage, "t")


def test_attributes_that_have_no_space_are_met_before_the_switch(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    (staged.root / "marked").mkdir()
    os.setxattr(staged.root, "user.mark", b"1")
    digest = read_xattrs(staged.folder, staged.store)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "setxattr", refuse)
    failures = staged.stage.prepare({("marked",): Node("folder", 0o755, mtime_ns=1, xattrs=digest)})
    assert failures == [(("marked",), "No space left on device")]
    assert discard_stage(staged.folder, staged.stage, "t")
    assert staged.names() == ["marked"]


@pytest.mark.parametrize("kind", ["file", "link", "long link", "FIFO"])
def test_another_name_is_given_to_nothing_but_what_it_has_to_be(staged: Staged, kind: str) -> None:
    """Somebody may put something else at the path between the plan and the link."""
    target = "x/" * 200
    (staged.root / "file").write_text("file")
    (staged.root / "link").symlink_to("file")
    (staged.root / "long link").symlink_to(target)
    os.mkfifo(staged.root / "FIFO")
    nodes = {
        "file": staged.file("file"),
        "link": Node("link", content="file"),
        "long link": Node("long_link", content=staged.store.put(target.encode()), size=len(target)),
        "FIFO": Node("fifo"),
    }
    for node in nodes.values():
        is_linked = link_file(staged.store, (staged.folder, (kind,)), staged.folder, "new", node)
        assert is_linked == (node == nodes[kind])
        assert (staged.root / "new").is_symlink() == (is_linked and "link" in kind)
        if is_linked:
            assert (staged.root / "new").lstat().st_ino == (staged.root / kind).lstat().st_ino
            (staged.root / "new").unlink()
        assert "new" not in staged.names()
    elsewhere = Node("link", content="elsewhere")
    assert not link_file(staged.store, (staged.folder, ("link",)), staged.folder, "new", elsewhere)
    assert not link_file(staged.store, (staged.folder, ("gone",)), staged.folder, "new", elsewhere)
    assert "new" not in staged.names()
