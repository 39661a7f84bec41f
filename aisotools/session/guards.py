"""The environment in which calls run, and the guards around every call that may change something.

A guard checks the workspace before and after such a call, and may refuse the call or replace its result:

- `Protection` keeps the protected files of a workspace, such as `conftest.py`, as they are, and refuses calls
  when modules could be imported from the workspace;
- `ReadGuard` refuses edits of files that were not read, or that changed since;
- `aisotools.session.history.WorkspaceHistory` records what undo restores.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fnmatch
import logging
import operator
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aisotools.core.events import CallFinished, CallStarted, SessionEvent
from aisotools.core.exceptions import SandboxError, WorkspaceRefused
from aisotools.core.sandboxes import Sandbox
from aisotools.core.truncation import summarize_names
from aisotools.core.types import Facts, ToolCall, ToolResult
from aisotools.policy.prepared import PathsResolver, PreparedCall
from aisotools.policy.rules import Policy, normalize_path
from aisotools.workspace.candidates import OutOfSteps
from aisotools.workspace.import_roots import (
    keep_block_first,
    list_package_files,
    list_packages,
    refuse_import_root,
)
from aisotools.workspace.protected import ProtectedFileChange, ProtectedFiles
from aisotools.workspace.read_tracker import ReadCache, SupportsTouches


class Guard(Protocol):
    """Looks at the workspace around every call that may change something."""

    async def before(self, prepared: PreparedCall) -> None:
        """Get ready for the approved call, which is about to run.

        Raises:
            SandboxError: If the call must not run; the message says why and what would help.
            ToolError: If the caller has to do something else first; the message says what.
        """

    async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        """Look at what the call did. `result` is None for a call that was cancelled.

        Returns:
            The result that the caller gets: the given one, or one that says more, or an error.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnvironment:
    """Where calls run, settled when the session opened.

    Attributes:
        sandbox: Runs what runs in the sandbox.
        level: Its confinement level.
        workspace: The folder that tools may change.
        workspace_policy: The workspace's own policy, which narrows the session's.
        guards: Entered around every call that may change something: `before` in this order, `after` in the
            opposite one.
        on_read: Gets the result of a call that only reads, and returns what its caller gets.
        can_undo: Returns whether undo covers a call of these facts.
        describe_undo: Returns what undo will restore of a call, for its card.
        has_readers: Whether the sandbox can hold tools that only read to it.
        resolve_paths: Returns the facts of a call with their paths resolved in the workspace.
    """

    sandbox: Sandbox
    level: str
    workspace: Path
    workspace_policy: Policy | None = None
    guards: Sequence[Guard] = ()
    on_read: Callable[[PreparedCall, ToolResult], ToolResult] | None = None
    can_undo: Callable[[Facts], bool] | None = None
    describe_undo: Callable[[PreparedCall], Awaitable[str]] | None = None
    has_readers: bool = False
    resolve_paths: PathsResolver | None = None


# ---- import roots


class ImportRootWatch:
    """Repeats `refuse_import_root` for one workspace whenever the answer may have changed."""

    def __init__(self, workspace: Path, environ: Mapping[str, str]) -> None:
        """Watch `workspace`, which has just been accepted; `environ` has `PYTHONPATH`."""
        self._workspace = workspace
        self._environ = environ
        self._modules: tuple[object, ...] = ()
        self._packages: tuple[dict[str, Any], ...] = ()
        self._remember()

    def _remember(self) -> None:
        keep_block_first()
        self._search_path = self._read_search_path()
        self._inits = list_package_files(self._workspace, self._environ)

    def check(self) -> None:
        """Look again if what decides where modules are found, or a file that makes a package, has changed.

        The finder that blocks imports is put first again.

        Raises:
            WorkspaceRefused: Saying what has changed, and what to do.
        """
        if self._search_path != self._read_search_path() or any(map(os.path.lexists, self._inits)):
            keep_block_first()  # before what may be refused: the session stays open
            refuse_import_root(self._workspace, self._environ)
            self._remember()

    def _read_search_path(self) -> tuple[object, ...]:
        """Return where, and by which finders, modules are looked up now: those of loaded packages, too.

        This is done before each call, so thousands of modules are compared by built-in functions alone.
        """
        try:
            here = Path.cwd()
        except FileNotFoundError:
            here = None
        modules = tuple(sys.modules.copy().values())  # another thread may be importing
        if len(modules) != len(self._modules) or not all(map(operator.is_, modules, self._modules)):
            self._modules, self._packages = list_packages()
        folders: list[list[object]] = []
        for package in self._packages:
            try:
                folders.append(list(package["__path__"]))
            except Exception:  # written by strangers; one that cannot be read leads nowhere
                folders.append([])
        return here, list(sys.path), list(sys.meta_path), sys.pycache_prefix, folders


# ---- protected files
#
# Programs outside the sandbox run or obey these files. A call during which one was changed, removed or
# planted fails and names it, and the file is restored. Between calls, a person may edit these files, and so
# may a process that the sandbox left running. A change made while nothing in the sandbox ran is the person's
# and is accepted. Any other change is restored, and the next call is refused once with the reason. Content
# that is removed is kept in the state folder.

_log = logging.getLogger(__name__)

_IDLE_DELAY_S = 0.1
"""Time after a call in which its worker finishes its own work, such as sending the last output."""

_LOOP_STEPS = 1_000
"""Work that a look at the protected files may do on the event loop: 2 to 5 ms. A look that needs more,
or that finds anything to restore, is done again in a thread."""

Activity = Callable[[], Mapping[tuple[int, int], int] | None]
"""Returns how often each thread of the sandbox has run so far, by process and thread id; None if unknown."""

PROTECTED = "protected"
"""Key in a result's metadata: the protected files that the call changed."""


class Protection:
    """A guard for the protected files of one workspace, and for the mode of its folder.

    It follows the session's events as well, since calls that only read use the sandbox too.
    """

    def __init__(
        self, files: ProtectedFiles, activity: Activity, imports: ImportRootWatch | None = None
    ) -> None:
        """Protect the workspace.

        Args:
            files: Its protected files.
            activity: A change of it between calls shows that the sandbox was not idle.
            imports: Refuses calls when modules could be imported from the workspace.
        """
        self._files = files
        self._activity = activity
        self._imports = imports
        self._lock = asyncio.Lock()
        self._running: set[str] = set()
        self._any_call_finished = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_activity: Mapping[tuple[int, int], int] | None = None
        """Activity recorded when the sandbox should have become idle; None until then."""
        self._check_pending = False
        """Whether changes from between two calls have still to be checked."""
        self._unreported: list[ProtectedFileChange] = []
        """Changes by background processes that no call was refused for yet."""

    def __repr__(self) -> str:
        return f"<Protection of {self._files!r}, {len(self._running)} calls run>"

    def on_event(self, event: SessionEvent) -> None:
        """Track which calls run."""
        if isinstance(event, CallStarted):
            if not self._running:
                self._cancel_idle_timer()
                self._check_pending = True
                with suppress(OutOfSteps):
                    self._check_between_calls(_LOOP_STEPS)
            self._running.add(event.call_id)
        elif isinstance(event, CallFinished) and event.call_id in self._running:
            self._running.discard(event.call_id)
            if not self._running:
                self._any_call_finished, self._idle_activity = True, None
                loop = asyncio.get_running_loop()
                self._idle_timer = loop.call_later(_IDLE_DELAY_S, self._record_idle_activity)

    async def before(self, prepared: PreparedCall) -> None:
        """Restore or accept what changed since the last call; see `Guard`.

        Raises:
            SandboxError: If a process that an earlier call left running has changed a protected file, or if
                modules could now be imported from the workspace.
        """
        if self._imports is not None:
            try:
                self._imports.check()
            except WorkspaceRefused as error:
                raise SandboxError(f"{prepared.original.name} was not run: {error}") from error
        async with self._lock:
            if self._check_pending:
                await asyncio.to_thread(self._check_between_calls)
        if self._unreported:
            changes, self._unreported = self._unreported, []
            raise SandboxError(
                f"{prepared.original.name} was not run: something that an earlier call left running had "
                f"changed protected files: {_summarize(changes)}. Make the call again; a restart of the "
                "sandbox ends what runs there."
            )

    async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        """Restore what the call changed; see `Guard`."""
        async with self._lock:
            declared = frozenset(map(normalize_path, fnmatch.filter(prepared.facts.writes, "*.ipynb")))
            try:
                changes = self._files.restore(declared, most_steps=_LOOP_STEPS)
            except OutOfSteps:
                changes = await asyncio.to_thread(self._files.restore, declared)
            unwatched = self._files.unwatched
        if not changes and not unwatched:
            return result
        call = prepared.original
        _log.warning("The call %s of %s: %s", call.id, call.name, _summarize(changes))
        return None if result is None else _build_denial(call.name, result, changes, unwatched)

    def accept(self) -> None:
        """Accept the protected files as they are: the host itself has just changed the workspace."""
        self._files.accept()

    def prepare_close(self) -> None:
        """Record whether the sandbox is idle. Call this just before the sandbox is closed."""
        self._cancel_idle_timer()
        if self._idle_activity is not None and self._activity() != self._idle_activity:
            self._idle_activity = None

    async def close(self) -> None:
        """Restore what background processes changed after the last call, once the sandbox is closed."""
        async with self._lock:
            if not self._any_call_finished or self._idle_activity is not None:
                if self._files.root_mode is not None:
                    self._files.root_mode.accept()
                return
            changes = await asyncio.to_thread(self._files.restore)
        if changes:
            _log.warning("After the last call: %s", _summarize(changes))

    # ---- between calls

    def _check_between_calls(self, most_steps: float = float("inf")) -> None:
        """Accept changes made while the sandbox was idle, which are a person's. Restore any others.

        Raises:
            OutOfSteps: If it takes more than `most_steps`, or something must be restored; the check stays
                pending.
        """
        idle = self._idle_activity is not None and self._activity() == self._idle_activity
        accepts, mode = idle or not self._any_call_finished, self._files.root_mode
        # First: the mode of the folder is put back by every look at the files in it.
        with suppress(OSError):  # there is no folder: so it has no mode
            if accepts and mode is not None and os.lstat(mode.path).st_mode != mode.value:
                mode.accept()
        differs = self._files.differs(most_steps=most_steps)
        if differs and accepts:
            self._files.accept(most_steps=most_steps)
        elif differs and most_steps != float("inf"):
            raise OutOfSteps
        elif differs:
            self._unreported += self._files.restore()
        self._check_pending = False

    def _record_idle_activity(self) -> None:
        """Record the activity of the sandbox, which should be idle from now on, and restore once more.

        The order matters: what the sandbox changed before is restored here, and what it changes from now on
        shows in its activity. Until both are done, the sandbox does not count as idle.
        """
        activity = self._activity()
        try:
            self._files.restore(most_steps=_LOOP_STEPS)
        except OutOfSteps:
            timer = self._idle_timer
            restoring = asyncio.get_running_loop().run_in_executor(None, self._files.restore)
            restoring.add_done_callback(lambda done: self._record_restored(done, activity, timer))
        else:
            self._idle_activity = activity

    def _record_restored(
        self,
        restoring: asyncio.Future[tuple[ProtectedFileChange, ...]],
        activity: Mapping[tuple[int, int], int] | None,
        timer: asyncio.TimerHandle | None,
    ) -> None:
        if restoring.cancelled() or restoring.exception() is not None:
            return  # the sandbox does not count as idle, so the next check restores what differs
        self._unreported += restoring.result()
        if timer is not None and self._idle_timer is timer:  # no call has started since
            self._idle_activity = activity

    def _cancel_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


def _summarize(changes: Sequence[ProtectedFileChange]) -> str:
    return summarize_names([str(change) for change in changes], 10)


def _build_denial(
    name: str, result: ToolResult, changes: Sequence[ProtectedFileChange], unwatched: str
) -> ToolResult:
    """Build the error that replaces `result`; it contains its text."""
    lines = []
    if changes:
        lines.append(
            f"{name} changed protected files, which programs outside the sandbox would run or obey: "
            f"{_summarize(changes)}. Everything else it did stays. Ask the user to make such changes, or to "
            "allow the name with Session(allow_protected=[...])."
        )
    if unwatched:
        lines.append(
            f"{name} ran and what it did stays, but the workspace cannot be watched for protected files: it "
            f"has {unwatched}. Undo the call, or remove such folders (rm -rf works); until then every call "
            "that may change something ends with this error."
        )
    if result.content:
        lines += ["Its result:", result.content]
    denied = dataclasses.replace(
        result, content="\n".join(lines), is_error=True, recoverable=True, error_kind="denied", kind="error"
    )
    return denied.with_metadata(**{PROTECTED: [change.path for change in changes]})


# ---- files that were not read
#
# The read cache records what each call read. A reported read counts only where the host finds the same text
# in the file, because a worker could report anything.

_BUILTIN_FILE_TOOLS = "aisotools.builtin.files:"

_MIN_SHORTENED_CHARS = 400
"""Shorter results are not replaced by a note, which would be as long."""


class ReadGuard:
    """A guard  for tools that need a read before they write."""

    def __init__(self, reads: ReadCache) -> None:
        """Check edits against `reads`, and record there what calls read and write."""
        self._reads = reads
        self._contents_before: dict[str, dict[str, bytes]] = {}
        """By call id and path, the files that a running call is about to edit."""

    async def before(self, prepared: PreparedCall) -> None:
        """Refuse an edit of lines that were not read; see `Guard`.

        Raises:
            ToolError: Naming the file and what to read.
        """
        if not isinstance(prepared.tool, SupportsTouches):
            return
        touches = prepared.tool.touches(prepared.arguments)
        self._reads.check(touches)
        contents = self._contents_before[prepared.original.id] = {}
        for touch in touches:
            data = self._reads.content(touch.path)
            if data is not None:
                contents[touch.path] = data

    async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        """Record what the call wrote as read by its caller; see `Guard`."""
        contents = self._contents_before.pop(prepared.original.id, {})
        if result is None or result.is_error:
            return result
        for path, before in contents.items():
            content = self._reads.content(path)
            if content is not None:
                self._reads.note_edit(path, before, content)
        if _is_file_tool(prepared, "sandbox_write", "write"):
            arguments = prepared.arguments
            file, text = arguments.get("path"), arguments.get("content")
            if isinstance(file, str) and isinstance(text, str):
                written = self._reads.content(file)
                if written is not None and written == text.encode("utf-8", "surrogatepass"):
                    self._reads.note_read(file, written)
        return result

    def on_read(self, prepared: PreparedCall, result: ToolResult) -> ToolResult:
        """Record the lines that a read-only call has read.

        Returns:
            The result; for a model that still has these lines in its context, a note that they are unchanged.
        """
        value = result.value
        if (
            result.is_error
            or not isinstance(value, dict)
            or not _is_file_tool(prepared, "sandbox_read", "read")
        ):
            return result
        path, text = value.get("path"), value.get("content")
        if not isinstance(path, str) or not isinstance(text, str):
            return result
        if prepared.original.origin == "model" and result.truncation is not None:
            text = text[: result.truncation.shown_chars].rpartition("\n")[0]  # the model saw no more
        data = self._reads.content(path)
        first = value.get("start_line", 1)
        if data is None or type(first) is not int or first < 1 or (not text and data):
            return result
        count = text.count("\n") + (not text.endswith("\n") and text != "")
        lines = b"\n".join(data.split(b"\n")[first - 1 : first - 1 + count])
        if lines.rstrip(b"\n") != text.encode("utf-8", "surrogatepass").rstrip(b"\n"):
            return result
        self._reads.note_read(path, data, first, first + count - 1)
        call = prepared.original
        if call.origin != "model" or not self._reads.follows(call.agent_id):
            return result
        return self._shorten(call, result, path, first, first + count - 1)

    def _shorten(self, call: ToolCall, result: ToolResult, path: str, first: int, last: int) -> ToolResult:
        since = self._reads.unchanged_since(call.agent_id, path, first, last)
        if since is None or len(result.content) < _MIN_SHORTENED_CHARS:
            self._reads.note_shown(call.agent_id, path, call.id, first, last)
            return result
        note = f"[Unchanged since {since}: lines {first}-{last} of {path} are as that result shows them.]"
        return dataclasses.replace(result, content=note, truncation=None).with_metadata(unchanged_since=since)


def _is_file_tool(prepared: PreparedCall, tool: str, operation: str) -> bool:
    """Return whether this is a call of the built-in `tool`, or of the built-in `file` with that operation."""
    if prepared.own_path == _BUILTIN_FILE_TOOLS + "file":
        return prepared.arguments.get("operation") == operation
    return prepared.own_path == _BUILTIN_FILE_TOOLS + tool
