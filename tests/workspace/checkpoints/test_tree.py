"""Looks at folders deeper than what is stored, and opening of folders on a path."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from aisotools.workspace.checkpoints.removal import remove_tree
from aisotools.workspace.checkpoints.tree import (
    TOO_LARGE,
    Node,
    TreePath,
    digest_below,
    missing_folders,
    open_below,
)


def digest_of(folder: Path, most_entries: int = 100) -> tuple[str, int]:
    opened = os.open(folder, os.O_RDONLY)
    try:
        return digest_below(opened, os.fstat(opened).st_dev, most_entries)
    finally:
        os.close(opened)


def test_digest_changes_with_whatever_changes_below(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (tmp_path / "z").mkdir()
    seen = {digest_of(tmp_path)[0]}
    assert digest_of(tmp_path) == (*seen, 4)
    for change in (
        lambda: (deep / "file").write_text("1"),
        lambda: (deep / "file").write_text("22"),
        lambda: (deep / "file").chmod(0o600),
        lambda: (deep / "link").symlink_to("file"),
        lambda: (tmp_path / "z").rename(tmp_path / "y"),
        lambda: (tmp_path / "y").rename(deep / "y"),
    ):
        change()
        found, _ = digest_of(tmp_path)
        assert found not in {"", *seen}
        seen.add(found)


def test_digest_goes_by_links_and_not_by_what_they_lead_to(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    folder.mkdir()
    outside.write_text("1")
    (folder / "link").symlink_to(outside)
    before = digest_of(folder)
    outside.write_text("more than before")
    assert digest_of(folder) == before
    outside.unlink()
    assert digest_of(folder) == before
    (folder / "link").unlink()
    (folder / "link").symlink_to("elsewhere")
    assert digest_of(folder)[0] not in {"", before[0]}


def test_there_is_no_digest_of_what_lies_on_another_file_system(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    opened = os.open(tmp_path, os.O_RDONLY)
    try:
        assert digest_below(opened, os.fstat(opened).st_dev + 1, 100) == ("", 1)
    finally:
        os.close(opened)


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_look_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    before = open_descriptors()
    digest_of(tmp_path)
    digest_of(tmp_path, 1)
    assert open_descriptors() == before


def test_folder_that_is_opened_below_another_leaves_those_on_the_way_closed(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    root = os.open(tmp_path, os.O_RDONLY)
    before = open_descriptors()
    for path, folder in [(("a", "b"), inner), ((), tmp_path)]:
        opened = open_below(root, path)
        assert os.fstat(opened).st_ino == folder.stat().st_ino
        assert opened != root
        assert open_descriptors() == before + 1
        os.close(opened)
    for path in [("a", "gone"), ("gone", "b"), ("link", "b"), ("link",)]:
        with pytest.raises(OSError, match=r"No such file|Not a directory"):
            open_below(root, path)
        assert open_descriptors() == before
    os.close(root)


def test_there_is_no_digest_of_more_entries_than_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert digest_of(tmp_path, 1) == ("", 2)
    assert digest_of(tmp_path, 2)[0]


def test_folder_that_leaves_the_tree_while_it_is_looked_at_ends_the_look(tmp_path: Path) -> None:
    """What `..` leads to from there is none of the workspace's."""
    inner, outside = tmp_path / "top" / "a" / "b", tmp_path / "outside"
    inner.mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").touch()
    listed: list[list[str]] = []
    listdir, number = os.listdir, inner.stat().st_ino

    def listing(folder: int) -> list[str]:
        if os.fstat(folder).st_ino == number:
            inner.rename(outside / "b")
        listed.append(listdir(folder))
        return listed[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", listing)
        assert digest_of(tmp_path / "top")[0] == ""
    assert listed == [["a"], ["b"], []]


def test_deep_folders_are_looked_at_with_few_descriptors(tmp_path: Path) -> None:
    top = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("d", dir_fd=top)
        below = os.open("d", os.O_RDONLY, dir_fd=top)
        os.close(top)
        top = below
    os.close(top)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), hard))
    try:
        digest, count = digest_of(tmp_path, 2_000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (bool(digest), count) == (True, 1_500)
    opened = os.open(tmp_path, os.O_RDONLY)
    remove_tree(opened, ("d",))
    os.close(opened)


class Listed:
    """Trees that are dictionaries."""

    def __init__(self, **trees: dict[TreePath, Node]) -> None:
        self.trees = trees

    def lookup(self, tree: str, path: TreePath) -> Node | None:
        return self.trees[tree].get(path)


STORED, LARGE = Node("file", 0o644), Node("unkept", content=f"{TOO_LARGE};1:2:3:4")
ELSEWHERE = Node("unkept", content="it lies on another file system;1:2:3:4")
UNREADABLE = Node("unkept", content="it cannot be read: Permission denied;1:2:3:40000.1.1")


@pytest.mark.parametrize(
    ("present", "target", "is_missing"),
    [
        (None, STORED, True),
        (None, LARGE, True),
        (None, None, False),
        (STORED, STORED, True),
        (LARGE, STORED, True),
        (Node("other"), STORED, True),
        (STORED, LARGE, False),
        (LARGE, LARGE, False),
        (ELSEWHERE, STORED, False),
        (UNREADABLE, STORED, False),
        (Node("folder"), STORED, False),
    ],
)
def test_folder_around_a_target_is_missing_if_something_else_is_there(
    present: Node | None, target: Node | None, is_missing: bool
) -> None:
    folder = Node("folder", 0o755)
    now: dict[TreePath, Node] = {} if present is None else {("d",): present}
    reader: Any = Listed(now=now, end={("d",): folder})
    beside: dict[TreePath, Node | None] = {("d", "large"): LARGE} if target is STORED else {}
    for targets in ({**beside, ("d", "a"): target}, {("d", "a"): target, **beside}):
        assert missing_folders(reader, "now", "end", targets) == ({("d",): folder} if is_missing else {})
