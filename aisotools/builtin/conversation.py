"""Tools that run on the host and use the session: `read_result`, `todo`, `ask_user` and `display`."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from aisotools.builtin.file_operations import translate_errors
from aisotools.builtin.files import workspace_of
from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import Services, StoredText, ToolContext, UserQuestion
from aisotools.core.types import Effect, Facts, Json, MimeBundle, ToolResult
from aisotools.core.untrusted import is_marked, mark_untrusted
from aisotools.tools.adapter import register_host_tools
from aisotools.tools.function import tool
from aisotools.tools.patterns import LINEAR_FORM, count_states, matcher, searchable_chars
from aisotools.workspace.paths import as_utf8

_TODO_KEY = "todo"
_MAX_ITEMS = 100
_ASK_DEADLINE_S = 86_400.0
"""A safety net for the gate: the question has a timeout of its own, of an hour at most."""
_MAX_MATCHES = 500
_MAX_SEARCHED_CHARS = 100_000
"""Of a line, that a pattern is searched in."""
_MAX_SEARCH_WORK = 500_000_000
"""Characters times states of the pattern that one call searches: five seconds at most."""
_MARKS = {"pending": "[ ]", "in_progress": "[>]", "done": "[x]"}


def _services(context: ToolContext) -> Services:
    if context.services is None:
        raise ToolError("This tool needs a session; there is none here.", recoverable=False)
    return context.services


# ---- read_result


@tool(
    name="read_result",
    effect=Effect.READ_ONLY,
    runs_in="host",
    import_path="aisotools.builtin.conversation:read_result",
    examples=[
        ({"ref": "r1", "tail": 50}, "Show the end of that long output."),
        ({"ref": "r2", "first_line": 180, "last_line": 260}, "Show lines 180 to 260 of it."),
        ({"ref": "r1", "pattern": "(?i)error"}, "Which lines of it mention an error?"),
    ],
)
def read_result(
    *,
    ref: Annotated[
        str, Field(description="The ref in the note of a shortened result, such as 'r1'.", max_length=20)
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

    The note in the shortened result gives its ref and how many lines it has. Texts are kept until the session
    ends, or until many newer ones have come.
    """
    stored = _services(context).stored(ref)
    if stored is None:
        raise ToolError(f"There is no stored result {ref!r}, or no longer. Make the call again.")
    if offset is not None:
        part = stored.text[offset : offset + context.output_caps.content_chars - 200]
        end = offset + len(part)
        note = f"[characters {offset} to {end} of {len(stored.text)} of {ref}]"
        return ToolResult.json(
            {"ref": ref, "text": part, "next_offset": end}, f"{_marked(part, stored)}\n{note}"
        )
    lines = stored.text.removesuffix("\n").split("\n")
    first = first_line or 1
    last = min(last_line or len(lines), len(lines))
    if tail is not None:
        first, last = max(1, len(lines) - tail + 1), len(lines)
    if first > last:
        raise ToolError(f"{ref} has {len(lines):,} lines; there is nothing from {first:,} to {last:,}.")
    chosen = list(enumerate(lines[first - 1 : last], first))
    note = f"[lines {first} to {last} of {len(lines)} of {ref}]"
    if pattern is not None:
        chosen, note = _filter_lines(chosen, pattern, note)
    rows = [f"{number}: {line}" if pattern is not None else line for number, line in chosen]
    value: dict[str, Json] = {
        "ref": ref,
        "tool": stored.tool,
        "lines": len(lines),
        "first_line": first,
        "last_line": last,
        "text": "\n".join(line for _, line in chosen),
    }
    found = [_marked("\n".join(rows), stored)] if rows else []
    return ToolResult.json(value, "\n".join([*found, note]))


def _marked(part: str, stored: StoredText) -> str:
    """Return a part of a stored result, marked if the whole is: the marks themselves may not be in it."""
    return mark_untrusted(part, f"part of a result of {stored.tool}") if is_marked(stored.text) else part


def _filter_lines(lines: list[tuple[int, str]], pattern: str, note: str) -> tuple[list[tuple[int, str]], str]:
    # ReDoS: the pattern is a model's, the text anybody's, and a search holds up every thread of the host.
    matches = matcher(pattern)
    if matches is None:
        raise ToolError(
            f"The pattern {pattern[:200]!r} is not a regular expression that can be searched for in linear "
            f"time: {LINEAR_FORM}. Use a simpler one, or escape what is meant literally, such as \\(."
        )
    most_chars = min(searchable_chars(pattern), _MAX_SEARCHED_CHARS)
    work = count_states(pattern) * sum(min(len(line), most_chars) for _, line in lines)
    if work > _MAX_SEARCH_WORK:
        raise ToolError(
            f"Searching {len(lines):,} lines for the pattern {pattern[:200]!r} would take too long. Use a "
            "shorter pattern, or fewer lines: first_line and last_line."
        )
    found = [(number, line) for number, line in lines if matches(line[:most_chars])]
    more = f"; the first {_MAX_MATCHES} are shown" if len(found) > _MAX_MATCHES else ""
    cut = sum(len(line) > most_chars for _, line in lines)
    if cut:
        more += f"; of {cut:,} long {'line' if cut == 1 else 'lines'} the first {most_chars:,} characters"
    return found[:_MAX_MATCHES], f"{note[:-1]}: {len(found)} match{more}]"


# ---- todo


class Item(BaseModel):
    """An item of the list."""

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
    import_path="aisotools.builtin.conversation:todo",
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
    lists: dict[str, list[tuple[str, str]]] = _services(context).memory.setdefault(_TODO_KEY, {})
    before = lists.get(context.agent_id, [])
    if items is None:
        after = before
    else:
        after = [(item.task, item.status) for item in items]
        _check_items(after)
        lists[context.agent_id] = after
    rows = [f"{_MARKS[status]} {task}" for task, status in after]
    changes = [] if items is None else _describe_changes(before, after)
    value: dict[str, Json] = {
        "items": [{"task": task, "status": status} for task, status in after],
        "changes": list(changes),
    }
    count = sum(status == "done" for _, status in after)
    rows.append(f"({count} of {len(after)} done)" if after else "The list is empty.")
    rows += [f"changed: {change}" for change in changes]
    return ToolResult.json(value, "\n".join(rows))


def _check_items(items: list[tuple[str, str]]) -> None:
    if len(items) > _MAX_ITEMS:
        raise ToolError(f"The list has {len(items)} items; at most {_MAX_ITEMS} are kept. Put some together.")
    running = [task for task, status in items if status == "in_progress"]
    if len(running) > 1:
        named = ", ".join(repr(task[:60]) for task in running)
        raise ToolError(
            f"One item at most is in progress, and these are: {named}. The list was not changed. "
            "Leave one of them in_progress."
        )
    tasks = [task for task, _ in items]
    duplicate = next((task for task in tasks if tasks.count(task) > 1), None)
    if duplicate is not None:
        raise ToolError(
            f"The item {duplicate[:60]!r} is there twice. The list was not changed. Give it once."
        )


def _describe_changes(before: list[tuple[str, str]], after: list[tuple[str, str]]) -> list[str]:
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
    import_path="aisotools.builtin.conversation:ask_user",
    timeout_s=_ASK_DEADLINE_S,
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
    user_question = UserQuestion(
        id=uuid.uuid4().hex,
        text=question,
        choices=tuple(choices),
        agent_id=context.agent_id,
        timeout_s=float(timeout),
    )
    context.emit("asked", question=question, choices=list(choices))
    answer = await _services(context).ask_user(user_question)
    if answer is None:
        message = "Nobody answered: there is nobody at the screen, or the question was left open."
        return ToolResult.error(message, recoverable=False, error_kind="denied")
    return ToolResult.json({"answer": answer}, answer)


_MAX_IMAGE_BYTES = 10 << 20
_IMAGES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"))
_MAX_CELLS = 20_000

_Cell = str | int | float | bool | None


def _display_facts(arguments: Mapping[str, Json]) -> Facts:
    image = arguments.get("image")
    return Facts(effect=Effect.READ_ONLY, reads=(image,) if isinstance(image, str) else ())


@tool(
    name="display",
    effect=Effect.READ_ONLY,
    import_path="aisotools.builtin.conversation:display",
    gather_facts=_display_facts,
    examples=[
        ({"markdown": "## Result\nThe mean is **4.2**."}, "Show me the result nicely."),
        ({"image": "plot.png", "title": "Sales per month"}, "Show me the plot."),
        (
            {"columns": ["name", "size"], "rows": [["a.csv", 120], ["b.csv", 80]]},
            "Show the files and sizes as a table.",
        ),
    ],
)
def display(
    *,
    title: Annotated[str, Field(description="A heading above it.", max_length=200)] = "",
    markdown: Annotated[
        str | None, Field(description="A text in Markdown; HTML in it is not shown.", max_length=100_000)
    ] = None,
    image: Annotated[
        str | None,
        Field(
            description="A PNG or JPEG file of the workspace, such as 'plot.png'.",
            min_length=1,
            max_length=4096,
        ),
    ] = None,
    columns: Annotated[
        list[Annotated[str, Field(max_length=200)]] | None,
        Field(description="The names of a table's columns.", min_length=1, max_length=50),
    ] = None,
    rows: Annotated[
        list[list[_Cell]] | None,
        Field(description="A table's rows, each with one value per column.", max_length=2_000),
    ] = None,
    html: Annotated[
        str | None,
        Field(
            description="HTML; scripts, styles that leave their place and whatever loads from elsewhere are "
            "removed.",
            max_length=200_000,
        ),
    ] = None,
    context: ToolContext,
) -> ToolResult:
    """Show the person something: a text in Markdown, a table, an image, or HTML; exactly one of these.

    Give markdown, or image, or columns with rows, or html. It is cleaned before it is shown. You get no
    answer; to ask something use ask_user.
    """
    forms = [
        form
        for form, value in (("markdown", markdown), ("image", image), ("html", html))
        if value is not None
    ]
    if columns is not None or rows is not None:
        forms.append("columns with rows")
    if len(forms) != 1:
        named = ", ".join(forms) or "nothing"
        raise ToolError(f"Give exactly one of markdown, image, html, or columns with rows; this is {named}.")
    if markdown is not None:
        bundle, what = _markdown(title, markdown), "the text"
    elif html is not None:
        bundle, what = {"text/html": html, "text/plain": title or "(HTML)"}, "the page"
    elif image is not None:
        bundle, what = _image(context, title, image), f"the image {as_utf8(image)}"
    else:
        bundle, what = _table(title, columns, rows), f"a table of {len(rows or ()):,} rows"
    value: dict[str, Json] = {"shown": forms[0], "title": title}
    return ToolResult(content=f"The person is shown {what}.", kind="json", value=value, data=bundle)


def _markdown(title: str, text: str) -> MimeBundle:
    whole = f"## {title}\n\n{text}" if title else text
    return {"text/markdown": whole, "text/plain": whole}


def _image(context: ToolContext, title: str, path: str) -> MimeBundle:
    workspace = workspace_of(context)
    with translate_errors(workspace, path):
        data = workspace.read_bytes(path, max_bytes=_MAX_IMAGE_BYTES)
    mime = next((mime for magic, mime in _IMAGES if data.startswith(magic)), None)
    if mime is None:
        raise ToolError(f"{as_utf8(path)!r} is not a PNG or JPEG image. Save it as one first.")
    return {mime: base64.b64encode(data).decode("ascii"), "text/plain": title or as_utf8(path)}


def _table(title: str, columns: list[str] | None, rows: list[list[_Cell]] | None) -> MimeBundle:
    if columns is None or rows is None:
        raise ToolError("A table needs columns and rows. Give both; rows may be an empty list.")
    misfit = next((number for number, row in enumerate(rows, 1) if len(row) != len(columns)), None)
    if misfit is not None:
        raise ToolError(
            f"Row {misfit} has {len(rows[misfit - 1])} values for {len(columns)} columns. "
            "Give each row one value for each column; null leaves a cell empty."
        )
    if len(rows) * len(columns) > _MAX_CELLS:
        raise ToolError(
            f"The table has {len(rows) * len(columns):,} cells; at most {_MAX_CELLS:,} are shown. "
            "Show fewer rows, or a summary of them."
        )
    import html

    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in row)}</tr>" for row in cells)
    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    plain = "\n".join("\t".join(row) for row in filter(None, [columns, *cells]))
    return {
        "text/html": f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>",
        "text/plain": f"{title}\n{plain}" if title else plain,
    }


register_host_tools(read_result, todo, ask_user)
