from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import Any

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.host.monitor import CpuSample, find_cpu_kill, parse_cpu_s
from aisotools.sandbox.limits import LimitExceeded, Limits, apply_rlimits, format_amount, running_tasks
from tests.sandbox import inside
from tests.sandbox.conftest import Places


def test_defaults() -> None:
    assert dataclasses.asdict(Limits()) == {
        "memory_bytes": 4 << 30,
        "processes": 256,
        "file_bytes": 1 << 30,
        "disk_bytes": 4 << 30,
        "open_files": 512,
        "open_files_total": 4096,
        "cpu_s": None,
        "stream_bytes": 1 << 20,
        "call_timeout_s": 120.0,
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"memory_bytes": "4 GiB"}, "Limits(memory_bytes='4 GiB'): use an integer or None."),
        ({"memory_bytes": True}, "Limits(memory_bytes=True): use an integer or None."),
        ({"memory_bytes": 2.5}, "Limits(memory_bytes=2.5): use an integer or None."),
        ({"processes": None}, "Limits(processes=None): use an integer."),
        ({"cpu_s": "1"}, "Limits(cpu_s='1'): use a number of seconds or None."),
        ({"call_timeout_s": None}, "Limits(call_timeout_s=None): use a number of seconds."),
    ],
)
def test_wrong_types(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as error:
        Limits(**given)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"memory_bytes": 1 << 20}, "Limits(memory_bytes=1048576): use at least 67,108,864."),
        ({"processes": 0}, "Limits(processes=0): use at least 1."),
        (
            {"memory_bytes": 1 << 63},
            "Limits(memory_bytes=9223372036854775808): use at most 4,611,686,018,427,387,904.",
        ),
        ({"open_files": 3}, "Limits(open_files=3): use at least 64."),
        ({"stream_bytes": -1}, "Limits(stream_bytes=-1): use at least 0."),
        ({"cpu_s": 0}, "Limits(cpu_s=0): use a finite number of seconds above 0, or None for no limit."),
        (
            {"call_timeout_s": float("nan")},
            "Limits(call_timeout_s=nan): use a finite number of seconds above 0.",
        ),
        (
            {"call_timeout_s": float("inf")},
            "Limits(call_timeout_s=inf): use a finite number of seconds above 0.",
        ),
    ],
)
def test_values_too_small_to_work_with(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        Limits(**given)
    assert str(error.value) == message


def test_memory_may_be_unlimited() -> None:
    assert Limits(memory_bytes=None).memory_bytes is None


def test_limits_that_cannot_be_set_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code would run without them. A user who may not read the libraries of Python imports no `resource`."""
    monkeypatch.setitem(sys.modules, "resource", None)
    with pytest.raises(SandboxError, match=r"The limits cannot be set: .*resource"):
        apply_rlimits(Limits())


def test_running_tasks_counts_this_process() -> None:
    assert running_tasks() >= 1


APPLY = """
import os, resource
from aisotools.sandbox.limits import Limits, apply_rlimits
before = resource.getrlimit(resource.RLIMIT_CORE)
apply_rlimits(Limits(**config["limits"]), tasks=config.get("tasks"))
"""


def run(source: str, place: Places, tasks: int | None = None, **limits: Any) -> Any:
    config = {"limits": limits, "tasks": tasks}
    return inside.run(
        APPLY + source, who="plain", workspace=str(place("plain")), level=None, config=config
    ).answer


def test_limits_are_hard(place: Places) -> None:
    source = """
names = ["AS", "FSIZE", "NOFILE", "CPU", "RTPRIO", "NICE", "SIGPENDING", "CORE"]
answer = {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in names}
answer["before"] = before
"""
    answer = run(source, place, memory_bytes=1 << 30, file_bytes=1000, open_files=100, cpu_s=1.5)
    hard_core = answer.pop("before")[1]
    # 1, and not 0, stops the kernel from starting the host's crash handler; it cannot be raised from 0
    core = 0 if hard_core == 0 else 1
    assert answer == {
        "AS": [1 << 30, 1 << 30],
        "FSIZE": [1000, 1000],
        "NOFILE": [100, 100],
        "CPU": [2, 3],
        "RTPRIO": [0, 0],
        "NICE": [0, 0],
        "SIGPENDING": [1024, 1024],
        "CORE": [core, core],
    }


def test_stricter_limits_stay(place: Places) -> None:
    source = """
apply_rlimits(Limits(open_files=1000, file_bytes=5000))
answer = [resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_FSIZE)]
"""
    assert run(source, place, open_files=80, file_bytes=1000) == [[80, 80], [1000, 1000]]


def test_memory_files_and_time_end_where_they_should(place: Places) -> None:
    source = """
import signal
answer = []
try:
    bytearray(2 << 30)
except MemoryError:
    answer.append("memory")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    with open("big", "wb", buffering=0) as big:
        answer.append(big.write(bytes(4096)))
        big.write(b"x")
except OSError as error:
    answer.append(error.strerror)
child = os.fork()
if child == 0:
    while True:
        pass
answer.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 0)
"""
    answer = run(source, place, memory_bytes=1 << 30, file_bytes=1000, cpu_s=0.5)
    assert answer == ["memory", 1000, "File too large", True]


BOMB = """
import signal, time
children = []
try:
    while len(children) < 300:
        child = os.fork()
        if child == 0:
            signal.pause()
        children.append(child)
except BlockingIOError:
    pass
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
answer = len(children)
"""


def test_a_fork_bomb_ends(place: Places) -> None:
    if os.getuid() != 0:
        pytest.skip("needs a user of its own, since the kernel counts all that a user runs")
    assert 15 <= run(BOMB, place, processes=20) <= 20


def test_tasks_that_proc_does_not_show(place: Places) -> None:
    """On a node of a cluster containers share a user id, and the kernel counts them all."""
    if os.getuid() != 0:
        pytest.skip("needs a user of its own, since the kernel counts all that a user runs")
    command, user = inside.command_of(["sleep", "60"], inside.PLAIN_UID)
    sleeping = [subprocess.Popen(command, **user) for _ in range(30)]
    try:
        assert 10 <= run(BOMB, place, tasks=0, processes=10) <= 60
    finally:
        for process in sleeping:
            process.kill()
            process.wait()


# ---- processor time, whose end is a SIGKILL like any other


@pytest.mark.parametrize(
    ("state", "ticks", "is_used"), [("R", 0, True), ("S", 0, False), ("S", 3, True), ("Z", 0, False)]
)
def test_a_process_that_runs_has_used_processor_time(state: str, ticks: int, is_used: bool) -> None:
    stat = f"7 (a R) b) {state} 1 1 1 0 -1 4194560 100 0 0 0 {ticks} 0 0 0 20 0 1 0 500".encode()
    assert (parse_cpu_s(stat) > 0) is is_used


@pytest.mark.parametrize(
    ("samples", "used"),
    [
        ([(0.85, 9.9, 9.9)], 1.0),  # it has run on since
        ([(0.95, 9.9, 9.9)], 1.05),
        # Sampled again, after the kill and before the news of it:
        ([(0.95, 9.9, 9.9), (0.0, 9.95, 9.96)], 1.01),
        # Killed after the next sample had begun, and before it looked:
        ([(0.85, 9.9, 9.9), (0.0, 9.91, 9.98)], 1.0),
        ([(0.95, 9.9, 9.9), (0.01, 9.95, 9.95)], 1.0),  # the command is gone, its worker is still there
        ([(0.95, 9.5, 9.5), (0.01, 9.6, 9.6), (0.01, 9.7, 9.7), (0.01, 9.8, 9.8)], 1.05),  # late news
        ([(0.5, 9.9, 9.9), (0.6, 9.95, 9.95)], None),  # nobody was near the limit
        ([(0.3, 8.0, 8.0), (0.31, 9.0, 9.0), (0.31, 9.9, 9.9)], 1.3),  # the pause was long enough for it
        ([(0.3, 9.0, 9.0), (0.31, 9.5, 9.5), (0.31, 9.9, 9.9)], None),  # at rest since
        ([(0.0, 0.0, 0.0)], None),  # nothing ran
        ([], None),
    ],
)
def test_a_kill_near_the_limit_is_the_limits(
    samples: list[tuple[float, float, float]], used: float | None
) -> None:
    found = find_cpu_kill([CpuSample(*sample) for sample in samples], 1.0, 10.0)
    assert (found is None) == (used is None)
    if found is not None:
        assert found == LimitExceeded(limit="cpu_s", used=found.used, allowed=1.0)
        assert found.used == pytest.approx(used)
    assert find_cpu_kill([CpuSample(*sample) for sample in samples], None, 10.0) is None


@pytest.mark.parametrize(
    ("limit", "amount", "text"),
    [
        ("cpu_s", 0.25, "0.25 s"),
        ("cpu_s", 3600, "3,600 s"),
        ("memory_bytes", 100, "100 bytes"),
        ("memory_bytes", 3 << 29, "1.5 GiB"),
        ("processes", 1024, "1,024"),
        ("disk_bytes", None, "unlimited"),
    ],
)
def test_an_amount_has_the_unit_of_its_limit(limit: str, amount: float | None, text: str) -> None:
    assert format_amount(limit, amount) == text
