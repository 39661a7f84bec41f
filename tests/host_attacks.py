"""The classes of attack on host and gate: `python -m tests.host_attacks` prints and counts them.

`data/host_attacks.toml` says which tests they are. An attack is a variant of such a test, as pytest collects
them. It has a control if the same variant is made without the defence as well, and succeeds there: in another
test, whose variants have the same names but for levels and users, or in the test itself.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from aisotools.sandbox.confinement.levels import LEVELS
from tests.sandbox.inside import Who

TESTS = Path(__file__).parent
ITSELF = "itself"
_LEVELS_AND_USERS = frozenset((*LEVELS, *get_args(Who)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackClass:
    """One class; `host_attacks.toml` says what each field holds."""

    what: str
    attacks: Sequence[str]
    controls: Sequence[str]
    levels: Sequence[str]
    users: Sequence[str]
    is_new: bool
    unconfined: Mapping[str, str] = field(default_factory=dict)

    def count_controlled(self, test: str, variants: Mapping[str, Sequence[str]]) -> int:
        """Return how many variants of one of the attacks have a control."""
        control = self.unconfined.get(test)
        if control is None or control == ITSELF:
            return 0 if control is None else len(variants[test])
        made = {_without_places(one) for one in variants[control]}
        return sum(_without_places(one) in made for one in variants[test])


_TABLES = tomllib.loads((TESTS / "data" / "host_attacks.toml").read_text("utf-8"))

CLASSES = [AttackClass(**row) for row in _TABLES["class"]]
"""What a worker may try on the host."""

GATE_CLASSES = [AttackClass(**row) for row in _TABLES["gate"]]
"""What a call may try on the gate."""


def _without_places(variant: str) -> str:
    """Return the name of a variant without the levels and users in it."""
    return "-".join(part for part in variant.split("-") if part not in _LEVELS_AND_USERS)


def find_variants(tests: Sequence[str]) -> dict[str, list[str]]:
    """Return the variants that pytest collects of each of these tests, which are named from `tests` on.

    A test without variants has one, whose name is empty.
    """
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
    found: dict[str, list[str]] = {test: [] for test in tests}
    for line in done.stdout.splitlines():
        test, _, variant = line.removeprefix("tests/").partition("[")
        if test in found:
            found[test].append(variant.removesuffix("]"))
    return found


@functools.cache
def find_all_variants() -> dict[str, list[str]]:
    """Return the variants of every attack and of every control that makes attacks as well."""
    named = {test for one in [*CLASSES, *GATE_CLASSES] for test in (*one.attacks, *one.unconfined.values())}
    return find_variants(sorted(named - {ITSELF}))


def main() -> None:
    """Print both tables."""
    variants = find_all_variants()
    _print_table("on the host", CLASSES, variants)
    print()
    _print_table("on the gate", GATE_CLASSES, variants)


def _print_table(target: str, classes: Sequence[AttackClass], variants: Mapping[str, Sequence[str]]) -> None:
    total = total_new = total_controlled = 0
    for one in classes:
        counts = [(test, len(variants[test]), one.count_controlled(test, variants)) for test in one.attacks]
        number = sum(made for _, made, _ in counts)
        controlled = sum(with_control for _, _, with_control in counts)
        total += number
        if one.is_new:
            total_new, total_controlled = total_new + number, total_controlled + controlled
        print(
            f"{one.what}: {number} attacks, {controlled} with a control; at {', '.join(one.levels)}; "
            f"as {', '.join(one.users)}"
        )
        for test, made, with_control in counts:
            print(f"    {made:4} {with_control:4}  {test}")
            if test in one.unconfined:
                print(f"               unconfined: {one.unconfined[test]}")
        print("\n".join(f"    control: {test}" for test in one.controls))
    print(f"{total} attacks {target} in {len(classes)} classes")
    print(f"{total_new} of them are new, {total_controlled} of the new ones with an unconfined control")


if __name__ == "__main__":
    main()
