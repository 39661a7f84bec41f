"""The steps of a chain as values, and how they are written down and read again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from aisotools.checkpoint_area import Reasons

Way = Literal["undo", "redo"]
"""Back or forth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
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

    def hop(self, way: Way, key: str) -> tuple[str, str]:
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
class Moved:
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

    way: Way
    steps: tuple[Step, ...] = ()
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    missing: Reasons = ()
    conflicts: Reasons = ()
    done: bool = True


@dataclass(slots=True)
class Chain:
    """Where a chain stands.

    Attributes:
        done: What could be undone, the oldest first.
        undone: What could be redone, the next one last.
        running: Steps that have not ended, by call.
        moving: An undo or redo that was begun and not ended, as it was recorded.
    """

    done: list[Step] = field(default_factory=list)
    undone: list[Step] = field(default_factory=list)
    running: dict[str, Step] = field(default_factory=dict)
    moving: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, records: Sequence[Mapping[str, Any]]) -> Chain:
        """The chain that these records tell of."""
        chain = cls()
        for record in records:
            chain.hear(record)
        return chain

    def hear(self, record: Mapping[str, Any]) -> None:
        """Take one record into account."""
        match record["op"]:
            case "begin":
                self.running[record["id"]] = Step(
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

    def end(self, step: Step) -> None:
        """A step ended; one that changed something leaves nothing to redo."""
        self.running.pop(step.call_id, None)
        self.done.append(step)
        if step.changed:
            self.undone.clear()

    def shift(self, way: Way, ids: Sequence[str]) -> None:
        """Steps were undone or redone, in this order."""
        source, target = (self.done, self.undone) if way == "undo" else (self.undone, self.done)
        for call_id in ids:
            step = next((one for one in reversed(source) if one.call_id == call_id), None)
            if step is not None:
                source.remove(step)
                target.append(step)

    def every(self) -> list[Step]:
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
