"""What a restore has to do, planned from the digests of trees before anything is touched.

`plan_restore` compares what is there with the trees on the way, and finds conflicts: what somebody else has
changed since, or during the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import repeat

from aisotools.core.concurrency import sorted_in_runs
from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.attributes import has_other_attributes
from aisotools.workspace.checkpoints.authorship import UNKNOWN, Authorship, JointAuthorship, is_of_move
from aisotools.workspace.checkpoints.git_conflicts import NEEDS_OBJECTS, find_needing, is_object_folder
from aisotools.workspace.checkpoints.staging import Failure
from aisotools.workspace.checkpoints.steps import Direction, Return
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import (
    FileGroup,
    Node,
    NodeChange,
    TreePath,
    TreeReader,
    missing_folders,
    plan_links,
    take_links,
)
from aisotools.workspace.checkpoints.trees import TrackedTree
from aisotools.workspace.dirfd import file_time
from aisotools.workspace.git_index import MAX_BYTES, is_index, is_refreshed
from aisotools.workspace.workspace import TEMPORARY, is_partial_file

Reasons = tuple[tuple[str, str], ...]
"""Paths as text, each with a reason."""

Placed = Mapping[TreePath, Node | None]
"""What a move has put at the paths that it changed, or should have; None for nothing."""

IsKept = Callable[[TreePath, Node], bool]
"""Returns whether what a node says of a path is kept beside the tree, though it is not stored."""


def holds_nothing(_path: TreePath, _node: Node) -> bool:
    """Return False: nothing is kept."""
    return False


RAN_BESIDE = "which ran at the same time"
"""How the reason ends why a path is contested that another call may have changed as well."""

NOT_COMPARED = "what is there cannot be compared"
"""How the reason begins why a path is contested of which nobody can tell whether anybody has changed it."""

_UNSEEN = Node("unkept")  # stands for what a plan has not looked at
_ROOT = Node("folder")  # stands for a folder that a plan leaves

_CHANGED_SINCE = "it was changed by somebody else since"
_REMOVED_SINCE = "it was removed by somebody else since"
_ATTRIBUTES_SINCE = "its mode or its attributes were changed by somebody else since"
_ADDED_SINCE = "it was put there by somebody else since"
_ADDED_TO = "somebody else has put something into it since"
_PARTED = "it is back as a file of its own: {}, once a name of the same file, was not found as it was then"
_CHANGED_BY_OTHERS = "it was changed during the call, and not by it"
_CHANGED_BY_ANYBODY = "it was changed during the call, and not, or not only, by the call"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """Steps from what is there to what should be there.

    Attributes:
        targets: Node that should be at each path; None for nothing.
        missing: Paths that cannot be restored, because their content was never stored.
        unrestorable: Paths that should be removed, but whose content is not stored: removing them is final.
        sealed: Folders that should be removed with all they hold. Their content is not stored either, because
            it lies too deep, but it is known that nobody has changed anything in them.
        hidden: Paths at or in folders that cannot be read now, or could not where the way begins, each with
            the reason: of what is there, all that the steps have not changed stays.
        covered: Paths in folders that cannot be read and are changed themselves: nothing was found there, and
            something may be.
        conflicts: Displayed paths that somebody else changed since.
        contested: The same as tree paths.
        others: Paths that only somebody else changed during a call, each with that reason: they stay.
        looked_ns: When it was looked what is there, in nanoseconds as files are stamped.
        present: What was there then, at least at each path that is changed; None for nothing. Without it
            nobody has looked, and whatever is there now is replaced. It is emptied when all is switched.
        wanted: What should be there, at every path that the steps changed; None for nothing.
        end: Digest of the tree that the last of the steps leads to.
        timed: Folders whose times the steps have changed, with nothing else of them.
        groups: Files that have to be made again and share a file with others: which file, by a name of it.
        anchors: Paths of such files that are there already.
        parted: Those that share a file with no name that stays, though they did, each with the reason.
        keeps_set_ids: Whether setuid and setgid bits of files may be set; see `settable_mode`.
        moves_unstored: Whether anything that is not stored is replaced, or put back.
        restamped: Change times that moves have given to what is not stored, by inode.
    """

    targets: Mapping[TreePath, Node | None] = field(default_factory=dict)
    missing: tuple[Failure, ...] = ()
    unrestorable: tuple[Failure, ...] = ()
    sealed: tuple[TreePath, ...] = ()
    hidden: tuple[Failure, ...] = ()
    conflicts: Reasons = ()
    contested: frozenset[TreePath] = frozenset()
    others: tuple[Failure, ...] = ()
    looked_ns: int = field(default=0, compare=False)
    present: dict[TreePath, Node | None] | None = field(default=None, compare=False, repr=False)
    wanted: Mapping[TreePath, Node | None] = field(default_factory=dict, compare=False, repr=False)
    end: str = field(default="", compare=False)
    timed: frozenset[TreePath] = field(default=frozenset(), compare=False)
    covered: frozenset[TreePath] = field(default=frozenset(), compare=False)
    groups: Mapping[TreePath, FileGroup] = field(default_factory=dict, compare=False)
    anchors: Mapping[FileGroup, TreePath] = field(default_factory=dict, compare=False)
    parted: Mapping[TreePath, str] = field(default_factory=dict, compare=False)
    keeps_set_ids: bool = field(default=False, compare=False)
    moves_unstored: bool = field(default=False, compare=False)
    restamped: dict[int, set[int]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def touched(self) -> AbstractSet[TreePath]:
        """Return every path that the undone or redone steps changed."""
        return self.wanted.keys()

    @property
    def placed(self) -> Placed:
        """Return what the plan puts at the paths that it changes."""
        gone = [*self.sealed, *(path for path, _ in self.unrestorable)]
        return {**self.targets, **dict.fromkeys(gone, None)} if gone else self.targets

    @property
    def blocked(self) -> dict[TreePath, Failure]:
        """Return the folders that something else should replace, each with what keeps it there and why."""
        blocked: dict[TreePath, Failure] = {}
        for path, why in self.unrestorable:
            for around in _around(path):
                node = self.targets.get(around)
                if node is not None and node.kind != "folder":
                    blocked.setdefault(around, (path, why))
        return blocked

    def is_absent(self, path: TreePath) -> bool:
        """Return whether the plan has seen nothing at a path that it changes."""
        return self.present is not None and self.present.get(path, _UNSEEN) is None

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
        """Return a plan that leaves alone what somebody else changed.

        A folder that holds such a thing stays, and where one stands in the place of a folder, nothing is put.
        """
        present = self.present or {}
        holding = {path[:end] for path in self.contested for end in range(1, len(path))}
        in_the_way = {path for path in self.contested if _is_no_folder(present.get(path))}

        def is_left(path: TreePath) -> bool:
            return path in self.contested or not in_the_way.isdisjoint(_around(path))

        return replace(
            self,
            targets={
                path: node
                for path, node in self.targets.items()
                if not is_left(path) and (path not in holding or (node is not None and node.kind == "folder"))
            },
            missing=tuple((path, why) for path, why in self.missing if not is_left(path)),
            unrestorable=tuple((path, why) for path, why in self.unrestorable if not is_left(path)),
            sealed=tuple(path for path in self.sealed if path not in self.contested),
            timed=self.timed - self.contested,
            conflicts=(),
            contested=frozenset(),
        )


def plan_restore(
    store: Store,
    tree: TrackedTree,
    hops: Sequence[tuple[str, str]],
    *,
    is_resumed: bool = False,
    direction: Direction = "undo",
    authorships: Sequence[Authorship | JointAuthorship] = (),
    beside: Sequence[Mapping[TreePath, str]] = (),
    returns: Sequence[Return | None] = (),
    force: bool = False,
    found: str = "",
    placed: Placed | None = None,
    restamped: dict[int, set[int]] | None = None,
    is_kept: IsKept = holds_nothing,
) -> RestorePlan:
    """Plan the way from what is there now over `hops`, each from one tree to another.

    Where it is not known which tree an undo starts from, that is the one that the hop before it leads to, or
    what is there now: all that is different counts as changed by the step. What was restored before an undo
    was cut short is then no different.

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
        authorships: For each hop, whose changes those of its steps are; without them all are the call's. An
            undo leaves what only somebody else has changed as it is, and a redo, unless it is as the undo has
            left it. What nobody can tell is contested in an undo.
        beside: For each hop, what a call may have changed as well that ran at the same time and is not
            taken, with the name of that call. It is contested.
        returns: For each hop, where it leads instead if it was undone by force; see `Return`.
        force: Whether what somebody else has changed is replaced all the same.
        found: Digest of the tree that a forced restore had found which was cut short. What is still as it was
            then, it was to replace, so that is contested no more.
        placed: What a move that is to be taken back has put at the paths that it changed. Where something
            else is now, somebody else has put it there since; that stays, and so do all other paths.
        restamped: Change times that earlier moves have given to what is not stored, by inode: what differs
            in that alone was changed by nobody.
        is_kept: Returns whether what is not stored was kept when it was replaced, and can be put back.
    """
    looked_ns = file_time()
    snapshot = tree.scan()
    now = snapshot.root
    if direction == "undo":
        starts = [now, *(end for _, end in hops)]
        hops = [(start or before, end) for (start, end), before in zip(hops, starts, strict=False)]
    if not now:
        return RestorePlan(missing=(((), f"its files are not covered: {snapshot.uncovered[0][1]}"),))
    if not all(root for hop in hops for root in hop):
        return RestorePlan(missing=(((), "its files were not covered: there were too many of them"),))
    way = _Way(
        store,
        now,
        direction=direction,
        is_resumed=is_resumed,
        force=force,
        found=found,
        placed=placed,
        is_kept=is_kept,
    )
    way.restamped = {} if restamped is None else restamped
    for (start, end), authorship, others_beside, back in zip(
        hops, authorships or repeat(UNKNOWN), beside or repeat({}), returns or repeat(None), strict=False
    ):
        way.add_hop(start, end, authorship, others_beside, back)
    way.add_missing_folders()
    way.spare_added()
    if any("objects" in path or "refs" in path or path[-1] == "packed-refs" for path in way.targets):
        way.contest_git()
    way.accept_overridden()
    return way.plan(tree, looked_ns)


class _Way:
    """What the hops of one plan change, with what is there now; see `plan_restore`."""

    def __init__(
        self,
        store: Store,
        now: str,
        *,
        direction: Direction,
        is_resumed: bool,
        force: bool,
        found: str,
        placed: Placed | None,
        is_kept: IsKept,
    ) -> None:
        self._is_kept = is_kept
        self._store, self._reader, self._now = store, TreeReader(store), now
        self._direction, self._is_resumed, self._force = direction, is_resumed, force
        self._found, self._placed = found, placed
        self._count, self._end = 0, ""
        self._present: dict[TreePath, Node | None] = {}
        self.targets: dict[TreePath, Node | None] = {}
        self._contested: dict[TreePath, str] = {}
        self._others: dict[TreePath, str] = {}
        self._unseen: dict[TreePath, str] = {}  # paths of which not even the present state is known
        self._hides: dict[TreePath, str] = {}
        self._timed: set[TreePath] = set()
        self._covered: set[TreePath] = set()
        self._first_hops: dict[TreePath, int] = {}
        self._left: dict[TreePath, Node | None] = {}  # what a forced undo has left that is redone
        self.restamped: dict[int, set[int]] = {}

    def add_hop(
        self,
        start: str,
        end: str,
        authorship: Authorship | JointAuthorship,
        beside: Mapping[TreePath, str],
        back: Return | None,
    ) -> None:
        """Add what leads from one tree to the next, or to where a forced undo came from."""
        timed: set[TreePath] = set()
        if back is None:
            changes = self._reader.differences(start, end, timed)
            for path in timed:
                self._add_time(path, start, end, authorship)
        else:
            changes = self._changes_back(start, back, timed)
            self._timed |= timed
        self._count, self._end = self._count + 1, end if back is None else back.end
        for path, change in changes.items():
            self._add(path, change, start, authorship, beside)

    def _add_time(
        self, path: TreePath, start: str, end: str, authorship: Authorship | JointAuthorship
    ) -> None:
        """Add a folder that has another time after a hop, if that is not left to somebody else.

        Where what it holds explains that, its time comes back with what the hop changes in it, or stays with
        what is left to others.
        """
        before, after, now = (self._reader.lookup(tree, path) for tree in (start, end, self._now))
        if self._reader.has_other_entries(before, after):
            return
        is_folder = now is not None and now.kind == "folder"
        known = [node.mtime_ns for node in (before, after) if node is not None]
        author = authorship.author_of(path)
        is_back = self._direction == "redo" and now is not None and now.mtime_ns in known
        if author == "others" and not (self._force or is_back):
            if is_folder:
                self._others[path] = _CHANGED_BY_OTHERS
            return
        self._timed.add(path)
        is_undone = now is not None and after is not None and now.mtime_ns == after.mtime_ns
        is_open = is_folder and not (self._is_resumed or is_undone)
        if author != "call" and self._direction == "undo" and is_open:
            why = _CHANGED_BY_OTHERS if author == "others" else _CHANGED_BY_ANYBODY
            self._contested.setdefault(path, why)

    def _changes_back(self, start: str, back: Return, timed: set[TreePath]) -> dict[TreePath, NodeChange]:
        """Return what a redo changes that leads to where a forced undo came from.

        Args:
            start: Digest of the tree before the step.
            back: Where it leads.
            timed: Gets the paths of folders of which it changes the times.
        """
        moved: set[TreePath] = set()
        undone = self._reader.differences(back.after, back.before, moved)
        whole = {path for path, change in undone.items() if not _are_folders(change)}

        def is_in_whole(path: TreePath) -> bool:
            return not whole.isdisjoint(_around(path))

        changes: dict[TreePath, NodeChange] = {}
        for path, change in self._reader.differences(start, back.end, timed).items():
            # All else is what somebody has changed beside that, and the undo has left. A folder that the undo
            # has found and left holds such a thing, so it stays one, whatever it was before one of the calls.
            is_inside = is_in_whole(path)
            if is_inside or path in whole or (path in undone and _are_folders(change)):
                changes[path] = change
            if is_inside:
                self._left.setdefault(path, None)
        for path, (after, before) in undone.items():
            self._left[path] = after
            # What the undo could not bring back is not as it was before the step.
            if back.end == back.before and path not in changes:
                changes[path] = after, before
        timed -= {path for path in timed if not (path in moved or path in undone or is_in_whole(path))}
        if back.end == back.before:
            timed |= moved
        return dict(sorted(changes.items()))

    def _add(
        self,
        path: TreePath,
        change: NodeChange,
        start: str,
        authorship: Authorship | JointAuthorship,
        beside: Mapping[TreePath, str],
    ) -> None:
        """Add one path that a hop changes, if it is not left to somebody else."""
        before, after = change
        targets, others = self.targets, self._others
        if self._placed is not None and before is not None and path[0].startswith(TEMPORARY):
            return  # what the move that is taken back keeps
        current = targets[path] if path in targets else self._reader.lookup(self._now, path)
        if current is not None and current.kind == "unkept":
            current = self._without_restamp(current, before, after, is_planned=path in targets)
        if self._placed is not None and (
            not is_of_move(path, current, after, self._placed) or not others.keys().isdisjoint(_around(path))
        ):
            # Somebody else has put it there, or what stands in the place of a folder around it.
            unread = next((node for node in (current, before) if node and node.is_unreadable), None)
            others[path] = _CHANGED_SINCE if unread is None else f"{NOT_COMPARED}: {unread.why_unkept}"
            return
        # Race: a file tool of another call was writing when this state was kept. What it had not renamed
        # into place yet is not a file of anybody's.
        if current is None and after is not None and path and is_partial_file(path[-1]):
            return
        hidden = None
        if current is None and path not in targets:
            hidden = self._find_hidden(start, path)
        known = [before, after, *([self._left[path]] if path in self._left else [])]
        is_known = hidden is None and any(is_same(current, node) for node in known)
        is_known = is_known or (current is not None and is_index(path) and self._is_refreshed(current, known))
        # Where the content that is wanted is there again, only attributes would change. If nothing else has
        # changed in the step, it counts whose these are.
        is_undone = is_same(current, after) and not is_same(before, after)
        author = "call" if is_undone else authorship.author_of(path)
        is_back = self._direction == "redo" and is_known
        if author == "others" and not (self._force or is_back):
            others[path] = _CHANGED_BY_OTHERS
            return
        self._present.setdefault(path, current)
        if after is not None and after.kind == "unkept" and self._reader.lookup(self._now, path) == after:
            self._present[path] = after  # and not what it was before it got another change time
        if not is_known and not (self._is_resumed and current is None):
            self._contested.setdefault(path, self._why_unknown(path, current, after, hidden))
        elif path in beside and not (self._is_resumed or is_same(current, after)):
            why = f"it may also have been changed by {beside[path]}, {RAN_BESIDE}"
            self._contested.setdefault(path, why)
        elif author != "call" and self._direction == "undo" and not self._is_resumed:
            why = _CHANGED_BY_OTHERS if author == "others" else _CHANGED_BY_ANYBODY
            self._contested.setdefault(path, why)
        elif is_known and not self._is_resumed and has_other_attributes(self._store, current, before, after):
            # Power loss: of what the call itself had set, any part may be gone when a restore is resumed.
            self._contested.setdefault(path, _ATTRIBUTES_SINCE)
        targets[path] = after
        self._first_hops.setdefault(path, self._count)
        for node in (before, current):
            if node is not None and node.is_unreadable and after is not None and after.kind == "folder":
                self._hides[path] = node.why_unkept

    def _is_refreshed(self, current: Node, known: Sequence[Node | None]) -> bool:
        """Return whether an index of git is what is known of it, but for the stamps of files."""
        nodes = [node for node in known if node is not None and node.kind == "file" == current.kind]
        try:
            return any(
                is_refreshed(self._store.get(current.content), self._store.get(node.content))
                for node in nodes
                if max(node.size, current.size) <= MAX_BYTES
            )
        except WorkspaceError:
            return False  # what is not stored cannot be compared

    def _without_restamp(self, current: Node, *known: Node | None, is_planned: bool) -> Node:
        """Return what is known of an entry that has only got another change time by a move.

        Args:
            current: The entry.
            known: What is known of it.
            is_planned: Whether it is what the hop before leads to, and so may be the older of the two.
        """
        # Crash: which times a restore has given that was cut short, nobody knows any more.
        changed = None if self._is_resumed else self.restamped
        for node in known:
            if node is None:
                continue
            if current.is_restamped(node, changed) or (is_planned and node.is_restamped(current, changed)):
                inode, time = current.stamp_times
                self.restamped.setdefault(inode, set()).add(time)
                return node
        return current

    def _find_hidden(self, start: str, path: TreePath) -> Node | None:
        """Return the folder around a path that hides it now, and did not do so in the tree `start`, if any.

        Not even its names are known, so that nothing is found at the path says nothing.
        """
        for around in _around(path):
            node = self._reader.lookup(self._now, around)
            if node is None:
                return None
            if node.hides:
                if node.is_unreadable and around in self._present:
                    self._covered.add(path)
                if self._first_hops.get(around, self._count) < self._count:
                    return None  # what the hop before leads to is known
                known = self._reader.lookup(start, around)
                return None if known in {node, self._without_restamp(node, known, is_planned=False)} else node
        return None

    def _why_unknown(
        self, path: TreePath, current: Node | None, after: Node | None, hidden: Node | None
    ) -> str:
        """Return why a path is contested at which neither is what was before nor what is to be after."""
        unread = current if hidden is None else hidden
        if unread is None or not (unread is hidden or unread.is_unreadable):
            return _CHANGED_SINCE
        if unread is hidden or (after is not None and after.kind == "folder"):
            self._unseen[path] = unread.why_unkept
        return f"{NOT_COMPARED}: {unread.why_unkept}"

    def add_missing_folders(self) -> None:
        """Add the folders around targets that no hop has changed, and that are gone or something else."""
        for path, node in missing_folders(self._reader, self._now, self._end, self.targets).items():
            now = self._reader.lookup(self._now, path)
            self._present[path], self.targets[path] = now, node
            if now is not None:
                self._contested.setdefault(path, _CHANGED_SINCE)
            elif not self._is_resumed:
                self._contested.setdefault(path, _REMOVED_SINCE)

    def spare_added(self) -> None:
        """Leave what the way ends at without knowing it; contest what no hop knows in what is to be removed.

        What was not kept is not brought back, so a folder in its place stays, with all in it: what it is to
        hold is not known, and nothing in it is too much.
        """
        holding: set[TreePath] = set()
        shared: set[TreePath] = set()
        missing = {
            path: target
            for path, target in self.targets.items()
            if target is not None and target.kind in {"unkept", "other"} and not self._is_kept(path, target)
        }
        if missing:
            # A socket or device holds nothing.
            unknown = {path for path, target in missing.items() if target.kind == "unkept"}
            for path in [*self.targets.keys(), *self._others.keys()]:
                if not unknown.isdisjoint(_around(path)):
                    for paths in (self.targets, self._contested, self._others):
                        paths.pop(path, None)
        for path, target in self.targets.items():
            current = self._present[path]
            is_folder = target is not None and target.kind == "folder"
            if is_folder and current is not None and current.is_unreadable:
                self._hides[path] = current.why_unkept
            is_removed = path not in missing and not is_folder
            if current is not None and current.kind == "folder" and is_removed:
                for name in self._reader.of(current):
                    if self.targets.get((*path, name), current) is None:
                        continue
                    if target is None and self._is_shared(path):
                        shared.add(path)
                        continue
                    self._contested[*path, name] = _ADDED_SINCE
                    if self._placed is not None:
                        holding.update((*path, name)[:end] for end in range(1, len(path) + 1))
        for path in holding & self.targets.keys():
            self._others[path] = _ADDED_TO
        for path in (holding | shared) & self.targets.keys():
            del self.targets[path]

    def _is_shared(self, path: TreePath) -> bool:
        """Return whether a folder is one of git's for objects, which whoever stores one shares with the call.

        That around it must not be removed or replaced either.
        """
        around = self.targets.get(path[:-1], _ROOT)
        is_git = is_object_folder(path) and self._reader.lookup(self._now, (*path[:-2], "HEAD")) is not None
        return is_git and around is not None and around.kind == "folder"

    def contest_git(self) -> None:
        """Contest what somebody else has added to a repository of git, and that needs what is removed."""
        if self._placed is None and not self._is_resumed:
            for path in find_needing(self._store, self._now, self._end, self.targets):
                self._contested.setdefault(path, NEEDS_OBJECTS)

    def accept_overridden(self) -> None:
        """Contest nothing that is as the way leads to, or that a restore that was cut short had found."""
        for path, why in [*self._contested.items()]:
            if not self._is_resumed:
                node, target = self._present.get(path), self.targets.get(path, _UNSEEN)
                if why == _CHANGED_SINCE and (node == target or _are_folders((node, target))):
                    del self._contested[path]
                continue
            now = self._reader.lookup(self._now, path)
            is_done = path in self.targets and is_same(now, self.targets[path])
            if is_done or (self._found and is_same(now, self._reader.lookup(self._found, path))):
                del self._contested[path]

    def plan(self, tree: TrackedTree, looked_ns: int) -> RestorePlan:
        """Return the plan.

        Args:
            tree: Shows the paths.
            looked_ns: When it was looked what is there.
        """
        reader, targets, present = self._reader, self.targets, self._present
        if self._count > 1:  # else all targets are of that tree
            take_links(reader, self._end, targets)
        right, groups, anchors, parted = plan_links(reader, self._now, self._end, targets, present)
        shown = map(tree.display_path, parted.values())
        plan = _build_plan(
            tree,
            targets,
            present,
            self._contested,
            right=right,
            groups=groups,
            unseen=self._unseen,
            end=self._end,
            is_kept=self._is_kept,
        )
        return replace(
            plan,
            others=tuple((path, self._others[path]) for path in sorted_in_runs(self._others)),
            looked_ns=looked_ns,
            present=present,
            wanted=targets,
            timed=frozenset(self._timed),
            covered=frozenset(self._covered),
            groups=groups,
            anchors=anchors,
            parted=dict(zip(parted, map(_PARTED.format, shown), strict=True)),
            keeps_set_ids=self._direction == "undo",
            restamped=self.restamped,
            hidden=tuple({**self._hides, **self._unseen}.items()),
        )


def _are_folders(change: NodeChange) -> bool:
    return all(node is not None and node.kind == "folder" for node in change)


def _is_no_folder(node: Node | None) -> bool:
    return node is not None and node.kind != "folder"


def _around(path: TreePath) -> Iterator[TreePath]:
    """Yield the paths of the folders around a path, the outermost first."""
    return (path[:length] for length in range(1, len(path)))


def _build_plan(
    tree: TrackedTree,
    targets: Mapping[TreePath, Node | None],
    present: Mapping[TreePath, Node | None],
    contested: Mapping[TreePath, str],
    *,
    right: Collection[TreePath],
    groups: Collection[TreePath],
    unseen: Mapping[TreePath, str],
    end: str,
    is_kept: IsKept,
) -> RestorePlan:
    possible: dict[TreePath, Node | None] = {}
    missing: list[Failure] = []
    unrestorable: list[Failure] = []
    sealed: list[TreePath] = []
    moves_unstored = False
    for path, target in targets.items():
        current = present[path]
        if path in unseen:
            missing.append((path, f"what is there is not known: {unseen[path]}"))
            continue
        if current == target and path not in groups:
            continue
        if path in right or (target is not None and target.is_like(current) and path not in groups):
            continue
        if target is not None and target.kind in {"unkept", "other"} and is_kept(path, target):
            possible[path], moves_unstored = target, True
        elif target is not None and target.kind == "unkept":
            missing.append((path, f"it was not kept: {target.why_unkept}"))
        elif target is not None and target.kind == "other":
            missing.append((path, f"it is a {target.content}"))
        elif target is None and current is not None and current.is_sealed:
            sealed.append(path)
        elif target is None and current is not None and current.kind == "unkept":
            unrestorable.append((path, current.why_unkept))
        else:
            possible[path] = target
            moves_unstored = moves_unstored or (current is not None and current.kind in {"unkept", "other"})
    return RestorePlan(
        targets=possible,
        missing=tuple(missing),
        unrestorable=tuple(unrestorable),
        sealed=tuple(sealed),
        conflicts=tuple((tree.display_path(path), contested[path]) for path in sorted_in_runs(contested)),
        contested=frozenset(contested),
        end=end,
        moves_unstored=moves_unstored,
    )


def is_same(one: Node | None, other: Node | None) -> bool:
    """Return whether two nodes have the same content, or are both nothing."""
    return other is None if one is None else one.has_same_content(other)
