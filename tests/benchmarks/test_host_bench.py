"""For how long a hostile worker or workspace holds up the host's event loop, and by how much the host grows.

The bounds are in `tests/session/test_hostile_work.py`; this prints the figures of every scenario.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.session.hostile_work import SCENARIOS, report, run_alone

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", SCENARIOS)
def test_stalls_and_growth_of_the_host(name: str, tmp_path: Path) -> None:
    found = run_alone(name, tmp_path)
    print("\n(stall ms, by the clock ms, grown MiB, at most MiB, charged MiB, dropped events)")
    print(report(name, found))
    assert found["works"] == "2"
