"""The processes around one reader: its keeper above it, and what its calls start below.

Threat
    A call that only reads leaves processes behind: detached ones, ones that end without being reaped,
    loops of forks, or a thread that starts them later. They pile up until the sandbox can start no more.
Mechanism
    A reader's parent is its keeper (see `sandbox.worker.fork`), which runs no code of a tool, is out of
    reach of the reader's signals, and adopts every orphan below it, also when the reader itself ends.
    After a call the host reads from the kernel whether the keeper has any descendant but the reader. If
    so, a reader without further calls is ended, and the supervisor kills all below the keeper until
    nothing is left, and the keeper last; with further calls, it gets no more, and is ended after them. A
    reader without calls is stopped, so that it can start nothing, and looked at once more then.
Race window
    What a thread of the reader starts after its last call runs until the second look, a tenth of a second
    later. While calls run beside each other nothing is ended, as it may belong to one that goes on.
When it fails
    What cannot be read, or does not look as it should (the keeper was killed when memory ran out), ends
    the reader. What the kernel does not let go of within the supervisor's time has been sent SIGKILL, and
    does nothing more.
"""

from __future__ import annotations

import contextlib
import os
import signal

from aisotools.sandbox.process import tree

_LIST_BYTES = 64  # room for two process ids: the look has to tell one from more
_LINKS_OF_NO_THREAD = 2  # of the folder /proc/<pid>/task, which has one more for each thread


class ReaderProcesses:
    """The processes around one reader.

    Attributes:
        keeper: The process id of its keeper.
    """

    def __init__(self, keeper: int, reader: int) -> None:
        """Watch `reader`, whose parent is `keeper`."""
        self.keeper = keeper
        self._reader = reader
        self._only_child = b"%d " % reader  # how the kernel lists it
        # What a look reads stays open: opening it would take several times as long as reading it.
        self._open: list[int] = []
        # A kernel without these files has another way, which is slower. What is missing for any other reason
        # is missing for that one as well.
        with contextlib.suppress(OSError):
            for path in (
                f"/proc/{keeper}/task/{keeper}/children",
                f"/proc/{reader}/task/{reader}/children",
                f"/proc/{reader}/task",
            ):
                self._open.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def __repr__(self) -> str:
        return f"<ReaderProcesses reader={self._reader} keeper={self.keeper}>"

    def has_others(self) -> bool:
        """Return whether there is anything below the keeper but the reader, or the reader is not there."""
        if len(self._open) == 3:
            keepers, readers, threads = self._open
            try:
                if os.pread(keepers, _LIST_BYTES, 0) != self._only_child:
                    return True
                # The kernel lists the children of each thread by themselves.
                if os.fstat(threads).st_nlink == _LINKS_OF_NO_THREAD + 1:
                    return bool(os.pread(readers, _LIST_BYTES, 0))
            except OSError:
                return True  # one of the two has ended
        return tree.descendants(self.keeper) != {self._reader}

    def close(self) -> None:
        """Close what is open; closing twice is fine."""
        while self._open:
            os.close(self._open.pop())


def stop(pidfd: int) -> None:
    """Stop a process, if it is still there."""
    # Race: it may just have ended. A pidfd never means another process.
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)


def resume(pidfd: int) -> None:
    """Let a process that was stopped go on, if it is still there."""
    # Race: as above; the call that is about to be sent then fails by the end of its channel.
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
