"""Namespaces of a worker's own: users, processes, mounts, network, System V objects, names.

    supervisor ─┬─ builder: clones mounts, parts from the host, forks the two others, and ends
                ├─ init: process 1 of the new process namespace; reaps, and never runs user code
                └─ worker: builds its root, confines itself, serves

When the builder ends, init and worker become children of the supervisor, which is the builder's nearest
subreaper; so it learns how the worker ended, as at every other level, while orphans go to init. When init
ends, the kernel ends whatever is left in there.

A host that runs as root makes the worker another user: one nobody else has, without any right to files of
root's. The workspace is mounted so that its owner's files are that user's (an idmapped mount); on the disk
they stay the owner's.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement import levels, rootfs, syscalls
from aisotools.sandbox.confinement import rootfs as mounts

HOST_NAME = b"sandbox"
"""What the machine is called in there."""

_NEW_USERS = 0x10000000
_ALL_NEW = _NEW_USERS | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000 | 0x00020000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_ANSWER_BYTES = 1 << 16

_FIRST_SPARE, _SPARE = 0x70000000, 1 << 22  # above all that systemd gives to containers, and still positive
_LEAST_ORDINARY = 1000
_INNER = 1000
_HIGH = 128  # out of the way of descriptors with a number of their own
_WAITS, _FOREVER_S = "/bin/sleep", (1 << 31) - 1


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
        """Whether that is who we are."""
        return self.outer == (os.geteuid(), os.getegid())


def spare_id(table: str, seed: int) -> int | None:
    """A user or group id that nobody uses.

    Args:
        table: The ids that exist, as /proc/self/uid_map tells them.
        seed: Different seeds give different ids, as far as there are enough.

    Returns:
        The id, or None if only those exist that system accounts and people have.
    """
    ranges = [tuple(map(int, line.split())) for line in table.splitlines()]
    wanted = _FIRST_SPARE + seed % _SPARE
    if any(first <= wanted < first + count for first, _, count in ranges):
        return wanted
    last = max((first + count - 1 for first, _, count in ranges), default=0)
    usable = min(4096, last - _LEAST_ORDINARY)
    return last - 1 - seed % usable if usable > 0 and last < _FIRST_SPARE else None


def identity(seed: int) -> Identity:
    """Who a worker of ours will be: ourselves, or nobody anyone knows if we are root.

    Raises:
        SandboxError: There is no spare user.
    """
    if os.geteuid() != 0:
        ours = (os.geteuid(), os.getegid())
        return Identity(outer=ours, inner=ours)
    found = [spare_id(Path(f"/proc/self/{kind}_map").read_text("ascii"), seed) for kind in ("uid", "gid")]
    if None in found:
        raise SandboxError("this root user has no ids to spare for a worker, which must not be root")
    user, group = found
    assert user is not None
    assert group is not None
    return Identity(outer=(user, group), inner=(_INNER, _INNER))


# ---------------------------------------------------------------- parting from the host


class UserNamespaces:
    """User namespaces by which the files of others become the worker's, kept for the workers to come.

    Attributes:
        who: The worker.
    """

    def __init__(self, who: Identity) -> None:
        """Have none yet."""
        self.who = who
        self._made: dict[tuple[int, int], int] = {}

    @property
    def descriptors(self) -> frozenset[int]:
        """What is held open."""
        return frozenset(self._made.values())

    def of(self, status: os.stat_result) -> int | None:
        """The descriptor of the namespace that makes a file's owner the worker; None where it is the worker.

        Raises:
            OSError: The kernel refused.
        """
        owner = (status.st_uid, status.st_gid)
        if owner == self.who.outer:
            return None
        if owner not in self._made:
            self._made[owner] = _user_namespace(owner, self.who.outer)
        return self._made[owner]

    def prepare(self, path: str) -> None:
        """Have the namespace for the owner of `path` at hand; what fails now will fail again, and be told."""
        if not self.who.is_ours:
            with contextlib.suppress(OSError):
                self.of(os.stat(path))

    def close(self) -> None:
        """Let go of all."""
        while self._made:
            os.close(self._made.popitem()[1])


def part(users: UserNamespaces, plan: rootfs.RootPlan) -> dict[str, int]:
    """Leave the host's namespaces, as `users.who`; for a process with one thread that ends soon.

    Returns:
        Descriptors of what the plan shows of the host.

    Raises:
        OSError: The kernel refused.
        SandboxError: Something cannot be shown.
    """
    who = users.who
    if who.is_ours:
        _leave(who)
        return rootfs.clone_all(plan, lambda _: None)
    trees = rootfs.clone_all(plan, users.of)
    users.close()
    os.setgroups([])
    os.setresgid(who.outer[1], who.outer[1], who.outer[1])
    os.setresuid(who.outer[0], who.outer[0], who.outer[0])
    syscalls.call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)  # or its own tables could not be written
    _leave(who)
    return trees


def _leave(who: Identity) -> None:
    syscalls.call("unshare", _ALL_NEW)
    _write_tables("self", who.inner, who.outer)
    syscalls.call("sethostname", HOST_NAME, len(HOST_NAME))
    mounts.part_from_host()


def _write_tables(process: int | str, inner: tuple[int, int], outer: tuple[int, int]) -> None:
    folder = Path(f"/proc/{process}")
    if process == "self":
        (folder / "setgroups").write_text("deny", "ascii")
    for name, inside, outside in zip(("uid_map", "gid_map"), inner, outer, strict=True):
        (folder / name).write_text(f"{inside} {outside} 1", "ascii")


def _user_namespace(inner: tuple[int, int], outer: tuple[int, int]) -> int:
    """A descriptor of a user namespace in which `outer` has the ids `inner`; takes root."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            syscalls.call("unshare", _NEW_USERS)
            os.write(writing, b"made")
            signal.pause()
        os._exit(1)
    os.close(writing)
    try:
        if not os.read(reading, 4):
            raise OSError("a user namespace was refused")
        _write_tables(child, inner, outer)
        with open(f"/proc/{child}/ns/user", "rb", buffering=0) as found:
            return fcntl.fcntl(found, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# ---------------------------------------------------------------- the processes inside


@dataclass(frozen=True, slots=True)
class NamespaceProcesses:
    """The processes that were started inside, by the numbers they have here.

    Attributes:
        worker: The worker.
        init: Process 1 of its namespace.
    """

    worker: int
    init: int


@dataclass(frozen=True, slots=True)
class Parted:
    """What a process inside was given.

    Attributes:
        plan: What it is to see; it cannot look for itself any more.
        trees: Descriptors of what the plan shows of the host, by path.
        held: A pipe that tells when the supervisor is the parent.
    """

    plan: rootfs.RootPlan
    trees: Mapping[str, int]
    held: int

    def bind(self) -> None:
        """Return when the supervisor is the parent and this process will end with it; end if it is gone."""
        _bind(self.held)


def start(
    users: UserNamespaces, plan: rootfs.RootPlan, child: Callable[[Parted], NoReturn]
) -> NamespaceProcesses:
    """Fork a worker in namespaces of its own; to be called in a subreaper with one thread.

    Args:
        users: Who it will be.
        plan: What it will see.
        child: What it does there; it is to call `Parted.bind` soon. Both processes inside end with this one.

    Raises:
        SandboxError: It could not be done; the message says what failed.
    """
    told, telling = os.pipe()
    held, going = os.pipe()  # nobody inside is bound before the builder is gone, or they would end with it
    builder = os.fork()
    if builder == 0:
        os.close(told)
        os.close(going)
        _build(users, plan, child, telling, held)
    os.close(telling)
    os.close(held)
    with os.fdopen(told, "rb") as pipe:
        answer = pipe.read(_ANSWER_BYTES)
    os.waitpid(builder, 0)
    try:
        found = json.loads(answer or '{"error": "the builder ended"}')
        if "error" in found:
            raise SandboxError(f"Namespaces of its own could not be made for the worker: {found['error']}.")
        os.write(going, b"12")
    finally:
        os.close(going)
    return NamespaceProcesses(found["worker"], found["init"])


def _build(
    users: UserNamespaces,
    plan: rootfs.RootPlan,
    child: Callable[[Parted], NoReturn],
    telling: int,
    held: int,
) -> NoReturn:
    try:
        trees = part(users, plan)
        init = os.fork()  # the first one is process 1
        if init == 0:
            _be_init(held)
        worker = os.fork()
        if worker == 0:
            os.close(telling)
            child(Parted(plan, trees, held))
        os.write(telling, json.dumps({"worker": worker, "init": init}).encode())
    except Exception as error:  # whatever it is, the supervisor tells the host
        os.write(telling, json.dumps({"error": str(error) or type(error).__name__}).encode()[:_ANSWER_BYTES])
    finally:
        os._exit(0)


def _bind(held: int) -> None:
    if not os.read(held, 1):
        os._exit(1)
    os.close(held)
    syscalls.call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _be_init(held: int) -> NoReturn:
    """Stay until the end; whoever is orphaned in here is reaped by the kernel, because nobody asks for it.

    As another program, where there is one that just waits: it takes a tenth of the memory.
    """
    try:
        os.dup2(held, 0)
        os.closerange(1, 1 << 20)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        _bind(0)
        levels.confine(levels.Confinement(level="limited", writable=()))
        with contextlib.suppress(OSError):
            os.execve(_WAITS, ["sleep", str(_FOREVER_S)], {})
        while True:
            signal.pause()
    finally:
        os._exit(1)
