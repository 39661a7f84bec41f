"""Folders are removed with all that they hold and nothing else, and what a crash left is swept."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aisotools.workspace.checkpoints.removal import remove_tree, sweep
from aisotools.workspace.checkpoints.restore import RestoreResult, remove_trees
from aisotools.workspace.checkpoints.staging import stage_name
from tests.workspace.checkpoints.test_restore import (
    TrackedFolder,
    descriptors,
    mode_of,
    ordinary_user,
)


@pytest.fixture
def tracked(tmp_path: Path) -> Iterator[TrackedFolder]:
    folder = TrackedFolder(tmp_path)
    yield folder
    folder.store.close()


def test_sweep_removes_partial_files_of_its_token_only(tracked: TrackedFolder) -> None:
    (tracked.root / "d").mkdir()
    for name in (".aisotools-write-t-1", "d/.aisotools-write-t-22", ".aisotools-write-other-1", "d/t-1"):
        (tracked.root / name).touch()
    (tracked.root / ".aisotools-write-t-0").mkdir()  # not ours, and no reason to stop
    before = descriptors()
    with tracked.tree.opened() as root:
        sweep(root, [(), ("gone",), ("d",)], "t")
    assert descriptors() == before
    assert tracked.names() == [".aisotools-write-other-1", ".aisotools-write-t-0", "d", "d/t-1"]


def test_sweep_removes_what_is_left_of_a_removed_folder_with_all_that_it_holds(
    tracked: TrackedFolder,
) -> None:
    left = tracked.root / ".aisotools-write-t-removed-1f-" / "a" / "b"
    left.mkdir(parents=True)
    (left / "file").touch()
    (tracked.root / ".aisotools-write-other-removed-1f-").mkdir()
    with tracked.tree.opened() as root:
        sweep(root, [()], "t")
    assert tracked.names() == [".aisotools-write-other-removed-1f-"]


def test_folder_that_cannot_be_removed_keeps_its_name_and_is_an_error(
    tracked: TrackedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tracked.root / "a" / "b").mkdir(parents=True)

    def refuse(name: str, *, dir_fd: int) -> None:
        raise OSError(errno.EBUSY, "busy")

    with tracked.tree.opened() as root:
        with monkeypatch.context() as patch:
            patch.setattr(os, "rmdir", refuse)
            with pytest.raises(OSError, match="busy"):
                remove_tree(root, ("a",), "t")
        assert (tracked.root / "a").is_dir()
        sweep(root, [()], "t")
    assert tracked.names() == ["a"]


def test_sweep_removes_what_was_staged_before_a_crash(tracked: TrackedFolder) -> None:
    for token in ("t", "other"):
        (tracked.root / stage_name(token) / "1").mkdir(parents=True)
        (tracked.root / stage_name(token) / "1" / "file").touch()
    with tracked.tree.opened() as root:
        sweep(root, [()], "t")
    stage_of_other = stage_name("other")
    assert tracked.names() == [stage_of_other, f"{stage_of_other}/1", f"{stage_of_other}/1/file"]


@pytest.mark.parametrize(
    ("call", "code", "is_clean"),
    [
        ("unlink", errno.EIO, False),
        ("unlink", errno.ENOENT, True),
        ("unlink", errno.EISDIR, True),
        ("rmdir", errno.EIO, False),
        ("listdir", errno.EIO, False),
    ],
)
def test_sweep_says_whether_something_may_be_left(
    tracked: TrackedFolder, monkeypatch: pytest.MonkeyPatch, call: str, code: int, is_clean: bool
) -> None:
    (tracked.root / stage_name("t")).mkdir()
    for name in ("first", "second"):
        (tracked.root / f".aisotools-write-t-{name}").touch()
    failed, real = [code], getattr(os, call)

    def fail(*arguments: Any, **options: Any) -> Any:
        if failed:
            raise OSError(failed.pop(), "failed")
        return real(*arguments, **options)

    before = descriptors()
    with tracked.tree.opened() as root:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            assert sweep(root, [("gone",), ()], "t") == is_clean
        assert len(tracked.names()) == (3 if call == "listdir" else 1), "all else is gone"
        assert sweep(root, [()], "t")
    assert tracked.names() == []
    assert descriptors() == before


class Killed(BaseException):
    """The process ends."""


@pytest.mark.parametrize("name", [stage_name("t"), ".aisotools-write-t-removed-1f-"])
def test_sweep_that_a_crash_cuts_short_leaves_nothing_that_the_next_one_does_not_find(
    tracked: TrackedFolder, name: str
) -> None:
    """What it has moved out of the folder is in the workspace of a person."""
    for ended_at in range(8):
        (tracked.root / name / "a" / "b" / "c").mkdir(parents=True)
        (tracked.root / name / "a" / "b" / "file").touch()
        left = ended_at

        def end(call: Callable[..., None], *arguments: Any, **options: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            call(*arguments, **options)

        with tracked.tree.opened() as root:
            with pytest.MonkeyPatch.context() as patch:
                for call in ("rename", "rmdir", "unlink"):
                    patch.setattr(os, call, functools.partial(end, getattr(os, call)))
                with contextlib.suppress(Killed):
                    sweep(root, [()], "t")
            assert bool(tracked.names()) == (ended_at < 8)
            sweep(root, [()], "t")
        assert tracked.names() == []


# ---- removal of whole trees


def test_tree_of_any_depth_is_removed_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine").touch()
    root = tmp_path / "root"
    (root / "top").mkdir(parents=True)
    (root / "top" / "file").touch()
    (root / "top" / "link").symlink_to(tmp_path / "outside")
    (root / "top" / "second" / "third").mkdir(parents=True)
    (root / "top" / "locked").mkdir()
    (root / "top" / "locked" / "file").touch()
    (root / "top" / "locked").chmod(0)
    folder = os.open(root / "top", os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 200, dir_fd=folder)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    (root / "other").touch()
    before = descriptors()
    top = os.open(root, os.O_RDONLY)
    assert remove_trees(top, [("other", "x"), ("top",), ("gone",)]) == RestoreResult(
        removed=[("top",)], failed=[(("other", "x"), "Not a directory")]
    )
    assert [path.name for path in root.iterdir()] == ["other"]
    (root / "link").symlink_to(tmp_path / "outside")
    remove_tree(top, ("link",))
    remove_tree(top, ("other",))
    with pytest.raises(FileNotFoundError):
        remove_tree(top, ("other",))
    os.close(top)
    assert descriptors() == before
    assert list(root.iterdir()) == []
    assert (tmp_path / "outside" / "mine").exists()


def test_locked_folders_are_removed_by_their_owner(tmp_path: Path) -> None:
    """What may not be read was never stored, so only force removes it; its mode must not prevent that."""
    root = tmp_path / "root"
    for name in ("top/inner/a/b", "top/inner/c", "top/stays"):
        (root / name).mkdir(parents=True)
        (root / name / "file").touch()
    before = descriptors()
    with ordinary_user(root) as folder:
        for name, mode in [
            ("inner/a/b", 0),
            ("inner/a", 0o555),
            ("inner/c", 0o300),
            ("inner", 0),
            ("", 0o555),
        ]:
            os.chmod(f"top/{name}", mode, dir_fd=folder)
        assert remove_trees(folder, [("top", "inner")]) == RestoreResult(removed=[("top", "inner")])
    assert [path.name for path in (root / "top").iterdir()] == ["stays"]
    assert mode_of(root / "top") == 0o555
    assert descriptors() == before


def test_folder_that_is_being_removed_is_private(tmp_path: Path) -> None:
    """Whoever could pass through it would find what is moved meanwhile."""
    (tmp_path / "top" / "inner").mkdir(parents=True)
    for name in ("top/inner", "top"):
        (tmp_path / name).chmod(0o777)
    modes: list[int] = []
    listdir = os.listdir

    def listing(folder: int) -> list[str]:
        modes.append(stat.S_IMODE(os.fstat(folder).st_mode))
        return listdir(folder)

    root = os.open(tmp_path, os.O_RDONLY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", listing)
        remove_tree(root, ("top",))
    os.close(root)
    assert modes == [0o700, 0o700]
    assert list(tmp_path.iterdir()) == []


def test_folder_that_leaves_the_one_around_it_is_private(tmp_path: Path) -> None:
    """It is moved beside the removed folder, whose mode may have been all that kept others out."""
    (tmp_path / "top" / "inner").mkdir(parents=True)
    (tmp_path / "top").chmod(0o700)
    (tmp_path / "top/inner").chmod(0o777)
    modes: list[int] = []
    rename = os.rename

    def renaming(source: str, target: str, **folders: int) -> None:
        modes.append(stat.S_IMODE(os.stat(source, dir_fd=folders["src_dir_fd"]).st_mode))
        rename(source, target, **folders)

    root = os.open(tmp_path, os.O_RDONLY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", renaming)
        remove_tree(root, ("top",))
    os.close(root)
    assert modes[-1] == 0o700
    assert list(tmp_path.iterdir()) == []
