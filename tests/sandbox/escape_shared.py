# ruff: noqa: PTH208 - plain calls
"""Attempts on what sessions and other programs share: the network, and what is counted per user.

They join those of `escape_probes` and `escape_more`, whose helpers they use; `source` gives them as text to
follow theirs.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

# here only
from tests.sandbox.escape_probes import (
    PROBES,
    call,
    in_child,
    libc,
    made,
    must_exit_0,
    no_effect,
    opened,
    probe,
    probes,
    read,
    unix,
)

OTHERS = frozenset(PROBES)

# from here on
ELSEWHERE = ("192.0.2.77", 9)  # reserved for documentation
ELSEWHERE_6 = ("2001:db8::77", 9)
REAL_TIME = 40
MANY = 2000


# ---------------------------------------------------------------- network


def arrives(family: int, address: str) -> Callable[[SimpleNamespace], object]:
    """Connect to the victim's port at this address."""

    def attempt(c: SimpleNamespace) -> object:
        with socket.socket(family) as client:
            client.settimeout(2)
            client.connect((address, c.tcp))
            return client.recv(5)

    return attempt


def leaves(family: int, address: tuple[str, int], *options: tuple[int, int, int]) -> object:
    """Look for a route, by a datagram socket, which sends nothing."""
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        for option in options:
            client.setsockopt(*option)
        client.connect(address)
        return client.getsockname()


def fast_open(c: SimpleNamespace) -> object:
    """Connect by sending."""
    with socket.socket() as client:
        client.settimeout(2)
        with contextlib.suppress(BlockingIOError):  # it is on its way
            client.sendto(b"x", 0x20000000, ("127.0.0.1", c.tcp))
        return client.recv(5)


def interfaces(command: int, size: int = 40) -> Callable[[SimpleNamespace], object]:
    """Make an ioctl about interfaces by the socket that is there, a pair's."""

    def attempt(c: SimpleNamespace) -> object:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            return fcntl.ioctl(ours, command, struct.pack("=16sH", b"lo", 1).ljust(size, b"\0"))

    return attempt


def option(level: int, name: int, value: bytes) -> Callable[[SimpleNamespace], object]:
    """Set an option of a Unix socket, which every level has."""

    def attempt(c: SimpleNamespace) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setsockopt(level, name, value)

    return attempt


def filtered(c: SimpleNamespace) -> None:
    """Run a program of ours in the kernel, for each packet."""
    code = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0xFFFF))
    program = struct.pack("@HP", 1, ctypes.addressof(code))
    option(socket.SOL_SOCKET, 26, program)(c)


def pair_at(place: str) -> Callable[[SimpleNamespace], object]:
    """Connect one of a pair, which needs no call to `socket`, after its peer has gone."""

    def attempt(c: SimpleNamespace) -> object:
        ours, theirs = socket.socketpair()
        theirs.close()
        with ours:
            ours.settimeout(2)
            ours.connect(place.format(**vars(c)))
            return ours.recv(5)

    return attempt


def pair_as_node(c: SimpleNamespace) -> object:
    """Give one of a pair a name in the workspace."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.bind(f"{c.workspace}/pair")
        return ours.getsockname()


def pair_at_name(c: SimpleNamespace) -> None:
    """Listen for the host under an abstract name, with one of a pair."""
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        ours.bind("\0impostor-" + c.abstract)
        ours.listen()


def others_connections(c: SimpleNamespace) -> object:
    """See the port on which the victim listens."""
    table = read("/proc/self/net/tcp", 1 << 20).decode()
    return "listed" if f":{c.tcp:04X} " in table else no_effect()


probes(
    {
        "tcp to no address, which means this machine": arrives(socket.AF_INET, "0.0.0.0"),
        "tcp to the loopback as a mapped address": arrives(socket.AF_INET6, "::ffff:127.0.0.1"),
        "tcp by sending": fast_open,
        "route out": lambda c: leaves(socket.AF_INET, ELSEWHERE),
        "route out over ipv6": lambda c: leaves(socket.AF_INET6, ELSEWHERE_6),
        "route to everybody": lambda c: leaves(socket.AF_INET, ("255.255.255.255", 9), (1, 6, 1)),
        "route to a group": lambda c: leaves(socket.AF_INET, ("224.0.0.1", 9)),
        "route to a group over ipv6": lambda c: leaves(socket.AF_INET6, ("ff05::1", 9)),
        "route out past the table": lambda c: leaves(socket.AF_INET, ELSEWHERE, (1, 5, 1)),
        "raw socket over ipv6": made(socket.AF_INET6, socket.SOCK_RAW, 58),
        "raw socket of udp": made(socket.AF_INET, socket.SOCK_RAW, 17),
        "raw socket of everything": made(socket.AF_INET, socket.SOCK_RAW, 255),
        "ping socket over ipv6": made(socket.AF_INET6, socket.SOCK_DGRAM, 58),
        "multipath tcp by a protocol number": made(socket.AF_INET, socket.SOCK_STREAM, 262),
        "stream control by a protocol number": made(socket.AF_INET, socket.SOCK_STREAM, 132),
        "datagram congestion": made(socket.AF_INET, 6, 33),
        "light datagrams": made(socket.AF_INET, socket.SOCK_DGRAM, 136),
        "tunnel": made(socket.AF_INET, socket.SOCK_DGRAM, 115),
        "packet socket without its header": made(17, socket.SOCK_DGRAM),
        "netlink, generic": made(socket.AF_NETLINK, socket.SOCK_RAW, 16),
        "netlink, sockets of the machine": made(socket.AF_NETLINK, socket.SOCK_DGRAM, 4),
        "netlink, packet filter": made(socket.AF_NETLINK, socket.SOCK_RAW, 12),
        "names of interfaces": lambda c: socket.if_nameindex(),
        "list of interfaces": interfaces(0x8912),
        "flags of an interface": interfaces(0x8913),
        "program on a socket": filtered,
        "priority of packets": option(socket.SOL_SOCKET, 12, struct.pack("i", 6)),
        "socket by a device": option(socket.SOL_SOCKET, 25, b"lo\0"),
        "large buffer of a socket": lambda c: larger_buffer(),
        "unix socket by path, from a pair without peer": pair_at("{stream_path}"),
        "unix socket in a folder that may be read": unix(lambda c: c.shown_stream),
        "unix socket in a folder that may be read, from a pair": pair_at("{shown_stream}"),
        "socket node by one of a pair": pair_as_node,
        "abstract name, taken by one of a pair": pair_at_name,
        "connections of the host": others_connections,
        "unix server by its full path": lambda c: bound_at(f"{c.workspace}/server-2"),
    }
)


def larger_buffer() -> object:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        before = ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, before)
        after = ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        return after if after > before else no_effect()


def bound_at(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()


# ---------------------------------------------------------------- what is counted per user


def in_flight(descriptors: int, times: int) -> int:
    """Send descriptors that nobody takes out; how many are on their way."""
    ours, theirs = socket.socketpair()
    with ours, theirs, opened("/dev/null") as held:
        numbers = array.array("i", [held] * descriptors)
        sent = 0
        for _ in range(times):
            try:
                ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)], socket.MSG_DONTWAIT)
            except OSError:
                break
            sent += descriptors
        return sent


@probe("descriptors in flight, as many as the user may have")
def _(c: SimpleNamespace) -> object:
    """More than another program of that user may reach, so that it could send none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        sent = in_flight(253, min(c.limit_of_files // 253 + 2, 400))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return sent if sent > c.limit_of_files else no_effect()


def queued(send: Callable[[int], object], number: int = REAL_TIME) -> int:
    """Queue a signal to this process again and again; how many wait."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    waiting = 0
    try:
        for _ in range(MANY):
            send(number)
        while signal.sigtimedwait([number], 0):
            waiting += 1
    finally:
        while signal.sigtimedwait([number], 0):
            waiting += 1
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    return waiting


def some_queued(send: Callable[[int], object]) -> object:
    """How many signals were queued; refused is only where not even one was."""
    sent = []

    def once(number: int) -> None:
        try:
            send(number)
            sent.append(number)
        except OSError:
            if not sent:
                raise

    queued(once)
    return len(sent) if len(sent) > 1 else no_effect()


def with_a_message(c: SimpleNamespace, call_name: str, *first: int) -> Callable[[int], object]:
    def send(number: int) -> object:
        information = ctypes.create_string_buffer(struct.pack("iii", number, 0, -1), 128)
        return call(c, call_name, *first, number, information)

    return send


def by_own_pidfd(c: SimpleNamespace) -> object:
    own = os.pidfd_open(os.getpid())
    try:
        return some_queued(lambda number: call(c, "pidfd_send_signal", own, number, 0, 0))
    finally:
        os.close(own)


def by_ending_children(c: SimpleNamespace) -> object:
    """The signal at the end of a child may be any."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [REAL_TIME])
    child = call(c, "clone", REAL_TIME, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0x40000000)  # __WALL
    try:
        return bool(signal.sigtimedwait([REAL_TIME], 1)) or no_effect()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [REAL_TIME])


def timers(c: SimpleNamespace) -> object:
    """Each timer takes a place in the queue as long as it is there."""
    number = ctypes.create_string_buffer(8)
    made_here = []
    try:
        for _ in range(64):
            call(c, "timer_create", 1, 0, number)
            made_here.append(struct.unpack("i", number.raw[:4])[0])
    finally:
        for timer in made_here:
            libc("syscall", c.numbers["timer_delete"], timer)
    return len(made_here)


def pages_of_pipes(c: SimpleNamespace) -> object:
    """The pages of all pipes of a user are counted; from some number on all get small ones."""
    reading, writing = os.pipe()
    try:
        before = fcntl.fcntl(writing, 1032)
        after = fcntl.fcntl(writing, 1031, 4 * before)
        return after if after > before else no_effect()
    finally:
        os.close(reading)
        os.close(writing)


# ---------------------------------------------------------------- memory that nobody counts


def memory_file(c: SimpleNamespace) -> object:
    """Memory of no process: neither address space nor resident memory of any shows it."""
    file = call(c, "memfd_create", b"memory", 0)
    try:
        return os.write(file, bytes(1 << 20))
    finally:
        os.close(file)


def memory_in_a_pipe(c: SimpleNamespace) -> object:
    """Pages that stay in a pipe after they were unmapped."""
    reading, writing = os.pipe()
    try:
        with mmap.mmap(-1, 1 << 16, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
            pages[:] = b"x" * (1 << 16)
            address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
            vector = struct.pack("QQ", address, 1 << 16)
            return call(c, "vmsplice", writing, vector, 1, 0)
    finally:
        os.close(reading)
        os.close(writing)


def hidden(c: SimpleNamespace) -> object:
    """A process that is not dumpable cannot be looked at by others of its user."""

    def hide() -> None:
        libc("prctl", 4, 0, 0, 0, 0)
        os._exit(0 if libc("prctl", 3, 0, 0, 0, 0) == 0 else 9)

    status = in_child(hide)
    return no_effect() if status == 9 else must_exit_0(status)


def higher(kind: int) -> Callable[[SimpleNamespace], object]:
    """Lift a limit that is there; the soft one where there is no other."""

    def attempt(c: SimpleNamespace) -> object:
        soft, hard = resource.getrlimit(kind)
        if hard == resource.RLIM_INFINITY:
            return "there is none"
        try:
            resource.setrlimit(kind, (hard + 1, hard + 1))
        except ValueError:
            raise PermissionError(errno.EPERM, "refused") from None
        resource.setrlimit(kind, (soft, hard + 1))
        return hard + 1

    return attempt


probes(
    {
        "real-time signals, queued by kill": lambda c: some_queued(lambda n: os.kill(os.getpid(), n)),
        "real-time signals, queued by tkill": lambda c: some_queued(
            lambda n: call(c, "tkill", os.getpid(), n)
        ),
        "real-time signals, queued by tgkill": lambda c: some_queued(
            lambda n: call(c, "tgkill", os.getpid(), os.getpid(), n)
        ),
        "real-time signals, queued with a message": lambda c: some_queued(
            with_a_message(c, "rt_sigqueueinfo", os.getpid())
        ),
        "real-time signals, queued with a message to a thread": lambda c: some_queued(
            with_a_message(c, "rt_tgsigqueueinfo", os.getpid(), os.getpid())
        ),
        "real-time signals, queued by pidfd": by_own_pidfd,
        "real-time signals, queued by the end of children": by_ending_children,
        "timers, each a place in the queue": timers,
        "large pipe": pages_of_pipes,
        "keys of a user, a new one": lambda c: call(c, "add_key", b"user\0", b"k\0", b"v", 1, -2),
        "keyring of a session": lambda c: call(c, "keyctl", 1, 0, 0, 0, 0),
        "watches on files of the workspace": lambda c: libc(
            "inotify_add_watch", libc("inotify_init1", 0o2000000), b".", 0xFFF
        ),
        "queue of messages in a file system": lambda c: os.listdir("/dev/mqueue"),
        "memory file": memory_file,
        "memory in a pipe": memory_in_a_pipe,
        "hidden from who counts memory": hidden,
        "more open files than the limit": higher(resource.RLIMIT_NOFILE),
        "more queued signals than the limit": higher(resource.RLIMIT_SIGPENDING),
        "more memory than the limit": higher(resource.RLIMIT_AS),
    }
)


def source() -> str:
    """These attempts as a text to follow that of `escape_more.source_of_all`."""
    before, _, rest = Path(__file__).read_text("utf-8").partition("\n# here only\n")
    imports = before.partition("import annotations\n")[2]
    return imports + rest.partition("\n# from here on\n")[2].partition("\n\ndef source()")[0]


SHARED = tuple(name for name in PROBES if name not in OTHERS)
"""Names of those that this file adds."""
