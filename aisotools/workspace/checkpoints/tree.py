"""Trees of a workspace: entries of folders as nodes, and their listings.

A tree is the digest of a folder's listing, which holds the digests of what the folder contains, so equal
trees have equal digests however deep they are.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Set as AbstractSet
from typing import Literal, NamedTuple, Protocol

from aisotools.core.concurrency import sorted_in_runs
from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.store import LostContent, content_digest
from aisotools.workspace.dirfd import DIRECTORY_FLAGS

NodeKind = Literal["file", "sparse", "folder", "link", "long_link", "fifo", "other", "unkept"]
"""Kind of a tree node: `sparse` is a file with holes, `long_link` a link whose target is stored like the
content of a file, `other` a socket or device, `unkept` exists without its content being stored."""

MAX_INLINE_TARGET = 128
"""Bytes of a link's target above which it is a `long_link`."""

LETTERS: Mapping[NodeKind, bytes] = {
    "file": b"f",
    "sparse": b"s",
    "folder": b"d",
    "link": b"l",
    "long_link": b"L",
    "fifo": b"p",
    "other": b"o",
    "unkept": b"u",
}
TOO_LARGE = "it is too large"
"""Why the content of a file is not stored that is larger than the limits allow."""

_UNREADABLE = "it cannot be read: "
KINDS = {letter: kind for kind, letter in LETTERS.items()}
"""The kind of each letter."""


class Node(NamedTuple):
    """An entry of a folder in a tree.

    Attributes:
        kind: Kind of the entry.
        mode: Permission bits, with setuid, setgid and sticky; 0 for links and special files.
        content: Digest of a file, a folder or a long target, target of a link, or for `unkept` the reason,
        the file's stamp, and for a folder that was looked through all the same what `digest_below` returned.
        size: Size of what is stored of a file or a long target in bytes: without the holes.
        mtime_ns: Time of the last change, in nanoseconds since the epoch. None in a tree of an earlier
        version, which knows none of the attributes from here on, and of the mode only the permissions.
        owner: User and group.
        xattrs: Digest of the list of extended attributes; empty if there are none.
        link: Inode and number of names of a file that has several.
    """

    kind: NodeKind
    mode: int = 0
    content: str = ""
    size: int = 0
    mtime_ns: int | None = None
    owner: tuple[int, int] | None = None
    xattrs: str = ""
    link: tuple[int, int] | None = None

    @property
    def why_unkept(self) -> str:
        """Reason why the content is not stored."""
        return self.content.partition(";")[0]

    @property
    def is_unreadable(self) -> bool:
        """True for an `unkept` entry that this process could not read; see `unreadable_node`."""
        return self.kind == "unkept" and self.content.startswith(_UNREADABLE)

    @property
    def hides(self) -> bool:
        """True for an `unkept` entry that may be a folder, of which nobody knows what it holds."""
        return self.kind == "unkept" and self.why_unkept != TOO_LARGE

    @property
    def is_sealed(self) -> bool:
        """True for an `unkept` folder of which any change shows, at whatever depth below it."""
        return self.kind == "unkept" and self.content.count(";") > 1

    def is_restamped(self, other: Node, changed: Mapping[int, AbstractSet[int]] | None) -> bool:
        """Return whether this is another `unkept` entry that has only got another change time since.

        Args:
            other: The entry before.
            changed: The only times that count, by inode; None for any.
        """
        if not (self.kind == other.kind == "unkept") or self.mode != other.mode:
            return False
        mine, its = (node.content.rpartition(":")[0] for node in (self, other))
        if mine != its or self.is_sealed or not self.has_change_time:
            return False
        inode, time = self.stamp_times
        return changed is None or time in changed.get(inode, ())

    def is_unlocked(self, before: Node | None) -> bool:
        """Return whether a folder has only got the rights of its owner, as while something is put in."""
        if before is None or not self.kind == before.kind == "folder":
            return False
        return self.mode == before.mode | 0o700

    @property
    def has_change_time(self) -> bool:
        """True for an `unkept` entry of which it is known when it was changed."""
        return self.kind == "unkept" and self.content.rpartition(":")[2].isdecimal()

    @property
    def stamp_times(self) -> tuple[int, int]:
        """Inode and change time in nanoseconds of an entry that `has_change_time`."""
        _, _, inode, time = self.content.rpartition(";")[2].split(":")
        return int(inode), int(time)

    @property
    def is_link(self) -> bool:
        """True for a link with a target of any length."""
        return self.kind in {"link", "long_link"}

    @property
    def is_file(self) -> bool:
        """True for a regular file whose content is stored."""
        return self.kind in {"file", "sparse"}

    @property
    def can_have_names(self) -> bool:
        """True for an entry that can have several names, and be made again: a file, a link or a FIFO."""
        return self.is_file or self.is_link or self.kind == "fifo"

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of what is stored of the entry itself, apart from a folder's listing."""
        needed = (self.content,) if self.kind in _STORED else ()
        return (*needed, self.xattrs) if self.xattrs else needed

    def is_like(self, other: Node | None) -> bool:
        """Return whether one and the other are the same, as far as both are known.

        What earlier versions did not know counts as the same, and so does which other names a file has.
        """
        if other is None or self[:1] + self[2:4] != other[:1] + other[2:4]:
            return False
        if self.mtime_ns is None or other.mtime_ns is None:
            return self.mode & 0o777 == other.mode & 0o777
        return (self.mode, *self[4:7]) == (other.mode, *other[4:7])

    def has_same_content(self, other: Node | None) -> bool:
        """Return whether replacing one by the other would lose nothing.

        Modes are ignored, because not every file system can set them. Folders are always the same: what they
        hold is compared entry by entry.
        """
        if other is None:
            return False
        if self.kind != other.kind:
            # Trees of earlier versions hold long targets themselves.
            return self.is_link and other.is_link and _target_digest(self) == _target_digest(other)
        return self.kind == "folder" or self.content == other.content


_STORED = frozenset({"file", "sparse", "long_link"})


def _target_digest(link: Node) -> str:
    return link.content if link.kind == "long_link" else content_digest(os.fsencode(link.content))


TreePath = tuple[str, ...]
"""Path components from the root of a tree. Bytes that are not UTF-8 are surrogates, as in `os.fsdecode`."""

NodeChange = tuple[Node | None, Node | None]
"""Node before and after; None if there is none."""

FileGroup = int | TreePath
"""A file with several names: its inode, or the path of its only name."""


class ContentStore(Protocol):
    """Storage of folder listings; see `Store`."""

    def put(self, data: bytes) -> str:
        """Store a content. Return its digest."""

    def get(self, digest: str) -> bytes:
        """Return a content."""


class SizedStore(ContentStore, Protocol):
    """Storage that tells the size of a content without reading it."""

    def size_of(self, digest: str) -> int:
        """Return the size of a content in bytes; -1 if it is not there. An error if that cannot be told."""


def link_node(target: str, store: ContentStore) -> Node:
    """Return the node of a link; store its target if that is long.

    Raises:
        WorkspaceError: If it cannot be stored.
    """
    data = os.fsencode(target)
    if len(data) <= MAX_INLINE_TARGET:
        return Node("link", content=target)
    return Node("long_link", content=store.put(data), size=len(data))


def link_target(link: Node, store: ContentStore) -> str:
    """Return the target of a link, whatever its length.

    Raises:
        WorkspaceError: If it is no longer stored.
    """
    return os.fsdecode(store.get(link.content)) if link.kind == "long_link" else link.content


def encode_folder(nodes: Mapping[str, Node]) -> bytes:
    """Return the listing of a folder; equal for equal nodes in any order."""
    parts = []
    for name, node in sorted(nodes.items()):
        parts += [encode_node(node), os.fsencode(name)]
    return b"\0".join(parts)


def encode_node(node: Node) -> bytes:
    """Return an entry of a listing without its name."""
    content = os.fsencode(node.content)
    attributes = b""
    if node.mtime_ns is not None:
        attributes += b",m%d" % node.mtime_ns
    if node.owner is not None:
        attributes += b",u%d:%d" % node.owner
    if node.xattrs:
        attributes += b",x" + node.xattrs.encode()
    if node.link is not None:
        attributes += b",h%d:%d" % node.link
    return b"%s %o%s %d %s" % (LETTERS[node.kind], node.mode, attributes, node.size, content)


def _decode_node(header: bytes, owners: dict[bytes, tuple[int, int]]) -> Node:
    letter, mode, size, content = header.split(b" ", 3)
    kind, text, length = KINDS[letter], os.fsdecode(content), int(size)
    bits, comma, attributes = mode.partition(b",")
    if not comma:
        return Node(kind, int(bits, 8), text, length)
    mtime_ns, owner, xattrs, link = None, None, "", None
    for attribute in attributes.split(b","):
        value = attribute[1:]
        match attribute[:1]:
            case b"m":
                mtime_ns = int(value)
            case b"u":
                owner = owners.get(value) or owners.setdefault(value, _parse_pair(value))
            case b"x":
                xattrs = value.decode()
            case b"h":
                link = _parse_pair(value)
    return Node(kind, int(bits, 8), text, length, mtime_ns, owner, xattrs, link)


def _parse_pair(text: bytes) -> tuple[int, int]:
    first, _, second = text.partition(b":")
    return int(first), int(second)


def decode_folder(
    data: bytes, similar: Mapping[str, Node] | None = None, names: dict[str, str] | None = None
) -> dict[str, Node]:
    """Return the nodes of a listing that `encode_folder` returned.

    Two states of a large folder take hardly more memory than one when they share what is equal.

    Args:
        data: The listing.
        similar: Where it has an equal node under the same name, that one is returned.
        names: Names to share; those of this listing are added.
    """
    similar = {} if similar is None else similar
    names = {} if names is None else names
    nodes: dict[str, Node] = {}
    owners: dict[bytes, tuple[int, int]] = {}
    node, last_header, at = Node("file"), b"", 0
    # Piece by piece: all pieces of a large listing at once would take four times its size.
    while at < len(data):
        middle = data.find(b"\0", at)
        if middle < 0:
            raise ValueError(f"a listing ends in the middle of an entry, at byte {at}")
        end = data.find(b"\0", middle + 1)
        end = len(data) if end < 0 else end
        header, name = data[at:middle], os.fsdecode(data[middle + 1 : end])
        name = names.setdefault(name, name)
        if header != last_header:
            node, last_header = _decode_node(header, owners), header
        known = similar.get(name)
        nodes[name] = known if known == node else node
        at = end + 1
    return nodes


class TreeReader:
    """Reads trees from a store; caches every folder that it has read."""

    def __init__(self, store: ContentStore) -> None:
        self._store = store
        self._folders: dict[str, dict[str, Node]] = {}
        self._largest: dict[str, Node] = {}
        self._names: dict[str, str] = {}

    def of(self, node: Node | None) -> Mapping[str, Node]:
        """Return the entries of a folder; none for anything else."""
        if node is None or node.kind != "folder":
            return {}
        if node.content not in self._folders:
            nodes = decode_folder(self._store.get(node.content), self._largest, self._names)
            self._folders[node.content] = nodes
            if len(nodes) > len(self._largest):
                self._largest = nodes
        return self._folders[node.content]

    def has_other_entries(self, before: Node | None, after: Node | None) -> bool:
        """Return whether the time of a folder has changed with what it holds; see `explains_time`."""
        left, right = self.of(before), self.of(after)
        differing = (name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
        return any(explains_time(left.get(name), right.get(name)) for name in differing)

    def lookup(self, root: str, path: TreePath) -> Node | None:
        """Return the node at `path` in a tree, or None."""
        node: Node | None = Node("folder", content=root)
        for name in path:
            node = self.of(node).get(name)
        return node

    def entries(self, root: str) -> Iterator[tuple[TreePath, Node]]:
        """Yield all entries of a tree at any depth."""
        todo: list[TreePath] = [()]
        while todo:
            path = todo.pop()
            for name, node in self.of(self.lookup(root, path)).items():
                yield (*path, name), node
                if node.kind == "folder":
                    todo.append((*path, name))

    def differences(
        self, before: str, after: str, folders: set[TreePath] | None = None
    ) -> dict[TreePath, NodeChange]:
        """Return every path at which two trees differ, in order, so folders before their entries.

        A folder in both trees is included only if its mode, owner or extended attributes differ. Of files
        with several names it counts which names lead to one file, and not which inode that is.

        Args:
            before: Digest of the one tree.
            after: Digest of the other.
            folders: Gets the paths of the folders in both trees that have other times.
        """
        comparison = _Comparison({}, set() if folders is None else folders)
        if before != after:
            left, right = Node("folder", content=before), Node("folder", content=after)
            self._compare((), left, right, comparison)
        return comparison.found

    def _compare(
        self, path: TreePath, before: Node | None, after: Node | None, comparison: _Comparison
    ) -> None:
        if path and not are_like_folders(before, after):
            comparison.found[path] = before, after
        elif path and before is not None and after is not None and before.mtime_ns != after.mtime_ns:
            comparison.folders.add(path)
        try:
            left, right = self.of(before), self.of(after)
        except WorkspaceError as error:
            raise WorkspaceError(
                f"What {'/'.join(path) or 'the workspace'} held is not known: {error}"
            ) from None
        differing = [name for name, node in left.items() if node != right.get(name)]
        differing += [name for name in right if name not in left]
        for name in sorted_in_runs(differing):
            one, other = left.get(name), right.get(name)
            if one is None or not one.is_like(other) or not comparison.match((*path, name), one, other):
                self._compare((*path, name), one, other, comparison)


class _Comparison:
    """What differs between two trees, and which file of one is which of the other by their names."""

    def __init__(self, found: dict[TreePath, NodeChange], folders: set[TreePath]) -> None:
        self.found, self.folders = found, folders
        self._others: dict[int | TreePath, int | TreePath] = {}
        self._files: dict[int | TreePath, int | TreePath] = {}

    def match(self, path: TreePath, node: Node, other: Node | None) -> bool:
        """Return whether two nodes at a path can be one file each, whose other names lead to it as well."""
        if other is None or node.mtime_ns is None or other.mtime_ns is None:
            return True
        file = path if node.link is None else node.link[0]
        paired = path if other.link is None else other.link[0]
        if self._others.get(file, paired) != paired or self._files.get(paired, file) != file:
            return False
        self._others[file], self._files[paired] = paired, file
        return True


def are_like_folders(before: Node | None, after: Node | None) -> bool:
    """Return whether both are folders, of the same mode, owner and extended attributes."""
    if before is None or after is None or not before.kind == after.kind == "folder":
        return False
    if before.mtime_ns is None or after.mtime_ns is None:
        return before.mode & 0o777 == after.mode & 0o777
    return (before.mode, before.owner, before.xattrs) == (after.mode, after.owner, after.xattrs)


def has_other_time(before: Node | None, after: Node | None) -> bool:
    """Return whether both are folders that differ in their times and, beside what they hold, in nothing."""
    if before is None or after is None or not are_like_folders(before, after):
        return False
    # A tree of an earlier version knows none.
    return before.mtime_ns != after.mtime_ns and None not in {before.mtime_ns, after.mtime_ns}


def explains_time(before: Node | None, after: Node | None) -> bool:
    """Return whether the time of a folder may have changed with this entry, which differs between two trees.

    It does when an entry comes, goes or is replaced, and not with what a folder in it holds.
    """
    if before is None or after is None:
        return True
    return not (before.kind == after.kind == "folder" or before.is_like(after))


def reachable_digests(store: ContentStore, roots: Iterable[str]) -> set[str]:
    """Return the digests of all contents that these trees need."""
    found: set[str] = set()
    todo = list(roots)
    while todo:
        digest = todo.pop()
        if digest in found:
            continue
        found.add(digest)
        for node in decode_folder(store.get(digest)).values():
            if node.kind == "folder":
                todo.append(node.content)
            found.update(node.digests)
    return found


def is_whole(store: SizedStore, root: str) -> bool:
    """Return whether all that a tree needs is stored: its listings undamaged, the rest of the right size.

    Raises:
        WorkspaceError: If that cannot be told now.
    """
    known: set[str] = set()
    todo = [root]
    while todo:
        digest = todo.pop()
        if digest in known:
            continue
        known.add(digest)
        try:
            nodes = decode_folder(store.get(digest))
        except LostContent:
            return False
        for node in nodes.values():
            if node.kind == "folder":
                todo.append(node.content)
            elif node.kind in _STORED and store.size_of(node.content) != node.size:
                return False
            if node.xattrs and store.size_of(node.xattrs) < 0:
                return False
    return True


# ---- which names lead to one file


def take_links(reader: TreeReader, end: str, targets: dict[TreePath, Node | None]) -> None:
    """Give each target the further names that its file has in the tree `end`.

    Which file a name leads to is known of one tree alone: a file that one hop brings back may have had no
    further name when that step began, and have one where the last hop leads. Of two trees, the same inode may
    mean two files.
    """
    for path, target in targets.items():
        if target is not None and target.can_have_names:
            last = reader.lookup(end, path)
            link = last.link if last is not None and target.is_like(last) else None
            targets[path] = target._replace(link=link)


def plan_links(
    reader: TreeReader,
    now: str,
    end: str,
    targets: Mapping[TreePath, Node | None],
    present: Mapping[TreePath, Node | None],
) -> tuple[set[TreePath], dict[TreePath, FileGroup], dict[FileGroup, TreePath], dict[TreePath, TreePath]]:
    """Plan which names have to lead to one file, and which no longer may.

    Returns:
        Targets that are as they should be; two values as `RestorePlan` has them; and targets that cannot lead
        to the file of any name that stays, each with a name that it shared one with.
    """
    right: set[TreePath] = set()
    groups: dict[TreePath, FileGroup] = {}
    anchors: dict[FileGroup, TreePath] = {}
    parted: dict[TreePath, TreePath] = {}
    linked: dict[TreePath, Node] = {}
    for path, target in targets.items():
        current = present[path]
        if (
            target is not None
            and target.can_have_names
            and (target.link is not None or (current is not None and current.link is not None))
        ):
            linked[path] = target
    if not linked:
        return right, groups, anchors, parted
    group_of_file: dict[FileGroup, FileGroup] = {}  # of each file that is there: what it stays
    file_of_group: dict[FileGroup, FileGroup] = {}

    def is_claimed(path: TreePath, current: Node, group: FileGroup) -> bool:
        file: FileGroup = path if current.link is None else current.link[0]
        if group_of_file.get(file, group) != group or file_of_group.get(group, file) != file:
            return False
        group_of_file[file], file_of_group[group] = group, file
        anchors.setdefault(group, path)
        return True

    needed = {target.link[0] for target in linked.values() if target.link is not None}
    unlike: dict[FileGroup, TreePath] = {}
    for path, node in reader.entries(end):
        if node.link is not None and node.link[0] in needed and path not in targets:
            untouched = reader.lookup(now, path)
            like = untouched if untouched is not None and node.is_like(untouched) else None
            if like is None or not is_claimed(path, like, node.link[0]):
                unlike.setdefault(node.link[0], path)
    joined = frozenset(anchors)
    there = [one for path in linked if (one := present[path]) is not None]
    shared = {one.link[0] for one in there if one.link is not None}
    for path, node in reader.entries(now):
        # What is not touched stays, so a target that shares its file with it stays only if it shall.
        if node.link is not None and node.link[0] in shared and path not in targets:
            then = reader.lookup(end, path)
            is_claimed(path, node, path if then is None or then.link is None else then.link[0])
    for path, target in linked.items():
        current = present[path]
        group: FileGroup = path if target.link is None else target.link[0]
        if current is not None and target.is_like(current) and is_claimed(path, current, group):
            right.add(path)
        else:
            groups[path] = group
            if group in unlike and group not in joined:
                parted[path] = unlike[group]
    return right, groups, anchors, parted


# ---- in a folder


def open_below(root: int, path: TreePath) -> int:
    """Return a descriptor of the folder at `path` below an open directory, following no link.

    Raises:
        OSError: If there is no folder at the path.
    """
    folder = os.open(".", DIRECTORY_FLAGS, dir_fd=root)
    for name in path:
        try:
            inner = os.open(name, DIRECTORY_FLAGS, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def digest_below(root: int, device: int, most_entries: int) -> tuple[str, int]:
    """Return a digest of names, modes and stamps of all that an open folder holds, and how many those are.

    Hostile code can nest folders deeper than any path may be long, and than there are descriptors. One folder
    is open at a time. Race: a folder may be moved while the walk is in it, and `..` then leads elsewhere,
    also out of the workspace; so what it leads to is compared with where the walk came from. Nothing is
    written, and no link is followed.

    Args:
        root: Descriptor of the folder.
        device: The file system that it must not leave.
        most_entries: How many entries are looked at.

    Returns:
        An empty digest if not everything could be looked at: there is more, or it changed meanwhile.
    """
    digest, count = hashlib.sha256(), 0
    stack: list[tuple[tuple[int, int], Iterator[str]]] = []
    folder = os.open(".", DIRECTORY_FLAGS, dir_fd=root)
    try:
        while True:
            subfolders: list[str] = []
            for name in sorted(os.listdir(folder)):  # noqa: PTH208 - a descriptor, no path
                count += 1
                if count > most_entries:
                    return "", count
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                digest.update(os.fsencode(f"{name}\0{status.st_mode}:{stamp_text(status)}\0"))
                if stat.S_ISDIR(status.st_mode):
                    subfolders.append(name)
            stack.append((_identity(folder), iter(subfolders)))
            while stack and (below := next(stack[-1][1], None)) is None:
                digest.update(b"/")
                stack.pop()
                if stack:
                    folder = _move_to(folder, "..")
                    if _identity(folder) != stack[-1][0]:
                        return "", count
            if not stack:
                return digest.hexdigest(), count
            assert below is not None
            folder = _move_to(folder, below)
            if _identity(folder)[0] != device:
                return "", count
    except OSError:  # it cannot be read, or was removed since it was listed
        return "", count
    finally:
        os.close(folder)


def _identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _move_to(folder: int, name: str) -> int:
    """Return the folder `name` of an open one, opened; close that one."""
    there = os.open(name, DIRECTORY_FLAGS, dir_fd=folder)
    os.close(folder)
    return there


def stamp_text(status: os.stat_result) -> str:
    """Return what changes with an entry whose content is not stored."""
    changed = str(status.st_ctime_ns)
    if stat.S_ISDIR(status.st_mode) and not status.st_mode & stat.S_IRUSR:
        # The look for protected files opens such a folder for a moment, by its mode, which sets this time.
        changed = f"{status.st_mode:o}.{status.st_uid}.{status.st_gid}"
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}:{changed}"


def unreadable_node(error: OSError, status: os.stat_result | None) -> Node:
    """Return a node for a path that cannot be read; without a status one that is equal to no other."""
    reason = f"{_UNREADABLE}{error.strerror}"
    if status is None:
        return Node("unkept", content=f"{reason};{os.urandom(8).hex()}")
    return unkept_node(reason, status)


def unkept_node(reason: str, status: os.stat_result, digest: str = "") -> Node:
    """Return a node for a path whose content is not stored; it changes when the file does.

    Args:
        reason: Why it is not stored.
        status: Its status.
        digest: What `digest_below` returned for a folder that was looked through.
    """
    seal = f";{digest}" if digest else ""
    return Node("unkept", status.st_mode & 0o777, f"{reason};{stamp_text(status)}{seal}")


def missing_folders(
    reader: TreeReader, now: str, end: str, targets: Mapping[TreePath, Node | None]
) -> dict[TreePath, Node]:
    """Return the folders around targets that no hop has changed, and that are gone or something else.

    What hides its content may be such a folder. Something else stays where nothing in the folder is stored.
    """
    missing: dict[TreePath, Node] = {}
    around_stored: set[TreePath] = {()}
    around_others: set[TreePath] = {()}
    for path, target in targets.items():
        if target is None:
            continue
        is_stored = target.kind not in {"unkept", "other"}
        known = around_stored if is_stored else around_others
        around = path[:-1]
        while around not in known:
            known.add(around)
            present, node = (reader.lookup(tree, around) for tree in (now, end))
            is_folder = present is not None and (present.kind == "folder" or present.hides)
            is_there = is_folder or (present is not None and not is_stored)
            if around not in targets and not is_there and node is not None and node.kind == "folder":
                missing[around] = node
            around = around[:-1]
    return missing
