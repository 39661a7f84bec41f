"""Naming this folder is asking for the benchmarks: `python -m pytest tests/benchmarks -q -s`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.peer import RawKernel

_HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """The default run leaves benchmarks out; a run of this folder does not."""
    named = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    if any(path == _HERE or _HERE in path.parents for path in named):
        config.option.markexpr = ""


@pytest.fixture(scope="module")
def raw() -> Iterator[RawKernel]:
    """A plain ipykernel, called as people call it today."""
    with RawKernel() as kernel:
        yield kernel
