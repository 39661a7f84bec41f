"""More ways to abuse the call channel: descriptors sent uninvited, frames that never end, silence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.sandbox.rig import Rig, open_files, rig, rss_bytes
from tests.sandbox.test_hostile import FIND_CHANNEL
from tests.waiting import eventually

GROWTH_BYTES = 20 << 20


@pytest.fixture
async def r(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, level="confined") as made:
        await made.python(FIND_CHANNEL)
        yield made


async def works(r: Rig) -> None:
    assert await r.value("1 + 1") == 2


async def test_descriptors_sent_uninvited_are_closed(r: Rig) -> None:
    """They would fill the host's table, or hand it a file that it believes to be another."""
    await r.kernel.variables.forget()
    before = open_files()
    code = """
import socket
sent = 0
for fd in channels():
    held = socket.socket(fileno=os.dup(fd))
    held.setblocking(False)
    files = [os.open('/dev/null', os.O_RDONLY) for _ in range(100)]
    for _ in range(200):
        try:
            socket.send_fds(held, [frame({'op': 'emit', 'id': 1, 'name': 'x', 'payload': {}})], files)
            sent += 1
        except OSError:
            break
    [os.close(one) for one in files]
sent
"""
    result = await r.python(code, timeout_s=5)
    print(f"\nsent {result.content[-100:]!r}; the host has {open_files() - before:+d} descriptors")
    await works(r)
    await r.kernel.variables.forget()  # kept states hold a few of their own
    await eventually(lambda: open_files() - before <= 0)


async def test_a_frame_that_never_ends_holds_nobody_up(r: Rig) -> None:
    """Half a frame, and then silence: the deadline decides, and the host keeps no more than was sent."""
    before = rss_bytes()
    code = "send(struct.pack('!II', 100, 60 << 20) + b'{' * 50)\nimport time; time.sleep(60)"
    result = await r.python(code, timeout_s=0.5)
    assert result.is_error
    assert rss_bytes() - before < GROWTH_BYTES
    await works(r)


async def test_frames_of_the_largest_size_keep_the_host_flat(r: Rig) -> None:
    before = rss_bytes()
    for _ in range(3):
        code = "for n in range(40): send(frame({'op': 'done', 'id': 10**6 + n}, bytes(8 << 20)))"
        await r.python(code, timeout_s=5)
        await works(r)
    grown = rss_bytes() - before
    print(f"\n960 MiB of results that nobody asked for: host {grown / (1 << 20):+.1f} MiB")
    assert grown < 2 * GROWTH_BYTES


BOMBS = {
    "depth": "b'[' * 4_000_000",
    "depth of objects": "b'{\"a\":' * 1_000_000",
    "many lists": "b'[' + b'[],' * 2_000_000 + b'[]]'",
    "digits": "b'1' * 4_000_000",
    "keys": "b'{' + b','.join(b'\"%d\":0' % n for n in range(500_000)) + b'}'",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
async def test_values_that_swell_are_left_out_or_end_the_worker(r: Rig, bomb: str) -> None:
    before = rss_bytes()
    code = f"""
head = json.dumps({{'content': 'forged', 'kind': 'text'}}).encode()
for n in range(9): send(frame({{'op': 'done', 'id': 2}}, head, {bomb}, b'', b''))  # its own number
import time; time.sleep(1)
"""
    await r.python(code, timeout_s=5)
    await works(r)
    assert rss_bytes() - before < 5 * GROWTH_BYTES


async def test_silence_at_the_end_of_a_call(r: Rig) -> None:
    code = """
from aisotools.sandbox import frames
frames.BlockingChannel.send = lambda *a, **k: None
"""
    result = await r.python(code, timeout_s=0.5)
    assert result.metadata["timed_out"] is True
    await works(r)
