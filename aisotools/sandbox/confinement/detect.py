"""Which confinement levels this machine supports, found by trying each in a throw-away child.

Versions and flags of a kernel tell what it should do; only trying tells what it does. Each level's self-test
makes some twenty real attempts to get out, against victims of its own. The whole suite of attempts is in the
tests; those here touch every layer once, in a few milliseconds.

`detect` forks, so it belongs in a process with one thread; `detect_in_subprocess` starts one. Run as a
program, this module prints what it found as JSON.

Threat: a machine whose kernel or container says that it has a layer, and does not enforce it; a level would
be believed that does not hold.
Mechanism: what holds is what was tried, as the user and in the surroundings in which workers will start. A
level is said to hold if every attempt of its self-test was refused, and nothing about the victims has
changed.
Race: the machine may change later, as after an update of the container's profile. So each worker checks its
own confinement once more before its first call (`levels.verify_confinement`).
Failure: a self-test that hangs, is killed or answers oddly counts as a level that does not hold, with the
reason in its `Probe`. Nothing weaker is chosen unasked below `guarded`.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from aisotools.core.exceptions import LevelUnavailable, SandboxError
from aisotools.sandbox.confinement import (
    isolated,
    landlock,
    levels,
    namespaces,
    protected_mounts,
    rootfs,
    seccomp,
    syscalls,
)
from aisotools.sandbox.process import tree

ENVIRONMENT_NAME = "AISOTOOLS_MIN_LEVEL"
"""Environment variable that names the weakest level to accept."""

_DEFAULT_MIN_LEVEL = "guarded"
_CHILD_TIMEOUT_S = 10.0  # one self-test takes 5 to 20 ms; more means that it hangs
_ANSWER_BYTES = 1 << 16

_CLONE_NEWUSER = 0x10000000
_NEW_NAMESPACES = 0x78020000  # users, processes, network, System V objects, mounts
_PRIVATE_RECURSIVE = 0x44000  # MS_PRIVATE, MS_REC
_RLIMIT_NOFILE = 7


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing that was tried.

    Attributes:
        name: What was tried; the self-tests bear the name of their level.
        ok: Whether it works here.
        detail: What was found, for a person.
    """

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Detection:
    """What was found.

    Attributes:
        level: The strongest level that holds, or None.
        probes: What was tried.
    """

    level: str | None
    probes: tuple[Probe, ...]


# ---------------------------------------------------------------- what the levels mean

ENABLED_BY: Mapping[str, str] = {
    "isolated": (
        "Linux 5.12 with user namespaces: outside a container, or in one that is run with "
        "`--security-opt seccomp=unconfined --security-opt systempaths=unconfined`; on Ubuntu 24.04 take off "
        "`sysctl kernel.apparmor_restrict_unprivileged_userns`; a workspace of root's also takes a file "
        "system with idmapped mounts."
    ),
    "confined": "Linux 6.12 or newer with Landlock among its security modules (`lsm=` on its command line).",
    "guarded": "Linux 5.13 or newer with Landlock among its security modules (`lsm=` on its command line).",
    "limited": "Linux on x86-64 or 64-bit ARM for a system call filter; resource limits on every Linux.",
}
"""For each level, what a machine needs to hold it, in a sentence."""

PROTECTS: Mapping[str, tuple[str, str]] = {
    "limited": (
        "Memory, time and file sizes are bounded; on x86-64 and ARM64 Linux code opens no network.",
        "Your files and programs: code can read, change and end what you can, and act through them.",
    ),
    "guarded": (
        (
            "Code reads only the workspace, folders you named, the interpreter and what is installed for all "
            "users (/usr and the like), writes only the workspace and temporary folders of its own, and has "
            "no network and no privileges."
        ),
        (
            "Your other programs can be ended; names, sizes and times of files elsewhere can be seen, where "
            "links lead, the machine's name, and which process numbers are in use, with their groups, "
            "sessions and scheduling; disk space and the load of the machine are shared, and flaws of the "
            "kernel itself stay."
        ),
    ),
    "confined": (
        (
            "Code reads only the workspace, folders you named, the interpreter and what is installed for all "
            "users (/usr and the like), writes only the workspace and temporary folders of its own, and can "
            "neither reach the network nor signal or inspect your other programs."
        ),
        (
            "Names, sizes and times of files elsewhere can be seen, where links lead, the machine's name, "
            "and which process numbers are in use, with their groups, sessions and scheduling; disk space "
            "and the load of the machine are shared, and flaws of the kernel itself stay."
        ),
    ),
    "isolated": (
        (
            "Code lives in a file system, process list and network of its own, with what you gave it, the "
            "interpreter and what is installed for all users (/usr and the like); the network is a "
            "loopback, which nothing leaves."
        ),
        "Disk space and the load of the machine are shared, and flaws of the kernel itself stay.",
    ),
}
"""For each level, what it protects and what it leaves open, in a sentence each."""

_MACHINES_NEEDED = "only Linux on x86-64 or 64-bit ARM can confine; other machines have resource limits alone"

# ---------------------------------------------------------------- the self-test: victims


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePaths:
    """Where the attempts of a self-test take place.

    Attributes:
        workspace: The folder that is writable; the file `shielded` in there is protected where that can be.
        scratch: Another one.
        secret: A file outside.
        shown: A file in a folder that may only be read.
        door: A Unix socket outside that listens.
        port: A port of the host's loopback on which somebody listens.
        parent: A process outside.
    """

    workspace: Path
    scratch: Path
    secret: Path
    shown: Path
    door: Path
    port: int
    parent: int


@contextmanager
def probe_paths() -> Iterator[ProbePaths]:
    """Make a workspace and its victims; remove them in the end."""
    root = Path(tempfile.mkdtemp(prefix="aisotools-selftest-"))
    try:
        for name in ("workspace", "scratch", "private", "shown"):
            (root / name).mkdir()
        for path in (root / "private/secret", root / "shown/file", root / "workspace/shielded"):
            path.write_text("secret")
            path.chmod(0o600)
        with socket.socket(socket.AF_UNIX) as door, socket.create_server(("127.0.0.1", 0)) as server:
            door.bind(str(root / "private/door"))
            door.listen()
            yield ProbePaths(
                workspace=root / "workspace",
                scratch=root / "scratch",
                secret=root / "private/secret",
                shown=root / "shown/file",
                door=root / "private/door",
                port=server.getsockname()[1],
                parent=os.getpid(),
            )
    finally:
        # The probes have ended, and nobody else knows the folder: nothing is written while it is removed.
        shutil.rmtree(root)


def fingerprint(place: ProbePaths) -> tuple[object, ...]:
    """Return everything about the victims that an attempt could change, for comparison."""
    facts = []
    for path in (place.secret, place.shown, place.workspace / "shielded"):
        status = path.stat()
        facts.append((path.read_text(), stat.S_IMODE(status.st_mode), status.st_mtime_ns, status.st_nlink))
    return (*facts, sorted(path.name for path in place.secret.parent.iterdir()))


# ---------------------------------------------------------------- the self-test: attempts


def _link_and_read(place: ProbePaths) -> None:
    link = place.workspace / "link"
    link.symlink_to(place.secret)
    link.read_text()


def _read_memory(place: ProbePaths) -> None:
    buffer = ctypes.create_string_buffer(8)
    local = struct.pack("QQ", ctypes.addressof(buffer), 8)
    # `place` is older than the fork, so it lies at the same address in the parent.
    remote = struct.pack("QQ", id(place), 8)
    syscalls.call("process_vm_readv", place.parent, local, 1, remote, 1, 0)


def _change_by_descriptor(place: ProbePaths) -> None:
    with place.shown.open("rb") as file:
        # An attack that must fail: Landlock knows no right for modes and times, so a filter has to refuse it.
        os.fchmod(file.fileno(), 0o4777)
        os.utime(file.fileno(), (1, 1))


def _connect(place: ProbePaths) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(str(place.door))


def _reach_network(place: ProbePaths) -> None:
    socket.create_connection(("127.0.0.1", place.port), timeout=_CHILD_TIMEOUT_S).close()


def _make_raw_socket(_place: ProbePaths) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP).close()


def _read_limits(place: ProbePaths) -> None:
    limit = ctypes.create_string_buffer(16)
    syscalls.call("prlimit64", place.parent, _RLIMIT_NOFILE, 0, limit)


Attempt = tuple[str, Callable[[ProbePaths], object]]
"""What is attempted, to follow "could", and a function that raises OSError if it is refused."""

# What hostile code would try. Each is made in a confined child, on files and a parent that are this test's
# own: where a level does not hold, an attempt succeeds and does no harm.
_PROCESS_ATTEMPTS: tuple[Attempt, ...] = (
    ("reach the network", _reach_network),
    ("make a raw socket", _make_raw_socket),
    ("connect to a Unix socket outside", _connect),
    ("read another process's memory", _read_memory),
    ("read another process's limits", _read_limits),
    # In a namespace of its own a process has every capability, and so far more of the kernel to attack.
    ("make a namespace", lambda _: syscalls.call("unshare", _CLONE_NEWUSER)),
    ("mount", lambda _: syscalls.call("mount", b"none\0", b"/\0", b"no-such-type\0", 0, 0)),
)
_FILE_ATTEMPTS: tuple[Attempt, ...] = (
    ("read a file outside", lambda place: place.secret.read_text()),
    ("list a folder outside", lambda place: os.listdir(place.secret.parent)),
    ("read through a link", _link_and_read),
    # A link inside would make a file of the outside writable through the workspace.
    ("take a file in by a hard link", lambda place: os.link(place.secret, place.workspace / "hard")),
    ("write a file outside", lambda place: place.secret.write_text("changed")),
    ("make a file outside", lambda place: (place.secret.parent / "new").write_text("")),
    # Confinement: Landlock has held this back only since its third version.
    ("empty a file outside", lambda place: os.truncate(place.secret, 0)),
    ("remove a file outside", lambda place: place.secret.unlink()),
    ("write a file that may be read", lambda place: place.shown.write_text("changed")),
    ("see another process's environment", lambda place: Path(f"/proc/{place.parent}/environ").read_bytes()),
    ("write /proc/sys", lambda _: Path("/proc/sys/kernel/core_pattern").open("w").close()),
)
# Signal 0 only asks whether another could be sent.
_SIGNAL_ATTEMPTS: tuple[Attempt, ...] = (("signal another process", lambda place: os.kill(place.parent, 0)),)

# The filter answers these with success and does not act. Nothing is raised: `fingerprint` must be compared.
_PRETENDED_ATTEMPTS: tuple[Attempt, ...] = (
    ("chmod", lambda place: place.secret.chmod(0o777)),
    ("utime", lambda place: os.utime(place.secret, (1, 1))),
    ("by descriptor", _change_by_descriptor),
)


def run_self_test(level: str, place: ProbePaths) -> tuple[str, ...]:
    """Confine this process at `level` and try to get out; for a child that ends afterwards.

    Returns:
        What succeeded but should not, or the other way round, in words. Compare `fingerprint` besides.

    Raises:
        LevelUnavailable: This machine cannot confine at that level.
        SandboxError: It could not be confined.
    """
    if level == "isolated":
        return _test_isolated(place)
    plan = levels.Confinement(
        level=level,
        writable=(str(place.workspace),),
        readable=(*levels.interpreter_paths(), str(place.shown.parent)),
    )
    levels.confine(plan)
    scoped = levels.signals_are_scoped(plan)
    return (
        *levels.verify_confinement(plan),
        *_attempt_all(level, place, signals=scoped),
        *_ordinary_work(place),
    )


def _attempt_all(level: str, place: ProbePaths, *, signals: bool) -> Iterator[str]:
    attempts = list(_PROCESS_ATTEMPTS)
    if level != "limited":
        attempts += _FILE_ATTEMPTS
    if signals:
        attempts += _SIGNAL_ATTEMPTS
    for name, action in attempts:
        try:
            action(place)
        except OSError:
            continue
        yield f"could {name}"
    if level != "limited":
        for _, action in _PRETENDED_ATTEMPTS:
            with suppress(OSError):
                action(place)


def _ordinary_work(place: ProbePaths) -> Iterator[str]:
    """Try what must go on working, or the confinement would be of no use."""
    file = place.workspace / "work"
    file.write_text("work")
    if file.read_text() != "work":
        yield "cannot keep a file in the workspace"
    # A status of our choice: that a filter kills the shell, or pretends that it ran, would show as another
    # one.
    child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 7"], {})
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7:
        yield "cannot run a command"


def _test_isolated(place: ProbePaths) -> tuple[str, ...]:
    isolation = isolated.Isolation(
        interpreter=isolated.Interpreter.running(),
        readable=(str(place.shown.parent),),
        workspace=str(place.workspace),
        scratch=str(place.scratch),
        protected=protected_mounts.ProtectedNames(files=("shielded",)),
    )
    reading, writing = os.pipe()

    def child(entry: namespaces.NamespaceEntry) -> NoReturn:
        try:
            isolated.enter(isolation, entry)
            # Signals cannot be tried by number: in there the same number is another process.
            found = [*_attempt_all("isolated", place, signals=False), *_ordinary_work(place)]
            if not _write_refused(place.workspace / "shielded"):
                found.append("could write a protected file")
            if not _write_refused(Path(rootfs.ALIAS, "shielded")):
                found.append("could write it by another path")
        except Exception as error:
            found = [str(error) or type(error).__name__]
        os.write(writing, "\n".join(["tried", *found]).encode())
        # Not `sys.exit`: this is a fork, and the handlers at exit and the buffers are the parent's.
        os._exit(0)

    # The worker's parent ends early (see `namespaces`): without this, process 1 of the host would adopt it.
    tree.become_subreaper()
    users = namespaces.UserNamespaces(namespaces.identity(os.getpid()))
    started = isolated.start_isolated(isolation, users, child)
    # Or the read below would wait for our own end of the pipe.
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        answer = pipe.read().split("\n")
    # The end of init ends every process of its namespace. Both are children of this process and unreaped,
    # so their numbers cannot be taken by others before they are waited for.
    os.kill(started.init, signal.SIGKILL)
    for pid in (started.worker, started.init):
        os.waitpid(pid, 0)
    if answer[0] != "tried":
        raise SandboxError("the process ended without an answer")
    return tuple(answer[1:])


def _write_refused(path: Path) -> bool:
    try:
        path.write_text("changed")
    except OSError:
        return True
    return False


# ---------------------------------------------------------------- trying


def detect() -> Detection:
    """Try what this machine holds; takes some tens of milliseconds.

    It forks, so call it only in a process with one thread; others use `detect_in_subprocess`.
    """
    if syscalls.architecture() is None:
        machine = f"{platform.system()} on {platform.machine()}"
        return Detection("limited", (Probe("machine", False, f"this is {machine}; {_MACHINES_NEEDED}"),))
    by_level = {level: _probe_level(level) for level in reversed(levels.LEVELS)}
    # A level that fails says nothing about a stronger one: `isolated` holds without Landlock.
    best = max(
        (level for level, probe in by_level.items() if probe.ok), key=levels.LEVELS.index, default=None
    )
    means = (_probe_landlock(), _probe_seccomp(), *by_level.values())
    return Detection(best, (*means, _probe_user_namespaces(), _probe_not_root(), _probe_control_groups()))


def _probe_level(level: str) -> Probe:
    try:
        with probe_paths() as place:
            before = fingerprint(place)
            found = _in_child(lambda: [*run_self_test(level, place)])
            if level != "limited" and fingerprint(place) != before:
                found.append("something outside was changed")
    except OSError as error:  # inside another sandbox, or on a full disk
        found = [f"the self-test could not be set up ({error})"]
    promise = (
        "the self-test passed: resource limits hold, but code can read and change all of your files"
        if level == "limited"
        else "the self-test passed: nothing that this level protects could be reached"
    )
    return Probe(level, not found, "; ".join(found) or promise)


def _probe_landlock() -> Probe:
    # With these arguments the call only returns the version. Containers often refuse it where the kernel has
    # it.
    try:
        abi = syscalls.call("landlock_create_ruleset", 0, 0, 1)
    except OSError as error:
        return Probe("landlock", False, f"this kernel, or the container, does not offer it ({error})")
    fixed = ", ".join(map(str, landlock.errata())) or "none reported"
    needed = levels.LANDLOCK_NEEDED["confined"]
    return Probe(
        "landlock",
        abi >= needed,
        f"ABI {abi} (level confined needs {needed}); Landlock errata fixed in this kernel: {fixed}",
    )


def _probe_seccomp() -> Probe:
    arch = syscalls.architecture()
    if arch is None:
        return Probe("seccomp", False, f"no system call table for this machine ({os.uname().machine})")

    def load() -> list[str]:
        # A filter cannot be taken off again, so it is tried in a child that ends.
        seccomp.load_filter(seccomp.build_filter(arch, "limited", 0))
        return []

    found = _in_child(load)
    return Probe("seccomp", not found, "; ".join(found) or f"a system call filter for {arch} can be loaded")


def _probe_user_namespaces() -> Probe:
    """Try whether an unprivileged process gets a root of its own, with a /proc that can be mounted."""

    def make() -> list[str]:
        # Asked before: inside, until the tables are written, both are those of nobody.
        user, group = os.getuid(), os.getgid()
        syscalls.call("unshare", _NEW_NAMESPACES)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")

        def mount() -> list[str]:
            syscalls.call("mount", b"none\0", b"/\0", 0, _PRIVATE_RECURSIVE, 0)
            syscalls.call("mount", b"proc\0", b"/proc\0", b"proc\0", 0, 0)
            return []

        # The new process namespace begins with the next child, and only in there may its /proc be mounted.
        return _in_child(mount)

    found = _in_child(make)
    usable = "a process can create one and mount its own /proc in it"
    return Probe("user namespaces", not found, "; ".join(found) or usable)


def _probe_not_root() -> Probe:
    if os.getuid() != 0:
        return Probe("not root", True, f"user id {os.getuid()}")
    detail = (
        "you are root, so only level isolated, where workers run as another user, limits how many processes "
        "they start"
    )
    return Probe("not root", False, detail)


def _probe_control_groups() -> Probe:
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
        own = next(line.partition("::")[2] for line in lines if line.startswith("0::"))
        group = Path("/sys/fs/cgroup") / own.strip("/")
        controllers = (group / "cgroup.controllers").read_text("utf-8").split()
    except (OSError, StopIteration):
        return Probe("cgroup v2", False, "not mounted at /sys/fs/cgroup")
    usable = {"memory", "pids"} <= set(controllers) and os.access(group / "cgroup.procs", os.W_OK)
    state = "delegated to us" if usable else "not delegated to us"
    return Probe("cgroup v2", usable, f"{state}; controllers: {' '.join(controllers) or 'none'}")


def _in_child(action: Callable[[], list[str]]) -> list[str]:
    """Run `action` in a fork. Return what it found; an error, a crash and silence are findings too."""
    # A fork, since confinement cannot be taken back, and a filter may kill the process at its first attempt.
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            try:
                found = action()
            except Exception as error:
                found = [str(error) or type(error).__name__]
            os.write(writing, json.dumps(found).encode())
        finally:
            # Whatever happened: a fork that returned from here would do the parent's work a second time.
            os._exit(0)
    os.close(writing)
    answer = _read_all(reading, time.monotonic() + _CHILD_TIMEOUT_S)
    if answer is None:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if answer is None:
        return [f"no answer within {_CHILD_TIMEOUT_S:g} s"]
    if not answer:
        # A filter of the container may kill the process at a system call instead of refusing it, so that it
        # never came to write. That is a finding too: this level cannot be used here.
        return [f"the process ended with status {status} and without an answer"]
    found = json.loads(answer)
    assert isinstance(found, list)
    return found


def _read_all(reading: int, deadline: float) -> bytes | None:
    """Return everything until the other end is closed; None if it is still open at the deadline."""
    parts: list[bytes] = []
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = pipe.read(_ANSWER_BYTES)
            if not part:
                return b"".join(parts)
            parts.append(part)
    return None


# ---------------------------------------------------------------- from another process

_BOOT = """
import sys
try:
    import aisotools
except ImportError:
    sys.path.append(sys.argv[1])
from aisotools.sandbox.confinement.detect import main
main()
"""


def detect_in_subprocess(timeout_s: float = 30.0) -> Detection:
    """Run `detect` in a process of its own with a clean environment; safe where threads run.

    Raises:
        SandboxError: The process failed or did not answer in time.
    """
    package_parent = str(Path(__file__).resolve().parents[3])
    passed_on = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")
    environ = {name: os.environ[name] for name in passed_on if name in os.environ}
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-c", _BOOT, package_parent],
            env=environ | {"LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"The confinement levels could not be tried: {error}.") from error
    if process.returncode != 0:
        last_line = process.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise SandboxError(
            f"Trying the confinement levels ended with status {process.returncode}: {' '.join(last_line)}"
        )
    try:
        return detection_from_json(json.loads(process.stdout))
    except ValueError as error:
        raise SandboxError(
            f"Trying the confinement levels gave no JSON: {process.stdout[:200]!r}."
        ) from error


def detection_from_json(value: Any) -> Detection:
    """Read back what `main` prints.

    Raises:
        SandboxError: It has another form.
    """
    try:
        probes = tuple(Probe(str(p["name"]), bool(p["ok"]), str(p["detail"])) for p in value["probes"])
        level = value["level"]
        if level is not None:
            levels.at_least(level, level)
    except (KeyError, TypeError, ValueError) as error:
        raise SandboxError(
            f"The detection of confinement levels gave no sensible answer: {error!r}."
        ) from error
    return Detection(level, probes)


# ---------------------------------------------------------------- choosing


def choose_level(
    level: str | None, min_level: str | None, environ: Mapping[str, str], detection: Detection
) -> str:
    """Return the level that a session gets.

    Args:
        level: Exactly this one, or None.
        min_level: This one or a stronger one, or None for what the environment says; without either,
            anything that is a sandbox, which `limited` is not.
        environ: The environment, for `AISOTOOLS_MIN_LEVEL`.
        detection: What the machine holds.

    Raises:
        ValueError: A name is not a level, or the two contradict each other.
        LevelUnavailable: The machine does not hold it.
    """
    minimum = min_level or environ.get(ENVIRONMENT_NAME) or None
    for name, value in (("level", level), ("min_level", min_level), (ENVIRONMENT_NAME, minimum)):
        if value is not None and value not in levels.LEVELS:
            known = ", ".join(levels.LEVELS)
            raise ValueError(f"{name} is {value!r}, which is not a level; levels, the weakest first: {known}")
    if level is not None:
        if min_level is not None and not levels.at_least(level, min_level):
            raise ValueError(f"level={level!r} is weaker than min_level={min_level!r}; leave one of them out")
        if _holds_exactly(detection, level):
            return level
        raise LevelUnavailable(_unavailable_message(f"exactly {level!r}", detection))
    needed = minimum or _DEFAULT_MIN_LEVEL
    if detection.level is not None and levels.at_least(detection.level, needed):
        return detection.level
    raise LevelUnavailable(_unavailable_message(f"{needed!r} or better", detection))


def _holds_exactly(detection: Detection, level: str) -> bool:
    """Return whether this very level holds: without Landlock `isolated` may hold, and not `confined`."""
    for probe in detection.probes:
        if probe.name == level:
            return probe.ok
    return detection.level is not None and levels.at_least(detection.level, level)


def _unavailable_message(needed: str, detection: Detection) -> str:
    found = "; ".join(f"{probe.name}: {probe.detail}" for probe in detection.probes if not probe.ok)
    best = f"the best that holds is {detection.level!r}" if detection.level else "no level holds"
    return (
        f"The sandbox level {needed} does not hold on this machine: {best} "
        f"({found or 'nothing was tried'}). "
        'If you trust the code to be run with all your files, choose level="limited" knowingly; '
        "`aisotools doctor` tells what each level protects."
    )


def main() -> None:
    """Print what `detect` finds as one JSON object."""
    print(json.dumps(asdict(detect())))


if __name__ == "__main__":
    main()
