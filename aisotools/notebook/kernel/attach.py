"""Attach Jupyter clients to a live session, through a kernel process that the session starts.

The session owns the worker and runs every cell of the client through its gate. The kernel process gets a
socket to the session and a pidfd of the worker, by which it can signal the worker and nothing else: so an
interrupt works even while the session's process is busy.

Both ends are processes of this package, so frames are trusted in form. Much of their content came out of a
sandbox; the kernel process filters it like any other output.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from jupyter_core.paths import jupyter_runtime_dir
from pydantic_core import from_json, to_json

from aisotools.core.events import SandboxStarted, SessionEnded, SessionEvent
from aisotools.core.exceptions import ChannelError, UsageError
from aisotools.core.threads import in_thread
from aisotools.notebook.kernel.session import (
    CellRequest,
    CellResult,
    CodeCompleteness,
    Completion,
    CompletionMatch,
    KernelSession,
    OutputSink,
    SessionConnection,
)
from aisotools.sandbox.frames import Frame, FrameReader, encode
from aisotools.sandbox.host.displays import DisplayMessage, show_in_steps
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.host.watches import watch
from aisotools.sandbox.worker.output import ExecuteOptions
from aisotools.session.session import Session

READY_TIMEOUT_S = 20.0
"""Time for the kernel process to start."""

_READ_BYTES = 1 << 18
# A peer that leaves this much unread has stopped reading; the connection is closed.
_MAX_BACKLOG_BYTES = 256 << 20
# Time for an interrupt to take effect before the session is asked to stop the call.
_INTERRUPT_GRACE_S = 0.15
_EXIT_POLL_S = 0.02
_EXIT_TIMEOUT_S = 2.0


class AttachSocket:
    """One end of a socket pair that carries requests, replies and notifications."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use `open`."""
        self._reader = reader
        self._writer = writer
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._sequence = 0

    @classmethod
    async def open(cls, end: socket.socket) -> Self:
        """Take ownership of a connected socket, which is closed on failure.

        Raises:
            SandboxError: The loop cannot watch it.
        """
        try:
            # Race: asyncio watches it a step later, where a failure reaches nobody and the end stays silent.
            # So it is tried here first; the one watch may still be taken by another program in between.
            loop = asyncio.get_running_loop()
            watch(loop, end, lambda: None)
            loop.remove_reader(end)
            return cls(*await asyncio.open_unix_connection(sock=end))
        except BaseException:
            end.close()
            raise

    async def serve(self, on_frame: Callable[[Frame], Awaitable[None] | None]) -> None:
        """Call `on_frame` with every frame but replies, until the other end is gone.

        What it returns is awaited before the next frame, so that a large display keeps its place.
        """
        frames = FrameReader()
        try:
            while data := await self._reader.read(_READ_BYTES):
                for frame in frames.feed(data):
                    if frame.op == "answer":
                        self._resolve(frame)
                    elif (rest := on_frame(frame)) is not None:
                        await rest
        except (OSError, ChannelError):
            return
        finally:
            self.close()

    async def send_large(self, op: str, payload: Any, parts: tuple[bytes, ...]) -> None:
        """Send a frame with large parts, and wait until the other end has taken most of it."""
        self.send(op, payload, parts)
        with contextlib.suppress(OSError):  # it is gone: see `send`
            await self._writer.drain()

    def send(self, op: str, payload: Any = None, parts: tuple[bytes, ...] = (), **header: Any) -> None:
        """Send a frame with a JSON payload. Does nothing once the other end is gone."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > _MAX_BACKLOG_BYTES:
            self.close()
            return
        body = to_json(payload, inf_nan_mode="strings", serialize_unknown=True)
        self._writer.write(encode(op, header, (body, *parts)))

    async def request(self, op: str, payload: Any = None) -> Any:
        """Send a request and return the reply.

        Raises:
            ChannelError: If the other end is gone.
        """
        self._sequence += 1
        seq = self._sequence
        reply = self._replies[seq] = asyncio.get_running_loop().create_future()
        self.send(op, payload, seq=seq)
        # Race: the other end was gone before this reply was registered, so nobody failed it yet.
        if self._writer.transport.is_closing():
            self.close()
        try:
            return await reply
        finally:
            self._replies.pop(seq, None)

    def reply(self, frame: Frame, payload: Any) -> None:
        """Reply to a request."""
        self.send("answer", payload, seq=frame.header["seq"])

    def close(self) -> None:
        """Close the socket. Pending requests fail with ChannelError."""
        self._writer.close()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(ChannelError("The session is gone."))

    def _resolve(self, frame: Frame) -> None:
        reply = self._replies.get(frame.header["seq"])
        if reply is not None and not reply.done():
            reply.set_result(parse_payload(frame))


def parse_payload(frame: Frame) -> Any:
    """Return the JSON payload of a frame."""
    return from_json(frame.parts[0])


def parse_object(frame: Frame) -> Mapping[str, Any]:
    """Return the JSON object that is the payload of a frame.

    Raises:
        ChannelError: If the payload is not an object.
    """
    value = parse_payload(frame)
    if not isinstance(value, dict):
        raise ChannelError(f"The payload of frame {frame.op!r} is {type(value).__name__}, not an object.")
    return value


_numbers = itertools.count(1)
_live: set[Attachment] = set()


class Attachment:
    """A kernel process attached to a session; the session's end.

    Attributes:
        connection_file: For Jupyter clients, as in `jupyter console --existing FILE`.
        ready: Done once the kernel process accepts clients; fails with `UsageError` if it ends before.
    """

    def __init__(
        self,
        session: Session,
        sandbox: LocalSandbox,
        channel: AttachSocket,
        pidfds: socket.socket,
        connection_file: Path,
    ) -> None:
        """Use `attach`."""
        self.connection_file = connection_file
        self._session = session
        self._channel = channel
        self._pidfds = pidfds
        self._process: subprocess.Popen[bytes] | None = None
        self._backend = KernelSession(session, sandbox, self)
        self._unsubscribe = session.subscribe(self._on_event)
        self._calls: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, process: subprocess.Popen[bytes], worker: int) -> None:
        """Serve the kernel process. `worker` is the pid of the session's worker."""
        self._process = process
        self._send_worker(worker)
        self._spawn(self._serve())
        _live.add(self)

    async def close(self) -> None:
        """End the kernel process; the session goes on."""
        self._channel.close()
        if self._process is None:
            return
        # The kernel process exits by itself when its channel closes. Kill it only if it does not.
        for _ in range(round(_EXIT_TIMEOUT_S / _EXIT_POLL_S)):
            if self._process.poll() is not None:
                return
            await asyncio.sleep(_EXIT_POLL_S)
        self._process.kill()
        await in_thread(self._process.wait)

    async def _serve(self) -> None:
        try:
            await self._channel.serve(self._on_frame)
        finally:
            self._unsubscribe()
            self._backend.close()
            self._pidfds.close()
            _live.discard(self)
            if not self.ready.done():
                self.ready.set_exception(UsageError("The kernel process ended before it was ready."))
            if self._process is not None:
                await in_thread(self._process.wait)

    # ---- requests of the kernel process

    def _on_frame(self, frame: Frame) -> None:
        if frame.op == "interrupt":
            self._spawn(self._backend.interrupt())
        elif frame.op in _REQUESTS:
            self._spawn(self._serve_request(frame))

    async def _serve_request(self, frame: Frame) -> None:
        self._channel.reply(frame, await _REQUESTS[frame.op](self, parse_object(frame)))

    async def _hello(self, payload: Mapping[str, Any]) -> Any:
        if not self.ready.done():
            self.connection_file = Path(payload["connection_file"])  # as the kernel process has resolved it
            self.ready.set_result(None)
        return {"level": self._session.level, "count": self._session.status().calls + 1}

    async def _execute(self, payload: Mapping[str, Any]) -> Any:
        cell = _cell(payload)
        self._calls.add(cell.call_id)
        return asdict(await self._backend.execute(cell))

    async def _complete(self, payload: Mapping[str, Any]) -> Any:
        return asdict(await self._backend.complete(payload["code"], payload["cursor"]))

    async def _inspect(self, payload: Mapping[str, Any]) -> Any:
        return await self._backend.inspect(payload["code"], payload["cursor"], payload["detail"])

    async def _is_complete(self, payload: Mapping[str, Any]) -> Any:
        return asdict(await self._backend.is_complete(payload["code"]))

    # ---- events of the session: implements `aisotools.notebook.kernel.session.OutputSink`

    def printed(self, call_id: str, stream: str, text: str) -> None:
        """Forward printed text, of calls that the kernel process has made only."""
        if call_id in self._calls:
            self._channel.send("printed", [call_id, stream, text])

    def show(self, call_id: str, shown: DisplayMessage) -> Awaitable[None] | None:
        """Forward a display; the bundle of a large one as the worker sent it."""
        payload = {"call_id": call_id, "what": shown.kind, "bundle": None, "how": shown.details}
        if shown.json:
            return self._channel.send_large("show", payload, (shown.json, *shown.buffers))
        payload["bundle"] = shown.bundle
        self._channel.send("show", payload, shown.buffers)
        return None

    def dropped(self, call_id: str) -> None:
        """Report that displays of a call were dropped."""
        self._channel.send("dropped", call_id)

    def lost(self, reason: str) -> None:
        """Report that a worker ended."""
        self._channel.send("lost", reason)

    async def ask(self, call_id: str, prompt: str, *, password: bool) -> str | None:
        """Ask the client for a line. Return None if there is none."""
        payload = {"call_id": call_id, "prompt": prompt, "password": password}
        line = await self._channel.request("line", payload)
        return line if isinstance(line, str) else None

    def _on_event(self, event: SessionEvent) -> None:
        if isinstance(event, SandboxStarted):
            self._send_worker(event.pid)
        elif isinstance(event, SessionEnded):
            self._channel.close()

    def _send_worker(self, pid: int) -> None:
        # Race: the worker may have ended again. Its replacement is announced by another event.
        with contextlib.suppress(OSError):
            worker = os.pidfd_open(pid)
            try:
                socket.send_fds(self._pidfds, [b"w"], [worker])
            finally:
                os.close(worker)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_REQUESTS: Mapping[str, Callable[[Attachment, Mapping[str, Any]], Any]] = {
    "hello": Attachment._hello,  # noqa: SLF001 - its own table
    "execute": Attachment._execute,  # noqa: SLF001 - likewise
    "complete": Attachment._complete,  # noqa: SLF001 - likewise
    "inspect": Attachment._inspect,  # noqa: SLF001 - likewise
    "is_complete": Attachment._is_complete,  # noqa: SLF001 - likewise
}


def _cell(payload: Mapping[str, Any]) -> CellRequest:
    options = ExecuteOptions(**payload["options"])
    return CellRequest(call_id=payload["call_id"], code=payload["code"], options=options)


def new_connection_file() -> Path:
    """Return the path of the connection file of the next kernel process."""
    return Path(jupyter_runtime_dir()) / f"kernel-aisotools-{os.getpid()}-{next(_numbers)}.json"


async def attach(
    session: Session, connection_file: Path | None = None, *, trust_output: bool = False
) -> Attachment:
    """Let Jupyter clients connect to a session.

    Args:
        session: Started if it is not yet.
        connection_file: Path to write; by default in Jupyter's runtime folder.
        trust_output: Pass on all output unfiltered, because a person trusts it.

    Raises:
        UsageError: If the session has no local sandbox, or the kernel process does not start.
        SandboxError: The loop cannot watch the socket to the kernel process.
    """
    await session.start()
    sandbox = session.sandbox
    if not isinstance(sandbox, LocalSandbox):
        raise UsageError(
            f"{session!r} runs in a {type(sandbox).__name__}, which no client can be attached to."
        )
    path = new_connection_file() if connection_file is None else connection_file
    sock, pidfds, process = _start_process(path, trust_output=trust_output)
    try:
        channel = await AttachSocket.open(sock)
    except BaseException:
        pidfds.close()
        # Its channel is closed, so it ends by itself; killed, it does so before it has been waited for.
        process.kill()
        await in_thread(process.wait)
        raise
    attachment = Attachment(session, sandbox, channel, pidfds, path)
    attachment.start(process, session.status().pid)
    try:
        await asyncio.wait_for(attachment.ready, READY_TIMEOUT_S)
    except TimeoutError:
        await attachment.close()
        raise UsageError(f"The kernel process did not start within {READY_TIMEOUT_S:g} s.") from None
    return attachment


def _start_process(
    path: Path, *, trust_output: bool
) -> tuple[socket.socket, socket.socket, subprocess.Popen[bytes]]:
    """Start a kernel process. Return the local ends of its two sockets, and the process."""
    local, remote = socket.socketpair()
    # One message for each descriptor: a stream could merge two and lose which is newer.
    local_pidfds, remote_pidfds = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with remote, remote_pidfds:
        options = [f"--SandboxKernel.attached={remote.fileno()},{remote_pidfds.fileno()}"]
        if trust_output:
            options.append("--SandboxKernel.trust_output=True")
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "aisotools.notebook.kernel.kernel", "-f", str(path), *options],
            pass_fds=[remote.fileno(), remote_pidfds.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in this terminal must not interrupt the cells of its clients.
            start_new_session=True,
        )
    return local, local_pidfds, process


class AttachedSession:
    """The kernel process's end: a `KernelBackend` whose session is in another process."""

    def __init__(self, channel: AttachSocket, pidfds: socket.socket, sink: OutputSink) -> None:
        """Use `open_remote`."""
        self._channel = channel
        self._pidfds = pidfds
        self._sink = sink
        self._worker: int | None = None
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()
        pidfds.setblocking(False)
        watch(asyncio.get_running_loop(), pidfds, self._receive_worker)

    async def serve(self, on_end: Callable[[], None]) -> None:
        """Forward the session's output to the sink until the session is gone, then call `on_end`."""
        await self._channel.serve(self._on_frame)
        asyncio.get_running_loop().remove_reader(self._pidfds)
        on_end()

    async def execute(self, cell: CellRequest) -> CellResult:
        """Run a cell."""
        self._running += 1
        try:
            answer = await self._channel.request("execute", asdict(cell))
        finally:
            self._running -= 1
        return CellResult(error=answer["error"], printed=answer["printed"], notes=tuple(answer["notes"]))

    async def complete(self, code: str, cursor: int) -> Completion:
        """Return the completions at the cursor."""
        answer = await self._channel.request("complete", {"code": code, "cursor": cursor})
        matches = tuple(CompletionMatch(**match) for match in answer["matches"])
        return Completion(start=answer["start"], end=answer["end"], matches=matches)

    async def inspect(self, code: str, cursor: int, detail: int) -> str | None:
        """Return the documentation of the object at the cursor."""
        answer = await self._channel.request("inspect", {"code": code, "cursor": cursor, "detail": detail})
        return answer if isinstance(answer, str) else None

    async def is_complete(self, code: str) -> CodeCompleteness:
        """Return whether code can run as it is."""
        return CodeCompleteness(**await self._channel.request("is_complete", {"code": code}))

    async def message(
        self, cell: CellRequest, kind: str, content: Mapping[str, Any], buffers: Sequence[bytes]
    ) -> None:
        """Drop a widget's message: its page belongs to the session's own notebook."""

    async def interrupt(self) -> None:
        """Stop the running cell: by a signal to the worker, and through the session if that has no effect."""
        if self._worker is not None:
            # Signal by descriptor: a process id could have been given to another process by now.
            try:
                signal.pidfd_send_signal(self._worker, signal.SIGINT)
            except ProcessLookupError:
                return
            await asyncio.sleep(_INTERRUPT_GRACE_S)
        if self._running or self._worker is None:
            self._channel.send("interrupt")

    def _on_frame(self, frame: Frame) -> Awaitable[None] | None:
        if frame.op == "printed":
            self._sink.printed(*parse_payload(frame))
        elif frame.op == "show":
            return self._show(frame)
        elif frame.op == "dropped":
            self._sink.dropped(parse_payload(frame))
        elif frame.op == "lost":
            self._sink.lost(parse_payload(frame))
        elif frame.op == "line":
            task = asyncio.ensure_future(self._ask(frame))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return None

    def _show(self, frame: Frame) -> Awaitable[None] | None:
        payload = parse_object(frame)
        shown = DisplayMessage(kind=payload["what"], details=payload["how"], buffers=frame.parts[1:])
        if payload["bundle"] is not None:
            return self._sink.show(payload["call_id"], replace(shown, bundle=payload["bundle"]))
        body, *buffers = frame.parts[1:]

        def show(bundle: dict[str, Any]) -> Awaitable[None] | None:
            large = replace(shown, bundle=bundle, json=body, buffers=tuple(buffers))
            return self._sink.show(payload["call_id"], large)

        return show_in_steps(body, show)

    async def _ask(self, frame: Frame) -> None:
        payload = parse_object(frame)
        line = await self._sink.ask(payload["call_id"], payload["prompt"], password=payload["password"])
        self._channel.reply(frame, line)

    def _receive_worker(self) -> None:
        """Receive the pidfd of the current worker and close the former one."""
        # Race: the worker that is stopped on an interrupt may be replaced at any moment. A pidfd names one
        # process for good, so a signal that comes late reaches nobody else.
        data, descriptors, _, _ = socket.recv_fds(self._pidfds, 16, 4)
        if not data:
            asyncio.get_running_loop().remove_reader(self._pidfds)
            return
        for worker in descriptors:
            former, self._worker = self._worker, worker
            if former is not None:
                os.close(former)


async def open_remote(
    channel_fd: int, pidfds_fd: int, sink: OutputSink, connection_file: str, on_end: Callable[[], None]
) -> SessionConnection:
    """Connect to the session at the other end of two inherited sockets.

    Args:
        channel_fd: Socket that carries frames.
        pidfds_fd: Socket that carries pidfds of workers.
        sink: Receives the output of its calls.
        connection_file: Path for clients; sent to the session.
        on_end: Called when the session is gone.

    Raises:
        SandboxError: The loop cannot watch a socket.
    """
    pidfds = socket.socket(fileno=pidfds_fd)
    channel: AttachSocket | None = None
    try:
        channel = await AttachSocket.open(socket.socket(fileno=channel_fd))
        backend = AttachedSession(channel, pidfds, sink)
    except BaseException:
        if channel is not None:
            channel.close()
        pidfds.close()
        raise
    serving = asyncio.ensure_future(backend.serve(on_end))
    hello = await channel.request("hello", {"connection_file": connection_file})

    async def close() -> None:
        channel.close()
        await asyncio.wait([serving], timeout=1.0)

    return SessionConnection(
        backend=backend, level=hello["level"], notices=(), close=close, count=hello["count"]
    )
