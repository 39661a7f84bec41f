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
from aisotools.core.protocols import Approver, ToolContext
from aisotools.core.types import Approval, ApprovalRequest, Effect, Json, ToolResult
from aisotools.integrations.calls import (
    Asking,
    Image,
    call,
    call_blocking,
    check_asking,
    images,
    needs_asking,
)
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.tools.export import Export, exported_name
from aisotools.tools.registry import ToolRegistry
from aisotools.tools.results import to_result


class LangChainSessionTool(BaseTool):
    """One tool of a session as LangChain has tools; every call passes the session's gate."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    args_schema: ArgsSchema | None = None
    response_format: str = "content_and_artifact"  # type: ignore[assignment]  # narrower than the base
    handle_tool_error: Any = True
    session: Session
    export: Export
    asking: str = "session"

    def _run(self, *args: Any, **kwargs: Any) -> tuple[Any, ToolResult]:
        arguments = self._restored(args, kwargs)
        approver = self._approver(arguments)
        return _answer(call_blocking(self.session, self.export.tool_name, arguments, approver=approver))

    async def _arun(self, *args: Any, **kwargs: Any) -> tuple[Any, ToolResult]:
        arguments = self._restored(args, kwargs)
        approver = self._approver(arguments)
        return _answer(await call(self.session, self.export.tool_name, arguments, approver=approver))

    def _restored(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Json]:
        names = list(self.export["function"]["parameters"].get("properties", {}))
        return self.export.restore({**dict(zip(names, args, strict=False)), **kwargs})

    def _approver(self, arguments: Mapping[str, Json]) -> Approver | None:
        """Who is asked: with `framework`, whoever resumes the interrupted graph."""
        if self.asking != "framework":
            return None
        reasons = needs_asking(self.session, self.export.tool_name, arguments)
        if reasons is None:
            return None
        from langgraph.types import interrupt

        told = {"tool": self.export.tool_name, "arguments": dict(arguments), "reasons": list(reasons)}
        return _Answered(interrupt(told))


class _Answered:
    """Gives the answer that the graph was resumed with."""

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


def _answer(result: ToolResult) -> tuple[Any, ToolResult]:
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
    """The tools of a session for LangChain.

    Args:
        session: Makes the calls. For `invoke` in another thread it must be open.
        registry: Which of its tools; all without it.
        asking: `framework` interrupts the LangGraph graph where somebody must be asked; resume it with
            `Command(resume=True)`, `False`, or `{"type": "edit", "arguments": {...}}`.
    """
    check_asking(asking)
    exports = (registry or session.registry).exports("openai", strict=False)
    return [
        LangChainSessionTool(
            name=exported_name(export),
            description=export["function"]["description"] or export.tool_name,
            args_schema=export["function"]["parameters"],
            session=session,
            export=export,
            asking=asking,
        )
        for export in exports
    ]


class LangChainTool:
    """A LangChain tool as one of ours; runs on the host, with the effect that it is given."""

    def __init__(self, tool: BaseTool, *, effect: Effect | None = None) -> None:
        """Take `tool`.

        Args:
            tool: The tool.
            effect: What every call may do; `LOCAL_MUTATION` without it, so every call is asked about.
        """
        if not isinstance(tool, BaseTool):
            raise UsageError(
                f"{type(tool).__name__} is no LangChain tool. Give one made by langchain's @tool."
            )
        self._tool, self.effect = tool, effect
        self.source = f"LangChain: {type(tool).__module__}.{type(tool).__qualname__}"

    @property
    def name(self) -> str:
        """Its name."""
        return self._tool.name

    @property
    def description(self) -> str:
        """Its description."""
        return self._tool.description

    def parameters_schema(self) -> Mapping[str, Json]:
        """JSON Schema of its arguments."""
        schema: Any = self._tool.tool_call_schema
        found: dict[str, Json] = dict(schema) if isinstance(schema, dict) else schema.model_json_schema()
        return {"type": "object", **{key: value for key, value in found.items() if key != "description"}}

    def classify(self, arguments: Mapping[str, Json]) -> Effect:  # noqa: ARG002 - named by the contract
        """What a call may do."""
        return self.effect or Effect.LOCAL_MUTATION

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Call it as LangChain does."""
        try:
            value = await self._tool.ainvoke(dict(arguments))
        except ToolException as error:
            return ToolResult.error(str(error))
        return to_result(value, None, context)
