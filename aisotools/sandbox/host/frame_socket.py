"""The transport of frames between the host and a worker: a Unix socket on the event loop.

Whoever writes at the other end is hostile. Little is read at a time, so that the loop stays free, and no more
behind a large frame than at any other time; what waits to be sent is bounded; and open files that come with
bytes are taken for an attack, see `aisotools.sandbox.process.descriptors`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence

from aisotools.core.exceptions import ChannelError, SandboxError
from aisotools.sandbox.frames import FrameReader, KeepParts, keep_all
from aisotools.sandbox.host.watches import watch, watch_writing
from aisotools.sandbox.process.descriptors import discard_socket, receive, refuses_descriptors

READ_BYTES = 1 << 16
"""How much is read at once, so that one busy worker does not hold up the event loop."""

MAX_BUFFERED_BYTES = 256 << 20
"""Unsent bytes above which a worker counts as one that has stopped reading."""


class FrameSocket:
    """Non-blocking frame transport over a Unix socket.

    `on_readable` is called when there is something to read. Writes are buffered; when more than
    `MAX_BUFFERED_BYTES` wait, the peer has stopped reading, and `on_overflow` is called instead of growing
    without bound; so it is when the rest of a message cannot be sent later.

    Attributes:
        reader: Turns the bytes that `read` returns into frames.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_readable: Callable[[], object],
        on_overflow: Callable[[], None],
        keep: KeepParts = keep_all,
    ) -> None:
        sock.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._brings_bytes_only = refuses_descriptors(sock)
        self._on_readable = on_readable
        self._on_overflow = on_overflow
        self.reader = FrameReader(keep=keep)
        # What waits is not copied: of the largest message a copy takes 20 ms.
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self.resume_reading()

    def __repr__(self) -> str:
        return f"<FrameSocket {self._socket.fileno()}, {self._waiting_bytes} bytes waiting>"

    def resume_reading(self) -> None:
        """Call `on_readable` again. A new socket reads from the start.

        Raises:
            SandboxError: The loop cannot watch the socket.
        """
        watch(self._loop, self._socket, self._on_readable)

    def pause_reading(self) -> None:
        """Stop calling `on_readable`."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)

    def read(self) -> bytes | None:
        """Return the bytes that have arrived: None if there are none yet, empty at the end of the stream.

        Raises:
            ChannelError: If open files came with them.
        """
        try:
            # Little at a time, so that the loop stays free; more of a large frame that is on its way, but not
            # of what follows it, which may be thousands of small ones.
            size = min(max(self.reader.missing_bytes, READ_BYTES), 4 * READ_BYTES)
            return self._socket.recv(size) if self._brings_bytes_only else receive(self._socket, size)[0]
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def write(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send `data`, with `descriptors` attached to its first byte; buffer what cannot go at once.

        Raises:
            ChannelError: If descriptors cannot go at once. Nothing was sent then.
        """
        if self._waiting and descriptors:
            raise ChannelError("The worker has not read earlier messages yet.")
        rest = memoryview(data)
        if not self._waiting:
            try:
                if descriptors:
                    sent = socket.send_fds(self._socket, [data], descriptors)
                else:
                    sent = self._socket.send(data)
            except BlockingIOError:
                if descriptors:
                    # Buffered bytes go without descriptors: the worker would wait for one that never comes.
                    raise ChannelError("The worker has not read earlier messages yet.") from None
                sent = 0
            except OSError:
                # The peer is gone. The reader reports that, after the frames that arrived before.
                return
            if sent == len(data):
                return
            # Partial write: the kernel took the first `sent` bytes, and the descriptors with them.
            rest = rest[sent:]
            try:
                watch_writing(self._loop, self._socket, self._flush)
            except SandboxError:
                # Nothing would ever send the rest. The peer has got a piece of a message, so it must end.
                self._on_overflow()
                return
        if self._waiting_bytes + len(rest) > MAX_BUFFERED_BYTES:
            self._on_overflow()
            return
        self._waiting.append(rest)
        self._waiting_bytes += len(rest)

    def _flush(self) -> None:
        first = self._waiting[0]
        try:
            sent = self._socket.send(first[: 4 * READ_BYTES])
        except BlockingIOError:
            return
        except OSError:  # nobody reads it any more
            self._waiting.clear()
            self._waiting_bytes = 0
        else:
            self._waiting_bytes -= sent
            if sent == len(first):
                self._waiting.popleft()
            else:
                self._waiting[0] = first[sent:]
        if not self._waiting:
            self._loop.remove_writer(self._socket)

    def close(self) -> None:
        """Close the socket; closing twice is fine."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            discard_socket(self._socket)
