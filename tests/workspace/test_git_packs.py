"""Indexes of packs as git writes them, and as hostile code may."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from aisotools.workspace.git_packs import PackIndex
from tests.workspace.test_git_index import git, needs_git


def packed(root: Path, object_format: str) -> tuple[bytes, set[str]]:
    """Make a repository with one pack. Return its index, and the objects in it."""
    root.mkdir()
    git(root, "init", "-q", "-b", "main", f"--object-format={object_format}")
    for number in range(300):
        (root / f"{number}").write_text(f"{number}")
    git(root, "add", ".")
    git(root, "commit", "-qm", "all")
    git(root, "gc", "-q", "--prune=now")
    (index,) = (root / ".git" / "objects" / "pack").glob("*.idx")
    objects = git(root, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    return index.read_bytes(), set(objects)


@needs_git
@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_index_has_each_object_of_its_pack_and_no_other(tmp_path: Path, object_format: str) -> None:
    data, objects = packed(tmp_path / "repo", object_format)
    pack = PackIndex(data)
    assert len(pack) == len(objects) > 300
    assert {name.hex() for name in pack} == objects
    assert all(name in pack for name in objects)
    size = len(next(iter(objects)))
    others = {os.urandom(size // 2).hex() for _ in range(300)} | {"0" * size, "f" * size}
    others |= {f"{int(name, 16) ^ 1:0{size}x}" for name in objects}
    assert not [name for name in others - objects if name in pack]
    assert "0" * (104 - size) not in pack, "of the other format"
    assert 1 not in pack


@needs_git
def test_index_that_is_cut_off_or_of_another_version_is_an_error(tmp_path: Path) -> None:
    data, _ = packed(tmp_path / "repo", "sha1")
    for end in (0, 4, 8, 100, 1031, 2000, len(data) - 4000):
        with pytest.raises(ValueError, match=r"not as long as|no index"):
            PackIndex(data[:end])
    with pytest.raises(ValueError, match="no index"):
        PackIndex(data[8:])
    with pytest.raises(ValueError, match="in no order"):
        PackIndex(data[:8] + bytes([255]) + data[9:])


@given(st.binary(max_size=200), st.binary(min_size=20, max_size=20), st.integers(0, 3))
def test_hostile_index_is_an_error_or_answers(tail: bytes, name: bytes, count: int) -> None:
    data = b"\xfftOc\x00\x00\x00\x02" + count.to_bytes(4, "big") * 256 + tail
    try:
        pack = PackIndex(data)
    except ValueError:
        assert count or len(tail) != 40
        return
    assert (name.hex() in pack) in {True, False}
    assert len(pack) == count
