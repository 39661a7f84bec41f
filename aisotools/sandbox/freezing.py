"""Has a whole process tree stand still for a moment, so that what it works on can be looked at."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from aisotools.sandbox.processes import below, send_signal, table

_SETTLE_S = 0.05
_MOST_ROUNDS = 20


@contextmanager
def standing_still(root: int) -> Iterator[None]:
    """Everything below the process `root` stands still inside the `with` block; `root` itself does not.

    What stood still before, stays so afterwards. Bounded in time: what does not let itself be stopped within
    50 ms, such as a process that waits for a disk, goes on.
    """
    stopped: set[int] = set()
    try:
        if root:
            _stop(root, stopped)
        yield
    finally:
        for pid in stopped:
            send_signal(pid, signal.SIGCONT)


def _stop(root: int, stopped: set[int]) -> None:
    seen: set[int] = set()
    for _ in range(_MOST_ROUNDS):  # each round finds what was started while the one before ran
        new = _descendants(root) - seen
        if not new:
            break
        seen |= new
        for pid in new:
            if _state(pid) not in b"TtZXx":
                stopped.add(pid)
                send_signal(pid, signal.SIGSTOP)
    until_s = time.monotonic() + _SETTLE_S
    for pid in stopped:
        while _state(pid) not in b"TtZXx" and time.monotonic() < until_s:
            time.sleep(0.0001)


def _descendants(root: int) -> set[int]:
    """All processes below `root`; read from the kernel's own lists of children where it has them."""
    found: set[int] = set()
    todo = [root]
    try:
        while todo:
            pid = todo.pop()
            new = _children(pid) - found
            found |= new
            todo += new
    except FileNotFoundError:
        return below(root, table())
    return found


def _children(pid: int) -> set[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return set()  # it ended meanwhile
    found: set[int] = set()
    for thread in threads:
        try:
            file = os.open(f"/proc/{pid}/task/{thread}/children", os.O_RDONLY)
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{thread}"):
                raise  # this kernel keeps no such lists
            continue
        except OSError:
            continue
        try:
            told = b""
            while part := os.read(file, 1 << 16):
                told += part
            found.update(map(int, told.split()))
        except ProcessLookupError:
            continue
        finally:
            os.close(file)
    return found


def _state(pid: int) -> bytes:
    """The state letter of a process; X for one that is gone."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return b"X"
    try:
        return os.read(file, 1024).rpartition(b")")[2].split()[0]
    except (ProcessLookupError, IndexError):
        return b"X"
    finally:
        os.close(file)
