"""The process above a fork server: it kills what nobody else is left to kill.

A supervisor kills what is below it, and the fork server what a killed supervisor leaves behind. If both are
killed at once, with the host, only an ancestor that is a subreaper still gets hold of what ran below them:
this one. It only waits, and ends when the fork server and everything started there are gone.

It is forked before anything else is imported, so it stays small: this module imports nothing heavy.

Threat: host, fork server and supervisor are killed together, and what the sandbox started goes on without
anybody who could stop it.
Mechanism: it is the subreaper above all of them, so that the kernel hands it whatever has lost its parent. It
kills what is confined and not below a supervisor that lives, and removes the scratch folders.
Race: a process may fork while the others are killed; `killing.kill_all` looks again until none is left.
Failure: if it is killed as well, process 1 inherits what is left, still confined. What a kernel call holds
for longer than some seconds is left to process 1, too.
"""

from __future__ import annotations

import glob
import os
import signal
from typing import NoReturn

from aisotools.sandbox.process import killing, tree
from aisotools.sandbox.process.scratch import remove_folder, scratch_prefix

_KILL_TIMEOUT_S = 5.0  # per dead child; what the kernel still holds then is left to process 1


def fork_janitor(temporary: str) -> None:
    """Fork: the child returns and becomes the fork server, the parent stays as its janitor and never returns.

    Without subreapers nothing would ever be reparented here, so on such a system this only returns.

    Args:
        temporary: The folder in which the scratch folders lie.
    """
    try:
        tree.become_subreaper()
    except OSError:
        return
    # The parent stays behind as the janitor, so that its child is the server: what the server leaves when it
    # is killed becomes the child of its nearest ancestor that is a subreaper, this one.
    server = os.fork()
    if server:
        _serve(server, scratch_prefix(temporary, server))


def _serve(server: int, prefix: str) -> NoReturn:
    # The fork copied the server's end of the request socket and of its pipes. Held open here, the server
    # would never see the host hang up, nor the host the server's end.
    os.closerange(0, 1 << 20)
    # Signals of a terminal reach a whole session; this process must outlive the host to be of any use.
    os.setsid()
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    server_ended = False
    while True:
        # Any child: those it adopts are not known beforehand. ECHILD: the last one has ended, its work is
        # done.
        try:
            pid, _ = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        # While the server lives, orphans are adopted by it or by a supervisor, which are nearer subreapers.
        # Afterwards any child may be a tree whose supervisor was killed.
        server_ended = server_ended or pid == server
        if server_ended:
            killing.kill_all(_unsupervised, within_s=_KILL_TIMEOUT_S)
    # Crash recovery: nobody else is left who knows of these folders. Their processes were
    # killed above.
    for folder in glob.glob(glob.escape(prefix) + "*"):
        remove_folder(folder)
    os._exit(0)


def _unsupervised() -> set[int]:
    """Return the confined children, and all below them, which have lost their supervisor.

    A living supervisor is a child too, once its fork server is gone. It is not confined, and left alone: it
    ends its tree itself, and says so to the host.
    """
    me = os.getpid()
    processes = tree.table()
    found: set[int] = set()
    for pid, process in processes.items():
        if process.parent == me and _is_confined(pid):
            found |= {pid, *tree.below(pid, processes)}
    return found


def _is_confined(pid: int) -> bool:
    """Return whether a process has set no_new_privs, which every confined one has and nothing can unset."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return b"\nNoNewPrivs:\t1\n" in file.read()
    except OSError:
        return False
