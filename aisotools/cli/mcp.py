"""`aisotools mcp serve`: the tools of a session for MCP clients, over standard input and output or HTTP."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aisotools.core.exceptions import UsageError

if TYPE_CHECKING:
    from aisotools.session.session import Session
    from aisotools.tools.registry import ToolRegistry


TOKEN_VARIABLE = "AISOTOOLS_MCP_TOKEN"  # noqa: S105 - the variable's name, no token
"""Where the token of the HTTP server may be given; a command line can be read by other users."""


def add_parser(commands: Any) -> None:
    """Add `mcp` to the command line's subcommands."""
    told = "offer the tools of a session to MCP clients"
    mcp = commands.add_parser("mcp", help=told, description=told.capitalize() + ".", allow_abbrev=False)
    actions = mcp.add_subparsers(dest="action", required=True, metavar="ACTION")
    serve = actions.add_parser(
        "serve",
        help="serve until the client leaves, or Ctrl-C",
        description="Serve the tools to a client that starts this command (--stdio), or to clients on this "
        "machine (--http PORT) that send the token which is printed, or which is set as "
        f"{TOKEN_VARIABLE}.",
        allow_abbrev=False,
    )
    how = serve.add_mutually_exclusive_group()
    how.add_argument("--stdio", action="store_true", help="at standard input and output; the default")
    how.add_argument("--http", type=int, metavar="PORT", help="on 127.0.0.1; 0 takes a free port")
    serve.add_argument("-w", "--workspace", type=Path, help="the folder it may change; ./workspace/default")
    serve.add_argument(
        "--tools",
        metavar="NAME,...",
        help="only these tools; MODULE:NAME brings further ones from a ToolRegistry or list in a module",
    )
    serve.add_argument("--mode", choices=("plan", "safe", "auto"), help="what may run unasked; safe")


def run(options: argparse.Namespace, echo: Callable[[str], object] | None = None) -> int:
    """Carry out `aisotools mcp serve`; 0 when the client has left.

    Args:
        options: What was typed.
        echo: Takes lines for a person; standard error without it, since standard output is the protocol's.

    Raises:
        UsageError: If the tools, the port or the token will not do, or MCP is not installed.
    """
    if find_spec("mcp") is None:
        raise UsageError('MCP is not installed here. Install it with: pip install "aisotools[mcp]"')
    told = echo or (lambda line: print(line, file=sys.stderr, flush=True))
    asyncio.run(_serve(options, select_tools(options.tools), told))
    return 0


def select_tools(named: str | None) -> ToolRegistry:
    """The tools to offer: the built-in ones, those that are brought along, of these only the named ones.

    Raises:
        UsageError: If a module or tool cannot be had.
    """
    from aisotools.builtin import builtin_tools
    from aisotools.tools.registry import ToolRegistry

    registry, names = ToolRegistry(builtin_tools()), []
    for word in filter(None, (word.strip() for word in (named or "").split(","))):
        if ":" not in word:
            names.append(word)
            continue
        module, _, attribute = word.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"--tools {word!r} cannot be had: {error}.") from None
        names += [registry.register(tool).name for tool in found]
    return registry.filtered(names) if names else registry


async def _serve(options: argparse.Namespace, registry: ToolRegistry, told: Callable[[str], object]) -> None:
    from aisotools.integrations.mcp.api import serve_stdio
    from aisotools.policy.rules import Policy
    from aisotools.session.session import Session

    policy = None if options.mode is None else Policy(mode=options.mode)
    session = Session(options.workspace, registry=registry, policy=policy)
    try:
        if options.http is None:
            await serve_stdio(session)
        else:
            await _serve_http(session, options.http, told)
    finally:
        await session.close()


async def _serve_http(session: Session, port: int, told: Callable[[str], object]) -> None:
    from aisotools.integrations.mcp.api import serve_http

    token = os.environ.pop(TOKEN_VARIABLE, None)
    async with serve_http(session, port=port, token=token) as server:
        told(f"Serving at {server.url}")
        if token is None:
            told(f"Clients send: Authorization: Bearer {server.token}")
        await asyncio.Event().wait()
