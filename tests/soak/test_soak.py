"""Long runs: thousands of calls, hundreds of sessions and killed workers, hogs and floods; figures printed.

Nothing may be lost without an error, nothing may be left running, and neither descriptors nor memory of the
host may grow. Everything is bounded by limits; the machine is never exhausted. Run with `-m slow -s`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import spawn, tree
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
        files, grown = before.show("10,000 calls on one session")
        in_worker = (rss_bytes(pid) - worker) / MIB
        print(f"    {wrong} wrong answers; the worker {in_worker:+.1f} MiB; {len(r.reported.losses)} lost")
        assert (wrong, r.reported.losses, files) == (0, [], 0)
        assert grown < 20
        assert in_worker < 40


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
    assert below_the_server() <= alive
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
        before, worker = Before.now(), rss_bytes(pid)
        for _ in range(5):
            result = await r.python(FLOODS[how], timeout_s=100)
            assert not result.is_error
            assert result.metadata["dropped_bytes"] > 900_000_000
        files, grown = before.show(f"5 GB by {how}")
        print(f"    the worker {(rss_bytes(pid) - worker) / MIB:+.1f} MiB")
        assert files == 0
        assert grown < 20
        assert rss_bytes(pid) - worker < 20 * MIB
