"""Everything a session records, one frozen value each; cards, transcript and replay are folds over them.

What an agent adds to the record of its session, and the one kind of event that is not recorded.

What of an agent's events is written down, and the conversation that events tell. Pure.

Written down are whole messages, with secrets left out. What the ledger has anyway is not repeated: arguments
of calls and long results are found at the calls themselves, by their ids; pictures and what only a provider
understands are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from aisotools.core.messages import (
    AssistantMessage,
    Message,
    ModelEvent,
    ToolMessage,
    Usage,
    UserMessage,
    message_to_json,
    since_last_answer,
)
from aisotools.core.redaction import redact, redact_text, shortened
from aisotools.core.types import (
    Approval,
    ApprovalRequest,
    Decision,
    Effect,
    Json,
    RunsIn,
    ToolCall,
    ToolResult,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEvent:
    """Base of everything a session records.

    Attributes:
        time_s: When it happened, in seconds since the epoch.
        call_id: The call it belongs to; empty for the session itself.
    """

    kind: ClassVar[str] = "event"
    time_s: float
    call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStarted(SessionEvent):
    """A worker is ready.

    Attributes:
        level: What confines it.
        generation: 1 for the first worker of a session, then counting.
        pid: Its process id as the host sees it.
        reason: Why a new one was needed; empty for the first.
    """

    kind: ClassVar[str] = "sandbox_started"
    level: str
    generation: int
    pid: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLost(SessionEvent):
    """A worker ended, and the variables it held with it.

    Attributes:
        generation: Which one.
        reason: What happened, in words.
    """

    kind: ClassVar[str] = "sandbox_lost"
    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequested(SessionEvent):
    """A call reached the gate.

    Attributes:
        call: As it was made, before validation.
    """

    kind: ClassVar[str] = "call_requested"
    call: ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDecided(SessionEvent):
    """The gate decided about a call.

    Attributes:
        decision: What it decided in the end, never `ASK`.
        decided_by: `policy`, `typed` (a person typed the call), or `approver`.
        effect: The call's severity.
        reasons: Why.
        arguments: Exactly what may run; validated, and edited if the approver did.
        digest: Of tool version, arguments and level; re-checked at dispatch.
    """

    kind: ClassVar[str] = "call_decided"
    decision: Decision
    decided_by: str
    effect: Effect
    reasons: tuple[str, ...]
    arguments: Mapping[str, Json]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAsked(SessionEvent):
    """A person was asked.

    Attributes:
        request: The question.
    """

    kind: ClassVar[str] = "approval_asked"
    request: ApprovalRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswered(SessionEvent):
    """A question was answered, or ended without an answer.

    Attributes:
        request_id: Which question.
        approval: The answer.
    """

    kind: ClassVar[str] = "approval_answered"
    request_id: str
    approval: Approval


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantRevoked(SessionEvent):
    """An approval that was remembered was taken back.

    Attributes:
        scope: How far it reached.
        tool: The tool.
    """

    kind: ClassVar[str] = "grant_revoked"
    scope: str
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted(SessionEvent):
    """A call began to run.

    Attributes:
        runs_in: Where.
        level: The sandbox's level.
    """

    kind: ClassVar[str] = "call_started"
    runs_in: RunsIn
    level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutput(SessionEvent):
    """A running call printed something.

    Attributes:
        stream: `stdout` or `stderr`.
        text: Untrusted text, capped.
    """

    kind: ClassVar[str] = "call_output"
    stream: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEmitted(SessionEvent):
    """A running tool reported progress through `context.emit`.

    Attributes:
        name: What the tool calls it.
        payload: Untrusted JSON.
    """

    kind: ClassVar[str] = "call_emitted"
    name: str
    payload: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFinished(SessionEvent):
    """A call ended, however it ended.

    Attributes:
        name: The tool's name.
        result: What the caller got.
        duration_s: From reaching the gate to the result, human waiting included.
    """

    kind: ClassVar[str] = "call_finished"
    name: str
    result: ToolResult
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTaken(SessionEvent):
    """The files of the workspace were kept before a call that may change them.

    Attributes:
        root: Digest of the tree; empty where nothing could be covered.
        files: How many files and folders there are.
        copied_bytes: How much was new and had to be copied.
        uncovered: What is not covered, in words.
        duration_s: How long it took.
    """

    kind: ClassVar[str] = "checkpoint_taken"
    root: str
    files: int
    copied_bytes: int
    uncovered: tuple[str, ...]
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone(SessionEvent):
    """Calls were undone.

    Attributes:
        call_ids: Which, the latest first.
        restored: Files that were made or replaced.
        removed: Files that were removed.
        missing: What did not come back, in words.
        variables: What became of the variables, in words.
        forced: Whether changes of somebody else were overruled.
        steps: How many of the calls had changed anything, which is what `undo` and `redo` count.
    """

    kind: ClassVar[str] = "undone"
    call_ids: tuple[str, ...]
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    variables: str = ""
    forced: bool = False
    steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Redone(Undone):
    """Calls that had been undone were redone; `call_ids` tells the earliest first."""

    kind: ClassVar[str] = "redone"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded(SessionEvent):
    """The session was closed."""

    kind: ClassVar[str] = "session_ended"


RunOutcome = Literal[
    "answered",
    "undecided",
    "length",
    "filtered",
    "budget",
    "loop",
    "context",
    "failed",
    "stopped",
    "cancelled",
]
"""How a run ended: the model answered; it could not choose and nobody chose; its answer was cut, or withheld;
a budget was used up; it went in circles; the conversation does not fit the model; the model failed; whoever
steps through it stopped it; it was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent(SessionEvent):
    """Base of what an agent records.

    Attributes:
        agent_id: Which agent.
        step: Which request of its conversation, from 1; 0 before the first.
    """

    kind: ClassVar[str] = "agent_event"
    agent_id: str
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStarted(AgentEvent):
    """A run began. Its prompt is in the first `ModelRequested`.

    Attributes:
        model: Which model answers.
        instructions: What the model is told before everything else.
        parent_id: The agent that delegated this; empty for a run of its own.
    """

    kind: ClassVar[str] = "agent_started"
    model: str
    instructions: str = ""
    parent_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequested(AgentEvent):
    """A model was asked.

    Attributes:
        turn_id: Names this request; the calls that come of it carry it.
        new: Everything that was said since the last answer.
        digest: Of `new`; see `messages.digest_of`. A record that leaves secrets out still has it.
    """

    kind: ClassVar[str] = "model_requested"
    turn_id: str
    new: tuple[Message, ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRetried(AgentEvent):
    """A request failed and is tried again.

    Attributes:
        reason: What happened, in words.
        wait_s: Seconds until the next try.
    """

    kind: ClassVar[str] = "model_retried"
    reason: str
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswered(AgentEvent):
    """A model answered, or somebody in its place.

    Attributes:
        turn_id: Which request.
        message: The answer, its calls bearing the ids they have in the session.
        usage: What it took.
        duration_s: From the request to the end of the answer, failed tries included.
    """

    kind: ClassVar[str] = "model_answered"
    turn_id: str
    message: AssistantMessage
    usage: Usage
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextTrimmed(AgentEvent):
    """Old results were taken out of what the model is shown, to make room.

    Attributes:
        call_ids: Whose results.
        chars: How many characters.
    """

    kind: ClassVar[str] = "context_trimmed"
    call_ids: tuple[str, ...]
    chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTaken(AgentEvent):
    """Somebody who steps through the run did something else than let it go on.

    Attributes:
        action: What they did; see `stepping.StepChoice`.
        text: What they said, if anything.
    """

    kind: ClassVar[str] = "step_taken"
    action: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationEdited(AgentEvent):
    """Somebody changed by hand what was said.

    Attributes:
        messages: The whole conversation from now on.
    """

    kind: ClassVar[str] = "conversation_edited"
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRewound(AgentEvent):
    """The conversation was taken back to before the request `step`."""

    kind: ClassVar[str] = "agent_rewound"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFinished(AgentEvent):
    """A run ended, however it ended.

    Attributes:
        outcome: How.
        reason: Why, in words; empty when the model simply answered.
        steps: Requests of this run.
        calls: Calls of this run.
        usage: What the answers took, those of delegated runs included.
        duration_s: Seconds on the clock.
        working_s: Seconds without those in which a person was waited for.
        new: Everything that was said since the last answer.
    """

    kind: ClassVar[str] = "agent_finished"
    outcome: RunOutcome
    reason: str = ""
    steps: int
    calls: int
    usage: Usage
    duration_s: float
    working_s: float
    new: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStreamed(AgentEvent):
    """A piece of an answer as it comes; goes to whoever listens to the agent, and is not recorded.

    Attributes:
        event: The piece.
    """

    kind: ClassVar[str] = "model_streamed"
    event: ModelEvent


_MOST_CHARS = 2_000
_OWN = {field.name for field in dataclasses.fields(SessionEvent)}


def agent_body(event: AgentEvent) -> dict[str, Any]:
    """The fields of an event as JSON."""
    values = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    return {name: _plain(value) for name, value in values.items() if name not in _OWN}


def _plain(value: Any) -> Json:
    if isinstance(value, UserMessage | AssistantMessage | ToolMessage):
        return _message(value)
    if isinstance(value, Usage):
        return dataclasses.asdict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value


def _message(message: Message) -> dict[str, Json]:
    told = message_to_json(message)
    for image in told.get("images", ()):
        image["chars"], image["data"] = len(image["data"]), ""
    for part in told.get("parts", ()):
        part.pop("opaque", None)
        if part["kind"] == "call" and "flaw" not in part:
            part["arguments"] = {}
    if isinstance(message, ToolMessage):
        told["content"] = shortened(message.content, _MOST_CHARS)
    kept: dict[str, Json] = redact(told)
    return kept


class Conversation:
    """What one agent and its model said to each other, as its events tell it one by one.

    Attributes:
        messages: All of it so far; results that gave way to make room are in it whole.
    """

    def __init__(self) -> None:
        """Nothing was said yet."""
        self.messages: list[Message] = []
        self._before: dict[int, int] = {}

    def take(self, event: AgentEvent) -> None:
        """Take in the next event of this agent."""
        match event:
            case ModelRequested(new=new):
                self._tail(new)
                self._before[event.step] = len(self.messages)
            case AgentFinished(new=new):
                self._tail(new)
            case ModelAnswered(message=message):
                self.messages.append(message)
            case ConversationEdited(messages=messages):
                self.messages[:] = messages
            case AgentRewound(step=step):
                del self.messages[self._before.get(step, len(self.messages)) :]

    def _tail(self, new: Iterable[Message]) -> None:
        """Let `new` be what follows the last answer; told twice it is still there once."""
        del self.messages[len(self.messages) - len(since_last_answer(self.messages)) :]
        self.messages.extend(new)


def conversation_of(events: Iterable[SessionEvent], agent_id: str) -> tuple[Message, ...]:
    """What an agent and its model said to each other, as a session's events tell it.

    Results that were taken out of the model's sight to make room are in it whole.
    """
    said = Conversation()
    for event in events:
        if isinstance(event, AgentEvent) and event.agent_id == agent_id:
            said.take(event)
    return tuple(said.messages)


def first_change(events: Sequence[SessionEvent], agent_id: str, kin: Container[str], step: int) -> str | None:
    """The first call since an agent's request `step` that may have changed anything; None if there was none.

    Args:
        events: What the session recorded.
        agent_id: The agent.
        kin: Whose calls count: its own, and of those that work for it.
        step: Which request.
    """
    since: list[SessionEvent] = []
    for event in reversed(events):
        since.append(event)
        if isinstance(event, ModelRequested) and (event.agent_id, event.step) == (agent_id, step):
            break
    own: set[str] = set()
    for event in reversed(since):
        if isinstance(event, CallRequested) and event.call.agent_id in kin:
            own.add(event.call_id)
        elif isinstance(event, CallDecided) and event.call_id in own and _changes(event):
            return event.call_id
    return None


def _changes(event: CallDecided) -> bool:
    return event.decision is Decision.ALLOW and event.effect is not Effect.READ_ONLY
