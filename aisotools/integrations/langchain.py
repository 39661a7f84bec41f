"""The tools of a session for LangChain and LangGraph, and a LangChain tool in our registry.

agent = create_agent(model, tools=session_tools(session))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.tools import BaseTool, ToolException
from langchain_core.tools.base import ArgsSchema
from pydantic import ConfigDict

from aisotools.core.exceptions import UsageError
from aisotools.core.protocols import Approver, Declaration, ToolContext
from aisotools.core.types import Approval, ApprovalRequest, Effect, Json, ToolResult
from aisotools.integrations.calls import (
    EFFECT_KEY,
    Asking,
    Image,
    call_blocking,
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
from aisotools.tools.export import Export, exported_name
from aisotools.tools.registry import ToolRegistry
from aisotools.tools.results import to_result
from aisotools.tools.validation import validate_against_untrusted


class LangChainSessionTool(BaseTool):
    """A session's tool for LangChain. Every call passes the session's gate."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    args_schema: ArgsSchema | None = None
    response_format: str = "content_and_artifact"  # type: ignore[assignment]  # narrower than the base
    handle_tool_error: Any = True
    session: Session
    export: Export
    asking: str = "session"

    def _run(self, *args: Any, **kwargs: Any) -> tuple[Any, ToolResult]:
        arguments = self._restore_arguments(args, kwargs)
        approver = self._approver(arguments)
        return _convert_result(
            call_blocking(self.session, self.export.tool_name, arguments, approver=approver)
        )

    async def _arun(self, *args: Any, **kwargs: Any) -> tuple[Any, ToolResult]:
        arguments = self._restore_arguments(args, kwargs)
        approver = self._approver(arguments)
        return _convert_result(
            await call_session_tool(self.session, self.export.tool_name, arguments, approver=approver)
        )

    def _restore_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Json]:
        names = list(self.export["function"]["parameters"].get("properties", {}))
        return self.export.restore({**dict(zip(names, args, strict=False)), **kwargs})

    def _approver(self, arguments: Mapping[str, Json]) -> Approver | None:
        """Return the approver of a call: with `framework`, the answer that the graph is resumed with."""
        if self.asking != "framework":
            return None
        reasons = needs_asking(self.session, self.export.tool_name, arguments)
        if reasons is None:
            return None
        from langgraph.types import interrupt

        # `interrupt` raises the first time. When the graph is resumed, the tool runs again from its start,
        # and `interrupt` returns the answer.
        question = {"tool": self.export.tool_name, "arguments": dict(arguments), "reasons": list(reasons)}
        return _ResumeApprover(interrupt(question))


class _ResumeApprover:
    """Approves or denies by the value that a graph was resumed with."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    async def ask(self, request: ApprovalRequest) -> Approval:
        answer = self._answer
        if isinstance(answer, Mapping):
            kind = answer.get("type", answer.get("decision"))
            edited = answer.get("arguments", answer.get("args"))
            if kind in {"edit", "approve"} and isinstance(edited, Mapping):
                return Approval("approve", arguments=dict(edited))
            if kind in {"approve", "accept"}:
                return await AllowAll().ask(request)
            return Approval("deny", reason=str(answer.get("message", answer.get("reason", ""))))
        return Approval("approve" if answer in {True, "approve", "accept"} else "deny")


def _convert_result(result: ToolResult) -> tuple[Any, ToolResult]:
    if result.is_error:
        raise ToolException(result.content)
    pictures = list(images(result))
    if not pictures:
        return result.content, result
    return [{"type": "text", "text": result.content}, *map(_block, pictures)], result


def _block(image: Image) -> dict[str, Any]:
    return {"type": "image", "base64": image.base64, "mime_type": image.mime}


def session_tools(
    session: Session, *, registry: ToolRegistry | None = None, asking: Asking = "session"
) -> list[BaseTool]:
    """Return the tools of a session for LangChain.

    Args:
        session: Makes the calls. For `invoke` in another thread it must be open.
        registry: Tools to offer; None for all tools of the session.
        asking: `framework` interrupts the LangGraph graph at a call that needs approval; resume it with
            `Command(resume=True)`, `False`, or `{"type": "edit", "arguments": {...}}`.
    """
    check_asking(asking)
    offered = registry or session.registry
    effects = [declared_effect(tool) for tool in offered.list()]
    exports = offered.exports("openai", strict=False)
    return [
        LangChainSessionTool(
            name=exported_name(export),
            description=export["function"]["description"] or export.tool_name,
            args_schema=export["function"]["parameters"],
            session=session,
            export=export,
            asking=asking,
            metadata=None if effect is None else {EFFECT_KEY: effect},
        )
        for export, effect in zip(exports, effects, strict=True)
    ]


class LangChainTool:
    """A LangChain tool in our registry; it runs on the host."""

    def __init__(self, tool: BaseTool, *, effect: Effect | str | None = None) -> None:
        """Wrap `tool`.

        Args:
            tool: The tool.
            effect: Effect of every call; None for what the tool's metadata declares, as in
                `metadata={"effect": Effect.READ_ONLY}`. Texts in metadata are shown and not relied on.
                Without a declaration every call needs approval, in mode `auto` too.

        Raises:
            UsageError: If `tool` is not a LangChain tool, or `effect` is not an effect.
        """
        if not isinstance(tool, BaseTool):
            raise UsageError(
                f"{type(tool).__name__} is not a LangChain tool. Give one made by langchain's @tool."
            )
        self._tool = tool
        self.parameters_schema()  # raises now for what no call could use
        self.effect = find_effect(tool.name, effect, tool.metadata)
        self.hints = find_hints(tool.metadata)
        self.source = f"LangChain: {type(tool).__module__}.{type(tool).__qualname__}"

    @property
    def name(self) -> str:
        """Name of the tool."""
        return self._tool.name

    @property
    def description(self) -> str:
        """Description for a model."""
        return self._tool.description

    def parameters_schema(self) -> Mapping[str, Json]:
        """Return the JSON Schema of the arguments."""
        schema: Any = self._tool.tool_call_schema
        fields: dict[str, Json] = dict(schema) if isinstance(schema, dict) else schema.model_json_schema()
        return check_schema(
            self.name,
            {"type": "object", **{key: value for key, value in fields.items() if key != "description"}},
        )

    def validate_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        """Validate as far as that is cheap with a stranger's schema. LangChain validates again."""
        return validate_against_untrusted(self.parameters_schema(), arguments, self.name)

    @property
    def declaration(self) -> Declaration:
        """`constant` if the effect of its calls is declared, else `none`."""
        return "none" if self.effect is None else "constant"

    def classify(self, arguments: Mapping[str, Json]) -> Effect:  # noqa: ARG002 - named by the contract
        """Return the effect of a call."""
        return self.effect or Effect.LOCAL_MUTATION

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Invoke the tool as LangChain does."""
        try:
            value = await self._tool.ainvoke(dict(arguments))
        except ToolException as error:
            return ToolResult.error(str(error))
        return to_result(value, None, context)
