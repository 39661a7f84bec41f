"""What of an agent's events is written down, and the conversation that events tell. Pure.

Written down are whole messages, with secrets left out. What the ledger has anyway is not repeated: arguments
of calls and long results are found at the calls themselves, by their ids; pictures and what only a provider
understands are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Sequence
from typing import Any

from aisotools.agent_events import (
    AgentEvent,
    AgentFinished,
    AgentRewound,
    ConversationEdited,
    ModelAnswered,
    ModelRequested,
)
from aisotools.events import Decision, Effect, Json
from aisotools.messages import (
    AssistantMessage,
    Message,
    ToolMessage,
    Usage,
    UserMessage,
    message_to_json,
    since_last_answer,
)
from aisotools.redact import redact, redact_text, shortened
from aisotools.session_events import CallDecided, CallRequested, SessionEvent

_MOST_CHARS = 2_000
_OWN = {field.name for field in dataclasses.fields(SessionEvent)}


def agent_body(event: AgentEvent) -> dict[str, Any]:
    """The fields of an event as JSON."""
    values = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    return {name: _plain(value) for name, value in values.items() if name not in _OWN}


def _plain(value: Any) -> Json:
    if isinstance(value, UserMessage | AssistantMessage | ToolMessage):
        return _message(value)
    if isinstance(value, Usage):
        return dataclasses.asdict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value


def _message(message: Message) -> dict[str, Json]:
    told = message_to_json(message)
    for image in told.get("images", ()):
        image["chars"], image["data"] = len(image["data"]), ""
    for part in told.get("parts", ()):
        part.pop("opaque", None)
        if part["kind"] == "call" and "flaw" not in part:
            part["arguments"] = {}
    if isinstance(message, ToolMessage):
        told["content"] = shortened(message.content, _MOST_CHARS)
    kept: dict[str, Json] = redact(told)
    return kept


class Conversation:
    """What one agent and its model said to each other, as its events tell it one by one.

    Attributes:
        messages: All of it so far; results that gave way to make room are in it whole.
    """

    def __init__(self) -> None:
        """Nothing was said yet."""
        self.messages: list[Message] = []
        self._before: dict[int, int] = {}

    def take(self, event: AgentEvent) -> None:
        """Take in the next event of this agent."""
        match event:
            case ModelRequested(new=new):
                self._tail(new)
                self._before[event.step] = len(self.messages)
            case AgentFinished(new=new):
                self._tail(new)
            case ModelAnswered(message=message):
                self.messages.append(message)
            case ConversationEdited(messages=messages):
                self.messages[:] = messages
            case AgentRewound(step=step):
                del self.messages[self._before.get(step, len(self.messages)) :]

    def _tail(self, new: Iterable[Message]) -> None:
        """Let `new` be what follows the last answer; told twice it is still there once."""
        del self.messages[len(self.messages) - len(since_last_answer(self.messages)) :]
        self.messages.extend(new)


def conversation_of(events: Iterable[SessionEvent], agent_id: str) -> tuple[Message, ...]:
    """What an agent and its model said to each other, as a session's events tell it.

    Results that were taken out of the model's sight to make room are in it whole.
    """
    said = Conversation()
    for event in events:
        if isinstance(event, AgentEvent) and event.agent_id == agent_id:
            said.take(event)
    return tuple(said.messages)


def first_change(events: Sequence[SessionEvent], agent_id: str, kin: Container[str], step: int) -> str | None:
    """The first call since an agent's request `step` that may have changed anything; None if there was none.

    Args:
        events: What the session recorded.
        agent_id: The agent.
        kin: Whose calls count: its own, and of those that work for it.
        step: Which request.
    """
    since: list[SessionEvent] = []
    for event in reversed(events):
        since.append(event)
        if isinstance(event, ModelRequested) and (event.agent_id, event.step) == (agent_id, step):
            break
    own: set[str] = set()
    for event in reversed(since):
        if isinstance(event, CallRequested) and event.call.agent_id in kin:
            own.add(event.call_id)
        elif isinstance(event, CallDecided) and event.call_id in own and _changes(event):
            return event.call_id
    return None


def _changes(event: CallDecided) -> bool:
    return event.decision is Decision.ALLOW and event.effect is not Effect.READ_ONLY
