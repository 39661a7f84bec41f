"""Confinement: a process gives up, for good, what it does not need, and then checks that it is so.

`confine` is called in a freshly forked process before any code of a stranger runs. It stacks independent
layers, so that a hole in one is not a hole in the sandbox: no new privileges, empty capability sets,
Landlock, and a seccomp filter. At level `isolated` all this comes on top of namespaces and a root of its own,
which are made before (see `aisotools.sandbox.confinement.isolated`).

Threat: code reads, writes, signals or connects to what its level promises that it cannot; or a layer is
missing and nobody notices.
Mechanism: the layers are stacked in one order, each for good, and inherited by all that is started. After
that `verify_confinement` makes real attempts against each layer, in the process itself.
Race: Landlock and capabilities belong to a thread. So a process with a second one is refused, and none is
started until the last layer is there.
Failure: `confine` and the check raise or name what is open, and the worker reports it and ends before it has
taken a call. No level is lowered for it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aisotools.core.exceptions import LevelUnavailable, SandboxError, as_clause
from aisotools.core.path_texts import is_within
from aisotools.sandbox.confinement import landlock, seccomp, syscalls

LEVELS = ("limited", "guarded", "confined", "isolated")
"""Every level, the weakest first."""

PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})
"""Names of folders that hold installed packages and nothing else."""

LANDLOCK_NEEDED = {"limited": 0, "guarded": 1, "confined": 6, "isolated": 0}
"""The version of Landlock that each level takes; `isolated` stacks it, too, where there is one."""

_SIGNALS_SCOPED_SINCE = 6  # version of Landlock

_PR_GET_SECCOMP = 21
_PR_CAPBSET_DROP = 24
_PR_GET_SECUREBITS = 27
_PR_SET_SECUREBITS = 28
_PR_GET_NO_NEW_PRIVS = 39
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAP_SETPCAP = 8
_SECBIT_KEEP_CAPS = 0x10
_ROOT_IS_NOBODY = 0xEF  # NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, and KEEP_CAPS off, all locked
_CAPABILITY_HEADER = struct.pack("=Ii", 0x20080522, 0)  # version 3, this thread

_SECCOMP_MODE_FILTER = 2
_AF_UNIX = 1
_SOCK_STREAM = 1
_SOCK_RAW = 3


def _rank(level: str) -> int:
    if level not in LEVELS:
        raise ValueError(f"there is no level {level!r}; levels, the weakest first: {', '.join(LEVELS)}")
    return LEVELS.index(level)


def at_least(level: str, minimum: str) -> bool:
    """Return whether `level` is as strong as `minimum`, or stronger.

    Raises:
        ValueError: One of them is not a level.
    """
    return _rank(level) >= _rank(minimum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What a worker is left with.

    Attributes:
        level: One of `LEVELS`.
        writable: Folders it may change at will; they must exist.
        readable: Files and folders it may read and execute, with what the interpreter needs already among
            them; missing ones are skipped.
        landlock_abi: Use at most this version of Landlock, as if the kernel were older; None for what it has.

    Raises:
        ValueError: There is no such level, or a path is relative or the root folder.
    """

    level: str
    writable: tuple[str, ...]
    readable: tuple[str, ...] = ()
    landlock_abi: int | None = None

    def __post_init__(self) -> None:
        _rank(self.level)
        for path in (*self.writable, *self.readable):
            if not path.startswith("/") or not os.path.normpath(path).strip("/"):
                raise ValueError(f"a confinement takes absolute paths below the root folder, not {path!r}")


def landlock_abi(level: str, at_most: int | None = None) -> int:
    """Return the version of Landlock that a worker of `level` gets here; 0 for none."""
    if level == "limited":
        return 0
    offered = landlock.abi()
    return offered if at_most is None else min(offered, at_most)


def has_readers(level: str, at_most: int | None = None) -> bool:
    """Return whether tools that only read can be held to it here; see `sandbox.worker.reader`.

    Args:
        level: The worker's level.
        at_most: Use at most this version of Landlock, as if the kernel were older.
    """
    return at_least(level, "confined") and landlock_abi(level, at_most) >= landlock.READER_SINCE


def signals_are_scoped(plan: Confinement) -> bool:
    """Return whether a worker of this plan can signal only what it has started."""
    if plan.level == "limited":
        return False
    if plan.level == "isolated":
        return True
    return landlock_abi(plan.level, plan.landlock_abi) >= _SIGNALS_SCOPED_SINCE


# ---------------------------------------------------------------- what an interpreter needs

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"),
    *("/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/localtime", "/etc/timezone", "/etc/mime.types"),
    *("/etc/fonts", "/var/cache/fontconfig", "/sys/devices/system/cpu", "/sys/devices/system/node"),
    # Not /etc/ssl as a whole: beside the certificates lie private keys, which the user root may read.
    *("/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/ca-certificates"),
    *(
        "/etc/pki/tls/certs",
        "/etc/pki/tls/openssl.cnf",
        "/etc/pki/ca-trust/extracted",
        "/etc/crypto-policies",
    ),
)
_MAPPED_CODE = re.compile(r"^\S+ ..x\S \S+ \S+ \S+ +(/.*)$", re.MULTILINE)


def is_path_below(path: str, folders: Iterable[str]) -> bool:
    """Return whether `path` is one of `folders` or below one, by its spelling alone."""
    return any(is_within(path, folder) for folder in folders)


def _homes() -> Iterator[str]:
    # Two answers where HOME was changed, as sudo and containers do: what the environment says, and what the
    # list of users says.
    yield os.path.expanduser("~")
    yield os.path.expanduser(f"~{os.environ.get('USER', '')}")


def _mapped_libraries() -> Iterator[str]:
    """Yield the files that this process runs code from, wherever the dynamic linker found them."""
    try:
        maps = Path("/proc/self/maps").read_text("utf-8", "surrogateescape")
    except OSError:  # another kind of system: the prefixes must be enough
        return
    yield from (path for path in _MAPPED_CODE.findall(maps) if Path(path).is_file())


def interpreter_paths() -> tuple[str, ...]:
    """Return the files and folders that the running interpreter and ordinary commands read; no user's data.

    A plain entry of `sys.path` is not among them: it may be the root of a repository, with its history and
    its `.env`. Nor are /proc, the lists of users, and home folders.

    Raises:
        SandboxError: The interpreter lives directly in a home folder, so everything there could be read.
    """
    system = [path for path in _SYSTEM if Path(path).exists()]
    system += sorted(str(path) for path in Path("/etc").glob("python3*"))  # Debian's sitecustomize is there
    homes = tuple(_homes())  # may read the list of users

    def exposes_home(folder: str) -> bool:
        return folder == "/" or any(is_path_below(home, (folder,)) for home in homes)

    prefixes = [os.path.realpath(prefix) for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix)]
    prefixes += [sys.prefix, sys.base_prefix]
    for prefix in prefixes:
        if exposes_home(prefix) and not is_path_below(prefix, system):
            raise SandboxError(
                f"This Python lives in {prefix!r}, which holds a home folder, so a sandbox could read "
                "everything in there. Use a Python in a virtual environment."
            )
    packages = [entry for entry in sys.path if Path(entry).name in PACKAGE_FOLDERS and Path(entry).is_dir()]
    own = str(Path(__file__).resolve().parents[2])
    executables = [os.path.realpath(sys.executable)] if sys.executable else []
    found: list[str] = []
    for path in (*system, *prefixes, *packages, own, *executables, *_mapped_libraries()):
        if not is_path_below(path, found) and (path in system or not exposes_home(path)):
            found.append(path)
    return tuple(found)


def files_in_use(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the files that a worker cannot do without, among those that `paths` cover."""
    entries = [entry for entry in sys.path if entry and is_path_below(entry, paths)]
    return (sys.executable, os.__file__, __file__, *entries, *_mapped_libraries())


# ---------------------------------------------------------------- capabilities


def _prctl(option: int, argument: int = 0) -> int:
    # The kernel refuses some options unless the arguments that they do not use are 0.
    return syscalls.call("prctl", option, argument, 0, 0, 0)


def _capabilities() -> tuple[int, ...]:
    """Return the words of the effective, permitted and inheritable sets, low words first."""
    sets = ctypes.create_string_buffer(24)
    syscalls.call("capget", _CAPABILITY_HEADER, sets)
    return struct.unpack("=6I", sets.raw)


def _drop_capabilities() -> None:
    """Empty every set and, where that is still possible, stop the user root from getting them back."""
    # Looked up first: the calls below take CAP_SETPCAP, which is gone at the end.
    may_lock = _capabilities()[0] >> _CAP_SETPCAP & 1
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    if may_lock:
        # The user root gets a full set with each exec, out of the bounding set, unless these bits are locked.
        # (no_new_privs stops that, too; this is the second layer.)
        for capability in range(64):
            try:
                _prctl(_PR_CAPBSET_DROP, capability)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                break  # one more than this kernel has
        # Before the capabilities go, since setting these bits needs one: with them, neither being user 0
        # nor a set-uid program gives any back.
        _prctl(_PR_SET_SECUREBITS, _prctl(_PR_GET_SECUREBITS) & ~_SECBIT_KEEP_CAPS | _ROOT_IS_NOBODY)
    syscalls.call("capset", _CAPABILITY_HEADER, bytes(24))
    if any(_capabilities()):
        raise SandboxError("the process still has capabilities after they were dropped")


# ---------------------------------------------------------------- confining


def confine(plan: Confinement) -> None:
    """Give up everything that `plan` does not leave, for this process and all it starts, for good.

    To be called with one thread, right after a fork. After an error the process is neither free nor confined:
    it must end. At level `limited` files stay open; where we have no system call table (see
    `syscalls.architecture`), that level does nothing at all and resource limits are all there is.

    Raises:
        LevelUnavailable: This machine cannot confine at that level.
        SandboxError: A step failed; the message names it.
    """
    arch = syscalls.architecture()
    if arch is None and plan.level != "limited":
        raise LevelUnavailable(
            f"aisotools cannot confine at level {plan.level!r} on this machine. "
            "Run `aisotools doctor` to see what it can do here."
        )
    if arch is None:
        return
    for name, step in _steps(plan, arch):
        try:
            step()
        except (OSError, SandboxError) as error:
            raise SandboxError(
                f"The process could not be confined at level {plan.level!r}, step {name!r}: "
                f"{as_clause(error)}."
            ) from error


def _steps(plan: Confinement, arch: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the steps. Their order matters, and what only looks comes first, before anything is given up."""
    # Capabilities and Landlock are properties of a thread: another one would stay free, and share its memory.
    yield "one thread", _require_one_thread
    if plan.level == "isolated":
        yield "namespaces", _require_namespaces
    # Without CAP_SYS_ADMIN the kernel takes neither a Landlock rule set nor a filter from a process that can
    # still gain privileges: a setuid program would run under rules of somebody else's making.
    yield "no new privileges", syscalls.set_no_new_privileges
    # Before Landlock, whose rules are made by opening paths: with root's capabilities paths would open, and
    # be granted, that the worker itself may not reach.
    yield "capabilities", _drop_capabilities
    if plan.level != "limited":
        yield "Landlock", lambda: _restrict_files(plan)
    # Last, so that whatever the filter refuses can still be used by the steps above.
    yield "seccomp", lambda: _load_filter(plan, arch)


def _require_one_thread() -> None:
    try:
        threads = len(os.listdir("/proc/self/task"))
    except OSError:
        threads = threading.active_count()
    if threads != 1:
        raise SandboxError(f"the process has {threads} threads, and Landlock would hold only for one")


def _require_namespaces() -> None:
    # A parent outside the process namespace has no number in it.
    if os.getppid() != 0:
        raise SandboxError("the process is in the host's namespaces still")


def _restrict_files(plan: Confinement) -> None:
    # Landlock: an older kernel takes the rule set without the rights it does not know. Refuse it instead.
    needed = LANDLOCK_NEEDED[plan.level]
    found = landlock_abi(plan.level, plan.landlock_abi)
    if found < needed:
        raise SandboxError(f"the kernel offers Landlock ABI {found}, and this level needs {needed}")
    if found:
        landlock.restrict(plan.readable, plan.writable, version=found, own_network=plan.level == "isolated")


def _load_filter(plan: Confinement, arch: str) -> None:
    abi = landlock_abi(plan.level, plan.landlock_abi)
    # The last layer: the filter refuses system calls that the layers before it needed to be set up.
    seccomp.load_filter(seccomp.build_filter(arch, plan.level, abi))


# ---------------------------------------------------------------- checking

# Errors that count as a refusal. O_TMPFILE gives the last two where the file system has no nameless files.
_DENIALS = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT),
    *(errno.EOPNOTSUPP, errno.EISDIR),
}


def _is_refused(action: Callable[..., int], *arguments: int | str) -> bool:
    """Return whether `action` is denied; a descriptor that it returns is closed again."""
    try:
        opened = action(*arguments)
    except OSError as error:
        return error.errno in _DENIALS
    os.close(opened)
    return False


def _make_file(folder: str) -> int:
    # A nameless file: nothing is left behind where this is still possible.
    return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)


def _call_refused(name: str, *arguments: int) -> bool:
    try:
        result = syscalls.call(name, *arguments)
    except OSError as error:
        return error.errno == errno.EPERM
    if name == "socket":
        os.close(result)
    return False


def _is_cut_off(family: int, address: tuple[str, int]) -> bool:
    """Return whether there is no way to an address; nothing is sent, a route is looked for."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
    except OSError as error:
        return error.errno in {errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EACCES}
    return False


def _signals_refused() -> bool:
    parent = os.getppid()
    if parent == 0:
        # The parent is in another process namespace, and has no number in this one: no signal can name it.
        # `os.kill(0, ...)` would mean the own process group instead, and say that signals are not refused.
        return True
    try:
        os.kill(parent, 0)
    except (PermissionError, ProcessLookupError):
        return True
    return False


_Checks = tuple[tuple[str, Callable[[], bool]], ...]
"""What does not hold, in words, and a test that is true if it does hold."""

# Asked of the kernel, not concluded from the calls that confined: under a container's own filter such a call
# may return 0 without having done anything. A worker that fails one of these ends before any user code.
_PROCESS_CHECKS: _Checks = (
    ("new privileges can still be gained", lambda: _prctl(_PR_GET_NO_NEW_PRIVS) == 1),
    ("the process still has capabilities", lambda: not any(_capabilities())),
    ("there is no system call filter", lambda: _prctl(_PR_GET_SECCOMP) == _SECCOMP_MODE_FILTER),
    ("sockets can still be made", partial(_call_refused, "socket", _AF_UNIX, _SOCK_STREAM, 0)),
    ("namespaces can still be made", partial(_call_refused, "unshare", 0)),
)
_FILE_CHECKS: _Checks = (
    ("what may be read can still be written", lambda: _is_refused(os.open, os.__file__, os.O_WRONLY)),
    ("files can still be made in the root folder", partial(_is_refused, _make_file, "/")),
)
_SHARED_ROOT_CHECKS: _Checks = (
    ("the root folder can still be listed", partial(_is_refused, os.open, "/", os.O_RDONLY)),
    ("/proc can still be read", partial(_is_refused, os.open, "/proc/self/status", os.O_RDONLY)),
    # A file that everybody may write: only Landlock refuses it, whoever owns the interpreter's files.
    ("what may be read can still be written", partial(_is_refused, os.open, "/dev/full", os.O_WRONLY)),
)
_ISOLATION_CHECKS: _Checks = (
    # It is about the machine, and not there in a /proc of processes only.
    ("the host's processes can still be seen", lambda: not os.path.exists("/proc/cmdline")),
    # Addresses that are reserved for documentation: no host has them, and every default route leads there.
    ("there is a way out of the network", partial(_is_cut_off, socket.AF_INET, ("192.0.2.1", 9))),
    ("there is a way out of the network", partial(_is_cut_off, socket.AF_INET6, ("2001:db8::1", 9))),
    ("raw sockets can still be made", partial(_call_refused, "socket", socket.AF_INET, _SOCK_RAW, 1)),
)
_SIGNAL_CHECKS: _Checks = (("the parent process can still be signalled", _signals_refused),)


def verify_confinement(plan: Confinement) -> tuple[str, ...]:
    """Try what `confine` should have made impossible; nothing is left behind where it is still possible.

    Returns:
        What does not hold, in words; empty when all holds.
    """
    arch = syscalls.architecture()
    if arch is None:
        return () if plan.level == "limited" else ("this machine has no confinement",)
    checks = [*_PROCESS_CHECKS]
    if plan.level != "limited":
        checks += _FILE_CHECKS
        checks += _ISOLATION_CHECKS if plan.level == "isolated" else _SHARED_ROOT_CHECKS
        if signals_are_scoped(plan):
            checks += _SIGNAL_CHECKS
        parents = {os.path.dirname(os.path.normpath(folder)) for folder in plan.writable}
        checks += [
            (f"files can still be made in {parent!r}", partial(_is_refused, _make_file, parent))
            for parent in sorted(parents)
            if not is_path_below(parent, plan.writable)
        ]
    return tuple(sentence for sentence, holds in checks if not holds())
