"""What is known about who has changed a path, and which paths have changed."""

from __future__ import annotations

import itertools
import os
import string
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, strategies as st

from aisotools.workspace.checkpoints.authorship import (
    MOST_PATHS,
    UNKNOWN,
    Authorship,
    JointAuthorship,
    changed_nodes,
    changed_paths,
    find_seen,
    find_visited,
    find_written,
    parse_names,
)
from aisotools.workspace.checkpoints.store import Store, content_digest
from aisotools.workspace.checkpoints.tree import KINDS, Node, TreeReader, decode_folder, encode_folder
from aisotools.workspace.dirfd import DIRECTORY_FLAGS
from aisotools.workspace.workspace import TEMPORARY
from tests.waiting import wait_until

NAMED = frozenset({("d", "file"), ("folder",)})


@pytest.mark.parametrize(
    ("path", "is_own"),
    [
        (("d", "file"), True),
        (("d",), True),  # it was made for the file
        (("folder", "below"), True),
        (("d", f"{TEMPORARY}ab12"), True),
        (("d", "other"), False),
        (("file",), False),
        (("fold",), False),
    ],
)
def test_change_that_a_tool_does_not_name_is_somebody_else_s_or_unclear(
    path: tuple[str, ...], is_own: bool
) -> None:
    certain = Authorship(named=NAMED, is_certain=True)
    assert certain.author_of(path) == ("call" if is_own else "others")
    assert Authorship(named=NAMED).author_of(path) == ("call" if is_own else "unclear")
    assert UNKNOWN.author_of(path) == "call"
    assert Authorship(seen=frozenset({path})).author_of(path) == "unclear"


def test_change_that_others_were_seen_to_make_is_never_passed_over() -> None:
    # It may be both: a file that the tool names, or of which nobody knows what it was before.
    authorship = Authorship(named=NAMED, is_certain=True, seen=frozenset({("d", "file"), ("x",)}))
    assert authorship.author_of(("d", "file")) == authorship.author_of(("x",)) == "unclear"


def test_calls_that_overlapped_share_what_is_known_of_each() -> None:
    both, first, second, neither = (("both",), ("first",), ("second",), ("neither",))
    named = Authorship(named=frozenset({first}), is_certain=True)
    parts = ((named, frozenset({both, first})), (UNKNOWN, frozenset({both, second})))
    joint = JointAuthorship(parts)
    authors = {path: joint.author_of(path) for path in (both, first, second, neither)}
    assert authors == {both: "unclear", first: "call", second: "call", neither: "unclear"}
    assert JointAuthorship(parts[:1]).author_of(both) == "others"
    assert JointAuthorship(parts, frozenset({first})).author_of(first) == "unclear"
    assert JointAuthorship(parts, frozenset({first})).author_of(both) == "unclear"


@pytest.mark.parametrize(
    "authorship",
    [
        UNKNOWN,
        Authorship(named=NAMED, is_certain=True),
        Authorship(seen=NAMED),
        Authorship(named=frozenset()),
        Authorship(named=NAMED, beside=frozenset({("beside",)})),
    ],
)
def test_record_says_the_same(authorship: Authorship) -> None:
    assert Authorship.read({"op": "end", **authorship.record()}) == authorship


@pytest.mark.parametrize("is_certain", [False, True])
def test_paths_of_calls_that_ran_beside_are_theirs(is_certain: bool) -> None:
    own, beside = ("own",), ("d", "beside")
    authorship = Authorship(
        named=frozenset({own}), beside=frozenset({beside}), is_certain=is_certain, seen=frozenset({("seen",)})
    )
    elsewhere = "others" if is_certain else "unclear"
    expected = {own: "call", beside: "others", ("d",): "others", ("x",): elsewhere, ("seen",): "unclear"}
    assert {path: authorship.author_of(path) for path in expected} == expected
    together = authorship.together()
    assert {path: together.author_of(path) for path in (own, beside, ("d",), ("x",))} == {
        own: "call",
        beside: "call",
        ("d",): "call",
        ("x",): elsewhere,
    }
    assert UNKNOWN.together() == UNKNOWN
    # Undone with the other call, what either of them names is taken back.
    other = Authorship(named=frozenset({beside}), beside=frozenset({own}), is_certain=is_certain)
    paths = frozenset({own, beside, ("x",)})
    joint = JointAuthorship(((authorship, paths), (other, paths)))
    assert [joint.author_of(path) for path in (own, beside, ("x",))] == ["call", "call", elsewhere]
    stranger = Authorship(named=frozenset({("y",)}), is_certain=is_certain)
    joint = JointAuthorship(((authorship, paths), (stranger, paths)))
    assert joint.author_of(own) == "unclear"


def test_names_outside_the_workspace_are_no_names() -> None:
    assert parse_names(["a/b", "./c/", "."]) == frozenset({("a", "b"), ("c",), ()})
    assert parse_names(["a", "/etc/passwd"]) is parse_names(["../a"]) is None


FILES = st.dictionaries(
    st.text(string.ascii_lowercase[:3] + "\udcff", min_size=1, max_size=3).filter(
        lambda name: "/" not in name
    ),
    st.sampled_from("xyz"),
    max_size=6,
)
TREES = st.recursive(
    FILES, lambda inner: st.dictionaries(st.sampled_from("abcde"), inner | st.just("x"), max_size=5)
)


def put(store: Store, tree: object) -> str:
    assert isinstance(tree, dict)
    nodes = {}
    for name, inner in tree.items():
        is_folder = isinstance(inner, dict)
        content = put(store, inner) if is_folder else content_digest(inner.encode())
        nodes[name] = Node("folder", 0o755, content) if is_folder else Node("file", 0o644, content, 1)
    return store.put(encode_folder(nodes))


@pytest.mark.hypothesis
@given(before=TREES, after=TREES)
def test_changed_paths_are_those_of_a_whole_comparison(
    tmp_path_factory: pytest.TempPathFactory, before: object, after: object
) -> None:
    store = Store(tmp_path_factory.mktemp("store"))
    try:
        roots = put(store, before), put(store, after)
        assert set(changed_paths(store, *roots)) == set(TreeReader(store).differences(*roots))
    finally:
        store.close()


@pytest.mark.parametrize("seed", range(20))
def test_few_changes_among_many_entries_are_found(tmp_path: Path, seed: int) -> None:
    """At the begin and at the end, side by side, with names that sort differently as bytes."""
    random, store = Random(seed), Store(tmp_path / "store")
    letters = "ab0\u00e9\uffff\U0001f600\udc80"
    names = {"".join(random.choices(letters, k=random.randint(1, 9))) for _ in range(3_000)}
    before: dict[str, object] = dict.fromkeys(names, "x")
    after = dict(before)
    ordered = sorted(names)
    touched = {*ordered[:2], *ordered[-2:], *random.sample(ordered, 12)}
    for name in touched:
        match random.randrange(3):
            case 0:
                del after[name]
            case 1:
                after[name] = "y"
            case _:
                after[name + "\u00e9!"] = "new"
    roots = put(store, before), put(store, after)
    found = changed_nodes(store, *roots)
    expected = {(name,) for name in {*before, *after} if before.get(name) != after.get(name)}
    assert set(found) == expected
    assert all((found[path] is None) == (path[0] not in after) for path in found)
    store.close()


def test_entry_that_differs_only_in_its_kind_has_changed(tmp_path: Path) -> None:
    """Its first byte alone is another one."""
    store = Store(tmp_path / "store")
    nodes = {"a": Node("file", 0o644, content_digest(b"x"), 1), "b": Node("fifo", 0o644)}
    trees = [
        store.put(encode_folder(nodes | {"a": nodes["a"]._replace(kind=kind)}))
        for kind in KINDS.values()
        if kind != "folder"
    ]
    for before, after in itertools.permutations(trees, 2):
        assert ("a",) in changed_paths(store, before, after)
    store.close()


def test_of_very_many_changes_only_the_first_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole listings of 99,000 files, which a worker can make, took the event loop half a second."""
    store, decoded = Store(tmp_path / "store"), []

    def decode(data: bytes) -> dict[str, Node]:
        decoded.append(len(data))
        return decode_folder(data)

    monkeypatch.setattr("aisotools.workspace.checkpoints.authorship.decode_folder", decode)
    folders = {f"{number:04}": {"deep": {"x": "x"}} for number in range(5_000)}
    others: dict[str, object] = {f"{number:04}": {"deep": {"x": "y"}} for number in range(5_000)}
    flat: dict[str, object] = {f"{number:06}": "x" for number in range(30_000)}
    for one, other in ((dict(folders), others), (flat, dict.fromkeys(flat, "y")), ({}, flat), (flat, {})):
        decoded.clear()
        assert len(changed_paths(store, put(store, one), put(store, other))) == MOST_PATHS + 1
        assert len(decoded) <= 6 * (MOST_PATHS + 1)
        assert max(decoded) < 500, "one entry"
    store.close()


def test_writer_of_a_path_is_found_among_many_names() -> None:
    names = frozenset((str(number), "a", "b") for number in range(3_000))
    authorship = Authorship(named=names, is_certain=True)
    for path in ((), ("7",), ("7", "a"), ("7", "a", "b"), ("7", "a", "b", "c", "d")):
        assert authorship.author_of(path) == "call"
    for path in (("x",), ("7", "b"), ("7", "a", "c")):
        assert authorship.author_of(path) == "others"


def test_time_of_a_folder_has_changed_by_itself_where_nothing_in_it_explains_that(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    file, other = (Node("file", 0o644, content_digest(text), 1, 5) for text in (b"x", b"y"))

    def tree(time_ns: int | None, **nodes: Node) -> str:
        folder = Node("folder", 0o755, store.put(encode_folder(nodes)), mtime_ns=time_ns)
        return store.put(encode_folder({"d": folder}))

    def inner(node: Node, time_ns: int = 1) -> Node:
        return Node("folder", 0o755, store.put(encode_folder({"x": node})), mtime_ns=time_ns)

    for before, after, expected in (
        (tree(1, x=file), tree(2, x=file), [("d",)]),
        (tree(1, x=file), tree(2, x=file._replace(link=(7, 2))), [("d",), ("d", "x")]),
        (tree(1, x=file), tree(2, x=other), [("d", "x")]),
        (tree(1, x=file), tree(2, y=file), [("d", "x"), ("d", "y")]),
        (tree(1, x=file), tree(2, x=inner(file)), [("d", "x"), ("d", "x", "x")]),
        (tree(1, e=inner(file)), tree(2, e=inner(other)), [("d",), ("d", "e", "x")]),
        (tree(1, e=inner(file)), tree(1, e=inner(file, 2)), [("d", "e")]),
        (tree(None, x=file), tree(2, x=file), []),
    ):
        assert changed_paths(store, before, after) == expected
    store.close()


def test_folder_that_something_was_only_put_into_for_a_moment_is_left_to_whoever_did_that(
    tmp_path: Path,
) -> None:
    for name in ("visited", "set", "touched"):
        (tmp_path / name).mkdir()
    (tmp_path / "visited" / "a").touch()
    (tmp_path / "visited" / "a").unlink()
    os.utime(tmp_path / "set", ns=(10**18, 10**18))
    os.utime(tmp_path / "touched")
    root = os.open(tmp_path, os.O_RDONLY)
    visited = find_visited(root, [("visited",), ("set",), ("touched",), ("gone",)])
    os.close(root)
    assert visited == {("visited",), ("touched",)}
    authorship = Authorship(visited=visited)
    assert Authorship.read(authorship.record()) == authorship
    assert (authorship.author_of(("visited",)), authorship.author_of(("set",))) == ("others", "call")


def test_no_more_paths_are_listed_than_are_judged(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert MOST_PATHS == 1_000
    many = put(store, {str(number): "x" for number in range(MOST_PATHS + 10)})
    assert len(changed_paths(store, put(store, {}), many)) == MOST_PATHS + 1
    store.close()


def test_time_of_a_link_is_its_own(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("1")
    of_file = file.stat().st_ctime_ns

    def has_been_made_later() -> bool:
        link.unlink(missing_ok=True)
        link.symlink_to("file")
        return link.lstat().st_ctime_ns > of_file + 1

    wait_until(has_been_made_later)
    of_link = link.lstat().st_ctime_ns
    root = os.open(tmp_path, DIRECTORY_FLAGS)
    try:
        assert find_seen(root, [("link",)], [(of_link - 1, of_link + 1)]) == {("link",)}
        assert not find_seen(root, [("link",)], [(of_file - 1, of_file + 1)])
    finally:
        os.close(root)


def test_last_change_of_a_file_counts_and_that_of_the_folder_for_one_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/file").write_text("1")
    stamps = [path.stat().st_ctime_ns for path in (tmp_path / "d/file", tmp_path / "d")]
    root = os.open(tmp_path, DIRECTORY_FLAGS)
    try:
        paths = [("d", "file"), ("d", "gone"), ("away", "gone")]
        around = [(stamp - 1, stamp + 1) for stamp in stamps]
        assert find_seen(root, paths, around) == {("d", "file"), ("d", "gone")}
        # At the very begin and end it may have been the sandbox: clocks tick.
        edges = [(stamp, stamp + 9) for stamp in stamps] + [(stamp - 9, stamp) for stamp in stamps]
        assert not find_seen(root, paths, edges)
        assert not find_seen(root, paths * MOST_PATHS, around)
        # What was written and then got another name or mode has the time of the writing.
        os.utime(tmp_path / "d/file", ns=(1, 1_000))
        assert find_written(root, paths[:1], [(999, 1_001)]) == {("d", "file")}
        assert not find_written(root, paths[:1], [(1_000, 1_001), (999, 1_000)])
        assert not find_written(root, [("d", "gone")], [(0, 1 << 62)])
    finally:
        os.close(root)
