# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH109, PTH110, PTH115, PTH116, PTH123, PTH208, PTH211 - plain calls
"""Attempts to get out of a confinement: `run_probes(config)` makes them all and tells how each ended.

Self-contained, standard library only: its source can be sent into any worker and run there with a config from
`victims.Victims.config()`. Each result is one of: "blocked ERRNO"; "blocked no effect", the call said yes and
did nothing; "blocked status N", of a child; "OPEN detail"; and "broken", a mistake in the attempt itself.
Victims, not the attempts, have the last word: compare `Victims.state()`.

Some attempts are answered before and after by `stat`, which no confinement of paths hides.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
PROBES: dict[str, Callable[[SimpleNamespace], object]] = {}
SECRET = b"SECRET"


class NoEffect(Exception):
    """The call succeeded without doing anything."""


class Ended(Exception):
    """A child of the attempt ended badly."""

    def __init__(self, returncode: int) -> None:
        super().__init__(returncode)
        self.returncode = returncode


def probe(name: str) -> Callable[[Callable[[SimpleNamespace], object]], Callable[[SimpleNamespace], object]]:
    def keep(function: Callable[[SimpleNamespace], object]) -> Callable[[SimpleNamespace], object]:
        assert name not in PROBES, name
        PROBES[name] = function
        return function

    return keep


def probes(table: dict[str, Callable[[SimpleNamespace], object]]) -> None:
    for name, function in table.items():
        probe(name)(function)


def run_probes(config: dict[str, Any]) -> dict[str, str]:
    """Make every attempt against the victims that `config` describes; name to how it ended."""
    c = SimpleNamespace(**config)
    return {name: outcome(function, c) for name, function in PROBES.items()}


def outcome(function: Callable[[SimpleNamespace], object], c: SimpleNamespace) -> str:
    try:
        detail = function(c)
    except NoEffect:
        return "blocked no effect"
    except OSError as error:
        return f"blocked {errno.errorcode.get(error.errno or 0, error.errno)}"
    except (subprocess.CalledProcessError, Ended) as error:
        return f"blocked status {error.returncode}"
    except Exception as error:
        return f"broken {type(error).__name__}: {str(error)[:60]}"
    return f"OPEN {detail!r}"[:80]


def call(c: SimpleNamespace, name: str, *arguments: Any) -> int:
    if name not in c.numbers:
        raise OSError(errno.ENOSYS, f"no {name} on this machine")
    return raw(c.numbers[name], *arguments)


def raw(number: int, *arguments: Any) -> int:
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return checked(LIBC.syscall(ctypes.c_long(number), *converted))


def libc(name: str, *arguments: Any) -> int:
    function = getattr(LIBC, name)
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return checked(function(*converted))


def checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def changes(look: Callable[[], object], act: Callable[[], object]) -> object:
    """What `act` changed; it raises NoEffect if nothing."""
    before = look()
    act()
    after = look()
    if after == before:
        raise NoEffect
    return after


def no_effect() -> object:
    raise NoEffect


def both(first: Callable[[], object], second: Callable[[], object]) -> None:
    first()
    second()


def read(path: str, size: int = 40) -> bytes:
    with open(path, "rb") as file:
        return file.read(size)


def write(path: str, content: str = "x") -> str:
    with open(path, "w", encoding="utf-8") as file:
        file.write(content)
    return path


def write_and_remove(path: str) -> str:
    write(path)
    os.unlink(path)
    return path


def planted(decoy: str, name: str, real: str) -> str:
    """Make a file in the decoy of a folder; where that is refused, a file without a name in the real one.

    Neither leaves anything in a folder that somebody uses, even where nothing confines.
    """
    try:
        return write_and_remove(f"{decoy}/{name}")
    except OSError:
        os.close(os.open(real, os.O_TMPFILE | os.O_WRONLY, 0o600))
    return real


def packages_of_the_host() -> str:
    """The folder of the packages that this Python was started with, as far as that can be told."""
    return next((path for path in sys.path[::-1] if path.endswith(("site-packages", "dist-packages"))), "")


@contextlib.contextmanager
def opened(path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def in_child(action: Callable[[], object]) -> int:
    """Run in a fork; its exit status, negative for a signal; 77 and more are OSErrors of the action."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except OSError as error:
            os._exit(77 + min(error.errno or 0, 150))
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def must_exit_0(status: int) -> str:
    if status >= 77:
        raise OSError(status - 77, "in the child")
    if status != 0:
        raise Ended(status)
    return "done"


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def times(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_ctime_ns


# ---------------------------------------------------------------- reading files outside

probes(
    {
        "read a private key": lambda c: read(c.key),
        "read /etc/passwd": lambda c: read("/etc/passwd"),
        "read /etc/shadow": lambda c: read("/etc/shadow"),
        "list a home folder": lambda c: os.listdir(c.home),
        "list /": lambda c: os.listdir("/"),
        "list /tmp": lambda c: os.listdir("/tmp"),
        "list /root": lambda c: os.listdir("/root"),
        "list /run": lambda c: os.listdir("/run"),
        "read by .. from the workspace": lambda c: read(f"../{c.home_name}/id_rsa"),
        "read by .. from a readable folder": lambda c: read(f"{c.shown_folder}/../{c.home_name}/id_rsa"),
        "read with doubled slashes": lambda c: read("//" + c.key.replace("/", "//")),
        "read by /proc/self/root": lambda c: read("/proc/self/root" + c.key),
        "read by /proc/self/cwd/..": lambda c: read(f"/proc/self/cwd/../{c.home_name}/id_rsa"),
        "run a program outside": lambda c: subprocess.check_output([c.tool]),
        "interpret a script outside": lambda c: subprocess.check_output(
            ["/bin/sh", c.tool], stderr=subprocess.DEVNULL
        ),
        "posix shared memory": lambda c: read(f"/dev/shm/{c.posix_shm}"),
        "list /dev/shm": lambda c: os.listdir("/dev/shm"),
        "block device": lambda c: read("/dev/vda"),
        "/dev/mem": lambda c: read("/dev/mem"),
        "/dev/kmsg": lambda c: os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)),
        "/dev/tty": lambda c: read("/dev/tty"),
        "new pseudo-terminal": lambda c: os.openpty(),
        "list /dev/pts": lambda c: os.listdir("/dev/pts"),
        "list /sys/fs/cgroup": lambda c: os.listdir("/sys/fs/cgroup"),
        "list /sys/kernel": lambda c: os.listdir("/sys/kernel"),
        "private TLS keys": lambda c: os.listdir("/etc/ssl/private"),
    }
)


@probe("read by a symlink in the workspace")
def _(c: SimpleNamespace) -> object:
    os.symlink(c.key, "link-read")
    return read("link-read")


@probe("read by a hard link in the workspace")
def _(c: SimpleNamespace) -> object:
    os.link(c.key, "link-hard")
    return read("link-hard")


@probe("read by a chain of links and ..")
def _(c: SimpleNamespace) -> object:
    os.mkdir("deep")
    os.symlink("../..", "deep/up")
    return read(f"deep/up/{c.home_name}/id_rsa")


@probe("read after fchdir into the folder")
def _(c: SimpleNamespace) -> object:
    here = os.getcwd()
    with opened(c.home, os.O_PATH) as folder:
        os.fchdir(folder)
        try:
            return read("id_rsa")
        finally:
            os.chdir(here)


@probe("read by a path descriptor of the folder")
def _(c: SimpleNamespace) -> None:
    with opened(c.home, os.O_PATH) as folder:
        os.close(os.open("id_rsa", os.O_RDONLY, dir_fd=folder))


@probe("read by reopening a path descriptor")
def _(c: SimpleNamespace) -> object:
    with opened(c.key, os.O_PATH) as path:
        return read(f"/proc/self/fd/{path}")


@probe("read by openat2 in another root")
def _(c: SimpleNamespace) -> None:
    how = struct.pack("=QQQ", os.O_RDONLY, 0, 0x10)  # RESOLVE_IN_ROOT
    with opened(c.home, os.O_PATH) as folder:
        os.close(call(c, "openat2", folder, b"/id_rsa\0", how, len(how)))


@probe("read by a file handle")
def _(c: SimpleNamespace) -> object:
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0) + bytes(128), 136)
    mount = ctypes.create_string_buffer(4)
    call(c, "name_to_handle_at", -100, c.key.encode(), handle, mount, 0)
    with opened(".") as here:
        try:
            os.close(call(c, "open_by_handle_at", here, handle, 0))
        except PermissionError:
            return "a handle, which it could not open"
    return "opened"


@probe("run a program outside by descriptor")
def _(c: SimpleNamespace) -> object:
    with opened(c.tool, os.O_PATH) as tool:
        os.set_inheritable(tool, True)
        return must_exit_0(in_child(lambda: os.execve(tool, ["tool"], {})))


@probe("map a program outside by the dynamic linker")
def _(c: SimpleNamespace) -> object:
    linker = next(
        p for p in ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1") if os.path.exists(p)
    )
    return subprocess.check_output([linker, c.binary], stderr=subprocess.DEVNULL)


# ---------------------------------------------------------------- names, sizes, attributes

probes(
    {
        "stat a file": lambda c: os.stat(c.key).st_size,
        "ask for access": lambda c: os.access(c.key, os.R_OK) or no_effect(),
        "read where a link leads": lambda c: os.readlink(c.pointer),
        "statfs": lambda c: os.statvfs(c.home).f_bsize,
        "uname": lambda c: os.uname().nodename,
        "read an attribute": lambda c: os.getxattr(c.key, "user.secret"),
        "list attributes": lambda c: os.listxattr(c.key) or no_effect(),
        "read an attribute by descriptor": lambda c: os.getxattr(
            os.open(c.shown, os.O_RDONLY), "user.secret"
        ),
        "read flags by path": lambda c: call(
            c, "file_getattr", -100, c.key.encode(), ctypes.create_string_buffer(24), 24, 0
        ),
        "list the mount table": lambda c: read("/proc/self/mountinfo"),
        "list mounts": lambda c: read("/proc/mounts"),
    }
)


@probe("list mounts by system call")
def _(c: SimpleNamespace) -> object:
    request = struct.pack("=IIQQ", 24, 0, 0xFFFFFFFFFFFFFFFF, 0)  # LSMT_ROOT
    return call(c, "listmount", request, ctypes.create_string_buffer(800), 100, 0)


@probe("describe a mount by system call")
def _(c: SimpleNamespace) -> object:
    buffer = ctypes.create_string_buffer(512)
    status = os.statvfs("/")
    assert status
    for mount in range(1, 64):
        request = struct.pack("=IIQQ", 24, 0, (1 << 31) + mount, 2)
        with contextlib.suppress(FileNotFoundError):
            return call(c, "statmount", request, buffer, 512, 0)
    raise FileNotFoundError(errno.ENOENT, "no such mount")


@probe("list namespaces")
def _(c: SimpleNamespace) -> object:
    request = struct.pack("=IIQIIQ", 32, 0, 0, 0, 0, 0)
    return call(c, "listns", request, ctypes.create_string_buffer(800), 100, 0)


# ---------------------------------------------------------------- changing files outside, by path


def restoring(path: str, act: Callable[[], object]) -> object:
    """`act`'s effect on mode, owner and times of `path`."""
    return changes(lambda: (mode(path), os.stat(path).st_uid, os.stat(path).st_gid, times(path)), act)


probes(
    {
        "chmod": lambda c: restoring(c.key, lambda: os.chmod(c.key, 0o640)),
        "chmod by fchmodat2": lambda c: restoring(
            c.key, lambda: call(c, "fchmodat2", -100, c.key.encode(), 0o644, 0)
        ),
        "chown": lambda c: restoring(c.key, lambda: os.chown(c.key, os.getuid(), os.getgid())),
        "lchown": lambda c: restoring(c.key, lambda: os.lchown(c.key, os.getuid(), os.getgid())),
        "utime": lambda c: restoring(c.key, lambda: os.utime(c.key, (1, 1))),
        "utime now": lambda c: restoring(c.key, lambda: os.utime(c.key)),
        "old utime": lambda c: restoring(c.key, lambda: call(c, "utime", c.key.encode(), 0)),
        "old utimes": lambda c: restoring(c.key, lambda: call(c, "utimes", c.key.encode(), 0)),
        "old futimesat": lambda c: restoring(c.key, lambda: call(c, "futimesat", -100, c.key.encode(), 0)),
        "set an attribute": lambda c: restoring(c.key, lambda: os.setxattr(c.key, "user.new", b"x")),
        "remove an attribute": lambda c: restoring(c.key, lambda: os.removexattr(c.key, "user.other")),
        "set flags by path": lambda c: call(
            c,
            "file_setattr",
            -100,
            c.key.encode(),
            struct.pack("=QIIIIII", 0x80, 0, 0, 0, 0, 0, 0)[:24],
            24,
            0,
        ),
        "append": lambda c: os.close(os.open(c.key, os.O_WRONLY | os.O_APPEND)),
        "truncate": lambda c: os.truncate(c.key, 3),
        "make a file in a home folder": lambda c: write_and_remove(f"{c.home}/esc"),
        "make a folder in a home folder": lambda c: both(
            lambda: os.mkdir(f"{c.home}/esc"), lambda: os.rmdir(f"{c.home}/esc")
        ),
        "make a link in a home folder": lambda c: both(
            lambda: os.symlink("x", f"{c.home}/esc"), lambda: os.unlink(f"{c.home}/esc")
        ),
        "make a nameless file in a home folder": lambda c: os.close(
            os.open(c.home, os.O_TMPFILE | os.O_WRONLY, 0o600)
        ),
        "make a file in /tmp": lambda c: write_and_remove(f"/tmp/esc-{c.tag}"),
        "make a file in /var/tmp": lambda c: write_and_remove(f"/var/tmp/esc-{c.tag}"),
        "make a file in /dev/shm": lambda c: write_and_remove(f"/dev/shm/esc-{c.tag}"),
        "poison the packages": lambda c: planted(c.packages, f"esc_{c.tag}.py", packages_of_the_host()),
        "poison the package itself": lambda c: planted(c.package, f"esc_{c.tag}.py", packages_of_the_host()),
        "write a file that may be read": lambda c: os.close(os.open(c.shown, os.O_WRONLY)),
        "make a file in a folder that may be read": lambda c: write_and_remove(f"{c.shown_folder}/esc"),
        "truncate a file that may be read": lambda c: os.truncate(c.shown, 30),
        "empty a file by opening it to read": lambda c: os.close(
            os.open(c.emptied, os.O_RDONLY | os.O_TRUNC)
        ),
        "empty a file by opening it for nothing": lambda c: os.close(os.open(c.emptied, 3 | os.O_TRUNC)),
        "move a file in": lambda c: os.rename(c.moved_in, "moved-in"),
        "move a file that may be read in": lambda c: os.rename(c.shown_moved, "shown-moved"),
        "write by a hard link of a file that may be read": lambda c: both(
            lambda: os.link(c.shown, "shown-hard"), lambda: write("shown-hard")
        ),
        "write /proc/sys": lambda c: os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)),
        "write /proc/sysrq-trigger": lambda c: os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY)),
        "write own oom_score_adj": lambda c: write("/proc/self/oom_score_adj", "500"),
    }
)


@probe("move a file out")
def _(c: SimpleNamespace) -> None:
    write("moved-out")
    os.rename("moved-out", f"{c.home}/moved-out")
    os.unlink(f"{c.home}/moved-out")


@probe("swap a file in")
def _(c: SimpleNamespace) -> None:
    write("swapped")
    exchange = 2
    call(c, "renameat2", -100, b"swapped\0", -100, c.key.encode() + b"\0", exchange)
    call(c, "renameat2", -100, b"swapped\0", -100, c.key.encode() + b"\0", exchange)


@probe("write by a symlink in the workspace")
def _(c: SimpleNamespace) -> object:
    os.symlink(c.home, "link-write")
    return write_and_remove("link-write/esc")


@probe("make a file by a dangling symlink")
def _(c: SimpleNamespace) -> None:
    os.symlink(f"{c.home}/dangling", "link-dangling")
    write("link-dangling")
    os.unlink(f"{c.home}/dangling")


@probe("change the mode by a magic link")
def _(c: SimpleNamespace) -> object:
    with opened(c.key, os.O_PATH) as path:
        return restoring(c.key, lambda: os.chmod(f"/proc/self/fd/{path}", 0o600 | os.getpid() % 8))


@probe("change the mode of a path descriptor")
def _(c: SimpleNamespace) -> object:
    with opened(c.key, os.O_PATH) as path:
        empty_path = 0x1000
        return restoring(c.key, lambda: call(c, "fchmodat2", path, b"\0", 0o641, empty_path))


# ---------------------------------------------------------------- changing what may be read, by descriptor


def on_shown(
    act: Callable[[SimpleNamespace, int], object], look: Callable[[str], object] | None = None
) -> Callable[[SimpleNamespace], object]:
    def attempt(c: SimpleNamespace) -> object:
        with opened(c.shown) as descriptor:
            return changes(
                lambda: (mode(c.shown), times(c.shown), look(c.shown) if look else None),
                lambda: act(c, descriptor),
            )

    return attempt


def ioctl_command(direction: int, kind: str, number: int, size: int) -> int:
    return direction << 30 | size << 16 | ord(kind) << 8 | number


def set_flags(command: int, size: int) -> Callable[[SimpleNamespace, int], object]:
    nodump = 0x40
    return lambda _, descriptor: fcntl.ioctl(
        descriptor, command, struct.pack("=Q", nodump)[:size].ljust(8, b"\0")
    )


probes(
    {
        "fchmod": on_shown(lambda _, d: os.fchmod(d, 0o640)),
        "fchmod setuid": on_shown(lambda _, d: os.fchmod(d, 0o4711)),
        "fchown": on_shown(lambda _, d: os.fchown(d, os.getuid(), os.getgid())),
        "futimens": on_shown(lambda _, d: os.utime(d, (1, 1))),
        "futimens now": on_shown(lambda _, d: os.utime(d)),
        "fsetxattr": on_shown(lambda _, d: os.setxattr(d, "user.new", b"x")),
        "fremovexattr": on_shown(lambda _, d: os.removexattr(d, "user.other")),
        "FS_IOC_SETFLAGS": on_shown(set_flags(ioctl_command(1, "f", 2, 8), 8)),
        "FS_IOC32_SETFLAGS": on_shown(set_flags(ioctl_command(1, "f", 2, 4), 4)),
        "FS_IOC_SETVERSION": on_shown(set_flags(ioctl_command(1, "v", 2, 8), 8)),
        "FS_IOC_FSSETXATTR": on_shown(
            lambda _, d: fcntl.ioctl(d, ioctl_command(1, "X", 32, 28), struct.pack("=IIII12x", 0x80, 0, 0, 0))
        ),
        "FS_IOC_ENABLE_VERITY": on_shown(
            lambda _, d: fcntl.ioctl(d, ioctl_command(1, "f", 133, 128), bytes(128))
        ),
        "encryption policy": on_shown(lambda _, d: fcntl.ioctl(d, ioctl_command(2, "f", 19, 12), bytes(12))),
        "FITRIM": on_shown(lambda _, d: fcntl.ioctl(d, ioctl_command(3, "X", 121, 24), bytes(24))),
        "ftruncate a readable descriptor": on_shown(lambda _, d: os.ftruncate(d, 1)),
        "punch a hole through a readable descriptor": on_shown(lambda c, d: libc("fallocate", d, 3, 0, 4096)),
        "map a readable descriptor to write": on_shown(
            lambda _, d: mmap.mmap(d, 1, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE).close()
        ),
    }
)


def fcntl_probe(command: int, argument: int, folder: bool = False) -> Callable[[SimpleNamespace], object]:
    def attempt(c: SimpleNamespace) -> object:
        with opened(c.shown_folder if folder else c.shown) as descriptor:
            return fcntl.fcntl(descriptor, command, argument)

    return attempt


probes(
    {
        "lease on a file that may be read": fcntl_probe(1024, fcntl.F_RDLCK),
        "watch a folder that may be read": fcntl_probe(1026, 0x1F, folder=True),
        "delegation of a file that may be read": fcntl_probe(1040, 0),
        "flock a file that may be read": lambda c: fcntl.flock(
            os.open(c.shown, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB
        ),
    }
)


@probe("reopen a readable descriptor to write")
def _(c: SimpleNamespace) -> None:
    with opened(c.shown) as descriptor:
        os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY))


@probe("write hint of a file that may be read")
def _(c: SimpleNamespace) -> object:
    with opened(c.shown) as descriptor:
        return fcntl.fcntl(descriptor, 1036, struct.pack("=Q", 3))


# ---------------------------------------------------------------- watching


@probe("inotify")
def _(c: SimpleNamespace) -> object:
    return libc("inotify_add_watch", libc("inotify_init1", 0), c.home.encode(), 0xFFF)


@probe("inotify handles, of which a user has few")
def _(c: SimpleNamespace) -> None:
    os.close(libc("inotify_init1", 0))


@probe("a share of the machine's asynchronous requests")
def _(c: SimpleNamespace) -> None:
    context = ctypes.create_string_buffer(8)
    call(c, "io_setup", 1, context)
    call(c, "io_destroy", int.from_bytes(context.raw, "little"))


@probe("fanotify")
def _(c: SimpleNamespace) -> object:
    watcher = libc("fanotify_init", 0x200, 0)  # FAN_REPORT_FID, which needs no privilege
    return call(c, "fanotify_mark", watcher, 1, 2, -100, c.home.encode())


# ---------------------------------------------------------------- what may be made in the workspace


def made_with(
    make: Callable[[SimpleNamespace], object], name: str, bits: int
) -> Callable[[SimpleNamespace], object]:
    def attempt(c: SimpleNamespace) -> object:
        before = os.umask(0)
        try:
            made = make(c)
        finally:
            os.umask(before)
        if isinstance(made, int):
            os.close(made)
        if not os.stat(name).st_mode & bits:
            raise NoEffect
        return oct(os.stat(name).st_mode)

    return attempt


CREATE = os.O_CREAT | os.O_WRONLY | os.O_EXCL
probes(
    {
        "setuid file, by openat": made_with(lambda c: os.open("suid1", CREATE, 0o4755), "suid1", 0o4000),
        "setgid file, by openat": made_with(lambda c: os.open("sgid1", CREATE, 0o2755), "sgid1", 0o2000),
        "setuid file, by open": made_with(
            lambda c: call(c, "open", b"suid2\0", CREATE, 0o4755), "suid2", 0o4000
        ),
        "setuid file, by creat": made_with(lambda c: call(c, "creat", b"suid3\0", 0o4755), "suid3", 0o4000),
        "setuid file, by mknod": made_with(
            lambda c: os.mknod("suid4", 0o4755 | stat.S_IFREG), "suid4", 0o4000
        ),
        "setuid file, by openat2": made_with(
            lambda c: call(c, "openat2", -100, b"suid5\0", struct.pack("=QQQ", CREATE, 0o4755, 0), 24),
            "suid5",
            0o4000,
        ),
        "device node, block": lambda c: os.mknod("block", 0o600 | stat.S_IFBLK, os.makedev(7, 0)),
        "device node, character": lambda c: os.mknod("char", 0o600 | stat.S_IFCHR, os.makedev(1, 1)),
        "socket node": lambda c: os.mknod("sock", 0o600 | stat.S_IFSOCK),
    }
)


@probe("setuid file, nameless")
def _(c: SimpleNamespace) -> object:
    made = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o4755)
    if not os.fstat(made).st_mode & 0o4000:
        raise NoEffect
    return oct(os.fstat(made).st_mode)


# ---------------------------------------------------------------- /proc

probes(
    {
        "environment of another process": lambda c: read(f"/proc/{c.pid}/environ"),
        "environment of another process, spelled oddly": lambda c: read(f"/proc/./self/../{c.pid}/environ"),
        "command line of another process": lambda c: read(f"/proc/{c.pid}/cmdline"),
        "memory of another process, by file": lambda c: os.close(os.open(f"/proc/{c.pid}/mem", os.O_RDONLY)),
        "maps of another process": lambda c: read(f"/proc/{c.pid}/maps"),
        "root of another process": lambda c: os.listdir(f"/proc/{c.pid}/root"),
        "descriptors of another process": lambda c: os.listdir(f"/proc/{c.pid}/fd"),
        "descriptor of another process": lambda c: os.close(
            os.open(f"/proc/{c.pid}/fd/{c.pipe}", os.O_WRONLY)
        ),
        "working folder of another process": lambda c: os.listdir(f"/proc/{c.pid}/cwd/"),
        "program of another process": lambda c: os.readlink(f"/proc/{c.pid}/exe"),
        "status of another process": lambda c: read(f"/proc/{c.pid}/status"),
        "oom score of another process": lambda c: write(f"/proc/{c.pid}/oom_score_adj", "900"),
        "environment of the parent": lambda c: read(f"/proc/{os.getppid()}/environ"),
        "environment of process 1": lambda c: read("/proc/1/environ"),
        "own environment at start": lambda c: read("/proc/self/environ"),
        "own environment at start, by thread": lambda c: read("/proc/thread-self/environ"),
        "list processes": lambda c: os.listdir("/proc"),
        "connections of the machine": lambda c: read("/proc/net/unix"),
        "kernel symbols": lambda c: read("/proc/kallsyms"),
        "kernel memory": lambda c: read("/proc/kcore"),
        "processors": lambda c: read("/proc/cpuinfo"),
    }
)

# ---------------------------------------------------------------- other processes


def queued_signal(c: SimpleNamespace) -> int:
    information = struct.pack("=iii", signal.SIGUSR1, 0, -1).ljust(128, b"\0")
    return call(c, "rt_sigqueueinfo", c.pid, signal.SIGUSR1, information)


def read_memory(c: SimpleNamespace) -> bytes:
    mine = ctypes.create_string_buffer(len(SECRET))
    here = struct.pack("QQ", ctypes.addressof(mine), len(SECRET))
    there = struct.pack("QQ", c.address, len(SECRET))
    call(c, "process_vm_readv", c.pid, here, 1, there, 1, 0)
    return mine.raw


def write_memory(c: SimpleNamespace) -> int:
    mine = ctypes.create_string_buffer(b"x")
    here, there = struct.pack("QQ", ctypes.addressof(mine), 1), struct.pack("QQ", c.address + 5, 1)
    return call(c, "process_vm_writev", c.pid, here, 1, there, 1, 0)


def move_pages(c: SimpleNamespace) -> object:
    pages = struct.pack("Q", c.address & ~4095)
    status = ctypes.create_string_buffer(struct.pack("i", -12345), 4)
    return changes(lambda: status.raw, lambda: call(c, "move_pages", c.pid, 1, pages, 0, status, 0))


def core_cookie(c: SimpleNamespace) -> object:
    share_to = 2
    return libc("prctl", 62, share_to, c.pid, 0, 0)


def signal_by_owner(c: SimpleNamespace) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fcntl.fcntl(ours, fcntl.F_SETOWN, c.pid)
        fcntl.fcntl(ours, 10, signal.SIGUSR1)  # F_SETSIG
        fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC)
        theirs.send(b"x")


def by_pidfd(act: Callable[[SimpleNamespace, int], object]) -> Callable[[SimpleNamespace], object]:
    def attempt(c: SimpleNamespace) -> object:
        handle = os.pidfd_open(c.pid)
        try:
            return act(c, handle)
        finally:
            os.close(handle)

    return attempt


def scheduler(c: SimpleNamespace) -> object:
    return changes(
        lambda: os.sched_getscheduler(c.pid),
        lambda: os.sched_setscheduler(c.pid, os.SCHED_BATCH, os.sched_param(0)),
    )


def attributes(c: SimpleNamespace) -> object:
    normal_nice_5 = struct.pack("=IIQiIQQQ", 48, 0, 0, 5, 0, 0, 0, 0)
    return changes(
        lambda: os.getpriority(os.PRIO_PROCESS, c.pid),
        lambda: call(c, "sched_setattr", c.pid, normal_nice_5, 0),
    )


probes(
    {
        "pidfd of another process": by_pidfd(lambda c, handle: handle),
        "scheduling of another process, read": lambda c: os.sched_getaffinity(c.pid),
        "signal 0": lambda c: os.kill(c.pid, 0),
        "signal 0 to its group": lambda c: os.kill(-c.pid, 0),
        "signal 0 to the parent": lambda c: os.kill(os.getppid(), 0),
        "signal": lambda c: os.kill(c.pid, signal.SIGUSR1),
        "signal by tkill": lambda c: call(c, "tkill", c.pid, signal.SIGUSR1),
        "signal by tgkill": lambda c: call(c, "tgkill", c.pid, c.pid, signal.SIGUSR1),
        "signal with a message": queued_signal,
        "signal by pidfd": by_pidfd(lambda c, handle: signal.pidfd_send_signal(handle, signal.SIGUSR1)),
        "signal by ownership of a socket": signal_by_owner,
        "take a descriptor": by_pidfd(lambda c, handle: call(c, "pidfd_getfd", handle, 0, 0)),
        "network namespace by pidfd": by_pidfd(lambda c, handle: fcntl.ioctl(handle, 0xFF04, 0)),
        "facts by pidfd": by_pidfd(
            lambda c, handle: fcntl.ioctl(handle, ioctl_command(3, "\xff", 11, 64), struct.pack("=Q56x", 1))
        ),
        "advise by pidfd": by_pidfd(
            lambda c, handle: call(
                c, "process_madvise", handle, struct.pack("QQ", c.address & ~4095, 4096), 1, 20, 0
            )
        ),
        "release memory by pidfd": by_pidfd(lambda c, handle: call(c, "process_mrelease", handle, 0)),
        "trace": lambda c: call(c, "ptrace", 0x4206, c.pid, 0, 0),
        "trace oneself": lambda c: must_exit_0(in_child(lambda: call(c, "ptrace", 0, 0, 0, 0))),
        "read memory": read_memory,
        "write memory": write_memory,
        "compare": lambda c: call(c, "kcmp", os.getpid(), c.pid, 0, 0, 0),
        "lock list": lambda c: call(
            c, "get_robust_list", c.pid, ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
        ),
        "limits of another process": lambda c: resource.prlimit(c.pid, resource.RLIMIT_NOFILE),
        "priority": lambda c: os.setpriority(
            os.PRIO_PROCESS, c.pid, os.getpriority(os.PRIO_PROCESS, c.pid) + 1
        ),
        "disk priority": lambda c: call(c, "ioprio_set", 1, c.pid, 3 << 13),
        "processors of another process": lambda c: changes(
            lambda: os.sched_getaffinity(c.pid), lambda: os.sched_setaffinity(c.pid, {0})
        ),
        "scheduling of another process": scheduler,
        "niceness of another process": attributes,
        "pages of another process": move_pages,
        "core sharing": core_cookie,
        "performance counters of another process": lambda c: call(
            c, "perf_event_open", struct.pack("=IIQ", 1, 112, 0).ljust(112, b"\0"), c.pid, -1, -1, 0
        ),
    }
)

# ---------------------------------------------------------------- network


def tcp(family: int, address: str) -> Callable[[SimpleNamespace], object]:
    def attempt(c: SimpleNamespace) -> object:
        with socket.socket(family) as client:
            client.settimeout(2)
            client.connect((address, c.tcp6 if family == socket.AF_INET6 else c.tcp))
            return client.recv(5)

    return attempt


def unix(address: Callable[[SimpleNamespace], str]) -> Callable[[SimpleNamespace], object]:
    def attempt(c: SimpleNamespace) -> object:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2)
            client.connect(address(c))
            return client.recv(5)

    return attempt


def udp(c: SimpleNamespace) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        return client.sendto(b"probe", ("127.0.0.1", c.udp))


def datagram(c: SimpleNamespace) -> object:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        return client.sendto(b"probe", c.dgram_path)


def datagram_of_a_pair(c: SimpleNamespace) -> object:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        return ours.sendto(b"probe", c.dgram_path)


def reconnect(c: SimpleNamespace) -> object:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.sendto(b"probe", c.dgram_path)
        return no_effect() if theirs.recv(9) == b"probe" else "sent elsewhere"


def bound(c: SimpleNamespace) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("server")
        server.listen()


def made(*arguments: int) -> Callable[[SimpleNamespace], object]:
    return lambda c: socket.socket(*arguments).close()


probes(
    {
        "tcp": tcp(socket.AF_INET, "127.0.0.1"),
        "tcp over ipv6": tcp(socket.AF_INET6, "::1"),
        "udp": udp,
        "bind a port": lambda c: socket.create_server(("127.0.0.1", 0)).close(),
        "raw socket": made(socket.AF_INET, socket.SOCK_RAW, 1),
        "ping socket": made(socket.AF_INET, socket.SOCK_DGRAM, 1),
        "packet socket": made(17, socket.SOCK_RAW),
        "netlink": made(socket.AF_NETLINK, socket.SOCK_RAW),
        "kernel crypto": made(38, socket.SOCK_SEQPACKET),
        "vsock": made(40, socket.SOCK_STREAM),
        "unix socket": made(socket.AF_UNIX, socket.SOCK_STREAM),
        "unix socket by abstract name": unix(lambda c: "\0" + c.abstract),
        "unix socket by path": unix(lambda c: c.stream_path),
        "unix datagram": datagram,
        "unix datagram from a pair": datagram_of_a_pair,
        "unix packet from a pair": reconnect,
        "unix server": bound,
    }
)

# ---------------------------------------------------------------- namespaces, mounts, the kernel


def cloned(c: SimpleNamespace) -> None:
    child = call(c, "clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def cloned_as_sibling(c: SimpleNamespace) -> None:
    child = call(c, "clone", 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)


def cloned_by_structure(c: SimpleNamespace) -> None:
    arguments = struct.pack("=8Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    child = call(c, "clone3", arguments, len(arguments))
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def unshared(flag: int) -> Callable[[SimpleNamespace], object]:
    return lambda c: must_exit_0(in_child(lambda: call(c, "unshare", flag)))


def more_capabilities(c: SimpleNamespace) -> object:
    header = struct.pack("=Ii", 0x20080522, 0)
    return call(c, "capset", header, struct.pack("=6I", 1 << 21, 1 << 21, 0, 0, 0, 0))


def core_dumps(c: SimpleNamespace) -> object:
    """With any other limit than 1 a crash is piped to the host's handler."""
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != 1:
        return resource.getrlimit(resource.RLIMIT_CORE)
    return changes(
        lambda: resource.getrlimit(resource.RLIMIT_CORE),
        lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    )


def compatibility_entry(c: SimpleNamespace) -> object:
    """32-bit system calls have other numbers."""
    if os.uname().machine != "x86_64":
        raise OSError(errno.ENOSYS, "x86-64 only")

    def enter() -> None:
        code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # getpid by int 0x80
        memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        memory.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        os._exit(0 if ctypes.CFUNCTYPE(ctypes.c_long)(address)() == os.getpid() else 1)

    return must_exit_0(in_child(enter))


probes(
    {
        "user namespace": unshared(0x10000000),
        "network namespace": unshared(0x40000000),
        "mount namespace": unshared(0x00020000),
        "user and mount namespace": unshared(0x10020000),
        "user namespace by clone": cloned,
        "user namespace by clone3": cloned_by_structure,
        "child of the parent": cloned_as_sibling,
        "join a namespace": lambda c: call(c, "setns", os.open("/proc/self/ns/net", os.O_RDONLY), 0),
        "join namespaces by pidfd": by_pidfd(lambda c, handle: call(c, "setns", handle, 0x08000000)),
        "mount": lambda c: call(c, "mount", b"none\0", b".\0", b"no-such-type\0", 0, 0),
        "unmount": lambda c: call(c, "umount2", b"/no-such-mount\0", 0),
        "pivot root": lambda c: call(c, "pivot_root", b".\0", b".\0"),
        "chroot": lambda c: must_exit_0(in_child(lambda: os.chroot("/"))),
        "copy of a mount": lambda c: os.close(call(c, "open_tree", -100, b".\0", 0)),
        "new file system": lambda c: os.close(call(c, "fsopen", b"tmpfs\0", 0)),
        "quota": lambda c: call(c, "quotactl", 0x80000100, 0, 0, 0),
        "process accounting": lambda c: call(c, "acct", b"/no-such-file\0"),
        "swap": lambda c: call(c, "swapon", b"/no-such-file\0", 0),
        "io_uring": lambda c: os.close(call(c, "io_uring_setup", 4, ctypes.create_string_buffer(120))),
        "bpf": lambda c: os.close(call(c, "bpf", 0, struct.pack("=IIII", 2, 4, 4, 1).ljust(72, b"\0"), 72)),
        "performance counters": lambda c: os.close(
            call(c, "perf_event_open", struct.pack("=IIQ", 1, 112, 0).ljust(112, b"\0"), 0, -1, -1, 0)
        ),
        "keyring": lambda c: call(c, "keyctl", 0, -3, 0),
        "add a key": lambda c: call(c, "add_key", b"user\0", b"probe\0", b"x", 1, -2),
        "page faults": lambda c: os.close(call(c, "userfaultfd", 1)),
        "secret memory": lambda c: os.close(call(c, "memfd_secret", 0)),
        "load a module": lambda c: call(c, "init_module", b"", 0, b"\0"),
        "new kernel": lambda c: call(c, "kexec_load", 0, 0, 0, 0),
        "restart": lambda c: call(c, "reboot", 0, 0, 0, 0),
        "kernel log": lambda c: call(c, "syslog", 10, 0, 0),
        "personality": lambda c: call(c, "personality", 0xFFFFFFFF),
        "ports": lambda c: call(c, "iopl", 3),
        "segments": lambda c: call(c, "modify_ldt", 0, ctypes.create_string_buffer(16), 16),
        "clock, read by the call that sets": lambda c: call(c, "adjtimex", ctypes.create_string_buffer(208)),
        "set the clock": lambda c: call(c, "clock_settime", 0, struct.pack("qq", -1, -1)),
        "set the host's name": lambda c: call(c, "sethostname", b"probe", -1),
        "hang up the terminal": lambda c: call(c, "vhangup"),
        "list security modules": lambda c: call(
            c, "lsm_list_modules", ctypes.create_string_buffer(80), struct.pack("=I", 80), 0
        ),
        "x32 door": lambda c: raw(0x40000000 + 39),
        "x32 door without its bit": lambda c: raw(521, 0, 0, 0, 0),
        "32-bit door": compatibility_entry,
        "capabilities": more_capabilities,
        "core dumps": core_dumps,
        "real-time scheduling": lambda c: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
        "become another user": lambda c: must_exit_0(in_child(lambda: os.setuid(c.other_uid))),
    }
)


@probe("setuid program")
def _(c: SimpleNamespace) -> object:
    done = subprocess.run(
        ["su", "-c", "id"], capture_output=True, timeout=5, stdin=subprocess.DEVNULL, check=False
    )
    if b"uid=0" not in done.stdout or os.getuid() == 0:
        raise NoEffect
    return done.stdout


# ---------------------------------------------------------------- objects of the whole machine


def take_message(c: SimpleNamespace) -> object:
    buffer = ctypes.create_string_buffer(64)
    no_wait = 0o4000
    call(c, "msgrcv", c.queue, buffer, 16, 0, no_wait)
    return buffer.raw[:20]


def attached(c: SimpleNamespace, segment: int) -> bytes:
    address = call(c, "shmat", segment, 0, 0o10000)
    content = ctypes.string_at(address, 6)
    call(c, "shmdt", address)
    return content


probes(
    {
        "shared memory by key": lambda c: attached(c, call(c, "shmget", c.shm_key, 0, 0)),
        "shared memory by number": lambda c: attached(c, c.shm),
        "shared memory, described": lambda c: call(c, "shmctl", c.shm, 2, ctypes.create_string_buffer(256)),
        "new shared memory": lambda c: call(c, "shmctl", call(c, "shmget", 0, 4096, 0o1600), 0, 0),
        "semaphore by number": lambda c: call(c, "semctl", c.semaphores, 0, 12, 0),
        "semaphore, changed": lambda c: call(c, "semop", c.semaphores, struct.pack("=Hhh", 0, 1, 0o4000), 1),
        "new semaphore": lambda c: call(c, "semctl", call(c, "semget", 0, 1, 0o1600), 0, 0, 0),
        "message queue, described": lambda c: call(c, "msgctl", c.queue, 2, ctypes.create_string_buffer(256)),
        "message, sent": lambda c: call(c, "msgsnd", c.queue, struct.pack("q6s", 2, b"forged"), 6, 0o4000),
        "message, taken": take_message,
        "new message queue": lambda c: call(c, "msgctl", call(c, "msgget", 0, 0o1600), 0, 0),
        "posix queue": lambda c: os.close(call(c, "mq_open", c.mq.encode(), os.O_RDWR | os.O_NONBLOCK, 0, 0)),
    }
)

# ---------------------------------------------------------------- what this process was given


@probe("secrets in the environment")
def _(c: SimpleNamespace) -> object:
    return [name for name in os.environ if "SECRET" in name] or no_effect()


@probe("descriptors of files and folders")
def _(c: SimpleNamespace) -> object:
    found = []
    for descriptor in range(256):
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                found.append(descriptor)
    return found or no_effect()


# ---------------------------------------------------------------- last, because they take things away

probes(
    {
        "posix queue, removed": lambda c: call(c, "mq_unlink", c.mq.encode()),
        "shared memory, removed": lambda c: call(c, "shmctl", c.shm, 0, 0),
        "semaphore, removed": lambda c: call(c, "semctl", c.semaphores, 0, 0, 0),
        "message queue, removed": lambda c: call(c, "msgctl", c.queue, 0, 0),
        "remove a file": lambda c: os.unlink(c.removed),
        "remove a file that may be read": lambda c: os.unlink(c.shown_moved),
        "set limits of another process": lambda c: resource.prlimit(c.pid, resource.RLIMIT_NOFILE, (64, 64)),
    }
)

if __name__ == "__main__":
    import json

    print(json.dumps(run_probes(json.load(sys.stdin))))
