"""The fork server: a process that has everything imported and forks a confined worker in milliseconds.

It is executed afresh with an allow-listed environment, so that no secret of the host is anywhere in its
memory, and has one thread, because forks copy only one. It never runs user code. For each request it forks a
supervisor, which forks the worker, which confines itself, checks that this holds, and only then serves calls.

Requests come over a SEQPACKET socket, one JSON packet each: `spawn {level, workspace, readable, limits, env,
temporary, host}` with four descriptors (call channel, control socket, stdout, stderr), or `detect {}` and
`preloaded {}`, which are answered. Should a supervisor be killed, what it watched over comes here, and is
ended.
"""

from __future__ import annotations

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
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from pydantic_core import from_json, to_json

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox import limits
from aisotools.sandbox.confinement import detect, isolated, levels, namespaces, rootfs, seccomp, syscalls
from aisotools.sandbox.frames import BlockingChannel
from aisotools.sandbox.process import spawn, supervisor, tree
from aisotools.sandbox.process import spawn as preload
from aisotools.sandbox.process import supervisor as janitor
from aisotools.sandbox.worker import ipython, worker
from aisotools.sandbox.worker import worker as loop
from aisotools.sandbox.worker.output import Recorder
from aisotools.workspace.protected import PROTECTED_FOLDERS, PROTECTED_NAMES

_CHANNEL, _CONTROL = 3, 4
_HIGH = 64
_END_S = 5.0
_TOOLS = ("aisotools.builtin.files", "aisotools.builtin.shell", "aisotools.builtin.python")


class ForkServer:
    """Everything that a worker will need, and the supervisors that were forked from it."""

    def __init__(self, requests: socket.socket, libraries: tuple[str, ...] = ()) -> None:
        """Import and warm everything, and what `libraries` names; serve `requests` afterwards."""
        self._requests = requests
        self._preloaded: dict[str, str] = {}
        if libraries:
            settings = spawn.worker_environment(spawn.base_environment(os.environ), "/", "/")
            self._preloaded = preload.preload(libraries, settings)
        self._shell = ipython.build(Recorder(lambda _call, _stream, _text: None))
        ipython.warm(self._shell)
        for name in _TOOLS:
            importlib.import_module(name)
        self._interpreter = isolated.Interpreter.running()
        self._users: namespaces.UserNamespaces | None = None
        self._scratch: dict[int, str] = {}  # by supervisor
        supervisor.become_subreaper()
        self._children = supervisor.Children()
        gc.freeze()  # what is imported stays shared: no collection in a child will touch it
        gc.enable()

    def serve(self) -> NoReturn:
        """Answer until the host closes its end; then stay until no supervisor is left to be buried."""
        poll = select.poll()
        poll.register(self._requests, select.POLLIN)
        poll.register(self._children, select.POLLIN)
        hosted = True
        while hosted or self._scratch:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._children.fileno() in ready:
                self._bury()
            if self._requests.fileno() in ready:
                packet, descriptors, _, _ = socket.recv_fds(self._requests, spawn.PACKET_BYTES, 4)
                if not packet:
                    hosted = False
                    poll.unregister(self._requests)
                    continue
                try:
                    self._answer(from_json(packet), descriptors)
                finally:
                    for received in descriptors:
                        os.close(received)
        os._exit(0)

    def _answer(self, request: Mapping[str, Any], descriptors: list[int]) -> None:
        if request["op"] == "detect":
            self._requests.send(to_json(detect.detect()))
        elif request["op"] == "preloaded":
            self._requests.send(to_json(self._preloaded))
        elif len(descriptors) == 4:
            _prepare_filter(request)
            self._prepare_users(request)
            scratch = janitor.scratch_prefix(request["temporary"], os.getpid()) + os.urandom(8).hex()
            try:
                pid = os.fork()
            except OSError as error:
                os.write(descriptors[3], f"The fork server could not make a worker: {error}.".encode())
                return
            if pid == 0:
                self._become_supervisor(request, descriptors, scratch)
            self._scratch[pid] = scratch

    def _prepare_users(self, request: Mapping[str, Any]) -> None:
        """Who workers at level isolated are, and how files become theirs, is kept for all that follow."""
        if request["level"] == "isolated":
            with contextlib.suppress(SandboxError):  # it will be told when the worker is to be started
                self._users = self._users or namespaces.UserNamespaces(namespaces.identity(os.getpid()))
                self._users.prepare(request["workspace"])

    def _bury(self) -> None:
        """Take note of supervisors that ended; one that was killed leaves its tree and its folder to us."""
        ended = self._children.ended()
        while ended:
            left = [s for pid, status in ended.items() if (s := self._scratch.pop(pid, "")) and status]
            ended = tree.kill_all(self._strays, within_s=_END_S) if left else {}
            for scratch in left:
                tree.remove_folder(scratch)

    def _strays(self) -> set[int]:
        me, table = os.getpid(), tree.table()
        kept = {pid for known in self._scratch for pid in (known, *tree.below(known, table))}
        return tree.below(me, table) - kept

    def _become_supervisor(
        self, request: Mapping[str, Any], descriptors: list[int], scratch: str
    ) -> NoReturn:
        """In the fresh fork: be the supervisor, and fork the worker."""
        try:
            self._children.close()
            self._requests.detach()  # its number is about to mean something else
            os.setsid()
            users = self._users if request["level"] == "isolated" else None  # nobody else's worker gets them
            _take_descriptors(descriptors, keep=users.descriptors if users else frozenset())
            supervisor.become_subreaper()
            _make_scratch(scratch)
            reading, writing = os.pipe()

            def work(settle: Callable[[], None]) -> NoReturn:
                for other in (_CONTROL, writing):
                    os.close(other)
                self._become_worker(request, scratch, reading, settle)

            pid, init = self._fork_worker(request, scratch, work)
            os.close(reading)
            for descriptor in (1, 2, _CHANNEL):
                os.dup2(0, descriptor)  # only the worker may hold those, or their end would never be seen
            supervisor.Supervisor(
                socket.socket(fileno=_CONTROL),
                worker=pid,
                init=init,
                nudges=writing,
                host=request["host"],
                scratch=scratch,
            ).serve()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(1)

    def _fork_worker(
        self, request: Mapping[str, Any], scratch: str, work: Callable[[Callable[[], None]], NoReturn]
    ) -> tuple[int, int]:
        """Fork `work`, which is told how to confine itself; the worker's process id, and its init's or 0."""
        if request["level"] == "isolated":
            return self._fork_isolated(request, scratch, work)
        plan = levels.Confinement(
            level=request["level"],
            writable=(request["workspace"], scratch),
            readable=(*self._interpreter.paths, *request["readable"]),
            landlock_abi=request["landlock_abi"],
        )

        def settle() -> None:
            supervisor.die_with_parent()
            limits.apply_rlimits(limits.Limits(**request["limits"]))
            levels.confine(plan)
            if failures := levels.verify(plan):
                raise SandboxError("the confinement does not hold: " + "; ".join(failures))

        pid = os.fork()
        if pid == 0:
            work(settle)
        return pid, 0

    def _fork_isolated(
        self, request: Mapping[str, Any], scratch: str, work: Callable[[Callable[[], None]], NoReturn]
    ) -> tuple[int, int]:
        wanted = isolated.Isolation(
            interpreter=self._interpreter,
            readable=tuple(request["readable"]),
            workspace=request["workspace"],
            scratch=scratch,
            protected=rootfs.ProtectedNames(files=PROTECTED_NAMES, folders=PROTECTED_FOLDERS),
            landlock_abi=request["landlock_abi"],
        )

        def child(parted: namespaces.Parted) -> NoReturn:
            def settle() -> None:
                # in a namespace of its own only its own processes count: itself and init
                limits.apply_rlimits(limits.Limits(**request["limits"]), tasks=2)
                isolated.settle(wanted, parted)

            work(settle)

        try:
            users = self._users or namespaces.UserNamespaces(namespaces.identity(os.getpid()))
            started = isolated.start(wanted, users, child)
            users.close()
        except SandboxError as error:
            BlockingChannel(socket.socket(fileno=_CHANNEL)).send("failed", {"error": str(error)})
            os._exit(1)
        return started.worker, started.init

    def _become_worker(
        self, request: Mapping[str, Any], scratch: str, nudges: int, settle: Callable[[], None]
    ) -> NoReturn:
        """In the second fork: confine, check, serve."""
        channel = BlockingChannel(socket.socket(fileno=_CHANNEL))
        try:
            self._confine(request, scratch, settle)
        except Exception as error:  # told to the host, which decides; nothing has run yet
            channel.send("failed", {"error": f"{type(error).__name__}: {error}"})
            os._exit(1)
        try:
            described = {"level": request["level"], "workspace": request["workspace"]}
            worker.Worker(channel, self._shell, described, nudges=nudges).serve(loop.new_loop())
        finally:
            os._exit(1)

    def _confine(self, request: Mapping[str, Any], scratch: str, settle: Callable[[], None]) -> None:
        os.setpgid(0, 0)  # a group of its own, which an interrupt can be sent to
        os.environ.clear()
        os.environ.update(spawn.worker_environment(request["env"], request["workspace"], scratch))
        tempfile.tempdir = None  # to be looked up again: it was found out for another process
        sys.path.insert(0, "")
        sys.argv = [""]
        random.seed()
        preload.renew()
        faulthandler.enable(2)  # a crash tells where it was, in the worker's last words
        settle()
        os.chdir(request["workspace"])


def _prepare_filter(request: Mapping[str, Any]) -> None:
    """Have the system call filter compiled before the fork, where it is kept for all that follow."""
    arch = syscalls.architecture()
    if arch is not None:
        level = request["level"]
        seccomp.build_filter(arch, level, levels.landlock_abi(level, request["landlock_abi"]))
        seccomp.build_filter(arch, "limited", 0)  # of an init


def _take_descriptors(descriptors: list[int], *, keep: frozenset[int]) -> None:
    """Have the four descriptors of the request as 3, 4, 1 and 2, and close every other but those to keep."""
    high = [fcntl.fcntl(d, fcntl.F_DUPFD_CLOEXEC, _HIGH) for d in descriptors]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for source, target in zip(high, (_CHANNEL, _CONTROL, 1, 2), strict=True):
        os.dup2(source, target, inheritable=target in {1, 2})
    for name in os.listdir("/proc/self/fd"):  # a range would be endless where the limit is
        if int(name) > _CONTROL and int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _make_scratch(folder: str) -> None:
    """A private folder for home and temporary files of one worker."""
    for path in (folder, f"{folder}/home", f"{folder}/tmp"):  # noqa: S108 - inside the private folder
        os.mkdir(path, 0o700)


def main(descriptor: int, libraries: tuple[str, ...] = ()) -> NoReturn:
    """Serve requests from the socket `descriptor` until the host closes it, with `libraries` imported."""
    os.setsid()  # a Ctrl-C in the host's terminal, or an interrupt of its process group, is not for us
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ForkServer(socket.socket(fileno=descriptor), libraries).serve()
