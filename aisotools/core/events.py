"""Events that a session and its agents record. Cards, transcript and replay are folds over them.

`agent_body` is the recorded form of an agent's event: whole messages, with secrets redacted. Data that the
ledger holds elsewhere is not repeated: arguments and long results are recorded with their calls. Images and
provider data are omitted. `Conversation` folds an agent's events back into its messages.
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
    fields_to_copy,
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


OUTPUT_KINDS = frozenset({"call_output", "call_emitted"})
"""Kinds of events that say what a running call printed and reported; its result has the essence of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsDropped(SessionEvent):
    """Stands at the beginning for events that the session retains no longer.

    Attributes:
        count: How many they were.
        kinds: Of which kinds, sorted.
        size_bytes: The memory that they took.
        reason: Why they were dropped.
    """

    kind: ClassVar[str] = "events_dropped"
    count: int
    kinds: tuple[str, ...]
    size_bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.count:,} earlier events ({', '.join(self.kinds)}) were dropped: {self.reason}"

    @property
    def is_output_only(self) -> bool:
        """True if nothing is missing but what calls printed and reported while they ran."""
        return OUTPUT_KINDS.issuperset(self.kinds)


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
        generation: Its number.
        reason: Description of what happened.
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
class CallTried(SessionEvent):
    """A call was begun without the right to change anything, before anybody was asked about it.

    That decides nothing yet. If the trial counts, the call is decided by `trial`; if not, it is asked about.

    Attributes:
        programs: The programs of which it is not known what they do.
        digest: Digest of tool version, arguments and level.
        level: The sandbox's level.
    """

    kind: ClassVar[str] = "call_tried"
    programs: tuple[str, ...]
    digest: str
    level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDecided(SessionEvent):
    """The gate decided about a call.

    Attributes:
        decision: Final decision, never `ASK`.
        decided_by: `policy`, `typed` (a person typed the call), `grant`, `approver`, or `trial` (it ran
            without the right to change anything).
        effect: The call's severity.
        reasons: Reasons for it.
        arguments: Arguments that may run: validated, and edited if the approver edited them.
        digest: Digest of tool version, arguments and level; compared again at dispatch.
        links: Paths of the call that lead elsewhere, each with where it leads, as far as that was looked up.
    """

    kind: ClassVar[str] = "call_decided"
    decision: Decision
    decided_by: str
    effect: Effect
    reasons: tuple[str, ...]
    arguments: Mapping[str, Json]
    digest: str
    links: tuple[tuple[str, str], ...] = ()


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
class ProtectedNamesAllowed(SessionEvent):
    """A person allowed protected names to be written in the workspace.

    Attributes:
        names: The names.
        source: `session` (an argument of the program), `settings` (the user's own file) or `approver`.
    """

    kind: ClassVar[str] = "protected_names_allowed"
    names: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedFilesRestored(SessionEvent):
    """Protected files were changed by what a call left running, or while nobody could tell by whom.

    Attributes:
        changes: Descriptions of the first changes, and what became of each.
        count: The number of all of them.
        problem: Why not every file could be looked at; empty if each was.
    """

    kind: ClassVar[str] = "protected_files_restored"
    changes: tuple[str, ...]
    count: int
    problem: str = ""

    def __str__(self) -> str:
        found = (
            "Something that an earlier call left running (or a person right after a call) had changed "
            "protected files"
        )
        more = self.count - len(self.changes)
        listed = ", ".join(self.changes) + (f" and {more:,} more" if more > 0 else "")
        sentences = [f"{found}: {listed}."] if self.count else []
        if self.problem:
            sentences.append(f"The workspace cannot be watched for protected files: {self.problem}.")
        return " ".join(sentences)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted(SessionEvent):
    """A call began to run; of one that was decided by its trial, when that was over.

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
    """A snapshot of the workspace was stored before a call that may change files.

    Attributes:
        root: Digest of the tree; empty where nothing could be covered.
        files: Number of files and folders.
        copied_bytes: Bytes that were new and had to be copied.
        uncovered: Descriptions of what is not covered.
        duration_s: Duration in seconds.
    """

    kind: ClassVar[str] = "checkpoint_taken"
    root: str
    files: int
    copied_bytes: int
    uncovered: tuple[str, ...]
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VariablesDropped(SessionEvent):
    """The variables from before some calls are not kept, or no longer, so that no undo brings them back.

    Attributes:
        call_ids: The calls.
        reason: Why, in a clause.
    """

    kind: ClassVar[str] = "variables_dropped"
    call_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone(SessionEvent):
    """Calls were undone.

    Attributes:
        call_ids: The calls, latest first.
        restored: Files that were created or replaced. Of very many files with long paths only the first ones
            have theirs whole, here and below.
        removed: Files that were removed.
        missing: Descriptions of what was not restored.
        variables: Description of what happened to the variables.
        forced: True if changes of somebody else were overwritten.
        steps: Number of steps, which is what `undo` and `redo` count: a call is one together with those that
            were made inside it.
        files_only: True if the variables were left as they were on request.
    """

    kind: ClassVar[str] = "undone"
    call_ids: tuple[str, ...]
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    variables: str = ""
    forced: bool = False
    steps: int = 0
    files_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Redone(Undone):
    """Undone calls were redone; `call_ids` has the earliest first."""

    kind: ClassVar[str] = "redone"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecovered(SessionEvent):
    """An undo or a call that an earlier program had left half done was completed, or something was lost.

    Attributes:
        notes: What was completed, what ended as it was, and what can no longer be undone, in sentences.
    """

    kind: ClassVar[str] = "history_recovered"
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.notes)


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
"""End of a run: the model answered; it could not choose and nobody chose; its answer was cut, or withheld;
a budget was used up; it repeated itself; the conversation does not fit the model; the model failed; a person
stepping through it stopped it; it was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent(SessionEvent):
    """Base of what an agent records.

    Attributes:
        agent_id: The agent.
        step: Number of the request in its conversation, from 1; 0 before the first.
    """

    kind: ClassVar[str] = "agent_event"
    agent_id: str
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStarted(AgentEvent):
    """A run began. Its prompt is in the first `ModelRequested`.

    Attributes:
        model: Name of the model.
        instructions: System instructions.
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
        turn_id: Identifies this request; its calls carry the same id.
        new: Messages since the last answer.
        digest: Digest of `new` before redaction; see `messages.conversation_digest`.
    """

    kind: ClassVar[str] = "model_requested"
    turn_id: str
    new: tuple[Message, ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRetried(AgentEvent):
    """A request failed and is tried again.

    Attributes:
        reason: Description of the failure.
        wait_s: Seconds until the next attempt.
    """

    kind: ClassVar[str] = "model_retried"
    reason: str
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswered(AgentEvent):
    """A model answered, or somebody in its place.

    Attributes:
        turn_id: The request.
        message: The answer; its calls have the ids of the session.
        usage: Tokens and cost.
        duration_s: Seconds from the request to the end of the answer, including failed attempts.
    """

    kind: ClassVar[str] = "model_answered"
    turn_id: str
    message: AssistantMessage
    usage: Usage
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextTrimmed(AgentEvent):
    """Old results were removed from the model's context.

    Attributes:
        call_ids: Calls whose results were removed.
        chars: Characters that were removed.
    """

    kind: ClassVar[str] = "context_trimmed"
    call_ids: tuple[str, ...]
    chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTaken(AgentEvent):
    """A person who steps through the run did something other than continue.

    Attributes:
        action: Their choice.
        text: Their message, if any.
    """

    kind: ClassVar[str] = "step_taken"
    action: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationEdited(AgentEvent):
    """A person edited the conversation.

    Attributes:
        messages: The whole conversation afterwards.
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
        outcome: How it ended.
        reason: Explanation; empty if the model answered.
        steps: Number of requests.
        calls: Number of calls.
        usage: Tokens and cost, including those of delegated runs.
        duration_s: Seconds from start to end.
        working_s: The same without the time spent waiting for a person.
        new: Messages since the last answer.
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
    """An event of a streamed answer. Passed to listeners of the agent, and not recorded.

    Attributes:
        event: The event.
    """

    kind: ClassVar[str] = "model_streamed"
    event: ModelEvent


_MAX_CONTENT_CHARS = 2_000  # of a result; the whole is recorded with its call
_HEADER_FIELDS = {field.name for field in dataclasses.fields(SessionEvent)}


def agent_body(event: AgentEvent) -> dict[str, Any]:
    """Return the fields of an event as JSON, redacted, without those that every event has."""
    names, values_of = fields_to_copy(type(event))  # type: ignore[arg-type]  # classes are hashable
    values = zip(names, values_of(event), strict=True)
    return {name: _plain(value) for name, value in values if name not in _HEADER_FIELDS}


def _plain(value: Any) -> Json:
    if isinstance(value, UserMessage | AssistantMessage | ToolMessage):
        return _message(value)
    if isinstance(value, Usage):
        return dataclasses.asdict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value


def _message(message: Message) -> dict[str, Json]:
    encoded = message_to_json(message)
    for image in encoded.get("images", ()):
        image["chars"], image["data"] = len(image["data"]), ""
    for part in encoded.get("parts", ()):
        part.pop("opaque", None)
        if part["kind"] == "call" and "flaw" not in part:
            part["arguments"] = {}  # recorded with the call; a flawed one is never made
    if isinstance(message, ToolMessage):
        encoded["content"] = shortened(message.content, _MAX_CONTENT_CHARS)
    redacted: dict[str, Json] = redact(encoded)
    return redacted


class Conversation:
    """Messages between one agent and its model, folded from the agent's events.

    Attributes:
        messages: All messages so far. Results that were trimmed from the context are whole here.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._lengths: dict[int, int] = {}  # number of messages before each request

    def take(self, event: AgentEvent) -> None:
        """Add the next event of this agent."""
        match event:
            case ModelRequested(new=new):
                self._set_tail(new)
                self._lengths[event.step] = len(self.messages)
            case AgentFinished(new=new):
                self._set_tail(new)
            case ModelAnswered(message=message):
                self.messages.append(message)
            case ConversationEdited(messages=messages):
                self.messages[:] = messages
            case AgentRewound(step=step):
                del self.messages[self._lengths.get(step, len(self.messages)) :]

    def _set_tail(self, new: Iterable[Message]) -> None:
        # A run that was stopped and resumed reports the same messages twice: replace, do not append.
        del self.messages[len(self.messages) - len(since_last_answer(self.messages)) :]
        self.messages.extend(new)


def conversation_of(events: Iterable[SessionEvent], agent_id: str) -> tuple[Message, ...]:
    """Return the messages between an agent and its model, folded from the events of a session.

    Results that were trimmed from the context are whole here.
    """
    conversation = Conversation()
    for event in events:
        if isinstance(event, AgentEvent) and event.agent_id == agent_id:
            conversation.take(event)
    return tuple(conversation.messages)


def first_change(
    events: Sequence[SessionEvent], agent_id: str, agent_ids: Container[str], step: int
) -> str | None:
    """Return the id of the first call since a request that may have changed anything, or None.

    Args:
        events: Events of the session.
        agent_id: The agent.
        agent_ids: Agents whose calls count: itself, and those it delegated to.
        step: Number of the request.

    Raises:
        LookupError: If events have been dropped and the request is among them, so that this is not known.
    """
    since: list[SessionEvent] = []
    for event in reversed(events):
        since.append(event)
        if isinstance(event, ModelRequested) and (event.agent_id, event.step) == (agent_id, step):
            break
        if isinstance(event, EventsDropped) and not event.is_output_only:
            raise LookupError(f"{event}.")
    requested: set[str] = set()
    for event in reversed(since):
        if isinstance(event, CallRequested) and event.call.agent_id in agent_ids:
            requested.add(event.call_id)
        elif isinstance(event, CallDecided) and event.call_id in requested and _may_change(event):
            return event.call_id
    return None


def _may_change(event: CallDecided) -> bool:
    return event.decision is Decision.ALLOW and event.effect is not Effect.READ_ONLY
