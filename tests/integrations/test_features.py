"""The table of what holds on which dialect and bridge: every cell is tried, and the file says the same.

Rewrite it with: AISOTOOLS_REWRITE=1 python -m pytest tests/integrations/test_features.py
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")
pytest.importorskip("pydantic_ai")
pytest.importorskip("langchain_core")
pytest.importorskip("langgraph")
pytest.importorskip("agents")
pytest.importorskip("smolagents")

from agents import FunctionTool, ToolOutputImage
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool as langchain_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from mcp import Client, types
from mcp.server.mcpserver import MCPServer
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, Tool as PydanticTool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from smolagents import AgentImage

from aisotools.core.concurrency import at_once
from aisotools.core.exceptions import UsageError
from aisotools.integrations import langchain, openai_agents, smolagents
from aisotools.integrations.mcp.api import SessionServer, serve_http
from aisotools.integrations.mcp.tools import from_mcp_result
from aisotools.integrations.pydantic_ai import PydanticAITool, SessionToolset
from aisotools.session.session import Session
from tests.conftest import OpenSession
from tests.integrations.features import FEATURES, Bridge, Seen, bridge_cell, dialect_cell
from tests.integrations.mcp.test_server import over_http

TABLE = Path(__file__).parents[1] / "data" / "features.md"
REWRITE = "AISOTOOLS_REWRITE=1 python -m pytest tests/integrations/test_features.py"
HEAD = f"""# What holds where

Every cell was found by trying it; the file is written by `{REWRITE}`.

- *yes*: it holds. Under a dialect, *changed* says the same in other words, *weakened* allows more than the
  tool does, *dropped* leaves something out, *not strict* gives strict mode up for that tool; what a model
  answers finds its way back in all of them, and `%tools NAME --format ...` shows what was changed.
- *in words*: the model reads it, and the framework has no place to tell the kind apart. *-*: not a matter of
  a dialect.
- Rows up to *context* are kinds of schemas: under a dialect, how they are told; under a bridge, a real call.
"""


def bare(name: str) -> str:
    return name.replace(".", "_")


class OverMcp(Bridge):
    """The library's own client, in memory and over HTTP."""

    name = "MCP"

    async def call(self, session: Session, name: str, arguments: dict[str, Any]) -> Seen:
        async with Client(SessionServer(session).server) as one:
            return self._seen(await one.call_tool(name, arguments))

    @staticmethod
    def _seen(result: types.CallToolResult) -> Seen:
        texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
        kind = str((result.meta or {}).get("aisotools/errorKind", "words")) if result.is_error else ""
        pictures = sum(isinstance(block, types.ImageContent) for block in result.content)
        return Seen(text="\n".join(texts), error=kind, pictures=pictures, value=result.structured_content)

    def schema(self, session: Session) -> Mapping[str, Any] | None:
        (form,) = session.registry.exports("mcp")
        return types.Tool.model_validate(form).input_schema

    async def progress(self, session: Session, name: str) -> list[str]:
        reports: list[str] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            reports.append(message or "")

        async with Client(SessionServer(session).server) as one:
            await one.call_tool(name, {}, progress_callback=on_progress)
        return reports

    async def asked(self, session: Session, name: str, arguments: dict[str, Any]) -> Seen:
        async def person(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
            return types.ElicitResult(action="accept", content={"approve": True})

        async with Client(SessionServer(session).server, elicitation_callback=person) as one:
            return self._seen(await one.call_tool(name, arguments))

    async def threaded(self, session: Session, name: str, arguments: dict[str, Any]) -> Seen:
        async with serve_http(session) as server:

            async def there() -> Seen:
                async with over_http(server) as one:
                    return self._seen(await one.call_tool(name, arguments))

            return await asyncio.to_thread(lambda: asyncio.run(there()))

    async def other(self, session: Session) -> Seen:
        theirs = MCPServer("theirs")

        @theirs.tool()
        def square(side: int) -> str:
            """Square."""
            return str(side * side)

        async with Client(theirs) as one:
            answer = await one.call_tool("square", {"side": 3})
            return Seen(text=at_once(from_mcp_result(answer.model_dump(by_alias=True), "theirs")).content)


class UnderPydanticAI(Bridge):
    """An agent with the library's function model."""

    name = "pydantic-ai"

    async def _run(self, session: Session, name: str, arguments: dict[str, Any], **options: Any) -> Any:
        agent: Agent[Any, Any] = Agent(
            _calling(bare(name), arguments), toolsets=[SessionToolset(session, **options)], output_type=OUTPUT
        )
        return agent, await agent.run("go")

    async def call(self, session: Session, name: str, arguments: dict[str, Any]) -> Seen:
        _, run = await self._run(session, name, arguments)
        return self._seen(run)

    @staticmethod
    def _seen(run: Any) -> Seen:
        error, pictures, value = "", 0, None
        for message in run.all_messages():
            for part in message.parts:
                if part.part_kind == "retry-prompt":
                    error = "recoverable"
                elif part.part_kind == "tool-return":
                    error = error or ("final" if part.outcome != "success" else "")
                    value = part.metadata["aisotools"].value if part.metadata else None
                elif part.part_kind == "user-prompt" and not isinstance(part.content, str):
                    pictures += sum(hasattr(one, "media_type") for one in part.content)
        return Seen(text=str(run.output), error=error, pictures=pictures, value=value)

    def schema(self, session: Session) -> Mapping[str, Any] | None:
        (one,) = SessionToolset(session).definitions()
        return one.parameters_json_schema

    async def asked(self, session: Session, name: str, arguments: dict[str, Any]) -> Seen:
        agent, first = await self._run(session, name, arguments, asking="framework")
        (request,) = first.output.approvals
        answers = DeferredToolResults(approvals={request.tool_call_id: True})
        run = await agent.run(message_history=first.all_messages(), deferred_tool_results=answers)
        return self._seen(run)

    async def threaded(self, session: Session, name: str, arguments: dict[str, Any]) -> Seen:
        return await asyncio.to_thread(lambda: asyncio.run(self.call(session, name, arguments)))

    async def other(self, session: Session) -> Seen:
        def square(side: int) -> int:
            """Square."""
            return side * side

        session.registry.register(PydanticAITool(PydanticTool(square)))
        return Seen(text=(await session.call("square", {"side": 3})).content)


OUTPUT: Any = [str, DeferredToolRequests]


def _calling(name: str, arguments: dict[str, Any]) -> FunctionModel:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart(name, arguments)])
        found = [str(part.content) for part in messages[-1].parts if hasattr(part, "content")]
        return ModelResponse(parts=[TextPart(" ".join(found))])

    return FunctionModel(answer)


class UnderLangChain(Bridge):
    """The tool itself, and LangGraph's node."""

    name = "LangChain"

    async def call(self, session: Session, name: str, arguments: dict[str, Any]) -> Seen:
        (one,) = langchain.session_tools(session)
        message = await one.ainvoke({"type": "tool_call", "id": "1", "name": one.name, "args": arguments})
        return self._seen(message)

    @staticmethod
    def _seen(message: ToolMessage) -> Seen:
        blocks = message.content if isinstance(message.content, list) else [message.content]
        pictures = sum(isinstance(block, dict) and block.get("type") == "image" for block in blocks)
        error = "words" if message.status == "error" else ""
        value = message.artifact.value if message.artifact is not None else None
        return Seen(text=str(message.content), error=error, pictures=pictures, value=value)

    def schema(self, session: Session) -> Mapping[str, Any] | None:
        (one,) = langchain.session_tools(session)
        exported: Any = one.tool_call_schema
        return {key: value for key, value in exported.items() if key not in {"title", "description"}}

    async def asked(self, session: Session, name: str, arguments: dict[str, Any]) -> Seen:
        graph: Any = StateGraph(MessagesState)
        graph.add_node("tools", ToolNode(langchain.session_tools(session, asking="framework")))
        graph.add_edge(START, "tools")
        graph.add_edge("tools", END)
        running, config = graph.compile(checkpointer=InMemorySaver()), {"configurable": {"thread_id": "1"}}
        wanted = AIMessage("", tool_calls=[{"id": "1", "name": name, "args": arguments}])
        state = await running.ainvoke({"messages": [wanted]}, config)
        assert state["__interrupt__"]
        state = await running.ainvoke(Command(resume=True), config)
        return self._seen(state["messages"][-1])

    async def threaded(self, session: Session, name: str, arguments: dict[str, Any]) -> Seen:
        (one,) = langchain.session_tools(session)
        return Seen(text=str(await asyncio.to_thread(one.invoke, arguments)))

    async def other(self, session: Session) -> Seen:
        @langchain_tool
        def square(side: int) -> int:
            """Square."""
            return side * side

        session.registry.register(langchain.LangChainTool(square))
        return Seen(text=(await session.call("square", {"side": 3})).content)


class UnderOpenAIAgents(Bridge):
    """The tool as the SDK's runner invokes it."""

    name = "OpenAI Agents"

    async def call(self, session: Session, name: str, arguments: dict[str, Any]) -> Seen:
        return await self._invoke(session, arguments)

    async def _invoke(self, session: Session, arguments: dict[str, Any], **options: Any) -> Seen:
        one = self._tool(session, **options)
        if "asking" in options:
            assert callable(one.needs_approval)
            nothing: Any = None
            assert await one.needs_approval(nothing, arguments, "1")
        unused: Any = None
        answer = await one.on_invoke_tool(unused, json.dumps(arguments))
        if isinstance(answer, str):
            return Seen(text=answer, error="words" if "not" in answer else "")
        return Seen(
            text=str(answer[0].text), pictures=sum(isinstance(one, ToolOutputImage) for one in answer)
        )

    @staticmethod
    def _tool(session: Session, **options: Any) -> FunctionTool:
        (one,) = openai_agents.session_tools(session, **options)
        return one

    def schema(self, session: Session) -> Mapping[str, Any] | None:
        return self._tool(session).params_json_schema

    async def asked(self, session: Session, name: str, arguments: dict[str, Any]) -> Seen:
        return await self._invoke(session, arguments, asking="framework")

    async def threaded(self, session: Session, name: str, arguments: dict[str, Any]) -> Seen:
        return await asyncio.to_thread(lambda: asyncio.run(self.call(session, name, arguments)))


class UnderSmolagents(Bridge):
    """The tool as an agent calls it, from a thread of its own."""

    name = "smolagents"
    blocks_a_thread = True

    async def call(self, session: Session, name: str, arguments: dict[str, Any]) -> Seen:
        await session.start()
        (one,) = smolagents.session_tools(session)
        try:
            answer = await asyncio.to_thread(lambda: one(**arguments))
        except (RuntimeError, UsageError) as error:
            return Seen(text=str(error), error="words")
        if isinstance(answer, AgentImage):
            return Seen(text="", pictures=1)
        return Seen(text=str(answer), value=answer if isinstance(answer, dict) else None)

    def schema(self, session: Session) -> Mapping[str, Any] | None:
        (one,) = smolagents.session_tools(session)
        inputs: Mapping[str, Any] = one.inputs
        return inputs

    async def threaded(self, session: Session, name: str, arguments: dict[str, Any]) -> Seen:
        return await self.call(session, name, arguments)


BRIDGES = (OverMcp(), UnderPydanticAI(), UnderLangChain(), UnderOpenAIAgents(), UnderSmolagents())
DIALECTS: Mapping[str, tuple[str, bool | None]] = {
    "OpenAI": ("openai", False),
    "OpenAI strict": ("openai", True),
    "Anthropic": ("anthropic", None),
    "Gemini": ("gemini", None),
    "MCP schema": ("mcp", None),
}


async def test_the_table_says_what_holds(open_session: OpenSession, tmp_path: Path) -> None:
    opened = 0

    def open_one(*tools: Any, **options: Any) -> Session:
        nonlocal opened
        opened += 1
        return open_session(*tools, workspace=tmp_path / f"w{opened}", **options)

    rows = []
    for feature in FEATURES:
        cells = [dialect_cell(feature, name, strict=strict) for name, strict in DIALECTS.values()]
        cells += [await bridge_cell(bridge, feature, open_one) for bridge in BRIDGES]
        rows.append(f"| {feature} | {' | '.join(cells)} |")
    heads = ["", *DIALECTS, *(bridge.name for bridge in BRIDGES)]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *rows]
    table = HEAD + "\n" + "\n".join(lines) + "\n"
    if os.environ.get("AISOTOOLS_REWRITE"):
        TABLE.write_text(table, "utf-8")
    assert TABLE.read_text("utf-8") == table, f"The table is out of date. Rewrite it with: {REWRITE}"
