"""An interrupt reaches a call that has hardly begun, and is raised once more where Python drops it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.sandbox.rig import PATIENT, Rig, rig
from tests.waiting import eventually

MAKE_SLOW = """
import time
from aisotools.sandbox.worker import worker
def wait():
    open('reached', 'w').close()
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass
def make_slow(owner, name, *, after=False):
    original = getattr(owner, name)
    def slow(*arguments):
        if not after:
            wait()
        original(*arguments)
        if after:
            wait()
    setattr(owner, name, slow)
"""

MOMENTS = {
    "the worker has read of the call, and does not know it yet": "worker.Worker, '_start'",
    "the call is to take its first step": "worker.Worker, '_start', after=True",
    "the call is to take its next step": "worker, 'flush'",
}


@pytest.fixture
async def r(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, stop_timeouts=PATIENT) as made:
        await made.python("kept = 1")
        yield made


@pytest.mark.parametrize("moment", MOMENTS)
async def test_an_interrupt_that_comes_before_the_code_runs(r: Rig, moment: str) -> None:
    """The frame that follows the signal is only read once the code yields, which this code never does."""
    await r.python(f"{MAKE_SLOW}\nmake_slow({MOMENTS[moment]})")
    (r.workspace / "reached").unlink(missing_ok=True)
    first = "import asyncio\nawait asyncio.sleep(0)\n" if "next" in moment else ""
    call = asyncio.create_task(r.python(f"{first}while True: pass"))
    await eventually((r.workspace / "reached").exists)
    await r.kernel.interrupt()
    assert (await call).metadata.get("stopped") is True
    assert await r.value("kept") == 1
    assert r.reported.losses == []


async def test_cleaning_up_is_not_struck_by_the_frame_that_follows(r: Rig) -> None:
    await r.python(f"{MAKE_SLOW}\nmake_slow(worker, 'flush')")
    (r.workspace / "reached").unlink(missing_ok=True)
    code = """
import asyncio
try:
    await asyncio.sleep(0)
    while True: pass
finally:
    await asyncio.sleep(0.1)
    open('cleaned', 'w').close()
"""
    call = asyncio.create_task(r.python(code))
    await eventually((r.workspace / "reached").exists)
    await r.kernel.interrupt()
    assert (await call).metadata.get("stopped") is True
    assert (r.workspace / "cleaned").exists()


DROPPING = {
    "finalizer": """
class Owner:
    def __del__(self):
        wait()
Owner()
""",
    "callback of a weak reference": """
import weakref
class Owner: pass
owner = Owner()
reference = weakref.ref(owner, lambda _: wait())
del owner
""",
    "callback of the garbage collector": """
import gc
gc.callbacks.append(lambda *_: (gc.callbacks.clear(), wait()))
gc.collect()
""",
}


@pytest.mark.parametrize("place", DROPPING)
async def test_an_interrupt_that_python_drops_is_raised_once_more(r: Rig, place: str) -> None:
    wait = """
import time
def wait():
    open('reached', 'w').close()
    end = time.monotonic() + 0.3
    while time.monotonic() < end: pass
"""
    call = asyncio.create_task(r.python(f"{wait}{DROPPING[place]}\nwhile True: pass"))
    await eventually((r.workspace / "reached").exists)
    await r.kernel.interrupt()
    result = await call
    assert result.metadata.get("stopped") is True
    assert "Exception ignored" not in result.content
    assert await r.value("kept") == 1
    assert r.reported.losses == []


async def test_other_exceptions_that_python_drops_are_still_shown(r: Rig) -> None:
    result = await r.python("class Owner:\n    def __del__(self): raise ValueError('dropped')\nOwner()\n1")
    assert "ValueError: dropped" in result.content
