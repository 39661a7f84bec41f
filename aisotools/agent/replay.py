"""Replay: make the calls of a recorded session again, without its models, and compare the results.

`ChildModel`, `RecordedStepper` and `RecordedApprover` stand in for the models and people of the recording.

A recording may come from anybody. Its approvals are accepted only for calls that run in a sandbox; on the
host nothing is approved because a file says so.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aisotools.agent.agent import Agent
from aisotools.agent.delegation import DelegateTool, delegate_tool
from aisotools.agent.models.replay import ReplayModel
from aisotools.agent.run import BeforeCall, BeforeRequest, StepChoice
from aisotools.agent.transcript.entries import CallEntry, entries_of
from aisotools.agent.transcript.metadata import (
    Cleaner,
    RecordedCall,
    RecordedMove,
    RecordedRewind,
    RecordedRun,
    Transcript,
    call_of,
)
from aisotools.core.events import CallRequested, SessionEvent
from aisotools.core.exceptions import UsageError
from aisotools.core.messages import AssistantMessage, CallPart, Message, ModelEvent, UserMessage
from aisotools.core.protocols import UserQuestion
from aisotools.core.types import Approval, ApprovalRequest, Decision, Facts, Json, ToolCall, ToolDefinition
from aisotools.core.untrusted import without_words
from aisotools.policy.rules import Evaluation, Policy
from aisotools.sandbox.confinement.levels import at_least
from aisotools.session.session import Session
from aisotools.session.undo_history import VariablesChoice


class ChildModel:
    """The model of all delegated agents: each conversation gets the answers of the run with the same prompt.

    Attributes:
        name: The model's name in records.
    """

    def __init__(self, runs: Iterable[RecordedRun]) -> None:
        self.name = "replay"
        self._unused = list(runs)
        self._known: list[tuple[Message, ReplayModel]] = []

    def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, instructions: str = ""
    ) -> AsyncIterator[ModelEvent]:
        """Stream the next recorded answer of this conversation."""
        first = messages[0]
        model = next((model for known, model in self._known if known is first), None)
        if model is None:
            model = ReplayModel(self._answers(first), strict=False)
            self._known.append((first, model))
        return model.request(messages, tools, instructions=instructions)

    def _answers(self, first: Message) -> Sequence[AssistantMessage]:
        if not self._unused:
            return ()
        prompt = first.text if isinstance(first, UserMessage) else ""
        matching = (run for run in self._unused if run.prompt is not None and run.prompt.text == prompt)
        run = next(matching, self._unused[0])
        self._unused.remove(run)
        return run.answers


class RecordedStepper:
    """A stepper that repeats the choices of the person who stepped through a recorded run."""

    def __init__(self, run: RecordedRun, calls: Iterable[RecordedCall]) -> None:
        """Repeat `run`; `calls` are the calls that were made in the recording."""
        self._run = run
        self._calls = {call.call_id: call for call in calls}
        self._remaining = [call for answer in run.answers for call in answer.calls]
        self._requests = 0

    async def pause(self, moment: BeforeRequest | BeforeCall) -> StepChoice:
        """Return what the person chose when the run was recorded."""
        if isinstance(moment, BeforeRequest):
            self._requests += 1
            return StepChoice("continue" if self._requests <= len(self._run.answers) else "stop")
        recorded = self._take_recorded(moment.call)
        if recorded is None:
            return StepChoice()
        action, text = self._run.stepped.get(recorded.id, ("continue", ""))
        call = self._calls.get(recorded.id)
        if action == "edit" and call is not None:
            return StepChoice("edit", arguments=call.requested_arguments)
        match action:
            case "answer" | "skip" | "stop":
                return StepChoice(action, text=text)
        return StepChoice()

    def _take_recorded(self, call: CallPart) -> CallPart | None:
        """Return the recorded call that equals `call`, dropping it and those before it; None without one."""
        for number, recorded in enumerate(self._remaining):
            if (recorded.name, recorded.arguments) == (call.name, call.arguments):
                del self._remaining[: number + 1]
                return recorded
        return None


_EXCERPT_CHARS = 120  # of a result, in a difference
_PROCESS_ID = re.compile(r"\(process \d+\)")
_TASK_NOTICE = re.compile(r"^\[task t\d+ [^\n]*\]\n?", re.MULTILINE)  # comes whenever a task happens to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One call, recorded and made again.

    Attributes:
        number: Number of the call in the recording, from 1; 0 for an undo, redo or rewind.
        name: The tool, or the operation.
        difference: What differs, in words; empty if nothing does.
    """

    number: int
    name: str
    difference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result of a replay.

    Attributes:
        calls: Every recorded call, then calls and operations that were not recorded or failed.
        ends: Runs that ended otherwise than recorded, in words.
        missing: Parts of the recording that could not be replayed, in words.
    """

    calls: Sequence[Comparison]
    ends: Sequence[str] = ()
    missing: Sequence[str] = ()

    @property
    def same(self) -> bool:
        """True if exactly the recorded calls were made, with the same results."""
        return not any(call.difference for call in self.calls)


class _CallMatcher:
    """Pairs each call of the replay with a recorded one: equal calls in their order."""

    def __init__(self, calls: Iterable[RecordedCall], cleaner: Cleaner) -> None:
        self._unmatched: dict[bytes, deque[RecordedCall]] = {}
        for call in calls:
            self._unmatched.setdefault(_key(call.name, call.requested_arguments), deque()).append(call)
        self._cleaner = cleaner
        self.recorded: dict[str, RecordedCall] = {}  # by the id of the call that is made now
        self.replayed_ids: dict[str, str] = {}  # by the recorded id

    def on_event(self, event: SessionEvent) -> None:
        if isinstance(event, CallRequested):
            arguments = self._cleaner.arguments(event.call.name, event.call.arguments)
            candidates = self._unmatched.get(_key(event.call.name, arguments))
            if candidates:
                recorded = candidates.popleft()
                self.recorded[event.call_id] = recorded
                self.replayed_ids[recorded.call_id] = event.call_id


@dataclass(frozen=True, slots=True, kw_only=True)
class _AsRecorded(Policy):
    """Denies calls that did not run when they were recorded; allows all others."""

    recorded: Mapping[str, RecordedCall] = field(default_factory=dict)

    def check(self, call: ToolCall, facts: Facts) -> Evaluation:  # noqa: ARG002 - named by the contract
        recorded = self.recorded.get(call.id)
        if recorded is not None and not recorded.was_run:
            return Evaluation(Decision.DENY, reasons=("it was not run when it was recorded",))
        return Evaluation(Decision.ALLOW)


class RecordedApprover:
    """Gives the recorded answers for calls that run in a sandbox, and denies everything else."""

    def __init__(self, transcript: Transcript) -> None:
        self._unmatched = list(transcript.calls)
        self._answers = deque(call for call in transcript.calls if call.name == "ask_user" and call.was_run)
        self._recorded: Mapping[str, RecordedCall] = {}

    def match_by_id(self, recorded: Mapping[str, RecordedCall]) -> None:
        """Answer a call whose id is in `recorded` as that call; `replay` adds to it while it goes on.

        Calls without an id in it are matched with the first equal recorded call.
        """
        self._recorded = recorded

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Approve a call that ran when it was recorded, with the arguments that were approved then."""
        recorded = self._recorded.get(request.call.id) or self._take_equal(request)
        if recorded is None:
            return Approval("deny", reason="The record has no such call.")
        if not recorded.was_run:
            return Approval("deny", reason="It was not run when it was recorded.")
        if request.level == "host" or not at_least(request.level, "guarded"):
            return Approval("deny", reason="A replay approves only what runs in a sandbox.")
        edited = _canonical(recorded.arguments) != _canonical(request.call.arguments)
        return Approval("approve", arguments=recorded.arguments if edited and recorded.approved else None)

    def _take_equal(self, request: ApprovalRequest) -> RecordedCall | None:
        key = _key(request.call.name, request.call.arguments)
        for recorded in self._unmatched:
            if key in {
                _key(recorded.name, recorded.requested_arguments),
                _key(recorded.name, recorded.arguments),
            }:
                self._unmatched.remove(recorded)
                return recorded
        return None

    async def ask_user(self, question: UserQuestion) -> str | None:
        """Return the recorded answer to a model's question; None if nobody answered it."""
        for recorded in self._answers:
            if recorded.arguments.get("question") == question.text:
                self._answers.remove(recorded)
                return None if recorded.is_error else recorded.content
        return None


async def replay(transcript: Transcript, session: Session) -> Replayed:
    """Make the calls of `transcript` again.

    Args:
        transcript: The recording.
        session: A fresh session whose workspace holds the files of the recorded one, and whose approver
            answers for this run, such as a `RecordedApprover`.

    Returns:
        The differences, call by call. Process ids do not count, nor the words in the marks of untrusted text,
        nor when the end of a background task is announced.
    """
    await session.start()
    cleaner = Cleaner(session.registry, str(session.workspace or ""))
    matcher = _CallMatcher(transcript.calls, cleaner)
    if isinstance(session.approver, RecordedApprover):
        session.approver.match_by_id(matcher.recorded)
    events: list[SessionEvent] = []
    stop_recording = session.subscribe(events.append)
    unsubscribe = session.subscribe(matcher.on_event)
    remove_policy = session.narrow(_AsRecorded(mode="auto", recorded=matcher.recorded))
    runner = _ReplayRunner(transcript, session, matcher)
    try:
        await runner.run()
    finally:
        unsubscribe()
        stop_recording()
        remove_policy()
    entries = entries_of(events)
    replayed = [call_of(entry, cleaner) for entry in entries if isinstance(entry, CallEntry)]
    return Replayed(
        calls=(*compare(transcript.calls, replayed), *runner.failures),
        ends=tuple(runner.endings),
        missing=tuple(transcript.missing),
    )


class _ReplayRunner:
    """Carries out the steps of a recording.

    Attributes:
        endings: Runs that ended otherwise than recorded, in words.
        failures: Operations that failed.
    """

    def __init__(self, transcript: Transcript, session: Session, matcher: _CallMatcher) -> None:
        self._transcript = transcript
        self._session = session
        self._matcher = matcher
        self._agents: dict[str, Agent] = {}
        self._children = ChildModel(run for run in transcript.runs if run.parent_id)
        self._delegates: list[DelegateTool] = []
        self.endings: list[str] = []
        self.failures: list[Comparison] = []

    async def run(self) -> None:
        for step in self._transcript.steps:
            match step:
                case RecordedRun():
                    await self._run_agent(step)
                case RecordedCall():
                    await self._session.call(step.name, step.requested_arguments)
                case RecordedMove():
                    await self._move(step)
                case RecordedRewind():
                    await self._rewind(step)

    async def _run_agent(self, run: RecordedRun) -> None:
        model = ReplayModel(run.answers, strict=False)
        agent = self._agents.get(run.agent_id)
        if agent is None:
            agent = self._agents[run.agent_id] = Agent(model, self._session, run.instructions)
        agent.model = model
        agent.stepper = RecordedStepper(run, self._transcript.calls) if run.by_hand else None
        self._register_delegates(agent)
        result = await agent.run(run.prompt)
        if (result.outcome == "answered") != (run.outcome in {"", "answered"}):
            ending = f"{result.outcome}: {result.reason}".rstrip(": ")
            self.endings.append(f"{ending}; when recorded: {run.outcome or 'answered'}")

    def _register_delegates(self, agent: Agent) -> None:
        """Register the tools with which the agent delegated when it was recorded."""
        if not any(run.parent_id for run in self._transcript.runs):
            return
        registry = self._session.registry
        for name in {
            call.name
            for call in self._transcript.calls
            if call.agent_id and "task" in call.requested_arguments
        }:
            if name in registry and registry[name] not in self._delegates:
                continue
            if name in registry:
                registry.unregister(name)
            self._delegates.append(delegate_tool(agent, name=name, model=self._children))

    async def _move(self, move: RecordedMove) -> None:
        try:
            variables: VariablesChoice = "keep" if move.files_only else "restore"
            if move.direction == "redo":
                result = await self._session.redo(move.count, force=move.forced, variables=variables)
            else:
                to = self._matcher.replayed_ids.get(move.call_ids[-1], "")
                result = await self._session.undo(to=to, force=move.forced, variables=variables)
            failure = result.content if result.is_error else ""
        except UsageError as error:
            failure = str(error)
        if failure:
            difference = f"it failed: {_short(failure)}"
            self.failures.append(Comparison(number=0, name=move.direction, difference=difference))

    async def _rewind(self, rewind: RecordedRewind) -> None:
        agent = self._agents.get(rewind.agent_id)
        if agent is None:
            return
        try:
            if rewind.step is None:
                agent.messages = rewind.messages
            else:
                await agent.rewind(rewind.step)
        except UsageError as error:
            difference = f"it failed: {_short(str(error))}"
            self.failures.append(Comparison(number=0, name="rewind", difference=difference))


def compare(recorded: Sequence[RecordedCall], replayed: Sequence[RecordedCall]) -> list[Comparison]:
    """Compare two lists of calls.

    Equal calls are paired in their order. Recorded calls that are left over are compared with replayed ones
    that are left over, in order.
    """
    by_key: dict[bytes, deque[RecordedCall]] = {}
    for call in replayed:
        by_key.setdefault(_key(call.name, call.requested_arguments), deque()).append(call)
    pairs: list[tuple[RecordedCall, RecordedCall | None]] = []
    for before in recorded:
        equal = by_key.get(_key(before.name, before.requested_arguments))
        pairs.append((before, equal.popleft() if equal else None))
    paired = {id(after) for _, after in pairs}
    unpaired = deque(call for call in replayed if id(call) not in paired)
    comparisons = []
    for number, (before, equal_call) in enumerate(pairs, start=1):
        after = equal_call if equal_call is not None or not unpaired else unpaired.popleft()
        comparison = Comparison(number=number, name=before.name, difference=_difference(before, after))
        comparisons.append(comparison)
    for number, call in enumerate(unpaired, start=len(comparisons) + 1):
        comparisons.append(Comparison(number=number, name=call.name, difference="it was not recorded"))
    return comparisons


def _difference(before: RecordedCall, after: RecordedCall | None) -> str:
    if after is None:
        return "it was not made again"
    if before.name != after.name:
        return f"{after.name} was called instead"
    if before.was_run != after.was_run:
        now, then = ("was run" if call.was_run else "was not run" for call in (after, before))
        return f"it {now}, and {then} when recorded: {_short(after.content)}"
    if not before.was_run:
        return ""
    if _canonical(before.arguments) != _canonical(after.arguments):
        return f"its arguments are {_brief(after.arguments)}, and {_brief(before.arguments)} were recorded"
    if before.is_error != after.is_error:
        ended = ("succeeded", "failed")
        change = f"it {ended[bool(after.is_error)]}, and {ended[bool(before.is_error)]} when recorded"
        return f"{change}: {_short(after.content)}"
    if _comparable(before.content) != _comparable(after.content):
        return f"it gave {_short(after.content)}, and {_short(before.content)} when recorded"
    if before.shows != after.shows:
        return f"it shows {', '.join(after.shows) or 'nothing'}, and {', '.join(before.shows)} when recorded"
    return ""


def _comparable(text: str) -> str:
    """Return a result without the parts that differ from run to run."""
    return _TASK_NOTICE.sub("", _PROCESS_ID.sub("(process)", without_words(text))).rstrip("\n")


def _key(name: str, arguments: Mapping[str, Json]) -> bytes:
    return name.encode("utf-8", "surrogatepass") + b"\0" + _canonical(arguments)


def _canonical(arguments: Mapping[str, Json]) -> bytes:
    return json.dumps(arguments, sort_keys=True, default=repr).encode()


def _brief(arguments: Mapping[str, Json]) -> str:
    return _short(_canonical(arguments).decode())


def _short(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= _EXCERPT_CHARS else f"{text[:_EXCERPT_CHARS]}…")
