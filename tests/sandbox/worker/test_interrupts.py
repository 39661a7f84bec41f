"""What is counted of the interrupts of a call, and which of them still have to reach its code."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from aisotools.sandbox.process.supervisor import INTERRUPT_RECORD, NO_CALL
from aisotools.sandbox.worker.interrupts import DroppedInterrupts, InterruptCount, InterruptRecords


@pytest.mark.parametrize(
    ("count", "is_due"),
    [
        (InterruptCount(), False),
        (InterruptCount(signals=1), True),
        (InterruptCount(signals=1, frames=1), False),
        (InterruptCount(signals=1, raised=1), False),
        (InterruptCount(signals=2, frames=1, raised=1), True),
        (InterruptCount(frames=1), False),
    ],
)
def test_a_signal_is_due_until_it_or_its_frame_has_reached_the_code(
    count: InterruptCount, is_due: bool
) -> None:
    assert count.is_due is is_due
    assert count.is_asked is bool(count.signals or count.frames)


def test_the_frame_of_a_signal_that_was_thrown_is_its_echo_and_the_next_frame_is_not() -> None:
    count = InterruptCount(signals=1)
    count.note_thrown()
    assert not count.is_due
    assert not count.note_frame()
    assert count.note_frame()


def test_the_frame_of_a_signal_that_was_raised_cancels_too() -> None:
    """Python or user code may have dropped what was raised."""
    count = InterruptCount(signals=1, raised=1)
    assert count.note_frame()


@pytest.fixture
def pipe() -> Iterator[tuple[InterruptRecords, int]]:
    reading, writing = os.pipe()
    yield InterruptRecords(reading), writing
    os.close(reading)
    os.close(writing)


def test_records_are_read_whole(pipe: tuple[InterruptRecords, int]) -> None:
    records, writing = pipe
    assert records.read() == set()
    os.write(writing, INTERRUPT_RECORD.pack(3) + INTERRUPT_RECORD.pack(4) + b"\0")
    os.set_blocking(records.descriptor, True)
    assert records.read() == {3, 4}
    assert [records.read() for _ in range(2)] == [{NO_CALL}, set()]


def test_a_signal_whose_record_an_earlier_one_has_read_is_not_user_code_s_own(
    pipe: tuple[InterruptRecords, int],
) -> None:
    now_s = 10.0
    end = pipe[1]
    records = InterruptRecords(pipe[0].descriptor, lambda: now_s)
    os.write(end, INTERRUPT_RECORD.pack(7) + INTERRUPT_RECORD.pack(8) + INTERRUPT_RECORD.pack(NO_CALL))
    assert records.read() == {7, 8, NO_CALL}
    assert [records.read() for _ in range(3)] == [{NO_CALL}, {NO_CALL}, set()]
    os.write(end, INTERRUPT_RECORD.pack(9))
    assert [records.read() for _ in range(2)] == [{9}, set()]
    # One that is waited for reads the record of the next one, which comes after it.
    os.write(end, INTERRUPT_RECORD.pack(10) * 2)
    assert records.read() == {10}
    os.write(end, INTERRUPT_RECORD.pack(11))
    assert [records.read() for _ in range(3)] == [{11}, {NO_CALL}, set()]
    # The kernel may have made one of the two signals: no further one is waited for long.
    os.write(end, INTERRUPT_RECORD.pack(9) * 2)
    assert records.read() == {9}
    now_s += 2
    assert records.read() == set()


def test_a_number_is_kept_until_its_call_begins(pipe: tuple[InterruptRecords, int]) -> None:
    records, _ = pipe
    for number in (2, 5, 6):
        records.keep(number)

    def given(number: int) -> int:
        records.give(number, count := InterruptCount())
        return count.signals

    assert [given(number) for number in (4, 5, 5, 6, 7)] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("target", [4, 5, 6])
def test_signal_between_any_two_instructions_loses_no_number(target: int) -> None:
    code = InterruptRecords.give.__code__

    def interrupted_at(position: int) -> bool:
        """Run `give` for call 5 with a signal at that of its instructions; return whether it has so many."""
        reading, writing = os.pipe()
        records, counts = InterruptRecords(reading), {5: InterruptCount()}
        steps = 0

        def trace(frame: types.FrameType, event: str, _: object) -> Any:
            nonlocal steps
            if frame.f_code is not code:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                steps += 1
                if steps == position:
                    # As the worker does: a call that is known counts it, and for any other it is kept.
                    if target in counts:
                        counts[target].signals += 1
                    else:
                        records.keep(target)
            return trace

        for early in (1, 2, 3, 7):
            records.keep(early)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            records.give(5, counts[5])
        finally:
            sys.settrace(before)
        for number in (6, 7, 8):
            records.give(number, counts.setdefault(number, InterruptCount()))
        os.close(reading)
        os.close(writing)
        if steps == 0:
            return True  # Python 3.12 reports no instruction of the first frame that asks for them
        reached = {number for number, count in counts.items() if count.signals}
        assert reached == ({7, target} - {4} if steps >= position else {7}), position
        return steps >= position

    positions = itertools.takewhile(interrupted_at, itertools.count(1))
    assert len(list(positions)) > 20


def drop(error: BaseException) -> None:
    class Owner:
        def __del__(self) -> None:
            raise error

    Owner()


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    seen: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(unraisable.exc_value))
    return seen


def test_a_dropped_interrupt_is_sent_once_more(reported: list[object]) -> None:
    sent = threading.Event()
    dropped = DroppedInterrupts(lambda: 7, sent.set)
    dropped.install()
    drop(KeyboardInterrupt())
    assert sent.wait(30)
    assert dropped.take_repeated() == 7
    assert dropped.take_repeated() is None
    assert reported == []


def test_an_interrupt_is_not_sent_to_the_call_that_follows(reported: list[object]) -> None:
    sent, asked, looked = threading.Event(), threading.Event(), threading.Event()

    def running() -> int:
        number = 8 if asked.is_set() else 7
        if threading.current_thread() is not threading.main_thread():
            looked.set()
        asked.set()
        return number

    dropped = DroppedInterrupts(running, sent.set)
    dropped.install()
    drop(KeyboardInterrupt())
    assert looked.wait(30)
    assert not sent.wait(0.05)
    assert dropped.take_repeated() is None
    assert reported == []


@pytest.mark.parametrize(("number", "error"), [(None, KeyboardInterrupt()), (7, ValueError("mine"))])
def test_other_dropped_exceptions_are_reported_as_before(
    number: int | None, error: BaseException, reported: list[object]
) -> None:
    dropped = DroppedInterrupts(lambda: number)
    dropped.install()
    drop(error)
    assert reported == [error]
