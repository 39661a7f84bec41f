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
        call_id: The id of the call, unique in its session.
        name: The name of the tool.
        requested_arguments: The arguments as the caller gave them.
        arguments: The arguments that ran, or would have run: validated, with the edits of the approver.
        origin: Who made the call: a person, a model or a program.
        agent_id: The agent that made the call; empty for a person or a program.
        inside: The id of the call whose tool made this one; empty for a call that no tool made.
        decision: The decision; None if the request was not a valid call.
        decided_by: Who decided: see `policy.prepared.CallDecision`.
        effect: The effect that the policy assumed; None if the request was not a valid call.
        reasons: The reasons for the decision.
        approval: The answer of the approver; None if nobody was asked.
        runs_in: Where the call ran: `sandbox` or `host`; None if it did not run.
        result: The result; None if it is not known.
        duration_s: Seconds from the request to the result.
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
        direction: `undo` or `redo`.
        call_ids: The ids of the calls, in the order in which they were undone or redone.
        steps: The number of these calls that `%undo` counts; 0 if it is not known.
        forced: Whether changes that somebody else had made since were overwritten.
        files_only: Whether the variables were left as they were.
        restored: The number of files that were created or replaced.
        removed: The number of files that were removed.
        variables: A sentence about the variables: restored, left alone, or why not.
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
    """A person who steps through a run chose another action than to continue.

    Attributes:
        agent_id: The agent that makes the run.
        call_id: The call before which the run stood; empty if it stood before a request to the model.
        action: The chosen action; see `aisotools.agent.run.StepAction`.
        text: The person's own words, such as an answer in place of the call; empty if there are none.
    """

    agent_id: str
    call_id: str
    action: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteEntry:
    """A remark that belongs to no message and no call, such as events that are missing."""

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
"""An entry of a transcript: a message, a call, or what happened to the run or the conversation."""


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
