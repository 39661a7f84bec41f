"""Attaching a Jupyter client to a live session: a front in a process of its own, which the session starts.

The session owns the worker and runs every cell of the client through its gate. The front gets a socket to
the session, and a descriptor of the worker by which it can be sent an interrupt and nothing else: so Stop
works even while this process is busy.

Frames between a session and the front that is attached to it: two processes of ours, over a socket pair.

Questions are numbered and answered; everything else goes one way. What runs in neither process is user code,
but much of what is said here came out of a sandbox, and is filtered by the front as ever.

A front's side of an attachment: a desk whose session is in another process.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from jupyter_core.paths import jupyter_runtime_dir
from pydantic_core import from_json, to_json

from aisotools.core.events import SandboxStarted, SessionEnded, SessionEvent
from aisotools.core.exceptions import ChannelError, UsageError
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
from aisotools.sandbox.host.calls import DisplayMessage
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.worker.output import ExecuteOptions
from aisotools.session.session import Session

_READ_BYTES = 1 << 18
_BACKLOG_BYTES = 256 << 20


class AttachSocket:
    """One end of the socket pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use `open`."""
        self._reader, self._writer = reader, writer
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._asked = 0

    @classmethod
    async def open(cls, end: socket.socket) -> Self:
        """Take over a connected socket."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    async def run(self, take: Callable[[Frame], None]) -> None:
        """Have `take` take every frame that is no answer, until the other end is gone."""
        frames = FrameReader()
        try:
            while data := await self._reader.read(_READ_BYTES):
                for frame in frames.feed(data):
                    if frame.op == "answer":
                        self._answered(frame)
                    else:
                        take(frame)
        except (OSError, ChannelError):
            return
        finally:
            self.close()

    def send(self, op: str, parse_payload: Any = None, parts: tuple[bytes, ...] = (), **header: Any) -> None:
        """Say something; `parse_payload` is any JSON."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > _BACKLOG_BYTES:
            self.close()  # it has stopped reading
            return
        body = to_json(parse_payload, inf_nan_mode="strings", serialize_unknown=True)
        self._writer.write(encode(op, header, (body, *parts)))

    async def ask(self, op: str, parse_payload: Any = None) -> Any:
        """Ask something, and wait for the answer.

        Raises:
            ChannelError: If the other end is gone.
        """
        self._asked += 1
        seq = self._asked
        answer = self._answers[seq] = asyncio.get_running_loop().create_future()
        self.send(op, parse_payload, seq=seq)
        if self._writer.transport.is_closing():
            self.close()
        try:
            return await answer
        finally:
            self._answers.pop(seq, None)

    def answer(self, frame: Frame, parse_payload: Any) -> None:
        """Answer a question."""
        self.send("answer", parse_payload, seq=frame.header["seq"])

    def close(self) -> None:
        """Let go; whoever waits for an answer hears that there is none."""
        self._writer.close()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ChannelError("The session is gone."))

    def _answered(self, frame: Frame) -> None:
        answer = self._answers.get(frame.header["seq"])
        if answer is not None and not answer.done():
            answer.set_result(parse_payload(frame))


def parse_payload(frame: Frame) -> Any:
    """The JSON that a frame says."""
    return from_json(frame.parts[0])


def parse_object(frame: Frame) -> Mapping[str, Any]:
    """The JSON object that a frame says.

    Raises:
        ChannelError: If it says something else.
    """
    value = parse_payload(frame)
    if not isinstance(value, dict):
        raise ChannelError(f"The frame {frame.op!r} says no object.")
    return value


READY_TIMEOUT_S = 20.0
"""How long a front may take to start."""

_numbers = itertools.count(1)
_live: set[Attachment] = set()


class Attachment:
    """A front attached to a session.

    Attributes:
        connection_file: What a Jupyter client connects by, as in `jupyter console --existing FILE`.
    """

    def __init__(
        self, session: Session, sandbox: LocalSandbox, wire: AttachSocket, pids: socket.socket
    ) -> None:
        """Use `attach`."""
        self.connection_file = Path()
        self._session, self._wire, self._pids = session, wire, pids
        self._process: subprocess.Popen[bytes] | None = None
        self._desk = KernelSession(session, sandbox, self)
        self._stop = session.subscribe(self._hear)
        self._calls: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def start(self, process: subprocess.Popen[bytes], worker: int) -> None:
        """Serve the front, which runs as `process`."""
        self._process = process
        self._tell_worker(worker)
        self._soon(self._serve())
        _live.add(self)

    async def close(self) -> None:
        """End the front; the session goes on."""
        self._wire.close()
        if self._process is not None:
            for _ in range(100):
                if self._process.poll() is not None:
                    return
                await asyncio.sleep(0.02)
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    async def _serve(self) -> None:
        try:
            await self._wire.run(self._take)
        finally:
            self._stop()
            self._desk.close()
            self._pids.close()
            _live.discard(self)
            if not self.ready.done():
                self.ready.set_exception(UsageError("The front ended before it was ready."))
            if self._process is not None:
                await asyncio.to_thread(self._process.wait)

    # ---- what the front says

    def _take(self, frame: Frame) -> None:
        if frame.op == "interrupt":
            self._soon(self._desk.interrupt())
        elif frame.op in _REQUESTS:
            self._soon(self._serve_request(frame))

    async def _serve_request(self, frame: Frame) -> None:
        self._wire.answer(frame, await _REQUESTS[frame.op](self, parse_object(frame)))

    async def _hello(self, asked: Mapping[str, Any]) -> Any:
        if not self.ready.done():
            self.ready.set_result(asked["connection_file"])
        return {"level": self._session.level, "count": self._session.status().calls + 1}

    async def _execute(self, asked: Mapping[str, Any]) -> Any:
        cell = _cell(asked)
        self._calls.add(cell.call_id)
        return asdict(await self._desk.execute(cell))

    async def _complete(self, asked: Mapping[str, Any]) -> Any:
        return asdict(await self._desk.complete(asked["code"], asked["cursor"]))

    async def _inspect(self, asked: Mapping[str, Any]) -> Any:
        return await self._desk.inspect(asked["code"], asked["cursor"], asked["detail"])

    async def _is_complete(self, asked: Mapping[str, Any]) -> Any:
        return asdict(await self._desk.is_complete(asked["code"]))

    # ---- what the session tells: implements `aisotools.notebook.kernel.session.Page`

    def printed(self, call_id: str, stream: str, text: str) -> None:
        """A call printed something; those of others are not the front's business."""
        if call_id in self._calls:
            self._wire.send("printed", [call_id, stream, text])

    def show(self, call_id: str, shown: DisplayMessage) -> None:
        """A call showed something."""
        said = {"call_id": call_id, "what": shown.kind, "bundle": shown.bundle, "how": shown.details}
        self._wire.send("show", said, shown.buffers)

    def dropped(self, call_id: str) -> None:
        """A call showed too much at once."""
        self._wire.send("dropped", call_id)

    def lost(self, reason: str) -> None:
        """A worker ended."""
        self._wire.send("lost", reason)

    async def ask(self, call_id: str, prompt: str, *, password: bool) -> str | None:
        """A call asks for a line."""
        asked = {"call_id": call_id, "prompt": prompt, "password": password}
        line = await self._wire.ask("line", asked)
        return line if isinstance(line, str) else None

    def _hear(self, event: SessionEvent) -> None:
        if isinstance(event, SandboxStarted):
            self._tell_worker(event.pid)
        elif isinstance(event, SessionEnded):
            self._wire.close()

    def _tell_worker(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # it is gone again; the next one is told as well
            worker = os.pidfd_open(pid)
            try:
                socket.send_fds(self._pids, [b"w"], [worker])
            finally:
                os.close(worker)

    def _soon(self, work: Any) -> None:
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


def _cell(asked: Mapping[str, Any]) -> CellRequest:
    manner = ExecuteOptions(**asked["manner"])
    return CellRequest(call_id=asked["call_id"], code=asked["code"], manner=manner)


def new_connection_file() -> Path:
    """Where the next front of this process will tell how to connect to it."""
    return Path(jupyter_runtime_dir()) / f"kernel-aisotools-{os.getpid()}-{next(_numbers)}.json"


async def attach(
    session: Session, connection_file: Path | None = None, *, trust_output: bool = False
) -> Attachment:
    """Let Jupyter clients connect to a session.

    Args:
        session: Opened if it is not yet.
        connection_file: Where to tell how to connect; in Jupyter's runtime folder without it.
        trust_output: Whether all output is passed on as it is, because a person trusts it.

    Raises:
        UsageError: If this session has no sandbox of ours, or the front does not start.
    """
    await session.start()
    sandbox = session.sandbox
    if not isinstance(sandbox, LocalSandbox):
        raise UsageError(
            f"{session!r} runs in a {type(sandbox).__name__}, which no client can be attached to."
        )
    path = new_connection_file() if connection_file is None else connection_file
    ours, pids, process = _started(path, trust_output=trust_output)
    made = Attachment(session, sandbox, await AttachSocket.open(ours), pids)
    made.start(process, session.status().pid)
    try:
        made.connection_file = Path(await asyncio.wait_for(made.ready, READY_TIMEOUT_S))
    except TimeoutError:
        await made.close()
        raise UsageError(f"The front did not start within {READY_TIMEOUT_S:g} s.") from None
    return made


def _started(
    path: Path, *, trust_output: bool
) -> tuple[socket.socket, socket.socket, subprocess.Popen[bytes]]:
    """A front, and our ends of its two sockets."""
    ours, theirs = socket.socketpair()
    pids, their_pids = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, their_pids:
        options = [f"--SandboxKernel.attached={theirs.fileno()},{their_pids.fileno()}"]
        if trust_output:
            options.append("--SandboxKernel.trust_output=True")
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "aisotools.notebook.kernel.kernel", "-f", str(path), *options],
            pass_fds=[theirs.fileno(), their_pids.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt of ours is not one of its cells
        )
    return ours, pids, process


_PATIENCE_S = 0.15


class AttachedSession:
    """Does what `aisotools.notebook.kernel.session.Desk` does, over a wire."""

    def __init__(self, wire: AttachSocket, pids: socket.socket, page: OutputSink) -> None:
        """Use `open_remote`."""
        self._wire, self._pids, self._page = wire, pids, page
        self._worker: int | None = None
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()
        pids.setblocking(False)
        asyncio.get_running_loop().add_reader(pids, self._take_worker)

    async def serve(self, at_end: Callable[[], None]) -> None:
        """Pass on what the session tells, until it is gone."""
        await self._wire.run(self._take)
        asyncio.get_running_loop().remove_reader(self._pids)
        at_end()

    async def execute(self, cell: CellRequest) -> CellResult:
        """Run a cell."""
        self._running += 1
        try:
            answer = await self._wire.ask("execute", asdict(cell))
        finally:
            self._running -= 1
        return CellResult(error=answer["error"], printed=answer["printed"], notes=tuple(answer["notes"]))

    async def complete(self, code: str, cursor: int) -> Completion:
        """What may stand at the cursor."""
        answer = await self._wire.ask("complete", {"code": code, "cursor": cursor})
        matches = tuple(CompletionMatch(**match) for match in answer["matches"])
        return Completion(start=answer["start"], end=answer["end"], matches=matches)

    async def inspect(self, code: str, cursor: int, detail: int) -> str | None:
        """What the object at the cursor is."""
        answer = await self._wire.ask("inspect", {"code": code, "cursor": cursor, "detail": detail})
        return answer if isinstance(answer, str) else None

    async def is_complete(self, code: str) -> CodeCompleteness:
        """Whether code can run as it is."""
        return CodeCompleteness(**await self._wire.ask("is_complete", {"code": code}))

    async def message(
        self, cell: CellRequest, kind: str, content: Mapping[str, Any], buffers: Sequence[bytes]
    ) -> None:
        """Drop a widget's message: its page belongs to the session's own notebook."""

    async def interrupt(self) -> None:
        """Stop whatever runs: directly, and through the session if that does not help."""
        if self._worker is not None:
            try:
                signal.pidfd_send_signal(self._worker, signal.SIGINT)
            except ProcessLookupError:
                return
            await asyncio.sleep(_PATIENCE_S)
        if self._running or self._worker is None:
            self._wire.send("interrupt")

    def _take(self, frame: Frame) -> None:
        if frame.op == "printed":
            self._page.printed(*parse_payload(frame))
        elif frame.op == "show":
            said = parse_object(frame)
            shown = DisplayMessage(
                kind=said["what"], bundle=said["bundle"], details=said["how"], buffers=frame.parts[1:]
            )
            self._page.show(said["call_id"], shown)
        elif frame.op == "dropped":
            self._page.dropped(parse_payload(frame))
        elif frame.op == "lost":
            self._page.lost(parse_payload(frame))
        elif frame.op == "line":
            task = asyncio.ensure_future(self._ask(frame))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, frame: Frame) -> None:
        said = parse_object(frame)
        line = await self._page.ask(said["call_id"], said["prompt"], password=said["password"])
        self._wire.answer(frame, line)

    def _take_worker(self) -> None:
        """Get hold of the worker, a new one in place of the former."""
        data, descriptors, _, _ = socket.recv_fds(self._pids, 16, 4)
        if not data:
            asyncio.get_running_loop().remove_reader(self._pids)
            return
        for worker in descriptors:
            if self._worker is not None:
                os.close(self._worker)
            self._worker = worker


async def open_remote(
    wire_fd: int, pids_fd: int, page: OutputSink, connection_file: str, at_end: Callable[[], None]
) -> SessionConnection:
    """Use the session at the other end of two inherited sockets.

    Args:
        wire_fd: The one that carries frames.
        pids_fd: The one that carries descriptors of workers.
        page: Hears what its calls show.
        connection_file: What clients connect by; the session is told.
        at_end: Called when the session is gone.
    """
    wire = await AttachSocket.open(socket.socket(fileno=wire_fd))
    desk = AttachedSession(wire, socket.socket(fileno=pids_fd), page)
    serving = asyncio.ensure_future(desk.serve(at_end))
    hello = await wire.ask("hello", {"connection_file": connection_file})

    async def close() -> None:
        wire.close()
        await asyncio.wait([serving], timeout=1.0)

    return SessionConnection(desk=desk, level=hello["level"], notices=(), close=close, count=hello["count"])
