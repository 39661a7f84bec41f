from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from aisotools.agent.agent import Agent
from aisotools.agent.models.replay import RecordedTurn, ReplayModel, recorded_turns
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.core.events import conversation_of
from aisotools.core.exceptions import UsageError
from aisotools.core.messages import AssistantMessage, Message, ModelEvent, TextPart, ToolMessage
from aisotools.core.types import Effect, ToolDefinition
from aisotools.session.session import Session
from aisotools.testing.fakes import MockTool
from tests.agent.rules import assert_sound
from tests.conftest import OpenSession

SCRIPT: list[Any] = [("look", {"n": 1}), [("look", {"n": 2}), ("look", {"n": 3}), "Both."], "Seen."]


def look(results: Sequence[str] = ("a", "b", "c")) -> MockTool:
    return MockTool("look", effect=Effect.READ_ONLY, result=list(results))


async def recorded(session: Session, prompt: str = "Look.") -> tuple[Agent, list[RecordedTurn]]:
    agent = Agent(ScriptedModel(SCRIPT), session)
    await agent.run(prompt)
    return agent, recorded_turns(session.events, agent_id=agent.agent_id)


def bare(messages: Sequence[Message]) -> list[Any]:
    """What was said, without ids and names of models."""
    return [
        (m.name, m.content, m.is_error)
        if isinstance(m, ToolMessage)
        else (m.role, m.text, [(c.name, c.arguments) for c in getattr(m, "calls", ())])
        for m in messages
    ]


async def test_the_same_run_again(open_session: OpenSession) -> None:
    first, turns = await recorded(open_session(look()))
    session = open_session(look())
    model = ReplayModel(turns)
    again = Agent(model, session)
    result = await again.run("Look.")
    assert result.text == "Seen."
    assert bare(again.messages) == bare(first.messages)
    assert model.divergences == []
    assert_sound(again)


@pytest.mark.parametrize(
    ("results", "prompt", "step", "message"),
    [
        (("a", "b", "c"), "Look twice.", 1, "another prompt"),
        (("A", "b", "c"), "Look.", 2, "recorded 'a'"),
        (("a", "b", "C"), "Look.", 3, "another result of look"),
    ],
)
async def test_says_where_it_diverges(
    open_session: OpenSession, results: Sequence[str], prompt: str, step: int, message: str
) -> None:
    _, turns = await recorded(open_session(look()))
    strict = ReplayModel(turns)
    result = await Agent(strict, open_session(look(results))).run(prompt)
    assert result.outcome == "failed"
    assert result.reason.startswith(f"Step {step}: ")
    assert message in result.reason
    lenient = ReplayModel(turns, strict=False)
    result = await Agent(lenient, open_session(look(results))).run(prompt)
    assert result.text == "Seen."
    assert lenient.divergences[0].step == step


async def test_one_more_request_than_recorded(open_session: OpenSession) -> None:
    agent = Agent(ReplayModel([AssistantMessage((TextPart("a"),))]), open_session(look()))
    assert (await agent.run("go")).text == "a"
    result = await agent.run("more")
    assert (result.outcome, "holds 1 answers" in result.reason) == ("failed", True)


async def test_a_digest_alone_tells_that_something_differs(open_session: OpenSession) -> None:
    _, turns = await recorded(open_session(look()))
    digests = [RecordedTurn(answer=turn.answer, digest=turn.digest) for turn in turns]
    assert (await Agent(ReplayModel(digests), open_session(look())).run("Look.")).ok
    result = await Agent(ReplayModel(digests), open_session(look())).run("Other.")
    assert "digests differ" in result.reason


async def test_results_that_fail_now(open_session: OpenSession) -> None:
    _, turns = await recorded(open_session(look()))
    broken = MockTool("look", effect=Effect.READ_ONLY, raises=OSError("gone"))
    result = await Agent(ReplayModel(turns), open_session(broken)).run("Look.")
    assert "look failed, and it succeeded when recorded" in result.reason


async def test_from_events(open_session: OpenSession) -> None:
    session = open_session(look())
    agent, turns = await recorded(session)
    assert (
        repr(ReplayModel.from_events(session.events))
        == f"<ReplayModel 0 of {len(turns)} given, 0 divergences>"
    )
    assert conversation_of(session.events, agent.agent_id) == agent.messages


def test_refuses_what_is_no_turn() -> None:
    with pytest.raises(UsageError, match="Turn 1"):
        ReplayModel(["text"])  # type: ignore[list-item]  # the wrong type is the test


async def collect(stream: AsyncIterator[ModelEvent]) -> list[ModelEvent]:
    return [event async for event in stream]


class TestScripted:
    @pytest.mark.parametrize("turns", ["text", [3], [("look",)], [("look", "x")], [[("look", {}), 3]]])
    def test_refuses(self, turns: Any) -> None:
        with pytest.raises(UsageError, match=r"ScriptedModel|Turn 0"):
            ScriptedModel(turns)

    async def test_remembers_what_it_was_asked(self) -> None:
        model = ScriptedModel(["a"])
        tools = [ToolDefinition("look", "Look.", {"type": "object"})]
        await collect(model.request([], tools, instructions="Be kind."))
        assert [tool.name for tool in model.requests[0].tools] == ["look"]
        assert model.requests[0].instructions == "Be kind."

    async def test_a_function_of_the_conversation(self, open_session: OpenSession) -> None:
        model = ScriptedModel(
            [("look", {}), lambda messages: f"It says {getattr(messages[-1], 'content', None)}."]
        )
        result = await Agent(model, open_session(look())).run("go")
        assert result.text == "It says a."
