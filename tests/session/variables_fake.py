"""A sandbox without processes that keeps variables as the real one does: with the real store of snapshots.

Its variables are a dictionary, and a snapshot is a copy of it instead of a fork.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aisotools.core.exceptions import SandboxError
from aisotools.core.protocols import ToolContext
from aisotools.core.sandboxes import SandboxCall, SandboxListener, VariableCopy, VariablePoint
from aisotools.core.types import Facts, Json, ToolResult
from aisotools.sandbox.host.snapshot_store import MemoryBudget, SnapshotStore
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.testing.fakes import FakeSandbox, MockTool


@dataclass(frozen=True)
class _Copy:
    """Variables on their way into another fake."""

    point: VariablePoint
    values: dict[str, Json]

    def close(self) -> None:
        """Do nothing."""


@dataclass(eq=False)
class CopySnapshot:
    """A copy of the variables in place of a fork."""

    number: int
    point: VariablePoint
    values: dict[str, Json]
    settled: asyncio.Future[None]
    drop_reason: str = ""
    last_fork_s: float = 0.0

    def drop(self, reason: str) -> None:
        self.drop_reason = self.drop_reason or reason


class CopyStore(SnapshotStore):
    """The real store, with copies in place of forks, and without memory to measure."""

    def __init__(self, values: dict[str, Json], listener: SandboxListener) -> None:
        super().__init__(slow_s=1, budget=MemoryBudget(max_bytes=1), on_dropped=listener.variables_dropped)
        self._values = values

    def fork(self, connection: object, call_id: str) -> Any:
        self._last_number += 1
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        settled.set_result(None)
        return CopySnapshot(self._last_number, VariablePoint(call_id=call_id), dict(self._values), settled)

    def schedule_measurement(self) -> None:
        """Do nothing: a copy takes no memory worth it."""


class CopyHistory:
    """Implements `VariableHistory` over `CopyStore`.

    Attributes:
        values: The present variables.
        failure: What the next restore fails with; empty for a success.
        held: What each restore waits for.
    """

    def __init__(self, listener: SandboxListener) -> None:
        self.values: dict[str, Json] = {}
        self.failure = ""
        self.held: asyncio.Event | None = None
        self.store = CopyStore(self.values, listener)
        self._frozen: dict[str, Json] | None = None

    def take_snapshot(self, call_id: str, *, changes_variables: bool) -> None:
        if self.store.undone:
            self.store.drop_undone()
            self._frozen = None
        if changes_variables or not self.store.share_newest(call_id):
            connection: Any = None
            self.store.add(connection, call_id, is_present=not changes_variables)

    def evict(self, call_id: str, reason: str) -> bool:
        """Drop the snapshot from before a call, as for memory. Return whether there was one."""
        found = self.store.find(call_id)
        if found is None or found.drop_reason:
            return False
        self.store.evict(found, reason)
        return True

    def points(self) -> Sequence[VariablePoint]:
        return [snapshot.point for snapshot in self.store.snapshots]

    def why_not_kept(self, call_id: str | None) -> str:
        if call_id is None:
            return "" if self.store.undone else "no variables were undone, or a call has changed them since"
        found = self.store.find(call_id)
        return self.store.eviction_reason(call_id) if found is None else found.drop_reason

    async def restore(self, call_id: str) -> VariablePoint:
        if self.held is not None:
            await self.held.wait()
        if self.failure:
            failure, self.failure = self.failure, ""
            raise SandboxError(failure)
        if why := self.why_not_kept(call_id):
            raise SandboxError(why)
        found: Any = self.store.find(call_id)
        if not self.store.undone:
            self._frozen = dict(self.values)
        if found in self.store.snapshots:
            self.store.undo_from(found)
        else:
            self.store.redo_to(found)
        self._set(found.values)
        return VariablePoint(call_id=call_id)

    async def redo(self, until: str | None = None) -> VariablePoint | None:
        if until is not None:
            return await self.restore(until)
        if not self.store.undone:
            return None
        assert self._frozen is not None
        point = self.store.undone[-1][0].point
        self._set(self._frozen)
        self.store.redo_to(None)
        return point

    def _set(self, values: dict[str, Json]) -> None:
        copied = dict(values)
        self.values.clear()
        self.values.update(copied)

    async def branch(self, call_id: str | None = None) -> VariableCopy:
        if call_id is not None:
            raise SandboxError(f"{call_id}: copies of earlier states are not part of this fake.")
        return _Copy(VariablePoint(call_id=""), dict(self.values))

    async def load(self, copy: VariableCopy) -> VariablePoint:
        assert isinstance(copy, _Copy)
        self._set(copy.values)
        return copy.point

    async def forget(self) -> None:
        self.store.clear("the snapshots were forgotten on request")


class VariablesSandbox(FakeSandbox):
    """A fake sandbox whose variables are restored by undo."""

    def __init__(self, spec: WorkerSpec, listener: SandboxListener) -> None:
        super().__init__(spec, listener)
        self.variables = CopyHistory(listener)

    async def call(self, request: SandboxCall) -> ToolResult:
        if request.shipment.concurrency != "overlap" and not request.read_only:
            self.variables.take_snapshot(request.call.id, changes_variables=request.changes_variables)
        return await super().call(request)


@dataclass
class Act:
    """Makes the tool `act`, which sets variables and writes or removes files, and may fail after that.

    Attributes:
        sandbox: Whose variables it sets.
        sandboxes: The same by workspace, where there are several.
        write: Writes a text to a path.
    """

    sandbox: VariablesSandbox | None = None
    sandboxes: dict[str, VariablesSandbox] = field(default_factory=dict)
    write: Callable[[Path, str], object] = Path.write_text
    tool: MockTool = field(init=False)

    def __post_init__(self) -> None:
        self.tool = MockTool("act", facts=Facts(), runs_in="sandbox", result=self._run)
        payload = self.tool.shipment
        self.tool.shipment = lambda: replace(payload(), concurrency="main")  # takes turns, as code does

    def _run(self, arguments: Any, context: ToolContext) -> ToolResult:
        sandbox = self.sandboxes.get(str(context.workspace_path), self.sandbox)
        assert sandbox is not None
        sandbox.variables.values.update(arguments.get("variables", {}))
        for name, content in arguments.get("files", {}).items():
            path = Path(context.workspace_path, name)
            if content is None:
                path.unlink(missing_ok=True)
            else:
                self.write(path, content)
        if arguments.get("raises"):
            return ToolResult.error("It failed half way.")
        return ToolResult.text("done")
