"""The host's end of one worker: its sockets on the event loop.

Everything read here is hostile. What is out of form ends the worker.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import from_json, to_json

from aisotools.contracts import SandboxListener
from aisotools.exceptions import ChannelError, SandboxError, WorkerDied
from aisotools.sandbox.calls import Calls, Pending
from aisotools.sandbox.channel import Frame, FrameReader, encode
from aisotools.sandbox.spawn import Ends
from aisotools.sandbox.watch import Watch

_READ_BYTES = 1 << 16
_ROUNDS = 1024
_LAST_BYTES = 1 << 24
_LAST_WORDS_BYTES = 4096
_BACKLOG_BYTES = 256 << 20
_SILENT_S = 0.1
_GONE_S = 6.0


class Link:
    """A worker as the host sees it.

    Attributes:
        calls: The calls under way.
        shipped: Keys of the tools that the worker has.
        ready: Done when the worker is confined and serves.
        ended: Done when no process is left.
        gone: Done when its scratch folder is removed too.
        pid: The worker.
        supervisor: The process above it.
        scratch: Its folder for temporary files.
        watch: Looks after the limits, until the tree is lost.
        lost_because: Why it is lost, or None.
    """

    def __init__(self, ends: Ends, listener: SandboxListener, on_lost: Callable[[Link, str], None]) -> None:
        """Watch `ends` on the running loop; `on_lost` hears once why the worker is gone."""
        self._loop = asyncio.get_running_loop()
        self._channel, self._control = ends.channel, ends.control
        self._raw = {"stdout": ends.out, "stderr": ends.err}
        self._on_lost = on_lost
        self._reader = FrameReader()
        self._backlog = bytearray()
        self._raw_taken = dict.fromkeys(self._raw, 0)
        self._last_words = bytearray()
        self._acks: dict[int, asyncio.Future[None]] = {}
        self._requests = 0
        self.calls = Calls(listener, self._drain_raw)
        self.calls.answer = self._answer
        self.shipped: set[str] = set()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self.pid = 0
        self.supervisor = 0
        self.scratch = ""
        self.watch: Watch | None = None
        self.lost_because: str | None = None
        self._loop.add_reader(self._channel, self._read_channel)
        self._loop.add_reader(self._control, self._read_control)
        for stream, pipe in self._raw.items():
            self._loop.add_reader(pipe, self._hear_raw, stream)

    def __repr__(self) -> str:
        state = f"lost: {self.lost_because}" if self.lost_because is not None else f"{len(self.calls)} calls"
        return f"<Link pid={self.pid} {state}>"

    @property
    def last_words(self) -> str:
        """The end of what the worker wrote to its raw output."""
        return self._last_words.decode("utf-8", "replace").strip()

    # ---- calls

    def start_call(
        self, call_id: str, header: Mapping[str, Any], parts: list[bytes], *, stream_bytes: int, holds: bool
    ) -> Pending:
        """Send a call; it is in `calls` until it is ended there.

        Raises:
            WorkerDied: If the worker is gone already.
            ChannelError: If the call is too large to send.
        """
        if self.lost_because is not None:
            raise WorkerDied(self.lost_because, last_words=self.last_words)
        call = self.calls.begin(call_id, stream_bytes=stream_bytes, holds=holds)
        try:
            self._write(encode("call", {**header, "id": call.number, "call_id": call_id}, parts))
        except ChannelError:
            self.calls.end(call)
            raise
        return call

    def _answer(self, op: str, header: Mapping[str, Any]) -> None:
        if self.lost_because is None:
            self._write(encode(op, header))

    def cancel_call(self, call: Pending) -> None:
        """Have the call cancelled where it waits, and interrupted where it runs."""
        if self.lost_because is None:
            self._write(encode("cancel", {"id": call.number}))
            self._tell({"op": "interrupt", "number": call.number, **self._scope(call)})

    async def sweep(self, call: Pending, *, within_s: float) -> None:
        """End every process that a call left behind; does not wait longer than `within_s`."""
        if self.lost_because is not None:
            return
        self._requests += 1
        ack = self._acks[self._requests] = self._loop.create_future()
        self._tell({"op": "sweep", "seq": self._requests, **self._scope(call)})
        await asyncio.wait([ack, self.ended], timeout=within_s, return_when=asyncio.FIRST_COMPLETED)

    def _scope(self, call: Pending) -> dict[str, Any]:
        """By what the supervisor knows the processes that the call has started."""
        others = [other.call_id for other in self.calls if other is not call]
        return {"since": call.since, "mark": call.call_id, "others": others, "holds": call.holds}

    async def end(self, reason: str) -> None:
        """End the worker and everything it started; returns when nothing is left."""
        self.lose(reason)
        if not self.gone.done():
            # A supervisor that does not answer loses its lifeline below, which ends the tree as well.
            await asyncio.wait([self.gone], timeout=_GONE_S)
        self.close()

    # ---- sockets

    def _tell(self, message: Mapping[str, Any]) -> None:
        try:
            self._control.send(to_json(message))
        except OSError as error:
            self.lose(f"its supervisor is gone ({error.strerror})")

    def _write(self, data: bytes) -> None:
        if not self._backlog:
            try:
                sent = self._channel.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the reader will hear of the end, and what came before it
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._channel, self._flush)
        if len(self._backlog) + len(data) > _BACKLOG_BYTES:
            self.lose("it stopped reading its calls")
            return
        self._backlog += data

    def _flush(self) -> None:
        try:
            with memoryview(self._backlog) as view:
                sent = self._channel.send(view[: 4 * _READ_BYTES])
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._backlog)  # nobody reads it any more
        del self._backlog[:sent]
        if not self._backlog:
            self._loop.remove_writer(self._channel)

    def _read_channel(self) -> bool:
        """Read once and take what came; whether there was anything."""
        try:
            # Little at a time, so that the loop stays free; more once a large frame is on its way.
            large = self._reader.pending_bytes > _READ_BYTES
            data = self._channel.recv(4 * _READ_BYTES if large else _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._raw_taken = dict.fromkeys(self._raw, 0)
        if not data:
            self._loop.remove_reader(self._channel)
            # The supervisor will tell how the worker ended, unless it only closed its end.
            self._loop.call_later(_SILENT_S, self.lose, "it closed its call channel")
            return False
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
            self.calls.pass_on()
        except (ChannelError, KeyError, TypeError, ValueError) as error:
            self.lose(f"it broke the protocol of the call channel: {error}")
        return True

    def _hear_raw(self, stream: str) -> None:
        self._read_channel()  # text that was printed before; what came after names the bytes in between
        self._read_raw(stream)

    def _read_raw(self, stream: str, most_bytes: int = _READ_BYTES) -> int:
        """Drain the worker's own descriptor, so that it never blocks; how many bytes there were."""
        pipe = self._raw[stream]
        data = b"" if pipe.closed else pipe.read(min(most_bytes, _READ_BYTES))
        if not data:
            if data is not None and not pipe.closed:
                self._loop.remove_reader(pipe)  # it ended; None is that there is nothing just now
            return 0
        self._raw_taken[stream] += len(data)
        self._last_words = (self._last_words + data)[-_LAST_WORDS_BYTES:]
        self.calls.take_raw(stream, data)
        return len(data)

    def _drain_raw(self, stream: str, unread_bytes: int) -> None:
        """Take in what had not been read when what is now in hand was sent."""
        left = unread_bytes - self._raw_taken[stream]
        while left > 0 and (count := self._read_raw(stream, left)):
            left -= count

    def _take(self, frame: Frame) -> None:
        if self.ready.done():
            self.calls.take(frame)
        elif frame.op == "ready":
            self.ready.set_result(None)
        elif frame.op == "failed":
            self.lose(f"it could not be confined: {str(frame.header.get('error'))[:2000]}")
        else:
            raise ChannelError(f"a frame {frame.op[:40]!r} before it is ready")

    # ---- the supervisor

    def _read_control(self) -> None:
        try:
            packet = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._loop.remove_reader(self._control)
            self.lose("its supervisor is gone")
            self._set_gone()
            return
        message = from_json(packet)
        if message["op"] == "started":
            self.pid, self.supervisor = message["worker"], message["supervisor"]
            self.scratch = message["scratch"]
        elif message["op"] == "done":
            ack = self._acks.pop(message["seq"], None)
            if ack is not None and not ack.done():
                ack.set_result(None)
        elif message["op"] == "died":
            rounds = _ROUNDS  # what it sent before it died still counts
            while self.lost_because is None and rounds and self._read_channel():
                rounds -= 1
            self.lose(_how(message["exit"], message["signal"]))
        elif message["op"] == "ended" and not self.ended.done():
            self.ended.set_result(None)
        elif message["op"] == "gone":
            self._set_gone()

    def _set_gone(self) -> None:
        for future in (self.ended, self.gone):
            if not future.done():
                future.set_result(None)

    # ---- the end

    def lose(self, reason: str) -> None:
        """The worker is lost: fail every call under way, once, and have the tree ended."""
        if self.lost_because is not None:
            return
        for stream in self._raw:
            self._drain_raw(stream, _LAST_BYTES)
        self.lost_because = reason
        if self.watch is not None:
            self.watch.stop()
        error = WorkerDied(reason, last_words=self.last_words)
        self.calls.fail(error)
        if not self.ready.done():
            self.ready.set_exception(SandboxError(f"The worker did not start: {reason}.{_quoted(error)}"))
            self.ready.exception()  # whoever waits will see it; nobody may be waiting any more
        self._tell({"op": "kill"})
        self._on_lost(self, reason)

    def close(self) -> None:
        """Let go of every descriptor; the supervisor ends whatever is still there."""
        if self.lost_because is None:
            self.lost_because = "it was closed"
        for end in (self._channel, self._control):
            if end.fileno() >= 0:
                self._loop.remove_reader(end)
                self._loop.remove_writer(end)
                end.close()
        for pipe in self._raw.values():
            if not pipe.closed:
                self._loop.remove_reader(pipe)
                pipe.close()
        self._set_gone()


def _quoted(error: WorkerDied) -> str:
    return f" Its last words:\n{error.last_words[-2000:]}" if error.last_words else ""


_HINTS = {
    signal.SIGKILL: "; perhaps the machine ran out of memory",
    signal.SIGXCPU: "; it had used up its processor time",
}


def _how(exit_status: int, signal_number: int) -> str:
    if not signal_number:
        return f"it exited with status {exit_status}"
    try:
        told = signal.Signals(signal_number)
    except ValueError:
        return f"it was ended by signal {signal_number}"
    return f"it was ended by {told.name}{_HINTS.get(told, '')}"
