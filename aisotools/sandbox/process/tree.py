"""Process trees: list what runs below a process, and freeze it.

Everything is read from /proc. Processes come and go while it is read, so every function here treats a process
that has vanished as the normal case.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import os
import re
import signal
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

unreaped: set[int] = set()
"""Children of this process whose exit status nobody will ever know, since something else has taken it."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# PIDFD_GET_INFO of the kernel's include/uapi/linux/pidfd.h: an _IOWR of `struct pidfd_info`, whose first
# member says what is asked for and known, and whose last one, in the first version, is the exit status.
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_BYTES = 64
_PIDFD_INFO_EXIT = 8
_PIDFD_EXIT_OFFSET = 60

# Steps from a process up to its root, and how often the way is tried again when it changes under us.
_MAX_STEPS = 64
_MAX_WALKS = 8

_FREEZE_TIMEOUT_S = 0.05  # for all processes together; one that waits for a disk may take seconds to stop
_FREEZE_POLL_S = 0.0002  # spin this long before sleeping: most signals arrive within microseconds
_FREEZE_ROUNDS = 20  # a fork bomb is stopped in about three; the rest is a bound
_STOPPED = ord("T")
_HELD = frozenset(b"Tt")  # thread states: stopped, traced
_ENDED = b"ZXx"  # zombie, dead
_NOT_RUNNING = _HELD | frozenset(_ENDED)
_WAITING = frozenset(b"D")  # in an uninterruptible sleep
# Signals for the process as a whole that it has not taken yet; see proc(5).
_find_pending = re.compile(rb"^ShdPnd:\t([0-9a-f]+)$", re.MULTILINE).search
_ON_CPU_OR_DISK = frozenset(b"RD")  # running, or in an uninterruptible sleep
_EXITING = 0x4  # PF_EXITING of the kernel's include/linux/sched.h


class Process(NamedTuple):
    """One line of the process table.

    Attributes:
        parent: Its parent's id.
        group: Its process group.
        session: Its session. A process can leave the one it was started in, and never join another.
        start_ticks: When it was started, in clock ticks since the machine was.
    """

    parent: int
    group: int = 0
    session: int = 0
    start_ticks: int = 0


Table = Mapping[int, Process]
"""Processes by id."""


# ---------------------------------------------------------------- the process table


def table(pids: Iterable[int] | None = None) -> dict[int, Process]:
    """Return every visible process that is not dead; of `pids` only, if they are given."""
    found = {}
    for name in os.listdir("/proc") if pids is None else map(str, pids):
        if name.isdigit() and (process := _read_process(name)) is not None:
            found[int(name)] = process
    return found


def _read_at_once(path: str) -> bytes:
    # Three system calls where a file object takes nine: a table reads every process of the machine. One read
    # gets all of it, since the kernel writes the line at once, of some 300 bytes and never 4096.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def _read_process(pid: str) -> Process | None:
    try:
        line = _read_at_once(f"/proc/{pid}/stat")
    except OSError:
        return None  # it ended meanwhile
    # The program chooses its name in brackets, which may hold brackets, spaces and line breaks.
    fields = line.rpartition(b")")[2].split()
    try:
        # A process whose first thread called pthread_exit is shown as a zombie while its other threads still
        # run.
        if fields[0] in b"ZX" and int(fields[17]) <= 1:
            return None
        return Process(int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))
    except (IndexError, ValueError):
        return None  # it ended while it was read


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if the process is gone."""
    process = _read_process(str(pid))
    return process.parent if process is not None else 0


def exists(pid: int) -> bool:
    """Return whether there is a process with this id, zombies included."""
    # Signal 0 is sent to nobody. EPERM: it is there, and belongs to another user.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def exit_status(pid: int, pidfd: int | None = None) -> tuple[int, int]:
    """Return the exit status (or -1) and the signal (or 0) of a process that has ended.

    It need not be our own child. (-1, 0): not known, as somebody else has reaped it.

    Args:
        pid: The process; read while it is a zombie.
        pidfd: A pidfd of it. Kernels since 6.15 tell by it how the process ended after it was reaped, too.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        fields = []
    # Race: somebody reaped it, and the number means another process by now.
    if fields and fields[0] in (b"Z", b"X"):
        status = int(fields[49])
    else:
        status = -1 if pidfd is None else _reaped_status(pidfd)
    if status < 0:
        return -1, 0
    if os.WIFSIGNALED(status):
        return -1, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), 0


def _reaped_status(pidfd: int) -> int:
    info = bytearray(_PIDFD_INFO_BYTES)
    struct.pack_into("Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return -1  # an older kernel, or the process has not ended
    known, status = struct.unpack_from("Q", info)[0], struct.unpack_from("i", info, _PIDFD_EXIT_OFFSET)[0]
    return status if known & _PIDFD_INFO_EXIT else -1


# ---------------------------------------------------------------- what is below a process


def below(root: int, processes: Table) -> set[int]:
    """Return all descendants of `root` in a process table."""
    return below_all([root], processes)


def below_all(roots: Iterable[int], processes: Table) -> set[int]:
    """Return all descendants of several processes in a process table."""
    children = children_by_parent(processes)
    found: set[int] = set()
    todo = [*roots]
    while todo:
        # Subtracting what is known also ends on a ring: the table is not a snapshot, so a process that was
        # adopted and a process id that was reused between two reads can make one.
        new = set(children.get(todo.pop(), ())) - found
        found |= new
        todo += new
    return found


def is_below(pid: int, root: int, parent_of: Callable[[int], int] = parent_of) -> bool:
    """Return whether a process is `root` or one of its descendants, by what the kernel says."""
    for _ in range(_MAX_WALKS):
        current = pid
        for _ in range(_MAX_STEPS):
            if current == root:
                return True
            parent = parent_of(current)
            if parent <= 1:
                break
            current = parent
        else:
            return False
        # Race: a process on the way may end while we walk up, and its children get another parent. If the way
        # broke off in its middle (no parent any more), walk again from the start. It is settled if it ended
        # at init, or if `pid` itself is gone.
        if parent == 1 or current == pid:
            return False
    return False


def children_by_parent(processes: Table) -> dict[int, list[int]]:
    """Return the children of each process in a process table that has any."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    return children


class TooManyProcesses(Exception):
    """Raised instead of looking at more processes and threads than was allowed."""


def descendants(
    root: int, exempt: Collection[int] = (), *, worker: int = 0, max_threads: float = math.inf
) -> set[int]:
    """Return all processes below `root`, read from the kernel's lists of children where it keeps them.

    That costs in proportion to the tree, and not to all processes of the machine.

    Args:
        root: The process above all; nothing is below 0.
        exempt: Processes whose own descendants need not be found. There are many, and each costs a read.
        worker: A process that is found with what is below it, also below an exempt one; 0 for none.
        max_threads: How many threads the processes may have that are looked at. Each of them costs a read.

    Raises:
        TooManyProcesses: If they have more.
    """
    found: set[int] = set()
    todo = [root] if root else []
    try:
        while todo or (worker and worker not in found and is_below(worker, root)):
            # After an undo, the worker is the child of a snapshot.
            pid = todo.pop() if todo else worker
            if pid == worker:
                found.add(pid)
            threads = _threads_of(pid)
            max_threads -= len(threads)
            if max_threads < 0:
                raise TooManyProcesses
            new = children_of(pid, threads) - found
            found |= new
            todo += new.difference(exempt)
    except FileNotFoundError:
        # A kernel without CONFIG_PROC_CHILDREN.
        return below(root, table())
    return found


def count_threads(pid: int) -> int:
    """Return the number of threads of a process, without reading a list of them; 0 if it is gone."""
    try:
        return os.stat(f"/proc/{pid}/task").st_nlink - 2
    except OSError:
        return 0


def _threads_of(pid: int) -> list[str]:
    """Return the ids of a process's threads; empty for one that is gone."""
    # Most processes have one thread, which has the id of the process: to count it takes a fifth of the time.
    if count_threads(pid) == 1:
        return [str(pid)]
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def children_of(pid: int, threads: Iterable[str]) -> set[int]:
    """Return the children that these threads of a process have started.

    Raises:
        FileNotFoundError: If this kernel keeps no such lists.
    """
    found: set[int] = set()
    for thread in threads:
        try:
            descriptor = os.open(f"/proc/{pid}/task/{thread}/children", os.O_RDONLY)
        except FileNotFoundError:
            # Either the thread ended between the two reads, or this kernel has no such file at all.
            if os.path.exists(f"/proc/{pid}/task/{thread}"):
                raise
            continue
        except OSError:
            continue
        try:
            text = b""
            while part := os.read(descriptor, 1 << 16):
                text += part
            found.update(map(int, text.split()))
        except ProcessLookupError:
            continue
        finally:
            os.close(descriptor)
    return found


def find_background_processes(
    root: int,
    worker: int,
    exempt: Collection[int] = (),
    undone: frozenset[int] = frozenset(),
    frozen: Collection[int] = (),
) -> dict[int, str]:
    """Return what is below `root` beside the worker and has not ended: process id to name.

    The name is chosen by the program; do not trust it. Stopped processes are among them: whatever continues
    one, it then goes on with what it was doing. Those that have ended since they were listed are in it, too:
    who forks and ends on and on is never there when it is looked at.

    Args:
        root: The process above all; 0 for none.
        worker: The worker. It and what stands between it and `root` are left out.
        exempt: Further processes to leave out.
        undone: Former workers, which should be stopped. One that is not counts, also above the worker.
        frozen: Processes that the caller has stopped just now.
    """
    if not root:
        return {}
    chain, top = {worker}, worker
    # Race: where a child ends while the kernel's list of them is read, the one behind it may be left out of
    # that reading. So they are read several times; a table of all processes takes longer, and has holes, too.
    listed = descendants(root) | descendants(root) | descendants(root)
    while top in listed and top != root and (top := parent_of(top)) not in chain:
        chain.add(top)
    continued = undone - {*filter(is_stopped, undone.difference(frozen))}
    candidates = sorted(listed.difference(chain, undone, exempt) | listed & continued)
    return {pid: _name(pid) for pid in candidates if not (_is_zombie(pid) or is_namespace_init(pid))}


def _is_zombie(pid: int) -> bool:
    """Return whether a process is listed and has ended. One that is gone may have left another."""
    states = _thread_states(pid)
    return bool(states) and not states.strip(_ENDED)


def number_inside(pid: int) -> int:
    """Return the number of a process in its own process namespace; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                # The program chooses its name, in which the kernel escapes line breaks.
                if line.startswith(b"NSpid:"):
                    return int(line.split()[-1])
    except (OSError, ValueError):
        return 0  # it ended meanwhile
    return pid  # a kernel without process namespaces


def is_namespace_init(pid: int) -> bool:
    """Return whether it is process 1 of the sandbox's own process namespace, which only waits."""
    return pid != 1 and number_inside(pid) == 1


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "a process"


# ---------------------------------------------------------------- parents and children


def become_subreaper() -> None:
    """Adopt every orphan below this process, so that nothing can leave the tree by a double fork.

    Raises:
        OSError: The kernel refused, or the system has no such thing.
    """
    # A double fork makes a process a child of the nearest subreaper above, by default process 1 of the host,
    # where no walk from here finds it. Forks do not inherit the flag, so each supervisor sets its own.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends.

    Raises:
        OSError: The kernel refused, or the system has no such thing.
    """
    # Race: it does not fire if the parent has ended before this line. The caller must have another way to
    # end.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, argument: int) -> None:
    # All five arguments: for some options the kernel refuses the call if the unused ones are not 0, and on
    # some machines what is left out is whatever stood in the register.
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "prctl"):
        raise OSError(errno.ENOSYS, "prctl: this system has no such call")
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def reap() -> dict[int, int]:
    """Reap the children that have ended. Return process id to wait status."""
    # One SIGCHLD may stand for several children that ended together, so until none is left.
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


# ---------------------------------------------------------------- killing


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, if it still exists and is ours."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        # Race: it ended after it was found. With EPERM its number already belongs to somebody else.
        return


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to the processes of a group that still exist and are ours."""
    # Race: the group has ended, or what is left of it runs as another user, whom we may not signal.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


# ---------------------------------------------------------------- freezing


class TreeFreezer:
    """Stops what runs below a process for any number of holders at once, and continues it after the last one.

    Race: one holder stops a process, which is still on its way to that when the next one finds it. Nobody can
    see that it was signalled. Taken for one that runs, it would be continued while the first holder goes on.
    So whoever stops anything below the same process does that with the same object.
    """

    def __init__(self) -> None:
        """Start with nothing stopped."""
        self._lock = threading.Lock()
        self._holders = Counter[int]()
        self._stopped: dict[int, set[int]] = {}
        self._leaving = deque[int]()

    def __repr__(self) -> str:
        return f"<TreeFreezer: {self._holders.total()} holders>"

    def frozen(self, root: int) -> frozenset[int]:
        """Return what is stopped below `root` as long as anybody holds it."""
        return frozenset(self._stopped.get(root, ()))

    @contextmanager
    def freeze(
        self,
        root: int,
        exempt: Collection[int] = (),
        *,
        worker: int = 0,
        within_s: float = _FREEZE_TIMEOUT_S,
        max_threads: float = math.inf,
        max_running: float = math.inf,
    ) -> Iterator[set[int]]:
        """Stop everything below `root` inside the `with` block, and continue it afterwards.

        `root` itself runs on, and what was stopped before stays stopped afterwards. Bounded in time: what
        cannot be stopped soon, such as a process that waits for a disk, runs on.

        The context is the set of processes that will be continued. What is taken out of it stays stopped.

        Args:
            root: The process above all; 0 for none.
            exempt: Processes that do nothing anyway. What is below them is not looked for, either.
            worker: A process that is stopped with what is below it, also below an exempt one; 0 for none.
            within_s: How long to wait until all have stopped.
            max_threads: How many threads the processes may have together. Each costs several system calls.
            max_running: How many of them may run, or wait for a disk or a child, when they are found: each
                has to be scheduled once more before it stops. If this is finite, all must have stopped in
                time, and nothing is waited for that another holder does.

        Raises:
            TooManyProcesses: If there are more below `root`, or one does not stop in time and has to. What
                no other holder needs stopped runs on.
        """
        if not root:
            yield set()
            return
        is_quick = max_running < math.inf
        if not self._lock.acquire(blocking=not is_quick):
            raise TooManyProcesses
        try:
            self._holders[root] += 1
            stopped = self._stopped.setdefault(root, set())
            try:
                # Filled in place, before each signal is sent: an error on the way leaves nothing stopped.
                ends_s = time.monotonic() + within_s
                have_stopped = _stop_descendants(
                    root, stopped, exempt, max_threads, max_running, worker=worker, ends_s=ends_s
                )
                if is_quick and not have_stopped:
                    raise TooManyProcesses
            except BaseException:
                self._leaving.append(root)
                raise
        finally:
            self._lock.release()
            self._let_go()
        try:
            yield stopped
        finally:
            self._leaving.append(root)
            self._let_go()

    def _let_go(self) -> None:
        """Take those who leave off the holders, unless somebody has the lock, who does that afterwards."""
        # An event loop waits here for nobody: a thread that has the lock may look at hundreds of processes.
        while self._leaving and self._lock.acquire(blocking=False):
            try:
                while self._leaving:
                    root = self._leaving.popleft()
                    self._holders[root] -= 1
                    if not self._holders[root]:
                        del self._holders[root]
                        for pid in self._stopped.pop(root):
                            send_signal(pid, signal.SIGCONT)
            finally:
                self._lock.release()


def _stop_descendants(
    root: int,
    stopped: set[int],
    exempt: Collection[int],
    max_threads: float,
    max_running: float,
    *,
    worker: int,
    ends_s: float,
) -> bool:
    """Stop everything below `root` that may run, and add it to `stopped`. Return whether all has stopped."""
    # Another holder may have given up waiting for some of these.
    have_stopped = await_stop([pid for pid in stopped if set(_thread_states(pid)) & _ON_CPU_OR_DISK], ends_s)
    visited = {*exempt, *stopped}
    # Race: processes fork while they are being found. Each round finds what was started during the last one.
    # One that has ended since it was found, or was told to stop, may have left another one.
    signalled: set[int] = set()
    for _ in range(_FREEZE_ROUNDS):
        found = descendants(root, exempt, worker=worker, max_threads=max_threads) - visited
        # Not by us, so it is not ours to continue. A stop is for all threads: the others are on their way.
        states_of = {pid: _thread_states(pid) for pid in found}
        new = {pid: states for pid, states in states_of.items() if not _is_being_stopped(states)}
        ended = set(filter(has_ended, signalled))
        signalled -= ended
        if not (new or ended) and all(states_of.values()):
            break
        visited |= new.keys()
        # Before any of them is stopped: each signal is an occasion for the kernel to let another process run.
        if len(new) > max_running and sum(map(_count_running, new.values())) > max_running:
            raise TooManyProcesses
        moving: list[int] = []
        for pid, states in new.items():
            max_running -= _count_running(states)
            if max_running < 0:
                raise TooManyProcesses
            if set(states) & _ON_CPU_OR_DISK and _is_about_to_stop(pid):
                moving.append(pid)
                continue
            stopped.add(pid)
            # SIGSTOP returns before the target has stopped. A single thread that sleeps handles it before its
            # next instruction, however late it is scheduled. One that runs may still write something, and so
            # may any of several: the kernel wakes one of them alone, which stops the others.
            if len(states) > 1 or set(states) & _ON_CPU_OR_DISK:
                moving.append(pid)
            send_signal(pid, signal.SIGSTOP)
            signalled.add(pid)
        # Before the next round: what runs may still be about to continue another one.
        have_stopped &= await_stop(moving, ends_s)
    return have_stopped


def _is_about_to_stop(pid: int) -> bool:
    """Return whether somebody else has sent SIGSTOP to a process that was not stopped yet.

    Race: a process takes a signal when it is scheduled, or when its child has become another program. Until
    then it looks like one that runs, and continuing it would cancel the signal.
    """
    try:
        found = _find_pending(_read_at_once(f"/proc/{pid}/status"))
    except OSError:
        return False
    if found is not None and int(found[1], 16) & 1 << (signal.SIGSTOP - 1):
        return True
    # The kernel removes a pending signal and stops the process in one step. So a signal that is no longer
    # pending has stopped it by now.
    return _is_being_stopped(_thread_states(pid))


def _is_being_stopped(states: bytes) -> bool:
    return _STOPPED in states or set(states) <= _NOT_RUNNING


def await_stop(moving: Iterable[int], ends_s: float) -> bool:
    """Wait until these processes, which were told to stop, have; until `ends_s` by `time.monotonic`.

    Race: one that still ran may have continued another one. So that is told again. Return False if one had
    not stopped by then.
    """
    began_s = time.monotonic()
    for pid in moving:
        while not set(_thread_states(pid)) <= _NOT_RUNNING:  # nothing is left of one that is gone
            now_s = time.monotonic()
            if now_s >= ends_s:
                return False
            if now_s - began_s > _FREEZE_POLL_S:
                time.sleep(_FREEZE_POLL_S)
                send_signal(pid, signal.SIGSTOP)
    return True


def _count_running(letters: bytes) -> int:
    return sum(map(_ON_CPU_OR_DISK.__contains__, letters))


def may_run(pid: int) -> bool:
    """Return whether a process that was told to stop may still run; one that waits for a disk may not."""
    return not set(_thread_states(pid)) <= _NOT_RUNNING | _WAITING


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by a signal or a debugger, until something continues it."""
    states = set(_thread_states(pid))
    return bool(states & _HELD) and states <= _NOT_RUNNING


def waiting_since(pid: int) -> int | None:
    """Return the processor time of a process in clock ticks, if all its threads wait; None if one runs.

    One that waits for a disk, was stopped or is gone does not count as waiting.
    """
    stats = _thread_stats(pid)
    if not stats or any(fields[0] != b"S" for fields in stats):
        return None
    return sum(int(fields[11]) + int(fields[12]) for fields in stats)  # see proc(5): utime and stime


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or is only there until its parent asks for its end."""
    return all(fields[0] in _ENDED for fields in _thread_stats(pid))


def is_ending(pid: int) -> bool:
    """Return whether a process has been killed, so that it will run no more of its program; see `_is_ending`.

    Race: for an instant a thread has taken the signal and is not marked as ending yet. It counts as running.
    """
    stats = _thread_stats(pid)
    return bool(stats) and all(map(_is_ending, stats))


def _is_ending(fields: Sequence[bytes]) -> bool:
    """Return whether a thread ends by what the kernel says of it; the fields are those after its name."""
    # See proc(5): the thread's flags are field 9, with PF_EXITING in them, and the signals that are pending
    # for it field 31. A SIGKILL is pending for each thread of the process until that thread takes it.
    flags, pending = int(fields[6]), int(fields[28])
    return fields[0] in _ENDED or bool(flags & _EXITING or pending & 1 << (signal.SIGKILL - 1))


def _thread_states(pid: int) -> bytes:
    """Return the state letters of a process's threads; empty for one that is gone."""
    return b"".join(fields[0] for fields in _thread_stats(pid))


def _thread_stats(pid: int) -> list[list[bytes]]:
    """Return what the kernel says of a process's threads after their names; empty for one that is gone."""
    stats = []
    for thread in _threads_of(pid):
        # Race: the thread may end before its file is opened, or before it is read, which is then empty.
        with suppress(OSError):
            if fields := _read_at_once(f"/proc/{pid}/task/{thread}/stat").rpartition(b")")[2].split():
                stats.append(fields)
    return stats
