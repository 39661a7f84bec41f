"""Sockets on the loop whose peers send what nobody asked for, under a kernel that cannot refuse it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import ChannelError, SandboxError, WorkerDied
from aisotools.sandbox.frames import encode
from aisotools.sandbox.host.fork_handle import ForkSocket
from aisotools.sandbox.host.transport import READ_BYTES, FrameSocket
from aisotools.sandbox.process.descriptors import SO_PASSRIGHTS, refuse_descriptors, refuses_descriptors
from tests.sandbox.host.test_connection import Peer
from tests.waiting import HANG_S


def send_open_file(sock: socket.socket, data: bytes) -> None:
    with Path(os.devnull).open("rb") as file:
        socket.send_fds(sock, [data], [file.fileno()])


def frame_socket(sock: socket.socket) -> FrameSocket:
    return FrameSocket(sock, on_readable=lambda: None, on_overflow=lambda: None)


async def test_open_files_with_a_frame_are_an_error_and_bytes_are_not() -> None:
    ours, theirs = socket.socketpair()
    channel = frame_socket(ours)
    assert channel.read() is None
    theirs.send(b"bytes")
    assert channel.read() == b"bytes"
    send_open_file(theirs, b"more")
    with pytest.raises(ChannelError, match="nobody had asked for"):
        channel.read()
    theirs.close()
    assert channel.read() == b""
    channel.close()
    channel.close()


async def test_a_socket_that_refuses_them_reads_and_sends_them() -> None:
    ours, theirs = socket.socketpair()
    refuse_descriptors(ours)
    channel = frame_socket(ours)
    theirs.send(b"bytes")
    assert channel.read() == b"bytes"
    channel.write(b"frame", [theirs.fileno()])
    data, received, _, _ = socket.recv_fds(theirs, 10, 4)
    assert (data, len(received)) == (b"frame", 1)
    os.close(received[0])
    channel.close()
    assert theirs.recv(1) == b""
    theirs.close()


class FullSocket(socket.socket):
    """Answers as the kernel does to a user who has as many descriptors on their way as one may have."""

    refusals = 1

    def sendmsg(self, *arguments: Any, **options: Any) -> int:
        self.refusals -= 1
        if self.refusals < 0:
            return super().sendmsg(*arguments, **options)
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))


async def test_descriptors_that_cannot_go_are_an_error_and_the_channel_stays() -> None:
    pair = socket.socketpair()
    with FullSocket(fileno=pair[0].detach()) as ours, pair[1] as theirs:
        ours.setblocking(False)
        channel = frame_socket(ours)
        with pytest.raises(ChannelError, match="on their way between processes"):
            channel.write(b"frame", [theirs.fileno()])
        channel.write(b"bytes")
        assert theirs.recv(10) == b"bytes", "nothing of the first one was sent"
        channel.close()


async def test_little_is_read_behind_a_large_frame() -> None:
    """Thousands of small frames in one read would hold up the loop."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    channel = frame_socket(ours)
    large = encode("x", {}, (b"x" * (3 * READ_BYTES),))
    theirs.send(large[: 2 * READ_BYTES])
    for _ in range(2):
        assert channel.reader.feed(channel.read() or b"") == []
    theirs.send(large[2 * READ_BYTES :] + b"small" * READ_BYTES)
    data = channel.read() or b""
    assert data[: len(large) - 2 * READ_BYTES] == large[2 * READ_BYTES :]
    assert len(data) <= max(READ_BYTES, len(large) - 2 * READ_BYTES)
    channel.close()
    theirs.close()


async def test_a_worker_that_sends_any_ends() -> None:
    peer = Peer()
    await peer.start()
    call = peer.call()
    send_open_file(peer.channel, encode("out", {"id": "1", "text": "x"}))
    with pytest.raises(WorkerDied, match="it broke the protocol of the call channel: 1 open files"):
        await asyncio.wait_for(call.future, HANG_S)
    peer.close()


async def test_a_supervisor_that_sends_any_loses_its_tree() -> None:
    peer = Peer()
    send_open_file(peer.control, b"{}")
    assert "its supervisor broke the protocol: 1 open files" in await peer.lost_because()
    peer.close()


async def test_a_fork_that_sends_any_is_refused() -> None:
    sock = ForkSocket(os.getppid)
    if refuses_descriptors(sock.sock):
        with pytest.raises(PermissionError):
            send_open_file(sock.peer, b"x")
        sock.sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 1)  # as under an older kernel
    send_open_file(sock.peer, encode("woke"))
    with pytest.raises(SandboxError, match="malformed answer: 1 open files"):
        await sock.receive("woke", within_s=HANG_S)
    sock.close(kill=False)
