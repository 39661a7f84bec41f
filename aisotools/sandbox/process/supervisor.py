"""The tiny process above a worker: reaps, signals, and ends the whole tree. It never runs user code.

It is the subreaper of everything the worker starts, so an orphan comes back to it instead of escaping. It
stays outside the confinement: the worker cannot signal it, and it can see and stop all below it. Its control
socket is a lifeline: when the host goes, however it goes, the tree ends.

Messages on the control socket (one JSON object per packet):

- from here: `started {worker, supervisor, scratch}`, `died {worker, exit, signal}`, `done {seq}`; in the end
  `ended {}` when no process is left, and `gone {}` when the scratch folder is removed too
- from the host: `interrupt {number, ...}` and `sweep {seq, ...}`, both with `since`, `mark`, `others` and
  `holds` (see `processes.left_behind`); `adopt {worker}`: another process is the worker now; `kill {}`;
  and with `seq`: `freeze` or `end` all that runs below, `thaw` what was frozen, or `drop` it. All but
  `adopt` and `kill` tell in `keep` which processes are the parked forks

The process above a fork server: what nobody else is left to end comes here, and is ended.

A supervisor ends what is below it, and the fork server what a killed supervisor leaves behind. Should both be
killed at once, with the host, only an ancestor that is a subreaper still gets hold of what had run below
them: this one. It is forked before anything is imported, does nothing but wait, and goes when the fork server
and all that it has started are gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import select
import signal
import socket
import struct
from collections.abc import Mapping
from typing import Any, NoReturn

from pydantic_core import from_json, to_json

from aisotools.sandbox.process import tree
from aisotools.sandbox.process.tree import descendants

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PACKET_BYTES = 1 << 16
_END_S = 5.0
_SWEEP_S = 1.0

CALL_MARK = tree.CALL_MARK
"""Environment variable that tells which call started a process."""

INTERRUPT_RECORD = struct.Struct("=Q")
"""What the worker finds in its pipe after a SIGINT: the number of the call that is meant."""


def become_subreaper() -> None:
    """Adopt every orphan below this process.

    Raises:
        OSError: If the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Be killed when the process above is gone: its work could not be done any more.

    Raises:
        OSError: If the kernel refuses.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


class Children:
    """Tells when children of this process end; something to poll."""

    def __init__(self) -> None:
        """Listen from now on."""
        self._wake, writing = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(writing, False)
        # A handler must exist for the wakeup descriptor to be written.
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        self._writing = writing

    def fileno(self) -> int:
        """Readable after a child ended."""
        return self._wake

    def ended(self) -> dict[int, int]:
        """Reap what ended: process id to status."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, _PACKET_BYTES)  # one look at the children is enough, however many ended
        return tree.reap()

    def close(self) -> None:
        """Listen no more; for a fork that has children of its own."""
        signal.set_wakeup_fd(-1)
        os.close(self._wake)
        os.close(self._writing)


class Supervisor:
    """Watches over one worker."""

    def __init__(
        self, control: socket.socket, *, worker: int, nudges: int, host: int, scratch: str, init: int = 0
    ) -> None:
        """Take over.

        Args:
            control: The socket to the host.
            worker: The worker's process id.
            nudges: Write end of the worker's pipe for interrupts.
            host: The host's process id.
            scratch: The folder to remove in the end.
            init: Process 1 of the worker's own namespace, where orphans go; 0 if it has none.
        """
        self._control = control
        self._worker = worker
        self._init = init
        self._nudges = nudges
        self._scratch = scratch
        self._host = host
        self._children = Children()
        self._frozen: set[int] = set()

    def serve(self) -> NoReturn:
        """Watch until the worker, or the host, is gone; then leave nothing behind."""
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        os.set_blocking(self._nudges, False)
        told = {"worker": self._worker, "supervisor": os.getpid(), "scratch": self._scratch}
        self._send({"op": "started", **told})
        host = _watch(self._host)
        poll = select.poll()
        for watched in (self._control, self._children, host):
            if watched is not None:
                poll.register(watched, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._children.fileno() in ready:
                self._note(self._children.ended())
            if host in ready or (self._control.fileno() in ready and not self._obey()):
                self._finish()

    def _obey(self) -> bool:
        """Carry out one request; False when the tree should end."""
        try:
            packet = self._control.recv(_PACKET_BYTES)
        except ConnectionResetError:
            return False
        if not packet:
            return False
        request = from_json(packet)
        if request["op"] == "interrupt":
            self._interrupt(request)
        elif request["op"] == "adopt":
            self._worker = request["worker"]
        elif request["op"] != "kill":
            self._tidy(request)
            self._send({"op": "done", "seq": request["seq"]})
        return bool(request["op"] != "kill")

    def _interrupt(self, request: Mapping[str, Any]) -> None:
        """SIGINT to the worker, and, as a terminal does, to the programs that the call waits for."""
        try:
            os.write(self._nudges, INTERRUPT_RECORD.pack(request["number"]))
        except BlockingIOError:
            return  # it does not read its interrupts at all: the host will end it
        tree.send_signal(self._worker, signal.SIGINT)
        if request["holds"]:
            table = tree.table()
            for pid in self._started_by(request, table):
                if table[pid].group == self._worker:
                    tree.send_signal(pid, signal.SIGINT)

    def _note(self, ended: Mapping[int, int]) -> None:
        """Children that ended: the host hears of the worker, and decides what becomes of the rest."""
        if (status := ended.get(self._worker)) is not None:
            self._send({"op": "died", "worker": self._worker, **_told(status)})

    def _tidy(self, request: Mapping[str, Any]) -> None:
        """End, freeze or thaw what the host no longer wants running."""
        op, kept = request["op"], {*request["keep"], self._init}

        def below() -> set[int]:
            return {pid for pid in descendants(os.getpid()) - kept if tree.parent_of(pid)}

        if op == "sweep":
            self._note(tree.kill_all(lambda: self._started_by(request, tree.table()), within_s=_SWEEP_S))
        elif op == "freeze":
            while found := below() - self._frozen:
                for pid in found:
                    tree.send_signal(pid, signal.SIGSTOP)
                self._frozen |= found
        elif op == "drop":
            frozen, self._frozen = self._frozen, set()
            self._note(tree.kill_all(lambda: below() & frozen, within_s=_SWEEP_S))
        elif op == "end":
            self._note(tree.kill_all(lambda: below() - self._frozen, within_s=_SWEEP_S))
        elif op == "thaw":
            frozen, self._frozen = self._frozen, set()
            for pid in frozen & below():
                tree.send_signal(pid, signal.SIGCONT)

    def _started_by(self, request: Mapping[str, Any], table: tree.Table) -> set[int]:
        """What the call that a request is about has started."""
        return {
            *tree.find_call_processes(
                table,
                os.getpid(),
                worker=self._worker,
                init=self._init,
                since=tuple(request["since"]),
                mark=request["mark"],
                others=frozenset(request["others"]),
                unmarked=request["holds"] or not request["others"],
            )
        } - {*request["keep"]}

    def _finish(self) -> NoReturn:
        """End everything below, clear the scratch folder, say so, and go."""
        me = os.getpid()
        tree.kill_all(lambda: tree.below(me, tree.table()), within_s=_END_S)
        self._send({"op": "ended"})
        tree.remove_folder(self._scratch)
        self._send({"op": "gone"})
        os._exit(0)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(to_json(message))
        except (BrokenPipeError, ConnectionResetError):
            return  # the host is gone: there is nobody to tell, and the tree is about to end


def _watch(pid: int) -> int | None:
    """A descriptor that is readable when the process is gone, where the kernel has such.

    The control socket may live on in a fork that the host made; the host itself is what counts.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return os.open(os.devnull, os.O_RDONLY)  # it is gone already
    except OSError:
        return None


def _told(status: int) -> dict[str, int]:
    if os.WIFSIGNALED(status):
        return {"exit": -1, "signal": os.WTERMSIG(status)}
    return {"exit": os.WEXITSTATUS(status), "signal": 0}


_PR_SET_CHILD_SUBREAPER = 36
_JANITOR_END_S = 5.0


def scratch_prefix(temporary: str, server: int) -> str:
    """How the paths of all scratch folders of a fork server begin."""
    return f"{os.path.realpath(temporary)}/aisotools-{server}-"


def stand_above(temporary: str) -> None:
    """Fork; the child returns and becomes the fork server, the parent stays and cleans up after it.

    Args:
        temporary: Where the scratch folders lie.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "prctl") or libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        return  # nothing would come here
    server = os.fork()
    if server:
        _wait(server, scratch_prefix(temporary, server))


def _wait(server: int, prefix: str) -> NoReturn:
    # Its ends of the server's socket and pipes must not keep those open.
    os.closerange(0, 1 << 20)
    os.setsid()
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    gone = False
    while True:
        try:
            pid, _ = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        gone = gone or pid == server
        if gone:
            tree.kill_all(_strays, within_s=_JANITOR_END_S)
    for folder in glob.glob(glob.escape(prefix) + "*"):
        tree.remove_folder(folder)
    os._exit(0)


def _strays() -> set[int]:
    """What was confined and has lost its supervisor; a supervisor itself is not confined."""
    me, table = os.getpid(), tree.table()
    found: set[int] = set()
    for pid, process in table.items():
        if process.parent == me and _is_confined(pid):
            found |= {pid, *tree.below(pid, table)}
    return found


def _is_confined(pid: int) -> bool:
    """Whether a process has given up ever getting new privileges, which cannot be taken back."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return b"\nNoNewPrivs:\t1\n" in file.read()
    except OSError:
        return False
