from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aisotools.core.exceptions import ModelError, UsageError
from aisotools.core.messages import (
    AnswerReader,
    AssistantMessage,
    CallPart,
    Finished,
    ImagePart,
    Message,
    PartDone,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ThinkingPart,
    ToolMessage,
    Usage,
    UserMessage,
    call_from_text,
    conversation_digest,
    events_of,
    message_from_json,
    message_to_json,
)

TEXT = st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
OPAQUE = st.dictionaries(TEXT, JSON, max_size=2)
IMAGES = st.lists(st.builds(ImagePart, TEXT, TEXT), max_size=2).map(tuple)
PARTS = st.one_of(
    st.builds(TextPart, TEXT, opaque=OPAQUE),
    st.builds(ThinkingPart, TEXT, opaque=OPAQUE),
    st.builds(CallPart, TEXT, TEXT, st.dictionaries(TEXT, JSON, max_size=3), flaw=TEXT, opaque=OPAQUE),
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(UserMessage, TEXT, images=IMAGES),
    st.builds(
        AssistantMessage,
        st.lists(PARTS, max_size=4).map(tuple),
        reason=st.sampled_from(["stop", "calls", "unknown"]),
        model=TEXT,
    ),
    st.builds(
        ToolMessage,
        TEXT,
        TEXT,
        TEXT,
        is_error=st.booleans(),
        images=IMAGES,
        ref=TEXT,
        trimmed_chars=st.integers(0, 9),
    ),
)


@given(MESSAGES)
def test_json_both_ways(message: Message) -> None:
    encoded = json.loads(json.dumps(message_to_json(message)))
    assert message_from_json(encoded) == message
    assert conversation_digest([message_from_json(encoded)]) == conversation_digest([message])


@pytest.mark.parametrize(
    "wrong",
    [None, 3, {}, {"role": "king"}, {"role": "tool", "call_id": 3}, {"role": "assistant", "parts": [{}]}],
)
def test_values_that_are_no_message(wrong: Any) -> None:
    with pytest.raises(UsageError, match="not a message"):
        message_from_json(wrong)


def test_digest_covers_the_messages() -> None:
    one = AssistantMessage((TextPart("a"), CallPart("1", "look", {"n": 1})), model="x")
    same = AssistantMessage((TextPart("a", opaque={"id": 3}), CallPart("2", "look", {"n": 1})), model="y")
    other = AssistantMessage((TextPart("a"), CallPart("1", "look", {"n": 2})), model="x")
    assert conversation_digest([one]) == conversation_digest([same]) != conversation_digest([other])


@given(st.lists(PARTS, max_size=5).map(tuple))
def test_events_make_the_message_again(parts: Any) -> None:
    reader = AnswerReader("m")
    for event in events_of(AssistantMessage(parts)):
        reader.add(event)
    made = reader.answer().message
    assert made.parts == parts


def test_a_complete_part_stands_for_its_deltas() -> None:
    reader = AnswerReader("m")
    whole = ThinkingPart("Hmm.", opaque={"signature": "x"})
    deltas = ThinkingDelta("Hm"), ThinkingDelta("m."), PartDone(whole), TextDelta("Yes.")
    for event in (*deltas, Finished("stop")):
        reader.add(event)
    assert reader.answer().message.parts == (whole, TextPart("Yes."))


def test_a_cut_answer_may_be_asked_for_again() -> None:
    with pytest.raises(ModelError, match="cut") as caught:
        AnswerReader("m").answer()
    assert caught.value.retryable


@pytest.mark.parametrize("text", ["{", "[1]", "3", '"a"', "nul", '{"a": 1} x', "x" * 1_000])
def test_flawed_arguments(text: str) -> None:
    call = call_from_text("1", "look", text)
    assert call.arguments == {}
    assert call.flaw
    assert len(call.flaw) < 500


@pytest.mark.parametrize(("text", "arguments"), [("", {}), (" ", {}), ('{"a": [1]}', {"a": [1]})])
def test_arguments(text: str, arguments: object) -> None:
    assert (call_from_text("1", "look", text).arguments, call_from_text("1", "look", text).flaw) == (
        arguments,
        "",
    )


def test_usage_adds_up() -> None:
    none = Usage(requests=0)
    known, unknown = Usage(input_tokens=1, output_tokens=2, cost=0.5), Usage(input_tokens=3)
    assert (none + known + known).cost == 1.0
    assert (none + known + unknown).cost is None
    assert (none + known + unknown).tokens == 6
