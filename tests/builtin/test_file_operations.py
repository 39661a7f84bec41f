"""append, delete, move and copy; and what .gitignore leaves out of a search."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from aisotools.builtin.file_operations import select_lines, translate_errors
from aisotools.builtin.files import file
from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Effect, ToolResult
from aisotools.workspace.workspace import Workspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    (folder / "d" / "e").mkdir(parents=True)
    (folder / "a").write_text("a\n")
    (folder / "d" / "b").write_text("b\n")
    (folder / "d" / "e" / "c").write_text("c\n")
    (folder / "d" / "link").symlink_to("../a")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("somebody")
    (folder / "out").symlink_to(tmp_path / "etc")
    return folder


def do(root: Path, operation: str, path: str = ".", **more: Any) -> ToolResult:
    context = ToolContext(workspace_path=root)
    arguments = file.validate_arguments({"operation": operation, "path": path, **more})
    return asyncio.run(file.execute(arguments, context))


def refused(root: Path, operation: str, path: str, **more: Any) -> str:
    before = tree(root)
    with pytest.raises(ToolError) as caught:
        do(root, operation, path, **more)
    assert tree(root) == before
    return str(caught.value)


def tree(root: Path) -> dict[str, bytes | str | None]:
    found: dict[str, bytes | str | None] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def test_append(root: Path) -> None:
    assert do(root, "append", "a", content="more").value["appended"] == 4
    assert do(root, "append", "n/new", content="x").value["created"] is True
    assert (root / "a").read_text() == "a\nmore"
    assert (root / "n" / "new").read_text() == "x"
    outside = root.parent / "outside"
    outside.write_text("safe")
    os.link(outside, root / "hard")
    do(root, "append", "hard", content="!")
    assert outside.read_text() == "safe"
    assert "needs content" in refused(root, "append", "a")


def test_delete_removes_links_themselves_and_folders_only_on_request(root: Path) -> None:
    assert do(root, "delete", "out").value["kind"] == "symlink"
    assert (root.parent / "etc" / "passwd").exists()
    assert "holds 3 entries. Set recursive" in refused(root, "delete", "d")
    assert do(root, "delete", "d", recursive=True).value["deleted"] == 5
    do(root, "delete", "a")
    assert tree(root) == {}


@pytest.mark.parametrize("path", [".", "/workspace", "d/..", "d/e/../..", "./", "/workspace/"])
def test_the_root_is_never_deleted_or_moved(root: Path, path: str) -> None:
    assert "the workspace itself" in refused(root, "delete", path, recursive=True)
    assert "the workspace itself" in refused(root, "move", path, destination="x")


@pytest.mark.parametrize("path", ["../ws/a", "{outside}/passwd", "out/passwd", "..", ""])
def test_nothing_outside_is_touched(root: Path, path: str) -> None:
    outside = root.parent / "etc"
    path = path.format(outside=outside)
    for operation, more in (("delete", {}), ("move", {"destination": "x"}), ("append", {"content": "x"})):
        refused(root, operation, path, **more)
    refused(root, "copy", "a", destination=path)
    refused(root, "move", "a", destination=path)
    assert tree(outside) == {"passwd": b"somebody"}


def test_folders_deeper_than_any_path_are_deleted(root: Path) -> None:
    """Code that a call ran can make them, and no call can watch the workspace until they are gone."""
    here = os.open(root, os.O_RDONLY)
    for _ in range(2500):
        os.mkdir("d" * 50, dir_fd=here)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert "with at least 200 entries" in do(root, "delete", "d" * 50, recursive=True).content
    assert not (root / ("d" * 50)).exists()


def test_a_trailing_slash_asks_for_a_folder(root: Path) -> None:
    assert "asks for a folder" in refused(root, "delete", "a/")
    do(root, "delete", "d/", recursive=True)


def test_move(root: Path) -> None:
    do(root, "move", "a", destination="new/name")
    assert do(root, "move", "d", destination="new").value["destination"] == "new/d"
    do(root, "move", "out", destination="in")
    assert tree(root) == {
        "in": str(root.parent / "etc"),
        "new": None,
        "new/d": None,
        "new/d/b": b"b\n",
        "new/d/e": None,
        "new/d/e/c": b"c\n",
        "new/d/link": "../a",
        "new/name": b"a\n",
    }


def test_nothing_is_replaced_and_nothing_put_into_itself(root: Path) -> None:
    for operation in ("move", "copy"):
        assert "is there already, a file" in refused(root, operation, "a", destination="d/b")
        assert "a part of itself" in refused(root, operation, "d", destination="d/e/f")
        assert "a part of itself" in refused(root, operation, "d", destination="d/e")
        assert "into itself" in refused(root, operation, "a", destination="a")
        assert "needs destination" in refused(root, operation, "a")
        assert "There is no" in refused(root, operation, "nosuch", destination="x")
        (root / "into" / "a").mkdir(parents=True, exist_ok=True)
        assert "is there already, a directory" in refused(root, operation, "a", destination="into")


def test_copy(root: Path) -> None:
    (root / "a").chmod(0o750)
    do(root, "copy", "a", destination="d/")
    result = do(root, "copy", "d", destination="twice")
    assert (result.value["files"], result.value["size"]) == (3, 6)
    assert (root / "twice" / "link").is_symlink()
    assert (root / "twice" / "e" / "c").read_text() == "c\n"
    assert (root / "twice" / "a").stat().st_mode & 0o777 == 0o750
    os.mkfifo(root / "d" / "fifo")
    assert do(root, "copy", "d", destination="third").value["left_out"] == 1


def test_a_copy_that_fails_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aisotools.builtin.file_operations.MAX_COPY_BYTES", 3)
    assert "nothing was copied" in refused(root, "copy", "d", destination="twice")


def test_facts_name_the_paths_that_are_written() -> None:
    facts = file.gather_facts({"operation": "move", "path": "x/conftest.txt", "destination": "y"})
    assert facts.writes == ("x/conftest.txt", "y", "y/conftest.txt")
    assert file.gather_facts({"operation": "copy", "path": "a", "destination": "b"}).reads == ("a",)
    assert file.classify({"operation": "delete", "path": "a"}) is Effect.DESTRUCTIVE
    assert file.extract_undo_path({"operation": "delete", "path": "a"}) == Path("a")
    assert file.extract_undo_path({"operation": "copy", "path": "a", "destination": "b"}) == Path("b")
    assert file.extract_undo_path({"operation": "move", "path": "a", "destination": "b"}) is None
    assert file.extract_undo_path({"operation": "copy", "path": "a", "destination": 3}) is None


# ---- what is searched


def found(root: Path, **more: Any) -> list[str]:
    result = do(root, "search", glob="*", **more)
    return sorted(result.value["paths"])


IGNORES = {
    ".gitignore": "*.log\n!keep.log\nbuild/\n/top.txt\nsub/*.tmp\n# no\n\\#odd\n**/deep/**/x\n[ab].c\n?.q\n",
    "sub/.gitignore": "!wanted.log\n*.md\n",
}
FILES = (
    *("a.log", "keep.log", "top.txt", "sub/top.txt", "sub/a.tmp", "sub/more/a.tmp", "#odd", "a.c", "c.c"),
    *("build/x", "sub/build/y", "sub/wanted.log", "sub/b.log", "sub/read.md", "read.md", "deep/1/2/x", "z.q"),
    *("zz.q", ".hidden", "space name"),
)


def test_gitignore_is_followed_as_git_does(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    for name, text in (*IGNORES.items(), *((name, "") for name in FILES)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    if shutil.which("git") is None:
        pytest.skip("no git")
    subprocess.run(["git", "init", "-q", "."], cwd=root, check=True, env=environ)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
        env=environ,
    ).stdout.split("\0")
    assert found(root) == sorted(filter(None, listed))
    every = found(root, include_ignored=True)
    assert {name for name in every if not name.startswith(".git/")} == {*FILES, *IGNORES}


def test_ignored_files_are_counted_and_searched_when_named(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    (root / "build").mkdir(parents=True)
    (root / ".gitignore").write_text("build/\n*.log\n")
    (root / "build" / "x").write_text("needle\n")
    (root / "a.log").write_text("needle\n")
    result = do(root, "search", pattern="needle")
    assert result.value["matches"] == []
    assert result.value["notes"] == ["Files or folders left out by .gitignore: 2."]
    assert [m["path"] for m in do(root, "search", "build", pattern="needle").value["matches"]] == ["build/x"]
    assert [m["path"] for m in do(root, "search", "a.log", pattern="needle").value["matches"]] == ["a.log"]


# ---- lines and errors


@pytest.mark.parametrize(
    ("text", "start", "end", "chosen", "total"),
    [
        ("a\nb\nc\n", None, None, "a\nb\nc\n", 3),
        ("a\nb\nc", 2, None, "b\nc", 3),
        ("a\nb\nc\n", 2, 2, "b\n", 3),
        ("a\nb\nc", 1, 9, "a\nb\nc", 3),
        ("", None, None, "", 0),
        ("a\x0bb\n", 1, 1, "a\x0bb\n", 1),
    ],
)
def test_selected_lines(text: str, start: int | None, end: int | None, chosen: str, total: int) -> None:
    lines = select_lines("f", text, start, end)
    assert (lines.text, lines.total) == (chosen, total)
    assert bool(lines.note) is (end == 9)


def test_lines_past_the_end() -> None:
    with pytest.raises(ToolError, match="'f' has 2 lines; start_line 3 is past its end"):
        select_lines("f", "a\nb\n", 3, None)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (IsADirectoryError(), "'a' is a folder, not a file"),
        (PermissionError(), "'a': permission denied"),
        (FileNotFoundError(), "There is no 'a' in the workspace"),
        (NotADirectoryError(), "'a' is a file, not a folder"),
        (OSError(28, "No space left on device"), "'a': No space left on device"),
    ],
)
def test_errors_name_the_path_and_the_next_step(root: Path, error: OSError, message: str) -> None:
    with pytest.raises(ToolError, match=message), translate_errors(Workspace(root), "a"):
        raise error
