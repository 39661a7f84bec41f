"""The tools of a session under pydantic-ai, driven by its own function model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import (
    Agent,
    BinaryContent,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    Tool,
    ToolDenied,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from aisotools.core.exceptions import UsageError
from aisotools.core.types import Effect, ToolResult
from aisotools.integrations.pydantic_ai import PydanticAITool, SessionToolset
from aisotools.policy.approvers import AllowAll, DenyAll
from aisotools.testing.fakes import MockTool
from aisotools.tools.registry import ToolRegistry
from tests.conftest import OpenSession
from tests.integrations.tools import PNG, dotted_area, picture, shape_area


def calling(name: str, arguments: dict[str, Any], *, times: int = 1) -> FunctionModel:
    """A model that makes one call, as often as it is asked again, and then says what it got."""
    left = times

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal left
        last = messages[-1].parts[-1]
        if left and (isinstance(last, RetryPromptPart) or not isinstance(last, ToolReturnPart)):
            left -= 1
            return ModelResponse(parts=[ToolCallPart(name, arguments, tool_call_id=f"call-{left}")])
        contents = [str(part.content) for part in messages[-1].parts if hasattr(part, "content")]
        return ModelResponse(parts=[TextPart(" | ".join(contents))])

    return FunctionModel(answer)


async def test_a_call_passes_the_gate_and_its_schema_survives(open_session: OpenSession) -> None:
    session = open_session(shape_area, approver=AllowAll())
    toolset = SessionToolset(session)
    seen: list[AgentInfo] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(info)
        return ModelResponse(parts=[TextPart("ok")])

    agent = Agent(FunctionModel(answer), toolsets=[toolset])
    await agent.run("hi")
    (definition,) = seen[0].function_tools
    assert definition.parameters_json_schema == shape_area.parameters_schema()
    assert definition.description == shape_area.description
    model = calling("shape_area", {"shape": {"width": 2, "height": 3}})
    result = await Agent(model, toolsets=[toolset]).run("area?")
    assert result.output == "6.0"
    assert session.events[-1].call_id == "call-0"


async def test_recoverable_errors_are_retries_and_others_failures(
    open_session: OpenSession,
) -> None:
    session = open_session(shape_area, MockTool("never", effect=Effect.DESTRUCTIVE), approver=DenyAll())
    model = calling("shape_area", {"shape": {"width": "x"}})
    result = await Agent(model, toolsets=[SessionToolset(session)], retries=2).run("area?")
    assert "width" in result.output
    denied = await Agent(calling("never", {}), toolsets=[SessionToolset(session)]).run("go")
    assert "denied" in denied.output or "not run" in denied.output


async def test_a_dotted_name_and_a_picture(open_session: OpenSession) -> None:
    session = open_session(dotted_area, picture, approver=AllowAll())
    toolset = SessionToolset(session)
    result = await Agent(calling("geo_area", {"side": 3}), toolsets=[toolset]).run("go")
    assert result.output == "9"
    seen: list[Any] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("picture", {})])
        seen.extend(part for message in messages for part in message.parts)
        return ModelResponse(parts=[TextPart("seen")])

    await Agent(FunctionModel(answer), toolsets=[toolset]).run("show")
    prompts = [
        part.content for part in seen if part.part_kind == "user-prompt" and not isinstance(part.content, str)
    ]
    (image,) = [one for content in prompts for one in content if isinstance(one, BinaryContent)]
    assert (image.data, image.media_type) == (PNG, "image/png")


@pytest.mark.parametrize("approve", [True, False])
async def test_the_framework_asks_where_the_session_would(open_session: OpenSession, approve: bool) -> None:
    change = MockTool("change", effect=Effect.LOCAL_MUTATION, runs_in="sandbox", result="changed")
    session = open_session(change, approver=DenyAll())
    agent = Agent(
        calling("change", {}),
        toolsets=[SessionToolset(session, asking="framework")],
        output_type=[str, DeferredToolRequests],
    )
    first = await agent.run("go")
    assert isinstance(first.output, DeferredToolRequests)
    (request,) = first.output.approvals
    assert first.output.metadata[request.tool_call_id]["reasons"]
    answers = DeferredToolResults(approvals={request.tool_call_id: True if approve else ToolDenied("no")})
    second = await agent.run(message_history=first.all_messages(), deferred_tool_results=answers)
    assert second.output == ("changed" if approve else "no")


async def test_an_agent_on_another_loop_and_in_a_thread_works(open_session: OpenSession) -> None:
    session = open_session(shape_area, approver=AllowAll())
    await session.start()
    agent = Agent(
        calling("shape_area", {"shape": {"width": 2, "height": 3}}), toolsets=[SessionToolset(session)]
    )
    result = await asyncio.to_thread(lambda: asyncio.run(agent.run("area?")))
    assert result.output == "6.0"


async def test_cancelling_the_run_cancels_the_call(open_session: OpenSession) -> None:
    started = asyncio.Event()

    async def endless(_arguments: Any, _context: Any) -> ToolResult:
        started.set()
        await asyncio.sleep(30)
        raise AssertionError("it is cancelled before")

    session = open_session(MockTool("wait", effect=Effect.READ_ONLY, result=endless))
    agent = Agent(calling("wait", {}), toolsets=[SessionToolset(session)])
    run = asyncio.ensure_future(agent.run("go"))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert session.events[-1].kind == "call_finished"


async def test_their_tool_in_our_registry(open_session: OpenSession) -> None:
    def greet(ctx: RunContext[str], name: str, loud: bool = False) -> str:
        """Greet somebody.

        Args:
            name: Whom.
            loud: Whether to shout.
        """
        return f"{ctx.deps} {name}{'!' if loud else ''}"

    theirs = PydanticAITool(Tool(greet), effect=Effect.READ_ONLY, deps="Hello")
    assert (
        ToolRegistry([theirs]).definitions()[0]["parameters"]["properties"]["name"]["description"] == "Whom."
    )
    session = open_session(theirs)
    assert (await session.call("greet", {"name": "Ada", "loud": True})).content == "Hello Ada!"
    wrong = await session.call("greet", {"nam": "Ada"})
    assert wrong.is_error
    asked = open_session(PydanticAITool(Tool(greet)), approver=DenyAll())
    assert (await asked.call("greet", {"name": "Ada"})).error_kind == "denied"
    with pytest.raises(UsageError, match="not a pydantic-ai Tool"):
        PydanticAITool(greet)  # type: ignore[arg-type]  # what a person might give
