"""The ledger: what happened in a session, appended line by line, each line chained to the one before.

A line is a JSON object whose last member is the MAC of everything before it; `prev` repeats the MAC of the
line before. Beside the file lies its head, replaced atomically: how many lines there are and the last MAC,
itself under a MAC. The key lies in the same folder, readable by its owner alone.

What that proves: damage, truncation, insertion, reordering and edits by anybody without the key are found. It
proves nothing against somebody with the same user's rights, who can read the key, nor against putting back an
older file together with its older head.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic_core import from_json, to_json

from aisotools.events import Json
from aisotools.exceptions import LedgerError

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

    def __init__(self, path: Path, key: bytes, *, records: int = 0, last: str = "") -> None:
        """Append to `path` after `records` sound lines, the last of which has the MAC `last`."""
        self.path = path
        self._key = key
        self._records = records
        self._last = last
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

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

    def append(self, kind: str, body: Mapping[str, Json], *, time_s: float | None = None) -> None:
        """Write one record.

        Raises:
            LedgerError: If it cannot be written; nothing should go on unrecorded.
        """
        told = {
            "n": self._records + 1,
            "time_s": time.time() if time_s is None else time_s,
            "kind": kind,
            "body": body,
            "prev": self._last,
        }
        text = to_json(told, inf_nan_mode="strings", serialize_unknown=True)[:-1]
        mac = _mac(self._key, text)
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


def open_ledger(folder: Path, name: str) -> Ledger:
    """Open the ledger `name` in `folder` for appending; a line that a crash tore is cut off, and that is said.

    Raises:
        LedgerError: If an existing one is damaged otherwise, or the folder cannot be used.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = _key_of(folder)
    except OSError as error:
        raise LedgerError(f"The folder of the ledger, {folder}, cannot be used: {error.strerror}.") from error
    path = folder / f"{name}.jsonl"
    if not path.exists():
        return Ledger(path, key)
    found = _check(path, key)
    if found.problems:
        raise LedgerError(
            f"The ledger {path} is damaged: {'; '.join(found.problems)}. Move it away to go on."
        )
    if found.torn_bytes:
        os.truncate(path, path.stat().st_size - found.torn_bytes)
    last = _last_mac(path)
    ledger = Ledger(path, key, records=found.records, last=last)
    if found.torn_bytes:
        ledger.append("repaired", {"dropped_bytes": found.torn_bytes})
        ledger.seal()
    return ledger


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
    told = _parsed(head)
    count = told.get("count") if told is not None else None
    if not isinstance(count, int) or told is None or head != _head_text(key, count, str(told.get("last"))):
        return ["its head was changed"]
    if count > len(macs):
        return [f"{count - len(macs)} lines were cut off its end"]
    if count and macs[count - 1] != told["last"]:
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
