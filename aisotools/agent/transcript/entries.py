"""Fold a session's events into entries in reading order: prompts, answers, calls, ends. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from aisotools.core.events import (
    AgentEvent,
    AgentFinished,
    AgentRewound,
    AgentStarted,
    ApprovalAnswered,
    CallDecided,
    CallFinished,
    CallRequested,
    CallStarted,
    Conversation,
    ConversationEdited,
    EventsDropped,
    HistoryRecovered,
    ModelAnswered,
    ModelRequested,
    ProtectedFilesRestored,
    Redone,
    SandboxLost,
    SessionEvent,
    StepTaken,
    Undone,
)
from aisotools.core.exceptions import as_clause
from aisotools.core.messages import AssistantMessage, Message, Usage, UserMessage
from aisotools.core.types import Approval, Decision, Effect, Json, RunsIn, ToolResult
from aisotools.policy.prompts import EFFECT_LABELS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStartEntry:
    """A run began."""

    agent_id: str
    model: str
    instructions: str = ""
    parent_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEntry:
    """Somebody asked an agent something."""

    agent_id: str
    message: UserMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEntry:
    """A model answered."""

    agent_id: str
    step: int
    message: AssistantMessage
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEntry:
    """A call, from the request to its result.

    Attributes:
        call_id: Names it in its session.
        name: The tool.
        requested_arguments: The arguments as they were asked for.
        arguments: What ran, or would have run: validated, and edited where the approver did.
        origin: Who made it.
        agent_id: The agent that made it; empty for a person or a program.
        inside: The call whose tool made this one; empty for one of its own.
        decision: What was decided; None for what was no call at all.
        decided_by: Who decided.
        effect: How severe it is.
        reasons: Why that was decided.
        approval: What whoever was asked said, if anybody was.
        runs_in: Where it ran; None when it did not.
        result: What came of it; None when that is not known.
        duration_s: From the request to the result.
    """

    call_id: str
    name: str
    requested_arguments: Mapping[str, Json]
    arguments: Mapping[str, Json]
    origin: str = "program"
    agent_id: str = ""
    inside: str = ""
    decision: Decision | None = None
    decided_by: str = ""
    effect: Effect | None = None
    reasons: Sequence[str] = ()
    approval: Approval | None = None
    runs_in: RunsIn | None = None
    result: ToolResult | None = None
    duration_s: float = 0.0

    @property
    def was_run(self) -> bool:
        """True if the call was run."""
        return self.runs_in is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEndEntry:
    """A run ended."""

    agent_id: str
    outcome: str
    reason: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoEntry:
    """Calls were undone, or redone.

    Attributes:
        direction: Which of the two.
        call_ids: Which calls, the next one first.
        steps: How many of them `%undo` counts; 0 when that is not known.
        forced: Whether changes of somebody else were overruled.
        files_only: Whether the variables were left as they were.
        restored: How many files were made or replaced.
        removed: How many files were removed.
        variables: What became of the variables, in words.
    """

    direction: Literal["undo", "redo"]
    call_ids: Sequence[str]
    steps: int = 0
    forced: bool = False
    files_only: bool = False
    restored: int = 0
    removed: int = 0
    variables: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindEntry:
    """An agent's conversation was taken back to before a request."""

    agent_id: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EditEntry:
    """A person edited the conversation."""

    agent_id: str
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEntry:
    """Whoever steps through a run did something else than let it go on.

    Attributes:
        agent_id: The agent whose run it is.
        call_id: The call it was about; empty for a request.
        action: What they did; see `stepping.StepChoice`.
        text: What they said, if anything.
    """

    agent_id: str
    call_id: str
    action: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteEntry:
    """Something else that a reader must know."""

    text: str


TranscriptEntry = (
    RunStartEntry
    | PromptEntry
    | AnswerEntry
    | CallEntry
    | RunEndEntry
    | UndoEntry
    | RewindEntry
    | EditEntry
    | StepEntry
    | NoteEntry
)
"""One thing that happened."""


@dataclass(slots=True)
class _Fold:
    """The state of reading events one by one."""

    entries: list[TranscriptEntry] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    conversations: dict[str, Conversation] = field(default_factory=dict)

    def take(self, event: SessionEvent) -> None:
        match event:
            case AgentEvent():
                self._take_agent(event)
            case Redone():
                self.entries.append(_make_undo_entry("redo", event))
            case Undone():
                self.entries.append(_make_undo_entry("undo", event))
            case EventsDropped():
                self.entries.append(NoteEntry(text=f"Not everything is shown here. {_missing(event)}"))
            case ProtectedFilesRestored() | HistoryRecovered():
                self.entries.append(NoteEntry(text=str(event)))
            case SandboxLost():
                self.entries.append(NoteEntry(text=f"The sandbox was lost: {as_clause(event.reason)}."))
            case _:
                self._take_call(event)

    def _take_agent(self, event: AgentEvent) -> None:
        conversation = self.conversations.setdefault(event.agent_id, Conversation())
        before = len(conversation.messages)
        conversation.take(event)
        match event:
            case AgentStarted():
                started = RunStartEntry(
                    agent_id=event.agent_id,
                    model=event.model,
                    instructions=event.instructions,
                    parent_id=event.parent_id,
                )
                self.entries.append(started)
            case ModelRequested():
                # What an earlier request was asked is still there after the run was taken back to it.
                self.entries += [
                    PromptEntry(agent_id=event.agent_id, message=message)
                    for message in conversation.messages[before:]
                    if isinstance(message, UserMessage)
                ]
            case ModelAnswered():
                answered = AnswerEntry(
                    agent_id=event.agent_id, step=event.step, message=event.message, usage=event.usage
                )
                self.entries.append(answered)
            case AgentFinished():
                ended = RunEndEntry(
                    agent_id=event.agent_id, outcome=event.outcome, reason=event.reason, usage=event.usage
                )
                self.entries.append(ended)
            case AgentRewound():
                self.entries.append(RewindEntry(agent_id=event.agent_id, step=event.step))
            case ConversationEdited():
                self.entries.append(EditEntry(agent_id=event.agent_id, messages=event.messages))
            case StepTaken():
                stepped = StepEntry(
                    agent_id=event.agent_id, call_id=event.call_id, action=event.action, text=event.text
                )
                self.entries.append(stepped)

    def _take_call(self, event: SessionEvent) -> None:
        if isinstance(event, CallRequested):
            call = event.call
            self.calls[event.call_id] = len(self.entries)
            self.entries.append(
                CallEntry(
                    call_id=event.call_id,
                    name=call.name,
                    requested_arguments=call.arguments,
                    arguments=call.arguments,
                    origin=call.origin,
                    agent_id=call.agent_id,
                    inside=self._outer(event.call_id),
                )
            )
            return
        place = self.calls.get(event.call_id)
        if place is None:
            return
        called = self.entries[place]
        assert isinstance(called, CallEntry)
        match event:
            case CallDecided():
                called = replace(
                    called,
                    decision=event.decision,
                    decided_by=event.decided_by,
                    effect=event.effect,
                    reasons=event.reasons,
                    arguments=event.arguments,
                )
            case ApprovalAnswered():
                called = replace(called, approval=event.approval)
            case CallStarted():
                called = replace(called, runs_in=event.runs_in)
            case CallFinished():
                called = replace(called, result=event.result, duration_s=event.duration_s)
        self.entries[place] = called

    def _outer(self, call_id: str) -> str:
        """Return the id of the call that made this one, which is the beginning of this one's id."""
        outer = call_id.rpartition("/")[0]
        return outer if outer in self.calls else ""


def _missing(event: EventsDropped) -> str:
    what = "printed output and reports" if event.is_output_only else "events, calls among them"
    return f"{event.count:,} earlier {what} were dropped: {event.reason}."


def _make_undo_entry(direction: Literal["undo", "redo"], event: Undone) -> UndoEntry:
    return UndoEntry(
        direction=direction,
        call_ids=event.call_ids,
        steps=event.steps,
        forced=event.forced,
        files_only=event.files_only,
        restored=len(event.restored),
        removed=len(event.removed),
        variables=event.variables,
    )


def entries_of(events: Iterable[SessionEvent]) -> list[TranscriptEntry]:
    """Return the events of a session as entries for a reader. A call stands where it was requested."""
    fold = _Fold()
    for event in tuple(events):
        fold.take(event)
    return fold.entries


# ---- in words

_DONE = {"undo": "undone", "redo": "redone"}


def remark(entry: TranscriptEntry) -> str:
    """Return a one-line remark about an entry that is neither message nor call; empty if it needs none."""
    match entry:
        case RunEndEntry(outcome=outcome) if outcome != "answered":
            return f"The run ended: {outcome}" + (f", {entry.reason}" if entry.reason else "")
        case RewindEntry():
            return f"The run was taken back to before step {entry.step}."
        case EditEntry():
            return "What was said was edited by hand here."
        case StepEntry(call_id="", action=action):
            return f"Whoever steps through the run chose here: {action}."
        case StepEntry():
            text = f": {entry.text}" if entry.text else ""
            return f"Whoever steps through the run chose for a call: {entry.action}{text}."
        case RunStartEntry(parent_id=parent) if parent:
            return f"Agent {entry.agent_id} begins to work for agent {parent}."
        case UndoEntry():
            files = f"{entry.restored} files brought back, {entry.removed} removed"
            variables = f" Variables: {entry.variables}" if entry.variables else ""
            return f"{calls_moved(entry)}: {files}.{variables}"
        case NoteEntry(text=text):
            return text
    return ""


def calls_moved(entry: UndoEntry) -> str:
    """Return how many calls were undone or redone, in words."""
    count = len(entry.call_ids)
    return f"{count} call{' was' if count == 1 else 's were'} {_DONE[entry.direction]}"


def effect_words(entry: CallEntry) -> str:
    """Return the effect of a call, in the words of the approval cards."""
    return "unknown effect" if entry.effect is None else EFFECT_LABELS[entry.effect]


def decided(entry: CallEntry) -> str:
    """Return who made a call, and who decided what about it, in one line."""
    approval = entry.approval
    if approval is None:
        verdict = f"{entry.decision or 'refused'} by {entry.decided_by or 'the gate'}"
    else:
        edited = " with edited arguments" if approval.arguments is not None else ""
        reason = f" ({approval.reason})" if approval.reason else ""
        verdict = f"asked: {approval.outcome}{edited}{reason}"
    who = f"by {entry.origin}" + (f" {entry.agent_id}" if entry.agent_id else "")
    return " ".join(f"{who} · {verdict}".split())
