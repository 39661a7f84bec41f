"""A scripted model answers in order, whatever form an answer has, and refuses a script that is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from aisotools.agent.models.scripted import ScriptedModel, ScriptedRequest, ScriptedTurn
from aisotools.core.exceptions import ModelError, UsageError
from aisotools.core.messages import (
    AnswerReader,
    AssistantMessage,
    CallPart,
    Message,
    TextDelta,
    TextPart,
    UserMessage,
)


async def answer(model: ScriptedModel, *messages: Message) -> AssistantMessage:
    reader = AnswerReader(model.name)
    async for event in model.request(messages, ()):
        reader.add(event)
    return reader.answer().message


@pytest.mark.parametrize(
    ("turn", "parts", "reason"),
    [
        ("hi", (TextPart("hi"),), "stop"),
        (("look", {"n": 1}), (CallPart("", "look", {"n": 1}),), "calls"),
        (["so", ("look", {})], (TextPart("so"), CallPart("", "look", {})), "calls"),
        (TextPart("hi"), (TextPart("hi"),), "stop"),
        (AssistantMessage((TextPart("x"),), reason="length"), (TextPart("x"),), "length"),
        (lambda messages: messages[-1].text.upper(), (TextPart("GO"),), "stop"),
    ],
)
async def test_every_form_of_an_answer(turn: ScriptedTurn, parts: Sequence[Any], reason: str) -> None:
    message = await answer(ScriptedModel([turn]), UserMessage("go"))
    assert (message.parts, message.reason) == (tuple(parts), reason)


async def test_answers_come_in_order_and_requests_are_kept() -> None:
    model = ScriptedModel(["one", "two"], name="ada")
    assert [(await answer(model, UserMessage("a"))).text, (await answer(model)).text] == ["one", "two"]
    assert model.requests == [
        ScriptedRequest(messages=(UserMessage("a"),), tools=(), instructions=""),
        ScriptedRequest(messages=(), tools=(), instructions=""),
    ]
    with pytest.raises(ModelError, match="The script of ada has 2 turns, and the model was asked for turn 3"):
        await answer(model)


async def test_an_error_in_the_script_is_raised_at_its_turn() -> None:
    model = ScriptedModel([ModelError("down", retryable=True), "up"])
    with pytest.raises(ModelError, match="down"):
        await answer(model)
    assert (await answer(model)).text == "up"


@pytest.mark.parametrize("turns", ["hi", 3, {"a": 1}])
def test_a_script_is_a_list(turns: Any) -> None:
    with pytest.raises(UsageError, match="give a list of turns"):
        ScriptedModel(turns)


@pytest.mark.parametrize("turn", [3, ("look",), ("look", [1]), (1, {}), ["ok", 3], None])
def test_an_invalid_scripted_answer_is_refused_with_its_number(turn: Any) -> None:
    with pytest.raises(UsageError, match="Turn 1 of the script holds"):
        ScriptedModel(["fine", turn])


async def test_with_a_delay_a_text_comes_in_pieces() -> None:
    model = ScriptedModel(["one\ntwo\n"], delay_s=0.001)
    events = [event async for event in model.request((), ())]
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["one\n", "two\n"]
