"""edit and apply_patch: exact, or nothing; what is kept of a file's form; all files or none."""

from __future__ import annotations

import asyncio
import difflib
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisotools.builtin.edit import Replacement, Text, apply_edits, edit
from aisotools.builtin.patch import apply_hunks, apply_patch, read_patch
from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Effect, ToolResult
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


def test_what_cannot_be_edited_is_told(root: Path) -> None:
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


# ---- patches


def patched(root: Path, patch: str) -> ToolResult:
    return call(apply_patch, root, patch=patch)


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_several_files_changed_made_deleted_and_renamed(root: Path) -> None:
    (root / "a").write_text("1\n2\n3\n")
    (root / "gone").write_text("x\n")
    (root / "old").write_text("k\nl\n")
    (root / "old").chmod(0o700)
    result = patched(
        root,
        "--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n 1\n-2\n+two\n 3\n"
        "--- /dev/null\n+++ b/d/made\n@@ -0,0 +1,2 @@\n+n\n+m\n"
        "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "diff --git a/old b/new\nsimilarity index 50%\nrename from old\nrename to new\n"
        "--- a/old\n+++ b/new\n@@ -1,2 +1,2 @@\n k\n-l\n+L\n",
    )
    assert tree(root) == {"a": b"1\ntwo\n3\n", "d/made": b"n\nm\n", "new": b"k\nL\n"}
    assert stat.S_IMODE((root / "new").stat().st_mode) == 0o700
    assert [row["change"] for row in result.value["files"]] == ["changed", "created", "deleted", "renamed"]
    assert result.content == "changed a\ncreated d/made\ndeleted gone\nrenamed new (from old)"


def test_all_or_nothing(root: Path) -> None:
    (root / "a").write_text("1\n")
    (root / "b").write_text("1\n")
    before = tree(root)
    for last in (
        "--- a/b\n+++ b/b\n@@ -1 +1 @@\n-2\n+3\n",
        "--- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+x\n",
        "--- a/b\n+++ /dev/null\n@@ -1 +0,0 @@\n-2\n",
        "--- a/nosuch\n+++ b/nosuch\n@@ -1 +1 @@\n-2\n+3\n",
        "--- /dev/null\n+++ b/a/below\n@@ -0,0 +1 @@\n+x\n",
        "--- /dev/null\n+++ b/../out\n@@ -0,0 +1 @@\n+x\n",
    ):
        with pytest.raises(ToolError):
            patched(
                root,
                "--- /dev/null\n+++ b/made\n@@ -0,0 +1 @@\n+x\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+2\n"
                + last,
            )
        assert tree(root) == before
    assert not (root.parent / "out").exists()


def test_what_does_not_fit_exactly_is_told(root: Path) -> None:
    (root / "f").write_text("new\nnew\na\nb  \nc\nd\ne\n")
    result = patched(
        root, "--- f\n+++ f\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n@@ -10,2 +10,2 @@\n changed\n-e\n+E\n"
    )
    assert (root / "f").read_text() == "new\nnew\na\nB\nc\nd\nE\n"
    told = result.value["files"][0]["fuzz"]
    assert "hunk 1 at line 3 (offset +2)" in told
    assert "hunk 1 at line 3: white space at line ends ignored" in told
    assert any("fuzz 1" in one for one in told)


def test_hunks_that_could_be_anywhere_are_refused(root: Path) -> None:
    (root / "f").write_text("x\n" * 20)
    with pytest.raises(ToolError, match="fits in several places, at lines 1, 2"):
        patched(root, "--- a/f\n+++ b/f\n@@ @@\n-x\n+y\n")
    patched(root, "--- a/f\n+++ b/f\n@@ -5 +5 @@\n-x\n+y\n")
    assert (root / "f").read_text().split("\n")[4] == "y"


@pytest.mark.parametrize(
    ("patch", "told"),
    [
        ("nothing", "names no file"),
        ("*** Begin Patch\n", "not a unified diff"),
        ("@@ -1 +1 @@\n-a\n+b\n", "a hunk without a file"),
        ("--- a/f\n+++ b/f\n", "no hunk follows"),
        ("--- a/f\n+++ b/f\n@@ -x @@\n", "no hunk title"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n", "both sides"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\nrubbish\n", "belongs to no hunk"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", "twice"),
        ("diff --git a/f b/f\nGIT binary patch\n", "Binary"),
    ],
)
def test_what_is_no_patch_is_told(root: Path, patch: str, told: str) -> None:
    (root / "f").write_text("a\n")
    with pytest.raises(ToolError, match=told):
        patched(root, patch)


def test_miscounted_hunks_and_stripped_blanks_are_understood(root: Path) -> None:
    (root / "f").write_text("a\n\nb\nc\n")
    patched(root, "--- a/f\n+++ b/f\n@@ -1,2 +1,9 @@\n a\n\n-b\n+B\n c\n")
    assert (root / "f").read_text() == "a\n\nB\nc\n"


@pytest.mark.parametrize("ends", [(True, True), (True, False), (False, True), (False, False)])
def test_the_end_of_the_last_line(root: Path, ends: tuple[bool, bool]) -> None:
    old, new = ("a\nb" + "\n" * ends[0], "a\nc" + "\n" * ends[1])
    (root / "f").write_text(old)
    mark = "\\ No newline at end of file\n"
    patched(
        root,
        "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n" + mark * (not ends[0]) + "+c\n" + mark * (not ends[1]),
    )
    assert (root / "f").read_text() == new


@given(lines, lines)
def test_diffs_of_others_apply_exactly(old: list[str], new: list[str]) -> None:
    before, after = ("".join(f"{line}\n" for line in part) for part in (old, new))
    rows = list(difflib.unified_diff(before.splitlines(True), after.splitlines(True), "a/f", "b/f"))
    if rows:
        (patch,) = read_patch("".join(rows))
        applied = apply_hunks(patch, before)
        assert applied.body == after
        assert applied.stretched == ()


def test_what_policies_are_told() -> None:
    deletes = {"patch": "--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n"}
    facts = apply_patch.gather_facts(deletes)
    assert (facts.effect, facts.writes, facts.certain) == (Effect.DESTRUCTIVE, ("x", "y"), True)
    assert apply_patch.gather_facts({"patch": "rubbish"}).certain is False
    assert apply_patch.gather_facts({"patch": 3}).certain is False
    touches = apply_patch.touches(deletes)
    assert [(one.path, one.texts) for one in touches] == [("x", ()), ("y", ("a",))]
    assert edit.touches({"path": "f", "edits": [{"old": "a", "new": "b"}]})[0].texts == ("a",)
