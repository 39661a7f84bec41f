"""How much of the package a call passes through stays bounded."""

from __future__ import annotations

import asyncio

from tests.call_paths import measure

MOST = {"read-only call": (26, 124, 78), "asked write": (40, 250, 198), "undo": (18, 94, 106)}
"""Modules, functions and crossings."""


def test_the_path_of_a_call_stays_short() -> None:
    """A call through more of them is hard to follow; `python -m tests.call_paths` shows the figures."""
    measured = asyncio.run(measure())
    assert measured.keys() == MOST.keys()
    for name, figures in measured.items():
        for figure, most in zip(figures, MOST[name], strict=True):
            assert 0 < figure <= most, (name, figures, MOST[name])
