"""A user without a watch left: what the host cannot watch is an error that says so, and nothing hangs."""

from __future__ import annotations

import asyncio
import errno
import os
import selectors
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.host.fork_handle import ForkSnapshot, ForkSocket
from aisotools.sandbox.host.fork_observation import ProcessCounts
from aisotools.sandbox.host.watches import watch, watch_writing
from aisotools.sandbox.process import tree
from tests.sandbox.rig import rig
from tests.waiting import eventually


class FullSelector(selectors.EpollSelector):
    """Answers as the kernel does to a user who has all watches that one may have.

    Attributes:
        left: How many files can still be watched; None for any number.
        code: What the kernel answers then.
    """

    left: int | None = None
    code = errno.ENOSPC

    def __init__(self) -> None:
        super().__init__()
        self._counted: set[Any] = set()  # what is watched from before may end meanwhile, and gives nothing

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self.left is not None:
            if not self.left:
                raise OSError(self.code, os.strerror(self.code))
            self.left -= 1
            self._counted.add(fileobj)
        return super().register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        if self.left is not None and fileobj in self._counted:
            self.left += 1
        self._counted.discard(fileobj)
        return super().unregister(fileobj)


def run(main: Callable[[FullSelector], Coroutine[Any, Any, None]]) -> None:
    """Run `main`, and fail if anything was raised into the event loop."""
    selector = FullSelector()
    unhandled: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        await main(selector)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(watched())
    assert unhandled == []


@pytest.mark.parametrize("add", [watch, watch_writing])
def test_the_reason_names_the_next_step(add: Callable[..., None]) -> None:
    async def main(selector: FullSelector) -> None:
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        selector.left = 0
        with pytest.raises(SandboxError, match=r"fs\.epoll\.max_user_watches\)\. End the program") as raised:
            add(loop, writing, print)
        assert "\n" not in str(raised.value)
        selector.code = errno.ENOMEM
        with pytest.raises(SandboxError, match=r"could not watch a file \(Cannot allocate memory\)$"):
            add(loop, writing, print)
        selector.left = None
        add(loop, writing, print)
        assert loop.remove_reader(writing) != loop.remove_writer(writing)
        os.close(reading)
        os.close(writing)

    run(main)


@pytest.mark.parametrize("left", range(4))
def test_a_session_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path, left: int) -> None:
    async def main(selector: FullSelector) -> None:
        async with rig(tmp_path, level="confined") as r:
            before = len(selector.get_map())
            selector.left = left
            with pytest.raises(SandboxError, match=r"worker was not started: .*max_user_watches") as raised:
                await r.python("1")
            assert "\n" not in str(raised.value)
            assert len(selector.get_map()) == before
            selector.left = None
            assert await r.value("1 + 1") == 2, "the next call works once there are watches again"
            supervisor = r.kernel.supervisor
        await eventually(lambda: not tree.exists(supervisor))

    run(main)


def test_a_snapshot_that_cannot_be_heard_is_dropped() -> None:
    async def main(selector: FullSelector) -> None:
        sock = ForkSocket(os.getpid)
        selector.left = 0
        taken = ForkSnapshot(1, "c", sock, counts=ProcessCounts(), known_tools=set(), unsettled=())
        await taken.settled
        assert not taken.is_alive
        assert "the snapshot was not taken, because the host's event loop could not" in taken.drop_reason

    run(main)


def test_calls_go_on_without_undo(tmp_path: Path) -> None:
    async def main(selector: FullSelector) -> None:
        async with rig(tmp_path, level="confined") as r:
            assert await r.value("x = 1; x") == 1
            selector.left = 0
            assert await r.value("x += 1; x") == 2
            assert await r.value("x += 1; x") == 3
            selector.left = None
            assert await r.value("x += 1; x") == 4

    run(main)


def test_a_reader_that_cannot_be_heard_is_ended(tmp_path: Path) -> None:
    async def main(selector: FullSelector) -> None:
        async with rig(tmp_path, level="confined") as r:
            if not r.kernel.has_readers:
                pytest.skip("no level here has readers")
            refused = 0
            for left in range(12):
                await r.python("x = 1")  # the reader from before is out of date
                selector.left = left
                result = await r.python("x + 1", in_reader=True, read_only=True)
                selector.left = None
                if not result.is_error:
                    break
                assert "max_user_watches" in result.content
                refused += 1
            assert not result.is_error, "it was made once there were enough"
            assert refused >= 4
            await r.python("x = 1")
            result = await r.python("x + 1", in_reader=True, read_only=True)
            assert not result.is_error, result.content
            keepers = {*r.kernel.variables.keeper_pids}
            assert len(keepers) <= 2, "what could not be heard has ended"

    run(main)
