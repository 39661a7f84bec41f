"""The speed table names what has become slower, and keeps the ratios that it compares with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import table
from tests.benchmarks.rows import Row

STORED = {"call": 0.3, "start": 0.6}


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        (STORED, []),
        ({"call": 0.01, "start": 0.6}, []),
        ({"call": 0.3 * 1.33, "start": 0.6 * 1.33}, []),
        ({"call": 0.3 * 1.34, "start": 0.6}, ["call: 0.402 of the peer, where 0.300 is stored."]),
        ({"call": 0.3}, ["start: a ratio is stored, and the row was not measured."]),
        ({**STORED, "new": 1.0}, ["new: no ratio is stored; run the command with --store."]),
    ],
    ids=["same", "better", "within a third", "worse", "not measured", "not stored"],
)
def test_regressions_are_named(ratios: dict[str, float], expected: list[str]) -> None:
    assert table.find_regressions(ratios, STORED) == expected


def test_ratios_are_stored_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "speed.toml"
    ratios = {"python -c 'import aisotools'": 0.25, "search 2,000 files": 1.0625}
    table.store_ratios(ratios, path)
    assert table.load_ratios(path) == ratios


def test_stored_ratios_are_those_of_rows_and_finite() -> None:
    ratios = table.load_ratios(table.STORED)
    assert len(ratios) >= 20
    assert all(0 < ratio < 100 for ratio in ratios.values())


def test_table_shows_ratios_budgets_that_are_missed_and_the_peer() -> None:
    ours = [1.0, 2.0, 9.0]
    rows = [
        Row(name="middle", ours=ours, theirs=[4.0], budget=1.5),
        Row(name="95 of 100", ours=ours, theirs=[4.5], budget=9, quantile=0.95, peer="a floor"),
    ]
    first, second = table.render(rows).splitlines()[1:]
    assert first.split() == [
        "middle",
        "2.00",
        "ms",
        "1.00",
        "-",
        "9.00",
        "4.00",
        "0.500",
        "1.5",
        "over",
        "budget",
    ]
    assert "2.000        9  (theirs: a floor)" in second


def test_regression_ends_the_command_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measuring(folder: Path, environ: dict[str, str]) -> list[Row]:
        assert environ["HOME"] == str(folder)
        return [Row(name="call", ours=[took], theirs=[1.0])]

    def run(*arguments: str) -> int:
        return table.main(arguments, measuring=measuring, stored=tmp_path / "speed.toml")

    took = 0.5
    assert run("--store") == 0
    assert run("--check", "--busy") == 0
    took = 0.7
    assert run() == 0
    assert run("--check") == 1
    assert capsys.readouterr().out.endswith("call: 0.700 of the peer, where 0.500 is stored.\n")
