"""Run a command as it would run on Binder.

    python tests/sandbox/simulate.py [--uid N] [--no-landlock] -- argv...

That is: an unprivileged user, no capabilities, no new privileges, and a system call filter that refuses what
container runtimes refuse by default (namespaces, mounts, keyrings, bpf, io_uring, ...). Changing the user
takes root; without root the command keeps the user it has. The environment passes through, except HOME, which
becomes the working folder.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

sys.path.append(str(Path(__file__).resolve().parents[2]))  # run as a program, its own folder is on the path

from aisotools.sandbox.confinement import seccomp, syscalls

REFUSED_IN_CONTAINERS = """
    acct add_key bpf clock_settime delete_module finit_module fsconfig fsmount fsopen fspick init_module
    io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl
    lookup_dcookie mount mount_setattr move_mount move_pages name_to_handle_at open_by_handle_at open_tree
    perf_event_open personality pivot_root quotactl quotactl_fd reboot request_key setdomainname
    sethostname setns settimeofday swapoff swapon syslog umount2 unshare uselib userfaultfd
"""


LANDLOCK = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")


def container_filter(arch: str, *, landlock: bool = True) -> bytes:
    """What a container's runtime puts around everything, by default."""
    refused = REFUSED_IN_CONTAINERS.split()
    namespaces = seccomp.if_any_bit(0, 0x7E020000, seccomp.REFUSE, seccomp.ALLOW)
    rules = dict.fromkeys(syscalls.NUMBERS[arch], seccomp.ALLOW) | dict.fromkeys(refused, seccomp.REFUSE)
    rules |= {} if landlock else dict.fromkeys(LANDLOCK, seccomp.fail(errno.ENOSYS))
    return seccomp.compile_rules(arch, rules | {"clone": namespaces, "clone3": seccomp.fail(errno.ENOSYS)})


def become(uid: int, *, landlock: bool = True) -> None:
    """Be `uid` without any privilege, inside the container's filter."""
    arch = syscalls.architecture()
    assert arch, "no system call table for this machine"
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    seccomp.load_filter(container_filter(arch, landlock=landlock))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uid", type=int, default=2000, help="whom to be; takes root")
    parser.add_argument("--no-landlock", action="store_true", help="as on a kernel without Landlock")
    parser.add_argument("argv", nargs="+", help="the command")
    options = parser.parse_args(arguments)
    become(options.uid, landlock=not options.no_landlock)
    os.environ["HOME"] = str(Path.cwd())
    os.execvp(options.argv[0], options.argv)


if __name__ == "__main__":
    main()
