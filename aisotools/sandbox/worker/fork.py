"""Snapshots of the live interpreter, the worker's side: fork, wait, and repair a fork that goes on.

A snapshot is a fork that waits on a socket of its own. It never runs user code itself: to be restored it
forks again, and that fork goes on, so that one snapshot can be restored any number of times and a failure
loses nothing.

Host to snapshot: `wake` with a socket, `copy` with a socket and a file, `read` with a socket, two pipes for
output and one for interrupts. Snapshot to host: `parked`, once. Its forks say `woke` or `refused`, or
`copying` and `copied`, on the socket that they were given. It ends when the host closes its end.

A fork made by `read` is a reader (see `reader`): it serves calls like a worker and cannot change anything.
Between snapshot and reader stands its keeper, one more fork that does nothing: it adopts what the reader's
calls leave behind, where the host finds it (see `sandbox.host.reader_processes`).

A fork has all memory of the process it was forked from, and shares or lacks the rest: offsets of open files
and sockets are shared; threads, timers and child processes are missing. What can be repaired is; what cannot
is made to fail at once instead of waiting for ever.

Threat: user code in a fork takes frames or descriptors of the worker, waits for ever for a thread that is not
there, or leaves a snapshot that no restore can use.
Mechanism: a fork has a socket of its own and gives up the worker's; locks, pools and loops are mended or made
to fail. The host believes nothing of it: see `aisotools.sandbox.host.fork_handle`.
Race: the worker forks between two calls, when the main thread runs none of them. Other threads may hold a
lock at that moment: it stays held in the fork, and what needs it is reported as lost where it is known.
Failure: a fork that cannot be mended answers `refused` with the reason and ends; the snapshot stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import random
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from socket import socket  # the class as Python has it: user code may replace that of the module
from typing import Any, BinaryIO, NamedTuple, NoReturn

from aisotools.core.exceptions import SandboxError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Json, ToolResult
from aisotools.sandbox.confinement.denied_reads import limit_reads
from aisotools.sandbox.frames import BlockingChannel, FrameLimits
from aisotools.sandbox.process import tree
from aisotools.sandbox.worker import reader
from aisotools.sandbox.worker.children import hide_child
from aisotools.sandbox.worker.open_files import (
    OpenFile,
    cut_off_logs,
    list_open_files,
    open_apart,
    restore_offsets,
    used_descriptors,
)
from aisotools.sandbox.worker.owners import Owners, find_owners
from aisotools.sandbox.worker.user_hooks import UserHooks
from aisotools.tools.serialization import NAMESPACE, pickle_namespace

# OpenMP's own number.
_OMP_PAUSE_HARD = 2

# Descriptors that come with each request to a snapshot.
_REQUEST_DESCRIPTORS = {"wake": 1, "copy": 2, "read": 4}
_FRAME_LIMITS = FrameLimits(header_bytes=1 << 16, body_bytes=0, parts=0)
# Thread names that are reported, and their length.
_MAX_NAMES = 8
_MAX_NAME_CHARS = 40
# Length of the reason why there is no reader.
_MAX_REASON_CHARS = 500
# Variables that are reported as not copied.
_MAX_LOST = 50
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_main_thread = threading.main_thread()

# ---- before the fork: what it would share or lose


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkState:
    """What a fork would share with its parent, or lose.

    Attributes:
        files: Regular files that are open.
        random_state: The state of `random`, which Python seeds anew in every fork.
        timers: Of each timer that was set, its number, the seconds that are left and its interval.
        folder: Path of the current folder; empty if it has none.
    """

    files: tuple[OpenFile, ...]
    random_state: object
    timers: tuple[tuple[int, float, float], ...]
    folder: str


def capture_state() -> ForkState:
    """Return what a fork made right now would share or lose."""
    return ForkState(
        files=tuple(list_open_files()),
        random_state=random.getstate(),
        timers=tuple((kind, *timer) for kind in _TIMERS if any(timer := signal.getitimer(kind))),
        folder=_current_folder(),
    )


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


class _OpenMP:
    """The copies of GNU's OpenMP library that are loaded."""

    def __init__(self) -> None:
        self._known_modules = 0
        self._libraries: list[Any] = []

    def stop_threads(self) -> None:
        """Have each copy end its threads; it starts new ones when it needs them."""
        # A library comes by an import. Listing the loaded ones takes longer than counting modules.
        if len(sys.modules) != self._known_modules:
            self._known_modules = len(sys.modules)
            self._libraries = [ctypes.CDLL(path) for path in _loaded_libraries(b"libgomp")]
        for library in self._libraries:
            library.omp_pause_resource_all(_OMP_PAUSE_HARD)


class _LibraryInfo(ctypes.Structure):
    _fields_ = (("address", ctypes.c_size_t), ("name", ctypes.c_char_p))


_Visitor = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_LibraryInfo), ctypes.c_size_t, ctypes.c_void_p)


def _loaded_libraries(part: bytes) -> list[str]:
    """Return the paths of loaded libraries with `part` in their name, as the dynamic linker lists them."""
    paths: list[str] = []

    def visit(info: Any, _size: int, _data: object) -> int:
        name = info.contents.name or b""
        if part in os.path.basename(name):
            paths.append(os.fsdecode(name))
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(_Visitor(visit), None)
    return paths


_openmp = _OpenMP()


def stop_openmp_threads() -> None:
    """End the threads of GNU's OpenMP before a fork.

    Its next use in the fork would wait for threads that are not there, for ever.
    """
    _openmp.stop_threads()


# ---- after a wake: repair what is shared, break what is missing


def repair_fork(state: ForkState, *, keep: frozenset[int]) -> list[str]:
    """Repair what a woken fork shares with others. Return what is lost.

    Args:
        state: What was captured before the fork.
        keep: Descriptors of sockets that are the worker's own.
    """
    random.setstate(state.random_state)  # type: ignore[arg-type]  # opaque, from getstate
    return restore_offsets(state.files) + _drop_sockets(keep)


def _drop_sockets(keep: frozenset[int]) -> list[str]:
    """Replace sockets that are shared with the other worker by /dev/null. Return what is lost.

    Two workers that read from one socket would each take a part of what it carries.
    """
    dropped = 0
    null = -1
    for number, status in used_descriptors():
        if not stat.S_ISSOCK(status.st_mode) or number in keep:
            continue
        if null < 0:
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        # Not closed: the owner will close this number later, which must not hit a descriptor that reused it.
        os.dup2(null, number, inheritable=False)
        dropped += 1
    if null >= 0:
        os.close(null)
    return [f"{dropped} socket{'s' if dropped > 1 else ''}"] if dropped else []


# ---- variables as a file, for another worker


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, namespace: dict[str, Any]) -> None:
        super().__init__(file)
        self._namespace = namespace

    def persistent_load(self, pid: object) -> dict[str, Any]:
        if pid != NAMESPACE:
            raise pickle.UnpicklingError(f"unknown reference {pid!r:.50}")
        return self._namespace


def write_variables(namespace: Mapping[str, Any], hidden: Mapping[str, Any], descriptor: int) -> list[str]:
    """Pickle the variables of `namespace` into a file, all together, so that shared objects stay shared.

    Args:
        namespace: The variables.
        hidden: What the shell has put there itself.
        descriptor: The file.

    Returns:
        What could not be pickled, each with the reason.
    """
    variables = {
        name: value
        for name, value in namespace.items()
        if hidden.get(name, hidden) is not value and not (name.startswith("__") and name.endswith("__"))
    }
    lost: list[str] = []
    try:
        data = pickle_namespace(variables, namespace)
    except BaseException:  # user code in __reduce__ may raise anything; find out which variable it is
        for name in tuple(variables):
            try:
                pickle_namespace({name: variables[name]}, namespace)
            except BaseException as error:
                kind = type(variables.pop(name)).__name__
                lost.append(f"{name} ({kind}: {str(error)[:100]})")
        data = pickle_namespace(variables, namespace)
    with open(descriptor, "wb") as file:
        file.write(data)
    return lost[:_MAX_LOST]


def read_variables(namespace: dict[str, Any], descriptor: int) -> list[str]:
    """Add what `write_variables` has written to `namespace`. Return the names, sorted."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        variables = _Unpickler(file, namespace).load()
    namespace.update(variables)
    return sorted(variables)


class LoadVariables:
    """A tool that only the host calls: adds the variables in the file that comes with the call."""

    name = "load_variables"
    description = "Load variables from another sandbox."

    def parameters_schema(self) -> Mapping[str, Json]:
        """Return the schema of no arguments."""
        return {"type": "object", "properties": {}}

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:  # noqa: ARG002 - none
        """Read the variables. Unpickling may run user code."""
        descriptor: int = context.metadata["attached"]
        names = read_variables(context.metadata["shell"].user_ns, descriptor)
        return ToolResult.json(names)


load = LoadVariables()
"""The instance that the host calls, by its import path."""


# ---- the fork itself


class WokenFork(NamedTuple):
    """A fork that goes on.

    Attributes:
        channel: Its call channel.
        interrupts: Of a reader, the read end of its own pipe for interrupts; None for a worker.
        timers: Those of the state, which a worker has to set; see `ForkState`.
    """

    channel: BlockingChannel
    interrupts: int | None = None
    timers: tuple[tuple[int, float, float], ...] = ()


def _await_release(number: int, state: ForkState) -> None:
    """Wait until the host has stopped the present worker: nothing of this fork may go on before that.

    The host sends one byte on the socket `number`, or closes it if the fork is not needed.
    """
    waiting = select.poll()  # code of an earlier call may have had sockets not block
    waiting.register(number, select.POLLIN)
    waiting.poll()
    if not os.read(number, 1):
        os._exit(0)
    if state.folder:
        # The files of then are back. Another folder may stand at its path than the one of this process.
        with contextlib.suppress(OSError):
            os.chdir(state.folder)


def start_timers(timers: Iterable[tuple[int, float, float]]) -> None:
    """Set the timers of a state. User code waits for their signals."""
    # Fork: it inherits none. Signal: the first may come at once.
    for kind, left_s, interval_s in timers:
        signal.setitimer(kind, left_s, interval_s)


@dataclass(slots=True)
class ForkPoint:
    """Makes snapshots of this process.

    Attributes:
        namespace: The user's variables, with what the shell has put beside them.
        hidden: What the shell has put there.
        detach: Called in every fork of ours: closes what belongs to the parent.
        sandbox: Describes the confinement; see `denied_reads.limit_reads`.
        check: Called in a fork that is to be a worker. Raises if calls do not run in it.
        hooks: The hooks of user code.
        is_forking: Whether the fork in progress is ours, and not user code's.
    """

    namespace: Mapping[str, Any]
    hidden: Mapping[str, Any]
    detach: Callable[[], None]
    sandbox: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[], None] | None = None
    hooks: UserHooks = field(default_factory=UserHooks)
    is_forking: bool = field(default=False, init=False)
    _owners: Owners = field(default_factory=Owners, init=False)
    _snapshots: list[int] = field(default_factory=list, init=False)
    _last_fork_s: float = field(default=0.0, init=False)

    def take_snapshot(self, descriptor: int | None, *, own: Iterable[int]) -> WokenFork | None:
        """Fork. Return None here; in the fork, once it is woken on `descriptor`, what it goes on with.

        Args:
            descriptor: A connected stream socket, which is the fork's alone afterwards; None if it could not
                be received. Then there is no fork, and the host learns it by the end of its socket.
            own: Descriptors of sockets that are not user code's.
        """
        if descriptor is None:
            return None
        self._snapshots = [pid for pid in self._snapshots if not _has_ended(pid)]
        stop_openmp_threads()
        state = capture_state()
        threads = [
            thread.name[:_MAX_NAME_CHARS]
            for thread in threading.enumerate()[:_MAX_NAMES]
            if thread is not _main_thread
        ]
        # Processor time, not the clock: on a busy machine the clock measures the other processes.
        began_s = time.thread_time()
        try:
            pid = self._fork()
        except OSError as error:
            _refuse(descriptor, error)
            return None
        if pid:
            os.close(descriptor)
            self._snapshots.append(pid)
            self._last_fork_s = time.thread_time() - began_s
            return None
        # The child. It must not run on: it would return into the worker's loop and answer for the parent.
        try:
            self._snapshots = []
            self.detach()
            header = {"last_fork_s": self._last_fork_s, "threads": threads, "ours": [descriptor, *own]}
            # No handler of user code may run in a snapshot, nor in a fork that still waits.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            woken = self._serve(descriptor, state, header)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return woken
        except BaseException:
            # Half initialised: it must neither answer nor be woken later with some of the parent's state. Its
            # end closes the socket, by which the host learns that there is no such snapshot.
            os._exit(1)

    def _serve(self, descriptor: int, state: ForkState, header: Mapping[str, Any]) -> WokenFork:
        """Serve as a snapshot. Return only in a fork that was woken."""
        sock = socket(fileno=descriptor)
        channel = BlockingChannel(sock, _FRAME_LIMITS)
        channel.send("parked", header)
        while True:
            try:
                frames = channel.receive()
            except (EOFError, OSError):
                # The host has dropped this snapshot, or is gone. Not by an exception: above are the frames of
                # the worker that it was forked in, which would answer for that worker.
                os._exit(0)
            for frame in frames:
                _reap_children()
                taken = [channel.take_descriptor() for _ in range(_REQUEST_DESCRIPTORS[frame.op])]
                received = [number for number in taken if number is not None]
                if len(received) < len(taken):
                    continue  # likewise
                # Fork again: the snapshot stays as it is, for the next request.
                try:
                    is_snapshot = bool(self._fork())
                except OSError as error:
                    # Too many processes just now. The next request may find fewer.
                    _refuse(received.pop(0), error)
                    is_snapshot = True
                if is_snapshot:
                    for number in received:
                        os.close(number)
                    continue
                sock.close()
                woken = BlockingChannel(socket(fileno=received[0]))
                if frame.op == "copy":
                    self._copy(woken, received[1], state)
                if frame.op == "read":
                    self._fork_below_keeper(received)
                    return self._become_reader(woken, state, frame.header, received, former=header["ours"])
                self._find_owners(frame.header)
                lost = repair_fork(state, keep=frozenset({received[0], *header["ours"]}))
                lost += self._owners.describe()
                if frame.header.get("check") and self.check is not None:
                    self.go_on()
                    self._require_sound(woken, self.check)
                woken.send("woke", {"lost": lost})
                _await_release(received[0], state)
                if not frame.header.get("check"):  # by a recovery no files are put back
                    cut_off_logs(state.files)
                self.hooks.release()
                return WokenFork(woken, timers=state.timers)

    def go_on(self) -> None:
        """Let user code run in a fork from now on, and first what it has missed. Does nothing elsewhere.

        Raises:
            KeyboardInterrupt: If it is interrupted. Then the next time goes on behind that.
        """
        self.hooks.go_on()
        self._owners.break_all()

    def _find_owners(self, header: Mapping[str, Any]) -> None:
        # Some may be left from the worker, if it was released itself, and no call has run since.
        if header["strangers"] or self._owners.are_left:
            self._owners = find_owners()

    @staticmethod
    def _require_sound(channel: BlockingChannel, check: Callable[[], None]) -> None:
        """Refuse to be a worker, and end, if calls do not run in this fork."""
        try:
            check()
        except BaseException as error:  # what user code has left may raise anything
            channel.send("refused", {"error": f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS]})
            # Wait until the host hangs up: it asks the kernel who sent this, and of a process that has ended
            # the kernel only gives a number, which another may have by then.
            channel.receive()
            os._exit(1)

    def _fork_below_keeper(self, received: list[int]) -> None:
        """Fork, and return in the fork alone. This process stays above it until the host ends it."""
        # Before the fork: nothing that the reader starts may find this process without it.
        tree.become_subreaper()
        if not self._fork():
            return
        try:
            # Signals: an interrupt is for the reader. A child that ends is reaped by the kernel, so that no
            # zombie counts as a process of the user; the host sees the reader's end by its pidfd.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            *others, interrupts = received
            for number in others:
                os.close(number)
            # The host holds the other end until it has ended all that is below, and this process last. So
            # its number, by which the host knows it, cannot become that of another process before.
            lifeline = select.poll()
            lifeline.register(interrupts, 0)
            lifeline.poll()
            # No reader was made of it, or the host's request got lost: what is left has been sent SIGKILL.
            os.waitid(os.P_ALL, 0, os.WEXITED)
        finally:
            os._exit(0)

    def _become_reader(
        self,
        channel: BlockingChannel,
        state: ForkState,
        header: Mapping[str, Any],
        received: list[int],
        *,
        former: list[int],
    ) -> WokenFork:
        """Give up every right to change something, and report that. End if it cannot be done."""
        own, out, err, interrupts = received
        # Before any user code runs here: 0, 1 and 2 are still those of the worker, and what is printed to
        # them would count as output of a call of the worker.
        for source, target in ((out, 1), (err, 2)):
            os.dup2(source, target)
            os.close(source)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        random.setstate(state.random_state)  # type: ignore[arg-type]  # opaque, from getstate
        folders = [os.environ.get(name, "") for name in ("WORKSPACE", "HOME", "TMPDIR")]
        writable = [*filter(None, folders), *header["writable"]]
        scratch = header["scratch"]
        try:
            lost = reader.give_up_rights(
                header,
                own={own, interrupts},
                former=former,
                writable=writable,
                reads=limit_reads(self.sandbox, header["unreadable"]),
                scratch=scratch,
            )
        except (OSError, SandboxError) as error:
            channel.send("refused", {"error": str(error)[:_MAX_REASON_CHARS]})
            # As in `_require_sound`: the host has to find out whose answer this is before it ends.
            channel.receive()
            os._exit(1)
        self._find_owners(header)
        lost += self._owners.describe()
        self.hooks.release()
        if scratch:
            # With the path of before: an earlier call may have put a folder of the workspace in front.
            own_places = {"TMPDIR": scratch, "XDG_CACHE_HOME": scratch, "PATH": header["search_path"]}
            os.environ |= own_places
            self.sandbox.get("environment", {}).update(own_places)
        channel.send("woke", {"lost": lost})
        return WokenFork(channel, interrupts)

    def _copy(self, channel: BlockingChannel, file: int, state: ForkState) -> NoReturn:
        """Write the variables into a file, and end."""
        try:
            # Pickling runs user code, which may never return. The host kills the snapshot; this fork must go
            # with it.
            tree.die_with_parent()
            open_apart(state.files)
            channel.send("copying")
            # Hooks stay missed: what they write would be no part of any call. A lock that one of them gives
            # back stays held, and the host gives up a copy that waits for it.
            self.hooks.release()
            channel.send("copied", {"lost": write_variables(self.namespace, self.hidden, file)})
            # The host asks the kernel who sent this, which takes a living process. It ends us when it has
            # done so.
            channel.receive()
        finally:
            os._exit(0)

    def _fork(self) -> int:
        self.is_forking = True
        # SIGINT is blocked across the fork: pending at that moment it would be raised in parent and child,
        # and the child would unwind into the worker's code. The mask is restored in both.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        pid = -1
        self.hooks.begin_fork()
        try:
            pid = os.fork()
            # Nobody's `os.wait` may see the fork, nor a signal to our process group. Race: parent and child
            # run in any order, so both set the group, as shells do; in the child `pid` is 0, itself.
            hide_child(pid)
            os.setpgid(pid, pid)
            return pid
        finally:
            self.hooks.end_fork(is_child=pid == 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self.is_forking = False


def _refuse(descriptor: int, error: OSError) -> None:
    """Answer for the fork that was not made. The host knows by the sender that it is not there."""
    with socket(fileno=descriptor) as sock:
        BlockingChannel(sock).send("refused", {"error": error.strerror})


def _has_ended(pid: int) -> bool:
    """Return whether a child of ours has ended, and reap it then."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        # Race: user code has reaped it, past the calls in `children` that leave our forks out.
        return True


def _reap_children() -> None:
    """Reap the forks of a snapshot that have ended."""
    # Here, in a snapshot, no user code runs that might wait for children itself. Many may have ended at once.
    try:
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
            pass
    except ChildProcessError:
        return  # no child is left
