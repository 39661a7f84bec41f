"""MCP with programs of others, from npm: a server that tries everything, and the inspector's command line."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from aisotools.integrations.mcp.api import add_mcp_server
from aisotools.policy.approvers import AllowAll
from aisotools.testing.fakes import MockTool
from tests.conftest import OpenSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SERVE = [
    sys.executable,
    "-c",
    "import sys; from aisotools.cli.main import main; sys.exit(main())",
    "mcp",
    "serve",
]


async def installed(folder: Path, package: str) -> Path:
    """A package of npm, installed; skips the test where it cannot be had."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    command = [npm, "install", "--no-fund", "--no-audit", "--silent", "--prefix", str(folder), package]
    command += ["--cache", str(folder / "npm-cache")]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    if process.returncode:
        pytest.skip(f"{package} cannot be had from npm: {output.decode()[-300:]}")
    return folder / "node_modules" / ".bin"


async def test_server_everything(open_session: OpenSession, tmp_path: Path) -> None:
    programs = await installed(tmp_path, "@modelcontextprotocol/server-everything")
    session = open_session(MockTool("own"), approver=AllowAll())
    command = [str(programs / "mcp-server-everything")]
    server = await add_mcp_server(session.registry, "every", command=command, session=session)
    assert not server.refused
    assert (await session.call("every_echo", {"message": "hi"})).content == "Echo: hi"
    assert "image/png" in (await session.call("every_get-tiny-image")).data
    weather = await session.call("every_get-structured-content", {"location": "New York"})
    assert weather.value["conditions"]
    await session.call("every_trigger-long-running-operation", {"duration": 1, "steps": 2})
    assert any(event.kind == "call_emitted" for event in session.events)
    environment = json.loads((await session.call("every_get-env")).content)
    assert set(environment) <= {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG"} | {
        name for name in environment if name.startswith("LC_") or name in {"TZ", "TMPDIR"}
    }
    await server.close()


async def test_the_inspectors_command_line(tmp_path: Path) -> None:
    programs = await installed(tmp_path, "@modelcontextprotocol/inspector")
    served = [*SERVE, "--mode", "auto", "--workspace", str(tmp_path / "work")]
    env = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}

    async def inspect(*words: str) -> dict[str, object]:
        process = await asyncio.create_subprocess_exec(
            str(programs / "mcp-inspector"),
            "--cli",
            *served,
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
        )
        output, flaw = await asyncio.wait_for(process.communicate(), 100)
        assert process.returncode == 0, flaw.decode()
        found: dict[str, object] = json.loads(output)
        return found

    listed = await inspect("--method", "tools/list")
    assert "python" in str(listed["tools"])
    called = await inspect("--method", "tools/call", "--tool-name", "python", "--tool-arg", "code=6*7")
    assert called["content"] == [{"type": "text", "text": "42"}]
