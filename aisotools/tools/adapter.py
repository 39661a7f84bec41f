"""The optional members of a `Tool`: looked up by name, filled in with the careful answer.

A tool under another name: everything else about it stays as it is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aisotools.core.exceptions import ToolError, UsageError, WorkspaceError
from aisotools.core.protocols import Tool, ToolContext, ToolPayload
from aisotools.core.types import Effect, Facts, Json, ToolDefinition, ToolResult
from aisotools.tools.schema import check_name
from aisotools.tools.validation import validate_against


def definition_of(tool: Tool) -> ToolDefinition:
    """The tool as a model sees it."""
    return ToolDefinition(
        tool.name,
        tool.description,
        tool.parameters_schema(),
        examples=tuple(getattr(tool, "examples", ())),
    )


def classify(tool: Tool, arguments: Mapping[str, Json]) -> Effect:
    """What a call may do; `LOCAL_MUTATION` when the tool does not say, or says something else."""
    ask = getattr(tool, "classify", None)
    effect = ask(arguments) if callable(ask) else None
    return effect if isinstance(effect, Effect) else Effect.LOCAL_MUTATION


def declared_effect(tool: Tool) -> Effect | None:
    """What every call may do; None when that depends on the arguments, or the tool does not say."""
    effect = getattr(tool, "effect", None)
    return effect if isinstance(effect, Effect) else None


def undo_path(tool: Tool, arguments: Mapping[str, Json]) -> Path | None:
    """The one path a call changes; None when the tool does not say."""
    ask = getattr(tool, "extract_undo_path", None)
    path = ask(arguments) if callable(ask) else None
    return path if isinstance(path, Path) else None


def gather_facts(tool: Tool, arguments: Mapping[str, Json]) -> Facts:
    """What a policy should know; just the effect when the tool does not say."""
    ask = getattr(tool, "gather_facts", None)
    facts = ask(arguments) if callable(ask) else None
    return facts if isinstance(facts, Facts) else Facts(effect=classify(tool, arguments))


def validate_arguments(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Json]:
    """The arguments as JSON, checked by the tool's own validator or against its schema.

    Raises:
        ArgumentError: Naming every argument that does not fit.
        ToolError: If the tool's schema itself is broken.
    """
    own = getattr(tool, "validate_arguments", None)
    if callable(own):
        valid: dict[str, Json] = own(arguments)
        return valid
    return validate_against(tool.parameters_schema(), arguments, tool.name)


def validate_value(tool: Tool, value: Json) -> None:
    """Check what came back from a sandbox; anything goes when the tool does not say.

    Raises:
        ToolError: If it does not fit.
    """
    own = getattr(tool, "validate_value", None)
    if callable(own):
        own(value)


def shipment_of(tool: Tool) -> ToolPayload | None:
    """How to run the tool in a sandbox; None when it runs on the host."""
    own = getattr(tool, "shipment", None)
    shipment = own() if callable(own) else None
    return shipment if isinstance(shipment, ToolPayload) else None


def version_of(tool: Tool) -> str:
    """Changes when the tool does; of what a model is told about it, when the tool does not say."""
    version = getattr(tool, "version", None)
    if isinstance(version, str):
        return version
    told = "\0".join([tool.name, tool.description, repr(tool.parameters_schema())])
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def deadline_of(tool: Tool, arguments: Mapping[str, Json]) -> float | None:
    """Seconds that a call may take; None when the tool does not say."""
    deadline = getattr(tool, "timeout_s", None)
    if callable(deadline):
        deadline = deadline(arguments)
    return float(deadline) if isinstance(deadline, int | float) and deadline > 0 else None


def failure(error: BaseException) -> ToolResult:
    """What a tool raised, as a result: its own words, or its own part of the traceback."""
    if isinstance(error, ToolError):
        return ToolResult.error(str(error), recoverable=error.recoverable, error_kind="invalid")
    if isinstance(error, WorkspaceError):
        return ToolResult.error(str(error), error_kind="invalid")
    if isinstance(error, SystemExit):
        return ToolResult.error(f"The tool tried to exit ({error.code!r}) and was held back.")
    frames = traceback.extract_tb(error.__traceback__)
    # Our own driving frames say nothing to whoever wrote the tool.
    here = f"{Path(__file__).parents[1]}/"
    first = next((n for n, f in enumerate(frames) if not f.filename.startswith(here)), len(frames))
    story = "".join(traceback.format_exception_only(error)).strip()
    shown = "".join(traceback.format_list(frames[first:])).rstrip()
    content = f"{story}\n\nTraceback (most recent call last):\n{shown}" if shown else story
    return ToolResult.error(content).with_metadata(exception=type(error).__name__)


def unusable(name: str, error: Exception) -> ToolResult:
    """What a tool raised when it was asked about itself or its arguments, as a result."""
    if isinstance(error, ToolError):
        return failure(error)
    if isinstance(error, UsageError):
        return ToolResult.error(str(error), recoverable=False)
    told = f"{name} cannot be called: asking it about this call failed. Whoever provides it must mend that.\n"
    result = failure(error)
    return dataclasses.replace(result, content=told + result.content, recoverable=False)


def source_of(tool: Tool) -> str:
    """Where the tool comes from, for listings and clashes."""
    source = getattr(tool, "source", None)
    return source if isinstance(source, str) else f"{type(tool).__module__}.{type(tool).__qualname__}"


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
