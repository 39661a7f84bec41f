"""What a front does with a session: runs cells in it through its gate, and hears them while they run.

What a front asks of a worker besides running cells; the answers are hostile and are checked here.

An enquiry is a call that changes nothing on purpose, of a tool that only workers have. It waits until the
worker is free and gives up soon, so that typing never waits for a cell.

The session of a front, in the notebook's folder if that may be a workspace, else in one below it.
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
from aisotools.core.protocols import OutputCaps, Sandbox, SandboxCall, SandboxListener, ToolPayload
from aisotools.core.types import Json, ToolCall, ToolResult
from aisotools.policy.approvers import DenyAll
from aisotools.sandbox.host.calls import DisplaySink
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.sandbox.worker.output import ExecuteOptions
from aisotools.session.session import Session
from aisotools.workspace.lock import SERVER_ROOT, refuse_workspace, state_folder

INTROSPECTION_TIMEOUT_S = 2.0
"""How long an answer may take."""

_MODULE = "aisotools.sandbox.worker.ipython"
_WAIT_S = 1.0
_MESSAGE_S = 60.0
_CODE_CHARS = 1 << 20
_MATCHES, _MATCH_CHARS, _TEXT_CHARS = 1_000, 2_000, 200_000
_CAPS = OutputCaps(content_chars=2_000, stream_bytes=1 << 16, value_bytes=2 << 20, data_bytes=1 << 20)
_MESSAGES = frozenset({"comm_open", "comm_msg", "comm_close"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionMatch:
    """One completion.

    Attributes:
        text: What to put there.
        type: What it is, such as `function`; may be empty.
        signature: How it is called; may be empty.
    """

    text: str
    type: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What may stand at the cursor.

    Attributes:
        start: From which character of the code on it is replaced.
        end: Up to which one.
        matches: What may stand there; empty also when the worker is busy.
    """

    start: int
    end: int
    matches: tuple[CompletionMatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCompleteness:
    """Whether code can run as it is.

    Attributes:
        status: `complete`, `incomplete`, `invalid` or `unknown`.
        indent: By how many spaces its next line would be indented.
    """

    status: str = "unknown"
    indent: int = 0


async def complete(sandbox: Sandbox, code: str, cursor: int) -> Completion:
    """What may stand at `cursor`, counted in characters of `code`."""
    cursor = max(0, min(cursor, len(code)))
    nothing = Completion(start=cursor, end=cursor)
    answer = await _ask(sandbox, "complete", {"code": code, "cursor": cursor}, code)
    if not isinstance(answer, Mapping) or not isinstance(answer.get("matches"), list):
        return nothing
    start, end = answer.get("start"), answer.get("end")
    if type(start) is not int or type(end) is not int or not 0 <= start <= end <= len(code):
        return nothing
    matches = tuple(match for told in answer["matches"][:_MATCHES] if (match := _match(told)) is not None)
    return Completion(start=start, end=end, matches=matches)


async def inspect(sandbox: Sandbox, code: str, cursor: int, *, detail: int = 0) -> str | None:
    """What the object at `cursor` is, in words; untrusted, with the colours of a terminal. None: unknown."""
    asked = {"code": code, "cursor": max(0, min(cursor, len(code))), "detail": 1 if detail else 0}
    answer = await _ask(sandbox, "inspect", asked, code)
    text = answer.get("text/plain") if isinstance(answer, Mapping) else None
    return text[:_TEXT_CHARS] if isinstance(text, str) else None


async def is_complete(sandbox: Sandbox, code: str) -> CodeCompleteness:
    """Whether `code` can run as it is, or goes on."""
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
    """Give a widget in the worker a message of its page, and run what the widget does about it.

    Raises:
        ValueError: If there is no such kind of message.
    """
    if kind not in _MESSAGES:
        raise ValueError(f"{kind!r} is no message of a widget; use one of {', '.join(sorted(_MESSAGES))}.")
    packed = [base64.b64encode(buffer).decode("ascii") for buffer in buffers]
    asked = {"kind": kind, "content": dict(content), "buffers": packed}
    await sandbox.call(_request("take_message", asked, call_id, _MESSAGE_S, OutputCaps(), read_only=False))


async def _ask(sandbox: Sandbox, name: str, arguments: Mapping[str, Json], code: str) -> Json:
    """The answer of a tool of the worker's own, or None."""
    if len(code) > _CODE_CHARS:
        return None
    request = _request(name, arguments, uuid.uuid4().hex, INTROSPECTION_TIMEOUT_S, _CAPS, read_only=True)
    asking = asyncio.ensure_future(sandbox.call(request))
    try:
        async with asyncio.timeout(_WAIT_S + INTROSPECTION_TIMEOUT_S + 1.0):
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


def _match(told: object) -> CompletionMatch | None:
    if not isinstance(told, Mapping):
        return None
    text, kind, signature = (told.get(name) for name in ("text", "type", "signature"))
    if not isinstance(text, str) or not isinstance(kind, str) or not isinstance(signature, str):
        return None
    if len(text) > _MATCH_CHARS:
        return None
    return CompletionMatch(text=text, type=kind[:100], signature=signature[:_MATCH_CHARS])


CELL_TIMEOUT_S = 86_400.0
"""How long a cell may run: as in any notebook, a person ends it."""


class OutputSink(DisplaySink, Protocol):
    """Where a front's cells show what they give."""

    def printed(self, call_id: str, stream: str, text: str) -> None:
        """A call printed `text`; an empty id is nobody's call."""

    def lost(self, reason: str) -> None:
        """A worker ended, and its variables with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRequest:
    """A cell to run.

    Attributes:
        call_id: The id of its call.
        code: What a person typed.
        manner: How it is to run.
    """

    call_id: str
    code: str
    manner: ExecuteOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """How a cell ended.

    Attributes:
        error: Name, message and traceback of what went wrong, all untrusted; None if nothing did.
        printed: Whether the cell has told its error in text that it printed.
        notes: What else there is to say about it, in sentences of ours.
    """

    error: Mapping[str, str] | None = None
    printed: bool = False
    notes: tuple[str, ...] = ()


class KernelBackend(Protocol):
    """What a front can do, wherever its session is."""

    async def execute(self, cell: CellRequest) -> CellResult:
        """Run a cell."""

    async def complete(self, code: str, cursor: int) -> Completion:
        """What may stand at the cursor."""

    async def inspect(self, code: str, cursor: int, detail: int) -> str | None:
        """What the object at the cursor is, in words."""

    async def is_complete(self, code: str) -> CodeCompleteness:
        """Whether code can run as it is."""

    async def message(
        self, cell: CellRequest, kind: str, content: Mapping[str, Any], buffers: Sequence[bytes]
    ) -> None:
        """Give a widget a message of its page."""

    async def interrupt(self) -> None:
        """Stop whatever runs."""


class KernelSession:
    """A session and its sandbox, as a front uses them."""

    def __init__(self, session: Session, sandbox: LocalSandbox, page: OutputSink) -> None:
        """Have everything that `session` prints and loses told to `page`."""
        self._session, self._sandbox, self._page = session, sandbox, page
        self._stop = session.subscribe(self._hear)

    async def execute(self, cell: CellRequest) -> CellResult:
        """Run a cell: the `python` tool, typed by a person."""
        self._sandbox.displays.watch(cell.call_id, self._page, cell.manner)
        try:
            result = await self._session.call(
                "python", {"code": cell.code}, origin="person", call_id=cell.call_id, timeout_s=CELL_TIMEOUT_S
            )
        except AisotoolsError as error:
            return CellResult(error={"ename": type(error).__name__, "evalue": str(error), "traceback": ""})
        return cell_result(result)

    async def complete(self, code: str, cursor: int) -> Completion:
        """What may stand at the cursor."""
        return await complete(self._sandbox, code, cursor)

    async def inspect(self, code: str, cursor: int, detail: int) -> str | None:
        """What the object at the cursor is."""
        return await inspect(self._sandbox, code, cursor, detail=detail)

    async def is_complete(self, code: str) -> CodeCompleteness:
        """Whether code can run as it is."""
        return await is_complete(self._sandbox, code)

    async def message(
        self, cell: CellRequest, kind: str, content: Mapping[str, Any], buffers: Sequence[bytes]
    ) -> None:
        """Give a widget a message of its page; `cell` stands for what it then shows."""
        self._sandbox.displays.watch(cell.call_id, self._page, cell.manner)
        await send_message(self._sandbox, kind, content, buffers, call_id=cell.call_id)

    async def interrupt(self) -> None:
        """Stop whatever runs."""
        await self._session.interrupt()

    def close(self) -> None:
        """Hear no more; the session goes on."""
        self._stop()

    def _hear(self, event: SessionEvent) -> None:
        if isinstance(event, CallOutput):
            self._page.printed(event.call_id, event.stream, event.text)
        elif isinstance(event, SandboxLost):
            self._page.lost(event.reason)


def cell_result(result: ToolResult) -> CellResult:
    """What a front tells of a cell's result besides what was shown."""
    notes = []
    dropped = result.metadata.get("dropped_bytes")
    if type(dropped) is int and dropped > 0:
        notes.append(f"{dropped:,} more bytes of printed output were dropped.")
    if not result.is_error:
        return CellResult(notes=tuple(notes))
    value = result.value if isinstance(result.value, Mapping) else {}
    error = value.get("error")
    if isinstance(error, Mapping):
        texts = {key: error.get(key) for key in ("ename", "evalue", "traceback")}
        told = {key: text if isinstance(text, str) else "" for key, text in texts.items()}
        return CellResult(error=told, notes=tuple(notes))
    if value.get("stderr"):  # a magic that was used wrongly says so there
        told = {"ename": "UsageError", "evalue": "see what the cell printed", "traceback": ""}
        return CellResult(error=told, printed=True, notes=tuple(notes))
    usual = "Denied" if result.error_kind == "denied" else "SandboxError"
    name = next((name for key, name in _NAMES.items() if result.metadata.get(key) is True), usual)
    return CellResult(error={"ename": name, "evalue": result.content, "traceback": ""}, notes=tuple(notes))


_NAMES = {"worker_died": "WorkerDied", "stopped": "KeyboardInterrupt", "timed_out": "TimeoutError"}


_LIMITS = Limits(stream_bytes=8 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConnection:
    """A session that a front uses.

    Attributes:
        desk: What the front does with it.
        level: Its confinement level.
        notices: What a person should know, in sentences.
        close: Ends it, or only lets go of it if it is another's.
        count: The number of its next cell.
    """

    desk: KernelBackend
    level: str
    notices: tuple[str, ...]
    close: Callable[[], Awaitable[None]]
    count: int = 1


async def open_local(page: OutputSink, *, environ: Mapping[str, str] | None = None) -> SessionConnection:
    """Open a session for the notebook that this process is the kernel of.

    Args:
        page: Hears what its calls show.
        environ: Where settings are looked up; the process's environment without it.

    Raises:
        AisotoolsError: If it cannot be opened.
    """
    environ = os.environ if environ is None else environ
    here = Path.cwd()
    because = _why_not(here, environ)
    if because is None:
        try:
            return await _open_in(here, page, environ, ())
        except WorkspaceRefused as error:
            because = str(error)
    return await _open_in(None, page, environ, (because,))


async def _open_in(
    folder: Path | None, page: OutputSink, environ: Mapping[str, str], because: tuple[str, ...]
) -> SessionConnection:
    made: list[LocalSandbox] = []

    def make(wanted: WorkerSpec, listener: SandboxListener) -> LocalSandbox:
        made.append(LocalSandbox(wanted, listener))
        return made[-1]

    session = Session(
        folder,
        approver=DenyAll(),
        limits=_LIMITS,
        sandbox=make,
        environ=environ,
        protect_notebooks=False,  # Jupyter saves them while cells run
    )
    try:
        await session.start()
    except BaseException:
        await session.close()
        raise
    desk = KernelSession(session, made[-1], page)

    async def close() -> None:
        desk.close()
        await session.close()

    notices = tuple(f"the workspace is {session.workspace}: {reason}" for reason in because)
    return SessionConnection(desk=desk, level=session.level, notices=notices, close=close)


def _why_not(folder: Path, environ: Mapping[str, str]) -> str | None:
    """Why this folder is not taken as the workspace without being asked; None if it is."""
    root = environ.get(SERVER_ROOT, "")
    if root and _same(folder, Path(root)):
        return "this is the root folder of the Jupyter server, which holds more than one notebook's files"
    try:
        # At the strictest: the level is not known yet, and a checkout is no notebook's own folder anyway.
        refuse_workspace(folder, state_folder=state_folder(environ), level="confined", environ=environ)
    except WorkspaceError as error:
        return str(error)
    return None


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
