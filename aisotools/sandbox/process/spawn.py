"""The host's side of the fork server: one per process, started on first use, replaced when it dies.

No spare worker is kept ready. A fresh one gives its first result after 14 to 24 ms on two cores, of which the
calls of an agent or a person show nothing; a spare would have to be confined before its workspace, level and
limits are known, or would serve one session only, and would cost each session 8 MiB.

Libraries that the fork server imports, so that no worker has to: named by `AISOTOOLS_PRELOAD`.

They are imported before any thread exists and shared with every worker. Each is tried first in a process of
its own: one that leaves threads behind cannot be forked safely, one that fails or hangs must not take the
fork server along. What was tried and left out is told, and workers import it themselves as always.

The list belongs to the process, as its one fork server does: `AISOTOOLS_PRELOAD="numpy pandas"`.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib
import importlib.util
import io
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from pydantic_core import from_json, to_json

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement.detect import Detection, detection_from_json
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import tree

ENVIRONMENT_NAME = "AISOTOOLS_PRELOAD"
"""Names modules, separated by commas or blanks."""

_TRIALS_S = 8.0  # all of them: well within what a start may take
_ENDING_S = 0.3
_REASON_BYTES = 300
_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})  # pyarrow's allocator starts it again in a fork
_TASKS = "/proc/self/task"


def wanted(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The modules that `environ` asks for, each once.

    Raises:
        SandboxError: If one is no name of a module.
    """
    names = tuple(dict.fromkeys(re.split(r"[,\s]+", environ.get(ENVIRONMENT_NAME, "").strip())))
    for name in filter(None, names):
        if not all(part.isidentifier() for part in name.split(".")):
            told = f"{ENVIRONMENT_NAME} names {name!r}, which is no module. Write it like `numpy,pandas`."
            raise SandboxError(told)
    return tuple(filter(None, names))


def preload(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Import what can be; why not, for each name, or an empty text.

    Args:
        names: The modules.
        environ: What they find in the environment meanwhile, as they would in a worker.
    """
    before, folder = dict(os.environ), tempfile.mkdtemp()
    deadline_s = time.monotonic() + _TRIALS_S
    told = dict.fromkeys(names, "")
    os.environ.update({**environ, "HOME": folder, "MPLCONFIGDIR": folder, "IPYTHONDIR": folder})
    try:
        together = not _trial(names, deadline_s)
        for name in names:
            told[name] = "" if together else _missing(name) or _trial([name], deadline_s)
            if not told[name]:
                importlib.import_module(name)
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)
    if threads := _threads_left():
        raise SandboxError(f"After importing {', '.join(names)} {threads} threads were left.")
    return told


def renew() -> None:
    """In a worker whose environment is set: mend what preloaded libraries took from the fork server."""
    if (numbers := sys.modules.get("numpy.random")) is not None:
        numbers.seed()
    if (plots := sys.modules.get("matplotlib")) is not None:
        plots.get_configdir = plots.get_cachedir = _matplotlib_folder  # type: ignore[attr-defined]  # its own


def _matplotlib_folder() -> str:
    folder = os.environ["MPLCONFIGDIR"]
    os.makedirs(folder, exist_ok=True)
    return folder


def _missing(name: str) -> str:
    found = importlib.util.find_spec(name.partition(".")[0])
    return "" if found is not None else "it is not installed"


def _trial(names: Sequence[str], deadline_s: float) -> str:
    """Import in a process of its own; why that must not be done here, or an empty text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _try(names, writing)
    os.close(writing)
    try:
        if not select.select([reading], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            return f"its import took longer than {_TRIALS_S:g} s"
        said = os.read(reading, _REASON_BYTES).decode("utf-8", "replace")
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # with whatever it started
        os.waitpid(pid, 0)
    return said.removeprefix("ok") if said else "its import ended the process"


def _try(names: Sequence[str], writing: int) -> NoReturn:
    os.setpgid(0, 0)
    try:
        for name in names:
            importlib.import_module(name)
        threads = _threads_left()
        said = f"it leaves threads running ({threads}), which a fork would lose" if threads else "ok"
    except BaseException as error:  # whatever it raises is why it is left out
        said = f"its import failed with {type(error).__name__}: {error}"
    with contextlib.suppress(OSError):
        os.write(writing, said.encode("utf-8", "replace")[:_REASON_BYTES])
    os._exit(0)


def _threads_left() -> int:
    """Threads beside this one, once libraries that end theirs at a fork, as OpenBLAS does, have done so."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    until_s = time.monotonic() + _ENDING_S
    while (threads := _busy_threads()) and time.monotonic() < until_s:
        time.sleep(0.005)  # one that was told to end may take a moment
    return threads


def _busy_threads() -> int:
    me, found = os.getpid(), 0
    for task in os.listdir(_TASKS):
        with contextlib.suppress(OSError), open(f"{_TASKS}/{task}/comm", encoding="utf-8") as file:
            found += int(task) != me and file.read().strip() not in _SAFE_THREADS
    return found


PACKET_BYTES = 1 << 17
"""Size of the largest request, and of the largest answer."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_DETECT_S = 30.0
_REAP_S = 0.2
_LAST_WORDS_BYTES = 4096
# The fork server runs this very package, wherever it lies and whatever else is installed. It goes by its
# place and not by `sys.path`, because the folder around it may hold anything.
_BOOT = """
import gc, sys
from importlib.util import module_from_spec, spec_from_file_location
gc.disable()  # until everything is imported: it would only delay that
place = sys.argv[2]
spec = spec_from_file_location("aisotools", place + "/__init__.py", submodule_search_locations=[place])
sys.modules["aisotools"] = package = module_from_spec(spec)
spec.loader.exec_module(package)
from aisotools.sandbox.process.supervisor import stand_above
stand_above(sys.argv[3])
from aisotools.sandbox.process.forkserver import main
main(int(sys.argv[1]), tuple(sys.argv[4:]))
"""

# What a program in the sandbox may learn from the host's environment; everything else stays out.
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
    """

    level: str
    workspace: str
    readable: tuple[str, ...] = ()
    limits: Limits
    landlock_abi: int | None = None


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


class ForkServerHandle:
    """A running fork server."""

    def __init__(self) -> None:
        """Start one; it gets ready in the background while requests queue up.

        Raises:
            SandboxError: If it cannot be started, or is told to preload what has no such name.
        """
        self._libraries = wanted(os.environ)
        with ExitStack() as kept:
            with ExitStack() as given:
                ours, theirs = _socket_pair(socket.SOCK_SEQPACKET, kept, given)
                self._errors, their_errors = _pipe(kept, given)
                command = [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), _PACKAGE]
                command += [tempfile.gettempdir(), *self._libraries]
                try:
                    self._process = subprocess.Popen(
                        command,
                        pass_fds=[theirs.fileno()],
                        env=base_environment(os.environ),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=their_errors,
                        cwd="/",
                    )
                except OSError as error:
                    raise SandboxError(f"The fork server could not be started: {error}.") from None
            kept.pop_all()
        self._socket = ours
        self._pid = 0
        self._failed = False
        self._packages = _installed()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<ForkServer pid={self.pid} {'up' if self.alive else 'down'}>"

    @property
    def pid(self) -> int:
        """Its process id; until it has begun, that of the process which stays above it."""
        if not self._pid:
            above = self._process.pid
            self._pid = next((pid for pid, one in tree.table().items() if one.parent == above), 0)
        return self._pid or self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is there, and has not failed us."""
        return not self._failed and self._process.poll() is None and tree.exists(self.pid)

    @property
    def outdated(self) -> bool:
        """Whether packages were installed or removed since it was started, or others are to be preloaded."""
        return _installed() != self._packages or wanted(os.environ) != self._libraries

    def spawn(self, wanted: WorkerSpec) -> WorkerHandles:
        """Ask for a worker; it reports on the channel when it is ready.

        Raises:
            SandboxError: If the fork server is gone, or this process has no descriptors left.
        """
        request = {
            "op": "spawn",
            "level": wanted.level,
            "workspace": wanted.workspace,
            "readable": wanted.readable,
            "limits": asdict(wanted.limits),
            "landlock_abi": wanted.landlock_abi,
            "env": base_environment(os.environ),
            "temporary": tempfile.gettempdir(),
            "host": os.getpid(),
        }
        with ExitStack() as kept:
            with ExitStack() as given:
                channel, their_channel = _socket_pair(socket.SOCK_STREAM, kept, given)
                control, their_control = _socket_pair(socket.SOCK_SEQPACKET, kept, given)
                out, their_out = _pipe(kept, given)
                err, their_err = _pipe(kept, given)
                for end in (channel, control):
                    end.setblocking(False)
                self._send(request, [their_channel.fileno(), their_control.fileno(), their_out, their_err])
            kept.pop_all()
        return WorkerHandles(channel=channel, control=control, out=out, err=err)

    def detect(self) -> Detection:
        """Have the confinement levels tried.

        Raises:
            SandboxError: If the fork server is gone or does not answer.
        """
        return detection_from_json(self._ask("detect", "it was trying the confinement levels"))

    def preloaded(self) -> dict[str, str]:
        """The libraries it was to preload, each with the reason why it did not, or an empty text.

        Raises:
            SandboxError: If the fork server is gone or does not answer.
        """
        answer: dict[str, str] = self._ask("preloaded", "it was asked what it had preloaded")
        return answer

    def _ask(self, op: str, doing: str) -> Any:
        with self._lock:
            self._socket.settimeout(_DETECT_S)
            try:
                self._socket.send(to_json({"op": op}))
                answer = self._socket.recv(PACKET_BYTES)
            except OSError as error:
                raise self._gone(error) from None
            finally:
                self._socket.settimeout(None)
        if not answer:
            raise self._gone(f"it ended while {doing}")
        return from_json(answer)

    def close(self, *, patience_s: float = 1.0) -> None:
        """End it, the hard way after `patience_s`; workers it made live on under their supervisors."""
        server = self.pid
        self._socket.close()
        try:
            self._process.wait(timeout=patience_s)
        except subprocess.TimeoutExpired:
            tree.send_signal(server, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_REAP_S)
            # What stands above stays until all that was started here is gone, and cleans up after it.
            _above[:] = [one for one in (*_above, self._process) if one.poll() is None]
        self._errors.close()

    def retire(self) -> None:
        """Ask it for nothing more; it ends by itself when the last worker that it made has ended."""
        self._socket.close()

    def _send(self, request: Mapping[str, Any], descriptors: list[int]) -> None:
        try:
            packet = to_json(request)
        except ValueError:
            raise SandboxError(
                f"The path {request['workspace']!r} is no UTF-8, which a sandbox needs. Rename the folder.",
            ) from None
        if len(packet) > PACKET_BYTES:
            raise SandboxError(f"The request for a worker is too long: {len(packet)} bytes.")
        with self._lock:
            try:
                socket.send_fds(self._socket, [packet], descriptors)
            except OSError as error:
                raise self._gone(error) from None

    def _gone(self, why: OSError | str) -> SandboxError:
        self._failed = True  # its end may take a moment to be seen
        words = (self._errors.read(1 << 16) or b"")[-_LAST_WORDS_BYTES:].decode("utf-8", "replace").strip()
        return SandboxError(f"The fork server is gone ({why})." + (f" It said:\n{words}" if words else ""))


_server: ForkServerHandle | None = None
_detection: Detection | None = None
_lock = threading.Lock()
_retired: list[ForkServerHandle] = []
_above: list[subprocess.Popen[bytes]] = []


def server() -> ForkServerHandle:
    """The fork server of this process, started if there is none.

    Raises:
        SandboxError: If this process has no descriptors left.
    """
    global _server  # noqa: PLW0603 - one per process is the point
    with _lock:
        if _server is not None and not _server.alive:
            _server.close(patience_s=0)
            _server = None
        for old in [old for old in _retired if not old.alive]:
            old.close(patience_s=0)
            _retired.remove(old)
        if _server is not None and _server.outdated:
            _server.retire()
            _retired.append(_server)
            _server = None
        if _server is None:
            _server = ForkServerHandle()
            atexit.unregister(_close)
            atexit.register(_close)
        return _server


def discard(stuck: ForkServerHandle) -> None:
    """Replace a fork server that does not do its work; the next `server` starts another."""
    global _server  # noqa: PLW0603 - one per process is the point
    with _lock:
        if _server is stuck:
            _server.close(patience_s=0)
            _server = None


def detection() -> Detection:
    """What this machine can hold; tried once per process.

    Raises:
        SandboxError: If it cannot be tried.
    """
    global _detection  # noqa: PLW0603 - a fact about the machine, not about a session
    if _detection is None:
        _detection = server().detect()
    return _detection


def _close() -> None:
    if _server is not None:
        _server.close(patience_s=0.2)


def _socket_pair(
    kind: socket.SocketKind, kept: ExitStack, given: ExitStack
) -> tuple[socket.socket, socket.socket]:
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    except OSError as error:
        raise _cannot_connect(error) from None
    return kept.enter_context(ours), given.enter_context(theirs)


def _pipe(kept: ExitStack, given: ExitStack) -> tuple[io.FileIO, int]:
    """Our end, for reading without blocking, and theirs."""
    try:
        reading, writing = os.pipe()
    except OSError as error:
        raise _cannot_connect(error) from None
    given.callback(os.close, writing)
    os.set_blocking(reading, False)
    return kept.enter_context(io.FileIO(reading)), writing


def _cannot_connect(error: OSError) -> SandboxError:
    if error.errno not in {errno.EMFILE, errno.ENFILE}:
        return SandboxError(f"The sandbox could not be connected: {error}.")
    return SandboxError(
        "This process has too many files open: a sandbox worker takes eight more, and keeps four. "
        "Close sessions or files, or raise the limit (`ulimit -n`).",
    )


def _installed() -> tuple[tuple[str, int], ...]:
    """What changes when packages are installed or removed: when their folders were last changed."""
    told = []
    for folder in sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}):
        with contextlib.suppress(OSError):
            told.append((folder, os.stat(folder).st_mtime_ns))
    return tuple(told)


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The allow-listed environment: nothing of the host's but a few harmless settings."""
    path = [os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"]
    return {
        "PATH": os.pathsep.join(dict.fromkeys(path)),
        "LANG": "C.UTF-8",
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "PYTHONDONTWRITEBYTECODE": "1",
        **{name: environ[name] for name in _PASSED_ON if name in environ},
    }


def worker_environment(base: Mapping[str, str], workspace: str, scratch: str) -> dict[str, str]:
    """What a worker and its programs see."""
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
        "GIT_CONFIG_NOSYSTEM": "1",  # /etc/gitconfig is out of reach, which git takes for fatal
        "TERM": "dumb",
        "PAGER": "cat",
    }
