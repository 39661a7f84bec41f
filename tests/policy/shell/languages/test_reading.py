"""What readings of programs share."""

from __future__ import annotations

import pytest

from aisotools.policy.shell.languages.awk import read_awk
from aisotools.policy.shell.languages.jq import read_jq
from aisotools.policy.shell.languages.reading import MAX_PROGRAM_CHARS, ProgramReading
from aisotools.policy.shell.languages.sed import read_sed
from aisotools.policy.shell.languages.sql import read_duckdb, read_sql
from tests.policy.shell.small_programs import Reader


def test_a_reading_without_a_doubt_does_nothing_more() -> None:
    assert ProgramReading() == ProgramReading("", (), ())


@pytest.mark.parametrize("read", [read_awk, read_sed, read_sql, read_duckdb, read_jq])
def test_a_program_that_is_too_long_is_doubted(read: Reader) -> None:
    assert read("1" + " " * MAX_PROGRAM_CHARS).doubt
