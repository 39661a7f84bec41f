"""One undo or redo over every tree that its steps changed: all is staged first, then all is switched."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from aisotools.core.concurrency import sorted_in_runs
from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.attributes import list_partial
from aisotools.workspace.checkpoints.authorship import (
    MOST_PATHS,
    UNKNOWN,
    Author,
    Authorship,
    Evidence,
    JointAuthorship,
    changed_nodes,
    changed_paths,
    find_seen,
    find_visited,
    find_written,
)
from aisotools.workspace.checkpoints.plan import (
    IsKept,
    Placed,
    Reasons,
    RestorePlan,
    holds_nothing,
    is_same,
    plan_restore,
)
from aisotools.workspace.checkpoints.removal import remove_tree
from aisotools.workspace.checkpoints.restore import (
    RestoreResult,
    carry_out,
    discard_stage,
    stage_plan,
    sync_restored,
)
from aisotools.workspace.checkpoints.staging import Failure, Replaced, replaced_name, temporary_prefix
from aisotools.workspace.checkpoints.steps import (
    Checkpoint,
    Direction,
    Return,
    change_of_group,
    find_overlapping,
    group_overlapping,
)
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.switching import CHANGING
from aisotools.workspace.checkpoints.tree import TreePath, TreeReader, has_other_time, open_below
from aisotools.workspace.checkpoints.trees import WORKSPACE_KEY, TrackedTree, TrackedTrees

LISTED_BYTES = 8 << 20
"""Memory for the whole paths that the result of a move names; those beyond are shortened."""

_SHORT_PATH_CHARS = 40
_WAITS = "it is left as it is until all can be changed"


@dataclass(slots=True)
class PathList:
    """Texts of the paths of one move. Hostile code can make a hundred thousand of up to 4 KiB each."""

    left_bytes: int = LISTED_BYTES

    def show(self, tree: TrackedTree, path: TreePath) -> str:
        """Return a path as a person reads it: whole while there is room, else without its middle."""
        text = tree.display_path(path)
        self.left_bytes -= sys.getsizeof(text)
        if self.left_bytes >= 0 or len(text) <= _SHORT_PATH_CHARS:
            return text
        half = (_SHORT_PATH_CHARS - 3) // 2
        return f"{text[:half]}...{text[-half:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoResult:
    """Result of an undo or redo. Long paths are shortened if all of them take more than `LISTED_BYTES`.

    Attributes:
        direction: Whether to undo or to redo.
        steps: Steps that were taken, in that order.
        origin: Digests of the trees before the move, by `TrackedTree.key`; see `Checkpoints.revert`.
        restored: Paths that were created or replaced.
        removed: Paths that were removed.
        missing: Paths that were not restored, each with the reason. Those of a move that was taken back, or
            that could not be staged, are what it failed at.
        failed: Those of them that the system refused to change.
        stuck: Paths that could not be brought back to how they were before a move that failed, each with how
            it is now.
        conflicts: Paths that somebody else changed since, or that it is not certain that a call has changed.
            Unless forced, nothing was done then; where a move that was cut short is completed, all else was.
        others: Paths that were left as they are, since only somebody else changed them, during a call or
            after the move that is taken back.
        changed: Paths that somebody else has changed while it was made, each with that as the reason. They
            are as they were left. Unless forced, it was taken back for that, or must be.
        placed: What it should have put at each path, by `TrackedTree.key`; None for nothing.
        together: Calls that ran at the same time as one another, if some of them are a conflict because they
            would not be taken.
        done: True if the move was made.
        is_late: True if it was not, because somebody else has changed something since it was planned.
        is_unkept: True if it was not, because what the steps had left at the missing paths is not kept.
        token: That of its record.
        is_unfinished: Whether no call may change anything before it is completed or wholly taken back.
        keeps_replaced: Whether something that it has replaced is kept; see `Checkpoints.discard_replaced`.
    """

    direction: Direction
    steps: tuple[Checkpoint, ...] = ()
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    missing: Reasons = ()
    failed: Reasons = ()
    stuck: Reasons = ()
    conflicts: Reasons = ()
    others: Reasons = ()
    changed: Reasons = ()
    together: tuple[str, ...] = ()
    done: bool = True
    is_late: bool = field(default=False, compare=False)
    is_unkept: bool = False
    origin: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    placed: Mapping[str, Placed] = field(default_factory=dict, compare=False, repr=False)
    token: str = field(default="", compare=False, repr=False)
    is_unfinished: bool = field(default=False, compare=False)
    keeps_replaced: bool = field(default=False, compare=False, repr=False)


@dataclass(slots=True)
class TreesMoved:
    """What became of the trees of one move.

    Attributes:
        restored: Paths that were created or replaced.
        removed: Paths that were removed.
        missing: Paths that the plans leave as they are, each with the reason.
        failed: Paths that could not be changed, each with the reason.
        unswept: Keys of the trees in which the folder of the staging could not be removed.
        waiting: All other paths that should be changed, if nothing was because of those that failed.
        others: Paths that the plans leave to whoever has changed them, each with the reason.
        changed: Paths that somebody else has changed since the plans were made, each with that as the reason.
        is_switched: False if nothing was changed, because not everything could be staged.
        is_late: True if that is because somebody else has changed something since the plan was made.
    """

    restored: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    unswept: list[str] = field(default_factory=list)
    waiting: list[tuple[str, str]] = field(default_factory=list)
    others: list[tuple[str, str]] = field(default_factory=list)
    changed: list[tuple[str, str]] = field(default_factory=list)
    is_switched: bool = True
    is_late: bool = False


def plan_trees(
    store: Store,
    trees: TrackedTrees,
    direction: Direction,
    steps: Sequence[Checkpoint],
    *,
    is_resumed: bool = False,
    force: bool = False,
    found: Mapping[str, str] | None = None,
    rest: Sequence[Checkpoint] = (),
    restamped: dict[int, set[int]] | None = None,
    token: str = "",
) -> list[tuple[TrackedTree, RestorePlan]]:
    """Return what undo or redo of some steps has to do in each tree that they changed.

    Args:
        store: Holds the contents.
        trees: The trees of the timeline. Each of those that the steps changed is scanned.
        direction: Whether to undo or to redo.
        steps: The steps, in the order in which they are taken.
        is_resumed: Whether a move of these steps was cut short; see `plan_restore`.
        force: Whether what somebody else has changed is replaced as well.
        found: Digests of the trees before a forced move that was cut short, by `TrackedTree.key`.
        rest: The other steps that could be taken. What one of them may have changed as well, since it ran
            at the same time, is a conflict.
        restamped: See `plan_restore`.
        token: That of a move that is taken back, which may have kept what it has replaced; empty for none.
    """
    taken = {step.call_id: step for step in steps}
    reader = TreeReader(store)
    changing: dict[str, list[Checkpoint]] = {}
    for step in steps:
        for key in step.before:
            # What a call did includes what the calls inside it did.
            if step.inside not in taken or key not in taken[step.inside].before:
                changing.setdefault(key, []).append(step)
    hops: dict[str, list[tuple[str, str]]] = {}
    returns: dict[str, list[Return | None]] = {}
    authorships: dict[str, list[Authorship | JointAuthorship]] = {}
    beside: dict[str, list[dict[TreePath, str]]] = {}
    for key, those in changing.items():
        for group in group_overlapping(those):
            hops.setdefault(key, []).append(change_of_group(group, direction, key))
            last = max(group, key=lambda step: step.ended)
            returns.setdefault(key, []).append(last.returns.get(key) if direction == "redo" else None)
            authorship = join_authorships(reader, group) if key == WORKSPACE_KEY else UNKNOWN
            authorships.setdefault(key, []).append(authorship)
            others = find_beside(reader, group, rest) if key == WORKSPACE_KEY else {}
            beside.setdefault(key, []).append(others)
    plans = []
    for key, changes in hops.items():
        tree = trees.find(key)
        if tree is not None:
            with kept_of(tree, token) if token else nullcontext(holds_nothing) as is_kept:
                plan = plan_restore(
                    store,
                    tree,
                    changes,
                    is_resumed=is_resumed,
                    direction=direction,
                    authorships=authorships[key],
                    beside=beside[key],
                    returns=returns[key],
                    force=force,
                    found=(found or {}).get(key, ""),
                    restamped=restamped,
                    is_kept=is_kept,
                )
            plans.append((tree, plan))
    return plans


@contextmanager
def kept_of(tree: TrackedTree, token: str) -> Iterator[IsKept]:
    """Look what the move with a token has kept of what it has replaced in a tree."""
    with tree.opened() as root:
        replaced = Replaced(root, token)
        try:
            yield replaced.holds
        finally:
            replaced.close()


def refuse_unkept(direction: Direction, steps: Sequence[Checkpoint]) -> None:
    """Refuse to move by steps if that needs a state of the workspace after one of them that is not kept.

    Raises:
        WorkspaceError: If it does. It says which step that is, why, and what is possible.
    """
    taken = {step.call_id for step in steps}
    for group in group_overlapping([step for step in steps if step.inside not in taken]):
        last = max(group, key=lambda step: step.ended)
        if last.unkept:
            raise WorkspaceError(describe_unkept(direction, f"{last.name} ({last.call_id})", last.unkept))


def describe_unkept(direction: Direction, name: str, why: str) -> str:
    """Return why a step cannot be undone or redone, and what is possible, in sentences."""
    if direction == "redo":
        return (
            f"{name} cannot be redone, since the files as they were after it are not kept: {why}. Make the "
            "call again."
        )
    return (
        f"{name} cannot be undone, since the files as they were after it are not kept, and nobody can tell "
        f"what was changed since: {why}. With force=True all files are brought back to before it, whoever "
        "has changed them, and that cannot be redone."
    )


def find_beside(
    reader: TreeReader, group: Sequence[Checkpoint], rest: Sequence[Checkpoint]
) -> dict[TreePath, str]:
    """Return the paths that calls have changed which ran beside some steps and are not taken with them.

    Each has the name of such a call. Calls of which all say what they change are told apart by that instead.

    Args:
        reader: Reads the trees.
        group: Steps of one `group_overlapping`.
        rest: Steps that are not taken.
    """
    outermost = {step.inside or step.call_id for step in group}
    found: dict[TreePath, str] = {}
    if all(step.authorship.named is not None for step in group):
        return found
    ended = [one for one in rest if one.ended and not one.inside and one.call_id not in outermost]
    overlapping = {other.call_id: other for step in group for other in find_overlapping(step, ended)}
    for other in overlapping.values():
        before, after = other.before.get(WORKSPACE_KEY, ""), other.after.get(WORKSPACE_KEY, "")
        if before and after:
            found |= dict.fromkeys(reader.differences(before, after), f"{other.name} ({other.call_id})")
    return found


def join_authorships(reader: TreeReader, group: Sequence[Checkpoint]) -> Authorship | JointAuthorship:
    """Return whose the changes of the workspace are that steps of one `group_overlapping` have made."""
    if len(group) == 1:
        return group[0].authorship
    parts = []
    moments: list[tuple[str, list[Authorship]]] = []
    for step in group:
        before, after = step.before[WORKSPACE_KEY], step.after.get(WORKSPACE_KEY, "")
        timed: set[TreePath] = set()
        changed = reader.differences(before, after, timed) if before and after else ()
        parts.append((step.authorship, frozenset([*changed, *timed])))
        # A call that began at that moment runs after it; one that ended then does not.
        begun = [one.authorship for one in group if one.began <= step.began < one.ended]
        still = [one.authorship for one in group if one.began < step.ended < one.ended]
        # One that does not say may have changed anything, and then there is no evidence of somebody else.
        moments += [
            (tree, running)
            for tree, running in ((before, begun), (after, still))
            if all(one.named is not None for one in running)
        ]
    start, end = change_of_group(group, "redo", WORKSPACE_KEY)
    between: set[TreePath] = set()
    for tree, running in moments:
        if start and tree and end and start != tree != end:
            later = reader.differences(tree, end)
            between.update(
                path
                for path, (then, now) in reader.differences(start, tree).items()
                if path in later
                and not is_same(then, now)
                and not is_same(*later[path])
                and not any(authorship.names(path) for authorship in running)
            )
    return JointAuthorship(tuple(parts), frozenset(between))


def move_trees(
    store: Store,
    plans: Sequence[tuple[TrackedTree, RestorePlan]],
    token: str,
    *,
    force: bool,
    must_succeed: bool,
    listed: PathList,
    is_resumed: bool = False,
    keeps_replaced: bool = False,
    needs_all: bool = False,
) -> TreesMoved:
    """Carry out the plan of each tree.

    Args:
        store: Holds the contents.
        plans: What to do in each tree.
        token: Part of the names of partial files.
        force: Remove also what cannot be restored.
        must_succeed: Change nothing if anything cannot be staged; else what can be changed is.
        listed: Shortens the paths.
        is_resumed: Whether this was cut short. It is completed then, whatever somebody else has changed.
        keeps_replaced: Whether what was replaced and is not stored stays beside it, so that a move that has
            succeeded can be taken back as well.
        needs_all: Whether what the plans cannot bring back counts as failed.
    """
    moved = TreesMoved()
    with ExitStack() as opened:
        ready = []
        unstaged: list[tuple[str, str]] = []
        for tree, plan in plans:
            show = functools.partial(listed.show, tree)
            try:
                root = opened.enter_context(tree.opened())
            except WorkspaceError as error:  # the folder itself cannot be opened
                moved.failed.append((show(()), str(error)))
                continue
            stage, failures = stage_plan(store, root, plan, token, force=force)
            replaced = None
            if plan.moves_unstored:
                replaced = Replaced(root, token)
                opened.callback(replaced.close)
                if not force:
                    try:
                        replaced.make()
                    except OSError as error:
                        failures.append(((), error.strerror or str(error)))
            ready.append((tree, plan, root, stage, replaced))
            unstaged += [(show(path), why) for path, why in failures]
            if plan.unrestorable and not force:
                unstaged += [
                    (show(path), f"it holds {show(inner)}, which would be left in place: {why}")
                    for path, (inner, why) in plan.blocked.items()
                ]
            if must_succeed and not force and not is_resumed and plan.looked_ns:
                # Race: a person saves one of the files while all of that is staged.
                late = find_changed_since(root, plan, plan.targets_of(force=force))
                moved.is_late = moved.is_late or bool(late)
                unstaged += [(show(path), why) for path, why in late]
        if must_succeed and (unstaged or moved.failed):
            moved.failed += unstaged
            moved.is_switched = False
            named = {path for path, _ in moved.failed}
            for tree, plan, *_ in ready:
                targets = plan.targets_of(force=force)
                paths = (listed.show(tree, path) for path in [*targets, *(plan.timed - targets.keys())])
                moved.waiting += [(path, _WAITS) for path in paths if path not in named]
        for tree, plan, root, stage, replaced in ready:
            show = functools.partial(listed.show, tree)
            result = RestoreResult()
            # One that is to be taken back, since somebody else has changed something, goes no further.
            is_whole = must_succeed and not force and not is_resumed
            if moved.is_switched and not (is_whole and moved.changed):
                result = carry_out(
                    store,
                    root,
                    plan,
                    token,
                    force=force,
                    stage=stage,
                    is_whole=is_whole,
                    replaced=replaced,
                )
            # Power loss: what was staged has to be gone when a record says that the move is over.
            if not discard_stage(root, stage, token):
                moved.unswept.append(tree.key)
            result.failed += sync_restored(root, plan, result)
            moved.restored += map(show, result.restored)
            moved.removed += map(show, result.removed)
            moved.missing += [(show(path), why) for path, why in result.left_out]
            moved.others += [(show(path), why) for path, why in plan.others]
            lost = [*result.failed, *plan.missing] if needs_all else result.failed
            moved.failed += [(show(path), why) for path, why in lost]
            moved.changed += [(show(path), why) for path, why in result.changed]
        # As long as the move may be taken back, or has to be completed, it stays. One that was cut short, or
        # that takes back another, has something there also if it could switch nothing itself.
        is_fresh = not (force or is_resumed)
        is_over = not (must_succeed and (moved.failed or (is_fresh and moved.changed)))
        if is_over or (is_fresh and not moved.is_switched):
            for tree, _, root, _, replaced in ready:
                # Else there may be one of the move that this one takes back, or completes.
                known = Replaced(root, token) if replaced is None and (force or is_resumed) else replaced
                is_made = known is not None and known.is_made
                if is_made and (keeps_replaced or not _remove_replaced(root, token)):
                    moved.unswept.append(tree.key)
    for _, plan in plans:
        if plan.present:
            plan.present.clear()  # memory: the next look at the folder needs as much
    return moved


def _remove_replaced(root: int, token: str) -> bool:
    """Remove what was replaced and is not stored. Return False if it cannot be removed."""
    try:
        remove_tree(root, (replaced_name(token),), token)
    except FileNotFoundError:
        pass  # somebody else was faster
    except OSError:
        return False
    return True


def list_changed(store: Store, trees: Iterable[TrackedTree], step: Checkpoint) -> list[str]:
    """Return the paths that a step has changed in some trees."""
    listed, reader = PathList(), TreeReader(store)
    paths: list[str] = []
    for tree in trees:
        before, after = step.before.get(tree.key, ""), step.after.get(tree.key, "")
        if before and after:
            paths += [listed.show(tree, path) for path in reader.differences(before, after)]
    return [*sorted_in_runs(paths)]


def judge_changes(store: Store, tree: TrackedTree, step: Checkpoint, evidence: Evidence) -> Authorship:
    """Return whose the changes of a step to the workspace `tree` are, once it has ended."""
    start, end = step.before[WORKSPACE_KEY], step.after[WORKSPACE_KEY]
    if not start or not end or start == end:
        return UNKNOWN
    authorship = evidence.authorship
    if not evidence.idle and not evidence.unwritten and not evidence.contents:
        return authorship
    nodes = changed_nodes(store, start, end)
    seen: set[TreePath] = set()
    visited: frozenset[TreePath] = frozenset()
    for path, contents in evidence.contents.items():
        node = nodes.get(path)
        if path in nodes and (node is None or node.kind != "file" or node.content not in contents):
            seen.add(path)
    if evidence.idle or evidence.unwritten:
        files = [path for path, node in nodes.items() if node is not None and node.is_file and node.size]
        with tree.opened() as root:
            seen |= find_seen(root, [*nodes], evidence.idle)
            written = find_written(root, files, evidence.unwritten) - seen
            reader = TreeReader(store)
            timed = (path for path in seen if has_other_time(reader.lookup(start, path), nodes[path]))
            visited = find_visited(root, timed)
        # Without a new content it was not written: its time alone has changed.
        seen |= {path for path in written if not is_same(reader.lookup(start, path), nodes[path])}
    return replace(authorship, seen=frozenset(seen - visited), visited=visited)


def changes_by_author(store: Store, tree: TrackedTree, step: Checkpoint) -> dict[Author, list[str]]:
    """Return the paths in the workspace `tree` that a step has changed, by author; none of very many."""
    found: dict[Author, list[str]] = {"call": [], "others": [], "unclear": []}
    start, end = step.before[WORKSPACE_KEY], step.after.get(WORKSPACE_KEY, "")
    if start and end:
        listed, paths = PathList(), changed_paths(store, start, end)
        for path in paths if len(paths) <= MOST_PATHS else ():
            found[step.authorship.author_of(path)].append(listed.show(tree, path))
    return found


def list_unrestored(store: Store, trees: Iterable[TrackedTree], step: Checkpoint) -> list[str]:
    """Return what undo of a step will not bring back in some trees, each with what of it."""
    listed, reader = PathList(), TreeReader(store)
    lines: list[str] = []
    for tree in trees:
        before, after = step.before.get(tree.key, ""), step.after.get(tree.key, "")
        if not before and step.before.keys() >= {tree.key}:
            lines.append(f"{listed.show(tree, ()) or 'the workspace'} (there are too many files in it)")
        if not (before and after):
            continue
        changed = reader.differences(before, after)
        affected = {path: node for path, (node, _) in changed.items() if node is not None}
        files = {node.link[0] for node in affected.values() if node.link is not None}
        entries = dict(affected)
        if files:
            entries |= {
                path: node
                for path, node in reader.entries(before)
                if node.link is not None and node.link[0] in files
            }
        for path, what in list_partial(store, entries.items(), keeps_set_ids=True):
            if path in affected:
                lines.append(f"{listed.show(tree, path)} ({what})")
        for path, (was, now) in changed.items():
            if was is not None and was.kind == "unkept":
                lines.append(f"{listed.show(tree, path)} ({was.why_unkept})")
            elif was is None and now is not None and now.kind == "unkept" and not now.is_sealed:
                lines.append(f"{listed.show(tree, path)} (it will stay: {now.why_unkept})")
    return lines


def list_unredone(store: Store, trees: Iterable[TrackedTree], step: Checkpoint) -> list[str]:
    """Return what of the changes of a step is not kept, so that no redo can bring it back, each with why."""
    listed, reader = PathList(), TreeReader(store)
    lines: list[str] = []
    for tree in trees:
        before, after = step.before.get(tree.key, ""), step.after.get(tree.key, "")
        for path, (was, now) in reader.differences(before, after).items() if before and after else ():
            if now is None or now.kind != "unkept":
                continue
            # What no undo changes need not be brought back.
            if now.is_sealed if was is None else was.kind != "unkept":
                lines.append(f"{listed.show(tree, path)} ({now.why_unkept})")
    return lines


def find_stuck(
    store: Store,
    moved: UndoResult,
    plans: Sequence[tuple[TrackedTree, RestorePlan]],
    spared: Iterable[str] = (),
    restamped: Mapping[int, AbstractSet[int]] = MappingProxyType({}),
) -> tuple[tuple[str, str], ...]:
    """Return the paths that are not as before a move that was taken back, each with its state.

    Args:
        store: Holds the trees.
        moved: The move.
        plans: Its plans.
        spared: Paths that somebody else has changed since, and that are left to them.
        restamped: See `plan_restore`.
    """
    stuck: list[tuple[str, str]] = []
    excluded, ours = frozenset(spared), temporary_prefix(moved.token)
    for tree, plan in plans:
        try:
            now = tree.scan().root
            differences = TreeReader(store).differences(moved.origin[tree.key], now)
        except WorkspaceError as error:
            stuck.append((tree.display_path(()), f"it cannot be looked at: {error}"))
            continue
        for path, (before, current) in differences.items():
            if path[:1] and path[0].startswith(ours):
                continue  # what the move keeps until it is taken back
            if tree.display_path(path) in excluded:
                continue
            if before is not None and current is not None and current.is_restamped(before, restamped):
                continue
            target = plan.targets.get(path)
            is_there = target == current or (target is not None and target.is_like(current))
            if path in plan.targets and is_there:
                state = f"it is as after the {moved.direction}"
            else:
                state = "it is gone" if current is None else "it is neither as before nor as after"
            stuck.append((tree.display_path(path), state))
    return tuple(stuck)


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
        if path in plan.covered:
            continue  # the plan could not see it either
        try:
            folder = open_below(root, path[:-1])
        except OSError:
            is_same = plan.is_absent(path)  # the folder is to be made as well
        else:
            try:
                status = os.stat(path[-1], dir_fd=folder, follow_symlinks=False)
                # Race: a file that is written twice within one tick of the clock has the same stamp.
                is_same = not plan.is_absent(path) and (
                    # What was staged may be a further name of this file, which changes its stamp.
                    status.st_ctime_ns <= plan.looked_ns or status.st_ino in linked
                )
            except OSError:
                is_same = plan.is_absent(path)
            finally:
                os.close(folder)
        if not is_same:
            found.append((path, CHANGING))
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
