"""What the programs of a worker or a reader write past Python, read from their pipes on the event loop."""

from __future__ import annotations

import asyncio
import io
import os
from collections import Counter
from collections.abc import Callable, Mapping

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.host.frame_channel import READ_BYTES
from aisotools.sandbox.host.watches import watch

_LAST_WORDS_BYTES = 4096
# Raw output that is read at most when a worker or a reader ends: more than a pipe holds.
_DRAIN_BYTES = 1 << 24


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
        left = unread_bytes - self.bytes_read[stream]
        while left > 0 and (count := self.read(stream, left)):
            left -= count

    def drain_all(self) -> None:
        """Read what the pipes hold, since nothing may come after it."""
        for stream in self._pipes:
            self.drain(stream, _DRAIN_BYTES)

    def stop(self) -> None:
        """Read no more when something comes; stopping twice is fine."""
        for pipe in self._pipes.values():
            if not pipe.closed:
                self._loop.remove_reader(pipe)
