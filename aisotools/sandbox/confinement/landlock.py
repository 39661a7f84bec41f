"""Landlock: which files a process may reach, by path; rule sets are pure functions of the kernel's version.

Every right that the kernel's Landlock can govern is handled, so what no rule grants is refused; that includes
what is granted to nobody: making device nodes and sockets, ioctl on devices, TCP, UDP, connecting to Unix
sockets by path or abstract name, signals to processes outside.

Not governed by any version, and closed by the seccomp filter instead: changing mode, owner, times, attributes
and flags, and watching. Not governed and left open: `stat` and its kin, `readlink`, `chdir`.
"""

from __future__ import annotations

import enum
import errno
import os
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from aisotools.sandbox.confinement import syscalls

KNOWN_ABI = 10
"""The newest version whose rights are known here (Linux 7.2)."""


class Right(enum.IntFlag):
    """What a rule may grant on files below a path, in the kernel's bits."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15
    RESOLVE_UNIX = 1 << 16


_SINCE = {2: Right.REFER, 3: Right.TRUNCATE, 5: Right.IOCTL_DEV, 9: Right.RESOLVE_UNIX}
_FIRST = Right((1 << 13) - 1)
_TCP, _UDP = 0b0011, 0b1100  # bind and connect of each
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11

READ = Right.EXECUTE | Right.READ_FILE | Right.READ_DIR
"""What a readable folder gives."""

_NEVER = Right.MAKE_CHAR | Right.MAKE_BLOCK | Right.MAKE_SOCK | Right.IOCTL_DEV | Right.RESOLVE_UNIX
_DEVICE = Right.READ_FILE | Right.WRITE_FILE | Right.TRUNCATE
_ON_FILES = READ & ~Right.READ_DIR | _DEVICE | Right.IOCTL_DEV | Right.RESOLVE_UNIX

WRITABLE_DEVICES = ("/dev/null", "/dev/zero")
READABLE_DEVICES = ("/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruleset:
    """One layer of restrictions.

    Attributes:
        files: The rights that are refused except where a rule grants them.
        network: The same for TCP and UDP, in the kernel's bits; nothing is granted.
        scopes: What is refused towards processes outside, in the kernel's bits.
        grants: Path and what it and everything below get. Paths that are missing or out of reach are skipped.
        required: Paths among those of `grants` that must exist.
    """

    files: Right
    network: int = 0
    scopes: int = 0
    grants: tuple[tuple[str, Right], ...] = ()
    required: frozenset[str] = frozenset()


def all_rights(abi: int) -> Right:
    """Every right on files that version `abi` governs."""
    rights = _FIRST
    for since, right in _SINCE.items():
        if abi >= since:
            rights |= right
    return rights


def ruleset(readable: Iterable[str], writable: Iterable[str], abi: int) -> Ruleset:
    """The restrictions of a worker.

    Args:
        readable: Files and folders to read and execute. Those below a writable folder get no rule: it would
            add nothing, and a worker of the past may have put a link to elsewhere in that place.
        writable: Folders to change at will, except for device nodes and sockets.
        abi: The version of Landlock, at least 1.
    """
    rights = all_rights(abi)
    wanted = tuple(writable)
    changeable = tuple(f"{os.path.normpath(folder)}/" for folder in wanted)
    return Ruleset(
        files=rights,
        network=(_TCP if abi >= 4 else 0) | (_UDP if abi >= 10 else 0),
        scopes=_ABSTRACT_SOCKETS_AND_SIGNALS if abi >= 6 else 0,
        grants=(
            *((path, READ) for path in readable if not os.path.normpath(path).startswith(changeable)),
            *((path, rights & ~_NEVER) for path in wanted),
            *((path, Right.READ_FILE) for path in READABLE_DEVICES),
            *((path, _DEVICE & rights) for path in WRITABLE_DEVICES),
        ),
        required=frozenset(wanted),
    )


def read_only_ruleset(abi: int, scratch: Iterable[str] = ()) -> Ruleset:
    """One more layer that takes away every right to change files, but for those below `scratch`."""
    changes = all_rights(abi) & ~READ & ~Right.IOCTL_DEV & ~Right.RESOLVE_UNIX
    return Ruleset(
        files=changes,
        grants=(
            *((path, changes & ~_NEVER) for path in scratch),
            *((path, _DEVICE & changes) for path in WRITABLE_DEVICES),
        ),
    )


_GET_VERSION, _GET_ERRATA = 1, 2


def abi() -> int:
    """The version of Landlock that the running kernel offers; 0 for none."""
    try:
        return syscalls.call("landlock_create_ruleset", 0, 0, _GET_VERSION)
    except OSError:
        return 0


def errata() -> tuple[int, ...]:
    """Numbers of the known mistakes in Landlock that the running kernel has mended, as far as it can tell."""
    try:
        mended = syscalls.call("landlock_create_ruleset", 0, 0, _GET_ERRATA)
    except OSError:
        return ()
    return tuple(bit + 1 for bit in range(mended.bit_length()) if mended >> bit & 1)


_PATH_BENEATH = 1
_NO_LOG_BEFORE_EXEC = 1


def enforce(rules: Ruleset, version: int) -> None:
    """Put this thread and all it starts under `rules`, for good. Threads that run already stay as they are.

    Args:
        rules: What to enforce; a pure function of `version`.
        version: The version of Landlock that the kernel offers.

    Raises:
        OSError: The kernel refused, or a required path cannot be opened.
    """
    if version < 1:
        raise OSError(errno.ENOSYS, "this kernel offers no Landlock")
    sizes = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("=QQQ", rules.files, rules.network, rules.scopes)[:sizes]
    handle = syscalls.call("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        for path, rights in rules.grants:
            _grant(handle, path, rights & rules.files, required=path in rules.required)
        syscalls.set_no_new_privileges()
        # an interpreter running a stranger's code could flood the host's audit log with refusals
        syscalls.call("landlock_restrict_self", handle, _NO_LOG_BEFORE_EXEC if version >= 7 else 0)
    finally:
        os.close(handle)


def _grant(handle: int, path: str, rights: Right, *, required: bool) -> None:
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        if required:
            raise
        return  # what cannot be opened now cannot be read later
    try:
        if not stat.S_ISDIR(os.fstat(target).st_mode):
            rights &= _ON_FILES
        if rights:  # the kernel refuses empty rules
            rule = struct.pack("=Qi", rights, target)
            syscalls.call("landlock_add_rule", handle, _PATH_BENEATH, rule, 0)
    finally:
        os.close(target)


def restrict(readable: Iterable[str], writable: Iterable[str], *, version: int | None = None) -> None:
    """Confine this thread, and all it starts, to these paths and the harmless devices, for good.

    Args:
        readable: Files and folders to read and execute; missing ones are skipped.
        writable: Folders to change; they must exist.
        version: Use at most this version of Landlock.

    Raises:
        OSError: The kernel refused, or a writable folder cannot be opened.
        NotADirectoryError: A writable path is no folder.
    """
    available = min(abi(), KNOWN_ABI, version or KNOWN_ABI)
    folders = tuple(writable)
    for folder in folders:
        if not Path(folder).is_dir():
            raise NotADirectoryError(
                errno.ENOTDIR, "cannot be made writable, because it is no folder", folder
            )
    enforce(ruleset(readable, folders, available), available)


def restrict_read_only(scratch: Iterable[str] = ()) -> None:
    """Take the right to change files from this thread and all it starts, for good; for a forked child.

    Args:
        scratch: Folders whose files may be changed all the same, for what needs temporary files.

    Raises:
        OSError: The kernel refused, or has no Landlock.
    """
    available = min(abi(), KNOWN_ABI)
    enforce(read_only_ruleset(available, scratch), available)
