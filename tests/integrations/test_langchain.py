"""The tools of a session under LangChain and LangGraph."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

pytest.importorskip("langchain_core")

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import StructuredTool, ToolException, tool as their_tool

from aisotools.core.exceptions import UsageError
from aisotools.core.types import Effect, ToolResult
from aisotools.integrations.langchain import LangChainTool, session_tools
from aisotools.policy.approvers import AllowAll, DenyAll
from aisotools.testing.fakes import MockTool
from tests.conftest import OpenSession
from tests.integrations.tools import PNG, dotted_area, picture, shape_area


def tool_call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_call", "id": "c1", "name": name, "args": arguments}


async def test_a_call_passes_the_gate_and_its_schema_survives(open_session: OpenSession) -> None:
    session = open_session(shape_area, approver=AllowAll())
    (one,) = session_tools(session)
    assert one.tool_call_schema == {**shape_area.parameters_schema(), "description": shape_area.description}
    message = await one.ainvoke(tool_call("shape_area", {"shape": {"width": 2, "height": 3}}))
    assert isinstance(message, ToolMessage)
    assert (message.content, message.status, message.tool_call_id) == ("6.0", "success", "c1")
    assert isinstance(message.artifact, ToolResult)
    assert session.events[0].kind  # it went through the gate


async def test_errors_are_tool_messages_that_say_so(open_session: OpenSession) -> None:
    session = open_session(shape_area, MockTool("never", effect=Effect.DESTRUCTIVE), approver=DenyAll())
    area, never = session_tools(session)
    wrong = await area.ainvoke(tool_call("shape_area", {"shape": {"width": "x"}}))
    assert (wrong.status, "width" in wrong.content) == ("error", True)
    denied = await never.ainvoke(tool_call("never", {}))
    assert denied.status == "error"


async def test_names_and_pictures(open_session: OpenSession) -> None:
    session = open_session(dotted_area, picture, approver=AllowAll())
    area, shown = session_tools(session)
    assert area.name == "geo_area"
    assert (await area.ainvoke(tool_call("geo_area", {"side": 3}))).content == "9"
    text, image = (await shown.ainvoke(tool_call("picture", {}))).content
    assert text["type"] == "text"
    assert base64.b64decode(image["base64"]) == PNG
    assert image["mime_type"] == "image/png"


async def test_blocking_callers_work_from_a_thread_and_are_refused_on_the_loop(
    open_session: OpenSession,
) -> None:
    session = open_session(shape_area, approver=AllowAll())
    (one,) = session_tools(session)
    with pytest.raises(UsageError, match="not open yet"):
        await asyncio.to_thread(one.invoke, tool_call("shape_area", {"shape": {"width": 2}}))
    await session.start()
    message = await asyncio.to_thread(one.invoke, tool_call("shape_area", {"shape": {"width": 2}}))
    assert message.content == "2.0"
    with pytest.raises(UsageError, match=r"await session\.call"):
        one.invoke(tool_call("shape_area", {"shape": {"width": 2}}))


def graph_of(tools: list[Any]) -> Any:
    pytest.importorskip("langgraph")
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    return graph.compile(checkpointer=InMemorySaver())


@pytest.mark.parametrize(
    ("resume", "content"),
    [
        (True, "{'x': 1}"),
        ({"type": "approve"}, "{'x': 1}"),
        ({"type": "edit", "arguments": {"x": 2}}, "{'x': 2}"),
        (False, "denied"),
        ({"type": "reject", "message": "not now"}, "not now"),
        ("whatever", "denied"),
    ],
)
async def test_a_graph_is_interrupted_where_somebody_must_be_asked(
    open_session: OpenSession, resume: Any, content: str
) -> None:
    from langgraph.types import Command

    change = MockTool("change", effect=Effect.LOCAL_MUTATION, runs_in="sandbox", result=echo_arguments)
    session = open_session(change, approver=DenyAll())
    graph = graph_of(session_tools(session, asking="framework"))
    config = {"configurable": {"thread_id": "1"}}
    asked = AIMessage("", tool_calls=[{"id": "c1", "name": "change", "args": {"x": 1}}])
    state = await graph.ainvoke({"messages": [asked]}, config)
    (interrupt,) = state["__interrupt__"]
    assert interrupt.value["tool"] == "change"
    assert interrupt.value["reasons"]
    state = await graph.ainvoke(Command(resume=resume), config)
    assert content in state["messages"][-1].content


def echo_arguments(arguments: Any, _context: Any) -> str:
    return str(dict(arguments))


async def test_their_tool_in_our_registry(open_session: OpenSession) -> None:
    @their_tool
    def multiply(a: int, b: int = 2) -> int:
        """Multiply.

        Args:
            a: One number.
            b: Another.
        """
        if a < 0:
            raise ToolException("no negative numbers")
        return a * b

    ours = LangChainTool(multiply, effect=Effect.READ_ONLY)
    session = open_session(ours)
    assert (await session.call("multiply", {"a": 4})).value == 8
    failed = await session.call("multiply", {"a": -1})
    assert "no negative numbers" in failed.content
    assert (await session.call("multiply", {"c": 1})).is_error
    with pytest.raises(UsageError, match="not a LangChain tool"):
        LangChainTool(5)  # type: ignore[arg-type]  # what a person might give


async def test_schemas_of_strangers_are_bounded(open_session: OpenSession) -> None:
    def stranger(schema: dict[str, Any]) -> LangChainTool:
        async def work(**_: Any) -> str:
            return "done"

        return LangChainTool(
            StructuredTool(name="theirs", description="d", args_schema=schema, coroutine=work)
        )

    deep: dict[str, Any] = {"type": "object"}
    for _ in range(100):
        deep = {"type": "object", "properties": {"x": deep}}
    wide = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20_000)}}
    for schema in (deep, wide, {"type": "object", "properties": {"x": {"$ref": "file:///etc/passwd"}}}):
        with pytest.raises(UsageError, match="'theirs' cannot be taken from its framework: the schema"):
            stranger(schema)
    pattern = {"type": "string", "pattern": "^(?=a)(a+)+$"}
    tool = stranger({"type": "object", "properties": {"s": pattern}, "required": ["s"]})
    session = open_session(tool, approver=AllowAll())
    assert (await session.call("theirs", {"s": "a" * 40 + "!"})).content == "done"
    assert "s is missing" in (await session.call("theirs", {})).content
