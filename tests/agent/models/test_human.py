"""A person is the model: asked by somebody that is injected, by lines in a terminal, or by nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from aisotools.agent.agent import Agent
from aisotools.agent.models.human import ConsoleAsker, HumanModel, HumanTurn, describe_turn
from aisotools.builtin import builtin_tools
from aisotools.core.exceptions import ArgumentError, ModelError, UsageError
from aisotools.core.messages import CallDone, CallPart, Finished, TextDelta, UserMessage
from aisotools.core.types import ToolDefinition
from tests.agent.rules import assert_sound
from tests.conftest import OpenSession

NUMBER = {"type": "number"}
AREA = ToolDefinition(
    "area",
    "Area of a rectangle.",
    {
        "type": "object",
        "properties": {"width": NUMBER, "height": NUMBER, "unit": {"type": "string"}},
        "required": ["width", "height"],
        "additionalProperties": False,
    },
)
TURN = HumanTurn(messages=(UserMessage("How large?"),), tools=(AREA,))


def asker(*lines: str, shown: list[str] | None = None) -> ConsoleAsker:
    left: Iterator[str] = iter(lines)

    def read_line(prompt: str) -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return ConsoleAsker(read_line, (shown if shown is not None else []).append)


class Says:
    def __init__(self, *answers: CallPart | str | None) -> None:
        self.answers = list(answers)
        self.turns: list[HumanTurn] = []

    async def answer(self, turn: HumanTurn) -> CallPart | str | None:
        self.turns.append(turn)
        return self.answers.pop(0)


async def events_of(model: HumanModel) -> list[Any]:
    return [
        event async for event in model.request([UserMessage("How large?")], [AREA], instructions="Be brief.")
    ]


async def test_a_call_and_an_answer() -> None:
    call, *_, end = await events_of(HumanModel(Says(CallPart("", "area", {"width": 1, "height": 2}))))
    assert (call, end) == (CallDone(CallPart("", "area", {"width": 1, "height": 2})), Finished("calls"))
    text, *_, end = await events_of(HumanModel(Says("Two.")))
    assert (text, end) == (TextDelta("Two."), Finished("stop"))
    assert HumanModel.is_person


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [("area", {"width": "x", "height": 1}, "width"), ("area", {}, "width"), ("are", {}, "no tool 'are'")],
)
async def test_an_answer_that_does_not_fit_is_refused(
    name: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        await events_of(HumanModel(Says(CallPart("", name, arguments))))


async def test_nobody_there_is_a_clear_failure() -> None:
    with pytest.raises(ModelError, match="Nobody is there to be the model"):
        await events_of(HumanModel())
    with pytest.raises(ModelError, match="did not answer"):
        await events_of(HumanModel(Says(None)))
    with pytest.raises(UsageError, match="needs a method"):
        HumanModel(asker=object())  # type: ignore[arg-type]  # the mistake


async def test_line_by_line() -> None:
    shown: list[str] = []
    lines = asker("1", "wide", "2", "", "1", "3", "4", "", shown=shown)
    assert await lines.answer(TURN) == CallPart("", "area", {"width": 3, "height": 4})
    assert any("width" in one for one in shown[1:]), "what was wrong is told"
    assert await asker("", "Two.").answer(TURN) == "Two."
    assert await asker().answer(TURN) is None


def test_hidden_characters_are_shown() -> None:
    turn = HumanTurn(messages=(UserMessage("a\u202eb"),), tools=(AREA,), instructions="c\x1b[1m")
    text = describe_turn(turn)
    assert "\\u202e" in text
    assert "\x1b" not in text
    assert "1. area: Area of a rectangle." in text


async def test_three_steps(open_session: OpenSession) -> None:
    session = open_session(*builtin_tools("files"))
    assert session.workspace is not None
    session.workspace.mkdir(parents=True, exist_ok=True)
    (session.workspace / "letter.txt").write_text("The answer is 42.")
    person = Says(
        CallPart("", "file", {"operation": "list"}),
        CallPart("", "file", {"operation": "read", "path": "letter.txt"}),
        "It is 42.",
    )
    agent = Agent(HumanModel(person), session)
    result = await agent.run("List the files, read one, answer from it.")
    assert (result.outcome, result.text, result.calls) == ("answered", "It is 42.", 2)
    assert "letter.txt" in str(person.turns[1].messages[-1])
    assert "42" in str(person.turns[2].messages[-1])
    assert_sound(agent)
