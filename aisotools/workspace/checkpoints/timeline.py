"""Undo and redo of what calls did to a workspace.

Every call that may change files is a checkpoint: a step between two trees. Undo restores, path by path, what
the undone steps changed and nothing else. What somebody else changed at other paths stays; what somebody else
changed at the same path is a conflict.

Every step, undo and redo is recorded before it is done. After a crash the journal is replayed: an undo that
was cut short is completed, and a step that was running ends with what is there.
"""

from __future__ import annotations

import functools
import math
import pathlib
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from aisotools.core.concurrency import sorted_in_runs
from aisotools.core.exceptions import UsageError, WorkspaceError
from aisotools.core.truncation import summarize_names
from aisotools.workspace.checkpoints.restore import (
    Reasons,
    RestorePlan,
    carry_out,
    lock_again,
    plan_restore,
    sweep,
)
from aisotools.workspace.checkpoints.scan import ProgressCallback, ScanLimits, Snapshot, TooSlow, TrackedTree
from aisotools.workspace.checkpoints.steps import Checkpoint, Direction, Timeline
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.tree import TreePath, TreeReader, reachable_digests
from aisotools.workspace.root_mode import watch_mode

KEPT_STEPS = 100
"""Steps that can be undone; older ones are dropped."""

KEPT_BYTES = 1 << 30
"""Size of the contents of all steps; above it the oldest steps are dropped."""

KEPT_CONTENTS = 300_000
"""Number of these contents, which may be as small as a byte; above it the oldest steps are dropped."""

_STEP_BYTES = 2_500  # memory for a step with its digests and names, and for its tree's path
_OUTSIDE_BYTES = 64 << 10  # memory for the state of a tree outside the workspace; a larger one is in a file
LISTED_BYTES = 8 << 20
"""Memory for the whole paths that the result of a move names; those beyond are shortened."""

_SHORT_PATH_CHARS = 40
_DROP_SLACK = 20  # steps above KEPT_STEPS before any is dropped: dropping rewrites the journal

_WORKSPACE = ""  # key of the workspace in `Checkpoint.before`


@dataclass(slots=True)
class _PathList:
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
        missing: Paths that were not restored, each with the reason. Those of a move that was taken back are
            what it failed at.
        failed: Those of them that the system refused to change.
        stuck: Paths that could not be brought back to how they were before a move that failed, each with how
            it is now.
        conflicts: Paths that somebody else changed since. Unless forced, nothing was done then.
        done: True if the move was made.
        token: That of its record.
    """

    direction: Direction
    steps: tuple[Checkpoint, ...] = ()
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    missing: Reasons = ()
    failed: Reasons = ()
    stuck: Reasons = ()
    conflicts: Reasons = ()
    done: bool = True
    origin: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    token: str = field(default="", compare=False, repr=False)


class Checkpoints:
    """The timeline of one workspace with its store. Thread-safe.

    All sessions of a process on the same workspace share one instance.

    Attributes:
        latest: Last snapshot of the workspace; None before the first.
        has_excess: Whether there are more steps or contents than are kept, as of the last step that ended.
        memory_bytes: Memory that all of this takes between two calls, without what a scan or an undo needs.
        root_mode: Mode of the workspace's own folder; None if that did not exist.
    """

    def __init__(
        self,
        workspace: pathlib.Path,
        folder: pathlib.Path,
        limits: ScanLimits | None = None,
        *,
        kept_bytes: int = KEPT_BYTES,
        kept_contents: int = KEPT_CONTENTS,
    ) -> None:
        """Open the timeline of `workspace` that is stored in `folder`, and recover from a crash.

        Args:
            workspace: The folder that calls change.
            folder: Where contents and journal are stored.
            limits: What a snapshot covers.
            kept_bytes: Size of the contents of all steps; above it the oldest steps are dropped.
            kept_contents: Number of these contents; the same.

        Raises:
            WorkspaceError: If the folder cannot be used.
        """
        self._limits = limits or ScanLimits()
        self._kept_bytes, self._kept_contents = kept_bytes, kept_contents
        self._store = Store(folder)
        self._lock = threading.RLock()
        self.root_mode = watch_mode(workspace, folder, lambda: bool(self._timeline.running))
        self._workspace = TrackedTree(self._store, workspace, self._limits, mode=self.root_mode)
        self._trees = {_WORKSPACE: self._workspace}
        self._keep_bytes = math.inf
        self.memory_bytes = 0
        self.latest: Snapshot | None = None
        self.has_excess = False
        try:
            records = self._store.records()
            self._timeline = Timeline.read(records)
            if records:
                self._recover()
        except BaseException:
            self._store.close()
            raise

    def __repr__(self) -> str:
        return f"<Checkpoints of {self._workspace.path}: {len(self.steps)} steps, {len(self.undone)} undone>"

    @property
    def store(self) -> Store:
        """The store of contents."""
        return self._store

    @property
    def steps(self) -> Sequence[Checkpoint]:
        """Steps that can be undone, oldest first."""
        return tuple(self._timeline.done)

    @property
    def undone(self) -> Sequence[Checkpoint]:
        """Steps that can be redone, the next one last."""
        return tuple(self._timeline.undone)

    @property
    def dropped(self) -> int:
        """Number of older steps that are not kept any more."""
        return self._timeline.dropped

    def close(self) -> None:
        """Close the store. Idempotent."""
        with self._lock:
            for tree in self._trees.values():
                tree.close()
            if self.root_mode is not None:
                self.root_mode.close()
            self._store.close()

    # ---- memory

    def _measure(self) -> None:
        timeline = self._timeline
        total = _STEP_BYTES * (len(timeline.done) + len(timeline.undone) + len(timeline.running))
        for tree in tuple(self._trees.values()):
            total += tree.scanner.memory_bytes
        self.memory_bytes = total

    def limit_memory(self, keep_bytes: int) -> None:
        """Keep what a scan remembers of the workspace in a file if it takes more than so many bytes.

        Of several limits the smallest counts.
        """
        with self._lock:
            self._keep_bytes = min(self._keep_bytes, keep_bytes)
            self._workspace.limit_memory(self._keep_bytes)

    # ---- steps

    def snapshot(
        self,
        progress: ProgressCallback | None = None,
        max_work: float = math.inf,
        *,
        may_wait: bool = True,
    ) -> Snapshot:
        """Take a snapshot of the workspace outside of any step; see `Scanner.scan` for the arguments.

        Raises:
            TooSlow: As `Scanner.scan` does.
            WorkspaceError: If it cannot be stored.
        """
        with self._lock:
            self.latest = self._workspace.scan(progress, max_work, may_wait=may_wait)
            self._measure()
            return self.latest

    def begin(
        self,
        call_id: str,
        name: str,
        session: str,
        *,
        outside: pathlib.Path | None = None,
        beyond: str = "",
        changes_variables: bool = False,
        progress: ProgressCallback | None = None,
        max_work: float = math.inf,
        may_wait: bool = True,
    ) -> Snapshot:
        """Begin a step before its call runs.

        Args:
            call_id: The call.
            name: Its tool.
            session: Its session.
            outside: A path outside the workspace that it changes as well.
            beyond: Description of effects that no undo reverts.
            changes_variables: Whether it may change variables of the sandbox.
            progress: Called while files are read.
            max_work: How much work each scan may be; see `Scanner.scan`.
            may_wait: Whether a scan may wait for the disk.

        Raises:
            TooSlow: As `Scanner.scan` does. No step was begun then.
            WorkspaceError: If the state cannot be stored, or an undo that failed half way still can neither
                be completed nor taken back. The call must not run then.
        """
        with self._lock:
            if self._timeline.moving is not None:
                if not may_wait:
                    raise TooSlow
                self._finish_move(self._timeline.moving)
            snapshot = self.snapshot(progress, max_work, may_wait=may_wait)
            before = {_WORKSPACE: snapshot.root}
            if outside is not None and (tree := self._track(outside)) is not None:
                before[tree.key] = tree.scan(progress, max_work, may_wait=may_wait).root
            step = Checkpoint(
                call_id=call_id,
                name=name,
                session=session,
                time_s=time.time(),
                before=before,
                beyond=beyond,
                changes_variables=changes_variables,
                inside=self._outermost(call_id),
            )
            self._store.record(**step.begin_record())
            self._timeline.running[call_id] = step
            return snapshot

    def _outermost(self, call_id: str) -> str:
        # A call that is made in another one begins while that runs, and its id begins with that one's.
        for step in self._timeline.running.values():
            if call_id.startswith(f"{step.call_id}/"):
                return step.inside or step.call_id
        return ""

    def end(
        self,
        call_id: str,
        progress: ProgressCallback | None = None,
        max_work: float = math.inf,
        *,
        may_wait: bool = True,
    ) -> Checkpoint:
        """End a step after its call has run.

        If `has_excess` afterwards, call `drop_old`, which may take long.

        Raises:
            WorkspaceError: If the state cannot be stored. The step is then part of the timeline with an
                unknown end.
            TooSlow: As `Scanner.scan` does. The step is still running then.
        """
        with self._lock:
            step = self._timeline.running[call_id]
            try:
                after = {}
                for key in step.before:
                    tree = self._tree(key)
                    snapshot = None if tree is None else tree.scan(progress, max_work, may_wait=may_wait)
                    after[key] = "" if snapshot is None else snapshot.root  # empty: it is tracked no more
                    if key == _WORKSPACE:
                        self.latest = snapshot
                step = replace(step, after=after)
            except TooSlow:
                raise
            except BaseException:
                self._timeline.end(step)
                raise
            self._timeline.end(step)
            self._store.record(op="end", id=call_id, after=dict(step.after))
            self.has_excess = len(self._timeline.done) > KEPT_STEPS + _DROP_SLACK or (
                self._store.size > self._kept_bytes or self._store.count > self._kept_contents
            )
            self._measure()
            return step

    @property
    def is_busy(self) -> bool:
        """True if another thread uses the checkpoints, so that every method would wait for it."""
        if not self._lock.acquire(blocking=False):
            return True
        self._lock.release()
        return False

    def fits(self, most_entries: float = math.inf) -> bool:
        """Return whether a first snapshot would cover the whole workspace.

        Raises:
            TooSlow: If it has to look at more than `most_entries`.
        """
        with self._lock:
            return self._workspace.fits(most_entries)

    def covers(self, path: pathlib.Path) -> bool:
        """Return whether a path outside the workspace can be part of a step."""
        with self._lock:
            return self._around(path) is not None

    def _tree(self, key: str) -> TrackedTree | None:
        # A tree outside the workspace is unknown if its step was begun by an earlier process.
        return self._trees[key] if key in self._trees else self._track(pathlib.Path(key))

    def _track(self, path: pathlib.Path) -> TrackedTree | None:
        tree = self._around(path)
        # Prefer the tree that is known: its scanner remembers what it has read.
        return None if tree is None else self._trees.setdefault(tree.key, tree)

    def _around(self, path: pathlib.Path) -> TrackedTree | None:
        return TrackedTree.around(
            self._store,
            path,
            self._limits,
            apart=(self._workspace.path, self._store.folder),
            keep_bytes=_OUTSIDE_BYTES,
        )

    # ---- undo and redo

    def move(self, direction: Direction, steps: Sequence[Checkpoint], *, force: bool = False) -> UndoResult:
        """Undo or redo steps.

        Args:
            direction: Whether to undo or to redo.
            steps: Last steps of `steps` or `undone`, in the order in which they are to be taken.
            force: Replace what somebody else changed since, remove paths whose content is not stored, and do
                what can be done if a path cannot be changed.

        Returns:
            The result. With conflicts, unless forced, nothing was changed. If a path cannot be changed, the
            move is taken back, unless forced; what then is not as before is `stuck`, and no call may change
            anything before that is mended, by the next move or the next process.

        Raises:
            UsageError: If a step is running.
            WorkspaceError: If the move cannot be recorded, or one before could not be completed; nothing was
                changed then.
        """
        with self._lock:
            moving = self._timeline.moving
            unfinished = () if moving is None else self._finish_move(moving, force=force)
            if self._timeline.running:
                names = ", ".join(step.name for step in self._timeline.running.values())
                raise UsageError(f"{names} is running. Wait for it, or interrupt it, then {direction}.")
            plans = self._plan(direction, steps)
            conflicts = tuple(conflict for _, plan in plans for conflict in plan.conflicts)
            if conflicts and not force:
                return UndoResult(direction=direction, steps=tuple(steps), conflicts=conflicts, done=False)
            # The plan has scanned every tree.
            origin = {tree.key: tree.root for tree, _ in plans}
            moved = self._carry_out(direction, steps, plans, force=force)
            if unfinished:  # what this move changes as well, it names itself
                touched = {tree.display_path(path) for tree, plan in plans for path in plan.touched}
                left = tuple(entry for entry in unfinished if entry[0] not in touched)
                moved = replace(moved, missing=moved.missing + left)
            moved = replace(moved, conflicts=conflicts, origin=origin)
            return moved if force or not moved.failed else self._take_back(moved, plans)

    def _take_back(self, moved: UndoResult, plans: Sequence[tuple[TrackedTree, RestorePlan]]) -> UndoResult:
        """Take back a move that has failed. Return what became of that."""
        try:
            back = self.revert(moved)
        except WorkspaceError:
            return moved  # what was done stays done, and what was not is named; it is completed later
        stuck: list[tuple[str, str]] = []
        for tree, plan in plans:
            targets = plan.targets
            try:
                now = tree.scan().root
                differences = TreeReader(self._store).differences(moved.origin[tree.key], now)
            except WorkspaceError as error:
                stuck.append((tree.display_path(()), f"it cannot be looked at: {error}"))
                continue
            for path, (_, current) in differences.items():
                if path in targets and targets[path] == current:
                    state = f"it is as after the {moved.direction}"
                else:
                    state = "it is gone" if current is None else "it is neither as before nor as after"
                stuck.append((tree.display_path(path), state))
        return replace(
            back,
            direction=moved.direction,
            steps=moved.steps,
            restored=(),
            removed=(),
            missing=moved.failed,
            failed=moved.failed,
            stuck=tuple(stuck),
            done=False,
        )

    def revert(self, moved: UndoResult) -> UndoResult:
        """Take a move back that was the last thing to happen: every path that it changed is as before it.

        What a forced move removed although it was not stored is listed as missing. If a path cannot be
        changed, no call may change anything before that is mended, by the next move or the next process.

        Raises:
            WorkspaceError: If it cannot be recorded; nothing was changed then.
        """
        with self._lock:
            plans = []
            for key, root in moved.origin.items():
                tree = self._tree(key)
                if tree is not None:
                    plans.append((tree, plan_restore(self._store, tree, [(tree.scan().root, root)])))
            direction: Direction = "redo" if moved.direction == "undo" else "undo"
            return self._carry_out(
                direction, moved.steps[::-1], plans, moved.token, force=True, must_succeed=True
            )

    def _plan(
        self, direction: Direction, steps: Sequence[Checkpoint], *, is_resumed: bool = False
    ) -> list[tuple[TrackedTree, RestorePlan]]:
        taken = {step.call_id: step for step in steps}
        hops: dict[str, list[tuple[str, str]]] = {}
        for step in steps:
            for key in step.before:
                # What a call did includes what the calls inside it did.
                if step.inside not in taken or key not in taken[step.inside].before:
                    hops.setdefault(key, []).append(step.change_of(direction, key))
        plans = []
        for key, changes in hops.items():
            tree = self._tree(key)
            if tree is not None:
                plans.append((tree, plan_restore(self._store, tree, changes, is_resumed=is_resumed)))
        return plans

    def _carry_out(
        self,
        direction: Direction,
        steps: Sequence[Checkpoint],
        plans: Iterable[tuple[TrackedTree, RestorePlan]],
        token: str = "",
        *,
        force: bool,
        must_succeed: bool | None = None,
        is_recorded: bool = False,
    ) -> UndoResult:
        """Carry out a move.

        Args:
            direction: Whether to undo or to redo.
            steps: The steps, in the order in which they are taken.
            plans: What to do in each tree.
            token: Part of the names of partial files; a new one if it is empty.
            force: Remove also what cannot be restored.
            must_succeed: Whether the move stays unfinished, for `_finish_move`, if a path cannot be changed;
                without it, unless forced.
            is_recorded: Whether the move was recorded before, and cut short.

        Raises:
            WorkspaceError: If it cannot be recorded; nothing was changed then.
        """
        must_succeed = not force if must_succeed is None else must_succeed
        ids, token = [step.call_id for step in steps], token or uuid.uuid4().hex[:12]
        record = {"op": "move", "way": direction, "ids": ids, "token": token, "force": force}
        if must_succeed and force:
            record["must_succeed"] = True
        if not is_recorded:
            self._store.record(**record)
        self._timeline.moving = record
        restored: list[str] = []
        removed: list[str] = []
        missing: list[tuple[str, str]] = []
        failed: list[tuple[str, str]] = []
        listed = _PathList()
        for tree, plan in plans:
            show = functools.partial(listed.show, tree)
            try:
                with tree.opened() as root:
                    result = carry_out(self._store, root, plan, token, force=force)
            except WorkspaceError as error:  # the folder itself cannot be opened
                failed.append((show(()), str(error)))
                continue
            restored += map(show, result.restored)
            removed += map(show, result.removed)
            missing += [(show(path), why) for path, why in result.left_out]
            failed += [(show(path), why) for path, why in result.failed]
        self._timeline.shift(direction, ids)
        if not (failed and must_succeed):
            # Disk full: what was done is done. The next call or move writes it before all else, or is
            # refused; the next process finds a move that was cut short, and nothing left of it to do.
            with suppress(WorkspaceError):
                self._end_move(token)
        try:
            self.snapshot()
        except WorkspaceError:
            self.latest = None  # the next call looks again, and is refused if that fails as well
        return UndoResult(
            direction=direction,
            steps=tuple(steps),
            restored=tuple(sorted_in_runs(restored)),
            removed=tuple(sorted_in_runs(removed)),
            missing=tuple(sorted_in_runs([*missing, *failed])),
            failed=tuple(sorted_in_runs(failed)),
            token=token,
        )

    def _end_move(self, token: str) -> None:
        self._store.record(op="moved", token=token)
        self._timeline.moving = None

    def _finish_move(self, moving: Mapping[str, Any], *, force: bool = False) -> Reasons:
        """Complete a move that failed half way, before anything else is done.

        Returns:
            With `force`, the paths at which it cannot be completed, and which stay as they are.

        Raises:
            WorkspaceError: If it still cannot be completed, or that cannot be recorded.
        """
        failed = self._complete_move(moving).failed
        if failed and not force:
            names = summarize_names([f"{path or 'the workspace'} ({why})" for path, why in failed])
            raise WorkspaceError(
                f"An earlier undo or redo failed half way, and can still not be completed at: {names}. "
                "Make it possible to change that, and try again; an undo or redo with force=True leaves it."
            )
        if self._timeline.moving is not None:
            self._end_move(moving["token"])
        return failed

    # ---- recovery and limits

    def _recover(self) -> None:
        """Bring timeline, store and workspace in line, however the last process ended."""
        timeline = self._timeline
        usable = {
            step.call_id for step in timeline.all_steps() if all(root in self._store for root in step.roots)
        }
        lost = [number for number, step in enumerate(timeline.done) if step.call_id not in usable]
        if lost:
            # Contents were deleted behind our back. Undo would have to pass this step, so drop all older
            # ones.
            timeline.dropped += lost[-1] + 1
            del timeline.done[: lost[-1] + 1]
        timeline.undone = [step for step in timeline.undone if step.call_id in usable]
        timeline.running = {call_id: step for call_id, step in timeline.running.items() if call_id in usable}
        # Crash during an undo or redo: complete it before anything else looks at the workspace.
        if timeline.moving is not None:
            self._complete_move(timeline.moving)
        # Crash during a call: whatever it has done by now is its result.
        for call_id in list(timeline.running):
            self.end(call_id)
        self._store.rewrite(timeline.records())

    def _complete_move(self, record: Mapping[str, Any]) -> UndoResult:
        """Complete an undo or redo that was cut short. Paths that were changed since are left alone."""
        direction: Direction = "undo" if record["way"] == "undo" else "redo"
        known = {step.call_id: step for step in [*self._timeline.done, *self._timeline.undone]}
        steps = [known[call_id] for call_id in record["ids"] if call_id in known]
        for tree, plan in self._plan(direction, steps):
            folders = {path[:-1] for path in plan.touched}
            with tree.opened() as root:
                sweep(root, folders, record["token"])
                lock_again(self._store, root, plan.end, folders)
        # Plan again: the partial files that were just removed would count as changes by somebody else.
        plans = self._plan(direction, steps, is_resumed=True)
        return self._carry_out(
            direction,
            steps,
            [(tree, plan.without_conflicts()) for tree, plan in plans],
            record["token"],
            force=bool(record.get("force")),
            must_succeed=record.get("must_succeed"),
            is_recorded=True,
        )

    def drop_old(self) -> None:
        """Drop the oldest steps above the limits, and the contents that only they needed.

        It reads every listing of the steps that stay, and takes a tenth of a second for 1,500 files.
        """
        with self._lock:
            done = self._timeline.done
            count = len(done)
            del done[: max(len(done) - KEPT_STEPS, 0)]
            while True:
                needed = {_WORKSPACE, *(key for step in self._timeline.all_steps() for key in step.before)}
                for key in self._trees.keys() - needed:
                    self._trees.pop(key).close()
                roots = {root for step in self._timeline.all_steps() for root in step.roots}
                roots |= {tree.root for tree in self._trees.values() if tree.root}
                self._store.keep_only(reachable_digests(self._store, roots))
                is_full = self._store.size > self._kept_bytes or self._store.count > self._kept_contents
                if not is_full or not done:
                    break
                del done[: len(done) // 4 + 1]
            self._timeline.dropped += count - len(done)
            self._store.rewrite(self._timeline.records())
            self.has_excess = False
