"""The host's connection to one tree of worker processes: its sockets on the event loop.

A supervisor process stands above the worker and everything the worker starts. The worker can be replaced
within the tree (by undo, and by recovery after a crash); the supervisor and the pipes stay.

Threat
    Whatever is read here is hostile: the call channel and the raw output, which any process of the tree may
    hold, and the control socket if a worker ever got into its supervisor.
Mechanism
    Little is read at a time. A frame is read by `FrameChannel` and handled by `CallTable`; any exception of
    either ends the worker, and what remains in its socket is never read. A malformed report on the control
    socket loses the whole tree. Nothing is raised into the event loop.
Race window
    Frames that were sent before a worker ended still count, up to a bound; so a frame may be handled after
    the news of the death, never after another worker has taken over.
When it fails
    The worker's calls fail with `WorkerDied` and the reason; undo's snapshots or a fresh worker take over.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic_core import to_json

from aisotools.core.concurrency import end_future
from aisotools.core.exceptions import ChannelError, SandboxError, WorkerDied, as_clause, explain_system_error
from aisotools.core.protocols import Programs
from aisotools.core.sandboxes import SandboxListener
from aisotools.sandbox.frames import BROKEN_STATUS, Frame, encode, encode_pieces
from aisotools.sandbox.host.calls import CallTable, PendingCall
from aisotools.sandbox.host.displays import DisplayRouter
from aisotools.sandbox.host.failures import describe_exit
from aisotools.sandbox.host.fork_handle import wait_until_ended
from aisotools.sandbox.host.monitor import ResourceMonitor
from aisotools.sandbox.host.programs import (
    ProgramRequests,
    list_unnamed,
    name_of,
    note_start,
    scope_of,
    wait_for_names,
)
from aisotools.sandbox.host.transport import FrameChannel, RawOutput
from aisotools.sandbox.host.watches import watch
from aisotools.sandbox.host.worker_limits import WorkerLimits
from aisotools.sandbox.limits import LimitExceeded, Limits
from aisotools.sandbox.process import tree
from aisotools.sandbox.process.descriptors import discard_socket, receive
from aisotools.sandbox.process.ownership import StopScope
from aisotools.sandbox.process.spawn import WorkerHandles
from aisotools.sandbox.process.supervisor import parse_report

# Reads that may follow the news of a worker's death. What it sent before counts, but a child that inherited
# the socket could keep sending for ever.
_READS_AFTER_DEATH = 1024
# How long the news of a worker's death may come after the end of its channel.
_EXIT_NEWS_S = 0.1
# How long the supervisor may take to answer a sweep: its work is bounded by a second, its wait for a
# processor is not.
_SWEEP_ANSWER_S = 5.0
# How long ending a tree may take, with its scratch folder.
_CLEAN_UP_S = 6.0
_CONTROL_BYTES = 1 << 16
_REFUSAL_CHARS = 1000
# How long mounting may take: some milliseconds, and more if the machine is busy.
_MOUNTED_S = 6.0


@dataclass(slots=True)
class WorkerProcess:
    """A worker process and its transport. Undo and crash recovery replace it within the same process tree.

    Each process has a socket of its own, so that a late frame of one cannot be mistaken for a frame of the
    next.

    Attributes:
        socket: Its call channel.
        pid: Its process id.
        pidfd: A descriptor of the process; -1 for the first worker, whose end the supervisor reports.
        known_tools: Keys of the tools that it has been sent.
    """

    socket: FrameChannel
    pid: int = 0
    pidfd: int = -1
    known_tools: set[str] = field(default_factory=set)

    def __del__(self) -> None:
        self._close_pidfd()

    def close(self) -> None:
        """Close the socket and the process descriptor; the process itself is not touched."""
        self.socket.close()
        self._close_pidfd()

    def _close_pidfd(self) -> None:
        pidfd, self.pidfd = self.pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)


class WorkerConnection:
    """A tree of worker processes as the host sees it.

    Attributes:
        calls: The calls in progress.
        ready: Done when the first worker can take calls; fails with `SandboxError` if it does not start.
        processes_ended: Done when no process of the tree is left.
        cleaned_up: Done when its scratch folder is removed too.
        supervisor: Process id of the supervisor; 0 until it has reported.
        scratch: Its folder for temporary files.
        limits: The kernel's limits of the first worker; None until it is ready.
        monitor: Checks the limits while the tree lives; None until `start_monitor`.
        down_reason: Why there is no worker at the moment, or None.
        lost_reason: Why the whole tree is lost, or None.
        exit_limit: The limit that the last worker to end was probably killed for, or None.
        is_broken: Whether the last worker has ended because calls could not run in it any more.
    """

    def __init__(
        self,
        handles: WorkerHandles,
        *,
        listener: SandboxListener,
        on_lost: Callable[[WorkerConnection, str], None],
        on_paths_replaced: Callable[[Sequence[str]], None],
        on_worker_exit: Callable[[WorkerConnection, str], bool] | None = None,
        exempt_pids: Callable[[], Sequence[int]] = list,
        displays: DisplayRouter | None = None,
    ) -> None:
        """Connect to a tree that has just been spawned, on the running loop.

        Args:
            handles: Our ends of its sockets and pipes.
            listener: Receives output and progress of calls.
            on_lost: Called once with the reason when the tree is lost.
            on_paths_replaced: Called with texts that should be denied paths, at which something was replaced.
            on_worker_exit: Called with the reason when the worker is gone and its tree is not. Returns True
                if it will bring another worker; otherwise the tree is lost as well.
            exempt_pids: Returns the processes that hold snapshots, which no sweep may touch.
            displays: Receives what calls display and ask.

        Raises:
            SandboxError: The loop cannot watch them. They are closed.
        """
        self._loop = asyncio.get_running_loop()
        self._control = handles.control
        self._raw_pipes = {"stdout": handles.out, "stderr": handles.err}
        self._on_lost = on_lost
        self._on_paths_replaced = on_paths_replaced
        self._on_worker_exit = on_worker_exit
        self._exempt_pids = exempt_pids
        self._raw = RawOutput(self._raw_pipes, on_readable=self._on_raw_readable, handle=self._handle_raw)
        # Before the worker is watched: its messages are for these calls.
        self.calls = CallTable(
            listener,
            displays=displays or DisplayRouter(),
            drain_raw=self._raw.drain,
            reply=self._send_reply,
            programs=ProgramRequests(self._send_control),
        )
        try:
            self._watch(handles)
        except SandboxError as error:
            raise SandboxError(f"The worker was not started: {as_clause(error)}.") from error
        self._acknowledgements: dict[int, asyncio.Future[str]] = {}
        self.sweep_lock = asyncio.Lock()
        self._sweeps: set[asyncio.Future[None]] = set()  # the loop itself would forget them
        self._requests = 0
        self._suspended = False
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._worker_is_ready = False
        self.processes_ended: asyncio.Future[None] = self._loop.create_future()
        self.cleaned_up: asyncio.Future[None] = self._loop.create_future()
        self.supervisor, self.scratch = 0, ""
        self.limits: WorkerLimits | None = None
        self.monitor: ResourceMonitor | None = None
        self.down_reason: str | None = None
        self.lost_reason: str | None = None
        self.exit_limit: LimitExceeded | None = None
        self.is_broken = False

    def __repr__(self) -> str:
        state = f"lost: {self.lost_reason}" if self.lost_reason is not None else f"{len(self.calls)} calls"
        return f"<WorkerConnection pid={self.pid} {state}>"

    def _watch(self, handles: WorkerHandles) -> None:
        """Watch our ends; close them if that cannot be: without them the supervisor ends, and the worker."""
        with ExitStack() as undone:
            for end in (handles.channel, handles.control, handles.out, handles.err):
                undone.callback(end.close)
            self._raw.start()
            undone.callback(self._raw.stop)
            self._worker = self.make_worker(handles.channel)
            undone.callback(self._worker.close)
            watch(self._loop, self._control, self._on_control_readable)
            undone.pop_all()

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._worker.pid

    @property
    def is_serving(self) -> bool:
        """True if there is a worker that can take calls."""
        return self.lost_reason is None and self.down_reason is None

    @property
    def known_tools(self) -> set[str]:
        """Keys of the tools that the worker has been sent."""
        return self._worker.known_tools

    @property
    def last_words(self) -> str:
        """The end of what the worker wrote to its raw output."""
        return self._raw.last_words

    def start_monitor(
        self,
        limits: Limits,
        *,
        folders: Sequence[str],
        is_busy: Callable[[], bool],
        on_exceeded: Callable[[LimitExceeded], None],
    ) -> None:
        """Check `limits` from now on, until the tree is lost.

        Args:
            limits: What the tree may use.
            folders: Where it may write, besides its scratch folder.
            is_busy: Returns whether calls run, in the worker or beside it.
            on_exceeded: Called for each check that finds a limit exceeded.
        """
        self.monitor = ResourceMonitor(
            lambda: self.supervisor,
            limits,
            folders=(*folders, self.scratch),
            is_busy=is_busy,
            on_exceeded=on_exceeded,
            exempt_pids=lambda: {self.pid, *self._exempt_pids()},
        )

    # ---- calls

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
        """Send a call. It stays in `calls` until it is finished there.

        Args:
            call_id: Its id for the rest of the host.
            header: What the worker needs to know.
            parts: Its arguments as JSON, and its tool if the worker does not have it.
            stream_bytes: How much printed output is accepted.
            holds_main_thread: Whether it runs on the worker's main thread.
            starts_task: Whether what it starts goes on after it, and is spared when another call is stopped.
            programs: Which programs it starts.
            attachments: Descriptors to send along.

        Raises:
            WorkerDied: If the worker is gone already.
            ChannelError: If the call is too large to send.
        """
        reason = self.lost_reason or self.down_reason
        if reason is not None:
            raise WorkerDied(reason, last_words=self.last_words)
        call = self.calls.start(call_id, stream_bytes=stream_bytes, holds_main_thread=holds_main_thread)
        call.programs, call.starts_task = programs, starts_task
        if programs != "none":
            call.start = note_start(self._worker.pid)
        try:
            message = {**header, **call.header, "id": call.number, "call_id": call_id}
            if attachments:
                message["attached"] = len(attachments)
            frame = encode_pieces("call", message, parts)
            self._worker.socket.write(frame[0], attachments, frame[1:])
        except ChannelError:
            self.calls.finish(call)
            raise
        return call

    def _send_reply(self, op: str, header: Mapping[str, Any]) -> None:
        if self.lost_reason is None:
            self._worker.socket.write(encode(op, header))

    def cancel_call(self, call: PendingCall) -> None:
        """Cancel the call where it awaits, and interrupt it where it runs."""
        if self.lost_reason is None:
            # Two ways, because the worker cannot read its channel while user code holds the loop: the frame
            # cancels the task that awaits, the supervisor's signal interrupts code that runs. The worker
            # counts both, so that the later of the two does not strike another call.
            self.calls.leave_out_display(call)
            self._worker.socket.write(encode("cancel", {"id": call.number}))
            request = {"number": call.number, "holds": call.holds_main_thread, "keep": [*self._exempt_pids()]}
            scope = scope_of(call, self.calls).as_json()
            self._send_control({"op": "interrupt", "scope": scope, **request})

    async def sweep(self, call: PendingCall, *, within_s: float) -> None:
        """End whatever runs in the sandbox but for background tasks and other calls that run.

        A call that was stopped may have woken what an earlier one left behind, so that ends as well. Returns
        after `within_s` seconds at the latest; `sweep_lock` is held until it is done.
        """
        sweeping = asyncio.ensure_future(self._sweep(call))
        self._sweeps.add(sweeping)
        sweeping.add_done_callback(self._sweeps.discard)
        await asyncio.wait([sweeping], timeout=within_s)

    async def _sweep(self, call: PendingCall) -> None:
        async with self.sweep_lock:
            if self.is_serving:
                await wait_for_names(call, self.calls)
                scope, unnamed = scope_of(call, self.calls), list_unnamed(call, self.calls)
                await self.request_supervisor(
                    "sweep", within_s=_SWEEP_ANSWER_S, scope=scope.as_json(), call=call.number
                )
                if unnamed:
                    # No task: nobody waits for this, and at the end of the tree nobody has to end it.
                    names = asyncio.gather(*map(name_of, unnamed))
                    names.add_done_callback(lambda _: self._settle(call))

    def _settle(self, call: PendingCall) -> None:
        """End what the sweep after a call has spared for others, which have named their programs since."""
        programs = tuple(other.program for other in self.calls if other.program)
        if self.lost_reason is None:
            self._send_control(
                {"op": "settle", "call": call.number, "scope": StopScope(programs=programs).as_json()}
            )

    async def clear(self, keeper: int) -> None:
        """End all that is below a reader's keeper, and the keeper last; see `ReaderProcesses`."""
        await self.request_supervisor("clear", within_s=_SWEEP_ANSWER_S, root=keeper)

    def notify_supervisor(self, op: str) -> None:
        """Send a request to the supervisor without waiting for it."""
        self._send_control({"op": op, "seq": 0, "keep": list(self._exempt_pids())})

    async def request_supervisor(self, op: str, *, within_s: float, **request: Any) -> bool:
        """Send a request to the supervisor. Return whether it was carried out within `within_s` seconds."""
        return await self._request(op, within_s=within_s, **request) is not None

    async def mount_denied(self, unreadable: Sequence[str], unwritable: Sequence[str]) -> None:
        """Hide paths from what runs, or make them read only; see `sandbox.confinement.remounts`.

        Raises:
            SandboxError: It could not be done; the message says why.
        """
        paths = {"unreadable": list(unreadable), "unwritable": list(unwritable)}
        refusal = await self._request("mount", within_s=_MOUNTED_S, **paths)
        if refusal:
            raise SandboxError(refusal)
        if refusal is None and not self.processes_ended.done():
            raise SandboxError(f"it was not done within {_MOUNTED_S:g} s")

    async def _request(self, op: str, *, within_s: float, **request: Any) -> str | None:
        """Send a request to the supervisor. Return why it refused, or None if it has not answered in time."""
        self._requests += 1
        done = self._acknowledgements[self._requests] = self._loop.create_future()
        self._send_control({"op": op, "seq": self._requests, "keep": list(self._exempt_pids()), **request})
        # A supervisor that dies never acknowledges: its end is waited for as well.
        await asyncio.wait(
            [done, self.processes_ended], timeout=within_s, return_when=asyncio.FIRST_COMPLETED
        )
        return done.result() if done.done() else None

    # ---- replacing the worker

    def make_worker(
        self, sock: socket.socket, *, pid: int = 0, pidfd: int = -1, known_tools: set[str] | None = None
    ) -> WorkerProcess:
        """Return a worker that is served over `sock`; see `WorkerProcess` for the other arguments."""
        transport = FrameChannel(
            sock,
            handle=self._handle,
            on_read=self._raw.bytes_read.clear,
            on_handled=self.calls.flush_output,
            on_idle=self._resume_raw,
            on_closed=self._on_channel_end,
            on_broken=self.worker_exited,
            on_overflow=lambda: self.worker_exited("it stopped reading its calls"),
            keep=self.calls.keep_parts,
        )
        return WorkerProcess(
            transport, pid=pid, pidfd=pidfd, known_tools=known_tools if known_tools is not None else set()
        )

    def request_fork(self, sock: socket.socket) -> bool:
        """Have the worker fork before its next call, and the fork serve `sock`. Return False if it lags."""
        # Fork order: the frame stands between the calls, so the snapshot is taken after the call before and
        # ahead of the call after, and nobody waits for it. The descriptor (SCM_RIGHTS) travels with its first
        # byte.
        try:
            self._worker.socket.write(encode("park"), [sock.fileno()])
        except ChannelError:
            return False
        return True

    def suspend(self) -> None:
        """Ignore the worker until `resume`: it is about to be replaced.

        Race: it is killed or frozen on purpose next. Its end, reported by socket, by process descriptor or by
        the supervisor, must not count as a crash, which would start a recovery beside the undo.
        """
        self._suspended = True
        self._worker.socket.pause_reading()
        if self._worker.pidfd >= 0:
            self._loop.remove_reader(self._worker.pidfd)

    def resume(self) -> None:
        """Listen to the worker again: it is not replaced after all."""
        self._suspended = False
        self._listen()

    def _listen(self) -> None:
        """Watch the worker; lose the tree if that cannot be, since nobody would hear of its end."""
        try:
            if self._worker.pidfd >= 0:
                # Level-triggered: if the worker ended while it was ignored, this fires at once.
                watch(self._loop, self._worker.pidfd, self._on_pidfd_readable)
            self._worker.socket.resume_reading()
        except SandboxError as error:
            self.lose(str(error))

    def replace_worker(self, worker: WorkerProcess) -> WorkerProcess:
        """Serve calls by `worker` from now on. Return the former one, which is no longer listened to."""
        self.suspend()
        former, self._worker = self._worker, worker
        self._suspended = False
        # The pipes belong to the tree. What the former worker left in them must not become the output, or the
        # last words, of this one.
        self._raw.drain_all()
        self._raw.forget_last_words()
        self.down_reason = None
        self.is_broken = False
        self._listen()
        self._send_control({"op": "adopt", "worker": worker.pid})
        return former

    def _on_pidfd_readable(self) -> None:
        # A woken snapshot is not a child of the supervisor, which therefore cannot wait for it.
        self._loop.remove_reader(self._worker.pidfd)
        self._on_exit_status(*tree.exit_status(self._worker.pid, self._worker.pidfd))

    def _on_exit_status(self, exit_status: int, signal_number: int) -> None:
        # Crash order: the news of the death may overtake the last frames, which come by another socket. A
        # result that was sent before the end counts.
        worker = self._worker
        worker.socket.drain(_READS_AFTER_DEATH, partial(self._note_exit, worker, exit_status, signal_number))

    def _note_exit(self, worker: WorkerProcess, exit_status: int, signal_number: int) -> None:
        # Race: it may have been replaced while a display of it was parsed.
        if worker is self._worker and not self._suspended:
            self.is_broken = exit_status == BROKEN_STATUS and self.is_serving
            self.worker_exited(describe_exit(exit_status, signal_number), signal_number)

    def worker_exited(self, reason: str, signal_number: int = 0) -> None:
        """Fail every call in progress: the worker is gone. Lose the tree unless another worker comes.

        Args:
            reason: Why, as a clause.
            signal_number: The signal that ended it, or 0.
        """
        if not self.is_serving:
            return
        self._worker.socket.stop()
        # Race: the monitor goes on, and its next sample is of the worker that takes over. Ask it now.
        self.exit_limit = None if self.monitor is None else self.monitor.post_mortem(signal_number)
        has_started = self.ready.done() and not self.ready.exception()
        if self._on_worker_exit is not None and has_started:
            # Set before anything else: a call that is started from a callback below must be refused.
            self.down_reason = reason
            self._raw.drain_all()
            error = WorkerDied(reason, last_words=self.last_words, is_broken=self.is_broken)
            self.calls.fail(error)
            if self._on_worker_exit(self, reason):
                return
        self.lose(reason, signal_number)

    # ---- the call channel and the raw output

    def _handle(self, frame: Frame) -> asyncio.Task[None] | None:
        if self.ready.done():
            return self.calls.handle(frame)
        self._handle_start(frame)
        return None

    def _on_channel_end(self) -> None:
        # Race: a worker that dies closes its channel too, and how it died is reported by another socket a
        # moment later. Wait for that; only a worker that lives on has merely closed its channel.
        self._loop.call_later(_EXIT_NEWS_S, self._on_channel_closed, self._worker)

    def _on_channel_closed(self, worker: WorkerProcess) -> None:
        # Stale timer: the worker may have been replaced since, or be about to be.
        if worker is self._worker and not self._suspended:
            self.worker_exited("it closed its call channel")

    def _handle_start(self, frame: Frame) -> None:
        if frame.op == "ready" and not self._worker_is_ready:
            self._worker_is_ready = True
            self._note_ready()
        elif frame.op == "failed":
            self.lose(f"it could not be confined: {str(frame.header.get('error'))[:2000]}")
        else:
            raise ChannelError(f"a frame {frame.op[:40]!r} came before the worker was ready")

    def _note_ready(self) -> None:
        # Race: worker and supervisor report by different sockets. Before the worker is ready, it may not have
        # its limits yet. Before the supervisor has reported, nobody knows what is below it, as forks must be.
        if self._worker_is_ready and self.supervisor and self.is_serving and not self.ready.done():
            try:
                self.limits = WorkerLimits(self.pid)
            except OSError as error:
                self.lose(f"its limits could not be read: {as_clause(explain_system_error(error))}")
            else:
                self.ready.set_result(None)

    def _on_raw_readable(self, stream: str) -> None:
        # Order of output: what Python printed before comes by the channel, what programs wrote by the pipe.
        # Read the channel first; a frame that comes after raw bytes says how many (see `CallTable`).
        channel = self._worker.socket
        channel.read()
        if channel.is_busy:
            self._raw.stop()  # until `_resume_raw`
        else:
            self._raw.read(stream)

    def _resume_raw(self) -> None:
        """Read raw output again, after everything that Python sent before."""
        if self.lost_reason is None:
            try:
                self._raw.start()
            except SandboxError as error:
                self.lose(str(error))

    def _handle_raw(self, stream: str, data: bytes) -> None:
        self.calls.handle_raw(stream, data)

    # ---- the supervisor

    def _send_control(self, message: Mapping[str, Any]) -> None:
        try:
            self._control.send(to_json(message))
        except OSError as error:
            self.lose(f"its supervisor is gone ({error.strerror})")

    def _on_control_readable(self) -> None:
        try:
            packet, _ = receive(self._control, _CONTROL_BYTES)
        except BlockingIOError:
            return
        except ChannelError as error:
            self.lose(f"its supervisor broke the protocol: {error}")
            return
        except OSError:
            packet = b""
        if not packet:
            self._loop.remove_reader(self._control)
            self.lose("its supervisor is gone")
            self._set_cleaned_up()
            return
        try:
            message = parse_report(packet)
        except ChannelError as error:
            # The supervisor is our own code, but its socket is in reach of a worker that got out of its own
            # process. A report that is none means that the tree can no longer be ended through it.
            self.lose(f"its supervisor broke the protocol: {error}")
            return
        match message["op"]:
            case "started":
                self._worker.pid = message["worker"]
                self.supervisor = message["supervisor"]
                self.scratch = message["scratch"]
                self._note_ready()
            case "done":
                acknowledgement = self._acknowledgements.pop(message["seq"], None)
                if acknowledgement is not None and not acknowledgement.done():
                    acknowledgement.set_result(str(message.get("refusal", ""))[:_REFUSAL_CHARS])
            case "died":
                # Stale news: the supervisor may report a former worker after it was replaced.
                if message.get("worker", self.pid) == self.pid and not self._suspended:
                    self._on_exit_status(message["exit"], message["signal"])
            case "ended" if not self.processes_ended.done():
                self.processes_ended.set_result(None)
            case "replaced":
                self._on_paths_replaced(message["paths"])
            case "gone":
                self._set_cleaned_up()

    def _set_cleaned_up(self) -> None:
        end_future(self.processes_ended)
        end_future(self.cleaned_up)

    # ---- the end

    def lose(self, reason: str, signal_number: int = 0) -> None:
        """Give up the tree: fail every call in progress and have the supervisor end all processes.

        Args:
            reason: Why, as a clause.
            signal_number: The signal that ended the worker, or 0.
        """
        if self.lost_reason is not None:
            return
        self._raw.drain_all()
        if self.is_serving:
            self.exit_limit = None if self.monitor is None else self.monitor.post_mortem(signal_number)
        # Before the request below: sending it may fail, which calls this method again.
        self.lost_reason = reason
        self._worker.socket.stop()
        if self.monitor is not None:
            self.monitor.stop()
        error = WorkerDied(reason, last_words=self.last_words, is_broken=self.is_broken)
        self.calls.fail(error)
        end_future(self.ready, SandboxError(f"The worker did not start: {reason}.{_quote_last_words(error)}"))
        self._send_control({"op": "kill"})
        self._on_lost(self, reason)

    async def terminate(self, reason: str) -> None:
        """End the worker and everything it started. Return when nothing is left."""
        self.lose(reason)
        if self._loop is not asyncio.get_running_loop():
            # Its own loop has ended or is busy: nobody reads the news of the supervisor, which ends last.
            await wait_until_ended(filter(None, [self.supervisor]), within_s=_CLEAN_UP_S)
        elif not self.cleaned_up.done():
            # A supervisor that hangs does not answer. Closing the control socket below ends the tree as well.
            await asyncio.wait([self.cleaned_up], timeout=_CLEAN_UP_S)
        self.close()

    def close(self) -> None:
        """Close every descriptor; the supervisor ends whatever is still there. Closing twice is fine."""
        if self.lost_reason is None:
            self.lost_reason = "it was closed"
        if self._worker.pidfd >= 0:
            self._loop.remove_reader(self._worker.pidfd)
        self._worker.close()
        if self.limits is not None:
            self.limits.close()
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control)
            discard_socket(self._control)
        self._raw.stop()
        for pipe in self._raw_pipes.values():
            pipe.close()
        self._set_cleaned_up()


def _quote_last_words(error: WorkerDied) -> str:
    return f" Its last output:\n{error.last_words[-2000:]}" if error.last_words else ""
