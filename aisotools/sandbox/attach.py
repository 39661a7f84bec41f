"""Attaching a Jupyter client to a live session: a front in a process of its own, which the session starts.

The session owns the worker and runs every cell of the client through its gate. The front gets a socket to
the session, and a descriptor of the worker by which it can be sent an interrupt and nothing else: so Stop
works even while this process is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_runtime_dir

from aisotools.exceptions import UsageError
from aisotools.sandbox.channel import Frame
from aisotools.sandbox.desk import Cell, Desk
from aisotools.sandbox.kernel import Kernel
from aisotools.sandbox.screens import Shown
from aisotools.sandbox.streams import Manner
from aisotools.sandbox.wire import Wire, mapping
from aisotools.session import Session
from aisotools.session_events import SandboxStarted, SessionEnded, SessionEvent

READY_S = 20.0
"""How long a front may take to start."""

_numbers = itertools.count(1)
_live: set[Attachment] = set()


class Attachment:
    """A front attached to a session.

    Attributes:
        connection_file: What a Jupyter client connects by, as in `jupyter console --existing FILE`.
    """

    def __init__(self, session: Session, sandbox: Kernel, wire: Wire, pids: socket.socket) -> None:
        """Use `attach`."""
        self.connection_file = Path()
        self._session, self._wire, self._pids = session, wire, pids
        self._process: subprocess.Popen[bytes] | None = None
        self._desk = Desk(session, sandbox, self)
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
        self._wire.answer(frame, await _REQUESTS[frame.op](self, mapping(frame)))

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

    # ---- what the session tells: implements `aisotools.sandbox.desk.Page`

    def printed(self, call_id: str, stream: str, text: str) -> None:
        """A call printed something; those of others are not the front's business."""
        if call_id in self._calls:
            self._wire.send("printed", [call_id, stream, text])

    def show(self, call_id: str, shown: Shown) -> None:
        """A call showed something."""
        said = {"call_id": call_id, "what": shown.what, "bundle": shown.bundle, "how": shown.how}
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


def _cell(asked: Mapping[str, Any]) -> Cell:
    manner = Manner(**asked["manner"])
    return Cell(call_id=asked["call_id"], code=asked["code"], manner=manner)


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
    if not isinstance(sandbox, Kernel):
        raise UsageError(
            f"{session!r} runs in a {type(sandbox).__name__}, which no client can be attached to."
        )
    path = new_connection_file() if connection_file is None else connection_file
    ours, pids, process = _started(path, trust_output=trust_output)
    made = Attachment(session, sandbox, await Wire.open(ours), pids)
    made.start(process, session.status().pid)
    try:
        made.connection_file = Path(await asyncio.wait_for(made.ready, READY_S))
    except TimeoutError:
        await made.close()
        raise UsageError(f"The front did not start within {READY_S:g} s.") from None
    return made


def _started(
    path: Path, *, trust_output: bool
) -> tuple[socket.socket, socket.socket, subprocess.Popen[bytes]]:
    """A front, and our ends of its two sockets."""
    ours, theirs = socket.socketpair()
    pids, their_pids = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, their_pids:
        options = [f"--Front.attached={theirs.fileno()},{their_pids.fileno()}"]
        if trust_output:
            options.append("--Front.trust_output=True")
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "aisotools.sandbox.front", "-f", str(path), *options],
            pass_fds=[theirs.fileno(), their_pids.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt of ours is not one of its cells
        )
    return ours, pids, process
