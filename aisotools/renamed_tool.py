"""A tool under another name: everything else about it stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aisotools.contracts import Tool, ToolContext
from aisotools.events import Json, ToolResult
from aisotools.schema import check_name
from aisotools.tool_members import version_of


class RenamedTool:
    """Another name for a tool. Its optional members, such as effects and shipment, are the tool's own."""

    def __init__(self, tool: Tool, name: str) -> None:
        """Call `tool` by `name`."""
        self._tool, self._name = tool, name

    def __repr__(self) -> str:
        return f"<{self._tool!r} named {self._name}>"

    def __getattr__(self, member: str) -> Any:
        # Only what is not defined here: the optional members, which are looked up by name.
        if member.startswith("_"):
            raise AttributeError(member)
        return getattr(self._tool, member)

    @property
    def name(self) -> str:
        """The new name."""
        return self._name

    @property
    def description(self) -> str:
        """The tool's own description."""
        return self._tool.description

    @property
    def version(self) -> str:
        """Changes with the tool and with the name."""
        return f"{self._name}:{version_of(self._tool)}"

    def parameters_schema(self) -> Mapping[str, Json]:
        """The tool's own schema."""
        return self._tool.parameters_schema()

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Run the tool."""
        return await self._tool.execute(arguments, context)


def renamed_tool(tool: Tool, name: str) -> Tool:
    """`tool` under the name `name`.

    Raises:
        SignatureError: If no tool may bear that name.
    """
    check_name(name)
    own = tool._tool if isinstance(tool, RenamedTool) else tool  # noqa: SLF001 - a name of a name is one name
    return own if own.name == name else RenamedTool(own, name)
