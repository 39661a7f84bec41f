"""Searching: globs, patterns, context, bounds, and the rules of .gitignore files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from aisotools.builtin import search
from aisotools.builtin.search import (
    IgnoreRules,
    Search,
    SearchMatch,
    SearchResult,
    ancestors,
    compile_glob,
    compile_pattern,
    format_matches,
    parse_ignore_rule,
)
from aisotools.core.exceptions import ToolError
from aisotools.workspace.workspace import Workspace
from tests.waiting import HANG_S


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run(root: Path, pattern: str | None = None, path: str = ".", glob: str | None = None) -> SearchResult:
    content = None if pattern is None else compile_pattern(pattern, regex=True)
    names = None if glob is None else compile_glob(glob)
    return Search(Workspace(root), content, names).run(path)


# ---- globs and patterns


@pytest.mark.parametrize(
    ("glob", "matching", "other"),
    [
        ("*.py", ["a.py", "b/c/a.py"], ["a.pyc", "a.py/b"]),
        ("src/*.py", ["src/a.py"], ["src/b/a.py", "x/src/a.py"]),
        ("./src/**", ["src/a", "src/b/c"], ["lib/src/a"]),
        ("src/**/t.py", ["src/t.py", "src/a/b/t.py"], ["t.py"]),
        ("?.q", ["a.q"], ["ab.q", ".q"]),
        ("*.{js,ts}", ["a.js", "b/c.ts"], ["a.jsx", "a.{js,ts}"]),
        ("[a-c].txt", ["b.txt"], ["d.txt"]),
        ("[!a].txt", ["b.txt"], ["a.txt"]),
        ("[z-a].txt", ["[z-a].txt"], ["a.txt"]),
        ("a{b", ["a{b"], ["ab"]),
        ("a.b", ["a.b"], ["axb"]),
    ],
)
def test_glob(glob: str, matching: list[str], other: list[str]) -> None:
    compiled = compile_glob(glob)
    assert [path for path in matching + other if compiled.fullmatch(path)] == matching


def test_a_literal_pattern_is_no_regular_expression() -> None:
    assert compile_pattern("a.b(", regex=False).search("xa.b(x")
    assert compile_pattern("^b$", regex=True).search("a\nb\nc")


def test_a_pattern_that_does_not_compile_is_named_with_the_position() -> None:
    with pytest.raises(ToolError, match=r"'a\(' is not a regular expression: .* at position 1\. .*literally"):
        compile_pattern("a(", regex=True)


# ---- matches


def test_matches_have_line_numbers_and_a_line_counts_once(tmp_path: Path) -> None:
    write(tmp_path, a="x\nhit hit\r\n\nhit\n")
    assert [(m.line, m.text) for m in run(tmp_path, "hit").matches] == [(2, "hit hit"), (4, "hit")]
    assert [m.line for m in run(tmp_path, "^$").matches] == [3]


def test_context_lines_end_at_the_edges_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, a="1\n2\n3\n4\n")
    found = Search(Workspace(tmp_path), re.compile("[14]"), None, 2).run(".").matches
    assert [(m.before, m.after) for m in found] == [((), ("2", "3")), (("2", "3"), ())]


def test_a_long_line_is_cut_around_the_match(tmp_path: Path) -> None:
    write(tmp_path, a="x" * 3_000 + "needle" + "y" * 3_000)
    [match] = run(tmp_path, "needle").matches
    assert "needle" in match.text
    assert match.text.startswith("…")
    assert match.text.endswith("…")
    assert len(match.text) == search.MAX_LINE_CHARS + 2


def test_formatted_matches_merge_overlapping_context_and_separate_groups() -> None:
    matches = [
        SearchMatch("a", 2, "two", ("one",), ("three",)),
        SearchMatch("a", 3, "three", ("two",), ("four",)),
        SearchMatch("a", 9, "nine", ("eight",), ()),
        SearchMatch("b", 1, "plain"),
    ]
    assert list(format_matches(matches)) == [
        "a-1- one",
        "a:2: two",
        "a:3: three",
        "a-4- four",
        "--",
        "a-8- eight",
        "a:9: nine",
        "b:1: plain",
    ]


def test_json_has_context_only_when_asked() -> None:
    match = SearchMatch("a", 2, "two", ("one",), ())
    assert match.as_json(with_context=False) == {"path": "a", "line": 2, "text": "two"}
    assert match.as_json(with_context=True)["before"] == ["one"]


# ---- bounds, and what is skipped


@pytest.mark.parametrize(
    ("bound", "value", "pattern", "note"),
    [
        ("MAX_MATCHES", 2, "x", "Stopped after 2 matches"),
        ("MAX_PATHS", 2, None, "Stopped after 2 paths"),
        ("MAX_FILES", 2, "y", "Stopped after 2 files"),
        ("MAX_TOTAL_BYTES", 2, "y", "Stopped after 2 bytes read"),
    ],
)
def test_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, bound: str, value: int, pattern: str | None, note: str
) -> None:
    write(tmp_path, a="x\n", b="x\n", c="x\n", d="x\n")
    monkeypatch.setattr(search, bound, value)
    result = run(tmp_path, pattern)
    assert result.files <= 3
    assert result.notes == [f"{note}; narrow the search by path, glob or pattern."]


def test_binary_and_large_files_are_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_SEARCHED_FILE_BYTES", 10)
    (tmp_path / "binary").write_bytes(b"x\0x")
    write(tmp_path, large="x" * 11, small="x")
    result = run(tmp_path, "x")
    assert [m.path for m in result.matches] == ["small"]
    assert result.notes == [
        "Binary files skipped: 1.",
        "Files larger than 10 bytes skipped: 1.",
    ]


def test_links_are_listed_but_their_targets_are_searched_where_they_lie(tmp_path: Path) -> None:
    write(tmp_path, a="x")
    (tmp_path / "link").symlink_to("a")
    assert [m.path for m in run(tmp_path, "x").matches] == ["a"]
    assert sorted(run(tmp_path, glob="*").paths) == ["a", "link"]


def test_a_file_that_is_named_is_searched_alone(tmp_path: Path) -> None:
    write(tmp_path, a="x", b="x")
    assert [m.path for m in run(tmp_path, "x", "a").matches] == ["a"]
    assert run(tmp_path, None, "a").paths == ["a"]
    assert run(tmp_path, "x", "a", glob="b").matches == []


def test_progress_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_PROGRESS_INTERVAL_FILES", 2)
    write(tmp_path, a="", b="", c="", d="", e="")
    reports: list[int] = []
    Search(Workspace(tmp_path), None, None, emit=lambda _name, done, what: reports.append(done)).run(".")
    assert reports == [2, 4]


# ---- .gitignore


def rules(*lines: str, folder: str = ".") -> IgnoreRules:
    return IgnoreRules().with_file("\n".join(lines), folder)


@pytest.mark.parametrize("line", ["", "  ", "# comment", "/", "!", "[a", "[z-a]", "a\\"])
def test_lines_that_git_discards(line: str) -> None:
    assert parse_ignore_rule(line) is None


@pytest.mark.parametrize(
    ("lines", "path", "is_folder", "ignored"),
    [
        (["*.log"], "a/b.log", False, True),
        (["*.log", "!keep.log"], "a/keep.log", False, False),
        (["!keep.log", "*.log"], "keep.log", False, True),
        (["/top"], "top", False, True),
        (["/top"], "a/top", False, False),
        (["a/b"], "x/a/b", False, False),
        (["build/"], "x/build", True, True),
        (["build/"], "x/build", False, False),
        (
            ["build/"],
            "build/x",
            False,
            False,
        ),  # the folder is asked about first; here the search began inside
        (["foo/**", "!foo/keep"], "foo", True, False),
        (["foo/**", "!foo/keep"], "foo/x", False, True),
        (["foo/**", "!foo/keep"], "foo/keep", False, False),
        (["*.txt", "!/kept"], "kept/a.txt", False, True),
        (["*/"], "a", True, True),
        (["*/"], "a", False, False),
        (["\\#odd"], "#odd", False, True),
        (["\\!odd"], "!odd", False, True),
        (["trailing  "], "trailing", False, True),
        (["**/deep/**/x"], "a/deep/b/c/x", False, True),
    ],
)
def test_ignore_rules(lines: list[str], path: str, is_folder: bool, ignored: bool) -> None:
    assert rules(*lines).ignores(path, is_folder=is_folder) is ignored


def test_an_inner_file_overrides_and_is_anchored_at_its_folder() -> None:
    inner = rules("*.log", "/x").with_file("!a.log\n/x", "sub")
    assert not inner.ignores("sub/a.log", is_folder=False)
    assert inner.ignores("sub/b.log", is_folder=False)
    assert inner.ignores("sub/x", is_folder=False)
    assert not inner.ignores("sub/more/x", is_folder=False)


def test_a_file_without_rules_adds_no_level() -> None:
    outer = rules("a")
    assert outer.with_file("# nothing\n\n", "sub") is outer


def test_rules_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_IGNORE_RULES", 1)
    assert not rules("a", "b").ignores("b", is_folder=False)


def test_an_ignore_file_is_read_up_to_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_IGNORE_FILE_BYTES", 3)
    write(tmp_path, **{".gitignore": "a\n\nb\n", "a": "", "b": ""})
    assert run(tmp_path, glob="[ab]").paths == ["b"]


def test_a_search_below_a_folder_follows_the_files_above_it(tmp_path: Path) -> None:
    write(tmp_path, **{".gitignore": "*.log\n", "d/a.log": "x", "d/a.txt": "x", "d/.git/config": "x"})
    assert [m.path for m in run(tmp_path, "x", "d").matches] == ["d/a.txt"]
    everything = Search(Workspace(tmp_path), re.compile("x"), None, include_ignored=True).run("d")
    assert sorted(m.path for m in everything.matches) == ["d/.git/config", "d/a.log", "d/a.txt"]


def test_ancestors() -> None:
    assert list(ancestors(".")) == []
    assert list(ancestors("a/b/c")) == [".", "a", "a/b"]


def test_the_library_is_imported_with_the_first_rule() -> None:
    code = (
        "import sys\n"
        "from aisotools.builtin.search import IgnoreRules\n"
        "assert 'pathspec' not in sys.modules\n"
        "assert IgnoreRules().with_file('a', '.').ignores('a', is_folder=False)\n"
        "assert 'pathspec' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG_S)
