"""Small languages: what is read as harmless is run by every program there is, and must change no file."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from aisotools.core.types import Effect
from aisotools.policy.shell.classify import classify_shell
from aisotools.policy.shell.languages.awk import read_awk
from aisotools.policy.shell.languages.jq import read_jq
from aisotools.policy.shell.languages.reading import MAX_PROGRAM_CHARS
from aisotools.policy.shell.languages.sed import read_sed
from aisotools.policy.shell.languages.sql import read_duckdb, read_sql
from aisotools.sandbox.confinement import landlock
from tests.policy.shell.small_programs import (
    AWK,
    LANGUAGES,
    SED,
    SQL,
    Language,
    Reader,
    changed_by,
    make_place,
    run_confined,
    snapshot,
)

needs_landlock = pytest.mark.skipif(landlock.abi() == 0, reason="needs Landlock to run such texts safely")

ATTACKS = [
    "awk 'BEGIN{1system(\"touch x\")}'",
    "awk 'BEGIN{1 system(\"touch x\")}'",
    "awk 'BEGIN{.5system(\"touch x\")}'",
    "awk 'BEGIN{x\nsystem(\"touch x\")}'",
    "awk 'BEGIN{print 1,\n2 > \"f\"}'",
    "awk '{print $1\\\n> \"f\"}' a",
    "awk 'default /2 > \"f\"' a",
    "awk 'default /2/ > \"f\"' a",
    "awk 'switch /2 > \"f\"/ 1' a",
    "awk 'func /2 > \"f\"/ 1' a",
    "awk '{print a[1 > \"f\"]}' a",
    "awk '{if (1) /x/ > \"f\"}' a",
    "awk '{x++ /2/ > \"f\"}' a",
    "awk 'BEGIN{kill = \"kill -9 -1\"; kill | getline}'",
    "awk 'BEGIN{\"kill -9 -1\" | getline}'",
    'awk \'BEGIN{print "kill -9 -1" | "sh"}\'',
    "awk '{print |& \"/inet/tcp/0/h/80\"}' a",
    "awk 'BEGIN{getline x < \"/inet/tcp/0/h/80\"}'",
    "awk 'BEGIN{ARGV[1]=\"/inet/tcp/0/h/80\"; ARGC=2} 1'",
    "awk 1 /inet/tcp/0/h/80",
    'awk \'BEGIN{f="system"; @f("touch x")}\'',
    "awk '@include \"x\"\n1' a",
    "awk '@load \"filefuncs\"; 1' a",
    "awk '# \\\nBEGIN{system(\"x\")}' a",
    "awk 'BEGIN{SYMTAB[\"x\"]=1}'",
    "awk -v x=1 -f prog a",
    "busybox awk 'BEGIN{system(\"touch x\")}'",
    'sqlite3 -readonly db \'select "writefile"("f",1)\'',
    "sqlite3 -readonly db 'select [edit](1)'",
    "sqlite3 -readonly db 'select `writefile`(1, 2)'",
    "sqlite3 db 'select 1, writefile(a, b) as (y)'",
    "sqlite3 db 'with x(a) as (select writefile(1,2)) select * from x'",
    "sqlite3 db 'select writefile/**/(1,2)'",
    "sqlite3 db 'select writefile --\n(1,2)'",
    "sqlite3 db '.tables' '.shell touch x'",
    "sqlite3 db '.sh touch x'",
    "sqlite3 db ' .tables; drop table t'",
    "sqlite3 -cmd '.shell touch x' db .tables",
    "sqlite3 --cmd '.shell touch x' db .tables",
    "sqlite3 -init x db .tables",
    "sqlite3 -A -xf a.sqlar",
    "sqlite3 'file:x?vfs=y' .tables",
    "sqlite3 db 'explain query plan select 1; vacuum into \"x\"'",
    "sqlite3 db 'pragma journal_mode(wal)'",
    "sqlite3 db 'pragma main.user_version = 3'",
    "sed 's/[/]/w f/' a",
    "sed 's/a/b/\nw f' a",
    "sed -e 'a\\' -e 'x' -e 'w f' a",
    "sed 's/a/b/;e touch x' a",
    "sed '1!w f' a",
    "sed '/a/,/b/W f' a",
    "sed '# x\nw f' a",
    "sed --expression='w f' a",
    "sed -n '$!{w f\n}' a",
    "jq 'import \"m\" as m; m::f' a",
    "jq 'include \"m\"; f' a",
    "yq 'load(\"x\")' a.yaml",
    "yq 'system(\"x\")' a.yaml",
    "csvsql --query 'attach \"x\" as y; create table y.t(a)' a.csv",
    "mlr --csv put 'tee > \"x\", $*' a.csv",
    "find . -fprint x",
    "find . -name '*' -exec sh -c 'touch x' ';'",
    "find . -newermt 2020 -ok rm {} ';'",
    "find . -files0-from x",
    "perl -ne 'print' a",
    "python -c 1",
    "gnuplot -e 'set output \"x\"'",
    "echo '!touch x' | dc",
    "printf 'w x\\nq\\n' | ed a",
    "vim -c 'w x' a",
    "ls | xargs sh",
    "duckdb -c \"copy t to 'x'\"",
    "psql -c '\\! touch x'",
    "nmap --script x h",
    "nmap --scrip=x h",
    "tmux ls \\; run-shell 'touch x'",
    "identify 'msl:x'",
    "exiftool -if 'system(\"touch x\")' a.jpg",
    "ack --output='@{[ system q(touch x) ]}' a",
]
"""Each writes, runs something, talks to a machine, or is a program that nothing reads whole."""


@pytest.mark.parametrize("command", ATTACKS)
def test_no_program_that_may_do_more_is_taken_for_reading(command: str) -> None:
    report = classify_shell(command)
    assert report.effect is not Effect.READ_ONLY
    assert report.effect is Effect.DESTRUCTIVE or not report.certain or report.writes or report.hosts


@pytest.mark.parametrize(
    "wrapper", ["{}", "cat a | {}", "x=$({}); echo $x", "for i in 1 2; do {}; done", "bash -c {!r}"]
)
def test_nothing_around_such_a_program_hides_it(wrapper: str) -> None:
    for command in ATTACKS:
        if "'" in command and "{!r}" in wrapper:
            continue
        assert classify_shell(wrapper.format(command)).effect is not Effect.READ_ONLY, command


@needs_landlock
@pytest.mark.parametrize("language", [AWK, SED, SQL], ids=lambda language: language.name)
def test_a_program_that_is_doubted_does_write_where_nothing_is_in_its_way(
    language: Language, tmp_path: Path
) -> None:
    assert language.read(language.control).doubt
    present = [line for line in language.programs if shutil.which(line[0])]
    if not present:
        pytest.skip(f"no program for {language.name} is installed")
    for number, line in enumerate(present):
        place = tmp_path / str(number)
        make_place(place)
        before = snapshot(place)
        run_confined([language.control if word == "{}" else word for word in line], place)
        assert snapshot(place) != before, line


@needs_landlock
@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
def test_programs_read_as_harmless_change_no_file(language: Language, tmp_path: Path) -> None:
    if not any(shutil.which(line[0]) for line in language.programs):
        pytest.skip(f"no program for {language.name} is installed")
    executed, caught = changed_by(language, 100, 1, tmp_path / "place")
    assert executed > 5
    assert caught == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@needs_landlock
@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
def test_many_programs_read_as_harmless_change_no_file(language: Language, tmp_path: Path) -> None:
    if not any(shutil.which(line[0]) for line in language.programs):
        pytest.skip(f"no program for {language.name} is installed")
    executed, caught = changed_by(language, 6000, 2, tmp_path / "place")
    assert executed > 300
    assert caught == []


@pytest.mark.parametrize("read", [read_awk, read_sed, read_sql, read_duckdb, read_jq])
@pytest.mark.parametrize(
    "part",
    [
        "(",
        "{",
        "[",
        '"',
        "/",
        "a(",
        "s/a/b/;",
        "$",
        "\\(",
        '"\\(',
        "/*",
        "function f(",
        "select (",
        "case ",
        ",",
        "#",
    ],
)
def test_no_program_takes_long_to_read(read: Reader, part: str) -> None:
    for text in (part * (MAX_PROGRAM_CHARS // len(part)), part * MAX_PROGRAM_CHARS):
        began_s = time.process_time()
        read(text)
        assert time.process_time() - began_s < 1


def test_a_command_that_awk_pipes_into_is_judged_as_if_it_stood_alone() -> None:
    assert classify_shell("awk '{print | \"sort -u\"}' a").effect is Effect.READ_ONLY
    assert classify_shell("awk '{print | \"tee x\"}' a").writes == ("x",)
    assert classify_shell("awk '{print | \"rm x\"}' a").effect is Effect.DESTRUCTIVE
    assert not classify_shell("awk '{print | \"sh\"}' a").certain
