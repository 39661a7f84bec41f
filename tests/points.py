"""Which points of a long table a test tries: a part of them by default, and each as a slow test.

A table of faults has a row for each act, and in each row a point for each system call of that act. All of
them take minutes. The points that are tried by default are spread over the whole row, one out of each so many
that follow one another; which one of those looks random, differs from row to row, and is the same each time.

    @by_points(20)
    def test_...(part: int) -> None:
        for number in points_of("undo, killed", part):
            ...  # until the act meets no fault any more

The mark `sample` counts the variants that try a part; those that try each point are slow in any case.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator

import pytest


def by_points(part: int) -> pytest.MarkDecorator:
    """Give a test the parameter `part`: so many by default, and 1, which is each point, as a slow variant."""
    each = pytest.param(1, id="each point", marks=pytest.mark.slow)
    return pytest.mark.parametrize("part", [pytest.param(part, id=f"one of {part} points"), each])


def points_of(row: str, part: int) -> Iterator[int]:
    """Yield numbers without end, which go up: 0, and one out of each `part` that follow one another.

    A fixed distance between them would meet the same call of each file that is switched.
    """
    yield 0
    for start in itertools.count(0, part):
        if number := start + zlib.crc32(f"{row} {start}".encode()) % part:
            yield number
