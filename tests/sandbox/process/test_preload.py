"""Libraries that the fork server imports once: which, when, and why others are left out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.process import preload, spawn
from tests.sandbox.alone import in_one_thread
from tests.sandbox.rig import rig
from tests.waiting import eventually

TROUBLE = {
    "leaves_threads": "import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()",
    "raises": "raise RuntimeError('not today')",
    "exits": "import os\nos._exit(3)",
    "crashes": "import os\nos.kill(os.getpid(), 9)",
    "is_fine": "import random\nx = 1",
}


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, code in TROUBLE.items():
        (tmp_path / f"preload_{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("preload_is_fine", None)


def test_the_list_is_read_from_the_environment() -> None:
    assert preload.requested_modules({}) == ()
    assert preload.requested_modules({"AISOTOOLS_PRELOAD": " numpy, pandas numpy\n"}) == ("numpy", "pandas")
    for wrong in ("os;evil", "../x", "a b.", "-c"):
        with pytest.raises(SandboxError, match="AISOTOOLS_PRELOAD names"):
            preload.requested_modules({"AISOTOOLS_PRELOAD": wrong})


def there_after(names: list[str]) -> dict[str, Any]:
    reasons = preload.preload_modules([*names, "preload_nothing"], {"MPLBACKEND": "agg"})
    imported = [name for name in names if name in sys.modules]
    return {"reasons": reasons, "imported": imported, "left": "MPLBACKEND" in os.environ}


def test_libraries_that_cannot_be_preloaded_are_skipped_with_the_reason(libraries: Path) -> None:
    names = [f"preload_{name}" for name in TROUBLE]
    found = in_one_thread(lambda: there_after(names))
    assert found["reasons"] == {
        "preload_leaves_threads": "it leaves threads running (1), which a fork would lose",
        "preload_raises": "its import failed with RuntimeError: not today",
        "preload_exits": "its import ended the process",
        "preload_crashes": "its import ended the process",
        "preload_is_fine": "",
        "preload_nothing": "it is not installed",
    }
    assert found["imported"] == ["preload_is_fine"]
    assert not found["left"]


async def test_a_preloaded_library_is_there_until_the_list_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = spawn.server()
    monkeypatch.setenv("AISOTOOLS_PRELOAD", "wave,surely_not_installed")
    ask = "import sys; 'wave' in sys.modules"
    async with rig(tmp_path, name="one") as one:
        assert await one.value(ask)
        server = spawn.server()
        assert server is not usual
        assert server.preloaded() == {"wave": "", "surely_not_installed": "it is not installed"}
    monkeypatch.setenv("AISOTOOLS_PRELOAD", "")
    async with rig(tmp_path, name="two") as two:
        assert not await two.value(ask)
    await eventually(lambda: not server.alive)
    spawn.server()  # which buries what has ended


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_numpy_pandas_and_matplotlib_preloaded_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pandas", "matplotlib"):
        pytest.importorskip(name)
    monkeypatch.setenv("AISOTOOLS_PRELOAD", "numpy,pandas,matplotlib.pyplot")
    chance = "import numpy; float(numpy.random.random())"
    async with rig(tmp_path, name="one") as r, rig(tmp_path, name="two") as other:
        assert set(spawn.server().preloaded().values()) == {""}
        assert await r.value(chance) != await other.value(chance), "each worker has its own"
        assert await r.value("float(numpy.dot(numpy.ones(1 << 20), numpy.ones(1 << 20)))") == 1 << 20
        code = "import matplotlib; matplotlib.get_configdir() == __import__('os').environ['MPLCONFIGDIR']"
        assert await r.value(code)
        result = await r.python(
            "import pandas, matplotlib.pyplot as p\npandas.Series([1, 3]).plot(); p.show()"
        )
        assert not result.is_error, result.content
        assert "inline" in await r.value("matplotlib.get_backend()")
    monkeypatch.undo()
    server = spawn.server()
    await eventually(lambda: server.alive)
