"""The switch of one path: what is taken away is what the plan has seen there, or it is put back.

Threat
    A person saves a file while an undo puts files back, right between the last look at it and its switch.
Mechanism
    A staged entry and the one in its place are exchanged in one step, and what is to be removed is renamed
    into the folder of the staging. What came out is looked at there: is it what the plan has seen? Only then
    is it deleted. Else it is put back, and whoever carries out the plan takes the path for somebody else's.
    What has to be put where nothing was is renamed in a way that fails if something is there.
    What came out counts as what was seen if kind, mode, owner, size and time are the same and it had not
    changed since the plan looked, but by this itself: what loses one of its names has another stamp by that.
    Where that is not certain, its content is read and compared. What is not stored, and so could not be put
    back, is kept instead of being deleted.
Race window
    A program that has opened a file before the switch, and writes to it afterwards, writes to what was taken
    away. Where a file system cannot exchange (NFS, some of FUSE), a save between the look and the rename that
    comes microseconds later is overwritten. So is one below another mount of the same file system if the
    process ends between the exchange and the look, and one that comes right before something that is not
    stored is put back, if the process ends there.
When it fails
    After a crash between the exchange and the look, what came out is still in the folder of the staging.
    `put_back_displaced` brings it to its place before that is swept.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Set as AbstractSet
from contextlib import contextmanager, nullcontext, suppress

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.attributes import FIFO_BITS, read_xattrs
from aisotools.workspace.checkpoints.contents import has_content
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import (
    Node,
    TreePath,
    digest_below,
    link_target,
    open_below,
    stamp_text,
)
from aisotools.workspace.dirfd import (
    DIRECTORY_FLAGS,
    NEVER_EXCHANGED,
    PLACE_FLAGS,
    READ_FLAGS,
    exchange,
    open_unlocked,
    rename_new,
)

CHANGING = "somebody else is changing it just now"
"""Why a path is not switched."""

TAKEN = "taken-"
"""How the name begins of what is only taken away."""

_MOST_SAVES = 16  # saves of one file while it is put back, each between two exchanges of it
_SHORT_NAME = 40
_NO_PLACE_ASIDE = frozenset({errno.EXDEV, errno.ENOSPC, errno.EDQUOT})


class ChangedMeanwhile(Exception):
    """What is at a path is not what the plan has seen there. It is left as it is."""

    def __init__(self, reason: str = CHANGING) -> None:
        super().__init__(reason)


def mark_of(path: TreePath) -> str:
    """Return the name under which the entry of a path is staged, and which what was there gets instead.

    That of what is only taken away ends with it.
    """
    return hashlib.blake2b(os.fsencode("/".join(path)), digest_size=16).hexdigest()


class Switcher:
    """Switches the paths of one plan."""

    def __init__(
        self,
        store: Store,
        present: Mapping[TreePath, Node | None],
        looked_ns: int,
        open_aside: Callable[[], int],
        covered: AbstractSet[TreePath] = frozenset(),
        *,
        keep: Callable[[TreePath, str, int], os.stat_result] | None = None,
        restamped: dict[int, set[int]] | None = None,
    ) -> None:
        """Switch nothing yet.

        Args:
            store: Holds the targets of long links.
            present: What the plan has seen at each path that it changes; None for nothing.
            looked_ns: When it looked, in nanoseconds as files are stamped.
            open_aside: Returns the descriptor of the folder into which is renamed what is to be removed, or
                raises `OSError`.
            covered: Paths at which the plan has found nothing, since it could not look: what is there is
                replaced.
            keep: Takes what came out of a path and is not stored, by its name in an open folder, and returns
                its status; without it that is deleted like everything else. An `OSError` if it cannot.
            restamped: Gets the change times that this gives to what is not stored, by inode.
        """
        self._covered = covered
        self._keep, self._restamped = keep, {} if restamped is None else restamped
        self._store, self._present, self._looked_ns = store, present, looked_ns
        self._open_aside = open_aside
        self._emptied: set[TreePath] = set()
        self._touched: dict[int, int] = {}  # change times of files that have another one by this, by inode

    def __repr__(self) -> str:
        return f"<Switcher of {len(self._present)} paths>"

    def note_emptied(self, path: TreePath) -> None:
        """Note that nothing is at a path any more: its folder was removed."""
        self._emptied.add(path)

    def check_folder(self, path: TreePath) -> None:
        """Check that the plan has seen a folder at a path, where one is now.

        Raises:
            ChangedMeanwhile: If it has not.
        """
        node = self._present.get(path)
        if node is None or node.kind not in {"folder", "unkept"}:
            raise ChangedMeanwhile

    def holds_new(self, path: TreePath, parent: int) -> bool:
        """Return whether a folder that should be empty holds what the plan does not know.

        Raises:
            OSError: If it cannot be looked at.
        """
        folder = os.open(path[-1], DIRECTORY_FLAGS, dir_fd=parent)
        try:
            names = os.listdir(folder)  # noqa: PTH208 - a descriptor, no path
        finally:
            os.close(folder)
        return any(self._present.get((*path, name)) is None for name in names)

    def put(self, path: TreePath, source: str, folder: int, parent: int) -> None:
        """Put an entry of an open folder to its path, and delete what the plan has seen there.

        Args:
            path: The path.
            source: Name of the entry, whose own place is empty afterwards.
            folder: Descriptor of the folder that it is in.
            parent: Descriptor of the folder around the path.

        Raises:
            ChangedMeanwhile: If somebody else has changed what is there.
            OSError: If the system refuses it.
        """
        node = None if path in self._emptied else self._present.get(path)
        if node is None and path in self._covered:
            # Race: what a person saved there since the call is replaced, which the plan could not see either.
            os.rename(source, path[-1], src_dir_fd=folder, dst_dir_fd=parent)
            return
        if node is None:
            _put_new(path[-1], source, folder, parent)
            return
        name = path[-1]
        try:
            before = _look(name, parent)
            is_sure, ours = self._is_sure(before, node), _look(source, folder)
            # A folder is never exchanged: what was in its way could not be removed.
            if node.kind == "folder" or stat.S_ISDIR(ours.st_mode):
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
            try:
                exchange(source, name, src_dir_fd=folder, dst_dir_fd=parent)
            except OSError as error:
                if error.errno not in NEVER_EXCHANGED:
                    raise
                if not is_sure and not self._is_known(parent, name, before, node):
                    raise ChangedMeanwhile from None
                if self._is_kept(path, name, parent, node):
                    # Crash in between: nothing is there, and whoever completes the plan puts it there.
                    _put_new(name, source, folder, parent)
                    return
                with self._noting(name, parent, before):
                    # Race: a save from here on is overwritten.
                    os.rename(source, name, src_dir_fd=folder, dst_dir_fd=parent)
                return
        except FileNotFoundError:
            raise ChangedMeanwhile from None  # it was removed, or the folder of the staging was
        sure = before if is_sure else None
        self._delete(path, (source, folder), parent, node, before=sure, ours=ours.st_ino)

    def take(self, path: TreePath, parent: int, before: os.stat_result) -> None:
        """Remove what the plan has seen at a path, which is not a folder.

        Args:
            path: The path.
            parent: Descriptor of the folder around it.
            before: Status of what is there.

        Raises:
            ChangedMeanwhile: If somebody else has changed it.
            OSError: If the system refuses it.
        """
        node, name = self._present.get(path), path[-1]
        if node is None and path in self._covered:
            # Race: as above, in `put`.
            os.unlink(name, dir_fd=parent)
            return
        if node is None or node.kind == "folder":
            raise ChangedMeanwhile
        is_sure = self._is_sure(before, node)
        aside = f"{TAKEN}{mark_of(path)}"
        try:
            folder = self._open_aside()
            # Crash: see `put_back_displaced`.
            os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=folder)
        except OSError as error:
            if error.errno not in _NO_PLACE_ASIDE:
                raise
            # Disk full, or another mount. Race: a save from here on is removed.
            if not is_sure and not self._is_known(parent, name, before, node):
                raise ChangedMeanwhile from None
            if not self._is_kept(path, name, parent, node):
                with self._noting(name, parent, before):
                    os.unlink(name, dir_fd=parent)
        else:
            sure = before if is_sure else None
            self._delete(path, (aside, folder), parent, node, before=sure, ours=None)
        self._emptied.add(path)

    def _delete(
        self,
        path: TreePath,
        place: tuple[str, int],
        parent: int,
        node: Node,
        *,
        before: os.stat_result | None,
        ours: int | None,
    ) -> None:
        """Delete what came out of a path if that is what the plan has seen there, else put it back.

        What is not stored is kept instead, if that is possible.

        Args:
            path: The path.
            place: Name under which it came out, and descriptor of the folder in which that is.
            parent: Descriptor of the folder around the path.
            node: What the plan has seen.
            before: Status that was certainly of that; None without certainty.
            ours: Inode of what is at the path instead; None for nothing.

        Raises:
            ChangedMeanwhile: If it is put back.
            OSError: If it cannot be kept. It is put back then.
        """
        name, (source, folder) = path[-1], place
        out = _look(source, folder)
        if (before is not None and _is_same(before, out)) or self._is_known(folder, source, out, node):
            try:
                if self._keep is not None and self._is_kept(path, source, folder, node):
                    return
            except OSError:
                _put_back(name, source, folder, parent, ours)
                self.note_restamped(_look(name, parent))
                raise
            # What cannot be deleted is removed with the folder of the staging, or that failure is named.
            with self._noting(source, folder, out) if out.st_nlink > 1 else nullcontext(), suppress(OSError):
                os.unlink(source, dir_fd=folder)
            return
        raise ChangedMeanwhile(_put_back(name, source, folder, parent, ours))

    def _is_kept(self, path: TreePath, name: str, folder: int, node: Node) -> bool:
        """Keep what came out of a path, or is still there, if it is not stored. Return False if it is.

        Raises:
            OSError: If that is not possible.
        """
        if self._keep is None or node.kind not in {"unkept", "other"}:
            return False
        try:
            self.note_restamped(self._keep(path, name, folder))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return False  # below another mount of the same file system
        return True

    def note_restamped(self, status: os.stat_result) -> None:
        """Note that what is not stored has this change time by a step of ours."""
        self._restamped.setdefault(status.st_ino, set()).add(status.st_ctime_ns)

    def take_tree(self, path: TreePath, aside: str, parent: int) -> None:
        """Rename what is removed with all that it holds to another name in its folder.

        Raises:
            ChangedMeanwhile: If somebody else has changed it.
            OSError: If the system refuses it.
        """
        name, node = path[-1], self._present.get(path)
        if node is None:
            raise ChangedMeanwhile
        before = _look(name, parent)
        # What lies in a sealed folder is looked at afterwards.
        is_known = node.is_sealed or self._is_sure(before, node)
        is_known = is_known or self._is_known(parent, name, before, node)
        os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
        if is_known and node.is_sealed:
            is_known = _holds_sealed(parent, aside, node)
        elif is_known:
            is_known = _is_same(before, _look(aside, parent))
        if not is_known:
            raise ChangedMeanwhile(_put_back(name, aside, parent, parent, None))

    def _is_sure(self, status: os.stat_result, node: Node) -> bool:
        """Return whether a status is certainly that of what the plan has seen."""
        # Race: a change within the same tick of the clock has the same stamp.
        is_old = status.st_ctime_ns < self._looked_ns
        is_ours = self._touched.get(status.st_ino) == status.st_ctime_ns
        if not is_old and (is_ours or status.st_ctime_ns in self._restamped.get(status.st_ino, ())):
            is_old = has_stamp(status, node)
        return is_old and looks_like(status, node)

    @contextmanager
    def _noting(self, name: str, folder: int, before: os.stat_result) -> Iterator[None]:
        """Note which change time the further names of a file have when it has lost one of them.

        Its content may be none that can be compared: not even its owner may read a file of some modes.
        """
        place = -1
        if before.st_nlink > 1 and not stat.S_ISDIR(before.st_mode):
            with suppress(OSError):  # its further names are compared then
                place = os.open(name, PLACE_FLAGS, dir_fd=folder)
        try:
            yield
            if place >= 0 and _is_same(before, after := os.fstat(place)):
                self._touched[after.st_ino] = after.st_ctime_ns
                if after.st_ino in self._restamped:
                    self.note_restamped(after)
        finally:
            if place >= 0:
                os.close(place)

    def _is_known(self, folder: int, name: str, status: os.stat_result, node: Node) -> bool:
        """Return whether an entry has the content and the attributes of a node, which are compared."""
        kind = stat.S_IFMT(status.st_mode)
        if node.kind in {"unkept", "other"}:
            # Its content is not stored: without a change of its name, its stamp tells.
            stamp = node.content.split(";")[1:2]
            return stamp == [stamp_text(status)]
        if not _has_attributes(status, node):
            return False
        try:
            if node.is_link:
                target = os.readlink(name, dir_fd=folder)
                return target == link_target(node, self._store)
            if node.kind == "fifo":
                return kind == stat.S_IFIFO
            file = os.open(name, READ_FLAGS, dir_fd=folder)
            try:
                # Race: it may be another file by now. What was opened is compared, and its status was taken.
                opened = os.fstat(file)
                is_it = (opened.st_dev, opened.st_ino) == (status.st_dev, status.st_ino)
                known = node.mtime_ns is None or read_xattrs(file, self._store) == node.xattrs
                return is_it and known and has_content(file, node)
            finally:
                os.close(file)
        except (OSError, WorkspaceError):
            return False  # what cannot be compared is left as it is


def _holds_sealed(parent: int, name: str, node: Node) -> bool:
    """Return whether a folder holds what it did when its node was made."""
    folder = open_unlocked(name, parent)
    try:
        seal = node.content.rpartition(";")[2]
        return digest_below(folder, os.fstat(folder).st_dev, _MOST_SEALED)[0] == seal
    finally:
        os.close(folder)


_MOST_SEALED = 1_000_000  # entries of a folder that is removed with all in it, which are looked at once more


def _look(name: str, folder: int) -> os.stat_result:
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Return whether two statuses are of one unchanged entry. Its change time is new with each new name."""
    same_file = (one.st_ino, one.st_mode, one.st_uid, one.st_gid) == (
        *(other.st_ino, other.st_mode, other.st_uid, other.st_gid),
    )
    return same_file and (one.st_size, one.st_mtime_ns) == (other.st_size, other.st_mtime_ns)


def has_stamp(status: os.stat_result, node: Node) -> bool:
    """Return whether a status is that of what is not stored, but perhaps for its change time."""
    stamp = node.content.split(";")[1:2]
    return node.kind != "unkept" or [one.rpartition(":")[0] for one in stamp] == [
        stamp_text(status).rpartition(":")[0]
    ]


_TYPES = {
    "file": stat.S_IFREG,
    "sparse": stat.S_IFREG,
    "folder": stat.S_IFDIR,
    "link": stat.S_IFLNK,
    "long_link": stat.S_IFLNK,
    "fifo": stat.S_IFIFO,
}


def looks_like(status: os.stat_result, node: Node) -> bool:
    """Return whether a status can be that of a node: its kind, attributes, time and size."""
    if node.kind in {"unkept", "other"}:
        return not node.is_sealed or stat.S_ISDIR(status.st_mode)
    return (
        _has_attributes(status, node)
        and node.mtime_ns in {None, status.st_mtime_ns}
        and (node.kind != "file" or node.size == status.st_size)
    )


def _has_attributes(status: os.stat_result, node: Node) -> bool:
    if stat.S_IFMT(status.st_mode) != _TYPES.get(node.kind):
        return False
    if node.mtime_ns is None:  # a tree of an earlier version
        return not node.is_file or status.st_mode & 0o777 == node.mode & 0o777
    if node.owner is not None and node.owner != (status.st_uid, status.st_gid):
        return False
    covered = FIFO_BITS if node.kind == "fifo" else 0o7777
    return node.is_link or stat.S_IMODE(status.st_mode) & covered == node.mode


def _put_new(name: str, source: str, folder: int, parent: int) -> None:
    """Put an entry where nothing is."""
    try:
        # Crash in between: nothing is there, or the whole entry.
        rename_new(source, name, src_dir_fd=folder, dst_dir_fd=parent)
    except FileExistsError:
        raise ChangedMeanwhile from None
    except OSError as error:
        if error.errno not in NEVER_EXCHANGED:
            raise
        with suppress(FileNotFoundError):
            _look(name, parent)
            raise ChangedMeanwhile from None
        # Race: what somebody puts there from here on is overwritten.
        os.rename(source, name, src_dir_fd=folder, dst_dir_fd=parent)


def _put_back(name: str, source: str, folder: int, parent: int, ours: int | None) -> str:
    """Put what came out of a path back to it. What then comes out is left under the name `source`.

    Race: a person may save again between the two exchanges. What comes out the second time is newer than what
    was put back then, and so it goes on until what comes out is what the last exchange has put there.

    Args:
        name: Name of the path in its folder.
        source: Name under which it came out.
        folder: Descriptor of the folder in which that is.
        parent: Descriptor of the folder around the path.
        ours: Inode of what was put there; None for nothing.

    Returns:
        What to say about the path.
    """
    for attempt in range(_MOST_SAVES):
        try:
            held = _look(source, folder).st_ino
            if ours is None:
                _put_new(name, source, folder, parent)
                return CHANGING
            exchange(source, name, src_dir_fd=folder, dst_dir_fd=parent)
        except ChangedMeanwhile:
            return CHANGING  # it was saved again, and that is newer
        except FileNotFoundError:
            ours = None  # what was put there was removed
            continue
        except OSError as error:
            if attempt < _MOST_SAVES - 1:
                continue
            # Its place is refused to it: a person finds it beside that.
            aside = f"{name[:_SHORT_NAME]}.saved-{os.urandom(4).hex()}"
            os.rename(source, aside, src_dir_fd=folder, dst_dir_fd=parent)
            return f"it could not be put back to its place ({error.strerror}), and is {aside!r} now"
        if _look(source, folder).st_ino == ours:
            break
        ours = held
    return CHANGING


# ---- after a crash


def put_back_displaced(root: int, place: str, wanted: Mapping[TreePath, Node | None]) -> None:
    """Put back what the switch of a path had taken away when its process ended, before it had looked at it.

    Whoever completes the plan looks at it again: what is known is replaced, what is not stays.

    Args:
        root: Descriptor of the folder whose paths are switched.
        place: Name in it of the folder of the staging, once something is switched.
        wanted: What the plan leads to at each path that it changes; None for nothing.
    """
    try:
        folder = os.open(place, DIRECTORY_FLAGS, dir_fd=root)
    except FileNotFoundError:
        return
    try:
        marks = {mark_of(path): path for path in wanted}
        for name in os.listdir(folder):  # noqa: PTH208 - a descriptor, no path
            path = marks.get(name.rpartition("-")[2])
            if path is None:
                continue
            if _is_staged(_look(name, folder), wanted[path]):
                continue  # it has not been switched yet, and its place may be one that cannot be looked at
            with suppress(FileNotFoundError, NotADirectoryError):  # its folder is gone, or it is
                parent = open_below(root, path[:-1])
                try:
                    _put_back_one(path, name, folder, parent, wanted[path])
                finally:
                    os.close(parent)
    finally:
        os.close(folder)


def _is_staged(status: os.stat_result, node: Node | None) -> bool:
    if node is None:
        return False
    return looks_like(status, node) or (node.kind == "folder" and stat.S_ISDIR(status.st_mode))


def _put_back_one(path: TreePath, name: str, folder: int, parent: int, node: Node | None) -> None:
    try:
        there = _look(path[-1], parent)
    except FileNotFoundError:
        if node is None or node.kind == "folder":
            with suppress(FileExistsError):
                # Race: something may have been put there: that is newer.
                rename_new(name, path[-1], src_dir_fd=folder, dst_dir_fd=parent)
        return
    if node is not None and node.kind != "folder" and looks_like(there, node):
        exchange(name, path[-1], src_dir_fd=folder, dst_dir_fd=parent)
