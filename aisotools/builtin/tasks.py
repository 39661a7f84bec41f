"""Commands that run on in the background: what they print, what they are told, how they end.

They live in the worker's own process tree: when the worker ends, so do they.

The tools for commands in the background: `task_list`, `task_output`, `task_input`, `task_stop`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable
from typing import IO, Annotated

from pydantic import Field

from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.truncation import CAP, HeadTailBuffer
from aisotools.core.types import Effect, Json, ToolResult
from aisotools.sandbox.worker.worker import register_announcer
from aisotools.tools.function import tool

MOST_RUNNING = 16
"""How many tasks run at once."""

SPILL_BYTES = 64 << 20
"""How much of a task's output lies in its file; behind that only the end is kept."""

_BUFFER_BYTES = 1 << 20
_REMEMBERED = 64
_numbers = itertools.count(1)
_tasks: dict[str, Task] = {}


class Task(asyncio.SubprocessProtocol):
    """One command in the background. Both of its streams are one, in the order in which they came.

    Attributes:
        id: What it is called.
        command: The command line.
        agent_id: Who started it, and may see and stop it.
        announced: Whether its end was told.
    """

    def __init__(self, command: str, agent_id: str) -> None:
        """Prepare it; `run` begins.

        Raises:
            ToolError: If too many run already.
        """
        if sum(task.runs for task in _tasks.values()) >= MOST_RUNNING:
            raise ToolError(f"{MOST_RUNNING} tasks run already. Stop one with task_stop, or wait for one.")
        self.id = f"t{next(_numbers)}"
        self.command, self.agent_id = command, agent_id
        self.announced = False
        self._began_s = time.monotonic()
        self._took_s = 0.0
        self._buffer = HeadTailBuffer.halves(_BUFFER_BYTES)
        self._spill: IO[bytes] = tempfile.TemporaryFile(prefix="task-")  # noqa: SIM115 - read back later
        self._spilled = 0
        self._transport: asyncio.SubprocessTransport | None = None
        self._exited = self._drained = False
        self._stopped = False
        self._owner = os.getpid()
        self._news = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Task {self.id} {self.state}: {self.command[:60]!r}>"

    def run(self, transport: asyncio.SubprocessTransport) -> None:
        """Be the task of this process."""
        self._transport = transport
        _tasks[self.id] = self
        over = [one for one in _tasks.values() if not one.runs]
        for old in over[: max(0, len(_tasks) - _REMEMBERED)]:
            old.forget()

    # ---- what asyncio tells

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002 - named by asyncio
        """Keep what came: all of it in the file while there is room, the end in memory."""
        self._buffer.append(data)
        if self._spilled < SPILL_BYTES:
            self._spilled += self._spill.write(data[: SPILL_BYTES - self._spilled])
        self._news.set()

    def process_exited(self) -> None:
        """Its command has ended."""
        self._exited, self._took_s = True, time.monotonic() - self._began_s
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - named by asyncio
        """Nothing more will come."""
        self._drained = True
        self._news.set()

    # ---- what it is

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._transport.get_pid() if self._transport is not None else 0

    @property
    def runs(self) -> bool:
        """Whether it is under way; in a copy of the worker it was made in it never is."""
        return not self._exited and self._owner == os.getpid()

    @property
    def exit_code(self) -> int | None:
        """As a shell tells it; None while it runs, or when it is not known."""
        code = self._transport.get_returncode() if self._transport is not None and self._exited else None
        return None if code is None else code if code >= 0 else 128 - code

    @property
    def state(self) -> str:
        """In a word or two."""
        if self.runs:
            return "running"
        if not self._exited:
            return "lost with an earlier worker"
        return "stopped" if self._stopped else f"ended with exit code {self.exit_code}"

    @property
    def total_bytes(self) -> int:
        """How much it has printed."""
        return self._buffer.total_bytes

    def told(self) -> dict[str, Json]:
        """What there is to know about it."""
        took_s = time.monotonic() - self._began_s if self.runs else self._took_s
        return {
            "task": self.id,
            "command": self.command,
            "pid": self.pid,
            "running": self.runs,
            "state": self.state,
            "exitCode": self.exit_code,
            "bytes": self._buffer.total_bytes,
            "lines": self._buffer.total_lines,
            "seconds": round(took_s, 3),
        }

    # ---- what may be done

    def read(self, offset: int, most_bytes: int) -> tuple[int, bytes]:
        """Output from `offset` on, and where it really begins: what is lost is skipped."""
        if offset < self._spilled:
            self._spill.seek(offset)
            data = self._spill.read(min(most_bytes, self._spilled - offset))
            self._spill.seek(0, os.SEEK_END)
            return offset, data
        start = max(offset, self._buffer.tail_start)
        tail = self._buffer.tail()
        return start, tail[start - self._buffer.tail_start :][:most_bytes]

    async def wait(self, timeout_s: float, enough: Callable[[], bool]) -> bool:
        """Wait until it has ended or `enough` says so; whether that came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.runs and not enough():
                    self._news.clear()
                    await self._news.wait()
                if not self._drained and not self.runs:
                    await asyncio.sleep(0.02)  # what its pipes still hold comes at once, or never
        except TimeoutError:
            return False
        return True

    def write(self, text: str, *, end: bool) -> None:
        """Give it something to read, and with `end` nothing more ever after.

        Raises:
            ToolError: If it has ended, or reads no more.
        """
        pipe = self._transport.get_pipe_transport(0) if self._transport is not None and self.runs else None
        if not isinstance(pipe, asyncio.WriteTransport) or pipe.is_closing():
            raise ToolError(f"Task {self.id} takes no input: it is {self.state}, or its input was ended.")
        if pipe.get_write_buffer_size() + len(text) > _BUFFER_BYTES:
            raise ToolError(f"Task {self.id} does not read its input: {_BUFFER_BYTES:,} bytes wait already.")
        pipe.write(text.encode("utf-8", "replace"))
        if end:
            pipe.write_eof()

    async def stop(self, grace_s: float) -> None:
        """End it and all of its process group: SIGTERM, then SIGKILL after a grace period."""
        if not self.runs:
            return
        self._stopped = True
        _signal(self.pid, signal.SIGTERM)
        if not await self.wait(grace_s, lambda: False):
            _signal(self.pid, signal.SIGKILL)
            await self.wait(1.0, lambda: False)
        else:
            _signal(self.pid, signal.SIGKILL)  # whoever in its group has outlived it

    def forget(self) -> None:
        """Let go of what it printed."""
        self._spill.close()
        _tasks.pop(self.id, None)


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return  # nobody of that group is left


def tasks_of(agent_id: str) -> list[Task]:
    """The tasks that an agent, or the person and the programs at the session, may see."""
    return [task for task in _tasks.values() if task.agent_id == agent_id]


def task_named(name: str, agent_id: str) -> Task:
    """One of them.

    Raises:
        ToolError: Naming those there are.
    """
    known = tasks_of(agent_id)
    for task in known:
        if task.id == name:
            return task
    listed = ", ".join(task.id for task in known) or "none"
    raise ToolError(f"There is no task {name!r}. Tasks: {listed}. Those of an ended worker are gone.")


def announcement(agent_id: str) -> str:
    """What has ended since the last announcement, in words; empty for nothing."""
    ended = [task for task in tasks_of(agent_id) if not task.runs and not task.announced]
    for task in ended:
        task.announced = True
    return "\n".join(f"[task {task.id} {task.state}: {task.command[:80]!r}]" for task in ended)


register_announcer(announcement)


def matching_lines(text: str, pattern: str) -> list[str]:
    """The lines in which a regular expression is found.

    Raises:
        ToolError: If it is none.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ToolError(f"The pattern {pattern[:200]!r} is not a regular expression: {error}.") from None
    return [line for line in text.split("\n") if compiled.search(line)]


_MOST_BYTES = 1 << 20
_GRACE_S = 2.0
_LONGEST_WAIT_MS = 600_000

_Task = Annotated[
    str,
    Field(
        description="Which task, such as 't1'; sandbox_bash has told its name.", pattern="^(t[0-9]{1,9}|all)$"
    ),
]


def _wait_s(arguments: object) -> float:
    wait = arguments.get("wait") if isinstance(arguments, dict) else None
    return (wait if isinstance(wait, int) else 0) / 1000 + 10.0


@tool(
    name="task_list",
    effect=Effect.READ_ONLY,
    examples=[({}, "What is running in the background?")],
    import_path="aisotools.builtin.tasks:task_list",
    concurrency="overlap",
)
async def task_list(context: ToolContext) -> ToolResult:
    """List the tasks that were started with sandbox_bash, background=true: state, exit code, output so far.

    Tasks live in the sandbox's worker: when that is restarted or ended, they are gone.
    """
    tasks = tasks_of(context.agent_id)
    rows = [task.told() for task in tasks]
    lines = [f"{t.id}: {t.state}, {t.total_bytes:,} bytes printed: {t.command[:200]}" for t in tasks]
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
    timeout_s=_wait_s,
)
async def task_output(
    task: Annotated[
        str, Field(description="Which task, such as 't1'; sandbox_bash has told its name.", max_length=20)
    ],
    offset: Annotated[
        int,
        Field(
            description="Where to begin, in bytes of its whole output; the result tells where to go on.",
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
            le=_LONGEST_WAIT_MS,
        ),
    ] = 0,
    *,
    context: ToolContext,
) -> ToolResult:
    """Read what a background task has printed, and whether it still runs.

    Standard output and error come as one text. Give the offset that the last result told to read only what is
    new. The first 64 MiB and the end are kept; what lies between is skipped, and that is said.
    """
    one = task_named(task, context.agent_id)
    if pattern is not None:
        matching_lines("", pattern)  # what is no pattern is told before any waiting
    if wait:
        await one.wait(wait / 1000, lambda: pattern is not None and bool(_matches(one, offset, pattern)))
    if tail is not None:
        offset = max(0, one.total_bytes - _MOST_BYTES)
    start, data = one.read(offset, _MOST_BYTES)
    text = data.decode("utf-8", "replace")
    if pattern is not None:
        text = "\n".join(matching_lines(text, pattern))
    if tail is not None:
        text = "\n".join(text.removesuffix("\n").split("\n")[-tail:])
    following = start + len(data)
    notes = [f"[task {one.id}: {one.state}; read on with offset {following}]"]
    if start > offset:
        notes.insert(0, f"[{start - offset:,} bytes before this were not kept]")
    if following < one.total_bytes:
        notes.append(f"[{one.total_bytes - following:,} more bytes are there]")
    value: dict[str, Json] = {**one.told(), "output": text, "offset": start, "next_offset": following}
    if not one.runs:
        one.announced = True
    content = "\n".join(filter(None, [text.removesuffix("\n"), *notes]))
    return ToolResult.json(value, content).with_metadata(**{CAP: "shell"})


def _matches(task: Task, offset: int, pattern: str) -> list[str]:
    start = max(offset, task.total_bytes - _MOST_BYTES)
    return matching_lines(task.read(start, _MOST_BYTES)[1].decode("utf-8", "replace"), pattern)


@tool(
    name="task_input",
    effect=Effect.LOCAL_MUTATION,
    examples=[({"task": "t1", "text": "yes\n"}, "Answer yes to the installer.")],
    import_path="aisotools.builtin.tasks:task_input",
    concurrency="overlap",
)
async def task_input(
    task: Annotated[
        str, Field(description="Which task, such as 't1'; sandbox_bash has told its name.", max_length=20)
    ],
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
    one = task_named(task, context.agent_id)
    one.write(text, end=end)
    await asyncio.sleep(0)
    return ToolResult.json(one.told(), f"Task {one.id} got {len(text):,} characters.")


@tool(
    name="task_stop",
    effect=Effect.LOCAL_MUTATION,
    examples=[({"task": "t1"}, "Stop the server."), ({"task": "all"}, "Stop everything in the background.")],
    import_path="aisotools.builtin.tasks:task_stop",
    concurrency="overlap",
)
async def task_stop(
    task: _Task,
    *,
    context: ToolContext,
) -> ToolResult:
    """Stop a background task and everything in its process group: asked to end, killed after two seconds.

    'all' stops every task of yours.
    """
    chosen = tasks_of(context.agent_id) if task == "all" else [task_named(task, context.agent_id)]
    running = [one for one in chosen if one.runs]
    await asyncio.gather(*(one.stop(_GRACE_S) for one in running))
    for one in chosen:
        one.announced = True
    told = [
        f"Task {one.id} {'was stopped' if one in running else f'had {one.state} already'}." for one in chosen
    ]
    return ToolResult.json({"tasks": [one.told() for one in chosen]}, "\n".join(told) or "No task runs.")
