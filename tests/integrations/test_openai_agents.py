"""The tools of a session under the OpenAI Agents SDK, driven by a model of the test's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, FunctionTool, Model, ModelResponse, RunConfig, Runner, Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from aisotools.core.types import Effect
from aisotools.integrations.openai_agents import session_tools
from aisotools.policy.approvers import AllowAll, DenyAll
from aisotools.testing.fakes import MockTool
from tests.conftest import OpenSession
from tests.integrations.tools import dotted_area, picture, shape_area

QUIET = RunConfig(tracing_disabled=True)


class Calling(Model):
    """Makes one call, then says what it got."""

    def __init__(self, name: str, arguments: str) -> None:
        self.name, self.arguments = name, arguments
        self.seen: list[Any] = []

    async def get_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002 - named by the SDK
        *args: Any,
        **kwargs: Any,
    ) -> ModelResponse:
        self.seen.append(input)
        last = input[-1] if isinstance(input, list) else input
        if isinstance(last, dict) and last.get("type") == "function_call_output":
            text = last["output"] if isinstance(last["output"], str) else json.dumps(last["output"])
            part = ResponseOutputText(text=text, type="output_text", annotations=[])
            answer: Any = ResponseOutputMessage(
                id="m", content=[part], role="assistant", status="completed", type="message"
            )
        else:
            answer = ResponseFunctionToolCall(
                arguments=self.arguments, call_id="c1", name=self.name, type="function_call"
            )
        return ModelResponse(output=[answer], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def agent(model: Calling, tools: list[FunctionTool]) -> Agent[Any]:
    return Agent(name="a", model=model, tools=list(tools))


async def test_a_call_passes_the_gate_and_its_schema_survives(open_session: OpenSession) -> None:
    session = open_session(shape_area, approver=AllowAll())
    (one,) = session_tools(session)
    assert one.params_json_schema == shape_area.parameters_schema()
    model = Calling("shape_area", '{"shape": {"width": 2, "height": 3}}')
    result = await Runner.run(agent(model, [one]), "area?", run_config=QUIET)
    assert result.final_output == "6.0"
    assert session.events[-1].call_id == "c1"


async def test_errors_reach_the_model_in_words(open_session: OpenSession) -> None:
    session = open_session(shape_area, MockTool("never", effect=Effect.DESTRUCTIVE), approver=DenyAll())
    tools = session_tools(session)
    for name, arguments, message in (
        ("shape_area", '{"shape": {"width": "x"}}', "width"),
        ("shape_area", "{no json", "not JSON"),
        ("shape_area", "[1]", "not an object"),
        ("never", "{}", "not run"),
    ):
        if name == "shape_area" and not arguments.startswith('{"'):
            (one, *_) = tools
            assert message in await one.on_invoke_tool(None, arguments)  # type: ignore[arg-type]  # unused there
            continue
        result = await Runner.run(agent(Calling(name, arguments), tools), "go", run_config=QUIET)
        assert message in result.final_output


async def test_names_and_pictures(open_session: OpenSession) -> None:
    session = open_session(dotted_area, picture, approver=AllowAll())
    tools = session_tools(session)
    result = await Runner.run(agent(Calling("geo_area", '{"side": 3}'), tools), "go", run_config=QUIET)
    assert result.final_output == "9"
    result = await Runner.run(agent(Calling("picture", "{}"), tools), "go", run_config=QUIET)
    assert "data:image/png;base64," in result.final_output


@pytest.mark.parametrize("approve", [True, False])
async def test_the_framework_asks_where_the_session_would(open_session: OpenSession, approve: bool) -> None:
    change = MockTool("change", effect=Effect.LOCAL_MUTATION, runs_in="sandbox", result="changed")
    session = open_session(change, approver=DenyAll())
    helper = agent(Calling("change", "{}"), session_tools(session, asking="framework"))
    first = await Runner.run(helper, "go", run_config=QUIET)
    (interruption,) = first.interruptions
    state = first.to_state()
    if approve:
        state.approve(interruption)
    else:
        state.reject(interruption)
    second = await Runner.run(helper, state, run_config=QUIET)
    assert ("changed" in second.final_output) is approve


async def test_a_run_in_a_thread_works(open_session: OpenSession) -> None:
    session = open_session(shape_area, approver=AllowAll())
    await session.start()
    helper = agent(Calling("shape_area", '{"shape": {"width": 2}}'), session_tools(session))

    def run() -> Any:
        return asyncio.run(Runner.run(helper, "area?", run_config=QUIET)).final_output

    assert await asyncio.to_thread(run) == "2.0"
