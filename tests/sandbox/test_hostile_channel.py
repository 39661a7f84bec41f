"""More ways to abuse the call channel: descriptors sent uninvited, frames that never end, silence."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aisotools.core.types import Effect
from aisotools.sandbox.process.descriptors import refuse_descriptors
from aisotools.tools.function import tool
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


UNINVITED = {
    "devices": "[os.open('/dev/null', os.O_RDONLY) for _ in range(100)]",
    "as many as a message holds": "[os.open('/dev/null', os.O_RDONLY)] * 253",
    "a deleted file in pieces": "[deleted()]",
    "a socket that holds others": "[socket_with([deleted()])]",
    "the channel itself": "channels()[:1]",
}
SEND_UNINVITED = """
import gc, socket
from aisotools.sandbox.frames import BlockingChannel

def deleted():
    file = os.open('in-pieces', os.O_RDWR | os.O_CREAT)
    for at in range(0, 4 << 20, 8192):
        os.pwrite(file, b'x', at)
    os.fsync(file)
    os.unlink('in-pieces')
    return file

def socket_with(files):
    one, other = socket.socketpair()
    socket.send_fds(one, [b'x'], files)
    one.close()
    [os.close(file) for file in files]
    return other.detach()

def send_uninvited(files):
    sent = refused = 0
    found = [one for one in gc.get_objects() if isinstance(one, BlockingChannel)]
    for channel in found:
        try:
            held = socket.socket(fileno=os.dup(channel.fileno()))
        except OSError:  # of a process that this one was forked from
            continue
        held.setblocking(False)
        for _ in range(20):
            try:
                socket.send_fds(held, [frame({'op': 'emit', 'id': 1, 'name': 'x', 'payload': {}})], files)
                sent += 1
            except PermissionError:
                refused += 1
            except OSError:
                break
    [os.close(file) for file in {*files} - {*channels()}]
    return sent, refused
"""


@pytest.mark.parametrize("files", UNINVITED.values(), ids=UNINVITED)
async def test_descriptors_sent_uninvited_are_closed(r: Rig, files: str) -> None:
    """They would fill the host's table, or stop its loop while the kernel closes what nobody took.

    Linux 6.16 and later refuse them to the worker. Under an older kernel the host takes and closes them, and
    ends the worker: see `tests/sandbox/host/test_transport_socket.py`.
    """
    await r.kernel.variables.forget()
    before = open_files()
    await r.python(SEND_UNINVITED)
    result = await r.python(f"send_uninvited({files})", timeout_s=20)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if refuse_descriptors(ours):
            sent, refused = eval(result.value["result"])
            assert sent == 0
            assert refused >= 20
        else:
            assert "open files came with a message" in result.content
    await works(r)
    await r.kernel.variables.forget()  # kept states hold a few of their own
    await eventually(lambda: open_files() - before <= 0)


@tool(effect=Effect.READ_ONLY)
def run_in_reader(code: str) -> str:
    """Run code in a reader.

    Args:
        code: What to run.
    """
    space: dict[str, object] = {}
    exec(code, space)
    return str(space["outcome"])


async def test_a_reader_can_send_none_either(r: Rig) -> None:
    code = f"{FIND_CHANNEL}\n{SEND_UNINVITED}\noutcome = send_uninvited([os.open('/dev/null', os.O_RDONLY)])"
    result = await r.tool(run_in_reader, {"code": code}, read_only=True, in_reader=True)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if refuse_descriptors(ours):
            assert eval(result.content)[0] == 0
        else:
            assert "open files came with a message" in result.content
    await works(r)


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


@pytest.mark.sample(3)
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


_DECODE = """
import json, sys, tracemalloc
data = eval(sys.argv[1])
tracemalloc.start()
try:
    held = json.loads(data)
except (RecursionError, ValueError) as error:
    print(type(error).__name__)
else:
    print(tracemalloc.get_traced_memory()[0] // len(data))
"""


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_values_swell_or_raise_where_they_are_decoded_at_once(bomb: str) -> None:
    """The control: an error that nobody foresees there, or many times the memory of the text."""
    command = [sys.executable, "-c", _DECODE, bomb]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    print(f"\n{found}")
    assert found in {"RecursionError", "ValueError"} or int(found) > 5


async def test_silence_at_the_end_of_a_call(r: Rig) -> None:
    code = """
from aisotools.sandbox import frames
frames.BlockingChannel.send = lambda *a, **k: None
"""
    result = await r.python(code, timeout_s=0.5)
    assert result.metadata["timed_out"] is True
    await works(r)
