"""A program is judged alike however its name is written: by its path, in quotes, with a version.

The arguments are made of the tables: options of the program and of its subcommands, with files behind them.
"""

from __future__ import annotations

import dataclasses
import random
import shlex
from collections.abc import Iterator

import pytest

from aisotools.policy.shell.classify import ShellReport, classify_shell
from aisotools.policy.shell.commands import COMMANDS, UNSPECIFIED
from aisotools.policy.shell.options import CommandSpec, SimilarPrograms, parse_option_table, program_name
from aisotools.policy.shell.subcommands import Subcommands

PARTS = 40
"""Into so many the programs are divided: a few are tested by default, and all with the slow tests."""
PER_PROGRAM = 8
"""How many lists of arguments each program gets, beside those that all get."""
ARGUMENTS = (
    "",
    "a",
    "a b c",
    "list -a",
    "-l -v a",
    "-c a b",
    "-s a b",
    "-n 1 a",
    "-t a",
    "-m json.tool a",
    "-valonly a 1 1",
    "mem",
    "--help",
    "--version",
)
PROGRAMS = sorted((name, spec) for spec in COMMANDS for name in spec.names.split())


def tables_of(program: str, spec: CommandSpec) -> Iterator[tuple[str, list[str]]]:
    """Yield the words of each subcommand, empty for none, and the options that may stand behind it."""
    if isinstance(spec.classify, SimilarPrograms):
        yield from tables_of(program, spec.classify.specs[program])
    elif isinstance(spec.classify, Subcommands):
        yield "", sorted(parse_option_table(spec.classify.options))
        for name, inner in spec.classify.specs.items():
            yield from ((f"{name} {words}".strip(), options) for words, options in tables_of(name, inner))
    else:
        known = {} if spec.options == "*" else parse_option_table(spec.options, one_dash=spec.one_dash)
        yield "", sorted(known)


def arguments_of(program: str, spec: CommandSpec) -> list[str]:
    """Return lists of arguments for a program, always the same ones."""
    if program == "[":  # the grammar knows what may stand in it
        return ["-f a ]", "-d secrets/key ]", "a = b ]"]
    choice = random.Random(program)
    tables = list(tables_of(program, spec))
    made = list(ARGUMENTS)
    for _ in range(PER_PROGRAM):
        words, options = choice.choice(tables)
        chosen = choice.sample(options, min(len(options), choice.randint(0, 2)))
        filled = [
            f"{option} {choice.choice(['', 'secrets/key', 'b'])}" for option in map(shlex.quote, chosen)
        ]
        made.append(" ".join([words, *filled, choice.choice(["", "secrets/key", "a b"])]))
    return made


def spellings_of(program: str) -> list[str]:
    return [
        f"/usr/bin/{program}",
        f"/bin/{program}",
        f"/usr/local/sbin/{program}",
        f'"{program}"',
        f"'{program}'",
        f"\\{program}",
        f'"/usr/bin/"{program}',
        f'{program[0]}"{program[1:]}"' if len(program) > 1 else f"'{program}'",
    ]


def judged(command: str) -> ShellReport:
    """Return the report on a command, without the program that a trial would have to start."""
    return dataclasses.replace(classify_shell(command), unknown=())


@pytest.mark.sample(3)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_program_is_judged_alike_by_its_path_and_in_quotes(part: int) -> None:
    assert len(PROGRAMS) > 1100
    wrong = {}
    for name, spec in PROGRAMS[part::PARTS]:
        for arguments in arguments_of(name, spec):
            expected = judged(f"{name} {arguments}")
            # One spelling for each list of arguments, but in the end all of them.
            for spelling in spellings_of(name)[len(arguments) % 4 :: 4]:
                if judged(f"{spelling} {arguments}") != expected:
                    wrong[f"{spelling} {arguments}"] = expected
    assert wrong == {}


def test_programs_whose_names_classifiers_look_at_are_judged_alike() -> None:
    """In their cases a path or quotes once had another verdict."""
    commands = [
        "gdallocationinfo -valonly f 1 1",
        "gdaltransform -s_srs a -t_srs b",
        "bwa mem",
        "bwa-mem2 mem",
        "telnet h 80",
        "telnet -E h",
        "cp -s a b",
        "cp -l a b",
        "rename x y z",
        "gzip $x -l",
        "gzip -t $x",
        "bioawk -c fastx '{print gc($seq)}' a",
        "python3 -m json.tool a",
        "python3.11 -m json.tool a",
        "export -p",
        "export x",
        "[ -f a ]",
        "users a",
        "pwgen -H a#b 8 1",
        "ag -f x a",
        "pigz -c -T a",
        "sqlite3 a <<< .tables",
        "echo secrets/key",
        "zsh -c 'ls'",
        "mkfs.ext4 a",
        "ls --frob",
    ]
    for command in commands:
        name, _, arguments = command.partition(" ")
        for spelling in spellings_of(name):
            assert judged(f"{spelling} {arguments}") == judged(command), spelling


@pytest.mark.sample(3)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_program_in_any_other_folder_is_not_known(part: int) -> None:
    for name, spec in PROGRAMS[part::PARTS]:
        for arguments in arguments_of(name, spec)[:2]:
            for folder in ("./", "/opt/bin/", "bin/", "~/bin/", "/usr/bin/../x/"):
                assert not classify_shell(f"{folder}{name} {arguments}").certain


def test_a_version_in_the_name_of_a_program_changes_nothing_but_its_name() -> None:
    versioned = [(name, spec) for name, spec in PROGRAMS if program_name(f"{name}3.1") == name]
    assert {"java", "perl", "python"} <= {name for name, _ in versioned}
    for name, spec in versioned:
        for arguments in arguments_of(name, spec):
            expected = judged(f"{name} {arguments}")
            for spelling in (f"{name}3.1", f"{name}-3", f"/usr/bin/{name}3.1", f'"{name}"3'):
                found = judged(f"{spelling} {arguments}")
                found = dataclasses.replace(found, reasons=expected.reasons, commands=expected.commands)
                assert found == expected, f"{spelling} {arguments}"


@pytest.mark.parametrize("program", ["/usr/bin/diff3", "/bin/sort", "/usr/local/bin/nm"])
def test_the_program_that_a_trial_starts_stays_the_one_that_was_written(program: str) -> None:
    assert classify_shell(f"{program} --frob").unknown == ((program,),)
    assert {words[0] for words in classify_shell(f"{program} a --frob | cat").unknown} == {program}


def test_words_that_a_program_by_its_path_prints_may_become_names() -> None:
    for program in ("echo", "printf", "/bin/echo", '"echo"', "/usr/bin/printf"):
        assert "secrets/key" in classify_shell(f"frobnicate $({program} secrets/key)").named


def test_programs_without_a_specification_are_as_unknown_by_their_path() -> None:
    for name in sorted(UNSPECIFIED)[::20]:
        for arguments in ("--help", "--version", "-V", "a"):
            plain, path = judged(f"{name} {arguments}"), judged(f"/usr/bin/{name} {arguments}")
            assert (plain.effect, plain.certain, plain.reads) == (path.effect, path.certain, path.reads)
