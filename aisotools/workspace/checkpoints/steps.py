"""Steps of what calls did to a workspace, and the undo and redo stacks as the journal's records tell of them.

Nothing here looks at the workspace or at the store: `timeline` records and carries out what these describe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from aisotools.workspace.checkpoints.authorship import UNKNOWN, Authorship

Direction = Literal["undo", "redo"]
"""Direction of a move through the timeline."""

_MOST_RESTAMPED = 10_000  # change times that a new journal takes over; a move may be a conflict without one


@dataclass(frozen=True, slots=True)
class Return:
    """Where a redo leads after a forced undo, which has taken back what somebody else had changed.

    Attributes:
        end: Digest of the tree that the next of the undone steps began with; for the last one, `before`. The
            redo leads to it at the paths that the undo has changed, and leaves all others.
        before: Digest of the tree before the undo.
        after: Digest of the tree after it.
    """

    end: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One step: the trees before and after a call.

    Attributes:
        call_id: The call.
        name: Its tool.
        session: The session that made it.
        time_s: Start, in seconds since the epoch.
        before: Digest of each tree that it could change, by `TrackedTree.key`; the workspace is `""`.
        beyond: Description of effects that no undo reverts.
        after: Digests afterwards; empty while the call runs.
        changes_variables: Whether it may have changed variables of the sandbox.
        inside: The outermost call that it was made in; empty for a call of its own. Together they are one
            step.
        authorship: Whose changes of the workspace they are.
        began: Number of its begin among all begins and ends of the timeline; 0 if an earlier version has
            recorded it.
        ended: The same of its end; 0 while the call runs.
        unkept: Why the state of the workspace after it is not kept, in a clause; empty if it is.
        returns: Where its redo leads, by `TrackedTree.key`, if it was undone by force; else it leads to what
            the call has left.
    """

    call_id: str
    name: str
    session: str
    time_s: float
    before: Mapping[str, str]
    beyond: str = ""
    after: Mapping[str, str] = field(default_factory=dict)
    changes_variables: bool = False
    inside: str = ""
    authorship: Authorship = UNKNOWN
    began: int = 0
    ended: int = 0
    unkept: str = ""
    returns: Mapping[str, Return] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """True unless it is certain that no file was changed."""
        return self.before != self.after or not all(self.after.values())

    @property
    def roots(self) -> list[str]:
        """Digests of the trees that it needs."""
        returns = [root for one in self.returns.values() for root in (one.end, one.before, one.after)]
        return [root for root in [*self.before.values(), *self.after.values(), *returns] if root]

    def end_record(self) -> dict[str, Any]:
        """Return the journal record of its end."""
        record = {"op": "end", "id": self.call_id, "after": dict(self.after), **self.authorship.record()}
        if self.ended:
            record["at"] = self.ended
        if self.unkept:
            record["unkept"] = self.unkept
        if self.returns:
            record["returns"] = {key: [one.end, one.before, one.after] for key, one in self.returns.items()}
        return record

    def begin_record(self) -> dict[str, Any]:
        """Return the journal record of its begin."""
        record = {
            "op": "begin",
            "id": self.call_id,
            "name": self.name,
            "session": self.session,
            "time_s": self.time_s,
            "before": dict(self.before),
            "beyond": self.beyond,
        }
        if self.changes_variables:
            record["changes_variables"] = True
        if self.inside:
            record["inside"] = self.inside
        if self.began:
            record["at"] = self.began
        return record


def group_overlapping(steps: Sequence[Checkpoint]) -> list[list[Checkpoint]]:
    """Return steps in groups: those of one overlap, directly or through others of it; those of two do not.

    Between the first begin and the last end of a group one of its calls was running at any time, so that
    these two trees tell all that has changed. Those between tell who has begun or ended when, and nothing of
    the state that an undo of them all leads to.

    Args:
        steps: The steps. Groups are in their order, and so are the steps of each.
    """
    groups: list[list[Checkpoint]] = []
    end = 0
    for step in sorted(steps, key=lambda step: step.began):
        if step.began < end and step.began:  # nothing is known of the overlaps of one without a number
            groups[-1].append(step)
        else:
            groups.append([step])
        end = max(end, step.ended) if step.began else 0
    places = {id(step): place for place, step in enumerate(steps)}
    for group in groups:
        group.sort(key=lambda step: places[id(step)])
    return sorted(groups, key=lambda group: places[id(group[0])])


def find_overlapping(step: Checkpoint, others: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Return those of other steps that ran while a step did, without those it is inside of or that are in it.

    Those that have not ended run still.
    """
    outermost = step.inside or step.call_id
    return [
        other
        for other in others
        if other.began
        and step.began
        and outermost not in (other.call_id, other.inside)
        and other.began < (step.ended or math.inf)
        and step.began < (other.ended or math.inf)
    ]


def change_of_group(group: Sequence[Checkpoint], direction: Direction, key: str) -> tuple[str, str]:
    """Return the trees from and to which steps that overlap lead together, for one key.

    `""` stands for a tree that is not stored.
    """
    first = min(group, key=lambda step: step.began)
    last = max(group, key=lambda step: step.ended)
    before, after = first.before[key], last.after.get(key, "")
    return (after, before) if direction == "undo" else (before, after)


def returns_of(
    steps: Sequence[Checkpoint], before: Mapping[str, str], after: Mapping[str, str]
) -> dict[str, dict[str, Return]]:
    """Return where the redo of each of some steps leads, by call, then by `TrackedTree.key`.

    Steps that overlap are redone together: it is that of the last one to end.

    Args:
        steps: The steps, in the order in which a forced undo has taken them.
        before: Digests of the trees before that undo, by key.
        after: The same after it.
    """
    returns: dict[str, dict[str, Return]] = {}
    for key, root in before.items():
        end = root
        if not after.get(key):
            continue
        for group in group_overlapping([step for step in steps if key in step.before]):
            last = max(group, key=lambda step: step.ended)
            if end:
                returns.setdefault(last.call_id, {})[key] = Return(end, root, after[key])
            end = change_of_group(group, "undo", key)[1]
    return returns


@dataclass(slots=True)
class Timeline:
    """State of the undo and redo stacks, as the journal records describe it.

    Attributes:
        done: Steps that can be undone, oldest first.
        undone: Steps that can be redone, the next one last.
        running: Steps that have not ended, by call id.
        moving: Record of an undo or redo that was started and not completed.
        unswept: Partial files that could not be removed: tokens, each with the keys of their trees.
        dropped: Number of older steps that are not kept any more.
        superseded_by: The call, by name and id, after which what was undone last cannot be redone any more.
        count: Number of the last begin or end.
        restamped: Change times that moves have given to what is not stored, by inode; see `plan_restore`.
    """

    done: list[Checkpoint] = field(default_factory=list)
    undone: list[Checkpoint] = field(default_factory=list)
    running: dict[str, Checkpoint] = field(default_factory=dict)
    moving: Mapping[str, Any] | None = None
    dropped: int = 0
    superseded_by: str = ""
    unswept: dict[str, list[str]] = field(default_factory=dict)
    count: int = 0
    restamped: dict[int, set[int]] = field(default_factory=dict)

    @classmethod
    def read(cls, records: Sequence[Mapping[str, Any]]) -> Timeline:
        """Replay a journal."""
        timeline = cls()
        for record in records:
            timeline.apply(record)
        return timeline

    def apply(self, record: Mapping[str, Any]) -> None:
        """Apply one record."""
        match record["op"]:
            case "begin":
                self.running[record["id"]] = Checkpoint(
                    call_id=record["id"],
                    name=record["name"],
                    session=record["session"],
                    time_s=record["time_s"],
                    before=record["before"],
                    beyond=record.get("beyond", ""),
                    # Earlier versions did not record it; of their tools, `python` changes variables.
                    changes_variables=record.get("changes_variables", record["name"] == "python"),
                    inside=record.get("inside", ""),
                    began=self._number(record),
                )
            case "dropped":
                self.dropped += record["count"]
            case "end" if record["id"] in self.running:
                step, authorship = self.running[record["id"]], Authorship.read(record)
                ended = self._number(record)
                after, unkept = record["after"], record.get("unkept", "")
                if not after and not unkept:  # earlier versions did not record why
                    unkept = "it could not be stored"
                returns = {key: Return(*trees) for key, trees in record.get("returns", {}).items()}
                self.end(
                    replace(
                        step,
                        after=after,
                        authorship=authorship,
                        ended=ended,
                        unkept=unkept,
                        returns=returns,
                    )
                )
            case "withdrawn":
                self.running.pop(record["id"], None)
            case "move":
                self.moving = record
            case "moved" if self.moving is not None:
                self.shift(self.moving["way"], self.moving["ids"])
                if "found" in self.moving:
                    self.note_returns(self.moving["ids"], self.moving["found"], record.get("result", {}))
                self.moving = None
            case "stayed":  # an undo or redo that had changed nothing was given up
                self.moving = None
            case "swept":
                self.unswept.pop(record["token"], None)
        if record.get("left"):
            self.unswept[record["token"]] = record["left"]
        for inode, time_ns in record.get("restamped", ()):
            self.restamped.setdefault(inode, set()).add(time_ns)

    def next_number(self) -> int:
        """Return the number of a begin or end that happens now."""
        self.count += 1
        return self.count

    def _number(self, record: Mapping[str, Any]) -> int:
        number = int(record.get("at", 0))
        self.count = max(self.count, number)
        return number

    def end(self, step: Checkpoint) -> None:
        """Add a step that has ended. One that may have changed something clears the redo stack."""
        self.running.pop(step.call_id, None)
        self.done.append(step)
        if self.undone and (step.changed or step.changes_variables):
            self.undone.clear()
            self.superseded_by = f"{step.name} ({step.call_id})"

    def shift(self, direction: Direction, ids: Sequence[str]) -> None:
        """Move steps from one stack to the other, in this order."""
        source, target = (self.done, self.undone) if direction == "undo" else (self.undone, self.done)
        if direction == "undo":
            self.superseded_by = ""
        for call_id in ids:
            step = next((one for one in reversed(source) if one.call_id == call_id), None)
            if step is not None:
                source.remove(step)
                target.append(replace(step, returns={}) if direction == "redo" else step)

    def note_returns(self, ids: Sequence[str], before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Note where the redo of steps leads that a forced undo has taken; see `returns_of`."""
        known = {step.call_id: step for step in self.undone}
        returns = returns_of([known[call_id] for call_id in ids if call_id in known], before, after)
        self.undone = [replace(step, returns=returns.get(step.call_id, step.returns)) for step in self.undone]

    def all_steps(self) -> list[Checkpoint]:
        """Return all steps."""
        return [*self.done, *self.undone, *self.running.values()]

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the shortest journal that describes this state."""
        if self.dropped:
            yield {"op": "dropped", "count": self.dropped}
        if self.restamped and self.all_steps():
            times = [(inode, time_ns) for inode, found in self.restamped.items() for time_ns in sorted(found)]
            yield {"op": "restamped", "restamped": times[-_MOST_RESTAMPED:]}
        undone = self.undone[::-1]
        for step in [*self.done, *undone]:
            yield step.begin_record()
            yield step.end_record()
        if undone:
            ids = [step.call_id for step in self.undone]
            yield {"op": "move", "way": "undo", "ids": ids, "token": "kept"}
            yield {"op": "moved", "token": "kept"}
        for step in self.running.values():
            yield step.begin_record()
        for token, keys in self.unswept.items():
            yield {"op": "stayed", "token": token, "left": keys}
        if self.moving is not None:
            yield dict(self.moving)
