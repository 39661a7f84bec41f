"""The points of a table that are tried by default are spread over it, and the same each time."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile

import pytest

from tests.points import by_points, points_of


def below(row: str, part: int, end: int = 1_000) -> list[int]:
    return list(takewhile(end.__gt__, points_of(row, part)))


def test_each_point_is_tried_by_the_slow_variant() -> None:
    default, each = by_points(20).args[1]
    assert default.values == (20,)
    assert not default.marks
    assert each.values == (1,)
    assert [mark.name for mark in each.marks] == ["slow"]
    assert below("undo", 1) == list(range(1_000))


@pytest.mark.parametrize("part", [2, 7, 20])
def test_a_part_is_spread_over_the_whole_row(part: int) -> None:
    points = below("undo", part, 1_000 // part * part)
    assert points == sorted(set(points))
    assert points[0] == 0
    assert Counter(point // part for point in points[1:] if point >= part) == dict.fromkeys(
        range(1, 1_000 // part), 1
    )
    assert len({point % part for point in points}) > part // 2, "no fixed distance"


def test_rows_try_points_of_their_own_and_the_same_each_time() -> None:
    assert below("undo", 20) == below("undo", 20)
    tried = {point for number in range(200) for point in below(f"row {number}", 20, 100)}
    assert tried == set(range(100)), "together they try each"
