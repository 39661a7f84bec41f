"""Undo: a checkpoint around every call that may change something, of files and of variables.

`WorkspaceHistory` is a guard (see `aisotools.session.guards`): it takes the checkpoints, and undoes and
redoes calls. The sandbox's process tree is stopped while a checkpoint is taken and while files are restored.
What cannot be restored is said before the call, on its card, and after an undo, in its result.

A call that is asked about takes three scans: for its card, before it runs, and after it. None can stand for
another one. While a person reads the card, files may appear that are too large to be stored, or be edited;
taken for part of the call, the edits would be undone with it. A scan reads only files whose change time is
new, so the second and the third cost one `lstat` for each file.
`NoUndoHistory` is the history of a session whose files are on another machine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from aisotools.core.concurrency import gc_paused
from aisotools.core.events import CallEmitted, CheckpointTaken, Redone, Undone
from aisotools.core.exceptions import SandboxError, UsageError, WorkspaceError
from aisotools.core.sandboxes import Sandbox, SupportsSnapshots, VariableHistory, VariablePoint
from aisotools.core.truncation import summarize_names
from aisotools.core.types import Facts, Json, ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.sandbox.process.tree import TooManyProcesses
from aisotools.session.event_log import EventLog
from aisotools.session.sharing import LockToken, SharedWorkspace
from aisotools.tools.adapter import undo_path
from aisotools.workspace.checkpoints.scan import ProgressCallback, Snapshot, TooSlow
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.timeline import Checkpoint, Direction, UndoResult
from aisotools.workspace.diff import Changes, changes_between
from aisotools.workspace.paths import printable
from aisotools.workspace.read_tracker import ReadCache
from aisotools.workspace.root_mode import RootMode

_MAX_LISTED = 20
"""Names in one list of a message; the rest is counted."""

_CHARGED_STEP_BYTES = 64 << 10
"""Changes in the memory that checkpoints take are charged when they come to more than this."""

_CHECKPOINTS_SHARE = 4
"""What a scan remembers of the workspace has at most this part of the session's budget. More is in a file."""

_INLINE_ENTRIES = 1_500
"""Up to so many files a checkpoint is taken on the event loop: a thread would take longer than the scan. One
that is new or changed counts as 20."""

_INLINE_THREADS = 64
"""Processes with up to so many threads are stopped on the event loop while a checkpoint is taken."""

_INLINE_BYTES = 1 << 20
"""If more than this has to be copied, the scan moves to a thread."""

_PROGRESS_INTERVAL_S = 1.0
"""How often a slow checkpoint reports its progress."""

T = TypeVar("T")


class UndoHistory(Protocol):
    """The undo history of a session. `WorkspaceHistory` and `NoUndoHistory` implement it."""

    @property
    def store(self) -> Store:
        """The contents of all checkpoints.

        Raises:
            UsageError: If nothing is kept.
        """

    def can_undo(self, facts: Facts) -> bool:
        """Return whether undo covers everything that a call of these facts may change."""

    async def describe(self, prepared: PreparedCall) -> str:
        """Return what undo will and will not restore of a call, in sentences for its card."""

    async def undo(self, steps: int = 1, *, to: str | None = None, force: bool = False) -> ToolResult:
        """Undo calls, the latest first; see `Session.undo`."""

    async def redo(self, steps: int = 1, *, force: bool = False) -> ToolResult:
        """Redo what was undone; see `Session.redo`."""

    async def changes(self, since: str | None = None) -> Changes:
        """Return the changes since before a call, or since the session's first; see `Session.changes`."""

    def exclusive(self) -> AbstractAsyncContextManager[Snapshot]:
        """Hold the workspace as it is now: no call changes it until the context is left.

        Raises:
            UsageError: From within a call, which would wait for itself; or if nothing is kept.
        """

    def close(self) -> None:
        """Release the workspace."""


class NoUndoHistory:
    """The history of a session whose files are on another machine: every request is refused."""

    _REASON = (
        "Calls of this session run on another machine, where no earlier state of files or variables is kept"
    )

    @property
    def store(self) -> Store:
        """Refuse: there is none."""
        raise UsageError(f"{self._REASON}.")

    def can_undo(self, facts: Facts) -> bool:  # noqa: ARG002 - the same for all
        """Return False."""
        return False

    async def describe(self, prepared: PreparedCall) -> str:
        """Return why the call cannot be undone."""
        if prepared.facts.runs_in == "host":
            return "It cannot be undone: this session keeps no earlier state."
        return "It cannot be undone: it runs on another machine."

    async def undo(self, steps: int = 1, *, to: str | None = None, force: bool = False) -> ToolResult:  # noqa: ARG002 - the same for all
        """Return a refusal."""
        return _refusal(f"{self._REASON}, so nothing can be undone from here.")

    async def redo(self, steps: int = 1, *, force: bool = False) -> ToolResult:  # noqa: ARG002 - the same for all
        """Return a refusal."""
        return _refusal(f"{self._REASON}, so there is nothing to redo.")

    async def changes(self, since: str | None = None) -> Changes:  # noqa: ARG002 - the same for all
        """Refuse.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"{self._REASON}, so changes cannot be listed from here. Ask `sandbox_bash`, with git or diff."
        )

    def exclusive(self) -> AbstractAsyncContextManager[Snapshot]:
        """Refuse.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{self._REASON}, so it has no branches. Open another session there.")

    def close(self) -> None:
        """Do nothing: nothing is held."""


@dataclass(slots=True)
class _CopyProgress:
    """Bytes copied and to be copied so far. Written by the scanning thread, read by the loop."""

    done: int = 0
    total: int = 0

    def update(self, done: int, total: int) -> None:
        self.done = done
        self.total = total


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
    ) -> None:
        """Record the calls of one session; other sessions of this process may share the workspace.

        Args:
            shared: The workspace. `close` gives it back.
            sandbox: The sandbox whose variables are restored with the files.
            event_log: Gets checkpoints, undo and redo.
            reads: Forgets what was read when files are restored.
            session_key: The conversation, for the record of each checkpoint.
        """
        self._shared = shared
        self._checkpoints = shared.checkpoints
        self._workspace = shared.folder
        self._sandbox = sandbox
        self._event_log = event_log
        self._reads = reads
        self._session_key = session_key
        self._tokens: dict[str, LockToken] = {}
        self._first_root = ""
        self._fits_at_first = False
        self._undone_variables: list[tuple[str, ...]] = []
        self._charged_bytes = 0
        self._checkpoints.limit_memory(event_log.budget.limit_bytes // _CHECKPOINTS_SHARE)

    def __repr__(self) -> str:
        return f"<WorkspaceHistory of {self._checkpoints!r}>"

    def close(self) -> None:
        """Release the workspace; the last session on it closes its checkpoints."""
        self._shared.release(self._sandbox)
        self._event_log.budget.release(self._charged_bytes)
        self._charged_bytes = 0

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
            outside = await asyncio.to_thread(self._path_outside, prepared)
        token = await self._shared.lock.enter(self)
        try:
            begin = functools.partial(
                self._checkpoints.begin,
                call.id,
                call.name,
                self._session_key,
                outside=outside,
                beyond=_describe_irreversible(prepared, covered=outside is not None),
            )
            snapshot = await self._scan(begin, call.id)
        except BaseException as error:
            self._shared.lock.leave(token)
            if isinstance(error, WorkspaceError):
                raise SandboxError(f"{call.name} was not run: {error}") from error
            raise
        self._tokens[call.id] = token
        self._first_root = self._first_root or snapshot.root
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
        try:
            await self._scan(functools.partial(self._checkpoints.end, call.id), call.id)
            if self._checkpoints.has_excess:
                await asyncio.to_thread(self._checkpoints.drop_old)
        except WorkspaceError as error:
            if result is not None:
                result = result.with_metadata(undo=f"This call cannot be undone: {error}")
        finally:
            self._shared.lock.leave(self._tokens.pop(call.id))
        mode = self._checkpoints.root_mode
        if mode is not None and mode.notes and result is not None:
            result = _add_notes(result, mode)
        return result

    async def _scan(
        self, scan: Callable[..., T], call_id: str, *, inline: bool = True, frozen: bool = True
    ) -> T:
        """Run `scan`, on the loop if there are few files and few processes, else in a thread.

        Args:
            scan: Takes a callback for its `progress`; on the loop also `max_work` and `may_wait`.
            call_id: The call whose progress it is.
            inline: Whether it may run on the loop at all.
            frozen: Whether the sandbox's processes are stopped meanwhile.
        """
        latest = self._checkpoints.latest
        hold: Callable[..., AbstractContextManager[object]] = self._shared.freeze if frozen else nullcontext
        is_small = latest is not None and latest.entries <= _INLINE_ENTRIES
        try:
            if inline and is_small and not self._checkpoints.is_busy:
                try:
                    with hold(_INLINE_THREADS):
                        return scan(progress=_refuse_large, max_work=_INLINE_ENTRIES, may_wait=False)
                except (TooSlow, TooManyProcesses):
                    pass  # what was copied of a large new file so far is kept; a thread does the rest
            progress = _CopyProgress()

            def scan_in_thread() -> T:
                # A collection of garbage looks at every node of a tree, and holds up the event loop.
                with hold(), gc_paused():
                    return scan(progress=progress.update)

            scanning = asyncio.ensure_future(asyncio.to_thread(scan_in_thread))
            while not (await asyncio.wait([scanning], timeout=_PROGRESS_INTERVAL_S))[0]:
                self._event_log.add(
                    CallEmitted,
                    call_id,
                    name="checkpoint",
                    payload={"done_bytes": progress.done, "total_bytes": progress.total},
                )
            return scanning.result()
        finally:
            # All sessions on this workspace share the checkpoints, and each is charged for them.
            memory_bytes = self._checkpoints.memory_bytes
            if abs(memory_bytes - self._charged_bytes) > _CHARGED_STEP_BYTES:
                self._event_log.budget.charge(memory_bytes - self._charged_bytes)
                self._charged_bytes = memory_bytes

    def _path_outside(self, prepared: PreparedCall) -> Path | None:
        """Return the path outside the workspace that a host tool says it changes, if it can be covered."""
        declared = undo_path(prepared.tool, prepared.arguments)
        if declared is None:
            return None
        path = self._workspace / declared
        return path if self._checkpoints.covers(path) else None

    @property
    def store(self) -> Store:
        """The contents of all checkpoints."""
        return self._checkpoints.store

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[Snapshot]:
        """Hold the workspace as it is now; see `UndoHistory.exclusive`."""
        if self._shared.lock.is_inside():
            raise UsageError("A call is running here. Wait until it has ended.")
        token = await self._shared.lock.enter(object())
        try:
            yield await self._scan(self._checkpoints.snapshot, "", inline=False)
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
        self._fits_at_first = await asyncio.to_thread(self._checkpoints.fits)

    def _would_fit(self) -> bool:
        if not self._checkpoints.is_busy:
            try:
                return self._checkpoints.fits(_INLINE_ENTRIES)
            except TooSlow:
                pass  # it is large: what was found at first counts
        return self._fits_at_first

    async def describe(self, prepared: PreparedCall) -> str:
        """Return what undo will and will not restore of a call, in sentences for its card."""
        try:
            # Nothing needs to stand still for a sentence: the call's own checkpoint scans again.
            snapshot = await self._scan(self._checkpoints.snapshot, prepared.original.id, frozen=False)
        except WorkspaceError as error:
            return f"It cannot be undone: {error}"
        uncovered = list_uncovered(snapshot)
        sentences = ["Undo brings back the files of the workspace."]
        if uncovered:
            sentences = [
                f"Undo brings back the files of the workspace, but not {summarize_names(uncovered)}."
            ]
        if prepared.facts.runs_in == "host":
            declared = undo_path(prepared.tool, prepared.arguments)
            if declared is not None:
                path = self._workspace / declared
                inside = path.resolve().is_relative_to(self._workspace.resolve())
                if inside or await asyncio.to_thread(self._path_outside, prepared) is not None:
                    sentences.append(f"It also brings back {printable(str(path))}.")
                else:
                    sentences.append(f"It does not cover {printable(str(path))}.")
            sentences.append("Whatever else it does outside the workspace stays done.")
        elif prepared.facts.level == "limited":
            sentences.append("At level limited it may change files elsewhere, which stay changed.")
        return " ".join(sentences)

    # -- undo, redo, changes

    async def undo(self, steps: int = 1, *, to: str | None = None, force: bool = False) -> ToolResult:
        """Undo calls, the latest first; see `Session.undo`."""
        return await self._move("undo", steps, to, force=force)

    async def redo(self, steps: int = 1, *, force: bool = False) -> ToolResult:
        """Redo what was undone; see `Session.redo`."""
        return await self._move("redo", steps, None, force=force)

    async def changes(self, since: str | None = None) -> Changes:
        """Return the changes since before a call, or since the session's first; see `Session.changes`."""
        steps = [*self._checkpoints.steps, *self._checkpoints.undone]
        root = self._first_root
        if since is not None:
            found = [step for step in steps if step.call_id == since]
            if not found:
                raise UsageError(f"There is no checkpoint from before a call {since!r}. {_known_ids(steps)}")
            root = found[-1].before[""]
        snapshot = await self._scan(self._checkpoints.snapshot, since or "")
        self._first_root = self._first_root or snapshot.root
        if not root or not snapshot.root:
            return Changes(uncovered=list_uncovered(snapshot))

        def compare() -> Changes:
            with gc_paused():  # as for a scan
                return changes_between(self._checkpoints.store, root, snapshot.root, list_uncovered(snapshot))

        return await asyncio.to_thread(compare)

    async def _move(self, direction: Direction, count: int, to: str | None, *, force: bool) -> ToolResult:
        count = _check_count(count)
        if self._shared.lock.is_inside():
            return _refusal(f"A call is running here. {direction.capitalize()} when it has ended.")
        token = await self._shared.lock.enter(object())  # a holder of its own: every other call has ended
        try:
            steps, counted = self._choose_steps(direction, count, to)
            if not steps:
                return _refusal(f"There is nothing to {direction}.")
            # A fork that keeps variables is only known once it has answered. Until then it would be taken for
            # a background task and refuse the undo, or be killed by force.
            await self._shared.wait_for_snapshots()
            running = self._shared.find_background_processes()
            if running and not force:
                names = summarize_names([f"{printable(name)} ({pid})" for pid, name in running.items()])
                return _refusal(
                    f"{names} still runs in the background and may go on changing files. "
                    f"Stop it first; with force=True the {direction} stops it, too."
                )

            def move(progress: ProgressCallback) -> UndoResult:  # noqa: ARG001 - a move does not report any
                # First: a process that writes on while files are put back would leave a mixture of both.
                self._shared.kill(running)
                return self._checkpoints.move(direction, steps, force=force)

            try:
                moved = await self._scan(move, "", inline=False)
            except WorkspaceError as error:
                return _refusal(f"The {direction} failed: {error}")
            if not moved.done:
                return await asyncio.to_thread(_conflict_result, moved)
            self._reads.forget()
            ids = [step.call_id for step in steps]
            variables = await self._move_variables(direction, steps, ids)
        finally:
            self._shared.lock.leave(token)
        # In a thread, and in a turn of the loop of its own: the paths may be a hundred thousand.
        result = await asyncio.to_thread(_move_result, moved, variables)
        mode = self._checkpoints.root_mode
        if mode is not None and mode.notes:
            result = _add_notes(result, mode)
        self._event_log.add(
            Undone if direction == "undo" else Redone,
            call_ids=tuple(ids),
            restored=moved.restored,
            removed=moved.removed,
            missing=tuple(result.value["missing"]),
            variables=variables,
            forced=force,
            steps=counted,
        )
        return result

    def _choose_steps(self, direction: Direction, count: int, to: str | None) -> tuple[list[Checkpoint], int]:
        """Return the steps to move over, the next one first, and how many of them changed something.

        `count` is of those that did; the others come along with the next one that did.
        """
        source = self._checkpoints.steps if direction == "undo" else self._checkpoints.undone
        if to is not None and all(step.call_id != to for step in source):
            raise UsageError(f"There is no call {to!r} to undo. {_known_ids(source)}")
        with_variables = self._calls_with_variables()
        chosen: list[Checkpoint] = []
        counted = 0
        length = 0  # of `chosen` up to the last step that counts
        for step in reversed(source):
            counts = step.changed or step.call_id in with_variables
            if to is None and counts and counted == count:
                break
            chosen.append(step)
            if counts:
                counted += 1
                length = len(chosen)
            if step.call_id == to:
                return chosen, counted
        return chosen[:length], counted

    # -- variables

    @property
    def _variables(self) -> VariableHistory | None:
        return self._sandbox.variables if isinstance(self._sandbox, SupportsSnapshots) else None

    def _calls_with_variables(self) -> set[str]:
        """Return the calls from before which variables are kept, or were restored by an undo."""
        variables = self._variables
        calls: set[str] = set().union(*self._undone_variables)
        for point in variables.points() if variables is not None else ():
            calls.add(point.call_id)
        return calls

    async def _move_variables(
        self, direction: Direction, steps: Sequence[Checkpoint], ids: Sequence[str]
    ) -> str:
        """Move the variables along with the files. Return what became of them, for the result."""
        variables = self._variables
        try:
            if direction == "redo":
                return await self._redo_variables(variables, ids)
            earliest = ""
            for point in variables.points() if variables is not None else ():
                if point.call_id in ids and (not earliest or ids.index(point.call_id) > ids.index(earliest)):
                    earliest = point.call_id
            if variables is None or not earliest:
                touched = any(step.name == "python" for step in steps)
                return _describe_unchanged(supported=variables is not None) if touched else ""
            restored = await variables.restore(earliest)
        except SandboxError as error:
            return f"They were not brought back: {error}"
        self._undone_variables.append(tuple(ids))
        return f"They are as before {earliest}{_describe_loss(restored)}"

    async def _redo_variables(self, variables: VariableHistory | None, ids: Sequence[str]) -> str:
        if variables is None or not any(set(ids) & set(batch) for batch in self._undone_variables):
            return ""
        if set(self._undone_variables[-1]) != set(ids):
            return "They stay as they are: only the last undo of them can be redone, and as a whole."
        point = await variables.redo()
        if point is None:
            return "They stay as they are: a call has changed them since."
        self._undone_variables.pop()
        return f"They are as they were before the undo{_describe_loss(point)}"


def _check_count(count: object) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"steps={count!r}: use a whole number from 1.")
    return count


def _refuse_large(done: int, total: int) -> None:
    if total - done > _INLINE_BYTES:
        raise TooSlow


# -- messages


def _add_notes(result: ToolResult, mode: RootMode) -> ToolResult:
    """Return a result that says what became of the mode of the workspace's folder."""
    notes, mode.notes = mode.notes, []
    content = "\n".join([result.content, *(f"[{note}]" for note in notes)]).lstrip("\n")
    return dataclasses.replace(result, content=content).with_metadata(workspace_mode=notes)


def list_uncovered(snapshot: Snapshot) -> tuple[str, ...]:
    """Return what a checkpoint does not cover, each with its reason."""
    if not snapshot.uncovered_count:
        return ()
    paths = [
        f"{printable('/'.join(path)) or 'the workspace'} ({reason})" for path, reason in snapshot.uncovered
    ]
    more = snapshot.uncovered_count - len(paths)
    if more > 0:
        paths.append(f"{more:,} more")
    return tuple(paths)


def _describe_irreversible(prepared: PreparedCall, *, covered: bool) -> str:
    """Return what a call does that no undo reverts, or nothing."""
    facts = prepared.facts
    if facts.hosts:
        return f"{prepared.original.name} talked to {summarize_names(facts.hosts)}."
    if facts.runs_in == "host" and not covered:
        return f"{prepared.original.name} ran on the host; what it did outside the workspace is not undone."
    return ""


def _describe_loss(point: VariablePoint) -> str:
    return f", but for: {summarize_names(point.lost)}." if point.lost else "."


def _describe_unchanged(*, supported: bool) -> str:
    """Return why the variables were not restored."""
    if supported:
        return "They were not brought back: no earlier state of them is kept."
    return (
        "They were not brought back: this sandbox cannot keep earlier states of them, because its worker "
        "cannot be forked. Run the cells again that made them."
    )


def _known_ids(steps: Sequence[Checkpoint]) -> str:
    ids = [step.call_id for step in steps][-_MAX_LISTED:]
    return f"Known: {', '.join(ids)}." if ids else "There was none so far."


def _refusal(message: str) -> ToolResult:
    return ToolResult.error(message, error_kind="invalid")


def _move_result(moved: UndoResult, variables: str) -> ToolResult:
    """Build the result of an undo or redo that was carried out."""
    calls, names, stays_done = [], [], []
    for step in moved.steps:
        calls.append({"id": step.call_id, "name": step.name})
        names.append(f"{step.name} ({step.call_id})")
        if step.beyond:
            stays_done.append(step.beyond)
    missing = []
    for path, reason in moved.missing:
        missing.append(f"{path or 'the workspace'} ({reason})")
    verb = "Undid" if moved.direction == "undo" else "Redid"
    noun = "call" if len(calls) == 1 else "calls"
    lines = [f"{verb} {len(calls)} {noun}: {summarize_names(names)}."]
    if moved.restored:
        lines.append(f"Brought back: {summarize_names(moved.restored)}.")
    if moved.removed:
        lines.append(f"Removed: {summarize_names(moved.removed)}.")
    if not (moved.restored or moved.removed or missing):
        lines.append("No file had to be changed.")
    if missing:
        lines.append(f"Not brought back: {summarize_names(missing)}.")
    if variables:
        lines.append(f"Variables: {variables}")
    if stays_done:
        lines.extend(f"Stays done: {sentence}" for sentence in stays_done)
    value: dict[str, Json] = {
        "calls": calls,
        "restored": list(moved.restored),
        "removed": list(moved.removed),
        "missing": missing,
        "variables": variables,
        "stays_done": stays_done,
        "conflicts": _list_conflicts(moved),
    }
    # Not `ToolResult.json`, which encodes the value to see whether it is JSON: with a hundred thousand paths
    # that holds up the event loop.
    content, metadata = "\n".join(lines), {"tool": moved.direction}
    return ToolResult(content=content, kind="json", value=value, metadata=metadata)


def _conflict_result(moved: UndoResult) -> ToolResult:
    """Build the result of an undo or redo that was refused, since somebody else changed the same files."""
    lines = [f"Nothing was changed, since this {moved.direction} would overwrite what somebody else did:"]
    lines += [f"- {path}: {reason}" for path, reason in moved.conflicts[:_MAX_LISTED]]
    if len(moved.conflicts) > _MAX_LISTED:
        lines.append(f"- and {len(moved.conflicts) - _MAX_LISTED} more")
    lines.append(f"Keep it by leaving it as it is, or {moved.direction} with force=True.")
    result = ToolResult.error("\n".join(lines), error_kind="failed")
    return dataclasses.replace(result, value={"conflicts": _list_conflicts(moved)})


def _list_conflicts(moved: UndoResult) -> list[Json]:
    return [{"path": path, "why": reason} for path, reason in moved.conflicts]
