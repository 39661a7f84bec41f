from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sandbox import inside
from tests.sandbox.inside import Who

Places = Callable[[Who], Path]


@pytest.fixture
def place() -> Iterator[Places]:
    """Makes folders that belong to whom the code will run as; pytest's own are closed to other users."""
    made: list[Path] = []

    def make(who: Who) -> Path:
        uid = inside.user_of(who)
        folder = Path(tempfile.mkdtemp(prefix="aisotools-test-"))
        made.append(folder)
        if uid is not None:
            os.chown(folder, uid, uid)
        return folder

    yield make
    for folder in made:
        shutil.rmtree(folder)
