"""The fork server: a process that has everything imported and forks a confined worker in milliseconds.

It is executed afresh with an allow-listed environment, so no secret of the host is anywhere in its memory. It
has one thread, because a fork copies only one, and never runs user code. For each request it forks a
supervisor, which forks the worker, which confines itself, checks that this holds, and only then serves calls.

Requests come over a SEQPACKET socket, one JSON packet each: `spawn` (`aisotools.sandbox.process.spawn.
SpawnRequest`) with four descriptors (call channel, control socket, stdout, stderr), or `detect` and
`preloaded`, which are answered.

What every worker inherits, as a boundary:

- Threat: a worker reads in its own memory what an earlier session asked for: its folders, its private home.
- Mechanism: the server itself reads no request. A fork that it has made before the request came, and that
  has waited for it, receives it, parses it and becomes the supervisor. What comes back is numbers and the
  folder for temporary files, which is the same for all sessions of a host: what to prepare, so that later
  forks inherit it ready.
- What the forks of one server share stays shared: addresses and the seed of hashes. Only an interpreter of
  its own for each session would have others. Executing one and importing what a worker needs takes more than
  100 ms, which every start would have to wait for (`tests/benchmarks/test_start.py`). So a worker that finds
  out where something lies in its own memory knows it of the other workers of this host, where it can write
  nothing.
- Race: none. The server waits for the report before it looks for the next request. A waiting fork serves one
  request only, and was made after the report on the one before.
- A failure: a waiting fork that has ended is replaced when the request comes. One that cannot be made, or
  ends before it has received the request, leaves it to the server, which throws it away, wipes it, and tells
  the host. A waiting fork ends with the server.
"""

from __future__ import annotations

import array
import contextlib
import faulthandler
import fcntl
import gc
import importlib
import os
import random
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from pydantic_core import from_json, to_json

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement import (
    detect,
    isolated,
    levels,
    namespaces,
    protected_mounts,
    remounts,
    seccomp,
    syscalls,
)
from aisotools.sandbox.frames import BlockingChannel
from aisotools.sandbox.limits import apply_rlimits
from aisotools.sandbox.process import killing, tree
from aisotools.sandbox.process.preload import preload_modules, reset_inherited_state
from aisotools.sandbox.process.scratch import make_scratch, remove_folder, scratch_prefix
from aisotools.sandbox.process.spawn import PACKET_BYTES, SpawnRequest, base_environment, worker_environment
from aisotools.sandbox.process.supervisor import ChildWatcher, Supervisor
from aisotools.sandbox.worker import ipython
from aisotools.sandbox.worker.event_loop import new_loop
from aisotools.sandbox.worker.output import Recorder
from aisotools.sandbox.worker.worker import Worker
from aisotools.workspace.protected_names import PROTECTED_FOLDERS, PROTECTED_NAMES

_CHANNEL = 3  # descriptor of the call channel, in the worker
_CONTROL = 4  # descriptor of the control socket, in the supervisor
_HIGH = 64  # out of the way of descriptors that get a number of their own
_KILL_TIMEOUT_S = 5.0  # for what one dead supervisor leaves behind; nothing else is served meanwhile
_REPORT_BYTES = 1 << 16
_MAX_LAST_WORDS = 2000
_QUESTIONS = ("detect", "preloaded")
_FORKS_FOR_A_REQUEST = 2
"""The forks that may end without having taken a request before it is thrown away."""

RunWorker = Callable[[Callable[[], None]], NoReturn]
"""Serves as the worker; its argument confines the process, and is called before any user code runs."""


class _RequestReport(NamedTuple):
    """What the server learns of a request.

    Attributes:
        temporary: The folder for temporary files, where a supervisor was made; else empty.
        level: The place of its level in `levels.LEVELS`.
        landlock_abi: See `SpawnRequest`.
        user: Owner of the workspace; negative for none.
        group: Group of the workspace.
        question: What the host wants to know, one of `_QUESTIONS`; else empty.
    """

    temporary: str = ""
    level: int = 0
    landlock_abi: int | None = None
    user: int = -1
    group: int = -1
    question: str = ""


class _WaitingFork(NamedTuple):
    """A fork that will take the next request: to fork takes longer than all else until a supervisor runs.

    Attributes:
        pid: Its process id.
        start: Write end of a pipe: a byte has it take the request, closing it has it end.
        report: Read end of a pipe, which carries a `_RequestReport`.
    """

    pid: int
    start: int
    report: int

    def close(self) -> None:
        """Have it end, if it still waits."""
        os.close(self.start)
        os.close(self.report)


class ForkServer:
    """Everything that a worker will need, and the supervisors that were forked from it."""

    def __init__(
        self, requests: socket.socket, tool_modules: tuple[str, ...] = (), libraries: tuple[str, ...] = ()
    ) -> None:
        """Import and warm everything that workers share.

        Args:
            requests: The socket to serve.
            tool_modules: Modules of our own tools.
            libraries: Modules to preload that the user named; each is tried in another process first.
        """
        self._requests = requests
        self._preloaded: dict[str, str] = {}
        if libraries:
            self._preloaded = preload_modules(
                libraries, worker_environment(base_environment(os.environ), "/", "/")
            )
        self._shell = ipython.build(Recorder(lambda _call, _stream, _text: None))
        ipython.warm(self._shell)
        # What `apply_rlimits` imports in each worker is looked for here, once.
        for name in (*tool_modules, "resource"):
            importlib.import_module(name)
        self._interpreter = isolated.Interpreter.running()
        self._user_namespaces: namespaces.UserNamespaces | None = None
        self._temporary_by_supervisor: dict[int, str] = {}
        self._waiting: _WaitingFork | None = None
        tree.become_subreaper()
        self._children = ChildWatcher()
        # Copy-on-write: a collection in a child would write to the header of every object, and so copy the
        # pages of everything imported. Frozen objects are never looked at again.
        gc.freeze()
        gc.enable()

    def serve(self) -> NoReturn:
        """Answer until the host closes its end and no supervisor is left."""
        poll = select.poll()
        poll.register(self._requests, select.POLLIN)
        poll.register(self._children, select.POLLIN)
        connected = True
        while connected or self._temporary_by_supervisor:
            if connected and self._waiting is None:
                # EAGAIN: the user has no processes left. The next request tries again.
                with contextlib.suppress(OSError):
                    self._waiting = self._fork_ahead()
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._children.fileno() in ready:
                self._clean_up_after_supervisors()
            if self._requests.fileno() in ready:
                # One byte, which is not taken: enough to see whether the host has closed its end.
                if self._requests.recv(1, socket.MSG_PEEK):
                    self._handle_request()
                else:
                    # Its workers may outlive the host's interest in us. Somebody must be there to clean up
                    # should one of their supervisors be killed.
                    connected = False
                    poll.unregister(self._requests)
                    self._drop_waiting()
        os._exit(0)

    # ---- requests, which only forks read

    def _fork_ahead(self) -> _WaitingFork:
        """Make the fork for the next request.

        Raises:
            OSError: It cannot be made.
        """
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            waiting, start = os.pipe()
            theirs.callback(os.close, waiting)
            ours.callback(os.close, start)
            report, writing = os.pipe()
            theirs.callback(os.close, writing)
            ours.callback(os.close, report)
            # Race: the request may be there already, or the server end before it comes. The fork does nothing
            # but read from its pipe, which gets a byte or is closed.
            pid = os.fork()
            if pid == 0:
                self._wait_for_request(waiting, writing, others=(start, report))
            ours.pop_all()
        return _WaitingFork(pid, start, report)

    def _wait_for_request(self, waiting: int, writing: int, *, others: tuple[int, int]) -> NoReturn:
        """In the fork: wait for the byte that says that a request is there, and serve it."""
        try:
            # With its own copy of the write end this fork would never see that the server is gone.
            for other in others:
                os.close(other)
            if os.read(waiting, 1):
                os.close(waiting)
                self._serve_request(writing)
        finally:
            # A fork must never return: it would serve requests beside the server, on the same socket.
            os._exit(0)

    def _drop_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.close()

    def _start_waiting(self) -> _WaitingFork:
        """Have a fork take the request, and return it.

        Raises:
            OSError: There is none, and none can be made.
        """
        fork, self._waiting = self._waiting, None
        if fork is not None:
            try:
                os.write(fork.start, b"1")
                return fork
            except BrokenPipeError:
                # Somebody has killed it: what it was made for can still be done.
                fork.close()
        fork = self._fork_ahead()
        os.write(fork.start, b"1")
        return fork

    def _handle_request(self) -> None:
        """Have a fork receive and serve the next request; prepare what it reports, for the forks to come."""
        for _ in range(_FORKS_FOR_A_REQUEST):
            # The request is still in the socket: this process must not read what would stay in its memory,
            # and in that of every later worker. EAGAIN: the user has no processes left; the request is thrown
            # away unread.
            try:
                fork = self._start_waiting()
            except OSError as error:
                discard_request(self._requests, str(error))
                return
            os.close(fork.start)
            with os.fdopen(fork.report, "rb") as pipe:
                answer = pipe.read(_REPORT_BYTES)
            if answer:
                self._use_report(fork, _RequestReport(*from_json(answer)))
                return
            _wait_for_end(fork)
            # Race: somebody has killed the fork, before it took the request or after. If it is still there,
            # the next fork takes it, but it is not tried for ever.
            if not self._has_request():
                return
        discard_request(self._requests, "a fork ended early")

    def _use_report(self, fork: _WaitingFork, report: _RequestReport) -> None:
        if report.temporary:
            self._temporary_by_supervisor[fork.pid] = report.temporary
            self._prepare(report)
            return
        # It made no supervisor and ends now; nothing else waits for it.
        _wait_for_end(fork)
        if report.question == "detect":
            self._requests.send(to_json(detect.detect()))
        elif report.question == "preloaded":
            self._requests.send(to_json(self._preloaded))

    def _has_request(self) -> bool:
        try:
            return bool(self._requests.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False

    def _serve_request(self, report: int) -> NoReturn:
        """In the fork: receive a request, and pass on a question or become the supervisor of a worker."""
        try:
            # Race: this fork was started because a packet was there. Only one process reads at a time, as the
            # server waits for the report, so it is still there. Of more than four descriptors the kernel
            # closes the rest.
            packet, descriptors, _, _ = socket.recv_fds(self._requests, PACKET_BYTES, 4)
            try:
                message = from_json(packet)
                op = message.get("op") if isinstance(message, dict) else None
                if op == "spawn" and len(descriptors) == 4:
                    self._spawn(SpawnRequest.parse(message), descriptors, report)
            except (ValueError, OSError) as error:
                op = None
                _report_failure(descriptors, str(error))
            os.write(report, to_json(_RequestReport(question=op if op in _QUESTIONS else "")))
        finally:
            # A fork must never return: it would serve requests beside the server, on the same socket.
            os._exit(0)

    def _spawn(self, request: SpawnRequest, descriptors: list[int], report: int) -> NoReturn:
        prefix = scratch_prefix(request.temporary, os.getppid())
        scratch = f"{prefix}{os.getpid()}-{os.urandom(8).hex()}"
        # The folder that the kernel knows: whoever looks for what is left must find it under the same name.
        temporary = os.path.dirname(prefix)
        owner = (-1, -1)
        with contextlib.suppress(OSError):
            status = os.stat(request.workspace)
            owner = (status.st_uid, status.st_gid)
        level = levels.LEVELS.index(request.level)
        os.write(report, to_json(_RequestReport(temporary, level, request.landlock_abi, *owner)))
        os.close(report)
        self._become_supervisor(request, descriptors, scratch)

    def _prepare(self, report: _RequestReport) -> None:
        """Prepare what later forks inherit, instead of each making it: filters, and user namespaces."""
        level = levels.LEVELS[report.level]
        _compile_filters(level, report.landlock_abi)
        if level == "isolated" and report.user >= 0:
            # What fails here fails again in the supervisor, which can report it to the host.
            with contextlib.suppress(SandboxError):
                if self._user_namespaces is None:
                    self._user_namespaces = namespaces.UserNamespaces(namespaces.identity(os.getpid()))
                self._user_namespaces.prepare((report.user, report.group))

    # ---- supervisors that have ended

    def _clean_up_after_supervisors(self) -> None:
        """Reap supervisors. One that was killed leaves its tree and its scratch folder to us."""
        ended = self._children.reap()
        while ended:
            abandoned = []
            for pid, status in ended.items():
                if self._waiting is not None and pid == self._waiting.pid:
                    self._drop_waiting()
                temporary = self._temporary_by_supervisor.pop(pid, "")
                # Status 0 is only given after the tree was ended and the folder removed.
                if temporary and status:
                    abandoned.append((temporary, pid))
            # Killing reaps too, and may so reap the next supervisor that was killed: go round again.
            ended = killing.kill_all(self._orphans, within_s=_KILL_TIMEOUT_S) if abandoned else {}
            for temporary, pid in abandoned:
                _remove_scratch(scratch_prefix(temporary, os.getpid()) + f"{pid}-")

    def _orphans(self) -> set[int]:
        """Return all processes below this one that have no living supervisor."""
        me = os.getpid()
        processes = tree.table()
        supervised = {
            pid
            for supervisor in self._temporary_by_supervisor
            for pid in (supervisor, *tree.below(supervisor, processes))
        }
        waiting = {self._waiting.pid} if self._waiting is not None else set()
        return tree.below(me, processes) - supervised - waiting

    # ---- in the first fork: the supervisor

    def _become_supervisor(self, request: SpawnRequest, descriptors: list[int], scratch: str) -> NoReturn:
        try:
            # The wakeup pipe is shared with the fork server, which the end of our children would wake.
            self._children.close()
            # The number of the request socket is about to be given to another descriptor. Detached, its
            # destructor does not close that one.
            self._requests.detach()
            # A session of its own: no terminal, and no signal that is sent to the host's process group.
            os.setsid()
            # Only a worker at level isolated is built with the user namespaces. Any other must not even hold
            # a descriptor of a namespace that it could try to enter.
            users = self._user_namespaces if request.level == "isolated" else None
            _install_descriptors(descriptors, keep=users.descriptors if users else frozenset())
            tree.become_subreaper()
            make_scratch(scratch)
            interrupts, interrupts_writing = os.pipe()

            def run_worker(confine: Callable[[], None]) -> NoReturn:
                # The worker must not hold the lifeline, and could interrupt itself in the host's name.
                for other in (_CONTROL, interrupts_writing):
                    os.close(other)
                self._become_worker(request, scratch, interrupts, confine)

            pid, init = self._fork_worker(request, scratch, run_worker)
            os.close(interrupts)
            # Only the worker may hold its channel and its output, or the host would never see their end.
            for descriptor in (1, 2, _CHANNEL):
                os.dup2(0, descriptor)
            denied = protected_mounts.DeniedPaths(
                unreadable=request.unreadable, unwritable=request.unwritable
            )
            Supervisor(
                socket.socket(fileno=_CONTROL),
                worker=pid,
                init=init,
                mounts=remounts.RuleMounts(init, request.workspace, denied) if init else None,
                interrupts=interrupts_writing,
                host=request.host,
                scratch=scratch,
            ).serve()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            # Never return into the fork server's loop, whatever happened.
            os._exit(1)

    def _fork_worker(self, request: SpawnRequest, scratch: str, run_worker: RunWorker) -> tuple[int, int]:
        """Fork a worker. Return its process id, and that of its init, or 0."""
        if request.level == "isolated":
            return self._fork_isolated(request, scratch, run_worker)
        plan = levels.Confinement(
            level=request.level,
            writable=(request.workspace, scratch),
            readable=(*self._interpreter.paths, *request.readable),
            landlock_abi=request.landlock_abi,
        )

        def confine() -> None:
            # Race: this does not fire for a supervisor that was killed before. Then the fork server adopts
            # this process, finds no supervisor above it, and kills it.
            tree.die_with_parent()
            # Before Landlock closes /proc, in which the user's processes are counted.
            apply_rlimits(request.limits)
            levels.confine(plan)
            if failures := levels.verify_confinement(plan):
                raise SandboxError("the confinement does not hold: " + "; ".join(failures))

        pid = os.fork()
        if pid == 0:
            run_worker(confine)
        return pid, 0

    def _fork_isolated(self, request: SpawnRequest, scratch: str, run_worker: RunWorker) -> tuple[int, int]:
        isolation = isolated.Isolation(
            interpreter=self._interpreter,
            readable=request.readable,
            workspace=request.workspace,
            scratch=scratch,
            protected=protected_mounts.ProtectedNames(
                files=PROTECTED_NAMES,
                folders=PROTECTED_FOLDERS,
                allowed=request.allow_protected,
                unreadable=request.unreadable,
                unwritable=request.unwritable,
            ),
            landlock_abi=request.landlock_abi,
        )

        def child(entry: namespaces.NamespaceEntry) -> NoReturn:
            def confine() -> None:
                # The kernel counts processes per user and user namespace. In this one are only those of the
                # sandbox, which are counted below the supervisor too: nothing is beside them.
                apply_rlimits(request.limits, tasks=1)
                isolated.enter(isolation, entry)

            run_worker(confine)

        try:
            users = self._user_namespaces or namespaces.UserNamespaces(namespaces.identity(os.getpid()))
            started = isolated.start_isolated(isolation, users, child)
            users.close()
        except SandboxError as error:
            BlockingChannel(socket.socket(fileno=_CHANNEL)).send("failed", {"error": str(error)})
            # No worker is there to supervise, and the host has the reason: end, which closes the control
            # socket.
            os._exit(1)
        return started.worker, started.init

    # ---- in the second fork: the worker

    def _become_worker(
        self, request: SpawnRequest, scratch: str, interrupts: int, confine: Callable[[], None]
    ) -> NoReturn:
        channel = BlockingChannel(socket.socket(fileno=_CHANNEL))
        try:
            self._prepare_worker(request, scratch, confine)
        except Exception as error:
            # Fail closed: it may be confined in part only. No code of the user has run, and none may. The
            # host gets the reason and decides, and this process ends.
            channel.send("failed", {"error": f"{type(error).__name__}: {error}"})
            os._exit(1)
        try:
            description: dict[str, Any] = {"level": request.level, "workspace": request.workspace}
            # Of commands: what later calls do to this process's own is theirs.
            description["environment"] = dict(os.environ)
            if request.level in {"confined", "guarded"}:
                # At level isolated these paths are hidden.
                description["readable"] = [
                    *(*self._interpreter.paths, *request.readable, request.workspace, scratch)
                ]
            Worker(channel, self._shell, description, interrupts=interrupts).serve(new_loop())
        except BaseException:
            # `serve` ends the process itself. What gets here is an error of ours, or one that user code has
            # raised outside its calls, from the handler of a timer. The host sees it as last words.
            os.write(2, traceback.format_exc()[-_MAX_LAST_WORDS:].encode(errors="backslashreplace"))
        finally:
            os._exit(1)

    def _prepare_worker(self, request: SpawnRequest, scratch: str, confine: Callable[[], None]) -> None:
        # A process group of its own, to which an interrupt can be sent, as from a terminal.
        os.setpgid(0, 0)
        os.environ.clear()
        os.environ.update(worker_environment(request.env, request.workspace, scratch))
        # Found out for the fork server, and cached: to be looked up again.
        tempfile.tempdir = None
        sys.path.insert(0, "")
        sys.argv = [""]
        # Otherwise all workers would draw the same numbers: a fork copies the generator's state.
        random.seed()
        reset_inherited_state()
        # A segmentation fault prints where it was, which the host shows as the worker's last words.
        faulthandler.enable(2)
        confine()
        # Only now: the root may be another one, and a folder that we can reach be out of the worker's reach.
        os.chdir(request.workspace)


def _wait_for_end(fork: _WaitingFork) -> None:
    # ECHILD: whoever kills a whole tree reaps it, and may have reaped this fork with the rest.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(fork.pid, 0)


def discard_request(requests: socket.socket, reason: str) -> None:
    """Take the next request, if there is one, tell its host why it is not served, and forget it."""
    memory = bytearray(PACKET_BYTES)
    numbers = array.array("i")
    with contextlib.suppress(BlockingIOError):
        _, ancillary, _, _ = requests.recvmsg_into(
            [memory], socket.CMSG_SPACE(4 * numbers.itemsize), socket.MSG_DONTWAIT
        )
        for _, _, content in ancillary:
            numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
    memory[:] = bytes(len(memory))
    _report_failure(list(numbers), reason)
    for number in numbers:
        os.close(number)


def _report_failure(descriptors: list[int], reason: str) -> None:
    """Tell the host that there will be no worker: it sees the end of the channel, and this as last words."""
    if len(descriptors) == 4:
        os.write(descriptors[3], f"The fork server could not make a worker: {reason}.".encode())


def _remove_scratch(prefix: str) -> None:
    """Remove the scratch folders whose paths begin so; in a fork, because their names are of a session."""
    folder, _, beginning = prefix.rpartition("/")
    # The supervisor that would have done it was killed. Wait for the fork: a later supervisor may get the
    # same number, and then its folder, which must stay, begins alike.
    child = os.fork()
    if child == 0:
        try:
            for name in os.listdir(folder):
                if name.startswith(beginning):
                    remove_folder(f"{folder}/{name}")
        finally:
            # A fork must never return into the server's loop.
            os._exit(0)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def _compile_filters(level: str, landlock_abi: int | None) -> None:
    """Compile the system call filters of a worker, its readers and its init, which `build_filter` caches."""
    arch = syscalls.architecture()
    if arch is not None:
        seccomp.build_filter(arch, level, levels.landlock_abi(level, landlock_abi))
        if levels.has_readers(level, landlock_abi):
            seccomp.build_filter(arch, seccomp.READER, levels.landlock_abi("confined"))
        seccomp.build_filter(arch, "limited", 0)


def _install_descriptors(descriptors: list[int], *, keep: frozenset[int]) -> None:
    """Have the four descriptors of the request as 3, 4, 1 and 2, and close every other but those to keep."""
    # First out of the way: one of them may already have a number that another is about to get.
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH) for descriptor in descriptors]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for source, target in zip(high, (_CHANNEL, _CONTROL, 1, 2), strict=True):
        os.dup2(source, target, inheritable=target in {1, 2})
    # Not `closerange`: where the limit of descriptors is a billion that takes minutes.
    for name in os.listdir("/proc/self/fd"):
        if int(name) > _CONTROL and int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _expect_signals() -> None:
    """Handle no signal, so that the programs that a worker starts find none ignored.

    A host that was started by `nohup`, or in the background by a shell, ignores some, and a program inherits
    what is ignored. Then a command would not end by the signal that asks it to.
    """
    for number in signal.valid_signals():
        # Python handles these two itself, and puts them back for each program.
        if number not in {signal.SIGPIPE, signal.SIGXFSZ} and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main(descriptor: int, tool_modules: tuple[str, ...], libraries: tuple[str, ...]) -> NoReturn:
    """Serve requests from the socket `descriptor` until the host closes it; see `ForkServer`."""
    # A Ctrl-C in the host's terminal, or an interrupt of its process group, is not for us.
    os.setsid()
    _expect_signals()
    ForkServer(socket.socket(fileno=descriptor), tool_modules, libraries).serve()
