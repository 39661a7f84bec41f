"""The tools of a session, by name."""

from __future__ import annotations

import copy
import difflib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from aisotools.core.exceptions import MAX_NAME_CHARS, RegistryError, ToolClash, UnknownTool
from aisotools.core.protocols import Tool
from aisotools.core.types import Json, ToolDefinition
from aisotools.tools.adapter import (
    cell_of,
    declared_effect,
    definition_of,
    has_argument_validator,
    renamed_tool,
    source_of,
)
from aisotools.tools.export import Exports, Provider, export_tools
from aisotools.tools.schema import check_name
from aisotools.tools.validation import schema_error, short_repr

AnyTool = TypeVar("AnyTool", bound=Tool)
"""`register` returns the tool with its own type."""

Definitions = list[ToolDefinition]
"""All tools as a model reads them."""

ProviderDefinitions = list[dict[str, Json]]
"""All tools in the format of one provider's client."""


_REQUIRED_MEMBERS = ("name", "description", "parameters_schema", "execute")


class ToolRegistry:
    """Tools by name, in the order of registration. Safe to use from several threads."""

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
        """Return the tool of that name.

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

        A tool from the same notebook cell replaces the one registered before.

        Raises:
            RegistryError: If it is not a tool; the message says what is missing.
            SignatureError: If its name is not valid.
            ToolClash: If another tool has that name; the message names the sources of both.
        """
        name = _check_tool(tool)
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
        # A much longer name is like none, and comparing it would take seconds.
        is_comparable = len(str(name)) <= MAX_NAME_CHARS
        near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5) if is_comparable else []
        return UnknownTool(str(name), tuple(near), known)

    def get(self, name: str) -> Tool | None:
        """Return the tool of that name, or None."""
        return self._tools.get(name)

    def list(self) -> list[Tool]:
        """Return all tools, in the order of registration."""
        with self._lock:
            return list(self._tools.values())

    def to_llm_definitions(self) -> Definitions:
        """Return the definitions that a model reads."""
        return [definition_of(tool) for tool in self.list()]

    def definitions(
        self, provider: Provider | None = None, *, strict: bool | None = None
    ) -> ProviderDefinitions:
        """Return all tools as plain dicts, ready for a provider's client.

        Args:
            provider: None for `{name, description, parameters}`; else `"openai"` for Chat Completions,
                `"openai-responses"`, `"anthropic"`, `"gemini"` or `"mcp"`.
            strict: Use of OpenAI's strict mode. None: for schemas that fit it unchanged. True: also for
                schemas that fit once optional arguments are nullable instead; `exports(...).back` converts
                such arguments back. False: never.

        Returns:
            New dicts that the caller may change.

        Raises:
            ValueError: If `provider` is unknown.
        """
        if provider is None:
            return [_plain(definition) for definition in self.to_llm_definitions()]
        return [dict(export) for export in self.exports(provider, strict=strict)]

    def exports(self, provider: Provider, *, strict: bool | None = None) -> Exports:
        """Return the tools in a provider's format, with the changes made for it and the way back.

        Raises:
            ValueError: If `provider` is unknown.
        """
        definitions = [(definition_of(tool), declared_effect(tool)) for tool in self.list()]
        return export_tools(definitions, provider, strict=strict)

    # -- registries derived from this one

    def filtered(self, keep: Iterable[str] | Callable[[Tool], bool]) -> ToolRegistry:
        """Return a registry of some of these tools.

        Args:
            keep: The names of the tools, or a function that returns true for them.

        Raises:
            UnknownTool: If a name is not registered.
            TypeError: If `keep` is a single name instead of a list.
        """
        if callable(keep):
            return ToolRegistry(tool for tool in self.list() if keep(tool))
        if isinstance(keep, str):
            raise TypeError(f"filtered({keep!r}): give a list of names, such as [{keep!r}].")
        names = {self[name].name for name in keep}
        return ToolRegistry(tool for tool in self.list() if tool.name in names)

    def prefixed(self, prefix: str) -> ToolRegistry:
        """Return a registry of the same tools with `prefix` before each name.

        Raises:
            SignatureError: If a name becomes invalid.
        """
        return ToolRegistry(renamed_tool(tool, prefix + tool.name) for tool in self.list())

    def renamed(self, names: Mapping[str, str]) -> ToolRegistry:
        """Return a registry of the same tools, some of them under other names: `{"old": "new"}`.

        Raises:
            UnknownTool: If an old name is not registered.
            ToolClash: If two tools get the same name.
        """
        for name in names:
            self[name]  # raises for a name that is not registered
        return ToolRegistry(
            renamed_tool(tool, names[tool.name]) if tool.name in names else tool for tool in self.list()
        )


def _plain(definition: ToolDefinition) -> dict[str, Any]:
    return {
        "name": definition.name,
        "description": definition.description,
        "parameters": copy.deepcopy(dict(definition.parameters)),
    }


def _check_tool(tool: Tool) -> str:
    """Return the name of `tool`. Raise now for what would otherwise fail at its first call."""
    missing = [member for member in _REQUIRED_MEMBERS if not hasattr(tool, member)]
    if missing:
        hint = " Put @tool above the function." if callable(tool) else ""
        raise RegistryError(f"{short_repr(tool)} is not a tool: it has no {', '.join(missing)}.{hint}")
    if isinstance(tool, type):
        raise RegistryError(
            f"{tool.__name__} is a class. Register one of its instances: {tool.__name__}(...)."
        )
    name = check_name(tool.name)
    description: object = tool.description
    if not isinstance(description, str):
        raise RegistryError(f"Tool {name}: description must be text, not {short_repr(description)}.")
    if not has_argument_validator(tool):
        # Such a tool's schema decides about arguments at every call, so it must be sound.
        error = schema_error(tool.parameters_schema())
        if error:
            raise RegistryError(f"Tool {name}: {error}.")
    return name


def _replaces(new: Tool, old: Tool) -> bool:
    """Return whether registering `new` means "the same tool, edited" rather than a clash."""
    if new is old:
        return True
    new_cell = cell_of(new)
    old_cell = cell_of(old)
    if new_cell is not None and old_cell is not None:
        # An unknown cell ("") counts as the same: some front ends send no cell ids.
        return new_cell == old_cell or "" in {new_cell, old_cell}
    # A class defined in a notebook: running its cell again makes a new class of the same name.
    is_interactive = type(new).__module__ == "__main__"
    return is_interactive and source_of(new) == source_of(old)
