"""From a session's events to its ledger: presented, decided, executed, outcome; secrets left out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import singledispatch
from pathlib import Path
from typing import Any

from aisotools.agent_events import AgentEvent
from aisotools.agent_record import agent_body
from aisotools.contracts import Tool
from aisotools.events import Json, ToolResult
from aisotools.exceptions import LedgerError
from aisotools.journal import Journal
from aisotools.ledger import Ledger, ledger_name, open_ledger
from aisotools.redact import redact, redact_arguments, redact_text, secret_parameters, shortened
from aisotools.registry import ToolRegistry
from aisotools.session_events import (
    ApprovalAnswered,
    ApprovalAsked,
    CallDecided,
    CallFinished,
    CallRequested,
    CallStarted,
    GrantRevoked,
    SandboxLost,
    SandboxStarted,
    SessionEnded,
    SessionEvent,
    Undone,
)

_log = logging.getLogger(__name__)
_SEAL_S = 0.05
_MOST_CHARS = 4_000

SecretsOf = Callable[[str], frozenset[str]]
"""Names of the secret parameters of a tool."""


class Recording:
    """Writes what it hears to a ledger, until that fails once."""

    def __init__(
        self, ledger: Ledger, secrets_of: SecretsOf, on_failure: Callable[[LedgerError], None]
    ) -> None:
        """Write to `ledger`.

        Args:
            ledger: Where to.
            secrets_of: Tells which arguments of a tool are never written down.
            on_failure: Hears once when nothing can be written any more, so that no further call passes.
        """
        self._ledger = ledger
        self._on_failure = on_failure
        self._secrets_of = secrets_of
        self._names: dict[str, str] = {}
        self._asked_s: dict[str, float] = {}
        self._sealing: asyncio.TimerHandle | None = None
        self._stopped = False

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self._ledger.path

    def hear(self, event: SessionEvent) -> None:
        """Write one event, if it is of a kind that is kept."""
        if self._stopped:
            return
        if isinstance(event, CallRequested):
            self._names[event.call_id] = event.call.name
        body = _body(event, self._secrets_of(self._names.get(event.call_id, "")))
        if body is None:
            return
        if isinstance(event, ApprovalAsked):
            self._asked_s[event.request.id] = event.time_s
        elif isinstance(event, ApprovalAnswered):
            body["waited_s"] = event.time_s - self._asked_s.pop(event.request_id, event.time_s)
        elif isinstance(event, CallFinished):
            self._names.pop(event.call_id, None)
        if event.call_id:
            body["call_id"] = event.call_id
        try:
            self._ledger.append(event.kind, body, time_s=event.time_s)
            self._seal_soon()
        except LedgerError as error:
            self._fail(error)

    def _seal_soon(self) -> None:
        # A head per line would cost more than the line; so one covers what came within 50 ms.
        if self._sealing is None:
            self._sealing = asyncio.get_running_loop().call_later(_SEAL_S, self._seal)

    def _seal(self) -> None:
        self._sealing = None
        try:
            self._ledger.seal()
        except LedgerError as error:
            self._fail(error)

    def _fail(self, error: LedgerError) -> None:
        if not self._stopped:
            self._stopped = True
            _log.error("%s", error)
            self._on_failure(error)

    def close(self) -> None:
        """Seal and close the ledger."""
        if self._sealing is not None:
            self._sealing.cancel()
        try:
            self._ledger.close()
        except LedgerError as error:
            self._fail(error)
        self._stopped = True  # what ends later, ends after the record was closed


def record(
    journal: Journal,
    registry: ToolRegistry,
    *,
    folder: Path,
    session_key: str,
    on_failure: Callable[[str], None],
) -> Recording:
    """Have everything that `journal` hears written to a ledger in `folder`.

    Raises:
        LedgerError: If there can be none.
    """
    known: dict[str, tuple[Tool, frozenset[str]]] = {}

    def secrets_of(name: str) -> frozenset[str]:
        tool = registry.get(name)
        if tool is None:
            return frozenset()
        if name not in known or known[name][0] is not tool:
            known[name] = (tool, secret_parameters(tool.parameters_schema()))
        return known[name][1]

    recording = Recording(
        open_ledger(folder, ledger_name(session_key)),
        secrets_of,
        lambda error: on_failure(f"what happens could not be recorded ({error})"),
    )
    journal.subscribe(recording.hear)
    return recording


@singledispatch
def _body(event: SessionEvent, secret: frozenset[str]) -> dict[str, Any] | None:  # noqa: ARG001 - the others need it
    """What is kept of an event; None for kinds whose content comes again with the result."""
    return None


@_body.register
def _(event: SandboxStarted, secret: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - nothing secret in it
    return {"level": event.level, "generation": event.generation, "pid": event.pid, "reason": event.reason}


@_body.register
def _(event: SandboxLost, secret: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - nothing secret in it
    return {"generation": event.generation, "reason": redact_text(event.reason)}


@_body.register
def _(event: CallRequested, secret: frozenset[str]) -> dict[str, Any]:
    call = event.call
    return {
        "name": call.name,
        "origin": call.origin,
        "agent_id": call.agent_id,
        "turn_id": call.turn_id,
        "arguments": _arguments(call.arguments, secret),
    }


@_body.register
def _(event: ApprovalAsked, secret: frozenset[str]) -> dict[str, Any]:
    request = event.request
    return {
        "request_id": request.id,
        "name": request.call.name,
        "effect": request.effect,
        "level": request.level,
        "reasons": list(request.reasons),
        "arguments": _arguments(request.call.arguments, secret),
    }


@_body.register
def _(event: ApprovalAnswered, secret: frozenset[str]) -> dict[str, Any]:
    approval = event.approval
    return {
        "request_id": event.request_id,
        "outcome": approval.outcome,
        "reason": redact_text(approval.reason),
        "remember": approval.remember,
        "edited": None if approval.arguments is None else _arguments(approval.arguments, secret),
    }


@_body.register
def _(event: CallDecided, secret: frozenset[str]) -> dict[str, Any]:
    return {
        "decision": event.decision,
        "decided_by": event.decided_by,
        "effect": event.effect,
        "reasons": [redact_text(reason) for reason in event.reasons],
        "arguments": _arguments(event.arguments, secret),
        "digest": event.digest,
    }


@_body.register
def _(event: GrantRevoked, secret: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - nothing secret in it
    return {"scope": event.scope, "tool": event.tool}


@_body.register
def _(event: CallStarted, secret: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - nothing secret in it
    return {"runs_in": event.runs_in, "level": event.level}


@_body.register
def _(event: CallFinished, secret: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - redacted by shape
    return {"name": event.name, "duration_s": event.duration_s, "result": _outcome(event.result)}


@_body.register
def _(event: AgentEvent, secret: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - redacted by shape
    return agent_body(event)


@_body.register
def _(event: Undone, secret: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - nothing secret in it
    return {
        "call_ids": list(event.call_ids),
        "restored": len(event.restored),
        "removed": len(event.removed),
        "missing": len(event.missing),
        "variables": event.variables,
        "forced": event.forced,
        "steps": event.steps,
    }


@_body.register
def _(event: SessionEnded, secret: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - nothing secret in it
    return {}


def _arguments(arguments: object, secret: frozenset[str]) -> Json:
    if not isinstance(arguments, Mapping):
        return redact(shortened(repr(arguments), _MOST_CHARS))
    # What is secret as a whole goes first: not even its digest is written down.
    shown = {name: value for name, value in arguments.items() if name not in secret}
    kept: dict[str, Json] = redact(shortened(shown, _MOST_CHARS))
    return {**kept, **redact_arguments(dict.fromkeys(arguments.keys() & secret), secret)}


def _outcome(result: ToolResult) -> dict[str, Any]:
    """A result without its pictures: what the model read, and how much of what else there was."""
    return {
        "content": redact_text(result.content),
        "is_error": result.is_error,
        "error_kind": result.error_kind,
        "kind": result.kind,
        "data_chars": {mime: len(data) if isinstance(data, str) else 0 for mime, data in result.data.items()},
        "left_out": result.truncation.note if result.truncation is not None else "",
    }
