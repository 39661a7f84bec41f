"""Reads the records of a ledger back as events. Pure.

What `aisotools.session.recording` leaves out stays out: secrets, images, values, and the rest of long texts.
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
    CallTried,
    ContextTrimmed,
    ConversationEdited,
    GrantRevoked,
    HistoryRecovered,
    ModelAnswered,
    ModelRequested,
    ModelRetried,
    ProtectedFilesRestored,
    ProtectedNamesAllowed,
    Redone,
    SandboxLost,
    SandboxStarted,
    SessionEnded,
    SessionEvent,
    StepTaken,
    Undone,
    VariablesDropped,
)
from aisotools.core.exceptions import LedgerError, UsageError
from aisotools.core.messages import Message, Usage, message_from_json
from aisotools.core.types import Approval, Decision, Effect, Json, ToolCall, ToolResult
from aisotools.session.ledger_values import unescaped

_AGENT_EVENTS: Mapping[str, type[AgentEvent]] = {
    event_type.kind: event_type
    for event_type in (
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
_SHORTENED_KEYS = frozenset({"beginning", "chars", "sha256"})
"""Members of the object that stands for a shortened text; see `aisotools.core.redaction.redact`."""

Body = Mapping[str, Any]


def events_of_records(records: Iterable[Mapping[str, Any]]) -> list[SessionEvent]:
    """Return the events of a ledger's records. Records of unknown kinds are skipped.

    Raises:
        LedgerError: If a record is malformed.
    """
    parsed = [(record, *_parse_record(record)) for record in records]
    reader = _LedgerReader()
    # A model's message is recorded before the calls that it requests, and takes their arguments from them.
    for read in (reader.read_call_event, reader.read_agent_event):
        for record, kind, body, common in parsed:
            try:
                read(kind, body, common)
            except _MALFORMED as error:
                raise _malformed_record(record, error) from None
    return [event for event in reader.events if event is not None]


_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, UsageError)


def _malformed_record(record: Mapping[str, Any], error: Exception) -> LedgerError:
    cause = f"{type(error).__name__}: {str(error)[:200]}"
    return LedgerError(f"Record {record.get('n')} of the ledger cannot be read: {cause}.")


def _parse_record(record: Mapping[str, Any]) -> tuple[str, Body, Body]:
    """Return the kind of a record, its body, and the fields that all kinds have."""
    try:
        body = dict(record["body"])
        common = {"time_s": float(record["time_s"]), "call_id": str(body.pop("call_id", ""))}
        return str(record["kind"]), body, common
    except _MALFORMED as error:
        raise _malformed_record(record, error) from None


class _LedgerReader:
    """Reads all records twice: first the events of calls, then those of agents, which refer to the calls.

    Attributes:
        events: One per record; None for kinds that are skipped.
    """

    def __init__(self) -> None:
        self.events: list[SessionEvent | None] = []
        self._requested: dict[str, Mapping[str, Json]] = {}
        self._results: dict[str, ToolResult] = {}
        self._index = 0

    def read_call_event(self, kind: str, body: Body, common: Body) -> None:
        """Append the event of a record; None for an agent's event, which `read_agent_event` fills in."""
        read = _READERS.get(kind)
        event = read(body, common) if read is not None else None
        if isinstance(event, CallRequested):
            self._requested[event.call_id] = event.call.arguments
        elif isinstance(event, CallFinished):
            self._results[event.call_id] = event.result
        self.events.append(event)

    def read_agent_event(self, kind: str, body: Body, common: Body) -> None:
        """Fill in the event of the next record if it is an agent's."""
        if kind in _AGENT_EVENTS:
            self.events[self._index] = self._agent_event(_AGENT_EVENTS[kind], body, common)
        self._index += 1

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
        if body["role"] == "tool" and _is_shortened(body["content"]):
            whole = self._results.get(body["call_id"])
            body["content"] = fill_shortened(body["content"]) if whole is None else whole.content
        if "images" in body:
            body["images"] = []  # image data is not recorded
        if "parts" in body:
            body["parts"] = list(map(self._part, body["parts"]))
        return message_from_json(body)

    def _part(self, part: Body) -> Body:
        if part["kind"] != "call" or part.get("arguments"):
            return part
        return {**part, "arguments": self._requested.get(part["id"], {})}


def _is_shortened(value: object) -> bool:
    return isinstance(value, Mapping) and value.keys() == _SHORTENED_KEYS


def fill_shortened(value: Any) -> Any:
    """Return JSON in which each shortened text is its beginning, with a note of how much is missing."""
    if _is_shortened(value):
        beginning = str(value["beginning"])
        missing = int(value["chars"]) - len(beginning)
        return f"{beginning}[... {missing:,} more characters are not in the record ...]"
    if isinstance(value, Mapping):
        return {key: fill_shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_shortened(item) for item in value]
    return value


# ---- events of calls and of the sandbox


def _read_requested(body: Body, common: Body) -> SessionEvent:
    arguments = unescaped(fill_shortened(body["arguments"]))
    call = ToolCall(
        common["call_id"],
        str(body["name"]),
        arguments if isinstance(arguments, dict) else {},
        origin=body["origin"],
        agent_id=body["agent_id"],
        turn_id=body["turn_id"],
    )
    return CallRequested(**common, call=call)


def _read_answered(body: Body, common: Body) -> SessionEvent:
    edited = body["edited"]
    approval = Approval(
        body["outcome"],
        arguments=None if edited is None else unescaped(fill_shortened(edited)),
        reason=body["reason"],
        remember=body["remember"],
    )
    return ApprovalAnswered(**common, request_id=body["request_id"], approval=approval)


def _read_tried(body: Body, common: Body) -> SessionEvent:
    return CallTried(**common, programs=tuple(body["programs"]), digest=body["digest"], level=body["level"])


def _read_decided(body: Body, common: Body) -> SessionEvent:
    return CallDecided(
        **common,
        decision=Decision(body["decision"]),
        decided_by=body["decided_by"],
        effect=Effect(body["effect"]),
        reasons=tuple(body["reasons"]),
        arguments=unescaped(fill_shortened(body["arguments"])),
        digest=body["digest"],
        links=tuple((str(name), str(target)) for name, target in body.get("links", ())),
    )


def _read_finished(body: Body, common: Body) -> SessionEvent:
    result = body["result"]
    result = ToolResult(
        content=result["content"],
        is_error=result["is_error"],
        error_kind=result["error_kind"],
        kind=result["kind"],
        metadata={"data_chars": dict(result["data_chars"])},
    )
    return CallFinished(**common, name=body["name"], result=result, duration_s=float(body["duration_s"]))


def _read_undone_as(kind: type[Undone]) -> Callable[[Body, Body], SessionEvent]:
    def read(body: Body, common: Body) -> SessionEvent:
        return kind(
            **common,
            call_ids=tuple(body["call_ids"]),
            variables=body["variables"],
            forced=body["forced"],
            steps=int(body.get("steps", 0)),
            files_only=bool(body.get("files_only", False)),
        )

    return read


def _read_dropped(body: Body, common: Body) -> SessionEvent:
    return VariablesDropped(**common, call_ids=tuple(body["call_ids"]), reason=body["reason"])


def _read_allowed(body: Body, common: Body) -> SessionEvent:
    return ProtectedNamesAllowed(**common, names=tuple(body["names"]), source=body["source"])


def _read_restored(body: Body, common: Body) -> SessionEvent:
    return ProtectedFilesRestored(
        **common, changes=tuple(body["changes"]), count=int(body["count"]), problem=body["problem"]
    )


def _read_recovered(body: Body, common: Body) -> SessionEvent:
    return HistoryRecovered(**common, notes=tuple(body["notes"]))


def _read_fields_of(kind: type[SessionEvent]) -> Callable[[Body, Body], SessionEvent]:
    return lambda body, common: kind(**common, **body)


_READERS: Mapping[str, Callable[[Body, Body], SessionEvent]] = {
    "sandbox_started": _read_fields_of(SandboxStarted),
    "sandbox_lost": _read_fields_of(SandboxLost),
    "call_requested": _read_requested,
    "approval_answered": _read_answered,
    "call_tried": _read_tried,
    "call_decided": _read_decided,
    "grant_revoked": _read_fields_of(GrantRevoked),
    "protected_names_allowed": _read_allowed,
    "protected_files_restored": _read_restored,
    "call_started": _read_fields_of(CallStarted),
    "call_finished": _read_finished,
    "variables_dropped": _read_dropped,
    "undone": _read_undone_as(Undone),
    "redone": _read_undone_as(Redone),
    "history_recovered": _read_recovered,
    "session_ended": _read_fields_of(SessionEnded),
}
