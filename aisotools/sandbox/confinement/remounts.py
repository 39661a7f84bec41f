"""Mount what rules of a policy deny once more, in the mount namespace of a worker that runs.

Threat: a worker at level `isolated` was started with an empty file over `.env`. Then a person saves `.env` as
editors do, by renaming a new file to it, or another branch is checked out: with the old file the kernel also
removes what was mounted over it, in every namespace, and the new one can be read. Or the policy changes.
Mechanism: a fork of the supervisor enters the namespaces of the worker, as the worker's user, reads in the
kernel's table what is still mounted, and mounts what is missing, at both paths of the workspace. It ends
then, and runs nothing of a stranger. The calls that run, and the variables, are not touched.
A link on the way to a denied path is followed, outside of the worker's mounts, and what it leads to has to be
denied as well. If it is not, since a person has just put the link there or has it lead elsewhere, an empty
file is mounted on the link itself, until the host names what it leads to. Each link on the way is watched.
The supervisor has the kernel tell it (inotify) when a name on the way to what is denied comes, goes or moves,
and then does so at once; `session.path_rules` looks before every call besides. The host is told which path it
was, for the result of the next call, also if what was there before is back by then. It waits 5 ms between two
rounds, since code in the sandbox can change a link that leads to what is denied as often as it likes.
Race window: from the replacement until this was done, some milliseconds on a machine that is not busy: what
runs meanwhile can open the new file, and what it has opened stays open, a folder too, by which it can still
reach what lies below. A path that is replaced while it is mounted over is found by the next look. A folder
that cannot be watched, for want of a right or of watches, and one of a network, where others change it, is
looked at before the next call alone.
Failure: an error says which step the kernel refused, and the call must not run; whatever else is to be
mounted is. What is refused after the supervisor was told is tried again before the next call. A link that
nobody can follow to its end is mounted over like one that leads elsewhere.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from aisotools.core.exceptions import SandboxError, as_clause
from aisotools.core.path_texts import is_within
from aisotools.sandbox.confinement import rootfs, syscalls
from aisotools.sandbox.confinement.protected_mounts import (
    DeniedPaths,
    MountKind,
    ProtectionMount,
    plan_protection,
    without_links,
)

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNS = 0x00020000
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_WITHIN_S = 5
_MOST_LOOKS = 4
_ANSWER_BYTES = 4096

_NAMES_CHANGE = 0x40 | 0x80 | 0x100 | 0x200  # moved from and to, created, deleted
_FOLDER_ALONE = 0x01000000 | 0x02000000  # no file, and no link
_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")
_EVENT_BYTES = 1 << 16

_OF_HIDDEN = frozenset(("ro", "nosuid", "nodev", "noexec"))


class NameWatch:
    """Is told by the kernel when a name on the way to one of some paths comes, goes or moves."""

    def __init__(self, workspace: str) -> None:
        """Watch nothing yet.

        Args:
            workspace: The folder that paths are relative to.
        """
        self._workspace = workspace
        self._names: dict[int, dict[bytes, set[str]]] = {}
        """Of each folder that is watched, names, and to which paths they are the way."""
        try:
            self._events = syscalls.call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # the user has as many as one may have: `session.path_rules` looks before each call
            self._events = -1

    def fileno(self) -> int:
        """Return a descriptor that is readable after a change; -1 if the kernel has none to spare."""
        return self._events

    def follow(self, paths: Iterable[str], links: Mapping[str, Collection[str]] | None = None) -> None:
        """Watch the names of these paths, and of the folders above them as they are now; no others.

        Args:
            paths: Relative to the workspace.
            links: Further ones to watch, each with those of the paths that it is the way to.
        """
        if self._events < 0:
            return
        folders: dict[str, dict[bytes, set[str]]] = {}
        for way, ends in (*((path, (path,)) for path in paths), *(links or {}).items()):
            above = self._workspace
            for name in way.split("/"):
                folders.setdefault(above, {}).setdefault(os.fsencode(name), set()).update(ends)
                above = f"{above}/{name}"
        names: dict[int, dict[bytes, set[str]]] = {}
        for folder, wanted in folders.items():
            with suppress(OSError):  # it is not there: its own name is watched in the folder above
                flags = _NAMES_CHANGE | _FOLDER_ALONE
                watch = syscalls.call("inotify_add_watch", self._events, os.fsencode(folder), flags)
                for one, ends in wanted.items():
                    names.setdefault(watch, {}).setdefault(one, set()).update(ends)
        for watch in self._names.keys() - names.keys():
            with suppress(OSError):  # with its folder it has ended by itself
                syscalls.call("inotify_rm_watch", self._events, watch)
        self._names = names

    def find_changed(self) -> set[str]:
        """Return the paths on the way to which a name has changed since this was asked last."""
        changed: set[str] = set()
        while self._events >= 0:
            try:
                events = os.read(self._events, _EVENT_BYTES)
            except BlockingIOError:
                break
            at = 0
            while at < len(events):
                watch, mask, _, size = _EVENT.unpack_from(events, at)
                at += _EVENT.size
                name = events[at : at + size].rstrip(b"\0")
                at += size
                # Hostile: code in the sandbox makes names faster than they are read. Then any may be lost.
                if mask & _OVERFLOW:
                    changed.update(*(ends for names in self._names.values() for ends in names.values()))
                changed |= self._names.get(watch, {}).get(name, set())
        return changed


class RuleMounts:
    """What rules deny, as mounts in the namespaces of one tree of processes."""

    def __init__(self, init: int, workspace: str, denied: DeniedPaths) -> None:
        """Take over from the start of a worker.

        Args:
            init: Process 1 of the worker's process namespace, by its number here.
            workspace: The folder, whose path is the same inside.
            denied: What was mounted when the worker started.
        """
        self._init = init
        self._workspace = workspace
        self._denied = denied
        self._watch = NameWatch(workspace)
        self._reported: set[str] = set()
        self._present: frozenset[str] = frozenset()
        self._places = self._follow(denied)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `follow_changes` is due; -1 if there is none."""
        return self._watch.fileno()

    def follow_changes(self) -> list[str]:
        """Mount again what is denied if something on the way to it was replaced.

        Returns:
            The denied paths at which there was something, which was replaced, or touched by name. Each of
            them once, until the host calls for `apply`, so that a worker cannot flood it.
        """
        changed = self._watch.find_changed()
        if not changed:
            return []
        # What was missing can be made by the worker itself, as often as it likes. What is mounted over it
        # cannot touch. Race: what it makes may be seen here, and removed before it is mounted over; then it
        # counts as touched.
        replaced = (changed & self._present) - self._reported
        self._mount(self._denied)
        self._reported |= replaced
        return sorted(replaced)

    def __repr__(self) -> str:
        return f"<RuleMounts in {self._init}: {self._denied}>"

    def apply(self, denied: DeniedPaths) -> str:
        """Mount what is denied and is not mounted, and unmount what no rule denies any more.

        To be called in a process with one thread, which may enter the namespaces.

        Returns:
            Why it could not be done; empty if it was done.
        """
        reason = self._mount(denied)
        self._reported.clear()
        return reason

    def _mount(self, denied: DeniedPaths) -> str:
        former = self._places
        # Race: watched first, so that what is replaced while the table is read comes as one more event.
        places = self._follow(denied)
        reason = _run_in_fork(lambda: self._apply(former, places))
        if not reason:
            self._denied, self._places = denied, places
        return reason

    def _follow(self, denied: DeniedPaths) -> DeniedPaths:
        """Watch all names on the way. Return where mounts have to lie; see `without_links`."""
        named = (*denied.unreadable, *denied.unwritable)
        places, links = without_links(self._workspace, denied)
        for _ in range(_MOST_LOOKS):
            self._watch.follow(named, links)
            # Race: a link may lead elsewhere since it was followed, and may not have been watched then.
            before = places, links
            places, links = without_links(self._workspace, denied)
            if (places, links) == before:
                break
        self._present = frozenset(path for path in named if os.path.lexists(f"{self._workspace}/{path}"))
        return places

    def _apply(self, former: DeniedPaths, denied: DeniedPaths) -> None:
        table = Path(f"/proc/{self._init}/mountinfo").read_bytes().decode(errors="surrogateescape")
        enter_namespaces(self._init)
        roots = [self._workspace]
        if any(path == rootfs.ALIAS for path, _, _ in rootfs.read_mounts(table)):
            roots.append(rootfs.ALIAS)
        for root in dict.fromkeys(roots):
            covered = find_covered(table, root)
            mounts = plan_protection((), unwritable=denied.unwritable, unreadable=denied.unreadable)
            by_rules = {*denied.unreadable, *denied.unwritable}
            gone = [path for path in _no_longer(former, denied) if path in covered]
            in_the_way = [path for path in gone if _concerns(path, mounts)]
            for path in in_the_way:
                _unmount(root, path)
                del covered[path]
            missing = [one for one in mounts if not _holds(covered.get(one.path), one.kind)]
            rootfs.mount_protection(root, missing, by_rules)
            # Race: a link that hid what it leads to is uncovered only when that is hidden itself.
            for path in gone:
                if path not in in_the_way:
                    _unmount(root, path)


def _unmount(root: str, path: str) -> None:
    # Detached: what is open below stays open, and a plain unmount would refuse for it.
    syscalls.call("umount2", os.fsencode(f"{root}/{path}"), _MNT_DETACH | _UMOUNT_NOFOLLOW)


def _concerns(path: str, mounts: Iterable[ProtectionMount]) -> bool:
    """Return whether one of the mounts is to lie at a path, in it, or above it."""
    return any(is_within(one.path, path) or is_within(path, one.path) for one in mounts)


def _no_longer(former: DeniedPaths, denied: DeniedPaths) -> list[str]:
    """Return the paths over which something else is mounted than is wanted now, the inner ones first."""
    kept_hidden = set(denied.unreadable)
    kept_fixed = set(denied.unwritable) - kept_hidden
    gone = [path for path in former.unreadable if path not in kept_hidden]
    gone += [path for path in former.unwritable if path not in kept_fixed and path not in gone]
    return sorted(gone, key=lambda path: path.count("/"), reverse=True)


def find_covered(table: str, root: str) -> dict[str, MountKind]:
    """Return what is mounted below a folder, by its path from there.

    Args:
        table: The text of a mountinfo of the process.
        root: The folder.
    """
    found: dict[str, MountKind] = {}
    for path, options, system in rootfs.read_mounts(table):
        if path.startswith(f"{root}/"):
            # A workspace in memory is a tmpfs as well, but never such a small one that nobody may open.
            is_empty = system.startswith("tmpfs ") and "size=4k" in system and options >= _OF_HIDDEN
            kind: MountKind = "read_only" if "ro" in options else "writable"
            found[path[len(root) + 1 :]] = "hidden" if is_empty else kind
    return found


def _holds(covered: MountKind | None, wanted: MountKind) -> bool:
    return covered == wanted or (wanted == "writable" and covered is not None)


def enter_namespaces(process: int) -> None:
    """Enter the user and mount namespaces of a process, as the user whom it runs as; for good.

    Raises:
        OSError: The kernel refused.
    """
    # Opened first: as another user they could not be.
    with (
        open(f"/proc/{process}/ns/user", "rb", buffering=0) as users,
        open(f"/proc/{process}/ns/mnt", "rb", buffering=0) as mounts,
    ):
        user, group = (_outer_id(process, name) for name in ("uid_map", "gid_map"))
        if user != os.geteuid():
            # Groups first, then the group id, then the user id, after which neither could be changed.
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
        syscalls.call("setns", users.fileno(), _CLONE_NEWUSER)
        syscalls.call("setns", mounts.fileno(), _CLONE_NEWNS)


def _outer_id(process: int, name: str) -> int:
    _, outer, _ = Path(f"/proc/{process}/{name}").read_text("ascii").split()
    return int(outer)


def _run_in_fork(work: Callable[[], None]) -> str:
    """Run a function in a fork of this process. Return why it failed; empty if it did not."""
    reading, writing = os.pipe()
    # A fork: whoever has entered a namespace of users cannot leave it again.
    child = os.fork()
    if child == 0:
        _work_and_end(work, writing)
    os.close(writing)
    try:
        answer = b""
        while part := os.read(reading, _ANSWER_BYTES):
            answer += part
    finally:
        os.close(reading)
        # Race: a handler of SIGCHLD may look meanwhile, but nobody reaps in this thread before this line.
        os.waitpid(child, 0)
    text = answer.decode(errors="replace")
    return text.removeprefix("done") if text else "the process that mounts has ended"


def _work_and_end(work: Callable[[], None], writing: int) -> None:
    try:
        # Signal: a mount can block in the kernel, for instance on a file system of the network, where no
        # handler of Python runs. So the default action has to end this process. The wake-up descriptor is a
        # copy of the supervisor's: what is written to it here would wake the supervisor.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        signal.alarm(_WITHIN_S)
        work()
        os.write(writing, b"done")
    except (OSError, SandboxError) as error:
        os.write(writing, as_clause(error).encode(errors="replace")[:_ANSWER_BYTES])
    except Exception as error:  # an error of ours: to be read by whoever is refused a call
        os.write(writing, f"{type(error).__name__}: {error}".encode(errors="replace")[:_ANSWER_BYTES])
    finally:
        # Never return into the loop of the supervisor, whose copy this is.
        os._exit(0)


def parse_denied(request: Mapping[str, Any]) -> DeniedPaths:
    """Return the paths that a request of the host names."""
    unreadable, unwritable = (tuple(map(str, request[name])) for name in ("unreadable", "unwritable"))
    return DeniedPaths(unreadable=unreadable, unwritable=unwritable)
