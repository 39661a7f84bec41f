"""Reading the frames of one process: each is handled before the next one, also when that takes many steps.

Threat
    Whoever writes at the other end is hostile. It sends a thousand frames that are read at once, each of
    which costs little; frames that take a task to handle, such as a large display; more of them while the
    first is in work; and it dies, or is replaced, or is stopped meanwhile.
Mechanism
    Frames wait in one queue. Handling pauses after some milliseconds, and goes on when the loop has come
    round. While a task handles a frame, nothing more is read: what follows waits in the queue, at most what
    one read brings, and behind it in the socket, where the sender has to wait, too.
Race window
    News of the death of the process may come while frames wait. `drain` has them handled first, and what is
    still in the socket, up to a bound: a child of the process may have the socket, and go on for ever.
When it fails
    A frame that is malformed or cannot be handled breaks the channel: it is stopped, and says why, once.
    Nothing is raised into the event loop. So it is when the loop cannot watch the socket any more.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from aisotools.core.concurrency import STEP_S, gc_paused
from aisotools.core.exceptions import ChannelError, SandboxError
from aisotools.sandbox.frames import LARGE_BYTES, Frame, KeepParts, keep_all
from aisotools.sandbox.host.frame_socket import FrameSocket

_log = logging.getLogger(__name__)


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

    def write(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send `data`; see `FrameSocket.write`.

        Raises:
            ChannelError: If descriptors cannot go at once. Nothing was sent then.
        """
        self._socket.write(data, descriptors)

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
            work.cancel()

    def close(self) -> None:
        """Stop, and close the socket; closing twice is fine."""
        self.stop()
        self._socket.close()
