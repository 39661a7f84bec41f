"""A fork server whose packages are not those of now makes no more workers, and those it made go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from aisotools.sandbox.process import spawn
from tests.sandbox.rig import rig
from tests.waiting import eventually


async def test_installing_a_package_replaces_the_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path, name="first") as first:
        await first.python("x = 1")
        old = spawn.server()
        assert spawn.server() is old
        monkeypatch.setattr(spawn, "_package_folders", lambda: (("site-packages", 1),))
        async with rig(tmp_path, name="second") as second:
            assert await second.value("1 + 1") == 2
            assert spawn.server() is not old
        assert await first.value("x") == 1, "its worker goes on"
        await first.python("x = 2", call_id="two")
        await first.kernel.variables.restore("two")
        assert await first.value("x") == 1
    await eventually(lambda: not old.alive)
    monkeypatch.undo()
    async with rig(tmp_path, name="third") as third:
        assert await third.value("1 + 1") == 2, "and others find a server that has begun"
