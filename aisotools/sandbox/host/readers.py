"""Readers: forks of the worker without write rights, in which tools run that only read.

`sandbox.worker.reader` says what a reader cannot do and why. Here is the host's side: a reader is made by the
first call that needs one, and kept for the calls after it, until a call may have changed the variables or the
worker is replaced. A call that is still running then finishes where it began. A reader holds nothing that
anybody misses: when one is stopped, breaks the protocol, takes too much or leaves processes behind (see
`ReaderProcesses`), it is ended and the next call gets a new one; worker, variables and snapshots stay.

A trial gets a reader of its own, with a scratch folder, and both go with it. What it prints is in its result
alone: no call runs yet whose output it would be.

Threat: a reader writes all the same, acts beyond its call, or is imitated by something that has all rights.
Mechanism: the host checks by the kernel what a reader has given up before it sends a call, and ends all below
the reader's keeper with it. Its frames are read like a worker's.
Race: a call that may change variables can begin while a reader is in use: the reader's call finishes where it
began, with the variables of that moment, and the next one gets a new reader.
Failure: a reader that cannot be made or checked runs nothing: the call fails and says why. Nothing is run in
the worker in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from aisotools.core.concurrency import end_future
from aisotools.core.exceptions import ChannelError, SandboxError, WorkerDied
from aisotools.core.protocols import Programs
from aisotools.core.sandboxes import SandboxCall, SandboxListener
from aisotools.core.types import ToolResult
from aisotools.sandbox.frames import encode, encode_pieces
from aisotools.sandbox.host.calls import CallTable, PendingCall, send_call
from aisotools.sandbox.host.connection import WorkerConnection
from aisotools.sandbox.host.displays import DisplayRouter
from aisotools.sandbox.host.failures import (
    HOST_SHORTAGE,
    describe_exit,
    reader_died_result,
    reader_timeout_result,
    unreadable_result,
)
from aisotools.sandbox.host.reader_processes import ReaderProcesses, resume, stop
from aisotools.sandbox.host.snapshots import SnapshotHistory, WokenReader
from aisotools.sandbox.host.transport import FrameChannel, RawOutput, ReaderPipes
from aisotools.sandbox.host.trials import SilentListener, TrialScratch
from aisotools.sandbox.host.watches import watch
from aisotools.sandbox.host.worker_limits import UNKNOWN_LIMITS, describe_shortage, explain_lowered
from aisotools.sandbox.limits import LimitExceeded, Limits, explain_failure
from aisotools.sandbox.process import tree
from aisotools.sandbox.process.descriptors import has_room
from aisotools.sandbox.process.supervisor import INTERRUPT_RECORD, INTERRUPT_REPEATS_S, NO_CALL, unread_bytes
from aisotools.sandbox.results import IN_READER

# Readers of one worker at a time. More than one is there only while calls of earlier ones still run.
_MAX_READERS = 4
# Frames that are read at most when a reader ends: more than its socket holds.
_READS_AFTER_DEATH = 1024
# How long a reader without calls runs on. Stopping it at once would make the next call wait for it.
_IDLE_S = 0.05
# How long a call whose reader has left processes behind waits for their end, at most.
_CLEARED_S = 5.0
# Files that this process opens at most while one is made.
_FILES_OF_READER = 16
_LEFTOVERS = "a call left processes behind"
# How long a reader that has closed its channel may take to end, after which it has merely closed it.
_EXIT_S = 0.1


class Reader:
    """One reader and its calls. Everything read from it is hostile: what is malformed ends it.

    Attributes:
        calls: The calls in progress.
        known_tools: Keys of the tools that it has.
        lost: What it lacks of the worker, in words.
        pid: Its process id.
        ended: Done when it is gone.
        ended_by: The signal that ended it; 0 if none did, or it is not known.
        cleared: Done when everything that its calls have started is gone as well.
        processes: It, its keeper, and what its calls start.
    """

    def __init__(
        self,
        woken: WokenReader,
        pipes: ReaderPipes,
        listener: SandboxListener,
        displays: DisplayRouter,
        *,
        on_ended: Callable[[Reader], None],
        on_cleared: Callable[[Reader], None],
        clear: Callable[[int], Awaitable[None]],
    ) -> None:
        """Serve calls by `woken`, on the running loop, until `end`.

        Args:
            woken: The process, which has given up its rights.
            pipes: Its pipes.
            listener: Receives output and progress of calls.
            displays: Receives what calls display and ask.
            on_ended: Called once, when the process is gone, before its calls fail.
            on_cleared: Called once, when nothing of its calls is left.
            clear: Ends everything below the keeper with this process id, and the keeper.

        Raises:
            SandboxError: The loop cannot watch it. It is the caller's to end.
        """
        self._clear = clear
        self._clearing: asyncio.Future[None] | None = None
        self._on_cleared = on_cleared
        self._stop_timer: asyncio.TimerHandle | None = None
        self._idle_since_s = 0.0
        self._is_stopped = False
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._pipes = pipes
        self._raw = RawOutput(
            {"stdout": pipes.out, "stderr": pipes.err},
            on_readable=self._on_raw_readable,
            handle=self._handle_raw,
        )
        self.known_tools = woken.known_tools
        self.lost = woken.lost
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.ended_by = 0
        self._reason = ""
        self.cleared: asyncio.Future[None] = self._loop.create_future()
        self.calls = CallTable(listener, displays=displays, drain_raw=self._raw.drain, reply=self._send)
        with contextlib.ExitStack() as undone:
            self._raw.start()
            undone.callback(self._raw.stop)
            self._channel = FrameChannel(
                woken.socket.sock,
                handle=self.calls.handle,
                on_read=self._raw.bytes_read.clear,
                on_handled=self.calls.flush_output,
                on_idle=self._resume_raw,
                on_closed=self._on_channel_closed,
                on_broken=self.end,
                on_overflow=lambda: self.end("it stopped reading its calls"),
                keep=self.calls.keep_parts,
            )
            undone.callback(self._channel.close)
            watch(self._loop, woken.socket.pidfd, self._on_exit)
            undone.pop_all()
        _, self.pid, self._pidfd = woken.socket.detach()
        self.processes = ReaderProcesses(woken.keeper, self.pid)

    def __repr__(self) -> str:
        return f"<Reader pid={self.pid} {len(self.calls)} calls {self._reason}>"

    def start_call(
        self,
        call_id: str,
        header: Mapping[str, Any],
        parts: list[bytes],
        *,
        stream_bytes: int,
        holds_main_thread: bool,
        starts_task: bool = False,  # noqa: ARG002 - nothing that it starts outlives it
        programs: Programs = "any",  # noqa: ARG002 - all that it starts is below its keeper
        attachments: Sequence[int] = (),
    ) -> PendingCall:
        """Send a call; see `WorkerConnection.start_call`."""
        if self.ended.done():
            raise WorkerDied(self._reason)
        if self._is_stopped:
            self._is_stopped = False
            resume(self._pidfd)
        call = self.calls.start(call_id, stream_bytes=stream_bytes, holds_main_thread=holds_main_thread)
        try:
            message = {**header, **call.header, "id": call.number, "call_id": call_id}
            frame = encode_pieces("call", message, parts)
            self._channel.write(frame[0], attachments, frame[1:])
        except ChannelError:
            self.calls.finish(call)
            raise
        return call

    def cancel_call(self, call: PendingCall) -> None:
        """Cancel the call where it awaits, and interrupt it where it runs."""
        if self.ended.done():
            return
        self.calls.leave_out_display(call)
        self._channel.write(encode("cancel", {"id": call.number}))
        self._interrupt(call.number)

    def repeat_interrupt(self) -> None:
        """Interrupt once more if the process has not noticed; see `INTERRUPT_REPEATS_S`."""
        if not self.ended.done() and unread_bytes(self._pipes.interrupts.fileno()):
            self._interrupt(NO_CALL)

    def _interrupt(self, number: int) -> None:
        # Not by the supervisor, which knows the worker alone. Race: it may have ended. If the pipe is full no
        # signal is sent: without a record it counts as user code's own. The caller waits and ends it.
        with contextlib.suppress(OSError):
            self._pipes.interrupts.write(INTERRUPT_RECORD.pack(number))
            signal.pidfd_send_signal(self._pidfd, signal.SIGINT)

    def stop_soon(self) -> None:
        """Stop the process soon unless another call comes: without calls it has nothing to do."""
        self._idle_since_s = self._loop.time()
        if self._stop_timer is None:
            self._stop_timer = self._loop.call_later(_IDLE_S, self._stop_when_idle)

    def _stop_when_idle(self) -> None:
        self._stop_timer = None
        if self.calls:
            return
        left_s = self._idle_since_s + _IDLE_S - self._loop.time()
        if left_s > 0:  # a call came and went meanwhile
            self._stop_timer = self._loop.call_later(left_s, self._stop_when_idle)
        elif not self._is_stopped:
            self._is_stopped = True
            stop(self._pidfd)
            # Race: a fork that is under way is finished before the process stops. So look when it has.
            self._stop_timer = self._loop.call_later(_IDLE_S, self._stop_when_idle)
        elif self.processes.has_others():
            self.end(_LEFTOVERS)

    def end(self, reason: str) -> None:
        """Kill the process, and fail the calls that it still runs. Ending twice is fine."""
        if self.ended.done():
            return
        self._raw.drain_all()
        self._reason = reason
        end_future(self.ended)
        pidfd, self._pidfd = self._pidfd, -1
        # Race: it may just have ended. Then the signal reaches nobody: the pidfd means no other process.
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        self._raw.stop()
        self.processes.close()
        self._pipes.close_output()
        self._channel.close()
        # The loop itself would forget the task.
        self._clearing = asyncio.ensure_future(self._clear_below())
        self._on_ended(self)
        self.calls.fail(WorkerDied(reason, last_words=self._raw.last_words))

    async def _clear_below(self) -> None:
        try:
            await self._clear(self.processes.keeper)
        finally:
            # Last: until this pipe is closed the keeper stays, and so does the meaning of its number.
            self._pipes.close()
            self._on_cleared(self)
            end_future(self.cleared)

    # ---- what it sends

    def _send(self, op: str, header: Mapping[str, Any]) -> None:
        if not self.ended.done():
            self._channel.write(encode(op, header))

    def _on_exit(self) -> None:
        # Once: it would be called again and again while its last frames are handled.
        self._loop.remove_reader(self._pidfd)
        # What it sent before its end counts, but a child that inherited the socket could go on for ever.
        self._channel.drain(_READS_AFTER_DEATH, self._end_after_exit)

    def _end_after_exit(self) -> None:
        if not self.ended.done():
            exit_status, self.ended_by = tree.exit_status(self.pid, self._pidfd)
            self.end(describe_exit(exit_status, self.ended_by))

    def _on_channel_closed(self) -> None:
        # Race: a reader that dies closes its channel too, a moment before its end can be seen.
        if self.calls:
            self._loop.call_later(_EXIT_S, self.end, "it closed its call channel")

    def _on_raw_readable(self, stream: str) -> None:
        # Order of output: what Python printed before comes by the channel.
        self._channel.read()
        if self._channel.is_busy:
            self._raw.stop()  # until `_resume_raw`
        else:
            self._raw.read(stream)

    def _resume_raw(self) -> None:
        """Read raw output again, after everything that Python sent before."""
        if not self.ended.done():
            try:
                self._raw.start()
            except SandboxError as error:
                self.end(str(error))

    def _handle_raw(self, stream: str, data: bytes) -> None:
        self.calls.handle_raw(stream, data)


class Readers:
    """The readers of one sandbox: at most one is up to date; others still have calls to finish.

    Attributes:
        unreadable: Absolute paths that readers made from now on cannot read.
    """

    def __init__(
        self,
        variables: SnapshotHistory,
        listener: SandboxListener,
        displays: DisplayRouter,
        *,
        limits: Limits,
        level: str,
        workspace: str,
        interrupt_s: float,
        kill_s: float,
    ) -> None:
        """Start with none.

        Args:
            variables: Makes readers of the worker.
            listener: Receives output and progress of calls.
            displays: Receives what calls display and ask.
            limits: What the sandbox may use up.
            level: Its confinement level.
            workspace: The folder that its worker may change.
            interrupt_s: How long a call may take to end after it was interrupted.
            kill_s: How long ending what it has started may take.
        """
        self._variables = variables
        self._listener = listener
        self._displays = displays
        self._limits = limits
        self._level = level
        self._workspace = workspace
        self._interrupt_s = interrupt_s
        self._kill_s = kill_s
        self.unreadable: tuple[str, ...] = ()
        self._present: Reader | None = None
        self._readers: set[Reader] = set()
        self._making = asyncio.Lock()
        # Counts the moments at which the worker's variables may have changed.
        self._changes = 0

    def __repr__(self) -> str:
        return f"<Readers: {len(self._readers)}, {'one' if self._present else 'none'} up to date>"

    # ---- which there are

    def outdate(self) -> None:
        """Use no reader of before for further calls: the worker's variables may have changed."""
        self._changes += 1
        reader, self._present = self._present, None
        if reader is not None:
            self._end_if_unused(reader)

    def end_all(self, reason: str) -> None:
        """End every reader, and fail its calls."""
        self.outdate()
        for reader in tuple(self._readers):
            reader.end(reason)

    def free(self, exceeded: LimitExceeded) -> bool:
        """End readers because the sandbox uses too much. Return whether there was any to end.

        They go first: a reader that is idle costs nothing to end, and one that is busy is the likely cause.
        """
        readers = [reader for reader in self._readers if reader.calls or exceeded.limit == "memory_bytes"]
        for reader in readers:
            for call in reader.calls:
                call.note_limit(exceeded)
            reader.end(str(exceeded))
        return bool(readers)

    def _forget(self, reader: Reader) -> None:
        self._retire(reader)
        self._readers.discard(reader)

    def _forget_processes(self, reader: Reader) -> None:
        # Not before: a process that was killed is there until its memory is freed, and would be taken for
        # something that a call has left running.
        self._variables.reader_pids.discard(reader.pid)
        self._variables.keeper_pids.discard(reader.processes.keeper)

    def _end_if_unused(self, reader: Reader) -> None:
        if reader is not self._present and not reader.calls:
            reader.end("a newer reader has taken its place")

    def _look_after_call(self, reader: Reader) -> None:
        """Find what a call has left behind. What may belong to a call that goes on is ended after that."""
        if not reader.ended.done() and reader.processes.has_others():
            self._retire(reader)
            if not reader.calls:
                reader.end(_LEFTOVERS)
        self._end_if_unused(reader)
        if not reader.ended.done() and not reader.calls:
            reader.stop_soon()

    async def _get(self, connection: WorkerConnection) -> Reader:
        """Return a reader with the present variables, made if there is none."""
        async with self._making:
            while self._present is None:
                await self._wait_for_room()
                changes = self._changes
                reader = await self._make(connection)
                if changes == self._changes:
                    self._present = reader
                else:
                    # Race: a call began or ended beside this one while the fork was made.
                    reader.end("the variables changed while it was made")
            return self._present

    async def _wait_for_room(self) -> None:
        while len(self._readers) >= _MAX_READERS:
            # Each of them has a call to finish, which has a deadline.
            futures = [call.future for reader in self._readers for call in reader.calls]
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # whoever waits for that call takes it off the list

    async def _make(self, connection: WorkerConnection, scratch: str = "") -> Reader:
        if not has_room(_FILES_OF_READER):
            raise SandboxError(HOST_SHORTAGE)
        pipes = ReaderPipes()
        try:
            writable = [self._workspace, *filter(None, [connection.scratch])]
            woken = await self._variables.wake_reader(
                connection,
                pipes.theirs,
                writable=writable,
                unreadable=self.unreadable,
                scratch=scratch,
            )
        except BaseException:
            pipes.close()
            raise
        pipes.close_theirs()
        try:
            reader = Reader(
                woken,
                pipes,
                SilentListener() if scratch else self._listener,
                self._displays,
                on_ended=self._forget,
                on_cleared=self._forget_processes,
                clear=connection.clear,
            )
        except SandboxError:
            woken.socket.close(kill=True)
            await connection.clear(woken.keeper)
            self._variables.keeper_pids.discard(woken.keeper)
            pipes.close()
            raise
        self._readers.add(reader)
        return reader

    # ---- calls

    async def run(
        self, connection: WorkerConnection, request: SandboxCall, on_sent: Callable[[], None] = lambda: None
    ) -> ToolResult:
        """Run a call that only reads. The caller holds a slot.

        Args:
            connection: The worker whose variables it sees.
            request: The call.
            on_sent: Called when the worker has made the reader and has no further part in it.
        """
        if request.is_trial:
            return await self._run_trial(connection, request, on_sent)
        try:
            reader = await self._get(connection)
            on_sent()
            pending = send_call(reader, request, (), self.unreadable)
        except (SandboxError, ChannelError) as error:
            return unreadable_result(request, str(error), shortage=describe_shortage(connection.pid))
        return await self._run_sent(connection, reader, request, pending)

    async def _run_trial(
        self, connection: WorkerConnection, request: SandboxCall, on_sent: Callable[[], None]
    ) -> ToolResult:
        """Run a call in a reader of its own, which has a scratch folder, and remove both."""
        try:
            scratch = TrialScratch(connection.scratch)
        except SandboxError as error:
            return unreadable_result(request, str(error))
        try:
            try:
                async with self._making:
                    await self._wait_for_room()
                    reader = await self._make(connection, scratch.path)
                on_sent()
                pending = send_call(reader, request, (), self.unreadable)
            except (SandboxError, ChannelError) as error:
                return unreadable_result(request, str(error), shortage=describe_shortage(connection.pid))
            # It is never the present one, so it ends with its only call.
            return await self._run_sent(connection, reader, request, pending)
        finally:
            await scratch.remove()

    async def _run_sent(
        self, connection: WorkerConnection, reader: Reader, request: SandboxCall, pending: PendingCall
    ) -> ToolResult:
        """Wait for the end of a call that was sent to a reader."""
        is_stopped = True
        try:
            await asyncio.wait([pending.future], timeout=request.timeout_s)
            is_stopped = not pending.future.done()
            if is_stopped:
                partial = await self._stop(connection, reader, pending, request)
                texts = pending.output.texts()
                result = reader_timeout_result(
                    request.call.name, request.timeout_s, texts, partial=partial, lost=reader.lost
                )
            else:
                result = await self._result(reader, pending, request)
                if "reader_died" in result.metadata:
                    _note_limit(connection, pending, reader.ended_by)
                if True in (result.metadata.get("timed_out"), result.metadata.get("stopped")):
                    self._retire(reader)
                if reader.ended.done() or result.metadata.get("stopped"):
                    await connection.sweep(pending, within_s=self._kill_s)
            return self._explain(connection, reader, result, pending).with_metadata(**{IN_READER: True})
        except asyncio.CancelledError:
            # Shielded, however often the caller is cancelled: the slot must not be free while the code runs.
            stopping = asyncio.ensure_future(self._stop(connection, reader, pending, request))
            while not stopping.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([stopping])
            raise
        finally:
            reader.calls.finish(pending)
            self._look_after_call(reader)
            if reader.ended.done():
                # A call that was stopped has had its time; its caller gets control back.
                within_s = self._kill_s if is_stopped else _CLEARED_S
                await asyncio.wait([reader.cleared], timeout=within_s)

    def _retire(self, reader: Reader) -> None:
        """Give a reader no further calls: one that was stopped may have left anything half done in there."""
        if reader is self._present:
            self._present = None

    async def _result(self, reader: Reader, pending: PendingCall, request: SandboxCall) -> ToolResult:
        try:
            return await pending.result(request.output_caps)
        except WorkerDied as error:
            return reader_died_result(error)
        except ChannelError as error:
            reader.end(f"it sent a malformed result: {error}")
            return reader_died_result(WorkerDied(f"it sent a malformed result: {error}"))

    def _explain(
        self, connection: WorkerConnection, reader: Reader, result: ToolResult, pending: PendingCall
    ) -> ToolResult:
        if pending.exceeded_limit is not None:
            return pending.exceeded_limit.apply_to(result)
        if not result.is_error:
            return result
        limits = connection.limits
        if limits is not None:
            # Race: without open files to spare it ends by itself, perhaps before this look.
            is_there = not reader.ended.done()
            lowered = limits.find_lowered(reader.pid) if is_there else UNKNOWN_LIMITS
            if lowered:
                self._retire(reader)
                return explain_lowered(
                    result, lowered, what="They held for this process; the next call gets another."
                )
            if not lowered.is_known:
                return result
        return explain_failure(result, self._limits, self._level, read_only=True)

    async def _stop(
        self,
        connection: WorkerConnection,
        reader: Reader,
        pending: PendingCall,
        request: SandboxCall,
    ) -> str | None:
        """Stop a call. Return what it returned after it was interrupted; None if it had to be killed."""
        await interrupt_calls(reader, [pending], self._interrupt_s)
        returned = pending.future.done() and not pending.future.cancelled()
        partial = (await self._result(reader, pending, request)).content if returned else None
        self._retire(reader)
        if not returned:
            reader.end(f"{request.call.name} could not be interrupted")
        await connection.sweep(pending, within_s=self._kill_s)
        return partial

    async def interrupt(self) -> None:
        """Interrupt every call in progress; end the readers whose calls do not react."""
        busy = [reader for reader in self._readers if reader.calls]
        await asyncio.gather(
            *(interrupt_calls(reader, list(reader.calls), self._interrupt_s) for reader in busy)
        )
        for reader in busy:
            if any(not call.future.done() for call in reader.calls):
                reader.end("a call could not be interrupted")


def _note_limit(connection: WorkerConnection, pending: PendingCall, signal_number: int) -> None:
    """Note the limit for which the kernel has just killed the reader of a call, as far as that can be known.

    The signal tells where the kernel is recent and the code did not ignore it; otherwise the samples of the
    monitor may. Race: it keeps few, so it is asked before anything is waited for; ending what the call has
    left may take seconds.
    """
    exceeded = None if connection.monitor is None else connection.monitor.post_mortem(signal_number)
    if exceeded is not None:
        pending.note_limit(exceeded)


async def interrupt_calls(reader: Reader, calls: Sequence[PendingCall], within_s: float) -> None:
    """Interrupt `calls`, and wait for them to end."""
    for call in calls:
        reader.cancel_call(call)
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + within_s
    running = {call.future for call in calls}
    for pause_s in (*INTERRUPT_REPEATS_S, math.inf):
        _, running = await asyncio.wait(running, timeout=min(pause_s, ends_s - loop.time()))
        if not running or loop.time() >= ends_s:
            return
        reader.repeat_interrupt()
