"""apply_patch: diffs parsed leniently, applied to all files or to none, with every tolerance reported."""

from __future__ import annotations

import asyncio
import difflib
import stat
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from aisotools.builtin import patch as patch_module
from aisotools.builtin.patch import FilePatch, Hunk, apply_hunks, apply_patch, parse_patch
from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Effect, ToolResult

lines = st.lists(st.sampled_from(["a", "b", "c", "", "  d", "@@ x", "-- e", "++ f"]), max_size=12)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


def patched(root: Path, patch: str) -> ToolResult:
    arguments = apply_patch.validate_arguments({"patch": patch})
    result = asyncio.run(apply_patch.execute(arguments, ToolContext(workspace_path=root)))
    assert isinstance(result, ToolResult)
    return result


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


def test_tolerances_are_reported(root: Path) -> None:
    (root / "f").write_text("new\nnew\na\nb  \nc\nd\ne\n")
    result = patched(
        root, "--- f\n+++ f\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n@@ -10,2 +10,2 @@\n changed\n-e\n+E\n"
    )
    assert (root / "f").read_text() == "new\nnew\na\nB\nc\nd\nE\n"
    tolerances = result.value["files"][0]["fuzz"]
    assert "hunk 1 at line 3 (offset +2)" in tolerances
    assert "hunk 1 at line 3: white space at line ends ignored" in tolerances
    assert any("fuzz 1" in tolerance for tolerance in tolerances)


def test_hunks_that_could_be_anywhere_are_refused(root: Path) -> None:
    (root / "f").write_text("x\n" * 20)
    with pytest.raises(ToolError, match="fits in several places, at lines 1, 2"):
        patched(root, "--- a/f\n+++ b/f\n@@ @@\n-x\n+y\n")
    patched(root, "--- a/f\n+++ b/f\n@@ -5 +5 @@\n-x\n+y\n")
    assert (root / "f").read_text().split("\n")[4] == "y"


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("nothing", "names no file"),
        ("*** Begin Patch\n", "not a unified diff"),
        ("@@ -1 +1 @@\n-a\n+b\n", "a hunk without a file"),
        ("--- a/f\n+++ b/f\n", "no hunk follows"),
        ("--- a/f\n+++ b/f\n@@ -x @@\n", "not a hunk header"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n", "both sides"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\nrubbish\n", "belongs to no hunk"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", "twice"),
        ("diff --git a/f b/f\nGIT binary patch\n", "Binary"),
    ],
)
def test_malformed_patches_are_refused(root: Path, patch: str, message: str) -> None:
    (root / "f").write_text("a\n")
    with pytest.raises(ToolError, match=message):
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
        (patch,) = parse_patch("".join(rows))
        text = apply_hunks(patch, before)
        assert text.body == after
        assert text.tolerances == ()


def test_facts_and_touches() -> None:
    deletes = {"patch": "--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n"}
    facts = apply_patch.gather_facts(deletes)
    assert (facts.effect, facts.writes, facts.certain) == (Effect.DESTRUCTIVE, ("x", "y"), True)
    assert apply_patch.gather_facts({"patch": "rubbish"}).certain is False
    assert apply_patch.gather_facts({"patch": 3}).certain is False
    touches = apply_patch.touches(deletes)
    assert [(touch.path, touch.texts) for touch in touches] == [("x", ()), ("y", ("a",))]


# ---- parsing


def test_a_hunk_knows_its_context() -> None:
    (file,) = parse_patch("--- a/f\n+++ b/f\n@@ -3,4 +3,3 @@ title\n a\n-b\n c\n d\n")
    assert file == FilePatch("f", "f", (Hunk(3, ("a", "b", "c", "d"), ("a", "c", "d"), head=1, tail=2),))


def test_git_headers_without_hunks() -> None:
    text = (
        "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n"
        "diff --git a/empty b/empty\nnew file mode 100644\nindex 0000000..e69de29\n"
        "diff --git a/old b/old\ndeleted file mode 100644\n"
    )
    assert [(file.old, file.new) for file in parse_patch(text)] == [
        ("x", "y"),
        (None, "empty"),
        ("old", None),
    ]


def test_copies_are_refused_with_the_tool_to_use() -> None:
    with pytest.raises(ToolError, match="operation 'copy'"):
        parse_patch("diff --git a/x b/y\ncopy from x\ncopy to y\n")


def test_the_number_of_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_module, "MAX_FILES", 1)
    one = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"
    with pytest.raises(ToolError, match="changes more than 1 files; at most 1"):
        parse_patch(one.format("x") + one.format("y"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("@@ -1,20000 +1,20000 @@\n" + "-a\n+b\n" * 20_000, r"40,003 lines; at most 10,000"),
        ("@@ -1 +1 @@\n-a\n+b\n" * 2_000, r"2,000 hunks; at most 1,000"),
        ("@@\n-a\n" * 2_000, r"2,000 hunks; at most 1,000"),
    ],
    ids=["lines", "hunks", "hunks without numbers"],
)
def test_patch_that_takes_long_to_parse_is_refused(body: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        parse_patch(f"--- a/f\n+++ b/f\n{body}")


def test_rows_of_a_hunk_are_counted_once() -> None:
    """The number of steps grows with the number of rows, and not with its square."""

    def steps(count: int) -> int:
        text = f"--- a/f\n+++ b/f\n@@ -1,{count} +1,{count} @@\n" + "-a\n+b\n" * count
        events = 0

        def note(*_: object) -> None:
            nonlocal events
            events += 1

        sys.setprofile(note)
        try:
            parse_patch(text)
        finally:
            sys.setprofile(None)
        return events

    assert steps(2_000) < 2.2 * steps(1_000)


def test_quoted_paths_and_time_stamps_in_headers() -> None:
    (file,) = parse_patch('--- "a/f g"\n+++ b/f g\t2026-01-01\n@@ -1 +1 @@\n-a\n+b\n')
    assert (file.old, file.new) == ("f g", "f g")


def test_rows_that_look_like_a_header_belong_to_a_hunk_that_misses_rows() -> None:
    (file,) = parse_patch("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n--- b\n+++ c\n")
    assert file.hunks[0].before == ("a", "-- b")
    assert file.hunks[0].after == ("a", "++ c")


# ---- applying


def apply(body: str, *hunks: Hunk) -> str:
    return apply_hunks(FilePatch("f", "f", hunks), body).body


def test_an_insertion_stands_behind_the_line_it_names() -> None:
    assert apply("1\n2\n", Hunk(1, (), ("x",), 0, 0)) == "1\nx\n2\n"
    assert apply("1\n2\n", Hunk(0, (), ("x",), 0, 0)) == "1\n2\nx\n"


def test_the_nearest_place_wins_and_offsets_add_up() -> None:
    body = "a\nx\n" * 4
    text = apply_hunks(FilePatch("f", "f", (Hunk(4, ("a",), ("A",), 0, 0),)), body)
    assert text.body.split("\n")[2] == "A"
    assert text.tolerances == ("hunk 1 at line 3 (offset -1)",)


def test_a_hunk_never_lies_before_the_one_above_it() -> None:
    with pytest.raises(ToolError, match="hunk 2 near line 1 does not fit"):
        apply("a\nb\n", Hunk(2, ("b",), ("B",), 0, 0), Hunk(1, ("a",), ("A",), 0, 0))


def test_context_keeps_its_white_space_when_a_hunk_fits_loosely() -> None:
    assert apply("a \nb\t\nc\n", Hunk(1, ("a", "b", "c"), ("a", "B", "c"), 1, 1)) == "a \nB\nc\n"


def test_more_fuzz_than_allowed_is_refused() -> None:
    old = ("1", "2", "3", "x")
    with pytest.raises(ToolError, match="does not fit"):
        apply("n\nn\nn\nx\n", Hunk(1, old, (*old[:3], "y"), 3, 0))


# ---- rolling back


def test_a_write_that_fails_on_the_way_restores_every_file(root: Path) -> None:
    (root / "a").write_text("1\n")
    (root / "old").write_text("k\n")
    (root / "locked").mkdir()
    (root / "locked" / "f").write_text("1\n")
    before = tree(root)
    # Each change is possible when it is planned, but the last needs a folder where another wrote a file.
    with pytest.raises(ToolError):
        patched(
            root,
            "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+2\n"
            "--- a/locked/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n"
            "--- /dev/null\n+++ b/made\n@@ -0,0 +1 @@\n+x\n"
            "diff --git a/old b/new\nrename from old\nrename to new\n"
            "diff --git a/made/x b/made/x\nnew file mode 100644\n"
            "--- /dev/null\n+++ b/made/x\n@@ -0,0 +1 @@\n+x\n",
        )
    assert tree(root) == before
