"""One run of an agent: its result, its handle, stepping through it by hand, and the driver.

The driver carries out what `agent.loop` decides: it asks the model, makes calls through the session's gate,
and asks people. A `Stepper` is asked before each request and each call, a `Chooser` when the model cannot
decide.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Generator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from aisotools.agent import loop
from aisotools.agent.budgets import RunClock
from aisotools.agent.loop import (
    MIN_TRIMMED_CHARS,
    AskModel,
    Choose,
    ConversationState,
    End,
    MakeCalls,
    RunSettings,
    Transition,
)
from aisotools.core.concurrency import LoopTicker
from aisotools.core.events import (
    AgentEvent,
    ApprovalAnswered,
    ApprovalAsked,
    CallFinished,
    ContextTrimmed,
    ConversationEdited,
    ModelAnswered,
    ModelRequested,
    ModelRetried,
    ModelStreamed,
    RunOutcome,
    SessionEvent,
    StepTaken,
)
from aisotools.core.exceptions import ModelError, UsageError
from aisotools.core.messages import (
    AnswerReader,
    AssistantMessage,
    CallPart,
    ImagePart,
    Message,
    Model,
    ModelResponse,
    TextPart,
    ToolMessage,
    Usage,
    conversation_digest,
    since_last_answer,
)
from aisotools.core.protocols import SupportsAsyncClose, SupportsPerson
from aisotools.core.types import Json, ToolCall, ToolDefinition, ToolResult
from aisotools.session.event_log import Listener
from aisotools.session.session import Session
from aisotools.tools.adapter import supports

_log = logging.getLogger(__name__)

_MAX_PENDING_PIECES = 10_000  # of streamed answers that nobody fetches; a long answer has a few thousand
_MAX_RETRY_WAIT_S = 60.0  # a provider that asks for more is taken to be out of reach
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")  # what every provider accepts
_MAX_IMAGE_CHARS = 7_000_000  # in base64: providers refuse pictures of more than 5 MB
_READ_TOOL = "read_result"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run.

    Attributes:
        text: The text of the model's last answer; may be empty unless the outcome is `answered`.
        outcome: How the run ended; see `core.events.RunOutcome`.
        reason: Why, in words; empty when the model simply answered.
        steps: Answers asked of the model.
        calls: Calls of tools.
        usage: What the answers took.
        duration_s: Seconds on the clock.
        working_s: Seconds without those in which a person was waited for.
        messages: The messages of this run.
        options: With outcome `undecided`: what the model proposed.
    """

    text: str
    outcome: RunOutcome
    reason: str = ""
    steps: int = 0
    calls: int = 0
    usage: Usage = field(default_factory=lambda: Usage(requests=0))
    duration_s: float = 0.0
    working_s: float = 0.0
    messages: tuple[Message, ...] = ()
    options: tuple[CallPart, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the run ended with an answer of the model."""
        return self.outcome == "answered"

    def __str__(self) -> str:
        if self.ok:
            return self.text
        ending = f"[{self.outcome}: {self.reason}]" if self.reason else f"[{self.outcome}]"
        return f"{self.text}\n{ending}" if self.text else ending


class AgentRun:
    """A run in the background: await it for its `RunResult`, or iterate over its events.

    Cancelling the task that awaits it does not stop the run; `cancel` does.

    Attributes:
        events: The run's events from the start, as an async iterator that ends with the run.
    """

    def __init__(
        self,
        task: asyncio.Task[RunResult],
        events: LiveEvents,
        cancelled_result: Callable[[], RunResult | None],
    ) -> None:
        """Wrap `task`.

        Args:
            task: The run.
            events: Its events; closed when the task ends.
            cancelled_result: Return the result of a cancelled task, or None if it was cancelled before its
                start.
        """
        self._task = task
        self._cancelled_result = cancelled_result
        self._result: asyncio.Future[RunResult] = task.get_loop().create_future()
        self.events = events
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[RunResult]) -> None:
        self.events.close()
        if task.cancelled():
            # Race: a task that is cancelled before its first step never runs a line of its own.
            not_started = RunResult(text="", outcome="cancelled", reason="it was cancelled before it began")
            self._result.set_result(self._cancelled_result() or not_started)
        elif (error := task.exception()) is not None:
            self._result.set_exception(error)
        else:
            self._result.set_result(task.result())

    def __repr__(self) -> str:
        return f"<AgentRun {'done' if self.done else 'running'}>"

    def __await__(self) -> Generator[None, None, RunResult]:
        """Wait for the result; its outcome is `cancelled` after `cancel`.

        Raises:
            CancelledError: If the awaiting task is cancelled; the run goes on.
        """
        # Several may wait for one run. Without the shield, a waiter that is cancelled would cancel the result
        # for all others, while the run itself goes on.
        return asyncio.shield(self._result).__await__()

    @property
    def done(self) -> bool:
        """True once the run is over."""
        return self._result.done()

    @property
    def result(self) -> RunResult | None:
        """The result; None while the run goes on."""
        return self._result.result() if self._result.done() else None

    def cancel(self) -> None:
        """Stop the run and its current call. Do nothing if the run is over."""
        self._task.cancel()


class LiveEvents:
    """The events of a run, as an async iterator that waits for the next one.

    If nobody fetches them, pieces of streamed answers are dropped beyond a limit; other events never are.
    """

    def __init__(self) -> None:
        self._pending: deque[SessionEvent] = deque()
        self._pieces = 0
        self._changed = asyncio.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"<LiveEvents {len(self._pending)} pending, {'closed' if self._closed else 'open'}>"

    def add(self, event: SessionEvent) -> None:
        """Append an event."""
        if isinstance(event, ModelStreamed):
            if self._pieces >= _MAX_PENDING_PIECES:
                return
            self._pieces += 1
        self._pending.append(event)
        self._changed.set()

    def close(self) -> None:
        """End the iteration once the pending events were fetched."""
        self._closed = True
        self._changed.set()

    def __aiter__(self) -> AsyncIterator[SessionEvent]:
        return self

    async def __anext__(self) -> SessionEvent:
        while not self._pending:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        event = self._pending.popleft()
        if isinstance(event, ModelStreamed):
            self._pieces -= 1
        return event


StepAction = Literal["continue", "edit", "skip", "answer", "stop"]
"""Go on unchanged, go on with an edit, leave it out, answer in its place, or end the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeRequest:
    """The moment before a request to the model.

    Attributes:
        step: Number of the request in the conversation, from 1.
        messages: The conversation that would be sent.
        tools: The tools that would be offered.
    """

    step: int
    messages: Sequence[Message]
    tools: Sequence[ToolDefinition]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeCall:
    """The moment before a call goes to the gate, which still decides and asks as always.

    Attributes:
        step: Number of the request whose answer holds the call, from 1.
        call: The call.
    """

    step: int
    call: CallPart


@dataclass(frozen=True, slots=True)
class StepChoice:
    """A decision about the request or call that is about to be made.

    Attributes:
        action: `continue`; `edit` with `messages` or `arguments`; `answer` with `text`, in the model's or the
            tool's place; `skip`, which leaves a call out and for a request is the same as `stop`; `stop`.
        messages: For a request: the conversation to go on from.
        arguments: For a call: what to call with.
        text: The answer.
    """

    action: StepAction = "continue"
    _: KW_ONLY
    messages: Sequence[Message] | None = None
    arguments: Mapping[str, Json] | None = None
    text: str = ""

    def __post_init__(self) -> None:
        if self.action not in {"continue", "edit", "skip", "answer", "stop"}:
            known = "continue, edit, skip, answer, stop"
            raise UsageError(f"StepChoice action {self.action!r} is not one of {known}.")
        if self.action == "edit" and self.messages is None and self.arguments is None:
            raise UsageError("StepChoice('edit') needs messages= (a request) or arguments= (a call).")


@runtime_checkable
class Stepper(Protocol):
    """Asked before each request and each call of a run."""

    async def pause(self, moment: BeforeRequest | BeforeCall) -> StepChoice:
        """Return how to go on. The time this takes does not count as working time."""


@runtime_checkable
class Chooser(Protocol):
    """Asked when the model cannot choose between calls."""

    async def choose(self, question: str, options: Sequence[CallPart]) -> CallPart | str | None:
        """Return one of `options`, edited or not; or text for the model instead; or None to end the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverDependencies:
    """The collaborators of a driver.

    Attributes:
        model: Answers requests.
        session: Makes calls.
        instructions: The system prompt.
        definitions: Return the tools that are offered to the model; asked again before each request.
        stepper: Asked before each request and call, if given.
        chooser: Asked when the model cannot choose, if given.
        on_event: Called with the pieces of answers as they stream in.
        agent_ids: Ids of this agent and of the agents that work for it. While a person is asked about a call
            of any of them, this run's working time stands still.
    """

    model: Model
    session: Session
    instructions: str
    definitions: Callable[[], Sequence[ToolDefinition]]
    stepper: Stepper | None
    chooser: Chooser | None
    on_event: Listener
    agent_ids: Collection[str]


class Driver:
    """Drives one run from action to action.

    Attributes:
        state: The conversation; consistent whenever `drive` has returned or raised.
        settings: What does not change during the run.
        clock: The time the run took.
        options: The calls that the model proposed when it last could not choose.
    """

    def __init__(
        self, dependencies: DriverDependencies, state: ConversationState, settings: RunSettings
    ) -> None:
        self._deps = dependencies
        self.state = state
        self.settings = settings
        self.clock = RunClock(settings.budgets)
        self.options: tuple[CallPart, ...] = ()
        self._turn_id = ""
        self._request_started_s = 0.0
        self._usage = Usage(requests=0)
        self._ticker = LoopTicker()
        self._results: dict[str, ToolMessage] = {}
        self._open_questions: set[str] = set()

    async def drive(self, transition: Transition) -> End:
        """Carry out `transition` and everything that follows from it. Return how the run ended.

        Raises:
            CancelledError: If the awaiting task is cancelled.
            UsageError: If the session cannot be used: it was closed, or belongs to another loop.
        """
        self.state = transition.state
        unsubscribe = self._deps.session.subscribe(self._on_event)
        try:
            while not isinstance(transition.action, End):
                transition = await self._carry_out(transition.action)
                self.state = transition.state
            return transition.action
        except asyncio.CancelledError:
            # The run may break off between an answer and the results of its calls. Each open call gets one
            # that says so: providers refuse a conversation with a call that was never answered.
            self._abort(End("cancelled", "it was cancelled"))
            raise
        except UsageError as error:
            self._abort(End("failed", str(error)))
            raise
        except ModelError as error:
            return self._abort(End("failed", str(error)))
        except Exception as error:
            # Models, steppers and choosers are other people's code: whatever they raise ends this run only.
            spent = self.clock.spent() if isinstance(error, TimeoutError) else ""
            if spent:
                return self._abort(End("budget", spent))
            _log.exception("The run of %s failed", self.settings.agent_id)
            return self._abort(End("failed", f"{type(error).__name__}: {error}"))
        finally:
            unsubscribe()

    def record(self, kind: type[AgentEvent], **fields: Any) -> None:
        """Record an event of this run in the session."""
        self._deps.session.record(kind, agent_id=self.settings.agent_id, step=self.state.step, **fields)

    def spend(self, usage: Usage) -> None:
        """Count what another agent used up on behalf of this run."""
        self.state = dataclasses.replace(self.state, usage=self.state.usage + usage)

    def _abort(self, end: End) -> End:
        self.state = loop.abort(self.state, end.outcome, end.reason, self._results).state
        return end

    def _on_event(self, event: SessionEvent) -> None:
        """Keep results of calls as they arrive, and stop the clock while a person is asked."""
        if isinstance(event, CallFinished):
            # Cancelled in the middle of a batch: `call_many` never returns, but some of its calls have
            # finished. Their results belong into the conversation, because their effects have happened.
            if event.call_id.startswith(f"{self.settings.agent_id}-"):
                self._results[event.call_id] = self._tool_message(event.call_id, event.name, event.result)
        elif isinstance(event, ApprovalAsked) and event.request.call.agent_id in self._deps.agent_ids:
            self._open_questions.add(event.request.id)
            self.clock.pause()
        elif isinstance(event, ApprovalAnswered) and event.request_id in self._open_questions:
            self._open_questions.discard(event.request_id)
            self.clock.resume()

    async def _carry_out(self, action: AskModel | MakeCalls | Choose) -> Transition:
        self._results.clear()
        async with self.clock.limited():
            match action:
                case AskModel():
                    return await self._ask(action)
                case MakeCalls(calls):
                    return await self._make_calls(calls)
                case Choose(options, question):
                    self.options = options
                    return await self._choose(options, question)

    # ---- the model

    async def _ask(self, action: AskModel) -> Transition:
        if action.trimmed:
            self.record(ContextTrimmed, call_ids=action.trimmed, chars=action.trimmed_chars)
        tools = self._deps.definitions()
        messages = action.messages
        choice = StepChoice()
        if self._deps.stepper is not None:
            moment = BeforeRequest(step=self.state.step, messages=messages, tools=tools)
            choice = await self._pause(self._deps.stepper, moment)
            if choice.action in {"stop", "skip"}:
                return loop.abort(self.state, "stopped", "stopped before a request")
            if choice.action == "edit" and choice.messages is not None:
                self.state = loop.replace_messages(self.state, choice.messages, asking=True)
                messages = self.state.messages
                self.record(ConversationEdited, messages=messages)
        self._turn_id = f"{self.settings.agent_id}-t{uuid.uuid4().hex[:8]}"
        self._request_started_s = time.monotonic()
        new = since_last_answer(messages)
        self.record(ModelRequested, turn_id=self._turn_id, new=new, digest=conversation_digest(new))
        if choice.action == "answer":
            message = AssistantMessage((TextPart(choice.text),), model="person")
            answer = ModelResponse(message=message, usage=Usage(cost=0.0))
        else:
            answer = await self._answer_with_retries(tools)
        self._usage = answer.usage
        transition = loop.receive_answer(self.state, self.settings, answer)
        if not isinstance(transition.action, Choose):
            self._record_answer(transition.state)
        return transition

    def _record_answer(self, state: ConversationState) -> None:
        """Record the last answer; its calls carry the ids under which they are made."""
        message = next(m for m in reversed(state.messages) if isinstance(m, AssistantMessage))
        self.record(
            ModelAnswered,
            turn_id=self._turn_id,
            message=message,
            usage=self._usage,
            duration_s=time.monotonic() - self._request_started_s,
        )

    async def _answer_with_retries(self, tools: Sequence[ToolDefinition]) -> ModelResponse:
        """Ask the model, again after errors that are worth it, as often as the budgets allow."""
        budgets = self.settings.budgets
        failures = 0
        with self._ticker:
            while True:
                try:
                    return await self._stream_answer(tools)
                except ModelError as error:
                    wait_s = min(budgets.retry_wait_s * 2**failures, _MAX_RETRY_WAIT_S)
                    if error.retry_after_s is not None:
                        wait_s = error.retry_after_s
                    failures += 1
                    if not error.retryable or failures > budgets.retries or wait_s > _MAX_RETRY_WAIT_S:
                        raise
                    self.record(ModelRetried, reason=str(error), wait_s=wait_s)
                    await asyncio.sleep(wait_s)

    async def _stream_answer(self, tools: Sequence[ToolDefinition]) -> ModelResponse:
        model = self._deps.model
        reader = AnswerReader(model.name)
        stream = model.request(self.state.messages, tools, instructions=self._deps.instructions)
        answered_by_person = supports(model, SupportsPerson) and model.is_person
        if answered_by_person:
            self.clock.pause()
        try:
            async for event in stream:
                reader.add(event)
                self._deps.on_event(
                    ModelStreamed(
                        time_s=time.time(), agent_id=self.settings.agent_id, step=self.state.step, event=event
                    )
                )
                if reader.done:
                    break
        finally:
            if answered_by_person:
                self.clock.resume()
            # The reader stops at `Finished`, or an error cut the stream: let a generator release its
            # connection.
            if supports(stream, SupportsAsyncClose):
                await stream.aclose()
        return reader.answer()

    # ---- calls

    async def _make_calls(self, calls: Sequence[CallPart]) -> Transition:
        stepper = self._deps.stepper
        if stepper is None:
            results = await self._call_through_gate(calls)
            return loop.receive_results(self.state, self.settings, results)
        results = []
        for call in calls:
            choice = await self._pause(stepper, BeforeCall(step=self.state.step, call=call))
            if choice.action == "stop":
                finished = {result.call_id: result for result in results}
                return loop.abort(self.state, "stopped", "stopped before a call", finished)
            if choice.action == "skip":
                reason = f"{call.name} was not run: whoever steps through this run left it out."
                results.append(ToolMessage(call.id, call.name, reason, is_error=True))
            elif choice.action == "answer":
                results.append(ToolMessage(call.id, call.name, choice.text))
            else:
                edited = call
                if choice.action == "edit" and choice.arguments is not None:
                    self.state = loop.replace_arguments(self.state, call.id, choice.arguments)
                    edited = CallPart(call.id, call.name, choice.arguments)
                    self.record(ConversationEdited, messages=self.state.messages)
                results += await self._call_through_gate([edited])
            self._results.update((result.call_id, result) for result in results)
        return loop.receive_results(self.state, self.settings, results)

    async def _call_through_gate(self, calls: Sequence[CallPart]) -> list[ToolMessage]:
        tool_calls = [
            ToolCall(
                call.id,
                call.name,
                call.arguments,
                origin="model",
                agent_id=self.settings.agent_id,
                turn_id=self._turn_id,
            )
            for call in calls
        ]
        results = await self._deps.session.call_many(tool_calls)
        return [
            self._tool_message(call.id, call.name, result)
            for call, result in zip(calls, results, strict=True)
        ]

    def _tool_message(self, call_id: str, name: str, result: ToolResult) -> ToolMessage:
        """Return a result as the model reads it."""
        known = self._results.get(call_id)
        if known is not None:
            return known
        images = tuple(
            ImagePart(mime, data)
            for mime, data in result.data.items()
            if mime in _IMAGE_TYPES and isinstance(data, str) and len(data) <= _MAX_IMAGE_CHARS
        )
        return ToolMessage(
            call_id,
            name,
            result.content,
            is_error=result.is_error,
            images=images,
            ref=self._ref(call_id, name, result),
        )

    def _ref(self, call_id: str, name: str, result: ToolResult) -> str:
        """Return the reference for reading the result again after trimming; empty if none is needed."""
        session = self._deps.session
        if _READ_TOOL not in session.registry:
            return ""
        if result.truncation is not None and result.truncation.ref:
            return result.truncation.ref
        if self.settings.window_tokens is None or len(result.content) < MIN_TRIMMED_CHARS:
            return ""
        return session.keep_result(result.content, tool=name, call_id=call_id)

    # ---- people

    async def _choose(self, options: tuple[CallPart, ...], question: str) -> Transition:
        transition: Transition | None = None
        try:
            choice: CallPart | str | None = None
            if self._deps.chooser is not None:
                with self._ticker, self.clock.waiting_for_person():
                    choice = await self._deps.chooser.choose(question, options)
            transition = loop.receive_choice(self.state, self.settings, choice)
        finally:
            # The answer is recorded even if choosing was cancelled: the model gave it.
            self._record_answer(self.state if transition is None else transition.state)
        return transition

    async def _pause(self, stepper: Stepper, moment: BeforeRequest | BeforeCall) -> StepChoice:
        with self._ticker, self.clock.waiting_for_person():
            choice = await stepper.pause(moment)
        if choice.action != "continue":
            call_id = moment.call.id if isinstance(moment, BeforeCall) else ""
            self.record(StepTaken, action=choice.action, text=choice.text, call_id=call_id)
        return choice
