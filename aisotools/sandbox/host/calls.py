"""The calls that a worker or a reader has in progress: how one is sent, and what comes back about it.

Threat
    All that comes back is hostile: fields that are missing, of the wrong type or out of range; reports and
    output that are small on the wire and large in memory; floods of what has no effect; large attachments
    that nobody wants. Displays are another matter: see `aisotools.sandbox.host.displays`.
Mechanism
    Each field is read by a function that accepts one form and raises `ChannelError` for every other, which
    ends the worker. Reports are limited per call in number, in size in memory (measured before they are
    passed on), in rate and in total. What is over a limit is dropped, and the result says how much. What
    names a call that is over is counted as junk, and too much of that ends the worker. Only results and
    displays may have attachments, and those are stored only for a call that waits for them, each up to the
    size that would be passed on.
Race window
    A frame may name a call that has just ended at its deadline: junk, and no error. Handling is one step on
    the event loop, so no frame sees a call half finished; only a display may take a task, and what came
    after it waits for that.
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

from pydantic_core import to_json

from aisotools.core.concurrency import end_future, in_steps
from aisotools.core.exceptions import ChannelError, WorkerDied
from aisotools.core.protocols import OutputCaps, Programs
from aisotools.core.retention import size_of
from aisotools.core.sandboxes import SandboxCall, SandboxListener
from aisotools.core.types import ToolResult
from aisotools.sandbox.frames import Frame, count_field, text_field
from aisotools.sandbox.host.displays import DISPLAY_OPS, DisplayRouter, SendReply
from aisotools.sandbox.limits import LimitExceeded
from aisotools.sandbox.process.ownership import CallStart
from aisotools.sandbox.results import PrintedOutput, piece_limits, result_steps
from aisotools.sandbox.worker.output import TokenBucket

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
_MAX_PID = 1 << 22  # the kernel's own limit
_MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTimeouts:
    """Seconds that each step of stopping a call may take. Together they bound when control comes back.

    Attributes:
        interrupt_s: For the call to end after it was cancelled and interrupted.
        kill_s: For its processes to end.
        recover_s: For a snapshot to take the place of the worker that was killed.
        settle_s: For the same where nobody has asked to stop: the call has timed out or ended its worker
            itself. What became of the variables is worth more then than an early answer.
    """

    interrupt_s: float = 0.35
    kill_s: float = 0.08
    recover_s: float = 0.13
    settle_s: float = 3.0


class ProgramListener(Protocol):
    """Receives what a worker says about the programs of its calls; see `sandbox.process.ownership`."""

    def note_program(self, call: PendingCall, /) -> None:
        """Note that `call.program` was set."""

    def stop(self, pid: int, /, *, kill: bool) -> None:
        """Signal all that runs below the keeper with this number in the worker's process namespace."""


def _process_id(header: Mapping[str, Any]) -> int:
    pid = count_field(header, "pid")
    if not 1 < pid <= _MAX_PID:
        raise ChannelError("a frame has an unknown form: its 'pid' is not a number of a process")
    return pid


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
        on_named: Done when it has named its program, or is finished; None unless somebody waits for it.
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
            ChannelError: If what was sent is not a result.
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

    @property
    def has_had_any(self) -> bool:
        """True if any call was ever added."""
        return self._last_number > 0

    def start(self, call_id: str, *, stream_bytes: int, holds_main_thread: bool) -> PendingCall:
        """Add a call and give it a number; `stream_bytes` caps what it may print."""
        self._last_number += 1
        watched = self._displays.watched.get(call_id)
        call = self._pending[self._last_number] = PendingCall(
            call_id=call_id,
            number=self._last_number,
            future=asyncio.get_running_loop().create_future(),
            output=PrintedOutput(stream_bytes),
            holds_main_thread=holds_main_thread,
            header={} if watched is None else {"watch": asdict(watched.options)},
        )
        return call

    def finish(self, call: PendingCall) -> None:
        """Remove a call and withdraw its questions. What it left running may still print."""
        if call.on_named is not None:
            end_future(call.on_named)
        if call.header:
            self._displays.withdraw_questions(call.call_id)
        if self._pending.pop(call.number, None) is not None:
            self._finished[call.number] = call.call_id, call.output.remainder()
            if len(self._finished) > _REMEMBERED_CALLS:
                del self._finished[next(iter(self._finished))]

    def leave_out_display(self, call: PendingCall) -> None:
        """Leave out the display that is being parsed for a call that is stopped: its result comes after."""
        self._displays.leave_out(call.call_id)

    def fail(self, error: WorkerDied) -> None:
        """Fail every call in progress: the worker is gone."""
        for call in self:
            end_future(call.future, error)  # the caller may have been cancelled, or be on a closed loop

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

    def handle(self, frame: Frame) -> asyncio.Task[None] | None:
        """Handle one frame. Return None if that is done, or the task that does it.

        A frame that follows may be handled only when the task is done; see `DisplayRouter.route`.

        Raises:
            ChannelError: If it is malformed, or one of a flood.
        """
        header = frame.header
        if frame.op == "out":
            self._handle_output(header)
            return None
        self.flush_output()
        if frame.op == "emit":
            self._handle_emit(header)
        elif frame.op == "done":
            if "id" not in header:
                raise ChannelError("a frame has an unknown form: a result names no call")
            self._handle_done(frame)
        elif frame.op in DISPLAY_OPS:
            return self._handle_display(frame)
        elif frame.op == "program":
            self._handle_program(header)
        elif frame.op == "stop_program":
            self._handle_stop_program(header)
        else:
            raise ChannelError(f"a frame {frame.op[:40]!r} is of no kind that is known")
        return None

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
        call_id, stream, text = (
            text_field(header, "id"),
            text_field(header, "stream"),
            text_field(header, "text"),
        )
        if stream not in _STREAMS:
            raise ChannelError(f"output names an unknown stream {stream[:40]!r}")
        is_number = call_id.isascii() and call_id.isdigit() and len(call_id) <= _MAX_NUMBER_DIGITS
        number = int(call_id) if is_number else 0
        if header.get("after") is not None:
            after = count_field(header, "after")
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
        name, payload = text_field(header, "name"), header.get("payload")
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
        if call.on_named is not None and not call.on_named.done():
            call.on_named.set_result(None)
        self._programs.note_program(call)

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

    def _handle_display(self, frame: Frame) -> asyncio.Task[None] | None:
        number, after = frame.header.get("id"), frame.header.get("after", {})
        if not isinstance(after, dict):
            raise ChannelError("a display does not say after how many bytes of output it comes")
        for stream in _STREAMS:
            if stream in after:
                self._drain_raw(stream, count_field(after, stream))
        call_id = self._call_id(number)
        if self._displays.is_watched(call_id):
            return self._displays.route(call_id, frame, self._reply)
        self._count_junk(_junk_parts(frame))
        return None

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
