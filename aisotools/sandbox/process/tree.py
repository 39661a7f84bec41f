"""Process trees: what is below a process, what a call left behind, and how to end it for good.

Has a whole process tree stand still for a moment, so that what it works on can be looked at.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

CALL_MARK = "AISOTOOLS_CALL"
"""Environment variable that tells which call started a process."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_ROUND_S = 0.001
_ENVIRON_BYTES = 1 << 20


Moment = tuple[int, int]
"""Ticks since boot, and the last process id given out by then, which tells apart what one tick holds."""


class Process(NamedTuple):
    """One line of the process table.

    Attributes:
        parent: Its parent's id.
        born: When it started.
        group: Its process group.
    """

    parent: int
    born: Moment
    group: int = 0


Table = Mapping[int, Process]
"""Processes by id."""


def table() -> dict[int, Process]:
    """Every visible process that is not dead."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _read(name)) is not None:
            found[int(name)] = process
    return found


def _read(name: str) -> Process | None:
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            # The name in brackets may hold anything, brackets and spaces included.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None  # it ended meanwhile
    # Where only the first thread has ended, the process looks like a zombie and is alive all the same.
    if fields[0] in b"ZX" and int(fields[17]) <= 1:
        return None
    return Process(int(fields[1]), (int(fields[19]), int(name)), int(fields[2]))


def parent_of(pid: int) -> int:
    """Its parent; 0 when it is gone."""
    process = _read(str(pid))
    return process.parent if process is not None else 0


def exit_status(pid: int) -> tuple[int, int]:
    """How a process that nobody has reaped yet ended: its status, or -1, and the signal, or 0."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            status = int(file.read().rpartition(b")")[2].split()[49])
    except (OSError, IndexError):
        return -1, 0
    if os.WIFSIGNALED(status):
        return -1, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), 0


def now() -> Moment:
    """What is born from here on is later."""
    tick = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_S)
    try:
        descriptor = os.open("/proc/loadavg", os.O_RDONLY)  # once per call: a file object takes twice as long
    except OSError:
        return tick, 0
    try:
        return tick, int(os.read(descriptor, 100).split()[-1])
    finally:
        os.close(descriptor)


def _children(processes: Table) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    return children


def below(root: int, processes: Table) -> set[int]:
    """All processes below `root`."""
    children = _children(processes)
    found: set[int] = set()
    todo = [root]
    while todo:
        new = set(children.get(todo.pop(), ())) - found
        found |= new
        todo += new
    return found


def find_call_processes(
    processes: Table,
    root: int,
    *,
    worker: int,
    since: Moment,
    mark: str,
    others: frozenset[str],
    unmarked: bool,
    init: int = 0,
    mark_of: Callable[[int], str | None] | None = None,
) -> set[int]:
    """What one call started, wherever it hides below `root`, but never the worker.

    That is what started after the call did and is not below something older (a server that an earlier call
    left running), unless it bears the mark of another call.

    Args:
        processes: The process table.
        root: The worker's supervisor.
        worker: The worker.
        since: When the call started.
        mark: The call's own mark.
        others: Marks of other calls that run at the same time.
        unmarked: Whether what bears no mark counts to this call.
        init: What adopts orphans below `root`, and is nobody's; 0 if `root` itself does.
        mark_of: Tells a process's mark; reads its environment when not given.
    """
    told = mark_of or _mark_of
    children = _children(processes)
    found: set[int] = set()
    seen = {root, init, worker}
    todo: list[tuple[int, str | None]] = [(pid, None) for pid in seen if pid]
    while todo:
        parent, inherited = todo.pop()
        for child in children.get(parent, ()):
            if child in seen:
                continue
            seen.add(child)
            if processes[child].born > since:
                borne = told(child) or inherited
                if borne == mark or (unmarked and borne not in others):
                    found.add(child)
                todo.append((child, borne))
    return found


def _mark_of(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read(_ENVIRON_BYTES).split(b"\0")
    except OSError:
        return None  # it ended meanwhile
    start = f"{CALL_MARK}=".encode()
    return next((e[len(start) :].decode("utf-8", "replace") for e in entries if e.startswith(start)), None)


def exists(pid: int) -> bool:
    """Whether there is a process of this number that has not ended, or not been reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def reap() -> dict[int, int]:
    """Reap children that ended: process id to status."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def kill_all(find: Callable[[], set[int]], *, within_s: float) -> dict[int, int]:
    """Freeze and kill what `find` finds, until it finds nothing, and reap children.

    Freezing comes first, so that nothing can be started while the rest is being found. Bounded in time: what
    the kernel does not let go of is left to the parent's parent.

    Returns:
        The children that ended: process id to status.
    """
    ended: dict[int, int] = {}
    until_s = time.monotonic() + within_s
    while True:
        frozen: set[int] = set()
        while new := find() - frozen:
            for pid in new:
                send_signal(pid, signal.SIGSTOP)
            frozen |= new
        for pid in frozen:
            send_signal(pid, signal.SIGKILL)
        ended |= reap()
        if not frozen or time.monotonic() > until_s:
            return ended
        time.sleep(_ROUND_S)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send it, if the process is still there."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # it ended by itself, and the number may be another's already


def remove_folder(path: str) -> None:
    """Remove a folder in which strangers worked, however deep, locked or odd; nothing outside is touched.

    Folders are moved to the top before they are emptied, so that depth costs neither recursion nor
    descriptors, and what is left in the end is one level of empty folders. To be called when nothing runs in
    there any more.
    """
    unguessed = os.urandom(8).hex()  # a name that nobody in there took
    todo, moved = [path], 0
    while todo:
        folder = todo.pop()
        for entry in _entries(folder):
            try:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                place = entry.path
                if folder != path:
                    moved += 1
                    place = f"{path}/{unguessed}-{moved}"
                    os.chmod(entry.path, stat.S_IRWXU)  # only who may change a folder may move it
                    os.rename(entry.path, place)
                todo.append(place)
            except OSError:
                continue  # left where it is, and with it the folders above
    for place in (*(entry.path for entry in _entries(path)), path):
        try:
            os.rmdir(place)
        except OSError:
            return  # something resists; the folder is private, and stays as evidence


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        os.chmod(folder, stat.S_IRWXU)  # a real folder: links are never followed on the way here
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


_SETTLE_S = 0.05
_SPIN_S = 0.0002
_MOST_ROUNDS = 20
_STILL, _MOVING = b"TtZXx", b"RD"


@contextmanager
def freeze_tree(root: int, spared: Collection[int] = ()) -> Iterator[None]:
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


def find_background_processes(root: int, worker: int, spared: Collection[int] = ()) -> dict[int, str]:
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
            new = _direct_children(pid) - found
            found |= new
            todo += new.difference(spared)
    except FileNotFoundError:
        return below(root, table())
    return found


def _direct_children(pid: int) -> set[int]:
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
