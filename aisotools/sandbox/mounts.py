"""Mounts by descriptor: cloning, restricting, making and attaching them.

What was mounted on the host keeps all its restrictions in a clone; attributes are only added. Takes Linux
5.12 and the right to mount, which a process has in namespaces of its own.
"""

from __future__ import annotations

import enum
import os
import struct

from aisotools.sandbox import syscalls


class Attribute(enum.IntFlag):
    """Restrictions of a mount, in the kernel's bits."""

    READ_ONLY = 1
    NO_SETUID = 2
    NO_DEVICES = 4
    NO_PROGRAMS = 8


AS_IT_IS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that open whatever is there, a link itself included, without any right to it."""

_HERE = -100  # AT_FDCWD
_CLONE, _RECURSIVE, _EMPTY_PATH, _NO_FOLLOW = 1, 0x8000, 0x1000, 0x100
_FROM_DESCRIPTOR, _TO_DESCRIPTOR = 4, 0x40
_CLOSE_ON_EXEC, _SET_STRING, _CREATE = 1, 1, 6
_ID_MAPPED = 0x100000
_PRIVATE, _ALL_BELOW = 1 << 18, 1 << 14
_DETACH = 2


def clone(place: str | int, attributes: Attribute, *, users: int | None = None) -> int:
    """A descriptor of a copy of the mount at `place` and all below it, with `attributes` added.

    Args:
        place: A path, of which the last component is not followed, or a descriptor.
        attributes: Restrictions to add.
        users: Descriptor of a user namespace that says whose files appear as whose.

    Raises:
        OSError: The kernel refused.
    """
    if isinstance(place, int):
        tree = syscalls.call("open_tree", place, b"", _CLONE | _RECURSIVE | os.O_CLOEXEC | _EMPTY_PATH)
    else:
        flags = _CLONE | _RECURSIVE | os.O_CLOEXEC | _NO_FOLLOW
        tree = syscalls.call("open_tree", _HERE, os.fsencode(place), flags)
    try:
        restrict(tree, attributes, users=users, all_below=True)
    except OSError:
        os.close(tree)
        raise
    return tree


def restrict(mount: int, attributes: Attribute, *, users: int | None = None, all_below: bool = False) -> None:
    """Add restrictions to a mount, and part it from all others.

    Args:
        mount: Its descriptor.
        attributes: Restrictions to add.
        users: See `clone`.
        all_below: Do the same to every mount below it.

    Raises:
        OSError: The kernel refused.
    """
    bits = attributes | (_ID_MAPPED if users is not None else 0)
    wanted = struct.pack("=QQQQ", bits, 0, _PRIVATE, users or 0)
    flags = _EMPTY_PATH | (_RECURSIVE if all_below else 0)
    syscalls.call("mount_setattr", mount, b"", flags, wanted, len(wanted))


def fresh(kind: str, attributes: Attribute, **options: str) -> int:
    """A descriptor of a new file system, such as `tmpfs`, mounted nowhere.

    Raises:
        OSError: The kernel refused.
    """
    context = syscalls.call("fsopen", kind.encode(), _CLOSE_ON_EXEC)
    try:
        for name, value in options.items():
            syscalls.call("fsconfig", context, _SET_STRING, name.encode(), value.encode(), 0)
        syscalls.call("fsconfig", context, _CREATE, 0, 0, 0)
        return syscalls.call("fsmount", context, _CLOSE_ON_EXEC, int(attributes))
    finally:
        os.close(context)


def attach(tree: int, place: int | str) -> None:
    """Mount what `clone` or `fresh` gave at a descriptor or path; the descriptors are closed.

    Raises:
        OSError: The kernel refused.
    """
    try:
        if isinstance(place, int):
            syscalls.call("move_mount", tree, b"", place, b"", _FROM_DESCRIPTOR | _TO_DESCRIPTOR)
        else:
            syscalls.call("move_mount", tree, b"", _HERE, os.fsencode(place), _FROM_DESCRIPTOR)
    finally:
        os.close(tree)
        if isinstance(place, int):
            os.close(place)


def part_from_host() -> None:
    """Let no mount made or removed from here on be seen in other mount namespaces, nor theirs here.

    Raises:
        OSError: The kernel refused.
    """
    syscalls.call("mount", b"none", b"/", 0, _ALL_BELOW | _PRIVATE, 0)


def move_root(top: int) -> None:
    """Make the mount `top` the root of all processes of this mount namespace; the old one is let go.

    Raises:
        OSError: The kernel refused.
    """
    os.fchdir(top)
    syscalls.call("pivot_root", b".", b".")
    syscalls.call("umount2", b".", _DETACH)
    os.chdir("/")


def straight(path: str) -> int:
    """A descriptor of `path`, found without following any link.

    Raises:
        OSError: It is not there, or there is a link on the way.
    """
    here = os.open("/", AS_IT_IS)
    for name in path.strip("/").split("/"):
        inner = -1
        try:
            inner = os.open(name, AS_IT_IS, dir_fd=here)
        finally:
            os.close(here)
        here = inner
    return here
