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
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Effect, Json, ToolResult
from aisotools.integrations.calls import Asking, call, check_asking, images, needs_asking
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.tools.adapter import declared_effect
from aisotools.tools.export import exported_name
from aisotools.tools.registry import ToolRegistry
from aisotools.tools.results import to_result

_ANYTHING = SchemaValidator(core_schema.any_schema())  # the gate validates, with messages for a model


_OWN_NAME = "aisotools_name"


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
            session: Makes the calls; it is opened by the first one and closed by whoever made it.
            registry: Which of its tools; all without it.
            id: Names the toolset.
            asking: `framework` ends the run with pydantic-ai's `DeferredToolRequests` where somebody must be
                asked, instead of asking by the session's own approver.
        """
        check_asking(asking)
        self._session, self._registry, self._id, self._asking = session, registry, id, asking

    @property
    def id(self) -> str | None:
        """The toolset's name."""
        return self._id

    def definitions(self) -> list[ToolDefinition]:
        """The tools, as pydantic-ai describes tools."""
        registry = self._registry or self._session.registry
        described = []
        for export, tool in zip(registry.exports("openai", strict=False), registry.list(), strict=True):
            effect = declared_effect(tool)
            described.append(
                ToolDefinition(
                    name=exported_name(export),
                    description=tool.description,
                    parameters_json_schema=dict(export["function"]["parameters"]),
                    sequential=effect is not Effect.READ_ONLY,
                    metadata={_OWN_NAME: tool.name, "effect": str(effect) if effect else None},
                )
            )
        return described

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The tools by the names that the model is told."""
        return {
            one.name: ToolsetTool(
                toolset=self, tool_def=one, max_retries=ctx.max_retries, args_validator=_ANYTHING
            )
            for one in self.definitions()
        }

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[Any],
        tool: ToolsetTool[Any],
    ) -> Any:
        """Pass a call through the gate.

        Raises:
            ModelRetry: For what the model can mend.
            ToolFailed: For what it cannot, denials among it.
            ApprovalRequired: If the framework is to ask.
        """
        own = (tool.tool_def.metadata or {}).get(_OWN_NAME, name)
        approver = None
        if self._asking == "framework":
            reasons = needs_asking(self._session, own, tool_args)
            if reasons is not None and not ctx.tool_call_approved:
                raise ApprovalRequired(metadata={"reasons": list(reasons)})
            approver = AllowAll() if ctx.tool_call_approved else None
        result = await call(self._session, own, tool_args, call_id=ctx.tool_call_id, approver=approver)
        if result.is_error:
            raise (ModelRetry if result.recoverable else ToolFailed)(result.content)
        pictures = [BinaryContent(image.data, media_type=image.mime) for image in images(result)]
        return ToolReturn(
            return_value=result.content, content=pictures or None, metadata={"aisotools": result}
        )


class PydanticAITool:
    """A pydantic-ai tool as one of ours; runs on the host, with the effect that it is given."""

    def __init__(self, tool: Tool[Any], *, effect: Effect | None = None, deps: Any = None) -> None:
        """Take `tool`.

        Args:
            tool: The tool.
            effect: What every call may do; `LOCAL_MUTATION` without it, so every call is asked about.
            deps: What its function finds as `ctx.deps`.
        """
        if not isinstance(tool, Tool):
            raise UsageError(f"{type(tool).__name__} is no pydantic-ai Tool. Give Tool(function).")
        self._tool, self.effect, self._deps = tool, effect, deps
        self.source = f"pydantic-ai: {tool.function.__module__}.{tool.function.__qualname__}"

    @property
    def name(self) -> str:
        """Its name."""
        return self._tool.name

    @property
    def description(self) -> str:
        """Its description."""
        return self._tool.description or ""

    def parameters_schema(self) -> Mapping[str, Json]:
        """JSON Schema of its arguments."""
        return self._tool.function_schema.json_schema

    def classify(self, arguments: Mapping[str, Json]) -> Effect:  # noqa: ARG002 - named by the contract
        """What a call may do."""
        return self.effect or Effect.LOCAL_MUTATION

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Call the function with arguments as pydantic-ai validates them."""
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
