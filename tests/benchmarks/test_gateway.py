"""Calls per second over one, two and four kernels at a Jupyter Server, each with a session of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from aisotools.core.types import Json, ToolResult
from aisotools.integrations.jupyter_gateway.sandbox import GatewaySandbox
from aisotools.session.session import Session
from aisotools.tools.function import tool
from tests.integrations.jupyter_gateway.servers import TOKEN, jupyter_server

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(300)]

WAYS = (1, 2, 4)
ROUNDS = 2
Call = tuple[str, Mapping[str, Json]]
SECONDS = 2.0
WORK_MS, WAIT_MS = 20, 50


@tool
def _echo(number: int) -> int:
    """Give it back."""
    return number


async def test_throughput_over_kernels(tmp_path: Path, environ: Mapping[str, str]) -> None:
    trivial: Call = ("_echo", {"number": 7})
    working: Call = (
        "python",
        {
            "code": "import time\nt = time.thread_time()\n"
            f"while time.thread_time() - t < {WORK_MS / 1000}: pass"
        },
    )
    waiting: Call = ("python", {"code": f"import time; time.sleep({WAIT_MS / 1000})"})
    kinds = {"a trivial call": trivial, f"{WORK_MS} ms of work": working, f"{WAIT_MS} ms of waiting": waiting}
    figures: dict[tuple[str, int], float] = {}
    with jupyter_server(tmp_path / "host") as server:
        async with contextlib.AsyncExitStack() as stack:
            sessions = [
                await stack.enter_async_context(
                    Session(
                        tmp_path / f"here-{number}",
                        sandbox=GatewaySandbox(server.url, TOKEN),
                        environ=environ,
                    )
                )
                for number in range(max(WAYS))
            ]
            for session in sessions:
                session.registry.register(_echo)
                await _made(session, trivial)
            for _ in range(ROUNDS):  # interleaved, and the best counts: other work on the machine only slows
                for name, call in kinds.items():
                    for ways in WAYS:
                        found = await _per_second(sessions[:ways], call)
                        figures[name, ways] = max(found, figures.get((name, ways), 0.0))
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; calls per second over so many kernels")
    print(f"{'':24}" + "".join(f"{ways:>8}" for ways in WAYS))
    for name in kinds:
        print(f"{name:24}" + "".join(f"{figures[name, ways]:8.1f}" for ways in WAYS))
    name = f"{WAIT_MS} ms of waiting"
    assert figures[name, 4] > 1.5 * figures[name, 1], "kernels do not run side by side"


async def _made(session: Session, call: Call) -> ToolResult:
    result = await session.call(call[0], call[1], origin="person")
    assert not result.is_error, result.content
    return result


async def _per_second(sessions: list[Session], call: Call) -> float:
    until = time.perf_counter() + SECONDS
    done = 0

    async def work(session: Session) -> None:
        nonlocal done
        while time.perf_counter() < until:
            await _made(session, call)
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*map(work, sessions))
    return done / (time.perf_counter() - began)
