"""The ledger: an append-only file of records, each chained to the one before by a MAC.

A line is a JSON object whose last member is the MAC of everything before it; `prev` repeats the MAC of the
line before. Beside the file lies its head, replaced atomically: how many lines there are and the last MAC,
itself under a MAC. The key lies in the same folder, readable by its owner alone.

This finds damage, truncation, insertion, reordering and edits by anybody without the key. It proves nothing
against somebody with the same user's rights, who can read the key, nor against restoring an older file
together with its older head.

`Recording` writes the events of a session to a ledger, without their secrets. Per call: requested, approval
asked and answered, decided, started, finished; and what agents, undo and the sandbox do.
`aisotools.session.ledger_reader` reads the records back.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import hmac
import itertools
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any, Self

from pydantic_core import from_json, to_json

from aisotools.core.events import (
    AgentEvent,
    ApprovalAnswered,
    ApprovalAsked,
    CallDecided,
    CallFinished,
    CallRequested,
    CallStarted,
    GrantRevoked,
    ProtectedFilesRestored,
    ProtectedNamesAllowed,
    SandboxLost,
    SandboxStarted,
    SessionEnded,
    SessionEvent,
    Undone,
    agent_body,
)
from aisotools.core.exceptions import LedgerError
from aisotools.core.protocols import Tool
from aisotools.core.redaction import REDACTED, redact, redact_text, secret_parameters
from aisotools.core.types import Json, ToolResult
from aisotools.session.event_log import EventLog
from aisotools.tools.registry import ToolRegistry

_KEY_BYTES = 32
_MAC_CHARS = 64
_MAC_MEMBER_BYTES = len(b',"mac":""}') + _MAC_CHARS
"""Length of a line's last member, without which the MAC is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of checking a ledger.

    Attributes:
        records: Number of intact lines, counted from the first.
        problems: Descriptions of the problems; empty if there are none.
        torn_bytes: Length of an unfinished last line, as a crash leaves it; `open_ledger` removes it.
    """

    records: int
    problems: tuple[str, ...] = ()
    torn_bytes: int = 0

    @property
    def ok(self) -> bool:
        """True without problems and without an unfinished line."""
        return not self.problems and not self.torn_bytes


class Ledger:
    """An open ledger. Only one process at a time can append to a file.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        """Open a new file. Call `resume` before appending to one that has records; see `open_ledger`.

        Raises:
            BlockingIOError: If the file is open in another `Ledger`, of this process or another.
        """
        self.path = path
        self._key = key
        # Both together, so that another thread never sees the one without the other.
        self._position = (0, "")
        self._sealing = threading.Lock()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Race: two sessions of one name; a second writer would break the chain of records. The lock is free
        # when its process ends, however it ends.
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise

    def __repr__(self) -> str:
        return f"<Ledger {self.path.name}, {self.records} records>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def records(self) -> int:
        """The number of records."""
        return self._position[0]

    def resume(self) -> None:
        """Check the existing records and continue after the last.

        An unfinished last line is removed, and a record says so.

        Raises:
            LedgerError: If the file is damaged otherwise; the ledger is closed then.
        """
        checked = _check(self.path, self._key)
        if checked.problems:
            os.close(self._descriptor)
            self._descriptor = -1
            problems = "; ".join(checked.problems)
            raise LedgerError(f"The ledger {self.path} is damaged: {problems}. Move it away to go on.")
        if checked.torn_bytes:
            # Crash while a record was written: it has no line end, so nobody was told that it is there.
            os.truncate(self.path, self.path.stat().st_size - checked.torn_bytes)
        self._position = (checked.records, _read_last_mac(self.path))
        if checked.torn_bytes:
            self.append("repaired", {"dropped_bytes": checked.torn_bytes})
            self.seal()

    def append(self, kind: str, body: Mapping[str, Json], *, time_s: float | None = None) -> None:
        """Write one record.

        Args:
            kind: The kind of event.
            body: Its content.
            time_s: When it happened, in seconds since the epoch; now without it.

        Raises:
            LedgerError: If the record cannot be written. No further call may run unrecorded.
        """
        records, last_mac = self._position
        record = {
            "n": records + 1,
            "time_s": time.time() if time_s is None else time_s,
            "kind": kind,
            "body": body,
            "prev": last_mac,
        }
        text = to_json(record, inf_nan_mode="strings", serialize_unknown=True)[:-1]
        mac = _compute_mac(self._key, text)
        line = b'%s,"mac":"%s"}\n' % (text, mac.encode())
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            raise LedgerError(f"The ledger {self.path} cannot be written: {error.strerror}.") from error
        if written != len(line):
            raise LedgerError(
                f"The ledger {self.path} took only {written} of {len(line)} bytes; is the disk full?"
            )
        self._position = (records + 1, mac)

    def seal(self) -> None:
        """Replace the head, which makes it detectable if records up to here are cut off.

        It may be called in another thread than `append`: a disk may take its time.

        Raises:
            LedgerError: If the head cannot be written.
        """
        temporary = _head_path(self.path).with_suffix(".new")
        with self._sealing:
            head = _head_text(self._key, *self._position)
            try:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                try:
                    os.write(descriptor, head)
                finally:
                    os.close(descriptor)
                # Crash in between: the old head stays whole, and what was written after it is still chained.
                temporary.replace(_head_path(self.path))
            except OSError as error:
                raise LedgerError(
                    f"The head of the ledger {self.path} cannot be written: {error.strerror}."
                ) from error

    def close(self) -> None:
        """Seal and close. Closing again does nothing."""
        if self._descriptor >= 0:
            self.seal()
            os.close(self._descriptor)
            self._descriptor = -1


def ledger_name(session_key: str) -> str:
    """Return the file name, without suffix, of a session's ledger. Unusual keys get a digest appended."""
    if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", session_key):
        return session_key
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", session_key)[:60]
    return f"{plain}-{hashlib.sha256(session_key.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def open_ledger(folder: Path, name: str) -> Ledger:
    """Open the ledger `name` in `folder` for appending, or `name-2`, `name-3` ... if that one is in use.

    An unfinished last line, as a crash leaves it, is removed, and that is recorded.

    Raises:
        LedgerError: If the file is damaged otherwise, or the folder cannot be used.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = _load_key(folder)
        ledger = _open_unused(folder, name, key)
    except OSError as error:
        raise LedgerError(f"The folder of the ledger, {folder}, cannot be used: {error.strerror}.") from error
    ledger.resume()
    return ledger


def _open_unused(folder: Path, name: str, key: bytes) -> Ledger:
    for number in itertools.count(1):
        # Race: another session holds the lock of this file, or takes it first. Then the next number is
        # tried; a file is never written by two.
        with contextlib.suppress(BlockingIOError):
            return Ledger(folder / (f"{name}.jsonl" if number == 1 else f"{name}-{number}.jsonl"), key)
    raise AssertionError("unreachable")


def verify(path: Path) -> Verification:
    """Check every line of a ledger, and its head.

    Raises:
        LedgerError: If the file or the key cannot be read.
    """
    try:
        key = (path.parent / "key").read_bytes()
        return _check(path, key)
    except OSError as error:
        raise LedgerError(
            f"The ledger {path} cannot be checked: {error.filename}: {error.strerror}."
        ) from error


def read(path: Path) -> Iterator[dict[str, Json]]:
    """Yield the records of a ledger without checking them, up to the first line that is no JSON object.

    Raises:
        LedgerError: If the file cannot be read.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise LedgerError(f"The ledger {path} cannot be read: {error.strerror}.") from error
    for line in lines:
        record = _parse_object(line)
        if record is None:
            return
        yield record


def _check(path: Path, key: bytes) -> Verification:
    lines = path.read_bytes().split(b"\n")
    torn = lines.pop()
    previous_mac, records = "", 0
    problem = None
    macs = []
    for number, line in enumerate(lines, start=1):
        text, mac = line[:-_MAC_MEMBER_BYTES], line[-_MAC_MEMBER_BYTES:]
        expected = _compute_mac(key, text)
        record = _parse_object(line)
        if record is None or mac != b',"mac":"%s"}' % expected.encode():
            problem = f"line {number} was changed"
        elif record["n"] != number or record["prev"] != previous_mac:
            problem = f"line {number} does not follow the one before: something was removed, added or moved"
        if problem is not None:
            break
        previous_mac, records = expected, number
        macs.append(expected)
    problems = [problem] if problem else _check_head(path, key, macs)
    return Verification(records=records, problems=tuple(problems), torn_bytes=0 if problem else len(torn))


def _check_head(path: Path, key: bytes, macs: list[str]) -> list[str]:
    try:
        head = _head_path(path).read_bytes()
    except FileNotFoundError:
        return ["its head is missing: lines may have been cut off"] if macs else []
    parsed = _parse_object(head)
    count = parsed.get("count") if parsed is not None else None
    if (
        parsed is None
        or not isinstance(count, int)
        or head != _head_text(key, count, str(parsed.get("last")))
    ):
        return ["its head was changed"]
    if count > len(macs):
        return [f"{count - len(macs)} lines were cut off its end"]
    if count and macs[count - 1] != parsed["last"]:
        return ["its head belongs to other lines"]
    return []


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        record = from_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _compute_mac(key: bytes, text: bytes) -> str:
    return hmac.digest(key, text, "sha256").hex()


def _head_text(key: bytes, count: int, last_mac: str) -> bytes:
    text = to_json({"count": count, "last": last_mac})
    return to_json({"count": count, "last": last_mac, "seal": _compute_mac(key, b"head" + text)})


def _head_path(path: Path) -> Path:
    return path.with_suffix(".head")


def _read_last_mac(path: Path) -> str:
    lines = path.read_bytes().split(b"\n")
    return lines[-2][-_MAC_CHARS - 2 : -2].decode() if len(lines) > 1 else ""


def _load_key(folder: Path) -> bytes:
    """Return the folder's key, created on first use. If two processes create it at once, one of them wins.

    Raises:
        LedgerError: If it is damaged.
    """
    path = folder / "key"
    if not path.exists():
        # Race, and crash: under its own name the key is either whole or not there. A link, unlike a rename,
        # fails if another process has been faster, whose key then counts.
        temporary = folder / f"key.{secrets.token_hex(8)}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, secrets.token_bytes(_KEY_BYTES))
            os.fsync(descriptor)
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(temporary)
        finally:
            os.close(descriptor)
            temporary.unlink()
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise LedgerError(f"The key {path} is damaged ({len(key)} bytes). Move the folder away.")
    return key


# ---- what a session records

_log = logging.getLogger(__name__)
_SEAL_DELAY_S = 0.05
"""Replacing the head takes longer than writing a line, so one head covers the lines of this time."""

_MAX_TEXT_CHARS = 4_000
"""Of longer texts in arguments, the beginning and a digest are recorded."""

SecretNames = Callable[[str], frozenset[str]]
"""Returns the names of the secret parameters of a tool."""

_NO_SECRETS: frozenset[str] = frozenset()


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
    """Writes the events of a session to a ledger, until that fails once."""

    def __init__(
        self, ledger: Ledger, secret_names: SecretNames, on_failure: Callable[[LedgerError], None]
    ) -> None:
        """Write to `ledger`.

        Args:
            ledger: The ledger, which `close` closes.
            secret_names: Returns which arguments of a tool are never recorded.
            on_failure: Called once, when a record cannot be written. No call may run after that.
        """
        self._ledger = ledger
        self._on_failure = on_failure
        self._secret_names = secret_names
        self._open_calls: dict[str, _OpenCall] = {}
        self._asked_at_s: dict[str, float] = {}
        self._seal_timer: asyncio.TimerHandle | None = None
        self._sealing: asyncio.Future[None] | None = None  # the loop itself would forget it
        self._stopped = False

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self._ledger.path

    def on_event(self, event: SessionEvent) -> None:
        """Write one event, if it is of a kind that is recorded."""
        if self._stopped:
            return
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
        body = _body(event, _NO_SECRETS if call is None else call.secret)
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
        if event.call_id:
            body["call_id"] = event.call_id
        try:
            self._ledger.append(event.kind, body, time_s=event.time_s)
            if self._seal_timer is None:
                self._seal_timer = asyncio.get_running_loop().call_later(_SEAL_DELAY_S, self._seal)
        except LedgerError as error:
            self._fail(error)

    def _seal(self) -> None:
        self._seal_timer = None
        # In a thread: replacing a file may wait for the disk, for hundreds of milliseconds if that is busy.
        self._sealing = asyncio.get_running_loop().run_in_executor(None, self._ledger.seal)
        self._sealing.add_done_callback(self._on_sealed)

    def _on_sealed(self, sealing: asyncio.Future[None]) -> None:
        if not sealing.cancelled() and isinstance(error := sealing.exception(), LedgerError):
            self._fail(error)

    def _fail(self, error: LedgerError) -> None:
        if not self._stopped:
            self._stopped = True
            _log.error("%s", error)
            self._on_failure(error)

    async def close(self) -> None:
        """Seal and close the ledger; events of calls that finish later are not recorded."""
        if self._seal_timer is not None:
            self._seal_timer.cancel()
        is_failed, self._stopped = self._stopped, True
        try:
            await asyncio.to_thread(self._ledger.close)
        except LedgerError as error:
            if not is_failed:
                self._on_failure(error)


def record(
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
        on_failure: Called once with the reason, when an event cannot be recorded.

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

    recording = Recording(
        open_ledger(folder, ledger_name(session_key)),
        secret_names,
        lambda error: on_failure(f"what happens could not be recorded ({error})"),
    )
    event_log.subscribe(recording.on_event)
    return recording


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
        "reasons": list(map(redact_text, event.reasons)),
        "arguments": _arguments(event.arguments, secret),
        "digest": event.digest,
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
        return redact(repr(arguments), _MAX_TEXT_CHARS)
    body = {}
    for name, value in arguments.items():
        # A secret is replaced as a whole: shortening it would record its beginning and its digest.
        body[name] = REDACTED if name in secret else redact(value, _MAX_TEXT_CHARS)
    return body


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
