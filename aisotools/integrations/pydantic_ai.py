"""The tools of a session under a pydantic-ai agent, and a pydantic-ai tool in our registry.

agent = Agent("openai:gpt-5", toolsets=[SessionToolset(session)])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_ai import BinaryContent, RunContext, Tool, ToolReturn
from pydantic_ai.exceptions import ApprovalRequired, ModelRetry, ToolFailed
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_ai.usage import RunUsage
from pydantic_core import SchemaValidator, core_schema

from aisotools.core.exceptions import UsageError
from aisotools.core.protocols import Declaration, ToolContext
from aisotools.core.types import Effect, Facts, Json, ToolResult
from aisotools.integrations.calls import (
    EFFECT_KEY,
    Asking,
    call_session_tool,
    check_asking,
    check_schema,
    find_effect,
    find_hints,
    images,
    needs_asking,
)
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.tools.adapter import declared_effect
from aisotools.tools.export import exported_name
from aisotools.tools.registry import ToolRegistry
from aisotools.tools.results import to_result
from aisotools.tools.validation import validate_against_untrusted

_ACCEPT_ALL = SchemaValidator(core_schema.any_schema())
"""The gate validates the arguments, with messages for a model."""

_NAME_KEY = "aisotools_name"
"""Key of the registry's name in a tool's metadata; exports may change names."""


class SessionToolset(AbstractToolset[Any]):
    """The tools of a session for pydantic-ai; every call passes the session's gate."""

    def __init__(
        self,
        session: Session,
        *,
        registry: ToolRegistry | None = None,
        id: str | None = "aisotools",  # noqa: A002 - pydantic-ai calls it so
        asking: Asking = "session",
    ) -> None:
        """Offer the tools of `session`.

        Args:
            session: Makes the calls. The first call opens it; closing it is the caller's task.
            registry: Tools to offer; None for all tools of the session.
            id: Id of the toolset.
            asking: `framework` ends the run with pydantic-ai's `DeferredToolRequests` at a call that needs
                approval, instead of asking the session's approver.
        """
        check_asking(asking)
        self._session = session
        self._registry = registry
        self._id = id
        self._asking = asking

    @property
    def id(self) -> str | None:
        """Id of the toolset."""
        return self._id

    def definitions(self) -> list[ToolDefinition]:
        """Return the definitions of the tools."""
        registry = self._registry or self._session.registry
        definitions = []
        for export, tool in zip(registry.exports("openai", strict=False), registry.list(), strict=True):
            effect = declared_effect(tool)
            definitions.append(
                ToolDefinition(
                    name=exported_name(export),
                    description=tool.description,
                    parameters_json_schema=dict(export["function"]["parameters"]),
                    sequential=effect is not Effect.READ_ONLY,
                    metadata={_NAME_KEY: tool.name, EFFECT_KEY: effect},
                )
            )
        return definitions

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools by the names that the model sees."""
        return {
            definition.name: ToolsetTool(
                toolset=self, tool_def=definition, max_retries=ctx.max_retries, args_validator=_ACCEPT_ALL
            )
            for definition in self.definitions()
        }

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[Any],
        tool: ToolsetTool[Any],
    ) -> Any:
        """Make a call through the gate.

        Raises:
            ModelRetry: If the call failed and the model can correct it.
            ToolFailed: If it cannot; denials too.
            ApprovalRequired: If the framework must ask the user.
        """
        own_name = (tool.tool_def.metadata or {}).get(_NAME_KEY, name)
        approver = None
        if self._asking == "framework":
            reasons = needs_asking(self._session, own_name, tool_args)
            if reasons is not None and not ctx.tool_call_approved:
                raise ApprovalRequired(metadata={"reasons": list(reasons)})
            approver = AllowAll() if ctx.tool_call_approved else None
        result = await call_session_tool(
            self._session, own_name, tool_args, call_id=ctx.tool_call_id, approver=approver
        )
        if result.is_error:
            raise (ModelRetry if result.recoverable else ToolFailed)(result.content)
        pictures = [BinaryContent(image.data, media_type=image.mime) for image in images(result)]
        return ToolReturn(
            return_value=result.content, content=pictures or None, metadata={"aisotools": result}
        )


class PydanticAITool:
    """A pydantic-ai tool in our registry; it runs on the host."""

    def __init__(self, tool: Tool[Any], *, effect: Effect | str | None = None, deps: Any = None) -> None:
        """Wrap `tool`.

        Args:
            tool: The tool. If it requires approval, every call is asked about.
            effect: Effect of every call; None for what the tool's metadata declares, as in
                `metadata={"effect": Effect.READ_ONLY}`. Texts in metadata are shown and not relied on.
                Without a declaration every call needs approval, in mode `auto` too.
            deps: Value of `ctx.deps` in its function.

        Raises:
            UsageError: If `tool` is not a pydantic-ai tool, or `effect` is not an effect.
        """
        if not isinstance(tool, Tool):
            raise UsageError(f"{type(tool).__name__} is not a pydantic-ai Tool. Give Tool(function).")
        self._tool = tool
        self.parameters_schema()  # raises now for what no call could use
        self.effect = find_effect(tool.name, effect, tool.metadata)
        self.hints = find_hints(tool.metadata)
        self._deps = deps
        self.source = f"pydantic-ai: {tool.function.__module__}.{tool.function.__qualname__}"

    @property
    def name(self) -> str:
        """Name of the tool."""
        return self._tool.name

    @property
    def description(self) -> str:
        """Description for a model."""
        return self._tool.description or ""

    def parameters_schema(self) -> Mapping[str, Json]:
        """Return the JSON Schema of the arguments."""
        return check_schema(self.name, self._tool.function_schema.json_schema)

    def validate_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        """Validate as far as that is cheap with a stranger's schema. pydantic-ai validates again."""
        return validate_against_untrusted(self.parameters_schema(), arguments, self.name)

    @property
    def declaration(self) -> Declaration:
        """`constant` if the effect of its calls is declared, else `none`."""
        return "none" if self.effect is None else "constant"

    def classify(self, arguments: Mapping[str, Json]) -> Effect:  # noqa: ARG002 - named by the contract
        """Return the effect of a call."""
        return self.effect or Effect.LOCAL_MUTATION

    def gather_facts(self, arguments: Mapping[str, Json]) -> Facts:
        """Return the facts of a call: uncertain, and so asked about, if the tool requires approval."""
        return Facts(effect=self.classify(arguments), certain=not self._tool.requires_approval)

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Validate the arguments as pydantic-ai does, and call the function."""
        schema = self._tool.function_schema
        ctx: RunContext[Any] = RunContext(
            deps=self._deps, model=TestModel(), usage=RunUsage(), tool_call_id=context.call_id
        )
        try:
            value = await schema.call(schema.validator.validate_python(dict(arguments)), ctx)
        except ModelRetry as error:
            return ToolResult.error(error.message)
        except ToolFailed as error:
            return ToolResult.error(error.message, recoverable=False)
        if isinstance(value, ToolReturn):
            value = value.return_value
        return to_result(value, None, context)
