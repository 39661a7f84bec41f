"""The languages of awk, sed, sqlite3 and duckdb: what is plainly harmless, and what is not."""

from __future__ import annotations

import random
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from aisotools.policy.shell.classify import classify_shell
from aisotools.policy.shell.commands.scripting import COMMANDS, is_same_in_posix_shells
from aisotools.policy.shell.languages.awk import read_awk
from aisotools.policy.shell.languages.sed import read_sed
from tests.policy.shell.commands.verdicts import (
    PathsAndHosts,
    verdict,
    wrong_effects,
    wrong_paths_and_hosts,
)

EFFECTS = [
    ("awk '{print $1}' a", "read_only"),
    ("awk", "local_mutation?"),
    ('awk "$x" a', "local_mutation?"),
    ("awk '{print > \"x\"}' a", "local_mutation?"),
    ("awk '$1 > 2' a", "read_only"),
    ("awk '{print $1 > 2}' a", "local_mutation?"),
    ("awk '{print 1; x = 2 > 1}' a", "read_only"),
    ("awk 'BEGIN{system(\"rm\")}'", "local_mutation?"),
    ("awk '{print | \"sh\"}'", "read_only"),  # sh is judged on its own
    ("awk '{print | $1}'", "local_mutation?"),
    ("awk '{print >> \"x\"}'", "local_mutation?"),
    ("awk '{getline}'", "read_only"),
    ("awk '{\"ls\" | getline}'", "local_mutation?"),
    ("awk '{getline < $1}'", "local_mutation?"),
    ("awk '/a/ {n++} END {print n/2}'", "read_only"),
    ("awk '{print length / 2}'", "read_only"),
    ("awk '(1)/2/3'", "read_only"),  # it ends a group, after which all of them divide
    ("awk '{if (1) /2/ > 3}'", "local_mutation?"),
    ("awk '/[/'", "local_mutation?"),
    ("awk '@f()'", "local_mutation?"),
    ("awk '\"a'", "local_mutation?"),
    ("awk -f x a", "local_mutation?"),
    ("awk -v n=1 '{print n}' a", "read_only"),
    ("awk -i x 1", "local_mutation?"),
    ("awk '$1 || $2'", "read_only"),
    ("awk '{print a[1]/2}'", "read_only"),
    ("awk '#system\n1'", "read_only"),
    ("awk '`x`'", "local_mutation?"),
    ("bioawk -c fastx '{print gc($seq)}' a", "read_only"),
    ("bioawk -c fastx '{print > \"x\"}' a", "local_mutation?"),
    ("bioawk -f x a", "local_mutation?"),
    ("awk '{print gc($1)}' a", "local_mutation?"),
    ("tomlq -r .a a", "read_only"),
    ("tomlq -i .a=1 a", "local_mutation?"),
    ("duckdb -c 'select 1'", "read_only"),
    ("duckdb :memory: -c 'select 1'", "read_only"),
    ("duckdb -readonly a -c 'select 1'", "read_only"),
    ("duckdb a -c 'select 1'", "local_mutation?"),
    ("duckdb -readonly a", "local_mutation?"),
    ("duckdb -readonly a b -c 'select 1'", "local_mutation?"),
    ("duckdb -readonly $x -c 'select 1'", "local_mutation?"),
    ('duckdb -c "$x"', "local_mutation?"),
    ("duckdb -c .tables", "read_only"),
    ("duckdb -c '.shell x'", "local_mutation?"),
    ("duckdb -c \"copy t to 'x'\"", "local_mutation?"),
    ("duckdb -unsigned -c 'select 1'", "local_mutation?"),
    ("duckdb -init x -c 'select 1'", "local_mutation?"),
    ("sed p a", "read_only"),
    ("sed -n 1,5p a", "read_only"),
    ("sed s/a/b/ a", "read_only"),
    ("sed 's/a/b/;p' a", "read_only"),
    ("sed 's/a/b/w x' a", "local_mutation?"),
    ("sed 's/a/b/e' a", "local_mutation?"),
    ("sed 'w x' a", "local_mutation?"),
    ("sed 1e a", "local_mutation?"),
    ("sed -i p a", "local_mutation"),
    ("sed -i.bak p a", "local_mutation"),
    ("sed -i'*/x' p a", "local_mutation?"),
    ("sed --in-place p a", "local_mutation"),
    ("sed -f x a", "local_mutation?"),
    ("sed -e p -e d a", "read_only"),
    ('sed "$x" a', "local_mutation?"),
    ("sed", "read_only"),
    ("sed 's/[/]/b/' a", "read_only"),  # wherever the pattern ends
    ("sed 's/[/]/w b/' a", "local_mutation?"),
    ("sed 'y/a/b/' a", "read_only"),
    ("sed 's/a' a", "local_mutation?"),
    ("sed 's/a\nb/c/' a", "local_mutation?"),
    ("sed '/a/,/b/!d' a", "read_only"),
    ("sed 's,a,b,g;t x;:x' a", "read_only"),
    ("sed 's/a/b/gI 2' a", "local_mutation?"),
    ("sed 5q a", "read_only"),
    ("sed 'a text' a", "read_only"),
    ("sed 'a text\\\nw x' a", "local_mutation?"),
    ("sqlite3 -readonly a 'select 1'", "read_only"),
    ("sqlite3 a 'select 1'", "read_only"),
    ("sqlite3 -readonly a", "local_mutation?"),
    ("sqlite3 -readonly a .tables", "read_only"),
    ("sqlite3 -readonly a '.shell x'", "local_mutation?"),
    ("sqlite3 -readonly a 'select 1; select 2'", "read_only"),
    ("sqlite3 -readonly a 'select 1; drop table t'", "local_mutation?"),
    ("sqlite3 -readonly a 'select 1;'", "read_only"),
    ("sqlite3 -readonly a 'delete from t'", "local_mutation?"),
    ("sqlite3 -readonly a 'select load_extension(1)'", "local_mutation?"),
    ("sqlite3 -readonly a 'select COUNT(*) from t'", "read_only"),
    ("sqlite3 -readonly -cmd x a 'select 1'", "local_mutation?"),
    ("sqlite3 -readonly $x 'select 1'", "local_mutation?"),
    ("sqlite3 -readonly a 'with x as (select 1) insert into t select 1'", "local_mutation?"),
    ('sqlite3 -readonly a "$x"', "local_mutation?"),
    ("sqlite3 -readonly a b 'select 1'", "local_mutation?"),
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}


PATHS_AND_HOSTS: list[PathsAndHosts] = [
    ("awk '{print $1}' a", ("a",), (), ()),
    ("awk '{print > \"x\"}' a", ("a",), (), ()),
    ("awk '$1 > 2' a", ("a",), (), ()),
    ("awk '{print $1 > 2}' a", ("a",), (), ()),
    ("awk '{print 1; x = 2 > 1}' a", ("a",), (), ()),
    ("awk -v n=1 '{print n}' a", ("a",), (), ()),
    ("sed p a", ("a",), (), ()),
    ("sed -n 1,5p a", ("a",), (), ()),
    ("sed s/a/b/ a", ("a",), (), ()),
    ("sed 's/a/b/;p' a", ("a",), (), ()),
    ("sed 's/a/b/w x' a", ("a",), (), ()),
    ("sed 's/a/b/e' a", ("a",), (), ()),
    ("sed 'w x' a", ("a",), (), ()),
    ("sed 1e a", ("a",), (), ()),
    ("sed -i p a", (), ("a",), ()),
    ("sed -i.bak p a", (), ("a.bak", "a"), ()),
    ("sed -i'*/x' p a", (), ("a",), ()),
    ("sed --in-place p a", (), ("a",), ()),
    ("sed -f x a", ("a",), (), ()),
    ("sed -e p -e d a", ("a",), (), ()),
    ('sed "$x" a', ("a",), (), ()),
    ("sed 's/[/]/b/' a", ("a",), (), ()),
    ("sed 'y/a/b/' a", ("a",), (), ()),
    ("sed 's/a' a", ("a",), (), ()),
    ("sed 's/a\nb/c/' a", ("a",), (), ()),
    ("sed '/a/,/b/!d' a", ("a",), (), ()),
    ("sed 's,a,b,g;t x;:x' a", ("a",), (), ()),
    ("sed 's/a/b/gI 2' a", ("a",), (), ()),
    ("sed 5q a", ("a",), (), ()),
    ("sed 'a text' a", ("a",), (), ()),
    ("sqlite3 -readonly a 'select 1'", ("a",), (), ()),
    ("sqlite3 a 'select 1'", ("a",), (), ()),
    ("sqlite3 -readonly a", ("a",), (), ()),
    ("sqlite3 -readonly a .tables", ("a",), (), ()),
    ("sqlite3 -readonly a '.shell x'", ("a",), (), ()),
    ("sqlite3 -readonly a 'select 1; select 2'", ("a",), (), ()),
    ("sqlite3 -readonly a 'select 1;'", ("a",), (), ()),
    ("sqlite3 -readonly a 'delete from t'", ("a",), (), ()),
    ("sqlite3 -readonly a 'select load_extension(1)'", ("a",), (), ()),
    ("sqlite3 -readonly a 'select COUNT(*) from t'", ("a",), (), ()),
    ("sqlite3 -readonly -cmd x a 'select 1'", ("a",), (), ()),
    ("sqlite3 -readonly a 'with x as (select 1) insert into t select 1'", ("a",), (), ()),
    ('sqlite3 -readonly a "$x"', ("a",), (), ()),
    ("sqlite3 -readonly a b 'select 1'", ("a",), (), ()),
]
"""Each command with what it reads, writes and talks to."""


def test_paths_and_hosts() -> None:
    assert wrong_paths_and_hosts(COMMANDS, PATHS_AND_HOSTS) == {}


@pytest.mark.parametrize(
    ("program", "doubt"),
    [
        ("{print $1}", ""),
        ('{system("x")}', "system, which means more than a variable"),
        ('"ls" | getline', "|, which writes or runs something"),
        ('{print > "x"}', ">, which writes or runs something"),
        ("{print; x > 1}", ""),
        ("(1)/2/3", ""),
        ("if (1) /2/", "if without a condition"),
        ("{if (1) /2/}", "what may be a division or begin a pattern"),
        ("x++ /2/ 3", "what may be a division or begin a pattern"),
        ("/[/", "a pattern that is not plain"),
        ("@f()", "'@f()', which is not plain awk"),
        ('"a', "'\"a', which is not plain awk"),
        ("$1 ~ /x\\/y/", ""),
        ("length/2", ""),
        ("length /2/", "what may be a division or begin a pattern"),
    ],
)
def test_reasons_why_an_awk_program_may_do_more(program: str, doubt: str) -> None:
    assert read_awk(program).doubt == doubt


@pytest.mark.parametrize(
    ("script", "doubt"),
    [
        ("p", ""),
        ("1,5p;d", ""),
        ("s/a/b/", ""),
        ("s/a/b/w x", "'w x', which may write or run something"),
        ("s/a\\/b/c/g", ""),
        ("w x", "'w x', which may write or run something"),
        ("/a/I,+3{p}", ""),
        ("1~2d", ""),
        ("s|[|]|w b|", "brackets in which a pattern may end"),
        ("e", "'e', which may write or run something"),
        ("a\\\ntext", ""),
        ("y/abc/def/", ""),
        ("$!N", ""),
    ],
)
def test_reasons_why_a_sed_script_may_do_more(script: str, doubt: str) -> None:
    assert read_sed(script).doubt == doubt


@pytest.mark.parametrize(
    ("command", "reads", "unresolved"),
    [
        ("duckdb -c \"select * from 'a.csv'\"", ("a.csv",), ()),
        ("duckdb -c \"select * from 'd/*.csv'\"", ("d/*.csv",), ("…",)),  # `**` reaches below folders
        ("duckdb -readonly a.db -c 'select * from t'", ("a.db",), ("…",)),  # `t` may be a view of any file
    ],
)
def test_files_that_duckdb_may_read_are_named_or_unresolved(
    command: str, reads: tuple[str, ...], unresolved: tuple[str, ...]
) -> None:
    found = verdict(COMMANDS, command)
    assert (found.reads, found.unresolved) == (reads, unresolved)


@pytest.mark.parametrize(
    ("command", "is_certain"),
    [
        ('l=482; sed -n "$((l-6)),$((l+6))p" a', True),
        ('n=$(wc -l < a); awk "NR >= $((n / 2))" a', True),
        ('for i in 1 2; do sed -n "${i}p" a; done', True),
        ('n=3; sed -n "${n}w out" a', False),
        ('n=3; awk "NR == $n {print > 1}" a', False),
        ('sed -n "${1}p" a', False),
        ('n=$(cat x); sed -n "${n}p" a', False),
    ],
)
def test_programs_with_numbers_of_the_text_are_read(command: str, is_certain: bool) -> None:
    assert classify_shell(command).certain is is_certain


TEXTS = [
    ('cat "$1" | wc -l', True),
    ('echo "$1: $(grep -c x "$1")"', True),
    ('[ -f a ] && ! cat "${1:-b}" 2>/dev/null', True),
    ('for f in *.txt; do head -1 "$f" 2>&1; done', True),
    ('case "$1" in a) cat a;; *) cat b;; esac', True),
    ('if [ "$1" = a ] || [ "$1" != b ]; then cat --number=1 < a; fi', True),
    ("A=-delete :; find . $A", False),  # the assignment lasts in sh
    ("printf x=1", False),
    ("f() { cat; }; f", False),
    ("((1)) || cat", False),
    ("echo $((1))", False),
    ("echo $'a'", False),
    ('echo $"a"', False),
    ("cat {a,b}", False),
    ("cat a &> b", False),  # sh runs cat in the background, and empties b
    ("cat a |& cat", False),
    ("cat >&b", False),
    ("cat <<< a", False),
    ("cat <(ls)", False),
    ("[[ a && rm ]]", False),
    ("ls [^a]", False),
    ("ls !(a)", False),
    ("ls @(a)", False),
    ("echo ${a/b/c} ${a:1:2} ${a^^} ${!a}", False),
    ("echo '\\055n'", False),  # which some decode
    ("pushd a; cat key", False),
    ("echo `ls`", False),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_texts_that_sh_reads_as_bash_does(text: str, *, expected: bool) -> None:
    assert is_same_in_posix_shells(text) is expected


_PARTS = r"""
cat a | cat b.txt | show $1 | show $@ | show * | show ? | show [!a]* | show [^a]* | show a=b | show ${1:-x}
show ${3%y} | show ${#1} | show $(show $1) | show $(echo a b) | show $((1)) | show $'a' | show {a,b} | $A
[ $1 = a ] | [ a == a ] | [[ a ]] | set -- c d | cd sub | cd .. | pushd sub | exec show | read x | show $x
for x in a b | do show $x | done | if true | then | else | fi | case $1 in a) | *) | esac | f() | { | }
(show) | ! | != | = | --c=d | -n | <a | <<<a | >&2 | 2>&1 | 2>/dev/null | &>o | >o | && | && | || | ;; | &
' | \n | \\n | \$ | \* | " | ~ | `show` | # | @(a) | !(a) | % | x | let | select | function g | time show
true | false | : | A=1 | export A=1 | ; | ; | show | show $A | "$1" | "$@" | '$1' | 'a b' | "a
"""
_TEXTS_TRIED = 5_000


@pytest.mark.skipif(shutil.which("dash") is None, reason="no shell to compare bash with")
def test_texts_that_are_said_to_be_the_same_do_the_same_in_both_shells(tmp_path: Path) -> None:
    chance = random.Random(7)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "show").write_text('#!/bin/sh\nprintf "<%s>" "$0" "$@" "$PWD"\n')
    (programs / "show").chmod(0o755)
    parts = [part.strip() for line in _PARTS.splitlines() for part in line.split(" | ")]
    parts += ["|", "|&", "\n", "\\\n"]
    texts = set()
    for _ in range(_TEXTS_TRIED):
        text = chance.choice((" ", "; ", "")).join(chance.choices(parts, k=chance.randint(1, 6)))
        if is_same_in_posix_shells(text) and classify_shell(f"bash -c {shlex.quote(text)}").certain:
            texts.add(text)
    assert len(texts) > 60
    for number, text in enumerate(sorted(texts)):
        results = []
        for shell in ("bash", "dash"):
            folder = tmp_path / f"{number}-{shell}" / "f"
            (folder / "sub").mkdir(parents=True)
            for name in ("a", "b.txt", "-n"):
                (folder / name).write_text(f"{name}\n")
            done = subprocess.run(
                [shell, "-c", text, "_", "a b", "*", "xyy"],
                cwd=folder,
                env={"PATH": f"{programs}:/usr/bin:/bin", "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            shown = re.findall(b"<[^>]*>", done.stdout.replace(f"{number}-{shell}".encode(), b""))
            results.append((shown, sorted(path.name for path in folder.rglob("*"))))
        assert results[0] == results[1], text
