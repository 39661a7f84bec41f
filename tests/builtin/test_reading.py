"""Commands that were classified read only are held to it, quickly, and nobody else is."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.protocols import OutputCaps
from aisotools.core.sandboxes import SandboxCall
from aisotools.core.types import ToolCall, ToolResult
from tests.sandbox.rig import BASH, Rig, open_files, rig, sleepers
from tests.waiting import HANG_S, eventually

_ids = itertools.count()


@pytest.fixture
async def r(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, level="confined") as made:
        yield made


async def reading(r: Rig, command: str, **more: Any) -> ToolResult:
    """Run a command as if it had been classified read only, rightly or not."""
    call = ToolCall(f"reads-{next(_ids)}", "sandbox_bash", {"command": command, **more})
    return await r.kernel.call(
        SandboxCall(call=call, shipment=BASH, timeout_s=HANG_S, output_caps=OutputCaps(), read_only=True)
    )


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "command",
    [
        "echo evil > made",
        "echo evil >> kept",
        "rm kept",
        "mv kept moved",
        "mkdir made",
        "ln -s kept made",
        "truncate -s 0 kept",
        "bash -c 'bash -c \"echo evil > made\"'",
        "(setsid sh -c 'echo evil > made')",
        "echo evil > made || true",
        "python3 -c \"open('made', 'w')\"",
    ],
)
async def test_attempt_to_write_fails_and_is_reported(r: Rig, command: str) -> None:
    (r.workspace / "kept").write_text("kept")
    result = await reading(r, command)
    assert "it was classified read only" in result.content
    assert (r.workspace / "kept").read_text() == "kept"
    assert {path.name for path in r.workspace.iterdir()} == {"kept"}


async def test_the_worker_itself_and_the_next_command_may_write(r: Rig) -> None:
    await reading(r, "echo hi")
    assert not (await r.bash("echo fine > made")).is_error
    assert not (await r.python("open('too', 'w').write('fine')")).is_error


async def test_output_exit_codes_and_deadlines_are_those_of_any_command(r: Rig) -> None:
    result = await reading(r, "echo out; echo err >&2; exit 3")
    assert result.value == {"stdout": "out\n", "stderr": "err\n", "exitCode": 3} | {
        "executionTime": result.value["executionTime"]
    }
    result = await reading(r, "echo begun; sleep 60", timeout=200)
    assert result.metadata["timed_out"] is True
    assert "begun" in result.content
    assert "classified" not in result.content
    killed = await reading(r, "kill -9 $$")
    assert "[exit code 137]" in killed.content
    large = await reading(r, "head -c 300000 /dev/zero | tr '\\0' x")
    assert len(large.value["stdout"]) == 300_000


async def test_nothing_is_left_open(r: Rig) -> None:
    await reading(r, "echo hi")
    before = open_files(r.kernel.status().pid)
    for _ in range(20):
        await reading(r, "echo hi; false")
    await asyncio.gather(*(reading(r, "sleep 0.05; echo hi") for _ in range(8)))
    await reading(r, "(sleep 30 &) ; echo hi")
    await eventually(lambda: open_files(r.kernel.status().pid) <= before)


async def test_an_interrupt_ends_it(r: Rig) -> None:
    call = asyncio.create_task(reading(r, "sleep 60"))
    await eventually(lambda: sleepers(r.workspace))
    await r.kernel.interrupt()
    assert (await call).metadata["stopped"] is True
