"""Whose programs a stop spares, the host's side; see `aisotools.sandbox.process.ownership`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aisotools.sandbox.host.calls import PendingCall
from aisotools.sandbox.process.ownership import CallStart, StopScope

# Of a worker's list of children. One that is longer is not relied on.
_LIST_BYTES = 1 << 12
# How long a sweep waits for programs to be named. A worker that has been changed may never do it.
_NAMING_S = 0.5
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def note_start(worker: int) -> CallStart:
    """Return the moment of now, at which a call is about to be sent to the worker."""
    children = _children(worker)
    # After the look: what is started between the two is rather taken for too old than for the call's.
    return CallStart(ticks=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // _NS_PER_TICK, children=children)


def _children(worker: int) -> frozenset[int] | None:
    """Return the children of the worker's first thread, which starts nearly all; None if not known."""
    try:
        descriptor = os.open(f"/proc/{worker}/task/{worker}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None  # a kernel without such lists, or a worker that has just ended
    try:
        listed = os.read(descriptor, _LIST_BYTES)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return frozenset(map(int, listed.split())) if len(listed) < _LIST_BYTES else None


class ProgramRequests:
    """Passes on to the supervisor what a worker says about programs."""

    def __init__(self, send: Callable[[Mapping[str, Any]], None]) -> None:
        """Pass it on with `send`."""
        self._send = send

    def note_program(self, call: PendingCall) -> None:
        """Have the supervisor note the keeper of a background task, before anything can be stopped."""
        if call.starts_task:
            self._send({"op": "task", "key": _task_key(call), "pid": call.program})

    def stop(self, pid: int, *, kill: bool) -> None:
        """Have the supervisor signal all below the keeper of a background task."""
        self._send({"op": "stop_program", "pid": pid, "kill": kill})


def scope_of(call: PendingCall, running: Iterable[PendingCall]) -> StopScope:
    """Return what stopping `call` must not end of the calls that run, and of background tasks.

    A call that only ran in a reader is not among those that run; it has started nothing in the worker.
    """
    calls = list(running)
    others = [other for other in calls if other is not call]
    return StopScope(
        programs=tuple(other.program for other in others if other.program),
        own=call.program,
        own_task=_task_key(call) if call.starts_task else "",
        starts=tuple(other.start for other in others if other.start is not None and other.programs == "any"),
        expected=tuple(one.start for one in list_unnamed(call, calls) if one.start is not None),
        until_ticks=call.start.ticks if call.start is not None and _may_start(call) else None,
    )


def list_unnamed(call: PendingCall, running: Iterable[PendingCall]) -> list[PendingCall]:
    """Return the other calls that name their program, and have not done so yet."""
    return [
        other
        for other in running
        if other is not call and other.programs == "named" and not other.program and not other.future.done()
    ]


def name_of(call: PendingCall) -> asyncio.Future[None]:
    """Return what is done when a call has named its program, or is finished."""
    call.on_named = call.on_named or call.future.get_loop().create_future()
    return call.on_named


async def wait_for_names(call: PendingCall, running: Iterable[PendingCall]) -> None:
    """Wait until every other call that names its programs has done so, or is over; not for long."""
    # Race: a command may wait in the worker until the call that is stopped lets go of the main thread, and
    # begin before the sweep after that call. Nothing but its name tells it from what the stopped call did.
    # On a busy machine it may not have named it in this time: then `StopScope.expected` is for it.
    ends_s = time.monotonic() + _NAMING_S
    for other in list_unnamed(call, running):
        left_s = max(0, ends_s - time.monotonic())
        known: list[asyncio.Future[Any]] = [name_of(other), other.future]
        await asyncio.wait(known, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)


def _task_key(call: PendingCall) -> str:
    # Unlike its id, its number is short, and never that of another call of this tree.
    return str(call.number)


def _may_start(call: PendingCall) -> bool:
    # A tool that names a program names each.
    return call.programs != "none" and not call.program
