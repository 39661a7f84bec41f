"""Where each command of a text may run, compared with where bash runs it."""

from __future__ import annotations

import itertools
import random
import subprocess
from pathlib import Path

import pytest

from aisotools.policy.shell.classify import classify_shell
from aisotools.policy.shell.folders import START, find_folders, join, leaves_start, relocate
from aisotools.policy.shell.parser import parse_shell
from tests.waiting import HANG_S


def folders_of_last(text: str) -> frozenset[str] | None:
    parsed = parse_shell(text)
    return find_folders(parsed)[id(parsed.commands[-1])]


@pytest.mark.parametrize(
    ("text", "folders"),
    [
        ("cat k", {"."}),
        ("cd a && cat k", {"a"}),
        ("cd a && cd b && cat k", {"a/b"}),
        ("cd a && cd .. && cat k", {"."}),
        ("cd a && ls && cat k", {"a"}),
        ("cd a; cat k", {".", "a"}),
        ("cd a\ncat k", {".", "a"}),
        ("cd a || exit 1; cat k", {"a"}),
        ("cd a || { echo no; exit 1; }; cat k", {".", "a"}),
        ("cd a && cat x || cat k", {".", "a"}),
        ("cd a || cat x && cat k", {".", "a"}),
        ("ls && cd a && cat k", {"a"}),
        ("(cd a && ls); cat k", {"."}),
        ("x=$(cd a && ls); cat k", {"."}),
        ("echo $(cd a) && cat k", {"."}),
        ("(cd a && cat k)", {"a"}),
        ("cd a && (cat k)", {"a"}),
        ("cd a | cat k", {"."}),
        ("ls | cd a; cat k", {"."}),
        ("cd a & cat k", {"."}),
        ("cd -P a && cat k", None),
        ("cd -L a && cat k", {"a"}),
        ("cd -- a && cat k", {"a"}),
        ("'c'd a && cat k", {"a"}),
        ("cd /etc && cat k", {"/etc"}),
        ("cd && cat k", {"~"}),
        ("cd $WORKSPACE/a && cat k", {"$WORKSPACE/a"}),
        ("cd $x && cat k", None),
        ("cd - && cat k", None),
        ("cd a b && cat k", None),
        ("pushd a && cat k", {"a"}),
        ("popd; cat k", None),
        ("pushd; cat k", None),
        ("command cd a && cat k", None),
        ("builtin cd a && cat k", None),
        ("time cd a && cat k", None),
        ("eval 'cd a'; cat k", None),
        ("source x; cat k", None),
        ("$x a; cat k", None),
        ("if true; then cd a; fi; cat k", None),
        ("for i in 1 2; do cd a; done; cat k", None),
        ("! cd a; cat k", None),
        ("f() { cd a; }; f; cat k", None),
        ("cd $x && cd /etc && cat k", {"/etc"}),
        ("; ".join(f"cd a{number}" for number in range(9)) + "; cat k", None),
    ],
)
def test_folders_of_the_last_command(text: str, folders: set[str] | None) -> None:
    assert folders_of_last(text) == folders


def test_commands_before_a_loop_that_changes_the_folder_may_run_anywhere() -> None:
    parsed = parse_shell("for i in 1 2; do cat k; cd a; done")
    assert set(find_folders(parsed).values()) == {None}


def test_paths_are_joined_as_programs_read_them() -> None:
    assert join("a", "../k") == "a/../k"
    assert join(START, "k") == "k"
    assert [join("a", path) for path in ("/k", "~/k", "$HOME/k", "$PWD/k", "${PWD}")] == [
        "/k",
        "~/k",
        "$HOME/k",
        "a/k",
        "a/.",
    ]
    assert list(relocate(["k", "/k", "$TMPDIR/k"], None)) == ["/k", "$TMPDIR/k"]
    assert list(relocate(["k"], frozenset({"a", "b"}))) == ["a/k", "b/k"]


def test_folders_that_leave_the_start() -> None:
    assert [
        leaves_start(frozenset({folder})) for folder in ("a", "$WORKSPACE/a", "..", "/a", "~", "$HOME")
    ] == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert leaves_start(None)
    assert leaves_start(frozenset({"$WORKSPACE/.."})) is True


# ---- generated texts, run by bash

_COMMANDS = (
    "cd a",
    "cd b",
    "cd ..",
    "cd missing",
    "true",
    "false",
    "here",
    "(cd a; here)",
    "cd a | true",
    "cd .",
)
_OPERATORS = (" && ", " || ", "; ", "\n", " & ")


def texts(seed: int, count: int) -> list[str]:
    chooser = random.Random(seed)
    made = []
    for _ in range(count):
        pieces = [chooser.choice(_COMMANDS) for _ in range(chooser.randint(2, 6))]
        glue = [chooser.choice(_OPERATORS) for _ in pieces]
        made.append("".join(itertools.chain(*zip(pieces, glue, strict=True))).rstrip(" &|;\n") + "\nhere")
    return made


def test_bash_runs_no_command_where_it_was_not_expected(tmp_path: Path) -> None:
    """Each `here` prints its folder; the text in which it stands says which folders it may be."""
    for folder in ("a/a", "a/b", "b/a", "b/b"):
        (tmp_path / "top" / folder).mkdir(parents=True)
    top = tmp_path / "top"
    for text in texts(7, 250):
        numbered = text
        while "here" in numbered:
            numbered = numbered.replace("here", f"cat k{numbered.count('/dev/null')} 2>/dev/null", 1)
        parsed = parse_shell(numbered)
        found = find_folders(parsed)
        expected: dict[str, frozenset[str] | None] = {}
        for command in parsed.commands:
            name = command.words[1].bare if len(command.words) > 1 else ""
            if name.startswith("k"):
                expected[name] = found[id(command)]
        script = f'cat() {{ echo "$1 $PWD"; }}\n{numbered}\nwait'
        printed = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, cwd=top, timeout=HANG_S, check=False
        ).stdout
        for line in printed.splitlines():
            name, folder = line.split(" ", 1)
            folders = expected[name]
            real = {str((top / one).resolve()) for one in folders} if folders is not None else {folder}
            assert folder in real, (numbered, line, folders)


def test_a_command_says_what_it_reads_in_each_folder() -> None:
    report = classify_shell("cd a && cat k > out; for f in *.csv; do wc -l $f; done")
    assert report.reads == ("$f", "*.csv", "a/$f", "a/*.csv") or report.unresolved
    report = classify_shell('for f in *.csv x; do wc -l "$f"; done')
    assert (report.reads, report.unresolved) == (("$f", "*.csv", "x"), ())
    assert classify_shell("cat $x").unresolved == ("$x",)
    assert classify_shell("find . -exec cat {} +").unresolved == ("{}",)
    assert classify_shell("ls | xargs cat").unresolved
