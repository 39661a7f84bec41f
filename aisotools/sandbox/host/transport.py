"""What connects the host with one process: the socket of its frames, and the pipes of what programs write.

Frames are handled one after the other. `RawOutput` reads what the programs of a worker or a reader write past
Python; a frame says how much of that comes before it.

Threat
    Whoever writes at the other end is hostile. It sends open files along, or more than anybody can take, and
    does not read what is sent to it. It sends a thousand frames that are read at once, each of which costs
    little; frames that take a task to handle, such as a large display; more of them while the first is in
    work; and it dies, or is replaced, or is stopped meanwhile.
Mechanism
    `FrameSocket` reads little at a time, and no more behind a large frame than at any other time. What waits
    to be sent is bounded, and open files that come with bytes are taken for an attack; see
    `aisotools.sandbox.process.descriptors`. Frames wait in one queue. Handling pauses after some
    milliseconds, and goes on when the loop has come round. While a task handles a frame, nothing more is
    read: what follows waits in the queue, at most what one read brings, and behind it in the socket, where
    the sender has to wait, too.
Race window
    News of the death of the process may come while frames wait. `drain` has them handled first, and what is
    still in the socket, up to a bound: a child of the process may have the socket, and go on for ever.
When it fails
    A frame that is malformed or cannot be handled breaks the channel: it is stopped, and says why, once.
    Nothing is raised into the event loop. So it is when the loop cannot watch the socket any more.
"""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

from aisotools.core.concurrency import STEP_S, cancel_future, gc_paused
from aisotools.core.exceptions import ChannelError, SandboxError
from aisotools.sandbox.frames import LARGE_BYTES, Frame, FrameReader, KeepParts, keep_all
from aisotools.sandbox.host.watches import watch, watch_writing
from aisotools.sandbox.process.descriptors import discard_socket, receive, refuses_descriptors

_log = logging.getLogger(__name__)

READ_BYTES = 1 << 16
"""How much is read at once, so that one busy worker does not hold up the event loop."""

MAX_BUFFERED_BYTES = 256 << 20
"""Unsent bytes above which a worker counts as one that has stopped reading."""

_LAST_WORDS_BYTES = 4096
# Raw output that is read at most when a worker or a reader ends: more than a pipe holds.
_DRAIN_BYTES = 1 << 24


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

    def write(self, data: bytes, descriptors: Sequence[int] = (), more: Sequence[bytes] = ()) -> None:
        """Send `data` and then `more`; buffer what cannot go at once.

        Args:
            data: What is sent.
            descriptors: Attached to its first byte.
            more: Further pieces of the same message.

        Raises:
            ChannelError: If descriptors cannot go at once. Nothing was sent then.
        """
        if self._waiting and descriptors:
            raise ChannelError("The worker has not read earlier messages yet.")
        rest: deque[memoryview] = deque(memoryview(piece) for piece in (data, *more))
        while rest and not self._waiting:
            first = rest.popleft()
            try:
                if descriptors:
                    sent = socket.send_fds(self._socket, [first], descriptors)
                else:
                    sent = self._socket.send(first)
            except BlockingIOError:
                if descriptors:
                    # Buffered bytes go without descriptors: the worker would wait for one that never comes.
                    raise ChannelError("The worker has not read earlier messages yet.") from None
                sent = 0
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:  # which only a message with descriptors can meet
                    raise ChannelError(
                        "Too many descriptors of this user are on their way between processes."
                    ) from None
                # The peer is gone. The reader reports that, after the frames that arrived before.
                return
            descriptors = ()
            if sent == len(first):
                continue
            # Partial write: the kernel took the first `sent` bytes, and the descriptors with them.
            rest.appendleft(first[sent:])
            try:
                watch_writing(self._loop, self._socket, self._flush)
            except SandboxError:
                # Nothing would ever send the rest. The peer has got a piece of a message, so it must end.
                self._on_overflow()
                return
            break
        size = sum(map(len, rest))
        if self._waiting_bytes + size > MAX_BUFFERED_BYTES:
            self._on_overflow()
            return
        self._waiting.extend(rest)
        self._waiting_bytes += size

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


class FrameChannel:
    """The frames of one process, read from its socket on the running loop."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        handle: Callable[[Frame], asyncio.Task[None] | None],
        on_read: Callable[[], None],
        on_handled: Callable[[], None],
        on_idle: Callable[[], None],
        on_closed: Callable[[], None],
        on_broken: Callable[[str], None],
        on_overflow: Callable[[], None],
        keep: KeepParts = keep_all,
    ) -> None:
        """Read from now on.

        Args:
            sock: Our end; closed by `close`.
            handle: Handles a frame. Returns None if that is done, or the task that does it.
            on_read: Called when something has come, before it is handled.
            on_handled: Called when all of it is handled.
            on_idle: Called when nothing waits any more, if something had to wait.
            on_closed: Called at the end of the stream.
            on_broken: Called with the reason, once, if the channel cannot be used any more.
            on_overflow: Called when the process does not read what is sent to it.
            keep: Says which parts of frames are stored.

        Raises:
            SandboxError: The loop cannot watch the socket.
        """
        self._loop = asyncio.get_running_loop()
        self._handle = handle
        self._on_read = on_read
        self._on_handled = on_handled
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._on_broken = on_broken
        self._frames: deque[Frame] = deque()
        self._work: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._is_paused = self._is_stopped = self._has_waited = False
        # What remains to be read before somebody is told that the process has ended, and how.
        self._draining: tuple[int, Callable[[], None]] | None = None
        self._socket = FrameSocket(sock, on_readable=self.read, on_overflow=on_overflow, keep=keep)

    def __repr__(self) -> str:
        state = "stopped" if self._is_stopped else "busy" if self.is_busy else "idle"
        return f"<FrameChannel {state} {self._socket!r}>"

    @property
    def is_busy(self) -> bool:
        """True while frames that have been read wait for one that is being handled."""
        return self._work is not None or bool(self._frames)

    def write(self, data: bytes, descriptors: Sequence[int] = (), more: Sequence[bytes] = ()) -> None:
        """Send `data` and `more`; see `FrameSocket.write`.

        Raises:
            ChannelError: If descriptors cannot go at once. Nothing was sent then.
        """
        self._socket.write(data, descriptors, more)

    # ---- reading

    def read(self) -> bool:
        """Read once and handle what came. Return whether there was anything; False while frames wait."""
        if self.is_busy or self._is_stopped:
            return False
        try:
            data = self._socket.read()
        except ChannelError as error:
            self._break(f"it broke the protocol of the call channel: {error}")
            return False
        if data is None:
            return False
        self._on_read()
        if not data:
            self._socket.pause_reading()
            self._on_closed()
            return False
        reader = self._socket.reader
        with gc_paused() if reader.pending_bytes + len(data) > LARGE_BYTES else nullcontext():
            try:
                self._frames.extend(reader.feed(data))
            except ChannelError as error:
                self._break(f"it broke the protocol of the call channel: {error}")
                return True
            self._handle_frames()
        return True

    def _handle_frames(self) -> None:
        """Handle the frames that wait, until one takes a task or it has taken some milliseconds."""
        ends_s = time.monotonic() + STEP_S
        try:
            while self._frames:
                self._work = self._handle(self._frames.popleft())
                if self._work is not None:
                    self._has_waited = True
                    # Not while it runs, or the loop would call us over and over.
                    self._socket.pause_reading()
                    self._work.add_done_callback(self._on_work_done)
                    return
                if self._frames and time.monotonic() >= ends_s:
                    self._has_waited = True
                    self._loop.call_soon(self._go_on)
                    return
            if not self._is_stopped:
                self._on_handled()
        except Exception as error:
            self._explain(error)

    def _on_work_done(self, work: asyncio.Task[None]) -> None:
        error = None if work.cancelled() else work.exception()
        if self._work is not work:
            return  # stopped, which has cancelled it
        self._work, self._failure = None, error
        self._go_on()

    def _go_on(self) -> None:
        """Handle what waits, and then read again."""
        if self._is_paused or self._is_stopped or self._work is not None:
            return
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._explain(failure)
            return
        with gc_paused():
            self._handle_frames()
        if not self.is_busy and not self._is_stopped:
            self._end_wait()

    def _end_wait(self) -> None:
        self._has_waited = False
        if self._draining is None:
            try:
                self._socket.resume_reading()
            except SandboxError as error:
                self._break(str(error))
                return
        self._on_idle()
        if self._draining is not None:
            self._drain_on()

    def _explain(self, error: BaseException) -> None:
        if isinstance(error, ChannelError):
            self._break(f"it broke the protocol of the call channel: {error}")
            return
        # Nothing that a process sends may reach the event loop as an exception: it would be reported there,
        # and the process would go on. Each form is checked; this is for what was overlooked.
        _log.error("A frame was not understood", exc_info=error)
        self._break(f"it sent a frame that could not be handled ({type(error).__name__})")

    def _break(self, reason: str) -> None:
        if not self._is_stopped:
            self.stop()
            self._on_broken(reason)

    # ---- pausing and ending

    def pause_reading(self) -> None:
        """Read and handle nothing until `resume_reading`; a frame that is in work is finished."""
        self._is_paused = True
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Go on.

        Raises:
            SandboxError: The loop cannot watch the socket.
        """
        self._is_paused = False
        if self._is_stopped:
            return
        if self._has_waited or self._draining is not None:
            self._loop.call_soon(self._go_on)
        else:
            self._socket.resume_reading()

    def drain(self, reads: int, then: Callable[[], None]) -> None:
        """Handle what the process has sent, reading at most so often, and call `then`: it has ended.

        That is now, unless something has to wait. A channel that is stopped before does not call it.
        """
        self._draining = reads, then
        if not self._is_paused and not self.is_busy:
            self._drain_on()

    def _drain_on(self) -> None:
        ends_s = time.monotonic() + STEP_S
        while self._draining is not None and not self._is_stopped:
            reads, then = self._draining
            if reads and self.read():
                self._draining = reads - 1, then
                if self.is_busy:
                    return  # `_go_on` comes back here
                if time.monotonic() >= ends_s:
                    self._loop.call_soon(self._go_on)
                    return
            else:
                self._draining = None
                then()

    def stop(self) -> None:
        """Read and handle nothing more, and cancel what is in work; stopping twice is fine."""
        self._is_stopped = True
        self._frames.clear()
        self._draining = None
        self._socket.pause_reading()
        work, self._work = self._work, None
        if work is not None:
            cancel_future(work)

    def close(self) -> None:
        """Stop, and close the socket; closing twice is fine."""
        self.stop()
        self._socket.close()


# ---- raw output


class ReaderPipes:
    """The pipes of a reader that is being made: its raw output, and the numbers of calls to interrupt.

    Attributes:
        theirs: What the reader gets: standard output, standard error, and the read end for interrupts.
        out: Our end of its standard output, which never blocks.
        err: Our end of its standard error, likewise.
        interrupts: Our end of the pipe for interrupts, likewise.
    """

    def __init__(self) -> None:
        """Make them.

        Raises:
            SandboxError: If this process has no descriptors left.
        """
        descriptors: list[int] = []
        try:
            for _ in range(3):
                descriptors += os.pipe()
        except OSError as error:
            for descriptor in descriptors:
                os.close(descriptor)
            raise SandboxError(f"the host could not make a pipe for it ({error.strerror})") from None
        out, their_out, err, their_err, their_interrupts, interrupts = descriptors
        for descriptor in (out, err, interrupts):
            os.set_blocking(descriptor, False)
        self.theirs: tuple[int, ...] = (their_out, their_err, their_interrupts)
        self.out, self.err, self.interrupts = io.FileIO(out), io.FileIO(err), io.FileIO(interrupts, "w")

    def close_theirs(self) -> None:
        """Close the ends that the reader has got."""
        for descriptor in self.theirs:
            os.close(descriptor)
        self.theirs = ()

    def close_output(self) -> None:
        """Close our ends of its standard output and standard error."""
        self.out.close()
        self.err.close()

    def close(self) -> None:
        """Close everything."""
        self.close_theirs()
        self.close_output()
        self.interrupts.close()


class RawOutput:
    """What programs wrote to the standard output and standard error of a worker or a reader.

    Attributes:
        bytes_read: By stream, since whoever reads the call channel last cleared it.
    """

    def __init__(
        self,
        pipes: Mapping[str, io.FileIO],
        *,
        on_readable: Callable[[str], None],
        handle: Callable[[str, bytes], None],
    ) -> None:
        """Read on the running loop; before `start` only what is asked for.

        Args:
            pipes: Our ends by stream, which never block; whoever made them closes them.
            on_readable: Called with a stream when there is something to `read`.
            handle: Called with a stream and what was read.
        """
        self.bytes_read: Counter[str] = Counter()
        self._loop = asyncio.get_running_loop()
        self._pipes = pipes
        self._on_readable = on_readable
        self._handle = handle
        self._last_words = bytearray()

    def start(self) -> None:
        """Watch the pipes.

        Raises:
            SandboxError: The loop cannot; none of them is watched.
        """
        try:
            for stream, pipe in self._pipes.items():
                watch(self._loop, pipe, self._on_readable, stream)
        except SandboxError:
            self.stop()
            raise

    @property
    def last_words(self) -> str:
        """The end of what was read."""
        return self._last_words.decode("utf-8", "replace").strip()

    def forget_last_words(self) -> None:
        """Begin anew: another process writes from now on."""
        self._last_words.clear()

    def read(self, stream: str, max_bytes: int = READ_BYTES) -> int:
        """Read once and hand it on. Return the number of bytes."""
        pipe = self._pipes[stream]
        data = b"" if pipe.closed else pipe.read(min(max_bytes, READ_BYTES))
        if not data:
            # Empty is the end of the pipe; None is that there is nothing just now.
            if data is not None and not pipe.closed:
                self._loop.remove_reader(pipe)
            return 0
        self.bytes_read[stream] += len(data)
        self._last_words = (self._last_words + data)[-_LAST_WORDS_BYTES:]
        self._handle(stream, data)
        return len(data)

    def drain(self, stream: str, unread_bytes: int) -> None:
        """Read what had not been read when the frame in hand was sent."""
        remaining = unread_bytes - self.bytes_read[stream]
        while remaining > 0 and (count := self.read(stream, remaining)):
            remaining -= count

    def drain_all(self) -> None:
        """Read what the pipes hold, since nothing may come after it."""
        for stream in self._pipes:
            self.drain(stream, _DRAIN_BYTES)

    def stop(self) -> None:
        """Read no more when something comes; stopping twice is fine."""
        for pipe in self._pipes.values():
            if not pipe.closed:
                self._loop.remove_reader(pipe)
