"""What a call prints and displays in the worker: recorded per call, capped at the source.

Output belongs to the call whose context wrote it (a context variable); a thread started by a call has no
context of its own and counts to the call that holds the main thread. Text goes to the host as it comes, a
line at a time while lines are rare, in blocks when they are many, so that progress shows without a thread and
a flood stays cheap. Beyond the cap nothing more leaves the worker; it is only counted.

A call that somebody watches, in the worker: what it shows goes out at once, and it may ask for input.

Without a watcher a call's displays travel with its result, nobody can be asked, and the messages of widgets
go nowhere. The host says in the call's header who watches and how; see `aisotools.sandbox.host.calls`.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic_core import to_json

from aisotools.core.truncation import HeadTailBuffer

_BLOCK_CHARS = 8192
_FRAME_CHARS = 1 << 16
_TAIL_BYTES = 1 << 15  # of the text beyond the cap, over both streams
_LINES_AT_ONCE, _LINES_PER_S = 2000, 2000.0
_EMITS_AT_ONCE, _EMITS_PER_S = 1000, 50.0

SendText = Callable[[str, str, str], None]
"""Takes a call's id, the stream's name and text, and sends them to the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteOptions:
    """How a watched cell runs.

    Attributes:
        silent: Whether its value is not shown, nor kept.
        store_history: Whether it counts, and is kept in `In`.
        count: Its number; the shell's own without it.
        stdin: Whether whoever watches can be asked for input.
        comms: Whether the messages of widgets are passed on.
    """

    silent: bool = False
    store_history: bool = True
    count: int | None = None
    stdin: bool = False
    comms: bool = False


class OutputListener(Protocol):
    """Somebody who sees a call while it runs."""

    @property
    def manner(self) -> ExecuteOptions:
        """How the call is to run."""

    def show(self, what: str, bundle: Mapping[str, Any] | None = None, **how: Any) -> None:
        """Take what is shown: what kind of thing it is, its data, and what else there is to it."""

    def ask(self, prompt: object, *, password: bool) -> str:
        """Answer a question with a line."""

    def message(
        self, kind: str, content: Mapping[str, Any], metadata: Mapping[str, Any], buffers: Sequence[bytes]
    ) -> None:
        """Take a widget's message."""


class TokenBucket:
    """So many at once, and so many per second in the long run."""

    __slots__ = ("_at_once", "_clock", "_left", "_per_s", "_since_s")

    def __init__(self, at_once: int, per_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start full; `clock` tells the time in seconds."""
        self._at_once, self._per_s, self._clock = float(at_once), per_s, clock
        self._left, self._since_s = self._at_once, clock()

    def take(self, amount: int = 1) -> bool:
        """Use up `amount`, if that much is left."""
        if self._left < amount:
            now_s = self._clock()
            self._left = min(self._at_once, self._left + (now_s - self._since_s) * self._per_s)
            self._since_s = now_s
            if self._left < amount:
                return False
        self._left -= amount
        return True


def emit_allowance() -> TokenBucket:
    """How many progress reports of one call leave the worker."""
    return TokenBucket(_EMITS_AT_ONCE, _EMITS_PER_S)


def escape_surrogates(text: str) -> str:
    """`text` without what UTF-8 cannot hold; that is spelled out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


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
        tail: The end of that text, which leaves with the result only.
        dropped_displays: Displays beyond the cap.
        emits: How many progress reports may still leave.
        dropped_emits: Progress reports beyond that.
        watch: Who hears of all this at once, if anybody does.
    """

    call_id: str
    stream_left: int = 1 << 20
    data_left: int = 16 << 20
    streams: dict[str, list[str]] = field(default_factory=lambda: {"stdout": [], "stderr": []})
    displays: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    dropped_bytes: int = 0
    tail: HeadTailBuffer = field(init=False)
    dropped_displays: int = 0
    emits: TokenBucket = field(default_factory=emit_allowance)
    dropped_emits: int = 0
    watch: OutputListener | None = None
    _clear_next: bool = False

    def __post_init__(self) -> None:
        self.tail = HeadTailBuffer(0, min(_TAIL_BYTES, max(1, self.stream_left // 4)))

    def text(self, stream: str) -> str:
        """Everything of `stream` that was kept, the end of it too."""
        return self.tail.text(stream, before="".join(self.streams[stream]))

    @property
    def missing_bytes(self) -> int:
        """How much of the text `text` leaves out."""
        return sum(map(self.tail.dropped, self.streams))

    def take(self, stream: str, text: str) -> str:
        """Keep what the cap allows of `text` and return it."""
        text = escape_surrogates(text)
        size = len(text) if text.isascii() else len(text.encode())
        if size > self.stream_left:
            kept = text.encode()[: self.stream_left].decode("utf-8", "ignore") if self.stream_left else ""
            self.tail.append(text[len(kept) :].encode(), stream)
            self.dropped_bytes += size - self.stream_left
            self.stream_left = 0
            text = kept
        else:
            self.stream_left -= size
        if text:
            self._clear_if_due()
            self.streams[stream].append(text)
        return text

    def display(
        self,
        bundle: Mapping[str, Any],
        *,
        display_id: str = "",
        update: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep a displayed bundle, or replace the one with the same id."""
        self._clear_if_due()
        kept = None
        if not (update and display_id):
            kept = self._within_cap(bundle)
            self.displays.append((display_id, kept))
        for place, (known, old) in enumerate(self.displays):
            if update and known == display_id != "":
                self.data_left += _size(old)
                kept = self._within_cap(bundle)
                self.displays[place] = (display_id, kept)
        if self.watch is not None:
            what = "update" if update else "display"
            shown = kept
            if shown is None:  # the update may be meant for what an earlier cell has displayed
                shown = self._within_cap(bundle)
                self.data_left += _size(shown)
            self.watch.show(what, shown, display_id=display_id, metadata=json_bundle(metadata or {}))

    def show_result(self, bundle: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> None:
        """Keep the value of the last expression."""
        if self.result is not None:
            self.data_left += _size(self.result)
        self.result = self._within_cap(bundle)
        if self.watch is not None:
            self.watch.show("result", self.result, metadata=json_bundle(metadata or {}))

    def clear(self, *, wait: bool = False) -> None:
        """Forget what was shown so far, as `clear_output` asks; with `wait` as soon as there is more."""
        if self.watch is not None:
            self.watch.show("clear", wait=wait)
        self._forget(wait=wait)

    def _forget(self, *, wait: bool = False) -> None:
        self._clear_next = wait
        if wait:
            return
        self.data_left += sum(_size(bundle) for _, bundle in self.displays)
        self.displays.clear()
        self.tail.clear()
        for kept in self.streams.values():
            kept.clear()

    def _clear_if_due(self) -> None:
        if self._clear_next:
            self._forget()

    def _within_cap(self, bundle: Mapping[str, Any]) -> dict[str, Any]:
        plain = json_bundle(bundle)
        size = _size(plain)
        if size > self.data_left:
            self.dropped_displays += 1
            plain = {"text/plain": f"[display of {size} bytes left out: over the cap of this call]"}
            size = _size(plain)
        self.data_left -= size
        return plain


def json_bundle(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """A MIME bundle that JSON can hold: binary values as base64 text, what cannot be held as a note."""
    return {escape_surrogates(str(mime)): _json_value(value) for mime, value in bundle.items()}


def _json_value(value: Any) -> Any:
    if isinstance(value, str):
        return escape_surrogates(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    try:
        to_json(value, inf_nan_mode="strings", serialize_unknown=True)
    except ValueError as error:  # a lone surrogate somewhere inside, for one
        return f"[cannot be shown: {escape_surrogates(str(error))[:200]}]"
    return value


def _size(bundle: Mapping[str, Any]) -> int:
    return sum(
        len(v) if isinstance(v, str) else len(to_json(v, inf_nan_mode="strings", serialize_unknown=True))
        for v in bundle.values()
    )


class Recorder:
    """Knows which call is current, and where its text goes."""

    def __init__(self, send: SendText) -> None:
        """Send text through `send`."""
        self.send = send
        self._current: ContextVar[CallRecord | None] = ContextVar("aisotools_call", default=None)
        self.main: CallRecord | None = None
        self._homeless = CallRecord(call_id="")
        self.renew_lock()

    def renew_lock(self) -> None:
        """Have a new lock for the streams; for a fork, where the thread that held the old one is missing."""
        self.lock = threading.RLock()

    def enter(self, record: CallRecord) -> None:
        """Make `record` the current one for this context and what it starts."""
        self._current.set(record)

    def current(self) -> CallRecord:
        """The record that output written here and now belongs to."""
        return self._current.get() or self.main or self._homeless


class Stream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of the worker; any thread may write to it."""

    def __init__(self, name: str, descriptor: int, recorder: Recorder) -> None:
        """Be the stream `name`; `descriptor` is for programs that ask for a real one."""
        self._name = name
        self._descriptor = descriptor
        self._recorder = recorder
        self._pending: list[str] = []
        self._pending_chars = 0
        self._owner: CallRecord | None = None
        self._lines = TokenBucket(_LINES_AT_ONCE, _LINES_PER_S)

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
        """What UTF-8 cannot hold is spelled out."""
        return "backslashreplace"

    def writable(self) -> bool:
        """Yes."""
        return True

    def isatty(self) -> bool:
        """No."""
        return False

    def fileno(self) -> int:
        """The raw descriptor, which the host drains too."""
        return self._descriptor

    def close(self) -> None:
        """Stay open: the worker has only this one."""
        self.flush()

    def write(self, text: str) -> int:
        """Take text for the current call."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        record = self._recorder.current()
        others = ""
        with self._recorder.lock:
            owner = self._owner
            if record is not owner:
                others, self._owner = self._take_pending(), record
            kept = record.take(self._name, text)
            if kept:
                self._pending.append(kept)
                self._pending_chars += len(kept)
            due = self._pending_chars >= _BLOCK_CHARS or ("\n" in kept and self._lines.take())
        # Sending may block, and must not hold up a finaliser or a signal handler that prints meanwhile.
        if others and owner is not None:
            self._send(owner, others)
        if due:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Send what is pending."""
        if not self._pending:
            return
        with self._recorder.lock:
            owner, text = self._owner, self._take_pending()
        if owner is not None:
            self._send(owner, text)

    def _take_pending(self) -> str:
        text = "".join(self._pending)
        self._pending.clear()
        self._pending_chars = 0
        return text

    def _send(self, owner: CallRecord, text: str) -> None:
        for start in range(0, len(text), _FRAME_CHARS):
            self._recorder.send(owner.call_id, self._name, text[start : start + _FRAME_CHARS])


Send = Callable[[str, Mapping[str, Any], tuple[bytes, ...]], None]
"""Sends a frame to the host: its op, its header and its parts."""

_PROMPT_CHARS = 10_000
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(slots=True, kw_only=True)
class HostWatch:
    """Whoever watches one call, at the other end of the channel.

    Attributes:
        number: The call, as the channel calls it.
        manner: How it is to run.
        send: Sends a frame to the host.
        inputs: Asks the host for a line.
    """

    number: int
    manner: ExecuteOptions
    send: Send
    inputs: InputChannel
    _comm_noted: bool = field(default=False, init=False)

    def show(
        self,
        what: str,
        bundle: Mapping[str, Any] | None = None,
        *,
        buffers: Sequence[bytes] = (),
        **how: Any,
    ) -> None:
        """Send what is shown; `bundle` is within the caps already."""
        _flush()
        body = b"" if bundle is None else to_json(bundle, inf_nan_mode="strings", serialize_unknown=True)
        self.send("show", {"id": self.number, "what": what, **how}, (body, *buffers))

    def ask(self, prompt: object, *, password: bool) -> str:
        """A line from whoever watches.

        Raises:
            RuntimeError: If nobody can be asked.
            EOFError: If they end their input.
        """
        _flush()
        if not self.manner.stdin:
            raise no_input_error(prompt)
        return self.inputs.ask(self.number, escape_surrogates(str(prompt))[:_PROMPT_CHARS], password=password)

    def message(
        self,
        kind: str,
        content: Mapping[str, Any],
        metadata: Mapping[str, Any],
        buffers: Sequence[bytes],
    ) -> None:
        """Pass a widget's message on; or say, once, that it is not."""
        if self.manner.comms:
            self.show("comm", content, buffers=buffers, kind=kind, metadata=metadata)
        elif not self._comm_noted:
            self._comm_noted = True
            self.show("comm_dropped")


def no_input_error(prompt: object) -> RuntimeError:
    """What stands for an answer when nobody can be asked."""
    return RuntimeError(
        f"input({str(prompt)!r}) cannot ask anybody from inside the sandbox. "
        "Pass the value in as an argument or assign it before this call.",
    )


class InputChannel:
    """Questions to the host, and their answers; asked from any thread."""

    def __init__(self, send: Send, descriptor: int, receive: Callable[[], None]) -> None:
        """Ask through `send`.

        Args:
            send: Sends a frame.
            descriptor: The channel, for waiting.
            receive: Reads the channel once and handles what came; may call `take`.
        """
        self._send, self._descriptor, self._receive = send, descriptor, receive
        self._waiting: dict[int, threading.Event] = {}
        self._answers: dict[int, str | None] = {}
        self._asked = 0

    def take(self, header: Mapping[str, Any]) -> None:
        """The host answers."""
        waiting = self._waiting.pop(header["seq"], None)
        if waiting is not None:
            self._answers[header["seq"]] = header["value"]
            waiting.set()

    def ask(self, number: int, prompt: str, *, password: bool) -> str:
        """Ask on behalf of a call and wait; the main thread serves the channel meanwhile."""
        self._asked += 1
        seq, answered = self._asked, threading.Event()
        self._waiting[seq] = answered
        self._send("ask", {"id": number, "seq": seq, "prompt": prompt, "password": password}, ())
        try:
            if threading.current_thread() is threading.main_thread():
                while not answered.is_set():
                    self._serve_once()
            else:
                answered.wait()
            value = self._answers[seq]
        finally:
            self._waiting.pop(seq, None)
            self._answers.pop(seq, None)
        if value is None:
            raise EOFError
        return value

    def _serve_once(self) -> None:
        select.select([self._descriptor], [], [])  # an interrupt strikes here, where it loses nothing
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._receive()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)


def strip_ansi(text: str) -> str:
    """`text` as a model reads it."""
    return _COLOURS.sub("", text)


def install_comms(current: Callable[[], OutputListener | None]) -> None:
    """Have the messages of widgets go to whoever watches the current call."""
    import comm
    from comm.base_comm import BaseComm

    class Comm(BaseComm):
        def publish_msg(
            self,
            msg_type: str,
            data: Any = None,
            metadata: Any = None,
            buffers: Any = None,
            **keys: Any,
        ) -> None:
            watch = current()
            if watch is not None:
                told = json_bundle({**keys, "comm_id": self.comm_id, "data": data or {}})
                more = [bytes(memoryview(buffer).cast("B")) for buffer in buffers or ()]
                watch.message(msg_type, told, json_bundle(metadata or {}), more)

    comm.create_comm = Comm


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # user code may have put None there
            stream.flush()
