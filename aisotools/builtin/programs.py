"""Starting programs for a call, and reading what they print.

Each is named to the host in the step in which it is started: so the host knows of it before the worker does
anything else, and can tell whose it is (see `sandbox.process.ownership`).

A program of a call that was classified read only is started without the right to change files: a wrong
classification makes it fail, not write. Nor can it read what rules of the policy deny, where the level allows
for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from aisotools.sandbox.confinement import landlock
from aisotools.sandbox.confinement.denied_reads import restrict_reads
from aisotools.sandbox.process.supervisor import unread_bytes
from aisotools.sandbox.worker import keeper

NameProgram = Callable[[int], object]
"""Names a program to the host, by its process id, as one of the call in hand."""

_READ_BYTES = 1 << 16
_REPORT_MS = 200  # for a keeper to report an end; code in the sandbox may have stopped it
_STACK_BYTES = 1 << 20  # of a thread that starts one program
_ENDS_S = 0.2  # for such a thread to end when its call is stopped
_TICK_S = 0.001
# As it was when this was imported: user code may have changed the variable since.
_PYTHON = sys.executable


def spawn(
    command: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    protocol: asyncio.SubprocessProtocol,
    name_program: NameProgram,
    read_only: bool = False,
    reads: Mapping[str, Sequence[str]] | None = None,
) -> ProgramTransport:
    """Start `command` in a session of its own, with nothing to read.

    Args:
        command: Program and arguments.
        cwd: Working directory.
        env: Whole environment.
        protocol: Receives the output and the exit.
        name_program: Names it to the host.
        read_only: Whether it must not be able to change files outside $TMPDIR.
        reads: For one that is read only: the absolute paths that stay `readable`, but for those that are
            `denied`. None leaves reading as it is.

    Raises:
        OSError: If the program cannot be started.
        subprocess.SubprocessError: If it cannot be restricted; then it is not started.
    """

    def start() -> subprocess.Popen[bytes]:
        # Signal: in a session of its own, an interrupt of the worker's process group does not reach it.
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )

    process = _start_restricted(start, env, reads) if read_only else start()
    name_program(process.pid)
    return ProgramTransport(process, protocol)


def _start_restricted(
    start: Callable[[], subprocess.Popen[bytes]],
    env: Mapping[str, str],
    reads: Mapping[str, Sequence[str]] | None,
) -> subprocess.Popen[bytes]:
    """Return what `start` has started, without the right to change files."""
    scratch = [env["TMPDIR"]] if env.get("TMPDIR") else []  # programs such as `tac` use temporary files
    outcome: list[subprocess.Popen[bytes] | BaseException] = []
    has_begun, is_unwanted = threading.Event(), threading.Event()

    # Landlock restricts the calling thread for good, and what it starts. So a thread of its own gives up the
    # rights, starts the program and ends; the worker's other threads keep theirs. Restricting the child
    # between fork and exec (preexec_fn) would rule out vfork, and so copy the page tables of a large worker.

    def restrict_and_start() -> None:
        has_begun.set()
        try:
            try:
                landlock.restrict_read_only(scratch)
                if reads is not None:
                    restrict_reads(reads["readable"], reads["denied"])
            except OSError as error:
                raise subprocess.SubprocessError(str(error)) from error
            # Confinement: only this thread gave up its right to write, and a child inherits the rights of
            # the thread that starts it. The other threads of the worker keep theirs.
            outcome.append(process := start())
            if is_unwanted.is_set():
                _discard(process)
        except BaseException as error:  # raised again in the thread that waits
            outcome.append(error)

    thread = threading.Thread(target=restrict_and_start, name="read-only-spawn")
    size_bytes = threading.stack_size(_STACK_BYTES)  # user code may have chosen one that cannot be had
    try:
        try:
            thread.start()
        except RuntimeError:
            # Python says "can't start new thread" for both. Which of them it was is tried out.
            raise _explain_no_thread() from None
        finally:
            threading.stack_size(size_bytes)
        thread.join()
    except KeyboardInterrupt:
        # Stop: neither the thread nor what it starts may outlive the call, which has no use for it. This
        # takes no longer than such a call may: a thread that is later than that ends what it has started.
        ends_s = time.monotonic() + _ENDS_S
        is_unwanted.set()
        has_begun.wait(_ENDS_S)  # Race: it may have been about to begin, or it may never begin.
        # Not by `join`: Python takes a thread for ended as soon as that was interrupted.
        while thread in threading.enumerate() and time.monotonic() < ends_s:
            time.sleep(_TICK_S)
        if outcome and isinstance(outcome[0], subprocess.Popen):
            _discard(outcome[0])
        raise
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _discard(process: subprocess.Popen[bytes]) -> None:
    """End a program that nobody waits for."""
    process.kill()  # Race: it may have ended; its id is its own until `wait`
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    process.wait()


def _explain_no_thread() -> OSError:
    """Return why a thread could not be started: for lack of memory, or of processes."""
    try:
        mmap.mmap(-1, 2 * _STACK_BYTES).close()
    except (OSError, ValueError):
        return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    return OSError(errno.EAGAIN, f"fork: {os.strerror(errno.EAGAIN)}")


class ProgramTransport(asyncio.SubprocessTransport):
    """The transport of a program that asyncio did not start itself.

    Like asyncio's own, it calls `process_exited`, and `connection_lost` when both pipes are at their end too.
    """

    def __init__(self, process: subprocess.Popen[bytes], protocol: asyncio.SubprocessProtocol) -> None:
        """Watch `process`, whose output goes to pipes, on the running loop.

        Raises:
            ProcessLookupError: It has ended, and its exit status was taken by somebody else.
        """
        super().__init__()
        assert process.stdout is not None
        assert process.stderr is not None
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._protocol = protocol
        self._pipes: dict[int, IO[bytes]] = {1: process.stdout, 2: process.stderr}
        self._closed = False
        self._ended = False
        self._pidfd = -1
        try:
            # Readable when the process ends. Its id cannot be reused before: we have not waited for it yet.
            self._pidfd = os.pidfd_open(process.pid)
            self._loop.add_reader(self._pidfd, self._reap)
        except ProcessLookupError:
            raise
        except OSError:
            # The kernel, or a filter, refuses pidfds: a thread waits, as asyncio has it do then.
            threading.Thread(target=self._wait, daemon=True, name="wait-for-program").start()
        for number, pipe in self._pipes.items():
            os.set_blocking(pipe.fileno(), False)
            self._loop.add_reader(pipe, self._read, number)

    def __repr__(self) -> str:
        return f"<ProgramTransport pid={self._process.pid} returncode={self._process.returncode}>"

    def get_pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def get_returncode(self) -> int | None:
        """Return the exit status, negative for a signal, or None while the process runs."""
        return self._process.returncode

    def close(self) -> None:
        """Stop reading, and kill the process if it still runs."""
        if self._closed:
            return
        self._closed = True
        for number in tuple(self._pipes):
            self._close_pipe(number)
        # `returncode` is None until `Popen` has reaped it: until then the number is this process's own.
        if self._process.returncode is None:
            self._process.kill()

    def is_closing(self) -> bool:
        """Return whether `close` was called."""
        return self._closed

    def _read(self, number: int) -> None:
        try:
            data = os.read(self._pipes[number].fileno(), _READ_BYTES)
        except BlockingIOError:
            return  # spurious wake-up
        except OSError:
            data = b""
        if data:
            self._protocol.pipe_data_received(number, data)
        else:
            self._close_pipe(number)
            self._report_end()

    def _close_pipe(self, number: int) -> None:
        pipe = self._pipes.pop(number)
        self._loop.remove_reader(pipe)
        pipe.close()

    def _wait(self) -> None:
        self._process.wait()
        # Thread: the protocol is called on the loop alone. A loop that is closed has nobody to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._note_end)

    def _reap(self) -> None:
        pidfd, self._pidfd = self._pidfd, -1
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._process.wait()
        self._note_end()

    def _note_end(self) -> None:
        self._ended = True
        self._protocol.process_exited()
        self._report_end()

    def _report_end(self) -> None:
        if self._ended and not self._pipes and not self._closed:
            self._protocol.connection_lost(None)


class KeptProgram(asyncio.SubprocessTransport):
    """The transport of a command that a keeper of its own has started; see `sandbox.worker.keeper`.

    It calls `process_exited` when the command has ended, and `connection_lost` when nothing is left of what
    it has started, and all output was read.

    Attributes:
        keeper_pid: The keeper's process id.
        emptied: Done when nothing is left of what the command has started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        protocol: asyncio.SubprocessProtocol,
        name_program: NameProgram,
    ) -> None:
        """Start the keeper of `command`; see `spawn` for the arguments and errors, and `started`."""
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._pid = 0
        self._status: int | None = None
        self._has_exited = False
        self._lines = b""
        self._pidfd = -1
        self._input: asyncio.WriteTransport | None = None
        self._has_started: asyncio.Future[bool] = self._loop.create_future()
        self.emptied: asyncio.Future[None] = self._loop.create_future()
        self._report, writing = os.pipe()
        # A socket, as its writer notices when nobody can read any more.
        self._stdin, theirs = socket.socketpair()
        try:
            process = subprocess.Popen(
                [_PYTHON, "-I", "-S", keeper.PATH, str(writing), *command[:-1]],
                cwd=cwd,
                env={**env, keeper.LAST_ARGUMENT: command[-1]},
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(writing,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._report)
            self._stdin.close()
            raise
        finally:
            os.close(writing)
            theirs.close()
        name_program(process.pid)
        self.keeper_pid = process.pid
        os.set_blocking(self._report, False)
        self._loop.add_reader(self._report, self._read_report)
        self._keeper = ProgramTransport(process, _KeeperProtocol(self, protocol))

    def __repr__(self) -> str:
        return f"<KeptProgram pid={self._pid} keeper={self.keeper_pid}>"

    async def started(self) -> None:
        """Wait until the command runs.

        Raises:
            OSError: The keeper ended before.
        """
        if not await self._has_started:
            raise OSError(errno.ECHILD, "its keeper ended early")
        self._input, _ = await self._loop.connect_write_pipe(asyncio.BaseProtocol, self._stdin)
        # Race: all of it may have ended meanwhile.
        if self.emptied.done():
            self._input.close()

    def get_pid(self) -> int:
        """Return the command's process id; 0 before it runs."""
        return self._pid

    def get_returncode(self) -> int | None:
        """Return the command's exit status, negative for a signal; None while it runs, or if it is lost."""
        return self._status

    def get_pipe_transport(self, fd: int) -> asyncio.BaseTransport | None:
        """Return the transport of its standard input, 0."""
        return self._input if fd == 0 else None

    def close(self) -> None:
        """Stop reading, and kill the keeper: what it has started belongs to nobody then."""
        self._keeper.close()
        if self._input is not None:
            self._input.close()
        else:
            self._stdin.close()

    def is_closing(self) -> bool:
        """Return whether `close` was called."""
        return self._keeper.is_closing()

    def _read_report(self) -> None:
        try:
            data = os.read(self._report, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            report, self._report = self._report, -1
            self._loop.remove_reader(report)
            os.close(report)
        *lines, self._lines = (self._lines + data).split(b"\n")
        for line in lines:
            if not self._pid:
                self._pid = int(line)
                self._watch_command()
                self._note_started(True)
            elif not self._has_exited:
                self._status = int(line)
                self._note_exit()

    def _watch_command(self) -> None:
        # Where there are no pidfds, or it has just been reaped, the report comes a moment later.
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(self._pid)
            self._loop.add_reader(self._pidfd, self._on_command_end)

    def _on_command_end(self) -> None:
        """Take what the keeper reports about the end of the command, before any further call is answered."""
        self._forget_command()
        # Race: the keeper learns of the end at the same moment as this process, and has to run first. The
        # next result is to say that the task has ended.
        poll = select.poll()
        if self._report >= 0:
            poll.register(self._report, select.POLLIN)
            if poll.poll(_REPORT_MS):
                self._read_report()

    def _forget_command(self) -> None:
        if self._pidfd >= 0:
            pidfd, self._pidfd = self._pidfd, -1
            self._loop.remove_reader(pidfd)
            os.close(pidfd)

    def _note_started(self, has_started: bool) -> None:
        if not self._has_started.done():
            self._has_started.set_result(has_started)

    def _note_exit(self) -> None:
        self._forget_command()
        if not self._has_exited:
            self._has_exited = True
            self._protocol.process_exited()

    def note_empty(self) -> None:
        """Note that the keeper has ended, and so all that the command had started."""
        # Race: what it has written last may not have been read yet.
        while self._report >= 0 and unread_bytes(self._report):
            self._read_report()
        self._note_started(False)
        if not self.emptied.done():
            self.emptied.set_result(None)
        if self._input is not None:
            self._input.close()
        self._note_exit()


class _KeeperProtocol(asyncio.SubprocessProtocol):
    """Passes on what a keeper's transport reports."""

    def __init__(self, program: KeptProgram, protocol: asyncio.SubprocessProtocol) -> None:
        self._program = program
        self._protocol = protocol

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._protocol.pipe_data_received(fd, data)

    def process_exited(self) -> None:
        self._program.note_empty()

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)
