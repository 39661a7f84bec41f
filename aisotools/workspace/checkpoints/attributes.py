"""Attributes of files and folders beside their contents: which are kept, and which undo cannot set.

A node holds the permission bits with setuid, setgid and sticky, the time of the last change, the owner, and
the digest of a list of extended attributes: those of the user and the access control lists.

Threat
    The workspace is hostile. A setuid or setgid bit lends its owner's rights to whoever runs the file, so one
    that comes back must not lend more than was lent before. Attributes can be many and large.
Mechanism
    Undo sets such a bit of a file again only for a file of the user of this process, who is not root, and
    only if the file had it before the undone call; redo never does. The sandbox keeps its own programs from
    setting one. Attributes of more than `MAX_XATTR_BYTES` are listed by name only.
Race window
    None of its own: whatever is set is set on an open file that nobody else can open yet.
When it fails
    What cannot be set again is said in the result of the call that changed it, and in that of the undo.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections import Counter
from collections.abc import Iterable, Mapping

from aisotools.workspace.checkpoints.tree import ContentStore, Node, TreePath
from aisotools.workspace.dirfd import PLACE_FLAGS, change_mode

MAX_XATTR_BYTES = 4096
"""Bytes of the extended attributes of one entry that are kept. Most file systems allow no more."""

_ACLS = frozenset({"system.posix_acl_access", "system.posix_acl_default"})
_LABELS = frozenset(
    {"security.selinux", "security.ima", "security.evm", "system.nfs4_acl", "system.nfs4_dacl"}
)
"""What the system gives to every file by itself, and computes again for a new one."""

_XATTR_HEAD = struct.Struct("<HI")
_NOT_KEPT = 0xFFFFFFFF  # in the place of a value's length
_REFUSED = frozenset({errno.EPERM, errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})
"""What the system says of an attribute that it does not have, or that is not this user's to set."""
_UNTOLD = _REFUSED | {errno.EACCES, errno.ENODATA, errno.ERANGE}
"""What the system says when it tells no value: among others, that the attribute was removed meanwhile, or is
longer now."""
_SET_IDS = stat.S_ISUID | stat.S_ISGID


def is_covered(name: str) -> bool:
    """Return whether an extended attribute of this name is kept and brought back."""
    return name.startswith("user.") or name in _ACLS


def read_xattrs(file: int, store: ContentStore) -> str:
    """Store the extended attributes of an open file or folder. Return their digest; empty if it has none.

    Raises:
        OSError: If the disk does not give them back.
        WorkspaceError: If they cannot be stored.
    """
    try:
        names = os.listxattr(file)
    except OSError as error:
        # Anything else says nothing of the file: it would seem to have lost its attributes.
        if error.errno in _REFUSED:
            return ""  # the file system has none, or tells nobody
        raise
    if not names:
        return ""
    found: dict[str, bytes | None] = {}
    bytes_left = MAX_XATTR_BYTES
    for name in sorted(names):
        if name in _LABELS:
            continue
        found[name] = None
        if is_covered(name):
            try:
                value = os.getxattr(file, name)
            except OSError as error:
                if error.errno in _UNTOLD:
                    continue  # it is named, and its value is not known
                raise
            bytes_left -= len(name) + len(value)
            if bytes_left >= 0:
                found[name] = value
    return store.put(_encode_xattrs(found)) if found else ""


def _encode_xattrs(attributes: Mapping[str, bytes | None]) -> bytes:
    parts = []
    for name, value in sorted(attributes.items()):
        encoded = os.fsencode(name)
        parts.append(_XATTR_HEAD.pack(len(encoded), _NOT_KEPT if value is None else len(value)))
        parts += [encoded, value or b""]
    return b"".join(parts)


def load_xattrs(digest: str, store: ContentStore) -> dict[str, bytes | None]:
    """Return extended attributes by name; None for a value that is not kept.

    Raises:
        WorkspaceError: If they are no longer stored.
    """
    attributes: dict[str, bytes | None] = {}
    data, at = store.get(digest) if digest else b"", 0
    while at < len(data):
        name_bytes, length = _XATTR_HEAD.unpack_from(data, at)
        at += _XATTR_HEAD.size
        name = os.fsdecode(data[at : at + name_bytes])
        at += name_bytes
        attributes[name] = None if length == _NOT_KEPT else data[at : at + length]
        at += 0 if length == _NOT_KEPT else length
    return attributes


def has_xattrs_of(entry: Node, node: Node, store: ContentStore) -> bool:
    """Return whether an entry has the extended attributes of a node, but perhaps for some that are not kept.

    An undo that could not set these has left it so.

    Raises:
        WorkspaceError: If the list of one is no longer stored.
    """
    if entry.xattrs == node.xattrs:
        return True
    has, wanted = load_xattrs(entry.xattrs, store), load_xattrs(node.xattrs, store)
    missing = wanted.keys() - has.keys()
    return all(wanted[name] is None for name in missing) and all(
        name in wanted and wanted[name] == value for name, value in has.items()
    )


# ---- what cannot be set


def why_partial(node: Node, store: ContentStore, *, keeps_set_ids: bool) -> list[str]:
    """Return what of an entry this process cannot make again, as phrases: all of it, or some attributes.

    Args:
        node: The entry.
        store: Holds its extended attributes.
        keeps_set_ids: Whether setuid and setgid bits of files may be set at all.

    Raises:
        WorkspaceError: If the list of its extended attributes is no longer stored.
    """
    if node.kind == "other":
        return [f"it is a {node.content}"]
    reasons = []
    if node.mode & _SET_IDS & ~settable_mode(node, keeps_set_ids=keeps_set_ids):
        reasons.append("its setuid or setgid bit")
    if node.owner is not None and not _may_give(node.owner):
        reasons.append(f"its owner, user {node.owner[0]} and group {node.owner[1]}")
    names = [name for name, value in load_xattrs(node.xattrs, store).items() if value is None]
    reasons += [f"its attribute {name!a}" for name in names]
    return reasons


def list_partial(
    store: ContentStore, entries: Iterable[tuple[TreePath, Node]], *, keeps_set_ids: bool
) -> list[tuple[TreePath, str]]:
    """Return the entries that this process cannot make again as they are, each with why, in one text.

    Args:
        store: Holds their extended attributes.
        entries: The entries; of a file with several names all that are in the workspace.
        keeps_set_ids: Whether setuid and setgid bits of files may be set at all.

    Raises:
        WorkspaceError: If a list of extended attributes is no longer stored.
    """
    entries = list(entries)
    names = Counter(node.link[0] for _, node in entries if node.link is not None)
    found = []
    for path, node in entries:
        reasons = why_partial(node, store, keeps_set_ids=keeps_set_ids)
        if node.link is not None and node.link[1] > names[node.link[0]]:
            count = node.link[1] - names[node.link[0]]
            reasons.append(f"its {count} other name{'s' * (count > 1)} outside of the workspace")
        if reasons:
            found.append((path, "; ".join(reasons)))
    return found


def settable_mode(node: Node, *, keeps_set_ids: bool) -> int:
    """Return the mode that an entry gets again, without the setuid and setgid bits that it must not."""
    if node.kind != "folder" and node.mode & _SET_IDS:
        is_own = node.owner is not None and node.owner[0] == os.geteuid() and _may_give(node.owner)
        if not keeps_set_ids or os.geteuid() == 0 or not is_own:
            return node.mode & ~_SET_IDS
    return node.mode


def _may_give(owner: tuple[int, int]) -> bool:
    uid, gid = owner
    return os.geteuid() == 0 or (uid == os.geteuid() and (gid == os.getegid() or gid in os.getgroups()))


# ---- setting them


def give_to(file: int, owner: tuple[int, int] | None) -> bool:
    """Give an open file or folder to a user and a group. Return False if this process may not."""
    if owner is None:
        return True
    status = os.fstat(file)
    if (status.st_uid, status.st_gid) == owner:
        return True
    try:
        os.fchown(file, *owner)
    except OSError as error:  # only root may give files away, and not to users that a namespace does not have
        if error.errno not in _REFUSED:
            raise
        return False
    return True


def set_xattrs(file: int, node: Node, store: ContentStore) -> list[str]:
    """Give an open file or folder the extended attributes of a node. Return the names of those it has not.

    Raises:
        OSError: If there is no room for them, or the disk does not tell which there are.
        WorkspaceError: If they are no longer stored.
    """
    if node.mtime_ns is None:
        return []  # a tree of an earlier version: it does not say which there were
    wanted = load_xattrs(node.xattrs, store)
    try:
        present = os.listxattr(file)
    except OSError as error:
        # Without the names, what has to go would stay without a word.
        if error.errno not in _REFUSED:
            raise
        present = []
    for name in present:
        # A new file has the access control list that the folder around it gives to new files.
        if is_covered(name) and wanted.get(name) is None:
            os.removexattr(file, name)
    refused = []
    for name, value in wanted.items():
        if value is None:
            refused.append(name)
            continue
        if name in present and os.getxattr(file, name) == value:
            continue
        try:
            os.setxattr(file, name, value)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            refused.append(name)
    return refused


def set_attributes(
    file: int, node: Node, store: ContentStore, *, owner: tuple[int, int] | None, keeps_set_ids: bool
) -> list[str]:
    """Give an open new file the attributes of a node. Return what it has not, as phrases.

    Args:
        file: The file.
        node: The node.
        store: Holds its extended attributes.
        owner: Owner of a file of a tree that does not say it.
        keeps_set_ids: Whether setuid and setgid bits may be set; see `settable_mode`.

    Raises:
        OSError: If that is not possible.
        WorkspaceError: If its extended attributes are no longer stored.
    """
    lost = []
    if not give_to(file, node.owner or owner) and node.owner is not None:
        lost.append(f"its owner, user {node.owner[0]} and group {node.owner[1]}")
    lost += [f"its attribute {name!a}" for name in set_xattrs(file, node, store)]
    mode = settable_mode(node, keeps_set_ids=keeps_set_ids)
    # After the owner: a change of the owner takes the setuid and setgid bits away.
    os.fchmod(file, mode)
    if node.mode & _SET_IDS and stat.S_IMODE(os.fstat(file).st_mode) != node.mode:
        lost.append("its setuid or setgid bit")
    set_time(file, node)
    return lost


def set_time(file: int, node: Node) -> None:
    """Give an open file or folder the time of the last change of a node, if that is known."""
    if node.mtime_ns is not None:
        status = os.fstat(file)
        if status.st_mtime_ns != node.mtime_ns:
            os.utime(file, ns=(status.st_atime_ns, node.mtime_ns))


FIFO_BITS = 0o1777
"""The mode of a FIFO that is brought back: nobody runs one, so set-user-id and set-group-id mean nothing."""


def set_special_attributes(parent: int, name: str, node: Node, owner: tuple[int, int] | None) -> list[str]:
    """Give a new link or FIFO in an open folder the attributes of a node. Return what it has not, as phrases.

    Raises:
        OSError: If that is not possible.
    """
    lost = []
    wanted = node.owner or owner
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if wanted is not None and (status.st_uid, status.st_gid) != wanted:
        try:
            os.chown(name, *wanted, dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            if node.owner is not None:
                lost.append(f"its owner, user {wanted[0]} and group {wanted[1]}")
    if node.kind == "fifo" and stat.S_IMODE(status.st_mode) != node.mode & FIFO_BITS:
        # The mask of this process has taken some rights away. Race: what has become a link is not followed.
        place = os.open(name, PLACE_FLAGS, dir_fd=parent)
        try:
            change_mode(place, node.mode & FIFO_BITS)
        finally:
            os.close(place)
    if node.mtime_ns is not None:
        times = status.st_atime_ns, node.mtime_ns
        os.utime(name, ns=times, dir_fd=parent, follow_symlinks=False)
    return lost


def has_other_attributes(
    store: ContentStore, current: Node | None, before: Node | None, after: Node | None
) -> bool:
    """Return whether a file has a mode or extended attributes that it had neither before nor after.

    Raises:
        WorkspaceError: If the extended attributes of one are no longer stored.
    """
    if current is None or not current.is_file:
        return False
    known = [node for node in (before, after) if node is not None and node.is_file]
    return bool(known) and not any(
        current.mode & 0o777 == node.mode & 0o777
        and (node.mtime_ns is None or has_xattrs_of(current, node, store))
        for node in known
    )
