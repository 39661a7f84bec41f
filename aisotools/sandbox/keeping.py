"""Which kept states stay: the last ones, fewer of the older ones, and no more than memory allows. Pure."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LAST = 8
_MOST = 20
_MOST_BYTES = 1 << 30
_SHARE = 4
_CGROUP = "/sys/fs/cgroup/memory.max"


def thinned(numbers: Sequence[int]) -> set[int]:
    """Which of these states stay: the last eight, then one in two, one in four, and so on; and the first.

    Args:
        numbers: The states, numbered in time, in order.
    """
    if not numbers:
        return set()
    newest = numbers[-1]
    kept = [n for n in numbers if n % (1 << max(0, ((newest - n) // _LAST).bit_length())) == 0]
    recent = [n for n in numbers if newest - n < _LAST]
    return {numbers[0], *sorted({*kept, *recent})[-_MOST:]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much memory kept states may take.

    Attributes:
        most_bytes: All of them together, beside what they share with others.
    """

    most_bytes: int

    @classmethod
    def of_this_machine(cls) -> Budget:
        """A quarter of the memory there is, and at most a gigabyte."""
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        with contextlib.suppress(OSError, ValueError), open(_CGROUP, encoding="ascii") as file:
            there = min(there, int(file.read()))  # "max" is no number, and no limit
        return cls(most_bytes=min(there // _SHARE, _MOST_BYTES))

    def over(self, sizes: Mapping[int, int]) -> list[int]:
        """Which states must go: the largest first, and never the newest.

        Args:
            sizes: Memory that each state keeps for itself, by its number.
        """
        left, gone = sum(sizes.values()), []
        for number in sorted(sizes, key=lambda n: sizes[n], reverse=True):
            if left <= self.most_bytes:
                break
            if number != max(sizes):
                gone.append(number)
                left -= sizes[number]
        return gone
