"""Making the calls of a recorded session again, without its models, and telling what came out differently.

A record may come from anybody. What it says somebody approved is taken at its word only for what runs in a
sandbox; on the host nothing is approved because a file says so.

Those who stand in for models and people when a recorded session is replayed.
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
from aisotools.agent.transcript.entries import Called, entries_of
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
from aisotools.policy.rules import Evaluation, Policy
from aisotools.sandbox.confinement.levels import at_least
from aisotools.session.session import Session


class ChildModel:
    """Answers for all delegated agents of a record: each conversation as the run with the same prompt.

    Attributes:
        name: How it is called in records.
    """

    def __init__(self, runs: Iterable[RecordedRun]) -> None:
        """Answer as `runs` did."""
        self.name = "replay"
        self._waiting = list(runs)
        self._known: list[tuple[Message, ReplayModel]] = []

    def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, instructions: str = ""
    ) -> AsyncIterator[ModelEvent]:
        """Give the next recorded answer of this conversation."""
        first = messages[0]
        model = next((model for known, model in self._known if known is first), None)
        if model is None:
            model = ReplayModel(self._answers(first), strict=False)
            self._known.append((first, model))
        return model.request(messages, tools, instructions=instructions)

    def _answers(self, first: Message) -> Sequence[AssistantMessage]:
        if not self._waiting:
            return ()
        asked = first.text if isinstance(first, UserMessage) else ""
        alike = (run for run in self._waiting if run.prompt is not None and run.prompt.text == asked)
        run = next(alike, self._waiting[0])
        self._waiting.remove(run)
        return run.answers


class RecordedStepper:
    """Does what whoever stepped through a recorded run did."""

    def __init__(self, run: RecordedRun, calls: Iterable[RecordedCall]) -> None:
        """Step as in `run`; `calls` are those that were made."""
        self._run = run
        self._made = {call.call_id: call for call in calls}
        self._wanted = [call for answer in run.answers for call in answer.calls]
        self._requests = 0

    async def pause(self, moment: BeforeRequest | BeforeCall) -> StepChoice:
        """Say what is to happen: what happened."""
        if isinstance(moment, BeforeRequest):
            self._requests += 1
            return StepChoice("continue" if self._requests <= len(self._run.answers) else "stop")
        recorded = self._recorded(moment.call)
        if recorded is None:
            return StepChoice()
        action, text = self._run.stepped.get(recorded.id, ("continue", ""))
        made = self._made.get(recorded.id)
        if action == "edit" and made is not None:
            return StepChoice("edit", arguments=made.asked)
        match action:
            case "answer" | "skip" | "stop":
                return StepChoice(action, text=text)
        return StepChoice()

    def _recorded(self, call: CallPart) -> CallPart | None:
        """The recorded call that this one is; calls that never came so far are passed over."""
        for number, wanted in enumerate(self._wanted):
            if (wanted.name, wanted.arguments) == (call.name, call.arguments):
                del self._wanted[: number + 1]
                return wanted
        return None


_SHOWN_CHARS = 120
_VARYING = re.compile(r"\(process \d+\)")
_ANNOUNCED = re.compile(r"^\[task t\d+ [^\n]*\]\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One call, recorded and made again.

    Attributes:
        number: Which call of the record, from 1; 0 for what is no call, such as an undo.
        name: The tool.
        difference: What differs, in words; empty when nothing does.
    """

    number: int
    name: str
    difference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of a replay.

    Attributes:
        calls: Every call of the record, and what was made or went wrong besides.
        ends: How runs ended that had ended otherwise, in words.
        said: What could not be replayed, in words.
    """

    calls: Sequence[Comparison]
    ends: Sequence[str] = ()
    said: Sequence[str] = ()

    @property
    def same(self) -> bool:
        """Whether every call was made again, with the same result, and no other."""
        return not any(call.difference for call in self.calls)


class _CallMatcher:
    """Knows for each call that is made which recorded one it is: of several alike, in their order."""

    def __init__(self, calls: Iterable[RecordedCall], cleaner: Cleaner) -> None:
        self._left: dict[bytes, deque[RecordedCall]] = {}
        for call in calls:
            self._left.setdefault(_key(call.name, call.asked), deque()).append(call)
        self._cleaner = cleaner
        self.of: dict[str, RecordedCall] = {}
        self.made: dict[str, str] = {}

    def hear(self, event: SessionEvent) -> None:
        if isinstance(event, CallRequested):
            asked = self._cleaner.arguments(event.call.name, event.call.arguments)
            left = self._left.get(_key(event.call.name, asked))
            if left:
                recorded = self.of[event.call_id] = left.popleft()
                self.made[recorded.call_id] = event.call_id


@dataclass(frozen=True, slots=True, kw_only=True)
class _AsRecorded(Policy):
    """Lets nothing run that was not run when it was recorded; it has nothing against anything else."""

    fates: Mapping[str, RecordedCall] = field(default_factory=dict)

    def check(self, call: ToolCall, facts: Facts) -> Evaluation:  # noqa: ARG002 - named by the contract
        recorded = self.fates.get(call.id)
        if recorded is not None and not recorded.ran:
            return Evaluation(Decision.DENY, reasons=("it was not run when it was recorded",))
        return Evaluation(Decision.ALLOW)


class RecordedApprover:
    """Answers what is asked as the record does, for what runs in a sandbox; anything else it denies."""

    def __init__(self, transcript: Transcript) -> None:
        """Answer by `transcript`."""
        self._left = list(transcript.calls)
        self._answers = deque(call for call in transcript.calls if call.name == "ask_user" and call.ran)
        self.fates: Mapping[str, RecordedCall] = {}
        """Which recorded call a call is, by its id; of others the first alike counts."""

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Approve what ran when it was recorded."""
        recorded = self.fates.get(request.call.id) or self._alike(request)
        if recorded is None:
            return Approval("deny", reason="The record has no such call.")
        if not recorded.ran:
            return Approval("deny", reason="It was not run when it was recorded.")
        if request.level == "host" or not at_least(request.level, "guarded"):
            return Approval("deny", reason="A replay approves only what runs in a sandbox.")
        edited = _canonical(recorded.arguments) != _canonical(request.call.arguments)
        return Approval("approve", arguments=recorded.arguments if edited and recorded.approved else None)

    def _alike(self, request: ApprovalRequest) -> RecordedCall | None:
        wanted = _key(request.call.name, request.call.arguments)
        for recorded in self._left:
            if wanted in {_key(recorded.name, recorded.asked), _key(recorded.name, recorded.arguments)}:
                self._left.remove(recorded)
                return recorded
        return None

    async def inquire(self, inquiry: UserQuestion) -> str | None:
        """Answer a model's question as it was answered; None for one that nobody answered."""
        for recorded in self._answers:
            if recorded.arguments.get("question") == inquiry.text:
                self._answers.remove(recorded)
                return None if recorded.is_error else recorded.content
        return None


async def replay(transcript: Transcript, session: Session) -> Replayed:
    """Make the calls of `transcript` again.

    Args:
        transcript: What was recorded.
        session: A fresh session whose workspace holds what the recorded one held, and whose approver answers
            for this run, such as a `RecordedApprover`.

    Returns:
        What differs, call by call. Numbers of processes, and when a background task is announced to have
        ended, are no difference.
    """
    await session.start()
    cleaner = Cleaner(session.registry, str(session.workspace or ""))
    fates = _CallMatcher(transcript.calls, cleaner)
    if isinstance(session.approver, RecordedApprover):
        session.approver.fates = fates.of
    before = len(session.events)
    stops = [session.subscribe(fates.hear), session.narrow(_AsRecorded(mode="auto", fates=fates.of))]
    replaying = _Replaying(transcript, session, fates)
    try:
        await replaying.all_of_it()
    finally:
        for stop in stops:
            stop()
    made = [
        call_of(entry, cleaner) for entry in entries_of(session.events[before:]) if isinstance(entry, Called)
    ]
    said = list(transcript.missing)
    return Replayed(
        calls=(*compare(transcript.calls, made), *replaying.failed),
        ends=tuple(replaying.ends),
        said=tuple(said),
    )


class _Replaying:
    """Carries out the steps of a record."""

    def __init__(self, transcript: Transcript, session: Session, fates: _CallMatcher) -> None:
        self._transcript, self._session, self._fates = transcript, session, fates
        self._agents: dict[str, Agent] = {}
        self._children = ChildModel(run for run in transcript.runs if run.parent_id)
        self._delegates: list[DelegateTool] = []
        self.ends: list[str] = []
        self.failed: list[Comparison] = []

    async def all_of_it(self) -> None:
        for step in self._transcript.steps:
            match step:
                case RecordedRun():
                    await self._run(step)
                case RecordedCall():
                    await self._session.call(step.name, step.asked)
                case RecordedMove():
                    await self._move(step)
                case RecordedRewind():
                    await self._rewind(step)

    async def _run(self, run: RecordedRun) -> None:
        model = ReplayModel(run.answers, strict=False)
        agent = self._agents.get(run.agent_id)
        if agent is None:
            agent = self._agents[run.agent_id] = Agent(model, self._session, run.instructions)
        agent.model = model
        agent.stepper = RecordedStepper(run, self._transcript.calls) if run.by_hand else None
        self._lend_delegates(agent)
        result = await agent.run(run.prompt)
        if (result.outcome == "answered") != (run.outcome in {"", "answered"}):
            told = f"{result.outcome}: {result.reason}".rstrip(": ")
            self.ends.append(f"{told}; when recorded: {run.outcome or 'answered'}")

    def _lend_delegates(self, agent: Agent) -> None:
        """Give it the tools by which it delegated when it was recorded."""
        if not any(run.parent_id for run in self._transcript.runs):
            return
        registry = self._session.registry
        for name in {call.name for call in self._transcript.calls if call.agent_id and "task" in call.asked}:
            if name in registry and registry[name] not in self._delegates:
                continue
            if name in registry:
                registry.unregister(name)
            self._delegates.append(delegate_tool(agent, name=name, model=self._children))

    async def _move(self, move: RecordedMove) -> None:
        try:
            if move.way == "redo":
                result = await self._session.redo(move.steps, force=move.forced)
            else:
                to = self._fates.made.get(move.call_ids[-1], "")
                result = await self._session.undo(to=to, force=move.forced)
            told = result.content if result.is_error else ""
        except UsageError as error:
            told = str(error)
        if told:
            self.failed.append(Comparison(number=0, name=move.way, difference=f"it failed: {_short(told)}"))

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
            told = f"it failed: {_short(str(error))}"
            self.failed.append(Comparison(number=0, name="rewind", difference=told))


def compare(recorded: Sequence[RecordedCall], made: Sequence[RecordedCall]) -> list[Comparison]:
    """What differs between two lists of calls, call by call; of those alike, the first with the first."""
    left: dict[bytes, deque[RecordedCall]] = {}
    for call in made:
        left.setdefault(_key(call.name, call.asked), deque()).append(call)
    pairs: list[tuple[RecordedCall, RecordedCall | None]] = []
    for was in recorded:
        alike = left.get(_key(was.name, was.asked))
        pairs.append((was, alike.popleft() if alike else None))
    paired = {id(now) for _, now in pairs}
    others = deque(call for call in made if id(call) not in paired)
    compared = []
    for number, (was, now) in enumerate(pairs, start=1):
        found = now if now is not None or not others else others.popleft()
        compared.append(Comparison(number=number, name=was.name, difference=_difference(was, found)))
    for number, more in enumerate(others, start=len(compared) + 1):
        compared.append(Comparison(number=number, name=more.name, difference="it was not recorded"))
    return compared


def _difference(was: RecordedCall, now: RecordedCall | None) -> str:
    if now is None:
        return "it was not made again"
    if was.name != now.name:
        return f"{now.name} was called instead"
    if was.ran != now.ran:
        happened = ("was not run", "ran")
        return f"it {happened[now.ran]}, and {happened[was.ran]} when recorded: {_short(now.content)}"
    if not was.ran:
        return ""
    if _canonical(was.arguments) != _canonical(now.arguments):
        return f"its arguments are {_brief(now.arguments)}, and {_brief(was.arguments)} were recorded"
    if was.is_error != now.is_error:
        ended = ("succeeded", "failed")
        told = f"it {ended[bool(now.is_error)]}, and {ended[bool(was.is_error)]} when recorded"
        return f"{told}: {_short(now.content)}"
    if _steady(was.content) != _steady(now.content):
        return f"it gave {_short(now.content)}, and {_short(was.content)} when recorded"
    if was.shows != now.shows:
        return f"it shows {', '.join(now.shows) or 'nothing'}, and {', '.join(was.shows)} when recorded"
    return ""


def _steady(text: str) -> str:
    """A result without what is otherwise each time."""
    return _ANNOUNCED.sub("", _VARYING.sub("(process)", text)).rstrip("\n")


def _key(name: str, arguments: Mapping[str, Json]) -> bytes:
    return name.encode("utf-8", "surrogatepass") + b"\0" + _canonical(arguments)


def _canonical(arguments: Mapping[str, Json]) -> bytes:
    return json.dumps(arguments, sort_keys=True, default=repr).encode()


def _brief(arguments: Mapping[str, Json]) -> str:
    return _short(_canonical(arguments).decode())


def _short(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…")
