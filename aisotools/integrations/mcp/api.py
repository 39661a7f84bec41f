"""The Model Context Protocol, both ways: a session's tools for MCP clients, and MCP servers' tools for ours.

async with Session("work") as session:
    await serve_stdio(session)                        # for a client that starts this program

async with serve_http(session) as server:             # for clients on this machine
    print(server.url, server.token)

await add_mcp_server(session.registry, "files", command=["npx", "some-server", "folder"])
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from mcp.server.stdio import stdio_server

from aisotools.core.events import SessionEnded, SessionEvent
from aisotools.core.exceptions import UsageError
from aisotools.core.types import Effect
from aisotools.integrations.mcp.client import McpServer
from aisotools.integrations.mcp.server import SessionServer
from aisotools.integrations.mcp.transport import HttpServer, ServerEndpoint, checked_url, environment, serving
from aisotools.session.session import Session
from aisotools.tools.registry import ToolRegistry
from aisotools.tools.schema import check_name
from aisotools.tools.validation import short_repr


async def serve_stdio(session: Session, *, registry: ToolRegistry | None = None) -> None:
    """Serve the client at standard input and output until it closes them.

    Meanwhile the process's standard output is redirected to standard error: only the protocol uses it.

    Args:
        session: Makes the calls. The first call opens it; closing it is the caller's task. If it has no
            approver, the client's user is asked if the client supports elicitation; otherwise calls that need
            approval are denied.
        registry: Tools to offer; None for all tools of the session.

    Raises:
        RuntimeError: If standard input and output are being served already.
    """
    session_server = SessionServer(session, registry=registry, unattended=True)
    try:
        async with stdio_server() as (incoming, outgoing):
            options = session_server.server.create_initialization_options()
            await session_server.server.run(incoming, outgoing, options)
    finally:
        session_server.close()


@asynccontextmanager
async def serve_http(
    session: Session,
    *,
    port: int = 0,
    token: str | None = None,
    host: str = "127.0.0.1",
    registry: ToolRegistry | None = None,
) -> AsyncIterator[HttpServer]:
    """Serve MCP clients of this machine over HTTP for the duration of the context.

    Args:
        session: Makes the calls. If it has no approver, the client's user is asked if the client supports
            elicitation, otherwise the user of this process.
        port: Port to listen on; 0 for a free one.
        token: Clients must send it as `Authorization: Bearer TOKEN`; None for a random one.
        host: A loopback address.
        registry: Tools to offer; None for all tools of the session.

    Raises:
        UsageError: If other machines could reach the address, the port is taken, or the token is short.
    """
    session_server = SessionServer(session, registry=registry)
    try:
        async with serving(session_server.server, host=host, port=port, token=token) as server:
            yield server
    finally:
        session_server.close()


async def add_mcp_server(
    registry: ToolRegistry,
    name: str,
    *,
    command: Sequence[str] | None = None,
    url: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    token: str | None = None,
    effects: Mapping[str, Effect | str] | None = None,
    timeout_s: float | None = None,
    session: Session | None = None,
) -> McpServer:
    """Register the tools of an MCP server, as `NAME_TOOL`.

    They run outside the sandbox, so every call needs approval unless the tool is declared read only in
    `effects`. The server's own hints are ignored.

    Args:
        registry: Receives the tools.
        name: Name of the server, prefixed to the names of its tools.
        command: Program to start, with arguments. It runs with the user's rights, outside the sandbox.
        url: Address of a running server; give exactly one of `command` and `url`.
        env: Environment variables for the program, besides a short list of inherited ones.
        cwd: The program's working directory; None for the current one.
        token: Bearer token for `url`.
        effects: Declared effects, by the server's own tool names: `{"search": Effect.READ_ONLY}`. A
            declaration ends when the server changes what it says about the tool.
        timeout_s: Deadline of each call in seconds; None for the session's.
        session: Closing it disconnects the server.

    Returns:
        The connected server; `await server.close()` removes its tools.

    Raises:
        UsageError: If both or neither of `command` and `url` are given, or one is malformed.
        SignatureError: If `name` cannot be part of a tool name.
        ToolError: If the server cannot be reached, or does not speak MCP.
    """
    if (command is None) == (url is None):
        raise UsageError(f"The MCP server {name!r} needs exactly one of command=[...] and url='https://...'.")
    if isinstance(command, str) or (
        command is not None and not all(isinstance(word, str) for word in command)
    ):
        raise UsageError(
            f"command={short_repr(command)}: give a list of words, such as ['npx', 'some-server']."
        )
    if command is not None and not command:
        raise UsageError("command=[]: name a program to start.")
    if token is not None and (url is None or not token.isprintable() or not token.isascii()):
        raise UsageError("token= needs url=, and may have visible ASCII characters only.")
    check_name(f"{name}_")
    endpoint = ServerEndpoint(
        command=tuple(command or ()),
        env=environment(os.environ, env) if command is not None else {},
        cwd=cwd,
        url="" if url is None else checked_url(url, secret=token is not None),
        token=token,
    )
    declared = {tool: _effect(tool, effect) for tool, effect in (effects or {}).items()}
    server = McpServer(registry, name, endpoint, effects=declared, timeout_s=timeout_s)
    await server.connect()
    if session is not None:
        session.subscribe(lambda event: _close_with_session(server, event))
    return server


def _effect(tool: str, effect: Effect | str) -> Effect:
    try:
        return Effect(effect)
    except ValueError:
        known = ", ".join(known.value for known in Effect)
        raise UsageError(f"effects[{tool!r}]={effect!r} is not an effect. Use one of {known}.") from None


def _close_with_session(server: McpServer, event: SessionEvent) -> None:
    if isinstance(event, SessionEnded):
        server.begin_close()


__all__ = ["HttpServer", "McpServer", "SessionServer", "add_mcp_server", "serve_http", "serve_stdio"]
