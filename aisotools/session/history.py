"""Undo as a session has it: a checkpoint around every call that may change anything, files and variables.

The tree of processes stands still while a checkpoint is taken and while files are brought back. What cannot
be brought back is told beforehand on the card, and afterwards in the result.

What is told of an undo, before and after, in words for people and models.

The history of a session whose calls run on another machine: none, and it says so.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from aisotools.core.events import CallEmitted, CheckpointTaken, Redone, Undone
from aisotools.core.exceptions import SandboxError, UsageError, WorkspaceError
from aisotools.core.protocols import Sandbox, VariableHistory, VariablePoint
from aisotools.core.types import Facts, Json, ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.session.event_log import EventLog
from aisotools.session.sharing import LockToken, share, unshare
from aisotools.tools.adapter import undo_path
from aisotools.workspace.checkpoints.scan import Progress, Snapshot, TooSlow
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.timeline import Checkpoint, Direction, UndoResult
from aisotools.workspace.diff import Changes, changes_between
from aisotools.workspace.paths import printable
from aisotools.workspace.read_tracker import ReadCache

_SHOWN = 20


def outcome(moved: UndoResult, variables: str) -> ToolResult:
    """What came of an undo or redo."""
    missing = tuple(f"{path or 'the workspace'} ({why})" for path, why in moved.missing)
    beyond = tuple(step.beyond for step in moved.steps if step.beyond)
    calls = [f"{step.name} ({step.call_id})" for step in moved.steps]
    verb = "Undid" if moved.way == "undo" else "Redid"
    lines = [f"{verb} {len(calls)} call{'s' * (len(calls) != 1)}: {some(calls)}."]
    lines += [f"Brought back: {some(moved.restored)}."] if moved.restored else []
    lines += [f"Removed: {some(moved.removed)}."] if moved.removed else []
    lines += ["No file had to be changed."] if not (moved.restored or moved.removed or missing) else []
    lines += [f"Not brought back: {some(missing)}."] if missing else []
    lines += [f"Variables: {variables}"] if variables else []
    lines += [f"Stays done: {one}" for one in beyond]
    value: dict[str, Json] = {
        "calls": [{"id": step.call_id, "name": step.name} for step in moved.steps],
        "restored": list(moved.restored),
        "removed": list(moved.removed),
        "missing": list(missing),
        "variables": variables,
        "stays_done": list(beyond),
        "conflicts": [{"path": path, "why": why} for path, why in moved.conflicts],
    }
    return ToolResult.json(value, "\n".join(lines)).with_metadata(tool=moved.way)


def beyond_words(ticket: PreparedCall, *, covered: bool) -> str:
    """What a call does that no undo takes back."""
    facts = ticket.facts
    if facts.hosts:
        return f"{ticket.made.name} talked to {some(facts.hosts)}."
    if facts.runs_in == "host" and not covered:
        return f"{ticket.made.name} ran on the host; what it did outside the workspace is not undone."
    return ""


def uncovered_words(snapshot: Snapshot) -> tuple[str, ...]:
    """What a checkpoint does not cover, each with its reason."""
    told = [f"{printable('/'.join(path)) or 'the workspace'} ({why})" for path, why in snapshot.uncovered]
    more = snapshot.uncovered_count - len(told)
    return (*told, f"{more:,} more") if more > 0 else tuple(told)


def some(names: Sequence[str]) -> str:
    """Names in a line, not too many."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def lost_words(point: VariablePoint) -> str:
    """What of the variables is lost."""
    return f", but for: {some(point.lost)}." if point.lost else "."


def known_ids(steps: Sequence[Checkpoint]) -> str:
    """The calls that can be named."""
    ids = [step.call_id for step in steps][-_SHOWN:]
    return f"Known: {', '.join(ids)}." if ids else "There was none so far."


def refused(told: str) -> ToolResult:
    """Nothing was done, and why."""
    return ToolResult.error(told, error_kind="invalid")


def conflict(moved: UndoResult) -> ToolResult:
    """Nothing was done, since somebody else changed the same files."""
    listed = [f"{path}: {why}" for path, why in moved.conflicts]
    told = f"Nothing was changed, since this {moved.way} would overwrite what somebody else did:"
    shown = "\n".join(f"- {one}" for one in listed[:_SHOWN])
    more = f"\n- and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    advice = f"Keep it by leaving it as it is, or {moved.way} with force=True."
    result = ToolResult.error(f"{told}\n{shown}{more}\n{advice}", error_kind="failed")
    conflicts = [{"path": path, "why": why} for path, why in moved.conflicts]
    return dataclasses.replace(result, value={"conflicts": conflicts})


def variables_stay(*, can_be_kept: bool) -> str:
    """Why the variables were not brought back."""
    if can_be_kept:
        return "They were not brought back: no earlier state of them is kept."
    return (
        "They were not brought back: this sandbox cannot keep earlier states of them, because its worker "
        "cannot be forked. Run the cells again that made them."
    )


T = TypeVar("T")

_INLINE_ENTRIES = 1_500
_INLINE_BYTES = 1 << 20
_PROGRESS_S = 1.0


@dataclass(slots=True)
class _Copying:
    """How far copying has got; written by one thread, read by another."""

    done: int = 0
    due: int = 0

    def tell(self, done: int, due: int) -> None:
        self.done, self.due = done, due


class History:
    """A guard (see `aisotools.session.guards`) that keeps what calls change, and gives it back."""

    def __init__(
        self,
        workspace: Path,
        state_folder: Path,
        *,
        sandbox: Sandbox,
        journal: EventLog,
        reads: ReadCache,
        session_key: str,
    ) -> None:
        """Keep the history of a workspace; sessions of one process on it share one.

        Raises:
            WorkspaceError: If checkpoints cannot be kept.
        """
        self._sharing = share(workspace, state_folder, sandbox)
        self._chain = self._sharing.checkpoints
        self._workspace = workspace
        self._sandbox = sandbox
        self._journal = journal
        self._reads = reads
        self._session_key = session_key
        self._passes: dict[str, LockToken] = {}
        self._first = ""
        self._batches: list[tuple[str, ...]] = []
        self.left_running: Callable[[], Mapping[int, str]] = self._sharing.left_running
        """Tells what calls left running in the background: process id to name."""

    def __repr__(self) -> str:
        return f"<History of {self._chain!r}>"

    def close(self) -> None:
        """Let go of the chain."""
        unshare(self._sharing, self._sandbox)

    # ---- around a call

    async def before(self, ticket: PreparedCall) -> None:
        """Take a checkpoint; see `aisotools.session.guards.Guard`.

        Raises:
            SandboxError: If it cannot be kept: then the call must not run.
        """
        call, began_s = ticket.made, time.perf_counter()
        given = await self._sharing.barrier.enter(self)
        try:
            snapshot = await self._walk(
                lambda progress: self._chain.begin(
                    call.id,
                    call.name,
                    self._session_key,
                    outside=self._outside(ticket),
                    beyond=beyond_words(ticket, covered=self._outside(ticket) is not None),
                    progress=progress,
                ),
                call.id,
            )
        except BaseException as error:
            self._sharing.barrier.leave(given)
            if isinstance(error, WorkspaceError):
                raise SandboxError(f"{call.name} was not run: {error}") from error
            raise
        self._passes[call.id] = given
        self._begin_with(snapshot)
        self._journal.add(
            CheckpointTaken,
            call.id,
            root=snapshot.root,
            files=snapshot.entries,
            copied_bytes=snapshot.copied_bytes,
            uncovered=uncovered_words(snapshot),
            duration_s=time.perf_counter() - began_s,
        )

    def _begin_with(self, snapshot: Snapshot) -> None:
        if not self._first:
            self._first = snapshot.root

    async def after(self, ticket: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        """Take down what the call changed; see `aisotools.session.guards.Guard`."""
        call = ticket.made
        try:
            await self._walk(lambda progress: self._chain.end(call.id, progress), call.id)
        except WorkspaceError as error:
            if result is not None:
                result = result.with_metadata(undo=f"This call cannot be undone: {error}")
        finally:
            self._sharing.barrier.leave(self._passes.pop(call.id))
        return result

    async def _walk(
        self, work: Callable[[Progress], T], call_id: str, *, small: bool = True, still: bool = True
    ) -> T:
        """Do `work` while everything stands still, if it should: here if it is small, else in a thread."""
        known = self._chain.latest
        holding = self._sharing.standing_still if still else nullcontext
        if small and known is not None and known.entries <= _INLINE_ENTRIES:
            try:
                with holding():
                    return work(_refuse_large)
            except TooSlow:
                pass  # in a thread then
        copying = _Copying()

        def walk() -> T:
            with holding():
                return work(copying.tell)

        walking = asyncio.ensure_future(asyncio.to_thread(walk))
        while not (await asyncio.wait([walking], timeout=_PROGRESS_S))[0]:
            self._journal.add(
                CallEmitted,
                call_id,
                name="checkpoint",
                payload={"done_bytes": copying.done, "total_bytes": copying.due},
            )
        return walking.result()

    def _outside(self, ticket: PreparedCall) -> Path | None:
        """The path outside the workspace that a tool of the host says it changes."""
        if ticket.facts.runs_in != "host":
            return None
        told = undo_path(ticket.tool, ticket.arguments)
        if told is None:
            return None
        path = self._workspace / told
        return path if self._chain.covers(path) else None

    def _inside(self, path: Path) -> bool:
        return (self._workspace / path).resolve().is_relative_to(self._workspace.resolve())

    @property
    def store(self) -> Store:
        """Has the contents of all that is kept."""
        return self._chain.store

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Snapshot]:
        """The workspace as it is now; no call changes it meanwhile.

        Raises:
            UsageError: From within a call, which would wait for itself.
        """
        if self._sharing.barrier.inside():
            raise UsageError("A call is running here. Wait until it has ended.")
        given = await self._sharing.barrier.enter(object())
        try:
            yield await self._walk(self._chain.look, "", small=False)
        finally:
            self._sharing.barrier.leave(given)

    # ---- what is told beforehand

    def undoable(self, facts: Facts) -> bool:
        """Whether undo covers all that a call of these facts may change."""
        if facts.runs_in != "sandbox" or facts.level == "limited" or facts.hosts or facts.outside:
            return False
        only_files = facts.path_guarded or bool(facts.commands)  # programs cannot reach the variables
        if not only_files and self._variables is None:
            return False
        latest = self._chain.latest
        return self._chain.fits() if latest is None else bool(latest.root) and not latest.uncovered_count

    async def sentence(self, ticket: PreparedCall) -> str:
        """What undo will and will not bring back of a call, for its card."""
        try:
            # For a sentence nothing need stand still; what is undone is looked at again.
            snapshot = await self._walk(self._chain.look, ticket.made.id, still=False)
        except WorkspaceError as error:
            return f"It cannot be undone: {error}"
        uncovered = uncovered_words(snapshot)
        told = ["Undo brings back the files of the workspace"]
        told[0] += f", but not {some(uncovered)}." if uncovered else "."
        if ticket.facts.runs_in == "host":
            path = undo_path(ticket.tool, ticket.arguments)
            if path is not None:
                where = printable(str(self._workspace / path))
                covered = self._outside(ticket) is not None or self._inside(path)
                told.append(f"It also brings back {where}." if covered else f"It does not cover {where}.")
            told.append("Whatever else it does outside the workspace stays done.")
        elif ticket.facts.level == "limited":
            told.append("At level limited it may change files elsewhere, which stay changed.")
        return " ".join(told)

    # ---- back and forth

    async def undo(self, steps: int = 1, *, to: str | None = None, force: bool = False) -> ToolResult:
        """Take calls back, the latest first; see `Session.undo`."""
        return await self._move("undo", steps, to, force=force)

    async def redo(self, steps: int = 1, *, force: bool = False) -> ToolResult:
        """Do again what was undone; see `Session.redo`."""
        return await self._move("redo", steps, None, force=force)

    async def changes(self, since: str | None = None) -> Changes:
        """What changed since before a call, or since the session's first; see `Session.changes`."""
        every = [*self._chain.steps, *self._chain.undone]
        if since is None:
            root = self._first
        else:
            found = [step for step in every if step.call_id == since]
            if not found:
                raise UsageError(f"There is no checkpoint from before a call {since!r}. {known_ids(every)}")
            root = found[-1].before[""]
        snapshot = await self._walk(self._chain.look, since or "")
        self._begin_with(snapshot)
        if not root or not snapshot.root:
            return Changes(uncovered=uncovered_words(snapshot))
        return await asyncio.to_thread(
            changes_between, self._chain.store, root, snapshot.root, uncovered_words(snapshot)
        )

    async def _move(self, way: Direction, count: int, to: str | None, *, force: bool) -> ToolResult:
        count = _whole(count)
        if self._sharing.barrier.inside():
            return refused(f"A call is running here. {way.capitalize()} when it has ended.")
        given = await self._sharing.barrier.enter(object())  # alone: nobody else holds this
        try:
            chosen = self._chosen(way, count, to)
            if not chosen:
                return refused(f"There is nothing to {way}.")
            counted = sum(map(self._counting(), chosen))
            await self._sharing.settled()
            running = self.left_running()
            if running and not force:
                names = some([f"{printable(name)} ({pid})" for pid, name in running.items()])
                told = f"{names} still runs in the background and may go on changing files."
                return refused(f"{told} Stop it first; with force=True the {way} stops it, too.")

            def move(_: Progress) -> UndoResult:
                self._sharing.end(running)
                return self._chain.move(way, chosen, force=force)

            try:
                moved = await self._walk(move, "", small=False)
            except WorkspaceError as error:
                return refused(f"The {way} failed: {error}")
            if not moved.done:
                return conflict(moved)
            self._reads.forget()
            variables = await self._move_variables(way, chosen)
        finally:
            self._sharing.barrier.leave(given)
        result = outcome(moved, variables)
        self._record(moved, result, forced=force, steps=counted)
        return result

    def _chosen(self, way: Direction, count: int, to: str | None) -> list[Checkpoint]:
        """The steps to take, the next one first; those that changed nothing come along uncounted."""
        source = self._chain.steps if way == "undo" else self._chain.undone
        if to is not None and all(step.call_id != to for step in source):
            raise UsageError(f"There is no call {to!r} to undo. {known_ids(source)}")
        counts = self._counting()
        chosen: list[Checkpoint] = []
        counted = 0
        for step in reversed(source):
            if to is None and counts(step) and counted == count:
                break
            chosen.append(step)
            counted += counts(step)
            if step.call_id == to:
                break
        while to is None and chosen and not counts(chosen[-1]):
            chosen.pop()
        return chosen

    def _counting(self) -> Callable[[Checkpoint], bool]:
        """Tells whether a step changed anything, as far as that is known."""
        kept = {point.call_id for point in self._points()}.union(*self._batches)
        return lambda step: step.changed or step.call_id in kept

    # ---- variables

    @property
    def _variables(self) -> VariableHistory | None:
        return getattr(self._sandbox, "variables", None)

    def _points(self) -> Sequence[VariablePoint]:
        return self._variables.points() if self._variables is not None else ()

    async def _move_variables(self, way: Direction, steps: Sequence[Checkpoint]) -> str:
        """Have the variables follow the files; what became of them, in words."""
        ids = [step.call_id for step in steps]
        variables = self._variables
        try:
            if way == "redo":
                return await self._redo_variables(ids)
            kept = {point.call_id for point in self._points()}
            known = [call_id for call_id in ids if call_id in kept]
            if variables is None or not known:
                touched = any(step.name == "python" for step in steps)
                return variables_stay(can_be_kept=variables is not None) if touched else ""
            point = await variables.restore(known[-1])
        except SandboxError as error:
            return f"They were not brought back: {error}"
        self._batches.append(tuple(ids))
        return f"They are as before {known[-1]}" + lost_words(point)

    async def _redo_variables(self, ids: Sequence[str]) -> str:
        if self._variables is None or not any(set(ids) & set(batch) for batch in self._batches):
            return ""
        batch = self._batches[-1]
        if set(batch) != set(ids):
            return "They stay as they are: only the last undo of them can be redone, and as a whole."
        point = await self._variables.redo()
        if point is None:
            return "They stay as they are: a call has changed them since."
        self._batches.pop()
        return "They are as they were before the undo" + lost_words(point)

    def _record(self, moved: UndoResult, told: ToolResult, *, forced: bool, steps: int) -> None:
        self._journal.add(
            Undone if moved.way == "undo" else Redone,
            call_ids=tuple(step.call_id for step in moved.steps),
            restored=moved.restored,
            removed=moved.removed,
            missing=tuple(told.value["missing"]),
            variables=told.value["variables"],
            forced=forced,
            steps=steps,
        )


def _whole(count: object) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"steps={count!r}: use a whole number from 1.")
    return count


def _refuse_large(done: int, due: int) -> None:
    if due - done > _INLINE_BYTES:
        raise TooSlow


_WHY = "Calls of this session run on another machine, where no earlier state of files or variables is kept"


class NoHistory(History):
    """A history that keeps nothing, and never pretends to."""

    def undoable(self, facts: Facts) -> bool:  # noqa: ARG002 - the same for all
        """Nothing is."""
        return False

    async def sentence(self, ticket: PreparedCall) -> str:
        """What undo will bring back of a call, for its card: nothing."""
        if ticket.facts.runs_in == "host":
            return "It cannot be undone: this session keeps no earlier state."
        return "It cannot be undone: it runs on another machine."

    async def undo(self, steps: int = 1, *, to: str | None = None, force: bool = False) -> ToolResult:  # noqa: ARG002 - as everywhere
        """Refuse; see `Session.undo`."""
        return refused(f"{_WHY}, so nothing can be undone from here.")

    async def redo(self, steps: int = 1, *, force: bool = False) -> ToolResult:  # noqa: ARG002 - as everywhere
        """Refuse; see `Session.redo`."""
        return refused(f"{_WHY}, so there is nothing to redo.")

    async def changes(self, since: str | None = None) -> Changes:  # noqa: ARG002 - as everywhere
        """Refuse; see `Session.changes`.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"{_WHY}, so changes cannot be told from here. Ask `sandbox_bash`, with git or diff."
        )

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Snapshot]:
        """Refuse: there is nothing to branch off from.

        Raises:
            UsageError: Always.
        """
        yield _refuse_branches()


def _refuse_branches() -> Snapshot:
    raise UsageError(f"{_WHY}, so it has no branches. Open another session there.")
