"""Forks of a live interpreter, each in a process of its own: pytest's must not lose its sockets."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aisotools.sandbox.worker import fork
from tests.sandbox.worker.interpreter import run_alone

HEAD = """
import concurrent.futures, errno, json, os, random, select, signal, socket, subprocess, sys, threading, time
from aisotools.sandbox.frames import BlockingChannel, encode
from aisotools.sandbox.worker import children, fork

def report(value):
    print(json.dumps(value), flush=True)
"""


def run(code: str, folder: Path) -> Any:
    return run_alone(HEAD + code, folder)


TAKE = """
def take(point, end):
    '''Take a snapshot; in a woken fork, report the namespace and end.'''
    woken = point.take_snapshot(end.detach(), own=())
    if woken is not None:
        woken.channel.send('state', {'x': point.namespace['x'], 'random': random.random()})
        os._exit(0)

def receive(channel):
    frames = []
    while not frames:
        frames = channel.receive()
    return [[frame.op, dict(frame.header)] for frame in frames]

def wake(ours):
    end, theirs = socket.socketpair()
    while True:
        try:
            socket.send_fds(ours, [encode('wake', {'strangers': False})], [theirs.fileno()])
            break
        except OSError as error:  # another test of this user has too many descriptors on their way just now
            if error.errno != errno.ETOOMANYREFS:
                raise
            time.sleep(0.01)
    theirs.close()
    channel, frames = BlockingChannel(end), []
    while len(frames) < 2:
        frames += receive(channel)
        if len(frames) == 1:
            # It does not go on by itself.
            assert select.select([end], [], [], 0.05)[0] == []
            end.send(b'.')
    return frames

namespace, detached = {'x': 1}, []
ours, theirs = socket.socketpair()

def detach():
    detached.append(os.getpid())
    ours.close()  # the host's end, which is in the same process here

point = fork.ForkPoint(namespace, {}, detach)
random.seed(7)
"""


def test_a_snapshot_can_be_restored_any_number_of_times(tmp_path: Path) -> None:
    code = (
        TAKE
        + """
take(point, theirs)
(parked,) = receive(BlockingChannel(ours))
expected = random.random()
namespace['x'] = 2
first, second = wake(ours), wake(ours)
report({'parked': parked, 'first': first, 'second': second, 'expected': expected, 'detached': detached})
"""
    )
    report = run(code, tmp_path)
    op, header = report["parked"]
    assert (op, header["threads"], header["last_fork_s"]) == ("parked", [], 0.0)
    for frames in (report["first"], report["second"]):
        assert frames == [["woke", {"lost": []}], ["state", {"x": 1, "random": report["expected"]}]]
    assert report["detached"] == [], "only in the forks"


def test_a_snapshot_ends_with_the_host_s_end_of_its_socket(tmp_path: Path) -> None:
    code = (
        TAKE
        + """
take(point, theirs)
receive(BlockingChannel(ours))
ours.close()
(pid,) = point._snapshots
report(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    )
    assert run(code, tmp_path) == 0


def test_woken_fork_that_is_not_released_ends_with_the_host_s_end_of_its_socket(tmp_path: Path) -> None:
    code = (
        TAKE
        + """
import ctypes
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # adopts forks of the snapshot
socket.setdefaulttimeout(0)  # as code of a call might, for sockets made later
take(point, theirs)
ours.setblocking(True)
receive(BlockingChannel(ours))
end, other = socket.socketpair()
socket.send_fds(ours, [encode('wake', {'strangers': False})], [other.fileno()])
other.close()
end.setblocking(True)
woke = receive(BlockingChannel(end))
waits = select.select([end], [], [], 0.05)[0] == []
ours.close()
(pid,) = point._snapshots
snapshot = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
still = os.waitpid(-1, os.WNOHANG)
end.close()
report([woke, waits, snapshot, still, os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1])])
"""
    )
    assert run(code, tmp_path) == [[["woke", {"lost": []}]], True, 0, [0, 0], 0]


def test_a_fork_that_the_system_refuses_is_reported(tmp_path: Path) -> None:
    code = (
        TAKE
        + """
def refuse():
    raise OSError(11, 'Resource temporarily unavailable')
os.fork = refuse
take(point, theirs)
blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
report([receive(BlockingChannel(ours)), point.is_forking, blocked])
"""
    )
    refusal = ["refused", {"error": "Resource temporarily unavailable"}]
    assert run(code, tmp_path) == [[refusal], False, False]


def test_a_copy_leaves_the_snapshot(tmp_path: Path) -> None:
    code = (
        TAKE
        + """
take(point, theirs)
receive(BlockingChannel(ours))
namespace['x'] = 2
file = os.memfd_create('variables')
end, other = socket.socketpair()
socket.send_fds(ours, [encode('copy', {})], [other.fileno(), file])
other.close()
channel, frames = BlockingChannel(end), []
while len(frames) < 2:
    frames += receive(channel)
end.close()
loaded = {}
names = fork.read_variables(loaded, file)
report([frames, names, loaded, wake(ours)[1][1]['x']])
"""
    )
    frames, names, loaded, x = run(code, tmp_path)
    assert frames == [["copying", {}], ["copied", {"lost": []}]]
    assert (names, loaded, x) == (["x"], {"x": 1}, 1)


def test_os_wait_does_not_see_snapshots(tmp_path: Path) -> None:
    code = (
        TAKE
        + """
children.hide_snapshots_from_wait()
take(point, theirs)
receive(BlockingChannel(ours))
child = subprocess.Popen(['true'])
found = [os.wait()[0] == child.pid]
for wait in (os.wait, lambda: os.waitpid(-1, 0)):
    try:
        wait()
    except ChildProcessError:
        found.append('no more children')
report(found)
"""
    )
    assert run(code, tmp_path) == [True, "no more children", "no more children"]


def test_shared_sockets_are_replaced_and_own_ones_stay(tmp_path: Path) -> None:
    code = """
shared, other = socket.socketpair()
own, peer = socket.socketpair()
keep = frozenset({own.fileno(), peer.fileno()})
lost = fork.repair_fork(fork.capture_state(), keep=keep)
try:
    shared.send(b'x')
    problem = ''
except OSError as error:
    problem = type(error).__name__
own.send(b'y')
report([lost, problem, peer.recv(1).decode()])
"""
    assert run(code, tmp_path) == [["2 sockets"], "OSError", "y"]


def test_timers_go_on_when_they_are_started(tmp_path: Path) -> None:
    code = """
kinds = [signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF]
for kind in kinds:
    signal.setitimer(kind, 500, 7)
state = fork.capture_state()
for kind in kinds:
    signal.setitimer(kind, 0)
fork.repair_fork(state, keep=frozenset())
end, other = socket.socketpair()
end.send(b'.')
fork._await_release(other.fileno(), state)
found = [signal.getitimer(kind) for kind in kinds]
fork.start_timers(state.timers)
report([found, [(400 < left <= 501, interval) for left, interval in map(signal.getitimer, kinds)]])
"""
    assert run(code, tmp_path) == [[[0.0, 0.0]] * 3, [[True, 7.0]] * 3]


def test_current_folder_is_the_one_at_its_path_once_the_fork_may(tmp_path: Path) -> None:
    code = """
for name in ('d', 'e'):
    os.mkdir(name)
top = os.getcwd()
os.chdir('d')
state = fork.capture_state()
os.rename(f'{top}/d', f'{top}/f')
os.rename(f'{top}/e', f'{top}/d')
end, other = socket.socketpair()
end.send(b'.')
fork._await_release(other.fileno(), state)
found = [os.path.relpath(os.getcwd(), top)]
os.rmdir(f'{top}/d')
state = fork.capture_state()
end.send(b'.')
fork._await_release(other.fileno(), state)
report([*found, state.folder])
"""
    assert run(code, tmp_path) == ["d", ""]


def test_timers_that_were_not_set_stay_off(tmp_path: Path) -> None:
    assert run("report(fork.capture_state().timers)", tmp_path) == []


# ---- variables as a file


@pytest.fixture
def file() -> Any:
    descriptor = os.memfd_create("variables")
    yield SimpleNamespace(write=os.dup(descriptor), read=os.dup(descriptor))
    os.close(descriptor)


def test_variables_travel_together(file: Any) -> None:
    shared = [1]
    hidden = {"In": [], "exit": print}
    namespace = {"a": shared, "b": {"a": shared}, "__name__": "__main__", **hidden}
    assert fork.write_variables(namespace, hidden, file.write) == []
    loaded: dict[str, Any] = {"kept": 0}
    assert fork.read_variables(loaded, file.read) == ["a", "b"]
    assert loaded == {"kept": 0, "a": [1], "b": {"a": [1]}}
    assert loaded["b"]["a"] is loaded["a"]


def test_a_hidden_name_that_the_user_has_assigned_travels(file: Any) -> None:
    assert fork.write_variables({"exit": 3}, {"exit": print}, file.write) == []
    assert fork.read_variables({}, file.read) == ["exit"]


class Stubborn:
    def __reduce__(self) -> str:
        raise SystemExit("no" * 100)


def test_variables_that_cannot_be_pickled_are_named_and_the_rest_travels(file: Any) -> None:
    lost = fork.write_variables({"a": 1, "bad": Stubborn(), "b": 2}, {}, file.write)
    assert lost == [f"bad (Stubborn: {'no' * 50})"]
    assert fork.read_variables({}, file.read) == ["a", "b"]
