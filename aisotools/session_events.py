"""Everything a session records, one frozen value each; cards, transcript and replay are folds over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from aisotools.events import (
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
