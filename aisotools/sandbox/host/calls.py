"""The calls that a worker or a reader has in progress: how one is sent, and what comes back about it.

Threat
    All that comes back is hostile: fields that are missing, of the wrong type or out of range; reports,
    displays and output that are small on the wire and large in memory; floods of what has no effect; large
    attachments that nobody wants.
Mechanism
    Each field is read by a function that accepts one form and raises `ChannelError` for every other, which
    ends the worker. Reports and displays are limited per call in number, in size in memory (measured before
    they are passed on), in rate and in total; displays of all calls together in rate as well. What is over a
    limit is dropped, and the result says how much. What names a call that is over is counted as junk, and
    too much of that ends the worker. Only results and displays may have attachments, and those are stored
    only for a call that waits for them, each up to the size that would be passed on.
Race window
    A frame may name a call that has just ended at its deadline: junk, and no error. Handling is one step on
    the event loop, so no frame sees a call half finished.
When it fails
    `WorkerConnection` ends the worker, and `Reader` the reader, at any exception that a frame causes here;
    the next call gets another.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from pydantic_core import from_json, to_json

from aisotools.core.concurrency import in_steps
from aisotools.core.exceptions import ChannelError, WorkerDied
from aisotools.core.protocols import OutputCaps, Programs
from aisotools.core.sandboxes import SandboxCall, SandboxListener
from aisotools.core.truncation import size_of
from aisotools.core.types import ToolResult
from aisotools.sandbox.frames import Frame
from aisotools.sandbox.limits import LimitExceeded
from aisotools.sandbox.process.ownership import CallStart
from aisotools.sandbox.results import PrintedOutput, piece_limits, result_steps
from aisotools.sandbox.worker.output import ExecuteOptions, TokenBucket

DISPLAY_KINDS = frozenset(
    {"display", "update", "result", "clear", "error", "page", "next_input", "comm", "comm_dropped"}
)
"""The kinds of `DisplayMessage`."""

DISPLAY_OPS = frozenset({"show", "ask"})
"""The frames that are for a `DisplaySink`."""

# Watched calls that are remembered. A call's sink outlives the call, for what it left running in the
# background.
_REMEMBERED_DISPLAYS = 256
# Displays and their bytes, per call: a burst, and a rate per second. A loop that redraws a figure stays
# below.
_DISPLAY_BURST = 5_000
_DISPLAYS_PER_S = 200.0
_DISPLAY_BYTES_BURST = 64 << 20
_DISPLAY_BYTES_PER_S = 16 << 20
# The JSON of one display. Above the small size its containers are counted before it is parsed: an empty list
# takes 3 bytes on the wire and 64 in memory.
_MAX_DISPLAY_BYTES = 20 << 20
_UNCOUNTED_BYTES = 1 << 18
_MAX_CONTAINERS = 1 << 20
# Questions that one call may have open at once, and the length of one.
_MAX_QUESTIONS = 16
_MAX_PROMPT_CHARS = 20_000

# Since the page was cleared last, what a call may display: a notebook keeps all of it.
_DISPLAY_BYTES_TOTAL = 256 << 20
# Displays of all calls together: bytes at once, and per second.
_SESSION_DISPLAY_BYTES_BURST = 256 << 20
_SESSION_DISPLAY_BYTES_PER_S = 32 << 20

# Progress reports per call: their number, and their bytes in memory at once, per second and in total.
_EMIT_BURST = 2000
_EMITS_PER_S = 100.0
_MAX_EMIT_BYTES = 1 << 17
_EMIT_BYTES_BURST = 4 << 20
_EMIT_BYTES_PER_S = 1 << 18
_EMIT_BYTES_TOTAL = 64 << 20
# Output that belongs to no call, in characters.
_UNOWNED_BURST = 1 << 20
_UNOWNED_PER_S = 10_000.0
# Messages that have no effect. What exceeds this is a flood and ends the worker.
_JUNK_BURST = 50_000
_JUNK_PER_S = 100.0
_JUNK_CHARS = 32
_JUNK_PART_BYTES = 1 << 16
# Finished calls that are remembered, for output of what they left running.
_REMEMBERED_CALLS = 256
_STREAMS = ("stdout", "stderr")
# More than a pipe holds: everything that was written to it.
_ALL_BYTES = 1 << 24
# Longer numbers take time to parse, and no call has one.
_MAX_NUMBER_DIGITS = 19
# Larger ones are not exact in JSON.
_MAX_COUNT = 1 << 53
_MAX_PID = 1 << 22  # the kernel's own limit
_MAX_NAME_CHARS = 200

SendReply = Callable[[str, Mapping[str, Any]], None]
"""Sends a frame to the worker: its op and its header."""


class ProgramListener(Protocol):
    """Receives what a worker says about the programs of its calls; see `sandbox.process.ownership`."""

    def named(self, call: PendingCall, /) -> None:
        """Note that `call.program` was set."""

    def stop(self, pid: int, /, *, kill: bool) -> None:
        """Signal all that runs below the keeper with this number in the worker's process namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayMessage:
    """Something that a call displayed. Only its form has been checked.

    Attributes:
        kind: One of `DISPLAY_KINDS`.
        bundle: Its data; for most kinds a MIME bundle.
        details: Further fields, by kind: `display_id`, `metadata`, `wait`, ...
        buffers: Binary parts of a widget's message.
    """

    kind: str
    bundle: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    buffers: tuple[bytes, ...] = ()


class DisplaySink(Protocol):
    """Receives what a watched call displays and asks, while it runs."""

    def show(self, call_id: str, message: DisplayMessage, /) -> None:
        """Display `message`; what the call printed before has been delivered."""

    def dropped(self, call_id: str, /) -> None:
        """Note that a display of the call was left out, because there were too many or it was too large."""

    async def ask(self, call_id: str, prompt: str, /, *, password: bool) -> str | None:
        """Ask for a line of input. Return None at the end of input."""


@dataclass(slots=True, kw_only=True)
class _WatchedCall:
    sink: DisplaySink
    options: ExecuteOptions
    displays: TokenBucket = field(default_factory=lambda: TokenBucket(_DISPLAY_BURST, _DISPLAYS_PER_S))
    bytes: TokenBucket = field(
        default_factory=lambda: TokenBucket(_DISPLAY_BYTES_BURST, _DISPLAY_BYTES_PER_S)
    )
    bytes_left: int = _DISPLAY_BYTES_TOTAL
    questions: set[asyncio.Task[str | None]] = field(default_factory=set)


class DisplayRouter:
    """Routes displays and questions to the sink that watches a call.

    A sink stays after the end of its call: what the call left running may still display something.
    """

    def __init__(self) -> None:
        self._watched: dict[str, _WatchedCall] = {}
        self._bytes = TokenBucket(_SESSION_DISPLAY_BYTES_BURST, _SESSION_DISPLAY_BYTES_PER_S)

    def watch(self, call_id: str, sink: DisplaySink, options: ExecuteOptions) -> None:
        """Route a call that has not been sent yet to `sink`; `options` say how it runs."""
        self._watched[call_id] = _WatchedCall(sink=sink, options=options)
        if len(self._watched) > _REMEMBERED_DISPLAYS:
            oldest = next(iter(self._watched))
            self.withdraw_questions(oldest)
            del self._watched[oldest]

    def header(self, call_id: str) -> Mapping[str, Any]:
        """Return what a call's header tells the worker about its watcher."""
        watched = self._watched.get(call_id)
        return {} if watched is None else {"watch": asdict(watched.options)}

    def withdraw_questions(self, call_id: str) -> None:
        """Cancel what the call still asks: it is over."""
        watched = self._watched.get(call_id)
        if watched is not None:
            for task in tuple(watched.questions):
                task.cancel()

    def keep_parts(self, call_id: str, sizes: Sequence[int]) -> Sequence[bool]:
        """Return which parts of a display are of use; a `KeepParts` for the frames of one call."""
        watched = self._watched.get(call_id)
        is_kept = (
            watched is not None
            and sizes[0] <= _MAX_DISPLAY_BYTES
            and sum(sizes) <= min(watched.bytes_left, _DISPLAY_BYTES_BURST)
        )
        return [is_kept] * len(sizes)

    def route(self, call_id: str, frame: Frame, send_reply: SendReply) -> bool:
        """Route a frame of `DISPLAY_OPS`. Return whether the call is watched.

        Raises:
            ChannelError: If it is malformed.
        """
        watched = self._watched.get(call_id)
        if watched is None:
            return False
        if frame.op == "ask":
            self._ask(call_id, watched, frame.header, send_reply)
            return True
        size = sum(map(len, frame.parts))
        if (
            watched.displays.take()
            and not frame.dropped
            and size <= watched.bytes_left
            and watched.bytes.take(size)
            and self._bytes.take(size)
            and _fits(frame)
        ):
            message = _display_message(frame)
            # What is updated or cleared takes the place of what was there; the rest adds to the page.
            watched.bytes_left -= size if message.kind != "update" else 0
            if message.kind == "clear":
                watched.bytes_left = _DISPLAY_BYTES_TOTAL
            watched.sink.show(call_id, message)
        else:
            watched.sink.dropped(call_id)
        return True

    def _ask(
        self, call_id: str, watched: _WatchedCall, header: Mapping[str, Any], send_reply: SendReply
    ) -> None:
        prompt, seq, password = _text(header, "prompt"), _count(header, "seq"), header.get("password")
        if len(prompt) > _MAX_PROMPT_CHARS:
            raise ChannelError(
                f"a question has an unknown form: its prompt has {len(prompt)} characters; "
                f"{_MAX_PROMPT_CHARS} are allowed"
            )
        if not watched.options.stdin or len(watched.questions) >= _MAX_QUESTIONS:
            raise ChannelError("a question was asked where none may be asked")

        def reply(task: asyncio.Task[str | None]) -> None:
            watched.questions.discard(task)
            value = None
            try:
                if not task.cancelled():
                    value = task.result()
            finally:
                # Cancelled or failed, even before its first step: the worker blocks in input() until the
                # reply comes, so that it always gets one.
                send_reply("reply", {"seq": seq, "value": value})

        question = watched.sink.ask(call_id, prompt, password=password is True)
        task = asyncio.get_running_loop().create_task(question)
        watched.questions.add(task)
        task.add_done_callback(reply)


def _text(header: Mapping[str, Any], name: str) -> str:
    value = header.get(name)
    if type(value) is not str:
        raise ChannelError(f"a frame has an unknown form: its {name!r} is no text")
    return value


def _count(header: Mapping[str, Any], name: str) -> int:
    value = header.get(name)
    if type(value) is not int or not 0 <= value < _MAX_COUNT:
        raise ChannelError(f"a frame has an unknown form: its {name!r} is no whole number from 0 to 2**53")
    return value


def _process_id(header: Mapping[str, Any]) -> int:
    pid = _count(header, "pid")
    if not 1 < pid <= _MAX_PID:
        raise ChannelError("a frame has an unknown form: its 'pid' is no number of a process")
    return pid


def _fits(frame: Frame) -> bool:
    body = frame.parts[0] if frame.parts else b""
    if len(body) <= _UNCOUNTED_BYTES:
        return True
    return len(body) <= _MAX_DISPLAY_BYTES and body.count(b"[") + body.count(b"{") <= _MAX_CONTAINERS


def _display_message(frame: Frame) -> DisplayMessage:
    details = dict(frame.header)
    kind = details.pop("what", None)
    if not isinstance(kind, str) or kind not in DISPLAY_KINDS or not frame.parts:
        raise ChannelError("a display is of an unknown kind")
    body = frame.parts[0]
    try:
        bundle = from_json(body, allow_inf_nan=False, cache_strings="keys") if body else {}
    except ValueError as error:
        raise ChannelError(f"a display is not JSON: {str(error)[:200]}") from None
    if not isinstance(bundle, dict):
        raise ChannelError("a display is no object")
    return DisplayMessage(kind=kind, bundle=bundle, details=details, buffers=frame.parts[1:])


@dataclass(slots=True)
class _EmitLimits:
    """What a call may still report."""

    number: TokenBucket = field(default_factory=lambda: TokenBucket(_EMIT_BURST, _EMITS_PER_S))
    bytes: TokenBucket = field(default_factory=lambda: TokenBucket(_EMIT_BYTES_BURST, _EMIT_BYTES_PER_S))
    bytes_left: int = _EMIT_BYTES_TOTAL

    def take(self, payload: Mapping[str, Any]) -> bool:
        """Count a report. Return False if it is too large, or one too many."""
        if not self.number.take():
            return False
        size = size_of(payload, _MAX_EMIT_BYTES)
        if size > _MAX_EMIT_BYTES or size > self.bytes_left or not self.bytes.take(size):
            return False
        self.bytes_left -= size
        return True


@dataclass(slots=True, kw_only=True)
class PendingCall:
    """A call in progress.

    Attributes:
        call_id: Its id.
        number: Its number on the channel.
        future: Gets the pieces of the result, or `WorkerDied`.
        output: What it has printed so far.
        holds_main_thread: Whether it runs on the worker's main thread.
        header: What is sent to the worker about who watches it.
        emits: Which progress reports will still be delivered; None before the first one.
        dropped_emits: How many were not.
        exceeded_limit: The limit for which it was stopped, if it was.
        is_interrupted: Whether somebody has asked to stop it.
        piece_limits: How many bytes each piece of its result may have; None if it does not matter.
        dropped_pieces: Sizes of the pieces that had more and were not kept, by position.
        programs: Which programs it starts.
        start: When it began, if it may start programs that it does not name.
        starts_task: Whether the program that it names is the keeper of a background task.
        program: The program that the worker has named for it, by its number in the worker's process
            namespace; 0 before.
        on_named: Done when it has named its program; None unless somebody waits for it.
    """

    call_id: str
    number: int
    future: asyncio.Future[tuple[bytes, ...]]
    output: PrintedOutput
    holds_main_thread: bool
    header: Mapping[str, Any] = field(default_factory=dict)
    emits: _EmitLimits | None = None
    dropped_emits: int = 0
    exceeded_limit: LimitExceeded | None = None
    is_interrupted: bool = False
    piece_limits: Sequence[int] | None = None
    dropped_pieces: Mapping[int, int] = field(default_factory=dict)
    programs: Programs = "none"
    start: CallStart | None = None
    starts_task: bool = False
    program: int = 0
    on_named: asyncio.Future[None] | None = None

    def note_limit(self, exceeded: LimitExceeded) -> None:
        """Note the limit for which it is being stopped; the first one counts."""
        self.exceeded_limit = self.exceeded_limit or exceeded

    async def result(self, caps: OutputCaps) -> ToolResult:
        """Return the result of a call that has ended; a large one is decoded in steps.

        Raises:
            WorkerDied: If its process ended before.
            ChannelError: If what was sent is no result.
        """
        pieces = self.future.result()
        result = await in_steps(result_steps(pieces, caps, self.output, self.dropped_pieces))
        if self.dropped_emits:
            # Beside those that the worker did not send.
            in_worker = result.metadata.get("dropped_emits")
            known = in_worker if type(in_worker) is int and in_worker >= 0 else 0
            result = result.with_metadata(dropped_emits=self.dropped_emits + known)
        return result


class CallTable:
    """The calls of one worker, by their number on the channel."""

    def __init__(
        self,
        listener: SandboxListener,
        *,
        displays: DisplayRouter,
        drain_raw: Callable[[str, int], None],
        reply: SendReply,
        programs: ProgramListener | None = None,
    ) -> None:
        """Create an empty table.

        Args:
            listener: Receives output and progress of the calls.
            displays: Receives what they display and ask.
            drain_raw: Delivers what programs wrote to a descriptor of the worker: takes the stream, and how
                many bytes had not been read when the frame in hand was sent.
            reply: Sends the answer to a question.
            programs: Receives what is said about programs; None to ignore it.
        """
        self._listener = listener
        self._displays = displays
        self._drain_raw = drain_raw
        self._reply = reply
        self._programs = programs
        self._pending: dict[int, PendingCall] = {}
        self._finished: dict[int, tuple[str, PrintedOutput]] = {}
        self._undelivered: list[tuple[int, str, str]] = []
        self._unowned = TokenBucket(_UNOWNED_BURST, _UNOWNED_PER_S)
        self._junk = TokenBucket(_JUNK_BURST, _JUNK_PER_S)
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[PendingCall]:
        return iter(tuple(self._pending.values()))

    def start(self, call_id: str, *, stream_bytes: int, holds_main_thread: bool) -> PendingCall:
        """Add a call and give it a number; `stream_bytes` caps what it may print."""
        self._last_number += 1
        call = self._pending[self._last_number] = PendingCall(
            call_id=call_id,
            number=self._last_number,
            future=asyncio.get_running_loop().create_future(),
            output=PrintedOutput(stream_bytes),
            holds_main_thread=holds_main_thread,
            header=self._displays.header(call_id),
        )
        return call

    def finish(self, call: PendingCall) -> None:
        """Remove a call and withdraw its questions. What it left running may still print."""
        if call.header:
            self._displays.withdraw_questions(call.call_id)
        if self._pending.pop(call.number, None) is not None:
            self._finished[call.number] = call.call_id, call.output.remainder()
            if len(self._finished) > _REMEMBERED_CALLS:
                del self._finished[next(iter(self._finished))]

    def fail(self, error: WorkerDied) -> None:
        """Fail every call in progress: the worker is gone."""
        for call in self:
            if not call.future.done():
                call.future.set_exception(error)
                # Mark it as retrieved: the caller may have been cancelled, and asyncio would complain.
                call.future.exception()

    # ---- frames of the worker

    def keep_parts(self, op: str, header: Mapping[str, Any], sizes: Sequence[int]) -> Sequence[bool]:
        """Return which parts of a frame are stored while they come; a `KeepParts`.

        Raises:
            ChannelError: If frames of this kind have none.
        """
        number = header.get("id")
        if op == "show":
            return self._displays.keep_parts(self._call_id(number), sizes)
        if op != "done":
            raise ChannelError(f"a frame {op[:40]!r} has {sum(sizes)} bytes of parts, and may have none")
        call = self._pending.get(number) if type(number) is int else None
        if call is None or call.future.done():
            return [False] * len(sizes)
        limits = call.piece_limits
        if limits is None:
            return [True] * len(sizes)
        # What comes behind the pieces of a result is of no use.
        wanted = [*map(operator.ge, limits, sizes)]
        return wanted + [False] * (len(sizes) - len(wanted))

    def handle(self, frame: Frame) -> None:
        """Handle one frame.

        Raises:
            ChannelError: If it is malformed, or one of a flood.
        """
        header = frame.header
        if frame.op == "out":
            self._handle_output(header)
            return
        self.flush_output()
        if frame.op == "emit":
            self._handle_emit(header)
        elif frame.op == "done":
            if "id" not in header:
                raise ChannelError("a frame has an unknown form: a result names no call")
            self._handle_done(frame)
        elif frame.op in DISPLAY_OPS:
            self._handle_display(frame)
        elif frame.op == "program":
            self._handle_program(header)
        elif frame.op == "stop_program":
            self._handle_stop_program(header)
        else:
            raise ChannelError(f"a frame {frame.op[:40]!r} is of no kind that is known")

    def flush_output(self) -> None:
        """Deliver printed text to the listener. Consecutive text of one call and stream is one piece."""
        undelivered, self._undelivered = self._undelivered, []
        for number, stream, text in undelivered:
            call_id, output = "", None
            if (call := self._pending.get(number)) is not None:
                call_id, output = call.call_id, call.output
            elif number in self._finished:
                call_id, output = self._finished[number]
            if output is not None:
                accepted = output.add(stream, text)
            else:
                accepted = text if self._unowned.take(len(text)) else ""
            if accepted:
                self._listener.output(call_id, stream, accepted)
            else:
                self._count_junk(1 + len(text) // _JUNK_CHARS)

    def handle_raw(self, stream: str, data: bytes) -> None:
        """Handle what a program wrote straight to a descriptor of the worker."""
        call = self._raw_writer()
        if call is not None:
            if text := call.output.add_raw(stream, data):
                self._listener.output(call.call_id, stream, text)
        elif self._unowned.take(len(data)):
            self._listener.output("", stream, data.decode("utf-8", "backslashreplace"))

    def _raw_writer(self) -> PendingCall | None:
        """Return the call that raw output belongs to: the one on the main thread, or the only one."""
        calls = self._pending.values()
        only = next(iter(calls)) if len(calls) == 1 else None
        return next((call for call in calls if call.holds_main_thread), only)

    def _handle_output(self, header: Mapping[str, Any]) -> None:
        call_id, stream, text = _text(header, "id"), _text(header, "stream"), _text(header, "text")
        if stream not in _STREAMS:
            raise ChannelError(f"output names an unknown stream {stream[:40]!r}")
        is_number = call_id.isascii() and call_id.isdigit() and len(call_id) <= _MAX_NUMBER_DIGITS
        number = int(call_id) if is_number else 0
        if header.get("after") is not None:
            after = _count(header, "after")
            if not after:
                raise ChannelError("output says that it follows 0 bytes of a program's output")
            # Order of output: programs wrote this many bytes to the pipe before this text was printed.
            # Deliver them in between.
            self.flush_output()
            self._drain_raw(stream, after)
        last = self._undelivered[-1] if self._undelivered else None
        if last is not None and last[:2] == (number, stream):
            self._undelivered[-1] = number, stream, last[2] + text
        else:
            self._undelivered.append((number, stream, text))

    def _handle_emit(self, header: Mapping[str, Any]) -> None:
        name, payload = _text(header, "name"), header.get("payload")
        if not isinstance(payload, dict):
            raise ChannelError("a progress report has no object as its payload")
        call = self._find(header.get("id"))
        if call is None:
            self._count_junk()
            return
        if call.emits is None:
            call.emits = _EmitLimits()
        if call.emits.take(payload):
            self._listener.emitted(call.call_id, name[:_MAX_NAME_CHARS], payload)
        else:
            call.dropped_emits += 1
            self._count_junk()

    def _handle_program(self, header: Mapping[str, Any]) -> None:
        call, pid = self._find(header.get("id")), _process_id(header)
        # One for each call, so that no second one is spared in its name.
        if call is None or call.future.done() or call.program or self._programs is None:
            self._count_junk()
            return
        call.program = pid
        if call.on_named is not None:
            call.on_named.set_result(None)
        self._programs.named(call)

    def _handle_stop_program(self, header: Mapping[str, Any]) -> None:
        pid, kill = _process_id(header), header.get("kill") is True
        if self._find(header.get("id")) is None or self._programs is None:
            self._count_junk()
        else:
            self._programs.stop(pid, kill=kill)

    def _handle_done(self, frame: Frame) -> None:
        number = frame.header["id"]
        call = self._pending.get(number) if type(number) is int else None
        # Forged, repeated, or late: the call may have failed at its deadline while the result was on its way.
        if call is None or call.future.done():
            self._count_junk(_junk_parts(frame))
            return
        # The result is sent after everything that the call's programs wrote; that must be in its output.
        for stream in _STREAMS:
            self._drain_raw(stream, _ALL_BYTES)
        call.dropped_pieces = frame.dropped
        call.future.set_result(frame.parts)

    def _handle_display(self, frame: Frame) -> None:
        number, after = frame.header.get("id"), frame.header.get("after", {})
        if not isinstance(after, dict):
            raise ChannelError("a display does not say after how many bytes of output it comes")
        for stream in _STREAMS:
            if stream in after:
                self._drain_raw(stream, _count(after, stream))
        if not self._displays.route(self._call_id(number), frame, self._reply):
            self._count_junk(_junk_parts(frame))

    def _call_id(self, number: object) -> str:
        """Return the id of a call that runs or has ended; empty if there is none with this number."""
        call = self._find(number)
        if call is not None:
            return call.call_id
        known = self._finished.get(number) if type(number) is int else None
        return "" if known is None else known[0]

    def _find(self, number: object) -> PendingCall | None:
        return self._pending.get(number) if type(number) is int else None

    def _count_junk(self, amount: int = 1) -> None:
        if not self._junk.take(amount):
            raise ChannelError("the process floods the channel with messages that are of no use")


def _junk_parts(frame: Frame) -> int:
    """Return how much junk a frame is with all that came with it."""
    return 1 + (sum(map(len, frame.parts)) + sum(frame.dropped.values())) // _JUNK_PART_BYTES


# ---- sending


class CallTarget(Protocol):
    """A process that runs calls."""

    @property
    def known_tools(self) -> set[str]:
        """Keys of the tools that it has been sent."""

    def start_call(
        self,
        call_id: str,
        header: Mapping[str, Any],
        parts: list[bytes],
        *,
        stream_bytes: int,
        holds_main_thread: bool,
        starts_task: bool = False,
        programs: Programs = "any",
        attachments: Sequence[int] = (),
    ) -> PendingCall:
        """Send a call; see `WorkerConnection.start_call`."""


def send_call(
    target: CallTarget, request: SandboxCall, attachments: Sequence[int] = (), unreadable: Sequence[str] = ()
) -> PendingCall:
    """Send a call, and its tool if the process does not have it.

    Its programs that only read are kept from what is `unreadable`: absolute paths.

    Raises:
        WorkerDied: If the process is gone already.
        ChannelError: If the call is too large to send.
    """
    call, tool, caps = request.call, request.shipment, request.output_caps
    header: dict[str, Any] = {
        "key": tool.key,
        "concurrency": tool.concurrency,
        "agent_id": call.agent_id,
        "turn_id": call.turn_id,
        "session_key": request.session_key,
        "read_only": request.read_only,
        "unreadable": list(unreadable),
        "caps": caps,
    }
    parts = [to_json(call.arguments)]
    if tool.import_path:
        header["import_path"] = tool.import_path
    elif tool.key not in target.known_tools:
        parts.append(tool.payload)
    pending = target.start_call(
        call.id,
        header,
        parts,
        stream_bytes=caps.stream_bytes,
        holds_main_thread=tool.concurrency != "overlap",
        starts_task=request.starts_task,
        programs=tool.programs,
        attachments=attachments,
    )
    pending.piece_limits = piece_limits(caps)
    if not tool.import_path:
        target.known_tools.add(tool.key)
    return pending
