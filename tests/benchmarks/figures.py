"""Measuring: medians over interleaved rounds, and a table that says what they are to be held against."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def quantile_of(samples: Sequence[float], quantile: float) -> float:
    """What so many of the samples do not exceed."""
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * quantile))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured quantity.

    Attributes:
        what: Its name.
        samples: In the unit of `unit`.
        unit: What a sample counts.
        budget: What it should not exceed, or None.
        peer: The median of what it is compared with in the same run, or None.
    """

    what: str
    samples: Sequence[float]
    unit: str = "ms"
    budget: float | None = None
    peer: float | None = None

    @property
    def median(self) -> float:
        """The middle of the samples."""
        return statistics.median(self.samples)

    @property
    def p95(self) -> float:
        """What 95 of 100 samples do not exceed."""
        return quantile_of(self.samples, 0.95)


def show(*figures: Figure) -> None:
    """Print a table; run with `-s` to see it."""
    load = os.getloadavg()[0]
    print(f"\n{os.cpu_count()} cores, load {load:.1f}")
    print(f"{'what':46} {'median':>10} {'p95':>10} {'budget':>8}  against its peer")
    for f in figures:
        budget = f"{f.budget:g}" if f.budget is not None else ""
        ratio = (
            f"{f.peer / f.median:.1f} times faster than {f.peer:.2f} {f.unit}" if f.peer is not None else ""
        )
        print(f"{f.what:46} {f.median:7.3f} {f.unit:>2} {f.p95:7.3f} {f.unit:>2} {budget:>8}  {ratio}")
