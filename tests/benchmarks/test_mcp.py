"""A warm call over MCP: our server, gate and sandbox included, against the library's plain server."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import Client, StdioServerParameters, types
from mcp.server.mcpserver import MCPServer

from aisotools.core.types import Effect
from aisotools.integrations.mcp.api import SessionServer, add_mcp_server
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.tools.function import tool
from aisotools.tools.registry import ToolRegistry
from tests.benchmarks.figures import Figure, show

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(300)]

ROUNDS, MEGABYTES = 200, 10

PLAIN = f"""
from mcp.server.mcpserver import MCPServer
server = MCPServer("plain")

@server.tool()
def add(a: int, b: int) -> int:
    return a + b

@server.tool()
def text() -> str:
    return "x" * {MEGABYTES << 20}

@server.tool()
def records() -> list[dict]:
    return [{{"id": n, "name": f"name {{n}}", "value": n / 7}} for n in range(200_000)]

server.run("stdio")
"""

OURS = """
import asyncio, sys
from aisotools.policy.approvers import AllowAll
from aisotools.integrations.mcp.api import serve_stdio
from aisotools.tools.registry import ToolRegistry
from aisotools.session.session import Session
from tests.benchmarks.test_mcp import add, records, text

async def main():
    registry = ToolRegistry([add, text, records])
    async with Session(sys.argv[1], registry=registry, approver=AllowAll()) as session:
        await serve_stdio(session)

asyncio.run(main())
"""


@tool(effect=Effect.READ_ONLY)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effect=Effect.READ_ONLY)
def text() -> str:
    """Ten megabytes of text."""
    return "x" * (10 << 20)


@tool(effect=Effect.READ_ONLY)
def records() -> list[dict[str, Any]]:
    """Ten megabytes of records."""
    return [{"id": n, "name": f"name {n}", "value": n / 7} for n in range(200_000)]


@asynccontextmanager
async def clients(tmp_path: Path, environ: Mapping[str, str]) -> AsyncIterator[tuple[Client, Client]]:
    """A client of our server and one of the plain server, both started as programs."""
    env = {**environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ours = StdioServerParameters(command=sys.executable, args=["-c", OURS, str(tmp_path / "work")], env=env)
    plain = StdioServerParameters(command=sys.executable, args=["-c", PLAIN], env=env)
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(Client(ours)), await stack.enter_async_context(Client(plain))


async def timed_ms(client: Client, name: str, arguments: dict[str, Any]) -> float:
    began = time.perf_counter()
    result = await client.call_tool(name, arguments)
    took_ms = (time.perf_counter() - began) * 1000
    assert isinstance(result, types.CallToolResult)
    assert not result.is_error, result.content
    return took_ms


async def test_a_warm_call_over_stdio(tmp_path: Path, environ: Mapping[str, str]) -> None:
    async with clients(tmp_path, environ) as (ours, plain):
        await interleaved(ours, plain, "add", {"a": 1, "b": 2}, 10)
        mine, theirs = await interleaved(ours, plain, "add", {"a": 1, "b": 2}, ROUNDS)
        big_mine, big_theirs = await interleaved(ours, plain, "text", {}, 3)
        rows_mine, rows_theirs = await interleaved(ours, plain, "records", {}, 1)
    show(
        _against("a warm call over stdio, sandboxed", mine, theirs),
        _against("10 MB of text over stdio", big_mine, big_theirs),
        _against("200,000 records over stdio", rows_mine, rows_theirs),
    )


async def interleaved(
    ours: Client, plain: Client, name: str, arguments: dict[str, Any], rounds: int
) -> tuple[list[float], list[float]]:
    mine, theirs = [], []
    for _ in range(rounds):
        mine.append(await timed_ms(ours, name, arguments))
        theirs.append(await timed_ms(plain, name, arguments))
    return mine, theirs


def _against(what: str, mine: list[float], theirs: list[float]) -> Figure:
    return Figure(what=what, samples=mine, peer=sorted(theirs)[len(theirs) // 2])


async def test_a_warm_call_in_memory(tmp_path: Path, environ: Mapping[str, str]) -> None:
    plain_server = MCPServer("plain")
    plain_server.tool()(add.function)
    session = Session(tmp_path / "work", environ=environ, registry=ToolRegistry([add]))
    async with (
        session,
        Client(SessionServer(session).server) as ours,
        Client(plain_server) as plain,
    ):
        await interleaved(ours, plain, "add", {"a": 1, "b": 2}, 10)
        mine, theirs = await interleaved(ours, plain, "add", {"a": 1, "b": 2}, ROUNDS)
    show(_against("a warm call in memory, sandboxed", mine, theirs))


async def test_a_call_of_a_servers_tool_through_our_gate(tmp_path: Path, environ: Mapping[str, str]) -> None:
    session = Session(tmp_path / "work", environ=environ, registry=ToolRegistry(), approver=AllowAll())
    command = StdioServerParameters(command=sys.executable, args=["-c", PLAIN])
    async with session, Client(command) as plain:
        await add_mcp_server(
            session.registry,
            "plain",
            command=[sys.executable, "-c", PLAIN],
            effects={"add": Effect.READ_ONLY},
            session=session,
        )
        mine, theirs = [], []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            result = await session.call("plain_add", {"a": 1, "b": 2})
            mine.append((time.perf_counter() - began) * 1000)
            assert result.value == {"result": 3}
            theirs.append(await timed_ms(plain, "add", {"a": 1, "b": 2}))
    show(_against("a server's tool, through our gate", mine, theirs))
