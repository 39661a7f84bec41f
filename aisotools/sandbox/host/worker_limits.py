"""The kernel's limits of a worker, which code in it may lower: seen from the host, and put back.

Threat
    Code in the worker lowers a limit of its own process (address space, open files, processes and others, by
    `resource.setrlimit`) so far that no later call works, and a result names the session's limit as the
    cause.
Mechanism
    After each call the host asks the kernel for the worker's limits. A soft limit that was lowered is put
    back with prlimit where the worker has the host's user, and so is a hard one where the host may
    (CAP_SYS_RESOURCE). Otherwise the worker is replaced by its snapshot from before the call. The result says
    which, and how to do without.
Race window
    What a thread lowers after the look fails the next call, whose result says so; the one after it works. A
    worker that may have fewer files than it has open can end before the look, and is replaced then. While
    calls run beside each other nothing is put back, as a limit may be meant for one that goes on.
When it fails
    A worker whose limits cannot be read is about to be found dead, and nothing is said about why its last
    call failed; or this program cannot open another file, and looks after the next call. One that cannot be
    put right, nor replaced by a snapshot with better limits, is ended with its tree, and the next call gets a
    fresh one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aisotools.core.types import ToolResult

LOWERED = "lowered_limits"
"""Key in a result's metadata: names of the limits of its process that code has lowered."""

if sys.platform == "linux":
    import resource

    _KINDS = {
        "RLIMIT_AS": resource.RLIMIT_AS,
        "RLIMIT_DATA": resource.RLIMIT_DATA,
        "RLIMIT_STACK": resource.RLIMIT_STACK,
        "RLIMIT_NOFILE": resource.RLIMIT_NOFILE,
        "RLIMIT_NPROC": resource.RLIMIT_NPROC,
        "RLIMIT_FSIZE": resource.RLIMIT_FSIZE,
        "RLIMIT_CPU": resource.RLIMIT_CPU,
    }
    _ENDLESS = resource.RLIM_INFINITY
# How /proc/<pid>/limits calls them, in a column of this width.
_TITLES = {
    "Max address space": "RLIMIT_AS",
    "Max data size": "RLIMIT_DATA",
    "Max stack size": "RLIMIT_STACK",
    "Max open files": "RLIMIT_NOFILE",
    "Max processes": "RLIMIT_NPROC",
    "Max file size": "RLIMIT_FSIZE",
    "Max cpu time": "RLIMIT_CPU",
}
_TITLE_CHARS = 26
_MOST_BYTES = 1 << 14

Limit = tuple[float, float]
"""A soft and a hard limit; infinity for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredLimits:
    """The limits of a process that are lower than they were.

    Attributes:
        now: The lowered limits, by name.
        final: Names of those that cannot be put back.
        is_restored: Whether the others have been put back.
        is_known: False if the process ended before it was looked at, or this program could not look.
    """

    now: Mapping[str, Limit]
    final: tuple[str, ...] = ()
    is_restored: bool = False
    is_known: bool = True

    def __bool__(self) -> bool:
        return bool(self.now)

    def __str__(self) -> str:
        return ", ".join(f"{name} to {min(limit):,.0f}" for name, limit in self.now.items())

    def describe_end(self) -> str:
        """Return a sentence on how long they hold."""
        if self.is_restored:
            return "They were put back after the call."
        return "They hold until the calls beside this one have ended."


UNKNOWN_LIMITS = LoweredLimits(now={}, is_known=False)
"""Of a process that ended before it was looked at."""


_NOTHING_LOWERED = LoweredLimits(now={})


class WorkerLimits:
    """What the limits of a worker were before any code of a tool ran in it."""

    def __init__(self, pid: int, read: Callable[[int], dict[str, Limit]] | None = None) -> None:
        """Note the limits of the process `pid`; nothing where the system cannot tell.

        Args:
            pid: The process.
            read: Reads the limits of a process; `read_limits` by default.

        Raises:
            OSError: This process cannot open another file.
        """
        self._read = read or read_limits
        self._before = self._read(pid)
        self._text = b""
        """What the kernel says of a process in which none is lowered."""
        self._file = LimitsFile()

    def close(self) -> None:
        """Close what is open; closing twice is fine."""
        self._file.close()

    def find_lowered(self, pid: int) -> LoweredLimits:
        """Return what is lower in the process `pid` than it was in the first worker."""
        # After each call: comparing the text takes a fifth of the time of reading what it says.
        text = self._file.read(pid)
        if text and text == self._text:
            return _NOTHING_LOWERED
        try:
            now = self._read(pid)
        except OSError:
            return UNKNOWN_LIMITS  # too many files are open here; the next call finds it
        lowered = {
            name: limit
            for name, limit in now.items()
            if any(a < b for a, b in zip(limit, self._before.get(name, limit), strict=True))
        }
        # Race: a thread of the worker may have put them back in between, and lower them again.
        if now and not lowered and text == self._file.read(pid):
            self._text = text
        return LoweredLimits(now=lowered, is_known=bool(now) or not self._before)

    def put_back(self, pid: int) -> LoweredLimits:
        """Put back what is lower in the process `pid` than it was; see `LoweredLimits.final`."""
        lowered = self.find_lowered(pid)
        if not lowered:
            return lowered
        final = tuple(name for name in lowered.now if not _write(pid, name, self._before[name]))
        return dataclasses.replace(lowered, final=final, is_restored=True)


def read_limits(pid: int) -> dict[str, Limit]:
    """Return the limits of a process by name; none if it has ended, or the system cannot tell.

    Raises:
        OSError: This process cannot open another file.
    """
    if sys.platform != "linux" or pid <= 0:
        return {}
    found: dict[str, Limit] = {}
    # Race: it may just have ended.
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        try:
            for name, kind in _KINDS.items():
                soft, hard = resource.prlimit(pid, kind)
                found[name] = (
                    math.inf if soft == _ENDLESS else soft,
                    math.inf if hard == _ENDLESS else hard,
                )
        except PermissionError:
            # A worker of level `isolated` has a user of its own where the host is root.
            return _read_file(pid)
    return found


class LimitsFile:
    """What the kernel says of the limits of a process: one that is asked about again and again.

    Its file stays open, since opening it takes as long as reading it.
    """

    def __init__(self) -> None:
        """Open nothing yet."""
        self._pid = 0
        self._descriptor = -1

    def __repr__(self) -> str:
        return f"<LimitsFile of {self._pid}>"

    def __del__(self) -> None:
        self.close()

    def read(self, pid: int) -> bytes:
        """Return what the kernel says of a process; nothing if it has ended or cannot be read."""
        if sys.platform != "linux" or pid <= 0:
            return b""
        try:
            if pid != self._pid:
                self.close()
                self._descriptor = os.open(f"/proc/{pid}/limits", os.O_RDONLY | os.O_CLOEXEC)
                self._pid = pid
            return os.pread(self._descriptor, _MOST_BYTES, 0)
        except OSError:
            # Race: it has just ended. The file stays that of the process that has ended, and another one may
            # get its number: open it anew the next time.
            self.close()
            return b""

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        descriptor, self._descriptor, self._pid = self._descriptor, -1, 0
        if descriptor >= 0:
            os.close(descriptor)


def _read_file(pid: int) -> dict[str, Limit]:
    found: dict[str, Limit] = {}
    with open(f"/proc/{pid}/limits", encoding="ascii") as file:
        for line in file:
            name = _TITLES.get(line[:_TITLE_CHARS].strip())
            if name is not None:
                soft, hard = line[_TITLE_CHARS:].split()[:2]
                found[name] = (_number(soft), _number(hard))
    return found


def _number(text: str) -> float:
    return math.inf if text == "unlimited" else float(text)


def _write(pid: int, name: str, limit: Limit) -> bool:
    """Set a limit. Return False if that is refused: hard limits and other users take a capability."""
    if sys.platform != "linux":
        return False
    soft, hard = (_ENDLESS if value == math.inf else int(value) for value in limit)
    try:
        resource.prlimit(pid, _KINDS[name], (soft, hard))
    except ProcessLookupError:
        return True  # it has ended: there is nothing to put back
    except (OSError, ValueError):
        return False
    return True


_SPARE_FILES = 8
"""A worker that may open fewer more has too many open for a fork that reads: it takes seven."""


def describe_shortage(pid: int) -> str:
    """Return that a worker has too many files open, as a clause; nothing if it has not, or is not there."""
    try:
        soft = read_limits(pid).get("RLIMIT_NOFILE", (math.inf, math.inf))[0]
        count = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return ""
    if soft - count >= _SPARE_FILES:
        return ""
    return f"the worker has too many files open (EMFILE; {count:,} of {soft:,.0f})"


# ---------------------------------------------------------------- in results

_HOW = "Lower only the soft limit, resource.setrlimit(kind, (soft, hard)), and put it back when done."


def explain_lowered(result: ToolResult, lowered: LoweredLimits, *, what: str) -> ToolResult:
    """Return `result` with a note that code has lowered limits, and what was done: `what`."""
    note = f"[Code in this process has lowered its limits: {lowered}. {what} {_HOW}]"
    content = f"{result.content}\n{note}" if result.content else note
    return dataclasses.replace(result, content=content).with_metadata(**{LOWERED: list(lowered.now)})


def worker_replaced_result(result: ToolResult, lowered: LoweredLimits, *, recovery: str) -> ToolResult:
    """Return `result` as that of a call after which the worker had to be replaced.

    Args:
        result: What the call returned.
        lowered: The limits.
        recovery: What happened to the variables, in words.
    """
    failure = dataclasses.replace(result, is_error=True, error_kind="environment", kind="error")
    names = ", ".join(lowered.final)
    what = f"{names} could not be put back from outside, so the worker was replaced. {recovery}"
    return explain_lowered(failure, lowered, what=what)
