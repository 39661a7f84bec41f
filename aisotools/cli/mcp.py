"""`aisotools mcp serve`: offer the tools of a session to MCP clients, over standard input/output or HTTP."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aisotools.cli.tools import Echo, add_subcommand, import_tools
from aisotools.core.exceptions import UsageError

if TYPE_CHECKING:
    from aisotools.session.session import Session
    from aisotools.tools.registry import ToolRegistry


TOKEN_VARIABLE = "AISOTOOLS_MCP_TOKEN"  # noqa: S105 - the variable's name, no token
"""Environment variable with the token of the HTTP server. A command line can be read by other users."""


def add_parser(commands: Any) -> None:
    """Add `mcp` to the subcommands."""
    mcp = add_subcommand(commands, "mcp", "offer the tools of a session to MCP clients")
    actions = mcp.add_subparsers(dest="action", required=True, metavar="ACTION")
    serve = actions.add_parser(
        "serve",
        help="serve until the client disconnects, or Ctrl-C",
        description="Serve the tools to a client that starts this command (--stdio), or over HTTP to clients "
        "on this machine (--http PORT). HTTP clients must send the token that is printed, or that "
        f"{TOKEN_VARIABLE} contains.",
        allow_abbrev=False,
    )
    transport = serve.add_mutually_exclusive_group()
    transport.add_argument("--stdio", action="store_true", help="use standard input and output (default)")
    transport.add_argument(
        "--http", type=int, metavar="PORT", help="listen on 127.0.0.1; 0 picks a free port"
    )
    serve.add_argument(
        "-w", "--workspace", type=Path, help="folder that tools may change (default: ./workspace/default)"
    )
    serve.add_argument(
        "--tools",
        metavar="NAME,...",
        help="offer only these tools; MODULE:NAME adds those of a ToolRegistry or list in a module",
    )
    serve.add_argument(
        "--mode", choices=("plan", "safe", "auto"), help="what may run without asking (default: safe)"
    )


def run(options: argparse.Namespace, echo: Echo | None = None) -> int:
    """Run `aisotools mcp serve`. Return 0 when the client has disconnected.

    Args:
        options: The parsed command line.
        echo: Prints a line for a person. Default: to standard error, since standard output is the protocol's.

    Raises:
        UsageError: If the tools, the port or the token are invalid, or MCP is not installed.
    """
    if find_spec("mcp") is None:
        raise UsageError('MCP is not installed. Install it with: pip install "aisotools[mcp]"')
    asyncio.run(_serve(options, select_tools(options.tools), echo or _print_to_stderr))
    return 0


def _print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def select_tools(names: str | None) -> ToolRegistry:
    """Return the tools to offer.

    Args:
        names: Names of tools, and `MODULE:NAME` references to more tools, separated by commas. None means all
            built-in tools.

    Raises:
        UsageError: If a module or tool does not exist.
    """
    from aisotools.builtin import builtin_tools
    from aisotools.tools.registry import ToolRegistry

    registry = ToolRegistry(builtin_tools())
    selected = []
    for entry in filter(None, (entry.strip() for entry in (names or "").split(","))):
        if ":" in entry:
            selected += [registry.register(tool).name for tool in import_tools(entry)]
        else:
            selected.append(entry)
    return registry.filtered(selected) if selected else registry


async def _serve(options: argparse.Namespace, registry: ToolRegistry, echo: Echo) -> None:
    from aisotools.integrations.mcp.api import serve_stdio
    from aisotools.policy.rules import Policy
    from aisotools.session.session import Session

    policy = None if options.mode is None else Policy(mode=options.mode)
    session = Session(options.workspace, registry=registry, policy=policy)
    try:
        if options.http is None:
            await serve_stdio(session)
        else:
            await _serve_http(session, options.http, echo)
    finally:
        await session.close()


async def _serve_http(session: Session, port: int, echo: Echo) -> None:
    from aisotools.integrations.mcp.api import serve_http

    # Removed from the environment, so that the tools' processes do not inherit it.
    token = os.environ.pop(TOKEN_VARIABLE, None)
    async with serve_http(session, port=port, token=token) as server:
        echo(f"Serving at {server.url}")
        if token is None:
            echo(f"Clients send: Authorization: Bearer {server.token}")
        await asyncio.Event().wait()
