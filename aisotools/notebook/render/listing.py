"""MIME bundles of `%tools` and `%sandbox status`. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from aisotools.core.protocols import Tool
from aisotools.core.types import Effect
from aisotools.notebook.render import html
from aisotools.notebook.render.text import one_line, readable
from aisotools.policy.prompts import EFFECT_LABELS
from aisotools.session.status import SessionStatus, describe_limits, describe_retained
from aisotools.tools.adapter import classify, definition_of, payload_of, source_of

_CELL = "padding:3px 16px 3px 0;text-align:left;vertical-align:top"
_TABLE = "border-collapse:collapse;margin:2px 0;table-layout:auto"
# By the longest text of a column, in characters.
_WIDTHS = ((20, ";white-space:nowrap"), (60, ";min-width:7em"))
# A rough average over English and JSON.
_CHARS_PER_TOKEN = 4


def token_cost(tool: Tool) -> int:
    """Estimate the tokens that the tool's definition costs in each request to a model."""
    definition = definition_of(tool)
    parts = [definition.name, definition.description, json.dumps(definition.parameters)]
    return -(-sum(map(len, parts)) // _CHARS_PER_TOKEN)


def effect_word(tool: Tool) -> str:
    """Return the possible effects of the tool in words; they may depend on the arguments."""
    effects = _effects(tool)
    if isinstance(effects, str):
        return effects
    return " or ".join(EFFECT_LABELS[effect] for effect in effects)


def _effects(tool: Tool) -> list[Effect] | str:
    """Return the effects of all operations that the schema lists, mildest first, or why they are unknown."""
    try:
        operations = tool.parameters_schema().get("properties", {}).get("operation", {}).get("enum", ())
        calls = [{"operation": operation} for operation in operations] or [{}]
        return sorted({classify(tool, arguments) for arguments in calls})
    except Exception as error:
        # `classify` belongs to the tool, which may be anybody's; a listing must survive it.
        return f"unknown ({type(error).__name__})"


def tools_bundle(tools: Sequence[Tool]) -> dict[str, str]:
    """Return a table of tools: name, effect, place, token cost, description, source."""
    rows = [
        (
            tool.name,
            effect_word(tool),
            _place(tool),
            f"~{token_cost(tool):,}",
            one_line(tool.description.partition("\n")[0], 100),
            one_line(source_of(tool), 60),
        )
        for tool in tools
    ]
    if not rows:
        message = "No tools are registered. Put @tool above a function and register it."
        return {"text/html": html.note(message), "text/plain": message}
    head = ("tool", "effect", "runs in", "tokens", "what it does", "from")
    if len({source for *_, source in rows}) == 1:
        return table_bundle(head[:-1], [row[:-1] for row in rows])
    return table_bundle(head, rows)


def tool_bundle(tool: Tool) -> dict[str, str]:
    """Return everything about one tool: description, arguments, examples, schema."""
    definition = definition_of(tool)
    schema = json.dumps(definition.parameters, indent=2, ensure_ascii=False)
    required = set(definition.parameters.get("required", ()))
    rows = [
        (
            name,
            _kind(about),
            "required" if name in required else _default(about),
            str(about.get("description", "")),
        )
        for name, about in definition.parameters.get("properties", {}).items()
    ]
    arguments = (
        table_bundle(("argument", "type", "", "what it is"), rows)
        if rows
        else {"text/html": "", "text/plain": ""}
    )
    examples = [
        f"{text}\n  {json.dumps(dict(values), ensure_ascii=False)}" for values, text in definition.examples
    ]
    body = (
        html.block(readable(definition.description))
        + arguments["text/html"]
        + (html.note("For example:") if examples else "")
        + "".join(html.block(readable(example)) for example in examples)
        + f"<details><summary>JSON Schema</summary>{html.block(readable(schema))}</details>"
    )
    title = f"{html.code(tool.name)} · {effect_word(tool)} · runs in the {_place(tool)}"
    effects = _effects(tool)
    colour = html.ERROR_COLOUR if isinstance(effects, str) else html.EFFECT_COLOURS[effects[-1]]
    plain = "\n\n".join(
        p
        for p in (
            f"{tool.name} - {effect_word(tool)} - runs in the {_place(tool)}",
            readable(definition.description),
            arguments["text/plain"],
            *(readable(example) for example in examples),
        )
        if p
    )
    return {"text/html": html.box(title, body, colour), "text/plain": plain}


def status_bundle(
    status: SessionStatus, mode: str, protects: Mapping[str, tuple[str, str]]
) -> dict[str, str]:
    """Return the state of a session's sandbox: its level and what it protects, its worker, its workspace."""
    if not status.level:
        message = f"The sandbox has not started yet; the first call starts it. Policy mode: {mode}."
        return {"text/html": html.note(message), "text/plain": message}
    protected, unprotected = protects.get(status.level, ("", ""))
    worker = (
        f"process {status.pid}, up for {status.age_s:.0f} s, {status.memory_bytes / 2**20:.0f} MiB"
        if status.alive
        else "not up; the next call starts one"
    )
    level = status.level if status.level != "limited" else "limited - not a sandbox"
    rows = [
        ("level", level),
        ("protects", protected),
        ("does not", unprotected),
        ("worker", worker),
        ("workspace", status.workspace),
        ("policy mode", mode),
        ("calls so far", str(status.calls)),
    ]
    if status.limits is not None:
        rows.append(("limits", describe_limits(status.limits)))
    if status.allowed_protected:
        allowed = f"{', '.join(status.allowed_protected)}; programs outside the sandbox may run or obey them"
        rows.append(("protected, but allowed", allowed))
    if status.retained is not None:
        rows.append(("host retains", describe_retained(status.retained)))
    if status.disk is not None:
        rows.append(("on the disk", str(status.disk)))
    rows += [("earlier work", text) for text in status.recovered]
    rows += [("not available", text) for text in status.missing]
    return table_bundle(("sandbox", ""), rows)


def table_bundle(head: Sequence[str], rows: Sequence[Sequence[str]], *, note: str = "") -> dict[str, str]:
    """Return rows of plain text as an HTML table and as aligned text, with a note of plain text below.

    Columns of short texts do not wrap.
    """
    styles = [_CELL + _width(max(map(len, column))) for column in zip(head, *rows, strict=True)]
    cells = "".join(
        "<tr>"
        + "".join(f'<td style="{styles[n]}">{_cell(n, text)}</td>' for n, text in enumerate(row))
        + "</tr>"
        for row in rows
    )
    titles = "".join(
        f'<th style="{style};opacity:.7;font-weight:normal">{escape(title)}</th>'
        for style, title in zip(styles, head, strict=True)
    )
    markup = f'<table style="{_TABLE}"><tr>{titles}</tr>{cells}</table>'
    return {
        "text/html": f'<div style="overflow-x:auto">{markup}</div>' + (html.note(note) if note else ""),
        "text/plain": _align([head, *rows]) + (f"\n\n{note}" if note else ""),
    }


def _width(longest_chars: int) -> str:
    return next((style for chars, style in _WIDTHS if longest_chars <= chars), ";min-width:14em")


def _cell(column: int, text: str) -> str:
    return html.code(readable(text)) if column == 0 else escape(readable(text))


def _align(rows: Sequence[Sequence[str]]) -> str:
    """Align columns. The last one may be long: nothing comes behind it."""
    plain = [[*(one_line(text, 100) for text in row[:-1]), one_line(row[-1], 1000)] for row in rows]
    widths = [max(len(row[n]) for row in plain) for n in range(len(plain[0]) - 1)]
    return "\n".join(
        "  ".join([*(t.ljust(w) for t, w in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in plain
    )


def _place(tool: Tool) -> str:
    return "sandbox" if payload_of(tool) is not None else "HOST"


def _kind(about: Any) -> str:
    if "enum" in about:
        return " | ".join(json.dumps(v) for v in about["enum"])
    if "anyOf" in about:
        return " or ".join(dict.fromkeys(_kind(option) for option in about["anyOf"]))
    if "$ref" in about:
        return str(about["$ref"]).rsplit("/", 1)[-1]
    return str(about.get("type", "any"))


def _default(about: Any) -> str:
    return f"default {json.dumps(about['default'], ensure_ascii=False)}" if "default" in about else ""
