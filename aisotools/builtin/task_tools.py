"""The tools for commands in the background: `task_list`, `task_output`, `task_input`, `task_stop`."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import Field

from aisotools.builtin.tasks import Task, matching_lines, task_named, tasks_of
from aisotools.contracts import ToolContext
from aisotools.events import Effect, Json, ToolResult
from aisotools.function_tool import tool
from aisotools.result_store import CAP

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
    import_path="aisotools.builtin.task_tools:task_list",
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
    import_path="aisotools.builtin.task_tools:task_output",
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
    import_path="aisotools.builtin.task_tools:task_input",
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
    import_path="aisotools.builtin.task_tools:task_stop",
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
