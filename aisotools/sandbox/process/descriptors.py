"""Open files that a sandbox sends to the host, which nobody asked for: refused, or closed off the event loop.

Threat
    Whoever holds the other end of a Unix socket can attach open files to what it sends (SCM_RIGHTS). The
    receiver that does not take them closes them, and the last reference to a file may be slow to close: a
    deleted file of many pieces, a connection with unsent data. The event loop would stand still meanwhile,
    for as long as the sender likes.
Mechanism
    Linux 6.16 and later refuse such a message when it is sent, with EPERM for the sender, if the socket that
    would receive it says so (SO_PASSRIGHTS). The host's end of each pair says so before anybody has the other
    end. What the host sends is not touched by that. Under an older kernel the host takes what comes, ends the
    sender, and closes in a thread: what came, and the socket, whose queue may hold more.
Race window
    None where the kernel refuses: the option belongs to the host's end, out of the sandbox's reach. Under an
    older kernel, a host without a free descriptor cannot take them, and its own read closes them.
When it fails
    A close that hangs holds up a thread. There are few such threads; what comes while all of them hang waits,
    open, for one that gets free, or for the end of this process.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable

from aisotools.core.exceptions import ChannelError

SO_PASSRIGHTS = 83
"""Linux's number of the option on the machines that have a system call filter; Python has no name for it."""

IN_FLIGHT_PATIENCE_S = 2.0
"""How long a host that sends descriptors waits while the kernel refuses them with ETOOMANYREFS.

The kernel counts those that are on their way per user, so another program may have caused this. Most programs
receive what they are sent at once, so it is soon over.
"""
IN_FLIGHT_PAUSE_S = 0.05

_log = logging.getLogger(__name__)

# What the kernel attaches to one message at most.
_MAX_DESCRIPTORS = 253
_DESCRIPTOR = struct.Struct("i")
_FLAGS = socket.MSG_CMSG_CLOEXEC if sys.platform == "linux" else 0
_MAX_THREADS = 4

# By the number of the other end: the host's end, as long as somebody holds it.
_pairs: weakref.WeakValueDictionary[int, socket.socket] = weakref.WeakValueDictionary()

Ancillary = list[tuple[int, int, bytes]]
"""What came with a message: level, kind and content of each piece."""


def host_pair(kind: int) -> tuple[socket.socket, socket.socket]:
    """Return a pair of Unix sockets: the host's end, to which nobody can send open files, and the other.

    Raises:
        OSError: If this process has no descriptors left.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    refuse_descriptors(ours)
    _pairs[os.fstat(theirs.fileno()).st_ino] = ours
    return ours, theirs


def has_room(count: int) -> bool:
    """Return whether this process can open so many more files now."""
    held: list[int] = []
    try:
        held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        while len(held) < count:
            held.append(os.dup(held[0]))
    except OSError:
        return False
    finally:
        for number in held:
            os.close(number)
    return True


def is_fed_by_host(inode: int) -> bool:
    """Return whether what waits in the socket with this number was sent by the host, and by nobody else."""
    return inode in _pairs


def refuse_descriptors(sock: socket.socket) -> bool:
    """Have the kernel refuse open files that are sent to `sock`. Return False where it does not know that."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
    except OSError:
        return False
    return True


def refuses_descriptors(sock: socket.socket) -> bool:
    """Return whether the kernel refuses open files that are sent to `sock`."""
    try:
        return not sock.getsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS)
    except OSError:
        return False


def receive(sock: socket.socket, size: int, room: int = 0) -> tuple[bytes, Ancillary]:
    """Receive at most `size` bytes. Return them, and what else came with them.

    Args:
        sock: A Unix socket whose peer is not to send open files.
        size: How many bytes.
        room: Size of the buffer for what may come with them.

    Raises:
        OSError: As `socket.recvmsg`.
        ChannelError: If open files came all the same. They are closed, not necessarily yet.
    """
    # Room for all of them: the kernel itself closes what finds no room, in this thread.
    room += socket.CMSG_SPACE(_MAX_DESCRIPTORS * _DESCRIPTOR.size)
    data, ancillary, _, _ = sock.recvmsg(size, room, _FLAGS)
    uninvited: list[int] = []
    others: Ancillary = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            whole = len(content) // _DESCRIPTOR.size * _DESCRIPTOR.size
            uninvited += (number for (number,) in _DESCRIPTOR.iter_unpack(content[:whole]))
        else:
            others.append((level, kind, content))
    if uninvited:
        close_apart(uninvited)
        raise ChannelError(f"{len(uninvited)} open files came with a message, which nobody had asked for")
    return data, others


def discard_socket(sock: socket.socket) -> None:
    """Close a socket whose peer is hostile; closing twice is fine. It is closed in a thread if it must be."""
    if sock.fileno() < 0:
        return
    if refuses_descriptors(sock):
        sock.close()
        return
    try:
        # The peer learns of it now, and can send nothing more.
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        _log.debug("A socket that is closed was not connected any more: %s", error)
    # Detached: nobody may find the socket open, or its number in the hands of another file.
    close_apart([sock.detach()])


def close_apart(descriptors: Iterable[int]) -> None:
    """Close descriptors in a thread, since the kernel may take long for what stands behind them."""
    _closer.add(descriptors)


class _Closer:
    """Closes descriptors in a few threads, which exist while there is something to close."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[int] = deque()
        self._threads = 0

    def add(self, descriptors: Iterable[int]) -> None:
        with self._lock:
            self._waiting.extend(descriptors)
            if self._threads == _MAX_THREADS:
                return
            self._threads += 1
        try:
            # A daemon: a close that hangs must not hold up the end of this process.
            threading.Thread(target=self._run, name="aisotools-close", daemon=True).start()
        except RuntimeError as error:
            # No thread can be started now. The next one closes these as well.
            _log.warning("Open files that came out of a sandbox are closed later: %s", error)
            with self._lock:
                self._threads -= 1

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                descriptor = self._waiting.popleft()
            try:
                os.close(descriptor)
            except OSError as error:  # a disk that is full or broken; the descriptor is closed all the same
                _log.debug("An open file was closed with an error: %s", error)


_closer = _Closer()
