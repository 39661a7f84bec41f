"""Recorded forms of agent events, the conversation they fold into, and what changed since a request."""

from __future__ import annotations

import dataclasses

import pytest

from aisotools.core import events
from aisotools.core.events import (
    AgentEvent,
    AgentFinished,
    AgentRewound,
    AgentStarted,
    CallDecided,
    CallRequested,
    Conversation,
    ConversationEdited,
    EventsDropped,
    ModelAnswered,
    ModelRequested,
    SessionEvent,
    agent_body,
    conversation_of,
    first_change,
)
from aisotools.core.messages import (
    AssistantMessage,
    CallPart,
    ImagePart,
    Message,
    TextPart,
    ToolMessage,
    Usage,
    UserMessage,
)
from aisotools.core.types import Decision, Effect, ToolCall

KEY = "sk-" + "a1" * 12


def requested(step: int, *new: Message, agent_id: str = "a") -> ModelRequested:
    return ModelRequested(time_s=0.0, agent_id=agent_id, step=step, turn_id=f"t{step}", new=new, digest="d")


def answered(step: int, text: str, agent_id: str = "a") -> ModelAnswered:
    message = AssistantMessage((TextPart(text),))
    return ModelAnswered(
        time_s=0.0,
        agent_id=agent_id,
        step=step,
        turn_id=f"t{step}",
        message=message,
        usage=Usage(),
        duration_s=0.0,
    )


def finished(*new: Message) -> AgentFinished:
    return AgentFinished(
        time_s=0.0,
        agent_id="a",
        outcome="stopped",
        steps=1,
        calls=0,
        usage=Usage(),
        duration_s=0.0,
        working_s=0.0,
        new=new,
    )


def test_kinds_are_unique_and_names_of_records() -> None:
    classes = [
        thing
        for thing in vars(events).values()
        if isinstance(thing, type) and issubclass(thing, SessionEvent) and thing.kind != "event"
    ]
    kinds = [thing.kind for thing in classes]
    assert len(set(kinds)) == len(kinds)
    assert {"call_requested", "call_decided", "undone", "redone", "model_answered", "agent_finished"} <= set(
        kinds
    )


def test_events_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        requested(1).step = 2  # type: ignore[misc]  # that is the point


# ---- recorded form


def test_body_leaves_out_what_every_event_has() -> None:
    event = AgentStarted(time_s=1.0, call_id="c", agent_id="a", model="m", instructions=f"Use {KEY}")
    assert agent_body(event) == {
        "agent_id": "a",
        "step": 0,
        "model": "m",
        "instructions": "Use [redacted: api-key]",
        "parent_id": "",
    }


def test_body_repeats_nothing_that_the_calls_record() -> None:
    message = AssistantMessage(
        (
            TextPart(f"key {KEY}", opaque={"id": "x"}),
            CallPart("c1", "f", {"x": 1}, opaque={"id": "y"}),
            CallPart("c2", "f", {}, flaw="no JSON"),
        )
    )
    event = dataclasses.replace(answered(1, ""), message=message)
    body = agent_body(event)
    text, call, flawed = body["message"]["parts"]
    assert text == {"kind": "text", "text": "key [redacted: api-key]"}
    assert (call["id"], call["arguments"], "opaque" in call) == ("c1", {}, False)
    assert flawed["flaw"] == "no JSON"
    assert body["usage"] == dataclasses.asdict(Usage())


def test_body_shortens_results_and_leaves_images_out() -> None:
    long = ToolMessage("c", "f", "x" * 2_001, images=(ImagePart("image/png", "abcd"),))
    short = ToolMessage("c", "f", "x" * 2_000)
    first, second = agent_body(requested(1, long, short))["new"]
    assert first["content"]["chars"] == 2_001
    assert first["content"]["beginning"] == "x" * 2_000
    assert [(image["data"], image["chars"]) for image in first["images"]] == [("", 4)]
    assert second["content"] == "x" * 2_000


# ---- conversation


def test_conversation_has_the_messages_in_order() -> None:
    question, result = UserMessage("q"), ToolMessage("c", "f", "r")
    record: list[SessionEvent] = [
        requested(1, question),
        requested(1, UserMessage("other"), agent_id="b"),
        answered(1, "calls"),
        requested(2, result),
        answered(2, "done"),
    ]
    texts = [
        message.content if isinstance(message, ToolMessage) else message.text
        for message in conversation_of(record, "a")
    ]
    assert texts == ["q", "calls", "r", "done"]
    assert conversation_of(record, "nobody") == ()


def test_messages_reported_twice_are_there_once() -> None:
    question = UserMessage("q")
    conversation = Conversation()
    for event in (requested(1, question), finished(question), requested(1, question, UserMessage("more"))):
        conversation.take(event)
    assert conversation.messages == [question, UserMessage("more")]


def test_edit_replaces_and_rewinding_cuts() -> None:
    conversation = Conversation()
    for event in (
        requested(1, UserMessage("1")),
        answered(1, "a"),
        requested(2, UserMessage("2")),
        answered(2, "b"),
    ):
        conversation.take(event)
    conversation.take(AgentRewound(time_s=0.0, agent_id="a", step=7))
    assert len(conversation.messages) == 4
    conversation.take(AgentRewound(time_s=0.0, agent_id="a", step=2))
    assert len(conversation.messages) == 3
    assert conversation.messages[-1] == UserMessage("2")
    conversation.take(ConversationEdited(time_s=0.0, agent_id="a", messages=(UserMessage("new"),)))
    assert conversation.messages == [UserMessage("new")]
    conversation.take(AgentEvent(time_s=0.0, agent_id="a"))
    assert conversation.messages == [UserMessage("new")]


# ---- changes


def call(
    call_id: str, effect: Effect, decision: Decision = Decision.ALLOW, agent_id: str = "a"
) -> list[SessionEvent]:
    made = ToolCall(call_id, "f", {}, agent_id=agent_id)
    return [
        CallRequested(time_s=0.0, call_id=call_id, call=made),
        CallDecided(
            time_s=0.0,
            call_id=call_id,
            decision=decision,
            decided_by="policy",
            effect=effect,
            reasons=(),
            arguments={},
            digest="",
        ),
    ]


def test_first_change_is_that_of_the_first_call_that_may_change_anything() -> None:
    record = [
        *call("before", Effect.DESTRUCTIVE),
        requested(1),
        *call("read", Effect.READ_ONLY),
        *call("denied", Effect.DESTRUCTIVE, Decision.DENY),
        *call("stranger", Effect.DESTRUCTIVE, agent_id="stranger"),
        *call("remote", Effect.REMOTE_ACTION, agent_id="helper"),
        requested(2),
        *call("write", Effect.LOCAL_MUTATION),
    ]
    assert first_change(record, "a", {"a"}, 1) == "write"
    assert first_change(record, "a", {"a", "helper"}, 1) == "remote"
    assert first_change(record, "a", {"a", "helper"}, 2) == "write"
    assert first_change(record[:5], "a", {"a"}, 1) is None
    assert first_change(record, "a", {"a"}, 9) == "before"


def test_decision_without_its_request_does_not_count() -> None:
    _, decided = call("c", Effect.DESTRUCTIVE)
    assert first_change([requested(1), decided], "a", {"a"}, 1) is None


def test_first_change_refuses_when_the_request_was_dropped() -> None:
    call = CallRequested(time_s=1, call_id="c", call=ToolCall("c", "t", {}))
    dropped = EventsDropped(time_s=0, count=3, kinds=("model_requested",), size_bytes=9, reason="over it")
    with pytest.raises(LookupError, match=r"3 earlier events \(model_requested\) were dropped: over it"):
        first_change([dropped, call], "a", {"a"}, 1)
    output = dataclasses.replace(dropped, kinds=("call_emitted", "call_output"))
    assert first_change([output, call], "a", {"a"}, 1) is None, "no call is missing"
