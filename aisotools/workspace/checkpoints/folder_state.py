"""What a scanner remembers of folders from one walk to the next: little memory for each entry.

A workspace may hold a hundred thousand entries, and its author is hostile. So an entry is one packed record,
of 112 bytes for a file, and not a tree of objects. A link's target may have 4 KiB: a long one is stored like
a file, and the record holds its digest. A state that takes more than its scanner may keep is put away in a
file without a name between two walks. The file lies in the private folder of the store, and ends with the
process.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from sys import getsizeof
from typing import BinaryIO

from aisotools.core.concurrency import sorted_in_runs
from aisotools.workspace.checkpoints.tree import KINDS, LETTERS, Node, TreePath, encode_node

FileStamp = tuple[int, int, int, int]
"""Size, modification time, inode and change time of a file."""


pack_stamp = struct.Struct("<qqQq").pack
"""Return a stamp as a record begins with it. `struct.error`: a number has more than 64 bits."""

ALWAYS_READ = b"\xff" * 32
"""The stamp of an entry that every walk reads again. No file has it: its size would be negative."""

_STAMP_BYTES = 32
# After the stamp: letter of the kind, mode and flags, size. Then what no flag says of the attributes, and the
# content: a digest in bytes, or a text.
_HEAD = struct.Struct("<cHQ")
_CONTENT_AT = _STAMP_BYTES + _HEAD.size
_WITH_DIGEST = {LETTERS[kind] for kind in ("file", "sparse", "folder", "long_link")}
_FILES = {LETTERS["file"][0], LETTERS["sparse"][0]}
_UNKEPT = LETTERS["unkept"][0]
_OTHER = LETTERS["other"][0]

_MODE = 0o7777
_TIME_IN_STAMP = 1 << 12
_OURS = 1 << 13  # it belongs to `_OWNER`
_MORE = 1 << 15  # there are further attributes, which begin with a byte that says which
_HAS_TIME = 1  # bits of that byte
_HAS_OWNER = 2
_HAS_XATTRS = 4
_HAS_LINK = 8
_OWNER = (os.getuid(), os.getgid())
_OWNER_TEXT = b",u%d:%d" % _OWNER
_TIME_BYTES = 12  # seconds have 64 bits
_DIGEST_BYTES = 32
_PAIR = struct.Struct("<QQ")
# Files that may have attributes that this process cannot set again.
_SET_IDS = stat.S_ISUID | stat.S_ISGID
# What the allocator adds to a name and to a record on average, both together.
_ROUNDING_BYTES = 16

# Of a folder in a file: entries, bytes of all names, bytes of its digest, subfolders; file_bytes, unkept,
# special, changed.
_FOLDER_HEAD = struct.Struct("<IQBIQII?")


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
        special: Number of those with attributes that perhaps cannot be set again, and of sockets and devices.
    """

    __slots__ = (
        *("changed", "digest", "entry_bytes", "file_bytes", "folders", "parent", "records"),
        *("special", "unkept"),
    )

    def __init__(self, parent: FolderState | None = None) -> None:
        self.parent = parent
        self.records: dict[str, bytes] = {}
        self.folders: dict[str, FolderState] = {}
        self.digest = ""
        self.changed = True
        self.file_bytes = 0
        self.unkept = 0
        self.special = 0
        self.entry_bytes = 0

    def node(self, name: str) -> Node:
        """Return an entry as a node."""
        record = self.records[name]
        letter, bits, size = _HEAD.unpack_from(record, _STAMP_BYTES)
        mtime_ns, owner, xattrs, link, at = _unpack_attributes(record, bits)
        content, kind = record[at:], KINDS[letter]
        text = content.hex() if letter in _WITH_DIGEST else os.fsdecode(content)
        return Node(kind, bits & _MODE, text, size, mtime_ns, owner, xattrs, link)

    def set(self, name: str, stamp: FileStamp | None, node: Node) -> None:
        """Add or replace an entry."""
        letter, head = LETTERS[node.kind], ALWAYS_READ
        if stamp is not None:
            # A time beyond the year 2262 has too many bits; such a file is read by every walk.
            with suppress(struct.error):
                head = pack_stamp(*stamp)
        content = bytes.fromhex(node.content) if letter in _WITH_DIGEST else os.fsencode(node.content)
        flags, attributes = _pack_attributes(node, head)
        record = head + _HEAD.pack(letter, node.mode | flags, node.size) + attributes + content
        known = self.records.get(name)
        is_same = known is not None and self.node(name) == node
        if known is not None:
            self._count(name, known, -1)
        self.records[name] = record
        self._count(name, record, 1)
        if node.kind != "folder":
            self.folders.pop(name, None)
        if not is_same:
            self.mark_changed()

    def set_digest(self, name: str, digest: str) -> None:
        """Note the digest of a subfolder whose listing was stored."""
        record = self.records[name]
        bits = _HEAD.unpack_from(record, _STAMP_BYTES)[1]
        record = record[: _unpack_attributes(record, bits)[-1]] + bytes.fromhex(digest)
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
        letter, bits, size = _HEAD.unpack_from(record, _STAMP_BYTES)
        if letter[0] in _FILES:
            self.file_bytes += sign * size
        elif letter[0] == _UNKEPT:
            self.unkept += sign
        if _is_special(record, letter[0], bits):
            self.special += sign

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

    def partial(self, path: TreePath) -> Iterator[tuple[TreePath, Node]]:
        """Yield the entries at any depth that perhaps cannot be made again, or not with all attributes."""
        if self.special:
            for name, record in self.records.items():
                letter, bits, _ = _HEAD.unpack_from(record, _STAMP_BYTES)
                if _is_special(record, letter[0], bits):
                    yield (*path, name), self.node(name)
        for name, folder in self.folders.items():
            yield from folder.partial((*path, name))

    def listing(self) -> bytes:
        """Return what `encode_folder` would, in less memory."""
        # Large ones are never copied: not while they grow, and not in the end.
        listing = io.BytesIO()
        for name in sorted_in_runs(self.records):
            record = self.records[name]
            letter, bits, size = _HEAD.unpack_from(record, _STAMP_BYTES)
            gap = b"\0" if listing.tell() else b""
            if bits & ~_MODE == _TIME_IN_STAMP | _OURS and letter in _WITH_DIGEST:
                # Hot path, without a node for each file: most are ours, and have no further attributes.
                time, content = _TIME.unpack_from(record, 8)[0], record[_CONTENT_AT:].hex().encode()
                mode = b"%o,m%d%s" % (bits & _MODE, time, _OWNER_TEXT)
                header = b"%s %s %d %s" % (letter, mode, size, content)
            else:
                header = encode_node(self.node(name))
            listing.write(b"%s%s\0%s" % (gap, header, os.fsencode(name)))
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


_TIME = struct.Struct("<q")


def _pack_attributes(node: Node, head: bytes) -> tuple[int, bytes]:
    """Return the flags beside a mode, and what they do not say of the attributes of a node."""
    if node.mtime_ns is None:
        return 0, b""
    flags = more = 0
    parts = b""
    if head != ALWAYS_READ and _TIME.unpack_from(head, 8)[0] == node.mtime_ns:
        flags |= _TIME_IN_STAMP
    else:
        more |= _HAS_TIME
        parts += node.mtime_ns.to_bytes(_TIME_BYTES, "little", signed=True)
    if node.owner == _OWNER:
        flags |= _OURS
    elif node.owner is not None:
        more |= _HAS_OWNER
        parts += _PAIR.pack(*node.owner)
    if node.xattrs:
        more |= _HAS_XATTRS
        parts += bytes.fromhex(node.xattrs)
    if node.link is not None:
        more |= _HAS_LINK
        parts += _PAIR.pack(*node.link)
    return (flags | _MORE, bytes([more]) + parts) if more else (flags, b"")


def _unpack_attributes(
    record: bytes, bits: int
) -> tuple[int | None, tuple[int, int] | None, str, tuple[int, int] | None, int]:
    """Return time, owner, extended attributes and link of a record, and where its content begins."""
    mtime_ns = _TIME.unpack_from(record, 8)[0] if bits & _TIME_IN_STAMP else None
    owner, xattrs, link, at = _OWNER if bits & _OURS else None, "", None, _CONTENT_AT
    if bits & _MORE:
        more, at = record[at], at + 1
        if more & _HAS_TIME:
            mtime_ns = int.from_bytes(record[at : at + _TIME_BYTES], "little", signed=True)
            at += _TIME_BYTES
        if more & _HAS_OWNER:
            owner = _PAIR.unpack_from(record, at)
            at += _PAIR.size
        if more & _HAS_XATTRS:
            xattrs = record[at : at + _DIGEST_BYTES].hex()
            at += _DIGEST_BYTES
        if more & _HAS_LINK:
            link = _PAIR.unpack_from(record, at)
            at += _PAIR.size
    return mtime_ns, owner, xattrs, link, at


def _is_special(record: bytes, letter: int, bits: int) -> bool:
    """Return whether an entry perhaps cannot be made again by this process, or not with all attributes."""
    if letter == _OTHER or (letter in _FILES and bits & _SET_IDS):
        return True
    if not bits & _MORE:
        return False
    more = record[_CONTENT_AT]
    return bool(more & (_HAS_XATTRS | _HAS_LINK)) or (bool(more & _HAS_OWNER) and _OWNER[0] != 0)


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
    sums = state.file_bytes, state.unkept, state.special
    file.write(_FOLDER_HEAD.pack(*counts, *sums, state.changed) + digest)
    file.write(names)
    file.write(array("I", map(len, state.records.values())).tobytes())
    file.write(b"".join(state.records.values()))
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
    count, name_bytes, digest_bytes, folders = head[:4]
    state.file_bytes, state.unkept, state.special, state.changed = head[4:]
    state.digest = _read(file, digest_bytes).decode()
    # Decoded one by one: a single character beyond the first 65,536 makes a text four times as large.
    names = _split(_read(file, name_bytes)) if count else iter(())
    lengths = array("I")
    lengths.frombytes(_read(file, count * lengths.itemsize))
    # At once: a thread that lets go of the interpreter's lock for a moment now and then, as reading does, has
    # the others wait anew each time before they may demand it. The event loop would wait for the last record.
    records, at = memoryview(_read(file, sum(lengths))), 0
    for encoded, length in zip(names, lengths, strict=True):
        name, record = os.fsdecode(encoded), bytes(records[at : at + length])
        at += length
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
