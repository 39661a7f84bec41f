"""A private root: what a worker at level `isolated` can see at all, planned as data, built, and checked.

The plan names what of the host's file system is seen inside, at its own path, and what is made fresh.
Building works on descriptors of cloned mounts, never on paths that somebody could swap meanwhile.

Mounts by descriptor: cloning, restricting, making and attaching them.

What was mounted on the host keeps all its restrictions in a clone; attributes are only added. Takes Linux
5.12 and the right to mount, which a process has in namespaces of its own.

Files of a workspace that programs of the host run or trust, mounted on themselves read only.

So are, writable, the folders above them: a mount point can be neither renamed nor removed, while a folder
that merely holds one could be moved away and made anew. The price: renaming into or out of such a folder
fails with EXDEV, as it does between two disks.
"""

from __future__ import annotations

import enum
import errno
import fnmatch
import os
import re
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement import syscalls


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


DEPTH = 6
"""How many levels of folders are searched."""

ENTRIES = 5_000
"""How many directory entries are looked at, the upper levels first; what lies beyond is not shielded."""

MOST = 128
"""How many files and folders are shielded at most."""

_PLAIN_FLAGS = Attribute.NO_SETUID | Attribute.NO_DEVICES


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedNames:
    """What is to be read only wherever it lies in the workspace; letter case does not matter.

    Attributes:
        files: Globs of file names.
        folders: Paths of folders, such as `.git/hooks`.
    """

    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    def cover(self, path: str, *, folder: bool) -> bool:
        """Whether `path`, relative to the workspace, is one of these."""
        low = path.lower()
        if folder:
            return any(f"/{low}".endswith(f"/{name}") for name in self.folders)
        name = low.rpartition("/")[2]
        return any(fnmatch.fnmatchcase(name, glob) for glob in self.files)


@dataclass(frozen=True, slots=True)
class Shield:
    """One mount to make.

    Attributes:
        path: Relative to the workspace.
        read_only: Whether it is what is protected, or a folder above it.
    """

    path: str
    read_only: bool


def shields(protected: list[str]) -> tuple[Shield, ...]:
    """The mounts that protect these paths, folders before what lies in them."""
    found: dict[str, bool] = {}
    for path in protected[:MOST]:
        names = path.split("/")
        for depth in range(1, len(names)):
            found.setdefault("/".join(names[:depth]), False)
        found[path] = True
    inside = [path for path in found if any(path.startswith(f"{p}/") for p in protected if found.get(p))]
    ordered = sorted((path for path in found if path not in inside), key=lambda path: path.count("/"))
    return tuple(Shield(path, found[path]) for path in ordered)


def find(workspace: str, names: ProtectedNames) -> list[str]:
    """What `names` cover in the workspace, relative to it, within the bounds; links are not followed."""
    found: list[str] = []
    level, seen = [""], 0
    for _ in range(DEPTH):
        below: list[str] = []
        for folder in level:
            try:
                with os.scandir(f"{workspace}/{folder}") as entries:
                    for entry in entries:
                        seen += 1
                        path = f"{folder}/{entry.name}" if folder else entry.name
                        is_folder = entry.is_dir(follow_symlinks=False)
                        if names.cover(path, folder=is_folder) and not entry.is_symlink():
                            found.append(path)
                        elif is_folder:
                            below.append(path)
            except OSError:
                continue  # what may not be read here cannot be searched
            if seen > ENTRIES:
                return found
        level = below
    return found


def raise_shields(workspace: str, names: ProtectedNames) -> tuple[str, ...]:
    """Mount everything that `names` cover read only on itself; in a mount namespace of one's own.

    Returns:
        The paths that are mount points now.

    Raises:
        OSError: The kernel refused.
    """
    raised = []
    for shield in shields(find(workspace, names)):
        path = f"{workspace}/{shield.path}"
        try:
            place = straight(path)
        except FileNotFoundError:
            continue  # another session has removed it meanwhile
        tree = clone(place, _PLAIN_FLAGS | (Attribute.READ_ONLY if shield.read_only else Attribute(0)))
        attach(tree, place)
        raised.append(path)
    return tuple(raised)


ALIAS = "/workspace"
"""Where the workspace is seen, beside its own path."""

PRIVATE = ("/tmp", "/dev/shm")  # noqa: S108 - they are the sandbox's own
"""Folders in memory of the sandbox's own."""

ALWAYS = (
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
    "/etc/alternatives",  # links, on which many commands of Debian depend
)
"""What is seen in every root, where it is there."""

_DEVICE_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}
_ROOT_BYTES, _ROOT_FILES = 4 << 20, 4096
_COVERED = ("/tmp", "/mnt", "/srv", "/usr")  # noqa: S108 - one of them is covered while the root is built


_ESCAPED = re.compile(r"\\([0-7]{3})")
_PLAIN = Attribute.NO_SETUID | Attribute.NO_DEVICES
_SHOWN = _PLAIN | Attribute.READ_ONLY
_DEVICE = Attribute.NO_SETUID | Attribute.NO_PROGRAMS | Attribute.READ_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEntry:
    """What lies at a path of the host.

    Attributes:
        kind: What it is.
        text: Where a link leads, as it says.
    """

    kind: Literal["folder", "file", "link"]
    text: str = ""


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
        memory: Folders in memory: path and size.
        workspace: The folder that is also seen at `ALIAS`.
        alias: Whether it is; not where something else has to be seen there.
    """

    binds: tuple[Bind, ...]
    links: tuple[tuple[str, str], ...]
    memory: tuple[tuple[str, int], ...]
    workspace: str
    alias: bool

    def points(self) -> frozenset[str]:
        """Every path at which something is mounted."""
        alias = {ALIAS} if self.alias else set()
        return frozenset({"/", "/proc", *(b.path for b in self.binds), *(p for p, _ in self.memory), *alias})


# ---------------------------------------------------------------- planning


def look(paths: Iterable[str], *, follow: bool) -> dict[str, HostEntry]:
    """What lies at these paths; missing ones are left out.

    Args:
        paths: Absolute paths.
        follow: Whether what links lead to is among the answer, too.
    """
    found: dict[str, HostEntry] = {}
    todo = list(paths)
    while todo:
        path = todo.pop()
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                found[path] = HostEntry(kind="link", text=os.readlink(path))
                real = os.path.realpath(path, strict=True)
                if follow and real not in found:
                    todo.append(real)
            else:
                found[path] = HostEntry(kind="folder" if stat.S_ISDIR(mode) else "file")
        except OSError:
            continue  # what is not there, or out of reach, cannot be shown
    return found


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def plan_root(
    *,
    interpreter: Mapping[str, HostEntry],
    readable: Mapping[str, HostEntry],
    workspace: str,
    scratch: str,
    memory_bytes: int,
) -> RootPlan:
    """The root of a worker.

    Args:
        interpreter: What `look` found of what the interpreter needs.
        readable: The same of further paths to be read. Links there are not followed, nor is anything below
            the workspace, where a worker of the past may have put a link to elsewhere.
        workspace: Absolute path of the folder it may change.
        scratch: The same, for its home and temporary files.
        memory_bytes: Size of each folder in memory.
    """
    ours = (workspace, scratch)
    binds: dict[str, Bind] = {}
    links: dict[str, str] = dict(_DEVICE_LINKS)
    for path, found in interpreter.items():
        if path.startswith("/dev/"):
            binds[path] = Bind(path=path, folder=False, attributes=_DEVICE)
        elif found.kind == "link":
            links[path] = found.text
        else:
            binds[path] = Bind(path=path, folder=found.kind == "folder", attributes=_SHOWN)
    for path, found in readable.items():
        if found.kind != "link" and not _below(path, ours) and path not in interpreter:
            binds[path] = Bind(path=path, folder=found.kind == "folder", attributes=_SHOWN, mapped=True)
    for path in ours:
        binds[path] = Bind(path=path, folder=True, attributes=_PLAIN, mapped=True)
    needed = tuple(_needed(binds.values()))
    at_alias = [path for path in (*(bind.path for bind in needed), *links) if _below(path, (ALIAS,))]
    return RootPlan(
        binds=tuple(sorted(needed, key=lambda bind: bind.path.count("/"))),
        links=tuple((path, text) for path, text in links.items() if not _below(path, binds)),
        memory=tuple((path, memory_bytes) for path in PRIVATE if path not in binds),
        workspace=workspace,
        alias=not at_alias,
    )


def _needed(binds: Iterable[Bind]) -> Iterator[Bind]:
    """Without those that another one of the same kind shows already."""
    known = {bind.path: bind for bind in binds}
    for bind in known.values():
        above = [known[p] for p in map(str, Path(bind.path).parents) if p in known]
        if not above or (above[0].attributes, above[0].mapped) != (bind.attributes, bind.mapped):
            yield bind


# ---------------------------------------------------------------- building


def clone_all(plan: RootPlan, users_for: Callable[[os.stat_result], int | None]) -> dict[str, int]:
    """Descriptors of all that the plan shows of the host, by path.

    Args:
        plan: The plan.
        users_for: The user namespace that makes a file's owner the worker; None where that is not needed.

    Raises:
        SandboxError: Something cannot be mounted; the message names it.
    """
    trees: dict[str, int] = {}
    for bind in plan.binds:
        try:
            trees[bind.path] = _clone_mapped(bind, users_for) if bind.mapped else _clone(bind)
        except OSError as error:
            raise SandboxError(f"{bind.path!r} cannot be shown in a private root ({error})") from error
    return trees


def _clone(bind: Bind) -> int:
    return clone(bind.path, bind.attributes)


def _clone_mapped(bind: Bind, users_for: Callable[[os.stat_result], int | None]) -> int:
    place = straight(bind.path)  # another worker may have swapped a folder on the way for a link
    try:
        users = users_for(os.fstat(place))
        try:
            return clone(place, bind.attributes, users=users)
        except OSError as error:
            if users is None or error.errno != errno.EINVAL:
                raise
            if Attribute.READ_ONLY in bind.attributes:
                return clone(place, bind.attributes)  # as far as everybody may read it
            told = "its file system has no idmapped mounts, which a host run by root needs at this level"
            raise OSError(error.errno, f'{told}; use level="confined", or a folder on another disk') from None
    finally:
        os.close(place)


def enter(plan: RootPlan, trees: Mapping[str, int], protected: ProtectedNames) -> frozenset[str]:
    """Build the root and move there, leaving nothing of the old one; in fresh namespaces, as their root user.

    Args:
        plan: The plan.
        trees: What `clone_all` gave; the descriptors are closed.
        protected: What in the workspace is to be read only.

    Returns:
        Every path at which something is mounted by us.

    Raises:
        OSError: The kernel refused.
        SandboxError: A mount point could not be made.
    """
    root = fresh("tmpfs", _PLAIN, size=str(_ROOT_BYTES), nr_inodes=str(_ROOT_FILES), mode="755")
    top = os.dup(root)
    attach(root, next(path for path in _COVERED if Path(path).is_dir()))
    own = {os.fstat(top).st_dev}
    for path, make, folder in _in_order(plan, trees):
        tree = make()
        if path not in trees:
            own.add(os.fstat(tree).st_dev)
        attach(tree, _point(top, path, folder=folder, own=own))
    if plan.alias:
        os.close(_point(top, ALIAS, folder=True, own=own))
    for path, text in plan.links:
        above = _point(top, os.path.dirname(path), folder=True, own=own)
        os.symlink(text, os.path.basename(path), dir_fd=above)
        os.close(above)
    move_root(top)
    points = plan.points() | set(raise_shields(plan.workspace, protected))
    if plan.alias:
        attach(clone(plan.workspace, _PLAIN), ALIAS)  # with its shields
    restrict(top, Attribute.READ_ONLY)
    os.close(top)
    return points


def _in_order(plan: RootPlan, trees: Mapping[str, int]) -> Iterator[tuple[str, Callable[[], int], bool]]:
    """Path, maker and kind of every mount, folders before what lies in them."""
    every: list[tuple[str, Callable[[], int], bool]] = [("/proc", _new_proc, True)]
    every += [(path, partial(_new_memory, size), True) for path, size in plan.memory]
    every += [(bind.path, partial(trees.__getitem__, bind.path), bind.folder) for bind in plan.binds]
    yield from sorted(every, key=lambda mount: mount[0].count("/"))


def _new_proc() -> int:
    # of the machine itself nothing is told: only the processes are there, which are the sandbox's own
    return fresh("proc", _PLAIN | Attribute.NO_PROGRAMS, subset="pid")


def _new_memory(size_bytes: int) -> int:
    return fresh("tmpfs", _PLAIN, size=str(size_bytes), mode="1777")


def _point(top: int, path: str, *, folder: bool, own: set[int]) -> int:
    """A descriptor of a place to mount at, made if missing where all is ours; no link is followed."""
    here = os.dup(top)
    try:
        names = [name for name in path.split("/") if name]
        for depth, name in enumerate(names, 1):
            inner = _step(here, name, make=os.fstat(here).st_dev in own, folder=folder or depth < len(names))
            os.close(here)
            here = inner
        if stat.S_ISLNK(os.fstat(here).st_mode):
            raise SandboxError(f"{path!r} has become a link")
    except OSError as error:
        os.close(here)
        raise SandboxError(f"{path!r} cannot be mounted at ({error})") from error
    return here


def _step(here: int, name: str, *, make: bool, folder: bool) -> int:
    try:
        return os.open(name, AS_IT_IS, dir_fd=here)
    except FileNotFoundError:
        if not make:
            raise
    if folder:
        os.mkdir(name, 0o755, dir_fd=here)
    else:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o444, dir_fd=here))
    return os.open(name, AS_IT_IS, dir_fd=here)


# ---------------------------------------------------------------- checking


def identities(paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Device and number of each of these files, as they are now; missing ones are left out."""
    found = {}
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        found[path] = (status.st_dev, status.st_ino)
    return found


def flaws(
    plan: RootPlan, points: frozenset[str], needed: Mapping[str, tuple[int, int]], mount_table: str
) -> Iterator[str]:
    """What is wrong with the root that this process lives in, in words.

    Args:
        plan: What it should be.
        points: What `enter` gave.
        needed: What `identities` gave before.
        mount_table: The text of /proc/self/mountinfo.
    """
    for path, (device, number) in needed.items():
        try:
            status = os.stat(path)
        except OSError as error:
            yield f"{path!r} is needed and cannot be reached ({error.strerror})"
            continue
        if (status.st_dev, status.st_ino) != (device, number):
            yield f"{path!r} is another file than before"
    read_only = {bind.path for bind in plan.binds if Attribute.READ_ONLY in bind.attributes} | {"/"}
    shown = {bind.path for bind in plan.binds} | ({ALIAS} if plan.alias else set())
    seen = set()
    for path, options in read_mounts(mount_table):
        seen.add(path)
        if path not in points and not _below(path, shown):
            yield f"something is mounted at {path!r}"
        if path in read_only and "ro" not in options:
            yield f"{path!r} can be written"
        if "nosuid" not in options:
            yield f"programs at {path!r} could gain rights"
    yield from (f"nothing is mounted at {path!r}" for path in sorted(points - seen))
    wanted = {path.split("/")[1] for path in (*points, *(link for link, _ in plan.links))} - {""}
    yield from (f"{name!r} lies in the root folder" for name in sorted(set(os.listdir("/")) - wanted))


def read_mounts(table: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Mount point and options of each line of a mount table."""
    for line in table.splitlines():
        fields = line.split(" ")
        path = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
        yield path, frozenset(fields[5].split(","))
