"""What was typed at a front, for its history: in memory, the latest first to be forgotten last."""

from __future__ import annotations

import fnmatch
from collections import deque
from typing import Any

MOST = 10_000
"""How many inputs are kept."""


class Past:
    """The inputs of one front."""

    def __init__(self) -> None:
        """Start with none."""
        self._inputs: deque[tuple[int, str]] = deque(maxlen=MOST)

    def add(self, count: int, code: str) -> None:
        """Keep the input of cell `count`."""
        self._inputs.append((count, code))

    def tell(
        self,
        access: str,
        *,
        output: bool = False,
        start: int | None = None,
        stop: int | None = None,
        n: int | None = None,
        pattern: str | None = None,
        unique: bool = False,
        **_: Any,
    ) -> list[tuple[int, int, Any]]:
        """Inputs as a `history_reply` has them: session, number, text; with `output`, text and no output.

        Args:
            access: `tail` for the latest `n`; `range` for `start` up to before `stop`; `search` for those
                that fit `pattern`.
            output: Whether pairs are wanted.
            start: See `access`.
            stop: See `access`.
            n: At most so many, the latest.
            pattern: With `*` and `?`.
            unique: Each text once.
        """
        found = list(self._inputs)
        if access == "range":
            first, last = start or 0, MOST * MOST if stop is None else stop
            found = [(count, code) for count, code in found if first <= count < last]
        elif access == "search":
            found = [(c, code) for c, code in found if fnmatch.fnmatchcase(code, pattern or "*")]
        elif access != "tail":
            return []
        if unique:
            found = [(count, code) for code, count in {code: count for count, code in found}.items()]
        if n is not None:
            found = found[-n:] if n > 0 else []
        return [(0, count, (code, None) if output else code) for count, code in found]
