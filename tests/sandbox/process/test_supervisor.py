"""A supervisor over a plain program: what it reports, whom it signals, and that nothing is left."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import ChannelError
from aisotools.sandbox.process import supervisor, tree
from aisotools.sandbox.process.ownership import CallStart, StopScope
from aisotools.sandbox.process.scratch import make_scratch
from aisotools.sandbox.process.supervisor import (
    INTERRUPT_RECORD,
    NO_CALL,
    ChildWatcher,
    Supervisor,
    parse_report,
    unread_bytes,
)
from tests.sandbox.alone import in_one_thread
from tests.waiting import wait_until

WORKER = """
import os, signal

def run(name):
    def note(number, _frame):
        open(f"{name}.{signal.Signals(number).name}", "w").close()
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, note)
    with open(f"{name}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{name}.new", name)
    while True:
        signal.pause()

for name in ("member", "daemon"):
    if os.fork() == 0:
        if name == "daemon":
            os.setsid()
        run(name)
run("worker")
"""
"""Three processes: the worker, one of its process group, and one with a session of its own."""


TASK = """
import os, signal, time

def run(name):
    with open(f"{name}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{name}.new", name)
    while True:
        time.sleep(1000)

if os.fork() == 0:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if os.fork() == 0:
        run("member")
    if os.fork() == 0:
        os.setsid()
        run("daemon")
    run("keeper")
run("worker")
"""
"""A worker, below it a process that could be a keeper, and two processes below that."""


class Supervised:
    """The host's end of a supervisor."""

    def __init__(self, control: socket.socket, folder: Path, interrupts: tuple[int, int]) -> None:
        self.control = control
        self.folder = folder
        self.interrupts = interrupts
        self.messages: list[dict[str, Any]] = []
        self.started = self.receive()

    @property
    def worker(self) -> int:
        return int(self.started["worker"])

    def pid(self, name: str) -> int:
        path = self.folder / name
        wait_until(lambda: path.exists() and path.read_text())  # it is created before it is written
        return int(path.read_text())

    def pids(self) -> dict[str, int]:
        return {name: self.pid(name) for name in ("worker", "member", "daemon")}

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def send(self, op: str, **request: Any) -> None:
        self.control.send(json.dumps({"op": op, "keep": [], **request}).encode())

    def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.control.recv(1 << 16))
        self.messages.append(message)
        return message

    def ask(self, op: str, **request: Any) -> None:
        """Send a request and wait until it is done."""
        seq = len(self.messages) + 100
        self.send(op, seq=seq, **request)
        while self.receive() != {"op": "done", "seq": seq}:
            pass

    def messages_with(self, op: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["op"] == op]


@contextmanager
def supervised(
    folder: Path, command: Sequence[str] = (sys.executable, "-c", WORKER), *, host: int = 0
) -> Iterator[Supervised]:
    """Fork a supervisor with `command` as its worker; in the end it must have exited with status 0."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    interrupts = os.pipe()
    make_scratch(str(folder / "scratch"))
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            tree.become_subreaper()
            os.chdir(folder)
            worker = os.posix_spawn(command[0], tuple(command), os.environ, setpgroup=0)
            Supervisor(
                theirs,
                worker=worker,
                interrupts=interrupts[1],
                host=host or os.getppid(),
                scratch=str(folder / "scratch"),
            ).serve()
        finally:
            os._exit(1)
    theirs.close()
    try:
        yield Supervised(ours, folder, interrupts)
    finally:
        ours.close()
        for end in interrupts:
            os.close(end)
        _, status = os.waitpid(pid, 0)
    assert status == 0
    assert not (folder / "scratch").exists()


SCOPE: dict[str, Any] = {"scope": StopScope().as_json()}


# ---------------------------------------------------------------- the end of the tree


def test_the_processes_are_reported_and_then_the_end(tmp_path: Path) -> None:
    with supervised(tmp_path) as host:
        pids = host.pids()
        assert host.started == {
            "op": "started",
            "worker": pids["worker"],
            "supervisor": tree.parent_of(pids["worker"]),
            "scratch": str(tmp_path / "scratch"),
        }
        host.send("kill")
        assert host.receive() == {"op": "ended"}
        assert not set(pids.values()) & tree.table().keys()
        assert host.receive() == {"op": "gone"}
        assert not (tmp_path / "scratch").exists()


def test_the_control_socket_is_a_lifeline(tmp_path: Path) -> None:
    with supervised(tmp_path) as host:
        pids = set(host.pids().values())
    assert not pids & tree.table().keys()


def test_the_end_of_the_host_is_seen_though_its_socket_stays_open(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as stand_in, supervised(tmp_path, host=stand_in.pid) as host:
        host.pids()
        stand_in.kill()
        assert host.receive() == {"op": "ended"}
        assert host.receive() == {"op": "gone"}


def test_a_host_that_ended_before_is_seen_too(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as stand_in:
        stand_in.wait()
    with supervised(tmp_path, host=stand_in.pid) as host:
        assert host.receive() == {"op": "ended"}


def test_signals_of_a_terminal_do_not_end_it(tmp_path: Path) -> None:
    with supervised(tmp_path) as host:
        worker = host.pids()["worker"]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(host.started["supervisor"], number)
        host.ask("thaw")
        assert tree.parent_of(worker) == host.started["supervisor"]


# ---------------------------------------------------------------- deaths


@pytest.mark.parametrize(
    ("command", "status"),
    [("exit 3", {"exit": 3, "signal": 0}), ("kill -9 $$", {"exit": -1, "signal": 9})],
)
def test_exit_status_and_signal_of_the_worker_are_reported(
    tmp_path: Path, command: str, status: dict[str, int]
) -> None:
    with supervised(tmp_path, ("/bin/sh", "-c", command)) as host:
        assert host.receive() == {"op": "died", "worker": host.worker, **status}


def test_after_an_adoption_the_death_of_the_other_one_counts(tmp_path: Path) -> None:
    with supervised(tmp_path) as host:
        pids = host.pids()
        host.send("adopt", worker=pids["member"])
        host.ask("thaw")
        os.kill(pids["worker"], signal.SIGKILL)  # the member becomes a child of the subreaper
        os.kill(pids["member"], signal.SIGKILL)
        assert host.receive() == {"op": "died", "worker": pids["member"], "exit": -1, "signal": 9}


def test_a_worker_that_is_reaped_while_others_are_killed_is_reported(tmp_path: Path) -> None:
    with supervised(tmp_path) as host:
        worker = host.pids()["worker"]
        host.ask("end")
        assert host.messages_with("died") == [{"op": "died", "worker": worker, "exit": -1, "signal": 9}]


# ---------------------------------------------------------------- interrupts


def test_an_interrupt_reaches_the_worker_and_its_group_and_names_the_call(tmp_path: Path) -> None:
    with supervised(tmp_path) as host:
        pids = host.pids()
        host.send("interrupt", number=7, holds=True, **SCOPE)
        assert INTERRUPT_RECORD.unpack(os.read(host.interrupts[0], 100)) == (7,)
        wait_until(lambda: host.has("worker.SIGINT") and host.has("member.SIGINT"))
        # Signals are delivered in the order of their numbers: SIGINT would have come first.
        os.kill(pids["daemon"], signal.SIGUSR1)
        wait_until(lambda: host.has("daemon.SIGUSR1"))
        assert not host.has("daemon.SIGINT")


def test_a_call_that_does_not_hold_the_terminal_interrupts_the_worker_alone(tmp_path: Path) -> None:
    with supervised(tmp_path) as host:
        pids = host.pids()
        host.send("interrupt", number=1, holds=False, **SCOPE)
        wait_until(lambda: host.has("worker.SIGINT"))
        host.ask("thaw")
        os.kill(pids["member"], signal.SIGUSR1)
        wait_until(lambda: host.has("member.SIGUSR1"))
        assert not host.has("member.SIGINT")


COUNTING = """
import os, signal

count = 0

def note(*_):
    global count
    count += 1
    open(f"SIGINT.{count}", "w").close()

signal.signal(signal.SIGINT, note)
open("worker", "w").write(str(os.getpid()))
while True:
    signal.pause()
"""


def test_an_interrupt_that_is_not_noticed_is_repeated(tmp_path: Path) -> None:
    with supervised(tmp_path, (sys.executable, "-c", COUNTING)) as host:
        host.pid("worker")
        host.send("interrupt", number=7, holds=True, **SCOPE)
        wait_until(lambda: host.has("SIGINT.2"))
        records = INTERRUPT_RECORD.iter_unpack(os.read(host.interrupts[0], 100))
        assert [*records][:2] == [(7,), (NO_CALL,)], "a signal without a record counts as user code's own"


def test_bytes_that_wait_in_a_pipe_are_counted_at_either_end(tmp_path: Path) -> None:
    ends = os.pipe()
    assert [unread_bytes(end) for end in ends] == [0, 0]
    os.write(ends[1], b"12345")
    assert [unread_bytes(end) for end in ends] == [5, 5]
    for end in ends:
        os.close(end)
    with (tmp_path / "file").open("wb") as file:
        assert unread_bytes(file.fileno()) == 0


def fill(pipe: int) -> None:
    for record in (INTERRUPT_RECORD.pack(0) * 512, INTERRUPT_RECORD.pack(0)):
        with suppress(BlockingIOError):
            while True:
                os.write(pipe, record)


def test_a_worker_that_reads_no_interrupts_gets_none(tmp_path: Path) -> None:
    with supervised(tmp_path) as host:
        worker = host.pids()["worker"]
        host.ask("thaw")  # the pipe has been made non-blocking by now
        fill(host.interrupts[1])
        host.send("interrupt", number=1, holds=True, **SCOPE)
        host.ask("thaw")
        os.kill(worker, signal.SIGUSR1)
        wait_until(lambda: host.has("worker.SIGUSR1"))
        assert not host.has("worker.SIGINT")


# ---------------------------------------------------------------- ending, freezing


def living(pids: dict[str, int]) -> set[str]:
    return {name for name, pid in pids.items() if tree.parent_of(pid)}


def stopped(pids: dict[str, int]) -> set[str]:
    return {name for name, pid in pids.items() if "\nState:\tT" in Path(f"/proc/{pid}/status").read_text()}


def test_a_sweep_ends_whatever_runs_but_for_the_worker_and_parked_forks(tmp_path: Path) -> None:
    with supervised(tmp_path) as host:
        pids = host.pids()
        host.ask("sweep", holds=True, **SCOPE, keep=[pids["daemon"]])
        assert living(pids) == {"worker", "daemon"}
        host.ask("sweep", holds=True, **SCOPE)
        assert living(pids) == {"worker"}


def test_a_sweep_can_spare_what_was_named(tmp_path: Path) -> None:
    with supervised(tmp_path) as host:
        pids = host.pids()
        host.ask("sweep", scope=StopScope(programs=(pids["member"], pids["daemon"])).as_json())
        assert living(pids) == {"worker", "member", "daemon"}
        host.ask("sweep", scope=StopScope(programs=(pids["member"],)).as_json())
        assert living(pids) == {"worker", "member"}


@pytest.mark.parametrize(("named", "left"), [((), set()), (("member",), set()), (("daemon",), {"daemon"})])
def test_a_program_that_may_still_be_named_is_spared_until_its_call_has_named_another_one(
    tmp_path: Path, named: tuple[str, ...], left: set[str]
) -> None:
    with supervised(tmp_path) as host:
        pids = host.pids()
        scope = StopScope(expected=(CallStart(ticks=-1),))
        host.ask("sweep", scope=scope.as_json(), call=7)
        assert living(pids) == {"worker", "daemon"}, "the youngest one"
        host.send("settle", call=8, **SCOPE)  # after another sweep, which has spared nothing
        host.ask("thaw")
        assert living(pids) == {"worker", "daemon"}
        programs = tuple(pids[name] for name in named)
        host.send("settle", call=7, scope=StopScope(programs=programs).as_json())
        host.ask("thaw")
        assert living(pids) == {"worker", *left}


def test_a_sweep_spares_a_task_unless_its_own_call_is_stopped(tmp_path: Path) -> None:
    with supervised(tmp_path) as host:
        pids = host.pids()
        for key in ("member", "daemon"):
            host.send("task", key=key, pid=pids[key])
        host.ask("sweep", **SCOPE)
        assert living(pids) == {"worker", "member", "daemon"}
        host.ask("sweep", scope=StopScope(own_task="daemon").as_json())
        assert living(pids) == {"worker", "member"}


def test_only_what_is_below_a_keeper_is_signalled(tmp_path: Path) -> None:
    with supervised(tmp_path, (sys.executable, "-c", TASK)) as host:
        pids = {name: host.pid(name) for name in ("worker", "keeper", "member", "daemon")}
        host.send("stop_program", pid=pids["keeper"], kill=True)  # it is none yet
        host.ask("thaw")
        assert living(pids) == {*pids}
        host.send("task", key="k", pid=pids["keeper"])
        host.send("stop_program", pid=pids["member"], kill=True)
        host.ask("thaw")
        assert living(pids) == {*pids}
        host.send("stop_program", pid=pids["keeper"], kill=True)
        host.ask("thaw")
        assert living(pids) == {"worker", "keeper"}


def test_frozen_processes_are_thawed(tmp_path: Path) -> None:
    with supervised(tmp_path) as host:
        pids = host.pids()
        host.ask("freeze", keep=[pids["worker"]], stopped=[])
        wait_until(lambda: stopped(pids) == {"member", "daemon"})
        host.ask("end", keep=[pids["worker"]])
        assert living(pids) == {"worker", "member", "daemon"}, "what is frozen is not ended"
        host.ask("thaw", keep=[pids["worker"]])
        wait_until(lambda: stopped(pids) == set())
        host.ask("drop", keep=[pids["worker"]])
        assert living(pids) == {"worker", "member", "daemon"}, "nothing is frozen any more"


def test_processes_that_were_stopped_before_are_not_thawed(tmp_path: Path) -> None:
    with supervised(tmp_path) as host:
        pids = host.pids()
        host.ask("freeze", keep=[pids["worker"]], stopped=[pids["member"]])
        wait_until(lambda: stopped(pids) == {"member", "daemon"})
        host.ask("thaw", keep=[pids["worker"]])
        wait_until(lambda: stopped(pids) == {"member"})
        host.ask("freeze", keep=[pids["worker"]], stopped=[])
        host.ask("thaw", keep=[pids["worker"]])
        wait_until(lambda: stopped(pids) == set())


def test_frozen_processes_are_dropped_and_others_are_not(tmp_path: Path) -> None:
    with supervised(tmp_path) as host:
        pids = host.pids()
        host.ask("freeze", keep=[pids["worker"], pids["member"]], stopped=[])
        host.ask("drop", keep=[pids["worker"]])
        assert living(pids) == {"worker", "member"}


# ---------------------------------------------------------------- watching children


def fork_and_exit(status: int) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(status)
    return pid


def watch_children() -> dict[str, Any]:
    early = fork_and_exit(2)
    os.waitid(os.P_PID, early, os.WEXITED | os.WNOWAIT)  # it has ended, and is not reaped
    watcher = ChildWatcher()
    select.select([watcher], [], [])
    ended = [list(map(os.waitstatus_to_exitcode, watcher.reap().values()))]
    idle = select.select([watcher], [], [], 0)[0] == []
    later = {fork_and_exit(3), fork_and_exit(4)}
    statuses: list[int] = []
    while len(statuses) < len(later):
        select.select([watcher], [], [])
        statuses += map(os.waitstatus_to_exitcode, watcher.reap().values())
    ended += [sorted(statuses), list(watcher.reap())]
    watcher.close()
    return {"idle": idle, "ended": ended}


def test_the_end_of_each_child_is_seen_once_and_an_early_one_too() -> None:
    assert in_one_thread(watch_children) == {"idle": True, "ended": [[2], [3, 4], []]}


def test_a_process_that_is_gone_counts_as_ended() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    descriptor = supervisor._open_pidfd(process.pid)
    assert descriptor is not None
    try:
        assert select.select([descriptor], [], [], 0)[0] == [descriptor]
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    "report",
    [
        {"op": "started", "worker": 7, "supervisor": 6, "scratch": "/tmp/s"},
        {"op": "done", "seq": 2**53},
        {"op": "died", "exit": -1, "signal": 9},
        {"op": "gone"},
        {"op": "replaced", "paths": ["a/b", "c"]},
        {"op": "unknown", "seq": "x"},
    ],
)
def test_reports_with_the_right_fields_are_read(report: dict[str, Any]) -> None:
    assert parse_report(json.dumps(report).encode()) == report


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"{", "a report is not JSON: "),
        (b"[" * 10_000, "a report is not JSON: "),
        (b'{"op": "done", "seq": NaN}', "a report is not JSON: "),
        (b"[]", "a report is not an object with an 'op'"),
        (b'{"op": 1}', "a report is not an object with an 'op'"),
        (b'{"op": "replaced", "paths": "a"}', "a report 'replaced' whose 'paths' is not a valid list"),
        (b'{"op": "replaced", "paths": ["a", 1]}', "whose 'paths' holds something else than texts"),
        (b'{"op": "done"}', "a report 'done' whose 'seq' is not a valid int"),
        (b'{"op": "done", "seq": true}', "a report 'done' whose 'seq' is not a valid int"),
        (b'{"op": "done", "seq": 9007199254740993}', "a report 'done' whose 'seq' is not a valid int"),
        (b'{"op": "died", "exit": -9007199254740993, "signal": 0}', "whose 'exit' is not a valid int"),
        (
            b'{"op": "started", "worker": 1, "supervisor": 2, "scratch": null}',
            "whose 'scratch' is not a valid str",
        ),
    ],
)
def test_malformed_reports_are_refused(packet: bytes, reason: str) -> None:
    with pytest.raises(ChannelError) as caught:
        parse_report(packet)
    assert reason in str(caught.value)


def test_child_that_moves_up_while_it_is_looked_for_is_found() -> None:
    # At the first look its parent was listed, and had ended when its own children were to be read.
    looks = [{5}, {5, 6}, {6}]
    assert supervisor._running_below(3, lambda _: looks.pop(0), lambda pid: 0 if pid == 5 else 3) == {6}
    assert looks == [{6}]
    assert supervisor._running_below(3, lambda _: set(), lambda _: 3) == set()
