"""Whether two indexes of git differ only in what it remembers of the files' stamps.

Threat
    Any `git status`, such as that of a prompt or an extension of JupyterLab, writes the index of a repository
    anew. Taken for a change by somebody else, it would have an undo of a commit refused. Hostile code may
    write anything into an index, for instance to have a person's staging pass for such a refresh.
Mechanism
    Both are parsed as far as the format of versions 2, 3 and 4 is certain, with their checksums, and compared
    entry by entry: name, mode, object, flags and stage. Only the remembered stamps, and extensions that git
    can compute again, may differ. Whatever is in doubt counts as different.
Race window
    None: it is about two contents that are stored.
When it fails
    An index that is larger, split or of another format is a conflict, as every other file.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence

MAX_BYTES = 32 << 20
"""Size of an index above which it is not compared."""

_MAX_NAME = 4096
_HEADER_BYTES = 12
_BYTES_BEFORE_MODE = 24  # of an entry: its times, device and inode
_BYTES_AFTER_MODE = 12  # its user, group and size
_EXTENDED = 0x4000
_LINKED_COMMIT = 0o160000
_COMPUTED = frozenset({b"TREE", b"UNTR", b"FSMN", b"EOIE", b"IEOT"})
"""Extensions that git computes again: cached trees, untracked files, a file monitor's state, and offsets."""

_IndexEntry = tuple[bytes, bytes, int, int, bytes]
"""Mode, object, flags, further flags and name."""


def is_index(path: Sequence[str]) -> bool:
    """Return whether a path can be that of the index of a repository, a worktree or a submodule."""
    if ".git" not in path or path[-1] != "index":
        return False
    below = path[path.index(".git") + 1 :]
    return (
        len(below) == 1
        or (len(below) == 3 and below[0] == "worktrees")
        or (len(below) > 2 and below[0] == "modules")
    )


def is_refreshed(one: bytes, other: bytes) -> bool:
    """Return whether two indexes hold the same entries, whatever is remembered of the files' stamps."""
    if max(len(one), len(other)) > MAX_BYTES:
        return False
    try:
        hashes = _hash_of(one), _hash_of(other)
        if hashes[0] is not hashes[1]:
            return False
        first, second = _Index(one, hashes[0]().digest_size), _Index(other, hashes[1]().digest_size)
        if first.count != second.count:
            return False
        if any(a != b for a, b in itertools.zip_longest(first.entries(), second.entries())):
            return False
        return first.extensions() == second.extensions()
    except (ValueError, IndexError):
        return False


def list_objects(data: bytes) -> list[str]:
    """Return the names of the objects that an index keeps alive: all but commits of other repositories.

    Raises:
        ValueError: If it is larger than `MAX_BYTES`, or of a format that is not known.
        IndexError: If it ends in between.
    """
    if len(data) > MAX_BYTES:
        raise ValueError("it is too large")
    entries = _Index(data, _hash_of(data)().digest_size).entries()
    return [digest.hex() for mode, digest, *_ in entries if int.from_bytes(mode, "big") != _LINKED_COMMIT]


def _hash_of(data: bytes) -> Callable[..., hashlib._Hash]:
    """Return the function whose checksum ends an index.

    Raises:
        ValueError: If there is none.
    """
    for hash_function in (hashlib.sha1, hashlib.sha256):
        size = hash_function(usedforsecurity=False).digest_size
        if hash_function(data[:-size], usedforsecurity=False).digest() == data[-size:]:
            return hash_function
    raise ValueError("an index without its checksum")


class _Index:
    """An index that is read once, its entries first. All of it may raise `ValueError` and `IndexError`."""

    def __init__(self, data: bytes, hash_size: int) -> None:
        self._data, self._hash_size, self._end = data, hash_size, len(data) - hash_size
        self.version, self.count = self._number(4, 4), self._number(8, 4)
        if data[:4] != b"DIRC" or self.version not in {2, 3, 4}:
            raise ValueError("another format")
        self._at = _HEADER_BYTES

    def _number(self, at: int, size: int) -> int:
        if at + size > self._end:
            raise ValueError("it ends in between")
        return int.from_bytes(self._data[at : at + size], "big")

    def entries(self) -> Iterator[_IndexEntry]:
        """Yield all entries."""
        name = b""
        for _ in range(self.count):
            start = self._at
            mode_at = start + _BYTES_BEFORE_MODE
            object_at = mode_at + 4 + _BYTES_AFTER_MODE
            flags_at = object_at + self._hash_size
            flags, more, at = self._number(flags_at, 2), 0, flags_at + 2
            if flags & _EXTENDED:
                if self.version == 2:
                    raise ValueError("flags that are not known")
                more = self._number(at, 2)
                at += 2
            prefix = b""
            if self.version == 4:
                removed, at = self._varint(at)
                if removed > len(name):
                    raise ValueError("a name shorter than nothing")
                prefix = name[: len(name) - removed]
            stop = self._data.find(b"\0", at, min(at + _MAX_NAME, self._end))
            if stop < 0 or len(prefix) > _MAX_NAME:
                raise ValueError("a name without an end")
            name = prefix + self._data[at:stop]
            end = stop + 1
            if self.version != 4:
                end = start + (stop - start + 8) // 8 * 8
                if end > self._end or self._data[stop:end].strip(b"\0"):
                    raise ValueError("no padding")
            self._at = end
            mode, digest = self._data[mode_at : mode_at + 4], self._data[object_at:flags_at]
            yield mode, digest, flags, more, name

    def _varint(self, at: int) -> tuple[int, int]:
        """Return a number of variable length, and where it ends."""
        value = self._number(at, 1)
        number = value & 0x7F
        for following in range(at + 1, at + 4):
            if not value & 0x80:
                return number, following
            value = self._number(following, 1)
            number = (number + 1) << 7 | value & 0x7F
        raise ValueError("a number that is too large")

    def extensions(self) -> list[bytes]:
        """Return the extensions that git cannot compute again."""
        found = []
        while self._at < self._end:
            name, size = self._data[self._at : self._at + 4], self._number(self._at + 4, 4)
            end = self._at + 8 + size
            if end > self._end:
                raise ValueError("an extension without an end")
            if name == b"link":
                raise ValueError("its entries are in another file")
            if name not in _COMPUTED:
                found.append(self._data[self._at : end])
            self._at = end
        return found
