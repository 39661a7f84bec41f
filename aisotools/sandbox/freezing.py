"""Has a whole process tree stand still for a moment, so that what it works on can be looked at."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from aisotools.sandbox.processes import below, send_signal, table

_SETTLE_S = 0.05
_SPIN_S = 0.0002
_MOST_ROUNDS = 20
_STILL, _MOVING = b"TtZXx", b"RD"


@contextmanager
def standing_still(root: int, spared: Collection[int] = ()) -> Iterator[None]:
    """Everything below the process `root` stands still inside the `with` block; `root` itself does not.

    What stood still before, stays so afterwards. Bounded in time: what does not let itself be stopped within
    50 ms, such as a process that waits for a disk, goes on.

    Args:
        root: The process above all; 0 for none.
        spared: Processes that do nothing anyway.
    """
    stopped: set[int] = set()
    try:
        if root:
            _stop(root, stopped, spared)
        yield
    finally:
        for pid in stopped:
            send_signal(pid, signal.SIGCONT)


def left_running(root: int, worker: int, spared: Collection[int] = ()) -> dict[int, str]:
    """What runs below `root` beside the worker: process id to name. A name is whatever its program says.

    Args:
        root: The process above all; 0 for none.
        worker: The worker.
        spared: Processes that belong to nobody's call.
    """
    if not root:
        return {}
    above = {worker}
    processes = table()
    while (pid := worker) in processes and pid != root:
        worker = processes[pid].parent
        above.add(worker)
    found = sorted(below(root, processes) - above - set(spared))
    return {pid: _name(pid) for pid in found if not (set(_states(pid)) <= set(_STILL) or _is_init(pid))}


def _is_init(pid: int) -> bool:
    """Whether it is process 1 of the sandbox's own namespace, which only waits."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return any(line.startswith("NSpid:") and line.split()[2:][-1:] == ["1"] for line in file)
    except OSError:
        return False


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "a process"


def _stop(root: int, stopped: set[int], spared: Collection[int]) -> None:
    seen = set(spared)
    moving: list[int] = []
    for _ in range(_MOST_ROUNDS):  # each round finds what was started while the one before ran
        new = descendants(root, spared) - seen
        if not new:
            break
        seen |= new
        for pid in new:
            states = _states(pid)
            if not set(states) <= set(_STILL):
                stopped.add(pid)
                # What sleeps meets the signal before its next instruction, however late it is scheduled.
                moving += [pid] if set(states) & set(_MOVING) else []
                send_signal(pid, signal.SIGSTOP)
    began_s = time.monotonic()
    for pid in moving:
        while not set(_states(pid)) <= set(_STILL) and (waited_s := time.monotonic() - began_s) < _SETTLE_S:
            if waited_s > _SPIN_S:  # a signal arrives in microseconds, a sleep ends after many of them
                time.sleep(_SPIN_S)


def descendants(root: int, spared: Collection[int] = ()) -> set[int]:
    """All processes below `root`, none for 0; from the kernel's own lists of children where it has them.

    What is below the `spared` ones need not be found: they are many, and each costs a look.
    """
    found: set[int] = set()
    todo = [root] if root else []
    try:
        while todo:
            pid = todo.pop()
            new = _children(pid) - found
            found |= new
            todo += new.difference(spared)
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


def _states(pid: int) -> bytes:
    """The state letters of a process's threads; none for one that is gone."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return b""
    return b"".join(_state(f"/proc/{pid}/task/{thread}/stat") for thread in threads)


def _state(path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, 1024).rpartition(b")")[2].split()[0]
    except (ProcessLookupError, IndexError):
        return b""
    finally:
        os.close(file)
