"""Content-addressed storage of workspace trees, and the journal of what calls did to them.

A content is stored under the BLAKE2 digest of its bytes. A tree is the digest of a folder's listing, which
holds the digests of what the folder contains, so equal trees have equal digests however deep they are, and
unchanged folders cost nothing to store or to compare.

The store is a private folder outside every workspace. A content is written under a temporary name and
renamed, so a digest never names a partial content. The journal is a file with one JSON record a line; a line
that a crash cut short is ignored.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

from pydantic_core import from_json, to_json

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.dirfd import APPEND_FLAGS, CREATE_FLAGS, DIRECTORY_FLAGS, READ_FLAGS

_CHUNK_BYTES = 1 << 20
_DIGEST_BYTES = 32
_TEMPORARY = "new-"  # no digest begins like this
_JOURNAL = "chain"


def content_digest(data: bytes) -> str:
    """Return the name under which a content is stored."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


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
    """

    def __init__(self, folder: Path) -> None:
        """Open the store in `folder`; create it if it is missing.

        Raises:
            WorkspaceError: If the folder cannot be used.
        """
        self.folder = folder
        self._lock = threading.Lock()
        self._temporaries = 0
        self._torn = 0  # bytes at the end of the journal that are no whole line
        try:
            for needed in (folder, folder / "objects"):
                needed.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._objects = os.open(folder / "objects", DIRECTORY_FLAGS)
            self.size, self.count = self._clean_objects()
            self._journal = os.open(folder / _JOURNAL, APPEND_FLAGS | os.O_CREAT, 0o600)
        except OSError as error:
            raise WorkspaceError(
                f"Checkpoints cannot be kept in {str(folder)!r}: {error.strerror}."
            ) from error

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
        if self._objects >= 0:
            os.close(self._objects)
            os.close(self._journal)
            self._objects = self._journal = -1

    # ---- contents

    def __contains__(self, digest: str) -> bool:
        return os.access(digest, os.F_OK, dir_fd=self._objects)

    def put(self, data: bytes) -> str:
        """Store a content. Return its digest.

        Raises:
            WorkspaceError: If it cannot be written.
        """
        digest = content_digest(data)
        if not os.access(digest, os.F_OK, dir_fd=self._objects):
            name, writing = self._create_temporary()
            try:
                try:
                    _write_all(writing, data)
                finally:
                    os.close(writing)
                self._commit(name, digest, len(data))
            except OSError as error:
                self._abort(name, error)
        return digest

    def put_file(self, file: int, *, max_bytes: int) -> StoredFile | None:
        """Store the rest of an open file. Return None if it is more than `max_bytes`.

        Raises:
            OSError: If the file cannot be read.
            WorkspaceError: If the content cannot be written.
        """
        data = os.read(file, min(_CHUNK_BYTES, max_bytes + 1))
        if len(data) == _CHUNK_BYTES:
            return self._put_large_file(file, data, max_bytes)
        # A short read is the end of the file, unless it is growing right now.
        data += b"".join(_read_chunks(file, max_bytes + 1 - len(data)))
        return StoredFile(self.put(data), len(data)) if len(data) <= max_bytes else None

    def _put_large_file(self, file: int, first: bytes, max_bytes: int) -> StoredFile | None:
        """Copy chunk by chunk. The digest is known only at the end, so the content is always written."""
        hashed, size = hashlib.blake2b(first, digest_size=_DIGEST_BYTES), len(first)
        name, writing = self._create_temporary()
        try:
            try:
                _write_all(writing, first)
                for chunk in _read_chunks(file, max_bytes + 1 - size):
                    hashed.update(chunk)
                    size += len(chunk)
                    _write_all(writing, chunk)
            finally:
                os.close(writing)
            if size > max_bytes:
                os.unlink(name, dir_fd=self._objects)
                return None
            self._commit(name, hashed.hexdigest(), size)
        except OSError as error:
            self._abort(name, error)
        return StoredFile(hashed.hexdigest(), size)

    def get(self, digest: str) -> bytes:
        """Return a content.

        Raises:
            WorkspaceError: If it no longer exists or is damaged.
        """
        data = b"".join(self.chunks(digest))
        if content_digest(data) != digest:
            raise _build_damage_error(digest)
        return data

    def copy(self, digest: str, file: int) -> None:
        """Write a content to an open file.

        Raises:
            WorkspaceError: If it no longer exists or is damaged; the file may then hold a part of it.
        """
        hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for chunk in self.chunks(digest):
            hashed.update(chunk)
            _write_all(file, chunk)
        if hashed.hexdigest() != digest:
            raise _build_damage_error(digest)

    def chunks(self, digest: str) -> Iterator[bytes]:
        """Yield a content in pieces without verifying its digest.

        Raises:
            WorkspaceError: If it no longer exists.
        """
        try:
            file = os.open(digest, READ_FLAGS, dir_fd=self._objects)
        except OSError as error:
            raise WorkspaceError(f"The checkpoint content {digest[:12]} is gone: {error.strerror}.") from None
        try:
            # No more than there is now: a file that is being written to has an end all the same.
            yield from _read_chunks(file, os.fstat(file).st_size)
        finally:
            os.close(file)

    def keep_only(self, digests: Iterable[str]) -> None:
        """Delete every other content."""
        needed = set(digests)
        with self._lock, os.scandir(self._objects) as entries:
            for entry in entries:
                if entry.name not in needed and not entry.name.startswith(_TEMPORARY):
                    size = entry.stat(follow_symlinks=False).st_size
                    os.unlink(entry.name, dir_fd=self._objects)
                    self.size -= size
                    self.count -= 1

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
            is_new = not os.access(digest, os.F_OK, dir_fd=self._objects)
            os.rename(name, digest, src_dir_fd=self._objects, dst_dir_fd=self._objects)
            if is_new:
                self.size += size
                self.count += 1

    def _abort(self, name: str, error: OSError) -> Never:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._objects)
        raise self._write_error(error) from error

    def _write_error(self, error: OSError) -> WorkspaceError:
        problem = f"The checkpoint cannot be kept in {str(self.folder)!r}: {error.strerror}."
        return WorkspaceError(f"{problem} Make room there, or set XDG_STATE_HOME to another disk.")

    # ---- the journal

    def records(self) -> list[dict[str, Any]]:
        """Return the records in order, up to the first damaged line."""
        records = []
        # The part after the last line feed is empty, or a record that a crash cut short.
        for line in (self.folder / _JOURNAL).read_bytes().split(b"\n")[:-1]:
            try:
                record = from_json(line)
            except ValueError:
                break
            if not isinstance(record, dict):
                break
            records.append(record)
        return records

    def record(self, **fields: Any) -> None:
        """Append a record.

        Raises:
            WorkspaceError: If it cannot be written. The action that it announces must not be done then.
        """
        line = to_json(fields) + b"\n"
        try:
            if self._torn:
                # The next line would become part of the one that was cut short, and none after it be read.
                os.ftruncate(self._journal, os.fstat(self._journal).st_size - self._torn)
                self._torn = 0
            written = os.write(self._journal, line)
            # Partial write: the disk became full in the middle of the line.
            if written != len(line):
                self._torn = written
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._write_error(error) from error

    def rewrite(self, records: Iterable[dict[str, Any]]) -> None:
        """Replace the whole journal atomically, including any damaged line in it.

        Raises:
            WorkspaceError: If it cannot be written; the old journal is still in place then.
        """
        new = self.folder / f"{_JOURNAL}.new"
        try:
            new.write_bytes(b"".join(to_json(record) + b"\n" for record in records))
            new.chmod(0o600)
            # A crash before this leaves the old journal and a file that nobody reads; after it, the new one.
            new.replace(self.folder / _JOURNAL)
            journal = os.open(self.folder / _JOURNAL, APPEND_FLAGS)
        except OSError as error:
            raise self._write_error(error) from error
        os.close(self._journal)
        self._journal, self._torn = journal, 0


def _build_damage_error(digest: str) -> WorkspaceError:
    return WorkspaceError(f"The checkpoint content {digest[:12]} is damaged; it is not used.")


def _read_chunks(file: int, max_bytes: int) -> Iterator[bytes]:
    left = max_bytes
    while left > 0 and (chunk := os.read(file, min(_CHUNK_BYTES, left))):
        left -= len(chunk)
        yield chunk


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
