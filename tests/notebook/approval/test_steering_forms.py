"""Forms: stepping, choosing and standing in for the model. Replies are validated; nobody waits for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aisotools.agent.models.human import HumanTurn
from aisotools.agent.run import BeforeCall, BeforeRequest, StepChoice
from aisotools.core.exceptions import ArgumentError
from aisotools.core.messages import CallPart, UserMessage
from aisotools.core.types import Effect
from aisotools.notebook.approval import approver, steering
from aisotools.notebook.approval.steering import (
    FormPrompt,
    FormSubject,
    NotebookAsker,
    NotebookChooser,
    NotebookStepper,
    ask_form,
    call_step_form,
    choice_form,
    model_form,
    new_call_form,
    parse_new_call,
    request_form,
)
from aisotools.tools.function import tool
from aisotools.tools.registry import ToolRegistry
from tests.notebook.inert import assert_inert


@tool(effect=Effect.READ_ONLY)
def area(width: float, height: float, unit: str = "cm", digits: int | None = None) -> float:
    """Area of a rectangle."""
    return width * height


REGISTRY = ToolRegistry([area])
TOOLS = tuple(REGISTRY.to_llm_definitions())
REQUEST = BeforeRequest(step=1, messages=(UserMessage("How <b>large</b>?\u202e"),), tools=TOOLS)
CALL = BeforeCall(step=1, call=CallPart("1", "area", {"width": 1.0, "height": 2.0}))
TURN = HumanTurn(messages=tuple(REQUEST.messages), tools=TOOLS)
OPTIONS = tuple(CallPart("", "area", {"width": n, "height": 1}) for n in (1, 2, 3))


def answer(form: FormPrompt[Any], action: str, pick: Any = 0, text: str = "", **edits: str) -> Any:
    message = {"action": action, "pick": pick, "edits": edits, "whole": None, "text": text}
    return FormSubject(form).parse_reply(message)


def test_before_a_request() -> None:
    form = request_form(REQUEST)
    assert answer(form, "continue") == StepChoice()
    assert answer(form, "answer", text="Six.") == StepChoice("answer", text="Six.")
    assert answer(form, "stop") == StepChoice("stop")
    edited = answer(form, "edit", text="How small?")
    assert edited.messages == [UserMessage("How small?")]


def test_before_a_call() -> None:
    form = call_step_form(CALL, REGISTRY)
    assert answer(form, "continue") == StepChoice()
    assert answer(form, "continue", width="3.5") == StepChoice(
        "edit", arguments={"width": 3.5, "height": 2.0}
    )
    assert answer(form, "skip") == StepChoice("skip")
    assert answer(form, "answer", text="Two.") == StepChoice("answer", text="Two.")
    with pytest.raises(ArgumentError, match="width"):
        answer(form, "continue", width='"wide"')


def test_choosing() -> None:
    form = choice_form("Which?", OPTIONS)
    assert answer(form, "pick", 1) == OPTIONS[1]
    assert answer(form, "say", text="the second") == "the second"
    assert answer(form, "none") is None
    assert FormSubject(form).card_payload()["options"][0] == "area(width=1, height=1)"


def test_being_the_model() -> None:
    form = model_form(TURN)
    assert answer(form, "call", width="2", height="3") == CallPart("", "area", {"width": 2, "height": 3})
    assert answer(form, "answer", text="Six.") == "Six."
    assert answer(form, "stop") is None
    fields = new_call_form(TOOLS[0])["fields"]
    assert [(one["name"], one["text"]) for one in fields[:2]] == [("width", ""), ("height", "")]
    assert next(one for one in fields if one["name"] == "digits")["kind"] == "number"
    called = parse_new_call(TOOLS[0], {"width": "2", "height": "3", "digits": "1"})
    assert called.arguments == {"width": 2, "height": 3, "digits": 1}
    with pytest.raises(ArgumentError, match="'height' of area is required"):
        parse_new_call(TOOLS[0], {"width": "2"})


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"action": "pick", "pick": 7},
        {"action": "pick", "pick": True},
        {"action": "pick", "pick": "0"},
        {"action": "say", "text": " "},
        {"action": "say", "text": 5},
        {"action": "say", "text": "x" * 60_000},
        {"action": ["say"], "text": "x"},
        {"action": "none", "edits": {"a": 1}},
    ],
)
def test_a_page_is_not_believed(message: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        FormSubject(choice_form("Which?", OPTIONS)).parse_reply(message)


@pytest.mark.parametrize("form", [request_form(REQUEST), call_step_form(CALL, REGISTRY), model_form(TURN)])
def test_the_record_is_inert(form: FormPrompt[Any]) -> None:
    subject = FormSubject(form)
    for bundle in (subject.fallback_bundle(), subject.record_bundle(form.no_answer)):
        assert_inert(bundle["text/html"])
        assert "\u202e" not in str(bundle)


class Typed:
    """A kernel whose page shows no card, and in whose input box these lines are typed."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)

    def raw_input(self, prompt: str) -> str:
        if not self.lines:
            raise EOFError
        return self.lines.pop(0)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    bundles: list[Any] = []
    monkeypatch.setattr(approver, "display_bundle", lambda bundle, *_, **__: bundles.append(bundle))
    return bundles


def shell(*lines: str) -> Any:
    return SimpleNamespace(kernel=Typed(*lines))


async def test_the_input_box_asks_where_no_card_is_shown(shown: list[Any]) -> None:
    stepper = NotebookStepper(REGISTRY, shell=shell("nonsense?", "s", "Six."), hello_s=0.01)
    assert (await stepper.pause(CALL)).action == "answer"
    stepper = NotebookStepper(REGISTRY, shell=shell("a"), hello_s=0.01)
    assert await stepper.pause(REQUEST) == StepChoice()
    assert await NotebookChooser(shell=shell("2"), hello_s=0.01).choose("Which?", OPTIONS) == OPTIONS[1]
    human = NotebookAsker(shell=shell("1", "2", "3", "", ""), hello_s=0.01)
    assert await human.answer(TURN) == CallPart("", "area", {"width": 2, "height": 3})
    assert any("Type" in str(bundle) for bundle in shown)


async def test_the_end_of_input_stops(shown: list[Any]) -> None:
    assert await NotebookStepper(REGISTRY, shell=shell(), hello_s=0.01).pause(CALL) == StepChoice("stop")
    assert await NotebookChooser(shell=shell(), hello_s=0.01).choose("Which?", OPTIONS) is None


async def test_headless_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "accepts_input", lambda kernel: False)
    assert await NotebookStepper(REGISTRY, shell=shell()).pause(REQUEST) == StepChoice("stop")
    assert await NotebookChooser(shell=shell()).choose("Which?", OPTIONS) is None
    assert await NotebookAsker(shell=shell()).answer(TURN) is None
    assert await ask_form(model_form(TURN)) is None  # no shell, no terminal
