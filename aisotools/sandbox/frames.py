"""The messages between host and worker: frames over a Unix socket, encoded and parsed.

A frame is a fixed prefix, a JSON header and raw binary parts::

    ┌──────────────┬─────────────┬───────────────┬──────────────────┐
    │ header bytes │ body bytes  │ header (JSON) │ body: the parts  │
    │ uint32       │ uint32      │               │ one after another│
    └──────────────┴─────────────┴───────────────┴──────────────────┘

The header is an object with `op` (text) and, when there are parts, `parts` (their sizes). Whatever a worker
sends is hostile: both sizes are checked against the limits before a byte of content is stored, and the header
is parsed by a parser with a depth limit. Anything malformed is a `ChannelError`, after which the position in
the stream is unknown: close it and end the worker.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json

from aisotools.core.exceptions import ChannelError
from aisotools.tools.results import gc_paused

_PREFIX = struct.Struct("!II")
_RECV_BYTES = 1 << 18
LARGE_BYTES = 1 << 15
"""From this size on a frame may have thousands of objects, and the collector pauses until it was handled.

Most of them are dropped then. The collector would find no garbage before, and count all of them as older
objects: a hundred such frames are worth a full collection, for which the event loop stands still.
"""
# More objects and lists in one header would take the host more than some milliseconds to parse. Printed text
# of which each character is a bracket has half as many.
_MAX_CONTAINERS = 1 << 17
# Descriptors that one read can receive. The host sends at most two with a frame.
_MAX_DESCRIPTORS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """Upper limits for a frame.

    Attributes:
        header_bytes: Size of one header.
        body_bytes: Size of all parts of one frame together.
        parts: Number of parts in one frame.
    """

    header_bytes: int = 1 << 20
    body_bytes: int = 64 << 20
    parts: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message.

    Attributes:
        op: The operation.
        header: Its other fields; untrusted when it comes from a worker.
        parts: Binary attachments.
    """

    op: str
    header: Mapping[str, Any]
    parts: tuple[bytes, ...] = ()


BROKEN_STATUS = 70
"""Exit status of a worker in which calls cannot run any more. What it says last is the reason."""

LIMITS = FrameLimits()
"""The limits of both ends of the call channel."""


def encode(op: str, header: Mapping[str, Any] | None = None, parts: Iterable[bytes] = ()) -> bytes:
    """Return a frame as bytes. It is checked against `LIMITS` here, so that the peer never has to refuse it.

    Raises:
        pydantic_core.PydanticSerializationError: If the header is not JSON.
        ChannelError: If the frame is too large.
    """
    body = tuple(parts)
    message: dict[str, Any] = {"op": op, **(header or {})}
    size = 0
    if body:
        sizes = list(map(len, body))
        message["parts"] = sizes
        size = sum(sizes)
    head = to_json(message, inf_nan_mode="strings")
    if len(head) > LIMITS.header_bytes or size > LIMITS.body_bytes or len(body) > LIMITS.parts:
        raise ChannelError(
            f"A frame {op!r} of {len(head)} + {size} bytes in {len(body)} parts is too large to send."
        )
    return b"".join((_PREFIX.pack(len(head), size), head, *body))


class FrameReader:
    """Parses a stream of bytes into frames. Does no I/O.

    Attributes:
        pending_bytes: Number of bytes of an incomplete frame that have arrived.
    """

    def __init__(self, limits: FrameLimits | None = None) -> None:
        self._limits = limits or LIMITS
        self._buffer = bytearray()
        self._broken = False
        self.pending_bytes = 0

    @property
    def missing_bytes(self) -> int:
        """Number of bytes to read next so as to complete one frame and read nothing behind it."""
        if len(self._buffer) < _PREFIX.size:
            return _PREFIX.size - len(self._buffer)
        head, body = _PREFIX.unpack_from(self._buffer)
        return _PREFIX.size + int(head) + int(body) - len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Parse `data` and return the frames that it completes.

        Raises:
            ChannelError: If the stream is malformed or exceeds the limits; now, and at every later call.
        """
        if self._broken:
            raise ChannelError("an earlier frame was malformed, so nothing after it can be read")
        self._buffer += data
        frames = []
        try:
            while (frame := self._next()) is not None:
                frames.append(frame)
        except ChannelError:
            # The next frame's start is unknown: nothing behind this point can be trusted.
            self._broken = True
            self._buffer.clear()
            raise
        finally:
            self.pending_bytes = len(self._buffer)
        return frames

    def _next(self) -> Frame | None:
        if len(self._buffer) < _PREFIX.size:
            return None
        head, body = _PREFIX.unpack_from(self._buffer)
        if head > self._limits.header_bytes:
            raise ChannelError(
                f"a frame announced a header of {head} bytes; {self._limits.header_bytes} are allowed"
            )
        if body > self._limits.body_bytes:
            raise ChannelError(f"a frame announced {body} bytes; {self._limits.body_bytes} are allowed")
        end = _PREFIX.size + head + body
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            header = _parse_header(bytes(view[_PREFIX.size : _PREFIX.size + head]))
            # Each part is copied once: a frame may have tens of megabytes.
            with view[_PREFIX.size + head : end] as body_view:
                parts = self._parts(header, body_view)
        del self._buffer[:end]
        return Frame(op=header.pop("op"), header=header, parts=parts)

    def _parts(self, header: dict[str, Any], body: memoryview) -> tuple[bytes, ...]:
        sizes = header.pop("parts", [])
        if not isinstance(sizes, list) or len(sizes) > self._limits.parts:
            raise ChannelError(
                f"a frame may have at most {self._limits.parts} parts, given as a list of sizes"
            )
        parts, start = [], 0
        for size in sizes:
            if type(size) is not int or not 0 <= size <= len(body) - start:
                raise ChannelError("the sizes of a frame's parts do not add up to its body")
            parts.append(bytes(body[start : start + size]))
            start += size
        if start != len(body):
            raise ChannelError("the sizes of a frame's parts do not add up to its body")
        return tuple(parts)


def _parse_header(data: bytes) -> dict[str, Any]:
    if len(data) > _MAX_CONTAINERS and data.count(b"[") + data.count(b"{") > _MAX_CONTAINERS:
        raise ChannelError(f"a frame's header has more than {_MAX_CONTAINERS} objects and lists")
    try:
        with gc_paused() if len(data) > LARGE_BYTES else nullcontext():
            header = from_json(data, allow_inf_nan=False, cache_strings="keys")
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"a frame's header is not JSON: {str(error)[:200]}") from None
    if not isinstance(header, dict) or type(header.get("op")) is not str:
        raise ChannelError("a frame's header is no object with an 'op'")
    return header


class BlockingChannel:
    """The worker's end of the channel: blocking writes of whole frames, and single reads.

    User code shares the process, so `send` can be interrupted anywhere: by other threads, by a signal handler
    that prints or raises in the middle of a frame, by a finaliser that prints. Frames never mix, and one that
    was cut off by an exception is completed by the next `send`. It can change the socket, too: `send` and
    `receive` work, and block, whether or not the socket itself blocks.

    Attributes:
        descriptors: Descriptors that came with frames, in order. The handler of a frame pops its own.
    """

    def __init__(self, sock: socket.socket, limits: FrameLimits | None = None) -> None:
        """Wrap `sock`, a connected stream socket in blocking mode, which is closed by `close`."""
        self._socket = sock
        self._reader = FrameReader(limits)
        # Frames, each with the numbers of bytes that have been sent of it.
        self._outbox: deque[tuple[memoryview, deque[int]]] = deque()
        self._sending = False
        self._lock = threading.RLock()
        self.descriptors: deque[int] = deque()

    def fileno(self) -> int:
        """Return the descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, op: str, header: Mapping[str, Any] | None = None, parts: Iterable[bytes] = ()) -> None:
        """Write one frame. Block while the host is slow.

        Raises:
            OSError: If the host is gone.
            ChannelError: If the frame is too large.
        """
        self._outbox.append((memoryview(encode(op, header, parts)), deque()))
        with self._lock:
            if self._sending:
                # Reentered on the same thread: a finaliser or a signal handler printed during the loop below,
                # which comes to this frame too.
                return
            self._sending = True
            try:
                self._empty_outbox()
            finally:
                self._sending = False

    def _empty_outbox(self) -> None:
        while self._outbox:
            data, sent = self._outbox[0]
            # Partial write and signal: a handler may raise between any two bytecodes. Sending, and noting how
            # much was sent, must not come apart, or the rest of the frame would be sent twice or not at all.
            # One call into C does both, and what is noted stays with its frame.
            try:
                sent.extend(map(self._socket.send, (data[sum(sent) :],)))
            except BlockingIOError:
                self._wait(select.POLLOUT)
            if sum(sent) == len(data):
                self._outbox.popleft()

    def _wait(self, event: int) -> None:
        """Wait until the socket can be used: user code has made it one that does not block, or set a time."""
        # Not put back once and for all: whoever changed it may do so again at any moment.
        poll = select.poll()
        poll.register(self._socket, event)
        poll.poll()

    def receive(self) -> list[Frame]:
        """Read once and return the frames that this completes.

        Raises:
            EOFError: If the host has closed its end.
            ChannelError: If the stream is malformed.
        """
        # Descriptors arrive with the first byte of the message they were sent with, which may be any part
        # of a frame here: they wait in order for the frame that names them. Closed on exec, so that no
        # program that a call starts inherits one.
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(
                    self._socket, _RECV_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
                break
            except BlockingIOError:
                self._wait(select.POLLIN)
        self.descriptors.extend(descriptors)
        if not data:
            raise EOFError
        return self._reader.feed(data)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
