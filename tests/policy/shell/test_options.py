"""Every row of the tables, by the examples it brings."""

from __future__ import annotations

import re

import pytest

from aisotools.core.types import Effect
from aisotools.policy.shell.classify import classify_shell
from aisotools.policy.shell.commands import ROWS, name_of, row_of
from aisotools.policy.shell.options import Row, table


def row_id(row: Row) -> str:
    return row.names.split()[0]


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_examples_that_only_read(row: Row) -> None:
    reports = {command: classify_shell(command) for command in row.harmless}
    assert {c: r for c, r in reports.items() if r.effect is not Effect.READ_ONLY or not r.certain} == {}


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_examples_that_do_more_or_may(row: Row) -> None:
    assert row.harmful
    reports = {command: classify_shell(command) for command in row.harmful}
    assert {c: r for c, r in reports.items() if r.effect is Effect.READ_ONLY} == {}


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_options_are_written_as_the_table_reads_them(row: Row) -> None:
    if row.options != "*":
        table(row.options)
        wrong = [
            word
            for word in row.options.split()
            if not re.fullmatch(
                r"-#|(-[^-\s:?!]+|--[a-z0-9][\w.-]*)(([:?][rwWmdhxuncsD]?)|![rwWmdhxuncsD])?", word
            )
        ]
        assert wrong == []


def test_every_program_has_one_row() -> None:
    names = [name for row in ROWS for name in row.names.split()]
    assert len(names) == len(set(names))


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
def test_programs_are_known_by_name_and_by_the_folders_of_the_system(program: str, name: str) -> None:
    assert name_of(program) == name
    assert (row_of(program) is not None) is bool(name)


def test_a_table_that_is_written_wrongly_is_an_error() -> None:
    with pytest.raises(ValueError, match="one by one"):
        table("-ab:")
