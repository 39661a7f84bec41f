"""Which confinement levels this machine holds, found by trying in throw-away children.

`detect` forks, so it belongs in a process with one thread; `detect_in_subprocess` starts one. Run as a
program it prints what it found as JSON.

A dozen real attempts to get out of a confinement, made by a throw-away child against victims of its own.

Versions and flags of a kernel tell what it should do; only trying tells what it does. The whole suite of
attempts is in the tests; here are those that between them touch every layer once, in a few milliseconds.
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
from aisotools.sandbox.confinement import isolated, landlock, levels, namespaces, rootfs, seccomp, syscalls
from aisotools.sandbox.confinement import levels as confine
from aisotools.sandbox.process import supervisor

_NEW_USER_NAMESPACE = 0x10000000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePaths:
    """Where the attempts take place.

    Attributes:
        workspace: The folder that is writable; the file `shielded` in there is protected where that can be.
        scratch: Another one.
        secret: A file outside.
        shown: A file in a folder that may only be read.
        door: A Unix socket outside that listens.
        parent: A process outside.
    """

    workspace: Path
    scratch: Path
    secret: Path
    shown: Path
    door: Path
    parent: int


@contextmanager
def ground() -> Iterator[ProbePaths]:
    """Make a workspace and its victims; remove them in the end."""
    root = Path(tempfile.mkdtemp(prefix="aisotools-selftest-"))
    try:
        for name in ("workspace", "scratch", "private", "shown"):
            (root / name).mkdir()
        for path in (root / "private/secret", root / "shown/file", root / "workspace/shielded"):
            path.write_text("secret")
            path.chmod(0o600)
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(root / "private/door"))
            door.listen()
            yield ProbePaths(
                workspace=root / "workspace",
                scratch=root / "scratch",
                secret=root / "private/secret",
                shown=root / "shown/file",
                door=root / "private/door",
                parent=os.getpid(),
            )
    finally:
        shutil.rmtree(root)


def fingerprint(place: ProbePaths) -> tuple[object, ...]:
    """Everything about the victims that an attempt could change."""
    facts = []
    for path in (place.secret, place.shown, place.workspace / "shielded"):
        status = path.stat()
        facts.append((path.read_text(), stat.S_IMODE(status.st_mode), status.st_mtime_ns, status.st_nlink))
    return (*facts, sorted(path.name for path in place.secret.parent.iterdir()))


def _link_and_read(place: ProbePaths) -> None:
    link = place.workspace / "link"
    link.symlink_to(place.secret)
    link.read_text()


def _read_memory(place: ProbePaths) -> None:
    mine = ctypes.create_string_buffer(8)
    here = struct.pack("QQ", ctypes.addressof(mine), 8)
    there = struct.pack("QQ", id(place), 8)  # older than the fork, so it lies at this address there too
    syscalls.call("process_vm_readv", place.parent, here, 1, there, 1, 0)


def _change_by_descriptor(place: ProbePaths) -> None:
    with place.shown.open("rb") as file:
        os.fchmod(file.fileno(), 0o4777)
        os.utime(file.fileno(), (1, 1))


def _connect(place: ProbePaths) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(str(place.door))


def _limit_parent(place: ProbePaths) -> None:
    old = ctypes.create_string_buffer(16)
    syscalls.call("prlimit64", place.parent, 7, 0, old)


Attempt = tuple[str, Callable[[ProbePaths], object]]

_ON_PROCESSES: tuple[Attempt, ...] = (
    ("reach the network", lambda _: socket.socket(socket.AF_INET).close()),
    ("connect to a Unix socket outside", _connect),
    ("read another process's memory", _read_memory),
    ("read another process's limits", _limit_parent),
    ("make a namespace", lambda _: syscalls.call("unshare", _NEW_USER_NAMESPACE)),
    ("mount", lambda _: syscalls.call("mount", b"none\0", b"/\0", b"no-such-type\0", 0, 0)),
)
_ON_FILES: tuple[Attempt, ...] = (
    ("read a file outside", lambda place: place.secret.read_text()),
    ("list a folder outside", lambda place: os.listdir(place.secret.parent)),
    ("read through a link", _link_and_read),
    ("take a file in by a hard link", lambda place: os.link(place.secret, place.workspace / "hard")),
    ("write a file outside", lambda place: place.secret.write_text("changed")),
    ("make a file outside", lambda place: (place.secret.parent / "new").write_text("")),
    ("empty a file outside", lambda place: os.truncate(place.secret, 0)),
    ("remove a file outside", lambda place: place.secret.unlink()),
    ("write a file that may be read", lambda place: place.shown.write_text("changed")),
    ("see another process's environment", lambda place: Path(f"/proc/{place.parent}/environ").read_bytes()),
    ("write /proc/sys", lambda _: Path("/proc/sys/kernel/core_pattern").open("w").close()),
)
_ON_SIGNALS: tuple[Attempt, ...] = (("signal another process", lambda place: os.kill(place.parent, 0)),)
_UNHEARD: tuple[Attempt, ...] = (  # answered with success, without acting; `fingerprint` tells
    ("chmod", lambda place: place.secret.chmod(0o777)),
    ("utime", lambda place: os.utime(place.secret, (1, 1))),
    ("by descriptor", _change_by_descriptor),
)


def _ordinary_work(place: ProbePaths) -> Iterator[str]:
    """What must go on working, or the confinement would be of no use."""
    file = place.workspace / "work"
    file.write_text("work")
    if file.read_text() != "work":
        yield "cannot keep a file in the workspace"
    child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 7"], {})
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7:
        yield "cannot run a command"


def attempt(level: str, place: ProbePaths) -> tuple[str, ...]:
    """Confine a process at `level` and try to get out; for a child that ends afterwards.

    Returns:
        What succeeded but should not, or the other way round, in words.
    """
    if level == "isolated":
        return _attempt_isolated(place)
    plan = levels.Confinement(
        level=level,
        writable=(str(place.workspace),),
        readable=(*levels.interpreter_paths(), str(place.shown.parent)),
    )
    levels.confine(plan)
    scoped = levels.signals_are_scoped(plan)
    return (*levels.verify(plan), *_attempts(level, place, signals=scoped), *_ordinary_work(place))


def _attempts(level: str, place: ProbePaths, *, signals: bool) -> Iterator[str]:
    attempts = _ON_PROCESSES if level == "limited" else (*_ON_PROCESSES, *_ON_FILES)
    for name, action in (*attempts, *(_ON_SIGNALS if signals else ())):
        try:
            action(place)
        except OSError:
            continue
        yield f"could {name}"
    for _, action in _UNHEARD if level != "limited" else ():
        with suppress(OSError):
            action(place)


def _attempt_isolated(place: ProbePaths) -> tuple[str, ...]:
    wanted = isolated.Isolation(
        interpreter=isolated.Interpreter.running(),
        readable=(str(place.shown.parent),),
        workspace=str(place.workspace),
        scratch=str(place.scratch),
        protected=rootfs.ProtectedNames(files=("shielded",)),
    )
    reading, writing = os.pipe()

    def child(parted: namespaces.Parted) -> NoReturn:
        try:
            isolated.settle(wanted, parted)
            # signals cannot be tried by number: the same number is another process in there
            found = [*_attempts("isolated", place, signals=False), *_ordinary_work(place)]
            found += [] if _refused(place.workspace / "shielded") else ["could write a protected file"]
            found += [] if _refused(Path(isolated.ALIAS, "shielded")) else ["could write it by another path"]
        except Exception as error:
            found = [str(error) or type(error).__name__]
        os.write(writing, "\n".join(["tried", *found]).encode())
        os._exit(0)

    supervisor.become_subreaper()
    started = isolated.start(wanted, namespaces.UserNamespaces(namespaces.identity(os.getpid())), child)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        told = pipe.read().split("\n")
    os.kill(started.init, signal.SIGKILL)
    for pid in (started.worker, started.init):
        os.waitpid(pid, 0)
    if told[0] != "tried":
        raise SandboxError("the process ended and told nothing")
    return tuple(told[1:])


def _refused(path: Path) -> bool:
    try:
        path.write_text("changed")
    except OSError:
        return True
    return False


_PROBE_S = 10.0
_ANSWER_BYTES = 1 << 16


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


_FILES = "Code reads only the workspace, the interpreter and folders you named, writes only the workspace"
_SHARED = "isk space and the load of the machine are shared, and flaws of the kernel itself stay."
_SEEN = "names, sizes and times of files elsewhere can be seen"
_PROTECTED = {
    "limited": "Memory, time and file sizes are bounded; on x86-64 and ARM64 Linux code opens no network.",
    "guarded": f"{_FILES}, and has no network and no privileges.",
    "confined": f"{_FILES}, and can neither reach the network nor signal or inspect your other programs.",
    "isolated": "Code lives in a file system, process list and network of its own, with what you gave it.",
}
_LEFT_OPEN = {
    "limited": "Your files and programs: code can read, change and end what you can, and act through them.",
    "guarded": f"Your other programs can be ended; {_SEEN}; d{_SHARED}",
    "confined": f"N{_SEEN[1:]}, and which process numbers are in use; d{_SHARED}",
    "isolated": f"D{_SHARED}",
}
ENABLED_BY: Mapping[str, str] = {
    "isolated": (
        "Linux 5.12 with user namespaces: outside a container, or in one that is run with "
        "`--security-opt seccomp=unconfined --security-opt systempaths=unconfined`; on Ubuntu 24.04 take off "
        "`sysctl kernel.apparmor_restrict_unprivileged_userns`; a workspace of root's also takes a file "
        "system with idmapped mounts."
    ),
    "confined": "Linux 6.12 or newer with Landlock among its security modules (`lsm=` on its command line).",
    "guarded": "Linux 5.13 or newer with Landlock among its security modules (`lsm=` on its command line).",
    "limited": "Linux on x86-64 or 64-bit ARM for a system call filter; resource limits are everywhere.",
}
"""For each level, what a machine needs to hold it, in a sentence."""

PROTECTS: Mapping[str, tuple[str, str]] = {
    level: (_PROTECTED[level], _LEFT_OPEN[level]) for level in confine.LEVELS
}
"""For each level, what it protects and what it does not, in a sentence each."""


# ---------------------------------------------------------------- trying


def _in_child(action: Callable[[], list[str]]) -> list[str]:
    """Run `action` in a fork and return what it found; an error, a crash and silence are findings too."""
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
            os._exit(0)
    os.close(writing)
    answer = _read_all(reading, time.monotonic() + _PROBE_S)
    if answer is None:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if answer is None:
        return [f"no answer within {_PROBE_S:g} s"]
    if not answer:
        return [f"the process ended with status {status} and told nothing"]
    found = json.loads(answer)
    assert isinstance(found, list)
    return found


def _read_all(reading: int, deadline: float) -> bytes | None:
    """Everything that comes before the other end is closed; None if it stays open past the deadline."""
    parts: list[bytes] = []
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = pipe.read(_ANSWER_BYTES)
            if not part:
                return b"".join(parts)
            parts.append(part)
    return None


def _landlock() -> Probe:
    try:
        abi = syscalls.call("landlock_create_ruleset", 0, 0, 1)
    except OSError as error:
        return Probe("landlock", False, f"this kernel, or the container, does not offer it ({error})")
    mended = ", ".join(map(str, landlock.errata())) or "none that it tells"
    needed = confine.LANDLOCK_NEEDED["confined"]
    return Probe(
        "landlock", abi >= needed, f"ABI {abi} (level confined needs {needed}); errata mended: {mended}"
    )


def _seccomp() -> Probe:
    arch = syscalls.architecture()
    if arch is None:
        return Probe("seccomp", False, f"no system call table for this machine ({os.uname().machine})")

    def load() -> list[str]:
        seccomp.load_filter(seccomp.build_filter(arch, "limited", 0))
        return []

    found = _in_child(load)
    return Probe("seccomp", not found, "; ".join(found) or f"a filter for {arch} loads")


def _holds(level: str) -> Probe:
    """Confine a child at `level` and have it try to escape."""
    try:
        with ground() as place:
            before = fingerprint(place)
            found = _in_child(lambda: [*attempt(level, place)])
            if level != "limited" and fingerprint(place) != before:
                found.append("something outside was changed")
    except OSError as error:  # inside another sandbox, or on a full disk
        found = [f"the self-test could not be set up ({error})"]
    promise = (
        "what it promises holds; files stay open" if level == "limited" else "a self-test found no way out"
    )
    return Probe(level, not found, "; ".join(found) or promise)


def _user_namespaces() -> Probe:
    """Whether an unprivileged process gets a root of its own, with a /proc that can be mounted."""

    def make() -> list[str]:
        user, group = os.getuid(), os.getgid()
        syscalls.call("unshare", 0x78020000)  # NEWUSER, NEWPID, NEWNET, NEWIPC, NEWNS
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")

        def mount() -> list[str]:
            private = 0x44000  # MS_REC, MS_PRIVATE
            syscalls.call("mount", b"none\0", b"/\0", 0, private, 0)
            syscalls.call("mount", b"proc\0", b"/proc\0", b"proc\0", 0, 0)
            return []

        return _in_child(mount)  # the new pid namespace begins with the next child

    found = _in_child(make)
    return Probe("user namespaces", not found, "; ".join(found) or "can be made, with a /proc of their own")


def _not_root() -> Probe:
    if os.getuid() != 0:
        return Probe("not root", True, f"user id {os.getuid()}")
    told = "user root: below level isolated, where a worker is another user, there is no limit on processes"
    return Probe("not root", False, told)


def _control_groups() -> Probe:
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


_MACHINES_NEEDED = "only Linux on x86-64 or 64-bit ARM can confine, elsewhere there are resource limits alone"


def detect() -> Detection:
    """Try what this machine holds; takes some tens of milliseconds.

    It forks, so call it only in a process with one thread; others use `detect_in_subprocess`.
    """
    if syscalls.architecture() is None:
        here = f"{platform.system()} on {platform.machine()}"
        return Detection("limited", (Probe("machine", False, f"this is {here}; {_MACHINES_NEEDED}"),))
    levels = {level: _holds(level) for level in reversed(confine.LEVELS)}
    best = max((level for level, probe in levels.items() if probe.ok), key=confine.LEVELS.index, default=None)
    facts = (_landlock(), _seccomp(), *levels.values())
    return Detection(best, (*facts, _user_namespaces(), _not_root(), _control_groups()))


# ---------------------------------------------------------------- from another process


def detection_from_json(value: Any) -> Detection:
    """Read back what `main` prints.

    Raises:
        SandboxError: It has another form.
    """
    try:
        probes = tuple(Probe(str(p["name"]), bool(p["ok"]), str(p["detail"])) for p in value["probes"])
        level = value["level"]
        if level is not None:
            confine.at_least(level, level)
    except (KeyError, TypeError, ValueError) as error:
        raise SandboxError(
            f"The detection of confinement levels gave no sensible answer: {error!r}."
        ) from error
    return Detection(level, probes)


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
    """`detect`, in a process of its own with a clean environment; safe where threads run.

    Raises:
        SandboxError: The process failed or did not answer in time.
    """
    package_parent = str(Path(__file__).resolve().parents[3])
    passed = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _BOOT, package_parent],
            env=passed | {"LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"The confinement levels could not be tried: {error}.") from error
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise SandboxError(
            f"Trying the confinement levels ended with status {done.returncode}: {' '.join(last)}"
        )
    try:
        return detection_from_json(json.loads(done.stdout))
    except ValueError as error:
        raise SandboxError(f"Trying the confinement levels gave no JSON: {done.stdout[:200]!r}.") from error


# ---------------------------------------------------------------- choosing

ENVIRONMENT_NAME = "AISOTOOLS_MIN_LEVEL"
_LEAST_UNASKED = "guarded"


def choose_level(
    level: str | None, min_level: str | None, environ: Mapping[str, str], detection: Detection
) -> str:
    """The level that a session gets.

    Args:
        level: Exactly this one, or None.
        min_level: This one or a stronger one, or None for what the environment says; without either,
            anything that is a sandbox, which `limited` is not.
        environ: The environment, for `AISOTOOLS_MIN_LEVEL`.
        detection: What the machine holds.

    Raises:
        ValueError: A name is no level, or the two contradict each other.
        LevelUnavailable: The machine does not hold it.
    """
    minimum = min_level or environ.get(ENVIRONMENT_NAME) or None
    for name, value in (("level", level), ("min_level", min_level), (ENVIRONMENT_NAME, minimum)):
        if value is not None and value not in confine.LEVELS:
            known = ", ".join(confine.LEVELS)
            raise ValueError(f"{name} is {value!r}, which is no level; levels, the weakest first: {known}")
    if level is not None:
        if min_level is not None and not confine.at_least(level, min_level):
            raise ValueError(f"level={level!r} is weaker than min_level={min_level!r}; leave one of them out")
        if _holds_itself(detection, level):
            return level
        raise LevelUnavailable(_refusal(f"exactly {level!r}", detection))
    wanted = minimum or _LEAST_UNASKED
    if detection.level is not None and _reaches(detection, wanted):
        return detection.level
    raise LevelUnavailable(_refusal(f"{wanted!r} or better", detection))


def _reaches(detection: Detection, wanted: str) -> bool:
    return detection.level is not None and confine.at_least(detection.level, wanted)


def _holds_itself(detection: Detection, level: str) -> bool:
    """Whether exactly this level holds: without Landlock `isolated` may hold, and not `confined`."""
    tried = [probe.ok for probe in detection.probes if probe.name == level]
    return tried[0] if tried else _reaches(detection, level)


def _refusal(wanted: str, detection: Detection) -> str:
    found = "; ".join(f"{probe.name}: {probe.detail}" for probe in detection.probes if not probe.ok)
    best = f"the best that holds is {detection.level!r}" if detection.level else "no level holds"
    return (
        f"The sandbox level {wanted} is not to be had on this machine: {best} "
        f"({found or 'nothing was tried'}). "
        'If you trust the code to be run with all your files, choose level="limited" knowingly; '
        "`aisotools doctor` tells what each level protects."
    )


def main() -> None:
    """Print what `detect` finds as one JSON object."""
    print(json.dumps(asdict(detect())))


if __name__ == "__main__":
    main()
