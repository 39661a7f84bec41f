from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.notebook.client import Notebook, Run, private_home


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A kernel in a folder of its own, with nothing loaded."""
    notebook = Notebook(**private_home(tmp_path_factory.mktemp("notebook")))
    yield notebook
    notebook.close()


@pytest.fixture(scope="module")
def loaded(kernel: Notebook) -> Notebook:
    """A kernel with the extension."""
    run = kernel.run("%load_ext aisotools")
    assert (run.text, run.error, run.displays) == ("", "", [])
    return kernel


def the_display(run: Run) -> dict[str, Any]:
    """The one thing that a cell shows."""
    (shown,) = run.shown.values()
    assert not run.error
    return shown


def usage_error(run: Run) -> str:
    """The one line that a person is told, without a traceback."""
    assert run.text.startswith("UsageError: "), run
    assert run.text.count("\n") == 1, run
    assert not run.error
    return run.text.removeprefix("UsageError: ").rstrip()
