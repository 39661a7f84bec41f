"""What user code may change of the worker's process, and later calls cannot do without: it is put back.

All else is kept from call to call: handlers of signals, timers, environment variables.

Threat: code of a call shares the process with what runs later calls. It may block the signals by which these
are stopped, take rights from the files that they make, or leave a function that traces them; and an undo
makes a folder anew in which Python stands, so that every relative path fails.
Mechanism: before and after each call that has the main thread, these are set to what calls need. The
functions are those that `signal` wraps, which user code seldom replaces.
Race: a thread of user code may change them again while a call runs.
Failure: what cannot be put back stays as it is. It harms the calls of this session alone, and a restart of
the sandbox ends it.
"""

from __future__ import annotations

# What `signal` wraps, without making an enumeration's member of each result: it is called for each call.
import _signal  # type: ignore[import-not-found]  # mypy knows no stub of it
import contextlib
import os
import signal
import sys
import threading
import types
from collections.abc import Callable


class ProcessState:
    """The state of this process that calls begin with."""

    def __init__(self) -> None:
        """Note the mask of modes for new files, and the current folder."""
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._folder = ""
        self._follow_folder()

    def __repr__(self) -> str:
        return f"<ProcessState umask={self._umask:03o} folder={self._folder!r}>"

    def put_back(self) -> None:
        """Put back what user code may have changed, and calls cannot do without.

        No signal is blocked, SIGCHLD is not ignored, no function traces or profiles, the owner of a new file
        may use it, also where the umask takes rights from others, and the current folder is the one that
        stands at its path now.
        """
        stop_tracing()
        # Signals: blocked ones would stay blocked in programs, which could not be asked to end.
        _signal.pthread_sigmask(signal.SIG_SETMASK, ())
        # Signal: a child of a process that ignores it leaves no exit status. A handler of user code stays.
        # It is set again in any case, since C code may have ignored the signal behind Python's back.
        handler = _signal.getsignal(signal.SIGCHLD)
        _signal.signal(signal.SIGCHLD, handler if callable(handler) else _signal.SIG_DFL)
        umask = os.umask(self._umask)
        if not umask & 0o700:
            os.umask(umask)
        self._follow_folder()

    @staticmethod
    def take_interrupts(handler: Callable[[int, types.FrameType | None], object]) -> None:
        """Have SIGINT handled by `handler`, whatever an earlier call has made of it.

        One that ignores it would leave Stop nothing but to end the whole worker.
        """
        _signal.signal(signal.SIGINT, handler)

    def _follow_folder(self) -> None:
        try:
            self._folder = os.getcwd()
        except OSError:
            # It was removed. An undo makes a folder anew that the call has removed which it takes back.
            with contextlib.suppress(OSError):  # it is not there again: code learns that when it uses it
                os.chdir(self._folder)


def stop_tracing() -> None:
    """Let no function that user code has set trace or profile what runs next."""
    sys.settrace(None)
    sys.setprofile(None)
    threading.settrace(None)
    threading.setprofile(None)
