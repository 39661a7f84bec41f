"""A private root: the file system of a worker at level `isolated`, planned as data, built, and checked.

The plan names what of the host's file system is seen inside, at its own path, and what is made fresh. Files
of the workspace that programs of the host run or trust are mounted on themselves read only.

Everything is built from descriptors of cloned mounts, never from paths that somebody could swap meanwhile. A
clone keeps all restrictions of the mount on the host; attributes are only added. Takes Linux 5.12 and the
right to mount, which a process has in namespaces of its own.

Threat: code at level `isolated` sees or changes files of the host by a path, by a mount that was forgotten,
or by going around a bind.
Mechanism: nothing of the host's root is kept: the new one holds clones of what the plan names, read only but
for the workspace and scratch folders, without devices and setuid, and the old one is detached. `find_flaws`
compares the table of mounts with the plan.
Race: everything is opened first and cloned by its descriptor; a path that is swapped meanwhile changes
nothing. A folder that is swapped before it is opened is shown as it is then.
Failure: a mount that cannot be made or made read only, and any mount that the plan does not know, is an
error, and the worker ends before it has taken a call.
"""

from __future__ import annotations

import enum
import errno
import os
import re
import stat
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from aisotools.core.exceptions import SandboxError
from aisotools.core.path_texts import is_within
from aisotools.sandbox.confinement import syscalls
from aisotools.sandbox.confinement.levels import is_path_below
from aisotools.sandbox.confinement.protected_mounts import (
    DeniedPaths,
    ProtectedNames,
    ProtectionMount,
    find_protected,
    plan_protection,
    without_links,
)

ALIAS = "/workspace"
"""A second path at which the workspace is seen."""

PRIVATE_FOLDERS = ("/tmp", "/dev/shm")  # noqa: S108 - they are the sandbox's own
"""Folders in memory of the sandbox's own."""

ALWAYS_SHOWN = (
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
    "/etc/alternatives",  # links, on which many commands of Debian depend
)
"""Paths that are seen in every root, where they exist."""

OPEN_AS_IS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that open whatever is there, a link itself included, without any right to it."""

FILES = {
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
    # No name server can be reached: to ask one would only take time.
    "/etc/nsswitch.conf": "hosts: files\n",
}
"""Files of the root's own: path and text."""

_ROOT_BYTES = 4 << 20  # of the tmpfs that holds nothing but mount points and links
_ROOT_FILES = 4096
_COVERED = ("/tmp", "/mnt", "/srv", "/usr")  # noqa: S108 - one of them is covered while the root is built
_DEVICE_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}
_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")  # how a mount table writes blanks and line breaks

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_AT_EMPTY_PATH = 0x1000
_AT_SYMLINK_NOFOLLOW = 0x100
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOVE_MOUNT_T_EMPTY_PATH = 0x40
_FSOPEN_CLOEXEC = 1
_FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_STRING = 1
_FSCONFIG_CMD_CREATE = 6
_MOUNT_ATTR_IDMAP = 0x100000
_MS_PRIVATE = 1 << 18
_MS_REC = 1 << 14
_MNT_DETACH = 2


class Attribute(enum.IntFlag):
    """Restrictions of a mount, in the kernel's bits."""

    READ_ONLY = 1
    NO_SETUID = 2
    NO_DEVICES = 4
    NO_PROGRAMS = 8


_PLAIN = Attribute.NO_SETUID | Attribute.NO_DEVICES
_SHOWN = _PLAIN | Attribute.READ_ONLY
_DEVICE = Attribute.NO_SETUID | Attribute.NO_PROGRAMS | Attribute.READ_ONLY


# ---------------------------------------------------------------- mounts by descriptor


def clone_mount(place: str | int, attributes: Attribute, *, users: int | None = None) -> int:
    """Return a descriptor of a copy of the mount at `place` and all below it, with `attributes` added.

    Args:
        place: A path, of which the last component is not followed, or a descriptor.
        attributes: Restrictions to add.
        users: Descriptor of a user namespace that says whose files appear as whose.

    Raises:
        OSError: The kernel refused.
    """
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    if isinstance(place, int):
        tree = syscalls.call("open_tree", place, b"", flags | _AT_EMPTY_PATH)
    else:
        tree = syscalls.call("open_tree", _AT_FDCWD, os.fsencode(place), flags | _AT_SYMLINK_NOFOLLOW)
    try:
        # Recursive: a bind mount of the host below this place would stay writable otherwise.
        restrict_mount(tree, attributes, users=users, recursive=True)
    except OSError:
        os.close(tree)
        raise
    return tree


def restrict_mount(
    mount: int, attributes: Attribute, *, users: int | None = None, recursive: bool = False
) -> None:
    """Add restrictions to a mount, and stop it from passing mounts to or from any other.

    Args:
        mount: Its descriptor.
        attributes: Restrictions to add.
        users: See `clone_mount`.
        recursive: Do the same to every mount below it.

    Raises:
        OSError: The kernel refused.
    """
    bits = attributes | (_MOUNT_ATTR_IDMAP if users is not None else 0)
    # struct mount_attr: bits to set, bits to clear, propagation, user namespace. Nothing is ever cleared.
    mount_attr = struct.pack("=QQQQ", bits, 0, _MS_PRIVATE, users or 0)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    syscalls.call("mount_setattr", mount, b"", flags, mount_attr, len(mount_attr))


def new_filesystem(kind: str, attributes: Attribute, **options: str) -> int:
    """Return a descriptor of a new file system, such as `tmpfs`, mounted nowhere.

    Raises:
        OSError: The kernel refused.
    """
    context = syscalls.call("fsopen", kind.encode(), _FSOPEN_CLOEXEC)
    try:
        for name, value in options.items():
            syscalls.call("fsconfig", context, _FSCONFIG_SET_STRING, name.encode(), value.encode(), 0)
        syscalls.call("fsconfig", context, _FSCONFIG_CMD_CREATE, 0, 0, 0)
        return syscalls.call("fsmount", context, _FSMOUNT_CLOEXEC, int(attributes))
    finally:
        os.close(context)


def attach_mount(tree: int, place: int | str) -> None:
    """Mount a descriptor of `clone_mount` or `new_filesystem`; both descriptors are closed.

    Args:
        tree: What to mount.
        place: A path or a descriptor.

    Raises:
        OSError: The kernel refused.
    """
    try:
        if isinstance(place, int):
            # It names the place that was checked, wherever its path leads by now.
            flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
            syscalls.call("move_mount", tree, b"", place, b"", flags)
        else:
            # Resolved anew, and so only for our own constants, which nobody else can put a link in the way
            # of.
            path = os.fsencode(place)
            syscalls.call("move_mount", tree, b"", _AT_FDCWD, path, _MOVE_MOUNT_F_EMPTY_PATH)
    finally:
        os.close(tree)
        if isinstance(place, int):
            os.close(place)


def make_mounts_private() -> None:
    """Let no mount made or removed from here on be seen in other mount namespaces, nor theirs here.

    Raises:
        OSError: The kernel refused.
    """
    syscalls.call("mount", b"none", b"/", 0, _MS_REC | _MS_PRIVATE, 0)


def pivot_root(top: int) -> None:
    """Make the mount `top` the root of all processes of this mount namespace, and let go of the old one.

    Raises:
        OSError: The kernel refused.
    """
    # pivot_root and not chroot: a process with the right to chroot leaves a chroot, and the old root would
    # stay mounted. With "." for both, the old root lies over the new one, at the same place, until it is
    # detached; no folder is needed to put it in. Detached lazily, because files of it are still open.
    os.fchdir(top)
    syscalls.call("pivot_root", b".", b".")
    syscalls.call("umount2", b".", _MNT_DETACH)
    os.chdir("/")


def open_without_links(path: str) -> int:
    """Return a descriptor of `path`, found without following any link.

    Raises:
        OSError: It is not there, or there is a link on the way.
    """
    # Component by component: O_NOFOLLOW holds for the last name of a path only.
    parent = os.open("/", OPEN_AS_IS)
    for name in path.strip("/").split("/"):
        child = -1
        try:
            child = os.open(name, OPEN_AS_IS, dir_fd=parent)
        finally:
            os.close(parent)
        parent = child
    return parent


# ---------------------------------------------------------------- protected names in the workspace


def protect(workspace: str, names: ProtectedNames) -> tuple[str, ...]:
    """Mount what `names` cover read only on itself, or hide it; in a mount namespace of one's own.

    Returns:
        The paths that are mount points now.

    Raises:
        OSError: The kernel refused.
        SandboxError: There is a file on the way to something that a rule of the policy is about.
    """
    denied, _ = without_links(
        workspace, DeniedPaths(unreadable=names.unreadable, unwritable=names.unwritable)
    )
    mounts = plan_protection(
        find_protected(workspace, names), unwritable=denied.unwritable, unreadable=denied.unreadable
    )
    return mount_protection(workspace, mounts, {*denied.unreadable, *denied.unwritable})


def mount_protection(
    workspace: str, mounts: Iterable[ProtectionMount], by_rules: Collection[str]
) -> tuple[str, ...]:
    """Mount what was planned, folders before what lies in them; in a mount namespace of one's own.

    Args:
        workspace: The folder, by its path in there.
        mounts: What to mount; what is not there is left out.
        by_rules: Those of their paths that rules of the policy are about.

    Returns:
        The paths that are mount points now.

    Raises:
        OSError: The kernel refused. Whatever could be mounted is.
        SandboxError: There is a file on the way to something that a rule of the policy is about.
    """
    mounted = []
    links: list[str] = []
    failure: OSError | SandboxError | None = None
    for mount in mounts:
        if any(is_within(mount.path, link) for link in links):
            continue
        try:
            place = open_without_links(f"{workspace}/{mount.path}")
        except FileNotFoundError:
            # Race: another session has removed it since it was found. What rules name need not be there.
            continue
        except NotADirectoryError as error:
            failure = failure or error
            if any(is_within(rule, mount.path) for rule in by_rules):
                failure = SandboxError(
                    f"A rule of the policy is about {mount.path!r}, but there is a file on the way to it, so "
                    "the sandbox cannot enforce the rule. Remove it, or name in the rule what is there."
                )
            continue
        try:
            mode = os.fstat(place).st_mode
            if stat.S_ISLNK(mode) and any(is_within(rule, mount.path) for rule in by_rules):
                # Also if it has come since the mounts were planned. A file may be mounted on a link, and
                # nothing is reached by the link then, also if it led to a folder.
                attach_mount(_new_nothing(folder=False), place)
                links.append(mount.path)
            elif mount.kind == "hidden":
                attach_mount(_new_nothing(folder=stat.S_ISDIR(mode)), place)
            else:
                attributes = _SHOWN if mount.kind == "read_only" else _PLAIN
                attach_mount(clone_mount(place, attributes), place)
        except OSError as error:
            # One path that cannot be mounted over is no reason to leave the others in reach.
            failure = failure or error
        else:
            mounted.append(f"{workspace}/{mount.path}")
    if failure is not None:
        raise failure
    return tuple(mounted)


def _new_nothing(*, folder: bool) -> int:
    """Return a descriptor of an empty folder or file that nobody may open, mounted nowhere."""
    # Mode 0: without capabilities, which the worker drops, not even its owner may.
    if folder:
        return new_filesystem("tmpfs", _DEVICE | _PLAIN, size="4096", nr_inodes="2", mode="000")
    system = new_filesystem("tmpfs", _PLAIN, size="4096", nr_inodes="3", mode="700")
    try:
        file = os.open("file", os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_CLOEXEC, 0o000, dir_fd=system)
        try:
            return clone_mount(file, _DEVICE | _PLAIN)
        finally:
            os.close(file)
    finally:
        os.close(system)


# ---------------------------------------------------------------- planning the root


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEntry:
    """What lies at a path of the host.

    Attributes:
        kind: What it is.
        target: The text of a link.
    """

    kind: Literal["folder", "file", "link"]
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A part of the host's file system that is seen inside, at its own path.

    Attributes:
        path: Where it lies, and where it is seen.
        folder: Whether it is a folder.
        attributes: What it is restricted to.
        mapped: Whether its owner's files are to be the worker's, where the worker has another user id.
    """

    path: str
    folder: bool
    attributes: Attribute
    mapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RootPlan:
    """A whole root.

    Attributes:
        binds: What is seen of the host, folders before what lies in them.
        links: Symbolic links: path and text.
        memory: Folders in memory: path and size in bytes.
        workspace: The folder that is also seen at `ALIAS`.
        alias: Whether it is; not where something else has to be seen there.
    """

    binds: tuple[Bind, ...]
    links: tuple[tuple[str, str], ...]
    memory: tuple[tuple[str, int], ...]
    workspace: str
    alias: bool

    def mount_points(self) -> frozenset[str]:
        """Return every path at which something is mounted."""
        alias = {ALIAS} if self.alias else set()
        binds = (bind.path for bind in self.binds)
        memory = (path for path, _ in self.memory)
        return frozenset({"/", "/proc", *binds, *memory, *alias})


def look_up(paths: Iterable[str], *, follow: bool) -> dict[str, HostEntry]:
    """Return what lies at these absolute paths; missing ones are left out.

    Args:
        paths: Absolute paths.
        follow: Also return what lies where links lead.
    """
    found: dict[str, HostEntry] = {}
    todo = list(paths)
    while todo:
        path = todo.pop()
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                found[path] = HostEntry(kind="link", target=os.readlink(path))
                real = os.path.realpath(path, strict=True)
                if follow and real not in found:
                    todo.append(real)
            else:
                found[path] = HostEntry(kind="folder" if stat.S_ISDIR(mode) else "file")
        except OSError:
            continue  # what is not there, or out of reach, cannot be shown
    return found


def plan_root(
    *,
    interpreter: Mapping[str, HostEntry],
    readable: Mapping[str, HostEntry],
    workspace: str,
    scratch: str,
    memory_bytes: int,
) -> RootPlan:
    """Return the plan of a worker's root.

    Args:
        interpreter: What `look_up` found of what the interpreter needs.
        readable: The same of further paths to be read. Links there are not followed, nor is anything below
            the workspace, where a worker of the past may have put a link to elsewhere.
        workspace: Absolute path of the folder it may change.
        scratch: The same, for its home and temporary files.
        memory_bytes: Size of each folder in memory.
    """
    writable = (workspace, scratch)
    binds: dict[str, Bind] = {}
    links: dict[str, str] = dict(_DEVICE_LINKS)
    for path, entry in interpreter.items():
        if path.startswith("/dev/"):
            binds[path] = Bind(path=path, folder=False, attributes=_DEVICE)
        elif entry.kind == "link":
            links[path] = entry.target
        else:
            binds[path] = Bind(path=path, folder=entry.kind == "folder", attributes=_SHOWN)
    for path, entry in readable.items():
        if entry.kind != "link" and not is_path_below(path, writable) and path not in interpreter:
            binds[path] = Bind(path=path, folder=entry.kind == "folder", attributes=_SHOWN, mapped=True)
    for path in writable:
        binds[path] = Bind(path=path, folder=True, attributes=_PLAIN, mapped=True)
    needed = tuple(_without_redundant(binds.values()))
    at_alias = [path for path in (*(bind.path for bind in needed), *links) if is_path_below(path, (ALIAS,))]
    return RootPlan(
        binds=tuple(sorted(needed, key=lambda bind: bind.path.count("/"))),
        links=tuple((path, target) for path, target in links.items() if not is_path_below(path, binds)),
        memory=tuple((path, memory_bytes) for path in PRIVATE_FOLDERS if path not in binds),
        workspace=workspace,
        alias=not at_alias,
    )


def _without_redundant(binds: Iterable[Bind]) -> Iterator[Bind]:
    """Leave out those that another one of the same kind shows already."""
    by_path = {bind.path: bind for bind in binds}
    for bind in by_path.values():
        above = [by_path[path] for path in map(str, Path(bind.path).parents) if path in by_path]
        if not above or (above[0].attributes, above[0].mapped) != (bind.attributes, bind.mapped):
            yield bind


# ---------------------------------------------------------------- building the root


def clone_all(plan: RootPlan, users_for: Callable[[os.stat_result], int | None]) -> dict[str, int]:
    """Return descriptors of clones of all that the plan shows of the host, by path.

    Args:
        plan: The plan.
        users_for: Returns the user namespace that makes a file's owner the worker; None where none is needed.

    Raises:
        SandboxError: Something cannot be mounted; the message names it.
    """
    trees: dict[str, int] = {}
    for bind in plan.binds:
        try:
            if bind.mapped:
                trees[bind.path] = _clone_mapped(bind, users_for)
            else:
                trees[bind.path] = clone_mount(bind.path, bind.attributes)
        except OSError as error:
            raise SandboxError(f"{bind.path!r} cannot be shown in a private root ({error})") from error
    return trees


def _clone_mapped(bind: Bind, users_for: Callable[[os.stat_result], int | None]) -> int:
    # Race: another worker, whose workspace holds this path, may swap a folder on the way for a link to a
    # place of the user's. It is opened once, without links: what was looked at is what is cloned.
    place = open_without_links(bind.path)
    try:
        users = users_for(os.fstat(place))
        try:
            return clone_mount(place, bind.attributes, users=users)
        except OSError as error:
            # EINVAL is how a file system says that it has no idmapped mounts.
            if users is None or error.errno != errno.EINVAL:
                raise
            if Attribute.READ_ONLY in bind.attributes:
                return clone_mount(place, bind.attributes)  # as far as everybody may read it
            raise OSError(
                error.errno,
                "its file system has no idmapped mounts, which a host run by root needs at this level; "
                'use level="confined", or a folder on another disk',
            ) from None
    finally:
        os.close(place)


def enter_root(plan: RootPlan, trees: Mapping[str, int], protected: ProtectedNames) -> frozenset[str]:
    """Build the root and move there, leaving nothing of the old one; in fresh namespaces, as their root user.

    Args:
        plan: The plan.
        trees: The result of `clone_all`; the descriptors are closed.
        protected: What in the workspace is to be read only.

    Returns:
        Every path at which this has mounted something.

    Raises:
        OSError: The kernel refused.
        SandboxError: A mount point could not be made.
    """
    root = new_filesystem("tmpfs", _PLAIN, size=str(_ROOT_BYTES), nr_inodes=str(_ROOT_FILES), mode="755")
    top = os.dup(root)
    # pivot_root takes only a mount that is attached somewhere. Any folder of the old root will do: it is
    # covered in this mount namespace alone, and everything else was cloned before.
    attach_mount(root, next(path for path in _COVERED if Path(path).is_dir()))
    own_devices = {os.fstat(top).st_dev}
    for path, make, folder in _mounts_in_order(plan, trees):
        tree = make()
        if path not in trees:
            own_devices.add(os.fstat(tree).st_dev)
        attach_mount(tree, _open_mount_point(top, path, folder=folder, own_devices=own_devices))
    if plan.alias:
        os.close(_open_mount_point(top, ALIAS, folder=True, own_devices=own_devices))
    for path, target in plan.links:
        parent = _open_mount_point(top, os.path.dirname(path), folder=True, own_devices=own_devices)
        os.symlink(target, os.path.basename(path), dir_fd=parent)
        os.close(parent)
    pivot_root(top)
    for file, text in FILES.items():
        Path(file).parent.mkdir(exist_ok=True)
        # Not where the host's own folder is shown: nothing is ever made in a folder of the host.
        if os.stat(os.path.dirname(file)).st_dev in own_devices:
            Path(file).write_text(text, "ascii")
    mount_points = plan.mount_points() | set(protect(plan.workspace, protected))
    if plan.alias:
        # After the protection: a clone takes along what is mounted below, so it holds at the alias too.
        attach_mount(clone_mount(plan.workspace, _PLAIN), ALIAS)
    # Last, because every mount point and link above was made in it.
    restrict_mount(top, Attribute.READ_ONLY)
    os.close(top)
    return mount_points


def _mounts_in_order(
    plan: RootPlan, trees: Mapping[str, int]
) -> Iterator[tuple[str, Callable[[], int], bool]]:
    """Yield path, maker, and whether it is a folder, of every mount; folders before what lies in them."""
    mounts: list[tuple[str, Callable[[], int], bool]] = [("/proc", _new_proc, True)]
    mounts += [(path, partial(_new_memory, size), True) for path, size in plan.memory]
    mounts += [(bind.path, partial(trees.__getitem__, bind.path), bind.folder) for bind in plan.binds]
    yield from sorted(mounts, key=lambda mount: mount[0].count("/"))


def _new_proc() -> int:
    # Processes only, which are the sandbox's own. The rest of /proc describes, and configures, the machine.
    return new_filesystem("proc", _PLAIN | Attribute.NO_PROGRAMS, subset="pid")


def _new_memory(size_bytes: int) -> int:
    return new_filesystem("tmpfs", _PLAIN, size=str(size_bytes), mode="1777")


def _open_mount_point(top: int, path: str, *, folder: bool, own_devices: set[int]) -> int:
    """Return a descriptor of a place to mount at; made if missing, but never in a folder of the host."""
    here = os.dup(top)
    try:
        names = [name for name in path.split("/") if name]
        for depth, name in enumerate(names, 1):
            # Below a bind the file system is the host's: a missing mount point there is an error, and not a
            # folder that appears in the user's files.
            make = os.fstat(here).st_dev in own_devices
            inner = _open_or_make(here, name, make=make, folder=folder or depth < len(names))
            os.close(here)
            here = inner
        if stat.S_ISLNK(os.fstat(here).st_mode):
            raise SandboxError(f"{path!r} has become a link")
    except OSError as error:
        os.close(here)
        raise SandboxError(f"{path!r} cannot be mounted at ({error})") from error
    return here


def _open_or_make(here: int, name: str, *, make: bool, folder: bool) -> int:
    try:
        return os.open(name, OPEN_AS_IS, dir_fd=here)
    except FileNotFoundError:
        if not make:
            raise
    if folder:
        os.mkdir(name, 0o755, dir_fd=here)
    else:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o444, dir_fd=here))
    return os.open(name, OPEN_AS_IS, dir_fd=here)


# ---------------------------------------------------------------- checking the root


def file_identities(paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return device and inode number of each of these files, as they are now; missing ones are left out."""
    found = {}
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        found[path] = (status.st_dev, status.st_ino)
    return found


def find_flaws(
    plan: RootPlan,
    mount_points: frozenset[str],
    identities: Mapping[str, tuple[int, int]],
    mount_table: str,
) -> Iterator[str]:
    """Yield what is wrong with the root that this process lives in, one phrase for each flaw.

    Args:
        plan: What it should be.
        mount_points: The result of `enter_root`.
        identities: The result of `file_identities` on the host.
        mount_table: The text of /proc/self/mountinfo.
    """
    for path, (device, number) in identities.items():
        try:
            status = os.stat(path)
        except OSError as error:
            yield f"{path!r} is needed and cannot be reached ({error.strerror})"
            continue
        if (status.st_dev, status.st_ino) != (device, number):
            yield f"{path!r} is another file than before"
    read_only = {bind.path for bind in plan.binds if Attribute.READ_ONLY in bind.attributes} | {"/"}
    # Mounts of the host below what is shown are cloned with it, and expected.
    shown = {bind.path for bind in plan.binds} | ({ALIAS} if plan.alias else set())
    mounted = set()
    for path, options, _ in read_mounts(mount_table):
        mounted.add(path)
        if path not in mount_points and not is_path_below(path, shown):
            yield f"something is mounted at {path!r}"
        if path in read_only and "ro" not in options:
            yield f"{path!r} can be written"
        if "nosuid" not in options:
            yield f"programs at {path!r} could gain rights"
    yield from (f"nothing is mounted at {path!r}" for path in sorted(mount_points - mounted))
    made = (*mount_points, *(link for link, _ in plan.links), *FILES)
    expected = {path.split("/")[1] for path in made} - {""}
    yield from (f"{name!r} lies in the root folder" for name in sorted(set(os.listdir("/")) - expected))


def read_mounts(table: str) -> Iterator[tuple[str, frozenset[str], str]]:
    """Yield mount point, options, and what the file system is, of each line of a mount table."""
    for line in table.splitlines():
        fields = line.split(" ")
        path = _OCTAL_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
        # Optional fields come before the dash; behind it are kind, source, and options of the whole.
        yield path, frozenset(fields[5].split(",")), line.partition(" - ")[2]
