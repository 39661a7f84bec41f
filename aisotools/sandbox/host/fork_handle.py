"""The host's handle of one snapshot: a fork of the worker that waits, holding the interpreter as it was.

The fork is hostile like the worker. Who it is comes from the kernel (SO_PASSCRED), never from what it says,
and is believed only if the process lies below the worker's supervisor; a pidfd then keeps the process id from
being reused. What the fork shares with the live worker, or lacks (threads, child processes, sockets), is read
from /proc and reported as a label. Only the names of Python's threads, and which sockets are its own, come
from the worker: a lie there spoils nobody's label but its own.

Threat: a process of the sandbox takes the place of a snapshot, so that an undo wakes it or the host signals a
stranger; or a snapshot answers oddly, never, or without end.
Mechanism: see above: the kernel names the process, a pidfd holds it, frames are bounded and checked like
those of a worker.
Race: it may end at any moment. By its pidfd that is seen, and no other process can get a signal meant for it.
Failure: a snapshot that does not answer in time, or in another form, is dropped with the reason, and its
process is killed. An undo then says that the state is not kept; nothing else is restored in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aisotools.core.exceptions import ChannelError, SandboxError
from aisotools.core.sandboxes import VariablePoint
from aisotools.core.threads import in_thread
from aisotools.sandbox.confinement import syscalls
from aisotools.sandbox.frames import Frame, FrameLimits, FrameReader, encode
from aisotools.sandbox.host.fork_observation import (
    ProcessCounts,
    TooMuchToRead,
    duration_in,
    label_snapshot,
    list_inherited,
    observe,
    private_bytes,
    why_unrestricted,
)
from aisotools.sandbox.host.watches import watch
from aisotools.sandbox.process import tree
from aisotools.sandbox.process.descriptors import (
    IN_FLIGHT_PATIENCE_S,
    IN_FLIGHT_PAUSE_S,
    discard_socket,
    host_pair,
    receive,
)
from aisotools.sandbox.process.spawn import search_path

_log = logging.getLogger(__name__)

# Entries of what a fork says it has lost, and their length.
_MAX_LOSSES = 50
_MAX_LOSS_CHARS = 200
# Length of the reason why a fork was not made, or could not become what it should.
_MAX_REASON_CHARS = 500
_CREDENTIALS = struct.Struct("3i")
# Linux's numbers; Python has no names for them everywhere.
_SO_PASSCRED = 16
_SCM_CREDENTIALS = 2
_FRAME_LIMITS = FrameLimits(header_bytes=1 << 16, body_bytes=0, parts=0)
# A fork of a worker with gigabytes of memory answers within tens of milliseconds; at-fork hooks of user code
# come on top.
_FORK_ANSWER_S = 5.0
# A fork that copies variables computes. One that waits for so long waits for what only the worker has.
_STALLED_S = 5.0
_LOOKS_AT_STALLED = 10
# When memory runs out the kernel kills the process with the highest score first. The most is 1000.
_OOM_SCORE = 900


# ---- the socket of a fork


class ForkSocket:
    """Our end of a socket that a fork answers on, once the kernel has named the fork.

    Attributes:
        sock: Our end.
        peer: The other end, for the fork.
        pid: The process that answers; 0 until it has.
        pidfd: A descriptor of that process, or -1.
        killed: Gets the process when `close` has killed it: it may be there for a moment yet.
    """

    def __init__(
        self, supervisor: Callable[[], int], requested: int = 0, killed: deque[int] | None = None
    ) -> None:
        """Create the pair of sockets.

        Args:
            supervisor: Returns the process that whoever answers must be below.
            requested: The process that is asked to fork. It may refuse itself, and is never the fork.
            killed: See the class.

        Raises:
            SandboxError: If this process has no descriptors left.
        """
        self._requested = requested
        self.killed = deque[int](maxlen=1) if killed is None else killed
        self.pid = 0
        self.pidfd = -1
        try:
            self.sock, self.peer = host_pair(socket.SOCK_STREAM)
        except OSError as error:
            raise SandboxError(f"the host could not make a socket for a fork ({error.strerror})") from None
        self.sock.setblocking(False)
        # The kernel adds the sender's process id to every message; the sender cannot forge it.
        self.sock.setsockopt(socket.SOL_SOCKET, _SO_PASSCRED, 1)
        self._supervisor = supervisor
        self._reader = FrameReader(_FRAME_LIMITS)
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that watches our end, while somebody waits for a frame."""

    async def receive(self, op: str, *, within_s: float) -> Mapping[str, Any]:
        """Wait for the next frame, which must be `op`, and return its header.

        Raises:
            SandboxError: If it does not come in time, is another one, or comes from a foreign process; if the
                loop cannot watch the socket.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(within_s):
                while True:
                    readable = loop.create_future()
                    watch(loop, self.sock, _resolve, readable)
                    self._loop = loop
                    try:
                        await readable
                    finally:
                        self._unwatch()
                    if frames := self._read():
                        break
        except TimeoutError:
            raise SandboxError(f"the fork did not answer within {within_s:g} s") from None
        frame = frames[0]
        if frame.op != op:
            reason = str(frame.header.get("error", ""))[:_MAX_REASON_CHARS]
            answer = f"the fork answered {frame.op[:40]!r} instead of {op!r}"
            raise SandboxError(f"{answer}: {reason}" if reason else answer)
        return frame.header

    def _read(self) -> list[Frame]:
        try:
            # Read no byte beyond the frame: what follows is for `WorkerConnection`, which gets this socket
            # next.
            room = socket.CMSG_SPACE(_CREDENTIALS.size)
            data, ancillary = receive(self.sock, self._reader.missing_bytes, room)
        except BlockingIOError:
            return []
        except ChannelError as error:
            raise SandboxError(f"the fork sent a malformed answer: {error}") from None
        except OSError as error:
            raise SandboxError(f"the fork's socket could not be read ({error.strerror})") from None
        if not data:
            raise SandboxError("the fork closed its socket before it answered")
        is_refusal = False
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _SCM_CREDENTIALS):
                sender = _CREDENTIALS.unpack(content)[0]
                # A process that cannot fork says so itself. It goes on: closing this socket must not end it.
                is_refusal = sender == self._requested and self.pidfd < 0
                if not is_refusal:
                    self._identify(sender)
        if self.pidfd < 0 and not is_refusal:
            raise SandboxError("the kernel did not name the process that answered as the fork")
        try:
            frames = self._reader.feed(data)
        except ChannelError as error:
            raise SandboxError(f"the fork sent a malformed answer: {error}") from None
        if is_refusal and frames:
            reason = str(frames[0].header.get("error", ""))[:_MAX_REASON_CHARS]
            raise SandboxError(f"the process could not be forked ({reason})")
        return frames

    def _identify(self, pid: int) -> None:
        """Take the process that the kernel names, if it is one of this sandbox's."""
        if self.pidfd >= 0 and pid == self.pid:
            return
        if self.pidfd >= 0:
            # A fork of user code inherits the end of the socket that was sent, and can answer in the place of
            # the process that was identified. Which of two is the right one cannot be known: neither is used.
            raise SandboxError("two processes answered on the fork's socket")
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            raise SandboxError(f"the fork's process could not be opened ({error.strerror})") from None
        # Race: the sender may have ended, and its id be taken by a stranger, before pidfd_open. The process
        # that the pidfd holds is checked after it was opened: below the supervisor, and still alive.
        if not tree.is_below(pid, self._supervisor()) or not _is_alive(pidfd):
            os.close(pidfd)
            raise SandboxError("the process that answered is not one of this sandbox's processes")
        self.pid, self.pidfd = pid, pidfd

    @property
    def is_alive(self) -> bool:
        """True if its process is known, and has not ended."""
        return self.pidfd >= 0 and _is_alive(self.pidfd)

    def release(self) -> None:
        """Let a fork go on that was woken to be a worker."""
        # Race: it may have ended, which whoever uses it next finds out.
        with contextlib.suppress(OSError):
            self.sock.send(b"\n")

    def detach(self) -> tuple[socket.socket, int, int]:
        """Return our end, the process id and the pidfd; the caller owns them from now on."""
        pidfd, self.pidfd = self.pidfd, -1
        return self.sock, self.pid, pidfd

    def __del__(self) -> None:
        pidfd, self.pidfd = self.pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)

    def _unwatch(self) -> None:
        # Race: `close` may come while `receive` waits, which ends one step of the loop later. By then the
        # number of the descriptor may be that of another file, which must stay watched.
        if self._loop is not None:
            self._loop.remove_reader(self.sock)
            self._loop = None

    def close(self, *, kill: bool) -> None:
        """Close both ends; with `kill`, end the process too."""
        self._unwatch()
        self.peer.close()
        discard_socket(self.sock)
        pidfd, self.pidfd = self.pidfd, -1
        if pidfd >= 0:
            if kill:
                # Race: it may just have ended. The signal reaches nobody then: a pidfd is never another's.
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    self.killed.append(self.pid)
            os.close(pidfd)


def _is_alive(pidfd: int) -> bool:
    # Not by its number, which belongs to another process soon after this one was reaped.
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except OSError:
        return False
    # A zombie takes signals too. A pidfd is readable once its process has ended.
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return not poll.poll(0)


async def wait_until_ended(pids: Iterable[int], *, within_s: float) -> None:
    """Wait until these processes, which were killed, have ended, and not longer than `within_s`.

    Race: one may have ended, and its id be that of another process by now. That is waited for in vain.
    """
    loop = asyncio.get_running_loop()
    pidfds: list[int] = []
    ends: list[asyncio.Future[None]] = []
    try:
        for pid in pids:
            # It is gone; or this process or its loop can watch nothing more, and the caller looks too early.
            with contextlib.suppress(OSError, SandboxError):
                pidfds.append(os.pidfd_open(pid))
                end = loop.create_future()
                watch(loop, pidfds[-1], _resolve, end)
                ends.append(end)
        if ends:
            await asyncio.wait(ends, timeout=within_s)
    finally:
        for pidfd in pidfds:
            loop.remove_reader(pidfd)
            os.close(pidfd)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# ---- the snapshot


class ForkSnapshot:
    """The worker as it was before one call, held by a fork that waits.

    The fork itself is never used: to restore it, it forks again, and that fork goes on. A snapshot can so be
    restored any number of times, and a restore that fails loses nothing.

    Attributes:
        point: The call, and what of the snapshot can be restored.
        number: Its position in time.
        known_tools: Keys of the tools that the worker had then.
        settled: Done when it is known whether the fork is there.
        socket: What it answers on, and its process once it has.
        drop_reason: Why it is not there; empty while it is.
        last_fork_s: Processor time of the fork before it, as reported by the worker.
    """

    def __init__(
        self,
        number: int,
        call_id: str,
        sock: ForkSocket,
        *,
        counts: ProcessCounts,
        known_tools: set[str],
        unsettled: Sequence[ForkSnapshot],
    ) -> None:
        """Wait in the background for the fork to answer.

        Args:
            number: Its position in time.
            call_id: The call before which it was requested.
            sock: Our end of its socket.
            counts: Threads and children of the worker when it was requested.
            known_tools: Keys of the tools that the worker has.
            unsettled: Snapshots that were requested and have not answered: they may be among the counted
                children.
        """
        self.point = VariablePoint(call_id=call_id)
        self.number = number
        self.known_tools = known_tools
        self.drop_reason = ""
        self.last_fork_s = 0.0
        self.socket = sock
        self._counts = counts
        self._unsettled = unsettled
        self.settled = asyncio.get_running_loop().create_task(self._settle())

    def __repr__(self) -> str:
        return f"<ForkSnapshot {self.number} pid={self.socket.pid} {self.point.label} {self.drop_reason}>"

    @property
    def is_alive(self) -> bool:
        """True if it can be restored, as far as is known."""
        return not self.drop_reason and self.socket.is_alive

    async def _settle(self) -> None:
        try:
            header = await self.socket.receive("parked", within_s=_FORK_ANSWER_S)
        except SandboxError as error:
            self.drop(f"the snapshot was not taken, because {error}")
            return
        try:
            await self._inspect(header)
        except Exception as error:
            # Undo, and whoever else waits for this task, must not fail by what a fork shows of itself. Each
            # form is checked; this is for what was overlooked.
            _log.exception("A fork of a worker was not understood")
            self.drop(f"the snapshot could not be inspected ({type(error).__name__})")

    async def _inspect(self, header: Mapping[str, Any]) -> None:
        _prefer_for_oom_kill(self.socket.pid)
        # Race: children were counted when this fork was requested. Forks requested shortly before may have
        # been born by then, with ids that nobody knew yet. Wait for their ids, and do not count them as user
        # code's.
        unsettled, self._unsettled = self._unsettled, ()
        if unsettled:
            await asyncio.wait([snapshot.settled for snapshot in unsettled])
            self._counts = self._counts.without({snapshot.socket.pid for snapshot in unsettled})
        self.last_fork_s = duration_in(header, "last_fork_s")
        # In a thread if it is much: how much there is to read is up to the worker.
        try:
            observation = observe(self.socket.pid, self._counts, header, is_quick=True)
        except TooMuchToRead:
            observation = await in_thread(observe, self.socket.pid, self._counts, header)
        # Race: if the fork has ended meanwhile, this may be of another process with its number; then it is
        # not alive, and nothing is restored from it.
        label, lost = label_snapshot(observation)
        self.point = replace(self.point, label=label, lost=lost)

    def measure_memory(self) -> int:
        """Return the memory in bytes that is kept for this snapshot alone, and note it in `point`."""
        memory_bytes = private_bytes(self.socket.pid) if self.is_alive else 0
        self.point = replace(self.point, memory_bytes=memory_bytes)
        return memory_bytes

    async def wake(
        self, supervisor: Callable[[], int], *, within_s: float, check: bool = False
    ) -> tuple[ForkSocket, tuple[str, ...]]:
        """Fork the snapshot into a worker. Return the worker's socket, and what was lost; the snapshot stays.

        It runs no code of a call, nor any task that was under way, until the socket's `release`.

        Args:
            supervisor: Returns the process that it must lie below.
            within_s: How long it may take.
            check: Whether the fork has to find first that cells run in it.

        Raises:
            SandboxError: If no fork answers in time, or cells do not run in it.
        """
        needs_repair = bool(self._counts.threads or self._counts.children)
        sock = await self._request("wake", supervisor, {"strangers": needs_repair, "check": check})
        try:
            answer = await sock.receive("woke", within_s=within_s)
        except BaseException:
            # Cancelled or too late: the fork may answer yet. Nobody will use it.
            sock.close(kill=True)
            raise
        return sock, _losses(answer.get("lost"))

    async def wake_reader(
        self,
        supervisor: Callable[[], int],
        ends: Sequence[int],
        *,
        writable: Sequence[str],
        unreadable: Sequence[str],
        scratch: str,
        within_s: float,
    ) -> tuple[ForkSocket, int, tuple[str, ...]]:
        """Fork the snapshot into a reader. Return its socket, its keeper, and what it lacks.

        The snapshot stays. The keeper is the process id of the one above the reader.

        Args:
            supervisor: Returns the process that it must lie below.
            ends: Its standard output, its standard error, and the pipe for its interrupts.
            writable: Folders in which it must not be able to create anything.
            unreadable: Absolute paths that it must not be able to read.
            scratch: The one folder that it may change, its TMPDIR; empty for none.
            within_s: How long it may take.

        Raises:
            SandboxError: If no fork answers in time, or one could not give up its rights.
        """
        await self.settled
        if not self.is_alive:
            raise SandboxError(self.drop_reason or "the snapshot's process has ended")
        # Race: if it ends meanwhile, this may be of another process with its number; `_request` looks again.
        try:
            inherited = list_inherited(self.socket.pid, is_quick=True)
        except TooMuchToRead:
            inherited = await in_thread(list_inherited, self.socket.pid)
        header = {
            **inherited,
            "writable": list(writable),
            "unreadable": list(unreadable),
            "scratch": scratch,
            "search_path": search_path(),
            "strangers": bool(self._counts.threads or self._counts.children),
        }
        sock = await self._request("read", supervisor, header, *ends)
        try:
            answer = await sock.receive("woke", within_s=within_s)
            # Asked of the kernel: the supervisor will be told to end all that is below this process.
            keeper = tree.parent_of(sock.pid)
            if not keeper or tree.parent_of(keeper) != self.socket.pid:
                raise SandboxError("the process that answered has no keeper, or has ended")
            if syscalls.architecture() is not None and (
                reason := why_unrestricted(sock.pid, self.socket.pid)
            ):
                raise SandboxError(reason)
        except BaseException:
            sock.close(kill=True)
            raise
        return sock, keeper, _losses(answer.get("lost"))

    async def copy(
        self, supervisor: Callable[[], int], file: int, *, within_s: float, stalled_s: float = _STALLED_S
    ) -> tuple[str, ...]:
        """Write the variables into a file. Return what could not be written.

        Args:
            supervisor: Returns the process that the fork which writes must lie below.
            file: The file's descriptor.
            within_s: How long it may take.
            stalled_s: For how long that fork may wait without computing anything.

        Raises:
            SandboxError: If that is not done in time.
        """
        sock = await self._request("copy", supervisor, {}, file)
        try:
            await sock.receive("copying", within_s=within_s)
            writing = asyncio.ensure_future(sock.receive("copied", within_s=within_s))
            try:
                await _wait_unless_stalled(writing, sock.pid, stalled_s)
            finally:
                writing.cancel()
                await asyncio.wait([writing])
        finally:
            sock.close(kill=True)
        return _losses(writing.result().get("lost"))

    async def _request(
        self, op: str, supervisor: Callable[[], int], header: Mapping[str, Any], *files: int
    ) -> ForkSocket:
        await self.settled
        if not self.is_alive:
            raise SandboxError(self.drop_reason or "the snapshot's process has ended")
        sock = ForkSocket(supervisor, self.socket.pid, self.socket.killed)
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + IN_FLIGHT_PATIENCE_S
        while True:
            try:
                # Race: the fork may have ended since `is_alive`; then the message is refused, and nobody
                # holds the copies of the descriptors.
                socket.send_fds(self.socket.sock, [encode(op, header)], [sock.peer.fileno(), *files])
                break
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS and loop.time() < ends_s:
                    await asyncio.sleep(IN_FLIGHT_PAUSE_S)
                    continue
                sock.close(kill=False)
                raise SandboxError(
                    f"the snapshot's process could not be reached ({error.strerror})"
                ) from None
        sock.peer.close()
        return sock

    def drop(self, reason: str) -> None:
        """End the fork; `reason` is why it cannot be restored any more."""
        self.drop_reason = self.drop_reason or reason
        self.socket.close(kill=True)


class WakingFork:
    """A snapshot that is woken ahead of a restore.

    Attributes:
        snapshot: The snapshot.
        waking: The task that wakes it, whose result is that of `ForkSnapshot.wake`.
    """

    def __init__(self, snapshot: ForkSnapshot, supervisor: Callable[[], int], *, within_s: float) -> None:
        """Begin to wake the snapshot."""
        self.snapshot = snapshot
        self.waking = asyncio.get_running_loop().create_task(snapshot.wake(supervisor, within_s=within_s))

    def __repr__(self) -> str:
        return f"<WakingFork of {self.snapshot!r}>"

    async def take(self) -> tuple[ForkSocket, tuple[str, ...]] | None:
        """Return what `ForkSnapshot.wake` does; None if no fork answered, or it has ended since."""
        try:
            woken = await self.waking
        except SandboxError:
            return None
        if woken[0].is_alive:
            return woken
        woken[0].close(kill=False)
        return None

    def discard(self) -> None:
        """End the fork, as soon as it is there."""
        self.waking.add_done_callback(_end_woken)


def _end_woken(waking: asyncio.Task[tuple[ForkSocket, tuple[str, ...]]]) -> None:
    if not waking.cancelled() and waking.exception() is None:
        waking.result()[0].close(kill=True)


def _prefer_for_oom_kill(pid: int) -> None:
    # When memory runs out, lose the past and not the running worker.
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(_OOM_SCORE))


def _losses(value: object) -> tuple[str, ...]:
    """Return what a fork says it has lost, bounded in number and length."""
    if not isinstance(value, list):
        return ()
    return tuple(entry[:_MAX_LOSS_CHARS] for entry in value[:_MAX_LOSSES] if isinstance(entry, str))


async def _wait_unless_stalled(answer: asyncio.Future[Any], pid: int, stalled_s: float) -> None:
    """Wait for the answer of a fork.

    Raises:
        SandboxError: If the fork waits for so long that it will never answer.
    """
    looks, last = 0, None
    while looks < _LOOKS_AT_STALLED:
        done, _ = await asyncio.wait([answer], timeout=stalled_s / _LOOKS_AT_STALLED)
        if done:
            return
        now = tree.waiting_since(pid)
        looks, last = (looks + 1 if now is not None and now == last else 0), now
    raise SandboxError(
        f"writing one of them waited for {stalled_s:g} s for what a copy does not have, such as threads of a "
        "library, or a lock that a hook of forks gives back"
    )
