"""Which objects a pack of git has, by its index.

Threat
    Hostile code may have written the index.
Mechanism
    The index is read as the format of version 2 says, and each number in it is compared with its size. What
    is not as the format says is an error, and so is version 1, which git has not written since 2007.
Race window
    None: it is about one content that is stored.
When it fails
    Whoever asks takes an index that cannot be read for one that may have any object, or none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

_MAGIC = b"\xfftOc\x00\x00\x00\x02"
_FAN_OUT = 256
_NAMES_AT = len(_MAGIC) + 4 * _FAN_OUT
_BYTES_BESIDE_NAME = 8  # of each object: its checksum, and where it is in the pack
_BYTES_OF_LARGE_PLACE = 8
_HASH_SIZES = (20, 32)


class PackIndex:
    """The names of the objects in one pack."""

    def __init__(self, data: bytes) -> None:
        """Read an index.

        Raises:
            ValueError: If it is not of version 2, or not whole.
        """
        if not data.startswith(_MAGIC) or len(data) < _NAMES_AT:
            raise ValueError("no index of a pack that can be read")
        counts = memoryview(data)[len(_MAGIC) : _NAMES_AT]
        self._data = data
        self._counts = [int.from_bytes(counts[at : at + 4], "big") for at in range(0, len(counts), 4)]
        if self._counts != sorted(self._counts):
            raise ValueError("an index of a pack whose counts are in no order")
        sizes = [size for size in _HASH_SIZES if self._has_size_for(size)]
        if not sizes:
            raise ValueError("an index of a pack that is not as long as its objects need")
        self._names = _Names(data, sizes[0], len(self))

    def __repr__(self) -> str:
        return f"<PackIndex of {len(self):,} objects>"

    def __len__(self) -> int:
        return self._counts[-1]

    def __iter__(self) -> Iterator[bytes]:
        """Yield the names of its objects, as bytes."""
        return iter(self._names)

    def _has_size_for(self, size: int) -> bool:
        """Return whether the index can be one of names of a size. Places in large packs take more."""
        more = len(self._data) - _NAMES_AT - len(self) * (size + _BYTES_BESIDE_NAME) - 2 * size
        return 0 <= more <= _BYTES_OF_LARGE_PLACE * len(self) and more % _BYTES_OF_LARGE_PLACE == 0

    def __contains__(self, name: object) -> bool:
        """Return whether an object is in the pack, by its name as hexadecimal text."""
        if not isinstance(name, str) or len(name) != 2 * self._names.size:
            return False
        wanted = bytes.fromhex(name)
        first = self._counts[wanted[0] - 1] if wanted[0] else 0
        at = bisect_left(self._names, wanted, first, self._counts[wanted[0]])
        return at < len(self) and self._names[at] == wanted


class _Names:
    """The sorted names of an index, each of one size."""

    def __init__(self, data: bytes, size: int, count: int) -> None:
        self._data, self.size, self._count = data, size, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> bytes:
        if not 0 <= place < self._count:
            raise IndexError(place)
        at = _NAMES_AT + place * self.size
        return self._data[at : at + self.size]
