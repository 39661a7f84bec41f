"""The worker's event loop: a fork carries it over whole, and it needs no thread for child processes."""
# ruff: noqa: SLF001 - asyncio has no public way to give a loop a new pipe

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import sys
from collections.abc import Callable
from typing import Any, Self, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
"""What a callback takes besides."""


class Loop(asyncio.SelectorEventLoop):
    """An event loop that a fork takes along, with its timers and tasks."""

    def __init__(self) -> None:
        """`poll` keeps no kernel object, so that a fork of the loop is a whole loop."""
        super().__init__(selectors.PollSelector())

    def own_descriptors(self) -> tuple[int, int]:
        """The two ends of the pipe by which other threads and signals wake it."""
        itself: Any = self
        return itself._ssock.fileno(), itself._csock.fileno()

    def renew(self) -> None:
        """In a fork: have a pipe of its own, and no threads but those that are there."""
        itself: Any = self
        itself._close_self_pipe()
        itself._make_self_pipe()
        if itself._signal_handlers:
            signal.set_wakeup_fd(itself._csock.fileno())
        itself._default_executor = None
        asyncio.set_event_loop(self)


def new_loop() -> Loop:
    """A loop for this thread."""
    loop = Loop()
    asyncio.set_event_loop(loop)
    if sys.version_info < (3, 12):
        with contextlib.suppress(OSError):  # where there are no such descriptors, Python's own way has to do
            os.close(os.pidfd_open(os.getpid()))
            asyncio.set_child_watcher(_Children())
    return loop


if sys.version_info < (3, 12):

    class _Children(asyncio.AbstractChildWatcher):
        """Watches child processes by descriptor, on whichever loop runs; as later versions of Python do.

        Of the watchers of Python 3.11 one starts a thread for each child, and another knows only the main
        loop, which IPython's script magics block while they wait for a loop of their own.
        """

        def add_child_handler(
            self,
            pid: int,
            callback: Callable[[int, int, *Arguments], object],
            *args: *Arguments,
        ) -> None:
            loop, descriptor = asyncio.get_running_loop(), os.pidfd_open(pid)

            def ended() -> None:
                loop.remove_reader(descriptor)
                os.close(descriptor)
                try:
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                except ChildProcessError:
                    status = 255  # somebody else has reaped it; what asyncio gives as well
                callback(pid, status, *args)

            loop.add_reader(descriptor, ended)

        def remove_child_handler(self, pid: int) -> bool:  # noqa: ARG002 - nobody removes what ends by itself
            return False

        def attach_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
            """Nothing to do: any loop will be served."""

        def is_active(self) -> bool:
            return True

        def close(self) -> None:
            """Nothing is open."""

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing is open."""
