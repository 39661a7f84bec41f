"""The worker: holds the user's variables and runs tools, one task per call, inside the confinement.

It speaks frames over one inherited socket and has no other way out. Host to worker: `call`, `cancel`. Worker
to host: `ready`, `failed`, `out`, `emit`, `done`. Calls are numbered by the host. Nothing the worker says is
believed by the host without checks.

How calls end in the worker when they do not end well, and what is added to what they give.

What a result tells beside its own call: that something in the background has ended meanwhile.

The worker's event loop: a fork carries it over whole, and it needs no thread for child processes.
"""

# ruff: noqa: SLF001 - asyncio has no public way to give a loop a new pipe
from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import functools
import importlib
import os
import pickle
import selectors
import signal
import sys
import termios
import types
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVarTuple

from pydantic_core import PydanticSerializationError, from_json, to_json

from aisotools.core.protocols import Cancellation, OutputCaps, Tool, ToolContext
from aisotools.core.types import Json, ToolResult
from aisotools.sandbox.frames import BlockingChannel, Frame
from aisotools.sandbox.process.supervisor import INTERRUPT_RECORD
from aisotools.sandbox.results import STREAMS_TAKEN, Pieces, encode_result
from aisotools.sandbox.worker.fork import ForkPoint, hide_from_wait
from aisotools.sandbox.worker.ipython import ZMQInteractiveShell, flush, strip_own_frames
from aisotools.sandbox.worker.output import (
    CallRecord,
    ExecuteOptions,
    HostWatch,
    InputChannel,
    Recorder,
    json_bundle,
)
from aisotools.tools.adapter import exception_result


def interrupted_result(content: str = "") -> ToolResult:
    """What a call gives that was interrupted."""
    told = "\n".join(filter(None, ["The call was interrupted.", content]))
    return ToolResult.error(told).with_metadata(stopped=True)


def mark_stopped(result: ToolResult) -> ToolResult:
    """What a call gave that was interrupted and had something to say all the same: never a success."""
    if not result.is_error:
        told = interrupted_result(result.content)
        result = dataclasses.replace(
            result, content=told.content, is_error=True, recoverable=True, error_kind="failed", kind="error"
        )
    return result.with_metadata(stopped=True)


def encode_failure(error: BaseException, record: CallRecord, caps: OutputCaps) -> Pieces:
    """What a call gives whose tool raised."""
    try:
        result = exception_result(error.with_traceback(strip_own_frames(error.__traceback__)))
    except BaseException:  # its own text could not be had
        result = ToolResult.error(f"{type(error).__name__} (its message cannot be shown)")
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        result = interrupted_result(result.content)
    return encode_result(add_record(result, record), caps)


def add_record(result: ToolResult, record: CallRecord) -> ToolResult:
    """Add what was displayed beside the result, unless the tool took it up itself, and what was dropped."""
    taken = result.metadata.get(STREAMS_TAKEN)
    counts = {
        "dropped_bytes": record.missing_bytes if taken else record.dropped_bytes,
        "dropped_displays": record.dropped_displays,
        "dropped_emits": record.dropped_emits,
    }
    more: dict[str, Any] = {name: count for name, count in counts.items() if count}
    if record.displays and "displays" not in result.metadata and not taken:
        more["displays"] = [bundle for _, bundle in record.displays]
    return result.with_metadata(**more) if more else result


Announcer = Callable[[str], str]
"""Gives what is to be told to an agent, by its id; empty for nothing."""

_announcers: list[Announcer] = []


def register_announcer(announcer: Announcer) -> None:
    """Ask `announcer` before every result that leaves this worker."""
    _announcers.append(announcer)


def add_announcements(result: ToolResult, agent_id: str) -> ToolResult:
    """The result, with what there is to tell at its end."""
    told = [text for announcer in _announcers if (text := announcer(agent_id))]
    if not told:
        return result
    content = "\n".join(filter(None, [result.content.removesuffix("\n"), *told]))
    return dataclasses.replace(result, content=content)


Arguments = TypeVarTuple("Arguments")
"""What a callback takes besides."""


class ForkableEventLoop(asyncio.SelectorEventLoop):
    """An event loop that a fork takes along, with its timers and tasks."""

    def __init__(self) -> None:
        """`poll` keeps no kernel object, so that a fork of the loop is a whole loop."""
        super().__init__(selectors.PollSelector())

    def own_descriptors(self) -> tuple[int, int]:
        """The two ends of the pipe by which other threads and signals wake it."""
        itself: Any = self
        return itself._ssock.fileno(), itself._csock.fileno()

    def renew(self) -> None:
        """In a fork: have a pipe of its own, and no threads but those that are there."""
        itself: Any = self
        itself._close_self_pipe()
        itself._make_self_pipe()
        if itself._signal_handlers:
            signal.set_wakeup_fd(itself._csock.fileno())
        itself._default_executor = None
        asyncio.set_event_loop(self)


def new_loop() -> ForkableEventLoop:
    """A loop for this thread."""
    loop = ForkableEventLoop()
    asyncio.set_event_loop(loop)
    if sys.version_info < (3, 12):
        with contextlib.suppress(OSError):  # where there are no such descriptors, Python's own way has to do
            os.close(os.pidfd_open(os.getpid()))
            asyncio.set_child_watcher(_Children())
    return loop


if sys.version_info < (3, 12):

    class _Children(asyncio.AbstractChildWatcher):
        """Watches child processes by descriptor, on whichever loop runs; as later versions of Python do.

        Of the watchers of Python 3.11 one starts a thread for each child, and another knows only the main
        loop, which IPython's script magics block while they wait for a loop of their own.
        """

        def add_child_handler(
            self,
            pid: int,
            callback: Callable[[int, int, *Arguments], object],
            *args: *Arguments,
        ) -> None:
            loop, descriptor = asyncio.get_running_loop(), os.pidfd_open(pid)

            def ended() -> None:
                loop.remove_reader(descriptor)
                os.close(descriptor)
                try:
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                except ChildProcessError:
                    status = 255  # somebody else has reaped it; what asyncio gives as well
                callback(pid, status, *args)

            loop.add_reader(descriptor, ended)

        def remove_child_handler(self, pid: int) -> bool:  # noqa: ARG002 - nobody removes what ends by itself
            return False

        def attach_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
            """Nothing to do: any loop will be served."""

        def is_active(self) -> bool:
            return True

        def close(self) -> None:
            """Nothing is open."""

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing is open."""


_NUDGES_BYTES = 1 << 16
_EMIT_BYTES = 1 << 16
_DESCRIPTORS = {"stdout": 1, "stderr": 2}


@dataclass(slots=True, kw_only=True)
class _Call:
    """One call under way."""

    frame: Frame
    number: int
    caps: OutputCaps
    holds: bool
    record: CallRecord
    cancellation: Cancellation
    attached: int | None = None
    interrupts: int = 0
    cancels: int = 0
    done: bool = False


class Worker:
    """One process's side of the call channel."""

    def __init__(
        self,
        channel: BlockingChannel,
        shell: ZMQInteractiveShell,
        sandbox: Mapping[str, Json],
        *,
        nudges: int,
    ) -> None:
        """Serve `channel` with `shell`.

        Args:
            channel: The call channel.
            shell: The user's namespace.
            sandbox: Describes the confinement to tools.
            nudges: A pipe that tells which call an interrupt is for.
        """
        self._channel = channel
        self._shell = shell
        self._recorder: Recorder = shell.recorder
        self._recorder.send = self._send_text
        self._sandbox = sandbox
        self._workspace = Path(str(sandbox["workspace"]))
        self._nudges = nudges
        self._tools: dict[str, Tool] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._calls: dict[int, _Call] = {}
        self._stepping: int | None = None
        self._holder: int | None = None
        self._pid = os.getpid()
        self._attached = True
        self._inputs = InputChannel(self._send, channel.fileno(), self._receive)
        self._held: list[Frame] = []

    def serve(self, loop: ForkableEventLoop) -> NoReturn:
        """Run until the host closes its end."""
        shell, leave = self._shell, functools.partial(self._let_go, loop)
        lot = self._lot = ForkPoint(shell.user_ns, shell.user_ns_hidden, leave)
        hide_from_wait()
        os.set_blocking(self._nudges, False)
        signal.signal(signal.SIGINT, self._on_interrupt)
        os.register_at_fork(before=flush, after_in_child=functools.partial(self._leave_channel, loop))
        self._channel.send("ready", {"pid": self._pid, "python": sys.version.split()[0]})
        loop.add_reader(self._channel.fileno(), self._receive)
        while True:
            # An interrupt that no call wants must not end the worker.
            with contextlib.suppress(KeyboardInterrupt):
                loop.run_forever()
            if self._held:  # an order to park, which is done outside the loop, so that it is whole in both
                end = self._channel.descriptors.popleft()
                woken = lot.park(end, ours=(*loop.own_descriptors(), self._nudges))
                if woken is not None:
                    self._wake(loop, woken)
                else:
                    loop.call_soon(self._obey, self._held[1:])
                self._held = []

    def _wake(self, loop: ForkableEventLoop, channel: BlockingChannel) -> None:
        """In a fork that was woken: go on from the state in which it was made, on a channel of its own."""
        self._channel, self._pid = channel, os.getpid()
        self._inputs = InputChannel(self._send, channel.fileno(), self._receive)
        self._recorder.renew_lock()
        loop.renew()
        for number, call in self._calls.items():  # they ran beside, and their end is the other's to tell
            call.done = True
            self._tasks[number].cancel()
        loop.add_reader(channel.fileno(), self._receive)

    def _let_go(self, loop: ForkableEventLoop) -> None:
        """In a fork: the channel belongs to the process it was forked from."""
        loop.remove_reader(self._channel.fileno())
        self._channel.close()

    # ---- the channel

    def _receive(self) -> None:
        try:
            frames = self._channel.receive()
        except (EOFError, OSError):
            os._exit(0)
        self._obey(frames)

    def _obey(self, frames: Sequence[Frame]) -> None:
        for place, frame in enumerate(frames):
            if frame.op == "park":
                self._held = [*frames[place:]]
                asyncio.get_running_loop().stop()
                return
            if frame.op == "call":
                self._start(frame)
            elif frame.op == "cancel":
                self._cancel(frame.header["id"])
            elif frame.op == "reply":
                self._inputs.take(frame.header)

    def _send(self, op: str, header: Mapping[str, Any], parts: tuple[bytes, ...] = ()) -> None:
        if self._attached:
            self._channel.send(op, header, parts)

    def _send_text(self, call_id: str, stream: str, text: str) -> None:
        descriptor = _DESCRIPTORS[stream]
        if self._attached:
            told: dict[str, Any] = {"id": call_id, "stream": stream, "text": text}
            if unread := _unread(descriptor):
                told["after"] = unread  # programs wrote before, and the host has not read it yet
            self._channel.send("out", told)
            return
        data = text.encode()
        while data:
            data = data[os.write(descriptor, data) :]

    def _send_shown(self, op: str, header: Mapping[str, Any], parts: tuple[bytes, ...]) -> None:
        after = {name: unread for name, end in _DESCRIPTORS.items() if (unread := _unread(end))}
        self._send(op, {**header, "after": after} if after else header, parts)

    def _leave_channel(self, loop: ForkableEventLoop) -> None:
        """In a fork made by user code: the channel belongs to the parent alone."""
        if self._attached and not self._lot.forking:
            self._attached = False
            self._let_go(loop)
            os.close(self._nudges)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            self._recorder.renew_lock()

    # ---- stopping

    def _on_interrupt(self, _signal: int, frame: types.FrameType | None) -> None:
        """Raise in user code that is meant and running; what merely waits is cancelled over the channel.

        It may strike anywhere, so it takes no locks: not even a `Cancellation` can be set here.
        """
        named = self._nudged()
        for number in named & self._calls.keys():
            self._calls[number].interrupts += 1
        stepping = self._calls.get(self._stepping or 0)
        if stepping is not None:
            # Between user code and our own an exception would get lost, and it is about to yield anyway.
            driving = frame is not None and frame.f_code is Worker._driven.__code__
            # If the order to cancel was carried out already, this is its echo.
            meant = stepping.number in named and stepping.interrupts > stepping.cancels
            if not driving and (meant or not named):
                raise KeyboardInterrupt
        elif not named and self._holder is not None:
            # Nobody's order: user code has sent it, as a thread does with `_thread.interrupt_main`.
            asyncio.get_running_loop().call_soon_threadsafe(self._cancel, self._holder)

    def _nudged(self) -> set[int]:
        """The calls that the host wants interrupted; none for a SIGINT of user code's own."""
        try:
            data = os.read(self._nudges, _NUDGES_BYTES)
        except OSError:
            return set()
        whole = len(data) // INTERRUPT_RECORD.size * INTERRUPT_RECORD.size
        return {number for (number,) in INTERRUPT_RECORD.iter_unpack(data[:whole])}

    def _cancel(self, number: int) -> None:
        if number in self._tasks:
            self._calls[number].cancels += 1
            self._calls[number].cancellation.cancel()
            self._tasks[number].cancel()

    @types.coroutine
    def _driven(self, coroutine: Coroutine[Any, Any, Pieces], number: int) -> Generator[Any, Any, Pieces]:
        """Drive user code, so that it is known when it runs, and an interrupt can reach it."""
        value: Any = None
        error: BaseException | None = None
        while True:
            self._stepping = number
            try:
                step = coroutine.send(value) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]  # what a coroutine returns travels untyped
            finally:
                self._stepping = None
            value, error = None, None
            flush()  # progress shows while the call waits
            try:
                value = yield step
            except BaseException as raised:  # handed to the coroutine, which decides
                error = raised

    # ---- one call

    def _start(self, frame: Frame) -> None:
        header = frame.header
        number, caps = header["id"], OutputCaps(**header["caps"])
        call = self._calls[number] = _Call(
            frame=frame,
            number=number,
            caps=caps,
            holds=header["concurrency"] != "overlap",
            record=CallRecord(call_id=str(number), stream_left=caps.stream_bytes, data_left=caps.data_bytes),
            cancellation=Cancellation(),
            attached=self._channel.descriptors.popleft() if header.get("attached") else None,
        )
        if (manner := header.get("watch")) is not None:
            call.record.watch = HostWatch(
                number=number, manner=ExecuteOptions(**manner), send=self._send_shown, inputs=self._inputs
            )
        task = self._tasks[number] = asyncio.get_running_loop().create_task(self._run(call))
        task.add_done_callback(functools.partial(self._finish, call))

    def _finish(self, call: _Call, _task: asyncio.Task[None]) -> None:
        if not call.done:  # cancelled before its first step
            self._answer(call, encode_result(interrupted_result(), call.caps))
        del self._tasks[call.number], self._calls[call.number]

    def _answer(self, call: _Call, pieces: Pieces) -> None:
        call.done = True
        flush()
        self._send("done", {"id": call.number}, pieces)

    async def _run(self, call: _Call) -> None:
        self._recorder.enter(call.record)
        if call.holds:
            self._holder, self._recorder.main = call.number, call.record
            # Whatever an earlier call made of the signal, this one can be interrupted.
            signal.signal(signal.SIGINT, self._on_interrupt)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        try:
            pieces = await self._driven(self._attempt(call), call.number)
        except BaseException as error:  # whatever a tool raises is its result, never our end
            pieces = encode_failure(error, call.record, call.caps)
        finally:
            if call.holds:
                self._holder = self._recorder.main = None
        if os.getpid() != self._pid:
            flush()
            os._exit(0)  # a fork made by user code came out of its cell: it has no business here
        self._answer(call, pieces)

    async def _attempt(self, call: _Call) -> Pieces:
        """All of the call that may run user code, which may take as long as it likes."""
        tool = self._tool(call.frame)
        result: object = await tool.execute(from_json(call.frame.parts[0]), self._context(call))
        if not isinstance(result, ToolResult):
            told = (
                f"{tool.name} returned {type(result).__name__} instead of a ToolResult; mend its execute()."
            )
            result = ToolResult.error(told, recoverable=False)
        if call.interrupts or call.cancels:
            result = mark_stopped(result)
        result = add_announcements(add_record(result, call.record), call.frame.header["agent_id"])
        return encode_result(result, call.caps)

    def _tool(self, frame: Frame) -> Tool:
        key = frame.header["key"]
        tool = self._tools.get(key)
        if tool is None:
            path = frame.header.get("import_path")
            tool = _imported(path) if path else pickle.loads(frame.parts[1])  # noqa: S301 - from the host
            self._tools[key] = tool
        return tool

    def _context(self, call: _Call) -> ToolContext:
        header, record = call.frame.header, call.record

        def emit(name: str, payload: Mapping[str, Json]) -> None:
            try:
                size = len(to_json(payload))
            except PydanticSerializationError as error:
                raise TypeError(f"emit({name!r}) takes what JSON can hold: {error}") from None
            if size > _EMIT_BYTES or len(name) > _EMIT_BYTES:
                raise ValueError(f"emit({name!r:.50}) of {size} bytes: at most {_EMIT_BYTES} can be sent.")
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
            sandbox_config=self._sandbox,
            cancellation=call.cancellation,
            output_caps=call.caps,
            emitter=emit,
            metadata={
                "present": self._present,
                "record": record,
                "shell": self._shell,
                "read_only": header["read_only"],
                "attached": call.attached,
            },
        )

    def _present(self, value: Any) -> dict[str, Any]:
        """A value as people see it, by IPython's own formatters."""
        formatter = self._shell.display_formatter
        return (
            json_bundle(formatter.format(value)[0]) if formatter is not None else {"text/plain": repr(value)}
        )


def _unread(descriptor: int) -> int:
    """How many bytes wait in a pipe; 0 when it is none, because user code has put something else there."""
    count = bytearray(4)
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return 0
    return int.from_bytes(count, sys.byteorder)


def _imported(path: str) -> Tool:
    module, _, attribute = path.partition(":")
    found: Tool = getattr(importlib.import_module(module), attribute)
    return found
