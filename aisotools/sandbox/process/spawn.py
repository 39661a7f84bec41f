"""The host's side of the fork server: one per process, started on first use, replaced when it dies.

No spare worker is kept ready. A fresh one gives its first result after 14 to 24 ms on two cores, of which the
calls of an agent or a person show nothing. A spare would have to be confined before its workspace, level and
limits are known, or would serve one session only, and would cost each session 8 MiB.

Threat: a stuck, killed or outdated fork server keeps sessions from starting; keys in the environment of the
host reach a worker; descriptors that wait to be received are used up by another program of the user.
Mechanism: the server is started by an interpreter of its own with an allow-listed environment, without
PYTHONPATH: at most folders of packages that the host itself imports from are handed on. It is asked by one
packet with four descriptors. It is replaced when it does not answer, has ended, or packages have changed.
Race: it may die after a request was sent: then the worker's socket ends and the start fails, and the next one
gets another server. Workers that it made go on below their supervisors.
Failure: every error is a `SandboxError` that says what to do, and whatever was opened for the worker is
closed. No worker is ever started in another way.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import io
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pydantic_core import from_json, to_json

from aisotools.core.exceptions import TOO_MANY_FILES, SandboxError
from aisotools.sandbox.confinement.detect import Detection, detection_from_json
from aisotools.sandbox.confinement.levels import LEVELS, PACKAGE_FOLDERS
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import tree
from aisotools.sandbox.process.descriptors import host_pair
from aisotools.sandbox.process.preload import requested_modules
from aisotools.workspace.protected_names import AllowedNames

PACKET_BYTES = 1 << 17
"""Size of the largest request, and of the largest answer."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_ANSWER_TIMEOUT_S = 30.0  # it answers only when everything is imported, which takes seconds on a cold disk
_REAP_TIMEOUT_S = 0.2  # after SIGKILL
_STDERR_READ_BYTES = 1 << 16
_STDERR_TAIL_BYTES = 4096
_MISSING_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([^'\n]+)'\Z", re.MULTILINE)

# The fork server runs this very package, wherever it lies and whatever else is installed. It is found by its
# place and not by `sys.path`: the folder around it may be a repository, which may hold anything.
#
# The janitor forks off before anything is imported, so that it stays small.
_BOOT = """
import gc, sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
gc.disable()  # until everything is imported: it would only delay that
place = sys.argv[2]
spec = spec_from_file_location("aisotools", place + "/__init__.py", submodule_search_locations=[place])
sys.modules["aisotools"] = package = module_from_spec(spec)
spec.loader.exec_module(package)
from aisotools.sandbox.process.janitor import fork_janitor
fork_janitor(sys.argv[3])
if find_spec("pydantic_core") is None:
    sys.path += filter(None, sys.argv[5].split(":"))
from aisotools.sandbox.process.forkserver import main
main(int(sys.argv[1]), tuple(filter(None, sys.argv[4].split(","))), tuple(sys.argv[6:]))
"""

# A host may have its packages from elsewhere than its interpreter: by PYTHONPATH, or from a launcher. Folders
# of packages, and no others, from which it has itself imported what the fork server needs are handed on, and
# count only if that is not installed. What is in them runs in the host already, and no workspace can be in
# or around them, as they are on `sys.path` (`aisotools.workspace.import_roots`). A worker may read them, like
# other folders of packages. A plain folder stays out: it may be a repository, with all that is in there.
_NEEDED = ("pydantic_core", "pydantic", "pathspec", "cloudpickle", "IPython", "traitlets", "comm", "tornado")

# What a program in the sandbox may learn from the host's environment. Everything else stays out: keys and
# tokens are in the environment, and so are variables such as PYTHONPATH and LD_PRELOAD that run code.
_PASSED_ON = (
    "TZ",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "MKL_NUM_THREADS",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What a new worker should be.

    Attributes:
        level: Its confinement level.
        workspace: Absolute path of the folder it may change.
        readable: Further folders it may read.
        limits: What it may use up.
        landlock_abi: Use at most this version of Landlock, as if the kernel were older.
        allowed: Protected names that may be written; a worker that starts later goes by what it holds then.
        tool_modules: Modules of tools that it has imported when it starts; others it imports when called.
        unreadable: Paths in the workspace that it must not read, at a level that can enforce that.
        unwritable: The same for writing.
    """

    level: str
    workspace: str
    readable: tuple[str, ...] = ()
    limits: Limits
    landlock_abi: int | None = None
    allowed: AllowedNames = field(default_factory=AllowedNames, compare=False)
    tool_modules: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    unwritable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """A request to the fork server for one worker; sent as one JSON packet.

    Attributes:
        level: Its confinement level.
        workspace: Absolute path of the folder it may change.
        readable: Further folders it may read.
        limits: What it may use up.
        landlock_abi: Use at most this version of Landlock; None for the kernel's.
        env: The environment that the worker's own is made from.
        temporary: The folder in which its scratch folder is made.
        host: Process id of the host.
        allow_protected: Protected names that may be written.
        unreadable: See `WorkerSpec`.
        unwritable: See `WorkerSpec`.
    """

    level: str
    workspace: str
    readable: tuple[str, ...]
    limits: Limits
    landlock_abi: int | None
    env: Mapping[str, str]
    temporary: str
    host: int
    allow_protected: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    unwritable: tuple[str, ...] = ()

    @classmethod
    def parse(cls, message: Mapping[str, object]) -> SpawnRequest:
        """Return the request in a decoded packet.

        Raises:
            ValueError: If a member is missing, unknown, or not of its type; the message names it.
        """
        members = dict(message)
        if members.pop("op", None) != "spawn":
            raise ValueError("op is not 'spawn'")
        names = {member.name for member in fields(cls)}
        if wrong := members.keys() ^ names:
            raise ValueError(f"missing or unknown: {', '.join(sorted(map(str, wrong)))}")
        for name, is_valid in _REQUEST_CHECKS.items():
            if not is_valid(members[name]):
                raise ValueError(f"{name}={members[name]!r}")
        try:
            limits = Limits(**members["limits"])  # type: ignore[arg-type]  # `Limits` checks each itself
        except (TypeError, ValueError) as error:
            raise ValueError(f"limits: {error}") from None
        for name in ("readable", "allow_protected", "unreadable", "unwritable"):
            members[name] = tuple(members[name])  # type: ignore[arg-type]  # checked above
        return cls(**members | {"limits": limits})  # type: ignore[arg-type]  # checked above


def _is_absolute(value: object) -> bool:
    return isinstance(value, str) and os.path.isabs(value) and "\0" not in value


def _are_beneath(value: object) -> bool:
    """Return whether a value is a list of plain paths relative to the workspace."""
    return isinstance(value, list) and all(
        isinstance(path, str)
        and "\0" not in path
        and all(name not in {"", ".", ".."} for name in path.split("/"))
        for path in value
    )


_REQUEST_CHECKS: Mapping[str, Callable[[object], bool]] = {
    "level": lambda value: value in LEVELS,
    "workspace": _is_absolute,
    "readable": lambda value: isinstance(value, list) and all(map(_is_absolute, value)),
    "limits": lambda value: isinstance(value, dict),
    "allow_protected": lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    "unreadable": _are_beneath,
    "unwritable": _are_beneath,
    "landlock_abi": lambda value: value is None or (type(value) is int and value >= 0),
    "env": lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
    "temporary": _is_absolute,
    "host": lambda value: type(value) is int and value > 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHandles:
    """The host's ends of a new worker, none of which blocks.

    Attributes:
        channel: The call channel.
        control: The supervisor's control socket; closing it ends everything.
        out: Read end of the worker's raw standard output.
        err: Read end of its raw standard error.
    """

    channel: socket.socket
    control: socket.socket
    out: io.FileIO
    err: io.FileIO


class TooManyOnTheirWay(SandboxError):
    """Raised when programs of this user have sent more descriptors than may wait to be received."""


class ForkServerHandle:
    """A running fork server."""

    def __init__(self, tool_modules: tuple[str, ...] = ()) -> None:
        """Start one; it gets ready in the background while requests queue up.

        Args:
            tool_modules: Modules of tools that all its workers have imported when they start.

        Raises:
            SandboxError: It cannot be started, or `AISOTOOLS_PRELOAD` names what is not a module.
        """
        self._tool_modules = tool_modules
        self._libraries = requested_modules(os.environ)
        # Two stacks: the ends in `theirs` are closed here in any case, those in `ours` only after an error.
        with ExitStack() as ours:
            with ExitStack() as theirs:
                self._socket, server_socket = _socket_pair(socket.SOCK_SEQPACKET, ours, theirs)
                self._stderr, server_stderr = _pipe(ours, theirs)
                command = [sys.executable, "-P", "-c", _BOOT, str(server_socket.fileno()), _PACKAGE]
                command += [tempfile.gettempdir(), ",".join(tool_modules), ":".join(_handed_on_folders())]
                command += self._libraries
                try:
                    # Executed, not forked: the host may have any number of threads, and locks held by them
                    # would stay held in a fork. It inherits its socket and the standard descriptors alone.
                    self._process = subprocess.Popen(
                        command,
                        pass_fds=[server_socket.fileno()],
                        # Its own temporary files lie where the host's do; workers get other folders.
                        env={**base_environment(os.environ), "TMPDIR": tempfile.gettempdir()},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=server_stderr,
                        cwd="/",
                    )
                except OSError as error:
                    raise SandboxError(f"The fork server could not be started: {error}.") from None
            ours.pop_all()
        self._pid = 0
        self._failed = False
        self._packages = _package_folders()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<ForkServer pid={self.pid} {'up' if self.alive else 'down'}>"

    @property
    def pid(self) -> int:
        """Its process id; until it has begun, that of its janitor, which is the process started here."""
        if not self._pid:
            janitor = self._process.pid
            children = (pid for pid, process in tree.table().items() if process.parent == janitor)
            self._pid = next(children, 0)
        return self._pid or self._process.pid

    @property
    def alive(self) -> bool:
        """True if the process is there, and no request to it has failed."""
        return not self._failed and self._process.poll() is None and tree.exists(self.pid)

    @property
    def outdated(self) -> bool:
        """True if packages, or the list of libraries to preload, have changed since it was started."""
        return _package_folders() != self._packages or requested_modules(os.environ) != self._libraries

    def has_imported(self, tool_modules: Iterable[str]) -> bool:
        """Return whether its workers have all these modules of tools when they start."""
        return set(tool_modules) <= set(self._tool_modules)

    def spawn(self, spec: WorkerSpec) -> WorkerHandles:
        """Ask for a worker; it reports on the channel when it is ready.

        Raises:
            TooManyOnTheirWay: Try again: too many descriptors of this user are on their way just now.
            SandboxError: The fork server is gone, or this process has no descriptors left.
        """
        request = SpawnRequest(
            level=spec.level,
            workspace=spec.workspace,
            readable=spec.readable,
            limits=spec.limits,
            landlock_abi=spec.landlock_abi,
            env=base_environment(os.environ),
            temporary=tempfile.gettempdir(),
            host=os.getpid(),
            allow_protected=spec.allowed.names,
            unreadable=spec.unreadable,
            unwritable=spec.unwritable,
        )
        with ExitStack() as ours:
            with ExitStack() as theirs:
                channel, worker_channel = _socket_pair(socket.SOCK_STREAM, ours, theirs)
                control, supervisor_control = _socket_pair(socket.SOCK_SEQPACKET, ours, theirs)
                out, worker_out = _pipe(ours, theirs)
                err, worker_err = _pipe(ours, theirs)
                for end in (channel, control):
                    end.setblocking(False)
                self._send(
                    request, [worker_channel.fileno(), supervisor_control.fileno(), worker_out, worker_err]
                )
            ours.pop_all()
        return WorkerHandles(channel=channel, control=control, out=out, err=err)

    def detect(self) -> Detection:
        """Have the confinement levels tried.

        Raises:
            SandboxError: The fork server is gone or does not answer.
        """
        return detection_from_json(self._ask("detect", "it was trying the confinement levels"))

    def preloaded(self) -> dict[str, str]:
        """Return the libraries it was to preload, each with why it was left out, or an empty text.

        Raises:
            SandboxError: The fork server is gone or does not answer.
        """
        answer: dict[str, str] = self._ask("preloaded", "it was asked what it had preloaded")
        return answer

    def close(self, *, patience_s: float = 1.0) -> None:
        """End it, with SIGKILL after `patience_s`. Workers it made live on under their supervisors."""
        server = self.pid
        self._socket.close()
        try:
            self._process.wait(timeout=patience_s)
        except subprocess.TimeoutExpired:
            tree.send_signal(server, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_REAP_TIMEOUT_S)
            # The process we wait for is the janitor, which stays until everything started here is gone. Keep
            # it: a `Popen` that is collected while its process runs gives a warning and leaves a zombie.
            _janitors[:] = [janitor for janitor in (*_janitors, self._process) if janitor.poll() is None]
        self._stderr.close()

    def retire(self) -> None:
        """Ask it for nothing more; it ends by itself when the last worker that it made has ended."""
        self._socket.close()

    def _ask(self, op: str, activity: str) -> Any:
        with self._lock:
            self._socket.settimeout(_ANSWER_TIMEOUT_S)
            try:
                self._socket.send(to_json({"op": op}))
                answer = self._socket.recv(PACKET_BYTES)
            except OSError as error:
                raise self._mark_failed(error) from None
            finally:
                self._socket.settimeout(None)
        if not answer:
            raise self._mark_failed(f"it ended while {activity}")
        return from_json(answer)

    def _send(self, request: SpawnRequest, descriptors: list[int]) -> None:
        try:
            packet = to_json({"op": "spawn", **asdict(request)})
        except ValueError:
            raise SandboxError(
                f"The path {request.workspace!r} is not valid UTF-8, which a sandbox needs. "
                "Rename the folder."
            ) from None
        if len(packet) > PACKET_BYTES:
            raise SandboxError(
                f"The request for a worker has {len(packet)} bytes, which is too long; {PACKET_BYTES} are "
                "allowed. Name fewer readable folders."
            )
        with self._lock:
            try:
                socket.send_fds(self._socket, [packet], descriptors)
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:
                    # The kernel counts descriptors on their way per user, so another program may have caused
                    # this. The server is well and is not replaced: the next attempt may succeed.
                    raise TooManyOnTheirWay(
                        "The sandbox could not be started: too many descriptors of this user are on their "
                        "way between processes. End the program that does not receive them, or raise the "
                        "limit on open files (`ulimit -n`)."
                    ) from None
                raise self._mark_failed(error) from None

    def _mark_failed(self, reason: OSError | str) -> SandboxError:
        # A process that is being killed is still in the table for a moment, so `alive` cannot go by that.
        self._failed = True
        tail = (self._stderr.read(_STDERR_READ_BYTES) or b"")[-_STDERR_TAIL_BYTES:]
        last_words = tail.decode("utf-8", "replace").strip()
        output = f" Its last output:\n{last_words}" if last_words else ""
        if missing := _MISSING_MODULE.search(last_words):
            return SandboxError(
                f"The fork server cannot import {missing[1]!r}. It is started without PYTHONPATH, so that it "
                f"finds only what is installed for {sys.executable!r}. Install aisotools into an environment "
                f"(python3 -m venv) and start your program with its Python.{output}"
            )
        return SandboxError(f"The fork server is gone ({reason}).{output}")


# ---------------------------------------------------------------- the one fork server of this process

_server: ForkServerHandle | None = None
_detection: Detection | None = None
_lock = threading.Lock()
_retired: list[ForkServerHandle] = []
_janitors: list[subprocess.Popen[bytes]] = []


def server(tool_modules: tuple[str, ...] = ()) -> ForkServerHandle:
    """Return the fork server of this process; start one if there is none, or if it is dead or outdated.

    Args:
        tool_modules: Modules of tools that it must have imported; a server without them counts as outdated.

    Raises:
        SandboxError: It cannot be started, for instance because this process has no descriptors left.
    """
    global _server  # noqa: PLW0603 - one per process is the point
    with _lock:
        # A fork of the host inherits the handle of a server that is not its child. `Popen.poll` reports such
        # a process as ended, so the fork starts a server of its own here, and `close` signals nobody.
        if _server is not None and not _server.alive:
            _server.close(patience_s=0)
            _server = None
        for old in [old for old in _retired if not old.alive]:
            old.close(patience_s=0)
            _retired.remove(old)
        if _server is not None and (_server.outdated or not _server.has_imported(tool_modules)):
            # Not killed: workers it has forked share its memory and go on.
            _server.retire()
            _retired.append(_server)
            _server = None
        if _server is None:
            _server = ForkServerHandle(tool_modules)
            atexit.unregister(_close_at_exit)
            atexit.register(_close_at_exit)
        return _server


def discard(stuck: ForkServerHandle) -> None:
    """End a fork server that does not do its work; the next call of `server` starts another."""
    global _server  # noqa: PLW0603 - one per process is the point
    with _lock:
        # Race: two sessions find the same server stuck. The second must not end its replacement.
        if _server is stuck:
            _server.close(patience_s=0)
            _server = None


def detection(tool_modules: tuple[str, ...] = ()) -> Detection:
    """Return what this machine can hold; tried once per process.

    Args:
        tool_modules: See `server`, which is started for this and then serves all sandboxes.

    Raises:
        SandboxError: It cannot be tried.
    """
    global _detection  # noqa: PLW0603 - a fact about the machine, not about a session
    if _detection is None:
        _detection = server(tool_modules).detect()
    return _detection


def _close_at_exit() -> None:
    if _server is not None:
        _server.close(patience_s=0.2)


# ---------------------------------------------------------------- sockets and pipes


def _socket_pair(
    kind: socket.SocketKind, ours: ExitStack, theirs: ExitStack
) -> tuple[socket.socket, socket.socket]:
    try:
        our_end, their_end = host_pair(kind)
    except OSError as error:
        raise _no_descriptors(error) from None
    return ours.enter_context(our_end), theirs.enter_context(their_end)


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[io.FileIO, int]:
    """Return our end, for reading without blocking, and theirs."""
    try:
        reading, writing = os.pipe()
    except OSError as error:
        raise _no_descriptors(error) from None
    theirs.callback(os.close, writing)
    os.set_blocking(reading, False)
    return ours.enter_context(io.FileIO(reading)), writing


def _no_descriptors(error: OSError) -> SandboxError:
    if error.errno not in TOO_MANY_FILES:
        return SandboxError(f"The sandbox could not be connected: {error}.")
    return SandboxError(
        "This process has too many files open: a sandbox worker takes eight more, and keeps four. "
        "Close sessions or files, or raise the limit (`ulimit -n`).",
    )


# ---------------------------------------------------------------- what a worker sees


def _package_folders() -> tuple[tuple[str, int], ...]:
    """Return what changes when packages are installed or removed: when their folders were last changed."""
    folders = []
    for folder in _find_package_folders():
        with contextlib.suppress(OSError):
            folders.append((folder, os.stat(folder).st_mtime_ns))
    return tuple(folders)


@functools.cache
def _find_package_folders() -> tuple[str, ...]:
    # Each start of a worker asks for them, and `sysconfig` takes a quarter of a millisecond to tell.
    return tuple(sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))


def _handed_on_folders() -> tuple[str, ...]:
    """Return the folders of packages on `sys.path` from which this process has what the fork server needs."""
    files = [module.__file__ for module in map(sys.modules.get, _NEEDED) if module is not None]
    # No set: an entry of `sys.path` may be anything, also what has no hash.
    used = [os.path.dirname(os.path.dirname(file)) for file in files if file]
    return tuple(
        entry
        for entry in sys.path
        if entry in used and os.path.basename(entry) in PACKAGE_FOLDERS and ":" not in entry
    )


def search_path() -> str:
    """Return where programs of a sandbox are found, as in the variable PATH."""
    path = [os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"]
    return os.pathsep.join(dict.fromkeys(path))


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the allow-listed environment: nothing of `environ` but a few harmless settings."""
    return {
        "PATH": search_path(),
        "LANG": "C.UTF-8",
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "PYTHONDONTWRITEBYTECODE": "1",
        **{name: environ[name] for name in _PASSED_ON if name in environ},
    }


def worker_environment(base: Mapping[str, str], workspace: str, scratch: str) -> dict[str, str]:
    """Return the environment of a worker and its programs."""
    home = f"{scratch}/home"
    return {
        **base,
        "HOME": home,
        "TMPDIR": f"{scratch}/tmp",  # noqa: S108 - inside the private scratch folder
        "WORKSPACE": workspace,
        "IPYTHONDIR": f"{home}/.ipython",
        "MPLCONFIGDIR": f"{home}/.matplotlib",
        "XDG_CACHE_HOME": f"{home}/.cache",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        # /etc/gitconfig is out of reach, which git takes for a fatal error.
        "GIT_CONFIG_NOSYSTEM": "1",
        "TERM": "dumb",
        "PAGER": "cat",
    }
