"""The host's end of one worker: its sockets on the event loop, and the calls that are under way.

Everything read here is hostile. What is out of form, or too much, ends the worker; what merely names a call
that is not under way is dropped and counted.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json

from aisotools.contracts import SandboxListener
from aisotools.exceptions import ChannelError, SandboxError, WorkerDied
from aisotools.sandbox.channel import Frame, FrameReader, encode
from aisotools.sandbox.spawn import Ends

_READ_BYTES = 1 << 18
_STRIKES = 100
_EMITS = 1000
_EMIT_CHARS = 1 << 16
_LAST_WORDS_BYTES = 4096
_BACKLOG_BYTES = 256 << 20
_GONE_S = 6.0
_ROUNDS = 256


@dataclass(slots=True)
class Pending:
    """One call under way.

    Attributes:
        future: Gets the bytes of the result, or the reason why there is none.
        stream_left: Bytes of printed output that will still be passed on.
        emits_left: Progress reports that will still be passed on.
        raw: Output of the worker's own descriptors while the call held it, by stream.
        holds: Whether the call holds the worker's main thread.
    """

    future: asyncio.Future[bytes]
    stream_left: int
    holds: bool
    emits_left: int = _EMITS
    raw: dict[str, bytearray] = field(default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()})


class Link:
    """A worker as the host sees it."""

    def __init__(self, ends: Ends, listener: SandboxListener, on_lost: Callable[[Link, str], None]) -> None:
        """Watch `ends` on the running loop; `on_lost` hears once why the worker is gone."""
        self._loop = asyncio.get_running_loop()
        self._channel, self._control = ends.channel, ends.control
        self._raw = {"stdout": ends.out, "stderr": ends.err}
        self._listener = listener
        self._on_lost = on_lost
        self._reader = FrameReader()
        self._backlog = bytearray()
        self._strikes = 0
        self._last_words = bytearray()
        self._acks: dict[int, asyncio.Future[None]] = {}
        self._seq = 0
        self._death = ""
        self.pending: dict[str, Pending] = {}
        self.shipped: set[str] = set()
        self.ready: asyncio.Future[Mapping[str, Any]] = self._loop.create_future()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self.pid = 0
        self.supervisor = 0
        self.lost_because: str | None = None
        self._loop.add_reader(self._channel, self._read_channel)
        self._loop.add_reader(self._control, self._read_control)
        for stream, descriptor in self._raw.items():
            self._loop.add_reader(descriptor, self._read_raw, stream)

    def __repr__(self) -> str:
        state = (
            f"lost: {self.lost_because}" if self.lost_because is not None else f"{len(self.pending)} calls"
        )
        return f"<Link pid={self.pid} {state}>"

    @property
    def last_words(self) -> str:
        """The end of what the worker wrote to its raw output."""
        return self._last_words.decode("utf-8", "replace").strip()

    # ---- calls

    def start_call(self, call_id: str, frame: bytes, *, stream_bytes: int, holds: bool) -> Pending:
        """Send a call; it stays in `pending` until the caller takes it out.

        Raises:
            WorkerDied: If the worker is gone already.
        """
        if self.lost_because is not None:
            raise WorkerDied(self.lost_because, last_words=self.last_words)
        call = self.pending[call_id] = Pending(self._loop.create_future(), stream_bytes, holds)
        self._write(frame)
        return call

    def cancel_call(self, call_id: str) -> None:
        """Ask the worker to cancel a call."""
        if self.lost_because is None:
            self._write(encode("cancel", {"id": call_id}))

    async def interrupt(self) -> None:
        """Have the supervisor send SIGINT to the worker, and wait until it has."""
        await self._request("interrupt")

    async def sweep(self, call_id: str) -> None:
        """End every process that a call left behind."""
        await self._request("sweep", mark=call_id)

    async def end(self, reason: str) -> None:
        """End the worker and everything it started; returns when nothing is left."""
        self.lose(reason)
        if not self.gone.done():
            # A supervisor that does not answer loses its lifeline below, which ends the tree as well.
            await asyncio.wait([self.gone], timeout=_GONE_S)
        self.close()

    async def _request(self, op: str, **more: Any) -> None:
        if self.lost_because is not None:
            return
        self._seq += 1
        ack: asyncio.Future[None] = self._loop.create_future()
        self._acks[self._seq] = ack
        self._tell({"op": op, "seq": self._seq, **more})
        await asyncio.wait([ack, self.gone], timeout=_GONE_S, return_when=asyncio.FIRST_COMPLETED)

    def _tell(self, message: Mapping[str, Any]) -> None:
        try:
            self._control.send(to_json(message))
        except OSError as error:
            self.lose(f"its supervisor is gone ({error.strerror})")

    # ---- sockets

    def _write(self, data: bytes) -> None:
        if not self._backlog:
            try:
                sent = self._channel.send(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self.lose(f"its call channel broke ({error.strerror})")
                return
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
                sent = self._channel.send(view[:_READ_BYTES])
        except BlockingIOError:
            return
        except OSError as error:
            self.lose(f"its call channel broke ({error.strerror})")
            return
        del self._backlog[:sent]
        if not self._backlog:
            self._loop.remove_writer(self._channel)

    def _read_channel(self) -> int:
        """Read once and take what came; how many bytes that was."""
        try:
            data = self._channel.recv(_READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.lose(f"its call channel broke ({error.strerror})")
            return 0
        if not data:
            self._loop.remove_reader(self._channel)
            # The supervisor will tell how the worker ended, unless it only closed its end.
            self._loop.call_later(0.2, self.lose, "it closed its call channel")
            return 0
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except (ChannelError, KeyError, TypeError, ValueError) as error:
            self.lose(f"it broke the protocol of the call channel: {error}")
        return len(data)

    def _read_raw(self, stream: str) -> int:
        """Drain the worker's own descriptor, so that it never blocks; what is over the cap is dropped."""
        try:
            data = os.read(self._raw[stream], _READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._loop.remove_reader(self._raw[stream])
            return 0
        self._last_words = (self._last_words + data)[-_LAST_WORDS_BYTES:]
        for call_id, call in self.pending.items():
            if call.holds and call.stream_left > 0:
                kept = data[: call.stream_left]
                call.stream_left -= len(kept)
                call.raw[stream] += kept
                self._listener.output(call_id, stream, kept.decode("utf-8", "replace"))
        return len(data)

    def _drain_raw(self) -> None:
        for stream, descriptor in self._raw.items():
            rounds = _ROUNDS  # a worker that keeps writing must not keep us here
            while descriptor >= 0 and rounds and self._read_raw(stream):
                rounds -= 1

    # ---- frames

    def _take(self, frame: Frame) -> None:
        if frame.op == "ready" and not self.ready.done():
            self.ready.set_result(frame.header)
            return
        if frame.op == "failed" and not self.ready.done():
            self.lose(f"it could not be confined: {str(frame.header.get('error'))[:2000]}")
            return
        call_id = frame.header["id"]
        call = self.pending.get(call_id) if isinstance(call_id, str) else None
        if call is None:
            if frame.op == "out" and call_id == "":
                return  # printed by something that outlived its call
            self._strike()
        elif frame.op == "out":
            self._take_output(call_id, call, frame)
        elif frame.op == "emit":
            self._take_emit(call_id, call, frame)
        elif frame.op == "done" and len(frame.parts) == 1:
            self._drain_raw()
            if not call.future.done():
                call.future.set_result(frame.parts[0])
        else:
            raise ChannelError(f"unknown frame {frame.op[:40]!r}")

    def _take_output(self, call_id: str, call: Pending, frame: Frame) -> None:
        stream, text = frame.header["stream"], frame.header["text"]
        if stream not in {"stdout", "stderr"} or not isinstance(text, str):
            raise ChannelError("printed output of an unknown kind")
        text = text[: max(call.stream_left, 0)]
        call.stream_left -= len(text)
        if text:
            self._listener.output(call_id, stream, text)

    def _take_emit(self, call_id: str, call: Pending, frame: Frame) -> None:
        name, payload = frame.header["name"], frame.header["payload"]
        if not isinstance(name, str) or not isinstance(payload, dict):
            raise ChannelError("a progress report of an unknown form")
        call.emits_left -= 1
        if call.emits_left < 0 or len(to_json(payload)) > _EMIT_CHARS:
            self._strike()
            return
        self._listener.emitted(call_id, name[:200], payload)

    def _strike(self) -> None:
        self._strikes += 1
        if self._strikes > _STRIKES:
            raise ChannelError(f"more than {_STRIKES} messages that belong to no call")

    # ---- the supervisor

    def _read_control(self) -> None:
        try:
            packet = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self.lose("its supervisor is gone")
            self._set_gone()
            return
        message = from_json(packet)
        if message["op"] == "started":
            self.pid, self.supervisor = message["worker"], message["supervisor"]
        elif message["op"] == "done":
            ack = self._acks.pop(message["seq"], None)
            if ack is not None and not ack.done():
                ack.set_result(None)
        elif message["op"] == "died":
            rounds = _ROUNDS  # what it sent before it died still counts
            while self.lost_because is None and rounds and self._read_channel():
                rounds -= 1
            self.lose(_how(message["exit"], message["signal"]))
        elif message["op"] == "gone":
            self._set_gone()

    def _set_gone(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)

    # ---- the end

    def lose(self, reason: str) -> None:
        """The worker is lost: fail every call under way, once, and have the tree ended."""
        if self.lost_because is not None:
            return
        self._drain_raw()
        self.lost_because = reason
        error = WorkerDied(reason, last_words=self.last_words)
        for call in self.pending.values():
            if not call.future.done():
                call.future.set_exception(error)
                call.future.exception()  # whoever waits will see it; nobody may be waiting any more
        if not self.ready.done():
            self.ready.set_exception(SandboxError(f"The worker did not start: {reason}."))
            self.ready.exception()  # somebody may not be waiting any more
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
        for stream, descriptor in self._raw.items():
            if descriptor >= 0:
                self._loop.remove_reader(descriptor)
                os.close(descriptor)
                self._raw[stream] = -1
        self._set_gone()


def _how(exit_status: int, signal_number: int) -> str:
    if signal_number:
        try:
            name = signal.Signals(signal_number).name
        except ValueError:
            name = f"signal {signal_number}"
        return f"it was ended by {name}"
    return f"it exited with status {exit_status}"
