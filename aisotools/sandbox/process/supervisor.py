"""The small process above a worker: it reaps, passes on signals, and ends the whole tree.

It is the subreaper of everything the worker starts, so an orphan is reparented to it instead of escaping. It
stays outside the confinement and never runs user code: the worker cannot signal it, and it can see and stop
everything below. Its control socket is a lifeline: when the host goes, however it goes, the tree ends.

Messages on the control socket (one JSON object per packet):

- from here: `started {worker, supervisor, scratch}`, `died {worker, exit, signal}`, `done {seq}`; in the end
  `ended {}` when no process is left, and `gone {}` when the scratch folder is removed too;
  `replaced {paths}`: of those that rules deny, each once until the next `mount`
- from the host: `interrupt {number, holds}` and `sweep {seq, call}`, both with `scope` (see
  `sandbox.process.ownership.StopScope`), where `holds` says whether the call is on the worker's main thread;
  `settle {call, scope}`: end what the sweep after that call has spared only until other calls name theirs;
  `task {key, pid}`: a child of the worker is the keeper of a background task, and `stop_program {pid, kill}`:
  signal all below one, both by the number inside the sandbox; `adopt {worker}`: another process is the worker
  now; `kill {}`; and with `seq`: `freeze {stopped}` or `end` all that runs below, `thaw` what was frozen, but
  for what was `stopped` before, or `drop` it, or `clear {root}`: end all below a reader's keeper (see
  `sandbox.worker.fork`), and it last; or `mount {unreadable, unwritable}`: mount what rules deny (see
  `sandbox.confinement.remounts`), whose `done` has a `refusal`. Those with `scope` or `seq` name the parked
  forks in `keep`

Threat: code of the sandbox ends, imitates or outlives what watches it, or survives its host.
Mechanism: it is outside of the confinement, so that signals cannot reach it, and above all that is started,
so that orphans come to it. It does only what the host asks by the control socket; what the worker sends goes
by another one, which it never reads.
Race: processes fork while a tree is ended or frozen. They are stopped first and looked for again until there
is no new one; the number of a process is not reused before it was reaped here.
Failure: when its socket ends, for whatever reason, it ends the tree. If it is killed itself, the fork server
does, and if that is gone, the janitor (see `aisotools.sandbox.process.janitor`).
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import math
import os
import select
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping, Set as AbstractSet
from typing import Any, NoReturn

from pydantic_core import from_json, to_json

from aisotools.core.exceptions import ChannelError
from aisotools.sandbox.confinement.remounts import RuleMounts, parse_denied
from aisotools.sandbox.process import killing, ownership, tree
from aisotools.sandbox.process.scratch import remove_folder

INTERRUPT_RECORD = struct.Struct("=Q")
"""Written to the worker's pipe before each SIGINT: the number of the call that is to be interrupted."""

NO_CALL = 0
"""In the place of that number where a signal is repeated. Calls are numbered from 1."""

INTERRUPT_REPEATS_S = (0.02, 0.04, 0.08, 0.16)
"""Pauses after which SIGINT is sent once more, as long as its record has not been read.

Race: Python notes a signal, and runs its handler between two instructions. A signal that arrives after the
last look and before a system call, such as that of `time.sleep`, is only noted, and the call sleeps on. The
next signal wakes it. The handler reads all records, so an unread one says that it has not run.
"""

_PACKET_BYTES = 1 << 16
_REST_S = 0.005  # between two rounds of mounts: a round takes about 2 ms of processor time
_PATHS_IN_REPORT = 8  # each has up to 4096 bytes
_END_TIMEOUT_S = 5.0  # for the whole tree; what the kernel still holds then is left to the janitor
_SWEEP_TIMEOUT_S = 1.0  # the host waits for it
_FREEZE_TIMEOUT_S = 0.2  # for all processes together, less than that
_LOOK_AGAIN_S = 0.0005  # a process that has ended is reaped within microseconds
# What the supervisor reports: the fields of each op, and their types.
_REPORTS: Mapping[str, Mapping[str, type]] = {
    "started": {"worker": int, "supervisor": int, "scratch": str},
    "done": {"seq": int},
    "died": {"exit": int, "signal": int},
    "ended": {},
    "gone": {},
    "replaced": {"paths": list},
}
# Process ids, exit statuses and numbers of requests are smaller.
_MAX_NUMBER = 1 << 53


class ChildWatcher:
    """Becomes readable when children of this process end; there can be one in a process."""

    def __init__(self) -> None:
        self._wake, self._writing = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._writing, False)
        # The handler does nothing, but one must exist: with the default action of SIGCHLD, which is to ignore
        # it, Python's C-level handler is not installed and nothing is written to the wakeup descriptor.
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        # Race: a child that ended before this line, such as a worker killed at its start, sends no signal any
        # more. So the first look is due at once.
        os.write(self._writing, b"\0")

    def fileno(self) -> int:
        """Return a descriptor that is readable after a child ended."""
        return self._wake

    def reap(self) -> dict[int, int]:
        """Reap what has ended. Return process id to wait status."""
        # Signals merge, and the pipe may be full, so its content says nothing about how many ended. Race:
        # drain first and reap then, or a child that ends in between would not wake us again.
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, _PACKET_BYTES)
        return tree.reap()

    def close(self) -> None:
        """Stop watching; a fork calls this before it watches children of its own."""
        # First: a signal that arrives between the two would write to a closed descriptor, or to the next file
        # that gets its number.
        signal.set_wakeup_fd(-1)
        os.close(self._wake)
        os.close(self._writing)


class Supervisor:
    """Watches over one worker."""

    def __init__(
        self,
        control: socket.socket,
        *,
        worker: int,
        interrupts: int,
        host: int,
        scratch: str,
        init: int = 0,
        mounts: RuleMounts | None = None,
    ) -> None:
        """Take over.

        Args:
            control: The socket to the host.
            worker: The worker's process id.
            interrupts: Write end of the worker's pipe for `INTERRUPT_RECORD`.
            host: The host's process id.
            scratch: The folder to remove in the end.
            init: Process 1 of the worker's own process namespace, which adopts orphans; 0 if it has none.
            mounts: What rules deny, as mounts in the worker's own mount namespace; None if it has none.
        """
        self._control = control
        self._worker = worker
        self._init = init
        self._mounts = mounts
        self._interrupts = interrupts
        self._scratch = scratch
        self._host = host
        self._children = ChildWatcher()
        self._frozen: set[int] = set()
        self._left_stopped: frozenset[int] = frozenset()
        self._tasks = ownership.TaskKeepers()
        self._expected: dict[int, dict[int, int]] = {}  # of each sweep: processes, and when they were started
        self._rests_until_s = 0.0  # until then no look at what was replaced; 0 if there may be one
        self._repeats: list[float] = []  # when to look whether the worker has noticed its last interrupt

    def serve(self) -> NoReturn:
        """Watch until the host is gone or asks for the end; then leave nothing behind, and exit."""
        # Signal: Ctrl-C and the end of a terminal are for the host, which decides. If this process ended by
        # one, nobody would be left to end the tree in order.
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        os.set_blocking(self._interrupts, False)
        self._send(
            {"op": "started", "worker": self._worker, "supervisor": os.getpid(), "scratch": self._scratch}
        )
        host = _open_pidfd(self._host)
        poll = select.poll()
        for watched in (self._control, self._children, host):
            if watched is not None:
                poll.register(watched, select.POLLIN)
        if self._mounts is not None and self._mounts.fileno() >= 0:
            poll.register(self._mounts, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(self._until_due_ms())}
            self._repeat_interrupt()
            if self._mounts is not None and self._mounts.fileno() in ready:
                self._follow_changes(self._mounts)
                # Hostile: the worker may change a link on the way over and over, and each round takes a fork.
                poll.unregister(self._mounts)
                self._rests_until_s = time.monotonic() + _REST_S
            elif self._mounts is not None and 0 < self._rests_until_s <= time.monotonic():
                poll.register(self._mounts, select.POLLIN)
                self._rests_until_s = 0.0
            if self._children.fileno() in ready:
                self._report_death(self._children.reap())
            if host in ready or (self._control.fileno() in ready and not self._handle_request()):
                self._finish()

    def _until_due_ms(self) -> int | None:
        """Return when to interrupt the worker once more, or to look at what was replaced; None if never."""
        due_s = [*self._repeats[:1], *([self._rests_until_s] if self._rests_until_s else [])]
        if not due_s:
            return None
        return max(0, math.ceil((min(due_s) - time.monotonic()) * 1000))

    def _repeat_interrupt(self) -> None:
        """Interrupt the worker once more if it is time, and it has not noticed; see `INTERRUPT_REPEATS_S`."""
        if not self._repeats or time.monotonic() < self._repeats[0]:
            return
        # Race: the signal may have come just before a system call of the worker, which then sleeps on.
        if unread_bytes(self._interrupts):
            del self._repeats[0]
            # Race: it may notice just now. This signal must have a record, or it counts as user code's own.
            with contextlib.suppress(BlockingIOError):
                os.write(self._interrupts, INTERRUPT_RECORD.pack(NO_CALL))
                tree.send_signal(self._worker, signal.SIGINT)
        else:
            self._repeats.clear()

    def _handle_request(self) -> bool:
        """Carry out one request. Return False if the tree is to end."""
        try:
            packet = self._control.recv(_PACKET_BYTES)
        except ConnectionResetError:
            return False
        if not packet:
            return False  # the host closed its end, or its process ended
        request = from_json(packet)
        op = request["op"]
        if op == "kill":
            return False
        if op == "interrupt":
            self._interrupt(request)
        elif op == "adopt":
            self._worker = request["worker"]
            self._repeats.clear()
        elif op == "task":
            self._tasks.add(request["key"], request["pid"], self._worker)
        elif op == "settle":
            self._settle(request)
        elif op == "stop_program":
            self._stop_program(request["pid"], kill=request["kill"])
        elif op == "mount":
            refusal = "it has no mounts of its own"
            if self._mounts is not None:
                self._follow_changes(self._mounts)  # the host has to know by the time this is done
                refusal = self._mounts.apply(parse_denied(request))
            self._send({"op": "done", "seq": request["seq"], "refusal": refusal})
        else:
            self._manage_tree(request)
            self._send({"op": "done", "seq": request["seq"]})
        return True

    def _follow_changes(self, mounts: RuleMounts) -> None:
        """Hide again what was replaced, and tell the host of it."""
        # What fails is tried again before the next call, which is refused then, with the reason.
        replaced = mounts.follow_changes()
        for first in range(0, len(replaced), _PATHS_IN_REPORT):
            self._send({"op": "replaced", "paths": replaced[first : first + _PATHS_IN_REPORT]})

    def _interrupt(self, request: Mapping[str, Any]) -> None:
        """Send SIGINT to the worker and, as a terminal does, to the programs that its call waits for."""
        try:
            # Race: the call may end, and the next one begin, before the signal arrives. So the number of the
            # call goes first; the worker ignores a SIGINT that finds another call running.
            os.write(self._interrupts, INTERRUPT_RECORD.pack(request["number"]))
        except BlockingIOError:
            return  # thousands unread: the worker does not handle interrupts at all, and the host will end it
        tree.send_signal(self._worker, signal.SIGINT)
        now_s = time.monotonic()
        self._repeats = [now_s + pause_s for pause_s in itertools.accumulate(INTERRUPT_REPEATS_S)]
        if request["holds"]:
            # Only the worker's own process group: a program that made a group of its own has left the
            # foreground, as `cmd &` does with job control, and a Ctrl-C would not reach it either.
            # Race: a program that is missing from the kernel's lists of children, because another one ends
            # at this moment, is not asked to end. The sweep after the call looks at all processes.
            processes = tree.table(tree.descendants(os.getpid()))
            for pid in self._sweepable(request, processes):
                if processes[pid].group == self._worker:
                    tree.send_signal(pid, signal.SIGINT)

    def _report_death(self, ended: Mapping[int, int]) -> None:
        """Tell the host if the worker is among the children that ended; the rest is for it to decide."""
        if (status := ended.get(self._worker)) is not None:
            self._send({"op": "died", "worker": self._worker, **_describe_status(status)})

    def _manage_tree(self, request: Mapping[str, Any]) -> None:
        """Kill, freeze or thaw processes below. Whatever it reaps may be the worker, and is reported."""
        op = request["op"]
        exempt = {*request["keep"], self._init}

        def running() -> set[int]:
            return _running_now(os.getpid(), exempt)

        if op == "sweep":
            self._sweep(request)
        elif op == "freeze":
            # Race: what is not stopped yet may fork. Scan until nobody new is found.
            while found := running() - self._frozen:
                for pid in found:
                    tree.send_signal(pid, signal.SIGSTOP)
                self._frozen |= found
            # Race: the host stops and continues all that it finds running, which nothing of this may be.
            tree.await_stop(self._frozen, time.monotonic() + _FREEZE_TIMEOUT_S)
            self._left_stopped = frozenset(request["stopped"])
        elif op == "drop":
            frozen, self._frozen = self._frozen, set()
            self._kill(lambda: running() & frozen)
        elif op == "end":
            self._kill(lambda: running() - self._frozen)
        elif op == "clear":
            self._clear(request["root"])
        elif op == "thaw":
            frozen, self._frozen = self._frozen, set()
            # Only what is still below us: a number whose process has ended may be somebody else's by now.
            for pid in frozen & running() - self._left_stopped:
                tree.send_signal(pid, signal.SIGCONT)

    def _stop_program(self, keeper: int, *, kill: bool) -> None:
        """Signal all below the keeper of a task; it ends by itself when nothing is left there."""
        if kill:
            watch = killing.OrphanWatch(self._tasks.numbered(keeper, tree.table()))
            self._kill(lambda: self._tasks.below(keeper), watch)
        else:
            for pid in self._tasks.below(keeper):
                tree.send_signal(pid, signal.SIGTERM)

    def _kill(self, find: Callable[[], set[int]], watch: killing.OrphanWatch | None = None) -> None:
        self._report_death(killing.kill_all(find, within_s=_SWEEP_TIMEOUT_S, watch=watch))

    def _sweep(self, request: Mapping[str, Any]) -> None:
        scope = ownership.StopScope.parse(request["scope"])
        programs, _ = ownership.named_programs(tree.table(), self._worker, scope)
        exempt = {*request["keep"], self._init, self._worker, *self._frozen}
        expected: dict[int, int] = {}

        def is_spared(pid: int, process: tree.Process) -> bool:
            return pid in exempt or process.session in programs or process.session in expected

        def find() -> set[int]:
            processes = tree.table()
            expected.clear()
            for pid in ownership.find_expected(
                processes,
                worker=self._worker,
                scope=scope,
                keepers=self._tasks.pids(processes, but=scope.own_task),
                exempt={*request["keep"], self._init},
            ):
                expected[pid] = processes[pid].start_ticks
            return self._sweepable(request, processes)

        watch = killing.OrphanWatch([pid for pid in (os.getpid(), self._init) if pid], is_spared)
        self._kill(find, watch)
        if expected:
            self._expected.setdefault(request["call"], {}).update(expected)

    def _settle(self, request: Mapping[str, Any]) -> None:
        """End what a sweep has spared for calls that have named other programs since, or are over."""
        expected = self._expected.pop(request["call"], {})
        scope = ownership.StopScope.parse(request["scope"])

        def find() -> set[int]:
            processes = tree.table()
            named, _ = ownership.named_programs(processes, self._worker, scope)
            spared = named | self._tasks.pids(processes)
            # Race: the number of one that has ended may be another's, which was started later.
            nobodys = {
                pid
                for pid, ticks in expected.items()
                if pid in processes and processes[pid].start_ticks == ticks and pid not in spared
            }
            below = tree.below(os.getpid(), processes)
            return (
                nobodys
                | tree.below_all(nobodys, processes)
                | {pid for pid in below if processes[pid].session in nobodys}
            )

        if expected:
            self._kill(find)

    def _clear(self, keeper: int) -> None:
        """Kill everything below a keeper, then the keeper."""
        # Stale request: it may have ended with the tree around it, and its number be anybody's. Race: the
        # snapshot above it is about to end and to leave it to us, which a walk up follows and a list misses.
        if not tree.is_below(keeper, os.getpid()):
            return
        # Order: it adopts what loses its parent here, so nothing gets away while it is there.
        self._kill(lambda: _running_below(keeper))
        # The host forgets the keeper next: what is there then is taken for something that a call has left.
        self._kill(lambda: {keeper} if tree.is_below(keeper, os.getpid()) else set())

    def _sweepable(self, request: Mapping[str, Any], processes: tree.Table) -> set[int]:
        """Return what a request is to end or to interrupt."""
        scope = ownership.StopScope.parse(request["scope"])
        found = ownership.find_sweepable(
            processes,
            os.getpid(),
            worker=self._worker,
            init=self._init,
            scope=scope,
            keepers=self._tasks.pids(processes, but=scope.own_task),
            exempt=frozenset(request["keep"]),
        )
        return found - self._frozen

    def _finish(self) -> NoReturn:
        """Kill everything below, remove the scratch folder, report both, and exit."""
        me = os.getpid()
        watch = killing.OrphanWatch([pid for pid in (me, self._init) if pid])
        # The kernel's lists of children cost in proportion to the tree, a table to all of the machine. So the
        # lists say whom to kill while they name anybody. Race: a list misses what moves to another parent
        # while it is read. That nobody is left is for the table to say, and for it alone.
        killing.kill_all(
            lambda: _running_now(me) or tree.below(me, tree.table()), within_s=_END_TIMEOUT_S, watch=watch
        )
        # Two messages: the host may start the next worker when no process is left, and removing a large
        # folder can take seconds.
        self._send({"op": "ended"})
        remove_folder(self._scratch)
        self._send({"op": "gone"})
        os._exit(0)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(to_json(message))
        except (BrokenPipeError, ConnectionResetError):
            return  # the host is gone: there is nobody to tell, and the tree is about to end


def _running_now(root: int, exempt: AbstractSet[int] = frozenset()) -> set[int]:
    """Return what the kernel lists below a process and has not ended, but for what is exempt."""
    # A zombie is still in its parent's list of children; `parent_of` is 0 for it.
    return {pid for pid in tree.descendants(root) - exempt if tree.parent_of(pid)}


def _running_below(
    keeper: int,
    descendants: Callable[[int], set[int]] = tree.descendants,
    parent_of: Callable[[int], int] = tree.parent_of,
) -> set[int]:
    """Return what runs below a keeper; empty only if nothing is left there, or it takes too long to go."""
    ends_s = time.monotonic() + _SWEEP_TIMEOUT_S
    while True:
        found = descendants(keeper)
        running = {pid for pid in found if parent_of(pid)}
        # Race: a process may end after its parent's list was read and before its own is, and its children
        # move up to where nobody looks again. So an entry that has ended means another look. Zombies that
        # nobody else reaps do not stay: the keeper has the kernel reap its children.
        if running or not found or time.monotonic() > ends_s:
            return running
        time.sleep(_LOOK_AGAIN_S)


def unread_bytes(descriptor: int) -> int:
    """Return how many bytes wait in a pipe, of which either end will do; 0 if it is none."""
    count = bytearray(4)
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return 0
    return int.from_bytes(count, sys.byteorder)


def _open_pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable when the process has ended; None where the kernel has none.

    The control socket alone does not show the end of the host: a fork of the host holds a copy of it.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        # Race: the host ended before this process began to watch. A descriptor that is always readable.
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return None


def _describe_status(status: int) -> dict[str, int]:
    if os.WIFSIGNALED(status):
        return {"exit": -1, "signal": os.WTERMSIG(status)}
    return {"exit": os.WEXITSTATUS(status), "signal": 0}


def parse_report(packet: bytes) -> dict[str, Any]:
    """Return a report of the supervisor whose fields have the right types. An unknown op has none.

    Raises:
        ChannelError: If it is malformed.
    """
    try:
        message: object = from_json(packet, allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        raise ChannelError(f"a report is not JSON: {str(error)[:200]}") from None
    if not isinstance(message, dict) or not isinstance(op := message.get("op"), str):
        raise ChannelError("a report is not an object with an 'op'")
    for name, kind in _REPORTS.get(op, {}).items():
        value = message.get(name)
        is_in_range = not isinstance(value, int) or -_MAX_NUMBER <= value <= _MAX_NUMBER
        if type(value) is not kind or not is_in_range:
            raise ChannelError(f"a report {op!r} whose {name!r} is not a valid {kind.__name__}")
        if isinstance(value, list) and not all(isinstance(one, str) for one in value):
            raise ChannelError(f"a report {op!r} whose {name!r} holds something else than texts")
    return message
