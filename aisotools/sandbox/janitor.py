"""The process above a fork server: what nobody else is left to end comes here, and is ended.

A supervisor ends what is below it, and the fork server what a killed supervisor leaves behind. Should both be
killed at once, with the host, only an ancestor that is a subreaper still gets hold of what had run below
them: this one. It is forked before anything is imported, does nothing but wait, and goes when the fork server
and all that it has started are gone.
"""

from __future__ import annotations

import ctypes
import glob
import os
import signal
from typing import NoReturn

from aisotools.sandbox import processes

_PR_SET_CHILD_SUBREAPER = 36
_END_S = 5.0


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
            processes.end(_strays, within_s=_END_S)
    for folder in glob.glob(glob.escape(prefix) + "*"):
        processes.remove_folder(folder)
    os._exit(0)


def _strays() -> set[int]:
    """What was confined and has lost its supervisor; a supervisor itself is not confined."""
    me, table = os.getpid(), processes.table()
    found: set[int] = set()
    for pid, process in table.items():
        if process.parent == me and _is_confined(pid):
            found |= {pid, *processes.below(pid, table)}
    return found


def _is_confined(pid: int) -> bool:
    """Whether a process has given up ever getting new privileges, which cannot be taken back."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return b"\nNoNewPrivs:\t1\n" in file.read()
    except OSError:
        return False
