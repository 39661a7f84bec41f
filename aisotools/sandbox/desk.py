"""What a front does with a session: runs cells in it through its gate, and hears them while they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aisotools.events import ToolResult
from aisotools.exceptions import AisotoolsError
from aisotools.sandbox import enquiry
from aisotools.sandbox.enquiry import Completion, Wholeness
from aisotools.sandbox.kernel import Kernel
from aisotools.sandbox.screens import Screen
from aisotools.sandbox.streams import Manner
from aisotools.session import Session
from aisotools.session_events import CallOutput, SandboxLost, SessionEvent

CELL_S = 86_400.0
"""How long a cell may run: as in any notebook, a person ends it."""


class Page(Screen, Protocol):
    """Where a front's cells show what they give."""

    def printed(self, call_id: str, stream: str, text: str) -> None:
        """A call printed `text`; an empty id is nobody's call."""

    def lost(self, reason: str) -> None:
        """A worker ended, and its variables with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell to run.

    Attributes:
        call_id: The id of its call.
        code: What a person typed.
        manner: How it is to run.
    """

    call_id: str
    code: str
    manner: Manner


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a cell ended.

    Attributes:
        error: Name, message and traceback of what went wrong, all untrusted; None if nothing did.
        printed: Whether the cell has told its error in text that it printed.
        notes: What else there is to say about it, in sentences of ours.
    """

    error: Mapping[str, str] | None = None
    printed: bool = False
    notes: tuple[str, ...] = ()


class SomeDesk(Protocol):
    """What a front can do, wherever its session is."""

    async def execute(self, cell: Cell) -> Outcome:
        """Run a cell."""

    async def complete(self, code: str, cursor: int) -> Completion:
        """What may stand at the cursor."""

    async def inspect(self, code: str, cursor: int, detail: int) -> str | None:
        """What the object at the cursor is, in words."""

    async def is_complete(self, code: str) -> Wholeness:
        """Whether code can run as it is."""

    async def message(
        self, cell: Cell, kind: str, content: Mapping[str, Any], buffers: Sequence[bytes]
    ) -> None:
        """Give a widget a message of its page."""

    async def interrupt(self) -> None:
        """Stop whatever runs."""


class Desk:
    """A session and its sandbox, as a front uses them."""

    def __init__(self, session: Session, sandbox: Kernel, page: Page) -> None:
        """Have everything that `session` prints and loses told to `page`."""
        self._session, self._sandbox, self._page = session, sandbox, page
        self._stop = session.subscribe(self._hear)

    async def execute(self, cell: Cell) -> Outcome:
        """Run a cell: the `python` tool, typed by a person."""
        self._sandbox.screens.watch(cell.call_id, self._page, cell.manner)
        try:
            result = await self._session.call(
                "python", {"code": cell.code}, origin="person", call_id=cell.call_id, timeout_s=CELL_S
            )
        except AisotoolsError as error:
            return Outcome(error={"ename": type(error).__name__, "evalue": str(error), "traceback": ""})
        return outcome_of(result)

    async def complete(self, code: str, cursor: int) -> Completion:
        """What may stand at the cursor."""
        return await enquiry.complete(self._sandbox, code, cursor)

    async def inspect(self, code: str, cursor: int, detail: int) -> str | None:
        """What the object at the cursor is."""
        return await enquiry.inspect(self._sandbox, code, cursor, detail=detail)

    async def is_complete(self, code: str) -> Wholeness:
        """Whether code can run as it is."""
        return await enquiry.is_complete(self._sandbox, code)

    async def message(
        self, cell: Cell, kind: str, content: Mapping[str, Any], buffers: Sequence[bytes]
    ) -> None:
        """Give a widget a message of its page; `cell` stands for what it then shows."""
        self._sandbox.screens.watch(cell.call_id, self._page, cell.manner)
        await enquiry.send_message(self._sandbox, kind, content, buffers, call_id=cell.call_id)

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


def outcome_of(result: ToolResult) -> Outcome:
    """What a front tells of a cell's result besides what was shown."""
    notes = []
    dropped = result.metadata.get("dropped_bytes")
    if type(dropped) is int and dropped > 0:
        notes.append(f"{dropped:,} more bytes of printed output were dropped.")
    if not result.is_error:
        return Outcome(notes=tuple(notes))
    value = result.value if isinstance(result.value, Mapping) else {}
    error = value.get("error")
    if isinstance(error, Mapping):
        texts = {key: error.get(key) for key in ("ename", "evalue", "traceback")}
        told = {key: text if isinstance(text, str) else "" for key, text in texts.items()}
        return Outcome(error=told, notes=tuple(notes))
    if value.get("stderr"):  # a magic that was used wrongly says so there
        told = {"ename": "UsageError", "evalue": "see what the cell printed", "traceback": ""}
        return Outcome(error=told, printed=True, notes=tuple(notes))
    usual = "Denied" if result.error_kind == "denied" else "SandboxError"
    name = next((name for key, name in _NAMES.items() if result.metadata.get(key) is True), usual)
    return Outcome(error={"ename": name, "evalue": result.content, "traceback": ""}, notes=tuple(notes))


_NAMES = {"worker_died": "WorkerDied", "stopped": "KeyboardInterrupt", "timed_out": "TimeoutError"}
