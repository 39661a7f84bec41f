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
    """Bring the tools of an MCP server into a registry, as `NAME_TOOL`.

    They run on the host side of the gate, so every call of them is asked about unless a person declared the
    tool to be read only; a server's own hints loosen nothing.

    Args:
        registry: Takes the tools.
        name: What the server is called here; stands before the names of its tools.
        command: A program to start, and its arguments. It runs with the user's own rights, in no sandbox.
        url: The address of a server that runs already; exactly one of the two.
        env: What the program finds in its environment besides the usual; secrets of this process are not.
        cwd: The program's folder; the current one without it.
        token: What the server at `url` wants to see as `Authorization: Bearer TOKEN`.
        effects: What tools do by your word, by the server's own names: `{"search": Effect.READ_ONLY}`. It
            holds as long as the server says the same of the tool as now.
        timeout_s: Deadline of each call in seconds; the session's without it.
        session: Ends the server when it is closed.

    Returns:
        The server, connected; `await server.close()` takes its tools away again.

    Raises:
        UsageError: If command and address are both there or both missing, or one will not do.
        SignatureError: If the name is none that can stand before the name of a tool.
        ToolError: If the server cannot be reached, or does not speak MCP.
    """
    if (command is None) == (url is None):
        raise UsageError(f"The MCP server {name!r} needs exactly one of command=[...] and url='https://...'.")
    if isinstance(command, str) or (command is not None and not all(isinstance(w, str) for w in command)):
        raise UsageError(
            f"command={short_repr(command)}: give a list of words, such as ['npx', 'some-server']."
        )
    if command is not None and not command:
        raise UsageError("command=[]: name a program to start.")
    if token is not None and (url is None or not token.isprintable() or not token.isascii()):
        raise UsageError("A token goes with url=, and has only visible ASCII characters.")
    check_name(f"{name}_")
    reach = ServerEndpoint(
        command=tuple(command or ()),
        env=environment(os.environ, env) if command is not None else {},
        cwd=cwd,
        url="" if url is None else checked_url(url, secret=token is not None),
        token=token,
    )
    declared = {tool: _effect(tool, effect) for tool, effect in (effects or {}).items()}
    server = McpServer(registry, name, reach, effects=declared, timeout_s=timeout_s)
    await server.connect()
    if session is not None:
        session.subscribe(lambda event: _end_with(server, event))
    return server


def _effect(tool: str, effect: Effect | str) -> Effect:
    try:
        return Effect(effect)
    except ValueError:
        known = ", ".join(one.value for one in Effect)
        raise UsageError(f"effects[{tool!r}]={effect!r} is no effect. Use one of {known}.") from None


def _end_with(server: McpServer, event: SessionEvent) -> None:
    if isinstance(event, SessionEnded):
        server.end()


__all__ = ["HttpServer", "McpServer", "SessionServer", "add_mcp_server", "serve_http", "serve_stdio"]
