"""What a tool that says it only reads might try all the same, each with a control that works.

Run as a program by tests, as the user to try it as: `python -m tests.sandbox.reader_attacks HOW LEVEL MODE
FOLDER` prints as JSON what each attempt achieved. HOW is `together`, where each attempt is made by a child of
one reader, or `apart`, where each has a reader of its own, which takes ten times as long. With the arguments
`outside FOLDER` it prints which of those work without a sandbox that no worker may make.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from aisotools.core.protocols import ToolContext
from aisotools.core.types import Effect, ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.policy.rules import Policy
from aisotools.session.session import Session
from aisotools.tools.function import FunctionTool, tool
from tests.sandbox.alone import in_one_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attempt. All code runs in one namespace; `d` is a folder of its own, `f` a file that holds `old`.

    Attributes:
        attempt: Code that a tool runs.
        prepare: Code that the worker has run before, in a call that may change things.
        damage: An expression, evaluated in the worker afterwards, that is true if the attempt has worked.
        control: Where it must work: in a tool that declares a local change, or only outside any sandbox,
            because no worker may do it either, or may have what it takes.
        level: The only level at which the control works; empty for all.
        on_host: Evaluate `damage` outside the sandbox, where what a file has is seen as it is.
        ends_worker: The worker does not outlive the control.
    """

    attempt: str
    prepare: str = ""
    damage: str = "open(f).read() != 'old'"
    control: Literal["worker", "outside"] = "worker"
    level: str = ""
    on_host: bool = False
    ends_worker: bool = False


_OPEN = "h = open(f, 'r+b', buffering=0); fd = h.fileno()"
_MEMORY_FILE = "fd = os.memfd_create('x', os.MFD_ALLOW_SEALING); os.write(fd, b'old'); m = mmap.mmap(fd, 3)"
_FLAGS = """
import fcntl, struct
NODUMP = 0x40
def get_flags(fd):
    return struct.unpack('l', fcntl.ioctl(fd, 0x80086601, bytes(8)))[0]
def set_flags(fd, flags):
    fcntl.ioctl(fd, 0x40086602, struct.pack('l', get_flags(fd) | flags))
"""
_HITS = "hits = []; signal.signal(signal.SIGUSR1, lambda *_: hits.append(1)); pid = os.getpid()"
_BUFFER = (
    "buffer = ctypes.create_string_buffer(b'old'); address = ctypes.addressof(buffer); pid = os.getpid()"
)
_PAIR = "a, b = socket.socketpair(); b.setblocking(False)"
_FORKED = """
child = os.fork()
if not child:
    try:
        open(f, 'w').write('new')
    finally:
        os._exit(0)
os.waitpid(child, 0)
"""
_DAEMON = """
reading, writing = os.pipe()
if not os.fork():
    os.setsid()
    if not os.fork():
        try:
            open(f, 'w').write('new')
        finally:
            os._exit(0)
    os._exit(0)
os.close(writing)
os.read(reading, 1)
"""
_VECTOR = """
class Vector(ctypes.Structure):
    _fields_ = (('base', ctypes.c_void_p), ('size', ctypes.c_size_t))
mine = ctypes.create_string_buffer(b'new')
here, there = Vector(ctypes.addressof(mine), 3), Vector(address, 3)
assert libc.process_vm_writev(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == 3
"""

ATTACKS: dict[str, Attack] = {
    # files, by path
    "overwrite": Attack(attempt="open(f, 'w').write('new')"),
    "create": Attack(attempt="open(d + '/new', 'w')", damage="os.path.exists(d + '/new')"),
    "append": Attack(attempt="open(f, 'a').write('new')"),
    "truncate": Attack(attempt="os.truncate(f, 1)"),
    "truncate by opening": Attack(attempt="os.open(f, os.O_RDONLY | os.O_TRUNC)"),
    "rename": Attack(attempt="os.rename(f, d + '/g')", damage="not os.path.exists(f)"),
    "replace": Attack(attempt="os.replace(d + '/g', f)", prepare="open(d + '/g', 'w').write('new')"),
    "unlink": Attack(attempt="os.unlink(f)", damage="not os.path.exists(f)"),
    "mkdir": Attack(attempt="os.mkdir(d + '/x')", damage="os.path.exists(d + '/x')"),
    "rmdir": Attack(
        attempt="os.rmdir(d + '/x')", prepare="os.mkdir(d + '/x')", damage="not os.path.exists(d + '/x')"
    ),
    "symlink": Attack(attempt="os.symlink('f', d + '/x')", damage="os.path.lexists(d + '/x')"),
    "hard link": Attack(attempt="os.link(f, d + '/x')", damage="os.path.exists(d + '/x')"),
    "mknod": Attack(attempt="os.mkfifo(d + '/x')", damage="os.path.exists(d + '/x')"),
    "scratch folder": Attack(
        attempt="open(os.environ['TMPDIR'] + '/x' + d, 'w')",
        damage="os.path.exists(os.environ['TMPDIR'] + '/x' + d)",
    ),
    "home folder": Attack(
        attempt="open(os.environ['HOME'] + '/x' + d, 'w')",
        damage="os.path.exists(os.environ['HOME'] + '/x' + d)",
    ),
    "chmod": Attack(
        attempt="os.chmod(f, 0o400)", damage="os.stat(f).st_mode & 0o777 == 0o400", control="outside"
    ),
    "utime": Attack(attempt="os.utime(f, (1, 1))", damage="os.stat(f).st_mtime == 1", control="outside"),
    "chmod by descriptor": Attack(
        prepare="fd = os.open(f, os.O_RDONLY)",
        attempt="os.fchmod(fd, 0o400)",
        damage="os.stat(f).st_mode & 0o777 == 0o400",
        control="outside",
    ),
    "utime by descriptor": Attack(
        prepare=_OPEN, attempt="os.utime(fd, (1, 1))", damage="os.stat(f).st_mtime == 1", control="outside"
    ),
    "chown": Attack(
        # To oneself, which anybody may do: the time of the change shows it.
        prepare="changed = os.stat(f).st_ctime_ns; import time; time.sleep(0.02)",
        attempt="os.chown(f, os.getuid(), os.getgid())",
        damage="os.stat(f).st_ctime_ns != changed",
        control="outside",
    ),
    "extended attribute": Attack(
        attempt="os.setxattr(f, 'user.x', b'new')",
        damage="'user.x' in os.listxattr(f)",
        control="outside",
        on_host=True,
    ),
    "extended attribute by descriptor": Attack(
        prepare=_OPEN,
        attempt="os.setxattr(fd, 'user.x', b'new')",
        damage="'user.x' in os.listxattr(f)",
        control="outside",
        on_host=True,
    ),
    "flags of a file": Attack(
        prepare=_FLAGS,
        attempt="set_flags(os.open(f, os.O_RDONLY), NODUMP)",
        damage="get_flags(os.open(f, os.O_RDONLY)) & NODUMP != 0",
        control="outside",
        on_host=True,
    ),
    "exchange": Attack(
        prepare="open(d + '/g', 'w').write('new')",
        attempt="assert not libc.renameat2(-100, f.encode(), -100, (d + '/g').encode(), 2)",
    ),
    "rename of a folder": Attack(
        prepare="os.mkdir(d + '/x')",
        attempt="os.rename(d + '/x', d + '/y')",
        damage="os.path.exists(d + '/y')",
    ),
    "nameless file, named": Attack(
        attempt="fd = os.open(d, os.O_TMPFILE | os.O_WRONLY); nameless = f'/proc/self/fd/{fd}'.encode()\n"
        "assert not libc.linkat(-100, nameless, -100, (d + '/x').encode(), 0x400)",
        damage="os.path.exists(d + '/x')",
    ),
    "socket by path": Attack(
        attempt="socket.socket(socket.AF_UNIX).bind(d + '/x')",
        damage="os.path.exists(d + '/x')",
        control="outside",
    ),
    # files, by what the worker has open
    "inherited descriptor": Attack(prepare=_OPEN, attempt="os.write(fd, b'new')"),
    "inherited file object": Attack(
        prepare="h = open(f, 'w'); h.write('old'); h.flush()", attempt="h.write('new'); h.flush()"
    ),
    "inherited descriptor of a high number": Attack(
        prepare="import resource; highest = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1\n"
        "fd = os.dup2(os.open(f, os.O_WRONLY), highest)",
        attempt="os.write(fd, b'new')",
    ),
    "inherited descriptor, duplicated": Attack(prepare=_OPEN, attempt="os.write(os.dup(fd), b'new')"),
    "inherited descriptor, opened again": Attack(
        prepare=_OPEN, attempt="os.write(os.open(f'/proc/self/fd/{fd}', os.O_RDWR), b'new')"
    ),
    "inherited descriptor, truncated": Attack(prepare=_OPEN, attempt="os.ftruncate(fd, 1)"),
    "inherited descriptor, allocated": Attack(
        prepare=_OPEN, attempt="os.posix_fallocate(fd, 0, 100)", damage="os.stat(f).st_size == 100"
    ),
    "inherited descriptor, sent to": Attack(
        prepare=_OPEN + "; open(d + '/g', 'w').write('new')",
        attempt="os.sendfile(fd, os.open(d + '/g', os.O_RDONLY), 0, 3)",
    ),
    "inherited descriptor, copied to": Attack(
        prepare=_OPEN + "; open(d + '/g', 'w').write('new')",
        attempt="os.copy_file_range(os.open(d + '/g', os.O_RDONLY), fd, 3)",
    ),
    "inherited descriptor of a removed file": Attack(
        prepare="h = open(d + '/g', 'w+b', buffering=0); h.write(b'old'); os.unlink(d + '/g')",
        attempt="os.pwrite(h.fileno(), b'new', 0)",
        damage="os.pread(h.fileno(), 3, 0) != b'old'",
    ),
    "place in an inherited file": Attack(
        prepare="h = open(f, 'rb', buffering=0)", attempt="h.read(2)", damage="h.tell() != 0"
    ),
    "place in an inherited folder": Attack(
        prepare="fd = os.open(d, os.O_RDONLY)",
        attempt="assert libc.getdents64(fd, ctypes.create_string_buffer(4096), 4096) > 0",
        damage="os.lseek(fd, 0, os.SEEK_CUR) != 0",
    ),
    "lock of an inherited file": Attack(
        prepare=_OPEN + "; import fcntl; fcntl.flock(fd, fcntl.LOCK_EX)",
        attempt="fcntl.flock(fd, fcntl.LOCK_UN)",
        damage="can_read(lambda: fcntl.flock(os.open(f, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB))",
    ),
    "mode of an inherited pipe": Attack(
        prepare="r, w = os.pipe()", attempt="os.set_blocking(r, False)", damage="not os.get_blocking(r)"
    ),
    "folder, by descriptor": Attack(
        prepare="fd = os.open(d, os.O_RDONLY)",
        attempt="os.unlink('f', dir_fd=fd)",
        damage="not os.path.exists(f)",
    ),
    "folder, by path descriptor": Attack(
        prepare="fd = os.open(d, os.O_PATH)",
        attempt="os.mkdir('x', dir_fd=fd)",
        damage="os.path.exists(d + '/x')",
    ),
    "map of a file": Attack(prepare=_OPEN + "; m = mmap.mmap(fd, 3)", attempt="m[:] = b'new'; m.flush()"),
    "map of a file, made writable": Attack(
        prepare=_OPEN + "; m = mmap.mmap(fd, 3, prot=mmap.PROT_READ); address = libc.address_of(m)",
        attempt="assert not libc.mprotect(address, 4096, 3); ctypes.memmove(address, b'new', 3)",
    ),
    "new map of an inherited descriptor": Attack(prepare=_OPEN, attempt="mmap.mmap(fd, 3)[:] = b'new'"),
    "open database": Attack(
        prepare="import sqlite3; db = sqlite3.connect(d + '/db'); _ = db.execute('create table t (x)')",
        attempt="db.execute('insert into t values (1)'); db.commit()",
        damage="sqlite3.connect(d + '/db').execute('select count(*) from t').fetchone()[0] != 0",
    ),
    # somebody who has the right
    "shared memory": Attack(prepare="m = mmap.mmap(-1, 4096)", attempt="m[0] = 1", damage="m[0] != 0"),
    "memory file": Attack(
        prepare=_MEMORY_FILE,
        attempt="os.pwrite(fd, b'new', 0)",
        damage="os.pread(fd, 3, 0) != b'old'",
        control="outside",
    ),
    "memory file, mapped": Attack(
        prepare=_MEMORY_FILE, attempt="m[:] = b'new'", damage="m[:] != b'old'", control="outside"
    ),
    "memory file, opened again": Attack(
        prepare=_MEMORY_FILE,
        attempt="os.write(os.open(f'/proc/self/fd/{fd}', os.O_RDWR), b'new')",
        damage="os.pread(fd, 3, 0) != b'old'",
        control="outside",
    ),
    "memory file, mapped again": Attack(
        prepare=_MEMORY_FILE,
        attempt="mmap.mmap(fd, 3)[:] = b'new'",
        damage="m[:] != b'old'",
        control="outside",
    ),
    "memory file, sealed": Attack(
        prepare=_MEMORY_FILE,
        attempt="import fcntl; fcntl.fcntl(fd, 1033, 2)",
        damage="__import__('fcntl').fcntl(fd, 1034) != 0",
        control="outside",
    ),
    "number of multiprocessing": Attack(
        prepare="from multiprocessing import sharedctypes; n = sharedctypes.RawValue('i', 0)",
        attempt="n.value = 1",
        damage="n.value != 0",
        level="isolated",
    ),
    "shared memory of multiprocessing": Attack(
        prepare="from multiprocessing import shared_memory\n"
        "m = shared_memory.SharedMemory(create=True, size=9)",
        attempt="again = shared_memory.SharedMemory(m.name); again.buf[0] = 1",
        damage="m.buf[0] != 0",
        level="isolated",
    ),
    "semaphore of multiprocessing": Attack(
        prepare="import multiprocessing; lock = multiprocessing.Lock()",
        attempt="assert lock.acquire(block=False)",
        damage="not lock.acquire(block=False)",
        level="isolated",
    ),
    "memory of System V": Attack(
        prepare="number = libc.shmget(0, 4096, 0o600)\nlibc.shmat.restype = ctypes.c_void_p\n"
        "address = libc.shmat(number, None, 0) if number >= 0 else ctypes.c_void_p(-1).value",
        attempt="again = libc.shmat(number, None, 0)\nassert again != ctypes.c_void_p(-1).value\n"
        "ctypes.memmove(again, b'new', 3)",
        damage="(address != ctypes.c_void_p(-1).value and ctypes.string_at(address, 3) == b'new', "
        "libc.shmctl(number, 0, None))[0]",
        control="outside",
    ),
    "semaphore of System V": Attack(
        prepare="number = libc.semget(0, 1, 0o600)",
        attempt="assert not libc.semctl(number, 0, 16, 7)",
        damage="(libc.semctl(number, 0, 12) == 7, libc.semctl(number, 0, 0))[0]",
        control="outside",
    ),
    "queue of System V": Attack(
        prepare="number = libc.msgget(0, 0o600)",
        attempt="assert not libc.msgsnd(number, ctypes.create_string_buffer(b'\\1' + bytes(15)), 8, 0o4000)",
        damage="(libc.msgrcv(number, ctypes.create_string_buffer(32), 8, 0, 0o4000) == 8, "
        "libc.msgctl(number, 0, None))[0]",
        control="outside",
    ),
    "queue of POSIX": Attack(
        prepare="queue = ctypes.CDLL('librt.so.1', use_errno=True); name = f'/x{os.getpid()}{d}'.encode()\n"
        "attributes = (ctypes.c_long * 8)(0, 1, 16)\n"
        "number = queue.mq_open(name, os.O_CREAT | os.O_RDWR | os.O_NONBLOCK, 0o600, attributes)\n"
        # A queue with a name outlives its process, and each user has room for few: leave none behind.
        "queue.mq_unlink(name)",
        attempt="assert not queue.mq_send(number, b'x', 1, 0)",
        damage="queue.mq_receive(number, ctypes.create_string_buffer(9000), 9000, None) == 1",
        control="outside",
    ),
    "key": Attack(
        attempt="call('add_key', b'user', b'x' + d.encode(), b'new', 3, -4)",
        damage="can_read(lambda: call('keyctl', 10, -4, b'user', b'x' + d.encode(), 0), OSError)",
        control="outside",
        on_host=True,
    ),
    "terminal": Attack(
        prepare="import pty, tty\ntry:\n    master, slave = os.openpty(); tty.setraw(slave)\n"
        "    os.set_blocking(slave, False)\nexcept OSError:\n    master = slave = os.open('/dev/null', 0)",
        attempt="os.write(master, b'x')",
        damage="can_read(lambda: os.read(slave, 1) or os.read(-1, 1), OSError)",
        control="outside",
    ),
    "named pipe": Attack(
        prepare="os.mkfifo(d + '/p'); r = os.open(d + '/p', os.O_RDWR | os.O_NONBLOCK)",
        attempt="os.write(os.open(d + '/p', os.O_WRONLY | os.O_NONBLOCK), b'x')",
        damage="can_read(lambda: os.read(r, 1))",
    ),
    "thread that waits for a variable": Attack(
        prepare="go = threading.Event()\n"
        "t = threading.Thread(target=lambda: go.wait(60) and open(f, 'w').write('new')); t.start()",
        attempt="go.set()",
        damage="(was := go.is_set(), go.set(), t.join(), was)[-1]",
    ),
    "thread that waits for a function": Attack(
        prepare="def job(): return 'old'\n",
        attempt="globals()['job'] = lambda: 'new'",
        damage="job() == 'new'",
    ),
    "pool": Attack(
        prepare="import concurrent.futures; pool = concurrent.futures.ThreadPoolExecutor(1)\n"
        "pool.submit(int).result()",
        attempt="pool.submit(lambda: open(f, 'w').write('new')).result()",
        damage="(pool.shutdown(), open(f).read() != 'old')[-1]",
    ),
    "watch of the worker": Attack(
        prepare="i = libc.inotify_init1(0o4000); assert i >= 0",
        attempt="assert libc.inotify_add_watch(i, d.encode(), 0x100) >= 0",
        damage="(open(d + '/n', 'w').close(), can_read(lambda: os.read(i, 900)))[-1]",
        control="outside",
    ),
    "poll of the worker": Attack(
        prepare="import select; r, w = os.pipe(); e = select.epoll(); e.register(r, select.EPOLLIN)",
        attempt="e.unregister(r)",
        damage="(os.write(w, b'x'), e.poll(0) == [])[-1]",
    ),
    "server at a path": Attack(
        prepare="s = socket.socket(socket.AF_UNIX); s.bind(d + '/s'); s.listen(); s.setblocking(False)",
        attempt="socket.socket(socket.AF_UNIX).connect(d + '/s')",
        damage="can_read(s.accept)",
        control="outside",
    ),
    "server without a path": Attack(
        prepare="s = socket.socket(socket.AF_UNIX); s.bind('\\0' + d); s.listen(); s.setblocking(False)",
        attempt="socket.socket(socket.AF_UNIX).connect('\\0' + d)",
        damage="can_read(s.accept)",
        control="outside",
    ),
    "shell behind a pipe": Attack(
        prepare="p = subprocess.Popen(['sh'], stdin=subprocess.PIPE, bufsize=0)",
        attempt="os.write(p.stdin.fileno(), f'echo new > {f}\\n'.encode())",
        damage="(p.stdin.write(b'exit\\n'), p.wait(), open(f).read() != 'old')[-1]",
    ),
    "thread behind a pipe": Attack(
        prepare="r, w = os.pipe(); os.set_blocking(r, False)",
        attempt="os.write(w, b'x')",
        damage="can_read(lambda: os.read(r, 1))",
    ),
    "pipe, opened again": Attack(
        prepare="r, w = os.pipe(); os.set_blocking(r, False)",
        attempt="os.write(os.open(f'/proc/self/fd/{r}', os.O_WRONLY), b'x')",
        damage="can_read(lambda: os.read(r, 1))",
    ),
    "thread behind a socket": Attack(
        prepare=_PAIR, attempt="a.send(b'x')", damage="can_read(lambda: b.recv(1))"
    ),
    "descriptor over a socket": Attack(
        prepare=_PAIR,
        attempt="socket.send_fds(a, [b'x'], [os.open('.', os.O_RDONLY)])",
        damage="can_read(lambda: b.recv(1))",
    ),
    "event counter": Attack(
        prepare="e = os.eventfd(0, os.EFD_NONBLOCK) if hasattr(os, 'eventfd') else libc.eventfd(0, 2048)",
        attempt="os.write(e, (1).to_bytes(8, sys.byteorder))",
        damage="can_read(lambda: os.read(e, 8))",
    ),
    "server on the loopback": Attack(
        prepare="s = socket.create_server(('127.0.0.1', 0)); s.setblocking(False); port = s.getsockname()[1]",
        attempt="socket.create_connection(('127.0.0.1', port)).send(b'x')",
        damage="can_read(s.accept)",
        level="isolated",
    ),
    "datagrams on the loopback": Attack(
        prepare="s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)); s.setblocking(0)",
        attempt="socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', s.getsockname())",
        damage="can_read(lambda: s.recv(1))",
        level="isolated",
    ),
    "named shared memory": Attack(
        attempt="open('/dev/shm/x' + d, 'w')", damage="os.path.exists('/dev/shm/x' + d)", level="isolated"
    ),
    "signal": Attack(prepare=_HITS, attempt="os.kill(pid, signal.SIGUSR1)", damage="bool(hits)"),
    "signal to the group": Attack(
        prepare=_HITS, attempt="os.killpg(pid, signal.SIGUSR1)", damage="bool(hits)"
    ),
    "signal to a thread": Attack(
        prepare=_HITS, attempt="assert not libc.tgkill(pid, pid, signal.SIGUSR1)", damage="bool(hits)"
    ),
    "signal by pidfd": Attack(
        prepare=_HITS,
        attempt="signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGUSR1)",
        damage="bool(hits)",
    ),
    "signal by a descriptor's owner": Attack(
        prepare=_HITS + "; import fcntl",
        attempt="r, w = os.pipe(); fcntl.fcntl(r, 8, pid); fcntl.fcntl(r, 10, signal.SIGUSR1)\n"
        "fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK); os.write(w, b'x')",
        damage="bool(hits)",
        control="outside",
    ),
    "signal by an inherited descriptor of a process": Attack(
        prepare="p = subprocess.Popen(['sleep', '600']); pidfd = os.pidfd_open(p.pid)",
        attempt="signal.pidfd_send_signal(pidfd, signal.SIGKILL)",
        damage="ended(p)",
    ),
    "end of a program of the worker": Attack(
        prepare="p = subprocess.Popen(['sleep', '600'])", attempt="p.kill()", damage="ended(p)"
    ),
    "end of the worker": Attack(
        prepare="pid = os.getpid()",
        attempt="os.kill(pid, signal.SIGKILL)",
        damage="os.getpid() != pid",
        ends_worker=True,
    ),
    "priority of the worker": Attack(
        prepare="pid = os.getpid(); was = os.getpriority(os.PRIO_PROCESS, pid)",
        attempt="os.setpriority(os.PRIO_PROCESS, pid, was + 1)",
        damage="os.getpriority(os.PRIO_PROCESS, pid) != was",
        control="outside",
    ),
    "processors of the worker": Attack(
        prepare="pid = os.getpid(); was = os.sched_getaffinity(pid)",
        attempt="os.sched_setaffinity(pid, {min(was)})",
        damage="os.sched_getaffinity(pid) != was",
        control="outside",
    ),
    "scheduling of the worker": Attack(
        prepare="pid = os.getpid(); was = os.sched_getscheduler(pid)",
        attempt="os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))",
        damage="os.sched_getscheduler(pid) != was",
        control="outside",
    ),
    "priority of the worker's files": Attack(
        prepare="pid = os.getpid(); was = call('ioprio_get', 1, pid)",
        attempt="call('ioprio_set', 1, pid, 3 << 13)",
        damage="call('ioprio_get', 1, pid) != was",
        control="outside",
    ),
    "score of the worker when memory runs out": Attack(
        prepare="pid = os.getpid(); was = open('/proc/self/oom_score_adj').read()",
        attempt="open(f'/proc/{pid}/oom_score_adj', 'w').write('999')",
        damage="open('/proc/self/oom_score_adj').read() != was",
        control="outside",
    ),
    "trace of the worker": Attack(
        prepare="pid = os.getpid()",
        attempt="assert not libc.ptrace(0x4206, pid, None, None)",
        damage="attempted",
        control="outside",
    ),
    "descriptor of the worker": Attack(
        prepare=_OPEN + "; pid = os.getpid()",
        attempt="os.write(call('pidfd_getfd', os.pidfd_open(pid), fd, 0), b'new')",
        control="outside",
    ),
    "memory of the worker, by file": Attack(
        prepare=_BUFFER,
        attempt="mem = open(f'/proc/{pid}/mem', 'r+b', buffering=0); mem.seek(address); mem.write(b'new')",
        damage="buffer.value != b'old'",
        control="outside",
    ),
    "memory of the worker": Attack(
        prepare=_BUFFER, attempt=_VECTOR, damage="buffer.value != b'old'", control="outside"
    ),
    "descriptor of the worker, by file": Attack(
        prepare=_OPEN + "; pid = os.getpid()",
        attempt="os.write(os.open(f'/proc/{pid}/fd/{fd}', os.O_WRONLY), b'new')",
    ),
    "limits of the worker": Attack(
        prepare="import resource; pid = os.getpid(); was = resource.getrlimit(resource.RLIMIT_NOFILE)",
        attempt="resource.prlimit(pid, resource.RLIMIT_NOFILE, (300, was[1]))",
        damage="resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300 "
        "and not resource.setrlimit(resource.RLIMIT_NOFILE, was)",
        control="outside",
    ),
    # others than the thread that was restricted
    "thread": Attack(
        attempt="t = threading.Thread(target=lambda: open(f, 'w').write('new')); t.start(); t.join()"
    ),
    "fork": Attack(attempt=_FORKED),
    "daemon": Attack(attempt=_DAEMON),
    "program": Attack(attempt="subprocess.run(['sh', '-c', f'echo new > {f}'])"),
    "IPython": Attack(attempt='get_ipython().run_cell(f\'open({f!r}, "w").write("new")\')'),
    "mount": Attack(
        attempt="assert not (libc.unshare(0x20000) and libc.unshare(0x10020000))\n"
        "assert not libc.mount(b'none', d.encode(), b'tmpfs', 0, None)",
        damage="attempted",
        control="outside",
    ),
    "mount by descriptor": Attack(
        attempt="assert not (libc.unshare(0x20000) and libc.unshare(0x10020000))\n"
        "call('open_tree', -100, d.encode(), 1)",
        damage="attempted",
        control="outside",
    ),
    "io_uring": Attack(
        attempt="call('io_uring_setup', 1, ctypes.create_string_buffer(120))",
        damage="attempted",
        control="outside",
    ),
    "variables": Attack(
        prepare="x = [1]",
        attempt="x.append(2); get_ipython().user_ns['f'] = 'none'",
        damage="x == [1, 2]",
    ),
}

PRELUDE = """
import ctypes, errno, mmap, os, signal, socket, subprocess, sys, threading
from aisotools.sandbox.confinement.syscalls import call
class Library(ctypes.CDLL):
    def __init__(self):
        super().__init__(None, use_errno=True)
        self.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self.process_vm_writev.argtypes = (
            ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)
    def address_of(self, view):
        class Buffer(ctypes.Structure):
            _fields_ = [('start', ctypes.c_void_p), ('object', ctypes.py_object)] + [
                (name, ctypes.c_ssize_t)
                for name in ('length', 'itemsize', 'more1', 'more2', 'more3', 'more4', 'more5', 'more6')]
        found = Buffer()
        get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
        get.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
        assert not get(view, ctypes.byref(found), 0)
        return found.start
libc = Library()
def can_read(read, error=BlockingIOError):
    try:
        read()
    except error:
        return False
    return True
def ended(program):
    was_running = program.poll() is None
    program.kill()
    return not was_running or program.wait() != -signal.SIGKILL
"""

_TOGETHER = """
import json
common, spaces = {'__name__': '__main__', 'get_ipython': get_ipython}, {}
exec(prelude, common)
def words_of(action):
    try:
        action()
    except BaseException as error:
        return f'{type(error).__name__}: {error}'[-300:]
    return ''
def words_in_child(action):
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            os.write(writing, b'.' + words_of(action).encode(errors='replace'))
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    try:
        answer = os.read(reading, 9000).decode()
    except BlockingIOError:
        return f'it ended with status {status}'
    finally:
        os.close(reading), os.close(writing)
    return answer[1:]
def prepare(jobs):
    spaces.update((number, dict(common)) for number in jobs)
    return {number: words_of(lambda: exec(code, spaces[number])) for number, code in jobs.items()}
def attempt(jobs):
    return {number: words_of(lambda: exec(code, spaces[number])) for number, code in jobs.items()}
def attempt_apart(jobs):
    return {number: words_in_child(lambda: exec(code, spaces[number])) for number, code in jobs.items()}
def damage(jobs, attempted):
    found = {}
    for number, code in jobs.items():
        spaces[number]['attempted'] = number in attempted
        def evaluate():
            found[number] = bool(eval(code, spaces[number]))
        if words := words_of(evaluate):
            found[number] = words
    return found
"""


@tool(effect=Effect.READ_ONLY)
def attempt_reading(code: str, context: ToolContext) -> str:
    """Run code, and say that it only reads. Return what it leaves in `answer`."""
    space = context.metadata_get("shell").user_ns
    exec(code, space)
    return str(space.get("answer", "done"))


@tool(effect=Effect.READ_ONLY)
async def attempt_reading_async(code: str, context: ToolContext) -> str:
    """Run code, say that it only reads, and take turns with others. Return what it leaves in `answer`."""
    await asyncio.sleep(0)
    space = context.metadata_get("shell").user_ns
    exec(code, space)
    return str(space.get("answer", "done"))


@tool(effect=Effect.LOCAL_MUTATION)
def attempt_changing(code: str, context: ToolContext) -> str:
    """Run code, and say that it changes things. Return what it leaves in `answer`."""
    space = context.metadata_get("shell").user_ns
    exec(code, space)
    return str(space.get("answer", "done"))


def preparation(attack: Attack, number: int) -> str:
    """The code that prepares an attempt, in a folder of its own."""
    folder = f"d = 'a{number}'; f = d + '/f'; os.mkdir(d); _ = open(f, 'w').write('old')"
    return f"{folder}\n{attack.prepare}\n"


def attacks_at(level: str) -> dict[str, Attack]:
    """The attempts that make sense at a level."""
    return {name: attack for name, attack in ATTACKS.items() if attack.level in {"", level}}


@contextlib.asynccontextmanager
async def _session(level: str, folder: Path) -> AsyncIterator[Session]:
    environ = {"HOME": str(folder / "home"), "XDG_STATE_HOME": str(folder / "state")}
    async with Session(folder / "workspace", environ=environ, approver=AllowAll(), level=level) as session:
        for one in (attempt_reading, attempt_reading_async, attempt_changing):
            session.registry.register(one)
        yield session


async def run_apart(level: str, mode: Any, folder: Path) -> dict[str, dict[str, Any]]:
    """Try everything in a session, each attempt in a reader of its own.

    Returns:
        For each attempt whether it worked in the `reading` tools and in the `changing` one, the last words of
        all `results`, and whether it was `tried` in all reading ones.
    """
    found: dict[str, dict[str, Any]] = {}
    async with _session(level, folder) as session:
        await _python(session, PRELUDE)
        for number, (name, attack) in enumerate(attacks_at(level).items()):
            results: list[str] = []
            tried: list[bool] = []
            for what, own, tools in (
                ("reading", 2 * number, (attempt_reading, attempt_reading_async)),
                ("changing", 2 * number + 1, (attempt_changing,)),
            ):
                found.setdefault(name, {})[what] = await _run_one(
                    session, attack, own, *tools, folder=folder, mode=mode, results=results, tried=tried
                )
            found[name] |= {"results": results, "tried": all(tried)}
    return found


async def _python(session: Session, code: str) -> ToolResult:
    session.policy = Policy(mode="auto")
    return await session.call("python", {"code": code})


async def _run_one(
    session: Session,
    attack: Attack,
    number: int,
    *tools: FunctionTool[..., Any],
    folder: Path,
    mode: Any,
    results: list[str],
    tried: list[bool],
) -> Any:
    """Return whether it worked; in words if that is not known."""
    prepared = await _python(session, preparation(attack, number))
    results.append(prepared.content[-300:])
    if prepared.is_error:
        # That the code is right is shown outside, where the control must work.
        return False if attack.control == "outside" else prepared.content
    attempted = False
    for one in tools:
        session.policy = Policy(mode="auto" if one is attempt_changing else mode)
        result = await session.call(one.name, {"code": attack.attempt}, origin="model")
        results.append(result.content[-300:])
        # Neither refused as a whole by the policy, nor for want of a reader.
        refused = result.is_error and result.error_kind in {"denied", "environment"}
        tried.append(one is attempt_changing or not refused)
        attempted = attempted or not result.is_error
    if attack.on_host:
        return _damage_on_host(attack, folder / "workspace", number)
    damage = await _python(session, f"attempted = {attempted}\n{attack.damage}")
    outcome = str(damage.value["result"]) if damage.value else damage.content
    return {"True": True, "False": False}.get(outcome, outcome)


async def run_together(level: str, mode: Any, folder: Path) -> dict[str, dict[str, Any]]:
    """Try everything in a session; of each kind of tool, one call makes many attempts.

    In a reader, each attempt is made by a child of its own, which has what the reader has, so that none is in
    the way of another. In the tool that changes things all are made by the worker, one after the other.

    Returns:
        What `run_apart` returns, but for attempts that no worker may make: those are made in readers only.
    """
    found: dict[str, dict[str, Any]] = {}
    async with _session(level, folder) as session:

        async def ask(one: FunctionTool[..., Any], code: str) -> dict[str, Any]:
            session.policy = Policy(mode=mode if one is not attempt_changing else "auto")
            result = await session.call(one.name, {"code": f"answer = json.dumps({code})"}, origin="model")
            if result.is_error:
                raise AssertionError(f"{one.name}: {result.content}")
            answer: dict[str, Any] = json.loads(result.content)
            return answer

        async def outcomes(attacks: Mapping[str, Attack], *tools: FunctionTool[..., Any]) -> dict[str, Any]:
            """Return for each attempt whether it worked, and the words of all calls."""
            numbers = {name: next(ids) for name in attacks}
            codes = {str(numbers[name]): preparation(one, numbers[name]) for name, one in attacks.items()}
            words = await ask(attempt_changing, f"prepare({codes!r})")
            # That the code is right is shown outside, where the control must work.
            ready = {name: one for name, one in attacks.items() if not words[str(numbers[name])]}
            found = {
                name: (one.control != "outside" and words[str(numbers[name])], [words[str(numbers[name])]])
                for name, one in attacks.items()
            }
            codes = {str(numbers[name]): one.attempt for name, one in ready.items()}
            answers = [
                await ask(one, f"{'attempt' if one is attempt_changing else 'attempt_apart'}({codes!r})")
                for one in tools
            ]
            attempted = {number for number in codes if not all(answer[number] for answer in answers)}
            codes = {str(numbers[name]): one.damage for name, one in ready.items() if not one.on_host}
            damages = await ask(attempt_changing, f"damage({codes!r}, {attempted!r})")
            for name, one in ready.items():
                number = str(numbers[name])
                if one.on_host:
                    damages[number] = _damage_on_host(one, folder / "workspace", numbers[name])
                found[name] = damages[number], [*found[name][1], *(answer[number] for answer in answers)]
            return found

        ids = itertools.count()
        prepared = await _python(session, f"prelude = {PRELUDE!r}\n{PRELUDE}\n{_TOGETHER}")
        assert not prepared.is_error, prepared.content
        for attacks in _rounds(attacks_at(level)):
            reading = await outcomes(attacks, attempt_reading, attempt_reading_async)
            controls = {
                name: one for name, one in attacks.items() if one.control == "worker" and not one.ends_worker
            }
            changing = await outcomes(controls, attempt_changing)
            for name, (outcome, words) in reading.items():
                # What cannot be prepared in a worker is not attempted; everything else is, in both readers.
                tried = len(words) == 1 + 2 * (not words[0])
                found[name] = {"reading": outcome, "changing": None, "results": words, "tried": tried}
            for name, (outcome, words) in changing.items():
                found[name]["changing"] = outcome
                found[name]["results"] += words
        for name, one in attacks_at(level).items():
            if one.ends_worker:
                results: list[str] = []
                found[name]["changing"] = await _run_one(
                    session,
                    one,
                    next(ids),
                    attempt_changing,
                    folder=folder,
                    mode=mode,
                    results=results,
                    tried=[],
                )
                found[name]["results"] += results
    return found


def _rounds(attacks: Mapping[str, Attack]) -> list[dict[str, Attack]]:
    """Return the attacks, those apart of which a process can be prepared for one only."""
    rounds: list[dict[str, Attack]] = [{}]
    exclusive = 0
    for name, attack in attacks.items():
        if attack.prepare.startswith(_HITS):
            exclusive += 1
            rounds.append({})
            rounds[exclusive][name] = attack
        else:
            rounds[0][name] = attack
    return rounds


def _damage_on_host(attack: Attack, workspace: Path, number: int) -> bool:
    space: dict[str, Any] = {"__name__": "host", "d": f"a{number}", "f": f"a{number}/f"}
    with _current_folder(workspace):
        exec(PRELUDE + _FLAGS, space)
        return bool(eval(attack.damage, space))


def works_outside(name: str, folder: Path) -> bool:
    """Try it without any sandbox: a fork attempts, as a reader is a fork of the worker."""
    attack = ATTACKS[name]
    space: dict[str, Any] = {"__name__": "outside"}
    with _current_folder(folder):
        exec(PRELUDE + preparation(attack, 0), space)
        child = os.fork()
        if not child:
            status = 1
            try:
                exec(attack.attempt, space)
                status = 0
            finally:
                os._exit(status)
        space["attempted"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return bool(eval(attack.damage, space))


@contextlib.contextmanager
def _current_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def all_work_outside(folder: Path) -> dict[str, Any]:
    """Return for each attempt that no worker may make whether it works without a sandbox; or why it fails."""
    found = {}
    for number, name in enumerate(name for name, attack in ATTACKS.items() if attack.control == "outside"):
        own = folder / str(number)
        own.mkdir()
        # Each in a process of its own: what it changes there is not in the way of the next.
        found[name] = in_one_thread(partial(_try_outside, name, own))["works"]
    return found


def _try_outside(name: str, folder: Path) -> dict[str, Any]:
    try:
        return {"works": works_outside(name, folder)}
    except Exception as error:
        return {"works": repr(error)}


if __name__ == "__main__":
    if sys.argv[1] == "outside":
        print(json.dumps(all_work_outside(Path(sys.argv[2]))))
    else:
        run = {"together": run_together, "apart": run_apart}[sys.argv[1]]
        print(json.dumps(asyncio.run(run(sys.argv[2], sys.argv[3], Path(sys.argv[4])))))
