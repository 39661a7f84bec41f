"""JSON as something to unfold, and lists of like objects as a table. Pure; what is too much is not made."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence

from aisotools.events import Json
from aisotools.notebook.text import shorten
from aisotools.question import visible

_MOST_NODES = 400
_MOST_ROWS, _MOST_COLUMNS = 100, 12
_MOST_CHARS = 400
_CELL = "padding:1px 12px 1px 0;text-align:left;vertical-align:top"
_COLOURS = {str: "#2f9e44", int: "#3b82f6", float: "#3b82f6", bool: "#b65bd6", type(None): "#8a8a8a"}


def tree_html(value: Json) -> str | None:
    """`value` as HTML; None for what is no object or list, is empty, or has too many parts."""
    if not isinstance(value, dict | list) or not value or _count(value) > _MOST_NODES:
        return None
    return f'<div style="overflow-wrap:anywhere">{_inside(value, 0)}</div>'


def _count(value: Json) -> int:
    """How many parts there are, counted no further than matters."""
    count, todo = 0, [value]
    while todo and count <= _MOST_NODES:
        node = todo.pop()
        count += 1
        if isinstance(node, Mapping):
            todo.extend(node.values())
        elif isinstance(node, list):
            todo.extend(node)
    return count


def _inside(value: Json, depth: int) -> str:
    if columns := _columns(value):
        return _table(value, columns)
    pairs: Iterator[tuple[str, Json]]
    pairs = iter(value.items()) if isinstance(value, dict) else ((str(n), v) for n, v in enumerate(value))
    return "".join(_pair(name, part, depth) for name, part in pairs)


def _pair(name: str, value: Json, depth: int) -> str:
    label = f"<code>{_text(name)}</code>"
    if isinstance(value, dict | list) and value:
        size = f"{len(value)} {'items' if isinstance(value, list) else 'entries'}"
        opened = " open" if depth < 1 and len(value) <= 20 else ""
        return (
            f'<details{opened} style="padding-left:1em"><summary>{label} <em>{size}</em></summary>'
            f"{_inside(value, depth + 1)}</details>"
        )
    return f'<div style="padding-left:2.1em">{label}: {_scalar(value)}</div>'


def _scalar(value: Json) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    shown = json.dumps(value, ensure_ascii=False) if value == "" else shown
    colour = _COLOURS.get(type(value), "inherit")
    return f'<span style="color:{colour};white-space:pre-wrap">{_text(shown)}</span>'


def _columns(value: Json) -> list[str]:
    """The names that every row of a table has; none if `value` is no table."""
    if not isinstance(value, list) or not 2 <= len(value) <= _MOST_ROWS:
        return []
    names = list(value[0]) if isinstance(value[0], dict) else []
    alike = all(
        isinstance(row, dict)
        and list(row) == names
        and not any(isinstance(part, dict | list) for part in row.values())
        for row in value
    )
    return names if alike and 1 <= len(names) <= _MOST_COLUMNS else []


def _table(rows: Sequence[Mapping[str, Json]], columns: Sequence[str]) -> str:
    head = "".join(f'<th style="{_CELL}">{_text(name)}</th>' for name in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{_scalar(row[name])}</td>' for name in columns) + "</tr>"
        for row in rows
    )
    return f'<div style="overflow-x:auto"><table><tr>{head}</tr>{body}</table></div>'


def _text(text: str) -> str:
    return html.escape(visible(shorten(text, _MOST_CHARS)))
