"""How much of the package a call passes through stays bounded."""

from __future__ import annotations

import asyncio
import os

from tests.call_paths import FIRST, measure

LIMITS = {"read-only call": (35, 174, 116), "asked write": (70, 502, 429), "undo": (44, 398, 261)}
"""Modules, functions and crossings that each may pass: what was measured when it was last shortened.

`FIRST` has the figures of the first version. The paths were brought below two thirds of those, and grew with
what a call does since: its paths are resolved and compared with what was shown, records are escaped and
written through to the disk, contents are staged and synced before they are switched, the processes of the
sandbox are stopped for an undo and looked for after it, and what other programs have changed is seen. A
change that needs more room says here what for, and looks first for what can go.
"""

ROOM = (0, 0, 0) if os.geteuid() == 0 else (1, 6, 8)
"""The same for a user who is not root, whose sandboxes are set up in further functions."""


def test_the_path_of_a_call_does_not_grow() -> None:
    """A longer one is hard to follow; `python -m tests.call_paths` shows the figures."""
    measured = asyncio.run(measure())
    assert measured.keys() == LIMITS.keys() == FIRST.keys()
    for name, figures in measured.items():
        for figure, limit, room in zip(figures, LIMITS[name], ROOM, strict=True):
            assert 0 < figure <= limit + room, (name, figures, LIMITS[name])
