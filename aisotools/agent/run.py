"""Carries out what the loop decides: asks the model, makes calls through the session's gate, asks people.

One run of an agent: what came of it, and the handle of one that goes on in the background.

Stepping through a run by hand: before each request and each call somebody says what is to happen.
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

from aisotools.agent import loop as core
from aisotools.agent.budgets import RunClock
from aisotools.agent.loop import WORTH_TRIMMING, Ask, Choose, End, MakeCalls, Rules, State, Transition
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
    digest_of,
    since_last_answer,
)
from aisotools.core.types import Json, ToolCall, ToolDefinition, ToolResult
from aisotools.session.session import Session

Listener = Callable[[SessionEvent], None]
"""Hears what happens during a run: the session's events, and `ModelStreamed`."""

_MOST_PIECES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What came of a run.

    Attributes:
        text: The model's last words; with any outcome but `answered` they may be none.
        outcome: How it ended; see `agent_events.RunOutcome`.
        reason: Why, in words; empty when the model simply answered.
        steps: Answers asked of the model.
        calls: Calls of tools.
        usage: What the answers took.
        duration_s: Seconds on the clock.
        working_s: Seconds without those in which a person was waited for.
        messages: What was said in this run.
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
        """Whether the model said all it had to say."""
        return self.outcome == "answered"

    def __str__(self) -> str:
        if self.ok:
            return self.text
        told = f"[{self.outcome}: {self.reason}]" if self.reason else f"[{self.outcome}]"
        return f"{self.text}\n{told}" if self.text else told


class AgentRun:
    """A run that goes on in the background: await it for its `RunResult`, or look on.

    The run stops when it is cancelled, not when whoever awaits it is.

    Attributes:
        events: What happens, from the start, as an async iterator that ends with the run.
    """

    def __init__(
        self, task: asyncio.Task[RunResult], events: LiveEvents, cut: Callable[[], RunResult | None]
    ) -> None:
        """Stand for `task`; `cut` gives what came of it when it was cancelled, if it ever began."""
        self._task = task
        self._cut = cut
        self._result: asyncio.Future[RunResult] = task.get_loop().create_future()
        self.events = events
        task.add_done_callback(self._settle)

    def _settle(self, task: asyncio.Task[RunResult]) -> None:
        self.events.close()
        if task.cancelled():
            never = RunResult(text="", outcome="cancelled", reason="it was cancelled before it began")
            self._result.set_result(self._cut() or never)
        elif (error := task.exception()) is not None:
            self._result.set_exception(error)
        else:
            self._result.set_result(task.result())

    def __repr__(self) -> str:
        return f"<AgentRun {'done' if self.done else 'running'}>"

    def __await__(self) -> Generator[None, None, RunResult]:
        """The result; outcome `cancelled` after `cancel`.

        Raises:
            CancelledError: If the awaiting task is cancelled; the run goes on.
        """
        return asyncio.shield(self._result).__await__()

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._result.done()

    @property
    def result(self) -> RunResult | None:
        """What came of it; None while it goes on."""
        return self._result.result() if self._result.done() else None

    def cancel(self) -> None:
        """Stop it, with the call that is under way; without effect on one that is over."""
        self._task.cancel()


class LiveEvents:
    """Events as they come; pieces of answers that nobody fetches are dropped in the end, others never are."""

    def __init__(self) -> None:
        """Start empty."""
        self._waiting: deque[SessionEvent] = deque()
        self._pieces = 0
        self._more = asyncio.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"<LiveEvents {len(self._waiting)} waiting, {'closed' if self._closed else 'open'}>"

    def add(self, event: SessionEvent) -> None:
        """Take one event."""
        if isinstance(event, ModelStreamed):
            if self._pieces >= _MOST_PIECES:
                return
            self._pieces += 1
        self._waiting.append(event)
        self._more.set()

    def close(self) -> None:
        """Nothing comes any more."""
        self._closed = True
        self._more.set()

    def __aiter__(self) -> AsyncIterator[SessionEvent]:
        return self

    async def __anext__(self) -> SessionEvent:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
        event = self._waiting.popleft()
        if isinstance(event, ModelStreamed):
            self._pieces -= 1
        return event


StepAction = Literal["continue", "edit", "skip", "answer", "stop"]
"""Go on as it is, go on with something else, leave it out, answer in its place, or end the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeRequest:
    """The model is about to be asked.

    Attributes:
        step: Which request of the conversation, from 1.
        messages: What it would be shown.
        tools: What it could call.
    """

    step: int
    messages: Sequence[Message]
    tools: Sequence[ToolDefinition]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeCall:
    """A call is about to go to the gate, which then asks as ever.

    Attributes:
        step: Which request of the conversation wanted it.
        call: The call.
    """

    step: int
    call: CallPart


@dataclass(frozen=True, slots=True)
class StepChoice:
    """What is to happen.

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
            told = "continue, edit, skip, answer, stop"
            raise UsageError(f"StepChoice action {self.action!r} is not one of {told}.")
        if self.action == "edit" and self.messages is None and self.arguments is None:
            raise UsageError("StepChoice('edit') needs messages= (a request) or arguments= (a call).")


@runtime_checkable
class Stepper(Protocol):
    """Somebody who is asked before each request and each call."""

    async def pause(self, moment: BeforeRequest | BeforeCall) -> StepChoice:
        """Say what is to happen. Waiting here is not counted as working time."""


@runtime_checkable
class Chooser(Protocol):
    """Somebody who picks when the model cannot."""

    async def choose(self, question: str, options: Sequence[CallPart]) -> CallPart | str | None:
        """One of `options`, edited or not; a text to tell the model instead; or None, which ends the run."""


_log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 60.0
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MOST_IMAGE_CHARS = 7_000_000
_READS_RESULTS = "read_result"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverDependencies:
    """What a driver works with.

    Attributes:
        model: Answers.
        session: Makes calls.
        instructions: What the model is told before everything else.
        definitions: Gives the tools that the model is shown.
        stepper: Whom to ask before each request and call.
        chooser: Whom to ask when the model cannot choose.
        hear: Hears the pieces of answers.
        kin: Ids of this agent and of those that work for it; who waits for a person over one of their calls,
            waits for all of them.
    """

    model: Model
    session: Session
    instructions: str
    definitions: Callable[[], Sequence[ToolDefinition]]
    stepper: Stepper | None
    chooser: Chooser | None
    hear: Listener
    kin: Collection[str]


class Driver:
    """Drives one run.

    Attributes:
        state: Where the conversation stands; whole and consistent whenever `drive` is over.
        rules: What does not change during the run.
        clock: Its time.
        options: What the model proposed last.
    """

    def __init__(self, parts: DriverDependencies, state: State, rules: Rules) -> None:
        """Start from `state`."""
        self._parts = parts
        self.state = state
        self.rules = rules
        self.clock = RunClock(rules.budgets)
        self.options: tuple[CallPart, ...] = ()
        self._turn_id = ""
        self._began_s = 0.0
        self._usage = Usage(requests=0)
        self._beat = LoopTicker()
        self._results: dict[str, ToolMessage] = {}
        self._asked: set[str] = set()

    async def drive(self, turn: Transition) -> End:
        """Carry out `turn` and whatever follows from it, to the end; `state` is whole however this ends.

        Raises:
            CancelledError: If the awaiting task is cancelled.
            UsageError: If the session cannot be used: it was closed, or belongs to another loop.
        """
        self.state = turn.state
        stop = self._parts.session.subscribe(self._hear)
        try:
            while not isinstance(turn.action, End):
                turn = await self._carried_out(turn.action)
                self.state = turn.state
            return turn.action
        except asyncio.CancelledError:
            self._break_off(End("cancelled", "it was cancelled"))
            raise
        except UsageError as error:
            self._break_off(End("failed", str(error)))
            raise
        except ModelError as error:
            return self._break_off(End("failed", str(error)))
        except Exception as error:  # models, steppers and choosers are written by strangers too
            spent = self.clock.spent() if isinstance(error, TimeoutError) else ""
            if spent:
                return self._break_off(End("budget", spent))
            _log.exception("The run of %s failed", self.rules.agent_id)
            return self._break_off(End("failed", f"{type(error).__name__}: {error}"))
        finally:
            stop()

    def record(self, kind: type[AgentEvent], **fields: Any) -> None:
        """Add to the session's record."""
        self._parts.session.record(kind, agent_id=self.rules.agent_id, step=self.state.step, **fields)

    def spend(self, usage: Usage) -> None:
        """Count what somebody else used up on behalf of this run."""
        self.state = dataclasses.replace(self.state, usage=self.state.usage + usage)

    def _break_off(self, end: End) -> End:
        self.state = core.broken_off(self.state, end.outcome, end.reason, self._results).state
        return end

    def _hear(self, event: SessionEvent) -> None:
        """Results that came although the whole did not; and when a person is waited for."""
        if isinstance(event, CallFinished):
            if event.call_id.startswith(f"{self.rules.agent_id}-"):
                self._results[event.call_id] = self._told(event.call_id, event.name, event.result)
        elif isinstance(event, ApprovalAsked) and event.request.call.agent_id in self._parts.kin:
            self._asked.add(event.request.id)
            self.clock.pause()
        elif isinstance(event, ApprovalAnswered) and event.request_id in self._asked:
            self._asked.discard(event.request_id)
            self.clock.resume()

    async def _carried_out(self, action: Ask | MakeCalls | Choose) -> Transition:
        self._results.clear()
        async with self.clock.limited():
            match action:
                case Ask():
                    return await self._ask(action)
                case MakeCalls(calls):
                    return await self._make(calls)
                case Choose(options, question):
                    self.options = options
                    return await self._choose(options, question)

    # ---- the model

    async def _ask(self, action: Ask) -> Transition:
        if action.trimmed:
            self.record(ContextTrimmed, call_ids=action.trimmed, chars=action.trimmed_chars)
        tools = self._parts.definitions()
        messages = action.messages
        choice = StepChoice()
        if self._parts.stepper is not None:
            moment = BeforeRequest(step=self.state.step, messages=messages, tools=tools)
            choice = await self._pause(self._parts.stepper, moment)
            if choice.action in {"stop", "skip"}:
                return core.broken_off(self.state, "stopped", "stopped before a request")
            if choice.action == "edit" and choice.messages is not None:
                self.state = core.edited(self.state, choice.messages, asking=True)
                messages = self.state.messages
                self.record(ConversationEdited, messages=messages)
        self._turn_id = f"{self.rules.agent_id}-t{uuid.uuid4().hex[:8]}"
        self._began_s = time.monotonic()
        new = since_last_answer(messages)
        self.record(ModelRequested, turn_id=self._turn_id, new=new, digest=digest_of(new))
        if choice.action == "answer":
            said = AssistantMessage((TextPart(choice.text),), model="person")
            answer = ModelResponse(message=said, usage=Usage(cost=0.0))
        else:
            answer = await self._answer(tools)
        self._usage = answer.usage
        turn = core.answered(self.state, self.rules, answer)
        if not isinstance(turn.action, Choose):
            self._record_answer(turn.state)
        return turn

    def _record_answer(self, state: State) -> None:
        """Record the last answer, its calls bearing the ids they are made under."""
        message = next(m for m in reversed(state.messages) if isinstance(m, AssistantMessage))
        took_s = time.monotonic() - self._began_s
        self.record(
            ModelAnswered, turn_id=self._turn_id, message=message, usage=self._usage, duration_s=took_s
        )

    async def _answer(self, tools: Sequence[ToolDefinition]) -> ModelResponse:
        """The model's answer; tried again when its provider fails, as often as the budgets say."""
        budgets, failed = self.rules.budgets, 0
        with self._beat:
            while True:
                try:
                    return await self._streamed(tools)
                except ModelError as error:
                    wait_s = min(budgets.retry_wait_s * 2**failed, _LONGEST_WAIT_S)
                    if error.retry_after_s is not None:
                        wait_s = error.retry_after_s
                    failed += 1
                    if not error.retryable or failed > budgets.retries or wait_s > _LONGEST_WAIT_S:
                        raise
                    self.record(ModelRetried, reason=str(error), wait_s=wait_s)
                    await asyncio.sleep(wait_s)

    async def _streamed(self, tools: Sequence[ToolDefinition]) -> ModelResponse:
        model = self._parts.model
        reader = AnswerReader(model.name)
        stream = model.request(self.state.messages, tools, instructions=self._parts.instructions)
        person = bool(getattr(model, "is_person", False))
        if person:
            self.clock.pause()
        try:
            async for event in stream:
                reader.add(event)
                self._parts.hear(
                    ModelStreamed(
                        time_s=time.time(), agent_id=self.rules.agent_id, step=self.state.step, event=event
                    )
                )
                if reader.done:
                    break
        finally:
            if person:
                self.clock.resume()
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
        return reader.answer()

    # ---- calls

    async def _make(self, calls: Sequence[CallPart]) -> Transition:
        stepper = self._parts.stepper
        if stepper is None:
            results = await self._through_gate(calls)
            return core.called(self.state, self.rules, results)
        results = []
        for call in calls:
            choice = await self._pause(stepper, BeforeCall(step=self.state.step, call=call))
            if choice.action == "stop":
                done = {result.call_id: result for result in results}
                return core.broken_off(self.state, "stopped", "stopped before a call", done)
            if choice.action == "skip":
                told = f"{call.name} was not run: whoever steps through this run left it out."
                results.append(ToolMessage(call.id, call.name, told, is_error=True))
            elif choice.action == "answer":
                results.append(ToolMessage(call.id, call.name, choice.text))
            else:
                wanted = call
                if choice.action == "edit" and choice.arguments is not None:
                    self.state = core.with_arguments(self.state, call.id, choice.arguments)
                    wanted = CallPart(call.id, call.name, choice.arguments)
                    self.record(ConversationEdited, messages=self.state.messages)
                results += await self._through_gate([wanted])
            self._results.update((result.call_id, result) for result in results)
        return core.called(self.state, self.rules, results)

    async def _through_gate(self, calls: Sequence[CallPart]) -> list[ToolMessage]:
        made = [
            ToolCall(
                call.id,
                call.name,
                call.arguments,
                origin="model",
                agent_id=self.rules.agent_id,
                turn_id=self._turn_id,
            )
            for call in calls
        ]
        results = await self._parts.session.call_many(made)
        return [self._told(call.id, call.name, result) for call, result in zip(calls, results, strict=True)]

    def _told(self, call_id: str, name: str, result: ToolResult) -> ToolMessage:
        """A result as the model reads it."""
        known = self._results.get(call_id)
        if known is not None:
            return known
        images = tuple(
            ImagePart(mime, data)
            for mime, data in result.data.items()
            if mime in _IMAGES and isinstance(data, str) and len(data) <= _MOST_IMAGE_CHARS
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
        """What reads the whole result again, in case it must give way; empty where nothing can read it."""
        session = self._parts.session
        if _READS_RESULTS not in session.registry:
            return ""
        if result.truncation is not None and result.truncation.ref:
            return result.truncation.ref
        if self.rules.window_tokens is None or len(result.content) < WORTH_TRIMMING:
            return ""
        return session.keep_result(result.content, tool=name, call_id=call_id)

    # ---- people

    async def _choose(self, options: tuple[CallPart, ...], question: str) -> Transition:
        turn: Transition | None = None
        try:
            choice: CallPart | str | None = None
            if self._parts.chooser is not None:
                with self._beat, self.clock.waiting_for_person():
                    choice = await self._parts.chooser.choose(question, options)
            turn = core.chosen(self.state, self.rules, choice)
        finally:
            self._record_answer(self.state if turn is None else turn.state)
        return turn

    async def _pause(self, stepper: Stepper, moment: BeforeRequest | BeforeCall) -> StepChoice:
        with self._beat, self.clock.waiting_for_person():
            choice = await stepper.pause(moment)
        if choice.action != "continue":
            call_id = moment.call.id if isinstance(moment, BeforeCall) else ""
            self.record(StepTaken, action=choice.action, text=choice.text, call_id=call_id)
        return choice
