"""The worker's event loop: one that works on in a fork, and whatever user code does to its descriptors."""

# ruff: noqa: SLF001 - asyncio has no public way to give a loop a new pipe
from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import sys
from _socket import MSG_DONTWAIT, socketpair
from collections.abc import Callable
from socket import socket
from typing import Any, Self, TypeVarTuple

from aisotools.sandbox.process import tree

_WAKE_UP_BYTES = 4096
_UNKNOWN_STATUS = 255  # as asyncio reports it; see `tree.unreaped`

Arguments = TypeVarTuple("Arguments")
"""Further arguments of a callback."""


class ForkableEventLoop(asyncio.SelectorEventLoop):
    """An event loop that works on in a fork, with its timers and tasks."""

    def __init__(self) -> None:
        # poll() keeps no kernel object. The epoll instance of a default loop would be shared with the parent:
        # a descriptor that one of the two removes is gone for both.
        super().__init__(selectors.PollSelector())

    # User code can find the descriptors of the pipe, and make them block: the loop would then wait for ever
    # behind the last wake-up, or in front of a pipe that is full. So neither depends on that.

    def _read_from_self(self) -> None:
        loop: Any = self
        try:
            while data := loop._ssock.recv(_WAKE_UP_BYTES, MSG_DONTWAIT):
                loop._process_self_data(data)
        except (BlockingIOError, InterruptedError):
            return

    def _write_to_self(self) -> None:
        loop: Any = self
        # OSError: the pipe is full, so that the loop wakes up anyway, or it is closed, as in asyncio's own.
        with contextlib.suppress(OSError):
            if loop._csock is not None:
                loop._csock.send(b"\0", MSG_DONTWAIT)

    def own_descriptors(self) -> tuple[int, int]:
        """Return both ends of the pipe by which other threads and signals wake the loop."""
        loop: Any = self
        return loop._ssock.fileno(), loop._csock.fileno()

    def repair_after_fork(self) -> None:
        """Give the loop in a fork its own wake-up pipe and thread pool."""
        loop: Any = self
        # Shared with the parent: a wake-up that is meant for one would be read by the other.
        loop._close_self_pipe()
        # Not by `_make_self_pipe`: user code may have put another class in the place of `socket.socket`.
        loop._ssock, loop._csock = (socket(fileno=end.detach()) for end in socketpair())
        loop._ssock.setblocking(False)
        loop._csock.setblocking(False)
        loop._internal_fds += 1
        loop._add_reader(loop._ssock.fileno(), loop._read_from_self)
        if loop._signal_handlers:
            # Signal: it still names the pipe that was closed above, or whatever has that number by now.
            signal.set_wakeup_fd(loop._csock.fileno())
        # Fork: the pool takes threads for idle that only the parent has. It would start no others, and what
        # is handed to it here would never run.
        loop._default_executor = None
        asyncio.set_event_loop(self)

    def has_work(self) -> bool:
        """Return whether anything is due now or later, or waits for a descriptor that is not our own."""
        loop: Any = self
        waiting = [key.fd for key in loop._selector.get_map().values() if key.fd != loop._ssock.fileno()]
        return bool(loop._ready or loop._scheduled or waiting)

    def drop_pending(self) -> None:
        """Drop everything that waits for a descriptor, for a time or for its turn."""
        loop: Any = self
        for key in tuple(loop._selector.get_map().values()):
            loop._selector.unregister(key.fileobj)
        loop._ready.clear()
        loop._scheduled.clear()
        loop._timer_cancelled_count = 0


def new_loop() -> ForkableEventLoop:
    """Create the event loop of this thread."""
    loop = ForkableEventLoop()
    asyncio.set_event_loop(loop)
    if sys.version_info < (3, 12):
        # Where the kernel or a filter refuses pidfds, Python's own child watcher has to do.
        with contextlib.suppress(OSError):
            os.close(os.pidfd_open(os.getpid()))
            asyncio.set_child_watcher(_PidfdChildWatcher())
    return loop


if sys.version_info < (3, 12):

    class _PidfdChildWatcher(asyncio.AbstractChildWatcher):
        """Watches child processes by pidfd, on whichever loop runs, as later versions of Python do.

        Of Python 3.11's own, one starts a thread for each child, which a fork would lack, and another knows
        only the main loop, which IPython's script magics block while they wait for a loop of their own.
        """

        def add_child_handler(
            self,
            pid: int,
            callback: Callable[[int, int, *Arguments], object],
            *args: *Arguments,
        ) -> None:
            # asyncio has just started it, so the number is still its own, unless user code in another thread
            # has reaped it since: then the call that started it fails.
            loop = asyncio.get_running_loop()
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                # Race: it has ended, and its status was taken by user code that ignores SIGCHLD.
                tree.unreaped.add(pid)
                loop.call_soon(callback, pid, _UNKNOWN_STATUS, *args)
                return

            def on_exit() -> None:
                loop.remove_reader(descriptor)
                os.close(descriptor)
                try:
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                except ChildProcessError:
                    # Race: user code has reaped it. asyncio's own watchers report 255 then, too.
                    status = _UNKNOWN_STATUS
                callback(pid, status, *args)

            loop.add_reader(descriptor, on_exit)

        def remove_child_handler(self, pid: int) -> bool:  # noqa: ARG002 - nobody removes what ends by itself
            return False

        def attach_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
            """Accept any loop, and do nothing: the loop that runs is asked for when a child is added."""

        def is_active(self) -> bool:
            return True

        def close(self) -> None:
            """Do nothing: each child's descriptor is closed when the child ends."""

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            """Do nothing, as `close`."""
