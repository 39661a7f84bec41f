"""Limits on what a worker may use: the part that the kernel enforces, and results that name the limit.

What the kernel counts per user, as a boundary:

- Threat: a session takes what the user's other sessions and programs need: descriptors that are on their way
  between processes, queued signals, watches on folders, keys, message queues, pages of pipes.
- Mechanism: what can be done without is refused by the system call filter. Open files, which cannot, are
  limited to half of what the host may have open, so that the host can always pass one on. The total of a tree
  is watched by `aisotools.sandbox.host.monitor`, with the watches of its epolls and the pages of its pipes.
- Race: none for what the kernel refuses. The watch is as quick as its samples: until the next one a tree may
  hold some hundred thousand watches more for each processor and second.
- A failure: a limit that the kernel refuses ends the worker before it runs anything.
- Left: processes are counted per user where no user namespace is had, so a session full of them can keep
  another session from starting more, though not the user's programs, whose limit is higher. What is watched
  is watched for each session: several may together hold all the pages of pipes that a user has.
"""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from aisotools.core.exceptions import SandboxError
from aisotools.core.types import ToolResult

LIMIT = "limit"
"""Key in a result's metadata: the name in `Limits` of the limit that was exceeded."""

USED = "used"
"""Key in a result's metadata: how much was used, at least."""

ALLOWED = "allowed"
"""Key in a result's metadata: how much is allowed."""

_MOST_TASKS = 1 << 22  # what 64-bit Linux can number
_LARGEST = 1 << 62  # what the kernel takes for every limit
_SMALLEST = {"memory_bytes": 64 << 20, "open_files": 64, "open_files_total": 64, "stream_bytes": 0}
_FEWEST_FILES = 64  # with fewer a worker cannot work
_LOCKED_MEMORY_BYTES = 8 << 20  # the usual default of distributions
# At the soft limit of processor time the kernel sends SIGXCPU, which names the reason, and at the hard one
# SIGKILL, which does not. Code that ignores the first, or raises its soft limit, gets this much more.
_SECONDS_AFTER_SIGXCPU = 1
_PENDING_SIGNALS = 1024  # counted per user: the default is all that the user's programs share

_DESCRIPTIONS = {
    "memory_bytes": "memory of all processes of the sandbox together",
    "processes": "processes and threads of the sandbox",
    "file_bytes": "size of one file",
    "disk_bytes": "disk space of the files it has written",
    "cpu_s": "processor time of one process",
    "open_files": "open files of one process",
    "open_files_total": "open files of all processes of the sandbox together, with their watches and pipes",
}

LEFTOVERS_REMEDY = (
    "what earlier calls left running counts as well, and a restart of the sandbox ends all of it "
    "(`%sandbox restart`, `await session.restart()`); "
)
"""What to do where no process can be made; text follows."""

# What programs print when the kernel refuses them more. Only the end is searched: there an error ends.
_TAIL_CHARS = 2000
_SIGNS = (
    ("memory_bytes", re.compile(r"\bMemoryError\b|Cannot allocate memory|std::bad_alloc")),
    ("file_bytes", re.compile(r"File too large|File size limit exceeded|\[Errno 27\]|\[exit code 153\]")),
    ("open_files", re.compile(r"Too many open files|\[Errno 24\]")),
    (
        "processes",
        re.compile(r"fork: .*Resource temporarily unavailable|can't start new thread|\[Errno 11\]"),
    ),
    ("cpu_s", re.compile(r"CPU time limit exceeded|SIGXCPU|\[exit code 152\]")),
)

_NO_SHARED_MEMORY = re.compile(r"(SemLock|shm_open)\((?s:.)*PermissionError")
_NO_SHARED_MEMORY_HINT = (
    "[level {level}: processes have no shared memory here, so Lock, Queue, Pool and SharedMemory of "
    "multiprocessing, and ProcessPoolExecutor, cannot work; use threads, or "
    "multiprocessing.get_context('fork') with Process and Pipe. At level isolated they work.]"
)

_DENIED = re.compile(r"\[Errno (1|9|13|30)\]|PermissionError|[Pp]ermission denied|readonly database")
_READ_ONLY_HINT = (
    "[the tool says that it only reads, so it ran without the right to change files, to reach other "
    "processes or to make sockets, and what it changes of the variables does not reach the worker. If it "
    "needs that, declare it with effect='local_mutation'.]"
)
_NO_NETWORK = re.compile(r"\[Errno 97\]|Address family not supported")
_NO_NETWORK_HINT = (
    "[level {level}: there is no network here, not even 127.0.0.1. At level isolated programs of the sandbox "
    "reach each other over a loopback of their own; what needs the network is a tool of the host.]"
)
_OWN_NETWORK = re.compile(
    r"\[Errno 101\]|Network is unreachable|\[Errno -[23]\]|Name or service not known|name resolution"
)
_OWN_NETWORK_HINT = (
    "[level isolated: the network here is a loopback of the sandbox's own (127.0.0.1, localhost); nothing "
    "outside can be reached; what needs the network is a tool of the host.]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one session may use. None lifts a limit where that is allowed.

    Attributes:
        memory_bytes: Address space of each process (RLIMIT_AS), and memory of all of them together, shared
            parts shared out (PSS), which is watched while calls run; None for no limit. numpy's threads and
            mapped files count as address space: below 2 GiB expect surprises.
        processes: Processes and threads of the sandbox, its worker among them. The kernel refuses more
            (RLIMIT_NPROC), and they are watched as well, since it does not do so for root below level
            `isolated`. At the other levels it counts per user: what else that user starts later uses the
            limit up too.
        file_bytes: Size of any file it writes (RLIMIT_FSIZE).
        disk_bytes: Disk space of what it has written in workspace and scratch folder since its worker
            started, watched while calls run; None for no limit.
        open_files: Open files of each process (RLIMIT_NOFILE); never more than half of what the program that
            owns the session may have open itself (its soft limit). The kernel counts descriptors that are
            being passed between processes per user, and refuses more than this to whoever passes one.
        open_files_total: Open files of all processes of the sandbox together, watched while calls run. One
            that several have counts for each. What the kernel counts per user counts as well: of the watches
            of an epoll those beyond one for each open file of its process; of many files an epoll instance
            for four, and each pipe beyond 64 for its 16 pages (for more where a user has less than 16,384).
            Descriptors that stay on their way between processes, or in a program that nobody may read, may
            hide any number, and count as too many.
        cpu_s: Seconds of processor time of each process (RLIMIT_CPU); None for no limit.
        stream_bytes: Printed bytes kept of one call.
        call_timeout_s: Seconds that a call may take when neither it nor its tool says otherwise.

    Raises:
        TypeError: A limit is not a number.
        ValueError: A limit is too small to work with.
    """

    memory_bytes: int | None = 4 << 30
    processes: int = 256
    file_bytes: int = 1 << 30
    disk_bytes: int | None = 4 << 30
    open_files: int = 512
    open_files_total: int = 4096
    cpu_s: float | None = None
    stream_bytes: int = 1 << 20
    call_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "processes", "file_bytes", "disk_bytes", "open_files"):
            self._check(name, int, optional=name in {"memory_bytes", "disk_bytes"})
        for name in ("open_files_total", "stream_bytes"):
            self._check(name, int, optional=False)
        for name in ("cpu_s", "call_timeout_s"):
            self._check(name, float, optional=name == "cpu_s")

    def _check(self, name: str, kind: type[int | float], *, optional: bool) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        numbers = int if kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, numbers):
            expected = "an integer" if kind is int else "a number of seconds"
            none = " or None" if optional else ""
            raise TypeError(f"Limits({name}={value!r}): use {expected}{none}.")
        if kind is float and not (math.isfinite(value) and value > 0):
            none = ", or None for no limit" if optional else ""
            raise ValueError(f"Limits({name}={value!r}): use a finite number of seconds above 0{none}.")
        smallest = _SMALLEST.get(name, 1)
        if kind is int and value < smallest:
            raise ValueError(f"Limits({name}={value!r}): use at least {smallest:,}.")
        if kind is int and value > _LARGEST:
            raise ValueError(f"Limits({name}={value!r}): use at most {_LARGEST:,}.")


# ---------------------------------------------------------------- enforced by the kernel


def running_tasks() -> int:
    """Return how many processes and threads this user runs, as far as /proc shows them."""
    user = os.getuid()
    count = 0
    try:
        entries = os.scandir("/proc")
    except OSError:
        return 0
    with entries:
        for entry in entries:
            try:
                if entry.name.isdigit() and entry.stat().st_uid == user:
                    # A folder has two links, and one more for each folder in it: here, for each thread.
                    count += os.stat(f"/proc/{entry.name}/task").st_nlink - 2
            except OSError:
                continue  # it ended meanwhile
    return count


def apply_rlimits(limits: Limits, *, tasks: int | None = None) -> None:
    """Put this process and all it starts under `limits`, for good. A stricter limit that is there stays.

    To be called before `confine`, which takes /proc away. A limit that the system does not have is left out.

    Args:
        limits: The limits; `disk_bytes`, `stream_bytes` and `call_timeout_s` are the host's business.
        tasks: How many tasks the kernel counts for this user just now, with the calling one. None: what
            `running_tasks()` finds.

    Raises:
        SandboxError: The kernel refused a limit, or this Python cannot set any.
    """
    try:
        import resource
    except ImportError as error:
        raise SandboxError(
            f"The limits cannot be set: {error}. Use a Python with a module resource that can be read."
        ) from error

    for name, value in _rlimits(limits):
        kind = getattr(resource, name, None)  # not every system has every limit
        if value is not None and kind is not None:
            _lower(kind, name, value, beyond=_SECONDS_AFTER_SIGXCPU if name == "RLIMIT_CPU" else 0)
    _stop_core_dumps()
    if sys.platform == "linux" and os.getuid() != 0:
        _limit_processes(limits.processes, running_tasks() if tasks is None else tasks)


def _rlimits(limits: Limits) -> Iterator[tuple[str, int | None]]:
    yield "RLIMIT_FSIZE", limits.file_bytes
    yield "RLIMIT_NOFILE", _files_below_the_hosts(limits.open_files)
    yield "RLIMIT_CPU", None if limits.cpu_s is None else math.ceil(limits.cpu_s)
    yield "RLIMIT_RTPRIO", 0
    yield "RLIMIT_NICE", 0
    yield "RLIMIT_MEMLOCK", _LOCKED_MEMORY_BYTES
    yield "RLIMIT_SIGPENDING", _PENDING_SIGNALS
    yield "RLIMIT_MSGQUEUE", 0
    if sys.platform == "linux":  # elsewhere it is refused or means something else
        yield "RLIMIT_AS", limits.memory_bytes


def _files_below_the_hosts(wanted: int) -> int:
    """Return the limit on open files: `wanted`, and well below that of the program above.

    Descriptors that were sent over a Unix socket and not yet received are counted per user. A process may
    send as long as that count is below its own limit, 253 at a time: so sandboxes alone cannot bring it to
    where the host, with twice their limit, could not send one to its worker.
    """
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, soft // 2 if soft >= 2 * _FEWEST_FILES else soft)


def _lower(kind: int, name: str, value: int, beyond: int = 0) -> None:
    """Set the soft limit to `value`, and the hard one to so much more; neither above the present hard one."""
    import resource

    _, hard = resource.getrlimit(kind)
    soft, final = value, value + beyond
    if hard != resource.RLIM_INFINITY:
        soft, final = min(soft, hard), min(final, hard)
    try:
        # The hard limit too: code in the sandbox could raise a soft one again.
        resource.setrlimit(kind, (soft, final))
    except (OSError, ValueError) as error:
        raise SandboxError(f"The kernel refused the limit {name} = {value}: {error}.") from error


def _stop_core_dumps() -> None:
    import resource

    try:
        # Where /proc/sys/kernel/core_pattern is a pipe, the kernel starts the host's crash handler, as root,
        # on what hostile code has prepared. It does so for a limit of 0 too; only 1 is checked before.
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except (OSError, ValueError):
        # The hard limit was 0 already, and cannot be raised.
        _lower(resource.RLIMIT_CORE, "RLIMIT_CORE", 0)


def _limit_processes(allowed: int, tasks: int) -> None:
    """Allow a sandbox that many tasks, of which this process is one, beside the other `tasks` of this user.

    The monitor counts the same, and ends whoever has one more: so a program is refused a process, and goes
    on, before it is ended.
    """
    import resource

    more = allowed - 1

    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    ceiling = _MOST_TASKS if hard == resource.RLIM_INFINITY else hard
    value = min(tasks + more, ceiling)
    resource.setrlimit(resource.RLIMIT_NPROC, (value, hard))
    # On a node of a cluster containers often share a user id. The kernel counts the tasks of all of them, and
    # /proc shows only ours. So try the limit before it is made final, and find the real count by doubling.
    while not _may_fork() and value < ceiling:
        value = min(2 * value, ceiling)
        resource.setrlimit(resource.RLIMIT_NPROC, (value, hard))
        value = min(value + more, ceiling) if _may_fork() else value
    _lower(resource.RLIMIT_NPROC, "RLIMIT_NPROC", value)


def _may_fork() -> bool:
    """Return whether one more process can be made; starting a program that does not exist is a cheap test."""
    try:
        # The child ends by itself at once, where it can be made at all. Race: other processes of the user
        # come and go, so the answer holds for a moment only; the caller leaves room.
        os.posix_spawn("/dev/null/no-program", ["no-program"], {})
    except OSError as error:
        return error.errno != errno.EAGAIN
    return True


# ---------------------------------------------------------------- in results


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitExceeded:
    """One limit that was exceeded.

    Attributes:
        limit: Its name in `Limits`.
        used: What was used, at least.
        allowed: What is allowed.
    """

    limit: str
    used: float
    allowed: float

    def __str__(self) -> str:
        used = format_amount(self.limit, self.used)
        allowed = format_amount(self.limit, self.allowed)
        return (
            f"it used too much: {_DESCRIPTIONS[self.limit]}: {used}, {allowed} allowed. If it needs more, "
            f"open the session with limits=Limits({self.limit}=...)"
        )

    def apply_to(self, result: ToolResult) -> ToolResult:
        """Return `result` as the failure of a call that was stopped for this limit, or failed by it."""
        message = f"The call went over the limit {self.limit}: {self}."
        content = f"{message}\n{result.content}" if result.content else message
        failure = dataclasses.replace(
            result,
            content=content,
            is_error=True,
            recoverable=True,
            error_kind=result.error_kind or "failed",
            kind="error",
        )
        return failure.with_metadata(**{LIMIT: self.limit, USED: self.used, ALLOWED: self.allowed})


def explain_failure(
    result: ToolResult, limits: Limits, level: str = "", *, read_only: bool = False
) -> ToolResult:
    """Return `result` with a hint, if it failed because of a limit of the kernel or of the level.

    With `read_only`, also if it failed because its tool says that it only reads.

    The text of a failed call is all there is to go by, and it comes out of the sandbox. So this leads to a
    hint, never to a decision.
    """
    if not result.is_error or LIMIT in result.metadata:
        return result
    tail = result.content[-_TAIL_CHARS:]
    for name, sign in _SIGNS:
        allowed = getattr(limits, name)
        if allowed is not None and sign.search(tail):
            remedy = LEFTOVERS_REMEDY if name == "processes" else ""
            hint = (
                f"[limit {name}: {_DESCRIPTIONS[name]}: {format_amount(name, allowed)} allowed; {remedy}"
                f"if it needs more, open the session with limits=Limits({name}=...)]"
            )
            explained = dataclasses.replace(result, content=f"{result.content}\n{hint}")
            return explained.with_metadata(**{LIMIT: name, USED: allowed, ALLOWED: allowed})
    hint = _READ_ONLY_HINT if read_only and _DENIED.search(tail) else _explain_level(tail, level)
    return dataclasses.replace(result, content=f"{result.content}\n{hint}") if hint else result


def _explain_level(tail: str, level: str) -> str:
    """Return what a failure has to do with the level, or an empty text."""
    if level == "isolated":
        return _OWN_NETWORK_HINT if _OWN_NETWORK.search(tail) else ""
    if level and _NO_NETWORK.search(tail):
        return _NO_NETWORK_HINT.format(level=level)
    if level in {"confined", "guarded"} and _NO_SHARED_MEMORY.search(tail):
        return _NO_SHARED_MEMORY_HINT.format(level=level)
    return ""


def format_amount(limit: str, amount: float | None) -> str:
    """Return an amount in the unit that the name of its limit ends with, for people to read."""
    if amount is None:
        return "unlimited"
    if limit.endswith("_s"):
        return f"{amount:.3g} s" if amount < 100 else f"{amount:,.0f} s"
    if not limit.endswith("_bytes"):
        return f"{amount:,.0f}"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if amount >= size:
            return f"{amount / size:.4g} {unit}"
    return f"{amount:.0f} bytes"
