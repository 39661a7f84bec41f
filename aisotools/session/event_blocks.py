"""Events of a session that have moved to the disk, in blocks, and are read when somebody asks for them."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import overload

from aisotools.core.events import (
    EventsDropped,
    SessionEvent,
)
from aisotools.core.spill import SpillFile


def dump_at_once(value: object) -> tuple[bytes]:
    """Return `value` pickled."""
    return (pickle.dumps(value, pickle.HIGHEST_PROTOCOL),)


class EventBlock(Sequence[SessionEvent]):
    """Events on the disk.

    Attributes:
        size: How many bytes they take there.
        charged_bytes: How many they were charged with in memory.
        kinds: Their kinds.
        until_s: When the last of them happened.
    """

    def __init__(
        self,
        spill: SpillFile,
        events: Sequence[SessionEvent],
        charged_bytes: int,
        dump: Callable[[object], Sequence[bytes]] = dump_at_once,
    ) -> None:
        """Move events to the disk.

        Args:
            spill: The file.
            events: The events, at least one.
            charged_bytes: How many bytes they are charged with in memory.
            dump: Pickles them.

        Raises:
            Exception: If they cannot be written.
        """
        self._extent = spill.put(*dump(list(events)))
        self._count = len(events)
        self.size = self._extent.size
        self.charged_bytes = charged_bytes
        self.kinds = frozenset(event.kind for event in events)
        self.until_s = events[-1].time_s
        # The events that nobody can see any more take no room.
        self.free = weakref.finalize(self, spill.free, self._extent)
        self.free.atexit = False
        self._spill = spill

    @overload
    def __getitem__(self, index: int) -> SessionEvent: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SessionEvent]: ...
    def __getitem__(self, index: int | slice) -> SessionEvent | Sequence[SessionEvent]:
        return _read_block(self)[index]

    def __iter__(self) -> Iterator[SessionEvent]:
        return iter(_read_block(self))

    def __len__(self) -> int:
        return self._count

    def read(self) -> Sequence[SessionEvent]:
        """Return the events; what stands for them if they cannot be read, as often as there are events."""
        try:
            # Pickled here, and compared with what was written: nobody else can have changed it.
            return tuple(pickle.loads(self._spill.get(self._extent)))  # noqa: S301 - see above
        except OSError as error:
            reason = f"they cannot be read from the disk again: {error}"
            dropped = EventsDropped(
                time_s=self.until_s,
                count=self._count,
                kinds=tuple(sorted(self.kinds)),
                size_bytes=self.charged_bytes,
                reason=reason,
            )
            return (dropped,) * self._count


@lru_cache(maxsize=1)
def _read_block(block: EventBlock) -> Sequence[SessionEvent]:
    """Return the events of a block. Who reads one after the other reads each block once."""
    return block.read()


def dump_in_pieces(value: object) -> list[bytes]:
    """Return `value` pickled, in pieces, in a thread beside the event loop.

    `pickle.dumps` holds the interpreter's lock until it has all of it. A file that is written in Python gets
    pieces of 64 KiB, and the lock is free for others between these.
    """
    pieces: list[bytes] = []

    class Pieces:
        def write(self, piece: bytes) -> None:
            # A long text comes as it is; the memory of a short piece is used again by the pickler.
            pieces.append(bytes(piece))

    pickle.Pickler(Pieces(), pickle.HIGHEST_PROTOCOL).dump(value)
    return pieces
