"""The `sandbox_bash` tool: a shell command in the sandbox.

Starting a program that must not change files, without copying this whole process first.

The kernel takes rights from a thread, not from a process. So a thread of its own gives them up and starts the
program, which inherits what is left, and then ends; no Python code runs between fork and exec, which lets
Python use `vfork`.
"""

from __future__ import annotations

import asyncio
import codecs
import dataclasses
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Annotated, Any

from pydantic import Field

from aisotools.builtin import tasks
from aisotools.builtin.file_operations import translate_errors
from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.truncation import CAP, HeadTailBuffer, looks_binary
from aisotools.core.types import Effect, Facts, Json, ToolResult
from aisotools.sandbox.confinement import landlock
from aisotools.sandbox.process.tree import CALL_MARK
from aisotools.tools.function import tool
from aisotools.workspace.workspace import Workspace

_READ_BYTES = 1 << 16


def spawn_reading(
    command: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    protocol: asyncio.SubprocessProtocol,
    stdin: int = subprocess.DEVNULL,
) -> asyncio.SubprocessTransport:
    """Start `command` in a session of its own; its output goes to `protocol`.

    Its standard input is empty: what is fed while it runs belongs to no call that only reads.

    Raises:
        OSError: If it cannot be started.
        subprocess.SubprocessError: If it cannot be kept from changing files; then it is not started.
    """
    if stdin != subprocess.DEVNULL:
        raise subprocess.SubprocessError("a program that only reads takes no input")
    scratch = [env["TMPDIR"]] if env.get("TMPDIR") else []  # programs such as `tac` have temporary files
    outcome: list[subprocess.Popen[bytes] | Exception] = []

    def start() -> None:
        try:
            try:
                landlock.restrict_read_only(scratch)
            except OSError as error:
                raise subprocess.SubprocessError(str(error)) from error
            outcome.append(
                subprocess.Popen(
                    command,
                    cwd=cwd,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,
                )
            )
        except Exception as error:  # told to whoever waits for this thread
            outcome.append(error)

    thread = threading.Thread(target=start, name="starts a program that only reads")
    thread.start()
    thread.join()
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return ReadOnlyProcess(outcome[0], protocol)


class ReadOnlyProcess(asyncio.SubprocessTransport):
    """A program under way, as asyncio's own transport is: output, then its end, are told to the protocol."""

    def __init__(self, process: subprocess.Popen[bytes], protocol: asyncio.SubprocessProtocol) -> None:
        """Watch `process` on the running loop."""
        super().__init__()
        assert process.stdout is not None
        assert process.stderr is not None
        self._loop = asyncio.get_running_loop()
        self._process, self._protocol = process, protocol
        self._pipes: dict[int, IO[bytes]] = {1: process.stdout, 2: process.stderr}
        self._closed = False
        self._ended = os.pidfd_open(process.pid)
        self._loop.add_reader(self._ended, self._reap)
        for number, pipe in self._pipes.items():
            os.set_blocking(pipe.fileno(), False)
            self._loop.add_reader(pipe, self._read, number)

    def __repr__(self) -> str:
        return f"<Reading pid={self._process.pid} {self._process.returncode}>"

    def get_pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def get_returncode(self) -> int | None:
        """How it ended; None as long as it runs."""
        return self._process.returncode

    def close(self) -> None:
        """Read no more; a program that still runs is killed."""
        if self._closed:
            return
        self._closed = True
        for number in tuple(self._pipes):
            self._drop(number)
        if self._process.returncode is None:
            self._process.kill()

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def _read(self, number: int) -> None:
        try:
            data = os.read(self._pipes[number].fileno(), _READ_BYTES)
        except BlockingIOError:
            return  # nothing there just now
        except OSError:
            data = b""
        if data:
            self._protocol.pipe_data_received(number, data)
        else:
            self._drop(number)
            self._finish()

    def _drop(self, number: int) -> None:
        pipe = self._pipes.pop(number)
        self._loop.remove_reader(pipe)
        pipe.close()

    def _reap(self) -> None:
        self._loop.remove_reader(self._ended)
        os.close(self._ended)
        self._ended = -1
        self._process.wait()
        self._protocol.process_exited()
        self._finish()

    def _finish(self) -> None:
        if self._ended < 0 and not self._pipes and not self._closed:
            self._protocol.connection_lost(None)


_DRAIN_S = 0.2
_TIMED_OUT = 124
_STREAMS = ("stdout", "stderr")
_DEFAULT_MS = 30_000


def _deadline_s(arguments: Mapping[str, Any]) -> float:
    timeout = arguments.get("timeout", _DEFAULT_MS)
    # The command is stopped at its timeout from inside; the gate's own deadline is the safety net.
    return (timeout if isinstance(timeout, int | float) else _DEFAULT_MS) / 1000 + 0.5


def _facts(arguments: Mapping[str, Json]) -> Facts:
    from aisotools.policy.shell.classify import shell_facts  # the worker runs commands and judges none

    command, workdir = arguments.get("command"), arguments.get("workdir", ".")
    facts = shell_facts(command, str(workdir)) if isinstance(command, str) else Facts()
    if arguments.get("background") is True and facts.effect is Effect.READ_ONLY:
        # It goes on after the call, and what it is told later is not known now.
        return dataclasses.replace(facts, effect=Effect.LOCAL_MUTATION)
    return facts


def _effect(arguments: Mapping[str, Json]) -> Effect:
    return _facts(arguments).effect


@tool(
    name="sandbox_bash",
    classify=_effect,
    gather_facts=_facts,
    import_path="aisotools.builtin.shell:sandbox_bash",
    concurrency="overlap",
    timeout_s=_deadline_s,
    examples=[
        ({"command": "wc -l *.csv"}, "how many lines do the CSV files have?"),
        ({"command": "git log -3"}, "Run `git log -3`."),
        ({"command": "du -sh ."}, "Run the command du -sh . in the shell."),
    ],
)
async def sandbox_bash(
    command: Annotated[
        str,
        Field(
            description="The command line, run by bash. Pipes, redirections and several lines work.",
            min_length=1,
        ),
    ],
    timeout: Annotated[  # noqa: ASYNC109 - part of the tool's schema
        int,
        Field(
            description="Milliseconds after which the command and all it started is stopped.",
            ge=1,
            le=3_600_000,
        ),
    ] = _DEFAULT_MS,
    workdir: Annotated[
        str,
        Field(
            description="Folder to run in, relative to the workspace; the workspace itself by default.",
            max_length=4096,
        ),
    ] = ".",
    background: Annotated[
        bool,
        Field(
            description="Start the command as a task, without timeout, and return at once; then use "
            "task_output, task_input and task_stop. For servers, watchers and long jobs."
        ),
    ] = False,
    *,
    context: ToolContext,
) -> ToolResult:
    """Run a shell command in the sandbox and return its output and exit code.

    Commands start in the workspace folder (also in $WORKSPACE), which persists from call to call; shell
    variables and `cd` do not. Only the workspace and $TMPDIR can be written, file modes cannot be changed
    afterwards, there is no network and no terminal, and standard input is empty. A non-zero exit code or a
    timeout is an error.
    """
    folder = _folder(context, workdir)
    if background:
        return await _start_task(command, folder, context)
    began_s = time.monotonic()
    capture = _Capture(context.output_caps.stream_bytes)
    process, running = await _start(command, folder, context, capture)
    timed_out = False
    try:
        async with asyncio.timeout(timeout / 1000):
            await running.exited
    except TimeoutError:
        timed_out = True
    finally:
        if process.get_returncode() is None:
            _kill_group(process.get_pid())
        # Something in the background may hold the pipes open: what is there by now is all that is waited for.
        await asyncio.wait([running.drained], timeout=_DRAIN_S)
        process.close()
    code = _TIMED_OUT if timed_out else _exit_code(process.get_returncode())
    took_ms = round((time.monotonic() - began_s) * 1000)
    result = _result(capture, code, took_ms, timeout if timed_out else None)
    if _only_reads(context):
        result = _told_why(result).with_metadata(read_only=True)
    return result.with_metadata(**{CAP: "shell"}, command=command, timed_out=timed_out, streams_taken=True)


async def _start_task(command: str, folder: str, context: ToolContext) -> ToolResult:
    task = tasks.Task(command, context.agent_id)
    task.run(await _spawn(command, folder, context, lambda: task, stdin=asyncio.subprocess.PIPE))
    told = f"Task {task.id} runs in the background (process {task.pid}). Its output is read with task_output."
    return ToolResult.json(task.told(), told)


def _only_reads(context: ToolContext) -> bool:
    """Whether the command must not change files: it was classified so, and the kernel can hold it to that."""
    return context.metadata_get("read_only") is True and landlock.abi() > 0


def _told_why(result: ToolResult) -> ToolResult:
    """The result with a word on why writing failed, if it did; some commands go on and succeed."""
    if "ermission denied" not in result.content:
        return result
    told = "[it was classified read only, so it ran without the right to change files]"
    return dataclasses.replace(result, content=f"{result.content}\n{told}")


def _folder(context: ToolContext, workdir: str) -> str:
    workspace = Workspace(context.workspace_path)
    with translate_errors(workspace, workdir):
        if workspace.stat(workdir).kind != "directory":
            raise ToolError(
                f"workdir {workdir!r} is not a folder. Use a folder of the workspace, or leave it out.",
            )
        return str(context.workspace_path / workspace.relative(workdir))


async def _start(
    command: str, folder: str, context: ToolContext, capture: _Capture
) -> tuple[asyncio.SubprocessTransport, _RunningCommand]:
    running = _RunningCommand(capture)
    return await _spawn(command, folder, context, lambda: running), running


async def _spawn(
    command: str,
    folder: str,
    context: ToolContext,
    protocol: Callable[[], asyncio.SubprocessProtocol],
    *,
    stdin: int = asyncio.subprocess.DEVNULL,
) -> asyncio.SubprocessTransport:
    if "\0" in command:
        raise ToolError(
            "command holds a NUL character, which bash cannot take. Write it as $'\\0' in printf."
        )
    shell = ("/bin/bash", "-c", command)
    env = {**os.environ, CALL_MARK: context.call_id}
    try:
        if _only_reads(context):  # what is believed to read only is held to it, by the kernel
            return spawn_reading(shell, cwd=folder, env=env, stdin=stdin, protocol=protocol())
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            protocol, *shell, stdin=stdin, cwd=folder, env=env, start_new_session=True
        )
        return transport
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise ToolError(
                f"command is too long for bash ({len(command.encode()):,} bytes). Write it to a file with "
                "sandbox_write and run `bash that-file`.",
            ) from None
        raise ToolError(f"The command could not be started: {error}.", recoverable=False) from None
    except subprocess.SubprocessError as error:
        told = f"The command was not started, since it could not be kept from changing files: {error}"
        raise ToolError(told, recoverable=False) from None


class _Capture:
    """Both streams of a command: their beginning, which is heard as it comes, and their end."""

    def __init__(self, cap_bytes: int) -> None:
        self.buffer = HeadTailBuffer.halves(cap_bytes)
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in _STREAMS}

    def take(self, stream: str, data: bytes) -> str:
        """Take in what came; the text of it that is passed on at once."""
        return self._decoders[stream].decode(self.buffer.append(data, stream))


class _RunningCommand(asyncio.SubprocessProtocol):
    """A command under way: its end, and the end of its output, which may come much later."""

    def __init__(self, capture: _Capture) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.drained: asyncio.Future[None] = loop.create_future()
        self._capture = capture

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep what the cap allows; what is over it is read all the same, or the command would block."""
        name, out = ("stdout", sys.stdout) if fd == 1 else ("stderr", sys.stderr)
        out.write(self._capture.take(name, data))
        out.flush()

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - named by asyncio
        if not self.drained.done():
            self.drained.set_result(None)


def _exit_code(status: int | None) -> int:
    """The exit code as a shell tells it: 128 and the signal's number for what a signal ended."""
    if status is None:
        return -1
    return status if status >= 0 else 128 - status


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended by itself just now


def _readable(text: str) -> str:
    """Output as a model reads it: binary data says nothing to it."""
    if looks_binary(text):
        return f"[binary output, {len(text)} characters, left out here; write it to a file or pipe it to xxd]"
    return text.rstrip("\n")


def _result(capture: _Capture, code: int, took_ms: int, timeout_ms: int | None) -> ToolResult:
    """What the command gave; `timeout_ms` is given when it was stopped at its timeout."""
    output = capture.buffer
    stdout, stderr = output.text("stdout"), output.text("stderr")
    pieces = [_readable(stdout), _readable(stderr)]
    if output.dropped_bytes:
        told = (
            f"[of {output.total_bytes} bytes and {output.total_lines} lines of output "
            f"{output.dropped_bytes} bytes"
        )
        pieces.append(f"{told} were dropped; write such output to a file]")
    if timeout_ms is not None:
        pieces.append(f"[timed out after {timeout_ms} ms; the command and all it started was stopped]")
    elif code:
        pieces.append(f"[exit code {code}]")
    failed = code != 0
    return ToolResult(
        content="\n".join(p for p in pieces if p),
        is_error=failed,
        recoverable=failed,
        error_kind="failed" if failed else None,
        kind="error" if failed else "json",
        value={"stdout": stdout, "stderr": stderr, "exitCode": code, "executionTime": took_ms},
    )
