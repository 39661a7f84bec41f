"""The classes of attack on host and gate: `python -m tests.host_attacks` prints and counts them.

`data/host_attacks.toml` says which tests they are. An attack is a variant of such a test, as pytest collects
them.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackClass:
    """One class; `host_attacks.toml` says what each field holds."""

    what: str
    attacks: Sequence[str]
    controls: Sequence[str]
    levels: Sequence[str]
    users: Sequence[str]


_TABLES = tomllib.loads((TESTS / "data" / "host_attacks.toml").read_text("utf-8"))

CLASSES = [AttackClass(**row) for row in _TABLES["class"]]
"""What a worker may try on the host."""

GATE_CLASSES = [AttackClass(**row) for row in _TABLES["gate"]]
"""What a call may try on the gate."""


def count_variants(tests: Sequence[str]) -> Counter[str]:
    """Return how many variants pytest collects of each of these tests, which are named from `tests` on."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "-m",
        "slow or not slow",
        "-p",
        "no:xdist",
    ]
    names = [f"tests/{test}" for test in tests]
    done = subprocess.run([*command, *names], stdout=subprocess.PIPE, text=True, cwd=TESTS.parent, check=True)
    lines = (line.partition("[")[0].removeprefix("tests/") for line in done.stdout.splitlines())
    return Counter(line for line in lines if "::" in line)


def main() -> None:
    """Print both tables."""
    everything = [*CLASSES, *GATE_CLASSES]
    counts = count_variants(sorted({test for one in everything for test in one.attacks}))
    _print_table("on the host", CLASSES, counts)
    _print_table("on the gate", GATE_CLASSES, counts)


def _print_table(target: str, classes: Sequence[AttackClass], counts: Counter[str]) -> None:
    total = 0
    for one in classes:
        number = sum(counts[test] for test in one.attacks)
        total += number
        print(f"{one.what}: {number} attacks; at {', '.join(one.levels)}; as {', '.join(one.users)}")
        print("\n".join(f"    {counts[test]:4}  {test}" for test in one.attacks))
        print("\n".join(f"    control: {test}" for test in one.controls))
    print(f"{total} attacks {target} in {len(classes)} classes\n")


if __name__ == "__main__":
    main()
