"""Undo: a checkpoint around every call that may change something, of files and of variables.

`WorkspaceHistory` is a guard (see `aisotools.session.guards`): it takes the checkpoints, and undoes and
redoes calls. The sandbox's process tree is stopped while a checkpoint is taken and while files are restored.
What cannot be restored is said before the call, on its card, and after an undo, in its result.

A call that is asked about takes three scans: for its card, before it runs, and after it. None can stand for
another one. While a person reads the card, files may appear that are too large to be stored, or be edited;
taken for part of the call, the edits would be undone with it. A scan reads only files whose change time is
new, so the second and the third cost one `lstat` for each file.
`NoUndoHistory` of `aisotools.session.undo_history` is for a session whose files are on another machine.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from aisotools.core.concurrency import DelayedRun, LoopActivity, gc_paused, run_to_completion
from aisotools.core.events import (
    CheckpointTaken,
    HistoryRecovered,
    Redone,
    SandboxLost,
    SandboxStarted,
    SessionEvent,
    Undone,
)
from aisotools.core.exceptions import (
    SandboxError,
    SessionClosed,
    UsageError,
    WorkspaceError,
    as_clause,
    explain_system_error,
)
from aisotools.core.sandboxes import Sandbox, SupportsSnapshots, VariableHistory, VariablePoint
from aisotools.core.threads import in_thread, start_in_thread
from aisotools.core.truncation import summarize_names
from aisotools.core.types import Facts, ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.sandbox.host.fork_observation import DetachedFiles
from aisotools.sandbox.process.tree import exists
from aisotools.session.event_log import EventLog
from aisotools.session.sharing import BackgroundProcesses, CheckpointScans, LockToken, SharedWorkspace
from aisotools.session.undo_history import Record, TimeoutChoice, VariablesChoice
from aisotools.session.undo_results import (
    VARIABLES_LEFT,
    add_notes,
    conflict_result,
    describe_beginning,
    describe_coverage,
    describe_elsewhere,
    describe_irreversible,
    describe_restored,
    describe_running,
    describe_unsupported,
    explain_detached,
    explain_kept,
    explain_left_running,
    explain_passed_over,
    explain_record,
    explain_taken_back,
    explain_unrecorded,
    explain_unredone,
    explain_unrestored,
    failed_result,
    find_passed_over,
    is_limited,
    list_uncovered,
    move_result,
    refuse_for_host_work,
    refuse_for_processes,
    reverted_result,
    was_cut_short,
)
from aisotools.session.undo_steps import (
    UndoChoice,
    UndoPlan,
    VariableStates,
    check_options,
    known_ids,
    refusal,
    refuse_for_system,
)
from aisotools.session.writers import WriterWatch
from aisotools.tools.adapter import supports, undo_path
from aisotools.workspace.checkpoints.moves import UndoResult
from aisotools.workspace.checkpoints.scan import ProgressCallback, Snapshot, TooSlow
from aisotools.workspace.checkpoints.steps import Checkpoint, Direction
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.trees import WORKSPACE_KEY
from aisotools.workspace.diff import Changes, changes_between
from aisotools.workspace.paths import printable
from aisotools.workspace.read_tracker import ReadCache
from aisotools.workspace.real_paths import resolve_links

_log = logging.getLogger(__name__)

_QUICK_PATHS = 100
"""An undo that has put back at most as many is described on the event loop."""

_SYNC_DELAY_S = 0.05
"""Until the records of calls that changed nothing are written through to the disk, many at a time."""

_MOST_NOTES = 20
"""Sentences of `recovered` that are kept."""

_CHECKPOINTS_SHARE = 4
"""What a scan remembers of the workspace has at most this part of the session's budget. More is in a file."""

_CALLS_END_S = 2.0
"""How long the end of calls is waited for that the sandbox runs no more: a tool on the host may go on."""


class WorkspaceHistory:
    """Implements `UndoHistory` for a workspace on this machine, and takes a checkpoint around each call."""

    def __init__(
        self,
        shared: SharedWorkspace,
        *,
        sandbox: Sandbox,
        event_log: EventLog,
        reads: ReadCache,
        session_key: str,
        on_timeout: TimeoutChoice = "keep",
    ) -> None:
        """Record the calls of one session; other sessions of this process may share the workspace.

        Args:
            shared: The workspace. `close` gives it back.
            sandbox: The sandbox whose variables are restored with the files.
            event_log: Gets checkpoints, undo and redo.
            reads: Forgets what was read when files are restored.
            session_key: The conversation, for the record of each checkpoint.
            on_timeout: Whether changes of a call that times out are kept or taken back.
        """
        self._shared = shared
        self._checkpoints = shared.checkpoints
        self._workspace = shared.folder
        self._sandbox = sandbox
        self._event_log = event_log
        self._reads = reads
        self._session_key = session_key
        self._on_timeout = on_timeout
        self._tokens: dict[str, LockToken] = {}
        self._writers = WriterWatch(shared)
        self._limited: set[str] = set()  # running calls that may change what undo does not wholly cover
        self._first_root = ""
        self._fits_at_first = False
        self._states = VariableStates()
        event_log.subscribe(self._on_worker_event, (SandboxStarted, SandboxLost))
        self._scans = CheckpointScans(shared, event_log)
        self.recovered: tuple[str, ...] = ()
        self._syncing = DelayedRun(self._sync, _SYNC_DELAY_S)
        self._moving = LoopActivity()  # an undo or redo that is carried out
        self._guarded = LoopActivity()  # calls with a step that has not ended
        self._is_closed = False
        self._record: Record | None = None
        self._checkpoints.limit_memory(event_log.budget.limit_bytes // _CHECKPOINTS_SHARE)

    def __repr__(self) -> str:
        return f"<WorkspaceHistory of {self._checkpoints!r}>"

    @property
    def _variables(self) -> VariableHistory | None:
        # Of a sandbox in a pool it is known only once it has been live.
        return self._sandbox.variables if supports(self._sandbox, SupportsSnapshots) else None

    def use_record(self, record: Record) -> None:
        """Refuse what cannot be recorded; see `UndoHistory.use_record`."""
        self._record = record

    async def finish(self) -> None:
        """Write through to the disk what waits for that; see `UndoHistory.finish`."""
        self._syncing.cancel()
        await self._moving.wait()  # Race: while the session closes. It ends, or takes itself back.
        if not self._shared.lock.is_inside():  # else it is one of them that closes the session
            # Race: the end of a step, or that its call did not run, is recorded before the journal is closed.
            await self._guarded.wait(_CALLS_END_S)
        if not self._checkpoints.is_synced:
            await in_thread(self._sync)

    def park(self) -> None:
        """Close what is open between calls; see `UndoHistory.park`."""
        self._shared.park()

    def close(self) -> None:
        """Release the workspace; the last session on it closes its checkpoints."""
        self._is_closed = True
        self._syncing.cancel()
        self._checkpoints.unpin(self._first_root)
        self._shared.release(self._sandbox)
        self._scans.close()

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise SessionClosed("Nothing was undone or redone: the session was closed meanwhile.")

    def announce(self) -> None:
        """Record what is new of `recovered`, and log it; see `UndoHistory.announce`."""
        notes = self._checkpoints.take_notes()
        if notes:
            self.recovered = (*self.recovered, *notes)[-_MOST_NOTES:]
            for note in notes:
                _log.warning("%s", note)
            self._event_log.add(HistoryRecovered, notes=notes)

    def _sync(self) -> None:
        try:
            self._checkpoints.sync()
        except WorkspaceError as error:
            # Nothing that a call has changed waits for this. The next call that changes something is refused.
            _log.warning("The record of the last calls may be lost with the power: %s", error)

    # -- guard: around each call

    async def before(self, prepared: PreparedCall) -> None:
        """Take a checkpoint; see `aisotools.session.guards.Guard`.

        Raises:
            SandboxError: If it cannot be kept: then the call must not run.
        """
        call = prepared.original
        started_s = time.perf_counter()
        outside = None
        if prepared.facts.runs_in == "host":
            outside = await in_thread(self._path_outside, prepared)
        token = await self._shared.lock.enter(self)
        self._guarded.begin()
        # Before its checkpoint: another call may end while that is taken, and what this one changes be seen.
        self._writers.begin(prepared)
        try:
            begin = functools.partial(
                self._checkpoints.begin,
                call.id,
                call.name,
                self._session_key,
                outside=outside,
                beyond=describe_irreversible(prepared, covered=outside is not None),
                changes_variables=prepared.changes_variables,
            )
            snapshot = await self._scans.run(begin, call.id)
        except BaseException as error:
            # Cancelled, the scan has gone on to its end, and has begun a step.
            await run_to_completion(in_thread(self._checkpoints.withdraw, call.id))
            self._writers.end(call.id)
            self._guarded.end()
            self._shared.lock.leave(token)
            if isinstance(error, WorkspaceError):
                raise SandboxError(f"{call.name} was not run: {error}") from error
            raise
        self._tokens[call.id] = token
        if outside is not None or is_limited(snapshot):
            self._limited.add(call.id)
        if self._checkpoints.notes:
            self.announce()
        self._states.begin(call.id, may_change=prepared.changes_variables)
        self._keep_first(snapshot)
        self._event_log.add(
            CheckpointTaken,
            call.id,
            root=snapshot.root,
            files=snapshot.entries,
            copied_bytes=snapshot.copied_bytes,
            uncovered=list_uncovered(snapshot),
            duration_s=time.perf_counter() - started_s,
        )

    async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        """Record what the call changed; see `aisotools.session.guards.Guard`."""
        call = prepared.original
        writers = self._writers.stop(call.id)
        if prepared.changes_variables:
            self._states.note_changed()
        try:
            async with self._stop_for_taking_back(call.id, result) as live:
                was_small = self._scans.is_small
                end = functools.partial(self._checkpoints.end, call.id, find_evidence=writers.find_evidence)
                try:
                    step = await self._scans.run(end, call.id)
                finally:
                    # Not before: what a call changes that begins meanwhile may be seen as well.
                    self._writers.end(call.id)
                if self._checkpoints.is_due:
                    # What a call has changed is on the disk before anybody reads its answer. In a thread: the
                    # disk may take its time.
                    await in_thread(self._checkpoints.sync)
                elif not self._checkpoints.is_synced:
                    self._syncing.request()
                if self._checkpoints.has_excess:
                    await in_thread(self._checkpoints.drop_old)
                    self._forget_states()
                if result is not None and step.changed:
                    result = await writers.name_others(
                        step, result, inline=was_small and self._scans.is_small
                    )
                latest = self._checkpoints.latest
                limited = call.id in self._limited or latest is None or is_limited(latest)
                if result is not None and step.changed and limited:
                    # Only here: it reads the listings of both trees.
                    entries = await in_thread(self._checkpoints.list_unrestored, step)
                    result = explain_unrestored(result, entries) if entries else result
                    entries = await in_thread(self._checkpoints.list_unredone, step)
                    result = explain_unredone(result, entries) if entries else result
                if result is not None and step.unkept:
                    result = explain_unrecorded(result, f"{step.unkept}.", is_kept=False)
                if result is not None and was_cut_short(result):
                    result = await self._after_cut(step, result, live)
        except WorkspaceError as error:
            if result is not None:
                unkept = next((one.unkept for one in self._checkpoints.steps if one.call_id == call.id), "")
                is_recorded = self._checkpoints.is_synced
                result = explain_unrecorded(result, str(error), is_kept=not unkept, is_recorded=is_recorded)
        finally:
            self._limited.discard(call.id)
            self._guarded.end()
            self._shared.lock.leave(self._tokens.pop(call.id))
        mode = self._checkpoints.root_mode
        if mode is not None and mode.notes and result is not None:
            result = add_notes(result, mode)
        return result

    async def withdraw(self, prepared: PreparedCall) -> None:
        """Forget a call that did not run; see `aisotools.session.guards.SupportsWithdrawal`."""
        call_id = prepared.original.id
        try:
            await in_thread(self._checkpoints.withdraw, call_id)
            self._states.withdraw(call_id)
        finally:
            self._writers.end(call_id)
            self._limited.discard(call_id)
            self._guarded.end()
            self._shared.lock.leave(self._tokens.pop(call_id))

    @asynccontextmanager
    async def _stop_for_taking_back(
        self, call_id: str, result: ToolResult | None
    ) -> AsyncIterator[BackgroundProcesses]:
        """Stop the sandbox within the context if what the call has changed is to be taken back there.

        Else a thread that it has left would write on before that, which counts as somebody else's change.
        The context is what else runs in the background. If there is anything, nothing can be taken back.
        """
        live: BackgroundProcesses = {}, {}
        if result is None or self._on_timeout == "keep" or not result.metadata.get("timed_out"):
            yield live
            return
        await self._shared.wait_for_snapshots()
        try:
            live = await self._shared.find_running()
        except OSError as error:  # nobody can see what runs, so nothing is taken back
            live = {0: f"perhaps something ({error.strerror})"}, {}
        async with AsyncExitStack() as stopping:
            if not live[0] and self._tokens.keys() == {call_id}:
                with suppress(SandboxError, OSError):  # the undo is refused then, for the same reason
                    await stopping.enter_async_context(self._shared.stop_until_replaced(self._sandbox))
            yield live

    async def _after_cut(self, step: Checkpoint, result: ToolResult, live: BackgroundProcesses) -> ToolResult:
        """Say what a call has changed that was cut short, and take it back if that was asked for."""
        paths = await in_thread(self._checkpoints.list_changes, step)
        changes = await in_thread(self._checkpoints.changes_by_author, step)
        is_covered = bool(step.before[WORKSPACE_KEY] and step.after.get(WORKSPACE_KEY))
        stays = self._on_timeout == "keep" or result.metadata.get("timed_out") is not True
        if stays or not (paths or step.changes_variables):
            beside = self._checkpoints.list_overlapping(step)
            return explain_kept(result, paths if is_covered else None, changes, beside)
        # The worker may be one that has the variables from before this call already.
        metadata = result.metadata
        is_back = metadata.get("state_kept") is True and metadata.get("state_before") == step.call_id
        plan = self._choice("undo").plan(1, files_only=is_back)
        others = [call_id for call_id in self._tokens if call_id != step.call_id]
        running, helpers = live
        if others:
            undone = refusal(f"Another call is running: {summarize_names(others)}.")
        elif running:
            undone = refusal(describe_running(running))
        elif work := self._shared.find_host_work():
            undone = refuse_for_host_work("undo", work)
        elif isinstance(plan, UndoPlan):
            undone = await run_to_completion(self._carry_out(plan, helpers, force=False, keeps=is_back))
        else:
            undone = plan
        return explain_taken_back(result, paths, undone, changes)

    def _forget_states(self) -> None:
        """Forget which states calls have found that can be neither undone nor redone any more."""
        steps = [*self._checkpoints.steps, *self._checkpoints.undone]
        self._states.retain({*self._tokens, *(step.call_id for step in steps)})

    def _on_worker_event(self, event: SessionEvent) -> None:
        if isinstance(event, SandboxLost):
            self._states.note_lost()
        else:
            self._states.note_started()

    def _path_outside(self, prepared: PreparedCall) -> Path | None:
        """Return the path outside the workspace that a host tool says it changes, if it can be covered."""
        if (declared := undo_path(prepared.tool, prepared.arguments)) is None:
            return None
        path = self._workspace / declared
        return path if self._checkpoints.covers(path) else None

    @property
    def store(self) -> Store:
        """The contents of all checkpoints."""
        return self._checkpoints.store

    @property
    def disk_bytes(self) -> tuple[int, int]:
        """Return what is kept on the disk; see `UndoHistory.disk_bytes`."""
        return self._checkpoints.store.size, self._checkpoints.kept_bytes

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[Snapshot]:
        """Hold the workspace as it is now; see `UndoHistory.exclusive`."""
        if self._shared.lock.is_inside():
            raise UsageError("A call is running here. Wait until it has ended.")
        token = await self._shared.lock.enter(object())
        try:
            yield await self._scans.run(self._checkpoints.snapshot, "", inline=False)
        finally:
            self._shared.lock.leave(token)

    # -- before a call: what undo will cover

    def can_undo(self, facts: Facts) -> bool:
        """Return whether undo covers everything that a call of these facts may change."""
        if facts.runs_in != "sandbox" or facts.level == "limited" or facts.hosts or facts.outside:
            return False
        only_files = facts.path_guarded or bool(facts.commands)  # programs cannot reach the variables
        if not only_files and self._variables is None:
            return False
        latest = self._checkpoints.latest
        if latest is None:
            return self._would_fit()
        return bool(latest.root) and not latest.uncovered_count

    async def measure(self) -> None:
        """Look at the workspace before the first call, so that no call has to look at a large one."""
        self._fits_at_first = await in_thread(self._checkpoints.fits)

    def _would_fit(self) -> bool:
        if not self._checkpoints.is_busy:
            with suppress(TooSlow):  # it is large: what was found at first counts
                return self._scans.fits()
        return self._fits_at_first

    async def describe(self, prepared: PreparedCall) -> str:
        """Return what undo will and will not restore of a call, in sentences for its card."""
        try:
            # Nothing needs to stand still for a sentence: the call's own checkpoint scans again.
            snapshot = await self._scans.run(self._checkpoints.snapshot, prepared.original.id, frozen=False)
        except WorkspaceError as error:
            return f"It cannot be undone: {error}"
        declared, is_covered = None, False
        if prepared.facts.runs_in == "host" and (named := undo_path(prepared.tool, prepared.arguments)):
            declared = str(self._workspace / named)
            inside = Path(resolve_links(declared)).is_relative_to(self._workspace.resolve())
            is_covered = inside or await in_thread(self._path_outside, prepared) is not None
        return describe_coverage(snapshot, prepared.facts, declared, is_covered=is_covered)

    # -- undo, redo, changes

    async def undo(
        self,
        steps: int = 1,
        *,
        to: str | None = None,
        force: bool = False,
        variables: VariablesChoice = "restore",
    ) -> ToolResult:
        """Undo calls, the latest first; see `Session.undo`."""
        return await self._move("undo", steps, to, force=force, variables=variables)

    async def redo(
        self, steps: int = 1, *, force: bool = False, variables: VariablesChoice = "restore"
    ) -> ToolResult:
        """Redo what was undone; see `Session.redo`."""
        return await self._move("redo", steps, None, force=force, variables=variables)

    async def changes(self, since: str | None = None) -> Changes:
        """Return the changes since before a call, or since the session's first; see `Session.changes`."""
        snapshot = await self._scans.run(self._checkpoints.snapshot, since or "")
        steps = [*self._checkpoints.steps, *self._checkpoints.undone[::-1]]
        root, begins = self._first_root, ""
        if since is not None:
            found = [step for step in steps if step.call_id == since]
            if not found:
                raise UsageError(f"There is no checkpoint from before a call {since!r}. {known_ids(steps)}")
            root = found[-1].before[""]
        elif root and not self._checkpoints.is_pinned(root):
            root = steps[0].before[""] if steps else snapshot.root
            begins = describe_beginning(steps[:1])
        self._keep_first(snapshot)
        # Race: meanwhile another session on the workspace may drop the step.
        if not root or not snapshot.root or not self._checkpoints.pin(root):
            return Changes(uncovered=list_uncovered(snapshot), since=begins, reach=await self.reach())

        def compare() -> Changes:
            with gc_paused():  # as for a scan
                return changes_between(self._checkpoints.store, root, snapshot.root, list_uncovered(snapshot))

        try:
            changes = await in_thread(compare)
        finally:
            self._checkpoints.unpin(root)
        return dataclasses.replace(changes, since=begins, reach=await self.reach())

    def _keep_first(self, snapshot: Snapshot) -> None:
        """Keep the workspace as it is before the session's first call, for `changes`."""
        if not self._first_root and snapshot.root and self._checkpoints.pin(snapshot.root):
            self._first_root = snapshot.root

    async def reach(self) -> str:
        """Return how far undo reaches back; see `UndoHistory.reach`."""
        await self._shared.wait_for_snapshots()
        return self._choice("undo").describe(damaged=len(self.store.damaged))

    def _choice(self, direction: Direction) -> UndoChoice:
        variables = self._variables
        return UndoChoice(
            direction,
            self._checkpoints.steps if direction == "undo" else self._checkpoints.undone,
            self._states,
            None if variables is None else variables.why_not_kept,
            dropped=self._checkpoints.dropped,
            superseded_by="" if direction == "undo" else printable(self._checkpoints.superseded_by),
            undone=self._checkpoints.undone,
        )

    async def _move(
        self, direction: Direction, count: int, to: str | None, *, force: bool, variables: VariablesChoice
    ) -> ToolResult:
        check_options(count, to, force=force, variables=variables)
        if self._shared.lock.is_inside():
            return refusal(f"A call is running here. {direction.capitalize()} when it has ended.")
        token = await self._shared.lock.enter(object())  # a holder of its own: every other call has ended
        try:
            self._refuse_if_closed()
            if problem := self._record.find_problem() if self._record is not None else "":
                return refusal(f"Nothing was changed: the {direction} could not be recorded. {problem}")
            # A fork that keeps variables is only known once it has answered. Until then it would be taken for
            # a background task and refuse the undo, or be killed by force.
            await self._shared.wait_for_snapshots()
            choice = self._choice(direction)
            count = count if to is None else choice.count_to(to)
            plan = choice.plan(count, to=to, files_only=variables == "keep", force=force)
            if isinstance(plan, ToolResult):
                return plan
            running, helpers = await self._shared.find_running()
            if running and not force:
                return refuse_for_processes(direction, running)
            work = self._shared.find_host_work()
            if work and not force:
                return refuse_for_host_work(direction, work)
            # Cancelled half way, it would leave the files of one state with the variables of another.
            undone = {step.call_id for step in self._checkpoints.undone}
            events = self._event_log.events
            passed_over = find_passed_over(events, plan, undone) if direction == "undo" else []
            moving = self._carry_out(plan, running | helpers, force=force, keeps=variables == "keep")
            moved = await run_to_completion(moving)
            moved = explain_left_running(moved, helpers, self._shared.find_host_work())
            return explain_passed_over(moved, passed_over)
        except OSError as error:  # whatever comes up once something was touched is answered there
            return refuse_for_system(direction, error)
        finally:
            self._shared.lock.leave(token)

    async def _carry_out(
        self, plan: UndoPlan, running: Mapping[int, str], *, force: bool, keeps: bool
    ) -> ToolResult:
        direction = plan.direction

        def move(progress: ProgressCallback) -> UndoResult:  # noqa: ARG001 - a move does not report any
            # First: a process that writes on while files are put back would leave a mixture of both.
            self._shared.kill(running, forced=force)
            waits = self._variables is not None and not keeps
            return self._checkpoints.move(direction, plan.checkpoints, force=force, keeps_replaced=waits)

        origin = 0
        self._forget_states()
        self._states.latest = self._states.latest if self._checkpoints.undone else self._states.now
        async with AsyncExitStack() as stopping:
            self._refuse_if_closed()
            stopping.enter_context(self._moving.under_way())
            if self._variables is not None and not keeps and plan.variables.state is not None:
                try:
                    # Where something is killed, what is made ready could be taken for that.
                    ready = None if running or force else plan.variables.call_id
                    stop = self._shared.stop_until_replaced(self._sandbox, ready)
                    origin = await stopping.enter_async_context(stop)
                except OSError as error:
                    return refuse_for_system(direction, error)
                except SandboxError as error:
                    why = f"{as_clause(error)}. Retry, or restart the sandbox."
                    return refusal(f"The {direction} was not begun: {why}")
            try:
                moved = await self._scans.run(move, "", inline=False)
            except WorkspaceError as error:
                return refusal(f"The {direction} failed: {error}")
            finally:
                self.announce()
            if moved.conflicts and not moved.done:
                together = self._choice(direction).count_with(moved.together)
                may_be_left = self._shared.has_run_code
                return await in_thread(conflict_result, moved, together, may_be_left=may_be_left)
            self._reads.forget()
            if not moved.done:
                return await in_thread(failed_result, moved)
            paths = (*moved.restored, *moved.removed)
            # Meanwhile: what the next worker has open is what the snapshot has of which it is a copy.
            look = functools.partial(self._shared.find_detached, paths, self._sandbox, origin)
            looking = start_in_thread(look) if origin else None
            try:
                variables = await self._move_variables(plan, keeps=keeps)
            except (SandboxError, OSError) as error:
                why = explain_system_error(error) if isinstance(error, OSError) else str(error)
                return await self._revert(moved, why)
            if moved.keeps_replaced:
                await in_thread(self._checkpoints.discard_replaced)

        def explain(detached: DetachedFiles | None) -> ToolResult:
            if detached is None:
                detached = self._shared.find_detached(paths)
            return explain_detached(move_result(plan, moved, variables), detached)

        detached = await looking if looking is not None else None
        if detached is not None and not exists(origin):
            detached = None  # race: it may have ended before all of it was read
        # In a thread, and in a turn of the loop of its own: the paths may be a hundred thousand.
        is_quick = detached is not None and len(paths) <= _QUICK_PATHS
        result = explain(detached) if is_quick else await in_thread(explain, detached)
        mode = self._checkpoints.root_mode
        if mode is not None and mode.notes:
            result = add_notes(result, mode)
        self._event_log.add(
            Undone if direction == "undo" else Redone,
            call_ids=tuple(call.call_id for call in moved.steps),
            restored=moved.restored,
            removed=moved.removed,
            missing=tuple(result.value["missing"]),
            variables=variables,
            forced=force,
            steps=len(plan.steps),
            files_only=keeps,
        )
        return explain_record(result, direction, self._record)

    async def _revert(self, moved: UndoResult, problem: str) -> ToolResult:
        back: UndoResult | str
        try:
            back = await self._scans.run(lambda **_: self._checkpoints.revert(moved), "", inline=False)
        except WorkspaceError as error:
            back = str(error)

        def explain() -> ToolResult:
            # What is put back is a new file, and not the one that a variable has open.
            detached = self._shared.find_detached((*moved.restored, *moved.removed))
            return explain_detached(reverted_result(moved, problem, back), detached)

        return await in_thread(explain)

    # -- variables

    async def _move_variables(self, plan: UndoPlan, *, keeps: bool) -> str:
        """Move the variables along with the files. Return what became of them, for the result.

        Raises:
            SandboxError: If they could not be restored.
        """
        changing = [step for step in plan.steps if step.changes_variables]
        if keeps:
            return VARIABLES_LEFT if changing else ""
        variables = self._variables
        elsewhere = [step for step in changing if step.call_id not in self._states]
        sentences = [describe_elsewhere(elsewhere)] if elsewhere else []
        if variables is None:
            return " ".join([describe_unsupported()] * (len(elsewhere) < len(changing)) + sentences)
        target = plan.variables
        if target.state is not None:
            if variables.why_not_kept(None):
                self._states.left = self._states.now  # nothing to redo yet: it goes back to the present
            if plan.direction == "undo" and target.call_id is not None:
                point: VariablePoint | None = await variables.restore(target.call_id)
            else:
                point = await variables.redo(target.call_id)
            if point is None:
                raise SandboxError("The sandbox has lost the variables that were undone.")
            self._states.now = target.state
            sentences.insert(0, describe_restored(plan, point))
        return " ".join(sentences)
