"""An undo or redo as a transaction: recorded, staged, switched; if it fails, taken back or completed.

Threat
    The disk is full, a path cannot be changed, a content is damaged, or the host dies half way.
Mechanism
    The move is recorded before anything is touched, and then everything is staged. What cannot be staged is
    given up: nothing has changed. What fails while it is switched is taken back, by a move of its own, which
    finds what was replaced and is not stored beside the files. Where even that fails, or the host died, the
    record stays, and `finish` or `complete` does the rest: what can be completed is, and what cannot is taken
    back if all that it has changed can be brought back.
Race window
    Somebody may save a file while a move is made. It is taken back, sparing that file, and planned again,
    which finds a conflict; see `aisotools.workspace.checkpoints.switching`.
When it fails
    A move that can be neither taken back nor completed keeps every call from changing anything.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from typing import Any

from aisotools.core.concurrency import sorted_in_runs
from aisotools.core.exceptions import UsageError, WorkspaceError, as_clause
from aisotools.workspace.checkpoints.moves import (
    PathList,
    UndoResult,
    find_stuck,
    kept_of,
    move_trees,
    plan_trees,
    refuse_unkept,
)
from aisotools.workspace.checkpoints.plan import RAN_BESIDE, Reasons, RestorePlan, plan_restore
from aisotools.workspace.checkpoints.recovery import UNCERTAIN, describe_completed, name_reasons
from aisotools.workspace.checkpoints.removal import sweep
from aisotools.workspace.checkpoints.restore import lock_again
from aisotools.workspace.checkpoints.staging import switch_name, temporary_prefix
from aisotools.workspace.checkpoints.steps import Checkpoint, Direction, Timeline, group_overlapping
from aisotools.workspace.checkpoints.store import RecordQueue, Store
from aisotools.workspace.checkpoints.switching import put_back_displaced
from aisotools.workspace.checkpoints.tree import TreePath, TreeReader, is_whole
from aisotools.workspace.checkpoints.trees import TrackedTree, TrackedTrees
from aisotools.workspace.dirfd import file_time

_BACK: Mapping[Direction, Direction] = {"undo": "redo", "redo": "undo"}
_MOST_TICK_S = 0.02  # twice the longest tick of the clock by which files are stamped
_LOOK_S = 0.0005


class Mover:
    """Undoes and redoes the steps of one timeline. Not thread-safe: its owner has a lock."""

    def __init__(
        self,
        store: Store,
        trees: TrackedTrees,
        timeline: Timeline,
        due: RecordQueue,
        *,
        rescan: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        """Move along a timeline.

        Args:
            store: Holds the contents and the journal.
            trees: What steps change.
            timeline: Steps that were done and undone; it is changed with each move.
            due: Records that must be written before all others.
            rescan: Called after a move, to look what is there now.
            note: Called with what was completed, in a sentence.
        """
        self._store, self._trees, self._timeline, self._due = store, trees, timeline, due
        self._rescan, self._note = rescan, note
        self._restamped = timeline.restamped
        self._recorded = frozenset(_pairs(self._restamped))  # those that the journal has

    def move(
        self,
        direction: Direction,
        steps: Sequence[Checkpoint],
        *,
        force: bool = False,
        keeps_replaced: bool = False,
    ) -> UndoResult:
        """Undo or redo steps; see `Checkpoints.move`."""
        moving = self._timeline.moving
        unfinished = () if moving is None else self.finish(moving, force=force)
        if self._timeline.running:
            names = ", ".join(step.name for step in self._timeline.running.values())
            raise UsageError(f"{names} is running. Wait for it, or interrupt it, then {direction}.")
        if direction == "redo" or not force:
            refuse_unkept(direction, steps)
        for attempts_left in (2, 1, 0):
            plans = self._plan_healed(direction, steps, force=force)
            conflicts = tuple(conflict for _, plan in plans for conflict in plan.conflicts)
            if conflicts and not force:
                is_partial = any(why.endswith(RAN_BESIDE) for _, why in conflicts)
                return UndoResult(
                    direction=direction,
                    steps=tuple(steps),
                    conflicts=conflicts,
                    together=self._find_together(direction, steps) if is_partial else (),
                    done=False,
                )
            if direction == "redo" and not force and (lost := _list_unkept(plans)):
                # What a call has left is not kept: without it this would lead to another state than that.
                return UndoResult(
                    direction=direction, steps=tuple(steps), missing=lost, is_unkept=True, done=False
                )
            # The plan has scanned every tree.
            origin = {tree.key: tree.root for tree, _ in plans}
            found = origin if force and conflicts else {}
            moved = self._carry_out(
                direction, steps, plans, force=force, found=found, keeps_replaced=keeps_replaced
            )
            if moved.changed and moved.done and not force:
                moved = self._take_back(replace(moved, origin=origin), plans)
            if not (attempts_left and (moved.is_late or moved.changed) and not (moved.done or moved.stuck)):
                break
            _wait_for_tick()  # the next plan is late again where a stamp is finer than its clock
        if not (moved.done or moved.changed) and self._heal():
            plans = self._plan(direction, steps, force=force)
            moved = self._carry_out(
                direction, steps, plans, force=force, found=found, keeps_replaced=keeps_replaced
            )
        if unfinished:  # what this move changes as well, it names itself
            touched = {tree.display_path(path) for tree, plan in plans for path in plan.touched}
            untouched = tuple(entry for entry in unfinished if entry[0] not in touched)
            moved = replace(moved, missing=moved.missing + untouched)
        if moved.changed and not (moved.done or moved.stuck):
            conflicts = moved.changed
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
        # A disk may give back the second time what it did not the first time, so nothing is deleted: whatever
        # is not whole is replaced when the same is stored.
        if not all(map(self._store.is_intact, damaged)):
            for tree in self._trees:
                tree.scanner.close()
                tree.scan()
        self._store.damaged.clear()
        return any(map(self._store.is_intact, damaged))

    def _take_back(self, moved: UndoResult, plans: Sequence[tuple[TrackedTree, RestorePlan]]) -> UndoResult:
        """Take back a move that has failed. Return what became of that."""
        try:
            back = self.revert(moved, needs_all=True)
        except WorkspaceError as error:
            if not moved.changed:
                return moved  # what was done stays done, and what was not is named; it is completed later
            # It was stopped at what somebody else has changed, and what comes after that is not named.
            why = f"not all of it was done, and what was done could not be taken back: {as_clause(error)}"
            return replace(moved, missing=tuple(dict.fromkeys([*moved.missing, ("", why)])))
        return replace(
            back,
            direction=moved.direction,
            steps=moved.steps,
            restored=(),
            removed=(),
            missing=tuple(dict.fromkeys([*moved.failed, *moved.changed])),
            failed=moved.failed,
            changed=moved.changed,
            stuck=find_stuck(
                self._store,
                moved,
                plans,
                [path for path, _ in [*back.others, *back.changed]],
                self._restamped,
            ),
            done=False,
            is_unfinished=self._timeline.moving is not None,
        )

    def revert(self, moved: UndoResult, *, needs_all: bool = False) -> UndoResult:
        """Take back a move that was the last thing to happen; see `Checkpoints.revert`.

        With `needs_all`, it is not over before nothing is missing.
        """
        plans = []
        for key, root in moved.origin.items():
            tree = self._trees.find(key)
            if tree is not None:
                placed = moved.placed.get(key, {})
                with kept_of(tree, moved.token) as is_kept:
                    plan = plan_restore(
                        self._store,
                        tree,
                        [(tree.scan().root, root)],
                        placed=placed,
                        restamped=self._restamped,
                        is_kept=is_kept,
                    )
                plans.append((tree, plan))
        back = self._carry_back(moved, plans, needs_all=needs_all)
        # What somebody else has changed beside that is of no interest here.
        ours = {tree.display_path(path) for tree, _ in plans for path in moved.placed.get(tree.key, ())}
        spared = tuple(entry for entry in back.others if entry[0] in ours)
        return replace(back, missing=(*back.missing, *spared))

    def _carry_back(
        self,
        moved: UndoResult,
        plans: Sequence[tuple[TrackedTree, RestorePlan]],
        *,
        unswept: Sequence[str] = (),
        needs_all: bool,
    ) -> UndoResult:
        """Carry out the plans that take back a move; see `_carry_out`.

        Raises:
            WorkspaceError: If something could not be looked at, or this cannot be recorded; nothing was
                changed then.
        """
        for tree, plan in plans:
            if plan.hidden:
                # What the move has put there would stay, and nobody would say so.
                path, why = plan.hidden[0]
                raise WorkspaceError(f"{tree.display_path(path)!r} cannot be taken back: {why}. Try again.")
        return self._carry_out(
            _BACK[moved.direction],
            moved.steps[::-1],
            plans,
            moved.token,
            force=True,
            must_succeed=True,
            unswept=unswept,
            needs_all=needs_all,
        )

    def _plan(
        self,
        direction: Direction,
        steps: Sequence[Checkpoint],
        *,
        is_resumed: bool = False,
        force: bool = False,
        found: Mapping[str, str] | None = None,
        token: str = "",
    ) -> list[tuple[TrackedTree, RestorePlan]]:
        return plan_trees(
            self._store,
            self._trees,
            direction,
            steps,
            is_resumed=is_resumed,
            force=force,
            found=found,
            restamped=self._restamped,
            token=token,
            rest=() if is_resumed else self._find_rest(direction, steps),
        )

    def _find_rest(self, direction: Direction, steps: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Return the other steps that could be taken in a direction."""
        ids = {step.call_id for step in steps}
        stack = self._timeline.done if direction == "undo" else self._timeline.undone
        return [step for step in stack if step.call_id not in ids]

    def _find_together(self, direction: Direction, steps: Sequence[Checkpoint]) -> tuple[str, ...]:
        """Return the calls that overlap with some steps, directly or through others, and these."""
        ids = {step.call_id for step in steps}
        groups = group_overlapping([*steps, *self._find_rest(direction, steps)])
        return tuple(one.call_id for group in groups for one in group if any(s.call_id in ids for s in group))

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
        unswept: Sequence[str] = (),
        found: Mapping[str, str] | None = None,
        keeps_replaced: bool = False,
        needs_all: bool = False,
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
            unswept: Keys of the trees in which something may be left of it, for `sweep_staging`.
            found: Digests of the trees before it, by `TrackedTree.key`, if it replaces what somebody else has
                changed: whoever completes it knows that by them, and the redo of an undo leads to them.
            keeps_replaced: See `move_trees`.
            needs_all: Whether what the plans cannot bring back counts as failed. It is recorded.

        Returns:
            The result; if not everything could be staged, and it need not go on all the same, one that is not
            done: then nothing was changed.

        Raises:
            WorkspaceError: If it cannot be recorded; nothing was changed then.
        """
        must_succeed = not force if must_succeed is None else must_succeed
        ids, token = [step.call_id for step in steps], token or uuid.uuid4().hex[:12]
        record: dict[str, Any] = {"op": "move", "way": direction, "ids": ids, "token": token, "force": force}
        if must_succeed and force:
            record["must_succeed"] = True
        if needs_all:
            record["needs_all"] = True
        if found:
            record["found"] = dict(found)
        before = self._timeline.moving
        if not is_recorded:
            if found:
                self._store.sync()  # Power loss: what somebody else has changed is written nowhere else
            self._store.record(**record)
        try:
            self._store.sync()
        except WorkspaceError:
            if not is_recorded:
                self._withdraw(before, token, ())
            raise
        self._timeline.moving = record
        listed = PathList()
        moved = move_trees(
            self._store,
            plans,
            token,
            force=force,
            must_succeed=must_succeed,
            listed=listed,
            is_resumed=is_recorded,
            keeps_replaced=keeps_replaced,
            needs_all=needs_all,
        )
        moved.unswept += [key for key in unswept if key not in moved.unswept]
        failed, is_done = moved.failed, moved.is_switched or force or is_recorded
        if not is_done:
            if not self._withdraw(before, token, moved.unswept):
                failed.append(("", UNCERTAIN))
        else:
            # What the next process has to complete stays as it was recorded: a step that is shifted forgets
            # where its redo leads.
            if not (is_recorded and must_succeed and failed):
                self._timeline.shift(direction, ids)
            result = self._note_returns(ids, found) if found and direction == "undo" else {}
            moved.missing += moved.waiting
            # What somebody else has changed is left to them, and nothing to be completed, unless all of this
            # is taken back for that.
            is_whole = must_succeed and not (force or is_recorded)
            if not (must_succeed and failed) and not (is_whole and moved.changed):
                # Disk full: what was done is done. The next call or move writes it before all else, or is
                # refused; the next process finds a move that was cut short, and nothing left of it to do.
                with suppress(WorkspaceError):
                    self._end_move(token, moved.unswept, result)
        self._rescan()
        return UndoResult(
            direction=direction,
            steps=tuple(steps),
            restored=tuple(sorted_in_runs(moved.restored)),
            removed=tuple(sorted_in_runs(moved.removed)),
            missing=tuple(sorted_in_runs([*moved.missing, *failed, *moved.changed])),
            others=tuple(sorted_in_runs(moved.others)),
            failed=tuple(sorted_in_runs(failed)),
            changed=tuple(sorted_in_runs(moved.changed)),
            placed={tree.key: plan.placed for tree, plan in plans},
            done=is_done,
            is_late=moved.is_late,
            token=token,
            keeps_replaced=keeps_replaced and bool(moved.unswept),
        )

    def _withdraw(self, before: Mapping[str, Any] | None, token: str, unswept: Sequence[str]) -> bool:
        """Give up a move that has changed nothing. Return False if that cannot be recorded.

        The record before all else then, so that nothing can be done on a history that is not certain.

        Args:
            before: Record of the move that was not completed before this one.
            token: That of the record.
            unswept: As for `_carry_out`.
        """
        self._timeline.moving = before
        if not unswept:
            with suppress(WorkspaceError):
                self._store.retract()
                return True
        record: dict[str, Any] = {"op": "stayed", "token": token}
        if unswept:
            record["left"] = self._timeline.unswept[token] = list(unswept)
        self._due.add(**record)
        try:
            self._due.write()
            self._store.sync()
        except WorkspaceError:
            return False
        return True

    def _note_returns(self, ids: Sequence[str], found: Mapping[str, str]) -> dict[str, str]:
        """Note where the redo of a forced undo leads. Return the digests of the trees after it, by key.

        Args:
            ids: The steps, in the order in which the undo has taken them.
            found: Digests of the trees before it, by key.
        """
        result: dict[str, str] = {}
        for key in found:
            tree = self._trees.find(key)
            if tree is not None:
                with suppress(WorkspaceError):  # without it a redo does what the calls have done
                    result[key] = tree.scan().root
        self._timeline.note_returns(ids, found, result)
        return result

    def _end_move(
        self, token: str, unswept: Sequence[str] = (), result: Mapping[str, str] | None = None
    ) -> None:
        record: dict[str, Any] = {"op": "moved", "token": token}
        if result:
            self._store.sync()  # Power loss: what the record names is on the disk before it
            record["result"] = dict(result)
        if unswept:
            record["left"] = self._timeline.unswept[token] = list(unswept)
        pairs = frozenset(_pairs(self._restamped) if self._restamped else ())
        if pairs > self._recorded:
            record["restamped"] = sorted(pairs - self._recorded)
        self._store.record(**record)
        self._recorded = pairs
        self._store.sync()
        self._timeline.moving = None

    def finish(self, moving: Mapping[str, Any], *, force: bool = False) -> Reasons:
        """Complete a move that failed half way, before anything else is done.

        Returns:
            With `force`, the paths at which it cannot be completed, and which stay as they are.

        Raises:
            WorkspaceError: If it still cannot be completed, or that cannot be recorded.
        """
        moved = self.complete(moving, force=force)
        failed = moved.failed
        if failed and not force:
            raise WorkspaceError(
                f"An earlier undo or redo failed half way, and can still not be completed at: "
                f"{name_reasons(failed)}. "
                "Make it possible to change that, and try again; an undo or redo with force=True leaves it."
            )
        unfinished = self._timeline.moving
        if unfinished is not None:
            # Without force, they are shifted when it can be completed.
            self._timeline.shift(unfinished["way"], unfinished["ids"])
            # What it has kept beside the files is put back by nobody any more.
            self._end_move(moving["token"], [tree.key for tree in self._trees] if failed else ())
            if failed:
                self.sweep_staging()
        if not failed:
            self._note(describe_completed(moved))
        return failed

    def complete(self, record: Mapping[str, Any], *, force: bool = False) -> UndoResult:
        """Complete an undo or redo that was cut short. Paths that were changed since are left alone.

        What a forced one had found it replaces all the same: else neither state would be there afterwards.
        With `force`, a folder to which its mode cannot be given again keeps nothing from being completed.

        Raises:
            WorkspaceError: If what was taken out of its place cannot be looked at. Nothing is changed then.
        """
        direction: Direction = "undo" if record["way"] == "undo" else "redo"
        is_forced = force or bool(record.get("force"))
        known = {step.call_id: step for step in [*self._timeline.done, *self._timeline.undone]}
        steps = [known[call_id] for call_id in record["ids"] if call_id in known]
        # Deleted or damaged: nobody can tell then what was changed since, and all of that is left alone.
        found = {key: root for key, root in record.get("found", {}).items() if is_whole(self._store, root)}
        unswept, unlocked = [], []
        for tree, plan in self._plan(direction, steps, force=bool(found)):
            folders = {(), *(path[:-1] for path in plan.touched)}
            with tree.opened() as root:
                # Crash: a person's save may have been taken out of its place, and not put back yet.
                try:
                    put_back_displaced(root, switch_name(record["token"]), plan.wanted)
                except OSError as error:
                    # It may be that save which cannot be looked at: nothing is swept until it can.
                    raise WorkspaceError(
                        "An earlier undo or redo that was cut short cannot be completed: what it had taken "
                        f"out of its place cannot be looked at ({error.strerror}). Try again when it can."
                    ) from error
                if not sweep(root, folders, record["token"], spares_replaced=True):
                    unswept.append(tree.key)
                failed = lock_again(self._store, root, plan.end, folders)
            unlocked += [(tree.display_path(path), why) for path, why in failed]
        if unlocked and not force:  # nothing else would look at its mode again
            return UndoResult(direction=direction, steps=tuple(steps), failed=tuple(unlocked), done=False)
        # Crash: what the other process had changed last, and what was put back, is as new as what somebody
        # else is changing just now.
        _wait_for_tick()
        # Plan again: the partial files that were just removed would count as changes by somebody else.
        # What a move has replaced is put back only by the one that takes it back.
        is_back = bool(record.get("must_succeed"))
        token = record["token"] if is_back else ""
        plans = self._plan(direction, steps, is_resumed=True, force=bool(found), found=found, token=token)
        if is_back:
            plans = [(tree, _without_unchanged(tree, plan)) for tree, plan in plans]
        moved = self._carry_out(
            direction,
            steps,
            [(tree, plan.without_conflicts()) for tree, plan in plans],
            record["token"],
            force=bool(record.get("force")),
            must_succeed=record.get("must_succeed"),
            is_recorded=True,
            unswept=unswept,
            found=found,
            needs_all=bool(record.get("needs_all")),
        )
        spared = [conflict for _, plan in plans for conflict in plan.conflicts]
        conflicts = tuple(sorted_in_runs([*spared, *moved.changed]))
        moved = replace(moved, conflicts=conflicts, failed=(*moved.failed, *unlocked))
        if is_back and not moved.failed:
            back, order = _BACK[direction], moved.steps[::-1]
            return replace(moved, direction=back, steps=order, done=False, missing=(), stuck=moved.missing)
        return self._give_up(moved) if moved.failed and not is_forced else moved

    def _give_up(self, moved: UndoResult) -> UndoResult:
        """Take back what a move that was cut short, and cannot be completed, has changed before and now.

        Return it as one that is not done, or unchanged if it cannot be taken back either.
        """
        steps = moved.steps[::-1]
        if any(step.returns for step in steps):
            return moved  # what the redo of a forced undo had found is in no tree
        try:
            for tree, plan in self._plan(_BACK[moved.direction], steps, is_resumed=True):
                with tree.opened() as root:
                    if lock_again(self._store, root, plan.end, {path[:-1] for path in plan.touched}):
                        return moved  # nothing else would look at its mode again
            found = self._plan(_BACK[moved.direction], steps, is_resumed=True, token=moved.token)
            plans = [(tree, _without_unchanged(tree, plan)) for tree, plan in found]
            conflicts = [conflict for _, plan in plans for conflict in plan.conflicts]
            plans = [(tree, plan.without_conflicts()) for tree, plan in plans]
            if any(plan.missing for _, plan in plans):
                return moved  # Unlike that, it can be completed as soon as the system allows it.
            unswept = [tree.key for tree, _ in plans]
            taken = self._carry_back(moved, plans, unswept=unswept, needs_all=True)
        except WorkspaceError:
            return moved
        conflicts = sorted({*moved.conflicts, *conflicts, *taken.changed})
        return replace(
            moved, done=False, missing=moved.failed, failed=taken.failed, conflicts=tuple(conflicts)
        )

    def sweep_staging(self) -> None:
        """Remove partial files that could not be removed when they should have been, as far as possible."""
        for token, keys in list(self._timeline.unswept.items()):
            is_gone = True
            for key in keys:
                tree = self._trees.find(key)
                if tree is not None:
                    now, prefix = tree.scan().root, temporary_prefix(token)
                    entries = TreeReader(self._store).entries(now) if now else ()
                    folders = {path[:-1] for path, _ in entries if path[-1].startswith(prefix)}
                    with tree.opened() as root:
                        is_gone = sweep(root, {(), *folders}, token) and is_gone
            if is_gone:
                del self._timeline.unswept[token]
                self._due.add(op="swept", token=token)
        self._due.write()


def _wait_for_tick() -> None:
    """Wait until whatever was changed by now looks older than what is changed next."""
    now_ns, ends_s = time.time_ns(), time.monotonic() + _MOST_TICK_S
    # Case: the clock was set back.
    while file_time() <= now_ns and time.monotonic() < ends_s:
        time.sleep(_LOOK_S)


def _without_unchanged(tree: TrackedTree, plan: RestorePlan) -> RestorePlan:
    """Return a plan that leaves out what cannot be looked at, but needs no look.

    That is what could not be read before one of the hops and can be now, and a folder that nobody may read
    and that is as the plan leads to, with all in it.
    """
    present, wanted = plan.present or {}, plan.wanted
    unreadable = {
        path for path, node in wanted.items() if node and node.is_unreadable and present.get(path) == node
    }

    def is_left(path: TreePath) -> bool:
        return any(path[:end] in unreadable for end in range(1, len(path) + 1))

    def needs_look(path: TreePath) -> bool:
        now = present.get(path)
        return not is_left(path) and (now is None or now.is_unreadable)

    names = {tree.display_path(path) for path in plan.contested if is_left(path)}
    return replace(
        plan,
        hidden=tuple((path, why) for path, why in plan.hidden if needs_look(path)),
        missing=tuple((path, why) for path, why in plan.missing if not is_left(path)),
        conflicts=tuple((name, why) for name, why in plan.conflicts if name not in names),
    )


def _pairs(restamped: Mapping[int, AbstractSet[int]]) -> Iterator[tuple[int, int]]:
    """Yield each inode with each of its change times."""
    return ((inode, time_ns) for inode, times in restamped.items() for time_ns in times)


def _list_unkept(plans: Sequence[tuple[TrackedTree, RestorePlan]]) -> Reasons:
    """Return what some plans cannot bring back, but for sockets and devices, which hold nothing to keep."""
    listed, lost = PathList(), []
    for tree, plan in plans:
        for path, why in plan.missing:
            node = plan.wanted.get(path)
            if node is None or node.kind != "other":
                lost.append((listed.show(tree, path), why))
    return tuple(lost)
