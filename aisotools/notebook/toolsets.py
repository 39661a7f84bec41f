"""`%tools --set NAME`: which of the built-in tools a session has."""

from __future__ import annotations

from aisotools.builtin import TOOLSETS, builtin_tools
from aisotools.registry import ToolRegistry
from aisotools.tool_members import source_of


def choose_set(registry: ToolRegistry, name: str) -> str:
    """Have exactly the built-in tools of a set registered, beside all tools that are none of ours.

    Returns:
        What was done, in words.

    Raises:
        UsageError: If there is no such set.
    """
    wanted = builtin_tools(name)
    names = {tool.name for tool in wanted}
    for tool in registry.list():
        if source_of(tool) == "built-in" and tool.name in TOOLSETS["all"] and tool.name not in names:
            registry.unregister(tool.name)
    for tool in wanted:
        if tool.name not in registry:
            registry.register(tool)
    return f"{len(registry)} tools: {', '.join(tool.name for tool in registry.list())}."
