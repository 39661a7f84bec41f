"""Commands in the background, and the tools `task_list`, `task_output`, `task_input` and `task_stop`.

Tasks live in the worker's process tree and end with the worker.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import tempfile
import time
from collections.abc import Callable
from typing import IO, Annotated, Protocol

from pydantic import Field

from aisotools.builtin.programs import KeptProgram
from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.truncation import CAP, HeadTailBuffer
from aisotools.core.types import Effect, Json, ToolResult
from aisotools.sandbox.process.tree import unreaped
from aisotools.sandbox.worker.worker import register_announcer
from aisotools.tools.adapter import register_builtin
from aisotools.tools.function import tool

MAX_RUNNING = 16
"""Tasks that run at once."""

SPILL_BYTES = 64 << 20
"""Output of a task that is stored in a file. Of what follows only the end is stored, in memory."""

_BUFFER_BYTES = 1 << 20
_MAX_READ_BYTES = 1 << 20
_MAX_REMEMBERED = 64
"""Tasks whose output is stored; the oldest that ended are dropped."""
_MAX_WAIT_MS = 600_000
_DEADLINE_MARGIN_S = 10.0
_STOP_GRACE_S = 2.0
"""Time between SIGTERM and SIGKILL."""
_KILL_WAIT_S = 1.0
_DRAIN_S = 0.02
"""Wait for output that the pipes still hold after a task ended; it comes at once, or never."""


class StopProgram(Protocol):
    """Has the host signal what runs below a keeper, which the worker itself could not list."""

    def __call__(self, pid: int, /, *, kill: bool) -> None:
        """Send SIGKILL, or else SIGTERM, to all below the keeper `pid`."""


_numbers = itertools.count(1)
_tasks: dict[str, Task] = {}
"""All tasks of this worker, in the order in which they were started."""


# ---- tasks


class Task(asyncio.SubprocessProtocol):
    """A command in the background. Its two streams are stored as one, in the order of arrival.

    Attributes:
        id: Name for the model, such as `t1`.
        command: The command line.
        agent_id: The agent that started it, and may see and stop it.
        announced: True once the agent has been informed of its end.
    """

    def __init__(self, command: str, agent_id: str) -> None:
        """Prepare a task; `attach` gives it its process.

        Raises:
            ToolError: If `MAX_RUNNING` tasks run already.
        """
        if sum(task.running for task in _tasks.values()) >= MAX_RUNNING:
            raise ToolError(f"{MAX_RUNNING} tasks run already. Stop one with task_stop, or wait for one.")
        self.id = f"t{next(_numbers)}"
        self.command = command
        self.agent_id = agent_id
        self.announced = False
        self._started_s = time.monotonic()
        self._elapsed_s = 0.0
        self._buffer = HeadTailBuffer.halves(_BUFFER_BYTES)
        self._spill: IO[bytes] = tempfile.TemporaryFile(prefix="task-")  # noqa: SIM115 - read back later
        self._spilled = 0
        self._transport: asyncio.SubprocessTransport | None = None
        self._exited = False
        self._is_status_lost = False
        self._drained = False
        self._stopped = False
        # A worker may be replaced by a fork of itself (undo, crash recovery). The fork has a copy of this
        # object, but the process is the child of the worker that started it.
        self._owner_pid = os.getpid()
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Task {self.id} {self.state}: {self.command[:60]!r}>"

    def attach(self, transport: asyncio.SubprocessTransport) -> None:
        """Register the task with its process; drop the oldest tasks that ended."""
        self._transport = transport
        _tasks[self.id] = self
        ended = [task for task in _tasks.values() if not task.running]
        for task in ended[: max(0, len(_tasks) - _MAX_REMEMBERED)]:
            task.forget()

    # -- called by asyncio

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002 - named by asyncio
        """Store output: in the file while there is room, its end in memory too."""
        if self._spill.closed:
            return  # forgotten, and something that it has started still prints
        self._buffer.append(data)
        if self._spilled < SPILL_BYTES:
            self._spilled += self._spill.write(data[: SPILL_BYTES - self._spilled])
        self._changed.set()

    def process_exited(self) -> None:
        """Note that the process ended; output may still follow."""
        self._changed.set()
        if self._owner_pid != os.getpid():
            # Race: the fork goes on before it has noticed that the child is not its own, which it takes for
            # an end. When and how the process ended is not known here.
            return
        self._exited = True
        # Its keeper was killed, or somebody else has taken it; then the one of the transport is made up.
        is_unknown = self._transport is not None and self._transport.get_returncode() is None
        self._is_status_lost = is_unknown or self.pid in unreaped
        self._elapsed_s = time.monotonic() - self._started_s

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - named by asyncio
        """Note the end of the output."""
        self._drained = True
        self._changed.set()

    # -- state

    @property
    def pid(self) -> int:
        """Process id, or 0 before it was started."""
        return self._transport.get_pid() if self._transport is not None else 0

    @property
    def running(self) -> bool:
        """True while the process runs. Always False in a fork of the worker that started it."""
        return not self._exited and self._owner_pid == os.getpid()

    @property
    def exit_code(self) -> int | None:
        """Exit code as a shell reports it; None while the process runs, or if it is not known."""
        status = self._transport.get_returncode() if self._transport is not None and self._exited else None
        if status is None or self._is_status_lost:
            return None
        return status if status >= 0 else 128 - status

    @property
    def state(self) -> str:
        """State for messages, such as `running` or `ended with exit code 0`."""
        if self.running:
            return "running"
        if not self._exited:
            return "lost with an earlier worker"
        if self._is_status_lost and not self._stopped:
            return "ended, and its exit code is not known: code in this sandbox has taken it"
        return "stopped" if self._stopped else f"ended with exit code {self.exit_code}"

    @property
    def total_bytes(self) -> int:
        """Bytes printed so far, including those no longer stored."""
        return self._buffer.total_bytes

    def as_json(self) -> dict[str, Json]:
        """Return the state for programs."""
        elapsed_s = time.monotonic() - self._started_s if self.running else self._elapsed_s
        return {
            "task": self.id,
            "command": self.command,
            "pid": self.pid,
            "running": self.running,
            "state": self.state,
            "exitCode": self.exit_code,
            "bytes": self._buffer.total_bytes,
            "lines": self._buffer.total_lines,
            "seconds": round(elapsed_s, 3),
        }

    # -- operations

    def read(self, offset: int, max_bytes: int) -> tuple[int, bytes]:
        """Return output from `offset` on, with the offset where it begins: later if output was dropped."""
        if offset < self._spilled:
            self._spill.seek(offset)
            data = self._spill.read(min(max_bytes, self._spilled - offset))
            self._spill.seek(0, os.SEEK_END)
            return offset, data
        start = max(offset, self._buffer.tail_start)
        tail = self._buffer.tail()
        return start, tail[start - self._buffer.tail_start :][:max_bytes]

    async def wait(self, timeout_s: float, enough: Callable[[], bool]) -> bool:
        """Wait until the process ends or `enough` returns True. Return False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.running and not enough():
                    self._changed.clear()
                    await self._changed.wait()
                if not self._drained and not self.running:
                    # A process that the command left behind may hold the pipes open: do not wait for the end.
                    await asyncio.sleep(_DRAIN_S)
        except TimeoutError:
            return False
        return True

    def write(self, text: str, *, end: bool) -> None:
        """Write to the standard input, and close it if `end`.

        Raises:
            ToolError: If the process ended, its input was closed, or it does not read.
        """
        pipe = self._transport.get_pipe_transport(0) if self._transport is not None and self.running else None
        if not isinstance(pipe, asyncio.WriteTransport) or pipe.is_closing():
            reason = f"it is {self.state}, or its input was closed"
            raise ToolError(f"Task {self.id} takes no input: {reason}. Start a new task.")
        if pipe.get_write_buffer_size() + len(text) > _BUFFER_BYTES:
            waiting = f"{_BUFFER_BYTES:,} bytes are waiting"
            raise ToolError(f"Task {self.id} does not read its input: {waiting}. Read its output or stop it.")
        pipe.write(text.encode("utf-8", "replace"))
        if end:
            pipe.write_eof()

    @property
    def has_left_something(self) -> bool:
        """True while anything runs that the task has started, the command itself included."""
        if not isinstance(self._transport, KeptProgram) or self._owner_pid != os.getpid():
            return self.running
        return not self._transport.emptied.done()

    async def stop(self, grace_s: float, stop_program: StopProgram) -> None:
        """Stop all that the task has started: ask it to end, and kill the rest.

        The rest is killed when the command has ended, or after `grace_s`.

        Args:
            grace_s: How long the command may take to end.
            stop_program: Has the host signal what runs below the keeper.
        """
        program = self._transport
        if not self.has_left_something or not isinstance(program, KeptProgram):
            return
        if self.running:
            self._stopped = True
            stop_program(program.keeper_pid, kill=False)
            await self.wait(grace_s, lambda: False)
        else:
            stop_program(program.keeper_pid, kill=False)
            await asyncio.wait([program.emptied], timeout=grace_s)
        # In any case: others may have outlived the command.
        stop_program(program.keeper_pid, kill=True)
        await asyncio.wait([program.emptied], timeout=_KILL_WAIT_S)
        await self.wait(_KILL_WAIT_S, lambda: False)

    def forget(self) -> None:
        """Drop the task and its output."""
        self._spill.close()
        _tasks.pop(self.id, None)


def tasks_of(agent_id: str) -> list[Task]:
    """Return the tasks of one agent; of the person and the programs at the session for an empty id."""
    return [task for task in _tasks.values() if task.agent_id == agent_id]


def find_task(name: str, agent_id: str) -> Task:
    """Return the task of an agent by its name.

    Raises:
        ToolError: If there is none; the message lists those there are.
    """
    known = tasks_of(agent_id)
    for task in known:
        if task.id == name:
            return task
    listed = ", ".join(task.id for task in known) or "none"
    raise ToolError(f"There is no task {name!r}. Tasks: {listed}. Those of an ended worker are gone.")


def announce_ended(agent_id: str) -> str:
    """Return one line for each task that ended since the last call, or an empty string."""
    ended = [task for task in tasks_of(agent_id) if not task.running and not task.announced]
    for task in ended:
        task.announced = True
    return "\n".join(f"[task {task.id} {task.state}: {task.command[:80]!r}]" for task in ended)


register_announcer(announce_ended)


def matching_lines(text: str, pattern: str) -> list[str]:
    """Return the lines in which a regular expression is found.

    Raises:
        ToolError: If `pattern` is not a regular expression.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ToolError(
            f"The pattern {pattern[:200]!r} is not a regular expression: {error}. "
            "Correct it, or escape what is meant literally, such as \\(."
        ) from None
    return [line for line in text.split("\n") if compiled.search(line)]


# ---- the tools

_TASK_DESCRIPTION = "Which task, such as 't1'; the result of sandbox_bash has its name."
_TaskName = Annotated[str, Field(description=_TASK_DESCRIPTION, max_length=20)]
_TaskNameOrAll = Annotated[str, Field(description=_TASK_DESCRIPTION, pattern="^(t[0-9]{1,9}|all)$")]


def _deadline_s(arguments: object) -> float:
    wait_ms = arguments.get("wait") if isinstance(arguments, dict) else None
    return (wait_ms if isinstance(wait_ms, int) else 0) / 1000 + _DEADLINE_MARGIN_S


@tool(
    name="task_list",
    effect=Effect.READ_ONLY,
    examples=[({}, "What is running in the background?")],
    import_path="aisotools.builtin.tasks:task_list",
    concurrency="overlap",
    programs="none",
)
async def task_list(context: ToolContext) -> ToolResult:
    """List the tasks that were started with sandbox_bash, background=true: state, exit code, output so far.

    Tasks live in the sandbox's worker: when that is restarted or ended, they are gone.
    """
    tasks = tasks_of(context.agent_id)
    rows = [task.as_json() for task in tasks]
    lines = [
        f"{task.id}: {task.state}, {task.total_bytes:,} bytes printed: {task.command[:200]}" for task in tasks
    ]
    return ToolResult.json({"tasks": rows}, "\n".join(lines) or "No task was started.")


@tool(
    name="task_output",
    effect=Effect.READ_ONLY,
    examples=[
        ({"task": "t1", "tail": 20}, "Show the last lines of the server's log."),
        ({"task": "t1", "pattern": "listening", "wait": 10000}, "Wait until the server listens."),
        ({"task": "t2", "wait": 60000}, "Wait for the build to finish."),
    ],
    import_path="aisotools.builtin.tasks:task_output",
    concurrency="overlap",
    programs="none",
    timeout_s=_deadline_s,
)
async def task_output(
    task: _TaskName,
    offset: Annotated[
        int,
        Field(
            description="Where to begin, in bytes of its whole output; the result says where to go on.",
            ge=0,
        ),
    ] = 0,
    tail: Annotated[
        int | None,
        Field(description="Give only the last so many lines, whatever the offset.", ge=1, le=10_000),
    ] = None,
    pattern: Annotated[
        str | None,
        Field(
            description="Give only lines in which this regular expression is found; with wait, wait for one.",
            min_length=1,
            max_length=1_000,
        ),
    ] = None,
    wait: Annotated[
        int,
        Field(
            description="Milliseconds to wait for the task to end, or for a line that matches.",
            ge=0,
            le=_MAX_WAIT_MS,
        ),
    ] = 0,
    *,
    context: ToolContext,
) -> ToolResult:
    """Read what a background task has printed, and whether it still runs.

    Standard output and error come as one text. Give the next_offset of the last result to read only what is
    new. The first 64 MiB and the end are kept; what lies between is skipped, and the result says so.
    """
    found = find_task(task, context.agent_id)
    if pattern is not None:
        matching_lines("", pattern)  # report a malformed pattern before waiting
    if wait:
        await found.wait(wait / 1000, lambda: pattern is not None and _has_match(found, offset, pattern))
    if tail is not None:
        offset = max(0, found.total_bytes - _MAX_READ_BYTES)
    start, data = found.read(offset, _MAX_READ_BYTES)
    text = data.decode("utf-8", "replace")
    if pattern is not None:
        text = "\n".join(matching_lines(text, pattern))
    if tail is not None:
        text = "\n".join(text.removesuffix("\n").split("\n")[-tail:])
    next_offset = start + len(data)
    notes = [f"[task {found.id}: {found.state}; read on with offset {next_offset}]"]
    if start > offset:
        notes.insert(0, f"[{start - offset:,} bytes before this were not kept]")
    if next_offset < found.total_bytes:
        notes.append(f"[{found.total_bytes - next_offset:,} more bytes are there]")
    value: dict[str, Json] = {**found.as_json(), "output": text, "offset": start, "next_offset": next_offset}
    if not found.running:
        found.announced = True
    content = "\n".join(filter(None, [text.removesuffix("\n"), *notes]))
    return ToolResult.json(value, content).with_metadata(**{CAP: "shell"})


def _has_match(task: Task, offset: int, pattern: str) -> bool:
    start = max(offset, task.total_bytes - _MAX_READ_BYTES)
    text = task.read(start, _MAX_READ_BYTES)[1].decode("utf-8", "replace")
    return bool(matching_lines(text, pattern))


@tool(
    name="task_input",
    effect=Effect.LOCAL_MUTATION,
    examples=[({"task": "t1", "text": "yes\n"}, "Answer yes to the installer.")],
    import_path="aisotools.builtin.tasks:task_input",
    concurrency="overlap",
    programs="none",
)
async def task_input(
    task: _TaskName,
    text: Annotated[
        str,
        Field(
            description="What its standard input gets; most programs want a line feed at the end.",
            max_length=100_000,
        ),
    ] = "",
    end: Annotated[bool, Field(description="Whether its input ends with that (as Ctrl-D does).")] = False,
    *,
    context: ToolContext,
) -> ToolResult:
    """Write to the standard input of a background task, as if it were typed: an answer to a question, say.

    The task was started with sandbox_bash, background=true; what it prints is read with task_output.
    """
    found = find_task(task, context.agent_id)
    found.write(text, end=end)
    await asyncio.sleep(0)
    return ToolResult.json(found.as_json(), f"Task {found.id} got {len(text):,} characters.")


@tool(
    name="task_stop",
    effect=Effect.LOCAL_MUTATION,
    examples=[({"task": "t1"}, "Stop the server."), ({"task": "all"}, "Stop everything in the background.")],
    import_path="aisotools.builtin.tasks:task_stop",
    concurrency="overlap",
    programs="none",
)
async def task_stop(
    task: _TaskNameOrAll,
    *,
    context: ToolContext,
) -> ToolResult:
    """Stop a background task and everything that it has started: asked to end, killed after two seconds.

    'all' stops every task of yours. What a task that has ended left running is stopped as well.
    """
    chosen = tasks_of(context.agent_id) if task == "all" else [find_task(task, context.agent_id)]
    running = [one for one in chosen if one.running]
    leaving = [one for one in chosen if one.has_left_something]
    stop_program: StopProgram = context.metadata["stop_program"]
    await asyncio.gather(*(one.stop(_STOP_GRACE_S, stop_program) for one in leaving))
    lines: list[str] = []
    for one in chosen:
        one.announced = True
        outcome = "was stopped" if one in running else f"had {one.state} already"
        if one in leaving and one not in running:
            outcome += "; what it had left running was stopped"
        if one.has_left_something:
            outcome += ", but something of it still runs"
        lines.append(f"Task {one.id} {outcome}.")
    return ToolResult.json({"tasks": [one.as_json() for one in chosen]}, "\n".join(lines) or "No task runs.")


# They look at the tasks, which live in the worker, and run nobody's code.
register_builtin(task_list, task_output, keeps_to_reading=True)
