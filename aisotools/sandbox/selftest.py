"""A dozen real attempts to get out of a confinement, made by a throw-away child against victims of its own.

Versions and flags of a kernel tell what it should do; only trying tells what it does. The whole suite of
attempts is in the tests; here are those that between them touch every layer once, in a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import stat
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from aisotools.exceptions import SandboxError
from aisotools.sandbox import confine, isolate, namespaces, shields, supervisor, syscalls

_NEW_USER_NAMESPACE = 0x10000000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where the attempts take place.

    Attributes:
        workspace: The folder that is writable; the file `shielded` in there is protected where that can be.
        scratch: Another one.
        secret: A file outside.
        shown: A file in a folder that may only be read.
        door: A Unix socket outside that listens.
        parent: A process outside.
    """

    workspace: Path
    scratch: Path
    secret: Path
    shown: Path
    door: Path
    parent: int


@contextmanager
def ground() -> Iterator[Ground]:
    """Make a workspace and its victims; remove them in the end."""
    root = Path(tempfile.mkdtemp(prefix="aisotools-selftest-"))
    try:
        for name in ("workspace", "scratch", "private", "shown"):
            (root / name).mkdir()
        for path in (root / "private/secret", root / "shown/file", root / "workspace/shielded"):
            path.write_text("secret")
            path.chmod(0o600)
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(root / "private/door"))
            door.listen()
            yield Ground(
                workspace=root / "workspace",
                scratch=root / "scratch",
                secret=root / "private/secret",
                shown=root / "shown/file",
                door=root / "private/door",
                parent=os.getpid(),
            )
    finally:
        shutil.rmtree(root)


def fingerprint(place: Ground) -> tuple[object, ...]:
    """Everything about the victims that an attempt could change."""
    facts = []
    for path in (place.secret, place.shown, place.workspace / "shielded"):
        status = path.stat()
        facts.append((path.read_text(), stat.S_IMODE(status.st_mode), status.st_mtime_ns, status.st_nlink))
    return (*facts, sorted(path.name for path in place.secret.parent.iterdir()))


def _link_and_read(place: Ground) -> None:
    link = place.workspace / "link"
    link.symlink_to(place.secret)
    link.read_text()


def _read_memory(place: Ground) -> None:
    mine = ctypes.create_string_buffer(8)
    here = struct.pack("QQ", ctypes.addressof(mine), 8)
    there = struct.pack("QQ", id(place), 8)  # older than the fork, so it lies at this address there too
    syscalls.call("process_vm_readv", place.parent, here, 1, there, 1, 0)


def _change_by_descriptor(place: Ground) -> None:
    with place.shown.open("rb") as file:
        os.fchmod(file.fileno(), 0o4777)
        os.utime(file.fileno(), (1, 1))


def _connect(place: Ground) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(str(place.door))


def _limit_parent(place: Ground) -> None:
    old = ctypes.create_string_buffer(16)
    syscalls.call("prlimit64", place.parent, 7, 0, old)


Attempt = tuple[str, Callable[[Ground], object]]

_ON_PROCESSES: tuple[Attempt, ...] = (
    ("reach the network", lambda _: socket.socket(socket.AF_INET).close()),
    ("connect to a Unix socket outside", _connect),
    ("read another process's memory", _read_memory),
    ("read another process's limits", _limit_parent),
    ("make a namespace", lambda _: syscalls.call("unshare", _NEW_USER_NAMESPACE)),
    ("mount", lambda _: syscalls.call("mount", b"none\0", b"/\0", b"no-such-type\0", 0, 0)),
)
_ON_FILES: tuple[Attempt, ...] = (
    ("read a file outside", lambda place: place.secret.read_text()),
    ("list a folder outside", lambda place: os.listdir(place.secret.parent)),
    ("read through a link", _link_and_read),
    ("take a file in by a hard link", lambda place: os.link(place.secret, place.workspace / "hard")),
    ("write a file outside", lambda place: place.secret.write_text("changed")),
    ("make a file outside", lambda place: (place.secret.parent / "new").write_text("")),
    ("empty a file outside", lambda place: os.truncate(place.secret, 0)),
    ("remove a file outside", lambda place: place.secret.unlink()),
    ("write a file that may be read", lambda place: place.shown.write_text("changed")),
    ("see another process's environment", lambda place: Path(f"/proc/{place.parent}/environ").read_bytes()),
    ("write /proc/sys", lambda _: Path("/proc/sys/kernel/core_pattern").open("w").close()),
)
_ON_SIGNALS: tuple[Attempt, ...] = (("signal another process", lambda place: os.kill(place.parent, 0)),)
_UNHEARD: tuple[Attempt, ...] = (  # answered with success, without acting; `fingerprint` tells
    ("chmod", lambda place: place.secret.chmod(0o777)),
    ("utime", lambda place: os.utime(place.secret, (1, 1))),
    ("by descriptor", _change_by_descriptor),
)


def _ordinary_work(place: Ground) -> Iterator[str]:
    """What must go on working, or the confinement would be of no use."""
    file = place.workspace / "work"
    file.write_text("work")
    if file.read_text() != "work":
        yield "cannot keep a file in the workspace"
    child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 7"], {})
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7:
        yield "cannot run a command"


def attempt(level: str, place: Ground) -> tuple[str, ...]:
    """Confine a process at `level` and try to get out; for a child that ends afterwards.

    Returns:
        What succeeded but should not, or the other way round, in words.
    """
    if level == "isolated":
        return _attempt_isolated(place)
    plan = confine.Confinement(
        level=level,
        writable=(str(place.workspace),),
        readable=(*confine.interpreter_paths(), str(place.shown.parent)),
    )
    confine.confine(plan)
    scoped = confine.signals_are_scoped(plan)
    return (*confine.verify(plan), *_attempts(level, place, signals=scoped), *_ordinary_work(place))


def _attempts(level: str, place: Ground, *, signals: bool) -> Iterator[str]:
    attempts = _ON_PROCESSES if level == "limited" else (*_ON_PROCESSES, *_ON_FILES)
    for name, action in (*attempts, *(_ON_SIGNALS if signals else ())):
        try:
            action(place)
        except OSError:
            continue
        yield f"could {name}"
    for _, action in _UNHEARD if level != "limited" else ():
        with suppress(OSError):
            action(place)


def _attempt_isolated(place: Ground) -> tuple[str, ...]:
    wanted = isolate.Isolation(
        interpreter=isolate.Interpreter.running(),
        readable=(str(place.shown.parent),),
        workspace=str(place.workspace),
        scratch=str(place.scratch),
        protected=shields.Names(files=("shielded",)),
    )
    reading, writing = os.pipe()

    def child(parted: namespaces.Parted) -> NoReturn:
        try:
            isolate.settle(wanted, parted)
            # signals cannot be tried by number: the same number is another process in there
            found = [*_attempts("isolated", place, signals=False), *_ordinary_work(place)]
            found += [] if _refused(place.workspace / "shielded") else ["could write a protected file"]
            found += [] if _refused(Path(isolate.ALIAS, "shielded")) else ["could write it by another path"]
        except Exception as error:
            found = [str(error) or type(error).__name__]
        os.write(writing, "\n".join(["tried", *found]).encode())
        os._exit(0)

    supervisor.become_subreaper()
    started = isolate.start(wanted, namespaces.Users(namespaces.identity(os.getpid())), child)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        told = pipe.read().split("\n")
    os.kill(started.init, signal.SIGKILL)
    for pid in (started.worker, started.init):
        os.waitpid(pid, 0)
    if told[0] != "tried":
        raise SandboxError("the process ended and told nothing")
    return tuple(told[1:])


def _refused(path: Path) -> bool:
    try:
        path.write_text("changed")
    except OSError:
        return True
    return False
