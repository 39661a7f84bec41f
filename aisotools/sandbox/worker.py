"""The worker: holds the user's variables and runs tools, one task per call, inside the confinement.

It speaks frames over one inherited socket and has no other way out. Host to worker: `call`, `cancel`. Worker
to host: `ready`, `failed`, `out`, `emit`, `done`. Nothing it says is believed by the host without checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import os
import pickle
import selectors
import signal
import sys
import types
from collections.abc import Coroutine, Generator, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from aisotools.contracts import Cancellation, OutputCaps, Tool, ToolContext
from aisotools.events import Json, ToolResult
from aisotools.sandbox.channel import BlockingChannel, Frame
from aisotools.sandbox.shell import ZMQInteractiveShell, flush
from aisotools.sandbox.streams import CallRecord, Recorder, json_bundle
from aisotools.tool_members import failure


class Worker:
    """One process's side of the call channel."""

    def __init__(
        self, channel: BlockingChannel, shell: ZMQInteractiveShell, sandbox: Mapping[str, Json]
    ) -> None:
        """Serve `channel` with `shell`; `sandbox` describes the confinement to tools."""
        self._channel = channel
        self._shell = shell
        self._recorder: Recorder = shell.recorder
        self._recorder.send = self._send_text
        self._sandbox = sandbox
        self._tools: dict[str, Tool] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancellations: dict[str, Cancellation] = {}
        self._interruptible = False
        self._holder: str | None = None
        self._pid = os.getpid()
        self._attached = True

    def serve(self, loop: asyncio.SelectorEventLoop) -> None:
        """Run until the host closes its end."""
        signal.signal(signal.SIGINT, self._on_interrupt)
        os.register_at_fork(after_in_child=self._leave_channel)
        self._channel.send("ready", {"pid": os.getpid(), "python": sys.version.split()[0]})
        loop.add_reader(self._channel.fileno(), self._receive)
        while True:
            # An interrupt that no call wants must not end the worker.
            with contextlib.suppress(KeyboardInterrupt):
                loop.run_forever()

    # ---- the channel

    def _receive(self) -> None:
        try:
            frames = self._channel.receive()
        except (EOFError, OSError):
            os._exit(0)
        for frame in frames:
            if frame.op == "call":
                call_id = frame.header["id"]
                task = asyncio.get_running_loop().create_task(self._run(frame))
                self._tasks[call_id] = task
                task.add_done_callback(functools.partial(self._forget, call_id))
            elif frame.op == "cancel":
                self._cancel(frame.header["id"])

    def _forget(self, call_id: str, _task: asyncio.Task[None]) -> None:
        self._tasks.pop(call_id, None)

    def _send(self, op: str, header: Mapping[str, Any], parts: tuple[bytes, ...] = ()) -> None:
        if self._attached:
            self._channel.send(op, header, parts)

    def _send_text(self, call_id: str, stream: str, text: str) -> None:
        if self._attached:
            self._channel.send("out", {"id": call_id, "stream": stream, "text": text})
        else:
            os.write(1 if stream == "stdout" else 2, text.encode("utf-8", "replace"))

    def _leave_channel(self) -> None:
        """In a fork made by user code: the channel belongs to the parent alone."""
        self._attached = False
        self._channel.close()
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    # ---- stopping

    def _on_interrupt(self, _signal: int, _frame: types.FrameType | None) -> None:
        if self._interruptible:
            raise KeyboardInterrupt
        if self._holder is not None:
            self._cancel(self._holder)

    def _cancel(self, call_id: str) -> None:
        if call_id in self._cancellations:
            self._cancellations[call_id].cancel()
        if call_id in self._tasks:
            self._tasks[call_id].cancel()

    @types.coroutine
    def _guarded(
        self, coroutine: Coroutine[Any, Any, ToolResult], *, holds: bool
    ) -> Generator[Any, Any, ToolResult]:
        """Drive user code so that an interrupt reaches it as KeyboardInterrupt, if it holds the thread."""
        value: Any = None
        error: BaseException | None = None
        while True:
            self._interruptible = holds
            try:
                step = coroutine.send(value) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]  # what a coroutine returns travels untyped
            finally:
                self._interruptible = False
            value, error = None, None
            try:
                value = yield step
            except BaseException as raised:  # handed to the coroutine, which decides
                error = raised

    # ---- one call

    async def _run(self, frame: Frame) -> None:
        header = frame.header
        call_id: str = header["id"]
        caps = OutputCaps(**header["caps"])
        record = CallRecord(call_id=call_id, stream_left=caps.stream_bytes, data_left=caps.data_bytes)
        self._recorder.enter(record)
        cancellation = self._cancellations[call_id] = Cancellation()
        holds = header["concurrency"] != "overlap"
        if holds:
            self._holder, self._recorder.main = call_id, record
        try:
            result = await self._execute(frame, record, cancellation, caps)
        finally:
            self._cancellations.pop(call_id, None)
            if holds:
                self._holder = self._recorder.main = None
        flush()
        if os.getpid() != self._pid:
            os._exit(0)  # a fork made by user code came out of its cell: it has no business here
        self._send("done", {"id": call_id}, (_encode(_with_streams(result, record)),))

    async def _execute(
        self, frame: Frame, record: CallRecord, cancellation: Cancellation, caps: OutputCaps
    ) -> ToolResult:
        async def attempt() -> ToolResult:
            tool = self._tool(frame)  # may import, or unpickle, for as long as it likes
            context = self._context(frame.header, cancellation, caps, record)
            return await tool.execute(from_json(frame.parts[0]), context)

        try:
            return await self._guarded(attempt(), holds=frame.header["concurrency"] != "overlap")
        except (KeyboardInterrupt, asyncio.CancelledError):
            return ToolResult.error("The call was interrupted.").with_metadata(stopped=True)
        except BaseException as error:  # whatever a tool raises is its result, never our end
            return failure(error)

    def _tool(self, frame: Frame) -> Tool:
        key = frame.header["key"]
        tool = self._tools.get(key)
        if tool is None:
            path = frame.header.get("import_path")
            tool = _imported(path) if path else pickle.loads(frame.parts[1])  # noqa: S301 - from the host
            self._tools[key] = tool
        return tool

    def _context(
        self, header: Mapping[str, Any], cancellation: Cancellation, caps: OutputCaps, record: CallRecord
    ) -> ToolContext:
        def emit(name: str, payload: Mapping[str, Json]) -> None:
            self._send("emit", {"id": record.call_id, "name": name, "payload": dict(payload)})

        return ToolContext(
            agent_id=header["agent_id"],
            session_key=header["session_key"],
            turn_id=header["turn_id"],
            call_id=record.call_id,
            workspace_path=Path(str(self._sandbox["workspace"])),
            sandbox_config=self._sandbox,
            cancellation=cancellation,
            output_caps=caps,
            emitter=emit,
            metadata={"present": self._present, "record": record, "shell": self._shell},
        )

    def _present(self, value: Any) -> dict[str, Any]:
        """A value as people see it, by IPython's own formatters."""
        formatter = self._shell.display_formatter
        return (
            json_bundle(formatter.format(value)[0]) if formatter is not None else {"text/plain": repr(value)}
        )


def _imported(path: str) -> Tool:
    module, _, attribute = path.partition(":")
    found: Tool = getattr(importlib.import_module(module), attribute)
    return found


def _with_streams(result: ToolResult, record: CallRecord) -> ToolResult:
    """Add what was printed and displayed beside the result, unless the tool took it up itself."""
    more: dict[str, Any] = {}
    for stream in ("stdout", "stderr"):
        if (text := record.text(stream)) and not result.metadata.get("streams_taken"):
            more[stream] = text
    if record.displays and "displays" not in result.metadata:
        more["displays"] = [bundle for _, bundle in record.displays]
    if record.dropped_bytes:
        more["dropped_bytes"] = record.dropped_bytes
    if record.dropped_displays:
        more["dropped_displays"] = record.dropped_displays
    return result.with_metadata(**more) if more else result


def _encode(result: ToolResult) -> bytes:
    """A result as the JSON that the host validates."""
    metadata = {k: v for k, v in result.metadata.items() if k != "streams_taken"}
    fields = {
        "content": result.content,
        "is_error": result.is_error,
        "recoverable": result.recoverable,
        "error_kind": result.error_kind,
        "kind": result.kind,
        "value": result.value,
        "data": json_bundle(result.data),
        "metadata": metadata,
    }
    try:
        return to_json(fields, inf_nan_mode="strings", serialize_unknown=True)
    except Exception as error:
        told = f"The tool's result cannot be sent: {type(error).__name__}: {error}"
        return to_json({"content": told, "is_error": True, "error_kind": "failed", "kind": "error"})


def new_loop() -> asyncio.SelectorEventLoop:
    """The worker's event loop. `poll` keeps no kernel object, so that a fork of the loop is a whole loop."""
    loop = asyncio.SelectorEventLoop(selectors.PollSelector())
    asyncio.set_event_loop(loop)
    if sys.version_info < (3, 12):
        # The default watcher starts a thread per child; threads do not survive forks.
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(loop)
        asyncio.set_child_watcher(watcher)
    return loop
