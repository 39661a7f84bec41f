"""What a call prints and displays in the worker: recorded per call, capped at the source.

Output belongs to the call whose context wrote it (a context variable); a thread started by a call has no
context of its own and counts to the call that holds the main thread. Text goes to the host as it comes, a
line at a time while lines are rare, in blocks when they are many, so that progress shows without a thread and
a flood stays cheap. Beyond the cap nothing more leaves the worker; it is only counted.
"""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

_BLOCK_CHARS = 8192
_LINES_AT_ONCE = 200
_LINES_PER_S = 100.0

SendText = Callable[[str, str, str], None]
"""Takes a call's id, the stream's name and text, and sends them to the host."""


@dataclass(slots=True, kw_only=True)
class CallRecord:
    """What one call has shown so far.

    Attributes:
        call_id: The call.
        stream_left: Bytes of text that may still leave.
        data_left: Bytes of displayed data that may still leave.
        streams: The text so far, by stream.
        displays: MIME bundles in display order, each with its `display_id` or "".
        result: The MIME bundle of the last expression, or None.
        error: Name, message and traceback of what was raised, or None.
        dropped_bytes: Text beyond the cap.
        dropped_displays: Displays beyond the cap.
    """

    call_id: str
    stream_left: int = 1 << 20
    data_left: int = 16 << 20
    streams: dict[str, list[str]] = field(default_factory=lambda: {"stdout": [], "stderr": []})
    displays: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    dropped_bytes: int = 0
    dropped_displays: int = 0

    def text(self, stream: str) -> str:
        """Everything of `stream` that was kept."""
        return "".join(self.streams[stream])

    def take(self, stream: str, text: str) -> str:
        """Keep what the cap allows of `text` and return it."""
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if size > self.stream_left:
            kept = text.encode("utf-8", "replace")[: max(self.stream_left, 0)].decode("utf-8", "ignore")
            self.dropped_bytes += size - self.stream_left
            self.stream_left = 0
            text = kept
        else:
            self.stream_left -= size
        if text:
            self.streams[stream].append(text)
        return text

    def display(self, bundle: Mapping[str, Any], *, display_id: str = "", update: bool = False) -> None:
        """Keep a displayed bundle, or replace the one with the same id."""
        plain = json_bundle(bundle)
        size = sum(len(v) if isinstance(v, str) else 1024 for v in plain.values())
        if size > self.data_left:
            self.dropped_displays += 1
            plain = {"text/plain": f"[display of {size} bytes left out: over the cap of this call]"}
        else:
            self.data_left -= size
        if update and display_id:
            for place, (known, _) in enumerate(self.displays):
                if known == display_id:
                    self.displays[place] = (display_id, plain)
            return
        self.displays.append((display_id, plain))

    def clear(self) -> None:
        """Forget what was shown so far, as `clear_output` asks."""
        self.displays.clear()
        for kept in self.streams.values():
            kept.clear()


def json_bundle(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """A MIME bundle with binary values as base64 text."""
    return {
        str(mime): base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value
        for mime, value in bundle.items()
    }


class Recorder:
    """Knows which call is current, and where its text goes."""

    def __init__(self, send: SendText) -> None:
        """Send text through `send`."""
        self.send = send
        self._current: ContextVar[CallRecord | None] = ContextVar("aisotools_call", default=None)
        self.main: CallRecord | None = None
        self._homeless = CallRecord(call_id="", stream_left=1 << 20)

    def enter(self, record: CallRecord) -> None:
        """Make `record` the current one for this context and what it starts."""
        self._current.set(record)

    def current(self) -> CallRecord:
        """The record that output written here and now belongs to."""
        return self._current.get() or self.main or self._homeless


class Stream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of the worker."""

    def __init__(self, name: str, descriptor: int, recorder: Recorder) -> None:
        """Be the stream `name`; `descriptor` is for programs that ask for a real one."""
        self._name = name
        self._descriptor = descriptor
        self._recorder = recorder
        self._pending: list[str] = []
        self._pending_chars = 0
        self._owner: CallRecord | None = None
        self._lines_left = float(_LINES_AT_ONCE)
        self._refilled_s = time.monotonic()

    @property
    def name(self) -> str:
        """`<stdout>` or `<stderr>`, as Python's own streams are called."""
        return f"<{self._name}>"

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read-only here, as in io.TextIOWrapper
        """Always UTF-8."""
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]  # read-only here, as in io.TextIOWrapper
        """Undecodable text is replaced."""
        return "replace"

    def writable(self) -> bool:
        """Yes."""
        return True

    def isatty(self) -> bool:
        """No."""
        return False

    def fileno(self) -> int:
        """The raw descriptor, which the host drains too."""
        return self._descriptor

    def write(self, text: str) -> int:
        """Take text for the current call."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        record = self._recorder.current()
        if record is not self._owner:
            self.flush()
            self._owner = record
        kept = record.take(self._name, text)
        if kept:
            self._pending.append(kept)
            self._pending_chars += len(kept)
            if self._pending_chars >= _BLOCK_CHARS or ("\n" in kept and self._line_may_go()):
                self.flush()
        return len(text)

    def flush(self) -> None:
        """Send what is pending."""
        if self._pending and self._owner is not None:
            text = "".join(self._pending)
            self._pending.clear()
            self._pending_chars = 0
            self._recorder.send(self._owner.call_id, self._name, text)

    def _line_may_go(self) -> bool:
        now = time.monotonic()
        refill = (now - self._refilled_s) * _LINES_PER_S
        self._lines_left = min(float(_LINES_AT_ONCE), self._lines_left + refill)
        self._refilled_s = now
        if self._lines_left < 1:
            return False
        self._lines_left -= 1
        return True
