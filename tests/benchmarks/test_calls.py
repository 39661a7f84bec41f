"""A warm trivial call through the whole gate, against a request to a plain ipykernel in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

from aisotools.core.types import Effect
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.tools.adapter import register_builtin
from aisotools.tools.function import tool
from tests.benchmarks.figures import Figure, show

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

ROUNDS, CALLS = 20, 25


@tool(effect=Effect.READ_ONLY)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def raw() -> Iterator[Callable[[], None]]:
    """One `execute_request` to a plain ipykernel, until its reply and the idle status are there."""
    manager, client = start_new_kernel(kernel_name="python3")

    def execute() -> None:
        request = client.execute("1 + 1", store_history=False)
        while client.get_shell_msg(timeout=30)["parent_header"].get("msg_id") != request:
            pass
        while True:
            message = client.get_iopub_msg(timeout=30)
            idle = message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
            if idle and message["parent_header"].get("msg_id") == request:
                return

    try:
        yield execute
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


async def test_a_warm_call_is_eight_times_faster_than_a_raw_kernel(
    raw: Callable[[], None], tmp_path: Path, environ: Any
) -> None:
    ours: list[float] = []
    theirs: list[float] = []
    async with Session(tmp_path / "workspace", environ=environ, approver=AllowAll()) as session:
        session.registry.register(add)
        for round_number in range(ROUNDS + 1):  # the first one warms both
            for samples, is_ours in ((ours, True), (theirs, False)):
                for _ in range(CALLS):
                    began_s = time.perf_counter()
                    if is_ours:
                        result = await session.call("add", {"a": 1, "b": 2})
                        assert result.value == 3
                    else:
                        raw()
                    samples.append((time.perf_counter() - began_s) * 1000)
            if round_number == 0:
                ours.clear()
                theirs.clear()
    peer = Figure(what="execute_request, plain ipykernel", samples=theirs)
    mine = Figure(what="trivial call through the gate", samples=ours, budget=0.5, peer=peer.median)
    show(mine, peer)
    assert peer.median / mine.median >= 8


@tool(effect=Effect.READ_ONLY)
def add_in_worker(a: int, b: int) -> int:
    """Add two numbers; believed to keep to reading, so it runs in the worker itself."""
    return a + b


register_builtin(add_in_worker, keeps_to_reading=True)


async def test_a_warm_call_in_a_reader_is_as_fast_as_one_in_the_worker(tmp_path: Path, environ: Any) -> None:
    samples: dict[str, list[float]] = {"add": [], "add_in_worker": []}
    renewed: list[float] = []
    async with Session(tmp_path / "workspace", environ=environ, approver=AllowAll()) as session:
        for one in (add, add_in_worker):
            session.registry.register(one)

        async def call(name: str) -> float:
            began_s = time.perf_counter()
            result = await session.call(name, {"a": 1, "b": 2})
            assert result.value == 3
            return (time.perf_counter() - began_s) * 1000

        for round_number in range(ROUNDS + 1):  # the first one warms both
            for name, taken in samples.items():
                taken += [await call(name) for _ in range(CALLS)]
            if round_number == 0:
                for taken in samples.values():
                    taken.clear()
        for _ in range(ROUNDS):
            await session.call("python", {"code": "1"}, origin="person")  # may have changed variables
            renewed.append(await call("add"))
    worker = Figure(what="read-only call in the worker", samples=samples["add_in_worker"])
    reader = Figure(what="read-only call in a reader", samples=samples["add"], peer=worker.median)
    first = Figure(what="first one after variables may have changed", samples=renewed)
    show(reader, worker, first)
    assert reader.median <= 1.1 * worker.median


async def test_workers_and_sessions(tmp_path: Path, environ: Any) -> None:
    fresh: list[float] = []
    async with Session(tmp_path / "workspace", environ=environ, approver=AllowAll()) as session:
        for _ in range(15):
            await session.restart()
            began_s = time.perf_counter()
            await session.restart()
            await session.call("python", {"code": "1 + 1"})
            fresh.append((time.perf_counter() - began_s) * 1000)
        echo: list[float] = []
        write: list[float] = []
        read: list[float] = []
        content = "x" * 100_000
        for _ in range(40):
            for samples, name, arguments in (
                (echo, "sandbox_bash", {"command": "echo hi"}),
                (write, "sandbox_write", {"path": "a.txt", "content": content}),
                (read, "sandbox_read", {"path": "a.txt"}),
            ):
                began_s = time.perf_counter()
                result = await session.call(name, arguments)
                samples.append((time.perf_counter() - began_s) * 1000)
                assert not result.is_error, result.content
        interrupts = [await interrupt(session, code) for code in ENDLESS * 5]
    show(
        Figure(what="worker ended, fresh one, first result", samples=fresh, budget=40),
        Figure(what="echo hi", samples=echo, budget=3),
        Figure(what="write 100 KB", samples=write, budget=1.5),
        Figure(what="read 100 KB", samples=read, budget=1.5),
        Figure(what="interrupt of sleep, loop, regex", samples=interrupts, budget=20),
    )


ENDLESS = [
    "import time; time.sleep(60)",
    "while True: pass",
    "import re; re.match('(a+)+$', 'a' * 40 + 'b')",
]


async def interrupt(session: Session, code: str) -> float:
    """Milliseconds from `interrupt` to the result of an endless cell."""
    import asyncio

    running = asyncio.ensure_future(session.call("python", {"code": code}))
    await asyncio.sleep(0.1)
    began_s = time.perf_counter()
    await session.interrupt()
    result = await running
    assert result.is_error
    return (time.perf_counter() - began_s) * 1000
