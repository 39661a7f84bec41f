"""Writes the events of a session to its ledger, without their secrets.

Per call: requested, approval asked and answered, decided, started, finished; and what agents, undo and the
sandbox do. While something cannot be recorded, the session lets no further call run. Records for which the
disk has no room wait, and are written before the next call that finds room; whatever else goes wrong ends the
recording.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, singledispatch
from pathlib import Path
from typing import Any

from aisotools.core.concurrency import wait_for_tasks
from aisotools.core.events import (
    AgentEvent,
    ApprovalAnswered,
    ApprovalAsked,
    CallDecided,
    CallFinished,
    CallRequested,
    CallStarted,
    CallTried,
    GrantRevoked,
    HistoryRecovered,
    ProtectedFilesRestored,
    ProtectedNamesAllowed,
    SandboxLost,
    SandboxStarted,
    SessionEnded,
    SessionEvent,
    Undone,
    VariablesDropped,
    agent_body,
)
from aisotools.core.exceptions import LedgerError
from aisotools.core.protocols import Tool
from aisotools.core.redaction import are_plain, redact_arguments, redact_text, remembering, secret_parameters
from aisotools.core.threads import in_thread, start_in_thread
from aisotools.core.types import Json, ToolResult
from aisotools.policy.prompts import shown_path
from aisotools.session.event_log import EventLog
from aisotools.session.ledger import Ledger, ledger_name, open_ledger, prepare_folder
from aisotools.session.ledger_values import escaped
from aisotools.tools.registry import ToolRegistry

_log = logging.getLogger(__name__)
_SEALED_S = 5.0
"""How long the seal of another event loop is waited for that still runs."""

_SEAL_DELAY_S = 0.05
"""Replacing the head takes longer than writing a line, so one head covers the lines of this time."""

_MOST_WAITING = 2_000
"""Records that wait for room on the disk: what calls record that run already, and those that are refused."""

_MAX_TEXT_CHARS = 4_000
"""Of longer texts in arguments, the beginning and a digest are recorded."""

SecretNames = Callable[[str], frozenset[str]]
"""Returns the names of the secret parameters of a tool."""

_MOST_PLAIN = 20
"""More arguments than these may come to more than is recorded of a call."""

_NO_SECRETS: frozenset[str] = frozenset()

_UNCHECKED = frozenset({CallRequested.kind, CallDecided.kind, CallFinished.kind})
"""Records after which nothing happens before another one is made, such as that of a call's start.

After these it is not looked whether the ledger is still in its place, but with the next one, and when all of
them are on the disk."""


@dataclass(slots=True)
class _OpenCall:
    """A call that was requested and has not finished.

    Attributes:
        secret: Names of its arguments that are never recorded.
        requests: Number of calls with this id that were requested and have not finished.
    """

    secret: frozenset[str]
    requests: int = 1


class Recording:
    """Writes the events of a session to a ledger, until that fails for good."""

    def __init__(
        self,
        ledger: Ledger,
        secret_names: SecretNames,
        on_failure: Callable[[LedgerError], None],
        on_resumed: Callable[[], None] = lambda: None,
    ) -> None:
        """Write to `ledger`.

        Args:
            ledger: The ledger, which `close` closes.
            secret_names: Returns which arguments of a tool are never recorded.
            on_failure: Called once when a record cannot be written. No call may run after that.
            on_resumed: Called when all is written after all. Calls may run again.
        """
        self._on_resumed = on_resumed
        self._is_blocked = False
        self._ledger = ledger
        self._on_failure = on_failure
        self._secret_names = secret_names
        self._open_calls: dict[str, _OpenCall] = {}
        self._asked_at_s: dict[str, float] = {}
        self._redacted: dict[str, dict[str, str]] = {}
        self._seal_timer: asyncio.TimerHandle | None = None
        self._sealing: asyncio.Future[None] | None = None  # the loop itself would forget it
        self._stopped = False
        self._waiting: deque[tuple[str, dict[str, Any], float]] = deque()
        self._is_unsealed = False  # there was no room for the head
        self._problem = ""

    @property
    def is_waiting(self) -> bool:
        """True if something waits for room on the disk; see `write_waiting`."""
        return bool(self._waiting or self._is_unsealed) and not self._stopped

    def find_problem(self) -> str:
        """Return why nothing more can be recorded; empty if it can, or waits for room on the disk."""
        if not self._stopped:
            try:
                self._ledger.check()
            except LedgerError as error:
                self._fail(error)
        return self._problem

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self._ledger.path

    async def prepare(self, call_id: str, content: Json) -> None:
        """Redact large arguments or a long text of a call in a thread, ahead of its events."""
        if self._stopped:
            return
        redacted = self._redacted.setdefault(call_id, {})
        try:
            await in_thread(_redact_into, redacted, content)
        except BaseException:
            self._redacted.pop(call_id, None)  # there may never be an event of this call
            raise

    def on_event(self, event: SessionEvent) -> None:
        """Write one event, if it is of a kind that is recorded."""
        if self._stopped:
            return
        try:
            self._write(event)
        except LedgerError as error:
            self._stop_or_wait(error)
        except Exception as error:
            # Whatever it is: an event that is not in the ledger must not go unnoticed.
            problem = f"an event {event.kind} has no record: {type(error).__name__}"
            _log.exception("The ledger %s: %s", self._ledger.path, problem)
            self._fail(LedgerError(f"The ledger {self._ledger.path} is not complete: {problem}."))

    def _write(self, event: SessionEvent) -> None:
        call = self._open_calls.get(event.call_id)
        if isinstance(event, CallRequested):
            secret = self._secret_names(event.call.name)
            if call is None:
                call = self._open_calls[event.call_id] = _OpenCall(secret)
            else:
                # A second call of the same id, which the gate refuses. The first one is still open, and what
                # is secret in its arguments stays so.
                call.secret |= secret
                call.requests += 1
        secret = _NO_SECRETS if call is None else call.secret
        if event.call_id in self._redacted:
            with remembering(self._redacted[event.call_id]):
                body = _body(event, secret)
        else:
            body = _body(event, secret)
        if body is None:
            return
        if isinstance(event, ApprovalAsked):
            self._asked_at_s[event.request.id] = event.time_s
        elif isinstance(event, ApprovalAnswered):
            body["waited_s"] = event.time_s - self._asked_at_s.pop(event.request_id, event.time_s)
        elif isinstance(event, CallFinished) and call is not None:
            call.requests -= 1
            if not call.requests:
                del self._open_calls[event.call_id]
                self._redacted.pop(event.call_id, None)
        if event.call_id:
            body["call_id"] = event.call_id
        record = (event.kind, body, event.time_s)
        if self._waiting:  # none may overtake another
            if len(self._waiting) >= _MOST_WAITING:
                raise LedgerError(f"The ledger {self._ledger.path}: {_MOST_WAITING:,} records wait for room.")
            self._waiting.append(record)
            return
        try:
            self._append(record)
        except LedgerError as error:
            if error.retryable:
                self._waiting.append(record)
            raise
        self._request_seal()

    def _append(self, record: tuple[str, dict[str, Any], float]) -> None:
        kind, body, time_s = record
        self._ledger.append(kind, body, time_s=time_s, check=kind not in _UNCHECKED)

    def _stop_or_wait(self, error: LedgerError) -> None:
        """Let no call run, until what could not be written is written if that may ever be."""
        if not error.retryable:
            self._fail(error)
        elif not (self._stopped or self._is_blocked):
            self._is_blocked = True
            _log.error("%s", error)
            self._on_failure(error)

    async def write_waiting(self) -> None:
        """Write what waits for room on the disk, as far as there is any; after that calls run again."""
        if self._sealing is not None:
            # Case: the loop on which that was begun has been closed, and this is closed on another one.
            await wait_for_tasks([self._sealing], _SEALED_S)
        try:
            while self._waiting and not self._stopped:
                self._append(self._waiting[0])
                self._waiting.popleft()
            if self._is_unsealed and not self._stopped:
                # Race: what is recorded while a thread waits for the disk is in the next head.
                await in_thread(self._ledger.seal)
                self._is_unsealed = False
        except LedgerError as error:
            self._stop_or_wait(error)
        if not (self._stopped or self._waiting or self._is_unsealed):
            self._is_blocked = False
            self._on_resumed()
            self._request_seal()

    def _request_seal(self) -> None:
        if self._seal_timer is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:  # such as a grant that is revoked after the loop has ended
                self._ledger.seal()
            else:
                self._seal_timer = loop.call_later(_SEAL_DELAY_S, self._seal)

    def _seal(self) -> None:
        self._seal_timer = None
        # In a thread: replacing a file may wait for the disk, for hundreds of milliseconds if that is busy.
        self._sealing = start_in_thread(self._ledger.seal)
        self._sealing.add_done_callback(self._on_sealed)

    def _on_sealed(self, sealing: asyncio.Future[None]) -> None:
        error = None if sealing.cancelled() else sealing.exception()
        if isinstance(error, LedgerError):
            self._is_unsealed = error.retryable
            self._stop_or_wait(error)
        elif error is not None:
            self._fail(LedgerError(f"The ledger {self._ledger.path} cannot be sealed: {error!r:.200}."))
        else:
            self.find_problem()

    def _fail(self, error: LedgerError) -> None:
        if not self._stopped:
            self._stopped, self._problem = True, str(error)
            self._redacted.clear()
            _log.error("%s", error)
            if self._is_blocked:
                self._on_resumed()  # this reason is for good, and takes the place of that one
            self._on_failure(error)

    async def park(self) -> None:
        """Seal the ledger and close its file until the next event; nothing if something waits for room."""
        if self._seal_timer is not None:
            self._seal_timer.cancel()
            self._seal()
        if self._sealing is not None:
            await asyncio.wait([self._sealing])
        # Race: an event may have come meanwhile, whose record waits for its head.
        if self._seal_timer is None and not (self.is_waiting or self._stopped):
            self._ledger.park()

    async def close(self) -> None:
        """Seal and close the ledger; events of calls that finish later are not recorded."""
        if self._seal_timer is not None:
            self._seal_timer.cancel()
        if self.is_waiting:
            await self.write_waiting()
        self.find_problem()
        is_failed, self._stopped = self._stopped or bool(self._waiting), True
        try:
            await in_thread(self._ledger.close)
        except LedgerError as error:
            if not is_failed:
                self._on_failure(error)


async def record(
    event_log: EventLog,
    registry: ToolRegistry,
    *,
    folder: Path,
    session_key: str,
    on_failure: Callable[[str], None],
) -> Recording:
    """Record all further events of `event_log` in a ledger in `folder`.

    Args:
        event_log: The session's events.
        registry: The session's tools, which declare secret parameters.
        folder: The folder of the ledger, created if it is missing.
        session_key: Determines the name of the file.
        on_failure: Called with the reason when an event cannot be recorded, and with "" when all events are.

    Raises:
        LedgerError: If no ledger can be opened.
    """
    known: dict[str, tuple[Tool, frozenset[str]]] = {}

    def secret_names(name: str) -> frozenset[str]:
        tool = registry.get(name)
        if tool is None:
            return frozenset()
        if name not in known or known[name][0] is not tool:
            known[name] = (tool, secret_parameters(tool.parameters_schema()))
        return known[name][1]

    # In a thread: it waits for the disk.
    opening = asyncio.ensure_future(in_thread(_open, folder, ledger_name(session_key)))
    try:
        ledger = await asyncio.shield(opening)
    except asyncio.CancelledError:
        # Cancelled while the thread goes on: nobody else could write to a ledger that is never closed.
        opening.add_done_callback(_close_opened)
        raise
    recording = Recording(
        ledger,
        secret_names,
        lambda error: on_failure(f"what happens could not be recorded ({error})"),
        lambda: on_failure(""),
    )
    kinds = tuple(kind for kind in _body.registry if kind is not object)
    event_log.subscribe(recording.on_event, kinds)
    event_log.add_preparation(recording.prepare)
    return recording


def _open(folder: Path, name: str) -> Ledger:
    prepare_folder(folder)
    return open_ledger(folder, name)


def _close_opened(opening: asyncio.Future[Ledger]) -> None:
    if opening.exception() is None:
        opening.result().close()


@singledispatch
def _body(event: SessionEvent, secret: frozenset[str]) -> dict[str, Any] | None:  # noqa: ARG001 - other kinds need it
    """Return what is recorded of an event; None for kinds whose content is in the result as well."""
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
        "links": _links(request.facts.links),
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
def _(event: CallTried, secret: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - redacted by shape
    programs = list(map(_redacted_reason, event.programs))
    return {"programs": programs, "digest": event.digest, "level": event.level}


@_body.register
def _(event: CallDecided, secret: frozenset[str]) -> dict[str, Any]:
    return {
        "decision": event.decision,
        "decided_by": event.decided_by,
        "effect": event.effect,
        "reasons": list(map(_redacted_reason, event.reasons)),
        "arguments": _arguments(event.arguments, secret),
        "digest": event.digest,
        "links": _links(event.links),
    }


@_body.register
def _(event: GrantRevoked, secret: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - nothing secret in it
    return {"scope": event.scope, "tool": event.tool}


@_body.register
def _(event: ProtectedNamesAllowed, secret: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - nothing secret in it
    return {"names": list(event.names), "source": event.source}


@_body.register
def _(event: ProtectedFilesRestored, secret: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - nothing secret in it
    return {"changes": list(event.changes), "count": event.count, "problem": event.problem}


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
def _(event: VariablesDropped, secret: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - nothing secret in it
    return {"call_ids": list(event.call_ids), "reason": event.reason}


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
        "files_only": event.files_only,
    }


@_body.register
def _(event: HistoryRecovered, secret: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - redacted by shape
    return {"notes": list(map(redact_text, event.notes))}


@_body.register
def _(event: SessionEnded, secret: frozenset[str]) -> dict[str, Any]:  # noqa: ARG001 - nothing secret in it
    return {}


_redacted_reason = lru_cache(maxsize=256)(redact_text)  # nearly all calls of a session have the same few


def _links(links: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Return pairs of a path and where it leads, in which every character is visible."""
    shown = []
    for name, target in links:
        shown.append([redact_text(shown_path(name)), redact_text(shown_path(target))])
    return shown


def _arguments(arguments: object, secret: frozenset[str]) -> Json:
    if type(arguments) is dict and not secret and len(arguments) <= _MOST_PLAIN and are_plain(arguments):
        return arguments  # as nearly all: there is nothing to escape, and nothing that could be a secret
    if not isinstance(arguments, Mapping):
        return redact_arguments({"": escaped(arguments)}, (), _MAX_TEXT_CHARS)[""]
    # A secret is replaced as a whole: shortening it would record its beginning and its digest.
    hidden = {name for name in arguments if name in secret}
    plain = escaped({name: "" if name in hidden else value for name, value in arguments.items()})
    if not isinstance(plain, dict):
        return redact_arguments({"": plain}, (), _MAX_TEXT_CHARS)[""]
    return redact_arguments(plain, hidden, _MAX_TEXT_CHARS)


def _redact_into(redacted: dict[str, str], content: Json) -> None:
    """Add the long texts of a result, or of arguments as they are recorded, and what they become."""
    with remembering(redacted):
        if isinstance(content, str):
            redact_text(content)
        else:
            _arguments(content, _NO_SECRETS)


def _outcome(result: ToolResult) -> dict[str, Any]:
    """Return the recorded part of a result: what the model read, and the sizes of everything else."""
    data_chars = {}
    for mime, data in result.data.items():
        data_chars[mime] = len(data) if isinstance(data, str) else 0
    return {
        "content": redact_text(result.content),
        "is_error": result.is_error,
        "error_kind": result.error_kind,
        "kind": result.kind,
        "data_chars": data_chars,
        "left_out": result.truncation.note if result.truncation is not None else "",
    }
