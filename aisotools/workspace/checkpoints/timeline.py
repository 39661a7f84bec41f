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
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.authorship import NO_EVIDENCE, Author, Evidence
from aisotools.workspace.checkpoints.moves import (
    UndoResult,
    changes_by_author,
    judge_changes,
    list_changed,
    list_unredone,
    list_unrestored,
)
from aisotools.workspace.checkpoints.recovery import (
    describe_completed,
    describe_ended,
    drop_lost,
    remove_partial,
)
from aisotools.workspace.checkpoints.scan import ProgressCallback, ScanLimits, Snapshot, TooSlow
from aisotools.workspace.checkpoints.steps import Checkpoint, Direction, Timeline, find_overlapping
from aisotools.workspace.checkpoints.store import RecordQueue, Store
from aisotools.workspace.checkpoints.transactions import Mover
from aisotools.workspace.checkpoints.tree import reachable_digests
from aisotools.workspace.checkpoints.trees import WORKSPACE_KEY, TrackedTrees
from aisotools.workspace.root_mode import watch_mode

KEPT_STEPS = 100
"""Steps that can be undone; older ones are dropped."""

KEPT_BYTES = 1 << 30
"""Size of the contents of all steps; above it the oldest steps are dropped."""

KEPT_CONTENTS = 300_000
"""Number of these contents, which may be as small as a byte; above it the oldest steps are dropped."""

_STEP_BYTES = 2_500  # memory for a step with its digests and names, and for its tree's path
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
            self._mover = Mover(
                self._store,
                self._trees,
                self._timeline,
                self._due,
                rescan=self._rescan,
                note=self.notes.append,
            )
            if records or self._store.damage or self._store.is_journal_lost:
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
    def superseded_by(self) -> str:
        """The call after which what was undone last could not be redone any more; empty for none known."""
        return self._timeline.superseded_by

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
            notes = tuple(self.notes)
            self.notes.clear()
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
        if self._due or self._timeline.unswept:
            if not may_wait:
                raise TooSlow
            self._due.write()
            self._mover.sweep_staging()

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
                self._mover.finish(self._timeline.moving)
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
                began=self._timeline.next_number(),
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
        find_evidence: Callable[[], Evidence] = lambda: NO_EVIDENCE,
    ) -> Checkpoint:
        """End a step after its call has run.

        `find_evidence` is called when the workspace was looked at: who may have written until then?
        If `has_excess` afterwards, call `drop_old`, which may take long. If it may not wait and `is_due`
        afterwards, call `sync` before the call is answered.

        Raises:
            WorkspaceError: If the state cannot be stored. The step is then part of the timeline with an
                unknown end; or, if it is only its record that cannot be written, no other step can begin
                before that is.
            TooSlow: As `Scanner.scan` does. The step is still running then.
        """
        with self._lock:
            step = replace(self._timeline.running[call_id], ended=self._timeline.next_number())
            try:
                after = {}
                for key in step.before:
                    tree = self._trees.find(key)
                    snapshot = None if tree is None else tree.scan(progress, max_work, may_wait=may_wait)
                    after[key] = "" if snapshot is None else snapshot.root  # empty: it is tracked no more
                    if key == WORKSPACE_KEY:
                        self.latest = snapshot
                        if step.before[key] and snapshot is not None and not snapshot.root:
                            step = replace(step, unkept=snapshot.uncovered[0][1])
                step, tree = replace(step, after=after), self._trees.workspace
                judged = judge_changes(self._store, tree, step, find_evidence())
                step = replace(step, authorship=judged)
            except TooSlow:
                raise
            except BaseException as error:
                # State folder full, for instance. The state before the call is kept, the one after it is not.
                step = replace(step, after={}, unkept=str(error).rstrip(".") or type(error).__name__)
                self.latest = None  # it is what was there before
                self._timeline.end(step)
                self._due.add(**step.end_record())
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

    def withdraw(self, call_id: str) -> None:
        """Forget a step whose call did not run after all, if it was begun. Its record may have to wait."""
        with self._lock:
            if self._timeline.running.pop(call_id, None) is None:
                return
            self._due.add(op="withdrawn", id=call_id)
            with suppress(WorkspaceError):  # no room: it is written before the next step begins, or by `sync`
                self._due.write()

    def changes_by_author(self, step: Checkpoint) -> dict[Author, list[str]]:
        """Return the paths in the workspace that a step has changed, by author; none of very many."""
        return changes_by_author(self._store, self._trees.workspace, step)

    def list_overlapping(self, step: Checkpoint) -> list[str]:
        """Return the calls that may have changed a file while a step ran, each by its name and id."""
        found = find_overlapping(step, self._timeline.all_steps())
        return [f"{one.name} ({one.call_id})" for one in found if one.changed or not one.ended]

    def list_changes(self, step: Checkpoint) -> list[str]:
        """Return the paths that a step has changed, sorted; those of very many may be shortened."""
        return list_changed(self._store, self._trees, step)

    def list_unrestored(self, step: Checkpoint) -> list[str]:
        """Return what undo of a step will not bring back, each with what of it; see `list_partial`."""
        return list_unrestored(self._store, self._trees, step)

    def list_unredone(self, step: Checkpoint) -> list[str]:
        """Return what redo of a step will not bring back once it is undone, each with why."""
        return list_unredone(self._store, self._trees, step)

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

    def move(
        self,
        direction: Direction,
        steps: Sequence[Checkpoint],
        *,
        force: bool = False,
        keeps_replaced: bool = False,
    ) -> UndoResult:
        """Undo or redo steps.

        Args:
            direction: Whether to undo or to redo.
            steps: Last steps of `steps` or `undone`, in the order in which they are to be taken.
            force: Replace what somebody else changed since, remove paths whose content is not stored, and do
                what can be done if a path cannot be changed.
            keeps_replaced: Keep what is replaced and not stored until `discard_replaced`, or until the next
                step begins, so that `revert` brings that back as well. Not with `force`.

        Returns:
            The result. With conflicts, unless forced, nothing was changed. If a path cannot be changed, the
            move is taken back, unless forced; what then is not as before is `stuck`, and no call may change
            anything before that is mended, by the next move or the next process.

        Raises:
            UsageError: If a step is running.
            WorkspaceError: If the move cannot be recorded, or one before could not be completed, or a state
                after a step is needed that is not kept; nothing was changed then. An undo with `force` does
                without such a state: it takes all that has changed since for a change of the step.
        """
        with self._lock:
            self._settle(may_wait=True)
            return self._mover.move(direction, steps, force=force, keeps_replaced=keeps_replaced)

    def discard_replaced(self) -> None:
        """Discard what a move has kept that it has replaced: it will not be reverted."""
        with self._lock:
            if self._timeline.unswept:
                with suppress(WorkspaceError):  # the next step does it before it begins
                    self._mover.sweep_staging()
                self._rescan()

    def revert(self, moved: UndoResult) -> UndoResult:
        """Take a move back that was the last thing to happen: every path that it changed is as before it.

        What a forced move removed although it was not stored is listed as missing. If a path cannot be
        changed, no call may change anything before that is mended, by the next move or the next process.

        Raises:
            WorkspaceError: If it cannot be recorded, or a folder not be looked at; nothing was changed then.
        """
        with self._lock:
            return self._mover.revert(moved)

    def _rescan(self) -> None:
        try:
            self.snapshot()
        except WorkspaceError:
            self.latest = None  # the next call looks again, and is refused if that fails as well

    # ---- recovery and limits

    def _recover(self) -> None:
        """Bring timeline, store and workspace in line, however the last process ended."""
        timeline = self._timeline
        self.notes += drop_lost(timeline, self._store)
        # Crash during an undo or redo: complete it before anything else looks at the workspace.
        if timeline.moving is not None:
            moved = self._mover.complete(timeline.moving)
            is_unfinished = timeline.moving is not None
            self.notes.append(describe_completed(replace(moved, is_unfinished=is_unfinished)))
        # Crash during a call: whatever it has done by now is its result, but for files that it had half
        # written beside their places.
        for step in timeline.running.values():
            with suppress(WorkspaceError):  # what is there cannot be read: the end of the step says so
                self.notes += remove_partial(self._store, self._trees.workspace, step)
        for call_id in list(timeline.running):
            self.notes.append(describe_ended(self.end(call_id)))
        self._mover.sweep_staging()
        self._rewrite()

    def _rewrite(self) -> None:
        self._store.rewrite(self._timeline.records())
        self._due.clear()  # the timeline says the same

    def drop_old(self) -> None:
        """Drop the oldest steps above the limits, and the contents that only they needed.

        It reads every listing of the steps that stay, and takes a tenth of a second for 1,500 files.

        Raises:
            WorkspaceError: If the system refuses to delete or to write something.
        """
        with self._lock:
            done = self._timeline.done
            count = len(done)
            del done[: max(len(done) - KEPT_STEPS, 0)]
            while True:
                self._trees.keep_only({key for step in self._timeline.all_steps() for key in step.before})
                roots = {root for step in self._timeline.all_steps() for root in step.roots}
                roots |= {tree.root for tree in self._trees if tree.root}
                roots |= set((self._timeline.moving or {}).get("found", {}).values()) - {""}
                roots |= self._pinned.keys()
                try:
                    self._store.keep_only(reachable_digests(self._store, roots))
                except OSError as error:
                    place = f"What no step needs any more cannot be deleted in {str(self._store.folder)!r}"
                    raise WorkspaceError(f"{place}: {error.strerror}. Make that folder writable.") from error
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
