"""The sandbox as the session uses it: one confined worker at a time, and the ladder that stops a call.

Stopping a call: ask the worker to cancel it and interrupt its main thread if the call holds it; wait a grace
period; then end the whole process tree and have a fresh worker. Control comes back within half a second of
the deadline, whatever the call does, and the next call works.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any

from pydantic_core import to_json

from aisotools.contracts import SandboxCall, SandboxListener, SandboxStatus
from aisotools.events import ToolResult
from aisotools.exceptions import ChannelError, SandboxError, WorkerDied
from aisotools.sandbox import spawn
from aisotools.sandbox.channel import encode
from aisotools.sandbox.link import Link, Pending
from aisotools.sandbox.results import result_from_worker
from aisotools.sandbox.turns import Turns

_START_S = 20.0
_CANCEL_S = 0.1
_GRACE_S = 0.2


class Kernel:
    """Implements `aisotools.contracts.Sandbox` with real processes."""

    def __init__(self, wanted: spawn.Spawn, listener: SandboxListener) -> None:
        """Be ready to start the worker that `wanted` describes; nothing is started yet."""
        self._wanted = wanted
        self._listener = listener
        self._link: Link | None = None
        self._starting = asyncio.Lock()
        self._turns = Turns()
        self._generation = 0
        self._since_s = 0.0
        self._why_new = ""
        self._closed = False

    def __repr__(self) -> str:
        return f"<Kernel {self._wanted.level} generation={self._generation} {self._link!r}>"

    async def start(self) -> SandboxStatus:
        """Have a worker up; at once if there is one.

        Raises:
            SandboxError: If no worker comes up.
        """
        await self._ensure()
        return self.status()

    def status(self) -> SandboxStatus:
        """The state right now."""
        link = self._link
        alive = link is not None and link.lost_because is None and link.ready.done()
        if link is None or not alive:
            return SandboxStatus(level=self._wanted.level, alive=False, generation=self._generation)
        return SandboxStatus(
            level=self._wanted.level,
            alive=True,
            pid=link.pid,
            generation=self._generation,
            memory_bytes=_pss_bytes(link.pid),
            age_s=time.monotonic() - self._since_s,
        )

    async def call(self, request: SandboxCall) -> ToolResult:
        """Run one call; see `aisotools.contracts.Sandbox.call`."""
        async with self._turns.turn(request.shipment.concurrency):
            link = await self._ensure()
            call_id = request.call.id
            try:
                pending = link.start_call(
                    call_id,
                    _frame(request, link),
                    stream_bytes=request.output_caps.stream_bytes,
                    holds=request.shipment.concurrency != "overlap",
                )
            except WorkerDied as error:
                return _died(error)
            try:
                return await self._await(link, request, pending)
            except asyncio.CancelledError:
                await asyncio.shield(self._stop(link, request, "it was cancelled"))
                raise
            finally:
                link.pending.pop(call_id, None)

    async def _await(self, link: Link, request: SandboxCall, pending: Pending) -> ToolResult:
        done, _ = await asyncio.wait([pending.future], timeout=request.timeout_s)
        if not done:
            return await self._timed_out(link, request, pending)
        try:
            data = pending.future.result()
        except WorkerDied as error:
            return _died(error)
        try:
            result = result_from_worker(data, request.output_caps, pending.raw)
        except ChannelError as error:
            await self._end(link, f"it sent a malformed result: {error}")
            return _died(WorkerDied(f"{error}", last_words=link.last_words))
        if result.metadata.get("timed_out") is True:
            await link.sweep(request.call.id)
        return result

    async def _timed_out(self, link: Link, request: SandboxCall, pending: Pending) -> ToolResult:
        kept = await self._stop(link, request, f"it ran longer than {request.timeout_s:g} s")
        after = (
            "The sandbox's variables are kept." if kept else "The sandbox is fresh; its variables are lost."
        )
        told = f"{request.call.name} was stopped: it ran longer than {request.timeout_s:g} s. {after}"
        result = ToolResult.error(told, error_kind="failed")
        streams = {s: bytes(raw).decode("utf-8", "replace") for s, raw in pending.raw.items() if raw}
        return result.with_metadata(timed_out=True, state_kept=kept, **streams)

    async def _stop(self, link: Link, request: SandboxCall, why: str) -> bool:
        """Climb the ladder; whether the worker, and so its variables, survived."""
        pending = link.pending.get(request.call.id)
        if pending is None or link.lost_because is not None:
            return link.lost_because is None
        link.cancel_call(request.call.id)
        if pending.holds:
            await link.interrupt()
        done, _ = await asyncio.wait([pending.future], timeout=_CANCEL_S + _GRACE_S)
        if done:
            pending.future.exception()
            await link.sweep(request.call.id)
            return link.lost_because is None
        await self._end(link, f"{request.call.name} could not be stopped otherwise ({why})")
        return False

    async def interrupt(self) -> None:
        """Stop whatever runs, keeping the worker if it lets itself be stopped."""
        link = self._link
        if link is None or link.lost_because is not None or not link.pending:
            return
        futures = [p.future for p in link.pending.values()]
        for call_id in list(link.pending):
            link.cancel_call(call_id)
        if any(p.holds for p in link.pending.values()):
            await link.interrupt()
        _, left = await asyncio.wait(futures, timeout=_CANCEL_S + _GRACE_S)
        if left:
            await self._end(link, "a call could not be interrupted otherwise")

    async def restart(self) -> SandboxStatus:
        """End the worker and everything it started, and have a fresh one."""
        if self._link is not None:
            self._why_new = "it was restarted"
            await self._end(self._link, "the sandbox was restarted")
        return await self.start()

    async def close(self) -> None:
        """End the worker and everything it started."""
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            await link.end("the session was closed")

    async def _end(self, link: Link, reason: str) -> None:
        await link.end(reason)
        if self._link is link:
            self._link = None

    async def _ensure(self) -> Link:
        """The worker, started if there is none."""
        link = self._link
        if link is not None and link.lost_because is None and link.ready.done():
            return link
        async with self._starting:
            if self._link is not None and self._link.lost_because is None:
                return self._link
            if self._closed:
                raise SandboxError("The sandbox was closed.")
            if self._link is not None:
                await self._link.end("it was lost")
            self._link = await self._start_link()
            self._listener.started(self.status(), self._why_new)
            return self._link

    async def _start_link(self) -> Link:
        for attempt in (1, 2):
            link = Link(spawn.server().spawn(self._wanted), self._listener, self._lost)
            try:
                async with asyncio.timeout(_START_S):
                    await asyncio.shield(link.ready)
            except (TimeoutError, SandboxError) as error:
                await link.end("it did not start")
                # The fork server may just have been replaced under us: once more, then it is a real failure.
                if attempt == 2 or spawn.server().alive is False:
                    told = str(error) or f"it was not ready after {_START_S:g} s"
                    raise SandboxError(f"No worker could be started: {told}") from None
            except BaseException:
                await link.end("its start was cancelled")
                raise
            else:
                self._generation += 1
                self._since_s = time.monotonic()
                return link
        raise AssertionError("unreachable")

    def _lost(self, link: Link, reason: str) -> None:
        if link is self._link and not self._closed:
            self._why_new = reason
            self._listener.lost(self._generation, reason)


def _frame(request: SandboxCall, link: Link) -> bytes:
    call, shipment, caps = request.call, request.shipment, request.output_caps
    header: dict[str, Any] = {
        "id": call.id,
        "key": shipment.key,
        "concurrency": shipment.concurrency,
        "agent_id": call.agent_id,
        "turn_id": call.turn_id,
        "session_key": request.session_key,
        "caps": asdict(caps),
    }
    parts = [to_json(call.arguments)]
    if shipment.import_path:
        header["import_path"] = shipment.import_path
    elif shipment.key not in link.shipped:
        link.shipped.add(shipment.key)
        parts.append(shipment.payload)
    return encode("call", header, parts)


def _died(error: WorkerDied) -> ToolResult:
    told = (
        f"The sandbox's worker ended during the call: {error}. "
        "Its variables are lost; the next call gets a fresh worker."
    )
    if error.last_words:
        told += f"\nIts last words:\n{error.last_words[-2000:]}"
    return ToolResult.error(told, error_kind="environment").with_metadata(worker_died=True, state_kept=False)


def _pss_bytes(pid: int) -> int:
    """Proportional memory of one process; 0 when it cannot be read."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0
