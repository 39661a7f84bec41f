"""What the kernel counts per user: a sandbox cannot take it from the user's other programs."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aisotools.sandbox.confinement import landlock, syscalls
from aisotools.sandbox.confinement.levels import LEVELS
from aisotools.sandbox.process import spawn
from tests.sandbox import inside
from tests.sandbox.conftest import Places
from tests.sandbox.rig import rig
from tests.waiting import HANG_S

pytestmark = pytest.mark.skipif(
    landlock.abi() < 6 or syscalls.architecture() is None, reason="level confined takes Landlock ABI 6"
)

COMMON = """
import array, contextlib, ctypes, fcntl, json, os, resource, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
numbers = json.loads(NUMBERS)

def call(name, *arguments):
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(numbers[name]), *converted)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def send(pair, count):
    held = array.array('i', [1] * count)
    pair[0].sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, held)], socket.MSG_DONTWAIT)

def queue_signal():
    information = ctypes.create_string_buffer(struct.pack('iii', 40, 0, -1), 128)
    call('rt_sigqueueinfo', os.getpid(), 40, information)

def new_timer():
    call('timer_create', 1, 0, ctypes.create_string_buffer(8))

def new_key(number):
    call('add_key', b'user\\0', f'{os.getpid()}-{number}\\0'.encode(), b'v', 1, -2)

def new_queue(number):
    attributes = struct.pack('8q', 0, 8, 8192, 0, 0, 0, 0, 0)
    name = f'{os.getpid()}-{number}\\0'.encode()
    descriptor = call('mq_open', name, os.O_CREAT | os.O_RDWR, 0o600, attributes)
    call('mq_unlink', name)
    return descriptor
"""

ATTACKER = """
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
pairs = [socket.socketpair() for _ in range(8)]
held = []

def many(action, most):
    with contextlib.suppress(OSError):
        for number in range(most):
            held.append(action(number))

quota = config['quota']
if quota == 'descriptors in flight':
    for pair in pairs:
        many(lambda n: send(pair, 253), 400)
elif quota == 'queued signals':
    many(lambda n: queue_signal(), 1 << 20)
elif quota == 'timers':
    many(lambda n: new_timer(), 1 << 20)
elif quota == 'watches on folders':
    many(lambda n: call('inotify_init1', 0), 4096)
elif quota == 'keys':
    many(new_key, 4096)
elif quota == 'message queues':
    many(new_queue, 4096)
elif quota == 'pages of pipes':
    def pipe(n):
        ends = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(ends[1], 1031, 1 << 20)
        return ends
    many(pipe, 2 * 64)
open('ready', 'w').close()
while not os.path.exists('done'):
    time.sleep(0.005)
answer = len(held)
"""

VICTIM = """
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
signal.pthread_sigmask(signal.SIG_BLOCK, [40])

def pipe():
    if fcntl.fcntl(os.pipe()[1], 1032) < 65536:
        raise OSError(12, 'a small one')

failed = {}
for name, action in {
    'descriptors in flight': lambda: send(socket.socketpair(), 32),
    'queued signals': queue_signal,
    'timers': new_timer,
    'watches on folders': lambda: call('inotify_init1', 0),
    'keys': lambda: new_key(0),
    'message queues': lambda: new_queue(0),
    'pages of pipes': pipe,
}.items():
    try:
        action()
    except OSError as error:
        failed[name] = str(error)
print(json.dumps(failed))
"""

QUOTAS = [
    *("descriptors in flight", "queued signals", "timers", "watches on folders", "keys", "message queues"),
    "pages of pipes",
]


def numbers() -> dict[str, int]:
    names = ("rt_sigqueueinfo", "timer_create", "inotify_init1", "add_key", "mq_open", "mq_unlink")
    table = syscalls.NUMBERS[syscalls.architecture() or ""]
    return {name: table[name] for name in names}


def what_fails(quota: str, level: str | None, workspace: Path) -> dict[str, str]:
    """What another program of the same user cannot do while a sandbox of that user takes what it can get."""
    common = COMMON.replace("NUMBERS", repr(json.dumps(numbers())))
    failures: list[BaseException] = []

    def attack() -> None:
        try:
            inside.run(
                common + ATTACKER, who="plain", workspace=str(workspace), level=level, config={"quota": quota}
            )
        except BaseException as error:
            failures.append(error)

    uid = inside.user_of("plain")
    command, user = inside.command_of([sys.executable, "-I", "-c", common + VICTIM], uid)
    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        while not (workspace / "ready").exists() and attacker.is_alive():
            attacker.join(0.005)
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=True,
            env={},
            **user,
        )
    finally:
        (workspace / "done").touch()
        attacker.join()
    assert failures == []
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.sample(4)
@pytest.mark.parametrize("quota", QUOTAS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_sandbox_leaves_others_their_share(level: str, quota: str, place: Places) -> None:
    if not any(probe.name == level and probe.ok for probe in spawn.detection().probes):
        pytest.skip(f"this machine cannot hold the level {level}")
    before = what_fails("nothing", None, place("plain"))
    assert what_fails(quota, level, place("plain")).keys() <= before.keys()


@pytest.mark.sample(1)
@pytest.mark.parametrize("quota", QUOTAS)
def test_the_attempts_succeed_where_nothing_confines(quota: str, place: Places) -> None:
    if quota in what_fails("nothing", None, place("plain")):
        pytest.skip(f"{quota}: not to be had on this machine in any case")
    # At that moment another test of the same user may give back what it held.
    assert any(quota in what_fails(quota, None, place("plain")) for _ in range(5))


async def test_another_session_starts_and_keeps_its_undo(tmp_path: Path) -> None:
    """While one session keeps as many descriptors on their way as it can."""
    hold = """
import array, socket
pairs = [socket.socketpair() for _ in range(8)]
sent = 0
for pair in pairs:
    try:
        while True:
            held = array.array('i', [1] * 253)
            pair[0].sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, held)], socket.MSG_DONTWAIT)
            sent += 253
    except OSError as error:
        last = error.errno
sent
"""
    for level in [probe.name for probe in spawn.detection().probes if probe.ok]:
        if level not in {"isolated", "confined"}:
            continue
        async with rig(tmp_path, level=level, name="one") as one:
            assert await one.value(hold) > 0
            async with rig(tmp_path, level=level, name="two") as two:
                assert await two.value("x = 1; x") == 1
                await two.python("x = 2")
                assert await two.value("x") == 2
