"""Kept states, the worker's side: it forks, and the fork waits on a socket of its own until it is wanted.

The fork that waits is never used itself: to have its state back it forks again, and it is that fork which
goes on, so that one state can be had any number of times and a fork that fails loses nothing. Host to a
waiting fork: `wake` with a socket, `copy` with a socket and a file; a waiting fork to the host: `parked`,
once. It leaves when the host closes its end. What it forks says `woke`, or `copying` and `copied`, on the
socket that it was given.

What a fork of the worker takes along, and what is mended in it when it is woken.

Memory comes back by itself. The rest is shared with the process it was forked from, or gone: offsets of open
files are shared, timers and the state of `random` are gone, threads and child processes are the other's. What
can be put right is; what cannot is made to fail at once instead of waiting for ever.

Variables on their way from one worker to another: pickled in the one, unpickled in the other.

Both ends are confined; the host carries the bytes and never looks into them. What cannot be pickled is named.
"""

# ruff: noqa: SLF001 - what Python keeps for itself about threads, pools and children is what has to be mended
from __future__ import annotations

import concurrent.futures
import ctypes
import errno
import fcntl
import gc
import os
import pickle
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures.thread import BrokenThreadPool
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple, NoReturn

from aisotools.core.protocols import ToolContext
from aisotools.core.types import Json, ToolResult
from aisotools.sandbox.frames import BlockingChannel, FrameLimits
from aisotools.tools.serialization import NAMESPACE, pickle_namespace

_MOST_DESCRIPTORS = 4096
_SPARSE = 64
_REOPEN_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK
_PAUSE_HARD = 2
_PR_SET_PDEATHSIG = 1
_LOST = "lost: it belonged to a state of the worker that was left by undo or recovery"


class OpenFile(NamedTuple):
    """A regular file that is open.

    Attributes:
        descriptor: Its number.
        identity: Device and inode.
        offset: Where it is read or written next.
        flags: How it was opened.
        inheritable: Whether programs get it.
    """

    descriptor: int
    identity: tuple[int, int]
    offset: int
    flags: int
    inheritable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkState:
    """What has to be written down before a fork, because the fork would share or lose it.

    Attributes:
        files: Regular files that are open.
        random_state: The state of `random`, which Python seeds anew in every fork.
        timer: Seconds left of the timer of real time, and its interval.
    """

    files: tuple[OpenFile, ...]
    random_state: object
    timer: tuple[float, float]


def capture() -> ForkState:
    """Write down what a fork made right now would share or lose."""
    return ForkState(
        files=tuple(_open_files()),
        random_state=random.getstate(),
        timer=signal.getitimer(signal.ITIMER_REAL),
    )


def _open_files() -> Iterator[OpenFile]:
    # /proc/self is out of reach in a fork under Landlock, so the numbers are tried, until many are free.
    free = 0
    for number in range(3, _MOST_DESCRIPTORS):
        try:
            status = os.fstat(number)
        except OSError:
            free += 1
            if free > _SPARSE:
                return
            continue
        free = 0
        if stat.S_ISREG(status.st_mode):
            yield OpenFile(
                number,
                (status.st_dev, status.st_ino),
                os.lseek(number, 0, os.SEEK_CUR),
                fcntl.fcntl(number, fcntl.F_GETFL),
                os.get_inheritable(number),
            )


class _OpenMP:
    """The copies of GNU's OpenMP library that are loaded; a fork of one whose threads exist would hang."""

    def __init__(self) -> None:
        self._known_modules = 0
        self._found: list[Any] = []

    def pause(self) -> None:
        """Have each end its threads; it starts new ones when it needs them."""
        if len(sys.modules) != self._known_modules:  # what is loaded comes by an import
            self._known_modules = len(sys.modules)
            self._found = [ctypes.CDLL(path) for path in _loaded(b"libgomp")]
        for library in self._found:
            library.omp_pause_resource_all(_PAUSE_HARD)


class _Loaded(ctypes.Structure):
    _fields_ = (("address", ctypes.c_size_t), ("name", ctypes.c_char_p))


_visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Loaded), ctypes.c_size_t, ctypes.c_void_p)


def _loaded(part: bytes) -> list[str]:
    """Paths of loaded libraries with `part` in their name, as the linker tells them."""
    found: list[str] = []

    def look(info: Any, _size: int, _data: object) -> int:
        name = info.contents.name or b""
        if part in os.path.basename(name):
            found.append(os.fsdecode(name))
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(_visit(look), None)
    return found


_openmp = _OpenMP()


def quiet_openmp() -> None:
    """Before a fork: GNU's OpenMP must have no threads, or its next use in the fork would wait for ever."""
    _openmp.pause()


# ---- waking


def unpack(luggage: ForkState, *, strangers: bool, keep: frozenset[int]) -> list[str]:
    """In a fork that was woken: put right what it shares with others, and tell what is lost.

    Args:
        luggage: What was written down before the fork.
        strangers: Whether there were threads or child processes, whose holders have to be looked for.
        keep: Descriptors of sockets that are ours.
    """
    random.setstate(luggage.random_state)  # type: ignore[arg-type]  # opaque, from getstate
    lost = [told for file in luggage.files if (told := _reopen(file))]
    lost += _drop_sockets(keep)
    if luggage.timer[0]:
        signal.setitimer(signal.ITIMER_REAL, *luggage.timer)
    if strangers:
        lost += _break_holders()
    return lost


def die_with_parent() -> None:
    """Be killed with the process above; for forks that only work for it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _reopen(file: OpenFile) -> str:
    """Have a file of one's own, at the place where it was; what is lost if that cannot be."""
    try:
        status = os.fstat(file.descriptor)
        if (status.st_dev, status.st_ino) != file.identity:
            return ""  # it was closed, or is another one now
        own = os.open(f"/proc/self/fd/{file.descriptor}", file.flags & _REOPEN_FLAGS | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EBADF:
            return ""  # it was closed just before the fork: nothing has a place in it any more
        return f"the place in an open file (descriptor {file.descriptor}: {error.strerror})"
    try:
        os.lseek(own, file.offset, os.SEEK_SET)
        os.dup2(own, file.descriptor, inheritable=file.inheritable)
    finally:
        os.close(own)
    return ""


def _drop_sockets(keep: frozenset[int]) -> list[str]:
    """Put nothing in the place of sockets shared with the other state, which would take what they carry."""
    dropped = free = 0
    nothing = -1
    for number in range(3, _MOST_DESCRIPTORS):
        try:
            shared = stat.S_ISSOCK(os.fstat(number).st_mode)
        except OSError:
            free += 1
            if free > _SPARSE:
                break
            continue
        free = 0
        if shared and number not in keep:
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) if nothing < 0 else nothing
            os.dup2(nothing, number, inheritable=False)  # its number stays taken: somebody will close it
            dropped += 1
    if nothing >= 0:
        os.close(nothing)
    return [f"{dropped} socket{'s' if dropped > 1 else ''}"] if dropped else []


def _break_holders() -> list[str]:
    """Find what waits for threads and processes that are not there, and have it fail instead."""
    processes = pools = 0
    for thing in gc.get_objects():
        kind = type(thing)  # never isinstance: proxies of user code would run user code
        if issubclass(kind, subprocess.Popen):
            if thing.returncode is None and thing.pid is not None:
                _break_popen(thing)
                processes += 1
        elif issubclass(kind, concurrent.futures.ThreadPoolExecutor):
            if thing._threads:
                _break_thread_pool(thing)
                pools += 1
        elif issubclass(kind, concurrent.futures.Future):
            if thing._state == "RUNNING":
                thing.set_exception(BrokenThreadPool(_LOST))
        elif kind.__module__ == "multiprocessing.pool" and kind.__name__ in {"Pool", "ThreadPool"}:
            thing._state = "TERMINATE"
            pools += 1
    lost = []
    if processes:
        lost.append(f"{processes} child process{'es' if processes > 1 else ''}")
    if pools:
        lost.append(f"{pools} pool{'s' if pools > 1 else ''} of threads or processes")
    return lost


def _break_popen(process: Any) -> None:
    """Its child is another's: what Python would give for its exit status is 0, whatever became of it."""

    def lost(*_: object, **__: object) -> NoReturn:
        raise ChildProcessError(f"The process {process.args!r} (pid {process.pid}) is {_LOST}.")

    process._child_created = False  # nothing to be reaped when it is forgotten
    process._internal_poll = process._wait = lost


def _break_thread_pool(pool: Any) -> None:
    pool._threads.clear()
    pool._shutdown_lock = threading.Lock()  # a thread that is gone may hold the old one
    pool._broken = f"The threads of this pool are {_LOST}. Make a new pool."
    while True:
        try:
            item = pool._work_queue.get_nowait()
        except Exception:  # empty; whatever else it is, nothing more can be had
            return
        if item is not None:
            item.future.set_exception(BrokenThreadPool(pool._broken))


_MOST_LOST = 50


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, namespace: dict[str, Any]) -> None:
        super().__init__(file)
        self._namespace = namespace

    def persistent_load(self, pid: object) -> dict[str, Any]:
        if pid != NAMESPACE:
            raise pickle.UnpicklingError(f"unknown reference {pid!r:.50}")
        return self._namespace


def write(namespace: Mapping[str, Any], hidden: Mapping[str, Any], descriptor: int) -> list[str]:
    """Write the variables of `namespace` into a file, all together so that what is shared stays shared.

    Args:
        namespace: The variables.
        hidden: What a shell has put there by itself.
        descriptor: The file.

    Returns:
        What could not be written, each with the reason.
    """
    wanted = {
        name: value
        for name, value in namespace.items()
        if hidden.get(name, hidden) is not value and not (name.startswith("__") and name.endswith("__"))
    }
    lost: list[str] = []
    try:
        data = pickle_namespace(wanted, namespace)
    except BaseException:  # one of them cannot be: find out which
        for name in tuple(wanted):
            try:
                pickle_namespace({name: wanted[name]}, namespace)
            except BaseException as error:
                kind = type(wanted.pop(name)).__name__
                lost.append(f"{name} ({kind}: {str(error)[:100]})")
        data = pickle_namespace(wanted, namespace)
    with open(descriptor, "wb") as file:
        file.write(data)
    return lost[:_MOST_LOST]


def read(namespace: dict[str, Any], descriptor: int) -> list[str]:
    """Add what `write` has written to `namespace`; the names."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        variables = _Unpickler(file, namespace).load()
    namespace.update(variables)
    return sorted(variables)


class LoadVariables:
    """A tool that only kernels call: takes over the variables in the file that comes with the call."""

    name = "load_variables"
    description = "Take over variables."

    def parameters_schema(self) -> Mapping[str, Json]:
        """It takes nothing but the file."""
        return {"type": "object", "properties": {}}

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:  # noqa: ARG002 - none
        """Read them; user code may run meanwhile, as in every unpickling."""
        descriptor: int = context.metadata["attached"]
        names = read(context.metadata["shell"].user_ns, descriptor)
        return ToolResult.json(names)


load = LoadVariables()
"""The one that kernels call."""


_GIVEN = {"wake": 1, "copy": 2}
_LIMITS = FrameLimits(header_bytes=1 << 16, body_bytes=0, parts=0)
_MOST_NAMES = 8
_main = threading.main_thread()


@dataclass(slots=True)
class ForkPoint:
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
        quiet_openmp()
        luggage = capture()
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

    def _wait(self, descriptor: int, luggage: ForkState, told: Mapping[str, Any]) -> BlockingChannel:
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
                lost = unpack(luggage, strangers=frame.header["strangers"], keep=keep)
                woken.send("woke", {"lost": lost})
                return woken

    def _copy(self, channel: BlockingChannel, file: int) -> NoReturn:
        """Write the variables into a file, and go."""
        die_with_parent()
        channel.send("copying")
        try:
            channel.send("copied", {"lost": write(self.namespace, self.hidden, file)})
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
