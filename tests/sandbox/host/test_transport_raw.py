from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator

import pytest

from aisotools.sandbox.host.transport import RawOutput, ReaderPipes
from tests.sandbox.rig import open_files
from tests.waiting import eventually, loop_turns


class Pipes:
    """The raw output of a program, read into a list."""

    def __init__(self) -> None:
        self.came: list[tuple[str, bytes]] = []
        self.readable: list[str] = []
        self.ours: dict[str, io.FileIO] = {}
        self.theirs: dict[str, io.FileIO] = {}
        for stream in ("stdout", "stderr"):
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            self.ours[stream], self.theirs[stream] = io.FileIO(reading), io.FileIO(writing, "w")
        self.raw = RawOutput(
            self.ours,
            on_readable=self.readable.append,
            handle=lambda stream, data: self.came.append((stream, data)),
        )
        self.raw.start()

    def close(self) -> None:
        self.raw.stop()
        for pipe in (*self.ours.values(), *self.theirs.values()):
            pipe.close()


@pytest.fixture
async def pipes() -> AsyncIterator[Pipes]:
    made = Pipes()
    yield made
    made.close()


async def test_raw_output_is_read_a_little_at_a_time_and_its_end_is_remembered(pipes: Pipes) -> None:
    assert pipes.raw.read("stdout") == 0
    pipes.theirs["stdout"].write(b"a" * 5000)
    pipes.theirs["stderr"].write(b" end\xff \n")
    await eventually(lambda: {*pipes.readable} == {"stdout", "stderr"})
    assert [pipes.raw.read("stdout", 2), pipes.raw.read("stdout"), pipes.raw.read("stderr")] == [2, 4998, 7]
    assert pipes.raw.last_words == "a" * 4089 + " end\ufffd"
    assert pipes.raw.bytes_read == {"stdout": 5000, "stderr": 7}
    pipes.raw.forget_last_words()
    assert pipes.raw.last_words == ""


async def test_raw_output_is_drained_up_to_what_a_frame_says(pipes: Pipes) -> None:
    pipes.theirs["stdout"].write(b"before after")
    assert pipes.raw.read("stdout", 2) == 2
    pipes.raw.drain("stdout", 7)  # two of the seven were read since
    assert b"".join(data for _, data in pipes.came) == b"before "
    pipes.raw.bytes_read.clear()
    pipes.raw.drain("stdout", 3)
    pipes.raw.drain("stderr", 3)  # less has come than was announced
    assert b"".join(data for _, data in pipes.came) == b"before aft"
    pipes.theirs["stderr"].write(b"x" * 60_000)
    pipes.raw.drain_all()
    assert sum(len(data) for _, data in pipes.came) == 12 + 60_000


async def test_raw_output_that_ended_or_was_closed_is_looked_at_no_more(pipes: Pipes) -> None:
    pipes.theirs["stdout"].close()
    await eventually(lambda: pipes.readable)
    assert pipes.raw.read("stdout") == 0
    pipes.readable.clear()
    await loop_turns()
    assert pipes.readable == []
    pipes.raw.stop()
    pipes.theirs["stderr"].write(b"x")
    await loop_turns()
    assert pipes.readable == []
    pipes.ours["stderr"].close()
    assert pipes.raw.read("stderr") == 0
    pipes.raw.stop()


def test_pipes_lead_from_the_reader_to_the_host_and_back_and_leave_nothing_open() -> None:
    before = open_files()
    pipes = ReaderPipes()
    out, err, interrupts = pipes.theirs
    os.write(out, b"out")
    os.write(err, b"err")
    pipes.interrupts.write(b"number")
    assert (pipes.out.read(), pipes.err.read(), os.read(interrupts, 9)) == (b"out", b"err", b"number")
    assert pipes.out.read() is None, "it does not block"
    pipes.close_theirs()
    assert pipes.out.read() == b""
    pipes.close()
    assert open_files() == before
