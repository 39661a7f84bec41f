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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import repeat

from aisotools.core.concurrency import sorted_in_runs
from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.authorship import UNKNOWN, Authorship
from aisotools.workspace.checkpoints.staging import (
    Failure,
    Stage,
    give_to,
    make_special,
    stage_name,
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
from aisotools.workspace.workspace import TEMPORARY

Reasons = tuple[tuple[str, str], ...]
"""Paths as text, each with a reason."""

_CHANGED_SINCE = "it was changed by somebody else since"
_REMOVED_SINCE = "it was removed by somebody else since"
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

    def targets_of(self, *, force: bool) -> Mapping[TreePath, Node | None]:
        """Return the targets of a restore that removes what is unrestorable, with `force`, or leaves it."""
        return self.targets if force else self.targets_around_unrestorable()

    def targets_around_unrestorable(self) -> Mapping[TreePath, Node | None]:
        """Return the targets without removals of folders that contain an unrestorable path."""
        if not self.unrestorable:
            return self.targets
        parents = {path[:end] for path, _ in self.unrestorable for end in range(1, len(path))}
        return {path: node for path, node in self.targets.items() if node is not None or path not in parents}

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
    for (start, end), authorship in zip(hops, authorships or repeat(UNKNOWN), strict=False):
        for path, (before, after) in reader.differences(start, end).items():
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
    plan = _build_plan(tree, targets, present, contested, end=hops[-1][1] if hops else "")
    return replace(
        plan,
        others=tuple((path, others[path]) for path in sorted_in_runs(others)),
        absent=frozenset(path for path in plan.targets if present[path] is None),
        looked_ns=0 if is_resumed else looked_ns,
    )


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
    end: str,
) -> RestorePlan:
    possible: dict[TreePath, Node | None] = {}
    missing: list[Failure] = []
    unrestorable: list[Failure] = []
    sealed: list[TreePath] = []
    for path, target in targets.items():
        current = present[path]
        if current == target:
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
        left_out: Paths that the plan leaves as they are, each with the reason.
    """

    restored: list[TreePath] = field(default_factory=list)
    removed: list[TreePath] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    left_out: list[Failure] = field(default_factory=list)


def stage_plan(
    store: Store, root: int, plan: RestorePlan, token: str, *, force: bool
) -> tuple[Stage, list[Failure]]:
    """Have ready what `carry_out` will put into an open folder, before anything is changed; see there.

    Returns:
        What is staged, for `carry_out` or `discard_stage`, and what could not be, with the reasons.
    """
    stage = Stage(store, root, token)
    return stage, stage.prepare(plan.targets_of(force=force))


def find_changed_since(root: int, plan: RestorePlan, targets: Iterable[TreePath]) -> list[Failure]:
    """Return those of some targets that may have changed since the plan was made, with that as the reason.

    Args:
        root: Descriptor of the folder.
        plan: The plan.
        targets: Paths that it would change.
    """
    found: list[Failure] = []
    for path in targets:
        try:
            folder = open_below(root, path[:-1])
        except OSError:
            is_same = path in plan.absent  # the folder is to be made as well
        else:
            try:
                status = os.stat(path[-1], dir_fd=folder, follow_symlinks=False)
                # Race: a file that is written twice within one tick of the clock has the same stamp.
                is_same = path not in plan.absent and status.st_ctime_ns <= plan.looked_ns
            except OSError:
                is_same = path in plan.absent
            finally:
                os.close(folder)
        if not is_same:
            found.append((path, _CHANGING))
    return found


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
    return _Restore(store, root, token, result, stage).run(plan.targets_of(force=force))


def sync_restored(root: int, plan: RestorePlan, result: RestoreResult) -> list[Failure]:
    """Write what a restore has renamed and removed through to the disk. Return what could not be."""
    changed = {path[:-1] for paths in (result.restored, result.removed) for path in paths}
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
    return _Restore(store, root, token, RestoreResult()).run(targets)


def sweep(root: int, folders: Iterable[TreePath], token: str) -> None:
    """Remove what a crash left of partial files and removed folders in these folders, as far as possible."""
    for path in folders:
        try:
            folder = open_below(root, path)
        except OSError:
            continue  # a folder that does not exist holds no partial files
        try:
            for name in os.listdir(folder):  # noqa: PTH208 - a descriptor, no path
                if name.startswith(temporary_prefix(token)):
                    with suppress(OSError):  # nothing of ours: something else has taken the name
                        if name.startswith(_removed_prefix(token)) or name == stage_name(token):
                            remove_tree(folder, (name,))
                        else:
                            os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)


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


def _removed_prefix(token: str) -> str:
    return f"{temporary_prefix(token)}removed-"


class _Restore:
    """One restore. A path that fails is recorded, and the others go on."""

    def __init__(
        self, store: Store, root: int, token: str, result: RestoreResult, stage: Stage | None = None
    ) -> None:
        self._store = store
        self._stage = stage
        self._root = root
        self._token = token
        self._temporaries = 0
        self._unlocked: dict[TreePath, int] = {}  # folders that are open meanwhile, with their modes before
        self._result = result

    def run(self, targets: Mapping[TreePath, Node | None]) -> RestoreResult:
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
            if node is not None and node.kind != "folder":
                self._step(self._put, path, node)
        # Modes of folders last, deepest first: a folder without write permission has to be filled before.
        for path in sorted_in_runs(folders, key=len, reverse=True):
            self._step(self._set_mode, path, targets[path])
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
                    self._unlocked[path] = stat.S_IMODE(status.st_mode) & 0o777
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

    def _make_folder(self, path: TreePath, _node: Node | None) -> None:
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
                give_to(folder, _owner_of(parent))
            finally:
                os.close(folder)
            self._result.restored.append(path)

    def _set_mode(self, path: TreePath, node: Node | None) -> None:
        assert node is not None
        folder = open_below(self._root, path)
        try:
            mode = stat.S_IMODE(os.fstat(folder).st_mode) & 0o777
            if mode != node.mode:
                # By the open folder: a name could be a link by now. Crash: what was opened for the work is
                # locked again by `lock_again`.
                os.fchmod(folder, node.mode)
            if self._unlocked.get(path, mode) != node.mode and path not in self._result.restored:
                self._result.restored.append(path)
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
                if node.kind == "file":
                    owner = _owner_of(parent)
                    write_node(
                        self._store, parent, temporary, node, owner=owner, synced=self._stage is not None
                    )
                else:
                    make_special(self._store, parent, temporary, node)
                # Crash in between: the name leads to the old file or to the whole new one, and a temporary
                # that is left is swept by its token.
                os.rename(temporary, path[-1], src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)
                raise
        self._result.restored.append(path)


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


def remove_tree(root: int, path: TreePath, token: str = "") -> None:
    """Remove a path with everything below it, at any depth and of any mode, following no link.

    Subfolders are moved up beside the folder that is being emptied, so that depth costs neither recursion nor
    descriptors: hostile code can nest folders deeper than any path may be long.

    Args:
        root: Descriptor of the folder that the path begins in.
        path: What to remove.
        token: With it the path gets a temporary name first, so that after a crash it is whole or gone, and
            `sweep` finds the rest.

    Raises:
        OSError: If something cannot be removed. What is left of it is at `path`.
    """
    with writable(root, path[:-1]) as parent:
        name = path[-1]
        if not token:
            _remove_below(parent, name, TEMPORARY)
            return
        prefix = f"{_removed_prefix(token)}{os.urandom(6).hex()}-"
        os.rename(name, prefix, src_dir_fd=parent, dst_dir_fd=parent)
        try:
            _remove_below(parent, prefix, prefix)
        except OSError:
            # What could not be removed gets its name back, so that a person finds it where it was. Race: with
            # something else at that name by now the rest keeps the temporary one, and `sweep` removes it.
            with suppress(OSError):
                os.rename(prefix, name, src_dir_fd=parent, dst_dir_fd=parent)
            raise


def _remove_below(parent: int, top: str, prefix: str) -> None:
    moved = 0
    todo = [top]
    while todo:
        name = todo.pop()
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            # Race: if it is a folder by now, that is an error, and it stays.
            os.unlink(name, dir_fd=parent)
            continue
        folder = open_unlocked(name, parent)
        try:
            os.fchmod(folder, 0o700)
            for inner in os.listdir(folder):  # noqa: PTH208 - a descriptor, no path
                inner_status = os.stat(inner, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISDIR(inner_status.st_mode):
                    # A folder can be moved only by who may write to it.
                    below = open_unlocked(inner, folder)
                    try:
                        # 0o700 and no more: it is moved out of folders whose modes kept other users from it.
                        os.fchmod(below, 0o700)
                    finally:
                        os.close(below)
                    moved += 1
                    new_name = f"{prefix}{os.urandom(6).hex()}-{moved}"
                    os.rename(inner, new_name, src_dir_fd=folder, dst_dir_fd=parent)
                    todo.append(new_name)
                else:
                    # By the open folder, which cannot become a link: nothing outside of it is removed.
                    os.unlink(inner, dir_fd=folder)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=parent)
