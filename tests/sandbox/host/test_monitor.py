"""Limits: what the kernel does not count is watched, and each has an error that names it and its size."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.types import ToolResult
from aisotools.sandbox.confinement import isolated, landlock
from aisotools.sandbox.host import monitor as monitoring, open_files
from aisotools.sandbox.host.failures import describe_exit
from aisotools.sandbox.host.monitor import (
    ResourceMonitor,
    ResourceUsage,
    count_context_switches,
    count_switches,
    find_exceeded,
    lower_priority,
    measure_usage,
)
from aisotools.sandbox.host.open_files import SOCKET_BYTES, OpenFiles
from aisotools.sandbox.limits import LimitExceeded, Limits, explain_failure
from aisotools.sandbox.process import spawn, tree as processes
from tests.sandbox import inside
from tests.sandbox.conftest import Places
from tests.sandbox.rig import Rig, rig, rss_bytes
from tests.waiting import HANG_S, eventually, wait_until

MIB = 1 << 20


def assert_limit_reported(result: ToolResult, limit: str) -> None:
    """The error that every limit has: which, how much, what to raise."""
    assert result.is_error, result.content
    assert result.metadata["limit"] == limit, result.content
    assert result.metadata["used"] >= result.metadata["allowed"] > 0
    assert f"limits=Limits({limit}=...)" in result.content


# ---- deciding


def test_deciding_is_pure() -> None:
    limits = Limits(memory_bytes=100 * MIB, processes=10, disk_bytes=MIB)
    assert find_exceeded(ResourceUsage(memory_bytes=100 * MIB, processes=10, disk_bytes=MIB), limits) is None
    for name, used in (("memory_bytes", 101 * MIB), ("processes", 11), ("disk_bytes", MIB + 1)):
        found = find_exceeded(ResourceUsage(**{name: used}), limits)
        assert found == LimitExceeded(limit=name, used=used, allowed=getattr(limits, name))
    lifted = Limits(memory_bytes=None, disk_bytes=None)
    assert find_exceeded(ResourceUsage(memory_bytes=1 << 60, disk_bytes=1 << 60), lifted) is None


def test_an_overrun_in_words() -> None:
    words = str(LimitExceeded(limit="memory_bytes", used=5 << 30, allowed=4 << 30))
    assert "5 GiB, 4 GiB allowed" in words
    assert "limits=Limits(memory_bytes=...)" in words


@pytest.mark.parametrize(
    ("content", "limit"),
    [
        ("Traceback ...\nMemoryError", "memory_bytes"),
        ("OSError: [Errno 27] File too large", "file_bytes"),
        ("bash: x: Too many open files", "open_files"),
        ("bash: fork: retry: Resource temporarily unavailable", "processes"),
        ("RuntimeError: can't start new thread", "processes"),
        (describe_exit(-1, 24), "cpu_s"),
    ],
)
def test_a_limit_that_the_kernel_enforced_is_named(content: str, limit: str) -> None:
    limits = Limits(cpu_s=5)
    assert_limit_reported(explain_failure(ToolResult.error(content), limits), limit)
    assert explain_failure(ToolResult.text(content), limits) == ToolResult.text(content)


def test_errors_unrelated_to_limits_are_left_alone() -> None:
    result = ToolResult.error("ZeroDivisionError: division by zero")
    assert explain_failure(result, Limits()) is result
    assert "limit" not in explain_failure(ToolResult.error("SIGXCPU"), Limits(cpu_s=None)).metadata


# ---- a real sandbox


# The kernel counts processes by user: what other tests start beside must not use up those of a sandbox whose
# limit is another one.
TIGHT = Limits(memory_bytes=1 << 30, processes=2000, file_bytes=64 * MIB, disk_bytes=96 * MIB, open_files=64)


@pytest.fixture
async def tight(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, TIGHT, level="confined") as made:
        yield made


# A limit on what several processes hold together takes as long to reach as it is large.
CROWDED = replace(TIGHT, memory_bytes=320 * MIB)


@pytest.fixture
async def crowded(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, CROWDED, level="confined") as made:
        yield made


@pytest.fixture
async def few_processes(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, replace(TIGHT, processes=40), level="confined") as made:
        yield made


async def works(r: Rig) -> None:
    assert await r.value("1 + 1") == 2


async def test_memory_of_one_process(tight: Rig) -> None:
    assert_limit_reported(await tight.python("bytearray(2 << 30)"), "memory_bytes")
    await works(tight)


async def test_memory_of_many_processes(crowded: Rig) -> None:
    """Each stays below the limit of a process; all together do not."""
    code = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(b'x') * (64 << 20)
        time.sleep(60)
time.sleep(60)
"""
    result = await crowded.python(code, timeout_s=50)
    assert_limit_reported(result, "memory_bytes")
    assert result.metadata["used"] < 640 * MIB
    await works(crowded)


async def test_memory_files(tight: Rig) -> None:
    """They would be memory of no process, so there are none: 1.5 GiB is refused every time."""
    code = """
import asyncio
import os
held = [os.memfd_create('x') for _ in range(2)]
for file in held:
    for _ in range(768):
        os.write(file, bytes(1 << 20))
"""
    for _ in range(28):
        result = await tight.python(code)
        assert "Function not implemented" in result.content
    await works(tight)


# What a tree holds that a sum over its processes does not show. Each child stays below every limit of a
# process.
CROWD = """
import ctypes, mmap, os, socket, threading, time
libc = ctypes.CDLL(None)
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

def crowd(count, action):
    for _ in range(count):
        if os.fork() == 0:
            held = action()
            time.sleep(60)
    time.sleep(60)

def fill(size):
    memory = mmap.mmap(-1, size)
    for start in range(0, size, 1 << 20):
        memory[start : start + (1 << 20)] = b'x' * (1 << 20)
    return memory
"""


HIDDEN_MEMORY = pytest.mark.parametrize(
    "attack",
    [
        pytest.param(
            # The first thread ends by the bare system call, and /proc shows nothing of it any more.
            """
def hold():
    def later():
        held = bytearray(b'x') * (64 << 20)
        time.sleep(60)
    threading.Thread(target=later).start()
    libc.syscall(60 if os.uname().machine == 'x86_64' else 93, 0)
crowd(8, hold)
""",
            id="in a process whose first thread has ended",
        ),
        pytest.param(
            """
held = []
for _ in range(8):
    memory = fill(64 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc.munmap(address + 4096, (64 << 20) - 4096)
    held.append(memory)
time.sleep(60)
""",
            id="in shared memory of which one page is mapped",
        ),
        pytest.param(
            """
def hold():
    memory = fill(64 << 20)
    memory.madvise(mmap.MADV_DONTNEED)
    return memory
crowd(8, hold)
""",
            id="in shared memory that was put away",
        ),
        pytest.param(
            """
zero = os.open('/dev/zero', os.O_RDWR)
def hold():
    memory = mmap.mmap(zero, 64 << 20)
    memory[:] = bytes(64 << 20)
    memory.madvise(mmap.MADV_DONTNEED)
    return memory
crowd(8, hold)
""",
            id="in shared memory of a device",
        ),
        pytest.param(
            """
def hold():
    libc.prctl(4, 0, 0, 0, 0)
    return bytearray(b'x') * (64 << 20)
crowd(8, hold)
""",
            id="in processes that hide",
        ),
        pytest.param(
            """
def hold():
    pairs = [socket.socketpair() for _ in range(27)]
    for pair in pairs:
        for end in pair:
            end.setblocking(False)
            try:
                while True:
                    end.send(bytes(1 << 16))
            except BlockingIOError:
                pass
    return pairs
crowd(13, hold)
""",
            id="in buffers of sockets",
        ),
    ],
)


@pytest.mark.sample(3)
@HIDDEN_MEMORY
async def test_memory_that_no_process_shows(crowded: Rig, attack: str) -> None:
    assert_limit_reported(await crowded.python(CROWD + attack, timeout_s=200), "memory_bytes")
    await works(crowded)


@pytest.mark.sample(2)
@HIDDEN_MEMORY
async def test_hidden_memory_is_had_where_nothing_limits_it(tmp_path: Path, attack: str) -> None:
    """The control: the same code holds more than that, and goes on."""
    async with rig(tmp_path, replace(CROWDED, memory_bytes=None), level="confined") as r:
        await r.python("1")
        calling = asyncio.create_task(r.python(CROWD + attack, timeout_s=200))
        assert CROWDED.memory_bytes is not None
        wanted = CROWDED.memory_bytes
        await eventually(lambda: measure_usage(r.kernel.supervisor, Limits()).memory_bytes > wanted)
        assert (calling.done(), r.reported.losses) == (False, [])
        await r.kernel.interrupt()
        await calling


# Memory that belongs to files, and is in no process's size. What is found is in MiB.
HOLD = """
import contextlib, ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
size = 64 << 20

def resident():
    with contextlib.suppress(PermissionError):  # as in a sandbox
        return int(open('/proc/self/statm').read().split()[1]) * 4096
    return 0

def write(file):
    for _ in range(config['mib']):
        os.write(file, bytes(1 << 20))
    held = os.fstat(file).st_blocks * 512
    os.close(file)
    return held

def in_memfd():
    return write(os.memfd_create('x'))

def in_shm():
    path = f'/dev/shm/aisotools-test-{os.getpid()}'
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    return write(file)

def in_system_v():
    number = libc.shmget(0, ctypes.c_size_t(size), 0o1600)
    if number < 0:
        raise OSError(ctypes.get_errno(), 'shmget')
    try:
        address = libc.shmat(number, None, 0)
        libc.memset(ctypes.c_void_p(address), 1, ctypes.c_size_t(size))
        libc.shmdt(ctypes.c_void_p(address))
        return size
    finally:
        libc.shmctl(number, 0, None)

before = resident()
try:
    held = globals()[config['where']]()
    answer = [held >> 20, resident() - before >> 20]
except OSError as error:
    answer = os.strerror(error.errno)
"""
IN_FILES = pytest.mark.parametrize("where", ["in_memfd", "in_shm", "in_system_v"])


@IN_FILES
@pytest.mark.parametrize("level", ["isolated", "confined"])
@pytest.mark.parametrize("who", ["root", "plain"])
def test_memory_of_files_without_a_process(who: inside.Who, level: str, where: str, place: Places) -> None:
    if not any(probe.name == level and probe.ok for probe in spawn.detection().probes):
        pytest.skip(f"level {level} does not hold here")
    # At `isolated` there is a folder of that name, which is its own and has so much room.
    config = {"where": where, "mib": (isolated.MEMORY_FOLDER_BYTES >> 20) + 1}
    done = inside.run(HOLD, who=who, level=level, workspace=str(place(who)), config=config)
    refused = {errno.ENOSYS, errno.EPERM, errno.EACCES}
    room = {errno.ENOSPC} if (where, level) == ("in_shm", "isolated") else set()
    assert done.answer in {os.strerror(code) for code in refused | room}


@IN_FILES
def test_memory_of_files_is_had_where_nothing_confines(where: str, place: Places) -> None:
    """The control: the memory is there, and the process is no larger for it."""
    config = {"where": where, "mib": 64}
    done = inside.run(HOLD, who="plain", level=None, workspace=str(place("plain")), config=config)
    held, grown = done.answer
    assert held >= 64
    assert grown < 8


CACHED = """
import ctypes, mmap, os
libc = ctypes.CDLL(None)
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
resident = 0
for number in range(4):
    with open(f'cached-{number}', 'w+b') as file:
        file.write(bytes(48 << 20))
        file.flush()
        memory = mmap.mmap(file.fileno(), 0)
    view = ctypes.c_char.from_buffer(memory)
    pages = ctypes.create_string_buffer(len(memory) // 4096)
    assert libc.mincore(ctypes.addressof(view), len(memory), pages) == 0
    resident += sum(byte & 1 for byte in pages.raw)
import time
while WAIT: time.sleep(0.01)
resident // 256
"""


async def test_memory_of_the_page_cache_ends_with_the_disk_space(tight: Rig) -> None:
    """What the kernel caches of files that were written belongs to no process either."""
    assert_limit_reported(await tight.python(CACHED.replace("WAIT", "True"), timeout_s=50), "disk_bytes")
    await works(tight)


async def test_memory_of_the_page_cache_is_had_where_nothing_limits_it(tmp_path: Path) -> None:
    """The control: what was written is in memory."""
    async with rig(tmp_path, replace(TIGHT, disk_bytes=None), level="confined") as r:
        assert await r.value(CACHED.replace("WAIT", "False"), timeout_s=50) > 96


async def test_shared_memory_in_use_is_counted_once(tmp_path: Path) -> None:
    """Sixteen processes share 100 MiB below a limit of 1.5 GiB, and nobody is ended for it.

    It leaves room for the shared memory of others, which counts as that of a sandbox that has some itself.
    """
    code = (
        CROWD
        + """
memory = fill(100 << 20)
children = []
for _ in range(16):
    child = os.fork()
    if child == 0:
        memory[: 100 << 20 : 4096]
        time.sleep(60)
    children.append(child)
time.sleep(1.5)
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
len(children)
"""
    )
    async with rig(tmp_path, Limits(memory_bytes=3 << 29), level="confined") as r:
        assert await r.value(code, timeout_s=50) == 16
        assert r.reported.losses == []


async def test_open_files_of_all_processes(tmp_path: Path) -> None:
    limits = Limits(open_files=128, open_files_total=1000)
    code = CROWD + "crowd(20, lambda: [open('/dev/null') for _ in range(90)])"
    async with rig(tmp_path, limits, level="confined") as r:
        assert_limit_reported(await r.python(code, timeout_s=50), "open_files_total")
        await works(r)


async def test_epolls_count_for_more(tmp_path: Path) -> None:
    """Each holds as many watches as its process may have files, and a user has so many watches in all."""
    limits = Limits(open_files=128, open_files_total=1000)
    code = CROWD + "import select\ncrowd(8, lambda: [select.epoll() for _ in range(50)])"
    async with rig(tmp_path, limits, level="confined") as r:
        assert_limit_reported(await r.python(code, timeout_s=50), "open_files_total")


async def test_files_of_a_thread_alone(tight: Rig) -> None:
    """They would not be seen, so there is no thread that does not share those of its process."""
    code = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
numbers = {'x86_64': (56, 436), 'aarch64': (220, 436)}[os.uname().machine]
results = []
for number, *arguments in ((numbers[0], 0x3D0F00 & ~0x400, 0, 0, 0, 0), (numbers[1], 900, 901, 2)):
    assert libc.syscall(number, *map(ctypes.c_long, arguments)) == -1
    results.append(errno.errorcode[ctypes.get_errno()])
results
"""
    assert await tight.value(code) == ["EPERM", "EINVAL"]


def test_an_estimate_is_exact_as_far_as_that_is_quick() -> None:
    me = os.getpid()
    exact, resident = monitoring.pss_bytes(me), rss_bytes()
    # Without time for a thread it is what is resident.
    assert monitoring.estimate_memory([me], budget_s=-1) >= resident * 0.9
    assert 0 < exact <= monitoring.estimate_memory([me], budget_s=HANG_S) * 1.1
    assert monitoring.estimate_memory([]) == 0


async def test_samples_are_taken_in_a_thread(tmp_path: Path) -> None:
    """Where a look at a large tree, which takes seconds, holds up nobody."""
    threads: list[int] = []

    def supervisor() -> int:
        threads.append(threading.get_ident())
        return os.getpid()

    monitor = ResourceMonitor(
        supervisor, Limits(), folders=(), is_busy=lambda: True, on_exceeded=lambda _: None
    )
    try:
        await eventually(lambda: len(threads) >= 2)
    finally:
        monitor.stop()
    assert threading.get_ident() not in threads


async def test_disk_space_that_a_stopped_call_still_wrote_is_not_charged_to_the_next(tmp_path: Path) -> None:
    reports: list[LimitExceeded] = []
    monitor = ResourceMonitor(
        os.getpid,
        Limits(disk_bytes=1 << 20),
        folders=[str(tmp_path)],
        is_busy=lambda: False,
        on_exceeded=reports.append,
    )
    monitor._timer.cancel()  # looks of its own would be others in between
    try:
        for name in ("before the report", "after the report"):
            (tmp_path / name).write_bytes(bytes(2 << 20))
            if not reports:
                await monitor._walk()
        assert [report.limit for report in reports] == ["disk_bytes"]
        await monitor.accept_disk()
        await monitor._walk()
        assert len(reports) == 1
        (tmp_path / "by the next call").write_bytes(bytes(1 << 20))
        await monitor._walk()
        assert len(reports) == 2
    finally:
        monitor.stop()


async def test_a_sample_whose_thread_is_late_counts_from_before_it() -> None:
    """What a process uses while the thread waits for a processor may be what the kernel kills it for."""
    measuring, release = threading.Event(), threading.Event()

    def supervisor() -> int:
        measuring.set()
        release.wait(HANG_S)
        return os.getpid()

    monitor = ResourceMonitor(
        supervisor, Limits(), folders=(), is_busy=lambda: True, on_exceeded=lambda _: None
    )
    try:
        await eventually(measuring.is_set)
        late_s = time.monotonic()
        release.set()
        await eventually(lambda: monitor._cpu_samples)
    finally:
        release.set()
        monitor.stop()
    assert monitor._cpu_samples[0].began_s <= late_s


def test_the_memory_of_a_process_that_may_not_be_looked_at(tmp_path: Path) -> None:
    """It counts at its most: all that is resident, and as if it held what is hidden."""
    (tmp_path / "hidden").touch()  # below a file nothing can be opened
    size = monitoring._Size(str(tmp_path / "hidden"), 3 * MIB, 2 * MIB)
    assert monitoring._measure_memory([size], MIB, grown=0, kernel=0) == 2 * MIB
    assert monitoring._measure_memory([size], MIB, grown=5 * MIB, kernel=MIB) == 2 * MIB + 5 * MIB + MIB
    gone = monitoring._Size(str(tmp_path / "gone"), 3 * MIB, 2 * MIB)
    assert monitoring._measure_memory([gone], MIB, grown=0, kernel=0) == 0


async def test_processes_that_ended_and_were_not_reaped_take_nothing(tmp_path: Path) -> None:
    """A plain user may not look at the files of a zombie, which has none."""
    code = (
        "import subprocess\nended = [subprocess.Popen('true') for _ in range(40)]\nimport time; time.sleep(1)"
    )
    async with rig(tmp_path, level="confined") as r:
        await r.python("1")
        before = measure_usage(r.kernel.supervisor, Limits())
        assert not (await r.python(code)).is_error
        after = measure_usage(r.kernel.supervisor, Limits())
        assert len(processes.descendants(r.kernel.supervisor)) > 40, "they are still there"
        assert after.open_files_total < before.open_files_total + 40
        assert after.memory_bytes < before.memory_bytes + 40 * MIB
        assert r.reported.losses == []


def test_files_of_a_process_without_memory_are_not_looked_for(tmp_path: Path) -> None:
    (tmp_path / "fd").mkdir()
    for number in range(300):
        (tmp_path / "fd" / str(number)).symlink_to(f"socket:[{number}]")
    ended, running = (monitoring._Size(str(tmp_path), size, size) for size in (0, MIB))
    assert monitoring._measure_files([ended], Limits()) == OpenFiles()
    assert monitoring._measure_files([running], Limits()).kernel_bytes == 300 * SOCKET_BYTES


def test_sockets_of_a_network_count_by_what_waits_in_them(tmp_path: Path) -> None:
    line = "  {}: 0100007F:1F90 0100007F:9C40 08 {:08X}:{:08X} 00:00000000 00000000 0 0 1\n"

    def network(idle: int, sending: int, both: int, sockets: int) -> int:
        queues = [(0, 0)] * idle + [(1, 0)] * sending + [(9, 9)] * both
        table = "  sl  local_address\n" + "".join(line.format(n, *queue) for n, queue in enumerate(queues))
        (tmp_path / "tcp").write_text(table)
        used = len(queues) + sockets
        (tmp_path / "sockstat").write_text(f"sockets: used {used}\nTCP: inuse {len(queues)} orphan 9 tw 9\n")
        return monitoring._network_bytes(str(tmp_path))

    assert network(30, 30, 4, 60) == 0  # few, as of a notebook
    assert network(1000, 0, 0, 0) == 1000 * monitoring._EMPTY_SOCKET_BYTES
    full = network(0, 100, 100, 0)
    assert full == 200 * monitoring._EMPTY_SOCKET_BYTES + 150 * SOCKET_BYTES
    assert network(0, 0, 0, 164) == 100 * SOCKET_BYTES
    (tmp_path / "sockstat6").write_text("TCP6: inuse 30000\n")
    assert network(0, 0, 0, 30_000) == 30_000 * SOCKET_BYTES
    (tmp_path / "sockstat").unlink()
    (tmp_path / "sockstat6").unlink()
    assert monitoring._network_bytes(str(tmp_path)) == 0  # it has ended
    assert monitoring.network_bytes([os.getpid()]) == 0


RULES = """
import ctypes, errno, os, struct
libc = ctypes.CDLL(None, use_errno=True)
attributes = struct.pack('QQQ', 1, 3, 0)
ruleset = libc.syscall(444, attributes, ctypes.c_size_t(24), 0)
def add(kind, *rule):
    rule = struct.pack(*rule)
    return errno.errorcode.get(libc.syscall(445, ruleset, kind, rule, 0) and ctypes.get_errno(), 'added')
[ruleset > 2, add(2, 'QQ', 3, 80), add(1, '=Qi', 1, os.open('/usr', os.O_PATH))]
"""


@pytest.mark.parametrize("level", ["confined", "isolated"])
async def test_rules_on_ports_which_the_kernel_keeps_for_nobody_cannot_be_made(
    tmp_path: Path, level: str
) -> None:
    if not any(probe.name == level and probe.ok for probe in spawn.detection().probes):
        pytest.skip(f"level {level} does not hold here")
    if landlock.abi() < 6:
        pytest.skip("an older kernel knows no such rules, or no scopes")
    async with rig(tmp_path, level=level) as r:
        assert await r.value(RULES) == [True, "EINVAL", "added"]


def test_rule_sets_count(tmp_path: Path) -> None:
    (tmp_path / "fd").mkdir()
    for number in range(300):
        target = "anon_inode:[landlock-ruleset]" if number < 10 else "/dev/null"
        (tmp_path / "fd" / str(number)).symlink_to(target)
    size = monitoring._Size(str(tmp_path), MIB, MIB)
    assert monitoring._measure_files([size], Limits()).kernel_bytes == 10 * open_files._RULESET_BYTES


QUEUES = """
import socket
listeners, sent, connections = [], 0, 0
for _ in range({listeners}):
    listener = socket.create_server(('127.0.0.1', 0), backlog=4096)
    listeners.append(listener)
    for _ in range(200):
        client = socket.socket()
        client.settimeout(0.3)
        try:
            client.connect(listener.getsockname())
        except TimeoutError:
            break
        client.setblocking(False)
        try:
            while True:
                sent += client.send(bytes(1 << 16))
        except BlockingIOError:
            pass
        client.close()
        connections += 1
[connections, sent]
"""


async def test_connections_that_nobody_accepts_count(tmp_path: Path) -> None:
    """They belong to no descriptor, and so does what their other ends, closed by now, could not send."""
    if spawn.detection().level != "isolated":
        pytest.skip("only level isolated has a network")
    async with rig(tmp_path, level="isolated") as r:
        connections, sent = await r.value(QUEUES.format(listeners=2), timeout_s=50)
        assert 100 < connections <= 2 * 129  # those that wait at one socket are few
        assert sent > 20 * MIB  # the control: the kernel has it
        tree = processes.below(r.kernel.supervisor, processes.table())
        counted = monitoring.network_bytes(tree)
        assert sent < counted < 2 * connections * SOCKET_BYTES
        resident = sum(size.resident for size in monitoring._sizes(tree))
        usage = measure_usage(r.kernel.supervisor, Limits(memory_bytes=resident + sent // 2))
        assert usage.memory_bytes > resident // 4 + sent


MAPPINGS = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p

def divide(count):
    start = libc.mmap(None, ctypes.c_size_t(count * 4096), 1, 0x22, -1, ctypes.c_long(0))
    for page in range(0, count, 2):
        libc.mprotect(ctypes.c_void_p(start + page * 4096), ctypes.c_size_t(4096), 0)
"""


async def test_mappings_that_take_memory_of_no_process_count(tmp_path: Path) -> None:
    """Each takes some hundred bytes of the kernel's, and a process may have 65,000."""
    code = (
        MAPPINGS
        + "divide(20_000)\nfor _ in range(30):\n    if os.fork() == 0: time.sleep(60)\ntime.sleep(60)"
    )
    async with rig(tmp_path, Limits(memory_bytes=256 * MIB), level="confined") as r:
        await r.python("1")
        assert_limit_reported(await r.python(code, timeout_s=50), "memory_bytes")
        await works(r)


def test_mappings_are_counted_exactly_only_where_they_may_be_too_many() -> None:
    code = MAPPINGS + "divide({})\nprint(flush=True)\ntime.sleep(1000)"
    for made, is_few in ((2000, True), (20_000, False)):
        with subprocess.Popen([sys.executable, "-c", code.format(made)], stdout=subprocess.PIPE) as child:
            try:
                assert child.stdout is not None
                child.stdout.readline()
                (size,) = monitoring._sizes([child.pid])
                real = len(Path(f"/proc/{child.pid}/maps").read_text().splitlines())
                assert real > made
                assert monitoring._count_mappings(size) == (
                    real if is_few else monitoring._most_mappings(size)
                )
                assert real <= monitoring._most_mappings(size) <= size.virtual // 4096
                found = monitoring._measure_mappings([size], 0)
                assert found >= real * monitoring._MAPPING_BYTES
                assert found - monitoring._count_mappings(size) * monitoring._MAPPING_BYTES < MIB
                assert monitoring._measure_mappings([size], 1 << 40) == 0, "nothing is read"
            finally:
                child.kill()


TABLES = """
import mmap, time
memory = mmap.mmap(-1, 8 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
memory.madvise(mmap.MADV_NOHUGEPAGE)
for start in range(0, 8 << 30, 2 << 20): memory[start] = 1
print(flush=True)
time.sleep(1000)
"""


def test_page_tables_count_beside_what_they_lead_to() -> None:
    """Each page that is touched alone in its 2 MiB takes another one, which is in no process's size."""
    with subprocess.Popen([sys.executable, "-c", TABLES], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            (size,) = monitoring._sizes([child.pid])
            assert size.resident < 40 * MIB
            assert monitoring._measure_mappings([size], 0) >= 16 * MIB
        finally:
            child.kill()


def test_mappings_of_a_process_that_may_not_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "hidden").touch()  # below a file nothing can be opened
    size = monitoring._Size(str(tmp_path / "hidden"), 8 * MIB, MIB)
    assert monitoring._measure_mappings([size], 0) == 2048 * monitoring._MAPPING_BYTES + (8 * MIB) // 512


@pytest.mark.parametrize(
    ("cost_s", "is_busy", "wait_s"), [(0, True, 0.1), (0, False, 1), (0.004, True, 0.4), (1, True, 4)]
)
async def test_samples_are_ten_a_second_while_calls_run_and_fewer_where_they_cost_much(
    cost_s: float, is_busy: bool, wait_s: float
) -> None:
    assert monitoring.pause_after(cost_s, is_busy=is_busy) == wait_s
    monitor = ResourceMonitor(
        lambda: 0, Limits(), folders=(), is_busy=lambda: is_busy, on_exceeded=lambda _: None
    )
    try:
        began_s = monitor._loop.time()
        await monitor._sample()
        assert monitor._timer.when() >= began_s + (0.1 if is_busy else 1)
        assert monitor._timer.when() <= monitor._loop.time() + 1  # a look at nothing costs next to nothing
    finally:
        monitor.stop()


async def test_a_call_that_begins_in_an_idle_sandbox_does_not_run_unseen_for_a_second() -> None:
    monitor = ResourceMonitor(
        lambda: 0, Limits(), folders=(), is_busy=lambda: False, on_exceeded=lambda _: None
    )
    try:
        await monitor._sample()
        assert monitor._timer.when() > monitor._loop.time() + 0.5, "the control: it is idle"
        monitor.note_call()
        soon_s = monitor._timer.when()
        assert soon_s <= monitor._loop.time() + 0.5
        monitor.note_call()
        assert monitor._timer.when() == soon_s, "many calls do not put it off"
        await monitor._sample()
        expensive_s = monitor._rested_at_s = monitor._loop.time() + 0.5
        monitor.note_call()
        assert monitor._timer.when() == expensive_s, "samples take no more of a processor for that"
        monitor.stop()
        monitor.note_call()
        assert monitor._timer.cancelled()
    finally:
        monitor.stop()


@pytest.mark.parametrize("exceeded", [True, False])
async def test_a_look_that_ended_what_made_it_expensive_puts_off_no_other(exceeded: bool) -> None:
    """Else each attempt would have several times as long as the one before, until it has what it wants."""

    def supervisor() -> int:
        began_s = time.thread_time()
        while time.thread_time() < began_s + 0.5:
            pass
        return os.getpid()

    reports: list[LimitExceeded] = []
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(450 if exceeded else 0)]
    child = await asyncio.create_subprocess_exec("sleep", "1000", pass_fds=files)
    limits = Limits(memory_bytes=None, open_files_total=400)
    monitor = ResourceMonitor(
        supervisor, limits, folders=(), is_busy=lambda: True, on_exceeded=reports.append
    )
    try:
        monitor._timer.cancel()
        await monitor._sample()
        assert [report.limit for report in reports] == ["open_files_total"] * exceeded
        left_s = monitor._timer.when() - monitor._loop.time()
        assert left_s <= 0.1 if exceeded else left_s > 1
    finally:
        monitor.stop()
        child.kill()
        await child.wait()
        for file in files:
            os.close(file)


async def test_watches_made_at_once_after_a_pause_are_seen(tmp_path: Path) -> None:
    """They stay until they are seen; how soon that is, the tests of the pauses between samples tell."""
    code = """
import os, select, time
files = [file for _ in range(4) for file in os.pipe()]
epoll = select.epoll()
for file in files:
    for number in range(40, 120):
        os.dup2(file, number)
        epoll.register(number, select.EPOLLIN)
        os.close(number)
time.sleep(600)
"""
    async with rig(tmp_path, Limits(open_files=128, open_files_total=500), level="confined") as r:
        await r.python("1")
        assert r.kernel._connection is not None
        monitor = r.kernel._connection.monitor
        assert monitor is not None
        for _ in range(2):  # each begins just after a sample, when the next is a second away
            monitor._timer.cancel()
            if monitor._sample_task is not None:
                await asyncio.wait([monitor._sample_task])
                monitor._timer.cancel()
            await monitor._sample()
            assert_limit_reported(await r.python(code, timeout_s=50), "open_files_total")


def test_only_what_stays_hidden_ends_a_sandbox() -> None:
    seen, unseen = ResourceUsage(open_files_total=9), ResourceUsage(open_files_total=9, unseen_files=2)
    limits = Limits(open_files_total=100)
    assert monitoring.find_hidden([unseen, seen, unseen], limits) is None
    assert monitoring.find_hidden([], limits) is None
    found = monitoring.find_hidden([unseen] * 3, limits)
    assert found == LimitExceeded(limit="open_files_total", used=209, allowed=100)


def test_memory_shared_by_more_and_more_processes_counts_once() -> None:
    sizes = [monitoring._Size(f"/proc/{n}", 400 * MIB, 300 * MIB) for n in range(16)]
    sharing = 0

    def read(folder: str) -> tuple[int, int]:
        nonlocal sharing
        sharing = max(sharing, int(folder[6:]) + 1)  # each maps it just before it is read
        return 300 * MIB // sharing, 0

    assert monitoring._measure_memory(sizes, 512 * MIB, grown=0, kernel=0, read=read) <= 300 * MIB


def test_memory_shared_by_fewer_and_fewer_processes_counts_once() -> None:
    sizes = [monitoring._Size(f"/proc/{n}", 400 * MIB, 300 * MIB) for n in range(16)]
    alive = set(range(16))

    def read(folder: str) -> tuple[int, int]:
        if (number := int(folder[6:])) not in alive:
            raise FileNotFoundError
        used = 300 * MIB // len(alive)
        if len(alive) > 1:
            alive.remove(number)  # it ends as soon as it was read
        return used, 0

    assert monitoring._measure_memory(sizes, 512 * MIB, grown=0, kernel=0, read=read) <= 300 * MIB


async def test_processes(few_processes: Rig) -> None:
    code = "import os, time\nfor _ in range(60):\n    if os.fork() == 0: time.sleep(60)\ntime.sleep(60)"
    assert_limit_reported(await few_processes.python(code, timeout_s=50), "processes")
    await works(few_processes)


async def test_processes_of_a_daemon_after_its_call(few_processes: Rig) -> None:
    """The watch bounds them, or the kernel before it, which counts those of every user but root."""
    code = """
import errno, os, time
if os.fork() == 0:
    os.setsid()
    while not os.path.exists('go'): time.sleep(0.01)
    try:
        for _ in range(60):
            if os.fork() == 0: time.sleep(600)
    except OSError as error:
        open('refused.part', 'w').write(errno.errorcode[error.errno])
        os.rename('refused.part', 'refused')
    time.sleep(600)
"""
    assert not (await few_processes.python(code)).is_error
    (few_processes.workspace / "go").touch()
    refused = few_processes.workspace / "refused"
    await eventually(lambda: few_processes.reported.losses or refused.exists())
    if few_processes.reported.losses:
        assert "processes" in few_processes.reported.losses[0][1]
    else:
        assert refused.read_text() == "EAGAIN"
        result = await few_processes.bash("true")
        if result.is_error:  # else other processes of the same user have ended since
            assert_limit_reported(result, "processes")
        await few_processes.kernel.restart()
    await works(few_processes)


async def test_one_file(tight: Rig) -> None:
    assert_limit_reported(await tight.python("open('big', 'wb').write(bytes(65 << 20))"), "file_bytes")
    assert_limit_reported(await tight.bash("head -c 70000000 /dev/zero > big"), "file_bytes")


async def test_disk(tight: Rig) -> None:
    code = """
import time
for n in range(10):
    open(f'part{n}', 'wb').write(bytes(20 << 20))
time.sleep(60)
"""
    result = await tight.python(code, timeout_s=50)
    assert_limit_reported(result, "disk_bytes")
    assert "KeyboardInterrupt" in result.content
    # the variables are kept, and cleaning up is possible
    assert await tight.value("n") > 3
    cleaned = await tight.bash("rm part*; sleep 1; ls")
    assert not cleaned.is_error, cleaned.content
    await works(tight)


async def test_disk_of_the_scratch_folder(tight: Rig) -> None:
    code = """
import os, tempfile, time
for n in range(10):
    open(f'{tempfile.gettempdir()}/part{n}', 'wb').write(bytes(20 << 20))
time.sleep(60)
"""
    assert_limit_reported(await tight.python(code, timeout_s=50), "disk_bytes")


async def test_open_files(tight: Rig) -> None:
    assert_limit_reported(await tight.python("held = [open('/dev/null') for _ in range(100)]"), "open_files")


async def test_processor_time(tmp_path: Path) -> None:
    async with rig(tmp_path, Limits(cpu_s=1), level="confined") as r:
        assert_limit_reported(await r.python("while True: pass", timeout_s=50), "cpu_s")
        assert_limit_reported(await r.bash("while true; do :; done"), "cpu_s")
        await works(r)


async def test_processor_time_is_named_without_the_monitor(tmp_path: Path) -> None:
    # On a busy machine no sample may show the process that has used up its time: the kernel's signal does.
    async with rig(tmp_path, Limits(cpu_s=1), level="confined") as r:
        for run, code in (
            (r.python, "while True: pass"),
            (r.bash, "while true; do :; done"),
            (r.bash, "bash -c 'while true; do :; done'; exit $?"),
        ):
            await works(r)
            connection: Any = r.kernel._connection
            connection.monitor.stop()
            connection.monitor._cpu_samples.clear()
            assert_limit_reported(await run(code, timeout_s=50), "cpu_s")


async def test_processor_time_of_code_that_ignores_the_signal_ends_a_second_later(tmp_path: Path) -> None:
    code = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    async with rig(tmp_path, Limits(cpu_s=1), level="confined") as r:
        assert_limit_reported(await r.python(code, timeout_s=50), "cpu_s")
        await works(r)


async def test_usage_of_a_running_sandbox(tight: Rig) -> None:
    await tight.python("1")
    usage = measure_usage(tight.kernel.supervisor, Limits(cpu_s=100))
    assert usage.processes >= 1
    assert usage.memory_bytes > MIB
    assert usage.cpu_s >= 0
    assert measure_usage(0, Limits()) == ResourceUsage(), "a supervisor that is not known yet"


def test_processes_outside_the_namespace_of_the_sandbox_do_not_count() -> None:
    """The supervisor of an isolated sandbox forks at times, to mount what rules deny: none of its code."""
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "sh", "-c", "read end; :"]

    def find_inner(outer: int) -> list[int]:
        return [pid for pid in processes.descendants(outer) if processes.number_inside(pid) == 1]

    with subprocess.Popen(command, stdin=subprocess.PIPE) as outer:
        try:
            wait_until(lambda: find_inner(outer.pid))
            (inner,) = find_inner(outer.pid)
            assert {pid for pid, _ in count_switches([outer.pid, inner])} == {outer.pid, inner}
            assert {pid for pid, _ in count_switches([outer.pid, inner], nested=True)} == {inner}
        finally:
            outer.communicate(b"\n")


async def test_a_worker_at_rest_does_not_run(tight: Rig, tmp_path: Path) -> None:
    await tight.python("1")
    assert tight.kernel._connection is not None
    supervisor, monitor = tight.kernel.supervisor, tight.kernel._connection.monitor
    assert monitor is not None
    for number in range(20):  # what the call has left to do may take its time
        before = count_context_switches(supervisor)
        await monitor._sample()
        # Takes longer than anything that polls would wait.
        async with rig(tmp_path, name=f"other{number}") as other:
            await other.bash("true")
        if count_context_switches(supervisor) == before != {}:
            break
    else:
        raise AssertionError("it ran whenever it was looked at")
    await tight.python("2")
    before = count_context_switches(supervisor)
    await tight.python("import time; time.sleep(0.01)")
    assert count_context_switches(supervisor) != before
    assert count_context_switches(0) == {}
    await tight.python(
        "import threading\nfor _ in range(9): threading.Thread(target=time.sleep, args=(60,)).start()"
    )
    assert count_context_switches(supervisor, max_threads=9) is None


def test_a_thread_that_never_stops_counts_as_another_number_each_time() -> None:
    """The kernel counts a thread when it stops; one that has a processor to itself would seem to be idle."""
    spinning = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    )
    try:
        assert spinning.stdout is not None
        spinning.stdout.readline()
        with spinning.stdout:
            key = spinning.pid, spinning.pid
            counts = [(count_context_switches(os.getpid()) or {})[key] for _ in range(200)]
    finally:
        spinning.kill()
        spinning.wait()
    assert len({*counts}) == len(counts)
    sleeping = subprocess.Popen(["sleep", "1000"])
    try:
        key = sleeping.pid, sleeping.pid
        wait_until(lambda: (count_context_switches(os.getpid()) or {})[key] > 0)
        wait_until(lambda: len({(count_context_switches(os.getpid()) or {})[key] for _ in range(9)}) == 1)
    finally:
        sleeping.kill()
        sleeping.wait()


def test_a_name_adds_nothing_to_the_context_switches() -> None:
    """A program that counts its name down by what it runs would look as if it had not run."""
    code = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'ctxt_switches:9')\n"
    code += "print(flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            path = Path(f"/proc/{child.pid}/status")
            assert "ctxt_switches:9" in path.read_text().splitlines()[0]

            def is_exact() -> bool:
                before = path.read_text()
                counted = (count_context_switches(os.getpid()) or {})[child.pid, child.pid]
                switches = [
                    int(line.split()[1]) for line in before.splitlines()[1:] if "ctxt_switches" in line
                ]
                return before == path.read_text() and counted == sum(switches)

            wait_until(is_exact)
        finally:
            child.kill()


# ---- sharing processors

START = """
import os, subprocess, sys, threading, time
for _ in range(2): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
pids = [subprocess.Popen(["sleep", "600"], start_new_session=True).pid for _ in range(5)]
print(os.getpid(), *pids, flush=True)
sys.stdin.read()
for pid in pids: subprocess.run(["kill", str(pid)])
"""


@dataclass(frozen=True)
class Started:
    """A process `top` below `root`, with three threads, and five below that, each in a session of its own."""

    root: int
    top: int
    pids: list[int]


@pytest.fixture
def started() -> Iterator[Started]:
    command = ["sh", "-c", '"$0" "$@"; true', sys.executable, "-c", START]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as root:
        assert root.stdout is not None
        top, *pids = map(int, root.stdout.readline().split())
        yield Started(root.pid, top, pids)
        root.communicate()


def priorities(pid: int) -> list[int]:
    threads = sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    return [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads]


def test_threads_beyond_a_few_have_the_lowest_priority(started: Started) -> None:
    root, top, pids = started.root, started.top, started.pids
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    lower_priority(root, [], processors=2)  # eight threads keep theirs, and there are as many
    assert {priority for pid in (top, *pids) for priority in priorities(pid)} == {usual}
    lower_priority(root, [top], processors=1)
    assert [priorities(pid) for pid in (top, *pids)] == [[usual] * 3, [usual], [usual], [19], [19], [19]]
    lower_priority(root, [], processors=1)
    assert [priorities(pid) for pid in (top, *pids)] == [[usual] * 3, [usual], *[[19]] * 4]
    lower_priority(root, [top, *pids], processors=0)
    assert priorities(top) == [usual, 19, 19], "of those that hold variables, the main thread keeps it"
    assert priorities(pids[0]) == [usual]
    lower_priority(root, [], processors=0)
    assert {priority for pid in (top, *pids) for priority in priorities(pid)} == {19}


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="sessions are no groups of this kernel")
def test_sessions_beyond_a_few_have_the_lowest_priority(started: Started) -> None:
    root, top, pids = started.root, started.top, started.pids

    def found() -> list[int]:
        return [int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1]) for pid in (top, *pids)]

    def lower(*exempt: int) -> bool:
        lower_priority(root, exempt, processors=1)
        return 19 in found()

    lower_priority(root, [], processors=3)  # six sessions keep theirs, and there are as many
    assert found() == [0] * 6
    # A user who is not root may change ten a second.
    wait_until(lambda: lower(pids[3]) and found() == [0, 0, 19, 19, 0, 19])
    wait_until(lambda: lower() and found() == [0, 0, 19, 19, 19, 19])


async def test_priority_of_what_a_sandbox_has_many_of_is_lowered_while_it_runs(tight: Rig) -> None:
    count = 4 * len(os.sched_getaffinity(0)) + 1
    code = f"import subprocess\n[subprocess.Popen(['sleep', '600']).pid for _ in range({count})]"
    newest = (await tight.value(code))[-1]
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    await eventually(lambda: priorities(newest) == [19])
    assert priorities(tight.kernel.status().pid)[0] == usual
