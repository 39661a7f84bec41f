"""Every sentence of every contract suite fails on an implementation that breaks it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import aisotools.testing
from aisotools.core.exceptions import ArgumentError
from aisotools.core.messages import (
    AssistantMessage,
    CallDone,
    CallPart,
    Finished,
    Message,
    ModelEvent,
    TextDelta,
    ToolMessage,
    Usage,
)
from aisotools.core.protocols import ToolContext, ToolPayload
from aisotools.core.sandboxes import Sandbox, SandboxCall, SandboxStatus
from aisotools.core.types import Approval, ApprovalRequest, Effect, Json, ToolDefinition, ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.testing.contracts import (
    ApproverContract,
    ModelContract,
    RecordingListener,
    SandboxContract,
    ToolContract,
    run_limited,
)
from aisotools.testing.fakes import FakeSandbox, MockTool

BROKEN: dict[str, tuple[type, Callable[..., Any]]] = {}
"""By the test that must fail: its suite, and what makes the broken implementation."""


def sentences(suite: type) -> set[str]:
    return {f"{suite.__name__}.{name}" for name in vars(suite) if name.startswith("test_")}


def breaks(suite: type, name: str) -> Callable[[Any], Any]:
    """Register a broken implementation for one sentence of a suite."""

    def register(make: Any) -> Any:
        BROKEN[f"{suite.__name__}.{name}"] = suite, make
        return make

    return register


class Uncancellable:
    """Work that swallows its first cancellation and goes on for longer than any contract waits."""

    async def work(self) -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            await asyncio.sleep(5)


# -- approvers


@breaks(ApproverContract, "test_answers_with_an_approval")
class AnswersWithText:
    async def ask(self, request: ApprovalRequest) -> Any:
        return "approve"


@breaks(ApproverContract, "test_leaves_the_question_alone")
class EditsTheRequest:
    async def ask(self, request: ApprovalRequest) -> Approval:
        arguments: Any = request.call.arguments
        arguments["path"] = "other.txt"
        return Approval("approve")


@breaks(ApproverContract, "test_can_be_withdrawn")
class GoesOnAsking(Uncancellable):
    async def ask(self, request: ApprovalRequest) -> Approval:
        await self.work()
        return Approval("approve")


@breaks(ApproverContract, "test_answers_several_questions")
class AsksOneAtATime:
    def __init__(self) -> None:
        self.busy = False

    async def ask(self, request: ApprovalRequest) -> Approval:
        if self.busy:
            raise RuntimeError("another question is open")
        self.busy = True
        await asyncio.sleep(0)
        self.busy = False
        return Approval("approve")


# -- tools

SCHEMA: Mapping[str, Json] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


class SoundTool:
    name = "sound"
    description = "A tool without a flaw."
    examples: Sequence[tuple[Mapping[str, Json], str]] = (({"n": 1}, "one"),)

    def parameters_schema(self) -> Mapping[str, Json]:
        return SCHEMA

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        return ToolResult.text("done")


@breaks(ToolContract, "test_is_a_tool")
class WithoutDescription(SoundTool):
    description = " "


@breaks(ToolContract, "test_can_be_registered")
class WithBrokenSchema(SoundTool):
    def parameters_schema(self) -> Mapping[str, Json]:
        return {"type": "string"}


@breaks(ToolContract, "test_takes_what_fits")
class CountsUp(SoundTool):
    def validate_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        return {"n": arguments["n"] + 1}


@breaks(ToolContract, "test_refuses_other_kinds_of_arguments_in_words")
class RefusesWithoutItsName(SoundTool):
    def validate_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        raise ArgumentError("The arguments do not fit.")


@breaks(ToolContract, "test_classifies")
class FailsOnMalformedArguments(SoundTool):
    def classify(self, arguments: Mapping[str, Json]) -> Effect:
        return Effect.READ_ONLY if arguments["n"] else Effect.LOCAL_MUTATION


@breaks(ToolContract, "test_has_a_version")
class ChangesItsVersion(SoundTool):
    def __init__(self) -> None:
        self.reads = 0

    @property
    def version(self) -> str:
        self.reads += 1
        return str(self.reads)


@breaks(ToolContract, "test_travels")
class TravelsByNothing(SoundTool):
    def shipment(self) -> ToolPayload:
        return ToolPayload(key="k")


# -- models


class SoundModel:
    name = "sound"
    events: Sequence[ModelEvent] = (TextDelta("Hi."), Usage(), Finished("stop"))

    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, instructions: str = ""
    ) -> AsyncIterator[ModelEvent]:
        for event in self.events:
            yield event


@breaks(ModelContract, "test_is_a_model")
class WithoutName(SoundModel):
    name = " "


@breaks(ModelContract, "test_answers_to_the_end")
class StopsWithoutFinished(SoundModel):
    events = (TextDelta("Hi."),)


@breaks(ModelContract, "test_calls_are_whole")
class CallsNothing(SoundModel):
    events = (CallDone(CallPart("1", "", {})), Finished("calls"))


@breaks(ModelContract, "test_leaves_the_conversation_alone")
class AnswersIntoTheConversation(SoundModel):
    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, instructions: str = ""
    ) -> AsyncIterator[ModelEvent]:
        assert isinstance(messages, list)
        messages.append(AssistantMessage(()))
        for event in self.events:
            yield event


@breaks(ModelContract, "test_takes_results_of_calls")
class RefusesResults(SoundModel):
    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, instructions: str = ""
    ) -> AsyncIterator[ModelEvent]:
        if any(isinstance(message, ToolMessage) for message in messages):
            raise NotImplementedError("no results")
        for event in self.events:
            yield event


@breaks(ModelContract, "test_can_be_left")
class ClosesSlowly(SoundModel):
    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, instructions: str = ""
    ) -> AsyncIterator[ModelEvent]:
        try:
            yield TextDelta("Hi.")
            yield Finished("stop")
        finally:
            await asyncio.sleep(5)


@breaks(ModelContract, "test_can_be_cancelled")
class GoesOnAnswering(SoundModel, Uncancellable):
    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, instructions: str = ""
    ) -> AsyncIterator[ModelEvent]:
        await self.work()
        yield Finished("stop")


# -- sandboxes


@breaks(SandboxContract, "test_starts_once")
class StartsAgain(FakeSandbox):
    async def start(self) -> SandboxStatus:
        self.lose()
        return await super().start()


@breaks(SandboxContract, "test_gives_the_result_as_json")
class LosesTheValue(FakeSandbox):
    async def call(self, request: SandboxCall) -> ToolResult:
        return dataclasses.replace(await super().call(request), value=None)


@breaks(SandboxContract, "test_tells_what_a_tool_raised")
class HidesExceptions(FakeSandbox):
    async def call(self, request: SandboxCall) -> ToolResult:
        result = await super().call(request)
        return ToolResult.error("It failed.") if result.is_error else result


@breaks(SandboxContract, "test_keeps_deadlines")
class IgnoresDeadlines(FakeSandbox):
    async def call(self, request: SandboxCall) -> ToolResult:
        return await super().call(dataclasses.replace(request, timeout_s=request.timeout_s + 5))


@breaks(SandboxContract, "test_can_be_cancelled")
class BreaksWhenCancelled(FakeSandbox):
    async def call(self, request: SandboxCall) -> ToolResult:
        try:
            return await super().call(request)
        except asyncio.CancelledError:
            await self.close()
            raise


@breaks(SandboxContract, "test_can_be_interrupted")
class LosesItsWorker(FakeSandbox):
    async def interrupt(self) -> None:
        self.lose()


@breaks(SandboxContract, "test_runs_no_call_that_was_interrupted_before")
class RunsWhatWasInterrupted(FakeSandbox):
    async def call(self, request: SandboxCall) -> ToolResult:
        request.dispatch.is_interrupted = False
        return await super().call(dataclasses.replace(request, timeout_s=0.1))


@breaks(SandboxContract, "test_takes_turns")
class RunsEverythingAtOnce(FakeSandbox):
    async def call(self, request: SandboxCall) -> ToolResult:
        overlapping = dataclasses.replace(request.shipment, concurrency="overlap")
        return await super().call(dataclasses.replace(request, shipment=overlapping))


@breaks(SandboxContract, "test_restarts_afresh")
class KeepsItsState(FakeSandbox):
    async def restart(self) -> SandboxStatus:
        return await self.start()


@breaks(SandboxContract, "test_reports_progress_in_order")
def reports_nothing(spec: WorkerSpec, listener: RecordingListener) -> Sandbox:
    return FakeSandbox(spec, RecordingListener())


@breaks(SandboxContract, "test_holds_trials_to_changing_nothing")
class TakesTrialsForCalls(FakeSandbox):
    async def call(self, request: SandboxCall) -> ToolResult:
        return await super().call(dataclasses.replace(request, is_trial=False))


@breaks(SandboxContract, "test_ends_what_runs_when_it_is_closed")
class StaysOpen(FakeSandbox):
    async def close(self) -> None:
        self.lose()


# -- the tests


SUITES = (ApproverContract, ToolContract, ModelContract, SandboxContract)
SOUND: Mapping[type, Callable[..., Any]] = {
    ApproverContract: AllowAll,
    ToolContract: SoundTool,
    ModelContract: SoundModel,
    SandboxContract: FakeSandbox,
}


def check(sentence: str, suite: type, make: Callable[..., Any], workspace: Path) -> None:
    """Run one test of a suite on what `make` returns."""
    test: Any = suite()
    spec = WorkerSpec(level="confined", workspace=str(workspace), limits=Limits())
    test.make = (lambda listener: make(spec, listener)) if suite is SandboxContract else make
    getattr(test, sentence.partition(".")[2])()


ALL = sorted(set().union(*map(sentences, SUITES)))


def test_every_sentence_has_a_broken_implementation() -> None:
    assert sorted(BROKEN) == ALL


@pytest.mark.sample(5)
@pytest.mark.parametrize("sentence", ALL)
def test_a_broken_implementation_fails(sentence: str, tmp_path: Path) -> None:
    suite, make = BROKEN[sentence]
    with pytest.raises(Exception) as failure:
        check(sentence, suite, make, tmp_path)
    assert not isinstance(failure.value, TimeoutError), "the suite hung instead of failing"


@pytest.mark.parametrize("sentence", ALL)
def test_a_sound_implementation_passes(sentence: str, tmp_path: Path) -> None:
    suite, _ = BROKEN[sentence]
    check(sentence, suite, SOUND[suite], tmp_path)


def test_a_suite_without_make_says_so() -> None:
    for suite in (ApproverContract, ToolContract, ModelContract):
        with pytest.raises(NotImplementedError):
            suite().make()
    with pytest.raises(NotImplementedError):
        SandboxContract().make(RecordingListener())


def test_a_scenario_that_hangs_ends() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run_limited(hang(), timeout_s=0.01)


async def test_the_listener_records_and_wakes_who_waits() -> None:
    listener = RecordingListener()
    waiting = asyncio.ensure_future(listener.wait_for("lost"))
    await asyncio.sleep(0)
    listener.output("c", "stdout", "hi")
    await asyncio.sleep(0)
    assert not waiting.done()
    listener.lost(1, "it died")
    await waiting
    assert listener.kinds() == ["output", "lost"]
    assert listener.events[1] == ("lost", 1, "it died")


def test_the_former_name_of_the_listener_still_works() -> None:
    assert aisotools.testing.__getattr__("Heard") is RecordingListener
    assert "Heard" in aisotools.testing.__all__


def test_a_mock_passes_the_suite_of_tools(tmp_path: Path) -> None:
    for sentence in sentences(ToolContract):
        check(sentence, ToolContract, MockTool, tmp_path)
