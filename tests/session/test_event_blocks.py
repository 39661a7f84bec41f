"""Events beyond a share of the budget: moved to the disk, in order, without holding up the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.events import CallEmitted, CallFinished, CallOutput, CallRequested, EventsDropped
from aisotools.core.retention import RetentionBudget, size_of
from aisotools.core.spill import SpillFile
from aisotools.core.types import ToolCall, ToolResult
from aisotools.session import event_log as event_log_module
from aisotools.session.event_blocks import EventBlock, dump_at_once, dump_in_pieces
from aisotools.session.event_log import EventLog
from tests import stalls
from tests.stalls import stall_limit_s
from tests.waiting import eventually

LARGE_BYTES = 6 << 20  # more than is written on the event loop


def large_log(folder: Path, budget_bytes: int = 64 << 20) -> EventLog:
    event_log = EventLog(RetentionBudget(budget_bytes))
    event_log.write_files_to(folder)
    return event_log


def add_large(event_log: EventLog, number: int) -> None:
    """A printed text, a report of numbers or a result, in turn."""
    text = f"{number} ".ljust(LARGE_BYTES, "x")
    match number % 3:
        case 0:
            event_log.output(f"c{number}", "stdout", text)
        case 1:
            event_log.emitted(f"c{number}", "numbers", {"values": [float(number)] * (LARGE_BYTES // 32)})
        case _:
            event_log.add(
                CallFinished, f"c{number}", name="tool", result=ToolResult(content=text), duration_s=0.1
            )


def number_of(event: Any) -> int:
    """Which one it is, by what is in it."""
    if isinstance(event, CallEmitted):
        return int(event.payload["values"][-1])
    return int((event.text if isinstance(event, CallOutput) else event.result.content).split()[0])


@pytest.mark.parametrize("dump", [dump_at_once, dump_in_pieces])
def test_block_is_read_as_it_was_written_and_gives_its_room_back(tmp_path: Path, dump: Any) -> None:
    spill = SpillFile(tmp_path)
    events = [
        CallOutput(time_s=float(number), call_id="c", stream="stdout", text=f"{number} " * 50_000)
        for number in range(3)
    ]
    block = EventBlock(spill, events, 10, dump)
    assert list(block) == events
    assert (block[-1], tuple(block[1:])) == (events[-1], tuple(events[1:]))
    assert (len(block), block.kinds, block.until_s, block.charged_bytes) == (
        3,
        frozenset({"call_output"}),
        2.0,
        10,
    )
    assert block.size > sum(len(event.text) for event in events)
    block.free()
    assert spill._file == -1


def test_events_beyond_a_share_of_the_budget_move_to_the_disk_and_are_all_there(tmp_path: Path) -> None:
    event_log = EventLog(RetentionBudget(400_000))
    event_log.write_files_to(tmp_path)
    for number in range(3_000):
        event_log.output(f"c{number}", "stdout", f"{number} " * 20)
        event_log.lost(number, "reason")
    events = event_log.events
    assert len(events) == 6_000
    assert event_log.retained.dropped_events == 0
    assert event_log.retained.used_bytes <= 400_000 // 4 + 50_000
    assert [event.call_id for event in events if isinstance(event, CallOutput)] == [
        f"c{number}" for number in range(3_000)
    ]
    first, last = events[0], events[-1]
    assert isinstance(first, CallOutput)
    assert (first.text, last.kind) == ("0 " * 20, "sandbox_lost")
    assert [event.kind for event in events[2_998:3_002]] == ["call_output", "sandbox_lost"] * 2
    assert isinstance(events[4_000], CallOutput)
    assert list(tmp_path.iterdir()) == []


def test_events_on_the_disk_are_bounded_and_those_changed_there_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aisotools.session.event_log._MOST_SPILLED_BYTES", 60_000)
    event_log = EventLog(RetentionBudget(200_000))
    event_log.write_files_to(tmp_path)
    for number in range(3_000):
        event_log.lost(number, f"reason {number} " * 5)
    dropped = event_log.events[0]
    assert isinstance(dropped, EventsDropped)
    assert dropped.count + len(event_log.events) - 1 == 3_000
    assert dropped.kinds == ("sandbox_lost",)
    spill: Any = event_log._retained.spill
    os.pwrite(spill._file, bytes(100_000), 0)
    lost = list(event_log.events)[1]
    assert isinstance(lost, EventsDropped)
    assert "cannot be read from the disk again" in lost.reason


def test_events_without_room_on_the_disk_are_dropped_beyond_the_budget(tmp_path: Path) -> None:
    event_log = EventLog(RetentionBudget(100_000))
    event_log.write_files_to(tmp_path / "missing")
    for number in range(3_000):
        event_log.lost(number, f"reason {number}")
    assert isinstance(event_log.events[0], EventsDropped)
    assert event_log.retained.used_bytes <= 100_000


def test_large_events_move_in_a_thread_in_order_and_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log_module, "_MOST_SPILLED_BYTES", 2 << 30)

    async def add_all(stalled: stalls.Stalls) -> None:
        event_log, used = large_log(tmp_path), []
        retained = event_log._retained
        for number in range(100):
            stalled.is_paused = True
            add_large(event_log, number)  # what makes the event is not looked at
            await eventually(lambda: not retained._is_moving)
            used.append(event_log.retained.used_bytes)
        assert max(used) < (64 << 20) // 4 + 3 * LARGE_BYTES
        assert event_log.retained.dropped_events == 0
        assert stalled.longest_s < stall_limit_s()
        stalled.is_paused = True
        events = event_log.events
        assert len(events) == 100
        for number in (0, 1, 2, 3, 50, 51, 52, 95, 99):
            assert number_of(events[number]) == number
        event_log.lost(1, "small")
        assert [event.kind for event in events[-2:]] == ["call_output", "sandbox_lost"]

    stalls.run(add_all)


async def test_a_large_event_behind_a_few_small_ones_moves_as_well(tmp_path: Path) -> None:
    event_log = large_log(tmp_path)
    retained = event_log._retained
    for number in range(12):
        for _ in range(3):
            event_log.lost(number, "small")
        add_large(event_log, number)
        await eventually(lambda: not retained._unmeasured and not retained._is_moving)
    assert event_log.retained.used_bytes < (64 << 20) // 4 + 3 * LARGE_BYTES
    assert event_log.retained.dropped_events == 0
    assert [number_of(event) for event in event_log.events if event.kind != "sandbox_lost"] == list(range(12))


async def test_pieces_that_a_call_prints_do_not_look_again_at_what_is_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the share of memory each piece walked over all older events, which held up the loop."""
    event_log = EventLog(RetentionBudget(4 << 20))
    event_log.write_files_to(tmp_path)
    for number in range(30):
        event_log.lost(number, "small")
    event_log.add(CallRequested, "c", call=ToolCall("c", "python", {}))
    for _ in range(20_000):
        event_log.output("c", "stdout", "x\n")
    looks: list[object] = []

    def note(value: object, *arguments: object, real: Any = size_of, **options: Any) -> int:
        looks.append(value)
        size: int = real(value, *arguments, **options)
        return size

    monkeypatch.setattr(event_log_module, "size_of", note)
    for _ in range(1_000):
        event_log.output("c", "stderr", "y\n")
    assert len(looks) < 3_000


class HeldSpill(SpillFile):
    """Writes when it is told to, or fails."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_write = threading.Event()
        self.error: OSError | None = None

    def put(self, *pieces: bytes) -> Any:
        self.may_write.wait(50)
        if self.error is not None:
            raise self.error
        return super().put(*pieces)


async def test_a_large_event_that_is_dropped_while_it_is_written_leaves_nothing(tmp_path: Path) -> None:
    event_log, spill = large_log(tmp_path), HeldSpill(tmp_path)
    retained = event_log._retained
    retained.spill = spill
    for number in range(4):
        add_large(event_log, 3 * number)
    assert retained._is_moving
    event_log.lost(1, "small events wait behind it")
    event_log.budget.charge(60 << 20)  # something else needs the room
    assert event_log.retained.dropped_events >= 1
    event_log.budget.release(60 << 20)
    spill.may_write.set()
    await eventually(lambda: not retained._is_moving)
    await eventually(lambda: spill._file < 0)
    numbers = [number_of(event) for event in event_log.events if isinstance(event, CallOutput)]
    assert numbers == sorted(numbers)
    assert isinstance(event_log.events[0], EventsDropped)


async def test_a_large_event_that_cannot_be_written_stays_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    event_log, spill = large_log(tmp_path), HeldSpill(tmp_path)
    retained = event_log._retained
    retained.spill, spill.error = spill, OSError(28, "No space left on device")
    spill.may_write.set()
    for number in range(4):
        add_large(event_log, 3 * number)
    await eventually(lambda: retained.spill is None)
    assert "No space left on device" in caplog.text
    assert [number_of(event) for event in event_log.events] == [0, 3, 6, 9]


async def test_a_loop_that_ends_while_a_large_event_is_written_keeps_it(tmp_path: Path) -> None:
    event_log, spill = large_log(tmp_path), HeldSpill(tmp_path)
    event_log._retained.spill = spill

    async def add() -> None:
        for number in range(4):
            add_large(event_log, 3 * number)
        asyncio.get_running_loop().call_later(0.01, spill.may_write.set)

    await asyncio.to_thread(asyncio.run, add())
    assert [number_of(event) for event in event_log.events] == [0, 3, 6, 9]
    event_log.lost(1, "the next event")
    assert len(event_log.events) == 5
