"""Children of user code, as `os.wait()` sees them: all but the forks by which the worker keeps its variables.

A program that waits until it has no children left would wait for those forks, which stay. The kernel has no
call that leaves out single children: it waits for one, for those of a process group, or for all. The forks
have process groups of their own, but so may children of user code (`os.setsid`, `os.setpgid`, `pty.fork`).

So `os.wait` and `os.waitpid(-1)` ask who has ended without taking it, and answer only if it is none of ours.
A fork of ours that has ended is taken at once, since it would hide the others. To fail when no child is left,
they must know of children in other groups: `os.fork`, `os.forkpty` and `os.posix_spawn` note what they make.
Race: another thread may take the same child; then the search begins again. Whether a child changes its group
meanwhile makes no difference. A failure: a child that was made in another way, in a group of its own, is not
waited for while it runs; once it has ended it is found.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from typing import Any

from aisotools.sandbox.process import tree

_hidden: set[int] = set()
"""Forks of the worker's own."""

_noted: set[int] = set()
"""Children that user code has made, until they are taken."""


def hide_child(pid: int) -> None:
    """Let `os.wait` not see this child of the worker; 0 in a fork, which has none of the children."""
    if pid == 0:
        _hidden.clear()
        _noted.clear()
    else:
        _hidden.add(pid)
        _noted.discard(pid)


def hide_snapshots_from_wait() -> None:
    """Make `os.wait()`, `os.waitpid(-1)` see every child of user code, and none of those that are hidden."""
    original = os.waitpid

    def take(pid: int, options: int) -> tuple[int, int]:
        try:
            ended, status = original(pid, options)
        except ChildProcessError:
            # User code has reaped it, or ignores SIGCHLD. Both asyncio and subprocess make up a status then.
            if pid > 0:
                tree.unreaped.add(pid)
                _forget(pid)
            raise
        tree.unreaped.discard(ended)  # a number that was used before
        _forget(ended)
        return ended, status

    def waitpid(pid: int, options: int, /) -> tuple[int, int]:
        return _wait_for_any(take, options) if pid == -1 else take(pid, options)

    def wait() -> tuple[int, int]:
        return _wait_for_any(take, 0)

    os.waitpid, os.wait = waitpid, wait
    os.fork = _noting(os.fork, lambda pid: pid)
    os.posix_spawn = _noting(os.posix_spawn, lambda pid: pid)
    os.posix_spawnp = _noting(os.posix_spawnp, lambda pid: pid)
    os.forkpty = _noting(os.forkpty, lambda made: made[0])


def _noting(make: Callable[..., Any], pid_of: Callable[[Any], int]) -> Callable[..., Any]:
    @functools.wraps(make)
    def noting(*arguments: Any, **options: Any) -> Any:
        made = make(*arguments, **options)
        if pid_of(made):
            _noted.add(pid_of(made))
        else:  # the child, which has no children yet
            hide_child(0)
        return made

    return noting


def _forget(pid: int) -> None:
    _hidden.discard(pid)
    _noted.discard(pid)


def _wait_for_any(take: Callable[[int, int], tuple[int, int]], options: int) -> tuple[int, int]:
    """Wait for any child of user code.

    Raises:
        ChildProcessError: There is none.
    """
    if options & ~os.WNOHANG:
        # Children that stop or go on count as well, and the search below looks for ended ones. So this waits
        # for the own process group, in which none of our forks are; children of user code in groups of their
        # own are missed.
        return take(0, options)
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is None:
            if not _has_children():
                raise ChildProcessError(errno.ECHILD, os.strerror(errno.ECHILD))
            if options & os.WNOHANG:
                return 0, 0
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            continue
        try:
            # A fork of ours is taken whatever it ended with: the worker finds that it is gone.
            is_hidden = ended.si_pid in _hidden
            found = take(ended.si_pid, os.WNOHANG)
        except ChildProcessError:
            continue  # race: another thread has taken it
        if found[0] and not is_hidden:
            return found


def _has_children() -> bool:
    """Return whether a child of user code is there: one in our process group, or one that was noted."""
    return any(_is_there(os.P_PID, pid) for pid in (*_noted,)) or _is_there(os.P_PGID, os.getpgrp())


def _is_there(kind: int, number: int) -> bool:
    try:
        # Race: it may end just now. It is not taken here, so whoever asks next still finds it.
        os.waitid(kind, number, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        if kind == os.P_PID:
            _noted.discard(number)
        return False
    return True
