"""How an interrupt that the host asks for reaches the code of a call.

The host asks twice, because it cannot know what the code does: with a signal, which strikes code that runs,
and with a frame on the channel, which the event loop reads while code awaits. A record in a pipe, written
before the signal, says which call it is for.

Threat: Stop reaches no code, so that the worker is killed and its variables are lost, or it strikes another
call, or what a call does to clean up.
Mechanism: each call counts what was asked by either way, and what of it was raised in its code. A signal
that strikes while none of the code runs is made up for at its next step.
Race: a signal may come before the frame of its call was read, so its number is kept for that call. One that
comes while an earlier one is handled may find that this has read its record; it is known by the number of
records, and strikes nothing. Python drops what a finalizer or a callback of a weak reference raises, so the
signal is sent once more.
Failure: an interrupt that reaches nothing ends with the grace period of the host, which ends the worker.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from aisotools.sandbox.process.supervisor import INTERRUPT_RECORD, NO_CALL, unread_bytes

# Records that are read at once.
_RECORDS_BYTES = 1 << 16
# How long after several records were read at once a signal may come whose record was one of them.
_ECHO_S = 1.0
# For Python to leave the callback that has dropped an interrupt.
_REPEAT_PAUSE_S = 0.002


@dataclass(slots=True)
class InterruptCount:
    """What the host has asked of one call, and what of that has reached its code.

    Attributes:
        signals: How often the host has asked by signal.
        frames: How often it has asked by a frame.
        raised: How many of the signals were raised in the code.
        thrown: How many of those at a step, where nothing can drop them.
    """

    signals: int = 0
    frames: int = 0
    raised: int = 0
    thrown: int = 0

    @property
    def is_asked(self) -> bool:
        """True if the host has asked at all."""
        return self.signals > 0 or self.frames > 0

    @property
    def is_due(self) -> bool:
        """True if a signal has come that has not reached the code, and neither has its frame."""
        return self.signals > max(self.frames, self.raised)

    def note_frame(self) -> bool:
        """Count a frame. Return whether it is to cancel the call, and not the echo of what was thrown."""
        self.frames += 1
        return self.frames > self.thrown

    def note_thrown(self) -> None:
        """Count all signals so far as thrown at a step."""
        self.raised = self.thrown = self.signals


class InterruptRecords:
    """The read end of the pipe in which the host names the calls that it interrupts."""

    def __init__(self, descriptor: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Take over `descriptor`, and make reading from it return at once; `clock` counts seconds."""
        os.set_blocking(descriptor, False)
        self._clock = clock
        self.descriptor = descriptor
        self._early: set[int] = set()
        self._echoes = 0  # signals that may come yet, though their records were read
        self._echoes_end_s = 0.0

    def read(self) -> set[int]:
        """Return the numbers of the calls; none if the signal was not the host's but user code's own.

        `NO_CALL` stands for a signal whose record an earlier one has read, or that repeats one.

        A signal handler may call it: it takes no lock.
        """
        # User code may have made the pipe one that blocks: read only what is there.
        if not unread_bytes(self.descriptor):
            return self._take_echo()
        try:
            data = os.read(self.descriptor, _RECORDS_BYTES)
        except OSError:
            return set()
        count = len(data) // INTERRUPT_RECORD.size
        # Race: the host writes a record, then sends the signal; an earlier signal may come in between. The
        # kernel makes one of signals that wait, so whether another one comes is not known: soon, or never.
        now_s = self._clock()
        waiting = self._echoes if now_s <= self._echoes_end_s else 0
        # This signal had one of the records. Those that are waited for still may come after it, too.
        self._echoes, self._echoes_end_s = max(0, waiting + count - 1), now_s + _ECHO_S
        return {number for (number,) in INTERRUPT_RECORD.iter_unpack(data[: count * INTERRUPT_RECORD.size])}

    def _take_echo(self) -> set[int]:
        if not self._echoes or self._clock() > self._echoes_end_s:
            return set()
        self._echoes -= 1
        return {NO_CALL}

    def keep(self, number: int) -> None:
        """Keep the number of a call that is not known yet, or has ended; `give` drops the latter.

        A signal handler may call it, between any two instructions of `give`.
        """
        self._early.add(number)

    def give(self, number: int, count: InterruptCount) -> None:
        """Count for a call what was asked of it before it was known, as it is by now. Numbers increase."""
        # Signal: what is kept meanwhile stays. The set is copied at once, and never replaced.
        for early in tuple(self._early):
            if early < number:
                self._early.discard(early)
        if number in self._early:
            self._early.discard(number)
            count.signals += 1


def interrupt_main_thread() -> None:
    """Send SIGINT to the main thread."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


class DroppedInterrupts:
    """Interrupts a call once more whose interrupt Python has dropped."""

    def __init__(
        self, running: Callable[[], int | None], send: Callable[[], None] = interrupt_main_thread
    ) -> None:
        """Send signals again.

        Args:
            running: Returns the number of the call whose code runs and has been interrupted, or None.
            send: Sends the signal.
        """
        self._running = running
        self._send = send
        self._report = sys.unraisablehook
        self._repeated: int | None = None

    def install(self) -> None:
        """Have Python report exceptions here that it drops."""
        self._report = sys.unraisablehook
        sys.unraisablehook = self._note

    def take_repeated(self) -> int | None:
        """Return the call for which the signal was sent once more, and forget it; None for another signal."""
        repeated, self._repeated = self._repeated, None
        return repeated

    def _note(self, unraisable: sys.UnraisableHookArgs) -> None:
        number = self._running()
        if number is None or not isinstance(unraisable.exc_value, KeyboardInterrupt):
            self._report(unraisable)
            return
        # A thread, as an interrupt that is raised here would be dropped again. Not one of `threading`, which
        # the result of a call names when they go on.
        try:
            _thread.start_new_thread(self._repeat, (number,))
        except RuntimeError:  # no more threads for the sandbox
            self._report(unraisable)

    def _repeat(self, number: int) -> None:
        time.sleep(_REPEAT_PAUSE_S)
        if self._running() == number:
            # Race: the call may end here, and the next one begin. The handler compares the numbers.
            self._repeated = number
            self._send()
