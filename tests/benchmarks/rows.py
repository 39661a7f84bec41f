"""What the speed table measures: each row is our work and that of a plain ipykernel, in turns, in one run."""

from __future__ import annotations

import asyncio
import gc
import itertools
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from aisotools.agent.agent import Agent
from aisotools.agent.budgets import Budgets
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.builtin import WORKER_MODULES
from aisotools.policy.approvers import AllowAll
from aisotools.sandbox.process import spawn, tree
from aisotools.session.session import Session
from tests.benchmarks.peer import RawKernel, pss_bytes
from tests.benchmarks.test_calls import add
from tests.benchmarks.test_files_bench import FILES, make_tree
from tests.benchmarks.test_sandbox import records, text
from tests.notebook.client import private_home

MIB = 1 << 20
CELL = {"code": "1 + 1"}
THOUGHT_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One quantity of the table.

    Attributes:
        name: What is measured.
        ours: Samples of ours, in `unit`. Less is better.
        theirs: Samples of the peer.
        peer: What that is.
        unit: What a sample counts.
        budget: What the middle one of ours should not exceed, or None.
        quantile: Which sample of ours and theirs counts: 0.5 is the middle one.
    """

    name: str
    ours: list[float]
    theirs: list[float]
    peer: str = "a plain kernel"
    unit: str = "ms"
    budget: float | None = None
    quantile: float = 0.5


@contextmanager
def timed(samples: list[float]) -> Iterator[None]:
    """Add how many milliseconds the context takes."""
    began_s = time.perf_counter()
    yield
    samples.append((time.perf_counter() - began_s) * 1000)


Ours = Callable[[], Awaitable[object]]
Theirs = Callable[[], object]


async def in_turns(
    ours: Ours, theirs: Theirs, rounds: int, each: int = 1, pause_s: float = 0
) -> list[list[float]]:
    """Return milliseconds of ours and of theirs, in so many rounds, each so many times in a row in a round.

    Who comes first changes. One further round comes before all others and does not count.
    """
    samples: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        gc.collect()
        for which in (0, 1) if number % 2 else (1, 0):
            for _ in range(each):
                if pause_s:
                    await asyncio.sleep(pause_s)
                with timed(samples[which] if number else []):
                    if which:
                        theirs()
                    else:
                        await ours()
    return samples


async def measure(folder: Path, environ: dict[str, str]) -> list[Row]:
    """Return all rows, measured in an empty folder."""
    rows: list[Row] = []
    with RawKernel() as raw:
        async with Session(folder / "workspace", environ=environ, approver=AllowAll()) as session:
            for own in (add, text, records):
                session.registry.register(own)
            rows += await measure_calls(session, raw)
            rows += await measure_files(session, raw, folder / "workspace")
            rows += await measure_results(session, raw)
            rows += await measure_stops(session, raw)
            rows += await measure_agent(session, raw)
        rows += await measure_sessions(folder, environ, raw)
    rows += measure_starts(folder)
    return rows


def _call(session: Session, name: str, arguments: dict[str, object]) -> Ours:
    async def call() -> None:
        result = await session.call(name, arguments)
        assert not result.is_error, result.content

    return call


async def measure_calls(session: Session, raw: RawKernel) -> list[Row]:
    """Return the rows of single calls that do next to nothing."""

    def cell() -> None:
        raw.execute("1 + 1")

    def echo() -> None:
        raw.execute("import subprocess; print(subprocess.getoutput('echo hi'))")

    plain = await in_turns(_call(session, "add", {"a": 1, "b": 2}), cell, 20, 20)
    python = await in_turns(_call(session, "python", dict(CELL)), cell, 15, 10)
    thought = await in_turns(_call(session, "python", dict(CELL)), cell, 6, 10, THOUGHT_S)
    shell = await in_turns(_call(session, "sandbox_bash", {"command": "echo hi"}), echo, 15, 10)
    return [
        Row(name="warm tool call", ours=plain[0], theirs=plain[1], budget=0.5),
        Row(name="warm tool call, 95 of 100", ours=plain[0], theirs=plain[1], budget=1, quantile=0.95),
        Row(name="python call, one after the other", ours=python[0], theirs=python[1], budget=2),
        Row(name="python call after 50 ms of thought", ours=thought[0], theirs=thought[1], budget=2),
        Row(name="echo hi", ours=shell[0], theirs=shell[1], budget=3),
    ]


async def measure_files(session: Session, raw: RawKernel, root: Path) -> list[Row]:
    """Return the rows of files in the workspace; the kernel writes its own, through to the disk as well."""
    raw.execute(f"import os; os.chdir({str(root)!r})")
    counter = itertools.count()
    rounds, each = 10, 5

    async def write() -> None:
        content = f"{next(counter)} " + "some text of a file\n" * 5_000
        await _call(session, "sandbox_write", {"path": "f", "content": content})()

    def write_theirs() -> None:
        content = f"{next(counter)} " + "some text of a file\n" * 5_000
        raw.execute(f"f = open('g', 'w'); f.write({content!r}); f.flush(); os.fsync(f.fileno()); f.close()")

    writing = await in_turns(write, write_theirs, rounds, each)
    read = _call(session, "sandbox_read", {"path": "f"})
    reading = await in_turns(read, lambda: raw.execute("print(open('g').read())"), rounds, each)
    make_tree(root)
    search = _call(session, "file", {"operation": "search", "path": "tree", "pattern": "needle"})
    grep = "import subprocess; print(subprocess.getoutput('grep -rn needle tree'))"
    searching = await in_turns(search, lambda: raw.execute(grep), 6, 5)
    return [
        Row(name="write 100 KB", ours=writing[0], theirs=writing[1], budget=2),
        Row(name="read 100 KB", ours=reading[0], theirs=reading[1], budget=1.5),
        Row(name=f"search {FILES:,} files", ours=searching[0], theirs=searching[1]),
    ]


async def measure_results(session: Session, raw: RawKernel) -> list[Row]:
    """Return the rows of large results."""
    shown = """from IPython.display import JSON, display
display(JSON([{'id': n, 'name': f'record {n}', 'score': n / 7, 'tags': ['a', 'b']} for n in range(140_000)]))
"""
    texts = await in_turns(
        _call(session, "text", {"size": 10_000_000}), lambda: raw.execute("print('x' * 10_000_000)"), 5
    )
    many = await in_turns(_call(session, "records", {"count": 140_000}), lambda: raw.execute(shown), 3)
    return [
        Row(name="10 MB of text", ours=texts[0], theirs=texts[1], budget=45),
        Row(name="10 MB of records", ours=many[0], theirs=many[1], budget=400),
    ]


async def measure_stops(session: Session, raw: RawKernel) -> list[Row]:
    """Return the rows of a loop that is stopped, and of the call after it."""
    stops: list[list[float]] = [[], []]
    after: list[list[float]] = [[], []]
    loop = "while True: pass"
    for _ in range(7):
        running = asyncio.ensure_future(session.call("python", {"code": loop}))
        await asyncio.sleep(0.15)
        with timed(stops[0]):
            await session.interrupt()
            await running
        with timed(after[0]):
            await _call(session, "python", dict(CELL))()
        request = raw.send(loop)
        await asyncio.sleep(0.15)
        with timed(stops[1]):
            raw.manager.interrupt_kernel()
            raw.finish(request)
        with timed(after[1]):
            raw.execute("1 + 1")
    return [
        Row(name="stop of a loop", ours=stops[0], theirs=stops[1], budget=20),
        Row(name="the call after it", ours=after[0], theirs=after[1], budget=20),
    ]


async def measure_agent(session: Session, raw: RawKernel) -> list[Row]:
    """Return the rows of an agent's steps, each with a real call in the sandbox."""
    rows = []
    for steps, rounds in ((10, 9), (300, 3)):

        async def run(steps: int = steps) -> None:
            model = ScriptedModel([("add", {"a": 1, "b": 2})] * steps + ["done"])
            result = await Agent(model, session, budgets=Budgets(steps=None, calls=None)).run("go")
            assert (result.ok, result.calls) == (True, steps)

        def cells(steps: int = steps) -> None:
            for _ in range(steps):
                raw.execute("1 + 1")

        taken = await in_turns(run, cells, rounds)
        ours, theirs = ([sample / steps for sample in samples] for samples in taken)
        rows.append(Row(name=f"agent step, {steps} steps", ours=ours, theirs=theirs, budget=1))
    return rows


async def measure_sessions(folder: Path, environ: dict[str, str], raw: RawKernel) -> list[Row]:
    """Return the rows of sessions: a fresh one, its memory, and calls in several at once."""
    kernels, fresh, memory = [raw.start_ms], list[float](), list[float]()
    for _ in range(2):
        with RawKernel() as another:
            kernels.append(another.start_ms)
    server = spawn.server(WORKER_MODULES).pid
    rates = {count: await _time_each_call(folder, environ, count) for count in (1, 4, 16)}
    one = rates.pop(1)
    async with AsyncExitStack() as stack:
        before = sum(map(pss_bytes, {server, *tree.below(server, tree.table())}))
        for number in range(9):
            session = Session(folder / f"fresh-{number}", environ=environ, approver=AllowAll())
            with timed(fresh):
                await stack.enter_async_context(session)
                await _call(session, "python", dict(CELL))()
            now = sum(map(pss_bytes, {server, *tree.below(server, tree.table())}))
            memory.append((now - before) / MIB)
            before = now
    cells: list[float] = []
    for _ in range(200):
        with timed(cells):
            raw.execute("1 + 1")
    rows = [
        Row(name="fresh session to its first result", ours=fresh[1:], theirs=kernels, budget=40),
        Row(
            name="memory of a further session",
            ours=memory[1:],
            theirs=[raw.memory_bytes / MIB],
            unit="MiB",
            budget=12,
        ),
        Row(name="call, as many as one session makes", ours=one, theirs=cells, budget=0.5),
    ]
    for count, each in rates.items():
        name = f"call, as many as {count} sessions make"
        rows.append(Row(name=name, ours=each, theirs=one, peer="one session", budget=0.5))
    return rows


async def _time_each_call(folder: Path, environ: dict[str, str], count: int) -> list[float]:
    """Return milliseconds for each call of all, with so many sessions that make calls at once."""
    async with AsyncExitStack() as stack:
        sessions = []
        for number in range(count):
            session = Session(folder / f"rate-{count}-{number}", environ=environ, approver=AllowAll())
            session.registry.register(add)
            sessions.append(await stack.enter_async_context(session))

        async def run(session: Session, calls: int) -> None:
            for _ in range(calls):
                await _call(session, "add", {"a": 1, "b": 2})()

        samples: list[float] = []
        calls = max(800 // count, 50)
        for number in range(4):
            gc.collect()
            with timed(samples if number else []):
                await asyncio.gather(*(run(session, calls) for session in sessions))
        return [sample / (calls * count) for sample in samples]


OURS = """
import asyncio, sys
from aisotools import AllowAll, Session
async def main():
    async with Session(sys.argv[1], approver=AllowAll()) as session:
        await session.call("python", {"code": "1 + 1"})
asyncio.run(main())
"""
THEIRS = """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
client.execute_interactive("1 + 1", output_hook=lambda _: None)
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


def measure_starts(folder: Path) -> list[Row]:
    """Return the rows of a program's start, and of an import."""

    home = private_home(folder)

    def both(*codes: str, rounds: int) -> list[list[float]]:
        samples: list[list[float]] = [[] for _ in codes]
        for number in range(rounds + 1):
            for code, taken in zip(codes, samples, strict=True):
                with timed(taken if number else []):
                    command = [sys.executable, "-c", code, str(folder / "started")]
                    subprocess.run(command, check=True, capture_output=True, env=home["env"], cwd=home["cwd"])
        return samples

    programs, kernels = both(OURS, THEIRS, rounds=4)
    imports, others = both("import aisotools", "import jupyter_client", rounds=7)
    return [
        Row(name="program, to its first result and its end", ours=programs, theirs=kernels),
        Row(name="python -c 'import aisotools'", ours=imports, theirs=others, peer="import jupyter_client"),
    ]
