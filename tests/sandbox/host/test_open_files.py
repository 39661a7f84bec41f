"""What stands behind open files: watches, pipes, and descriptors that no process shows."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aisotools.core.types import ToolResult
from aisotools.sandbox.confinement.levels import LEVELS
from aisotools.sandbox.host import open_files
from aisotools.sandbox.host.open_files import (
    count_files_of_pipes,
    count_watches,
    measure_files,
    pipe_pages,
)
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import spawn, tree
from aisotools.sandbox.process.descriptors import host_pair
from tests.sandbox.rig import rig
from tests.waiting import HANG_S, eventually, wait_until

SMALL = Limits(open_files=128, open_files_total=1000)

# Each defines `hold`, which returns what it holds. None has more files open than SMALL allows, by far.
WATCHES = """
import os, select

def hold():
    files = [file for _ in range(10) for file in os.pipe()]
    epoll = select.epoll()
    for file in files:
        for number in range(50, 110):
            os.dup2(file, number)
            epoll.register(number, select.EPOLLIN)
            os.close(number)  # the watch stays: the file is open under another number
    return epoll, files
"""
NESTED = """
import os, select

def hold():
    files = [file for _ in range(10) for file in os.pipe()]
    epolls = [select.epoll() for _ in range(30)]
    for file in files:
        for number in range(80, 82):
            os.dup2(file, number)
            for epoll in epolls:
                epoll.register(number, select.EPOLLIN)
            os.close(number)
    outer = select.epoll()
    for epoll in epolls:
        outer.register(epoll.fileno())
    return outer, epolls, files
"""
IN_FLIGHT = (
    WATCHES
    + """
import socket
make = hold

def hold():
    epoll, files = make()
    inner, outer = socket.socketpair(), socket.socketpair()
    socket.send_fds(inner[0], [b'x'], [epoll.fileno()])
    for end in inner:
        socket.send_fds(outer[0], [b'x'], [end.fileno()])
        end.close()
    epoll.close()  # no process has it any more, nor the socket that it waits in
    return outer, files
"""
)
PIPES = """
import os, time

def hold():
    for _ in range(3):
        if os.fork() == 0:
            held = [os.pipe() for _ in range(50)]
            time.sleep(60)
"""
FIFOS = """
import os, time

def hold():
    for child in range(3):
        if os.fork() == 0:
            held = []
            for number in range(90):
                os.mkfifo(f'{child}-{number}')
                held.append(os.open(f'{child}-{number}', os.O_RDWR))
            time.sleep(60)
"""
ATTACKS = {"watches": WATCHES, "nested": NESTED, "in flight": IN_FLIGHT, "pipes": PIPES, "fifos": FIFOS}
CALL = "\nheld = hold()\nimport time\ntime.sleep(60)"


def assert_ended(result: ToolResult) -> None:
    assert result.metadata.get("limit") == "open_files_total", result.content
    assert result.metadata["used"] > result.metadata["allowed"] == SMALL.open_files_total
    assert "limits=Limits(open_files_total=...)" in result.content


@pytest.mark.sample(6)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("attack", ATTACKS)
async def test_watches_and_pipes_beyond_the_limit_end_the_worker(
    tmp_path: Path, attack: str, level: str
) -> None:
    if not any(probe.name == level and probe.ok for probe in spawn.detection().probes):
        pytest.skip(f"level {level} does not hold here")
    async with rig(tmp_path, SMALL, level=level) as r:
        assert_ended(await r.python(ATTACKS[attack] + CALL, timeout_s=50))
        assert await r.value("1 + 1") == 2


async def test_a_program_that_runs_after_its_call_is_ended_too(tmp_path: Path) -> None:
    code = (
        WATCHES + "\nimport time\nif os.fork() == 0:\n    os.setsid()\n    held = hold()\n    time.sleep(600)"
    )
    async with rig(tmp_path, SMALL, level="confined") as r:
        await r.python(code)
        await eventually(
            lambda: any("open files" in reason for _, reason in (*r.reported.starts, *r.reported.losses))
        )


# ---- unconfined: what the kernel allows, and what is counted


def count_files(folder: str) -> int:
    return len(list(Path(folder, "fd").iterdir()))


@contextmanager
def holding(code: str, folder: Path) -> Iterator[list[str]]:
    """Run a program of this user that holds something. Yield the folders in /proc of it and its children."""
    program = code + "\nheld = hold()\nprint(flush=True)\nimport sys\nsys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, cwd=folder) as child:
        below: set[int] = set()
        try:
            assert child.stdout is not None
            child.stdout.readline()
            below = tree.descendants(child.pid)
            yield [f"/proc/{pid}" for pid in (child.pid, *below)]
        finally:
            for pid in (*below, child.pid):
                os.kill(pid, 9)


@pytest.mark.parametrize("attack", ["watches", "nested"])
def test_a_process_has_more_watches_than_files(tmp_path: Path, attack: str) -> None:
    with holding(ATTACKS[attack], tmp_path) as (folder,):
        files = count_files(folder)
        assert files < 80
        found = measure_files([folder], Limits())
        made = 20 * 60 if attack == "watches" else 20 * 2 * 30 + 30
        # That many watches, of which one for each file is what programs have.
        assert found.total == files + made - files
        assert found.kernel_bytes == made * open_files._WATCH_BYTES
        assert found.unseen == 0
        assert measure_files([folder], SMALL).total > SMALL.open_files_total


def test_an_epoll_lives_on_in_a_socket_that_no_process_has(tmp_path: Path) -> None:
    receive = """
held = hold()
ends = socket.recv_fds(held[0][1], 1, 1)[1] + socket.recv_fds(held[0][1], 1, 1)[1]
epoll = socket.recv_fds(socket.socket(fileno=ends[1]), 1, 1)[1][0]
print(open(f'/proc/self/fdinfo/{epoll}').read().count('tfd:'))
"""
    done = subprocess.run(
        [sys.executable, "-c", IN_FLIGHT + receive],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    )
    assert int(done.stdout) == 20 * 60
    with holding(IN_FLIGHT, tmp_path) as (folder,):
        found = measure_files([folder], Limits())
        assert found.unseen == 2
        assert found.total < 60


@pytest.mark.parametrize("attack", ["pipes", "fifos"])
def test_pipes_count_for_their_pages(tmp_path: Path, attack: str) -> None:
    with holding(ATTACKS[attack], tmp_path) as folders:
        pipes, each = (3 * 50, 100) if attack == "pipes" else (3 * 90, 90)

        def is_complete() -> bool:
            return all(count_files(folder) > each for folder in folders[1:])

        wait_until(is_complete)
        files = sum(count_files(folder) for folder in folders)
        found = measure_files(folders, Limits(), pages=16_384)
        more = found.total - files - count_files_of_pipes(pipes, 16_384)
        assert 0 <= more <= 6 * 16  # the program has some itself
        assert found.kernel_bytes >= pipes * open_files._PIPE_BYTES
        assert measure_files(folders, SMALL, pages=16_384).total > SMALL.open_files_total


def test_the_default_leaves_a_user_most_of_the_pages() -> None:
    """As many pipes as the default of the limit allows, each of one descriptor, which is the least."""
    for pages in (1024, 4096, 16_384, 65_536):
        allowed = Limits().open_files_total
        most = max(n for n in range(allowed) if n + count_files_of_pipes(n, pages) <= allowed)
        assert most * open_files._PAGES_PER_PIPE <= pages * 0.35, pages
    assert count_files_of_pipes(64, 16_384) == 0
    assert count_files_of_pipes(65, 0) == 16
    assert pipe_pages() >= 0


def test_watches_of_one_epoll(tmp_path: Path) -> None:
    with select.epoll() as epoll:
        path = f"/proc/self/fdinfo/{epoll.fileno()}"
        assert count_watches(path, 100) == 0
        pairs = [socket.socketpair() for _ in range(3)]
        for ends in pairs:
            for end in ends:
                epoll.register(end)
        assert count_watches(path, 100) == 6
        for ends in pairs:
            for end in ends:
                end.close()
        assert count_watches(path, 100) == 0
    assert count_watches(path, 100) == 0, "it is gone"
    assert count_watches(str(tmp_path), 100) == 100, "it cannot be read"
    text = tmp_path / "fdinfo"
    for shift in range(4):  # a line may lie across two reads
        text.write_bytes(b" " * (open_files._READ_BYTES - shift) + b"tfd: 5\n" * 30_000)
        assert count_watches(str(text), 1 << 20) == 30_000
        assert 10 <= count_watches(str(text), 10) < 10_000, "no more is read than must be"


def test_descriptors_that_the_host_sends_hide_nothing() -> None:
    """A busy worker may leave it waiting; what somebody else sends, nobody can look at."""
    ours, theirs = host_pair(socket.SOCK_STREAM)
    others = socket.socketpair()
    with ours, theirs, others[0], others[1]:
        before = measure_files(["/proc/self"], Limits()).unseen
        socket.send_fds(ours, [b"x"], [0, 1])
        assert measure_files(["/proc/self"], Limits()).unseen == before
        socket.send_fds(others[0], [b"x"], [0, 1, 2])
        assert measure_files(["/proc/self"], Limits()).unseen == before + 3
        for descriptor in socket.recv_fds(others[1], 1, 3)[1]:
            os.close(descriptor)
        assert measure_files(["/proc/self"], Limits()).unseen == before


@pytest.mark.skipif(os.getuid() == 0, reason="root may look at every process")
async def test_a_program_that_nobody_may_read_hides_nothing(tmp_path: Path) -> None:
    code = (
        WATCHES
        + """
import shutil, sys
source = os.path.realpath('/bin/sleep')
file = os.open('secret', os.O_CREAT | os.O_WRONLY, 0o111)
os.write(file, open(source, 'rb').read())
os.close(file)
epoll, files = hold()
os.set_inheritable(epoll.fileno(), True)
for file in files:
    os.set_inheritable(file, True)
if os.fork() == 0:
    os.execv('secret', ['sleep', '60'])
epoll.close()
import time
time.sleep(60)
"""
    )
    async with rig(tmp_path, SMALL, level="confined") as r:
        assert_ended(await r.python(code, timeout_s=50))
