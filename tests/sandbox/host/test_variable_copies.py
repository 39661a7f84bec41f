"""Copies of variables: they are independent of the sandbox that they were made of."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.host.variable_copies import VariablesFile
from aisotools.sandbox.process import spawn
from tests.sandbox.rig import Rig, rig

LEVELS = [p.name for p in spawn.detection().probes if p.ok and p.name in {"isolated", "confined"}]


@pytest.fixture(params=LEVELS)
async def r(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, level=request.param) as made:
        yield made


async def test_a_copy_in_another_sandbox(r: Rig, tmp_path: Path) -> None:
    await r.python("x = [1]; y = {'x': x}; f = lambda: x[0]", call_id="one")
    await r.python("x[0] = 2", call_id="two")
    history = r.kernel.variables
    async with rig(tmp_path, level=r.level, name="other") as other:
        for call_id, expected in ((None, 2), ("two", 1)):
            copy = await history.branch(call_id)
            assert isinstance(copy, VariablesFile)
            with pytest.raises(PermissionError):  # it is sealed
                os.write(copy.file, b"x")
            point = await other.kernel.variables.load(copy)
            assert (point.label, point.lost) == ("data only", ())
            assert await other.value("x[0], f(), y['x'] is x") == (expected, expected, True)
            copy.close()
            with pytest.raises(SandboxError, match="is closed"):
                await other.kernel.variables.load(copy)
    assert await r.value("x") == [2]
