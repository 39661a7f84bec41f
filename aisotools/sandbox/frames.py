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

Threat
    A frame of the largest size: to copy it takes longer than the event loop may stand still, and two copies
    of what nobody wants take more memory than a whole session may keep.
Mechanism
    The header is parsed as soon as it is there, and says how large the parts are. Each part goes, with what
    one read brings, to the place where it stays: no step is longer than a read, and there is no second copy.
    Whoever reads says by op, header and sizes which parts are kept. The others are never stored.
Race window
    What is wanted is decided when the header comes, and a frame is handled when its body is complete. A part
    that was not kept is named in `Frame.dropped`; to treat it as too large is right whatever happened since.
When it fails
    Sizes that do not add up to the body, or parts where none may be, are a `ChannelError` before they come.
"""

from __future__ import annotations

import io
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json

from aisotools.core.concurrency import gc_paused
from aisotools.core.exceptions import ChannelError

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
# The same for keys, which take longer: a megabyte of them 36 ms. Printed text may have 65,536 colons.
_MAX_KEYS = 70_000
# The parts of a frame with more are sent one after the other: the largest take 30 ms to be copied.
_COPIED_BYTES = 1 << 20
# Larger whole numbers are not exact in JSON.
_MAX_COUNT = 1 << 53
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
        dropped: Sizes of the parts that were not kept, by position. In `parts` those are empty.
    """

    op: str
    header: Mapping[str, Any]
    parts: tuple[bytes, ...] = ()
    dropped: Mapping[int, int] = field(default_factory=dict)


KeepParts = Callable[[str, Mapping[str, Any], Sequence[int]], Sequence[bool]]
"""Says of a frame whose parts are still to come, by its op, header and their sizes, which of them are kept.

It raises `ChannelError` if the frame may not have any."""


def keep_all(_op: str, _header: Mapping[str, Any], sizes: Sequence[int], /) -> Sequence[bool]:
    """Keep all parts of every frame; a `KeepParts`."""
    return [True] * len(sizes)


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
    return b"".join(encode_pieces(op, header, parts))


def encode_pieces(
    op: str, header: Mapping[str, Any] | None = None, parts: Iterable[bytes] = ()
) -> list[bytes]:
    """Return a frame in one piece, or a large one in several, so that its parts are not copied.

    Raises:
        Exception: As for `encode`.
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
    prefix = _PREFIX.pack(len(head), size)
    return [b"".join((prefix, head, *body))] if size <= _COPIED_BYTES else [prefix + head, *body]


class FrameReader:
    """Parses a stream of bytes into frames. Does no I/O.

    Attributes:
        pending_bytes: Number of bytes of an incomplete frame that have arrived.
        missing_bytes: Number of bytes to read next so as to complete one frame and read nothing behind it.
    """

    def __init__(self, limits: FrameLimits | None = None, keep: KeepParts = keep_all) -> None:
        """Start at the beginning of a stream; `keep` says which parts are stored."""
        self._limits = limits or LIMITS
        self._keep = keep
        self._broken = False
        # The prefix and the header of the next frame as far as they have come, and the sizes in its prefix.
        self._head = bytearray()
        self._announced: tuple[int, int] | None = None
        # The frame when its header is there, with those of its parts that are complete.
        self._op = ""
        self._header: dict[str, Any] | None = None
        self._sizes: list[int] = []
        self._wanted: Sequence[bool] = ()
        self._parts: list[bytes] = []
        # The part after those, and how much of it has come.
        self._part = io.BytesIO()
        self._arrived = 0
        self.pending_bytes = 0
        self.missing_bytes = _PREFIX.size

    def feed(self, data: bytes) -> list[Frame]:
        """Parse `data` and return the frames that it completes.

        Raises:
            ChannelError: If the stream is malformed or exceeds the limits; now, and at every later call.
        """
        if self._broken:
            raise ChannelError("an earlier frame was malformed, so nothing after it can be read")
        frames: list[Frame] = []
        at = 0
        try:
            while at < len(data):
                if self._header is None and not self._head:
                    frame, at = self._take_whole(data, at)
                    if frame is not None:
                        frames.append(frame)
                        continue
                at = self._take_head(data, at) if self._header is None else self._take_parts(data, at)
                if self._header is None or self.missing_bytes:
                    continue
                parts = (*self._parts, *[b""] * (len(self._sizes) - len(self._parts)))
                frames.append(self._frame(self._header, parts))
                self._announced = self._header = None
                self._parts = []
                self.pending_bytes, self.missing_bytes = 0, _PREFIX.size
        except ChannelError:
            # The next frame's start is unknown: nothing behind this point can be trusted.
            self._broken = True
            self._head.clear()
            self._parts, self._part = [], io.BytesIO()
            self.pending_bytes = 0
            raise
        return frames

    def _take_head(self, data: bytes, at: int) -> int:
        """Take bytes of a prefix or a header. Return where those end that were taken."""
        size = _PREFIX.size if self._announced is None else _PREFIX.size + self._announced[0]
        end = min(at + size - len(self._head), len(data))
        self._head += data[at:end]
        self.pending_bytes += end - at
        self.missing_bytes -= end - at
        if len(self._head) < size:
            return end
        if self._announced is None:
            self._announced = head, body = self._announced_sizes(self._head, 0)
            self.missing_bytes = head + body
            if head:
                return end
        self._read_header(bytes(self._head[_PREFIX.size :]), self.missing_bytes)
        self._head.clear()
        return end

    def _take_whole(self, data: bytes, at: int) -> tuple[Frame | None, int]:
        """Take a frame that is all there, as most are. Return it, or None, and where it ends.

        `_take_head` and `_take_parts` do the same for one that comes in pieces, and take longer.
        """
        begin = at + _PREFIX.size
        if len(data) < begin:
            return None, at
        head, body = self._announced_sizes(data, at)
        if len(data) < begin + head + body:
            return None, at
        self._read_header(data[begin : begin + head], body)
        header, self._header = self._header, None
        assert header is not None  # it has just been read
        parts, at = [], begin + head
        for size, is_wanted in zip(self._sizes, self._wanted, strict=True):
            parts.append(data[at : at + size] if is_wanted else b"")
            at += size
        return self._frame(header, tuple(parts)), at

    def _frame(self, header: dict[str, Any], parts: tuple[bytes, ...]) -> Frame:
        dropped = {}
        if not all(self._wanted):
            judged = enumerate(zip(self._sizes, self._wanted, strict=True))
            dropped = {number: size for number, (size, wanted) in judged if size and not wanted}
        return Frame(op=self._op, header=header, parts=parts, dropped=dropped)

    def _announced_sizes(self, data: bytes | bytearray, at: int) -> tuple[int, int]:
        """Return the sizes of a header and of what follows it, as the prefix at `at` announces them."""
        head: int
        body: int
        head, body = _PREFIX.unpack_from(data, at)
        if head > self._limits.header_bytes:
            raise ChannelError(
                f"a frame announced a header of {head} bytes; {self._limits.header_bytes} are allowed"
            )
        if body > self._limits.body_bytes:
            raise ChannelError(f"a frame announced {body} bytes; {self._limits.body_bytes} are allowed")
        return head, body

    def _read_header(self, data: bytes, body: int) -> None:
        """Read a whole header, and ask which parts of the frame are kept, which have `body` bytes in all."""
        if len(data) > _MAX_CONTAINERS and data.count(b"[") + data.count(b"{") > _MAX_CONTAINERS:
            raise ChannelError(f"a frame's header has more than {_MAX_CONTAINERS} objects and lists")
        if len(data) > _MAX_KEYS and data.count(b":") > _MAX_KEYS:
            raise ChannelError(f"a frame's header has more than {_MAX_KEYS} keys")
        try:
            with gc_paused() if len(data) > LARGE_BYTES else nullcontext():
                header = from_json(data, allow_inf_nan=False, cache_strings="keys")
        except (ValueError, RecursionError) as error:
            raise ChannelError(f"a frame's header is not JSON: {str(error)[:200]}") from None
        if not isinstance(header, dict) or type(header.get("op")) is not str:
            raise ChannelError("a frame's header is not an object with an 'op'")
        sizes = header.pop("parts", [])
        if not isinstance(sizes, list) or len(sizes) > self._limits.parts:
            raise ChannelError(
                f"a frame may have at most {self._limits.parts} parts, given as a list of sizes"
            )
        total = 0
        for part_bytes in sizes:
            if type(part_bytes) is not int or part_bytes < 0:
                total = -1
                break
            total += part_bytes
        if total != body:
            raise ChannelError("the sizes of a frame's parts do not add up to its body")
        self._op, self._header, self._sizes = header.pop("op"), header, sizes
        self._wanted = self._keep(self._op, header, sizes) if sizes else ()

    def _take_parts(self, data: bytes, at: int) -> int:
        """Take bytes of the parts. Return where those end that were taken."""
        while self.missing_bytes and at < len(data):
            size, is_wanted = self._sizes[len(self._parts)], self._wanted[len(self._parts)]
            end = min(at + size - self._arrived, len(data))
            is_whole = end - at == size
            if is_wanted and not is_whole:
                if not self._arrived:
                    # All of it at once: a large piece of memory takes none until something is written to it,
                    # and what is written to its end becomes `bytes` without a copy.
                    self._part = io.BytesIO(bytes(size))
                self._part.write(memoryview(data)[at:end])
            self._arrived += end - at
            self.pending_bytes += end - at
            self.missing_bytes -= end - at
            if self._arrived == size:
                whole = data[at:end] if is_whole else self._part.getvalue()
                self._parts.append(whole if is_wanted else b"")
                self._arrived, self._part = 0, io.BytesIO()
            at = end
        return at


def text_field(header: Mapping[str, Any], name: str) -> str:
    """Return a field of a header that is text.

    Raises:
        ChannelError: If it is missing, or anything else.
    """
    value = header.get(name)
    if type(value) is not str:
        raise ChannelError(f"a frame has an unknown form: its {name!r} is not text")
    return value


def count_field(header: Mapping[str, Any], name: str) -> int:
    """Return a field of a header that is a whole number, and not negative.

    Raises:
        ChannelError: If it is missing, or anything else.
    """
    value = header.get(name)
    if type(value) is not int or not 0 <= value < _MAX_COUNT:
        raise ChannelError(f"a frame has an unknown form: its {name!r} is not a whole number from 0 to 2**53")
    return value


def _fill_standard_descriptors() -> None:
    """Open what is closed of 0, 1 and 2, of no more use than before: no other file may get its number.

    User code may close them. A socket that came next would be taken for a standard stream: programs would
    write into it, and a reader would put its own output in its place.
    """
    for number, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        # Race: a thread of user code may open or close any of them meanwhile.
        with suppress(OSError):
            os.fstat(number)
            continue
        with suppress(OSError):
            opened = os.open(os.devnull, mode)  # it gets the lowest number that is free
            if opened == number:
                os.set_inheritable(opened, True)
            else:
                os.close(opened)


class BlockingChannel:
    """The worker's end of the channel: blocking writes of whole frames, and single reads.

    User code shares the process, so `send` can be interrupted anywhere: by other threads, by a signal handler
    that prints or raises in the middle of a frame, by a finaliser that prints. Frames never mix, and one that
    was cut off by an exception is completed by the next `send`. It can change the socket, too: `send` and
    `receive` work, and block, whether or not the socket itself blocks.

    Attributes:
        descriptors: Descriptors that came with frames, in order. The handler of a frame takes its own.
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
        _fill_standard_descriptors()
        while True:
            try:
                data, descriptors, flags, _ = socket.recv_fds(
                    self._socket, _RECV_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
                break
            except BlockingIOError:
                self._wait(select.POLLIN)
        if flags & socket.MSG_CTRUNC:
            # User code has so many files open that the kernel has dropped some. A part of them is of no use.
            for number in descriptors:
                os.close(number)
        else:
            self.descriptors.extend(descriptors)
        if not data:
            raise EOFError
        return self._reader.feed(data)

    def take_descriptor(self) -> int | None:
        """Return the next of `descriptors`; None if this process had too many files open to receive it."""
        return self.descriptors.popleft() if self.descriptors else None

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
