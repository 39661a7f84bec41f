"""What a hostile worker makes the host keep: growth of an interpreter of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.session.host_growth import SCENARIOS

pytestmark = pytest.mark.timeout(200)

BUDGET = 16 << 20
# What the allocator keeps of what was there for a moment: the largest result takes about that much.
SLACK = 40 << 20


def grown(name: str, folder: Path) -> dict[str, Any]:
    arguments = [sys.executable, "-m", "tests.session.host_growth", name, str(folder), str(BUDGET)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=root, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    mib = (found["after"] - found["before"]) / (1 << 20)
    print(f"\n{name}: {mib:+.1f} MiB, {found['charged'] >> 10:,} KiB charged, {found['dropped']} dropped")
    return found


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "honest work"])
def test_the_host_grows_by_no_more_than_its_budget(name: str, tmp_path: Path) -> None:
    found = grown(name, tmp_path)
    assert found["after"] - found["before"] <= BUDGET + SLACK
    assert found["charged"] <= BUDGET
    assert found["works"] == "2"


def test_honest_work_loses_nothing(tmp_path: Path) -> None:
    found = grown("honest work", tmp_path)
    assert (found["dropped"], found["works"]) == (0, "2")
    assert found["last"].startswith("done 499500")
    assert found["after"] - found["before"] <= 8 << 20
