"""How much of the package one call passes through: `python -m tests.call_paths`.

Counts, for one read-only call, one write that is asked about, and one undo, each through a session on the
real sandbox after a warm-up call of the same kind, in the process of the host. Between two calls, time
passes as it does between calls of a model: what was written a moment ago is read again by checks that compare
change times, since these have the granularity of the kernel's clock.

- modules: modules of the package whose code ran,
- functions: functions, methods and generators of the package that ran,
- crossings: calls from a function of one module into a function of another one.

Counting uses `sys.setprofile` on the thread of the event loop, on those of the package, and on threads that
start meanwhile, so callbacks of the loop and work in threads count too, until the call returns. What is done
later, such as sealing the ledger, does not. Times are not measured. Of several calls, what every one of them
passed through is counted, and the fewest crossings: a busy machine polls more often, which only adds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest import mock

import aisotools
from aisotools import AllowAll, Session  # importable so from every version, to compare them
from aisotools.core.threads import OWN

PACKAGE = str(Path(aisotools.__file__).parent) + os.sep
FIRST = {"read-only call": (40, 184, 118), "asked write": (61, 369, 284), "undo": (34, 221, 220)}
"""Modules, functions and crossings of the first version, whose modules lay in one folder."""

ROUNDS = 20
PAUSE_S = 0.05
"""Longer than a tick of the kernel's clock."""


@dataclass
class CallPath:
    """What ran between `start` and `stop`."""

    modules: set[str] = field(default_factory=set)
    functions: set[CodeType] = field(default_factory=set)
    crossings: int = 0

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note a call; the hook of `sys.setprofile`."""
        del argument
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        name = frame.f_code.co_filename
        self.modules.add(name)
        self.functions.add(frame.f_code)
        caller = frame.f_back
        if caller is not None and caller.f_code.co_filename.startswith(PACKAGE):
            self.crossings += caller.f_code.co_filename != name


_counting: CallPath | None = None


def _profile_thread() -> None:
    """Let the calls of a new thread of the executor be counted, whenever something is."""

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if _counting is not None:
            _counting.profile(frame, event, argument)

    sys.setprofile(profile)


async def counted(act: Callable[[], Awaitable[Any]]) -> CallPath:
    """Return what runs while `act` does."""
    global _counting  # noqa: PLW0603 - threads of the executor live on from one count to the next
    path = _counting = CallPath()
    threading.setprofile(path.profile)
    sys.setprofile(path.profile)
    try:
        result = await act()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        _counting = None
    if getattr(result, "is_error", False):
        raise RuntimeError(f"The call failed: {result.content}")
    return path


async def measure() -> dict[str, tuple[int, int, int]]:
    """Return, for each kind of call, the least of its modules, functions and crossings."""
    figures = {}
    executor = ThreadPoolExecutor(initializer=_profile_thread)
    # Nobody waits for the disk here: while a call does, monitors look again, the more often the busier it is.
    without_disk = mock.patch.multiple(os, fsync=lambda _file: None, fdatasync=lambda _file: None)
    counted_threads = mock.patch.object(OWN, "_executor", executor)
    with without_disk, counted_threads, tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "HOME": folder, "XDG_STATE_HOME": f"{folder}/state"}
        async with Session(Path(folder, "workspace"), approver=AllowAll(), environ=environ) as session:
            number = 0

            async def read() -> Any:
                return await session.call("sandbox_read", {"path": "a.txt"}, origin="model")

            async def write() -> Any:
                nonlocal number
                number += 1
                arguments = {"path": f"new-{number}.txt", "content": f"text {number}\n"}
                return await session.call("sandbox_write", arguments, origin="model")

            async def undo() -> Any:
                return await session.undo()

            await session.call("sandbox_write", {"path": "a.txt", "content": "text\n"}, origin="person")
            for name, act, before in (
                ("read-only call", read, None),
                ("asked write", write, None),
                ("undo", undo, write),
            ):
                paths = []
                for _ in range(ROUNDS + 1):
                    if before is not None:
                        await before()
                    await asyncio.sleep(PAUSE_S)
                    paths.append(await counted(act))
                warm = paths[1:]
                figures[name] = (
                    len(set.intersection(*(path.modules for path in warm))),
                    len(set.intersection(*(path.functions for path in warm))),
                    min(path.crossings for path in warm),
                )
    return figures


def main() -> None:
    """Print the table."""
    print(f"{'':16} {'modules':>18} {'functions':>18} {'crossings':>18}")
    for name, figures in asyncio.run(measure()).items():
        columns = (
            f"{now}, of {first}: {now / first:.0%}" for now, first in zip(figures, FIRST[name], strict=True)
        )
        print(f"{name:16}", *(f"{column:>18}" for column in columns))


if __name__ == "__main__":
    main()
