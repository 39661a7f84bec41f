"""The worker's event loop, in a fork and with descriptors that user code has changed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading

import pytest

from aisotools.sandbox.worker.event_loop import new_loop
from tests.waiting import HANG_S


def test_a_loop_in_a_fork_has_a_wake_up_pipe_and_a_thread_pool_of_its_own() -> None:
    loop = new_loop()
    try:
        assert loop.run_until_complete(loop.run_in_executor(None, lambda: 1)) == 1
        reading, writing = loop.own_descriptors()
        own_end, other_end = os.dup(reading), os.dup(writing)  # as the parent has them
        os.set_blocking(own_end, False)
        with contextlib.suppress(BlockingIOError):
            os.read(own_end, 4096)
        loop.repair_after_fork()
        loop.call_soon_threadsafe(lambda: None)
        with pytest.raises(BlockingIOError):
            os.read(own_end, 1)
        os.close(own_end)
        os.close(other_end)
        assert loop.run_until_complete(loop.run_in_executor(None, lambda: 2)) == 2
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        asyncio.set_event_loop(None)


def test_a_loop_works_whose_pipe_blocks_and_is_full() -> None:
    loop = new_loop()
    try:
        reading, writing = loop.own_descriptors()
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        for end in (reading, writing):
            os.set_blocking(end, True)
        done = asyncio.Event()
        filler = threading.Thread(target=loop.call_soon_threadsafe, args=(done.set,))
        filler.start()
        filler.join(HANG_S)
        assert not filler.is_alive()
        loop.run_until_complete(done.wait())
        loop.call_soon_threadsafe(done.clear)
        loop.run_until_complete(asyncio.sleep(0.01))  # reads the pipe until it is empty, and no further
        assert not done.is_set()
    finally:
        loop.close()
        asyncio.set_event_loop(None)
