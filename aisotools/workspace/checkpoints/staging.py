"""Staging: whatever an undo puts into a folder is written beside it, verified and synced before the switch.

Threat
    An undo that meets a full disk, a damaged copy or a lost process half way leaves a mixture of two states.
Mechanism
    Files, links, FIFOs and whole new folders are made in one private folder in the same file system. The
    content of every file is compared with its digest and synced. Only then is anything switched, as
    `aisotools.workspace.checkpoints.switching` says, which takes no space for content. For extended
    attributes of a folder that stays, space is kept by an empty folder that has them as well, and that is
    removed just before they are set.
Race window
    Other programs may change the folder between the staging and the switch: what is then not what the plan
    has seen is not switched.
When it fails
    Before the switch nothing has changed, and what was staged is removed. A crash leaves the folder, which
    `aisotools.workspace.checkpoints.removal.sweep` finds by its token.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType

from aisotools.core.concurrency import sorted_in_runs
from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.attributes import (
    give_to,
    read_xattrs,
    set_attributes,
    set_special_attributes,
    set_xattrs,
)
from aisotools.workspace.checkpoints.contents import write_content
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.switching import Switcher, mark_of
from aisotools.workspace.checkpoints.tree import Node, TreePath, link_target, open_below
from aisotools.workspace.dirfd import CREATE_FLAGS, DIRECTORY_FLAGS, flush_file_system, open_unlocked
from aisotools.workspace.workspace import TEMPORARY

Failure = tuple[TreePath, str]
"""A path that could not be restored, and the reason."""

SYNCED_ONE_BY_ONE = 32
"""Up to so many files or folders are synced each; above it the whole file system is, which is faster."""

_NOT_LINKED = frozenset(
    {
        *(errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV),
        *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP),
    }
)
"""Why a file cannot have another name: the file system or its rights do not allow it, or it is gone."""

_NOT_SYNCED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EROFS})
"""What a file system says of a file or folder that it never writes back."""


def temporary_prefix(token: str) -> str:
    """Return how the names of all partial files of one restore begin."""
    return f"{TEMPORARY}{token}-"


def stage_name(token: str) -> str:
    """Return the name of the folder in which one restore stages."""
    return f"{temporary_prefix(token)}staged"


def switch_name(token: str) -> str:
    """Return the name of that folder once all is staged, so that nothing in it is half written."""
    return f"{temporary_prefix(token)}switched"


def replaced_name(token: str) -> str:
    """Return the name of the folder of one `Replaced`."""
    return f"{temporary_prefix(token)}replaced"


class Replaced:
    """What one restore has replaced though its content is not stored, so that it can be taken back.

    It waits in a private folder beside that of the staging, each under the `mark_of` its path.
    """

    def __init__(self, root: int, token: str) -> None:
        """Make nothing yet.

        Args:
            root: Descriptor of the folder that is restored; it stays the caller's.
            token: Part of the name of the folder in which it waits.
        """
        self._root, self.name, self._folder = root, replaced_name(token), -1

    def __repr__(self) -> str:
        return f"<Replaced {self.name}>"

    def make(self) -> None:
        """Make its folder, so that nothing but a rename is left to do. Idempotent.

        Raises:
            OSError: If that is not possible.
        """
        if self._folder < 0:
            with writable(self._root, ()) as root:
                with suppress(FileExistsError):
                    os.mkdir(self.name, 0o700, dir_fd=root)
                self._folder = open_unlocked(self.name, root)

    def keep(self, path: TreePath, name: str, folder: int) -> os.stat_result:
        """Take what came out of a path, by its name in an open folder. Return its status.

        Raises:
            OSError: If that is not possible.
        """
        self.make()
        # Crash: whoever completes the restore does not need it, and whoever takes it back finds it there.
        os.rename(name, mark_of(path), src_dir_fd=folder, dst_dir_fd=self._folder)
        return os.stat(mark_of(path), dir_fd=self._folder, follow_symlinks=False)

    def holds(self, path: TreePath, node: Node) -> bool:
        """Return whether it has what a node says of a path, and that is not stored.

        It is that also if a program that has it open has written to it since.
        """
        if node.kind not in {"unkept", "other"}:
            return False
        try:
            if self._folder < 0:
                self._folder = os.open(self.name, DIRECTORY_FLAGS, dir_fd=self._root)
            status = os.stat(mark_of(path), dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return False
        return node.kind == "other" or node.content.split(";")[1].split(":")[2] == str(status.st_ino)

    def put_back(self, path: TreePath, parent: int, switcher: Switcher) -> None:
        """Put what came out of a path back to it.

        Raises:
            OSError: If that is not possible.
            ChangedMeanwhile: If somebody else has changed what is there.
        """
        switcher.put(path, mark_of(path), self._folder, parent)
        switcher.note_restamped(os.stat(path[-1], dir_fd=parent, follow_symlinks=False))

    @property
    def is_made(self) -> bool:
        """True if there is anything in it."""
        try:
            os.stat(self.name, dir_fd=self._root, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError:
            pass  # whoever removes it says so
        return True

    def close(self) -> None:
        """Let go of the folder. Idempotent."""
        folder, self._folder = self._folder, -1
        if folder >= 0:
            os.close(folder)


class Stage:
    """What one restore has ready to be switched into an open folder.

    Attributes:
        partial: What is staged without some of its attributes, each with these.
    """

    def __init__(self, store: Store, root: int, token: str, *, keeps_set_ids: bool = False) -> None:
        """Stage beside what an open folder holds. Nothing is made yet.

        Args:
            store: Holds the contents.
            root: Descriptor of the folder; it stays the caller's.
            token: Part of the name of the folder in which is staged.
            keeps_set_ids: Whether setuid and setgid bits of files may be set; see `settable_mode`.
        """
        self.partial: list[Failure] = []
        self._keeps_set_ids = keeps_set_ids
        self._store = store
        self._root = root
        self._token, self._name = token, stage_name(token)
        self._folder = -1
        self._is_made = False
        self._tops: dict[TreePath, str] = {}  # what is renamed as a whole, and its name in the stage
        self._spaces: dict[TreePath, str] = {}  # folders that stay, and what keeps space for attributes
        self._landed: set[TreePath] = set()
        self._failed: set[TreePath] = set()
        self._names = self._files = 0
        self._owners: tuple[TreePath, tuple[int, int] | None] = ((), None)

    def __repr__(self) -> str:
        return f"<Stage {self._name}: {len(self._tops)} entries, {len(self._landed)} landed>"

    @property
    def name(self) -> str:
        """The name of its folder, as long as that is there; else empty."""
        return self._name if self._is_made else ""

    def prepare(
        self,
        targets: Mapping[TreePath, Node | None],
        links: Mapping[TreePath, TreePath] = MappingProxyType({}),
    ) -> list[Failure]:
        """Make everything that has to be at a path and is not there. Return what could not be made.

        Args:
            targets: Node that should be at each path; None for nothing.
            links: Files that have to be another name of the file at a second path, whether that is made here
                or is there.
        """
        failures: list[Failure] = []
        folders = [path for path, node in targets.items() if node is not None and node.kind == "folder"]
        new = [path for path in sorted_in_runs(folders, key=len) if not self._is_there(path)]
        others = (
            path
            for path, node in targets.items()
            if node is not None and node.kind not in {"folder", "unkept", "other"} and path not in links
        )
        try:
            for paths in (new, others, links):
                for path in paths:
                    node, anchor = targets[path], links.get(path)
                    assert node is not None
                    if anchor in self._failed:
                        # What stands there now is another file: a name of it would be no name of this one.
                        failures.append((path, "the file that it is another name of could not be made"))
                        self._failed.add(path)
                        continue
                    if self._folder < 0:
                        self._open()
                    try:
                        self._make(path, node, anchor)
                    except OSError as error:
                        failures.append((path, error.strerror or str(error)))
                        self._failed.add(path)
                    except WorkspaceError as error:
                        failures.append((path, str(error)))
                        self._failed.add(path)
            for path in folders:
                if path not in self._tops and self._locate(path) is None:
                    failures += self._keep_space(path, targets[path])
            if self._files > SYNCED_ONE_BY_ONE:
                flush_file_system(self._folder)
            self._mark_complete()
        except OSError as error:
            failures.append(((), error.strerror or str(error)))
        return failures

    def _keep_space(self, path: TreePath, node: Node | None) -> list[Failure]:
        """Keep space for the extended attributes that a folder which stays will get. Return what fails."""
        if node is None or not node.xattrs:
            return []
        try:
            present = open_below(self._root, path)
            try:
                if read_xattrs(present, self._store) == node.xattrs:
                    return []
            finally:
                os.close(present)
        except OSError:
            return []  # where nobody can look, nothing is kept; what cannot be set is named when it is due
        if self._folder < 0:
            self._open()
        self._names += 1
        name = str(self._names)
        try:
            os.mkdir(name, 0o700, dir_fd=self._folder)
            self._spaces[path] = name
            folder = open_unlocked(name, self._folder)
            try:
                set_xattrs(folder, node, self._store)
            finally:
                os.close(folder)
        except OSError as error:
            return [(path, error.strerror or str(error))]
        except WorkspaceError as error:
            return [(path, str(error))]
        return []

    def release_space(self, path: TreePath) -> None:
        """Give up the space that is kept for the extended attributes of a folder, which are set next."""
        name = self._spaces.pop(path, "")
        if name and self._folder >= 0:
            with suppress(OSError):  # it is removed with the stage then, and the attributes take other space
                os.rmdir(name, dir_fd=self._folder)

    def _open(self) -> None:
        with writable(self._root, ()) as root:
            os.mkdir(self._name, 0o700, dir_fd=root)
            self._is_made = True
            self._folder = open_unlocked(self._name, root)  # an inherited access list may have locked it

    def _mark_complete(self) -> None:
        if self._is_made:
            with writable(self._root, ()) as root:
                # Crash: under this name it may hold what was taken out of the folder. Until then it does not,
                # and may hold half of a file.
                os.rename(self._name, switch_name(self._token), src_dir_fd=root, dst_dir_fd=root)
            self._name = switch_name(self._token)

    def open_aside(self) -> int:
        """Return the descriptor of its folder, in which there is room for what is taken out of its place.

        Raises:
            OSError: If it cannot be made.
        """
        if self._folder < 0:
            self._name = switch_name(self._token)
            self._open()
        return self._folder

    def _is_there(self, path: TreePath) -> bool:
        """Return whether a folder is at a path, or may be: where nobody can look, nothing is staged."""
        if self._locate(path[:-1]) is not None:
            return False
        try:
            parent = open_below(self._root, path[:-1])
            try:
                if stat.S_ISDIR(os.stat(path[-1], dir_fd=parent, follow_symlinks=False).st_mode):
                    return True
            finally:
                os.close(parent)
        except PermissionError:
            return True
        except OSError:
            pass  # nothing is there; if the folder around it is not there either, `_make` says so
        self._tops[path] = ""  # what lies in it is staged in it
        return False

    def _locate(self, path: TreePath) -> tuple[TreePath, TreePath] | None:
        """Return the entry that a path is part of or is, and where below it; None if it is not staged."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._tops:
                return path[:end], path[end:]
        return None

    def _make(self, path: TreePath, node: Node, anchor: TreePath | None) -> None:
        around = self._locate(path[:-1])
        if around is None:
            name = mark_of(path)
            try:
                lost = self._make_in(self._folder, name, node, self._owner_at(path[:-1]), anchor)
            except BaseException:
                with suppress(OSError):  # it is removed with the folder of the staging
                    os.unlink(name, dir_fd=self._folder)
                raise
            self._tops[path] = name
        else:
            parent = self._open_staged(*around)
            try:
                status = os.fstat(parent)
                lost = self._make_in(parent, path[-1], node, (status.st_uid, status.st_gid), anchor)
            finally:
                os.close(parent)
        if lost:
            self.partial.append((path, describe_lost(lost)))

    def _open_staged(self, top: TreePath, below: TreePath) -> int:
        return open_below(self._folder, (self._tops[top] or "-", *below))  # "-": it could not be made

    def _make_in(
        self, parent: int, name: str, node: Node, owner: tuple[int, int] | None, anchor: TreePath | None
    ) -> list[str]:
        """Make an entry. Return the attributes that it has not."""
        if node.kind == "folder":
            os.mkdir(name, 0o700, dir_fd=parent)  # its mode is set when it is filled and in its place
            folder = open_unlocked(name, parent)
            try:
                give_to(folder, node.owner or owner)
                # What is refused is named when the mode is set.
                set_xattrs(folder, node, self._store)
            finally:
                os.close(folder)
            return []
        if anchor is not None and self._link(anchor, parent, name, node):
            return []
        if not node.is_file:
            make_special(self._store, parent, name, node)
            lost = set_special_attributes(parent, name, node, owner)
            return lost if anchor is None else [*lost, "its other names"]
        self._files += 1
        lost = write_node(
            self._store,
            parent,
            name,
            node,
            owner=owner,
            synced=self._files <= SYNCED_ONE_BY_ONE,
            keeps_set_ids=self._keeps_set_ids,
        )
        return lost if anchor is None else [*lost, "its other names"]

    def _link(self, anchor: TreePath, parent: int, name: str, node: Node) -> bool:
        """Make a name in an open folder lead to the entry at another path. Return False if it cannot."""
        staged = self._locate(anchor)
        if staged is None:
            return link_file(self._store, (self._root, anchor), parent, name, node)
        top, below = staged
        place = self._folder, (self._tops[top] or "-", *below)
        return link_file(self._store, place, parent, name, node)

    def _owner_at(self, folder: TreePath) -> tuple[int, int] | None:
        """Return the owner of the folder in which something will be; None if it may not be opened."""
        if self._owners[1] is None or self._owners[0] != folder:
            try:
                opened = open_below(self._root, folder)
            except PermissionError:
                return None  # a user who may not open it is not one who may give files away
            try:
                status = os.fstat(opened)
            finally:
                os.close(opened)
            self._owners = folder, (status.st_uid, status.st_gid)
        return self._owners[1]

    def land(self, path: TreePath, parent: int, switcher: Switcher | None = None) -> bool:
        """Put what is staged for a path into the open folder around it. Return False if nothing is.

        What lies in a folder that has landed is there already.

        Args:
            path: The path.
            parent: Descriptor of the folder around it.
            switcher: Puts it there; without one it is renamed, and replaces what is there.

        Raises:
            OSError: If that is not possible.
            ChangedMeanwhile: If somebody else has changed what is there.
        """
        if path in self._failed or self._folder < 0:
            return False
        name = self._tops.get(path, "")
        if not name:
            return any(path[:end] in self._landed for end in range(1, len(path)))
        try:
            # Crash in between: the name leads to the old file or to the whole new one.
            if switcher is None:
                os.rename(name, path[-1], src_dir_fd=self._folder, dst_dir_fd=parent)
            else:
                switcher.put(path, name, self._folder, parent)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return False  # another mount of the same file system: it is made in its place
        self._landed.add(path)
        return True

    def remove(self) -> None:
        """Remove the folder, which is empty once all has landed.

        Raises:
            OSError: If it holds something, or the system refuses it. It still has its `name` then.
        """
        if self._is_made:
            with writable(self._root, ()) as root:
                os.rmdir(self._name, dir_fd=root)
            self._is_made = False

    def close(self) -> None:
        """Let go of the folder, whether it is there or not. Idempotent."""
        folder, self._folder = self._folder, -1
        if folder >= 0:
            os.close(folder)


# ---- making one entry


def write_node(
    store: Store,
    parent: int,
    name: str,
    node: Node,
    *,
    owner: tuple[int, int] | None,
    synced: bool,
    keeps_set_ids: bool = False,
) -> list[str]:
    """Create a file with the content and the attributes of a node. Return the attributes that it has not.

    Raises:
        OSError: If that is not possible; a part of the file may be left.
        WorkspaceError: If the content is damaged or gone.
    """
    # Readable by nobody else until it is complete.
    file = os.open(name, CREATE_FLAGS, 0o600, dir_fd=parent)
    try:
        write_content(store, node, file)
        lost = set_attributes(file, node, store, owner=owner, keeps_set_ids=keeps_set_ids)
        if synced:
            sync(file)
    finally:
        os.close(file)
    return lost


def describe_lost(attributes: Collection[str]) -> str:
    """Return what is said of an entry that is back without some of its attributes."""
    return f"it is back, but without {'; '.join(attributes)}"


def link_file(store: Store, place: tuple[int, TreePath], parent: int, name: str, node: Node) -> bool:
    """Give the entry at a place another name. Return False if it cannot have one there.

    Args:
        store: Holds the targets of links.
        place: Descriptor of an open folder, and path of the entry below it.
        parent: Descriptor of the folder of the new name.
        name: The new name.
        node: What the entry has to be: a file, a link to the same target, or a FIFO.

    Raises:
        OSError: If the disk refuses it, or is full.
        WorkspaceError: If the target of the link is no longer stored.
    """
    root, path = place
    try:
        folder = open_below(root, path[:-1])
        try:
            # Race: what stands at the path may be a link by now. It is not followed, and not what is wanted.
            os.link(path[-1], name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno not in _NOT_LINKED:
            raise
        return False
    kind = stat.S_IFMT(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    if node.is_link:
        if kind == stat.S_IFLNK and os.readlink(name, dir_fd=parent) == link_target(node, store):
            return True
    elif kind == (stat.S_IFREG if node.is_file else stat.S_IFIFO):
        return True
    # Race: the new name leads to what has taken the file's place.
    os.unlink(name, dir_fd=parent)
    return False


def make_special(store: Store, parent: int, name: str, node: Node) -> None:
    """Create a link or a FIFO."""
    if node.is_link:
        os.symlink(link_target(node, store), name, dir_fd=parent)
    else:
        os.mkfifo(name, node.mode & 0o777, dir_fd=parent)


def sync(file: int) -> None:
    """Write an open file or folder through to the disk.

    Raises:
        OSError: If the disk refuses it.
    """
    try:
        # Power loss: a name may reach the disk before the content that it leads to.
        os.fsync(file)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise


def sync_folders(root: int, folders: Collection[TreePath]) -> list[Failure]:
    """Write through what was renamed in or removed from folders. Return those that could not be.

    One that is gone is left out.
    """
    if len(folders) > SYNCED_ONE_BY_ONE:
        try:
            flush_file_system(root)
        except OSError as error:
            return [((), f"it could not be written through to the disk: {error.strerror}")]
        return []
    failures: list[Failure] = []
    for path in folders:
        try:
            folder = open_below(root, path)
        except OSError:
            continue  # it was removed, or not even its owner may open it: the one around it says so
        try:
            sync(folder)
        except OSError as error:
            failures.append((path, f"it could not be written through to the disk: {error.strerror}"))
        finally:
            os.close(folder)
    return failures


@contextmanager
def writable(root: int, path: TreePath) -> Iterator[int]:
    """Open a folder to change its entries; if its mode forbids that, change the mode meanwhile."""
    folder = open_below(root, path)
    try:
        mode = stat.S_IMODE(os.fstat(folder).st_mode)
        locked = mode & 0o300 != 0o300
        if locked:
            # Crash: it stays open to its owner until the next open completes the move or takes it back.
            os.fchmod(folder, mode | 0o700)
        try:
            yield folder
        finally:
            if locked:
                _set_back(folder, mode)
    finally:
        os.close(folder)


def _set_back(folder: int, mode: int) -> None:
    try:
        # Race: a mode that somebody has set meanwhile is lost, as it cannot be told from ours.
        os.fchmod(folder, mode)
    except OSError as error:
        problem = f"the mode of the folder around it could not be set back: {error.strerror}"
        raise OSError(error.errno, problem) from error
