"""Landlock: which files a process may reach, by path. Rule sets are pure functions of the kernel's version.

Every right that the kernel's Landlock can govern is handled, so what no rule grants is refused. Granted to
nobody are: making device nodes and sockets, ioctl on devices, TCP and UDP (except in a network namespace of
the worker's own), connecting to Unix sockets by path or abstract name, signals to processes outside.

No version governs changing mode, owner, times, attributes and flags, nor watching: the seccomp filter refuses
those. Neither governs, nor does anything here close, `stat` and similar calls, `readlink` and `chdir`.

Threat: code opens, makes, moves or removes files that nobody gave it, or reaches a socket or a process
outside.
Mechanism: the kernel asks the rule set at each access, by the place in the file system and not by the text of
a path, so links, `..` and /proc lead nowhere else. Rights can be given up and never be taken back, and hold
for all that the process starts.
Race: rules name open folders. One that was moved takes its rights along to the new place, so folders that
others may move are not to be given. What was opened before is not asked about; see `aisotools.sandbox.limits`
and the worker's own check of its descriptors.
Failure: a rule set that cannot be made, or that the kernel knows less of than the level needs, is an error,
and the worker does not start.
"""

from __future__ import annotations

import enum
import errno
import os
import stat
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
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


READ = Right.EXECUTE | Right.READ_FILE | Right.READ_DIR
"""The rights that a readable folder gives."""

WRITABLE_DEVICES = ("/dev/null", "/dev/zero")
"""Devices that every worker may read and write."""

READABLE_DEVICES = ("/dev/full", "/dev/random", "/dev/urandom")
"""Devices that every worker may read."""

_RIGHTS_OF_ABI_1 = Right((1 << 13) - 1)
_RIGHTS_ADDED = {2: Right.REFER, 3: Right.TRUNCATE, 5: Right.IOCTL_DEV, 9: Right.RESOLVE_UNIX}
_TCP = 0b0011  # bind and connect
_TCP_SINCE = 4
_UDP = 0b1100  # bind and connect
_UDP_SINCE = 10
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
_SIGNALS = 0b10
_SCOPES_SINCE = 6

# Not even in the workspace: these reach drivers and other processes, not files.
_NEVER = Right.MAKE_CHAR | Right.MAKE_BLOCK | Right.MAKE_SOCK | Right.IOCTL_DEV | Right.RESOLVE_UNIX
_DEVICE = Right.READ_FILE | Right.WRITE_FILE | Right.TRUNCATE
_RIGHTS_ON_FILES = READ & ~Right.READ_DIR | _DEVICE | Right.IOCTL_DEV | Right.RESOLVE_UNIX

_CREATE_RULESET_VERSION = 1
_CREATE_RULESET_ERRATA = 2
_RULE_PATH_BENEATH = 1
_LOG_SAME_EXEC_OFF = 1
_LOG_FLAGS_SINCE = 7

READER_SINCE = _SCOPES_SINCE
"""The version that `restrict_reader` takes."""


GrantOpened = Callable[[int, Right], None]
"""Grants rights on what a descriptor has open, and on everything below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruleset:
    """One layer of restrictions.

    Attributes:
        files: The rights that are refused except where a rule grants them.
        network: The same for TCP and UDP, in the kernel's bits; no rule grants any.
        scopes: What is refused towards processes outside, in the kernel's bits.
        grants: Path, and the rights on it and everything below. Missing or unreachable paths are skipped.
        required: Paths among those of `grants` that must exist.
    """

    files: Right
    network: int = 0
    scopes: int = 0
    grants: tuple[tuple[str, Right], ...] = ()
    required: frozenset[str] = frozenset()


def all_rights(abi: int) -> Right:
    """Return every right on files that version `abi` governs."""
    rights = _RIGHTS_OF_ABI_1
    for since, right in _RIGHTS_ADDED.items():
        if abi >= since:
            rights |= right
    return rights


def ruleset(
    readable: Iterable[str], writable: Iterable[str], abi: int, *, own_network: bool = False
) -> Ruleset:
    """Return the restrictions of a worker.

    Args:
        readable: Files and folders to read and execute. Those below a writable folder get no rule.
        writable: Folders to change at will, except for device nodes and sockets.
        abi: The version of Landlock, at least 1.
        own_network: Leave TCP and UDP alone, because there is a network with nobody else in it.
    """
    rights = all_rights(abi)
    folders = tuple(writable)
    # A readable path below a writable folder needs no rule. It must not get one either: a worker of the past
    # may have put a link in that place, and the rule would hold for wherever the link leads.
    below_writable = tuple(f"{os.path.normpath(folder)}/" for folder in folders)
    return Ruleset(
        files=rights,
        network=0 if own_network else _every_protocol(abi),
        scopes=_ABSTRACT_SOCKETS_AND_SIGNALS if abi >= _SCOPES_SINCE else 0,
        grants=(
            *((path, READ) for path in readable if not os.path.normpath(path).startswith(below_writable)),
            *((path, rights & ~_NEVER) for path in folders),
            *((path, Right.READ_FILE) for path in READABLE_DEVICES),
            *((path, _DEVICE & rights) for path in WRITABLE_DEVICES),
        ),
        required=frozenset(folders),
    )


def _every_protocol(abi: int) -> int:
    return (_TCP if abi >= _TCP_SINCE else 0) | (_UDP if abi >= _UDP_SINCE else 0)


def read_only_ruleset(abi: int, scratch: Iterable[str] = ()) -> Ruleset:
    """Return one more layer, which takes away every right to change files, except below `scratch`.

    It also refuses signals to processes that were not started below it, from version 6 of Landlock on: the
    worker, its tasks and other commands go on, whatever a command that was classified read only does.
    """
    # Layers only ever take away: the kernel asks every layer, and the writable folders of the worker's own
    # layer stay its only ones. So this one handles changes alone, and needs no rule for anything to be read.
    changes = all_rights(abi) & ~READ & ~Right.IOCTL_DEV & ~Right.RESOLVE_UNIX
    return Ruleset(
        files=changes,
        scopes=_SIGNALS if abi >= _SCOPES_SINCE else 0,
        grants=(
            *((path, changes & ~_NEVER) for path in scratch),
            *((path, _DEVICE & changes) for path in WRITABLE_DEVICES),
        ),
    )


def abi() -> int:
    """Return the version of Landlock that the running kernel offers; 0 for none."""
    # ENOSYS: the kernel is older, or was built without it. EOPNOTSUPP: it was not switched on at boot. EPERM:
    # the container's own filter refuses it. For us all three are the same.
    try:
        return syscalls.call("landlock_create_ruleset", 0, 0, _CREATE_RULESET_VERSION)
    except OSError:
        return 0


def errata() -> tuple[int, ...]:
    """Return the numbers of the known errors in Landlock that the running kernel has fixed, if it tells."""
    # Kernels that do not know the flag refuse it with EINVAL: they may have fixed errors all the same.
    try:
        fixed = syscalls.call("landlock_create_ruleset", 0, 0, _CREATE_RULESET_ERRATA)
    except OSError:
        return ()
    return tuple(bit + 1 for bit in range(fixed.bit_length()) if fixed >> bit & 1)


def enforce(rules: Ruleset, version: int, add_grants: Callable[[GrantOpened], None] | None = None) -> None:
    """Put this thread and all it starts under `rules`, for good. Threads that run already stay as they are.

    Args:
        rules: What to enforce; a pure function of `version`.
        version: The version of Landlock that the kernel offers.
        add_grants: Makes further grants; whatever it raises ends this, and nothing is enforced.

    Raises:
        OSError: The kernel refused, or a required path cannot be opened.
    """
    if version < 1:
        raise OSError(errno.ENOSYS, "this kernel offers no Landlock")
    # struct landlock_ruleset_attr has grown: an older kernel refuses a longer one with E2BIG.
    size = 24
    if version < _SCOPES_SINCE:
        size = 16
    if version < _TCP_SINCE:
        size = 8
    attributes = struct.pack("=QQQ", rules.files, rules.network, rules.scopes)[:size]
    # Descriptor: it is closed in any case, as a ruleset that stays open could be extended.
    handle = syscalls.call("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        for path, rights in rules.grants:
            _grant(handle, path, rights & rules.files, required=path in rules.required)
        if add_grants is not None:
            add_grants(lambda opened, rights: _grant_opened(handle, opened, rights & rules.files))
        # Without it the kernel refuses the next call to an unprivileged process.
        syscalls.set_no_new_privileges()
        # A stranger's code could flood the host's audit log with refusals.
        flags = _LOG_SAME_EXEC_OFF if version >= _LOG_FLAGS_SINCE else 0
        syscalls.call("landlock_restrict_self", handle, flags)
    finally:
        os.close(handle)


def _grant(handle: int, path: str, rights: Right, *, required: bool) -> None:
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        if required:
            raise
        # No hole: a path without a rule is refused. One that appears later stays closed to this worker.
        return
    try:
        _grant_opened(handle, target, rights)
    finally:
        os.close(target)


def _grant_opened(handle: int, target: int, rights: Right) -> None:
    # The kernel refuses rights on folders for a file, and rules without any right.
    if not stat.S_ISDIR(os.fstat(target).st_mode):
        rights &= _RIGHTS_ON_FILES
    if rights:
        rule = struct.pack("=Qi", rights, target)
        syscalls.call("landlock_add_rule", handle, _RULE_PATH_BENEATH, rule, 0)


def restrict(
    readable: Iterable[str],
    writable: Iterable[str],
    *,
    version: int | None = None,
    own_network: bool = False,
) -> None:
    """Confine this thread, and all it starts, to these paths and the harmless devices, for good.

    Args:
        readable: Files and folders to read and execute; missing ones are skipped.
        writable: Folders to change; they must exist.
        version: Use at most this version of Landlock.
        own_network: See `ruleset`.

    Raises:
        OSError: The kernel refused, or a writable folder cannot be opened.
        NotADirectoryError: A writable path is not a folder.
    """
    # A newer kernel has rights that are not known here. Handling them would refuse things unseen.
    available = min(abi(), KNOWN_ABI, version or KNOWN_ABI)
    folders = tuple(writable)
    for folder in folders:
        if not Path(folder).is_dir():
            raise NotADirectoryError(
                errno.ENOTDIR, "it cannot be made writable, because it is not a folder", folder
            )
    enforce(ruleset(readable, folders, available, own_network=own_network), available)


def restrict_read_only(scratch: Iterable[str] = ()) -> None:
    """Take the right to change files from this thread and all it starts, for good; for a forked child.

    Args:
        scratch: Folders whose files may be changed all the same, for what needs temporary files.

    Raises:
        OSError: The kernel refused, or has no Landlock.
    """
    available = min(abi(), KNOWN_ABI)
    enforce(read_only_ruleset(available, scratch), available)


def restrict_reader(scratch: Iterable[str] = ()) -> None:
    """Take from this thread and all it starts, for good, all rights to change files and to reach others.

    Even the worker's scratch folders are closed, and signals to whatever this thread has not started itself.

    Args:
        scratch: Folders whose files may be changed all the same.

    Raises:
        OSError: The kernel refused, or offers less than version `READER_SINCE`.
    """
    available = min(abi(), KNOWN_ABI)
    if available < READER_SINCE:
        raise OSError(errno.ENOSYS, f"this kernel offers Landlock {available}, a reader takes {READER_SINCE}")
    layer = replace(
        read_only_ruleset(available, scratch),
        network=_every_protocol(available),
        scopes=_ABSTRACT_SOCKETS_AND_SIGNALS,
    )
    enforce(layer, available)
