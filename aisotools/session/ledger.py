"""The ledger: an append-only file of records, each chained to the one before by a MAC.

A line is a JSON object whose last member is the MAC of everything before it; `prev` repeats the MAC of the
line before. Beside the file lies its head, replaced atomically: how many lines there are and the last MAC,
itself under a MAC. The key lies in the same folder, readable by its owner alone. What a line looks like is in
`aisotools.session.ledger_values`.

This finds damage, truncation, insertion, reordering and edits by anybody without the key; with the index of
the folder (`aisotools.session.ledger_index`) also a ledger that was emptied, removed, put back or replaced
together with its head. It proves nothing against somebody with the same user's rights, who can read the key,
nor against restoring an older state of the whole folder.

`aisotools.session.recording` writes the events of a session to a ledger, `aisotools.session.ledger_reader`
reads the records back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import itertools
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic_core import to_json

from aisotools.core.exceptions import LedgerError
from aisotools.core.types import Json
from aisotools.session.ledger_index import (
    IndexEntry,
    LedgerIndex,
    open_record_file,
    read_object,
    read_record_file,
)
from aisotools.session.ledger_values import encoded
from aisotools.workspace.dirfd import sync_folder

_KEY_BYTES = 32
_MAC_CHARS = 64
_ANCHOR_INTERVAL_S = 5.0
"""Seconds between two changes of the index while a ledger is written."""
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

    def __init__(self, path: Path, key: bytes, index: LedgerIndex | None = None) -> None:
        """Open a new file. Call `resume` before appending to one that has records; see `open_ledger`.

        Args:
            path: The file.
            key: The key of its folder.
            index: The index of its folder, which is told of new records.

        Raises:
            BlockingIOError: If the file is open in another `Ledger`, of this process or another.
        """
        self.path = path
        self._path_text = str(path)
        self._key = key
        self._mac = _prepare_mac(key)
        self._index = index
        self._anchored_s = float("-inf")
        # Both together, so that another thread never sees the one without the other.
        self._position = (0, "")
        self._sealing = threading.RLock()  # held while the file is sealed or closed, by one thread
        self._process = os.getpid()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._opened = os.fstat(self._descriptor)
        self._place = self._opened.st_dev, self._opened.st_ino
        self._size = 0
        self._torn_bytes = 0  # at the end of the file, beyond `_size`
        self._is_parked = False
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
        checked = _check(self.path, self._key, _read_file(self.path))
        if checked.problems:
            self._close_file()
            problems = "; ".join(checked.problems)
            raise LedgerError(
                f"The ledger {self.path} is damaged: {problems}. To go on without it, move it away and run "
                f"`aisotools log forget {self.path.stem}`, or use another session key."
            )
        if checked.torn_bytes:
            # Crash while a record was written: it has no line end, so nobody was told that it is there.
            os.truncate(self.path, self.path.stat().st_size - checked.torn_bytes)
        self._size = self.path.stat().st_size
        self._position = (checked.records, _read_last_mac(self.path))
        if checked.torn_bytes:
            self.append("repaired", {"dropped_bytes": checked.torn_bytes})
            self.seal()
        self._anchor()
        if not checked.records and not _head_path(self.path).exists():
            # Crash: a ledger without a head has lost it, so there is one before the first record. The index
            # is told first, because a head without an index says that the index is gone.
            self.seal()
            try:
                sync_folder(self.path.parent)
            except OSError as error:
                raise _unusable_folder(self.path.parent, error) from error
        self._anchored_s = float("-inf")  # the first new records are worth another change

    def append(
        self, kind: str, body: Mapping[str, Json], *, time_s: float | None = None, check: bool = True
    ) -> None:
        """Write one record.

        Args:
            kind: The kind of event.
            body: Its content.
            time_s: When it happened, in seconds since the epoch; now without it.
            check: Whether to `check` the file then. To look its path up takes as long as to write to it.

        Raises:
            LedgerError: If the record cannot be written. No further call may run unrecorded. If the error is
                retryable, the ledger is as before, and the same record can be appended later.
        """
        if self._process != os.getpid():
            # Fork: two writers would break the chain of records, and the parent could make no more calls.
            problem = f"The ledger {self.path} belongs to process {self._process}, which forked this one."
            raise LedgerError(f"{problem} Open a session of its own in this one.")
        records, last_mac = self._position
        record = {
            "n": records + 1,
            "time_s": time.time() if time_s is None else time_s,
            "kind": kind,
            "body": body,
            "prev": last_mac,
        }
        try:
            text = encoded(record)[:-1]
        except Exception as error:
            raise LedgerError(
                f"A record of {kind} for the ledger {self.path} has no written form: {type(error).__name__}."
            ) from error
        mac = _compute_mac(self._mac, text)
        line = b'%s,"mac":"%s"}\n' % (text, mac.encode())
        if self._is_parked:
            self._reopen()
        try:
            if self._torn_bytes:
                self._remove_torn()
            written = os.write(self._descriptor, line)
        except OSError as error:
            problem = f"The ledger {self.path} cannot be written: {error.strerror}."
            raise LedgerError(problem, retryable=True) from error
        if written != len(line):
            self._torn_bytes = written
            with contextlib.suppress(OSError):  # else before the next record
                self._remove_torn()
            problem = f"The ledger {self.path} took only {written} of {len(line)} bytes; is the disk full?"
            raise LedgerError(problem, retryable=True)
        self._size += written
        # Race: the file may be removed right after this; the next check notices, before the next effect.
        if check:
            self.check()
        self._position = (records + 1, mac)

    def check(self) -> None:
        """Look whether what was written is where the next reader looks.

        Raises:
            LedgerError: If another program has changed the file.
        """
        try:
            status = os.stat(self._path_text)  # noqa: PTH116 - a Path takes twice as long, for each record
            size = status.st_size - self._torn_bytes
            is_whole = (status.st_dev, status.st_ino, size) == (*self._place, self._size)
        except OSError:
            is_whole = False
        if not is_whole:
            raise LedgerError(self._describe_change())

    def _remove_torn(self) -> None:
        """Remove the part of a record that a full disk has taken; the next one would become part of it."""
        if self._torn_bytes and os.fstat(self._descriptor).st_size == self._size + self._torn_bytes:
            os.ftruncate(self._descriptor, self._size)
        # Race: another program has changed the file meanwhile. The next record finds that out, and stays.
        self._torn_bytes = 0

    def _describe_change(self) -> str:
        """Return why what was written is not where the next reader looks."""
        try:
            status = self.path.stat()
        except OSError as error:
            what = "is gone" if error.errno == errno.ENOENT else f"cannot be found ({error.strerror})"
        else:
            what = f"has {status.st_size:,} bytes where {self._size:,} were written"
            if not os.path.samestat(status, self._opened):
                what = "is another file now"
        return (
            f"The ledger {self.path} {what}: another program has changed it. Close this session. To go on "
            f"without it, move it away and run `aisotools log forget {self.path.stem}`, or use another "
            "session key."
        )

    def seal(self) -> None:
        """Write the records through to the disk, then replace the head; at times the index as well.

        The head makes it detectable if records up to here are cut off. It may be called in another thread
        than `append`: a disk may take its time.

        Raises:
            LedgerError: If the records or the head cannot be written. It is retryable if all records are on
                the disk.
        """
        temporary = _head_path(self.path).with_suffix(".new")
        if self._is_parked:
            self._reopen()
        with self._sealing:
            # Race: another thread has closed it meanwhile, and sealed all records before.
            if self._descriptor < 0:
                return
            head = _head_text(self._key, *self._position, name=self.path.stem)
            is_synced = False
            try:
                # Power loss: a head without the records that it counts would look like records cut off.
                os.fdatasync(self._descriptor)
                is_synced = True
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                try:
                    if os.write(descriptor, head) != len(head):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    # Power loss: an empty head under the name of the old one would look like tampering.
                    os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)
                # Crash in between: the old head stays whole, and what was written after it is still chained.
                temporary.replace(_head_path(self.path))
            except OSError as error:
                problem = f"The head of the ledger {self.path} cannot be written: {error.strerror}."
                # The system tries no second time to write what it could not sync, and forgets the error.
                raise LedgerError(problem, retryable=is_synced) from error
            if time.monotonic() - self._anchored_s >= _ANCHOR_INTERVAL_S:
                self._anchor()

    def _anchor(self) -> None:
        """Tell the index of the records so far."""
        if self._index is not None:
            self._index.update(self.path.stem, IndexEntry(*self._position))
            self._anchored_s = time.monotonic()

    def park(self) -> None:
        """Close the file until the next record. Call it after `seal`, while nobody else uses the ledger.

        Meanwhile another session of the same name may open it. This one can then record nothing more.
        """
        with self._sealing:
            if self._descriptor >= 0 and not self._torn_bytes:
                self._is_parked = True
                self._close_file()

    def _reopen(self) -> None:
        """Open the file again, as it was left.

        Raises:
            LedgerError: If it is not as it was left. It is retryable if another session just has it.
        """
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            is_gone = error.errno == errno.ENOENT
            problem = self._describe_change() if is_gone else f"{self.path}: {error.strerror}."
            raise LedgerError(problem, retryable=not is_gone) from error
        # Race: another session of this name has opened the file meanwhile, and may write to it.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(descriptor)
            if not os.path.samestat(status, self._opened) or status.st_size != self._size:
                raise LedgerError(self._describe_change())
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                problem = f"The ledger {self.path} is in use by another session. Close that one."
                raise LedgerError(problem, retryable=True) from None
            raise
        self._descriptor, self._is_parked = descriptor, False

    def close(self) -> None:
        """Seal and close. Closing again waits for the end of that, in whichever thread it was begun."""
        if self._process != os.getpid():
            # Fork: the lock may be held by a thread that this process has not.
            self._close_file()
            return
        # Race: the thread of an event loop that was stopped goes on with it while it is closed once more.
        with self._sealing:
            if self._is_parked:
                self._reopen()
            if self._descriptor < 0:
                return
            self._anchored_s = float("-inf")
            try:
                self.seal()
            finally:
                self._close_file()

    def _close_file(self) -> None:
        # First forgotten: a number that was closed is soon that of another file.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


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
        LedgerError: If the file is damaged otherwise, or was emptied, removed or replaced since it was used
            last; or if the folder cannot be used.
    """
    key = prepare_folder(folder)
    try:
        ledger = _open_unused(folder, name, key)
    except OSError as error:
        raise _unusable_folder(folder, error) from error
    ledger.resume()
    return ledger


def prepare_folder(folder: Path) -> bytes:
    """Return the key of a folder of ledgers. Folder and key are made where they are missing.

    The new key is written through to the disk, which may take a while: call this in a thread.

    Raises:
        LedgerError: If the key is damaged, or the folder cannot be used.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _load_key(folder)
    except OSError as error:
        raise _unusable_folder(folder, error) from error


def _unusable_folder(folder: Path, error: OSError) -> LedgerError:
    return LedgerError(f"The folder of the ledger, {folder}, cannot be used: {error.strerror}.")


def _open_unused(folder: Path, name: str, key: bytes) -> Ledger:
    index = LedgerIndex(folder, key)
    for number in itertools.count(1):
        # Race: another session holds the lock of this file, or takes it first. Then the next number is
        # tried; a file is never written by two.
        with contextlib.suppress(BlockingIOError):
            return Ledger(folder / (f"{name}.jsonl" if number == 1 else f"{name}-{number}.jsonl"), key, index)
    raise AssertionError("unreachable")


def verify(path: Path) -> Verification:
    """Check every line of a ledger, its head, and what the index of its folder says of it.

    Raises:
        LedgerError: If the file or the key cannot be read.
    """
    text = _read_file(path)
    try:
        key = read_record_file(path.parent / "key")
    except FileNotFoundError as error:
        raise LedgerError(
            f"The ledger {path} cannot be checked: there is no key beside it. A copy of it needs the file "
            "`key` from its folder, too."
        ) from error
    except OSError as error:
        raise LedgerError(f"The ledger {path} cannot be checked: its key: {error.strerror}.") from error
    try:
        return _check(path, key, text)
    except OSError as error:
        raise LedgerError(
            f"The ledger {path} cannot be checked: {error.filename}: {error.strerror}."
        ) from error


def missing_ledgers(folder: Path) -> dict[str, int]:
    """Return which ledgers in the index of a folder are gone, by name, and how many records each had.

    Raises:
        LedgerError: If the index was changed, or is gone though a ledger was written with one.
    """
    return {
        name: entry.count
        for name, entry in _index_of(folder).items()
        if entry.count and not (folder / f"{name}.jsonl").exists()
    }


def forget_ledger(folder: Path, name: str) -> bool:
    """Remove a ledger that was moved away from the index of its folder. Return whether it was there.

    Raises:
        LedgerError: If its file is still there, or the index cannot be used.
    """
    path = folder / f"{name}.jsonl"
    if path.exists() and path.stat().st_size:
        raise LedgerError(f"The ledger {path} is still there. Move it away first, then forget it.")
    return bool(_index_of(folder)) and LedgerIndex(folder, _load_key(folder)).forget(name)


def _index_of(folder: Path) -> dict[str, IndexEntry]:
    try:
        key = read_record_file(folder / "key")
    except OSError:
        return {}  # there never was a ledger
    return LedgerIndex(folder, key).read()


def read(path: Path) -> Iterator[dict[str, Json]]:
    """Yield the records of a ledger without checking them, up to the first line that is not a JSON object.

    Raises:
        LedgerError: If the file cannot be read.
    """
    for line in _read_file(path).split(b"\n"):
        record = read_object(line)
        if record is None:
            return
        yield record


def last_change(path: Path) -> float:
    """Return when a ledger was changed last, in seconds since the epoch.

    Raises:
        LedgerError: If the file cannot be read.
    """
    with _reading(path), open_record_file(path) as file:
        return os.fstat(file.fileno()).st_mtime


def _read_file(path: Path) -> bytes:
    with _reading(path):
        return read_record_file(path)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        is_dangling = isinstance(error, FileNotFoundError) and path.is_symlink()
        reason = "it is a link to a file that is not there" if is_dangling else error.strerror
        raise LedgerError(f"The ledger {path} cannot be read: {reason}.") from error


def _check(path: Path, key: bytes, text: bytes) -> Verification:
    lines = text.split(b"\n")
    torn = lines.pop()
    previous_mac, records = "", 0
    problem = None
    macs = []
    prepared = _prepare_mac(key)
    for number, line in enumerate(lines, start=1):
        text, mac = line[:-_MAC_MEMBER_BYTES], line[-_MAC_MEMBER_BYTES:]
        expected = _compute_mac(prepared, text)
        record = read_object(line)
        if record is None or mac != b',"mac":"%s"}' % expected.encode():
            problem = f"line {number} was changed"
        elif record["n"] != number or record["prev"] != previous_mac:
            problem = f"line {number} does not follow the one before: something was removed, added or moved"
        if problem is not None:
            break
        previous_mac, records = expected, number
        macs.append(expected)
    rest = b"\n".join([*lines[records:], torn])
    if problem and b"\0" in rest:
        # Power loss: what was written since the last head is not on the disk, or only its later part. A part
        # that is missing reads as zeros. Whoever wanted to hide these lines could as well cut them off.
        problem = None
    problems = [problem] if problem else _check_head(path, key, macs)
    problems = problems or LedgerIndex(path.parent, key).check(path.stem, macs)
    return Verification(records=records, problems=tuple(problems), torn_bytes=0 if problem else len(rest))


def _check_head(path: Path, key: bytes, macs: list[str]) -> list[str]:
    try:
        head = read_record_file(_head_path(path))
    except FileNotFoundError:
        return ["its head is missing: lines may have been cut off"] if macs else []
    parsed = read_object(head)
    count = parsed.get("count") if parsed is not None else None
    name = parsed.get("name") if parsed is not None else None  # earlier versions wrote none
    if (
        parsed is None
        or not isinstance(count, int)
        or head != _head_text(key, count, str(parsed.get("last")), name=name)
    ):
        return ["its head was changed"]
    if name not in {None, path.stem}:
        return [f"its head belongs to the ledger {name}"]
    if count > len(macs):
        return [f"{count - len(macs)} lines were cut off its end"]
    if count and macs[count - 1] != parsed["last"]:
        return ["its head belongs to other lines"]
    return []


def _prepare_mac(key: bytes) -> hmac.HMAC:
    """Return what `_compute_mac` needs of a key; preparing it takes as long as the code of a short text."""
    return hmac.new(key, digestmod="sha256")


def _compute_mac(prepared: hmac.HMAC, text: bytes) -> str:
    code = prepared.copy()
    code.update(text)
    return code.hexdigest()


def _head_text(key: bytes, count: int, last_mac: str, *, name: object) -> bytes:
    head = {"count": count, "last": last_mac} | ({} if name is None else {"name": name})
    return to_json({**head, "seal": _compute_mac(_prepare_mac(key), b"head" + to_json(head))})


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
    if (
        path.exists()
        and not path.stat().st_size
        and not any(one.stat().st_size for one in folder.glob("*.jsonl"))
    ):
        path.unlink()  # nothing was written with it yet
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
        raise LedgerError(
            f"The key {path} is damaged ({len(key)} bytes instead of {_KEY_BYTES}), so the ledgers beside it "
            "cannot be checked or continued. Put the key back from a copy, or move the folder away."
        )
    return key
