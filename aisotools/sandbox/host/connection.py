"""The host's end of one worker: its sockets on the event loop.

Everything read here is hostile. What is out of form ends the worker.

One generation of a worker as the host holds it: its process, and the host's end of its call channel.

Each generation has a socket of its own, so that nothing late can be mistaken for what the next one says.
Whole frames in, bytes out, never blocking.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json, to_json

from aisotools.core.exceptions import ChannelError, SandboxError, WorkerDied
from aisotools.core.protocols import SandboxListener
from aisotools.sandbox.frames import Frame, FrameReader, encode
from aisotools.sandbox.host.calls import CallTable, PendingCall
from aisotools.sandbox.host.monitor import ResourceMonitor
from aisotools.sandbox.process import tree
from aisotools.sandbox.process.spawn import WorkerHandles

READ_BYTES = 1 << 16
"""How much is read at once, so that the loop stays free."""

_BACKLOG_BYTES = 256 << 20


class FrameSocket:
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


class WorkerProcess:
    """One worker process in a tree: the first, or a fork that was woken in its place.

    Attributes:
        wire: Its call channel.
        pid: Its process id.
        pidfd: A descriptor of the process, or -1 where its end is told by the supervisor.
        shipped: Keys of the tools that it has.
    """

    __slots__ = ("pid", "pidfd", "shipped", "wire")

    def __init__(
        self, wire: FrameSocket, *, pid: int = 0, pidfd: int = -1, shipped: set[str] | None = None
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


_ROUNDS = 1024
_LAST_BYTES = 1 << 24
_LAST_WORDS_BYTES = 4096
_SILENT_S = 0.1
_GONE_S = 6.0


class WorkerConnection:
    """A worker as the host sees it.

    Attributes:
        calls: The calls under way.
        on_down: Hears that the worker is gone while its tree is still there; True if it brings another.
        spared: Tells processes that belong to no call: the parked forks.
        ready: Done when the worker is confined and serves.
        ended: Done when no process is left.
        gone: Done when its scratch folder is removed too.
        supervisor: The process above it.
        scratch: Its folder for temporary files.
        watch: Looks after the limits, until the tree is lost.
        down_because: Why there is no worker just now, or None.
        lost_because: Why the whole tree is lost, or None.
    """

    def __init__(
        self, ends: WorkerHandles, listener: SandboxListener, on_lost: Callable[[WorkerConnection, str], None]
    ) -> None:
        """Watch `ends` on the running loop; `on_lost` hears once why the worker is gone."""
        self._loop = asyncio.get_running_loop()
        self._control = ends.control
        self._raw = {"stdout": ends.out, "stderr": ends.err}
        self._on_lost = on_lost
        self._raw_taken = dict.fromkeys(self._raw, 0)
        self._last_words = bytearray()
        self._acks: dict[int, asyncio.Future[None]] = {}
        self._requests = 0
        self.calls = CallTable(listener, self._drain_raw)
        self.calls.answer = self._answer
        self._now = self.generation(ends.channel)
        self._leaving = False
        self.on_down: Callable[[WorkerConnection, str], bool] | None = None
        self.spared: Callable[[], Sequence[int]] = list
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self.supervisor = 0
        self.scratch = ""
        self.watch: ResourceMonitor | None = None
        self.down_because: str | None = None
        self.lost_because: str | None = None
        self._loop.add_reader(self._control, self._read_control)
        for stream, pipe in self._raw.items():
            self._loop.add_reader(pipe, self._hear_raw, stream)

    def __repr__(self) -> str:
        state = f"lost: {self.lost_because}" if self.lost_because is not None else f"{len(self.calls)} calls"
        return f"<Link pid={self.pid} {state}>"

    @property
    def pid(self) -> int:
        """The worker."""
        return self._now.pid

    @property
    def serving(self) -> bool:
        """Whether there is a worker that can take calls."""
        return self.lost_because is None and self.down_because is None

    @property
    def shipped(self) -> set[str]:
        """Keys of the tools that the worker has."""
        return self._now.shipped

    @property
    def last_words(self) -> str:
        """The end of what the worker wrote to its raw output."""
        return self._last_words.decode("utf-8", "replace").strip()

    # ---- calls

    def start_call(
        self,
        call_id: str,
        header: Mapping[str, Any],
        parts: list[bytes],
        *,
        stream_bytes: int,
        holds: bool,
        attached: Sequence[int] = (),
    ) -> PendingCall:
        """Send a call; it is in `calls` until it is ended there.

        Raises:
            WorkerDied: If the worker is gone already.
            ChannelError: If the call is too large to send.
        """
        because = self.lost_because or self.down_because
        if because is not None:
            raise WorkerDied(because, last_words=self.last_words)
        call = self.calls.begin(call_id, stream_bytes=stream_bytes, holds=holds)
        try:
            told = {**header, "id": call.number, "call_id": call_id}
            if attached:
                told["attached"] = len(attached)
            self._now.wire.write(encode("call", told, parts), attached)
        except ChannelError:
            self.calls.end(call)
            raise
        return call

    def _answer(self, op: str, header: Mapping[str, Any]) -> None:
        if self.lost_because is None:
            self._now.wire.write(encode(op, header))

    def cancel_call(self, call: PendingCall) -> None:
        """Have the call cancelled where it waits, and interrupted where it runs."""
        if self.lost_because is None:
            self._now.wire.write(encode("cancel", {"id": call.number}))
            scope = {**self._scope(call), "keep": list(self.spared())}
            self._tell({"op": "interrupt", "number": call.number, **scope})

    async def sweep(self, call: PendingCall, *, within_s: float) -> None:
        """End every process that a call left behind; does not wait longer than `within_s`."""
        if self.serving:
            await self.ask("sweep", within_s=within_s, **self._scope(call))

    def order(self, op: str) -> None:
        """Have the supervisor do something; nobody waits for it."""
        self._tell({"op": op, "seq": 0, "keep": list(self.spared())})

    async def ask(self, op: str, *, within_s: float, **request: Any) -> bool:
        """Have the supervisor do something; whether it has done it in time."""
        self._requests += 1
        ack = self._acks[self._requests] = self._loop.create_future()
        self._tell({"op": op, "seq": self._requests, "keep": list(self.spared()), **request})
        await asyncio.wait([ack, self.ended], timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        return ack.done()

    def _scope(self, call: PendingCall) -> dict[str, Any]:
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

    # ---- generations

    def generation(self, end: socket.socket, **more: Any) -> WorkerProcess:
        """A worker that is served over `end`; see `WorkerProcess` for the rest."""
        end.setblocking(False)
        wire = FrameSocket(end, self._read_channel, lambda: self.go_down("it stopped reading its calls"))
        return WorkerProcess(wire, **more)

    def park(self, end: socket.socket) -> bool:
        """Have the worker fork before its next call, and the fork serve `end`; False if it is behind."""
        wire = self._now.wire
        if wire.behind:
            return False
        wire.write(encode("park"), [end.fileno()])
        return True

    def leave(self) -> None:
        """This worker is about to be replaced: hear nothing of it, its end least of all, until `stay`."""
        self._leaving = True
        self._now.wire.pause()
        if self._now.pidfd >= 0:
            self._loop.remove_reader(self._now.pidfd)

    def stay(self) -> None:
        """It is not replaced after all."""
        self._leaving = False
        self._now.wire.listen()
        if self._now.pidfd >= 0:
            self._loop.add_reader(self._now.pidfd, self._exited)

    def swap(self, generation: WorkerProcess) -> WorkerProcess:
        """Have another worker of the same tree in the place of this one, which is returned, and not heard."""
        self.leave()
        former, self._now = self._now, generation
        self._leaving = False
        for stream in self._raw:
            self._drain_raw(stream, _LAST_BYTES)  # the pipes are the tree's
        self._last_words.clear()
        self.down_because = None
        if generation.pidfd >= 0:
            self._loop.add_reader(generation.pidfd, self._exited)
        generation.wire.listen()
        self._tell({"op": "adopt", "worker": generation.pid})
        return former

    def _exited(self) -> None:
        """A woken worker has ended; its supervisor is not its parent, so the kernel is asked how."""
        self._loop.remove_reader(self._now.pidfd)
        self._heard_out(*tree.exit_status(self._now.pid))

    def go_down(self, reason: str) -> None:
        """There is no worker any more: fail every call under way, and lose the tree if nobody wants it."""
        if not self.serving:
            return
        if self.on_down is not None and self.ready.done() and not self.ready.exception():
            self.down_because = reason
            for stream in self._raw:
                self._drain_raw(stream, _LAST_BYTES)
            self.calls.fail(WorkerDied(reason, last_words=self.last_words))
            if self.on_down(self, reason):
                return
        self.lose(reason)

    # ---- sockets

    def _tell(self, message: Mapping[str, Any]) -> None:
        try:
            self._control.send(to_json(message))
        except OSError as error:
            self.lose(f"its supervisor is gone ({error.strerror})")

    def _read_channel(self) -> bool:
        """Read once and take what came; whether there was anything."""
        wire = self._now.wire
        data = wire.read()
        if data is None:
            return False
        self._raw_taken = dict.fromkeys(self._raw, 0)
        if not data:
            wire.pause()
            # It will be told how the worker ended, unless it only closed its end.
            self._loop.call_later(_SILENT_S, self._silent, self._now)
            return False
        try:
            for frame in wire.frames(data):
                self._take(frame)
            self.calls.pass_on()
        except (ChannelError, KeyError, TypeError, ValueError) as error:
            self.go_down(f"it broke the protocol of the call channel: {error}")
        return True

    def _silent(self, generation: WorkerProcess) -> None:
        if generation is self._now and not self._leaving:
            self.go_down("it closed its call channel")

    def _hear_raw(self, stream: str) -> None:
        self._read_channel()  # text that was printed before; what came after names the bytes in between
        self._read_raw(stream)

    def _read_raw(self, stream: str, most_bytes: int = READ_BYTES) -> int:
        """Drain the worker's own descriptor, so that it never blocks; how many bytes there were."""
        pipe = self._raw[stream]
        data = b"" if pipe.closed else pipe.read(min(most_bytes, READ_BYTES))
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
            self._now.pid, self.supervisor = message["worker"], message["supervisor"]
            self.scratch = message["scratch"]
        elif message["op"] == "done":
            ack = self._acks.pop(message["seq"], None)
            if ack is not None and not ack.done():
                ack.set_result(None)
        elif message["op"] == "died":
            if message.get("worker", self.pid) == self.pid and not self._leaving:
                self._heard_out(message["exit"], message["signal"])
        elif message["op"] == "ended" and not self.ended.done():
            self.ended.set_result(None)
        elif message["op"] == "gone":
            self._set_gone()

    def _heard_out(self, exit_status: int, signal_number: int) -> None:
        """The worker has ended; what it sent before still counts."""
        rounds = _ROUNDS
        while self.serving and rounds and self._read_channel():
            rounds -= 1
        self.go_down(_how(exit_status, signal_number))

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
        if self._now.pidfd >= 0:
            self._loop.remove_reader(self._now.pidfd)
        self._now.close()
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control)
            self._control.close()
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
    if exit_status < 0 and not signal_number:
        return "it ended"
    if not signal_number:
        return f"it exited with status {exit_status}"
    try:
        told = signal.Signals(signal_number)
    except ValueError:
        return f"it was ended by signal {signal_number}"
    return f"it was ended by {told.name}{_HINTS.get(told, '')}"
