"""The Model Context Protocol, both ways: a session's tools for MCP clients, and MCP servers' tools for ours.

async with Session("work") as session:
    await serve_stdio(session)                        # for a client that starts this program

async with serve_http(session) as server:             # for clients on this machine
    print(server.url, server.token)

await add_mcp_server(session.registry, "files", command=["npx", "some-server", "folder"])
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp.server.stdio import stdio_server

from aisotools.bridges.mcp_http import HttpServer, serving
from aisotools.bridges.mcp_server import SessionServer
from aisotools.registry import ToolRegistry
from aisotools.session import Session


async def serve_stdio(session: Session, *, registry: ToolRegistry | None = None) -> None:
    """Answer the client at standard input and output until it closes them.

    Meanwhile the process's own standard output is standard error, so nothing but the protocol gets into it.

    Args:
        session: Makes the calls; it is opened by the first one and closed by whoever made it. If it has no
            approver, the client's person is asked where the client has a way to, else nobody.
        registry: Which of its tools; all without it.

    Raises:
        RuntimeError: If somebody already serves at standard input and output.
    """
    answering = SessionServer(session, registry=registry, unattended=True)
    try:
        async with stdio_server() as (incoming, outgoing):
            options = answering.server.create_initialization_options()
            await answering.server.run(incoming, outgoing, options)
    finally:
        answering.close()


@asynccontextmanager
async def serve_http(
    session: Session,
    *,
    port: int = 0,
    token: str | None = None,
    host: str = "127.0.0.1",
    registry: ToolRegistry | None = None,
) -> AsyncIterator[HttpServer]:
    """Answer MCP clients of this machine over HTTP as long as the context is held.

    Args:
        session: Makes the calls. If it has no approver, the client's person is asked where the client has a
            way to, else whoever is at this process.
        port: Where; a free one without it.
        token: What clients must send as `Authorization: Bearer TOKEN`; a random one without it.
        host: An address of this machine alone.
        registry: Which of its tools; all without it.

    Raises:
        UsageError: If other machines could reach the address, the port is taken, or the token is short.
    """
    answering = SessionServer(session, registry=registry)
    try:
        async with serving(answering.server, host=host, port=port, token=token) as server:
            yield server
    finally:
        answering.close()


__all__ = ["HttpServer", "SessionServer", "serve_http", "serve_stdio"]
