"""What holds after every run of an agent, however it ended; used by several tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence

from aisotools.agent.agent import Agent
from aisotools.core.events import (
    AgentFinished,
    AgentStarted,
    CallFinished,
    CallRequested,
    SessionEvent,
    conversation_of,
)
from aisotools.core.messages import AssistantMessage, Message, ToolMessage
from tests.waiting import eventually


def assert_whole(messages: Sequence[Message]) -> None:
    """Every call is answered once, in order, before anybody speaks again."""
    open_calls: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert open_calls, f"{message.call_id} answers no call"
            assert message.call_id == open_calls.pop(0)
            continue
        assert not open_calls, f"{open_calls} were never answered"
        if isinstance(message, AssistantMessage):
            open_calls = [call.id for call in message.calls]
    assert not open_calls, f"{open_calls} were never answered"
    answered = [m.call_id for m in messages if isinstance(m, ToolMessage)]
    assert len(answered) == len(set(answered)), "a call was answered twice"


def assert_recorded(events: Sequence[SessionEvent], agent_id: str) -> None:
    """Every run and every call that began is recorded to its end, once."""
    requested = [event.call_id for event in events if isinstance(event, CallRequested)]
    finished = [event.call_id for event in events if isinstance(event, CallFinished)]
    assert Counter(requested) == Counter(finished)
    started = [event for event in events if isinstance(event, AgentStarted) and event.agent_id == agent_id]
    ended = [event for event in events if isinstance(event, AgentFinished) and event.agent_id == agent_id]
    assert len(started) <= len(ended) <= len(started) + 1  # one that could not begin is told to have ended


def assert_sound(agent: Agent) -> None:
    """Everything above, and that the record tells the same conversation."""
    assert_whole(agent.messages)
    assert_recorded(agent.session.events, agent.agent_id)
    assert conversation_of(agent.session.events, agent.agent_id) == agent.messages


async def assert_no_orphans(before: set[asyncio.Task[object]]) -> None:
    """No task is left over from what was cancelled."""
    with contextlib.suppress(AssertionError):
        await eventually(lambda: not asyncio.all_tasks() - before)
    assert not asyncio.all_tasks() - before
