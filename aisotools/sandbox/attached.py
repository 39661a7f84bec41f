"""A front's side of an attachment: a desk whose session is in another process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from aisotools.sandbox.channel import Frame
from aisotools.sandbox.desk import Cell, Outcome, Page
from aisotools.sandbox.enquiry import Completion, Match, Wholeness
from aisotools.sandbox.opened import Opened
from aisotools.sandbox.screens import Shown
from aisotools.sandbox.wire import Wire, mapping, told

_PATIENCE_S = 0.15


class RemoteDesk:
    """Does what `aisotools.sandbox.desk.Desk` does, over a wire."""

    def __init__(self, wire: Wire, pids: socket.socket, page: Page) -> None:
        """Use `open_attached`."""
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

    async def execute(self, cell: Cell) -> Outcome:
        """Run a cell."""
        self._running += 1
        try:
            answer = await self._wire.ask("execute", asdict(cell))
        finally:
            self._running -= 1
        return Outcome(error=answer["error"], printed=answer["printed"], notes=tuple(answer["notes"]))

    async def complete(self, code: str, cursor: int) -> Completion:
        """What may stand at the cursor."""
        answer = await self._wire.ask("complete", {"code": code, "cursor": cursor})
        matches = tuple(Match(**match) for match in answer["matches"])
        return Completion(start=answer["start"], end=answer["end"], matches=matches)

    async def inspect(self, code: str, cursor: int, detail: int) -> str | None:
        """What the object at the cursor is."""
        answer = await self._wire.ask("inspect", {"code": code, "cursor": cursor, "detail": detail})
        return answer if isinstance(answer, str) else None

    async def is_complete(self, code: str) -> Wholeness:
        """Whether code can run as it is."""
        return Wholeness(**await self._wire.ask("is_complete", {"code": code}))

    async def message(
        self, cell: Cell, kind: str, content: Mapping[str, Any], buffers: Sequence[bytes]
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
            self._page.printed(*told(frame))
        elif frame.op == "show":
            said = mapping(frame)
            shown = Shown(what=said["what"], bundle=said["bundle"], how=said["how"], buffers=frame.parts[1:])
            self._page.show(said["call_id"], shown)
        elif frame.op == "dropped":
            self._page.dropped(told(frame))
        elif frame.op == "lost":
            self._page.lost(told(frame))
        elif frame.op == "line":
            task = asyncio.ensure_future(self._ask(frame))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, frame: Frame) -> None:
        said = mapping(frame)
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


async def open_attached(
    wire_fd: int, pids_fd: int, page: Page, connection_file: str, at_end: Callable[[], None]
) -> Opened:
    """Use the session at the other end of two inherited sockets.

    Args:
        wire_fd: The one that carries frames.
        pids_fd: The one that carries descriptors of workers.
        page: Hears what its calls show.
        connection_file: What clients connect by; the session is told.
        at_end: Called when the session is gone.
    """
    wire = await Wire.open(socket.socket(fileno=wire_fd))
    desk = RemoteDesk(wire, socket.socket(fileno=pids_fd), page)
    serving = asyncio.ensure_future(desk.serve(at_end))
    hello = await wire.ask("hello", {"connection_file": connection_file})

    async def close() -> None:
        wire.close()
        await asyncio.wait([serving], timeout=1.0)

    return Opened(desk=desk, level=hello["level"], notices=(), close=close, count=hello["count"])
