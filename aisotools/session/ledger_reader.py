"""A ledger read back: the events that its records tell, as far as they were written down. Pure.

What was left out of the record stays out: secrets, pictures, values, and most of what was very long.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
    ContextTrimmed,
    ConversationEdited,
    GrantRevoked,
    ModelAnswered,
    ModelRequested,
    ModelRetried,
    Redone,
    SandboxLost,
    SandboxStarted,
    SessionEnded,
    SessionEvent,
    StepTaken,
    Undone,
)
from aisotools.core.exceptions import LedgerError, UsageError
from aisotools.core.messages import Message, Usage, message_from_json
from aisotools.core.types import Approval, Decision, Effect, Json, ToolCall, ToolResult

_AGENT_EVENTS: Mapping[str, type[AgentEvent]] = {
    one.kind: one
    for one in (
        AgentStarted,
        ModelRequested,
        ModelRetried,
        ModelAnswered,
        ContextTrimmed,
        StepTaken,
        ConversationEdited,
        AgentRewound,
        AgentFinished,
    )
}
_CUT = frozenset({"beginning", "chars", "sha256"})

Body = Mapping[str, Any]


def events_of_records(records: Iterable[Mapping[str, Any]]) -> list[SessionEvent]:
    """The events of a ledger's records; kinds that are not known are passed over.

    Raises:
        LedgerError: If a record is not as it is written.
    """
    read = [(record, *_told(record)) for record in records]
    reading = _LedgerReader()
    # An answer is recorded before the calls that it wants, and has their arguments from there.
    for part in (reading.take_call, reading.take_message):
        for record, kind, body, common in read:
            try:
                part(kind, body, common)
            except _MALFORMED as error:
                raise _unreadable(record, error) from None
    return [event for event in reading.events if event is not None]


_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, UsageError)


def _unreadable(record: Mapping[str, Any], error: Exception) -> LedgerError:
    cause = f"{type(error).__name__}: {str(error)[:200]}"
    return LedgerError(f"Record {record.get('n')} of the ledger cannot be read: {cause}.")


def _told(record: Mapping[str, Any]) -> tuple[str, Body, Body]:
    """The kind of a record, its body, and what all kinds have in common."""
    try:
        body = dict(record["body"])
        common = {"time_s": float(record["time_s"]), "call_id": str(body.pop("call_id", ""))}
        return str(record["kind"]), body, common
    except _MALFORMED as error:
        raise _unreadable(record, error) from None


class _LedgerReader:
    """Reads records, first those about calls, then those of agents, whose messages need the former."""

    def __init__(self) -> None:
        self.events: list[SessionEvent | None] = []
        self._requested: dict[str, Mapping[str, Json]] = {}
        self._results: dict[str, ToolResult] = {}
        self._place = 0

    def take_call(self, kind: str, body: Body, common: Body) -> None:
        """Take in what is not an agent's."""
        make = _READERS.get(kind)
        event = make(body, common) if make is not None else None
        if isinstance(event, CallRequested):
            self._requested[event.call_id] = event.call.arguments
        elif isinstance(event, CallFinished):
            self._results[event.call_id] = event.result
        self.events.append(event)

    def take_message(self, kind: str, body: Body, common: Body) -> None:
        """Take in what is an agent's, each in its place."""
        if kind in _AGENT_EVENTS:
            self.events[self._place] = self._agent_event(_AGENT_EVENTS[kind], body, common)
        self._place += 1

    def _agent_event(self, kind: type[AgentEvent], body: Body, common: Body) -> AgentEvent:
        values: dict[str, Any] = {}
        for name in (field.name for field in dataclasses.fields(kind) if field.name in body):
            value = body[name]
            if name in {"new", "messages"}:
                value = tuple(map(self._message, value))
            elif name == "message":
                value = self._message(value)
            elif name == "usage":
                value = Usage(**value)
            values[name] = tuple(value) if isinstance(value, list) else value
        return kind(**common, **values)

    def _message(self, body: Body) -> Message:
        body = dict(body)
        if body["role"] == "tool" and _is_cut(body["content"]):
            whole = self._results.get(body["call_id"])
            body["content"] = lengthened(body["content"]) if whole is None else whole.content
        if "images" in body:
            body["images"] = []  # their data is not in the record
        if "parts" in body:
            body["parts"] = list(map(self._part, body["parts"]))
        return message_from_json(body)

    def _part(self, part: Body) -> Body:
        if part["kind"] != "call" or part.get("arguments"):
            return part
        return {**part, "arguments": self._requested.get(part["id"], {})}


def _is_cut(value: object) -> bool:
    return isinstance(value, Mapping) and value.keys() == _CUT


def lengthened(value: Any) -> Any:
    """JSON in which each text of which only the beginning was kept is that, and says so."""
    if _is_cut(value):
        beginning = str(value["beginning"])
        missing = int(value["chars"]) - len(beginning)
        return f"{beginning}[... {missing:,} more characters are not in the record ...]"
    if isinstance(value, Mapping):
        return {key: lengthened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [lengthened(item) for item in value]
    return value


# ---- the kinds that no agent wrote


def _requested(body: Body, common: Body) -> SessionEvent:
    arguments = lengthened(body["arguments"])
    call = ToolCall(
        common["call_id"],
        str(body["name"]),
        arguments if isinstance(arguments, dict) else {},
        origin=body["origin"],
        agent_id=body["agent_id"],
        turn_id=body["turn_id"],
    )
    return CallRequested(**common, call=call)


def _answered(body: Body, common: Body) -> SessionEvent:
    edited = body["edited"]
    approval = Approval(
        body["outcome"],
        arguments=None if edited is None else lengthened(edited),
        reason=body["reason"],
        remember=body["remember"],
    )
    return ApprovalAnswered(**common, request_id=body["request_id"], approval=approval)


def _decided(body: Body, common: Body) -> SessionEvent:
    return CallDecided(
        **common,
        decision=Decision(body["decision"]),
        decided_by=body["decided_by"],
        effect=Effect(body["effect"]),
        reasons=tuple(body["reasons"]),
        arguments=lengthened(body["arguments"]),
        digest=body["digest"],
    )


def _finished(body: Body, common: Body) -> SessionEvent:
    result = body["result"]
    result = ToolResult(
        content=result["content"],
        is_error=result["is_error"],
        error_kind=result["error_kind"],
        kind=result["kind"],
        metadata={"data_chars": dict(result["data_chars"])},
    )
    return CallFinished(**common, name=body["name"], result=result, duration_s=float(body["duration_s"]))


def _undone(kind: type[Undone]) -> Callable[[Body, Body], SessionEvent]:
    def read(body: Body, common: Body) -> SessionEvent:
        return kind(
            **common,
            call_ids=tuple(body["call_ids"]),
            variables=body["variables"],
            forced=body["forced"],
            steps=int(body.get("steps", 0)),
        )

    return read


def _as_it_is(kind: type[SessionEvent]) -> Callable[[Body, Body], SessionEvent]:
    return lambda body, common: kind(**common, **body)


_READERS: Mapping[str, Callable[[Body, Body], SessionEvent]] = {
    "sandbox_started": _as_it_is(SandboxStarted),
    "sandbox_lost": _as_it_is(SandboxLost),
    "call_requested": _requested,
    "approval_answered": _answered,
    "call_decided": _decided,
    "grant_revoked": _as_it_is(GrantRevoked),
    "call_started": _as_it_is(CallStarted),
    "call_finished": _finished,
    "undone": _undone(Undone),
    "redone": _undone(Redone),
    "session_ended": _as_it_is(SessionEnded),
}
