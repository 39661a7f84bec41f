"""The contracts of `aisotools.contracts` as test methods, for fakes, real parts and strangers' alike.

Subclass one in a test module, under a name that starts with `Test`, and say in `make` what is to be tested.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from aisotools.answers import AnswerReader
from aisotools.contracts import Approver, Model, Tool
from aisotools.events import Approval, ApprovalRequest, Effect, Json, ToolCall, ToolDefinition
from aisotools.exceptions import ArgumentError
from aisotools.messages import (
    AssistantMessage,
    CallDone,
    CallPart,
    Finished,
    Message,
    ModelEvent,
    ToolMessage,
    Usage,
    UserMessage,
    message_from_json,
    message_to_json,
)
from aisotools.registry import ToolRegistry
from aisotools.schema import check_name
from aisotools.tool_members import classify, shipment_of, undo_path, validate_arguments, version_of

_T = TypeVar("_T")

WRONG_ARGUMENTS: Sequence[Mapping[str, Json]] = (
    {},
    {"path": None, "operation": None, "command": None, "code": None},
    {"path": 1, "operation": 2, "command": 3, "code": 4},
    {"path": ["a"], "operation": {"b": []}, "command": True},
    {"path": "\0", "operation": "no such thing", "command": "", "an unlikely argument": "\ud800"},
)
"""Arguments as careless models send them; no tool's own members may fail on any."""


class ApproverContract:
    """What everybody who can be asked must do."""

    def make(self) -> Approver:
        """An approver; called once for each test."""
        raise NotImplementedError

    def request(self, name: str = "file") -> ApprovalRequest:
        """The question that is put."""
        call = ToolCall("call-1", name, {"path": "a.txt", "lines": [1, 2]}, origin="model")
        return ApprovalRequest(
            id=f"request-{name}",
            call=call,
            definition=ToolDefinition(name, "Works with files.", {"type": "object"}),
            effect=Effect.LOCAL_MUTATION,
            level="confined",
            reasons=("it is a local change",),
            timeout_s=5.0,
        )

    def test_answers_with_an_approval(self) -> None:
        """An answer is an `Approval`, in time."""

        async def ask() -> Approval:
            return await self.make().ask(self.request())

        answer: object = run_limited(ask())
        assert isinstance(answer, Approval), f"{answer!r} is no Approval"

    def test_leaves_the_question_alone(self) -> None:
        """What runs is what was asked about: edits go into the answer, never into the question."""

        async def ask() -> tuple[ApprovalRequest, ApprovalRequest]:
            request = self.request()
            before = copy.deepcopy(request)
            await self.make().ask(request)
            return before, request

        before, after = run_limited(ask())
        assert before == after, "the approver changed the question"

    def test_can_be_withdrawn(self) -> None:
        """Cancelling the awaiting task ends the question within a second, answered or not."""

        async def ask() -> float:
            asking = asyncio.ensure_future(self.make().ask(self.request()))
            await asyncio.sleep(0)
            asking.cancel()
            began_s = time.monotonic()
            await asyncio.wait([asking], timeout=3)
            assert asking.done(), "the question stood although it was withdrawn"
            return time.monotonic() - began_s

        took_s = run_limited(ask())
        assert took_s < 1, f"withdrawing took {took_s:.1f} s"

    def test_answers_several_questions(self) -> None:
        """Questions may come while others stand."""

        async def ask() -> list[Approval]:
            approver = self.make()
            return await asyncio.gather(*(approver.ask(self.request(name)) for name in ("a", "b", "c")))

        answers = run_limited(ask())
        assert len(answers) == 3


class ToolContract:
    """What every tool must do, without running it."""

    arguments: Sequence[Mapping[str, Json]] = ()
    """Arguments that fit, beside the tool's own examples."""

    def make(self) -> Tool:
        """A tool; called once for each test."""
        raise NotImplementedError

    def fitting(self, tool: Tool) -> list[Mapping[str, Json]]:
        """All arguments that are known to fit."""
        return [*self.arguments, *(arguments for arguments, _ in getattr(tool, "examples", ()))]

    def test_is_a_tool(self) -> None:
        """It has the four members, with a name that providers accept and something for a model to read."""
        tool = self.make()
        assert isinstance(tool, Tool), f"{tool!r} lacks a member of Tool"
        assert check_name(tool.name) == tool.name
        assert tool.description.strip(), f"{tool.name} has no description"

    def test_can_be_registered(self) -> None:
        """Its schema is a JSON Schema of type object, and stays so when what was exported is changed."""
        tool = self.make()
        registry = ToolRegistry([tool])
        exported = registry.definitions("openai")[0]["function"]["parameters"]
        assert exported["type"] == "object"
        exported.clear()
        assert registry.definitions("openai")[0]["function"]["parameters"] == tool.parameters_schema()

    def test_takes_what_fits(self) -> None:
        """Arguments that fit stay the same when they are validated again: what is shown is what runs."""
        tool = self.make()
        for arguments in self.fitting(tool):
            valid = validate_arguments(tool, arguments)
            assert validate_arguments(tool, valid) == valid

    def test_refuses_other_kinds_of_arguments_in_words(self) -> None:
        """What does not fit is an `ArgumentError` that names the tool."""
        tool = self.make()
        for wrong in (*WRONG_ARGUMENTS, ["a"], "a", None, 1):
            told = _refusal(tool, wrong)
            assert told is None or tool.name in told, f"{told} does not name {tool.name}"

    def test_classifies(self) -> None:
        """Every call has an effect, the undo path is a path or None, and neither fails on wrong arguments."""
        tool = self.make()
        for arguments in (*self.fitting(tool), *WRONG_ARGUMENTS):
            assert isinstance(classify(tool, arguments), Effect)
            assert isinstance(undo_path(tool, arguments), Path | None)

    def test_has_a_version(self) -> None:
        """The same tool has the same version, which is what a decision is bound to."""
        tool = self.make()
        assert version_of(tool) == version_of(tool)

    def test_travels(self) -> None:
        """If it runs in a sandbox it can be sent there."""
        shipment = shipment_of(self.make())
        if shipment is not None:
            assert shipment.key
            assert bool(shipment.import_path) != bool(shipment.payload)


class ModelContract:
    """What every model must do; it is asked something, and must answer to the contract, not to the point."""

    tools: Sequence[ToolDefinition] = (
        ToolDefinition("look", "Look at something.", {"type": "object", "properties": {}}),
    )
    """What it may call."""

    def make(self) -> Model:
        """A model; called once for each test."""
        raise NotImplementedError

    def conversation(self) -> Sequence[Message]:
        """What it is asked."""
        return [UserMessage("Hello.")]

    def test_is_a_model(self) -> None:
        """It has the members of `Model`, and a name."""
        model = self.make()
        assert isinstance(model, Model), f"{model!r} lacks a member of Model"
        assert model.name.strip(), "a model needs a name"

    def test_answers_to_the_end(self) -> None:
        """Its stream makes a message; it ends with `Finished`, and counts at most once, before that."""
        heard = self._heard(self.conversation())
        ends = [event for event in heard if isinstance(event, Finished)]
        assert ends == heard[-1:], "Finished comes once, and last"
        counts = [event for event in heard if isinstance(event, Usage)]
        assert len(counts) <= 1, "Usage comes at most once"
        reader = AnswerReader("a model")
        for event in heard:
            reader.add(event)
        answer = reader.answer()
        assert message_from_json(message_to_json(answer.message)) == answer.message

    def test_calls_are_whole(self) -> None:
        """A call names a tool and holds arguments, or says what is wrong with them."""
        for event in self._heard(self.conversation()):
            if isinstance(event, CallDone):
                assert event.call.name
                assert isinstance(event.call.arguments, Mapping)

    def test_leaves_the_conversation_alone(self) -> None:
        """What was said stays said."""
        asked = list(self.conversation())
        before = copy.deepcopy(asked)
        self._heard(asked)
        assert asked == before, "the model changed the conversation"

    def test_takes_results_of_calls(self) -> None:
        """A conversation in which calls were made is a conversation, too."""
        call = CallPart("a-1", "look", {})
        asked: list[Message] = [UserMessage("Look."), AssistantMessage((call,), reason="calls")]
        self._heard([*asked, ToolMessage("a-1", "look", "Nothing there.", is_error=True)])

    def test_can_be_left(self) -> None:
        """Whoever stops listening is let go within a second."""

        async def leave() -> float:
            stream = self.make().request(self.conversation(), self.tools)
            await anext(stream, None)
            began_s = time.monotonic()
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
            return time.monotonic() - began_s

        took_s = run_limited(leave())
        assert took_s < 1, f"leaving took {took_s:.1f} s"

    def test_can_be_cancelled(self) -> None:
        """Cancelling whoever listens ends the request within a second."""

        async def cancel() -> float:
            asking = asyncio.ensure_future(self._answered(self.conversation()))
            await asyncio.sleep(0)
            asking.cancel()
            began_s = time.monotonic()
            await asyncio.wait([asking], timeout=3)
            assert asking.done(), "the request went on although it was cancelled"
            return time.monotonic() - began_s

        took_s = run_limited(cancel())
        assert took_s < 1, f"cancelling took {took_s:.1f} s"

    def _heard(self, asked: Sequence[Message]) -> list[ModelEvent]:
        return run_limited(self._answered(asked))

    async def _answered(self, asked: Sequence[Message]) -> list[ModelEvent]:
        model = self.make()
        try:
            return [event async for event in model.request(asked, self.tools, instructions="Be brief.")]
        finally:
            close = getattr(model, "close", None)
            if close is not None:
                await close()


def run_limited(scenario: Awaitable[_T], timeout_s: float = 30.0) -> _T:
    """Run `scenario` on an event loop of its own, for `timeout_s` seconds at most."""

    async def limited() -> _T:
        return await asyncio.wait_for(scenario, timeout_s)

    return asyncio.run(limited())


def _refusal(tool: Tool, arguments: Any) -> str | None:
    try:
        validate_arguments(tool, arguments)
    except ArgumentError as error:
        return str(error)
    return None
