"""Agents where no loop runs, and in the places where programs have loops of their own."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from aisotools.agent.agent import Agent
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.core.exceptions import UsageError
from aisotools.core.types import Effect
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox, MockTool
from aisotools.tools.registry import ToolRegistry


def session(folder: Path, environ: Mapping[str, str]) -> Session:
    tools = ToolRegistry([MockTool("look", effect=Effect.READ_ONLY)])
    return Session(folder / "workspace", tools, environ=environ, sandbox=FakeSandbox)


def test_run_sync(tmp_path: Path, environ: Mapping[str, str]) -> None:
    agent = Agent(ScriptedModel([("look", {}), "One.", "Two."]), session(tmp_path, environ))
    assert agent.run_sync("first").text == "One."
    assert agent.run_sync("second").text == "Two."
    agent.close_sync()
    assert agent.session.closed
    agent.close_sync()


def test_a_forgotten_agent_closes_its_session(tmp_path: Path, environ: Mapping[str, str]) -> None:
    agent = Agent(ScriptedModel(["One."]), session(tmp_path, environ))
    agent.run_sync("first")
    own_session = agent.session
    del agent
    gc.collect()
    assert own_session.closed


async def test_forgotten_inside_a_loop(tmp_path: Path, environ: Mapping[str, str]) -> None:
    agent = Agent(ScriptedModel(["One."]), session(tmp_path, environ))
    await asyncio.to_thread(agent.run_sync, "first")
    own_session = agent.session
    agent.close_sync()
    assert own_session.closed


async def test_run_sync_where_a_loop_runs(tmp_path: Path, environ: Mapping[str, str]) -> None:
    agent = Agent(ScriptedModel(["One."]), session(tmp_path, environ))
    with pytest.raises(UsageError, match="await agent"):
        agent.run_sync("first")
    await agent.session.close()


def test_start_without_a_loop(tmp_path: Path, environ: Mapping[str, str]) -> None:
    agent = Agent(ScriptedModel(["One."]), session(tmp_path, environ))
    with pytest.raises(UsageError, match="run_sync"):
        agent.start("first")


async def test_behind_a_web_handler(tmp_path: Path, environ: Mapping[str, str]) -> None:
    """Handlers of one server run their agents side by side, each on a session of its own."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = json.loads(await reader.readline())
        async with session(tmp_path / request["user"], environ) as own:
            result = await Agent(ScriptedModel([("look", {}), f"Hello {request['user']}."]), own).run("go")
        writer.write(json.dumps({"text": result.text, "steps": result.steps}).encode() + b"\n")
        await writer.drain()
        writer.close()

    async def ask(port: int, user: str) -> dict[str, object]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(json.dumps({"user": user}).encode() + b"\n")
        answer: dict[str, object] = json.loads(await reader.readline())
        writer.close()
        await writer.wait_closed()
        return answer

    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        answers = await asyncio.gather(*(ask(port, user) for user in ("ann", "bob", "eve")))
    assert [answer["text"] for answer in answers] == ["Hello ann.", "Hello bob.", "Hello eve."]
