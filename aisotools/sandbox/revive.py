"""What a fork of the worker takes along, and what is mended in it when it is woken.

Memory comes back by itself. The rest is shared with the process it was forked from, or gone: offsets of open
files are shared, timers and the state of `random` are gone, threads and child processes are the other's. What
can be put right is; what cannot is made to fail at once instead of waiting for ever.
"""
# ruff: noqa: SLF001 - what Python keeps for itself about threads, pools and children is what has to be mended

from __future__ import annotations

import concurrent.futures
import ctypes
import errno
import fcntl
import gc
import os
import random
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures.thread import BrokenThreadPool
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

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
class Luggage:
    """What has to be written down before a fork, because the fork would share or lose it.

    Attributes:
        files: Regular files that are open.
        random_state: The state of `random`, which Python seeds anew in every fork.
        timer: Seconds left of the timer of real time, and its interval.
    """

    files: tuple[OpenFile, ...]
    random_state: object
    timer: tuple[float, float]


def pack() -> Luggage:
    """Write down what a fork made right now would share or lose."""
    return Luggage(
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


def unpack(luggage: Luggage, *, strangers: bool, keep: frozenset[int]) -> list[str]:
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
