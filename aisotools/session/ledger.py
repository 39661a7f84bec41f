"""The ledger: what happened in a session, appended line by line, each line chained to the one before.

A line is a JSON object whose last member is the MAC of everything before it; `prev` repeats the MAC of the
line before. Beside the file lies its head, replaced atomically: how many lines there are and the last MAC,
itself under a MAC. The key lies in the same folder, readable by its owner alone.

What that proves: damage, truncation, insertion, reordering and edits by anybody without the key are found. It
proves nothing against somebody with the same user's rights, who can read the key, nor against putting back an
older file together with its older head.

From a session's events to its ledger: presented, decided, executed, outcome; secrets left out.
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
_TAIL = len(b',"mac":""}') + _MAC_CHARS


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What checking a ledger found.

    Attributes:
        records: How many lines are sound, from the first on.
        problems: What is wrong, in words; empty when all is well.
        torn_bytes: Length of an unfinished last line, as a crash leaves it; `open_ledger` repairs that.
    """

    records: int
    problems: tuple[str, ...] = ()
    torn_bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems and not self.torn_bytes


class Ledger:
    """An open ledger; one process appends to it."""

    def __init__(self, path: Path, key: bytes) -> None:
        """Append to `path`, which must be new or checked; see `open_ledger`.

        Raises:
            BlockingIOError: If another ledger, here or in another process, is appending to it.
        """
        self.path = path
        self._key = key
        self._records = 0
        self._last = ""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise

    def __repr__(self) -> str:
        return f"<Ledger {self.path.name}, {self._records} records>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def records(self) -> int:
        """How many lines there are."""
        return self._records

    def go_on(self) -> None:
        """Check what is there already and continue after it; closes the file when it is damaged.

        Raises:
            LedgerError: If it is damaged, other than by a torn last line.
        """
        found = _check(self.path, self._key)
        if found.problems:
            os.close(self._file)
            self._file = -1
            problems = "; ".join(found.problems)
            raise LedgerError(f"The ledger {self.path} is damaged: {problems}. Move it away to go on.")
        if found.torn_bytes:
            os.truncate(self.path, self.path.stat().st_size - found.torn_bytes)
        self._records, self._last = found.records, _last_mac(self.path)
        if found.torn_bytes:
            self.append("repaired", {"dropped_bytes": found.torn_bytes})
            self.seal()

    def append(self, kind: str, body: Mapping[str, Json], *, time_s: float | None = None) -> None:
        """Write one record.

        Raises:
            LedgerError: If it cannot be written; nothing should go on unrecorded.
        """
        record = {
            "n": self._records + 1,
            "time_s": time.time() if time_s is None else time_s,
            "kind": kind,
            "body": body,
            "prev": self._last,
        }
        text = to_json(record, inf_nan_mode="strings", serialize_unknown=True)[:-1]
        mac = hmac.digest(self._key, text, "sha256").hex()
        line = b'%s,"mac":"%s"}\n' % (text, mac.encode())
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise LedgerError(f"The ledger {self.path} cannot be written: {error.strerror}.") from error
        if written != len(line):
            raise LedgerError(
                f"The ledger {self.path} took only {written} of {len(line)} bytes; is the disk full?"
            )
        self._records += 1
        self._last = mac

    def seal(self) -> None:
        """Replace the head, so that nothing up to here can be cut off unseen.

        Raises:
            LedgerError: If it cannot be written.
        """
        head = _head_text(self._key, self._records, self._last)
        temporary = _head_path(self.path).with_suffix(".new")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, head)
            finally:
                os.close(descriptor)
            temporary.replace(_head_path(self.path))
        except OSError as error:
            raise LedgerError(
                f"The head of the ledger {self.path} cannot be written: {error.strerror}."
            ) from error

    def close(self) -> None:
        """Seal and close; again does nothing."""
        if self._file >= 0:
            self.seal()
            os.close(self._file)
            self._file = -1


def ledger_name(session_key: str) -> str:
    """A file name for the ledger of a session; keys that are no plain names get a digest of their own."""
    if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", session_key):
        return session_key
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", session_key)[:60]
    return f"{plain}-{hashlib.sha256(session_key.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def open_ledger(folder: Path, name: str) -> Ledger:
    """Open the ledger `name` in `folder` for appending, or `name-2`, `name-3` ... where others are at it.

    A line that a crash tore is cut off, and that is recorded.

    Raises:
        LedgerError: If it is damaged otherwise, or the folder cannot be used.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = _key_of(folder)
        ledger = _free_ledger(folder, name, key)
    except OSError as error:
        raise LedgerError(f"The folder of the ledger, {folder}, cannot be used: {error.strerror}.") from error
    ledger.go_on()
    return ledger


def _free_ledger(folder: Path, name: str, key: bytes) -> Ledger:
    for number in itertools.count(1):
        with contextlib.suppress(BlockingIOError):
            return Ledger(folder / (f"{name}.jsonl" if number == 1 else f"{name}-{number}.jsonl"), key)
    raise AssertionError("unreachable")


def verify(path: Path) -> Verification:
    """Check every line of a ledger and its head.

    Raises:
        LedgerError: If file or key cannot be read.
    """
    try:
        key = (path.parent / "key").read_bytes()
        return _check(path, key)
    except OSError as error:
        raise LedgerError(
            f"The ledger {path} cannot be checked: {error.filename}: {error.strerror}."
        ) from error


def read(path: Path) -> Iterator[dict[str, Json]]:
    """The records of a ledger, unchecked; stops at the first line that is no JSON object.

    Raises:
        LedgerError: If the file cannot be read.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise LedgerError(f"The ledger {path} cannot be read: {error.strerror}.") from error
    for line in lines:
        record = _parsed(line)
        if record is None:
            return
        yield record


def _check(path: Path, key: bytes) -> Verification:
    lines = path.read_bytes().split(b"\n")
    torn = lines.pop()
    last, records = "", 0
    problem = None
    macs = []
    for number, line in enumerate(lines, start=1):
        text, mac = line[:-_TAIL], line[-_TAIL:]
        expected = _mac(key, text)
        record = _parsed(line)
        if record is None or mac != b',"mac":"%s"}' % expected.encode():
            problem = f"line {number} was changed"
        elif record["n"] != number or record["prev"] != last:
            problem = f"line {number} does not follow the one before: something was removed, added or moved"
        if problem is not None:
            break
        last, records = expected, number
        macs.append(expected)
    problems = [problem] if problem else _check_head(path, key, macs)
    return Verification(records=records, problems=tuple(problems), torn_bytes=0 if problem else len(torn))


def _check_head(path: Path, key: bytes, macs: list[str]) -> list[str]:
    try:
        head = _head_path(path).read_bytes()
    except FileNotFoundError:
        return ["its head is missing: lines may have been cut off"] if macs else []
    seal = _parsed(head)
    count = seal.get("count") if seal is not None else None
    if not isinstance(count, int) or seal is None or head != _head_text(key, count, str(seal.get("last"))):
        return ["its head was changed"]
    if count > len(macs):
        return [f"{count - len(macs)} lines were cut off its end"]
    if count and macs[count - 1] != seal["last"]:
        return ["its head belongs to other lines"]
    return []


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = from_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _mac(key: bytes, text: bytes) -> str:
    return hmac.digest(key, text, "sha256").hex()


def _head_text(key: bytes, count: int, last: str) -> bytes:
    text = to_json({"count": count, "last": last})
    return to_json({"count": count, "last": last, "seal": _mac(key, b"head" + text)})


def _head_path(path: Path) -> Path:
    return path.with_suffix(".head")


def _last_mac(path: Path) -> str:
    lines = path.read_bytes().split(b"\n")
    return lines[-2][-_MAC_CHARS - 2 : -2].decode() if len(lines) > 1 else ""


def _key_of(folder: Path) -> bytes:
    """The folder's key, made on first use; of two processes that make one at a time, one wins."""
    path = folder / "key"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        key = path.read_bytes()
        if len(key) != _KEY_BYTES:
            raise LedgerError(
                f"The key {path} is damaged ({len(key)} bytes). Move the folder away."
            ) from None
        return key
    try:
        key = secrets.token_bytes(_KEY_BYTES)
        os.write(descriptor, key)
    finally:
        os.close(descriptor)
    return key


_log = logging.getLogger(__name__)
_SEAL_S = 0.05
_MOST_CHARS = 4_000

SecretsOf = Callable[[str], frozenset[str]]
"""Names of the secret parameters of a tool."""


_NO_SECRETS: frozenset[str] = frozenset()


@dataclass(slots=True)
class _OpenCall:
    """A call that was requested and has not finished.

    Attributes:
        secret: Names of its arguments that are never written down.
        requests: How often a call of this id was requested and has not finished.
    """

    secret: frozenset[str]
    requests: int = 1


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
        self._open: dict[str, _OpenCall] = {}
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
        call = self._open.get(event.call_id)
        if isinstance(event, CallRequested):
            secret = self._secrets_of(event.call.name)
            if call is None:
                call = self._open[event.call_id] = _OpenCall(secret)
            else:
                # A second call of the same id, which the gate refuses. The first one is still open, and what
                # is secret in its arguments stays so.
                call.secret |= secret
                call.requests += 1
        body = _body(event, _NO_SECRETS if call is None else call.secret)
        if body is None:
            return
        if isinstance(event, ApprovalAsked):
            self._asked_s[event.request.id] = event.time_s
        elif isinstance(event, ApprovalAnswered):
            body["waited_s"] = event.time_s - self._asked_s.pop(event.request_id, event.time_s)
        elif isinstance(event, CallFinished) and call is not None:
            call.requests -= 1
            if not call.requests:
                del self._open[event.call_id]
        if event.call_id:
            body["call_id"] = event.call_id
        try:
            self._ledger.append(event.kind, body, time_s=event.time_s)
            # A head per line would cost more than the line; so one covers what came within 50 ms.
            if self._sealing is None:
                self._sealing = asyncio.get_running_loop().call_later(_SEAL_S, self._seal)
        except LedgerError as error:
            self._fail(error)

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
    event_log: EventLog,
    registry: ToolRegistry,
    *,
    folder: Path,
    session_key: str,
    on_failure: Callable[[str], None],
) -> Recording:
    """Have everything that `event_log` hears written to a ledger in `folder`.

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
    event_log.subscribe(recording.hear)
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
        "reasons": list(map(redact_text, event.reasons)),
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
        return redact(repr(arguments), _MOST_CHARS)
    body = {}
    for name, value in arguments.items():
        # What is secret as a whole is not shortened: not even its digest is written down.
        body[name] = REDACTED if name in secret else redact(value, _MOST_CHARS)
    return body


def _outcome(result: ToolResult) -> dict[str, Any]:
    """A result without its pictures: what the model read, and how much of what else there was."""
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
