from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest

from aisotools.session.approvals import MAX_BYTES, MAX_LINES, preview_of
from tests.work import lines_run

OURS = "aisotools.builtin.files:sandbox_write"


def diff(workspace: Path, **arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = preview_of(arguments, OURS, workspace)["diff"]
    return found


def test_a_new_file(tmp_path: Path) -> None:
    shown = diff(tmp_path, path="a/b.txt", content="one\ntwo\n")
    assert shown == {
        "path": "a/b.txt",
        "lines": ["+one", "+two"],
        "added": 2,
        "removed": 0,
        "note": "A new file.",
    }


def test_an_overwritten_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    shown = diff(tmp_path, path="a.txt", content="one\n2\nthree\n", operation="write")
    assert shown["lines"] == ["@@ -1,3 +1,3 @@", " one", "-two", "+2", " three"]
    assert (shown["added"], shown["removed"], shown["note"]) == (1, 1, "")


def test_edits(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b a\n")
    edits = [{"old": "a", "new": "c", "replace_all": True}, {"old": "b", "new": "d"}]
    assert diff(tmp_path, path="a.txt", edits=edits)["lines"][1:] == ["-a b a", "+c d c"]
    once = [{"old": "a", "new": "c"}]
    assert diff(tmp_path, path="a.txt", edits=once)["lines"][1:] == ["-a b a", "+c b a"]
    preview = diff(tmp_path, path="a.txt", edits=[{"old": "x", "new": "y"}])
    assert "edit 1 replaces a text that is not in the file" in preview["note"]


def test_three_lines_around_a_change_are_shown(tmp_path: Path) -> None:
    before = "".join(f"{n}\n" for n in range(20))
    (tmp_path / "a.txt").write_text(before)
    shown = diff(tmp_path, path="a.txt", content=before.replace("10\n", "ten\n"))
    assert shown["lines"] == ["@@ -8,7 +8,7 @@", " 7", " 8", " 9", "-10", "+ten", " 11", " 12", " 13"]


def test_texts_of_one_mebibyte_are_compared_and_longer_ones_are_not(tmp_path: Path) -> None:
    text = "x" * (1 << 20)
    (tmp_path / "a").write_text(text)
    assert (diff(tmp_path, path="a", content="short")["removed"], MAX_BYTES) == (1, 1 << 20)
    (tmp_path / "a").write_text("short")
    assert diff(tmp_path, path="a", content=text)["added"] == 1
    assert "too many to compare" in diff(tmp_path, path="a", content=text + "x")["note"]


def test_line_ends_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    assert "gains its line end" in diff(tmp_path, path="a.txt", content="one\n")["note"]
    assert "Nothing changes" in diff(tmp_path, path="a.txt", content="one")["note"]
    assert diff(tmp_path, path="new", content="")["note"] == "An empty file."


def test_only_our_own_tools_writes_are_taken_for_that(tmp_path: Path) -> None:
    arguments = {"path": "a.txt", "content": "x"}
    assert preview_of(arguments, "", tmp_path) == {}
    assert preview_of(arguments, OURS, None) == {}
    assert preview_of({"path": "a.txt", "operation": "read"}, OURS, tmp_path) == {}
    for odd in ({"path": 1, "content": "x"}, {"path": "a", "content": 1}, {"path": "a", "edits": [1]}, {}):
        assert preview_of(odd, OURS, tmp_path) == {}


def test_nothing_outside_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2\n")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "link").symlink_to(secret)
    (workspace / "folder").symlink_to(tmp_path)
    for path in ("../secret.txt", str(secret), "link", "folder/secret.txt", "~/x", "a\0b"):
        shown = diff(workspace, path=path, content="x\n")
        assert "hunter2" not in repr(shown), path


def test_file_that_cannot_be_compared_is_noted(tmp_path: Path) -> None:
    import os

    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_text("x" * (MAX_BYTES + 1))
    for name in ("binary", "fifo", "folder", "large"):
        shown = diff(tmp_path, path=name, content="x\n")
        assert (shown["lines"], bool(shown["note"])) == ([], True), name


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([f"{n % 7}" for n in range(MAX_LINES - 1)], [f"{n * 5 % 11}" for n in range(MAX_LINES - 1)]),
        ([f"x{n}" for n in range(MAX_LINES - 1)], [f"x{MAX_LINES - n}" for n in range(MAX_LINES - 1)]),
    ],
    ids=["few different lines", "the order reversed"],
)
def test_a_preview_takes_little_work(tmp_path: Path, before: list[str], after: list[str]) -> None:
    (tmp_path / "a").write_text("\n".join(before))
    work = lines_run(lambda: diff(tmp_path, path="a", content="\n".join(after)), below=difflib.__file__)
    assert 0 < work < 50 * MAX_LINES, "each line compared with each other one would be 4,000 * MAX_LINES"


def test_files_of_too_many_lines_are_not_compared(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    assert "too many" in diff(tmp_path, path="a", content="\n" * (MAX_LINES + 1))["note"]


@pytest.mark.parametrize("path", ["a", "./a", "/workspace/a"])
def test_path_is_shown_as_it_was_given(tmp_path: Path, path: str) -> None:
    (tmp_path / "a").write_text("1\n")
    assert diff(tmp_path, path=path, content="2\n")["path"] == path
