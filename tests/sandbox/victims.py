"""Somebody worth attacking: a process with files, sockets, shared objects, and a memory of what it saw.

`Victims(uid=...)` starts this file as a program, as that user, so that everything belongs to it in the
natural way. It makes all victims, tells where they are, and answers what became of them. Leaving the context
removes everything.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.util
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SECRET = b"SECRET"
PLACE = "/var/tmp"
"""Where victims live: not in /tmp, of which a sandbox may have its own."""

_QUOTA_HANG_S = 60

EXTRA_NUMBERS = {
    "x86_64": {
        "tkill": 200,
        "io_destroy": 207,
        "tgkill": 234,
        "rt_sigqueueinfo": 129,
        "get_robust_list": 274,
        "renameat2": 316,
    },
    "aarch64": {
        "tkill": 130,
        "io_destroy": 1,
        "tgkill": 131,
        "rt_sigqueueinfo": 138,
        "get_robust_list": 100,
        "renameat2": 276,
    },
}
"""Calls that only attackers make here."""

PYTHON_FOLDER = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}"
"""Where an environment has its packages."""


class Victims:
    """A victim process and what it owns, and beside that a `workspace` and a folder to be `shown`."""

    def __init__(self, *, uid: int | None = None) -> None:
        """Prepare; `uid` runs it as another user, which takes root."""
        self._uid = uid
        self.facts: dict[str, Any] = {}

    def __enter__(self) -> Self:
        from aisotools.sandbox.confinement import syscalls

        other: dict[str, Any] = (
            {} if self._uid is None else {"user": self._uid, "group": self._uid, "extra_groups": []}
        )
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-B", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"VICTIM_SECRET": "from the environment", "PATH": os.environ["PATH"]},
            cwd="/",
            start_new_session=True,
            **other,
        )
        self.facts = self._receive()
        arch = syscalls.architecture() or ""
        self.facts["numbers"] = {**syscalls.NUMBERS[arch], **EXTRA_NUMBERS[arch]}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout
        answer = json.loads(self._process.stdout.readline())
        assert isinstance(answer, dict)
        return answer

    def state(self) -> dict[str, Any]:
        """Everything an attacker might have changed, and every visit."""
        assert self._process.stdin
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return self._receive()

    @property
    def workspace(self) -> str:
        """A folder to hand to the confined process as writable."""
        return str(self.facts["workspace"])

    @property
    def shown(self) -> str:
        """A folder to hand to the confined process as readable."""
        return str(self.facts["shown_folder"])

    @property
    def python(self) -> str:
        """The interpreter of the victims' own environment, to run the attempts with.

        A confinement lets an interpreter read its environment and its packages, `aisotools` among them. With
        this one they are decoys, so that an attempt that gets through spoils nothing that anybody uses.
        """
        return str(self.facts["python"])

    def config(self) -> dict[str, Any]:
        """What `escape_probes.run_probes` takes; it survives JSON."""
        return self.facts | {
            "tag": secrets.token_hex(4),
            "other_uid": 1 if self._uid is None else self._uid + 1,
        }


# ---------------------------------------------------------------- the process


class Visits:
    """What reached the victim, by kind."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def serve_stream(self, server: socket.socket, name: str) -> None:
        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    visitor, _ = server.accept()
                    self.seen.append(name)
                    with visitor, contextlib.suppress(OSError):
                        visitor.send(b"hello")

        server.listen()
        threading.Thread(target=serve, daemon=True).start()

    def serve_datagrams(self, server: socket.socket, name: str) -> None:
        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.recv(100)
                    self.seen.append(name)

        threading.Thread(target=serve, daemon=True).start()

    def on_signal(self, number: int, _frame: object) -> None:
        self.seen.append(f"signal {number}")


def make_files(root: Path) -> dict[str, Any]:
    os.umask(0o022)
    root.chmod(0o755)
    home, shown = root / "home", root / "shown"
    for folder in (home, shown, root / "workspace", root / "scratch"):
        folder.mkdir()
    for folder in (root / "etc" / "profile.d", root / "var" / "spool" / "cron"):
        folder.mkdir(parents=True)
    files = {
        "key": home / "id_rsa",
        "moved_in": home / "moved",
        "removed": home / "removed",
        "shown": shown / "data.csv",
        "emptied": shown / "emptied",
        "shown_moved": shown / "moved",
    }
    for path in files.values():
        path.write_bytes(SECRET * 10)
        with contextlib.suppress(OSError):  # not every file system has attributes
            os.setxattr(path, "user.secret", SECRET)
            os.setxattr(path, "user.other", SECRET)
    files["key"].chmod(0o600)
    tool = home / "tool"
    tool.write_text("#!/bin/sh\necho ran\n")
    tool.chmod(0o755)
    binary = home / "binary"
    shutil.copy("/bin/true", binary)
    (home / "pointer").symlink_to("/somewhere/secret")
    for name in (".git/hooks/pre-commit", "inner/conftest.py", "start.pth", ".aisotools.toml"):
        trusted = root / "workspace" / name
        trusted.parent.mkdir(parents=True, exist_ok=True)
        trusted.write_text("# the host runs this")
    return {name: str(path) for name, path in files.items()} | {
        "root": str(root),
        "home": str(home),
        "home_name": home.name,
        "shown_folder": str(shown),
        "workspace": str(root / "workspace"),
        "scratch": str(root / "scratch"),
        "tool": str(tool),
        "binary": str(binary),
        "pointer": str(home / "pointer"),
        "every_shell": str(root / "etc" / "profile.d"),
        "every_user": str(root / "var" / "spool" / "cron"),
    }


def make_environment(prefix: Path) -> dict[str, Any]:
    """A virtual environment with a copy of `aisotools`, which finds all else where this one does."""
    site = prefix / PYTHON_FOLDER / "site-packages"
    for folder in (prefix / "bin", site / "package", prefix / PYTHON_FOLDER / "__pycache__"):
        folder.mkdir(parents=True)
    (prefix / "share" / "jupyter").mkdir(parents=True)
    real = Path(os.path.realpath(sys.executable))
    (prefix / "bin" / "python").symlink_to(real)
    (prefix / "pyvenv.cfg").write_text(f"home = {real.parent}\ninclude-system-site-packages = false\n")
    theirs = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    lines = (f"import site; site.addsitedir({path!r})\n" for path in theirs)
    (site / "all_else.pth").write_text("".join(lines))
    (site / "package" / "__init__.py").touch()
    found = importlib.util.find_spec("aisotools")
    assert found
    assert found.origin
    shutil.copytree(Path(found.origin).parent, site / "aisotools")
    setuid = prefix / "bin" / "setuid"  # only its mode matters
    setuid.touch()
    setuid.chmod(0o4755)
    return {
        "prefix": str(prefix),
        "python": str(prefix / "bin" / "python"),
        "packages": str(site / "package"),
        "package": str(site / "aisotools"),
        "library": str(prefix / PYTHON_FOLDER),
        "setuid": str(setuid),
    }


def make_sockets(home: str, shown: str, visits: Visits) -> dict[str, Any]:
    tag = secrets.token_hex(8)
    facts: dict[str, Any] = {
        "abstract": f"victim-{tag}",
        "stream_path": f"{home}/stream",
        "dgram_path": f"{home}/dgram",
        "shown_stream": f"{shown}/stream",
        "tcp6": 1,
    }
    tcp = socket.create_server(("127.0.0.1", 0))
    facts["tcp"] = tcp.getsockname()[1]
    visits.serve_stream(tcp, "tcp")
    with contextlib.suppress(OSError):  # no IPv6 here
        tcp6 = socket.create_server(("::1", 0), family=socket.AF_INET6)
        facts["tcp6"] = tcp6.getsockname()[1]
        visits.serve_stream(tcp6, "tcp6")
    addresses = ("\0" + facts["abstract"], facts["stream_path"], facts["shown_stream"])
    for name, address in zip(("abstract", "stream", "shown stream"), addresses, strict=True):
        stream = socket.socket(socket.AF_UNIX)
        stream.bind(address)
        visits.serve_stream(stream, name)
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams.bind(facts["dgram_path"])
    visits.serve_datagrams(datagrams, "dgram")
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    facts["udp"] = udp.getsockname()[1]
    visits.serve_datagrams(udp, "udp")
    return facts


class Shared:
    """Objects of System V and POSIX."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.shmat.restype = ctypes.c_void_p
        self.libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
        self.key = secrets.randbits(30) | 1
        self.shm = self._made(self.libc.shmget(self.key, 4096, 0o1600))
        self.semaphores = self._made(self.libc.semget(0, 1, 0o1600))
        self.queue = self._made(self.libc.msgget(0, 0o1600))
        address = self.libc.shmat(self.shm, None, 0)
        ctypes.memmove(address, SECRET, len(SECRET))
        message = struct.pack("q16s", 1, SECRET)
        self._made(self.libc.msgsnd(self.queue, message, 16, 0))
        self.mq = f"victim-{secrets.token_hex(8)}"
        self._make_message_queue()
        self.posix = Path(f"/dev/shm/victim-{secrets.token_hex(8)}")
        self.posix.write_bytes(SECRET)

    def _make_message_queue(self) -> None:
        # Another test may be using up what one user may have of them: the control of an attack on that quota.
        ends_s = time.monotonic() + _QUOTA_HANG_S
        small = (ctypes.c_long * 8)(0, 1, 16)  # a user has room for ten queues of the default size
        while self.libc.mq_open(f"/{self.mq}".encode(), os.O_CREAT | os.O_RDWR, 0o600, small) < 0:
            if ctypes.get_errno() != errno.EMFILE or time.monotonic() > ends_s:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            time.sleep(0.01)

    @staticmethod
    def _made(result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    def facts(self) -> dict[str, Any]:
        return {
            "shm_key": self.key,
            "shm": self.shm,
            "semaphores": self.semaphores,
            "queue": self.queue,
            "mq": self.mq,
            "posix_shm": self.posix.name,
        }

    def state(self) -> dict[str, Any]:
        buffer = ctypes.create_string_buffer(256)
        opened = self.libc.mq_open(f"/{self.mq}".encode(), os.O_RDWR)
        if opened >= 0:
            os.close(opened)
        return {
            "shm": self.libc.shmctl(self.shm, 2, buffer),
            "semaphore": self.libc.semctl(self.semaphores, 0, 12, 0),
            "messages": (self.libc.msgctl(self.queue, 2, buffer), buffer.raw[64:128].hex()),
            "mq": opened >= 0,
            "posix": self.posix.read_bytes().hex(),
        }

    def remove(self) -> None:
        self.libc.shmctl(self.shm, 0, None)
        self.libc.semctl(self.semaphores, 0, 0, 0)
        self.libc.msgctl(self.queue, 0, None)
        self.libc.mq_unlink(f"/{self.mq}".encode())
        self.posix.unlink(missing_ok=True)


def file_state(root: Path) -> dict[str, Any]:
    """Every file but the workspace's: content, mode, owner, times, attributes; of a large one its size."""
    found: dict[str, Any] = {}
    for folder in (root / name for name in ("home", "shown", "environment", "etc", "var")):
        for path in sorted((folder, *folder.rglob("*"))):
            status = path.lstat()
            names = [] if path.is_symlink() else sorted(os.listxattr(path))
            found[str(path.relative_to(root))] = [
                status.st_mode,
                status.st_uid,
                status.st_nlink,
                status.st_mtime_ns,
                status.st_ctime_ns,
                names,
                path.read_bytes().hex() if stat.S_ISREG(status.st_mode) and status.st_size < 100 else "",
                status.st_size if stat.S_ISREG(status.st_mode) else 0,
            ]
    return found


def main() -> None:
    root = Path(tempfile.mkdtemp(prefix="aisotools-victims-", dir=PLACE))
    visits, shared = Visits(), Shared()
    try:
        for number in (signal.SIGUSR1, signal.SIGIO):
            signal.signal(number, visits.on_signal)
        buffer = ctypes.create_string_buffer(SECRET + b".")
        facts = make_files(root) | make_environment(root / "environment") | shared.facts()
        facts |= make_sockets(facts["home"], facts["shown_folder"], visits)
        facts |= {"limit_of_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}
        # Both ends stay open: a machine on which nobody works at a terminal has no other one.
        facts |= {"terminal": os.ttyname(os.openpty()[1])}
        facts |= {"pid": os.getpid(), "address": ctypes.addressof(buffer), "pipe": os.pipe()[1]}
        print(json.dumps(facts), flush=True)
        for _ in sys.stdin:
            print(json.dumps(own_state(root, visits, shared, buffer)), flush=True)
    finally:
        shared.remove()
        shutil.rmtree(root)


def own_state(root: Path, visits: Visits, shared: Shared, buffer: Any) -> Mapping[str, Any]:
    return {
        "files": file_state(root),
        "visits": visits.seen,
        "shared": shared.state(),
        "memory": buffer.raw.hex(),
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "processors": sorted(os.sched_getaffinity(0)),
        "scheduler": os.sched_getscheduler(0),
        "group": os.getpgid(0),
        "oom": Path("/proc/self/oom_score_adj").read_text(),
    }


if __name__ == "__main__":
    main()
