"""The end of what a call prints beyond its cap, in bounded memory, with exact counts."""

from __future__ import annotations

from collections import Counter, deque

MOST_CHARS = 1 << 15
"""How much of the end is kept, over both streams."""


class Tail:
    """Keeps the last characters of several streams that share one cap."""

    def __init__(self, most_chars: int) -> None:
        """Keep about `most_chars`: never fewer if there are as many, and never twice as many."""
        self._most = most_chars
        self._pieces: deque[tuple[str, str]] = deque()
        self._came_bytes: Counter[str] = Counter()
        self._chars = 0

    def __repr__(self) -> str:
        return f"<Tail {self._chars:,} characters of {self._came_bytes.total():,} bytes>"

    def take(self, stream: str, text: str) -> None:
        """Take in what came behind everything else."""
        self._came_bytes[stream] += len(text) if text.isascii() else len(text.encode())
        text = text[-self._most :]
        self._pieces.append((stream, text))
        self._chars += len(text)
        while self._pieces and self._chars - len(self._pieces[0][1]) >= self._most:
            self._chars -= len(self._pieces.popleft()[1])

    def clear(self) -> None:
        """Forget everything."""
        self._pieces.clear()
        self._came_bytes.clear()
        self._chars = 0

    def text(self, stream: str) -> str:
        """What is kept of a stream."""
        return "".join(text for name, text in self._pieces if name == stream)

    def missing_bytes(self, stream: str) -> int:
        """How much of a stream came and is not kept."""
        return self._came_bytes[stream] - len(self.text(stream).encode())

    def behind(self, head: str, stream: str) -> str:
        """`head` and what is kept of the end, with a note where something is left out between them."""
        missing, end = self.missing_bytes(stream), self.text(stream)
        if not missing:
            return head + end
        gap = "" if head.endswith("\n") or not head else "\n"
        return f"{head}{gap}[{missing:,} bytes of output left out here]\n{end}"
