"""One generation of a worker as the host holds it: its process, and the host's end of its call channel.

Each generation has a socket of its own, so that nothing late can be mistaken for what the next one says.
Whole frames in, bytes out, never blocking.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence

from aisotools.sandbox.channel import Frame, FrameReader

READ_BYTES = 1 << 16
"""How much is read at once, so that the loop stays free."""

_BACKLOG_BYTES = 256 << 20


class CallWire:
    """A connected stream socket on the running loop."""

    def __init__(
        self, end: socket.socket, readable: Callable[[], object], flooded: Callable[[], None]
    ) -> None:
        """Take over `end`, which does not block.

        Args:
            end: The socket.
            readable: Called when there is something to read.
            flooded: Called when the other end has stopped reading.
        """
        self._loop = asyncio.get_running_loop()
        self._end, self._readable, self._flooded = end, readable, flooded
        self._reader = FrameReader()
        self._backlog = bytearray()
        self.listen()

    def __repr__(self) -> str:
        return f"<CallWire {self._end.fileno()}, {len(self._backlog)} bytes waiting>"

    @property
    def behind(self) -> bool:
        """Whether the other end has not taken everything yet."""
        return bool(self._backlog)

    def listen(self) -> None:
        """Hear what comes; from the start on, and again after `pause`."""
        self._loop.add_reader(self._end, self._readable)

    def pause(self) -> None:
        """Hear nothing for now."""
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end)

    def read(self) -> bytes | None:
        """What came; None if nothing did, empty at the end."""
        try:
            # Little at a time, so that the loop stays free; more once a large frame is on its way.
            large = self._reader.pending_bytes > READ_BYTES
            return self._end.recv(4 * READ_BYTES if large else READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def frames(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes.

        Raises:
            ChannelError: If it is out of form.
        """
        return self._reader.feed(data)

    def write(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send `data`, and with its first byte the descriptors; what cannot go at once goes later."""
        if not self._backlog:
            try:
                sent = self._send(data, descriptors)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the reader will hear of the end, and what came before it
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._end, self._flush)
        if len(self._backlog) + len(data) > _BACKLOG_BYTES:
            self._flooded()
            return
        self._backlog += data

    def _send(self, data: bytes, descriptors: Sequence[int]) -> int:
        return socket.send_fds(self._end, [data], descriptors) if descriptors else self._end.send(data)

    def _flush(self) -> None:
        try:
            with memoryview(self._backlog) as view:
                sent = self._end.send(view[: 4 * READ_BYTES])
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._backlog)  # nobody reads it any more
        del self._backlog[:sent]
        if not self._backlog:
            self._loop.remove_writer(self._end)

    def close(self) -> None:
        """Let go of the socket."""
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end)
            self._loop.remove_writer(self._end)
            self._end.close()


class Generation:
    """One worker process in a tree: the first, or a fork that was woken in its place.

    Attributes:
        wire: Its call channel.
        pid: Its process id.
        pidfd: A descriptor of the process, or -1 where its end is told by the supervisor.
        shipped: Keys of the tools that it has.
    """

    __slots__ = ("pid", "pidfd", "shipped", "wire")

    def __init__(
        self, wire: CallWire, *, pid: int = 0, pidfd: int = -1, shipped: set[str] | None = None
    ) -> None:
        """Be this one."""
        self.wire, self.pid, self.pidfd = wire, pid, pidfd
        self.shipped = shipped if shipped is not None else set()

    def __del__(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)

    def close(self) -> None:
        """Let go of what is held of it."""
        self.wire.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
