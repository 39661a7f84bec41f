"""Tools that ask the session itself, on the host: `read_result`, `todo`, `ask_user`."""

from __future__ import annotations

import re
import uuid
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from aisotools.contracts import Inquiry, Services, ToolContext
from aisotools.events import Effect, Json, ToolResult
from aisotools.exceptions import ToolError
from aisotools.function_tool import tool

_TODO = "todo"
_LONGEST_S = 86_400.0
_MOST_MATCHES = 500
_MARKS = {"pending": "[ ]", "in_progress": "[>]", "done": "[x]"}


def _services(context: ToolContext) -> Services:
    if context.services is None:
        raise ToolError("This tool needs a session, and there is none.", recoverable=False)
    return context.services


# ---- read_result


@tool(
    name="read_result",
    effect=Effect.READ_ONLY,
    runs_in="host",
    import_path="aisotools.builtin.session_tools:read_result",
    examples=[
        ({"ref": "r1", "tail": 50}, "Show the end of that long output."),
        ({"ref": "r2", "first_line": 180, "last_line": 260}, "Show lines 180 to 260 of it."),
        ({"ref": "r1", "pattern": "(?i)error"}, "Which lines of it mention an error?"),
    ],
)
def read_result(
    *,
    ref: Annotated[
        str, Field(description="What the note in a shortened result tells, such as 'r1'.", max_length=20)
    ],
    first_line: Annotated[int | None, Field(description="First line to read, from 1.", ge=1)] = None,
    last_line: Annotated[int | None, Field(description="Last line to read, included.", ge=1)] = None,
    tail: Annotated[int | None, Field(description="Read the last so many lines instead.", ge=1)] = None,
    pattern: Annotated[
        str | None,
        Field(
            description="Give only the lines in which this regular expression is found, with their numbers.",
            min_length=1,
            max_length=1_000,
        ),
    ] = None,
    offset: Annotated[
        int | None, Field(description="First character to read, from 0; for very long lines.", ge=0)
    ] = None,
    context: ToolContext,
) -> ToolResult:
    """Read a part of a result that was too long to be shown whole: lines, the end, or what matches.

    The note in the shortened result tells its ref and how many lines it has. Texts are kept until the session
    ends, or until many newer ones have come.
    """
    kept = _services(context).stored(ref)
    if kept is None:
        raise ToolError(f"There is no kept result {ref!r}, or none any more. Make the call again.")
    if offset is not None:
        part = kept.text[offset : offset + context.output_caps.content_chars - 200]
        end = offset + len(part)
        note = f"[characters {offset} to {end} of {len(kept.text)} of {ref}]"
        return ToolResult.json({"ref": ref, "text": part, "next_offset": end}, f"{part}\n{note}")
    lines = kept.text.removesuffix("\n").split("\n")
    first = first_line or 1
    last = min(last_line or len(lines), len(lines))
    if tail is not None:
        first, last = max(1, len(lines) - tail + 1), len(lines)
    if first > last:
        raise ToolError(f"{ref} has {len(lines):,} lines; there is nothing from {first:,} to {last:,}.")
    chosen = list(enumerate(lines[first - 1 : last], first))
    note = f"[lines {first} to {last} of {len(lines)} of {ref}]"
    if pattern is not None:
        chosen, note = _matching(chosen, pattern, note)
    rows = [f"{number}: {line}" if pattern is not None else line for number, line in chosen]
    value: dict[str, Json] = {
        "ref": ref,
        "tool": kept.tool,
        "lines": len(lines),
        "first_line": first,
        "last_line": last,
        "text": "\n".join(line for _, line in chosen),
    }
    return ToolResult.json(value, "\n".join([*rows, note]))


def _matching(lines: list[tuple[int, str]], pattern: str, note: str) -> tuple[list[tuple[int, str]], str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ToolError(f"The pattern {pattern[:200]!r} is not a regular expression: {error}.") from None
    found = [(number, line) for number, line in lines if compiled.search(line)]
    more = f"; the first {_MOST_MATCHES} are shown" if len(found) > _MOST_MATCHES else ""
    return found[:_MOST_MATCHES], f"{note[:-1]}: {len(found)} match{more}]"


# ---- todo


class Item(BaseModel):
    """One thing to do."""

    model_config = ConfigDict(extra="forbid")

    task: Annotated[str, Field(description="What is to be done, in one line.", min_length=1, max_length=500)]
    status: Annotated[
        Literal["pending", "in_progress", "done"],
        Field(description="How far it is; one item at most is in progress."),
    ] = "pending"


@tool(
    name="todo",
    effect=Effect.READ_ONLY,
    runs_in="host",
    import_path="aisotools.builtin.session_tools:todo",
    examples=[
        (
            {"items": [{"task": "read the data", "status": "in_progress"}, {"task": "plot it"}]},
            "Plan the steps first.",
        ),
        ({}, "What is still to do?"),
    ],
)
def todo(
    items: Annotated[
        list[Item] | None,
        Field(description="The whole list, in order, instead of the old one; without it the list is read."),
    ] = None,
    *,
    context: ToolContext,
) -> ToolResult:
    """Keep a list of what is to be done in a task of several steps, and show how far it is.

    Give the whole list each time; the result shows what changed. At most one item is in progress: mark it
    done before the next begins. The list is your own and changes nothing else.
    """
    lists: dict[str, list[tuple[str, str]]] = _services(context).memory.setdefault(_TODO, {})
    before = lists.get(context.agent_id, [])
    if items is None:
        after = before
    else:
        after = [(item.task, item.status) for item in items]
        _check(after)
        lists[context.agent_id] = after
    rows = [f"{_MARKS[status]} {task}" for task, status in after]
    changed = [] if items is None else _changes(before, after)
    value: dict[str, Json] = {
        "items": [{"task": task, "status": status} for task, status in after],
        "changes": list(changed),
    }
    done = sum(status == "done" for _, status in after)
    told = [*rows, f"({done} of {len(after)} done)" if after else "The list is empty."]
    return ToolResult.json(value, "\n".join([*told, *(f"changed: {one}" for one in changed)]))


def _check(items: list[tuple[str, str]]) -> None:
    if len(items) > 100:
        raise ToolError(f"The list has {len(items)} items; at most 100 are kept. Put some together.")
    running = [task for task, status in items if status == "in_progress"]
    if len(running) > 1:
        named = ", ".join(repr(task[:60]) for task in running)
        raise ToolError(f"One item at most is in progress, and these are: {named}. The list was not changed.")
    tasks = [task for task, _ in items]
    twice = next((task for task in tasks if tasks.count(task) > 1), None)
    if twice is not None:
        raise ToolError(f"The item {twice[:60]!r} is there twice. The list was not changed.")


def _changes(before: list[tuple[str, str]], after: list[tuple[str, str]]) -> list[str]:
    old, new = dict(before), dict(after)
    changes = [f"- {task}" for task in old if task not in new]
    for task, status in new.items():
        if task not in old:
            changes.append(f"+ {task}" + (f" ({status})" if status != "pending" else ""))
        elif old[task] != status:
            changes.append(f"{task}: {old[task]} -> {status}")
    return changes


# ---- ask_user


@tool(
    name="ask_user",
    effect=Effect.READ_ONLY,
    runs_in="host",
    import_path="aisotools.builtin.session_tools:ask_user",
    timeout_s=_LONGEST_S,
    examples=[
        (
            {"question": "Which file do you mean?", "choices": ["data.csv", "data-2.csv"]},
            "Clean up the data file. (There are two.)",
        ),
        ({"question": "What should the report be called?"}, "Write me a report."),
    ],
)
async def ask_user(
    question: Annotated[
        str, Field(description="What to ask, in one or two plain sentences.", min_length=1, max_length=2_000)
    ],
    choices: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]],
        Field(description="Answers to choose from; without them the person types an answer.", max_length=10),
    ] = [],  # noqa: B006 - never changed
    timeout: Annotated[  # noqa: ASYNC109 - part of the tool's schema
        int, Field(description="Seconds to wait for an answer.", ge=5, le=3_600)
    ] = 300,
    *,
    context: ToolContext,
) -> ToolResult:
    """Ask the person at the screen a question and wait for the answer.

    Use it when something is unclear that only they can decide. Where nobody can be asked, or nobody answers,
    the result says so: then decide yourself, carefully, or stop and tell what you would need to know.
    """
    if len(set(choices)) != len(choices):
        raise ToolError("Two of the choices are the same. Give each one once.")
    inquiry = Inquiry(
        id=uuid.uuid4().hex,
        text=question,
        choices=tuple(choices),
        agent_id=context.agent_id,
        timeout_s=float(timeout),
    )
    context.emit("asked", question=question, choices=list(choices))
    answer = await _services(context).inquire(inquiry)
    if answer is None:
        told = "Nobody answered: there is nobody at the screen, or the question was left open."
        return ToolResult.error(told, recoverable=False, error_kind="denied")
    return ToolResult.json({"answer": answer}, answer)
