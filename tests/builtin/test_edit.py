"""edit: exact replacements, or nothing; what is preserved of a file's form."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aisotools.builtin.edit import Replacement, Text, apply_edits, edit
from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import ToolResult
from aisotools.workspace.diff import counts, unified


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


def call(tool: Any, root: Path, **arguments: Any) -> ToolResult:
    context = ToolContext(workspace_path=root)
    result = asyncio.run(tool.execute(tool.validate_arguments(arguments), context))
    assert isinstance(result, ToolResult)
    return result


def change(root: Path, *pairs: tuple[str, str], replace_all: bool = False, path: str = "f") -> ToolResult:
    edits = [{"old": old, "new": new, "replace_all": replace_all} for old, new in pairs]
    return call(edit, root, path=path, edits=edits)


def refused(root: Path, *pairs: tuple[str, str]) -> str:
    before = (root / "f").read_bytes()
    with pytest.raises(ToolError) as caught:
        change(root, *pairs)
    assert (root / "f").read_bytes() == before
    return str(caught.value)


def test_edits_are_made_one_after_another_and_shown(root: Path) -> None:
    (root / "f").write_text("one\ntwo\nthree\n")
    result = change(root, ("two", "2"), ("2\nthree", "2\n3"))
    assert (root / "f").read_text() == "one\n2\n3\n"
    assert result.value["replacements"] == 2
    assert result.value["diff"] == "--- a/f\n+++ b/f\n@@ -1,4 +1,4 @@\n one\n-two\n-three\n+2\n+3\n "
    assert "+2" in result.content


def test_missing_and_ambiguous_are_refused_with_line_numbers(root: Path) -> None:
    (root / "f").write_text("a = 1\nb = 2\na = 1\n")
    assert "at lines 1, 3." in refused(root, ("a = 1", "a = 3"))
    assert "'b = 3' is not in 'f'" in refused(root, ("b = 3", "b = 4"))
    assert "line 2" in refused(root, ("b =  2", "b = 4"))
    assert "edits[1]" in refused(root, ("b = 2", "b = 4"), ("nothing", "x"))
    assert "the same" in refused(root, ("b", "b"))
    (root / "f").write_text("aaaa")
    assert "3 times" in refused(root, ("aa", "b"))


def test_replace_all(root: Path) -> None:
    (root / "f").write_text("x y x\nx\n")
    assert change(root, ("x", "z"), replace_all=True).value["replacements"] == 3
    assert (root / "f").read_text() == "z y z\nz\n"


def test_white_space_at_line_ends_may_differ_if_the_lines_are_the_only_ones(root: Path) -> None:
    (root / "f").write_text("if x:   \n    y()\t\nz\n")
    change(root, ("if x:\n    y()\n", "if x:\n    w()\n"))
    assert (root / "f").read_text() == "if x:\n    w()\nz\n"
    (root / "f").write_text("p \nq\np\t\nq\n")
    assert "at lines 1, 3" in refused(root, ("p\nq", "r"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\r\nb\r\nc\r\n", b"a\r\nB\r\nBB\r\nc\r\n"),
        (b"\xef\xbb\xbfa\nb\n", b"\xef\xbb\xbfa\nB\nBB\n"),
        (b"caf\xe9\nb\n", b"caf\xe9\nB\nBB\n"),
        (b"a\nb", b"a\nB\nBB"),
        (b"mixed\r\nb\nend\r\n", b"mixed\r\nB\nBB\nend\r\n"),
    ],
)
def test_the_form_of_the_file_is_kept(root: Path, before: bytes, after: bytes) -> None:
    (root / "f").write_bytes(before)
    (root / "f").chmod(0o751)
    change(root, ("b", "B\nBB"))
    assert (root / "f").read_bytes() == after
    assert stat.S_IMODE((root / "f").stat().st_mode) == 0o751


def test_file_that_cannot_be_edited_is_reported(root: Path) -> None:
    (root / "f").write_bytes(b"a\0b")
    assert "binary" in refused(root, ("a", "b"))
    with pytest.raises(ToolError, match="There is no 'g'"):
        change(root, ("a", "b"), path="g")
    with pytest.raises(ToolError, match="outside the workspace"):
        change(root, ("a", "b"), path="../f")


@given(
    st.text(alphabet="ab \n", max_size=60),
    st.text(alphabet="ab", min_size=1, max_size=4),
    st.text(max_size=5),
)
def test_a_single_exact_match_is_replaced_and_nothing_else(body: str, old: str, new: str) -> None:
    places = [n for n in range(len(body)) if body.startswith(old, n)]
    if len(places) != 1 or old == new:
        return
    assert apply_edits("f", body, [Replacement(old, new)]) == (body.replace(old, new), 1)


@given(st.binary(max_size=80))
def test_any_file_comes_back_as_it_was(data: bytes) -> None:
    text = Text.of(data)
    assert text.data(text.body) == data


lines = st.lists(st.sampled_from(["a", "b", "c", "", "  d", "@@ x", "-- e", "++ f"]), max_size=12)


@given(lines, lines, st.booleans(), st.booleans())
def test_our_diffs_apply_to_what_they_were_made_of(
    old: list[str], new: list[str], old_ends: bool, new_ends: bool
) -> None:
    before, after = ("".join(f"{line}\n" for line in part) for part in (old, new))
    diff = unified(before, after, "a/f", "b/f")
    if not diff:
        assert before == after
        return
    added, removed = counts(diff)
    assert added - removed == len(new) - len(old)


def test_touches_name_the_replaced_passages() -> None:
    assert edit.touches({"path": "f", "edits": [{"old": "a", "new": "b"}]})[0].texts == ("a",)
    assert edit.touches({"path": "f"}) == ()
