"""The speed of everything against a plain ipykernel in the same run: `python -m tests.benchmarks.table`.

What a machine is busy with changes times, and ratios far less. Those of each row are kept in
`tests/data/speed.toml`; with `--check` the command fails where one is worse by more than a third.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import quantile_of
from tests.benchmarks.rows import Row, measure
from tests.notebook.client import private_home

STORED = Path(__file__).parents[1] / "data" / "speed.toml"
WORST = 4 / 3
"""A ratio that is so many times the stored one is a regression."""

Measure = Callable[[Path, dict[str, str]], Coroutine[Any, Any, list[Row]]]
"""Returns the rows, measured in an empty folder with an environment."""

HEAD = """\
# Time, or memory, of ours divided by that of the peer in the same run; less is better. Written by
# `python -m tests.benchmarks.table --store` on a quiet machine, and compared by `--check`.
"""


def value_of(samples: Sequence[float], quantile: float) -> float:
    """Return the sample that so many of all do not exceed; the median for one half."""
    if quantile == 0.5:
        return statistics.median(samples)
    return quantile_of(samples, quantile)


def ratio_of(row: Row) -> float:
    """Return ours divided by theirs."""
    return value_of(row.ours, row.quantile) / value_of(row.theirs, row.quantile)


def render(rows: Iterable[Row]) -> str:
    """Return the table as text. A row that misses its budget has a mark."""
    lines = [f"{'what':44} {'ours':>10} {'quartiles':>17} {'theirs':>10} {'ratio':>7} {'budget':>8}"]
    for row in rows:
        ours, theirs = value_of(row.ours, row.quantile), value_of(row.theirs, row.quantile)
        low, high = value_of(row.ours, 0.25), value_of(row.ours, 0.75)
        spread = f"{low:.2f} - {high:.2f}"
        budget = "" if row.budget is None else f"{row.budget:g}"
        missed = "  over budget" if row.budget is not None and ours > row.budget else ""
        note = "" if row.peer == "a plain kernel" else f"  (theirs: {row.peer})"
        lines.append(
            f"{row.name:44} {ours:7.2f} {row.unit:<3}{spread:>16} {theirs:10.2f} {ratio_of(row):7.3f} "
            f"{budget:>8}{missed}{note}"
        )
    return "\n".join(lines)


def find_regressions(ratios: Mapping[str, float], stored: Mapping[str, float]) -> list[str]:
    """Return a sentence for each row that is worse than stored by more than a third, or is missing."""
    problems = []
    for name in sorted(ratios.keys() | stored.keys()):
        if name not in stored:
            problems.append(f"{name}: no ratio is stored; run the command with --store.")
        elif name not in ratios:
            problems.append(f"{name}: a ratio is stored, and the row was not measured.")
        elif ratios[name] > stored[name] * WORST:
            problems.append(f"{name}: {ratios[name]:.3f} of the peer, where {stored[name]:.3f} is stored.")
    return problems


def load_ratios(path: Path) -> dict[str, float]:
    """Return the stored ratios by name."""
    return {name: float(ratio) for name, ratio in tomllib.loads(path.read_text("utf-8")).items()}


def store_ratios(ratios: Mapping[str, float], path: Path) -> None:
    """Replace the stored ratios."""
    lines = [f'"{name}" = {ratio:.4f}\n' for name, ratio in ratios.items()]
    path.write_text(HEAD + "".join(lines), encoding="utf-8")


def main(
    arguments: Sequence[str] | None = None, *, measuring: Measure = measure, stored: Path = STORED
) -> int:
    """Measure and print the table. Return 1 if `--check` finds a regression.

    Args:
        arguments: Those of the command; the program's own without them.
        measuring: Measures the rows.
        stored: Where the ratios are kept.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.table", description=__doc__)
    parser.add_argument("--busy", action="store_true", help="measure beside one busy processor")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="fail if a ratio is worse by more than a third")
    choice.add_argument("--store", action="store_true", help="keep the ratios for later runs")
    options = parser.parse_args(arguments)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aisotools-speed-") as name:
        folder = Path(name)
        environ: dict[str, str] = private_home(folder)["env"]
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if options.busy else None
        try:
            rows = asyncio.run(measuring(folder, environ))
        finally:
            if busy is not None:
                busy.kill()
                busy.wait()
    beside = " beside a busy processor" if options.busy else ""
    print(f"{os.cpu_count()} processors{beside}, {time.monotonic() - began_s:.0f} s\n{render(rows)}")
    ratios = {row.name: ratio_of(row) for row in rows}
    if options.store:
        store_ratios(ratios, stored)
    problems = find_regressions(ratios, load_ratios(stored)) if options.check else []
    print(*problems, sep="\n", end="\n" if problems else "")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
