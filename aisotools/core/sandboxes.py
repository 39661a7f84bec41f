"""Protocols and values of sandboxes: calls, status, events, and the history of variables.

Implement `Sandbox` to bring your own; nothing has to be inherited. See `aisotools.core.protocols` for the
other extension points.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

from aisotools.core.protocols import OutputCaps, ToolPayload
from aisotools.core.types import Json, ToolCall, ToolResult

INTERRUPTED_BEFORE = ToolResult.error("The call was interrupted before it ran.").with_metadata(stopped=True)
"""The result of a call that was interrupted before it was given to what runs it."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class CallDispatch:
    """What becomes of a call: whether it was given to what runs it, and was interrupted before or after that.

    Attributes:
        is_given: False while it certainly was not. A sandbox in which calls may wait sets this to False when
            it gets one, and to True before it does anything for it that a later call could notice.
        is_interrupted: True once somebody has asked to stop the call. A sandbox that gets such a call returns
            `INTERRUPTED_BEFORE`.
        loss: First line of the result, if a sandbox says there that variables were lost before the call.
    """

    is_given: bool = True
    is_interrupted: bool = False
    loss: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCall:
    """A call for a sandbox to run.

    Attributes:
        call: The call, approved and validated.
        shipment: The tool.
        timeout_s: Seconds after which the call is stopped.
        output_caps: Size limits of what leaves the sandbox.
        session_key: The conversation.
        read_only: True if the call was classified read only. A tool that starts programs then takes their
            right to change files away; it finds this in its context's metadata under the same name.
        in_reader: True to run the tool where nothing can be changed at all, because it is not one of those
            that see to that themselves. A sandbox that cannot do so must refuse the call.
        is_trial: True for a call of which nobody knows what it does. It runs `in_reader`, in a process of its
            own, which ends with it, and with a scratch folder of its own as TMPDIR, which is removed. What it
            prints is in its result alone. A sandbox that cannot do so must refuse the call.
        changes_variables: False if the tool touches files alone: no restore point of variables is needed.
        starts_task: True if what it starts goes on after it.
        dispatch: Tells the caller whether it was begun, however it ends.
    """

    call: ToolCall
    shipment: ToolPayload
    timeout_s: float
    output_caps: OutputCaps = field(default_factory=OutputCaps)
    session_key: str = ""
    read_only: bool = False
    in_reader: bool = False
    is_trial: bool = False
    changes_variables: bool = True
    starts_task: bool = False
    dispatch: CallDispatch = field(default_factory=CallDispatch, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStatus:
    """State of a sandbox at one moment.

    Attributes:
        level: Confinement level.
        alive: True while a worker is up.
        pid: Process id of the worker, or 0.
        generation: Number of workers so far.
        memory_bytes: Memory of the worker's process tree, or 0 without a worker. Pages that several small
            processes share are shared out among them (PSS). A process above 128 MiB counts with all that is
            resident, shared or not, since its PSS takes long to read: so this is never less than the PSS of
            all, and forks of a large process count whole. The limit `memory_bytes` is held by the PSS.
        age_s: Seconds since the worker started.
    """

    level: str
    alive: bool
    pid: int = 0
    generation: int = 0
    memory_bytes: int = 0
    age_s: float = 0.0


class SandboxListener(Protocol):
    """Receives the events of a sandbox. All arguments come out of the sandbox and are untrusted."""

    def output(self, call_id: str, stream: str, text: str) -> None:
        """A running call printed `text`."""

    def emitted(self, call_id: str, name: str, payload: Mapping[str, Json]) -> None:
        """A running tool reported progress."""

    def started(self, status: SandboxStatus, reason: str) -> None:
        """A worker is ready."""

    def lost(self, generation: int, reason: str) -> None:
        """A worker ended unexpectedly, and its variables with it."""

    def variables_dropped(self, call_ids: Sequence[str], reason: str) -> None:
        """The variables from before these calls are not kept, or no longer."""


class Sandbox(Protocol):
    """Runs calls in confinement, in one worker at a time that may be disposed of at any moment.

    Optional capabilities: `SupportsSnapshots`, `SupportsSupervisor`.
    """

    async def start(self) -> SandboxStatus:
        """Start a worker, unless one is up.

        Raises:
            LevelUnavailable: If this machine cannot hold the demanded level.
            SandboxError: If no worker comes up.
        """

    async def call(self, request: SandboxCall) -> ToolResult:
        """Run `request`. Stop it at its deadline, and when the awaiting task is cancelled.

        A call that fails, is stopped, or takes its worker down returns an error result.
        """

    async def interrupt(self) -> None:
        """Stop the running calls; keep the worker if it reacts to being interrupted."""

    async def restart(self) -> SandboxStatus:
        """Kill the worker with everything it started, and start a new one.

        If variables may have been lost, the first line of the next result says that it was restarted.
        """

    async def close(self) -> None:
        """Kill the worker with everything it started. No process is left afterwards."""

    def status(self) -> SandboxStatus:
        """Return the current state without blocking."""


@runtime_checkable
class SupportsAdoption(Protocol):
    """A factory of sandboxes whose owner looks after the sessions that use it, their branches included."""

    def adopt(self, session: Any) -> tuple[Any, Callable[[], None]]:
        """Return the factory for a new session, and what is called whenever nothing of that is under way."""


@runtime_checkable
class SupportsEarlyStart(Protocol):
    """A sandbox that can begin to start its worker before it is needed."""

    def prepare(self) -> None:
        """Begin to start a worker, and do not wait for it. Errors and events are those of `Sandbox.start`.

        It runs nothing before a call is sent to it, and ends when the sandbox is closed.
        """

    def discard_prepared(self) -> None:
        """End a worker that `prepare` has started, if no call was sent to it yet."""


@runtime_checkable
class SupportsReaders(Protocol):
    """A sandbox that can run tools so that they can change nothing, whatever their code does.

    In any other sandbox a tool that says it only reads counts as one that changes something.
    """

    @property
    def has_readers(self) -> bool:
        """True if it can do so at its level, on this machine."""


@runtime_checkable
class SupportsPathRules(Protocol):
    """A sandbox that enforces rules about paths in the workspace as well as its level can."""

    @property
    def replaced_paths(self) -> Collection[str]:
        """Denied paths at which something was replaced since `deny_paths`, or moved away and back."""

    async def deny_paths(self, unreadable: Sequence[str], unwritable: Sequence[str]) -> Collection[str]:
        """Keep what runs, and what starts later, from paths as they are now; others are denied no longer.

        Args:
            unreadable: Paths relative to the workspace that must not be read or written.
            unwritable: The same for writing.

        Returns:
            The `replaced_paths` until now, which are forgotten.

        Raises:
            SandboxError: If it cannot be done for what runs. No call must run then.
        """


@runtime_checkable
class SupportsSupervisor(Protocol):
    """A sandbox whose processes run below a supervisor process on this machine."""

    @property
    def supervisor(self) -> int:
        """Process id of the supervisor, or 0 while there is none."""

    @property
    def worker_pid(self) -> int:
        """Process id of the worker, or 0 while there is none."""


@runtime_checkable
class SupportsHome(Protocol):
    """A sandbox whose programs have a home folder of their own on this machine, in which they may write."""

    @property
    def home(self) -> str:
        """Path of that folder, or empty while there is none."""


@runtime_checkable
class SupportsRemoteLocation(Protocol):
    """A sandbox factory whose sandboxes run on another machine, without access to files of this one."""

    @property
    def elsewhere(self) -> str:
        """The place in words, such as `a kernel at http://host:8888`; empty for this machine."""


@runtime_checkable
class SupportsLeastLevel(Protocol):
    """A sandbox factory whose choice implies consent to a confinement level."""

    @property
    def least(self) -> str:
        """Weakest level that counts as accepted when the user names none."""


@runtime_checkable
class SupportsDetection(Protocol):
    """A sandbox factory that detects the available levels itself. This machine is probed for others."""

    def detect(self) -> Any:
        """Return a `sandbox.confinement.detect.Detection`. May block; called in a thread."""


# ---- snapshots of a sandbox's variables

VariableLabel = Literal["exact", "partial", "data only"]
"""How much of a snapshot can be restored: all, all but the named parts, or values that can be pickled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariablePoint:
    """A restore point: the variables of a sandbox as they were before one call.

    Attributes:
        call_id: The call.
        label: How much can be restored, or was.
        lost: Descriptions of what cannot be restored, or was not.
        memory_bytes: Memory that only this restore point occupies; 0 until it is measured.
    """

    call_id: str
    label: VariableLabel = "exact"
    lost: tuple[str, ...] = ()
    memory_bytes: int = 0

    def with_lost(self, lost: Sequence[str]) -> VariablePoint:
        """Return the point with what turned out to be lost when it was restored."""
        if not lost:
            return self
        label: VariableLabel = "partial" if self.label == "exact" else self.label
        more = tuple(entry for entry in lost if entry not in self.lost)
        return replace(self, label=label, lost=(*self.lost, *more))


class VariableCopy(Protocol):
    """Variables on their way into another sandbox. Opaque to everything but a sandbox."""

    @property
    def point(self) -> VariablePoint:
        """Restore point that was copied, and what of it could not be copied."""

    def close(self) -> None:
        """Release the copy."""


class VariableHistory(Protocol):
    """Restore points of a sandbox's variables."""

    def points(self) -> Sequence[VariablePoint]:
        """Return the available restore points, oldest first."""

    def why_not_kept(self, call_id: str | None) -> str:
        """Return why the variables cannot be brought to a state, in a clause; empty if they can be.

        Args:
            call_id: Before this call, whether it was undone or not; None for the state that the first of
                the undos since the last call has left.
        """

    async def restore(self, call_id: str) -> VariablePoint:
        """Restore the variables from before a call. Later restore points stay available for `redo`.

        Returns:
            The restore point, with what was lost of it.

        Raises:
            SandboxError: If it is not available; the message says why. The variables are unchanged then.
        """

    async def redo(self, until: str | None = None) -> VariablePoint | None:
        """Revert what `restore` did since the last call. Return None if nothing is there to be reverted.

        Args:
            until: The call before which to stop; None to revert all of it.

        Raises:
            SandboxError: If that state is not available; the message says why. The variables are unchanged
                then.
        """

    async def branch(self, call_id: str | None = None) -> VariableCopy:
        """Copy the variables from before a call, or the present ones, for another sandbox.

        Raises:
            SandboxError: If they cannot be copied; the message says why.
        """

    async def load(self, copy: VariableCopy) -> VariablePoint:
        """Add the variables of a copy to those of this sandbox.

        Raises:
            SandboxError: If none of them could be loaded.
        """

    async def forget(self) -> None:
        """Drop every restore point, together with any secrets in it."""


@runtime_checkable
class SupportsSnapshots(Protocol):
    """A sandbox that can restore its variables."""

    @property
    def variables(self) -> VariableHistory:
        """Restore points of the variables."""


@runtime_checkable
class SupportsSnapshotProcesses(Protocol):
    """A `VariableHistory` whose restore points are parked processes below the sandbox's supervisor."""

    def pids(self) -> Collection[int]:
        """Return the process ids of the parked processes. They belong to no call and do no work."""

    def frozen_pids(self) -> Collection[int]:
        """Return the process ids of workers that were undone, and stay stopped until they are redone."""

    async def settled(self) -> None:
        """Wait until `pids` is complete: new processes are known, and those that were dropped have ended."""

    def prepare(self, call_id: str) -> int:
        """Begin the part of `restore` that changes nothing, within `hold`, so that it takes less time then.

        It is taken back with the end of that context. For a call that cannot be restored nothing happens.

        Returns:
            The parked process that the next worker is to be a copy of, with the files that are open there; 0
            if that is not known.
        """

    def hold(self, stopped: Collection[int] = ()) -> AbstractAsyncContextManager[None]:
        """Return a context in which no call runs, but `restore`, `redo` and this by the task in it.

        Entering it waits for the calls that run. Then `pids` is complete, and the worker may be stopped.

        Args:
            stopped: Processes that calls have left stopped. A `redo` of a `restore` within the context leaves
                them stopped. Whoever enters it may add them within.
        """


@runtime_checkable
class SupportsPlaces(Protocol):
    """A sandbox of which only so many may be live at a time, so that a start may wait for a place."""

    def start_at_once(self) -> asyncio.Task[SandboxStatus] | None:
        """Begin a start that neither waits nor ends the sandbox of somebody else; None if there is none."""
