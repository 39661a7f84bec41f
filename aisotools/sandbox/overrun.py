"""A limit that was exceeded, in words that say which, by how much, and what to raise."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from aisotools.events import ToolResult
from aisotools.sandbox.limits import Limits

LIMIT, USED, ALLOWED = "limit", "used", "allowed"
"""Keys in a result's metadata: the limit's name in `Limits`, what was used of it, and what is allowed."""

_WORDS = {
    "memory_bytes": "memory of all processes of the sandbox together",
    "processes": "processes and threads of the sandbox",
    "file_bytes": "size of one file",
    "disk_bytes": "disk space of the files it has written",
    "cpu_s": "processor time of one process",
    "open_files": "open files of one process",
}

_NO_SHARED_MEMORY = re.compile(r"(SemLock|shm_open)\((?s:.)*PermissionError")
_UNSHARED = (
    "[level {level}: processes have no shared memory here, so Lock, Queue, Pool and SharedMemory of "
    "multiprocessing, and ProcessPoolExecutor, cannot work; use threads, or "
    "multiprocessing.get_context('fork') with Process and Pipe. At level isolated they work.]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrun:
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
        used, allowed = _told(self.limit, self.used), _told(self.limit, self.allowed)
        return (
            f"it used too much: {_WORDS[self.limit]}: {used}, {allowed} allowed. If it needs more, open the "
            f"session with limits=Limits({self.limit}=...)"
        )

    def on(self, result: ToolResult) -> ToolResult:
        """The result of a call that was stopped for this, or failed by it."""
        told = f"The call went over the limit {self.limit}: {self}."
        content = "\n".join(filter(None, [told, result.content]))
        failed = dataclasses.replace(
            result,
            content=content,
            is_error=True,
            recoverable=True,
            error_kind=result.error_kind or "failed",
            kind="error",
        )
        return failed.with_metadata(**{LIMIT: self.limit, USED: self.used, ALLOWED: self.allowed})


def _told(limit: str, amount: float) -> str:
    if limit == "cpu_s":
        return f"{amount:.3g} s"
    if not limit.endswith("_bytes"):
        return f"{amount:,.0f}"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if amount >= size:
            return f"{amount / size:.4g} {unit}"
    return f"{amount:.0f} bytes"


# What programs say when the kernel refuses them more; the last lines decide, where an error ends.
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
_TAIL_CHARS = 2000


def was_killed(result: ToolResult) -> bool:
    """Whether a call ended because the kernel, or somebody, has killed its worker or its command."""
    return "worker_died" in result.metadata or result.content.rstrip().endswith("[exit code 137]")


def explained(result: ToolResult, limits: Limits, level: str = "") -> ToolResult:
    """The result of a call; if the kernel refused it something, that limit, or the level, is named.

    What a failed call says of itself is all there is to go by, and it comes out of the sandbox: it leads to a
    hint, never to a decision.
    """
    if not result.is_error or LIMIT in result.metadata:
        return result
    tail = result.content[-_TAIL_CHARS:]
    for name, sign in _SIGNS:
        allowed = getattr(limits, name)
        if allowed is not None and sign.search(tail):
            told = (
                f"[limit {name}: {_WORDS[name]}: {_told(name, allowed)} allowed; if it needs more, open the "
                f"session with limits=Limits({name}=...)]"
            )
            found = dataclasses.replace(result, content=f"{result.content}\n{told}")
            return found.with_metadata(**{LIMIT: name, USED: allowed, ALLOWED: allowed})
    if level in {"confined", "guarded"} and _NO_SHARED_MEMORY.search(tail):
        return dataclasses.replace(result, content=f"{result.content}\n{_UNSHARED.format(level=level)}")
    return result
