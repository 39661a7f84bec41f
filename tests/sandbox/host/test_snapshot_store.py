"""Which snapshots of variables are retained, and which must go for memory."""

from __future__ import annotations

import itertools

from aisotools.sandbox.host.snapshot_store import MemoryBudget, select_retained


def test_older_snapshots_are_retained_by_powers_of_two() -> None:
    numbers = list(range(1, 401))
    retained = numbers[:1]
    for number in numbers[1:]:
        retained = sorted(select_retained([*retained, number]))
        assert number in retained
        assert retained[0] == 1
        assert set(range(max(1, number - 7), number + 1)) <= set(retained)
        assert len(retained) <= 21
    gaps = [b - a for a, b in itertools.pairwise(retained[1:])]
    assert all(gap & (gap - 1) == 0 for gap in gaps), "by powers of two"


def test_the_largest_goes_first_and_the_newest_never() -> None:
    budget = MemoryBudget(max_bytes=100)
    assert budget.excess({1: 10, 2: 60, 3: 50, 4: 70}) == [2, 3]
    assert budget.excess({1: 10, 2: 200}) == [1]
    assert budget.excess({1: 50, 2: 50}) == []
