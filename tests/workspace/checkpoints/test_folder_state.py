"""What a scanner remembers of a folder: packed, counted, and put away in a file."""

from __future__ import annotations

import itertools
import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from sys import getrefcount, getsizeof

import pytest

from aisotools.workspace.checkpoints import folder_state
from aisotools.workspace.checkpoints.folder_state import (
    _FOLDER_HEAD,
    ALWAYS_READ,
    FileStamp,
    FolderState,
    pack_stamp,
    put_away,
    take_back,
)
from aisotools.workspace.checkpoints.store import content_digest
from aisotools.workspace.checkpoints.tree import Node, encode_folder


def test_state_counts_bytes_and_unkept_entries() -> None:
    state = FolderState()
    state.set("a", None, Node("file", 0o644, "d1", 10))
    state.set("b", None, Node("file", 0o644, "d1", 5))
    state.set("u", None, Node("unkept", content="why;1"))
    assert (state.file_bytes, state.unkept) == (15, 1)
    state.set("a", None, Node("file", 0o644, "d2", 1))
    state.set("u", None, Node("unkept", content="why;2"))
    assert (state.file_bytes, state.unkept) == (6, 1)
    state.drop("b")
    state.drop("u")
    state.drop("unknown")
    assert (state.file_bytes, state.unkept) == (1, 0)
    state.set("a", None, Node("link", content="x"))
    assert state.file_bytes == 0


def test_new_state_has_to_be_stored() -> None:
    """Even that of an empty folder has a listing."""
    assert FolderState().changed
    assert FolderState(FolderState()).changed


def test_uncovered_entries_are_named_at_every_depth() -> None:
    state = FolderState()
    for folder in (state, inner := FolderState(state)):
        folder.set("a file", None, Node("file", 0o644, content_digest(b"x"), 10))
        folder.set("b", None, Node("unkept", content="it is too large;1"))
        folder.set("link", None, Node("link", content="b"))
    state.set("folder", None, Node("folder"))
    state.folders["folder"] = inner
    inner.set("c", None, Node("unkept", content="it cannot be read;2"))
    assert list(state.uncovered(("top",))) == [
        (("top", "b"), "it is too large"),
        (("top", "folder", "b"), "it is too large"),
        (("top", "folder", "c"), "it cannot be read"),
    ]
    state.drop("b")
    state.drop("folder")
    assert list(state.uncovered(())) == []


def test_change_marks_the_folder_and_all_above() -> None:
    states = [top := FolderState(), middle := FolderState(top), bottom := FolderState(middle)]
    node = Node("link", content="x")
    bottom.set("a", None, node)

    def changed_by(act: Callable[[], object]) -> list[bool]:
        for state in states:
            state.changed = False
        act()
        return [state.changed for state in states]

    assert changed_by(lambda: bottom.set("a", (1, 2, 3, 4), node)) == [False, False, False]
    assert changed_by(lambda: bottom.set("a", None, Node("link", content="y"))) == [True, True, True]
    assert changed_by(lambda: middle.set("b", None, node)) == [True, True, False]
    assert changed_by(lambda: bottom.drop("unknown")) == [False, False, False]
    assert changed_by(lambda: bottom.drop("a")) == [True, True, True]


def test_state_forgets_the_folder_that_something_else_replaced() -> None:
    state = FolderState()
    acts: list[Callable[[], None]] = [
        lambda: state.set("a", None, Node("link", content="x")),
        lambda: state.drop("a"),
    ]
    for act in acts:
        state.set("a", None, Node("folder", 0o755, "d1"))
        state.folders["a"] = FolderState(state)
        state.set("a", None, Node("folder", 0o700, "d1"))
        assert "a" in state.folders
        act()
        assert state.folders == {}


NODES = {
    "file": Node("file", 0o640, content_digest(b"x"), 1 << 40),
    "folder": Node("folder", 0o777, content_digest(b"y")),
    "not stored yet": Node("folder", 0o700),
    "link": Node("link", content="../\udcff/where"),
    "fifo": Node("fifo", 0o600),
    "socket": Node("other", content="socket"),
    "\udcfe name": Node("unkept", 0o644, "it is too large;1:2:3:4"),
}
STAMP: FileStamp = (1 << 40, -5, (1 << 64) - 1, 1_700_000_000_000_000_000)


def filled() -> FolderState:
    state = FolderState()
    for number, (name, node) in enumerate(NODES.items()):
        state.set(name, STAMP if number % 2 else None, node)
    state.folders["folder"] = inner = FolderState(state)
    inner.set("inner", STAMP, NODES["file"])
    inner.folders["empty"] = FolderState(inner)
    inner.digest, inner.changed = content_digest(b"z"), False
    return state


def nodes_of(state: FolderState) -> dict[str, Node]:
    return {name: state.node(name) for name in state.records}


def every_folder(state: FolderState) -> Iterator[FolderState]:
    yield state
    for folder in state.folders.values():
        yield from every_folder(folder)


def test_entries_are_unpacked_as_they_were_set() -> None:
    state = filled()
    assert nodes_of(state) == NODES
    assert state.listing() == encode_folder(NODES)
    assert FolderState().listing() == encode_folder({}) == b""
    untrusted = [record.startswith(ALWAYS_READ) for record in state.records.values()]
    assert untrusted == [n % 2 == 0 for n in range(len(NODES))]
    assert state.records["folder"].startswith(pack_stamp(*STAMP))
    state.set_digest("not stored yet", content_digest(b"now"))
    assert state.node("not stored yet") == Node("folder", 0o700, content_digest(b"now"))


OURS, THEIRS = (os.getuid(), os.getgid()), (1 << 40, 5)
ATTRIBUTES = [
    {"mtime_ns": mtime_ns, "owner": owner, "xattrs": xattrs, "link": link}
    for mtime_ns, owner, xattrs, link in itertools.product(
        (STAMP[1], -7, 1 << 70),
        (None, OURS, THEIRS),
        ("", content_digest(b"attributes")),
        (None, (3, 1 << 60)),
    )
]
"""Times as in the stamp, others, and one of more than 64 bits, with every other attribute or without."""


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_every_attribute_is_unpacked_as_it_was_set(kind: str) -> None:
    plain = NODES[kind]
    nodes = {f"{number:03}": plain._replace(**values) for number, values in enumerate(ATTRIBUTES)}  # type: ignore[arg-type]  # each has the type of its field
    for stamp in (STAMP, None):
        state = FolderState()
        for name, node in nodes.items():
            state.set(name, stamp, node)
        assert nodes_of(state) == nodes
        assert state.listing() == encode_folder(nodes)


@pytest.mark.parametrize(("uid", "is_root"), [(0, True), (1, False), (1000, False)])
def test_entries_that_perhaps_cannot_be_made_again_are_named_at_every_depth(
    monkeypatch: pytest.MonkeyPatch, uid: int, *, is_root: bool
) -> None:
    """Only root may give files to somebody else."""
    monkeypatch.setattr(folder_state, "_OWNER", (uid, uid + 5))
    file = NODES["file"]._replace(mtime_ns=7, owner=(uid, uid + 5))
    special = {
        "attribute": file._replace(xattrs=content_digest(b"attributes")),
        "other name": file._replace(link=(3, 2)),
        "setgid": file._replace(mode=0o2755),
        "setuid, with holes": file._replace(kind="sparse", mode=0o4755),
        "socket": NODES["socket"],
    }
    theirs = {"theirs": file._replace(owner=(uid + 5, uid + 5))}
    ordinary = {
        "folder": NODES["folder"]._replace(mode=0o2777, mtime_ns=7),
        "ours": file,
        "ours as in its stamp": file._replace(mtime_ns=STAMP[1]),
        "without attributes": NODES["file"],
    }
    state = FolderState()
    state.folders["folder"] = inner = FolderState(state)
    for folder in (state, inner):
        for name, node in (special | theirs | ordinary).items():
            folder.set(name, STAMP, node)
    expected = special if is_root else special | theirs
    for folder in (state, inner):
        assert folder.special == len(expected)
    assert {(path[:-1], path[-1]): node for path, node in state.partial(("top",))} == {
        (path, name): node for path in (("top",), ("top", "folder")) for name, node in expected.items()
    }
    for name in expected:
        inner.drop(name)
    assert (inner.special, len(list(state.partial(())))) == (0, len(expected))


def test_stamp_of_more_than_64_bits_is_not_trusted() -> None:
    state = FolderState()
    state.set("a", (1, 1 << 63, 1, 1), NODES["file"])
    assert state.records["a"].startswith(ALWAYS_READ)


def test_state_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    state = filled()
    with put_away(state, tmp_path) as file:
        assert list(tmp_path.iterdir()) == []
        back = take_back(file)
    assert nodes_of(back) == NODES
    for one, other in zip(every_folder(state), every_folder(back), strict=True):
        for name in ("records", "digest", "changed", "file_bytes", "unkept", "entry_bytes"):
            assert getattr(one, name) == getattr(other, name)
        assert [*one.folders] == [*other.folders]
        assert (one.parent is None) == (other.parent is None)


def test_state_comes_back_in_little_more_memory_than_it_takes(tmp_path: Path) -> None:
    """Whatever the characters of one name are: all names as one text would take four bytes for each."""
    state = FolderState()
    for number in range(2_000):
        state.set(f"{number:04}{'x' * 240}", None, Node("fifo"))
    state.set("\U0001f600", None, Node("fifo"))
    file = put_away(state, tmp_path)
    tracemalloc.start()
    try:
        again = take_back(file)
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        file.close()
    assert again.records == state.records
    assert peak - now < 2_000 * (2 * 244 + 200)


def test_empty_state_comes_back(tmp_path: Path) -> None:
    with put_away(FolderState(), tmp_path) as file:
        assert take_back(file).records == {}


def test_part_of_a_file_is_no_state(tmp_path: Path) -> None:
    with put_away(filled(), tmp_path) as file:
        for size in range(file.seek(0, os.SEEK_END) - 1, -1, -1):
            file.truncate(size)
            file.seek(0)
            with pytest.raises(ValueError, match="bytes too early"):
                take_back(file)


def test_part_that_is_missing_is_counted(tmp_path: Path) -> None:
    with put_away(filled(), tmp_path) as file:
        size = file.seek(0, os.SEEK_END)
        for left, missing in [(size - 1, 1), (0, _FOLDER_HEAD.size)]:
            file.truncate(left)
            file.seek(0)
            with pytest.raises(ValueError, match=f"the file ends {missing} bytes too early"):
                take_back(file)


def test_names_and_records_that_do_not_fit_are_no_state(tmp_path: Path) -> None:
    state = FolderState()
    for name in ("first", "second"):
        state.set(name, STAMP, NODES["file"])
    with put_away(state, tmp_path) as file:
        data = file.read()
        file.seek(data.index(b"first\0second") + len("first"))
        file.write(b"x")
        file.seek(0)
        with pytest.raises(ValueError, match="is longer than"):
            take_back(file)


def test_state_that_cannot_be_written_leaves_no_file_open(tmp_path: Path) -> None:
    state = filled()
    state.folders["x" * (1 << 16)] = FolderState(state)  # no name may be that long
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    with pytest.raises(struct.error) as caught:
        put_away(state, tmp_path)
    # While the traceback still refers to the file.
    assert caught.tb is not None
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_file_that_cannot_be_written_is_closed(tmp_path: Path) -> None:
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="No such file"):
        put_away(filled(), tmp_path / "gone")
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_size_is_what_the_records_take() -> None:
    """A file takes 112 bytes, its name and its place in a dictionary."""
    state = FolderState()
    empty = state.memory_bytes()
    for number in range(10_000):
        state.set(f"f{number}", STAMP, NODES["file"])
    expected = sum(112 + getsizeof(name) for name in state.records) + getsizeof(state.records)
    assert abs(state.memory_bytes() - empty - expected) < 10_000 * 16
    for number in range(10_000):
        state.drop(f"f{number}")
    assert state.entry_bytes == 0


def test_size_adds_up_over_all_folders() -> None:
    state = filled()
    states = list(every_folder(state))
    assert len(states) == 3
    expected = sum(
        getsizeof(one) + getsizeof(one.records) + getsizeof(one.folders) + getsizeof(one.digest)
        for one in states
    )
    assert state.memory_bytes() == expected + sum(one.entry_bytes for one in states)
    assert FolderState().entry_bytes == 0


def test_digest_that_is_set_later_counts_like_one_that_was_there() -> None:
    late, early = FolderState(), FolderState()
    digest = content_digest(b"now")
    late.set("folder", None, Node("folder", 0o700))
    late.set_digest("folder", digest)
    early.set("folder", None, Node("folder", 0o700, digest))
    assert late.records == early.records
    assert late.entry_bytes == early.entry_bytes
    late.drop("folder")
    assert late.entry_bytes == 0


def test_state_that_is_cleared_does_not_wait_for_the_collector() -> None:
    state = filled()
    inner = state.folders["folder"].folders["empty"]
    name = max(state.records, key=len)
    before = getrefcount(name)
    state.clear()
    assert (state.records, state.folders, inner.parent) == ({}, {}, None)
    assert getrefcount(name) == before - 1
