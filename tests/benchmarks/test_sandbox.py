"""The sandbox alone: its channel, its calls, one more worker, stopping, and a gigabyte printed."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from aisotools.builtin import WORKER_MODULES
from aisotools.sandbox.frames import FrameReader, encode
from aisotools.sandbox.process import spawn, tree
from aisotools.tools.function import tool
from tests.benchmarks.figures import Figure, show
from tests.benchmarks.peer import RawKernel, pss_bytes
from tests.sandbox.rig import Rig, rig, rss_bytes

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

MIB = 1 << 20


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def text(size: int) -> str:
    """Return a text of this length."""
    return "x" * size


@tool
def records(count: int) -> list[dict[str, object]]:
    """Return so many records."""
    return [{"id": n, "name": f"record {n}", "score": n / 7, "tags": ["a", "b"]} for n in range(count)]


async def timed(call: Callable[[], Awaitable[object]], times: int, warm: int = 3) -> list[float]:
    """Milliseconds of each of so many calls."""
    samples = []
    for number in range(-warm, times):
        began_s = time.perf_counter()
        await call()
        if number >= 0:
            samples.append((time.perf_counter() - began_s) * 1000)
    return samples


def test_the_channel_alone() -> None:
    """One frame there and one back, between two processes."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        reader = FrameReader()
        while data := theirs.recv(1 << 16):
            for frame in reader.feed(data):
                theirs.sendall(encode("done", {"id": frame.header["id"]}, (b"{}", b"3", b"", b"")))
        os._exit(0)
    theirs.close()
    reader = FrameReader()
    samples = []
    for _ in range(3000):
        began_s = time.perf_counter()
        ours.sendall(encode("call", {"id": 7, "key": "k", "turn_id": ""}, (b'{"a":1,"b":2}',)))
        while not reader.feed(ours.recv(1 << 16)):
            continue
        samples.append((time.perf_counter() - began_s) * 1000)
    ours.close()
    os.waitpid(child, 0)
    figure = Figure(what="the call channel alone", samples=samples[100:], budget=0.15)
    show(figure)
    assert figure.median <= 0.15


async def test_calls_and_large_results(tmp_path: Path, raw: RawKernel) -> None:
    async with rig(tmp_path) as r:
        plain = await timed(lambda: r.tool(add, {"a": 1, "b": 2}), 500, 50)
        cell = await timed(lambda: r.python("1+1"), 200, 20)
        long_text = await timed(lambda: r.tool(text, {"size": 10_000_000}), 7, 1)
        many_records = await timed(lambda: r.tool(records, {"count": 140_000}), 3, 1)

    async def in_thread(code: str, times: int) -> float:
        return Figure(
            what="", samples=await timed(lambda: asyncio.to_thread(raw.execute, code), times)
        ).median

    show(
        Figure(what="trivial tool call without the gate", samples=plain, peer=await in_thread("1 + 2", 60)),
        Figure(what="cell 1+1 without the gate", samples=cell, peer=await in_thread("1+1", 60)),
        Figure(
            what="10 MB of text as a result",
            samples=long_text,
            budget=40,
            peer=await in_thread("print('x' * 10_000_000)", 3),
        ),
        Figure(what="10 MB of records as a result", samples=many_records, budget=400),
    )


async def test_one_more_worker(tmp_path: Path, raw: RawKernel) -> None:
    """Sessions one after the other; their memory is shared out (PSS), with supervisors and fork server."""
    server = spawn.server(WORKER_MODULES).pid
    spawn.detection()
    rigs: list[Rig] = []
    ready, first, memory = [], [], []
    try:
        for number in range(11):
            (tmp_path / str(number)).mkdir()
            r = Rig(tmp_path / str(number))
            rigs.append(r)
            began_s = time.perf_counter()
            await r.kernel.start()
            ready.append((time.perf_counter() - began_s) * 1000)
            await r.python("1+1")
            first.append((time.perf_counter() - began_s) * 1000)
            table = tree.table()
            memory.append(sum(map(pss_bytes, {server, *tree.below(server, table)})) / MIB)
    finally:
        for r in rigs:
            await r.kernel.close()
    further = [after - before for before, after in itertools.pairwise(memory)]
    budget = 40 if rigs[0].level == "isolated" else 25
    figures = (
        Figure(what="fresh worker, to its first result", samples=first, budget=budget, peer=raw.start_ms),
        Figure(
            what="memory per further session",
            samples=further,
            unit="Mi",
            budget=12,
            peer=raw.memory_bytes / MIB,
        ),
    )
    show(Figure(what="fresh worker, until it is ready", samples=ready), *figures)
    assert figures[0].median <= budget or raw.start_ms / figures[0].median >= 604 / budget
    assert figures[1].median <= 12


async def test_a_fresh_worker_at_each_level(tmp_path: Path, raw: RawKernel) -> None:
    """To the first result, fork server up; workers one after the other, closed in between."""
    levels = {"isolated": 40, "confined": 25, "guarded": 25}
    held = {probe.name for probe in spawn.detection().probes if probe.ok}
    figures = []
    for level in levels.keys() & held:
        samples = []
        for number in range(13):
            async with rig(tmp_path, level=level, name=f"{level}-{number}") as r:
                began_s = time.perf_counter()
                await r.python("1+1")
                samples.append((time.perf_counter() - began_s) * 1000)
        figures.append(
            Figure(
                what=f"fresh worker at level {level}, to its first result",
                samples=samples[2:],
                budget=levels[level],
                peer=raw.start_ms,
            )
        )
    show(*figures)
    assert all(
        figure.median <= figure.budget or raw.start_ms / figure.median >= 604 / figure.budget
        for figure in figures
        if figure.budget
    )


ENDLESS = {
    "sleep": "import time; time.sleep(100)",
    "loop": "while True: pass",
    "regex": "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')",
    "await": "import asyncio\nawait asyncio.sleep(100)",
    "subprocess": "import subprocess; subprocess.run(['sleep', '100'])",
}


async def test_interrupting(tmp_path: Path, raw: RawKernel) -> None:
    """From the request to the result; the peer by jupyter_client's own `interrupt_kernel`."""

    def interrupt_raw() -> float:
        request = raw.send(ENDLESS["sleep"])
        time.sleep(0.15)
        began_s = time.perf_counter()
        raw.manager.interrupt_kernel()
        raw.finish(request)
        return (time.perf_counter() - began_s) * 1000

    theirs = [await asyncio.to_thread(interrupt_raw) for _ in range(5)]
    figures = []
    async with rig(tmp_path) as r:
        for name, code in ENDLESS.items():
            samples = []
            for _ in range(7):
                call = asyncio.create_task(r.python(code))
                await asyncio.sleep(0.15)
                began_s = time.perf_counter()
                await asyncio.gather(r.kernel.interrupt(), call)
                samples.append((time.perf_counter() - began_s) * 1000)
            peer = Figure(what="", samples=theirs).median if name == "sleep" else None
            figures.append(Figure(what=f"interrupt of {name}", samples=samples, budget=20, peer=peer))
        assert r.reported.losses == []
    show(*figures)
    assert all(min(figure.samples) <= 20 for figure in figures)  # the median wants a quiet machine


async def test_calls_that_cannot_be_interrupted(tmp_path: Path) -> None:
    back, answered = [], []
    async with rig(tmp_path) as r:
        for _ in range(5):
            await r.kernel.start()
            began_s = time.perf_counter()
            await r.python("sum(range(10**12))", timeout_s=0.2)
            back.append((time.perf_counter() - began_s - 0.2) * 1000)
            began_s = time.perf_counter()
            await r.python("1")
            answered.append((time.perf_counter() - began_s) * 1000)
    show(
        Figure(what="control back after a deadline, uninterruptible", samples=back, budget=500),
        Figure(what="the next call after it, in a fresh worker", samples=answered),
    )
    assert max(back) <= 500


FLOODS = {
    "by print": "for _ in range(10_000): print('x' * 100_000)",
    "by a program": "import subprocess; _ = subprocess.run(['head', '-c', '1000000000', '/dev/zero'])",
    "by os.write": "import os\nfor _ in range(10_000): os.write(1, b'x' * 100_000)",
}


async def test_a_gigabyte_printed(tmp_path: Path) -> None:
    figures = []
    async with rig(tmp_path) as r:
        await r.python("1")
        pid = r.kernel.status().pid
        for how, code in FLOODS.items():
            host, worker, began_s = rss_bytes(), rss_bytes(pid), time.perf_counter()
            result = await r.python(code, timeout_s=100)
            took_s = time.perf_counter() - began_s
            assert not result.is_error, result.content[-300:]
            grown = [(rss_bytes() - host) / MIB], [(rss_bytes(pid) - worker) / MIB]
            figures += [
                Figure(what=f"1 GB {how}: host grows", samples=grown[0], unit="Mi", budget=20),
                Figure(what=f"1 GB {how}: worker grows", samples=grown[1], unit="Mi", budget=20),
                Figure(what=f"1 GB {how}: time", samples=[took_s], unit="s"),
            ]
    show(*figures)
    assert all(figure.budget is None or figure.median <= figure.budget for figure in figures)
