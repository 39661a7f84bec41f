from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.frames import encode
from aisotools.sandbox.host import fork_handle
from aisotools.sandbox.host.fork_handle import ForkSnapshot, ForkSocket, wait_until_ended
from aisotools.sandbox.host.fork_observation import ProcessCounts, TooMuchToRead
from aisotools.sandbox.process.tree import is_below
from tests.sandbox.host.test_transport_socket import FullSocket
from tests.waiting import HANG_S

SPEAKER = "import os, sys, time; os.write(int(sys.argv[1]), bytes.fromhex(sys.argv[2])); time.sleep(1000)"


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


# ---- killed processes


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"])


async def test_the_end_of_killed_processes_is_waited_for_and_not_for_ever() -> None:
    staying, gone = sleeper(), sleeper()
    try:
        gone.kill()
        gone.wait()
        await wait_until_ended([gone.pid], within_s=HANG_S)  # which would be noticed
        await wait_until_ended([staying.pid, gone.pid], within_s=0.01)
        assert staying.poll() is None, "it was not waited for any longer"
        waiting = asyncio.create_task(wait_until_ended([staying.pid], within_s=HANG_S))
        await asyncio.sleep(0)
        assert not waiting.done()
        staying.kill()
        await waiting
        assert staying.wait() != 0
    finally:
        staying.kill()
        staying.wait()


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


async def test_a_snapshot_is_inspected_in_a_thread_and_no_failure_there_is_raised(
    sock: ForkSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much there is to read is up to the worker, and so is what it says."""
    threads = []

    def observe(*_: object, is_quick: bool = False) -> None:
        if is_quick:
            raise TooMuchToRead
        threads.append(threading.get_ident())
        raise IndexError("a line of another form")

    monkeypatch.setattr(fork_handle, "observe", observe)
    peer = speaker(sock, encode("parked"))
    snapshot = ForkSnapshot(1, "c", sock, counts=ProcessCounts(), known_tools=set(), unsettled=())
    await snapshot.settled
    peer.wait()
    assert snapshot.drop_reason == "the snapshot could not be inspected (IndexError)"
    assert threading.get_ident() not in threads
    assert len(threads) == 1


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


async def test_a_fork_is_asked_again_while_too_many_descriptors_are_on_their_way(
    sock: ForkSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel counts them per user, so another program may have caused that."""
    monkeypatch.setattr(fork_handle, "IN_FLIGHT_PAUSE_S", 0.001)
    child = speaker(sock, encode("parked"))
    taken = snapshot(sock)
    await taken.settled
    full = FullSocket(fileno=sock.sock.detach())
    sock.sock, full.refusals = full, 3
    asked = await taken._request("copy", os.getpid, {})
    assert full.refusals == -1, "refused three times, and then sent"
    asked.close(kill=False)
    full.refusals = 1 << 30
    monkeypatch.setattr(fork_handle, "IN_FLIGHT_PATIENCE_S", 0.01)
    with pytest.raises(SandboxError, match="Too many references"):
        await taken._request("copy", os.getpid, {})
    taken.drop("done")
    assert child.wait() == -9


@pytest.mark.parametrize("value", [None, "text", 3, {"a": 1}])
def test_losses_that_are_no_list(value: object) -> None:
    assert fork_handle._losses(value) == ()


def test_losses_are_bounded() -> None:
    assert fork_handle._losses(["x" * 1000] * 100) == ("x" * 200,) * 50
