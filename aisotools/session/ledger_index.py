"""The index of the ledgers in a folder: how many records each has at least, and the MAC of the last of them.

Threat
    A ledger and its head are emptied, deleted, put back to an older state, or replaced by those of another
    session, all at once: each pair by itself is sound.
Mechanism
    One file, under a MAC, names all ledgers of the folder. It is replaced when a ledger is opened, after its
    first records, every few seconds while it is written, and when it is closed.
Race window
    What was written since the index was replaced last can be cut off together with the head.
When it fails
    Whoever opens or verifies a ledger learns that it has fewer records than the index says, or others. If the
    index itself is gone, any ledger that was written with one says so. Nothing is found if all files of the
    folder are put back or removed together, as somebody with the user's own rights can do.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hmac
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import from_json, to_json

from aisotools.core.exceptions import LedgerError
from aisotools.workspace.dirfd import open_regular, sync_folder

_LOCK_TIMEOUT_S = 2.0
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What the index knows of a ledger.

    Attributes:
        count: How many records it has at least.
        last: The MAC of the record of this number; empty for 0.
    """

    count: int
    last: str


class LedgerIndex:
    """The index of one folder. Several processes may use it."""

    def __init__(self, folder: Path, key: bytes) -> None:
        """Use the index in `folder`, which need not be there yet, with the folder's key."""
        self._path = folder / "index"
        self._key = key

    def __repr__(self) -> str:
        return f"<LedgerIndex {str(self._path)!r}>"

    def read(self) -> dict[str, IndexEntry]:
        """Return what is known of each ledger, by its name.

        Raises:
            LedgerError: If the index was changed, or is gone though a ledger was written with one.
        """
        return {name: IndexEntry(*entry) for name, entry in self._read().items()}

    def _read(self) -> dict[str, Any]:
        """Return the count and the last MAC of each ledger; see `read`."""
        try:
            content = read_record_file(self._path)
        except FileNotFoundError:
            if self._is_missed():
                raise LedgerError(f"the index {self._path} is gone: ledgers may have been removed") from None
            return {}
        except OSError as error:
            raise LedgerError(f"the index {self._path} cannot be read: {error.strerror}") from error
        parsed = read_object(content)
        ledgers: Any = parsed.get("ledgers") if parsed is not None else None
        if not isinstance(ledgers, dict) or content != self._text(ledgers):
            raise LedgerError(f"the index {self._path} was changed")
        return ledgers

    def check(self, name: str, macs: Sequence[str]) -> list[str]:
        """Return what is wrong with a ledger whose records have these MACs, in words."""
        try:
            known = self._read().get(name)
        except LedgerError as error:
            return [str(error)]
        if known is None:
            return []
        entry = IndexEntry(*known)
        if entry.count > len(macs):
            gone = entry.count - len(macs)
            return [
                f"{gone} of the {entry.count} records that the index counts are gone, and its head with them"
            ]
        if entry.count and macs[entry.count - 1] != entry.last:
            return ["its records are not those that the index knows: it was replaced"]
        return []

    def update(self, name: str, entry: IndexEntry) -> None:
        """Write down what a ledger has by now. If another process holds the index for long, nothing changes.

        Raises:
            LedgerError: If the index was changed, or cannot be written.
        """
        self._change(name, entry)

    def forget(self, name: str) -> bool:
        """Remove a ledger from the index, because its user has removed or moved its files.

        Returns:
            Whether it was there.
        """
        return self._change(name, None)

    def _change(self, name: str, entry: IndexEntry | None) -> bool:
        try:
            with self._locked() as is_locked:
                if not is_locked:
                    return False
                ledgers = self._read()
                if entry is not None:
                    ledgers[name] = [entry.count, entry.last]
                elif ledgers.pop(name, None) is None:
                    return False
                self._write(ledgers)
                return True
        except OSError as error:
            problem = f"The index {self._path} cannot be written: {error.strerror}."
            raise LedgerError(problem, retryable=True) from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        """Lock the folder's key, which is never replaced. Yield whether that succeeded in time."""
        descriptor = os.open(self._path.with_name("key"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
            while True:
                # Race: two processes that read, change and replace the index would lose one of the changes.
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > deadline_s:
                        break
                    time.sleep(_POLL_S)
                else:
                    yield True
                    return
            yield False
        finally:
            os.close(descriptor)

    def _write(self, ledgers: Mapping[str, Any]) -> None:
        temporary = self._path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            content = self._text(ledgers)
            if os.write(descriptor, content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            # Power loss: an empty index under the name of the old one would look like tampering.
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        # Crash in between: the old index stays whole, and counts no record that is not there.
        temporary.replace(self._path)
        sync_folder(self._path.parent)

    def _text(self, ledgers: Mapping[str, Any]) -> bytes:
        seal = hmac.digest(self._key, b"index" + to_json(ledgers), "sha256").hex()
        return to_json({"ledgers": ledgers, "seal": seal})

    def _is_missed(self) -> bool:
        """Return whether a ledger of the folder was written together with an index."""
        for path in self._path.parent.glob("*.head"):
            with contextlib.suppress(OSError):
                if b'"name":' in read_record_file(path):
                    return True
        return False


_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


@contextlib.contextmanager
def open_record_file(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading. Nothing else is opened, and no pipe is waited for.

    Raises:
        OSError: It cannot be opened, or is not a regular file; `strerror` says which.
    """
    # Before it is opened, too: whoever waits to write to a pipe would go on. Race: it may be replaced then.
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(mode), 'a device')}", str(path))
    with open_regular(str(path)) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
        yield file


def read_record_file(path: Path) -> bytes:
    """Return the content of a regular file; see `open_record_file`."""
    with open_record_file(path) as file:
        return file.read()


def read_object(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object that `text` is; None if it is none."""
    try:
        record = from_json(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
