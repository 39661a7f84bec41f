"""A steady wake-up of the event loop while somebody waits.

ipykernel delivers the Stop button as a callback that runs when the loop next wakes; a loop that only waits
for a person, or for a worker, may not wake for minutes. While a beat is held the loop wakes every 50 ms.
"""

from __future__ import annotations

import asyncio

BEAT_S = 0.05


class Beat:
    """A re-entrant context: the loop wakes every `BEAT_S` seconds while anybody is inside."""

    def __init__(self) -> None:
        """Start at rest."""
        self._inside = 0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._inside += 1
        if self._timer is None:
            self._again()

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if self._inside == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._again)
