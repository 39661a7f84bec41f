"""The values that travel: calls, results, facts, approvals.

All are frozen. The fields without a default may be given by position, in the order written here; all others
by keyword. Times are seconds since the epoch, durations are seconds, sizes are bytes, as the names say.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self

Origin = Literal["person", "program", "model"]
"""Who makes a call: typed in a cell by a person, made by a program, or chosen by a model."""

Outcome = Literal["approve", "deny", "timeout", "cancel"]
"""How a request for approval ended."""

Remember = Literal["call", "shape", "tool"]
"""How far an approval reaches beyond this one call, until the session ends."""

ErrorKind = Literal["invalid", "failed", "denied", "environment"]
"""Whose fault an error is: the arguments, the tool's work, a decision, or our own machinery."""

RunsIn = Literal["sandbox", "host"]
"""Where a tool runs."""

Json = Any
"""A value that JSON can hold."""

MimeBundle = Mapping[str, Any]
"""Data of several MIME types for one thing to show; binary types hold base64 text."""


class Effect(StrEnum):
    """What a call may do, in one word; ordered by rank, the mildest first."""

    READ_ONLY = "read_only"
    REMOTE_ACTION = "remote_action"
    LOCAL_MUTATION = "local_mutation"
    DESTRUCTIVE = "destructive"

    @property
    def rank(self) -> int:
        """Position in the order of severity, from 0."""
        return _EFFECT_RANK[self]

    def __lt__(self, other: object) -> bool:
        return self.rank < _rank_of(other, Effect)

    def __le__(self, other: object) -> bool:
        return self.rank <= _rank_of(other, Effect)

    def __gt__(self, other: object) -> bool:
        return self.rank > _rank_of(other, Effect)

    def __ge__(self, other: object) -> bool:
        return self.rank >= _rank_of(other, Effect)


def _rank_of(other: object, kind: type[Effect | Decision]) -> int:
    """The rank of what is compared; plain text would silently be compared by its spelling."""
    if not isinstance(other, kind):
        raise TypeError(f"{kind.__name__} cannot be compared with {other!r}; use {kind.__name__}({other!r}).")
    return other.rank


_EFFECT_RANK = {effect: rank for rank, effect in enumerate(Effect)}


class Decision(StrEnum):
    """What a policy says about a call; ordered `ALLOW < ASK < DENY`, so the strictest is `max`."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"

    @property
    def rank(self) -> int:
        """Position in the order of strictness, from 0."""
        return _DECISION_RANK[self]

    def __lt__(self, other: object) -> bool:
        return self.rank < _rank_of(other, Decision)

    def __le__(self, other: object) -> bool:
        return self.rank <= _rank_of(other, Decision)

    def __gt__(self, other: object) -> bool:
        return self.rank > _rank_of(other, Decision)

    def __ge__(self, other: object) -> bool:
        return self.rank >= _rank_of(other, Decision)


_DECISION_RANK = {decision: rank for rank, decision in enumerate(Decision)}


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as a model sees it.

    Attributes:
        name: Unique in its registry.
        description: Written for a model to read.
        parameters: JSON Schema of the arguments, always of type `object`.
        examples: Pairs of arguments and what a person would say to get them.
    """

    name: str
    description: str
    parameters: Mapping[str, Json]
    _: KW_ONLY
    examples: Sequence[tuple[Mapping[str, Json], str]] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A wish to run a tool, before anybody has agreed to it.

    Attributes:
        id: Unique in its session; an id runs at most once.
        name: The tool's name in the registry.
        arguments: As the caller gave them, not yet validated.
        origin: Who makes the call.
        agent_id: The agent that makes it; empty for a person or a program.
        turn_id: The turn of that agent; empty outside an agent.
    """

    id: str
    name: str
    arguments: Mapping[str, Json]
    _: KW_ONLY
    origin: Origin = "program"
    agent_id: str = ""
    turn_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """What was left out of a result's `content`.

    Attributes:
        total_chars: Length of the whole content.
        shown_chars: How much of it the model sees.
        ref: What reads the rest, or None when the rest is lost.
        note: The same in words.
    """

    total_chars: int
    shown_chars: int
    ref: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a call gave: one answer with three faces, for the model, the program and the person.

    Attributes:
        content: What the model reads.
        is_error: Whether the call failed; a non-zero exit or a timeout is never a success.
        recoverable: For an error: whether a call made differently may succeed.
        error_kind: For an error: whose fault it is.
        kind: The form of the answer.
        value: The whole structured answer as JSON, also of an error.
        data: MIME bundle for people; raw and untrusted until `notebook.render.results` has cleaned it.
        metadata: Anything else worth knowing about the call.
        truncation: What was left out of `content`, or None.
    """

    content: str
    is_error: bool = False
    recoverable: bool = False
    error_kind: ErrorKind | None = None
    kind: Literal["text", "json", "binary", "error"] = "text"
    value: Json = None
    data: MimeBundle = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    truncation: Truncation | None = None

    @classmethod
    def success(cls, content: str = "") -> Self:
        """A plain success with `content` for the model; `value` is the same text."""
        return cls(content=content, value=content)

    @classmethod
    def text(cls, content: str) -> Self:
        """A text; `value` is the same text."""
        return cls(content=content, value=content)

    @classmethod
    def json(cls, value: Json, content: str | None = None) -> Self:
        """A structured answer.

        Args:
            value: Anything JSON can hold.
            content: What the model reads; the compact JSON of `value` when not given.

        Raises:
            pydantic_core.PydanticSerializationError: If `value` has something JSON cannot hold.
        """
        from pydantic_core import to_json

        text = to_json(value).decode()
        return cls(content=text if content is None else content, kind="json", value=value)

    @classmethod
    def binary(cls, data: bytes, mime: str = "application/octet-stream") -> Self:
        """Bytes of a MIME type; kept as base64 in `data`, named by size for the model."""
        encoded = base64.b64encode(data).decode("ascii")
        return cls(
            content=f"[{mime}, {len(data)} bytes]",
            kind="binary",
            value={"mime": mime, "size": len(data), "base64": encoded},
            data={mime: encoded},
        )

    @classmethod
    def error(cls, message: str, *, recoverable: bool = True, error_kind: ErrorKind = "failed") -> Self:
        """A failure, told so that the reader can act on it."""
        return cls(
            content=message,
            is_error=True,
            recoverable=recoverable,
            error_kind=error_kind,
            kind="error",
        )

    def with_metadata(self, **more: Any) -> Self:
        """A copy with `more` added to the metadata."""
        return dataclasses.replace(self, metadata={**self.metadata, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known about a call before it runs; what a policy decides on.

    Attributes:
        effect: Its severity in one word.
        reads: Paths it reads, relative to the workspace where they lie in it.
        writes: Paths it writes, likewise.
        outside: Whether any of the writes lies outside the workspace.
        hosts: Network hosts it talks to.
        commands: Programs it starts.
        certain: False when the classifier could not see everything: ask, and never read only.
        runs_in: Where the tool runs.
        level: The sandbox's confinement level.
        undoable: Whether undo covers what the call may change.
        path_guarded: Whether the tool reaches files only through the workspace's path guard.
    """

    effect: Effect = Effect.LOCAL_MUTATION
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    outside: bool = False
    hosts: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    certain: bool = True
    runs_in: RunsIn = "sandbox"
    level: str = "confined"
    undoable: bool = False
    path_guarded: bool = False


@dataclass(frozen=True, slots=True)
class Approval:
    """The answer to a request for approval.

    Attributes:
        outcome: What was decided, or why nothing was.
        arguments: Edited arguments to run instead, or None for the ones asked about.
        reason: Why, in the answerer's words; a model reads it after a denial.
        remember: How far an approval reaches beyond this call, or None.
    """

    outcome: Outcome
    _: KW_ONLY
    arguments: Mapping[str, Json] | None = None
    reason: str = ""
    remember: Remember | None = None

    def __post_init__(self) -> None:
        if self.outcome not in {"approve", "deny", "timeout", "cancel"}:
            raise ValueError(
                f"Approval outcome {self.outcome!r} is not one of approve, deny, timeout, cancel.",
            )
        if self.remember not in {None, "call", "shape", "tool"}:
            raise ValueError(f"Approval.remember {self.remember!r} is not one of None, call, shape, tool.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A question to a person: may this run?

    Attributes:
        id: Unique; answers to any other id are dropped.
        call: The call, with its arguments validated: exactly what would run.
        definition: The tool as a model sees it.
        effect: The call's severity.
        level: The sandbox's level, or `host` for a tool that runs on the host.
        reasons: Why this is asked, in words.
        facts: What is known about the call.
        preview: What the tool's card shows instead of raw arguments, by kind; see `notebook.cards`.
        timeout_s: After this the answer is `timeout`, which denies; None waits for ever.
    """

    id: str
    call: ToolCall
    definition: ToolDefinition
    effect: Effect
    level: str
    reasons: tuple[str, ...] = ()
    facts: Facts = field(default_factory=Facts)
    preview: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = 300.0
