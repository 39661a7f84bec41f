"""Files with holes take as much room as what is in them, in the store and when they come back."""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.contents import (
    has_holes,
    occupied_bytes,
    store_sparse,
    write_content,
)
from aisotools.workspace.checkpoints.scan import ScanLimits
from aisotools.workspace.checkpoints.store import Store, StoredFile
from aisotools.workspace.checkpoints.timeline import Checkpoints
from aisotools.workspace.checkpoints.tree import Node


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store")
    yield store
    store.close()


def make_sparse(path: Path, size: int, pieces: dict[int, bytes]) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
        for at, data in pieces.items():
            os.pwrite(file.fileno(), data, at)
    return path


def stored(store: Store, path: Path, max_bytes: int = 1 << 20) -> StoredFile | None:
    file = os.open(path, os.O_RDONLY)
    try:
        return store_sparse(store, file, path.stat().st_size, max_bytes=max_bytes)
    finally:
        os.close(file)


def written(store: Store, content: StoredFile, path: Path) -> Path:
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        write_content(store, Node("sparse", content=content.digest, size=content.size), file)
    finally:
        os.close(file)
    return path


def test_file_of_a_gigabyte_takes_what_is_in_it(store: Store, tmp_path: Path) -> None:
    size = 1 << 30
    path = make_sparse(tmp_path / "a", size, {0: b"first", 1 << 29: b"middle", size - 4: b"last"})
    began_s = time.process_time()
    content = stored(store, path)
    assert content is not None
    assert content.size < 1 << 16
    back = written(store, content, tmp_path / "back")
    assert time.process_time() - began_s < 1, "holes are not read"
    assert (back.stat().st_size, back.stat().st_blocks * 512 < 1 << 17) == (size, True)
    with back.open("rb") as file:
        for at, data in ((0, b"first\0"), (1 << 29, b"middle\0"), (size - 4, b"last")):
            file.seek(at)
            assert file.read(len(data)) == data


def test_size_of_a_hostile_file_costs_nothing(store: Store, tmp_path: Path) -> None:
    path = make_sparse(tmp_path / "a", 1 << 43, {1 << 42: b"x"})
    content = stored(store, path)
    assert content is not None
    assert content.size < 1 << 13
    assert written(store, content, tmp_path / "back").stat().st_size == 1 << 43


def test_more_than_may_be_stored_is_not(store: Store, tmp_path: Path) -> None:
    path = make_sparse(tmp_path / "a", 1 << 22, {0: b"x" * 10_000})
    assert stored(store, path, max_bytes=9_000) is None
    assert list((store.folder / "objects").iterdir()) == []


@given(
    st.integers(0, 300_000),
    st.dictionaries(st.integers(0, 299_999), st.binary(min_size=1, max_size=6_000), max_size=5),
)
def test_any_file_comes_back_byte_by_byte(
    tmp_path_factory: pytest.TempPathFactory, size: int, pieces: dict[int, bytes]
) -> None:
    top = tmp_path_factory.mktemp("sparse")
    store = Store(top / "store")
    path = make_sparse(top / "a", size, pieces)
    content = stored(store, path)
    assert content is not None
    assert written(store, content, top / "back").read_bytes() == path.read_bytes()
    # The same bytes without holes are the same content.
    (top / "b").write_bytes(path.read_bytes())
    assert stored(store, top / "b") == content
    store.close()


def test_holes_are_told_from_what_is_written(tmp_path: Path) -> None:
    whole, sparse = tmp_path / "whole", make_sparse(tmp_path / "sparse", 1 << 20, {0: b"x"})
    whole.write_bytes(bytes(1 << 20))
    found = []
    for path in (whole, sparse):
        file = os.open(path, os.O_RDONLY)
        found.append(has_holes(file, os.fstat(file)))
        os.close(file)
    assert found == [False, True]
    assert occupied_bytes(sparse.stat()) < 1 << 13
    link = tmp_path / "link"
    link.symlink_to("whole")
    assert occupied_bytes(link.lstat()) == len("whole")


def test_format_is_the_size_and_then_each_run_of_blocks(store: Store, tmp_path: Path) -> None:
    """Other versions read it. A run ends with its window of 16 blocks of 4 KiB."""
    size, blocks = 20 * 4096 - 1, [b"%x" % number * 4096 for number in range(16)]
    path = make_sparse(tmp_path / "a", size, {0: b"abc", 15 * 4096: blocks[15] + blocks[1] + blocks[2]})
    content = stored(store, path)
    assert content is not None
    runs = [(0, b"abc" + bytes(4093)), (15 * 4096, blocks[15]), (16 * 4096, blocks[1] + blocks[2])]
    expected = b"sparse 1" + struct.pack("<Q", size)
    expected += b"".join(struct.pack("<QQ", place, len(data)) + data for place, data in runs)
    assert store.get(content.digest) == expected


def test_bytes_beyond_the_size_of_a_file_are_not_stored(store: Store, tmp_path: Path) -> None:
    path = make_sparse(tmp_path / "a", 200_000, {0: b"a" * 200_000})
    file = os.open(path, os.O_RDONLY)
    content = store_sparse(store, file, 70_000, max_bytes=1 << 20)
    os.close(file)
    assert content is not None
    assert content.size < 70_000 + 200
    assert written(store, content, tmp_path / "back").read_bytes() == b"a" * 70_000


def test_file_of_one_byte_is_stored_with_it(store: Store, tmp_path: Path) -> None:
    content = stored(store, make_sparse(tmp_path / "a", 1, {0: b"a"}))
    assert content is not None
    assert written(store, content, tmp_path / "back").read_bytes() == b"a"


@pytest.mark.parametrize("length", [1, 7, 15, 16, 17, 33])
def test_content_may_come_in_pieces_of_any_length(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    path = make_sparse(tmp_path / "a", 100_000, {0: b"first", 50_000: b"middle", 99_996: b"last"})
    content = stored(store, path)
    assert content is not None
    whole = store.get(content.digest)
    pieces = [whole[at : at + length] for at in range(0, len(whole), length)]
    monkeypatch.setattr(store, "verified_chunks", lambda _: iter(pieces))
    assert written(store, content, tmp_path / "back").read_bytes() == path.read_bytes()


def test_content_without_holes_is_copied(store: Store, tmp_path: Path) -> None:
    file = os.open(tmp_path / "back", os.O_RDWR | os.O_CREAT)
    write_content(store, Node("file", content=store.put(b"whole"), size=5), file)
    os.close(file)
    assert (tmp_path / "back").read_bytes() == b"whole"


def test_room_that_a_file_takes_is_counted_in_units_of_512_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status: Any = SimpleNamespace(st_mode=stat.S_IFREG, st_size=10_000, st_blocks=8)
    assert occupied_bytes(status) == 4096
    status.st_size = 100
    assert occupied_bytes(status) == 100
    status.st_mode, status.st_size = stat.S_IFLNK, 10_000
    assert occupied_bytes(status) == 10_000
    # Compressed: it takes less than its size, and has no hole.
    seeks: list[tuple[int, int]] = []

    def seek(_file: int, place: int, whence: int) -> int:
        seeks.append((place, whence))
        return 10_000

    monkeypatch.setattr(os, "lseek", seek)
    assert not has_holes(0, status)
    assert seeks == [(0, os.SEEK_HOLE)]

    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "no such thing")

    monkeypatch.setattr(os, "lseek", refuse)
    assert not has_holes(0, status)


def test_disk_that_does_not_tell_where_the_holes_are_is_an_error(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not count as one that knows no holes: half of a file would be stored as the whole."""
    path = make_sparse(tmp_path / "a", 1 << 20, {0: b"x"})
    status = path.stat()

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "lseek", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        has_holes(0, status)
    with pytest.raises((OSError, WorkspaceError), match=os.strerror(errno.EIO)):
        stored(store, path)


def test_damaged_content_is_an_error(store: Store, tmp_path: Path) -> None:
    content = stored(store, make_sparse(tmp_path / "a", 1 << 20, {0: b"x" * 5_000}))
    assert content is not None
    place = store.folder / "objects" / content.digest
    place.write_bytes(place.read_bytes()[:-1] + b"y")
    with pytest.raises(WorkspaceError, match="damaged"):
        written(store, content, tmp_path / "back")


def test_sparse_file_comes_back_sparse_and_is_covered_whatever_its_size(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    root.mkdir()
    path = make_sparse(root / "a", 1 << 30, {1 << 20: b"data"})
    chain = Checkpoints(root, tmp_path / "state", ScanLimits(total_bytes=1 << 20))
    chain.begin("c", "tool", "s")
    path.unlink()
    chain.end("c")
    assert chain.move("undo", chain.steps[-1:]).missing == ()
    assert (path.stat().st_size, path.stat().st_blocks * 512 <= 1 << 16) == (1 << 30, True)
    assert chain.store.size < 1 << 16
    chain.close()


# ---- blocks that are shared


def test_content_is_shared_where_the_file_system_can(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system of the tests may not: so its answer is given here, and the copy is made by hand."""
    data = os.urandom(1 << 17)
    digest = store.put(data)
    shared = []

    def share(file: int, request: int, source: int) -> int:
        assert request == 0x40049409
        shared.append(source)
        os.write(file, os.pread(source, 1 << 20, 0))
        return 0

    monkeypatch.setattr("fcntl.ioctl", share)
    for name in ("a", "b"):
        file = os.open(tmp_path / name, os.O_RDWR | os.O_CREAT)
        store.copy(digest, file)
        os.close(file)
        assert (tmp_path / name).read_bytes() == data
    assert len(shared) == 2
    (store.folder / "objects" / digest).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    file = os.open(tmp_path / "c", os.O_RDWR | os.O_CREAT)
    with pytest.raises(WorkspaceError, match="damaged"):
        store.copy(digest, file)
    os.close(file)


@pytest.mark.parametrize(("code", "tries"), [(errno.EOPNOTSUPP, 1), (errno.EXDEV, 1), (errno.ENOSPC, 2)])
def test_content_is_copied_where_it_cannot_be_shared(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, tries: int
) -> None:
    """What never works is tried once."""
    data = os.urandom(1 << 17)
    digest = store.put(data)
    tried = []

    def refuse(*_arguments: int) -> int:
        tried.append(1)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.ioctl", refuse)
    for name in ("a", "b"):
        file = os.open(tmp_path / name, os.O_RDWR | os.O_CREAT)
        store.copy(digest, file)
        os.close(file)
        assert (tmp_path / name).read_bytes() == data
    assert len(tried) == tries
