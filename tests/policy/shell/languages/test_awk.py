"""The grammar of awk."""

from __future__ import annotations

import pytest

from aisotools.policy.shell.languages.awk import read_awk


@pytest.mark.parametrize(
    "program",
    [
        "{print $1}",
        "NR>1{s+=$3} END{print s/(NR-1)}",
        "!seen[$0]++",
        '{a[$1]=a[$1]?a[$1]","$2:$2} END{for(i in a) print i"\\t"a[i]}',
        "function f(a, b) {\n return a > b ? a : b\n}\n{print f($1, $2)}",
        "{if ($1 ~ /^[[:alpha:]]+$/) n++; else if (/x\\/y/) m++}",
        'BEGIN {\n  FS = ","\n  while (i < 3) print i++\n}',
        "# a comment\n1",
        "/a/,/b/",
        "{$1=$1}1",
        '{print > "/dev/stderr"}',
        "{do { x-- } while (x > 0); delete a[1]; next}",
        "{print length}",
        "($1 in a) && !(2 in b)",
    ],
)
def test_plain_programs_are_read_whole(program: str) -> None:
    assert read_awk(program).doubt == ""


@pytest.mark.parametrize(
    "program",
    [
        '{print > "x"}',
        '{print >> "/tmp/x"}',
        '1system("x")',
        "{1e}",
        "0x1f",
        '{print a[1 > "f"]}',
        'default /2 > "f"',
        '{if (1) /2/ > "f"}',
        "x++ /2/ 3",
        "length /2/",
        '"ls" | getline',
        "{getline < $1}",
        '{getline x < "/inet/tcp/0/h/1"}',
        '{ARGV[1]="x"}',
        "@f()",
        "f(1)",
        "{print",
        "print 1}",
        "{(}",
        "{print (1}",
        "# \\\nx",
        "a b\n(c\nd)",
        "{print | cmd}",
        "{if 1}",
        "`x`",
        "{ print 'x' }",
        "switch (1) {}",
        "{system()}",
    ],
)
def test_a_program_that_may_do_more_is_doubted(program: str) -> None:
    assert read_awk(program).doubt


def test_commands_and_files_of_a_program_are_named() -> None:
    assert read_awk('{print $1 | "sort -u"}').scripts == ("sort -u",)
    assert read_awk('{while ((getline l < "ids") > 0) n++}').reads == ("ids",)


def test_functions_of_other_implementations_are_unknown_unless_they_are_given() -> None:
    assert read_awk("{print gc($2)}").doubt
    assert read_awk("{print gc($2)}", frozenset(("gc",))).doubt == ""
    assert read_awk('{print system("x")}', frozenset(("system",))).doubt
