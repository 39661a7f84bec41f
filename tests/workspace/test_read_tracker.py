"""Reads before edits: what counts as read, moves with an edit, and is still in a model's context."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from aisotools.core.exceptions import PathOutside, ToolError
from aisotools.workspace.read_tracker import (
    MAX_BYTES,
    FileTouch,
    ReadCache,
    _count_lines,
    _is_covered,
    _join,
    _lines,
    _move_ranges,
    version_digest,
)
from aisotools.workspace.workspace import Workspace

TEN = b"".join(b"line %d\n" % number for number in range(1, 11))


@pytest.fixture
def reads(tmp_path: Path) -> ReadCache:
    (tmp_path / "a").write_bytes(TEN)
    return ReadCache(Workspace(tmp_path))


def test_file_that_was_not_read_is_not_changed(reads: ReadCache) -> None:
    with pytest.raises(ToolError, match="'a' was not read in this session, so nothing in it is changed"):
        reads.check([FileTouch(path="a")])


def test_file_that_was_read_whole_may_be_changed_anywhere(reads: ReadCache) -> None:
    reads.note_read("a", TEN)
    reads.check(
        [FileTouch(path="a"), FileTouch(path="./a", lines=((3, 4),)), FileTouch(path="a", texts=("x",))]
    )


def test_file_that_changed_since_must_be_read_again(reads: ReadCache, tmp_path: Path) -> None:
    reads.note_read("a", TEN)
    (tmp_path / "a").write_bytes(TEN + b"more\n")
    with pytest.raises(ToolError, match="'a' has changed since it was read"):
        reads.check([FileTouch(path="a")])


def test_lines_that_were_read_count_for_a_copy(reads: ReadCache, tmp_path: Path) -> None:
    reads.note_read("a", TEN, 3, 5)
    (tmp_path / "same").write_bytes(TEN)
    (tmp_path / "other").write_bytes(TEN + b"more\n")
    for name in ("same", "other", "missing"):
        reads.note_same("a", name)
    reads.note_same("unread", "a")
    reads.check([FileTouch(path="same", lines=((3, 5),))])
    for touch in (FileTouch(path="same", lines=((1, 1),)), FileTouch(path="other", lines=((3, 5),))):
        with pytest.raises(ToolError):
            reads.check([touch])


def test_only_the_lines_that_were_read_may_be_changed(reads: ReadCache) -> None:
    reads.note_read("a", TEN, 3, 5)
    reads.check([FileTouch(path="a", lines=((3, 5),)), FileTouch(path="a", lines=((4, 4), (5, 5)))])
    reads.check([FileTouch(path="a", texts=("line 4\nline 5",))])
    for touch in (
        FileTouch(path="a"),
        FileTouch(path="a", lines=((2, 3),)),
        FileTouch(path="a", lines=((5, 6),)),
        FileTouch(path="a", lines=((3, 3), (6, 6))),
        FileTouch(path="a", texts=("line 5\nline 6",)),
        FileTouch(path="a", texts=("line 4", "line 6")),
    ):
        with pytest.raises(ToolError, match="Only lines 3-5 of 10 of 'a' were read"):
            reads.check([touch])


def test_reads_of_one_content_add_up(reads: ReadCache) -> None:
    reads.note_read("a", TEN, 1, 4)
    reads.note_read("a", TEN, 8, 99)
    with pytest.raises(ToolError, match="Only lines 1-4, 8-10 of 10"):
        reads.check([FileTouch(path="a")])
    reads.note_read("a", TEN, 5, 7)
    reads.check([FileTouch(path="a")])


def test_read_of_another_content_starts_over(reads: ReadCache) -> None:
    reads.note_read("a", b"old\n")
    reads.note_read("a", TEN, 2, 2)
    with pytest.raises(ToolError, match="Only lines 2-2 of 10"):
        reads.check([FileTouch(path="a")])


def test_read_beyond_the_end_reads_nothing(reads: ReadCache) -> None:
    reads.note_read("a", TEN, 11, 12)
    with pytest.raises(ToolError, match="Only lines none of 10"):
        reads.check([FileTouch(path="a", lines=((1, 1),))])


def test_white_space_at_line_ends_does_not_matter(reads: ReadCache, tmp_path: Path) -> None:
    data = b"a  \nb\t\r\nc\n"
    (tmp_path / "a").write_bytes(data)
    reads.note_read("a", data, 1, 2)
    reads.check([FileTouch(path="a", texts=("a\nb",))])


def test_empty_and_missing_and_huge_files_are_left_to_the_tool(reads: ReadCache, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    reads.note_read("empty", b"")
    reads.check([FileTouch(path="empty"), FileTouch(path="gone"), FileTouch(path=".")])
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert reads.content("huge") is None
    reads.check([FileTouch(path="huge")])
    with pytest.raises(PathOutside):
        reads.note_read("../x", b"")


def test_forgetting_starts_over(reads: ReadCache) -> None:
    reads.note_read("a", TEN)
    reads.forget()
    with pytest.raises(ToolError, match="was not read"):
        reads.check([FileTouch(path="a")])


# ---- edits


def test_edit_by_the_reader_counts_as_read(reads: ReadCache, tmp_path: Path) -> None:
    reads.note_read("a", TEN)
    after = TEN.replace(b"line 5\n", b"new\nnewer\n")
    (tmp_path / "a").write_bytes(after)
    reads.note_edit("a", TEN, after)
    reads.check([FileTouch(path="a")])


def test_edit_moves_the_lines_behind_it(reads: ReadCache, tmp_path: Path) -> None:
    reads.note_read("a", TEN, 2, 3)
    reads.note_read("a", TEN, 8, 9)
    after = TEN.replace(b"line 3\n", b"new\nnewer\nnewest\n")
    (tmp_path / "a").write_bytes(after)
    reads.note_edit("a", TEN, after)
    reads.check([FileTouch(path="a", lines=((2, 5), (10, 11)))])
    with pytest.raises(ToolError, match="Only lines 2-5, 10-11 of 12"):
        reads.check([FileTouch(path="a", lines=((9, 9),))])


def test_edit_of_what_was_not_read_proves_nothing(reads: ReadCache) -> None:
    reads.note_edit("a", b"other", TEN)
    with pytest.raises(ToolError, match="was not read"):
        reads.check([FileTouch(path="a")])
    reads.note_read("a", b"older\n")
    reads.note_edit("a", b"other", TEN)
    with pytest.raises(ToolError, match="has changed"):
        reads.check([FileTouch(path="a")])


texts = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n"]), max_size=8)


@given(texts, texts, st.sets(st.integers(1, 8)))
def test_lines_that_count_as_read_were_read_or_written(
    before: list[bytes], after: list[bytes], numbers: set[int]
) -> None:
    """A line after the edit that counts as read is one that was read, or lies between changed lines."""
    ranges = _join((number, number) for number in numbers if number <= len(before))
    head = 0
    while head < min(len(before), len(after)) and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < min(len(before), len(after)) - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    for first, last in _move_ranges(ranges, before, after):
        assert 1 <= first <= last <= len(after)
        for number in range(first, last + 1):
            if number <= head:
                assert _is_covered((number, number), ranges)
            elif number > len(after) - tail:
                old = number - len(after) + len(before)
                assert _is_covered((old, old), ranges)


def test_ranges_are_joined_where_they_touch() -> None:
    assert _join([(5, 6), (1, 2), (3, 3), (8, 9), (8, 8)]) == ((1, 3), (5, 6), (8, 9))
    assert _join([(1, 9), (2, 3)]) == ((1, 9),)
    assert _join([]) == ()


def test_lines_end_at_line_feeds_only() -> None:
    assert [_count_lines(data) for data in (b"", b"a", b"a\n", b"a\nb", b"\n\n", b"a\rb\n")] == [
        0,
        1,
        1,
        2,
        2,
        1,
    ]
    assert _lines(b"a\r\nb\x0cc\nd") == [b"a\r\n", b"b\x0cc\n", b"d"]
    assert version_digest(b"a") != version_digest(b"b")
    assert len(version_digest(b"a")) == 32


# ---- contexts


def test_unchanged_file_is_named_by_the_call_that_showed_it(reads: ReadCache) -> None:
    reads.follow("agent")
    reads.note_read("a", TEN)
    reads.note_shown("agent", "a", "c1", 1, 5)
    reads.note_shown("agent", "./a", "c2", 1, 10)
    assert reads.unchanged_since("agent", "a", 2, 5) == "c2"
    assert reads.unchanged_since("agent", "a", 1, 10) == "c2"
    assert reads.unchanged_since("agent", "a", 1, 11) is None
    assert reads.unchanged_since("agent", "a", 0, 5) is None
    assert reads.unchanged_since("other", "a", 2, 5) is None
    reads.trimmed("agent", ["c2"])
    assert reads.unchanged_since("agent", "a", 2, 5) == "c1"
    assert reads.unchanged_since("agent", "a", 1, 6) is None
    reads.trimmed("agent")
    assert reads.unchanged_since("agent", "a", 2, 5) is None


def test_changed_file_is_not_unchanged(reads: ReadCache) -> None:
    reads.follow("agent")
    reads.note_read("a", TEN)
    reads.note_shown("agent", "a", "c1", 1, 10)
    reads.note_read("a", TEN + b"x")
    assert reads.unchanged_since("agent", "a", 1, 1) is None
    reads.forget()
    assert reads.unchanged_since("agent", "a", 1, 1) is None


def test_agents_that_do_not_follow_are_shown_everything(reads: ReadCache) -> None:
    reads.note_read("a", TEN)
    reads.note_shown("agent", "a", "c1", 1, 10)
    reads.trimmed("agent", ["c1"])
    assert reads.unchanged_since("agent", "a", 1, 1) is None
    reads.follow("agent")
    reads.note_shown("agent", "unread", "c1", 1, 10)
    assert reads.unchanged_since("agent", "unread", 1, 1) is None
