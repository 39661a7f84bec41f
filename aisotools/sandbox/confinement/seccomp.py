"""The seccomp filter: which system calls a worker may make; a pure function of machine, level and Landlock.

Landlock decides about files by path. This filter closes what Landlock does not look at. It is a table from
system calls to answers, compiled into a classic BPF program:

1. Every call that Linux has stands in exactly one row of the table, with the reason for its answer
   (`REASONS`). A number without a row is answered ENOSYS, so a newer kernel brings no call that nobody here
   has thought about, and the x32 forms are shut. A call by another architecture's entry (32-bit code) kills
   the process: its numbers mean other calls.
2. The worker needs one inherited socket and pairs for its own children: sockets with an address cannot be
   made. At level `isolated`, whose network holds nothing but a loopback of its own, TCP and UDP sockets can:
   no raw, packet, netlink or ping socket, no protocol that nobody here has judged, and no Unix socket, whose
   address is a path. Options of sockets are an allow-list; none attaches a program or loads a module.
3. A file outside that may be read can be opened for reading, and Linux lets its owner change mode, owner,
   times, attributes and flags through that descriptor. These calls answer 0 without acting (tools such as `cp
   -p` and `git` give up on an error), by path and by descriptor alike; only "set to now" by path is refused,
   because `Path.touch` takes success to mean that there is a file. Of ioctl, only commands that do no harm
   run. In a reader (see `sandbox.worker.reader`) all of them fail: a tool that says it only reads must hear
   that it does not.
4. What acts on other processes by number answers 0 without acting where libraries pin their own threads
   (OpenMP aborts on an error), and EPERM elsewhere. Signals are scoped by Landlock. Of clocks, those of other
   processes are not there: their processor time would tell what they do. How other processes are scheduled,
   and in which session and group they are, can be read: a number does not say whose it is.
5. `clone3` and `openat2` take their flags from memory, where a filter cannot look: ENOSYS makes the C library
   use `clone` and `openat`.
6. Nothing is created setuid or setgid: on a shared machine such a file in the workspace would lend the
   owner's rights to whoever runs it.
7. No core dump reaches the host's crash handler (see `limits.apply_rlimits`), which runs as root.
8. What the kernel counts per user is out of reach, because a session must not take it from another one or
   from the user's programs: watches on folders, keys, message queues, queued signals and timers, large
   pipes. So is memory that belongs to no process, which neither RLIMIT_AS nor a look at /proc would count.
9. A process cannot hide from the look at /proc by which memory is counted.

Arguments are compared by their low 32 bits, because that is what the kernel itself reads of an `int`.

Threat: a system call reaches what Landlock does not govern: other processes, the network, attributes of files
that may only be read, what the kernel counts per user, a flaw in a part of the kernel that nobody needs.
Mechanism: the table above, compiled and loaded for good, and inherited by all that is started.
Race: none; a filter sees registers, which no other thread can change, and never memory, which one could: so
calls that take flags from memory are absent.
Failure: a filter that cannot be loaded for every thread ends the worker before it runs anything, and a wrong
row is what the escape suite is for.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from aisotools.sandbox.confinement import syscalls

READER = "reader"
"""In place of a level: the filter of a reader, which is loaded on top of the worker's own."""

LEVELS_WITH_FILTER = ("limited", "guarded", "confined", "isolated", READER)
"""What `build_filter` knows: levels, and `READER`."""


class Instruction(NamedTuple):
    """One instruction of classic BPF; `if_true` and `if_false` count the instructions to skip."""

    code: int
    if_true: int
    if_false: int
    value: int


Program = tuple[Instruction, ...]
"""Instructions that end in an answer on every path."""

# Operation codes of classic BPF.
_LOAD = 0x20
_AND = 0x54
_JUMP = 0x05
_EQUAL = 0x15
_ABOVE = 0x25
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
_LONGEST_BRANCH = 255  # a conditional jump counts the instructions to skip in one byte

# Offsets in struct seccomp_data.
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENTS = 16

_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP_RET_ERRNO = 0x00050000
_SECCOMP_RET_ALLOW = 0x7FFF0000
_SECCOMP_RET_KILL_PROCESS = 0x80000000
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_TSYNC = 1


def _answer(action: int) -> Program:
    return (Instruction(_RETURN, 0, 0, action),)


def fail(code: int) -> Program:
    """Return a program that does not run the call, and fails it with an errno, or with a result of 0."""
    return _answer(_SECCOMP_RET_ERRNO | code)


ALLOW = _answer(_SECCOMP_RET_ALLOW)
"""Run the call."""

KILL = _answer(_SECCOMP_RET_KILL_PROCESS)
"""Kill the whole process."""

REFUSE = fail(errno.EPERM)
"""Fail the call with EPERM."""

PRETEND = fail(0)
"""Do not run the call, and answer 0 as if it had succeeded."""


def _load(argument: int, *, high: bool = False) -> Instruction:
    # A BPF word has 32 bits, an argument 64. Both machines of `syscalls.NUMBERS` are little-endian.
    return Instruction(_LOAD, 0, 0, _ARGUMENTS + 8 * argument + 4 * high)


def if_equal(
    argument: int, values: Iterable[int], then: Program, otherwise: Program, *, mask: int = 0xFFFFFFFF
) -> Program:
    """Return a program: `then` if the argument, under `mask`, is one of `values`, else `otherwise`."""
    candidates = tuple(values)
    masked = () if mask == 0xFFFFFFFF else (Instruction(_AND, 0, 0, mask),)
    # Each test that holds skips the tests that are left, and `otherwise`.
    tests = tuple(
        Instruction(_EQUAL, len(candidates) - 1 - index + len(otherwise), 0, value)
        for index, value in enumerate(candidates)
    )
    return (_load(argument), *masked, *tests, *otherwise, *then)


def if_any_bit(argument: int, bits: int, then: Program, otherwise: Program) -> Program:
    """Return a program: `then` if any of `bits` is set in the argument, else `otherwise`."""
    return (_load(argument), Instruction(_ANY_BIT, len(otherwise), 0, bits), *otherwise, *then)


def if_above(argument: int, bound: int, then: Program, otherwise: Program) -> Program:
    """Return a program: `then` if the argument, unsigned, is greater than `bound`, else `otherwise`."""
    return (_load(argument), Instruction(_ABOVE, len(otherwise), 0, bound), *otherwise, *then)


def if_null(argument: int, then: Program, otherwise: Program) -> Program:
    """Return a program: `then` if the whole 64-bit argument is 0, else `otherwise`."""
    return (
        _load(argument, high=True),
        Instruction(_EQUAL, 0, 2 + len(then), 0),
        _load(argument),
        Instruction(_EQUAL, 0, len(then), 0),
        *then,
        *otherwise,
    )


_REFUSED = {
    "acts on other processes": """
        ptrace process_vm_readv process_vm_writev process_madvise process_mrelease pidfd_getfd kcmp
        setpriority ioprio_set
    """,
    "namespaces, mounts, file handles": """
        unshare setns mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig
        fsmount fspick mount_setattr statmount listmount listns name_to_handle_at open_by_handle_at
        quotactl quotactl_fd acct swapon swapoff uselib lookup_dcookie
    """,
    "the kernel and the machine": """
        bpf perf_event_open userfaultfd memfd_secret io_uring_setup io_uring_enter io_uring_register
        init_module finit_module delete_module kexec_load kexec_file_load reboot syslog personality iopl
        ioperm modify_ldt vhangup settimeofday clock_settime adjtimex clock_adjtime sethostname
        setdomainname lsm_get_self_attr lsm_set_self_attr lsm_list_modules
    """,
    "keys, of which each user may have few": "add_key request_key keyctl",
    "named by numbers that can be guessed, shared with the whole machine": """
        shmget shmat shmdt shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open
        mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
    """,
    "watching folders, which needs no right to list them, and of which each user may have few": """
        inotify_init inotify_init1 inotify_add_watch fanotify_init fanotify_mark
    """,
    "memory that no process has mapped: a pipe would keep pages that nobody counts": "vmsplice",
}
_NETWORK = {"sockets with an address": "bind connect listen accept accept4"}
_PRETENDED = {
    "mode": "chmod fchmod fchmodat fchmodat2",
    "owner": "chown fchown lchown fchownat",
    "attributes, changed": """
        setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat
    """,
}
_UNSUPPORTED = {
    "attributes, read": "getxattr lgetxattr fgetxattr getxattrat listxattr llistxattr flistxattr listxattrat",
    "flags": "file_getattr file_setattr",
}
_ABSENT = {
    "flags in memory, where a filter cannot look": "clone3 openat2",
    "a pool of the whole machine": "io_setup",
    "memory that no process has mapped: it outlives every limit on address space": "memfd_create",
}
_DEPENDS = {
    "flags of a new process": "clone",
    "which descriptors, and whose": "close_range",
    "family, type and protocol of a socket": "socket socketpair",
    "which option of a socket": "setsockopt",
    "which command": "fcntl ioctl prctl",
    "whose time: a clock may be that of any process": "clock_gettime clock_getres clock_nanosleep",
    "which kind of rule: the kernel keeps each, and charges no process": "landlock_add_rule",
    "mode of a new file": "creat open openat mknod mknodat",
    "what a moved file leaves": "renameat2",
    "times of a file": "utime utimes futimesat utimensat",
    "which limit, and whose": "setrlimit prlimit64",
    "whose processors and pages": """
        sched_setaffinity sched_setscheduler sched_setparam sched_setattr migrate_pages move_pages
    """,
}
_QUEUED = {
    "queued signals, of which each user may have few": "rt_sigqueueinfo rt_tgsigqueueinfo timer_create",
    "which signal: real-time signals are queued": "kill tkill tgkill pidfd_send_signal",
}
_ALLOWED = {
    "memory of its own": """
        mmap mprotect munmap brk mremap msync mincore madvise mlock munlock mlockall munlockall mlock2
        mbind set_mempolicy get_mempolicy set_mempolicy_home_node remap_file_pages pkey_mprotect
        pkey_alloc pkey_free map_shadow_stack mseal
    """,
    "descriptors of its own, opened under Landlock": """
        read write close fstat poll lseek pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2
        select pselect6 ppoll dup dup2 dup3 pipe pipe2 sendfile splice tee copy_file_range fsync fdatasync
        ftruncate fallocate fadvise64 readahead sync_file_range getdents getdents64 eventfd eventfd2
        signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime epoll_create epoll_create1
        epoll_ctl epoll_wait epoll_pwait epoll_pwait2 io_destroy io_getevents io_pgetevents
        io_submit io_cancel inotify_rm_watch flock cachestat
    """,
    "sockets of its own, which `socket` and `socketpair` have judged": """
        sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg shutdown getsockname getpeername getsockopt
    """,
    "paths, decided by Landlock": """
        rename renameat mkdir mkdirat rmdir link linkat unlink unlinkat symlink symlinkat execve
        execveat truncate
    """,
    "names and sizes, which nothing hides": """
        stat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat statfs fstatfs ustat
        sysfs chdir fchdir getcwd uname sysinfo
    """,
    "children and itself": """
        fork vfork exit exit_group wait4 waitid getpid getppid gettid getpgrp setpgid setsid
        set_tid_address set_robust_list rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending
        rt_sigtimedwait rt_sigsuspend sigaltstack pause alarm getitimer setitimer times umask getrlimit
        getrusage sched_yield arch_prctl set_thread_area get_thread_area seccomp
        landlock_create_ruleset landlock_restrict_self restart_syscall rseq
        rseq_slice_yield getcpu membarrier futex futex_waitv futex_wake futex_wait futex_requeue getrandom
        sync syncfs uprobe uretprobe
    """,
    "identity, fixed without capabilities": """
        getuid getgid geteuid getegid setuid setgid setreuid setregid getgroups setgroups setresuid
        getresuid setresgid getresgid setfsuid setfsgid capget capset
    """,
    "facts about processes: that they exist, and how they are scheduled": """
        getpgid getsid getpriority sched_getparam sched_getscheduler sched_getattr sched_getaffinity
        sched_get_priority_max sched_get_priority_min sched_rr_get_interval ioprio_get pidfd_open
        get_robust_list
    """,
    "time": """
        nanosleep gettimeofday time timer_settime timer_gettime timer_getoverrun timer_delete
    """,
    "removed from Linux long before Landlock, or never there": """
        _sysctl create_module get_kernel_syms query_module nfsservctl getpmsg putpmsg afs_syscall tuxcall
        security epoll_ctl_old epoll_wait_old vserver
    """,
}
_ROWS = (*(_REFUSED, _NETWORK, _PRETENDED, _UNSUPPORTED, _ABSENT, _DEPENDS, _QUEUED, _ALLOWED),)

REASONS: tuple[tuple[str, str], ...] = tuple(
    (name, reason) for table in _ROWS for reason, names in table.items() for name in names.split()
)
"""Every call that Linux has, each with the reason for its answer."""

# NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET; and PARENT, which hides a child from its maker.
_CLONE_REFUSED = 0x7E020000 | 0x8000

_AF_UNIX = 1
_AF_INET = 2
_AF_INET6 = 10
_AF_NETLINK = 16
_SOCK_STREAM = 1
_SOCK_DGRAM = 2
_SOCK_SEQPACKET = 5
_IPPROTO_TCP = 6
_IPPROTO_UDP = 17
_SOCK_TYPE_MASK = 0xF  # the rest are flags: close on exec, non-blocking
_LAST_FIXED_CLOCK = 0x7FFFFFFF
_OWN_CLOCKS = (0xFFFFFFF8, 0xFFFFFFF9, 0xFFFFFFFA)  # three ways to measure the time of process 0, the caller
_KIND_OF_CLOCK = 7
_THREAD_CLOCKS = (4, 5, 6)
_O_CREATING = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE
_O_ACCMODE = 0o3
_O_TRUNC = 0o1000
_SET_ID_BITS = 0o6000
_RENAME_WHITEOUT = 4
_RLIMIT_CORE = 4
_PR_SET_DUMPABLE = 4
_CHILD_SIGNAL = 0xFF  # the bits of clone's flags that name the signal at the child's end
_SIGCHLD = 17
_CLONE_THREAD = 0x10000
_CLONE_FILES = 0x400
_CLOSE_RANGE_UNSHARE = 2
_LANDLOCK_RULE_PATH_BENEATH = 1
_LAST_OWN_SIGNAL = 34  # up to here C libraries use real-time signals for threads of their own

# SETOWN, SETSIG, SETOWN_EX, SETLEASE, NOTIFY, SET_RW_HINT: they signal or delay others, or watch folders.
# SETPIPE_SZ: the pages of all pipes of a user together are limited.
_FCNTL_REFUSED = (8, 10, 15, 1024, 1026, 1031, 1036)
_FCNTL_LAST = 1038  # above are commands that nobody here has judged

_IOCTL_ALLOWED = (
    0x5401,  # TCGETS: is this a terminal?
    0x5413,  # TIOCGWINSZ
    0x5421,  # FIONBIO
    0x541B,  # FIONREAD
    0x5451,  # FIOCLEX
    0x5450,  # FIONCLEX
    0x5452,  # FIOASYNC
    0x802C542A,  # TCGETS2
    0x540F,  # TIOCGPGRP
    0x5429,  # TIOCGSID
    0x5411,  # TIOCOUTQ
    0x5460,  # FIOQSIZE
    0x40049409,  # FICLONE: the target must be open for writing
    0x4020940D,  # FICLONERANGE
    0x80086601,  # FS_IOC_GETFLAGS
    0xC020660B,  # FS_IOC_FIEMAP
)

# SETFLAGS (both), SETVERSION (both), FSSETXATTR: flags, versions and projects of files.
_IOCTL_CHANGING = (0x40086602, 0x40046602, 0x40087602, 0x40047602, 0x401C5820)

_SOL_SOCKET = 1
_BUFFER_SIZES = (7, 8)  # SO_SNDBUF, SO_RCVBUF
_LINGER = 13  # SO_LINGER
# Level: options. Reuse, options of packets, time limits and the like; nothing that names an interface, a
# program, a module or a group, nor anything that takes a privilege.
_SOCKET_OPTIONS = {
    # SO_REUSEADDR, BROADCAST, KEEPALIVE, OOBINLINE, REUSEPORT, PASSCRED, RCVLOWAT, RCVTIMEO and SNDTIMEO in
    # both forms, TIMESTAMP
    1: (2, 6, 9, 10, 15, 16, 18, 20, 21, 66, 67, 29),
    # IP_TOS, TTL, PKTINFO, MTU_DISCOVER, RECVERR, RECVTTL, RECVTOS, BIND_ADDRESS_NO_PORT
    0: (1, 2, 8, 10, 11, 12, 13, 24),
    # TCP_NODELAY, MAXSEG, CORK, KEEPIDLE, KEEPINTVL, KEEPCNT, SYNCNT, LINGER2, DEFER_ACCEPT, QUICKACK,
    # USER_TIMEOUT, FASTOPEN, NOTSENT_LOWAT
    6: (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 18, 23, 25),
    # IPV6_UNICAST_HOPS, MTU_DISCOVER, RECVERR, V6ONLY, RECVPKTINFO, RECVTCLASS, TCLASS
    41: (16, 23, 25, 26, 49, 66, 67),
}


def _socket_option() -> Program:
    program = fail(errno.ENOPROTOOPT)
    for level, options in _SOCKET_OPTIONS.items():
        known = if_equal(2, options, ALLOW, fail(errno.ENOPROTOOPT))
        if level == _SOL_SOCKET:
            # Buffers are memory of the kernel, which no process is charged for: they keep their usual size.
            # How long whoever closes a socket last has to wait stands in memory, where a filter cannot look:
            # nobody waits. It is pretended because jupyter_client asks for that very thing.
            known = if_equal(2, (*_BUFFER_SIZES, _LINGER), PRETEND, known)
        program = if_equal(1, [level], known, program)
    return program


def _internet_socket() -> Program:
    """Return the answer to `socket` where there is a loopback and nothing else to reach."""
    # Protocol 0 is the usual one of the type. Others reach code of the kernel that no program here needs.
    stream = if_equal(2, [0, _IPPROTO_TCP], ALLOW, REFUSE)
    datagram = if_equal(2, [0, _IPPROTO_UDP], ALLOW, REFUSE)
    other = if_equal(1, [_SOCK_DGRAM], datagram, REFUSE, mask=_SOCK_TYPE_MASK)
    internet = if_equal(1, [_SOCK_STREAM], stream, other, mask=_SOCK_TYPE_MASK)
    return if_equal(0, [_AF_INET, _AF_INET6], internet, _other_socket())


def _other_socket() -> Program:
    # libzmq asks for the interfaces first: it takes EOPNOTSUPP for "none", and ends the process for others.
    foreign = if_equal(0, [_AF_NETLINK], fail(errno.EOPNOTSUPP), fail(errno.EAFNOSUPPORT))
    return if_equal(0, [_AF_UNIX], REFUSE, foreign)


def _by_arguments() -> dict[str, Program]:
    """Return the calls whose answer depends on their arguments."""
    plain_mode = {at: if_any_bit(at, _SET_ID_BITS, REFUSE, ALLOW) for at in (1, 2, 3)}
    own_only = if_equal(0, [0], ALLOW, PRETEND)
    # A negative number is a clock of a process, of one of its threads or of a device. Of threads the kernel
    # itself only reads the caller's own. EINVAL: as for a process that is not there.
    of_threads = if_equal(0, _THREAD_CLOCKS, ALLOW, fail(errno.EINVAL), mask=_KIND_OF_CLOCK)
    of_its_own = if_equal(0, _OWN_CLOCKS, ALLOW, of_threads)
    clock = if_above(0, _LAST_FIXED_CLOCK, of_its_own, ALLOW)
    core = dict.fromkeys(("clock_gettime", "clock_getres", "clock_nanosleep"), clock) | {
        "setrlimit": if_equal(0, [_RLIMIT_CORE], PRETEND, ALLOW),
        # Process 0 is the caller. A null pointer only reads the limit.
        "prlimit64": if_equal(0, [0], if_equal(1, [_RLIMIT_CORE], if_null(2, ALLOW, PRETEND), ALLOW), REFUSE),
    }
    # No times given means "now". That is refused, and not pretended: `Path.touch` takes success to mean that
    # the file exists.
    to_now = {at: if_null(at, REFUSE, PRETEND) for at in (1, 2)}
    # A datagram socket of a pair can still send to any other address; these two kinds cannot.
    pair = if_equal(1, [_SOCK_STREAM, _SOCK_SEQPACKET], ALLOW, REFUSE, mask=_SOCK_TYPE_MASK)
    # A thread with open files of its own would hide them: /proc shows those of a process by its first thread.
    thread = if_any_bit(0, _CLONE_THREAD, if_any_bit(0, _CLONE_FILES, ALLOW, REFUSE), ALLOW)
    return core | {
        # At the end of a child the kernel may queue any signal, real-time signals too.
        "clone": if_any_bit(
            0,
            _CLONE_REFUSED,
            REFUSE,
            if_equal(0, [0, _SIGCHLD], thread, REFUSE, mask=_CHILD_SIGNAL),
        ),
        "close_range": if_any_bit(2, _CLOSE_RANGE_UNSHARE, fail(errno.EINVAL), ALLOW),
        "socket": _other_socket(),
        "socketpair": if_equal(0, [_AF_UNIX], pair, fail(errno.EAFNOSUPPORT)),
        "setsockopt": _socket_option(),
        # A process that is not dumpable hides its memory and descriptors from other programs of its user.
        "prctl": if_equal(0, [_PR_SET_DUMPABLE], PRETEND, ALLOW),
        "fcntl": if_equal(1, _FCNTL_REFUSED, REFUSE, if_above(1, _FCNTL_LAST, fail(errno.EINVAL), ALLOW)),
        "ioctl": if_equal(1, _IOCTL_ALLOWED, ALLOW, fail(errno.ENOTTY)),
        # A rule on a port takes no more than a number, and 65,536 of them fit into each of many sets. What a
        # reader and other programs need are rules on paths, which must exist. EINVAL: an old kernel's answer.
        "landlock_add_rule": if_equal(1, [_LANDLOCK_RULE_PATH_BENEATH], ALLOW, fail(errno.EINVAL)),
        "creat": plain_mode[1],
        "open": if_any_bit(1, _O_CREATING, plain_mode[2], ALLOW),
        "openat": if_any_bit(2, _O_CREATING, plain_mode[3], ALLOW),
        "mknod": plain_mode[1],
        "mknodat": plain_mode[2],
        # A device node in the place of the file, which Landlock does not see being made.
        "renameat2": if_any_bit(4, _RENAME_WHITEOUT, REFUSE, ALLOW),
        "utime": to_now[1],
        "utimes": to_now[1],
        # Without a path these two act on the descriptor, so there is no file to be mistaken about.
        "futimesat": if_null(1, PRETEND, to_now[2]),
        "utimensat": if_null(1, PRETEND, to_now[2]),
        "sched_setaffinity": own_only,
        "sched_setscheduler": own_only,
        "sched_setparam": own_only,
        "sched_setattr": own_only,
        "migrate_pages": own_only,
        "move_pages": own_only,
    }


def _queued_signals() -> dict[str, Program]:
    """Return the rules on signals that wait in a queue, of which all programs of a user share the length.

    A user namespace has a count of its own, but what is queued there counts outside too.
    """
    # EAGAIN is what the kernel itself says when the queue is full.
    full = fail(errno.EAGAIN)
    by_number = {"kill": 1, "tkill": 1, "tgkill": 2, "pidfd_send_signal": 1}
    ordinary = {name: if_above(at, _LAST_OWN_SIGNAL, full, ALLOW) for name, at in by_number.items()}
    return ordinary | dict.fromkeys(("rt_sigqueueinfo", "rt_tgsigqueueinfo", "timer_create"), full)


def _with_namespaces_of_its_own() -> dict[str, Program]:
    """Return the rules on what is the sandbox's own at level `isolated`.

    Mode and times: only the workspace and folders in memory can be written, and everything else of the host
    is in a read-only mount, so these calls may do their work. Set-id bits are refused all the same, because
    files of the workspace are the host's.

    Network: a namespace with nothing but a loopback.
    """
    plain = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}
    modes = {name: if_any_bit(at, _SET_ID_BITS, REFUSE, ALLOW) for name, at in plain.items()}
    times = dict.fromkeys(("utime", "utimes", "futimesat", "utimensat"), ALLOW)
    network = _each(_NETWORK, ALLOW) | {"socket": _internet_socket()}
    return modes | times | network


def _without_changes(rules: Mapping[str, Program]) -> dict[str, Program]:
    """Return the rules of a reader on what Landlock does not govern of a file.

    The worker's filter stays below. Of two answers the kernel takes the stricter: that not to run the call.
    Of two errors, which a pretended 0 is for it as well, it takes that of the filter that was loaded last.
    """
    times = ("utime", "utimes", "futimesat", "utimensat")
    refused = _each(_PRETENDED, REFUSE) | dict.fromkeys((*times, "file_setattr"), REFUSE)
    return refused | {"ioctl": if_equal(1, _IOCTL_CHANGING, REFUSE, rules["ioctl"])}


def _without_truncation(rules: Mapping[str, Program]) -> dict[str, Program]:
    """Return the rules for a Landlock below ABI 3, which does not govern truncation.

    Opening to read with O_TRUNC would empty a file that may be read.
    """

    def guarded(flags: int, rule: Program) -> Program:
        # Access mode 3 opens for neither reading nor writing, so Landlock lets it pass.
        reading = if_equal(flags, [0, 3], fail(errno.EACCES), rule, mask=_O_ACCMODE)
        return if_any_bit(flags, _O_TRUNC, reading, rule)

    return {
        "truncate": fail(errno.EACCES),
        "open": guarded(1, rules["open"]),
        "openat": guarded(2, rules["openat"]),
    }


def _each(topics: Mapping[str, str], program: Program) -> dict[str, Program]:
    return dict.fromkeys(" ".join(topics.values()).split(), program)


def rules(level: str, abi: int) -> Mapping[str, Program]:
    """Return what happens to each call of `REASONS`.

    Args:
        level: One of `LEVELS_WITH_FILTER`.
        abi: The version of Landlock that will stand beside the filter; 0 for none.

    Raises:
        ValueError: There is no filter for `level`.
    """
    if level not in LEVELS_WITH_FILTER:
        raise ValueError(
            f"there is no filter for level {level!r}; levels with one: {', '.join(LEVELS_WITH_FILTER)}"
        )
    table = (
        _each(_ALLOWED, ALLOW)
        | _each(_REFUSED | _NETWORK, REFUSE)
        | _each(_PRETENDED, PRETEND)
        | _each(_UNSUPPORTED, fail(errno.EOPNOTSUPP))
        | _each(_ABSENT, fail(errno.ENOSYS))
        | _by_arguments()
        | _queued_signals()
    )
    if level == READER:
        return table | _without_changes(table)
    if level == "isolated":
        return table | _with_namespaces_of_its_own()
    if level != "limited" and abi < 3:
        table |= _without_truncation(table)
    return table


def _intervals(arch: str, by_name: Mapping[str, Program]) -> Iterator[tuple[int, Program]]:
    """Yield (first number, what happens from there on), over all 32-bit numbers, neighbours differing."""
    numbers = syscalls.NUMBERS[arch]
    by_number = {numbers[name]: program for name, program in by_name.items() if name in numbers}
    starts = {0, *(n for number in by_number for n in (number, number + 1))}
    before: Program | None = None
    for number in sorted(starts):
        # ENOSYS and not EPERM: programs take it for an older kernel, and do without the call.
        program = by_number.get(number, fail(errno.ENOSYS))
        if program != before:
            yield number, program
        before = program


def _bisect(intervals: Sequence[tuple[int, Program]]) -> Program:
    """Return a binary search for the number that is loaded: eight comparisons instead of two hundred."""
    if len(intervals) == 1:
        return intervals[0][1]
    middle = len(intervals) // 2
    below = _bisect(intervals[:middle])
    above = _bisect(intervals[middle:])
    pivot = intervals[middle][0]
    if len(below) <= _LONGEST_BRANCH:
        return (Instruction(_AT_LEAST, len(below), 0, pivot), *below, *above)
    # An unconditional jump counts in 32 bits: take it if the number is at least the pivot, else step over it.
    far = Instruction(_JUMP, 0, 0, len(below))
    return (Instruction(_AT_LEAST, 0, 1, pivot), far, *below, *above)


def compile_rules(arch: str, by_name: Mapping[str, Program]) -> bytes:
    """Return the BPF program: named calls as given, all others fail with ENOSYS.

    Args:
        arch: A key of `syscalls.NUMBERS`.
        by_name: What happens to each call; names that this machine never had are left out.

    Raises:
        ValueError: `arch` is not known.
    """
    if arch not in syscalls.NUMBERS:
        raise ValueError(f"no system call table for {arch!r}; there is one for {', '.join(syscalls.NUMBERS)}")
    program = (
        # First the architecture: on x86-64, 32-bit code enters the same kernel with other numbers, so that
        # none of the comparisons below would mean what it says.
        Instruction(_LOAD, 0, 0, _ARCHITECTURE),
        Instruction(_EQUAL, len(KILL), 0, _AUDIT_ARCHITECTURE[arch]),
        *KILL,
        Instruction(_LOAD, 0, 0, _NUMBER),
        *_bisect(list(_intervals(arch, by_name))),
    )
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


@functools.cache
def build_filter(arch: str, level: str, abi: int) -> bytes:
    """Return the filter of a level, ready for `load_filter`. It is cached, and so inherited by forks.

    Args:
        arch: A key of `syscalls.NUMBERS`.
        level: One of `LEVELS_WITH_FILTER`.
        abi: The version of Landlock that stands beside it; 0 for none.

    Raises:
        ValueError: `arch` or `level` is not known.
    """
    return compile_rules(arch, rules(level, abi))


def load_filter(program: bytes) -> None:
    """Put this process, all its threads and all they start under `program`, for good.

    Raises:
        OSError: The kernel refused it.
    """
    # Without it the kernel takes no filter from an unprivileged process.
    syscalls.set_no_new_privileges()
    memory = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(memory))
    # For all threads at once: one that had started before would stay free, and share the memory. The result
    # is the id of a thread that could not be put under the filter; then none was.
    thread = syscalls.call("seccomp", _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC, header)
    if thread:
        raise OSError(errno.EBUSY, f"thread {thread} has another filter of its own")
