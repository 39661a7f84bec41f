"""Listings of folders, the trees that they make, and what differs between two of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from aisotools.workspace.checkpoints.store import content_digest
from aisotools.workspace.checkpoints.tree import (
    Node,
    NodeKind,
    TreePath,
    TreeReader,
    decode_folder,
    encode_folder,
    link_node,
    link_target,
    reachable_digests,
    unkept_node,
    unreadable_node,
)


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


kinds: st.SearchStrategy[NodeKind] = st.sampled_from(
    ["file", "folder", "link", "long_link", "fifo", "other", "unkept"]
)
contents = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)
names = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=8)
pairs = st.none() | st.tuples(st.integers(0, 1 << 32), st.integers(0, 1 << 32))
times = st.none() | st.integers(-(1 << 62), 1 << 70)
digests = st.sampled_from(["", content_digest(b"x"), content_digest(b"y")])
nodes = st.builds(
    Node, kinds, st.integers(0, 0o7777), contents, st.integers(0, 1 << 40), times, pairs, digests, pairs
)


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
        "t": Node("long_link", content="d3", size=129),
    }
    assert encode_folder(folder) == (
        b"f 640 12 d1\0a\0l 0 0 a b\0b\0d 755 0 d2\0d\0p 644 0 \0p\0o 0 0 socket\0s\0L 0 129 d3\0t"
        b"\0u 600 0 why;1\0\xff"
    )
    attributes = Node("sparse", 0o4750, "d4", 7, -5, (10, 20), "d5", (99, 2))
    listing = b"s 4750,m-5,u10:20,xd5,h99:2 7 d4\0n"
    assert encode_folder({"n": attributes}) == listing
    assert decode_folder(listing) == {"n": attributes}
    assert encode_folder({}) == b""
    assert decode_folder(b"") == {}


def test_readers_share_what_two_states_of_a_folder_have_in_common() -> None:
    memory = Memory()
    nodes = {f"n{number}": Node("file", 0o644, content_digest(b"%d" % number), number) for number in range(3)}
    before, after = memory.tree(nodes), memory.tree({**nodes, "n1": Node("link", content="x")})
    reader = TreeReader(memory)
    first, second = reader.of(before), reader.of(after)
    assert second["n0"] is first["n0"]
    assert second["n1"] == Node("link", content="x")
    assert [one is other for one, other in zip(first, second, strict=True)] == [True] * 3
    assert TreeReader(memory).of(before) == nodes


def test_truncated_listing_is_an_error() -> None:
    with pytest.raises(ValueError, match="ends in the middle of an entry, at byte 14"):
        decode_folder(b"f 640 12 d1\0a\0l 0 0 x")


def test_same_content_ignores_modes_and_what_a_folder_holds() -> None:
    file = Node("file", 0o644, "d1", 3)
    assert file.has_same_content(Node("file", 0o600, "d1", 3))
    assert not file.has_same_content(Node("file", 0o644, "d2", 3))
    assert not file.has_same_content(Node("link", 0o644, "d1", 3))
    assert not file.has_same_content(None)
    assert Node("folder", 0o755, "d1").has_same_content(Node("folder", 0o700, "d2"))
    assert not Node("folder", 0o755, "d1").has_same_content(file)


def test_long_target_is_the_same_as_one_in_a_listing_of_an_earlier_version() -> None:
    memory = Memory()
    target = os.fsdecode(b"\xff" * 129)
    link, earlier = link_node(target, memory), Node("link", content=target)
    assert (link.kind, earlier.is_link) == ("long_link", True)
    assert link_target(link, memory) == link_target(earlier, memory) == target
    assert link.has_same_content(earlier)
    assert earlier.has_same_content(link)
    assert not link.has_same_content(Node("link", content=target[1:]))
    assert not link.has_same_content(Node("file", content=link.content, size=129))
    assert not Node("file", content=target).has_same_content(link)


@pytest.mark.parametrize(("length", "kind"), [(128, "link"), (129, "long_link")])
def test_target_of_a_link_comes_back_and_a_long_one_is_stored(length: int, kind: str) -> None:
    memory = Memory()
    target = "x" * length
    link = link_node(target, memory)
    assert (link.kind, link_target(link, memory)) == (kind, target)
    assert list(memory.contents.values()) == [target.encode()] * (kind == "long_link")


def test_node_is_sealed_only_if_it_was_looked_through() -> None:
    status = Path("/").stat()
    plain, sealed = unkept_node("it is too deep", status), unkept_node("it is too deep", status, "digest")
    assert (plain.is_sealed, sealed.is_sealed) == (False, True)
    assert not Node("file", content="a;b;c").is_sealed
    assert plain.why_unkept == sealed.why_unkept == "it is too deep"
    assert plain != sealed
    unreadable = unreadable_node(PermissionError(13, "Permission denied"), status)
    assert (unreadable.kind, unreadable.why_unkept) == ("unkept", "it cannot be read: Permission denied")
    assert unreadable.mode == status.st_mode & 0o777


@pytest.mark.parametrize("mode", [0o300, 0o100, 0])
def test_unreadable_folder_is_the_same_after_a_look_that_opens_it_for_a_moment(
    tmp_path: Path, mode: int
) -> None:
    """The look for protected files does, and an undo would take that for the work of somebody else."""
    folder, error = tmp_path / "d", PermissionError(13, "Permission denied")
    folder.mkdir()
    folder.chmod(mode)
    before = unreadable_node(error, folder.stat())
    folder.chmod(mode | 0o700)
    assert unreadable_node(error, folder.stat()) != before
    folder.chmod(mode)
    assert unreadable_node(error, folder.stat()) == before
    folder.chmod(mode ^ 0o100)
    assert not unreadable_node(error, folder.stat()).has_same_content(before)
    folder.chmod(mode)
    folder.chmod(0o700)
    (folder / "new").touch()
    folder.chmod(mode)
    assert not unreadable_node(error, folder.stat()).has_same_content(before)


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


leaves = st.builds(
    Node,
    st.sampled_from(["file", "link"]),
    st.just(0o644),
    st.sampled_from(["x", "y"]),
    st.just(0),
    st.sampled_from([1, 2]),
    st.just((0, 0)),
    digests,
    st.none(),
)
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


def test_reachable_digests_are_those_of_folders_files_and_long_targets() -> None:
    memory = Memory()
    shared = memory.tree(
        {
            "f": Node("file", content="d1"),
            "l": Node("link", content="target"),
            "t": Node("long_link", content="d3"),
        }
    )
    root = memory.put(encode_folder({"a": shared, "b": shared, "u": Node("unkept", content="why;1")}))
    other = memory.put(encode_folder({"g": Node("file", content="d2")}))
    assert reachable_digests(memory, [root, other]) == {root, other, shared.content, "d1", "d2", "d3"}
    assert sorted(memory.reads) == sorted({root, other, shared.content})
    assert reachable_digests(memory, []) == set()
