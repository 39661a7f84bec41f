"""Every program, by its example commands in `tests/data/shell_commands.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisotools.core.types import Effect
from aisotools.policy.shell.classify import ShellReport, classify_shell
from aisotools.policy.shell.commands import (
    COMMANDS,
    UNSPECIFIED,
    find_spec,
    git,
    interpreters,
    is_information_request,
    services,
)
from aisotools.policy.shell.expansion import Word, literal, unknown_words
from aisotools.policy.shell.options import CommandSpec, classify_by_spec, program_name
from aisotools.policy.shell.subcommands import Subcommands

EXAMPLES = tomllib.loads((Path(__file__).parents[3] / "data" / "shell_commands.toml").read_text("utf-8"))


def spec_id(spec: CommandSpec) -> str:
    return spec.names.split()[0]


def reports(kind: str) -> dict[str, ShellReport]:
    """Return the report on each example of all programs, by the command."""
    commands = [command for examples in EXAMPLES.values() for command in examples[kind]]
    return {command: classify_shell(command) for command in commands}


def test_harmless_examples_certainly_only_read() -> None:
    wrong = {
        c: r for c, r in reports("harmless").items() if r.effect is not Effect.READ_ONLY or not r.certain
    }
    assert wrong == {}


def test_harmful_examples_are_not_read_only() -> None:
    assert [program for program, examples in EXAMPLES.items() if not examples["harmful"]] == []
    assert {c: r for c, r in reports("harmful").items() if r.effect is Effect.READ_ONLY} == {}


def test_no_example_is_lost() -> None:
    assert sum(len(examples["harmless"]) for examples in EXAMPLES.values()) >= 273
    assert sum(len(examples["harmful"]) for examples in EXAMPLES.values()) >= 550


def test_every_specification_has_examples() -> None:
    assert {spec_id(spec) for spec in COMMANDS} - EXAMPLES.keys() == set()


def subcommands_of(classify: object, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every subcommand that a classifier knows, and of those below."""
    if isinstance(classify, Subcommands):
        for name, spec in classify.specs.items():
            yield (*names, *name.split())
            yield from subcommands_of(spec.classify, (*names, *name.split()))


def test_the_table_of_every_program_and_subcommand_is_sound() -> None:
    """A table is parsed when it is needed; one that states an option twice would be an error only then."""
    seen = 0
    for spec in COMMANDS:
        for program in spec.names.split():
            for subcommand in [(), *subcommands_of(spec.classify)]:
                classify_by_spec(spec, [*map(literal, (program, *subcommand)), literal("-"), literal("x")])
                seen += 1
    assert seen > 2000
    for program, module in (("git", git), ("openssl", services), ("python -m", interpreters)):
        tables = [table for table in vars(module).values() if isinstance(table, dict)]
        names = sorted(name for table in tables for name in table if isinstance(name, str))
        assert len(names) > 20
        for name in names:
            classify_shell(f"{program} {name} - x")


def test_every_program_has_one_specification() -> None:
    names = [name for spec in COMMANDS for name in spec.names.split()]
    assert len(names) == len(set(names))
    assert UNSPECIFIED.isdisjoint(names)


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("ls", "ls"),
        ("/bin/ls", "ls"),
        ("/usr/local/bin/ls", "ls"),
        ("python3.11", "python"),
        ("gcc-12", "gcc"),
        ("mkfs.ext4", "mkfs"),
        ("./ls", ""),
        ("/tmp/ls", ""),
        ("bin/ls", ""),
        ("//bin/ls", ""),
        ("/bin/../tmp/ls", ""),
        ("~/ls", ""),
        ("/ls", ""),
    ],
)
def test_programs_are_found_by_name_and_in_the_folders_of_the_system(program: str, name: str) -> None:
    assert program_name(program) == name
    assert (find_spec(program) is not None) is bool(name)


@pytest.mark.parametrize("arguments", ["", "x", "-e 1", "-V:version", "-XshowSettings -version"])
def test_a_version_in_the_name_of_a_program_changes_no_verdict(arguments: str) -> None:
    names = [name for spec in COMMANDS for name in spec.names.split()]
    versioned = [name for name in names if program_name(f"{name}3.1") == name]
    assert {"java", "perl", "python"} <= set(versioned)
    for name in versioned:
        plain, other = classify_shell(f"{name} {arguments}"), classify_shell(f"{name}3.1 {arguments}")
        assert (other.effect, other.certain, other.reads) == (plain.effect, plain.certain, plain.reads), name


def words(text: str) -> list[Word]:
    return [unknown_words(word) if word.startswith("$") else literal(word) for word in text.split()]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ls --version", True),
        ("ls --help", True),
        ("/bin/ls --help", True),
        ("python3.11 -V", True),
        ("ls -V", False),  # only what the specification lists
        ("ls", False),
        ("ls --version x", False),  # beside another argument it may do its work
        ("ls x --version", False),
        ("ls $x", False),
        ("$x --version", False),
        ("zip --version", True),  # without a specification, and known to print only
        ("zip --help", True),
        ("zip -h", False),
        ("zip --help x", False),
        ("frobnicate --version", False),
        ("./zip --version", False),
        ("./ls --version", False),
        ("dotnet --version", False),  # may install what the folder asks for
        ("read --version", False),
        ("let --version", False),
        ("kubectl --version", True),
        ("kubectl --help", True),
        ("kubectl get --help", False),  # a subcommand, which is for its own table to judge
    ],
)
def test_only_known_programs_are_trusted_to_print_information(command: str, expected: bool) -> None:
    assert is_information_request(words(command)) is expected


@pytest.mark.parametrize("program", ["frobnicate", "zip", "zypper", "let", "./ls"])
def test_a_program_without_a_specification_may_do_anything(program: str) -> None:
    report = classify_shell(f"{program} a")
    assert (report.effect, report.certain) == (Effect.LOCAL_MUTATION, False)
    # A path outside the system's folders names a file, which may be a script.
    assert report.reads == ((program,) if "/" in program else ())
    assert report.writes == ()
    assert report.reasons == (f"what {program} does is unknown",)


@pytest.mark.parametrize("program", ["python", "vim", "cargo", "source", "gnuplot", "convert"])
def test_a_program_that_is_not_analysed_reads_its_operands(program: str) -> None:
    report = classify_shell(f"{program} a -n 3 b")
    assert (report.effect, report.certain) == (Effect.LOCAL_MUTATION, False)
    assert report.reads == ("a", "b")
