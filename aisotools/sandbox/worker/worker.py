"""The worker: holds the user's variables and runs tools, one task per call, inside the confinement.

It speaks frames over one inherited socket and has no other way out. Host to worker: `call`, `cancel`,
`reply`, `park`. Worker to host: `ready`, `failed`, `out`, `emit`, `show`, `ask`, `program`, `stop_program`,
`done`. Calls are numbered by the host. The host checks whatever the worker sends. User code shares the
process: it may fork, replace signal handlers, change descriptors, or raise anywhere. A reader, which is a
fork without write rights (see `reader`), speaks the same.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # see `process_state`
import asyncio
import contextlib
import dataclasses
import functools
import os
import pickle
import signal
import sys
import threading
import types
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic_core import PydanticSerializationError, from_json, to_json

from aisotools.core.exceptions import WorkerBroken
from aisotools.core.protocols import Cancellation, OutputCaps, Tool, ToolContext
from aisotools.core.types import Json, ToolResult
from aisotools.sandbox.frames import BROKEN_STATUS, BlockingChannel, Frame, encode
from aisotools.sandbox.process.supervisor import unread_bytes
from aisotools.sandbox.results import STREAMS_TAKEN, ResultPieces, encode_result
from aisotools.sandbox.worker.children import hide_snapshots_from_wait
from aisotools.sandbox.worker.event_loop import ForkableEventLoop
from aisotools.sandbox.worker.fork import ForkPoint, WokenFork, start_timers
from aisotools.sandbox.worker.interrupts import DroppedInterrupts, InterruptCount, InterruptRecords
from aisotools.sandbox.worker.ipython import ZMQInteractiveShell, flush, strip_own_frames
from aisotools.sandbox.worker.output import (
    CallRecord,
    ExecuteOptions,
    HostListener,
    InputChannel,
    Recorder,
    json_bundle,
)
from aisotools.sandbox.worker.process_state import ProcessState, stop_tracing
from aisotools.sandbox.worker.self_check import (
    CELLS,
    CHECK_ID,
    NOTHING,
    import_tool,
    make_check_record,
    require_sound,
    run_in_fork,
    unnoticed,
)
from aisotools.tools.adapter import exception_result, format_tool_frames

# The size of a progress report.
_MAX_EMIT_BYTES = 1 << 16
_STREAM_DESCRIPTORS = {"stdout": 1, "stderr": 2}
# Threads that a result names, and the length of a name.
_MAX_NAMES = 8
_MAX_NAME_CHARS = 40

# ---- results of calls that did not end well, and what is added to all


def interrupted_result(content: str = "") -> ToolResult:
    """Build the result of a call that was interrupted; `content` is what it has to say."""
    lines = ["The call was interrupted."]
    if content:
        lines.append(content)
    return ToolResult.error("\n".join(lines)).with_metadata(stopped=True)


def mark_stopped(result: ToolResult) -> ToolResult:
    """Return the result of a call that was interrupted and returned all the same: never a success."""
    if not result.is_error:
        content = interrupted_result(result.content).content
        result = dataclasses.replace(
            result, content=content, is_error=True, recoverable=True, error_kind="failed", kind="error"
        )
    return result.with_metadata(stopped=True)


def name_threads(result: ToolResult, names: Sequence[str]) -> ToolResult:
    """Add to the result of a call that was stopped which threads it has started: no thread can be ended."""
    if not names:
        return result
    listed = ", ".join(name[:_MAX_NAME_CHARS] for name in names[:_MAX_NAMES])
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    plural, verb, them = ("s", "go", "them") if len(names) > 1 else ("", "goes", "it")
    note = (
        f"[{len(names)} thread{plural} that the call has started {verb} on: {listed}{more}. "
        f"An undo of the call, or %sandbox restart, ends {them}. What is changed after the call counts as "
        "changed by somebody else: that takes force=True.]"
    )
    content = f"{result.content}\n{note}"
    return dataclasses.replace(result, content=content).with_metadata(threads_left=True)


def encode_failure(
    error: BaseException, record: CallRecord, caps: OutputCaps, threads: Sequence[str] = ()
) -> ResultPieces:
    """Encode the result of a call whose tool raised `error`; `threads` go on if that stopped the call."""
    error = error.with_traceback(strip_own_frames(error.__traceback__))
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        # The exception is how Python interrupts a call. Its name would say the same again.
        stopped = name_threads(interrupted_result(format_tool_frames(error)), threads)
        return encode_result(add_record(stopped, record), caps)
    try:
        result = exception_result(error)
    except BaseException:  # __str__ of a user's exception may raise anything
        result = ToolResult.error(f"{type(error).__name__} (its message cannot be shown)")
    return encode_result(add_record(result, record), caps)


def add_record(result: ToolResult, record: CallRecord) -> ToolResult:
    """Add what was displayed, unless the tool included it already, and counts of what was dropped."""
    is_included = result.metadata.get(STREAMS_TAKEN)
    counts = {
        "dropped_bytes": record.missing_bytes if is_included else record.dropped_bytes,
        "dropped_displays": record.dropped_displays,
        "dropped_emits": record.dropped_emits,
    }
    metadata: dict[str, Any] = {name: count for name, count in counts.items() if count}
    if record.displays and "displays" not in result.metadata and not is_included:
        metadata["displays"] = [bundle for _, bundle in record.displays]
    return result.with_metadata(**metadata) if metadata else result


Announcer = Callable[[str], str]
"""Returns what an agent, named by its id, should read with its next result; empty for nothing."""

_announcers: list[Announcer] = []


def register_announcer(announcer: Announcer) -> None:
    """Call `announcer` before every result that leaves this worker."""
    _announcers.append(announcer)


def add_announcements(result: ToolResult, agent_id: str) -> ToolResult:
    """Return the result with the announcements for its agent appended."""
    announcements = [text for announcer in _announcers if (text := announcer(agent_id))]
    if not announcements:
        return result
    content = "\n".join(filter(None, [result.content.removesuffix("\n"), *announcements]))
    return dataclasses.replace(result, content=content)


# ---- the worker


@dataclass(slots=True, kw_only=True)
class _Call:
    """A call in progress.

    Attributes:
        frame: What the host sent.
        number: Its number on the channel.
        caps: What its result may hold.
        holds_main_thread: Whether it runs on the main thread, alone or beside `overlap` calls.
        record: What it prints and displays.
        cancellation: The flag that its tool can check.
        attached: A descriptor that came with it.
        interrupts: What the host has asked to end it.
        threads_before: Numbers of the threads that ran when it began.
        is_answered: Whether its result was sent.
    """

    frame: Frame
    number: int
    caps: OutputCaps
    holds_main_thread: bool
    record: CallRecord
    cancellation: Cancellation
    interrupts: InterruptCount = dataclasses.field(default_factory=InterruptCount)
    attached: int | None = None
    threads_before: frozenset[int | None] = frozenset()
    is_answered: bool = False


def _new_threads(call: _Call) -> list[str]:
    return [str(thread.name) for thread in threading.enumerate() if thread.ident not in call.threads_before]


class Worker:
    """One process's side of the call channel."""

    def __init__(
        self,
        channel: BlockingChannel,
        shell: ZMQInteractiveShell,
        sandbox: Mapping[str, Json],
        *,
        interrupts: int,
    ) -> None:
        """Serve `channel` with `shell`.

        Args:
            channel: The call channel.
            shell: Holds the user's namespace.
            sandbox: Describes the confinement to tools.
            interrupts: Read end of the pipe that says which call an interrupt is for.
        """
        self._channel = channel
        self._shell = shell
        self._recorder: Recorder = shell.recorder
        self._recorder.connect(self._send_text)
        self._sandbox = sandbox
        self._workspace = Path(str(sandbox["workspace"]))
        self._records = InterruptRecords(interrupts)
        self._dropped = DroppedInterrupts(self._interrupted)
        self._tools: dict[str, Tool] = {}
        self._last_cell: _Call | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._calls: dict[int, _Call] = {}
        # The call whose code runs at this moment, and the one that holds the main thread also while it
        # awaits.
        self._running: int | None = None
        self._holder: int | None = None
        self._pid = os.getpid()
        self._process_state = ProcessState()
        # False in a fork made by user code: the channel belongs to its parent.
        self._owns_channel = True
        self._inputs = InputChannel(self._send, channel.fileno(), self._receive)
        # Frames that wait for a snapshot, which is taken outside the loop; the first one requests it.
        self._deferred: list[Frame] = []
        self._forks: ForkPoint | None = None
        self._own_handlers: Mapping[int, object] = {}
        self._is_catching_up = False  # True while a woken fork does what user code has missed
        # In a reader, the tasks of calls that only the worker goes on with.
        self._abandoned: list[asyncio.Task[None]] = []

    def serve(self, loop: ForkableEventLoop) -> NoReturn:
        """Run until the host closes its end."""
        names, hidden = self._shell.user_ns, self._shell.user_ns_hidden
        detach = functools.partial(self._close_channel, loop)
        forks = self._forks = ForkPoint(names, hidden, detach, self._sandbox, self._check_fork)
        hide_snapshots_from_wait()
        self._dropped.install()
        self._own_handlers = self._handlers()
        # Before the host learns that this worker is ready, and so before it may interrupt anything.
        signal.signal(signal.SIGINT, self._on_interrupt)
        # Fork by user code: buffered output would be sent twice, and two would write to one channel.
        flushing = forks.hooks.wrap("before", flush)  # of a stream that user code may have put there
        os.register_at_fork(before=flushing, after_in_child=functools.partial(self._on_user_fork, loop))
        forks.hooks.install()
        self._channel.send("ready", {"pid": self._pid, "python": sys.version.split()[0]})
        loop.add_reader(self._channel.fileno(), self._receive)
        while True:
            # Race: an interrupt arrives after its call has ended. It must not end the worker.
            with contextlib.suppress(KeyboardInterrupt):
                loop.run_forever()
            if self._deferred:
                # Fork outside the loop: inside, the child would wake up in the middle of a loop iteration
                # that its parent is going to finish.
                own = (*loop.own_descriptors(), self._records.descriptor)
                woken = forks.take_snapshot(self._channel.take_descriptor(), own=own)
                if woken is not None:
                    # In a fork that was woken. The frames behind the request are the other worker's.
                    if woken.interrupts is not None:
                        self._forget_worker(loop, woken.interrupts)
                    self._continue_in_fork(loop, woken)
                else:
                    loop.call_soon(self._handle_frames, self._deferred[1:])
                self._deferred = []

    def _continue_in_fork(self, loop: ForkableEventLoop, woken: WokenFork) -> None:
        """Continue from the state in which the fork was made, on its own channel. Called in a woken fork."""
        channel = woken.channel
        self._channel, self._pid = channel, os.getpid()
        self._inputs = InputChannel(self._send, channel.fileno(), self._receive)
        self._recorder.replace_lock()
        loop.repair_after_fork()
        # `overlap` calls ran beside the snapshot. They go on in the other worker, which reports their end;
        # here they are stopped without a word.
        for number, call in self._calls.items():
            call.is_answered = True
            self._tasks[number].cancel()
        # What user code has left goes on between two calls. It must not meet locks and pools of threads that
        # are missing here. Where it has left nothing, the next call does this, and has the output of it.
        if self._forks is not None and (loop.has_work() or self._has_signal_handlers()):
            with contextlib.suppress(KeyboardInterrupt):  # the rest is for the next call
                self._is_catching_up = True
                self._forks.go_on()
            self._is_catching_up = False
        start_timers(woken.timers)
        loop.add_reader(channel.fileno(), self._receive)

    def _has_signal_handlers(self) -> bool:
        """Return whether user code has set a function that a signal calls. SIGINT is for calls alone."""
        return any(
            handler is not self._own_handlers[number] and callable(handler)
            for number, handler in self._handlers().items()
            if number != signal.SIGINT
        )

    @staticmethod
    def _handlers() -> dict[int, object]:
        return {number: _signal.getsignal(number) for number in _signal.valid_signals()}

    def _forget_worker(self, loop: ForkableEventLoop, interrupts: int) -> None:
        """Drop everything that the worker goes on with. Called in a reader, which only runs new calls.

        Its timers, tasks and background programs would otherwise run, and be announced, here too.
        """
        loop.drop_pending()
        os.close(self._records.descriptor)
        self._records = InterruptRecords(interrupts)
        _announcers.clear()
        self._holder = self._running = self._recorder.main = None
        # Tasks that are collected while they wait complain about it.
        self._abandoned = list(self._tasks.values())
        self._calls.clear()
        self._tasks.clear()

    def _close_channel(self, loop: ForkableEventLoop) -> None:
        """Close this fork's copy of the channel, which belongs to the parent."""
        loop.remove_reader(self._channel.fileno())
        self._channel.close()

    def _on_user_fork(self, loop: ForkableEventLoop) -> None:
        """Leave the channel to the parent. Called in a fork made by user code.

        Two processes that write to it would tear each other's frames.
        """
        if not self._owns_channel or (self._forks is not None and self._forks.is_forking):
            return
        self._owns_channel = False
        self._close_channel(loop)
        os.close(self._records.descriptor)
        # Our handler reads from the socket that was closed above. The user's process ends by SIGINT, as
        # programs do.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # Fork: a thread that held the lock then is missing here, so nobody would ever release its copy.
        self._recorder.replace_lock()

    # ---- the channel

    def _receive(self) -> None:
        try:
            frames = self._channel.receive()
            self._handle_frames(frames)
        except (EOFError, OSError):
            os._exit(0)  # the host is gone; `sys.exit` would wait for threads of user code, maybe for ever
        except Exception as error:
            self._give_up(error)

    def _handle_frames(self, frames: Sequence[Frame]) -> None:
        for position, frame in enumerate(frames):
            if frame.op == "park":
                # The snapshot is of this moment: what comes behind it waits until it is taken.
                self._deferred = [*frames[position:]]
                asyncio.get_running_loop().stop()
                return
            if frame.op == "call":
                self._start(frame)
            elif frame.op == "cancel":
                self._cancel(frame.header["id"])
            elif frame.op == "reply":
                self._inputs.receive(frame.header)

    def _send(self, op: str, header: Mapping[str, Any], parts: tuple[bytes, ...] = ()) -> None:
        if self._owns_channel:
            self._channel.send(op, header, parts)

    def _send_text(self, call_id: str, stream: str, text: str) -> None:
        descriptor = _STREAM_DESCRIPTORS[stream]
        if self._owns_channel or call_id == CHECK_ID:
            header: dict[str, Any] = {"id": call_id, "stream": stream, "text": text}
            # Order of output: programs have written to the pipe before this text was printed, and the host
            # has not read that yet. Say how much, so that it can deliver it first.
            if unread := unread_bytes(descriptor):
                header["after"] = unread
            if call_id == CHECK_ID:
                encode("out", header)
            else:
                self._channel.send("out", header)
            return
        data = text.encode()
        while data:
            data = data[os.write(descriptor, data) :]

    def _send_display(self, op: str, header: Mapping[str, Any], parts: tuple[bytes, ...]) -> None:
        unread = {name: unread_bytes(end) for name, end in _STREAM_DESCRIPTORS.items()}
        after = {name: count for name, count in unread.items() if count}
        self._send(op, {**header, "after": after} if after else header, parts)

    # ---- interrupts

    def _on_interrupt(self, _signal: int, frame: types.FrameType | None) -> None:
        """Raise KeyboardInterrupt in user code that runs; a call that awaits is cancelled over the channel.

        A signal handler runs between any two instructions of the main thread, which may hold any lock: take
        none here, not even that of a `Cancellation`.
        """
        targets = self._records.read()
        for number in targets:
            if number in self._calls:
                self._calls[number].interrupts.signals += 1
            else:
                self._records.keep(number)
        if self._is_catching_up:  # for a call that waits until this is done
            self._is_catching_up = False
            raise KeyboardInterrupt
        repeated = self._dropped.take_repeated()
        running = self._calls.get(self._running or 0)
        if running is not None:
            # Between user code and the coroutine that drives it an exception would be lost. The code is about
            # to yield there, and the cancellation follows, or it is about to go on, and `_drive` throws.
            is_driver = frame is not None and frame.f_code is Worker._drive.__code__
            # Race: the host asks twice, by signal and by frame. If the frame came first and was carried out,
            # this signal is its echo and must not strike what the call does to clean up.
            is_target = running.number in targets and running.interrupts.is_due
            if not is_driver and (is_target or (not targets and repeated in (None, running.number))):
                running.interrupts.raised = running.interrupts.signals
                raise KeyboardInterrupt
        elif not targets and self._holder is not None and repeated is None:
            # Not the host's: user code has sent it, as threads do with `_thread.interrupt_main`. The call
            # awaits. Signal: a handler runs between any two instructions, so it only asks the loop to cancel.
            asyncio.get_running_loop().call_soon_threadsafe(self._cancel, self._holder)

    def _interrupted(self) -> int | None:
        """Return the number of the call whose code runs, if the host has asked that it end."""
        running = self._calls.get(self._running or 0)
        return running.number if running is not None and running.interrupts.is_asked else None

    def _cancel(self, number: int) -> None:
        if number in self._tasks:
            self._calls[number].cancellation.cancel()
            if self._calls[number].interrupts.note_frame():
                self._tasks[number].cancel()
                self._inputs.cancel(number)

    @types.coroutine
    def _drive(
        self, coroutine: Coroutine[Any, Any, ResultPieces], call: _Call
    ) -> Generator[Any, Any, ResultPieces]:
        """Drive user code step by step, so that it is known when it runs and an interrupt can reach it."""
        value: Any = None
        error: BaseException | None = None
        while True:
            self._running = call.number
            if call.interrupts.is_due:
                # Race: the signal came while none of the code ran, which may never yield for the frame.
                call.interrupts.note_thrown()
                error = asyncio.CancelledError()
            try:
                step = coroutine.send(value) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]  # a coroutine's result is untyped here
            finally:
                self._running = None
            value, error = None, None
            flush()  # show progress while the call awaits
            try:
                value = yield step
            except BaseException as raised:  # cancellation, most often: the coroutine decides
                error = raised

    # ---- one call

    def _start(self, frame: Frame) -> None:
        header = frame.header
        number, caps = header["id"], OutputCaps(**header["caps"])
        watch, listener = header.get("watch"), None
        if watch is not None:
            listener = HostListener(
                number=number, options=ExecuteOptions(**watch), send=self._send_display, inputs=self._inputs
            )
        call = self._calls[number] = _Call(
            frame=frame,
            number=number,
            caps=caps,
            holds_main_thread=header["concurrency"] != "overlap",
            record=CallRecord(
                call_id=str(number),
                stream_left=caps.stream_bytes,
                data_left=caps.data_bytes,
                listener=listener,
            ),
            cancellation=Cancellation(),
            attached=self._channel.take_descriptor() if header.get("attached") else None,
        )
        self._records.give(number, call.interrupts)  # not before a signal finds the call
        task = self._tasks[number] = asyncio.get_running_loop().create_task(self._run(call))
        task.add_done_callback(functools.partial(self._finish, call))

    def _finish(self, call: _Call, task: asyncio.Task[None]) -> None:
        try:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                raise error
            # Race: a task that is cancelled before its first step never runs a line of its code.
            if not call.is_answered:
                self._answer(call, encode_result(interrupted_result(), call.caps))
            del self._tasks[call.number], self._calls[call.number]
        except Exception as error:
            self._give_up(error)

    def _answer(self, call: _Call, pieces: ResultPieces) -> None:
        call.is_answered = True
        flush()
        self._send("done", {"id": call.number}, pieces)

    @staticmethod
    def _give_up(
        error: BaseException,
        *,
        write: Callable[[int, bytes], int] = os.write,
        leave: Callable[[int], NoReturn] = os._exit,
        status: int = BROKEN_STATUS,
    ) -> NoReturn:
        """End this worker, which cannot run calls any more; the host starts another and says why.

        Crash of our own making: what user code has changed in this process cannot be told, so nothing here is
        to be relied on; what this takes was bound when the module was imported.
        """
        try:
            reason = str(error) if isinstance(error, WorkerBroken) else f"{type(error).__name__}: {error}"
            try:
                flush()
            finally:  # without the streams, what was printed last is lost
                write(2, f"\n{' '.join(reason.split())}\n".encode(errors="backslashreplace"))
        finally:
            leave(status)

    # ---- whether cells still run

    def _check(self) -> None:
        """Run a cell that does nothing, as the calls do.

        Raises:
            WorkerBroken: It fails: what user code has left keeps every cell from running.
        """
        last = self._last_cell
        if last is None:
            return  # no cell has run that could have broken anything
        record = make_check_record(self._inputs)
        call = dataclasses.replace(last, record=record, is_answered=True)
        require_sound(
            self._shell,
            record,
            lambda: self._tool(call.frame).execute({"code": NOTHING}, self._context(call)),
            lambda result: encode_result(add_record(result, record), call.caps),
        )

    async def _check_calls(self) -> None:
        self._check()
        last = self._last_cell
        if last is None:
            return
        # No announcement is waiting for an agent of this name. Nothing is printed: that would be sent.
        header = {**last.frame.header, "id": 0, "agent_id": CHECK_ID, "watch": {"store_history": False}}
        with unnoticed(self._shell):
            self._handle_frames([Frame(op="call", header=header, parts=(to_json({"code": "..."}),))])
            await self._tasks[0]
            await asyncio.sleep(0)  # for `_finish`
        self._last_cell = last

    def _check_fork(self) -> None:
        """Run `_check` in a fork that has no channel yet, and then a whole call, which may end it."""
        self._pid = os.getpid()
        owns_channel, self._owns_channel = self._owns_channel, False
        self._recorder.replace_lock()
        try:
            self._process_state.put_back()
            run_in_fork(self._check_calls)
        finally:
            self._owns_channel = owns_channel

    async def _run(self, call: _Call) -> None:
        self._recorder.enter(call.record)
        call.threads_before = frozenset(thread.ident for thread in threading.enumerate())
        if call.holds_main_thread or self._holder is None:
            self._process_state.put_back()
        if call.holds_main_thread:
            self._holder, self._recorder.main = call.number, call.record
            self._process_state.take_interrupts(self._on_interrupt)
        try:
            pieces = await self._drive(self._execute(call), call)
        except WorkerBroken as error:
            self._give_up(error)
        except BaseException as error:  # SystemExit as well: a tool's failure is its result, never our end
            is_stop = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
            if not is_stop and self._runs_cells(call.frame):
                self._check_or_give_up()
            pieces = encode_failure(error, call.record, call.caps, _new_threads(call))
        finally:
            if call.holds_main_thread:
                self._holder = self._recorder.main = None
                stop_tracing()  # or the code that answers would be traced as well
        if os.getpid() != self._pid:
            # A fork made by user code has run out of its cell. It must not answer for its parent.
            flush()
            os._exit(0)
        self._answer(call, pieces)
        if call.holds_main_thread:
            self._process_state.put_back()  # after the answer, which need not wait for this

    async def _execute(self, call: _Call) -> ResultPieces:
        """Run everything of the call that may run user code, and take as long as that likes."""
        if self._forks is not None:
            self._forks.go_on()
        tool = self._tool(call.frame)
        if self._runs_cells(call.frame):
            self._last_cell = call
        result: object = await tool.execute(from_json(call.frame.parts[0]), self._context(call))
        if not isinstance(result, ToolResult):
            message = (
                f"{tool.name} returned {type(result).__name__} instead of a ToolResult; "
                "correct its execute()."
            )
            result = ToolResult.error(message, recoverable=False)
        if call.interrupts.is_asked:
            result = name_threads(mark_stopped(result), _new_threads(call))
        elif result.is_error and self._runs_cells(call.frame):
            # Most often the cell is wrong; but what runs cells may be broken, and fail each of them.
            self._check()
        result = add_announcements(add_record(result, call.record), call.frame.header["agent_id"])
        return encode_result(result, call.caps)

    def _tool(self, frame: Frame) -> Tool:
        key = frame.header["key"]
        tool = self._tools.get(key)
        if tool is None:
            path = frame.header.get("import_path")
            tool = import_tool(path) if path else pickle.loads(frame.parts[1])  # noqa: S301 - from the host
            self._tools[key] = tool
        return tool

    @staticmethod
    def _runs_cells(frame: Frame) -> bool:
        path = str(frame.header.get("import_path"))
        return path.startswith("aisotools.") and path.endswith(CELLS)

    def _check_or_give_up(self) -> None:
        try:
            self._check()
        except WorkerBroken as broken:
            self._give_up(broken)

    def _context(self, call: _Call) -> ToolContext:
        header, record = call.frame.header, call.record

        def emit(name: str, payload: Mapping[str, Json]) -> None:
            try:
                size = len(to_json(payload))
            except PydanticSerializationError as error:
                raise TypeError(f"emit({name!r}) takes what JSON can hold: {error}") from None
            if size > _MAX_EMIT_BYTES or len(name) > _MAX_EMIT_BYTES:
                raise ValueError(
                    f"emit({name!r:.50}) of {size} bytes: at most {_MAX_EMIT_BYTES} can be sent."
                )
            if record.emits.take():
                self._send("emit", {"id": call.number, "name": name, "payload": payload})
            else:
                record.dropped_emits += 1

        return ToolContext(
            agent_id=header["agent_id"],
            session_key=header["session_key"],
            turn_id=header["turn_id"],
            call_id=header["call_id"],
            workspace_path=self._workspace,
            sandbox_config={**self._sandbox, "unreadable": header["unreadable"]},
            cancellation=call.cancellation,
            output_caps=call.caps,
            emitter=emit,
            metadata={
                "present": self._format,
                "record": record,
                "shell": self._shell,
                "read_only": header["read_only"],
                "attached": call.attached,
                "name_program": functools.partial(self._name_program, call.number),
                "stop_program": functools.partial(self._stop_program, call.number),
            },
        )

    def _name_program(self, number: int, pid: int) -> None:
        """Name a program to the host as one of a call; see `sandbox.process.ownership`."""
        self._send("program", {"id": number, "pid": pid})

    def _stop_program(self, number: int, pid: int, *, kill: bool) -> None:
        """Have the host signal all that runs below a keeper that was named before."""
        self._send("stop_program", {"id": number, "pid": pid, "kill": kill})

    def _format(self, value: Any) -> dict[str, Any]:
        """Return a value as a MIME bundle, by IPython's own formatters."""
        formatter = self._shell.display_formatter
        if formatter is None:
            return {"text/plain": repr(value)}
        return json_bundle(formatter.format(value)[0])
