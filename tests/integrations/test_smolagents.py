"""The tools of a session under smolagents."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("smolagents")

from smolagents import AgentImage, ToolCallingAgent
from smolagents.models import (
    ChatMessage,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    MessageRole,
    Model,
)

from aisotools.core.types import Effect, ToolResult
from aisotools.core.untrusted import UNTRUSTED, mark_untrusted
from aisotools.integrations.smolagents import session_tools
from aisotools.policy.approvers import AllowAll, DenyAll
from aisotools.testing.fakes import MockTool
from tests.conftest import OpenSession
from tests.integrations.tools import dotted_area, picture, shape_area


class Calling(Model):  # type: ignore[misc]  # smolagents is untyped
    """Makes one call, then answers with what it saw of it."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.wanted, self.asked = (name, arguments), 0
        self.last = ""

    def generate(self, messages: Any, **kwargs: Any) -> ChatMessage:
        self.asked += 1
        self.last = str(messages[-1])
        name, arguments = self.wanted if self.asked == 1 else ("final_answer", {"answer": self.last})
        function = ChatMessageToolCallFunction(name=name, arguments=arguments)
        call = ChatMessageToolCall(id=f"c{self.asked}", type="function", function=function)
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=[call])


async def run(session: Any, name: str, arguments: dict[str, Any]) -> str:
    await session.start()
    helper = ToolCallingAgent(
        tools=session_tools(session), model=Calling(name, arguments), max_steps=3, verbosity_level=0
    )
    return str(await asyncio.to_thread(helper.run, "go"))


async def test_a_call_passes_the_gate_and_its_schema_survives(open_session: OpenSession) -> None:
    session = open_session(shape_area, approver=AllowAll())
    (one,) = session_tools(session)
    assert one.inputs == {"shape": {"type": "any", "description": "Its measures."}}
    assert "6.0" in await run(session, "shape_area", {"shape": {"width": 2, "height": 3}})
    assert [event.kind for event in session.events if event.call_id][-1] == "call_finished"


async def test_errors_reach_the_model_in_words(open_session: OpenSession) -> None:
    session = open_session(shape_area, MockTool("never", effect=Effect.DESTRUCTIVE), approver=DenyAll())
    assert "width" in await run(session, "shape_area", {"shape": {"width": "x"}})
    assert "not run" in await run(session, "never", {})


async def test_names_and_pictures(open_session: OpenSession) -> None:
    session = open_session(dotted_area, picture, approver=AllowAll())
    assert "9" in await run(session, "geo_area", {"side": 3})
    _, shown = session_tools(session)
    answer = await asyncio.to_thread(shown)
    assert isinstance(answer, AgentImage)


async def test_call_on_the_sessions_own_thread_is_refused_with_advice(open_session: OpenSession) -> None:
    session = open_session(dotted_area, approver=AllowAll())
    await session.start()
    (one,) = session_tools(session)
    with pytest.raises(Exception, match="would block the session's own loop"):
        one(side=3)


async def test_text_of_strangers_keeps_its_marks(open_session: OpenSession) -> None:
    page = ToolResult(
        content=mark_untrusted("hello", "page"),
        kind="json",
        value={"text": "hello"},
        metadata={UNTRUSTED: True},
    )
    session = open_session(MockTool("page", result=page), approver=AllowAll())
    await session.start()
    (one,) = session_tools(session)
    assert await asyncio.to_thread(one) == page.content
