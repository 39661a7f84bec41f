"""Undo and redo of what calls did to a workspace.

Every call that may change files is a checkpoint: a step between two trees. Undo restores, path by path, what
the undone steps changed and nothing else. What somebody else changed at other paths stays; what somebody else
changed at the same path is a conflict.

Threat
    The host dies, the power fails or the disk is full: an undo is half done, a step has no end, or a record
    names what was never written.
Mechanism
    A step is recorded before it begins. An undo is recorded, then staged, then switched; what cannot be
    staged is given up before anything has changed. After a crash an undo is completed, and a step that was
    running ends with what is there. Contents are synced before the end of the step that names them, and that
    before its call is answered.
Race window
    Of a call that is running, nothing is synced yet. After the power has failed it may be lost, and is named.
When it fails
    What can be neither completed nor taken back keeps every call from changing anything until it is.
"""

from __future__ import annotations

import math
import pathlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from aisotools.core.concurrency import sorted_in_runs
from aisotools.core.exceptions import UsageError, WorkspaceError
from aisotools.core.truncation import summarize_names
from aisotools.workspace.checkpoints.authorship import NO_EVIDENCE, Author, Evidence
from aisotools.workspace.checkpoints.moves import (
    PathList,
    UndoResult,
    changes_by_author,
    find_stuck,
    judge_changes,
    list_changed,
    list_unrestored,
    move_trees,
    plan_trees,
)
from aisotools.workspace.checkpoints.plan import Reasons, RestorePlan, plan_restore
from aisotools.workspace.checkpoints.recovery import UNCERTAIN, describe_completed, describe_ended, drop_lost
from aisotools.workspace.checkpoints.removal import sweep
from aisotools.workspace.checkpoints.restore import lock_again
from aisotools.workspace.checkpoints.scan import ProgressCallback, ScanLimits, Snapshot, TooSlow
from aisotools.workspace.checkpoints.steps import Checkpoint, Direction, Timeline
from aisotools.workspace.checkpoints.store import RecordQueue, Store
from aisotools.workspace.checkpoints.tree import reachable_digests
from aisotools.workspace.checkpoints.trees import WORKSPACE_KEY, TrackedTree, TrackedTrees
from aisotools.workspace.root_mode import watch_mode

KEPT_STEPS = 100
"""Steps that can be undone; older ones are dropped."""

KEPT_BYTES = 1 << 30
"""Size of the contents of all steps; above it the oldest steps are dropped."""

KEPT_CONTENTS = 300_000
"""Number of these contents, which may be as small as a byte; above it the oldest steps are dropped."""

_STEP_BYTES = 2_500  # memory for a step with its digests and names, and for its tree's path
_TICK_S = 0.01  # the longest tick of the clock by which files are stamped
_DROP_SLACK = 20  # steps above KEPT_STEPS before any is dropped: dropping rewrites the journal


class Checkpoints:
    """The timeline of one workspace with its store. Thread-safe.

    All sessions of a process on the same workspace share one instance.

    Attributes:
        latest: Last snapshot of the workspace; None before the first.
        kept_bytes: Size of the contents of all steps; above it the oldest steps are dropped.
        has_excess: Whether there are more steps or contents than are kept, as of the last step that ended.
        memory_bytes: Memory that all of this takes between two calls, without what a scan or an undo needs.
        root_mode: Mode of the workspace's own folder; None if that did not exist.
        notes: What `take_notes` will return.
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
        self.kept_bytes, self._kept_contents = kept_bytes, kept_contents
        self._store = Store(folder)
        self._lock = threading.RLock()
        self.root_mode = watch_mode(workspace, folder, lambda: bool(self._timeline.running))
        self._trees = TrackedTrees(self._store, workspace, limits or ScanLimits(), mode=self.root_mode)
        self._keep_bytes = math.inf
        self.memory_bytes, self.has_excess = 0, False
        self.latest: Snapshot | None = None
        self._due = RecordQueue(self._store)
        self._pinned: Counter[str] = Counter()
        self.notes: list[str] = []
        try:
            records = self._store.records()
            self._timeline = Timeline.read(records)
            if records or self._store.damage:
                self._recover()
        except BaseException:
            self._store.close()
            raise

    def __repr__(self) -> str:
        counts = f"{len(self.steps)} steps, {len(self.undone)} undone"
        return f"<Checkpoints of {self._trees.workspace.path}: {counts}>"

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
            self._trees.close()
            if self.root_mode is not None:
                self.root_mode.close()
            self._store.close()

    def park(self) -> None:
        """Close what is open, and forget what scans remember, until either is needed again."""
        with self._lock:
            if self.is_synced and not self._timeline.running:
                self._trees.close()
                self._store.park()

    def take_notes(self) -> tuple[str, ...]:
        """Return what was completed, taken back or lost since the last time, in sentences."""
        with self._lock:
            notes, self.notes = tuple(self.notes), []
            return notes

    # ---- what has to be written first

    @property
    def is_due(self) -> bool:
        """True if the end of a step that changed something waits for `sync`, before its call is answered."""
        return bool(self._due)

    @property
    def is_synced(self) -> bool:
        """True if `sync` has nothing to do."""
        return not self._due and self._store.is_synced

    def sync(self) -> None:
        """Write all contents through to the disk, then the records that name them. It may take a while.

        Raises:
            WorkspaceError: If that is not possible. No step can begin before it is.
        """
        with self._lock:
            self._due.write()
            self._store.sync()

    def _settle(self, *, may_wait: bool) -> None:
        """Do what has to be done before anything is changed."""
        if self._due or self._timeline.left:
            if not may_wait:
                raise TooSlow
            self._due.write()
            self._sweep_left()

    def _sweep_left(self) -> None:
        """Remove partial files that could not be removed when they should have been, as far as possible."""
        for token, keys in list(self._timeline.left.items()):
            for key in keys:
                tree = self._trees.find(key)
                if tree is not None:
                    with tree.opened() as root:
                        sweep(root, [()], token)
            del self._timeline.left[token]
            self._due.add(op="swept", token=token)
        self._due.write()

    # ---- memory

    def _measure(self) -> None:
        total = _STEP_BYTES * len(self._timeline.all_steps())
        self.memory_bytes = total + self._trees.memory_bytes

    def limit_memory(self, keep_bytes: int) -> None:
        """Keep what a scan remembers in a file if it takes more bytes; of several limits the least counts."""
        with self._lock:
            self._keep_bytes = min(self._keep_bytes, keep_bytes)
            self._trees.workspace.limit_memory(self._keep_bytes)

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
            self.latest = self._trees.workspace.scan(progress, max_work, may_wait=may_wait)
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
            self._settle(may_wait=may_wait)
            if self._timeline.moving is not None:
                if not may_wait:
                    raise TooSlow
                self._finish_move(self._timeline.moving)
            snapshot = self.snapshot(progress, max_work, may_wait=may_wait)
            before = {WORKSPACE_KEY: snapshot.root}
            if outside is not None and (tree := self._trees.track(outside)) is not None:
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
        evidence: Evidence = NO_EVIDENCE,
    ) -> Checkpoint:
        """End a step after its call has run.

        `evidence` says who may have written during the call.
        If `has_excess` afterwards, call `drop_old`, which may take long. If it may not wait and `is_due`
        afterwards, call `sync` before the call is answered.

        Raises:
            WorkspaceError: If the state cannot be stored. The step is then part of the timeline with an
                unknown end; or, if it is only its record that cannot be written, no other step can begin
                before that is.
            TooSlow: As `Scanner.scan` does. The step is still running then.
        """
        with self._lock:
            step = self._timeline.running[call_id]
            try:
                after = {}
                for key in step.before:
                    tree = self._trees.find(key)
                    snapshot = None if tree is None else tree.scan(progress, max_work, may_wait=may_wait)
                    after[key] = "" if snapshot is None else snapshot.root  # empty: it is tracked no more
                    if key == WORKSPACE_KEY:
                        self.latest = snapshot
                step, tree = replace(step, after=after), self._trees.workspace
                judged = judge_changes(self._store, tree, step, evidence)
                step = replace(step, authorship=judged)
            except TooSlow:
                raise
            except BaseException:
                self._timeline.end(step)
                self._due.add(op="end", id=call_id, after={})
                raise
            self._timeline.end(step)
            self._due.add(needs_sync=step.changed, **step.end_record())
            if may_wait and step.changed:
                self.sync()
            else:
                self._due.write(may_wait=may_wait)
            self.has_excess = len(self._timeline.done) > KEPT_STEPS + _DROP_SLACK or (
                self._store.size > self.kept_bytes or self._store.count > self._kept_contents
            )
            self._measure()
            return step

    def changes_by_author(self, step: Checkpoint) -> dict[Author, list[str]]:
        """Return the paths in the workspace that a step has changed, by author; none of very many."""
        return changes_by_author(self._store, self._trees.workspace, step)

    def list_changes(self, step: Checkpoint) -> list[str]:
        """Return the paths that a step has changed, sorted; those of very many may be shortened."""
        return list_changed(self._store, self._trees, step)

    def list_unrestored(self, step: Checkpoint) -> list[str]:
        """Return what undo of a step will not bring back, each with what of it; see `list_partial`."""
        return list_unrestored(self._store, self._trees, step)

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
            return self._trees.workspace.fits(most_entries)

    def pin(self, root: str) -> bool:
        """Keep the contents of a workspace's tree until `unpin`. Return whether it is stored.

        Where contents take too much room, it goes before any step: it is older.
        """
        with self._lock:
            self._pinned += Counter([root] if root in self._store else [])
            return self.is_pinned(root)

    def is_pinned(self, root: str) -> bool:
        """Return whether the contents of a tree are kept by `pin`."""
        return self._pinned[root] > 0

    def unpin(self, root: str) -> None:
        """Take one `pin` back, if there is one."""
        with self._lock:
            self._pinned -= Counter([root])

    def covers(self, path: pathlib.Path) -> bool:
        """Return whether a path outside the workspace can be part of a step."""
        with self._lock:
            return self._trees.covers(path)

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
            self._settle(may_wait=True)
            moving = self._timeline.moving
            unfinished = () if moving is None else self._finish_move(moving, force=force)
            if self._timeline.running:
                names = ", ".join(step.name for step in self._timeline.running.values())
                raise UsageError(f"{names} is running. Wait for it, or interrupt it, then {direction}.")
            for attempts_left in (2, 1, 0):
                plans = self._plan_healed(direction, steps, force=force)
                conflicts = tuple(conflict for _, plan in plans for conflict in plan.conflicts)
                if conflicts and not force:
                    return UndoResult(
                        direction=direction, steps=tuple(steps), conflicts=conflicts, done=False
                    )
                # The plan has scanned every tree.
                origin = {tree.key: tree.root for tree, _ in plans}
                moved = self._carry_out(direction, steps, plans, force=force)
                if not (moved.is_late and attempts_left):
                    break
                time.sleep(_TICK_S)  # the next plan is late again where a stamp is finer than its clock
            if not moved.done and self._heal():
                plans = self._plan(direction, steps, force=force)
                moved = self._carry_out(direction, steps, plans, force=force)
            if unfinished:  # what this move changes as well, it names itself
                touched = {tree.display_path(path) for tree, plan in plans for path in plan.touched}
                left = tuple(entry for entry in unfinished if entry[0] not in touched)
                moved = replace(moved, missing=moved.missing + left)
            moved = replace(moved, conflicts=conflicts, origin=origin)
            if force or not moved.failed or not moved.done:
                return moved
            return self._take_back(moved, plans)

    def _plan_healed(
        self, direction: Direction, steps: Sequence[Checkpoint], *, force: bool
    ) -> list[tuple[TrackedTree, RestorePlan]]:
        try:
            return self._plan(direction, steps, force=force)
        except WorkspaceError:
            if self._heal():
                return self._plan(direction, steps, force=force)
            raise

    def _heal(self) -> bool:
        """Store damaged contents again that the workspace has as well. Return whether any is whole now."""
        damaged = set(self._store.damaged)
        if not damaged:
            return False
        for digest in damaged:
            self._store.forget(digest)
        for tree in self._trees:
            tree.scanner.close()
            tree.scan()
        self._store.damaged.clear()
        return any(digest in self._store for digest in damaged)

    def _take_back(self, moved: UndoResult, plans: Sequence[tuple[TrackedTree, RestorePlan]]) -> UndoResult:
        """Take back a move that has failed. Return what became of that."""
        try:
            back = self.revert(moved)
        except WorkspaceError:
            return moved  # what was done stays done, and what was not is named; it is completed later
        return replace(
            back,
            direction=moved.direction,
            steps=moved.steps,
            restored=(),
            removed=(),
            missing=moved.failed,
            failed=moved.failed,
            stuck=find_stuck(self._store, moved, plans),
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
                tree = self._trees.find(key)
                if tree is not None:
                    plans.append(
                        (
                            tree,
                            plan_restore(self._store, tree, [(tree.scan().root, root)], keeps_set_ids=True),
                        )
                    )
            direction: Direction = "redo" if moved.direction == "undo" else "undo"
            return self._carry_out(
                direction, moved.steps[::-1], plans, moved.token, force=True, must_succeed=True
            )

    def _plan(
        self,
        direction: Direction,
        steps: Sequence[Checkpoint],
        *,
        is_resumed: bool = False,
        force: bool = False,
    ) -> list[tuple[TrackedTree, RestorePlan]]:
        trees = self._trees
        return plan_trees(self._store, trees, direction, steps, is_resumed=is_resumed, force=force)

    def _carry_out(
        self,
        direction: Direction,
        steps: Sequence[Checkpoint],
        plans: Sequence[tuple[TrackedTree, RestorePlan]],
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

        Returns:
            The result; if not everything could be staged, and it need not go on all the same, one that is not
            done: then nothing was changed.

        Raises:
            WorkspaceError: If it cannot be recorded; nothing was changed then.
        """
        must_succeed = not force if must_succeed is None else must_succeed
        ids, token = [step.call_id for step in steps], token or uuid.uuid4().hex[:12]
        record = {"op": "move", "way": direction, "ids": ids, "token": token, "force": force}
        if must_succeed and force:
            record["must_succeed"] = True
        before = self._timeline.moving
        if not is_recorded:
            self._store.record(**record)
        try:
            self._store.sync()
        except WorkspaceError:
            if not is_recorded:
                self._withdraw(before, token, ())
            raise
        self._timeline.moving = record
        listed = PathList()
        moved = move_trees(self._store, plans, token, force=force, must_succeed=must_succeed, listed=listed)
        failed, is_done = moved.failed, moved.is_switched or force or is_recorded
        if not is_done:
            if not self._withdraw(before, token, moved.left):
                failed.append(("", UNCERTAIN))
        else:
            self._timeline.shift(direction, ids)
            moved.missing += moved.waiting
            if not (failed and must_succeed):
                # Disk full: what was done is done. The next call or move writes it before all else, or is
                # refused; the next process finds a move that was cut short, and nothing left of it to do.
                with suppress(WorkspaceError):
                    self._end_move(token, moved.left)
        try:
            self.snapshot()
        except WorkspaceError:
            self.latest = None  # the next call looks again, and is refused if that fails as well
        return UndoResult(
            direction=direction,
            steps=tuple(steps),
            restored=tuple(sorted_in_runs(moved.restored)),
            removed=tuple(sorted_in_runs(moved.removed)),
            missing=tuple(sorted_in_runs([*moved.missing, *failed])),
            others=tuple(sorted_in_runs(moved.others)),
            failed=tuple(sorted_in_runs(failed)),
            done=is_done,
            is_late=moved.is_late,
            token=token,
        )

    def _withdraw(self, before: Mapping[str, Any] | None, token: str, left: Sequence[str]) -> bool:
        """Give up a move that has changed nothing. Return False if that cannot be recorded.

        The record before all else then, so that nothing can be done on a history that is not certain.
        """
        self._timeline.moving = before
        if not left:
            with suppress(WorkspaceError):
                self._store.retract()
                return True
        record: dict[str, Any] = {"op": "stayed", "token": token}
        if left:
            record["left"] = self._timeline.left[token] = list(left)
        self._due.add(**record)
        try:
            self.sync()
        except WorkspaceError:
            return False
        return True

    def _end_move(self, token: str, left: Sequence[str] = ()) -> None:
        record: dict[str, Any] = {"op": "moved", "token": token}
        if left:
            record["left"] = self._timeline.left[token] = list(left)
        self._store.record(**record)
        self._store.sync()
        self._timeline.moving = None

    def _finish_move(self, moving: Mapping[str, Any], *, force: bool = False) -> Reasons:
        """Complete a move that failed half way, before anything else is done.

        Returns:
            With `force`, the paths at which it cannot be completed, and which stay as they are.

        Raises:
            WorkspaceError: If it still cannot be completed, or that cannot be recorded.
        """
        moved = self._complete_move(moving)
        failed = moved.failed
        if failed and not force:
            names = summarize_names([f"{path or 'the workspace'} ({why})" for path, why in failed])
            raise WorkspaceError(
                f"An earlier undo or redo failed half way, and can still not be completed at: {names}. "
                "Make it possible to change that, and try again; an undo or redo with force=True leaves it."
            )
        if self._timeline.moving is not None:
            self._end_move(moving["token"])
        if not failed:
            self.notes.append(describe_completed(moved))
        return failed

    # ---- recovery and limits

    def _recover(self) -> None:
        """Bring timeline, store and workspace in line, however the last process ended."""
        timeline = self._timeline
        self.notes += drop_lost(timeline, self._store)
        # Crash during an undo or redo: complete it before anything else looks at the workspace.
        if timeline.moving is not None:
            moved = self._complete_move(timeline.moving)
            self.notes.append(describe_completed(moved))
        # Crash during a call: whatever it has done by now is its result.
        for call_id in list(timeline.running):
            self.notes.append(describe_ended(self.end(call_id)))
        self._sweep_left()
        self._rewrite()

    def _rewrite(self) -> None:
        self._store.rewrite(self._timeline.records())
        self._due.clear()  # the timeline says the same

    def _complete_move(self, record: Mapping[str, Any]) -> UndoResult:
        """Complete an undo or redo that was cut short. Paths that were changed since are left alone."""
        direction: Direction = "undo" if record["way"] == "undo" else "redo"
        known = {step.call_id: step for step in [*self._timeline.done, *self._timeline.undone]}
        steps = [known[call_id] for call_id in record["ids"] if call_id in known]
        for tree, plan in self._plan(direction, steps):
            folders = {(), *(path[:-1] for path in plan.touched)}
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
                self._trees.keep_only({key for step in self._timeline.all_steps() for key in step.before})
                roots = {root for step in self._timeline.all_steps() for root in step.roots}
                roots |= {tree.root for tree in self._trees if tree.root}
                roots |= self._pinned.keys()
                self._store.keep_only(reachable_digests(self._store, roots))
                is_full = self._store.size > self.kept_bytes or self._store.count > self._kept_contents
                if not is_full or not (done or self._pinned):
                    break
                if self._pinned:
                    self._pinned.clear()
                else:
                    del done[: len(done) // 4 + 1]
            self._timeline.dropped += count - len(done)
            self._rewrite()
            self.has_excess = False
