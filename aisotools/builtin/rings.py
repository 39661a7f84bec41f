"""The beginning and the end of a stream of bytes, with exact counts of all of it, in bounded memory."""

from __future__ import annotations

import codecs
from collections import Counter, deque


class Ring:
    """Keeps the first and the last bytes of one or several streams that share one cap.

    Attributes:
        total_bytes: How many bytes came.
        total_lines: How many line feeds were among them.
    """

    def __init__(self, cap_bytes: int) -> None:
        """Keep half of `cap_bytes` of the beginning and half of the end."""
        self._head_left, self._tail_cap = cap_bytes - cap_bytes // 2, cap_bytes // 2
        self._head: list[tuple[str, bytes]] = []
        self._tail: deque[tuple[str, bytes]] = deque()
        self._tail_bytes = 0
        self._totals: Counter[str] = Counter()
        self.total_bytes = self.total_lines = 0

    def __repr__(self) -> str:
        return f"<Ring {self.total_bytes:,} bytes, {self.dropped_bytes:,} dropped>"

    def take(self, data: bytes, stream: str = "stdout") -> bytes:
        """Take in what came; the part of it that belongs to the beginning."""
        self.total_bytes += len(data)
        self._totals[stream] += len(data)
        self.total_lines += data.count(b"\n")
        first, rest = data[: self._head_left], data[self._head_left :]
        if first:
            self._head_left -= len(first)
            self._head.append((stream, first))
        if rest:
            self._tail.append((stream, rest))
            self._tail_bytes += len(rest)
            while self._tail and self._tail_bytes - len(self._tail[0][1]) >= self._tail_cap:
                self._tail_bytes -= len(self._tail.popleft()[1])
        return first

    @property
    def dropped_bytes(self) -> int:
        """How many bytes are in neither the beginning nor the end."""
        kept = sum(len(data) for _, data in self._head) + min(self._tail_bytes, self._tail_cap)
        return self.total_bytes - kept

    @property
    def tail_start(self) -> int:
        """Where in the whole stream the kept end begins."""
        return self.total_bytes - min(self._tail_bytes, self._tail_cap)

    def tail(self) -> bytes:
        """The kept end of everything."""
        return b"".join(data for _, data in self._trimmed())

    def text(self, stream: str = "stdout") -> str:
        """What is kept of a stream, with a note where something is left out."""
        head = b"".join(data for name, data in self._head if name == stream)
        trimmed = self._trimmed()
        tail = b"".join(data for name, data in trimmed if name == stream)
        dropped = self._totals[stream] - len(head) - len(tail)
        if not dropped:
            return (head + tail).decode("utf-8", "replace")
        begun = codecs.getincrementaldecoder("utf-8")("replace").decode(head)
        ended = tail[_broken(tail) :].decode("utf-8", "replace")
        gap = "" if begun.endswith("\n") or not begun else "\n"
        return f"{begun}{gap}[{dropped:,} bytes of output left out here]\n{ended}"

    def _trimmed(self) -> list[tuple[str, bytes]]:
        """The end without what the first piece has too much."""
        rows = list(self._tail)
        if rows and (over := self._tail_bytes - self._tail_cap) > 0:
            rows[0] = rows[0][0], rows[0][1][over:]
        return rows


def _broken(data: bytes) -> int:
    """How many bytes at the beginning are the end of a broken character."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count
