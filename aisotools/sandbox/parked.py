"""Kept states, the worker's side: it forks, and the fork waits on a socket of its own until it is wanted.

The fork that waits is never used itself: to have its state back it forks again, and it is that fork which
goes on, so that one state can be had any number of times and a fork that fails loses nothing. Host to a
waiting fork: `wake` with a socket, `copy` with a socket and a file; a waiting fork to the host: `parked`,
once. It leaves when the host closes its end. What it forks says `woke`, or `copying` and `copied`, on the
socket that it was given.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from aisotools.sandbox import carry, revive
from aisotools.sandbox.channel import BlockingChannel, FrameLimits

_GIVEN = {"wake": 1, "copy": 2}
_LIMITS = FrameLimits(header_bytes=1 << 16, body_bytes=0, parts=0)
_MOST_NAMES = 8
_main = threading.main_thread()


@dataclass(slots=True)
class Lot:
    """Where the forks of this process are parked.

    Attributes:
        forking: Whether the fork that is being made is ours, and not user code's.
        namespace: The user's variables, with what the shell has put beside them.
        hidden: The latter.
        leave: Called in every fork of ours: let go of what belongs to the process it was forked from.
    """

    namespace: Mapping[str, Any]
    hidden: Mapping[str, Any]
    leave: Callable[[], None]
    forking: bool = field(default=False, init=False)
    _forks: list[int] = field(default_factory=list, init=False)
    _fork_s: float = field(default=0.0, init=False)

    def park(self, descriptor: int, *, ours: Iterable[int]) -> BlockingChannel | None:
        """Fork; the fork waits on the socket `descriptor`.

        Args:
            descriptor: A connected stream socket, which is the fork's alone afterwards.
            ours: Descriptors of sockets that are no user code's.

        Returns:
            None in this process; in one that was woken, the channel that it goes on with.
        """
        self._forks = [pid for pid in self._forks if not _ended(pid)]
        revive.quiet_openmp()
        luggage = revive.pack()
        threads = [thread.name[:40] for thread in threading.enumerate()[:_MOST_NAMES] if thread is not _main]
        began_s = time.thread_time()  # not by the clock: on a busy machine that tells about others
        try:
            pid = self._fork()
        except OSError as error:
            with socket.socket(fileno=descriptor) as end:
                BlockingChannel(end).send("refused", {"error": error.strerror})
            return None
        if pid:
            os.close(descriptor)
            self._forks.append(pid)
            self._fork_s = time.thread_time() - began_s
            return None
        try:
            self._forks = []
            self.leave()
            told = {"last_fork_s": self._fork_s, "threads": threads, "ours": [descriptor, *ours]}
            return self._wait(descriptor, luggage, told)
        except BaseException:  # nothing may go on in a fork that is not whole
            os._exit(1)

    def _wait(self, descriptor: int, luggage: revive.Luggage, told: Mapping[str, Any]) -> BlockingChannel:
        end = socket.socket(fileno=descriptor)
        channel = BlockingChannel(end, _LIMITS)
        channel.send("parked", told)
        while True:
            try:
                frames = channel.receive()
            except (EOFError, OSError):
                os._exit(0)
            for frame in frames:
                _reap()
                given = [channel.descriptors.popleft() for _ in range(_GIVEN[frame.op])]
                if self._fork():
                    for received in given:
                        os.close(received)
                    continue
                end.close()
                woken = BlockingChannel(socket.socket(fileno=given[0]))
                if frame.op == "copy":
                    self._copy(woken, given[1])
                keep = frozenset({given[0], *told["ours"]})
                lost = revive.unpack(luggage, strangers=frame.header["strangers"], keep=keep)
                woken.send("woke", {"lost": lost})
                return woken

    def _copy(self, channel: BlockingChannel, file: int) -> NoReturn:
        """Write the variables into a file, and go."""
        revive.die_with_parent()
        channel.send("copying")
        try:
            channel.send("copied", {"lost": carry.write(self.namespace, self.hidden, file)})
            channel.receive()  # the host wants to know whom it heard before that is gone, and ends us
        finally:
            os._exit(0)

    def _fork(self) -> int:
        self.forking = True
        # An interrupt between the two sides of a fork would strike both.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            pid = os.fork()
            # Its own group hides a fork from `os.wait` (see `hide_from_wait`); both sides see to it first.
            os.setpgid(pid, pid)
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self.forking = False


def hide_from_wait() -> None:
    """Have `os.wait()` see the children of user code only: those in the group of this process.

    A program that waits until it has no children left would wait for the parked forks, which stay.
    """
    wait_for = os.waitpid

    def waitpid(pid: int, options: int, /) -> tuple[int, int]:
        return wait_for(0 if pid == -1 else pid, options)

    def wait() -> tuple[int, int]:
        return wait_for(0, 0)

    os.waitpid, os.wait = waitpid, wait


def _ended(pid: int) -> bool:
    """Whether a child of ours has ended; it is buried then."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _reap() -> None:
    """Forks that were woken and have ended."""
    try:
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
            pass
    except ChildProcessError:
        return
