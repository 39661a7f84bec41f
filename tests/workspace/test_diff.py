"""Changes between two trees, and unified diffs in bounded time."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import Node, encode_folder, link_node
from aisotools.workspace.diff import (
    MAX_COMPARED_LINES,
    MAX_DIFFS,
    Changes,
    PathChange,
    changes_between,
    count_equal_ends,
    counts,
    unified,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store")
    yield store
    store.close()


def tree(store: Store, **nodes: Node | bytes | str) -> str:
    """Store a folder; bytes are a file's content, text is a link's target."""
    folder = {}
    for name, node in nodes.items():
        if isinstance(node, bytes):
            node = Node("file", 0o644, store.put(node), len(node))  # noqa: PLW2901 - the node that it stands for
        elif isinstance(node, str):
            node = link_node(node, store)  # noqa: PLW2901 - the same
        folder[name] = node
    return store.put(encode_folder(folder))


def only_change(store: Store, before: str, after: str) -> PathChange:
    (change,) = changes_between(store, before, after)
    return change


def test_no_change_is_false_and_says_so(store: Store) -> None:
    root = tree(store, a=b"1")
    changes = changes_between(store, root, root, ("too large: b",))
    assert not changes
    assert str(changes) == "Nothing changed.\n! not covered: too large: b"


def test_added_changed_and_removed_files_have_diffs(store: Store) -> None:
    before = tree(store, a=b"one\ntwo\n", gone=b"x\n")
    after = tree(store, a=b"one\n2", new=b"y\n")
    changes = changes_between(store, before, after)
    assert (changes.added, changes.changed, changes.removed, changes.moved) == (
        ("new",),
        ("a",),
        ("gone",),
        (),
    )
    assert changes.headline == "1 added, 1 changed, 1 removed"
    assert [change.diff for change in changes] == [
        "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n\\ No newline at end of file\n",
        "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n",
        "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+y\n",
    ]
    assert str(changes).startswith("1 added, 1 changed, 1 removed\n~ a\n- gone\n+ new\n\n--- a/a\n")


def test_file_that_is_elsewhere_was_moved(store: Store) -> None:
    changes = changes_between(store, tree(store, a=b"same", b=b"same"), tree(store, c=b"same", d=b"same"))
    assert changes.moved == (("a", "c"), ("b", "d"))
    assert str(changes) == "2 moved\n> a -> c\n> b -> d"
    empty = changes_between(store, tree(store, a=b""), tree(store, b=b""))
    assert (empty.moved, empty.added, empty.removed) == ((), ("b",), ("a",))


@pytest.mark.parametrize(
    ("before", "after", "what", "note"),
    [
        (b"text", b"bin\0ary", "file", "binary"),
        (b"text", b"\xff\xfe", "file", "binary"),
        (b"text", "target", "link", "file before, link now"),
        ("old", "new\n", "link", "to 'new\\\\n' instead of 'old'"),
        ("old", "x" * 129, "link", f"to '{'x' * 129}' instead of 'old'"),
        ("y" * 129, "x" * 129, "link", f"to '{'x' * 129}' instead of '{'y' * 129}'"),
        ("y" * 129, b"text", "file", "link before, file now"),
        (Node("unkept", content="it is too large;1"), b"x", "file", "not kept before, file now"),
        (
            Node("unkept", content="it is too large;1"),
            Node("unkept", content="it is too large;2"),
            "not kept",
            "it is too large",
        ),
        (Node("fifo", 0o644), Node("fifo", 0o600), "FIFO", "mode 0644 before, 0600 now"),
        (Node("other", content="socket"), Node("other", content="device"), "special file", ""),
        (b"x" * 100_001, b"y" * 100_000, "file", "100,000 bytes, too large for a diff"),
        (b"\n" * 2_001, b"x\n" * 2_000, "file", "2,000 lines, too many for a diff"),
        (Node("file", 0o644, "0" * 64, 1), b"x", "file", "The checkpoint content 000000000000 is gone: "),
    ],
)
def test_change_without_a_diff_has_a_note(
    store: Store, before: Node | bytes | str, after: Node | bytes | str, what: str, note: str
) -> None:
    change = only_change(store, tree(store, a=before), tree(store, a=after))
    assert (change.kind, change.what, change.diff) == ("changed", what, "")
    assert change.note.startswith(note)
    assert bool(change.note) is bool(note)


def test_largest_texts_have_diffs(store: Store) -> None:
    for before, after in [(b"x" * 100_000, b"y" * 100_000), (b"\n" * 2_000, b"x\n" * 2_000)]:
        change = only_change(store, tree(store, a=before), tree(store, a=after))
        assert change.diff
        assert not change.note


def test_number_of_diffs_is_limited(store: Store) -> None:
    assert MAX_DIFFS == 50, "which README says"
    after = tree(store, **{f"f{number:03}": b"%d" % number for number in range(MAX_DIFFS + 1)})
    *first, last = changes_between(store, tree(store), after)
    assert all(change.diff and not change.note for change in first)
    assert (last.diff, last.note) == ("", "there are too many diffs to show all")


def test_names_are_printable(store: Store) -> None:
    after = store.put(encode_folder({"a\n": Node("link", content="x")}))
    change = only_change(store, tree(store), after)
    assert (change.path, str(change)) == ("a\\n", "+ a\\n (link): to 'x'")


def test_changes_are_a_sequence() -> None:
    change = PathChange(path="a", kind="added")
    changes = Changes(every=(change,))
    assert (len(changes), list(changes), bool(changes)) == (1, [change], True)


def test_changes_whose_texts_are_made_when_they_are_read_are_a_sequence_like_any_other(store: Store) -> None:
    inner = Node(
        "folder", content=store.put(encode_folder({"\n": Node("file", content=store.put(b"x"), size=1)}))
    )
    before = store.put(encode_folder({"a": inner}))
    after = store.put(encode_folder({"b": inner, "c": Node("folder", content=store.put(b""))}))
    changes = changes_between(store, before, after)
    expected = [
        PathChange(path="a", kind="removed", what="folder"),
        PathChange(path="b", kind="added", what="folder"),
        PathChange(path="b/\\n", kind="moved", was="a/\\n"),
        PathChange(path="c", kind="added", what="folder"),
    ]
    assert list(changes) == expected
    assert (changes.every[-1], list(changes.every[1:3])) == (expected[-1], expected[1:3])
    assert changes.every == tuple(expected)
    assert changes == changes_between(store, before, after) != changes_between(store, after, before)
    assert hash(changes) == hash(changes_between(store, before, after))
    assert (changes.headline, changes.moved) == ("2 added, 1 removed, 1 moved", (("a/\\n", "b/\\n"),))


def test_targets_of_links_in_notes_are_bounded(store: Store) -> None:
    """Escaped, each takes up to a kilobyte, or four with one character beyond U+FFFF."""
    target = "\U0001f600" + "\x01" * 124
    after = tree(store, **{f"l{number:04}": target for number in range(1_000)})
    changes = changes_between(store, tree(store), after)
    assert sum(sys.getsizeof(change.note) for change in changes if "\U0001f600" in change.note) <= 1 << 20
    assert (changes.every[0].note[:4], changes.every[-1].note) == (
        "to '",
        "there are too many targets to show all",
    )


# ---- unified diffs


@pytest.mark.parametrize(
    ("before", "after", "ends"),
    [
        ("", "", (0, 0)),
        ("abc", "abc", (3, 0)),
        ("abc", "axc", (1, 1)),
        ("abc", "abbc", (2, 1)),
        ("aa", "aaa", (2, 0)),  # no line counts at both ends
        ("abc", "xyz", (0, 0)),
        ("abc", "", (0, 0)),
    ],
)
def test_equal_ends_are_counted_once(before: str, after: str, ends: tuple[int, int]) -> None:
    assert count_equal_ends(list(before), list(after)) == ends


lines = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=30).map("\n".join)


@given(lines, lines)
def test_unified_diff_is_that_of_the_whole_texts(before: str, after: str) -> None:
    diff = unified(before, after, "old", "new")
    if before == after:
        assert diff == ""
        return
    removed = [line[1:] for line in diff.split("\n")[2:] if line.startswith("-")]
    added = [line[1:] for line in diff.split("\n")[2:] if line.startswith("+")]
    assert counts(diff) == (len(added), len(removed))
    assert len(before.split("\n")) - len(removed) + len(added) == len(after.split("\n"))
    assert patched(before, diff) == after


def patched(before: str, diff: str) -> str:
    """Apply a unified diff by its line numbers."""
    old, new, place = before.split("\n"), [], 0
    for row in diff.split("\n")[2:]:
        if row.startswith("@@"):
            span = row.split(" ")[1][1:]
            first, _, count = span.partition(",")
            start = int(first) - 1 if count != "0" else int(first)
            new += old[place:start]
            place = start
        elif row.startswith("+"):
            new.append(row[1:])
        else:
            assert old[place] == row[1:]
            if row.startswith(" "):
                new.append(row[1:])
            place += 1
    return "\n".join(new + old[place:])


def test_small_change_in_a_huge_text_has_its_place() -> None:
    before = [str(number) for number in range(100_000)]
    after = [*before[:70_000], "new", *before[70_000:]]
    expected = list(difflib.unified_diff(before[69_990:70_010], after[69_990:70_011], n=3, lineterm=""))
    diff = unified("\n".join(before), "\n".join(after), "old", "new").split("\n")
    assert diff[:3] == ["--- old", "+++ new", "@@ -69998,6 +69998,7 @@"]
    assert diff[3:] == expected[3:]


def test_too_many_different_lines_are_one_block() -> None:
    before = ["same", *map(str, range(MAX_COMPARED_LINES)), "same"]
    after = ["same", *(f"x{number}" for number in range(MAX_COMPARED_LINES)), "same"]
    diff = unified("\n".join(before), "\n".join(after), "old", "new").split("\n")
    assert diff[2] == f"@@ -2,{MAX_COMPARED_LINES} +2,{MAX_COMPARED_LINES} @@"
    assert counts("\n".join(diff)) == (MAX_COMPARED_LINES, MAX_COMPARED_LINES)
    assert diff[3] == "-0"
    assert diff[3 + MAX_COMPARED_LINES] == "+x0"


def test_file_that_was_written_again_with_the_same_content_has_not_changed(store: Store) -> None:
    was = Node("file", 0o644, store.put(b"1"), 1, mtime_ns=1, owner=(0, 0))
    before = tree(store, a=was)
    assert not changes_between(store, before, tree(store, a=was._replace(mtime_ns=2, link=(7, 2))))
    assert changes_between(store, before, tree(store, a=was._replace(mtime_ns=2, mode=0o600))).changed == (
        "a",
    )
