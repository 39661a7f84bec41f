"""System calls by name: their numbers on the machines that the sandbox knows, and a function to make them.

The numbers come from the kernel's own headers: x86-64 from `arch/x86/entry/syscalls/syscall_64.tbl` as
installed in `asm/unistd_64.h`, ARM64 from `include/uapi/asm-generic/unistd.h`. From 424 on all architectures
share one numbering. Only the names that the sandbox uses are here. `tests/sandbox/syscall_tables.py` writes
these tables from the headers, and the tests hold this file against it.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
import sys
from collections.abc import Mapping

_BEFORE_424: dict[str, tuple[int | None, int | None]] = {
    # name: (x86_64, aarch64); None where the machine never had that call
    "accept": (43, 202),
    "accept4": (288, 242),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bind": (49, 200),
    "bpf": (321, 280),
    "capget": (125, 90),
    "capset": (126, 91),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "connect": (42, 203),
    "creat": (85, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fcntl": (72, 25),
    "fgetxattr": (193, 10),
    "finit_module": (313, 273),
    "flistxattr": (196, 13),
    "fremovexattr": (199, 16),
    "fsetxattr": (190, 7),
    "futimesat": (261, None),
    "getxattr": (191, 8),
    "init_module": (175, 105),
    "inotify_add_watch": (254, 27),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_setup": (206, 0),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lchown": (94, None),
    "lgetxattr": (192, 9),
    "listen": (50, 201),
    "listxattr": (194, 11),
    "llistxattr": (195, 12),
    "lookup_dcookie": (212, 18),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "migrate_pages": (256, 238),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "move_pages": (279, 239),
    "mq_getsetattr": (245, 185),
    "mq_notify": (244, 184),
    "mq_open": (240, 180),
    "mq_timedreceive": (243, 183),
    "mq_timedsend": (242, 182),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "name_to_handle_at": (303, 264),
    "open": (2, None),
    "open_by_handle_at": (304, 265),
    "openat": (257, 56),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "removexattr": (197, 14),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "seccomp": (317, 277),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setrlimit": (160, 164),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "truncate": (76, 45),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vhangup": (153, 58),
}

_FROM_424: dict[str, int] = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "openat2": 437,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "fchmodat2": 452,
    "statmount": 457,
    "listmount": 458,
    "lsm_get_self_attr": 459,
    "lsm_set_self_attr": 460,
    "lsm_list_modules": 461,
    "setxattrat": 463,
    "getxattrat": 464,
    "listxattrat": 465,
    "removexattrat": 466,
    "open_tree_attr": 467,
    "file_getattr": 468,
    "file_setattr": 469,
    "listns": 470,
}

X86_64: dict[str, int] = {name: x for name, (x, _) in _BEFORE_424.items() if x is not None} | _FROM_424
"""Numbers on x86-64."""

AARCH64: dict[str, int] = {name: a for name, (_, a) in _BEFORE_424.items() if a is not None} | _FROM_424
"""Numbers on 64-bit ARM."""

NUMBERS: Mapping[str, Mapping[str, int]] = {"x86_64": X86_64, "aarch64": AARCH64}
"""The table of each machine that the sandbox knows."""

JUDGED: Mapping[str, tuple[tuple[int, int], ...]] = {
    "x86_64": ((0, 336), (424, 471)),
    "aarch64": ((0, 294), (424, 471)),
}
"""First and last number of the ranges in which every call was looked at, up to Linux 7.0.

A number outside is a call that nobody here has judged, or x86-64's second door: with bit 30 set, and also at
512 to 547, the kernel answers to the x32 forms of calls that have another number in our table.
"""

_PR_SET_NO_NEW_PRIVS = 38


def architecture() -> str | None:
    """Return the key of this machine in `NUMBERS`, or None where the sandbox has no table for it."""
    # A 32-bit interpreter on a 64-bit kernel makes calls by other numbers.
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        return None
    return {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}.get(
        os.uname().machine.lower()
    )


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    """Make a system call and return its result.

    Args:
        name: A name of the table of this machine.
        arguments: Numbers, `bytes` for the kernel to read, or a buffer for it to fill.

    Raises:
        OSError: The kernel refused; `errno` says how. ENOSYS also where we have no number for `name`.
    """
    number = NUMBERS.get(architecture() or "", {}).get(name)
    if number is None:
        raise OSError(errno.ENOSYS, f"{name}: there is no such system call on this machine")
    # ctypes passes a plain int as a C int, which cuts it to 32 bits.
    converted = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    result: int = _libc().syscall(ctypes.c_long(number), *converted)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def set_no_new_privileges() -> None:
    """Have this process, and all it starts, gain nothing from setuid bits and file capabilities, for good."""
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
