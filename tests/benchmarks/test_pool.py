"""Two hundred conversations at once over twenty live sandboxes: each keeps a secret; what a call takes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from aisotools.policy.rules import Policy
from aisotools.session.pool import SessionPool
from tests.benchmarks.figures import Figure, show

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(300)]

CONVERSATIONS, LIVE, CALLS = 200, 20, 4


async def test_two_hundred_conversations(tmp_path: Path, environ: Mapping[str, str]) -> None:
    pool = SessionPool(
        max_live=LIVE, wait_s=250, root=tmp_path / "pool", environ=environ, policy=Policy(mode="auto")
    )
    took_ms: list[float] = []
    memory: list[float] = []
    most_live = 0

    async def converse(number: int) -> None:
        nonlocal most_live
        session = await pool.get(f"conversation-{number}")
        secret = secrets.token_hex(16)
        for turn in range(CALLS):
            code = (
                f"open('secret', 'w').write({secret!r})"
                if turn == 0
                else "import os; print(open('secret').read(), sorted(os.listdir('.')))"
            )
            began = time.perf_counter()
            result = await session.run_cell(code)
            took_ms.append((time.perf_counter() - began) * 1000)
            assert not result.is_error, result.content
            assert turn == 0 or result.content.strip() == f"{secret} ['secret']"
            most_live = max(most_live, pool.status().live)

    async def sample() -> None:
        while True:
            await asyncio.sleep(1)
            sessions = [await pool.get(f"conversation-{number}") for number in range(CONVERSATIONS)]
            used = [session.status().memory_bytes for session in sessions]
            memory.append(sum(used) / (1 << 20))

    began = time.perf_counter()
    async with pool:
        sampling = asyncio.ensure_future(sample())
        await asyncio.gather(*(converse(number) for number in range(CONVERSATIONS)))
        sampling.cancel()
        whole_s = time.perf_counter() - began
    assert most_live <= LIVE
    show(
        Figure(what=f"a call, {CONVERSATIONS} conversations over {LIVE} sandboxes", samples=took_ms),
        Figure(what="memory of all live sandboxes", samples=memory, unit="MiB"),
    )
    print(f"{len(took_ms)} calls in {whole_s:.1f} s: {len(took_ms) / whole_s:.0f} per second")
