from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from aisotools.sandbox.process.tree import (
    TooManyProcesses,
    TreeFreezer,
    descendants,
    find_background_processes,
)
from tests.waiting import HANG_S, process_state, wait_until

SCRIPT = "while :; do echo x >> busy; done & (while :; do sleep 0.001; echo y >> lazy; done) & wait"
NAMES = ("busy", "lazy")


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[int]:
    shell = subprocess.Popen(["sh", "-c", SCRIPT], cwd=tmp_path, start_new_session=True)
    try:
        wait_until(lambda: (tmp_path / "busy").exists() and (tmp_path / "lazy").exists())
        yield shell.pid
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def sizes(folder: Path) -> list[int]:
    return [(folder / name).stat().st_size for name in NAMES]


def test_nothing_is_written_meanwhile_and_all_goes_on_afterwards(busy: int, tmp_path: Path) -> None:
    for _ in range(5):
        with TreeFreezer().freeze(busy, within_s=0.5):
            before = sizes(tmp_path)
            # Who slept as it was stopped gets there when it wakes up, and does nothing else on the way. A
            # shell whose new child was stopped before it became another program waits, deaf to signals.
            wait_until(lambda: {process_state(pid) for pid in descendants(busy)} <= {"T", "Z", "D", ""})
            assert sizes(tmp_path) == before
        wait_until(partial(grew, tmp_path, before))


def grew(folder: Path, before: list[int]) -> bool:
    return all(now > then for now, then in zip(sizes(folder), before, strict=True))


def test_processes_stopped_before_stay_stopped(busy: int, tmp_path: Path) -> None:
    writer = min(descendants(busy))
    os.kill(writer, signal.SIGSTOP)
    wait_until(lambda: process_state(writer) == "T")
    with TreeFreezer().freeze(busy):
        pass
    before = (tmp_path / "lazy").stat().st_size
    wait_until(lambda: (tmp_path / "lazy").stat().st_size > before)  # the others go on
    assert process_state(writer) == "T"
    assert writer in find_background_processes(busy, 0), "it goes on when it is continued"


WAITS_FOR_ITS_CHILD = """
import os, sys
os.mkfifo("held")
print(os.getpid(), flush=True)
# The child waits for a writer before it becomes another program, and its parent takes no signal until then.
held = [(os.POSIX_SPAWN_OPEN, 0, "held", os.O_RDONLY, 0)]
os.posix_spawn("/bin/sleep", ["sleep", "200"], {}, file_actions=held)
while True:
    pass
"""


def test_process_that_was_told_to_stop_and_has_not_yet_is_not_continued(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITS_FOR_ITS_CHILD]
    above = subprocess.Popen(
        ["sh", "-c", '"$@" & wait', "sh", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert above.stdout is not None
        with above.stdout as output:
            waiting = int(output.readline())
        wait_until(lambda: len(descendants(waiting)) == 1 and process_state(waiting) == "D")
        os.kill(waiting, signal.SIGSTOP)
        with TreeFreezer().freeze(above.pid, within_s=0.05) as stopped:
            assert process_state(waiting) == "D"
            assert waiting not in stopped
        with (tmp_path / "held").open("wb"):
            wait_until(lambda: process_state(waiting) == "T")
        for _ in range(3):  # nor is it by a later one
            with TreeFreezer().freeze(above.pid):
                pass
        assert process_state(waiting) == "T"
    finally:
        os.killpg(above.pid, signal.SIGKILL)
        above.wait()


def test_process_that_is_taken_out_of_what_will_be_continued_stays_stopped(busy: int) -> None:
    writer = min(descendants(busy))
    with TreeFreezer().freeze(busy) as stopped:
        assert writer in stopped
        stopped.discard(writer)
    wait_until(lambda: process_state(writer) == "T")


def test_processes_that_several_holders_stop_go_on_after_the_last(busy: int, tmp_path: Path) -> None:
    freezer = TreeFreezer()
    with ExitStack() as first:
        first.enter_context(freezer.freeze(busy))
        for _ in range(20):  # each finds processes that are still on their way
            with freezer.freeze(busy):
                pass
        with ExitStack() as last:
            last.enter_context(freezer.freeze(busy))
            first.close()
            wait_until(lambda: {process_state(pid) for pid in descendants(busy)} <= {"T", "Z", "D", ""})
            before = sizes(tmp_path)
            assert repr(freezer) == "<TreeFreezer: 1 holders>"
    wait_until(partial(grew, tmp_path, before))
    assert repr(freezer) == "<TreeFreezer: 0 holders>"


def test_holder_that_leaves_or_is_quick_waits_for_nobody(busy: int, tmp_path: Path) -> None:
    freezer = TreeFreezer()
    with freezer._lock, ExitStack() as holding:
        freezer._lock.release()
        holding.enter_context(freezer.freeze(busy))
        freezer._lock.acquire()  # as by a thread that stops many processes
        with pytest.raises(TooManyProcesses), freezer.freeze(busy, max_running=100):
            pass
        holding.close()
        assert repr(freezer) == "<TreeFreezer: 1 holders>"
        before = sizes(tmp_path)
    with freezer.freeze(busy):
        pass
    wait_until(partial(grew, tmp_path, before))


def test_process_that_another_one_continues_on_and_on_is_stopped(tmp_path: Path) -> None:
    grows = tmp_path / "grows"

    def size() -> int:
        return grows.stat().st_size

    def is_larger(before: int) -> bool:
        return size() > before

    script = """
import os, signal
signal.alarm(200)  # if the tests are killed
if writer := os.fork():
    while True:
        os.kill(writer, signal.SIGSTOP)
        os.kill(writer, signal.SIGCONT)
        os.sched_yield()  # else it hardly ever runs where there are few processors
signal.alarm(200)  # no fork has that of its parent
while True:
    os.write(1, b"x")
"""
    with (
        grows.open("wb") as file,
        subprocess.Popen(
            ["sh", "-c", '"$0" -c "$1"; :', sys.executable, script], stdout=file, start_new_session=True
        ) as above,
    ):
        try:
            wait_until(size)
            for _ in range(20):
                with TreeFreezer().freeze(above.pid, within_s=HANG_S):
                    wait_until(lambda: {process_state(pid) for pid in descendants(above.pid)} == {"T"})
                    before = size()
                    wait_until(lambda: {process_state(pid) for pid in descendants(above.pid)} == {"T"})
                    assert size() == before
                wait_until(partial(is_larger, before))
        finally:
            os.killpg(above.pid, signal.SIGKILL)


HOPPER = """
import ctypes, os, signal, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # adopts those whose parent has ended
signal.alarm(200)  # if the tests are killed
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork():
    while True:
        time.sleep(100)
while True:
    signal.alarm(200)  # no fork has that of its parent
    os.write(1, b"x")
    time.sleep(float(sys.argv[1]))
    if os.fork():
        os._exit(0)
"""
"""Below it is a process that begins another one and ends, on and on."""


@contextlib.contextmanager
def hopping(file: Path, pause_s: float) -> Iterator[int]:
    with (
        file.open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-c", HOPPER, str(pause_s)], stdout=output, start_new_session=True
        ) as above,
    ):
        try:
            wait_until(lambda: file.stat().st_size > 10)
            yield above.pid
        finally:
            os.killpg(above.pid, signal.SIGKILL)


@pytest.mark.parametrize("pause_s", [0, 0.0005, 0.002])
def test_process_that_forks_and_ends_on_and_on_is_seen_at_each_look(tmp_path: Path, pause_s: float) -> None:
    with hopping(tmp_path / "hops", pause_s) as above:
        assert [find_background_processes(above, 0) for _ in range(100)].count({}) <= 2


def test_process_that_forks_and_ends_on_and_on_is_stopped(tmp_path: Path) -> None:
    file = tmp_path / "hops"
    with hopping(file, 0.005) as above:
        for _ in range(20):
            with TreeFreezer().freeze(above):
                before = file.stat().st_size
                time.sleep(0.02)
                assert file.stat().st_size == before
            wait_until(lambda: file.stat().st_size > before)  # noqa: B023 - called within this round


def test_background_processes_are_returned_with_their_names(busy: int) -> None:
    worker = min(descendants(busy))
    found = find_background_processes(busy, worker)
    assert worker not in found
    # Race: a `sleep` that has ended since it was listed has no name any more.
    assert set(found.values()) <= {"sh", "sleep", "dash", "a process"}
    assert find_background_processes(0, 0) == {}
    assert descendants(0) == set()


def test_of_too_many_processes_none_is_stopped(busy: int, tmp_path: Path) -> None:
    before = sizes(tmp_path)
    with pytest.raises(TooManyProcesses), TreeFreezer().freeze(busy, max_threads=1):
        pytest.fail("two processes were stopped")
    wait_until(partial(grew, tmp_path, before))
    with TreeFreezer().freeze(busy, max_threads=24):
        pass


RUNNING = "while :; do :; done"
WAITS_FOR_CHILD = "import ctypes, time\nif ctypes.CDLL(None).vfork() == 0: time.sleep(1000)"
"""No signal stops it before the child ends."""
SEVERAL = 'n=$1; shift; while [ $n -gt 0 ]; do "$@" & n=$((n-1)); done; wait'


@pytest.mark.parametrize(
    ("command", "state", "count", "max_running", "is_refused"),
    [
        (["sh", "-c", RUNNING], "R", 5, 4, True),
        (["sh", "-c", RUNNING], "R", 2, 4, False),
        (["sleep", "1000"], "S", 5, 0, False),
        ([sys.executable, "-c", WAITS_FOR_CHILD], "D", 1, 4, True),
    ],
    ids=["many run", "few run", "none runs", "one waits for a child"],
)
def test_processes_that_take_long_to_stop_are_refused_where_that_has_to_be_quick(
    command: list[str], state: str, count: int, max_running: float, is_refused: bool
) -> None:
    above = subprocess.Popen(["sh", "-c", SEVERAL, "sh", str(count), *command], start_new_session=True)
    try:

        def are_there() -> bool:
            found = descendants(above.pid)
            # A program that is just being read from the disk is in that state as well, and has no child yet.
            is_begun = state != "D" or len(found) > count
            return is_begun and [process_state(pid) for pid in found].count(state) >= count

        wait_until(are_there)
        is_frozen = False
        within_s = 0.05 if is_refused else 5.0
        with (
            contextlib.suppress(TooManyProcesses),
            TreeFreezer().freeze(above.pid, max_running=max_running, within_s=within_s),
        ):
            is_frozen = True
            # Who sleeps is not waited for: it stops before its next instruction.
            assert state == "S" or {process_state(pid) for pid in descendants(above.pid)} == {"T"}
        assert is_frozen == (not is_refused)
        wait_until(are_there)  # all of them run on
        with TreeFreezer().freeze(above.pid, within_s=0.05):  # without that, what does not stop runs on
            pass
    finally:
        os.killpg(above.pid, signal.SIGKILL)
        above.wait()
