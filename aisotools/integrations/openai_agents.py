"""The tools of a session for the OpenAI Agents SDK.

agent = Agent(name="Helper", tools=session_tools(session))
"""

from __future__ import annotations

import json
from typing import Any

from agents import FunctionTool, ToolOutputImage, ToolOutputText

from aisotools.integrations.calls import Asking, Image, call_session_tool, check_asking, images, needs_asking
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.tools.export import Export, exported_name
from aisotools.tools.registry import ToolRegistry


def session_tools(
    session: Session,
    *,
    registry: ToolRegistry | None = None,
    asking: Asking = "session",
    strict: bool | None = None,
) -> list[FunctionTool]:
    """Return the tools of a session for the OpenAI Agents SDK. Every call passes the session's gate.

    Args:
        session: Makes the calls. The first call opens it; closing it is the caller's task.
        registry: Tools to offer; None for all tools of the session.
        asking: `framework` interrupts the run at a call that needs approval; approve or reject it in the
            run's state.
        strict: As for `ToolRegistry.exports`.
    """
    check_asking(asking)
    exports = (registry or session.registry).exports("openai", strict=strict)
    return [_tool(session, export, asking) for export in exports]


def _tool(session: Session, export: Export, asking: str) -> FunctionTool:
    function = export["function"]

    async def invoke(context: Any, arguments: str) -> Any:
        try:
            parsed = json.loads(arguments or "{}")
        except ValueError as error:
            return f"The arguments are not JSON: {error}. Call again with an object."
        if not isinstance(parsed, dict):
            return f"The arguments are not an object: {arguments[:200]!r}. Call again with an object."
        # With `needs_approval` the SDK asked before it called this function.
        approver = AllowAll() if asking == "framework" else None
        result = await call_session_tool(
            session,
            export.tool_name,
            export.restore(parsed),
            # The SDK passes a ToolContext, which has the id, or a plain RunContextWrapper, which has none.
            call_id=getattr(context, "tool_call_id", None),
            approver=approver,
        )
        pictures = [] if result.is_error else list(images(result))
        if not pictures:
            return result.content
        return [ToolOutputText(text=result.content), *map(_output, pictures)]

    async def needs_approval(_context: Any, arguments: dict[str, Any], _call_id: str) -> bool:
        return needs_asking(session, export.tool_name, export.restore(arguments)) is not None

    return FunctionTool(
        name=exported_name(export),
        description=function["description"],
        params_json_schema=function["parameters"],
        on_invoke_tool=invoke,
        strict_json_schema=function.get("strict", False),
        needs_approval=needs_approval if asking == "framework" else False,
    )


def _output(image: Image) -> ToolOutputImage:
    return ToolOutputImage(image_url=f"data:{image.mime};base64,{image.base64}")
