"""Namespaces of a worker's own: users, processes, mounts, network, System V objects, host name.

    supervisor ─┬─ builder: clones mounts, leaves the host's namespaces, forks the two others, and ends
                ├─ init: process 1 of the new process namespace; reaps, and never runs user code
                └─ worker: builds its root, confines itself, serves

When the builder ends, init and worker become children of the supervisor, their nearest subreaper. So the
supervisor learns how the worker ended, as at every other level, while orphans go to init. When init ends, the
kernel kills whatever is left in there.

A host that runs as root makes the worker another user: one whom nobody else has, without any right to root's
files. The workspace is mounted so that its owner's files are that user's (an idmapped mount); on the disk
they stay the owner's.

The network, as a boundary:

- Threat: code reaches the host's loopback, where databases and notebook servers listen without a password,
  another session's loopback, an abstract Unix socket, the local network or the internet.
- Mechanism: a network namespace of its own. A new one holds a loopback interface that is down, and no
  route. It is switched on, and nothing else is ever put in. Addresses and abstract names are looked up in
  the namespace of the process, so 127.0.0.1 is another machine in each session.
- Nobody inside can change that: capabilities are gone before strangers' code runs, netlink and interface
  commands of ioctl are refused by the filter, and so is joining or making a namespace.
- Buffers of TCP are made small, because their memory is the kernel's and no process's, and few connections
  wait in a queue, where no process has a descriptor of them. The host counts all that there are.
- Race: init switches it on while the worker builds its root, in which /proc has no settings. So whatever
  takes files is done before either is forked, and the worker waits for init before it confines itself; the
  host's namespace was left before, too.
- A failure: where the buffers cannot be made small, or the interface not switched on, it stays off, and
  connections fail. `levels.verify` looks for a way out, and a worker that finds one does not start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement import levels, rootfs, syscalls

HOST_NAME = b"sandbox"
"""The name of the machine, as seen from inside."""

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWNS = 0x00020000
_ALL_NAMESPACES = (
    _CLONE_NEWUSER | _CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS | _CLONE_NEWNS
)
_PR_SET_PDEATHSIG = 1
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
# Least, first and largest size in bytes, of what one TCP connection may keep in each direction.
_TCP_BUFFERS = "4096 65536 262144"
# Connections that wait to be accepted at one socket, and those that were closed and are remembered.
_FEW_CONNECTIONS = {
    "core/somaxconn": "128",
    "ipv4/tcp_max_syn_backlog": "128",
    "ipv4/tcp_max_tw_buckets": "4096",
    "ipv4/tcp_fin_timeout": "10",
}
_PR_SET_DUMPABLE = 4

_ANSWER_BYTES = 1 << 16
_HIGH = 128  # out of the way of descriptors that get a number of their own

# Ids that no account has: above all that systemd gives to containers, and still positive as a signed number.
_FIRST_SPARE_ID = 0x70000000
_SPARE_IDS = 1 << 22
_FIRST_ORDINARY_ID = 1000  # below are system accounts
_INNER_ID = 1000  # user and group of the worker as it sees them

# What init becomes: a program that does nothing takes a tenth of an interpreter's memory.
_SLEEP = "/bin/sleep"
_FOREVER_S = (1 << 31) - 1


# ---------------------------------------------------------------- who the worker is


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who the worker is.

    Attributes:
        outer: User and group id on the host.
        inner: The same as the worker sees them.
    """

    outer: tuple[int, int]
    inner: tuple[int, int]

    @property
    def is_ours(self) -> bool:
        """True if this process has these ids."""
        return self.outer == (os.geteuid(), os.getegid())


def spare_id(table: str, seed: int) -> int | None:
    """Return a user or group id that nobody uses.

    Args:
        table: The ids that exist, in the form of /proc/self/uid_map.
        seed: Different seeds give different ids, as far as there are enough.

    Returns:
        The id, or None if only those exist that system accounts and people have.
    """
    ranges = [tuple(map(int, line.split())) for line in table.splitlines()]
    candidate = _FIRST_SPARE_ID + seed % _SPARE_IDS
    if any(first <= candidate < first + count for first, _, count in ranges):
        return candidate
    # A container with few ids, usually 65,536: one of the last, which accounts are given last. The last two
    # are left out: 65534 is `nobody`, who is not nobody at all but owns files, and 65535 means "no id".
    last = max((first + count - 1 for first, _, count in ranges), default=0)
    usable = min(4096, last - 1 - _FIRST_ORDINARY_ID)
    return last - 2 - seed % usable if usable > 0 and last < _FIRST_SPARE_ID else None


def identity(seed: int) -> Identity:
    """Return who a worker of this process will be: the same user, or nobody anyone knows if that is root.

    Raises:
        SandboxError: There is no spare id.
    """
    if os.geteuid() != 0:
        ours = (os.geteuid(), os.getegid())
        return Identity(outer=ours, inner=ours)
    # Root without capabilities would still be the owner of all of root's files that are shown inside.
    user = spare_id(Path("/proc/self/uid_map").read_text("ascii"), seed)
    group = spare_id(Path("/proc/self/gid_map").read_text("ascii"), seed)
    if user is None or group is None:
        raise SandboxError("this root user has no ids to spare for a worker, which must not be root")
    return Identity(outer=(user, group), inner=(_INNER_ID, _INNER_ID))


# ---------------------------------------------------------------- leaving the host's namespaces


class UserNamespaces:
    """User namespaces by which other users' files become the worker's, one for each owner, made on demand.

    Attributes:
        identity: The worker.
    """

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._by_owner: dict[tuple[int, int], int] = {}

    @property
    def descriptors(self) -> frozenset[int]:
        """The descriptors that are held open."""
        return frozenset(self._by_owner.values())

    def for_owner(self, status: os.stat_result) -> int | None:
        """Return a namespace that makes the owner of a file the worker; None where it is the worker already.

        Returns:
            A descriptor, which stays ours.

        Raises:
            OSError: The kernel refused.
        """
        return self._for((status.st_uid, status.st_gid))

    def _for(self, owner: tuple[int, int]) -> int | None:
        if owner == self.identity.outer:
            return None
        if owner not in self._by_owner:
            self._by_owner[owner] = _make_user_namespace(owner, self.identity.outer)
        return self._by_owner[owner]

    def prepare(self, owner: tuple[int, int]) -> None:
        """Make the namespace for an owner (user and group), for the workers to come, who meet any error."""
        if not self.identity.is_ours:
            with contextlib.suppress(OSError):
                self._for(owner)

    def close(self) -> None:
        """Close all descriptors."""
        while self._by_owner:
            os.close(self._by_owner.popitem()[1])


def leave_host(users: UserNamespaces, plan: rootfs.RootPlan) -> dict[str, int]:
    """Enter new namespaces, as `users.identity`; for a process with one thread that ends soon.

    Returns:
        Descriptors of what the plan shows of the host, by path.

    Raises:
        OSError: The kernel refused.
        SandboxError: Something cannot be shown; the message names it.
    """
    identity = users.identity
    if identity.is_ours:
        # Without privileges, mounts can only be cloned after there is a user namespace in which we may.
        _enter_new_namespaces(identity)
        return rootfs.clone_all(plan, lambda _: None)
    # As root the other way round: clones are made and id-mapped with root's privileges, which are gone next.
    trees = rootfs.clone_all(plan, users.for_owner)
    users.close()
    # Groups first, then the group id, then the user id: after the user has changed, neither may be changed.
    # All three ids of each, so that none is left to return to.
    os.setgroups([])
    os.setresgid(identity.outer[1], identity.outer[1], identity.outer[1])
    os.setresuid(identity.outer[0], identity.outer[0], identity.outer[0])
    # A change of user clears this flag, and then /proc/self belongs to root: the id tables could not be
    # written by the user whom they are about.
    syscalls.call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)
    _enter_new_namespaces(identity)
    return trees


def _enter_new_namespaces(identity: Identity) -> None:
    # One call: the kernel makes the user namespace first, which gives the right to make the others. The
    # process namespace holds for children only; this process stays in the host's.
    syscalls.call("unshare", _ALL_NAMESPACES)
    _write_id_tables("self", identity.inner, identity.outer)
    syscalls.call("sethostname", HOST_NAME, len(HOST_NAME))
    rootfs.make_mounts_private()


def prepare_loopback() -> None:
    """Limit what connections of a fresh network namespace may keep, with the right to that.

    Raises:
        OSError: The kernel refused.
    """
    # Below here /proc shows the namespace of whoever looks.
    for name in ("tcp_rmem", "tcp_wmem"):
        Path(f"/proc/sys/net/ipv4/{name}").write_text(_TCP_BUFFERS, "ascii")
    for name, value in _FEW_CONNECTIONS.items():
        # Not every kernel lets a namespace set them; the monitor counts what is there in any case.
        with contextlib.suppress(OSError):
            Path(f"/proc/sys/net/{name}").write_text(value, "ascii")


def switch_on_loopback() -> None:
    """Switch on the one interface of a fresh network namespace, with the right to that. Uses no file.

    Raises:
        OSError: The kernel refused.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        # struct ifreq: name and flags. The kernel adds 127.0.0.1 and ::1 by itself.
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("=16sH22x", b"lo", _IFF_UP))


def _write_id_tables(process: int | str, inner: tuple[int, int], outer: tuple[int, int]) -> None:
    folder = Path(f"/proc/{process}")
    if process == "self":
        # The kernel lets an unprivileged process write gid_map only after it gave up setgroups, by which it
        # could drop a group that a file denies access to.
        (folder / "setgroups").write_text("deny", "ascii")
    for name, inside, outside in zip(("uid_map", "gid_map"), inner, outer, strict=True):
        (folder / name).write_text(f"{inside} {outside} 1", "ascii")


def _make_user_namespace(inner: tuple[int, int], outer: tuple[int, int]) -> int:
    """Return a descriptor of a user namespace in which `outer` has the ids `inner`; takes root."""
    reading, writing = os.pipe()
    # A namespace lives as long as a process or a descriptor is in it. A fork enters a new one and waits until
    # its tables are written, from outside and as root, and the descriptor is taken.
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            syscalls.call("unshare", _CLONE_NEWUSER)
            os.write(writing, b"made")
            # Until the parent has taken the descriptor and kills it: a namespace ends with its last process.
            signal.pause()
        os._exit(1)
    os.close(writing)
    try:
        if not os.read(reading, 4):
            raise OSError("a user namespace was refused")
        _write_id_tables(child, inner, outer)
        with open(f"/proc/{child}/ns/user", "rb", buffering=0) as namespace:
            return fcntl.fcntl(namespace, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    finally:
        os.close(reading)
        # It may have ended by itself. Nobody else reaps it, so until `waitpid` its number is not used again.
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# ---------------------------------------------------------------- the processes inside


@dataclass(frozen=True, slots=True)
class NamespaceProcesses:
    """The processes that were started inside, by their process ids on the host.

    Attributes:
        worker: The worker.
        init: Process 1 of its namespace.
    """

    worker: int
    init: int


@dataclass(frozen=True, slots=True)
class NamespaceEntry:
    """What a process that was forked inside got from outside.

    Attributes:
        plan: What it is to see; it cannot look at the host's files any more.
        trees: Descriptors of what the plan shows of the host, by path.
        adopted: A pipe with one byte for each process inside, written when the supervisor is their parent.
            Only the supervisor holds its other end, as long as it lives.
        network: A pipe that ends when the loopback is on, or cannot be had.
    """

    plan: rootfs.RootPlan
    trees: Mapping[str, int]
    adopted: int
    network: int

    def bind_to_supervisor(self) -> None:
        """Wait until the supervisor is the parent, then have this process killed when the supervisor ends.

        Exits if the supervisor is gone already. Waits for the loopback, too.
        """
        os.read(self.network, 1)
        os.close(self.network)
        _bind_to_supervisor(self.adopted)


def start_in_namespaces(
    users: UserNamespaces, plan: rootfs.RootPlan, child: Callable[[NamespaceEntry], NoReturn]
) -> NamespaceProcesses:
    """Fork a worker in namespaces of its own; to be called in a subreaper with one thread.

    Both processes inside end with this one.

    Args:
        users: Who it will be.
        plan: What it will see.
        child: Runs there; it must call `NamespaceEntry.bind_to_supervisor` soon.

    Raises:
        SandboxError: It could not be done; the message says what failed.
    """
    reading, answering = os.pipe()
    adopted, releasing = os.pipe()
    # A fork that only builds: what enters the namespaces cannot leave them again, and the supervisor must see
    # the host's processes. It ends when it has forked init and worker, and the supervisor adopts both.
    builder = os.fork()
    if builder == 0:
        os.close(reading)
        # Only the supervisor may hold this end: when it is killed, those who wait inside read end of file.
        os.close(releasing)
        _build(users, plan, child, answering, adopted)
    os.close(answering)
    os.close(adopted)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read(_ANSWER_BYTES)
    # Race: PR_SET_PDEATHSIG fires at the end of the parent at that moment. Set while the builder is still the
    # parent, it would kill both as soon as the builder ends. So they are released only after it was reaped,
    # when they have been given to us.
    os.waitpid(builder, 0)
    try:
        message = json.loads(answer or '{"error": "the builder ended"}')
        if "error" in message:
            raise SandboxError(f"Namespaces of its own could not be made for the worker: {message['error']}.")
    except BaseException:
        os.close(releasing)
        raise
    # Never closed: its end tells those inside that this process has ended, see `_bind_to_supervisor`.
    os.write(releasing, b"12")
    return NamespaceProcesses(message["worker"], message["init"])


def _build(
    users: UserNamespaces,
    plan: rootfs.RootPlan,
    child: Callable[[NamespaceEntry], NoReturn],
    answering: int,
    adopted: int,
) -> NoReturn:
    try:
        trees = leave_host(users, plan)
        # The first process forked into a new process namespace is its process 1. That must not be the worker:
        # orphans go to process 1, and its end kills everything in there.
        network, switching_on = os.pipe()
        # Where it cannot be had there is no network at all, as at the other levels.
        has_loopback = False
        with contextlib.suppress(OSError):
            prepare_loopback()
            has_loopback = True
        init = os.fork()
        if init == 0:
            _run_init(adopted, has_loopback=has_loopback)
        # Only init may hold this end, or the worker would wait for itself.
        os.close(switching_on)
        worker = os.fork()
        if worker == 0:
            # Or `start` would wait for the end of this pipe as long as the worker lives.
            os.close(answering)
            child(NamespaceEntry(plan, trees, adopted, network))
        os.write(answering, json.dumps({"worker": worker, "init": init}).encode())
    except Exception as error:
        # Whatever it is: the supervisor waits for an answer on this pipe, and passes this one to the host.
        message = json.dumps({"error": str(error) or type(error).__name__})
        os.write(answering, message.encode()[:_ANSWER_BYTES])
    finally:
        os._exit(0)


def _bind_to_supervisor(adopted: int) -> None:
    # The signal below goes by the parent, which is the builder until it has ended and the supervisor has
    # adopted us. End of file instead of the byte: the supervisor was killed before that.
    if not os.read(adopted, 1):
        os._exit(1)
    syscalls.call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Race: the supervisor was killed after it wrote that byte and before the line above, which then never
    # fires. The parent's number does not show it, since that is 0 in here in any case. The pipe does.
    lifeline = select.poll()
    lifeline.register(adopted, select.POLLHUP)
    if any(events & select.POLLHUP for _, events in lifeline.poll(0)):
        os._exit(1)
    os.close(adopted)


def _run_init(adopted: int, *, has_loopback: bool) -> NoReturn:
    try:
        # Here and not in the builder: under load it takes some milliseconds, in which the worker builds its
        # root.
        with contextlib.suppress(OSError):
            if has_loopback:
                switch_on_loopback()
        # It shares nothing with the worker: every descriptor is closed but the one it waits on. The end of
        # the pipe `network` among them tells the worker that the loopback is on.
        os.dup2(adopted, 0)
        os.closerange(1, 1 << 20)
        # Ignored, SIGCHLD has the kernel reap orphans, also after the exec below.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        # The death signal survives an exec. Bound before confinement, while prctl is surely allowed.
        _bind_to_supervisor(0)
        levels.confine(levels.Confinement(level="limited", writable=()))
        with contextlib.suppress(OSError):
            os.execve(_SLEEP, ["sleep", str(_FOREVER_S)], {})
        while True:
            signal.pause()
    finally:
        # Process 1 takes all others of its namespace along. Whatever was raised must not unwind into the code
        # of the fork server, whose copy this is.
        os._exit(1)
