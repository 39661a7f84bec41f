"""The tools of a session, by name."""

from __future__ import annotations

import copy
import difflib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from aisotools.core.exceptions import RegistryError, ToolClash, UnknownTool
from aisotools.core.protocols import Tool
from aisotools.core.types import Json, ToolDefinition
from aisotools.tools.adapter import declared_effect, definition_of, renamed_tool, source_of
from aisotools.tools.export import Exports, Provider, export_all
from aisotools.tools.schema import check_name
from aisotools.tools.validation import brief, schema_flaw

AnyTool = TypeVar("AnyTool", bound=Tool)
"""Whatever kind of tool is registered comes back as that kind."""

Definitions = list[ToolDefinition]
"""All tools as a model sees them."""

ProviderDefinitions = list[dict[str, Json]]
"""All tools as one provider's client takes them."""


class ToolRegistry:
    """Tools by name, in the order they came; safe to use from several threads."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        """Register `tools`, in order."""
        self._tools: dict[str, Tool] = {}
        self._lock = threading.Lock()
        for tool in tools:
            self.register(tool)

    def __repr__(self) -> str:
        return f"<ToolRegistry of {len(self)}: {', '.join(t.name for t in self.list())}>"

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.list())

    def __getitem__(self, name: str) -> Tool:
        """The tool of that name.

        Raises:
            UnknownTool: With the nearest names.
        """
        with self._lock:
            tool = self._tools.get(name)
            if tool is None:
                raise self._unknown(name)
        return tool

    def register(self, tool: AnyTool) -> AnyTool:
        """Add `tool` and return it, so that this also works as a decorator above `@tool`.

        Registering again from the same notebook cell replaces the earlier one.

        Raises:
            RegistryError: If it is not a tool; the message says what is missing.
            SignatureError: If its name is none that a tool may bear.
            ToolClash: If another tool has that name; the message names where both come from.
        """
        name = _checked(tool)
        with self._lock:
            old = self._tools.get(name)
            if old is not None and not _replaces(tool, old):
                raise ToolClash(
                    f"Two tools are named {name!r}: one from {source_of(old)}, one from {source_of(tool)}. "
                    f"Rename one, or unregister({name!r}) first.",
                )
            self._tools[name] = tool
        return tool

    def unregister(self, name: str) -> Tool:
        """Remove the tool of that name and return it.

        Raises:
            UnknownTool: With the nearest names.
        """
        with self._lock:
            if name not in self._tools:
                raise self._unknown(name)
            return self._tools.pop(name)

    def _unknown(self, name: str) -> UnknownTool:
        known = tuple(self._tools)
        near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
        return UnknownTool(str(name), tuple(near), known)

    def get(self, name: str) -> Tool | None:
        """The tool of that name, or None."""
        return self._tools.get(name)

    def list(self) -> list[Tool]:
        """All tools, in the order they were registered."""
        with self._lock:
            return list(self._tools.values())

    def to_llm_definitions(self) -> Definitions:
        """All tools as a model sees them."""
        return [definition_of(tool) for tool in self.list()]

    def definitions(
        self, provider: Provider | None = None, *, strict: bool | None = None
    ) -> ProviderDefinitions:
        """All tools as plain dicts, ready for a client.

        Args:
            provider: None for `{name, description, parameters}`; else `"openai"` for Chat Completions,
                `"openai-responses"`, `"anthropic"`, `"gemini"` or `"mcp"`.
            strict: For OpenAI's strict mode: None where a schema fits it as it is; True also where arguments
                that may be left out become ones that may be null, which `exports(...).back` undoes; False
                never.

        Returns:
            New dicts, to be changed at will.

        Raises:
            ValueError: If there is no such dialect.
        """
        if provider is None:
            return [_plain(definition) for definition in self.to_llm_definitions()]
        return [dict(export) for export in self.exports(provider, strict=strict)]

    def exports(self, provider: Provider, *, strict: bool | None = None) -> Exports:
        """What `definitions` gives, with what had to be changed for this provider, and the way back.

        Raises:
            ValueError: If there is no such dialect.
        """
        told = [(definition_of(tool), declared_effect(tool)) for tool in self.list()]
        return export_all(told, provider, strict=strict)

    # ---- other registries of the same tools

    def filtered(self, keep: Iterable[str] | Callable[[Tool], bool]) -> ToolRegistry:
        """A registry of some of these tools: of those names, or those for which `keep` is true.

        Raises:
            UnknownTool: If there is no tool of one of the names.
        """
        if callable(keep):
            return ToolRegistry(tool for tool in self.list() if keep(tool))
        if isinstance(keep, str):
            raise TypeError(f"filtered({keep!r}): give a list of names, such as [{keep!r}].")
        wanted = {self[name].name for name in keep}
        return ToolRegistry(tool for tool in self.list() if tool.name in wanted)

    def prefixed(self, prefix: str) -> ToolRegistry:
        """A registry of the same tools with `prefix` before each name.

        Raises:
            SignatureError: If a name would be none that a tool may bear.
        """
        return ToolRegistry(renamed_tool(tool, prefix + tool.name) for tool in self.list())

    def renamed(self, names: Mapping[str, str]) -> ToolRegistry:
        """A registry of the same tools, some of them under other names: `{"old": "new"}`.

        Raises:
            UnknownTool: If there is no tool of one of the old names.
            ToolClash: If two tools would bear one name.
        """
        for name in names:
            self[name]
        return ToolRegistry(
            renamed_tool(tool, names[tool.name]) if tool.name in names else tool for tool in self.list()
        )


def _plain(definition: ToolDefinition) -> dict[str, Any]:
    return {
        "name": definition.name,
        "description": definition.description,
        "parameters": copy.deepcopy(dict(definition.parameters)),
    }


def _checked(tool: Tool) -> str:
    """The name of `tool`, if it is one; what is wrong is said here and not at the first call."""
    missing = [m for m in ("name", "description", "parameters_schema", "execute") if not hasattr(tool, m)]
    if missing:
        hint = " Put @tool above the function." if callable(tool) else ""
        raise RegistryError(f"{brief(tool)} is not a tool: it has no {', '.join(missing)}.{hint}")
    if isinstance(tool, type):
        raise RegistryError(
            f"{tool.__name__} is a class. Register one of its instances: {tool.__name__}(...)."
        )
    name = check_name(tool.name)
    description: object = tool.description
    if not isinstance(description, str):
        raise RegistryError(f"Tool {name}: its description is {brief(description)}, and must be text.")
    # What validates by itself knows its schema; any other is taken at its schema's word at each call.
    flaw = (
        "" if callable(getattr(tool, "validate_arguments", None)) else schema_flaw(tool.parameters_schema())
    )
    if flaw:
        raise RegistryError(f"Tool {name}: {flaw}.")
    return name


def _replaces(new: Tool, old: Tool) -> bool:
    """Whether registering `new` means "the same tool, edited" rather than a clash."""
    if new is old:
        return True
    cells = getattr(new, "cell", None), getattr(old, "cell", None)
    if None not in cells:
        return cells[0] == cells[1] or "" in cells
    # A class that a notebook defines again when its cell is run again.
    interactive = type(new).__module__ == "__main__"
    return interactive and source_of(new) == source_of(old)
