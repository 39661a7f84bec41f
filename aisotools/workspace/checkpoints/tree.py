"""Trees of a workspace: entries of folders as nodes, their listings, and what a scanner remembers of them.

A tree is the digest of a folder's listing, which holds the digests of what the folder contains, so equal
trees have equal digests however deep they are.

What a scanner remembers of a folder from one walk to the next takes little memory. A workspace may hold a
hundred thousand entries, and its author is hostile. So an entry is one packed record, of 112 bytes for a
file, and not a tree of objects. A link's target may have 4 KiB: a long one is stored like a file, and the
record holds its digest. A state that takes more than its scanner may keep is put away in a file without a
name between two walks. The file lies in the private folder of the store, and ends with the process.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import struct
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from sys import getsizeof
from typing import BinaryIO, Literal, NamedTuple, Protocol

from aisotools.core.concurrency import sorted_in_runs
from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.store import content_digest
from aisotools.workspace.dirfd import DIRECTORY_FLAGS

NodeKind = Literal["file", "folder", "link", "long_link", "fifo", "other", "unkept"]
"""Kind of a tree node: `long_link` is a link whose target is stored like the content of a file, `other` is a
socket or device, `unkept` exists without its content being stored."""

MAX_INLINE_TARGET = 128
"""Bytes of a link's target above which it is a `long_link`."""

LETTERS: Mapping[NodeKind, bytes] = {
    "file": b"f",
    "folder": b"d",
    "link": b"l",
    "long_link": b"L",
    "fifo": b"p",
    "other": b"o",
    "unkept": b"u",
}
_UNREADABLE = "it cannot be read: "
_KINDS = {letter: kind for kind, letter in LETTERS.items()}


class Node(NamedTuple):
    """An entry of a folder in a tree.

    Attributes:
        kind: Kind of the entry.
        mode: Permission bits; 0 for links and special files.
        content: Digest of a file, a folder or a long target, target of a link, or for `unkept` the reason,
        the file's stamp, and for a folder that was looked through all the same what `digest_below` returned.
        size: Size of a file or a long target in bytes.
    """

    kind: NodeKind
    mode: int = 0
    content: str = ""
    size: int = 0

    @property
    def why_unkept(self) -> str:
        """Reason why the content is not stored."""
        return self.content.partition(";")[0]

    @property
    def is_unreadable(self) -> bool:
        """True for an `unkept` entry that this process could not read; see `unreadable_node`."""
        return self.kind == "unkept" and self.content.startswith(_UNREADABLE)

    @property
    def is_sealed(self) -> bool:
        """True for an `unkept` folder of which any change shows, at whatever depth below it."""
        return self.kind == "unkept" and self.content.count(";") > 1

    @property
    def is_link(self) -> bool:
        """True for a link with a target of any length."""
        return self.kind in {"link", "long_link"}

    def has_same_content(self, other: Node | None) -> bool:
        """Return whether replacing one by the other would lose nothing.

        Modes are ignored, because not every file system can set them. Folders are always the same: what they
        hold is compared entry by entry.
        """
        if other is None:
            return False
        if self.kind != other.kind:
            # Trees of earlier versions hold long targets themselves.
            return self.is_link and other.is_link and _target_digest(self) == _target_digest(other)
        return self.kind == "folder" or self.content == other.content


def _target_digest(link: Node) -> str:
    return link.content if link.kind == "long_link" else content_digest(os.fsencode(link.content))


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


class SizedStore(ContentStore, Protocol):
    """Storage that tells the size of a content without reading it."""

    def size_of(self, digest: str) -> int:
        """Return the size of a content in bytes; -1 if it is not there."""


def link_node(target: str, store: ContentStore) -> Node:
    """Return the node of a link; store its target if that is long.

    Raises:
        WorkspaceError: If it cannot be stored.
    """
    data = os.fsencode(target)
    if len(data) <= MAX_INLINE_TARGET:
        return Node("link", content=target)
    return Node("long_link", content=store.put(data), size=len(data))


def link_target(link: Node, store: ContentStore) -> str:
    """Return the target of a link, whatever its length.

    Raises:
        WorkspaceError: If it is no longer stored.
    """
    return os.fsdecode(store.get(link.content)) if link.kind == "long_link" else link.content


def encode_folder(nodes: Mapping[str, Node]) -> bytes:
    """Return the listing of a folder; equal for equal nodes in any order."""
    parts = []
    for name, node in sorted(nodes.items()):
        parts.append(b"%s %o %d " % (LETTERS[node.kind], node.mode, node.size) + os.fsencode(node.content))
        parts.append(os.fsencode(name))
    return b"\0".join(parts)


def decode_folder(
    data: bytes, similar: Mapping[str, Node] | None = None, names: dict[str, str] | None = None
) -> dict[str, Node]:
    """Return the nodes of a listing that `encode_folder` returned.

    Two states of a large folder take hardly more memory than one when they share what is equal.

    Args:
        data: The listing.
        similar: Where it has an equal node under the same name, that one is returned.
        names: Names to share; those of this listing are added.
    """
    similar = {} if similar is None else similar
    names = {} if names is None else names
    nodes: dict[str, Node] = {}
    node, last_header, at = Node("file"), b"", 0
    # Piece by piece: all pieces of a large listing at once would take four times its size.
    while at < len(data):
        middle = data.find(b"\0", at)
        if middle < 0:
            raise ValueError(f"a listing ends in the middle of an entry, at byte {at}")
        end = data.find(b"\0", middle + 1)
        end = len(data) if end < 0 else end
        header, name = data[at:middle], os.fsdecode(data[middle + 1 : end])
        name = names.setdefault(name, name)
        if header != last_header:
            letter, mode, size, content = header.split(b" ", 3)
            node, last_header = Node(_KINDS[letter], int(mode, 8), os.fsdecode(content), int(size)), header
        known = similar.get(name)
        nodes[name] = known if known == node else node
        at = end + 1
    return nodes


class TreeReader:
    """Reads trees from a store; caches every folder that it has read."""

    def __init__(self, store: ContentStore) -> None:
        self._store = store
        self._folders: dict[str, dict[str, Node]] = {}
        self._largest: dict[str, Node] = {}
        self._names: dict[str, str] = {}

    def of(self, node: Node | None) -> Mapping[str, Node]:
        """Return the entries of a folder; none for anything else."""
        if node is None or node.kind != "folder":
            return {}
        if node.content not in self._folders:
            nodes = decode_folder(self._store.get(node.content), self._largest, self._names)
            self._folders[node.content] = nodes
            if len(nodes) > len(self._largest):
                self._largest = nodes
        return self._folders[node.content]

    def lookup(self, root: str, path: TreePath) -> Node | None:
        """Return the node at `path` in a tree, or None."""
        node: Node | None = Node("folder", content=root)
        for name in path:
            node = self.of(node).get(name)
        return node

    def differences(self, before: str, after: str) -> dict[TreePath, NodeChange]:
        """Return every path at which two trees differ, in order, so folders before their entries.

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
        try:
            left, right = self.of(before), self.of(after)
        except WorkspaceError as error:
            raise WorkspaceError(
                f"What {'/'.join(path) or 'the workspace'} held is not known: {error}"
            ) from None
        differing = [name for name, node in left.items() if node != right.get(name)]
        differing += [name for name in right if name not in left]
        for name in sorted_in_runs(differing):
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
            elif node.kind in {"file", "long_link"}:
                found.add(node.content)
    return found


def is_whole(store: SizedStore, root: str) -> bool:
    """Return whether all that a tree needs is stored: its listings undamaged, the rest of the right size."""
    known: set[str] = set()
    todo = [root]
    while todo:
        digest = todo.pop()
        if digest in known:
            continue
        known.add(digest)
        try:
            nodes = decode_folder(store.get(digest))
        except WorkspaceError:
            return False
        for node in nodes.values():
            if node.kind == "folder":
                todo.append(node.content)
            elif node.kind in {"file", "long_link"} and store.size_of(node.content) != node.size:
                return False
    return True


# ---- in a folder


def open_below(root: int, path: TreePath) -> int:
    """Return a descriptor of the folder at `path` below an open directory, following no link.

    Raises:
        OSError: If there is no folder at the path.
    """
    folder = os.open(".", DIRECTORY_FLAGS, dir_fd=root)
    for name in path:
        try:
            inner = os.open(name, DIRECTORY_FLAGS, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def digest_below(root: int, device: int, most_entries: int) -> tuple[str, int]:
    """Return a digest of names, modes and stamps of all that an open folder holds, and how many those are.

    Hostile code can nest folders deeper than any path may be long, and than there are descriptors. One folder
    is open at a time. Race: a folder may be moved while the walk is in it, and `..` then leads elsewhere,
    also out of the workspace; so what it leads to is compared with where the walk came from. Nothing is
    written, and no link is followed.

    Args:
        root: Descriptor of the folder.
        device: The file system that it must not leave.
        most_entries: How many entries are looked at.

    Returns:
        An empty digest if not everything could be looked at: there is more, or it changed meanwhile.
    """
    digest, count = hashlib.sha256(), 0
    stack: list[tuple[tuple[int, int], Iterator[str]]] = []
    folder = os.open(".", DIRECTORY_FLAGS, dir_fd=root)
    try:
        while True:
            subfolders: list[str] = []
            for name in sorted(os.listdir(folder)):  # noqa: PTH208 - a descriptor, no path
                count += 1
                if count > most_entries:
                    return "", count
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                digest.update(os.fsencode(f"{name}\0{status.st_mode}:{_stamp_text(status)}\0"))
                if stat.S_ISDIR(status.st_mode):
                    subfolders.append(name)
            stack.append((_identity(folder), iter(subfolders)))
            while stack and (below := next(stack[-1][1], None)) is None:
                digest.update(b"/")
                stack.pop()
                if stack:
                    folder = _move_to(folder, "..")
                    if _identity(folder) != stack[-1][0]:
                        return "", count
            if not stack:
                return digest.hexdigest(), count
            assert below is not None
            folder = _move_to(folder, below)
            if _identity(folder)[0] != device:
                return "", count
    except OSError:  # it cannot be read, or was removed since it was listed
        return "", count
    finally:
        os.close(folder)


def _identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _move_to(folder: int, name: str) -> int:
    """Return the folder `name` of an open one, opened; close that one."""
    there = os.open(name, DIRECTORY_FLAGS, dir_fd=folder)
    os.close(folder)
    return there


# ---- what a scanner remembers

FileStamp = tuple[int, int, int, int]
"""Size, modification time, inode and change time of a file."""


def _stamp_text(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}:{status.st_ctime_ns}"


def unreadable_node(error: OSError, status: os.stat_result) -> Node:
    """Return a node for a path that cannot be read."""
    return unkept_node(f"{_UNREADABLE}{error.strerror}", status)


def unkept_node(reason: str, status: os.stat_result, digest: str = "") -> Node:
    """Return a node for a path whose content is not stored; it changes when the file does.

    Args:
        reason: Why it is not stored.
        status: Its status.
        digest: What `digest_below` returned for a folder that was looked through.
    """
    seal = f";{digest}" if digest else ""
    return Node("unkept", status.st_mode & 0o777, f"{reason};{_stamp_text(status)}{seal}")


pack_stamp = struct.Struct("<qqQq").pack
"""Return a stamp as a record begins with it. `struct.error`: a number has more than 64 bits."""

ALWAYS_READ = b"\xff" * 32
"""The stamp of an entry that every walk reads again. No file has it: its size would be negative."""

_STAMP_BYTES = 32
# After the stamp: letter of the kind, mode, size. The rest is the content: a digest in bytes, or a text.
_HEAD = struct.Struct("<cHQ")
_CONTENT_AT = _STAMP_BYTES + _HEAD.size
_WITH_DIGEST = {LETTERS["file"], LETTERS["folder"], LETTERS["long_link"]}
_FILE = LETTERS["file"][0]
_UNKEPT = LETTERS["unkept"][0]
# What the allocator adds to a name and to a record on average, both together.
_ROUNDING_BYTES = 16

# Of a folder in a file: entries, bytes of all names, bytes of its digest, subfolders; file_bytes, unkept,
# changed.
_FOLDER_HEAD = struct.Struct("<IQBIQI?")


class FolderState:
    """One folder as the last walk found it.

    Attributes:
        parent: State of the folder around it; None at the root.
        records: Entries by name. Each begins with its stamp, or with `ALWAYS_READ`.
        folders: States of the subfolders.
        digest: Digest of the listing, valid unless `changed`.
        changed: True if the listing has to be stored again. Then all parents are changed, too.
        file_bytes: Size of the files directly in the folder.
        unkept: Number of entries directly in the folder whose content is not stored.
    """

    __slots__ = ("changed", "digest", "entry_bytes", "file_bytes", "folders", "parent", "records", "unkept")

    def __init__(self, parent: FolderState | None = None) -> None:
        self.parent = parent
        self.records: dict[str, bytes] = {}
        self.folders: dict[str, FolderState] = {}
        self.digest = ""
        self.changed = True
        self.file_bytes = 0
        self.unkept = 0
        self.entry_bytes = 0

    def node(self, name: str) -> Node:
        """Return an entry as a node."""
        record = self.records[name]
        letter, mode, size = _HEAD.unpack_from(record, _STAMP_BYTES)
        content, kind = record[_CONTENT_AT:], _KINDS[letter]
        return Node(kind, mode, content.hex() if letter in _WITH_DIGEST else os.fsdecode(content), size)

    def set(self, name: str, stamp: FileStamp | None, node: Node) -> None:
        """Add or replace an entry."""
        letter, head = LETTERS[node.kind], ALWAYS_READ
        if stamp is not None:
            # A time beyond the year 2262 has too many bits; such a file is read by every walk.
            with suppress(struct.error):
                head = pack_stamp(*stamp)
        content = bytes.fromhex(node.content) if letter in _WITH_DIGEST else os.fsencode(node.content)
        record = head + _HEAD.pack(letter, node.mode, node.size) + content
        known = self.records.get(name)
        if known is not None:
            self._count(name, known, -1)
        self.records[name] = record
        self._count(name, record, 1)
        if node.kind != "folder":
            self.folders.pop(name, None)
        if known is None or known[_STAMP_BYTES:] != record[_STAMP_BYTES:]:
            self.mark_changed()

    def set_digest(self, name: str, digest: str) -> None:
        """Note the digest of a subfolder whose listing was stored."""
        record = self.records[name][:_CONTENT_AT] + bytes.fromhex(digest)
        self.entry_bytes += len(record) - len(self.records[name])
        self.records[name] = record

    def drop(self, name: str) -> None:
        """Remove an entry, if there is one."""
        known = self.records.pop(name, None)
        if known is not None:
            self._count(name, known, -1)
            self.folders.pop(name, None)
            self.mark_changed()

    def _count(self, name: str, record: bytes, sign: int) -> None:
        self.entry_bytes += sign * (getsizeof(name) + getsizeof(record) + _ROUNDING_BYTES)
        letter = record[_STAMP_BYTES]
        if letter == _FILE:
            self.file_bytes += sign * int.from_bytes(record[_CONTENT_AT - 8 : _CONTENT_AT], "little")
        elif letter == _UNKEPT:
            self.unkept += sign

    def mark_changed(self) -> None:
        """Mark this folder and all parents to be stored again."""
        state: FolderState | None = self
        while state is not None and not state.changed:
            state.changed = True
            state = state.parent

    def uncovered(self, path: TreePath) -> Iterator[tuple[TreePath, str]]:
        """Yield the paths at any depth whose content is not stored, each with the reason."""
        if self.unkept:
            for name, record in self.records.items():
                if record[_STAMP_BYTES] == _UNKEPT:
                    yield (*path, name), self.node(name).why_unkept
        for name, folder in self.folders.items():
            yield from folder.uncovered((*path, name))

    def listing(self) -> bytes:
        """Return what `encode_folder` would, in less memory."""
        # Large ones are never copied: not while they grow, and not in the end.
        listing = io.BytesIO()
        for name in sorted_in_runs(self.records):
            record = self.records[name]
            letter, mode, size = _HEAD.unpack_from(record, _STAMP_BYTES)
            content = record[_CONTENT_AT:]
            if letter in _WITH_DIGEST:
                content = content.hex().encode()
            gap = b"\0" if listing.tell() else b""
            listing.write(b"%s%s %o %d %s\0%s" % (gap, letter, mode, size, content, os.fsencode(name)))
        return listing.getvalue()

    def clear(self) -> None:
        """Let go of everything at once. Folders refer to each other, so they would wait for the collector."""
        todo = [self]
        while todo:
            state = todo.pop()
            todo += state.folders.values()
            state.folders, state.records, state.parent = {}, {}, None

    def memory_bytes(self) -> int:
        """Return the memory that this folder and all below it take."""
        total = 0
        todo = [self]
        while todo:
            state = todo.pop()
            todo += state.folders.values()
            total += getsizeof(state) + getsizeof(state.records) + getsizeof(state.folders)
            total += getsizeof(state.digest) + state.entry_bytes
        return total


# ---- in a file


def put_away(state: FolderState, folder: Path) -> BinaryIO:
    """Write a state to a new file without a name in `folder`, at whose beginning it is read again.

    Raises:
        OSError: If it cannot be written.
    """
    file = tempfile.TemporaryFile(prefix="state-", dir=folder)  # noqa: SIM115 - open until the next walk
    try:
        _write(state, file)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def _write(state: FolderState, file: BinaryIO) -> None:
    names = b"\0".join(map(os.fsencode, state.records))
    digest = state.digest.encode()
    counts = len(state.records), len(names), len(digest), len(state.folders)
    file.write(_FOLDER_HEAD.pack(*counts, state.file_bytes, state.unkept, state.changed) + digest)
    file.write(names)
    file.write(array("I", map(len, state.records.values())).tobytes())
    file.writelines(state.records.values())
    for name, inner in state.folders.items():
        encoded = os.fsencode(name)
        file.write(struct.pack("<H", len(encoded)) + encoded)
        _write(inner, file)


def take_back(file: BinaryIO, parent: FolderState | None = None) -> FolderState:
    """Return the state that `put_away` wrote; nothing in it was lost.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is not whole.
    """
    state = FolderState(parent)
    head = _FOLDER_HEAD.unpack(_read(file, _FOLDER_HEAD.size))
    count, name_bytes, digest_bytes, folders, state.file_bytes, state.unkept, state.changed = head
    state.digest = _read(file, digest_bytes).decode()
    # Decoded one by one: a single character beyond the first 65,536 makes a text four times as large.
    names = _split(_read(file, name_bytes)) if count else iter(())
    lengths = array("I")
    lengths.frombytes(_read(file, count * lengths.itemsize))
    for encoded, length in zip(names, lengths, strict=True):
        name, record = os.fsdecode(encoded), _read(file, length)
        state.records[name] = record
        state.entry_bytes += getsizeof(name) + getsizeof(record) + _ROUNDING_BYTES
    for _ in range(folders):
        (length,) = struct.unpack("<H", _read(file, 2))
        name = os.fsdecode(_read(file, length))
        state.folders[name] = take_back(file, state)
    return state


def _split(data: bytes) -> Iterator[bytes]:
    """Yield the pieces of `data` between zero bytes. All at once would hold up other threads."""
    at = 0
    while (end := data.find(b"\0", at)) >= 0:
        yield data[at:end]
        at = end + 1
    yield data[at:]


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise ValueError(f"the file ends {size - len(data)} bytes too early")
    return data
