"""Guards: what looks at the workspace before and after each call that may change it.

`Protection` keeps the protected files of a workspace, such as `conftest.py`. A call during which one was
changed, removed or planted fails and says which, and the file is put back. Between calls, a person may edit
these files, and so may something that the sandbox left running. If nothing in the sandbox ran meanwhile, it
was the person, and the file is accepted; otherwise it is put back and the next call is refused once, saying
so. Content that is taken away is kept in the state folder.

`ReadGuard` feeds the read cache and refuses edits of files that were not read or have changed since. What a
call read is believed only where the host finds the same text in the file: a worker cannot make it up.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aisotools.core.events import CallFinished, CallStarted, SessionEvent
from aisotools.core.exceptions import SandboxError
from aisotools.core.protocols import Sandbox
from aisotools.core.types import Facts, Json, ToolCall, ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.policy.rules import Policy, normalize_path
from aisotools.workspace.protected import MOST_FOLDERS, ProtectedFileChange, ProtectedFiles
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
    """

    sandbox: Sandbox
    level: str
    workspace: Path
    workspace_policy: Policy | None = None
    guards: Sequence[Guard] = ()
    on_read: Callable[[PreparedCall, ToolResult], ToolResult] | None = None
    can_undo: Callable[[Facts], bool] | None = None
    describe_undo: Callable[[PreparedCall], Awaitable[str]] | None = None


_log = logging.getLogger(__name__)

_SETTLED_S = 0.1
_QUICK_S, _BEARABLE_S = 0.002, 0.02

Activity = Callable[[], Mapping[tuple[int, int], int]]
"""How often each thread of the sandbox has run so far, by process and thread; empty when there is none."""

PROTECTED = "protected"
"""Key in a result's metadata: the protected files that the call changed."""


class Protection:
    """A guard (see `aisotools.session.guards`) around the protected files of one workspace.

    It also hears the session's events, since calls that only read move the sandbox, too.
    """

    def __init__(self, files: ProtectedFiles, activity: Activity) -> None:
        """Keep `files`; `activity` tells whether the sandbox was at rest."""
        self._files = files
        self._activity = activity
        self._fresh = True  # nothing has run yet
        self._at_rest: Mapping[tuple[int, int], int] | None = None
        self._settling: asyncio.TimerHandle | None = None
        self._running: set[str] = set()
        self._unseen = False  # whether what happened between two calls is still to be looked at
        self._late: list[ProtectedFileChange] = []
        self._looking = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Protection of {self._files!r}, {len(self._running)} calls run>"

    def on_event(self, event: SessionEvent) -> None:
        """Take note of calls that begin and end."""
        if isinstance(event, CallStarted):
            if not self._running:
                if self._settling is not None:
                    self._stop_settling()
                self._unseen = True
                if self._files.took_s < _BEARABLE_S:
                    self._look_between()
            self._running.add(event.call_id)
        elif isinstance(event, CallFinished) and event.call_id in self._running:
            self._running.discard(event.call_id)
            if not self._running:
                self._fresh, self._at_rest = False, None
                self._settling = asyncio.get_running_loop().call_later(_SETTLED_S, self._settle)

    async def before(self, prepared: PreparedCall) -> None:
        """Have everything as it should be; see `aisotools.session.guards.Guard`.

        Raises:
            SandboxError: If something that an earlier call left running has changed a protected file, or if
                there are more folders than can be watched.
        """
        async with self._looking:
            if self._unseen:
                await asyncio.to_thread(self._look_between)
        if not self._files.complete:
            raise SandboxError(
                f"{prepared.original.name} was not run: the workspace has more than {MOST_FOLDERS} folders, "
                "or is nested too deeply, so files such as conftest.py could be planted unseen. Remove some "
                "folders, or use a smaller workspace."
            )
        if self._late:
            late, self._late = self._late, []
            raise SandboxError(
                f"{prepared.original.name} was not run: something that an earlier call left running had "
                f"changed protected files: {_listed(late)}. Make the call again; a restart of the sandbox "
                "ends what runs there."
            )

    async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        """Put back what the call changed; see `aisotools.session.guards.Guard`."""
        async with self._looking:
            declared = _declared(prepared)
            if self._files.took_s < _QUICK_S:
                changes = self._files.restore(declared)
            else:
                changes = await asyncio.to_thread(self._files.restore, declared)
        if not changes and self._files.complete:
            return result
        _log.warning("The call %s of %s: %s", prepared.original.id, prepared.original.name, _listed(changes))
        return (
            None if result is None else _failed(prepared.original.name, result, changes, self._files.complete)
        )

    def accept(self) -> None:
        """Take what is there for what should be there: the host itself has just changed the workspace."""
        self._files.accept()

    def ending(self) -> None:
        """Note whether the sandbox was at rest, just before it is ended."""
        self._stop_settling()
        if self._at_rest is not None and self._activity() != self._at_rest:
            self._at_rest = None

    async def close(self) -> None:
        """Look a last time, when nothing of the sandbox runs any more."""
        async with self._looking:
            late = await asyncio.to_thread(self._put_back_late)
        if late:
            _log.warning("After the last call: %s", _listed(late))

    # ---- between calls

    def _put_back_late(self) -> Sequence[ProtectedFileChange]:
        return () if self._fresh or self._at_rest is not None else self._files.restore()

    def _look_between(self) -> None:
        """What differs now was changed by a person if the sandbox was at rest; else it is put back."""
        self._unseen = False
        if not self._files.differs():
            return
        if self._fresh or (self._at_rest is not None and self._activity() == self._at_rest):
            self._files.accept()
        else:
            self._late += self._files.restore()

    def _settle(self) -> None:
        """The last call's echoes have faded: from here on the sandbox should be at rest."""
        self._at_rest = self._activity()
        if self._files.took_s < _BEARABLE_S:
            self._late += self._files.restore()

    def _stop_settling(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None


def _declared(prepared: PreparedCall) -> frozenset[str]:
    """The notebooks that the call said it writes."""
    notebooks = set()
    for path in prepared.facts.writes:
        if path.endswith(".ipynb"):
            notebooks.add(normalize_path(path))
    return frozenset(notebooks)


def _listed(changes: Sequence[ProtectedFileChange]) -> str:
    return ", ".join(map(str, changes[:10])) + (f" and {len(changes) - 10} more" if len(changes) > 10 else "")


def _failed(
    name: str, result: ToolResult, changes: Sequence[ProtectedFileChange], complete: bool
) -> ToolResult:
    lines = []
    if changes:
        lines.append(
            f"{name} changed protected files, which programs outside the sandbox would run or obey: "
            f"{_listed(changes)}. Everything else it did stays. Ask the user to make such changes."
        )
    if not complete:
        lines.append(
            f"{name} left more than {MOST_FOLDERS} folders in the workspace, more than can be watched for "
            "protected files. Remove some."
        )
    if result.content:
        lines += ["Its result:", result.content]
    failed = dataclasses.replace(
        result, content="\n".join(lines), is_error=True, recoverable=True, error_kind="denied", kind="error"
    )
    return failed.with_metadata(**{PROTECTED: [change.path for change in changes]})


_FILES = "aisotools.builtin.files:"
_SHORT_CHARS = 400
"""Below this, saying that a text is unchanged is no shorter than the text."""


class ReadGuard:
    """A guard (see `aisotools.session.guards`) for tools that need a read before they write."""

    def __init__(self, reads: ReadCache) -> None:
        """Keep `reads`."""
        self._reads = reads
        self._contents: dict[str, dict[str, bytes]] = {}

    async def before(self, prepared: PreparedCall) -> None:
        """Refuse what was not read; see `aisotools.session.guards.Guard`.

        Raises:
            ToolError: Naming the file and what to read.
        """
        if not isinstance(prepared.tool, SupportsTouches):
            return
        touches = prepared.tool.touches(prepared.arguments)
        self._reads.check(touches)
        contents = self._contents[prepared.original.id] = {}
        for touch in touches:
            data = self._reads.content(touch.path)
            if data is not None:
                contents[touch.path] = data

    async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        """What a call wrote is known to who made it; see `aisotools.session.guards.Guard`."""
        contents = self._contents.pop(prepared.original.id, {})
        if result is None or result.is_error:
            return result
        for touched, data in contents.items():
            now = self._reads.content(touched)
            if now is not None:
                self._reads.note_edit(touched, data, now)
        if _runs(prepared, "sandbox_write", "write"):
            self._note_write(prepared.arguments)
        return result

    def _note_write(self, arguments: Mapping[str, Json]) -> None:
        path, content = arguments.get("path"), arguments.get("content")
        if isinstance(path, str) and isinstance(content, str):
            written = self._reads.content(path)
            if written is not None and written == content.encode("utf-8", "surrogatepass"):
                self._reads.note_read(path, written)

    def on_read(self, prepared: PreparedCall, result: ToolResult) -> ToolResult:
        """Take down what a call that only reads has read; shortened if its reader still has it."""
        value = result.value
        if result.is_error or not isinstance(value, dict) or not _runs(prepared, "sandbox_read", "read"):
            return result
        path, text = value.get("path"), value.get("content")
        if not isinstance(path, str) or not isinstance(text, str):
            return result
        if prepared.original.origin == "model" and result.truncation is not None:
            text = text[: result.truncation.shown_chars].rpartition("\n")[0]  # no more was seen
        data = self._reads.content(path)
        first = value.get("start_line", 1)
        if data is None or not isinstance(first, int) or (not text and data):
            return result
        count = text.count("\n") + (not text.endswith("\n") and text != "")
        lines = b"\n".join(data.split(b"\n")[first - 1 : first - 1 + count])
        if lines.rstrip(b"\n") != text.encode("utf-8", "surrogatepass").rstrip(b"\n"):
            return result
        self._reads.note_read(path, data, first, first + count - 1)
        call = prepared.original
        if call.origin != "model" or not self._reads.follows(call.agent_id):
            return result
        return self._shortened(call, result, path, first, first + count - 1)

    def _shortened(self, call: ToolCall, result: ToolResult, path: str, first: int, last: int) -> ToolResult:
        since = self._reads.unchanged_since(call.agent_id, path, first, last)
        if since is None or len(result.content) < _SHORT_CHARS:
            self._reads.note_shown(call.agent_id, path, call.id, first, last)
            return result
        note = f"[Unchanged since {since}: lines {first}-{last} of {path} are as that result shows them.]"
        return dataclasses.replace(result, content=note, truncation=None).with_metadata(unchanged_since=since)


def _runs(prepared: PreparedCall, tool: str, operation: str) -> bool:
    """Return whether this is a call of our own `tool`, or of our `file` with that operation."""
    path = "" if prepared.payload is None else prepared.payload.import_path
    if path == _FILES + "file":
        return prepared.arguments.get("operation") == operation
    return path == _FILES + tool
