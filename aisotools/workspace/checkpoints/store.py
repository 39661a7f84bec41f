"""Where checkpoints are kept: contents by their digest, and the chain of what was done, journal first.

The folder is private and lies outside every workspace. A content is written under a temporary name and
renamed, so that a name always means the whole content; a record of the chain is one line, and a line that a
crash tore is dropped.

Trees of files as values, by digest: a folder's content is the list of what it holds.

Equal folders have equal digests however deep they are, so two states are compared without looking into what
did not change, and an unchanged state costs nothing to keep.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from pydantic_core import from_json, to_json

from aisotools.core.exceptions import WorkspaceError

_CHUNK_BYTES = 1 << 20
_OWN = os.O_NOFOLLOW | os.O_CLOEXEC


def digest_of(data: bytes) -> str:
    """The name of a content."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


@dataclass(frozen=True, slots=True)
class Copied:
    """What came of storing an open file.

    Attributes:
        digest: Its content's name.
        size: How many bytes were read.
    """

    digest: str
    size: int


class Store:
    """Contents and the chain of one workspace. One process uses it at a time; see `workspace.lock`."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, made if missing.

        Raises:
            WorkspaceError: If it cannot be used.
        """
        self.folder = folder
        self._lock = threading.Lock()
        self._numbers = 0
        try:
            for needed in (folder, folder / "objects"):
                needed.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._objects = os.open(folder / "objects", os.O_RDONLY | os.O_DIRECTORY | _OWN)
            with os.scandir(self._objects) as entries:
                sizes = {one.name: one.stat(follow_symlinks=False).st_size for one in entries}
            for name in [name for name in sizes if name.startswith("new-")]:  # a crash left them
                os.unlink(name, dir_fd=self._objects)
                del sizes[name]
            self._sizes = sizes
            self._chain = os.open(folder / "chain", os.O_WRONLY | os.O_CREAT | os.O_APPEND | _OWN, 0o600)
        except OSError as error:
            raise WorkspaceError(
                f"Checkpoints cannot be kept in {str(folder)!r}: {error.strerror}."
            ) from error

    def __repr__(self) -> str:
        return f"<Store {self.folder.name}: {len(self._sizes)} contents, {self.size:,} bytes>"

    @property
    def size(self) -> int:
        """Bytes of all contents."""
        return sum(self._sizes.values())

    def close(self) -> None:
        """Let go of the folder; again does nothing."""
        if self._objects >= 0:
            os.close(self._objects)
            os.close(self._chain)
            self._objects = self._chain = -1

    # ---- contents

    def __contains__(self, digest: str) -> bool:
        return digest in self._sizes

    def put(self, data: bytes) -> str:
        """Keep a content and return its name."""
        digest = digest_of(data)
        if digest not in self._sizes:
            self._write_new(digest, [data])
        return digest

    def put_file(self, file: int, *, max_bytes: int) -> Copied | None:
        """Keep what an open file holds; None if it is more than `max_bytes`."""
        data = os.read(file, min(_CHUNK_BYTES, max_bytes + 1))
        if len(data) < _CHUNK_BYTES:
            rest = b"".join(_chunks(file, max_bytes + 1 - len(data)))  # nothing, unless it is growing
            data += rest
            return Copied(self.put(data), len(data)) if len(data) <= max_bytes else None
        return self._put_large(file, data, max_bytes)

    def _put_large(self, file: int, first: bytes, max_bytes: int) -> Copied | None:
        hashed, size = hashlib.blake2b(first, digest_size=32), len(first)
        name, writing = self._new()
        try:
            try:
                _write_all(writing, first)
                for chunk in _chunks(file, max_bytes + 1 - size):
                    hashed.update(chunk)
                    size += len(chunk)
                    _write_all(writing, chunk)
            finally:
                os.close(writing)
            if size > max_bytes:
                os.unlink(name, dir_fd=self._objects)
                return None
            self._settle(name, hashed.hexdigest(), size)
        except OSError as error:
            self._give_up(name, error)
        return Copied(hashed.hexdigest(), size)

    def get(self, digest: str) -> bytes:
        """A kept content.

        Raises:
            WorkspaceError: If it is not there any more, or damaged.
        """
        data = b"".join(self.chunks(digest))
        if digest_of(data) != digest:
            raise WorkspaceError(f"The checkpoint content {digest[:12]} is damaged; it is not used.")
        return data

    def copy(self, digest: str, file: int) -> None:
        """Write a kept content to an open file.

        Raises:
            WorkspaceError: If it is not there any more, or damaged; the file may then hold some of it.
        """
        hashed = hashlib.blake2b(digest_size=32)
        for chunk in self.chunks(digest):
            hashed.update(chunk)
            _write_all(file, chunk)
        if hashed.hexdigest() != digest:
            raise WorkspaceError(f"The checkpoint content {digest[:12]} is damaged; it is not used.")

    def chunks(self, digest: str) -> Iterator[bytes]:
        """A kept content in pieces, unchecked.

        Raises:
            WorkspaceError: If it is not there any more.
        """
        try:
            file = os.open(digest, os.O_RDONLY | _OWN, dir_fd=self._objects)
        except OSError as error:
            raise WorkspaceError(f"The checkpoint content {digest[:12]} is gone: {error.strerror}.") from None
        try:
            yield from _chunks(file, self._sizes.get(digest, 0) + 1)
        finally:
            os.close(file)

    def keep_only(self, digests: Iterable[str]) -> None:
        """Drop every other content."""
        kept = set(digests)
        with self._lock:
            for name in [name for name in self._sizes if name not in kept]:
                os.unlink(name, dir_fd=self._objects)
                del self._sizes[name]

    def _write_new(self, digest: str, parts: Iterable[bytes]) -> None:
        name, writing = self._new()
        size = 0
        try:
            try:
                for part in parts:
                    _write_all(writing, part)
                    size += len(part)
            finally:
                os.close(writing)
            self._settle(name, digest, size)
        except OSError as error:
            self._give_up(name, error)

    def _new(self) -> tuple[str, int]:
        with self._lock:
            self._numbers += 1
            name = f"new-{self._numbers}"
        try:
            return name, os.open(
                name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OWN, 0o600, dir_fd=self._objects
            )
        except OSError as error:
            raise self._failed(error) from error

    def _settle(self, name: str, digest: str, size: int) -> None:
        os.rename(name, digest, src_dir_fd=self._objects, dst_dir_fd=self._objects)
        self._sizes[digest] = size

    def _give_up(self, name: str, error: OSError) -> None:
        try:
            os.unlink(name, dir_fd=self._objects)
        except FileNotFoundError:
            raise self._failed(error) from error
        raise self._failed(error) from error

    def _failed(self, error: OSError) -> WorkspaceError:
        told = f"The checkpoint cannot be kept in {str(self.folder)!r}: {error.strerror}."
        return WorkspaceError(f"{told} Make room there, or set XDG_STATE_HOME to another disk.")

    # ---- the chain

    def records(self) -> list[dict[str, Any]]:
        """What was recorded, in order, up to the first line that is damaged."""
        found = []
        for line in (self.folder / "chain").read_bytes().split(b"\n")[:-1]:
            try:
                record = from_json(line)
            except ValueError:
                break
            if not isinstance(record, dict):
                break
            found.append(record)
        return found

    def record(self, **fields: Any) -> None:
        """Add one line to the chain.

        Raises:
            WorkspaceError: If it cannot be written; then nothing may be done that it should have told of.
        """
        line = to_json(fields) + b"\n"
        try:
            if os.write(self._chain, line) != len(line):
                raise OSError(28, os.strerror(28))
        except OSError as error:
            raise self._failed(error) from error

    def rewrite(self, records: Iterable[dict[str, Any]]) -> None:
        """Replace the chain at once; a torn last line goes with it."""
        new = self.folder / "chain.new"
        try:
            new.write_bytes(b"".join(to_json(one) + b"\n" for one in records))
            new.chmod(0o600)
            new.replace(self.folder / "chain")
            chain = os.open(self.folder / "chain", os.O_WRONLY | os.O_APPEND | _OWN)
        except OSError as error:
            raise self._failed(error) from error
        os.close(self._chain)
        self._chain = chain


def _chunks(file: int, left: int) -> Iterator[bytes]:
    """What an open file still holds, at most `left` bytes."""
    while left > 0 and (chunk := os.read(file, min(_CHUNK_BYTES, left))):
        left -= len(chunk)
        yield chunk


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


NodeKind = Literal["file", "folder", "link", "fifo", "other", "unkept"]
"""What a tree may hold: `other` is a socket or a device, `unkept` is there but its content is not kept."""

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
    """One thing in a tree.

    Attributes:
        kind: What it is.
        mode: Its permission bits; 0 for what has none of its own.
        content: A file's or folder's digest, a link's text, or of what is not kept why and when it changed.
        size: A file's size in bytes.
    """

    kind: NodeKind
    mode: int = 0
    content: str = ""
    size: int = 0

    @property
    def why_unkept(self) -> str:
        """Why the content of something is not kept, in words."""
        return self.content.partition(";")[0]

    def like(self, other: Node | None) -> bool:
        """Whether both are the same as far as anything can be lost; modes cannot be set everywhere."""
        if other is None or self.kind != other.kind:
            return False
        return self.kind == "folder" or self.content == other.content


TreePath = tuple[str, ...]
"""The names of a way down from the root; bytes that are no UTF-8 are surrogates, as `os.fsdecode` gives."""

NodeChange = tuple[Node | None, Node | None]
"""What was there before and after; None for nothing."""


class Contents(Protocol):
    """Where the lists of folders are kept."""

    def put(self, data: bytes) -> str:
        """Keep a content and return its digest."""

    def get(self, digest: str) -> bytes:
        """A kept content."""


def encode(nodes: Mapping[str, Node]) -> bytes:
    """The list of a folder, the same for the same nodes."""
    parts = []
    for name, node in sorted(nodes.items()):
        parts.append(b"%s %o %d " % (_LETTERS[node.kind], node.mode, node.size) + os.fsencode(node.content))
        parts.append(os.fsencode(name))
    return b"\0".join(parts)


def decode(data: bytes) -> dict[str, Node]:
    """The nodes that `encode` wrote."""
    nodes: dict[str, Node] = {}
    parts = data.split(b"\0") if data else []
    for header, name in zip(parts[::2], parts[1::2], strict=True):
        letter, mode, size, content = header.split(b" ", 3)
        nodes[os.fsdecode(name)] = Node(_KINDS[letter], int(mode, 8), os.fsdecode(content), int(size))
    return nodes


class TreeReader:
    """Reads trees, each folder once."""

    def __init__(self, store: Contents) -> None:
        """Read from `store`."""
        self._store = store
        self._read: dict[str, dict[str, Node]] = {}

    def of(self, node: Node | None) -> Mapping[str, Node]:
        """What a folder holds; nothing for anything else."""
        if node is None or node.kind != "folder":
            return {}
        if node.content not in self._read:
            self._read[node.content] = decode(self._store.get(node.content))
        return self._read[node.content]

    def lookup(self, root: str, path: TreePath) -> Node | None:
        """What a tree has at a path."""
        node: Node | None = Node("folder", content=root)
        for name in path:
            node = self.of(node).get(name)
        return node

    def differences(self, before: str, after: str) -> dict[TreePath, NodeChange]:
        """Every path at which two trees differ, folders before what they hold.

        A folder that is in both is told only if its mode differs.
        """
        found: dict[TreePath, NodeChange] = {}
        if before != after:
            self._compare((), Node("folder", content=before), Node("folder", content=after), found)
        return found

    def _compare(
        self, path: TreePath, before: Node | None, after: Node | None, found: dict[TreePath, NodeChange]
    ) -> None:
        both = before is not None and after is not None and before.kind == after.kind == "folder"
        if path and not (both and before and after and before.mode == after.mode):
            found[path] = before, after
        left, right = self.of(before), self.of(after)
        for name in sorted({*left, *right}):
            if left.get(name) != right.get(name):
                self._compare((*path, name), left.get(name), right.get(name), found)


def digests(store: Contents, roots: Iterable[str]) -> set[str]:
    """Every content that any of these trees needs."""
    found: set[str] = set()
    todo = list(roots)
    while todo:
        digest = todo.pop()
        if digest in found:
            continue
        found.add(digest)
        for node in decode(store.get(digest)).values():
            if node.kind == "folder":
                todo.append(node.content)
            elif node.kind == "file":
                found.add(node.content)
    return found
