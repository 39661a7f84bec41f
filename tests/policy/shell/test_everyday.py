"""What people type all day, and what it does: only reading is taken for reading, and little of it is asked.

The commands were written before the tables were extended for them. Half are held out, by a rule that depends
on the text alone; only the totals of that half were looked at. Of a second list, of 347 that only read,
10.1 % of the held-out half were asked when it was new, 6.7 % after the tables were extended for the other,
and 3.0 % after it had been looked at itself. Of 144 that were written after that, 3 are asked. Of a third
list, of 313, 7.7 % were asked when it was new; of its held-out half 8.8 %, 7.5 % after the tables were
extended for the other, and 2.0 % after it had been looked at itself. Of 194 that were written after that, 8
(4.1 %) were asked when they were new. Of a fourth list, of 557 in two parts, 33 (5.9 %) were asked when it
was new: 1.4 % of the part with the usual programs, 10.4 % of the other. Of the held-out half of that one,
11.6 %, and 9.7 % after the tables were extended for the rest; a third of those use `sudo`, always asked. Of a
fifth list, of 280, 14 (5.0 %) were asked when it was new, and 7 (2.5 %) after it had been looked at. Of a
sixth, of 240 for less usual situations that was written after that, 16 (6.7 %) were asked when it was new.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import pytest

from aisotools.core.types import Effect
from aisotools.policy.shell.classify import classify_shell

Wanted = Literal["read", "change", "network", "ask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EverydayCommand:
    """One command.

    Attributes:
        command: The text.
        wanted: What it does: `read` only reads, `change` writes files or changes processes or settings,
            `network` talks to another machine, `ask` runs code or may do anything.
        field: Whose everyday it is.
        why: Why it is not plain reading; empty if it is.
    """

    command: str
    wanted: Wanted
    field: str
    why: str

    @property
    def is_held_out(self) -> bool:
        """Whether it is of the half that nothing was fitted to."""
        return bool(hashlib.sha256(self.command.encode()).digest()[0] & 1)


@cache
def everyday_commands() -> tuple[EverydayCommand, ...]:
    """The whole list."""
    path = Path(__file__).parents[2] / "data" / "everyday_commands.jsonl"
    return tuple(EverydayCommand(**json.loads(line)) for line in path.read_text("utf-8").splitlines())


def only_reads(entry: EverydayCommand) -> bool:
    return classify_shell(entry.command).effect is Effect.READ_ONLY


def test_the_list_is_large_and_mixed() -> None:
    entries = everyday_commands()
    assert len({entry.command for entry in entries}) == len(entries) >= 800
    by_wanted = Counter(entry.wanted for entry in entries)
    assert set(by_wanted) == {*get_args(Wanted)}
    assert min(by_wanted.values()) >= 100
    assert {"data science", "development", "bioinformatics"} <= {entry.field for entry in entries}
    assert all(bool(entry.why) is (entry.wanted != "read") for entry in entries)
    held_out = sum(entry.is_held_out for entry in entries)
    assert 0.45 < held_out / len(entries) < 0.55


def test_nothing_else_is_taken_for_reading() -> None:
    assert [e.command for e in everyday_commands() if e.wanted != "read" and only_reads(e)] == []


@pytest.mark.parametrize("held_out", [False, True])
def test_of_plain_reading_less_than_3_in_100_are_asked(
    held_out: bool, record_property: Callable[[str, object], None]
) -> None:
    reading = [e for e in everyday_commands() if e.wanted == "read" and e.is_held_out is held_out]
    asked = sum(not only_reads(entry) for entry in reading)
    record_property("asked", f"{asked} of {len(reading)}")
    assert asked < 0.03 * len(reading)
