"""The built-in tools: one row each in the table below, `module:attribute`."""

from __future__ import annotations

from importlib import import_module

from aisotools.contracts import Tool

BUILTINS = (
    "files:file",
    "shell_tool:sandbox_bash",
    "files:sandbox_read",
    "files:sandbox_write",
    "python_tool:python",
)


def builtin_tools() -> list[Tool]:
    """Every built-in tool, in the order of the table."""
    tools: list[Tool] = []
    for row in BUILTINS:
        module, _, attribute = row.partition(":")
        tools.append(getattr(import_module(f"aisotools.builtin.{module}"), attribute))
    return tools
