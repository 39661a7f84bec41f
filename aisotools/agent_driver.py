"""Carries out what the loop decides: asks the model, makes calls through the session's gate, asks people."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from aisotools import agent_core as core
from aisotools.agent_core import Ask, Choose, End, Make, Rules, State, Turn
from aisotools.agent_events import (
    AgentEvent,
    ContextTrimmed,
    ConversationEdited,
    ModelAnswered,
    ModelRequested,
    ModelRetried,
    ModelStreamed,
    StepTaken,
)
from aisotools.agent_run import Listener
from aisotools.answers import Answer, AnswerReader
from aisotools.beat import Beat
from aisotools.context_window import WORTH_TRIMMING
from aisotools.events import ToolCall, ToolDefinition, ToolResult
from aisotools.exceptions import ModelError, UsageError
from aisotools.messages import (
    AssistantMessage,
    CallPart,
    ImagePart,
    Model,
    TextPart,
    ToolMessage,
    Usage,
    digest_of,
    since_last_answer,
)
from aisotools.run_clock import RunClock
from aisotools.session import Session
from aisotools.session_events import ApprovalAnswered, ApprovalAsked, CallFinished, SessionEvent
from aisotools.stepping import BeforeCall, BeforeRequest, Chooser, StepChoice, Stepper

_log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 60.0
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MOST_IMAGE_CHARS = 7_000_000
_READS_RESULTS = "read_result"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
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

    def __init__(self, parts: Parts, state: State, rules: Rules) -> None:
        """Start from `state`."""
        self._parts = parts
        self.state = state
        self.rules = rules
        self.clock = RunClock(rules.budgets)
        self.options: tuple[CallPart, ...] = ()
        self._turn_id = ""
        self._began_s = 0.0
        self._usage = Usage(requests=0)
        self._beat = Beat()
        self._results: dict[str, ToolMessage] = {}
        self._asked: set[str] = set()

    async def drive(self, turn: Turn) -> End:
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

    async def _carried_out(self, action: Ask | Make | Choose) -> Turn:
        self._results.clear()
        async with self.clock.limited():
            match action:
                case Ask():
                    return await self._ask(action)
                case Make(calls):
                    return await self._make(calls)
                case Choose(options, question):
                    self.options = options
                    return await self._choose(options, question)

    # ---- the model

    async def _ask(self, action: Ask) -> Turn:
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
            answer = Answer(message=said, usage=Usage(cost=0.0))
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

    async def _answer(self, tools: Sequence[ToolDefinition]) -> Answer:
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

    async def _streamed(self, tools: Sequence[ToolDefinition]) -> Answer:
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

    async def _make(self, calls: Sequence[CallPart]) -> Turn:
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

    async def _choose(self, options: tuple[CallPart, ...], question: str) -> Turn:
        turn: Turn | None = None
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
