"""Crash only: however the host goes, nothing of its sandboxes is left."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from aisotools.sandbox.confinement import landlock, levels, seccomp, syscalls
from aisotools.sandbox.frames import Frame, FrameReader
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import forkserver, spawn, tree
from tests.sandbox.alone import in_one_thread
from tests.sandbox.rig import rig
from tests.waiting import HANG_S, acts_on_a_signal, wait_until

HOST = """
import asyncio, os, sys
from pathlib import Path
from tests.sandbox.rig import Rig
from tests.waiting import eventually
from aisotools.sandbox.process import spawn

async def main():
    r = Rig(Path(sys.argv[1]))
    scratch = await r.value("import os; os.path.dirname(os.environ['HOME'])")
    await r.python(DAEMONS)
    copy = 0
    if sys.argv[2] == 'with a copy' and (copy := os.fork()) == 0:
        import time
        time.sleep(1000)  # holds every socket of the host
        os._exit(0)
    call = asyncio.create_task(r.python("open('began', 'w').close()\\n" + sys.argv[3], timeout_s=1000))
    await eventually((r.workspace / 'began').exists)
    link = r.kernel._connection
    print({'scratch': scratch, 'worker': link.pid, 'supervisor': link.supervisor,
           'server': spawn.server().pid, 'copy': copy}, flush=True)
    if sys.argv[2] == 'exits':
        os._exit(0)
    if sys.argv[2] == 'raises':
        raise SystemExit(3)
    await call

DAEMONS = '''
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir('/')
            time.sleep(1000)
        os._exit(0)
with open(os.environ['TMPDIR'] + '/file', 'w') as file:
    file.write('x')
'''
asyncio.run(main())
"""

BUSY = {
    "sleeping": "import time; time.sleep(1000)",
    "stubborn": "sum(range(10**12))",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "printing": "import os\nwhile True: os.write(1, b'x' * 10000)",
}


@contextmanager
def host(workspace: Path, how: str, code: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    workspace.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", HOST, str(workspace), how, code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield process, ast.literal_eval(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def all_below(facts: dict[str, Any]) -> set[int]:
    table = tree.table()
    pids = {facts["worker"], facts["supervisor"], facts["server"]}
    return pids | {p for pid in pids for p in tree.below(pid, table)}


def sandboxes_below(server: int) -> set[int]:
    """Everything below a fork server but the fork that waits for the next request, in the server's group."""
    table = tree.table()
    return {pid for pid in tree.below(server, table) if table[pid].group != server}


def waiting_fork(server: int) -> int:
    """The process id of that fork."""

    def find() -> set[int]:
        table = tree.table()
        return {pid for pid, process in table.items() if process[:2] == (server, server)}

    wait_until(lambda: len(find()) == 1)
    return find().pop()


def assert_gone(pids: set[int], facts: dict[str, Any]) -> None:
    def left() -> tuple[set[int], bool]:
        return pids & tree.table().keys(), Path(facts["scratch"]).exists()

    with suppress(AssertionError):  # what is left is reported below
        wait_until(lambda: left() == (set(), False))
    assert left() == (set(), False), facts


@pytest.mark.sample(2)
@pytest.mark.parametrize("code", BUSY.values(), ids=BUSY)
def test_killing_the_host_leaves_nothing(tmp_path: Path, code: str) -> None:
    with host(tmp_path / "workspace", "waits", code) as (process, facts):
        pids = all_below(facts)
        assert len(pids) >= 6
        process.kill()
        process.wait()
        assert_gone(pids, facts)


@pytest.mark.parametrize("how", ["exits", "raises"])
def test_a_host_that_leaves_without_closing(tmp_path: Path, how: str) -> None:
    with host(tmp_path / "workspace", how, BUSY["sleeping"]) as (process, facts):
        process.wait()
        assert_gone({facts["worker"], facts["supervisor"], facts["server"]}, facts)


def test_a_copy_of_the_host_that_holds_its_sockets_does_not_keep_the_tree(tmp_path: Path) -> None:
    with host(tmp_path / "workspace", "with a copy", BUSY["stubborn"]) as (process, facts):
        # The server and its waiting fork go with the last holder of its socket.
        pids = all_below(facts) - {facts["server"], waiting_fork(facts["server"])}
        process.kill()
        process.wait()
        try:
            assert_gone(pids, facts)
            assert tree.exists(facts["copy"])
            assert tree.exists(facts["server"])
        finally:
            os.kill(facts["copy"], signal.SIGKILL)
        assert_gone({facts["server"], *all_below(facts)}, facts)


ORDERS = [("server", "host"), ("supervisor", "host"), ("worker", "host"), ("host", "server")]


@pytest.mark.sample(2)
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_any_order_of_deaths(tmp_path: Path, order: tuple[str, str]) -> None:
    with host(tmp_path / "workspace", "waits", BUSY["stubborn"]) as (process, facts):
        pids = all_below(facts)
        for who in order:
            os.kill(process.pid if who == "host" else facts[who], signal.SIGKILL)
        process.wait()
        assert_gone(pids, facts)


def test_interrupts_and_hangups_of_the_terminal_do_not_reach_the_sandbox(tmp_path: Path) -> None:
    with host(tmp_path / "workspace", "waits", BUSY["sleeping"]) as (process, facts):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(facts["supervisor"], number)
        os.kill(facts["server"], signal.SIGINT)
        wait_until(lambda: not any(acts_on_a_signal(facts[who]) for who in ("supervisor", "server")))
        table = tree.table()
        assert {facts["supervisor"], facts["server"], facts["worker"]} <= table.keys()
        assert process.poll() is None
        assert os.getsid(facts["supervisor"]) == facts["supervisor"]
        assert os.getsid(facts["worker"]) == facts["supervisor"]
        assert os.getpgid(facts["worker"]) == facts["worker"]


def test_every_part_holds_only_its_own_descriptors(tmp_path: Path) -> None:
    with host(tmp_path / "workspace", "waits", BUSY["sleeping"]) as (_, facts):
        sockets = {
            who: sorted(os.readlink(entry) for entry in Path(f"/proc/{facts[who]}/fd").iterdir())  # noqa: PTH115 - what it links to is not a path
            for who in ("worker", "supervisor", "server")
        }
        channels = {target for target in sockets["worker"] if target.startswith("socket:")}
        assert not channels & set(sockets["supervisor"])
        assert not channels & set(sockets["server"])
        control = {target for target in sockets["supervisor"] if target.startswith("socket:")}
        assert len(control) == 1
        assert not control & set(sockets["server"])


async def test_no_worker_holds_a_namespace_of_an_isolated_one(tmp_path: Path) -> None:
    held = {probe.name for probe in spawn.detection().probes if probe.ok}
    if not {"isolated", "confined"} <= held:
        pytest.skip("this machine does not hold both levels")
    for level in ("isolated", "confined"):
        async with rig(tmp_path, level=level, name=level) as r:
            await r.python("1")
            kinds = {target.partition(":")[0] for target in descriptors(r.kernel.status().pid)}
            assert not kinds & {"user", "mnt", "pid", "net", "ipc", "uts"}


def descriptors(pid: int) -> list[str]:
    return [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]  # noqa: PTH115 - what it links to is not a path


# ---- requests, one by one


@contextmanager
def server() -> Iterator[spawn.ForkServerHandle]:
    """A fork server of the test's own."""
    made = spawn.ForkServerHandle()
    try:
        yield made
    finally:
        made.close()


def spec(workspace: Path, level: str = "limited") -> spawn.WorkerSpec:
    return spawn.WorkerSpec(level=level, workspace=str(workspace), limits=Limits())


@contextmanager
def worker(server: spawn.ForkServerHandle, request: spawn.WorkerSpec) -> Iterator[spawn.WorkerHandles]:
    ends = server.spawn(request)
    for connection in (ends.channel, ends.control):
        connection.settimeout(HANG_S)
    try:
        yield ends
    finally:
        for end in (ends.channel, ends.control, ends.out, ends.err):
            end.close()


def first_frame(ends: spawn.WorkerHandles) -> Frame:
    reader = FrameReader()
    frames: list[Frame] = []
    while not frames:
        data = ends.channel.recv(1 << 16)
        assert data, "the channel ended without a frame"
        frames += reader.feed(data)
    return frames[0]


def message(ends: spawn.WorkerHandles) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ends.control.recv(1 << 16))
    return found


def test_a_worker_that_cannot_be_confined_says_which_step_failed(tmp_path: Path) -> None:
    level = spawn.detection().level
    assert level is not None
    missing = tmp_path / "missing"
    with server() as made, worker(made, spec(missing, level)) as ends:
        frame = first_frame(ends)
        assert frame.op == "failed"
        assert str(missing) in str(frame.header["error"])


def test_a_request_without_its_descriptors_makes_nothing_and_others_are_served(tmp_path: Path) -> None:
    with server() as made:
        before = made.preloaded()
        made._socket.send(b'{"op": "spawn", "level": "limited"}')
        assert made.preloaded() == before
        assert sandboxes_below(made.pid) == set()
        with worker(made, spec(tmp_path)) as ends:
            assert first_frame(ends).op == "ready"


def test_malformed_request_is_reported_and_others_are_served(tmp_path: Path) -> None:
    with server() as made:
        ours, theirs = socket.socketpair()
        out, out_writing = os.pipe()
        descriptors = [theirs.fileno(), theirs.fileno(), out_writing, out_writing]
        for packet in (b'{"op": "spawn", "level": "limited"}', b"[]"):
            socket.send_fds(made._socket, [packet], descriptors)
        for descriptor in (theirs, ours):
            descriptor.close()
        os.close(out_writing)
        with os.fdopen(out, encoding="utf-8") as reader:
            words = reader.read()  # to the end: no process holds the other end any more
        assert words.startswith("The fork server could not make a worker: missing or unknown: ")
        assert "env, host, " in words
        wait_until(lambda: not sandboxes_below(made.pid))  # the fork ends after it has reported
        with worker(made, spec(tmp_path)) as ends:
            assert first_frame(ends).op == "ready"


def test_a_request_that_no_fork_can_receive_is_taken_and_reported() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    out, out_writing = os.pipe()
    with ours, theirs:
        socket.send_fds(ours, [b'{"op": "spawn"}'], [out, out, out_writing, out_writing])
        os.close(out_writing)
        before = open_numbers()
        forkserver.discard_request(theirs, "no more processes")
        assert open_numbers() == before
        forkserver.discard_request(theirs, "nothing is there")  # which is not an error
    with os.fdopen(out, encoding="utf-8") as reader:
        assert reader.read() == "The fork server could not make a worker: no more processes."


def test_orphans_of_a_killed_supervisor_are_ended_and_other_workers_go_on(tmp_path: Path) -> None:
    with server() as made, worker(made, spec(tmp_path)) as one, worker(made, spec(tmp_path)) as two:
        for ends in (one, two):
            assert first_frame(ends).op == "ready"
        killed, other = message(one), message(two)
        assert killed["op"] == other["op"] == "started"
        assert Path(killed["scratch"]).is_dir()
        # Stopped, it cannot die with its parent by itself: the fork server has to find it.
        os.kill(killed["worker"], signal.SIGSTOP)
        os.kill(killed["supervisor"], signal.SIGKILL)
        wait_until(lambda: not Path(killed["scratch"]).exists())
        assert tree.parent_of(killed["worker"]) == 0
        assert tree.parent_of(other["worker"]) == other["supervisor"]
        assert Path(other["scratch"]).is_dir()


def test_the_fork_that_waits_becomes_the_supervisor_and_another_one_waits(tmp_path: Path) -> None:
    with server() as made:
        made.preloaded()
        first = waiting_fork(made.pid)
        with worker(made, spec(tmp_path)) as ends:
            assert first_frame(ends).op == "ready"
            assert message(ends)["supervisor"] == first
            second = waiting_fork(made.pid)
            assert second != first
            made.preloaded()  # a question takes a fork, too
            assert waiting_fork(made.pid) not in {first, second}


@pytest.mark.parametrize("stopped", [False, True])
def test_a_waiting_fork_that_was_killed_is_replaced(tmp_path: Path, stopped: bool) -> None:
    with server() as made:
        made.preloaded()
        killed = waiting_fork(made.pid)
        if stopped:
            # It is there when the request comes, and dies before it takes it.
            os.kill(killed, signal.SIGSTOP)
            with worker(made, spec(tmp_path)) as ends:
                os.kill(killed, signal.SIGKILL)
                assert first_frame(ends).op == "ready"
        os.kill(waiting_fork(made.pid) if stopped else killed, signal.SIGKILL)
        with worker(made, spec(tmp_path)) as ends:
            assert first_frame(ends).op == "ready"
            assert message(ends)["supervisor"] != killed


class KilledForks(forkserver.ForkServer):
    """Answers questions, with forks that end by themselves as if somebody had killed them.

    Attributes:
        forks: How many it has made.
    """

    def __init__(self, requests: socket.socket, *, before: frozenset[int], after: frozenset[int]) -> None:
        """End the forks of these numbers before they take the request, or after."""
        self._requests, self._preloaded = requests, {"some": "module"}
        self._waiting, self._temporary_by_supervisor = None, {}
        self._before, self._after = before, after
        self.forks = 0

    def _fork_ahead(self) -> forkserver._WaitingFork:
        self.forks += 1
        return super()._fork_ahead()

    def _serve_request(self, report: int) -> NoReturn:
        if self.forks in self._after:
            self._requests.recv(1 << 16)
        if self.forks in self._before | self._after:
            os._exit(0)
        super()._serve_request(report)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("before", "after", "answered"),
    [
        ((), (), {1: True, 2: True, 3: True}),
        ((1,), (), {2: True, 3: True, 4: True}),
        ((1, 3), (), {2: True, 4: True, 5: True}),  # with a success in between, each has a second try
        ((1, 2), (), {2: False, 3: True, 4: True}),
        ((1, 2, 3), (), {2: False, 4: True, 5: True}),  # one was thrown away: the next has its second try
        ((1, 2, 3, 4), (), {2: False, 4: False, 5: True}),
        ((), (1,), {1: False, 2: True, 3: True}),
        ((2,), (1,), {1: False, 3: True, 4: True}),
        ((1,), (2,), {2: False, 3: True, 4: True}),
    ],
)
def test_a_request_gets_two_forks_whatever_became_of_those_before(
    before: tuple[int, ...], after: tuple[int, ...], answered: dict[int, bool]
) -> None:
    def ask_thrice() -> dict[str, Any]:
        host, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        host.setblocking(False)
        made = KilledForks(requests, before=frozenset(before), after=frozenset(after))
        found = []
        for _ in range(3):
            host.send(b'{"op": "preloaded"}')
            made._handle_request()
            try:
                is_answered = json.loads(host.recv(1 << 16)) == {"some": "module"}
            except BlockingIOError:
                is_answered = False
            found.append((made.forks, is_answered))
            assert not made._has_request()
        return {"found": found}

    assert in_one_thread(ask_thrice) == {"found": [[forks, one] for forks, one in answered.items()]}


def test_the_waiting_fork_is_no_orphan_of_a_killed_supervisor(tmp_path: Path) -> None:
    with server() as made, worker(made, spec(tmp_path)) as ends:
        assert first_frame(ends).op == "ready"
        killed = message(ends)
        waiting = waiting_fork(made.pid)
        os.kill(killed["supervisor"], signal.SIGKILL)
        wait_until(lambda: not Path(killed["scratch"]).exists())
        assert waiting_fork(made.pid) == waiting


def test_a_worker_ignores_no_signal_that_the_host_ignores(tmp_path: Path) -> None:
    """As under `nohup`, or in the background of a shell; programs that the worker starts would inherit it."""
    ignored = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    before = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    try:
        with server() as made, worker(made, spec(tmp_path)) as ends:
            assert first_frame(ends).op == "ready"
            status = Path(f"/proc/{message(ends)['worker']}/status").read_text("ascii")
    finally:
        for number, handler in zip(ignored, before, strict=True):
            signal.signal(number, handler)
    mask = int(status.partition("SigIgn:")[2].split()[0], 16)
    assert [number.name for number in ignored if mask >> (number - 1) & 1] == []


def test_the_waiting_fork_ends_with_the_server() -> None:
    made = spawn.ForkServerHandle()
    made.preloaded()
    waiting = waiting_fork(made.pid)
    os.kill(made.pid, signal.SIGKILL)
    wait_until(lambda: not tree.exists(waiting))
    made.close()


def test_the_waiting_fork_ends_when_the_host_asks_for_nothing_more(tmp_path: Path) -> None:
    made = spawn.ForkServerHandle()
    with worker(made, spec(tmp_path)) as ends:
        assert first_frame(ends).op == "ready"
        waiting = waiting_fork(made.pid)
        made.retire()
        wait_until(lambda: not tree.exists(waiting))
    made.close()


def test_the_server_stays_until_its_last_worker_ends(tmp_path: Path) -> None:
    made = spawn.ForkServerHandle()
    with worker(made, spec(tmp_path)) as ends:
        assert first_frame(ends).op == "ready"
        pid = made.pid
        made.retire()
        supervisor = message(ends)["supervisor"]
        assert tree.parent_of(supervisor) == pid
    wait_until(lambda: not tree.exists(pid))
    made.close()


def test_filters_are_compiled_before_the_fork() -> None:
    arch = syscalls.architecture()
    if arch is None:
        pytest.skip("this machine has no system call table")

    def compile_twice() -> dict[str, Any]:
        seccomp.build_filter.cache_clear()
        forkserver._compile_filters("guarded", 1)
        made = seccomp.build_filter.cache_info().currsize
        seccomp.build_filter(arch, "guarded", levels.landlock_abi("guarded", 1))
        seccomp.build_filter(arch, "limited", 0)
        return {"made": made, "missed": seccomp.build_filter.cache_info().misses - made}

    assert in_one_thread(compile_twice) == {"made": 2, "missed": 0}


@pytest.mark.parametrize("level", ["confined", "isolated"])
def test_the_filter_of_readers_is_compiled_before_the_fork_where_there_are_readers(level: str) -> None:
    arch = syscalls.architecture()
    if arch is None or not levels.has_readers(level):
        pytest.skip("this machine has no readers")

    def compile_twice() -> dict[str, Any]:
        seccomp.build_filter.cache_clear()
        forkserver._compile_filters(level, None)
        made = seccomp.build_filter.cache_info().misses
        seccomp.build_filter(arch, seccomp.READER, landlock.abi())
        return {"missed": seccomp.build_filter.cache_info().misses - made}

    assert in_one_thread(compile_twice) == {"missed": 0}


def open_numbers() -> set[int]:
    found = set()
    for number in range(256):
        with suppress(OSError):
            os.fstat(number)
            found.add(number)
    return found


def install_descriptors(answer: int) -> None:
    names = ("channel", "control", "out", "err")
    high = []
    for name in names:
        reading, writing = os.pipe()
        os.write(writing, name.encode())
        high.append(fcntl.fcntl(reading, fcntl.F_DUPFD, 50))
    os.dup2(high[1], 3)  # the control socket has the number that the channel is to get
    os.dup2(high[0], 4)  # and the other way round
    forkserver._install_descriptors([4, 3, high[2], high[3]], keep=frozenset({answer}))
    found = {
        "open": sorted(open_numbers() - {answer}),
        "read": [os.read(number, 100).decode() for number in (3, 4, 1, 2)],
        "null": os.read(0, 1).decode(),
        "inherited": [os.get_inheritable(number) for number in range(5)],
    }
    os.write(answer, json.dumps(found).encode())


def test_descriptors_get_their_numbers_whichever_they_had() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            install_descriptors(fcntl.fcntl(writing, fcntl.F_DUPFD, 90))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        found = json.load(file)
    os.waitpid(pid, 0)
    assert found == {
        "open": [0, 1, 2, 3, 4],
        "read": ["channel", "control", "out", "err"],
        "null": "",
        "inherited": [True, True, True, False, False],
    }
