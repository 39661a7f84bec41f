"""Content-addressed storage of workspace trees, and the journal of what calls did to them.

A content is stored under the BLAKE2 digest of its bytes. A tree is the digest of a folder's listing, which
holds the digests of what the folder contains, so equal trees have equal digests however deep they are, and
unchanged folders cost nothing to store or to compare.

The store is a private folder outside every workspace. A content is written under a temporary name and
renamed, so a digest never names a partial content. The journal is a file with one JSON record a line; a line
that a crash cut short is ignored.

Threat
    The power fails, or a disk gives back something else than was written: a record names a content that is
    not there, or is another.
Mechanism
    `sync` writes new contents through to the disk, then the records. A content is compared with its digest
    whenever it is read, and with what is at hand whenever the same is stored again.
Race window
    What was stored since the last `sync` may be lost with the power, in any order: a record may be there
    without its content.
When it fails
    A content that is damaged or gone is an error of whoever reads it; `put` of the same bytes heals it. One
    that could not be read is not taken for lost: the next read may succeed, so nothing is deleted. A record
    that cannot be read ends the journal, and `damage` says how much came after it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import json
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

from pydantic_core import PydanticSerializationError, from_json, to_json

from aisotools.core.exceptions import WorkspaceError, storage_remedy
from aisotools.workspace.dirfd import (
    APPEND_FLAGS,
    CREATE_FLAGS,
    DIRECTORY_FLAGS,
    READ_FLAGS,
    flush_file_system,
    sync_folder,
    write_all,
)

_CHUNK_BYTES = 1 << 20
_DIGEST_BYTES = 32
_TEMPORARY = "new-"  # no digest begins like this
_JOURNAL = "chain"
_FICLONE = 0x40049409  # ioctl: have a file share the blocks of another one, until either is written to
_SHARED_BYTES = 1 << 16  # below it a copy takes no longer
_NEVER_SHARED = frozenset({errno.EXDEV, errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_SYNCED_ONE_BY_ONE = 32
"""Up to so many contents are synced each; above it the whole file system is, which is faster."""


_LOST = frozenset({errno.ENOENT, errno.EIO})
"""What the system says of a content that is gone or damaged; all else may be another the next time."""


class LostContent(WorkspaceError):
    """A stored content is gone or damaged."""


def content_digest(data: bytes) -> str:
    """Return the name under which a content is stored."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def _encode_record(record: Mapping[str, Any]) -> bytes:
    try:
        return to_json(record) + b"\n"
    except PydanticSerializationError:
        # A name of a file that is not UTF-8, or what a person calls a conversation: with half characters.
        return json.dumps(record).encode() + b"\n"


def _decode_record(line: bytes) -> object:
    """Return a record, or None if the line is damaged."""
    for decode in (from_json, json.loads):  # the second one for half characters, which the first one refuses
        with suppress(ValueError, RecursionError):
            return decode(line)
    return None


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A stored copy of a file.

    Attributes:
        digest: Digest of its content.
        size: Size in bytes.
    """

    digest: str
    size: int


class Store:
    """Contents and journal of one workspace. Used by one process at a time; see `workspace.lock`.

    Attributes:
        folder: Where they are stored.
        size: Bytes of all contents.
        count: Number of all contents. Which there are is on disk only: there may be many small ones.
        damage: What of the journal could not be read, in a clause; empty if that is nothing.
        is_journal_lost: Whether contents were there without a journal, which is always the older.
        damaged: Digests of contents that somebody wanted to read, and that are gone, another, or not given
            back by the disk; see `is_intact`.
    """

    def __init__(self, folder: Path) -> None:
        """Open the store in `folder`; create it if it is missing.

        Raises:
            WorkspaceError: If the folder cannot be used.
        """
        self.folder = folder
        self._lock = threading.Lock()
        self._reopening = threading.Lock()
        self._files = (-1, -1)  # folder of the contents, journal
        self._parked: tuple[tuple[int, ...], ...] | None = None  # what they were when they were closed
        self._temporaries = 0
        self._unshared: set[int] = set()  # file systems that share no blocks with the store's
        self._torn = 0  # bytes at the end of the journal that are no whole line
        self._last_bytes = 0  # length of the last record, if it was written here
        # Each with whether it is new; no more than are synced one by one.
        self._unsynced: dict[str, bool] = {}
        self._is_all_unsynced = False
        self._has_unsynced_records = False
        self.damage = ""
        self.damaged: set[str] = set()
        try:
            new = [path for path in (folder / "objects", *(folder / "objects").parents) if not path.exists()]
            # Folders that hold new names. They are synced with the first record, not while a session opens.
            self._unsynced_folders = {path.parent for path in new}
            for needed in (folder, folder / "objects"):
                needed.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._files = (os.open(folder / "objects", DIRECTORY_FLAGS), -1)
            self.size, self.count = self._clean_objects()
            self.is_journal_lost = self.count > 0 and not (folder / _JOURNAL).exists()
            self._files = self._objects, os.open(folder / _JOURNAL, APPEND_FLAGS | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._write_error(error) from error

    def __repr__(self) -> str:
        return f"<Store {self.folder.name}: {self.count} contents, {self.size:,} bytes>"

    def _clean_objects(self) -> tuple[int, int]:
        """Remove partial contents. Return the size of all others, and how many there are."""
        size = count = 0
        partial = []
        with os.scandir(self._objects) as entries:
            for entry in entries:
                if entry.name.startswith(_TEMPORARY):
                    partial.append(entry.name)
                else:
                    size += entry.stat(follow_symlinks=False).st_size
                    count += 1
        for name in partial:
            # Crash recovery: the process ended between creating the file and renaming it to its digest.
            os.unlink(name, dir_fd=self._objects)
        return size, count

    def close(self) -> None:
        """Close the store. Idempotent."""
        self._parked = None
        files, self._files = self._files, (-1, -1)
        for file in files:
            if file >= 0:
                os.close(file)

    def park(self) -> None:
        """Close what is open until it is needed again. Call it while nobody uses the store."""
        if self._parked is None and self._files[0] >= 0:
            self._parked = tuple(map(_identity, self._files))
            files, self._files = self._files, (-1, -1)
            for file in files:
                os.close(file)

    @property
    def _objects(self) -> int:
        if self._parked is not None:
            self._reopen()
        return self._files[0]

    @property
    def _journal(self) -> int:
        if self._parked is not None:
            self._reopen()
        return self._files[1]

    def _reopen(self) -> None:
        with self._reopening:
            # Race: another thread has done it meanwhile.
            if self._parked is None:
                return
            files: list[int] = []
            try:
                files.append(os.open(self.folder / "objects", DIRECTORY_FLAGS))
                files.append(os.open(self.folder / _JOURNAL, APPEND_FLAGS))
                if tuple(map(_identity, files)) != self._parked:
                    raise OSError(errno.ESTALE, "another program has replaced or changed it")
            except OSError as error:
                for file in files:
                    os.close(file)
                raise WorkspaceError(
                    f"Checkpoints cannot be kept in {str(self.folder)!r}: {error.strerror}. Close this "
                    "session and open it again."
                ) from error
            self._files, self._parked = (files[0], files[1]), None

    # ---- contents

    def __contains__(self, digest: str) -> bool:
        return self.size_of(digest) >= 0

    def put(self, data: bytes) -> str:
        """Store a content. Return its digest.

        Raises:
            WorkspaceError: If it cannot be written.
        """
        digest = content_digest(data)
        if self._holds(digest, data):
            # An earlier process may have been killed before it was synced.
            with self._lock:
                self._note_unsynced(digest, is_new=False)
        else:
            self.put_chunks([data], max_bytes=len(data))
        return digest

    def _holds(self, digest: str, data: bytes) -> bool:
        """Return whether a content is stored, whole. One that is not is written again."""
        try:
            return b"".join(self._read_of_size(digest, len(data))) == data
        except OSError:
            return False

    def _read_of_size(self, digest: str, size: int) -> Iterator[bytes]:
        """Yield in pieces what is stored under a digest, if it has so many bytes.

        Raises:
            OSError: It is not there, has another size, or the disk does not give it back.
        """
        file = os.open(digest, READ_FLAGS, dir_fd=self._objects)
        try:
            if os.fstat(file).st_size != size:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            yield from _read_chunks(file, size)
        finally:
            os.close(file)

    def put_file(self, file: int, *, max_bytes: int) -> StoredFile | None:
        """Store the rest of an open file. Return None if it is more than `max_bytes`.

        Raises:
            OSError: If the file cannot be read.
            WorkspaceError: If the content cannot be written.
        """
        data = os.read(file, min(_CHUNK_BYTES, max_bytes + 1))
        if len(data) == _CHUNK_BYTES:
            rest = _read_chunks(file, max_bytes + 1 - len(data))
            return self.put_chunks(itertools.chain([data], rest), max_bytes=max_bytes)
        # A short read is the end of the file, unless it is growing right now.
        data += b"".join(_read_chunks(file, max_bytes + 1 - len(data)))
        return StoredFile(self.put(data), len(data)) if len(data) <= max_bytes else None

    def put_chunks(self, chunks: Iterable[bytes], *, max_bytes: int) -> StoredFile | None:
        """Store a content in pieces. Return None if it is more than `max_bytes`.

        The digest is known only at the end, so the content is always written. What is stored already stays.

        Raises:
            OSError: If a piece cannot be read.
            WorkspaceError: If the content cannot be written.
        """
        hashed, size = hashlib.blake2b(digest_size=_DIGEST_BYTES), 0
        name, writing = self._create_temporary()
        try:
            for chunk in chunks:
                hashed.update(chunk)
                size += len(chunk)
                if size > max_bytes:
                    break
                try:
                    write_all(writing, chunk)
                except OSError as error:
                    raise self._write_error(error) from error
        except BaseException:  # a piece that cannot be read says so itself
            self._discard(name)
            raise
        finally:
            os.close(writing)
        try:
            if size > max_bytes:
                # Race: it has grown since it was looked at. No record names this name yet.
                os.unlink(name, dir_fd=self._objects)
                return None
            digest = hashed.hexdigest()
            if self._is_whole(digest, size):
                # Power loss: the new copy may not be on the disk when its name is, and the one that it would
                # replace is needed by steps that were acknowledged.
                os.unlink(name, dir_fd=self._objects)
                with self._lock:
                    self._note_unsynced(digest, is_new=False)
            else:
                self._commit(name, digest, size)
        except OSError as error:
            self._abort(name, error)
        return StoredFile(digest, size)

    def is_intact(self, digest: str) -> bool:
        """Return whether a content is stored, undamaged. It is read for that."""
        with suppress(OSError):
            return self._is_whole(digest, self._find_size(digest))
        return False

    def _is_whole(self, digest: str, size: int) -> bool:
        """Return whether a content of so many bytes is stored, undamaged."""
        hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        try:
            for chunk in self._read_of_size(digest, size):
                hashed.update(chunk)
        except OSError:
            return False
        return hashed.hexdigest() == digest

    def get(self, digest: str) -> bytes:
        """Return a content.

        Raises:
            LostContent: If it no longer exists or is damaged.
            WorkspaceError: If it cannot be read now.
        """
        data = b"".join(self.chunks(digest))
        if content_digest(data) != digest:
            raise self._damage_error(digest)
        return data

    def copy(self, digest: str, file: int) -> None:
        """Write a content to an open new file; where the file system can share it, nothing is copied.

        Raises:
            WorkspaceError: If it no longer exists or is damaged; the file may then hold a part of it.
        """
        is_shared = self._share(digest, file)
        for chunk in self.verified_chunks(digest):
            if not is_shared:
                write_all(file, chunk)

    def _share(self, digest: str, file: int) -> bool:
        """Have an empty file share the blocks of a content. Return False if that is not possible."""
        device = os.fstat(file).st_dev
        if device in self._unshared or self.size_of(digest) < _SHARED_BYTES:
            return False
        try:
            source = os.open(digest, READ_FLAGS, dir_fd=self._objects)
        except OSError:
            return False  # whoever reads it says so
        try:
            fcntl.ioctl(file, _FICLONE, source)
        except OSError as error:
            # Another file system, or one that shares no blocks. Anything else, as a full disk, may pass.
            if error.errno in _NEVER_SHARED:
                self._unshared.add(device)
            return False
        finally:
            os.close(source)
        return True

    def verified_chunks(self, digest: str) -> Iterator[bytes]:
        """Yield a content in pieces, and compare it with its digest in the end.

        Raises:
            WorkspaceError: If it no longer exists or is damaged.
        """
        hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for chunk in self.chunks(digest):
            hashed.update(chunk)
            yield chunk
        if hashed.hexdigest() != digest:
            raise self._damage_error(digest)

    def chunks(self, digest: str) -> Iterator[bytes]:
        """Yield a content in pieces without verifying its digest.

        Raises:
            LostContent: If it no longer exists, or the disk does not give it back.
            WorkspaceError: If it cannot be read now.
        """
        try:
            file = os.open(digest, READ_FLAGS, dir_fd=self._objects)
            try:
                # No more than there is now: a file that is being written to has an end all the same.
                yield from _read_chunks(file, os.fstat(file).st_size)
            finally:
                os.close(file)
        except OSError as error:
            raise self._read_error(digest, error) from error

    def keep_only(self, digests: Iterable[str]) -> None:
        """Delete every other content."""
        needed = set(digests)
        with self._lock, os.scandir(self._objects) as entries:
            for entry in entries:
                if entry.name not in needed and not entry.name.startswith(_TEMPORARY):
                    size = entry.stat(follow_symlinks=False).st_size
                    # Crash: what is left is deleted the next time; no record needs it.
                    os.unlink(entry.name, dir_fd=self._objects)
                    self._unsynced.pop(entry.name, None)
                    self.size -= size
                    self.count -= 1

    def _damage_error(self, digest: str) -> WorkspaceError:
        self.damaged.add(digest)
        return LostContent(f"The checkpoint content {digest[:12]} is damaged; it is not used.")

    def _read_error(self, digest: str, error: OSError) -> WorkspaceError:
        # Out of descriptors or memory: says nothing of the content, which must not count as lost for that.
        problem = f"The checkpoint content {digest[:12]}"
        if error.errno not in _LOST:
            return WorkspaceError(f"{problem} cannot be read: {error.strerror}. Try again.")
        self.damaged.add(digest)
        problem += " is gone" if error.errno == errno.ENOENT else " is not given back by the disk"
        return LostContent(f"{problem}: {error.strerror}.")

    def size_of(self, digest: str) -> int:
        """Return the size of a content in bytes; -1 if it is not there.

        Raises:
            WorkspaceError: If that cannot be told now.
        """
        try:
            return self._find_size(digest)
        except OSError as error:
            raise self._read_error(digest, error) from error

    def _find_size(self, digest: str) -> int:
        try:
            return os.stat(digest, dir_fd=self._objects, follow_symlinks=False).st_size
        except FileNotFoundError:
            return -1

    def _create_temporary(self) -> tuple[str, int]:
        with self._lock:
            self._temporaries += 1
            name = f"{_TEMPORARY}{self._temporaries}"
        try:
            return name, os.open(name, CREATE_FLAGS, 0o600, dir_fd=self._objects)
        except OSError as error:
            raise self._write_error(error) from error

    def _commit(self, name: str, digest: str, size: int) -> None:
        # Race: two processes may store the same content. Each renames a whole file, so either is right.
        with self._lock:
            is_new = self._find_size(digest) < 0  # else it is damaged
            os.rename(name, digest, src_dir_fd=self._objects, dst_dir_fd=self._objects)
            self._note_unsynced(digest, is_new=True)
            if is_new:
                self.size += size
                self.count += 1

    def _note_unsynced(self, digest: str, *, is_new: bool) -> None:
        if len(self._unsynced) < _SYNCED_ONE_BY_ONE:
            self._unsynced[digest] = is_new or self._unsynced.get(digest, False)
        elif digest not in self._unsynced:
            self._is_all_unsynced = True

    def forget(self, digest: str) -> None:
        """Delete a content that is not on the disk as it should be, so that nobody takes it for whole."""
        with self._lock, suppress(FileNotFoundError):
            size = os.stat(digest, dir_fd=self._objects, follow_symlinks=False).st_size
            # Crash: the records that name it find it missing, as they would have found it damaged.
            os.unlink(digest, dir_fd=self._objects)
            self._unsynced.pop(digest, None)
            self.size -= size
            self.count -= 1

    # ---- durability

    @property
    def is_synced(self) -> bool:
        """True if nothing was stored or recorded since the last `sync`."""
        return not (self._unsynced or self._is_all_unsynced or self._has_unsynced_records)

    def sync(self) -> None:
        """Write all new contents through to the disk, and after them all new records.

        Raises:
            WorkspaceError: If the disk refuses it. What was not written may be lost with the power.
        """
        try:
            self._sync_contents()
            if self._has_unsynced_records:
                self._has_unsynced_records = False
                os.fdatasync(self._journal)
            while self._unsynced_folders:
                place = next(iter(self._unsynced_folders))
                sync_folder(place)
                self._unsynced_folders.discard(place)
        except OSError as error:
            self._has_unsynced_records = True
            raise self._write_error(error) from error

    def _sync_contents(self) -> None:
        with self._lock:
            digests, self._unsynced = self._unsynced, {}
            is_all, self._is_all_unsynced = self._is_all_unsynced, False
        try:
            if is_all:
                flush_file_system(self._objects)
            elif digests:
                for digest, is_new in digests.items():
                    self._sync_content(digest, is_new=is_new)
                # Power loss: a content that is whole, under a name that never reached the disk.
                os.fsync(self._objects)
        except BaseException:
            with self._lock:
                self._is_all_unsynced = True
            raise

    def _sync_content(self, digest: str, *, is_new: bool) -> None:
        try:
            file = os.open(digest, READ_FLAGS, dir_fd=self._objects)
        except FileNotFoundError:
            return  # it is needed no more
        try:
            os.fdatasync(file)
        except OSError:
            # The system tries no second time, and takes for whole what it has not written. So nobody may
            # find this content again, unless it was there before.
            if is_new:
                self.forget(digest)
            raise
        finally:
            os.close(file)

    def _discard(self, name: str) -> None:
        with suppress(FileNotFoundError):
            # Crash: a partial content has a name that no record has; the next open removes it.
            os.unlink(name, dir_fd=self._objects)

    def _abort(self, name: str, error: OSError) -> Never:
        self._discard(name)
        raise self._write_error(error) from error

    def _write_error(self, error: OSError) -> WorkspaceError:
        problem = f"The checkpoint cannot be kept in {str(self.folder)!r}: {error.strerror}."
        return WorkspaceError(f"{problem} {storage_remedy(error)}")

    # ---- the journal

    def records(self) -> list[dict[str, Any]]:
        """Return the records in order, up to the first damaged line; `damage` says what comes from there."""
        records = []
        try:
            # The part after the last line feed is empty, or a record that a crash cut short.
            lines = (self.folder / _JOURNAL).read_bytes().split(b"\n")[:-1]
        except OSError as error:
            raise self._write_error(error) from error
        for number, line in enumerate(lines):
            record = _decode_record(line)
            if not isinstance(record, dict):
                self.damage = f"{len(lines) - number:,} of its {len(lines):,} lines, from {number + 1:,} on"
                break
            records.append(record)
        return records

    def record(self, **fields: Any) -> None:
        """Append a record.

        Raises:
            WorkspaceError: If it cannot be written. The action that it announces must not be done then.
        """
        line = _encode_record(fields)
        try:
            self._has_unsynced_records = True
            self._last_bytes = 0
            if self._torn:
                # The next line would become part of the one that was cut short, and none after it be read.
                os.ftruncate(self._journal, os.fstat(self._journal).st_size - self._torn)
                self._torn = 0
            written = os.write(self._journal, line)
            # Partial write: the disk became full in the middle of the line.
            if written != len(line):
                self._torn = written
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._last_bytes = len(line)
        except OSError as error:
            raise self._write_error(error) from error

    def retract(self) -> None:
        """Take back the last record. Unlike another record this needs no space.

        Raises:
            WorkspaceError: If it was not written here, or cannot be taken back.
        """
        try:
            if not self._last_bytes:
                raise OSError(errno.EINVAL, "there is no record of this process to take back")
            # Disk full: another record, which says that this one does not count, would find no room.
            os.ftruncate(self._journal, os.fstat(self._journal).st_size - self._last_bytes)
            self._last_bytes = 0
            os.fdatasync(self._journal)
        except OSError as error:
            raise self._write_error(error) from error

    def rewrite(self, records: Iterable[dict[str, Any]]) -> None:
        """Replace the whole journal atomically, including any damaged line in it.

        Raises:
            WorkspaceError: If it cannot be written; the old journal is still in place then.
        """
        new = self.folder / f"{_JOURNAL}.new"
        try:
            self._sync_contents()
            journal = os.open(new, APPEND_FLAGS | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.fchmod(journal, 0o600)
                write_all(journal, b"".join(map(_encode_record, records)))
                # Or the power may fail with the new name on the disk and without what it names.
                os.fdatasync(journal)
                # A crash before this leaves the old journal and a file that nobody reads; after it, the new
                # one.
                new.replace(self.folder / _JOURNAL)
            except BaseException:
                os.close(journal)
                raise
            former = self._journal
            self._files, self._torn, self._last_bytes = (self._objects, journal), 0, 0
            os.close(former)
            self._has_unsynced_records = False
            sync_folder(self.folder)
        except OSError as error:
            raise self._write_error(error) from error


def _identity(file: int) -> tuple[int, ...]:
    """Return what tells an open folder from another one, and a journal from another or a longer one."""
    status = os.fstat(file)
    return status.st_dev, status.st_ino, status.st_size if stat.S_ISREG(status.st_mode) else 0


def _read_chunks(file: int, max_bytes: int) -> Iterator[bytes]:
    bytes_left = max_bytes
    while bytes_left > 0 and (chunk := os.read(file, min(_CHUNK_BYTES, bytes_left))):
        bytes_left -= len(chunk)
        yield chunk


class RecordQueue:
    """Records that must be written before any other, and may have to wait for the disk, or for room."""

    def __init__(self, store: Store) -> None:
        """Write to the journal of a store. Nothing waits yet."""
        self._store = store
        self._records: list[dict[str, Any]] = []
        self._needs_sync = False

    def __bool__(self) -> bool:
        return bool(self._records)

    def __repr__(self) -> str:
        return f"<RecordQueue: {len(self._records)} records wait>"

    def add(self, *, needs_sync: bool = False, **fields: Any) -> None:
        """Add a record. With `needs_sync` all contents are written through to the disk before it."""
        self._records.append(fields)
        self._needs_sync = self._needs_sync or needs_sync

    def write(self, *, may_wait: bool = True) -> None:
        """Write what waits; nothing if that has to wait for the disk and may not.

        Raises:
            WorkspaceError: If it cannot be written. It still waits then.
        """
        if self._records and self._needs_sync:
            if not may_wait:
                return
            self._store.sync()
            self._needs_sync = False
        while self._records:
            self._store.record(**self._records[0])
            del self._records[0]

    def clear(self) -> None:
        """Forget what waits, because the journal says the same by now."""
        self._records.clear()
        self._needs_sync = False
