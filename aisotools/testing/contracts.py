"""The contracts of `aisotools.core.protocols` as test methods, for every implementation, fake or real.

Subclass one in a test module under a name that starts with `Test`, and return from `make` what to test.
Nothing here needs pytest: any runner that collects classes will do.
"""

from __future__ import annotations

import asyncio
import copy
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

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
from aisotools.core.protocols import Approver, OutputCaps, SupportsAsyncClose, Tool, ToolContext
from aisotools.core.sandboxes import Sandbox, SandboxCall, SandboxStatus
from aisotools.core.types import Approval, ApprovalRequest, Effect, Json, ToolCall, ToolDefinition, ToolResult
from aisotools.tools.adapter import (
    classify,
    examples_of,
    payload_of,
    undo_path,
    validate_arguments,
    version_of,
)
from aisotools.tools.function import FunctionTool, tool
from aisotools.tools.registry import ToolRegistry
from aisotools.tools.schema import check_name

_T = TypeVar("_T")

_HANG_LIMIT_S = 30.0  # no test takes longer; a contract that is broken may hang
_DEADLINE_LIMIT_S = 2.0  # a call with a deadline of 0.2 s must return within this time
_STOP_LIMIT_S = 1.0  # what is cancelled must end within this time

WRONG_ARGUMENTS: Sequence[Mapping[str, Json]] = (
    {},
    {"path": None, "operation": None, "command": None, "code": None},
    {"path": 1, "operation": 2, "command": 3, "code": 4},
    {"path": ["a"], "operation": {"b": []}, "command": True},
    {"path": "\0", "operation": "no such thing", "command": "", "an unlikely argument": "\ud800"},
)
"""Malformed arguments as models send them. No member of a tool may raise on any of them."""


class ApproverContract:
    """The contract of an `Approver`."""

    def make(self) -> Approver:
        """Return the approver to test; called once for each test."""
        raise NotImplementedError

    def request(self, name: str = "file") -> ApprovalRequest:
        """Return the request to ask about."""
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
        """The answer is an `Approval`."""

        async def ask() -> Approval:
            return await self.make().ask(self.request())

        answer: object = run_limited(ask())
        assert isinstance(answer, Approval), f"{answer!r} is not an Approval"

    def test_leaves_the_question_alone(self) -> None:
        """The request is not changed: edits go into the answer."""

        async def ask() -> tuple[ApprovalRequest, ApprovalRequest]:
            request = self.request()
            before = copy.deepcopy(request)
            await self.make().ask(request)
            return before, request

        before, after = run_limited(ask())
        assert before == after, "the approver changed the request"

    def test_can_be_withdrawn(self) -> None:
        """Cancelling the awaiting task ends the question within a second, answered or not."""

        async def ask() -> None:
            asking = asyncio.ensure_future(self.make().ask(self.request()))
            await asyncio.sleep(0)
            await _cancel(asking, "the question")

        run_limited(ask())

    def test_answers_several_questions(self) -> None:
        """Questions may be asked while others are open."""

        async def ask() -> list[Approval]:
            approver = self.make()
            return await asyncio.gather(*(approver.ask(self.request(name)) for name in ("a", "b", "c")))

        answers = run_limited(ask())
        assert len(answers) == 3


class ToolContract:
    """The contract of a `Tool`, without running it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse an override that nothing calls.

        Raises:
            TypeError: If the subclass defines `fitting`, the former name of `valid_arguments`.
        """
        super().__init_subclass__(**kwargs)
        if "fitting" in vars(cls):
            raise TypeError(f"{cls.__name__}.fitting is never called; rename it to `valid_arguments`.")

    arguments: Sequence[Mapping[str, Json]] = ()
    """Valid arguments, in addition to the tool's own examples."""

    def make(self) -> Tool:
        """Return the tool to test; called once for each test."""
        raise NotImplementedError

    def valid_arguments(self, tool: Tool) -> list[Mapping[str, Json]]:
        """Return all arguments that are known to be valid."""
        return [*self.arguments, *(arguments for arguments, _ in examples_of(tool))]

    def test_is_a_tool(self) -> None:
        """Check that it has the four members, a valid name, and a description."""
        tool = self.make()
        assert isinstance(tool, Tool), f"{tool!r} lacks a member of Tool"
        assert check_name(tool.name) == tool.name
        assert tool.description.strip(), f"{tool.name} has no description"

    def test_can_be_registered(self) -> None:
        """Its schema is a JSON Schema of type object. Changing an exported copy does not change it."""
        tool = self.make()
        registry = ToolRegistry([tool])
        exported = registry.definitions("openai")[0]["function"]["parameters"]
        assert exported["type"] == "object"
        exported.clear()
        assert registry.definitions("openai")[0]["function"]["parameters"] == tool.parameters_schema()

    def test_takes_what_fits(self) -> None:
        """Validating valid arguments again does not change them: the call shown is the call that runs."""
        tool = self.make()
        for arguments in self.valid_arguments(tool):
            valid = validate_arguments(tool, arguments)
            assert validate_arguments(tool, valid) == valid

    def test_refuses_other_kinds_of_arguments_in_words(self) -> None:
        """Invalid arguments raise an `ArgumentError` that names the tool."""
        tool = self.make()
        for arguments in (*WRONG_ARGUMENTS, ["a"], "a", None, 1):
            message = _argument_error(tool, arguments)
            assert message is None or tool.name in message, f"{message} does not name {tool.name}"

    def test_classifies(self) -> None:
        """Every call has an effect and an undo path or None. Neither raises on malformed arguments."""
        tool = self.make()
        for arguments in (*self.valid_arguments(tool), *WRONG_ARGUMENTS):
            assert isinstance(classify(tool, arguments), Effect)
            assert isinstance(undo_path(tool, arguments), Path | None)

    def test_has_a_version(self) -> None:
        """The version of the same tool stays the same: approvals are bound to it."""
        tool = self.make()
        assert version_of(tool) == version_of(tool)

    def test_travels(self) -> None:
        """A tool that runs in a sandbox has a key, and either an import path or a pickle."""
        payload = payload_of(self.make())
        if payload is not None:
            assert payload.key
            assert bool(payload.import_path) != bool(payload.payload)


class ModelContract:
    """The contract of a `Model`. The content of its answers does not matter."""

    tools: Sequence[ToolDefinition] = (
        ToolDefinition("look", "Look at something.", {"type": "object", "properties": {}}),
    )
    """The tools it may call."""

    def make(self) -> Model:
        """Return the model to test; called once for each test."""
        raise NotImplementedError

    def conversation(self) -> Sequence[Message]:
        """Return the conversation that it gets."""
        return [UserMessage("Hello.")]

    def test_is_a_model(self) -> None:
        """Check that it has the members of `Model`, and a name."""
        model = self.make()
        assert isinstance(model, Model), f"{model!r} lacks a member of Model"
        assert model.name.strip(), "a model needs a name"

    def test_answers_to_the_end(self) -> None:
        """Its events make a message. `Finished` comes once and last, `Usage` at most once and before it."""
        events = self._events(self.conversation())
        finished = [event for event in events if isinstance(event, Finished)]
        assert finished == events[-1:], "Finished must come once, and last"
        usage = [event for event in events if isinstance(event, Usage)]
        assert len(usage) <= 1, "Usage must come at most once"
        reader = AnswerReader("a model")
        for event in events:
            reader.add(event)
        answer = reader.answer()
        assert message_from_json(message_to_json(answer.message)) == answer.message

    def test_calls_are_whole(self) -> None:
        """A call has the name of a tool, and an object of arguments."""
        for event in self._events(self.conversation()):
            if isinstance(event, CallDone):
                assert event.call.name
                assert isinstance(event.call.arguments, Mapping)

    def test_leaves_the_conversation_alone(self) -> None:
        """The conversation is not changed."""
        messages = list(self.conversation())
        before = copy.deepcopy(messages)
        self._events(messages)
        assert messages == before, "the model changed the conversation"

    def test_takes_results_of_calls(self) -> None:
        """Check that it accepts a conversation with a call and its result."""
        call = CallPart("a-1", "look", {})
        messages: list[Message] = [UserMessage("Look."), AssistantMessage((call,), reason="calls")]
        self._events([*messages, ToolMessage("a-1", "look", "Nothing there.", is_error=True)])

    def test_can_be_left(self) -> None:
        """Closing the stream after the first event ends the request within a second."""

        async def leave() -> None:
            stream: AsyncIterator[ModelEvent] = self.make().request(self.conversation(), self.tools)
            await anext(stream, None)
            if isinstance(stream, SupportsAsyncClose):
                closing = asyncio.ensure_future(stream.aclose())
                await asyncio.wait([closing], timeout=_STOP_LIMIT_S)
                assert closing.done(), f"the stream was not closed within {_STOP_LIMIT_S:g} s"
                await closing

        run_limited(leave())

    def test_can_be_cancelled(self) -> None:
        """Cancelling the task that reads the stream ends the request within a second."""

        async def cancel() -> None:
            reading = asyncio.ensure_future(self._read(self.conversation()))
            await asyncio.sleep(0)
            await _cancel(reading, "the request")

        run_limited(cancel())

    def _events(self, messages: Sequence[Message]) -> list[ModelEvent]:
        return run_limited(self._read(messages))

    async def _read(self, messages: Sequence[Message]) -> list[ModelEvent]:
        model = self.make()
        try:
            return [event async for event in model.request(messages, self.tools, instructions="Be brief.")]
        finally:
            if isinstance(model, _SupportsClose):
                await model.close()


@runtime_checkable
class _SupportsClose(Protocol):
    """A model that holds a connection or a process."""

    async def close(self) -> None: ...


def run_limited(scenario: Awaitable[_T], timeout_s: float = _HANG_LIMIT_S) -> _T:
    """Run `scenario` on an event loop of its own.

    Raises:
        TimeoutError: After `timeout_s` seconds.
    """

    async def limited() -> _T:
        return await asyncio.wait_for(scenario, timeout_s)

    return asyncio.run(limited())


async def _cancel(task: asyncio.Future[Any], subject: str) -> None:
    """Cancel `task` and fail unless it ends in time; being cancelled too late to matter is fine."""
    task.cancel()
    await asyncio.wait([task], timeout=_STOP_LIMIT_S)
    assert task.done(), f"{subject} was cancelled, and did not end within {_STOP_LIMIT_S:g} s"


def _argument_error(tool: Tool, arguments: Any) -> str | None:
    try:
        validate_arguments(tool, arguments)
    except ArgumentError as error:
        return str(error)
    return None


class RecordingListener:
    """A `SandboxListener` that records the events of a sandbox. Use it on one event loop.

    Attributes:
        events: One tuple for each event, in order. The first item is its kind: `output`, `emitted`,
            `started`, `lost` or `variables_dropped`.
    """

    def __init__(self) -> None:
        """Start without events."""
        self.events: list[tuple[Any, ...]] = []
        self._changed = asyncio.Event()

    def output(self, call_id: str, stream: str, text: str) -> None:
        """Record text that a running call printed."""
        self._record("output", call_id, stream, text)

    def emitted(self, call_id: str, name: str, payload: Mapping[str, Json]) -> None:
        """Record progress that a running tool reported."""
        self._record("emitted", call_id, name, payload)

    def started(self, status: SandboxStatus, reason: str) -> None:
        """Record that a worker is ready."""
        self._record("started", status.generation, reason)

    def lost(self, generation: int, reason: str) -> None:
        """Record that a worker ended by itself."""
        self._record("lost", generation, reason)

    def variables_dropped(self, call_ids: Sequence[str], reason: str) -> None:
        """Record that variables are not kept, or no longer."""
        self._record("variables_dropped", tuple(call_ids), reason)

    def kinds(self) -> list[str]:
        """Return the kinds of the events, in order."""
        return [str(event[0]) for event in self.events]

    async def wait_for(self, kind: str) -> None:
        """Wait until there is an event of this kind."""
        while kind not in self.kinds():
            self._changed.clear()
            await self._changed.wait()

    def _record(self, *event: Any) -> None:
        self.events.append(event)
        self._changed.set()


# The former public name of `RecordingListener`; test modules outside this project import it.
Heard = RecordingListener


class SandboxContract:
    """The contract of a `Sandbox`.

    Attributes:
        listener: The events of the sandbox under test.
    """

    listener: RecordingListener

    def make(self, listener: RecordingListener) -> Sandbox:
        """Return the sandbox to test, which reports to `listener`; called once for each test."""
        raise NotImplementedError

    def run(self, scenario: Callable[[Sandbox], Awaitable[_T]]) -> _T:
        """Run `scenario` with a new sandbox, and close it afterwards."""

        async def play() -> _T:
            self.listener = RecordingListener()
            sandbox = self.make(self.listener)
            try:
                return await scenario(sandbox)
            finally:
                await sandbox.close()

        return run_limited(play())

    def test_starts_once(self) -> None:
        """A second start keeps the running worker."""

        async def scenario(sandbox: Sandbox) -> list[SandboxStatus]:
            before = sandbox.status()
            return [before, await sandbox.start(), await sandbox.start(), sandbox.status()]

        before, *after = self.run(scenario)
        assert (before.alive, before.generation) == (False, 0)
        assert [(status.alive, status.generation) for status in after] == [(True, 1)] * 3
        assert self.listener.events == [("started", 1, "")]

    def test_gives_the_result_as_json(self) -> None:
        """A call starts the sandbox. Its value is JSON."""
        result = self.run(lambda sandbox: sandbox.call(_fine()))
        assert not result.is_error, result.content
        assert result.value == [1, "x"]

    def test_tells_what_a_tool_raised(self) -> None:
        """An exception of a tool is a result with its type and message, and the next call works."""

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
        """A call beyond its deadline of 0.2 s returns within 2 s and says so, and the next call works."""

        async def scenario(sandbox: Sandbox) -> tuple[ToolResult, ToolResult]:
            await sandbox.start()
            spinning = asyncio.ensure_future(sandbox.call(_call(_spin, {}, timeout_s=0.2)))
            await asyncio.wait([spinning], timeout=_DEADLINE_LIMIT_S)
            assert spinning.done(), f"the deadline of 0.2 s was exceeded by {_DEADLINE_LIMIT_S:g} s"
            return await spinning, await sandbox.call(_fine())

        late, fine = self.run(scenario)
        assert late.is_error
        assert late.metadata["timed_out"] is True
        assert "0.2 s" in late.content
        assert not fine.is_error, fine.content

    def test_can_be_cancelled(self) -> None:
        """Cancelling the awaiting task stops the call, and the next one works."""

        async def scenario(sandbox: Sandbox) -> tuple[bool, ToolResult]:
            running = await _start_call(sandbox, self.listener, _spin)
            running.cancel()
            await asyncio.wait([running], timeout=3)
            return running.cancelled(), await sandbox.call(_fine())

        cancelled, fine = self.run(scenario)
        assert cancelled
        assert not fine.is_error, fine.content

    def test_can_be_interrupted(self) -> None:
        """An interrupt ends what runs with a result that says so, and keeps the worker."""

        async def scenario(sandbox: Sandbox) -> tuple[ToolResult, ToolResult]:
            running = await _start_call(sandbox, self.listener, _spin)
            await sandbox.interrupt()
            return await running, await sandbox.call(_fine())

        stopped, fine = self.run(scenario)
        assert stopped.is_error
        assert stopped.metadata["stopped"] is True
        assert not fine.is_error, fine.content
        assert "lost" not in self.listener.kinds()

    def test_runs_no_call_that_was_interrupted_before(self) -> None:
        """A call that somebody has asked to stop on its way here is not run."""

        async def scenario(sandbox: Sandbox) -> tuple[SandboxCall, ToolResult]:
            stopped = _call(_spin, {})
            stopped.dispatch.is_interrupted = True
            return stopped, await sandbox.call(stopped)

        stopped, result = self.run(scenario)
        assert result.metadata["stopped"] is True
        assert not stopped.dispatch.is_given

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
        """State of a tool lasts until the next call, and is gone after a restart, which one result says."""

        async def scenario(sandbox: Sandbox) -> tuple[list[ToolResult], SandboxStatus]:
            counter = _counter()
            results = [await sandbox.call(_call(counter, {})) for _ in range(2)]
            status = await sandbox.restart()
            return [*results, *[await sandbox.call(_call(counter, {})) for _ in range(2)]], status

        results, status = self.run(scenario)
        assert [result.value for result in results] == [1, 2, 1, 2]
        notices = ["the sandbox was restarted" in result.content.partition("\n")[0] for result in results]
        assert notices == [False, False, True, False], "the first line of the next result says that it was"
        assert (status.alive, status.generation) == (True, 2)
        assert [event for event in self.listener.events if event[0] == "started"][1][1:] == (
            2,
            "it was restarted",
        )

    def test_reports_progress_in_order(self) -> None:
        """Progress is reported in order, and before the result."""
        result = self.run(lambda sandbox: sandbox.call(_call(_reporting, {"count": 3})))
        assert not result.is_error, result.content
        emitted = [event[2:] for event in self.listener.events if event[0] == "emitted"]
        assert emitted == [("step", {"number": n}) for n in range(3)]

    def test_holds_trials_to_changing_nothing(self) -> None:
        """A trial is refused, or is silent and writes in a scratch folder alone, which is gone after it."""

        async def scenario(sandbox: Sandbox) -> tuple[ToolResult, ToolResult]:
            trial = replace(_call(_trying, {}), read_only=True, in_reader=True, is_trial=True)
            return await sandbox.call(trial), await sandbox.call(_fine())

        tried, fine = self.run(scenario)
        assert "emitted" not in self.listener.kinds()
        if tried.is_error:
            assert tried.error_kind == "environment", tried.content
        else:
            assert tried.value["written"] == ["scratch"]
            assert not Path(tried.value["scratch"]).exists()
        assert not fine.is_error, fine.content

    def test_ends_what_runs_when_it_is_closed(self) -> None:
        """Closing ends running calls with an error, and may be repeated. Later calls raise `SandboxError`."""

        async def scenario(sandbox: Sandbox) -> ToolResult:
            running = await _start_call(sandbox, self.listener, _spin)
            await sandbox.close()
            await sandbox.close()
            assert not sandbox.status().alive
            try:
                await sandbox.call(_fine())
            except SandboxError:
                return await running
            raise AssertionError("a closed sandbox accepted a call")

        assert self.run(scenario).is_error


_ids = iter(range(1 << 60))


def _call(
    tool: FunctionTool[..., Any], arguments: Mapping[str, Json], *, timeout_s: float = 20.0
) -> SandboxCall:
    payload = tool.shipment()
    assert payload is not None
    return SandboxCall(
        call=ToolCall(f"call-{next(_ids)}", tool.name, arguments),
        shipment=payload,
        timeout_s=timeout_s,
        output_caps=OutputCaps(),
        session_key="contract",
    )


def _fine() -> SandboxCall:
    """Return a call that succeeds."""
    return _call(_pair, {"a": 1, "b": "x"})


async def _start_call(
    sandbox: Sandbox, listener: RecordingListener, tool: FunctionTool[..., Any]
) -> asyncio.Task[ToolResult]:
    """Start a call and return once the tool has reported progress."""
    running = asyncio.ensure_future(sandbox.call(_call(tool, {})))
    reported = asyncio.ensure_future(listener.wait_for("emitted"))
    await asyncio.wait([running, reported], return_when=asyncio.FIRST_COMPLETED)
    reported.cancel()
    assert not running.done(), running.result().content
    return running


def _overlapping(spans: Sequence[Sequence[float]]) -> bool:
    ordered = sorted((start_s, end_s) for start_s, end_s in spans)
    return any(later[0] < earlier[1] for earlier, later in pairwise(ordered))


@tool
def _pair(a: int, b: str) -> tuple[int, str]:
    """Return both."""
    return a, b


@tool
def _failing() -> None:
    """Raise an error."""
    raise ValueError("it went wrong")


@tool
def _spin(context: ToolContext) -> None:
    """Never end by itself."""
    context.emit("begun")
    while True:
        time.sleep(0.001)


@tool
def _span() -> tuple[float, float]:
    """Block for a moment, and return when it started and ended."""
    start_s = time.monotonic()
    time.sleep(0.03)
    return start_s, time.monotonic()


@tool
async def _async_span() -> tuple[float, float]:
    """Sleep without blocking the thread, and return when it started and ended."""
    start_s = time.monotonic()
    await asyncio.sleep(0.2)
    return start_s, time.monotonic()


@tool
def _reporting(count: int, context: ToolContext) -> None:
    """Report progress."""
    for number in range(count):
        context.emit("step", number=number)


@tool
def _trying(context: ToolContext) -> dict[str, Any]:
    """Report progress, and return where a file can be written: in the scratch folder, in the workspace."""
    context.emit("begun")
    scratch = os.environ.get("TMPDIR", "")
    written = []
    for name, folder in (("scratch", scratch), ("workspace", str(context.workspace_path))):
        try:
            os.close(os.open(f"{folder}/tried-{os.getpid()}", os.O_CREAT | os.O_WRONLY, 0o600))
        except OSError:
            continue
        written.append(name)
    return {"scratch": scratch, "written": written}


def _counter() -> FunctionTool[[], int]:
    """Return a tool with state, which lives in the worker that the tool was sent to."""
    calls = 0

    @tool
    def count() -> int:
        """Return how often it was called."""
        nonlocal calls
        calls += 1
        return calls

    return count
