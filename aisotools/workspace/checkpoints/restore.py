"""Restoring a folder to an earlier tree, as `plan` says, from open descriptors.

`stage_plan` has ready what a plan needs, and `carry_out` switches it in. A content is written beside its
place and renamed into it, so nobody reads a partial file and a hard link is replaced, not written through.
No step follows a link: whatever hostile code swaps meanwhile can only make a step fail.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field

from aisotools.core.concurrency import sorted_in_runs
from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.attributes import (
    give_to,
    read_xattrs,
    set_special_attributes,
    set_time,
    set_xattrs,
)
from aisotools.workspace.checkpoints.plan import RestorePlan
from aisotools.workspace.checkpoints.removal import remove_tree
from aisotools.workspace.checkpoints.staging import (
    Failure,
    Replaced,
    Stage,
    describe_lost,
    link_file,
    make_special,
    sync_folders,
    temporary_prefix,
    writable,
    write_node,
)
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.switching import ChangedMeanwhile, Switcher
from aisotools.workspace.checkpoints.tree import Node, TreePath, TreeReader, open_below
from aisotools.workspace.dirfd import open_unlocked

_HOLDS_OTHERS = "it holds something that is not ours to remove"


@dataclass(slots=True)
class RestoreResult:
    """Paths that a restore changed, and those that it could not.

    Attributes:
        restored: Paths that were created or replaced.
        removed: Paths that were removed.
        failed: Paths that could not be changed, each with the reason.
        left_out: Paths that the plan leaves as they are, or that lack an attribute, each with the reason.
        changed: Paths that somebody else has changed since the plan was made, each with that as the reason.
            They are left as they are.
        timed: Folders that have got their time back.
    """

    restored: list[TreePath] = field(default_factory=list)
    removed: list[TreePath] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    left_out: list[Failure] = field(default_factory=list)
    changed: list[Failure] = field(default_factory=list)
    timed: list[TreePath] = field(default_factory=list, compare=False)


def stage_plan(
    store: Store, root: int, plan: RestorePlan, token: str, *, force: bool
) -> tuple[Stage, list[Failure]]:
    """Have ready what `carry_out` will put into an open folder, before anything is changed; see there.

    Returns:
        What is staged, for `carry_out` or `discard_stage`, and what could not be, with the reasons.
    """
    stage = Stage(store, root, token, keeps_set_ids=plan.keeps_set_ids)
    targets = plan.targets_of(force=force)
    return stage, stage.prepare(targets, plan.links_of(targets))


def carry_out(
    store: Store,
    root: int,
    plan: RestorePlan,
    token: str,
    *,
    force: bool,
    stage: Stage | None = None,
    is_whole: bool = False,
    replaced: Replaced | None = None,
) -> RestoreResult:
    """Bring an open folder to where a plan leads. What somebody else has changed meanwhile stays.

    Args:
        store: Holds the contents.
        root: Descriptor of the folder.
        plan: What to do.
        token: As for `restore`.
        force: Remove what is unrestorable; otherwise it is left in place.
        stage: What `stage_plan` returned. What is not in it is written now. It is empty afterwards.
        is_whole: Stop at the first path that somebody else has changed: all is taken back then.
        replaced: Takes what is replaced without being stored, unless forced, and has what the restore that
            this one takes back has replaced.
    """
    final = [*plan.sealed, *(path for path, _ in plan.unrestorable)] if force else plan.sealed
    aside = Stage(store, root, token) if stage is None else stage
    switcher = None
    if plan.present is not None:
        switcher = Switcher(
            store,
            plan.present,
            plan.looked_ns,
            aside.open_aside,
            plan.covered,
            keep=None if replaced is None or force else replaced.keep,
            restamped=plan.restamped,
        )
    result = remove_trees(root, final, token, switcher)
    result.left_out += plan.missing
    if not force:
        result.left_out += ((path, f"left in place: {why}") for path, why in plan.unrestorable)
    result.left_out += aside.partial
    targets = plan.targets_of(force=force)
    work = _Restore(
        store,
        root,
        token,
        result,
        stage=stage,
        switcher=switcher,
        replaced=replaced,
        keeps_set_ids=plan.keeps_set_ids,
        is_whole=is_whole,
        is_forced=force,
    )
    if not (is_whole and result.changed):
        with suppress(_Stopped):
            work.run(targets, plan.links_of(targets), _times_of(store, plan), plan)
    restored = frozenset(result.restored) if plan.parted else ()
    for path, why in plan.parted.items():
        if path in restored:
            result.left_out.append((path, why))
    if stage is None:
        discard_stage(root, aside, token)
    return result


_MOST_NAMED = 100
_MAY_BE_THE_CALLS = "it was in a folder that could not be read, so that nobody can tell who has put it there"

FolderTimes = Mapping[TreePath, tuple[Node, AbstractSet[str] | None]]
"""Folders that get their times back, each with its node and the names that it has to hold for that."""


def _times_of(store: Store, plan: RestorePlan) -> FolderTimes:
    """Return the folders that get their times back if they hold again what they held then."""
    reader = TreeReader(store)
    # Crash: of a restore that is completed, what is in its place already is not a target, and its folder has
    # another time.
    folders = (path for path, node in plan.wanted.items() if node is not None and node.kind == "folder")
    paths = {*plan.timed, *folders, *(path[:-1] for path in plan.touched)}
    times: dict[TreePath, tuple[Node, AbstractSet[str] | None]] = {}
    for path in paths - {()}:
        node = reader.lookup(plan.end, path) if plan.end else None
        if node is not None and node.kind == "folder" and node.mtime_ns is not None:
            times[path] = node, reader.of(node).keys()
    return times


def sync_restored(root: int, plan: RestorePlan, result: RestoreResult) -> list[Failure]:
    """Write what a restore has renamed and removed through to the disk. Return what could not be."""
    changed = {path[:-1] for paths in (result.restored, result.removed) for path in paths}
    changed.update(result.timed)
    for path in result.restored:
        node = plan.targets[path]
        if node is not None and node.kind == "folder":
            changed.add(path)
    return sync_folders(root, {(), *changed})


def discard_stage(root: int, stage: Stage, token: str) -> bool:
    """Remove what was staged and is not in its place. Return False if it cannot be removed."""
    stage.close()
    if stage.name:
        with suppress(OSError):  # it holds something: what was not switched
            stage.remove()
    if stage.name:
        try:
            remove_tree(root, (stage.name,), token)
        except FileNotFoundError:
            pass  # somebody else was faster
        except OSError:
            return False
    return True


def restore(store: Store, root: int, targets: Mapping[TreePath, Node | None], token: str) -> RestoreResult:
    """Make an open folder hold `targets`. Touch no other path.

    Args:
        store: Holds the contents.
        root: Descriptor of the folder.
        targets: Node that should be at each path; None for nothing.
        token: Part of the names of partial files, by which `sweep` finds them after a crash.
    """
    times = {
        path: (node, None) for path, node in targets.items() if node is not None and node.kind == "folder"
    }
    groups: dict[int, TreePath] = {}
    links = {}
    for path, node in targets.items():
        if node is not None and node.link is not None and groups.setdefault(node.link[0], path) != path:
            links[path] = groups[node.link[0]]
    return _Restore(store, root, token, RestoreResult()).run(targets, links, times)


_NOT_UNLOCKED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES})
"""How the system refuses to open what is not a folder, or one that has not been unlocked."""


def lock_again(store: Store, root: int, end: str, folders: Iterable[TreePath]) -> list[tuple[TreePath, str]]:
    """Give these folders the modes of a tree again, where a restore that was cut short has unlocked them.

    Returns:
        Those for which the system has refused that, each with the reason.
    """
    failed = []
    reader = TreeReader(store)
    for path in folders:
        node = reader.lookup(end, path)
        if path and node is not None and node.kind == "folder":
            try:
                folder = open_below(root, path)
                try:
                    mode = stat.S_IMODE(os.fstat(folder).st_mode)
                    if mode != node.mode and mode == node.mode | 0o700:
                        # Race: somebody else gives it that very mode in this moment, and gets this one.
                        os.fchmod(folder, node.mode)
                finally:
                    os.close(folder)
            except OSError as error:
                if error.errno not in _NOT_UNLOCKED:
                    failed.append((path, error.strerror or type(error).__name__))
    return failed


class _Stopped(Exception):
    """A restore stopped at a path that somebody else has changed."""


class _Restore:
    """One restore. A path that fails is recorded, and the others go on."""

    def __init__(
        self,
        store: Store,
        root: int,
        token: str,
        result: RestoreResult,
        *,
        stage: Stage | None = None,
        switcher: Switcher | None = None,
        replaced: Replaced | None = None,
        keeps_set_ids: bool = False,
        is_whole: bool = False,
        is_forced: bool = True,
    ) -> None:
        self._store = store
        self._keeps_set_ids = keeps_set_ids
        self._links: Mapping[TreePath, TreePath] = {}
        self._stage = stage
        self._switcher, self._replaced, self._is_whole = switcher, replaced, is_whole
        self._is_forced = is_forced
        self._root = root
        self._token = token
        self._temporaries = 0
        self._hidden: frozenset[TreePath] = frozenset()
        self._wanted: Mapping[TreePath, Node | None] = {}
        self._failed: set[TreePath] = set()
        self._unlocked: dict[TreePath, int] = {}  # folders that are open meanwhile, with their modes before
        self._result = result

    def run(
        self,
        targets: Mapping[TreePath, Node | None],
        links: Mapping[TreePath, TreePath],
        times: FolderTimes,
        plan: RestorePlan | None = None,
    ) -> RestoreResult:
        self._links = links
        if plan is not None:
            self._hidden, self._wanted = frozenset(path for path, _ in plan.hidden), plan.wanted
            if plan.moves_unstored:
                self._remove_unreadable_folders(targets, plan)
            if self._result.failed and not self._is_forced:
                return self._result
        folders = [path for path, node in targets.items() if node is not None and node.kind == "folder"]
        # Folders that not even their owner may use are opened first, the outermost first: their modes are
        # set in the end.
        for path in sorted_in_runs(folders, key=len):
            self._unlock(path)
        # Removals next, deepest first: a folder must be empty, and a file may stand where a folder should
        # be.
        for path in sorted_in_runs(targets, key=len, reverse=True):
            self._step(self._clear, path, targets[path])
        for path in sorted_in_runs(folders, key=len):
            self._step(self._make_folder, path, targets[path])
        for path, node in targets.items():
            if node is not None and node.kind != "folder" and path not in links:
                self._step(self._put, path, node)
        for path in links:
            self._step(self._put, path, targets[path])
        for path, (folder, names) in times.items():
            self._set_time(path, folder, names)
        # Modes of folders last, deepest first: a folder without write permission has to be filled before.
        for path in sorted_in_runs(folders, key=len, reverse=True):
            self._step(self._set_attributes, path, targets[path])
        return self._result

    def _remove_unreadable_folders(self, targets: Mapping[TreePath, Node | None], plan: RestorePlan) -> None:
        """Remove the folders that cannot be read and are to be something else.

        Nobody knows what they hold, and only empty ones can be removed. If one is not, nothing else has been
        changed yet; a folder that had been unlocked could not be brought back.
        """
        unreadable = {
            path for path, now in (plan.present or {}).items() if now is not None and now.is_unreadable
        }
        unreadable &= {path for path, node in targets.items() if node is None or node.kind != "folder"}
        unreadable -= {path[:end] for path in targets if unreadable for end in range(1, len(path))}
        for path in unreadable:
            self._step(self._clear_folder, path, targets[path])

    def _step(self, act: Callable[[TreePath, Node | None], None], path: TreePath, node: Node | None) -> None:
        if path in self._failed:
            return  # what could not be removed is in the way of what should be there; it is named once
        try:
            act(path, node)
        except ChangedMeanwhile as error:
            self._failed.add(path)
            self._result.changed.append((path, str(error)))
            if self._is_whole:
                raise _Stopped from None
        except (OSError, WorkspaceError) as error:
            self._failed.add(path)
            why = error.strerror if isinstance(error, OSError) else None
            self._result.failed.append((path, why or str(error)))

    def _unlock(self, path: TreePath) -> None:
        # What is not there yet is made later; what stays locked is reported by the step that needs it.
        with suppress(OSError):
            parent = open_below(self._root, path[:-1])
            try:
                status = os.stat(path[-1], dir_fd=parent, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                    os.close(open_unlocked(path[-1], parent))
                    self._unlocked[path] = stat.S_IMODE(status.st_mode)
            finally:
                os.close(parent)

    def _clear_folder(self, path: TreePath, node: Node | None) -> None:
        """Remove a folder at `path`, and nothing else."""
        with suppress(FileNotFoundError, NotADirectoryError), writable(self._root, path[:-1]) as parent:
            if not _is_folder(path[-1], parent):
                return
        self._clear(path, node)

    def _clear(self, path: TreePath, node: Node | None) -> None:
        """Remove what is at `path`, unless `node` can replace it by a rename or is a folder as well."""
        with suppress(FileNotFoundError, NotADirectoryError), writable(self._root, path[:-1]) as parent:
            status = os.stat(path[-1], dir_fd=parent, follow_symlinks=False)
            is_folder = stat.S_ISDIR(status.st_mode)
            if node is not None and is_folder == (node.kind == "folder"):
                return
            if is_folder:
                self._remove_folder(path, parent)
            elif self._switcher is not None:
                self._switcher.take(path, parent, status)
            else:
                # Race: whoever puts another file there now loses it, as with any program that removes a name.
                # A folder stays, and is an error.
                os.unlink(path[-1], dir_fd=parent)
            if node is None:
                self._result.removed.append(path)

    def _remove_folder(self, path: TreePath, parent: int) -> None:
        """Remove a folder that should be empty by now."""
        switcher = self._switcher
        if switcher is not None:
            switcher.check_folder(path)
        try:
            os.rmdir(path[-1], dir_fd=parent)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            below = (changed for changed, _ in self._result.changed if changed[: len(path)] == path)
            if switcher is not None and (any(below) or switcher.holds_new(path, parent)):
                raise ChangedMeanwhile(_HOLDS_OTHERS) from None
            raise OSError(error.errno, _HOLDS_OTHERS) from None
        if switcher is not None:
            switcher.note_emptied(path)

    def _make_folder(self, path: TreePath, node: Node | None) -> None:
        with writable(self._root, path[:-1]) as parent:
            if self._stage is not None and self._stage.land(path, parent, self._switcher):
                self._result.restored.append(path)
                return
            if _is_folder(path[-1], parent):
                return
            try:
                os.mkdir(path[-1], 0o700, dir_fd=parent)
            # Race: somebody may have put it there since the plan was made. A folder is taken as it is;
            # anything else stays, and is reported.
            except FileExistsError:
                status = os.stat(path[-1], dir_fd=parent, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    return
                if self._switcher is not None:
                    raise ChangedMeanwhile from None
                raise
            folder = open_unlocked(path[-1], parent)
            try:
                give_to(folder, (node.owner if node is not None else None) or _owner_of(parent))
            finally:
                os.close(folder)
            self._result.restored.append(path)

    def _set_time(self, path: TreePath, node: Node, names: AbstractSet[str] | None) -> None:
        """Give a folder its time back, unless somebody else has put something into it or taken it away."""
        try:
            folder = open_below(self._root, path)
            try:
                present = os.listdir(folder)  # noqa: PTH208 - a descriptor, no path
                if self._hidden:
                    self._name_found(path, present)
                if names is None or names == set(present):
                    set_time(folder, node)
                    self._result.timed.append(path)
                elif any(failed[:-1] == path for failed, _ in self._result.failed):
                    self._result.left_out.append((path, "its time is not back, since not all in it is"))
            finally:
                os.close(folder)
        except (FileNotFoundError, NotADirectoryError):
            pass  # whatever keeps it from being there is named by the step that should have made it
        except OSError as error:
            self._result.left_out.append((path, f"it is back, but without its time: {error.strerror}"))

    def _name_found(self, path: TreePath, present: Iterable[str]) -> None:
        """Name what is in a folder and not to be there, if that or one around it could not be read before."""
        if self._hidden.isdisjoint(path[:end] for end in range(1, len(path) + 1)):
            return
        named = {entry[-1] for entry, _ in self._result.left_out if entry[:-1] == path}
        found = {name for name in present if self._wanted.get((*path, name)) is None}
        names = sorted(found - named)
        for name in names[:_MOST_NAMED]:
            self._result.left_out.append(((*path, name), _MAY_BE_THE_CALLS))
        if len(names) > _MOST_NAMED:
            more = f"{len(names) - _MOST_NAMED:,} more of what it holds: {_MAY_BE_THE_CALLS}"
            self._result.left_out.append((path, more))

    def _set_attributes(self, path: TreePath, node: Node | None) -> None:
        assert node is not None
        folder = open_below(self._root, path)
        lost = []
        try:
            status = os.fstat(folder)
            mode, covered = stat.S_IMODE(status.st_mode), 0o7777
            is_other = False
            if node.mtime_ns is None:
                covered = 0o777  # a tree of an earlier version does not know the other bits
            elif node.owner is not None and (status.st_uid, status.st_gid) != node.owner:
                if give_to(folder, node.owner):
                    is_other = True
                else:
                    lost.append(f"its owner, user {node.owner[0]} and group {node.owner[1]}")
            before = read_xattrs(folder, self._store)
            if self._stage is not None:
                self._stage.release_space(path)
            lost += [f"its attribute {name!a}" for name in set_xattrs(folder, node, self._store)]
            is_other = is_other or (node.mtime_ns is not None and before != node.xattrs)
            if mode & covered != node.mode:
                # By the open folder: a name could be a link by now. Crash: what was opened for the work is
                # locked again by `lock_again`.
                os.fchmod(folder, node.mode)
                if node.mode & covered & ~stat.S_IMODE(os.fstat(folder).st_mode):
                    lost.append("its setgid bit")
            is_other = is_other or self._unlocked.get(path, mode) & covered != node.mode
            if is_other and path not in self._result.restored:
                self._result.restored.append(path)
            if lost:
                self._result.left_out.append((path, describe_lost(lost)))
        finally:
            os.close(folder)

    def _put(self, path: TreePath, node: Node | None) -> None:
        """Create or replace something that is not a folder."""
        assert node is not None
        replaced, switcher = self._replaced, self._switcher
        if replaced is not None and switcher is not None and replaced.holds(path, node):
            with writable(self._root, path[:-1]) as parent:
                replaced.put_back(path, parent, switcher)
            self._result.restored.append(path)
            return
        if node.kind == "unkept":
            raise OSError(errno.ENODATA, f"its content was not kept: {node.why_unkept}")
        if node.kind == "other":
            raise OSError(errno.EOPNOTSUPP, f"a {node.content} cannot be made again")
        with writable(self._root, path[:-1]) as parent:
            if self._stage is not None and self._stage.land(path, parent, self._switcher):
                self._result.restored.append(path)
                return
            self._temporaries += 1
            temporary = f"{temporary_prefix(self._token)}{self._temporaries}"
            try:
                lost = self._make(parent, temporary, path, node)
                # Crash in between: the name leads to the old file or to the whole new one, and a temporary
                # that is left is swept by its token.
                if self._switcher is None:
                    os.rename(temporary, path[-1], src_dir_fd=parent, dst_dir_fd=parent)
                else:
                    self._switcher.put(path, temporary, parent, parent)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)
                raise
            if path in self._links:
                # A rename does nothing if both names lead to the same file already.
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)
        self._result.restored.append(path)
        if lost:
            self._result.left_out.append((path, describe_lost(lost)))

    def _make(self, parent: int, name: str, path: TreePath, node: Node) -> list[str]:
        """Make what is not a folder under a temporary name. Return the attributes that it has not."""
        owner = _owner_of(parent)
        anchor = self._links.get(path)
        if anchor is not None and link_file(self._store, (self._root, anchor), parent, name, node):
            return []
        if not node.is_file:
            make_special(self._store, parent, name, node)
            lost = set_special_attributes(parent, name, node, owner)
            return lost if anchor is None else [*lost, "its other names"]
        synced, keeps_set_ids = self._stage is not None, self._keeps_set_ids
        lost = write_node(
            self._store, parent, name, node, owner=owner, synced=synced, keeps_set_ids=keeps_set_ids
        )
        return lost if anchor is None else [*lost, "its other names"]


def _is_folder(name: str, parent: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _owner_of(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_uid, status.st_gid


def remove_trees(
    root: int, paths: Iterable[TreePath], token: str = "", switcher: Switcher | None = None
) -> RestoreResult:
    """Remove these paths with everything below them. One that cannot be removed does not stop the others.

    Args:
        root: Descriptor of the folder.
        paths: What to remove.
        token: Part of the names of what is being removed, by which `sweep` finds it after a crash.
        switcher: Looks whether each is what the plan has seen; without one nobody does.
    """
    result = RestoreResult()
    for path in paths:
        try:
            remove_tree(root, path, token, switcher)
        except FileNotFoundError:
            continue  # it is gone already
        except ChangedMeanwhile as error:
            result.changed.append((path, str(error)))
        except OSError as error:
            result.failed.append((path, error.strerror or str(error)))
        else:
            result.removed.append(path)
    return result
