"""Contents, journal and trees of a checkpoint store: exact bytes, limits, damage, crashes and full disks."""

from __future__ import annotations

import hashlib
import os
import resource
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.store import (
    Node,
    NodeKind,
    Store,
    StoredFile,
    TreePath,
    TreeReader,
    content_digest,
    decode_folder,
    encode_folder,
    reachable_digests,
)

CHUNK = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "state" / "store")
    yield store
    store.close()


def objects(store: Store) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (store.folder / "objects").iterdir()}


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes, as on a disk that becomes full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


# ---- opening


def test_store_is_private(store: Store) -> None:
    store.put(b"x")
    assert mode_of(store.folder) == mode_of(store.folder / "objects") == 0o700
    assert mode_of(store.folder / "chain") == 0o600
    assert mode_of(store.folder / "objects" / content_digest(b"x")) == 0o600
    store.rewrite([])
    assert mode_of(store.folder / "chain") == 0o600


def test_reopened_store_has_its_contents_and_no_partial_ones(store: Store) -> None:
    digest = store.put(b"whole")
    store.close()
    (store.folder / "objects" / "new-7").write_bytes(b"par")
    again = Store(store.folder)
    assert digest in again
    assert "new-7" not in again
    assert again.size == 5
    assert objects(again) == {digest: b"whole"}
    assert repr(again) == "<Store store: 1 contents, 5 bytes>"
    again.close()


def test_dangling_link_among_the_contents_does_not_prevent_opening(store: Store) -> None:
    (store.folder / "objects" / "link").symlink_to("nowhere")
    Store(store.folder).close()


def test_unusable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(WorkspaceError, match=r"kept in '.*/file/store': Not a directory"):
        Store(tmp_path / "file" / "store")


def test_linked_objects_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "objects").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorkspaceError, match="cannot be kept"):
        Store(tmp_path / "store")


def test_close_is_idempotent_and_closes_both_descriptors(tmp_path: Path) -> None:
    before = descriptors()
    store = Store(tmp_path / "store")
    store.close()
    store.close()
    assert descriptors() == before
    with pytest.raises(WorkspaceError):
        store.record(op="x")


# ---- contents


def test_digest_is_blake2b_of_32_bytes() -> None:
    assert content_digest(b"x") == hashlib.blake2b(b"x", digest_size=32).hexdigest()


def test_put_stores_each_content_once(store: Store) -> None:
    digest = store.put(b"one")
    inode = (store.folder / "objects" / digest).stat().st_ino
    assert store.put(b"one") == digest == content_digest(b"one")
    assert (store.folder / "objects" / digest).stat().st_ino == inode
    assert store.put(b"three") != digest
    assert store.size == 8
    assert store.get(digest) == b"one"
    assert digest in store
    assert content_digest(b"two") not in store


@pytest.mark.parametrize("size", [0, 1, 1000, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 3])
@pytest.mark.parametrize("room", [-1, 0, 1])
def test_put_file_stores_all_up_to_the_limit_and_nothing_beyond(
    store: Store, tmp_path: Path, size: int, room: int
) -> None:
    if size + room < 0:
        return
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    before = descriptors()
    with opened(tmp_path / "file") as file:
        stored = store.put_file(file, max_bytes=size + room)
    assert descriptors() == before
    if room < 0:
        assert stored is None
        assert objects(store) == {}
        assert store.size == 0
    else:
        assert stored == StoredFile(content_digest(data), size)
        assert objects(store) == {content_digest(data): data}
        assert store.size == size


@pytest.mark.parametrize("limit", [10, CHUNK - 1, CHUNK, CHUNK + 10])
def test_put_file_reads_one_byte_beyond_the_limit_at_most(store: Store, tmp_path: Path, limit: int) -> None:
    (tmp_path / "file").write_bytes(bytes(3 * CHUNK))
    with opened(tmp_path / "file") as file:
        assert store.put_file(file, max_bytes=limit) is None
        assert os.lseek(file, 0, os.SEEK_CUR) == limit + 1


def test_put_file_takes_what_is_appended_while_it_is_read(store: Store) -> None:
    for limit, expected in [
        (5, StoredFile(content_digest(b"abcd"), 4)),
        (4, StoredFile(content_digest(b"abcd"), 4)),
    ]:
        writing, reading = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with writing, reading:
            writing.send(b"ab")  # each read returns one packet: a short read that is not the end
            writing.send(b"cd")
            writing.close()
            assert store.put_file(reading.fileno(), max_bytes=limit) == expected
    writing, reading = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with writing, reading:
        writing.send(b"ab")
        writing.send(b"ce")
        writing.close()
        assert store.put_file(reading.fileno(), max_bytes=3) is None
    assert content_digest(b"abce") not in store


def test_copy_and_chunks_return_the_bytes(store: Store, tmp_path: Path) -> None:
    data = os.urandom(2 * CHUNK + 10)
    digest = store.put(data)
    assert [len(chunk) for chunk in store.chunks(digest)] == [CHUNK, CHUNK, 10]
    with (tmp_path / "out").open("wb") as out:
        store.copy(digest, out.fileno())
    assert (tmp_path / "out").read_bytes() == data


@pytest.mark.parametrize("damage", [b"", b"goo", b"goof", b"goods", b"good and more"])
def test_damaged_content_is_not_returned(store: Store, tmp_path: Path, damage: bytes) -> None:
    digest = store.put(b"good")
    (store.folder / "objects" / digest).write_bytes(damage)
    message = f"The checkpoint content {digest[:12]} is damaged; it is not used."
    with pytest.raises(WorkspaceError, match=message):
        store.get(digest)
    with (tmp_path / "out").open("wb") as out, pytest.raises(WorkspaceError, match=message):
        store.copy(digest, out.fileno())


def test_missing_content_is_named(store: Store) -> None:
    digest = store.put(b"x")
    (store.folder / "objects" / digest).unlink()
    with pytest.raises(WorkspaceError, match=f"The checkpoint content {digest[:12]} is gone: No such file"):
        store.get(digest)


def test_content_of_unknown_size_is_not_read_whole(store: Store) -> None:
    digest = content_digest(b"ab")
    (store.folder / "objects" / digest).write_bytes(b"ab")
    assert list(store.chunks(digest)) == [b"a"]


def test_chunks_close_their_file(store: Store) -> None:
    digest = store.put(b"x")
    before = descriptors()
    assert list(store.chunks(digest)) == [b"x"]
    reader = store.chunks(digest)
    next(reader)
    reader.close()  # type: ignore[attr-defined]  # a generator
    assert descriptors() == before


def test_keep_only_deletes_the_others(store: Store) -> None:
    first, second = store.put(b"first"), store.put(b"2")
    store.keep_only([second, "unknown"])
    assert objects(store) == {second: b"2"}
    assert first not in store
    assert store.size == 1
    assert store.put(b"first") == first
    assert store.get(first) == b"first"


@pytest.mark.parametrize("size", [100_000, CHUNK, 3 * CHUNK])
def test_full_disk_leaves_no_partial_content(store: Store, tmp_path: Path, size: int) -> None:
    (tmp_path / "large").write_bytes(bytes(size))
    with opened(tmp_path / "large") as file, largest_file(50_000):
        with pytest.raises(WorkspaceError, match=r"cannot be kept in '.*': File too large\. Make room there"):
            store.put_file(file, max_bytes=size)
        with pytest.raises(WorkspaceError, match="set XDG_STATE_HOME"):
            store.put(bytes(size))
    assert objects(store) == {}
    assert store.size == 0
    assert store.put(b"y") == content_digest(b"y")


def test_deleted_store_is_reported(store: Store) -> None:
    for name in ("objects", "."):
        path = store.folder / name
        for inner in path.iterdir():
            inner.unlink()
        path.rmdir()
    with pytest.raises(WorkspaceError, match="The checkpoint cannot be kept"):
        store.put(b"x")
    with pytest.raises(WorkspaceError, match="The checkpoint cannot be kept"):
        store.rewrite([])


# ---- journal


def test_records_come_back_in_order(store: Store) -> None:
    store.record(op="begin", id="a")
    store.record(op="end", id="a", after={"": "x"})
    assert store.records() == [{"op": "begin", "id": "a"}, {"op": "end", "id": "a", "after": {"": "x"}}]
    store.close()
    again = Store(store.folder)
    again.record(op="third")
    assert [record["op"] for record in again.records()] == ["begin", "end", "third"]
    again.close()


@pytest.mark.parametrize(
    "tail", [b'{"op":"b"', b'{"op":"b"}', b"nonsense\n", b"[]\n", b'\n{"op":"b"}\n', b"3\n"]
)
def test_records_end_at_the_first_damaged_line(store: Store, tail: bytes) -> None:
    store.record(op="a")
    with (store.folder / "chain").open("ab") as file:
        file.write(tail)
    assert store.records() == [{"op": "a"}]


def test_partially_written_record_is_an_error(store: Store) -> None:
    store.record(op="a")
    size = (store.folder / "chain").stat().st_size
    with largest_file(size + 4), pytest.raises(WorkspaceError, match="No space left on device"):
        store.record(op="too long")
    assert store.records() == [{"op": "a"}]


def test_rewrite_replaces_the_journal_and_later_records_follow(store: Store) -> None:
    store.record(op="old")
    with (store.folder / "chain").open("ab") as file:
        file.write(b"damaged")
    before = descriptors()
    store.rewrite([{"op": "new"}, {"op": "newer"}])
    assert descriptors() == before
    store.record(op="last")
    assert [record["op"] for record in store.records()] == ["new", "newer", "last"]
    assert not (store.folder / "chain.new").exists()


def test_failed_rewrite_leaves_the_journal_in_place(store: Store) -> None:
    store.record(op="a")
    with largest_file(5), pytest.raises(WorkspaceError, match="File too large"):
        store.rewrite([{"op": "b"}] * 10)
    store.record(op="c")
    assert [record["op"] for record in store.records()] == ["a", "c"]


# ---- trees


class Memory:
    """Folder listings in a dictionary; counts how often each is read."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.reads: list[str] = []

    def put(self, data: bytes) -> str:
        self.contents[content_digest(data)] = data
        return content_digest(data)

    def get(self, digest: str) -> bytes:
        self.reads.append(digest)
        return self.contents[digest]

    def tree(self, nodes: Mapping[str, Node | Mapping[str, object]], mode: int = 0o755) -> Node:
        """Store nested mappings as folders."""
        folder = {
            name: node if isinstance(node, Node) else self.tree(node)  # type: ignore[arg-type]  # nested alike
            for name, node in nodes.items()
        }
        return Node("folder", mode, self.put(encode_folder(folder)))


kinds: st.SearchStrategy[NodeKind] = st.sampled_from(["file", "folder", "link", "fifo", "other", "unkept"])
contents = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)
names = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=8)
nodes = st.builds(Node, kinds, st.integers(0, 0o777), contents, st.integers(0, 1 << 40))


@given(st.dictionaries(names, nodes, max_size=6))
def test_listing_comes_back_and_does_not_depend_on_the_order(folder: dict[str, Node]) -> None:
    data = encode_folder(folder)
    assert decode_folder(data) == folder
    assert encode_folder(dict(reversed(folder.items()))) == data


def test_listing_has_this_format() -> None:
    """Stores of earlier versions are read with it."""
    folder = {
        "b": Node("link", content="a b"),
        "a": Node("file", 0o640, "d1", 12),
        os.fsdecode(b"\xff"): Node("unkept", 0o600, "why;1"),
        "d": Node("folder", 0o755, "d2"),
        "p": Node("fifo", 0o644),
        "s": Node("other", content="socket"),
    }
    assert encode_folder(folder) == (
        b"f 640 12 d1\0a\0l 0 0 a b\0b\0d 755 0 d2\0d\0p 644 0 \0p\0o 0 0 socket\0s\0u 600 0 why;1\0\xff"
    )
    assert encode_folder({}) == b""
    assert decode_folder(b"") == {}


def test_truncated_listing_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        decode_folder(b"f 640 12 d1\0a\0l 0 0 x")


def test_same_content_ignores_modes_and_what_a_folder_holds() -> None:
    file = Node("file", 0o644, "d1", 3)
    assert file.has_same_content(Node("file", 0o600, "d1", 3))
    assert not file.has_same_content(Node("file", 0o644, "d2", 3))
    assert not file.has_same_content(Node("link", 0o644, "d1", 3))
    assert not file.has_same_content(None)
    assert Node("folder", 0o755, "d1").has_same_content(Node("folder", 0o700, "d2"))
    assert not Node("folder", 0o755, "d1").has_same_content(file)


def test_reason_of_an_unkept_node_leaves_the_stamp_out() -> None:
    assert Node("unkept", content="it is too large;1:2:3:4").why_unkept == "it is too large"


def test_reader_reads_each_folder_once_and_only_folders() -> None:
    memory = Memory()
    root = memory.tree({"a": {"x": Node("file", content="d1")}, "b": {"x": Node("file", content="d1")}})
    reader = TreeReader(memory)
    for _ in range(2):
        assert reader.lookup(root.content, ("a", "x")) == Node("file", content="d1")
        assert reader.lookup(root.content, ("b", "x")) == Node("file", content="d1")
    assert len(memory.reads) == 2  # the root, and the folder that is the same twice
    assert reader.lookup(root.content, ()) == Node("folder", content=root.content)
    assert reader.lookup(root.content, ("a", "x", "deeper")) is None
    assert reader.lookup(root.content, ("gone", "x")) is None
    assert reader.of(None) == {}
    assert reader.of(Node("file", content=root.content)) == {}


def test_differences_of_equal_trees_read_nothing() -> None:
    memory = Memory()
    root = memory.tree({"a": {}}).content
    assert TreeReader(memory).differences(root, root) == {}
    assert memory.reads == []


def test_differences_name_folders_before_their_entries() -> None:
    memory = Memory()
    one, two = Node("file", 0o644, "d1", 1), Node("file", 0o644, "d2", 2)
    before = memory.tree(
        {"same": {"f": one}, "changed": {"f": one, "g": one}, "gone": {"f": one}, "kind": one}
    )
    after = memory.tree(
        {"same": {"f": one}, "changed": {"f": two, "g": one}, "new": {"f": one}, "kind": {"f": two}}
    )
    reader = TreeReader(memory)
    found = reader.differences(before.content, after.content)
    assert list(found) == [
        ("changed", "f"),
        ("gone",),
        ("gone", "f"),
        ("kind",),
        ("kind", "f"),
        ("new",),
        ("new", "f"),
    ]
    assert found["changed", "f"] == (one, two)
    assert found["gone", "f"] == (one, None)
    assert found["kind",] == (one, reader.lookup(after.content, ("kind",)))
    assert found["new",] == (None, reader.lookup(after.content, ("new",)))


def test_folder_in_both_trees_differs_only_by_its_mode() -> None:
    memory = Memory()
    inner = memory.tree({"f": Node("file", content="d1")}, mode=0o700)
    before = memory.put(encode_folder({"d": inner}))
    for changed in (inner._replace(mode=0o755), memory.tree({}, mode=0o755)):
        after = memory.put(encode_folder({"d": changed}))
        found = TreeReader(memory).differences(before, after)
        assert found["d",] == (inner, changed)
    emptied = memory.put(encode_folder({"d": memory.tree({}, mode=0o700)}))
    assert list(TreeReader(memory).differences(before, emptied)) == [("d", "f")]


leaves = st.builds(Node, st.sampled_from(["file", "link"]), st.just(0o644), st.sampled_from(["x", "y"]))
trees = st.recursive(
    st.dictionaries(st.sampled_from("abc"), leaves, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), leaves | inner, max_size=3),
    max_leaves=8,
)


def flatten(memory: Memory, root: str) -> dict[TreePath, Node]:
    """Every path of a tree; folders by mode only."""
    found: dict[TreePath, Node] = {}
    for name, node in decode_folder(memory.contents[root]).items():
        found[name,] = node._replace(content="") if node.kind == "folder" else node
        if node.kind == "folder":
            found |= {(name, *path): inner for path, inner in flatten(memory, node.content).items()}
    return found


@given(trees, trees)
def test_differences_are_those_of_the_paths(before: dict[str, Node], after: dict[str, Node]) -> None:
    memory = Memory()
    left, right = memory.tree(before).content, memory.tree(after).content
    one, other = flatten(memory, left), flatten(memory, right)
    expected = {path for path in {*one, *other} if one.get(path) != other.get(path)}
    assert set(TreeReader(memory).differences(left, right)) == expected


def test_reachable_digests_are_those_of_folders_and_files() -> None:
    memory = Memory()
    shared = memory.tree({"f": Node("file", content="d1"), "l": Node("link", content="target")})
    root = memory.put(encode_folder({"a": shared, "b": shared, "u": Node("unkept", content="why;1")}))
    other = memory.put(encode_folder({"g": Node("file", content="d2")}))
    assert reachable_digests(memory, [root, other]) == {root, other, shared.content, "d1", "d2"}
    assert sorted(memory.reads) == sorted({root, other, shared.content})
    assert reachable_digests(memory, []) == set()
