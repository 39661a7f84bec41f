# ruff: noqa: PTH101, PTH102, PTH103, PTH104, PTH105, PTH108, PTH115, PTH116, PTH119, PTH120, PTH211 - plain calls
"""More attempts to get out; they join those of `escape_probes`, whose helpers they use.

`source_of_all` gives both as one text that can be run anywhere: the import below is for this place only.
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
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

# here only
from tests.sandbox.escape_probes import (
    LIBC,
    PROBES,
    SECRET,
    Ended,
    NoEffect,
    both,
    by_pidfd,
    call,
    changes,
    in_child,
    libc,
    must_exit_0,
    no_effect,
    opened,
    packages_of_the_host,
    planted,
    probe,
    probes,
    read,
    unshared,
    write,
    write_and_remove,
)

# from here on


def opens(path: str, flags: int = os.O_RDONLY) -> Callable[[SimpleNamespace], object]:
    return lambda c: os.close(os.open(path.format(**vars(c)), flags | os.O_NONBLOCK | os.O_NOCTTY))


# ---------------------------------------------------------------- /proc and /sys

probes(
    {
        f"{what} of another process": opens(f"/proc/{{pid}}/{name}")
        for what, name in {
            "auxiliary vector": "auxv",
            "page map": "pagemap",
            "system call": "syscall",
            "kernel stack": "stack",
            "timers": "timers",
            "limits, by file,": "limits",
            "mount table": "mountinfo",
            "control group": "cgroup",
            "address of the heap": "smaps",
            "network namespace, by file,": "ns/net",
            "threads": "task",
            "mapped files": "map_files",
            "waiting place": "wchan",
        }.items()
    }
)
probes(
    {
        f"{what} of process 1": opens(f"/proc/1/{name}")
        for what, name in {
            "memory": "mem",
            "maps": "maps",
            "descriptors": "fd",
            "root": "root/",
            "user namespace": "ns/user",
        }.items()
    }
)
probes(
    {
        "core filter of another process, set": opens("/proc/{pid}/coredump_filter", os.O_WRONLY),
        "references of another process, cleared": opens("/proc/{pid}/clear_refs", os.O_WRONLY),
        "scheduling group of another process, set": opens("/proc/{pid}/autogroup", os.O_WRONLY),
        "memory of the parent, by file": lambda c: os.close(
            os.open(f"/proc/{os.getppid()}/mem", os.O_RDONLY)
        ),
        "user ids of another process, by link": lambda c: os.readlink(f"/proc/{c.pid}/ns/user"),
        "root by a thread's magic link": lambda c: read("/proc/thread-self/root" + c.key),
        "working folder by a task's magic link": lambda c: read(
            f"/proc/self/task/{os.getpid()}/cwd/../{c.home_name}/id_rsa"
        ),
        "own table of user ids, written": opens("/proc/self/uid_map", os.O_WRONLY),
        "own memory, written by file": opens("/proc/self/mem", os.O_WRONLY),
        "helper for modules": opens("/proc/sys/kernel/modprobe", os.O_WRONLY),
        "name of the host, by file": opens("/proc/sys/kernel/hostname", os.O_WRONLY),
        "number of user namespaces": opens("/proc/sys/user/max_user_namespaces", os.O_WRONLY),
        "caches of the machine": opens("/proc/sys/vm/drop_caches", os.O_WRONLY),
        "handler of unknown programs": opens("/proc/sys/fs/binfmt_misc/register", os.O_WRONLY),
        "boot line of the kernel": opens("/proc/cmdline"),
        "partitions": opens("/proc/partitions"),
        "modules of the kernel": opens("/proc/modules"),
        "locks of the machine": opens("/proc/locks"),
        "keys of the user": opens("/proc/keys"),
        "load of the machine": opens("/proc/loadavg"),
        "counters of the machine": opens("/proc/stat"),
        "network cards": opens("/sys/class/net"),
        "disks": opens("/sys/block"),
        "helper for devices": opens("/sys/kernel/uevent_helper", os.O_WRONLY),
        "debugging of the kernel": opens("/sys/kernel/debug"),
        "firmware": opens("/sys/firmware"),
        "sleep of the machine": opens("/sys/power/state", os.O_WRONLY),
        "processors, switched": opens("/sys/devices/system/cpu/cpu1/online", os.O_WRONLY),
        "control groups, entered": opens("/sys/fs/cgroup/cgroup.procs", os.O_WRONLY),
    }
)


@probe("device node, left by a moved file")
def _(c: SimpleNamespace) -> None:
    write("leaves-a-node")
    whiteout = 4
    call(c, "renameat2", -100, b"leaves-a-node\0", -100, b"left-a-node\0", whiteout)
    if not stat.S_ISCHR(os.lstat("leaves-a-node").st_mode):
        raise NoEffect


# ---------------------------------------------------------------- devices

probes(
    {
        f"device {name}": opens(f"/dev/{name}", os.O_RDWR)
        for name in (
            *("fuse", "kvm", "net/tun", "loop-control", "uinput", "ptmx", "console", "userfaultfd"),
            *("mapper/control", "vhost-net", "vhost-vsock", "port", "rtc0", "vcs", "input/event0"),
            *("dri/card0", "snd/control", "hwrng", "vda1", "sda", "nvidia0", "btrfs-control", "log"),
        )
    }
)

# ---------------------------------------------------------------- descriptors


def passed_on(c: SimpleNamespace) -> object:
    """A child opens by a descriptor of a folder that it was sent."""
    ours, theirs = socket.socketpair()
    with ours, theirs, opened(c.home, os.O_PATH) as folder:
        socket.send_fds(ours, [b"x"], [folder])

        def receive() -> None:
            _, descriptors, _, _ = socket.recv_fds(theirs, 1, 1)
            os.close(os.open("id_rsa", os.O_RDONLY, dir_fd=descriptors[0]))

        return must_exit_0(in_child(receive))


def forged_credentials(c: SimpleNamespace) -> object:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        forged = struct.pack("3i", c.pid, os.getuid(), os.getgid())
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, forged)])
        _, ancillary, _, _ = theirs.recvmsg(1, 64)
        return struct.unpack("3i", ancillary[0][2])[0]


def copied_into(c: SimpleNamespace) -> object:
    with opened(c.shown) as target, opened(write("source", "y" * 9)) as source:
        return os.copy_file_range(source, target, 9)


def spliced_into(c: SimpleNamespace) -> object:
    reading, writing = os.pipe()
    os.write(writing, b"spliced")
    with opened(c.shown) as target:
        return os.splice(reading, target, 7)


def cloned_into(c: SimpleNamespace) -> object:
    with opened(c.shown) as target, opened(write("clone", "y" * 4096)) as source:
        return fcntl.ioctl(target, 0x40049409, source)


def linked_by_descriptor(c: SimpleNamespace) -> object:
    with opened(c.key, os.O_PATH) as file:
        libc("linkat", file, b"", -100, b"link-empty", 0x1000)
    return read("link-empty")


def linked_by_magic(c: SimpleNamespace) -> object:
    with opened(c.key, os.O_PATH) as file:
        libc("linkat", -100, f"/proc/self/fd/{file}".encode(), -100, b"link-magic", 0x400)
    return read("link-magic")


def nameless_linked_out(c: SimpleNamespace) -> object:
    with opened(".", os.O_TMPFILE | os.O_RDWR) as file:
        libc("linkat", -100, f"/proc/self/fd/{file}".encode(), -100, f"{c.home}/nameless".encode(), 0x400)
    os.unlink(f"{c.home}/nameless")
    return "linked"


probes(
    {
        "a folder's descriptor, passed to a child": passed_on,
        "forged credentials": forged_credentials,
        "copy into a readable descriptor": copied_into,
        "splice into a readable descriptor": spliced_into,
        "clone into a readable descriptor": cloned_into,
        "reopen by /dev/fd to write": lambda c: os.close(
            os.open(f"/dev/fd/{os.open(c.shown, os.O_RDONLY)}", os.O_WRONLY)
        ),
        "hard link by descriptor": linked_by_descriptor,
        "hard link by a magic link": linked_by_magic,
        "nameless file, linked into a home folder": nameless_linked_out,
        "hard link of a setuid program": lambda c: os.link(c.setuid, "setuid"),
        "hard link into a home folder": lambda c: both(
            lambda: os.link(write("own"), f"{c.home}/own"), lambda: os.unlink(f"{c.home}/own")
        ),
        "move a folder in": lambda c: both(
            lambda: os.rename(c.home, "home-moved"), lambda: os.rename("home-moved", c.home)
        ),
        "user faults by device": opens("/dev/userfaultfd", os.O_RDWR),
        "asynchronous requests to a file outside": lambda c: call(c, "io_uring_enter", 0, 1, 1, 0, 0, 0),
        "register files for io_uring": lambda c: call(c, "io_uring_register", 0, 2, 0, 0),
    }
)

# ---------------------------------------------------------------- races


def raced(c: SimpleNamespace, swap: Callable[[int], object], path: str) -> object:
    """Read `path` over and over while another thread swaps what it means; only a secret counts."""
    done = threading.Event()
    turn = 0

    def swapping() -> None:
        nonlocal turn
        while not done.is_set():
            with contextlib.suppress(OSError):
                swap(turn)
            turn += 1

    thread = threading.Thread(target=swapping)
    thread.start()
    refused = OSError(errno.ENOENT, "never there")
    try:
        began_s = time.monotonic()
        # On a busy machine the other thread may have to wait for its turns.
        while (lasted_s := time.monotonic() - began_s) < 0.08 or (turn < 200 and lasted_s < 5):
            try:
                if read(path).startswith(SECRET[:3]):
                    return "read a secret"
            except OSError as error:
                refused = error
    finally:
        done.set()
        thread.join()
    raise refused


@probe("race of a symlink against an open")
def _(c: SimpleNamespace) -> object:
    os.mkdir("race-a")
    write("race-a/id_rsa", "own")
    os.symlink(c.home, "race-b")
    os.symlink("race-a", "race")

    def swap(turn: int) -> None:
        os.symlink("race-b" if turn % 2 else "race-a", f"race-{turn}")
        os.rename(f"race-{turn}", "race")

    return raced(c, swap, "race/id_rsa")


@probe("race of a rename against ..")
def _(c: SimpleNamespace) -> object:
    os.makedirs("moving/one/two")
    return raced(
        c,
        lambda turn: os.rename("moving/one/two", "two") if turn % 2 else os.rename("two", "moving/one/two"),
        f"moving/one/two/../../{c.home_name}/id_rsa",
    )


@probe("race of an exchange against an open")
def _(c: SimpleNamespace) -> object:
    write("exchanged", "own")
    os.symlink(c.key, "exchanged-link")
    return raced(c, lambda _: libc("renameat2", -100, b"exchanged", -100, b"exchanged-link", 2), "exchanged")


# ---------------------------------------------------------------- who we are


def ambient(c: SimpleNamespace) -> object:
    return libc("prctl", 47, 2, 21, 0, 0)


def more_rights_by_prctl(c: SimpleNamespace) -> object:
    return changes(lambda: LIBC.prctl(39, 0, 0, 0, 0), lambda: libc("prctl", 38, 0, 0, 0, 0))


def of_siblings(act: Callable[[SimpleNamespace, int], object]) -> Callable[[SimpleNamespace], object]:
    """`act` on a process that is not below the one that acts."""

    def attempt(c: SimpleNamespace) -> object:
        sibling = os.fork()
        if sibling == 0:
            time.sleep(20)
            os._exit(0)
        try:
            return must_exit_0(in_child(lambda: act(c, sibling)))
        finally:
            os.kill(sibling, signal.SIGKILL)
            os.waitpid(sibling, 0)

    return attempt


def sibling_memory(c: SimpleNamespace, pid: int) -> object:
    mine = ctypes.create_string_buffer(8)
    vector = struct.pack("QQ", ctypes.addressof(mine), 8)
    return call(c, "process_vm_readv", pid, vector, 1, vector, 1, 0)


def sibling_descriptor(c: SimpleNamespace, pid: int) -> object:
    return call(c, "pidfd_getfd", os.pidfd_open(pid), 1, 0)


probes(
    {
        "become root": lambda c: must_exit_0(in_child(lambda: os.setuid(0))) if os.getuid() else no_effect(),
        "become root, all ids": lambda c: (
            must_exit_0(in_child(lambda: os.setresuid(0, 0, 0))) if os.getuid() else no_effect()
        ),
        "join another group": lambda c: must_exit_0(in_child(lambda: os.setgroups([c.other_uid]))),
        "another group": lambda c: must_exit_0(in_child(lambda: os.setgid(c.other_uid))),
        "ambient capability": ambient,
        "new privileges, again": more_rights_by_prctl,
        "secure bits": lambda c: libc("prctl", 28, 0, 0, 0, 0),
        "trace a sibling": of_siblings(lambda c, pid: call(c, "ptrace", 0x4206, pid, 0, 0)),
        "memory of a sibling": of_siblings(sibling_memory),
        "descriptor of a sibling": of_siblings(sibling_descriptor),
        "signal to everybody": lambda c: os.kill(-1, 0),
        "stop the parent": lambda c: os.kill(os.getppid(), signal.SIGCONT),
        "group of another process, changed": lambda c: os.setpgid(c.pid, 0),
        "session of another process": lambda c: os.getsid(c.pid),
        "group of another process": lambda c: os.getpgid(c.pid),
        "priority of another process, read": lambda c: os.getpriority(os.PRIO_PROCESS, c.pid),
        "processor time of another process": lambda c: time.clock_gettime((~c.pid) << 3 | 2),
        "processor time of everybody's children": lambda c: resource.prlimit(1, resource.RLIMIT_CPU),
        "wait for another process": lambda c: os.waitpid(c.pid, os.WNOHANG),
        "wait by pidfd": by_pidfd(lambda c, handle: os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG)),
        "advise on memory of the parent": lambda c: call(
            c, "process_madvise", os.pidfd_open(os.getppid()), struct.pack("QQ", 4096, 4096), 1, 20, 0
        ),
        "clock that wakes the machine": lambda c: os.close(libc("timerfd_create", 9, 0)),
        "alarm of the machine": lambda c: libc("timer_create", 9, None, ctypes.create_string_buffer(8)),
        "lock more memory than allowed": lambda c: both(
            lambda: libc("mlockall", 3), lambda: libc("munlockall")
        ),
        "higher hard limit": lambda c: call(
            c,
            "prlimit64",
            0,
            resource.RLIMIT_NOFILE,
            struct.pack("QQ", 64, resource.getrlimit(resource.RLIMIT_NOFILE)[1] + 1),
            0,
        ),
        "niceness below zero": lambda c: os.nice(-5),
    }
)


@probe("core dump of a child")
def _(c: SimpleNamespace) -> object:
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(
                resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_CORE)[1])
            )
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
    status = os.waitpid(child, 0)[1]
    if not os.WCOREDUMP(status):
        raise Ended(-os.WTERMSIG(status))
    return "dumped"


@probe("timer that signals another process")
def _(c: SimpleNamespace) -> object:
    event = struct.pack("=Qii", 0, signal.SIGUSR1, 4) + struct.pack("=i", c.pid).ljust(48, b"\0")
    return libc("timer_create", 1, event, ctypes.create_string_buffer(8))


# ---------------------------------------------------------------- terminals and sockets


def typed(c: SimpleNamespace) -> object:
    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):
            return fcntl.ioctl(descriptor, 0x5412, b"x")
    raise OSError(errno.ENOTTY, "no terminal")


def taken_terminal(c: SimpleNamespace) -> object:
    def take() -> None:
        os.setsid()
        fcntl.ioctl(0, 0x540E, 1)

    return must_exit_0(in_child(take))


def abstract_datagram(c: SimpleNamespace) -> object:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        return client.sendto(b"probe", "\0" + c.abstract)


def abstract_server(c: SimpleNamespace) -> object:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0own-{c.tag}")
        return server.getsockname()


def listening_pair(c: SimpleNamespace) -> object:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return call(c, "listen", ours.fileno(), 1)


def process_of_peer(c: SimpleNamespace) -> object:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        handle = int.from_bytes(ours.getsockopt(socket.SOL_SOCKET, 77, 4), "little")
        return call(c, "pidfd_getfd", handle, 0, 0)


def family(number: int, kind: int = socket.SOCK_DGRAM) -> Callable[[SimpleNamespace], object]:
    return lambda c: socket.socket(number, kind).close()


probes(
    {
        "type into a terminal": typed,
        "take a terminal": taken_terminal,
        "terminal of the host": opens("{terminal}", os.O_RDWR),
        "console in memory": opens("/dev/vcsa", os.O_RDWR),
        "abstract datagram": abstract_datagram,
        "abstract server": abstract_server,
        "listen on one of a pair": listening_pair,
        "descriptor by the process of a peer": process_of_peer,
        "bluetooth": family(31, socket.SOCK_RAW),
        "can bus": family(29, socket.SOCK_RAW),
        "express data path": family(44, socket.SOCK_RAW),
        "key management": family(15, socket.SOCK_RAW),
        "routes by netlink": family(16, socket.SOCK_RAW),
        "multipath tcp": lambda c: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).close(),
        "datagrams of a tipc cluster": family(30),
        "remote procedure sockets": family(33),
    }
)

# ---------------------------------------------------------------- mounts and namespaces, the other ways


def child_in_everything_new(c: SimpleNamespace) -> object:
    child = call(c, "clone", 0x7C020000 | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)


def parent_namespace(c: SimpleNamespace) -> object:
    with opened("/proc/self/ns/user") as own:
        return fcntl.ioctl(own, 0xB702)


def attribute_of_mount(bits: int) -> Callable[[SimpleNamespace], object]:
    wanted = struct.pack("=QQQQ", bits, 0, 0, 0)
    return lambda c: call(c, "mount_setattr", -100, b".\0", 0, wanted, len(wanted))


probes(
    {
        "copy of the mount of a home folder": lambda c: os.close(
            call(c, "open_tree", -100, c.home.encode() + b"\0", 1)
        ),
        "copy of a mount with attributes": lambda c: os.close(
            call(c, "open_tree_attr", -100, b".\0", 1, bytes(32), 32)
        ),
        "attributes of a mount": attribute_of_mount(0),
        "idmapped mount": attribute_of_mount(0x100000),
        "move a mount": lambda c: call(c, "move_mount", -100, b".\0", -100, b".\0", 0),
        "pick a mount": lambda c: os.close(call(c, "fspick", -100, b".\0", 0)),
        "configure a mount": lambda c: call(c, "fsconfig", 0, 6, 0, 0, 0),
        "finish a mount": lambda c: call(c, "fsmount", 0, 0, 0),
        "new proc": lambda c: os.close(call(c, "fsopen", b"proc\0", 0)),
        "bind mount": lambda c: call(c, "mount", b"/no-such-folder\0", b".\0", 0, 4096, 0),
        "remount to write": lambda c: call(c, "mount", 0, b"/no-such-folder\0", 0, 32, 0),
        "detach the root": lambda c: call(c, "umount2", b"/no-such-folder\0", 2),
        "time namespace": unshared(0x80),
        "control group namespace": unshared(0x02000000),
        "process namespace": unshared(0x20000000),
        "system v namespace": unshared(0x08000000),
        "name namespace": unshared(0x04000000),
        "everything new at once": child_in_everything_new,
        "parent of the user namespace": parent_namespace,
        "join the namespaces of process 1": lambda c: call(c, "setns", os.pidfd_open(1), 0x10000000),
        "root outside, entered": lambda c: must_exit_0(in_child(lambda: os.chroot(c.home))),
        "quota by descriptor": lambda c: call(c, "quotactl_fd", os.open(".", os.O_RDONLY), 0x80000100, 0, 0),
        "list queues": opens("/dev/mqueue"),
        "new posix queue": lambda c: both(
            lambda: os.close(call(c, "mq_open", f"esc-{c.tag}\0".encode(), os.O_CREAT | os.O_RDWR, 0o600, 0)),
            lambda: call(c, "mq_unlink", f"esc-{c.tag}\0".encode()),
        ),
        "read a key by number": lambda c: call(c, "keyctl", 11, -4, 0, 0, 0),
        "join a key ring": lambda c: must_exit_0(in_child(lambda: call(c, "keyctl", 1, 0, 0, 0, 0))),
        "ask for a key": lambda c: call(c, "request_key", b"user\0", b"probe\0", 0, 0),
        "host's object in shared memory": lambda c: os.stat(f"/dev/shm/{c.posix_shm}").st_size,
        "named semaphore of the host": lambda c: both(
            lambda: write(f"/dev/shm/sem.esc-{c.tag}"), lambda: os.unlink(f"/dev/shm/sem.esc-{c.tag}")
        ),
        "huge pages": lambda c: both(lambda: os.close(libc("memfd_create", b"huge", 4)), no_effect),
        "writable and executable memory of a file that may be read": lambda c: mmap.mmap(
            os.open(c.shown, os.O_RDONLY), 1, mmap.MAP_SHARED, mmap.PROT_WRITE | mmap.PROT_EXEC
        ),
    }
)

# ---------------------------------------------------------------- planted for somebody else

STARTUP = {
    "shell": ".bashrc",
    "login": ".profile",
    "key of a friend": ".ssh/authorized_keys",
    "IPython": ".ipython/profile_default/startup/00.py",
    "Jupyter": ".jupyter/jupyter_server_config.py",
    "Python of the user": f".local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/x.pth",
    "desktop": ".config/autostart/x.desktop",
    "git": ".gitconfig",
    "services of the user": ".config/systemd/user/x.service",
}


def planted_at_home(name: str) -> Callable[[SimpleNamespace], object]:
    def attempt(c: SimpleNamespace) -> str:
        os.makedirs(os.path.dirname(f"{c.home}/{name}"), exist_ok=True)
        return write_and_remove(f"{c.home}/{name}")

    return attempt


def planted_in(decoy: str, name: str, real: Callable[[], str]) -> Callable[[SimpleNamespace], object]:
    return lambda c: planted(decoy.format(**vars(c)), name, real())


probes({f"planted in a home: {what}": planted_at_home(name) for what, name in STARTUP.items()})
probes(
    {
        "planted beside packages: a .pth": planted_in("{packages}/..", "esc.pth", packages_of_the_host),
        "planted beside packages: sitecustomize": planted_in(
            "{packages}/..", "sitecustomize.py", packages_of_the_host
        ),
        "planted in the interpreter": planted_in("{library}", "esc.py", lambda: os.path.dirname(os.__file__)),
        "planted bytecode": planted_in(
            "{library}/__pycache__", "esc.pyc", lambda: os.path.dirname(os.__file__) + "/__pycache__"
        ),
        "planted beside the interpreter": planted_in("{prefix}", "esc", lambda: sys.base_prefix),
        "planted for every shell": planted_in("{every_shell}", "esc.sh", lambda: "/etc/profile.d"),
        "planted for every user": planted_in("{every_user}", "esc", lambda: "/var/spool/cron"),
        "planted kernelspec": planted_in(
            "{prefix}/share/jupyter", "esc", lambda: f"{sys.base_prefix}/share/jupyter"
        ),
    }
)

# ---------------------------------------------------------------- files of the workspace that the host runs


def through(path: str) -> Callable[[SimpleNamespace], object]:
    return lambda c: write(path.format(**vars(c)), "changed")


def through_the_alias(c: SimpleNamespace) -> object:
    """By the name that the workspace has inside; where it has none, that name may be somebody else's."""
    with opened("/workspace/inner/conftest.py", os.O_WRONLY) as file:
        if not os.path.samestat(os.fstat(file), os.stat("inner/conftest.py")):
            raise FileNotFoundError(errno.ENOENT, "another file of that name")
        return os.write(file, b"changed")


def replaced(path: str) -> Callable[[SimpleNamespace], object]:
    return lambda c: os.replace(write("replacement", "changed"), path)


def mapped(path: str) -> Callable[[SimpleNamespace], object]:
    def attempt(c: SimpleNamespace) -> None:
        with opened(path, os.O_RDWR) as file:
            mmap.mmap(file, 1).close()

    return attempt


def made_anew(folder: str) -> Callable[[SimpleNamespace], object]:
    def attempt(c: SimpleNamespace) -> None:
        os.rename(folder, f"{folder}-away")
        os.rename(f"{folder}-away", folder)

    return attempt


def by_hard_link(path: str) -> Callable[[SimpleNamespace], object]:
    def attempt(c: SimpleNamespace) -> object:
        os.link(path, "other-name")
        return write("other-name", "changed")

    return attempt


def by_link(path: str) -> Callable[[SimpleNamespace], object]:
    def attempt(c: SimpleNamespace) -> object:
        os.symlink(path, f"link-{os.path.basename(path)}")
        return write(f"link-{os.path.basename(path)}", "changed")

    return attempt


probes(
    {
        "protected: change a git hook": through(".git/hooks/pre-commit"),
        "protected: add a git hook": lambda c: write_and_remove(".git/hooks/post-commit"),
        "protected: replace a git hook": replaced(".git/hooks/pre-commit"),
        "protected: folder of git hooks, moved": made_anew(".git/hooks"),
        "protected: folder above the git hooks, moved": made_anew(".git"),
        "protected: change conftest.py": through("inner/conftest.py"),
        "protected: replace conftest.py": replaced("inner/conftest.py"),
        "protected: folder of conftest.py, moved": made_anew("inner"),
        "protected: map conftest.py": mapped("inner/conftest.py"),
        "protected: truncate conftest.py": lambda c: os.truncate("inner/conftest.py", 0),
        "protected: conftest.py by its full path": through("{workspace}/inner/conftest.py"),
        "protected: conftest.py by the alias": through_the_alias,
        "protected: conftest.py by a hard link": by_hard_link("inner/conftest.py"),
        "protected: conftest.py by a symlink": by_link("inner/conftest.py"),
        "protected: mode of conftest.py": lambda c: changes(
            lambda: os.stat("inner/conftest.py").st_mode, lambda: os.chmod("inner/conftest.py", 0o777)
        ),
        "protected: change a .pth": through("start.pth"),
        "protected: change the policy": through(".aisotools.toml"),
        "protected: remove the policy": lambda c: os.unlink(".aisotools.toml"),
        "new: conftest.py": lambda c: write("conftest.py"),
        "new: sitecustomize.py": lambda c: write("sitecustomize.py"),
        "new: a notebook": lambda c: write("new.ipynb", "{}"),
    }
)


def source_of_all() -> str:
    """All attempts as one program, which defines `run_probes`."""
    here = Path(__file__)
    before, _, rest = here.read_text("utf-8").partition("\n# here only\n")
    imports = before.partition("import annotations\n")[2]
    ours = rest.partition("\n# from here on\n")[2].partition("\n\ndef source_of_all")[0]
    return "\n".join([here.with_name("escape_probes.py").read_text("utf-8"), imports, ours])


NEW = tuple(name for name in PROBES if PROBES[name].__module__ == __name__)
"""Names of those that this file adds."""
