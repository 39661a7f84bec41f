"""What a call prints, displays and asks in the worker: recorded per call, capped at the source, forwarded.

Output belongs to the call whose context wrote it (a context variable). A thread that a call started has no
context of its own; it counts to the call that holds the main thread. Text goes to the host as it comes, line
by line while lines are rare and in blocks when they are many, so that progress shows and a flood stays cheap.
Beyond the cap nothing more leaves the worker; it is only counted.

The host's header says whether somebody listens to a call. If so, what the call displays goes out at once, and
it may ask for input. If not, displays travel with the result, input is refused, and messages of widgets are
discarded.

Threat: a call prints or shows so much that the host or the model is flooded, or in the name of another call.
Mechanism: what leaves the worker is capped here, at the source. That is a courtesy of an honest worker: code
in it can send any frame, so the host counts and caps once more (`aisotools.sandbox.host.calls`).
Race: several threads print at once: each piece is whole, and their order is that in which the record got
them.
Failure: beyond a cap the rest is counted and dropped, and the result says how much.
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

# Text that is collected before it is sent when lines come too fast, and text in one frame at most.
_BLOCK_CHARS = 8192
_MAX_FRAME_CHARS = 1 << 16
# Of the text beyond the cap, over both streams.
_TAIL_BYTES = 1 << 15
# Lines that are sent one by one.
_LINE_BURST = 2000
_LINES_PER_S = 2000.0
# Progress reports of one call that leave the worker.
_EMIT_BURST = 1000
_EMITS_PER_S = 50.0
_MAX_PROMPT_CHARS = 10_000
_ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

SendText = Callable[[str, str, str], None]
"""Sends text to the host: takes the call's id, the stream's name and the text."""

SendFrame = Callable[[str, Mapping[str, Any], tuple[bytes, ...]], None]
"""Sends a frame to the host: takes its op, its header and its parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteOptions:
    """How a cell runs that somebody listens to.

    Attributes:
        silent: Whether its value is neither displayed nor stored.
        store_history: Whether it has a number, and is stored in `In`.
        count: Its number; the shell's own without it.
        stdin: Whether it may ask for input.
        comms: Whether messages of widgets are forwarded.
    """

    silent: bool = False
    store_history: bool = True
    count: int | None = None
    stdin: bool = False
    comms: bool = False


class OutputListener(Protocol):
    """Receives what a call displays and asks while it runs."""

    @property
    def options(self) -> ExecuteOptions:
        """The options that the call runs with."""

    def show(self, kind: str, bundle: Mapping[str, Any] | None = None, /, **details: Any) -> None:
        """Display something: its kind, its data, and further fields."""

    def ask(self, prompt: object, *, password: bool) -> str:
        """Ask for a line of input and return it."""

    def message(
        self, kind: str, content: Mapping[str, Any], metadata: Mapping[str, Any], buffers: Sequence[bytes]
    ) -> None:
        """Forward a widget's message."""


class TokenBucket:
    """A rate limit: a burst at once, and a rate per second in the long run."""

    __slots__ = ("_burst", "_clock", "_left", "_rate", "_refilled_s")

    def __init__(self, burst: int, rate: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with a full bucket of `burst` tokens; `rate` are added per second of `clock`."""
        self._burst = float(burst)
        self._rate = rate
        self._clock = clock
        self._left = self._burst
        self._refilled_s = clock()

    def take(self, amount: int = 1) -> bool:
        """Take `amount` tokens. Return False, and take none, if there are fewer."""
        if self._left < amount:
            # Refill only when needed: reading the clock costs more than all the rest.
            now_s = self._clock()
            self._left = min(self._burst, self._left + (now_s - self._refilled_s) * self._rate)
            self._refilled_s = now_s
            if self._left < amount:
                return False
        self._left -= amount
        return True


def emit_allowance() -> TokenBucket:
    """Return the rate limit for progress reports of one call."""
    return TokenBucket(_EMIT_BURST, _EMITS_PER_S)


def escape_surrogates(text: str) -> str:
    """Return `text` with lone surrogates, which UTF-8 cannot hold, written as escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(slots=True, kw_only=True)
class CallRecord:
    """What one call has printed and displayed so far.

    Attributes:
        call_id: The call.
        stream_left: Bytes of text that may still leave.
        data_left: Bytes of displayed data that may still leave.
        streams: The text within the cap, by stream.
        displays: MIME bundles in display order, each with its `display_id` or "".
        result: The MIME bundle of the last expression, or None.
        error: Name, message and traceback of what was raised, or None.
        dropped_bytes: Text beyond the cap.
        tail: The end of that text, which leaves with the result only.
        dropped_displays: Displays beyond the cap.
        emits: How many progress reports may still leave.
        dropped_emits: Progress reports beyond that.
        listener: Receives all this at once, if anybody listens.
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
    listener: OutputListener | None = None
    _clear_next: bool = False

    def __post_init__(self) -> None:
        self.tail = HeadTailBuffer(0, min(_TAIL_BYTES, max(1, self.stream_left // 4)))

    def text(self, stream: str) -> str:
        """Return the text of `stream` within the cap, and its end."""
        return self.tail.text(stream, before="".join(self.streams[stream]))

    @property
    def missing_bytes(self) -> int:
        """Bytes that `text` leaves out, over all streams."""
        return sum(map(self.tail.dropped, self.streams))

    def take(self, stream: str, text: str) -> str:
        """Record what the cap allows of `text`, and return that."""
        text = escape_surrogates(text)
        size = len(text) if text.isascii() else len(text.encode())
        if size > self.stream_left:
            head = text.encode()[: self.stream_left].decode("utf-8", "ignore") if self.stream_left else ""
            self.tail.append(text[len(head) :].encode(), stream)
            self.dropped_bytes += size - self.stream_left
            self.stream_left = 0
            text = head
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
        """Record a displayed bundle, or with `update` replace those with the same id."""
        self._clear_if_due()
        recorded = None
        if not (update and display_id):
            recorded = self._limit(bundle)
            self.displays.append((display_id, recorded))
        for position, (known_id, old) in enumerate(self.displays):
            if update and known_id == display_id != "":
                self.data_left += _size(old)
                recorded = self._limit(bundle)
                self.displays[position] = (display_id, recorded)
        if self.listener is None:
            return
        if recorded is None:
            # The update is for a display of an earlier cell: forward it, but it takes none of this call's
            # room.
            recorded = self._limit(bundle)
            self.data_left += _size(recorded)
        kind = "update" if update else "display"
        self.listener.show(kind, recorded, display_id=display_id, metadata=json_bundle(metadata or {}))

    def show_result(self, bundle: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> None:
        """Record the value of the last expression."""
        if self.result is not None:
            self.data_left += _size(self.result)
        self.result = self._limit(bundle)
        if self.listener is not None:
            self.listener.show("result", self.result, metadata=json_bundle(metadata or {}))

    def clear(self, *, wait: bool = False) -> None:
        """Discard what was displayed so far, for `clear_output`; with `wait`, as soon as there is more."""
        if self.listener is not None:
            self.listener.show("clear", wait=wait)
        self._discard(wait=wait)

    def _discard(self, *, wait: bool = False) -> None:
        self._clear_next = wait
        if wait:
            return
        self.data_left += sum(_size(bundle) for _, bundle in self.displays)
        self.displays.clear()
        self.tail.clear()
        for texts in self.streams.values():
            texts.clear()

    def _clear_if_due(self) -> None:
        if self._clear_next:
            self._discard()

    def _limit(self, bundle: Mapping[str, Any]) -> dict[str, Any]:
        plain = json_bundle(bundle)
        size = _size(plain)
        if size > self.data_left:
            self.dropped_displays += 1
            plain = {"text/plain": f"[display of {size} bytes left out: over the cap of this call]"}
            size = _size(plain)
        self.data_left -= size
        return plain


def json_bundle(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """Return a MIME bundle as JSON can hold it: bytes as base64, and a note in place of what it cannot."""
    return {escape_surrogates(str(mime)): _json_value(value) for mime, value in bundle.items()}


def _json_value(value: Any) -> Any:
    if isinstance(value, str):
        return escape_surrogates(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    try:
        to_json(value, inf_nan_mode="strings", serialize_unknown=True)
    except ValueError as error:
        # A lone surrogate somewhere inside, for example.
        return f"[cannot be shown: {escape_surrogates(str(error))[:200]}]"
    return value


def _size(bundle: Mapping[str, Any]) -> int:
    return sum(
        len(v) if isinstance(v, str) else len(to_json(v, inf_nan_mode="strings", serialize_unknown=True))
        for v in bundle.values()
    )


class Recorder:
    """Knows the current call, and sends its text to the host.

    Attributes:
        main: The record of the call that holds the main thread, if one does.
        lock: Guards the buffers of both streams.
    """

    def __init__(self, send: SendText) -> None:
        self._send = send
        self._current: ContextVar[CallRecord | None] = ContextVar("aisotools_call", default=None)
        self.main: CallRecord | None = None
        # For output that belongs to no call.
        self._unowned = CallRecord(call_id="")
        self.replace_lock()

    def connect(self, send: SendText) -> None:
        """Send text by `send` from now on: the recorder is older than the worker and its channel."""
        self._send = send

    def send(self, call_id: str, stream: str, text: str) -> None:
        """Send text to the host."""
        self._send(call_id, stream, text)

    def replace_lock(self) -> None:
        """Create a new lock, in a fork: the thread that held the old one may be missing there."""
        self.lock = threading.RLock()

    def enter(self, record: CallRecord) -> None:
        """Make `record` the current one for this context, and for tasks that it starts."""
        self._current.set(record)

    def current(self) -> CallRecord:
        """Return the record that output written here and now belongs to."""
        return self._current.get() or self.main or self._unowned


class Stream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of the worker; any thread may write to it."""

    def __init__(self, name: str, descriptor: int, recorder: Recorder) -> None:
        """Create the stream `name`; `descriptor` is what `fileno` returns, for programs that need one."""
        self._name = name
        self._descriptor = descriptor
        self._recorder = recorder
        self._pending: list[str] = []
        self._pending_chars = 0
        self._owner: CallRecord | None = None
        self._lines = TokenBucket(_LINE_BURST, _LINES_PER_S)

    @property
    def name(self) -> str:
        """Name as that of Python's own streams: `<stdout>` or `<stderr>`."""
        return f"<{self._name}>"

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read-only here, as in io.TextIOWrapper
        """Always UTF-8."""
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]  # read-only here, as in io.TextIOWrapper
        """Lone surrogates are written as escapes."""
        return "backslashreplace"

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return False."""
        return False

    def fileno(self) -> int:
        """Return the raw descriptor, which the host reads too."""
        return self._descriptor

    def close(self) -> None:
        """Flush only: user code may close it, and the worker has no other."""
        self.flush()

    def write(self, text: str) -> int:
        """Write text for the current call. Return its length."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        record = self._recorder.current()
        earlier = ""
        with self._recorder.lock:
            owner = self._owner
            if record is not owner:
                # Another call wrote before: its text must not go out under this one's name.
                earlier, self._owner = self._take_pending(), record
            accepted = record.take(self._name, text)
            if accepted:
                self._pending.append(accepted)
                self._pending_chars += len(accepted)
            is_due = self._pending_chars >= _BLOCK_CHARS or ("\n" in accepted and self._lines.take())
        # Not under the lock: sending may block, and a finaliser or another thread may print meanwhile.
        if earlier and owner is not None:
            self._send(owner, earlier)
        if is_due:
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
        for start in range(0, len(text), _MAX_FRAME_CHARS):
            self._recorder.send(owner.call_id, self._name, text[start : start + _MAX_FRAME_CHARS])


@dataclass(slots=True, kw_only=True)
class HostListener:
    """The listener of one call, at the other end of the channel.

    Attributes:
        number: The call's number on the channel.
        options: How it runs.
        send: Sends a frame to the host.
        inputs: Asks the host for a line.
    """

    number: int
    options: ExecuteOptions
    send: SendFrame
    inputs: InputChannel
    _comm_noted: bool = field(default=False, init=False)

    def show(
        self,
        kind: str,
        bundle: Mapping[str, Any] | None = None,
        /,
        *,
        buffers: Sequence[bytes] = (),
        **details: Any,
    ) -> None:
        """Send a display; `bundle` is within the caps already."""
        # What was printed before must arrive before.
        _flush()
        body = b"" if bundle is None else to_json(bundle, inf_nan_mode="strings", serialize_unknown=True)
        self.send("show", {"id": self.number, "what": kind, **details}, (body, *buffers))

    def ask(self, prompt: object, *, password: bool) -> str:
        """Ask for a line of input and return it.

        Raises:
            RuntimeError: If this call may not ask.
            EOFError: At the end of input.
        """
        _flush()
        if not self.options.stdin:
            raise no_input_error(prompt)
        return self.inputs.ask(
            self.number, escape_surrogates(str(prompt))[:_MAX_PROMPT_CHARS], password=password
        )

    def message(
        self,
        kind: str,
        content: Mapping[str, Any],
        metadata: Mapping[str, Any],
        buffers: Sequence[bytes],
    ) -> None:
        """Forward a widget's message; or report, once, that messages are discarded."""
        if self.options.comms:
            self.show("comm", content, buffers=buffers, kind=kind, metadata=metadata)
        elif not self._comm_noted:
            self._comm_noted = True
            self.show("comm_dropped")


def no_input_error(prompt: object) -> RuntimeError:
    """Build the error of `input()` in a call that may not ask."""
    return RuntimeError(
        f"input({str(prompt)!r}) cannot ask anybody from inside the sandbox. "
        "Pass the value in as an argument or assign it before this call.",
    )


class InputChannel:
    """Asks the host for lines of input, from any thread."""

    def __init__(self, send: SendFrame, descriptor: int, read_channel: Callable[[], None]) -> None:
        """Create the channel.

        Args:
            send: Sends a frame.
            descriptor: The call channel, to wait on.
            read_channel: Reads the call channel once and handles what came; may call `receive`.
        """
        self._send = send
        self._descriptor = descriptor
        self._read_channel = read_channel
        self._waiting: dict[int, threading.Event] = {}
        self._answers: dict[int, str | None] = {}
        self._last_seq = 0
        self._blocking: int | None = None
        """The call for which the main thread waits in `ask`."""
        self._is_cancelled = False

    def receive(self, header: Mapping[str, Any]) -> None:
        """Handle an answer of the host; one that nobody waits for is ignored."""
        waiting = self._waiting.pop(header["seq"], None)
        if waiting is not None:
            self._answers[header["seq"]] = header["value"]
            waiting.set()

    def cancel(self, number: int) -> None:
        """Interrupt the question of a call that blocks the main thread, if there is one."""
        if self._blocking == number:
            self._is_cancelled = True

    def ask(self, number: int, prompt: str, *, password: bool) -> str:
        """Ask on behalf of a call, wait, and return the answer.

        Raises:
            EOFError: At the end of input.
            KeyboardInterrupt: If the call is cancelled while its question blocks the main thread.
        """
        self._last_seq += 1
        seq, answered = self._last_seq, threading.Event()
        self._waiting[seq] = answered
        self._send("ask", {"id": number, "seq": seq, "prompt": prompt, "password": password}, ())
        try:
            if threading.current_thread() is threading.main_thread():
                # The event loop cannot run while input() blocks its thread: serve the channel here, or the
                # answer would never be read.
                self._blocking, self._is_cancelled = number, False
                while not answered.is_set():
                    self._serve_once()
                    # Race: the host interrupts by a frame and by a signal. If the frame is read first, here,
                    # the worker takes the signal for its echo, and only this can end the waiting.
                    if self._is_cancelled:
                        raise KeyboardInterrupt
            else:
                answered.wait()
            value = self._answers[seq]
        finally:
            if threading.current_thread() is threading.main_thread():
                self._blocking = None
            self._waiting.pop(seq, None)
            self._answers.pop(seq, None)
        if value is None:
            raise EOFError
        return value

    def _serve_once(self) -> None:
        # Ctrl-C during input(): the interrupt may strike in select, where nothing is lost. Between here and
        # the end of the read it would lose frames that have left the socket and have not been handled.
        select.select([self._descriptor], [], [])
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._read_channel()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def strip_ansi(text: str) -> str:
    """Return `text` without the escape sequences for colours."""
    return _ANSI_COLOUR.sub("", text)


def install_comms(current: Callable[[], OutputListener | None]) -> None:
    """Forward messages of widgets to the listener of the current call, which `current` returns."""
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
            listener = current()
            if listener is not None:
                content = json_bundle({**keys, "comm_id": self.comm_id, "data": data or {}})
                parts = [bytes(memoryview(buffer).cast("B")) for buffer in buffers or ()]
                listener.message(msg_type, content, json_bundle(metadata or {}), parts)

    comm.create_comm = Comm


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # user code may have put None there
            stream.flush()
