"""What is killed, in which order, and what goes along with it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisotools.sandbox.process.killing import kill_all, with_orphans, youngest_first
from aisotools.sandbox.process.tree import Process, send_signal, table
from tests.sandbox.process.test_tree import started
from tests.waiting import HANG_S, process_state, wait_until


def test_order_is_by_when_they_were_started_and_the_unknown_come_last() -> None:
    processes = {5: Process(1, start_ticks=7), 9: Process(5, start_ticks=7), 3: Process(5, start_ticks=8)}
    assert youngest_first({9, 5, 3, 12}, processes) == [3, 9, 5, 12]


def test_stopped_processes_of_a_group_that_loses_its_tie_go_along() -> None:
    processes = {
        1: Process(0, group=1),
        20: Process(1, group=20),
        21: Process(20, group=21),  # a child in a group of its own
        22: Process(1, group=21),  # of the same group
        23: Process(22, group=23),  # is set free when that ends
        24: Process(1, group=20),  # of the group of one that is killed
        30: Process(1, group=30),
        31: Process(30, group=31),
    }
    stopped = {21, 22, 23, 24, 30, 31, 99}
    assert with_orphans([20], stopped, processes) == {20, 21, 22, 23, 24}
    assert with_orphans([20], {22, 31}, processes) == {20, 22}
    assert with_orphans([20], (), processes) == {20}
    assert with_orphans([99, 98], stopped, processes) == {99, 98}


PARENT = """
import os, signal, sys, time
signal.alarm(200)  # if the tests are killed
if os.fork() == 0:
    signal.alarm(200)
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        open(sys.argv[1], "a").write("x")
        time.sleep(0.01)
time.sleep(100)
"""


@contextlib.contextmanager
def stopped_child(file: Path) -> Iterator[tuple[int, int]]:
    """A process, and one below it that is stopped and writes to a file when it is continued."""
    with started(sys.executable, "-c", PARENT, str(file)) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            wait_until(lambda: process_state(child) == "T")
            yield parent.pid, child
        finally:
            send_signal(child, signal.SIGKILL)


def test_end_of_a_parent_continues_a_stopped_child(tmp_path: Path) -> None:
    """The control."""
    with stopped_child(tmp_path / "file") as (parent, _):
        send_signal(parent, signal.SIGKILL)
        wait_until((tmp_path / "file").exists)


@pytest.mark.parametrize("is_found", [True, False])
def test_killing_sets_no_stopped_child_free(tmp_path: Path, *, is_found: bool) -> None:
    for _ in range(20):
        with stopped_child(tmp_path / "file") as (parent, child):
            processes = table([parent, child])
            pids = {parent, child} if is_found else with_orphans([parent], {child}, processes)
            for pid in youngest_first(pids, processes):
                send_signal(pid, signal.SIGKILL)
            wait_until(lambda: process_state(child) in {"Z", ""})
        assert not (tmp_path / "file").exists()


def test_a_process_that_forks_on_and_on_is_ended() -> None:
    """At any moment few processes, and never the same for long; should this fail, they end by themselves."""
    code = """
import os, time
for n in range(10_000):
    if os.fork():
        time.sleep(0.03)
        os._exit(0)
    os.setsid()
    if n == 5:
        print(flush=True)
    time.sleep(0.005)
"""
    with started(sys.executable, "-c", code, RUNAWAY="1") as process:
        assert process.stdout is not None
        process.stdout.readline()

        def runaways() -> set[int]:
            found = set()
            for pid in table():
                with contextlib.suppress(OSError):
                    if b"RUNAWAY=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                        found.add(pid)
            return found

        wait_until(runaways)  # one look may miss them: each is gone soon
        kill_all(runaways, within_s=HANG_S)
        while process.stdout.readline():
            pass  # whoever is left holds the other end
        assert not runaways()


def test_killing_finds_what_a_child_leaves_that_ends_after_the_look() -> None:
    """Whoever waits for the end of a child would otherwise never look again."""
    code = """
import os, signal, sys
from aisotools.sandbox.process.killing import kill_all
from aisotools.sandbox.process.tree import become_subreaper, below, table
from tests.waiting import process_state, wait_until
become_subreaper()
reading, writing = os.pipe()
parent = os.fork()
if parent == 0:
    if os.fork() == 0:
        os.execv('/bin/sleep', ['sleep', '100'])
    os.write(writing, b'.')
    signal.pause()
os.read(reading, 1)

looks = 0

def find():
    global looks
    looks += 1
    processes = table()
    found = below(os.getpid(), processes) - {parent, *below(parent, processes)}
    if looks == 1:
        os.kill(parent, signal.SIGKILL)
        wait_until(lambda: process_state(parent) == 'Z')
    return found

ended = kill_all(find, within_s=100)
print(parent in ended, len(ended), below(os.getpid(), table()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True 2 set()\n"


def test_ending_is_bounded_in_time() -> None:
    assert (
        kill_all(lambda: {2**22 + 5}, within_s=0.1) == {}
    )  # it returns, although that is found again and again


def test_a_process_without_its_first_thread_is_not_dead() -> None:
    code = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(100,)).start(); "
        "print(flush=True); ctypes.CDLL(None).pthread_exit(None)"
    )
    with started(sys.executable, "-c", code) as process:
        assert process.stdout is not None
        process.stdout.readline()
        wait_until(lambda: process_state(process.pid) == "Z")
        assert process.pid in table()
        kill_all(lambda: {process.pid} & table().keys(), within_s=HANG_S)
        assert process.pid not in table()
