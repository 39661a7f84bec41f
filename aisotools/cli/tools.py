"""`aisotools tools` and `aisotools call`: the built-in tools on the command line, through the same gate."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
from collections.abc import Callable
from typing import Any, cast

from aisotools.core.exceptions import UsageError
from aisotools.core.types import ToolResult
from aisotools.notebook.magics.arguments import CallLine, parse_call

Echo = Callable[[str], object]
"""Takes text to print."""

_DENIED = 3


def add_parsers(commands: Any) -> None:
    """Add `tools` and `call` to the command line's subcommands."""
    tools = commands.add_parser("tools", help="list the built-in tools, or show one")
    tools.add_argument("name", nargs="?", help="a tool to show in full")
    tools.add_argument("--format", help="as a client takes them: json, openai, anthropic, gemini, mcp, ...")
    call = commands.add_parser(
        "call",
        help="call a tool in a sandbox",
        description="Call a tool in a sandbox: aisotools call NAME key=value ... What is typed is consented "
        "to, as in a notebook's %%call; what a policy denies is not run.",
        epilog=f"Exit status: 0 done, 1 the call failed, 2 it was wrong, {_DENIED} it was denied.",
    )
    call.add_argument("name", help="the tool")
    call.add_argument("arguments", nargs="*", metavar="key=value", help="its arguments")
    call.add_argument("--json", dest="json_arguments", metavar="OBJECT", help="arguments as a JSON object")
    call.add_argument("--workspace", help="the folder to work in; ./workspace/default without it")
    call.add_argument("--ask", action="store_true", help="ask even if the policy would allow it")
    call.add_argument("--timeout", type=float, metavar="SECONDS", help="deadline")
    call.add_argument("--result", action="store_true", help="print the whole result as one JSON object")


def tools(options: argparse.Namespace, echo: Echo) -> int:
    """Carry out `aisotools tools`."""
    from aisotools.builtin import builtin_tools
    from aisotools.notebook.render.listing import tool_bundle, tools_bundle
    from aisotools.tools.export import PROVIDERS
    from aisotools.tools.registry import ToolRegistry

    registry = ToolRegistry(builtin_tools())
    chosen = registry if options.name is None else ToolRegistry([registry[options.name]])
    if options.format is not None:
        if options.format not in {"json", *PROVIDERS}:
            raise UsageError(f"--format takes json, {', '.join(PROVIDERS)}, not {options.format!r}.")
        form = None if options.format == "json" else cast("Any", options.format)
        echo(json.dumps(chosen.definitions(form), indent=2, ensure_ascii=False))
    elif options.name is None:
        echo(tools_bundle(chosen.list())["text/plain"])
    else:
        echo(tool_bundle(chosen.list()[0])["text/plain"])
    return 0


def call(options: argparse.Namespace, echo: Echo) -> int:
    """Carry out `aisotools call`; see its epilog for what is returned."""
    from aisotools.builtin import builtin_tools

    schemas = {tool.name: tool.parameters_schema() for tool in builtin_tools()}
    words = [options.name, *options.arguments]
    if options.json_arguments is not None:
        words += ["--json", options.json_arguments]
    typed = parse_call(shlex.join(words), schemas)
    result = asyncio.run(_called(typed, options))
    if options.result:
        echo(json.dumps(_as_json(result), ensure_ascii=False))
    elif result.content:
        from aisotools.notebook.render.text import readable  # a terminal obeys what a sandbox prints

        echo(readable(result.content))
    if not result.is_error:
        return 0
    return {"denied": _DENIED, "invalid": 2}.get(result.error_kind or "", 1)


async def _called(typed: CallLine, options: argparse.Namespace) -> ToolResult:
    from aisotools.session.session import Session

    workspace: str | os.PathLike[str] | None = options.workspace
    async with Session(workspace) as session:
        return await session.call(
            typed.name, typed.arguments, origin="person", ask=options.ask, timeout_s=options.timeout
        )


def _as_json(result: ToolResult) -> dict[str, Any]:
    return {
        "content": result.content,
        "is_error": result.is_error,
        "error_kind": result.error_kind,
        "value": result.value,
    }
