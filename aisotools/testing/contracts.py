"""The contracts of `aisotools.core.protocols` as test methods, for fakes, real parts and strangers' alike.

Subclass one in a test module, under a name that starts with `Test`, and say in `make` what is to be tested.

The contract of a sandbox as test methods, and a listener that remembers; see `contract_suites`.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from aisotools.core.exceptions import ArgumentError, SandboxError
from aisotools.core.messages import (
    AnswerReader,
    AssistantMessage,
    CallDone,
    CallPart,
    Finished,
    Message,
    Model,
    ModelEvent,
    ToolMessage,
    Usage,
    UserMessage,
    message_from_json,
    message_to_json,
)
from aisotools.core.protocols import (
    Approver,
    OutputCaps,
    Sandbox,
    SandboxCall,
    SandboxStatus,
    Tool,
    ToolContext,
)
from aisotools.core.types import Approval, ApprovalRequest, Effect, Json, ToolCall, ToolDefinition, ToolResult
from aisotools.tools.adapter import classify, payload_of, undo_path, validate_arguments, version_of
from aisotools.tools.function import FunctionTool, tool
from aisotools.tools.registry import ToolRegistry
from aisotools.tools.schema import check_name

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
        shipment = payload_of(self.make())
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


class RecordingListener:
    """A `SandboxListener` that remembers.

    Attributes:
        events: Tuples of what was heard, in order, each beginning with its kind.
    """

    def __init__(self) -> None:
        """Start with nothing heard."""
        self.events: list[tuple[Any, ...]] = []

    def output(self, call_id: str, stream: str, text: str) -> None:
        """A running call printed `text`."""
        self.events.append(("output", call_id, stream, text))

    def emitted(self, call_id: str, name: str, payload: Mapping[str, Json]) -> None:
        """A running tool reported progress."""
        self.events.append(("emitted", call_id, name, payload))

    def started(self, status: SandboxStatus, reason: str) -> None:
        """A worker is ready."""
        self.events.append(("started", status.generation, reason))

    def lost(self, generation: int, reason: str) -> None:
        """A worker ended unasked."""
        self.events.append(("lost", generation, reason))

    def kinds(self) -> list[str]:
        """The kinds of what was heard."""
        return [str(event[0]) for event in self.events]


# The former public name of `RecordingListener`; test modules outside this project import it.
Heard = RecordingListener


class SandboxContract:
    """What every sandbox must do."""

    heard: RecordingListener

    def make(self, heard: RecordingListener) -> Sandbox:
        """A sandbox that reports to `heard`; called once for each test, on its event loop."""
        raise NotImplementedError

    def run(self, scenario: Callable[[Sandbox], Awaitable[_T]]) -> _T:
        """Play `scenario` with a sandbox, which is closed afterwards."""

        async def play() -> _T:
            self.heard = RecordingListener()
            sandbox = self.make(self.heard)
            try:
                return await scenario(sandbox)
            finally:
                await sandbox.close()

        return run_limited(play())

    def test_starts_once(self) -> None:
        """Starting again gives the worker that is up."""

        async def scenario(sandbox: Sandbox) -> list[SandboxStatus]:
            before = sandbox.status()
            return [before, await sandbox.start(), await sandbox.start(), sandbox.status()]

        before, *after = self.run(scenario)
        assert (before.alive, before.generation) == (False, 0)
        assert [(status.alive, status.generation) for status in after] == [(True, 1)] * 3
        assert self.heard.events == [("started", 1, "")]

    def test_gives_the_result_as_json(self) -> None:
        """A call needs no start before it; what comes back is JSON."""
        result = self.run(lambda sandbox: sandbox.call(_fine()))
        assert not result.is_error, result.content
        assert result.value == [1, "x"]

    def test_tells_what_a_tool_raised(self) -> None:
        """An error of a tool is a result that says so, and the next call works."""

        async def scenario(sandbox: Sandbox) -> list[ToolResult]:
            return [
                await sandbox.call(_call(_failing, {})),
                await sandbox.call(_fine()),
            ]

        failed, fine = self.run(scenario)
        assert failed.is_error
        assert "ValueError: it went wrong" in failed.content
        assert not fine.is_error

    def test_keeps_deadlines(self) -> None:
        """Control is back half a second after the deadline at most, and the next call works."""

        async def scenario(sandbox: Sandbox) -> tuple[float, ToolResult, ToolResult]:
            await sandbox.start()
            began_s = time.monotonic()
            late = await sandbox.call(_call(_spin, {}, timeout_s=0.2))
            took_s = time.monotonic() - began_s
            return took_s, late, await sandbox.call(_fine())

        took_s, late, fine = self.run(scenario)
        assert late.is_error
        assert late.metadata["timed_out"] is True
        assert "0.2 s" in late.content
        assert took_s < 2, f"control came back after {took_s:.1f} s"
        assert not fine.is_error, fine.content

    def test_can_be_cancelled(self) -> None:
        """Cancelling the awaiting task stops the call, and the next one works."""

        async def scenario(sandbox: Sandbox) -> tuple[bool, ToolResult]:
            running = await _under_way(sandbox, self.heard, _spin)
            running.cancel()
            await asyncio.wait([running], timeout=3)
            return running.cancelled(), await sandbox.call(_fine())

        cancelled, fine = self.run(scenario)
        assert cancelled
        assert not fine.is_error, fine.content

    def test_can_be_interrupted(self) -> None:
        """An interrupt ends what runs with a result that says so, and keeps the worker."""

        async def scenario(sandbox: Sandbox) -> tuple[ToolResult, ToolResult]:
            running = await _under_way(sandbox, self.heard, _spin)
            await sandbox.interrupt()
            return await asyncio.wait_for(running, 3), await sandbox.call(_fine())

        stopped, fine = self.run(scenario)
        assert stopped.is_error
        assert stopped.metadata["stopped"] is True
        assert not fine.is_error, fine.content
        assert "lost" not in self.heard.kinds()

    def test_takes_turns(self) -> None:
        """Sync tools run one at a time; async ones overlap."""

        async def scenario(sandbox: Sandbox) -> tuple[list[ToolResult], list[ToolResult]]:
            one_by_one = await asyncio.gather(*(sandbox.call(_call(_span, {})) for _ in range(3)))
            together = await asyncio.gather(*(sandbox.call(_call(_async_span, {})) for _ in range(3)))
            return one_by_one, together

        one_by_one, together = self.run(scenario)
        assert not _overlapping([r.value for r in one_by_one])
        assert _overlapping([r.value for r in together])

    def test_restarts_afresh(self) -> None:
        """What a tool kept is there at its next call, and gone after a restart."""

        async def scenario(sandbox: Sandbox) -> tuple[list[Json], SandboxStatus]:
            counter = _counter()
            values = [(await sandbox.call(_call(counter, {}))).value for _ in range(2)]
            status = await sandbox.restart()
            return [*values, (await sandbox.call(_call(counter, {}))).value], status

        values, status = self.run(scenario)
        assert values == [1, 2, 1]
        assert (status.alive, status.generation) == (True, 2)
        assert [event for event in self.heard.events if event[0] == "started"][1][1:] == (
            2,
            "it was restarted",
        )

    def test_reports_progress_in_order(self) -> None:
        """What a tool emits is heard in order, and before its result."""
        result = self.run(lambda sandbox: sandbox.call(_call(_reporting, {"count": 3})))
        assert not result.is_error, result.content
        emitted = [event[2:] for event in self.heard.events if event[0] == "emitted"]
        assert emitted == [("step", {"number": n}) for n in range(3)]

    def test_ends_what_runs_when_it_is_closed(self) -> None:
        """Closing fails what runs, may be done twice, and nothing can be called afterwards."""

        async def scenario(sandbox: Sandbox) -> ToolResult:
            running = await _under_way(sandbox, self.heard, _spin)
            await sandbox.close()
            await sandbox.close()
            assert not sandbox.status().alive
            try:
                await sandbox.call(_fine())
            except SandboxError:
                return await asyncio.wait_for(running, 3)
            raise AssertionError("a closed sandbox took a call")

        assert self.run(scenario).is_error


_ids = iter(range(1 << 60))


def _call(
    tool: FunctionTool[..., Any], arguments: Mapping[str, Json], *, timeout_s: float = 20.0
) -> SandboxCall:
    shipment = tool.shipment()
    assert shipment is not None
    return SandboxCall(
        call=ToolCall(f"call-{next(_ids)}", tool.name, arguments),
        shipment=shipment,
        timeout_s=timeout_s,
        output_caps=OutputCaps(),
        session_key="contract",
    )


def _fine() -> SandboxCall:
    """A call that works."""
    return _call(_pair, {"a": 1, "b": "x"})


async def _under_way(
    sandbox: Sandbox, heard: RecordingListener, tool: FunctionTool[..., Any]
) -> asyncio.Task[ToolResult]:
    """A call that is known to have begun."""
    running = asyncio.ensure_future(sandbox.call(_call(tool, {})))
    async with asyncio.timeout(10):
        while "emitted" not in heard.kinds():
            assert not running.done(), running.result().content
            await asyncio.sleep(0.005)
    return running


def _overlapping(spans: Sequence[Sequence[float]]) -> bool:
    ordered = sorted((begun, ended) for begun, ended in spans)
    return any(later[0] < earlier[1] for earlier, later in pairwise(ordered))


@tool
def _pair(a: int, b: str) -> tuple[int, str]:
    """Give both back."""
    return a, b


@tool
def _failing() -> None:
    """Fail."""
    raise ValueError("it went wrong")


@tool
def _spin(context: ToolContext) -> None:
    """Never end by itself."""
    context.emit("begun")
    while True:
        time.sleep(0.001)


@tool
def _span() -> tuple[float, float]:
    """Take a moment, and tell when it began and ended."""
    began_s = time.monotonic()
    time.sleep(0.03)
    return began_s, time.monotonic()


@tool
async def _async_span() -> tuple[float, float]:
    """Take a moment without holding the thread, and tell when it began and ended."""
    began_s = time.monotonic()
    await asyncio.sleep(0.2)
    return began_s, time.monotonic()


@tool
def _reporting(count: int, context: ToolContext) -> None:
    """Report progress."""
    for number in range(count):
        context.emit("step", number=number)


def _counter() -> FunctionTool[[], int]:
    """A tool with a state of its own, which lives where the tool was sent."""
    calls = 0

    @tool
    def count() -> int:
        """Tell how often it was called."""
        nonlocal calls
        calls += 1
        return calls

    return count
