"""How much of the package a call passes through stays bounded."""

from __future__ import annotations

import asyncio
import os

from tests.call_paths import FIRST, measure

ROOM = (0, 2, 8) if os.geteuid() == 0 else (1, 8, 16)
"""Modules, functions and crossings beyond two thirds of the first version: a busy machine polls more often,
and a user who is not root passes some functions more."""

ADDED = {"read-only call": (9, 30, 24), "asked write": (14, 76, 76), "undo": (6, 40, 20)}
"""The same for what the first version did not do. Protected files are looked at between calls as well, and
before an undo; the paths of a call that changes something are resolved, and compared once more before it runs
with what was shown; variables of the environment are compared; secrets are known by their shapes and names;
whatever a record holds is escaped; the programs of a call are named to the host."""


def test_the_path_of_a_call_is_two_thirds_of_the_first_version() -> None:
    """A longer one is hard to follow; `python -m tests.call_paths` shows the figures."""
    measured = asyncio.run(measure())
    assert measured.keys() == FIRST.keys()
    for name, figures in measured.items():
        added = ADDED.get(name, (0, 0, 0))
        for figure, first, room, more in zip(figures, FIRST[name], ROOM, added, strict=True):
            assert 0 < figure <= first * 2 / 3 + room + more, (name, figures, FIRST[name])
