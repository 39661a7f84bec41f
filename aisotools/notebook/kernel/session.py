"""A session as a Jupyter kernel uses it: run cells through its gate, complete, inspect, receive output.

Completion and inspection are read-only calls of tools that only workers have. They wait until the worker is
free and time out soon, so that typing never waits for a cell. Their results are untrusted and are checked
here.
"""

from __future__ import annotations

import asyncio
import base64
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aisotools.core.events import CallOutput, SandboxLost, SessionEvent
from aisotools.core.exceptions import AisotoolsError, WorkspaceError, WorkspaceRefused
from aisotools.core.protocols import OutputCaps, ToolPayload
from aisotools.core.sandboxes import Sandbox, SandboxCall, SandboxListener
from aisotools.core.types import Json, ToolCall, ToolResult
from aisotools.policy.approvers import DenyAll
from aisotools.sandbox.host.displays import DisplaySink
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.sandbox.worker.output import ExecuteOptions
from aisotools.session.session import Session
from aisotools.workspace.lock import SERVER_ROOT, refuse_workspace, state_folder

INTROSPECTION_TIMEOUT_S = 2.0
"""Time for a completion or inspection to run."""

_MODULE = "aisotools.sandbox.worker.ipython"
# Time for a busy worker to become free before a completion or inspection is given up.
_QUEUE_TIMEOUT_S = 1.0
_WIDGET_MESSAGE_TIMEOUT_S = 60.0
_MAX_CODE_CHARS = 1 << 20
_MAX_MATCHES = 1_000
_MAX_MATCH_CHARS = 2_000
_MAX_TEXT_CHARS = 200_000
_CAPS = OutputCaps(content_chars=2_000, stream_bytes=1 << 16, value_bytes=2 << 20, data_bytes=1 << 20)
_MESSAGES = frozenset({"comm_open", "comm_msg", "comm_close"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionMatch:
    """One completion.

    Attributes:
        text: Text to insert.
        type: Kind of object, such as `function`; may be empty.
        signature: Call signature; may be empty.
    """

    text: str
    type: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The completions at a cursor.

    Attributes:
        start: First character of the code that a match replaces.
        end: End of the replaced range, exclusive.
        matches: The completions; empty also when the worker is busy.
    """

    start: int
    end: int
    matches: tuple[CompletionMatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCompleteness:
    """Whether code can run as it is.

    Attributes:
        status: `complete`, `incomplete`, `invalid` or `unknown`.
        indent: Indentation of its next line, in spaces.
    """

    status: str = "unknown"
    indent: int = 0


async def complete(sandbox: Sandbox, code: str, cursor: int) -> Completion:
    """Return the completions at `cursor`, which counts characters of `code`."""
    cursor = max(0, min(cursor, len(code)))
    nothing = Completion(start=cursor, end=cursor)
    answer = await _ask(sandbox, "complete", {"code": code, "cursor": cursor}, code)
    if not isinstance(answer, Mapping) or not isinstance(answer.get("matches"), list):
        return nothing
    start, end = answer.get("start"), answer.get("end")
    if type(start) is not int or type(end) is not int or not 0 <= start <= end <= len(code):
        return nothing
    matches = tuple(filter(None, map(_parse_match, answer["matches"][:_MAX_MATCHES])))
    return Completion(start=start, end=end, matches=matches)


async def inspect(sandbox: Sandbox, code: str, cursor: int, *, detail: int = 0) -> str | None:
    """Return the documentation of the object at `cursor`, or None.

    The text is untrusted and holds terminal colours.
    """
    arguments = {"code": code, "cursor": max(0, min(cursor, len(code))), "detail": 1 if detail else 0}
    answer = await _ask(sandbox, "inspect", arguments, code)
    text = answer.get("text/plain") if isinstance(answer, Mapping) else None
    return text[:_MAX_TEXT_CHARS] if isinstance(text, str) else None


async def is_complete(sandbox: Sandbox, code: str) -> CodeCompleteness:
    """Return whether `code` can run as it is."""
    answer = await _ask(sandbox, "is_complete", {"code": code}, code)
    if not isinstance(answer, Mapping) or answer.get("status") not in {"complete", "incomplete", "invalid"}:
        return CodeCompleteness()
    indent = answer.get("indent")
    return CodeCompleteness(
        status=answer["status"], indent=indent if type(indent) is int and 0 <= indent <= 400 else 0
    )


async def send_message(
    sandbox: Sandbox, kind: str, content: Mapping[str, Any], buffers: Sequence[bytes], *, call_id: str
) -> None:
    """Deliver a page's message to a widget in the worker, and run the widget's handlers.

    Raises:
        ValueError: If `kind` is not a type of widget message.
    """
    if kind not in _MESSAGES:
        raise ValueError(f"{kind!r} is not a widget message. Use one of {', '.join(sorted(_MESSAGES))}.")
    packed = [base64.b64encode(buffer).decode("ascii") for buffer in buffers]
    arguments = {"kind": kind, "content": dict(content), "buffers": packed}
    await sandbox.call(
        _request("take_message", arguments, call_id, _WIDGET_MESSAGE_TIMEOUT_S, OutputCaps(), read_only=False)
    )


async def _ask(sandbox: Sandbox, name: str, arguments: Mapping[str, Json], code: str) -> Json:
    """Call a tool that only workers have. Return its value, or None if there is none in time."""
    if len(code) > _MAX_CODE_CHARS:
        return None
    request = _request(name, arguments, uuid.uuid4().hex, INTROSPECTION_TIMEOUT_S, _CAPS, read_only=True)
    asking = asyncio.ensure_future(sandbox.call(request))
    try:
        async with asyncio.timeout(_QUEUE_TIMEOUT_S + INTROSPECTION_TIMEOUT_S + 1.0):
            return (await asking).value
    except TimeoutError:
        return None


def _request(
    name: str,
    arguments: Mapping[str, Json],
    call_id: str,
    timeout_s: float,
    caps: OutputCaps,
    *,
    read_only: bool,
) -> SandboxCall:
    return SandboxCall(
        call=ToolCall(call_id, name, arguments, origin="person"),
        shipment=ToolPayload(key=f"{_MODULE}:{name}", import_path=f"{_MODULE}:{name}", concurrency="main"),
        timeout_s=timeout_s,
        output_caps=caps,
        read_only=read_only,
    )


def _parse_match(match: object) -> CompletionMatch | None:
    if not isinstance(match, Mapping):
        return None
    text, kind, signature = (match.get(name) for name in ("text", "type", "signature"))
    if not isinstance(text, str) or not isinstance(kind, str) or not isinstance(signature, str):
        return None
    if len(text) > _MAX_MATCH_CHARS:
        return None
    return CompletionMatch(text=text, type=kind[:100], signature=signature[:_MAX_MATCH_CHARS])


CELL_TIMEOUT_S = 86_400.0
"""Deadline of a cell, one day: as in any notebook, a person interrupts it."""


class OutputSink(DisplaySink, Protocol):
    """Receives the output of a kernel's cells."""

    def printed(self, call_id: str, stream: str, text: str) -> None:
        """Handle printed text; an empty id belongs to no call."""

    def lost(self, reason: str) -> None:
        """Handle the end of a worker, and of its variables with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRequest:
    """A cell to run.

    Attributes:
        call_id: The id of its call.
        code: The source that a person typed.
        options: How to run it.
    """

    call_id: str
    code: str
    options: ExecuteOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """The outcome of a cell.

    Attributes:
        error: Name, message and traceback of the error, all untrusted; None on success.
        printed: Whether the cell has printed its error already.
        notes: Further sentences about it, written by this package.
    """

    error: Mapping[str, str] | None = None
    printed: bool = False
    notes: tuple[str, ...] = ()


class KernelBackend(Protocol):
    """What a kernel needs of a session, in this or another process."""

    async def execute(self, cell: CellRequest) -> CellResult:
        """Run a cell."""

    async def complete(self, code: str, cursor: int) -> Completion:
        """Return the completions at the cursor."""

    async def inspect(self, code: str, cursor: int, detail: int) -> str | None:
        """Return the documentation of the object at the cursor, or None."""

    async def is_complete(self, code: str) -> CodeCompleteness:
        """Return whether code can run as it is."""

    async def message(
        self, cell: CellRequest, kind: str, content: Mapping[str, Any], buffers: Sequence[bytes]
    ) -> None:
        """Deliver a page's message to a widget."""

    async def interrupt(self) -> None:
        """Stop the running cell."""


class KernelSession:
    """A `KernelBackend` for a session in this process."""

    def __init__(self, session: Session, sandbox: LocalSandbox, sink: OutputSink) -> None:
        """Send the output of `session` to `sink`, until `close`."""
        self._session = session
        self._sandbox = sandbox
        self._sink = sink
        self._unsubscribe = session.subscribe(self._on_event)

    async def execute(self, cell: CellRequest) -> CellResult:
        """Run a cell: the `python` tool, typed by a person."""
        self._sandbox.displays.watch(cell.call_id, self._sink, cell.options)
        try:
            result = await self._session.call(
                "python", {"code": cell.code}, origin="person", call_id=cell.call_id, timeout_s=CELL_TIMEOUT_S
            )
        except AisotoolsError as error:
            return CellResult(error={"ename": type(error).__name__, "evalue": str(error), "traceback": ""})
        return parse_cell_result(result)

    async def complete(self, code: str, cursor: int) -> Completion:
        """Return the completions at the cursor."""
        return await complete(self._sandbox, code, cursor)

    async def inspect(self, code: str, cursor: int, detail: int) -> str | None:
        """Return the documentation of the object at the cursor, or None."""
        return await inspect(self._sandbox, code, cursor, detail=detail)

    async def is_complete(self, code: str) -> CodeCompleteness:
        """Return whether code can run as it is."""
        return await is_complete(self._sandbox, code)

    async def message(
        self, cell: CellRequest, kind: str, content: Mapping[str, Any], buffers: Sequence[bytes]
    ) -> None:
        """Deliver a page's message to a widget. What it displays belongs to `cell`."""
        self._sandbox.displays.watch(cell.call_id, self._sink, cell.options)
        await send_message(self._sandbox, kind, content, buffers, call_id=cell.call_id)

    async def interrupt(self) -> None:
        """Stop the running cell."""
        await self._session.interrupt()

    def close(self) -> None:
        """Stop receiving output; the session goes on."""
        self._unsubscribe()

    def _on_event(self, event: SessionEvent) -> None:
        if isinstance(event, CallOutput):
            self._sink.printed(event.call_id, event.stream, event.text)
        elif isinstance(event, SandboxLost):
            self._sink.lost(event.reason)


def parse_cell_result(result: ToolResult) -> CellResult:
    """Return the outcome of a cell from the result of its call."""
    notes = []
    dropped = result.metadata.get("dropped_bytes")
    if type(dropped) is int and dropped > 0:
        notes.append(f"{dropped:,} more bytes of printed output were dropped.")
    if not result.is_error:
        return CellResult(notes=tuple(notes))
    value = result.value if isinstance(result.value, Mapping) else {}
    error = value.get("error")
    if isinstance(error, Mapping):
        entries = {key: error.get(key) for key in ("ename", "evalue", "traceback")}
        texts = {key: text if isinstance(text, str) else "" for key, text in entries.items()}
        return CellResult(error=texts, notes=tuple(notes))
    # A magic that was used wrongly prints its error and raises none.
    if value.get("stderr"):
        usage = {"ename": "UsageError", "evalue": "see what the cell printed", "traceback": ""}
        return CellResult(error=usage, printed=True, notes=tuple(notes))
    default = "Denied" if result.error_kind == "denied" else "SandboxError"
    name = next((name for key, name in _ERROR_NAMES.items() if result.metadata.get(key) is True), default)
    return CellResult(error={"ename": name, "evalue": result.content, "traceback": ""}, notes=tuple(notes))


_ERROR_NAMES = {"worker_died": "WorkerDied", "stopped": "KeyboardInterrupt", "timed_out": "TimeoutError"}


_LIMITS = Limits(stream_bytes=8 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConnection:
    """A kernel's connection to its session.

    Attributes:
        backend: Runs cells and answers requests.
        level: The session's confinement level.
        notices: Sentences to show with the first cell.
        close: Closes the session, or only the connection if the session is in another process.
        count: Number of the next cell.
    """

    backend: KernelBackend
    level: str
    notices: tuple[str, ...]
    close: Callable[[], Awaitable[None]]
    count: int = 1


async def open_local(sink: OutputSink, *, environ: Mapping[str, str] | None = None) -> SessionConnection:
    """Open a session for the notebook that this process is the kernel of.

    Args:
        sink: Receives the output of its calls.
        environ: Source of settings; by default the process's environment.

    Raises:
        AisotoolsError: If it cannot be opened.
    """
    environ = os.environ if environ is None else environ
    folder = Path.cwd()
    # Out of the folder that becomes the workspace: programs of this process must not import from it.
    os.chdir("/")
    refusal = _refusal_reason(folder, environ)
    if refusal is None:
        try:
            return await _open_in(folder, sink, environ, None)
        except WorkspaceRefused as error:
            refusal = str(error)
    os.chdir(folder)
    return await _open_in(None, sink, environ, refusal)


async def _open_in(
    folder: Path | None, sink: OutputSink, environ: Mapping[str, str], refusal: str | None
) -> SessionConnection:
    sandboxes: list[LocalSandbox] = []

    def make_sandbox(spec: WorkerSpec, listener: SandboxListener) -> LocalSandbox:
        sandboxes.append(LocalSandbox(spec, listener))
        return sandboxes[-1]

    session = Session(
        folder,
        approver=DenyAll(),
        limits=_LIMITS,
        sandbox=make_sandbox,
        environ=environ,
        protect_notebooks=False,  # Jupyter saves them while cells run
    )
    try:
        await session.start()
    except BaseException:
        await session.close()
        raise
    backend = KernelSession(session, sandboxes[-1], sink)

    async def close() -> None:
        backend.close()
        await session.close()

    notices = () if refusal is None else (f"the workspace is {session.workspace}: {refusal}",)
    return SessionConnection(backend=backend, level=session.level, notices=notices, close=close)


def _refusal_reason(folder: Path, environ: Mapping[str, str]) -> str | None:
    """Return why this folder must not become the workspace unless it is configured; None if it may."""
    root = environ.get(SERVER_ROOT, "")
    if root and _is_same_folder(folder, Path(root)):
        return "this is the root folder of the Jupyter server, which holds more than one notebook's files"
    try:
        # At the strictest level: the real one is not known yet.
        refuse_workspace(folder, state_folder=state_folder(environ), level="confined", environ=environ)
    except WorkspaceError as error:
        return str(error)
    return None


def _is_same_folder(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
