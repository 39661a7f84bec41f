"""Long runs: thousands of calls, hundreds of sessions and killed workers, hogs and floods; figures printed.

Nothing may be lost without an error, nothing may be left running, and neither descriptors nor memory of the
host may grow. Everything is bounded by limits; the machine is never exhausted. Run with `-m slow -s`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aisotools.agent.transcript.attachments import start_files
from aisotools.agent.transcript.notebook import to_notebook
from aisotools.core.events import CallFinished, CallRequested, SessionEvent
from aisotools.policy.approvers import AllowAll
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import spawn, tree
from aisotools.session.ledger import read, verify
from aisotools.session.session import Session
from tests.conftest import OpenSession
from tests.sandbox.rig import Rig, is_there, open_files, processes_of, rig, rss_bytes
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MIB = 1 << 20
LEVEL = "confined"


@dataclass
class Before:
    """What the host held, and how long it took from then."""

    files: int
    rss: int
    began_s: float

    @classmethod
    def now(cls) -> Before:
        gc.collect()
        return cls(open_files(), rss_bytes(), time.monotonic())

    def show(self, what: str) -> tuple[int, float]:
        """Print what has grown since; descriptors and MiB."""
        gc.collect()
        files, grown = open_files() - self.files, (rss_bytes() - self.rss) / MIB
        took_s = time.monotonic() - self.began_s
        print(f"\n{what}: {took_s:.1f} s, host {files:+d} descriptors, {grown:+.1f} MiB")
        return files, grown


def below_the_server() -> set[int]:
    """What the fork server has below it."""
    return tree.below(spawn.server().pid, tree.table())


async def test_ten_thousand_calls_on_one_session(tmp_path: Path) -> None:
    async with rig(tmp_path, level=LEVEL) as r:
        for number in range(500):
            await r.python(f"{number}")
        pid = r.kernel.status().pid
        before, worker = Before.now(), rss_bytes(pid)
        wrong = 0
        for number in range(10_000):
            if number % 10 == 9:
                shell = number % 100 == 99
                result = await r.bash(f"echo {number}") if shell else await r.python("1/0")
                right = result.content == f"{number}" if shell else "ZeroDivisionError" in result.content
            else:
                result = await r.python(f"{number} * 2")
                right = result.value["result"] == f"{number * 2}"  # IPython warns once about its own cache
            if not right:
                wrong += 1
                print(f"\n{number}: {result}")
        # What measures processes in a thread has one open for a moment, and so has a fork until it settles.
        await eventually(lambda: open_files() <= before.files)
        files, grown = before.show("10,000 calls on one session")
        in_worker = (rss_bytes(pid) - worker) / MIB
        print(f"    {wrong} wrong answers; the worker {in_worker:+.1f} MiB; {len(r.reported.losses)} lost")
        assert (wrong, r.reported.losses) == (0, [])
        assert files <= 0
        assert grown < 20
        assert in_worker < 40


SOAK_CALLS = int(os.environ.get("SOAK_CALLS", "10000"))
"""Fewer for a first look."""

MIXED: dict[str, tuple[int, str, dict[str, Any]]] = {
    # Of 1,000 calls about so many. What a call is to do, by its tool and arguments; {n} is its number.
    "a variable": (300, "python", {"code": "x = {n}; x"}),
    "a file by code": (100, "python", {"code": "_ = open('f{m}', 'w').write('{n}\\n' * 50)"}),
    "a file by a tool": (150, "sandbox_write", {"path": "g{m}", "content": "{n}\nline\n"}),
    "a file that is removed": (
        30,
        "python",
        {"code": "import os; os.path.exists('f{m}') and os.unlink('f{m}')"},
    ),
    "reading": (100, "sandbox_read", {"path": "kept"}),
    "a command": (100, "sandbox_bash", {"command": "cat kept; echo {n}"}),
    "an error": (60, "python", {"code": "1 / 0"}),
    "much output": (20, "python", {"code": "print('line {n}\\n' * 20_000)"}),
    "a large result": (20, "python", {"code": "list(range({n}, {n} + 5_000))"}),
    "wrong arguments": (30, "sandbox_write", {"path": 5}),
    "an unknown tool": (20, "no_such_tool", {"n": "{n}"}),
    "a path outside": (20, "sandbox_write", {"path": "../outside", "content": "{n}"}),
    "a deadline": (3, "python", {"code": "while True: pass"}),
    "a crash": (4, "python", {"code": "import os; os.kill(os.getpid(), 11)"}),
    "a kill": (3, "python", {"code": "import time; time.sleep(60)"}),
    "undo": (30, "", {}),
    "redo": (10, "", {}),
}
MUST_FAIL = {
    "an error",
    "wrong arguments",
    "an unknown tool",
    "a path outside",
    "a deadline",
    "a crash",
    "a kill",
}


@dataclass
class Held:
    """What the host holds at one moment of the soak."""

    calls: int
    rss_mib: float
    files: int
    threads: int
    disk_mib: float

    @classmethod
    def now(cls, calls: int, folder: Path) -> Held:
        gc.collect()
        disk = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
        return cls(calls, rss_bytes() / MIB, open_files(), threading.active_count(), disk / MIB)


async def soak_call(session: Session, what: str, number: int, chance: random.Random) -> bool | None:
    """Make one call. Return whether its answer is right; None for an undo or redo."""
    _, name, template = MIXED[what]
    if what in {"undo", "redo"}:
        moved = await (session.undo if what == "undo" else session.redo)(
            chance.randint(1, 3), variables="keep"
        )
        assert not moved.is_error or moved.error_kind == "invalid", moved.content
        return None
    arguments = {
        key: value.replace("{n}", str(number)).replace("{m}", str(number % 40))
        if isinstance(value, str)
        else value
        for key, value in template.items()
    }
    timeout_s = 0.3 if what == "a deadline" else None
    calling = asyncio.create_task(session.call(name, arguments, call_id=f"s{number}", timeout_s=timeout_s))
    if what == "a kill":
        await asyncio.sleep(chance.random() * 0.2)
        with suppress(ProcessLookupError):
            if pid := session.status().pid:
                os.kill(pid, signal.SIGKILL)
            else:
                await session.interrupt()
        await asyncio.wait([calling], timeout=1)
        if not calling.done():  # killed before it began, between two workers
            await session.interrupt()
    result = await calling
    if what == "a variable":
        return result.content.endswith(str(number))  # what was lost since the last call is said before
    if what == "a command":
        return result.content.endswith(str(number))
    return result.is_error == (what in MUST_FAIL)


@pytest.mark.timeout(7200)
async def test_ten_thousand_mixed_calls_with_faults(real_session: OpenSession, tmp_path: Path) -> None:
    """Each is answered exactly once, and what the host holds does not grow."""
    seed = int(os.environ.get("SOAK_SEED", "4"))
    chance = random.Random(seed)
    finished: Counter[str] = Counter()
    requested: Counter[str] = Counter()
    made: Counter[str] = Counter()
    wrong: list[str] = []

    def count(event: SessionEvent) -> None:
        if isinstance(event, CallFinished):
            finished[event.call_id] += 1
        elif isinstance(event, CallRequested):
            requested[event.call_id] += 1

    session = real_session(approver=AllowAll(), level=LEVEL)
    await session.start()
    session.subscribe(count)
    assert session.workspace is not None
    (session.workspace / "kept").write_text("kept\n")
    weights = [weight for weight, _, _ in MIXED.values()]
    held = [Held.now(0, tmp_path / "state")]
    for number in range(1, SOAK_CALLS + 1):
        what = chance.choices([*MIXED], weights)[0]
        made[what] += 1
        if await soak_call(session, what, number, chance) is False:
            wrong.append(f"{number}: {what}")
        if number in {100, 1_000, 3_000, 5_000, SOAK_CALLS}:
            held.append(Held.now(number, tmp_path / "state"))
            print(f"\n{held[-1]}", flush=True)
    print(f"\nseed {seed}: {dict(made)}; wrong answers: {wrong}")
    print(*held, session.status().retained, sep="\n")
    print(f"CPU time of the host: {time.process_time():.0f} s")
    ids = {f"s{number}" for number in range(1, SOAK_CALLS + 1)} & requested.keys()
    assert len(ids) == SOAK_CALLS - made["undo"] - made["redo"]
    assert {one: finished[one] for one in ids if (finished[one], requested[one]) != (1, 1)} == {}
    assert wrong == []
    # What a person asks for after all that.
    changes = await session.changes()
    assert changes.since == ""
    assert {"g1", "g2"} <= {one.path for one in changes}
    assert not (await session.undo(variables="keep")).is_error
    assert not (await session.redo(variables="keep")).is_error
    files = start_files(session)
    exported = to_notebook(
        session.events, registry=session.registry, files=files.texts, missing=files.missing
    )
    assert "kept" in json.dumps(exported)
    log = session.log_path
    await session.close()
    assert log is not None
    assert verify(log).ok
    answers = Counter(record["body"]["call_id"] for record in read(log) if record["kind"] == "call_finished")
    assert {one: answers[one] for one in ids if answers[one] != 1} == {}
    first = next(one for one in held if one.calls == min(1_000, SOAK_CALLS // 10))
    assert held[-1].rss_mib - first.rss_mib <= 32
    assert held[-1].files - first.files <= 8  # those of kept states of variables, and of a tree cleared away
    retained = session.status().retained
    assert retained is not None
    assert retained.dropped_events == 0, "whatever takes too much memory is on the disk"
    assert held[-1].threads - first.threads <= 4


async def test_two_hundred_sessions_one_after_the_other(tmp_path: Path) -> None:
    async with rig(tmp_path, level=LEVEL) as r:
        await r.python("1")
    alive, folders = below_the_server(), set()
    before = Before.now()
    for number in range(200):
        async with rig(tmp_path, level=LEVEL) as r:
            home = await r.value(f"import os; [os.environ['HOME'], {number} + 1]")
            assert home[1] == number + 1
            folders.add(home[0])
    files, grown = before.show("200 sessions opened and closed")
    assert files == 0
    assert grown < 20
    # One waits there to become the next session's, and another one each time.
    await eventually(lambda: len(below_the_server()) <= len(alive))
    assert len(folders) == 200
    assert not any(map(is_there, folders))


async def test_twenty_at_once(tmp_path: Path) -> None:
    before = Before.now()

    async def work(number: int) -> int:
        async with rig(tmp_path, level=LEVEL, name=f"ws{number}") as r:
            await r.python(f"mine = {number}")
            right = 0
            for step in range(20):
                right += await r.value(f"mine * 1000 + {step}") == number * 1000 + step
            return right

    right = await asyncio.gather(*(work(number) for number in range(20)))
    files, grown = before.show("20 sessions at once, 20 calls each")
    assert right == [20] * 20
    assert files <= 4  # the fork server's own, if it was not there before
    assert grown < 40


VICTIMS = {
    "sleep": "import time; time.sleep(5)",
    "loop": "while True: pass",
    "print": "while True: print('x' * 1000)",
    "fork": "import os, time\nfor _ in range(3):\n    if os.fork() == 0: time.sleep(60)\ntime.sleep(5)",
    "large": "b = 'x' * 30_000_000\nb",
    "result": "list(range(200_000))",
}


async def test_two_hundred_workers_killed_in_the_middle_of_calls(tmp_path: Path) -> None:
    """At any moment, before the call arrives or after its answer, too: each has an answer or an error."""
    chance = random.Random(7)
    ends: Counter[str] = Counter()
    slowest_s = 0.0
    async with rig(tmp_path, level=LEVEL) as r:
        await r.python("1")
        before, killed = Before.now(), 0
        while killed < 200:
            name = chance.choice(sorted(VICTIMS))
            await r.kernel.start()
            call = asyncio.create_task(r.python(VICTIMS[name], timeout_s=10))
            await asyncio.sleep(chance.random() * 0.12)
            pid, killed_s = r.kernel.status().pid, time.monotonic()
            with suppress(ProcessLookupError):  # it may be between two workers just now
                if pid:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
            result = await call
            slowest_s = max(slowest_s, time.monotonic() - killed_s)
            reported = "worker_died" in result.metadata or "limit" in result.metadata
            ends["told as lost" if reported else "error" if result.is_error else "answered"] += 1
            assert reported or result.is_error or name in {"large", "result"}, (name, result)
            if killed % 20 == 0:
                await r.python("1")  # a kill after the answer is told by the call that comes next
                assert await r.value("1 + 1") == 2
        await r.kernel.variables.forget()  # the states that brought its variables back hold two each
        files, grown = before.show(f"{killed} workers killed during calls")
        print(f"    {dict(ends)}; slowest answer {slowest_s * 1000:.0f} ms after the kill")
        await eventually(lambda: open_files() - before.files <= 0, hang_s=5)
        assert files <= 8  # those of a tree that is just being cleared away
        assert grown < 60
        assert slowest_s < 2
    assert processes_of(tmp_path / "workspace") == []


HOGS = {
    "fork bomb": """
import os, time
for _ in range(300):
    try:
        if os.fork() == 0:
            os.setsid()
            time.sleep(60)
    except OSError:
        time.sleep(0.01)
time.sleep(60)
""",
    "memory hog": "held = []\nwhile True: held.append(bytearray(b'x') * (10 << 20))",
    "memory of many": """
import os, time
for _ in range(6):
    if os.fork() == 0:
        held = bytearray(b'x') * (150 << 20)
        time.sleep(60)
time.sleep(60)
""",
    "disk filler": """
for n in range(50):
    with open(f'fill{n}', 'wb') as file:
        file.write(bytes(10 << 20))
import time; time.sleep(60)
""",
    "large file": "open('big', 'wb').write(bytes(100 << 20))",
    "open files": "held = [open('/dev/null') for _ in range(1000)]",
}


async def clean(r: Rig) -> None:
    for path in r.workspace.iterdir():
        path.unlink()


@pytest.mark.parametrize("hog", HOGS)
async def test_hogs_are_stopped_by_name(tmp_path: Path, hog: str) -> None:
    limits = Limits(
        memory_bytes=512 * MIB, processes=50, file_bytes=64 * MIB, disk_bytes=100 * MIB, open_files=128
    )
    async with rig(tmp_path, limits, level=LEVEL) as r:
        await r.python("1")
        before = Before.now()
        for _ in range(3):
            result = await r.python(HOGS[hog], timeout_s=20)
            assert result.is_error
            assert "limit" in result.metadata, result.content
            assert await r.value("1 + 1") == 2
            await clean(r)
        _, grown = before.show(f"{hog}, three times; stopped for {result.metadata['limit']}")
        assert grown < 20


FLOODS = {
    "print": "for _ in range(10_000): print('x' * 100_000)",
    "os.write": "import os\nfor _ in range(10_000): os.write(1, b'x' * 100_000)",
    "a program": "import subprocess; _ = subprocess.run(['head', '-c', '1000000000', '/dev/zero'])",
}


@pytest.mark.parametrize("how", FLOODS)
async def test_a_gigabyte_printed_five_times(tmp_path: Path, how: str) -> None:
    async with rig(tmp_path, level=LEVEL) as r:
        await r.python("1")
        pid = r.kernel.status().pid
        before, worker, snapshots = Before.now(), rss_bytes(pid), len(r.kernel.variables.pids())
        for _ in range(5):
            result = await r.python(FLOODS[how], timeout_s=100)
            assert not result.is_error
            assert result.metadata["dropped_bytes"] > 900_000_000
        files, grown = before.show(f"5 GB by {how}")
        print(f"    the worker {(rss_bytes(pid) - worker) / MIB:+.1f} MiB")
        # Two for each snapshot of the variables; and the worker's own process was perhaps not watched before.
        assert files <= 2 * (len(r.kernel.variables.pids()) - snapshots) + 1
        assert grown < 20
        assert rss_bytes(pid) - worker < 20 * MIB
