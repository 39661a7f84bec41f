"""Programs in small languages, made of parts that write and parts that hide them, and what runs them."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aisotools.policy.shell.languages.awk import read_awk
from aisotools.policy.shell.languages.jq import read_jq
from aisotools.policy.shell.languages.reading import ProgramReading
from aisotools.policy.shell.languages.sed import read_sed
from aisotools.policy.shell.languages.sql import read_sql
from aisotools.sandbox.confinement import landlock
from tests.sandbox.alone import in_own_thread

Reader = Callable[[str], ProgramReading]
"""Reads a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """One small language.

    Attributes:
        name: Its name.
        read: What judges its programs.
        programs: Command lines that run a program, which stands for `{}`.
        seeds: Programs to begin with; some of them write.
        parts: What is put into them.
        control: A program that writes a file, and is doubted.
    """

    name: str
    read: Reader
    programs: tuple[tuple[str, ...], ...]
    seeds: tuple[str, ...]
    parts: tuple[str, ...]
    control: str


AWK = Language(
    name="awk",
    read=read_awk,
    programs=(
        ("mawk", "{}", "data"),
        ("gawk", "{}", "data"),
        ("busybox", "awk", "{}", "data"),
        ("original-awk", "{}", "data"),
    ),
    seeds=(
        "{print $1}",
        '{print $1, $2 > "C"}',
        'BEGIN{system("touch C")}',
        'BEGIN{print "x" | "cat > C"}',
        'BEGIN{"touch C" | getline x; print x}',
        "NR>1{s+=$2} END{print s/NR}",
        "/a/{n++} END{print n}",
        "{a[$1]++} END{for(k in a) print k, a[k]}",
        'BEGIN{1 system("touch C")}',
        'default /2 > "C"/ 1',
        '{print length / 2 > "C" / 1}',
        '{if ($1 > 2) print; else print "b"}',
        "function f(a){return a+1} {print f($1)}",
        '{gsub(/[^/]/, ""); print}',
        '{x = y /1 > "C"/ 2}',
        '{printf("%s\\n", $1) > "C"}',
        "{print (1 > 2), 3}",
        '{print a[1 > "C"]}',
        '{print $1\n} $2 > "C" {print}',
        '{getline x < "data"; print x}',
        "/a/,/b/{print NR}",
        '{print "a" > "/dev/stderr"}',
        'BEGIN{while((getline l < "data") > 0) n++; print n}',
        '{ i++ /x/ > "C" }',
        '{print $1 ~ /a/ ? "y" : "n"}',
        '{if (x) /a/ > "C"}',
        '{print | "sort"}',
    ),
    parts=(
        '> "C"',
        '>> "C"',
        '| "touch C"',
        'system("touch C")',
        '"touch C" | getline',
        "print ",
        "printf ",
        "getline ",
        "getline",
        "/",
        "/a/",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ";",
        "\n",
        "\\\n",
        ",",
        '"',
        '"C"',
        "#",
        "#\\\n",
        "++",
        "--",
        "length",
        "length ",
        "default ",
        "switch(1){case ",
        "case ",
        "func ",
        "in ",
        "$1",
        "$",
        "!",
        "~",
        "?",
        ":",
        "=",
        "/=",
        ">",
        ">=",
        "|",
        "||",
        "|&",
        "&&",
        "if(1)",
        "while(0)",
        "for(;0;)",
        "else ",
        "do ",
        "function ",
        "BEGIN",
        "END",
        "BEGINFILE",
        "next",
        "exit ",
        "delete ",
        "1",
        "1e",
        "1.",
        "0x1",
        "x",
        " ",
        "sub(/a/,",
        "close(",
        "@f()",
        "\\",
        "\\/",
        "[/]",
        "[[:alpha:]]",
        "[^]]",
        "'",
        "f(",
        "a[1]",
        "%",
        "**",
        "^",
        "-",
        "+",
        "nextfile",
        "fflush()",
        "toupper(",
        'printf("%s",1)',
        "return ",
        "&",
        "`",
    ),
    control='BEGIN{print "x" > "C"}',
)

SED = Language(
    name="sed",
    read=read_sed,
    programs=(
        ("sed", "{}", "data"),
        ("sed", "-n", "{}", "data"),
        ("sed", "-E", "{}", "data"),
        ("busybox", "sed", "{}", "data"),
    ),
    seeds=(
        "s/a/b/",
        "s/a/b/w C",
        "w C",
        "1w C",
        "/a/w C",
        "s/[/]/w C/",
        "s/[^/]*/x/g;w C",
        "$!N;$!D",
        "a text\nw C",
        "a\\\ntext\nw C",
        "y/ab/cd/;w C",
        "y/a[/b]/;w C",
        "1!G;h;$!d",
        ":a;N;$!ba;s/\\n/ /g",
        "/a/{p;d}",
        "s/a/b/e",
        "e touch C",
        "1e touch C",
        "b w C\nw C",
        "s|a|b|w C",
        "s,[,],b,w C",
        "\\,a[,]w C,p",
        "/[/]w C/p",
        "r data\nw C",
        "r data;w C",
        "i\\header",
        "5{p;q}",
        "# x\nw C",
        "#x\\\nw C",
        "s/a/\\\nw C/",
        "s/x/[/;w C;s/]//",
        "2,4!d",
        "0,/a/d",
        "/a/I,+2p",
        "s/\\//|/;p",
        "c\\\nfoo\\\nw C",
        "}w C",
        "{w C",
        "s/a[]/]b/w C/",
        "t w C\n:w C",
    ),
    parts=(
        "w C",
        "\nw C\n",
        ";w C",
        "e touch C",
        "\ne touch C\n",
        "s/a/b/",
        "s/",
        "/",
        "[",
        "]",
        "[^",
        "[]",
        "\\",
        "\\\n",
        "\n",
        ";",
        "{",
        "}",
        "a",
        "i\\",
        "c",
        "y/",
        "|",
        ",",
        "!",
        "$",
        "1",
        "2,3",
        "p",
        "#",
        " ",
        "\\/",
        "\\]",
        "\\[",
        "b",
        ":a",
        "t",
        "r data",
        "r ",
        "/a/",
        "\\%",
        "%",
        "I",
        "w",
        "g",
        "&",
        "W C",
        "[[:alpha:]]",
        "[:",
        ":]",
        "n",
        "N",
        "q",
        "=",
        "x",
        "~",
        "+1",
        "s",
        "M",
        "/w C",
        "/e",
        "e",
    ),
    control="w C",
)

SQL = Language(
    name="SQL",
    read=read_sql,
    programs=(("sqlite3", "data.db", "{}"), ("sqlite3", ":memory:", "{}")),
    seeds=(
        "select * from t",
        "select writefile('C', 'x')",
        "select \"writefile\"('C', 'x')",
        "select [writefile]('C', 'x')",
        "select `writefile`('C',1)",
        "insert into t values(1)",
        "with x as (select 1) select * from x",
        "with x(a) as (select writefile('C',1)) select * from x",
        "select edit(1,'touch C')",
        "select 1, writefile('C', 'x') as (y)",
        "select 1 /* ' */ , writefile('C','x')",
        "select '--', writefile('C','x')",
        "attach 'C' as c; create table c.t(a)",
        "vacuum into 'C'",
        "select count(*), max(a) from t group by a having count(*) > 0",
        "explain select 1",
        "pragma table_info(t)",
        "pragma journal_mode=wal",
        "values(1),(2)",
        "with x as (select 1) delete from t",
        "select case when a>1 then 'x' else 'y' end from t",
        "select a from t; drop table t",
        "replace into t values(5)",
        "select replace(a,'x','y') from t",
        "create table u(a)",
        "select 1;\n.shell touch C",
        "with recursive c(x) as (values(1) union all select x+1 from c where x<3) select x from c",
    ),
    parts=(
        "writefile('C','x')",
        "\"writefile\"('C','x')",
        "[writefile]('C','x')",
        "edit(1,'touch C')",
        "/*",
        "*/",
        "--",
        "\n",
        "'",
        '"',
        "`",
        "[",
        "]",
        "(",
        ")",
        ",",
        ";",
        "select ",
        "with ",
        " as ",
        "insert into t values(9);",
        "delete from t;",
        "create table C(a);",
        "attach 'C' as d;",
        "drop table t;",
        "vacuum into 'C';",
        "union ",
        "x'",
        "''",
        "1",
        "a",
        "t",
        "*",
        "pragma ",
        "end ",
        "case ",
        "then ",
        "begin;",
        "explain ",
        "query plan ",
        "values ",
        "from ",
        "where ",
        "replace ",
        "into ",
        ".shell touch C",
        "=",
        "writefile",
        " ",
        "not materialized ",
        "x(a) as (",
    ),
    control="select writefile('C', 'x')",
)

JQ = Language(
    name="jq",
    read=read_jq,
    programs=(("jq", "-n", "{}"), ("jq", "{}", "data.json")),
    seeds=(
        ".",
        ".a",
        ".[] | select(. > 1)",
        '"a\\(1 + 2)b"',
        "def f(x): x + 1; f(2)",
        "reduce .[] as $x (0; . + $x)",
        "to_entries | map(.key)",
        "if . then 1 else 2 end",
        ". as {a: $x} | $x",
        "input",
        "@base64",
        'import "m" as m; .',
        "label $f | 1, break $f",
        'try error("x") catch .',
        "limit(3; repeat(1))",
        "$ENV.PATH",
        "[paths]",
    ),
    parts=(
        "|",
        ",",
        ".",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        '"',
        "\\(",
        "input",
        "debug",
        "stderr",
        "env",
        "$x",
        "as ",
        "def ",
        "f:",
        ";",
        "if ",
        "end",
        "#",
        "\n",
        "@sh",
        "//",
        "..",
        "=",
        "|=",
        'include "m";',
        "1",
        "halt_error",
        "input_filename",
    ),
    control="",
)

LANGUAGES = (AWK, SED, SQL, JQ)


def mutated_program(language: Language, chance: random.Random) -> str:
    """Return one of the seeds, changed in a few places."""
    text = chance.choice(language.seeds)
    for _ in range(chance.choice([1, 1, 2, 2, 3, 4, 6])):
        kind, at = chance.random(), chance.randrange(len(text) + 1)
        if kind < 0.55:
            text = text[:at] + chance.choice(language.parts) + text[at:]
        elif kind < 0.8:
            text = text[:at] + text[at + chance.choice([1, 1, 2, 4]) :]
        else:
            other = chance.choice(language.seeds)
            text += chance.choice([";", "\n", " "]) + other[chance.randrange(len(other) + 1) :]
    return text


def make_place(place: Path) -> None:
    """Make the files that the programs read."""
    place.mkdir(exist_ok=True)
    (place / "data").write_text("a 1\nb 2\nab/c 3\n")
    (place / "data.json").write_text('[{"a": 1}, 2, [3]]')
    if shutil.which("sqlite3"):
        subprocess.run(
            ["sqlite3", "data.db", "create table t(a); insert into t values(1),(2)"], cwd=place, check=True
        )


def snapshot(place: Path) -> dict[str, bytes]:
    """Return all files below `place`."""
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def run_confined(command: Sequence[str], place: Path) -> None:
    """Run `command` able to write below `place` only; a loop without an end is stopped."""

    def start() -> subprocess.Popen[bytes]:
        landlock.restrict(["/"], [str(place)])
        return subprocess.Popen(
            list(command),
            cwd=place,
            env={"PATH": os.environ["PATH"], "HOME": str(place), "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    process = in_own_thread(start)
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def changed_by(language: Language, rounds: int, seed: int, place: Path) -> tuple[int, list[tuple[str, str]]]:
    """Return how many programs were run, and those that changed a file, each with what ran it."""
    programs = [line for line in language.programs if shutil.which(line[0])]
    make_place(place)
    before = snapshot(place)
    chance = random.Random(seed)
    executed, caught = 0, []
    for _ in range(rounds):
        text = mutated_program(language, chance)
        reading = language.read(text)
        if reading.doubt or reading.scripts or "\0" in text:
            continue
        for line in programs:
            executed += 1
            run_confined([text if word == "{}" else word for word in line], place)
            if snapshot(place) != before:
                caught.append((line[0], text))
                shutil.rmtree(place)
                make_place(place)
                before = snapshot(place)
    return executed, caught
