"""Parked forks as the host holds them: each a socket, a process that the kernel vouches for, and a label.

Whatever sits at the other end is hostile. Its process id is taken from the kernel, never from what it says,
and is only believed when that process lies below the worker's supervisor; from then on a descriptor of the
process stands for it, so that no other can take its place.

What a kept state will bring back, seen from outside: the host looks at the process, and then decides.

Nobody asks the worker whether it has threads, sockets or child processes; the kernel tells. Only the names of
Python's threads, and which sockets are its own, come from the worker: a lie there spoils nobody's labels but
its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import signal
import socket
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aisotools.core.exceptions import ChannelError, SandboxError
from aisotools.core.protocols import VariableLabel, VariablePoint
from aisotools.sandbox.frames import Frame, FrameLimits, FrameReader, encode
from aisotools.sandbox.process import tree

# Threads that these keep are no obstacle: they do without, or start new ones.
_HARMLESS = ("libscipy_openblas", "libopenblas", "libarrow", "_duckdb", "duckdb.", "numexpr", "libgomp")
# These wait for ever in a fork once their threads have been started.
_STUCK = {"_polars_runtime": "polars", "polars.abi3": "polars", "libtorch_cuda": "torch with CUDA"}
_MAPS_BYTES = 4 << 20
_MOST_DESCRIPTORS = 4096
_MOST_THREADS = 1024
_MOST_TOLD = 8
_MOST_STEPS = 64
_WAYS = 8
_NUMBERED = re.compile(r":\[\d+\]$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCounts:
    """What has to be seen before a fork is made, because a fork has none of it.

    Attributes:
        threads: How many threads the worker has besides its first.
        children: Names of its child processes, by id.
    """

    threads: int = 0
    children: Mapping[int, str] = field(default_factory=dict)

    def without(self, ours: Collection[int]) -> ProcessCounts:
        """The same without children of ours."""
        left = {pid: name for pid, name in self.children.items() if pid not in ours}
        return ProcessCounts(threads=self.threads, children=left)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessObservation:
    """What can be seen of a state.

    Attributes:
        glance: Threads and children.
        named: Names of Python's own threads.
        descriptors: Kinds of descriptors that are shared with the live worker, each with how many there are.
        writing: Files that are open for writing.
        shared: Files that are mapped for writing, and shared.
        libraries: Names of the mapped libraries.
        whole: Whether everything could be looked at.
    """

    glance: ProcessCounts = ProcessCounts()
    named: tuple[str, ...] = ()
    descriptors: Mapping[str, int]
    writing: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    libraries: frozenset[str] = frozenset()
    whole: bool = True


def judge(sight: ProcessObservation) -> tuple[VariableLabel, tuple[str, ...]]:
    """How much of the state would come back, and what would not."""
    lost = []
    if sight.named:
        lost.append(f"threads: {', '.join(sight.named)}")
    threads = sight.glance.threads
    stuck = {name for part, name in _STUCK.items() if any(part in library for library in sight.libraries)}
    if threads and stuck:
        lost.append(f"the threads of {', '.join(sorted(stuck))}, which cannot be started again")
    elif threads > len(sight.named) and not _explained(sight.libraries):
        lost.append(f"{threads - len(sight.named)} threads of a library")
    if sight.glance.children:
        lost.append(f"child processes: {_some(tuple(sight.glance.children.values()))}")
    lost += [f"{count} {kind}" for kind, count in sorted(sight.descriptors.items())]
    if sight.writing:
        lost.append(f"what is written to open files: {_some(sight.writing)}")
    if sight.shared:
        lost.append(f"what is written to shared memory: {_some(sight.shared)}")
    if not sight.whole:
        lost.append("what could not be looked at")
    if threads and stuck:
        return "data only", tuple(lost)
    return "partial" if lost else "exact", tuple(lost)


def _explained(libraries: frozenset[str]) -> bool:
    return any(part in library for library in libraries for part in _HARMLESS)


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - _MOST_TOLD
    return ", ".join(names[:_MOST_TOLD]) + (f" and {more} more" if more > 0 else "")


# ---- looking


def glance(pid: int, ours: Collection[int]) -> ProcessCounts:
    """Threads and children of a worker, right now; `ours` are children that need no names."""
    children: set[int] = set()
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return ProcessCounts()
    for thread in threads[:_MOST_THREADS]:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
            children.update(map(int, file.read().split()))
    named = {child: "" if child in ours else _name(child) for child in sorted(children)}
    return ProcessCounts(threads=len(threads) - 1, children=named)


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "one that ended"


def look(pid: int, seen: ProcessCounts, told: Mapping[str, Any]) -> ProcessObservation:
    """Look at a parked fork, which holds still.

    Args:
        pid: The fork.
        seen: What was seen before it was made.
        told: What it says of itself: its `threads` and the descriptors that are `ours`.
    """
    ours = {number for number in told.get("ours", ()) if isinstance(number, int)}
    named = tuple(str(name)[:40] for name in told.get("threads", ()))[:_MOST_TOLD] if seen.threads else ()
    kinds: dict[str, int] = {}
    writing: list[str] = []
    try:
        for number, target in _descriptors(pid):
            if number in ours:
                continue
            if target.startswith("/"):
                if not target.startswith(("/dev/", "/memfd:")) and _writes(pid, number):
                    writing.append(os.path.basename(target))
            else:
                kind = _kind(target)
                if kind:
                    kinds[kind] = kinds.get(kind, 0) + 1
        libraries, shared = _mapped(pid)
    except OSError:
        return ProcessObservation(glance=seen, named=named, descriptors=kinds, whole=False)
    return ProcessObservation(
        glance=seen,
        named=named,
        descriptors=kinds,
        writing=tuple(writing),
        shared=tuple(shared),
        libraries=libraries,
    )


def _descriptors(pid: int) -> Iterator[tuple[int, str]]:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder)[:_MOST_DESCRIPTORS]:
        number = int(name)
        if number > 2:
            try:
                yield number, os.readlink(f"{folder}/{name}")
            except FileNotFoundError:
                continue


def _kind(target: str) -> str:
    kind = _NUMBERED.sub("", target).removeprefix("anon_inode:").strip("[]")
    return {"socket": "sockets", "pipe": "pipes", "eventpoll": "event loops", "pidfd": ""}.get(kind, kind)


def _writes(pid: int, number: int) -> bool:
    with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
        flags = next((int(line.split()[1], 8) for line in file if line.startswith("flags:")), 0)
    return flags & os.O_ACCMODE != os.O_RDONLY


def _mapped(pid: int) -> tuple[frozenset[str], list[str]]:
    """Names of mapped libraries, and of what is mapped shared and may be written."""
    with open(f"/proc/{pid}/maps", "rb") as file:
        text = file.read(_MAPS_BYTES).decode("utf-8", "replace")
    libraries, shared = set(), []
    for line in text.splitlines():
        fields = line.split(None, 5)
        rights, path = fields[1], fields[5] if len(fields) > 5 else ""
        if ".so" in path:
            libraries.add(os.path.basename(path))
        elif rights[1] == "w" and rights[3] == "s":
            shared.append(os.path.basename(path) or "no file")
    return frozenset(libraries), shared


def private_bytes(pid: int) -> int:
    """Memory that a process shares with nobody, and that would be free without it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Private_"))


def is_below(pid: int, root: int, parent_of: Callable[[int], int] = tree.parent_of) -> bool:
    """Whether a process is somewhere below `root`, by what the kernel says.

    One between the two may end while we look, and its children then get another parent: where the way breaks
    off, it is looked for again from its beginning.
    """
    for _ in range(_WAYS):
        at = pid
        for _ in range(_MOST_STEPS):
            if at == root:
                return True
            if (parent := parent_of(at)) <= 1:
                break
            at = parent
        else:
            return False
        if parent == 1 or at == pid:
            return False  # it is the system's, or itself gone
    return False


_CREDENTIALS = struct.Struct("3i")
_SO_PASSCRED, _SCM_CREDENTIALS = 16, 2
_LIMITS = FrameLimits(header_bytes=1 << 16, body_bytes=0, parts=0)
_PARK_S = 5.0
_OOM_FIRST = 900


class ForkSocket:
    """Our end of a socket to a fork: its first words, and who says them."""

    def __init__(self, supervisor: Callable[[], int]) -> None:
        """Make a pair of sockets; whoever answers must be below the process that `supervisor` tells.

        Raises:
            SandboxError: If this process has no descriptors left.
        """
        self.pid, self.pidfd = 0, -1
        try:
            self.end, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise SandboxError(f"no socket could be made ({error.strerror})") from None
        self.end.setblocking(False)
        self.end.setsockopt(socket.SOL_SOCKET, _SO_PASSCRED, 1)
        self._supervisor = supervisor
        self._reader = FrameReader(_LIMITS)

    async def hear(self, op: str, *, within_s: float) -> Mapping[str, Any]:
        """The next frame, which must be `op`.

        Raises:
            SandboxError: If it does not come in time, or is another, or comes from elsewhere.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(within_s):
                while True:
                    readable = loop.create_future()
                    loop.add_reader(self.end, _set, readable)
                    try:
                        await readable
                    finally:
                        loop.remove_reader(self.end)
                    if frames := self._read():
                        break
        except TimeoutError:
            raise SandboxError(f"it did not answer within {within_s:g} s") from None
        if frames[0].op != op:
            raise SandboxError(
                f"it answered {frames[0].op[:40]!r} {frames[0].header.get('error', '')!s:.100}"
            )
        return frames[0].header

    def _read(self) -> list[Frame]:
        try:
            # Not a byte behind the frame, which may be for whoever has the socket next.
            # No room for descriptors: what is sent beside the credentials is dropped by the kernel.
            room = socket.CMSG_SPACE(_CREDENTIALS.size)
            data, ancillary, _, _ = self.end.recvmsg(self._reader.missing_bytes, room)
        except BlockingIOError:
            return []
        except OSError as error:
            raise SandboxError(f"it is gone ({error.strerror})") from None
        if not data:
            raise SandboxError("it ended")
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _SCM_CREDENTIALS):
                self._identify(_CREDENTIALS.unpack(content)[0])
        if self.pidfd < 0:
            raise SandboxError("nobody vouches for it")
        try:
            return self._reader.feed(data)
        except ChannelError as error:
            raise SandboxError(str(error)) from None

    def _identify(self, pid: int) -> None:
        """Take the process that the kernel names, if it is one of ours and stays the same meanwhile."""
        if self.pidfd >= 0 and pid == self.pid:
            return
        if self.pidfd >= 0:
            raise SandboxError("two processes answer at once")
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            raise SandboxError(f"its process cannot be held ({error.strerror})") from None
        if not is_below(pid, self._supervisor()) or not _alive(pidfd):
            os.close(pidfd)
            raise SandboxError("it is not one of this sandbox's processes")
        self.pid, self.pidfd = pid, pidfd

    def hand_over(self) -> tuple[socket.socket, int, int]:
        """The socket, the process and its descriptor, which are somebody else's from now on."""
        pidfd, self.pidfd = self.pidfd, -1
        return self.end, self.pid, pidfd

    def __del__(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)

    def close(self, *, kill: bool) -> None:
        """Let go of it; with `kill` the process ends too."""
        self.theirs.close()
        self.end.close()
        if self.pidfd >= 0:
            if kill:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            os.close(self.pidfd)
            self.pidfd = -1


class ForkSnapshot:
    """A state of the worker, as it was before one call.

    Attributes:
        point: What it is, and what would come back of it.
        number: Its place in time.
        shipped: Keys of the tools that the worker had then.
        settled: Done when it is known whether the fork is there.
        refused: Why it is not there; empty when it is.
        last_fork_s: Processor time of the fork before it, as the worker says.
    """

    def __init__(
        self,
        number: int,
        call_id: str,
        ear: ForkSocket,
        *,
        seen: ProcessCounts,
        shipped: set[str],
        siblings: Sequence[ForkSnapshot],
    ) -> None:
        """Wait for the fork to answer through `ear`.

        Args:
            number: Its place in time.
            call_id: The call before which it was made.
            ear: Our end of its socket.
            seen: What was seen of the worker before.
            shipped: Keys of the tools that the worker has.
            siblings: Forks that had been asked for and had not answered: they may be among the children seen.
        """
        self.point = VariablePoint(call_id=call_id)
        self.number, self.shipped = number, shipped
        self.refused = ""
        self.last_fork_s = 0.0
        self._ear, self._seen = ear, seen
        self._siblings = siblings
        self.settled = asyncio.get_running_loop().create_task(self._settle())

    def __repr__(self) -> str:
        return f"<ParkedFork {self.number} pid={self._ear.pid} {self.point.label} {self.refused}>"

    @property
    def pid(self) -> int:
        """The fork, as the kernel told; 0 before it has answered."""
        return self._ear.pid

    @property
    def alive(self) -> bool:
        """Whether it can be woken, as far as is known."""
        return not self.refused and self._ear.pidfd >= 0 and _alive(self._ear.pidfd)

    async def _settle(self) -> None:
        try:
            told = await self._ear.hear("parked", within_s=_PARK_S)
        except SandboxError as error:
            self.drop(f"the fork failed: {error}")
            return
        siblings, self._siblings = self._siblings, ()
        if siblings:
            await asyncio.wait([fork.settled for fork in siblings])
            self._seen = self._seen.without({fork.pid for fork in siblings})
        took_s = told.get("last_fork_s")
        self.last_fork_s = float(took_s) if isinstance(took_s, int | float) else 0.0
        label, lost = judge(look(self.pid, self._seen, told))
        self.point = VariablePoint(call_id=self.point.call_id, label=label, lost=lost)
        _offer_to_oom_killer(self.pid)

    def weigh(self) -> int:
        """Look again how much memory is kept for it alone."""
        memory_bytes = private_bytes(self.pid) if self.alive else 0
        point = self.point
        self.point = VariablePoint(
            call_id=point.call_id, label=point.label, lost=point.lost, memory_bytes=memory_bytes
        )
        return memory_bytes

    async def wake(
        self, supervisor: Callable[[], int], *, within_s: float
    ) -> tuple[ForkSocket, tuple[str, ...]]:
        """Have it fork, and the fork go on from the state; the state stays.

        Raises:
            SandboxError: If no fork answers in time.
        """
        strangers = bool(self._seen.threads or self._seen.children)
        ear = await self._ask("wake", supervisor, {"strangers": strangers})
        try:
            told = await ear.hear("woke", within_s=within_s)
        except BaseException:
            ear.close(kill=True)
            raise
        return ear, _words(told.get("lost"))

    async def copy(self, supervisor: Callable[[], int], file: int, *, within_s: float) -> tuple[str, ...]:
        """Have the variables written into `file`; what could not be.

        Raises:
            SandboxError: If that is not done in time.
        """
        ear = await self._ask("copy", supervisor, {}, file)
        try:
            await ear.hear("copying", within_s=within_s)
            told = await ear.hear("copied", within_s=within_s)
        finally:
            ear.close(kill=True)
        return _words(told.get("lost"))

    async def _ask(
        self, op: str, supervisor: Callable[[], int], header: Mapping[str, Any], *files: int
    ) -> ForkSocket:
        await self.settled
        if not self.alive:
            raise SandboxError(self.refused or "it was ended")
        ear = ForkSocket(supervisor)
        try:
            socket.send_fds(self._ear.end, [encode(op, header)], [ear.theirs.fileno(), *files])
        except OSError as error:
            ear.close(kill=False)
            raise SandboxError(f"it is gone ({error.strerror})") from None
        ear.theirs.close()
        return ear

    def drop(self, reason: str) -> None:
        """End it; it cannot be had any more, because of `reason`."""
        self.refused = self.refused or reason
        self._ear.close(kill=True)


def _offer_to_oom_killer(pid: int) -> None:
    """Memory that runs out shall eat the past, not the present."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(_OOM_FIRST))


def _words(told: object) -> tuple[str, ...]:
    """What a worker says it has lost: text of bounded length."""
    if not isinstance(told, Sequence) or isinstance(told, str):
        return ()
    return tuple(str(entry)[:200] for entry in told[:50])


def _alive(pidfd: int) -> bool:
    """Whether the process of a descriptor runs; one that has ended is readable."""
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except OSError:
        return False
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return not poll.poll(0)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
