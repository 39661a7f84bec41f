"""The chain of what calls did to a workspace, and going back and forth in it.

Every call that may change files is a step between two trees. Undo brings back, path by path, what the undone
steps changed and nothing else: what somebody else changed elsewhere stays, and what somebody else changed in
the same place is a conflict. Each step and each way back is recorded before it is done; after a crash the
chain is opened again, a half-done undo is finished, and a step that was running ends with what is there.

The steps of a chain as values, and how they are written down and read again.
"""

from __future__ import annotations

import pathlib
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from aisotools.core.exceptions import UsageError
from aisotools.workspace.checkpoints.restore import Move, Reasons, TrackedTree, move_between, restore, sweep
from aisotools.workspace.checkpoints.scan import Progress, ScanLimits, Snapshot, TooSlow
from aisotools.workspace.checkpoints.store import Store, digests

Direction = Literal["undo", "redo"]
"""Back or forth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What one call did to files.

    Attributes:
        call_id: The call.
        name: Its tool.
        session: The session that made it.
        time_s: When it began.
        before: Digest of the tree before it, of each place it could change; the workspace is `""`.
        after: The same after it; empty while it runs.
        beyond: What it did that no undo takes back, in words.
    """

    call_id: str
    name: str
    session: str
    time_s: float
    before: Mapping[str, str]
    beyond: str = ""
    after: Mapping[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether it changed any file, as far as is known."""
        return self.before != self.after or not all(self.after.values())

    @property
    def roots(self) -> list[str]:
        """The trees it needs."""
        return [root for root in [*self.before.values(), *self.after.values()] if root]

    def hop(self, way: Direction, key: str) -> tuple[str, str]:
        """From which tree to which other it leads in one place; `""` for one that was not kept."""
        before, after = self.before[key], self.after.get(key, "")
        return (after, before) if way == "undo" else (before, after)

    def told(self) -> dict[str, Any]:
        """The record of its beginning."""
        return {
            "op": "begin",
            "id": self.call_id,
            "name": self.name,
            "session": self.session,
            "time_s": self.time_s,
            "before": dict(self.before),
            "beyond": self.beyond,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoResult:
    """What an undo or redo did.

    Attributes:
        way: Back or forth.
        steps: The steps it took, in the order it took them.
        restored: Paths that were made or replaced.
        removed: Paths that were removed.
        missing: What did not come back, each with the reason.
        conflicts: What somebody else changed since; unless forced, nothing was done then.
        done: Whether anything was done.
    """

    way: Direction
    steps: tuple[Checkpoint, ...] = ()
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    missing: Reasons = ()
    conflicts: Reasons = ()
    done: bool = True


@dataclass(slots=True)
class Timeline:
    """Where a chain stands.

    Attributes:
        done: What could be undone, the oldest first.
        undone: What could be redone, the next one last.
        running: Steps that have not ended, by call.
        moving: An undo or redo that was begun and not ended, as it was recorded.
    """

    done: list[Checkpoint] = field(default_factory=list)
    undone: list[Checkpoint] = field(default_factory=list)
    running: dict[str, Checkpoint] = field(default_factory=dict)
    moving: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, records: Sequence[Mapping[str, Any]]) -> Timeline:
        """The chain that these records tell of."""
        chain = cls()
        for record in records:
            chain.hear(record)
        return chain

    def hear(self, record: Mapping[str, Any]) -> None:
        """Take one record into account."""
        match record["op"]:
            case "begin":
                self.running[record["id"]] = Checkpoint(
                    call_id=record["id"],
                    name=record["name"],
                    session=record["session"],
                    time_s=record["time_s"],
                    before=record["before"],
                    beyond=record.get("beyond", ""),
                )
            case "end" if record["id"] in self.running:
                self.end(replace(self.running[record["id"]], after=record["after"]))
            case "move":
                self.moving = record
            case "moved" if self.moving is not None:
                self.shift(self.moving["way"], self.moving["ids"])
                self.moving = None

    def end(self, step: Checkpoint) -> None:
        """A step ended; one that changed something leaves nothing to redo."""
        self.running.pop(step.call_id, None)
        self.done.append(step)
        if step.changed:
            self.undone.clear()

    def shift(self, way: Direction, ids: Sequence[str]) -> None:
        """Steps were undone or redone, in this order."""
        source, target = (self.done, self.undone) if way == "undo" else (self.undone, self.done)
        for call_id in ids:
            step = next((one for one in reversed(source) if one.call_id == call_id), None)
            if step is not None:
                source.remove(step)
                target.append(step)

    def every(self) -> list[Checkpoint]:
        """All steps."""
        return [*self.done, *self.undone, *self.running.values()]

    def records(self) -> Iterator[dict[str, Any]]:
        """The shortest records that tell of this chain."""
        undone = self.undone[::-1]
        for step in [*self.done, *undone]:
            yield step.told()
            yield {"op": "end", "id": step.call_id, "after": dict(step.after)}
        if undone:
            ids = [step.call_id for step in self.undone]
            yield {"op": "move", "way": "undo", "ids": ids, "token": "kept"}
            yield {"op": "moved", "token": "kept"}
        for step in self.running.values():
            yield step.told()


KEPT_STEPS = 100
"""How many steps can be undone; older ones are forgotten."""

KEPT_BYTES = 1 << 30
"""How much the contents of all steps may take; beyond, the oldest steps are forgotten."""

_WORKSPACE = ""


class Checkpoints:
    """The chain of one workspace; all sessions of a process on that workspace share it. Thread-safe."""

    def __init__(
        self, workspace: pathlib.Path, folder: pathlib.Path, limits: ScanLimits | None = None
    ) -> None:
        """Open the chain of `workspace` that lies in `folder`, and finish what a crash left.

        Raises:
            WorkspaceError: If the folder cannot be used.
        """
        self._limits = limits or ScanLimits()
        self._store = Store(folder)
        self._lock = threading.RLock()
        self._workspace = TrackedTree(self._store, workspace, self._limits)
        self._areas = {_WORKSPACE: self._workspace}
        self._chain = Timeline()
        self.latest: Snapshot | None = None
        try:
            self._recover(self._store.records())
        except BaseException:
            self._store.close()
            raise

    def __repr__(self) -> str:
        return f"<Checkpoints of {self._workspace.path}: {len(self.steps)} steps, {len(self.undone)} undone>"

    @property
    def store(self) -> Store:
        """Where the contents are."""
        return self._store

    @property
    def steps(self) -> Sequence[Checkpoint]:
        """What could be undone, the oldest first."""
        return tuple(self._chain.done)

    @property
    def undone(self) -> Sequence[Checkpoint]:
        """What could be redone, the next one last."""
        return tuple(self._chain.undone)

    @property
    def entries(self) -> int:
        """How many files and folders the last walk met."""
        return self.latest.entries if self.latest is not None else 0

    def close(self) -> None:
        """Let go of the chain; again does nothing."""
        with self._lock:
            self._store.close()

    # ---- steps

    def look(self, progress: Progress | None = None) -> Snapshot:
        """The state of the workspace right now, kept."""
        with self._lock:
            self.latest = self._workspace.scan(progress)
            return self.latest

    def begin(
        self,
        call_id: str,
        name: str,
        session: str,
        *,
        outside: pathlib.Path | None = None,
        beyond: str = "",
        progress: Progress | None = None,
    ) -> Snapshot:
        """Take the checkpoint before a call.

        Args:
            call_id: The call.
            name: Its tool.
            session: Its session.
            outside: A path outside the workspace that it changes as well.
            beyond: What it will do that no undo takes back, in words.
            progress: Hears how far copying has got.

        Raises:
            WorkspaceError: If it cannot be kept; then the call must not run.
        """
        with self._lock:
            snapshot = self.look(progress)
            before = {_WORKSPACE: snapshot.root}
            if outside is not None and (area := self._outside(outside)) is not None:
                before[str(area.path / area.only)] = area.scan().root
            step = Checkpoint(
                call_id=call_id,
                name=name,
                session=session,
                time_s=time.time(),
                before=before,
                beyond=beyond,
            )
            self._store.record(**step.told())
            self._chain.running[call_id] = step
            return snapshot

    def end(self, call_id: str, progress: Progress | None = None) -> Checkpoint:
        """Take down what a call did.

        Raises:
            WorkspaceError: If it cannot be kept; undo then goes back over it only when forced.
        """
        with self._lock:
            step = self._chain.running[call_id]
            try:
                after = {key: self._areas[key].scan(progress).root for key in step.before}
                step = replace(step, after=after)
            except TooSlow:
                raise
            except BaseException:
                self._chain.end(step)
                raise
            self._chain.end(step)
            self._store.record(op="end", id=call_id, after=dict(step.after))
            if len(self._chain.done) > KEPT_STEPS + 20 or self._store.size > KEPT_BYTES:
                self._forget_old()
            return step

    def fits(self) -> bool:
        """Whether the workspace, of which nothing is kept yet, would be covered whole."""
        with self._lock:
            return self._workspace.fits()

    def covers(self, path: pathlib.Path) -> bool:
        """Whether a path outside the workspace could be covered."""
        with self._lock:
            return self._outside(path) is not None

    def _outside(self, path: pathlib.Path) -> TrackedTree | None:
        area = TrackedTree.around(
            self._store, path, self._limits, apart=(self._workspace.path, self._store.folder)
        )
        if area is None:
            return None
        return self._areas.setdefault(str(area.path / area.only), area)

    def _area(self, key: str) -> TrackedTree | None:
        return self._areas[key] if key in self._areas else self._outside(pathlib.Path(key))

    # ---- back and forth

    def move(self, way: Direction, steps: Sequence[Checkpoint], *, force: bool = False) -> UndoResult:
        """Undo or redo these steps, the next one first.

        Args:
            way: Back or forth.
            steps: The last ones of `steps` or `undone`, in the order in which they are to be taken.
            force: Whether to replace what somebody else changed since, and remove what was too large to keep.

        Returns:
            What was done; with conflicts, unless forced, nothing was.
        """
        with self._lock:
            if self._chain.running:
                names = ", ".join(step.name for step in self._chain.running.values())
                raise UsageError(f"{names} is running. Wait for it, or interrupt it, then {way}.")
            moves = self._moves(way, steps)
            conflicts = tuple(one for _, move in moves for one in move.conflicts)
            if conflicts and not force:
                return UndoResult(way=way, steps=tuple(steps), conflicts=conflicts, done=False)
            ids, token = [step.call_id for step in steps], uuid.uuid4().hex[:12]
            self._store.record(op="move", way=way, ids=ids, token=token, force=force)
            return replace(self._carry_out(way, steps, moves, token, force=force), conflicts=conflicts)

    def _moves(self, way: Direction, steps: Sequence[Checkpoint]) -> list[tuple[TrackedTree, Move]]:
        moves = []
        for key in dict.fromkeys(key for step in steps for key in step.before):
            area = self._area(key)
            if area is None:
                continue
            moves.append((area, move_between(self._store, area, _hops(way, steps, key))))
        return moves

    def _carry_out(
        self,
        way: Direction,
        steps: Sequence[Checkpoint],
        moves: Iterable[tuple[TrackedTree, Move]],
        token: str,
        *,
        force: bool,
    ) -> UndoResult:
        restored: list[str] = []
        removed: list[str] = []
        missing: list[tuple[str, str]] = []
        for area, move in moves:
            with area.opened() as root:
                gone = area.remove(root, move.left) if force else []
                done = restore(self._store, root, move.wanted if force else move.beside_left(), token)
            if not force:
                missing += [(area.told(path), f"left in place: {why}") for path, why in move.left]
            restored += map(area.told, done.restored)
            removed += map(area.told, [*gone, *done.removed])
            missing += [(area.told(path), why) for path, why in [*move.missing, *done.failed]]
        self._chain.shift(way, [step.call_id for step in steps])
        self._store.record(op="moved", token=token)
        self.look()
        return UndoResult(
            way=way,
            steps=tuple(steps),
            restored=tuple(sorted(restored)),
            removed=tuple(sorted(removed)),
            missing=tuple(sorted(missing)),
        )

    # ---- after a crash, and in the long run

    def _recover(self, records: Sequence[Mapping[str, Any]]) -> None:
        chain = self._chain = Timeline.read(records)
        sound = {step.call_id for step in chain.every() if all(root in self._store for root in step.roots)}
        broken = [number for number, step in enumerate(chain.done) if step.call_id not in sound]
        if broken:  # what is older could not be reached past it
            del chain.done[: broken[-1] + 1]
        chain.undone = [step for step in chain.undone if step.call_id in sound]
        chain.running = {call_id: step for call_id, step in chain.running.items() if call_id in sound}
        if chain.moving is not None:
            self._finish(chain.moving)
            chain.moving = None
        for call_id in list(chain.running):
            self.end(call_id)
        if records:
            self._store.rewrite(chain.records())

    def _finish(self, record: Mapping[str, Any]) -> None:
        """Carry through an undo or redo that was cut short; what was changed since then is left alone."""
        way: Direction = "undo" if record["way"] == "undo" else "redo"
        known = {step.call_id: step for step in [*self._chain.done, *self._chain.undone]}
        steps = [known[one] for one in record["ids"] if one in known]
        for area, move in self._moves(way, steps):
            with area.opened() as root:
                sweep(root, {path[:-1] for path in move.touched}, record["token"])
        moves = [(area, move.without_conflicts()) for area, move in self._moves(way, steps)]
        self._carry_out(way, steps, moves, record["token"], force=bool(record.get("force")))

    def _forget_old(self) -> None:
        done = self._chain.done
        del done[: max(len(done) - KEPT_STEPS, 0)]
        while True:
            roots = {root for step in self._chain.every() for root in step.roots}
            roots |= {area.root for area in self._areas.values() if area.root}
            self._store.keep_only(digests(self._store, roots))
            if self._store.size <= KEPT_BYTES or not done:
                break
            del done[: len(done) // 4 + 1]
        self._store.rewrite(self._chain.records())


def _hops(way: Direction, steps: Iterable[Checkpoint], key: str) -> list[tuple[str, str]]:
    return [step.hop(way, key) for step in steps if key in step.before]
