"""The tiny process above a worker: reaps, signals, and ends the whole tree. It never runs user code.

It is the subreaper of everything the worker starts, so an orphan comes back to it instead of escaping. It
stays outside the confinement: the worker cannot signal it, and it can see and stop all below it. Its control
socket is a lifeline: when the host goes, however it goes, the socket closes and the tree ends.

Messages on the control socket (one JSON object per packet):

- from here: `started {worker, supervisor}`, `died {exit, signal}`, `done {seq}`, `gone {}`
- from the host: `interrupt {seq}`, `sweep {seq, mark}`, `kill {}`
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Iterable
from typing import Any, NoReturn

from pydantic_core import from_json, to_json

_PR_SET_CHILD_SUBREAPER = 36
_PACKET_BYTES = 1 << 16
_KILL_S = 5.0

CALL_MARK = "AISOTOOLS_CALL"
"""Environment variable that tells which call started a process; `sweep` goes by it."""


def become_subreaper() -> None:
    """Adopt every orphan below this process.

    Raises:
        OSError: If the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def supervise(control: socket.socket, worker: int, scratch: str) -> NoReturn:
    """Watch over `worker` until it, or the host, is gone; then leave nothing behind."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, _ignore)  # a handler must exist for the wakeup descriptor to be written
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    _send(control, {"op": "started", "worker": worker, "supervisor": os.getpid()})
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake_read, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if wake_read in ready:
            _drain(wake_read)
            status = _reap(worker)
            if status is not None:
                _send(control, {"op": "died", **_told(status)})
                _finish(control, scratch)
        if control.fileno() in ready and not _obey(control, worker):
            _finish(control, scratch)


def _ignore(_signal: int, _frame: Any) -> None:
    """Only there so that the wakeup descriptor is written."""


def _obey(control: socket.socket, worker: int) -> bool:
    """Carry out one request; False when the tree should end."""
    try:
        packet = control.recv(_PACKET_BYTES)
    except ConnectionResetError:
        return False
    if not packet:
        return False
    request = from_json(packet)
    op = request["op"]
    if op == "interrupt":
        os.kill(worker, signal.SIGINT)
    elif op == "sweep":
        end_tree(_marked(request["mark"], keep=worker))
    else:
        return False
    _send(control, {"op": "done", "seq": request["seq"]})
    return True


def _finish(control: socket.socket, scratch: str) -> NoReturn:
    """End everything below, clear the scratch folder, say so, and go."""
    end_tree(None)
    shutil.rmtree(scratch, ignore_errors=True)
    _send(control, {"op": "gone"})
    os._exit(0)


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    try:
        control.send(to_json(message))
    except (BrokenPipeError, ConnectionResetError):
        return  # the host is gone: there is nobody to tell, and the caller goes on ending the tree


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            continue
    except BlockingIOError:
        return


def _reap(worker: int) -> int | None:
    """Reap whatever has ended; the worker's status if it was among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == worker:
            found = status


def _told(status: int) -> dict[str, int]:
    if os.WIFSIGNALED(status):
        return {"exit": -1, "signal": os.WTERMSIG(status)}
    return {"exit": os.WEXITSTATUS(status), "signal": 0}


# ---- process trees


def process_parents() -> dict[int, int]:
    """Every visible process and its parent."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name in brackets may hold anything, brackets and spaces included.
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            if fields[0] != b"Z":
                parents[int(name)] = int(fields[1])
    return parents


def descendants(root: int, parents: dict[int, int]) -> set[int]:
    """All processes below `root`."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = [root]
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def _marked(mark: str, keep: int) -> Iterable[int]:
    """Processes below this one that a call started, and all that those started, but never `keep`."""
    parents = process_parents()
    below = descendants(os.getpid(), parents)
    wanted = f"{CALL_MARK}={mark}".encode()
    found: set[int] = set()
    for pid in below - {keep}:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                marked = wanted in file.read(1 << 20).split(b"\0")
        except OSError:
            continue  # it ended meanwhile
        if marked:
            found |= {pid, *descendants(pid, parents)}
    return found - {keep}


def end_tree(chosen: Iterable[int] | None) -> None:
    """Freeze, kill and reap: `chosen` processes, or everything below this one.

    Freezing comes first, so that nothing can be started while the rest is being found; the rounds go on until
    nothing new turns up. Bounded in time: what the kernel does not let go of is left to the parent's parent.
    """
    me = os.getpid()
    end_s = time.monotonic() + _KILL_S
    while time.monotonic() < end_s:
        frozen: set[int] = set()
        while True:
            below = descendants(me, process_parents()) if chosen is None else set(chosen)
            new = below - frozen
            if not new:
                break
            for pid in new:
                _signal(pid, signal.SIGSTOP)
            frozen |= new
        for pid in frozen:
            _signal(pid, signal.SIGKILL)
        if chosen is not None:
            return
        if not frozen and not _children_left():
            return
        time.sleep(0.001)


def _children_left() -> bool:
    """Reap what ended; whether any child is still there."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended by itself
