"""`aisotools tools` and `aisotools call`: the built-in tools on the command line, through the same gate.

Also what several commands share: the type of their output function, and the import of tools by name.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import shlex
from collections.abc import Callable, Iterable
from typing import Any, cast

from aisotools.core.exceptions import UsageError, as_clause
from aisotools.core.protocols import Tool
from aisotools.core.types import ToolResult
from aisotools.notebook.magics.arguments import CallLine, parse_call

Echo = Callable[[str], object]
"""Prints a line."""

_DENIED_STATUS = 3


def add_subcommand(
    commands: Any, name: str, summary: str, *, more: str = "", epilog: str = ""
) -> argparse.ArgumentParser:
    """Add a subcommand, and return its parser.

    Args:
        commands: The subcommands, as `add_subparsers` returned them.
        name: Its name.
        summary: What it does, for the list of all subcommands; without a capital and a full stop.
        more: Further sentences for its own help, which begins with the summary.
        epilog: The end of its help, such as what each exit status means.
    """
    description = f"{summary[0].upper()}{summary[1:]}. {more}".rstrip()
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=description, epilog=epilog or None, allow_abbrev=False
    )
    return parser


def add_parsers(commands: Any) -> None:
    """Add `tools` and `call` to the subcommands."""
    tools = add_subcommand(commands, "tools", "list the built-in tools, or show one")
    tools.add_argument("name", nargs="?", help="tool to show in full (default: list all)")
    tools.add_argument(
        "--format",
        help="print as JSON: json, openai, openai-responses, anthropic, gemini, mcp",
    )
    call = add_subcommand(
        commands,
        "call",
        "call a tool in a sandbox",
        more="Whoever types a call has approved it: in the sandbox it runs without a question unless --ask "
        "is given. A question is asked before a tool runs on the host, destroys what undo cannot restore, or "
        "writes a protected file. What the policy denies is not run.",
        epilog="Exit status: 0 for success, 1 if the call failed, 2 if its arguments are invalid, "
        f"{_DENIED_STATUS} if it was denied.",
    )
    call.add_argument("name", help="name of the tool")
    call.add_argument("arguments", nargs="*", metavar="key=value", help="arguments of the tool")
    call.add_argument("--json", dest="json_arguments", metavar="OBJECT", help="arguments as a JSON object")
    call.add_argument("--workspace", help="folder that tools may change (default: ./workspace/default)")
    call.add_argument("--ask", action="store_true", help="ask even if the policy allows the call")
    call.add_argument("--timeout", type=float, metavar="SECONDS", help="deadline of the call in seconds")
    call.add_argument("--result", action="store_true", help="print the whole result as one JSON object")


def import_tools(reference: str) -> Iterable[Tool]:
    """Import the tools that `--tools MODULE:NAME` refers to.

    Args:
        reference: A module, a colon, and the name of a `ToolRegistry` or a list of tools in it.

    Raises:
        UsageError: If there is no such module or name.
    """
    module, colon, name = reference.partition(":")
    if not colon:
        raise UsageError(f"--tools {reference!r}: write MODULE:NAME, such as my_tools:registry.")
    try:
        tools: Iterable[Tool] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--tools {reference!r} cannot be imported: {as_clause(error)}.") from None
    return tools


def tools(options: argparse.Namespace, echo: Echo) -> int:
    """Run `aisotools tools`. Return 0.

    Raises:
        UnknownTool: If there is no tool of that name.
        UsageError: If there is no such format.
    """
    from aisotools.builtin import builtin_tools
    from aisotools.notebook.render.listing import tool_bundle, tools_bundle
    from aisotools.tools.export import PROVIDERS
    from aisotools.tools.registry import ToolRegistry

    registry = ToolRegistry(builtin_tools())
    if options.name is not None:
        registry = ToolRegistry([registry[options.name]])
    if options.format is not None:
        if options.format not in {"json", *PROVIDERS}:
            raise UsageError(f"--format takes json, {', '.join(PROVIDERS)}, not {options.format!r}.")
        provider = None if options.format == "json" else cast("Any", options.format)
        echo(json.dumps(registry.definitions(provider), indent=2, ensure_ascii=False))
    elif options.name is None:
        echo(tools_bundle(registry.list())["text/plain"])
    else:
        echo(tool_bundle(registry.list()[0])["text/plain"])
    return 0


def call_tool(options: argparse.Namespace, echo: Echo) -> int:
    """Run `aisotools call`. Return 0 for success, 1 for a failed, 2 for an invalid, 3 for a denied call."""
    from aisotools.builtin import builtin_tools

    schemas = {tool.name: tool.parameters_schema() for tool in builtin_tools()}
    words = [options.name, *options.arguments]
    if options.json_arguments is not None:
        words += ["--json", options.json_arguments]
    line = parse_call(shlex.join(words), schemas, command="aisotools call")
    result = asyncio.run(_call(line, options))
    if options.result:
        echo(json.dumps(_as_json(result), ensure_ascii=False))
    elif result.content:
        # Control characters in the output of a sandbox would control this terminal.
        from aisotools.notebook.render.text import readable

        echo(readable(result.content))
    return exit_code(result)


def exit_code(result: ToolResult) -> int:
    """Return the exit status of `aisotools call` for a result."""
    if not result.is_error:
        return 0
    return {"denied": _DENIED_STATUS, "invalid": 2}.get(result.error_kind or "", 1)


async def _call(line: CallLine, options: argparse.Namespace) -> ToolResult:
    from aisotools.session.session import Session

    workspace: str | os.PathLike[str] | None = options.workspace
    async with Session(workspace) as session:
        return await session.call(
            line.name, line.arguments, origin="person", ask=options.ask, timeout_s=options.timeout
        )


def _as_json(result: ToolResult) -> dict[str, Any]:
    return {
        "content": result.content,
        "is_error": result.is_error,
        "error_kind": result.error_kind,
        "value": result.value,
    }
