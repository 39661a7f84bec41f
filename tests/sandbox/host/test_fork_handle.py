from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.frames import encode
from aisotools.sandbox.host import fork_handle
from aisotools.sandbox.host.fork_handle import (
    ForkSnapshot,
    ForkSocket,
    ProcessCounts,
    ProcessObservation,
    label_snapshot,
)
from aisotools.sandbox.process.tree import is_below
from tests.waiting import HANG_S

SPEAKER = "import os, sys, time; os.write(int(sys.argv[1]), bytes.fromhex(sys.argv[2])); time.sleep(1000)"


# ---- labels


def observation(
    *, threads: int = 0, children: Mapping[int, str] | None = None, **more: Any
) -> ProcessObservation:
    more.setdefault("descriptors", {})
    return ProcessObservation(counts=ProcessCounts(threads=threads, children=children or {}), **more)


@pytest.mark.parametrize(
    ("seen", "label", "lost"),
    [
        (observation(), "exact", ()),
        (observation(threads=1, thread_names=("t",)), "partial", ("threads: t",)),
        (observation(threads=2), "partial", ("2 threads of a library",)),
        (
            observation(threads=3, thread_names=("t",)),
            "partial",
            ("threads: t", "2 threads of a library"),
        ),
        (observation(threads=2, libraries=frozenset({"libopenblas.so.0"})), "exact", ()),
        (
            observation(threads=1, libraries=frozenset({"polars.abi3.so"})),
            "data only",
            ("the threads of polars, which cannot be started again",),
        ),
        (observation(libraries=frozenset({"polars.abi3.so"})), "exact", ()),
        (observation(children={5: "sleep"}), "partial", ("child processes: sleep",)),
        (observation(descriptors={"pipes": 2, "sockets": 1}), "partial", ("2 pipes", "1 sockets")),
        (observation(written_files=("f",)), "partial", ("what was written to open files: f",)),
        (observation(shared_mappings=("m",)), "partial", ("what was written to shared memory: m",)),
        (observation(is_complete=False), "partial", ("anything that could not be inspected",)),
        (
            observation(written_files=tuple("abcdefghij")),
            "partial",
            ("what was written to open files: a, b, c, d, e, f, g, h and 2 more",),
        ),
    ],
)
def test_labels(seen: ProcessObservation, label: str, lost: tuple[str, ...]) -> None:
    assert label_snapshot(seen) == (label, lost)


def test_snapshots_are_no_children_of_user_code() -> None:
    counts = ProcessCounts(threads=1, children={1: "a", 2: "b"})
    assert counts.without({2, 3}) == ProcessCounts(threads=1, children={1: "a"})


# ---- /proc


def test_threads_and_children_are_counted() -> None:
    before = fork_handle.count_processes(os.getpid(), ())
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    child = subprocess.Popen(["sleep", "1000"])
    try:
        counts = fork_handle.count_processes(os.getpid(), ())
        assert counts.threads == before.threads + 1
        assert counts.children[child.pid] in {"sleep", Path(sys.executable).name, "python"}
        assert fork_handle.count_processes(os.getpid(), {child.pid}).children[child.pid] == ""
    finally:
        child.kill()
        child.wait()
        end.set()
        thread.join()
    assert fork_handle.count_processes(child.pid, ()) == ProcessCounts()


def test_shared_resources_of_a_process_are_observed(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with (tmp_path / "out").open("wb") as out, Path(__file__).open("rb"):
        code = "import sys, time; print(flush=True); time.sleep(1000)"
        child = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[reading, writing, out.fileno()], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
    try:
        seen = fork_handle.observe(
            child.pid, ProcessCounts(threads=1), {"threads": ["t" * 99], "ours": [reading]}
        )
        assert seen.descriptors == {"pipes": 1}
        assert seen.written_files == ("out",)
        assert seen.thread_names == ("t" * 40,)
        assert seen.is_complete
        assert fork_handle.private_bytes(child.pid) > 0
        alone = fork_handle.observe(child.pid, ProcessCounts(), {"threads": ["a lie"]})
        assert alone.thread_names == (), "the kernel has counted one thread"
    finally:
        child.kill()
        child.communicate()
        os.close(reading)
        os.close(writing)
    assert not fork_handle.observe(child.pid, ProcessCounts(), {}).is_complete
    assert fork_handle.private_bytes(child.pid) == 0


# ---- descent


def parents(tree: dict[int, int]) -> Any:
    return lambda pid: tree.get(pid, 0)


def test_descent() -> None:
    tree = {5: 4, 4: 3, 3: 1, 9: 1}
    assert is_below(5, 3, parents(tree))
    assert is_below(3, 3, parents(tree))
    assert not is_below(9, 3, parents(tree))
    assert not is_below(77, 3, parents(tree)), "it is gone"
    assert not is_below(2, 3, lambda pid: 2 if pid == 8 else 8), "a circle ends"


def test_a_parent_that_ends_while_the_way_is_walked() -> None:
    walks = 0

    def parent_of(pid: int) -> int:
        nonlocal walks
        if pid == 5:
            walks += 1
            return 4 if walks == 1 else 3  # 4 has ended: 5 was handed to 3
        return 0

    assert is_below(5, 3, parent_of)
    assert walks == 2
    assert not is_below(5, 3, lambda pid: 4 if pid == 5 else 0), "it does not walk for ever"


# ---- sockets


@pytest.fixture
def sock() -> Iterator[ForkSocket]:
    sock = ForkSocket(os.getpid)
    yield sock
    sock.close(kill=False)


def speaker(sock: ForkSocket, data: bytes) -> subprocess.Popen[bytes]:
    """A process that sends `data` and stays."""
    number = sock.peer.fileno()
    return subprocess.Popen([sys.executable, "-c", SPEAKER, str(number), data.hex()], pass_fds=[number])


def test_of_many_children_only_some_are_named() -> None:
    children = [subprocess.Popen(["sleep", "1000"]) for _ in range(40)]
    try:
        counts = fork_handle.count_processes(os.getpid(), {children[0].pid})
        assert counts.children.keys() >= {child.pid for child in children}
        assert 8 <= sum(map(bool, counts.children.values())) <= 32
    finally:
        for child in children:
            child.kill()
            child.wait()


async def test_a_frame_and_no_byte_behind_it(sock: ForkSocket) -> None:
    sock.peer.sendall(encode("woke", {"lost": ["x"]}) + b"for the next reader")
    assert await sock.receive("woke", within_s=50) == {"lost": ["x"]}
    end, pid, pidfd = sock.detach()
    assert (end.recv(100), pid, sock.pidfd) == (b"for the next reader", os.getpid(), -1)
    os.close(pidfd)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encode("refused", {"error": "No memory"}), "fork answered 'refused' instead of 'woke': No memory"),
        (b"\xff" * 100, "the fork sent a malformed answer: a frame announced a header"),
        (encode("woke", {}, [b"part"]), "announced 4 bytes"),
        (encode("parked"), "the fork answered 'parked' instead of 'woke'$"),
    ],
)
async def test_other_answers(sock: ForkSocket, data: bytes, reason: str) -> None:
    sock.peer.sendall(data)
    with pytest.raises(SandboxError, match=reason):
        await sock.receive("woke", within_s=50)


async def test_no_answer(sock: ForkSocket) -> None:
    with pytest.raises(SandboxError, match=r"the fork did not answer within 0\.01 s"):
        await sock.receive("woke", within_s=0.01)
    sock.peer.close()
    with pytest.raises(SandboxError, match="the fork closed its socket before it answered"):
        await sock.receive("woke", within_s=50)


@pytest.mark.parametrize("op", ["refused", "parked"])
async def test_the_process_that_was_to_fork_is_never_taken_for_the_fork(op: str) -> None:
    """It is not ended with the socket: in a test that fails, it would be this process."""
    sock = ForkSocket(os.getppid, os.getpid())
    sock.peer.sendall(encode(op, {"error": "no room"}))
    with pytest.raises(SandboxError, match=r"could not be forked \(no room\)"):
        await sock.receive("parked", within_s=HANG_S)
    assert (sock.pid, sock.pidfd) == (0, -1)
    sock.close(kill=False)


async def test_a_process_from_elsewhere_is_refused() -> None:
    foreign = ForkSocket(lambda: 999_999_999)
    foreign.peer.sendall(encode("woke"))
    with pytest.raises(SandboxError, match="the process that answered is not one of this sandbox's proc"):
        await foreign.receive("woke", within_s=50)
    assert foreign.pidfd == -1
    foreign.close(kill=False)


async def test_closed_while_somebody_waits() -> None:
    """Its descriptor's number may be another file's before the waiting task ends. That stays watched."""
    sock = ForkSocket(os.getpid)
    waiting = asyncio.ensure_future(sock.receive("woke", within_s=50))
    await asyncio.sleep(0)
    number = sock.sock.fileno()
    sock.close(kill=False)
    waiting.cancel()
    watched, other = socket.socketpair()  # they take the lowest numbers that are free
    if other.fileno() == number:
        watched, other = other, watched
    assert watched.fileno() == number
    readable = asyncio.Event()
    asyncio.get_running_loop().add_reader(watched, readable.set)
    with watched, other:
        with pytest.raises(asyncio.CancelledError):
            await waiting
        other.send(b"x")
        await asyncio.wait_for(readable.wait(), HANG_S)
        asyncio.get_running_loop().remove_reader(watched)


async def test_two_processes_at_once(sock: ForkSocket) -> None:
    child = speaker(sock, encode("parked"))
    try:
        await sock.receive("parked", within_s=50)
        assert sock.pid == child.pid
        sock.peer.sendall(encode("woke"))
        with pytest.raises(SandboxError, match="two processes answered on the fork's socket"):
            await sock.receive("woke", within_s=50)
    finally:
        sock.close(kill=True)
        assert child.wait() == -9


# ---- snapshots


def snapshot(sock: ForkSocket, *, counts: ProcessCounts | None = None, unsettled: Any = ()) -> ForkSnapshot:
    counts = counts or ProcessCounts()
    return ForkSnapshot(1, "c", sock, counts=counts, known_tools={"k"}, unsettled=unsettled)


async def test_a_snapshot_settles_and_is_dropped(sock: ForkSocket) -> None:
    child = speaker(sock, encode("parked", {"last_fork_s": 0.5, "threads": [], "ours": []}))
    taken = snapshot(sock)
    assert (taken.socket.pid, taken.is_alive) == (0, False)
    await taken.settled
    assert (taken.socket.pid, taken.is_alive, taken.last_fork_s) == (child.pid, True, 0.5)
    assert taken.measure_memory() == taken.point.memory_bytes > 0
    taken.drop("first")
    taken.drop("second")
    assert child.wait() == -9
    assert (taken.drop_reason, taken.is_alive, taken.measure_memory()) == ("first", False, 0)
    with pytest.raises(SandboxError, match="first"):
        await taken.wake(os.getpid, within_s=50)


async def test_a_fork_that_fails(sock: ForkSocket) -> None:
    child = speaker(sock, encode("refused", {"error": "No memory"}))
    taken = snapshot(sock)
    await taken.settled
    assert child.wait() == -9
    assert taken.drop_reason == (
        "the snapshot was not taken, because the fork answered 'refused' instead of 'parked': No memory"
    )


async def test_forks_requested_before_are_not_counted_as_children_of_user_code() -> None:
    first, second = ForkSocket(os.getpid), ForkSocket(os.getpid)
    earlier = speaker(first, encode("parked"))
    before = snapshot(first)
    later = speaker(second, encode("parked"))
    after = snapshot(second, counts=ProcessCounts(children={earlier.pid: "python"}), unsettled=(before,))
    await asyncio.wait([before.settled, after.settled])
    assert not any("child" in entry for entry in after.point.lost)
    for taken, child in ((before, earlier), (after, later)):
        taken.drop("done")
        child.wait()


async def test_a_snapshot_that_ended_cannot_be_restored(sock: ForkSocket) -> None:
    child = speaker(sock, encode("parked"))
    taken = snapshot(sock)
    await taken.settled
    child.kill()
    child.wait()
    with pytest.raises(SandboxError, match="the snapshot's process has ended"):
        await taken.wake(os.getpid, within_s=50)


@pytest.mark.parametrize("value", [None, "text", 3, {"a": 1}])
def test_losses_that_are_no_list(value: object) -> None:
    assert fork_handle._losses(value) == ()


def test_losses_are_bounded() -> None:
    assert fork_handle._losses(["x" * 1000] * 100) == ("x" * 200,) * 50
