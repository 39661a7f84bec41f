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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Never, Protocol

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
    """

    def __init__(self, folder: Path) -> None:
        """Open the store in `folder`; create it if it is missing.

        Raises:
            WorkspaceError: If the folder cannot be used.
        """
        self.folder = folder
        self._lock = threading.Lock()
        self._temporaries = 0
        try:
            for needed in (folder, folder / "objects"):
                needed.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._objects = os.open(folder / "objects", DIRECTORY_FLAGS)
            self._sizes = self._clean_objects()
            self.size = sum(self._sizes.values())
            self._journal = os.open(folder / _JOURNAL, APPEND_FLAGS | os.O_CREAT, 0o600)
        except OSError as error:
            raise WorkspaceError(
                f"Checkpoints cannot be kept in {str(folder)!r}: {error.strerror}."
            ) from error

    def __repr__(self) -> str:
        return f"<Store {self.folder.name}: {len(self._sizes)} contents, {self.size:,} bytes>"

    def _clean_objects(self) -> dict[str, int]:
        """Remove partial contents. Return the sizes of the others by digest."""
        with os.scandir(self._objects) as entries:
            sizes = {entry.name: entry.stat(follow_symlinks=False).st_size for entry in entries}
        for name in [name for name in sizes if name.startswith(_TEMPORARY)]:
            # Crash recovery: the process ended between creating the file and renaming it to its digest.
            os.unlink(name, dir_fd=self._objects)
            del sizes[name]
        return sizes

    def close(self) -> None:
        """Close the store. Idempotent."""
        if self._objects >= 0:
            os.close(self._objects)
            os.close(self._journal)
            self._objects = self._journal = -1

    # ---- contents

    def __contains__(self, digest: str) -> bool:
        return digest in self._sizes

    def put(self, data: bytes) -> str:
        """Store a content. Return its digest.

        Raises:
            WorkspaceError: If it cannot be written.
        """
        digest = content_digest(data)
        if digest not in self._sizes:
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
            raise _damaged(digest)
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
            raise _damaged(digest)

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
            # One byte more than the size that was stored, so that an enlarged file fails verification.
            yield from _read_chunks(file, self._sizes.get(digest, 0) + 1)
        finally:
            os.close(file)

    def keep_only(self, digests: Iterable[str]) -> None:
        """Delete every other content."""
        needed = set(digests)
        with self._lock:
            for name in [name for name in self._sizes if name not in needed]:
                os.unlink(name, dir_fd=self._objects)
                self.size -= self._sizes.pop(name)

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
        os.rename(name, digest, src_dir_fd=self._objects, dst_dir_fd=self._objects)
        with self._lock:
            self.size += size - self._sizes.get(digest, 0)
            self._sizes[digest] = size

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
            # Partial write: the disk became full in the middle of the line.
            if os.write(self._journal, line) != len(line):
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
        self._journal = journal


def _damaged(digest: str) -> WorkspaceError:
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


# ---- trees

NodeKind = Literal["file", "folder", "link", "fifo", "other", "unkept"]
"""Kind of a tree node: `other` is a socket or device, `unkept` exists without its content being stored."""

_LETTERS: Mapping[NodeKind, bytes] = {
    "file": b"f",
    "folder": b"d",
    "link": b"l",
    "fifo": b"p",
    "other": b"o",
    "unkept": b"u",
}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}


class Node(NamedTuple):
    """An entry of a folder in a tree.

    Attributes:
        kind: Kind of the entry.
        mode: Permission bits; 0 for links and special files.
        content: Digest of a file or folder, target of a link, or for `unkept` the reason and the file's
        stamp.
        size: Size of a file in bytes.
    """

    kind: NodeKind
    mode: int = 0
    content: str = ""
    size: int = 0

    @property
    def why_unkept(self) -> str:
        """Reason why the content is not stored."""
        return self.content.partition(";")[0]

    def has_same_content(self, other: Node | None) -> bool:
        """Return whether replacing one by the other would lose nothing.

        Modes are ignored, because not every file system can set them. Folders are always the same: what they
        hold is compared entry by entry.
        """
        if other is None or self.kind != other.kind:
            return False
        return self.kind == "folder" or self.content == other.content


TreePath = tuple[str, ...]
"""Path components from the root of a tree. Bytes that are not UTF-8 are surrogates, as in `os.fsdecode`."""

NodeChange = tuple[Node | None, Node | None]
"""Node before and after; None if there is none."""


class ContentStore(Protocol):
    """Storage of folder listings; see `Store`."""

    def put(self, data: bytes) -> str:
        """Store a content. Return its digest."""

    def get(self, digest: str) -> bytes:
        """Return a content."""


def encode_folder(nodes: Mapping[str, Node]) -> bytes:
    """Return the listing of a folder; equal for equal nodes in any order."""
    parts = []
    for name, node in sorted(nodes.items()):
        parts.append(b"%s %o %d " % (_LETTERS[node.kind], node.mode, node.size) + os.fsencode(node.content))
        parts.append(os.fsencode(name))
    return b"\0".join(parts)


def decode_folder(data: bytes) -> dict[str, Node]:
    """Return the nodes of a listing that `encode_folder` returned."""
    nodes: dict[str, Node] = {}
    parts = data.split(b"\0") if data else []
    for header, name in zip(parts[::2], parts[1::2], strict=True):
        letter, mode, size, content = header.split(b" ", 3)
        nodes[os.fsdecode(name)] = Node(_KINDS[letter], int(mode, 8), os.fsdecode(content), int(size))
    return nodes


class TreeReader:
    """Reads trees from a store; caches every folder that it has read."""

    def __init__(self, store: ContentStore) -> None:
        self._store = store
        self._folders: dict[str, dict[str, Node]] = {}

    def of(self, node: Node | None) -> Mapping[str, Node]:
        """Return the entries of a folder; none for anything else."""
        if node is None or node.kind != "folder":
            return {}
        if node.content not in self._folders:
            self._folders[node.content] = decode_folder(self._store.get(node.content))
        return self._folders[node.content]

    def lookup(self, root: str, path: TreePath) -> Node | None:
        """Return the node at `path` in a tree, or None."""
        node: Node | None = Node("folder", content=root)
        for name in path:
            node = self.of(node).get(name)
        return node

    def differences(self, before: str, after: str) -> dict[TreePath, NodeChange]:
        """Return every path at which two trees differ, folders before their entries.

        A folder in both trees is included only if its mode differs.
        """
        found: dict[TreePath, NodeChange] = {}
        if before != after:
            self._compare((), Node("folder", content=before), Node("folder", content=after), found)
        return found

    def _compare(
        self, path: TreePath, before: Node | None, after: Node | None, found: dict[TreePath, NodeChange]
    ) -> None:
        if path and not _is_same_folder(before, after):
            found[path] = before, after
        left, right = self.of(before), self.of(after)
        for name in sorted({*left, *right}):
            if left.get(name) != right.get(name):
                self._compare((*path, name), left.get(name), right.get(name), found)


def _is_same_folder(before: Node | None, after: Node | None) -> bool:
    if before is None or after is None:
        return False
    return before.kind == after.kind == "folder" and before.mode == after.mode


def reachable_digests(store: ContentStore, roots: Iterable[str]) -> set[str]:
    """Return the digests of all contents that these trees need."""
    found: set[str] = set()
    todo = list(roots)
    while todo:
        digest = todo.pop()
        if digest in found:
            continue
        found.add(digest)
        for node in decode_folder(store.get(digest)).values():
            if node.kind == "folder":
                todo.append(node.content)
            elif node.kind == "file":
                found.add(node.content)
    return found
