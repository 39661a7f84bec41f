"""The keeper of one background task: a small process that stays above all that the task starts.

It adopts what loses its parent below it, so that everything the task starts stays its descendant, however it
detaches itself, and a stop can tell it from the rest by the kernel's own links (see
`sandbox.process.ownership`). It ends when nothing is left below it. It runs as a program of its own: a fork
of the worker would hold on to the worker's memory, and this imports next to nothing.

Arguments: the number of a descriptor, and the command and its arguments but for the last one. That comes in
the environment, so that whoever lists processes finds what the task runs once. Two lines are written to the
descriptor: the command's process id when it has started, and its exit status when it has ended, negative for
a signal.

Threat: what a background task starts detaches itself, so that `task_stop` and the end of the session miss it;
or something else passes for part of the task.
Mechanism: being a subreaper the keeper gets every orphan below it, and nobody can be put below it from
outside.
Race: between two orphans it has no child for a moment only if none is left: the kernel hands an orphan over
before its parent can be reaped.
Failure: if it is killed, what was below it goes to the supervisor, belongs to no task any more, and ends at
the next stop.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PATH = os.path.abspath(__file__)
"""This file."""

LAST_ARGUMENT = "AISOTOOLS_TASK"
"""Environment variable with the last argument; the command does not get it."""

_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_NAME = b"task-keeper"
# How a shell ends whose command cannot be started.
_NOT_STARTED = 127


def main(report: int, command: list[str]) -> None:
    """Start `command`, report on it, and return when nothing is left of what it has started."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
    if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    # Signal: where it is ignored, which a program inherits, no child leaves an exit status.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.set_inheritable(report, False)
    running, held = os.pipe()
    # Fork: this process has one thread, and nothing that the child could share but the descriptors it is to
    # have.
    pid = os.fork()
    if pid == 0:
        _run(command)
    # Signals: asking the task to end is for what it has started; this ends by itself, and last.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    # Nobody may wait for this process to close a pipe of the command.
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    # Race: until it is executed, the command looks like this process. The pipe is at its end then.
    os.close(held)
    os.read(running, 1)
    os.close(running)
    _write(report, pid)
    while True:
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        if ended == pid:
            _write(report, os.waitstatus_to_exitcode(status))
            # Reaped, so the kernel may give its number to a process that this one adopts. The end of that
            # must not be reported as a second end of the command.
            pid = 0


def _run(command: list[str]) -> None:
    try:
        # A session of its own, as every command has.
        os.setsid()
        # Signals: what Python ignores, or whoever started the program above, and no program expects.
        for number in signal.valid_signals():
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        os.execv(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        # A fork must never return: it would wait for children of its own, and report on them.
        os._exit(_NOT_STARTED)


def _write(report: int, number: int) -> None:
    try:
        os.write(report, b"%d\n" % number)
    except OSError:
        return  # the worker is gone; what runs below goes with it


if __name__ == "__main__":
    main(int(sys.argv[1]), [*sys.argv[2:], os.environ.pop(LAST_ARGUMENT)])
