"""Restoring a folder to an earlier tree: planned from digests, carried out from descriptors.

`plan_restore` compares what is there with the trees on the way and finds conflicts before anything is
touched. `stage_plan` has ready what a plan needs, and `carry_out` switches it in. A content is written beside
its place and renamed into it, so nobody reads a partial file and a hard link is replaced, not written
through. No step follows a link: whatever
hostile code swaps meanwhile can only make a step fail.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import repeat

from aisotools.core.concurrency import sorted_in_runs
from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.attributes import (
    give_to,
    read_xattrs,
    set_special_attributes,
    set_time,
    set_xattrs,
)
from aisotools.workspace.checkpoints.authorship import UNKNOWN, Authorship
from aisotools.workspace.checkpoints.removal import remove_tree
from aisotools.workspace.checkpoints.staging import (
    Failure,
    Stage,
    describe_lost,
    link_file,
    make_special,
    sync_folders,
    temporary_prefix,
    writable,
    write_node,
)
from aisotools.workspace.checkpoints.steps import Direction
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import Node, TreePath, TreeReader, open_below
from aisotools.workspace.checkpoints.trees import TrackedTree
from aisotools.workspace.dirfd import DIRECTORY_FLAGS, file_time, open_unlocked

FileGroup = int | TreePath
"""A file with several names: its inode, or the path of its only name."""

Reasons = tuple[tuple[str, str], ...]
"""Paths as text, each with a reason."""

_CHANGED_SINCE = "it was changed by somebody else since"
_REMOVED_SINCE = "it was removed by somebody else since"
_ATTRIBUTES_SINCE = "its mode or its attributes were changed by somebody else since"
_ADDED_SINCE = "it was put there by somebody else since"
_CHANGING = "somebody else is changing it just now"
_CHANGED_BY_OTHERS = "it was changed by somebody else during the call"
_CHANGED_BY_ANYBODY = "it was changed during the call, and not, or not only, by the call"


# ---- plan


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """Steps from what is there to what should be there.

    Attributes:
        targets: Node that should be at each path; None for nothing.
        touched: Every path that the undone or redone steps changed.
        missing: Paths that cannot be restored, because their content was never stored.
        unrestorable: Paths that should be removed, but whose content is not stored: removing them is final.
        sealed: Folders that should be removed with all they hold. Their content is not stored either, because
            it lies too deep, but it is known that nobody has changed anything in them.
        conflicts: Displayed paths that somebody else changed since.
        contested: The same as tree paths.
        others: Paths that only somebody else changed during a call, each with that reason: they stay.
        absent: Targets at which nothing is now.
        looked_ns: When it was looked what is there, in nanoseconds as files are stamped; 0 for a plan of a
            restore that was cut short, which is completed whatever changes.
        end: Digest of the tree that the last of the steps leads to.
        timed: Folders whose times the steps have changed, with nothing else of them.
        groups: Files that have to be made again and share a file with others: which file, by a name of it.
        anchors: Paths of such files that are there already.
        keeps_set_ids: Whether setuid and setgid bits of files may be set; see `settable_mode`.
    """

    targets: Mapping[TreePath, Node | None] = field(default_factory=dict)
    touched: frozenset[TreePath] = frozenset()
    missing: tuple[Failure, ...] = ()
    unrestorable: tuple[Failure, ...] = ()
    sealed: tuple[TreePath, ...] = ()
    conflicts: Reasons = ()
    contested: frozenset[TreePath] = frozenset()
    others: tuple[Failure, ...] = ()
    absent: frozenset[TreePath] = field(default=frozenset(), compare=False)
    looked_ns: int = field(default=0, compare=False)
    end: str = field(default="", compare=False)
    timed: frozenset[TreePath] = field(default=frozenset(), compare=False)
    groups: Mapping[TreePath, FileGroup] = field(default_factory=dict, compare=False)
    anchors: Mapping[FileGroup, TreePath] = field(default_factory=dict, compare=False)
    keeps_set_ids: bool = field(default=False, compare=False)

    def targets_of(self, *, force: bool) -> Mapping[TreePath, Node | None]:
        """Return the targets of a restore that removes what is unrestorable, with `force`, or leaves it."""
        return self.targets if force else self.targets_around_unrestorable()

    def targets_around_unrestorable(self) -> Mapping[TreePath, Node | None]:
        """Return the targets without removals of folders that contain an unrestorable path."""
        if not self.unrestorable:
            return self.targets
        parents = {path[:end] for path, _ in self.unrestorable for end in range(1, len(path))}
        return {path: node for path, node in self.targets.items() if node is not None or path not in parents}

    def links_of(self, targets: Mapping[TreePath, Node | None]) -> dict[TreePath, TreePath]:
        """Return the files of some targets that have to be another name of the file at a second path."""
        anchors, links = dict(self.anchors), {}
        for path, group in self.groups.items():
            if targets.get(path) is not None and anchors.setdefault(group, path) != path:
                links[path] = anchors[group]
        return links

    def without_conflicts(self) -> RestorePlan:
        """Return a plan that leaves alone what somebody else changed."""
        targets = {path: node for path, node in self.targets.items() if path not in self.contested}
        sealed = tuple(path for path in self.sealed if path not in self.contested)
        return replace(self, targets=targets, sealed=sealed, conflicts=(), contested=frozenset())


def plan_restore(
    store: Store,
    tree: TrackedTree,
    hops: Sequence[tuple[str, str]],
    *,
    is_resumed: bool = False,
    direction: Direction = "undo",
    authorships: Sequence[Authorship] = (),
    force: bool = False,
    keeps_set_ids: bool = False,
) -> RestorePlan:
    """Plan the way from what is there now over `hops`, each from one tree to another.

    A path is contested if it is now neither as it was before nor as it would be after the hop, and if it lies
    in a folder that is to be removed although no hop knows it.

    Args:
        store: Holds the trees.
        tree: What is there now.
        hops: The way.
        is_resumed: Whether a restore along this way was cut short. It may have ended when it had removed
            a folder and not put a file there yet, or the other way round: so where nothing is, nothing is
            contested.
        direction: Whether the hops undo steps or redo them.
        authorships: For each hop, whose changes those of the step are; without them all are the call's. An
            undo leaves what only somebody else has changed as it is, and a redo, unless it is as the undo has
            left it. What nobody can tell is contested in an undo.
        force: Whether what somebody else has changed is replaced all the same.
        keeps_set_ids: Whether setuid and setgid bits of files may be set; see `settable_mode`.
    """
    reader = TreeReader(store)
    looked_ns = file_time()
    now = tree.scan().root
    if not now or not all(root for hop in hops for root in hop):
        return RestorePlan(missing=(((), "its files were not covered: there are too many of them"),))
    present: dict[TreePath, Node | None] = {}
    targets: dict[TreePath, Node | None] = {}
    contested: dict[TreePath, str] = {}
    others: dict[TreePath, str] = {}
    timed: set[TreePath] = set()
    for (start, end), authorship in zip(hops, authorships or repeat(UNKNOWN), strict=False):
        for path, (before, after) in reader.differences(start, end, timed).items():
            current = targets[path] if path in targets else reader.lookup(now, path)
            is_known = _is_same(current, before) or _is_same(current, after)
            author = "call" if _is_same(current, after) else authorship.author_of(path)
            if author == "others" and not force and not (direction == "redo" and is_known):
                others[path] = _CHANGED_BY_OTHERS
                continue
            present.setdefault(path, current)
            if not is_known and not (is_resumed and current is None):
                why = _CHANGED_SINCE
                if current is not None and current.is_unreadable:
                    why = f"what is there cannot be compared: {current.why_unkept}"
                contested.setdefault(path, why)
            elif author != "call" and direction == "undo" and not is_resumed:
                why = _CHANGED_BY_OTHERS if author == "others" else _CHANGED_BY_ANYBODY
                contested.setdefault(path, why)
            elif is_known and not is_resumed and _has_other_attributes(current, before, after):
                # Power loss: of what the call itself had set, any part may be gone when a restore is resumed.
                contested.setdefault(path, _ATTRIBUTES_SINCE)
            targets[path] = after
    for path, node in _missing_folders(reader, now, hops[-1][1] if hops else "", targets).items():
        present[path], targets[path] = None, node
        if not is_resumed:
            contested.setdefault(path, _REMOVED_SINCE)
    for path, target in targets.items():
        current = present[path]
        if current is not None and current.kind == "folder" and (target is None or target.kind != "folder"):
            for name in reader.of(current):
                if targets.get((*path, name), current) is not None:
                    contested[*path, name] = _ADDED_SINCE
    end = hops[-1][1] if hops else ""
    right, groups, anchors = _plan_links(reader, now, end, targets, present)
    plan = _build_plan(tree, targets, present, contested, right=right, groups=groups, end=end)
    return replace(
        plan,
        others=tuple((path, others[path]) for path in sorted_in_runs(others)),
        absent=frozenset(path for path in plan.targets if present[path] is None),
        looked_ns=0 if is_resumed else looked_ns,
        timed=frozenset(timed),
        groups=groups,
        anchors=anchors,
        keeps_set_ids=keeps_set_ids,
    )


def _has_other_attributes(current: Node | None, before: Node | None, after: Node | None) -> bool:
    """Return whether a file has a mode or extended attributes that it had neither before nor after."""
    if current is None or not current.is_file:
        return False
    known = [node for node in (before, after) if node is not None and node.is_file]
    return bool(known) and not any(
        current.mode & 0o777 == node.mode & 0o777 and (node.mtime_ns is None or current.xattrs == node.xattrs)
        for node in known
    )


def _plan_links(
    reader: TreeReader,
    now: str,
    end: str,
    targets: Mapping[TreePath, Node | None],
    present: Mapping[TreePath, Node | None],
) -> tuple[set[TreePath], dict[TreePath, FileGroup], dict[FileGroup, TreePath]]:
    """Plan which names have to lead to one file, and which no longer may.

    Returns:
        Targets that are as they should be; see `RestorePlan` for the others.
    """
    right: set[TreePath] = set()
    groups: dict[TreePath, FileGroup] = {}
    anchors: dict[FileGroup, TreePath] = {}
    linked: dict[TreePath, Node] = {}
    for path, target in targets.items():
        current = present[path]
        if (
            target is not None
            and target.is_file
            and (target.link is not None or (current is not None and current.link is not None))
        ):
            linked[path] = target
    if not linked:
        return right, groups, anchors
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
    for path, node in reader.entries(end):
        if node.link is not None and node.link[0] in needed and path not in targets:
            untouched = reader.lookup(now, path)
            if untouched is not None and node.is_like(untouched):
                is_claimed(path, untouched, node.link[0])
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
    return right, groups, anchors


def _missing_folders(
    reader: TreeReader, now: str, end: str, targets: Mapping[TreePath, Node | None]
) -> dict[TreePath, Node]:
    """Return the folders around targets that no hop has changed, and that are gone."""
    missing: dict[TreePath, Node] = {}
    known: set[TreePath] = {()}
    for path, target in targets.items():
        around = path[:-1]
        while target is not None and around not in known:
            known.add(around)
            if around not in targets and reader.lookup(now, around) is None:
                node = reader.lookup(end, around)
                if node is not None and node.kind == "folder":
                    missing[around] = node
            around = around[:-1]
    return missing


def _build_plan(
    tree: TrackedTree,
    targets: Mapping[TreePath, Node | None],
    present: Mapping[TreePath, Node | None],
    contested: Mapping[TreePath, str],
    *,
    right: Collection[TreePath],
    groups: Collection[TreePath],
    end: str,
) -> RestorePlan:
    possible: dict[TreePath, Node | None] = {}
    missing: list[Failure] = []
    unrestorable: list[Failure] = []
    sealed: list[TreePath] = []
    for path, target in targets.items():
        current = present[path]
        if current == target and path not in groups:
            continue
        if path in right or (target is not None and target.is_like(current) and path not in groups):
            continue
        if target is not None and target.kind == "unkept":
            missing.append((path, f"it was not kept: {target.why_unkept}"))
        elif target is not None and target.kind == "other":
            missing.append((path, f"it is a {target.content}"))
        elif target is None and current is not None and current.is_sealed:
            sealed.append(path)
        elif target is None and current is not None and current.kind == "unkept":
            unrestorable.append((path, current.why_unkept))
        else:
            possible[path] = target
    return RestorePlan(
        targets=possible,
        touched=frozenset(targets),
        missing=tuple(missing),
        unrestorable=tuple(unrestorable),
        sealed=tuple(sealed),
        conflicts=tuple((tree.display_path(path), contested[path]) for path in sorted_in_runs(contested)),
        contested=frozenset(contested),
        end=end,
    )


def _is_same(one: Node | None, other: Node | None) -> bool:
    return other is None if one is None else one.has_same_content(other)


# ---- carry out


@dataclass(slots=True)
class RestoreResult:
    """Paths that a restore changed, and those that it could not.

    Attributes:
        restored: Paths that were created or replaced.
        removed: Paths that were removed.
        failed: Paths that could not be changed, each with the reason.
        left_out: Paths that the plan leaves as they are, or that lack an attribute, each with the reason.
        timed: Folders that have got their time back.
    """

    restored: list[TreePath] = field(default_factory=list)
    removed: list[TreePath] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    left_out: list[Failure] = field(default_factory=list)
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


def find_changed_since(root: int, plan: RestorePlan, targets: Iterable[TreePath]) -> list[Failure]:
    """Return those of some targets that may have changed since the plan was made, with that as the reason.

    Args:
        root: Descriptor of the folder.
        plan: The plan.
        targets: Paths that it would change.
    """
    found: list[Failure] = []
    linked = _inodes_of(root, plan.anchors.values())
    for path in targets:
        try:
            folder = open_below(root, path[:-1])
        except OSError:
            is_same = path in plan.absent  # the folder is to be made as well
        else:
            try:
                status = os.stat(path[-1], dir_fd=folder, follow_symlinks=False)
                # Race: a file that is written twice within one tick of the clock has the same stamp.
                is_same = path not in plan.absent and (
                    # What was staged may be a further name of this file, which changes its stamp.
                    status.st_ctime_ns <= plan.looked_ns or status.st_ino in linked
                )
            except OSError:
                is_same = path in plan.absent
            finally:
                os.close(folder)
        if not is_same:
            found.append((path, _CHANGING))
    return found


def _inodes_of(root: int, paths: Iterable[TreePath]) -> set[int]:
    inodes: set[int] = set()
    for path in paths:
        with suppress(OSError):  # one that is gone is found when it is needed
            folder = open_below(root, path[:-1])
            try:
                inodes.add(os.stat(path[-1], dir_fd=folder, follow_symlinks=False).st_ino)
            finally:
                os.close(folder)
    return inodes


def carry_out(
    store: Store, root: int, plan: RestorePlan, token: str, *, force: bool, stage: Stage | None = None
) -> RestoreResult:
    """Bring an open folder to where a plan leads.

    Args:
        store: Holds the contents.
        root: Descriptor of the folder.
        plan: What to do.
        token: As for `restore`.
        force: Remove what is unrestorable; otherwise it is left in place.
        stage: What `stage_plan` returned. What is not in it is written now. It is empty afterwards.
    """
    final = [*plan.sealed, *(path for path, _ in plan.unrestorable)] if force else plan.sealed
    result = remove_trees(root, final, token)
    result.left_out += plan.missing
    if not force:
        result.left_out += ((path, f"left in place: {why}") for path, why in plan.unrestorable)
    if stage is not None:
        result.left_out += stage.partial
    targets = plan.targets_of(force=force)
    work = _Restore(store, root, token, result, stage, keeps_set_ids=plan.keeps_set_ids)
    return work.run(targets, plan.links_of(targets), _times_of(store, plan))


FolderTimes = Mapping[TreePath, tuple[Node, AbstractSet[str] | None]]
"""Folders that get their times back, each with its node and the names that it has to hold for that."""


def _times_of(store: Store, plan: RestorePlan) -> FolderTimes:
    """Return the folders that get their times back if they hold again what they held then."""
    reader = TreeReader(store)
    # Crash: of a restore that is completed, what is in its place already is no target, and its folder has
    # another time.
    paths = {*plan.timed, *plan.touched, *(path[:-1] for path in plan.touched)}
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


def lock_again(store: Store, root: int, end: str, folders: Iterable[TreePath]) -> None:
    """Give these folders the modes of a tree again, where a restore that was cut short has unlocked them."""
    reader = TreeReader(store)
    for path in folders:
        node = reader.lookup(end, path)
        if path and node is not None and node.kind == "folder":
            with suppress(OSError):  # it is not there; or it stays as it is, and may be used
                folder = open_below(root, path)
                try:
                    mode = stat.S_IMODE(os.fstat(folder).st_mode)
                    if mode != node.mode and mode == node.mode | 0o700:
                        os.fchmod(folder, node.mode)
                finally:
                    os.close(folder)


class _Restore:
    """One restore. A path that fails is recorded, and the others go on."""

    def __init__(
        self,
        store: Store,
        root: int,
        token: str,
        result: RestoreResult,
        stage: Stage | None = None,
        *,
        keeps_set_ids: bool = False,
    ) -> None:
        self._store = store
        self._keeps_set_ids = keeps_set_ids
        self._links: Mapping[TreePath, TreePath] = {}
        self._stage = stage
        self._root = root
        self._token = token
        self._temporaries = 0
        self._unlocked: dict[TreePath, int] = {}  # folders that are open meanwhile, with their modes before
        self._result = result

    def run(
        self,
        targets: Mapping[TreePath, Node | None],
        links: Mapping[TreePath, TreePath],
        times: FolderTimes,
    ) -> RestoreResult:
        self._links = links
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

    def _step(self, act: Callable[[TreePath, Node | None], None], path: TreePath, node: Node | None) -> None:
        try:
            act(path, node)
        except OSError as error:
            self._result.failed.append((path, error.strerror or str(error)))
        except WorkspaceError as error:
            self._result.failed.append((path, str(error)))

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

    def _clear(self, path: TreePath, node: Node | None) -> None:
        """Remove what is at `path`, unless `node` can replace it by a rename or is a folder as well."""
        with suppress(FileNotFoundError, NotADirectoryError), writable(self._root, path[:-1]) as parent:
            status = os.stat(path[-1], dir_fd=parent, follow_symlinks=False)
            is_folder = stat.S_ISDIR(status.st_mode)
            if node is not None and is_folder == (node.kind == "folder"):
                return
            if is_folder:
                try:
                    os.rmdir(path[-1], dir_fd=parent)
                except OSError as error:
                    if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                        raise OSError(error.errno, "it holds something that is not ours to remove") from None
                    raise
            else:
                # Race: whoever puts another file there now loses it, as with any program that removes a name.
                # A folder stays, and is an error.
                os.unlink(path[-1], dir_fd=parent)
            if node is None:
                self._result.removed.append(path)

    def _make_folder(self, path: TreePath, node: Node | None) -> None:
        with writable(self._root, path[:-1]) as parent:
            if self._stage is not None and self._stage.land(path, parent):
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
                if not stat.S_ISDIR(status.st_mode):
                    raise
                return
            folder = os.open(path[-1], DIRECTORY_FLAGS, dir_fd=parent)
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
                if names is None or names == set(present):
                    set_time(folder, node)
                    self._result.timed.append(path)
            finally:
                os.close(folder)
        except (FileNotFoundError, NotADirectoryError):
            pass  # whatever keeps it from being there is named by the step that should have made it
        except OSError as error:
            self._result.left_out.append((path, f"it is back, but without its time: {error.strerror}"))

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
        if node.kind == "unkept":
            raise OSError(errno.ENODATA, f"its content was not kept: {node.why_unkept}")
        if node.kind == "other":
            raise OSError(errno.EOPNOTSUPP, f"a {node.content} cannot be made again")
        with writable(self._root, path[:-1]) as parent:
            if self._stage is not None and self._stage.land(path, parent):
                self._result.restored.append(path)
                return
            self._temporaries += 1
            temporary = f"{temporary_prefix(self._token)}{self._temporaries}"
            try:
                lost = self._make(parent, temporary, path, node)
                # Crash in between: the name leads to the old file or to the whole new one, and a temporary
                # that is left is swept by its token.
                os.rename(temporary, path[-1], src_dir_fd=parent, dst_dir_fd=parent)
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
        if not node.is_file:
            make_special(self._store, parent, name, node)
            return set_special_attributes(parent, name, node, owner)
        anchor = self._links.get(path)
        if anchor is not None and link_file(self._root, anchor, parent, name):
            return []
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


def remove_trees(root: int, paths: Iterable[TreePath], token: str = "") -> RestoreResult:
    """Remove these paths with everything below them. One that cannot be removed does not stop the others.

    Args:
        root: Descriptor of the folder.
        paths: What to remove.
        token: Part of the names of what is being removed, by which `sweep` finds it after a crash.
    """
    result = RestoreResult()
    for path in paths:
        try:
            remove_tree(root, path, token)
        except FileNotFoundError:
            continue  # it is gone already
        except OSError as error:
            result.failed.append((path, error.strerror or str(error)))
        else:
            result.removed.append(path)
    return result
