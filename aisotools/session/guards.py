"""The environment in which calls run, and the guards around every call that may change something.

A guard checks the workspace before and after such a call, and may refuse the call or replace its result:

- `aisotools.session.protection.Protection` keeps the protected files of a workspace, such as `conftest.py`,
  as they are, and refuses calls when modules could be imported from the workspace (`ImportRootWatch`);
- `ReadGuard` refuses edits of files that were not read, or that changed since;
- `aisotools.session.history.WorkspaceHistory` records what undo restores.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from aisotools.core.exceptions import TOO_MANY_FILES, ToolError, WorkspaceError, as_clause
from aisotools.core.path_texts import is_within
from aisotools.core.protocols import Tool
from aisotools.core.sandboxes import Sandbox
from aisotools.core.threads import in_thread
from aisotools.core.types import Decision, Facts, ToolCall, ToolResult, with_changes
from aisotools.policy.enforcement import PathEnforcement
from aisotools.policy.prepared import (
    CallDecision,
    CallSteps,
    CodeDigester,
    PathsResolver,
    PreparedCall,
    SourcesFinder,
    finish_steps,
    prepare_in_steps,
)
from aisotools.policy.rules import Policy
from aisotools.policy.trials import TrialLookups, why_not_tried
from aisotools.session.host_calls import WorkLeft
from aisotools.session.path_rules import PathRules
from aisotools.session.previews import describe_differences
from aisotools.tools.adapter import supports
from aisotools.workspace.host_files import chooses_code
from aisotools.workspace.import_roots import (
    keep_block_first,
    list_package_files,
    list_packages,
    refuse_import_root,
    wake_block,
)
from aisotools.workspace.read_tracker import FileTouch, ReadCache, SupportsTouches
from aisotools.workspace.real_paths import mount_watch
from aisotools.workspace.workspace import Workspace


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


def foresee_refusal(
    decision: CallDecision, env: CallEnvironment, earlier: Sequence[Facts] = ()
) -> ToolError | None:
    """Return why a guard would refuse a call whatever a person answers; None if none would.

    Args:
        decision: The decision before anybody is asked.
        env: Where the call would run.
        earlier: Facts of the calls that run before it. What they may read or change, they may mend.
    """
    facts = decision.prepared.facts
    paths = (*facts.reads, *facts.writes)
    if decision.decision is not Decision.ASK or (earlier and any(_may_mend(one, paths) for one in earlier)):
        return None
    try:
        for guard in env.guards:
            if supports(guard, SupportsForesight):
                guard.foresee(decision.prepared)
    except ToolError as error:
        return error
    return None


def _may_mend(earlier: Facts, paths: Sequence[str]) -> bool:
    others = (*earlier.reads, *earlier.writes)
    return not earlier.certain or any(is_within(a, b) or is_within(b, a) for a in paths for b in others)


@runtime_checkable
class SupportsForesight(Protocol):
    """A `Guard` that can tell before anybody is asked that it would refuse a call."""

    def foresee(self, prepared: PreparedCall) -> None:
        """Refuse a call that would be refused whatever a person answers, if nothing else runs before it.

        Raises:
            ToolError: As `Guard.before` would.
        """


@runtime_checkable
class SupportsWithdrawal(Protocol):
    """A `Guard` that keeps something of each call, and forgets one that did not run."""

    async def withdraw(self, prepared: PreparedCall) -> None:
        """Take back what `Guard.before` has done. It is called instead of `Guard.after`."""


async def leave_guards(
    entered: Sequence[Guard], prepared: PreparedCall, result: ToolResult | None, *, has_run: bool
) -> ToolResult | None:
    """Let each guard that was entered look at what the call did, the last one first. Return the last result.

    Args:
        entered: The guards, in the order in which they were entered.
        prepared: The call.
        result: Its result; None if it was cancelled, or if a guard has refused it.
        has_run: Whether it was begun at all.

    Raises:
        Exception: The first that a guard raised, after all others have run: none may keep what another holds.
    """
    failure: Exception | None = None
    for guard in reversed(entered):
        try:
            if has_run or not supports(guard, SupportsWithdrawal):
                result = await guard.after(prepared, result)
            else:
                await guard.withdraw(prepared)
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return result


def _has_none() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnvironment:
    """Where calls run, settled when the session opened.

    Attributes:
        sandbox: Runs what runs in the sandbox.
        level: Its confinement level.
        workspace: The folder that tools may change.
        files: Its files; None if they lie on another machine, so that nothing can be said of them here.
        workspace_policy: The workspace's own policy, which narrows the session's.
        guards: Entered around every call that may change something: `before` in this order, `after` in the
            opposite one.
        on_work_left: Called with a call that may change something and what it has left running on the host.
        before_read: Called before a call that only reads.
        on_read: Called with the result of a call that only reads; returns the result for the caller.
        can_undo: Returns whether undo covers a call with these facts.
        describe_undo: Returns a sentence for the approval card: what undo will restore of the call.
        has_readers: Returns whether the sandbox can hold tools that only read to it; by default none can. A
            sandbox of a pool is made later, and is known only then.
        resolve_paths: Returns the facts of a call with their paths resolved in the workspace.
        find_sources: Returns the facts of a call with digests of what it reads.
        digest_code: Returns a digest of the code in the workspace that a call may run without naming it.
        path_rules: The rules about paths, as far as the sandbox enforces them by itself; None if it cannot.
        trials: What decides which calls are tried before anybody is asked; None if none are.
    """

    sandbox: Sandbox
    level: str
    workspace: Path
    files: Workspace | None = None
    workspace_policy: Policy | None = None
    guards: Sequence[Guard] = ()
    on_work_left: WorkLeft | None = None
    before_read: Callable[[], Awaitable[None]] | None = None
    on_read: Callable[[PreparedCall, ToolResult], ToolResult] | None = None
    can_undo: Callable[[Facts], bool] | None = None
    describe_undo: Callable[[PreparedCall], Awaitable[str]] | None = None
    has_readers: Callable[[], bool] = _has_none
    resolve_paths: PathsResolver | None = None
    find_sources: SourcesFinder | None = None
    digest_code: CodeDigester | None = None
    path_rules: PathRules | None = None
    trials: TrialLookups | None = None

    @property
    def enforcement(self) -> PathEnforcement:
        """The rules about paths that the sandbox enforces by itself, and those that it does not."""
        return PathEnforcement() if self.path_rules is None else self.path_rules.enforcement

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """A sentence for each rule about paths that the sandbox does not enforce for every call."""
        more = self.enforcement.repository_gaps if self._has_repository() else ()
        return (*self.enforcement.not_enforced, *more)

    def refuse_if_moved(self, call: ToolCall) -> ToolResult | None:
        """Return the result of a call that must not run, since the workspace is not in its place; or None."""
        wake_block(self.workspace)  # the session may be that of a parked conversation
        try:
            if self.files is not None:
                self.files.check()
        except WorkspaceError as error:
            return ToolResult.error(f"{call.name} was not run: {error}", error_kind="environment")
        return None

    async def restart(self) -> None:
        """Start the sandbox afresh.

        Raises:
            WorkspaceError: If the workspace is not in its place: the sandbox would be given what is there.
        """
        if self.files is not None:
            self.files.check_above()
        await self.sandbox.restart()

    def prepare(self, tool: Tool, call: ToolCall, policy: Policy, *, is_asked: bool = False) -> PreparedCall:
        """Classify a call in this environment, and evaluate a policy. That may look at many files."""
        return finish_steps(self._prepare(tool, call, policy, is_asked=is_asked))

    async def prepare_in_threads(
        self, tool: Tool, call: ToolCall, policy: Policy, *, is_asked: bool = False
    ) -> PreparedCall:
        """Do what `prepare` does, and look at files in threads where there may be many."""
        steps_left = self._prepare(tool, call, policy, is_asked=is_asked)
        try:
            look = next(steps_left)
            while True:
                try:
                    facts = await in_thread(look)
                except Exception as error:
                    look = steps_left.throw(error)
                else:
                    look = steps_left.send(facts)
        except StopIteration as end:
            prepared: PreparedCall = end.value
            return prepared

    async def find_differences(self, shown: PreparedCall) -> list[str]:
        """Do what `describe_differences` does, in a thread if many files may have to be compared."""
        if shown.look_again is None or shown.only_touches_files:
            return describe_differences(shown, self.files)
        return await in_thread(describe_differences, shown, self.files)

    def _prepare(self, tool: Tool, call: ToolCall, policy: Policy, *, is_asked: bool) -> CallSteps:
        return prepare_in_steps(
            tool,
            call,
            policy,
            self.level,
            self.can_undo,
            has_readers=self.has_readers(),
            resolve_paths=self.resolve_paths,
            find_sources=self.find_sources,
            digest_code=self.digest_code,
            enforced=self.enforcement.globs,
            enforced_for_reading=self.enforcement.reading_globs,
            is_asked=is_asked,
        )

    def with_trial(self, prepared: PreparedCall, policy: Policy) -> PreparedCall:
        """Return a call of this environment, marked if it is tried before anybody is asked."""
        # Only a reader holds a command to what a trial promises.
        if self.trials is None or not prepared.facts.unknown or not self.has_readers():
            return prepared
        return with_changes(prepared, is_tried=not why_not_tried(prepared, policy, self.trials))

    def gaps_of(self, facts: Facts) -> tuple[str, ...]:
        """Return a sentence for each rule about paths that a call with these facts could pass by."""
        return self.enforcement.gaps_of(facts, has_repository=self._has_repository())

    def announce(self, policy: Policy) -> None:
        """Follow another policy, and print what is not enforced of its rules about paths."""
        if self.path_rules is not None:
            self.path_rules.follow(policy)
            self.path_rules.announce()

    def _has_repository(self) -> bool:
        return os.path.lexists(self.workspace / ".git")


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

    def has_changed(self) -> bool:
        """Return whether what decides where modules are found has changed, or a file makes a package."""
        return self._search_path != self._read_search_path() or any(map(os.path.lexists, self._inits))

    def check(self) -> None:
        """Look again if something has changed. That may take long: it lists the folders of modules.

        The finder that blocks imports is put first again.

        Raises:
            WorkspaceRefused: Saying what has changed, and what to do.
        """
        if self.has_changed():
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
        variables = [(name, self._environ.get(name)) for name in self._environ if chooses_code(name)]
        mounts = mount_watch.count()
        return here, list(sys.path), list(sys.meta_path), sys.pycache_prefix, folders, variables, mounts


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

    def foresee(self, prepared: PreparedCall) -> None:
        """Refuse an edit of lines that were not read; see `SupportsForesight`.

        Raises:
            ToolError: Naming the file and what to read.
        """
        if touches := _touches_of(prepared):
            self._reads.check(touches)

    async def before(self, prepared: PreparedCall) -> None:
        """Refuse an edit of lines that were not read; see `Guard`.

        Raises:
            ToolError: Naming the file and what to read.
        """
        if touches := _touches_of(prepared):
            self._reads.check(touches)
        path = prepared.arguments.get("path") if is_file_tool(prepared, "", "append") else None
        if isinstance(path, str):
            touches = [FileTouch(path=path)]  # what is added to a file that was read counts as read
        if not touches:
            return
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
            # Race: the path may lead elsewhere by now. What is not noted has to be read before the next edit.
            with suppress(OSError, WorkspaceError):
                if content is not None:
                    self._reads.note_edit(path, before, content)
        if is_file_tool(prepared, "", "move") or is_file_tool(prepared, "", "copy"):
            source = prepared.arguments.get("path")
            target = result.value.get("destination") if isinstance(result.value, dict) else None
            with suppress(OSError, WorkspaceError):  # the same race
                if isinstance(source, str) and isinstance(target, str):
                    self._reads.note_same(source, target)
        if is_file_tool(prepared, "sandbox_write", "write"):
            arguments = prepared.arguments
            file, text = arguments.get("path"), arguments.get("content")
            if isinstance(file, str) and isinstance(text, str):
                written = self._reads.content(file)
                with suppress(OSError, WorkspaceError):  # the same race
                    if written is not None and written == text.encode("utf-8", "surrogatepass"):
                        self._reads.note_read(file, written)
        return result

    def on_read(self, prepared: PreparedCall, result: ToolResult) -> ToolResult:
        """Record the lines that a read-only call has read.

        Returns:
            The result; for a model that still has these lines in its context, a note that they are unchanged.
            An error if the path leads elsewhere by now, so that what was read is of nothing that is there.
        """
        try:
            return self._note_read(prepared, result)
        except (OSError, WorkspaceError) as error:
            if isinstance(error, OSError) and error.errno in TOO_MANY_FILES:
                raise
            # Race: something in the sandbox has put a link, or nothing, in the place of the file.
            name = prepared.original.name
            return ToolResult.error(
                f"{name} has read a file that was replaced meanwhile: {as_clause(error)}. Read it again; if "
                "that goes on, stop what changes the workspace in the background.",
                error_kind="environment",
            )

    def _note_read(self, prepared: PreparedCall, result: ToolResult) -> ToolResult:
        value = result.value
        if (
            result.is_error
            or not isinstance(value, dict)
            or not is_file_tool(prepared, "sandbox_read", "read")
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


def _touches_of(prepared: PreparedCall) -> Sequence[FileTouch]:
    return prepared.tool.touches(prepared.arguments) if supports(prepared.tool, SupportsTouches) else ()


def is_file_tool(prepared: PreparedCall, tool: str, operation: str) -> bool:
    """Return whether this is a call of the built-in `tool`, or of the built-in `file` with that operation."""
    if prepared.own_path == _BUILTIN_FILE_TOOLS + "file":
        return prepared.arguments.get("operation") == operation
    return prepared.own_path == _BUILTIN_FILE_TOOLS + tool
