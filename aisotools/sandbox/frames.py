"""The call channel: frames over a Unix socket between the host and a worker.

A frame is a fixed prefix, a JSON header and raw binary parts::

    ┌──────────────┬─────────────┬───────────────┬──────────────────┐
    │ header bytes │ body bytes  │ header (JSON) │ body: the parts  │
    │ uint32       │ uint32      │               │ one after another│
    └──────────────┴─────────────┴───────────────┴──────────────────┘

The header is an object with `op` (text) and, when there are parts, `parts` (their sizes). Whatever a worker
sends is hostile: both sizes are checked against the limits before a byte of content is kept, and the header
is parsed by a parser with a depth limit. Anything out of form is a `ChannelError`, after which the stream
cannot be trusted any more: close it and end the worker.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json

from aisotools.core.exceptions import ChannelError

_PREFIX = struct.Struct("!II")
_RECV_BYTES = 1 << 18
_MOST_DESCRIPTORS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """What a reader accepts.

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
        op: What it is about.
        header: Everything else it says; untrusted when it comes from a worker.
        parts: Binary attachments.
    """

    op: str
    header: Mapping[str, Any]
    parts: tuple[bytes, ...] = ()


LIMITS = FrameLimits()
"""What both ends hold to unless told otherwise."""


def encode(op: str, header: Mapping[str, Any] | None = None, parts: Iterable[bytes] = ()) -> bytes:
    """A frame as bytes, within `LIMITS`: what the other end would refuse never leaves.

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
    """Turns a stream of bytes into frames; no I/O, so that it can be fed anything."""

    def __init__(self, limits: FrameLimits | None = None) -> None:
        """Start empty."""
        self._limits = limits or LIMITS
        self._buffer = bytearray()
        self._broken = False

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that has not ended yet."""
        return len(self._buffer)

    @property
    def missing_bytes(self) -> int:
        """How many bytes the next frame needs at least; to read that one and nothing behind it."""
        if len(self._buffer) < _PREFIX.size:
            return _PREFIX.size - len(self._buffer)
        head, body = _PREFIX.unpack_from(self._buffer)
        return _PREFIX.size + int(head) + int(body) - len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Take `data` and return the frames it completes.

        Raises:
            ChannelError: If the stream is out of form or over the limits; the reader is useless from then on.
        """
        if self._broken:
            raise ChannelError("The call channel was already broken.")
        self._buffer += data
        frames = []
        try:
            while (frame := self._next()) is not None:
                frames.append(frame)
        except ChannelError:
            self._broken = True
            self._buffer.clear()
            raise
        return frames

    def _next(self) -> Frame | None:
        if len(self._buffer) < _PREFIX.size:
            return None
        head, body = _PREFIX.unpack_from(self._buffer)
        if head > self._limits.header_bytes:
            raise ChannelError(
                f"A frame announced a header of {head} bytes; {self._limits.header_bytes} are allowed."
            )
        if body > self._limits.body_bytes:
            raise ChannelError(f"A frame announced {body} bytes; {self._limits.body_bytes} are allowed.")
        end = _PREFIX.size + head + body
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            header_bytes = bytes(view[_PREFIX.size : _PREFIX.size + head])
            body_bytes = bytes(view[_PREFIX.size + head : end])
        del self._buffer[:end]
        header = _parse_header(header_bytes)
        parts = self._parts(header, body_bytes)
        return Frame(op=header.pop("op"), header=header, parts=parts)

    def _parts(self, header: dict[str, Any], body: bytes) -> tuple[bytes, ...]:
        sizes = header.pop("parts", [])
        if not isinstance(sizes, list) or len(sizes) > self._limits.parts:
            raise ChannelError(
                f"A frame may have at most {self._limits.parts} parts, given as a list of sizes."
            )
        parts, start = [], 0
        for size in sizes:
            if type(size) is not int or not 0 <= size <= len(body) - start:
                raise ChannelError("The sizes of a frame's parts do not add up to its body.")
            parts.append(body[start : start + size])  # of the whole body this is no copy
            start += size
        if start != len(body):
            raise ChannelError("The sizes of a frame's parts do not add up to its body.")
        return tuple(parts)


def _parse_header(data: bytes) -> dict[str, Any]:
    try:
        header = from_json(data, allow_inf_nan=False, cache_strings="keys")
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"A frame's header is not JSON: {str(error)[:200]}") from None
    if not isinstance(header, dict) or type(header.get("op")) is not str:
        raise ChannelError("A frame's header is no object with an 'op'.")
    return header


class BlockingChannel:
    """The worker's end: whole frames, written at once and read when there is something to read.

    User code shares the process, so `send` may meet anything: other threads, a signal handler that prints or
    raises in the middle of a frame, a finaliser that prints. Frames never mix, and one that was torn off by
    an exception is finished by the next `send`.

    Attributes:
        descriptors: What the host has sent beside its frames, in order; whoever handles the frame takes it.
    """

    def __init__(self, sock: socket.socket, limits: FrameLimits | None = None) -> None:
        """Take over `sock`, a connected stream socket in blocking mode."""
        self._socket = sock
        self._reader = FrameReader(limits)
        self._outbox: deque[tuple[memoryview, deque[int]]] = deque()  # frames, and what went of each
        self._sending = False
        self._lock = threading.RLock()
        self.descriptors: deque[int] = deque()

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def send(self, op: str, header: Mapping[str, Any] | None = None, parts: Iterable[bytes] = ()) -> None:
        """Write one frame; blocks while the host is slow.

        Raises:
            OSError: If the host is gone.
            ChannelError: If the frame is too large.
        """
        self._outbox.append((memoryview(encode(op, header, parts)), deque()))
        with self._lock:
            if self._sending:
                return  # called from inside of the loop below, which will come to this frame too
            self._sending = True
            try:
                self._empty_outbox()
            finally:
                self._sending = False

    def _empty_outbox(self) -> None:
        while self._outbox:
            data, sent = self._outbox[0]
            # A signal handler may raise after any call Python makes. Sending and noting how much was sent
            # must not come apart, so one call into C does both; and what is noted stays with its frame.
            sent.extend(map(self._socket.send, (data[sum(sent) :],)))
            if sum(sent) == len(data):
                self._outbox.popleft()

    def receive(self) -> list[Frame]:
        """Read once and return the frames that completes.

        Raises:
            EOFError: If the host has closed its end.
            ChannelError: If the stream is out of form.
        """
        data, descriptors, _, _ = socket.recv_fds(
            self._socket, _RECV_BYTES, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        self.descriptors.extend(descriptors)
        if not data:
            raise EOFError
        return self._reader.feed(data)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
