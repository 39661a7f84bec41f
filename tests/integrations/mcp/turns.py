"""Counts the turns that the event loop takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def counted_turns() -> Iterator[list[None]]:
    """Return a list that gets something in each turn of the loop within the context."""
    turns: list[None] = []

    async def count() -> None:
        while True:
            await asyncio.sleep(0)
            turns.append(None)

    counting = asyncio.ensure_future(count())
    try:
        yield turns
    finally:
        counting.cancel()
