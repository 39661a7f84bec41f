"""Open files that a peer sends although nobody asked for them."""

from __future__ import annotations

import ast
import errno
import os
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from aisotools.core.exceptions import ChannelError
from aisotools.sandbox.process import descriptors
from aisotools.sandbox.process.descriptors import (
    SO_PASSRIGHTS,
    close_apart,
    discard_socket,
    receive,
    refuse_descriptors,
    refuses_descriptors,
)
from tests.sandbox.rig import open_files
from tests.waiting import HANG_S, wait_until

Pair = tuple[socket.socket, socket.socket]


@contextmanager
def pair(kind: int = socket.SOCK_STREAM) -> Iterator[Pair]:
    """The host's end and the other one, as under a kernel that cannot refuse."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with ours, theirs:
        yield ours, theirs


@contextmanager
def slow_to_close() -> Iterator[tuple[int, Callable[[], None]]]:
    """A descriptor whose close lasts until somebody reads what it has sent, and a function that does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        reader, _ = server.accept()
        client.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                client.send(bytes(1 << 16))
        client.setblocking(True)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, int(2 * HANG_S)))

        def read() -> None:
            while reader.recv(1 << 20):
                pass

        with reader:
            yield client.detach(), read


def is_closing() -> bool:
    return any(thread.name == "aisotools-close" for thread in threading.enumerate())


def send_away(sock: socket.socket, descriptor: int) -> None:
    socket.send_fds(sock, [b"x"], [descriptor])
    os.close(descriptor)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_the_kernel_refuses_them_in_one_direction(kind: int) -> None:
    with pair(kind) as (ours, theirs), Path(os.devnull).open("rb") as file:
        if not refuse_descriptors(ours):
            pytest.skip("this kernel is older than Linux 6.16")
        assert (refuses_descriptors(ours), refuses_descriptors(theirs)) == (True, False)
        with pytest.raises(PermissionError):
            socket.send_fds(theirs, [b"x"], [file.fileno()])
        theirs.send(b"y")
        assert receive(ours, 10) == (b"y", [])
        socket.send_fds(ours, [b"z"], [file.fileno()])
        data, received, _, _ = socket.recv_fds(theirs, 10, 4)
        assert (data, len(received)) == (b"z", 1)
        os.close(received[0])
        # Whoever has the other end cannot allow it: the option belongs to the host's.
        theirs.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 1)
        with pytest.raises(PermissionError):
            socket.send_fds(theirs, [b"x"], [file.fileno()])


def test_an_older_kernel_is_noticed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # no such option there, as in an older kernel
        assert not refuse_descriptors(server)
        assert not refuses_descriptors(server)


def test_receiving_does_not_wait_for_the_close() -> None:
    with pair() as (ours, theirs), slow_to_close() as (descriptor, read):
        send_away(theirs, descriptor)
        with pytest.raises(ChannelError, match="1 open files"):
            receive(ours, 10)
        assert is_closing()
        read()
        wait_until(lambda: not is_closing())


def test_control_an_ordinary_read_waits_for_the_close() -> None:
    with pair() as (ours, theirs), slow_to_close() as (descriptor, read):
        send_away(theirs, descriptor)
        reading = threading.Thread(target=ours.recv, args=(10,))
        reading.start()
        reading.join(0.2)
        is_stuck = reading.is_alive()
        read()
        reading.join()
        assert is_stuck


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_closing_does_not_wait_for_what_was_never_read(kind: int) -> None:
    with pair(kind) as (ours, theirs), slow_to_close() as (descriptor, read):
        send_away(theirs, descriptor)
        discard_socket(ours)
        assert ours.fileno() == -1
        assert is_closing()
        # The peer knows at once, and cannot add to what has to be closed.
        with pytest.raises(ConnectionError):
            theirs.send(b"more")
        read()
        wait_until(lambda: not is_closing())
        discard_socket(ours)


def test_control_an_ordinary_close_waits() -> None:
    with pair() as (ours, theirs), slow_to_close() as (descriptor, read):
        send_away(theirs, descriptor)
        closing = threading.Thread(target=ours.close)
        closing.start()
        closing.join(0.2)
        is_stuck = closing.is_alive()
        read()
        closing.join()
        assert is_stuck


def test_a_socket_that_refuses_them_is_closed_at_once() -> None:
    with pair() as (ours, theirs):
        if not refuse_descriptors(ours):
            pytest.skip("this kernel is older than Linux 6.16")
        discard_socket(ours)
        assert not is_closing()
        assert theirs.recv(1) == b""


def test_the_most_that_one_message_can_hold_is_taken_and_closed() -> None:
    """The kernel would close what finds no room, in the thread that reads."""
    before = open_files()
    with pair() as (ours, theirs), Path(os.devnull).open("rb") as file:
        socket.send_fds(theirs, [b"x"], [file.fileno()] * 253)
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            socket.send_fds(theirs, [b"x"], [file.fileno()] * 254)
        with pytest.raises(ChannelError, match="253 open files"):
            receive(ours, 10)
    wait_until(lambda: open_files() == before)


def test_credentials_still_come() -> None:
    with pair() as (ours, theirs):
        ours.setsockopt(socket.SOL_SOCKET, 16, 1)  # SO_PASSCRED
        theirs.send(b"x")
        data, others = receive(ours, 10, socket.CMSG_SPACE(12))
        assert (data, [kind for _, kind, _ in others]) == (b"x", [2])


def test_closes_that_hang_take_few_threads_and_hold_up_no_other() -> None:
    before = open_files()
    reads = []
    with slow_to_close() as one, slow_to_close() as two:
        for descriptor, read in (one, two):
            reads.append(read)
            close_apart([descriptor])
        closers = {thread for thread in threading.enumerate() if thread.name == "aisotools-close"}
        assert len(closers) == 2
        pipes = [end for _ in range(100) for end in os.pipe()]
        for end in pipes:
            close_apart([end])
        wait_until(lambda: open_files() <= before + 6)  # the two sockets, and what stands behind them
        assert sum(thread.name == "aisotools-close" for thread in threading.enumerate()) <= 4
        for read in reads:
            read()
        wait_until(lambda: not is_closing())
    assert open_files() <= before


def test_a_descriptor_that_is_not_open_harms_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    close_apart([reading, writing])
    wait_until(lambda: not is_closing())


PACKAGE = Path(descriptors.__file__).parents[2]

CLOSED_ONCE = {
    "forkserver.py: close",  # of a value, which whoever has it forgets first
    "namespaces.py: bind_to_supervisor",
    "supervisor.py: close",
    "worker.py: _forget_worker",
    "worker.py: _on_user_fork",
}
"""The others: a fork closes what belongs to its parent. It has one thread, and comes there once."""


def test_descriptor_of_an_object_is_forgotten_before_it_is_closed() -> None:
    """Else who is cut off in between closes the number again, when it is that of another file."""
    closes = re.compile(r"os\.close\(self(\.\w+)+\)")
    found = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if closes.search(text) is None:
            continue
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name != "__init__":
                calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
                if any(closes.fullmatch(ast.unparse(call)) for call in calls):
                    found.add(f"{path.name}: {function.name}")
    assert found == CLOSED_ONCE
