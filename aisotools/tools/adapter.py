"""Validate arguments and find out what a call does, with a cautious default where a tool does not say.

The optional members of tools are declared in `aisotools.core.protocols`, as `Supports...` Protocols. This
module also renames tools, and knows the built-in ones by identity.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import inspect
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from aisotools.core.exceptions import ToolError, UsageError, WorkspaceError
from aisotools.core.protocols import (
    SupportsArgumentValidation,
    SupportsCell,
    SupportsClassification,
    SupportsEffect,
    SupportsExamples,
    SupportsFacts,
    SupportsHints,
    SupportsShipment,
    SupportsSource,
    SupportsTimeout,
    SupportsUndoPath,
    SupportsValueValidation,
    SupportsVersion,
    Tool,
    ToolContext,
    ToolPayload,
)
from aisotools.core.threads import in_thread
from aisotools.core.types import Effect, Facts, Json, ToolDefinition, ToolResult
from aisotools.tools.results import host_failure
from aisotools.tools.schema import check_name
from aisotools.tools.validation import fresh_arguments, validate_against

if TYPE_CHECKING:
    from typing_extensions import TypeIs

MAX_HINTS = 20
"""The most hints of one tool that a card lists."""

_Capability = TypeVar("_Capability")


def supports(value: object, capability: Callable[..., _Capability]) -> TypeIs[_Capability]:
    """Return whether a value has the members of the Protocol `capability`. A member that is None is missing.

    `isinstance` takes 10 µs and more for a Protocol on Python 3.11, and the gate asks several times per call.
    From 3.12 on it also misses what a wrapper forwards: `RenamedTool`, and the sandboxes of a `SessionPool`.
    """
    for name in _member_names(capability):  # noqa: SIM110 - all() takes twice as long
        if getattr(value, name, None) is None:
            return False
    return True


@functools.cache
def _member_names(capability: Callable[..., object]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for base in inspect.getmro(cast("type", capability)):
        names |= dict.fromkeys((*vars(base), *vars(base).get("__annotations__", ())))
    return tuple(name for name in names if not name.startswith("_"))


def definition_of(tool: Tool) -> ToolDefinition:
    """Return the definition that a model reads."""
    return ToolDefinition(
        tool.name, tool.description, tool.parameters_schema(), examples=tuple(examples_of(tool))
    )


def examples_of(tool: Tool) -> Sequence[tuple[Mapping[str, Json], str]]:
    """Return the tool's examples: pairs of arguments and the request they answer. Default: none."""
    return tool.examples if supports(tool, SupportsExamples) else ()


def hints_of(tool: Tool) -> tuple[str, ...]:
    """Return hints about the tool from its origin, such as an MCP server, for people. All are untrusted.

    Default: none.
    """
    hints: object = tool.hints if supports(tool, SupportsHints) else ()
    if not hints or not isinstance(hints, tuple | list):
        return ()
    return tuple(hint for hint in hints[:MAX_HINTS] if isinstance(hint, str))


def classify(tool: Tool, arguments: Mapping[str, Json]) -> Effect:
    """Return the effect of a call. Default, also for a value that is no `Effect`: `LOCAL_MUTATION`."""
    effect: object = tool.classify(arguments) if supports(tool, SupportsClassification) else None
    return effect if isinstance(effect, Effect) else Effect.LOCAL_MUTATION


def declared_effect(tool: Tool) -> Effect | None:
    """Return the effect of every call, or None if it depends on the arguments or is not declared."""
    effect: object = tool.effect if supports(tool, SupportsEffect) else None
    return effect if isinstance(effect, Effect) else None


def undo_path(tool: Tool, arguments: Mapping[str, Json]) -> Path | None:
    """Return the one path a call changes. Default: None."""
    path: object = tool.extract_undo_path(arguments) if supports(tool, SupportsUndoPath) else None
    return path if isinstance(path, Path) else None


def gather_facts(tool: Tool, arguments: Mapping[str, Json]) -> Facts:
    """Return the facts of a call that a policy decides on. Default: its effect alone."""
    facts: object = tool.gather_facts(arguments) if supports(tool, SupportsFacts) else None
    return facts if isinstance(facts, Facts) else Facts(effect=classify(tool, arguments))


def validate_arguments(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Json]:
    """Return the arguments as JSON, checked by the tool's own validator or against its schema.

    Raises:
        ArgumentError: Naming every argument that does not fit.
        ToolError: If the tool's schema itself is broken.
    """
    if supports(tool, SupportsArgumentValidation):
        return tool.validate_arguments(arguments)
    return validate_against(tool.parameters_schema(), arguments, tool.name)


def has_argument_validator(tool: Tool) -> bool:
    """Return whether the tool validates arguments itself instead of leaving it to its schema."""
    return supports(tool, SupportsArgumentValidation)


def validate_value(tool: Tool, value: Json) -> None:
    """Check a value that a sandbox returned. Default: every value is accepted.

    Raises:
        ToolError: If it does not fit.
    """
    if supports(tool, SupportsValueValidation):
        tool.validate_value(value)


def payload_of(tool: Tool) -> ToolPayload | None:
    """Return how to run the tool in a sandbox, or None if it runs on the host, which is the default."""
    payload: object = tool.shipment() if supports(tool, SupportsShipment) else None
    return payload if isinstance(payload, ToolPayload) else None


def version_of(tool: Tool) -> str:
    """Return a text that changes when the tool changes. Default: a digest of its definition."""
    version: object = tool.version if supports(tool, SupportsVersion) else None
    if isinstance(version, str):
        return version
    definition = "\0".join([tool.name, tool.description, repr(tool.parameters_schema())])
    return hashlib.sha256(definition.encode()).hexdigest()[:32]


def deadline_of(tool: Tool, encoded_arguments: bytes) -> float | None:
    """Return the seconds that a call with these arguments, as JSON, may take.

    Default, also for a value that is not positive: None.
    """
    deadline: object = tool.timeout_s if supports(tool, SupportsTimeout) else None
    if callable(deadline):
        deadline = deadline(fresh_arguments(encoded_arguments))
    return float(deadline) if isinstance(deadline, int | float) and deadline > 0 else None


def source_of(tool: Tool) -> str:
    """Return where the tool was defined, for listings and error messages. Default: its class."""
    source: object = tool.source if supports(tool, SupportsSource) else None
    return source if isinstance(source, str) else f"{type(tool).__module__}.{type(tool).__qualname__}"


def cell_of(tool: Tool) -> str | None:
    """Return the id of the notebook cell that defined the tool: `""` if unknown, None outside notebooks."""
    cell: object = tool.cell if supports(tool, SupportsCell) else None
    return cell if isinstance(cell, str) else None


def exception_result(error: BaseException) -> ToolResult:
    """Convert an exception of a tool to a result: its message, and the tool's part of the traceback.

    Of a tool on the host a model gets less; see `host_exception_result`.
    """
    if isinstance(error, ToolError):
        return ToolResult.error(str(error), recoverable=error.recoverable, error_kind="invalid")
    if isinstance(error, WorkspaceError):
        return ToolResult.error(str(error), error_kind="invalid")
    if isinstance(error, SystemExit):
        return ToolResult.error(f"The tool tried to exit ({error.code!r}). Only the call was ended.")
    headline = "".join(traceback.format_exception_only(error)).strip()
    stack = format_tool_frames(error)
    content = f"{headline}\n\n{stack}" if stack else headline
    return ToolResult.error(content).with_metadata(exception=type(error).__name__)


def host_exception_result(error: BaseException, arguments: Mapping[str, Any] | None = None) -> ToolResult:
    """Convert an exception of a tool that ran on the host. Its traceback stays with the person.

    Args:
        error: The exception.
        arguments: The call's arguments, if it got as far.
    """
    if isinstance(error, ToolError | WorkspaceError):
        return exception_result(error)
    if isinstance(error, SystemExit):
        code = f" ({error.code})" if isinstance(error.code, int) else ""
        exited = ToolResult.error(f"The tool tried to exit{code}. Only the call was ended.")
        return exited.with_metadata(**host_failure(error).metadata)
    return host_failure(error, arguments)


def format_tool_frames(error: BaseException) -> str:
    """Return the tool's part of the traceback, without the exception itself; empty if it has no part."""
    frames = traceback.extract_tb(error.__traceback__)
    # The outermost frames are this package, and what it uses, on the way to the tool. They tell its author
    # nothing, and of a tool of this package there are no others.
    first = next((n for n, frame in enumerate(frames) if not _is_on_the_way(frame)), len(frames))
    stack = "".join(traceback.format_list(frames[first:])).rstrip()
    return f"Traceback (most recent call last):\n{stack}" if stack else ""


_PACKAGE = f"{Path(__file__).parents[1]}/"
_LIBRARY = f"{Path(os.__file__).parent}/"
_OTHERS = (f"{_LIBRARY}site-packages/", f"{_LIBRARY}dist-packages/")
_VALIDATION = "-packages/pydantic/"


def _is_on_the_way(frame: traceback.FrameSummary) -> bool:
    name = frame.filename
    is_library = name.startswith((_LIBRARY, "<frozen ")) and not name.startswith(_OTHERS)
    is_generated = name == "<string>" and frame.name.startswith("__")  # methods of dataclasses
    return is_library or is_generated or name.startswith(_PACKAGE) or _VALIDATION in name


def broken_tool_result(name: str, error: Exception) -> ToolResult:
    """Convert an exception of a tool's optional members (effect, facts, validator) to a result.

    The tool was not run. The caller's `ToolError` and `UsageError` keep their message; anything else is a bug
    in the tool, which the model cannot fix.
    """
    if isinstance(error, ToolError):
        return exception_result(error)
    if isinstance(error, UsageError):
        return ToolResult.error(str(error), recoverable=False)
    result = host_failure(error)
    explanation = (
        f"{name} was not called: the tool failed while checking the call. "
        "This is a bug in the tool; its author must fix it.\n"
    )
    return dataclasses.replace(result, content=explanation + result.content, recoverable=False)


class RenamedTool:
    """A tool under another name. Every optional member is the original tool's."""

    def __init__(self, tool: Tool, name: str) -> None:
        """Give `tool` the name `name`."""
        self._tool = tool
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._tool!r} named {self._name}>"

    def __getattr__(self, member: str) -> Any:
        # Called for what this class does not define: the optional members. They cannot be defined here,
        # since `hasattr` must stay False for those that the original does not have.
        if member.startswith("_"):
            raise AttributeError(member)
        return getattr(self._tool, member)

    @property
    def name(self) -> str:
        """The new name."""
        return self._name

    @property
    def description(self) -> str:
        """The original description."""
        return self._tool.description

    @property
    def version(self) -> str:
        """Changes with the tool and with the name."""
        return f"{self._name}:{version_of(self._tool)}"

    def parameters_schema(self) -> Mapping[str, Json]:
        """Return the original schema."""
        return self._tool.parameters_schema()

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Run the original tool."""
        return await self._tool.execute(arguments, context)


class BuiltinTool(NamedTuple):
    """A built-in tool whose own facts are relied upon.

    Attributes:
        tool: The tool.
        keeps_to_reading: Whether a call that is classified read only changes nothing by what the tool does.
        analysis: The module that finds out what a call does, if it is too large to be imported with the tool.
    """

    tool: Tool
    keeps_to_reading: bool
    analysis: str


_builtin_tools: dict[int, BuiltinTool] = {}


_loaded_analyses: set[str] = set()


def register_builtin(*tools: Tool, keeps_to_reading: bool = False, analysis: str = "") -> None:
    """Register built-in tools, whose facts are trusted. Facts of other tools are enforced, or asked about.

    Args:
        tools: Tools that reach files through the path guard alone, or that keep to reading.
        keeps_to_reading: Whether the tools themselves ensure that a call that only reads changes nothing.
        analysis: The module that their facts come from, which `load_analysis` imports.
    """
    for tool in tools:
        # Kept, so that no other gets its id.
        _builtin_tools[id(tool)] = BuiltinTool(tool, keeps_to_reading, analysis)


def find_builtin(tool: Tool) -> BuiltinTool | None:
    """Return the registered built-in tool that `tool` is, under whatever name; None for any other object.

    A tool that names a module of ours as what the worker is to import is another object.
    """
    # Not a subclass of `RenamedTool`, which may say other things of the same tool.
    original = tool._tool if type(tool) is RenamedTool else tool  # noqa: SLF001 - same module
    return _builtin_tools.get(id(original))


async def load_analysis(tool: Tool | None) -> None:
    """Import what the facts of a call come from, in a thread: it takes 80 ms, the first time."""
    builtin = None if tool is None else find_builtin(tool)
    if builtin is None or not builtin.analysis or builtin.analysis in _loaded_analyses:
        return
    # Race: another call may be importing it. It is in `sys.modules` then, and whoever needs it waits for its
    # lock: here in a thread, too. What is raised is raised again where the facts are found out: that there is
    # no such module, or that no more files can be opened. The call is denied, or not run.
    with contextlib.suppress(ImportError, OSError):
        await in_thread(importlib.import_module, builtin.analysis)
        _loaded_analyses.add(builtin.analysis)


_own_host_tools: dict[int, Tool] = {}


def register_host_tools(*tools: Tool) -> None:
    """Register built-in tools on the host, whose declarations count as analysed by aisotools itself."""
    _own_host_tools.update({id(tool): tool for tool in tools})  # kept, so that no other gets its id


def is_own_host_tool(tool: Tool) -> bool:
    """Return whether `tool` is a registered built-in tool on the host, under whatever name."""
    original = tool._tool if type(tool) is RenamedTool else tool  # noqa: SLF001 - same module
    return id(original) in _own_host_tools


def renamed_tool(tool: Tool, name: str) -> Tool:
    """Return `tool` under the name `name`; renaming twice does not wrap twice.

    Raises:
        SignatureError: If `name` is not valid for a tool.
    """
    check_name(name)
    original = tool._tool if isinstance(tool, RenamedTool) else tool  # noqa: SLF001 - same module
    return original if original.name == name else RenamedTool(original, name)
